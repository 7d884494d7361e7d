// Depthwise convolutions of images whose channels are adjacent in memory.
#include "convolution.cuh"
#include "divisor.cuh"
#include "product_sum.cuh"
#include "ptx.cuh"
#include "vectors.cuh"

constexpr int THREADS = 256;

// Divisions by the number of vectors of a pixel of y, and by its width and height.
struct Division {
  Divisor vectors, width, height;
};

template <class I>
__device__ __forceinline__ I quotient(const Divisor& divisor, I n) {
  if constexpr (sizeof(I) == sizeof(int)) {
    return divisor.quotient(n);
  } else {
    return n / divisor.value;
  }
}

// Convolve each channel with one kernel along the last two axes. A thread computes 16 bytes of neighbouring channels of
// a pixel. kernel: [taps, channels]. All pixels are aligned to 16 bytes. If TAPS is not 0, the kernel has TAPS rows and
// TAPS columns, and all elements are loaded at once; if TAPS is 0, it has any number of them.
template <class T, class I, int TAPS, class F>
__global__ void __launch_bounds__(THREADS)
    depthwise(const T* __restrict__ x, const T* __restrict__ kernel, T* __restrict__ y, const Window<I> w,
              const Division division, const Operands<I> operands, const void* p0, const void* p1, const void* p2,
              const void* p3, I size) {
  using A = typename ProductSum<T>::Type;
  constexpr int V = 16 / sizeof(T);
  start_next_launch();
  const I index = static_cast<I>(blockIdx.x) * THREADS + threadIdx.x;
  const I pixel = quotient(division.vectors, index), channel = (index - pixel * (w.groups / V)) * V;
  const I row = quotient(division.width, pixel), image = quotient(division.height, row);
  const I at[3] = {0, row - image * w.extent[1], pixel - row * w.extent[2]};
  const I top = at[1] * w.stride[1] - w.begin[1], left = at[2] * w.stride[2] - w.begin[2];
  x += image * w.x[0] + channel;
  kernel += channel;
  A sum[V] = {};
  const auto load_element = [&](I j, I k, T(&to)[V]) {
    const I q = top + j * w.dilation[1], r = left + k * w.dilation[2];
    if (0 <= q && q < w.size[1] && 0 <= r && r < w.size[2]) {
      load<V>(x + q * w.x[3] + r * w.x[4], to);
    } else {
#pragma unroll
      for (int v = 0; v < V; v++) to[v] = T(0.f);
    }
  };
  const auto add_products = [&](const T(&elements)[V], const T(&weights)[V]) {
#pragma unroll
    for (int v = 0; v < V; v++) sum[v] += A(elements[v]) * A(weights[v]);
  };
  wait_for_launches();
  if (index >= size) return;
  if constexpr (TAPS > 0) {
    T elements[TAPS][TAPS][V];
#pragma unroll
    for (int j = 0; j < TAPS; j++)
#pragma unroll
      for (int k = 0; k < TAPS; k++) load_element(j, k, elements[j][k]);
#pragma unroll
    for (int j = 0; j < TAPS; j++)
#pragma unroll
      for (int k = 0; k < TAPS; k++) {
        T weights[V];
        load<V>(kernel + (j * TAPS + k) * w.groups, weights);
        add_products(elements[j][k], weights);
      }
  } else {
    for (I j = 0; j < w.kernel[1]; j++) {
#pragma unroll 2
      for (I k = 0; k < w.kernel[2]; k++) {
        T element[V], weights[V];
        load_element(j, k, element);
        load<V>(kernel + (j * w.kernel[2] + k) * w.groups, weights);
        add_products(element, weights);
      }
    }
  }
  T results[V];
#pragma unroll
  for (int v = 0; v < V; v++)
    results[v] = F::of(T(sum[v]), OperandOffsets<I>(operands, image, at, channel + v), p0, p1, p2, p3);
  store<V>(results, y + image * w.y[0] + channel + offset(at, w.y));
}
