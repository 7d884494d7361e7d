// TopK: values and indices of the k largest or smallest elements, the first among equals; NaN is the largest.
#include "axes.cuh"

// Unsigned integers that have the order of the elements (radix keys). Both zeros are equal, and so are all NaNs.
template <class T>
struct Key {  // signed integers
  using Bits = unsigned;
  static __device__ Bits of(T x) { return unsigned(x) ^ 0x80000000u; }  // the sign bit: negative numbers come first
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
struct alignas(2 * sizeof(Bits)) Entry {
  Bits key;
  unsigned index;
};

// Return an entry that is behind all others.
template <class E>
__device__ __forceinline__ E last_entry() {
  return {decltype(E::key)(~decltype(E::key)(0)), 0xffffffffu};
}

template <class E>
__device__ __forceinline__ bool is_before(const E& a, const E& b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}

// Sort k entries with the whole block (bitonic sort). There is room for the next power of two.
template <class E>
__device__ __forceinline__ void sort(E* entries, unsigned k) {
  unsigned size = 1;
  while (size < k) size *= 2;
  for (unsigned i = k + threadIdx.x; i < size; i += blockDim.x) entries[i] = last_entry<E>();
  for (unsigned run = 2; run <= size; run *= 2) {
    for (unsigned step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (unsigned t = threadIdx.x; t < size / 2; t += blockDim.x) {
        const unsigned i = 2 * t - t % step, j = i + step;
        const E a = entries[i], b = entries[j];
        if (is_before(b, a) == ((i & run) == 0)) {
          entries[i] = b;
          entries[j] = a;
        }
      }
    }
  }
  __syncthreads();
}

template <class E>
constexpr int LOADS = 32 / sizeof(E);  // of a thread in flight

// Call `take` with each of the entries [begin, end), which `entry_of` returns by number.
template <class E, class EntryOf, class Take>
__device__ __forceinline__ void for_entries(unsigned begin, unsigned end, EntryOf entry_of, Take take) {
  for (unsigned base = begin + threadIdx.x; base < end; base += LOADS<E> * blockDim.x) {
    E loaded[LOADS<E>];
#pragma unroll
    for (int j = 0; j < LOADS<E>; ++j) {
      loaded[j] = entry_of(min(base + j * blockDim.x, end - 1));  // no branch, behind which a load would wait
    }
#pragma unroll
    for (int j = 0; j < LOADS<E>; ++j) {
      if (base + j * blockDim.x < end) take(loaded[j]);
    }
  }
}

// Radix selection by digits of 8 bits: first the digits of the key, then those of the index, the most significant
// first.
constexpr unsigned DIGIT_BITS = 8, BINS = 1 << DIGIT_BITS;

// The first digits of an entry. `mask` has the bits that are known.
template <class E>
struct Prefix {
  static constexpr unsigned KEY_DIGITS = sizeof(E::key), DIGITS = KEY_DIGITS + sizeof(E::index);
  E digits = {0, 0};
  E mask = {0, 0};

  __device__ __forceinline__ bool begins(const E& entry) const {
    return ((entry.key ^ digits.key) & mask.key) == 0 && ((entry.index ^ digits.index) & mask.index) == 0;
  }

  static __device__ __forceinline__ unsigned digit(const E& entry, unsigned number) {
    const unsigned digit = number < KEY_DIGITS ? unsigned(entry.key >> DIGIT_BITS * (KEY_DIGITS - 1 - number))
                                               : entry.index >> DIGIT_BITS * (DIGITS - 1 - number);
    return digit % BINS;
  }

