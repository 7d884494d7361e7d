// Parts shared by kernels that reduce or scan along axes: a pair of strided arrays, and reductions within a block.
#pragma once

#include "accumulator.cuh"
#include "math.cuh"
#include "vectors.cuh"

#define OVGPU_THREADS 512  // maximum threads per block of these kernels: leaves 128 registers per thread

// Axes of an input and an output array, outermost first: extents, and strides of the input (`from`) and the output
// (`to`) in elements. The rank is 1 to 6.
struct MappedAxes {
  long long rank, extent[6], from[6], to[6];
};

// Offsets of one element in the input and in the output, in elements.
struct Offsets {
  long long from, to;
};

__device__ __forceinline__ Offsets offsets_of(const MappedAxes& axes, unsigned index) {
  Offsets at{0, 0};
  for (int axis = int(axes.rank) - 1; axis > 0; axis--) {
    const unsigned extent = unsigned(axes.extent[axis]), i = index % extent;
    index /= extent;
    at.from += i * axes.from[axis];
    at.to += i * axes.to[axis];
  }
  at.from += index * axes.from[0];
  at.to += index * axes.to[0];
  return at;
}

// Return the lowest finite number, the initial value of maxima. With -inf, a difference of two maxima could be NaN.
template <class T>
__device__ __forceinline__ T lowest();
template <>
__device__ __forceinline__ float lowest<float>() {
  return -3.402823466e+38f;
}
template <>
__device__ __forceinline__ double lowest<double>() {
  return -1.7976931348623157e+308;
}

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Minimum {  // of integers
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

struct Maximum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return math::max(a, b);
  }
};

// Reduce `value` over the threads of one row by warp shuffles, and across warps through shared memory; every thread
// gets the result. A row has blockDim.x threads, a power of two: with up to 32, a block has several rows; with more, a
// row is the whole block. Blocks consist of whole warps.
template <class T, class Fold>
__device__ __forceinline__ T fold_row(T value, Fold fold) {
  const int width = blockDim.x < 32 ? blockDim.x : 32;
  for (int step = width / 2; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (blockDim.x > 32) {
    OVGPU_SHARED(T, warp_values, [OVGPU_THREADS / 32]);
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    __syncthreads();  // other threads may still be reading the values of an earlier call
    if (lane == 0) warp_values[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_values[lane & (warps - 1)];  // a power of two
    for (int step = warps / 2; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// Reduce `value` over the threads of one column, which have the same threadIdx.x, by a tree in shared memory; all of
// them get the result. blockDim.y is a power of two, and `scratch` has one element per thread of the block.
template <class T, class Fold>
__device__ __forceinline__ T fold_column(T value, Fold fold, T* scratch) {
  const int at = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();  // other threads may still be reading the values of an earlier call
  scratch[at] = value;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) scratch[at] = fold(scratch[at], scratch[at + half * blockDim.x]);
  }
  __syncthreads();
  return scratch[threadIdx.x];
}
