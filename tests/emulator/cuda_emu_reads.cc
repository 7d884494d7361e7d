// Counts of reads of device memory. A kernel that is compiled for it (COUNTING in toolchain.py) calls the functions with
// the names of the address sanitizer at each access.
#include "cuda_emu_worker.h"

namespace emu {

void count_read(const void* from, size_t bytes) {
  const LaunchConfig& config = *worker->config;
  const uint64_t address = reinterpret_cast<uint64_t>(from);
  for (uint64_t i = 0; i < config.counted_count; ++i) {
    const Counted& counted = config.counted[i];
    for (uint64_t at = address - counted.memory, end = at + bytes; at < end && at < counted.bytes; ++at) {
      ++counted.reads[at];
    }
  }
}

}  // namespace emu

#define ACCESS(BYTES)                                                                         \
  extern "C" void __asan_load##BYTES##_noabort(const void* from) { emu::count_read(from, BYTES); } \
  extern "C" void __asan_store##BYTES##_noabort(void*) {}
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
extern "C" void __asan_loadN_noabort(const void* from, size_t bytes) { emu::count_read(from, bytes); }
extern "C" void __asan_storeN_noabort(void*, size_t) {}
extern "C" void __asan_handle_no_return() {}
