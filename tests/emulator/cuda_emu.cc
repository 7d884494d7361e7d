// The scheduler of the host execution: fibers, barriers, shared memory, faults, device address space.
#include "cuda_emu_context.h"
#include "cuda_emu.h"

#include <csignal>
#include <cstdarg>
#include <sched.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace emu {

// ---- one OS thread's state -------------------------------------------------------------------------------
static const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kSignalStackBytes = 64 * 1024;
constexpr size_t kStaticSharedLimit = 48 * 1024;
constexpr size_t kSharedLimit = 227 * 1024;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxIdleTurns = 1u << 22;

struct Fiber {
  Context context;
  char* stack;
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  uint64_t dynamic_shared;
  uint64_t max_dynamic_shared;
  unsigned order;  // of the threads between two barriers: 0 ascending, 1 descending, else a seed
  unsigned cooperative;
};

struct LaunchError {
  char message[256];
  unsigned block[3];
  unsigned thread[3];
  uint64_t address;
};

// Blocks that arrived, over all generations: the n-th barrier is open once n * blocks have come.
struct GridBarrier {
  uint64_t blocks;
  uint64_t arrived;
};

using Kernel = void (*)(void** arguments);

struct Worker;
__thread Block* block = nullptr;
static __thread Worker* worker = nullptr;

static char* map_with_guard(size_t bytes, bool guard_below) {
  char* base = static_cast<char*>(
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) return nullptr;
  mprotect(guard_below ? base : base + bytes, kPage, PROT_NONE);
  return guard_below ? base + kPage : base;
}

struct Worker {
  Block state{};
  std::vector<Thread> threads;
  std::vector<unsigned> order;  // of the lanes of the running warp
  std::vector<unsigned> warp_order;
  std::vector<Fiber*> fibers;  // all ever made
  std::vector<Fiber*> free;
  Context scheduler;
  Kernel kernel = nullptr;
  void** arguments = nullptr;
  const LaunchConfig* config = nullptr;
  LaunchError* error = nullptr;
  GridBarrier* grid_barrier = nullptr;
  const bool* stop = nullptr;  // another block of the cooperative grid has failed
  size_t cursor = 0;           // position in `order` of the running thread
  bool failed = false;
  unsigned idle_turns = 0;
  uint64_t random = 0;

  char* static_shared;
  size_t static_used = 0;
  size_t static_touched = 0;
  std::vector<std::pair<const void*, size_t>> static_arrays;
  const size_t dynamic_bytes = (kSharedLimit + kPage - 1) / kPage * kPage;
  char* dynamic_end;  // first byte of the guard page
  char* signal_stack;

  Worker() {
    static_shared = map_with_guard(kStaticSharedLimit, false);
    dynamic_end = map_with_guard(dynamic_bytes, false) + dynamic_bytes;
    signal_stack = map_with_guard(kSignalStackBytes, true);
    static_touched = kStaticSharedLimit;
    stack_t alternate{};
    alternate.ss_sp = signal_stack;
    alternate.ss_size = kSignalStackBytes;
    sigaltstack(&alternate, nullptr);
  }

  ~Worker() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    for (Fiber* fiber : fibers) {
      munmap(fiber->stack - kPage, kStackBytes + kPage);
      delete fiber;
    }
    munmap(static_shared, kStaticSharedLimit + kPage);
    munmap(dynamic_end - dynamic_bytes, dynamic_bytes + kPage);
    munmap(signal_stack - kPage, kSignalStackBytes + kPage);
    worker = nullptr;
  }

  Fiber* take_fiber();
  unsigned next_random(unsigned limit);
  void arrange(std::vector<unsigned>& items, unsigned first, unsigned count);
  void run_fiber(Fiber* fiber);
  void run_warp(unsigned warp);
  bool release_collectives(unsigned first, unsigned last);
  void release_barrier();
  void begin_block(unsigned x, unsigned y, unsigned z);
  bool run_block(unsigned x, unsigned y, unsigned z);
};

// ---- failing ---------------------------------------------------------------------------------------------
static void leave_kernel() {
  worker->failed = true;
  Context abandoned;
  switch_context(abandoned, worker->scheduler);
  std::abort();
}

void fail(const char* format, ...) {
  LaunchError& error = *worker->error;
  va_list values;
  va_start(values, format);
  vsnprintf(error.message, sizeof(error.message), format, values);
  va_end(values);
  const uint3 thread = block->thread->index;
  const uint3 index = block->index;
  error.block[0] = index.x, error.block[1] = index.y, error.block[2] = index.z;
  error.thread[0] = thread.x, error.thread[1] = thread.y, error.thread[2] = thread.z;
  leave_kernel();
  __builtin_unreachable();
}

