// Convolutions as implicit GEMM on tensor cores, for tensors whose channels are adjacent. Elements are f16, bf16 or s8,
// whose sums in s32 are exact. A product of matrices is a convolution with one tap.
//
// The result has a row per pixel of y (of all images) and a column per output channel. K is the sum's axis: the taps,
// and for each tap the input channels. A block computes a tile of ROWS pixels by COLUMNS channels, stage by stage:
//
//                                         kernel [outputs, K], as the right operand
//                                             channels
//                                          COLUMNS    COLUMNS
//      x, gathered for each pixel         +----------+----------+--
//      K: a stage of 128 bytes per row    |          |          |     K
//         stage 0   stage 1               +----------+----------+--
//        +---------+---------+--          +----------+----------+--
//   ROWS |         |         |            | tile 0   | tile 1   |     pixels
//        +---------+---------+--          +----------+----------+--
//   ROWS |         |         |            | tile s   | tile s+1 |     s = tiles along the channels
//        +---------+---------+--          +----------+----------+--
//
// Where the tiles are too few for the device, several blocks compute parts of K of each tile; see Split.
//
// Warps divide a tile, and where that leaves fewer than four, several warps divide the chunks of each stage (WARPS_K):
//
//     256 x 128               64 x 32                  tile        of a warp   warps: pixels, channels, K   stages
//        64     64               32                    256 x 128   64 x 64            4, 2, 1                  3
//     +------+------+         +------+                 128 x 128   64 x 64            2, 2, 1                  3
//  64 | w 0  | w 4  |      32 | w 0  |  and w 2        128 x 64    64 x 32            2, 2, 1                  4
//     +------+------+         +------+                 64 x 128    64 x 32            1, 4, 1                  4
//  64 | w 1  | w 5  |      32 | w 1  |  and w 3        64 x 64     32 x 32            2, 2, 1                  4
//     +------+------+         +------+                 64 x 32     32 x 32            2, 1, 2                  6
//  64 | w 2  | w 6  |                                  32 x 32     32 x 32            1, 1, 4                  6
//     +------+------+
//  64 | w 3  | w 7  |
//     +------+------+
//
// Dynamic shared memory is a ring of STAGES stages; in a cluster, a barrier and the sums that other blocks send follow:
//
//   stage 0: x [ROWS][8 chunks of 16 bytes], kernel [COLUMNS][8 chunks] | stage 1 .. | barrier | received sums
//
// The main loop waits for a stage, multiplies it, and meanwhile starts copying the stage that is STAGES - 1 ahead. Sums
// stay in registers. A strip is a line of eight pixels by GROUP channels: a lane has its pixel lane / 4, and channels 8
// (lane % 4) to 8 (lane % 4) + 7.
#include "bytes.cuh"
#include "cluster.cuh"
#include "convolution.cuh"
#include "divisor.cuh"
#include "ptx.cuh"

constexpr int CHUNKS = 8;                 // chunks of 16 bytes of a row of a stage
constexpr int STAGE_BYTES = 16 * CHUNKS;  // of a row of a stage
constexpr int OCTET = 8;                  // neighbouring channels of a lane, and the columns of an mma
constexpr int GROUP = 4 * OCTET;          // channels of the four lanes that share a pixel

// Multiprocessors of these capabilities have 100 KB of shared memory, in which one block of a large tile fits.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int LARGE_BLOCKS = 1;
#else
constexpr int LARGE_BLOCKS = 2;
#endif

template <class T>
struct ExactSum {
  using Type = float;
};
template <>
struct ExactSum<signed char> {
  using Type = int;
};

// Division of K among blocks: none; parts, whose sums the blocks leave in memory; or parts that the blocks of a cluster
// compute, each of which gets the sums of some strips from the others.
enum Split { NONE, MEMORY, CLUSTER };

