// State of one OS thread that runs kernels: its memory, and the progress of its blocks and threads.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <ctime>
#include <deque>
#include <memory>
#include <queue>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "cuda_emu_context.h"

#include "cuda_emu.h"  // after the standard headers, which use the names of its macros

namespace emu {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kSignalStackBytes = 64 * 1024;
constexpr size_t kStaticSharedLimit = 48 * 1024;
constexpr size_t kSharedLimit = 227 * 1024;
constexpr unsigned kMaxBlocks = 256;           // running at the same time
constexpr unsigned kMaxFibers = 256 * 256;     // existing at the same time
constexpr unsigned kGuardedFibers = 8 * 1024;  // each guard page costs two of the 65530 mappings of a process
constexpr unsigned kMaxSharedArrays = 64;
constexpr unsigned kMaxIdleRounds = 10000;
constexpr uint64_t kCanary = 0x5AFE57ACC0FFEE42;

// Pages of device memory that a kernel must not access, or only read, before it waits for the launches before it.
struct Guarded {
  uint64_t memory;
  uint64_t bytes;
  uint64_t readable;
};

// Device memory whose reads are counted, for each byte.
struct Counted {
  uint64_t memory;
  uint64_t bytes;
  uint32_t* reads;
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  uint64_t dynamic_shared;
  uint64_t max_dynamic_shared;
  unsigned order;  // order of threads between two barriers: 0 ascending, 1 descending, else a seed
  unsigned cooperative;
  unsigned cluster;  // blocks of a cluster
  unsigned landing;  // when asynchronous transfers land: see Transfers
  double seconds;  // limit of processor time; a kernel that takes longer fails
  const Guarded* guarded;
  uint64_t guarded_count;
  const Counted* counted;
  uint64_t counted_count;
  mutable uint64_t waited;  // result: whether a thread has waited for the launches before this one
};

struct LaunchError {
  char message[256];
  unsigned block[3];
  unsigned thread[3];
  uint64_t address;
};

using Kernel = void (*)(void** arguments);

// ---- memory of one OS thread -----------------------------------------------------------------------------
inline const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

inline void* reserve(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

inline void commit(void* address, size_t bytes) {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
    std::perror("CUDA emulator: mprotect");
    std::abort();
  }
}

// Shared memory and stacks lie far from each other and from everything else, so that wrong indices hit guard ranges.
struct Arena {
  size_t margin;
  size_t bytes;
  char* base;
  char* shared;  // per block that runs: static arrays, a gap, dynamic memory that ends at a gap
  char* stacks;
  const size_t dynamic_bytes = round_up(kSharedLimit, kPage);
  const size_t shared_stride = kStaticSharedLimit + dynamic_bytes + 2 * kPage;
  const size_t stack_stride = kStackBytes + kPage;

  Arena() {
    const size_t inner = kMaxBlocks * shared_stride + kMaxFibers * stack_stride + kPage;
    for (margin = size_t{1} << 36;; margin >>= 2) {
      bytes = 3 * margin + inner;
      base = static_cast<char*>(reserve(bytes));
      if (base != nullptr) break;
      if (margin < kPage) {
        std::perror("CUDA emulator: mmap");
        std::abort();
      }
    }
    shared = base + margin;
    stacks = shared + kMaxBlocks * shared_stride + margin;
  }
  ~Arena() { munmap(base, bytes); }
};

// An asynchronous copy from global to shared memory, or a store to the shared memory of another block, that is on its
// way. Until it lands, the target holds NaN.
struct Transfer {
  void* to;
  const void* from;  // null: `value`
  size_t bytes;
  Block* block;  // and thread that have issued it
  const Thread* thread;
  unsigned long long* left;  // bytes that the barrier of a store still expects
  unsigned holders;  // lists that hold it
  bool landed;
  alignas(16) char value[16];
};

// The transfers on their way. They land at any time between their issue and the wait that covers them, or the end of
// the block if there is none.
struct Transfers {
  enum Landing { EARLY, LATE };  // at once; as late as possible. Other values are seeds: each transfer draws its time
  using Due = std::pair<uint64_t, Transfer*>;

  std::deque<Transfer> pool;
  std::vector<Transfer*> free, stores;
  std::priority_queue<Due, std::vector<Due>, std::greater<Due>> due;
  uint64_t turn = 0, random = 0;

  void begin(unsigned landing, uint64_t block);
  void clear();
  Transfer* issue(void* to, const void* from, size_t bytes);
  bool schedule(Transfer* transfer, unsigned landing);
  void release(Transfer* transfer);
  unsigned next_random(unsigned limit);
};

struct Fiber {
  Context context;
  std::vector<Transfer*> copies;
  std::vector<size_t> groups;  // ends of the groups of copies
  char* stack;
  bool guarded;  // by a page below the stack; otherwise by a canary at its end

  bool intact() const { return guarded || std::memcmp(stack, &kCanary, sizeof(kCanary)) == 0; }
};

// A running block: there is one at a time, or all those of a cluster or a cooperative grid.
struct Run {
  Block block{};
  std::vector<Thread> threads;
  char* static_shared;
  char* dynamic_end;  // first byte of a gap
  size_t static_used = 0;
  size_t static_touched = kStaticSharedLimit;
  unsigned array_count = 0;
  const void* keys[kMaxSharedArrays];
  size_t offsets[kMaxSharedArrays];
  std::vector<Transfer*> unwaited;  // copies of threads that have ended
  bool done = false;
  bool waited = false;   // for the launches before this one
  bool relaxed = false;  // its arrival at the cluster released nothing
};

struct Worker {
  Arena arena;
  std::vector<std::unique_ptr<Run>> runs;
  Run* run = nullptr;
  std::vector<unsigned> order;  // order of the lanes of the running warp
  std::vector<unsigned> warp_order;
  std::vector<unsigned> run_order;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> free;
  Context scheduler;
  Kernel kernel = nullptr;
  void** arguments = nullptr;
  const LaunchConfig* config = nullptr;
  LaunchError* error = nullptr;
  size_t cursor = 0;             // position in `order` of the running thread
  bool failed = false;
  bool progress = false;         // a thread did more than poll
  volatile bool in_kernel = false;  // a fault or the time limit may abandon the running thread
  volatile bool expired = false;
  uint64_t random = 0;
  Transfers transfers;
  unsigned group_size = 0;  // blocks that run at the same time
  unsigned cluster_arrived = 0, cluster_phase = 0;  // threads at the cluster's barrier; how often all have been there
  bool open = true;         // the kernel may access guarded memory
  char* signal_stack;
  stack_t previous_stack{};
  timer_t timer;
  bool has_timer;

  Worker();
  ~Worker();
  void use_signal_stack();
  void set_time(double seconds);
  Run& take_run(unsigned index);
  Fiber* take_fiber();
  void free_fibers();
  unsigned next_random(unsigned limit);
  void arrange(std::vector<unsigned>& items, unsigned first, unsigned count);
  void fail_at(const Thread& thread, const char* format, ...) __attribute__((format(printf, 3, 4)));
  void switch_to(Thread& thread);
  void run_warp(unsigned warp);
  bool release_collectives(unsigned first, unsigned last);
  bool release_barrier();
  bool release_grid(unsigned count);
  void begin_block(Run& run, uint64_t index);
  void advance(Run& run);
  bool land(Transfer& transfer);
  bool land_or_fail(Transfer& transfer);
  void land_due();
  void end_block();
  void guard();
  void unguard();
  bool run_blocks(uint64_t first, unsigned count);
};

extern __thread Worker* worker;

void install_handlers();
void count_read(const void* from, size_t bytes);

}  // namespace emu
