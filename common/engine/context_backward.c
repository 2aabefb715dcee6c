/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward passes: PREPARE says which calls take part and how many gradients come for each. Those
 * of one module run in the order in which it lists them, each when its gradients are here, so that
 * every sum has one order; modules do not wait for each other.
 */
#include "common/engine/context_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- contributions --------------------------------------------------------------------------- */

void clv_value_forget_gradients(clv_contexts *e, clv_value *v, uint32_t phase) {
  while (v->got && v->got->phase <= phase) {
    clv_contribution *k = v->got;
    v->got = k->next;
    clv_tensor_unref(k->tensor);
    clv_slab_give(&e->contributions, k);
  }
}

/* Keeps a gradient (a reference is taken; NULL: nothing flows) until its call runs. */
static clv_code contribute(clv_contexts *e, clv_value *v, uint32_t phase, uint32_t order,
                           clv_tensor *t, clv_err *err) {
  clv_contribution **at = &v->got, *k;
  uint32_t before = 0;
  for (; *at && ((*at)->phase < phase || ((*at)->phase == phase && (*at)->order < order)); before++)
    at = &(*at)->next;
  if (before >= 2 * CLV_WIRE_CONTRIBUTIONS) /* those of a pass and of the next */
    return clv_fail(err, CLV_EXHAUSTED, "more than %u gradients of call %llx wait", before,
                    (unsigned long long)v->id);
  if (*at && (*at)->phase == phase && (*at)->order == order)
    return clv_fail(err, CLV_EXISTS, "call %llx has gradient %u of phase %u already",
                    (unsigned long long)v->id, order, phase);
  CLV_TRY(clv_slab_take(e, &e->contributions, &k, err));
  *k = (clv_contribution){.next = *at, .phase = phase, .order = order};
  if (t) k->tensor = clv_tensor_ref(t);
  *at = k;
  return CLV_OK;
}

static uint32_t count_got(const clv_context_call *c, uint32_t phase) {
  uint32_t n = 0;
  for (const clv_contribution *k = c->out->got; k; k = k->next) n += k->phase == phase;
  return n;
}

/* ---- the gradient of a call's value ---------------------------------------------------------- */

static clv_code check_gradient(const clv_context_call *c, const clv_tensor *t, clv_err *err) {
  if (t->dtype == CLV_F32 && clv_shape_equal(&t->shape, &c->out_shape)) return CLV_OK;
  char w[160], g[160];
  return clv_fail(err, CLV_INVALID, "the value of module %u is f32 %s, its gradient %s %s",
                  c->module, clv_shape_format(&c->out_shape, w, sizeof w), clv_dtype_name(t->dtype),
                  clv_shape_format(&t->shape, g, sizeof g));
}

static clv_code start_of_root(clv_contexts *e, const clv_context_call *c, clv_tensor **ret,
                              clv_err *err) {
  CLV_TRY(clv_pool_tensor(e->env.pool, CLV_F32, &c->out_shape, ret, err));
  if ((*ret)->n != 1)
    return clv_fail(err, CLV_INVALID, "the value of module %u has %zu elements; a root is a scalar",
                    c->module, (*ret)->n);
  *(float *)(*ret)->data = c->root;
  return CLV_OK;
}

/* The contributions of a phase in ascending order, added. *ret NULL when nothing flows. The first
 * tensor is copied only where another one is added to it: others may still read it. */
static clv_code sum_up(clv_contexts *e, const clv_context_call *c, uint32_t phase, clv_tensor **ret,
                       clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *sum = NULL;
  bool own = c->root != 0;
  if (own) CLV_TRY(start_of_root(e, c, &sum, err));
  for (const clv_contribution *k = c->out->got; k; k = k->next) {
    if (k->phase != phase || !k->tensor) continue;
    CLV_TRY(check_gradient(c, k->tensor, err));
    if (!sum) {
      sum = clv_tensor_ref(k->tensor);
      continue;
    }
    if (!own) {
      clv_tensor *first = sum;
      sum = NULL;
      clv_code code = clv_pool_tensor(e->env.pool, CLV_F32, &c->out_shape, &sum, err);
      if (code == CLV_OK) memcpy(sum->data, first->data, first->bytes);
      clv_tensor_unref(first);
      CLV_TRY(code);
      own = true;
    }
    c->mod->o.backend->add(CLV_F32, sum->data, k->tensor->data, sum->n);
  }
  *ret = clv_steal(&sum);
  return CLV_OK;
}