// Tile of a block: ROWS pixels by COLUMNS channels. BLOCKS run on a multiprocessor. The larger the tile of a warp, the
// less it reads of shared memory per product. A warp computes the epilogue of OWN_LINES lines of eight pixels, and
// loads the operands of LINES of them at once.
template <int ROWS, int COLUMNS>
struct Tile {
  static constexpr int WARP_ROWS = ROWS + COLUMNS > 128 ? 64 : 32;     // pixels of a warp
  static constexpr int WARP_COLUMNS = ROWS + COLUMNS > 192 ? 64 : 32;  // channels of a warp
  static constexpr int WARPS_M = ROWS / WARP_ROWS;                     // warps along the pixels
  static constexpr int WARPS_MN = WARPS_M * (COLUMNS / WARP_COLUMNS);  // parts of a tile
  static constexpr int WARPS_K = WARPS_MN < 4 ? 4 / WARPS_MN : 1;      // warps per part of a tile
  static constexpr int WARPS = WARPS_MN * WARPS_K;                     // per block
  static constexpr int THREADS = 32 * WARPS;                           // per block
  static constexpr int KERNEL_AT = ROWS * CHUNKS;                      // chunks of x in a stage
  static constexpr int SIZE = KERNEL_AT + COLUMNS * CHUNKS;            // chunks of a stage
  static constexpr int STAGES = ROWS + COLUMNS > 192 ? 3 : WARPS_K > 1 ? 6 : 4;
  static constexpr int BLOCKS = ROWS + COLUMNS > 256 ? 1 : ROWS + COLUMNS > 128 ? LARGE_BLOCKS : 3;
  static constexpr int OWN_LINES = WARP_ROWS / 8 / WARPS_K;  // lines of eight pixels of a warp
  static constexpr int LINES = WARP_COLUMNS > 32 ? 2 : OWN_LINES < 4 ? OWN_LINES : 4;  // loaded at once
  static constexpr int LINES_OF_TILE = ROWS / 8;
  static constexpr int STRIPS = LINES_OF_TILE * (COLUMNS / GROUP);  // of a tile
  static constexpr int EACH = THREADS / CHUNKS;                     // rows between those that a thread copies
};

// Return the place of a chunk in a stage: chunks of a row change places, so that neither ldmatrix nor cp.async has bank
// conflicts.
__device__ __forceinline__ int swapped(int row, int chunk) { return row * CHUNKS + (chunk ^ row % CHUNKS); }

// Division of the work of a launch: extents of y, tiles along the channels, and K in `parts` of `steps` stages each.
// From a stage to the next one, K advances by `rows` and `columns` of taps, and by `bytes` of channels.
struct Division {
  Divisor width, height, strips, parts;  // `strips`: tiles along the channels
  int steps, rows, columns, bytes;
};

// Copies of one thread to the stages of x: one chunk of K for each of COUNT rows, which are pixels of y, EACH apart.
// Taps are the outer part of K, channels the inner one. Offsets count bytes.
template <class T, class S, int COUNT>
struct PixelCopies {
  static constexpr int OUTSIDE = -(1 << 30);    // row of pixels behind the last one: outside of x for every tap
  static constexpr unsigned BYTE = 0xff;        // mask of a code
  static constexpr unsigned ONES = ~0u / BYTE;  // 1 in each of four bytes
  const Window<int>& w;
  const Division& d;
  const char* x;
  uint4* target;
  unsigned padding;                          // four equal codes
  unsigned outside = 0;                      // a bit for each row of the stages in flight: whether it needs padding
  int channels, row_pitch, column_pitch;     // bytes of a tap's channels, and between rows and columns of x
  int at[COUNT], row[COUNT], column[COUNT];  // offset and coordinates that the first tap reads, for each pixel
  int i, j, channel;                         // the tap to copy next, and the offset in its channels

