// CUDA C++ on the host: kernels compile with g++ unmodified; a launch runs on one OS thread, a CUDA thread
// is a fiber that runs until it finishes or waits for others. The scheduler is in cuda_emu.cc.
#pragma once

#include <cstddef>
// Without the special functions of <cmath>, g++ takes a third less time for a small kernel.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define OVGPU_EMU 1

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
// A bare __shared__ array could be neither poisoned nor counted.
#define __shared__ _Pragma("GCC error \"declare shared memory with OVGPU_SHARED or OVGPU_DYN_SHARED\"")

#include "cuda_emu_types.h"

namespace emu {

// An idle thread polls memory: it goes on once every other thread has had its turn.
enum class State : uint8_t { Fresh, Ready, AtBlockBarrier, AtWarpCollective, AtGridBarrier, Idle, Done };

struct Fiber;

struct Thread {
  uint3 index;
  unsigned lane;
  unsigned warp;
  State state;
  int site;               // source line of the barrier or collective it waits at
  unsigned mask;          // lanes named by that collective
  unsigned participants;  // lanes that took part in the last finished collective
  bool arrived;           // at the cluster's barrier, for which it has not waited
  unsigned phase;         // of that barrier
  uint64_t offered[2];    // value given to the collective
  uint64_t published[2];  // the same once every named lane has arrived
  Fiber* fiber;
};

struct Block {
  uint3 index;
  dim3 block_dim;
  dim3 grid_dim;
  Thread* thread;   // the running thread
  Thread* threads;  // all threads, in linear order
  unsigned count;
  int votes;        // sum of the predicates offered to the last block-wide vote
  void* dynamic_shared;
};

// Initial-exec TLS of the one runtime library: a single register-relative load per access.
extern __thread Block* block;

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void wait_block(int site);
int vote_block(int predicate, int site);
void wait_warp(unsigned mask, int site);
void wait_grid();
void idle();
void* shared_array(const void* key, size_t bytes);

inline Thread& lane_of_warp(unsigned lane) { return block->threads[block->thread->warp * 32 + lane]; }

inline bool took_part(unsigned lane) { return block->thread->participants >> lane & 1; }

// Offers `value` to the lanes in `mask`; afterwards each of them may read the others' values.
template <class T>
inline void exchange(unsigned mask, const T& value, int site) {
  static_assert(sizeof(T) <= 16, "a shuffled value has at most 16 bytes");
  std::memcpy(block->thread->offered, &value, sizeof(T));
  wait_warp(mask, site);
}

// The value of a lane that took no part is undefined on a device; here it is poison.
template <class T>
inline T received(unsigned lane) {
  T value;
  if (took_part(lane)) {
    std::memcpy(&value, lane_of_warp(lane).published, sizeof(T));
  } else {
    std::memset(&value, 0xFB, sizeof(T));
  }
  return value;
}

inline int group_start(int lane, int width) { return lane & ~(width - 1); }

template <class T>
inline T shuffle(unsigned mask, T value, int source, int width, int site) {
  const int lane = block->thread->lane;
  exchange(mask, value, site);
  return received<T>(group_start(lane, width) + (source & (width - 1)));
}

template <class T>
inline T shuffle_xor(unsigned mask, T value, int lane_mask, int width, int site) {
  const int lane = block->thread->lane;
  const int source = lane ^ lane_mask;
  exchange(mask, value, site);
  return group_start(source, width) <= group_start(lane, width) ? received<T>(source) : value;
}

template <class T>
inline T shuffle_up(unsigned mask, T value, unsigned delta, int width, int site) {
  const int lane = block->thread->lane;
  const int source = lane - static_cast<int>(delta);
  exchange(mask, value, site);
  return source >= group_start(lane, width) ? received<T>(source) : value;
}

template <class T>
inline T shuffle_down(unsigned mask, T value, unsigned delta, int width, int site) {
  const int lane = block->thread->lane;
  const int source = lane + static_cast<int>(delta);
  exchange(mask, value, site);
  return source < group_start(lane, width) + width ? received<T>(source) : value;
}

inline unsigned ballot(unsigned mask, int predicate, int site) {
  exchange(mask, predicate != 0 ? 1u : 0u, site);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (took_part(lane)) votes |= received<unsigned>(lane) << lane;
  }
  return votes;
}

