// Compressed weights: products with few rows, which decompress weights in registers, and plain decompression.
// product_mma.cu has the products on tensor cores.
#include "strided.cuh"

// ---- decoders: `load` returns the values of E codes from index `index`, a multiple of E

struct Nibbles {  // 4-bit codes: indices into a table of 16 values
  static constexpr int TABLE = 16;
  template <int E>
  static __device__ __forceinline__ void load(const void* bytes, long long index, const float* table, float (&to)[E]) {
    const unsigned char* codes = static_cast<const unsigned char*>(bytes);
    if constexpr (E == 1) {
      to[0] = table[codes[index >> 1] >> (index & 1) * 4 & 15];
    } else {
      const unsigned word = *reinterpret_cast<const unsigned*>(codes + (index >> 1));
#pragma unroll
      for (int i = 0; i < E; i++) to[i] = table[word >> 4 * i & 15];
    }
  }
};

struct Codebook {  // 8-bit codes: indices into a table of 256 values
  static constexpr int TABLE = 256;
  template <int E>
  static __device__ __forceinline__ void load(const void* codes, long long index, const float* table, float (&to)[E]) {
    struct alignas(E) Word {
      unsigned char items[E];
    };
    const Word word = *reinterpret_cast<const Word*>(static_cast<const unsigned char*>(codes) + index);
#pragma unroll
    for (int i = 0; i < E; i++) to[i] = table[word.items[i]];
  }
};

// Codes of whole bytes that Derived::value converts, without a table.
template <class T, class Derived>
struct ConvertedCodes {
  static constexpr int TABLE = 1;  // unused
  template <int E>
  static __device__ __forceinline__ void load(const void* codes, long long index, const float*, float (&to)[E]) {
    constexpr int BYTES = E * sizeof(T);
    struct alignas(BYTES < 16 ? BYTES : 16) Word {
      T items[E];
    };
    const Word word = *reinterpret_cast<const Word*>(static_cast<const T*>(codes) + index);
#pragma unroll
    for (int i = 0; i < E; i++) to[i] = Derived::value(word.items[i]);
  }
};

template <class T>
struct Cast : ConvertedCodes<T, Cast<T>> {
  static __device__ __forceinline__ float value(T code) { return static_cast<float>(code); }
};

struct E5M2 : ConvertedCodes<unsigned char, E5M2> {  // the upper byte of an f16
  static __device__ __forceinline__ float value(unsigned char code) {
    return static_cast<float>(__ushort_as_half(static_cast<unsigned short>(code << 8)));
  }
};

struct E4M3 : ConvertedCodes<unsigned char, E4M3> {  // bits of an f16 with another bias and no infinity
  static __device__ __forceinline__ float value(unsigned char code) {
    const int bits = (code & 0x80) << 8 | (code & 0x7f) << 7;
    if ((code & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);                             // NaN
    return static_cast<float>(__ushort_as_half(static_cast<unsigned short>(bits))) * 256.0f;  // biases: 15 - 7 = 8
  }
};

// ---- scales and zero points

// Location of a scale or zero point: index = row / rows * stride + column / columns, with divisions by reciprocals.
// `shared` is 1 if all codes of a load have the same one.
struct QuantParamIndex {
  int stride, row_magic, row_shift, column_magic, column_shift, shared;
};

template <class Codes>
struct Weights {
  float table[Codes::TABLE];
  QuantParamIndex scale, zero;
};

struct None {};

__device__ __forceinline__ int divide(int n, int magic, int shift) {
  const unsigned high = static_cast<unsigned long long>(static_cast<unsigned>(n)) * static_cast<unsigned>(magic) >> 32;
  return static_cast<int>((high + n) >> shift);
}

template <class T>
__device__ __forceinline__ float quant_param(const T* values, const QuantParamIndex& index, int row, int column,
                                             float) {
  const long long first = static_cast<long long>(divide(row, index.row_magic, index.row_shift)) * index.stride;
  return static_cast<float>(values[first + divide(column, index.column_magic, index.column_shift)]);
}

__device__ __forceinline__ float quant_param(const None*, const QuantParamIndex&, int, int, float fallback) {
  return fallback;
}

// Subtract zero points from the values of E codes that begin at (row, column), and multiply by scales.
template <class Codes, class Scale, class Zero, int E>
__device__ __forceinline__ void decompress(float (&values)[E], const Scale* scale, const Zero* zero,
                                           const Weights<Codes>& weights, int row, int column) {
  float scale_value = quant_param(scale, weights.scale, row, column, 1.0f);
  float zero_value = quant_param(zero, weights.zero, row, column, 0.0f);
  values[0] = (values[0] - zero_value) * scale_value;
#pragma unroll
  for (int e = 1; e < E; e++) {
    if (!weights.scale.shared) scale_value = quant_param(scale, weights.scale, row, column + e, 1.0f);
    if (!weights.zero.shared) zero_value = quant_param(zero, weights.zero, row, column + e, 0.0f);
    values[e] = (values[e] - zero_value) * scale_value;
  }
}

// Copy the table to shared memory: threads of a warp read different entries, which constant memory serialises.
template <class Codes>
__device__ __forceinline__ const float* shared_table(const Weights<Codes>& weights) {
  OVGPU_SHARED(float, table, [Codes::TABLE]);
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread; i < Codes::TABLE; i += blockDim.x * blockDim.y) table[i] = weights.table[i];
  __syncthreads();
  return table;
}

