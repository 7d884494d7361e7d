// Recurrent cells and sequences. A warp computes the gates and the new state of one hidden unit.
#include "accumulator.cuh"
#include "recurrent.cuh"

// Return the number of blocks per multiprocessor for the launch bounds; the host relies on it.
__host__ __device__ constexpr int resident(int retained, int sequences) {
  return retained > 4 || sequences > 1 ? 1 : 2;
}

// Load an element. BYPASS_L1: other blocks write it while this kernel runs.
template <bool BYPASS_L1, class V>
__device__ __forceinline__ V load(const V* from) {
  if constexpr (BYPASS_L1) {
    return __ldcg(from);
  } else {
    return *from;
  }
}

// Load W neighbouring elements, aligned to 16 bytes.
template <bool BYPASS_L1, int W, class V, class A>
__device__ __forceinline__ void load(const V* from, A (&to)[W]) {
  constexpr int N = 16 / sizeof(V);
  static_assert(W % N == 0, "whole words of 16 bytes");
#pragma unroll
  for (int i = 0; i < W; i += N) {
    const uint4 bits = load<BYPASS_L1>(reinterpret_cast<const uint4*>(from + i));
    V part[N];
    memcpy(part, &bits, sizeof(bits));
#pragma unroll
    for (int k = 0; k < N; k++) to[i + k] = A(part[k]);
  }
}

// Add this lane's part of the products of every v [n] with rows [FROM, TO) of a unit in m, whose rows are `row_stride`
// apart.
template <int FROM, int TO, bool BYPASS_L1, class V, class T, class A, int B, int G>
__device__ __forceinline__ void accumulate(const V* const (&v)[B], const T* m, const long long (&row)[G],
                                           int row_stride, int n, A (&sum)[B][G]) {
  constexpr int W = 16 / sizeof(T), AHEAD = sizeof(T) == 4 && B * (TO - FROM) < 4 ? 2 : 1;
  unsigned long long bits = reinterpret_cast<unsigned long long>(m);
#pragma unroll
  for (int b = 0; b < B; b++) bits |= reinterpret_cast<unsigned long long>(v[b]);
  if (bits % 16 == 0 && n % W == 0 && row_stride % W == 0) {
#pragma unroll AHEAD
    for (int i = threadIdx.x * W; i < n; i += 32 * W) {
      A x[B][W];
#pragma unroll
      for (int b = 0; b < B; b++) load<BYPASS_L1>(v[b] + i, x[b]);
#pragma unroll
      for (int g = FROM; g < TO; g++) {
        A y[W];
        load<false>(m + row[g] * row_stride + i, y);
#pragma unroll
        for (int b = 0; b < B; b++) {
#pragma unroll
          for (int k = 0; k < W; k++) sum[b][g] += x[b][k] * y[k];
        }
      }
    }
    return;
  }
  for (int i = threadIdx.x; i < n; i += 32) {
    A x[B];
#pragma unroll
    for (int b = 0; b < B; b++) x[b] = A(load<BYPASS_L1>(v[b] + i));
#pragma unroll
    for (int g = FROM; g < TO; g++) {
      const A y = A(m[row[g] * row_stride + i]);
#pragma unroll
      for (int b = 0; b < B; b++) sum[b][g] += x[b] * y;
    }
  }
}

// Like accumulate above, for one v and with the unit's rows in registers.
template <int FROM, int TO, bool BYPASS_L1, class V, class A, int G, int K>
__device__ __forceinline__ void accumulate(const V* v, const A (&m)[G][K], int n, A (&sum)[G]) {
  constexpr int M = K < 16 ? K : 16;  // elements at a time
#pragma unroll
  for (int part = 0; part < K; part += M) {
    A x[M];
#pragma unroll
    for (int k = 0; k < M; k++) {
      const int i = (part + k) * 32 + threadIdx.x;
      x[k] = i < n ? A(load<BYPASS_L1>(v + i)) : A(0);
    }
#pragma unroll
    for (int k = 0; k < M; k++) {
#pragma unroll
      for (int g = FROM; g < TO; g++) sum[g] += x[k] * m[g][part + k];
    }
  }
}

