// Products of more rows of x than product_mma.cu takes, with compressed weights, on tensor cores. Codes are converted
// to exact 16-bit integers in registers; scales multiply the f32 sums. f32 elements of x become sums of two bf16
// numbers.
//
// The result of a matrix is divided into tiles of ROWS rows of x by TILE rows of the weights, and the sum over k of
// each tile into parts of COLUMNS codes. A part of a tile is a unit of work, number tile * parts + part:
//
//                   n, rows of the weights
//                    TILE        TILE                          share of 3 units per block (stream-K):
//               +-----------+-----------+--
//   m,     ROWS | tile 0    | tile 2    |  4, 6 ..        unit    0  1  2  3  4  5  6  7  8  9 10 11
//   rows        +-----------+-----------+--               part    0  1  2  3  0  1  2  3  0  1  2  3
//   of x   ROWS | tile 1    | tile 3    |  5, 7 ..        tile  |     0     |     1     |     2     |
//               +-----------+-----------+--               block |   0    |   1    |   2    |   3    |
//
// So several blocks may have parts of a tile, and a block may have parts of several tiles.
//
// The 8 warps of a block divide a tile. Each multiplies 32 rows of the weights by up to 32 rows of x:
//
//                ROWS = 64, WARPS_K = 1                        ROWS = 16 or 32, WARPS_K = 2
//          rows of the weights                           rows of the weights
//            32     32     32     32                        32     32     32     32
//         +------+------+------+------+                  +------+------+------+------+
//   x  32 | w 0  | w 1  | w 2  | w 3  |          x  ROWS | w 0  | w 1  | w 2  | w 3  |  first half of a stage
//         +------+------+------+------+                  | w 4  | w 5  | w 6  | w 7  |  second half
//      32 | w 4  | w 5  | w 6  | w 7  |                  +------+------+------+------+
//         +------+------+------+------+
//
// The weights are the left operand of mma (16 rows), x the right one (8 rows). In a 32 x 8 part of a warp's tile, lane
// 4 g + c has the sums of rows g, g + 8, g + 16 and g + 24 of the weights and rows 2 c and 2 c + 1 of x.
//
// Dynamic shared memory, a ring of STAGES stages, then sums:
//
//   stage 0: codes [TILE][128 bytes], x [ROWS][COLUMNS] | stage 1 .. | sums [min(ROWS, 32)][PITCH] | in clusters:
//                                                           a barrier, and the sums that other blocks send
//
// A stage has the operands of one unit. The main loop waits for a stage, starts copying the unit that is STAGES - 1
// units ahead, converts codes, and multiplies. At the end of a tile, its sums go to the result if the block has all
// parts of it. Otherwise blocks leave them in `partial`, or send them to each other in a cluster, and add them up.
#include "cluster.cuh"
#include "divisor.cuh"
#include "product_input.cuh"
#include "ptx.cuh"

constexpr int TILE = 128;            // rows of the weights per tile
constexpr int CODE_PIECES = 8;       // pieces of 16 bytes of a row's codes in a stage
constexpr int WARPS_N = 4;           // warps along the rows of the weights
constexpr int THREADS = 256;         // per block
constexpr int WARPS = THREADS / 32;  // per block
constexpr int PITCH = TILE + 4;      // floats between the sums of two rows of x; avoids bank conflicts
constexpr int LOADS = 8;             // loads of partial sums, 16 bytes each, that a thread has in flight

// The shape of a launch: x [m, k], weights [n, k]; the numbers of tiles along both, and of parts of k. A block takes
// some of `shares` of `share` units each. `stacked`: every matrix has an x of its own.
struct Extents {
  int m, n, k;
  Divisor tiles_m, tiles_n, parts;
  int share, shares, stacked;

  __device__ __forceinline__ int first_unit(int block) const {
    return static_cast<int>(static_cast<long long>(shares) * block / gridDim.x) * share;
  }
  __device__ __forceinline__ int block_of(int unit) const {
    return static_cast<int>((static_cast<long long>(unit / share + 1) * gridDim.x - 1) / shares);
  }
};

// The place of a unit: its tile, its part of K, the tile's first rows of x and of the weights, and its matrix.
struct Unit {
  int tile, part, x_row, n_row, matrix;