  __device__ __forceinline__ PixelCopies(const Window<int>& w, const Division& d, const T* x, uint4* stages, int pixel,
                                         int first_chunk, int code)
      : w(w), d(d), x(reinterpret_cast<const char*>(x)), padding((code & BYTE) * ONES) {
    const int own = threadIdx.x / CHUNKS, total = w.batch * w.extent[1] * w.extent[2], size = sizeof(T);
    channels = w.channels * size, row_pitch = w.x[3] * size, column_pitch = w.x[4] * size;
    target = stages + swapped(own, threadIdx.x % CHUNKS);
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      const int index = pixel + own + n * S::EACH, line = d.width.quotient(index), image = d.height.quotient(line);
      row[n] = (line - image * w.extent[1]) * w.stride[1] - w.begin[1];
      column[n] = (index - line * w.extent[2]) * w.stride[2] - w.begin[2];
      at[n] = image * w.x[0] * size + row[n] * row_pitch + column[n] * column_pitch;
      if (index >= total) row[n] = OUTSIDE;
    }
    const int k = (first_chunk + threadIdx.x % CHUNKS) * 16, tap = k / channels;
    channel = k - tap * channels;
    i = tap / w.kernel[2], j = tap - i * w.kernel[2];
  }
  // Copy the stage that is `ahead` stages after the next one to read: zeros outside of x, and only zeros unless
  // `valid`.
  __device__ __forceinline__ void copy(int stage, int ahead, bool valid) {
    const int down = i * w.dilation[1], right = j * w.dilation[2];
    const int tap = down * row_pitch + right * column_pitch + channel;
    const unsigned height = valid && i < w.kernel[1] ? w.size[1] : 0;  // K has ended otherwise
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      const bool inside = static_cast<unsigned>(row[n] + down) < height &&
                          static_cast<unsigned>(column[n] + right) < static_cast<unsigned>(w.size[2]);
      copy_async(target + stage * S::SIZE + n * S::EACH * CHUNKS, x + static_cast<unsigned>(at[n] + tap), inside);
      if (sizeof(T) == 1 && !inside) outside |= 1u << (ahead * COUNT + n);
    }
    channel += d.bytes, j += d.columns, i += d.rows;
    if (channel >= channels) channel -= channels, j++;
    if (j >= w.kernel[2]) j -= w.kernel[2], i++;
  }
  // Replace this thread's zeros in the next stage by padding, once its copies have arrived.
  __device__ __forceinline__ void pad(int stage) {
    if constexpr (sizeof(T) == 1) {
      const unsigned rows = padding ? outside & ((1u << COUNT) - 1) : 0;
      outside >>= COUNT;
      if (!rows) return;
#pragma unroll
      for (int n = 0; n < COUNT; n++)
        if (rows >> n & 1)
          target[stage * S::SIZE + n * S::EACH * CHUNKS] = make_uint4(padding, padding, padding, padding);
    }
  }
};

// Copies of one thread to the stages of the kernel, whose rows are output channels.
template <class T, class S, int COUNT>
struct KernelCopies {
  const char* kernel;
  uint4* target;
  int pitch;     // bytes of a row
  int left;      // bytes of a row from the next chunk on
  int channels;  // output channels from this thread's first row on

