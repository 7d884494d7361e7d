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

// Exact conversion of CHUNK codes of a row to pairs of T times UNIT, after subtraction of BIAS and the row's zero
// point. A 4-bit code is placed in the mantissa of a subnormal number, which one fused multiply-add scales and shifts;
// its pairs are codes (0, 4), (1, 5), (2, 6), (3, 7), 16 bits apart. An 8-bit code is placed in the low bits of a
// larger number, from which an offset is subtracted; its pairs are neighbours.
template <class Codes, class T>
struct Integers;

template <bool SIGNED>
struct Integers<Nibbles<SIGNED>, __half> {
  static constexpr float UNIT = 1.f / 512;
  __half2 offset = bits<__half2>(SIGNED ? 0xa400a400u : 0u);  // -BIAS * UNIT

  static __device__ __forceinline__ __half2 offset_of(int zero) {
    const __half value = __float2half_rn(-UNIT * static_cast<float>(zero + Nibbles<SIGNED>::BIAS));
    return __halves2half2(value, value);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
    const auto low = bits<__half2>(0x78007800u), high = bits<__half2>(0x68006800u);  // 2^15, 2^11
    const unsigned word = SIGNED ? words[0] ^ 0x88888888u : words[0], above = word >> 8;
    to[0] = bits<unsigned>(__hfma2(bits<__half2>(word & 0x000f000fu), low, offset));
    to[1] = bits<unsigned>(__hfma2(bits<__half2>(word & 0x00f000f0u), high, offset));
    to[2] = bits<unsigned>(__hfma2(bits<__half2>(above & 0x000f000fu), low, offset));
    to[3] = bits<unsigned>(__hfma2(bits<__half2>(above & 0x00f000f0u), high, offset));
  }
};

template <bool SIGNED>
struct Integers<Nibbles<SIGNED>, __nv_bfloat16> {
  static constexpr float UNIT = 1.f / 64;
  __nv_bfloat162 offset = bits<__nv_bfloat162>(SIGNED ? 0xbe00be00u : 0u);  // -BIAS * UNIT

  static __device__ __forceinline__ __nv_bfloat162 offset_of(int zero) {
    const __nv_bfloat16 value = __float2bfloat16_rn(-UNIT * static_cast<float>(zero + Nibbles<SIGNED>::BIAS));
    return __halves2bfloat162(value, value);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
    const auto factor = bits<__nv_bfloat162>(0x7f007f00u);  // 2^127
    const unsigned word = SIGNED ? words[0] ^ 0x88888888u : words[0];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      to[i] = bits<unsigned>(__hfma2(bits<__nv_bfloat162>(word >> 4 * i & 0x000f000fu), factor, offset));
    }
  }
};

template <bool SIGNED>
struct Integers<Bytes<SIGNED>, __half> {
  static constexpr float UNIT = 1.f;
  static constexpr unsigned ONE = 0x00010001u, BIAS = Bytes<SIGNED>::BIAS;
  __half2 offset = bits<__half2>((0x6400u + BIAS) * ONE);

  static __device__ __forceinline__ __half2 offset_of(int zero) {
    return bits<__half2>((0x6400u + (zero + static_cast<int>(BIAS))) * ONE);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned word = SIGNED ? words[i / 2] ^ 0x80808080u : words[i / 2];
      const unsigned pair = __byte_perm(word, 0x64646464u, i % 2 ? 0x4342 : 0x4140);
      to[i] = bits<unsigned>(__hsub2(bits<__half2>(pair), offset));
    }
  }
};

template <bool SIGNED>
struct Integers<Bytes<SIGNED>, __nv_bfloat16> {
  static constexpr float UNIT = 1.f;
  float offset = 8388608.f + Bytes<SIGNED>::BIAS;  // 2^23: bfloat16 has too few bits for a code and an offset

  static __device__ __forceinline__ float offset_of(int zero) {
    return 8388608.f + static_cast<float>(zero + Bytes<SIGNED>::BIAS);
  }
  __device__ __forceinline__ void convert(const unsigned* words, unsigned (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned word = SIGNED ? words[i / 2] ^ 0x80808080u : words[i / 2];
      const float first = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 ? 0x7652 : 0x7650)) - offset;
      const float second = __uint_as_float(__byte_perm(word, 0x4b000000u, i % 2 ? 0x7653 : 0x7651)) - offset;
      to[i] = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);  // exact up to 255
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

// Return the value of a lane of the same row, whose four lanes are neighbours.
__device__ __forceinline__ float of_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane, 4); }
__device__ __forceinline__ int of_lane(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane, 4); }
__device__ __forceinline__ None of_lane(None, int) { return {}; }