// Compute the steps of x [batch, steps, input] with w, r and b; or, if w is null, of projections x
// [batch, steps, gates * hidden] without bias, whose type X is the accumulator type. b may be null, and so may the
// attention [batch, steps] of a GRU, whose z is multiplied by 1 - attention. blockIdx.y is the direction; blockIdx.z
// selects sequences, B of which share loaded weights. Without lengths, all sequences have all steps. With K > 0 and
// without w, K registers per lane and gate hold a unit's rows of R (persistent RNN).
// A cooperative launch, which has `arrived` (zero before and after), computes all rounds with grid barriers between
// them; any other launch computes one round. `state` [2, directions, batch, hidden] is h before and after a step.
// `retained` is c or, for a GRU, [2, ...] of z and the reset h. Both may be null with a single round.
template <class T, class X, class L, Cell CELL, int K, int B>
__global__ void __launch_bounds__(256, resident(K, B))
    recurrent(const X* x, const T* w, const T* r, const T* b, const T* attention, const T* h, const T* c,
              const L* lengths, T* y, T* h_out, T* c_out, typename Accumulator<T>::Type* state,
              typename Accumulator<T>::Type* retained, unsigned* arrived, Strides stride,
              Activations<typename Accumulator<T>::Type> activations, Sizes size) {
  using A = typename Accumulator<T>::Type;
  constexpr int G = Shape<CELL>::GATES, ROUNDS = Shape<CELL>::ROUNDS;
  constexpr int H_GATES = ROUNDS == 2 ? G - 1 : G;  // gates that use h before the reset
  static_assert(K == 0 || B == 1, "rows in registers serve one sequence at a time");
  const int hidden = size.hidden, batch = size.batch, steps = size.steps;
  const int unit = blockIdx.x * blockDim.y + threadIdx.y, direction = blockIdx.y;
  const bool valid = unit < hidden;
  const bool projected = K > 0 || sizeof(X) != sizeof(T) || !w;
  const long long state_size = 1ll * gridDim.y * batch * hidden;
  long long row[G];
#pragma unroll
  for (int g = 0; g < G; g++) row[g] = (1ll * direction * G + g) * hidden + unit;
  A weight[G][K ? K : 1] = {};
  if (K) {
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
      for (int k = 0; k < K; k++) {
        const int i = k * 32 + threadIdx.x;
        if (valid && i < hidden) weight[g][k] = A(r[row[g] * size.r_row + i]);
      }
    }
  }
  A bias[4] = {};
  if (b && valid) {
#pragma unroll
    for (int g = 0; g < Shape<CELL>::BIASES; g++) {
      bias[g] = A(b[(1ll * direction * Shape<CELL>::BIASES + g) * hidden + unit]);
    }
  }
  for (int round = size.first; round < size.last; round++) {
    const int step = round / ROUNDS;
    const bool resets = ROUNDS == 2 && round % 2 == 0;  // the round that computes z and the reset h
    const int t = size.reverse >> direction & 1 ? steps - 1 - step : step;
    for (int n0 = blockIdx.z * B; valid && n0 < batch; n0 += gridDim.z * B) {
      const X* from[B];
      const T* initial_h[B];
      const A *current_h[B], *reset[B];
      A in[B][G] = {}, sum[B][G] = {};
#pragma unroll
      for (int j = 0; j < B; j++) {
        const int n = min(n0 + j, batch - 1);  // repeats the last sequence
        from[j] = x + n * stride.x + direction * stride.x_direction + t * stride.x_step;
        initial_h[j] = h + n * stride.h + direction * stride.h_direction;
        current_h[j] = state + (step % 2) * state_size + (1ll * direction * batch + n) * hidden;
        reset[j] = retained + state_size + (1ll * direction * batch + n) * hidden;
        if (projected && threadIdx.x == j) {
#pragma unroll
          for (int g = 0; g < G; g++) in[j][g] = A(from[j][1ll * g * hidden + unit]);
        }
      }
      // The first step reads the initial h.
      if constexpr (K > 0) {
        if (ROUNDS == 2 && !resets) {
          accumulate<H_GATES, G, true>(reset[0], weight, hidden, sum[0]);
        } else if (step == 0) {
          accumulate<0, H_GATES, false>(initial_h[0], weight, hidden, sum[0]);
        } else {
          accumulate<0, H_GATES, true>(current_h[0], weight, hidden, sum[0]);
        }
      } else {
        if (!projected && resets) {
          accumulate<0, H_GATES, false>(from, w, row, size.w_row, size.input, in);
        } else if (!projected) {
          accumulate<ROUNDS == 2 ? H_GATES : 0, G, false>(from, w, row, size.w_row, size.input, in);
        }
        if (ROUNDS == 2 && !resets) {
          accumulate<H_GATES, G, true>(reset, r, row, size.r_row, hidden, sum);
        } else if (step == 0) {
          accumulate<0, H_GATES, false>(initial_h, r, row, size.r_row, hidden, sum);
        } else {
          accumulate<0, H_GATES, true>(current_h, r, row, size.r_row, hidden, sum);
        }
      }
#pragma unroll
      for (int j = 0; j < B; j++) {
#pragma unroll
        for (int g = 0; g < G; g++) {
          if (CELL != GRU_LINEAR) sum[j][g] += in[j][g];
          for (int lane = 16; lane > 0; lane /= 2) {
            sum[j][g] += __shfl_xor_sync(0xffffffffu, sum[j][g], lane);
            if (CELL == GRU_LINEAR && !projected) in[j][g] += __shfl_xor_sync(0xffffffffu, in[j][g], lane);
          }
        }
      }
      // Lane j computes the new state of sequence j.
      const int n = n0 + threadIdx.x;
      if (threadIdx.x >= B || n >= batch) continue;
      A to[G], x_sums[G];
#pragma unroll
      for (int j = 0; j < B; j++) {
        if (threadIdx.x != j) continue;
#pragma unroll
        for (int g = 0; g < G; g++) {
          to[g] = sum[j][g];
          x_sums[g] = in[j][g];
        }
      }
      const long long at = (1ll * direction * batch + n) * hidden + unit;
      const A previous_h = step == 0 ? A(h[n * stride.h + direction * stride.h_direction + unit])
                                     : __ldcg(state + (step % 2) * state_size + at);
      if (resets) {
        const A attention_factor = attention ? A(1) - A(attention[1ll * n * steps + t]) : A(1);
        retained[at] = gate(activations, 0, to[0] + bias[0]) * attention_factor;
        retained[state_size + at] = gate(activations, 0, to[1 % G] + bias[1]) * previous_h;
        continue;
      }
      const bool active = !lengths || lengths[n] > t;
      A before = 0;  // c before this step (LSTM), or z (GRU)
      if (CELL == LSTM) {
        before = step == 0 ? A(c[n * stride.c + direction * stride.c_direction + unit]) : retained[at];
      } else if (CELL == GRU) {
        before = retained[at];
      }
      A cell = before, next_h = next_state<CELL>(activations, to, x_sums, bias, previous_h, cell);
      if (CELL == LSTM) {
        if (!active) cell = before;
        if (step < steps - 1) retained[at] = cell;
      }
      if (!active) next_h = previous_h;
      if (step < steps - 1) state[((step + 1) % 2) * state_size + at] = next_h;
      if (y) y[n * stride.y + direction * stride.y_direction + t * stride.y_step + unit] = T(active ? next_h : A(0));
      if (step == steps - 1) {
        const bool has_steps = !lengths || lengths[n] > 0;
        h_out[n * stride.h_out + direction * stride.h_out_direction + unit] = T(has_steps ? next_h : A(0));
        if (CELL == LSTM)
          c_out[n * stride.c_out + direction * stride.c_out_direction + unit] = T(has_steps ? cell : A(0));
      }
    }
    if (arrived && round < size.last - 1) ovgpu_grid_barrier(arrived, round);
  }
  if (arrived && threadIdx.x == 0 && threadIdx.y == 0) {  // the last block resets the counter
    const unsigned rounds = size.last - size.first, blocks = gridDim.x * gridDim.y * gridDim.z;
    if (atomicAdd(arrived, 1u) == rounds * blocks - 1) atomicExch(arrived, 0u);
  }
}
