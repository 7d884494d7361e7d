// Images with a few channels, such as pictures, laid out for tensor cores: channels are adjacent, and zeros fill up
// each pixel.
#include "ptx.cuh"
#include "strided.cuh"
#include "vectors.cuh"

// Write pixels of V channels of type U, 16 bytes: the `channels` channels of a pixel of x, which are `step` elements
// apart, and then zeros. A thread writes a pixel. The axes are those of the pixels; their operands: x, y.
template <typename T, typename U, typename I, int R>
__global__ void pad_channels(const T* __restrict__ x, U* __restrict__ y, const Axes<I, R, 2> axes, I channels, I step,
                             I size) {
  constexpr int V = 16 / sizeof(U);
  start_next_launch();
  const I i = static_cast<I>(blockIdx.x) * blockDim.x + threadIdx.x;
  I at[R];
  unravel(axes, i, at);
  wait_for_launches();
  if (i >= size) return;
  const T* const from = x + offset(axes, at, 0);
  U pixel[V];
#pragma unroll
  for (int c = 0; c < V; c++) pixel[c] = U(c < channels ? static_cast<float>(from[c * step]) : 0.f);
  store<V>(pixel, y + offset(axes, at, 1));
}
