/* SPDX-License-Identifier: Apache-2.0
 *
 * Execution of a plan. The owner of a plan gets a call with clv_plan_call_get, runs
 * clv_plan_forward, then in training clv_plan_backward_input and clv_plan_backward_weight, and
 * returns the call with clv_plan_call_put. Each phase makes a frame (the addresses of all spaces)
 * and runs its steps, which resolve their buffers against the frame. The phases allocate no memory.
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
  return base ? base + b->offset : NULL; /* in backward the caller passes no output */
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Returns the kernel's weights in library format: in the plan's cache, or with transient_weights in
 * the buffer that step s fills itself. NULL: the kernel has none. */
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

static clv_rng_key rng_key_of(const clv_node *node, const clv_plan_frame *f) {
  clv_rng_key key = clv_rng_key_of(&node->key);
  key.step = f->key.step;
  key.micro_batch = f->key.micro_batch;
  key.layer = node->layer << 4;
  return key;
}

/* Drops const, because spaces are char *. Kernels write the caller's memory only through `out` and
 * `din`, and shared parameters not at all. */
static char *unconst(const void *memory) { return (char *)(uintptr_t)memory; }

static void *param_address(const clv_plan *p, const clv_plan_frame *f, const clv_param *q) {
  if (q->owner_data) return q->owner_data;
  return q->is_shared ? unconst(p->options.shared_params[q->index]) : f->params + q->offset;
}

static clv_kernel_args args_of(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = {.out = at(p, f, s->out),
                       .cache = cache_of(p, f, s),
                       .saved = at(p, f, s->saved),
                       .scratch = at(p, f, s->scratch),
                       .accumulate = f->accumulate,
                       .key = rng_key_of(&p->graph->nodes[q->key_node], f),
                       .rng_position = f->rng_position};
  for (int i = 0; i < q->n_src; i++) a.in[i] = at(p, f, s->in[i]);
  if (s->recompute >= 0) a.in[0] = at(p, f, s->recompute);
  for (int i = 0; i < CLV_MAX_PARAMS && q->param[i]; i++)
    a.param[i] = param_address(p, f, q->param[i]);
  return a;
}

static void set_gradient_pointers(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                  clv_kernel_args *a) {
  const clv_plan_node *q = &p->nodes[s->node];
  for (int i = 0; i < CLV_MAX_PARAMS && q->param[i]; i++)
    if (q->param[i]->trainable)
      a->dparam[i] =
          q->param[i]->frozen ? at(p, f, s->discard[i]) : f->grads + q->param[i]->gradient;
}

