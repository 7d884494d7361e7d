// Convolutions and transposed convolutions with up to three spatial axes. Missing axes come first and have extent 1.
#include "convolution.cuh"
#include "product_sum.cuh"

template <class I>
__device__ __forceinline__ bool inside(const I (&at)[3], const I (&size)[3]) {
  return 0 <= at[0] && at[0] < size[0] && 0 <= at[1] && at[1] < size[1] && 0 <= at[2] && at[2] < size[2];
}

// Element of the filter: coordinates and offset of the element of x that it reads, relative to those of the first tap.
template <class I>
struct Tap {
  I at[3], offset;
};

template <class I>
__device__ __forceinline__ Tap<I> tap(const Window<I>& w, I index) {
  const I taps = volume(w.kernel), channel = index / taps;
  Tap<I> filter_tap;
  unravel(index - channel * taps, w.kernel, filter_tap.at);
#pragma unroll
  for (int axis = 0; axis < 3; axis++) filter_tap.at[axis] *= w.dilation[axis];
  filter_tap.offset = channel * w.x[1] + offset(filter_tap.at, w.x);
  return filter_tap;
}

// Wait until `count` blocks have arrived at a barrier: a counter and a generation, initially 0. The counter is 0 again
// afterwards.
__device__ __forceinline__ void wait_for_blocks(unsigned* barrier, unsigned count) {
  __syncthreads();
  if (threadIdx.x == 0) {
    volatile unsigned* generation = barrier + 1;
    const unsigned before = *generation;
    __threadfence();
    if (atomicInc(barrier, count - 1) == count - 1)
      atomicAdd(barrier + 1, 1u);
    else
      while (*generation == before) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}

constexpr int THREADS = 256;       // per block
constexpr int ROWS = 64;           // output channels of a tile
constexpr int COLUMNS = 128;       // pixels of a tile
constexpr int DEPTH = 16;          // terms of each sum that are staged at a time
constexpr int THREAD_ROWS = 4;     // output channels of a thread
constexpr int THREAD_COLUMNS = 8;  // pixels of a thread

// Convolution as implicit GEMM: the right matrix, the columns of im2col, is read from x when it is needed. blockIdx:
// tile of pixels of all images; tile of output channels; part of the sum (split-K) and group. `parts`, if not null,
// receives partial sums [splits, batch, channels, pixels]. The launch is then cooperative: the blocks of a tile meet at
// a barrier, after which each adds up some of the elements.
template <class T, class I, class F>
__global__ void __launch_bounds__(THREADS, sizeof(typename ProductSum<T>::Type) + sizeof(I) == 8 ? 3 : 1)
    convolve_tiles(const T* __restrict__ x, const T* __restrict__ kernel, T* __restrict__ y,
                   typename ProductSum<T>::Type* parts, unsigned* barriers, const Window<I> w, I per_part,
                   const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3) {
  using A = typename ProductSum<T>::Type;
  OVGPU_SHARED(A, left, [DEPTH][ROWS + 4]);
  OVGPU_SHARED(A, right, [DEPTH][COLUMNS]);
  OVGPU_SHARED(Tap<I>, taps, [DEPTH]);
  const int thread = threadIdx.x, column = thread % COLUMNS;
  const I group = static_cast<I>(blockIdx.z) % w.groups, part = static_cast<I>(blockIdx.z) / w.groups;
  const I depth = w.channels * volume(w.kernel), pixels = volume(w.extent), total_pixels = w.batch * pixels;
  const I begin = part * per_part, end = begin + per_part < depth ? begin + per_part : depth;
  const I top = static_cast<I>(blockIdx.y) * ROWS, start = static_cast<I>(blockIdx.x) * COLUMNS;
  I first[3];  // coordinates of the pixel's first element, for the column that this thread loads
  unravel((start + column) % pixels, w.extent, first);
#pragma unroll
  for (int axis = 0; axis < 3; axis++) first[axis] = first[axis] * w.stride[axis] - w.begin[axis];
  const I origin = (start + column) / pixels * w.x[0] + group * w.channels * w.x[1] + offset(first, w.x);
  const bool valid = start + column < total_pixels;

  A sum[THREAD_ROWS][THREAD_COLUMNS] = {};
  const int m = thread / 16 * THREAD_ROWS, n = thread % 16 * 4;
  for (I step = begin; step < end; step += DEPTH) {
    if (thread < DEPTH) taps[thread] = tap(w, step + thread);
    __syncthreads();
    for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
      const int d = i % DEPTH, row = i / DEPTH;
      left[d][row] = top + row < w.outputs && step + d < end
                         ? A(kernel[(group * w.outputs + top + row) * depth + step + d])
                         : A(0);
    }
#pragma unroll
    for (int d = thread / COLUMNS; d < DEPTH; d += THREADS / COLUMNS) {
      const I at[3] = {first[0] + taps[d].at[0], first[1] + taps[d].at[1], first[2] + taps[d].at[2]};
      right[d][column] = valid && step + d < end && inside(at, w.size) ? A(x[origin + taps[d].offset]) : A(0);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      A a[THREAD_ROWS], b[THREAD_COLUMNS];
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; i++) a[i] = left[d][m + i];
#pragma unroll
      for (int j = 0; j < THREAD_COLUMNS; j++) b[j] = right[d][n + j % 4 + j / 4 * (COLUMNS / 2)];
#pragma unroll
      for (int i = 0; i < THREAD_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < THREAD_COLUMNS; j++) sum[i][j] += a[i] * b[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < THREAD_COLUMNS; j++) {
    const I index = start + n + j % 4 + j / 4 * (COLUMNS / 2), image = index / pixels, pixel = index - image * pixels;
    I at[3];
    unravel(pixel, w.extent, at);
    OperandOffsets<I> operand_offsets(operands, image, at);
    const I location = image * w.y[0] + offset(at, w.y);
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++) {
      const I output = top + m + i;
      operand_offsets.channel = group * w.outputs + output;
      if (index >= total_pixels || output >= w.outputs) continue;
      if (parts) {
        parts[((part * w.batch + image) * w.groups * w.outputs + operand_offsets.channel) * pixels + pixel] = sum[i][j];
      } else {
        y[location + operand_offsets.channel * w.y[1]] = F::of(T(sum[i][j]), operand_offsets, p0, p1, p2, p3);
      }
    }
  }
  if (!parts) return;
  const I count = static_cast<I>(gridDim.z) / w.groups, size = total_pixels * w.groups * w.outputs;
  wait_for_blocks(barriers + 2 * ((group * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x), count);
  for (I i = part * THREADS + thread; i < ROWS * COLUMNS; i += count * THREADS) {
    const I output = top + i / COLUMNS, index = start + i % COLUMNS;
    if (index >= total_pixels || output >= w.outputs) continue;
    const I image = index / pixels, pixel = index - image * pixels, channel = group * w.outputs + output;
    const A* from = parts + (image * w.groups * w.outputs + channel) * pixels + pixel;
    A total = 0;
#pragma unroll 4
    for (I other = 0; other < count; other++) total += __ldcg(from + other * size);
    I at[3];
    unravel(pixel, w.extent, at);
    y[image * w.y[0] + channel * w.y[1] + offset(at, w.y)] =
        F::of(T(total), OperandOffsets<I>(operands, image, at, channel), p0, p1, p2, p3);
  }
}

// Coordinates of the output element with this row-major index.
template <class I>
struct Element {
  I image, channel, at[3];

  // Neighbouring threads have neighbouring elements in memory: of a channel, or of a pixel if channels are adjacent.
  __device__ __forceinline__ Element(const Window<I>& w, I index) {
    const I pixels = volume(w.extent), channels = w.groups * w.outputs;
    if (w.y[1] == 1) {
      const I pixel = index / channels;
      channel = index - pixel * channels;
      image = pixel / pixels;
      unravel(pixel - image * pixels, w.extent, at);
      return;
    }
    const I row = index / pixels;
    unravel(index - row * pixels, w.extent, at);
    image = row / channels;
    channel = row - image * channels;
  }

  __device__ __forceinline__ I location(const Window<I>& w) const {
    return image * w.y[0] + channel * w.y[1] + offset(at, w.y);
  }
};

// Return the input coordinate along an axis that a tap reads for output coordinate `at`. With TRANSPOSED, return the
// input coordinate that contributes to `at` through the tap. The result is negative if there is none.
template <bool TRANSPOSED, class I>
__device__ __forceinline__ I source_coordinate(const Window<I>& w, int axis, I at, I tap) {
  I i = TRANSPOSED ? at + w.begin[axis] - tap * w.dilation[axis]
                   : at * w.stride[axis] - w.begin[axis] + tap * w.dilation[axis];
  if (TRANSPOSED) {
    if (i < 0 || i % w.stride[axis]) return -1;
    i /= w.stride[axis];
  }
  return i < w.size[axis] ? i : -1;
}

// Direct convolution with one output element per thread: for few channels per group, and for integers. kernel
// [groups, outputs, channels, ...] or, with TRANSPOSED, [groups, channels, outputs, ...].
template <class T, class I, bool TRANSPOSED, class F>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    convolve_each(const T* __restrict__ x, const T* __restrict__ kernel, T* __restrict__ y, const Window<I> w,
                  const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3, I size) {
  using A = typename ProductSum<T>::Type;
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const Element<I> e(w, index);
  const I group = e.channel / w.outputs, output = e.channel - group * w.outputs, taps = volume(w.kernel);
  x += e.image * w.x[0] + group * w.channels * w.x[1];
  kernel += group * w.outputs * w.channels * taps + output * (TRANSPOSED ? 1 : w.channels) * taps;
  const I channel_stride = TRANSPOSED ? w.outputs * taps : taps;  // between channels of the kernel
  A sum = 0;
#pragma unroll 1
  for (I i = 0; i < w.kernel[0]; i++) {
    const I p = source_coordinate<TRANSPOSED>(w, 0, e.at[0], i);
#pragma unroll 1
    for (I j = 0; p >= 0 && j < w.kernel[1]; j++) {
      const I q = source_coordinate<TRANSPOSED>(w, 1, e.at[1], j);
#pragma unroll 1
      for (I k = 0; q >= 0 && k < w.kernel[2]; k++) {
        const I r = source_coordinate<TRANSPOSED>(w, 2, e.at[2], k);
        if (r < 0) continue;
        const I at[3] = {p, q, r}, from = offset(at, w.x), tap = (i * w.kernel[1] + j) * w.kernel[2] + k;
#pragma unroll 4
        for (I channel = 0; channel < w.channels; channel++) {
          sum += A(x[from + channel * w.x[1]]) * A(kernel[tap + channel * channel_stride]);
        }
      }
    }
  }
  y[e.location(w)] =
      F::of(T(ProductSum<T>::result(sum)), OperandOffsets<I>(operands, e.image, e.at, e.channel), p0, p1, p2, p3);
}

// Gather the columns of im2col: columns [batch, groups * channels, taps, count], for `count` pixels from `first`. T
// only determines the size of elements.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    gather_columns(const T* __restrict__ x, T* __restrict__ columns, const Window<I> w, I first, I count, I size) {
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const I row = index / count, pixel = index - row * count;
  const I image = row / (w.groups * w.channels), channel = row - image * w.groups * w.channels;
  I start[3];
  unravel(first + pixel, w.extent, start);
  x += image * w.x[0] + channel * w.x[1];
  columns += row * volume(w.kernel) * count + pixel;
  for (I i = 0; i < w.kernel[0]; i++) {
    for (I j = 0; j < w.kernel[1]; j++) {
      for (I k = 0; k < w.kernel[2]; k++, columns += count) {
        const I at[3] = {source_coordinate<false>(w, 0, start[0], i), source_coordinate<false>(w, 1, start[1], j),
                         source_coordinate<false>(w, 2, start[2], k)};
        *columns = inside(at, w.size) ? x[offset(at, w.x)] : T();
      }
    }
  }
}

