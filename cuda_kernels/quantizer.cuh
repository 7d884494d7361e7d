// Codes of 8 bits.
#pragma once

#include "common.cuh"

// Quantization: round(x * reciprocal), limited to [low, high], plus a zero point. For ties to even, shift is 1.5 * 2^23
// (`ROUND` in ovgpu/ops/quantization.py), and zero is the zero point. For ties to odd, shift is greater by 1, and zero
// is less by 1.
struct Quantizer {
  float reciprocal, low, high, shift;
  int zero;

  __device__ __forceinline__ signed char operator()(float x) const {
    const float clipped = fminf(fmaxf(x * reciprocal, low), high);
    // The shift rounds: an f32 near 1.5 * 2^23 is a whole number, and its low bits are the code less the zero point.
    return static_cast<signed char>(__float_as_int(clipped + shift) + zero);
  }
};
