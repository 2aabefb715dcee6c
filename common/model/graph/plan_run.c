/* SPDX-License-Identifier: Apache-2.0
 *
 * Executing a plan. Nothing here takes memory once a call has been got: a step resolves its buffers
 * against the frame and runs.
 */
#include "common/model/graph/plan_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *at(const clv_plan *p, const clv_plan_frame *f, int buf) {
  if (buf < 0) return NULL;
  const clv_plan_buf *b = &p->bufs[buf];
  char *base = f->base[b->space];
  return base ? base + b->offset : NULL; /* the caller's output is not there in backward */
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The weights that stay, or those that step s makes. */
static void *cache_of(const clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s) {
  const clv_plan_node *q = &p->nodes[s->node];
  if (p->options.transient_weights) return at(p, f, s->cache);
  return q->kernel->cache_bytes ? p->cache + q->cache_offset : NULL;
}

static clv_code refresh_one(clv_plan *p, const clv_plan_step *s, clv_kernel_args *a, unsigned what,
                            clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  a->refresh_for = what;
  return k->refresh(k, a, err);
}

static clv_rng_key key_of(const clv_node *node, const clv_plan_frame *f) {
  clv_rng_key key = clv_rng_key_of(&node->key);
  key.step = f->key.step;
  key.micro_batch = f->key.micro_batch;
  key.layer = node->layer << 4;
  return key;
}

/* The caller's memory is written only through `out` and `din`, and what is lent not at all. */
static char *lent(const void *memory) { return (char *)(uintptr_t)memory; }

static void *place_of_param(const clv_plan *p, const clv_plan_frame *f, const clv_param *q) {
  if (q->elsewhere) return q->elsewhere;
  return q->lent ? lent(p->options.lent[q->index]) : f->params + q->offset;
}

static clv_kernel_args args_of(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = {.out = at(p, f, s->out),
                       .cache = cache_of(p, f, s),
                       .saved = at(p, f, s->saved),
                       .scratch = at(p, f, s->scratch),
                       .accumulate = f->accumulate,
                       .key = key_of(&p->graph->nodes[q->key_node], f),
                       .rng_position = f->occasion};
  for (int i = 0; i < q->n_src; i++) a.in[i] = at(p, f, s->in[i]);
  if (s->recompute >= 0) a.in[0] = at(p, f, s->recompute);
  for (int i = 0; i < CLV_MAX_PARAMS && q->param[i]; i++)
    a.param[i] = place_of_param(p, f, q->param[i]);
  return a;
}

static void set_gradient_pointers(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                  clv_kernel_args *a) {
  const clv_plan_node *q = &p->nodes[s->node];
  for (int i = 0; i < CLV_MAX_PARAMS && q->param[i]; i++)
    if (q->param[i]->trainable)
      a->dparam[i] = q->param[i]->frozen ? at(p, f, s->spare[i]) : f->grads + q->param[i]->gradient;
}

clv_code clv_plan_run_forward(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                              clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  clv_kernel_args a = args_of(p, f, s);
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    if (s->spare[i] >= 0) a.param[i] = at(p, f, s->spare[i]);
  if (s->cache >= 0) CLV_TRY(refresh_one(p, s, &a, CLV_FOR_FORWARD, err));
  return k->forward(k, &a, err);
}

clv_code clv_plan_run_backward_input(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                     clv_err *err) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = args_of(p, f, s);
  a.dout = at(p, f, q->grad.buf);
  for (int i = 0; i < q->n_src; i++) a.din[i] = at(p, f, s->din[i]);
  if (q->kernel->fused_grads && q->learns) set_gradient_pointers(p, f, s, &a);
  if (s->cache >= 0) CLV_TRY(refresh_one(p, s, &a, CLV_FOR_BACKWARD, err));
  return q->kernel->backward_input(q->kernel, &a, err);
}

clv_code clv_plan_run_backward_weight(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                      clv_err *err) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = args_of(p, f, s);
  a.dout = at(p, f, q->grad.buf);
  set_gradient_pointers(p, f, s, &a);
  return q->kernel->backward_weight(q->kernel, &a, err);
}

