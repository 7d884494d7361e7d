// Scatters. A line is the elements along the updated axis, and an update only touches its own line. A line's updates
// are applied in order, or only the last one of each element: results are deterministic.
#include "strided.cuh"

enum Reduction { NONE, SUM, SUB, PROD, MIN, MAX, MEAN };

template <Reduction reduction, typename T>
__device__ __forceinline__ T combine(T a, T b) {
  if (reduction == NONE) return b;
  if (reduction == SUB) return a - b;
  if (reduction == PROD) return a * b;
  if (reduction == MIN) return a != a || a < b ? a : b;
  if (reduction == MAX) return a != a || b < a ? a : b;
  return a + b;
}

// Return total / count; integers are rounded down.
template <typename T>
__device__ __forceinline__ T mean(T total, int count) {
  if (static_cast<T>(0.5) != static_cast<T>(0)) return static_cast<T>(static_cast<double>(total) / count);
  constexpr bool SIGNED = static_cast<T>(-1) < static_cast<T>(1);
  const T divisor = static_cast<T>(count), quotient = static_cast<T>(total / divisor);
  return SIGNED && total < static_cast<T>(0) && quotient * divisor != total ? static_cast<T>(quotient - 1) : quotient;
}

template <typename I>
struct Line {
  I length, out, index, update, count;  // the output's extent along the axis, and strides along it
};

// Apply the updates of one line per thread (LANES 1) or warp (LANES 32). Operands of the axes: out, index, update,
// count. Updated elements start from `neutral` unless `includes_data`. Only MEAN needs `count`, which may be
// uninitialised. Indices out of range are skipped.
template <typename T, typename Index, Reduction reduction, typename I, int R, int LANES>
__global__ void scatter_elements(T* out, const Index* __restrict__ index, const T* __restrict__ update, int* count,
                                 const Axes<I, R, 4> axes, const Line<I> line, I lines, I updates, T neutral,
                                 bool includes_data) {
  const I number = static_cast<I>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES;
  const int lane = LANES == 1 ? 0 : threadIdx.x % 32;
  if (number >= lines) return;
  I at[R];
  unravel(axes, number, at);
  out += offset(axes, at, 0);
  index += offset(axes, at, 1);
  update += offset(axes, at, 2);
  if (reduction == MEAN) count += offset(axes, at, 3);

  const auto target = [&](I j) -> I { return j < updates ? normalize_index(index[j * line.index], line.length) : -1; };
  const bool initializes = reduction != NONE && !includes_data;
  if (reduction == MEAN || initializes) {
    for (I j = lane; j < updates; j += LANES) {
      const I i = target(j);
      if (i >= 0 && initializes) out[i * line.out] = neutral;
      if (i >= 0 && reduction == MEAN) count[i * line.count] = 0;
    }
    if (LANES == 32) __syncwarp();
  }
  for (I first = 0; first < updates; first += LANES) {
    const I j = first + lane, i = target(j);
    // Lanes that update the same element do so one after another.
    const unsigned peers = LANES == 1 ? 0 : __match_any_sync(0xffffffffu, i);
    const int rank = i < 0 ? 0 : __popc(peers & ((1u << lane) - 1));
    for (int round = 0;; round++) {
      if (i >= 0 && rank == round) {
        T& element = out[i * line.out];
        element = combine<reduction>(element, update[j * line.update]);
        if (reduction == MEAN) count[i * line.count]++;
      }
      if (LANES == 1) break;
      __syncwarp();
      if (!__any_sync(0xffffffffu, rank > round)) break;
    }
  }
  if (reduction == MEAN) {
    for (I first = 0; first < updates; first += LANES) {
      const I i = target(first + lane);
      const unsigned peers = LANES == 1 ? 0 : __match_any_sync(0xffffffffu, i);
      if (i >= 0 && (peers & ((1u << lane) - 1)) == 0 && count[i * line.count] > 0) {
        out[i * line.out] = mean(out[i * line.out], count[i * line.count] + includes_data);
        count[i * line.count] = 0;  // marks the element as averaged
      }
      if (LANES == 32) __syncwarp();
    }
  }
}

// Extents of the axes that a tuple of indices selects from. number_tuples writes the flat index of each tuple, or the
// number of slices if an index is out of range.
struct Extents {
  long long of[8];
};

template <typename Index>
__global__ void number_tuples(const Index* __restrict__ index, long long* __restrict__ number, const Extents extents,
                              long long tuples, long long count, long long pitch, long long step) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tuples) return;
  long long flat_index = 0, slices = 1;
  bool inside = true;
  for (long long n = 0; n < count; n++) {
    const long long at = normalize_index(index[i * pitch + n * step], extents.of[n]);
    inside = inside && at >= 0;
    flat_index = flat_index * extents.of[n] + at;
    slices *= extents.of[n];
  }
  number[i] = inside ? flat_index : slices;
}

// Set last[i] to the number of the last update with index i. The first launch writes -1, the second one (`claims`) the
// maximum.
template <typename Index>
__global__ void find_last(const Index* __restrict__ index, int* last, long long updates, long long step,
                          long long length, bool claims) {
  const long long j = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= updates) return;
  const long long i = normalize_index(index[j * step], length);
  if (i < 0) return;
  if (claims)
    atomicMax(&last[i], static_cast<int>(j));
  else
    last[i] = -1;
}

// Write the last update of each index. Operands of the axes: update, its number along the axis, y.
template <typename T, typename Index, typename I, int R>
__global__ void scatter_last(const T* __restrict__ update, const Index* __restrict__ index,
                             const int* __restrict__ last, T* __restrict__ y, const Axes<I, R, 3> axes, I size, I step,
                             I extent, I axis_stride) {
  const I first = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I number = first + k * static_cast<I>(blockDim.x);
    if (number >= size) return;
    I at[R];
    unravel(axes, number, at);
    const I j = offset(axes, at, 1), i = normalize_index(index[j * step], extent);
    if (i >= 0 && last[i] == j) y[offset(axes, at, 2) + i * axis_stride] = update[offset(axes, at, 0)];
  }
}
