// OneHot. T only determines the size of elements.
#include "strided.cuh"

// Write y[i] = class(i) == index(i) ? on : off. y is dense. Operands of y's axes: index, class. With `normalizes`,
// negative indices count from the end.
template <typename T, typename Index, typename I, int R>
__global__ void onehot(const Index* __restrict__ index, const T* on, const T* off, T* __restrict__ y,
                       const Axes<I, R, 2> axes, I size, I depth, bool normalizes) {
  const T on_value = *on, off_value = *off;
  const I first = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i >= size) return;
    I at[R];
    unravel(axes, i, at);
    const Index raw_index = index[offset(axes, at, 0)];
    const long long class_index = normalizes ? normalize_index(raw_index, depth) : static_cast<long long>(raw_index);
    y[i] = class_index == offset(axes, at, 1) ? on_value : off_value;
  }
}
