// Sequences of recurrent layers with a batch, on tensor cores: one cooperative launch for all steps (persistent RNN,
// Diamos et al. 2016). The rows of R stay in registers, and h goes through global memory after each step.
#include "barrier.cuh"
#include "ptx.cuh"
#include "recurrent.cuh"

constexpr int WARPS = 8;             // per block
constexpr int THREADS = WARPS * 32;  // per block
constexpr int ROWS = 16;             // rows of R per mma
constexpr int BYTES = 64;            // bytes of a row that a warp multiplies at a time
constexpr int COUNTER_PITCH = 32;    // elements between counters: each has a cache line of 128 bytes
constexpr int REGISTERS = 192;       // of a thread for operands and sums
constexpr int IGNORED_BITS = 13;     // low bits of an f32 that mma ignores in TF32

// Conversion of f32 to an operand of mma: 16 bits, or the bits of an f32 that are rounded to TF32.
template <class T>
struct Operand {
  static __device__ __forceinline__ T of(float x) { return T(x); }
};
template <>
struct Operand<float> {
  static __device__ __forceinline__ float of(float x) {
    constexpr unsigned HALF_UNIT = 1u << (IGNORED_BITS - 1);  // half a unit of the last place that counts
    const float infinity = __int_as_float(0x7f800000);
    return __uint_as_float(__float_as_uint(x) + (fabsf(x) < infinity ? HALF_UNIT : 0u));
  }
};

// 16 bytes of a row of R or of a column of h as operands of mma.
template <class T, bool EXACT>
struct Chunk {
  unsigned operand[4];

  __device__ __forceinline__ void operator=(uint4 x) {
    operand[0] = x.x, operand[1] = x.y, operand[2] = x.z, operand[3] = x.w;
  }
};

// f32 as sums of two numbers in TF32, but for 2^-22 of them.
template <>
struct Chunk<float, true> {
  unsigned large[4], small[4];

  __device__ __forceinline__ void operator=(uint4 x) {
    float elements[4];
    memcpy(elements, &x, sizeof(x));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      large[i] = __float_as_uint(Operand<float>::of(elements[i])) & ~0u << IGNORED_BITS;
      small[i] = __float_as_uint(Operand<float>::of(elements[i] - __uint_as_float(large[i])));
    }
  }
};

// Compute sum += a b for two rows of a and a column of b: their elements i, i + 1.
template <class T>
__device__ __forceinline__ void multiply_pairs(const unsigned (&upper)[4], const unsigned (&lower)[4],
                                               const unsigned (&column)[4], float (&sum)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned a[4] = {upper[i], lower[i], upper[i + 1], lower[i + 1]};
    multiply_add<T>(a, column[i], column[i + 1], sum);
  }
}

template <class T>
__device__ __forceinline__ void multiply_chunks(const Chunk<T, false>& upper, const Chunk<T, false>& lower,
                                                const Chunk<T, false>& column, float (&sum)[4]) {
  multiply_pairs<T>(upper.operand, lower.operand, column.operand, sum);
}

// Multiply f32 by three products in TF32 (Ootomo and Yokota, 2022). The fourth, of the small numbers, is less than
// 2^-22 of the first. Tensor cores do not round sums to nearest, so that they add few products at a time.
template <class T>
__device__ __forceinline__ void multiply_chunks(const Chunk<T, true>& upper, const Chunk<T, true>& lower,
                                                const Chunk<T, true>& column, float (&sum)[4]) {
  float product[4] = {}, rest[4] = {};
  multiply_pairs<T>(upper.large, lower.large, column.large, product);
  multiply_pairs<T>(upper.small, lower.small, column.large, rest);
  multiply_pairs<T>(upper.large, lower.large, column.small, rest);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool finite = fabsf(product[i]) < __int_as_float(0x7f800000);  // infinity times 0 is no rest
    sum[i] += finite ? product[i] + rest[i] : product[i];
  }
}

template <class T>
__device__ __forceinline__ uint4 rounded(uint4 chunk) {
  constexpr int N = 16 / sizeof(T);
  T elements[N];
  memcpy(elements, &chunk, sizeof(chunk));
#pragma unroll
  for (int i = 0; i < N; i++) elements[i] = Operand<T>::of(float(elements[i]));
  memcpy(&chunk, elements, sizeof(chunk));
  return chunk;
}

// Shared memory for the sums of one warp: M tiles of ROWS rows, with a column per sequence. The pitches of rows and
// tiles avoid bank conflicts. The host relies on them.
template <int SEQUENCES, int M>
struct Partial {
  static constexpr int PITCH = SEQUENCES + (SEQUENCES > 8 ? 8 : 0), SKEW = M < 4 ? 8 / M : 2;
  static constexpr int TILE = ROWS * PITCH + SKEW, SIZE = M * TILE;
};

