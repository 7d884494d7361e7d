// Divisions by numbers that are known when a kernel is launched.
#pragma once

#include "common.cuh"

// Division of numbers below 2^31 by `value`: a multiplication and a shift. `reciprocal` in ovgpu/ops/base/strided.py
// computes `magic` and `shift`.
struct Divisor {
  int value, magic, shift;

  __device__ __forceinline__ int quotient(int n) const {
    const unsigned dividend = n;
    const unsigned high = static_cast<unsigned long long>(dividend) * static_cast<unsigned>(magic) >> 32;
    return static_cast<int>((high + dividend) >> shift);
  }
};
