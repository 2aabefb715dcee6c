/* SPDX-License-Identifier: Apache-2.0
 *
 * A launch: some of its blocks are under way at once, each thread on a fibre. A thread runs until
 * it waits for others or ends, so that one without barriers takes and gives the same fibre.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/calls.h"
#include "tests/gpu/sim/sim_int.h"

enum { MOST_ARGS = 32, MOST_ARRAYS = 24, WARPS = SIM_MOST_THREADS / SIM_WARP };

typedef enum thread_state { NEW, READY, AT_BARRIER, AT_SHUFFLE, ENDED } thread_state;

typedef struct sim_group sim_group;

typedef struct sim_thread {
  sim_group *group;
  sim_fibre *fibre;
  thread_state state;
  unsigned index;
  const char *where; /* name of what the thread waits for */
  uint64_t bits;     /* value that the thread passes to a shuffle, then the value it receives */
  unsigned mask, from;
} sim_thread;

/* Data that threads exchange at a barrier. Two are used in turn, because the first thread to go on
 * may reach the next barrier before the last one has left this one. */
typedef struct sim_meeting {
  char places[2];
  unsigned round;
} sim_meeting;

typedef struct sim_array {
  const void *key;
  sim_place at; /* array's address and size, with the bytes of sim_unwritten_flag behind it */
} sim_array;

/* A block of a launch, from its start to its end. */
struct sim_group {
  sim_launch *launch;
  clv_sim_index at;
  unsigned n, ended, waiting;
  sim_meeting barrier, warps[WARPS];
  sim_array arrays[MOST_ARRAYS];
  int n_arrays;
  size_t shared_bytes;
  sim_thread threads[SIM_MOST_THREADS];
};

struct sim_launch {
  clv_cuda_launch l;
  sim_lines lines;
  size_t bytes; /* size of this struct with the arguments */
  uint64_t next, n, first;
  sim_group *groups[SIM_MOST_AT_ONCE];
  int n_groups, most_groups;
  sim_fibres *spare, ended;
  char begins, ends; /* addresses for sim_order_before and sim_order_after */
  /* offset of each argument from the start of the struct; the arguments follow */
  size_t offsets[];
};

/* The kernel thread that runs on this thread of the host; NULL while the simulation's own code
 * runs. */
static _Thread_local sim_thread *here;
static _Thread_local clv_sim_index index_here, block_here, block_size_here, grid_here;
_Thread_local sim_place sim_stack_here, sim_array_here, sim_arguments_here;

/* ---- what a kernel asks ---------------------------------------------------------------------- */

clv_sim_index clv_sim_thread_index(void) { return index_here; }
clv_sim_index clv_sim_block_index(void) { return block_here; }
clv_sim_index clv_sim_block_size(void) { return block_size_here; }
clv_sim_index clv_sim_grid_size(void) { return grid_here; }

void *clv_sim_shared(const void *key, size_t bytes) {
  sim_group *g = here->group;
  for (int i = 0; i < g->n_arrays; i++)
    if (g->arrays[i].key == key) return g->arrays[i].at.low;
  g->shared_bytes += bytes;
  if (g->n_arrays == MOST_ARRAYS || g->shared_bytes > SIM_MOST_SHARED)
    sim_fault("a block has more than %d arrays or %d bytes", MOST_ARRAYS, SIM_MOST_SHARED);
  sim_array *a = &g->arrays[g->n_arrays++];
  *a = (sim_array){key, {sim_fresh_take(2 * bytes), bytes}};
  return a->at.low;
}

static void meet(sim_thread *t, sim_meeting *m, thread_state state) {
  char *place = &m->places[m->round & 1];
  t->state = state;
  sim_order_before(place);
  sim_fibre_leave();
  sim_order_after(place);
}

void clv_sim_barrier(const char *where) {
  here->where = where;
  here->group->waiting++;
  meet(here, &here->group->barrier, AT_BARRIER);
}

uint64_t clv_sim_shuffle(unsigned mask, uint64_t bits, unsigned from, const char *where) {
  sim_thread *t = here;
  if (!(mask & 1u << t->index % SIM_WARP)) sim_fault("lane %u is not in its own mask", t->index);
  t->where = where;
  t->bits = bits;
  t->mask = mask;
  t->from = from;
  meet(t, &t->group->warps[t->index / SIM_WARP], AT_SHUFFLE);
  return t->bits;
}

static bool within(const void *p, size_t bytes, const void *of, size_t all) {
  return (const char *)p >= (const char *)of && (const char *)p + bytes <= (const char *)of + all;
}

/* start and end of the program's image, set by the linker */
extern const char __executable_start, end;

static const sim_place *array_of(const sim_group *g, const void *p, size_t bytes) {
  for (int i = 0; i < g->n_arrays; i++)
    if (sim_place_contains(&g->arrays[i].at, p, bytes)) return &g->arrays[i].at;
  return NULL;
}

