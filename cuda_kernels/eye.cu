// Eye. T only determines the size of elements.
#include "strided.cuh"

// Write matrices with `one` on the diagonal that begins in column `diagonal`, and zeros elsewhere. y is dense.
template <typename T>
__global__ void eye(T* y, T one, long long size, long long rows, long long columns, long long diagonal) {
  const long long first = first_item<long long>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const long long i = first + k * static_cast<long long>(blockDim.x);
    if (i < size) y[i] = i % columns == i / columns % rows + diagonal ? one : T();
  }
}