// Fold columns [batch, groups * outputs, taps, size...], the products of a transposed convolution, into y (col2im).
template <class T, class I, class F>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    fold_columns(const typename ProductSum<T>::Type* __restrict__ columns, T* __restrict__ y, const Window<I> w,
                 const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3, I size) {
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const Element<I> e(w, index);
  const I count = volume(w.size);
  columns += (e.image * w.groups * w.outputs + e.channel) * volume(w.kernel) * count;
  typename ProductSum<T>::Type sum = 0;
  for (I i = 0; i < w.kernel[0]; i++) {
    const I p = source_coordinate<true>(w, 0, e.at[0], i);
    for (I j = 0; j < w.kernel[1]; j++) {
      const I q = source_coordinate<true>(w, 1, e.at[1], j);
      for (I k = 0; k < w.kernel[2]; k++, columns += count) {
        const I r = source_coordinate<true>(w, 2, e.at[2], k);
        if (p >= 0 && q >= 0 && r >= 0) sum += columns[(p * w.size[1] + q) * w.size[2] + r];
      }
    }
  }
  y[e.location(w)] = F::of(T(sum), OperandOffsets<I>(operands, e.image, e.at, e.channel), p0, p1, p2, p3);
}

// Binary convolution: elements above 0 count as 1, others as -1. `padding` is the value outside of x: 1, 0 or -1.
template <class T, class I>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    convolve_signs(const T* __restrict__ x, const unsigned char* __restrict__ kernel, T* __restrict__ y,
                   const Window<I> w, I padding, I size) {
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const Element<I> e(w, index);
  I first[3], sum = 0;
#pragma unroll
  for (int axis = 0; axis < 3; axis++) first[axis] = e.at[axis] * w.stride[axis] - w.begin[axis];
  const I depth = w.channels * volume(w.kernel), origin = e.image * w.x[0] + offset(first, w.x);
  for (I i = 0; i < depth; i++) {
    const Tap<I> read = tap(w, i);
    const I at[3] = {first[0] + read.at[0], first[1] + read.at[1], first[2] + read.at[2]};
    const I sign = !inside(at, w.size) ? padding : x[origin + read.offset] > T(0) ? 1 : -1;
    sum += kernel[e.channel * depth + i] == 1 ? sign : -sign;
  }
  y[e.location(w)] = T(sum);
}

