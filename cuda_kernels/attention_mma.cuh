// Helpers of the kernels of attention on tensor cores.
#pragma once

#include "attention.cuh"
#include "ptx.cuh"

constexpr int CHUNK = 8;  // elements of 16 bits in 16 bytes

// x and y as neighbours in a register.
template <class T>
__device__ unsigned rounded(float x, float y);
template <>
__device__ __forceinline__ unsigned rounded<__half>(float x, float y) {
  const __half2 both = __floats2half2_rn(x, y);
  unsigned bits;
  memcpy(&bits, &both, sizeof(bits));
  return bits;
}
template <>
__device__ __forceinline__ unsigned rounded<__nv_bfloat16>(float x, float y) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
  unsigned bits;
  memcpy(&bits, &both, sizeof(bits));
  return bits;
}

// The fold over the four lanes that have a row.
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

// Returns whether every group of V neighbouring elements in the rows of a mask can be read by one load. The elements
// are of type T, and a row has `keys` of them.
template <class T, int V, class I>
__device__ __forceinline__ bool is_vectored(const void* mask, I at, I row_stride, I column_stride, I keys) {
  return column_stride == 1 && at % V == 0 && row_stride % V == 0 && keys % V == 0 &&
         reinterpret_cast<unsigned long long>(mask) % (sizeof(T) * V) == 0;
}
