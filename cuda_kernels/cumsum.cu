// Running sums along one axis. Strides of either sign give either direction.
#include "axes.cuh"

// The sum over the threads of a row before this one; `total` becomes that over all of them. A row has a warp, or
// the whole block.
template <class A>
__device__ __forceinline__ A scan_row(A value, A& total) {
  const int lane = threadIdx.x % 32;
  A sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const A other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  A before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  total = __shfl_sync(0xffffffffu, sum, 31);
  if (blockDim.x > 32) {
    OVGPU_SHARED(A, of_warp, [OVGPU_THREADS / 32]);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();  // what an earlier scan left may still be read
    if (lane == 0) of_warp[warp] = total;
    __syncthreads();
    A earlier = 0;
    total = 0;
    for (int i = 0; i < warps; i++) {
      if (i == warp) earlier = total;
      total += of_warp[i];
    }
    before = earlier + before;
  }
  return before;
}

// A row of n elements per warp or block: a tile of four elements per thread after the other.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    cumsum_rows(const T* x, T* out, const Axes kept, unsigned rows, unsigned n, long long from, long long to,
                bool exclusive) {
  using A = typename Accumulator<T>::Type;
  constexpr unsigned ITEMS = 4;
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const Place start = place(kept, row);
  x += start.from;
  out += start.to;
  A carried = 0;
  for (unsigned tile = 0; tile < n; tile += ITEMS * blockDim.x) {
    const unsigned first = tile + ITEMS * threadIdx.x;
    A value[ITEMS], sum = 0, total;
    for (unsigned j = 0; j < ITEMS; j++) {
      value[j] = first + j < size ? A(x[(first + j) * from]) : A(0);
      sum += value[j];
    }
    A running = carried + scan_row(sum, total);
    carried += total;
    for (unsigned j = 0; j < ITEMS; j++) {
      const A before = running;
      running += value[j];
      if (first + j < size) out[(first + j) * to] = T(exclusive ? before : running);
    }
  }
}

// Columns of n elements, blockDim.x of them per block; each of the blockDim.y threads of a column has a segment, and
// begins with the sum of the segments before.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    cumsum_columns(const T* x, T* out, const Axes kept, unsigned columns, unsigned n, long long from, long long to,
                   bool exclusive) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, sums);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned segment = (n + blockDim.y - 1) / blockDim.y, begin = threadIdx.y * segment;
  const unsigned end = column < columns ? min(n, begin + segment) : 0;
  const Place start = place(kept, column);
  x += start.from;
  out += start.to;
  A running = 0;
  if (blockDim.y > 1) {
    A sum = 0;
#pragma unroll 4
    for (unsigned i = begin; i < end; i++) sum += A(x[i * from]);
    sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    for (unsigned y = 0; y < threadIdx.y; y++) running += sums[y * blockDim.x + threadIdx.x];
  }
#pragma unroll 4
  for (unsigned i = begin; i < end; i++) {
    const A before = running;
    running += A(x[i * from]);
    out[i * to] = T(exclusive ? before : running);
  }
}
