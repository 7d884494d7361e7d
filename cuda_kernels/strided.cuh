// Strided tensors: the axes are passed to kernels by value, so that a captured CUDA graph contains them.
#pragma once

#include "common.cuh"

// R axes, outermost first, that N operands share; strides count elements. I, the index type, is int or long long.
// ovgpu/ops/base/strided.py packs this struct and computes the reciprocals: 2^shift is the least power of two that is
// not less than the extent.
template <typename I, int R, int N>
struct Axes {
  I extent[R], magic[R], shift[R];
  I stride[N][R];
};

// Return index / extent[axis] by multiplication with a reciprocal (Granlund & Montgomery 1994): 4 instructions, where a
// 32-bit division takes some 20.
template <int R, int N>
__device__ __forceinline__ int quotient(const Axes<int, R, N>& axes, int index, int axis) {
  const unsigned n = index;
  const unsigned high = static_cast<unsigned long long>(n) * static_cast<unsigned>(axes.magic[axis]) >> 32;
  return static_cast<int>((high + n) >> axes.shift[axis]);
}

template <int R, int N>
__device__ __forceinline__ long long quotient(const Axes<long long, R, N>& axes, long long index, int axis) {
  return index / axes.extent[axis];
}

// Compute the coordinates `at` of the element with this row-major index.
template <typename I, int R, int N>
__device__ __forceinline__ void unravel(const Axes<I, R, N>& axes, I index, I (&at)[R]) {
#pragma unroll
  for (int axis = R - 1; axis > 0; axis--) {
    const I outer = quotient(axes, index, axis);
    at[axis] = index - outer * axes.extent[axis];
    index = outer;
  }
  at[0] = index;
}

// Return the offset in operand `n` of the element with coordinates `at`.
template <typename I, int R, int N>
__device__ __forceinline__ I offset(const Axes<I, R, N>& axes, const I (&at)[R], int n) {
  I sum = 0;
#pragma unroll
  for (int axis = 0; axis < R; axis++) sum += at[axis] * axes.stride[n][axis];
  return sum;
}

// Return the index counted from the front of an axis, where negative indices count from the end; -1 if it is out of
// range.
template <typename Index, typename I>
__device__ __forceinline__ I normalize_index(Index index, I extent) {
  constexpr bool SIGNED = static_cast<Index>(-1) < static_cast<Index>(1);
  long long i = static_cast<long long>(index);  // negative also for large unsigned 64-bit indices
  if (SIGNED && i < 0) i += extent;
  return 0 <= i && i < extent ? static_cast<I>(i) : -1;
}

// Each thread processes ITEMS elements that are blockDim.x apart, so that it has several loads in flight.
constexpr int ITEMS = 4;

template <typename I>
__device__ __forceinline__ I first_item() {
  return static_cast<I>(blockIdx.x) * (blockDim.x * ITEMS) + threadIdx.x;
}
