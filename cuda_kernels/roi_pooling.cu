// Pooling of regions of interest, one thread per output element. Regions of images that do not exist give zeros.
#include "accumulator.cuh"
#include "math.cuh"

// Feature maps [n, c, height, width]; output [regions, channels, rows, columns] with `size` elements.
#define SIZES long long size, int n, int c, int height, int width, int channels, int rows, int columns

template <class A>
__device__ __forceinline__ A clamp(A x, A low, A high) {
  return x < low ? low : x > high ? high : x;
}

__device__ __forceinline__ int clip_index(int x, int high) { return x < 0 ? 0 : x > high ? high : x; }

// Coordinates of an output element, which is the result of one bin of a region.
struct OutputIndex {
  int region, channel, row, column;
};

__device__ __forceinline__ OutputIndex output_index(long long i, int channels, int rows, int columns) {
  OutputIndex at;
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

// Interpolate bilinearly at a point inside a channel.
template <class A, class T>
__device__ __forceinline__ A interpolate(const T* channel, int height, int width, A y, A x) {
  const int top = static_cast<int>(y), left = static_cast<int>(x);
  const int bottom = top + 1 < height ? top + 1 : top, right = left + 1 < width ? left + 1 : left;
  const A dy = y - A(top), dx = x - A(left);
  const T* first = channel + static_cast<long long>(top) * width;
  const T* second = channel + static_cast<long long>(bottom) * width;
  const A upper = A(first[left]) + (A(first[right]) - A(first[left])) * dx;
  const A lower = A(second[left]) + (A(second[right]) - A(second[left])) * dx;
  return upper + (lower - upper) * dy;
}

// Elements [first, last) of bin `i` along an axis, clipped to [0, extent).
struct Span {
  int first, last;
};

template <class A>
__device__ __forceinline__ Span bin_span(A start, A size, int i, int shift, int extent) {
  return {clip_index(static_cast<int>(math::floor(A(i) * size + start)) + shift, extent),
          clip_index(static_cast<int>(math::ceil(A(i + 1) * size + start)) + shift, extent)};
}

// ROIPooling: the maximum of a bin, or with `bilinear` one sample. A region is image, x1, y1, x2, y2.
template <class T>
__global__ void roi_pooling(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                            typename Accumulator<T>::Type scale, bool bilinear) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A result = 0;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, at.channel, c, height, width);
    const A x1 = A(region[1]), y1 = A(region[2]), x2 = A(region[3]), y2 = A(region[4]);
    if (bilinear) {
      const A bottom = A(height - 1), right = A(width - 1);
      const A y = rows == 1            ? (y1 + y2) * bottom * A(0.5)
                  : at.row == rows - 1 ? y2 * bottom
                                       : A(at.row) * ((y2 - y1) * bottom / A(rows - 1)) + y1 * bottom;
      const A x = columns == 1               ? (x1 + x2) * right * A(0.5)
                  : at.column == columns - 1 ? x2 * right
                                             : A(at.column) * ((x2 - x1) * right / A(columns - 1)) + x1 * right;
      if (y >= A(0) && y <= bottom && x >= A(0) && x <= right) result = interpolate(channel, height, width, y, x);
    } else {
      const int left = static_cast<int>(math::round(x1 * scale)), right = static_cast<int>(math::round(x2 * scale));
      const int top = static_cast<int>(math::round(y1 * scale)), bottom = static_cast<int>(math::round(y2 * scale));
      const A size_y = A(bottom < top ? 1 : bottom - top + 1) / A(rows);
      const A size_x = A(right < left ? 1 : right - left + 1) / A(columns);
      const Span row_span = bin_span(A(0), size_y, at.row, top, height);
      const Span along = bin_span(A(0), size_x, at.column, left, width);
      bool found = false;
      for (int y = row_span.first; y < row_span.last; y++) {
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

// A region: its first point and bin sizes. A rotated region also has a centre, to which the first point is relative,
// and an angle.
template <class A>
struct Frame {
  A y, x, size_y, size_x, center_y, center_x, cos, sin;
};

// Return the mean or the maximum of a regular grid of samples in one bin of a region. `ratio` is the number of samples
// per axis; 0 derives it from the bin's size.
template <bool ROTATED, class A, class T>
__device__ __forceinline__ A pool_samples(const T* channel, int height, int width, const Frame<A>& frame,
                                          const OutputIndex& at, int ratio, bool maximum) {
  const int along = ratio ? ratio : static_cast<int>(math::ceil(frame.size_y));
  const int across = ratio ? ratio : static_cast<int>(math::ceil(frame.size_x));
  A result = 0;
  for (int j = 0; j < along; j++) {
    const A v = frame.y + A(at.row) * frame.size_y + frame.size_y / A(along) * (A(j) + A(0.5));
    for (int k = 0; k < across; k++) {
      const A u = frame.x + A(at.column) * frame.size_x + frame.size_x / A(across) * (A(k) + A(0.5));
      const A y = ROTATED ? v * frame.cos - u * frame.sin + frame.center_y : v;
      const A x = ROTATED ? v * frame.sin + u * frame.cos + frame.center_x : u;
      if (!(y >= A(-1) && y <= A(height) && x >= A(-1) && x <= A(width))) continue;
      const A value = interpolate(channel, height, width, clamp(y, A(0), A(height - 1)), clamp(x, A(0), A(width - 1)));
      if (!maximum)
        result += value;
      else if (value > result)
        result = value;
    }
  }
  const long long points = static_cast<long long>(along > 0 ? along : 0) * (across > 0 ? across : 0);
  return !maximum && points ? result / A(points) : result;
}

// ROIAlign, and ROIAlignRotated if ROTATED. `flag`: for upright regions, take the maximum; for rotated ones, angles are
// clockwise. Coordinates become (x + pre_offset) * scale + post_offset.
template <class T, class Index, bool ROTATED>
__global__ void roi_align(const T* __restrict__ maps, const T* __restrict__ regions, const Index* __restrict__ images,
                          T* __restrict__ out, SIZES, int ratio, typename Accumulator<T>::Type scale,
                          typename Accumulator<T>::Type pre_offset, typename Accumulator<T>::Type post_offset,
                          bool flag) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const long long image = static_cast<long long>(images[at.region]);
  if (image < 0 || image >= n) {
    out[i] = T(0);
    return;
  }
  const T* region = regions + (ROTATED ? 5ll : 4ll) * at.region;
  const A x = (A(region[0]) + pre_offset) * scale + post_offset, y = (A(region[1]) + pre_offset) * scale + post_offset;
  Frame<A> frame{y, x};
  if (ROTATED) {
    const A angle = flag ? -A(region[ROTATED ? 4 : 0]) : A(region[ROTATED ? 4 : 0]);
    const A size_x = A(region[2]) * scale, size_y = A(region[3]) * scale;
    frame = {size_y * A(-0.5), size_x * A(-0.5), size_y, size_x, y, x, math::cos(angle), math::sin(angle)};
  } else {
    frame.size_x = (A(region[2]) + pre_offset) * scale + post_offset - x;
    frame.size_y = (A(region[3]) + pre_offset) * scale + post_offset - y;
    if (post_offset == A(0)) {
      frame.size_x = frame.size_x < A(1) ? A(1) : frame.size_x;
      frame.size_y = frame.size_y < A(1) ? A(1) : frame.size_y;
    }
  }
  frame.size_x /= A(columns);
  frame.size_y /= A(rows);
  const T* channel = channel_of(maps, image, at.channel, c, height, width);
  out[i] = T(pool_samples<ROTATED>(channel, height, width, frame, at, ratio, !ROTATED && flag));
}

// Return the level of the feature pyramid for a region of this size (FPN, Lin et al. 2017); `levels` if it has no area.
template <class A>
__device__ __forceinline__ int level_of(A size_x, A size_y, int levels) {
  constexpr int CANONICAL_SIZE = 224;  // pixels of a side of a region that belongs to level CANONICAL_LEVEL
  constexpr int CANONICAL_LEVEL = 2;
  const A area = size_x * size_y;
  if (!(area > A(0))) return levels;
  const A relative = math::sqrt(area) / A(CANONICAL_SIZE) + A(1e-6);
  return clip_index(static_cast<int>(math::floor(math::log2(relative) + A(CANONICAL_LEVEL))), levels - 1);
}

// ROI features of the regions that belong to `level`. Regions without a level get zeros in the launch of level 0.
template <class T>
__global__ void roi_level(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                          int ratio, typename Accumulator<T>::Type scale, typename Accumulator<T>::Type post_offset,
                          int level, int levels) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const T* region = regions + 4ll * at.region;
  const A x1 = A(region[0]), y1 = A(region[1]), x2 = A(region[2]), y2 = A(region[3]);
  const int region_level = level_of(x2 - x1, y2 - y1, levels);
  if (region_level == levels && level == 0) out[i] = T(0);
  if (region_level != level) return;
  Frame<A> frame{y1 * scale + post_offset, x1 * scale + post_offset};
  const A size_y = y2 * scale + post_offset - frame.y, size_x = x2 * scale + post_offset - frame.x;
  frame.size_y = (size_y < A(1) ? A(1) : size_y) / A(rows);
  frame.size_x = (size_x < A(1) ? A(1) : size_x) / A(columns);
  const T* channel = channel_of(maps, 0, at.channel, c, height, width);
  out[i] = T(pool_samples<false>(channel, height, width, frame, at, ratio, false));
}

