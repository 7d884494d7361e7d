// Images with a plane of brightness and two of colour at half the resolution, to red, green and blue, and back.
#include "resample.cuh"

// Strides of Y, U and V: from image to image, row to row, and element to element.
struct Planes {
  long long image[3], row[3], step[3];
};

template <typename T>
__device__ __forceinline__ T element(const T* x, const Planes& planes, int n, long long image, int row, int column) {
  return x[image * planes.image[n] + row * planes.row[n] + column * planes.step[n]];
}

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

// Each thread computes four elements that have their colour in common. Sums are rounded after every operation, as on
// the CPU: 8-bit results depend on it.
template <typename T>
__global__ void from_yuv(const T* __restrict__ y, const T* __restrict__ u, const T* __restrict__ v,
                         T* __restrict__ out, const Planes planes, int size, int height, int width, bool bgr) {
  using Number = typename Real<T>::Type;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int half = width / 2, column = i % half, row = i / half % (height / 2);
  const long long image = i / half / (height / 2);
  const Number d = static_cast<Number>(element(u, planes, 1, image, row, column)) - 128;
  const Number e = static_cast<Number>(element(v, planes, 2, image, row, column)) - 128;
  const Number red = times(Number(1.596), e), blue = times(Number(2.018), d);
  const Number green = times(Number(0.391), d), green_too = times(Number(0.813), e);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int below = 2 * row + k / 2, beside = 2 * column + k % 2;
    const Number c = times(Number(1.164), static_cast<Number>(element(y, planes, 0, image, below, beside)) - 16);
    T* to = out + 3 * ((image * height + below) * width + beside);
    const Number found[3] = {c + red, c - green - green_too, c + blue};
#pragma unroll
    for (int n = 0; n < 3; n++)
      to[bgr ? 2 - n : n] = Element<T>::of(fmin(fmax(found[n], Number(0)), Number(255)));
  }
}

// A number that is to be an integer, for integers: the nearest one, halves upwards.
template <typename T, typename Number>
__device__ __forceinline__ Number whole(Number x) {
  return x;
}
template <>
__device__ __forceinline__ float whole<unsigned char, float>(float x) {
  return floorf(x + 0.5f);
}

// What a plane has of a pixel, by what it has of each colour.
template <typename T, typename Number>
__device__ __forceinline__ Number part(const Number (&pixel)[3], Number red, Number green, Number blue, Number more) {
  const Number sum = times(red, pixel[0]) + times(green, pixel[1]) + times(blue, pixel[2]) + more;
  return whole<T, Number>(fmin(fmax(sum, Number(0)), Number(255)));
}

// Each thread converts four pixels, of which U and V are means. Sums are rounded as in from_yuv.
template <typename T>
__global__ void to_yuv(const T* __restrict__ image, T* __restrict__ y, T* __restrict__ u, T* __restrict__ v,
                       const Planes planes, int size, int height, int width, bool bgr) {
  using Number = typename Real<T>::Type;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int half = width / 2, column = i % half, row = i / half % (height / 2);
  const long long n = i / half / (height / 2);
  Number d = 0, e = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int below = 2 * row + k / 2, beside = 2 * column + k % 2;
    const T* from = image + 3 * ((n * height + below) * width + beside);
    const Number pixel[3] = {static_cast<Number>(from[bgr ? 2 : 0]), static_cast<Number>(from[1]),
                             static_cast<Number>(from[bgr ? 0 : 2])};
    y[n * planes.image[0] + below * planes.row[0] + beside * planes.step[0]] =
        static_cast<T>(part<T>(pixel, Number(0.257), Number(0.504), Number(0.098), Number(16)));
    d += part<T>(pixel, Number(-0.148), Number(-0.291), Number(0.439), Number(128));
    e += part<T>(pixel, Number(0.439), Number(-0.368), Number(-0.071), Number(128));
  }
  u[n * planes.image[1] + row * planes.row[1] + column * planes.step[1]] = static_cast<T>(whole<T, Number>(d / 4));
  v[n * planes.image[2] + row * planes.row[2] + column * planes.step[2]] = static_cast<T>(whole<T, Number>(e / 4));
}
