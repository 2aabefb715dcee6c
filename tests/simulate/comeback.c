/* SPDX-License-Identifier: Apache-2.0
 *
 * Workers that were lost and come back. A program asks for that whether anybody was lost or not:
 * what is not lost is there, which is what it wants.
 */
#include "tests/simulate/program_int.h"

static cleave_status ok_if_exists(cleave_status status) {
  bool stayed = status == CLEAVE_PRECONDITION || status == CLEAVE_NOT_FOUND;
  return stayed ? CLEAVE_OK : status;
}

static void rejoin(program *p, uint32_t place) {
  uint32_t needs = 1u << place;
  DO(p, ok_if_exists(cleave_worker_rejoin(p->rt, place_name(p, place), 0, &p->error)), needs, needs,
     "w%u rejoins", place);
  allow_other_failure(p);
}

/* Loads a module again. A late load may have reached the node, so the next attempt loads a module
 * with a new generation. */
static cleave_status loaded_again(program *p, cleave_module *m) {
  uint32_t hurry_ms = sim_below(&p->shape_random, 2) * (1 + sim_below(&p->shape_random, 6));
  cleave_status status = cleave_module_reload(p->rt, m, NULL, NULL, hurry_ms, &p->error);
  if (!hurry_ms || status != CLEAVE_DEADLINE) return status;
  return cleave_module_reload(p->rt, m, NULL, NULL, 0, &p->error);
}

static void reload(program *p, int i) {
  const stage *m = &p->stages[i];
  DO(p, ok_if_exists(loaded_again(p, m->module)), 1u << m->place, m->depends_on,
     "m%d is there again", i);
  allow_other_failure(p);
}

void do_rejoin(program *p) {
  uint32_t place = 1 + below(p, SIM_PLACES - 1);
  rejoin(p, place);
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].place == place) reload(p, i);
}

/* ---- the last round -------------------------------------------------------------------------- */

static void fill(cleave_tensor *t) {
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
    if (!DO(p, cleave_weight_read(p->rt, m, name, 0, &p->tensor, &p->error), 0, 0, "last: m%d %s",
            i, name)) {
      skip(p, "last: set");
      continue;
    }
    fill(&p->tensor);
    DO(p, cleave_weight_write(p->rt, m, name, &p->tensor, 0, &p->error), 0, 0, "last: set m%d %s",
       i, name);
  }
}

static void use(program *p, scope *s, int i) {
  stage_kind k = p->stages[i].kind;
  const value *in[2] = {0};
  for (int n = 0; n < inputs_of(k); n++) in[n] = new_leaf(p, s, takes_wide(k), true);
  value *made = new_call(p, s, i, in, NULL);
  fetch(p, s, made, "the last of a module");
  if (gives_wide(k)) return;
  new_loss(p, s, made);
  backward(p, s, NULL, 1, false);
  read_leaf_gradient(p, s, in[0]);
  read_weight_gradient(p, s, i);
}

/* Uses each module in a context of its own, because the accounts are small. */
static void use_each(program *p) {
  for (int i = 1; i < p->n_stages; i++) {
    scope *s = &p->scopes[0];
    *s = (scope){.rows = ROWS};
    s->made = DO(p, cleave_context_open(p->rt, NULL, &s->id, &p->error), 0, 0, "last: open");
    use(p, p->in = s, i);
    if (s->made) DO(p, cleave_context_close(p->rt, s->id, 0, &p->error), 0, 0, "last: close");
    release_futures(p, s);
    p->in = NULL;
  }
}

void do_come_back(program *p) {
  p->in = NULL;
  p->record->comes_back = clv_clock_now(&p->stand->clock);
  p->stand->settle(p->stand->user);
  p->is_after_rejoin = true;
  for (uint32_t place = 1; place < SIM_PLACES; place++) rejoin(p, place);
  for (int i = 0; i < p->n_stages; i++) reload(p, i);
  for (int i = 0; i < p->n_stages; i++) set_weights(p, i);
  use_each(p);
  p->is_after_rejoin = false;
}
