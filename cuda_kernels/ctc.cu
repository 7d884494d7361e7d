// CTCGreedyDecoder, CTCGreedyDecoderSeqLen, CTCLoss.
#include "axes.cuh"

struct Smaller {
  __device__ __forceinline__ int operator()(int a, int b) const { return a < b ? a : b; }
};

// The number of the greatest element of every row, of equal ones the first, which NaN is not. See fold_row.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    best_classes(const T* __restrict__ x, int* __restrict__ best, int rows, int classes) {
  using A = typename Accumulator<T>::Type;
  const int row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? classes : 0;
  x += (long long)row * classes;
  A greatest = lowest<A>();
  int first = classes;
#pragma unroll 4
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const A value = A(x[i]);
    if (value > greatest || (value == greatest && first == classes)) {
      greatest = value;
      first = i;
    }
  }
  const A limit = fold_row(greatest, Larger());
  first = fold_row(greatest == limit ? first : classes, Smaller());
  if (threadIdx.x == 0 && size) best[row] = first < classes ? first : 0;  // none is above minus infinity
}

// How many threads of the block before this one say yes; `all` becomes the number of those that do.
__device__ __forceinline__ int rank_of(bool yes, int& all) {
  OVGPU_SHARED(int, of_warp, [OVGPU_THREADS / 32]);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const unsigned votes = __ballot_sync(0xffffffffu, yes);
  __syncthreads();  // what an earlier call left may still be read
  if (lane == 0) of_warp[threadIdx.x / 32] = __popc(votes);
  __syncthreads();
  int rank = __popc(votes & ((1u << lane) - 1));
  all = 0;
  for (int warp = 0; warp < warps; warp++) {
    if (warp < threadIdx.x / 32) rank += of_warp[warp];
    all += of_warp[warp];
  }
  return rank;
}

// A length as far as there is room for it.
template <class Length>
__device__ __forceinline__ int within(Length length, int steps) {
  return length < 0 ? 0 : length > steps ? steps : int(length);
}

// A sequence per block: its classes without blanks, and without repetitions if they are merged, then -1; and how many
// they are, unless `count` is null. `bounds` are lengths or, `masked`, zero from the first step on that does not count.
// Pitches are those of `best` and of masks.
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
    length = fold_row(length, Smaller());
  } else {
    length = within(static_cast<long long>(bounds[sequence]), steps);
  }
  int kept = 0;
  for (int tile = 0; tile < length; tile += blockDim.x) {
    const int i = tile + threadIdx.x;
    const int chosen = i < length ? best[(long long)i * step_pitch] : blank;
    const bool repeats = merges && i > 0 && i < length && best[(long long)(i - 1) * step_pitch] == chosen;
    const bool keeps = chosen != blank && !repeats;
    int all;
    const int rank = rank_of(keeps, all);
    if (keeps) y[kept + rank] = Y(chosen);
    kept += all;
  }
  for (int i = kept + threadIdx.x; i < steps; i += blockDim.x) y[i] = Y(-1);
  if (count && threadIdx.x == 0) count[sequence] = Count(kept);
}

// The logarithm of the sum of exponentials of every row. See fold_row.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    log_sums(const T* __restrict__ x, typename Accumulator<T>::Type* __restrict__ sums, int rows, int classes) {
  using A = typename Accumulator<T>::Type;
  const int row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? classes : 0;
  x += (long long)row * classes;
  A greatest = lowest<A>(), sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < size; i += blockDim.x) greatest = larger(greatest, A(x[i]));
  greatest = fold_row(greatest, Larger());
  for (int i = threadIdx.x; i < size; i += blockDim.x) sum += exponential(A(x[i]) - greatest);
  sum = fold_row(sum, Add());
  if (threadIdx.x == 0 && size) sums[row] = greatest + logarithm(sum);
}

// The logarithm of a sum by the logarithms of its terms, of which `nothing` is that of 0.
template <class A>
__device__ __forceinline__ A log_sum(A a, A b, A c, A nothing) {
  const A greatest = larger(a, larger(b, c));
  if (greatest == nothing) return nothing;
  return greatest + logarithm(exponential(a - greatest) + exponential(b - greatest) + exponential(c - greatest));
}

// A sequence per block, with a state per blank and label: a blank, a label, a blank, ..., a blank. From step to step,
// the probabilities with which states are reached are in one half of the memory that the block shares, then the other.
template <class T, class Length, class Label>
__global__ void __launch_bounds__(OVGPU_THREADS)
    ctc_loss(const T* __restrict__ x, const typename Accumulator<T>::Type* __restrict__ sums,
             const Length* __restrict__ x_lengths, const Label* __restrict__ labels,
             const Length* __restrict__ lengths, T* __restrict__ y, int steps, int classes, int blank, bool collapses,
             bool merges, bool unique) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, reached);
  int* target = reinterpret_cast<int*>(reached + 2 * (2 * steps + 1));
  const A nothing = logarithm(A(0));
  const int sequence = blockIdx.x, length = within(x_lengths[sequence], steps);
  const int given = within(lengths[sequence], steps);
  x += (long long)sequence * steps * classes;
  sums += (long long)sequence * steps;
  labels += (long long)sequence * steps;
  int size = 0;
  for (int tile = 0; tile < given; tile += blockDim.x) {
    const int i = tile + threadIdx.x;
    bool keeps = i < given;
    if (unique) {
      for (int j = 0; j < i && keeps; j++) keeps = labels[j] != labels[i];
    } else if (collapses && i > 0) {
      keeps = keeps && labels[i - 1] != labels[i];
    }
    int all;
    const int rank = rank_of(keeps, all);
    if (keeps) target[size + rank] = 0 <= labels[i] && labels[i] < classes ? int(labels[i]) : -1;
    size += all;
  }
  const int states = 2 * size + 1;
  A *before = reached, *now = reached + 2 * steps + 1;
  for (int state = threadIdx.x; state < states; state += blockDim.x) before[state] = state ? nothing : A(0);
  for (int step = 0; step < length; step++) {
    __syncthreads();
    for (int state = threadIdx.x; state < states; state += blockDim.x) {
      const bool is_label = state % 2;
      const int chosen = is_label ? target[state / 2] : blank;
      const bool skips = is_label && state > 1 && !(merges && target[state / 2 - 1] == chosen);
      const A stays = is_label && !merges ? nothing : before[state];
      const A sum = log_sum(stays, state ? before[state - 1] : nothing, skips ? before[state - 2] : nothing, nothing);
      now[state] = chosen < 0 ? nothing : sum + (A(x[(long long)step * classes + chosen]) - sums[step]);
    }
    A* const other = before;
    before = now;
    now = other;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    y[sequence] = T(-log_sum(before[states - 1], size ? before[states - 2] : nothing, nothing, nothing));
  }
}
