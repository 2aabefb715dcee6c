/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the operations of each stream in their order. Random numbers decide which stream advances
 * next.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/sim/sim_int.h"

static sim_stream *streams;
static sim_fibres spare; /* fibres of freed streams; a new stream is ordered after all their work */
static uint64_t n_operations_done; /* number of finished operations: the simulation's clock */

/* ---- running the operations of streams ------------------------------------------------------- */

static void free_operation(sim_op *op) {
  sim_launch_free(op->launch);
  sim_mark_unref(op->mark);
  sim_free_fresh(op);
}

static void set_mark_done(sim_mark *m) {
  m->is_done = true;
  m->ms = (double)n_operations_done / 1000;
  sim_order_before(m);
}

bool sim_run_launch(sim_stream *s, sim_op *op) {
  return sim_launch_advance(op->launch, &s->spare_fibres);
}

bool sim_run_copy(sim_stream *s, sim_op *op) {
  (void)s;
  sim_memory_check_copy(op->src, &op->call_stack, "device memory");
  sim_memory_check_copy(op->dst, &op->call_stack, "device memory to copy to");
  memcpy(op->dst, op->src, op->bytes);
  if (op->copies_from_host)
    sim_checks_are_defined(op->dst, op->bytes);
  else if (!op->copies_to_host)
    sim_checks_copy_state(op->dst, op->src, op->bytes);
  return true;
}

bool sim_run_fill(sim_stream *s, sim_op *op) {
  (void)s;
  memset(op->dst, op->byte, op->bytes);
  sim_checks_are_defined(op->dst, op->bytes);
  return true;
}

bool sim_run_alloc(sim_stream *s, sim_op *op) {
  (void)s;
  sim_memory_on_alloc(op->dst);
  return true;
}

bool sim_run_free(sim_stream *s, sim_op *op) {
  (void)s;
  sim_memory_on_free(op->dst);
  return true;
}

bool sim_run_record(sim_stream *s, sim_op *op) {
  (void)s;
  set_mark_done(op->mark);
  return true;
}

bool sim_run_wait(sim_stream *s, sim_op *op) {
  (void)s;
  sim_order_after(op->mark);
  return true;
}

static void run_library_call(void *arg) {
  sim_op *op = arg;
  sim_order_after(&op->begin_mark);
  op->library_call(op);
  sim_order_before(&op->end_mark);
}

/* Runs a call of a simulated library like a kernel of one thread. The workspace is undefined before
 * and after the call. */
bool sim_run_library(sim_stream *s, sim_op *op) {
  sim_make_undefined(op->workspace, op->workspace_bytes);
  sim_checks_set_undefined(op->workspace, op->workspace_bytes);
  sim_order_before(&op->begin_mark);
  sim_fibre *f = sim_fibre_get_spare(&s->spare_fibres, run_library_call, op);
  sim_fibre_enter(f);
  sim_fibre_keep_spare(&s->spare_fibres, f);
  sim_order_after(&op->end_mark);
  return true;
}

static bool can_advance(const sim_stream *s) {
  return s->first_op && !(s->first_op->run == sim_run_wait && !s->first_op->mark->is_done);
}

static void remove_first_operation(sim_stream *s) {
  sim_op *op = s->first_op;
  s->first_op = op->next;
  if (!s->first_op) s->last_op = &s->first_op;
  free_operation(op);
}

/* Drops all operations of a stream of a broken device, so that no thread waits for them. */
static void drop_all_operations(sim_stream *s) {
  while (s->first_op) {
    if (s->first_op->run == sim_run_record) set_mark_done(s->first_op->mark);
    remove_first_operation(s);
  }
}

static void advance_stream(sim_stream *s) {
  sim_op *op = s->first_op;
  sim_order *previous_order = sim_order_enter_stream(s->order);
  sim_order_after(op);
  bool is_done = op->run(s, op);
  sim_order_before(s);
  sim_order_enter_stream(previous_order);
  n_operations_done++;
  if (is_done) remove_first_operation(s);
}

static sim_stream *draw_stream(void) {
  sim_stream *ready_streams[64];
  size_t n = 0;
  for (sim_stream *s = streams; s; s = s->next) {
    if (sim.is_broken[s->device]) drop_all_operations(s);
    if (can_advance(s) && n < CLV_COUNT(ready_streams)) ready_streams[n++] = s;
  }
  return n ? ready_streams[sim_draw_below(n)] : NULL;
}

