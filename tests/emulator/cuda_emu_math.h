// Device functions: atomics, bit and rounding intrinsics, fast maths, min/max.
#pragma once

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

template <class A, class B>
constexpr std::common_type_t<A, B> emu_min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> emu_max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

// min and max as on the device: they mix arithmetic types, and a number wins over NaN.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  } else {
    return emu_min(a, b);
  }
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) {
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  } else {
    return emu_max(a, b);
  }
}

// ---- memory order, waiting -------------------------------------------------------------------------------
inline void __threadfence() { __sync_synchronize(); }
inline void __threadfence_block() { __sync_synchronize(); }
inline void __threadfence_system() { __sync_synchronize(); }
inline void __nanosleep(unsigned) { emu::idle(); }
[[noreturn]] inline void __trap() { emu::fail("__trap()"); }

template <class T>
inline T __ldg(const T* address) { return *address; }
template <class T>
inline T __ldcg(const T* address) {
  if constexpr (std::is_same_v<T, float2>) {
    return {__ldcg(&address->x), __ldcg(&address->y)};
  } else if constexpr (std::is_class_v<T>) {  // a vector of four
    return {__ldcg(&address->x), __ldcg(&address->y), __ldcg(&address->z), __ldcg(&address->w)};
  } else {
    return *const_cast<const volatile T*>(address);
  }
}
template <class T>
inline T __ldcs(const T* address) { return *address; }
template <class T>
inline void __stcs(T* address, T value) { *address = value; }
template <class T>
inline void __stcg(T* address, T value) { *address = value; }

// ---- atomics ---------------------------------------------------------------------------------------------
namespace emu {

template <class T>
using Identity = typename std::enable_if<true, T>::type;

template <class T, class Update>
inline T atomic_update(T* address, Update update) {
  T expected, desired;
  __atomic_load(address, &expected, __ATOMIC_SEQ_CST);
  do {
    desired = update(expected);
  } while (!__atomic_compare_exchange(address, &expected, &desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return expected;
}

}  // namespace emu

template <class T>
inline T atomicAdd(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T old) { return static_cast<T>(old + value); });
}
template <class T>
inline T atomicSub(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T old) { return static_cast<T>(old - value); });
}
template <class T>
inline T atomicMax(T* address, emu::Identity<T> value) {
  static_assert(std::is_integral_v<T>, "CUDA has atomicMax for integers only");
  return emu::atomic_update(address, [value](T old) { return old < value ? value : old; });
}
template <class T>
inline T atomicMin(T* address, emu::Identity<T> value) {
  static_assert(std::is_integral_v<T>, "CUDA has atomicMin for integers only");
  return emu::atomic_update(address, [value](T old) { return value < old ? value : old; });
}
template <class T>
inline T atomicAnd(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T old) { return old & value; });
}
template <class T>
inline T atomicOr(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T old) { return old | value; });
}
template <class T>
inline T atomicXor(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T old) { return old ^ value; });
}
template <class T>
inline T atomicExch(T* address, emu::Identity<T> value) {
  return emu::atomic_update(address, [value](T) { return value; });
}
template <class T>
inline T atomicCAS(T* address, emu::Identity<T> compare, emu::Identity<T> value) {
  static_assert(std::is_integral_v<T>, "CUDA has atomicCAS for integers only");
  T expected = compare;
  __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return emu::atomic_update(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1u; });
}

// ---- bits ------------------------------------------------------------------------------------------------
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (x >> bit & 1u) << (31 - bit);
  return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<long long>(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __mul24(int a, int b) { return a * b; }
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return sum;
}
inline float __int_as_float(int x) { return emu::bit_cast<float>(x); }
inline int __float_as_int(float x) { return emu::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }

// ---- conversions: saturating, NaN to zero, as on the device -----------------------------------------------
namespace emu {
template <class Int, class Float>
inline Int saturate(Float value) {
  constexpr bool is_signed = std::is_signed_v<Int>;
  constexpr int bits = 8 * sizeof(Int) - (is_signed ? 1 : 0);
  constexpr Int largest = static_cast<Int>(~0ull >> (64 - bits));
  constexpr Int smallest = is_signed ? static_cast<Int>(-largest - 1) : 0;
  if (value != value) return 0;
  if (value >= std::ldexp(Float(1), bits)) return largest;
  if (value <= static_cast<Float>(smallest)) return smallest;
  return static_cast<Int>(value);
}
}  // namespace emu
inline int __float2int_rz(float x) { return emu::saturate<int>(std::trunc(x)); }
inline int __float2int_rn(float x) { return emu::saturate<int>(std::rint(x)); }
inline int __float2int_rd(float x) { return emu::saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return emu::saturate<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return emu::saturate<unsigned>(std::rint(x)); }
inline unsigned __float2uint_rz(float x) { return emu::saturate<unsigned>(std::trunc(x)); }
inline long long __float2ll_rn(float x) { return emu::saturate<long long>(std::rint(x)); }
inline long long __float2ll_rz(float x) { return emu::saturate<long long>(std::trunc(x)); }
inline int __double2int_rn(double x) { return emu::saturate<int>(std::rint(x)); }
inline int __double2int_rz(double x) { return emu::saturate<int>(std::trunc(x)); }
inline long long __double2ll_rn(double x) { return emu::saturate<long long>(std::rint(x)); }
inline long long __double2ll_rz(double x) { return emu::saturate<long long>(std::trunc(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

// ---- arithmetic ------------------------------------------------------------------------------------------
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
// Keeps g++ from contracting an operation with the next one, whatever -ffp-contract says.
template <class T>
inline T rounded(T x) {
  asm("" : "+x"(x));
  return x;
}
inline float __fmul_rn(float x, float y) { return rounded(x * y); }
inline float __fadd_rn(float x, float y) { return rounded(rounded(x) + rounded(y)); }
inline float __fsub_rn(float x, float y) { return rounded(rounded(x) - rounded(y)); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dmul_rn(double x, double y) { return rounded(x * y); }
inline double __dadd_rn(double x, double y) { return rounded(rounded(x) + rounded(y)); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
// Winitzki's approximation, then Newton's method.
inline double erfinv(double x) {
  const double a = std::fabs(x), w = std::log((1 - a) * (1 + a)), t = 2 / (M_PI * 0.147) + w / 2;
  if (!(a < 1)) return a == 1 ? std::copysign(HUGE_VAL, x) : std::nan("");
  double y = std::sqrt(std::sqrt(t * t - w / 0.147) - t);
  for (int step = 0; step < 4; ++step) {
    const double error = a < 0.5 ? std::erf(y) - a : (1 - a) - std::erfc(y);
    y -= error * std::exp(y * y) * std::sqrt(M_PI) / 2;
  }
  return std::copysign(y, x);
}
inline float erfinv(float x) { return static_cast<float>(erfinv(static_cast<double>(x))); }
inline float erfinvf(float x) { return erfinv(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678118654752440f); }
inline float sinpif(float x) { return static_cast<float>(std::sin(M_PI * static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(std::cos(M_PI * static_cast<double>(x))); }
inline void sincospif(float x, float* s, float* c) {
  *s = sinpif(x);
  *c = cospif(x);
}
