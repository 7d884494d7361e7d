// Several neighbouring elements in one access.
#pragma once

#include "common.cuh"

// V neighbouring elements at once: 16 bytes, or one element. The address is a multiple of their size.
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
