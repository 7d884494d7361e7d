// STFT and ISTFT: signals to frames under a window, and back.
#include "accumulator.cuh"
#include "strided.cuh"

// Where frames lie in their signal, and the window in a frame; it is zero elsewhere.
struct Framing {
  long long frames, size, step, left, window;
};

template <typename T, typename A>
__device__ __forceinline__ A weight(const T* window, const Framing& framing, long long place) {
  place -= framing.left;
  return 0 <= place && place < framing.window ? static_cast<A>(window[place]) : A(0);
}

// y [signals, frames, size] of x [signals, length].
template <typename T>
__global__ void frame(const T* __restrict__ x, const T* __restrict__ window,
                      typename Accumulator<T>::Type* __restrict__ y, const Framing framing, long long length,
                      long long count) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long place = i % framing.size, number = i / framing.size;
  const long long at = number / framing.frames * length + number % framing.frames * framing.step + place;
  y[i] = static_cast<A>(x[at]) * weight<T, A>(window, framing, place);
}

// Signals y [signals, length] from frames x [signals, frames, size], which overlap: sums under the window, over those
// of its squares. A signal begins `margin` after its first frame; what no window reaches is zero.
template <typename T>
__global__ void overlap_add(const typename Accumulator<T>::Type* __restrict__ x, const T* __restrict__ window,
                            T* __restrict__ y, const Framing framing, long long length, long long margin,
                            long long count, typename Accumulator<T>::Type scale) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long at = i % length + margin;
  const long long before = at < framing.size ? 0 : (at - framing.size) / framing.step + 1;  // frames that have ended
  const A* frames = x + i / length * framing.frames * framing.size;
  A total = 0, squares = 0;
  for (long long number = before; number < framing.frames && number * framing.step <= at; number++) {
    const long long place = at - number * framing.step;
    const A factor = weight<T, A>(window, framing, place);
    total += frames[number * framing.size + place] * factor;
    squares += factor * factor;
  }
  y[i] = static_cast<T>(squares != 0 ? total * scale / squares : A(0));
}