  __device__ __forceinline__ KernelCopies(const Window<int>& w, const T* kernel, uint4* stages, int first,
                                          int first_chunk) {
    const int own = threadIdx.x / CHUNKS, begin = (first_chunk + threadIdx.x % CHUNKS) * 16;
    first += channel_of(own);
    pitch = w.kernel[1] * w.kernel[2] * w.channels * static_cast<int>(sizeof(T));
    this->kernel = reinterpret_cast<const char*>(kernel) + static_cast<unsigned>(first * pitch + begin);
    target = stages + S::KERNEL_AT + swapped(own, threadIdx.x % CHUNKS);
    left = pitch - begin, channels = w.outputs - first;
  }
  // Return the output channel in a row of a stage. Rows are the columns of mma, of which a lane gets 2 c and 2 c + 1 of
  // each octet j. These are channels 8 c + 2 j and 8 c + 2 j + 1, so that a lane gets neighbouring channels: row 32 g +
  // 8 j + 2 c + b has channel 32 g + 8 c + 2 j + b.
  static __device__ __forceinline__ constexpr int channel_of(int row) {
    return (row & ~31) | (row & 6) << 2 | (row & 24) >> 2 | (row & 1);
  }
  // Copy a stage, and advance to the next one. Behind the end of K are zeros, which x is multiplied by.
  __device__ __forceinline__ void copy(int stage, bool valid) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      const unsigned channel = channel_of(n * S::EACH);
      copy_async(target + stage * S::SIZE + n * S::EACH * CHUNKS, kernel + channel * static_cast<size_t>(pitch),
                 valid && left > 0 && static_cast<int>(channel) < channels);
    }
    kernel += STAGE_BYTES, left -= STAGE_BYTES;
  }
};

// Octet of elements of an operand of the epilogue, in registers. An element has BYTES bytes. PIXELS: the operand
// differs among pixels. ADJACENT: the elements lie side by side, aligned.
template <int BYTES, bool PIXELS, bool ADJACENT>
struct Operand {
  Bytes<OCTET * BYTES> elements;

  template <bool OF_PIXELS>
  __device__ __forceinline__ void load(const void* from, const OperandOffsets<int>& offsets, int number) {
    if constexpr (PIXELS == OF_PIXELS) {
      const char* const first = static_cast<const char*>(from) + static_cast<long long>(offsets(number)) * BYTES;
      if constexpr (ADJACENT) {
        elements = *reinterpret_cast<const Bytes<OCTET * BYTES>*>(first);
      } else {
        const int stride = offsets.of.stride[number][1] * BYTES;
#pragma unroll
        for (int e = 0; e < OCTET; e++) {
          const auto element = *reinterpret_cast<const Bytes<BYTES>*>(first + e * stride);
          memcpy(reinterpret_cast<char*>(&elements) + e * BYTES, &element, BYTES);
        }
      }
    }
  }
  __device__ __forceinline__ const void* data() const { return &elements; }
};

struct Absent {
  template <bool OF_PIXELS>
  __device__ __forceinline__ void load(const void*, const OperandOffsets<int>&, int) {}
  __device__ __forceinline__ const void* data() const { return nullptr; }
};

// Octets of all operands of an epilogue.
template <class O0, class O1, class O2, class O3>
struct Octets {
  O0 o0;
  O1 o1;
  O2 o2;
  O3 o3;

  template <bool OF_PIXELS>
  __device__ __forceinline__ void load(const void* p0, const void* p1, const void* p2, const void* p3,
                                       const OperandOffsets<int>& offsets) {
    o0.template load<OF_PIXELS>(p0, offsets, 0);
    o1.template load<OF_PIXELS>(p1, offsets, 1);
    o2.template load<OF_PIXELS>(p2, offsets, 2);
    o3.template load<OF_PIXELS>(p3, offsets, 3);
  }
};

// Operands and scales of an octet of channels, for the epilogue.
template <bool CODES, class O0, class O1, class O2, class O3>
struct OfChannels {
  Octets<O0, O1, O2, O3> operands;
  Bytes<OCTET * sizeof(float)> factors, corrections;

  __device__ __forceinline__ void load_scales(const float* factor, const int* correction) {
    if constexpr (CODES) {
      factors = *reinterpret_cast<const Bytes<OCTET * sizeof(float)>*>(factor);
      corrections = *reinterpret_cast<const Bytes<OCTET * sizeof(int)>*>(correction);
    }
  }
  // Return the value of the sum of an element.
  template <class Sum>
  __device__ __forceinline__ float scaled(Sum sum, int element) const {
    if constexpr (CODES) {
      const int correction = static_cast<int>(corrections.words[element]);
      return __fmul_rn(static_cast<float>(sum - correction), __uint_as_float(factors.words[element]));
    } else {
      return sum;
    }
  }
};

