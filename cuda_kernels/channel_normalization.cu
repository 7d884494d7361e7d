// Normalisation of groups of channels, and by the neighbours of each element.
#include "axes.cuh"

// The number, mean, and squared distances from it, summed, of some elements.
template <class A>
struct Moments {
  A count, mean, squares;
};

struct Merge {
  template <class A>
  __device__ __forceinline__ Moments<A> operator()(Moments<A> a, Moments<A> b) const {
    const A count = a.count + b.count, apart = b.mean - a.mean;
    const A part = count > A(0) ? b.count / count : A(0);
    return {count, a.mean + apart * part, a.squares + b.squares + apart * apart * a.count * part};
  }
};

// Of a part of a row, in every thread of the block.
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

// Where elements of a tensor lie that layers after a norm take: the norm's element, that of its channel in its image,
// that of its channel in all of them, or the only one. `kinds` has two bits for each tensor.
struct Places {
  unsigned long long element, image;
  unsigned channel, kinds;

  __device__ __forceinline__ unsigned long long operator()(int n) const {
    const unsigned kind = kinds >> 2 * n & 3;
    return kind == 0 ? element : kind == 1 ? image : kind == 2 ? channel : 0;
  }
};

// What is done with a result before it is written; elementwise layers after a norm generate others.
struct Nothing {
  template <class T>
  static __device__ __forceinline__ T of(T x, const Places&, const void*, const void*, const void*) {
    return x;
  }
};

// A part of `length` elements for each block: gridDim.x rows, the groups of every image, in gridDim.y parts. n elements
// are in a row and `area` in a channel; both, and `length`, are multiples of V. `inside`: whether `eps` is added to the
// variance, or to its root.
template <class T, int V, class F>
__device__ __forceinline__ void write_group(const T* x, T* out, const T* scale, const T* shift, unsigned n,
                                            unsigned area, unsigned groups, unsigned first, unsigned end,
                                            Moments<typename Accumulator<T>::Type> moments,
                                            typename Accumulator<T>::Type eps, bool inside, unsigned kinds,
                                            const void* p0, const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  const A variance = moments.squares / moments.count;
  const A factor = A(1) / (inside ? root(variance + eps) : root(variance) + eps);
  const unsigned each = n / area, channels = blockIdx.x % groups * each;
  const unsigned long long row = (unsigned long long)blockIdx.x * n;
  for (unsigned i = first + threadIdx.x * V; i < end; i += blockDim.x * V) {
    const unsigned channel = channels + i / area;
    const A times = factor * A(scale[channel]), plus = A(shift[channel]);
    Places places{row + i, (unsigned long long)blockIdx.x * each + i / area, channel, kinds};
    T part[V];
    load<V>(x + row + i, part);
#pragma unroll
    for (int j = 0; j < V; j++, places.element++) {
      part[j] = F::of(T((A(part[j]) - moments.mean) * times + plus), places, p0, p1, p2);
    }
    store<V>(part, out + row + i);
  }
}

// Rows of one part are normalised; of more, the moments of every part go to `partial`.
template <class T, int V, class F = Nothing>
__global__ void __launch_bounds__(OVGPU_THREADS)
    group_moments(const T* x, T* out, const T* scale, const T* shift,
                  typename Accumulator<T>::Type* partial, unsigned n, unsigned area, unsigned groups, unsigned length,
                  typename Accumulator<T>::Type eps, bool inside, unsigned kinds, const void* p0, const void* p1,
                  const void* p2) {
  using A = typename Accumulator<T>::Type;
  const unsigned long long row = (unsigned long long)blockIdx.x * n;
  const unsigned first = blockIdx.y * length, end = n - first < length ? n : first + length;
  const Moments<A> moments = moments_of<T, V, A>(x + row, first, end);
  if (gridDim.y == 1) {
    write_group<T, V, F>(x, out, scale, shift, n, area, groups, first, end, moments, eps, inside, kinds, p0, p1, p2);
  } else if (threadIdx.x == 0) {
    A* to = partial + 3ull * (blockIdx.x * gridDim.y + blockIdx.y);
    to[0] = moments.count;
    to[1] = moments.mean;
    to[2] = moments.squares;
  }
}

// The second half, with the moments of all parts of the rows.
template <class T, int V, class F = Nothing>
__global__ void __launch_bounds__(OVGPU_THREADS)
    group_parts(const T* x, T* out, const T* scale, const T* shift,
                const typename Accumulator<T>::Type* partial, unsigned n, unsigned area, unsigned groups,
                unsigned length, typename Accumulator<T>::Type eps, bool inside, unsigned kinds, const void* p0,
                const void* p1, const void* p2) {
  using A = typename Accumulator<T>::Type;
  const unsigned first = blockIdx.y * length, end = n - first < length ? n : first + length;
  Moments<A> moments{0, 0, 0};
  for (unsigned i = 0; i < gridDim.y; i++) {
    const A* from = partial + 3ull * (blockIdx.x * gridDim.y + i);
    moments = Merge()(moments, Moments<A>{from[0], from[1], from[2]});
  }
  write_group<T, V, F>(x, out, scale, shift, n, area, groups, first, end, moments, eps, inside, kinds, p0, p1, p2);
}

// Some axes of a dense array, and how far neighbours reach along each, before and after an element.
struct Region {
  long long rank, extent[6], stride[6], reach[6];
};

__device__ __forceinline__ float power(float x, float y) { return powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// Elements over a power of the sum of their neighbours' squares: LRN. A thread per element.
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
    const long long at = i / region.stride[axis] % region.extent[axis], reach = region.reach[axis];
    const long long low = at < reach ? 0 : at - reach, high = at + reach;
    first[axis] = low;
    count[axis] = (high < region.extent[axis] ? high + 1 : region.extent[axis]) - low;
    total *= count[axis];
    start += (low - at) * region.stride[axis];
  }
  A sum = 0;
  for (long long k = 0; k < total; k++) {
    long long rest = k, place = start;
#pragma unroll
    for (int axis = 5; axis >= 0; axis--) {
      if (axis >= region.rank) continue;
      place += rest % count[axis] * region.stride[axis];
      rest /= count[axis];
    }
    const A value = A(x[place]);
    sum += value * value;
  }
  out[i] = T(A(x[i]) / power(bias + factor * sum, exponent));
}
