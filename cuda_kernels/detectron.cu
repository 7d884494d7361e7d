// Boxes of two-stage detectors: decoding of predicted offsets, non-maximum suppression, and output of the best boxes.
// Everything is computed in f32 and rounded after every operation, as on the host.
#include "common.cuh"

constexpr int THREADS = 256;            // per block
constexpr int MAX_SORTED_BOXES = 4096;  // per group

// Decode one axis of a box: move the interval [low, high], both ends included, by `shift` times its length, and scale
// it by exp(log_scale).
__device__ __forceinline__ void move_interval(float& low, float& high, float shift, float log_scale,
                                              float max_log_scale) {
  const float side = high - low + 1.f;
  const float center = __fadd_rn(__fmul_rn(shift, side), __fadd_rn(low, __fmul_rn(0.5f, side)));
  const float half = __fmul_rn(0.5f, __fmul_rn(expf(log_scale > max_log_scale ? max_log_scale : log_scale), side));
  low = __fsub_rn(center, half);
  high = __fadd_rn(center, half) - 1.f;
}

__device__ __forceinline__ float clamp(float x, float low, float high) { return fmaxf(fminf(x, high), low); }

// Compute boxes from anchors [size, 4] in the order (position, anchor), offsets [count, 4, area] and scores
// [count, area], and clip them to the image, which begins with height and width. Boxes with a side below `minimum` get
// a score of 0.
template <class T>
__global__ void move_anchors(const T* __restrict__ image, const T* __restrict__ anchors, const T* __restrict__ offsets,
                             const T* __restrict__ scores, float4* boxes, float* box_scores, int size, int count,
                             int area, float max_log_scale, float minimum) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int anchor = i % count, position = i / count;
  const T* corner = anchors + 4ll * i;
  const T* offset = offsets + 4ll * anchor * area + position;
  float4 box{float(corner[0]), float(corner[1]), float(corner[2]), float(corner[3])};
  move_interval(box.x, box.z, float(offset[0]), float(offset[2ll * area]), max_log_scale);
  move_interval(box.y, box.w, float(offset[area]), float(offset[3ll * area]), max_log_scale);
  const float bottom = float(image[0]) - 1.f, right = float(image[1]) - 1.f;
  box = {clamp(box.x, 0.f, right), clamp(box.y, 0.f, bottom), clamp(box.z, 0.f, right), clamp(box.w, 0.f, bottom)};
  boxes[i] = box;
  const bool large = box.z - box.x + 1.f >= minimum && box.w - box.y + 1.f >= minimum;
  box_scores[i] = large ? float(scores[1ll * anchor * area + position]) : 0.f;
}

// Compute boxes of every class but the first from regions [count, 4], offsets [count, classes, 4], which are divided by
// `weights`, and scores [count, classes]. Regions without an area and scores up to `minimum` get a score of 0.
template <class T>
__global__ void move_regions(const T* __restrict__ regions, const T* __restrict__ offsets, const T* __restrict__ scores,
                             float4* boxes, float* box_scores, int count, int classes, const float4 weights,
                             float max_log_scale, float minimum) {
  const long long i = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1ll * count * (classes - 1)) return;
  const int region = i % count, label = i / count + 1;
  const T* corner = regions + 4ll * region;
  const T* offset = offsets + 4 * (1ll * region * classes + label);
  float4 box{float(corner[0]), float(corner[1]), float(corner[2]), float(corner[3])};
  const bool valid = box.z > box.x && box.w > box.y;
  move_interval(box.x, box.z, float(offset[0]) / weights.x, float(offset[2]) / weights.z, max_log_scale);
  move_interval(box.y, box.w, float(offset[1]) / weights.y, float(offset[3]) / weights.w, max_log_scale);
  boxes[i] = {fmaxf(box.x, 0.f), fmaxf(box.y, 0.f), fmaxf(box.z, 0.f), fmaxf(box.w, 0.f)};
  const float score = float(scores[1ll * region * classes + label]);
  box_scores[i] = valid && score > minimum ? score : 0.f;
}

__device__ __forceinline__ float area_of(const float4& box, float extra) {
  return __fmul_rn(box.z - box.x + extra, box.w - box.y + extra);
}

