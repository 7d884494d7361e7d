// Convolutions, and transposed ones, of up to three spatial axes; those that are missing have extent 1 and stand first.
#include "sums.cuh"

// What slides over what. x [batch, groups * channels, size...], y [batch, groups * outputs, extent...]; the kernel is
// dense. Strides of x and y count elements: batch, channel, spatial axes.
template <class I>
struct Window {
  I size[3], extent[3], kernel[3], stride[3], dilation[3], begin[3];
  I x[5], y[5];
  I batch, groups, channels, outputs;
};

template <class I>
__device__ __forceinline__ I volume(const I (&extent)[3]) {
  return extent[0] * extent[1] * extent[2];
}

template <class I>
__device__ __forceinline__ void unravel(I index, const I (&extent)[3], I (&at)[3]) {
  at[2] = index % extent[2];
  at[1] = index / extent[2] % extent[1];
  at[0] = index / extent[2] / extent[1];
}

// Where an element lies that spatial coordinates and the strides of a tensor give.
template <class I>
__device__ __forceinline__ I offset(const I (&at)[3], const I (&stride)[5]) {
  return at[0] * stride[2] + at[1] * stride[3] + at[2] * stride[4];
}

template <class I>
__device__ __forceinline__ bool inside(const I (&at)[3], const I (&size)[3]) {
  return 0 <= at[0] && at[0] < size[0] && 0 <= at[1] && at[1] < size[1] && 0 <= at[2] && at[2] < size[2];
}

// A product's place in the sum, as what it adds to a pixel's first coordinates and offset in x.
template <class I>
struct Tap {
  I at[3], offset;
};

template <class I>
__device__ __forceinline__ Tap<I> tap(const Window<I>& w, I index) {
  const I taps = volume(w.kernel), channel = index / taps;
  Tap<I> found;
  unravel(index - channel * taps, w.kernel, found.at);
#pragma unroll
  for (int axis = 0; axis < 3; axis++) found.at[axis] *= w.dilation[axis];
  found.offset = channel * w.x[1] + offset(found.at, w.x);
  return found;
}

// Up to so many tensors that broadcast to y; strides as in Window.
constexpr int OPERANDS = 4;

template <class I>
struct Operands {
  I stride[OPERANDS][5];
};

// Where the elements of the operands lie that belong to one of y.
template <class I>
struct Places {
  const Operands<I>& of;
  I pixel[OPERANDS], channel;

  __device__ __forceinline__ Places(const Operands<I>& of, I image, const I (&at)[3], I channel = 0)
      : of(of), channel(channel) {
#pragma unroll
    for (int n = 0; n < OPERANDS; n++) pixel[n] = image * of.stride[n][0] + offset(at, of.stride[n]);
  }

  __device__ __forceinline__ I operator()(int n) const { return pixel[n] + channel * of.stride[n][1]; }
};

// What is done with a sum before it is written; elementwise layers after a convolution generate others.
struct Nothing {
  template <class T, class At>
  static __device__ __forceinline__ T of(T x, const At&, const void*, const void*, const void*, const void*) {
    return x;
  }
};

