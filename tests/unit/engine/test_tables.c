/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the engine, walked: short programs reach every cell that is there, and no other.
 * A fact that meets a cell that is not there is refused as a mistake of the engine, and what a cell
 * refuses is said in its words. Beside it stands what each frame makes of its context and what
 * results, which is compared with tables.txt (CLEAVE_WRITE_TABLES=1 writes it again, to be read).
 */
#include <stdio.h>

#include "tests/unit/engine/contexts_test.h"

enum { MODULE = 0, NO_GRADIENT = 3 };

/* Number of visits of each cell, and whether its refusal was reported. */
typedef struct walk {
  uint32_t met[TABLE_CELLS];
  bool said[TABLE_CELLS];
  FILE *log;
} walk;

/* ---- what is said ---------------------------------------------------------------------------- */

static void note_text(walk *all, const char *text) {
  for (uint32_t m = 0; m < MACHINES; m++)
    for (uint32_t i = 0;
         i < clv_transition_table_of((clv_state_machine)m)->n_states * MACHINE_MAX_EVENTS; i++) {
      const clv_cell *cell = &clv_transition_table_of((clv_state_machine)m)
                                  ->cells[i / MACHINE_MAX_EVENTS][i % MACHINE_MAX_EVENTS];
      if (cell->text && strstr(text, cell->text))
        all->said[clv_table_index((clv_state_machine)m, i / MACHINE_MAX_EVENTS,
                                  i % MACHINE_MAX_EVENTS)] = true;
    }
}

static void on_result(engine *w, clv_result *r) {
  walk *all = w->user;
  const clv_frame *f = r->packet ? &r->packet->frame : NULL;
  if (!f) {
    fprintf(all->log, "  kept %llu %s\n", (unsigned long long)r->ref,
            r->failure ? r->failure->text : "is here");
    return;
  }
  fprintf(all->log, "  %s %llu", clv_frame_kind_name(f->kind), (unsigned long long)f->context);
  if (f->kind == CLV_VALUE || f->kind == CLV_GRADIENT)
    fprintf(all->log, "/%llu", (unsigned long long)f->message);
  if (f->phase) fprintf(all->log, " phase %u", f->phase);
  if (f->step) fprintf(all->log, ", %u spared", (unsigned)f->step);
  if (clv_frame_is_failure(f)) fprintf(all->log, ": %d %s", (int)f->failure.code, f->failure.text);
  fprintf(all->log, "\n");
  if (clv_frame_is_failure(f)) note_text(all, f->failure.text);
  clv_packet_free(r->packet);
}

/* Writes the states of a context, of its values and of their calls. */
static void show(engine *w, clv_frame_kind kind, uint64_t context, uint64_t id) {
  static const char *const contexts[] = {"open", "failed", "closing", "ending", "ended"};
  static const char *const passes[] = {"", ", collecting", ", active", ", ending"};
  static const char *const values[] = {"awaited", "making", "leaf", "made"};
  static const char *const calls[] = {"coming",   "waiting", "ready", "ran",  "retained",
                                      "backward", "summing", "spent", "alone"};
  FILE *log = ((walk *)w->user)->log;
  const clv_context *c = clv_context_find(w->contexts, context);
  uint32_t late = (uint32_t)w->contexts->counts.late_frames;
  fprintf(log, "%s %llu/%llu -> %s%s, late %u", clv_frame_kind_name(kind),
          (unsigned long long)context, (unsigned long long)id, c ? contexts[c->state] : "none",
          c ? passes[c->pass_state] : "", late);
  for (const clv_value *v = c ? c->values : NULL; v; v = v->next)
    fprintf(log, "; %llu %s%s%s", (unsigned long long)v->id, values[v->state],
            v->producer ? " " : "", v->producer ? calls[v->producer->call_state] : "");
  fprintf(log, "; steps");
  for (uint32_t i = 0; i < TEST_MODULES; i++)
    fprintf(log, " %llu", (unsigned long long)w->contexts->queues[i].revertible_context_id);
  fprintf(log, "\n");
}

/* ---- words of programs ----------------------------------------------------------------------- */

