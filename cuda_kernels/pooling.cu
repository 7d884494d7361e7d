// Pooling over three spatial axes, one thread per window. Missing axes come first and have extent 1.
#include "accumulator.cuh"
#include "ptx.cuh"
#include "strided.cuh"
#include "vectors.cuh"

// Along each axis: extent, kernel size, stride and dilation of windows, padding before the axis, and stride of x
// (`step`). Where `stride` is 0, pooling is adaptive: `size` windows divide the axis evenly.
template <typename I>
struct Windows {
  I extent[3], size[3], stride[3], dilation[3], begin[3], step[3];
};

// Part of a window inside an axis: `count` elements from `first` on.
template <typename I>
struct Covered {
  I first, count;
};

// Return ceil(n / step), or 0 if n is negative.
template <typename I>
__device__ __forceinline__ I steps(I n, I step) {
  return n <= 0 ? 0 : step == 1 ? n : (n + step - 1) / step;
}

template <typename I>
__device__ __forceinline__ Covered<I> covered(const Windows<I>& windows, int axis, I window) {
  const I extent = windows.extent[axis], size = windows.size[axis];
  if (windows.stride[axis] == 0) {
    const long long reach = static_cast<long long>(window) * extent;
    const I first = static_cast<I>(reach / size);
    return {first, static_cast<I>((reach + extent + size - 1) / size) - first};
  }
  const I start = window * windows.stride[axis] - windows.begin[axis], step = windows.dilation[axis];
  const I skipped = steps<I>(-start, step), limit = steps<I>(extent - start, step);
  const I inside = (limit < size ? limit : size) - skipped;
  return {start + skipped * step, inside < 0 ? 0 : inside};
}

// Max pooling. Operands of the axes: the channels of x, y, index. `index`, unless null, receives the flat index in x of
// each maximum, modulo `limit`. A window outside of the axes gives `empty_value`.
template <typename T, typename Index, typename I>
__global__ void max_pool(const T* __restrict__ x, T* __restrict__ y, Index* __restrict__ index,
                         const Axes<I, 5, 3> axes, const Windows<I> windows, I size, double empty_value, I channels,
                         long long limit) {
  using A = typename Accumulator<T>::Type;
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[5];
  unravel(axes, i, at);
  const T* channel = x + offset(axes, at, 0);
  const Covered<I> z = covered(windows, 0, at[2]), r = covered(windows, 1, at[3]), c = covered(windows, 2, at[4]);
  A best = A(empty_value);
  long long best_index = -1;
  for (I a = 0; a < z.count; a++) {
    const I plane = z.first + a * windows.dilation[0];
    for (I b = 0; b < r.count; b++) {
      const I row = r.first + b * windows.dilation[1];
      const T* start = channel + (plane * windows.step[0] + row * windows.step[1]);
      for (I d = 0; d < c.count; d++) {
        const I column = c.first + d * windows.dilation[2];
        const A value = A(start[column * windows.step[2]]);
        if (best_index < 0 || value > best || (value != value && best == best)) {
          best = value;
          best_index =
              index ? (static_cast<long long>(plane) * windows.extent[1] + row) * windows.extent[2] + column : 0;
        }
      }
    }
  }
  y[offset(axes, at, 1)] = T(best);
  if (index) {
    const long long channel_index = static_cast<long long>(at[0]) * channels + at[1];
    const long long image = static_cast<long long>(windows.extent[0]) * windows.extent[1] * windows.extent[2];
    index[offset(axes, at, 2)] =
        static_cast<Index>((channel_index * image + (best_index < 0 ? 0 : best_index)) % limit);
  }
}

// Type in which elements are compared.
template <class T>
struct Compared {
  using Type = typename Accumulator<T>::Type;
};
template <>
struct Compared<signed char> {
  using Type = int;
};

// Max pooling of floats or s8 along two axes where channels are adjacent: a thread computes 16 bytes of neighbouring
// channels of a window. Axes: batch, rows, columns, chunks of channels; their operands: the first pixels of x, and y.
// All pixels are aligned to 16 bytes.
template <typename T, typename I>
__global__ void max_pool_channels(const T* __restrict__ x, T* __restrict__ y, const Axes<I, 4, 2> axes,
                                  const Windows<I> windows, I size, double empty_value) {
  using A = typename Compared<T>::Type;
  constexpr int V = 16 / sizeof(T);
  start_next_launch();
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  I at[4];
  unravel(axes, i, at);
  const T* first = x + offset(axes, at, 0);
  const Covered<I> r = covered(windows, 1, at[1]), c = covered(windows, 2, at[2]);
  A best[V];
#pragma unroll
  for (int v = 0; v < V; v++) best[v] = A(empty_value);
  bool seen = false;
  wait_for_launches();
  if (i >= size) return;
  for (I b = 0; b < r.count; b++) {
    const T* row = first + (r.first + b * windows.dilation[1]) * windows.step[1];
#pragma unroll 3
    for (I d = 0; d < c.count; d++) {
      T elements[V];
      load<V>(row + (c.first + d * windows.dilation[2]) * windows.step[2], elements);
#pragma unroll
      for (int v = 0; v < V; v++) {
        const A value = A(elements[v]);
        if (!seen || value > best[v] || (value != value && best[v] == best[v])) best[v] = value;
      }
      seen = true;
    }
  }
  T results[V];
#pragma unroll
  for (int v = 0; v < V; v++) results[v] = T(best[v]);
  store<V>(results, y + offset(axes, at, 1));
}

__device__ __forceinline__ float mean(float sum, long long count) { return sum / float(count); }
__device__ __forceinline__ double mean(double sum, long long count) { return sum / double(count); }
__device__ __forceinline__ long long mean(long long sum, long long count) {
  return static_cast<long long>(rint(double(sum) / double(count)));
}
__device__ __forceinline__ unsigned long long mean(unsigned long long sum, long long count) {
  return static_cast<unsigned long long>(rint(double(sum) / double(count)));
}

// Average pooling. Operands of the axes: the channels of x, y. Sums are divided by `count` or, if that is 0, by the
// number of the window's elements inside the axes.
template <typename T, typename I>
__global__ void average_pool(const T* __restrict__ x, T* __restrict__ y, const Axes<I, 5, 2> axes,
                             const Windows<I> windows, I size, long long count) {
  using A = typename Accumulator<T>::Type;
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[5];
  unravel(axes, i, at);
  const T* channel = x + offset(axes, at, 0);
  const Covered<I> z = covered(windows, 0, at[2]), r = covered(windows, 1, at[3]), c = covered(windows, 2, at[4]);
  A sum = 0;
  for (I a = 0; a < z.count; a++) {
    const I plane = (z.first + a * windows.dilation[0]) * windows.step[0];
    for (I b = 0; b < r.count; b++) {
      const T* start = channel + (plane + (r.first + b * windows.dilation[1]) * windows.step[1]);
      for (I d = 0; d < c.count; d++) sum += A(start[(c.first + d * windows.dilation[2]) * windows.step[2]]);
    }
  }
  const long long inside = static_cast<long long>(z.count) * r.count * c.count;
  const long long divisor = count ? count : inside;
  y[offset(axes, at, 1)] = divisor ? T(mean(sum, divisor)) : T(0);
}