clv_code clv_plan_run_recompute(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  clv_kernel_args a = args_of(p, f, s);
  a.out = at(p, f, s->dst);
  return k->recompute(k, &a, err);
}

clv_code clv_plan_run_reorder(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                              clv_err *err) {
  const clv_node *n = &p->graph->nodes[s->node];
  return p->backend->reorder(p->backend, &n->shape, n->dtype, at(p, f, s->src), s->src_block,
                             at(p, f, s->dst), s->dst_block, err);
}

clv_code clv_plan_run_copy(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                           clv_err *err) {
  return clv_backend_copy(p->backend, at(p, f, s->dst), at(p, f, s->src), s->n, err);
}

clv_code clv_plan_run_add(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                          clv_err *err) {
  (void)err;
  clv_dtype dtype = clv_layout_is_bf16(s->dst_block) ? CLV_BF16 : p->options.dtype;
  p->backend->add(p->backend, dtype, at(p, f, s->dst), at(p, f, s->src), s->n);
  return CLV_OK;
}

clv_code clv_plan_run_zero(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                           clv_err *err) {
  return clv_backend_fill(p->backend, at(p, f, s->dst), 0, s->n, err);
}

void clv_plan_set_times(clv_plan *p, clv_plan_times *times) { p->times = times; }

static clv_code run_timed(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s, int phase,
                          clv_err *err) {
  clv_plan_times *t = &p->times[s->node];
  bool weight = s->run == clv_plan_run_backward_weight || phase == PHASE_BACKWARD_WEIGHT;
  uint64_t begin = clv_now_ns();
  clv_code code = s->run(p, f, s, err);
  if (code == CLV_OK) code = clv_backend_finish(p->backend, err);
  *(weight                   ? &t->weight
    : phase == PHASE_FORWARD ? &t->forward
                             : &t->input) += (double)(clv_now_ns() - begin) * 1e-9;
  return code;
}

/* The op of a step, for the text with the name that its graph gives it, and for the place. */
static clv_code locate(const clv_plan *p, const clv_plan_step *s, clv_err *err) {
  const clv_node *n = &p->graph->nodes[s->node];
  if (err)
    snprintf(err->place, sizeof err->place, "layer %" PRIu32 " (%s), %s", n->layer,
             clv_op_name(n->op), s->verb);
  return clv_err_prefix(err, "layer %s (%s), %s", n->name, clv_op_name(n->op), s->verb);
}

static int first_step(const clv_plan *p, int phase) { return phase ? p->phase_end[phase - 1] : 0; }

/* Waits for what was asked for since the last time, and says what failed of it, or what `err` says
 * already. The caller's memory is the host's again. */
static clv_code settle(clv_plan *p, int phase, clv_code code, clv_err *err) {
  const clv_backend *b = p->backend;
  int64_t layer = -1;
  clv_err late;
  if (!b->memory || b->memory->finish(b, &layer, &late) == CLV_OK || code != CLV_OK) return code;
  p->fresh = false;
  if (err) *err = late;
  for (int i = first_step(p, phase); i < p->phase_end[phase] && layer >= 0; i++) {
    const clv_plan_step *s = &p->steps[i];
    bool moves = s->src >= 0 || s->dst >= 0;
    if (!moves && p->graph->nodes[s->node].layer == layer >> 4) return locate(p, s, err);
  }
  return late.code;
}

typedef struct phase_run {
  clv_plan *p;
  const clv_plan_frame *f;
  int phase;
} phase_run;

static clv_code run_steps(void *user, clv_err *err) {
  const phase_run *r = user;
  clv_plan *p = r->p;
  for (int i = first_step(p, r->phase); i < p->phase_end[r->phase]; i++) {
    const clv_plan_step *s = &p->steps[i];
    if ((p->times ? run_timed(p, r->f, s, r->phase, err) : s->run(p, r->f, s, err)) != CLV_OK)
      return locate(p, s, err);
  }
  return CLV_OK;
}

