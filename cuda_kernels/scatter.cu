// Scatters. An update touches only its own line along the axis, and those of a line are applied in order, or only the
// last one: the result never depends on chance.
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

// Integers are rounded down.
template <typename T>
__device__ __forceinline__ T mean(T total, int count) {
  if (static_cast<T>(0.5) != static_cast<T>(0)) return static_cast<T>(static_cast<double>(total) / count);
  constexpr bool SIGNED = static_cast<T>(-1) < static_cast<T>(1);
  const T divisor = static_cast<T>(count), quotient = static_cast<T>(total / divisor);
  return SIGNED && total < static_cast<T>(0) && quotient * divisor != total ? static_cast<T>(quotient - 1) : quotient;
}

template <typename I>
struct Line {
  I length, out, index, update, count;  // extent of the output's axis; strides along it
};

// One thread (LANES 1) or one warp (LANES 32) per line. Operands of the axes: out, index, update, count. Elements that
// are updated start from `neutral` unless `keeps`. Only MEAN needs `count`, which need not be cleared. Indices out of
// range are passed over.
template <typename T, typename Index, Reduction reduction, typename I, int R, int LANES>
__global__ void scatter_elements(T* out, const Index* __restrict__ index, const T* __restrict__ update, int* count,
                                 const Axes<I, R, 4> axes, const Line<I> line, I lines, I updates, T neutral,
                                 bool keeps) {
  const I number = static_cast<I>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES;
  const int lane = LANES == 1 ? 0 : threadIdx.x % 32;
  if (number >= lines) return;
  I at[R];
  unravel(axes, number, at);
  out += offset(axes, at, 0);
  index += offset(axes, at, 1);
  update += offset(axes, at, 2);
  if (reduction == MEAN) count += offset(axes, at, 3);

  const auto target = [&](I j) -> I {
    return j < updates ? located(index[j * line.index], line.length) : -1;
  };
  const bool replaces = reduction != NONE && !keeps;
  if (reduction == MEAN || replaces) {
    for (I j = lane; j < updates; j += LANES) {
      const I i = target(j);
      if (i >= 0 && replaces) out[i * line.out] = neutral;
      if (i >= 0 && reduction == MEAN) count[i * line.count] = 0;
    }
    if (LANES == 32) __syncwarp();
  }
  for (I first = 0; first < updates; first += LANES) {
    const I j = first + lane, i = target(j);
    // Lanes that update one element take turns.
    const unsigned peers = LANES == 1 ? 0 : __match_any_sync(0xffffffffu, i);
    const int turn = i < 0 ? 0 : __popc(peers & ((1u << lane) - 1));
    for (int now = 0;; now++) {
      if (i >= 0 && turn == now) {
        T& element = out[i * line.out];
        element = combine<reduction>(element, update[j * line.update]);
        if (reduction == MEAN) count[i * line.count]++;
      }
      if (LANES == 1) break;
      __syncwarp();
      if (!__any_sync(0xffffffffu, turn > now)) break;
    }
  }
  if (reduction == MEAN) {
    for (I first = 0; first < updates; first += LANES) {
      const I i = target(first + lane);
      const unsigned peers = LANES == 1 ? 0 : __match_any_sync(0xffffffffu, i);
      if (i >= 0 && (peers & ((1u << lane) - 1)) == 0 && count[i * line.count] > 0) {
        out[i * line.out] = mean(out[i * line.out], count[i * line.count] + keeps);
        count[i * line.count] = 0;  // averaged
      }
      if (LANES == 32) __syncwarp();
    }
  }
}

// The number of the slice that each tuple of `count` indices is for; that of the end, if one is out of range.
struct Extents {
  long long of[8];
};

template <typename Index>
__global__ void number_tuples(const Index* __restrict__ index, long long* __restrict__ number, const Extents extents,
                              long long tuples, long long count, long long pitch, long long step) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tuples) return;
  long long chosen = 0, all = 1;
  bool inside = true;
  for (long long n = 0; n < count; n++) {
    const long long at = located(index[i * pitch + n * step], extents.of[n]);
    inside = inside && at >= 0;
    chosen = chosen * extents.of[n] + at;
    all *= extents.of[n];
  }
  number[i] = inside ? chosen : all;
}

// last[i] becomes the number of the last update whose index is i: -1 first, then, when it `claims`, the largest.
template <typename Index>
__global__ void find_last(const Index* __restrict__ index, int* last, long long updates, long long step,
                          long long length, bool claims) {
  const long long j = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= updates) return;
  const long long i = located(index[j * step], length);
  if (i < 0) return;
  if (claims) atomicMax(&last[i], static_cast<int>(j));
  else last[i] = -1;
}

// Writes the last updates, in the order of the updates. Operands of the axes: update, its number, y.
template <typename T, typename Index, typename I, int R>
__global__ void scatter_last(const T* __restrict__ update, const Index* __restrict__ index,
                             const int* __restrict__ last, T* __restrict__ y, const Axes<I, R, 3> axes, I size, I step,
                             I extent, I row) {
  const I first = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I number = first + k * static_cast<I>(blockDim.x);
    if (number >= size) return;
    I at[R];
    unravel(axes, number, at);
    const I j = offset(axes, at, 1), i = located(index[j * step], extent);
    if (i >= 0 && last[i] == j) y[offset(axes, at, 2) + i * row] = update[offset(axes, at, 0)];
  }
}
