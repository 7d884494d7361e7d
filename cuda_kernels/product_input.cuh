// Rows of x, the right operand of a product: elements as they are, or computed by a chain of layers, and normalised.
#pragma once

#include "codes.cuh"
#include "norms.cuh"

// Selectors of __byte_perm: pairs of the lower and of the upper halves of two words.
constexpr unsigned LOWER_HALVES = 0x5410, UPPER_HALVES = 0x7632;

// Return eight elements of x in the order of the pairs that Integers::convert gives.
template <int PER_WORD>
__device__ __forceinline__ uint4 reorder_pairs(const uint4& x) {
  if constexpr (PER_WORD != 8) {
    return x;
  } else {
    return {__byte_perm(x.x, x.z, LOWER_HALVES), __byte_perm(x.x, x.z, UPPER_HALVES),
            __byte_perm(x.y, x.w, LOWER_HALVES), __byte_perm(x.y, x.w, UPPER_HALVES)};
  }
}

// Types of x, as the right operand of mma: its type T, and the number of terms that elements are split into.
template <class X>
struct RightOperand {
  using T = X;
  static constexpr int TERMS = 1;
};
template <>
struct RightOperand<float> {
  using T = __nv_bfloat16;
  static constexpr int TERMS = 2;
};

template <class X>
__device__ __forceinline__ void load_elements(const X* from, X (&to)[CHUNK]) {
  constexpr int COUNT = sizeof(to) / sizeof(uint4);
  uint4 words[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++) words[i] = reinterpret_cast<const uint4*>(from)[i];
  memcpy(to, words, sizeof(to));
}

template <class X>
__device__ __forceinline__ void store_elements(const X (&from)[CHUNK], X* to) {
  constexpr int COUNT = sizeof(from) / sizeof(uint4);
  uint4 words[COUNT];
  memcpy(words, from, sizeof(from));
#pragma unroll
  for (int i = 0; i < COUNT; i++) reinterpret_cast<uint4*>(to)[i] = words[i];
}

// Split elements into terms, in the order of the pairs that Integers::convert gives.
template <int PER_WORD, class X>
__device__ __forceinline__ void split_terms(const X (&x)[CHUNK], uint4 (&terms)[1]) {
  uint4 words;
  memcpy(&words, x, sizeof(words));
  terms[0] = reorder_pairs<PER_WORD>(words);
}
template <int PER_WORD>
__device__ __forceinline__ void split_terms(const float (&x)[CHUNK], uint4 (&terms)[2]) {
  __nv_bfloat162 first[4], second[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    first[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    float rest[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {  // an infinite element has no rest
      const float rounded = j ? __high2float(first[i]) : __low2float(first[i]);
      rest[j] = fabsf(rounded) < __int_as_float(0x7f800000) ? x[2 * i + j] - rounded : 0.f;
    }
    second[i] = __floats2bfloat162_rn(rest[0], rest[1]);
  }
  memcpy(&terms[0], first, sizeof(first));
  memcpy(&terms[1], second, sizeof(second));
#pragma unroll
  for (int t = 0; t < 2; t++) terms[t] = reorder_pairs<PER_WORD>(terms[t]);
}

// Chain without layers. Other chains are generated, as a struct Chain.
struct Identity {
  template <class X, class At>
  static __device__ __forceinline__ X of(X x, const At&, const void*, const void*) {
    return x;
  }
};

struct RowStrides {
  int x, y, z;
};

// Up to three arrays that a chain takes, and the distances between their rows in elements.
template <class X>
struct Sources {
  const X *x, *y, *z;
  RowStrides stride;

  // Compute eight elements of a row.
  template <class Chain, int ARRAYS>
  __device__ __forceinline__ void compute(int row, int column, X (&to)[CHUNK]) const {
    X second[CHUNK], third[CHUNK];
    load_elements(x + row * stride.x + column, to);
    if constexpr (ARRAYS > 1) load_elements(y + row * stride.y + column, second);
    if constexpr (ARRAYS > 2) load_elements(z + row * stride.z + column, third);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) to[i] = Chain::of(to[i], [i](int) { return i; }, second, third);
  }
};

// ROWS rows of x in shared memory, as chunks of eight elements in the order in which warps read them: a lane reads
// CHUNKS chunks in a step of mma. Second terms follow first ones. The pitch is padded to avoid bank conflicts.
template <class X, int ROWS, int CHUNKS>
struct StagedRows {
  static constexpr int TERMS = RightOperand<X>::TERMS;
  static constexpr int PITCH = TERMS * ROWS * 4 + (ROWS == 1 ? 0 : CHUNKS == 4 ? 2 : 4);
  uint4* memory;

  __device__ __forceinline__ uint4* at(int chunk, int row) const {
    return memory + (chunk / (4 * CHUNKS) * CHUNKS + chunk % CHUNKS) * PITCH + chunk % (4 * CHUNKS) / CHUNKS + row * 4;
  }
  __device__ __forceinline__ void store(const uint4 (&words)[TERMS], uint4* to) const {
#pragma unroll
    for (int t = 0; t < TERMS; t++) to[t * ROWS * 4] = words[t];
  }
  // Store elements that are not yet normalised in the place of their terms.
  __device__ __forceinline__ void store(const X (&x)[CHUNK], uint4* to) const {
    uint4 words[TERMS];
    memcpy(words, x, sizeof(words));
    store(words, to);
  }
  __device__ __forceinline__ void load(const uint4* from, X (&x)[CHUNK]) const {
    uint4 words[TERMS];
#pragma unroll
    for (int t = 0; t < TERMS; t++) words[t] = from[t * ROWS * 4];
    memcpy(x, words, sizeof(words));
  }
};

constexpr int MAX_WARPS = 16;  // per block

// A norm of rows, with a scale and a shift [k] that may be null.
template <class X>
struct RowNorm {
  const X *scale, *shift;
  float eps;
  int mode;  // an Epsilon

  __device__ __forceinline__ void apply(X (&x)[CHUNK], int column, float mean, float factor) const {
    X scales[CHUNK], shifts[CHUNK];
    if (scale) load_elements(scale + column, scales);
    if (shift) load_elements(shift + column, shifts);
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
      float value = (float(x[i]) - mean) * factor;
      if (scale) value *= float(scales[i]);
      if (shift) value += float(shifts[i]);
      x[i] = X(value);
    }
  }
};

