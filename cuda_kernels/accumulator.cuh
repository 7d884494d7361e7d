// Accumulator types by element type.
#pragma once

#include "common.cuh"

// Type in which elements of type T are summed: float for 16-bit floats, 64-bit integers for integers. reduction.cu
// saturates 8-bit results; all other integer results wrap around.
template <class T>
struct Accumulator {
  using Type = long long;
};
template <>
struct Accumulator<float> {
  using Type = float;
};
template <>
struct Accumulator<__half> {
  using Type = float;
};
template <>
struct Accumulator<__nv_bfloat16> {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};
template <>
struct Accumulator<unsigned short> {
  using Type = unsigned long long;
};
template <>
struct Accumulator<unsigned> {
  using Type = unsigned long long;
};
template <>
struct Accumulator<unsigned long long> {
  using Type = unsigned long long;
};
