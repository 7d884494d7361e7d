// What generated elementwise kernels share: vectors of neighbouring elements, loaded and stored at once.
#pragma once

#include "strided.cuh"

// V neighbouring elements of up to 16 bytes in all.
template <typename T, int V>
struct alignas(sizeof(T) * V) Vector {
  T items[V];
};

// V elements; only the first n of them, element by element, if there are no more.
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

// An integer to an integral power, which wraps as products do; a negative power is truncated: 0, but for 1 and -1.
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

// The nearest number with so many bits after the point, a half to the even one, whose exponent is no less than `least`;
// at most `largest`. Rounded to f16 before.
__device__ __forceinline__ float nearest_f8(float x, float largest, int bits, int least) {
  const float half = static_cast<float>(__half(x));
  if (half > largest || half < -largest) return half < 0 ? -largest : largest;
  const int exponent = (__float_as_int(half) >> 23 & 255) - 127;
  const float unit = __int_as_float((max(exponent, least) - bits + 127) << 23);
  return rintf(half / unit) * unit;
}
