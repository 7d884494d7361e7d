// Scaled dot product attention on tensor cores, after FlashAttention-2 (Dao 2023). q k^T and weights v are products of
// 16-bit matrices, or of f32 matrices rounded to TF32, with sums in f32; scores and weights stay in registers.
#include "attention_cluster.cuh"
#include "attention_mma.cuh"
#include "vectors.cuh"

// A block's part of the keys: all of them, for rows of one head or of several that share keys; or one of several parts,
// which are merged in device memory or in a cluster.
enum Parts { WHOLE, GROUPED, IN_MEMORY, IN_CLUSTER };
constexpr int WARPS = 4, THREADS = WARPS * 32;
constexpr float LOG2E = 1.44269504f;

constexpr int MARK_QUERIES = 16, MARK_KEYS = 64;  // size of the mask tiles that mark_tiles classifies

// Classes of mask tiles: all elements are 0; mixed; all keys are hidden; all elements are below LOWEST.
enum Mark : unsigned char { OPEN, MIXED, HIDDEN, LOW };

// Exported decoders hide scores with the lowest number of f16 instead of -inf. A LOW tile is treated as hidden if each
// of its rows has a key above VISIBLE elsewhere. This assumes that scores are far smaller than the 16384 in between.
constexpr float LOWEST = -32768.f, VISIBLE = -16384.f;

// Return a mask element times log2(e), in the unit of the scores. The lowest numbers of bf16 and f32 must not become
// -inf, which would hide the key.
__device__ __forceinline__ float in_log2(__half x) { return float(x) * LOG2E; }
__device__ __forceinline__ float in_log2(float x) { return x == minus_infinity() ? x : fmaxf(x * LOG2E, -3.4e38f); }
__device__ __forceinline__ float in_log2(__nv_bfloat16 x) { return in_log2(float(x)); }

// A staged array with rows of N elements. The chunks of a row change places within groups, so that eight rows have a
// column in different banks. Padding after each row would do that as well, but copy_async is slower if the 128 bytes of
// eight lanes are not aligned.
template <class T, int N>
struct Staged {
  static constexpr int CHUNKS = N / CHUNK<T>, SWAPPED = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
  static constexpr int GROUP = SWAPPED * CHUNK<T>;

