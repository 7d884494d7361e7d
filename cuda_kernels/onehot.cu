// OneHot: T stands for elements of its size.
#include "strided.cuh"

// y[i] = class(i) == index(i) ? on : off in the order of y, which is dense. Operands of the axes: index, class.
// With `normalizes`, indices below 0 count from the end.
template <typename T, typename Index, typename I, int R>
__global__ void onehot(const Index* __restrict__ index, const T* on, const T* off, T* __restrict__ y,
                       const Axes<I, R, 2> axes, I size, I depth, bool normalizes) {
  const T marked = *on, unmarked = *off;
  const I first = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i >= size) return;
    I at[R];
    unravel(axes, i, at);
    const Index given = index[offset(axes, at, 0)];
    const long long chosen = normalizes ? located(given, depth) : static_cast<long long>(given);
    y[i] = chosen == offset(axes, at, 1) ? marked : unmarked;
  }
}
