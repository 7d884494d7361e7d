// The next token of each text: logits with penalties, their weights, and a draw among the tokens that the rules keep.
//
// A weight is exp((score - best) / temperature), as f32 for comparisons, and as a whole number for sums, which do not
// depend on their order then. The order of tokens is that of their keys: the most likely token comes first, and of
// equal ones that with the lowest index. All rules keep the first tokens of this order, up to some sum of weights.
#include "common.cuh"

typedef unsigned long long u64;

// Columns of `rules` and `numbers`, as in ovgpu/ops/generation/sampling.py.
enum Rule { TEMPERATURE, TOP_P, MIN_P, REPETITION_PENALTY, PRESENCE_PENALTY, FREQUENCY_PENALTY, RULES };
enum Number { TOP_K, RANDOM, GENERATED, BY_LOGITS, NUMBERS };

constexpr int PROMPT = 1 << 30;  // flag of a count: the token is in the prompt
constexpr float LOWEST = -40;    // binary logarithm of the least weight
constexpr float WEIGHT_ONE = 1ull << 40;
constexpr unsigned ONE = 0x3F800000;                                        // bits of 1.0f, the greatest weight
constexpr unsigned NOT_A_NUMBER = 0xFFFFFFFF, MINUS_INFINITY = 0x007FFFFF;  // ordered bits

constexpr int TILE = 2048;  // tokens of a block
constexpr int TILE_THREADS = 256;
constexpr int DRAW_THREADS = 1024;
constexpr int WARP = 32;

// A key has 50 bits: 30 of the weight, which are few for a likely token, then 20 of the token's index. The search for
// a token reads one digit of the keys at each level.
constexpr int LEVELS = 5;
constexpr int INDEX_BITS = 20;
__device__ constexpr int SHIFTS[LEVELS] = {38, 29, 20, 10, 0};
constexpr int BINS = 1281;  // first digits of weights from 1 to 2^-40

// Order in which tokens share the interval of the random number. BY_INDEX, the bins of the histogram are the tiles.
enum Order { BY_WEIGHT, BY_INDEX, BY_HEAP };
constexpr int TOP_K_IN_HEAP = 128;

__device__ Order order_of(const double* rule, const long long* number, int vocabulary) {
  const long long top_k = number[TOP_K];
  if (rule[TOP_P] < 1) return BY_WEIGHT;
  if (top_k == 0 || top_k >= vocabulary) return BY_INDEX;
  return top_k <= TOP_K_IN_HEAP ? BY_HEAP : BY_WEIGHT;
}

// Copy the counts of generated tokens. Before a prompt, all tokens with a count become tokens of the prompt.
__global__ void start_counts(const int* __restrict__ counts, const long long* numbers, int* __restrict__ y,
                             int vocabulary) {
  const bool generated = numbers[blockIdx.x * NUMBERS + GENERATED];
  const long long row = static_cast<long long>(blockIdx.x) * vocabulary;
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < vocabulary; i += gridDim.y * blockDim.x)
    y[row + i] = generated ? counts[row + i] : counts[row + i] ? PROMPT : 0;
}

template <typename I>
__global__ void count_tokens(const I* __restrict__ tokens, const long long* numbers, int* counts, int length,
                             int vocabulary) {
  const bool generated = numbers[blockIdx.x * NUMBERS + GENERATED];
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < length; i += gridDim.y * blockDim.x) {
    const long long token = static_cast<long long>(tokens[static_cast<long long>(blockIdx.x) * length + i]);
    if (token < 0 || token >= vocabulary) continue;
    int* count = counts + static_cast<long long>(blockIdx.x) * vocabulary + token;
    if (generated) {
      atomicAdd(count, 1);
    } else {
      atomicOr(count, PROMPT);
    }
  }
}

