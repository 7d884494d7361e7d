// NonMaxSuppression: greedy selection in every class of every batch by one block each, then output in order.
#include "common.cuh"

constexpr int THREADS = 256;  // per block

struct Box {
  float low[2], high[2], area;
};

// Convert a box given by opposite corners or, with `center`, by its centre and sides; and compute its area.
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

// Return the intersection over union, rounded after every operation as on the host; 0 for a box without an area.
__device__ __forceinline__ float iou(const Box& a, const Box& b) {
  if (!(a.area > 0.f && b.area > 0.f)) return 0.f;
  const float height = fminf(a.high[0], b.high[0]) - fmaxf(a.low[0], b.low[0]);
  const float width = fminf(a.high[1], b.high[1]) - fmaxf(a.low[1], b.low[1]);
  const float common = __fmul_rn(fmaxf(height, 0.f), fmaxf(width, 0.f));
  return __fdiv_rn(common, __fsub_rn(__fadd_rn(a.area, b.area), common));
}

// Greedy non-maximum suppression with one block per class of a batch. Candidates are the boxes with scores above
// `min_score`. Up to `limit` times, the best one, the first among equals, is selected and suppresses those that
// overlap. `candidate_scores` and `numbers`, the candidates' box indices, have `count` elements per class.
template <class T>
__global__ void __launch_bounds__(THREADS)
    nms_select(const T* __restrict__ boxes, const T* __restrict__ scores, float* candidate_scores, int* numbers,
               float* selected_scores, int* selected_boxes, int* counts, int classes, int count, int limit,
               float threshold, float min_score, bool center) {
  OVGPU_SHARED(int, filled, [1]);
  OVGPU_SHARED(float, highest, [THREADS]);
  OVGPU_SHARED(int, first, [THREADS]);
  const int group = blockIdx.x, thread = threadIdx.x;
  boxes += (long long)(group / classes) * count * 4;
  scores += (long long)group * count;
  candidate_scores += (long long)group * count;
  numbers += (long long)group * count;
  if (thread == 0) filled[0] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += THREADS) {
    const float score = float(scores[i]);
    if (score > min_score) {
      const int slot = atomicAdd(filled, 1);  // in any order: ties are broken by index
      candidate_scores[slot] = score;
      numbers[slot] = i;
    }
  }
  __syncthreads();
  const int size = filled[0];
  Box best;
  int winner = -1, selected = 0;
  for (; selected < limit; selected++) {
    float score = 0.f;
    int best_index = count;
    for (int i = thread; i < size; i += THREADS) {
      const int other = numbers[i];
      if (other < 0) continue;
      if (other == winner || (selected && iou(best, corners(boxes + 4 * other, center)) >= threshold)) {
        numbers[i] = -1;
      } else if (best_index == count || candidate_scores[i] > score ||
                 (candidate_scores[i] == score && other < best_index)) {
        score = candidate_scores[i];
        best_index = other;
      }
    }
    highest[thread] = score;
    first[thread] = best_index;
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
      selected_scores[(long long)group * limit + selected] = highest[0];
      selected_boxes[(long long)group * limit + selected] = winner;
    }
    best = corners(boxes + 4 * winner, center);
    __syncthreads();
  }
  if (thread == 0) counts[group] = selected;
}

// Return how many of `size` descending scores are above the given one or, with `equal`, not below it.
__device__ __forceinline__ int count_ahead(const float* scores, int size, float score, bool equal) {
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

// Write batch, class and box of the selected boxes, ordered by score or by class, then rows of -1. One thread per
// position in a class, and per row of the output. Boxes that exceed the number of rows are dropped.
template <class Index>
__global__ void nms_write(const float* __restrict__ selected_scores, const int* __restrict__ selected_boxes,
                          const int* __restrict__ counts, Index* rows, int groups, int classes, int limit,
                          int row_count, bool sorted) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int group = i / limit, position = i % limit;
  const bool valid = group < groups && position < counts[group];
  const float score = valid ? selected_scores[i] : 0.f;
  int rank = position, total = 0;
  for (int other = 0; other < groups; other++) {
    total += counts[other];
    if (!valid || other == group) continue;
    if (sorted) {
      rank += count_ahead(selected_scores + (long long)other * limit, counts[other], score, other < group);
    } else if (other < group) {
      rank += counts[other];
    }
  }
  if (valid && rank < row_count) {
    rows[rank * 3LL] = Index(group / classes);
    rows[rank * 3LL + 1] = Index(group % classes);
    rows[rank * 3LL + 2] = Index(selected_boxes[i]);
  }
  if (i < row_count && i >= total) {
    for (int k = 0; k < 3; k++) rows[i * 3LL + k] = Index(-1);
  }
}
