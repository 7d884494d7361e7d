// STFT and ISTFT: windowed frames of signals, and back by overlap-add.
#include "accumulator.cuh"

// Number, size and step of frames in a signal, and first element and size of the window in a frame, which is padded
// with zeros.
struct Framing {
  long long frames, size, step, left, window;
};

template <typename T, typename A>
__device__ __forceinline__ A weight(const T* window, const Framing& framing, long long position) {
  position -= framing.left;
  return 0 <= position && position < framing.window ? static_cast<A>(window[position]) : A(0);
}

// Write the windowed frames y [signals, frames, size] of x [signals, length]. A frame has `blocks` blocks.
template <typename T>
__global__ void frame(const T* __restrict__ x, const T* __restrict__ window,
                      typename Accumulator<T>::Type* __restrict__ y, const Framing framing, long long length,
                      unsigned blocks) {
  using A = typename Accumulator<T>::Type;
  const unsigned row = blockIdx.x / blocks, frames = static_cast<unsigned>(framing.frames);
  const long long position = static_cast<long long>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
  if (position >= framing.size) return;
  const long long at = row / frames * length + row % frames * framing.step + position;
  y[row * framing.size + position] = static_cast<A>(x[at]) * weight<T, A>(window, framing, position);
}

// Write signals y [signals, length] from frames x [signals, frames, size] by overlap-add: sums of the windowed frames
// times `scale`, divided by sums of the squared window. A signal begins `margin` after its first frame; it is zero
// where no window reaches. A signal has `blocks` blocks.
template <typename T>
__global__ void overlap_add(const typename Accumulator<T>::Type* __restrict__ x, const T* __restrict__ window,
                            T* __restrict__ y, const Framing framing, long long length, long long margin,
                            unsigned blocks, typename Accumulator<T>::Type scale) {
  using A = typename Accumulator<T>::Type;
  const unsigned signal = blockIdx.x / blocks;
  const long long position = static_cast<long long>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
  if (position >= length) return;
  const long long at = position + margin;
  // the first frame that reaches `at`
  const long long first_frame = at < framing.size ? 0 : (at - framing.size) / framing.step + 1;
  const A* frames = x + signal * framing.frames * framing.size;
  A total = 0, squares = 0;
  for (long long number = first_frame; number < framing.frames && number * framing.step <= at; number++) {
    const long long frame_position = at - number * framing.step;
    const A factor = weight<T, A>(window, framing, frame_position);
    total += frames[number * framing.size + frame_position] * factor;
    squares += factor * factor;
  }
  y[signal * length + position] = static_cast<T>(squares != 0 ? total * scale / squares : A(0));
}