// Return bits whose unsigned order is that of numbers, with NaN above all.
__device__ __forceinline__ unsigned ordered_bits(float x) {
  if (x != x) return NOT_A_NUMBER;
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float number_of(unsigned ordered) {
  return __uint_as_float(ordered & 0x80000000 ? ordered & 0x7FFFFFFF : ~ordered);
}

__device__ __forceinline__ float away_from_zero(float x, double penalty) {
  return static_cast<float>(x < 0 ? x + penalty : x - penalty);
}

// Return the maximum over the block, in all threads.
template <int THREADS>
__device__ __forceinline__ u64 block_max(u64 value) {
  OVGPU_SHARED(u64, of_warps, [THREADS / WARP]);
  for (int step = WARP / 2; step; step /= 2) {
    const u64 other = __shfl_xor_sync(0xFFFFFFFF, value, step);
    value = other > value ? other : value;
  }
  __syncthreads();  // an earlier maximum has been read
  if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = value;
  __syncthreads();
  for (int warp = 0; warp < THREADS / WARP; warp++) value = of_warps[warp] > value ? of_warps[warp] : value;
  return value;
}

// Compute the scores of a tile: logits with biases and penalties. best[row, tile] is the ordered bits of the greatest
// one, and the inverted index of the first token that has it. sums[row, tile] is the greatest logit, and the sum of
// exp(logit - greatest).
template <typename T, bool COUNTED>
__global__ void score_tokens(const T* __restrict__ logits, long long row_step, long long step, const double* rules,
                             const int* __restrict__ counts, const long long* biased, const float* biases,
                             int bias_count, float* __restrict__ scores, u64* best, float* sums, unsigned* bin_counts,
                             u64* bin_sums, int vocabulary) {
  OVGPU_SHARED(float, tile, [TILE]);
  OVGPU_SHARED(float, warp_sums, [TILE_THREADS / WARP]);
  const int row = blockIdx.x, first = blockIdx.y * TILE, count = min(TILE, vocabulary - first);
  unsigned top_bits = 0;
  for (int i = threadIdx.x; i < count; i += TILE_THREADS) {
    tile[i] = static_cast<float>(logits[row * row_step + (first + i) * step]);
    top_bits = max(top_bits, ordered_bits(tile[i]));
  }
  const float top = number_of(static_cast<unsigned>(block_max<TILE_THREADS>(top_bits)));
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += TILE_THREADS) sum += expf(tile[i] - top);
  for (int lanes = WARP / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  if (threadIdx.x % WARP == 0) warp_sums[threadIdx.x / WARP] = sum;
  for (int i = blockIdx.y * TILE_THREADS + threadIdx.x; i < BINS; i += gridDim.y * TILE_THREADS) {
    bin_counts[row * BINS + i] = 0;  // for the next launch
    bin_sums[row * BINS + i] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bias_count; i += TILE_THREADS) {
    const long long token = biased[static_cast<long long>(row) * bias_count + i] - first;
    if (token >= 0 && token < count) tile[token] += biases[static_cast<long long>(row) * bias_count + i];
  }
  __syncthreads();
  const double *rule = rules + row * RULES, repetition = rule[REPETITION_PENALTY];
  const long long start = static_cast<long long>(row) * vocabulary + first;
  u64 greatest = 0;
  for (int i = threadIdx.x; i < count; i += TILE_THREADS) {
    float score = tile[i];
    const int times = COUNTED ? counts[start + i] : 0;
    if (times) score = static_cast<float>(score < 0 ? score * repetition : score / repetition);
    if (const int generated = times & (PROMPT - 1)) {
      score = away_from_zero(score, rule[PRESENCE_PENALTY]);
      score = away_from_zero(score, rule[FREQUENCY_PENALTY] * generated);
    }
    scores[start + i] = score;
    const u64 key = static_cast<u64>(ordered_bits(score)) << 32 | ~static_cast<unsigned>(first + i);
    greatest = key > greatest ? key : greatest;
  }
  greatest = block_max<TILE_THREADS>(greatest);
  if (threadIdx.x) return;
  const int index = row * gridDim.y + blockIdx.y;
  best[index] = greatest;
  sum = 0;
  for (int warp = 0; warp < TILE_THREADS / WARP; warp++) sum += warp_sums[warp];
  sums[2 * index] = top;
  sums[2 * index + 1] = sum;
}

// Return the log-sum-exp of the logits of a row from the sums of its tiles, in all threads of a warp.
__device__ float log_sum_exp(const float* sums, int tiles) {
  const float none = number_of(MINUS_INFINITY);
  const int lane = threadIdx.x % WARP;
  float top = none, sum = 0;
  for (int i = lane; i < tiles; i += WARP) top = fmaxf(top, sums[2 * i]);
  for (int lanes = WARP / 2; lanes; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, lanes));
  for (int i = lane; i < tiles; i += WARP)
    if (sums[2 * i] != none) sum += sums[2 * i + 1] * expf(sums[2 * i] - top);
  for (int lanes = WARP / 2; lanes; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  return top + logf(sum);
}

// Return the best token of a row, from those of its tiles, in all threads.
template <int THREADS>
__device__ __forceinline__ u64 best_of(const u64* best, int tiles) {
  u64 greatest = 0;
  for (int i = threadIdx.x; i < tiles; i += THREADS) greatest = best[i] > greatest ? best[i] : greatest;
  return block_max<THREADS>(greatest);
}

// Return whether a row takes its best token, without a draw.
__device__ __forceinline__ bool is_decided(u64 best, double temperature) {
  const unsigned ordered = static_cast<unsigned>(best >> 32);
  return temperature == 0 || ordered == NOT_A_NUMBER || ordered == MINUS_INFINITY;
}

__device__ __forceinline__ u64 key_of(unsigned weight_bits, unsigned token) {
  return static_cast<u64>(ONE - weight_bits) << INDEX_BITS | token;
}

__device__ __forceinline__ u64 whole_weight(float weight) { return static_cast<u64>(weight * WEIGHT_ONE); }

// Return 2^x, for x from LOWEST to 0, by operations that NumPy has as well.
__device__ __forceinline__ float power_of_two(float x) {
  const float whole = floorf(x), part = x - whole;
  float y = 0.0002161291486f * part + 0.001246784581f;
  y = y * part + 0.009675451554f;
  y = y * part + 0.05548528209f;
  y = y * part + 0.2402293086f;
  y = y * part + 0.6931470632f;
  y = y * part + 1.0f;
  return __uint_as_float(__float_as_uint(y) + (static_cast<unsigned>(static_cast<int>(whole)) << 23));
}

// Weights of scores in comparison with the best one.
struct Scale {
  float top, factor;
  __device__ Scale(u64 best, double temperature)
      : top(number_of(static_cast<unsigned>(best >> 32))),
        factor(static_cast<float>(fmin(1.4426950408889634 / temperature, 3.4028234663852886e38))) {}
  __device__ __forceinline__ float weight(float score) const {
    const float exponent = (score == top ? 0.0f : score - top) * factor;
    return exponent >= LOWEST ? power_of_two(exponent) : 0.0f;  // 0 for NaN: -inf times 0
  }
};

// Replace the scores of a tile by weights, and add them to the histogram of the row. BY_HEAP, leave the scores.
__global__ void weigh_tokens(float* __restrict__ scores, const double* rules, const long long* numbers, const u64* best,
                             unsigned* bin_counts, u64* bin_sums, int vocabulary) {
  OVGPU_SHARED(unsigned, count_of, [BINS]);
  OVGPU_SHARED(u64, sum_of, [BINS]);
  const int row = blockIdx.x, first = blockIdx.y * TILE, count = min(TILE, vocabulary - first);
  const double* rule = rules + row * RULES;
  const u64 greatest = best_of<TILE_THREADS>(best + row * gridDim.y, gridDim.y);
  const Order order = order_of(rule, numbers + row * NUMBERS, vocabulary);
  if (is_decided(greatest, rule[TEMPERATURE]) || order == BY_HEAP) return;
  const Scale scale(greatest, rule[TEMPERATURE]);
  const long long start = static_cast<long long>(row) * vocabulary + first;
  if (order == BY_INDEX) {
    const float least = static_cast<float>(rule[MIN_P]);
    unsigned kept = 0;
    u64 sum = 0;
    for (int i = threadIdx.x; i < count; i += TILE_THREADS) {
      float weight = scale.weight(scores[start + i]);
      if (weight < least) weight = 0;
      scores[start + i] = weight;
      kept += weight > 0;
      sum += whole_weight(weight);
    }
    for (int lanes = WARP / 2; lanes; lanes /= 2) {
      kept += __shfl_xor_sync(0xFFFFFFFF, kept, lanes);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
    }
    if (threadIdx.x % WARP == 0 && kept) {
      atomicAdd(&bin_counts[row * BINS + blockIdx.y], kept);
      atomicAdd(&bin_sums[row * BINS + blockIdx.y], sum);
    }
    return;
  }
  for (int i = threadIdx.x; i < BINS; i += TILE_THREADS) count_of[i] = 0, sum_of[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += TILE_THREADS) {
    const float weight = scale.weight(scores[start + i]);
    scores[start + i] = weight;
    if (weight == 0) continue;
    const int bin = static_cast<int>(key_of(__float_as_uint(weight), 0) >> SHIFTS[0]);
    atomicAdd(&count_of[bin], 1u);
    atomicAdd(&sum_of[bin], whole_weight(weight));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < BINS; i += TILE_THREADS) {
    if (!count_of[i]) continue;
    atomicAdd(&bin_counts[row * BINS + i], count_of[i]);
    atomicAdd(&bin_sums[row * BINS + i], sum_of[i]);
  }
}

// Shared memory of the search in a row's keys: a histogram of one digit, and where the search goes on.
constexpr int MOST_BINS = TILE;
struct Digits {
  unsigned count[MOST_BINS], token[MOST_BINS];  // `token`: one of those in the bin
  u64 sum[MOST_BINS];
  unsigned warp_count[DRAW_THREADS / WARP];
  u64 warp_sum[DRAW_THREADS / WARP];
  unsigned digit, before_count;
  u64 before_sum;
};

struct Row {
  const float* weights;
  const unsigned* bin_counts;
  const u64* bin_sums;
  int vocabulary;
};

struct Prefix {
  u64 sum;         // of the weights of the tokens, the last one included
  unsigned token;  // the last one
};

constexpr u64 ALL = ~0ull;
constexpr unsigned NONE = ~0u;

// Find the first bin up to which `reached(count, sum)` holds. Return whether there is one.
template <class Reached>
__device__ bool find_bin(Digits& digits, int bins, unsigned count, u64 sum, Reached reached) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  unsigned counts[2];
  u64 sums[2];
  for (int i = 0; i < 2; i++) {
    const int bin = 2 * threadIdx.x + i;
    counts[i] = bin < bins ? digits.count[bin] : 0;
    sums[i] = bin < bins ? digits.sum[bin] : 0;
  }
  unsigned count_up_to = counts[0] + counts[1];
  u64 sum_up_to = sums[0] + sums[1];
  for (int step = 1; step < WARP; step *= 2) {
    const unsigned lower_count = __shfl_up_sync(0xFFFFFFFF, count_up_to, step);
    const u64 lower_sum = __shfl_up_sync(0xFFFFFFFF, sum_up_to, step);
    if (lane >= step) count_up_to += lower_count, sum_up_to += lower_sum;
  }
  if (lane == WARP - 1) digits.warp_count[warp] = count_up_to, digits.warp_sum[warp] = sum_up_to;
  if (threadIdx.x == 0) digits.digit = NONE;
  __syncthreads();
  for (int lower = 0; lower < warp; lower++) count += digits.warp_count[lower], sum += digits.warp_sum[lower];
  count += count_up_to - counts[0] - counts[1];
  sum += sum_up_to - sums[0] - sums[1];
  for (int i = 0; i < 2; i++) {
    if (counts[i] && !reached(count, sum) && reached(count + counts[i], sum + sums[i]))
      digits.digit = 2 * threadIdx.x + i, digits.before_count = count, digits.before_sum = sum;
    count += counts[i];
    sum += sums[i];
  }
  __syncthreads();
  return digits.digit != NONE;
}

