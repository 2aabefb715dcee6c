/* SPDX-License-Identifier: Apache-2.0
 *
 * Execution of a plan. The owner of a plan takes a call with clv_plan_call_get, runs
 * clv_plan_forward, then in training clv_plan_backward_input and clv_plan_backward_weight, and
 * returns the call with clv_plan_call_put. Each phase fills a clv_plan_frame, which is a table with
 * the start address of each space, and runs its steps. A step finds a buffer at the start of the
 * buffer's space plus the buffer's offset. This file allocates no memory in the phases, but a
 * recorder may allocate memory on the device.
 */
#include "common/model/graph/plan_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *buf_address(const clv_plan *p, const clv_plan_frame *f, int buf) {
  if (buf < 0) return NULL;
  const clv_plan_buf *b = &p->bufs[buf];
  char *base = f->space_start[b->space];
  /* NULL in backward, to which the caller passes no output */
  return base ? base + b->offset : NULL;
}

/* ---- running single steps -------------------------------------------------------------------- */

/* Returns the address of the kernel's weights in library format (the layout that the kernel library
 * reads fastest): in the plan's cache or, with transient_weights, in a buffer that step s fills
 * itself. NULL: the kernel has none. */
static void *cache_address(const clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s) {
  const clv_plan_node *q = &p->nodes[s->node];
  if (p->options.transient_weights) return buf_address(p, f, s->cache);
  return q->kernel->cache_bytes ? p->weight_cache + q->weight_cache_offset : NULL;
}

static clv_code refresh_kernel_cache(clv_plan *p, const clv_plan_step *s, clv_kernel_args *a,
                                     unsigned refresh_flags, clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  a->refresh_for = refresh_flags;
  return k->refresh(k, a, err);
}

/* Returns the RNG key of a node's kernel for this run. Its slot is 0 (see RNG_SLOT_BITS). */
static clv_rng_key rng_key_of(const clv_node *node, const clv_plan_frame *f) {
  clv_rng_key key = clv_rng_key_of(&node->key);
  key.step = f->rng_key.step;
  key.micro_batch = f->rng_key.micro_batch;
  key.layer = node->layer << RNG_SLOT_BITS;
  return key;
}

/* Removes const, because clv_plan_frame.space_start is not const. Safe: kernels write to the
 * caller's memory only through `out` and `din`, and never to shared parameters. */
static char *drop_const(const void *memory) { return (char *)(uintptr_t)memory; }

static void *param_address(const clv_plan *p, const clv_plan_frame *f, const clv_param *q) {
  if (q->owner_data) return q->owner_data;
  return q->is_shared ? drop_const(p->options.shared_params[q->list_index]) : f->params + q->offset;
}

static clv_kernel_args make_kernel_args(clv_plan *p, const clv_plan_frame *f,
                                        const clv_plan_step *s) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = {.out = buf_address(p, f, s->out),
                       .cache = cache_address(p, f, s),
                       .saved = buf_address(p, f, s->saved_buf),
                       .scratch = buf_address(p, f, s->scratch),
                       .accumulate = f->accumulate,
                       .key = rng_key_of(&p->graph->nodes[q->rng_node], f),
                       .rng_position = f->rng_position};
  for (int i = 0; i < q->n_src; i++) a.in[i] = buf_address(p, f, s->in[i]);
  if (s->recomputed_in0 >= 0) a.in[0] = buf_address(p, f, s->recomputed_in0);
  for (int i = 0; i < CLV_MAX_PARAMS && q->slot_params[i]; i++)
    a.param[i] = param_address(p, f, q->slot_params[i]);
  return a;
}

static void set_gradient_pointers(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                  clv_kernel_args *a) {
  const clv_plan_node *q = &p->nodes[s->node];
  for (int i = 0; i < CLV_MAX_PARAMS && q->slot_params[i]; i++)
    if (q->slot_params[i]->trainable)
      a->dparam[i] = q->slot_params[i]->frozen ? buf_address(p, f, s->discard_bufs[i])
                                               : f->grads + q->slot_params[i]->gradient_offset;
}

