/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes a node in which contexts, modules, state and kept values end while lists of the node still
 * refer to them, and contexts end with a step that is not taken. The input draws well-formed frames
 * over few ids, so that calls use the values of others, wait for one another and are named in
 * backward passes; then a frame ends one of the objects. If an executor computes, the input also
 * draws when work ends. Whatever arrives, no freed record may be used (slabs are poisoned), the
 * engine must report no mistake of its own, and at the end no record may be left.
 */
#include "tests/fuzz/fuzz_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OPEN_CONTEXTS = 4, VALUES = 8, FLOATS = BATCH * WIDTH, MAX_STARTED = 64, TRANSFERS = 16 };

typedef struct fuzz_state {
  conversation c;
  const uint8_t *at, *input_end; /* next byte of the input, and the input's end */
  uint64_t open_contexts[OPEN_CONTEXTS], n_contexts_begun, last_message;
  uint32_t n_open_contexts;             /* number of contexts that are open at the same time */
  uint64_t n_reference_messages[PEERS]; /* number of messages about references, for each link */
  clv_work *running_work[MAX_STARTED];
  uint32_t n_running_work;
  /* ids of the transfers whose next chunk is not sent yet; 0: none */
  uint64_t unsent_transfers[TRANSFERS], last_transfer;
} fuzz_state;

static uint64_t n_frames;

__attribute__((destructor)) static void print_frames(void) {
  fprintf(stderr, "%llu frames\n", (unsigned long long)n_frames);
}

/* ---- drawing numbers, contexts and calls from the input -------------------------------------- */

static uint32_t draw_number(fuzz_state *p, uint32_t n) {
  return p->at < p->input_end ? *p->at++ % n : 0;
}
static bool happens_once_in(fuzz_state *p, uint32_t n) { return draw_number(p, n) == n - 1; }
static uint64_t draw_value(fuzz_state *p) { return 1 + draw_number(p, VALUES); }

/* Draws the id of a context: usually an open one, at times one that has ended. */
static uint64_t draw_context(fuzz_state *p) {
  uint64_t id = p->open_contexts[draw_number(p, p->n_open_contexts)];
  return happens_once_in(p, 32) ? CLV_MAX(id, OPEN_CONTEXTS + 1) - OPEN_CONTEXTS : id;
}

static const clv_context *find_context(const fuzz_state *p, uint64_t id) {
  return clv_context_find(p->c.node->contexts, id);
}

static const clv_context_call *find_call(const fuzz_state *p, uint64_t context, uint64_t id) {
  const clv_context *ctx = find_context(p, context);
  const clv_value *v = ctx ? clv_context_find_value(p->c.node->contexts, ctx, id) : NULL;
  return v ? v->producer : NULL;
}

/* Draws the id of a call of the context. Half of the drawn calls are new, as long as ids are
 * left. */
static uint64_t draw_call(fuzz_state *p, uint64_t context) {
  uint64_t id = draw_value(p);
  const clv_context *ctx = find_context(p, context);
  for (uint32_t i = 0; ctx && id % 2 && i < VALUES; i++, id = id % VALUES + 1)
    if (!clv_context_find_value(p->c.node->contexts, ctx, id)) break;
  return id;
}

static uint32_t get_loaded_generation(const fuzz_state *p, uint32_t module) {
  return p->c.next_generation[module] - 1;
}

static const char *draw_name(fuzz_state *p) { return happens_once_in(p, 4) ? "w2" : ""; }

/* ---- sending frames to the node -------------------------------------------------------------- */

static const float numbers[FLOATS] = {0.5f, -1, 2, 0.25f, 1, -0.125f, 3, 1, -2, 0.5f, 1, 0};

static void add_tensor(clv_frame *f) {
  f->tensors[f->n_tensors++] = (clv_tensor_head){
      .dtype = CLV_F32, .shape = CLV_SHAPE(BATCH, WIDTH), .bytes = sizeof numbers};
}

/* Checks the engine's state, then lets the node work until nothing is ready. */
static void run_node(fuzz_state *p) {
  clv_node_run_until(p->c.node, 0);
  NEVER(p->c.node->contexts->impossible_event.code != CLV_OK);
}

/* Sends a frame as the master or as the other worker. Does not send frames that the decoder
 * refuses. */