// A number as a type, so that it is known at compile time in a generic lambda.
template <int N>
struct Count {
  __device__ constexpr operator int() const { return N; }
};

// Numbers that the epilogue takes, as arguments of the launch: layers that differ in nothing else share a kernel.
constexpr int NUMBERS = 8;  // at most
struct Numbers {
  float at[NUMBERS];
};

// Arguments of an epilogue for one element: its index in the octets, and the numbers.
struct Place {
  int element;
  const Numbers& numbers;
  __device__ __forceinline__ int operator()(int) const { return element; }
  __device__ __forceinline__ float number(int n) const { return numbers.at[n]; }
};

// Compute y [pixels, outputs] = F(value). The value is the sum of the products of x and the kernel [outputs, taps,
// channels], for s8 factor (sum - correction), rounded to V. Elements outside of x are `padding`. Rows of all tensors
// are aligned to 16 bytes, and `outputs` is a multiple of OCTET. The kernel is a constant, and is copied before earlier
// launches end.
// A block computes a tile, or a part of its K; see Split. Parts in MEMORY leave sums in `partial`, and the last warp to
// arrive adds up those of its part of the tile; `arrived` [tiles, WARPS] is zero before and after.
template <class T, class V, class Out, int ROWS, int COLUMNS, Split SPLIT, class F, class O0 = Absent,
          class O1 = Absent, class O2 = Absent, class O3 = Absent>