// Return the shortest prefix of the order of tokens for which `reached(count, sum)` holds; ALL if it holds for none. The
// token is known only if `needs_token`.
template <class Reached>
__device__ Prefix find_prefix(Digits& digits, const Row& row, bool needs_token, Reached reached) {
  u64 path = 0, sum = 0;
  unsigned count = 0;
  for (int level = 0;; level++) {
    const int shift = SHIFTS[level], width = level ? SHIFTS[level - 1] - shift : 0, bins = level ? 1 << width : BINS;
    __syncthreads();
    for (int i = threadIdx.x; i < bins; i += DRAW_THREADS) {
      digits.count[i] = level ? 0 : row.bin_counts[i];
      digits.sum[i] = level ? 0 : row.bin_sums[i];
    }
    __syncthreads();
    if (level) {
      for (int i = threadIdx.x; i < row.vocabulary; i += DRAW_THREADS) {
        const float weight = row.weights[i];
        const u64 key = key_of(__float_as_uint(weight), i);
        if (weight == 0 || key >> (shift + width) != path) continue;
        const int digit = static_cast<int>(key >> shift & (bins - 1));
        atomicAdd(&digits.count[digit], 1u);
        atomicAdd(&digits.sum[digit], whole_weight(weight));
        digits.token[digit] = i;
      }
      __syncthreads();
    }
    if (!find_bin(digits, bins, count, sum, reached)) return {ALL, 0};
    const unsigned digit = digits.digit;
    path = path << width | digit;
    count = digits.before_count;
    sum = digits.before_sum;
    if (digits.count[digit] == 1 && (level || !needs_token))
      return {sum + digits.sum[digit], level ? digits.token[digit] : 0};
  }
}