static void send_frame(fuzz_state *p, clv_frame *f, bool by_worker) {
  clv_bytes head = {0};
  clv_err err;
  bool is_chunked = f->n_tensors && f->tensors[0].transfer_id;
  size_t payload = f->kind == CLV_CHUNK ? sizeof numbers
                   : is_chunked         ? 0
                                        : f->n_tensors * sizeof numbers;
  if (clv_frame_encode(f, payload, &head, &err) == CLV_OK) {
    for (size_t at = 0; at < payload; at += sizeof numbers)
      clv_bytes_add(&head, numbers, sizeof numbers);
    n_frames++;
    deliver_frame(&p->c, by_worker, (const uint8_t *)head.data, head.len);
  }
  clv_bytes_done(&head);
  if (!happens_once_in(p, 8)) run_node(p);
}

static void send_state(fuzz_state *p, clv_frame_kind kind) {
  clv_frame f = {.kind = kind, .message_id = ++p->last_message, .module = draw_number(p, MODULES)};
  f.module_generation = get_loaded_generation(p, f.module);
  f.state.part = (clv_state_kind)(CLV_STATE_WEIGHTS + draw_number(p, 3));
  f.state.n_items = kind == CLV_STATE_PUT;
  bool has_gradients = f.state.part == CLV_STATE_GRADIENTS;
  if (has_gradients) f.context = draw_context(p);
  if (kind >= CLV_STATE_SAVE)
    snprintf(f.state.item_or_file_name, sizeof f.state.item_or_file_name, "s");
  if (kind == CLV_STATE_PUT)
    snprintf(f.state.item_or_file_name, sizeof f.state.item_or_file_name, "0.weight");
  if (kind == CLV_STATE_PUT) add_tensor(&f);
  send_frame(p, &f, false);
}

/* ---- frames of each kind --------------------------------------------------------------------- */

static void add_call_argument(fuzz_state *p, clv_frame *f, bool is_chunked) {
  clv_arg *a = &f->call.args[f->call.n_args++];
  uint32_t how = draw_number(p, 4);
  a->is_inline = how < 2;
  a->value_id = how ? draw_value(p) : 0;
  a->needs_grad = !happens_once_in(p, 4);
  if (!a->is_inline) return;
  add_tensor(f);
  if (!is_chunked) return;
  clv_tensor_head *h = &f->tensors[f->n_tensors - 1];
  h->transfer_id = ++p->last_transfer;
  h->crc32c = clv_crc32c(0, numbers, sizeof numbers);
  p->unsent_transfers[h->transfer_id % TRANSFERS] = h->transfer_id;
}

static void set_call_positions(fuzz_state *p, clv_frame *f) {
  const clv_context *ctx = find_context(p, f->context);
  uint32_t next = 1 + (ctx ? ctx->positions_done : 0);
  f->call.forward_position = next + draw_number(p, 3);
  f->call.input_grad_position = happens_once_in(p, 2) ? next + 1 + draw_number(p, 3) : 0;
  f->call.weight_grad_position =
      f->call.input_grad_position && happens_once_in(p, 2) ? next + 2 + draw_number(p, 3) : 0;
}

static void send_call(fuzz_state *p) {
  clv_frame f = {.kind = CLV_CALL, .context = draw_context(p)};
  uint32_t flags = draw_number(p, 8);
  f.message_id = draw_call(p, f.context);
  f.module = draw_number(p, MODULES);
  f.module_generation = get_loaded_generation(p, f.module);
  f.flags = flags == 7 ? 0 : CLV_FLAG_TRAINING;
  if (flags == 6) f.flags |= CLV_FLAG_RECOMPUTE;
  if (flags == 5) f.flags |= CLV_FLAG_TRACE;
  if (happens_once_in(p, 4)) f.flags |= CLV_FLAG_DELIVER;
  if (f.flags & CLV_FLAG_DELIVER) snprintf(f.to, sizeof f.to, "%s", draw_name(p));
  if (happens_once_in(p, 2)) f.call.runs_after_call = draw_value(p);
  if (happens_once_in(p, 8)) set_call_positions(p, &f);
  bool is_chunked = happens_once_in(p, 16);
  for (int i = 0; i < (module_ops[f.module] == CLV_OP_MSE ? 2 : 1); i++)
    add_call_argument(p, &f, is_chunked);
  send_frame(p, &f, false);
}

