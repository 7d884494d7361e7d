// Interpolate: weighted sums of elements, by tables of positions and weights along the resized axes.
#include "resample.cuh"
#include "strided.cuh"

// The K axes of y that are resized, outermost first: their indices among the axes of y, the starts of their tables
// (which have the same number of taps for each coordinate of y), and their strides in x.
template <typename I, int K>
struct Resized {
  I axis[K], first[K], stride[K];
};

// Return at[axis] for a variable axis. An index expression would move `at` to local memory.
template <typename I, int R>
__device__ __forceinline__ I coordinate_of(const I (&at)[R], I axis) {
  I result = 0;
#pragma unroll
  for (int i = 0; i < R; i++) result = i == axis ? at[i] : result;
  return result;
}

// Resample along K axes with P taps each. A thread computes one element of `size`, in several images of the batch,
// which share positions and weights. Operands of the axes: x, with stride 0 along resized axes; y.
template <typename T, typename U, int P, int K, typename I, int R>
__global__ void resample(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ positions,
                         const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, K> resized,
                         I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R], location[K][P];
  float weight[K][P];
  unravel(axes, i, at);
#pragma unroll
  for (int k = 0; k < K; k++) {
    const I first = resized.first[k] + coordinate_of(at, resized.axis[k]) * P;
#pragma unroll
    for (int p = 0; p < P; p++) {
      location[k][p] = positions[first + p] * resized.stride[k];
      weight[k][p] = weights[first + p];
    }
  }
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y)
    y[b * y_step] = Element<U>::of(sum<0>(x + b * x_step, location, weight));
}

// Like resample, along one axis with any number of taps.
template <typename T, typename U, typename I, int R>
__global__ void filter(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ positions,
                       const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, 1> resized, I size,
                       I batch, I x_step, I y_step, int taps) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  const I first = resized.first[0] + coordinate_of(at, resized.axis[0]) * taps;
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) {
    typename Real<T>::Type total = 0;
    for (int p = 0; p < taps; p++) {
      const float weight = weights[first + p];
      if (weight != 0)
        total += weight * static_cast<typename Real<T>::Type>(x[b * x_step + positions[first + p] * resized.stride[0]]);
    }
    y[b * y_step] = Element<U>::of(total);
  }
}

// Copy elements (nearest neighbour). T only determines the size of elements. A position of -1 is padding.
template <typename T, int K, typename I, int R>
__global__ void pick(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ positions,
                     const Axes<I, R, 2> axes, const Resized<I, K> resized, I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  I from = offset(axes, at, 0);
  bool inside = true;
#pragma unroll
  for (int k = 0; k < K; k++) {
    const int location = positions[resized.first[k] + coordinate_of(at, resized.axis[k])];
    inside = inside && location >= 0;
    from += location * resized.stride[k];
  }
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) y[b * y_step] = inside ? x[from + b * x_step] : T();
}
