/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dist/stage_int.h"

#include <math.h>
#include <string.h>

/* ---- opening and closing a step ---------------------------------------------------------------- */

static void open_step(clv_stage *s, const clv_frame *f) {
  s->step = f->step;
  s->context = f->context;
  s->n_micro = f->n_micro_batches;
  s->next_forward = s->next_backward = 0;
  s->prepared = false;
  memcpy(s->shadow, (char *)s->block + s->params->trainable_bytes, clv_stage_buffer_bytes(s));
}

static void restore_buffers(clv_stage *s) {
  memcpy((char *)s->block + s->params->trainable_bytes, s->shadow, clv_stage_buffer_bytes(s));
}

static void close_step(clv_stage *s) {
  s->committed = s->step;
  s->step = 0;
  s->prepared = false;
}

void clv_stage_abort(clv_stage *s) {
  for (uint32_t i = 0; i < s->o.max_micro_batches; i++) {
    clv_stage_clear_micro(&s->micros[i]);
    clv_stage_clear_micro(&s->eval_micros[i]);
  }
  if (s->step) restore_buffers(s);
  s->step = 0;
  s->prepared = false;
  while (s->parked) {
    clv_packet *p = s->parked;
    s->parked = p->next;
    clv_packet_free(p);
  }
  s->counts.parked = 0;
}

void clv_stage_end_context(clv_stage *s, uint64_t context) {
  if (s->step && s->context == context) clv_stage_abort(s);
}

static clv_code apply_commit(clv_stage *s, uint64_t step, float scale, float lr, bool apply,
                             clv_err *err) {
  if (step == s->committed && s->step != step) return CLV_OK; /* a repeat of what is done */
  if (step != s->step || (s->participates && !s->prepared))
    return clv_fail(err, CLV_PRECONDITION,
                    "COMMIT of step %llu, but stage %u is at step %llu (committed %llu, %s)",
                    (unsigned long long)step, s->o.index, (unsigned long long)s->step,
                    (unsigned long long)s->committed, s->prepared ? "prepared" : "not prepared");
  if (!apply) {
    restore_buffers(s);
  } else if (s->optim) {
    clv_optim_step(s->optim, s->block, s->grads, lr, scale);
    s->version++;
  }
  close_step(s);
  return CLV_OK;
}

/* ---- forward ----------------------------------------------------------------------------------- */

static clv_code new_packet(clv_stage *s, clv_frame_kind kind, const clv_frame *cause,
                           uint32_t stage, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(s->pool, kind, ret, err));
  clv_frame *f = &(*ret)->frame;
  f->context = cause->context;
  f->message = ++*s->next_message;
  f->step = cause->step;
  f->micro_batch = cause->micro_batch;
  f->n_micro_batches = cause->n_micro_batches;
  f->flags = cause->flags & CLV_FLAG_TRAINING;
  f->stage = stage;
  return CLV_OK;
}

static clv_code output_tensor(clv_stage *s, const clv_node *node, int64_t batch, clv_tensor **ret,
                              clv_err *err) {
  clv_shape shape = node->shape;
  if (shape.rank > 0) shape.dim[0] = batch; /* losses are scalars and have no N */
  return clv_pool_tensor(s->pool, node->dtype, &shape, ret, err);
}

/* Everything in a micro-batch is of one batch size: plans are made for the first input's. */
static clv_code check_batch(const clv_stage *s, const micro *m, clv_err *err) {
  for (int i = 1; i < s->n_inputs; i++)
    if (m->in[i]->shape.rank && m->in[i]->shape.dim[0] != m->in[0]->shape.dim[0])
      return clv_fail(err, CLV_INVALID,
                      "stage %u: input 0 is a batch of %lld, input %d one of %lld", s->o.index,
                      (long long)m->in[0]->shape.dim[0], i, (long long)m->in[i]->shape.dim[0]);
  return CLV_OK;
}

