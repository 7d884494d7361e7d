// Products of up to 64 rows with compressed weights on tensor cores. Codes are converted to exact 16-bit integers in
// registers; scales multiply the f32 sums. f32 elements of x become sums of two bf16 numbers, which have 16 significant
// bits, more than TF32 has.
#include "ptx.cuh"

constexpr int TILE = 16;         // rows of the weights per warp
constexpr int CHUNK = 8;         // 16-bit elements in 16 bytes
constexpr int PITCH = TILE + 4;  // floats between columns of partial sums; avoids bank conflicts

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

// Return the scale or zero point of `column`, in a row that begins at index `first`.
template <class V>
__device__ __forceinline__ V quant_param(const V* values, int first, const QuantParamIndex& index, int column) {
  return values[first + index.at(column)];
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

// Load with the streaming hint (ld.global.cs), for data that is read once.
template <class Words>
__device__ __forceinline__ Words load_streaming(const Words* from) {
  if constexpr (sizeof(Words) == 16) {
    return bits<Words>(__ldcs(reinterpret_cast<const uint4*>(from)));
  } else if constexpr (sizeof(Words) == 8) {
    return bits<Words>(__ldcs(reinterpret_cast<const uint2*>(from)));
  } else {
    return bits<Words>(__ldcs(reinterpret_cast<const unsigned*>(from)));
  }
}

// Return eight elements of x in the order of the pairs that Integers::convert gives.
template <int PER_WORD>
__device__ __forceinline__ uint4 reorder_pairs(const uint4& x) {
  if constexpr (PER_WORD == 4) {
    return x;
  } else {
    return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
            __byte_perm(x.y, x.w, 0x7632)};
  }
}

// Types of x, as the right operand of mma: its type T, and the number of terms that elements are split into.
template <class X>
struct RightOperand {
  using T = X;
  static constexpr int TERMS = 1;
};
template <>
struct RightOperand<float> {
  using T = __nv_bfloat16;
  static constexpr int TERMS = 2;
};