static void send_chunk(fuzz_state *p) {
  uint64_t *which = &p->unsent_transfers[draw_number(p, TRANSFERS)];
  clv_frame f = {.kind = CLV_CHUNK,
                 .chunk = {.transfer_id = *which, .total_bytes = sizeof numbers}};
  if (!*which) return;
  *which = 0;
  send_frame(p, &f, false);
}

static void send_value(fuzz_state *p) {
  clv_frame f = {.kind = CLV_VALUE, .context = draw_context(p), .message_id = draw_value(p)};
  if (happens_once_in(p, 8)) {
    f.has_failure = true;
    clv_frame_set_failure(&f, CLV_ABORTED, "by the input", "");
  } else {
    add_tensor(&f);
  }
  send_frame(p, &f, happens_once_in(p, 4));
}

static void send_deliver(fuzz_state *p) {
  clv_frame f = {.kind = CLV_DELIVER, .context = draw_context(p), .message_id = draw_value(p)};
  snprintf(f.to, sizeof f.to, "%s", draw_name(p));
  send_frame(p, &f, false);
}

/* Draws the number of calls that a frame says were sent before it; 0: none. The node holds the
 * frame back until it has seen so many calls, because a CALL in chunks may still be incomplete. */
static uint64_t draw_n_calls_before(fuzz_state *p, uint64_t context) {
  const clv_context *ctx = find_context(p, context);
  return happens_once_in(p, 4) ? (ctx ? ctx->calls_seen : 0) + draw_number(p, 2) : 0;
}

static void send_drop(fuzz_state *p) {
  clv_frame f = {
      .kind = CLV_DROP, .context = draw_context(p), .n_value_ids = 1 + draw_number(p, 2)};
  f.step = draw_n_calls_before(p, f.context);
  for (uint32_t i = 0; i < f.n_value_ids; i++) f.value_ids[i] = draw_value(p);
  send_frame(p, &f, false);
}

static void send_spare(fuzz_state *p) {
  clv_frame f = {.kind = CLV_SPARE, .context = draw_context(p), .n_value_ids = 1};
  f.value_ids[0] = draw_value(p);
  send_frame(p, &f, false);
}

static void add_needed_call(fuzz_state *p, clv_frame *f) {
  clv_needed_call *n = &f->backward.needed_calls[f->backward.n_needed_calls++];
  n->call_id = draw_value(p);
  n->n_contributions = draw_number(p, 3);
  n->root_gradient = happens_once_in(p, 4) ? 1 : 0;
  const clv_context_call *c = find_call(p, f->context, n->call_id);
  for (uint32_t i = 0; c && i < c->n_in; i++) {
    if (!(c->input_grads >> i & 1) || happens_once_in(p, 3)) continue;
    f->backward.grad_targets[f->backward.n_grad_targets++] =
        (clv_target){.input_index = i,
                     .value_id = c->arg[i] ? c->arg[i] : draw_value(p),
                     .to_peer = f->backward.n_peers && happens_once_in(p, 2) ? 1 : 0,
                     .contribution_index = draw_number(p, 3)};
    n->n_grad_targets++;
  }
}

static void send_prepare(fuzz_state *p) {
  clv_frame f = {.kind = CLV_PREPARE, .context = draw_context(p)};
  const clv_context *ctx = find_context(p, f.context);
  uint32_t last = ctx ? ctx->phase : 0;
  bool is_same = ctx && ctx->pass_state == PASS_COLLECTING;
  f.backward.n_skipped_phases = happens_once_in(p, 8);
  f.backward_pass_number = is_same ? last : last + 1 + f.backward.n_skipped_phases;
  f.step = draw_n_calls_before(p, f.context);
  f.backward.retains_graph = happens_once_in(p, 4);
  f.backward.needs_vote = !happens_once_in(p, 4);
  f.backward.more_follow = happens_once_in(p, 8);
  if (happens_once_in(p, 8))
    snprintf(f.backward.peer_names[f.backward.n_peers++], sizeof *f.backward.peer_names, "w2");
  for (uint32_t i = 0, n = draw_number(p, 4); i < n; i++) add_needed_call(p, &f);
  send_frame(p, &f, false);
}

