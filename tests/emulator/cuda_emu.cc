// The scheduler of the host execution: fibers, barriers, shared memory; and the address space of devices.
#include "cuda_emu_worker.h"

namespace emu {

// ---- what kernels call -----------------------------------------------------------------------------------
static void park(State state, int site) {
  Thread* thread = block->thread;
  thread->state = state;
  thread->site = site;
  worker->in_kernel = false;
  Thread* next = worker->next_ready();
  switch_context(thread->fiber->context, next ? next->fiber->context : worker->scheduler);
  worker->in_kernel = true;
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

// The block's first thread waits for the whole block; cooperative_groups.h puts block barriers around the call.
void wait_grid() {
  if (!worker->config->cooperative) fail("grid barrier in a launch that is not cooperative");
  if (block->thread == block->threads) park(State::AtGridBarrier, 0);
}

void idle() { park(State::Idle, 0); }

void* shared_array(const void* key, size_t bytes) {
  Run& run = *worker->run;
  const LaunchConfig& config = *worker->config;
  for (unsigned i = 0; i < run.array_count; ++i) {
    if (run.keys[i] == key) return run.static_shared + run.offsets[i];
  }
  const size_t offset = round_up(run.static_used, 16);
  if (offset + bytes > kStaticSharedLimit) fail("static shared memory exceeds 48 KB");
  if (run.array_count == kMaxSharedArrays) fail("more than %u shared arrays", kMaxSharedArrays);
  const size_t total = offset + bytes + config.dynamic_shared;
  if (total > kSharedLimit) fail("static and dynamic shared memory exceed 227 KB");
  if (total > kStaticSharedLimit && config.max_dynamic_shared < config.dynamic_shared) {
    fail("shared memory exceeds 48 KB; set max_dynamic_shared_size_bytes");
  }
  run.static_used = offset + bytes;
  run.keys[run.array_count] = key;
  run.offsets[run.array_count++] = offset;
  return run.static_shared + offset;
}

// ---- scheduler -------------------------------------------------------------------------------------------
Run& Worker::take_run(unsigned index) {
  if (index == runs.size()) {
    runs.push_back(std::make_unique<Run>());
    Run& fresh = *runs.back();
    fresh.static_shared = arena.shared + index * arena.shared_stride;
    fresh.dynamic_end = fresh.static_shared + kStaticSharedLimit + kPage + arena.dynamic_bytes;
    commit(fresh.static_shared, kStaticSharedLimit);
    commit(fresh.dynamic_end - arena.dynamic_bytes, arena.dynamic_bytes);
  }
  return *runs[index];
}

Fiber* Worker::take_fiber() {
  if (!free.empty()) {
    Fiber* fiber = free.back();
    free.pop_back();
    return fiber;
  }
  if (fibers.size() == kMaxFibers) return nullptr;
  char* start = arena.stacks + fibers.size() * arena.stack_stride;
  const bool guarded = fibers.size() < kGuardedFibers;
  commit(guarded ? start + kPage : start, guarded ? kStackBytes : arena.stack_stride);
  fibers.push_back(std::make_unique<Fiber>());
  Fiber* fiber = fibers.back().get();
  fiber->stack = start + kPage;
  fiber->guarded = guarded;
  if (!guarded) std::memcpy(fiber->stack, &kCanary, sizeof(kCanary));
  return fiber;
}

// Also frees the fibers that a failed launch has abandoned.
void Worker::free_fibers() {
  if (free.size() == fibers.size()) return;
  free.clear();
  for (const auto& fiber : fibers) {
    if (!fiber->guarded) std::memcpy(fiber->stack, &kCanary, sizeof(kCanary));
    free.push_back(fiber.get());
  }
}

static void start(Thread& thread, Fiber* fiber) {
  thread.fiber = fiber;
  fiber->groups.clear();
  block->thread = &thread;
}

// A fiber whose thread ended without a barrier continues with the next fresh thread, without a context switch.
static void fiber_main() {
  for (;;) {
    Fiber* self = block->thread->fiber;
    worker->in_kernel = true;
    worker->kernel(worker->arguments);
    worker->in_kernel = false;
    block->thread->state = State::Done;
    std::vector<Transfer*>& unwaited = worker->run->unwaited;
    unwaited.insert(unwaited.end(), self->copies.begin(), self->copies.end());
    self->copies.clear();
    const size_t next = worker->cursor + 1;
    if (next < worker->order.size() && block->threads[worker->order[next]].state == State::Fresh && !worker->expired) {
      worker->cursor = next;
      start(block->threads[worker->order[next]], self);
      continue;
    }
    worker->free.push_back(self);
    switch_context(self->context, worker->scheduler);
    std::abort();
  }
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

void Worker::switch_to(Thread& thread) {
  land_due();
  if (failed) return;
  const bool polled = thread.state == State::Idle;
  block->thread = &thread;
  if (thread.state == State::Fresh) {
    Fiber* fresh = take_fiber();
    if (fresh == nullptr) return fail_at(thread, "more than %u threads at the same time", kMaxFibers);
    start(thread, fresh);
    prepare_context(fresh->context, fresh->stack, kStackBytes, fiber_main);
  }
  Fiber* fiber = thread.fiber;
  switch_context(scheduler, fiber->context);
  progress |= !polled || thread.state != State::Idle;
  if (failed) return;
  if (!fiber->intact()) fail_at(*block->thread, "stack overflow of a thread");
  if (expired) fail_at(*block->thread, "still runs after %g seconds: an endless loop?", config->seconds);
}

// Returns the warp's next thread if it is ready, and nothing is left to the scheduler between both: transfers that may
// land, canaries, the time limit. A switch from thread to thread takes half the time.
Thread* Worker::next_ready() {
  const size_t next = cursor + 1;
  if (next >= order.size() || expired || !transfers.due.empty()) return nullptr;
  Thread* thread = &block->threads[order[next]];
  if (thread->state != State::Ready || !thread->fiber->guarded || !block->thread->fiber->guarded) return nullptr;
  ++transfers.turn;
  cursor = next;
  progress = true;
  return block->thread = thread;
}

// Releases each group of lanes whose members are all at the same collective. Returns whether there was one.
bool Worker::release_collectives(unsigned first, unsigned last) {
  bool released = false;
  Thread* threads = run->threads.data();
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

// Runs every thread until it waits for more than its warp; threads that polled get one turn.
void Worker::run_warp(unsigned warp) {
  const unsigned first = warp * 32;
  const unsigned last = std::min(first + 32, run->block.count);
  Thread* threads = run->threads.data();
  for (bool first_turn = true;; first_turn = false) {
    arrange(order, first, last - first);
    for (cursor = 0; cursor < order.size() && !failed; ++cursor) {
      Thread& thread = threads[order[cursor]];
      const bool runs = thread.state == State::Fresh || thread.state == State::Ready;
      if (runs || (first_turn && thread.state == State::Idle)) switch_to(thread);
    }
    if (failed) return;
    if (!release_collectives(first, last)) break;
  }
  for (unsigned i = first; i < last; ++i) {
    if (threads[i].state == State::Idle || threads[i].state == State::AtGridBarrier) return;  // may come later
  }
  for (unsigned i = first; i < last; ++i) {
    if (threads[i].state != State::AtWarpCollective) continue;
    return fail_at(threads[i], "line %d: warp collective with mask 0x%08x that some of its lanes never reach (divergent)",
                   threads[i].site, threads[i].mask);
  }
}

// Releases the block's barrier if all threads that are not done wait at it. Returns whether it did.
bool Worker::release_barrier() {
  const Thread* waiting = nullptr;
  const Thread* done = nullptr;
  for (const Thread& thread : run->threads) {
    if (thread.state == State::Done) {
      done = &thread;
    } else if (thread.state != State::AtBlockBarrier) {
      return false;
    } else if (waiting != nullptr && thread.site != waiting->site) {
      fail_at(thread, "divergent barrier: threads wait at the __syncthreads of lines %d and %d", waiting->site,
              thread.site);
      return false;
    } else {
      waiting = &thread;
    }
  }
  if (waiting != nullptr && done != nullptr) {
    fail_at(*done, "divergent barrier: the __syncthreads of line %d is not reached by every thread of the block",
            waiting->site);
    return false;
  }
  if (waiting == nullptr) {
    run->done = true;
    return false;
  }
  run->block.votes = 0;
  for (Thread& thread : run->threads) {
    run->block.votes += static_cast<int>(thread.offered[0]);
    thread.state = State::Ready;
  }
  return true;
}

// Releases the grid's barrier if all blocks wait at it. Returns whether it did.
bool Worker::release_grid(unsigned count) {
  const Run* done = nullptr;
  const Run* waiting = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (runs[i]->done) {
      done = runs[i].get();
    } else if (runs[i]->threads[0].state == State::AtGridBarrier) {
      waiting = runs[i].get();
    } else {
      return false;
    }
  }
  if (waiting == nullptr) return false;
  if (done != nullptr) {
    block = const_cast<Block*>(&done->block);
    fail_at(done->threads[0], "a barrier of the %s is not reached by every block",
            config->cooperative ? "grid" : "cluster");
    return false;
  }
  for (unsigned i = 0; i < count; ++i) runs[i]->threads[0].state = State::Ready;
  return true;
}

void Worker::begin_block(Run& run, uint64_t index) {
  const unsigned* grid = config->grid;
  const unsigned* size = config->block;
  Block& state = run.block;
  state.index = {static_cast<unsigned>(index % grid[0]), static_cast<unsigned>(index / grid[0] % grid[1]),
                 static_cast<unsigned>(index / grid[0] / grid[1])};
  state.block_dim = dim3(size[0], size[1], size[2]);
  state.grid_dim = dim3(grid[0], grid[1], grid[2]);
  state.count = size[0] * size[1] * size[2];
  const size_t in_use = round_up(config->dynamic_shared, 16);
  state.dynamic_shared = run.dynamic_end - in_use;
  std::memset(state.dynamic_shared, 0xFB, in_use);
  std::memset(run.static_shared, 0xFB, run.static_touched);
  run.static_used = 0;
  run.array_count = 0;
  run.unwaited.clear();
  run.done = run.waited = run.relaxed = false;
  run.threads.resize(state.count);
  state.threads = run.threads.data();
  for (unsigned i = 0; i < state.count; ++i) {
    Thread& thread = run.threads[i];
    thread.index = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    thread.lane = i % 32;
    thread.warp = i / 32;
    thread.state = State::Fresh;
    thread.participants = 0;
    thread.arrived = false;
    thread.fiber = nullptr;
  }
}

// Runs a block until it is done, or waits for other blocks.
void Worker::advance(Run& next) {
  run = &next;
  block = &next.block;
  do {
    arrange(warp_order, 0, (next.block.count + 31) / 32);
    for (unsigned warp : warp_order) {
      run_warp(warp);
      if (failed) return;
    }
  } while (release_barrier());
  if (!next.done) return;
  end_block();
  next.static_touched = next.static_used;
}

// Runs blocks that may wait for each other.
bool Worker::run_blocks(uint64_t first, unsigned count) {
  free_fibers();
  group_size = count;
  cluster_arrived = cluster_phase = 0;
  for (unsigned i = 0; i < count; ++i) begin_block(take_run(i), first + i);
  random = config->order * 2654435761u + first;
  transfers.begin(config->landing, first);
  guard();
  unsigned idle_rounds = 0;
  for (unsigned left = count; left > 0;) {
    progress = false;
    left = 0;
    arrange(run_order, 0, count);
    for (unsigned i : run_order) {
      if (!runs[i]->done) advance(*runs[i]);
      if (failed) return false;
      left += !runs[i]->done;
    }
    progress |= release_grid(count);
    if (failed) return false;
    if (!progress && !open) {  // a block that waits for earlier launches, and one that waits for that block
      unguard();
      progress = true;
    }
    idle_rounds = progress ? 0 : idle_rounds + 1;
    if (idle_rounds < kMaxIdleRounds || left == 0) continue;
    const char* text = config->cooperative   ? "waits for what no thread of the grid does"
                       : config->cluster > 1 ? "waits for what no thread of the cluster does"
                                             : "waits for another block in a launch that is not cooperative";
    for (const Thread& thread : run->threads) {
      if (thread.state == State::Done) continue;
      fail_at(thread, "%s", text);
      return false;
    }
  }
  return true;
}

extern "C" int emu_launch(Kernel kernel, void** arguments, const LaunchConfig* config, LaunchError* error) {
  static thread_local Worker own;
  install_handlers();
  own.use_signal_stack();
  own.kernel = kernel;
  own.arguments = arguments;
  own.config = config;
  own.error = error;
  own.failed = own.expired = own.in_kernel = false;
  own.transfers.clear();
  for (auto& fiber : own.fibers) fiber->copies.clear();
  worker = &own;
  own.set_time(config->seconds);
  const unsigned* grid = config->grid;
  const uint64_t count = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
  bool ok = true;
  if (config->cooperative) {
    ok = own.run_blocks(0, static_cast<unsigned>(count));
  } else {
    const unsigned cluster = config->cluster;
    for (uint64_t i = 0; i < count && ok; i += cluster) {
      ok = own.run_blocks(config->order == 1 ? count - cluster - i : i, cluster);
    }
  }
  own.set_time(0);
  own.unguard();
  for (auto& run : own.runs) {
    if (!run->done) run->static_touched = kStaticSharedLimit;
  }
  worker = nullptr;
  block = nullptr;
  return ok ? 0 : 1;
}

// ---- device address space --------------------------------------------------------------------------------
extern "C" void* emu_reserve(uint64_t bytes) { return reserve(bytes); }

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