// Return the first token of the vocabulary for which `reached(count, sum)` holds, with the sum of the weights until then.
template <class Reached>
__device__ Prefix find_token(Digits& digits, const Row& row, Reached reached) {
  const int tiles = (row.vocabulary + TILE - 1) / TILE;
  __syncthreads();
  for (int i = threadIdx.x; i < tiles; i += DRAW_THREADS) {
    digits.count[i] = row.bin_counts[i];
    digits.sum[i] = row.bin_sums[i];
  }
  __syncthreads();
  find_bin(digits, tiles, 0, 0, reached);
  const unsigned first = digits.digit * TILE;
  const u64 before = digits.before_sum;
  __syncthreads();
  for (int i = threadIdx.x; i < TILE; i += DRAW_THREADS) {
    const float weight = first + i < row.vocabulary ? row.weights[first + i] : 0;
    digits.count[i] = weight > 0;
    digits.sum[i] = whole_weight(weight);
  }
  __syncthreads();
  find_bin(digits, TILE, 0, before, reached);
  return {digits.before_sum + digits.sum[digits.digit], first + digits.digit};
}

// A heap whose root has the least score. A key is the ordered bits of a score, and the inverted index of its token.
struct Heap {
  u64 key[TOP_K_IN_HEAP], candidate[DRAW_THREADS];
  unsigned mask[DRAW_THREADS / WARP];  // of the candidates that are greater than the root
};

