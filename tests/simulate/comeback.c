/* SPDX-License-Identifier: Apache-2.0
 *
 * Lets lost workers rejoin a simulated program. A program asks for a rejoin whether or not a worker
 * was lost. If the worker or module was not lost, the runtime refuses the rejoin, and the program
 * counts this refusal as success.
 */
#include "tests/simulate/program_int.h"

static cleave_status accept_not_lost(cleave_status status) {
  bool was_not_lost = status == CLEAVE_PRECONDITION || status == CLEAVE_NOT_FOUND;
  return was_not_lost ? CLEAVE_OK : status;
}

static void rejoin_worker(program *p, uint32_t place) {
  uint32_t needed_places = 1u << place;
  DO(p, accept_not_lost(cleave_worker_rejoin(p->rt, place_name(p, place), 0, &p->last_error)),
     needed_places, needed_places, "w%u rejoins", place);
  mark_may_report_other_failure(p);
}

/* Reloads a module. If a short random deadline expires, the node may have loaded the module
 * nevertheless, so the second attempt loads a new generation of it. */
static cleave_status retry_module_load(program *p, cleave_module *m) {
  uint32_t deadline_ms = sim_draw_below(&p->shape_rng, 2) * (1 + sim_draw_below(&p->shape_rng, 6));
  cleave_status status = cleave_module_reload(p->rt, m, NULL, NULL, deadline_ms, &p->last_error);
  if (!deadline_ms || status != CLEAVE_DEADLINE) return status;
  return cleave_module_reload(p->rt, m, NULL, NULL, 0, &p->last_error);
}

static void reload_module(program *p, int i) {
  const stage *m = &p->stages[i];
  DO(p, accept_not_lost(retry_module_load(p, m->module)), 1u << m->place, m->depended_places,
     "m%d is there again", i);
  mark_may_report_other_failure(p);
}

void do_rejoin_workers(program *p) {
  uint32_t place = 1 + draw_below(p, SIM_PLACES - 1);
  rejoin_worker(p, place);
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].place == place) reload_module(p, i);
}

/* ---- last statements of a program, when all workers are back --------------------------------- */

static void fill_tensor(cleave_tensor *t) {
  for (size_t i = 0; i < cleave_tensor_count(t); i++)
    if (t->dtype == CLEAVE_F32)
      ((float *)t->data)[i] = 0.01f * (float)(1 + i % 7);
    else
      ((int64_t *)t->data)[i] = 3;
}

/* Sets all parameters and running statistics of a module. */
static void set_weights(program *p, int i) {
  cleave_module *m = p->stages[i].module;
  const char *name;
  for (size_t k = 0; (name = cleave_module_weight_name(m, k)) != NULL; k++) {
    if (!DO(p, cleave_weight_read(p->rt, m, name, 0, &p->last_tensor, &p->last_error), 0, 0,
            "last: m%d %s", i, name)) {
      skip_statement(p, "last: set");
      continue;
    }
    fill_tensor(&p->last_tensor);
    DO(p, cleave_weight_write(p->rt, m, name, &p->last_tensor, 0, &p->last_error), 0, 0,
       "last: set m%d %s", i, name);
  }
}

static void use_module(program *p, scope *s, int i) {
  stage_kind k = p->stages[i].kind;
  const value *in[2] = {0};
  for (int n = 0; n < get_n_inputs(k); n++) in[n] = add_leaf(p, s, has_wide_input(k), true);
  value *output = add_call(p, s, i, in, NULL);
  fetch_value(p, s, output, "the last of a module");
  if (has_wide_output(k)) return;
  add_loss(p, s, output);
  do_backward_from_losses(p, s, NULL, 1, false);
  read_leaf_gradient(p, s, in[0]);
  read_weight_gradient(p, s, i);
}

/* Uses each module in a context of its own, because the memory quotas are too small for one
 * context. */
static void use_each_module(program *p) {
  for (int i = 1; i < p->n_stages; i++) {
    scope *s = &p->scopes[0];
    *s = (scope){.n_rows = MAX_ROWS};
    s->is_made =
        DO(p, cleave_context_open(p->rt, NULL, &s->id, &p->last_error), 0, 0, "last: open");
    use_module(p, p->line_scope = s, i);
    if (s->is_made)
      DO(p, cleave_context_close(p->rt, s->id, 0, &p->last_error), 0, 0, "last: close");
    release_futures(p, s);
    p->line_scope = NULL;
  }
}

void do_reload_after_loss(program *p) {
  p->line_scope = NULL;
  p->record->after_rejoin_ns = clv_clock_now(&p->environment->clock);
  p->environment->wait_for_notice(p->environment->user);
  p->is_after_rejoin = true;
  for (uint32_t place = 1; place < SIM_PLACES; place++) rejoin_worker(p, place);
  for (int i = 0; i < p->n_stages; i++) reload_module(p, i);
  for (int i = 0; i < p->n_stages; i++) set_weights(p, i);
  use_each_module(p);
  p->is_after_rejoin = false;
}
