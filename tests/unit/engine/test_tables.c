/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the cells of the engine's tables: short programs reach every cell that exists, and no
 * other. An event in a cell that does not exist is refused as a mistake of the engine, and a cell
 * that refuses an event does so with its own text. The states of a context and the results after
 * each frame are compared with tables.txt (CLEAVE_WRITE_TABLES=1 writes the file again, for
 * review).
 */
#include <stdio.h>

#include "tests/unit/engine/contexts_test.h"

enum { MODULE = 0, NO_GRADIENT = 3 };

/* For each cell of the state tables (one event in one state): how often it was visited, and whether
 * the engine has reported its refusal. */
typedef struct cell_log {
  uint32_t n_visits[TABLE_CELLS];
  bool was_reported[TABLE_CELLS];
  FILE *log_file;
} cell_log;

/* ---- log of what the engine reports to the program ------------------------------------------- */

static void record_message(cell_log *log, const char *text) {
  for (uint32_t m = 0; m < MACHINES; m++)
    for (uint32_t i = 0;
         i < clv_transition_table_of((clv_state_machine)m)->n_states * MACHINE_MAX_EVENTS; i++) {
      const clv_cell *cell = &clv_transition_table_of((clv_state_machine)m)
                                  ->cells[i / MACHINE_MAX_EVENTS][i % MACHINE_MAX_EVENTS];
      if (cell->text && strstr(text, cell->text))
        log->was_reported[clv_table_index((clv_state_machine)m, i / MACHINE_MAX_EVENTS,
                                          i % MACHINE_MAX_EVENTS)] = true;
    }
}

static void log_result(engine *w, clv_result *r) {
  cell_log *log = w->user;
  const clv_frame *f = r->packet ? &r->packet->frame : NULL;
  if (!f) {
    fprintf(log->log_file, "  kept %llu %s\n", (unsigned long long)r->ref,
            r->failure ? r->failure->text : "is here");
    return;
  }
  fprintf(log->log_file, "  %s %llu", clv_frame_kind_name(f->kind), (unsigned long long)f->context);
  if (f->kind == CLV_VALUE || f->kind == CLV_GRADIENT)
    fprintf(log->log_file, "/%llu", (unsigned long long)f->message_id);
  if (f->backward_pass_number) fprintf(log->log_file, " phase %u", f->backward_pass_number);
  if (f->step) fprintf(log->log_file, ", %u spared", (unsigned)f->step);
  if (clv_frame_is_failure(f))
    fprintf(log->log_file, ": %d %s", (int)f->failure.code, f->failure.text);
  fprintf(log->log_file, "\n");
  if (clv_frame_is_failure(f)) record_message(log, f->failure.text);
  clv_packet_free(r->packet);
}

/* Writes a line with the states of a context, its values and its calls to the log. */
static void log_states(engine *w, clv_frame_kind kind, uint64_t context, uint64_t id) {
  static const char *const context_names[] = {"open", "failed", "closing", "ending", "ended"};
  static const char *const pass_names[] = {"", ", collecting", ", active", ", ending"};
  static const char *const values[] = {"awaited", "making", "leaf", "made"};
  static const char *const call_names[] = {"coming",   "waiting", "ready", "ran",  "retained",
                                           "backward", "summing", "spent", "alone"};
  FILE *log = ((cell_log *)w->user)->log_file;
  const clv_context *c = clv_context_find(w->contexts, context);
  uint32_t n_late_frames = (uint32_t)w->contexts->counts.late_frames;
  fprintf(log, "%s %llu/%llu -> %s%s, late %u", clv_frame_kind_name(kind),
          (unsigned long long)context, (unsigned long long)id, c ? context_names[c->state] : "none",
          c ? pass_names[c->pass_state] : "", n_late_frames);
  for (const clv_value *v = c ? c->values : NULL; v; v = v->next)
    fprintf(log, "; %llu %s%s%s", (unsigned long long)v->id, values[v->state],
            v->producer ? " " : "", v->producer ? call_names[v->producer->call_state] : "");
  fprintf(log, "; steps");
  for (uint32_t i = 0; i < TEST_MODULES; i++)
    fprintf(log, " %llu", (unsigned long long)w->contexts->queues[i].revertible_context_id);
  fprintf(log, "\n");
}

