// The types that kernels compute in, by the type of the elements.
#pragma once

#include "common.cuh"

// What sums over elements are computed in. 8-bit integers saturate at the end, wider ones wrap.
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