// The two halves of a sum over a block: each warp leaves its part in `parts`; after a barrier, every thread calls
// `sum_of`, which adds up the parts.
__device__ __forceinline__ void leave_part(float sum, float* parts, int thread) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (thread % 32 == 0) parts[thread / 32] = sum;
}
__device__ __forceinline__ float sum_of(const float* parts, int thread, int warps) {
  float sum = thread % MAX_WARPS < warps ? parts[thread % MAX_WARPS] : 0.f;
#pragma unroll
  for (int step = MAX_WARPS / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// Compute, normalise and stage rows of k elements, `chunks` chunks each, zeros behind the last one; `total` is null or
// receives the rows before the norm. All threads of a block call it.
template <Kind NORM, class Chain, int ARRAYS, int PER_WORD, class X, int ROWS, int CHUNKS>
__device__ __forceinline__ void stage_normalized(const Sources<X>& sources, const RowNorm<X>& norm,
                                                 const StagedRows<X, ROWS, CHUNKS>& staged, X* total, int rows, int k,
                                                 int chunks, int thread, int warps) {
  OVGPU_SHARED(float, sums, [ROWS][MAX_WARPS]);
  OVGPU_SHARED(float, squares, [ROWS][MAX_WARPS]);
  float mean[ROWS] = {};
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    float sum = 0;
    for (int chunk = thread; chunk < chunks; chunk += 32 * warps) {
      X x[CHUNK] = {};
      if (row < rows && chunk * CHUNK < k) {
        sources.template compute<Chain, ARRAYS>(row, chunk * CHUNK, x);
        if (ARRAYS > 1 && total) store_elements(x, total + (row * k + chunk * CHUNK));
      }
      staged.store(x, staged.at(chunk, row));
#pragma unroll
      for (int i = 0; i < CHUNK; i++) sum += NORM == MVN ? float(x[i]) : float(x[i]) * float(x[i]);
    }
    leave_part(sum, NORM == MVN ? sums[row] : squares[row], thread);
  }
  __syncthreads();
  if constexpr (NORM == MVN) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      mean[row] = sum_of(sums[row], thread, warps) / static_cast<float>(k);
      float sum = 0;
      for (int chunk = thread; chunk * CHUNK < k; chunk += 32 * warps) {
        X x[CHUNK];
        staged.load(staged.at(chunk, row), x);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) sum += (float(x[i]) - mean[row]) * (float(x[i]) - mean[row]);
      }
      leave_part(sum, squares[row], thread);
    }
    __syncthreads();
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    if (row >= rows) break;
    const float factor = norm_factor(sum_of(squares[row], thread, warps) / static_cast<float>(k), norm.eps, norm.mode);
    for (int chunk = thread; chunk * CHUNK < k; chunk += 32 * warps) {
      X x[CHUNK];
      uint4* const at = staged.at(chunk, row);
      staged.load(at, x);
      norm.apply(x, chunk * CHUNK, mean[row], factor);
      uint4 terms[RightOperand<X>::TERMS];
      split_terms<PER_WORD>(x, terms);
      staged.store(terms, at);
    }
  }
}
