// Products of few rows on tensor cores, at most 64: with compressed weights, or with weights of 16 bits. Codes are
// converted to exact 16-bit integers in registers; scales multiply the f32 sums. f32 elements of x become sums of two
// bf16 numbers, which have 16 significant bits, more than TF32 has.
#include "product_input.cuh"
#include "ptx.cuh"

constexpr int TILE = 16;         // rows of the weights per warp
constexpr int PITCH = TILE + 4;  // floats between the partial sums of two rows of x; avoids bank conflicts
constexpr int MAX_ROWS = 32;     // rows of x per block; two blocks share more of them

// Return the maximum number of warps of a block: half of MAX_WARPS where lanes need more registers.
template <class X>
constexpr int max_warps(int rows) {
  return rows <= CHUNK && sizeof(X) == 2 ? MAX_WARPS : MAX_WARPS / 2;
}

// Parts of the columns of a product. A gate computes an element of out from two elements of the product, at the same
// place of both halves of its columns. None is no gate.
template <class Gate>
constexpr int HALVES = 2;
template <>
constexpr int HALVES<None> = 1;

// Compute out [z, m, n] = x [z, m, k] @ weights [z, n, k]^T for every z = blockIdx.z; unless `stacked`, all share
// x [m, k]. With a gate, out is [z, m, n / 2].
// Chain computes each element of x from the elements of ARRAYS arrays, whose rows have `strides`. `total` is null, or
// receives x before the norm. NORM: how rows of x are normalised, MVN or RMS, in which case shared memory holds all of
// x; else PLAIN.
// Blocks have 32 x (warps along k) x (warps along n) threads. A warp multiplies TILE rows of the weights, the left
// operand of mma. In each step, lanes 4 g to 4 g + 3 take V words of codes each from rows g and g + 8. Sums may take
// the elements along k in any order, if it is the same for x. Warps along k take every `parts`-th step (split-K),
// `count` each, and their sums are added at the end. With a gate, the second half of the warps along n takes rows of
// the second half of the weights. The rows that a block multiplies at once are a group: it takes every gridDim.x-th of
// `groups` groups, and ROWS rows of x. It stages x for `rounds` steps per warp in shared memory; 1 << shift threads
// copy a row.
// Each thread copies its codes to shared memory, AHEAD steps before it needs them. The weights are constants: the first
// copies begin before the launches before this one have ended. `rounds` is a multiple of AHEAD, or covers all steps.
// GROUPED: scales or zero points differ along k, but not within a step.
template <class Codes, class Scale, class Zero, class X, int V, int ROWS, int AHEAD, bool GROUPED,
          class Chain = Identity, int ARRAYS = 1, Kind NORM = PLAIN, class Gate = None>
