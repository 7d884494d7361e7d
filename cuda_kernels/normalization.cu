// Normalisation over axes: centring, MVN, and norms by L2 or root mean square; then, for fused layers, scale and shift
// per normalised element, and codes of 8 bits. The output may be in the memory of an input.
#include "axes.cuh"
#include "bytes.cuh"
#include "norms.cuh"
#include "ptx.cuh"
#include "quantizer.cuh"

// Output of a normalised row, V elements at a time.
template <class T, int V>
struct Row {
  T* out;

  __device__ __forceinline__ void prepare(unsigned) {}
  __device__ __forceinline__ void write(unsigned i, const T (&part)[V]) const { store<V>(part, out + i); }
};

// Output of a normalised row and of the codes of its elements times `factor`. `out` may be null, and so may factor [n].
template <class T, int V>
struct CodedRow {
  T* out;
  signed char* codes;
  const float* factor;
  Quantizer quantizer;
  float factors[V];

  __device__ __forceinline__ void prepare(unsigned i) {
    if (factor) {
      const auto bytes = *reinterpret_cast<const Bytes<sizeof(factors)>*>(factor + i);
      memcpy(factors, &bytes, sizeof(factors));
    }
  }
  __device__ __forceinline__ void write(unsigned i, const T (&part)[V]) const {
    if (out) store<V>(part, out + i);
    signed char found[V];
#pragma unroll
    for (int j = 0; j < V; j++) {
      found[j] = quantizer(factor ? float(part[j]) * factors[j] : float(part[j]));
    }
    Bytes<sizeof(found)> bytes;
    memcpy(&bytes, found, sizeof(bytes));
    *reinterpret_cast<Bytes<sizeof(found)>*>(codes + i) = bytes;
  }
};

// Normalise and write a row of n elements. Each thread holds N vectors of V elements and their sum; see fold_row.
// scale, shift: [n], or null.
template <int KIND, int V, int N, class T, class A, class R>
__device__ __forceinline__ void write_row(const A (&value)[N][V], A sum, A inverse_n, R row, const T* scale,
                                          const T* shift, unsigned size, unsigned n, A eps, int mode) {
  T scales[V], shifts[V];
  const auto prepare = [&](unsigned i) {
    if (scale) load<V>(scale + i, scales);
    if (shift) load<V>(shift + i, shifts);
    row.prepare(i);
  };
  if (N == 1 && threadIdx.x * V < size) prepare(threadIdx.x * V);  // loads overlap with fold_row
  const A mean = KIND == CENTRE || KIND == MVN ? fold_row(sum, Add()) / A(n) : A(0);
  A factor = 1;
  if (KIND == MVN || KIND == L2 || KIND == RMS) {
    A squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
      if ((k * blockDim.x + threadIdx.x) * V < size) {
#pragma unroll
        for (int j = 0; j < V; j++) squares += (value[k][j] - mean) * (value[k][j] - mean);
      }
    }
    squares = fold_row(squares, Add());
    factor = norm_factor(KIND == L2 ? squares : squares * inverse_n, eps, mode);
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      if (N > 1) prepare(i);
      T part[V];
#pragma unroll
      for (int j = 0; j < V; j++) {
        A result = normalized<KIND>(value[k][j], mean, factor);
        if (scale) result *= A(scales[j]);
        if (shift) result += A(shifts[j]);
        part[j] = T(result);
      }
      row.write(i, part);
    }
  }
}

// Normalise rows of n contiguous elements at any offsets. They stay in registers, N vectors of V elements per thread:
// blockDim.x * N * V >= n, and n is a multiple of V. scale, shift: [n], or null.
template <class T, int KIND, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_rows(const T* x, T* out, const T* scale, const T* shift, const MappedAxes outer, unsigned rows,
                   unsigned n, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  start_next_launch();
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const Offsets start = offsets_of(outer, row);
  const A inverse_n = A(1) / A(n);  // here, while few registers are in use: a division may be a call
  wait_for_launches();
  A value[N][V];
  A sum = 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V];
      load<V>(x + start.from + i, part);
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] = A(part[j]);
        sum += value[k][j];
      }
    }
  }
  write_row<KIND>(value, sum, inverse_n, Row<T, V>{out + start.to}, scale, shift, size, n, eps, mode);
}

// Load this thread's part of a row of `size` elements: N vectors of V elements.
template <int V, int N, class T>
__device__ __forceinline__ void load_vectors(const T* row, unsigned size, T (&to)[N][V]) {
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) load<V>(row + i, to[k]);
  }
}

// Terms of the rows to normalise: (x + y) + z, where every sum is rounded, and y and z may be null. Row r of the result
// takes row r % x_rows of x, and likewise of y and z. If `total` is not null, it receives the sums; it may be in the
// memory of a term.
template <class T>
struct Terms {
  const T *x, *y, *z;
  T* total;
  unsigned x_rows, y_rows, z_rows;

