/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a launch of a kernel. Some of its blocks run at the same time, each simulated thread on a
 * fibre. A thread runs until it waits for other threads or ends. So threads of a kernel without
 * barriers run one after the other on one fibre.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/calls.h"
#include "tests/gpu/sim/sim_int.h"

enum { MAX_ARGS = 32, MAX_ARRAYS = 24, WARPS = SIM_MAX_THREADS / SIM_WARP };

typedef enum thread_state { NEW, READY, AT_BARRIER, AT_SHUFFLE, ENDED } thread_state;

typedef struct sim_group sim_group;

typedef struct sim_thread {
  sim_group *group;
  sim_fibre *fibre;
  thread_state state;
  unsigned index;
  /* place in the source of the barrier or shuffle where the thread waits */
  const char *waiting_for;
  uint64_t shuffle_bits; /* value that the thread passes to a shuffle, then the value it receives */
  unsigned lane_mask, source_lane;
} sim_thread;

/* Addresses by which thread sanitizer is told that accesses before a barrier or shuffle happen
 * before those after it. The two addresses are used in turn, because one thread may reach the
 * next barrier before the last thread has left the present one. */
typedef struct sim_meeting {
  char place_marks[2];
  unsigned round_number;
} sim_meeting;

typedef struct sim_array {
  const void *array_key;
  /* address and size of the array; its flags (sim_get_unwritten_flag) follow in memory */
  sim_place at;
} sim_array;

/* A block of a launch while it runs. */
struct sim_group {
  sim_launch *launch;
  clv_sim_index block_index;
  unsigned n_threads, n_ended, n_waiting;
  sim_meeting barrier_meeting, warp_meetings[WARPS];
  sim_array shared_arrays[MAX_ARRAYS];
  int n_arrays;
  size_t shared_bytes;
  sim_thread threads[SIM_MAX_THREADS];
};

struct sim_launch {
  clv_cuda_launch l;
  sim_call_stack call_stack;
  size_t bytes; /* size of this struct with the arguments */
  uint64_t next_block, n_blocks, first_block;
  sim_group *running_groups[SIM_MAX_RUNNING_BLOCKS];
  int n_groups, max_groups;
  sim_fibres *spare_fibres, ended_fibres;
  /* the addresses of these marks identify the launch for sim_order_before and sim_order_after;
   * their values are unused */
  char begin_mark, end_mark;
  /* offset of each argument from the start of the struct; the arguments follow */
  size_t argument_offsets[];
};

/* The kernel thread that runs on this thread of the host; NULL while the simulation's own code
 * runs. */
static _Thread_local sim_thread *running_thread;
static _Thread_local clv_sim_index thread_index, block_index, block_size, grid_size;
_Thread_local sim_place sim_thread_stack, sim_last_array, sim_launch_arguments;

/* ---- functions that kernels call ------------------------------------------------------------- */

clv_sim_index clv_sim_thread_index(void) { return thread_index; }
clv_sim_index clv_sim_block_index(void) { return block_index; }
clv_sim_index clv_sim_block_size(void) { return block_size; }
clv_sim_index clv_sim_grid_size(void) { return grid_size; }

void *clv_sim_shared(const void *key, size_t bytes) {
  sim_group *g = running_thread->group;
  for (int i = 0; i < g->n_arrays; i++)
    if (g->shared_arrays[i].array_key == key) return g->shared_arrays[i].at.lowest_address;
  g->shared_bytes += bytes;
  if (g->n_arrays == MAX_ARRAYS || g->shared_bytes > SIM_MAX_SHARED_BYTES)
    sim_report_fault("a block has more than %d arrays or %d bytes", MAX_ARRAYS,
                     SIM_MAX_SHARED_BYTES);
  sim_array *a = &g->shared_arrays[g->n_arrays++];
  *a = (sim_array){key, {sim_allocate_fresh(2 * bytes), bytes}};
  return a->at.lowest_address;
}

static void wait_at_meeting(sim_thread *t, sim_meeting *m, thread_state state) {
  char *place = &m->place_marks[m->round_number & 1];
  t->state = state;
  sim_order_before(place);
  sim_fibre_leave();
  sim_order_after(place);
}