// ---- products with few rows

constexpr int ROWS = 2;  // rows of the weights per warp

// Compute out [z, m, n] = x [z, m, k] @ weights [z, n, k]^T for every z = blockIdx.z; unless `stacked`, all share x
// [m, k]. A warp computes ROWS columns of B rows of the result: its lanes split k and reduce by shuffles.
template <class Codes, class Scale, class Zero, class T, int E, int B>
__global__ void product(const T* __restrict__ x, T* __restrict__ out, const void* __restrict__ codes,
                        const Scale* __restrict__ scale, const Zero* __restrict__ zero, const Weights<Codes> weights,
                        int m, int n, int k, int stacked) {
  const float* table = shared_table(weights);
  const int first = (blockIdx.x * blockDim.y + threadIdx.y) * ROWS, first_x_row = blockIdx.y * B,
            matrix_row = blockIdx.z * n;
  if (first >= n) return;
  if (stacked) x += static_cast<long long>(blockIdx.z) * m * k;
  out += static_cast<long long>(matrix_row) * m;
  float sum[ROWS][B] = {};
#pragma unroll 2
  for (int column = threadIdx.x * E; column < k; column += 32 * E) {
    float lhs[B][E];
#pragma unroll
    for (int b = 0; b < B; b++)  // rows after the last one repeat it, and are not written
      Cast<T>::load(x, static_cast<long long>(min(first_x_row + b, m - 1)) * k + column, table, lhs[b]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = matrix_row + min(first + r, n - 1);
      float rhs[E];
      Codes::load(codes, static_cast<long long>(row) * k + column, table, rhs);
      decompress(rhs, scale, zero, weights, row, column);
#pragma unroll
      for (int e = 0; e < E; e++)
#pragma unroll
        for (int b = 0; b < B; b++) sum[r][b] += rhs[e] * lhs[b][e];
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      for (int step = 16; step; step /= 2) sum[r][b] += __shfl_xor_sync(0xffffffffu, sum[r][b], step);
      if (threadIdx.x == 0 && first + r < n && first_x_row + b < m)
        out[static_cast<long long>(first_x_row + b) * n + first + r] = T(sum[r][b]);
    }
}

constexpr int SLICES = 8;  // rows of the weights that a block of product_columns reads at a time

// Compute parts [gridDim.z / matrices, matrices, m, n] = x [matrices, m, k] @ weights [matrices, k, n]. Each part sums
// over some rows of the weights (split-K); x is as for `product`. A thread computes E columns of B rows; the sums of
// the SLICES threads of a column are added through shared memory.
template <class Codes, class Scale, class Zero, class T, class P, int E, int B>
__global__ void __launch_bounds__(256)
    product_columns(const T* __restrict__ x, P* __restrict__ parts, const void* __restrict__ codes,
                    const Scale* __restrict__ scale, const Zero* __restrict__ zero, const Weights<Codes> weights, int m,
                    int n, int k, int stacked, int matrices) {
  OVGPU_SHARED(float, slice_sums, [SLICES][32 * E + 1]);
  const float* table = shared_table(weights);
  const int block = blockIdx.x * 32 * E, column = block + threadIdx.x * E, first_x_row = blockIdx.y * B;
  const int part = blockIdx.z / matrices, matrix = blockIdx.z % matrices, step = gridDim.z / matrices * SLICES;
  if (stacked) x += static_cast<long long>(matrix) * m * k;
  float sum[B][E] = {};
  if (column < n) {
#pragma unroll 2
    for (int row = part * SLICES + threadIdx.y; row < k; row += step) {
      const int weight_row = matrix * k + row;
      float rhs[E];
      Codes::load(codes, static_cast<long long>(weight_row) * n + column, table, rhs);
      decompress(rhs, scale, zero, weights, weight_row, column);
#pragma unroll
      for (int b = 0; b < B; b++) {
        const float lhs = static_cast<float>(x[static_cast<long long>(min(first_x_row + b, m - 1)) * k + row]);
#pragma unroll
        for (int e = 0; e < E; e++) sum[b][e] += lhs * rhs[e];
      }
    }
  }
  for (int b = 0; b < B && first_x_row + b < m; b++) {
    __syncthreads();  // the previous sums may still be read
#pragma unroll
    for (int e = 0; e < E; e++) {
      float selected = 0;
#pragma unroll
      for (int i = 0; i < B; i++) selected = i == b ? sum[i][e] : selected;  // indexing would use local memory
      slice_sums[threadIdx.y][threadIdx.x * E + e] = selected;
    }
    __syncthreads();
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * E && block + i < n; i += 32 * SLICES) {
      float total = 0;
      for (int slice = 0; slice < SLICES; slice++) total += slice_sums[slice][i];
      parts[(static_cast<long long>(blockIdx.z) * m + first_x_row + b) * n + block + i] = P(total);
    }
  }
}