/* ---- functions that send one frame or a few to the engine ------------------------------------ */

static void send_packet(engine *w, clv_packet *p) {
  cell_log *log = w->user;
  clv_err err;
  clv_frame_kind kind = p->frame.kind;
  uint64_t context = p->frame.context, id = p->frame.message_id;
  if (engine_handle_packet(w, p, &err) != CLV_OK) {
    record_message(log, err.text);
    fprintf(log->log_file, "  refused: %d %s\n", (int)err.code, err.text);
  }
  log_states(w, kind, context, id);
}

/* Returns a CALL of one argument. arg: id of that value; 0: a leaf that is sent with the CALL. */
static clv_packet *make_call(engine *w, uint64_t context, uint64_t id, uint64_t arg) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = arg ? NULL : engine_make_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, MODULE, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg, true, x, &err));
  return p;
}

static void send_call(engine *w, uint64_t context, uint64_t id, uint64_t arg) {
  send_packet(w, make_call(w, context, id, arg));
}

/* Sends a CALL with a leaf, to which other calls can refer by the id `leaf`. */
static void send_call_with_leaf(engine *w, uint64_t context, uint64_t id, uint64_t leaf) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, MODULE, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, leaf, true, x, &err));
  send_packet(w, p);
}

static void send_call_after(engine *w, uint64_t context, uint64_t id, uint64_t earlier_call) {
  clv_packet *p = make_call(w, context, id, 0);
  p->frame.call.runs_after_call = earlier_call;
  send_packet(w, p);
}

static void send_call_with_flags(engine *w, uint64_t context, uint64_t id, uint32_t flags) {
  clv_packet *p = make_call(w, context, id, 0);
  p->frame.flags = flags;
  send_packet(w, p);
}

/* Sends a CALL with positions in the execution order: forward 1, input gradient 2, and the given
 * position for the gradients of parameters. */
static void send_call_with_positions(engine *w, uint64_t context, uint64_t id,
                                     uint32_t weight_position) {
  clv_packet *p = make_call(w, context, id, 0);
  clv_packet_set_execution_positions(p, 1, 2, weight_position, false);
  send_packet(w, p);
}

static void send_announcement(engine *w, uint64_t context, uint64_t id) {
  clv_packet *p = make_call(w, context, id, 0), *h;
  clv_err err = {0};
  assert_ok(clv_packet_new(w->pool, CLV_CALL, &h, &err));
  h->frame = p->frame;
  h->frame.n_tensors = 0;
  h->is_announcement = h->was_announced = true;
  clv_packet_free(p);
  send_packet(w, h);
}

static void complete_announced_call(engine *w, uint64_t context, uint64_t id) {
  clv_packet *p = make_call(w, context, id, 0);
  p->was_announced = true;
  send_packet(w, p);
}

static void send_value(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(w, 1);
  assert_ok(clv_packet_new_value(w->pool, context, id, "", x, &p, &err));
  send_packet(w, p);
}

static void send_deliver(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_deliver(w->pool, context, id, "", &p, &err));
  send_packet(w, p);
}

static void keep_value(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  assert_ok(clv_contexts_keep_value(w->contexts, 77, context, id, &err));
  engine_run_work(w, false);
  log_states(w, CLV_REF_KEEP, context, id);
}

static void send_drop(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_drop(w->pool, context, 0, &id, 1, &p, &err));
  send_packet(w, p);
}

static void send_spare(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_spare(w->pool, context, &id, 1, &p, &err));
  send_packet(w, p);
}

static void send_gradient(engine *w, uint64_t context, uint32_t phase, uint64_t id,
                          bool has_gradient) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = has_gradient ? engine_make_tensor(w, 1) : NULL;
  assert_ok(clv_packet_new_gradient(w->pool, context, phase, id, 0, "", dy, &p, &err));
  send_packet(w, p);
}

enum { RETAIN = 1, VOTE = 2, MORE_FOLLOW = 4 };

/* Sends a PREPARE. Earlier phases that were not sent count as empty. id: call that the PREPARE
 * names, which gets one gradient; 0: no call. */
