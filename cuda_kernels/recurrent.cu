// Recurrent cells and sequences: one warp computes the gates of one hidden unit, and its new state.
#include "common.cuh"

enum Cell { LSTM, GRU, GRU_LINEAR, RNN };  // GRU resets the state before the product with R, GRU_LINEAR after it

// Kinds are 0 sigmoid, 1 tanh, 2 relu, 3 hardsigmoid; what goes into the gates is clipped.
struct Activations {
  float kind[3], alpha[3], beta[3], clip;
};

__device__ __forceinline__ float clipped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

__device__ __forceinline__ float activate(const Activations& use, int i, float x) {
  const int kind = static_cast<int>(use.kind[i]);
  if (kind == 0) return 1.f / (1.f + expf(-x));
  if (kind == 1) return tanhf(x);
  if (kind == 2) return x < 0.f ? 0.f : x;
  return clipped(use.alpha[i] * x + use.beta[i], 0.f, 1.f);
}

__device__ __forceinline__ float gate(const Activations& use, int i, float x) {
  return activate(use, i, clipped(x, -use.clip, use.clip));
}

// Strides in elements: of sequences, of directions, and of steps. The last axes are dense.
struct Strides {
  long long x, x_direction, x_step, y, y_direction, y_step;
  long long h, h_direction, c, c_direction, h_out, h_out_direction, c_out, c_out_direction;
};

template <Cell CELL>
struct Shape {
  static constexpr int GATES = CELL == LSTM ? 4 : CELL == RNN ? 1 : 3;
  static constexpr int BIASES = CELL == GRU_LINEAR ? 4 : GATES;
  static constexpr int TURNS = CELL == GRU ? 2 : 1;  // per step: a GRU's reset state has to be complete first
};

// Adds the lane's part of v [n] times rows `FROM` to `TO` of a unit in m [gates * hidden, n].
template <int FROM, int TO, class A, class T, int G>
__device__ __forceinline__ void accumulate(const A* v, const T* m, long long hidden, int n, float (&sum)[G]) {
#pragma unroll 4
  for (int i = threadIdx.x; i < n; i += 32) {
    const float x = float(v[i]);
#pragma unroll
    for (int g = FROM; g < TO; g++) sum[g] += x * float(m[g * hidden * n + i]);
  }
}

// The same with the unit's rows in registers, and a vector that other blocks write.
template <int FROM, int TO, int G, int K>
__device__ __forceinline__ void accumulate(const float* v, const float (&m)[G][K], int n, float (&sum)[G]) {
  float x[K];
#pragma unroll
  for (int k = 0; k < K; k++) x[k] = k * 32 + threadIdx.x < n ? __ldcg(v + k * 32 + threadIdx.x) : 0.f;
#pragma unroll
  for (int k = 0; k < K; k++) {
#pragma unroll
    for (int g = FROM; g < TO; g++) sum[g] += x[k] * m[g][k];
  }
}