static void send_gradient(fuzz_state *p) {
  clv_frame f = {.kind = CLV_GRADIENT, .context = draw_context(p), .message_id = draw_value(p)};
  const clv_context *ctx = find_context(p, f.context);
  f.backward_pass_number = CLV_MAX((ctx ? ctx->phase : 0) + (happens_once_in(p, 4) ? 1 : 0), 1u);
  f.contribution_index = draw_number(p, 3);
  if (!happens_once_in(p, 4)) add_tensor(&f);
  send_frame(p, &f, happens_once_in(p, 4));
}

/* Sends a call with its whole backward, so that a step has something to apply. */
static void send_forward_and_backward(fuzz_state *p) {
  clv_frame call = {.kind = CLV_CALL, .flags = CLV_FLAG_TRAINING, .context = draw_context(p)};
  call.message_id = draw_call(p, call.context);
  call.module = draw_number(p, 2);
  call.module_generation = get_loaded_generation(p, call.module);
  call.call.n_args = 1;
  call.call.args[0].is_inline = true;
  add_tensor(&call);
  send_frame(p, &call, false);
  const clv_context *ctx = find_context(p, call.context);
  clv_frame prepare = {.kind = CLV_PREPARE, .context = call.context};
  prepare.backward_pass_number = 1 + (ctx ? ctx->phase : 0);
  prepare.backward.n_needed_calls = 1;
  prepare.backward.needed_calls[0] =
      (clv_needed_call){.call_id = call.message_id, .n_contributions = 1};
  send_frame(p, &prepare, false);
  clv_frame gradient = {
      .kind = CLV_GRADIENT, .context = call.context, .message_id = call.message_id};
  gradient.backward_pass_number = prepare.backward_pass_number;
  add_tensor(&gradient);
  send_frame(p, &gradient, false);
}

static void set_commit(fuzz_state *p, clv_frame *f) {
  f->has_commit = true;
  f->commit.scale = 1;
  f->commit.lr = 0.125f;
  f->commit.applies_step = !happens_once_in(p, 4);
}

static void send_apply(fuzz_state *p) {
  clv_frame f = {.kind = CLV_APPLY, .context = draw_context(p), .message_id = ++p->last_message};
  const clv_context *ctx = find_context(p, f.context);
  set_commit(p, &f);
  f.module = happens_once_in(p, 4) ? draw_number(p, MODULES) : CLV_MODULE_ALL;
  if (happens_once_in(p, 4)) {
    f.module = draw_number(p, MODULES);
    f.commit.applies_step = true;
    f.commit.step_position = 1 + (ctx ? ctx->positions_done : 0) + draw_number(p, 3);
    f.commit.saves_weights = happens_once_in(p, 2);
  }
  if (f.module != CLV_MODULE_ALL) f.module_generation = get_loaded_generation(p, f.module);
  send_frame(p, &f, false);
}

static void send_revert(fuzz_state *p) {
  clv_frame f = {.kind = CLV_REVERT, .context = draw_context(p), .message_id = ++p->last_message};
  send_frame(p, &f, false);
}

/* Replaces the context, which has ended, by a new one. */
static void replace_context(fuzz_state *p, uint64_t context) {
  for (int i = 0; i < OPEN_CONTEXTS; i++)
    if (p->open_contexts[i] == context && !happens_once_in(p, 8))
      p->open_contexts[i] = ++p->n_contexts_begun;
}

static void send_end(fuzz_state *p) {
  clv_frame f = {
      .kind = CLV_END_CONTEXT, .context = draw_context(p), .message_id = ++p->last_message};
  if (!happens_once_in(p, 3)) set_commit(p, &f);
  send_frame(p, &f, false);
  replace_context(p, f.context);
}

/* Sends calls of which each reads the value of the call before it, then END_CONTEXT. Another worker
 * needs the value of the last call. The input of the first call may be sent after END_CONTEXT. */
