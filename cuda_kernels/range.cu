// Range: evenly spaced numbers, computed in S (double or long long) and rounded once.
#include "common.cuh"

template <typename T, typename S>
__global__ void range(T* y, S start, S step, long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < size) y[i] = static_cast<T>(static_cast<S>(i) * step + start);
}
