// Vector types, half and bfloat16 with the conversions and operators of cuda_fp16.h and cuda_bf16.h.
#pragma once

#include <cstdint>
#include <cstring>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define OVGPU_EMU_VECTORS(T, name)                                                  \
  struct name##1 {                                                                  \
    T x;                                                                            \
  };                                                                                \
  struct __align__(2 * sizeof(T)) name##2 {                                         \
    T x, y;                                                                         \
  };                                                                                \
  struct __align__(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) name##4 {                   \
    T x, y, z, w;                                                                   \
  };                                                                                \
  inline name##1 make_##name##1(T x) { return {x}; }                                \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                        \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

OVGPU_EMU_VECTORS(signed char, char)
OVGPU_EMU_VECTORS(unsigned char, uchar)
OVGPU_EMU_VECTORS(short, short)
OVGPU_EMU_VECTORS(unsigned short, ushort)
OVGPU_EMU_VECTORS(int, int)
OVGPU_EMU_VECTORS(unsigned, uint)
OVGPU_EMU_VECTORS(long long, longlong)
OVGPU_EMU_VECTORS(unsigned long long, ulonglong)
OVGPU_EMU_VECTORS(float, float)
OVGPU_EMU_VECTORS(double, double)
#undef OVGPU_EMU_VECTORS

struct float3 {
  float x, y, z;
};
struct int3 {
  int x, y, z;
};
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

namespace emu {

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Round to nearest even, with subnormals; NaN becomes the device's canonical 0x7FFF.
inline uint16_t float_to_half_bits(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7FFF;
  if (magnitude >= 0x47800000u) return sign | 0x7C00;  // at least 65536: infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: a multiple of 2^-24
    const float scaled = bit_cast<float>(magnitude) * 16777216.0f;
    return sign | static_cast<uint16_t>(__builtin_rintf(scaled));
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

inline float half_bits_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) return bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -magnitude : magnitude;
  }
  return bit_cast<float>(sign | (exponent + 112u) << 23 | mantissa << 13);
}

