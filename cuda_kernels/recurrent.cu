// Recurrent cells and sequences: one warp computes the gates of one hidden unit, and its new state.
#include "accumulator.cuh"

enum Cell { LSTM, GRU, GRU_LINEAR, RNN };  // GRU resets the state before the product with R, GRU_LINEAR after it

// Kinds are 0 sigmoid, 1 tanh, 2 relu, 3 hardsigmoid; what goes into the gates is clipped.
template <class A>
struct Activations {
  A kind[3], alpha[3], beta[3], clip;
};

// Strides in elements: of sequences, of directions, and of steps. The last axes are dense.
struct Strides {
  long long x, x_direction, x_step, y, y_direction, y_step;
  long long h, h_direction, c, c_direction, h_out, h_out_direction, c_out, c_out_direction;
};

// Turns `first` to `last` are done; bit d of `reverse` says that direction d runs backwards. Rows of w and r are `w_row`
// and `r_row` elements apart.
struct Sizes {
  int batch, steps, input, hidden, w_row, r_row, reverse, first, last;
};

template <Cell CELL>
struct Shape {
  static constexpr int GATES = CELL == LSTM ? 4 : CELL == RNN ? 1 : 3;
  static constexpr int BIASES = CELL == GRU_LINEAR ? 4 : GATES;
  static constexpr int TURNS = CELL == GRU ? 2 : 1;  // per step: a GRU's reset state has to be complete first
};

