/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/sim/order_int.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/base.h"

/* Defined only where a sanitizer is linked. */
#define WEAK __attribute__((weak))
extern WEAK void *__tsan_create_fiber(unsigned flags);
extern WEAK void *__tsan_get_current_fiber(void);
extern WEAK void __tsan_destroy_fiber(void *fiber);
extern WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
extern WEAK void __tsan_acquire(void *place);
extern WEAK void __tsan_release(void *place);
extern WEAK void AnnotateIgnoreReadsBegin(const char *file, int line);
extern WEAK void AnnotateIgnoreReadsEnd(const char *file, int line);
extern WEAK void __asan_poison_memory_region(const volatile void *p, size_t bytes);
extern WEAK void __asan_unpoison_memory_region(const volatile void *p, size_t bytes);
extern WEAK void __msan_poison(const volatile void *p, size_t bytes);
extern WEAK void __sanitizer_start_switch_fiber(void **ret_fake, const void *bottom, size_t bytes);
extern WEAK void __sanitizer_finish_switch_fiber(void *fake, const void **ret_bottom,
                                                 size_t *ret_bytes);

enum { TSAN_NO_ORDER = 1 }; /* __tsan_switch_to_fiber_no_sync */

/* ---- order ----------------------------------------------------------------------------------- */

sim_order *sim_order_new(void) {
  return __tsan_create_fiber ? __tsan_create_fiber(TSAN_NO_ORDER) : NULL;
}

void sim_order_free(sim_order *o) {
  if (o) __tsan_destroy_fiber(o);
}

sim_order *sim_order_enter(sim_order *o) {
  if (!__tsan_create_fiber) return NULL;
  sim_order *before = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(o, TSAN_NO_ORDER);
  return before;
}

void sim_order_release(void *place) {
  if (__tsan_release) __tsan_release(place);
}

void sim_order_acquire(void *place) {
  if (__tsan_acquire) __tsan_acquire(place);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Makes thread sanitizer ignore accesses between the two calls, so that memory allocated there has
 * no history. */
static void past_off(void) {
  if (AnnotateIgnoreReadsBegin) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
}

static void past_on(void) {
  if (AnnotateIgnoreReadsEnd) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

void sim_undefined(void *p, size_t bytes) {
  memset(p, 0xFF, bytes);
  if (__msan_poison) __msan_poison(p, bytes);
}

void *sim_fresh_take(size_t bytes) {
  past_off();
  void *p = malloc(bytes ? bytes : 1);
  if (p) sim_undefined(p, bytes);
  past_on();
  if (!p) abort();
  return p;
}

void sim_fresh_give(void *p) {
  past_off();
  free(p);
  past_on();
}

void sim_forbid(const void *p, size_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
}

void sim_permit(const void *p, size_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
}

bool sim_can_forbid(void) { return __asan_poison_memory_region != NULL; }

/* ---- fibres ---------------------------------------------------------------------------------- */

enum { PAGE = 4096, LINES = 59 };

sim_fibre *sim_running;
static sim_fibre *pool;

static void fibre_main(void) {
  sim_fibre *f = sim_running;
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(NULL, &f->caller_bottom, &f->caller_bytes);
  for (;;) {
    f->work(f->arg);
    sim_fibre_leave();
  }
}

/* Prepares the stack of a fibre: fibre_main, two registers for the jump, and a return address of 0,
 * where debuggers stop. Stacks that all began at the same offset of a page would share few cache
 * lines. */
static void fibre_rewind(sim_fibre *f) {
  uintptr_t *top = (uintptr_t *)(void *)(f->stack + SIM_STACK - f->line % LINES * 64) - 4;
  memset(top, 0, 4 * sizeof *top);
  top[0] = (uintptr_t)fibre_main;
  f->sp = top;
}

static void *map(void *at, size_t bytes) {
  past_off();
  void *p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  past_on();
  if (p == MAP_FAILED) abort();
  return p;
}

static sim_fibre *fibre_new(void) {
  static size_t n;
  sim_fibre *f = calloc(1, sizeof *f);
  if (!f) abort();
  f->line = n++;
  char *p = map(NULL, PAGE + SIM_STACK);
  mprotect(p, PAGE, PROT_NONE);
  f->stack = p + PAGE;
  fibre_rewind(f);
  return f;
}

sim_fibre *sim_fibre_take(sim_fibres *spare, void (*work)(void *), void *arg) {
  sim_fibre *f = spare->n ? spare->all[--spare->n] : pool;
  if (!f)
    f = fibre_new();
  else if (f == pool)
    pool = f->next;
  if (!f->order) f->order = sim_order_new();
  f->work = work;
  f->arg = arg;
  return f;
}

/* Frees a fibre. The values on its stack are not read again. */
void sim_fibre_drop(sim_fibre *f) {
  sim_order_free(f->order);
  f->order = NULL;
  map(f->stack, SIM_STACK);
  sim_permit(f->stack, SIM_STACK);
  fibre_rewind(f);
  f->next = pool;
  pool = f;
}

void sim_fibre_give(sim_fibres *ended, sim_fibre *f) {
  if (f->order && ended->n < SIM_MOST_FIBRES) {
    ended->all[ended->n++] = f;
    return;
  }
  if (f->order) {
    sim_fibre_drop(f);
    return;
  }
  f->next = pool;
  pool = f;
}

void sim_fibres_move(sim_fibres *to, sim_fibres *from) {
  while (from->n) sim_fibre_give(to, from->all[--from->n]);
}

void sim_fibre_switch(sim_fibre *f, bool enters) {
  void *fake = NULL;
  if (__sanitizer_start_switch_fiber) {
    if (enters)
      __sanitizer_start_switch_fiber(&fake, f->stack, SIM_STACK);
    else
      __sanitizer_start_switch_fiber(&f->fake, f->caller_bottom, f->caller_bytes);
  }
  if (f->order) {
    sim_order *to = enters ? f->order : f->caller_order, *from = sim_order_enter(to);
    if (enters) f->caller_order = from;
  }
  sim_fibre_jump(&f->sp);
  if (!__sanitizer_finish_switch_fiber) return;
  if (enters)
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
  else
    __sanitizer_finish_switch_fiber(f->fake, &f->caller_bottom, &f->caller_bytes);
}