__global__ void __launch_bounds__((Tile<ROWS, COLUMNS>::THREADS), (Tile<ROWS, COLUMNS>::BLOCKS))
    implicit_gemm(const T* __restrict__ x, const T* __restrict__ kernel, Out* __restrict__ y,
                  const float* __restrict__ factor, const int* __restrict__ correction, int padding, uint4* partial,
                  unsigned* arrived, const Window<int> w, const Division division, const Operands<int> operands,
                  const Numbers numbers, const void* p0, const void* p1, const void* p2, const void* p3) {
  using S = Tile<ROWS, COLUMNS>;
  using Sum = typename ExactSum<T>::Type;
  constexpr bool CODES = sizeof(T) == 1;
  constexpr int STAGES = S::STAGES;
  constexpr int BANDS = S::WARP_ROWS / 16;         // of 16 pixels of a warp: left operands of mma
  constexpr int OCTETS = S::WARP_COLUMNS / OCTET;  // of channels of a warp: right operands of mma
  constexpr int GROUPS = S::WARP_COLUMNS / GROUP;  // of channels of a warp
  constexpr int SLICES = CHUNKS / 2 / S::WARPS_K;  // of K that a warp multiplies per stage, two chunks each
  OVGPU_DYN_SHARED(uint4, stages);
  start_next_launch();
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(stages + STAGES * S::SIZE);
  uint4* const received = stages + STAGES * S::SIZE + 1;  // [own strips][parts][WARPS_K][2][32]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_mn = warp % S::WARPS_MN, warp_k = warp / S::WARPS_MN,
            warp_m = warp_mn % S::WARPS_M, warp_n = warp_mn / S::WARPS_M;
  const int tile = SPLIT == CLUSTER ? number_of_cluster() : blockIdx.x,
            part = SPLIT == CLUSTER ? rank_in_cluster() : blockIdx.y, line = division.strips.quotient(tile);
  const int first_pixel = line * ROWS, first_channel = (tile - line * division.strips.value) * COLUMNS;

  const int own_strips = division.parts.quotient(S::STRIPS - part + division.parts.value - 1);
  if constexpr (SPLIT == CLUSTER) {
    if (threadIdx.x == 0) stores->expect(own_strips * division.parts.value * S::WARPS_K * 64 * sizeof(uint4));
    arrive_at_cluster<UNTOUCHED>();
  }
  KernelCopies<T, S, COLUMNS / S::EACH> kernel_copies(w, kernel, stages, first_channel, part * division.steps * CHUNKS);
  const int steps = min(division.steps, (kernel_copies.pitch + STAGE_BYTES - 1) / STAGE_BYTES - part * division.steps);
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) kernel_copies.copy(step, step < steps);
  PixelCopies<T, S, ROWS / S::EACH> pixel_copies(w, division, x, stages, first_pixel, part * division.steps * CHUNKS,
                                                 padding);
  wait_for_launches();
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) {
    pixel_copies.copy(step, step, step < steps);
    commit_copies();
  }

  // Operands and scales of the lane's channels for the epilogue are loaded here, ahead of their use, where registers
  // suffice.
  constexpr bool LOADS_AHEAD = GROUPS == 1 && SPLIT == NONE;
  OfChannels<CODES, O0, O1, O2, O3> of_channels;
  const int own_first = first_channel + warp_n * S::WARP_COLUMNS + lane % 4 * OCTET;
  const auto load_of_channels = [&](int channel) {
    const int origin[3] = {};
    of_channels.operands.template load<false>(p0, p1, p2, p3, OperandOffsets<int>(operands, 0, origin, channel));
    of_channels.load_scales(factor + channel, correction + channel);
  };
  if (LOADS_AHEAD) load_of_channels(min(own_first, w.outputs - OCTET));

  // Places in a stage of the rows that this lane passes to ldmatrix. Other chunks of a row are found by ^, since a row
  // has a power of two of chunks.
  const int own_pixel = swapped(warp_m * S::WARP_ROWS + lane % 16, lane / 16 + warp_k * 2);
  const int own_channel =
      S::KERNEL_AT + swapped(warp_n * S::WARP_COLUMNS + lane / 16 * 8 + lane % 8, lane / 8 % 2 + warp_k * 2);
  Sum sum[BANDS][OCTETS][4] = {};
  int stage = 0;
  for (int step = 0; step < steps; step++) {
    wait_copies_but<STAGES - 2>();
    pixel_copies.pad(stage);
    __syncthreads();  // the stage has arrived, and the one before has been read
    const int target = stage ? stage - 1 : STAGES - 1;
    const bool more = step + STAGES - 1 < steps;
    const uint4* const from = stages + stage * S::SIZE;
#pragma unroll
    for (int n = 0; n < SLICES; n++) {  // an mma takes two chunks of a row, whatever their type
      const int k = n * S::WARPS_K * 2;
      unsigned a[BANDS][4], b[OCTETS / 2][4];
#pragma unroll
      for (int j = 0; j < OCTETS / 2; j++) load_matrices(from + j * 16 * CHUNKS + (own_channel ^ k), b[j]);
#pragma unroll
      for (int i = 0; i < BANDS; i++) load_matrices(from + i * 16 * CHUNKS + (own_pixel ^ k), a[i]);
      // Tensor cores work while the next copies are prepared.
      if (n == 0) kernel_copies.copy(target, more);
      if (n == (SLICES > 1)) pixel_copies.copy(target, STAGES - 2, more);
#pragma unroll
      for (int i = 0; i < BANDS; i++)
#pragma unroll
        for (int j = 0; j < OCTETS; j++) multiply_add<T>(a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], sum[i][j]);
    }
    commit_copies();
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }

  // Write `count` lines of eight pixels. The lane has pixel `top` of the first line, and pixels top + 8, top + 16, ..
  // of the others; total(n, e) is the sum of its element e in line n.
  const int pixels = w.batch * w.extent[1] * w.extent[2];
  const auto write_lines = [&](auto count, int top, int channel, const auto& total) {
    Octets<O0, O1, O2, O3> loaded[count];
    int to[count];
#pragma unroll
    for (int n = 0; n < count; n++) {
      const int pixel = min(top + n * 8, pixels - 1), row = division.width.quotient(pixel);
      const int image = division.height.quotient(row);
      const int at[3] = {0, row - image * w.extent[1], pixel - row * w.extent[2]};
      loaded[n] = of_channels.operands;
      loaded[n].template load<true>(p0, p1, p2, p3, OperandOffsets<int>(operands, image, at, channel));
      to[n] = image * w.y[0] + offset(at, w.y) + channel;
    }
#pragma unroll
    for (int n = 0; n < count; n++) {
      Out results[OCTET];
#pragma unroll
      for (int e = 0; e < OCTET; e++) {
        const float value = of_channels.scaled(total(n, e), e);
        results[e] = F::of(V(value), Place{e, numbers}, loaded[n].o0.data(), loaded[n].o1.data(), loaded[n].o2.data(),
                           loaded[n].o3.data());
      }
      Bytes<sizeof(results)> bytes;
      memcpy(&bytes, results, sizeof(bytes));
      if (top + n * 8 < pixels) *reinterpret_cast<Bytes<sizeof(results)>*>(y + to[n]) = bytes;
    }
  };

  // Sums of two octets of a line of this warp, and the strip that they belong to.
  const auto pair_of = [&](int line, int pair) {
    const Sum* const first = &sum[line / 2][2 * pair][line % 2 * 2];
    const Sum* const second = &sum[line / 2][2 * pair + 1][line % 2 * 2];
    const Sum values[4] = {first[0], first[1], second[0], second[1]};
    uint4 bits;
    memcpy(&bits, values, sizeof(bits));
    return bits;
  };
  const auto strip_of = [&](int line, int pair) {
    return (warp_n * GROUPS + pair / 2) * S::LINES_OF_TILE + warp_m * 2 * BANDS + line;
  };
  const auto add = [](uint4 bits, Sum* total) {
    Sum values[4];
    memcpy(values, &bits, sizeof(values));
#pragma unroll
    for (int e = 0; e < 4; e++) total[e] += values[e];
  };
  if constexpr (SPLIT == CLUSTER) {
    const int parts = division.parts.value;
    const auto slot = [&](int number, int from, int slice, int half) {
      return received + (((number * parts + from) * S::WARPS_K + slice) * 2 + half) * 32 + lane;
    };
    wait_for_cluster();  // all blocks expect stores
#pragma unroll
    for (int line = 0; line < 2 * BANDS; line++)
#pragma unroll
      for (int pair = 0; pair < OCTETS / 2; pair++) {
        const int strip = strip_of(line, pair), number = division.parts.quotient(strip);
        stores->store(slot(number, part, warp_k, pair % 2), pair_of(line, pair), strip - number * parts);
      }
    stores->wait();
    for (int number = warp; number < own_strips; number += S::WARPS) {
      Sum total[OCTET] = {};
      for (int from = 0; from < parts; from++)
#pragma unroll
        for (int slice = 0; slice < S::WARPS_K; slice++)
#pragma unroll
          for (int half = 0; half < 2; half++) add(*slot(number, from, slice, half), total + half * 4);
      const int strip = number * parts + part;
      const int channel = first_channel + strip / S::LINES_OF_TILE * GROUP + lane % 4 * OCTET;
      const int pixel = first_pixel + strip % S::LINES_OF_TILE * 8 + lane / 4;
      if (channel < w.outputs) {
        load_of_channels(channel);
        write_lines(Count<1>(), pixel, channel, [&](int, int e) { return total[e]; });
      }
    }
    return;
  }
  if constexpr (S::WARPS_K > 1) {  // warps exchange sums through the memory of the stages
    const auto slot = [&](int slice, int strip, int half) {
      return stages + ((slice * S::STRIPS + strip) * 2 + half) * 32 + lane;
    };
    wait_copies_but<0>();  // also for the zeros behind the last stage
    __syncthreads();       // the last stage has been read
#pragma unroll
    for (int line = 0; line < 2 * BANDS; line++)
#pragma unroll
      for (int pair = 0; pair < OCTETS / 2; pair++) *slot(warp_k, strip_of(line, pair), pair % 2) = pair_of(line, pair);
    __syncthreads();  // all sums are there
#pragma unroll
    for (int line = 0; line < S::OWN_LINES; line++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Sum total[4] = {};
#pragma unroll
        for (int slice = 0; slice < S::WARPS_K; slice++)  // in order
          add(*slot(slice, warp * S::OWN_LINES + line, half), total);
#pragma unroll
        for (int e = 0; e < 4; e++) sum[line / 2][2 * half + e / 2][line % 2 * 2 + e % 2] = total[e];
      }
  }

  if constexpr (SPLIT == MEMORY) {
    constexpr int FRAGMENTS = S::OWN_LINES * OCTETS / 2;  // of four sums, which are in two octets of the lines
    const auto fragment = [&](int part, int n) {
      const int slot = tile * division.parts.value + part;
      return partial + (static_cast<long long>(slot) * FRAGMENTS + n) * S::THREADS + threadIdx.x;
    };
    const auto own = [&](int n, int e) -> Sum& {
      const int line = n / (OCTETS / 2), octet = n % (OCTETS / 2) * 2 + e / 2;
      return sum[line / 2][octet][line % 2 * 2 + e % 2];
    };
#pragma unroll
    for (int n = 0; n < FRAGMENTS; n++) {
      const Sum values[4] = {own(n, 0), own(n, 1), own(n, 2), own(n, 3)};
      uint4 sums;
      memcpy(&sums, values, sizeof(sums));
      *fragment(part, n) = sums;
    }
    __syncwarp();
    const unsigned others = division.parts.value - 1;
    unsigned before = 0;
    if (lane == 0) before = increment_acquire_release(arrived + tile * S::WARPS + warp, others);
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before != others) return;
    __syncwarp();                                    // all lanes see what lane 0 has acquired
    constexpr int LOADS = FRAGMENTS > 16 ? 16 : 32;  // in flight, as registers allow
    constexpr int BATCH = FRAGMENTS < 8 ? FRAGMENTS : 8, AHEAD = LOADS / BATCH;
    memset(sum, 0, sizeof(sum));
