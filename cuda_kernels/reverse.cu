// ReverseSequence: T stands for elements of its size.
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