static void send_prepare(engine *w, uint64_t context, uint32_t phase, uint64_t id, int flags) {
  clv_err err = {0};
  clv_packet *p;
  const clv_context *c = clv_context_find(w->contexts, context);
  uint32_t last = c ? c->phase : 0;
  assert_ok(clv_packet_new_prepare(w->pool, context, phase, 0, flags & RETAIN, flags & VOTE,
                                   flags & MORE_FOLLOW, &p, &err));
  if (id) assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
  p->frame.backward.n_skipped_phases = phase > last ? phase - last - 1 : 0;
  send_packet(w, p);
}

static void send_apply(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_apply(w->pool, context, 9, CLV_MODULE_ALL, 1, 0.5f, true, &p, &err));
  send_packet(w, p);
}

static void send_planned_step(engine *w, uint64_t context, uint32_t position) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(
      clv_packet_new_planned_step(w->pool, context, 9, MODULE, position, false, 0.5f, &p, &err));
  send_packet(w, p);
}

static void send_revert(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_revert(w->pool, context, 9, &p, &err));
  send_packet(w, p);
}

static void send_end(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, 9, &p, &err));
  send_packet(w, p);
}

static void send_end_with_step(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, 9, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.5f, true);
  send_packet(w, p);
}

static void send_abort(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w->pool, CLV_ABORT, &p, &err));
  p->frame.context = context;
  clv_frame_set_failure(&p->frame, CLV_ABORTED, "by the test", "");
  send_packet(w, p);
}

/* Sends a CALL, the PREPARE of its backward, and the output gradient that starts the backward. */
static void send_call_and_backward(engine *w, uint64_t context, uint64_t id, int flags) {
  send_call(w, context, id, 0);
  send_prepare(w, context, 1, id, flags);
  send_gradient(w, context, 1, id, true);
}

/* ---- programs: sequences of frames that visit the cells of the tables ------------------------ */

static void send_every_frame(engine *w, uint64_t c) {
  send_announcement(w, c, 11);
  complete_announced_call(w, c, 11);
  send_call(w, c, 12, 0);
  send_deliver(w, c, 12);
  send_value(w, c, 13);
  send_drop(w, c, 13);
  send_spare(w, c, 12);
  send_gradient(w, c, 1, 12, true);
  send_prepare(w, c, 1, 12, 0);
  send_apply(w, c);
  send_revert(w, c);
}

/* Sends an END_CONTEXT that retains the call 12 = f(50) after the end, because its value is kept.
 * Leaf 50 arrives after all other frames, or the context is aborted. */
static void run_retaining_context_ends(engine *w, uint64_t c) {
  for (int is_aborted = 0; is_aborted < 2; is_aborted++, c++) {
    send_call(w, c, 12, 50);
    keep_value(w, c, 12);
    send_end(w, c);
    send_every_frame(w, c);
    send_end(w, c);
    is_aborted ? send_abort(w, c) : send_value(w, c, 50);
  }
}

/* In the middle of a backward pass, sends an END_CONTEXT that requests a step, which the engine
 * refuses. Calls 12 and 13 wait for the backward of 11, whose gradient never arrives. In the second
 * context the value of 13 is kept. */
static void run_refused_context_ends(engine *w, uint64_t c) {
  for (int is_kept = 0; is_kept < 2; is_kept++, c++) {
    send_call(w, c, 11, 0);
    send_call_after(w, c, 12, 11);
    send_call_after(w, c, 13, 11);
    if (is_kept) keep_value(w, c, 13);
    send_prepare(w, c, 1, 11, VOTE);
    send_end_with_step(w, c);
    assert_null(w->contexts->ready_lists);
    assert_int_equal(w->contexts->n_work, 0);
    send_call(w, c + 50, 12, 0); /* this context reuses memory of records that were freed */
    send_end(w, c + 50);
  }
}

static void run_context_events(engine *w) {
  send_every_frame(w, 1);
  send_end(w, 1);
  send_every_frame(w, 1); /* all these frames arrive after the end of the context */
  send_end(w, 1);
  send_abort(w, 1);
  for (uint64_t c = 2; c <= 3; c++) {
    send_prepare(w, c, 1, 99, 0); /* call 99 does not exist */
    send_every_frame(w, c);
    c == 2 ? send_end(w, c) : send_abort(w, c);
  }
  send_call(w, 4, 11, 0);
  send_abort(w, 4);
  run_retaining_context_ends(w, 5);
  run_refused_context_ends(w, 20);
  assert_int_equal(w->contexts->n_open, 0); /* no context is left open */
}

