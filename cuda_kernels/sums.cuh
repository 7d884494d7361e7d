// Accumulator types for sums of products, and the conversion of a sum to an element: 8-bit integers saturate, wider
// ones wrap around.
#pragma once

#include "common.cuh"

template <class T>
struct Sum {
  using Type = unsigned long long;
  static __device__ T result(Type sum) { return T(sum); }
};
template <>
struct Sum<signed char> {
  using Type = long long;
  static __device__ signed char result(Type sum) { return sum < -128 ? -128 : sum > 127 ? 127 : sum; }
};
template <>
struct Sum<unsigned char> {
  using Type = unsigned long long;
  static __device__ unsigned char result(Type sum) { return sum > 255 ? 255 : sum; }
};
template <>
struct Sum<float> {
  using Type = float;
  static __device__ float result(float sum) { return sum; }
};
template <>
struct Sum<double> {
  using Type = double;
  static __device__ double result(double sum) { return sum; }
};
template <>
struct Sum<__half> : Sum<float> {};
template <>
struct Sum<__nv_bfloat16> : Sum<float> {};