template <class T>
inline unsigned match_any(unsigned mask, T value, int site) {
  exchange(mask, value, site);
  unsigned equal = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (took_part(lane) && received<T>(lane) == value) equal |= 1u << lane;
  }
  return equal;
}

template <class T, class Combine>
inline T reduce(unsigned mask, T value, Combine combine, int site) {
  exchange(mask, value, site);
  T result = value;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (took_part(lane) && lane != block->thread->lane) result = combine(result, received<T>(lane));
  }
  return result;
}

// Gathers every lane's value, for host versions of warp-wide instructions such as mma.sync.
template <class T>
inline void gather(const T& value, T (&all)[32], int site) {
  exchange(0xFFFFFFFFu, value, site);
  for (unsigned lane = 0; lane < 32; ++lane) all[lane] = received<T>(lane);
}

}  // namespace emu

#define threadIdx (emu::block->thread->index)
#define blockIdx (emu::block->index)
#define blockDim (emu::block->block_dim)
#define gridDim (emu::block->grid_dim)
#define warpSize 32

#define __syncthreads() emu::wait_block(__LINE__)
#define __syncthreads_count(predicate) emu::vote_block((predicate) != 0, __LINE__)
#define __syncthreads_or(predicate) (emu::vote_block((predicate) != 0, __LINE__) != 0)
#define __syncthreads_and(predicate) (emu::vote_block((predicate) == 0, __LINE__) == 0)
#define __syncwarp(...) emu::wait_warp(emu::mask_or_all(__VA_ARGS__), __LINE__)

namespace emu {
inline unsigned mask_or_all(unsigned mask = 0xFFFFFFFFu) { return mask; }

// Arguments after `value` are (mask, value, selector[, width]); the macros below append the line.
#define OVGPU_EMU_SHUFFLE(name, function, selector_type)                                    \
  template <int site>                                                                       \
  struct name {                                                                             \
    template <class T>                                                                      \
    static T call(unsigned mask, T value, selector_type selector, int width = 32) {         \
      return function(mask, value, selector, width, site);                                  \
    }                                                                                       \
  };
OVGPU_EMU_SHUFFLE(Shuffle, shuffle, int)
OVGPU_EMU_SHUFFLE(ShuffleXor, shuffle_xor, int)
OVGPU_EMU_SHUFFLE(ShuffleUp, shuffle_up, unsigned)
OVGPU_EMU_SHUFFLE(ShuffleDown, shuffle_down, unsigned)
#undef OVGPU_EMU_SHUFFLE
}  // namespace emu

#define __shfl_sync emu::Shuffle<__LINE__>::call
#define __shfl_xor_sync emu::ShuffleXor<__LINE__>::call
#define __shfl_up_sync emu::ShuffleUp<__LINE__>::call
#define __shfl_down_sync emu::ShuffleDown<__LINE__>::call
#define __ballot_sync(mask, predicate) emu::ballot(mask, predicate, __LINE__)
#define __any_sync(mask, predicate) (emu::ballot(mask, predicate, __LINE__) != 0)
#define __all_sync(mask, predicate) (emu::ballot(mask, !(predicate), __LINE__) == 0)
#define __match_any_sync(mask, value) emu::match_any(mask, value, __LINE__)
#define __reduce_add_sync(mask, value) \
  emu::reduce(mask, value, [](auto a, auto b) { return a + b; }, __LINE__)
#define __reduce_max_sync(mask, value) \
  emu::reduce(mask, value, [](auto a, auto b) { return a < b ? b : a; }, __LINE__)
#define __reduce_min_sync(mask, value) \
  emu::reduce(mask, value, [](auto a, auto b) { return b < a ? b : a; }, __LINE__)

// The device definitions are in cuda_kernels/common.cuh. The lambda's static is one address per declaration
// and template instance, as a __shared__ variable is one object per function.
#define OVGPU_SHARED(T, name, dims)                        \
  T(&name) dims = *reinterpret_cast<T(*) dims>(emu::shared_array( \
      [] {                                                 \
        static char key;                                   \
        return static_cast<const void*>(&key);             \
      }(),                                                 \
      sizeof(T dims)))
#define OVGPU_DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(emu::block->dynamic_shared)

#include "cuda_emu_math.h"
#include "cuda_emu_ptx.h"
