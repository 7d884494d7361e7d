// Parts of the kernels for recurrent layers: parameters, activations, and the step of one hidden unit.
#pragma once

#include "math.cuh"

enum Cell { LSTM, GRU, GRU_LINEAR, RNN };  // GRU: reset before the product with R; GRU_LINEAR: after it

enum Activation { SIGMOID, TANH, RELU, HARDSIGMOID };

// Activation functions of the gates: `kind` holds values of Activation. Their arguments are clipped to [-clip, clip].
template <class A>
struct Activations {
  A kind[3], alpha[3], beta[3], clip;
};

// Strides in elements: between sequences, directions, and steps. The last axes have a unit stride.
struct Strides {
  long long x, x_direction, x_step, y, y_direction, y_step;
  long long h, h_direction, c, c_direction, h_out, h_out_direction, c_out, c_out_direction;
};

// A launch computes rounds [first, last). Bit d of `reverse`: direction d runs backwards. `w_row` and `r_row` are
// the row strides of w and r in elements.
struct Sizes {
  int batch, steps, input, hidden, w_row, r_row, reverse, first, last;
};

template <Cell CELL>
struct Shape {
  static constexpr int GATES = CELL == LSTM ? 4 : CELL == RNN ? 1 : 3;
  static constexpr int BIASES = CELL == GRU_LINEAR ? 4 : GATES;
  static constexpr int ROUNDS = CELL == GRU ? 2 : 1;  // per step: a GRU resets the whole state first
};

template <class A>
__device__ __forceinline__ A clipped(A x, A low, A high) {
  return x < low ? low : x > high ? high : x;
}

template <class A>
__device__ __forceinline__ A activate(const Activations<A>& activations, int i, A x) {
  const int kind = static_cast<int>(activations.kind[i]);
  if (kind == SIGMOID) return A(1) / (A(1) + math::exp(-x));
  if (kind == TANH) return math::tanh(x);
  if (kind == RELU) return x < 0 ? A(0) : x;
  return clipped(activations.alpha[i] * x + activations.beta[i], A(0), A(1));
}

template <class A>
__device__ __forceinline__ A gate(const Activations<A>& activations, int i, A x) {
  return activate(activations, i, clipped(x, -activations.clip, activations.clip));
}

// Return the next h of a unit. The products of R and h, and those of W and x, have an element for each gate. GRU_LINEAR
// has both as arguments; for other cells, `sum` is the sum of both. `carried` is c before and after the step (LSTM), or
// z (GRU).
template <Cell CELL, class A>
__device__ __forceinline__ A next_state(const Activations<A>& activations, const A (&sum)[Shape<CELL>::GATES],
                                        const A (&x_sum)[Shape<CELL>::GATES], const A (&bias)[4], A previous_h,
                                        A& carried) {
  if constexpr (CELL == LSTM) {
    const A forget_gate = gate(activations, 0, sum[0] + bias[0]), input_gate = gate(activations, 0, sum[1] + bias[1]);
    carried = forget_gate * carried + input_gate * gate(activations, 1, sum[2] + bias[2]);
    return gate(activations, 0, sum[3] + bias[3]) * activate(activations, 2, carried);
  } else if constexpr (CELL == RNN) {
    return gate(activations, 0, sum[0] + bias[0]);
  } else {
    const A z = CELL == GRU ? carried : gate(activations, 0, x_sum[0] + sum[0] + bias[0]);
    A candidate = sum[2] + bias[2];
    if (CELL == GRU_LINEAR) {
      const A reset_gate = gate(activations, 0, x_sum[1] + sum[1] + bias[1]);
      candidate = x_sum[2] + bias[2] + reset_gate * (sum[2] + bias[3]);
    }
    return (1 - z) * gate(activations, 1, candidate) + z * previous_h;
  }
}