  template <int V, int N>
  static __device__ __forceinline__ void add(const T (&term)[N][V], T (&to)[N][V]) {
    using A = typename Accumulator<T>::Type;
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
      for (int j = 0; j < V; j++) to[k][j] = T(A(to[k][j]) + A(term[k][j]));
  }
  static __device__ __forceinline__ unsigned long long repeated(unsigned row, unsigned rows) {
    return row < rows ? row : row % rows;
  }

  // Load this thread's part of a row, which is zero behind its end; return its sum.
  template <int V, int N, class A>
  __device__ __forceinline__ A load_row(unsigned row, unsigned n, unsigned size, A (&value)[N][V]) const {
    constexpr bool AT_ONCE = N * V * sizeof(T) <= 64;  // registers hold all terms
    T part[N][V] = {}, second[N][V] = {}, third[N][V] = {};
    load_vectors<V>(x + repeated(row, x_rows) * n, size, part);
    if (y) load_vectors<V>(y + repeated(row, y_rows) * n, size, second);
    if (AT_ONCE && z) load_vectors<V>(z + repeated(row, z_rows) * n, size, third);
    if (y) add(second, part);
    if (!AT_ONCE && z) load_vectors<V>(z + repeated(row, z_rows) * n, size, second);
    if (z) add(AT_ONCE ? third : second, part);
    A sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
      const unsigned i = (k * blockDim.x + threadIdx.x) * V;
      if (total && i < size) store<V>(part[k], total + (unsigned long long)row * n + i);
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] = A(part[k][j]);
        sum += value[k][j];
      }
    }
    return sum;
  }
};

// Normalise rows of sums. Otherwise like normalize_rows.
template <class T, int KIND, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS)
    add_normalize_rows(const T* x, const T* y, const T* z, T* out, T* total, const T* scale, const T* shift,
                       unsigned x_rows, unsigned y_rows, unsigned z_rows, unsigned rows, unsigned n,
                       typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  start_next_launch();
  const Terms<T> terms = {x, y, z, total, x_rows, y_rows, z_rows};
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const A inverse_n = A(1) / A(n);
  wait_for_launches();
  A value[N][V];
  const A sum = terms.load_row(row, n, size, value);
  const Row<T, V> to = {out + (unsigned long long)row * n};
  write_row<KIND>(value, sum, inverse_n, to, scale, shift, size, n, eps, mode);
}

// Like add_normalize_rows, and write the codes of the elements; see CodedRow.
template <class T, int KIND, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_rows_to_codes(const T* x, const T* y, const T* z, T* out, T* total, const T* scale, const T* shift,
                            unsigned x_rows, unsigned y_rows, unsigned z_rows, unsigned rows, unsigned n,
                            typename Accumulator<T>::Type eps, int mode, signed char* codes, const float* factor,
                            const Quantizer quantizer) {
  using A = typename Accumulator<T>::Type;
  start_next_launch();
  const Terms<T> terms = {x, y, z, total, x_rows, y_rows, z_rows};
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const unsigned long long start = (unsigned long long)row * n;
  const A inverse_n = A(1) / A(n);
  wait_for_launches();
  A value[N][V];
  const A sum = terms.load_row(row, n, size, value);
  const CodedRow<T, V> to = {out ? out + start : nullptr, codes + start, factor, quantizer};
  write_row<KIND>(value, sum, inverse_n, to, scale, shift, size, n, eps, mode);
}

// Normalise columns of n elements in any layout, blockDim.x of them per block; see fold_column.
template <class T, int KIND>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_columns(const T* x, T* out, const T* scale, const T* shift, const MappedAxes outer,
                      const MappedAxes inner, unsigned columns, unsigned n, typename Accumulator<T>::Type eps,
                      int mode) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, scratch);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, size = column < columns ? n : 0;
  const Offsets start = offsets_of(outer, column);
  A mean = 0;
  if (KIND == CENTRE || KIND == MVN) {
#pragma unroll 4
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) mean += A(x[start.from + offsets_of(inner, i).from]);
    mean = fold_column(mean, Add(), scratch) / A(n);
  }
  A factor = 1;
  if (KIND == MVN || KIND == L2 || KIND == RMS) {
    A squares = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
      const A centred = A(x[start.from + offsets_of(inner, i).from]) - mean;
      squares += centred * centred;
    }
    squares = fold_column(squares, Add(), scratch);
    factor = norm_factor(KIND == L2 ? squares : squares / A(n), eps, mode);
  }
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const Offsets at = offsets_of(inner, i);
    A result = normalized<KIND>(A(x[start.from + at.from]), mean, factor);
    if (scale) result *= A(scale[i]);
    if (shift) result += A(shift[i]);
    out[start.to + at.to] = T(result);
  }
}

