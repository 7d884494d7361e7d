// Gather: rows of a tensor by number. T stands for elements of its size, or for several that lie side by side.
#include "strided.cuh"

// Operands of the axes, which are those of y: x, index, y. `extent` and `row` are the extent and stride of x along the
// axis. Indices out of range give zeros.
template <typename T, typename Index, typename I, int R>
__global__ void gather(const T* __restrict__ x, const Index* __restrict__ index, T* __restrict__ y,
                       const Axes<I, R, 3> axes, I size, I extent, I row) {
  const I first = first_item<I>();
  T value[ITEMS];
  I place[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    value[k] = T();
    if (i < size) {
      I at[R];
      unravel(axes, i, at);
      const I chosen = located(index[offset(axes, at, 1)], extent);
      place[k] = offset(axes, at, 2);
      if (chosen >= 0) value[k] = x[offset(axes, at, 0) + chosen * row];
    }
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    if (first + k * static_cast<I>(blockDim.x) < size) y[place[k]] = value[k];
  }
}
