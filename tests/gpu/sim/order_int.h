/* SPDX-License-Identifier: Apache-2.0
 *
 * order_int: what the sanitizers are told: who runs, what came before what, which memory is whose.
 * In a build without them nothing of it does anything but the fibres.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_ORDER_INT_H
#define CLEAVE_TESTS_GPU_SIM_ORDER_INT_H

#include <stdbool.h>
#include <stddef.h>

/* ---- order ----------------------------------------------------------------------------------- */

/* One that runs beside others, as thread sanitizer sees it. */
typedef struct sim_order sim_order;

sim_order *sim_order_new(void);
void sim_order_free(sim_order *o);
/* What is done from now on is done by o; gives who it was before. */
sim_order *sim_order_enter(sim_order *o);
/* What was done up to a "before" at a place comes before all behind an "after" there. */
void sim_order_release(void *place);
void sim_order_acquire(void *place);
static inline void sim_order_before(void *place) {
  if (CLV_SANITIZED) sim_order_release(place);
}
static inline void sim_order_after(void *place) {
  if (CLV_SANITIZED) sim_order_acquire(place);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory whose past nobody is held to: of all 0xFF, as if never written. */
void *sim_fresh_take(size_t bytes);
void sim_fresh_give(void *p);
void sim_undefined(void *p, size_t bytes); /* 0xFF, and a value read from it is an error */
void sim_forbid(const void *p, size_t bytes);
void sim_permit(const void *p, size_t bytes);
bool sim_forbids(void); /* by address sanitizer */

/* ---- fibres ---------------------------------------------------------------------------------- */

typedef struct sim_fibre {
  struct sim_fibre *next;
  void *sp; /* where it is left, and while it runs: where its caller is */
  char *stack;
  size_t line; /* where it begins there */
  sim_order *order, *caller_order;
  void *fake; /* address sanitizer's */
  const void *caller_bottom;
  size_t caller_bytes;
  void (*work)(void *);
  void *arg;
} sim_fibre;

enum { SIM_STACK = 64 << 10 };

/* Fibres that are kept, for thread sanitizer takes long to begin with one; without it there is one
 * pool for all. */
enum { SIM_MOST_FIBRES = 1024 };
typedef struct sim_fibres {
  sim_fibre *all[SIM_MOST_FIBRES];
  int n;
} sim_fibres;

/* A fibre that will run work(arg) and then leave: one of *spare, all of whose past comes before
 * what it will do, or one without a past. Afterwards it is among those that have ended. */
sim_fibre *sim_fibre_take(sim_fibres *spare, void (*work)(void *), void *arg);
void sim_fibre_give(sim_fibres *ended, sim_fibre *f);
void sim_fibre_drop(sim_fibre *f); /* which will not go on */
void sim_fibres_move(sim_fibres *to, sim_fibres *from);

extern sim_fibre *sim_running;
void sim_fibre_told(sim_fibre *f, bool enters); /* a switch that sanitizers are told of */

/* Changes the stack for the one that is kept at *at, and keeps this one there. A function that goes
 * on elsewhere has no register left, and what is below its stack is not its own either. */
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

/* Until it leaves. */
static inline void sim_fibre_enter(sim_fibre *f) {
  sim_fibre *before = sim_running;
  sim_running = f;
  if (CLV_SANITIZED)
    sim_fibre_told(f, true);
  else
    sim_fibre_jump(&f->sp);
  sim_running = before;
}

static inline void sim_fibre_leave(void) {
  sim_fibre *f = sim_running;
  if (CLV_SANITIZED)
    sim_fibre_told(f, false);
  else
    sim_fibre_jump(&f->sp);
}

#endif
