// Kinds of norms, and their factors.
#pragma once

#include "math.cuh"

enum Kind { CENTRE, MVN, L2, NONZERO, RMS, PLAIN };  // NONZERO: 1 wherever x is not 0; PLAIN: x itself
enum Epsilon { INSIDE, OUTSIDE, BOUND };  // eps: in the root, added to the root, or lower bound of its argument

// Return the factor of the elements, given the mean of their squares (the sum, for L2).
template <class A>
__device__ __forceinline__ A norm_factor(A squares, A eps, int mode) {
  return A(1) / (mode == INSIDE    ? math::sqrt(squares + eps)
                 : mode == OUTSIDE ? math::sqrt(squares) + eps
                                   : math::sqrt(math::max(squares, eps)));
}

template <int KIND, class A>
__device__ __forceinline__ A normalized(A value, A mean, A factor) {
  return KIND == NONZERO ? A(value != A(0)) : (value - mean) * factor;
}