/* Runs one micro-batch whose inputs are complete and sends its output on. */
static clv_code run_forward(clv_stage *s, micro *m, const clv_frame *cause, clv_err *err) {
  bool training = cause->flags & CLV_FLAG_TRAINING;
  CLV_TRY(check_batch(s, m, err));
  int64_t batch = m->in[0]->shape.rank ? m->in[0]->shape.dim[0] : 1;
  CLV_TRY(clv_stage_plan(s, batch, training, &m->plan, err));
  clv_code code = clv_plan_call_get(m->plan, &m->call, err);
  if (code != CLV_OK) {
    m->plan = NULL;
    return code;
  }
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *out = NULL;
  CLV_TRY(output_tensor(s, &s->graph->nodes[s->graph->output], batch, &out, err));
  const void *in[CLV_MAX_INPUTS] = {0};
  for (int i = 0; i < s->n_inputs; i++) in[i] = m->in[i]->data;
  clv_rng_key key = {.seed = s->o.seed, .step = cause->step, .micro_batch = cause->micro_batch};
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_plan_forward(m->plan, m->call, s->block, s->version, in, true, out->data, &key, err));
  s->counts.compute_ns += clv_now_ns() - begin;
  clv_packet *p;
  CLV_TRY(new_packet(s, CLV_FORWARD, cause, s->o.index + 1, &p, err));
  p->frame.upstream[0] = m->in_message; /* the result depends on the message it came from */
  p->frame.n_upstream = 1;
  m->out_message = p->frame.message;
  clv_packet_add(p, out);
  s->emit(s->emit_user, p);
  return CLV_OK;
}

static bool complete(const clv_stage *s, const micro *m) {
  for (int i = 0; i < s->n_inputs; i++)
    if (!m->in[i]) return false;
  return true;
}

/* The tensors of a FORWARD into the slots its presence bitmap names, checked against the graph. */
static clv_code take_inputs(clv_stage *s, micro *m, const clv_packet *p, clv_err *err) {
  uint32_t next = 0;
  for (int slot = 0; slot < 8 * CLV_WIRE_PRESENCE_BYTES && next < p->frame.n_tensors; slot++) {
    bool implied = true;
    for (int b = 0; b < CLV_WIRE_PRESENCE_BYTES; b++) implied &= p->frame.presence[b] == 0;
    if (!implied && !(p->frame.presence[slot / 8] >> (slot % 8) & 1)) continue;
    clv_tensor *t = p->tensor[next++];
    if (slot >= s->n_inputs || m->in[slot])
      return clv_fail(err, CLV_INVALID, "stage %u: input %d of micro-batch %u is %s", s->o.index,
                      slot, p->frame.micro_batch, slot >= s->n_inputs ? "not there" : "sent twice");
    clv_shape want = {0};
    int seen = 0;
    for (int i = 0; i < s->graph->n_nodes; i++)
      if (s->graph->nodes[i].op == CLV_OP_INPUT && seen++ == slot) want = s->graph->nodes[i].shape;
    if (want.rank && t->shape.rank && t->shape.dim[0] > 0) want.dim[0] = t->shape.dim[0];
    if (t->dtype != s->in_dtype[slot] || !clv_shape_equal(&want, &t->shape)) {
      char w[160], g[160];
      return clv_fail(err, CLV_INVALID, "stage %u expects input %d as %s %s, got %s %s", s->o.index,
                      slot, clv_dtype_name(s->in_dtype[slot]), clv_shape_format(&want, w, sizeof w),
                      clv_dtype_name(t->dtype), clv_shape_format(&t->shape, g, sizeof g));
    }
    m->in[slot] = clv_tensor_ref(t);
    if (slot == 0) m->in_message = p->frame.message;
  }
  return CLV_OK;
}

static clv_code check_micro(const clv_stage *s, const clv_frame *f, clv_err *err) {
  if (f->n_micro_batches == 0 || f->n_micro_batches > s->o.max_micro_batches ||
      f->micro_batch >= f->n_micro_batches)
    return clv_fail(err, CLV_INVALID, "micro-batch %u of %u (stage %u was loaded for %u)",
                    f->micro_batch, f->n_micro_batches, s->o.index, s->o.max_micro_batches);
  return CLV_OK;
}

static clv_code eval_forward(clv_stage *s, clv_packet *p, clv_err *err) {
  CLV_TRY(check_micro(s, &p->frame, err));
  micro *m = &s->eval_micros[p->frame.micro_batch];
  clv_code code = take_inputs(s, m, p, err);
  if (code == CLV_OK && !complete(s, m)) return CLV_OK;
  if (code == CLV_OK) code = run_forward(s, m, &p->frame, err);
  clv_stage_clear_micro(m);
  s->counts.evals++;
  return code;
}