_Static_assert(SPACE_COUNT + 2 <= CLV_RECORD_PLACES, "all memory of a frame");

/* The rest of the frame is the occasion's. */
static clv_record_key key_of_phase(const clv_plan *p, const clv_plan_frame *f, int phase) {
  clv_record_key key = {.owner = p, .kind = (uintptr_t)phase << 1 | f->accumulate};
  for (int i = 0; i < SPACE_COUNT; i++) key.places[i] = f->base[i];
  key.places[SPACE_COUNT] = f->params;
  key.places[SPACE_COUNT + 1] = f->grads;
  return key;
}

/* As a whole where it has been recorded. What is measured op by op is not. */
static clv_code run_phase(clv_plan *p, const clv_plan_frame *f, int phase, clv_err *err) {
  phase_run r = {p, f, phase};
  p->backend->set_threads(p->options.threads);
  if (!p->options.records || p->times || first_step(p, phase) == p->phase_end[phase])
    return run_steps(&r, err);
  clv_record_key key = key_of_phase(p, f, phase);
  return clv_recorder_run(p->options.records, &key, run_steps, &r, err);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static clv_code shared_blocks(clv_plan *p, clv_err *err) {
  if (!p->scratch) CLV_TRY(clv_backend_take(p->backend, p->info.scratch_bytes, &p->scratch, err));
  if (!p->cache) CLV_TRY(clv_backend_take(p->backend, p->info.cache_bytes, &p->cache, err));
  return CLV_OK;
}

clv_code clv_plan_call_get(clv_plan *p, clv_call **ret, clv_err *err) {
  clv_call *c = p->idle;
  if (c) {
    p->idle = c->next_idle;
    c->state = PLAN_CALL_EMPTY;
    *ret = c;
    return CLV_OK;
  }
  CLV_TRY(shared_blocks(p, err));
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  clv_code code = clv_backend_take(p->backend, p->info.call_bytes, &c->block, err);
  if (code != CLV_OK) {
    free(c);
    return code;
  }
  c->next = p->calls;
  p->calls = c;
  *ret = c;
  return CLV_OK;
}

void clv_plan_call_set_memories(clv_call *c, const clv_plan_memories *homes) { c->homes = *homes; }

void clv_plan_call_put(clv_plan *p, clv_call *c) {
  if (!c) return;
  c->homes = (clv_plan_memories){0};
  c->state = PLAN_CALL_EMPTY;
  c->next_idle = p->idle;
  p->idle = c;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static clv_plan_frame frame_of(const clv_plan *p, const clv_call *c, void *param_block) {
  clv_plan_frame f = {.params = param_block, .key = c->key};
  f.base[SPACE_SCRATCH] = p->scratch;
  f.base[SPACE_CALL] = c->block;
  for (int i = 0; i < p->n_inputs; i++) f.base[SPACE_IN + i] = lent(c->in[i]);
  return f;
}

/* Where the values of a buffer of the caller's are, for the kernels. */
static char *place_of(const clv_plan *p, int space, void *callers) {
  return p->backend->memory && callers ? p->scratch + p->copy[space] : callers;
}

/* The caller's buffer gets what a phase has made; host memory is where it was made. */
static clv_code bring(const clv_plan *p, int space, void *to, const clv_backend *home, size_t bytes,
                      clv_err *err) {
  if (!p->backend->memory || !to) return CLV_OK;
  const char *from = p->scratch + p->copy[space];
  return home ? clv_backend_copy(p->backend, to, from, bytes, err)
              : clv_backend_get(p->backend, to, from, bytes, err);
}

static clv_code refresh(clv_plan *p, const clv_plan_frame *f, uint64_t version, clv_err *err) {
  if (p->options.transient_weights) return CLV_OK;
  if (p->fresh && p->version == version && p->block == f->params) return CLV_OK;
  p->fresh = false;
  for (int i = 0; i < p->phase_end[PHASE_FORWARD]; i++) {
    const clv_plan_step *s = &p->steps[i];
    clv_kernel *k = s->run == clv_plan_run_forward ? p->nodes[s->node].kernel : NULL;
    if (!k || !k->refresh) continue;
    clv_kernel_args a = args_of(p, f, s);
    CLV_TRY(refresh_one(p, s, &a, CLV_FOR_FORWARD | CLV_FOR_BACKWARD, err));
  }
  p->fresh = true;
  p->version = version;
  p->block = f->params;
  return CLV_OK;
}

/* Into memory of ours if the caller's is not there for the kernels, or not until backward. */
static clv_code take_input(clv_plan *p, clv_call *c, int i, bool keep, clv_err *err) {
  bool ours = p->keep[i] >= 0 && !keep;
  if (!ours && !p->backend->memory) return CLV_OK;
  char *copy = ours ? c->block + p->bufs[p->keep[i]].offset : p->scratch + p->copy[SPACE_IN + i];
  CLV_TRY(
      clv_backend_copy_from(p->backend, copy, c->homes.in[i], c->in[i], p->input_bytes[i], err));
  c->in[i] = copy;
  return CLV_OK;
}

static clv_code take_inputs(clv_plan *p, clv_call *c, const void *const *in, bool keep_inputs,
                            clv_err *err) {
  bool keep = keep_inputs && !p->backend->memory;
  for (int i = 0; i < p->n_inputs; i++) {
    const clv_node *n = &p->graph->nodes[p->input_node[i]];
    c->in[i] = in[i];
    if (!p->nodes[p->input_node[i]].live) continue;
    if (!in[i]) return clv_fail(err, CLV_INVALID, "input '%s' is missing", n->name);
    CLV_TRY(take_input(p, c, i, keep, err));
  }
  return CLV_OK;
}

static clv_code put_nan(const clv_plan *p, const clv_backend *home, void *out, clv_err *err) {
  const double wide = NAN;
  const float narrow = NAN;
  bool is_wide = p->options.dtype == CLV_F64;
  const void *nan = is_wide ? (const void *)&wide : &narrow;
  size_t bytes = is_wide ? sizeof wide : sizeof narrow;
  if (home) return clv_backend_put(home, out, nan, bytes, err);
  memcpy(out, nan, bytes);
  return CLV_OK;
}

/* The numbers that are drawn are those of this occasion, whoever asks the kernels for them. */
static clv_code put_occasion(const clv_plan *p, clv_plan_frame *f, clv_err *err) {
  const clv_rng_position occasion = {.step = f->key.step, .micro_batch = f->key.micro_batch};
  if (!p->draws || !p->options.records) return CLV_OK;
  void *at = p->scratch + p->occasion;
  f->occasion = at;
  return clv_backend_put(p->backend, at, &occasion, sizeof occasion, err);
}

static clv_code forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                        void *out, clv_err *err) {
  clv_plan_frame f = frame_of(p, c, param_block);
  f.base[SPACE_OUT] = place_of(p, SPACE_OUT, out);
  p->backend->set_threads(p->options.threads);
  CLV_TRY(refresh(p, &f, param_version, err));
  CLV_TRY(put_occasion(p, &f, err));
  CLV_TRY(run_phase(p, &f, PHASE_FORWARD, err));
  CLV_TRY(bring(p, SPACE_OUT, out, c->homes.out, p->out_bytes, err));
  return p->scalar_is_nan ? put_nan(p, c->homes.out, out, err) : CLV_OK;
}

clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) {
  c->state = PLAN_CALL_EMPTY;
  c->key = key ? *key : (clv_rng_key){0};
  clv_code code = take_inputs(p, c, in, keep_inputs, err);
  if (code == CLV_OK) code = forward(p, c, param_block, param_version, out, err);
  CLV_TRY(settle(p, PHASE_FORWARD, code, err));
  c->state = PLAN_CALL_FORWARD;
  return CLV_OK;
}

