// Weighted sums of elements, as interpolation needs them: accumulator types, rounding, and the sum.
#pragma once

#include "common.cuh"

// Type in which elements of type T are summed: double for double, else float, as on the CPU.
template <typename T>
struct Real {
  using Type = float;
};
template <>
struct Real<double> {
  using Type = double;
};

// Conversion of a sum to an element. Integers are rounded, halfway cases to even, and saturate at their type's limits,
// or at the nearest f32 within them.
template <typename U>
struct Element {
  template <typename Sum>
  static __device__ __forceinline__ U of(Sum sum) {
    return static_cast<U>(sum);
  }
};
#define ELEMENT_OF_INTEGERS(U, low, high)                                \
  template <>                                                            \
  struct Element<U> {                                                    \
    template <typename Sum>                                              \
    static __device__ __forceinline__ U of(Sum sum) {                    \
      return static_cast<U>(fmin(fmax(rint(sum), Sum(low)), Sum(high))); \
    }                                                                    \
  }
ELEMENT_OF_INTEGERS(signed char, -128.0f, 127.0f);
ELEMENT_OF_INTEGERS(unsigned char, 0.0f, 255.0f);
ELEMENT_OF_INTEGERS(short, -32768.0f, 32767.0f);
ELEMENT_OF_INTEGERS(unsigned short, 0.0f, 65535.0f);
ELEMENT_OF_INTEGERS(int, -2147483648.0f, 2147483520.0f);
ELEMENT_OF_INTEGERS(unsigned, 0.0f, 4294967040.0f);
ELEMENT_OF_INTEGERS(long long, -9223372036854775808.0f, 9223371487098961920.0f);
ELEMENT_OF_INTEGERS(unsigned long long, 0.0f, 18446742974197923840.0f);

// Return the weighted sum over the P taps along each of axes k to K - 1. Elements with a weight of 0 are not read.
template <int k, int P, int K, typename T, typename I, typename Weight>
__device__ __forceinline__ typename Real<T>::Type sum(const T* __restrict__ x, const I (&offsets)[K][P],
                                                      const Weight (&weight)[K][P]) {
  typename Real<T>::Type weighted_sum = 0;
#pragma unroll
  for (int p = 0; p < P; p++) {
    if (weight[k][p] != 0) {
      if constexpr (k + 1 < K)
        weighted_sum += weight[k][p] * sum<k + 1>(x + offsets[k][p], offsets, weight);
      else
        weighted_sum += weight[k][p] * static_cast<typename Real<T>::Type>(x[offsets[k][p]]);
    }
  }
  return weighted_sum;
}
