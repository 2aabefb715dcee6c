/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports to the sanitizers in which order the simulation runs operations and which memory they may
 * access, and switches fibres (order_int.h).
 */
#include "tests/gpu/sim/order_int.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/base.h"

/* Functions of the sanitizers, which are defined only in a build with that sanitizer. */
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

enum { TSAN_NO_ORDER = 1 }; /* flag of __tsan_switch_to_fiber: the switch orders no accesses */

/* ---- order of accesses, as thread sanitizer sees it ------------------------------------------ */

sim_order *sim_order_new(void) {
  return __tsan_create_fiber ? __tsan_create_fiber(TSAN_NO_ORDER) : NULL;
}

void sim_order_free(sim_order *o) {
  if (o) __tsan_destroy_fiber(o);
}

sim_order *sim_order_enter_stream(sim_order *o) {
  if (!__tsan_create_fiber) return NULL;
  sim_order *previous = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(o, TSAN_NO_ORDER);
  return previous;
}

void sim_order_release(void *place) {
  if (__tsan_release) __tsan_release(place);
}

void sim_order_acquire(void *place) {
  if (__tsan_acquire) __tsan_acquire(place);
}

/* ---- memory whose use the sanitizers check --------------------------------------------------- */

/* From this call to resume_recording_history, thread sanitizer ignores accesses, so that it knows
 * of no earlier access to memory that is allocated between the two calls. */
static void stop_recording_history(void) {
  if (AnnotateIgnoreReadsBegin) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
}

static void resume_recording_history(void) {
  if (AnnotateIgnoreReadsEnd) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

void sim_make_undefined(void *p, size_t bytes) {
  memset(p, 0xFF, bytes);
  if (__msan_poison) __msan_poison(p, bytes);
}

void *sim_allocate_fresh(size_t bytes) {
  stop_recording_history();
  void *p = malloc(bytes ? bytes : 1);
  if (p) sim_make_undefined(p, bytes);
  resume_recording_history();
  if (!p) abort();
  return p;
}

void sim_free_fresh(void *p) {
  stop_recording_history();
  free(p);
  resume_recording_history();
}

void sim_poison(const void *p, size_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, bytes);
}

void sim_unpoison(const void *p, size_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, bytes);
}

bool sim_can_poison(void) { return __asan_poison_memory_region != NULL; }

/* ---- fibres: threads that the simulation switches itself ------------------------------------- */

enum { PAGE = 4096, CACHE_LINES = 59 };

sim_fibre *sim_running_fibre;
static sim_fibre *unused_fibres;

static void run_fibre_function(void) {
  sim_fibre *f = sim_running_fibre;
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(NULL, &f->caller_stack_bottom, &f->caller_stack_bytes);
  for (;;) {
    f->function(f->argument);
    sim_fibre_leave();
  }
}

/* Prepares the stack of a fibre: run_fibre_function, two registers for the jump, and a return
 * address of 0, where debuggers stop. Stacks begin at different offsets in their pages, because
 * stacks at the same offset would evict each other from the cache. */
static void prepare_stack(sim_fibre *f) {
  uintptr_t *stack_top =
      (uintptr_t *)(void *)(f->stack + SIM_STACK - f->stack_index % CACHE_LINES * 64) - 4;
  memset(stack_top, 0, 4 * sizeof *stack_top);
  stack_top[0] = (uintptr_t)run_fibre_function;
  f->sp = stack_top;
}

static void *map_memory(void *at, size_t bytes) {
  stop_recording_history();
  void *p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  resume_recording_history();
  if (p == MAP_FAILED) abort();
  return p;
}

static sim_fibre *make_fibre(void) {
  static size_t n;
  sim_fibre *f = calloc(1, sizeof *f);
  if (!f) abort();
  f->stack_index = n++;
  char *p = map_memory(NULL, PAGE + SIM_STACK);
  mprotect(p, PAGE, PROT_NONE);
  f->stack = p + PAGE;
  prepare_stack(f);
  return f;
}

sim_fibre *sim_fibre_get_spare(sim_fibres *spare, void (*work)(void *), void *arg) {
  sim_fibre *f = spare->n ? spare->fibres[--spare->n] : unused_fibres;
  if (!f)
    f = make_fibre();
  else if (f == unused_fibres)
    unused_fibres = f->next;
  if (!f->thread_order) f->thread_order = sim_order_new();
  f->function = work;
  f->argument = arg;
  return f;
}

/* Frees a fibre whose function has not returned. Its stack is reset, so that the next function
 * starts on a fresh stack. */
void sim_fibre_free_unfinished(sim_fibre *f) {
  sim_order_free(f->thread_order);
  f->thread_order = NULL;
  map_memory(f->stack, SIM_STACK);
  sim_unpoison(f->stack, SIM_STACK);
  prepare_stack(f);
  f->next = unused_fibres;
  unused_fibres = f;
}

void sim_fibre_keep_spare(sim_fibres *ended, sim_fibre *f) {
  if (f->thread_order && ended->n < SIM_MAX_FIBRES) {
    ended->fibres[ended->n++] = f;
    return;
  }
  if (f->thread_order) {
    sim_fibre_free_unfinished(f);
    return;
  }
  f->next = unused_fibres;
  unused_fibres = f;
}

void sim_fibres_move(sim_fibres *to, sim_fibres *from) {
  while (from->n) sim_fibre_keep_spare(to, from->fibres[--from->n]);
}

void sim_fibre_switch(sim_fibre *f, bool is_entering) {
  void *caller_fake_stack = NULL;
  if (__sanitizer_start_switch_fiber) {
    if (is_entering)
      __sanitizer_start_switch_fiber(&caller_fake_stack, f->stack, SIM_STACK);
    else
      __sanitizer_start_switch_fiber(&f->fake_stack, f->caller_stack_bottom, f->caller_stack_bytes);
  }
  if (f->thread_order) {
    sim_order *to = is_entering ? f->thread_order : f->caller_thread_order,
              *from = sim_order_enter_stream(to);
    if (is_entering) f->caller_thread_order = from;
  }
  sim_fibre_jump(&f->sp);
  if (!__sanitizer_finish_switch_fiber) return;
  if (is_entering)
    __sanitizer_finish_switch_fiber(caller_fake_stack, NULL, NULL);
  else
    __sanitizer_finish_switch_fiber(f->fake_stack, &f->caller_stack_bottom, &f->caller_stack_bytes);
}
