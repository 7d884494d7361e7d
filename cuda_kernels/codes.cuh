// Rows of a matrix as they are stored: codes of 4 or 8 bits with scales and zero points, or elements of 16 bits. Codes
// are converted to exact 16-bit integers in registers, the left operand of mma.
#pragma once

#include "common.cuh"

constexpr int CHUNK = 8;  // 16-bit elements in 16 bytes

struct None {};

// 4-bit codes, the first one in the low bits. Signed codes are converted to unsigned ones, which are larger by BIAS.
template <bool SIGNED>
struct Nibbles {
  static constexpr int PER_WORD = 8, BIAS = SIGNED ? 8 : 0;
};

template <bool SIGNED>
struct Bytes {
  static constexpr int PER_WORD = 4, BIAS = SIGNED ? 128 : 0;
};

// Elements of 16 bits, which are no codes.
struct Dense {
  static constexpr int PER_WORD = 2;
};

template <class To, class From>
__device__ __forceinline__ To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits of equal size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Bits of 2^exponent as f16, bf16 and f32: the biased exponent, with a mantissa of 0.
constexpr unsigned half_bits(int exponent) { return static_cast<unsigned>(exponent + 15) << 10; }
constexpr unsigned bfloat16_bits(int exponent) { return static_cast<unsigned>(exponent + 127) << 7; }
constexpr unsigned float_bits(int exponent) { return static_cast<unsigned>(exponent + 127) << 23; }
constexpr unsigned MINUS = 0x8000u;   // sign bit of 16-bit floats
constexpr unsigned TWICE = 0x10001u;  // factor that repeats 16 bits in both halves of a word

constexpr unsigned CODE_SIGNS_4 = 8 * 0x11111111u;   // the sign bits of eight codes of 4 bits
constexpr unsigned CODE_SIGNS_8 = 128 * 0x1010101u;  // the sign bits of four codes of 8 bits

// Exact conversion of CHUNK codes of a row to pairs of T times UNIT, after subtraction of BIAS and the row's zero
// point. A 4-bit code is placed in the mantissa of a subnormal number, which one fused multiply-add scales and shifts;
// its pairs are codes (0, 4), (1, 5), (2, 6), (3, 7), 16 bits apart. An 8-bit code is placed in the low bits of a
// larger number, from which an offset is subtracted; its pairs are neighbours. Each hexadecimal digit of a selector of
// __byte_perm names a byte of the result: 0 to 3 are those of the first operand, 4 to 7 of the second one.
template <class Codes, class T>
struct Integers;

template <bool SIGNED>
struct Integers<Nibbles<SIGNED>, __half> {
  static constexpr float UNIT = 1.f / 512;
  static constexpr unsigned MINUS_BIAS = TWICE * (MINUS | half_bits(3 - 9));  // -8 * UNIT, twice
  __half2 offset = bits<__half2>(SIGNED ? MINUS_BIAS : 0u);                   // -BIAS * UNIT

  static __device__ __forceinline__ __half2 offset_of(int zero) {
    const __half value = __float2half_rn(-UNIT * static_cast<float>(zero + Nibbles<SIGNED>::BIAS));
    return __halves2half2(value, value);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
    // The least subnormal f16 is 2^-24: a code in bits 0 to 3 is code * 2^-24, and one in bits 4 to 7 is code * 2^-20.
    constexpr unsigned LOW = TWICE * half_bits(24 - 9), HIGH = TWICE * half_bits(20 - 9);
    const auto low = bits<__half2>(LOW), high = bits<__half2>(HIGH);
    const unsigned word = SIGNED ? words[0] ^ CODE_SIGNS_4 : words[0], above = word >> 8;
    to[0] = bits<unsigned>(__hfma2(bits<__half2>(word & 0x000f000fu), low, offset));
    to[1] = bits<unsigned>(__hfma2(bits<__half2>(word & 0x00f000f0u), high, offset));
    to[2] = bits<unsigned>(__hfma2(bits<__half2>(above & 0x000f000fu), low, offset));
    to[3] = bits<unsigned>(__hfma2(bits<__half2>(above & 0x00f000f0u), high, offset));
  }
};

template <bool SIGNED>
struct Integers<Nibbles<SIGNED>, __nv_bfloat16> {
  static constexpr float UNIT = 1.f / 64;
  static constexpr unsigned MINUS_BIAS = TWICE * (MINUS | bfloat16_bits(3 - 6));  // -8 * UNIT, twice
  __nv_bfloat162 offset = bits<__nv_bfloat162>(SIGNED ? MINUS_BIAS : 0u);         // -BIAS * UNIT