static void send(engine *w, clv_packet *p) {
  walk *all = w->user;
  clv_err err;
  clv_frame_kind kind = p->frame.kind;
  uint64_t context = p->frame.context, id = p->frame.message;
  if (engine_packet(w, p, &err) != CLV_OK) {
    note_text(all, err.text);
    fprintf(all->log, "  refused: %d %s\n", (int)err.code, err.text);
  }
  show(w, kind, context, id);
}

/* Returns a CALL. arg 0: a leaf sent with it. */
static clv_packet *call_of(engine *w, uint64_t context, uint64_t id, uint64_t arg) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = arg ? NULL : engine_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, MODULE, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg, true, x, &err));
  return p;
}

static void call(engine *w, uint64_t context, uint64_t id, uint64_t arg) {
  send(w, call_of(w, context, id, arg));
}

/* Sends a call whose leaf has an id. */
static void call_with(engine *w, uint64_t context, uint64_t id, uint64_t leaf) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, MODULE, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, leaf, true, x, &err));
  send(w, p);
}

static void call_after(engine *w, uint64_t context, uint64_t id, uint64_t leader) {
  clv_packet *p = call_of(w, context, id, 0);
  p->frame.call.runs_after = leader;
  send(w, p);
}

static void call_flagged(engine *w, uint64_t context, uint64_t id, uint32_t flags) {
  clv_packet *p = call_of(w, context, id, 0);
  p->frame.flags = flags;
  send(w, p);
}

/* Sends a backward whose second part has a position, together with a step. */
static void call_positions(engine *w, uint64_t context, uint64_t id, uint32_t weight) {
  clv_packet *p = call_of(w, context, id, 0);
  clv_packet_set_positions(p, 1, 2, weight, false);
  send(w, p);
}

static void head(engine *w, uint64_t context, uint64_t id) {
  clv_packet *p = call_of(w, context, id, 0), *h;
  clv_err err = {0};
  assert_ok(clv_packet_new(w->pool, CLV_CALL, &h, &err));
  h->frame = p->frame;
  h->frame.n_tensors = 0;
  h->is_announcement = h->was_announced = true;
  clv_packet_free(p);
  send(w, h);
}

static void announced_call_completes(engine *w, uint64_t context, uint64_t id) {
  clv_packet *p = call_of(w, context, id, 0);
  p->was_announced = true;
  send(w, p);
}

static void value(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_tensor(w, 1);
  assert_ok(clv_packet_new_value(w->pool, context, id, "", x, &p, &err));
  send(w, p);
}

static void deliver(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_deliver(w->pool, context, id, "", &p, &err));
  send(w, p);
}

static void keep(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  assert_ok(clv_contexts_keep_value(w->contexts, 77, context, id, &err));
  engine_run(w, false);
  show(w, CLV_REF_KEEP, context, id);
}

static void drop(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_drop(w->pool, context, 0, &id, 1, &p, &err));
  send(w, p);
}

static void spare(engine *w, uint64_t context, uint64_t id) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_spare(w->pool, context, &id, 1, &p, &err));
  send(w, p);
}

static void gradient(engine *w, uint64_t context, uint32_t phase, uint64_t id, bool flows) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = flows ? engine_tensor(w, 1) : NULL;
  assert_ok(clv_packet_new_gradient(w->pool, context, phase, id, 0, "", dy, &p, &err));
  send(w, p);
}

enum { RETAIN = 1, VOTE = 2, MORE = 4 };

/* id 0: the pass names no call; each call has one gradient. */
/* Sends a PREPARE. A phase that is 0 has no part of it. */
static void prepare(engine *w, uint64_t context, uint32_t phase, uint64_t id, int flags) {
  clv_err err = {0};
  clv_packet *p;
  const clv_context *c = clv_context_find(w->contexts, context);
  uint32_t last = c ? c->phase : 0;
  assert_ok(clv_packet_new_prepare(w->pool, context, phase, 0, flags & RETAIN, flags & VOTE,
                                   flags & MORE, &p, &err));
  if (id) assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
  p->frame.backward.skipped_phases = phase > last ? phase - last - 1 : 0;
  send(w, p);
}

static void apply(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_apply(w->pool, context, 9, CLV_MODULE_ALL, 1, 0.5f, true, &p, &err));
  send(w, p);
}