clv_code clv_plan_run_forward(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                              clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  clv_kernel_args a = args_of(p, f, s);
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    if (s->discard[i] >= 0) a.param[i] = at(p, f, s->discard[i]);
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

/* Adds the layer, op and verb of a step to an error: to its text, and to err->place. */
static clv_code locate(const clv_plan *p, const clv_plan_step *s, clv_err *err) {
  const clv_node *n = &p->graph->nodes[s->node];
  if (err)
    snprintf(err->place, sizeof err->place, "layer %" PRIu32 " (%s), %s", n->layer,
             clv_op_name(n->op), s->verb);
  return clv_err_prefix(err, "layer %s (%s), %s", n->name, clv_op_name(n->op), s->verb);
}

static int first_step(const clv_plan *p, int phase) { return phase ? p->phase_end[phase - 1] : 0; }

/* Waits until the device has finished all work submitted so far. Returns `code` if the phase failed
 * already (`err` is set then), otherwise the device's error, with the layer if the device names it.
 * Afterwards the device no longer uses the caller's memory. */
static clv_code finish_phase(clv_plan *p, int phase, clv_code code, clv_err *err) {
  const clv_backend *b = p->backend;
  int64_t layer = -1;
  clv_err late;
  if (!b->memory || b->memory->finish(b, &layer, &late) == CLV_OK || code != CLV_OK) return code;
  p->is_cache_current = false;
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

_Static_assert(SPACE_COUNT + 2 <= CLV_RECORD_POINTERS, "all memory of a frame");

/* Returns the key under which a phase is recorded: the plan, the phase and all addresses. The RNG
 * key is not part of it, because recorded kernels read the RNG position from memory. */
static clv_record_key key_of_phase(const clv_plan *p, const clv_plan_frame *f, int phase) {
  clv_record_key key = {.owner = p, .kind = (uintptr_t)phase << 1 | f->accumulate};
  for (int i = 0; i < SPACE_COUNT; i++) key.pointers[i] = f->base[i];
  key.pointers[SPACE_COUNT] = f->params;
  key.pointers[SPACE_COUNT + 1] = f->grads;
  return key;
}

/* Runs the steps of a phase. With a recorder the device replays the phase as one unit, unless steps
 * are timed one by one. */
static clv_code run_phase(clv_plan *p, const clv_plan_frame *f, int phase, clv_err *err) {
  phase_run r = {p, f, phase};
  p->backend->set_threads(p->options.threads);
  if (!p->options.records || p->times || first_step(p, phase) == p->phase_end[phase])
    return run_steps(&r, err);
  clv_record_key key = key_of_phase(p, f, phase);
  return clv_recorder_run(p->options.records, &key, run_steps, &r, err);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static clv_code alloc_shared_blocks(clv_plan *p, clv_err *err) {
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
  CLV_TRY(alloc_shared_blocks(p, err));
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

void clv_plan_call_set_memories(clv_call *c, const clv_plan_memories *memories) {
  c->memories = *memories;
}

void clv_plan_call_put(clv_plan *p, clv_call *c) {
  if (!c) return;
  c->memories = (clv_plan_memories){0};
  c->state = PLAN_CALL_EMPTY;
  c->next_idle = p->idle;
  p->idle = c;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static clv_plan_frame frame_of(const clv_plan *p, const clv_call *c, void *param_block) {
  clv_plan_frame f = {.params = param_block, .key = c->key};
  f.base[SPACE_SCRATCH] = p->scratch;
  f.base[SPACE_CALL] = c->block;
  for (int i = 0; i < p->n_inputs; i++) f.base[SPACE_IN + i] = unconst(c->in[i]);
  return f;
}

/* Returns the address that kernels use for a caller's buffer: its copy in the scratch if the
 * backend has its own memory. NULL: the caller has no such buffer. */
static char *kernel_address(const clv_plan *p, int space, void *callers) {
  return p->backend->memory && callers ? p->scratch + p->copy_offset[space] : callers;
}

/* Copies the result of a phase to the caller's buffer, which is in the memory of `home` (NULL: the
 * host's). Does nothing if the kernels have written the caller's memory themselves. */
static clv_code copy_out(const clv_plan *p, int space, void *to, const clv_backend *home,
                         size_t bytes, clv_err *err) {
  if (!p->backend->memory || !to) return CLV_OK;
  const char *from = p->scratch + p->copy_offset[space];
  return home ? clv_backend_copy(p->backend, to, from, bytes, err)
              : clv_backend_get(p->backend, to, from, bytes, err);
}

static clv_code refresh(clv_plan *p, const clv_plan_frame *f, uint64_t version, clv_err *err) {
  if (p->options.transient_weights) return CLV_OK;
  if (p->is_cache_current && p->version == version && p->block == f->params) return CLV_OK;
  p->is_cache_current = false;
  for (int i = 0; i < p->phase_end[PHASE_FORWARD]; i++) {
    const clv_plan_step *s = &p->steps[i];
    clv_kernel *k = s->run == clv_plan_run_forward ? p->nodes[s->node].kernel : NULL;
    if (!k || !k->refresh) continue;
    clv_kernel_args a = args_of(p, f, s);
    CLV_TRY(refresh_one(p, s, &a, CLV_FOR_FORWARD | CLV_FOR_BACKWARD, err));
  }
  p->is_cache_current = true;
  p->version = version;
  p->block = f->params;
  return CLV_OK;
}

/* Copies input i into the plan's memory if the kernels cannot read the caller's, or if the caller
 * does not keep it until a backward that reads it. */
static clv_code stage_input(clv_plan *p, clv_call *c, int i, bool keep, clv_err *err) {
  bool ours = p->input_copy[i] >= 0 && !keep;
  if (!ours && !p->backend->memory) return CLV_OK;
  char *copy = ours ? c->block + p->bufs[p->input_copy[i]].offset
                    : p->scratch + p->copy_offset[SPACE_IN + i];
  CLV_TRY(
      clv_backend_copy_from(p->backend, copy, c->memories.in[i], c->in[i], p->input_bytes[i], err));
  c->in[i] = copy;
  return CLV_OK;
}

static clv_code stage_inputs(clv_plan *p, clv_call *c, const void *const *in, bool keep_inputs,
                             clv_err *err) {
  bool keep = keep_inputs && !p->backend->memory;
  for (int i = 0; i < p->n_inputs; i++) {
    const clv_node *n = &p->graph->nodes[p->input_node[i]];
    c->in[i] = in[i];
    if (!p->nodes[p->input_node[i]].is_reachable) continue;
    if (!in[i]) return clv_fail(err, CLV_INVALID, "input '%s' is missing", n->name);
    CLV_TRY(stage_input(p, c, i, keep, err));
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

/* Writes the RNG position (step, micro-batch) to the device, so that kernels of a recorded phase
 * draw the numbers of this call. Does nothing unless phases are recorded and kernels draw. */
static clv_code put_rng_position(const clv_plan *p, clv_plan_frame *f, clv_err *err) {
  const clv_rng_position position = {.step = f->key.step, .micro_batch = f->key.micro_batch};
  if (!p->uses_rng_position || !p->options.records) return CLV_OK;
  void *at = p->scratch + p->rng_position_offset;
  f->rng_position = at;
  return clv_backend_put(p->backend, at, &position, sizeof position, err);
}

static clv_code forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                        void *out, clv_err *err) {
  clv_plan_frame f = frame_of(p, c, param_block);
  f.base[SPACE_OUT] = kernel_address(p, SPACE_OUT, out);
  p->backend->set_threads(p->options.threads);
  CLV_TRY(refresh(p, &f, param_version, err));
  CLV_TRY(put_rng_position(p, &f, err));
  CLV_TRY(run_phase(p, &f, PHASE_FORWARD, err));
  CLV_TRY(copy_out(p, SPACE_OUT, out, c->memories.out, p->out_bytes, err));
  return p->scalar_is_nan ? put_nan(p, c->memories.out, out, err) : CLV_OK;
}

clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) {
  c->state = PLAN_CALL_EMPTY;
  c->key = key ? *key : (clv_rng_key){0};
  clv_code code = stage_inputs(p, c, in, keep_inputs, err);
  if (code == CLV_OK) code = forward(p, c, param_block, param_version, out, err);
  CLV_TRY(finish_phase(p, PHASE_FORWARD, code, err));
  c->state = PLAN_CALL_FORWARD;
  return CLV_OK;
}

clv_code clv_plan_refresh(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          clv_err *err) {
  const clv_plan_frame f = frame_of(p, c, param_block);
  p->backend->set_threads(p->options.threads);
  return finish_phase(p, PHASE_FORWARD, refresh(p, &f, param_version, err), err);
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
    return clv_fail(err, CLV_PRECONDITION, "the call %s, but %s", words[c->state],
                    want == PLAN_CALL_FORWARD ? "backward_input must follow a forward"
                                              : "backward_weight must follow a backward_input");
  return CLV_OK;
}

static clv_code zero_ranges(const clv_plan *p, char *grads, clv_err *err) {
  for (int i = 0; i < p->n_zeroed_ranges; i++)
    CLV_TRY(clv_backend_fill(p->backend, grads + p->zeroed_ranges[i].offset, 0,
                             p->zeroed_ranges[i].bytes, err));
  return CLV_OK;
}

static bool wants_gradient(const clv_plan *p, int input) {
  return p->nodes[p->input_node[input]].needs_grad;
}

/* Sets the addresses of the output's gradient and of the inputs' gradients in the frame, and copies
 * the output's gradient to a backend with its own memory. */
static clv_code stage_gradients(const clv_plan *p, const clv_call *c, clv_plan_frame *f,
                                const void *dout, void *const *din, clv_err *err) {
  f->base[SPACE_DOUT] = kernel_address(p, SPACE_DOUT, unconst(dout));
  for (int i = 0; i < p->n_inputs; i++) {
    f->base[SPACE_DIN + i] = kernel_address(p, SPACE_DIN + i, din ? din[i] : NULL);
    if (wants_gradient(p, i) && !f->base[SPACE_DIN + i])
      return clv_fail(err, CLV_INVALID, "no buffer is given for the gradient of input '%s'",
                      p->graph->nodes[p->input_node[i]].name);
  }
  if (!p->backend->memory || !p->nodes[p->graph->output].needs_grad) return CLV_OK;
  return clv_backend_copy_from(p->backend, f->base[SPACE_DOUT], c->memories.dout, dout,
                               p->out_bytes, err);
}

static clv_code backward_input(clv_plan *p, const clv_call *c, clv_plan_frame *f, const void *dout,
                               void *const *din, clv_err *err) {
  CLV_TRY(stage_gradients(p, c, f, dout, din, err));
  CLV_TRY(put_rng_position(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_ranges(p, f->grads, err));
  CLV_TRY(run_phase(p, f, PHASE_BACKWARD_INPUT, err));
  for (int i = 0; i < p->n_inputs; i++)
    if (wants_gradient(p, i))
      CLV_TRY(copy_out(p, SPACE_DIN + i, din[i], c->memories.din[i], p->input_bytes[i], err));
  return CLV_OK;
}

clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) {
  CLV_TRY(check_state(p, c, PLAN_CALL_FORWARD, err));
  clv_plan_frame f = frame_of(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(finish_phase(p, PHASE_BACKWARD_INPUT, backward_input(p, c, &f, dout, din, err), err));
  c->state = PLAN_CALL_BACKWARD;
  return CLV_OK;
}

static clv_code backward_weight(clv_plan *p, clv_plan_frame *f, clv_err *err) {
  CLV_TRY(put_rng_position(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_ranges(p, f->grads, err));
  return run_phase(p, f, PHASE_BACKWARD_WEIGHT, err);
}

clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) {
  CLV_TRY(check_state(p, c, PLAN_CALL_BACKWARD, err));
  clv_plan_frame f = frame_of(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(finish_phase(p, PHASE_BACKWARD_WEIGHT, backward_weight(p, &f, err), err));
  c->state = PLAN_CALL_DONE;
  return CLV_OK;
}
