// GridSample: elements of images at places that a grid tells.
#include "resample.cuh"

enum Padding { ZEROS, BORDER, REFLECTION };

// Two roundings, also where a device could do with one: the nearest element depends on it.
__device__ __forceinline__ float minus_one(float a, float b) { return __fadd_rn(__fmul_rn(a, b), -1.0f); }
__device__ __forceinline__ double minus_one(double a, double b) { return __dadd_rn(__dmul_rn(a, b), -1.0); }

// The coordinate along an axis, of which the grid's numbers from -1 to 1 cover the elements or their centres.
template <typename Number>
__device__ __forceinline__ Number coordinate(Number at, int extent, bool align) {
  const Number size = static_cast<Number>(extent);
  return (align ? (at + 1) * (size - 1) : minus_one(at + 1, size)) / 2;
}

template <typename Number>
__device__ __forceinline__ int limited(Number at) {
  return static_cast<int>(fmin(fmax(at, Number(-1073741824)), Number(1073741824)));
}

// Where an element outside of an axis is taken from, -1 for nowhere.
__device__ __forceinline__ int padded(int i, int extent, int padding, bool align) {
  if (padding == BORDER) return i < 0 ? 0 : i < extent ? i : extent - 1;
  if (padding == REFLECTION) {
    const int last = align ? extent - 1 : extent, period = last ? 2 * last : 1;
    i = (i % period + period) % period;
    return i < extent ? i : period - i - !align;
  }
  return i < extent ? i : -1;
}

// Places and weights of P elements along one axis.
template <int P, typename Number, typename Weight>
__device__ __forceinline__ void taps(Number at, int extent, int padding, bool align, int step, int (&place)[P],
                                     Weight (&weight)[P]) {
  const Number below = floor(at);
  const Weight t = static_cast<Weight>(at - below), u = 1 - t, a = -0.75f;
  if constexpr (P == 2) {
    weight[0] = u;
    weight[1] = t;
  } else {
    weight[0] = a * u * u * t;
    weight[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
    weight[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
    weight[3] = a * t * t * u;
  }
  const int first = limited(below) - (P == 4);
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int i = padded(first + p, extent, padding, align);
    if (i < 0) weight[p] = 0;
    place[p] = i < 0 ? 0 : i * step;
  }
}

// Integers of more than 8 bits, which are cut off as OpenVINO does it; those of 8 bits are rounded.
template <typename T>
constexpr bool is_cut_off = false;
template <>
constexpr bool is_cut_off<short> = true;
template <>
constexpr bool is_cut_off<unsigned short> = true;
template <>
constexpr bool is_cut_off<int> = true;
template <>
constexpr bool is_cut_off<unsigned> = true;
template <>
constexpr bool is_cut_off<long long> = true;
template <>
constexpr bool is_cut_off<unsigned long long> = true;

// Each thread computes one element of `size` on all images' grids, for some of the channels. P taps along each axis.
template <typename T, typename G, int P>
__global__ void sample(const T* __restrict__ x, const G* __restrict__ grid, T* __restrict__ y, int size, int places,
                       int channels, int height, int width, int padding, bool align) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  using Number = typename Real<G>::Type;
  int place[2][P];
  typename Real<T>::Type weight[2][P];
  taps(coordinate(static_cast<Number>(grid[2LL * i + 1]), height, align), height, padding, align, width, place[0],
       weight[0]);
  taps(coordinate(static_cast<Number>(grid[2LL * i]), width, align), width, padding, align, 1, place[1], weight[1]);
  const long long image = static_cast<long long>(i / places) * channels;
  for (int c = blockIdx.y; c < channels; c += gridDim.y) {
    auto total = sum<0>(x + (image + c) * height * width, place, weight);
    if constexpr (is_cut_off<T>) total = trunc(total);
    y[(image + c) * places + i % places] = Element<T>::of(total);
  }
}

// The nearest element, moved: T stands for elements of its size.
template <typename T, typename G>
__global__ void sample_nearest(const T* __restrict__ x, const G* __restrict__ grid, T* __restrict__ y, int size,
                               int places, int channels, int height, int width, int padding, bool align) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  using Number = typename Real<G>::Type;
  const Number row = coordinate(static_cast<Number>(grid[2LL * i + 1]), height, align);
  const Number column = coordinate(static_cast<Number>(grid[2LL * i]), width, align);
  const int at = padded(limited(rint(row)), height, padding, align);
  const int beside = padded(limited(rint(column)), width, padding, align);
  const long long image = static_cast<long long>(i / places) * channels;
  for (int c = blockIdx.y; c < channels; c += gridDim.y)
    y[(image + c) * places + i % places] =
        at < 0 || beside < 0 ? T() : x[(image + c) * height * width + at * width + beside];
}
