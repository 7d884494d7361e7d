// Switching between stacks: ten instructions on x86-64, ucontext elsewhere (or with OVGPU_EMU_UCONTEXT).
#pragma once

#include <cstddef>
#include <cstdint>
#if !defined(__x86_64__) || defined(OVGPU_EMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace emu {

#if defined(__x86_64__) && !defined(OVGPU_EMU_UCONTEXT)

struct Context {
  void* stack_pointer;
};

// Saves the callee-saved registers on the current stack and continues on the other one.
extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.weak emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");

inline void switch_context(Context& from, Context& to) { emu_switch(&from.stack_pointer, to.stack_pointer); }

inline void prepare_context(Context& context, char* stack, size_t size, void (*entry)()) {
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + size) & ~uintptr_t{15});
  *--top = nullptr;  // where a return address would be: the ABI's alignment at a function's entry
  *--top = reinterpret_cast<void*>(entry);
  context.stack_pointer = top - 6;
}

#else

struct Context {
  ucontext_t state;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

inline void prepare_context(Context& context, char* stack, size_t size, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = size;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

#endif

}  // namespace emu