// Compute all steps of projections x [batch, steps, gates * hidden], which lack the bias. b may be null. blockIdx.x
// selects M U hidden units, whose U G rows of R per tile are left operands; h of 8 N sequences, which blockIdx.z
// selects, is the right operand. blockIdx.y is the direction. A warp multiplies STEPS parts of BYTES of each row; the
// parts are dealt out to the warps in turn. R is aligned to 16 bytes, and so are its rows. Without lengths, all
// sequences have all steps. `state` is [directions, groups of sequences, 2, parts of a row, 8 N, BYTES]: h before and
// after a step, rounded to T or, unless products are EXACT, to TF32; it holds zeros before the first launch. `arrived`
// [directions, groups] are counters, zero before and after a launch.
template <class T, class L, Cell CELL, int STEPS, int M, int N, bool EXACT = false>
__global__ void __launch_bounds__(THREADS, 1)
    recurrent_mma(const float* x, const T* r, const T* b, const T* h, const T* c, const L* lengths, T* y, T* h_out,
                  T* c_out, T* state, unsigned* arrived, Strides stride, Activations<float> activations, Sizes size) {
  constexpr int G = Shape<CELL>::GATES, BIASES = Shape<CELL>::BIASES, U = ROWS / G, UNITS = M * U;
  constexpr int SEQUENCES = 8 * N, OWNED = (UNITS * SEQUENCES + THREADS - 1) / THREADS;
  constexpr int CHUNK = 16 / sizeof(T), PART = BYTES / sizeof(T), STATE = WARPS * STEPS * SEQUENCES * PART;
  // Parts of h that are loaded at once: all, or half of those that registers can hold.
  constexpr int FREE = (REGISTERS - (EXACT ? 16 * STEPS * M + 8 * N + 8 : 8 * STEPS * M) - 4 * M * N) / (4 * N);
  constexpr int AHEAD = FREE >= STEPS ? STEPS : FREE / 2, PASSES = (STEPS + AHEAD - 1) / AHEAD;
  using Sums = Partial<SEQUENCES, M>;
  OVGPU_DYN_SHARED(float, partial);
  const int hidden = size.hidden, batch = size.batch, steps = size.steps;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int first_unit = blockIdx.x * UNITS, direction = blockIdx.y, first_sequence = blockIdx.z * SEQUENCES;
  const int barrier = direction * gridDim.z + blockIdx.z;
  unsigned* const counter = arrived + barrier * COUNTER_PITCH;
  state += 2ll * barrier * STATE;

  // A lane holds 16 bytes of rows `group` and `group + 8` of each tile and part.
  Chunk<T, EXACT> weight[STEPS][M][2];
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = half * 8 + group, unit = first_unit + m * U + row % U;
        const int i = (s * WARPS + warp) * PART + quad * CHUNK;
        weight[s][m][half] = make_uint4(0, 0, 0, 0);
        if (row < U * G && unit < hidden && i < hidden) {
          const long long at = ((1ll * direction * G + row / U) * hidden + unit) * size.r_row + i;
          const uint4 chunk = *reinterpret_cast<const uint4*>(r + at);
          weight[s][m][half] = EXACT ? chunk : rounded<T>(chunk);
        }
      }
    }
  }
  const T* const operand = state + (warp * SEQUENCES + group) * PART + quad * CHUNK;

  // Values of the pairs that this thread owns. `in` are the projections of a step.
  int unit[OWNED], sequence[OWNED], length[OWNED];
  bool owned[OWNED];
  int state_at[OWNED];
  float in[OWNED][G] = {}, bias[OWNED][4] = {}, h_before[OWNED] = {}, cell[OWNED] = {};
  const bool reverse = size.reverse >> direction & 1;
  const auto load_projections = [&](int step) {
    const int t = reverse ? steps - 1 - step : step;
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      if (!owned[k]) continue;
      const float* from = x + sequence[k] * stride.x + direction * stride.x_direction + t * stride.x_step + unit[k];
#pragma unroll
      for (int g = 0; g < G; g++) in[k][g] = from[1ll * g * hidden];
    }
  };
