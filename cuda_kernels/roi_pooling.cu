// Pooling of regions of interest: one thread per output element. An image that there is not gives zeros.
#include "accumulator.cuh"

// The maps [n, c, height, width], and the output [regions, channels, rows, columns], of which `size` counts elements.
#define SIZES long long size, int n, int c, int height, int width, int channels, int rows, int columns

__device__ __forceinline__ float away(float x) { return roundf(x); }  // a half goes away from zero
__device__ __forceinline__ double away(double x) { return round(x); }
__device__ __forceinline__ float down(float x) { return floorf(x); }
__device__ __forceinline__ double down(double x) { return floor(x); }
__device__ __forceinline__ float up(float x) { return ceilf(x); }
__device__ __forceinline__ double up(double x) { return ceil(x); }
__device__ __forceinline__ float sine(float x) { return sinf(x); }
__device__ __forceinline__ double sine(double x) { return sin(x); }
__device__ __forceinline__ float cosine(float x) { return cosf(x); }
__device__ __forceinline__ double cosine(double x) { return cos(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float logarithm(float x) { return log2f(x); }
__device__ __forceinline__ double logarithm(double x) { return log2(x); }

template <class A>
__device__ __forceinline__ A between(A x, A low, A high) {
  return x < low ? low : x > high ? high : x;
}

__device__ __forceinline__ int clipped(int x, int high) { return x < 0 ? 0 : x > high ? high : x; }

// The place of an output element.
struct Place {
  int region, channel, row, column;
};

__device__ __forceinline__ Place place_of(long long i, int channels, int rows, int columns) {
  Place at;
  at.column = static_cast<int>(i % columns);
  i /= columns;
  at.row = static_cast<int>(i % rows);
  i /= rows;
  at.channel = static_cast<int>(i % channels);
  at.region = static_cast<int>(i / channels);
  return at;
}

template <class T>
__device__ __forceinline__ const T* channel_of(const T* maps, long long image, int channel, int c, int height,
                                               int width) {
  return maps + (image * c + channel) * height * width;
}

// Between four elements of a channel, at a point inside it.
template <class A, class T>
__device__ __forceinline__ A interpolated(const T* channel, int height, int width, A y, A x) {
  const int top = static_cast<int>(y), left = static_cast<int>(x);
  const int bottom = top + 1 < height ? top + 1 : top, right = left + 1 < width ? left + 1 : left;
  const A dy = y - A(top), dx = x - A(left);
  const T* first = channel + static_cast<long long>(top) * width;
  const T* second = channel + static_cast<long long>(bottom) * width;
  const A upper = A(first[left]) + (A(first[right]) - A(first[left])) * dx;
  const A lower = A(second[left]) + (A(second[right]) - A(second[left])) * dx;
  return upper + (lower - upper) * dy;
}

// The elements of part `i` of `count` along an axis: [first, last) within [0, extent).
struct Span {
  int first, last;
};

template <class A>
__device__ __forceinline__ Span part_of(A start, A size, int i, int shift, int extent) {
  return {clipped(static_cast<int>(down(A(i) * size + start)) + shift, extent),
          clipped(static_cast<int>(up(A(i + 1) * size + start)) + shift, extent)};
}

template <class T>
__global__ void roi_pooling(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                            typename Accumulator<T>::Type scale, bool bilinear) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A result = 0;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, at.channel, c, height, width);
    const A x1 = A(region[1]), y1 = A(region[2]), x2 = A(region[3]), y2 = A(region[4]);
    if (bilinear) {
      const A bottom = A(height - 1), right = A(width - 1);
      const A y = rows == 1               ? (y1 + y2) * bottom * A(0.5)
                  : at.row == rows - 1    ? y2 * bottom
                                          : A(at.row) * ((y2 - y1) * bottom / A(rows - 1)) + y1 * bottom;
      const A x = columns == 1                  ? (x1 + x2) * right * A(0.5)
                  : at.column == columns - 1    ? x2 * right
                                                : A(at.column) * ((x2 - x1) * right / A(columns - 1)) + x1 * right;
      if (y >= A(0) && y <= bottom && x >= A(0) && x <= right) result = interpolated(channel, height, width, y, x);
    } else {
      const int left = static_cast<int>(away(x1 * scale)), right = static_cast<int>(away(x2 * scale));
      const int top = static_cast<int>(away(y1 * scale)), bottom = static_cast<int>(away(y2 * scale));
      const A tall = A(bottom < top ? 1 : bottom - top + 1) / A(rows);
      const A wide = A(right < left ? 1 : right - left + 1) / A(columns);
      const Span down_to = part_of(A(0), tall, at.row, top, height);
      const Span along = part_of(A(0), wide, at.column, left, width);
      bool found = false;
      for (int y = down_to.first; y < down_to.last; y++) {
        for (int x = along.first; x < along.last; x++) {
          const A value = A(channel[static_cast<long long>(y) * width + x]);
          if (!found || value > result || (value != value && result == result)) result = value;
          found = true;
        }
      }
    }
  }
  out[i] = T(result);
}

