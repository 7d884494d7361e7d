// STFT and ISTFT: signals to frames under a window, and back.
#include "accumulator.cuh"

// Where frames lie in their signal, and the window in a frame; it is zero elsewhere.
struct Framing {
  long long frames, size, step, left, window;
};

template <typename T, typename A>
__device__ __forceinline__ A weight(const T* window, const Framing& framing, long long place) {
  place -= framing.left;
  return 0 <= place && place < framing.window ? static_cast<A>(window[place]) : A(0);
}

// y [signals, frames, size] of x [signals, length]. So many blocks for every frame.
template <typename T>
__global__ void frame(const T* __restrict__ x, const T* __restrict__ window,
                      typename Accumulator<T>::Type* __restrict__ y, const Framing framing, long long length,
                      unsigned blocks) {
  using A = typename Accumulator<T>::Type;
  const unsigned row = blockIdx.x / blocks, frames = static_cast<unsigned>(framing.frames);
  const long long place = static_cast<long long>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
  if (place >= framing.size) return;
  const long long at = row / frames * length + row % frames * framing.step + place;
  y[row * framing.size + place] = static_cast<A>(x[at]) * weight<T, A>(window, framing, place);
}

// Signals y [signals, length] from frames x [signals, frames, size], which overlap: sums under the window, over those
// of its squares. A signal begins `margin` after its first frame; what no window reaches is zero. So many blocks for
// every signal.
template <typename T>
__global__ void overlap_add(const typename Accumulator<T>::Type* __restrict__ x, const T* __restrict__ window,
                            T* __restrict__ y, const Framing framing, long long length, long long margin,
                            unsigned blocks, typename Accumulator<T>::Type scale) {
  using A = typename Accumulator<T>::Type;
  const unsigned signal = blockIdx.x / blocks;
  const long long place = static_cast<long long>(blockIdx.x % blocks) * blockDim.x + threadIdx.x;
  if (place >= length) return;
  const long long at = place + margin;
  const long long ended = at < framing.size ? 0 : (at - framing.size) / framing.step + 1;  // frames before
  const A* frames = x + signal * framing.frames * framing.size;
  A total = 0, squares = 0;
  for (long long number = ended; number < framing.frames && number * framing.step <= at; number++) {
    const long long inside = at - number * framing.step;
    const A factor = weight<T, A>(window, framing, inside);
    total += frames[number * framing.size + inside] * factor;
    squares += factor * factor;
  }
  y[signal * length + place] = static_cast<T>(squares != 0 ? total * scale / squares : A(0));
}
