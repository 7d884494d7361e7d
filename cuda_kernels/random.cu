// RandomUniform: random words, from Philox or the Mersenne twister, as numbers of T in [low, high).
#include "philox.cuh"

typedef unsigned long long u64;

// Number of mantissa bits of T, and the type that its numbers are computed in.
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

// Return part * range + low. In f32, Philox uses a fused multiply-add; the Mersenne twister rounds the product first.
template <bool PHILOX>
__device__ __forceinline__ float scale_to_range(float part, float range, float low) {
  return PHILOX ? fmaf(part, range, low) : __fadd_rn(__fmul_rn(part, range), low);
}
template <bool PHILOX>
__device__ __forceinline__ double scale_to_range(double part, double range, double low) {
  return __dadd_rn(__dmul_rn(part, range), low);
}

// Return the number in [low, high) for a random word. Philox uses one bit fewer than the Mersenne twister.
template <bool PHILOX, typename T>
__device__ __forceinline__ T to_range(u64 word, T low, T high) {
  typedef typename Real<T>::Wide Wide;
  constexpr int DIGITS = Real<T>::DIGITS + !PHILOX;
  constexpr u64 ONE = 1ull << DIGITS;
  const T range = static_cast<T>(static_cast<Wide>(high) - static_cast<Wide>(low));
  const Wide part = static_cast<Wide>(word & (ONE - 1)) * (static_cast<Wide>(1) / static_cast<Wide>(ONE));
  return static_cast<T>(scale_to_range<PHILOX>(part, static_cast<Wide>(range), static_cast<Wide>(low)));
}
template <bool PHILOX>
__device__ __forceinline__ int to_range(u64 word, int low, int high) {
  const unsigned range = static_cast<unsigned>(high) - static_cast<unsigned>(low);
  return static_cast<int>(static_cast<unsigned>(low) + static_cast<unsigned>(word) % (range ? range : 1));
}
template <bool PHILOX>
__device__ __forceinline__ long long to_range(u64 word, long long low, long long high) {
  const u64 range = static_cast<u64>(high) - static_cast<u64>(low);
  return static_cast<long long>(static_cast<u64>(low) + word % (range ? range : 1));
}

// Return whether a number takes two words.
template <bool PHILOX, typename T>
__device__ __forceinline__ bool takes_two_words(T, T) {
  return sizeof(T) == 8;
}
template <bool PHILOX>
__device__ __forceinline__ bool takes_two_words(long long low, long long high) {
  return PHILOX ? low < -0x80000000ll || high >= 0x80000000ll : low >= 0x100000000ll || high >= 0x100000000ll;
}

// Join two words to 64 bits. Integers have the lower half first.
template <typename T>
__device__ __forceinline__ u64 join_words(T, u64 first, u64 second) {
  return first << 32 | second;
}
__device__ __forceinline__ u64 join_words(long long, u64 first, u64 second) { return second << 32 | first; }

// Reserve `count` blocks of words for this inference; requests share the state. *first is the number of the first
// block.
__global__ void take(u64* state, u64* first, u64 count) { *first = atomicAdd(state, count); }

// Generate numbers by Philox4x32-10. `state`: number of the next block, key, and upper half of the
// counter. A thread computes a block of four words, and the numbers that it gives: 4, or 2 of 64 bits.
template <typename T>
__global__ void philox(const u64* state, const u64* first, const T* low, const T* high, T* __restrict__ y,
                       long long size) {
  constexpr int EACH = sizeof(T) == 8 ? 2 : 4;
  const T from = *low, to = *high;
  const bool two_words = takes_two_words<true>(from, to);
  const long long start = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * EACH;
  const u64 n = *first + static_cast<u64>(start / (two_words ? 2 : 4)), key = state[1], counter = state[2];
  unsigned word[4];
  philox_block(n, counter, key, word);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (start + i >= size) return;
    u64 value = word[EACH == 2 && start % 4 ? (2 + i) & 3 : i];  // another thread takes the other half
    if (two_words) value = join_words(from, word[2 * i & 3], word[(2 * i + 1) & 3]);
    y[start + i] = to_range<true>(value, from, to);
  }
}

// Convert words of the Mersenne twister, which the host computes, to numbers, one per thread.
template <typename T>
__global__ void mersenne(const unsigned* __restrict__ word, const T* low, const T* high, T* __restrict__ y,
                         long long size) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const T from = *low, to = *high;
  const u64 value = takes_two_words<false>(from, to) ? static_cast<u64>(word[2 * i]) << 32 | word[2 * i + 1] : word[i];
  y[i] = to_range<false>(value, from, to);
}