// Blocks that a multiprocessor has registers for; the host counts on them.
__host__ __device__ constexpr int resident(int kept, int sequences) {
  return kept > 4 || sequences > 1 ? 1 : 2;
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float hyperbolic(float x) { return tanhf(x); }
__device__ __forceinline__ double hyperbolic(double x) { return tanh(x); }

template <class A>
__device__ __forceinline__ A clipped(A x, A low, A high) {
  return x < low ? low : x > high ? high : x;
}

template <class A>
__device__ __forceinline__ A activate(const Activations<A>& use, int i, A x) {
  const int kind = static_cast<int>(use.kind[i]);
  if (kind == 0) return A(1) / (A(1) + exponential(-x));
  if (kind == 1) return hyperbolic(x);
  if (kind == 2) return x < 0 ? A(0) : x;
  return clipped(use.alpha[i] * x + use.beta[i], A(0), A(1));
}

template <class A>
__device__ __forceinline__ A gate(const Activations<A>& use, int i, A x) {
  return activate(use, i, clipped(x, -use.clip, use.clip));
}

// FRESH words other blocks write while this one runs.
template <bool FRESH, class V>
__device__ __forceinline__ V load(const V* from) {
  if constexpr (FRESH) {
    return __ldcg(from);
  } else {
    return *from;
  }
}

// W neighbouring elements from a multiple of 16 bytes.
template <bool FRESH, int W, class V, class A>
__device__ __forceinline__ void load(const V* from, A (&to)[W]) {
  constexpr int N = 16 / sizeof(V);
  static_assert(W % N == 0, "whole words of 16 bytes");
#pragma unroll
  for (int i = 0; i < W; i += N) {
    const uint4 bits = load<FRESH>(reinterpret_cast<const uint4*>(from + i));
    V part[N];
    memcpy(part, &bits, sizeof(bits));
#pragma unroll
    for (int k = 0; k < N; k++) to[i + k] = A(part[k]);
  }
}

// Adds the lane's part of every v [n] times rows FROM to TO of a unit in m, which are `apart` elements apart.
template <int FROM, int TO, bool FRESH, class V, class T, class A, int B, int G>
__device__ __forceinline__ void accumulate(const V* const (&v)[B], const T* m, const long long (&row)[G],
                                           int apart, int n, A (&sum)[B][G]) {
  constexpr int W = 16 / sizeof(T), AHEAD = sizeof(T) == 4 && B * (TO - FROM) < 4 ? 2 : 1;
  unsigned long long bits = reinterpret_cast<unsigned long long>(m);
#pragma unroll
  for (int b = 0; b < B; b++) bits |= reinterpret_cast<unsigned long long>(v[b]);
  if (bits % 16 == 0 && n % W == 0 && apart % W == 0) {
#pragma unroll AHEAD
    for (int i = threadIdx.x * W; i < n; i += 32 * W) {
      A x[B][W];
#pragma unroll
      for (int b = 0; b < B; b++) load<FRESH>(v[b] + i, x[b]);
#pragma unroll
      for (int g = FROM; g < TO; g++) {
        A y[W];
        load<false>(m + row[g] * apart + i, y);
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
    for (int b = 0; b < B; b++) x[b] = A(load<FRESH>(v[b] + i));
#pragma unroll
    for (int g = FROM; g < TO; g++) {
      const A y = A(m[row[g] * apart + i]);
#pragma unroll
      for (int b = 0; b < B; b++) sum[b][g] += x[b] * y;
    }
  }
}

// The same for one v, with the unit's rows in registers.
template <int FROM, int TO, bool FRESH, class V, class A, int G, int K>
__device__ __forceinline__ void accumulate(const V* v, const A (&m)[G][K], int n, A (&sum)[G]) {
  constexpr int M = K < 16 ? K : 16;  // at a time
#pragma unroll
  for (int part = 0; part < K; part += M) {
    A x[M];
#pragma unroll
    for (int k = 0; k < M; k++) {
      const int i = (part + k) * 32 + threadIdx.x;
      x[k] = i < n ? A(load<FRESH>(v + i)) : A(0);
    }
#pragma unroll
    for (int k = 0; k < M; k++) {
#pragma unroll
      for (int g = FROM; g < TO; g++) sum[g] += x[k] * m[g][part + k];
    }
  }
}

// Steps of x [batch, steps, input] with w, r, b, or where w is null, of its projections [batch, steps, gates * hidden]
// without bias. X is the type of x: T, but of projections that of the sums, so that nothing is rounded on the way.
// b and the attention [batch, steps] of a GRU, which scales z by what it leaves, may be null, too. blockIdx.y is the
// direction, blockIdx.z starts the sequences, B of which share what is read of the weights (without lengths all have all
// steps). With K > 0, and without w, a unit's rows of R stay in K registers per lane and gate. A cooperative launch,
// which has `arrived`, zero before and after, does all turns; else each launch does one. `state` is
// [2, directions, batch, hidden], h before and after; `kept` is c, or what turns of a GRU leave to the next ([2, ...]: z,
// and the reset h). Steps that leave nothing to another need neither.
template <class T, class X, class L, Cell CELL, int K, int B>
__global__ void __launch_bounds__(256, resident(K, B))
    recurrent(const X* x, const T* w, const T* r, const T* b, const T* attention, const T* h, const T* c,
              const L* lengths, T* y, T* h_out, T* c_out, typename Accumulator<T>::Type* state,
              typename Accumulator<T>::Type* kept, unsigned* arrived, Strides stride,
              Activations<typename Accumulator<T>::Type> use, Sizes size) {
  using A = typename Accumulator<T>::Type;
  constexpr int G = Shape<CELL>::GATES, TURNS = Shape<CELL>::TURNS;
  constexpr int OPEN = TURNS == 2 ? G - 1 : G;  // gates that see h as it is
  static_assert(K == 0 || B == 1, "rows in registers serve one sequence at a time");
  const int hidden = size.hidden, batch = size.batch, steps = size.steps;
  const int unit = blockIdx.x * blockDim.y + threadIdx.y, direction = blockIdx.y;
  const bool exists = unit < hidden;
  const bool projected = K > 0 || sizeof(X) != sizeof(T) || !w;
  const long long all = 1ll * gridDim.y * batch * hidden;
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
        if (exists && i < hidden) weight[g][k] = A(r[row[g] * size.r_row + i]);
      }
    }
  }
  A bias[4] = {};
  if (b && exists) {
#pragma unroll
    for (int g = 0; g < Shape<CELL>::BIASES; g++) {
      bias[g] = A(b[(1ll * direction * Shape<CELL>::BIASES + g) * hidden + unit]);
    }
  }
  for (int turn = size.first; turn < size.last; turn++) {
    const int step = turn / TURNS;
    const bool resets = TURNS == 2 && turn % 2 == 0;  // the turn that only resets h
    const int t = size.reverse >> direction & 1 ? steps - 1 - step : step;
    for (int n0 = blockIdx.z * B; exists && n0 < batch; n0 += gridDim.z * B) {
      const X* from[B];
      const T* start[B];
      const A *now[B], *reset[B];
      A in[B][G] = {}, sum[B][G] = {};
#pragma unroll
      for (int j = 0; j < B; j++) {
        const int n = min(n0 + j, batch - 1);  // the last one again where there is none
        from[j] = x + n * stride.x + direction * stride.x_direction + t * stride.x_step;
        start[j] = h + n * stride.h + direction * stride.h_direction;
        now[j] = state + (step % 2) * all + (1ll * direction * batch + n) * hidden;
        reset[j] = kept + all + (1ll * direction * batch + n) * hidden;
        if (projected && threadIdx.x == j) {
#pragma unroll
          for (int g = 0; g < G; g++) in[j][g] = A(from[j][1ll * g * hidden + unit]);
        }
      }
      // Until a step is done, h is what was given.
      if constexpr (K > 0) {
        if (TURNS == 2 && !resets) {
          accumulate<OPEN, G, true>(reset[0], weight, hidden, sum[0]);
        } else if (step == 0) {
          accumulate<0, OPEN, false>(start[0], weight, hidden, sum[0]);
        } else {
          accumulate<0, OPEN, true>(now[0], weight, hidden, sum[0]);
        }
      } else {
        if (!projected && resets) {
          accumulate<0, OPEN, false>(from, w, row, size.w_row, size.input, in);
        } else if (!projected) {
          accumulate<TURNS == 2 ? OPEN : 0, G, false>(from, w, row, size.w_row, size.input, in);
        }
        if (TURNS == 2 && !resets) {
          accumulate<OPEN, G, true>(reset, r, row, size.r_row, hidden, sum);
        } else if (step == 0) {
          accumulate<0, OPEN, false>(start, r, row, size.r_row, hidden, sum);
        } else {
          accumulate<0, OPEN, true>(now, r, row, size.r_row, hidden, sum);
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
      // Lane j goes on with sequence j.
      const int n = n0 + threadIdx.x;
      if (threadIdx.x >= B || n >= batch) continue;
      A to[G], of_x[G];
#pragma unroll
      for (int j = 0; j < B; j++) {
        if (threadIdx.x != j) continue;
#pragma unroll
        for (int g = 0; g < G; g++) {
          to[g] = sum[j][g];
          of_x[g] = in[j][g];
        }
      }
      const long long at = (1ll * direction * batch + n) * hidden + unit;
      const A before = step == 0 ? A(h[n * stride.h + direction * stride.h_direction + unit])
                                 : __ldcg(state + (step % 2) * all + at);
      if (resets) {
        const A left = attention ? A(1) - A(attention[1ll * n * steps + t]) : A(1);
        kept[at] = gate(use, 0, to[0] + bias[0]) * left;
        kept[all + at] = gate(use, 0, to[1 % G] + bias[1]) * before;
        continue;
      }
      const bool active = !lengths || lengths[n] > t;
      A after, cell = 0;
      if (CELL == LSTM) {
        const A old = step == 0 ? A(c[n * stride.c + direction * stride.c_direction + unit]) : kept[at];
        const A forget = gate(use, 0, to[0] + bias[0]), take = gate(use, 0, to[1 % G] + bias[1]);
        cell = forget * old + take * gate(use, 1, to[2 % G] + bias[2]);
        after = gate(use, 0, to[3 % G] + bias[3]) * activate(use, 2, cell);
        if (!active) cell = old;
        if (step < steps - 1) kept[at] = cell;
      } else if (CELL == RNN) {
        after = gate(use, 0, to[0] + bias[0]);
      } else {
        const A z = CELL == GRU ? kept[at] : gate(use, 0, of_x[0] + to[0] + bias[0]);
        A candidate = to[2 % G] + bias[2];
        if (CELL == GRU_LINEAR) {
          const A open = gate(use, 0, of_x[1 % G] + to[1 % G] + bias[1]);
          candidate = of_x[2 % G] + bias[2] + open * (to[2 % G] + bias[3]);
        }
        after = (1 - z) * gate(use, 1, candidate) + z * before;
      }
      if (!active) after = before;
      if (step < steps - 1) state[((step + 1) % 2) * all + at] = after;
      if (y) y[n * stride.y + direction * stride.y_direction + t * stride.y_step + unit] = T(active ? after : A(0));
      if (step == steps - 1) {
        const bool any = !lengths || lengths[n] > 0;
        h_out[n * stride.h_out + direction * stride.h_out_direction + unit] = T(any ? after : A(0));
        if (CELL == LSTM) c_out[n * stride.c_out + direction * stride.c_out_direction + unit] = T(any ? cell : A(0));
      }
    }
    if (arrived && turn < size.last - 1) ovgpu_grid_barrier(arrived, turn);
  }
  if (arrived && threadIdx.x == 0 && threadIdx.y == 0) {  // the last block to come leaves the counter as it was
    const unsigned turns = size.last - size.first, blocks = gridDim.x * gridDim.y * gridDim.z;
    if (atomicAdd(arrived, 1u) == turns * blocks - 1) atomicExch(arrived, 0u);
  }
}
