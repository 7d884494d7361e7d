// Elements that are each read from somewhere, several of them by each thread.
#pragma once

#include "strided.cuh"

// Sets the elements of y, which the last operand of the axes describes, to what `element` makes of their coordinates.
// A thread reads all of its own before it writes any.
template <typename T, typename I, int R, int N, typename Element>
__device__ __forceinline__ void set_items(T* __restrict__ y, const Axes<I, R, N>& axes, I size, Element element) {
  const I first = first_item<I>();
  T value[ITEMS];
  I place[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i < size) {
      I at[R];
      unravel(axes, i, at);
      value[k] = element(at);
      place[k] = offset(axes, at, N - 1);
    }
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    if (first + k * static_cast<I>(blockDim.x) < size) y[place[k]] = value[k];
  }
}
