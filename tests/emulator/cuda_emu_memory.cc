// What the memory model of a device lets happen late: asynchronous copies, stores to other blocks of a cluster, and the
// results of earlier launches.
#include "cuda_emu_worker.h"

namespace emu {

constexpr int kUnused = 0xFB;     // memory that a block has not written to
constexpr int kInFlight = 0xFF;  // the target of a transfer: NaN in all floating-point types

static bool is_filled(const void* memory, size_t bytes, int value) {
  const unsigned char* at = static_cast<const unsigned char*>(memory);
  return std::all_of(at, at + bytes, [value](unsigned char byte) { return byte == value; });
}

// ---- transfers on their way ------------------------------------------------------------------------------
void Transfers::clear() {
  pool.clear(), free.clear(), stores.clear();
  due = {};
  turn = 0;
}

void Transfers::begin(unsigned landing, uint64_t block) { random = landing * 2654435761u + block; }

unsigned Transfers::next_random(unsigned limit) {
  random = random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<unsigned>(random >> 33) % limit;
}

Transfer* Transfers::issue(void* to, const void* from, size_t bytes) {
  Transfer* found;
  if (free.empty()) {
    found = &pool.emplace_back();
  } else {
    found = free.back();
    free.pop_back();
  }
  *found = {to, from, bytes, block, block->thread, nullptr, 1, false, {}};
  return found;
}

// Draws when a transfer lands: a quarter at once, a quarter as late as possible, and half at a later turn of a thread,
// near or far. Returns whether it lands at once.
bool Transfers::schedule(Transfer* transfer, unsigned landing) {
  if (landing <= LATE) return landing == EARLY;
  const unsigned drawn = next_random(4);
  if (drawn > 1) {
    due.push({turn + 1 + next_random(2u << next_random(12)), transfer});
    ++transfer->holders;
  }
  return drawn == EARLY;
}

void Transfers::release(Transfer* transfer) {
  if (--transfer->holders == 0) free.push_back(transfer);
}

// Returns whether nobody has written to the target since the transfer began.
bool Worker::land(Transfer& transfer) {
  if (transfer.landed) return true;
  if (!is_filled(transfer.to, transfer.bytes, kInFlight)) return false;
  std::memcpy(transfer.to, transfer.from ? transfer.from : transfer.value, transfer.bytes);
  if (transfer.left) *transfer.left -= transfer.bytes;
  return transfer.landed = true;
}

constexpr const char kOverwritten[] = "shared memory was written while %s to it was on its way";
static const char* kind(const Transfer& transfer) {
  return transfer.left ? "a store of another block" : "an asynchronous copy";
}

// Lands a transfer from the scheduler.
bool Worker::land_or_fail(Transfer& transfer) {
  if (land(transfer)) return true;
  block = transfer.block;
  fail_at(*transfer.thread, kOverwritten, kind(transfer));
  return false;
}

// Lands a transfer from a kernel.
static void land_here(Transfer& transfer) {
  if (!worker->land(transfer)) fail(kOverwritten, kind(transfer));
}

// Lands the transfers whose turn has come.
void Worker::land_due() {
  ++transfers.turn;
  while (!transfers.due.empty() && transfers.due.top().first <= transfers.turn) {
    Transfer* transfer = transfers.due.top().second;
    transfers.due.pop();
    if (!land_or_fail(*transfer)) return;
    transfers.release(transfer);
  }
}

// Lands the copies that no thread of the block has waited for.
void Worker::end_block() {
  for (Transfer* copy : run->unwaited) {
    if (!land_or_fail(*copy)) return;
    transfers.release(copy);
  }
  run->unwaited.clear();
  const char* end = run->dynamic_end;
  for (const Transfer* store : transfers.stores) {
    const char* to = static_cast<const char*>(store->to);
    if (store->landed || to >= end || to < end - arena.dynamic_bytes) continue;
    fail_at(run->threads[0], "the block ends while a store of another block to its shared memory is on its way");
    return;
  }
}

// ---- copies of a thread ----------------------------------------------------------------------------------
void copy_later(void* to, const void* from, size_t bytes) {
  const volatile char* const source = static_cast<const char*>(from);  // may not be accessible
  (void)source[0], (void)source[bytes - 1];
  count_read(from, bytes);
  std::memset(to, kInFlight, bytes);
  worker->in_kernel = false;  // allocates
  Transfer* copy = worker->transfers.issue(to, from, bytes);
  block->thread->fiber->copies.push_back(copy);
  const bool at_once = worker->transfers.schedule(copy, worker->config->landing);
  worker->in_kernel = true;
  if (at_once) land_here(*copy);
}

void commit_copies() {
  Fiber& fiber = *block->thread->fiber;
  worker->in_kernel = false;  // allocates
  fiber.groups.push_back(fiber.copies.size());
  worker->in_kernel = true;
}

void complete_copies(size_t count) {
  Fiber& fiber = *block->thread->fiber;
  if (fiber.groups.size() <= count) return;
  const size_t done = fiber.groups.size() - count, end = fiber.groups[done - 1];
  for (size_t i = 0; i < end; ++i) land_here(*fiber.copies[i]);
  worker->in_kernel = false;  // allocates
  for (size_t i = 0; i < end; ++i) worker->transfers.release(fiber.copies[i]);
  worker->in_kernel = true;
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<std::ptrdiff_t>(end));
  fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + static_cast<std::ptrdiff_t>(done));
  for (size_t& group : fiber.groups) group -= end;
}

