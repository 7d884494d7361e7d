// Parts shared by the attention kernels: out = softmax(scale q k^T + mask) v for every batch, with q [queries, depth],
// k [keys, depth], v [keys, width] and out [queries, width], whose rows have a unit stride. Broadcast batch axes have
// stride 0. The scale is `factor`, or *scale if that is not null. If `length` is not null, *length is the number of
// keys, and `keys` is its upper bound. With PAGED, keys and values lie in pages, and `length` is the table of pages, the
// last operand of a batch. An attention sink is one more score per row, which takes part in the softmax without a value.
#pragma once

#include "math.cuh"
#include "pages.cuh"
#include "ptx.cuh"
#include "quantizer.cuh"
#include "strided.cuh"

enum Mask { NONE, ADDED, BOOLEAN, CAUSAL };

// Strides of rows, for the mask also of columns (`column`), and for keys and values also of pages, in elements.
template <class I>
struct Strides {
  I q, k, v, mask, sink, out, column, key_page, value_page;
};

// Where the keys and values of a batch are: one behind the other, or in pages.
template <bool PAGED>
struct KeyRows {
  const long long* length;

  template <class I, int R, int N>
  __device__ __forceinline__ void select_batch(const Axes<I, R, N>&, I) {}
  // Return the number of keys.
  template <class I>
  __device__ __forceinline__ I count(I keys) const {
    return length ? static_cast<I>(*length) : keys;
  }
  // Return whether the last key is a new one.
  __device__ __forceinline__ bool has_new() const { return true; }
  // Return the offset of a row from the first one. `valid` tells whether there is such a row.
  template <class I>
  __device__ __forceinline__ I offset(I row, bool valid, I stride, I page_stride) const {
    return row * stride;
  }
  // The same in two steps, for several rows in one page: the offset of the page, and that of a row.
  template <class I>
  __device__ __forceinline__ long long page(I row, bool valid, I page_stride) const {
    return 0;
  }
  template <class I>
  __device__ __forceinline__ I offset(long long page, I row, I stride) const {
    return row * stride;
  }
};
template <>
struct KeyRows<true> {
  const int* table;

  template <class I, int R, int N>
  __device__ __forceinline__ void select_batch(const Axes<I, R, N>& batch, I index) {
    I at[R];
    unravel(batch, index, at);
    table += ::offset(batch, at, N - 1);
  }
  template <class I>
  __device__ __forceinline__ I count(I) const {
    return static_cast<I>(table[1]);
  }
  __device__ __forceinline__ bool has_new() const { return table[0] < table[1]; }
  template <class I>
  __device__ __forceinline__ long long offset(I row, bool valid, I stride, I page_stride) const {
    return offset(page(row, valid, page_stride), row, stride);
  }
  template <class I>
  __device__ __forceinline__ long long page(I row, bool valid, I page_stride) const {
    return valid ? page_offset(table, row, page_stride) : 0;
  }
  template <class I>
  __device__ __forceinline__ long long offset(long long page, I row, I stride) const {
    return page + place_in_page(row) * stride;
  }
};

// Advance q, k, v and out to the batch with this index, and compute the batch's offsets in mask and sink.
template <class T, class Out, class I, int R, int N>
__device__ __forceinline__ void select_batch(const Axes<I, R, N>& batch, I index, const T*& q, const T*& k, const T*& v,
                                             I& mask_at, I& sink_at, Out*& out) {
  I at[R];
  unravel(batch, index, at);
  q += offset(batch, at, 0);
  k += offset(batch, at, 1);
  v += offset(batch, at, 2);
  mask_at = offset(batch, at, 3);
  sink_at = offset(batch, at, 4);
  out += offset(batch, at, 5);
}

// Operands of a batch: q, k, v, mask, sink, out and, where the output has codes, factors.
template <class Out>
constexpr int OPERANDS = sizeof(Out) == sizeof(signed char) ? 7 : 6;

// Conversion of results to elements of the output: to type T and, if the output has codes of 8 bits, from T to codes.
// `factors`, one per column of a batch, or null, multiply the elements before they are quantised.
template <class T, class Out>
struct Conversion {
  __device__ __forceinline__ Conversion(const float*, const Quantizer&) {}
  template <class I, int R, int N>
  __device__ __forceinline__ void select_batch(const Axes<I, R, N>&, I) {}
  template <int M, int N>
  __device__ __forceinline__ void load_factors(int, int, int, float (&)[M][N]) const {}
  __device__ __forceinline__ Out operator()(float x, float) const { return T(x); }
};
template <class T>
struct Conversion<T, signed char> {
  const float* factors;
  Quantizer quantizer;

