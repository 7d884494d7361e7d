// Classes of the tiles of an attention mask: attention_mma.cu skips HIDDEN tiles, and reads no mask for OPEN ones.
//
//                         keys
//              0        64       128      192
//             +--------+--------+--------+--------+
//   queries 0 | MIXED  | HIDDEN | HIDDEN | HIDDEN |  <- block (0, plane): warp w has key tiles w, w + MARK_WARPS ...
//          16 +--------+--------+--------+--------+
//             | MIXED  | HIDDEN | HIDDEN | HIDDEN |  <- block (1, plane)
//          .. +--------+--------+--------+--------+
//          64 | OPEN   | MIXED  | HIDDEN | HIDDEN |  <- block (4, plane)
//             +--------+--------+--------+--------+
//
// The picture shows a causal mask. A lane reads 8 neighbouring keys of four rows of a tile: row i * 4 + lane / 8, and
// keys 8 (lane % 8) to 8 (lane % 8) + 7.
#include "attention_marks.cuh"
#include "attention_mma.cuh"

constexpr int MARK_THREADS = 512;  // per block
constexpr int MARK_WARPS = MARK_THREADS / 32;

// Exported decoders hide scores with the lowest number of f16 (-65504) instead of -inf. A LOW tile is treated as hidden
// if each of its rows has a key above VISIBLE elsewhere. This assumes that scores are far smaller than the 16384 in
// between.
constexpr float LOWEST = -32768.f;
constexpr float VISIBLE = -16384.f;

// Classify the tiles of mask [planes, queries, keys], whose rows can be read 8 elements at a time. Write marks
// [planes][key tiles][query tiles]; query tiles are padded to gridDim.x, a multiple of 8. A block classifies the key
// tiles of one query tile; blockIdx.y is the plane.
template <class T, Mask MASK>
__global__ void __launch_bounds__(MARK_THREADS)
    mark_tiles(const void* mask, int queries, int keys, unsigned char* marks) {
  using Element = MaskElement<T, MASK>;
  using Chunk = Packed<Element, 8>;
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