  __device__ __forceinline__ Unit(int unit, int rows, const Extents& extents) {
    tile = extents.parts.quotient(unit);
    part = unit - tile * extents.parts.value;
    const int strip = extents.tiles_m.quotient(tile);
    x_row = (tile - strip * extents.tiles_m.value) * rows;
    matrix = extents.tiles_n.quotient(strip);
    n_row = (strip - matrix * extents.tiles_n.value) * TILE;
  }
};

// A stage has CODE_PIECES pieces of codes of TILE rows of the weights, and then the same columns of ROWS rows of x. A
// warp multiplies 32 rows of the weights by 32 rows of x, or fewer, in `STEPS` steps. Where ROWS is too small for all
// warps, two warps divide the columns of each 32 rows of the weights. In a step, a lane takes `CHUNKS` chunks of eight
// elements of each of its rows.
template <class Codes, class X, int V, int ROWS>
struct Stage {
  static constexpr int TERMS = RightOperand<X>::TERMS;        // numbers that an element of x is split into
  static constexpr int PER_WORD = Codes::PER_WORD;            // codes per word of 32 bits
  static constexpr int WARPS_K = ROWS > 32 ? 1 : 2;           // warps that divide the columns
  static constexpr int OCTETS = ROWS > 32 ? 4 : ROWS / 8;     // right operands of mma per warp
  static constexpr int COLUMNS = 4 * CODE_PIECES * PER_WORD;  // elements of a row in a stage
  static constexpr int COLUMNS_PER_PIECE = 16 / static_cast<int>(sizeof(X));  // elements of x in 16 bytes
  static constexpr int STEPS = 8 / (V * WARPS_K);                             // of a warp per stage
  static constexpr int STEP = 4 * V * PER_WORD;                               // columns of a step
  static constexpr int X_PIECES = COLUMNS / COLUMNS_PER_PIECE;                // pieces of 16 bytes of a row of x
  static constexpr int CHUNKS = V * PER_WORD / CHUNK;                         // of a lane per step and row
  static constexpr int WORDS = CHUNK / PER_WORD;                              // words of codes per chunk
  static constexpr int X_AT = TILE * CODE_PIECES;                             // pieces before those of x
  static constexpr int SIZE = X_AT + ROWS * X_PIECES;                         // pieces of a stage

  // Pieces of a row change places, which avoids bank conflicts: the lanes of a load have different rows. Piece p of a
  // row is stored in place p ^ swap. For codes, the swap is the row's low three bits in reverse.
  static __device__ __forceinline__ int code_swap(int row) { return row % 2 * 4 + row / 2 % 2 * 2 + row / 4 % 2; }
  static __device__ __forceinline__ int x_swap(int row) { return row % 2 * (CHUNKS * TERMS > 1 ? 1 : 4); }
  // Lanes take their chunks in different orders, also to avoid bank conflicts: chunk p ^ turn instead of p.
  static __device__ __forceinline__ int turn(int column) { return CHUNKS == 4 ? column : CHUNKS == 2 ? column / 2 : 0; }
};

// Copies of one thread to the stages, unit by unit: rows CODE_ROWS apart of the weights, and X_ROWS apart of x.
template <class S, int ROWS, class X>
struct Copies {
  static constexpr int CODE_ROWS = THREADS / CODE_PIECES;  // rows of the weights that the block copies at once
  static constexpr int X_ROWS = THREADS / S::X_PIECES;     // rows of x that the block copies at once
  const Extents& extents;
  const uint4* codes;
  const X* x;
  uint4 *code_target, *x_target;
  int code_at, x_at;      // where this thread's first row begins: pieces of codes, elements of x
  int code_rows, x_rows;  // rows from this thread's first one on
  int part;

  __device__ __forceinline__ Copies(const Extents& extents, const void* codes, const X* x, uint4* stages)
      : extents(extents), codes(static_cast<const uint4*>(codes)), x(x) {
    code_target = stages + code_row() * CODE_PIECES + (code_piece() ^ S::code_swap(code_row()));
    x_target = stages + S::X_AT + x_row() * S::X_PIECES + (x_piece() ^ S::x_swap(x_row()));
  }
  static __device__ __forceinline__ int code_row() { return threadIdx.x / CODE_PIECES; }
  static __device__ __forceinline__ int code_piece() { return threadIdx.x % CODE_PIECES; }
  __device__ __forceinline__ int row_pieces() const { return static_cast<unsigned>(extents.k) / (4 * S::PER_WORD); }
  static __device__ __forceinline__ int x_row() { return threadIdx.x / S::X_PIECES; }
  static __device__ __forceinline__ int x_piece() { return threadIdx.x % S::X_PIECES; }

