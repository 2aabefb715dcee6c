/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions by which the simulated device reports to the sanitizers: which simulated thread runs
 * and the order of operations (thread sanitizer), and which memory must not be accessed or has no
 * value yet (address and memory sanitizer). Without a sanitizer, only the fibres and the allocation
 * functions have an effect.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_ORDER_INT_H
#define CLEAVE_TESTS_GPU_SIM_ORDER_INT_H

#include <stdbool.h>
#include <stddef.h>

/* ---- order of accesses, as thread sanitizer sees it ------------------------------------------ */

/* A simulated thread as thread sanitizer sees it: a TSan fiber. */
typedef struct sim_order sim_order;

sim_order *sim_order_new(void);
void sim_order_free(sim_order *o);
/* Makes o the current thread for thread sanitizer. Returns the previous thread. */
sim_order *sim_order_enter_stream(sim_order *o);
/* Release and acquire of thread sanitizer: everything before sim_order_release(place) happens
 * before everything after a later sim_order_acquire(place). */
void sim_order_release(void *place);
void sim_order_acquire(void *place);
/* sim_order_before orders all earlier accesses before those that follow a later sim_order_after
 * with the same place. Both do nothing in builds without a sanitizer. */
static inline void sim_order_before(void *place) {
  if (CLV_SANITIZED) sim_order_release(place);
}
static inline void sim_order_after(void *place) {
  if (CLV_SANITIZED) sim_order_acquire(place);
}

/* ---- memory whose use the sanitizers check --------------------------------------------------- */

/* Allocates memory to which the sanitizers know no earlier access. All bytes are 0xFF and count as
 * never written. */
void *sim_allocate_fresh(size_t bytes);
void sim_free_fresh(void *p);
/* fills the bytes with 0xFF; a read of such a byte is reported */
void sim_make_undefined(void *p, size_t bytes);
void sim_poison(const void *p, size_t bytes);
void sim_unpoison(const void *p, size_t bytes);
bool sim_can_poison(void); /* true if address sanitizer guards the memory */

/* ---- fibres: threads that the simulation switches itself ------------------------------------- */

typedef struct sim_fibre {
  struct sim_fibre *next;
  void *sp; /* saved stack pointer of the fibre; while the fibre runs, that of its caller */
  char *stack;
  /* number of the fibre; the offset in `stack` at which its first stack frame lies depends on it */
  size_t stack_index;
  sim_order *thread_order, *caller_thread_order;
  void *fake_stack; /* address sanitizer's fake stack */
  const void *caller_stack_bottom;
  size_t caller_stack_bytes;
  void (*function)(void *);
  void *argument;
} sim_fibre;

enum { SIM_STACK = 64 << 10 };

/* A pool of ended fibres for reuse, because thread sanitizer takes long to create a fibre. Without
 * thread sanitizer all streams share one pool. */
enum { SIM_MAX_FIBRES = 1024 };
typedef struct sim_fibres {
  sim_fibre *fibres[SIM_MAX_FIBRES];
  int n;
} sim_fibres;

/* Returns a fibre that runs work(arg) when it is entered: a fibre from the pool *spare, whose
 * earlier work is then ordered before the new work, or a new fibre. sim_fibre_keep_spare puts a
 * fibre into a pool. */
sim_fibre *sim_fibre_get_spare(sim_fibres *spare, void (*work)(void *), void *arg);
void sim_fibre_keep_spare(sim_fibres *ended, sim_fibre *f);
void sim_fibre_free_unfinished(sim_fibre *f); /* frees a fibre whose function has not returned */
void sim_fibres_move(sim_fibres *to, sim_fibres *from);

extern sim_fibre *sim_running_fibre;
/* switches stacks and reports the switch to the sanitizers */
void sim_fibre_switch(sim_fibre *f, bool is_entering);

/* Switches to the stack whose pointer is in *at and saves the current stack pointer there. All
 * registers are declared clobbered, and the 128 bytes of red zone below the stack pointer are
 * skipped. */
static inline void sim_fibre_jump(void **at) {
  __asm__ volatile(
      "leaq -128(%%rsp), %%rsp\n leaq 1f(%%rip), %%rax\n"
      "pushq %%rbp\n pushq %%rbx\n pushq %%rax\n"
      "movq (%0), %%rcx\n movq %%rsp, (%0)\n movq %%rcx, %%rsp\n"
      "popq %%rax\n popq %%rbx\n popq %%rbp\n jmpq *%%rax\n"
      "1: leaq 128(%%rsp), %%rsp\n"
      : "+D"(at)
      :
      : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
        "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

/* Runs the fibre until it calls sim_fibre_leave. */
static inline void sim_fibre_enter(sim_fibre *f) {
  sim_fibre *previous = sim_running_fibre;
  sim_running_fibre = f;
  if (CLV_SANITIZED)
    sim_fibre_switch(f, true);
  else
    sim_fibre_jump(&f->sp);
  sim_running_fibre = previous;
}

static inline void sim_fibre_leave(void) {
  sim_fibre *f = sim_running_fibre;
  if (CLV_SANITIZED)
    sim_fibre_switch(f, false);
  else
    sim_fibre_jump(&f->sp);
}

#endif
