// Convert from and to the types of a byte and less, which have no casts: by tables that the host has made.
#include "strided.cuh"

// One value per byte; T stands for elements of its size.
template <typename T>
struct Table {
  T of[256];
};

// What rounds a float to one of at most 256 codes: code[n] for the numbers between bound[n - 1] and bound[n], bounds
// in the order of `ordered`.
struct Steps {
  int bound[255];
  unsigned char code[256], nan;
};

// The bits of floats, so that they compare as the floats do, -0 below 0.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}

__device__ __forceinline__ unsigned char coded(float x, const Steps& steps) {
  if (x != x) return steps.nan;
  const int key = ordered(x);
  int n = 0;
#pragma unroll
  for (int half = 128; half; half /= 2)
    if (steps.bound[n + half - 1] <= key) n += half;
  return steps.code[n];
}

// The low bits of an integer, of a float cut off to one; 0 of what no int holds.
template <typename T>
__device__ __forceinline__ unsigned low(T x) {
  return static_cast<unsigned>(x);
}

__device__ __forceinline__ unsigned low_of_float(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? static_cast<unsigned>(static_cast<int>(x)) : 0u;
}
template <>
__device__ __forceinline__ unsigned low(float x) { return low_of_float(x); }
template <>
__device__ __forceinline__ unsigned low(double x) { return low_of_float(x); }
template <>
__device__ __forceinline__ unsigned low(__half x) { return low_of_float(static_cast<float>(x)); }
template <>
__device__ __forceinline__ unsigned low(__nv_bfloat16 x) { return low_of_float(static_cast<float>(x)); }

// Operands of the axes: x, y.
#define FOR_EACH_ELEMENT(statement)                       \
  const I first = first_item<I>();                        \
  _Pragma("unroll") for (int k = 0; k < ITEMS; k++) {     \
    const I i = first + k * static_cast<I>(blockDim.x);   \
    if (i >= size) return;                                \
    I at[R];                                              \
    unravel(axes, i, at);                                 \
    y[offset(axes, at, 1)] = statement;                   \
  }

// From a byte to anything.
template <typename T, typename I, int R>
__global__ void decode(const unsigned char* __restrict__ x, T* __restrict__ y, const Table<T> table,
                       const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(table.of[x[offset(axes, at, 0)]])
}

// From what has a cast to f32, to floats of a byte.
template <typename T, typename I, int R>
__global__ void encode(const T* __restrict__ x, unsigned char* __restrict__ y, const Steps steps,
                       const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(coded(static_cast<float>(x[offset(axes, at, 0)]), steps))
}

// From numbers to integers of fewer than 8 bits; the table has the bytes of the low bits.
template <typename T, typename I, int R>
__global__ void encode_low(const T* __restrict__ x, unsigned char* __restrict__ y, const Table<unsigned char> table,
                           unsigned mask, const Axes<I, R, 2> axes, I size) {
  FOR_EACH_ELEMENT(table.of[low(x[offset(axes, at, 0)]) & mask])
}
