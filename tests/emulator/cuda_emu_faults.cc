// Early ends of kernels: their own errors, faults of the processor, and the time limit.
#include "cuda_emu_worker.h"

#include <sys/syscall.h>

namespace emu {

__thread Block* block = nullptr;
__thread Worker* worker = nullptr;

static void describe(const char* format, va_list values) {
  LaunchError& error = *worker->error;
  vsnprintf(error.message, sizeof(error.message), format, values);
  const uint3 thread = block->thread->index;
  const uint3 index = block->index;
  error.block[0] = index.x, error.block[1] = index.y, error.block[2] = index.z;
  error.thread[0] = thread.x, error.thread[1] = thread.y, error.thread[2] = thread.z;
  worker->failed = true;
}

// Called in a kernel, or in a signal handler that has interrupted one: the fiber is never resumed.
void fail(const char* format, ...) {
  worker->in_kernel = false;
  va_list values;
  va_start(values, format);
  describe(format, values);
  va_end(values);
  Context abandoned;
  switch_context(abandoned, worker->scheduler);
  std::abort();
}

void Worker::fail_at(const Thread& thread, const char* format, ...) {
  block->thread = const_cast<Thread*>(&thread);
  va_list values;
  va_start(values, format);
  describe(format, values);
  va_end(values);
}

static const int kFaults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
static const int kTime = SIGRTMIN + 5;
static struct sigaction previous_actions[32];

// Passes on a signal that is no kernel's: the previous handler gets it once, the second time it ends the process.
static void hand_over(int signal, bool sent) {
  static volatile sig_atomic_t seen[32];
  struct sigaction other = previous_actions[signal];
  if (seen[signal]++) {
    other = {};
    other.sa_handler = SIG_DFL;
  }
  sigaction(signal, &other, nullptr);
  if (sent) raise(signal);
}

static void on_fault(int signal, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;  // sent by a process, not caused by an instruction
  if (sent || worker == nullptr || !worker->in_kernel) {
    hand_over(signal, sent);
    return;
  }
  worker->error->address = reinterpret_cast<uint64_t>(info->si_addr);
  if (signal == SIGILL) fail("array index out of bounds");
  if (signal == SIGFPE) fail("integer division by zero");
  const Arena& arena = worker->arena;
  const char* address = static_cast<const char*>(info->si_addr);
  const char* stack = block->thread->fiber->stack;
  if (address < stack && address >= stack - kPage) fail("stack overflow of a thread");
  if (address >= worker->run->dynamic_end && address < worker->run->dynamic_end + kPage) {
    fail("access past the end of dynamic shared memory");
  }
  if (address >= arena.base && address < arena.stacks - arena.margin / 2) fail("illegal access of shared memory");
  if (address >= arena.base && address < arena.base + arena.bytes) fail("illegal access of a thread's own memory");
  const LaunchConfig& config = *worker->config;
  for (uint64_t i = 0; i < config.guarded_count && !worker->open; ++i) {
    if (worker->error->address - config.guarded[i].memory >= config.guarded[i].bytes) continue;
    fail("illegal memory access before the wait for earlier launches, which may still %s this memory,",
         config.guarded[i].readable ? "read" : "write");
  }
  fail("illegal memory access");
}

static void on_time(int, siginfo_t*, void*) {
  if (worker == nullptr) return;
  worker->expired = true;
  if (worker->in_kernel) fail("still runs after %g seconds: an endless loop?", worker->config->seconds);
}

static void install_handler(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction current;
  sigaction(signal, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handler) return;
  if (signal < 32) previous_actions[signal] = current;
  struct sigaction ours{};
  ours.sa_sigaction = handler;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  sigaction(signal, &ours, nullptr);
}

// Other code of the process may have installed handlers, or another stack for them, since the last launch.
void install_handlers() {
  for (int signal : kFaults) install_handler(signal, on_fault);
  install_handler(kTime, on_time);
}

// ---- one OS thread's state -------------------------------------------------------------------------------
Worker::Worker() {
  signal_stack = static_cast<char*>(reserve(kSignalStackBytes + kPage)) + kPage;
  commit(signal_stack, kSignalStackBytes);
  sigaltstack(nullptr, &previous_stack);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kTime;
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
  event.sigev_notify_thread_id = static_cast<int>(syscall(SYS_gettid));
  has_timer = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
}

void Worker::use_signal_stack() {
  stack_t current;
  sigaltstack(nullptr, &current);
  if (current.ss_sp == signal_stack) return;
  stack_t own_stack{};
  own_stack.ss_sp = signal_stack;
  own_stack.ss_size = kSignalStackBytes;
  sigaltstack(&own_stack, nullptr);
}

Worker::~Worker() {
  if (has_timer) timer_delete(timer);
  sigaltstack(&previous_stack, nullptr);
  munmap(signal_stack - kPage, kSignalStackBytes + kPage);
  worker = nullptr;
}

// The timer fires repeatedly, because its first signal may arrive while the scheduler runs. Zero stops it.
void Worker::set_time(double seconds) {
  if (!has_timer) return;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(seconds);
  when.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(when.it_value.tv_sec)) * 1e9);
  when.it_interval.tv_nsec = seconds > 0 ? 100000000 : 0;
  timer_settime(timer, 0, &when, nullptr);
}

}  // namespace emu