clv_code clv_plan_run_forward(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                              clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  clv_kernel_args a = make_kernel_args(p, f, s);
  for (int i = 0; i < CLV_MAX_PARAMS; i++)
    if (s->discard_bufs[i] >= 0) a.param[i] = buf_address(p, f, s->discard_bufs[i]);
  if (s->cache >= 0) CLV_TRY(refresh_kernel_cache(p, s, &a, CLV_FOR_FORWARD, err));
  return k->forward(k, &a, err);
}

clv_code clv_plan_run_backward_input(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                     clv_err *err) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = make_kernel_args(p, f, s);
  a.dout = buf_address(p, f, q->grad_sum.buf);
  for (int i = 0; i < q->n_src; i++) a.din[i] = buf_address(p, f, s->din[i]);
  if (q->kernel->fused_grads && q->is_trained) set_gradient_pointers(p, f, s, &a);
  if (s->cache >= 0) CLV_TRY(refresh_kernel_cache(p, s, &a, CLV_FOR_BACKWARD, err));
  return q->kernel->backward_input(q->kernel, &a, err);
}

clv_code clv_plan_run_backward_weight(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                      clv_err *err) {
  const clv_plan_node *q = &p->nodes[s->node];
  clv_kernel_args a = make_kernel_args(p, f, s);
  if (!q->kernel->weight_part_is_last) a.dout = buf_address(p, f, q->grad_sum.buf);
  set_gradient_pointers(p, f, s, &a);
  return q->kernel->backward_weight(q->kernel, &a, err);
}

clv_code clv_plan_run_recompute(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                                clv_err *err) {
  clv_kernel *k = p->nodes[s->node].kernel;
  clv_kernel_args a = make_kernel_args(p, f, s);
  a.out = buf_address(p, f, s->dst);
  return k->recompute(k, &a, err);
}

clv_code clv_plan_run_reorder(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                              clv_err *err) {
  const clv_node *n = &p->graph->nodes[s->node];
  return p->backend->reorder(p->backend, &n->shape, n->dtype, buf_address(p, f, s->src),
                             s->src_layout, buf_address(p, f, s->dst), s->dst_layout, err);
}

clv_code clv_plan_run_copy(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                           clv_err *err) {
  return clv_backend_copy(p->backend, buf_address(p, f, s->dst), buf_address(p, f, s->src), s->n,
                          err);
}

clv_code clv_plan_run_add(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                          clv_err *err) {
  (void)err;
  clv_dtype dtype = clv_layout_is_bf16(s->dst_layout) ? CLV_BF16 : p->options.dtype;
  p->backend->add(p->backend, dtype, buf_address(p, f, s->dst), buf_address(p, f, s->src), s->n);
  return CLV_OK;
}

clv_code clv_plan_run_zero(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                           clv_err *err) {
  return clv_backend_fill(p->backend, buf_address(p, f, s->dst), 0, s->n, err);
}

void clv_plan_set_timing(clv_plan *p, clv_plan_times *times) { p->node_times = times; }

static clv_code run_step_timed(clv_plan *p, const clv_plan_frame *f, const clv_plan_step *s,
                               int phase, clv_err *err) {
  clv_plan_times *t = &p->node_times[s->node];
  bool is_weight_part = s->run == clv_plan_run_backward_weight || phase == PHASE_BACKWARD_WEIGHT;
  uint64_t begin = clv_now_ns();
  clv_code code = s->run(p, f, s, err);
  if (code == CLV_OK) code = clv_backend_finish(p->backend, err);
  *(is_weight_part           ? &t->weight_grad_seconds
    : phase == PHASE_FORWARD ? &t->forward_seconds
                             : &t->input_grad_seconds) += (double)(clv_now_ns() - begin) * 1e-9;
  return code;
}

/* Adds layer, op and verb of the step that failed to the text of an error, and sets err->failed_op.
 * Returns the error's code. */
static clv_code add_step_to_error(const clv_plan *p, const clv_plan_step *s, clv_err *err) {
  const clv_node *n = &p->graph->nodes[s->node];
  if (err)
    snprintf(err->failed_op, sizeof err->failed_op, "layer %" PRIu32 " (%s), %s", n->layer,
             clv_op_name(n->op), s->step_name);
  return clv_err_prefix(err, "layer %s (%s), %s", n->name, clv_op_name(n->op), s->step_name);
}

