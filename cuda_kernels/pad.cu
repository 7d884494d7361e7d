// Pad: T stands for elements of its size.
#include "strided.cuh"

enum Mode { CONSTANT, EDGE, REFLECT, SYMMETRIC };

// How many elements go before each axis (fewer than 0: are cut off), and the extents of the source.
template <typename I, int R>
struct Pads {
  I begin[R], extent[R];
};

// Where element `i` of a padded axis comes from. Mirroring happens once on either side.
template <Mode mode, typename I>
__device__ __forceinline__ I source_of(I i, I extent) {
  if (mode == EDGE) return i < 0 ? 0 : i < extent ? i : extent - 1;
  const I shift = mode == SYMMETRIC;
  if (i < 0) i = -i - shift;
  return i < extent ? i : 2 * (extent - 1) - i + shift;
}

// In the order of y, which is dense. Operand of the axes: x. The constant is 0 if `value` is null.
template <typename T, Mode mode, typename I, int R>
__global__ void pad(const T* __restrict__ x, const T* value, T* __restrict__ y, const Axes<I, R, 1> axes,
                    const Pads<I, R> pads, I size) {
  const T fill = mode == CONSTANT && value ? *value : T();
  const I first = first_item<I>();
  T moved[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    I at[R];
    unravel(axes, i, at);
    bool inside = i < size;
#pragma unroll
    for (int axis = 0; axis < R; axis++) {
      at[axis] -= pads.begin[axis];
      if (mode == CONSTANT) inside = inside && 0 <= at[axis] && at[axis] < pads.extent[axis];
      else at[axis] = source_of<mode>(at[axis], pads.extent[axis]);
    }
    moved[k] = inside ? x[offset(axes, at, 0)] : fill;
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i < size) y[i] = moved[k];
  }
}
