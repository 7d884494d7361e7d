// Signals as the transforms of cuFFT take them: DFT, IDFT, RDFT, IRDFT.
#include "strided.cuh"

// Signals one behind the other: y is dense, and the axes are its own. Operands: x, and the place along each of up to
// three axes on which x may end before y does; zeros follow. A is what y is computed in.
template <typename T, typename A, typename I, int R>
__global__ void arrange(const T* __restrict__ x, A* __restrict__ y, const Axes<I, R, 4> axes, I size, I first, I second,
                        I third, A scale) {
  const I begin = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = begin + k * static_cast<I>(blockDim.x);
    if (i >= size) return;
    I at[R];
    unravel(axes, i, at);
    const bool inside = offset(axes, at, 1) < first && offset(axes, at, 2) < second && offset(axes, at, 3) < third;
    y[i] = inside ? static_cast<A>(x[offset(axes, at, 0)]) * scale : A(0);
  }
}

template <typename A>
struct Pair {
  A real, imaginary;
};

// Half spectra z [signals, rows, columns, bins] get the symmetry that those of real signals have: bin 0 of a row and
// column is the conjugate of that of the opposite ones, and so is the last bin if the length is even. Both take the
// mean, so that of two numbers that must be real the imaginary parts are dropped. A thread for each of the two.
template <typename A>
__global__ void symmetrize(Pair<A>* z, long long signals, long long rows, long long columns, long long bins,
                           bool even) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= signals * rows * columns * 2) return;
  const long long column = i / 2 % columns, row = i / 2 / columns % rows, signal = i / 2 / columns / rows;
  if (i % 2 && !even) return;
  const long long bin = i % 2 ? bins - 1 : 0;
  const long long here = row * columns + column;
  const long long there = (rows - row) % rows * columns + (columns - column) % columns;
  if (there < here) return;  // the thread of the other one does both
  Pair<A>* spectrum = z + signal * rows * columns * bins + bin;
  const Pair<A> a = spectrum[here * bins], b = spectrum[there * bins];
  const A real = (a.real + b.real) / 2, imaginary = (a.imaginary - b.imaginary) / 2;
  spectrum[here * bins] = {real, imaginary};
  spectrum[there * bins] = {real, -imaginary};
}