clv_code clv_plan_refresh(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          clv_err *err) {
  const clv_plan_frame f = frame_of(p, c, param_block);
  p->backend->set_threads(p->options.threads);
  return settle(p, PHASE_FORWARD, refresh(p, &f, param_version, err), err);
}

static clv_code check_state(const clv_plan *p, const clv_call *c, clv_plan_call_state want,
                            clv_err *err) {
  static const char *const words[] = {[PLAN_CALL_EMPTY] = "has no forward",
                                      [PLAN_CALL_FORWARD] = "is after forward",
                                      [PLAN_CALL_BACKWARD] = "is after backward_input",
                                      [PLAN_CALL_DONE] = "is done"};
  if (!p->options.training)
    return clv_fail(err, CLV_PRECONDITION, "a plan for evaluation has no backward");
  if (c->state != want)
    return clv_fail(err, CLV_PRECONDITION, "the call %s; %s was to come", words[c->state],
                    want == PLAN_CALL_FORWARD ? "backward_input after forward"
                                              : "backward_weight after backward_input");
  return CLV_OK;
}

static clv_code zero_unwritten(const clv_plan *p, char *grads, clv_err *err) {
  for (int i = 0; i < p->n_unwritten; i++)
    CLV_TRY(clv_backend_fill(p->backend, grads + p->unwritten[i].offset, 0, p->unwritten[i].bytes,
                             err));
  return CLV_OK;
}

