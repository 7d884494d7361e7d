// Pad. T only determines the size of elements.
#include "strided.cuh"

enum Mode { CONSTANT, EDGE, REFLECT, SYMMETRIC };

// Padding before each axis (negative: elements that are cropped), and the extents of x.
template <typename I, int R>
struct Pads {
  I begin[R], extent[R];
};

// Return the index in x of element `i` of a padded axis. Reflection happens at most once at either end.
template <Mode mode, typename I>
__device__ __forceinline__ I source_index(I i, I extent) {
  if (mode == EDGE) return i < 0 ? 0 : i < extent ? i : extent - 1;
  const I shift = mode == SYMMETRIC;
  if (i < 0) i = -i - shift;
  return i < extent ? i : 2 * (extent - 1) - i + shift;
}

// Write y, which is dense, in order. Operand of y's axes: x. The padding is `*value`, or 0 if `value` is null.
template <typename T, Mode mode, typename I, int R>
__global__ void pad(const T* __restrict__ x, const T* value, T* __restrict__ y, const Axes<I, R, 1> axes,
                    const Pads<I, R> pads, I size) {
  const T fill = mode == CONSTANT && value ? *value : T();
  const I first = first_item<I>();
  T values[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    I at[R];
    unravel(axes, i, at);
    bool inside = i < size;
#pragma unroll
    for (int axis = 0; axis < R; axis++) {
      at[axis] -= pads.begin[axis];
      if (mode == CONSTANT)
        inside = inside && 0 <= at[axis] && at[axis] < pads.extent[axis];
      else
        at[axis] = source_index<mode>(at[axis], pads.extent[axis]);
    }
    values[k] = inside ? x[offset(axes, at, 0)] : fill;
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i < size) y[i] = values[k];
  }
}