/* ---- where gradients go ---------------------------------------------------------------------- */

static clv_code send_gradient(clv_contexts *e, clv_context *ctx, const clv_gradient_target *t,
                              clv_tensor *din, clv_err *err) {
  clv_value *v = clv_context_value(e, ctx, t->value);
  if (v && v->maker) return contribute(e, v, ctx->phase, t->order, din, err);
  clv_packet *p;
  CLV_TRY(clv_context_packet(e, CLV_GRADIENT, ctx, t->value, t->name, &p, err));
  p->frame.phase = ctx->phase;
  p->frame.order = t->order;
  if (din) clv_packet_add(p, din);
  clv_context_note_packet(e, ctx, CLV_TRACE_GRADIENT_OUT, p, clv_now_ns());
  e->env.emit(e->env.user, p);
  return CLV_OK;
}

static clv_code send_gradients(clv_contexts *e, clv_context_call *c, clv_tensor *const *dins,
                               clv_err *err) {
  for (uint32_t i = 0; i < c->n_in; i++)
    if (c->targets[i].value)
      CLV_TRY(send_gradient(e, c->out->ctx, &c->targets[i], dins ? dins[i] : NULL, err));
  return CLV_OK;
}

/* The block of a module's gradients in a context; NULL for a module that does not learn. */
static clv_code gradients_of(clv_contexts *e, clv_context *ctx, const clv_context_call *c,
                             clv_module_gradient **ret, clv_err *err) {
  clv_module_gradient **at = &ctx->gradients, *g;
  *ret = NULL;
  if (!c->mod->n_learning) return CLV_OK;
  while (*at && (*at)->module < c->module) at = &(*at)->next;
  if (*at && (*at)->module == c->module) {
    *ret = *at;
    return CLV_OK;
  }
  clv_shape shape = CLV_SHAPE((int64_t)c->mod->params->trainable_bytes);
  CLV_TRY(clv_slab_take(e, &e->gradients, &g, err));
  *g = (clv_module_gradient){.next = *at, .module = c->module, .mod = c->mod};
  clv_code code = clv_pool_tensor(e->env.pool, CLV_U8, &shape, &g->block, err);
  if (code != CLV_OK) {
    clv_slab_give(&e->gradients, g);
    return code;
  }
  *at = g;
  *ret = g;
  return CLV_OK;
}

/* ---- one call -------------------------------------------------------------------------------- */

static clv_code params_changed(const clv_context_call *c, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION,
                  "the parameters of module %u have changed since the forward of call %llx, whose "
                  "backward needs them as they were",
                  c->module, (unsigned long long)c->out->id);
}

static clv_code check_call(const clv_context_call *c, clv_err *err) {
  unsigned long long id = c->out->id;
  if (c->phase == SPENT)
    return clv_fail(err, CLV_PRECONDITION,
                    "call %llx of module %u has had its backward; retain the first one to have a "
                    "second",
                    id, c->module);
  if (c->phase == INFERRED)
    return clv_fail(err, CLV_PRECONDITION, "call %llx of module %u has no backward: %s", id,
                    c->module,
                    c->flags & CLV_FLAG_TRAINING ? "nothing in it needs a gradient"
                                                 : "it was made without TRAINING");
  bool reads = c->phase == RETAINED || clv_plan_get_info(c->plan->plan)->backward_reads_params;
  bool changed = !c->weights && c->version != c->mod->version;
  return reads && changed ? params_changed(c, err) : CLV_OK;
}

/* After a backward the saved state is gone: the forward runs again, with the same random numbers,
 * and running statistics as they are. */
