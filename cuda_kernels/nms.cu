// NonMaxSuppression: what is selected in every class of every batch, by a block each, and then all of it in order.
#include "common.cuh"

constexpr int THREADS = 256;  // of a block

struct Box {
  float low[2], high[2], area;
};

// A box given by opposite corners, or by its centre and sides.
template <class T>
__device__ __forceinline__ Box corners(const T* numbers, bool center) {
  Box box;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float a = float(numbers[i]), b = float(numbers[i + 2]), half = __fmul_rn(b, 0.5f);
    box.low[i] = center ? __fsub_rn(a, half) : fminf(a, b);
    box.high[i] = center ? __fadd_rn(a, half) : fmaxf(a, b);
  }
  box.area = __fmul_rn(box.high[0] - box.low[0], box.high[1] - box.low[1]);
  return box;
}

// Intersection over union, rounded after every operation as on the host; 0 for a box without an area.
__device__ __forceinline__ float overlap(const Box& a, const Box& b) {
  if (!(a.area > 0.f && b.area > 0.f)) return 0.f;
  const float height = fminf(a.high[0], b.high[0]) - fmaxf(a.low[0], b.low[0]);
  const float width = fminf(a.high[1], b.high[1]) - fmaxf(a.low[1], b.low[1]);
  const float common = __fmul_rn(fmaxf(height, 0.f), fmaxf(width, 0.f));
  return __fdiv_rn(common, __fsub_rn(__fadd_rn(a.area, b.area), common));
}

// A block per class: those of the `count` boxes whose scores are above `least` are left; the best of them, of equal
// ones the first, is selected and suppresses others, at most `limit` times. `left` and `numbers` have room for all.
template <class T>
__global__ void __launch_bounds__(THREADS)
    nms_select(const T* __restrict__ boxes, const T* __restrict__ scores, float* left, int* numbers, float* rated,
               int* chosen, int* counts, int classes, int count, int limit, float threshold, float least, bool center) {
  OVGPU_SHARED(int, filled, [1]);
  OVGPU_SHARED(float, highest, [THREADS]);
  OVGPU_SHARED(int, first, [THREADS]);
  const int group = blockIdx.x, thread = threadIdx.x;
  boxes += (long long)(group / classes) * count * 4;
  scores += (long long)group * count;
  left += (long long)group * count;
  numbers += (long long)group * count;
  if (thread == 0) filled[0] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += THREADS) {
    const float score = float(scores[i]);
    if (score > least) {
      const int at = atomicAdd(filled, 1);  // the order of arrival does not matter
      left[at] = score;
      numbers[at] = i;
    }
  }
  __syncthreads();
  const int size = filled[0];
  Box best;
  int winner = -1, selected = 0;
  for (; selected < limit; selected++) {
    float score = 0.f;
    int number = count;
    for (int i = thread; i < size; i += THREADS) {
      const int other = numbers[i];
      if (other < 0) continue;
      if (other == winner || (selected && overlap(best, corners(boxes + 4 * other, center)) >= threshold)) {
        numbers[i] = -1;
      } else if (number == count || left[i] > score || (left[i] == score && other < number)) {
        score = left[i];
        number = other;
      }
    }
    highest[thread] = score;
    first[thread] = number;
    for (int step = THREADS / 2; step > 0; step /= 2) {
      __syncthreads();
      if (thread < step && first[thread + step] < count) {
        const float other = highest[thread + step];
        if (first[thread] == count || other > highest[thread] ||
            (other == highest[thread] && first[thread + step] < first[thread])) {
          highest[thread] = other;
          first[thread] = first[thread + step];
        }
      }
    }
    __syncthreads();
    winner = first[0];
    if (winner == count) break;
    if (thread == 0) {
      rated[(long long)group * limit + selected] = highest[0];
      chosen[(long long)group * limit + selected] = winner;
    }
    best = corners(boxes + 4 * winner, center);
    __syncthreads();
  }
  if (thread == 0) counts[group] = selected;
}

// How many of the `size` falling scores are above one, or not below it.
__device__ __forceinline__ int ahead(const float* scores, int size, float score, bool equal) {
  int low = 0;
  while (low < size) {
    const int middle = (low + size) / 2;
    if (scores[middle] > score || (equal && scores[middle] == score)) {
      low = middle + 1;
    } else {
      size = middle;
    }
  }
  return low;
}

// A thread for every place of a class and for every row of the output: batch, class and box of what was selected,
// in order of scores or of classes, then -1. There may be fewer rows than boxes selected.
template <class Index>
__global__ void nms_write(const float* __restrict__ rated, const int* __restrict__ chosen,
                          const int* __restrict__ counts, Index* rows, int groups, int classes, int limit, int room,
                          bool sorted) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int group = i / limit, place = i % limit;
  const bool valid = group < groups && place < counts[group];
  const float score = valid ? rated[i] : 0.f;
  int rank = place, total = 0;
  for (int other = 0; other < groups; other++) {
    total += counts[other];
    if (!valid || other == group) continue;
    if (sorted) {
      rank += ahead(rated + (long long)other * limit, counts[other], score, other < group);
    } else if (other < group) {
      rank += counts[other];
    }
  }
  if (valid && rank < room) {
    rows[rank * 3LL] = Index(group / classes);
    rows[rank * 3LL + 1] = Index(group % classes);
    rows[rank * 3LL + 2] = Index(chosen[i]);
  }
  if (i < room && i >= total) {
    for (int k = 0; k < 3; k++) rows[i * 3LL + k] = Index(-1);
  }
}
