// LSTM cell: one warp computes the four gates of one hidden unit of one batch row, and its new state.
#include "common.cuh"

template <typename T>
__device__ __forceinline__ float dot(const T* a, const T* b, int n, int lane) {
  float sum = 0.f;
  for (int i = lane; i < n; i += 32) sum += float(a[i]) * float(b[i]);
  return sum;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// x [batch, input], h and c [batch, hidden], w [4 hidden, input], r [4 hidden, hidden], b [4 hidden]; gates f, i, c, o.
// The new h must not lie where h does: other warps still read it.
template <typename T>
__global__ void lstm_cell(const T* x, const T* h, const T* c, const T* w, const T* r, const T* b, T* h_out, T* c_out,
                          int input, int hidden) {
  const int lane = threadIdx.x, unit = blockIdx.x * blockDim.y + threadIdx.y, row = blockIdx.y;
  if (unit >= hidden) return;
  float gate[4];
  for (int g = 0; g < 4; g++) {
    const long long at = (long long)g * hidden + unit;
    float sum = dot(x + (long long)row * input, w + at * input, input, lane) +
                dot(h + (long long)row * hidden, r + at * hidden, hidden, lane);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    gate[g] = sum + float(b[at]);
  }
  if (lane == 0) {
    const long long at = (long long)row * hidden + unit;
    const float cell = sigmoid(gate[0]) * float(c[at]) + sigmoid(gate[1]) * tanhf(gate[2]);
    c_out[at] = T(cell);
    h_out[at] = T(sigmoid(gate[3]) * tanhf(cell));
  }
}