// Steps of x [batch, steps, input] with w, r, b, or where w is null, of its projections [batch, steps, gates * hidden]
// without bias; b may be null, too. blockIdx.y is the direction (bit of `reverse`), blockIdx.z starts the sequences
// (without lengths all have all steps). With K > 0 a unit's rows of R stay in K registers per lane and gate, and a
// cooperative launch does all turns; else each launch does one. `state` is f32 [2, directions, batch, hidden], h before
// and after; `kept` is c, or what turns of a GRU leave to the next ([2, ...]: z, and the reset h).
template <class T, class L, Cell CELL, int K>
__global__ void __launch_bounds__(256, 1)
    recurrent(const T* x, const T* w, const T* r, const T* b, const T* h, const T* c, const L* lengths, T* y, T* h_out,
              T* c_out, float* state, float* kept, unsigned* arrived, Strides stride, Activations use, int batch,
              int steps, int input, int hidden, int reverse, int first, int last) {
  constexpr int G = Shape<CELL>::GATES, TURNS = Shape<CELL>::TURNS;
  const int unit = blockIdx.x * blockDim.y + threadIdx.y, direction = blockIdx.y;
  const bool exists = unit < hidden, leads = threadIdx.x == 0;
  const long long rows = static_cast<long long>(direction) * G * hidden + unit, all = 1ll * gridDim.y * batch * hidden;
  float weight[G][K ? K : 1] = {};
  if (K) {
#pragma unroll
    for (int g = 0; g < G; g++) {
#pragma unroll
      for (int k = 0; k < K; k++) {
        const int i = k * 32 + threadIdx.x;
        if (exists && i < hidden) weight[g][k] = float(r[(rows + 1ll * g * hidden) * hidden + i]);
      }
    }
  }
  float bias[4] = {};
  if (b && exists) {
#pragma unroll
    for (int g = 0; g < Shape<CELL>::BIASES; g++) {
      bias[g] = float(b[(1ll * direction * Shape<CELL>::BIASES + g) * hidden + unit]);
    }
  }
  for (int turn = first; turn < last; turn++) {
    const int step = turn / TURNS;
    const bool resets = TURNS == 2 && turn % 2 == 0;  // the turn that only resets h
    const int t = reverse >> direction & 1 ? steps - 1 - step : step;
    for (int n = blockIdx.z; exists && n < batch; n += gridDim.z) {
      const long long row = (1ll * direction * batch + n) * hidden;
      const T* from = x + n * stride.x + direction * stride.x_direction + t * stride.x_step;
      const float* now = state + (step % 2) * all + row;
      const T* start = h + n * stride.h + direction * stride.h_direction;
      float in[G] = {}, sum[G] = {};
      if (w && resets) {
        accumulate<0, G - 1>(from, w + rows * input, hidden, input, in);
      } else if (w) {
        accumulate<TURNS == 2 ? G - 1 : 0, G>(from, w + rows * input, hidden, input, in);
      } else if (leads) {
#pragma unroll
        for (int g = 0; g < G; g++) in[g] = float(from[1ll * g * hidden + unit]);
      }
      // Until a step is done, h is what was given.
      if (TURNS == 2 && !resets) {
        if (K) {
          accumulate<G - 1, G>(kept + all + row, weight, hidden, sum);
        } else {
          accumulate<G - 1, G>(kept + all + row, r + rows * hidden, hidden, hidden, sum);
        }
      } else if (step == 0) {
        accumulate<0, TURNS == 2 ? G - 1 : G>(start, r + rows * hidden, hidden, hidden, sum);
      } else if (K) {
        accumulate<0, TURNS == 2 ? G - 1 : G>(now, weight, hidden, sum);
      } else {
        accumulate<0, TURNS == 2 ? G - 1 : G>(now, r + rows * hidden, hidden, hidden, sum);
      }
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (CELL != GRU_LINEAR) sum[g] += in[g];
        for (int lane = 16; lane > 0; lane /= 2) {
          sum[g] += __shfl_xor_sync(0xffffffffu, sum[g], lane);
          if (CELL == GRU_LINEAR && w) in[g] += __shfl_xor_sync(0xffffffffu, in[g], lane);
        }
      }
      if (!leads) continue;
      const float before = step == 0 ? float(start[unit]) : __ldcg(now + unit);
      if (resets) {
        kept[row + unit] = gate(use, 0, sum[0] + bias[0]);
        kept[all + row + unit] = gate(use, 0, sum[1 % G] + bias[1]) * before;
        continue;
      }
      const bool active = !lengths || lengths[n] > t;
      float after, cell = 0.f;
      if (CELL == LSTM) {
        const T* given = c + n * stride.c + direction * stride.c_direction;
        const float old = step == 0 ? float(given[unit]) : kept[row + unit];
        cell = gate(use, 0, sum[0] + bias[0]) * old +
               gate(use, 0, sum[1 % G] + bias[1]) * gate(use, 1, sum[2 % G] + bias[2]);
        after = gate(use, 0, sum[3 % G] + bias[3]) * activate(use, 2, cell);
        if (!active) cell = old;
        kept[row + unit] = cell;
      } else if (CELL == RNN) {
        after = gate(use, 0, sum[0] + bias[0]);
      } else {
        const float z = CELL == GRU ? kept[row + unit] : gate(use, 0, in[0] + sum[0] + bias[0]);
        float candidate = sum[2 % G] + bias[2];
        if (CELL == GRU_LINEAR) {
          const float reset = gate(use, 0, in[1 % G] + sum[1 % G] + bias[1]);
          candidate = in[2 % G] + bias[2] + reset * (sum[2 % G] + bias[3]);
        }
        after = (1.f - z) * gate(use, 1, candidate) + z * before;
      }
      if (!active) after = before;
      state[((step + 1) % 2) * all + row + unit] = after;
      if (y) y[n * stride.y + direction * stride.y_direction + t * stride.y_step + unit] = T(active ? after : 0.f);
      if (step == steps - 1) {
        const bool any = !lengths || lengths[n] > 0;
        h_out[n * stride.h_out + direction * stride.h_out_direction + unit] = T(any ? after : 0.f);
        if (CELL == LSTM) c_out[n * stride.c_out + direction * stride.c_out_direction + unit] = T(any ? cell : 0.f);
      }
    }
    if (K && turn < last - 1) ovgpu_grid_barrier(arrived, turn);
  }
}