void clv_sim_barrier(const char *where) {
  running_thread->waiting_for = where;
  running_thread->group->n_waiting++;
  wait_at_meeting(running_thread, &running_thread->group->barrier_meeting, AT_BARRIER);
}

uint64_t clv_sim_shuffle(unsigned mask, uint64_t bits, unsigned from, const char *where) {
  sim_thread *t = running_thread;
  if (!(mask & 1u << t->index % SIM_WARP))
    sim_report_fault("lane %u is not in its own mask", t->index);
  t->waiting_for = where;
  t->shuffle_bits = bits;
  t->lane_mask = mask;
  t->source_lane = from;
  wait_at_meeting(t, &t->group->warp_meetings[t->index / SIM_WARP], AT_SHUFFLE);
  return t->shuffle_bits;
}

static bool is_within(const void *p, size_t bytes, const void *object, size_t object_bytes) {
  return (const char *)p >= (const char *)object &&
         (const char *)p + bytes <= (const char *)object + object_bytes;
}

/* start and end of the program's image, set by the linker */
extern const char __executable_start, end;

static const sim_place *find_array(const sim_group *g, const void *p, size_t bytes) {
  for (int i = 0; i < g->n_arrays; i++)
    if (sim_place_contains(&g->shared_arrays[i].at, p, bytes)) return &g->shared_arrays[i].at;
  return NULL;
}

static bool touch_array_bytes(const sim_place *array, const void *p, size_t bytes, bool is_write) {
  char *unwritten = sim_get_unwritten_flag(array, p);
  sim_last_array = *array;
  for (size_t i = 0; i < bytes; i++) {
    if (is_write) unwritten[i] = 0;
    if (unwritten[i]) return false;
  }
  return true;
}

bool sim_launch_may_touch(const void *p, size_t bytes, bool is_write) {
  if (!running_thread || sim_place_contains(&sim_thread_stack, p, bytes)) return true;
  const sim_group *g = running_thread->group;
  const sim_place *a = find_array(g, p, bytes);
  if (a) return touch_array_bytes(a, p, bytes, is_write);
  return !is_write &&
         (sim_place_contains(&sim_launch_arguments, p, bytes) ||
          is_within(p, bytes, &__executable_start, (size_t)(&end - &__executable_start)));
}

bool sim_launch_is_shared(const void *p) {
  return running_thread && find_array(running_thread->group, p, 1);
}

void sim_launch_print_thread(void) {
  if (!running_thread) return;
  const sim_launch *l = running_thread->group->launch;
  fprintf(stderr, "cuda-sim: in thread %u of block %u,%u of %s, launched at\n",
          running_thread->index, running_thread->group->block_index.x,
          running_thread->group->block_index.y, l->l.name);
  sim_call_stack_print(&l->call_stack);
}

/* ---- running the threads of a block ---------------------------------------------------------- */

static void run_thread(void *arg) {
  sim_thread *t = arg;
  sim_launch *l = t->group->launch;
  void *args[MAX_ARGS];
  for (int i = 0; i < l->l.n_args; i++) args[i] = (char *)l + l->argument_offsets[i];
  sim_order_after(&l->begin_mark);
  l->l.call(args);
  sim_order_before(&l->end_mark);
  t->state = ENDED;
}

static void enter_thread(sim_thread *t) {
  sim_launch *l = t->group->launch;
  if (t->state == NEW) t->fibre = sim_fibre_get_spare(l->spare_fibres, run_thread, t);
  running_thread = t;
  thread_index.x = t->index;
  sim_thread_stack.lowest_address = t->fibre->stack;
  sim_fibre_enter(t->fibre);
  running_thread = NULL;
  if (t->state != ENDED) return;
  sim_fibre_keep_spare(&l->ended_fibres, t->fibre);
  t->group->n_ended++;
}

/* If all lanes of the mask have arrived at a shuffle, gives each lane the value that its source
 * lane passed. */
