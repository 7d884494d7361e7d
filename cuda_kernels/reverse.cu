// ReverseSequence and Roll. T only determines the size of elements.
#include "items.cuh"

// Write y in order. Operands of its axes: x with stride 0 along the sequence axis, length, coordinate along the
// sequence axis, y. `extent` and `axis_stride` are extent and stride of x along the sequence axis.
template <typename T, typename Length, typename I, int R>
__global__ void reverse_sequence(const T* __restrict__ x, const Length* __restrict__ lengths, T* __restrict__ y,
                                 const Axes<I, R, 4> axes, I size, I extent, I axis_stride) {
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const long long raw_length = static_cast<long long>(lengths[offset(axes, at, 1)]);
    const long long length = raw_length < extent ? raw_length : extent;
    const I position = offset(axes, at, 2);
    return x[offset(axes, at, 0) +
             (position < length ? static_cast<I>(length) - 1 - position : position) * axis_stride];
  });
}

// Shift along each axis, towards larger indices and less than the extent.
template <typename I, int R>
struct Shifts {
  I by[R];
};

// Write y in order. Operands of the axes: x, y.
template <typename T, typename I, int R>
__global__ void roll(const T* __restrict__ x, T* __restrict__ y, const Axes<I, R, 2> axes, const Shifts<I, R> shifts,
                     I size) {
  set_items(y, axes, size, [&](const I(&at)[R]) {
    I from[R];
#pragma unroll
    for (int axis = 0; axis < R; axis++) {
      from[axis] = at[axis] - shifts.by[axis];
      if (from[axis] < 0) from[axis] += axes.extent[axis];
    }
    return x[offset(axes, from, 0)];
  });
}