// `count` blocks wait for each other. Both numbers of the gate are 0 at first; the first one is again afterwards.
__device__ __forceinline__ void meet(unsigned* gate, unsigned count) {
  __syncthreads();
  if (threadIdx.x == 0) {
    volatile unsigned* turn = gate + 1;
    const unsigned before = *turn;
    __threadfence();
    if (atomicInc(gate, count - 1) == count - 1) atomicAdd(gate + 1, 1u);
    else while (*turn == before) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}

constexpr int THREADS = 256, ROWS = 64, COLUMNS = 128, DEPTH = 16;  // of a tile: channels, pixels, products at a time
constexpr int DOWN = 4, ACROSS = 8;                                 // what each thread sums of it

// As a product of matrices whose right one is read from x as it is needed. blockIdx: tile of pixels of all images,
// tile of output channels, part of the sum and group. Parts of sums are dense, one behind the other; the blocks that
// have parts of a tile, and a gate for it, run at the same time, and then each adds up some of its elements. W: the type
// of the weights.
template <class T, class I, class F, class W = T>
__global__ void __launch_bounds__(THREADS, sizeof(typename Sum<T>::Type) + sizeof(I) == 8 ? 3 : 1)
    convolve_tiles(const T* __restrict__ x, const W* __restrict__ kernel, T* __restrict__ y,
                   typename Sum<T>::Type* parts, unsigned* gates, const Window<I> w, I per_part,
                   const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3) {
  using A = typename Sum<T>::Type;
  OVGPU_SHARED(A, left, [DEPTH][ROWS + 4]);
  OVGPU_SHARED(A, right, [DEPTH][COLUMNS]);
  OVGPU_SHARED(Tap<I>, taps, [DEPTH]);
  const int thread = threadIdx.x, column = thread % COLUMNS;
  const I group = static_cast<I>(blockIdx.z) % w.groups, part = static_cast<I>(blockIdx.z) / w.groups;
  const I depth = w.channels * volume(w.kernel), pixels = volume(w.extent), all = w.batch * pixels;
  const I begin = part * per_part, end = begin + per_part < depth ? begin + per_part : depth;
  const I top = static_cast<I>(blockIdx.y) * ROWS, start = static_cast<I>(blockIdx.x) * COLUMNS;
  I first[3];  // coordinates of the first element of the pixel that this thread loads
  unravel((start + column) % pixels, w.extent, first);
#pragma unroll
  for (int axis = 0; axis < 3; axis++) first[axis] = first[axis] * w.stride[axis] - w.begin[axis];
  const I origin = (start + column) / pixels * w.x[0] + group * w.channels * w.x[1] + offset(first, w.x);
  const bool exists = start + column < all;

  A sum[DOWN][ACROSS] = {};
  const int m = thread / 16 * DOWN, n = thread % 16 * 4;
  for (I step = begin; step < end; step += DEPTH) {
    if (thread < DEPTH) taps[thread] = tap(w, step + thread);
    __syncthreads();
    for (int i = thread; i < ROWS * DEPTH; i += THREADS) {
      const int d = i % DEPTH, row = i / DEPTH;
      left[d][row] = top + row < w.outputs && step + d < end
                         ? A(kernel[(group * w.outputs + top + row) * depth + step + d]) : A(0);
    }
#pragma unroll
    for (int d = thread / COLUMNS; d < DEPTH; d += THREADS / COLUMNS) {
      const I at[3] = {first[0] + taps[d].at[0], first[1] + taps[d].at[1], first[2] + taps[d].at[2]};
      right[d][column] = exists && step + d < end && inside(at, w.size) ? A(x[origin + taps[d].offset]) : A(0);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      A a[DOWN], b[ACROSS];
#pragma unroll
      for (int i = 0; i < DOWN; i++) a[i] = left[d][m + i];
#pragma unroll
      for (int j = 0; j < ACROSS; j++) b[j] = right[d][n + j % 4 + j / 4 * (COLUMNS / 2)];
#pragma unroll
      for (int i = 0; i < DOWN; i++) {
#pragma unroll
        for (int j = 0; j < ACROSS; j++) sum[i][j] += a[i] * b[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < ACROSS; j++) {
    const I index = start + n + j % 4 + j / 4 * (COLUMNS / 2), image = index / pixels, pixel = index - image * pixels;
    I at[3];
    unravel(pixel, w.extent, at);
    Places<I> places(operands, image, at);
    const I place = image * w.y[0] + offset(at, w.y);
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
      const I output = top + m + i;
      places.channel = group * w.outputs + output;
      if (index >= all || output >= w.outputs) continue;
      if (parts) {
        parts[((part * w.batch + image) * w.groups * w.outputs + places.channel) * pixels + pixel] = sum[i][j];
      } else {
        y[place + places.channel * w.y[1]] = F::of(T(sum[i][j]), places, p0, p1, p2, p3);
      }
    }
  }
  if (!parts) return;
  const I count = static_cast<I>(gridDim.z) / w.groups, size = all * w.groups * w.outputs;
  meet(gates + 2 * ((group * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x), count);
  for (I i = part * THREADS + thread; i < ROWS * COLUMNS; i += count * THREADS) {
    const I output = top + i / COLUMNS, index = start + i % COLUMNS;
    if (index >= all || output >= w.outputs) continue;
    const I image = index / pixels, pixel = index - image * pixels, channel = group * w.outputs + output;
    const A* from = parts + (image * w.groups * w.outputs + channel) * pixels + pixel;
    A total = 0;
#pragma unroll 4
    for (I other = 0; other < count; other++) total += __ldcg(from + other * size);
    I at[3];
    unravel(pixel, w.extent, at);
    y[image * w.y[0] + channel * w.y[1] + offset(at, w.y)] =
        F::of(T(total), Places<I>(operands, image, at, channel), p0, p1, p2, p3);
  }
}

// The output element that a number stands for: its coordinates, and where it lies.
template <class I>
struct Element {
  I image, channel, at[3];

  __device__ __forceinline__ Element(const Window<I>& w, I index) {
    const I pixels = volume(w.extent), row = index / pixels;
    unravel(index - row * pixels, w.extent, at);
    image = row / (w.groups * w.outputs);
    channel = row - image * w.groups * w.outputs;
  }

  __device__ __forceinline__ I place(const Window<I>& w) const {
    return image * w.y[0] + channel * w.y[1] + offset(at, w.y);
  }
};

// The coordinate that a tap reads along an axis, of the transposed convolution the one that adds to it; -1 if none.
template <bool TRANSPOSED, class I>
__device__ __forceinline__ I source(const Window<I>& w, int axis, I at, I tap) {
  I i = TRANSPOSED ? at + w.begin[axis] - tap * w.dilation[axis]
                   : at * w.stride[axis] - w.begin[axis] + tap * w.dilation[axis];
  if (TRANSPOSED) {
    if (i < 0 || i % w.stride[axis]) return -1;
    i /= w.stride[axis];
  }
  return i < w.size[axis] ? i : -1;
}

// One output element per thread: for few channels per group, and for integers. kernel [groups, outputs, channels, ...],
// of the transposed convolution [groups, channels, outputs, ...], of type W.
template <class T, class I, bool TRANSPOSED, class F, class W = T>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    convolve_each(const T* __restrict__ x, const W* __restrict__ kernel, T* __restrict__ y, const Window<I> w,
                  const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3, I size) {
  using A = typename Sum<T>::Type;
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const Element<I> e(w, index);
  const I group = e.channel / w.outputs, output = e.channel - group * w.outputs, taps = volume(w.kernel);
  x += e.image * w.x[0] + group * w.channels * w.x[1];
  kernel += group * w.outputs * w.channels * taps + output * (TRANSPOSED ? 1 : w.channels) * taps;
  const I next = TRANSPOSED ? w.outputs * taps : taps;  // the next channel of the kernel
  A sum = 0;
#pragma unroll 1
  for (I i = 0; i < w.kernel[0]; i++) {
    const I p = source<TRANSPOSED>(w, 0, e.at[0], i);
#pragma unroll 1
    for (I j = 0; p >= 0 && j < w.kernel[1]; j++) {
      const I q = source<TRANSPOSED>(w, 1, e.at[1], j);
#pragma unroll 1
      for (I k = 0; q >= 0 && k < w.kernel[2]; k++) {
        const I r = source<TRANSPOSED>(w, 2, e.at[2], k);
        if (r < 0) continue;
        const I at[3] = {p, q, r}, from = offset(at, w.x), tap = (i * w.kernel[1] + j) * w.kernel[2] + k;
#pragma unroll 4
        for (I channel = 0; channel < w.channels; channel++) {
          sum += A(x[from + channel * w.x[1]]) * A(kernel[tap + channel * next]);
        }
      }
    }
  }
  y[e.place(w)] =
      F::of(T(Sum<T>::result(sum)), Places<I>(operands, e.image, e.at, e.channel), p0, p1, p2, p3);
}

// columns [batch, groups * channels, taps, count]: what each tap reads for `count` pixels from `first` on. T stands for
// elements of its size.
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
        const I at[3] = {source<false>(w, 0, start[0], i), source<false>(w, 1, start[1], j),
                         source<false>(w, 2, start[2], k)};
        *columns = inside(at, w.size) ? x[offset(at, w.x)] : T();
      }
    }
  }
}

