// Boxes of two-stage detectors: moved by what was predicted, suppressed by better ones, and written with their scores.
// Everything is computed in f32 and rounded after every operation, as on the host.
#include "common.cuh"

constexpr int THREADS = 256;  // of a block
constexpr int MOST = 4096;    // boxes of a group that may suppress each other

// One side of a box, of which both ends belong to it, moved by a part of its length, and grown by an exponent.
__device__ __forceinline__ void move(float& low, float& high, float shift, float growth, float largest) {
  const float side = high - low + 1.f;
  const float center = __fadd_rn(__fmul_rn(shift, side), __fadd_rn(low, __fmul_rn(0.5f, side)));
  const float half = __fmul_rn(0.5f, __fmul_rn(expf(growth > largest ? largest : growth), side));
  low = __fsub_rn(center, half);
  high = __fadd_rn(center, half) - 1.f;
}

__device__ __forceinline__ float between(float x, float low, float high) { return fmaxf(fminf(x, high), low); }

// Anchors [size, 4], the `count` of a place one after the other, with offsets [count, 4, area] and scores
// [count, area]: their boxes in the image, whose height and width come first; those too small have a score of 0.
template <class T>
__global__ void move_anchors(const T* __restrict__ image, const T* __restrict__ anchors,
                             const T* __restrict__ offsets, const T* __restrict__ scores, float4* boxes, float* rated,
                             int size, int count, int area, float largest, float least) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int anchor = i % count, place = i / count;
  const T* corner = anchors + 4ll * i;
  const T* offset = offsets + 4ll * anchor * area + place;
  float4 box{float(corner[0]), float(corner[1]), float(corner[2]), float(corner[3])};
  move(box.x, box.z, float(offset[0]), float(offset[2ll * area]), largest);
  move(box.y, box.w, float(offset[area]), float(offset[3ll * area]), largest);
  const float bottom = float(image[0]) - 1.f, right = float(image[1]) - 1.f;
  box = {between(box.x, 0.f, right), between(box.y, 0.f, bottom), between(box.z, 0.f, right),
         between(box.w, 0.f, bottom)};
  boxes[i] = box;
  const bool large = box.z - box.x + 1.f >= least && box.w - box.y + 1.f >= least;
  rated[i] = large ? float(scores[1ll * anchor * area + place]) : 0.f;
}

// Regions [count, 4] with offsets [count, classes, 4], divided by `weights`, and scores [count, classes]: the boxes of
// every class but the first. Those that have no area, or a score of no more than `least`, get 0.
template <class T>
__global__ void move_regions(const T* __restrict__ regions, const T* __restrict__ offsets,
                             const T* __restrict__ scores, float4* boxes, float* rated, int count, int classes,
                             const float4 weights, float largest, float least) {
  const long long i = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1ll * count * (classes - 1)) return;
  const int region = i % count, label = i / count + 1;
  const T* corner = regions + 4ll * region;
  const T* offset = offsets + 4 * (1ll * region * classes + label);
  float4 box{float(corner[0]), float(corner[1]), float(corner[2]), float(corner[3])};
  const bool valid = box.z > box.x && box.w > box.y;
  move(box.x, box.z, float(offset[0]) / weights.x, float(offset[2]) / weights.z, largest);
  move(box.y, box.w, float(offset[1]) / weights.y, float(offset[3]) / weights.w, largest);
  boxes[i] = {fmaxf(box.x, 0.f), fmaxf(box.y, 0.f), fmaxf(box.z, 0.f), fmaxf(box.w, 0.f)};
  const float score = float(scores[1ll * region * classes + label]);
  rated[i] = valid && score > least ? score : 0.f;
}

__device__ __forceinline__ float area_of(const float4& box, float extra) {
  return __fmul_rn(box.z - box.x + extra, box.w - box.y + extra);
}

// Intersection over union of boxes to whose sides `extra` is added; 0 if they do not touch, or have no area.
__device__ __forceinline__ float overlap(const float4& a, const float4& b, float extra) {
  const float width = fminf(a.z, b.z) - fmaxf(a.x, b.x), height = fminf(a.w, b.w) - fmaxf(a.y, b.y);
  const float one = area_of(a, extra), other = area_of(b, extra);
  if (!(width >= 0.f && height >= 0.f && one > 0.f && other > 0.f)) return 0.f;
  const float common = __fmul_rn(width + extra, height + extra);
  return __fdiv_rn(common, __fsub_rn(__fadd_rn(one, other), common));
}

// A block per group of `size` boxes, of which `order` gives the best `taken`, with falling scores: the first that is
// left, if its score is above `least`, suppresses others, at most `limit` times. Gives their places in the order.
__global__ void __launch_bounds__(THREADS)
    suppress(const float4* __restrict__ boxes, const float* __restrict__ rated, const int* __restrict__ order,
             int* kept, int* counts, int size, int taken, int limit, float least, float threshold, float extra) {
  OVGPU_SHARED(bool, gone, [MOST]);
  const int group = blockIdx.x, thread = threadIdx.x;
  boxes += 1ll * group * size;
  rated += 1ll * group * taken;
  order += 1ll * group * taken;
  for (int i = thread; i < taken; i += THREADS) gone[i] = false;
  __syncthreads();
  int selected = 0;
  for (int i = 0; i < taken && selected < limit && rated[i] > least; i++) {
    if (gone[i]) continue;  // written by no one any more: what suppresses now comes later
    if (thread == 0) kept[1ll * group * limit + selected] = i;
    selected++;
    const float4 best = boxes[order[i]];
    for (int k = i + 1 + thread; k < taken; k += THREADS) {
      if (!gone[k] && overlap(best, boxes[order[k]], extra) > threshold) gone[k] = true;
    }
    __syncthreads();
  }
  if (thread == 0) counts[group] = selected;
}

// How many of the boxes kept of a group come before one of this score, number and group, by score and then by number.
__device__ __forceinline__ int ahead(const int* kept, const float* rated, const int* order, int count, float score,
                                     int number, bool before) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2, at = kept[middle];
    const float other = rated[at];
    if (other > score || (other == score && (order[at] < number || (order[at] == number && before)))) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

// A thread for every place of a group and for every row of the output: what was kept, one group after the other, or
// the best of it if there are not rows enough, then zeros. Classes, if wanted, count from 1.
template <class T>
__global__ void write_best(const float4* __restrict__ boxes, const float* __restrict__ rated,
                           const int* __restrict__ order, const int* __restrict__ kept,
                           const int* __restrict__ counts, T* corners, int* labels, T* scores, int groups, int size,
                           int taken, int limit, int rows) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, group = i / limit, place = i % limit;
  const bool valid = group < groups && place < counts[group];
  int total = 0, earlier = 0;
  for (int other = 0; other < groups; other++) {
    if (other == group) earlier = total;
    total += counts[other];
  }
  if (valid) {
    const int at = kept[i], number = order[1ll * group * taken + at];
    const float score = rated[1ll * group * taken + at];
    int row = earlier + place;
    if (total > rows) {
      row = place;
      for (int other = 0; other < groups; other++) {
        const long long from = 1ll * other * taken;
        if (other != group) {
          row += ahead(kept + 1ll * other * limit, rated + from, order + from, counts[other], score, number,
                       other < group);
        }
      }
    }
    if (row < rows) {
      const float4 box = boxes[1ll * group * size + number];
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