static bool wants_gradient(const clv_plan *p, int input) {
  return p->nodes[p->input_node[input]].needs_grad;
}

/* Where the gradient of the output comes from, and those of the inputs go. */
static clv_code take_gradients(const clv_plan *p, const clv_call *c, clv_plan_frame *f,
                               const void *dout, void *const *din, clv_err *err) {
  f->base[SPACE_DOUT] = place_of(p, SPACE_DOUT, lent(dout));
  for (int i = 0; i < p->n_inputs; i++) {
    f->base[SPACE_DIN + i] = place_of(p, SPACE_DIN + i, din ? din[i] : NULL);
    if (wants_gradient(p, i) && !f->base[SPACE_DIN + i])
      return clv_fail(err, CLV_INVALID, "the gradient of input '%s' has nowhere to go",
                      p->graph->nodes[p->input_node[i]].name);
  }
  if (!p->backend->memory || !p->nodes[p->graph->output].needs_grad) return CLV_OK;
  return clv_backend_copy_from(p->backend, f->base[SPACE_DOUT], c->homes.dout, dout, p->out_bytes,
                               err);
}

static clv_code backward_input(clv_plan *p, const clv_call *c, clv_plan_frame *f, const void *dout,
                               void *const *din, clv_err *err) {
  CLV_TRY(take_gradients(p, c, f, dout, din, err));
  CLV_TRY(put_occasion(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_unwritten(p, f->grads, err));
  CLV_TRY(run_phase(p, f, PHASE_BACKWARD_INPUT, err));
  for (int i = 0; i < p->n_inputs; i++)
    if (wants_gradient(p, i))
      CLV_TRY(bring(p, SPACE_DIN + i, din[i], c->homes.din[i], p->input_bytes[i], err));
  return CLV_OK;
}

clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) {
  CLV_TRY(check_state(p, c, PLAN_CALL_FORWARD, err));
  clv_plan_frame f = frame_of(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(settle(p, PHASE_BACKWARD_INPUT, backward_input(p, c, &f, dout, din, err), err));
  c->state = PLAN_CALL_BACKWARD;
  return CLV_OK;
}

static clv_code backward_weight(clv_plan *p, clv_plan_frame *f, clv_err *err) {
  CLV_TRY(put_occasion(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_unwritten(p, f->grads, err));
  return run_phase(p, f, PHASE_BACKWARD_WEIGHT, err);
}

clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) {
  CLV_TRY(check_state(p, c, PLAN_CALL_BACKWARD, err));
  clv_plan_frame f = frame_of(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(settle(p, PHASE_BACKWARD_WEIGHT, backward_weight(p, &f, err), err));
  c->state = PLAN_CALL_DONE;
  return CLV_OK;
}
