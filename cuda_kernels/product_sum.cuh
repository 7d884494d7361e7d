// Accumulator types for sums of products, and the conversion of a sum to an element: 8-bit integers saturate, wider
// ones wrap around.
#pragma once

#include "common.cuh"

template <class T>
struct ProductSum {
  using Type = unsigned long long;
  static __device__ T result(Type sum) { return T(sum); }
};
template <>
struct ProductSum<signed char> {
  using Type = long long;
  static __device__ signed char result(Type sum) { return sum < -128 ? -128 : sum > 127 ? 127 : sum; }
};
template <>
struct ProductSum<unsigned char> {
  using Type = unsigned long long;
  static __device__ unsigned char result(Type sum) { return sum > 255 ? 255 : sum; }
};
template <>
struct ProductSum<float> {
  using Type = float;
  static __device__ float result(float sum) { return sum; }
};
template <>
struct ProductSum<double> {
  using Type = double;
  static __device__ double result(double sum) { return sum; }
};
template <>
struct ProductSum<__half> : ProductSum<float> {};
template <>
struct ProductSum<__nv_bfloat16> : ProductSum<float> {};