/* Sends each event about a value to a context of its own, because the event may fail the
 * context. */
static void send_value_events(engine *w, uint64_t c, void (*prepare_value)(engine *w, uint64_t c)) {
  for (int event = 0; event < 7; event++, c++) {
    prepare_value(w, c);
    if (event == 0) send_call(w, c, 12, 0);
    if (event == 1) send_value(w, c, 12);
    if (event == 2) send_call_with_leaf(w, c, 13, 12);
    if (event == 2) send_deliver(w, c, 13);
    if (event == 3) send_call(w, c, 13, 12);
    if (event == 4) send_deliver(w, c, 12);
    if (event == 5) keep_value(w, c, 12);
    if (event == 6) send_gradient(w, c, 1, 12, true);
  }
}

static void await_value(engine *w, uint64_t c) { send_deliver(w, c, 12); }
static void send_waiting_call(engine *w, uint64_t c) { send_call(w, c, 12, 50); }
static void send_leaf_value(engine *w, uint64_t c) { send_value(w, c, 12); }
static void send_computed_call(engine *w, uint64_t c) { send_call(w, c, 12, 0); }

static void run_value_events(engine *w) {
  send_value_events(w, 100, await_value);
  send_value_events(w, 110, send_waiting_call);
  send_value_events(w, 120, send_leaf_value);
  send_value_events(w, 130, send_computed_call);
}

static void run_call_events(engine *w) {
  send_announcement(w, 1, 11);
  send_call_after(w, 1, 12, 11);
  complete_announced_call(w, 1, 11);
  send_call(w, 1, 13, 60); /* this call waits for leaf 60 */
  send_call_after(w, 1, 14, 13);
  send_call_with_flags(w, 1, 15, CLV_FLAG_TRAINING | CLV_FLAG_RECOMPUTE);
  send_call_after(w, 1, 16, 15);
  send_call_with_flags(w, 1, 17, 0);
  send_call_after(w, 1, 18, 17);
  send_call_after(w, 1, 19, 11);
  send_prepare(w, 1, 1, 15, 0);
  send_gradient(w, 1, 1, 15, true);
  send_call_after(w, 1, 20, 15); /* the saved tensors of call 15 have been freed */
  send_prepare(w, 1, 2, 15, 0);  /* this PREPARE fails the context */
  send_gradient(w, 1, 2, 15, true);
  send_call_with_flags(w, 2, 11, 0);
  send_prepare(w, 2, 1, 11, 0);
  send_gradient(w, 2, 1, 11, true);
  send_call(w, 3, 11, 0);
  send_prepare(w, 3, 1, 11, RETAIN);
  send_gradient(w, 3, 1, 11, false);
  send_prepare(w, 3, 2, 11, 0);
  send_gradient(w, 3, 2, 11, false);
  send_call_and_backward(w, 4, 11, RETAIN);
  send_call_with_positions(w, 6, 11, 9);
  send_prepare(w, 6, 1, 11, MORE_FOLLOW);
  send_gradient(w, 6, 1, 11, true);
  /* this PREPARE names call 11 again, while the weight part of its first backward still waits */
  send_prepare(w, 6, 1, 11, MORE_FOLLOW);
  send_gradient(w, 6, 1, 11, true);
  send_announcement(w, 7, 11);
  send_prepare(w, 7, 1, 11, 0);
  send_gradient(w, 7, 1, 11, true);
  complete_announced_call(w, 7, 11);
  clv_packet *call_of_no_module = make_call(w, 5, 11, 0);
  call_of_no_module->frame.module = 200;
  send_packet(w, call_of_no_module);
}

/* Sends events to a call while its work runs, and while the weight part of its backward waits for
 * its position. */