// y: the sums of columns [batch, groups * outputs, taps, size...], the products of a transposed convolution.
template <class T, class I, class F>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    fold_columns(const typename Sum<T>::Type* __restrict__ columns, T* __restrict__ y, const Window<I> w,
                 const Operands<I> operands, const void* p0, const void* p1, const void* p2, const void* p3, I size) {
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const Element<I> e(w, index);
  const I count = volume(w.size);
  columns += (e.image * w.groups * w.outputs + e.channel) * volume(w.kernel) * count;
  typename Sum<T>::Type sum = 0;
  for (I i = 0; i < w.kernel[0]; i++) {
    const I p = source<true>(w, 0, e.at[0], i);
    for (I j = 0; j < w.kernel[1]; j++) {
      const I q = source<true>(w, 1, e.at[1], j);
      for (I k = 0; k < w.kernel[2]; k++, columns += count) {
        const I r = source<true>(w, 2, e.at[2], k);
        if (p >= 0 && q >= 0 && r >= 0) sum += columns[(p * w.size[1] + q) * w.size[2] + r];
      }
    }
  }
  y[e.place(w)] = F::of(T(sum), Places<I>(operands, e.image, e.at, e.channel), p0, p1, p2, p3);
}

// A convolution of signs: 1 where the data is above 0, else -1. `padding` is what lies outside: 1, 0 or -1.
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
  y[e.place(w)] = T(sum);
}

