// Codes of 8 bits.
#pragma once

#include "common.cuh"

// round(x * reciprocal) within low and high, plus zero; ties are rounded to even.
struct Quantizer {
  float reciprocal, low, high;
  int zero;

  __device__ __forceinline__ signed char operator()(float x) const {
    const float clipped = fminf(fmaxf(x * reciprocal, low), high);
    // adding 1.5 * 2^23 rounds to a whole number, in the low bits
    return static_cast<signed char>(__float_as_int(clipped + 12582912.f) + zero);
  }
};