static clv_code run_again(clv_contexts *e, clv_context_call *c, clv_err *err) {
  clv_module *m = c->mod;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *out = NULL;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *kept = NULL;
  void *buffers = (char *)m->block + m->params->trainable_bytes;
  size_t bytes = clv_module_buffer_bytes(m);
  clv_shape shape = CLV_SHAPE((int64_t)bytes);
  if (bytes) CLV_TRY(clv_pool_tensor(e->env.pool, CLV_U8, &shape, &kept, err));
  CLV_TRY(clv_call_output(e, c, &out, err));
  if (bytes) memcpy(kept->data, buffers, bytes);
  clv_code code = clv_call_forward(c, out, err);
  if (bytes) memcpy(buffers, kept->data, bytes);
  return code;
}

/* What the plan keeps of the weights is of the call that ran last, before a step or behind it. */
static clv_code own_weights(const clv_context_call *c, clv_err *err) {
  if (!clv_plan_get_info(c->plan->plan)->backward_reads_params) return CLV_OK;
  return clv_plan_refresh(c->plan->plan, c->state, clv_call_block(c), c->version, err);
}

clv_code clv_call_backward_weight(clv_contexts *e, clv_context_call *c, clv_err *err) {
  clv_module_gradient *g;
  CLV_TRY(gradients_of(e, c->out->ctx, c, &g, err));
  bool add = g && g->weights_filled;
  if (g) g->weights_filled = true;
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_plan_backward_weight(c->plan->plan, c->state, clv_call_block(c),
                                   g ? g->block->data : NULL, add, err));
  clv_counter_add(&c->mod->counts.compute_ns, clv_now_ns() - begin);
  return CLV_OK;
}

/* The calls of a module are added in their order: none before an earlier one whose turn is to
 * come. */
static clv_code weights_in_order(const clv_context_call *c, clv_module_gradient *g, clv_err *err) {
  uint32_t own = c->places[ORDER_WEIGHT].position;
  if (g && g->weight_position > (own ? own : c->out->ctx->positions_done))
    return clv_fail(
        err, CLV_PRECONDITION,
        "an earlier call of module %u has position %u for the gradients of its parameters, "
        "and those of call %llx would be added before",
        c->module, g->weight_position, (unsigned long long)c->out->id);
  if (g && own) g->weight_position = own;
  return CLV_OK;
}

static clv_code compute(clv_contexts *e, clv_context_call *c, const clv_tensor *dout,
                        clv_tensor **dins, clv_err *err) {
  clv_context *ctx = c->out->ctx;
  clv_module *m = c->mod;
  void *to[CLV_MAX_INPUTS] = {0};
  clv_module_gradient *g;
  CLV_TRY(gradients_of(e, ctx, c, &g, err));
  CLV_TRY(weights_in_order(c, g, err));
  if (c->phase == RETAINED) CLV_TRY(run_again(e, c, err));
  for (uint32_t i = 0; i < c->n_in; i++) {
    if (!(c->input_grads >> i & 1)) continue;
    CLV_TRY(clv_pool_tensor(e->env.pool, CLV_F32, &c->in[i]->shape, &dins[i], err));
    to[i] = dins[i]->data;
  }
  bool add = g && g->filled;
  if (g) g->filled = true;
  uint64_t begin = clv_now_ns();
  CLV_TRY(own_weights(c, err));
  CLV_TRY(clv_plan_backward_input(c->plan->plan, c->state, clv_call_block(c), dout->data, to,
                                  g ? g->block->data : NULL, add, err));
  clv_counter_add(&m->counts.compute_ns, clv_now_ns() - begin);
  clv_counter_add(&m->counts.backwards, 1);
  bool split = c->places[ORDER_WEIGHT].position;
  if (split) clv_context_note(e, ctx, CLV_TRACE_INPUT, c, begin);
  CLV_TRY(send_gradients(e, c, dins, err)); /* before the weights' own, so that others can start */
  if (split) return CLV_OK;
  CLV_TRY(clv_call_backward_weight(e, c, err));
  clv_context_note(e, ctx, CLV_TRACE_BACKWARD, c, begin);
  return CLV_OK;
}