static int first_step_of_phase(const clv_plan *p, int phase) {
  return phase ? p->phase_end[phase - 1] : 0;
}

/* Waits until the device has finished all work, so that it no longer uses the caller's memory.
 * Returns `code` if the phase has failed already, and otherwise the device's error, with the layer
 * if the device names one. */
static clv_code finish_phase(clv_plan *p, int phase, clv_code code, clv_err *err) {
  const clv_backend *b = p->backend;
  int64_t layer = -1;
  clv_err device_err;
  if (!b->memory || b->memory->finish(b, &layer, &device_err) == CLV_OK || code != CLV_OK)
    return code;
  p->is_cache_current = false;
  if (err) *err = device_err;
  for (int i = first_step_of_phase(p, phase); i < p->phase_end[phase] && layer >= 0; i++) {
    const clv_plan_step *s = &p->steps[i];
    bool moves_data = s->src >= 0 || s->dst >= 0;
    if (!moves_data && p->graph->nodes[s->node].layer == layer >> RNG_SLOT_BITS)
      return add_step_to_error(p, s, err);
  }
  return device_err.code;
}

typedef struct phase_run {
  clv_plan *p;
  const clv_plan_frame *f;
  int phase;
} phase_run;

static clv_code run_steps(void *user, clv_err *err) {
  const phase_run *r = user;
  clv_plan *p = r->p;
  for (int i = first_step_of_phase(p, r->phase); i < p->phase_end[r->phase]; i++) {
    const clv_plan_step *s = &p->steps[i];
    if ((p->node_times ? run_step_timed(p, r->f, s, r->phase, err) : s->run(p, r->f, s, err)) !=
        CLV_OK)
      return add_step_to_error(p, s, err);
  }
  return CLV_OK;
}

_Static_assert(SPACE_COUNT + 2 <= CLV_MAX_RECORD_POINTERS, "all memory of a frame");

/* Returns the key under which the recorder stores a phase: plan, phase, accumulate and all
 * addresses. The RNG position is not part of the key, because recorded kernels read it from memory.
 */
static clv_record_key recorder_key(const clv_plan *p, const clv_plan_frame *f, int phase) {
  clv_record_key key = {.owner = p, .kind = (uintptr_t)phase << 1 | f->accumulate};
  for (int i = 0; i < SPACE_COUNT; i++) key.pointers[i] = f->space_start[i];
  key.pointers[SPACE_COUNT] = f->params;
  key.pointers[SPACE_COUNT + 1] = f->grads;
  return key;
}

/* Runs the steps of a phase. If the plan has a recorder and steps are not being timed, the recorder
 * records the device work of the phase (as a CUDA graph), and later replays it in one call. */
static clv_code run_phase(clv_plan *p, const clv_plan_frame *f, int phase, clv_err *err) {
  phase_run r = {p, f, phase};
  p->backend->set_threads(p->options.threads);
  if (!p->options.recorder || p->node_times || first_step_of_phase(p, phase) == p->phase_end[phase])
    return run_steps(&r, err);
  clv_record_key key = recorder_key(p, f, phase);
  return clv_recorder_run(p->options.recorder, &key, run_steps, &r, err);
}

/* ---- calls of a plan ------------------------------------------------------------------------- */

static clv_code alloc_shared_blocks(clv_plan *p, clv_err *err) {
  if (!p->scratch)
    CLV_TRY(clv_backend_allocate(p->backend, p->info.scratch_bytes, &p->scratch, err));
  if (!p->weight_cache)
    CLV_TRY(clv_backend_allocate(p->backend, p->info.weight_cache_bytes, &p->weight_cache, err));
  return CLV_OK;
}

clv_code clv_plan_call_get(clv_plan *p, clv_call **ret, clv_err *err) {
  clv_call *c = p->free_calls;
  if (c) {
    p->free_calls = c->next_idle;
    c->state = PLAN_CALL_EMPTY;
    *ret = c;
    return CLV_OK;
  }
  CLV_TRY(alloc_shared_blocks(p, err));
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  clv_code code = clv_backend_allocate(p->backend, p->info.call_bytes, &c->memory, err);
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
  c->caller_memories = *memories;
}