// A region: where it begins, the sizes of its parts, and for a rotated one its centre, from which it begins.
template <class A>
struct Frame {
  A y, x, tall, wide, center_y, center_x, cos, sin;
};

// The mean or the maximum of points at even distances in one part of a region.
template <bool ROTATED, class A, class T>
__device__ __forceinline__ A aligned(const T* channel, int height, int width, const Frame<A>& frame, const Place& at,
                                     int ratio, bool maximum) {
  const int along = ratio ? ratio : static_cast<int>(up(frame.tall));
  const int across = ratio ? ratio : static_cast<int>(up(frame.wide));
  A result = 0;
  for (int j = 0; j < along; j++) {
    const A v = frame.y + A(at.row) * frame.tall + frame.tall / A(along) * (A(j) + A(0.5));
    for (int k = 0; k < across; k++) {
      const A u = frame.x + A(at.column) * frame.wide + frame.wide / A(across) * (A(k) + A(0.5));
      const A y = ROTATED ? v * frame.cos - u * frame.sin + frame.center_y : v;
      const A x = ROTATED ? v * frame.sin + u * frame.cos + frame.center_x : u;
      if (!(y >= A(-1) && y <= A(height) && x >= A(-1) && x <= A(width))) continue;
      const A value = interpolated(channel, height, width, between(y, A(0), A(height - 1)),
                                   between(x, A(0), A(width - 1)));
      if (!maximum) result += value;
      else if (value > result) result = value;
    }
  }
  const long long points = static_cast<long long>(along > 0 ? along : 0) * (across > 0 ? across : 0);
  return !maximum && points ? result / A(points) : result;
}

// `flag`: of upright regions, whether the maximum is wanted; of rotated ones, whether they turn clockwise. Coordinates
// are scaled after `before` and before `after` is added.
template <class T, class Index, bool ROTATED>
__global__ void roi_align(const T* __restrict__ maps, const T* __restrict__ regions, const Index* __restrict__ images,
                          T* __restrict__ out, SIZES, int ratio, typename Accumulator<T>::Type scale,
                          typename Accumulator<T>::Type before, typename Accumulator<T>::Type after, bool flag) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const long long image = static_cast<long long>(images[at.region]);
  if (image < 0 || image >= n) {
    out[i] = T(0);
    return;
  }
  const T* region = regions + (ROTATED ? 5ll : 4ll) * at.region;
  const A x = (A(region[0]) + before) * scale + after, y = (A(region[1]) + before) * scale + after;
  Frame<A> frame{y, x};
  if (ROTATED) {
    const A angle = flag ? -A(region[ROTATED ? 4 : 0]) : A(region[ROTATED ? 4 : 0]);
    const A wide = A(region[2]) * scale, tall = A(region[3]) * scale;
    frame = {tall * A(-0.5), wide * A(-0.5), tall, wide, y, x, cosine(angle), sine(angle)};
  } else {
    frame.wide = (A(region[2]) + before) * scale + after - x;
    frame.tall = (A(region[3]) + before) * scale + after - y;
    if (after == A(0)) {
      frame.wide = frame.wide < A(1) ? A(1) : frame.wide;
      frame.tall = frame.tall < A(1) ? A(1) : frame.tall;
    }
  }
  frame.wide /= A(columns);
  frame.tall /= A(rows);
  const T* channel = channel_of(maps, image, at.channel, c, height, width);
  out[i] = T(aligned<ROTATED>(channel, height, width, frame, at, ratio, !ROTATED && flag));
}

// The level of a pyramid that a region belongs to; `levels` for one without an area.
template <class A>
__device__ __forceinline__ int level_of(A wide, A tall, int levels) {
  const A area = wide * tall;
  if (!(area > A(0))) return levels;
  return clipped(static_cast<int>(down(logarithm(root(area) / A(224) + A(1e-6)) + A(2))), levels - 1);
}

// Features of the regions that belong to one level; of those that belong to none, zeros, with the first.
template <class T>
__global__ void roi_level(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                          int ratio, typename Accumulator<T>::Type scale, typename Accumulator<T>::Type after,
                          int level, int levels) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const T* region = regions + 4ll * at.region;
  const A x1 = A(region[0]), y1 = A(region[1]), x2 = A(region[2]), y2 = A(region[3]);
  const int own = level_of(x2 - x1, y2 - y1, levels);
  if (own == levels && level == 0) out[i] = T(0);
  if (own != level) return;
  Frame<A> frame{y1 * scale + after, x1 * scale + after};
  const A tall = y2 * scale + after - frame.y, wide = x2 * scale + after - frame.x;
  frame.tall = (tall < A(1) ? A(1) : tall) / A(rows);
  frame.wide = (wide < A(1) ? A(1) : wide) / A(columns);
  const T* channel = channel_of(maps, 0, at.channel, c, height, width);
  out[i] = T(aligned<false>(channel, height, width, frame, at, ratio, false));
}