inline uint16_t float_to_bfloat16_bits(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat16_bits_to_float(uint16_t value) {
  return bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Rounds to odd: an inexact value is truncated and its last bit is set. Rounding the result to a 16-bit float then
// equals rounding the value itself, once. A long double holds every double and every 64-bit integer.
inline float odd_float(long double value) {
  const float nearest = static_cast<float>(value);
  if (nearest == value || value != value) return nearest;
  const bool beyond = value < 0 ? nearest < value : nearest > value;
  return bit_cast<float>((bit_cast<uint32_t>(nearest) - beyond) | 1u);
}

}  // namespace emu

// One 16-bit float: every operation computes in float and rounds once, as the device's do.
#define OVGPU_EMU_FLOAT16(name, encode, decode)                                        \
  struct name {                                                                        \
    uint16_t bits;                                                                     \
    name() = default;                                                                  \
    name(float value) : bits(encode(value)) {}                                         \
    name(double value) : bits(encode(emu::odd_float(value))) {}                        \
    name(int value) : bits(encode(emu::odd_float(value))) {}                           \
    name(unsigned value) : bits(encode(emu::odd_float(value))) {}                      \
    name(long long value) : bits(encode(emu::odd_float(value))) {}                     \
    name(unsigned long long value) : bits(encode(emu::odd_float(value))) {}            \
    operator float() const { return decode(bits); }                                    \
    name& operator+=(const name& other) { return *this = name(float(*this) + float(other)); } \
    name& operator-=(const name& other) { return *this = name(float(*this) - float(other)); } \
    name& operator*=(const name& other) { return *this = name(float(*this) * float(other)); } \
    name& operator/=(const name& other) { return *this = name(float(*this) / float(other)); } \
  };                                                                                   \
  inline name operator+(const name& a, const name& b) { return name(float(a) + float(b)); } \
  inline name operator-(const name& a, const name& b) { return name(float(a) - float(b)); } \
  inline name operator*(const name& a, const name& b) { return name(float(a) * float(b)); } \
  inline name operator/(const name& a, const name& b) { return name(float(a) / float(b)); } \
  inline name operator-(const name& a) { return name(-float(a)); }                     \
  inline bool operator==(const name& a, const name& b) { return float(a) == float(b); } \
  inline bool operator!=(const name& a, const name& b) { return float(a) != float(b); } \
  inline bool operator<(const name& a, const name& b) { return float(a) < float(b); }  \
  inline bool operator>(const name& a, const name& b) { return float(a) > float(b); }  \
  inline bool operator<=(const name& a, const name& b) { return float(a) <= float(b); } \
  inline bool operator>=(const name& a, const name& b) { return float(a) >= float(b); } \
  inline name __hadd(const name& a, const name& b) { return a + b; }                   \
  inline name __hsub(const name& a, const name& b) { return a - b; }                   \
  inline name __hmul(const name& a, const name& b) { return a * b; }                   \
  inline name __hdiv(const name& a, const name& b) { return a / b; }                   \
  inline name __hneg(const name& a) { return -a; }                                     \
  inline name __habs(const name& a) { return name(__builtin_fabsf(float(a))); }        \
  inline name __hmax(const name& a, const name& b) { return name(__builtin_fmaxf(float(a), float(b))); } \
  inline name __hmin(const name& a, const name& b) { return name(__builtin_fminf(float(a), float(b))); } \
  inline name __hfma(const name& a, const name& b, const name& c) {                    \
    return name(static_cast<float>(double(float(a)) * float(b) + float(c)));           \
  }                                                                                    \
  inline bool __hisnan(const name& a) { return float(a) != float(a); }                 \
  inline bool __heq(const name& a, const name& b) { return a == b; }                   \
  inline bool __hlt(const name& a, const name& b) { return a < b; }                    \
  inline bool __hgt(const name& a, const name& b) { return a > b; }                    \
  inline name hexp(const name& a) { return name(__builtin_expf(float(a))); }           \
  inline name hlog(const name& a) { return name(__builtin_logf(float(a))); }           \
  inline name hsqrt(const name& a) { return name(__builtin_sqrtf(float(a))); }         \
  inline name hrsqrt(const name& a) { return name(1.0f / __builtin_sqrtf(float(a))); } \
  inline name hrcp(const name& a) { return name(1.0f / float(a)); }                    \
  struct __align__(4) name##2 {                                                        \
    name x, y;                                                                         \
  };                                                                                   \
  inline name##2 operator+(const name##2& a, const name##2& b) { return {a.x + b.x, a.y + b.y}; } \
  inline name##2 operator-(const name##2& a, const name##2& b) { return {a.x - b.x, a.y - b.y}; } \
  inline name##2 operator*(const name##2& a, const name##2& b) { return {a.x * b.x, a.y * b.y}; } \
  inline name##2 __hadd2(const name##2& a, const name##2& b) { return a + b; }         \
  inline name##2 __hsub2(const name##2& a, const name##2& b) { return a - b; }         \
  inline name##2 __hmul2(const name##2& a, const name##2& b) { return a * b; }         \
  inline name##2 __hfma2(const name##2& a, const name##2& b, const name##2& c) {       \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                             \
  }

OVGPU_EMU_FLOAT16(__half, emu::float_to_half_bits, emu::half_bits_to_float)
OVGPU_EMU_FLOAT16(__nv_bfloat16, emu::float_to_bfloat16_bits, emu::bfloat16_bits_to_float)
#undef OVGPU_EMU_FLOAT16

typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline float __half2float(__half value) { return float(value); }
inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline __half __double2half(double value) { return __half(value); }
inline __half __ushort_as_half(unsigned short bits) { return emu::bit_cast<__half>(bits); }
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline float __low2float(__half2 value) { return float(value.x); }
inline float __high2float(__half2 value) { return float(value.y); }
inline float2 __half22float2(__half2 value) { return {float(value.x), float(value.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 value) { return {__half(value.x), __half(value.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }

inline float __bfloat162float(__nv_bfloat16 value) { return float(value); }
inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return emu::bit_cast<__nv_bfloat16>(bits); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline float2 __bfloat1622float2(__nv_bfloat162 value) { return {float(value.x), float(value.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline float __low2float(__nv_bfloat162 value) { return float(value.x); }
inline float __high2float(__nv_bfloat162 value) { return float(value.y); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
