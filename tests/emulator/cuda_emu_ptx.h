// The instructions of cuda_kernels/ptx.cuh and barrier.cuh on the host.
#pragma once

namespace emu {

// Asynchronous copies land at any time until their thread waits for them. Until then the target holds NaN.
void copy_later(void* to, const void* from, size_t bytes);
// Copies are in groups; wait for those of all groups but the last `count`.
void commit_copies();
void complete_copies(size_t count);

void wait_for_launches(int site);

// Blocks of a cluster run at the same time. A store to another one lands at any time until that one waits for it.
unsigned blocks_of_cluster();
void arrive_at_cluster(bool is_reused, int site);
void wait_for_cluster(int site);
void check_expectation();
void store_later(void* own, const void* value, size_t bytes, unsigned rank, unsigned long long* own_left);
void land_stores(const unsigned long long* left);

template <bool transposed>
inline void load_matrices(const void* row, unsigned (&to)[4], int site) {
  if (reinterpret_cast<uintptr_t>(row) % 16) fail("ldmatrix of a row at %p, which is not a multiple of 16 bytes", row);
  exchange(0xFFFFFFFFu, row, site);
  const unsigned lane = block->thread->lane, first = lane % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    uint16_t pair[2];
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned r = transposed ? first + i : lane / 4, c = transposed ? lane / 4 : first + i;
      pair[i] = static_cast<const uint16_t*>(received<const void*>(matrix * 8 + r))[c];
    }
    std::memcpy(&to[matrix], pair, sizeof(pair));
  }
}

template <class T>
struct Registers {
  T at[8];
};

// Each lane sums its own elements in double precision and rounds the result once.
template <size_t K>
inline void add_rows(const float (&left)[2][K], const float (&right)[2][K], float (&sum)[4]) {
  for (unsigned n = 0; n < 4; ++n) {
    double all = sum[n];
    for (unsigned k = 0; k < K; ++k) all += double(left[n / 2][k]) * right[n % 2][k];
    sum[n] = static_cast<float>(all);
  }
}

template <class T>
inline void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4], int site) {
  using A = Registers<T>;
  struct B {
    T at[4];
  };
  const unsigned lane = block->thread->lane, row = lane / 4, column = lane % 4 * 2;
  float left[2][16], right[2][16];  // rows of a, columns of b
  exchange(0xFFFFFFFFu, a, site);
  for (unsigned k = 0; k < 16; ++k) {
    const A element = received<A>(row * 4 + k % 8 / 2);
    for (unsigned i = 0; i < 2; ++i) left[i][k] = float(element.at[k / 8 * 4 + i * 2 + k % 2]);
  }
  const unsigned b[2] = {b0, b1};
  exchange(0xFFFFFFFFu, b, site);
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned j = 0; j < 2; ++j) {
      right[j][k] = float(received<B>((column + j) * 4 + k % 8 / 2).at[k / 8 * 2 + k % 2]);
    }
  }
  add_rows(left, right, sum);
}

// TF32: a register holds one f32 element, whose low 13 bits are ignored.
template <>
inline void multiply_add<float>(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4], int site) {
  struct A {
    unsigned at[4];
  };
  struct B {
    unsigned at[2];
  };
  const auto truncated = [](unsigned bits) { return __uint_as_float(bits & 0xffffe000u); };
  const unsigned lane = block->thread->lane, row = lane / 4, column = lane % 4 * 2;
  float left[2][8], right[2][8];
  exchange(0xFFFFFFFFu, a, site);
  for (unsigned k = 0; k < 8; ++k) {
    for (unsigned i = 0; i < 2; ++i) left[i][k] = truncated(received<A>(row * 4 + k % 4).at[k / 4 * 2 + i]);
  }
  const unsigned b[2] = {b0, b1};
  exchange(0xFFFFFFFFu, b, site);
  for (unsigned k = 0; k < 8; ++k) {
    for (unsigned j = 0; j < 2; ++j) right[j][k] = truncated(received<B>((column + j) * 4 + k % 4).at[k / 4]);
  }
  add_rows(left, right, sum);
}