static clv_code train_forward(clv_stage *s, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  CLV_TRY(check_micro(s, f, err));
  if (!s->step) open_step(s, f);
  if (f->n_micro_batches != s->n_micro || f->context != s->context)
    return clv_fail(err, CLV_INVALID, "stage %u: step %llu has %u micro-batches, not %u",
                    s->o.index, (unsigned long long)s->step, s->n_micro, f->n_micro_batches);
  if (f->micro_batch < s->next_forward)
    return clv_fail(err, CLV_EXISTS, "stage %u has run micro-batch %u of step %llu already",
                    s->o.index, f->micro_batch, (unsigned long long)s->step);
  CLV_TRY(take_inputs(s, &s->micros[f->micro_batch], p, err));
  clv_frame cause = *f;
  while (s->next_forward < s->n_micro && complete(s, &s->micros[s->next_forward])) {
    cause.micro_batch = s->next_forward;
    CLV_TRY(run_forward(s, &s->micros[s->next_forward], &cause, err));
    s->counts.forwards++;
    if (!s->participates) clv_stage_clear_micro(&s->micros[s->next_forward]);
    s->next_forward++;
  }
  if (!s->o.learns && !s->participates && s->next_forward == s->n_micro) close_step(s);
  return CLV_OK;
}

/* ---- backward ---------------------------------------------------------------------------------- */

static clv_code send_gradient(clv_stage *s, micro *m, const clv_frame *cause, clv_tensor *din,
                              clv_err *err) {
  clv_packet *p;
  CLV_TRY(new_packet(s, CLV_BACKWARD, cause, s->o.index - 1, &p, err));
  p->frame.reply_to = m->in_message;
  p->frame.phase = cause->phase;
  if (cause->micro_batch + 1 == s->n_micro) p->frame.flags |= CLV_FLAG_PREPARE;
  clv_packet_add(p, din);
  s->emit(s->emit_user, p);
  return CLV_OK;
}

/* dX leaves before dW is computed, so that the stage before can start on it. */
static clv_code run_backward(clv_stage *s, micro *m, const clv_frame *cause, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *din = NULL;
  void *dins[CLV_MAX_INPUTS] = {0};
  bool accumulate = cause->micro_batch > 0;
  if (s->o.input_needs_grad) {
    CLV_TRY(clv_pool_tensor(s->pool, CLV_F32, &m->in[0]->shape, &din, err));
    dins[0] = din->data;
  }
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_plan_backward_input(m->plan, m->call, s->block, m->dout->data, dins, s->grads,
                                  accumulate, err));
  if (din) CLV_TRY(send_gradient(s, m, cause, din, err));
  CLV_TRY(clv_plan_backward_weight(m->plan, m->call, s->block, s->grads, accumulate, err));
  s->counts.compute_ns += clv_now_ns() - begin;
  s->counts.backwards++;
  return CLV_OK;
}

/* One sum of squares per parameter: the master adds them in the order of the uncut network, so the
 * norm does not depend on where the cuts are. */
static clv_code send_vote(clv_stage *s, const clv_frame *cause, clv_err *err) {
  clv_packet *p;
  CLV_TRY(new_packet(s, CLV_VOTE, cause, s->o.index, &p, err));
  double total = 0;
  if (s->n_learning) {
    clv_shape shape = CLV_SHAPE((int64_t)s->n_learning);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *sums = NULL;
    clv_code code = clv_pool_tensor(s->pool, CLV_F64, &shape, &sums, err);
    if (code != CLV_OK) {
      clv_packet_free(p);
      return code;
    }
    double *d = sums->data;
    for (int i = 0; i < s->params->n; i++) {
      const clv_param *q = &s->params->list[i];
      if (!q->trainable || q->frozen) continue;
      *d = s->o.backend->sum_squares((const float *)((char *)s->grads + q->offset), q->n);
      total += *d++;
    }
    clv_packet_add(p, sums);
  }
  p->frame.vote.finite = isfinite(total);
  p->frame.vote.grad_sq = isfinite(total) ? total : 0;
  s->emit(s->emit_user, p);
  return CLV_OK;
}

static clv_code take_gradient(clv_stage *s, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  if (!s->step || f->step != s->step || f->micro_batch >= s->next_forward || f->n_tensors != 1)
    return clv_fail(err, CLV_PRECONDITION,
                    "BACKWARD of step %llu, micro-batch %u, with %u tensors: stage %u is at step "
                    "%llu and has run %u forwards",
                    (unsigned long long)f->step, f->micro_batch, f->n_tensors, s->o.index,
                    (unsigned long long)s->step, s->next_forward);
  micro *m = &s->micros[f->micro_batch];
  if (f->micro_batch < s->next_backward || m->dout)
    return clv_fail(err, CLV_EXISTS, "stage %u has the gradient of micro-batch %u already",
                    s->o.index, f->micro_batch);
  if (f->reply_to != m->out_message)
    return clv_fail(err, CLV_INVALID, "BACKWARD answers message %llx, the output was %llx",
                    (unsigned long long)f->reply_to, (unsigned long long)m->out_message);
  clv_shape want = s->graph->nodes[s->graph->output].shape;
  if (want.rank) want.dim[0] = m->in[0]->shape.dim[0];
  if (p->tensor[0]->dtype != CLV_F32 || !clv_shape_equal(&want, &p->tensor[0]->shape))
    return clv_fail(err, CLV_INVALID, "stage %u: the gradient does not have the output's shape",
                    s->o.index);
  m->dout = clv_tensor_ref(p->tensor[0]);
  return CLV_OK;
}