// Gather columns [batch, channels, taps, extent...] of a deformable convolution by bilinear interpolation. A thread
// reads all channels that share an offset. offsets [batch, offset_groups, taps, 2, extent...] and mask
// [batch, offset_groups, taps, extent...] are dense. FADES: samples less than a pixel outside of x are interpolated
// with 0.
template <class T, class I, bool FADES>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    deform_columns(const T* __restrict__ x, const T* __restrict__ offsets, const T* __restrict__ mask,
                   T* __restrict__ columns, const Window<I> w, I offset_groups, I size) {
  using A = typename ProductSum<T>::Type;
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const I pixels = volume(w.extent), taps = volume(w.kernel), row = index / pixels, pixel = index - row * pixels;
  const I group = row / taps, image = group / offset_groups, group_channels = w.groups * w.channels / offset_groups;
  const I channel = (group - image * offset_groups) * group_channels;  // first channel of the group
  const Tap<I> read = tap(w, row - group * taps);
  I at[3];
  unravel(pixel, w.extent, at);
  const A p = A(at[1] * w.stride[1] - w.begin[1] + read.at[1]) + A(offsets[(row * 2) * pixels + pixel]);
  const A q = A(at[2] * w.stride[2] - w.begin[2] + read.at[2]) + A(offsets[(row * 2 + 1) * pixels + pixel]);
  const I height = w.size[1], width = w.size[2];
  const bool valid = p < A(height) && q < A(width) && (FADES ? p > A(-1) && q > A(-1) : p >= A(0) && q >= A(0));
  const I top = valid ? I(floor(p)) : 0, left = valid ? I(floor(q)) : 0;
  const A scale = !valid ? A(0) : mask ? A(mask[index]) : A(1), down = p - A(top), right = q - A(left);
  A weight[4];
  I location[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const I i = top + k / 2, j = left + k % 2;
    const bool has_weight = valid && (!FADES || (0 <= i && i < height && 0 <= j && j < width));
    weight[k] = has_weight ? (k / 2 ? down : A(1) - down) * (k % 2 ? right : A(1) - right) : A(0);
    location[k] = (i < 0 ? 0 : i < height ? i : height - 1) * w.x[3] + (j < 0 ? 0 : j < width ? j : width - 1) * w.x[4];
  }
  x += image * w.x[0] + channel * w.x[1];
  columns += ((image * offset_groups * group_channels + channel) * taps + row - group * taps) * pixels + pixel;
  for (I c = 0; c < group_channels; c++, x += w.x[1], columns += taps * pixels) {
    A sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) sum += weight[k] * A(x[location[k]]);
    *columns = T(valid ? sum * scale : A(0));
  }
}