// Return the size of a side of a region in PSROIPooling: 0.1 elements of the feature map at least.
template <class A>
__device__ __forceinline__ A side(A size) {
  return size < A(0.1) ? A(0.1) : size;
}

// PSROIPooling, average: the mean of a bin, where every bin has channels of its own.
template <class T>
__global__ void psroi_average(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                              typename Accumulator<T>::Type scale) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  long long count = 1;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, (at.channel * rows + at.row) * columns + at.column, c, height, width);
    const A x = math::round(A(region[1])) * scale, y = math::round(A(region[2])) * scale;
    const A size_x = (math::round(A(region[3])) + A(1)) * scale - x,
            size_y = (math::round(A(region[4])) + A(1)) * scale - y;
    const Span row_span = bin_span(y, side(size_y) / A(rows), at.row, 0, height);
    const Span along = bin_span(x, side(size_x) / A(columns), at.column, 0, width);
    for (int v = row_span.first; v < row_span.last; v++) {
      for (int u = along.first; u < along.last; u++) sum += A(channel[static_cast<long long>(v) * width + u]);
    }
    count = static_cast<long long>(row_span.last - row_span.first) * (along.last - along.first);
  }
  out[i] = T(count > 0 ? sum / A(count) : sum);
}

// Return the coordinate of sample `i` of `count` in cell `cell` of `cells`, along an axis of a region from `low` to
// `high`.
template <class A>
__device__ __forceinline__ A sample_point(A low, A high, int cell, int cells, int i, int count, A max_coordinate) {
  const A size = (high - low) / A(cells), first = low + A(cell) * size, last = low + A(cell + 1) * size;
  return count == 1 ? (first + last) * max_coordinate * A(0.5)
                    : A(i) * ((last - first) * max_coordinate / A(count - 1)) + first * max_coordinate;
}

