// Loop of kernels that compute each output element from its coordinates, several elements per thread.
#pragma once

#include "strided.cuh"

// Write element(coordinates) to each of the `size` elements of y, which is the last operand of the axes. A thread reads
// all of its elements before it writes any.
template <typename T, typename I, int R, int N, typename Element>
__device__ __forceinline__ void set_items(T* __restrict__ y, const Axes<I, R, N>& axes, I size, Element element) {
  const I first = first_item<I>();
  T value[ITEMS];
  I target[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i < size) {
      I at[R];
      unravel(axes, i, at);
      value[k] = element(at);
      target[k] = offset(axes, at, N - 1);
    }
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    if (first + k * static_cast<I>(blockDim.x) < size) y[target[k]] = value[k];
  }
}