__global__ void __launch_bounds__(32 * max_warps<X>(ROWS), 2)
    product_mma(const X* x, const X* y, const X* z, const RowStrides strides, X* total, const X* norm_scale,
                const X* norm_shift, float eps, int eps_mode, X* out, const void* __restrict__ codes,
                const Scale* __restrict__ scale, const Zero* __restrict__ zero, const QuantParamIndices indices, int m,
                int n, int k, int stacked, int groups, int count, int rounds, int shift) {
  using T = typename RightOperand<X>::T;
  constexpr int TERMS = RightOperand<X>::TERMS;
  constexpr int PER_WORD = Codes::PER_WORD, LANE_CODES = V * PER_WORD, STEP = 4 * LANE_CODES,
                CHUNKS = LANE_CODES / CHUNK;
  constexpr int N = (ROWS + CHUNK - 1) / CHUNK;       // right operands of mma
  constexpr int CHAINS = N == 1 && !GROUPED ? 2 : 1;  // independent chains of mma
  constexpr int CHUNK_PITCH = StagedRows<X, ROWS, CHUNKS>::PITCH;
  constexpr int BATCH = ROWS == 1 ? 1 : (ROWS <= CHUNK ? 2 : 8) / TERMS;  // rows of x that a thread copies at once
  constexpr int PARTS = HALVES<Gate>;
  static_assert(AHEAD <= 4, "four lanes share a row");
  using Exact = Integers<Codes, T>;
  struct alignas(4 * V) Words {
    unsigned at[V];
  };
  OVGPU_DYN_SHARED(uint4, memory);  // copied codes, partial sums, and x
  start_next_launch();
  const int part = __shfl_sync(0xffffffffu, threadIdx.y, 0);  // the compiler sees that it is uniform in a warp
  const int parts = blockDim.y, warps = parts * blockDim.z, warp = part + parts * threadIdx.z;
  const int lane = threadIdx.x, thread = lane + 32 * warp, row_lane = threadIdx.x / 4, quarter = threadIdx.x % 4;
  const int width = n / PARTS, tiles = blockDim.z / PARTS, height = TILE * tiles;  // results: of a row, and of a group
  const int batches = ROWS == MAX_ROWS && m > ROWS ? 2 : 1, batch = batches == 2 ? blockIdx.x % 2 * ROWS : 0;
  const int first_group = blockIdx.x / batches, group_stride = gridDim.x / batches;
  const int m_here = min(m - batch, ROWS);

  Words* const copied = reinterpret_cast<Words*>(memory) + warp * (AHEAD * 2 * 32) + lane;
  float* const sums = reinterpret_cast<float*>(memory) + warps * (AHEAD * 2 * 32 * V);
  const StagedRows<X, ROWS, CHUNKS> staged = {reinterpret_cast<uint4*>(sums + warps * m_here * PITCH)};

  // The steps that are copied, which are AHEAD of the steps that are multiplied.
  int group_ahead = first_group, step_ahead = 0;
  Scale scales_ahead[2];
  Zero zeros_ahead[2];
  const int tile = threadIdx.z, second = PARTS == 2 && tile >= tiles ? 1 : 0;  // the second half of the weights
  const int above = blockIdx.z * n + second * width, row_warp = (tile - second * tiles) * TILE + row_lane;
  const auto row_ahead = [&](int h) { return above + min(group_ahead * height + row_warp + 8 * h, width - 1); };
  const auto load_params = [&]() {  // the lanes that share a row load the parameters of different steps
    if (!GROUPED && step_ahead) return;
    const int column = GROUPED ? min(((step_ahead + lane % AHEAD) * parts + part) * STEP, k - 1) : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = row_ahead(h);
      if constexpr (GROUPED) scales_ahead[h] = quant_param(scale, row, indices.scale, column);
      zeros_ahead[h] = quant_param(zero, row, indices.zero, column);
    }
  };
  const auto copy = [&](int slot) {
    const int column = ((step_ahead + slot) * parts + part) * STEP + quarter * LANE_CODES;
    if (group_ahead < groups) {
#pragma unroll
      for (int h = 0; h < 2; h++) {  // an int can count the code vectors of any weights
        const int from = row_ahead(h) * (k / LANE_CODES) + ((step_ahead + slot) * parts + part) * 4 + quarter;
        copy_async<sizeof(Words)>(copied + (slot * 2 + h) * 32, static_cast<const Words*>(codes) + from, column < k);
      }
    }
    commit_copies();
  };
  load_params();