static void run_call_events_during_work(engine *w) {
  w->holds_started_work = true;
  send_call(w, 1, 11, 0);
  send_call_after(w, 1, 12, 11);
  engine_run_work(w, true);
  send_prepare(w, 1, 1, 11, 0);
  send_gradient(w, 1, 1, 11, true);
  send_call_after(w, 1, 13, 11);
  engine_run_work(w, true);
  send_call_with_positions(w, 2, 11, 9);
  engine_run_work(w, true);
  send_prepare(w, 2, 1, 11, 0);
  send_gradient(w, 2, 1, 11, true);
  engine_run_work(w, true);
  send_call_after(w, 2, 12, 11);
  engine_run_work(w, true);
  w->holds_started_work = false;
}

/* Brings the backward pass of a context into a state. Call 11 is in the pass, call 12 is not. */
static void bring_to_pass_state(engine *w, uint64_t c, clv_pass_state state) {
  send_call(w, c, 11, 0);
  send_call(w, c, 12, 0);
  if (w->holds_started_work) engine_run_work(w, true);
  if (state == PASS_NONE) return;
  if (state == PASS_ENDING) {
    send_prepare(w, c, 1, 12, RETAIN);
    send_gradient(w, c, 1, 12, true);
    engine_run_work(w, true);
    send_prepare(w, c, 2, 11, VOTE | RETAIN);
    send_gradient(w, c, 2, 11, true);
    while (w->n_started_work && w->started_work[0]->kind != WORK_VOTE) {
      engine_end_work(w, 0);
      engine_run_work(w, false);
    }
    assert_int_equal(w->n_started_work, 1);
    return;
  }
  send_prepare(w, c, 2, 11, state == PASS_COLLECTING ? MORE_FOLLOW : 0);
}

static void send_pass_events(engine *w, uint64_t c, clv_pass_state state) {
  for (int event = 0; event < 9; event++, c++) {
    bring_to_pass_state(w, c, state);
    if (event == 0) send_prepare(w, c, 3, 0, 0);
    if (event == 1) send_prepare(w, c, state == PASS_NONE ? 0 : 2, 0, 0);
    if (event == 2) send_prepare(w, c, 1, 0, 0);
    if (event == 3) send_gradient(w, c, 2, 11, true);
    if (event == 4) send_gradient(w, c, state == PASS_NONE ? 0 : 2, 12, true);
    if (event == 5) send_gradient(w, c, 3, 11, true);
    if (event == 6) send_gradient(w, c, 1, 11, true);
    if (event == 7) send_apply(w, c);
    if (event == 8) send_prepare(w, c, 9, 99, 0);
    engine_run_work(w, true);
    send_end(w, c);
    engine_run_work(w, true);
  }
}

static void run_pass_events(engine *w) {
  for (int state = PASS_NONE; state <= PASS_ACTIVE; state++)
    send_pass_events(w, 100 + 10 * (uint64_t)state, (clv_pass_state)state);
  /* the second context of each pair has already had a backward pass of phase 2 */
  for (uint32_t phase = 1; phase <= 2; phase++) {
    uint64_t c = 200 + 10 * phase;
    send_call(w, c, 11, 0);
    send_prepare(w, c, 2, 11, 0);
    send_gradient(w, c, 2, 11, true);
    send_prepare(w, c, phase, 0, 0);
    send_call(w, c + 1, 11, 0);
    send_prepare(w, c + 1, 2, 11, 0);
    send_gradient(w, c + 1, 2, 11, true);
    send_gradient(w, c + 1, phase, 11, true);
    send_gradient(w, c + 1, phase, 11, true);
    send_prepare(w, c + 1, 3, 11, 0); /* this PREPARE fails the context, and is then sent again */
    send_prepare(w, c + 1, 4, 11, 0);
  }
  send_prepare(w, 300, 1, 0, MORE_FOLLOW);
  send_prepare(w, 300, 1, 0, 0);
}

static void run_pass_events_during_work(engine *w) {
  w->holds_started_work = true;
  send_pass_events(w, 100, PASS_ENDING);
  w->holds_started_work = false;
}

