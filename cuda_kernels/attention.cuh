// What the kernels of attention share. Rows of q, k, v and out have a unit stride; broadcast batch axes have stride 0.
// With `length`, that is the number of keys, of which `keys` is a bound.
#pragma once

#include "strided.cuh"

enum Mask { NONE, ADDED, BOOLEAN, CAUSAL };

// Strides of rows, and of the mask's columns, in elements.
template <class I>
struct Strides {
  I q, k, v, mask, sink, out, column;
};

// Moves q, k, v and out to a batch of theirs; where it begins in mask and sink.
template <class T, class I, int R>
__device__ __forceinline__ void enter(const Axes<I, R, 6>& batch, I index, const T*& q, const T*& k, const T*& v,
                                      I& mask_at, I& sink_at, T*& out) {
  I at[R];
  unravel(batch, index, at);
  q += offset(batch, at, 0);
  k += offset(batch, at, 1);
  v += offset(batch, at, 2);
  mask_at = offset(batch, at, 3);
  sink_at = offset(batch, at, 4);
  out += offset(batch, at, 5);
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

// What is subtracted before exp: a row that has seen only hidden keys has no maximum yet.
template <class A>
__device__ __forceinline__ A subtrahend(A maximum) {
  return maximum == minus_infinity() ? A(0) : maximum;
}

template <class T, Mask MASK, class A, class I>
__device__ __forceinline__ A masked(A score, const void* mask, I at, I row, I key) {
  if (MASK == ADDED) return score + A(static_cast<const T*>(mask)[at]);
  if (MASK == BOOLEAN) return static_cast<const bool*>(mask)[at] ? score : minus_infinity();
  if (MASK == CAUSAL) return key <= row ? score : minus_infinity();
  return score;
}
