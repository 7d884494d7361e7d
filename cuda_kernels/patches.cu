// ExtractImagePatches and Col2Im: images to the patches of a sliding window, and back.
#include "accumulator.cuh"
#include "strided.cuh"

// In the order of y, which is dense: [n, kernel rows, kernel columns, channels, rows, columns]. T stands for elements
// of its size. Operands of the axes: x, the row and the column in the image, which begin before it at `top` and `left`.
template <typename T, typename I, int R>
__global__ void extract(const T* __restrict__ x, T* __restrict__ y, const Axes<I, R, 3> axes, I size, I top, I left,
                        I height, I width, I row_step, I step) {
  const I first = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i >= size) return;
    I at[R];
    unravel(axes, i, at);
    const I row = offset(axes, at, 1) - top, column = offset(axes, at, 2) - left;
    const bool inside = 0 <= row && row < height && 0 <= column && column < width;
    y[i] = inside ? x[offset(axes, at, 0) - top * row_step - left * step] : T();
  }
}

// A window along rows and columns.
struct Window {
  int extent[2], stride[2], dilation[2], begin[2], places[2];
};

// The place of a window of which element `k` lies at `i` of the image, -1 if there is none.
__device__ __forceinline__ int place_of(const Window& window, int axis, int i, int k) {
  const int at = i + window.begin[axis] - k * window.dilation[axis];
  const int place = at / window.stride[axis];
  return at >= 0 && place * window.stride[axis] == at && place < window.places[axis] ? place : -1;
}

// Each thread adds up one element of y [images, height, width]; x [images, kernel rows, kernel columns, rows, columns].
template <typename T>
__global__ void fold(const T* __restrict__ x, T* __restrict__ y, const Window window, long long size, int height,
                     int width) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const int column = i % width, row = i / width % height;
  const long long image = i / width / height;
  using A = typename Accumulator<T>::Type;
  A total = 0;
  for (int k = 0; k < window.extent[0]; k++) {
    const int down = place_of(window, 0, row, k);
    if (down < 0) continue;
    for (int l = 0; l < window.extent[1]; l++) {
      const int across = place_of(window, 1, column, l);
      if (across < 0) continue;
      const long long block = (image * window.extent[0] + k) * window.extent[1] + l;
      total += static_cast<A>(x[(block * window.places[0] + down) * window.places[1] + across]);
    }
  }
  y[i] = static_cast<T>(total);
}
