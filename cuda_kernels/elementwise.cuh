// Parts shared by the generated elementwise kernels: vectorised loads and stores, and functions of single ops.
#pragma once

#include "ptx.cuh"
#include "strided.cuh"

// V neighbouring elements, at most 16 bytes in all.
template <typename T, int V>
struct alignas(sizeof(T) * V) Vector {
  T items[V];
};

// Load V elements, or only the first n of them one by one if n < V.
template <typename T, int V>
__device__ __forceinline__ void load(const T* from, int n, T (&to)[V]) {
  if (n >= V) {
    const Vector<T, V> vector = *reinterpret_cast<const Vector<T, V>*>(from);
#pragma unroll
    for (int i = 0; i < V; i++) to[i] = vector.items[i];
  } else {
    for (int i = 0; i < V; i++) to[i] = i < n ? from[i] : T();
  }
}

template <typename T, int V>
__device__ __forceinline__ void store(const T (&from)[V], int n, T* to) {
  if (n >= V) {
    Vector<T, V> vector;
#pragma unroll
    for (int i = 0; i < V; i++) vector.items[i] = from[i];
    *reinterpret_cast<Vector<T, V>*>(to) = vector;
  } else {
    for (int i = 0; i < n; i++) to[i] = from[i];
  }
}

// Return an integer raised to an integer power. Overflow wraps around. A negative exponent gives 0 unless the base is 1
// or -1.
template <typename T>
__device__ __forceinline__ T integer_power(T base, T exponent) {
  if (exponent < T(0)) return base == T(1) ? base : base == T(-1) ? (exponent % T(2) == T(0) ? T(1) : base) : T(0);
  unsigned long long power = 1, square = static_cast<unsigned long long>(base);
  for (T left = exponent; left != T(0); left = left / T(2)) {
    if (left % T(2) != T(0)) power *= square;
    square *= square;
  }
  return static_cast<T>(power);
}

// Round x to f16, then to the nearest f8 number, halfway cases to even. An f8 number has `bits` fraction bits and an
// exponent of at least `least`. Results saturate at `largest`.
__device__ __forceinline__ float nearest_f8(float x, float largest, int bits, int least) {
  const float half = static_cast<float>(__half(x));
  if (half > largest || half < -largest) return half < 0 ? -largest : largest;
  const int exponent = (__float_as_int(half) >> 23 & 255) - 127;                 // of an f32: 8 bits above 23, bias 127
  const float unit = __int_as_float((max(exponent, least) - bits + 127) << 23);  // 2^exponent of the last fraction bit
  return rintf(half / unit) * unit;
}