static void complete_shuffle(sim_group *g, unsigned warp) {
  sim_thread *lanes = &g->threads[warp * SIM_WARP];
  unsigned n = CLV_MIN(SIM_WARP, g->n_threads - warp * SIM_WARP), mask = 0;
  uint64_t passed_values[SIM_WARP];
  for (unsigned i = 0; i < n; i++) {
    passed_values[i] = lanes[i].shuffle_bits;
    if (lanes[i].state != AT_SHUFFLE) continue;
    if (mask && mask != lanes[i].lane_mask)
      sim_report_fault("lanes of a warp meet with different masks");
    mask = lanes[i].lane_mask;
  }
  if (n < SIM_WARP) mask &= (1u << n) - 1;
  for (unsigned i = 0; i < n; i++)
    if (mask & 1u << i && lanes[i].state != AT_SHUFFLE) return;
  if (!mask) return;
  g->warp_meetings[warp].round_number++;
  for (unsigned i = 0; i < n; i++) {
    if (!(mask & 1u << i)) continue;
    if (lanes[i].source_lane >= n || !(mask & 1u << lanes[i].source_lane))
      sim_report_fault("lane %u reads lane %u, which gives nothing, at %s", i, lanes[i].source_lane,
                       lanes[i].waiting_for);
    lanes[i].shuffle_bits = passed_values[lanes[i].source_lane];
    lanes[i].state = READY;
  }
}

static const sim_thread *find_waiting_thread(const sim_group *g, thread_state state) {
  for (unsigned i = 0; i < g->n_threads; i++)
    if (g->threads[i].state == state) return &g->threads[i];
  return NULL;
}

/* Called when all threads of the block wait. Ends the test with a report unless all have reached
 * the same barrier. */
static void complete_barrier(sim_group *g) {
  const sim_thread *t = find_waiting_thread(g, AT_BARRIER),
                   *shuffling_thread = find_waiting_thread(g, AT_SHUFFLE);
  if (shuffling_thread)
    sim_report_fault("%s waits for lanes that do not come, at %s", g->launch->l.name,
                     shuffling_thread->waiting_for);
  if (!t) return;
  if (g->n_ended)
    sim_report_fault("%u threads of a block of %s ended while others wait at %s", g->n_ended,
                     g->launch->l.name, t->waiting_for);
  for (unsigned i = 0; i < g->n_threads; i++) {
    if (g->threads[i].waiting_for != t->waiting_for &&
        strcmp(g->threads[i].waiting_for, t->waiting_for) != 0)
      sim_report_fault("threads of a block of %s wait at %s and at %s", g->launch->l.name,
                       t->waiting_for, g->threads[i].waiting_for);
    g->threads[i].state = READY;
  }
  g->barrier_meeting.round_number++;
  g->n_waiting = 0;
}

/* Sets the thread-local values that all threads of the block share, such as block_index. */
static void enter_group(const sim_group *g) {
  const clv_cuda_launch *l = &g->launch->l;
  block_index = g->block_index;
  block_size = (clv_sim_index){l->block, 1, 1};
  grid_size = (clv_sim_index){l->grid[0], l->grid[1], 1};
  sim_thread_stack.bytes = SIM_STACK;
  sim_launch_arguments = (sim_place){(char *)g->launch, g->launch->bytes};
}

static void leave_group(void) {
  sim_thread_stack.bytes = sim_last_array.bytes = sim_launch_arguments.bytes = 0;
}

/* Runs each thread of a block until it waits or ends, in random order. */
static void advance_group(sim_group *g) {
  unsigned index = (unsigned)sim_draw_below(g->n_threads),
           step = sim_draw_below(2) ? 1 : g->n_threads - 1;
  bool has_run_thread = false;
  enter_group(g);
  for (unsigned i = 0; i < g->n_threads;
       i++, index = index + step < g->n_threads ? index + step : index + step - g->n_threads) {
    sim_thread *t = &g->threads[index];
    if (t->state != NEW && t->state != READY) continue;
    enter_thread(t);
    if (t->state == AT_SHUFFLE) complete_shuffle(g, index / SIM_WARP);
    has_run_thread = true;
  }
  leave_group();
  if (!has_run_thread) complete_barrier(g);
}

/* ---- launches of kernels --------------------------------------------------------------------- */