static void planned(engine *w, uint64_t context, uint32_t position) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(
      clv_packet_new_planned_step(w->pool, context, 9, MODULE, position, false, 0.5f, &p, &err));
  send(w, p);
}

static void revert(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_revert(w->pool, context, 9, &p, &err));
  send(w, p);
}

static void end(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, 9, &p, &err));
  send(w, p);
}

static void end_with_step(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, 9, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.5f, true);
  send(w, p);
}

static void give_up(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w->pool, CLV_ABORT, &p, &err));
  p->frame.context = context;
  clv_frame_set_failure(&p->frame, CLV_ABORTED, "by the test", "");
  send(w, p);
}

/* Sends a call and its backward. */
static void differentiate(engine *w, uint64_t context, uint64_t id, int flags) {
  call(w, context, id, 0);
  prepare(w, context, 1, id, flags);
  gradient(w, context, 1, id, true);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void every_frame(engine *w, uint64_t c) {
  head(w, c, 11);
  announced_call_completes(w, c, 11);
  call(w, c, 12, 0);
  deliver(w, c, 12);
  value(w, c, 13);
  drop(w, c, 13);
  spare(w, c, 12);
  gradient(w, c, 1, 12, true);
  prepare(w, c, 1, 12, 0);
  apply(w, c);
  revert(w, c);
}

/* Sends ends that retain 12 = f(50). Leaf 50 arrives after everything else, or the context is
 * aborted. */
static void ends(engine *w, uint64_t c) {
  for (int given_up = 0; given_up < 2; given_up++, c++) {
    call(w, c, 12, 50);
    keep(w, c, 12);
    end(w, c);
    every_frame(w, c);
    end(w, c);
    given_up ? give_up(w, c) : value(w, c, 50);
  }
}

/* Sends an end with a step in the middle of a pass, which is refused. 12 and 13 wait for the
 * backward of 11, whose gradient never arrives. 13 is kept in the second context. */
static void refused_ends(engine *w, uint64_t c) {
  for (int kept = 0; kept < 2; kept++, c++) {
    call(w, c, 11, 0);
    call_after(w, c, 12, 11);
    call_after(w, c, 13, 11);
    if (kept) keep(w, c, 13);
    prepare(w, c, 1, 11, VOTE);
    end_with_step(w, c);
    assert_null(w->contexts->ready_lists);
    assert_int_equal(w->contexts->n_work, 0);
    call(w, c + 50, 12, 0); /* reuses freed records */
    end(w, c + 50);
  }
}

static void contexts(engine *w) {
  every_frame(w, 1);
  end(w, 1);
  every_frame(w, 1); /* arrives late */
  end(w, 1);
  give_up(w, 1);
  for (uint64_t c = 2; c <= 3; c++) {
    prepare(w, c, 1, 99, 0); /* there is no such call */
    every_frame(w, c);
    c == 2 ? end(w, c) : give_up(w, c);
  }
  call(w, 4, 11, 0);
  give_up(w, 4);
  ends(w, 5);
  refused_ends(w, 20);
  assert_int_equal(w->contexts->n_open, 0); /* and none of them is left */
  assert_null(w->contexts->n_open);
}

/* Sends each event about a value to a context of its own, because it may fail the context. */
static void facts_about(engine *w, uint64_t c, void (*before)(engine *w, uint64_t c)) {
  for (int fact = 0; fact < 7; fact++, c++) {
    before(w, c);
    if (fact == 0) call(w, c, 12, 0);
    if (fact == 1) value(w, c, 12);
    if (fact == 2) call_with(w, c, 13, 12);
    if (fact == 2) deliver(w, c, 13);
    if (fact == 3) call(w, c, 13, 12);
    if (fact == 4) deliver(w, c, 12);
    if (fact == 5) keep(w, c, 12);
    if (fact == 6) gradient(w, c, 1, 12, true);
  }
}

static void awaited(engine *w, uint64_t c) { deliver(w, c, 12); }
static void making(engine *w, uint64_t c) { call(w, c, 12, 50); }
static void leaf(engine *w, uint64_t c) { value(w, c, 12); }
static void settle_value(engine *w, uint64_t c) { call(w, c, 12, 0); }

static void values(engine *w) {
  facts_about(w, 100, awaited);
  facts_about(w, 110, making);
  facts_about(w, 120, leaf);
  facts_about(w, 130, settle_value);
}

static void calls(engine *w) {
  head(w, 1, 11);
  call_after(w, 1, 12, 11);
  announced_call_completes(w, 1, 11);
  call(w, 1, 13, 60); /* waits */
  call_after(w, 1, 14, 13);
  call_flagged(w, 1, 15, CLV_FLAG_TRAINING | CLV_FLAG_RECOMPUTE);
  call_after(w, 1, 16, 15);
  call_flagged(w, 1, 17, 0);
  call_after(w, 1, 18, 17);
  call_after(w, 1, 19, 11);
  prepare(w, 1, 1, 15, 0);
  gradient(w, 1, 1, 15, true);
  call_after(w, 1, 20, 15); /* its saved tensors are freed */
  prepare(w, 1, 2, 15, 0);  /* this is a failure */
  gradient(w, 1, 2, 15, true);
  call_flagged(w, 2, 11, 0);
  prepare(w, 2, 1, 11, 0);
  gradient(w, 2, 1, 11, true);
  call(w, 3, 11, 0);
  prepare(w, 3, 1, 11, RETAIN);
  gradient(w, 3, 1, 11, false);
  prepare(w, 3, 2, 11, 0);
  gradient(w, 3, 2, 11, false);
  differentiate(w, 4, 11, RETAIN);
  call_positions(w, 6, 11, 9);
  prepare(w, 6, 1, 11, MORE);
  gradient(w, 6, 1, 11, true);
  prepare(w, 6, 1, 11, MORE); /* named twice, while its second part waits */
  gradient(w, 6, 1, 11, true);
  head(w, 7, 11);
  prepare(w, 7, 1, 11, 0);
  gradient(w, 7, 1, 11, true);
  announced_call_completes(w, 7, 11);
  clv_packet *wrong = call_of(w, 5, 11, 0);
  wrong->frame.module = 200;
  send(w, wrong);
}

/* Sends events to a call while its work runs and while its second part waits. */
static void calls_at_work(engine *w) {
  w->holds = true;
  call(w, 1, 11, 0);
  call_after(w, 1, 12, 11);
  engine_run(w, true);
  prepare(w, 1, 1, 11, 0);
  gradient(w, 1, 1, 11, true);
  call_after(w, 1, 13, 11);
  engine_run(w, true);
  call_positions(w, 2, 11, 9);
  engine_run(w, true);
  prepare(w, 2, 1, 11, 0);
  gradient(w, 2, 1, 11, true);
  engine_run(w, true);
  call_after(w, 2, 12, 11);
  engine_run(w, true);
  w->holds = false;
}

/* Brings the pass of a context, with calls 11 (in it) and 12, into a state. */
static void to_pass(engine *w, uint64_t c, clv_pass_state state) {
  call(w, c, 11, 0);
  call(w, c, 12, 0);
  if (w->holds) engine_run(w, true);
  if (state == PASS_NONE) return;
  if (state == PASS_ENDING) {
    prepare(w, c, 1, 12, RETAIN);
    gradient(w, c, 1, 12, true);
    engine_run(w, true);
    prepare(w, c, 2, 11, VOTE | RETAIN);
    gradient(w, c, 2, 11, true);
    while (w->n_started && w->started[0]->kind != WORK_VOTE) {
      engine_finish(w, 0);
      engine_run(w, false);
    }
    assert_int_equal(w->n_started, 1);
    return;
  }
  prepare(w, c, 2, 11, state == PASS_COLLECTING ? MORE : 0);
}

static void facts_about_pass(engine *w, uint64_t c, clv_pass_state state) {
  for (int fact = 0; fact < 9; fact++, c++) {
    to_pass(w, c, state);
    if (fact == 0) prepare(w, c, 3, 0, 0);
    if (fact == 1) prepare(w, c, state == PASS_NONE ? 0 : 2, 0, 0);
    if (fact == 2) prepare(w, c, 1, 0, 0);
    if (fact == 3) gradient(w, c, 2, 11, true);
    if (fact == 4) gradient(w, c, state == PASS_NONE ? 0 : 2, 12, true);
    if (fact == 5) gradient(w, c, 3, 11, true);
    if (fact == 6) gradient(w, c, 1, 11, true);
    if (fact == 7) apply(w, c);
    if (fact == 8) prepare(w, c, 9, 99, 0);
    engine_run(w, true);
    end(w, c);
    engine_run(w, true);
  }
}

static void passes(engine *w) {
  for (int state = PASS_NONE; state <= PASS_ACTIVE; state++)
    facts_about_pass(w, 100 + 10 * (uint64_t)state, (clv_pass_state)state);
  for (uint32_t phase = 1; phase <= 2; phase++) { /* after a pass of phase 2 */
    uint64_t c = 200 + 10 * phase;
    call(w, c, 11, 0);
    prepare(w, c, 2, 11, 0);
    gradient(w, c, 2, 11, true);
    prepare(w, c, phase, 0, 0);
    call(w, c + 1, 11, 0);
    prepare(w, c + 1, 2, 11, 0);
    gradient(w, c + 1, 2, 11, true);
    gradient(w, c + 1, phase, 11, true);
    gradient(w, c + 1, phase, 11, true);
    prepare(w, c + 1, 3, 11, 0); /* fails, and is sent again */
    prepare(w, c + 1, 4, 11, 0);
  }
  prepare(w, 300, 1, 0, MORE);
  prepare(w, 300, 1, 0, 0);
}

static void passes_at_work(engine *w) {
  w->holds = true;
  facts_about_pass(w, 100, PASS_ENDING);
  w->holds = false;
}

static void steps(engine *w) {
  differentiate(w, 1, 11, 0);
  differentiate(w, 2, 11, 0);
  revert(w, 1); /* there is no step to roll back */
  apply(w, 1);
  apply(w, 1);
  revert(w, 2); /* the step is another context's */
  revert(w, 1);
  apply(w, 1);
  planned(w, 1, 1);
  planned(w, 1, 2);
  apply(w, 1);
  call(w, 3, 11, 0); /* makes the step final */
  differentiate(w, 4, 11, 0);
  call(w, 4, 12, 60);
  apply(w, 4);       /* waits for the call */
  call(w, 5, 11, 0); /* becomes final meanwhile */
  value(w, 4, 60);
  differentiate(w, 6, 11, RETAIN);
  planned(w, 6, 1);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* later: work ends only when the program says so */
static void run(walk *all, void (*program)(engine *w), bool later) {
  engine w = {.on_result = on_result, .user = all};
  engine_begin(&w, later);
  program(&w);
  engine_run(&w, true);
  for (uint32_t i = 0; i < TABLE_CELLS; i++) all->met[i] += w.walked[i];
  engine_end(&w);
}

static bool is_right(const walk *all, clv_state_machine machine, uint32_t state, uint32_t fact) {
  const clv_table *table = clv_transition_table_of(machine);
  clv_action action = table->cells[state][fact].action;
  uint32_t i = clv_table_index(machine, state, fact);
  bool there = action != CELL_IMPOSSIBLE, moves = table->cells[state][fact].next_state != state;
  bool stays = action == CELL_IGNORE || action == CELL_COUNT || action == CELL_REPEAT;
  const char *wrong = stays && moves                           ? "what changes nothing moves"
                      : there && !all->met[i]                  ? "no program meets it"
                      : !there && all->met[i]                  ? "a program meets what cannot be"
                      : action == CELL_REFUSE && !all->said[i] ? "it is not said"
                                                               : NULL;
  if (wrong) print_error("%s: state %u, fact %u: %s\n", table->name, state, fact, wrong);
  return !wrong;
}

/* Checks one transition. An event that the table excludes leaves the state unchanged. */
static void check_step(clv_state_machine machine, uint32_t state, uint32_t fact) {
  clv_err err = {0};
  const clv_cell *cell;
  uint8_t at = (uint8_t)state;
  bool there = clv_transition_table_of(machine)->cells[state][fact].action != CELL_IMPOSSIBLE;
  assert_int_equal(clv_table_apply_event(NULL, machine, &at, fact, &cell, &err),
                   there ? CLV_OK : CLV_INTERNAL);
  if (!there) assert_int_equal(at, state);
}

static uint32_t count_wrong(const walk *all, clv_state_machine m) {
  uint32_t wrong = 0;
  for (uint32_t s = 0; s < clv_transition_table_of(m)->n_states; s++)
    for (uint32_t f = 0; f < clv_transition_table_of(m)->n_events; f++) {
      check_step(m, s, f);
      wrong += !is_right(all, m, s, f);
    }
  return wrong;
}

/* ---- what each frame makes ------------------------------------------------------------------- */

static const char expected[] = "tests/unit/engine/tables.txt";

static void write_expected(const char *text, size_t n) {
  FILE *f = fopen(expected, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, n, f), n);
  fclose(f);
}

/* Compares line by line, so that the first difference is shown. */
static void compare(char *got) {
  char want[1024];
  FILE *f = fopen(expected, "r");
  assert_non_null(f);
  char *rest = got;
  for (int number = 1; fgets(want, sizeof want, f); number++) {
    char *line = strsep(&rest, "\n");
    want[strcspn(want, "\n")] = '\0';
    if (!line || strcmp(line, want) != 0)
      fail_msg("%s:%d: expected '%s', got '%s'", expected, number, want, line ? line : "the end");
  }
  assert_true(rest && !*rest);
  fclose(f);
}

static void every_table_cell_is_reached_or_impossible(void **state) {
  static walk all;
  char *text = NULL;
  size_t n = 0;
  uint32_t wrong = 0;
  (void)state;
  all.log = open_memstream(&text, &n);
  assert_non_null(all.log);
  run(&all, contexts, false);
  run(&all, values, false);
  run(&all, calls, false);
  run(&all, calls_at_work, true);
  run(&all, passes, false);
  run(&all, passes_at_work, true);
  run(&all, steps, false);
  fclose(all.log);
  for (clv_state_machine m = 0; m < MACHINES; m++) wrong += count_wrong(&all, m);
  assert_int_equal(wrong, 0);
  if (getenv("CLEAVE_WRITE_TABLES")) write_expected(text, n);
  compare(text);
  free(text);
}

/* ---- what cannot be -------------------------------------------------------------------------- */

static void on_mistake(engine *w, clv_result *r) {
  const clv_frame *f = &r->packet->frame;
  assert_int_equal(f->kind, CLV_ABORT);
  assert_int_equal(f->failure.code, CLV_INTERNAL);
  assert_non_null(strstr(f->failure.text, "is impossible for a"));
  assert_non_null(
      strstr(f->failure.text, clv_transition_table_of(*(clv_state_machine *)w->user)->name));
  clv_packet_free(r->packet);
}

/* Sends an event that has no cell to a context whose call has run. */
static void mistake(clv_contexts *e, clv_context *c, clv_state_machine machine) {
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
    engine w = {.on_result = on_mistake, .user = &m};
    engine_begin(&w, 0);
    assert_ok(engine_packet(&w, call_of(&w, 1, 11, 0), &err));
    clv_context *c = clv_context_find(w.contexts, 1);
    mistake(w.contexts, c, m);
    engine_run(&w, true);
    assert_int_equal(c->state, CONTEXT_FAILED);
    engine_end(&w);
  }
}

/* If the context does not exist any more, the event is reported once to the engine's owner. */
static void impossible_event_without_context_is_reported_once(void **state) {
  clv_err err = {0};
  clv_code code;
  engine w = {0};
  (void)state;
  engine_begin(&w, 0);
  (void)clv_step_on_event(w.contexts, MODULE, 77, STEP_REVERTED);
  (void)clv_step_on_event(w.contexts, MODULE, 78, STEP_OTHER_WORK);
  assert_true(clv_contexts_run_one(w.contexts, &code, &err));
  assert_int_equal(code, CLV_INTERNAL);
  assert_non_null(strstr(err.text, "step"));
  assert_false(clv_contexts_run_one(w.contexts, &code, &err));
  assert_int_equal(code, CLV_OK);
  engine_end(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_table_cell_is_reached_or_impossible),
      cmocka_unit_test(impossible_event_fails_context),
      cmocka_unit_test(impossible_event_without_context_is_reported_once),
  };
  return cmocka_run_group_tests_name("tables", tests, NULL, NULL);
}
