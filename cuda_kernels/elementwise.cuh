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

// The nearest number with so many bits after the point, a half to the even one, whose exponent is no less than `least`;
// at most `largest`. Rounded to f16 before.
__device__ __forceinline__ float nearest_f8(float x, float largest, int bits, int least) {
  const float half = static_cast<float>(__half(x));
  if (half > largest || half < -largest) return half < 0 ? -largest : largest;
  const int exponent = (__float_as_int(half) >> 23 & 255) - 127;
  const float unit = __int_as_float((max(exponent, least) - bits + 127) << 23);
  return rintf(half / unit) * unit;
}