  // Prepare the copies of a unit and of those that follow it in its tile.
  __device__ __forceinline__ void start(int number) {
    const Unit unit(number, ROWS, extents);
    part = unit.part;
    code_rows = extents.n - unit.n_row - code_row(), x_rows = extents.m - unit.x_row - x_row();
    code_at = (unit.matrix * extents.n + unit.n_row + code_row()) * row_pieces() + code_piece();
    x_at = ((extents.stacked ? unit.matrix : 0) * extents.m + unit.x_row + x_row()) * extents.k +
           x_piece() * S::COLUMNS_PER_PIECE;
  }
  __device__ __forceinline__ void copy_codes(int stage) const {
    const bool valid = part * CODE_PIECES + code_piece() < row_pieces();
#pragma unroll
    for (int i = 0; i < TILE / CODE_ROWS; i++)
      copy_async(code_target + stage * S::SIZE + i * CODE_ROWS * CODE_PIECES,
                 codes + (code_at + part * CODE_PIECES + i * CODE_ROWS * row_pieces()),
                 valid && i * CODE_ROWS < code_rows);
  }
  __device__ __forceinline__ void copy_x(int stage) const {
    const bool valid = part * S::COLUMNS + x_piece() * S::COLUMNS_PER_PIECE < extents.k;
#pragma unroll
    for (int i = 0; i < ROWS / X_ROWS; i++)
      copy_async(x_target + stage * S::SIZE + i * X_ROWS * S::X_PIECES,
                 x + (x_at + part * S::COLUMNS + i * X_ROWS * extents.k), valid && i * X_ROWS < x_rows);
  }
  // Go on to unit `number`, the next one. ONE_TILE: it is in the same tile, or the block has no more.
  template <bool ONE_TILE>
  __device__ __forceinline__ void advance(int number) {
    part++;
    if (!ONE_TILE && part == extents.parts.value) start(number);
  }
};

// Split the f32 elements of x in a stage into two terms, in place.
template <class S, int ROWS>
__device__ __forceinline__ void split_stage(uint4* stage) {
  for (int i = threadIdx.x; i < ROWS * S::X_PIECES / S::TERMS; i += THREADS) {
    uint4* const at = stage + S::X_AT + i * S::TERMS;
    const int swap = S::x_swap(i / (S::X_PIECES / S::TERMS));
    uint4 words[2] = {at[swap], at[1 ^ swap]};
    float elements[CHUNK];
    memcpy(elements, words, sizeof(elements));
    split_terms<S::PER_WORD>(elements, words);
    at[swap] = words[0], at[1 ^ swap] = words[1];
  }
}

template <class P>
__device__ __forceinline__ P param_at(const P* values, int at) {
  return values[at];
}
__device__ __forceinline__ None param_at(const None*, int) { return {}; }

// The scales and zero points of a lane's four rows, which are loaded before they are needed.
template <class Scale, class Zero>
struct Params {
  Scale scales[4];
  Zero zeros[4];
  int row, rows;  // the first row, and the number of rows from there on

  __device__ __forceinline__ void start(int number, int lane_row, int x_rows, const Extents& extents) {
    const Unit unit(number, x_rows, extents);
    row = unit.matrix * extents.n + unit.n_row + lane_row;
    rows = extents.n - unit.n_row - lane_row;
  }
  template <bool GROUPED>
  __device__ __forceinline__ void fetch(const Scale* scale, const Zero* zero, const QuantParamIndices& indices,
                                        int column) {
    const int scale_at = indices.scale.at(column), zero_at = indices.zero.at(column);
#pragma unroll
    for (int h = 0; h < 4; h++) {
      const int r = row + min(8 * h, rows - 1);
      if constexpr (GROUPED) scales[h] = param_at(scale, r * indices.scale.stride + scale_at);
      zeros[h] = param_at(zero, r * indices.zero.stride + zero_at);
    }
  }
};