void clv_call_after_backward(clv_contexts *e, clv_context_call *c) {
  clv_module_call_put(c->plan, c->state);
  c->state = NULL;
  c->had_backward = true;
  c->phase = c->out->ctx->retain ? RETAINED : SPENT;
  if (c->phase == SPENT) clv_call_release(e, c);
}

static clv_code backward_of(clv_contexts *e, clv_context_call *c, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dout = NULL;
  clv_tensor *dins[CLV_MAX_INPUTS] = {0};
  CLV_TRY(check_call(c, err));
  CLV_TRY(clv_context_core(e, c->mod, err));
  CLV_TRY(sum_up(e, c, c->out->ctx->phase, &dout, err));
  if (!dout) {
    clv_call_after_backward(e, c);
    return send_gradients(e, c, NULL, err);
  }
  clv_code code = compute(e, c, dout, dins, err);
  for (uint32_t i = 0; i < c->n_in; i++) clv_tensor_unref(dins[i]);
  if (code == CLV_OK && c->places[ORDER_WEIGHT].position)
    c->weight_due = true;
  else if (code == CLV_OK)
    clv_call_after_backward(e, c);
  return code;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static bool took_part(const clv_context *ctx, uint32_t module) {
  return ctx->took_part[module / 8] >> (module % 8) & 1;
}

/* Of one module; 0 for each parameter when nothing flowed to it. Returns the place behind them. */
static double *sums_of(const clv_module *m, const clv_module_gradient *g, double *at) {
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *q = &m->params->list[i];
    if (!q->trainable || q->frozen) continue;
    const char *from = g && g->filled ? (const char *)g->block->data + q->offset : NULL;
    *at++ = from ? m->o.backend->sum_squares((const float *)from, q->n) : 0;
  }
  return at;
}

double clv_gradient_square(const clv_module_gradient *g) {
  const clv_module *m = g->mod;
  double sum = 0;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *q = &m->params->list[i];
    const char *from = (const char *)g->block->data + q->offset;
    if (q->trainable && !q->frozen) sum += m->o.backend->sum_squares((const float *)from, q->n);
  }
  return sum;
}

/* Sums of squares of all gradients, in the order of modules and parameters, of the modules that
 * took part; NULL for none. */
static clv_code sum_squares(clv_contexts *e, const clv_context *ctx, clv_tensor **ret,
                            double *ret_total, clv_err *err) {
  int64_t n = 0;
  *ret_total = 0;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if (took_part(ctx, i)) n += e->env.module(e->env.user, i)->n_learning;
  if (!n) return CLV_OK;
  clv_shape shape = CLV_SHAPE(n);
  CLV_TRY(clv_pool_tensor(e->env.pool, CLV_F64, &shape, ret, err));
  double *at = (*ret)->data;
  const clv_module_gradient *g = ctx->gradients;
  (void)clv_share_take(e->env.share, 1); /* whether or not: it is over soon */
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    while (g && g->module < i) g = g->next;
    if (took_part(ctx, i))
      at = sums_of(e->env.module(e->env.user, i), g && g->module == i ? g : NULL, at);
  }
  for (int64_t i = 0; i < n; i++) *ret_total += ((double *)(*ret)->data)[i];
  return CLV_OK;
}

static clv_code add_vote(clv_contexts *e, const clv_context *ctx, clv_packet *p, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *sums = NULL;
  double total;
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next)
    CLV_TRY(clv_module_snapshot_ready(g->mod, err)); /* nothing may fail at APPLY */
  CLV_TRY(sum_squares(e, ctx, &sums, &total, err));
  p->frame.has_vote = true;
  p->frame.vote.finite = isfinite(total);
  if (sums) clv_packet_add(p, sums);
  return CLV_OK;
}