void clv_plan_call_put(clv_plan *p, clv_call *c) {
  if (!c) return;
  c->caller_memories = (clv_plan_memories){0};
  c->state = PLAN_CALL_EMPTY;
  c->next_idle = p->free_calls;
  p->free_calls = c;
}

/* ---- running the phases of a plan ------------------------------------------------------------ */

static clv_plan_frame make_frame(const clv_plan *p, const clv_call *c, void *param_block) {
  clv_plan_frame f = {.params = param_block, .rng_key = c->rng_key};
  f.space_start[SPACE_SCRATCH] = p->scratch;
  f.space_start[SPACE_CALL] = c->memory;
  for (int i = 0; i < p->n_inputs; i++) f.space_start[SPACE_IN + i] = drop_const(c->in[i]);
  return f;
}

/* Returns the address that kernels use for the caller's buffer `caller_buffer`: the buffer itself
 * or, if the backend has its own memory, a copy in the scratch. NULL: the caller passed no such
 * buffer. */
static char *address_for_kernels(const clv_plan *p, int space, void *caller_buffer) {
  return p->backend->memory && caller_buffer ? p->scratch + p->copy_offset[space] : caller_buffer;
}

/* Copies the result of a phase to the caller's buffer `to`, which is in the memory of
 * `caller_backend` (NULL: host memory). Does nothing if the kernels have already written to that
 * buffer. */
static clv_code copy_to_caller(const clv_plan *p, int space, void *to,
                               const clv_backend *caller_backend, size_t bytes, clv_err *err) {
  if (!p->backend->memory || !to) return CLV_OK;
  const char *from = p->scratch + p->copy_offset[space];
  return caller_backend ? clv_backend_copy(p->backend, to, from, bytes, err)
                        : clv_backend_get(p->backend, to, from, bytes, err);
}

static clv_code refresh_cache(clv_plan *p, const clv_plan_frame *f, uint64_t version,
                              clv_err *err) {
  if (p->options.transient_weights) return CLV_OK;
  if (p->is_cache_current && p->cached_params_version == version && p->cached_params == f->params)
    return CLV_OK;
  p->is_cache_current = false;
  for (int i = 0; i < p->phase_end[PHASE_FORWARD]; i++) {
    const clv_plan_step *s = &p->steps[i];
    clv_kernel *k = s->run == clv_plan_run_forward ? p->nodes[s->node].kernel : NULL;
    if (!k || !k->refresh) continue;
    clv_kernel_args a = make_kernel_args(p, f, s);
    CLV_TRY(refresh_kernel_cache(p, s, &a, CLV_FOR_FORWARD | CLV_FOR_BACKWARD, err));
  }
  p->is_cache_current = true;
  p->cached_params_version = version;
  p->cached_params = f->params;
  return CLV_OK;
}

/* Copies input i into the plan's memory if the kernels cannot read the caller's memory, or if
 * backward reads the input and the caller does not keep it until then. */
static clv_code prepare_input(clv_plan *p, clv_call *c, int i, bool is_kept, clv_err *err) {
  bool needs_saved_copy = p->input_copy_buf[i] >= 0 && !is_kept;
  if (!needs_saved_copy && !p->backend->memory) return CLV_OK;
  char *copy = needs_saved_copy ? c->memory + p->bufs[p->input_copy_buf[i]].offset
                                : p->scratch + p->copy_offset[SPACE_IN + i];
  CLV_TRY(clv_backend_copy_from(p->backend, copy, c->caller_memories.in[i], c->in[i],
                                p->input_bytes[i], err));
  c->in[i] = copy;
  return CLV_OK;
}

