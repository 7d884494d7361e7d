// Products of few rows on tensor cores, at most 64: with compressed weights, or with weights of 16 bits. Codes are
// converted to exact 16-bit integers in registers; scales multiply the f32 sums. f32 elements of x become sums of two
// bf16 numbers, which have 16 significant bits, more than TF32 has.
#include "product_input.cuh"
#include "ptx.cuh"

constexpr int TILE = 16;         // rows of the weights per warp
constexpr int PITCH = TILE + 4;  // floats between columns of partial sums; avoids bank conflicts

// Return the number of warps of a block at most: half as many where lanes need more registers.
template <class X>
constexpr int max_warps(int rows, bool computed) {
  return rows <= CHUNK && (sizeof(X) == 2 || (rows == 1 && !computed)) ? MAX_WARPS : MAX_WARPS / 2;
}

// Compute out [z, m, n] = x [z, m, k] @ weights [z, n, k]^T for every z = blockIdx.z; unless `stacked`, all share x
// [m, k]. Blocks have 32 x (warps along k) x (warps along n) threads.
// Chain computes elements of x from as many ARRAYS, whose rows have `strides`. `total` is null, or receives them.
// NORM: how rows of x are normalised, MVN or RMS, in which case shared memory holds all of x; else PLAIN. The weights
// are constants, and loaded before the launches before this one have ended.
// TILE rows of the weights are the left operand of mma in a warp. In each step, lanes 4 g to 4 g + 3 load V words of
// codes each from rows g and g + 8; the order of elements along k is arbitrary, but the same for x. Warps along k take
// every `parts`-th step (split-K), and their sums are added at the end. A block takes ROWS rows of x, and stages their
// elements for `rounds` steps per warp in shared memory; 1 << shift threads copy a row.
// AHEAD: steps whose codes are loaded at once; `rounds` is a multiple of it, or covers all steps. GROUPED: scales or
// zero points differ along k, but not within a step.
template <class Codes, class Scale, class Zero, class X, int V, int ROWS, int AHEAD, bool GROUPED,
          class Chain = Identity, int ARRAYS = 1, Kind NORM = PLAIN>