static struct sigaction previous_actions[32];
static const int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};

static void on_fault(int signal, siginfo_t* info, void* context) {
  if (worker == nullptr || block == nullptr) {  // not ours: hand over to whoever was there before
    const struct sigaction& previous = previous_actions[signal];
    if (previous.sa_flags & SA_SIGINFO) {
      previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
      previous.sa_handler(signal);
    } else {
      std::signal(signal, SIG_DFL);
    }
    return;
  }
  worker->error->address = reinterpret_cast<uint64_t>(info->si_addr);
  if (signal == SIGILL) fail("array index out of bounds");
  if (signal == SIGFPE) fail("integer division by zero");
  const char* address = static_cast<const char*>(info->si_addr);
  for (const Fiber* fiber : worker->fibers) {
    if (address < fiber->stack && address >= fiber->stack - kPage) fail("stack overflow of a thread");
  }
  if (address >= worker->dynamic_end && address < worker->dynamic_end + kPage) {
    fail("access past the end of dynamic shared memory");
  }
  fail("illegal memory access at %p", info->si_addr);
}

static void install_handlers() {
  for (int signal : kSignals) {
    struct sigaction current;
    sigaction(signal, nullptr, &current);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault) continue;
    previous_actions[signal] = current;
    struct sigaction ours{};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, &ours, nullptr);
  }
}

// ---- what kernels call -----------------------------------------------------------------------------------
static void park(State state, int site) {
  Thread* thread = block->thread;
  thread->state = state;
  thread->site = site;
  switch_context(thread->fiber->context, worker->scheduler);
}

void wait_block(int site) {
  block->thread->offered[0] = 0;
  park(State::AtBlockBarrier, site);
}

int vote_block(int predicate, int site) {
  block->thread->offered[0] = static_cast<uint64_t>(predicate);
  park(State::AtBlockBarrier, site);
  return block->votes;
}

void wait_warp(unsigned mask, int site) {
  Thread* thread = block->thread;
  if (!(mask >> thread->lane & 1)) {
    fail("line %d: lane %u is not in the mask 0x%08x of its warp collective", site, thread->lane, mask);
  }
  thread->mask = mask;
  park(State::AtWarpCollective, site);
}

void wait_grid() {
  if (worker->grid_barrier == nullptr) fail("grid barrier in a launch that is not cooperative");
  if (block->thread != block->threads) return;
  GridBarrier& barrier = *worker->grid_barrier;
  const uint64_t turn = __atomic_fetch_add(&barrier.arrived, 1, __ATOMIC_SEQ_CST) / barrier.blocks;
  while (__atomic_load_n(&barrier.arrived, __ATOMIC_SEQ_CST) < (turn + 1) * barrier.blocks) idle();
}

void idle() {
  if (worker->stop != nullptr) {
    if (__atomic_load_n(worker->stop, __ATOMIC_RELAXED)) fail("another block of the grid has failed");
  } else if (++worker->idle_turns > kMaxIdleTurns) {
    fail("waits for another block in a launch that is not cooperative");
  }
  sched_yield();
}

void* shared_array(const void* key, size_t bytes) {
  Worker& w = *worker;
  for (const auto& [known, offset] : w.static_arrays) {
    if (known == key) return w.static_shared + offset;
  }
  const size_t offset = (w.static_used + 15) & ~size_t{15};
  if (offset + bytes > kStaticSharedLimit) fail("static shared memory exceeds 48 KB");
  const size_t total = offset + bytes + w.config->dynamic_shared;
  if (total > kSharedLimit) fail("static and dynamic shared memory exceed 227 KB");
  if (total > kStaticSharedLimit && w.config->max_dynamic_shared < w.config->dynamic_shared) {
    fail("shared memory exceeds 48 KB; set max_dynamic_shared_size_bytes");
  }
  w.static_used = offset + bytes;
  w.static_arrays.emplace_back(key, offset);
  return w.static_shared + offset;
}

// ---- scheduler -------------------------------------------------------------------------------------------
static void start(Thread& thread, Fiber* fiber) {
  thread.fiber = fiber;
  block->thread = &thread;
}