static clv_code prepare_inputs(clv_plan *p, clv_call *c, const void *const *in, bool keep_inputs,
                               clv_err *err) {
  bool is_kept = keep_inputs && !p->backend->memory;
  for (int i = 0; i < p->n_inputs; i++) {
    const clv_node *n = &p->graph->nodes[p->input_node[i]];
    c->in[i] = in[i];
    if (!p->nodes[p->input_node[i]].is_reachable) continue;
    if (!in[i]) return clv_fail(err, CLV_INVALID, "input '%s' is missing", n->name);
    CLV_TRY(prepare_input(p, c, i, is_kept, err));
  }
  return CLV_OK;
}

static clv_code write_nan_to_output(const clv_plan *p, const clv_backend *caller_backend, void *out,
                                    clv_err *err) {
  const double nan_f64 = NAN;
  const float nan_f32 = NAN;
  bool is_f64 = p->options.dtype == CLV_F64;
  const void *nan = is_f64 ? (const void *)&nan_f64 : &nan_f32;
  size_t bytes = is_f64 ? sizeof nan_f64 : sizeof nan_f32;
  if (caller_backend) return clv_backend_put(caller_backend, out, nan, bytes, err);
  memcpy(out, nan, bytes);
  return CLV_OK;
}

/* Writes the RNG position (step, micro-batch) of the call to the device, so that the kernels of a
 * replayed phase draw this call's numbers. Does nothing if phases are not recorded, or if no kernel
 * draws numbers. */
static clv_code upload_rng_position(const clv_plan *p, clv_plan_frame *f, clv_err *err) {
  const clv_rng_position position = {.step = f->rng_key.step,
                                     .micro_batch = f->rng_key.micro_batch};
  if (!p->uses_rng_position || !p->options.recorder) return CLV_OK;
  void *at = p->scratch + p->rng_position_offset;
  f->rng_position = at;
  return clv_backend_put(p->backend, at, &position, sizeof position, err);
}

static clv_code run_forward_phase(clv_plan *p, clv_call *c, void *param_block,
                                  uint64_t param_version, void *out, clv_err *err) {
  clv_plan_frame f = make_frame(p, c, param_block);
  f.space_start[SPACE_OUT] = address_for_kernels(p, SPACE_OUT, out);
  p->backend->set_threads(p->options.threads);
  CLV_TRY(refresh_cache(p, &f, param_version, err));
  CLV_TRY(upload_rng_position(p, &f, err));
  CLV_TRY(run_phase(p, &f, PHASE_FORWARD, err));
  CLV_TRY(copy_to_caller(p, SPACE_OUT, out, c->caller_memories.out, p->out_bytes, err));
  return p->scalar_is_nan ? write_nan_to_output(p, c->caller_memories.out, out, err) : CLV_OK;
}

clv_code clv_plan_forward(clv_plan *p, clv_call *c, void *param_block, uint64_t param_version,
                          const void *const *in, bool keep_inputs, void *out,
                          const clv_rng_key *key, clv_err *err) {
  c->state = PLAN_CALL_EMPTY;
  c->rng_key = key ? *key : (clv_rng_key){0};
  clv_code code = prepare_inputs(p, c, in, keep_inputs, err);
  if (code == CLV_OK) code = run_forward_phase(p, c, param_block, param_version, out, err);
  CLV_TRY(finish_phase(p, PHASE_FORWARD, code, err));
  c->state = PLAN_CALL_FORWARD;
  return CLV_OK;
}

clv_code clv_plan_refresh_weights(clv_plan *p, clv_call *c, void *param_block,
                                  uint64_t param_version, clv_err *err) {
  const clv_plan_frame f = make_frame(p, c, param_block);
  p->backend->set_threads(p->options.threads);
  return finish_phase(p, PHASE_FORWARD, refresh_cache(p, &f, param_version, err), err);
}

static clv_code check_call_state(const clv_plan *p, const clv_call *c,
                                 clv_plan_call_state expected_state, clv_err *err) {
  static const char *const words[] = {[PLAN_CALL_EMPTY] = "has no forward",
                                      [PLAN_CALL_FORWARD] = "is after forward",
                                      [PLAN_CALL_BACKWARD] = "is after backward_input",
                                      [PLAN_CALL_DONE] = "is done"};
  if (!p->options.training)
    return clv_fail(err, CLV_PRECONDITION, "a plan for evaluation has no backward");
  if (c->state != expected_state)
    return clv_fail(err, CLV_PRECONDITION, "the call %s, but %s", words[c->state],
                    expected_state == PLAN_CALL_FORWARD
                        ? "backward_input must follow a forward"
                        : "backward_weight must follow a backward_input");
  return CLV_OK;
}

