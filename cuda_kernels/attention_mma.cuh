// Helpers of the attention kernels on tensor cores.
#pragma once

#include "attention.cuh"
#include "divisor.cuh"
#include "ptx.cuh"

template <class T>
constexpr int CHUNK = 16 / sizeof(T);  // elements in 16 bytes

// Return the bits of x, rounded to TF32; the low IGNORED_BITS are arbitrary. Infinities and NaN are kept.
constexpr int IGNORED_BITS = 13;  // of an f32, which mma ignores in TF32
__device__ __forceinline__ unsigned round_to_tf32(float x) {
  constexpr unsigned HALF_UNIT = 1u << (IGNORED_BITS - 1);  // half a unit of the last place that counts
  return __float_as_uint(x) + (fabsf(x) < -minus_infinity() ? HALF_UNIT : 0u);
}

// Return x and y in one register, rounded to type T; x is in the low half.
template <class T>
__device__ unsigned pack_rounded(float x, float y);
template <>
__device__ __forceinline__ unsigned pack_rounded<__half>(float x, float y) {
  const __half2 pair = __floats2half2_rn(x, y);
  unsigned bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
template <>
__device__ __forceinline__ unsigned pack_rounded<__nv_bfloat16>(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  unsigned bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Reduce over the four lanes that share a row of an mma result.
__device__ __forceinline__ float row_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class T, int V>
struct __align__(sizeof(T) * V) Packed {
  T at[V];
};

// Store x and y, converted to neighbouring elements, if `valid`. Their address is aligned to both.
template <class T, class C>
__device__ __forceinline__ void store_pair(float x, float y, const float (&)[2], const C&, T* to, bool valid) {
  if (valid) *reinterpret_cast<unsigned*>(to) = pack_rounded<T>(x, y);
}
template <class C>
__device__ __forceinline__ void store_pair(float x, float y, const float (&)[2], const C&, float* to, bool valid) {
  if (valid) *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
template <class C>
__device__ __forceinline__ void store_pair(float x, float y, const float (&factor)[2], const C& convert,
                                           signed char* to, bool valid) {
  const Packed<signed char, 2> pair = {convert(x, factor[0]), convert(y, factor[1])};
  if (valid) *reinterpret_cast<Packed<signed char, 2>*>(to) = pair;
}

// Rows of several heads that share keys: row r is query r % queries of head r / queries. The members are the number of
// queries, and how far the rows of neighbouring heads are apart.
struct Heads {
  Divisor queries;
  int q, mask, sink, out;

  // Return the offset of a row, for the strides of rows and of heads. ONE: there is one head.
  template <bool ONE, class I>
  __device__ __forceinline__ I offset(I row, I stride, int head_stride) const {
    if (ONE) return row * stride;
    const int head = queries.quotient(static_cast<int>(row));
    return head * head_stride + (row - head * queries.value) * stride;
  }
};

template <class T, bool FLAGS>
struct ElementOfMask {
  using Type = T;
};
template <class T>
struct ElementOfMask<T, true> {
  using Type = bool;
};
template <class T, Mask MASK>
using MaskElement = typename ElementOfMask<T, MASK == BOOLEAN>::Type;

// Return whether every group of V neighbouring elements in the rows of a mask can be read by one load. The elements are
// of type T, and a row has `keys` of them.
template <class T, int V, class I>
__device__ __forceinline__ bool is_vectored(const void* mask, I at, I row_stride, I column_stride, I keys) {
  return column_stride == 1 && at % V == 0 && row_stride % V == 0 && keys % V == 0 &&
         reinterpret_cast<unsigned long long>(mask) % (sizeof(T) * V) == 0;
}