#pragma unroll
    for (int batch = 0; batch < FRAGMENTS; batch += BATCH) {
#pragma unroll 1
      for (int first = 0; first < division.parts.value; first += AHEAD) {  // in a fixed order
        uint4 loaded[AHEAD][BATCH];
#pragma unroll
        for (int p = 0; p < AHEAD; p++)
#pragma unroll
          for (int n = 0; n < BATCH; n++)
            loaded[p][n] = __ldcg(fragment(min(first + p, division.parts.value - 1), batch + n));
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
          const bool valid = first + p < division.parts.value;  // without a branch, all loads come first
#pragma unroll
          for (int n = 0; n < BATCH; n++) {
            Sum others[4];
            memcpy(others, &loaded[p][n], sizeof(others));
#pragma unroll
            for (int e = 0; e < 4; e++) own(batch + n, e) += valid ? others[e] : Sum(0);
          }
        }
      }
    }
  }

  const int own_line = first_pixel + (S::WARPS_K > 1 ? warp : warp_m) * S::OWN_LINES * 8 + lane / 4;
#pragma unroll
  for (int group = 0; group < GROUPS; group++) {
    const int channel = own_first + group * GROUP;
    if (channel >= w.outputs) return;
    if (!LOADS_AHEAD) load_of_channels(channel);
#pragma unroll
    for (int first = 0; first < S::OWN_LINES; first += S::LINES) {
      write_lines(Count<S::LINES>(), own_line + first * 8, channel,
                  [&](int n, int e) { return sum[(first + n) / 2][group * 4 + e / 2][(first + n) % 2 * 2 + e % 2]; });
    }
  }
}