  __device__ __forceinline__ void append(unsigned digit, unsigned number) {
    using Bits = decltype(E::key);
    if (number < KEY_DIGITS) {
      const unsigned shift = DIGIT_BITS * (KEY_DIGITS - 1 - number);
      digits.key |= Bits(digit) << shift;
      mask.key |= Bits(BINS - 1) << shift;
    } else {
      const unsigned shift = DIGIT_BITS * (DIGITS - 1 - number);
      digits.index |= digit << shift;
      mask.index |= (BINS - 1) << shift;
    }
  }
};

struct Bin {
  unsigned digit;
  unsigned before;  // entries in the bins before it
  unsigned size;
};

// Return the bin of a histogram that has the entry number `rank`, counted from 1. Each warp finds it by itself.
__device__ __forceinline__ Bin find_bin(const unsigned* histogram, unsigned rank) {
  constexpr unsigned LANE_BINS = BINS / 32;
  const unsigned lane = threadIdx.x % 32;
  unsigned sizes[LANE_BINS], total = 0;
#pragma unroll
  for (unsigned j = 0; j < LANE_BINS; ++j) {
    sizes[j] = histogram[lane * LANE_BINS + j];
    total += sizes[j];
  }
  unsigned end = total;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, end, step);
    if (lane >= step) end += other;
  }
  const int source = __ffs(__ballot_sync(0xffffffffu, end >= rank)) - 1;
  Bin bin = {lane * LANE_BINS, end - total, sizes[0]};
#pragma unroll
  for (unsigned j = 1; j < LANE_BINS; ++j) {
    if (bin.before + bin.size < rank) bin = {lane * LANE_BINS + j, bin.before + bin.size, sizes[j]};
  }
  return {__shfl_sync(0xffffffffu, bin.digit, source), __shfl_sync(0xffffffffu, bin.before, source),
          __shfl_sync(0xffffffffu, bin.size, source)};
}

// Shared memory of a selection: histograms of three digits, of which one is counted while slower warps still read the
// one before, and the next is set to zero; and the number of entries collected.
struct Selection {
  unsigned histograms[3][BINS];
  unsigned filled;
};

// Return a bound that exactly k of the `count` entries do not exceed. No two entries are equal; the bound need not be
// one of them.
template <class E>
__device__ __forceinline__ E bound_of(const E* entries, unsigned count, unsigned k, Selection& shared) {
  Prefix<E> prefix;
  for (unsigned i = threadIdx.x; i < BINS; i += blockDim.x) shared.histograms[0][i] = 0;
  __syncthreads();
  unsigned size = 0;
  for (unsigned number = 0; number < Prefix<E>::DIGITS && size != k; ++number) {
    unsigned* const histogram = shared.histograms[number % 3];
    for (unsigned i = threadIdx.x; i < BINS; i += blockDim.x) shared.histograms[(number + 1) % 3][i] = 0;
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
      const E entry = entries[i];
      if (prefix.begins(entry)) atomicAdd(histogram + Prefix<E>::digit(entry, number), 1u);
    }
    __syncthreads();
    const Bin bin = find_bin(histogram, k);
    prefix.append(bin.digit, number);
    k -= bin.before;
    size = bin.size;
  }
  return {decltype(E::key)(prefix.digits.key | ~prefix.mask.key), prefix.digits.index | ~prefix.mask.index};
}

// Move the first k of `count` entries to the beginning, in any order, and return their bound (`bound_of`).
template <class E>
__device__ __forceinline__ E keep_first(E* entries, unsigned count, unsigned k, Selection& shared) {
  const E bound = bound_of(entries, count, k, shared);
  if (threadIdx.x == 0) shared.filled = 0;
  for (unsigned base = 0; base < count; base += blockDim.x) {
    const unsigned i = base + threadIdx.x;
    const E entry = i < count ? entries[i] : last_entry<E>();
    __syncthreads();  // all entries that may now be replaced have been read
    if (i < count && !is_before(bound, entry)) entries[atomicAdd(&shared.filled, 1u)] = entry;
  }
  __syncthreads();
  return bound;
}

// Return the first of n entries to every thread.
template <class E, class EntryOf>
__device__ __forceinline__ E first_of(unsigned n, EntryOf entry_of) {
  E first = last_entry<E>();
  for_entries<E>(0, n, entry_of, [&](const E& entry) {
    if (is_before(entry, first)) first = entry;
  });
  const decltype(E::key) key = fold_row(first.key, Minimum());
  return {key, fold_row(first.key == key ? first.index : 0xffffffffu, Minimum())};
}