// Compute out [e, m, n] = x [e, m, k] @ weights [e, n, k]^T for every matrix e; unless `stacked`, all share x [m, k].
// The weights are constants, and are copied before earlier launches end.
// Each block takes an equal share of the units, in the order of tiles (stream-K). Where several blocks have units of a
// tile, they leave sums in `partial`, and the last warp to arrive adds them up for some rows of x. `arrived`
// [blocks, WARPS] is zero before and after. With CLUSTER, the blocks of a tile, a power of two of them, are a cluster:
// each gets the sums of some rows from the others, in its shared memory.
// Lanes 4 g to 4 g + 3 take V words of codes each from rows g, g + 8, g + 16 and g + 24 of a warp. Sums may take the
// elements along k in any order, if it is the same for x. STAGES are in shared memory; BLOCKS run on a multiprocessor.
// GROUPED: scales or zero points differ along k, but not within 4 V words.
template <class Codes, class Scale, class Zero, class X, int V, int ROWS, int STAGES, int BLOCKS, bool GROUPED,
          bool CLUSTER = false>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    product_tiles(const X* __restrict__ x, X* __restrict__ out, const void* __restrict__ codes,
                  const Scale* __restrict__ scale, const Zero* __restrict__ zero, const QuantParamIndices indices,
                  float* partial, unsigned* arrived, const Extents extents) {
  using S = Stage<Codes, X, V, ROWS>;
  using T = typename RightOperand<X>::T;
  using Exact = Integers<Codes, T>;
  struct alignas(4 * S::WORDS) Words {
    unsigned at[S::WORDS];
  };
  struct alignas(4 * sizeof(X)) Four {
    X at[4];
  };
  OVGPU_DYN_SHARED(uint4, stages);
  constexpr int PASS = ROWS < 32 ? ROWS : 32;  // rows of x whose sums are in shared memory at a time
  constexpr int EACH = PASS / WARPS;           // rows of a warp among them
  float* const sums = reinterpret_cast<float*>(stages + STAGES * S::SIZE);
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(sums + PASS * PITCH);
  uint4* const received = reinterpret_cast<uint4*>(stores) + 1;  // [own rows][blocks][32]
  start_next_launch();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int warp_n = warp % WARPS_N, warp_k = S::WARPS_K > 1 ? warp / WARPS_N : 0,
            warp_m = S::WARPS_K > 1 ? 0 : warp / WARPS_N;
  const int m = extents.m, n = extents.n, parts = extents.parts.value;
  const int begin = extents.first_unit(blockIdx.x), end = extents.first_unit(blockIdx.x + 1);
  const int first_of_cluster = extents.block_of(extents.parts.quotient(begin) * parts),
            blocks = extents.block_of((extents.parts.quotient(begin) + 1) * parts - 1) + 1 - first_of_cluster,
            rank = blockIdx.x - first_of_cluster, shift = 31 - __clz(blocks),
            own_rows = (ROWS - rank + blocks - 1) >> shift;
  if constexpr (CLUSTER) {
    if (threadIdx.x == 0) stores->expect(own_rows * blocks * 32 * sizeof(uint4));
    arrive_at_cluster<UNTOUCHED>();
  }

  Params<Scale, Zero> next;
  const auto fetch_params = [&](int part, int step) {
    const int column = GROUPED ? part * S::COLUMNS + (warp_k * S::STEPS + step) * S::STEP : 0;
    next.template fetch<GROUPED>(scale, zero, indices, min(column, extents.k - 1));
  };

  Exact integers[4];
  float sum[2][S::OCTETS][4];
  // Places of this lane's first chunks in a stage: a byte of the codes, and a piece of x. They are combined with later
  // ones by ^, since every row has a power of two of them.
  const int own_code = ((warp_n * 32 + g) * CODE_PIECES * 16 + warp_k * 64 + c * 4 * V) ^ S::turn(c) * 4 * S::WORDS ^
                       S::code_swap(g) * 16;
  const int own_x = ((warp_m * 32 + g) * S::X_PIECES + (warp_k * S::STEPS * 4 + c) * S::CHUNKS * S::TERMS) ^
                    S::turn(c) * S::TERMS ^ S::x_swap(g);
  const auto multiply = [&](int stage, int unit, int part) {
#pragma unroll 1
    for (int s = 0; s < S::STEPS; s++) {
      float grouped[2][S::OCTETS][4] = {};
      auto& to = [&]() -> auto& {
        if constexpr (GROUPED) {
          return grouped;
        } else {
          return sum;
        }
      }();
      Scale scales[4];
      if constexpr (GROUPED) {
#pragma unroll
        for (int h = 0; h < 4; h++) {
          scales[h] = next.scales[h];
          set_zero(integers[h], next.zeros[h]);
        }
        if (s + 1 < S::STEPS) {
          fetch_params(part, s + 1);
        } else if (unit + 1 < end) {
          const bool same = CLUSTER || part + 1 < parts;
          if (!same) next.start(unit + 1, warp_n * 32 + g, ROWS, extents);
          fetch_params(same ? part + 1 : 0, 0);
        }
      }
#pragma unroll 2
      for (int p = 0; p < S::CHUNKS; p++) {
        unsigned a[4][4];
#pragma unroll
        for (int h = 0; h < 4; h++) {
          const uint4* const row = stages + stage * S::SIZE + h * 8 * CODE_PIECES;
          const auto words = *reinterpret_cast<const Words*>(reinterpret_cast<const char*>(row) +
                                                             (own_code ^ (s * 16 * V + p * 4 * S::WORDS)));
          integers[h].convert(words.at, a[h]);
        }
#pragma unroll
        for (int t = 0; t < S::TERMS; t++) {
          const int piece = S::X_AT + (own_x ^ ((s * 4 * S::CHUNKS + p) * S::TERMS + t));
#pragma unroll
          for (int first = 0; first < S::OCTETS; first += 2) {  // four sums by turns hide the latency of mma
            uint4 b[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
              b[i] = stages[stage * S::SIZE + (first + i) * 8 * S::X_PIECES + piece];
              if constexpr (S::TERMS == 1) b[i] = reorder_pairs<S::PER_WORD>(b[i]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
              for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                  const unsigned left[4] = {a[2 * j][2 * half], a[2 * j + 1][2 * half], a[2 * j][2 * half + 1],
                                            a[2 * j + 1][2 * half + 1]};
                  multiply_add<T>(left, half ? b[i].z : b[i].x, half ? b[i].w : b[i].y, to[j][first + i]);
                }
          }
        }
      }
      if constexpr (GROUPED) {
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int i = 0; i < S::OCTETS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[j][i][e] += scale_of(scales[2 * j + e / 2]) * grouped[j][i][e];
      }
    }
  };

  // Write the sums of the last unit's tile, or leave them for another block. A lane takes four columns at a time.
  const auto finish = [&](int number) {
    const Unit unit(number, ROWS, extents);
    const int first_unit = unit.tile * parts;
    const int first_block = extents.block_of(first_unit), last_block = extents.block_of(first_unit + parts - 1);
    const int column = unit.n_row + 4 * lane;
    const auto write = [&](int row, const float4& total) {
      float factor[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        factor[j] = 1.f / Exact::UNIT;
        if constexpr (!GROUPED)
          factor[j] *= scale_of(quant_param(scale, unit.matrix * n + min(column + j, n - 1), indices.scale, 0));
      }
      const Four values = {X(total.x * factor[0]), X(total.y * factor[1]), X(total.z * factor[2]),
                           X(total.w * factor[3])};
      X* const to = out + (static_cast<long long>(unit.matrix) * m + row) * n + column;
      if (row >= m) return;
      if (n % 4 == 0) {
        if (column < n) *reinterpret_cast<Four*>(to) = values;
      } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (column + j < n) to[j] = values.at[j];
      }
    };
    const auto part_of = [&](int block, int row) {  // a block leaves sums of its first tile, and of its last one
      const int slot = 2 * block + (block == first_block);
      return reinterpret_cast<float4*>(partial) + (slot * ROWS + row) * (TILE / 4) + lane;
    };
    const auto at = [&](int j, int i, int e) -> float& {
      return sums[(i * 8 + c * 2 + e % 2) * PITCH + warp_n * 32 + j * 16 + e / 2 * 8 + g];
    };
    if constexpr (CLUSTER) wait_for_cluster();  // all blocks expect stores
#pragma unroll
    for (int pass = 0; pass < ROWS / PASS; pass++) {
      __syncthreads();  // the last sums have been read
#pragma unroll
      for (int w = S::WARPS_K - 1; w >= 0; w--) {
        if (warp_k == w && warp_m == pass) {
#pragma unroll
          for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < S::OCTETS; i++)
#pragma unroll
              for (int e = 0; e < 4; e++) {
                if (w < S::WARPS_K - 1) sum[j][i][e] += at(j, i, e);
                at(j, i, e) = sum[j][i][e];
              }
        }
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        const int row = warp + WARPS * i;
        const float4 total = *reinterpret_cast<const float4*>(sums + row * PITCH + 4 * lane);
        if constexpr (CLUSTER) {
          const int all = pass * PASS + row, owner = all & (blocks - 1);
          uint4 bits;
          memcpy(&bits, &total, sizeof(bits));
          stores->store(received + ((all >> shift) * blocks + rank) * 32 + lane, bits, owner);
        } else if (last_block == first_block) {
          write(unit.x_row + pass * PASS + row, total);
        } else {
          *part_of(blockIdx.x, pass * PASS + row) = total;
        }
      }
    }
    if constexpr (CLUSTER) {
      stores->wait();
      for (int own = warp; own < own_rows; own += WARPS) {
        float4 total = {};
#pragma unroll 4
        for (int from = 0; from < blocks; from++) {
          float4 part;
          memcpy(&part, received + (own * blocks + from) * 32 + lane, sizeof(part));
          total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
        }
        write(unit.x_row + (own << shift) + rank, total);
      }
      return;
    }
    if (last_block == first_block) return;
    __syncwarp();
    const unsigned others = last_block - first_block;
    unsigned before = 0;
    if (lane == 0) before = increment_acquire_release(arrived + first_block * WARPS + warp, others);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before != others) return;
    __syncwarp();  // all lanes see what lane 0 has acquired