static bool touch_array(const sim_place *array, const void *p, size_t bytes, bool write) {
  char *unwritten = sim_unwritten_flag(array, p);
  sim_array_here = *array;
  for (size_t i = 0; i < bytes; i++) {
    if (write) unwritten[i] = 0;
    if (unwritten[i]) return false;
  }
  return true;
}

bool sim_launch_touch(const void *p, size_t bytes, bool write) {
  if (!here || sim_place_contains(&sim_stack_here, p, bytes)) return true;
  const sim_group *g = here->group;
  const sim_place *a = array_of(g, p, bytes);
  if (a) return touch_array(a, p, bytes, write);
  return !write && (sim_place_contains(&sim_arguments_here, p, bytes) ||
                    within(p, bytes, &__executable_start, (size_t)(&end - &__executable_start)));
}

bool sim_launch_is_shared(const void *p) { return here && array_of(here->group, p, 1); }

void sim_launch_print_thread(void) {
  if (!here) return;
  const sim_launch *l = here->group->launch;
  fprintf(stderr, "cuda-sim: in thread %u of block %u,%u of %s, launched at\n", here->index,
          here->group->at.x, here->group->at.y, l->l.name);
  sim_lines_print(&l->lines);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void thread_run(void *arg) {
  sim_thread *t = arg;
  sim_launch *l = t->group->launch;
  void *args[MOST_ARGS];
  for (int i = 0; i < l->l.n_args; i++) args[i] = (char *)l + l->offsets[i];
  sim_order_after(&l->begins);
  l->l.call(args);
  sim_order_before(&l->ends);
  t->state = ENDED;
}

static void thread_enter(sim_thread *t) {
  sim_launch *l = t->group->launch;
  if (t->state == NEW) t->fibre = sim_fibre_take(l->spare, thread_run, t);
  here = t;
  index_here.x = t->index;
  sim_stack_here.low = t->fibre->stack;
  sim_fibre_enter(t->fibre);
  here = NULL;
  if (t->state != ENDED) return;
  sim_fibre_give(&l->ended, t->fibre);
  t->group->ended++;
}

/* Called when all lanes of a mask have arrived: gives each the value that another one passed. */
static void complete_shuffle(sim_group *g, unsigned warp) {
  sim_thread *lanes = &g->threads[warp * SIM_WARP];
  unsigned n = CLV_MIN(SIM_WARP, g->n - warp * SIM_WARP), mask = 0;
  uint64_t given[SIM_WARP];
  for (unsigned i = 0; i < n; i++) {
    given[i] = lanes[i].bits;
    if (lanes[i].state != AT_SHUFFLE) continue;
    if (mask && mask != lanes[i].mask) sim_fault("lanes of a warp meet with different masks");
    mask = lanes[i].mask;
  }
  if (n < SIM_WARP) mask &= (1u << n) - 1;
  for (unsigned i = 0; i < n; i++)
    if (mask & 1u << i && lanes[i].state != AT_SHUFFLE) return;
  if (!mask) return;
  g->warps[warp].round++;
  for (unsigned i = 0; i < n; i++) {
    if (!(mask & 1u << i)) continue;
    if (lanes[i].from >= n || !(mask & 1u << lanes[i].from))
      sim_fault("lane %u reads lane %u, which gives nothing, at %s", i, lanes[i].from,
                lanes[i].where);
    lanes[i].bits = given[lanes[i].from];
    lanes[i].state = READY;
  }
}

static const sim_thread *one_that_waits(const sim_group *g, thread_state state) {
  for (unsigned i = 0; i < g->n; i++)
    if (g->threads[i].state == state) return &g->threads[i];
  return NULL;
}

/* Called when the block's threads wait: they have all reached one barrier, or it is a fault. */
static void complete_barrier(sim_group *g) {
  const sim_thread *t = one_that_waits(g, AT_BARRIER), *other = one_that_waits(g, AT_SHUFFLE);
  if (other)
    sim_fault("%s waits for lanes that do not come, at %s", g->launch->l.name, other->where);
  if (!t) return;
  if (g->ended)
    sim_fault("%u threads of a block of %s ended while others wait at %s", g->ended,
              g->launch->l.name, t->where);
  for (unsigned i = 0; i < g->n; i++) {
    if (g->threads[i].where != t->where && strcmp(g->threads[i].where, t->where) != 0)
      sim_fault("threads of a block of %s wait at %s and at %s", g->launch->l.name, t->where,
                g->threads[i].where);
    g->threads[i].state = READY;
  }
  g->barrier.round++;
  g->waiting = 0;
}

/* Sets up the thread-local values that each thread of the block uses. */
static void group_enter(const sim_group *g) {
  const clv_cuda_launch *l = &g->launch->l;
  block_here = g->at;
  block_size_here = (clv_sim_index){l->block, 1, 1};
  grid_here = (clv_sim_index){l->grid[0], l->grid[1], 1};
  sim_stack_here.bytes = SIM_STACK;
  sim_arguments_here = (sim_place){(char *)g->launch, g->launch->bytes};
}

static void group_leave(void) {
  sim_stack_here.bytes = sim_array_here.bytes = sim_arguments_here.bytes = 0;
}

/* Runs each thread of a block until it waits or ends, in random order. */
static void group_advance(sim_group *g) {
  unsigned at = (unsigned)sim_draw(g->n), step = sim_draw(2) ? 1 : g->n - 1;
  bool any = false;
  group_enter(g);
  for (unsigned i = 0; i < g->n; i++, at = at + step < g->n ? at + step : at + step - g->n) {
    sim_thread *t = &g->threads[at];
    if (t->state != NEW && t->state != READY) continue;
    thread_enter(t);
    if (t->state == AT_SHUFFLE) complete_shuffle(g, at / SIM_WARP);
    any = true;
  }
  group_leave();
  if (!any) complete_barrier(g);
}

/* ---- launches -------------------------------------------------------------------------------- */

sim_launch *sim_launch_new(const clv_cuda_launch *l, const sim_lines *lines) {
  size_t n = (size_t)l->n_args, bytes = sizeof(sim_launch) + n * sizeof(size_t), at = 0;
  for (size_t i = 0; i < n; i++) bytes = clv_align_up(bytes, 16) + l->arg_bytes[i];
  if (n > MOST_ARGS) sim_fault("%s has %zu arguments; at most %d", l->name, n, MOST_ARGS);
  sim_launch *m = sim_fresh_take(bytes);
  *m = (sim_launch){.l = *l, .lines = *lines, .bytes = bytes};
  at = sizeof(sim_launch) + n * sizeof(size_t);
  for (size_t i = 0; i < n; i++) {
    m->offsets[i] = at = clv_align_up(at, 16);
    memcpy((char *)m + at, l->args[i], l->arg_bytes[i]);
    at += l->arg_bytes[i];
  }
  m->n = (uint64_t)l->grid[0] * l->grid[1];
  m->first = sim_draw(m->n);
  m->most_groups = 1 + (int)sim_draw(SIM_MOST_AT_ONCE);
  return m;
}

sim_launch *sim_launch_copy(const sim_launch *l) {
  sim_launch *m = sim_fresh_take(l->bytes);
  memcpy(m, l, l->bytes);
  m->first = sim_draw(m->n);
  return m;
}

static void group_free(sim_group *g) {
  for (unsigned i = 0; i < g->n; i++)
    if (g->threads[i].state != NEW && g->threads[i].state != ENDED)
      sim_fibre_drop(g->threads[i].fibre);
  for (int i = 0; i < g->n_arrays; i++) sim_fresh_give(g->arrays[i].at.low);
  sim_fresh_give(g);
}

void sim_launch_free(sim_launch *l) {
  if (!l) return;
  for (int i = 0; i < l->n_groups; i++) group_free(l->groups[i]);
  while (l->ended.n) sim_fibre_drop(l->ended.all[--l->ended.n]);
  sim_fresh_give(l);
}

void sim_launch_check(const sim_launch *l, int device) {
  char what[160];
  for (int i = 0; i < l->l.n_args; i++) {
    void *p;
    if (!l->l.is_pointer[i]) continue;
    memcpy(&p, (const char *)l + l->offsets[i], sizeof p);
    snprintf(what, sizeof what, "argument %d of %s", i, l->l.name);
    if (p) sim_memory_check(device, p, 0, what);
  }
}

static void group_begin(sim_launch *l) {
  uint64_t at = (l->first + l->next++) % l->n;
  sim_group *g = sim_fresh_take(sizeof *g);
  memset(g, 0, offsetof(sim_group, threads));
  g->launch = l;
  g->at = (clv_sim_index){(unsigned)(at % l->l.grid[0]), (unsigned)(at / l->l.grid[0]), 0};
  g->n = l->l.block;
  for (unsigned i = 0; i < g->n; i++) g->threads[i] = (sim_thread){.group = g, .index = i};
  l->groups[l->n_groups++] = g;
}

bool sim_launch_advance(sim_launch *l, sim_fibres *spare) {
  l->spare = spare;
  if (l->next == 0) sim_order_before(&l->begins);
  if (l->next < l->n && l->n_groups < l->most_groups) group_begin(l);
  int at = (int)sim_draw((uint64_t)l->n_groups);
  sim_group *g = l->groups[at];
  group_advance(g);
  if (g->ended == g->n) {
    group_free(g);
    l->groups[at] = l->groups[--l->n_groups];
  }
  bool done = l->next == l->n && l->n_groups == 0;
  if (!done) return false;
  sim_order_after(&l->ends);
  sim_fibres_move(spare, &l->ended);
  return true;
}