template <class T>
__global__ void psroi_average(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                              typename Accumulator<T>::Type scale) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  long long count = 1;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, (at.channel * rows + at.row) * columns + at.column, c, height, width);
    const A x = away(A(region[1])) * scale, y = away(A(region[2])) * scale;
    const A wide = (away(A(region[3])) + A(1)) * scale - x, tall = (away(A(region[4])) + A(1)) * scale - y;
    const Span down_to = part_of(y, (tall < A(0.1) ? A(0.1) : tall) / A(rows), at.row, 0, height);
    const Span along = part_of(x, (wide < A(0.1) ? A(0.1) : wide) / A(columns), at.column, 0, width);
    for (int v = down_to.first; v < down_to.last; v++) {
      for (int u = along.first; u < along.last; u++) sum += A(channel[static_cast<long long>(v) * width + u]);
    }
    count = static_cast<long long>(down_to.last - down_to.first) * (along.last - along.first);
  }
  out[i] = T(count > 0 ? sum / A(count) : sum);
}

// Where point `i` of `count` lies in cell `cell` of `cells`, along an axis of a region from `low` to `high`.
template <class A>
__device__ __forceinline__ A point_of(A low, A high, int cell, int cells, int i, int count, A reach) {
  const A size = (high - low) / A(cells), first = low + A(cell) * size, last = low + A(cell + 1) * size;
  return count == 1 ? (first + last) * reach * A(0.5)
                    : A(i) * ((last - first) * reach / A(count - 1)) + first * reach;
}

template <class T>
__global__ void psroi_bilinear(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                               typename Accumulator<T>::Type scale, int bins_y, int bins_x) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  if (image >= 0 && image < n) {
    const A x1 = A(region[1]) * scale, y1 = A(region[2]) * scale, x2 = A(region[3]) * scale, y2 = A(region[4]) * scale;
    const A bottom = A(height - 1), right = A(width - 1);
    for (int v = 0; v < bins_y; v++) {
      const A y = point_of(y1, y2, v, bins_y, at.row, rows, bottom);
      if (!(y >= A(0) && y <= bottom)) continue;
      for (int u = 0; u < bins_x; u++) {
        const A x = point_of(x1, x2, u, bins_x, at.column, columns, right);
        const int from = (v * bins_x + u) * channels + at.channel;
        if (x >= A(0) && x <= right) {
          sum += interpolated(channel_of(maps, image, from, c, height, width), height, width, y, x);
        }
      }
    }
  }
  out[i] = T(sum / A(bins_y * bins_x));
}

// The offsets are [regions, classes, 2, parts, parts], x before y, or null.
template <class T>
__global__ void deformable_psroi(const T* __restrict__ maps, const T* __restrict__ regions,
                                 const T* __restrict__ offsets, T* __restrict__ out, SIZES,
                                 typename Accumulator<T>::Type scale, int bins_y, int bins_x,
                                 typename Accumulator<T>::Type strength, int parts, int classes) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Place at = place_of(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  int count = 0;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, (at.channel * rows + at.row) * columns + at.column, c, height, width);
    A x = away(A(region[1])) * scale - A(0.5), y = away(A(region[2])) * scale - A(0.5);
    A wide = (away(A(region[3])) + A(1)) * scale - A(0.5) - x, tall = (away(A(region[4])) + A(1)) * scale - A(0.5) - y;
    wide = wide < A(0.1) ? A(0.1) : wide;
    tall = tall < A(0.1) ? A(0.1) : tall;
    x += A(at.column) * (wide / A(columns));
    y += A(at.row) * (tall / A(rows));
    if (offsets) {
      const int each = channels / classes > 1 ? channels / classes : 1;
      const long long plane = static_cast<long long>(parts) * parts;
      const T* moved = offsets + (static_cast<long long>(at.region) * classes + at.channel / each) * 2 * plane +
                       at.row * parts / rows * parts + at.column * parts / columns;
      x += A(moved[0]) * strength * wide;
      y += A(moved[plane]) * strength * tall;
    }
    const A step_x = wide / A(columns) / A(bins_x), step_y = tall / A(rows) / A(bins_y);
    for (int j = 0; j < bins_y; j++) {
      const A v = y + A(j) * step_y;
      if (!(v >= A(-0.5) && v <= A(height) - A(0.5))) continue;
      for (int k = 0; k < bins_x; k++) {
        const A u = x + A(k) * step_x;
        if (!(u >= A(-0.5) && u <= A(width) - A(0.5))) continue;
        sum += interpolated(channel, height, width, between(v, A(0), A(height - 1)), between(u, A(0), A(width - 1)));
        count++;
      }
    }
  }
  out[i] = T(count ? sum / A(count) : A(0));
}
