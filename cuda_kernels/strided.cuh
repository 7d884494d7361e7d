// Strided tensors as kernels see them: axes by value, so that a captured graph holds them.
#pragma once

#include "common.cuh"

// R axes of N operands that are walked together, outermost first; strides count elements. I is int or long long.
// The layout is that of ovgpu/ops/base/strided.py. Of a power of two from the extent on, `shift` is the exponent.
template <typename I, int R, int N>
struct Axes {
  I extent[R], magic[R], shift[R];
  I stride[N][R];
};

// index / extent[axis]. A 32-bit division takes some 20 instructions; multiplying by the reciprocal takes 4.
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

// The coordinates of an element by its number in row-major order.
template <typename I, int R, int N>
__device__ __forceinline__ void unravel(const Axes<I, R, N>& axes, I index, I (&at)[R]) {
#pragma unroll
  for (int axis = R - 1; axis > 0; axis--) {
    const I next = quotient(axes, index, axis);
    at[axis] = index - next * axes.extent[axis];
    index = next;
  }
  at[0] = index;
}

// Where that element lies in operand `n`.
template <typename I, int R, int N>
__device__ __forceinline__ I offset(const Axes<I, R, N>& axes, const I (&at)[R], int n) {
  I sum = 0;
#pragma unroll
  for (int axis = 0; axis < R; axis++) sum += at[axis] * axes.stride[n][axis];
  return sum;
}

// An index as it counts from the front of an axis, -1 if it is out of range. Below 0, it counts from the end.
template <typename Index, typename I>
__device__ __forceinline__ I located(Index index, I extent) {
  constexpr bool SIGNED = static_cast<Index>(-1) < static_cast<Index>(1);
  long long i = static_cast<long long>(index);  // negative also for the upper half of the unsigned
  if (SIGNED && i < 0) i += extent;
  return 0 <= i && i < extent ? static_cast<I>(i) : -1;
}

// Each thread takes ITEMS elements a block's width apart, so that it has several loads in flight.
constexpr int ITEMS = 4;

template <typename I>
__device__ __forceinline__ I first_item() {
  return static_cast<I>(blockIdx.x) * (blockDim.x * ITEMS) + threadIdx.x;
}
