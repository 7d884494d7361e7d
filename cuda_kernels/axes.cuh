// What kernels that work along axes share: strided axes, and folds over the threads of a block.
#pragma once

#include "accumulator.cuh"
#include "vectors.cuh"

#define OVGPU_THREADS 512  // most threads per block of these kernels; leaves them 128 registers each

// Some axes of an array that is read and one that is written, in row-major order, at least one and at most six.
// Strides are in elements.
struct Axes {
  long long rank, extent[6], from[6], to[6];
};

// Offsets in the array that is read and in the one that is written.
struct Place {
  long long from, to;
};

__device__ __forceinline__ Place place(const Axes& axes, unsigned index) {
  Place at{0, 0};
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

// Below every number, without the trouble that infinity makes when it is subtracted from itself.
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

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Larger {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return larger(a, b);
  }
};

// The fold over the threads of one row; each of them gets it. A row has blockDim.x threads, a power of two: up to
// 32 of them and several rows per block, or the whole block. The threads of a block are whole warps.
template <class T, class Fold>
__device__ __forceinline__ T fold_row(T value, Fold fold) {
  const int width = blockDim.x < 32 ? blockDim.x : 32;
  for (int step = width / 2; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (blockDim.x > 32) {
    OVGPU_SHARED(T, of_warp, [OVGPU_THREADS / 32]);
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    __syncthreads();  // what an earlier fold left may still be read
    if (lane == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[lane % warps];
    for (int step = warps / 2; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// The fold over the threads of one column: those with the same threadIdx.x. blockDim.y is a power of two, and
// `scratch` has an element per thread of the block.
template <class T, class Fold>
__device__ __forceinline__ T fold_column(T value, Fold fold, T* scratch) {
  const int at = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();  // what an earlier fold left may still be read
  scratch[at] = value;
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) scratch[at] = fold(scratch[at], scratch[at + half * blockDim.x]);
  }
  __syncthreads();
  return scratch[threadIdx.x];
}