static void send_end_with_kept_values(fuzz_state *p) {
  uint64_t context = draw_context(p), last = draw_value(p);
  for (uint32_t i = 0, n = 1 + draw_number(p, 2); i < n; i++) {
    clv_frame f = {.kind = CLV_CALL, .flags = CLV_FLAG_TRAINING, .context = context};
    f.message_id = draw_call(p, context);
    f.module = draw_number(p, 2);
    f.module_generation = get_loaded_generation(p, f.module);
    f.call.n_args = 1;
    f.call.args[0].value_id = last;
    if (happens_once_in(p, 4)) f.call.runs_after_call = draw_value(p);
    if (happens_once_in(p, 4)) set_call_positions(p, &f);
    last = f.message_id;
    send_frame(p, &f, false);
  }
  clv_frame spare = {.kind = CLV_SPARE, .context = context, .n_value_ids = 1, .value_ids = {last}};
  send_frame(p, &spare, false);
  clv_frame end = {.kind = CLV_END_CONTEXT, .context = context, .message_id = ++p->last_message};
  if (happens_once_in(p, 3)) set_commit(p, &end);
  send_frame(p, &end, false);
  if (happens_once_in(p, 2)) replace_context(p, context);
}

static void send_abort(fuzz_state *p) {
  clv_frame f = {.kind = CLV_ABORT, .context = happens_once_in(p, 4) ? 0 : draw_context(p)};
  clv_frame_set_failure(&f, CLV_ABORTED, "by the input", "");
  send_frame(p, &f, false);
  replace_context(p, f.context);
}

static void send_unload(fuzz_state *p) {
  clv_frame f = {
      .kind = CLV_UNLOAD, .message_id = ++p->last_message, .module = draw_number(p, MODULES)};
  f.module_generation = get_loaded_generation(p, f.module);
  send_frame(p, &f, false);
}

static void reload_module(fuzz_state *p) {
  clv_err err;
  uint32_t module = draw_number(p, MODULES);
  if (p->c.node->modules[module]) return;
  clv_code code = add_module(&p->c, module, &err);
  NEVER(code != CLV_OK && code != CLV_EXHAUSTED);
}

static void send_state_get(fuzz_state *p) { send_state(p, CLV_STATE_GET); }
static void send_state_put(fuzz_state *p) { send_state(p, CLV_STATE_PUT); }
static void send_state_file_frame(fuzz_state *p) {
  send_state(p, (clv_frame_kind)(CLV_STATE_SAVE + draw_number(p, 3)));
}

/* Sends a frame about one of a few references, owned by this worker or by the other one. */
static void send_reference(fuzz_state *p) {
  static const clv_frame_kind kinds[] = {CLV_REF_KEEP,  CLV_REF_KEEP,   CLV_REF_USE,
                                         CLV_REF_FETCH, CLV_REF_DELETE, CLV_REF_RENEW};
  clv_frame f = {.kind = kinds[draw_number(p, CLV_COUNT(kinds))]};
  f.reference.ref_id = f.reference.fork_id = f.reference.ref_key = 1 + draw_number(p, 4);
  bool by_worker = happens_once_in(p, 8);
  f.reference.message_number = ++p->n_reference_messages[by_worker];
  f.reference.is_for_owner = f.kind == CLV_REF_USE && happens_once_in(p, 2);
  if (f.kind == CLV_REF_USE) f.reference.fork_id += 8;
  if (f.kind == CLV_REF_USE && !f.reference.is_for_owner)
    snprintf(f.reference.node_name, sizeof f.reference.node_name, "w2");
  if (f.kind == CLV_REF_KEEP || f.kind == CLV_REF_USE) f.context = draw_context(p);
  if (f.context) f.message_id = draw_value(p);
  send_frame(p, &f, by_worker);
}

/* ---- random moves: frames, ticks and ends of the executor's work ----------------------------- */

static void on_work_start(void *user, clv_work *w) {
  fuzz_state *p = user;
  NEVER(p->n_running_work == MAX_STARTED);
  p->running_work[p->n_running_work++] = w;
}

static void end_one_work(fuzz_state *p, uint32_t which) {
  clv_work *w = p->running_work[which];
  clv_err why;
  p->running_work[which] = p->running_work[--p->n_running_work];
  clv_node_work_ended(p->c.node, w, clv_work_compute(w, &why), &why);
}

static void end_some_work(fuzz_state *p) {
  if (p->n_running_work) end_one_work(p, draw_number(p, p->n_running_work));
  run_node(p);
}

static void end_all_work(fuzz_state *p) {
  do {
    while (p->n_running_work) end_one_work(p, 0);
    run_node(p);
  } while (p->n_running_work);
}