// Sum `count` parts.
template <class T>
__global__ void add_parts(const float* __restrict__ parts, T* __restrict__ out, int count, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int part = 0; part < count; part++) sum += parts[static_cast<long long>(part) * size + i];
  out[i] = T(sum);
}

// ---- decompression

__device__ __forceinline__ int source_row(const None*, int n, int first, int) { return first + n; }

template <class Index>
__device__ __forceinline__ int source_row(const Index* index, int n, int, int rows) {
  return normalize_index(index[n], rows);
}

// Decompress a part of the weights into out [count, width]: the part that begins at (row, column), or the rows that
// `index` lists. Indices out of range give zeros.
template <class Codes, class Scale, class Zero, class T, class Index, int E>
__global__ void expand(T* __restrict__ out, const Index* __restrict__ index, const void* __restrict__ codes,
                       const Scale* __restrict__ scale, const Zero* __restrict__ zero, const Weights<Codes> weights,
                       int count, int width, int row, int column, int rows, int columns) {
  const float* table = shared_table(weights);
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * E;
  if (i >= width) return;
  for (int n = blockIdx.y; n < count; n += gridDim.y) {
    const int at = source_row(index, n, row, rows);
    struct alignas(E == 1 ? sizeof(T) : 16) Words {
      T items[E];
    } words;
    float values[E] = {};
    if (at >= 0) {
      Codes::load(codes, static_cast<long long>(at) * columns + column + i, table, values);
      decompress(values, scale, zero, weights, at, column + i);
    }
#pragma unroll
    for (int e = 0; e < E; e++) words.items[e] = T(values[e]);
    *reinterpret_cast<Words*>(out + static_cast<long long>(n) * width + i) = words;
  }
}