// A fiber whose thread ended without a barrier continues with the next fresh one: no switch between them.
static void fiber_main() {
  for (;;) {
    Fiber* self = block->thread->fiber;
    worker->kernel(worker->arguments);
    block->thread->state = State::Done;
    const size_t next = worker->cursor + 1;
    if (next < worker->order.size() && block->threads[worker->order[next]].state == State::Fresh) {
      worker->cursor = next;
      start(block->threads[worker->order[next]], self);
      continue;
    }
    worker->free.push_back(self);
    switch_context(self->context, worker->scheduler);
    std::abort();
  }
}

Fiber* Worker::take_fiber() {
  Fiber* fiber;
  if (free.empty()) {
    fiber = new Fiber{};
    fiber->stack = map_with_guard(kStackBytes, true);
    fibers.push_back(fiber);
  } else {
    fiber = free.back();
    free.pop_back();
  }
  prepare_context(fiber->context, fiber->stack, kStackBytes, fiber_main);
  return fiber;
}

unsigned Worker::next_random(unsigned limit) {
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>(random >> 33) % limit;
}

void Worker::arrange(std::vector<unsigned>& items, unsigned first, unsigned count) {
  items.resize(count);
  for (unsigned i = 0; i < count; ++i) items[i] = first + (config->order == 1 ? count - 1 - i : i);
  if (config->order > 1) {
    for (unsigned i = count; i > 1; --i) std::swap(items[i - 1], items[next_random(i)]);
  }
}

void Worker::run_fiber(Fiber* fiber) { switch_context(scheduler, fiber->context); }

// Lets a group of lanes go on when all the lanes it names are at the same collective.
bool Worker::release_collectives(unsigned first, unsigned last) {
  bool released = false;
  for (unsigned i = first; i < last; ++i) {
    Thread& thread = threads[i];
    if (thread.state != State::AtWarpCollective) continue;
    unsigned group = 0;
    bool complete = true;
    for (unsigned j = first; j < last; ++j) {
      const Thread& other = threads[j];
      if (!(thread.mask >> other.lane & 1) || other.state == State::Done) continue;
      complete &= other.state == State::AtWarpCollective && other.mask == thread.mask && other.site == thread.site;
      group |= 1u << other.lane;
    }
    if (!complete) continue;
    for (unsigned j = first; j < last; ++j) {
      if (!(group >> threads[j].lane & 1)) continue;
      threads[j].published[0] = threads[j].offered[0];
      threads[j].published[1] = threads[j].offered[1];
      threads[j].participants = group;
      threads[j].state = State::Ready;
    }
    released = true;
  }
  return released;
}

void Worker::run_warp(unsigned warp) {
  const unsigned first = warp * 32;
  const unsigned last = first + 32 < state.count ? first + 32 : state.count;
  for (;;) {
    arrange(order, first, last - first);
    for (cursor = 0; cursor < order.size() && !failed; ++cursor) {
      Thread& thread = threads[order[cursor]];
      if (thread.state == State::Fresh) {
        start(thread, take_fiber());
        run_fiber(thread.fiber);
      } else if (thread.state == State::Ready) {
        state.thread = &thread;
        run_fiber(thread.fiber);
      }
    }
    if (failed || release_collectives(first, last)) {
      if (failed) return;
      continue;
    }
    for (unsigned i = first; i < last; ++i) {
      if (threads[i].state != State::AtWarpCollective) continue;
      state.thread = &threads[i];
      snprintf(error->message, sizeof(error->message),
               "line %d: warp collective with mask 0x%08x that some of its lanes never reach (divergent)",
               threads[i].site, threads[i].mask);
      failed = true;
      return;
    }
    return;
  }
}

void Worker::release_barrier() {
  state.votes = 0;
  const Thread* waiting = nullptr;
  Thread* done = nullptr;
  for (unsigned i = 0; i < state.count; ++i) {
    Thread& thread = threads[i];
    if (thread.state == State::Done) {
      done = &thread;
      continue;
    }
    if (waiting != nullptr && thread.site != waiting->site) {
      state.thread = &thread;
      snprintf(error->message, sizeof(error->message),
               "divergent barrier: threads wait at the __syncthreads of lines %d and %d", waiting->site, thread.site);
      failed = true;
      return;
    }
    waiting = &thread;
    state.votes += static_cast<int>(thread.offered[0]);
    thread.state = State::Ready;
  }
  if (waiting != nullptr && done != nullptr) {
    state.thread = done;
    snprintf(error->message, sizeof(error->message),
             "divergent barrier: the __syncthreads of line %d is not reached by every thread of the block",
             waiting->site);
    failed = true;
  }
}

