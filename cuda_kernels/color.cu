// Colour conversion between YUV 4:2:0 (NV12, I420) and RGB or BGR, in limited-range BT.601.
#include "resample.cuh"

// Strides of Y, U and V in elements: between images, rows, and columns.
struct Planes {
  long long image[3], row[3], step[3];
};

template <typename T>
__device__ __forceinline__ T element(const T* x, const Planes& planes, int n, long long image, int row, int column) {
  return x[image * planes.image[n] + row * planes.row[n] + column * planes.step[n]];
}

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

// Both kernels use the factors and offsets of limited-range BT.601: Y begins at 16, and U and V are 128 for grey.

// Convert four pixels per thread, which share U and V. Every operation is rounded on its own (no fused multiply-add),
// as on the CPU: 8-bit results depend on it.
template <typename T>
__global__ void from_yuv(const T* __restrict__ y, const T* __restrict__ u, const T* __restrict__ v, T* __restrict__ out,
                         const Planes planes, int size, int height, int width, bool bgr) {
  using Number = typename Real<T>::Type;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int half_width = width / 2, column = i % half_width, row = i / half_width % (height / 2);
  const long long image = i / half_width / (height / 2);
  const Number d = static_cast<Number>(element(u, planes, 1, image, row, column)) - 128;
  const Number e = static_cast<Number>(element(v, planes, 2, image, row, column)) - 128;
  const Number red = times(Number(1.596), e), blue = times(Number(2.018), d);
  const Number green = times(Number(0.391), d), green_v = times(Number(0.813), e);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int pixel_row = 2 * row + k / 2, pixel_column = 2 * column + k % 2;
    const Number c =
        times(Number(1.164), static_cast<Number>(element(y, planes, 0, image, pixel_row, pixel_column)) - 16);
    T* to = out + 3 * ((image * height + pixel_row) * width + pixel_column);
    const Number rgb[3] = {c + red, c - green - green_v, c + blue};
#pragma unroll
    for (int n = 0; n < 3; n++) to[bgr ? 2 - n : n] = Element<T>::of(fmin(fmax(rgb[n], Number(0)), Number(255)));
  }
}

// Round to the nearest integer, halfway cases up, if T is an integer type; otherwise return x.
template <typename T, typename Number>
__device__ __forceinline__ Number round_integer(Number x) {
  return x;
}
template <>
__device__ __forceinline__ float round_integer<unsigned char, float>(float x) {
  return floorf(x + 0.5f);
}

// Return a pixel's value in the Y, U or V plane: a weighted sum of its colours plus an offset.
template <typename T, typename Number>
__device__ __forceinline__ Number plane_value(const Number (&pixel)[3], Number red, Number green, Number blue,
                                              Number offset) {
  const Number sum = times(red, pixel[0]) + times(green, pixel[1]) + times(blue, pixel[2]) + offset;
  return round_integer<T, Number>(fmin(fmax(sum, Number(0)), Number(255)));
}

// Convert four pixels per thread; their U and V are averaged. Sums are rounded as in from_yuv.
template <typename T>
__global__ void to_yuv(const T* __restrict__ image, T* __restrict__ y, T* __restrict__ u, T* __restrict__ v,
                       const Planes planes, int size, int height, int width, bool bgr) {
  using Number = typename Real<T>::Type;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int half_width = width / 2, column = i % half_width, row = i / half_width % (height / 2);
  const long long n = i / half_width / (height / 2);
  Number d = 0, e = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int pixel_row = 2 * row + k / 2, pixel_column = 2 * column + k % 2;
    const T* source = image + 3 * ((n * height + pixel_row) * width + pixel_column);
    const Number pixel[3] = {static_cast<Number>(source[bgr ? 2 : 0]), static_cast<Number>(source[1]),
                             static_cast<Number>(source[bgr ? 0 : 2])};
    y[n * planes.image[0] + pixel_row * planes.row[0] + pixel_column * planes.step[0]] =
        static_cast<T>(plane_value<T>(pixel, Number(0.257), Number(0.504), Number(0.098), Number(16)));
    d += plane_value<T>(pixel, Number(-0.148), Number(-0.291), Number(0.439), Number(128));
    e += plane_value<T>(pixel, Number(0.439), Number(-0.368), Number(-0.071), Number(128));
  }
  u[n * planes.image[1] + row * planes.row[1] + column * planes.step[1]] =
      static_cast<T>(round_integer<T, Number>(d / 4));
  v[n * planes.image[2] + row * planes.row[2] + column * planes.step[2]] =
      static_cast<T>(round_integer<T, Number>(e / 4));
}