// PSROIPooling, bilinear: the mean of one sample in each of bins_y x bins_x cells, which have channels of their own.
template <class T>
__global__ void psroi_bilinear(const T* __restrict__ maps, const T* __restrict__ regions, T* __restrict__ out, SIZES,
                               typename Accumulator<T>::Type scale, int bins_y, int bins_x) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  if (image >= 0 && image < n) {
    const A x1 = A(region[1]) * scale, y1 = A(region[2]) * scale, x2 = A(region[3]) * scale, y2 = A(region[4]) * scale;
    const A bottom = A(height - 1), right = A(width - 1);
    for (int v = 0; v < bins_y; v++) {
      const A y = sample_point(y1, y2, v, bins_y, at.row, rows, bottom);
      if (!(y >= A(0) && y <= bottom)) continue;
      for (int u = 0; u < bins_x; u++) {
        const A x = sample_point(x1, x2, u, bins_x, at.column, columns, right);
        const int from = (v * bins_x + u) * channels + at.channel;
        if (x >= A(0) && x <= right) {
          sum += interpolate(channel_of(maps, image, from, c, height, width), height, width, y, x);
        }
      }
    }
  }
  out[i] = T(sum / A(bins_y * bins_x));
}

// Deformable PSROIPooling. `offsets` [regions, classes, 2, parts, parts] has x before y, or is null.
template <class T>
__global__ void deformable_psroi(const T* __restrict__ maps, const T* __restrict__ regions,
                                 const T* __restrict__ offsets, T* __restrict__ out, SIZES,
                                 typename Accumulator<T>::Type scale, int bins_y, int bins_x,
                                 typename Accumulator<T>::Type strength, int parts, int classes) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const OutputIndex at = output_index(i, channels, rows, columns);
  const T* region = regions + 5ll * at.region;
  const long long image = static_cast<long long>(A(region[0]));
  A sum = 0;
  int count = 0;
  if (image >= 0 && image < n) {
    const T* channel = channel_of(maps, image, (at.channel * rows + at.row) * columns + at.column, c, height, width);
    A x = math::round(A(region[1])) * scale - A(0.5), y = math::round(A(region[2])) * scale - A(0.5);
    A size_x = (math::round(A(region[3])) + A(1)) * scale - A(0.5) - x;
    A size_y = (math::round(A(region[4])) + A(1)) * scale - A(0.5) - y;
    size_x = side(size_x);
    size_y = side(size_y);
    x += A(at.column) * (size_x / A(columns));
    y += A(at.row) * (size_y / A(rows));
    if (offsets) {
      const int class_channels = channels / classes > 1 ? channels / classes : 1;
      const long long plane = static_cast<long long>(parts) * parts;
      const T* bin_offset = offsets +
                            (static_cast<long long>(at.region) * classes + at.channel / class_channels) * 2 * plane +
                            at.row * parts / rows * parts + at.column * parts / columns;
      x += A(bin_offset[0]) * strength * size_x;
      y += A(bin_offset[plane]) * strength * size_y;
    }
    const A step_x = size_x / A(columns) / A(bins_x), step_y = size_y / A(rows) / A(bins_y);
    for (int j = 0; j < bins_y; j++) {
      const A v = y + A(j) * step_y;
      if (!(v >= A(-0.5) && v <= A(height) - A(0.5))) continue;
      for (int k = 0; k < bins_x; k++) {
        const A u = x + A(k) * step_x;
        if (!(u >= A(-0.5) && u <= A(width) - A(0.5))) continue;
        sum += interpolate(channel, height, width, clamp(v, A(0), A(height - 1)), clamp(u, A(0), A(width - 1)));
        count++;
      }
    }
  }
  out[i] = T(count ? sum / A(count) : A(0));
}