// columns [batch, channels, taps, extent...] of a deformable convolution. One thread reads all channels that a tap's
// offset is for. offsets [batch, deformed, taps, 2, extent...] and mask [batch, deformed, taps, extent...] are dense.
// FADES: what is less than a pixel outside of the data is interpolated with 0.
template <class T, class I, bool FADES>
__global__ void __launch_bounds__(THREADS, sizeof(I) == 4 ? 4 : 2)
    deform_columns(const T* __restrict__ x, const T* __restrict__ offsets, const T* __restrict__ mask,
                   T* __restrict__ columns, const Window<I> w, I deformed, I size) {
  using A = typename Sum<T>::Type;
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  if (index >= size) return;
  const I pixels = volume(w.extent), taps = volume(w.kernel), row = index / pixels, pixel = index - row * pixels;
  const I group = row / taps, image = group / deformed, each = w.groups * w.channels / deformed;
  const I channel = (group - image * deformed) * each;  // the first
  const Tap<I> read = tap(w, row - group * taps);
  I at[3];
  unravel(pixel, w.extent, at);
  const A p = A(at[1] * w.stride[1] - w.begin[1] + read.at[1]) + A(offsets[(row * 2) * pixels + pixel]);
  const A q = A(at[2] * w.stride[2] - w.begin[2] + read.at[2]) + A(offsets[(row * 2 + 1) * pixels + pixel]);
  const I height = w.size[1], width = w.size[2];
  const bool exists = p < A(height) && q < A(width) && (FADES ? p > A(-1) && q > A(-1) : p >= A(0) && q >= A(0));
  const I top = exists ? I(floor(p)) : 0, left = exists ? I(floor(q)) : 0;
  const A scale = !exists ? A(0) : mask ? A(mask[index]) : A(1), down = p - A(top), right = q - A(left);
  A weight[4];
  I place[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const I i = top + k / 2, j = left + k % 2;
    const bool counts = exists && (!FADES || (0 <= i && i < height && 0 <= j && j < width));
    weight[k] = counts ? (k / 2 ? down : A(1) - down) * (k % 2 ? right : A(1) - right) : A(0);
    place[k] = (i < 0 ? 0 : i < height ? i : height - 1) * w.x[3] + (j < 0 ? 0 : j < width ? j : width - 1) * w.x[4];
  }
  x += image * w.x[0] + channel * w.x[1];
  columns += ((image * deformed * each + channel) * taps + row - group * taps) * pixels + pixel;
  for (I c = 0; c < each; c++, x += w.x[1], columns += taps * pixels) {
    A sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) sum += weight[k] * A(x[place[k]]);
    *columns = T(exists ? sum * scale : A(0));
  }
}