#pragma unroll
  for (int k = 0; k < OWNED; k++) {
    const int i = k * THREADS + threadIdx.x;
    unit[k] = first_unit + i % UNITS, sequence[k] = first_sequence + i / UNITS;
    owned[k] = i < UNITS * SEQUENCES && unit[k] < hidden && sequence[k] < batch;
    state_at[k] = (unit[k] / PART * SEQUENCES + i / UNITS) * PART + unit[k] % PART;
    length[k] = steps;
    if (!owned[k]) continue;
    if (b) {
#pragma unroll
      for (int g = 0; g < BIASES; g++) bias[k][g] = float(b[(1ll * direction * BIASES + g) * hidden + unit[k]]);
    }
    if (lengths && lengths[sequence[k]] < steps) length[k] = lengths[sequence[k]] > 0 ? int(lengths[sequence[k]]) : 0;
    h_before[k] = float(h[sequence[k] * stride.h + direction * stride.h_direction + unit[k]]);
    if (CELL == LSTM) cell[k] = float(c[sequence[k] * stride.c + direction * stride.c_direction + unit[k]]);
    state[state_at[k]] = EXACT ? T(h_before[k]) : Operand<T>::of(h_before[k]);
  }
  __syncthreads();
  if (threadIdx.x == 0) arrive(counter);
  load_projections(0);

  for (int step = 0; step < steps; step++) {
    if (threadIdx.x == 0) wait_for_arrivals(counter, (step + 1) * gridDim.x);
    __syncthreads();
    const T* const from = operand + step % 2 * STATE;
    float sum[M][N][4] = {};
    uint4 loaded[2][AHEAD][N];
#pragma unroll
    for (int pass = 0; pass <= PASSES; pass++) {
      // Never skips: the branch keeps the compiler from loading more than the registers can hold.
      if (pass > 0 && pass < PASSES && hidden <= pass * AHEAD * PART) continue;
#pragma unroll
      for (int s = pass * AHEAD; s < pass * AHEAD + AHEAD && s < STEPS; s++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
          const T* at = from + (s * WARPS * SEQUENCES + n * 8) * PART;
          loaded[pass % 2][s - pass * AHEAD][n] = __ldcg(reinterpret_cast<const uint4*>(at));
        }
      }
#pragma unroll
      for (int s = pass * AHEAD - AHEAD; s < pass * AHEAD && s < STEPS; s++) {
        if (s < 0) continue;
        Chunk<T, EXACT> column[N];
#pragma unroll
        for (int n = 0; n < N; n++) column[n] = loaded[(pass + 1) % 2][s % AHEAD][n];
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int n = 0; n < N; n++) multiply_chunks<T>(weight[s][m][0], weight[s][m][1], column[n], sum[m][n]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int n = 0; n < N; n++) {
        float* to = partial + warp * Sums::SIZE + m * Sums::TILE + group * Sums::PITCH + n * 8 + quad * 2;
        *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
        *reinterpret_cast<float2*>(to + 8 * Sums::PITCH) = make_float2(sum[m][n][2], sum[m][n][3]);
      }
    }
    __syncthreads();
    const int t = reverse ? steps - 1 - step : step;
    const bool last = step == steps - 1;
    bool active[OWNED];
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      if (!owned[k]) continue;
      const int i = k * THREADS + threadIdx.x, u = i % UNITS;
      const float* from = partial + u / U * Sums::TILE + u % U * Sums::PITCH + i / UNITS;
      float product[G] = {};
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
#pragma unroll
        for (int g = 0; g < G; g++) product[g] += from[w * Sums::SIZE + g * U * Sums::PITCH];
      }
      if (CELL != GRU_LINEAR) {
#pragma unroll
        for (int g = 0; g < G; g++) product[g] += in[k][g];
      }
      float carried = cell[k];
      const float h_after = next_state<CELL>(activations, product, in[k], bias[k], h_before[k], carried);
      active[k] = length[k] > t;
      if (active[k]) h_before[k] = h_after, cell[k] = carried;
      if (!last) {
        state[(step + 1) % 2 * STATE + state_at[k]] = EXACT ? T(h_before[k]) : Operand<T>::of(h_before[k]);
      }
    }
    // The other blocks wait only for the state: y and the next projections overlap with waiting.
    if (!last) {
      __syncthreads();
      if (threadIdx.x == 0) arrive(counter);
      load_projections(step + 1);
    }
#pragma unroll
    for (int k = 0; k < OWNED; k++) {
      if (!owned[k] || !y) continue;
      y[sequence[k] * stride.y + direction * stride.y_direction + t * stride.y_step + unit[k]] =
          T(active[k] ? h_before[k] : 0.f);
    }
  }
#pragma unroll
  for (int k = 0; k < OWNED; k++) {
    if (!owned[k]) continue;
    h_out[sequence[k] * stride.h_out + direction * stride.h_out_direction + unit[k]] =
        T(length[k] > 0 ? h_before[k] : 0.f);
    if (CELL == LSTM) {
      c_out[sequence[k] * stride.c_out + direction * stride.c_out_direction + unit[k]] =
          T(length[k] > 0 ? cell[k] : 0.f);
    }
  }
  if (threadIdx.x == 0 && atomicAdd(counter, 1u) == (steps + 1) * gridDim.x - 1) {  // the last block resets the counter
    atomicExch(counter, 0u);
  }
}
