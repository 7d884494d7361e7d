// TopK: values and indices of the k largest or smallest elements, the first among equals; NaN is the largest.
#include "axes.cuh"

// Unsigned integers that have the order of the elements (radix keys). Both zeros are equal, and so are all NaNs.
template <class T>
struct Key {  // signed integers
  using Bits = unsigned;
  static __device__ Bits of(T x) { return unsigned(x) ^ 0x80000000u; }
};
struct UnsignedKey {
  using Bits = unsigned;
  static __device__ Bits of(unsigned x) { return x; }
};
struct FloatKey {
  using Bits = unsigned;
  static __device__ Bits of(float x) {
    if (x != x) return 0xffffffffu;
    const unsigned bits = unsigned(__float_as_int(x == 0.f ? 0.f : x));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  }
};
template <>
struct Key<unsigned char> : UnsignedKey {};
template <>
struct Key<unsigned short> : UnsignedKey {};
template <>
struct Key<unsigned> : UnsignedKey {};
template <>
struct Key<float> : FloatKey {};
template <>
struct Key<__half> : FloatKey {};
template <>
struct Key<__nv_bfloat16> : FloatKey {};
template <>
struct Key<long long> {
  using Bits = unsigned long long;
  static __device__ Bits of(long long x) { return Bits(x) ^ 1ull << 63; }
};
template <>
struct Key<unsigned long long> {
  using Bits = unsigned long long;
  static __device__ Bits of(unsigned long long x) { return x; }
};
template <>
struct Key<double> {
  using Bits = unsigned long long;
  static __device__ Bits of(double x) {
    if (x != x) return ~0ull;
    const Bits bits = Bits(__double_as_longlong(x == 0. ? 0. : x));
    return bits >> 63 ? ~bits : bits | 1ull << 63;
  }
};

template <class Bits>
struct Entry {
  Bits key;
  unsigned index;
};

struct ByKey {
  template <class E>
  __device__ __forceinline__ bool operator()(const E& a, const E& b) const {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
  }
};

struct ByIndex {
  template <class E>
  __device__ __forceinline__ bool operator()(const E& a, const E& b) const {
    return a.index < b.index;
  }
};

// Sort `size` entries, a power of two, with the whole block (bitonic sort).
template <class E, class Before>
__device__ __forceinline__ void sort(E* entries, unsigned size, Before before) {
  for (unsigned run = 2; run <= size; run *= 2) {
    for (unsigned step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (unsigned t = threadIdx.x; t < size / 2; t += blockDim.x) {
        const unsigned i = 2 * t - t % step, j = i + step;
        const E a = entries[i], b = entries[j];
        if (before(b, a) == ((i & run) == 0)) {
          entries[i] = b;
          entries[j] = a;
        }
      }
    }
  }
  __syncthreads();
}

// Select from one row of n elements per block. Shared memory has `capacity` entries, a power of two: the whole row, or
// at least k and four per thread. Elements worse than the k-th best so far are skipped; the others are collected until
// the capacity is reached, then sorted.
template <class T, class Index>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk(const T* x, T* values, Index* indices, const MappedAxes outer, unsigned n, unsigned k, unsigned capacity,
         long long from, long long to, bool greatest, bool by_index) {
  using Bits = typename Key<T>::Bits;
  using E = Entry<Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(unsigned, filled, [1]);
  const unsigned tile = 4 * blockDim.x;
  const E last{Bits(~Bits(0)), 0xffffffffu};
  const Offsets start = offsets_of(outer, blockIdx.x);
  x += start.from;
  E worst = last;
  if (threadIdx.x == 0) filled[0] = 0;
  __syncthreads();
  for (unsigned base = 0; base < n; base += tile) {
    for (unsigned i = base + threadIdx.x; i < min(n, base + tile); i += blockDim.x) {
      const Bits key = Key<T>::of(x[i * from]);
      const E entry{greatest ? Bits(~key) : key, i};
      // The order of arrival does not matter: no two entries are equal.
      if (ByKey()(entry, worst)) entries[atomicAdd(filled, 1u)] = entry;
    }
    __syncthreads();
    const unsigned count = filled[0];
    if (base + tile >= n || count + tile > capacity) {
      for (unsigned i = count + threadIdx.x; i < capacity; i += blockDim.x) entries[i] = last;
      sort(entries, capacity, ByKey());
      if (count >= k && k > 0) worst = entries[k - 1];
      if (threadIdx.x == 0) filled[0] = min(count, k);
    }
    __syncthreads();
  }
  if (by_index) {
    unsigned size = 1;
    while (size < k) size *= 2;
    for (unsigned i = k + threadIdx.x; i < size; i += blockDim.x) entries[i] = last;
    sort(entries, size, ByIndex());
  }
  values += start.to;
  indices += start.to;
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
    const unsigned index = entries[i].index;
    values[i * to] = x[index * from];
    indices[i * to] = Index(index);
  }
}