// Return the intersection over union of two boxes, with `extra` added to all sides; 0 if they are disjoint or have no
// area.
__device__ __forceinline__ float iou(const float4& a, const float4& b, float extra) {
  // Sides of the intersection may be negative where corners are swapped, so corners are compared.
  const bool disjoint = a.x > b.z || b.x > a.z || a.y > b.w || b.y > a.w;
  const float one = area_of(a, extra), other = area_of(b, extra);
  if (disjoint || !(one > 0.f && other > 0.f)) return 0.f;
  const float width = fminf(a.z, b.z) - fmaxf(a.x, b.x) + extra, height = fminf(a.w, b.w) - fmaxf(a.y, b.y) + extra;
  const float common = __fmul_rn(fmaxf(width, 0.f), fmaxf(height, 0.f));
  return __fdiv_rn(common, __fsub_rn(__fadd_rn(one, other), common));
}

// Greedy non-maximum suppression with one block per group of `size` boxes. `order` has the indices of the group's best
// `candidates` by descending score. Up to `limit` times, the best box that remains is selected if its score is above
// `minimum`, and suppresses the boxes that overlap it. Write the ranks of the selected boxes in `order`.
__global__ void __launch_bounds__(THREADS)
    suppress(const float4* __restrict__ boxes, const float* __restrict__ box_scores, const int* __restrict__ order,
             int* selected_ranks, int* counts, int size, int candidates, int limit, float minimum, float threshold,
             float extra) {
  OVGPU_SHARED(bool, suppressed, [MAX_SORTED_BOXES]);
  const int group = blockIdx.x, thread = threadIdx.x;
  boxes += 1ll * group * size;
  box_scores += 1ll * group * candidates;
  order += 1ll * group * candidates;
  for (int i = thread; i < candidates; i += THREADS) suppressed[i] = false;
  __syncthreads();
  int selected = 0;
  for (int i = 0; i < candidates && selected < limit && box_scores[i] > minimum; i++) {
    if (suppressed[i]) continue;  // final: boxes selected from here on only suppress later ones
    if (thread == 0) selected_ranks[1ll * group * limit + selected] = i;
    selected++;
    const float4 best = boxes[order[i]];
    for (int k = i + 1 + thread; k < candidates; k += THREADS) {
      if (!suppressed[k] && iou(best, boxes[order[k]], extra) > threshold) suppressed[k] = true;
    }
    __syncthreads();
  }
  if (thread == 0) counts[group] = selected;
}

// Return the number of a group's selected boxes that precede the given box: by score, then by box index, then by group
// (`before`).
__device__ __forceinline__ int count_better(const int* selected_ranks, const float* box_scores, const int* order,
                                            int count, float score, int box_index, bool before) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2, rank = selected_ranks[middle];
    const float other = box_scores[rank];
    if (other > score || (other == score && (order[rank] < box_index || (order[rank] == box_index && before)))) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

// Write the selected boxes of all groups, one group after the other; if there are too few rows, only the best ones, by
// descending score. Further rows are zeros. One thread per rank in a group, and per row of the output. Labels, unless
// null, count from 1.
template <class T>
__global__ void write_best(const float4* __restrict__ boxes, const float* __restrict__ box_scores,
                           const int* __restrict__ order, const int* __restrict__ selected_ranks,
                           const int* __restrict__ counts, T* corners, int* labels, T* scores, int groups, int size,
                           int candidates, int limit, int rows) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, group = i / limit, position = i % limit;
  const bool valid = group < groups && position < counts[group];
  int total = 0, earlier = 0;
  for (int other = 0; other < groups; other++) {
    if (other == group) earlier = total;
    total += counts[other];
  }
  if (valid) {
    const int rank = selected_ranks[i], box_index = order[1ll * group * candidates + rank];
    const float score = box_scores[1ll * group * candidates + rank];
    int row = earlier + position;
    if (total > rows) {
      row = position;
      for (int other = 0; other < groups; other++) {
        const long long from = 1ll * other * candidates;
        if (other != group) {
          row += count_better(selected_ranks + 1ll * other * limit, box_scores + from, order + from, counts[other],
                              score, box_index, other < group);
        }
      }
    }
    if (row < rows) {
      const float4 box = boxes[1ll * group * size + box_index];
      corners[4ll * row] = T(box.x);
      corners[4ll * row + 1] = T(box.y);
      corners[4ll * row + 2] = T(box.z);
      corners[4ll * row + 3] = T(box.w);
      if (labels) labels[row] = group + 1;
      scores[row] = T(score);
    }
  }
  if (i < rows && i >= total) {
    for (int k = 0; k < 4; k++) corners[4ll * i + k] = T(0.f);
    if (labels) labels[i] = 0;
    scores[i] = T(0.f);
  }
}
