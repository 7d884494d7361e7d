// Steps of attend_mma (attention_mma.cu): staging in shared memory, products of a warp on tensor cores, masks, online
// softmax, and merging of sums for different keys.
#pragma once

#include "attention_mma.cuh"
#include "vectors.cuh"

constexpr int WARPS = 4;                  // per block
constexpr int THREADS = WARPS * 32;       // per block
constexpr float LOG2E = 1.44269504f;      // log2(e): scores are base-2 logarithms
constexpr float LOWEST_SCORE = -3.4e38f;  // finite, and near the lowest f32

// Return a mask element times log2(e), in the unit of the scores. The lowest numbers of bf16 and f32 must not become
// -inf, which would hide the key.
__device__ __forceinline__ float in_log2(__half x) { return float(x) * LOG2E; }
__device__ __forceinline__ float in_log2(float x) { return x == minus_infinity() ? x : fmaxf(x * LOG2E, LOWEST_SCORE); }
__device__ __forceinline__ float in_log2(__nv_bfloat16 x) { return in_log2(float(x)); }

// A staged array with rows of N elements. Chunks change places within groups of SWAPPED chunks of a row: chunk c of row
// r is stored where chunk c ^ (r % 8 * SWAPPED / 8) would be. So ldmatrix finds the same column of eight rows in
// different banks. Padding after each row would do as well, but copy_async is slower if the 128 bytes of eight lanes
// are not aligned.
template <class T, int N>
struct Staged {
  static constexpr int CHUNKS = N / CHUNK<T>;                                    // of a row
  static constexpr int SWAPPED = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;  // chunks of a group
  static constexpr int GROUP = SWAPPED * CHUNK<T>;                               // elements of a group

  static __device__ __forceinline__ int index(int row, int column) {
    return row * N + (column ^ row % 8 * SWAPPED / 8 * CHUNK<T>);
  }
  // Return the index of the element that is `rows` and `columns` behind the one at `index`, which is in the first two
  // chunks of its row. `rows` is a multiple of 8, and `columns` a multiple of two chunks.
  static __device__ __forceinline__ int further(int index, int rows, int columns) {
    return (index ^ columns % GROUP) + columns / GROUP * GROUP + rows * N;
  }
};

// Stage N columns of ROWS rows in shared memory, with zeros outside of the array. Eight threads copy eight chunks of a
// row. V is the number of elements per copy: a chunk, aligned to 16 bytes and complete after wait_copies; or 1.
template <int ROWS, int N, int V, class T, class I>
__device__ __forceinline__ void stage(const T* from, I stride, I rows, I columns, T* to, int thread = threadIdx.x) {
  constexpr int EACH = CHUNK<T>;
  const int row = thread / 8, column = thread % 8 * EACH;
  from += row * stride + column;
  to += Staged<T, N>::index(row, column);
#pragma unroll(V == 1 ? 1 : ROWS)  // unrolled copies of single elements would need all registers
  for (int r = 0; r < ROWS; r += THREADS / 8) {
#pragma unroll
    for (int c = 0; c < N; c += 8 * EACH) {
      if (column + c >= N) continue;
      const T* source = from + r * stride + c;
      T* target = to + r * N + c;
      if constexpr (V == EACH) {
        copy_async(target, source, row + r < rows && column + c < columns);
      } else {
        T part[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
          part[j] = row + r < rows && column + c + j < columns ? source[j] : T(0.f);
        }
        store(part, target);
      }
    }
  }
}

// Stage N columns of ROWS rows in shared memory, as `stage` does with chunks; `at` gives the offset of a row.
template <int ROWS, int N, class T, class I, class F>
__device__ __forceinline__ void stage_rows(const T* from, const F& at, I rows, I columns, T* to,
                                           int thread = threadIdx.x) {
  constexpr int EACH = CHUNK<T>;
  const int row = thread / 8, column = thread % 8 * EACH;
#pragma unroll
  for (int r = 0; r < ROWS; r += THREADS / 8) {
    const bool valid = row + r < rows;
    const T* const source = from + (valid ? at(static_cast<I>(row + r)) : 0) + column;
#pragma unroll
    for (int c = 0; c < N; c += 8 * EACH)
      if (column + c < N)
        copy_async(to + Staged<T, N>::index(row, column) + r * N + c, source + c, valid && column + c < columns);
  }
}

// Round the f32 elements that this thread has staged to TF32; those of 16 bits stay as they are.
template <int ROWS, int N, class T>
__device__ __forceinline__ void round_staged(T* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const int row = threadIdx.x / 8, column = threadIdx.x % 8 * CHUNK<T>;
    to += Staged<T, N>::index(row, column);
#pragma unroll
    for (int r = 0; r < ROWS; r += THREADS / 8) {
#pragma unroll
      for (int c = 0; c < N; c += 8 * CHUNK<T>) {
        if (column + c >= N) continue;
        uint4* at = reinterpret_cast<uint4*>(to + r * N + c);
        const uint4 x = *at;
        *at = {round_to_tf32(__uint_as_float(x.x)), round_to_tf32(__uint_as_float(x.y)),
               round_to_tf32(__uint_as_float(x.z)), round_to_tf32(__uint_as_float(x.w))};
      }
    }
  }
}