// ---- clusters --------------------------------------------------------------------------------------------
unsigned blocks_of_cluster() { return worker->config->cluster; }

void arrive_at_cluster(bool is_reused, int site) {
  Thread& thread = *block->thread;
  if (thread.arrived) fail("line %d: a second arrival at the cluster without a wait", site);
  thread.arrived = true;
  thread.phase = worker->cluster_phase;
  worker->run->relaxed = !is_reused;
  if (++worker->cluster_arrived == block->count * worker->config->cluster) {
    worker->cluster_arrived = 0;
    ++worker->cluster_phase;
  }
}

// Waits for arrivals alone: a block may go on, and store to the others, before these wait.
void wait_for_cluster(int site) {
  Thread& thread = *block->thread;
  if (!thread.arrived) fail("line %d: a wait for the cluster without an arrival", site);
  while (worker->cluster_phase == thread.phase) idle();
  thread.arrived = false;
}

void check_expectation() {
  if (block->thread->arrived) {
    fail("stores are expected after the arrival at the cluster: others may have stored already");
  }
}

static Run& block_of_cluster(unsigned rank) {
  if (rank >= worker->config->cluster) fail("block %u of a cluster of %u", rank, worker->config->cluster);
  Run& found = *worker->runs[rank];
  if (found.done) fail("shared memory of a block that has ended");
  return found;
}

static void* in_block(void* own, const Run& other) {
  const ptrdiff_t offset = static_cast<char*>(own) - static_cast<char*>(block->dynamic_shared);
  if (offset < 0 || static_cast<uint64_t>(offset) >= worker->config->dynamic_shared) {
    fail("%p is not in dynamic shared memory", own);
  }
  return static_cast<char*>(other.block.dynamic_shared) + offset;
}

void store_later(void* own, const void* value, size_t bytes, unsigned rank, unsigned long long* own_left) {
  Run& other = block_of_cluster(rank);
  void* const to = in_block(own, other);
  if (other.relaxed && !is_filled(to, bytes, kUnused)) {
    fail("a store to shared memory that block %u of the cluster used before an arrival that releases nothing", rank);
  }
  void* const left = in_block(own_left, other);
  if (is_filled(left, sizeof(*own_left), kUnused)) {
    fail("a store to block %u of the cluster, which does not expect it yet", rank);
  }
  std::memset(to, kInFlight, bytes);
  worker->in_kernel = false;  // allocates
  Transfer* store = worker->transfers.issue(to, nullptr, bytes);
  std::memcpy(store->value, value, bytes);
  store->left = static_cast<unsigned long long*>(left);
  worker->transfers.stores.push_back(store);
  const bool at_once = worker->transfers.schedule(store, worker->config->landing);
  worker->in_kernel = true;
  if (at_once) land_here(*store);
}

// Lands the stores that a barrier expects, as far as they have been issued.
void land_stores(const unsigned long long* left) {
  std::vector<Transfer*>& stores = worker->transfers.stores;
  for (Transfer* store : stores) {
    if (store->left == left) land_here(*store);
  }
  worker->in_kernel = false;  // allocates
  stores.erase(std::remove_if(stores.begin(), stores.end(), [](Transfer* store) {
    if (!store->landed) return false;
    worker->transfers.release(store);
    return true;
  }), stores.end());
  worker->in_kernel = true;
}

// ---- earlier launches ------------------------------------------------------------------------------------
static void protect(const LaunchConfig& config, bool guarded) {
  for (uint64_t i = 0; i < config.guarded_count; ++i) {
    const Guarded& each = config.guarded[i];
    const int access = !guarded ? PROT_READ | PROT_WRITE : each.readable ? PROT_READ : PROT_NONE;
    if (mprotect(reinterpret_cast<void*>(each.memory), each.bytes, access) == 0) continue;
    std::perror("CUDA emulator: mprotect");
    std::abort();
  }
}

void Worker::guard() {
  open = config->guarded_count == 0;
  if (!open) protect(*config, true);
}

void Worker::unguard() {
  if (!open) protect(*config, false);
  open = true;
}

// Waits until all blocks that run at the same time wait, because any of them could access the memory too early.
void wait_for_launches(int site) {
  worker->config->waited = 1;
  if (worker->config->guarded_count == 0) return;
  wait_block(site);
  worker->run->waited = true;
  const auto waits = [](const std::unique_ptr<Run>& run) { return run->waited || run->done; };
  if (std::all_of(worker->runs.begin(), worker->runs.begin() + worker->group_size, waits)) worker->unguard();
  while (!worker->open) idle();
}

}  // namespace emu