static void tick_node(fuzz_state *p) { clv_node_tick(p->c.node); }
static void choose_whether_sends_fail(fuzz_state *p) { refuses_sends = happens_once_in(p, 3); }

static const struct {
  uint32_t frequency;
  void (*run)(fuzz_state *p);
} random_moves[] = {
    {42, send_call},
    {6, send_chunk},
    {14, send_value},
    {8, send_deliver},
    {8, send_drop},
    {4, send_spare},
    {24, send_prepare},
    {22, send_gradient},
    {10, send_apply},
    {6, send_revert},
    {30, send_end},
    {4, send_abort},
    {10, send_unload},
    {6, reload_module},
    {3, send_state_get},
    {3, send_state_put},
    {4, send_state_file_frame},
    {8, send_reference},
    {18, end_some_work},
    {8, end_all_work},
    {1, tick_node},
    {1, choose_whether_sends_fail},
    {10, send_forward_and_backward},
    {6, send_end_with_kept_values},
};

static void make_random_move(fuzz_state *p) {
  uint32_t at = draw_number(p, 256), i = 0;
  while (at >= random_moves[i].frequency) {
    at -= random_moves[i].frequency;
    i = (i + 1) % CLV_COUNT(random_moves);
  }
  random_moves[i].run(p);
}

/* Sends ABORT with context 0, which ends all open contexts. A VALUE that reports a failed reference
 * may open a further context, so each context that is open afterwards is aborted by its id. Asserts
 * that none of these was open before. */
static void abort_all_contexts(fuzz_state *p) {
  bool *was_open = calloc(p->n_contexts_begun + 1, sizeof *was_open);
  clv_frame f = {.kind = CLV_ABORT};
  clv_frame_set_failure(&f, CLV_ABORTED, "by the input", "");
  NEVER(!was_open);
  for (uint64_t c = 1; c <= p->n_contexts_begun; c++) was_open[c] = find_context(p, c);
  send_frame(p, &f, false);
  end_all_work(p);
  for (f.context = 1; f.context <= p->n_contexts_begun; f.context++) {
    if (!find_context(p, f.context)) continue;
    NEVER(was_open[f.context]);
    send_frame(p, &f, false);
  }
  free(was_open);
  end_all_work(p);
}

/* Aborts all contexts, then asserts that no work is ready or waits and that records exist only for
 * references and tombstones. */
static void check_nothing_is_left(fuzz_state *p) {
  if (p->c.is_link_ended[0]) return;
  end_all_work(p);
  abort_all_contexts(p);
  const clv_contexts *e = p->c.node->contexts;
  const clv_slab *const empty[] = {
      &e->values,    &e->calls,   &e->deliveries, &e->contributions,
      &e->gradients, &e->changes, &e->entries,    &e->backward_queue_slab,
      &e->steps,     &e->weights, &e->copies,     &e->transfers};
  NEVER(e->n_open || e->n_work || e->ready_lists || e->ready_changes || e->waiting_changes ||
        e->held_frames.first);
  NEVER(e->counts.calls_waiting);
  for (size_t i = 0; i < CLV_COUNT(empty); i++) {
    if (empty[i]->n_records_used)
      fprintf(stderr, "%u %s are left\n", empty[i]->n_records_used, empty[i]->record_name);
    NEVER(empty[i]->n_records_used);
  }
}

/* Runs one input. Its first bytes choose which thread computes, whether the session ends in the
 * middle, and how many contexts there are. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_state p = {.at = data, .input_end = data + size};
  bool uses_executor = happens_once_in(&p, 2), ends_in_the_middle = happens_once_in(&p, 4);
  p.n_open_contexts = 1 + draw_number(&p, OPEN_CONTEXTS);
  begin_conversation(&p.c, uses_executor ? (clv_executor){&p, on_work_start} : (clv_executor){0});
  for (int i = 0; i < OPEN_CONTEXTS; i++) p.open_contexts[i] = ++p.n_contexts_begun;
  while (p.at < p.input_end) make_random_move(&p);
  refuses_sends = false;
  if (!ends_in_the_middle) check_nothing_is_left(&p);
  while (p.n_running_work) end_one_work(&p, 0);
  end_conversation(&p.c);
  return 0;
}