// Compute score += q k^T of a warp. `at_q` and `at_k` are the indices of the rows that this lane passes to ldmatrix,
// which loads 16 rows of two chunks of q, and of two groups of 8 keys.
template <int DEPTH, class T, int TILES, int N>
__device__ __forceinline__ void add_products(const T* q, int at_q, const T* k, int at_k, float (&score)[TILES][N][4]) {
#pragma unroll
  for (int d = 0; d < DEPTH; d += 2 * CHUNK<T>) {
    unsigned a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) load_matrices(q + Staged<T, DEPTH>::further(at_q, m * 16, d), a[m]);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned b[4];
      load_matrices(k + Staged<T, DEPTH>::further(at_k, n * 8, d), b);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply_add<T>(a[m], b[0], b[1], score[m][n]);
        multiply_add<T>(a[m], b[2], b[3], score[m][n + 1]);
      }
    }
  }
}

// Compute sum += weight v of a warp, with 16-bit operands. The registers of the scores already have the layout of the
// left operand of mma. `at` is the index of the row that this lane passes to ldmatrix.
template <class T, int WIDTH, int TILES, int N>
__device__ __forceinline__ void add_weighted(const float (&weight)[TILES][N][4], const T* v, int at,
                                             float (&sum)[TILES][WIDTH / 8][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    unsigned a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* pair = weight[m][n + i / 2] + i % 2 * 2;
        a[m][i] = pack_rounded<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int c = 0; c < WIDTH; c += 16) {
      unsigned b[4];
      load_transposed(v + Staged<T, WIDTH>::further(at, n * 8, c), b);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply_add<T>(a[m], b[0], b[1], sum[m][c / 8]);
        multiply_add<T>(a[m], b[2], b[3], sum[m][c / 8 + 1]);
      }
    }
  }
}

// Compute sum += weight v in TF32. The sum may take keys in any order: column j of the left operand is key 2 j of
// eight, and column j + 4 is key 2 j + 1, as in the registers of the scores. `even` and `odd` are the indices of keys 2
// (lane % 4) and 2 (lane % 4) + 1, column lane / 4.
template <int WIDTH, int TILES, int N>
__device__ __forceinline__ void add_weighted_tf32(const float (&weight)[TILES][N][4], const float* v, int even, int odd,
                                                  float (&sum)[TILES][WIDTH / 8][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    unsigned a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[m][i] = round_to_tf32(weight[m][n][i % 2 * 2 + i / 2]);
    }
#pragma unroll
    for (int c = 0; c < WIDTH; c += 8) {
      const unsigned b0 = __float_as_uint(v[Staged<float, WIDTH>::further(even, n * 8, c)]);
      const unsigned b1 = __float_as_uint(v[Staged<float, WIDTH>::further(odd, n * 8, c)]);
#pragma unroll
      for (int m = 0; m < TILES; m++) multiply_add<float>(a[m], b0, b1, sum[m][c / 8]);
    }
  }
}

// Stage the mask for KEYS keys and `count` rows, with zeros outside of the array: all rows of the block, or one that
// they share. `at` gives the offset of a row. The pitch of staged rows is KEYS elements plus 16 bytes.
template <int KEYS, class Element, class I, class F>
__device__ __forceinline__ void stage_mask(const Element* from, const F& at, int count, I column_stride, I rows,
                                           I columns, bool vectored, Element* to) {
  constexpr int EACH = 16 / sizeof(Element), CHUNKS = KEYS / EACH;
  if (vectored) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count * CHUNKS; i += THREADS) {
      const int row = i / CHUNKS, column = i % CHUNKS * EACH;
      copy_async(to + row * (KEYS + EACH) + column, from + at(row) + column, row < rows && column < columns);
    }
  } else {
#pragma unroll 1  // saves registers
    for (int i = threadIdx.x; i < count * KEYS; i += THREADS) {
      const int row = i / KEYS, column = i % KEYS;
      to[row * (KEYS + EACH) + column] =
          row < rows && column < columns ? from[at(row) + column * column_stride] : Element(0.f);
    }
  }
}