  static __device__ __forceinline__ __nv_bfloat162 offset_of(int zero) {
    const __nv_bfloat16 value = __float2bfloat16_rn(-UNIT * static_cast<float>(zero + Nibbles<SIGNED>::BIAS));
    return __halves2bfloat162(value, value);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
    // The least subnormal bf16 is 2^-133, and the largest power of two is 2^127: their product is UNIT.
    constexpr unsigned FACTOR = TWICE * bfloat16_bits(127);
    const auto factor = bits<__nv_bfloat162>(FACTOR);
    const unsigned word = SIGNED ? words[0] ^ CODE_SIGNS_4 : words[0];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      to[i] = bits<unsigned>(__hfma2(bits<__nv_bfloat162>(word >> 4 * i & 0x000f000fu), factor, offset));
    }
  }
};

template <bool SIGNED>
struct Integers<Bytes<SIGNED>, __half> {
  static constexpr float UNIT = 1.f;
  static constexpr unsigned BIAS = Bytes<SIGNED>::BIAS;
  static constexpr unsigned BASE = half_bits(10);              // 1024, whose mantissa counts in units of 1
  static constexpr unsigned UPPER = (BASE >> 8) * 0x1010101u;  // four times the upper byte of BASE
  __half2 offset = bits<__half2>((BASE + BIAS) * TWICE);

  static __device__ __forceinline__ __half2 offset_of(int zero) {
    return bits<__half2>((BASE + (zero + static_cast<int>(BIAS))) * TWICE);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned word = SIGNED ? words[i / 2] ^ CODE_SIGNS_8 : words[i / 2];
      const unsigned pair = __byte_perm(word, UPPER, i % 2 ? 0x4342 : 0x4140);  // BASE + code, twice
      to[i] = bits<unsigned>(__hsub2(bits<__half2>(pair), offset));
    }
  }
};

template <bool SIGNED>
struct Integers<Bytes<SIGNED>, __nv_bfloat16> {
  static constexpr float UNIT = 1.f;
  static constexpr float BASE = 8388608.f;  // 2^23 as f32: bfloat16 has too few bits for a code and an offset
  float offset = BASE + Bytes<SIGNED>::BIAS;

  static __device__ __forceinline__ float offset_of(int zero) {
    return BASE + static_cast<float>(zero + Bytes<SIGNED>::BIAS);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
    constexpr unsigned BASE_BITS = float_bits(23);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned word = SIGNED ? words[i / 2] ^ CODE_SIGNS_8 : words[i / 2];
      const float first = __uint_as_float(__byte_perm(word, BASE_BITS, i % 2 ? 0x7652 : 0x7650)) - offset;
      const float second = __uint_as_float(__byte_perm(word, BASE_BITS, i % 2 ? 0x7653 : 0x7651)) - offset;
      to[i] = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);  // upper halves: exact up to 255
    }
  }
};

template <class T>
struct Integers<Dense, T> {
  static constexpr float UNIT = 1.f;

  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = words[i];
  }
};

// Location of a scale or zero point: index = row * stride + column / columns, with division by a reciprocal.
struct QuantParamIndex {
  int stride, magic, shift;

  __device__ __forceinline__ int at(int column) const {
    const unsigned n = static_cast<unsigned>(column);
    const unsigned high = static_cast<unsigned long long>(n) * static_cast<unsigned>(magic) >> 32;
    return static_cast<int>((high + n) >> shift);
  }
};

struct QuantParamIndices {
  QuantParamIndex scale, zero;
};

// Return the scale or zero point of a row and a column.
template <class V>
__device__ __forceinline__ V quant_param(const V* values, int row, const QuantParamIndex& index, int column) {
  return values[row * index.stride + index.at(column)];
}
__device__ __forceinline__ None quant_param(const None*, int, const QuantParamIndex&, int) { return {}; }

template <class V>
__device__ __forceinline__ float scale_of(V value) {
  return static_cast<float>(value);
}
__device__ __forceinline__ float scale_of(None) { return 1.f; }

template <class Integers, class V>
__device__ __forceinline__ void set_zero(Integers& integers, V value) {
  integers.offset = Integers::offset_of(static_cast<int>(value));
}
template <class Integers>
__device__ __forceinline__ void set_zero(Integers&, None) {}

// Return the value that lane `lane` of the four neighbouring lanes of this row has.
__device__ __forceinline__ float of_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane, 4); }
__device__ __forceinline__ int of_lane(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane, 4); }
__device__ __forceinline__ None of_lane(None, int) { return {}; }
