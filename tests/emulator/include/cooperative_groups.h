// The part of cooperative groups that kernels use: whole-block and whole-grid barriers.
#pragma once
#include "../cuda_emu.h"

namespace cooperative_groups {

struct thread_block {
  void sync() const { __syncthreads(); }
  unsigned size() const { return emu::block->count; }
};

struct grid_group {
  void sync() const {
    __syncthreads();
    emu::wait_grid();
    __syncthreads();
  }
};

inline thread_block this_thread_block() { return {}; }
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