__global__ void __launch_bounds__(32 * max_warps<X>(ROWS, ARRAYS > 1 || NORM != PLAIN), 2)
    product_mma(const X* x, const X* y, const X* z, const RowStrides strides, X* total, const X* norm_scale,
                const X* norm_shift, float eps, int eps_mode, X* out, const void* __restrict__ codes,
                const Scale* __restrict__ scale, const Zero* __restrict__ zero, const QuantParamIndices indices, int m,
                int n, int k, int stacked, int rounds, int shift) {
  using T = typename RightOperand<X>::T;
  constexpr int TERMS = RightOperand<X>::TERMS;
  constexpr int PER_WORD = Codes::PER_WORD, LANE_CODES = V * PER_WORD,
                STEP = 4 * LANE_CODES, CHUNKS = LANE_CODES / CHUNK;
  constexpr int N = (ROWS + CHUNK - 1) / CHUNK;  // right operands of mma
  constexpr int CHAINS = N == 1 && !(GROUPED && CHUNKS < 4) ? 2 : 1;  // independent chains of mma
  constexpr int CHUNK_PITCH = StagedRows<X, ROWS, CHUNKS>::PITCH;
  constexpr int BATCH = ROWS == 1 ? 1 : (ROWS <= CHUNK ? 2 : 8) / TERMS;  // rows of x that a thread copies at once
  using Exact = Integers<Codes, T>;
  struct alignas(4 * V) Words {
    unsigned at[V];
  };
  OVGPU_DYN_SHARED(uint4, staged);
  start_next_launch();
  const int lane = threadIdx.x, part = threadIdx.y, parts = blockDim.y, warps = parts * blockDim.z;
  const int thread = lane + 32 * (part + parts * threadIdx.z);
  constexpr bool COMPUTED = ARRAYS > 1 || NORM != PLAIN;  // x: one block takes all of its rows
  const int batches = COMPUTED ? 1 : (m + ROWS - 1) / ROWS, batch = COMPUTED ? 0 : blockIdx.x % batches * ROWS;
  const int first_row = blockIdx.x / batches * blockDim.z * TILE, above = blockIdx.z * n;
  const Sources<X> sources = {stacked ? x + static_cast<long long>(blockIdx.z) * m * k : x, y, z, strides};
  if (blockIdx.x > 0) total = nullptr;
  out += static_cast<long long>(above) * m + static_cast<long long>(batch) * n;
  m = min(m - batch, ROWS);

  Exact integers[2];
  int rows[2], from[2];  // an int can count the code vectors of any weights
#pragma unroll
  for (int h = 0; h < 2; h++) {
    rows[h] = above + min(first_row + static_cast<int>(threadIdx.z) * TILE + lane / 4 + 8 * h, n - 1);
    from[h] = rows[h] * (k / LANE_CODES) + part * 4 + lane % 4;
    if constexpr (!GROUPED) set_zero(integers[h], quant_param(zero, rows[h], indices.zero, 0));
  }

  Words words[AHEAD][2];
  Scale scales[AHEAD][2];
  Zero zeros[AHEAD][2];
  int column = part * STEP;  // first one of the next step to be loaded
  const auto fetch = [&]() {
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) {
      const bool valid = column + lane % 4 * LANE_CODES < k;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        words[slot][h] = valid ? load_streaming(static_cast<const Words*>(codes) + from[h]) : Words{};
        from[h] += parts * 4;
        if constexpr (GROUPED) {
          const int at = min(column, k - 1);
          scales[slot][h] = quant_param(scale, rows[h], indices.scale, at);
          zeros[slot][h] = quant_param(zero, rows[h], indices.zero, at);
        }
      }
      column += parts * STEP;
    }
  };
  const int count = (k + STEP * parts - 1) / (STEP * parts);  // steps of each warp

  const StagedRows<X, ROWS, CHUNKS> staged_rows = {staged};
  const auto stage = [&](int step) {
    const int chunk_count = min(rounds, count - step) * parts * STEP / CHUNK, row_stride = 32 * warps >> shift;
    for (int chunk = thread & ((1 << shift) - 1); chunk < chunk_count; chunk += 1 << shift) {
      const int at = step * parts * STEP + chunk * CHUNK;
      for (int first = thread >> shift; first < ROWS; first += row_stride * BATCH) {
        X elements[BATCH][CHUNK] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
          if (at < k && row < m) sources.template compute<Chain, ARRAYS>(batch + row, at, elements[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
          if (row >= ROWS) continue;
          uint4 terms[TERMS];
          split_terms<PER_WORD>(elements[i], terms);
          staged_rows.store(terms, staged_rows.at(chunk, row));
        }
      }
    }
  };

  float sum[GROUPED ? 1 : CHAINS][N][4] = {};
  const auto add = [&](int slot, const uint4* right) {
    float grouped[CHAINS][N][4] = {};
    auto& to = [&]() -> auto& {
      if constexpr (GROUPED) {
        return grouped;
      } else {
        return sum;
      }
    }();
    if constexpr (GROUPED) {
#pragma unroll
      for (int h = 0; h < 2; h++) set_zero(integers[h], zeros[slot][h]);
    }
#pragma unroll
    for (int p = 0; p < CHUNKS; p++) {
      unsigned a[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) integers[h].convert(words[slot][h].at + p * (CHUNK / PER_WORD), a[h]);
      const unsigned left[2][4] = {{a[0][0], a[1][0], a[0][1], a[1][1]}, {a[0][2], a[1][2], a[0][3], a[1][3]}};
#pragma unroll
      for (int i = 0; i < N; i++) {
#pragma unroll
        for (int t = 0; t < TERMS; t++) {
          const uint4 b = right[p * CHUNK_PITCH + (t * ROWS + i * CHUNK) * 4];
          multiply_add<T>(left[0], b.x, b.y, to[0][i]);
          multiply_add<T>(left[1], b.z, b.w, to[CHAINS - 1][i]);
        }
      }
    }
    if constexpr (GROUPED) {
      const float row_scales[2] = {scale_of(scales[slot][0]), scale_of(scales[slot][1])};
#pragma unroll
      for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float total = grouped[0][i][e];
          if constexpr (CHAINS == 2) total += grouped[1][i][e];
          sum[0][i][e] += row_scales[e / 2] * total;
        }
    }
  };

  fetch();
  wait_for_launches();
  const int lane_offset = part * CHUNKS * CHUNK_PITCH + min(lane / 4, ROWS - 1) * 4 + lane % 4;
  const auto multiply = [&](int begin, int end) {
    for (int step = begin; step < end; step += AHEAD) {
      const uint4* right = staged + (step - begin) * parts * CHUNKS * CHUNK_PITCH + lane_offset;
#pragma unroll
      for (int slot = 0; slot < AHEAD; slot++) {
        if (slot == 0 || step + slot < end) add(slot, right + slot * parts * CHUNKS * CHUNK_PITCH);
      }
      if (step + AHEAD < count) fetch();
    }
  };
  if constexpr (NORM != PLAIN) {
    stage_normalized<NORM, Chain, ARRAYS, PER_WORD>(sources, {norm_scale, norm_shift, eps, eps_mode}, staged_rows,
                                                    total, m, k, count * parts * STEP / CHUNK, thread, warps);
    __syncthreads();
    multiply(0, count);
  } else {
    for (int begin = 0; begin < count; begin += rounds) {
      if (begin) __syncthreads();  // the previous part of x has been read
      stage(begin);
      __syncthreads();
      multiply(begin, min(begin + rounds, count));
    }
  }

  __syncthreads();  // x has been read
  float* const sums = reinterpret_cast<float*>(staged);
  float* const own_sums = sums + (part * blockDim.z + threadIdx.z) * m * PITCH;
#pragma unroll
  for (int i = 0; i < N; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at = i * CHUNK + lane % 4 * 2 + e % 2;
      float total = sum[0][i][e];
      if constexpr (!GROUPED && CHAINS == 2) total += sum[CHAINS - 1][i][e];
      if (at < m) own_sums[at * PITCH + lane / 4 + e / 2 * 8] = total;
    }
  __syncthreads();
  const int height = TILE * blockDim.z;
  for (int i = thread; i < height * m; i += 32 * warps) {
    const int row = i % height, at = i / height;
    if (first_row + row >= n) continue;
    const float* from_part = sums + (row / TILE * m + at) * PITCH + row % TILE;
    float total = 0;
    for (int p = 0; p < parts; p++) total += from_part[p * blockDim.z * m * PITCH];
    total *= 1.f / Exact::UNIT;
    if constexpr (!GROUPED)
      total *= scale_of(quant_param(scale, above + first_row + row, indices.scale, 0));
    out[static_cast<long long>(at) * n + first_row + row] = X(total);
  }
}
