// What the kernels of attention share. Rows of q, k, v and out have a unit stride; broadcast batch axes have stride 0.
// With `length`, that is the number of keys, of which `keys` is a bound.
#pragma once

#include "ptx.cuh"
#include "strided.cuh"

enum Mask { NONE, ADDED, BOOLEAN, CAUSAL };

// Strides of rows, and of the mask's columns, in elements.
template <class I>
struct Strides {
  I q, k, v, mask, sink, out, column;
};

// Moves q, k, v and out to a batch of theirs; where it begins in mask and sink.
template <class T, class I, int R>
__device__ __forceinline__ void enter(const Axes<I, R, 6>& batch, I index, const T*& q, const T*& k, const T*& v,
                                      I& mask_at, I& sink_at, T*& out) {
  I at[R];
  unravel(batch, index, at);
  q += offset(batch, at, 0);
  k += offset(batch, at, 1);
  v += offset(batch, at, 2);
  mask_at = offset(batch, at, 3);
  sink_at = offset(batch, at, 4);
  out += offset(batch, at, 5);
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// What is subtracted before exp: a row that has seen only hidden keys has no maximum yet.
template <class A>
__device__ __forceinline__ A subtrahend(A maximum) {
  return maximum == minus_infinity() ? A(0) : maximum;
}

template <class T, Mask MASK, class A, class I>
__device__ __forceinline__ A masked(A score, const void* mask, I at, I row, I key) {
  if (MASK == ADDED) return score + A(static_cast<const T*>(mask)[at]);
  if (MASK == BOOLEAN) return static_cast<const bool*>(mask)[at] ? score : minus_infinity();
  if (MASK == CAUSAL) return key <= row ? score : minus_infinity();
  return score;
}

__device__ __forceinline__ float exponential(float x) { return __expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

constexpr int MOST_SPLITS = 128;

// Splits `keys` into at most gridDim.y ranges whose length is a multiple of STEP. Returns how many have keys; this
// block's range is [begin, end).
template <int STEP, class I>
__device__ __forceinline__ int split_keys(I keys, I& begin, I& end) {
  const I splits = gridDim.y;
  const I each = ((keys + splits - 1) / splits + STEP - 1) / STEP * STEP;
  begin = each * static_cast<I>(blockIdx.y);
  end = begin + each < keys ? begin + each : keys;
  return splits == 1 || !each ? 1 : static_cast<int>((keys + each - 1) / each);
}

// Returns true in the last of `splits` blocks that call it. That block can read what the others wrote before their
// calls, with loads that bypass L1. `arrived` is zero before the first call and after the last; `last` is in shared
// memory.
__device__ __forceinline__ bool arrives_last(unsigned* arrived, unsigned splits, bool* last) {
  __syncthreads();
  if (threadIdx.x == 0) *last = increment_acquire_release(arrived, splits - 1) == splits - 1;
  __syncthreads();
  return *last;
}

// Merges parts of rows that saw different keys: [splits][Q][pitch] with sums, and at N maximum and total.
// `weight` [rows][splits] is in shared memory. All loads are on their way before the first is waited for.
template <int Q, int N, class T, class A, class I>
__device__ __forceinline__ void merge_splits(const A* parts, int splits, int pitch, A* weight, const T* sink,
                                             I sink_stride, T* out, I out_stride, int rows, int width) {
  constexpr int EACH = MOST_SPLITS / 32, AHEAD = sizeof(A) == 4 ? 32 : 8;
  const int lane = threadIdx.x % 32, threads = static_cast<int>(blockDim.x), count = rows * width;
  int row[2], column[2];
  A part[2][AHEAD];
  const auto fetch = [&](int first, int begin) {  // two elements of the output
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int at = first + n * threads < count ? first + n * threads : first;
      row[n] = at / width, column[n] = at % width;
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
        const bool there = at < count && begin + s < splits;
        part[n][s] = there ? __ldcg(parts + ((begin + s) * Q + row[n]) * pitch + column[n]) : A(0);
      }
    }
  };
  fetch(threadIdx.x, 0);
  for (int r = threadIdx.x / 32; r < rows; r += threads / 32) {
    const A sunk = sink ? A(sink[r * sink_stride]) : A(minus_infinity());
    A highest = sunk, total = 0, peak[EACH], whole[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int s = lane + i * 32;
      const A* found = parts + (s * Q + r) * pitch + N;
      peak[i] = s < splits ? __ldcg(found) : A(minus_infinity());
      whole[i] = s < splits ? __ldcg(found + 1) : A(0);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) highest = larger(highest, peak[i]);
    for (int step = 16; step > 0; step /= 2) highest = larger(highest, __shfl_xor_sync(0xffffffffu, highest, step));
    const A shift = subtrahend(highest);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      peak[i] = exponential(peak[i] - shift);
      total += peak[i] * whole[i];
    }
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (sink) total += exponential(sunk - shift);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (lane + i * 32 < splits) weight[r * splits + lane + i * 32] = peak[i] / total;
    }
  }
  __syncthreads();
  for (int first = threadIdx.x; first < count; first += 2 * threads) {
    A sum[2] = {};
    for (int begin = 0; begin < splits; begin += AHEAD) {
      if (first >= threads || begin > 0) fetch(first, begin);
#pragma unroll
      for (int s = 0; s < AHEAD; s++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          if (begin + s < splits) sum[n] += weight[row[n] * splits + begin + s] * part[n][s];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) out[row[n] * out_stride + column[n]] = T(sum[n]);
  }
}
