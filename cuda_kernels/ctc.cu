// CTCGreedyDecoder, CTCGreedyDecoderSeqLen, CTCLoss.
#include "axes.cuh"

// Write the index of the largest element of every row of x [rows, classes] (argmax): the first among equal ones; NaN
// counts as -inf. blockDim.x threads share a row, see fold_row.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    best_classes(const T* __restrict__ x, int* __restrict__ best, int rows, int classes) {
  using A = typename Accumulator<T>::Type;
  const int row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? classes : 0;
  x += (long long)row * classes;
  A maximum = lowest<A>();
  int first = classes;
#pragma unroll 4
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const A value = A(x[i]);
    if (value > maximum || (value == maximum && first == classes)) {
      maximum = value;
      first = i;
    }
  }
  const A limit = fold_row(maximum, Maximum());
  first = fold_row(maximum == limit ? first : classes, Minimum());
  if (threadIdx.x == 0 && size) best[row] = first < classes ? first : 0;  // 0 if all are -inf or NaN
}

// Return the number of threads before this one in the block whose `flag` is set; `total` becomes their number in the
// block.
__device__ __forceinline__ int rank_in_block(bool flag, int& total) {
  OVGPU_SHARED(int, warp_counts, [OVGPU_THREADS / 32]);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const unsigned votes = __ballot_sync(0xffffffffu, flag);
  __syncthreads();  // the counts of an earlier call may still be read
  if (lane == 0) warp_counts[threadIdx.x / 32] = __popc(votes);
  __syncthreads();
  int rank = __popc(votes & ((1u << lane) - 1));
  total = 0;
  for (int warp = 0; warp < warps; warp++) {
    if (warp < threadIdx.x / 32) rank += warp_counts[warp];
    total += warp_counts[warp];
  }
  return rank;
}

// Return the length, clamped to [0, steps].
template <class Length>
__device__ __forceinline__ int clamp_length(Length length, int steps) {
  return length < 0 ? 0 : length > steps ? steps : int(length);
}

// Write the classes of one sequence per block, without blanks and, with `merges`, without repetitions. Fill up with -1.
// `count`, unless null, receives their number. `bounds` are lengths or, with `masked`, masks whose first 0 ends a
// sequence. `step_pitch` and `pitch` are the strides of `best` and of the masks between steps and between sequences.
template <class Bound, class Y, class Count>
__global__ void __launch_bounds__(OVGPU_THREADS)
    collapse(const int* __restrict__ best, const Bound* __restrict__ bounds, Y* __restrict__ y,
             Count* __restrict__ count, int steps, int step_pitch, int pitch, int blank, bool merges, bool masked) {
  const int sequence = blockIdx.x;
  best += (long long)sequence * pitch;
  y += (long long)sequence * steps;
  int length = steps;
  if (masked) {
    bounds += (long long)sequence * pitch;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
      if (!(float(bounds[(long long)i * step_pitch]) != 0.f)) length = i;
    }
    length = fold_row(length, Minimum());
  } else {
    length = clamp_length(static_cast<long long>(bounds[sequence]), steps);
  }
  int written = 0;
  for (int tile = 0; tile < length; tile += blockDim.x) {
    const int i = tile + threadIdx.x;
    const int current = i < length ? best[(long long)i * step_pitch] : blank;
    const bool repeats = merges && i > 0 && i < length && best[(long long)(i - 1) * step_pitch] == current;
    const bool selected = current != blank && !repeats;
    int total;
    const int rank = rank_in_block(selected, total);
    if (selected) y[written + rank] = Y(current);
    written += total;
  }
  for (int i = written + threadIdx.x; i < steps; i += blockDim.x) y[i] = Y(-1);
  if (count && threadIdx.x == 0) count[sequence] = Count(written);
}

// Write the log-sum-exp of every row of x [rows, classes]. blockDim.x threads share a row, see fold_row.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    log_sums(const T* __restrict__ x, typename Accumulator<T>::Type* __restrict__ sums, int rows, int classes) {
  using A = typename Accumulator<T>::Type;
  const int row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? classes : 0;
  x += (long long)row * classes;
  A maximum = lowest<A>(), sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < size; i += blockDim.x) maximum = math::max(maximum, A(x[i]));
  maximum = fold_row(maximum, Maximum());
  for (int i = threadIdx.x; i < size; i += blockDim.x) sum += math::exp(A(x[i]) - maximum);
  sum = fold_row(sum, Add());
  if (threadIdx.x == 0 && size) sums[row] = maximum + math::log(sum);
}

// Return log(exp(a) + exp(b) + exp(c)); log_zero is log(0).
template <class A>
__device__ __forceinline__ A log_sum_exp(A a, A b, A c, A log_zero) {
  const A maximum = math::max(a, math::max(b, c));
  if (maximum == log_zero) return log_zero;
  return maximum + math::log(math::exp(a - maximum) + math::exp(b - maximum) + math::exp(c - maximum));
}

// CTC loss by the forward algorithm (Graves et al. 2006), one sequence per block. States are a blank, a label, a blank,
// ..., a blank. The log-probabilities `alpha` of the states after this and the previous step alternate between two
// halves of shared memory.
template <class T, class Length, class Label>
__global__ void __launch_bounds__(OVGPU_THREADS)
    ctc_loss(const T* __restrict__ x, const typename Accumulator<T>::Type* __restrict__ sums,
             const Length* __restrict__ x_lengths, const Label* __restrict__ labels, const Length* __restrict__ lengths,
             T* __restrict__ y, int steps, int classes, int blank, bool collapses, bool merges, bool unique) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, alpha);
  int* target = reinterpret_cast<int*>(alpha + 2 * (2 * steps + 1));
  const A log_zero = math::log(A(0));
  const int sequence = blockIdx.x, length = clamp_length(x_lengths[sequence], steps);
  const int label_count = clamp_length(lengths[sequence], steps);
  x += (long long)sequence * steps * classes;
  sums += (long long)sequence * steps;
  labels += (long long)sequence * steps;
  int size = 0;
  for (int tile = 0; tile < label_count; tile += blockDim.x) {
    const int i = tile + threadIdx.x;
    bool selected = i < label_count;
    if (unique) {
      for (int j = 0; j < i && selected; j++) selected = labels[j] != labels[i];
    } else if (collapses && i > 0) {
      selected = selected && labels[i - 1] != labels[i];
    }
    int total;
    const int rank = rank_in_block(selected, total);
    if (selected) target[size + rank] = 0 <= labels[i] && labels[i] < classes ? int(labels[i]) : -1;
    size += total;
  }
  const int states = 2 * size + 1;
  A *previous = alpha, *next = alpha + 2 * steps + 1;
  for (int state = threadIdx.x; state < states; state += blockDim.x) previous[state] = state ? log_zero : A(0);
  for (int step = 0; step < length; step++) {
    __syncthreads();
    for (int state = threadIdx.x; state < states; state += blockDim.x) {
      const bool is_label = state % 2;
      const int current = is_label ? target[state / 2] : blank;
      const bool skips = is_label && state > 1 && !(merges && target[state / 2 - 1] == current);
      const A stays = is_label && !merges ? log_zero : previous[state];
      const A sum =
          log_sum_exp(stays, state ? previous[state - 1] : log_zero, skips ? previous[state - 2] : log_zero, log_zero);
      next[state] = current < 0 ? log_zero : sum + (A(x[(long long)step * classes + current]) - sums[step]);
    }
    A* const other = previous;
    previous = next;
    next = other;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    y[sequence] = T(-log_sum_exp(previous[states - 1], size ? previous[states - 2] : log_zero, log_zero, log_zero));
  }
}
