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

// Return an entry that is behind all others.
template <class E>
__device__ __forceinline__ E last_entry() {
  return {decltype(E::key)(~decltype(E::key)(0)), 0xffffffffu};
}

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

// Select the k first of n entries by key, which `entry_of` returns by number, and leave them at the beginning of
// `entries` in shared memory, in that order. It has `capacity` entries, a power of two: all n, or at least k and four per
// thread. Entries worse than the k-th best so far are skipped; the others are collected until the capacity is reached,
// then sorted.
template <class E, class EntryOf>
__device__ __forceinline__ void select(E* entries, unsigned* filled, unsigned n, unsigned k, unsigned capacity,
                                       EntryOf entry_of) {
  const unsigned tile = 4 * blockDim.x;
  const E last = last_entry<E>();
  E worst = last;
  if (threadIdx.x == 0) filled[0] = 0;
  __syncthreads();
  for (unsigned base = 0; base < n; base += tile) {
    for (unsigned i = base + threadIdx.x; i < min(n, base + tile); i += blockDim.x) {
      const E entry = entry_of(i);
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
}

// Write the k selected elements of a row, whose values `value_of` returns, and their indices, in the order of either.
template <class T, class Index, class E, class ValueOf>
__device__ __forceinline__ void write_selected(E* entries, unsigned k, T* values, Index* indices, long long to,
                                               bool by_index, ValueOf value_of) {
  if (by_index) {
    unsigned size = 1;
    while (size < k) size *= 2;
    for (unsigned i = k + threadIdx.x; i < size; i += blockDim.x) entries[i] = last_entry<E>();
    sort(entries, size, ByIndex());
  }
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
    values[i * to] = value_of(entries[i]);
    indices[i * to] = Index(entries[i].index);
  }
}

template <class T>
__device__ __forceinline__ Entry<typename Key<T>::Bits> entry_of(T x, unsigned index, bool greatest) {
  const typename Key<T>::Bits key = Key<T>::of(x);
  return {greatest ? typename Key<T>::Bits(~key) : key, index};
}

// Select from one row of n elements per block; see `select` for `capacity`.
template <class T, class Index>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk(const T* x, T* values, Index* indices, const MappedAxes outer, unsigned n, unsigned k, unsigned capacity,
         long long from, long long to, bool greatest, bool by_index) {
  using E = Entry<typename Key<T>::Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(unsigned, filled, [1]);
  const Offsets start = offsets_of(outer, blockIdx.x);
  x += start.from;
  select(entries, filled, n, k, capacity, [&](unsigned i) { return entry_of(x[i * from], i, greatest); });
  write_selected(entries, k, values + start.to, indices + start.to, to, by_index,
                 [&](const E& entry) { return x[entry.index * from]; });
}

// The two stages for a few long rows, whose parts of `chunk` elements are divided among blocks: blockIdx.x is the part,
// blockIdx.y the row. The first stage writes the k best elements of each part, or all, to `values` and `indices`
// [rows][gridDim.x][k], where the rest of the indices is NOTHING; the second one selects from those.
constexpr unsigned NOTHING = 0xffffffffu;

template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk_parts(const T* x, T* values, unsigned* indices, const MappedAxes outer, unsigned n, unsigned k, unsigned chunk,
               unsigned capacity, long long from, bool greatest) {
  using E = Entry<typename Key<T>::Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(unsigned, filled, [1]);
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  const unsigned long long part = (static_cast<unsigned long long>(blockIdx.y) * gridDim.x + blockIdx.x) * k;
  x += offsets_of(outer, blockIdx.y).from;
  select(entries, filled, size, min(k, size), capacity,
         [&](unsigned i) { return entry_of(x[(begin + i) * from], begin + i, greatest); });
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
    indices[part + i] = i < size ? entries[i].index : NOTHING;
    if (i < size) values[part + i] = x[entries[i].index * from];
  }
}

// Equal elements have the order of their indices among the `count` candidates of a row as well.
template <class T, class Index>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk_join(const T* part_values, const unsigned* part_indices, T* values, Index* indices, const MappedAxes outer,
              unsigned count, unsigned k, unsigned capacity, long long to, bool greatest, bool by_index) {
  using E = Entry<typename Key<T>::Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(unsigned, filled, [1]);
  const long long start = offsets_of(outer, blockIdx.x).to;
  part_values += static_cast<unsigned long long>(blockIdx.x) * count;
  part_indices += static_cast<unsigned long long>(blockIdx.x) * count;
  select(entries, filled, count, k, capacity, [&](unsigned i) {
    return part_indices[i] == NOTHING ? last_entry<E>() : entry_of(part_values[i], i, greatest);
  });
  // From here on, keys are the numbers of the candidates.
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) entries[i] = {entries[i].index, part_indices[entries[i].index]};
  __syncthreads();
  write_selected(entries, k, values + start, indices + start, to, by_index,
                 [&](const E& entry) { return part_values[entry.key]; });
}