// Normalise rows whose n elements are `step` apart in x, where neighbouring rows are adjacent, and write them as dense
// rows: channels come first in x, and last in the output. A block transposes blockDim.x rows in shared memory, which
// holds one element per thread, then n (blockDim.x + 1) elements.
template <class T, int KIND>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_transposed(const T* x, T* out, const T* scale, const T* shift, const MappedAxes outer, long long step,
                         unsigned rows, unsigned n, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, scratch);
  const unsigned first = blockIdx.x * blockDim.x, row = first + threadIdx.x, size = row < rows ? n : 0;
  const unsigned width = blockDim.x + 1, threads = blockDim.x * blockDim.y;
  A* tile = scratch + threads + threadIdx.x;
  x += offsets_of(outer, row).from;
  A mean = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const A value = A(x[i * step]);
    tile[i * width] = value;
    mean += value;
  }
  mean = KIND == CENTRE || KIND == MVN ? fold_column(mean, Add(), scratch) / A(n) : A(0);
  A factor = 1;
  if (KIND == MVN || KIND == RMS) {
    A squares = 0;
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
      squares += (tile[i * width] - mean) * (tile[i * width] - mean);
    }
    factor = norm_factor(fold_column(squares, Add(), scratch) / A(n), eps, mode);
  }
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    tile[i * width] = normalized<KIND>(tile[i * width], mean, factor);
  }
  __syncthreads();
  tile = scratch + threads;
  out += (unsigned long long)first * n;
  const unsigned count = (rows - first < blockDim.x ? rows - first : blockDim.x) * n;
  for (unsigned k = threadIdx.y * blockDim.x + threadIdx.x; k < count; k += threads) {
    const unsigned tile_row = k / n, i = k - tile_row * n;
    A result = tile[i * width + tile_row];
    if (scale) result *= A(scale[i]);
    if (shift) result += A(shift[i]);
    out[k] = T(result);
  }
}

// The two stages of the norm of a few long rows, whose parts of `chunk` elements are divided among blocks: blockIdx.x
// is the part, blockIdx.y the row. `parts` [rows][gridDim.x][2] gets the mean of each part and the sum of the squared
// distances from it, or, for norms without a mean, 0 and the sum of the squares. n and chunk are multiples of V.
template <class T, int KIND, int V>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_parts(const T* x, typename Accumulator<T>::Type* parts, unsigned n, unsigned chunk) {
  using A = typename Accumulator<T>::Type;
  const unsigned long long row = blockIdx.y;
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  x += row * n + begin;
  A sum = 0, squares = 0, mean = 0;
  if (KIND == CENTRE || KIND == MVN) {
#pragma unroll 4
    for (unsigned i = threadIdx.x * V; i < size; i += blockDim.x * V) {
      T part[V];
      load<V>(x + i, part);
#pragma unroll
      for (int j = 0; j < V; j++) sum += A(part[j]);
    }
    mean = fold_row(sum, Add()) / A(size);
  }
  if (KIND != CENTRE) {
#pragma unroll 4
    for (unsigned i = threadIdx.x * V; i < size; i += blockDim.x * V) {
      T part[V];
      load<V>(x + i, part);
#pragma unroll
      for (int j = 0; j < V; j++) squares += (A(part[j]) - mean) * (A(part[j]) - mean);
    }
    squares = fold_row(squares, Add());
  }
  if (threadIdx.x == 0) {
    parts += (row * gridDim.x + blockIdx.x) * 2;
    parts[0] = mean;
    parts[1] = squares;
  }
}

template <class T, int KIND, int V>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_join(const T* x, T* out, const T* scale, const T* shift, const typename Accumulator<T>::Type* parts,
                   unsigned n, unsigned chunk, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  const unsigned long long row = blockIdx.y;
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  x += row * n + begin;
  out += row * n + begin;
  parts += row * gridDim.x * 2;
  const A inverse_n = A(1) / A(n);  // here, while few registers are in use: a division may be a call
  A sum = 0, squares = 0, mean = 0, factor = 1;
  if (KIND == CENTRE || KIND == MVN) {
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += A(min(chunk, n - i * chunk)) * parts[2 * i];
    mean = fold_row(sum, Add()) * inverse_n;
  }
  if (KIND != CENTRE) {
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
      const A distance = parts[2 * i] - mean;
      squares += parts[2 * i + 1];  // for MVN, as Chan, Golub & LeVeque (1979) combine variances
      if (KIND == MVN) squares += A(min(chunk, n - i * chunk)) * distance * distance;
    }
    squares = fold_row(squares, Add());
    factor = norm_factor(KIND == L2 ? squares : squares * inverse_n, eps, mode);
  }
#pragma unroll 4
  for (unsigned i = threadIdx.x * V; i < size; i += blockDim.x * V) {
    T part[V], scales[V], shifts[V];
    load<V>(x + i, part);
    if (scale) load<V>(scale + begin + i, scales);
    if (shift) load<V>(shift + begin + i, shifts);
#pragma unroll
    for (int j = 0; j < V; j++) {
      A result = (A(part[j]) - mean) * factor;
      if (scale) result *= A(scales[j]);
      if (shift) result += A(shifts[j]);
      part[j] = T(result);
    }
    store<V>(part, out + i);
  }
}