// Scale the scores and apply the mask; `mask` points to this lane's first row and column. Keys from `keys` on are
// hidden. With a causal mask, `row` attends to the keys up to its own index.
template <class T, Mask MASK, class Element, class I, int TILES, int N>
__device__ __forceinline__ void add_mask(const Element* mask, int pitch, I row, I key, I keys, float scale_log2,
                                         float (&score)[TILES][N][4]) {
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int n = 0; n < N; n++) {
        Packed<Element, 2> pair;
        if (MASK == ADDED || MASK == BOOLEAN) {
          pair = *reinterpret_cast<const Packed<Element, 2>*>(mask + (m * 16 + h * 8) * pitch + n * 8);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& s = score[m][n][2 * h + i];
          bool seen = key + n * 8 + i < keys;
          if (MASK == CAUSAL) seen = seen && key + n * 8 + i <= row + m * 16 + h * 8;
          s *= scale_log2;
          if constexpr (MASK == BOOLEAN) seen = seen && pair.at[i];
          if constexpr (MASK == ADDED) s += in_log2(pair.at[i]);
          s = seen ? s : minus_infinity();
        }
      }
    }
  }
}

// Perform one step of online softmax (Milakov & Gimelshein 2018): turn the scores into weights, update maxima and
// totals, and rescale the sums so far. A score times `unit` is a base-2 logarithm. The loops interleave the rows, so
// that independent instructions follow each other.
template <int WIDTH, int TILES, int N>
__device__ __forceinline__ void update_softmax(float unit, float (&score)[TILES][N][4], float (&maximum)[TILES][2],
                                               float (&total)[TILES][2], float (&sum)[TILES][WIDTH / 8][4]) {
  float highest[TILES][2], rescale[TILES][2], part[TILES][2][2] = {};
#pragma unroll
  for (int i = 0; i < TILES * 2; i++)
    highest[i / 2][i % 2] = fmaxf(score[i / 2][0][i % 2 * 2], score[i / 2][0][i % 2 * 2 + 1]);
#pragma unroll
  for (int n = 1; n < N; n++) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      const float* pair = score[i / 2][n] + i % 2 * 2;
      highest[i / 2][i % 2] = fmaxf(highest[i / 2][i % 2], fmaxf(pair[0], pair[1]));
    }
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      float& x = highest[i / 2][i % 2];
      x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
  }
#pragma unroll
  for (int i = 0; i < TILES * 2; i++) {
    float &x = highest[i / 2][i % 2], &running = maximum[i / 2][i % 2];
    const float updated = fmaxf(running, x * unit);
    x = softmax_shift(updated);
    rescale[i / 2][i % 2] = exp2_approximate(running - x);
    running = updated;
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      float* pair = score[i / 2][n] + i % 2 * 2;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        pair[j] = exp2_approximate(pair[j] * unit - highest[i / 2][i % 2]);
        part[i / 2][i % 2][j] += pair[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TILES * 2; i++) {
    total[i / 2][i % 2] = total[i / 2][i % 2] * rescale[i / 2][i % 2] + (part[i / 2][i % 2][0] + part[i / 2][i % 2][1]);
  }
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      sum[i / 2][n][i % 2 * 2] *= rescale[i / 2][i % 2], sum[i / 2][n][i % 2 * 2 + 1] *= rescale[i / 2][i % 2];
    }
  }
}

// Merge the parts of a warp's rows, which are `pitch` elements apart between splits. `write` takes row, column, maximum
// and total of a row, and its sums of four columns.
template <int WIDTH, int ROWS, class W>
__device__ __forceinline__ void merge_parts(const float* parts, int splits, int pitch, const W& write) {
  constexpr int LOADS = 8;  // splits whose parts are loaded at once
#pragma unroll 2
  for (int i = threadIdx.x % 32; i < ROWS * WIDTH / 4; i += 32) {
    const int row = i / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
    const float* const from = parts + row * (WIDTH + 4);
    float4 sum = {};
    float highest = minus_infinity(), total = 0;
#pragma unroll 1
    for (int first = 0; first < splits; first += LOADS) {
      float4 loaded[LOADS];
      float2 state[LOADS];
#pragma unroll
      for (int s = 0; s < LOADS; s++) {
        const float* const part = from + min(first + s, splits - 1) * pitch;
        loaded[s] = __ldcg(reinterpret_cast<const float4*>(part + column));
        state[s] = __ldcg(reinterpret_cast<const float2*>(part + WIDTH));
      }
#pragma unroll
      for (int s = 0; s < LOADS; s++) {
        if (first + s >= splits) break;
        const float updated = fmaxf(highest, state[s].x), shift = softmax_shift(updated);
        const float old = exp2_approximate(highest - shift), own = exp2_approximate(state[s].x - shift);
        sum.x = sum.x * old + loaded[s].x * own, sum.y = sum.y * old + loaded[s].y * own;
        sum.z = sum.z * old + loaded[s].z * own, sum.w = sum.w * old + loaded[s].w * own;
        total = total * old + state[s].y * own;
        highest = updated;
      }
    }
    write(row, column, highest, total, sum);
  }
}