sim_launch *sim_launch_new(const clv_cuda_launch *l, const sim_call_stack *call_stack) {
  size_t n = (size_t)l->n_args, bytes = sizeof(sim_launch) + n * sizeof(size_t), offset = 0;
  for (size_t i = 0; i < n; i++) bytes = clv_align_up(bytes, 16) + l->arg_bytes[i];
  if (n > MAX_ARGS) sim_report_fault("%s has %zu arguments; at most %d", l->name, n, MAX_ARGS);
  sim_launch *m = sim_allocate_fresh(bytes);
  *m = (sim_launch){.l = *l, .call_stack = *call_stack, .bytes = bytes};
  offset = sizeof(sim_launch) + n * sizeof(size_t);
  for (size_t i = 0; i < n; i++) {
    m->argument_offsets[i] = offset = clv_align_up(offset, 16);
    memcpy((char *)m + offset, l->args[i], l->arg_bytes[i]);
    offset += l->arg_bytes[i];
  }
  m->n_blocks = (uint64_t)l->grid[0] * l->grid[1];
  m->first_block = sim_draw_below(m->n_blocks);
  m->max_groups = 1 + (int)sim_draw_below(SIM_MAX_RUNNING_BLOCKS);
  return m;
}

sim_launch *sim_launch_copy(const sim_launch *l) {
  sim_launch *m = sim_allocate_fresh(l->bytes);
  memcpy(m, l, l->bytes);
  m->first_block = sim_draw_below(m->n_blocks);
  return m;
}

static void free_group(sim_group *g) {
  for (unsigned i = 0; i < g->n_threads; i++)
    if (g->threads[i].state != NEW && g->threads[i].state != ENDED)
      sim_fibre_free_unfinished(g->threads[i].fibre);
  for (int i = 0; i < g->n_arrays; i++) sim_free_fresh(g->shared_arrays[i].at.lowest_address);
  sim_free_fresh(g);
}

void sim_launch_free(sim_launch *l) {
  if (!l) return;
  for (int i = 0; i < l->n_groups; i++) free_group(l->running_groups[i]);
  while (l->ended_fibres.n) sim_fibre_free_unfinished(l->ended_fibres.fibres[--l->ended_fibres.n]);
  sim_free_fresh(l);
}

void sim_launch_check(const sim_launch *l, int device) {
  char what[160];
  for (int i = 0; i < l->l.n_args; i++) {
    void *p;
    if (!l->l.is_pointer[i]) continue;
    memcpy(&p, (const char *)l + l->argument_offsets[i], sizeof p);
    snprintf(what, sizeof what, "argument %d of %s", i, l->l.name);
    if (p) sim_memory_check(device, p, 0, what);
  }
}

static void begin_group(sim_launch *l) {
  uint64_t at = (l->first_block + l->next_block++) % l->n_blocks;
  sim_group *g = sim_allocate_fresh(sizeof *g);
  memset(g, 0, offsetof(sim_group, threads));
  g->launch = l;
  g->block_index = (clv_sim_index){(unsigned)(at % l->l.grid[0]), (unsigned)(at / l->l.grid[0]), 0};
  g->n_threads = l->l.block;
  for (unsigned i = 0; i < g->n_threads; i++) g->threads[i] = (sim_thread){.group = g, .index = i};
  l->running_groups[l->n_groups++] = g;
}

bool sim_launch_advance(sim_launch *l, sim_fibres *spare) {
  l->spare_fibres = spare;
  if (l->next_block == 0) sim_order_before(&l->begin_mark);
  if (l->next_block < l->n_blocks && l->n_groups < l->max_groups) begin_group(l);
  int at = (int)sim_draw_below((uint64_t)l->n_groups);
  sim_group *g = l->running_groups[at];
  advance_group(g);
  if (g->n_ended == g->n_threads) {
    free_group(g);
    l->running_groups[at] = l->running_groups[--l->n_groups];
  }
  bool is_done = l->next_block == l->n_blocks && l->n_groups == 0;
  if (!is_done) return false;
  sim_order_after(&l->end_mark);
  sim_fibres_move(spare, &l->ended_fibres);
  return true;
}