#pragma unroll
  for (int slot = 0; slot < AHEAD; slot++) copy(slot);
  wait_for_launches();

  const auto stage = [&](int step) {
    const Sources<X> sources = {stacked ? x + static_cast<long long>(blockIdx.z) * m * k : x, y, z, strides};
    const int chunk_count = min(rounds, count - step) * parts * STEP / CHUNK, row_stride = 32 * warps >> shift;
    for (int chunk = thread & ((1 << shift) - 1); chunk < chunk_count; chunk += 1 << shift) {
      const int at = step * parts * STEP + chunk * CHUNK;
      for (int first = thread >> shift; first < ROWS; first += row_stride * BATCH) {
        X elements[BATCH][CHUNK] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
          if (at < k && row < m_here) sources.template compute<Chain, ARRAYS>(batch + row, at, elements[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
          if (row >= ROWS) continue;
          uint4 terms[TERMS];
          split_terms<PER_WORD>(elements[i], terms);
          staged.store(terms, staged.at(chunk, row));
        }
      }
    }
  };

  Exact integers[2];
  float sum[CHAINS][N][4];
  const auto add = [&](const Words(&words)[2], const float (&scales)[2], const uint4* right) {
    float grouped[1][N][4] = {};
    auto& to = [&]() -> auto& {
      if constexpr (GROUPED) {
        return grouped;
      } else {
        return sum;
      }
    }();
#pragma unroll
    for (int p = 0; p < CHUNKS; p++) {
      unsigned a[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) integers[h].convert(words[h].at + p * (CHUNK / PER_WORD), a[h]);
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
#pragma unroll
      for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[0][i][e] += scales[e / 2] * grouped[0][i][e];
    }
  };
  const auto multiply = [&](int steps) {
    const uint4* right = staged.memory + part * CHUNKS * CHUNK_PITCH + min(row_lane, ROWS - 1) * 4 + quarter;
    for (; steps > 0; steps -= AHEAD) {
      float scales[2];
      Zero zeros[2];
#pragma unroll
      for (int h = 0; h < 2 && GROUPED; h++) {
        scales[h] = scale_of(scales_ahead[h]);
        zeros[h] = zeros_ahead[h];
      }
      step_ahead += AHEAD;
      if (step_ahead >= count) {
        step_ahead = 0;
        group_ahead += group_stride;
      }
      load_params();
#pragma unroll 1
      for (int slot = 0; slot < AHEAD; slot++) {
        wait_copies_but<AHEAD - 1>();
        if (slot < steps) {
          Words words[2];
          float own_scales[2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            words[h] = copied[(slot * 2 + h) * 32];
            if constexpr (GROUPED) {
              own_scales[h] = of_lane(scales[h], slot);
              set_zero(integers[h], of_lane(zeros[h], slot));
            }
          }
          add(words, own_scales, right);
          right += parts * CHUNKS * CHUNK_PITCH;
        }
        copy(slot);
      }
    }
  };

  if constexpr (NORM != PLAIN) {
    stage_normalized<NORM, Chain, ARRAYS, PER_WORD>(
        Sources<X>{x, y, z, strides}, {norm_scale, norm_shift, eps, eps_mode}, staged, blockIdx.x ? nullptr : total,
        m_here, k, count * parts * STEP / CHUNK, thread, warps);
    __syncthreads();
  }
  for (int group = first_group; group < groups; group += group_stride) {
    const unsigned row = thread & (height - 1);  // row of the weights whose results this thread adds up
    float factors[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      factors[i] = 1.f;
      if constexpr (!GROUPED) {
        const int of_weights = blockIdx.z * n + i * width + min(group * height + static_cast<int>(row), width - 1);
        factors[i] = scale_of(quant_param(scale, of_weights, indices.scale, 0));
      }
    }
    if constexpr (!GROUPED) {
#pragma unroll
      for (int h = 0; h < 2; h++) set_zero(integers[h], zeros_ahead[h]);
    }
    memset(sum, 0, sizeof(sum));
    for (int begin = 0; begin < count; begin += rounds) {
      if (NORM == PLAIN && (group == first_group || rounds < count)) {
        if (begin || group != first_group) __syncthreads();  // the previous part of x has been read
        stage(begin);
        __syncthreads();
      }
      multiply(min(rounds, count - begin));
    }

    if (group != first_group) __syncthreads();  // the sums of the previous group have been read
    float* const own_sums = sums + (part * blockDim.z + threadIdx.z) * m_here * PITCH;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = i * CHUNK + quarter * 2 + e % 2;
        float total = sum[0][i][e];
        if constexpr (CHAINS == 2) total += sum[1][i][e];
        if (at < m_here) own_sums[at * PITCH + row_lane + e / 2 * 8] = total;
      }
    __syncthreads();
    if (group * height + row >= width) continue;
    for (int i = thread; i < height * m_here; i += 32 * warps) {
      const int at = i >> (__ffs(height) - 1);
      X results[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        const float* from = sums + ((p * tiles + row / TILE) * m_here + at) * PITCH + row % TILE;
        float total = 0;
#pragma unroll 4
        for (int j = 0; j < parts; j++, from += blockDim.z * m_here * PITCH) total += *from;
        results[p] = X(total * (1.f / Exact::UNIT) * factors[p]);
      }
      if constexpr (PARTS == 2) results[0] = Gate::of(results[0], [](int) { return 0; }, results + 1);
      const long long to = static_cast<long long>(blockIdx.z) * m + batch + at;
      out[to * width + group * height + row] = results[0];
    }
  }
}