static clv_code finish(clv_contexts *e, clv_context *ctx, clv_err *err) {
  clv_packet *p;
  ctx->active = false;
  CLV_TRY(clv_context_packet(e, CLV_FINISHED, ctx, ++*e->env.next_message, 0, &p, err));
  p->frame.phase = ctx->phase;
  clv_code code = ctx->vote ? add_vote(e, ctx, p, err) : CLV_OK;
  if (code != CLV_OK) {
    clv_packet_free(p);
    return code;
  }
  e->env.emit(e->env.user, p);
  return CLV_OK;
}

static void pop_needed(clv_contexts *e, clv_context *ctx, clv_strand *s) {
  clv_context_call *c = s->first;
  s->first = c->next_needed;
  ctx->n_needed--;
  c->needed = false;
  c->root = 0;
  memset(c->targets, 0, sizeof c->targets);
  if (c->places[ORDER_BACKWARD].position) {
    clv_order_leave(ctx, ORDER_BACKWARD, &c->places[ORDER_BACKWARD]);
    clv_order_done(e, ctx);
  }
  clv_value_forget_gradients(e, c->out, ctx->phase);
  clv_call_let_followers_run(e, c);
  clv_value_free_if_dropped(e, c->out);
}

/* Whether the strand's next call can run, or be refused. */
static bool has_come(const clv_contexts *e, const clv_context *ctx, const clv_strand *s) {
  const clv_context_call *c = s->first;
  if (!c || c->phase == WAITING) return false;
  const clv_order_place *p = &c->places[ORDER_BACKWARD];
  if (p->position && !clv_order_is_due(ctx, p)) return false;
  if (clv_queue_changes_before(e, c->module, ctx->prepared)) return false;
  return c->out->failed || count_got(c, ctx->phase) >= c->contributions;
}

/* Returns false when the context has failed, and the strand with it. */
static bool run_next(clv_contexts *e, clv_context *ctx, clv_strand *s) {
  clv_context_call *c = s->first;
  clv_err why;
  if (c->out->failed) {
    clv_context_fail(e, ctx, clv_shared_err_ref(c->out->failed));
    return false;
  }
  clv_code code = CLV_OK;
  if (count_got(c, ctx->phase) > c->contributions)
    code = clv_fail(&why, CLV_INVALID, "call %llx has more gradients than the %u announced",
                    (unsigned long long)c->out->id, c->contributions);
  else
    code = backward_of(e, c, &why);
  if (code != CLV_OK) {
    clv_context_fail_at(e, ctx, &why, c->module);
    return false;
  }
  pop_needed(e, ctx, s);
  return true;
}

void clv_context_run_backward(clv_contexts *e, clv_context *ctx) {
  clv_err why;
  for (bool moved = ctx->active; moved;) {
    moved = false;
    for (clv_strand *s = ctx->strands; s; s = s->next)
      for (; has_come(e, ctx, s); moved = true)
        if (!run_next(e, ctx, s)) return;
  }
  if (!ctx->active || ctx->collecting || ctx->n_needed) return;
  if (ctx->order[ORDER_WEIGHT].first || ctx->order[ORDER_STEP].first) return;
  clv_strands_free(e, ctx);
  if (finish(e, ctx, &why) != CLV_OK) clv_context_fail_at(e, ctx, &why, CLV_MODULE_ALL);
}

/* ---- PREPARE and GRADIENT -------------------------------------------------------------------- */

/* Behind what the pass has of the same module already. */
static clv_code append_needed(clv_contexts *e, clv_context *ctx, clv_context_call *c,
                              clv_err *err) {
  clv_strand **at = &ctx->strands;
  while (*at && (*at)->module != c->module) at = &(*at)->next;
  if (!*at) {
    CLV_TRY(clv_slab_take(e, &e->strands, at, err));
    (*at)->module = c->module;
  }
  clv_strand *s = *at;
  c->next_needed = NULL;
  *(s->first ? &s->last->next_needed : &s->first) = c;
  s->last = c;
  if (c->mod) ctx->took_part[c->module / 8] |= (uint8_t)(1u << (c->module % 8));
  ctx->n_needed++;
  c->needed = true;
  return CLV_OK;
}