void Worker::begin_block(unsigned x, unsigned y, unsigned z) {
  const unsigned* size = config->block;
  state.index = {x, y, z};
  state.block_dim = dim3(size[0], size[1], size[2]);
  state.grid_dim = dim3(config->grid[0], config->grid[1], config->grid[2]);
  state.count = size[0] * size[1] * size[2];
  const size_t in_use = (config->dynamic_shared + 15) & ~uint64_t{15};
  state.dynamic_shared = dynamic_end - in_use;
  std::memset(state.dynamic_shared, 0xFB, in_use);
  std::memset(static_shared, 0xFB, static_touched);
  static_used = 0;
  static_arrays.clear();
  threads.resize(state.count);
  state.threads = threads.data();
  free = fibers;
  for (unsigned i = 0; i < state.count; ++i) {
    Thread& thread = threads[i];
    thread.index = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    thread.lane = i % 32;
    thread.warp = i / 32;
    thread.state = State::Fresh;
    thread.participants = 0;
    thread.fiber = nullptr;
  }
}

bool Worker::run_block(unsigned x, unsigned y, unsigned z) {
  begin_block(x, y, z);
  failed = false;
  idle_turns = 0;
  random = config->order * 2654435761u + x + 131u * y + 17161u * z;
  block = &state;
  for (bool all_done = false; !failed && !all_done;) {
    arrange(warp_order, 0, (state.count + 31) / 32);
    for (unsigned warp : warp_order) {
      run_warp(warp);
      if (failed) break;
    }
    if (failed) break;
    release_barrier();
    all_done = true;
    for (unsigned i = 0; i < state.count; ++i) all_done &= threads[i].state == State::Done;
  }
  if (failed) {
    const uint3 thread = state.thread->index;
    error->block[0] = x, error->block[1] = y, error->block[2] = z;
    error->thread[0] = thread.x, error->thread[1] = thread.y, error->thread[2] = thread.z;
  }
  static_touched = static_used;
  block = nullptr;
  return !failed;
}

static void bind(Worker& w, Kernel kernel, void** arguments, const LaunchConfig* config, LaunchError* error) {
  worker = &w;
  w.kernel = kernel;
  w.arguments = arguments;
  w.config = config;
  w.error = error;
  w.grid_barrier = nullptr;
  w.stop = nullptr;
}

// One OS thread per block, so that blocks may wait for each other.
static bool run_cooperative(Kernel kernel, void** arguments, const LaunchConfig* config, LaunchError* error) {
  const unsigned* grid = config->grid;
  const unsigned count = grid[0] * grid[1] * grid[2];
  std::vector<LaunchError> errors(count);
  std::vector<std::thread> blocks;
  GridBarrier barrier{count, 0};
  bool stop = false;
  for (unsigned i = 0; i < count; ++i) {
    blocks.emplace_back([&, i] {
      Worker own;
      bind(own, kernel, arguments, config, &errors[i]);
      own.grid_barrier = &barrier;
      own.stop = &stop;
      const bool ok = own.run_block(i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]);
      if (!ok) __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    });
  }
  for (std::thread& one : blocks) one.join();
  const LaunchError* worst = nullptr;
  for (const LaunchError& one : errors) {
    if (one.message[0] == 0) continue;
    if (worst == nullptr || std::strstr(worst->message, "another block")) worst = &one;
  }
  if (worst != nullptr) *error = *worst;
  return worst == nullptr;
}

extern "C" int emu_launch(Kernel kernel, void** arguments, const LaunchConfig* config, LaunchError* error) {
  install_handlers();
  if (config->cooperative) return run_cooperative(kernel, arguments, config, error) ? 0 : 1;
  static thread_local Worker own;
  bind(own, kernel, arguments, config, error);
  const unsigned* grid = config->grid;
  const uint64_t count = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t linear = config->order == 1 ? count - 1 - i : i;
    if (!own.run_block(linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1])) return 1;
  }
  return 0;
}

// ---- device address space --------------------------------------------------------------------------------
extern "C" void* emu_reserve(uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

extern "C" int emu_commit(void* address, uint64_t bytes) {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) return -1;
  std::memset(address, 0xFB, bytes);
  return 0;
}

// The range stays reserved and inaccessible: a later access to freed memory faults.
extern "C" int emu_release(void* address, uint64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(address, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? -1 : 0;
}

}  // namespace emu