static clv_code zero_ranges(const clv_plan *p, char *grads, clv_err *err) {
  for (int i = 0; i < p->n_zeroed_ranges; i++)
    CLV_TRY(clv_backend_fill(p->backend, grads + p->zeroed_ranges[i].offset, 0,
                             p->zeroed_ranges[i].bytes, err));
  return CLV_OK;
}

static bool needs_input_gradient(const clv_plan *p, int input) {
  return p->nodes[p->input_node[input]].needs_grad;
}

/* Sets the addresses of the gradients of output and inputs in the frame. Copies the output's
 * gradient to the device if the backend has its own memory. */
static clv_code prepare_gradients(const clv_plan *p, const clv_call *c, clv_plan_frame *f,
                                  const void *dout, void *const *din, clv_err *err) {
  f->space_start[SPACE_DOUT] = address_for_kernels(p, SPACE_DOUT, drop_const(dout));
  for (int i = 0; i < p->n_inputs; i++) {
    f->space_start[SPACE_DIN + i] = address_for_kernels(p, SPACE_DIN + i, din ? din[i] : NULL);
    if (needs_input_gradient(p, i) && !f->space_start[SPACE_DIN + i])
      return clv_fail(err, CLV_INVALID, "no buffer is given for the gradient of input '%s'",
                      p->graph->nodes[p->input_node[i]].name);
  }
  if (!p->backend->memory || !p->nodes[p->graph->output_node].needs_grad) return CLV_OK;
  return clv_backend_copy_from(p->backend, f->space_start[SPACE_DOUT], c->caller_memories.dout,
                               dout, p->out_bytes, err);
}

static clv_code run_backward_input_phase(clv_plan *p, const clv_call *c, clv_plan_frame *f,
                                         const void *dout, void *const *din, clv_err *err) {
  CLV_TRY(prepare_gradients(p, c, f, dout, din, err));
  CLV_TRY(upload_rng_position(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_ranges(p, f->grads, err));
  CLV_TRY(run_phase(p, f, PHASE_BACKWARD_INPUT, err));
  for (int i = 0; i < p->n_inputs; i++)
    if (needs_input_gradient(p, i))
      CLV_TRY(copy_to_caller(p, SPACE_DIN + i, din[i], c->caller_memories.din[i], p->input_bytes[i],
                             err));
  return CLV_OK;
}

clv_code clv_plan_backward_input(clv_plan *p, clv_call *c, void *param_block, const void *dout,
                                 void *const *din, void *grad_block, bool accumulate,
                                 clv_err *err) {
  CLV_TRY(check_call_state(p, c, PLAN_CALL_FORWARD, err));
  clv_plan_frame f = make_frame(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(finish_phase(p, PHASE_BACKWARD_INPUT, run_backward_input_phase(p, c, &f, dout, din, err),
                       err));
  c->state = PLAN_CALL_BACKWARD;
  return CLV_OK;
}

static clv_code run_backward_weight_phase(clv_plan *p, clv_plan_frame *f, clv_err *err) {
  CLV_TRY(upload_rng_position(p, f, err));
  if (!f->accumulate && f->grads) CLV_TRY(zero_ranges(p, f->grads, err));
  return run_phase(p, f, PHASE_BACKWARD_WEIGHT, err);
}

clv_code clv_plan_backward_weight(clv_plan *p, clv_call *c, void *param_block, void *grad_block,
                                  bool accumulate, clv_err *err) {
  CLV_TRY(check_call_state(p, c, PLAN_CALL_BACKWARD, err));
  clv_plan_frame f = make_frame(p, c, param_block);
  f.grads = grad_block;
  f.accumulate = accumulate;
  CLV_TRY(finish_phase(p, PHASE_BACKWARD_WEIGHT, run_backward_weight_phase(p, &f, err), err));
  c->state = PLAN_CALL_DONE;
  return CLV_OK;
}
