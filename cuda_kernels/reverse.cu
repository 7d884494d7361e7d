// ReverseSequence and Roll: T stands for elements of its size.
#include "items.cuh"

// In the order of y. Operands of the axes: x but for the sequence axis, length, number along that axis, y. `extent` and
// `row` are the extent and stride of x along it.
template <typename T, typename Length, typename I, int R>
__global__ void reverse_sequence(const T* __restrict__ x, const Length* __restrict__ lengths, T* __restrict__ y,
                                 const Axes<I, R, 4> axes, I size, I extent, I row) {
  set_items(y, axes, size, [&](const I(&at)[R]) {
    const long long given = static_cast<long long>(lengths[offset(axes, at, 1)]);
    const long long length = given < extent ? given : extent;
    const I number = offset(axes, at, 2);
    return x[offset(axes, at, 0) + (number < length ? static_cast<I>(length) - 1 - number : number) * row];
  });
}

// How far elements move along each axis, towards larger indices; less than its extent.
template <typename I, int R>
struct Shifts {
  I by[R];
};

// In the order of y. Operands of the axes: x, y.
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