static void run_step_events(engine *w) {
  send_call_and_backward(w, 1, 11, 0);
  send_call_and_backward(w, 2, 11, 0);
  send_revert(w, 1); /* refused, because there is no step to roll back */
  send_apply(w, 1);
  send_apply(w, 1);
  send_revert(w, 2); /* refused, because the step belongs to another context */
  send_revert(w, 1);
  send_apply(w, 1);
  send_planned_step(w, 1, 1);
  send_planned_step(w, 1, 2);
  send_apply(w, 1);
  send_call(w, 3, 11, 0); /* a call of another context makes the step final */
  send_call_and_backward(w, 4, 11, 0);
  send_call(w, 4, 12, 60);
  send_apply(w, 4);       /* the step waits for the call */
  send_call(w, 5, 11, 0); /* the step becomes final while the call runs */
  send_value(w, 4, 60);
  send_call_and_backward(w, 6, 11, RETAIN);
  send_planned_step(w, 6, 1);
}

/* ---- running the programs, and checking that they visited each cell -------------------------- */

/* Runs a program. holds_work: started work ends only when the program calls engine_run_work. */
static void run_program(cell_log *log, void (*program)(engine *w), bool holds_work) {
  engine w = {.on_result = log_result, .user = log};
  engine_open(&w, holds_work);
  program(&w);
  engine_run_work(&w, true);
  for (uint32_t i = 0; i < TABLE_CELLS; i++) log->n_visits[i] += w.n_cell_visits[i];
  engine_close(&w);
}

static bool is_cell_right(const cell_log *log, clv_state_machine machine, uint32_t state,
                          uint32_t event) {
  const clv_table *table = clv_transition_table_of(machine);
  clv_action action = table->cells[state][event].action;
  uint32_t i = clv_table_index(machine, state, event);
  bool is_possible = action != CELL_IMPOSSIBLE,
       changes_state = table->cells[state][event].next_state != state;
  bool keeps_state = action == CELL_IGNORE || action == CELL_COUNT || action == CELL_REPEAT;
  const char *mistake = keeps_state && changes_state       ? "what changes nothing moves"
                        : is_possible && !log->n_visits[i] ? "no program meets it"
                        : !is_possible && log->n_visits[i] ? "a program meets what cannot be"
                        : action == CELL_REFUSE && !log->was_reported[i] ? "it is not said"
                                                                         : NULL;
  if (mistake) print_error("%s: state %u, event %u: %s\n", table->name, state, event, mistake);
  return !mistake;
}

/* Checks one transition. An event that is impossible in that state leaves the state unchanged. */
static void check_transition(clv_state_machine machine, uint32_t state, uint32_t event) {
  clv_err err = {0};
  const clv_cell *cell;
  uint8_t next_state = (uint8_t)state;
  bool is_possible =
      clv_transition_table_of(machine)->cells[state][event].action != CELL_IMPOSSIBLE;
  assert_int_equal(clv_table_apply_event(NULL, machine, &next_state, event, &cell, &err),
                   is_possible ? CLV_OK : CLV_INTERNAL);
  if (!is_possible) assert_int_equal(next_state, state);
}

static uint32_t count_wrong_cells(const cell_log *log, clv_state_machine m) {
  uint32_t n_wrong = 0;
  for (uint32_t s = 0; s < clv_transition_table_of(m)->n_states; s++)
    for (uint32_t f = 0; f < clv_transition_table_of(m)->n_events; f++) {
      check_transition(m, s, f);
      n_wrong += !is_cell_right(log, m, s, f);
    }
  return n_wrong;
}

/* ---- states and results after each frame ----------------------------------------------------- */

static const char expected_path[] = "tests/unit/engine/tables.txt";

static void write_expected_log(const char *text, size_t n) {
  FILE *f = fopen(expected_path, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, n, f), n);
  fclose(f);
}

/* Compares the log with tables.txt line by line, so that the first difference is shown. */
static void compare_log(char *got) {
  char want[1024];
  FILE *f = fopen(expected_path, "r");
  assert_non_null(f);
  char *rest = got;
  for (int number = 1; fgets(want, sizeof want, f); number++) {
    char *line = strsep(&rest, "\n");
    want[strcspn(want, "\n")] = '\0';
    if (!line || strcmp(line, want) != 0)
      fail_msg("%s:%d: expected '%s', got '%s'", expected_path, number, want,
               line ? line : "the end");
  }
  assert_true(rest && !*rest);
  fclose(f);
}

