// Preparation of signals and spectra for cuFFT: DFT, IDFT, RDFT, IRDFT.
#include "strided.cuh"

// Pack x, times `scale`, into the dense y of type A. Operands of y's axes: x, and the coordinates along up to three
// axes. Along these, x ends at end0, end1 and end2, and zeros follow.
template <typename T, typename A, typename I, int R>
__global__ void arrange(const T* __restrict__ x, A* __restrict__ y, const Axes<I, R, 4> axes, I size, I end0, I end1,
                        I end2, A scale) {
  const I begin = first_item<I>();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = begin + k * static_cast<I>(blockDim.x);
    if (i >= size) return;
    I at[R];
    unravel(axes, i, at);
    const bool inside = offset(axes, at, 1) < end0 && offset(axes, at, 2) < end1 && offset(axes, at, 3) < end2;
    y[i] = inside ? static_cast<A>(x[offset(axes, at, 0)]) * scale : A(0);
  }
}

template <typename A>
struct Pair {
  A real, imaginary;
};

// Give half spectra z [signals, rows, columns, bins] the conjugate symmetry of real signals, in place. Bin 0 of a (row,
// column) is the conjugate of bin 0 of the opposite one; likewise the last bin if the length is even. Both get their
// mean, so that numbers that must be real lose their imaginary part. One thread per (row, column) and bin.
template <typename A>
__global__ void symmetrize(Pair<A>* z, long long signals, long long rows, long long columns, long long bins,
                           bool even) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= signals * rows * columns * 2) return;
  const long long column = i / 2 % columns, row = i / 2 / columns % rows, signal = i / 2 / columns / rows;
  if (i % 2 && !even) return;
  const long long bin = i % 2 ? bins - 1 : 0;
  const long long position = row * columns + column;
  const long long opposite = (rows - row) % rows * columns + (columns - column) % columns;
  if (opposite < position) return;  // the thread of the opposite position writes both
  Pair<A>* spectrum = z + signal * rows * columns * bins + bin;
  const Pair<A> a = spectrum[position * bins], b = spectrum[opposite * bins];
  const A real = (a.real + b.real) / 2, imaginary = (a.imaginary - b.imaginary) / 2;
  spectrum[position * bins] = {real, imaginary};
  spectrum[opposite * bins] = {real, -imaginary};
}