void sim_advance_streams(uint64_t steps) {
  sim_stream *s = steps ? draw_stream() : NULL;
  if (!s) return;
  sim_memory_allow_access();
  for (; s && steps; steps--, s = draw_stream()) advance_stream(s);
  sim_memory_forbid_access();
}

/* Lets streams advance after an operation was enqueued. The seed decides how far: to their end, not
 * at all until the host waits, or sometimes some steps. */
static void draw_progress(void) {
  if (sim.o.seed % 3 == 1) return;
  sim_advance_streams(sim.o.seed % 3 == 2      ? UINT64_MAX
                      : sim_draw_below(4) == 0 ? sim_draw_below(32)
                                               : 0);
}

/* ---- enqueueing operations on streams -------------------------------------------------------- */

static sim_op *copy_operation(const sim_op *request) {
  sim_op *op = sim_allocate_fresh(sizeof *op);
  *op = *request;
  op->next = NULL;
  if (op->mark) op->mark->n_references++;
  return op;
}

void sim_enqueue(sim_stream *s, const sim_op *request) {
  sim_op *op = copy_operation(request),
         ***last_link = s->is_capturing ? &s->last_captured : &s->last_op;
  sim_call_stack_capture(&op->call_stack);
  sim_order_before(op);
  **last_link = op;
  *last_link = &op->next;
  if (!s->is_capturing) draw_progress();
}

void sim_enqueue_again(sim_stream *s, const sim_op *captured) {
  sim_op op = *captured;
  if (op.launch) op.launch = sim_launch_copy(op.launch);
  sim_enqueue(s, &op);
}

void sim_ops_free(sim_op *first) {
  while (first) {
    sim_op *op = first;
    first = op->next;
    free_operation(op);
  }
}

/* Advances streams until is_done(awaited) returns true. */
static void advance_until(bool (*is_done)(const void *awaited), const void *awaited,
                          const char *host_call) {
  sim_memory_allow_access();
  while (!is_done(awaited)) {
    sim_advance_streams(1 + sim_draw_below(64));
    if (!is_done(awaited) && !draw_stream())
      sim_report_fault("%s waits for what nobody will do", host_call);
  }
  sim_memory_forbid_access();
}

static bool is_stream_done(const void *s) { return !((const sim_stream *)s)->first_op; }
static bool is_mark_done(const void *m) { return ((const sim_mark *)m)->is_done; }

void sim_synchronize_stream(sim_stream *s) {
  advance_until(is_stream_done, s, "a stream");
  sim_order_after(s);
}

void sim_synchronize_mark(sim_mark *m) {
  advance_until(is_mark_done, m, "an event");
  sim_order_after(m);
}

void sim_mark_unref(sim_mark *m) {
  if (m && --m->n_references == 0) free(m);
}

/* ---- making and freeing streams -------------------------------------------------------------- */

sim_stream *sim_stream_new(int device) {
  sim_stream *s = calloc(1, sizeof *s);
  if (!s) abort();
  s->device = device;
  s->last_op = &s->first_op;
  s->order = sim_order_new();
  s->next = streams;
  sim_call_stack_capture(&s->call_stack);
  streams = s;
  sim_fibres_move(&s->spare_fibres, &spare);
  return s;
}

void sim_stream_free(sim_stream *s) {
  sim_stream **at = &streams;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  sim_order_free(s->order);
  sim_fibres_move(&spare, &s->spare_fibres);
  free(s);
}

static bool do_overlap(const void *a, size_t n, const void *b, size_t m) {
  return (const char *)a < (const char *)b + m && (const char *)b < (const char *)a + n;
}

bool sim_streams_are_using_host(const void *p, size_t bytes) {
  for (sim_stream *s = streams; s; s = s->next) {
    if (sim.is_broken[s->device]) drop_all_operations(s);
    for (const sim_op *op = s->first_op; op; op = op->next)
      if ((op->copies_from_host && do_overlap(op->src, op->bytes, p, bytes)) ||
          (op->copies_to_host && do_overlap(op->dst, op->bytes, p, bytes)))
        return true;
  }
  return false;
}

size_t sim_streams_count_leaks(void) {
  size_t n = 0;
  for (const sim_stream *s = streams; s; s = s->next, n++) {
    fputs("cuda-sim: a stream is left, made at\n", stderr);
    sim_call_stack_print(&s->call_stack);
  }
  return n;
}