// Select the first k of n entries, which `entry_of` returns by number, and leave them at the beginning of `entries` in
// shared memory, in any order. No two entries are equal. There is room for `capacity` entries: all n, or at least k and
// four per thread. Entries that exceed the bound of earlier selections are skipped. The others are collected until the
// capacity is reached; then the first k of them are kept.
template <class E, class EntryOf>
__device__ __forceinline__ void select(E* entries, Selection& shared, unsigned n, unsigned k, unsigned capacity,
                                       EntryOf entry_of) {
  if (k == 1) {
    const E first = first_of<E>(n, entry_of);
    if (threadIdx.x == 0) entries[0] = first;
    __syncthreads();
    return;
  }
  const unsigned tile = LOADS<E> * blockDim.x;
  E bound = last_entry<E>();
  unsigned count = 0, next = 0;
  while (next < n) {
    if (threadIdx.x == 0) shared.filled = count;
    __syncthreads();
    do {
      const unsigned end = min(n, next + tile);
      for_entries<E>(next, end, entry_of, [&](const E& entry) {
        if (is_before(entry, bound)) entries[atomicAdd(&shared.filled, 1u)] = entry;
      });
      next = end;
      __syncthreads();
      count = shared.filled;
      __syncthreads();
    } while (next < n && count + tile <= capacity);
    if (count > k) {
      bound = keep_first(entries, count, k, shared);
      count = k;
    }
  }
}

constexpr unsigned RANKED = 256;  // the most entries that are ordered by computing their ranks; more are sorted

// Write the values of k entries, which `value_of` returns by index, and their indices: in the order of the entries, or
// of the indices if `by_index`.
template <class T, class Index, class E, class ValueOf>
__device__ __forceinline__ void write_selected(E* entries, unsigned k, T* values, Index* indices, long long to,
                                               bool by_index, ValueOf value_of) {
  if (by_index) {
    for (unsigned i = threadIdx.x; i < k; i += blockDim.x) entries[i].key = 0;
    __syncthreads();
  }
  if (k > RANKED) sort(entries, k);
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) {
    const E entry = entries[i];
    unsigned rank = i;
    if (k <= RANKED) {
      rank = 0;
      for (unsigned j = 0; j < k; ++j) rank += is_before(entries[j], entry);
    }
    values[rank * to] = value_of(entry.index);
    indices[rank * to] = Index(entry.index);
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
  OVGPU_SHARED(Selection, shared, [1]);
  const Offsets start = offsets_of(outer, blockIdx.x);
  x += start.from;
  select(entries, shared[0], n, k, capacity, [&](unsigned i) { return entry_of(x[i * from], i, greatest); });
  write_selected(entries, k, values + start.to, indices + start.to, to, by_index,
                 [&](unsigned i) { return x[i * from]; });
}

// The two stages for a few long rows, whose parts of `chunk` elements are divided among blocks: blockIdx.x is the part,
// blockIdx.y the row. The first stage writes the k best entries of each part, or all, to `candidates`
// [rows][gridDim.x][k], where the rest is behind all others; the second one selects from those.
template <class T>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk_parts(const T* x, Entry<typename Key<T>::Bits>* candidates, const MappedAxes outer, unsigned n, unsigned k,
               unsigned chunk, unsigned capacity, long long from, bool greatest) {
  using E = Entry<typename Key<T>::Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(Selection, shared, [1]);
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  candidates += (static_cast<unsigned long long>(blockIdx.y) * gridDim.x + blockIdx.x) * k;
  x += offsets_of(outer, blockIdx.y).from;
  select(entries, shared[0], size, min(k, size), capacity,
         [&](unsigned i) { return entry_of(x[(begin + i) * from], begin + i, greatest); });
  for (unsigned i = threadIdx.x; i < k; i += blockDim.x) candidates[i] = i < size ? entries[i] : last_entry<E>();
}

template <class T, class Index>
__global__ void __launch_bounds__(OVGPU_THREADS)
    topk_join(const T* x, const Entry<typename Key<T>::Bits>* candidates, T* values, Index* indices,
              const MappedAxes outer, unsigned count, unsigned k, unsigned capacity, long long from, long long to,
              bool by_index) {
  using E = Entry<typename Key<T>::Bits>;
  OVGPU_DYN_SHARED(E, entries);
  OVGPU_SHARED(Selection, shared, [1]);
  const Offsets start = offsets_of(outer, blockIdx.x);
  x += start.from;
  candidates += static_cast<unsigned long long>(blockIdx.x) * count;
  select(entries, shared[0], count, k, capacity, [&](unsigned i) { return candidates[i]; });
  write_selected(entries, k, values + start.to, indices + start.to, to, by_index,
                 [&](unsigned i) { return x[i * from]; });
}