static clv_code train_backward(clv_stage *s, clv_packet *p, clv_err *err) {
  CLV_TRY(take_gradient(s, p, err));
  clv_frame cause = p->frame;
  while (s->next_backward < s->next_forward && s->micros[s->next_backward].dout) {
    micro *m = &s->micros[s->next_backward];
    cause.micro_batch = s->next_backward;
    CLV_TRY(run_backward(s, m, &cause, err));
    clv_stage_clear_micro(m);
    s->next_backward++;
  }
  if (s->next_backward < s->n_micro) return CLV_OK;
  s->prepared = true;
  if (!s->o.learns) {
    close_step(s);
    return CLV_OK;
  }
  return send_vote(s, &cause, err);
}

/* ---- packets ----------------------------------------------------------------------------------- */

/* Work of a step whose predecessor is not committed here yet waits. */
static bool must_wait(const clv_stage *s, const clv_frame *f) {
  bool training = f->flags & CLV_FLAG_TRAINING;
  if (f->kind != CLV_FORWARD) return false;
  if (!training) return f->step > s->committed;
  return f->step > s->committed + 1;
}

static clv_code refuse_old(const clv_stage *s, const clv_frame *f, clv_err *err) {
  if (f->kind == CLV_FORWARD && (f->flags & CLV_FLAG_TRAINING) && f->step <= s->committed)
    return clv_fail(err, CLV_PRECONDITION, "step %llu is committed at stage %u (now at %llu)",
                    (unsigned long long)f->step, s->o.index, (unsigned long long)s->committed);
  return CLV_OK;
}

static clv_code dispatch(clv_stage *s, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  CLV_TRY(refuse_old(s, f, err));
  if (f->kind == CLV_BACKWARD) return train_backward(s, p, err);
  return f->flags & CLV_FLAG_TRAINING ? train_forward(s, p, err) : eval_forward(s, p, err);
}

static void park(clv_stage *s, clv_packet *p) {
  clv_packet **at = &s->parked;
  while (*at) at = &(*at)->next;
  p->next = NULL;
  *at = p;
  s->counts.parked++;
}

/* A COMMIT may have made parked packets runnable: each is taken out at most once per commit. */
static clv_code run_parked(clv_stage *s, clv_err *err) {
  clv_packet **at = &s->parked;
  while (*at) {
    clv_packet *p = *at;
    if (must_wait(s, &p->frame)) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    s->counts.parked--;
    clv_code code = dispatch(s, p, err);
    clv_packet_free(p);
    CLV_TRY(code);
    at = &s->parked;
  }
  return CLV_OK;
}

void clv_stage_bind(clv_stage *s, clv_pool *pool, uint64_t *next_message, clv_stage_emit *emit,
                    void *user) {
  s->pool = pool;
  s->next_message = next_message;
  s->emit = emit;
  s->emit_user = user;
}

clv_code clv_stage_commit(clv_stage *s, const clv_frame *f, clv_err *err) {
  if (!s->o.learns) return CLV_OK;
  CLV_TRY(apply_commit(s, f->commit.step, f->commit.scale, f->commit.lr, f->commit.apply, err));
  return run_parked(s, err);
}

clv_code clv_stage_packet(clv_stage *s, clv_packet *p, clv_err *err) {
  s->o.backend->set_threads(s->o.threads);
  if (must_wait(s, &p->frame)) {
    if (s->counts.parked >= 4 * s->o.max_micro_batches) {
      clv_packet_free(p);
      return clv_fail(err, CLV_EXHAUSTED, "stage %u: more than %u messages wait for a COMMIT",
                      s->o.index, 4 * s->o.max_micro_batches);
    }
    park(s, p);
    return CLV_OK;
  }
  clv_code code = dispatch(s, p, err);
  clv_packet_free(p);
  return code == CLV_OK ? run_parked(s, err) : code;
}
