// Conversions from and to 8-bit floats and types below 8 bits, which have no casts: by tables that the host computes.
#include "strided.cuh"

// Value of each byte. T only determines the size of elements.
template <typename T>
struct Table {
  T values[256];
};

// Step function that rounds floats to one of at most 256 codes: code[n] for numbers x with bound[n - 1] <=
// ordered_bits(x) < bound[n].
struct StepFunction {
  int bound[255];
  unsigned char code[256], nan;
};

// Return the bits of a float as an int that compares like the float, with -0 below 0.
__device__ __forceinline__ int ordered_bits(float x) {
  const int bits = __float_as_int(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

__device__ __forceinline__ unsigned char encode_float(float x, const StepFunction& steps) {
  if (x != x) return steps.nan;
  const int key = ordered_bits(x);
  int n = 0;
#pragma unroll
  for (int half = 128; half; half /= 2)
    if (steps.bound[n + half - 1] <= key) n += half;
  return steps.code[n];
}

// Return the low bits of an integer, or of a float truncated to an int; 0 if an int cannot hold the truncated float.
template <typename T>
__device__ __forceinline__ unsigned low_bits(T x) {
  return static_cast<unsigned>(x);
}

__device__ __forceinline__ unsigned low_bits_of_float(double x) {  // -2^31 - 1 < x < 2^31
  return x > -2147483649.0 && x < 2147483648.0 ? static_cast<unsigned>(static_cast<int>(x)) : 0u;
}
template <>
__device__ __forceinline__ unsigned low_bits(float x) {
  return low_bits_of_float(x);
}
template <>
__device__ __forceinline__ unsigned low_bits(double x) {
  return low_bits_of_float(x);
}
template <>
__device__ __forceinline__ unsigned low_bits(__half x) {
  return low_bits_of_float(static_cast<float>(x));
}
template <>
__device__ __forceinline__ unsigned low_bits(__nv_bfloat16 x) {
  return low_bits_of_float(static_cast<float>(x));
}

// Operands of the axes: x, y.
#define FOR_EACH_ELEMENT(statement)                     \
  const I first = first_item<I>();                      \
  _Pragma("unroll") for (int k = 0; k < ITEMS; k++) {   \
    const I i = first + k * static_cast<I>(blockDim.x); \
    if (i >= size) return;                              \
    I at[R];                                            \
    unravel(axes, i, at);                               \
    y[offset(axes, at, 1)] = statement;                 \
  }

// Convert bytes to any type.
template <typename T, typename I, int R>
__global__ void decode(const unsigned char* __restrict__ x, T* __restrict__ y, const Table<T> table,
                       const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(table.values[x[offset(axes, at, 0)]])
}

// Convert elements to 8-bit floats, by way of f32.
template <typename T, typename I, int R>
__global__ void encode(const T* __restrict__ x, unsigned char* __restrict__ y, const StepFunction steps,
                       const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(encode_float(static_cast<float>(x[offset(axes, at, 0)]), steps))
}

// Convert numbers to integers of fewer than 8 bits. The table maps the low bits to bytes.
template <typename T, typename I, int R>
__global__ void encode_low(const T* __restrict__ x, unsigned char* __restrict__ y, const Table<unsigned char> table,
                           unsigned mask, const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(table.values[low_bits(x[offset(axes, at, 0)]) & mask])
}
