// Codes of 8 bits.
#pragma once

#include "common.cuh"

// round(x * reciprocal) within low and high, plus a zero point. shift is 1.5 * 2^23 (`ROUND` in ovgpu/ops/quantization.py)
// for ties to even, and zero the zero point; or both are greater and less by 1, for ties to odd.
struct Quantizer {
  float reciprocal, low, high, shift;
  int zero;

  __device__ __forceinline__ signed char operator()(float x) const {
    const float clipped = fminf(fmaxf(x * reciprocal, low), high);
    // the sum is a whole number, in the low bits
    return static_cast<signed char>(__float_as_int(clipped + shift) + zero);
  }
};
