// GroupNormalization of images whose channels are adjacent in memory. A block has some pixels of an image, and of each
// pixel some channels: whole groups of them.
#include "accumulator.cuh"
#include "cluster.cuh"
#include "moments.cuh"
#include "vectors.cuh"

// Division of the pixels of a group among blocks: one block has all of them (NONE), or the blocks of a cluster. Or any
// blocks, in two launches: the first one writes the moments of each part (MOMENTS), and the second one normalises
// (NORMALIZE).
enum Split { NONE, CLUSTER, MOMENTS, NORMALIZE };

constexpr int BLOCK = 256;  // threads per block, at most
constexpr int GROUPS = 64;  // groups per block, at most
constexpr int LOADED = 4;   // pixels that a thread loads at once for moments
constexpr int WRITTEN = 2;  // pixels that a thread loads, and then writes

// Images have `pixels` pixels of `channels` channels, in groups of `group`. A block has `width` channels of `length`
// pixels; the last one of the `parts` of an image may have fewer pixels. `team` threads, a power of two and part of a
// warp, merge the moments of a group. Pixels are `x_step` elements apart in x, and `out_step` in out.
struct Shape {
  unsigned pixels, channels, group, length, parts, width, team, x_step, out_step;

  __device__ __forceinline__ unsigned pixels_of(unsigned part) const { return min(length, pixels - part * length); }
};

// The other inputs of an epilogue: their broadcasts (see broadcast_of), and the distance between the pixels of those
// with all elements.
struct Operands {
  unsigned kinds, step[3];
};

// Indices into these inputs for one channel of several neighbouring channels of a pixel.
struct PixelIndices {
  unsigned long long first[3], number;  // indices for the first channel; and the number of channels before this one
  bool single[3];

  __device__ __forceinline__ PixelIndices(const Operands& operands, unsigned long long pixel, unsigned channel,
                                          unsigned long long image_channel)
      : number(0) {
#pragma unroll
    for (int n = 0; n < 3; n++) {
      const Broadcast kind = broadcast_of(operands.kinds, n);
      single[n] = kind == SINGLE;
      first[n] = kind == ELEMENT         ? pixel * operands.step[n] + channel
                 : kind == IMAGE_CHANNEL ? image_channel
                 : kind == CHANNEL       ? channel
                                         : 0;
    }
  }
  __device__ __forceinline__ unsigned long long operator()(int n) const { return first[n] + (single[n] ? 0 : number); }
};

template <class A>
__device__ __forceinline__ A sum_of_team(A value, unsigned team) {
  for (unsigned step = team / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Return the moments of the union of sets with `count` elements in all. each(f) calls f(count, mean, squares) for the
// sets of this thread; all threads of a team get the result.
template <class A, class Each>
__device__ __forceinline__ Moments<A> merged(A count, unsigned team, const Each& each) {
  A sum = 0, squares = 0;
  each([&](A n, A mean, A) { sum += n * mean; });
  const A mean = sum_of_team(sum, team) / count;
  each([&](A n, A part, A deviations) { squares += deviations + n * (part - mean) * (part - mean); });
  return {count, mean, sum_of_team(squares, team)};
}

// Call body(pixel, values) for the pixels of a thread: first, first + step and so on, before end. AT_ONCE of them are
// loaded before the first call.
template <int V, int AT_ONCE, class T, class Body>
__device__ __forceinline__ void each_pixel(const T* x, unsigned first, unsigned end, unsigned step, unsigned x_step,
                                           const Body& body) {
  for (unsigned p = first; p < end; p += AT_ONCE * step) {
    T part[AT_ONCE][V];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      if (p + u * step < end) load<V>(x + (unsigned long long)(p + u * step) * x_step, part[u]);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      if (p + u * step < end) body(p + u * step, part[u]);
    }
  }
}

// Moments of the pixels of each thread, by channel, in the block's shared memory. Rows of channels are padded, so that
// the threads of a team read different banks.
template <class A, int V>
struct ChannelMoments {
  static constexpr int PAD = 16 / sizeof(A);
  A values[2][BLOCK * (V + PAD)];

  // Store V neighbouring values; kind is 0 for means, 1 for squares.
  __device__ __forceinline__ void set(int kind, unsigned at, const A (&from)[V]) {
#pragma unroll
    for (int i = 0; i < V; i += PAD) {
      uint4 bits;
      memcpy(&bits, from + i, sizeof(bits));
      *reinterpret_cast<uint4*>(values[kind] + at + i) = bits;
    }
  }
};

// Write the moments by channel of the n pixels `first`, first + lanes and so on, before end. Squares are of deviations
// from the first of these pixels. Since it is one of the elements, this multiplies the rounding error by n + 1 at most.
template <int V, class T, class A>
__device__ __forceinline__ void find_channel_moments(const T* x, unsigned first, unsigned end, unsigned lanes,
                                                     unsigned x_step, A inverse_n, unsigned at,
                                                     ChannelMoments<A, V>& to) {
  A base[V] = {}, sum[V] = {}, squares[V] = {};
  each_pixel<V, LOADED>(x, first, end, lanes, x_step, [&](unsigned pixel, const T(&part)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) {
      if (pixel == first) base[j] = A(part[j]);
      const A deviation = A(part[j]) - base[j];
      sum[j] += deviation;
      squares[j] += deviation * deviation;
    }
  });
#pragma unroll
  for (int j = 0; j < V; j++) {
    const A mean = sum[j] * inverse_n, deviations = squares[j] - sum[j] * mean;
    base[j] += mean;
    squares[j] = deviations > A(0) ? deviations : A(0);
  }
  to.set(0, at, base);
  to.set(1, at, squares);
}

