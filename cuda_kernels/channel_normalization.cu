// GroupNormalization, and local response normalisation (LRN).
#include "axes.cuh"
#include "moments.cuh"
#include "ptx.cuh"

// Return the moments of x[first, end), in every thread of the block: one pass for the mean, one for the squares.
template <class T, int V, class A>
__device__ __forceinline__ Moments<A> moments_of(const T* x, unsigned first, unsigned end) {
  A sum = 0, squares = 0;
  for (unsigned i = first + threadIdx.x * V; i < end; i += blockDim.x * V) {
    T part[V];
    load<V>(x + i, part);
#pragma unroll
    for (int j = 0; j < V; j++) sum += A(part[j]);
  }
  const A count = A(end - first), mean = fold_row(sum, Add()) / count;
  for (unsigned i = first + threadIdx.x * V; i < end; i += blockDim.x * V) {
    T part[V];
    load<V>(x + i, part);
#pragma unroll
    for (int j = 0; j < V; j++) squares += (A(part[j]) - mean) * (A(part[j]) - mean);
  }
  return {count, mean, fold_row(squares, Add())};
}

// Indices into the other inputs of an epilogue for one element of the result; see Broadcast.
struct OperandIndices {
  unsigned long long element, image;
  unsigned channel, kinds;

  __device__ __forceinline__ unsigned long long operator()(int n) const {
    const Broadcast kind = broadcast_of(kinds, n);
    return kind == ELEMENT ? element : kind == IMAGE_CHANNEL ? image : kind == CHANNEL ? channel : 0;
  }
};

// Normalise x[first, end) of the row blockIdx.x, then apply scale and shift per channel, and the epilogue F. A row is a
// group of channels of one image: n elements, `area` per channel. n, `area` and `length` are multiples of V. The grid
// is (rows, parts of `length` elements).
template <class T, int V, class F>
__device__ __forceinline__ void write_group(const T* x, T* out, const T* scale, const T* shift, unsigned n,
                                            unsigned area, unsigned groups, unsigned first, unsigned end,
                                            Moments<typename Accumulator<T>::Type> moments,
                                            typename Accumulator<T>::Type eps, bool eps_inside, unsigned kinds,
                                            const void* p0, const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  const A factor = moments.factor(eps, eps_inside);
  const unsigned group_channels = n / area, first_channel = blockIdx.x % groups * group_channels;
  const unsigned long long row = (unsigned long long)blockIdx.x * n;
  for (unsigned i = first + threadIdx.x * V; i < end; i += blockDim.x * V) {
    const unsigned channel = first_channel + i / area;
    const A channel_scale = factor * A(scale[channel]), channel_shift = A(shift[channel]);
    OperandIndices indices{row + i, (unsigned long long)blockIdx.x * group_channels + i / area, channel, kinds};
    T part[V];
    load<V>(x + row + i, part);
#pragma unroll
    for (int j = 0; j < V; j++, indices.element++) {
      part[j] = F::of(T((A(part[j]) - moments.mean) * channel_scale + channel_shift), indices, p0, p1, p2);
    }
    store<V>(part, out + row + i);
  }
}

// Normalise rows if gridDim.y is 1; otherwise write the moments of each row's parts to partial [rows, parts, 3].
template <class T, int V, class F = IdentityEpilogue>
__global__ void __launch_bounds__(OVGPU_THREADS)
    group_moments(const T* x, T* out, const T* scale, const T* shift, typename Accumulator<T>::Type* partial,
                  unsigned n, unsigned area, unsigned groups, unsigned length, typename Accumulator<T>::Type eps,
                  bool eps_inside, unsigned kinds, const void* p0, const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  start_next_launch();
  wait_for_launches();
  const unsigned long long row = (unsigned long long)blockIdx.x * n;
  const unsigned first = blockIdx.y * length, end = n - first < length ? n : first + length;
  const Moments<A> moments = moments_of<T, V, A>(x + row, first, end);
  if (gridDim.y == 1) {
    write_group<T, V, F>(x, out, scale, shift, n, area, groups, first, end, moments, eps, eps_inside, kinds, p0, p1,
                         p2);
  } else if (threadIdx.x == 0) {
    A* to = partial + 3ull * (blockIdx.x * gridDim.y + blockIdx.y);
    to[0] = moments.count;
    to[1] = moments.mean;
    to[2] = moments.squares;
  }
}

// Normalise rows with the moments of all their parts, which group_moments has computed.
template <class T, int V, class F = IdentityEpilogue>
__global__ void __launch_bounds__(OVGPU_THREADS)
    group_parts(const T* x, T* out, const T* scale, const T* shift, const typename Accumulator<T>::Type* partial,
                unsigned n, unsigned area, unsigned groups, unsigned length, typename Accumulator<T>::Type eps,
                bool eps_inside, unsigned kinds, const void* p0, const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  start_next_launch();
  wait_for_launches();
  const unsigned first = blockIdx.y * length, end = n - first < length ? n : first + length;
  Moments<A> moments{0, 0, 0};
  for (unsigned i = 0; i < gridDim.y; i++) {
    const A* from = partial + 3ull * (blockIdx.x * gridDim.y + i);
    moments = Merge()(moments, Moments<A>{from[0], from[1], from[2]});
  }
  write_group<T, V, F>(x, out, scale, shift, n, area, groups, first, end, moments, eps, eps_inside, kinds, p0, p1, p2);
}

// Axes of a dense array, and the radius of the window along each: neighbours before and after an element.
struct Region {
  long long rank, extent[6], stride[6], radius[6];
};

// Local response normalisation (LRN): out = x / (bias + factor * (sum of squares in the window))^exponent. One thread
// per element.
template <class T>
__global__ void local_response(const T* __restrict__ x, T* __restrict__ out, const Region region, long long size,
                               typename Accumulator<T>::Type factor, typename Accumulator<T>::Type bias,
                               typename Accumulator<T>::Type exponent) {
  using A = typename Accumulator<T>::Type;
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  long long first[6], count[6], total = 1, start = i;
#pragma unroll
  for (int axis = 0; axis < 6; axis++) {
    if (axis >= region.rank) continue;
    const long long at = i / region.stride[axis] % region.extent[axis], radius = region.radius[axis];
    const long long low = at < radius ? 0 : at - radius, high = at + radius;
    first[axis] = low;
    count[axis] = (high < region.extent[axis] ? high + 1 : region.extent[axis]) - low;
    total *= count[axis];
    start += (low - at) * region.stride[axis];
  }
  A sum = 0;
  for (long long k = 0; k < total; k++) {
    long long rest = k, index = start;
#pragma unroll
    for (int axis = 5; axis >= 0; axis--) {
      if (axis >= region.rank) continue;
      index += rest % count[axis] * region.stride[axis];
      rest /= count[axis];
    }
    const A value = A(x[index]);
    sum += value * value;
  }
  out[i] = T(A(x[i]) / math::pow(bias + factor * sum, exponent));
}
