// ScatterElementsUpdate. An update touches only its own line along the axis, and those of a line are applied in
// order: the result never depends on chance.
#include "strided.cuh"

enum Reduction { NONE, SUM, PROD, MIN, MAX, MEAN };

template <Reduction reduction, typename T>
__device__ __forceinline__ T combine(T a, T b) {
  if (reduction == NONE) return b;
  if (reduction == PROD) return a * b;
  if (reduction == MIN) return a != a || a < b ? a : b;
  if (reduction == MAX) return a != a || b < a ? a : b;
  return a + b;
}

// Integers are truncated, as Divide does.
template <typename T>
__device__ __forceinline__ T mean(T total, int count) {
  if (static_cast<T>(0.5) != static_cast<T>(0)) return static_cast<T>(static_cast<double>(total) / count);
  return static_cast<T>(total / static_cast<T>(count));
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