static clv_code take_targets(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                             uint32_t first, uint32_t n, clv_err *err) {
  for (uint32_t i = first; i < first + n; i++) {
    const clv_target *t = &f->backward.targets[i];
    if (t->slot >= c->n_in || !(c->input_grads >> t->slot & 1))
      return clv_fail(err, CLV_INVALID, "input %u of call %llx was not to have a gradient", t->slot,
                      (unsigned long long)c->out->id);
    clv_gradient_target *mine = &c->targets[t->slot];
    *mine = (clv_gradient_target){.value = t->value, .order = t->order};
    const char *name = t->to ? f->backward.peers[t->to - 1] : "";
    CLV_TRY(clv_name_index(e, name, &mine->name, err));
  }
  return CLV_OK;
}

static clv_code take_needed(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  uint32_t first = 0;
  for (uint32_t i = 0; i < f->backward.n_calls; i++) {
    const clv_needed *n = &f->backward.calls[i];
    clv_value *v = clv_context_value(e, ctx, n->call);
    clv_context_call *c = v ? v->maker : NULL;
    if (!c || c->needed)
      return clv_fail(err, c ? CLV_EXISTS : CLV_NOT_FOUND, "call %llx is %s",
                      (unsigned long long)n->call, c ? "named twice" : "not here");
    c->root = n->root;
    c->contributions = n->contributions;
    CLV_TRY(append_needed(e, ctx, c, err));
    CLV_TRY(take_targets(e, c, f, first, n->n_targets, err));
    first += n->n_targets;
  }
  return CLV_OK;
}

static clv_code begin_phase(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  if (ctx->collecting && f->phase == ctx->phase) return CLV_OK;
  if (ctx->active || f->phase <= ctx->phase)
    return clv_fail(err, CLV_PRECONDITION, "PREPARE of phase %u, but phase %u %s", f->phase,
                    ctx->phase, ctx->active ? "is in progress" : "is over");
  ctx->phase = f->phase;
  ctx->prepared = ++e->n_events;
  return CLV_OK;
}

static clv_code prepare(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  CLV_TRY(begin_phase(e, ctx, f, err));
  ctx->collecting = f->backward.more;
  ctx->retain = f->backward.retain;
  ctx->vote = f->backward.vote;
  ctx->active = true;
  return take_needed(e, ctx, f, err);
}

clv_code clv_on_prepare(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  if (ctx->failed) {
    clv_context_fail(e, ctx,
                     clv_shared_err_ref(ctx->failed)); /* said again: this pass gets no other end */
    return CLV_OK;
  }
  if (prepare(e, ctx, &p->frame, &why) != CLV_OK)
    clv_context_fail_at(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_context_run_backward(e, ctx);
  return clv_contexts_run(e, err);
}

static clv_code take_gradient(clv_contexts *e, clv_context *ctx, const clv_packet *p,
                              clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_context_note_packet(e, ctx, CLV_TRACE_GRADIENT_IN, p, p->arrived_ns);
  CLV_TRY(clv_context_value_made(e, ctx, f->message, &v, err));
  if (!v->maker && (v->tensor || v->failed))
    return clv_fail(err, CLV_NOT_FOUND, "a gradient for %llx, which is no call here",
                    (unsigned long long)f->message);
  bool needed = v->maker && v->maker->needed;
  bool over = f->phase < ctx->phase || (f->phase == ctx->phase && !needed && !ctx->collecting);
  if (!f->phase || over)
    return clv_fail(err, CLV_PRECONDITION,
                    "a gradient of phase %u for call %llx after its backward", f->phase,
                    (unsigned long long)f->message);
  return contribute(e, v, f->phase, f->order, f->n_tensors ? p->tensor[0] : NULL, err);
}

clv_code clv_on_gradient(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  if (ctx->failed) return CLV_OK;
  clv_code code = p->refused ? clv_fail(&why, p->frame.failure.code, "%s", p->frame.failure.text)
                             : take_gradient(e, ctx, p, &why);
  if (code != CLV_OK)
    clv_context_fail_at(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_context_run_backward(e, ctx);
  return clv_contexts_run(e, err);
}