  __device__ __forceinline__ Conversion(const float* factors, const Quantizer& quantizer)
      : factors(factors), quantizer(quantizer) {}
  template <class I, int R, int N>
  __device__ __forceinline__ void select_batch(const Axes<I, R, N>& batch, I index) {
    I at[R];
    unravel(batch, index, at);
    if (factors) factors += offset(batch, at, OPERANDS<signed char> - 1);
  }
  // Load the factors of N neighbouring columns each, M times, `step` apart.
  template <int M, int N>
  __device__ __forceinline__ void load_factors(int column, int step, int width, float (&factor)[M][N]) const {
#pragma unroll
    for (int i = 0; i < M * N; i++) factor[i / N][i % N] = 1.f;
    if (!factors) return;
#pragma unroll
    for (int i = 0; i < M * N; i++) {
      const int at = column + i / N * step + i % N;
      factor[i / N][i % N] = factors[at < width ? at : 0];
    }
  }
  __device__ __forceinline__ signed char operator()(float x, float factor) const {
    return quantizer(float(T(x)) * factor);
  }
};

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// Return the number that is subtracted from scores before exp: the maximum so far, or 0 while all keys of a row are
// hidden.
template <class A>
__device__ __forceinline__ A softmax_shift(A maximum) {
  return maximum == minus_infinity() ? A(0) : maximum;
}

// Return the score after masking. The mask's element for it is at offset `at`. Hidden keys get -inf.
template <class T, Mask MASK, class A, class I>
__device__ __forceinline__ A masked(A score, const void* mask, I at, I row, I key) {
  if (MASK == ADDED) return score + A(static_cast<const T*>(mask)[at]);
  if (MASK == BOOLEAN) return static_cast<const bool*>(mask)[at] ? score : minus_infinity();
  if (MASK == CAUSAL) return key <= row ? score : minus_infinity();
  return score;
}

constexpr int MAX_SPLITS = 128;  // ranges of keys

// Split the keys into at most `splits` ranges, whose length is a multiple of STEP. Return the number of ranges that
// have keys; [begin, end) is range number `own`.
template <int STEP, class I>
__device__ __forceinline__ int split_keys(I keys, I splits, I own, I& begin, I& end) {
  const I each = ((keys + splits - 1) / splits + STEP - 1) / STEP * STEP;
  begin = each * own;
  end = begin + each < keys ? begin + each : keys;
  return splits == 1 || !each ? 1 : static_cast<int>((keys + each - 1) / each);
}

// Return whether this block is the last of `splits` blocks to call the function. It can then read what the others wrote
// before their calls, with loads that bypass L1. `arrived` is zero before the first call and after the last; `last` is
// in shared memory.
__device__ __forceinline__ bool is_last_block(unsigned* arrived, unsigned splits, bool* last) {
  __syncthreads();
  if (threadIdx.x == 0) *last = increment_acquire_release(arrived, splits - 1) == splits - 1;
  __syncthreads();
  return *last;
}

// Merge the partial results of the splits, as in flash-decoding (Dao et al. 2023). A row of parts [splits][Q][pitch]
// has unnormalised sums and, at indices N and N + 1, the maximum of its scores and the total of its weights. `weight`
// [rows][splits] is in shared memory. A thread issues LOADS loads for each of two outputs before it uses the first.
// `sink` returns the sink of a row, or -inf; `write` takes row, column and value of an output.
template <int Q, int N, class A, class S, class W>
__device__ __forceinline__ void merge_splits(const A* parts, int splits, int pitch, A* weight, int rows, int width,
                                             const S& sink, const W& write) {
  constexpr int EACH = MAX_SPLITS / 32, LOADS = sizeof(A) == 4 ? 32 : 8;
  const int lane = threadIdx.x % 32, threads = static_cast<int>(blockDim.x), count = rows * width;
  int row[2], column[2];
  A loaded[2][LOADS];
  const auto fetch = [&](int first, int begin) {  // loads parts of two output elements
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int at = first + n * threads < count ? first + n * threads : first;
      row[n] = at / width, column[n] = at % width;
#pragma unroll
      for (int s = 0; s < LOADS; s++) {
        const bool valid = at < count && begin + s < splits;
        loaded[n][s] = valid ? __ldcg(parts + ((begin + s) * Q + row[n]) * pitch + column[n]) : A(0);
      }
    }
  };
  fetch(threadIdx.x, 0);
  for (int r = threadIdx.x / 32; r < rows; r += threads / 32) {
    const A sink_score = sink(r);
    A highest = sink_score, total = 0, maxima[EACH], totals[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int s = lane + i * 32;
      const A* maximum_and_total = parts + (s * Q + r) * pitch + N;
      maxima[i] = s < splits ? __ldcg(maximum_and_total) : A(minus_infinity());
      totals[i] = s < splits ? __ldcg(maximum_and_total + 1) : A(0);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) highest = math::max(highest, maxima[i]);
    for (int step = 16; step > 0; step /= 2) highest = math::max(highest, __shfl_xor_sync(0xffffffffu, highest, step));
    const A shift = softmax_shift(highest);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      maxima[i] = math::exp_fast(maxima[i] - shift);
      total += maxima[i] * totals[i];
    }
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    total += math::exp_fast(sink_score - shift);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (lane + i * 32 < splits) weight[r * splits + lane + i * 32] = maxima[i] / total;
    }
  }
  __syncthreads();
  for (int first = threadIdx.x; first < count; first += 2 * threads) {
    A sum[2] = {};
    for (int begin = 0; begin < splits; begin += LOADS) {
      if (first >= threads || begin > 0) fetch(first, begin);
#pragma unroll
      for (int s = 0; s < LOADS; s++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          if (begin + s < splits) sum[n] += weight[row[n] * splits + begin + s] * loaded[n][s];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) write(row[n], column[n], sum[n]);
  }
}