#pragma unroll 1
    for (int pass = 0; pass < ROWS / PASS; pass++) {
      float4 total[EACH] = {};
      for (int block = first_block; block <= last_block; block += LOADS / EACH) {
        float4 loaded[LOADS / EACH][EACH];
#pragma unroll
        for (int b = 0; b < LOADS / EACH; b++)
#pragma unroll
          for (int i = 0; i < EACH; i++)
            loaded[b][i] = __ldcg(part_of(min(block + b, last_block), pass * PASS + warp + WARPS * i));
#pragma unroll
        for (int b = 0; b < LOADS / EACH; b++) {
          if (block + b > last_block) break;
#pragma unroll
          for (int i = 0; i < EACH; i++) {
            total[i].x += loaded[b][i].x, total[i].y += loaded[b][i].y;
            total[i].z += loaded[b][i].z, total[i].w += loaded[b][i].w;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < EACH; i++) write(unit.x_row + pass * PASS + warp + WARPS * i, total[i]);
    }
  };

  // Begin the tile of a unit. Zero points that depend on rows alone are loaded a tile ahead.
  const auto start_tile = [&](int unit) {
    memset(sum, 0, sizeof(sum));
    if constexpr (!GROUPED) {
#pragma unroll
      for (int h = 0; h < 4; h++) set_zero(integers[h], next.zeros[h]);
      const int following = (extents.parts.quotient(unit) + 1) * parts;
      if (!CLUSTER && following < end) {
        next.start(following, warp_n * 32 + g, ROWS, extents);
        fetch_params(0, 0);
      }
    }
  };

  int part = Unit(begin, ROWS, extents).part;
  next.start(begin, warp_n * 32 + g, ROWS, extents);
  fetch_params(part, 0);
  Copies<S, ROWS, X> copies(extents, codes, x, stages);
  copies.start(begin);
  for (int unit = begin; unit < min(begin + STAGES - 1, end); unit++) {
    copies.copy_codes(unit - begin);
    copies.template advance<CLUSTER>(unit + 1);
  }
  wait_for_launches();
  copies.start(begin);
  for (int unit = begin; unit < begin + STAGES - 1; unit++) {
    if (unit < end) {
      copies.copy_x(unit - begin);
      copies.template advance<CLUSTER>(unit + 1);
    }
    commit_copies();
  }
  start_tile(begin);
  int stage = 0, unit = begin;
  do {
    do {
      wait_copies_but<STAGES - 2>();
      __syncthreads();  // the stage has arrived, and the one before has been read
      if constexpr (S::TERMS > 1) {
        split_stage<S, ROWS>(stages + stage * S::SIZE);
        __syncthreads();
      }
      if (unit + STAGES - 1 < end) {
        const int target = stage ? stage - 1 : STAGES - 1;
        copies.copy_codes(target);
        copies.copy_x(target);
        copies.template advance<CLUSTER>(unit + STAGES);
      }
      commit_copies();
      multiply(stage, unit, part);
      stage = stage + 1 < STAGES ? stage + 1 : 0;
    } while (++unit < end && ++part < parts);
    finish(unit - 1);
    part = 0;
    start_tile(unit);
  } while (!CLUSTER && unit < end);
}