// Load eight elements of x as their terms; zeros unless `valid`.
template <class X>
__device__ __forceinline__ void load_terms(const X* from, bool valid, uint4 (&terms)[1]) {
  terms[0] = valid ? *reinterpret_cast<const uint4*>(from) : uint4{};
}
__device__ __forceinline__ void load_terms(const float* from, bool valid, uint4 (&terms)[2]) {
  float x[8] = {};
  if (valid) {
    const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
    memcpy(x, &low, sizeof(low));
    memcpy(x + 4, &high, sizeof(high));
  }
  __nv_bfloat162 first[4], second[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    first[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    float rest[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {  // an infinite element has no rest
      const float rounded = j ? __high2float(first[i]) : __low2float(first[i]);
      rest[j] = fabsf(rounded) < __int_as_float(0x7f800000) ? x[2 * i + j] - rounded : 0.f;
    }
    second[i] = __floats2bfloat162_rn(rest[0], rest[1]);
  }
  memcpy(&terms[0], first, sizeof(first));
  memcpy(&terms[1], second, sizeof(second));
}

// Compute out [z, m, n] = x [z, m, k] @ weights [z, n, k]^T for every z = blockIdx.z; unless `stacked`, all share x
// [m, k]. Blocks have 32 x (warps along k) x (warps along n) threads.
// TILE rows of the weights are the left operand of mma in a warp. In each step, lanes 4 g to 4 g + 3 load V words of
// codes each from rows g and g + 8; the order of elements along k is arbitrary, but the same for x. Warps along k take
// every `parts`-th step (split-K), and their sums are added at the end. A block takes ROWS rows of x, and stages their
// elements for `rounds` steps per warp in shared memory; 1 << shift threads copy a row.
// AHEAD: steps whose codes are loaded at once; `rounds` is a multiple of it, or covers all steps. GROUPED: scales or
// zero points differ along k, but not within a step.
template <class Codes, class Scale, class Zero, class X, int V, int ROWS, int AHEAD, bool GROUPED>
__global__ void __launch_bounds__(ROWS <= CHUNK ? 512 : 256, 2)
    product_mma(const X* __restrict__ x, X* __restrict__ out, const void* __restrict__ codes,
                const Scale* __restrict__ scale, const Zero* __restrict__ zero, const QuantParamIndices indices,
                int m, int n, int k,
                int stacked, int rounds, int shift) {
  using T = typename RightOperand<X>::T;
  constexpr int TERMS = RightOperand<X>::TERMS;
  constexpr int PER_WORD = Codes::PER_WORD, LANE_CODES = V * PER_WORD,
                STEP = 4 * LANE_CODES, CHUNKS = LANE_CODES / CHUNK;
  constexpr int N = (ROWS + CHUNK - 1) / CHUNK;  // right operands of mma
  constexpr int CHAINS = N == 1 && !(GROUPED && CHUNKS < 4) ? 2 : 1;  // independent chains of mma
  // Rows of x in shared memory, the second terms behind the first ones, are padded against bank conflicts.
  constexpr int CHUNK_PITCH = TERMS * ROWS * 4 + (ROWS == 1 ? 0 : CHUNKS == 4 ? 2 : 4);
  constexpr int BATCH = ROWS == 1 ? 1 : (ROWS <= CHUNK ? 2 : 8) / TERMS;  // rows of x that a thread copies at once
  using Exact = Integers<Codes, T>;
  struct alignas(4 * V) Words {
    unsigned at[V];
  };
  OVGPU_DYN_SHARED(uint4, staged);
  const int lane = threadIdx.x, part = threadIdx.y, parts = blockDim.y, warps = parts * blockDim.z;
  const int thread = lane + 32 * (part + parts * threadIdx.z);
  const int batches = (m + ROWS - 1) / ROWS, batch = blockIdx.x % batches * ROWS;
  const int first_row = blockIdx.x / batches * blockDim.z * TILE, above = blockIdx.z * n;
  if (stacked) x += static_cast<long long>(blockIdx.z) * m * k;
  x += batch * k;
  out += static_cast<long long>(above) * m + static_cast<long long>(batch) * n;
  m = min(m - batch, ROWS);

  Exact integers[2];
  int from[2], scale_row[2], zero_row[2];  // an int can count the code vectors of any weights
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = above + min(first_row + static_cast<int>(threadIdx.z) * TILE + lane / 4 + 8 * h, n - 1);
    from[h] = row * (k / LANE_CODES) + part * 4 + lane % 4;
    scale_row[h] = row * indices.scale.stride;
    zero_row[h] = row * indices.zero.stride;
    if constexpr (!GROUPED) set_zero(integers[h], quant_param(zero, zero_row[h], indices.zero, 0));
  }

  Words words[AHEAD][2];
  Scale scales[AHEAD][2];
  Zero zeros[AHEAD][2];
  int column = part * STEP;  // first one of the next step to be loaded
  const auto fetch = [&]() {
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++) {
      const bool valid = column + lane % 4 * LANE_CODES < k;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        words[slot][h] = valid ? load_streaming(static_cast<const Words*>(codes) + from[h]) : Words{};
        from[h] += parts * 4;
        if constexpr (GROUPED) {
          const int at = min(column, k - 1);
          scales[slot][h] = quant_param(scale, scale_row[h], indices.scale, at);
          zeros[slot][h] = quant_param(zero, zero_row[h], indices.zero, at);
        }
      }
      column += parts * STEP;
    }
  };
  const int count = (k + STEP * parts - 1) / (STEP * parts);  // steps of each warp

  const auto stage = [&](int step) {
    const int chunk_count = min(rounds, count - step) * parts * STEP / CHUNK, row_stride = 32 * warps >> shift;
    for (int chunk = thread & ((1 << shift) - 1); chunk < chunk_count; chunk += 1 << shift) {
      const int at = step * parts * STEP + chunk * CHUNK;
      uint4* target =
          staged + (chunk / (4 * CHUNKS) * CHUNKS + chunk % CHUNKS) * CHUNK_PITCH + chunk % (4 * CHUNKS) / CHUNKS;
      for (int first = thread >> shift; first < ROWS; first += row_stride * BATCH) {
        uint4 elements[BATCH][TERMS];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
          load_terms(x + (row * k + at), at < k && row < m, elements[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
          const int row = first + i * row_stride;
#pragma unroll
          for (int t = 0; t < TERMS; t++)
            if (row < ROWS) target[(t * ROWS + row) * 4] = reorder_pairs<PER_WORD>(elements[i][t]);
        }
      }
    }
  };

  float sum[GROUPED ? 1 : CHAINS][N][4] = {};
  const auto add = [&](int slot, const uint4* right) {
    float grouped[CHAINS][N][4] = {};
    auto& to = [&]() -> auto& {
      if constexpr (GROUPED) {
        return grouped;
      } else {
        return sum;
      }
    }();
    if constexpr (GROUPED) {
#pragma unroll
      for (int h = 0; h < 2; h++) set_zero(integers[h], zeros[slot][h]);
    }
#pragma unroll
    for (int p = 0; p < CHUNKS; p++) {
      unsigned a[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) integers[h].convert(words[slot][h].at + p * (CHUNK / PER_WORD), a[h]);
      const unsigned left[2][4] = {{a[0][0], a[1][0], a[0][1], a[1][1]}, {a[0][2], a[1][2], a[0][3], a[1][3]}};
#pragma unroll
      for (int i = 0; i < N; i++) {
#pragma unroll
        for (int t = 0; t < TERMS; t++) {
          const uint4 b = right[p * CHUNK_PITCH + (t * ROWS + i * CHUNK) * 4];
          multiply_add<T>(left[0], b.x, b.y, to[0][i]);
          multiply_add<T>(left[1], b.z, b.w, to[CHAINS - 1][i]);
        }
      }
    }
    if constexpr (GROUPED) {
      const float row_scales[2] = {scale_of(scales[slot][0]), scale_of(scales[slot][1])};
#pragma unroll
      for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float total = grouped[0][i][e];
          if constexpr (CHAINS == 2) total += grouped[1][i][e];
          sum[0][i][e] += row_scales[e / 2] * total;
        }
    }
  };

  fetch();
  const int lane_offset = part * CHUNKS * CHUNK_PITCH + min(lane / 4, ROWS - 1) * 4 + lane % 4;
  for (int begin = 0; begin < count; begin += rounds) {
    if (begin) __syncthreads();  // the previous part of x has been read
    stage(begin);
    __syncthreads();
    const int end = min(begin + rounds, count);
    for (int step = begin; step < end; step += AHEAD) {
      const uint4* right = staged + (step - begin) * parts * CHUNKS * CHUNK_PITCH + lane_offset;
#pragma unroll
      for (int slot = 0; slot < AHEAD; slot++) {
        if (slot == 0 || step + slot < end) add(slot, right + slot * parts * CHUNKS * CHUNK_PITCH);
      }
      if (step + AHEAD < count) fetch();
    }
  }

  __syncthreads();  // x has been read
  float* const sums = reinterpret_cast<float*>(staged);
  float* const own_sums = sums + (part * blockDim.z + threadIdx.z) * m * PITCH;
#pragma unroll
  for (int i = 0; i < N; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at = i * CHUNK + lane % 4 * 2 + e % 2;
      float total = sum[0][i][e];
      if constexpr (!GROUPED && CHAINS == 2) total += sum[CHAINS - 1][i][e];
      if (at < m) own_sums[at * PITCH + lane / 4 + e / 2 * 8] = total;
    }
  __syncthreads();
  const int height = TILE * blockDim.z;
  for (int i = thread; i < height * m; i += 32 * warps) {
    const int row = i % height, at = i / height;
    if (first_row + row >= n) continue;
    const float* from_part = sums + (row / TILE * m + at) * PITCH + row % TILE;
    float total = 0;
    for (int p = 0; p < parts; p++) total += from_part[p * blockDim.z * m * PITCH];
    total *= 1.f / Exact::UNIT;
    if constexpr (!GROUPED)
      total *= scale_of(quant_param(scale, (above + first_row + row) * indices.scale.stride, indices.scale, 0));
    out[static_cast<long long>(at) * n + first_row + row] = X(total);
  }
}
