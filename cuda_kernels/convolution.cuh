// Geometry of convolutions, and epilogues: elementwise layers that a kernel applies to its sums.
#pragma once

#include "common.cuh"

// Geometry of a convolution: x [batch, groups * channels, size...], y [batch, groups * outputs, extent...]. The kernel
// is dense. x and y hold strides in elements: batch, channel, spatial axes.
template <class I>
struct Window {
  I size[3], extent[3], kernel[3], stride[3], dilation[3], begin[3];
  I x[5], y[5];
  I batch, groups, channels, outputs;
};

template <class I>
__device__ __forceinline__ I volume(const I (&extent)[3]) {
  return extent[0] * extent[1] * extent[2];
}

template <class I>
__device__ __forceinline__ void unravel(I index, const I (&extent)[3], I (&at)[3]) {
  at[2] = index % extent[2];
  at[1] = index / extent[2] % extent[1];
  at[0] = index / extent[2] / extent[1];
}

// Return the offset of spatial coordinates in a tensor with these strides.
template <class I>
__device__ __forceinline__ I offset(const I (&at)[3], const I (&stride)[5]) {
  return at[0] * stride[2] + at[1] * stride[3] + at[2] * stride[4];
}

// Maximum number of operands of an epilogue, which broadcast to y. Their strides are ordered as those of y in Window.
constexpr int OPERANDS = 4;

template <class I>
struct Operands {
  I stride[OPERANDS][5];
};

// Offsets into the operands of an epilogue for one element of y.
template <class I>
struct OperandOffsets {
  const Operands<I>& of;
  I pixel[OPERANDS], channel;

  __device__ __forceinline__ OperandOffsets(const Operands<I>& of, I image, const I (&at)[3], I channel = 0)
      : of(of), channel(channel) {
#pragma unroll
    for (int n = 0; n < OPERANDS; n++) pixel[n] = image * of.stride[n][0] + offset(at, of.stride[n]);
  }

  __device__ __forceinline__ I operator()(int n) const { return pixel[n] + channel * of.stride[n][1]; }
};

// Identity epilogue. Fused elementwise layers generate others (struct Epilogue), which are applied to each sum.
struct IdentityEpilogue {
  template <class T, class At>
  static __device__ __forceinline__ T of(T x, const At&, const void*, const void*, const void*, const void*) {
    return x;
  }
};
