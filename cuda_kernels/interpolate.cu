// Interpolate: elements that are weighted sums of others, by tables of places and weights along the axes.
#include "strided.cuh"

// The K axes of y that are resized, outermost first: their numbers among its axes, where their tables begin (`taps`
// entries per element of y), and their strides in x.
template <typename I, int K>
struct Resized {
  I axis[K], first[K], stride[K];
};

// 8-bit and 16-bit types are computed in float, and so are integers, as on the CPU.
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

// The coordinate along an axis whose number is not a constant; an index into `at` would put it into memory.
template <typename I, int R>
__device__ __forceinline__ I along(const I (&at)[R], I axis) {
  I found = 0;
#pragma unroll
  for (int i = 0; i < R; i++) found = i == axis ? at[i] : found;
  return found;
}

// The sum of P^K elements from axis k on. What weighs nothing is not read.
template <int k, int P, int K, typename T, typename I>
__device__ __forceinline__ typename Real<T>::Type sum(const T* __restrict__ x, const I (&place)[K][P],
                                                      const float (&weight)[K][P]) {
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

// Each thread computes one element of `size`, and the same one of all of a batch, which shares places and weights.
// Operands of the axes: x, along axes that are not resized; y.
template <typename T, typename U, int P, int K, typename I, int R>
__global__ void resample(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ places,
                         const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, K> resized,
                         I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R], place[K][P];
  float weight[K][P];
  unravel(axes, i, at);
#pragma unroll
  for (int k = 0; k < K; k++) {
    const I first = resized.first[k] + along(at, resized.axis[k]) * P;
#pragma unroll
    for (int p = 0; p < P; p++) {
      place[k][p] = places[first + p] * resized.stride[k];
      weight[k][p] = weights[first + p];
    }
  }
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y)
    y[b * y_step] = Element<U>::of(sum<0>(x + b * x_step, place, weight));
}

// Along one axis, with any number of taps.
template <typename T, typename U, typename I, int R>
__global__ void filter(const T* __restrict__ x, U* __restrict__ y, const int* __restrict__ places,
                       const float* __restrict__ weights, const Axes<I, R, 2> axes, const Resized<I, 1> resized,
                       I size, I batch, I x_step, I y_step, int taps) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  const I first = resized.first[0] + along(at, resized.axis[0]) * taps;
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) {
    typename Real<T>::Type total = 0;
    for (int p = 0; p < taps; p++) {
      const float weight = weights[first + p];
      if (weight != 0)
        total += weight * static_cast<typename Real<T>::Type>(x[b * x_step + places[first + p] * resized.stride[0]]);
    }
    y[b * y_step] = Element<U>::of(total);
  }
}

// Elements that are moved: T stands for elements of its size. A place of -1 is padding.
template <typename T, int K, typename I, int R>
__global__ void pick(const T* __restrict__ x, T* __restrict__ y, const int* __restrict__ places,
                     const Axes<I, R, 2> axes, const Resized<I, K> resized, I size, I batch, I x_step, I y_step) {
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  I at[R];
  unravel(axes, i, at);
  I from = offset(axes, at, 0);
  bool inside = true;
#pragma unroll
  for (int k = 0; k < K; k++) {
    const int place = places[resized.first[k] + along(at, resized.axis[k])];
    inside = inside && place >= 0;
    from += place * resized.stride[k];
  }
  y += offset(axes, at, 1);
  for (I b = blockIdx.y; b < batch; b += gridDim.y) y[b * y_step] = inside ? x[from + b * x_step] : T();
}
