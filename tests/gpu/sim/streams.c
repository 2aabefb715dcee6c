/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked of a stream is done in its order; which stream goes on is drawn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/sim/sim_int.h"

static sim_stream *streams;
static sim_fibres spare; /* fibres of freed streams; a new stream is ordered after all their work */
static uint64_t n_done;  /* number of operations done: the simulation's clock */

/* ---- doing ----------------------------------------------------------------------------------- */

static void op_free(sim_op *op) {
  sim_launch_free(op->launch);
  sim_mark_unref(op->mark);
  sim_fresh_give(op);
}

static void mark_done(sim_mark *m) {
  m->done = true;
  m->ms = (double)n_done / 1000;
  sim_order_before(m);
}

bool sim_run_launch(sim_stream *s, sim_op *op) { return sim_launch_advance(op->launch, &s->spare); }

bool sim_run_copy(sim_stream *s, sim_op *op) {
  (void)s;
  sim_memory_check_copy(op->src, &op->lines, "device memory");
  sim_memory_check_copy(op->dst, &op->lines, "device memory to copy to");
  memcpy(op->dst, op->src, op->bytes);
  if (op->from_host)
    sim_checks_defined(op->dst, op->bytes);
  else if (!op->to_host)
    sim_checks_copy_state(op->dst, op->src, op->bytes);
  return true;
}

bool sim_run_fill(sim_stream *s, sim_op *op) {
  (void)s;
  memset(op->dst, op->byte, op->bytes);
  sim_checks_defined(op->dst, op->bytes);
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
  mark_done(op->mark);
  return true;
}

bool sim_run_wait(sim_stream *s, sim_op *op) {
  (void)s;
  sim_order_after(op->mark);
  return true;
}

static void library_main(void *arg) {
  sim_op *op = arg;
  sim_order_after(&op->begins);
  op->call(op);
  sim_order_before(&op->ends);
}

/* Runs a library's operation, as a launch of one thread. The workspace is undefined before and
 * after it. */
bool sim_run_library(sim_stream *s, sim_op *op) {
  sim_undefined(op->workspace, op->workspace_bytes);
  sim_checks_undefined(op->workspace, op->workspace_bytes);
  sim_order_before(&op->begins);
  sim_fibre *f = sim_fibre_take(&s->spare, library_main, op);
  sim_fibre_enter(f);
  sim_fibre_give(&s->spare, f);
  sim_order_after(&op->ends);
  return true;
}

static bool can_advance(const sim_stream *s) {
  return s->first && !(s->first->run == sim_run_wait && !s->first->mark->done);
}

static void pop(sim_stream *s) {
  sim_op *op = s->first;
  s->first = op->next;
  if (!s->first) s->last = &s->first;
  op_free(op);
}

/* Drops all operations of a broken device, so that nothing waits for them. */
static void drop_all(sim_stream *s) {
  while (s->first) {
    if (s->first->run == sim_run_record) mark_done(s->first->mark);
    pop(s);
  }
}

static void stream_advance(sim_stream *s) {
  sim_op *op = s->first;
  sim_order *before = sim_order_enter(s->order);
  sim_order_after(op);
  bool done = op->run(s, op);
  sim_order_before(s);
  sim_order_enter(before);
  n_done++;
  if (done) pop(s);
}

static sim_stream *draw_stream(void) {
  sim_stream *ready[64];
  size_t n = 0;
  for (sim_stream *s = streams; s; s = s->next) {
    if (sim.broken[s->device]) drop_all(s);
    if (can_advance(s) && n < CLV_COUNT(ready)) ready[n++] = s;
  }
  return n ? ready[sim_draw(n)] : NULL;
}

void sim_advance(uint64_t steps) {
  sim_stream *s = steps ? draw_stream() : NULL;
  if (!s) return;
  sim_memory_open();
  for (; s && steps; steps--, s = draw_stream()) stream_advance(s);
  sim_memory_close();
}

/* Draws how far streams advance: everything at once, nothing before the host waits, or a little at
 * times. */
static void draw_progress(void) {
  if (sim.o.seed % 3 == 1) return;
  sim_advance(sim.o.seed % 3 == 2 ? UINT64_MAX : sim_draw(4) == 0 ? sim_draw(32) : 0);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static sim_op *op_new(const sim_op *asked) {
  sim_op *op = sim_fresh_take(sizeof *op);
  *op = *asked;
  op->next = NULL;
  if (op->mark) op->mark->refs++;
  return op;
}

void sim_enqueue(sim_stream *s, const sim_op *asked) {
  sim_op *op = op_new(asked), ***last = s->captures ? &s->last_captured : &s->last;
  sim_lines_capture(&op->lines);
  sim_order_before(op);
  **last = op;
  *last = &op->next;
  if (!s->captures) draw_progress();
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
    op_free(op);
  }
}

/* Advances the device until `done` returns true. */
static void finish(bool (*done)(const void *what), const void *what, const char *who) {
  sim_memory_open();
  while (!done(what)) {
    sim_advance(1 + sim_draw(64));
    if (!done(what) && !draw_stream()) sim_fault("%s waits for what nobody will do", who);
  }
  sim_memory_close();
}

static bool stream_is_done(const void *s) { return !((const sim_stream *)s)->first; }
static bool mark_is_done(const void *m) { return ((const sim_mark *)m)->done; }

void sim_finish_stream(sim_stream *s) {
  finish(stream_is_done, s, "a stream");
  sim_order_after(s);
}

void sim_finish_mark(sim_mark *m) {
  finish(mark_is_done, m, "an event");
  sim_order_after(m);
}

void sim_mark_unref(sim_mark *m) {
  if (m && --m->refs == 0) free(m);
}

/* ---- streams --------------------------------------------------------------------------------- */

sim_stream *sim_stream_new(int device) {
  sim_stream *s = calloc(1, sizeof *s);
  if (!s) abort();
  s->device = device;
  s->last = &s->first;
  s->order = sim_order_new();
  s->next = streams;
  sim_lines_capture(&s->lines);
  streams = s;
  sim_fibres_move(&s->spare, &spare);
  return s;
}

void sim_stream_free(sim_stream *s) {
  sim_stream **at = &streams;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  sim_order_free(s->order);
  sim_fibres_move(&spare, &s->spare);
  free(s);
}

static bool overlap(const void *a, size_t n, const void *b, size_t m) {
  return (const char *)a < (const char *)b + m && (const char *)b < (const char *)a + n;
}

bool sim_streams_use_host(const void *p, size_t bytes) {
  for (sim_stream *s = streams; s; s = s->next) {
    if (sim.broken[s->device]) drop_all(s);
    for (const sim_op *op = s->first; op; op = op->next)
      if ((op->from_host && overlap(op->src, op->bytes, p, bytes)) ||
          (op->to_host && overlap(op->dst, op->bytes, p, bytes)))
        return true;
  }
  return false;
}

size_t sim_streams_leaks(void) {
  size_t n = 0;
  for (const sim_stream *s = streams; s; s = s->next, n++) {
    fputs("cuda-sim: a stream is left, made at\n", stderr);
    sim_lines_print(&s->lines);
  }
  return n;
}
