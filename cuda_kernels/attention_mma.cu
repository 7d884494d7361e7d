// Scaled dot product attention on tensor cores, after FlashAttention-2 (Dao 2023). q k^T and weights v are products of
// 16-bit matrices, or of f32 matrices rounded to TF32, with sums in f32; scores and weights stay in registers.
//
// A block computes ROWS = 64 TILES rows of the output. It takes KEYS keys per trip of its main loop:
//
//                          keys
//                   trip 0     trip 1     trip 2
//                 +----------+----------+----------+--          a trip reads the
//                 | k^T      |          |          |  DEPTH     stages k and v of its keys
//                 +----------+----------+----------+--
//    q, DEPTH                                                     v, WIDTH       output, WIDTH
//   +---------+   +----------+                                  +-----------+   +-----------+
//   | warp 0  |   | scores   |  16 TILES rows of a warp,        | KEYS rows |   | warp 0    |
//   +---------+   +----------+  in its registers                +-----------+   +-----------+
//   | warp 1  |   |          |                                                  | warp 1    |
//   +---------+   +----------+     scores -> mask -> online softmax             +-----------+
//   | warp 2  |   |          |     -> weights; sums += weights v                | warp 2    |
//   +---------+   +----------+                                                  +-----------+
//   | warp 3  |   |          |     maxima, totals and sums of a                 | warp 3    |
//   +---------+   +----------+     warp's rows stay in registers                +-----------+
//
// Dynamic shared memory:
//
//   q [ROWS][DEPTH] | k [KEYS][DEPTH], v [KEYS][WIDTH] | k, v: the second buffer | mask [ROWS or 1][KEYS + 16 bytes]
//
// q is copied once. Keys and values are double-buffered, and copied a trip ahead. A trip that needs the mask waits for
// it after q k^T. In a cluster, the sums that other blocks send replace all of this at the end. The order of trip t:
//
//   wait for k, v of t | start copying mask of t, k and v of t + 1 | q k^T | wait for mask | softmax | weights v
//
// Lane 4 g + c has these elements of each 16 x 8 tile of scores or sums (the result of mma): columns 2 c and 2 c + 1 of
// rows g and g + 8.
//
// attention_tiles.cuh has the functions for these steps. attention_marks.cu classifies the tiles of masks beforehand.
#include "attention_cluster.cuh"
#include "attention_marks.cuh"
#include "attention_tiles.cuh"

// A block's part of the keys: all of them, for rows of one head or of several that share keys; or one of several parts,
// which are merged in device memory or in a cluster.
enum Parts { WHOLE, GROUPED, IN_MEMORY, IN_CLUSTER };

// Attention for more than a few queries. blockIdx.x enumerates batches and blocks of queries (blockIdx.y with
// IN_CLUSTER). DEPTH and WIDTH are depth and width rounded up to multiples of 16. V is the number of elements per copy;
// see `stage`. Maxima are base-2 logarithms. With `marks`, the result of mark_tiles, hidden tiles are skipped.
// A block's rows are those of one head if PARTS is WHOLE, else those of `heads`. Several blocks may split the keys of a
// block of rows (flash-decoding, Dao et al. 2023).
// IN_MEMORY: blockIdx.y enumerates the parts. Each warp leaves its sums in parts [blocks][splits][rows][WIDTH + 4], in
// which maximum and total follow the sums of a row; the last warp to arrive merges them. `arrived` [blocks, WARPS] is
// zero before and after. IN_CLUSTER: the blocks of a row of the grid, a cluster, merge their sums in shared memory.
// The launch bounds leave registers for two blocks on a multiprocessor. In TF32, short rows leave shared memory for
// four blocks, and the launch bounds leave registers for them.
template <class T, Mask MASK, int DEPTH, int WIDTH, int TILES, int KEYS, int V, class I, int R, class Out = T,
          Parts PARTS = WHOLE, bool PAGED = false>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 4 && TILES == 1 && DEPTH <= 64 && WIDTH <= 64 ? 4 : 2)
    attend_mma(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, Out* out,
               Axes<I, R, OPERANDS<Out> + PAGED> batch, Strides<I> stride, I queries, I keys, I depth, I width,
               float factor, const Length<PAGED>* length, const unsigned char* marks, const float* factors,
               Quantizer quantizer, Heads heads, float* parts, unsigned* arrived) {
  constexpr int ROWS = WARPS * TILES * 16;
  static_assert(V == CHUNK<T> || !PAGED, "keys in pages are copied in chunks");
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
  const I blocks = (queries + ROWS - 1) / ROWS;
  if constexpr (V == 1) marks = nullptr;
  I head = block / blocks, first_query = block % blocks;
  if (MASK == CAUSAL || marks) {  // blocks with the most keys start first, in all heads
    const I heads = static_cast<I>(PARTS == IN_CLUSTER ? gridDim.y : gridDim.x) / blocks;
    head = block % heads, first_query = blocks - 1 - block / heads;
  }
  first_query *= ROWS;
  KeyRows<PAGED> key_rows = {length};
  key_rows.select_batch(batch, head);
  keys = key_rows.count(keys);
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
  const int pitch = static_cast<int>((queries + 127) / 128 * 8);  // query tiles, padded to a multiple of 8
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
    if constexpr (PAGED) {
      const auto key_at = [&](I r) { return key_rows.offset(from + r, true, stride.k, stride.key_page); };
      const auto value_at = [&](I r) { return key_rows.offset(from + r, true, stride.v, stride.value_page); };
      stage_rows<KEYS, DEPTH>(k, key_at, keys - from, depth, k_tile + buffer * STAGE, thread);
      stage_rows<KEYS, WIDTH>(v, value_at, keys - from, width, v_tile + buffer * STAGE, thread);
    } else {
      stage<KEYS, DEPTH, V>(k + from * stride.k, stride.k, keys - from, depth, k_tile + buffer * STAGE, thread);
      stage<KEYS, WIDTH, V>(v + from * stride.v, stride.v, keys - from, width, v_tile + buffer * STAGE, thread);
    }
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
