/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace of a context: which work it did at this node and when, as rows of numbers. ENDED
 * carries the rows to the program. Only contexts with CLV_FLAG_TRACE are traced. If there is no
 * memory for more rows, later ones are omitted.
 */
#include <string.h>

#include "common/engine/context_int.h"

enum { INITIAL_ROWS = 256, MAX_ROWS = 65536 };

static clv_tensor *alloc_rows(clv_contexts *e, int64_t n) {
  clv_tensor *t;
  clv_err ignored;
  clv_shape shape = CLV_SHAPE(n, CLV_TRACE_COLUMNS);
  if (clv_pool_alloc_tensor(e->env.pool, CLV_I64, &shape, &t, &ignored) != CLV_OK) return NULL;
  memset(t->data, 0, t->bytes); /* readers ignore rows of zeros */
  return t;
}

void clv_context_begin_trace(clv_contexts *e, clv_context *ctx) {
  if (!ctx->trace) ctx->trace = alloc_rows(e, INITIAL_ROWS);
}

static bool ensure_capacity(clv_contexts *e, clv_context *ctx) {
  int64_t n = ctx->trace->shape.dim[0];
  if (ctx->n_trace_rows < n) return true;
  clv_tensor *larger = n < MAX_ROWS ? alloc_rows(e, 4 * n) : NULL;
  if (!larger) return false;
  memcpy(larger->data, ctx->trace->data, ctx->trace->bytes);
  clv_tensor_unref(ctx->trace);
  ctx->trace = larger;
  return true;
}

static void add_row(clv_contexts *e, clv_context *ctx, const int64_t *row) {
  if (!ctx->trace || !ensure_capacity(e, ctx)) return;
  memcpy((int64_t *)ctx->trace->data + (size_t)ctx->n_trace_rows++ * CLV_TRACE_COLUMNS, row,
         CLV_TRACE_COLUMNS * sizeof *row);
}

/* Returns the time at which work ended: its start by the host's clock plus its duration, which a
 * device may have measured. */
static int64_t get_end_ns(const clv_contexts *e, const clv_work *w) {
  return (int64_t)(w->begin_ns + clv_work_duration_ns(e, w));
}

void clv_context_trace_call(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                            const clv_context_call *c, uint64_t begin_ns) {
  if (!ctx->trace) return;
  const int64_t row[CLV_TRACE_COLUMNS] = {
      kind, c->module,           c->micro_batch,     (int64_t)begin_ns, get_end_ns(e, &c->work),
      0,    (int64_t)c->version, (int64_t)c->out->id};
  add_row(e, ctx, row);
}

void clv_context_trace_step(clv_contexts *e, clv_context *ctx, const clv_planned_step *s) {
  if (!ctx->trace) return;
  const int64_t row[CLV_TRACE_COLUMNS] = {CLV_TRACE_STEP,
                                          s->module,
                                          0,
                                          (int64_t)s->work.begin_ns,
                                          get_end_ns(e, &s->work),
                                          0,
                                          (int64_t)clv_contexts_module(e, s->module)->version,
                                          0};
  add_row(e, ctx, row);
}

void clv_context_trace_packet(clv_contexts *e, clv_context *ctx, clv_trace_kind kind,
                              const clv_packet *p, uint64_t begin_ns) {
  if (!ctx->trace || !p->frame.n_tensors) return;
  const int64_t row[CLV_TRACE_COLUMNS] = {kind,
                                          CLV_MODULE_ALL,
                                          p->frame.micro_batch,
                                          (int64_t)begin_ns,
                                          (int64_t)begin_ns,
                                          (int64_t)p->tensor[0]->bytes,
                                          0,
                                          (int64_t)p->frame.message_id};
  add_row(e, ctx, row);
}

clv_tensor *clv_context_trace_rows(const clv_context *ctx) {
  return ctx->n_trace_rows ? clv_tensor_ref(ctx->trace) : NULL;
}
