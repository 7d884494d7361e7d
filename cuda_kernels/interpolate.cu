// Interpolate: elements that are weighted sums of others, by tables of places and weights along the axes.
#include "resample.cuh"
#include "strided.cuh"

// The K axes of y that are resized, outermost first: their numbers among its axes, where their tables begin (`taps`
// entries per element of y), and their strides in x.
template <typename I, int K>
struct Resized {
  I axis[K], first[K], stride[K];
};

// The coordinate along an axis whose number is not a constant; an index into `at` would put it into memory.
template <typename I, int R>
__device__ __forceinline__ I along(const I (&at)[R], I axis) {
  I found = 0;
#pragma unroll
  for (int i = 0; i < R; i++) found = i == axis ? at[i] : found;
  return found;
}

// Each thread computes one element of `size`, and the same one of all of a batch, which shares places and weights.
// Operands of the axes: x, along axes that are not resized; y.
template <typename T, typename U, int P, int K, typename I, int R>
__global__ void resample(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ places,
                         const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, K> resized,
                         I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R], place[K][P];
  float weight[K][P];
  unravel(axes, i, at);
#pragma unroll
  for (int k = 0; k < K; k++) {
    const I first = resized.first[k] + along(at, resized.axis[k]) * P;
#pragma unroll
    for (int p = 0; p < P; p++) {
      place[k][p] = places[first + p] * resized.stride[k];
      weight[k][p] = weights[first + p];
    }
  }
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y)
    y[b * y_step] = Element<U>::of(sum<0>(x + b * x_step, place, weight));
}

// Along one axis, with any number of taps.
template <typename T, typename U, typename I, int R>
__global__ void filter(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ places,
                       const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, 1> resized,
                       I size, I batch, I x_step, I y_step, int taps) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  const I first = resized.first[0] + along(at, resized.axis[0]) * taps;
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) {
    typename Real<T>::Type total = 0;
    for (int p = 0; p < taps; p++) {
      const float weight = weights[first + p];
      if (weight != 0)
        total += weight * static_cast<typename Real<T>::Type>(x[b * x_step + places[first + p] * resized.stride[0]]);
    }
    y[b * y_step] = Element<U>::of(total);
  }
}

// Elements that are moved: T stands for elements of its size. A place of -1 is padding.
template <typename T, int K, typename I, int R>
__global__ void pick(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ places,
                     const Axes<I, R, 2> axes, const Resized<I, K> resized, I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  I from = offset(axes, at, 0);
  bool inside = true;
#pragma unroll
  for (int k = 0; k < K; k++) {
    const int place = places[resized.first[k] + along(at, resized.axis[k])];
    inside = inside && place >= 0;
    from += place * resized.stride[k];
  }
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) y[b * y_step] = inside ? x[from + b * x_step] : T();
}