__device__ __forceinline__ u64 heap_key(float score, int token) {
  return static_cast<u64>(ordered_bits(score)) << 32 | ~static_cast<unsigned>(token);
}

__device__ __forceinline__ bool is_less(u64 key, u64 other) { return key >> 32 < other >> 32; }

// Put a key into the heap below `top`, which has a hole: move greater keys down into it.
__device__ void rise(u64* heap, int top, int hole, u64 key) {
  while (hole > top) {
    const int parent = (hole - 1) / 2;
    if (!is_less(key, heap[parent])) break;
    heap[hole] = heap[parent];
    hole = parent;
  }
  heap[hole] = key;
}

// Put a key into the heap below `top`, which has a hole there. It first goes down to a leaf (Wegener 1993).
__device__ void sink(u64* heap, int count, int top, u64 key) {
  int hole = top;
  for (int child; (child = 2 * hole + 1) < count; hole = child) {
    if (child + 1 < count && !is_less(heap[child], heap[child + 1])) child++;
    heap[hole] = heap[child];
  }
  rise(heap, top, hole, key);
}

// Leave the greatest scores in the heap. Each one that is greater than the root replaces it in two steps, as
// std::pop_heap and std::push_heap do: the order of the heap is that of openvino_genai, also of equal scores.
__device__ void fill_heap(Heap& heap, const float* scores, int vocabulary, int count) {
  if (threadIdx.x < count) heap.key[threadIdx.x] = heap_key(scores[threadIdx.x], threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0)
    for (int parent = count / 2 - 1; parent >= 0; parent--) sink(heap.key, count, parent, heap.key[parent]);
  __syncthreads();
  // As many candidates at a time as keys before them, so that about `count` of them are greater than the root.
  for (int begin = count, width; begin < vocabulary; begin += width) {
    width = min(min(begin, DRAW_THREADS), vocabulary - begin);
    const int token = begin + threadIdx.x;
    const u64 key = threadIdx.x < width ? heap_key(scores[token], token) : 0;
    const bool greater = is_less(heap.key[0], key);
    const unsigned mask = __ballot_sync(0xFFFFFFFF, greater);
    if (!__syncthreads_or(greater)) continue;
    heap.candidate[threadIdx.x] = key;
    if (threadIdx.x % WARP == 0) heap.mask[threadIdx.x / WARP] = mask;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 0; warp * WARP < width; warp++) {
        for (unsigned left = heap.mask[warp]; left; left &= left - 1) {
          const u64 candidate = heap.candidate[warp * WARP + __ffs(left) - 1];
          if (!is_less(heap.key[0], candidate)) continue;
          if (count > 1) sink(heap.key, count - 1, 0, heap.key[count - 1]);
          rise(heap.key, 0, count - 1, candidate);
        }
      }
    }
    __syncthreads();
  }
}