  static __device__ __forceinline__ int index(int row, int column) {
    return row * N + (column ^ row % 8 * SWAPPED / 8 * CHUNK<T>);
  }
  // Return the index of the element `rows` and `columns` behind that at `index`, which is in the first two chunks of its
  // row. `rows` is a multiple of 8, and `columns` of two chunks.
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
__device__ __forceinline__ void stage_rows(const T* from, const F& at, I rows, I columns, T* to) {
  constexpr int EACH = CHUNK<T>;
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * EACH;
#pragma unroll
  for (int r = 0; r < ROWS; r += THREADS / 8) {
    const bool valid = row + r < rows;
    const T* const source = from + (valid ? at(static_cast<I>(row + r)) : I(0)) + column;
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

// Compute sum += weight v of a warp, in 16 bits. The registers of the scores already have the layout of the left
// operand of mma. `at` is the index of the row that this lane passes to ldmatrix.
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

// The same in TF32. The order of keys in the sum is free: column j of the left operand is key 2 j of eight, and column
// j + 4 is key 2 j + 1, as in the registers of the scores. `even` and `odd` are the indices of keys 2 (lane % 4) and
// 2 (lane % 4) + 1, column lane / 4.
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

// Classify the tiles of mask [planes, queries, keys], whose rows can be read 8 elements at a time. Write marks
// [planes][key tiles][query tiles]; query tiles are padded to gridDim.x, a multiple of 8. A block classifies the key
// tiles of one query tile.
template <class T, Mask MASK>
__global__ void __launch_bounds__(512) mark_tiles(const void* mask, int queries, int keys, unsigned char* marks) {
  using Element = MaskElement<T, MASK>;
  using Chunk = Packed<Element, 8>;
  constexpr int MARK_WARPS = 512 / 32;
  OVGPU_DYN_SHARED(unsigned char, tile_marks);
  OVGPU_SHARED(float, maxima, [MARK_WARPS][MARK_QUERIES]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = (keys + MARK_KEYS - 1) / MARK_KEYS;
  const Element* rows = static_cast<const Element*>(mask) + static_cast<long long>(blockIdx.y) * queries * keys;
  float row_maxima[4];
  start_next_launch();
  wait_for_launches();
#pragma unroll
  for (int i = 0; i < 4; i++) row_maxima[i] = minus_infinity();
#pragma unroll 2
  for (int tile = warp; tile < tiles; tile += MARK_WARPS) {
    const int key = tile * MARK_KEYS + lane % 8 * 8;
    Chunk chunk[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = blockIdx.x * MARK_QUERIES + i * 4 + lane / 8;
      if (row < queries && key < keys) {
        chunk[i] = *reinterpret_cast<const Chunk*>(rows + static_cast<long long>(row) * keys + key);
      }
    }
    float highest = minus_infinity(), lowest = -minus_infinity();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = blockIdx.x * MARK_QUERIES + i * 4 + lane / 8;
      if (row >= queries || key >= keys) continue;
      float top = minus_infinity();
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float x = MASK == BOOLEAN ? (chunk[i].at[j] ? 0.f : minus_infinity()) : float(chunk[i].at[j]);
        top = fmaxf(top, x);
        lowest = x == 0.f ? fminf(lowest, 0.f) : minus_infinity();
      }
      row_maxima[i] = fmaxf(row_maxima[i], top);
      highest = fmaxf(highest, top);
    }
    const bool open = __all_sync(0xffffffffu, lowest >= 0.f);
    const bool hidden = __all_sync(0xffffffffu, highest == minus_infinity());
    const bool low = __all_sync(0xffffffffu, highest < LOWEST);
    if (lane == 0) tile_marks[tile] = hidden ? HIDDEN : open ? OPEN : low ? LOW : MIXED;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    for (int step = 1; step < 8; step *= 2) {
      row_maxima[i] = fmaxf(row_maxima[i], __shfl_xor_sync(0xffffffffu, row_maxima[i], step));
    }
    if (lane % 8 == 0) maxima[warp][i * 4 + lane / 8] = row_maxima[i];
  }
  __syncthreads();
  float own = minus_infinity();
  for (int w = 0; w < MARK_WARPS; w++) own = fmaxf(own, maxima[w][lane % MARK_QUERIES]);
  const bool visible =
      __all_sync(0xffffffffu, own > VISIBLE || blockIdx.x * MARK_QUERIES + lane % MARK_QUERIES >= queries);
  for (int tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
    const unsigned char mark = tile_marks[tile];
    marks[(static_cast<long long>(blockIdx.y) * tiles + tile) * gridDim.x + blockIdx.x] = mark != LOW ? mark
                                                                                          : visible   ? HIDDEN
                                                                                                      : MIXED;
  }
}

// Bitmasks over 32 mask tiles of keys. A `skipped` tile hides all its keys from all queries of the block, an `open` one
// changes none of their scores. `absent` and `plain` are the same for the queries of the warp.
struct Window {
  unsigned skipped, open, absent, plain;
};

// Load the window for a block of QUERY_TILES adjacent query tiles, and for a warp that has OWN of them, from number
// `begin` on.
template <int QUERY_TILES, int OWN>
__device__ __forceinline__ Window load_window(const unsigned char* marks, int tiles, int pitch, int first_tile,
                                              int begin) {
  const int tile = first_tile + static_cast<int>(threadIdx.x) % 32;
  constexpr unsigned long long ALL = 0x0202020202020202ull;
  constexpr unsigned long long FULL = QUERY_TILES == 8 ? ALL : ALL >> 32;
  unsigned long long seen = FULL;
  if (tile < tiles) {
    const unsigned char* row_marks = marks + static_cast<long long>(tile) * pitch;
    if (QUERY_TILES == 8) seen = *reinterpret_cast<const unsigned long long*>(row_marks);
    if (QUERY_TILES == 4) seen = *reinterpret_cast<const unsigned*>(row_marks);
  }
  constexpr unsigned long long PART = (1ull << 8 * OWN) - 1;
  const unsigned long long own = seen >> 8 * begin & PART;
  return {__ballot_sync(0xffffffffu, seen == FULL), __ballot_sync(0xffffffffu, seen == 0),
          __ballot_sync(0xffffffffu, own == (ALL & PART)), __ballot_sync(0xffffffffu, own == 0)};
}

// Stage the mask for `count` rows, ROWS or 1 that they share, and KEYS keys, with zeros outside of the array. `at` gives
// the offset of a row.
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

// Perform one step of online softmax (Milakov & Gimelshein 2018). Turn the scores, which times `unit` are base-2
// logarithms, into weights; update maxima and totals; rescale the sums so far. The loops interleave the rows, so that
// independent instructions follow each other.
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
  constexpr int LOADS = 8;  // splits whose parts are loaded at a time
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

// Attention for more than a few queries. A warp computes TILES x 16 rows of the output, in steps of KEYS keys;
// blockIdx.x enumerates batches and blocks of queries. DEPTH and WIDTH are depth and width rounded up to multiples of
// 16. A lane has rows lane / 4 and lane / 4 + 8 of each tile, and columns 2 (lane % 4) and the next one of every 8.
// Keys and values are double-buffered: the next ones arrive during the products. Maxima are base-2 logarithms. With
// `marks`, the result of mark_tiles, hidden tiles are skipped. In TF32, short rows leave shared memory for four blocks on
// a multiprocessor, and the launch bounds leave them registers.
// A block's rows are those of one head if PARTS is WHOLE, else those of `heads`. Several blocks may split the keys of a
// block of rows (flash-decoding, Dao et al. 2023).
// IN_MEMORY: blockIdx.y enumerates the parts. Each warp leaves its sums in parts [blocks][splits][rows][WIDTH + 4], in
// which maximum and total follow the sums of a row; the last warp to arrive merges them. `arrived` [blocks, WARPS] is
// zero before and after. IN_CLUSTER: the blocks of a row of the grid, a cluster, merge their sums in shared memory.
template <class T, Mask MASK, int DEPTH, int WIDTH, int TILES, int KEYS, int V, class I, int R, class Out = T,
          Parts PARTS = WHOLE>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 4 && TILES == 1 && DEPTH <= 64 && WIDTH <= 64 ? 4 : 2)
    attend_mma(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, Out* out,
               Axes<I, R, OPERANDS<Out>> batch, Strides<I> stride, I queries, I keys, I depth, I width, float factor,
               const long long* length, const unsigned char* marks, const float* factors, Quantizer quantizer,
               Heads heads, float* parts, unsigned* arrived) {
  constexpr int ROWS = WARPS * TILES * 16;
  using Element = MaskElement<T, MASK>;
  OVGPU_DYN_SHARED(T, q_tile);
  constexpr int STAGE = KEYS * (DEPTH + WIDTH);  // elements of keys and values; there are two buffers
  T* k_tile = q_tile + ROWS * DEPTH;
  T* v_tile = k_tile + KEYS * DEPTH;
  start_next_launch();
  wait_for_launches();
  constexpr bool ONE_HEAD = PARTS == WHOLE, SPLITS = PARTS == IN_MEMORY || PARTS == IN_CLUSTER;
  const I part = PARTS == IN_CLUSTER ? blockIdx.x : blockIdx.y, block = PARTS == IN_CLUSTER ? blockIdx.y : blockIdx.x;
  const I max_keys = keys;
  if (length) keys = static_cast<I>(*length);
  const I blocks = (queries + ROWS - 1) / ROWS;
  if constexpr (V == 1) marks = nullptr;
  I head = block / blocks, first_query = block % blocks;
  if (MASK == CAUSAL || marks) {  // blocks with the most keys start first, in all heads
    const I heads = static_cast<I>(PARTS == IN_CLUSTER ? gridDim.y : gridDim.x) / blocks;
    head = block % heads, first_query = blocks - 1 - block / heads;
  }
  first_query *= ROWS;
  I mask_at, sink_at;
  select_batch(batch, head, q, k, v, mask_at, sink_at, out);
  if (scale) factor = float(*scale);
  const float scale_log2 = factor * LOG2E;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // the compiler sees that it is uniform in a warp
  const int lane = threadIdx.x % 32;
  const I top = first_query + warp * TILES * 16;  // first row of the warp
  const I row = top + lane / 4;
  const int at_q = Staged<T, DEPTH>::index(warp * TILES * 16 + lane % 16, lane / 16 * CHUNK<T>);
  const int at_k = Staged<T, DEPTH>::index(lane / 16 * 8 + lane % 8, lane / 8 % 2 * CHUNK<T>);
  Element* mask_tile = reinterpret_cast<Element*>(k_tile + 2 * STAGE);
  const bool shares_mask = !stride.mask && (ONE_HEAD || !heads.mask);
  const int mask_pitch = shares_mask ? 0 : KEYS + 16 / static_cast<int>(sizeof(Element));
  const Element* mask_rows = mask_tile + (warp * TILES * 16 + lane / 4) * mask_pitch + lane % 4 * 2;
  const bool vectored =
      is_vectored<Element, 16 / sizeof(Element)>(mask, mask_at, stride.mask, stride.column, max_keys) &&
      (ONE_HEAD || heads.mask % (16 / static_cast<int>(sizeof(Element))) == 0);
  OVGPU_SHARED(Window, windows, [WARPS]);  // in shared memory to save registers
  OVGPU_SHARED(const unsigned char*, own_marks, [WARPS]);
  OVGPU_SHARED(Out*, own_out, [WARPS]);
  if (lane == 0) own_out[warp] = out;
  __syncwarp();
  Window& window = windows[warp];
  const int key_tiles = static_cast<int>((max_keys + MARK_KEYS - 1) / MARK_KEYS);
  const int pitch = static_cast<int>((queries + 127) / 128 * 8);
  if (marks) {
    const long long plane = static_cast<long long>(mask_at / (queries * max_keys));
    const unsigned char* from = marks + plane * key_tiles * pitch + first_query / MARK_QUERIES;
    if (lane == 0) own_marks[warp] = from;
    __syncwarp();
  }

  float sum[TILES][WIDTH / 8][4] = {}, maximum[TILES][2], total[TILES][2];
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const I r = row + m * 16 + h * 8;
      const bool has_sink = !SPLITS && sink && r < queries;
      const I at = sink_at + heads.template offset<ONE_HEAD>(r, stride.sink, heads.sink);
      maximum[m][h] = has_sink ? in_log2(sink[at]) : minus_infinity();
      total[m][h] = has_sink && lane % 4 == 0 ? 1.f : 0.f;  // this lane's part of the row's total
    }
  }
  I visible = MASK == CAUSAL && first_query + ROWS < keys ? first_query + ROWS : keys, begin = 0;
  int splits = 1;
  if constexpr (SPLITS) {
    splits = split_keys<KEYS, I>(visible, PARTS == IN_CLUSTER ? gridDim.x : gridDim.y, part, begin, visible);
    if (static_cast<int>(part) >= splits && (PARTS == IN_MEMORY || splits == 1)) return;
  }
  int window_index = -1;
  const auto next_keys = [&](I begin) {  // the first key from `begin` on that the block attends to
    while (marks && begin < visible) {
      const int key_tile = static_cast<int>(begin / MARK_KEYS);
      if (key_tile / 32 != window_index) {
        window_index = key_tile / 32;
        const Window seen =
            load_window<ROWS / MARK_QUERIES, TILES>(own_marks[warp], key_tiles, pitch, window_index * 32, warp * TILES);
        __syncwarp();  // all lanes have read the last window
        if (lane == 0) window = seen;
        __syncwarp();
      }
      if (!(window.skipped >> key_tile % 32 & 1)) break;
      begin = static_cast<I>(key_tile + 1) * MARK_KEYS;
    }
    return begin;
  };
  const auto stage_keys = [&](I from, int buffer) {
    int thread = threadIdx.x;
    // The compiler does not move a shuffle out of the loop. Addresses that depend on it take registers only here.
    if constexpr (TILES * WIDTH > 128) thread = __shfl_sync(0xffffffffu, thread, lane);
    stage<KEYS, DEPTH, V>(k + from * stride.k, stride.k, keys - from, depth, k_tile + buffer * STAGE, thread);
    stage<KEYS, WIDTH, V>(v + from * stride.v, stride.v, keys - from, width, v_tile + buffer * STAGE, thread);
  };
  if constexpr (!ONE_HEAD) {
    stage_rows<ROWS, DEPTH>(
        q, [&](I r) { return heads.template offset<false>(first_query + r, stride.q, heads.q); }, queries - first_query,
        depth, q_tile);
  } else {
    stage<ROWS, DEPTH, V>(q + first_query * stride.q, stride.q, queries - first_query, depth, q_tile);
  }
  begin = next_keys(begin);
  if (begin < visible) stage_keys(begin, 0);
  if constexpr (sizeof(T) == sizeof(float)) {
    wait_copies();
    round_staged<ROWS, DEPTH>(q_tile);
  }
  for (int buffer = 0; begin < visible; buffer ^= 1) {
    const I first_key = begin;
    const int bit = static_cast<int>(first_key / MARK_KEYS) % 32;
    const bool plain = marks && __any_sync(0xffffffffu, window.plain >> bit & 1);
    const bool mixed =
        (MASK == ADDED || MASK == BOOLEAN) && !(marks && first_key + KEYS <= keys && window.open >> bit & 1);
    const bool active = top < queries && (MASK != CAUSAL || first_key < top + TILES * 16) &&
                        !(marks && __any_sync(0xffffffffu, window.absent >> bit & 1));
    wait_copies();
    round_staged<KEYS, DEPTH>(k_tile + buffer * STAGE);
    round_staged<KEYS, WIDTH>(v_tile + buffer * STAGE);
    __syncthreads();  // keys and values have arrived, and the previous ones have been read
    if (mixed) {
      stage_mask<KEYS>(
          static_cast<const Element*>(mask) + mask_at + first_key * stride.column,
          [&](I r) { return heads.template offset<ONE_HEAD>(first_query + r, stride.mask, heads.mask); },
          shares_mask ? 1 : ROWS, stride.column, queries - first_query, max_keys - first_key, vectored, mask_tile);
      commit_copies();
    }
    begin = next_keys(first_key + KEYS);
    if (begin < visible) stage_keys(begin, buffer ^ 1);
    float score[TILES][KEYS / 8][4] = {};
    if (active) add_products<DEPTH>(q_tile, at_q, k_tile, at_k + buffer * STAGE, score);
    if (mixed) {
      commit_copies();  // the next keys and values need not have arrived
      wait_copies_but<1>();
      __syncthreads();  // the mask has arrived
    }
    if (!active) continue;
    const bool unmasked = scale_log2 >= 0 && first_key + KEYS <= keys &&
                          (MASK == NONE || plain || (MASK == CAUSAL && first_key + KEYS <= top + 1));
    if (!unmasked)
      add_mask<T, MASK>(mask_rows, mask_pitch, row, first_key + static_cast<I>(lane % 4 * 2), keys, scale_log2, score);
    update_softmax<WIDTH>(unmasked ? scale_log2 : 1.f, score, maximum, total, sum);
    if constexpr (sizeof(T) == sizeof(float)) {
      const int even = Staged<T, WIDTH>::index(lane % 4 * 2, lane / 4) + buffer * STAGE;
      const int odd = Staged<T, WIDTH>::index(lane % 4 * 2 + 1, lane / 4) + buffer * STAGE;
      add_weighted_tf32<WIDTH>(score, v_tile, even, odd, sum);
    } else {
      const int at = Staged<T, WIDTH>::index(lane % 16, lane / 16 * CHUNK<T>) + buffer * STAGE;
      add_weighted<T, WIDTH>(score, v_tile, at, sum);
    }
  }
  out = own_out[warp];
  Conversion<T, Out> convert(factors, quantizer);
  convert.select_batch(batch, head);
  if constexpr (SPLITS) {
    constexpr int PITCH = WIDTH + 4, OWN = TILES * 16;
    const auto write = [&](I at, int column, float highest, float all, const float4& x) {
      if (at >= queries || column >= width) return;
      float rescale = 1.f;
      if (sink) {
        const float score = in_log2(sink[sink_at + heads.template offset<false>(at, stride.sink, heads.sink)]);
        const float shift = softmax_shift(fmaxf(score, highest));
        rescale = exp2_approximate(highest - shift);
        all = all * rescale + exp2_approximate(score - shift);
      }
      rescale /= all;
      Out* const to = out + heads.template offset<false>(at, stride.out, heads.out) + column;
      const float none[2] = {};
      store_pair(x.x * rescale, x.y * rescale, none, convert, to, true);
      store_pair(x.z * rescale, x.w * rescale, none, convert, to + 2, true);
    };
    const ClusterSums<WIDTH> cluster(
        q_tile, static_cast<int>(queries - first_query < ROWS ? queries - first_query : ROWS), splits);
    if constexpr (PARTS == IN_CLUSTER) {
      wait_copies();    // those of q, if the block has no visible key
      __syncthreads();  // the tiles have been read: other blocks store to their memory
      cluster.template expect<REUSED>();
      cluster.ready();
    }
    float* const block_parts = parts + (static_cast<long long>(block) * gridDim.y * ROWS + warp * OWN) * PITCH;
    const auto put = [&](int r, int chunk, const float4& x) {
      if constexpr (PARTS == IN_CLUSTER) {
        cluster.send(warp * OWN + r, chunk, x);
      } else {
        *reinterpret_cast<float4*>(block_parts + (static_cast<int>(part) * ROWS + r) * PITCH + chunk * 4) = x;
      }
    };
    if (static_cast<int>(part) < splits) {
#pragma unroll
      for (int i = 0; i < TILES * 2; i++) {
        const int r = i / 2 * 16 + i % 2 * 8 + lane / 4;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {  // even lanes get four columns of this tile, odd ones of the next
          const float *here = sum[i / 2][n] + i % 2 * 2, *next = sum[i / 2][n + 1] + i % 2 * 2;
          const bool odd = lane % 2;
          const float x = __shfl_xor_sync(0xffffffffu, odd ? here[0] : next[0], 1);
          const float y = __shfl_xor_sync(0xffffffffu, odd ? here[1] : next[1], 1);
          put(r, (n + lane % 2) * 2 + lane % 4 / 2,
              odd ? make_float4(x, y, next[0], next[1]) : make_float4(here[0], here[1], x, y));
        }
        const float row_total = row_sum(total[i / 2][i % 2]);
        if (lane % 4 == 0) put(r, WIDTH / 4, make_float4(maximum[i / 2][i % 2], row_total, 0, 0));
      }
    }
    if constexpr (PARTS == IN_CLUSTER) {
      cluster.merge([](float x) { return exp2_approximate(x); },
                    [&](int r, int column, float highest, float all, const float4& x) {
                      write(first_query + r, column, highest, all, x);
                    });
    } else {
      __syncwarp();
      const unsigned others = splits - 1;
      unsigned before = 0;
      if (lane == 0) before = increment_acquire_release(arrived + block * WARPS + warp, others);
      if (__shfl_sync(0xffffffffu, before, 0) != others) return;
      __syncwarp();  // all lanes see what lane 0 has acquired
      merge_parts<WIDTH, OWN>(block_parts, splits, ROWS * PITCH,
                              [&](int r, int column, float highest, float all, const float4& x) {
                                write(top + r, column, highest, all, x);
                              });
    }
    return;
  }
  I result_row = row;
  if constexpr (!ONE_HEAD) {  // the compiler would keep the heads of rows, found for the sink, in registers
    const int thread = __shfl_sync(0xffffffffu, threadIdx.x, lane);
    result_row = first_query + thread / 32 * TILES * 16 + thread % 32 / 4;
  }
  float column_factor[WIDTH / 8][2], inverse_total[TILES][2];
  convert.load_factors(lane % 4 * 2, 8, static_cast<int>(width), column_factor);
#pragma unroll
  for (int i = 0; i < TILES * 2; i++) inverse_total[i / 2][i % 2] = 1.f / row_sum(total[i / 2][i % 2]);
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++) {
    const I column = n * 8 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const I r = result_row + m * 16 + h * 8;
        const float x = sum[m][n][2 * h] * inverse_total[m][h], y = sum[m][n][2 * h + 1] * inverse_total[m][h];
        Out* to = out + heads.template offset<ONE_HEAD>(r, stride.out, heads.out) + column;
        if (V == CHUNK<T>) {
          store_pair(x, y, column_factor[n], convert, to, r < queries && column < width);
        } else {
          if (r < queries && column < width) to[0] = convert(x, column_factor[n][0]);
          if (r < queries && column + 1 < width) to[1] = convert(y, column_factor[n][1]);
        }
      }
    }
  }
}
