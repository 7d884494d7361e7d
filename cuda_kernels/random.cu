// RandomUniform: the words of a generator as numbers of T from low on, below high.
#include "common.cuh"

typedef unsigned long long u64;

// Fraction bits of a number between 1 and 2, and what is computed in.
template <typename T>
struct Real {
  static constexpr int DIGITS = 23;
  typedef float Wide;
};
template <>
struct Real<__half> : Real<float> {
  static constexpr int DIGITS = 10;
};
template <>
struct Real<__nv_bfloat16> : Real<float> {
  static constexpr int DIGITS = 7;
};
template <>
struct Real<double> {
  static constexpr int DIGITS = 52;
  typedef double Wide;
};

// part * range + low. Of 32 bits, the product is rounded before the sum for the Mersenne twister alone.
template <bool PHILOX>
__device__ __forceinline__ float scaled(float part, float range, float low) {
  return PHILOX ? fmaf(part, range, low) : __fadd_rn(__fmul_rn(part, range), low);
}
template <bool PHILOX>
__device__ __forceinline__ double scaled(double part, double range, double low) {
  return __dadd_rn(__dmul_rn(part, range), low);
}

// A number by its word. Philox has a digit less than the Mersenne twister.
template <bool PHILOX, typename T>
__device__ __forceinline__ T between(u64 word, T low, T high) {
  typedef typename Real<T>::Wide Wide;
  constexpr int DIGITS = Real<T>::DIGITS + !PHILOX;
  constexpr u64 ONE = 1ull << DIGITS;
  const T range = static_cast<T>(static_cast<Wide>(high) - static_cast<Wide>(low));
  const Wide part = static_cast<Wide>(word & (ONE - 1)) * (static_cast<Wide>(1) / static_cast<Wide>(ONE));
  return static_cast<T>(scaled<PHILOX>(part, static_cast<Wide>(range), static_cast<Wide>(low)));
}
template <bool PHILOX>
__device__ __forceinline__ int between(u64 word, int low, int high) {
  const unsigned range = static_cast<unsigned>(high) - static_cast<unsigned>(low);
  return static_cast<int>(static_cast<unsigned>(low) + static_cast<unsigned>(word) % (range ? range : 1));
}
template <bool PHILOX>
__device__ __forceinline__ long long between(u64 word, long long low, long long high) {
  const u64 range = static_cast<u64>(high) - static_cast<u64>(low);
  return static_cast<long long>(static_cast<u64>(low) + word % (range ? range : 1));
}

// Whether a number takes two words.
template <bool PHILOX, typename T>
__device__ __forceinline__ bool takes_two(T, T) { return sizeof(T) == 8; }
template <bool PHILOX>
__device__ __forceinline__ bool takes_two(long long low, long long high) {
  return PHILOX ? low < -0x80000000ll || high >= 0x80000000ll : low >= 0x100000000ll || high >= 0x100000000ll;
}

// A word of 64 bits of two; Philox gives the lower half of an integer first.
template <typename T>
__device__ __forceinline__ u64 joined(T, u64 first, u64 second) { return first << 32 | second; }
__device__ __forceinline__ u64 joined(long long, u64 first, u64 second) { return second << 32 | first; }

// The numbers of the blocks of words that this inference takes; requests share the state.
__global__ void take(u64* state, u64* first, u64 count) { *first = atomicAdd(state, count); }

// `state`: the number of a block, the key, and the upper half of the counter. Each thread computes a block of four
// words and what numbers, 2 of 64 bits or 4, it has in it.
template <typename T>
__global__ void philox(const u64* state, const u64* first, const T* low, const T* high, T* __restrict__ y,
                       long long size) {
  constexpr int EACH = sizeof(T) == 8 ? 2 : 4;
  const T from = *low, to = *high;
  const bool two = takes_two<true>(from, to);
  const long long start = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * EACH;
  const u64 n = *first + static_cast<u64>(start / (two ? 2 : 4)), key = state[1], counter = state[2];
  unsigned word[4] = {static_cast<unsigned>(n), static_cast<unsigned>(n >> 32), static_cast<unsigned>(counter),
                      static_cast<unsigned>(counter >> 32)};
  unsigned k = static_cast<unsigned>(key), m = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u64 p = 0xD2511F53ull * word[0], q = 0xCD9E8D57ull * word[2];
    word[0] = static_cast<unsigned>(q >> 32) ^ word[1] ^ k;
    word[1] = static_cast<unsigned>(q);
    word[2] = static_cast<unsigned>(p >> 32) ^ word[3] ^ m;
    word[3] = static_cast<unsigned>(p);
    k += 0x9E3779B9u;
    m += 0xBB67AE85u;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (start + i >= size) return;
    u64 value = word[EACH == 2 && start % 4 ? (2 + i) & 3 : i];  // the other half of a block is another thread's
    if (two) value = joined(from, word[2 * i & 3], word[(2 * i + 1) & 3]);
    y[start + i] = between<true>(value, from, to);
  }
}

template <typename T>
__global__ void mersenne(const unsigned* __restrict__ word, const T* low, const T* high, T* __restrict__ y,
                         long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const T from = *low, to = *high;
  const u64 value = takes_two<false>(from, to) ? static_cast<u64>(word[2 * i]) << 32 | word[2 * i + 1] : word[i];
  y[i] = between<false>(value, from, to);
}