// Return the sum over the block, in all threads.
__device__ u64 block_sum(Digits& digits, u64 value) {
  for (int step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, step);
  __syncthreads();
  if (threadIdx.x % WARP == 0) digits.warp_sum[threadIdx.x / WARP] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < DRAW_THREADS / WARP; warp++) value += digits.warp_sum[warp];
  return value;
}

// Choose the token of a row, one per block, and compute its log probability: among the tokens that the rules keep, or by
// the logits.
template <typename T>
__global__ void __launch_bounds__(DRAW_THREADS)
    draw_token(const T* __restrict__ logits, long long row_step, long long step, const float* __restrict__ weights,
               const double* rules, const long long* numbers, const u64* best, const float* sums, int tiles,
               const unsigned* bin_counts, const u64* bin_sums, int* tokens, float* log_probabilities, int vocabulary) {
  OVGPU_SHARED(Digits, shared, [1]);
  OVGPU_SHARED(Heap, shared_heap, [1]);
  Digits& digits = shared[0];
  const int index = blockIdx.x;
  const double* rule = rules + index * RULES;
  const long long* number = numbers + index * NUMBERS;
  const u64 greatest = best_of<DRAW_THREADS>(best + index * tiles, tiles);
  const float total_log = threadIdx.x < WARP ? log_sum_exp(sums + 2 * index * tiles, tiles) : 0;
  const auto write = [&](unsigned token, float share) {
    tokens[index] = static_cast<int>(token);
    log_probabilities[index] =
        number[BY_LOGITS] ? static_cast<float>(logits[index * row_step + token * step]) - total_log : share;
  };
  if (is_decided(greatest, rule[TEMPERATURE])) {
    if (threadIdx.x) return;
    if ((greatest >> 32) != NOT_A_NUMBER && (greatest >> 32) != MINUS_INFINITY) {
      write(~static_cast<unsigned>(greatest), 0);
    } else {
      tokens[index] = -1;
      log_probabilities[index] = __uint_as_float(NOT_A_NUMBER);
    }
    return;
  }
  const Row row = {weights + static_cast<long long>(index) * vocabulary, bin_counts + index * BINS,
                   bin_sums + index * BINS, vocabulary};
  const u64 random = static_cast<u64>(number[RANDOM]) << 32;
  const auto write_drawn = [&](unsigned token, u64 weight, u64 kept) {
    write(token, static_cast<float>(log(static_cast<double>(weight) / static_cast<double>(kept))));
  };
  const Order order = order_of(rule, number, vocabulary);
  if (order == BY_HEAP) {
    Heap& heap = shared_heap[0];
    const int count = static_cast<int>(number[TOP_K]);
    fill_heap(heap, row.weights, vocabulary, count);
    if (threadIdx.x < count) {
      const Scale scale(greatest, rule[TEMPERATURE]);
      const float weight = scale.weight(number_of(static_cast<unsigned>(heap.key[threadIdx.x] >> 32)));
      const bool is_kept = weight > 0 && weight >= static_cast<float>(rule[MIN_P]);
      digits.count[threadIdx.x] = is_kept;
      digits.sum[threadIdx.x] = is_kept ? whole_weight(weight) : 0;
    }
    const u64 kept = block_sum(digits, threadIdx.x < count ? digits.sum[threadIdx.x] : 0);
    const u64 position = __umul64hi(random, kept);
    __syncthreads();
    find_bin(digits, count, 0, 0, [position](unsigned, u64 sum) { return sum > position; });
    if (threadIdx.x == 0) write_drawn(~static_cast<unsigned>(heap.key[digits.digit]), digits.sum[digits.digit], kept);
    return;
  }
  u64 total = 0;
  for (int i = threadIdx.x; i < BINS; i += DRAW_THREADS) total += row.bin_sums[i];
  total = block_sum(digits, total);
  if (order == BY_INDEX) {
    const u64 position = __umul64hi(random, total);
    const Prefix drawn = find_token(digits, row, [position](unsigned, u64 sum) { return sum > position; });
    if (threadIdx.x == 0) write_drawn(drawn.token, whole_weight(row.weights[drawn.token]), total);
    return;
  }
  const u64 most = number[TOP_K];
  if (most > 0)
    total = min(total, find_prefix(digits, row, false, [most](unsigned count, u64) { return count >= most; }).sum);
  u64 kept = total;
  if (rule[MIN_P] > 0) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < vocabulary; i += DRAW_THREADS)
      if (row.weights[i] >= static_cast<float>(rule[MIN_P])) sum += whole_weight(row.weights[i]);
    sum = block_sum(digits, sum);
    kept = min(kept, max(sum, whole_weight(1.0f)));
  }
  if (rule[TOP_P] < 1) {
    const u64 limit = static_cast<u64>(static_cast<double>(total) * rule[TOP_P]);
    kept = min(kept, find_prefix(digits, row, false, [limit](unsigned, u64 sum) { return sum > limit; }).sum);
  }
  const u64 position = __umul64hi(random, kept);
  const Prefix drawn = find_prefix(digits, row, true, [position](unsigned, u64 sum) { return sum > position; });
  if (threadIdx.x == 0) write_drawn(drawn.token, whole_weight(row.weights[drawn.token]), kept);
}
