// Images with a plane of brightness and two of colour at half the resolution, to red, green and blue.
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
