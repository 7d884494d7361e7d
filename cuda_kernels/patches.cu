// ExtractImagePatches and Col2Im: images to the patches of a sliding window (im2col), and back.
#include "accumulator.cuh"
#include "strided.cuh"

// Write patches y [n, kernel rows, kernel columns, channels, rows, columns], which is dense. T only determines the size
// of elements. Operands of y's axes: x, and the row and column in the padded image, whose padding is `top` and `left`.
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

// A sliding window along rows and columns.
struct Window {
  int extent[2], stride[2], dilation[2], begin[2], positions[2];
};

// Return the position of the window whose element `k` is element `i` of the image; -1 if there is none.
__device__ __forceinline__ int window_position(const Window& window, int axis, int i, int k) {
  const int at = i + window.begin[axis] - k * window.dilation[axis];
  const int position = at / window.stride[axis];
  return at >= 0 && position * window.stride[axis] == at && position < window.positions[axis] ? position : -1;
}

// Sum patches x [images, kernel rows, kernel columns, rows, columns] into y [images, height, width], one element per
// thread.
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
    const int window_row = window_position(window, 0, row, k);
    if (window_row < 0) continue;
    for (int l = 0; l < window.extent[1]; l++) {
      const int window_column = window_position(window, 1, column, l);
      if (window_column < 0) continue;
      const long long block = (image * window.extent[0] + k) * window.extent[1] + l;
      total += static_cast<A>(x[(block * window.positions[0] + window_row) * window.positions[1] + window_column]);
    }
  }
  y[i] = static_cast<T>(total);
}
