// Cumulative sums along one axis, from its end if strides are negative.
#include "axes.cuh"

// Return the sum of `value` over the threads of a row before this one (exclusive scan by warp shuffles); `total`
// becomes the sum over all of them. The threads of a row are a warp or the whole block.
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
    OVGPU_SHARED(A, warp_totals, [OVGPU_THREADS / 32]);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();  // the totals of an earlier call may still be read
    if (lane == 0) warp_totals[warp] = total;
    __syncthreads();
    A earlier = 0;
    total = 0;
    for (int i = 0; i < warps; i++) {
      if (i == warp) earlier = total;
      total += warp_totals[i];
    }
    before = earlier + before;
  }
  return before;
}

// Scan rows of n elements, one per warp or block, in tiles of four elements per thread. `outer` are all other axes.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS) cumsum_rows(const T* x, T* out, const MappedAxes outer, unsigned rows,
                                                             unsigned n, long long from, long long to, bool exclusive) {
  using A = typename Accumulator<T>::Type;
  constexpr unsigned ITEMS = 4;
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const Offsets start = offsets_of(outer, row);
  x += start.from;
  out += start.to;
  A carry = 0;
  for (unsigned tile = 0; tile < n; tile += ITEMS * blockDim.x) {
    const unsigned first = tile + ITEMS * threadIdx.x;
    A value[ITEMS], sum = 0, total;
    for (unsigned j = 0; j < ITEMS; j++) {
      value[j] = first + j < size ? A(x[(first + j) * from]) : A(0);
      sum += value[j];
    }
    A running = carry + scan_row(sum, total);
    carry += total;
    for (unsigned j = 0; j < ITEMS; j++) {
      const A before = running;
      running += value[j];
      if (first + j < size) out[(first + j) * to] = T(exclusive ? before : running);
    }
  }
}

// Scan columns of n elements, blockDim.x of them per block. Each of the blockDim.y threads of a column scans a segment,
// starting from the sum of the previous segments.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    cumsum_columns(const T* x, T* out, const MappedAxes outer, unsigned columns, unsigned n, long long from,
                   long long to, bool exclusive) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, sums);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned segment = (n + blockDim.y - 1) / blockDim.y, begin = threadIdx.y * segment;
  const unsigned end = column < columns ? min(n, begin + segment) : 0;
  const Offsets start = offsets_of(outer, column);
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