static void every_table_cell_is_reached_or_impossible(void **state) {
  static cell_log log;
  char *text = NULL;
  size_t n = 0;
  uint32_t wrong = 0;
  (void)state;
  log.log_file = open_memstream(&text, &n);
  assert_non_null(log.log_file);
  run_program(&log, run_context_events, false);
  run_program(&log, run_value_events, false);
  run_program(&log, run_call_events, false);
  run_program(&log, run_call_events_during_work, true);
  run_program(&log, run_pass_events, false);
  run_program(&log, run_pass_events_during_work, true);
  run_program(&log, run_step_events, false);
  fclose(log.log_file);
  for (clv_state_machine m = 0; m < MACHINES; m++) wrong += count_wrong_cells(&log, m);
  assert_int_equal(wrong, 0);
  if (getenv("CLEAVE_WRITE_TABLES")) write_expected_log(text, n);
  compare_log(text);
  free(text);
}

/* ---- errors after events that the state tables call impossible ------------------------------- */

static void assert_abort_text(engine *w, clv_result *r) {
  const clv_frame *f = &r->packet->frame;
  assert_int_equal(f->kind, CLV_ABORT);
  assert_int_equal(f->failure.code, CLV_INTERNAL);
  assert_non_null(strstr(f->failure.text, "is impossible for a"));
  assert_non_null(
      strstr(f->failure.text, clv_transition_table_of(*(clv_state_machine *)w->user)->name));
  clv_packet_free(r->packet);
}

/* Applies an event that is impossible in the present state to a context whose call has run. */
static void send_impossible_event(clv_contexts *e, clv_context *c, clv_state_machine machine) {
  clv_context_call *k = c->values->producer;
  if (machine == MACHINE_CALL) (void)clv_call_on_event(e, k, CALL_BACKWARD_DONE);
  if (machine == MACHINE_PASS) (void)clv_pass_on_event(e, c, PASS_DONE);
  if (machine == MACHINE_STEP) (void)clv_step_on_event(e, MODULE, c->id, STEP_REVERTED);
  if (machine == MACHINE_WORK) clv_work_note_end(e, &k->work);
  assert_int_equal(k->call_state, CALL_FORWARD_DONE);
  assert_int_equal(k->work.state, WORK_IDLE);
  assert_int_equal(e->n_work, 0);
  assert_int_equal(c->pass_state, PASS_NONE);
  assert_int_equal(e->queues[MODULE].revertible_context_id, 0);
}

static void impossible_event_fails_context(void **state) {
  (void)state;
  for (clv_state_machine m = MACHINE_CALL; m <= MACHINE_WORK; m++) {
    clv_err err = {0};
    engine w = {.on_result = assert_abort_text, .user = &m};
    engine_open(&w, 0);
    assert_ok(engine_handle_packet(&w, make_call(&w, 1, 11, 0), &err));
    clv_context *c = clv_context_find(w.contexts, 1);
    send_impossible_event(w.contexts, c, m);
    engine_run_work(&w, true);
    assert_int_equal(c->state, CONTEXT_FAILED);
    engine_close(&w);
  }
}

/* If the context of an impossible event does not exist any more, the engine returns the error once
 * to its owner. */
static void impossible_event_without_context_is_reported_once(void **state) {
  clv_err err = {0};
  clv_code code;
  engine w = {0};
  (void)state;
  engine_open(&w, 0);
  (void)clv_step_on_event(w.contexts, MODULE, 77, STEP_REVERTED);
  (void)clv_step_on_event(w.contexts, MODULE, 78, STEP_OTHER_WORK);
  assert_true(clv_contexts_run_one(w.contexts, &code, &err));
  assert_int_equal(code, CLV_INTERNAL);
  assert_non_null(strstr(err.text, "step"));
  assert_false(clv_contexts_run_one(w.contexts, &code, &err));
  assert_int_equal(code, CLV_OK);
  engine_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_table_cell_is_reached_or_impossible),
      cmocka_unit_test(impossible_event_fails_context),
      cmocka_unit_test(impossible_event_without_context_is_reported_once),
  };
  return cmocka_run_group_tests_name("tables", tests, NULL, NULL);
}
