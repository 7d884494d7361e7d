// Elements that are weighted sums of others: what they are computed in, how they are rounded, and the sum.
#pragma once

#include "common.cuh"

// Sums of 16-bit floats and of integers are computed in float, as on the CPU.
template <typename T>
struct Real {
  using Type = float;
};
template <>
struct Real<double> {
  using Type = double;
};

// A sum as an element: integers are rounded, halves to even, and saturate at the last number that a float can be.
template <typename U>
struct Element {
  template <typename Sum>
  static __device__ __forceinline__ U of(Sum sum) {
    return static_cast<U>(sum);
  }
};
#define ELEMENT_OF_INTEGERS(U, low, high)                                                    \
  template <>                                                                                \
  struct Element<U> {                                                                        \
    template <typename Sum>                                                                  \
    static __device__ __forceinline__ U of(Sum sum) {                                        \
      return static_cast<U>(fmin(fmax(rint(sum), Sum(low)), Sum(high)));                     \
    }                                                                                        \
  }
ELEMENT_OF_INTEGERS(signed char, -128.0f, 127.0f);
ELEMENT_OF_INTEGERS(unsigned char, 0.0f, 255.0f);
ELEMENT_OF_INTEGERS(short, -32768.0f, 32767.0f);
ELEMENT_OF_INTEGERS(unsigned short, 0.0f, 65535.0f);
ELEMENT_OF_INTEGERS(int, -2147483648.0f, 2147483520.0f);
ELEMENT_OF_INTEGERS(unsigned, 0.0f, 4294967040.0f);
ELEMENT_OF_INTEGERS(long long, -9223372036854775808.0f, 9223371487098961920.0f);
ELEMENT_OF_INTEGERS(unsigned long long, 0.0f, 18446742974197923840.0f);

// The sum of P^K elements from axis k on. What weighs nothing is not read.
template <int k, int P, int K, typename T, typename I, typename Weight>
__device__ __forceinline__ typename Real<T>::Type sum(const T* __restrict__ x, const I (&place)[K][P],
                                                      const Weight (&weight)[K][P]) {
  typename Real<T>::Type total = 0;
#pragma unroll
  for (int p = 0; p < P; p++) {
    if (weight[k][p] != 0) {
      if constexpr (k + 1 < K) total += weight[k][p] * sum<k + 1>(x + place[k][p], place, weight);
      else total += weight[k][p] * static_cast<typename Real<T>::Type>(x[place[k][p]]);
    }
  }
  return total;
}