// 8-bit integers: a register holds four elements. The sum wraps around.
template <class T>
inline void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, int (&sum)[4], int site) {
  struct A {
    int8_t at[4][4];
  };
  struct B {
    int8_t at[2][4];
  };
  const unsigned lane = block->thread->lane, row = lane / 4, column = lane % 4 * 2;
  int left[2][32], right[2][32];  // rows of a, columns of b
  exchange(0xFFFFFFFFu, a, site);
  for (unsigned k = 0; k < 32; ++k) {
    for (unsigned i = 0; i < 2; ++i) left[i][k] = received<A>(row * 4 + k % 16 / 4).at[k / 16 * 2 + i][k % 4];
  }
  const unsigned b[2] = {b0, b1};
  exchange(0xFFFFFFFFu, b, site);
  for (unsigned k = 0; k < 32; ++k) {
    for (unsigned j = 0; j < 2; ++j) right[j][k] = received<B>((column + j) * 4 + k % 16 / 4).at[k / 16][k % 4];
  }
  for (unsigned n = 0; n < 4; ++n) {
    for (unsigned k = 0; k < 32; ++k) sum[n] += left[n / 2][k] * right[n % 2][k];
  }
}

}  // namespace emu

inline float exp2_approximate(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}
inline void wait_for_launches() { emu::wait_for_launches(__LINE__); }
inline void start_next_launch() {}
inline unsigned rank_in_cluster() { return blockIdx.x % emu::blocks_of_cluster(); }
inline unsigned number_of_cluster() { return blockIdx.x / emu::blocks_of_cluster(); }
enum SharedMemory { UNTOUCHED, REUSED };
template <SharedMemory MEMORY>
inline void arrive_at_cluster() {
  emu::arrive_at_cluster(MEMORY == REUSED, __LINE__);
}
inline void wait_for_cluster() { emu::wait_for_cluster(__LINE__); }
struct ExpectedStores {
  unsigned long long left;  // bytes

  void expect(unsigned bytes) {
    emu::check_expectation();
    left = bytes;
  }
  void store(uint4* to, const uint4& value, unsigned rank) {
    emu::store_later(to, &value, sizeof(value), rank, &left);
  }
  void wait() {
    emu::land_stores(&left);
    while (*static_cast<const volatile unsigned long long*>(&left)) {
      emu::idle();
      emu::land_stores(&left);
    }
  }
};
inline unsigned increment_acquire_release(unsigned* at, unsigned limit) { return atomicInc(at, limit); }
inline void load_matrices(const void* row, unsigned (&to)[4]) { emu::load_matrices<false>(row, to, __LINE__); }
inline void load_transposed(const void* row, unsigned (&to)[4]) { emu::load_matrices<true>(row, to, __LINE__); }
template <class T>
inline void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4]) {
  emu::multiply_add<T>(a, b0, b1, sum, __LINE__);
}
template <class T>
inline void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, int (&sum)[4]) {
  emu::multiply_add<T>(a, b0, b1, sum, __LINE__);
}
template <int BYTES = 16>
inline void copy_async(void* to, const void* from, bool there) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "sizes of cp.async");
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % BYTES) {
    emu::fail("cp.async from %p to %p, which are not multiples of %d bytes", from, to, BYTES);
  }
  static const char zeros[BYTES] = {};
  emu::copy_later(to, there ? from : zeros, BYTES);
}
inline void wait_copies() {
  emu::commit_copies();
  emu::complete_copies(0);
}
inline void commit_copies() { emu::commit_copies(); }
template <int COUNT>
inline void wait_copies_but() {
  emu::complete_copies(COUNT);
}
inline void arrive(unsigned* counter) { atomicAdd(counter, 1u); }
inline void wait_for_arrivals(const unsigned* counter, unsigned count) {
  while (*static_cast<const volatile unsigned*>(counter) < count) emu::idle();
}