// Normalise groups of channels, apply scale and shift per channel, and then the epilogue F. partial: [images, groups,
// parts, 2], the mean and the squares of each part. The grid is (parts of neighbouring blocks, for each `width`
// channels; images); a cluster has the parts. out may be x.
template <class T, int V, Split SPLIT, class F = IdentityEpilogue>
__global__ void __launch_bounds__(BLOCK)
    normalize_pixels(const T* x, T* out, const T* scale, const T* shift, typename Accumulator<T>::Type* partial,
                     const Shape s, typename Accumulator<T>::Type eps, bool eps_inside, const Operands operands,
                     const void* p0, const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  OVGPU_SHARED(A, factors, [2][GROUPS]);  // of each group: the mean, and the factor of deviations from the mean
  start_next_launch();
  const unsigned chunks = s.width / V, lanes = blockDim.x / chunks;  // of a pixel; and pixels at a time
  const unsigned chunk = threadIdx.x % chunks, lane = threadIdx.x / chunks;
  const unsigned slab = blockIdx.x / s.parts, part = blockIdx.x - slab * s.parts, groups = s.width / s.group;
  const unsigned group = threadIdx.x / s.team, member = threadIdx.x % s.team;  // whose moments this thread merges
  const unsigned channel = slab * s.width + chunk * V, own = s.pixels_of(part);
  const unsigned long long image_pixel = (unsigned long long)blockIdx.y * s.pixels + part * s.length;
  x += image_pixel * s.x_step + channel;
  partial +=
      ((unsigned long long)blockIdx.y * (s.channels / s.group) + slab * groups + min(group, groups - 1)) * s.parts * 2;
  const unsigned first = lane < lanes ? lane : own;
  const unsigned whole = own / lanes, rest = own % lanes;        // pixels of each thread, and those left
  const A inverse_n = A(1) / A(max(whole + (lane < rest), 1u));  // here, while few registers are in use
  OVGPU_DYN_SHARED(uint4, memory);                               // of clusters
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(memory);
  uint4* const received = memory + 1;  // [groups][parts]
  if constexpr (SPLIT == CLUSTER) {
    if (threadIdx.x == 0) stores->expect(groups * s.parts * sizeof(uint4));
    arrive_at_cluster<UNTOUCHED>();
  }
  wait_for_launches();

  Moments<A> moments{};
  if constexpr (SPLIT != NORMALIZE) {
    using Channels = ChannelMoments<A, V>;
    OVGPU_SHARED(Channels, of_channels, [1]);
    const unsigned pitch = s.width + Channels::PAD;
    const unsigned at = lane * pitch + chunk * V;
    if (lane < lanes) find_channel_moments<V>(x, first, own, lanes, s.x_step, inverse_n, at, of_channels[0]);
    __syncthreads();
    moments = merged(A(own * s.group), s.team, [&](const auto& f) {
      for (unsigned from = member; from < lanes && group < groups; from += s.team) {
        const unsigned at = from * pitch + group * s.group;
        for (unsigned c = 0; c < s.group; c++)
          f(A(whole + (from < rest)), of_channels[0].values[0][at + c], of_channels[0].values[1][at + c]);
      }
    });
  }
  if constexpr (SPLIT == MOMENTS) {
    if (member == 0 && group < groups) {
      partial[part * 2] = moments.mean;
      partial[part * 2 + 1] = moments.squares;
    }
    return;
  }
  const auto merge_parts = [&](const auto& of_part) {
    moments = merged(A(s.pixels * s.group), s.team, [&](const auto& f) {
      for (unsigned from = member; from < s.parts && group < groups; from += s.team) {
        A values[2];
        of_part(from, values);
        f(A(s.pixels_of(from) * s.group), values[0], values[1]);
      }
    });
  };
  if constexpr (SPLIT == CLUSTER) {
    wait_for_cluster();  // all blocks expect stores
    const A values[2] = {moments.mean, moments.squares};
    uint4 bits{};
    memcpy(&bits, values, sizeof(values));
    for (unsigned to = member; to < s.parts && group < groups; to += s.team)
      stores->store(received + group * s.parts + part, bits, to);
    stores->wait();
    merge_parts([&](unsigned from, A(&to)[2]) { memcpy(to, received + group * s.parts + from, sizeof(to)); });
  } else if constexpr (SPLIT == NORMALIZE) {
    merge_parts([&](unsigned from, A(&to)[2]) {
      to[0] = partial[from * 2];
      to[1] = partial[from * 2 + 1];
    });
  }
  if (member == 0 && group < groups) {
    factors[0][group] = moments.mean;
    factors[1][group] = moments.factor(eps, eps_inside);
  }
  __syncthreads();

  if (lane >= lanes) return;
  T scales[V], shifts[V];
  load<V>(scale + channel, scales);
  load<V>(shift + channel, shifts);
  A means[V], slopes[V];
  unsigned from = chunk * V / s.group, left = s.group - chunk * V % s.group;
#pragma unroll
  for (int j = 0; j < V; j++) {
    means[j] = factors[0][from];
    slopes[j] = factors[1][from] * A(scales[j]);
    if (--left == 0) {
      from++;
      left = s.group;
    }
  }
  out += image_pixel * s.out_step + channel;
  each_pixel<V, WRITTEN>(x, first, own, lanes, s.x_step, [&](unsigned pixel, T(&part)[V]) {
    PixelIndices at(operands, image_pixel + pixel, channel, (unsigned long long)blockIdx.y * s.channels + channel);
#pragma unroll
    for (int j = 0; j < V; j++, at.number++)
      part[j] = F::of(T((A(part[j]) - means[j]) * slopes[j] + A(shifts[j])), at, p0, p1, p2);
    store<V>(part, out + (unsigned long long)pixel * s.out_step);
  });
}
