// GridSample: elements of images, interpolated at the points of a grid.
#include "resample.cuh"

enum Padding { ZEROS, BORDER, REFLECTION };

// Return a b - 1 with two roundings, without a fused multiply-add: the choice of the nearest element depends on them.
__device__ __forceinline__ float multiply_minus_one(float a, float b) { return __fadd_rn(__fmul_rn(a, b), -1.0f); }
__device__ __forceinline__ double multiply_minus_one(double a, double b) { return __dadd_rn(__dmul_rn(a, b), -1.0); }

// Return the coordinate along an axis for a grid value. [-1, 1] spans the elements or, with `align`, their centres.
template <typename Number>
__device__ __forceinline__ Number coordinate(Number at, int extent, bool align) {
  const Number size = static_cast<Number>(extent);
  return (align ? (at + 1) * (size - 1) : multiply_minus_one(at + 1, size)) / 2;
}

constexpr int FAR = 1 << 30;  // a coordinate outside of any axis; sums of it and an offset are still ints

template <typename Number>
__device__ __forceinline__ int clamp_coordinate(Number at) {
  return static_cast<int>(fmin(fmax(at, Number(-FAR)), Number(FAR)));
}

// Return the index of the element that stands for index `i`, which may be outside of the axis; negative for zeros.
__device__ __forceinline__ int padded_index(int i, int extent, int padding, bool align) {
  if (padding == BORDER) return i < 0 ? 0 : i < extent ? i : extent - 1;
  if (padding == REFLECTION) {
    const int last = align ? extent - 1 : extent, period = last ? 2 * last : 1;
    i = (i % period + period) % period;
    return i < extent ? i : period - i - !align;
  }
  return i < extent ? i : -1;
}

// Compute offsets and weights of the P taps along one axis: linear (P = 2) or cubic (P = 4, a = -0.75) interpolation.
template <int P, typename Number, typename Weight>
__device__ __forceinline__ void taps(Number at, int extent, int padding, bool align, int step, int (&offsets)[P],
                                     Weight (&weight)[P]) {
  const Number lower = floor(at);
  const Weight t = static_cast<Weight>(at - lower), u = 1 - t, a = -0.75f;
  if constexpr (P == 2) {
    weight[0] = u;
    weight[1] = t;
  } else {
    weight[0] = a * u * u * t;
    weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
    weight[3] = a * t * t * u;
  }
  const int first = clamp_coordinate(lower) - (P == 4);
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int i = padded_index(first + p, extent, padding, align);
    if (i < 0) weight[p] = 0;
    offsets[p] = i < 0 ? 0 : i * step;
  }
}

// Integers of more than 8 bits are truncated, as in OpenVINO; those of 8 bits are rounded.
template <typename T>
constexpr bool is_truncated = false;
template <>
constexpr bool is_truncated<short> = true;
template <>
constexpr bool is_truncated<unsigned short> = true;
template <>
constexpr bool is_truncated<int> = true;
template <>
constexpr bool is_truncated<unsigned> = true;
template <>
constexpr bool is_truncated<long long> = true;
template <>
constexpr bool is_truncated<unsigned long long> = true;

// Interpolate with P taps along each axis. A thread computes one of `size` points of all images, for some channels.
template <typename T, typename G, int P>
__global__ void sample(const T* __restrict__ x, const G* __restrict__ grid, T* __restrict__ y, int size, int points,
                       int channels, int height, int width, int padding, bool align) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  using Number = typename Real<G>::Type;
  int offsets[2][P];
  typename Real<T>::Type weight[2][P];
  taps(coordinate(static_cast<Number>(grid[2LL * i + 1]), height, align), height, padding, align, width, offsets[0],
       weight[0]);
  taps(coordinate(static_cast<Number>(grid[2LL * i]), width, align), width, padding, align, 1, offsets[1], weight[1]);
  const long long image = static_cast<long long>(i / points) * channels;
  for (int c = blockIdx.y; c < channels; c += gridDim.y) {
    auto total = sum<0>(x + (image + c) * height * width, offsets, weight);
    if constexpr (is_truncated<T>) total = trunc(total);
    y[(image + c) * points + i % points] = Element<T>::of(total);
  }
}

// Copy the nearest element. T only determines the size of elements.
template <typename T, typename G>
__global__ void sample_nearest(const T* __restrict__ x, const G* __restrict__ grid, T* __restrict__ y, int size,
                               int points, int channels, int height, int width, int padding, bool align) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  using Number = typename Real<G>::Type;
  const Number row = coordinate(static_cast<Number>(grid[2LL * i + 1]), height, align);
  const Number column = coordinate(static_cast<Number>(grid[2LL * i]), width, align);
  const int at = padded_index(clamp_coordinate(rint(row)), height, padding, align);
  const int column_index = padded_index(clamp_coordinate(rint(column)), width, padding, align);
  const long long image = static_cast<long long>(i / points) * channels;
  for (int c = blockIdx.y; c < channels; c += gridDim.y)
    y[(image + c) * points + i % points] =
        at < 0 || column_index < 0 ? T() : x[(image + c) * height * width + at * width + column_index];
}
