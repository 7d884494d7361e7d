// Tokens of KV caches that are stored in another type than attention computes in: f16, bf16, or rows of u8. A row of u8
// has a code for each element, then the parameters in f32; see ovgpu/ops/fused/stored_tokens.py.
#pragma once

#include "strided.cuh"

constexpr int PARAMETER_BYTES = 8;
constexpr int LARGEST_CODE = 255;

// Whether tokens of type T are stored in another type C.
template <class T, class C>
constexpr bool IS_STORED = true;
template <class T>
constexpr bool IS_STORED<T, T> = false;

// Advance q, k, v and out to a batch, as the function in attention.cuh does for keys and values of type T.
template <class T, class C, class Out, class I, int R, int N>
__device__ __forceinline__ void select_batch(const Axes<I, R, N>& batch, I index, const T*& q, const C*& k, const C*& v,
                                             I& mask_at, I& sink_at, Out*& out) {
  I at[R];
  unravel(batch, index, at);
  q += offset(batch, at, 0);
  k += offset(batch, at, 1);
  v += offset(batch, at, 2);
  mask_at = offset(batch, at, 3);
  sink_at = offset(batch, at, 4);
  out += offset(batch, at, 5);
}

// Parameters of a row of u8: an element is minimum + scale * code.
struct RowParameters {
  float scale, minimum;

  __device__ __forceinline__ float restore(float code) const { return fmaf(code, scale, minimum); }
};

// Load the parameters behind the codes of a row. V: the row is aligned to this many bytes.
template <int V>
__device__ __forceinline__ RowParameters load_parameters(const unsigned char* at) {
  RowParameters parameters;
  if constexpr (V % sizeof(RowParameters) == 0) {
    const float2 both = *reinterpret_cast<const float2*>(at);
    parameters = {both.x, both.y};
  } else if constexpr (V % sizeof(float) == 0) {
    const float* const each = reinterpret_cast<const float*>(at);
    parameters = {each[0], each[1]};
  } else {
    unsigned char bytes[PARAMETER_BYTES];
#pragma unroll
    for (int i = 0; i < PARAMETER_BYTES; i++) bytes[i] = at[i];
    memcpy(&parameters, bytes, PARAMETER_BYTES);
  }
  return parameters;
}

// Return code `i` of four as a number. The bits of 2^23 + code are those of 2^23 with the code as their low byte.
__device__ __forceinline__ float code_of(unsigned codes, int i) {
  constexpr unsigned BITS = 0x4b000000;  // of 2^23
  return __int_as_float(static_cast<int>(__byte_perm(codes, BITS, 0x7440 + i))) - 8388608.f;
}

// Minimum and maximum, or NaN if either argument is NaN.
__device__ __forceinline__ float lower(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float higher(float a, float b) { return a > b || a != a ? a : b; }

// Return x in a type of 16 bits; numbers beyond its range become its largest ones.
template <class C>
constexpr float LARGEST = 65504.f;
template <>
constexpr float LARGEST<__nv_bfloat16> = 3.3895313892515355e38f;
template <class C>
__device__ __forceinline__ C limited(float x) {
  return C(x - x != 0 ? x : fminf(fmaxf(x, -LARGEST<C>), LARGEST<C>));
}

// Store a row of `width` elements; element(i) returns element i. The `lanes` neighbouring lanes of a warp call it
// together, each with its own index `lane`; their number is a power of two.
template <class C, class I, class E>
__device__ __forceinline__ void store_row(C* to, I width, int lane, int lanes, const E& element) {
  for (I i = lane; i < width; i += lanes) to[i] = limited<C>(element(i));
}
template <class I, class E>
__device__ __forceinline__ void store_row(unsigned char* to, I width, int lane, int lanes, const E& element) {
  const int first = (threadIdx.y * blockDim.x + threadIdx.x) % 32 - lane;
  const unsigned members = lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1) << first;
  float low = element(lane < width ? static_cast<I>(lane) : 0), high = low;
  for (I i = lane + lanes; i < width; i += lanes) {
    const float x = element(i);
    low = lower(low, x), high = higher(high, x);
  }
  for (int step = lanes / 2; step > 0; step /= 2) {
    low = lower(low, __shfl_xor_sync(members, low, step));
    high = higher(high, __shfl_xor_sync(members, high, step));
  }
  const RowParameters parameters = {(high - low) / LARGEST_CODE, low};
  for (I i = lane; i < width; i += lanes) {
    const float code = rintf((element(i) - low) / parameters.scale);  // NaN if all elements are equal; then 0
    to[i] = static_cast<unsigned char>(fminf(fmaxf(code, 0.f), static_cast<float>(LARGEST_CODE)));
  }
  if (lane < PARAMETER_BYTES) {
    unsigned char bytes[PARAMETER_BYTES];
    memcpy(bytes, &parameters, PARAMETER_BYTES);
    for (int i = lane; i < PARAMETER_BYTES; i += lanes) to[width + i] = bytes[i];
  }
}
