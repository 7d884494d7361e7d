// Vectorised memory access: 16 bytes of neighbouring elements at once.
#pragma once

#include "common.cuh"

// Load V neighbouring elements: 16 bytes at once, or one element if V is 1. The address is aligned to their size.
// `store` is the reverse.
template <int V, class T>
__device__ __forceinline__ void load(const T* from, T (&to)[V]) {
  if constexpr (V == 1) {
    to[0] = *from;
  } else {
    static_assert(V * sizeof(T) == sizeof(uint4), "vectors have 16 bytes");
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    memcpy(to, &bits, sizeof(bits));
  }
}

template <int V, class T>
__device__ __forceinline__ void store(const T (&from)[V], T* to) {
  if constexpr (V == 1) {
    *to = from[0];
  } else {
    uint4 bits;
    memcpy(&bits, from, sizeof(bits));
    *reinterpret_cast<uint4*>(to) = bits;
  }
}
