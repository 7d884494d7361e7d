// Parts shared by kernels that normalise groups of channels: moments of sets of elements, and epilogues.
#pragma once

#include "math.cuh"

// Count, mean, and sum of squared deviations from the mean of a set of elements. Merge combines two sets by the
// parallel formula of Chan, Golub & LeVeque (1979).
template <class A>
struct Moments {
  A count, mean, squares;

  // Return the factor that normalises deviations from the mean. eps is added to the variance if `inside`, else to its
  // square root.
  __device__ __forceinline__ A factor(A eps, bool inside) const {
    const A variance = squares / count;
    return A(1) / (inside ? math::sqrt(variance + eps) : math::sqrt(variance) + eps);
  }
};

struct Merge {
  template <class A>
  __device__ __forceinline__ Moments<A> operator()(Moments<A> a, Moments<A> b) const {
    const A count = a.count + b.count, difference = b.mean - a.mean;
    const A part = count > A(0) ? b.count / count : A(0);
    return {count, a.mean + difference * part, a.squares + b.squares + difference * difference * a.count * part};
  }
};

// Broadcast of an input of an epilogue to the result: it has all elements; one per image and channel; one per channel;
// or a single one. `kinds` packs the broadcasts of several inputs, BROADCAST_BITS for each; input 0 has the lowest
// bits.
enum Broadcast { ELEMENT, IMAGE_CHANNEL, CHANNEL, SINGLE };
constexpr int BROADCAST_BITS = 2;
static_assert(SINGLE < 1 << BROADCAST_BITS, "a broadcast fits in its bits");

__device__ __forceinline__ Broadcast broadcast_of(unsigned kinds, int n) {
  return static_cast<Broadcast>(kinds >> BROADCAST_BITS * n & ((1 << BROADCAST_BITS) - 1));
}

// Identity epilogue. Fused elementwise layers generate others (struct Epilogue), which are applied to each result. `at`
// tells the index of the element of each other input.
struct IdentityEpilogue {
  template <class T, class At>
  static __device__ __forceinline__ T of(T x, const At&, const void*, const void*, const void*) {
    return x;
  }
};
