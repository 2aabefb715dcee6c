/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the modules of a random program, draws its statements and writes its record
 * (program_int.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulate/program_int.h"

/* ---- graphs of the modules ------------------------------------------------------------------- */

static const struct shape {
  const char *layer_ops[3][2]; /* [layer][0]: the layer's op; [layer][1]: its attributes */
  int n_inputs;
  bool has_wide_input, has_wide_output;
} shapes[KINDS] = {
    [LINEAR] = {{{"linear", "{out: 4}"}}, 1, false, false},
    [RELU] = {{{"linear", "{out: 4}"}, {"relu", NULL}}, 1, false, false},
    [TANH] = {{{"tanh", NULL}}, 1, false, false},
    [FROZEN] = {{{"linear", "{out: 4}"}, {"sigmoid", NULL}}, 1, false, false},
    [JOIN] = {{{"add", NULL}}, 2, false, false},
    [NORM] = {{{"linear", "{out: 4}"}, {"batchnorm", NULL}}, 1, false, false},
    [DROP] = {{{"linear", "{out: 4}"}, {"dropout", "{p: 0.4}"}}, 1, false, false},
    [WIDEN] = {{{"linear", NULL}}, 1, false, true},
    [TANH_WIDE] = {{{"tanh", NULL}}, 1, true, true},
    [JOIN_WIDE] = {{{"add", NULL}}, 2, true, true},
    [NARROW] = {{{"linear", "{out: 4}"}}, 1, true, false},
    [LOSS] = {{{"mse", NULL}}, 2, false, false},
};

int get_n_inputs(stage_kind k) { return shapes[k].n_inputs; }
bool has_wide_input(stage_kind k) { return shapes[k].has_wide_input; }
bool has_wide_output(stage_kind k) { return shapes[k].has_wide_output; }

/* Graphs of all kinds, made once because parsing is slow. */
static cleave_graph *graphs[2][KINDS];

static cleave_graph *make_graph(stage_kind k, int64_t width) {
  static const char *const names[] = {"left", "right"};
  const struct shape *s = &shapes[k];
  int64_t dims[] = {MAX_ROWS, s->has_wide_input ? width : NARROW_WIDTH};
  cleave_graph **graph = &graphs[width == WIDEST_WIDTH][k];
  int in[2] = {0}, last_node;
  cleave_error e;
  cleave_graph *g = *graph;
  char out_attribute[32];
  if (g) return g;
  snprintf(out_attribute, sizeof out_attribute, "{out: %d}", (int)width);
  bool is_good = cleave_graph_new(&g, &e) == CLEAVE_OK;
  for (int i = 0; is_good && i < s->n_inputs; i++)
    is_good = cleave_graph_input(g, names[i], CLEAVE_F32, dims, 2, &in[i], &e) == CLEAVE_OK;
  for (int i = 0; is_good && i < 3 && s->layer_ops[i][0]; i++) {
    const char *attributes = k == WIDEN ? out_attribute : s->layer_ops[i][1];
    is_good = cleave_graph_op(g, s->layer_ops[i][0], attributes, NULL, in, i ? 1 : s->n_inputs,
                              &last_node, &e) == CLEAVE_OK;
    in[0] = last_node;
  }
  if (!is_good) {
    fprintf(stderr, "graph %d: %s\n", (int)k, e.text);
    abort();
  }
  return *graph = g;
}

void sim_free_programs(void) {
  for (int i = 0; i < 2 * KINDS; i++) {
    cleave_graph **g = &graphs[i / KINDS][i % KINDS];
    cleave_graph_free(*g);
    *g = NULL;
  }
}

/* ---- the record of a run --------------------------------------------------------------------- */

void sim_record_free(sim_record *r) {
  free(r->lines);
  free(r->number_bytes);
  *r = (sim_record){0};
}

static void *grow_array(void *items, size_t n, size_t *cap, size_t item_bytes) {
  if (n <= *cap) return items;
  *cap = 2 * n;
  void *grown = realloc(items, *cap * item_bytes);
  if (!grown) abort();
  return grown;
}

static sim_line *get_last_line(const program *p) { return &p->record->lines[p->record->n - 1]; }

static sim_line *add_line(program *p, uint32_t needed_places, uint32_t depends_on) {
  sim_record *r = p->record;
  r->lines = grow_array(r->lines, r->n + 1, &r->cap_lines, sizeof *r->lines);
  sim_line *l = &r->lines[r->n++];
  *l = (sim_line){.needed_places = needed_places,
                  .depended_places = needed_places | depends_on,
                  .is_after_rejoin = p->is_after_rejoin,
                  .began_ns = p->statement_began_ns,
                  .ended_ns = clv_clock_now(&p->environment->clock),
                  .context_has_failure = p->line_scope && p->line_scope->has_failure,
                  .at = r->n_number_bytes};
  return l;
}

/* Reports the last line. Called when the next line begins, because only then are its numbers
 * complete. */
static void report_last_line(program *p) {
  if (p->environment->report_line && p->record->n)
    p->environment->report_line(p->environment->user, p->record, get_last_line(p));
}

void begin_statement(program *p) {
  report_last_line(p);
  if (p->environment->pause_program && !p->skips_pause)
    p->environment->pause_program(p->environment->user);
  p->statement_began_ns = clv_clock_now(&p->environment->clock);
}

bool end_statement(program *p, cleave_status status, uint32_t needed_places, uint32_t depends_on,
                   const char *fmt, ...) {
  sim_line *l = add_line(p, needed_places, depends_on);
  va_list args;
  va_start(args, fmt);
  vsnprintf(l->description, sizeof l->description, fmt, args);
  va_end(args);
  if (status != CLEAVE_OK) l->result = p->last_error;
  l->result.status = status;
  bool is_refused = status == CLEAVE_PRECONDITION || status == CLEAVE_NOT_FOUND;
  if (p->line_scope && status != CLEAVE_OK && !is_refused) p->line_scope->has_failure = true;
  return status == CLEAVE_OK;
}

void skip_statement(program *p, const char *label) {
  begin_statement(p);
  sim_line *l = add_line(p, 0, 0);
  l->is_skipped = true;
  if (p->line_scope) p->line_scope->has_failure = true;
  snprintf(l->description, sizeof l->description, "%s", label);
}

void mark_may_report_other_failure(program *p) {
  get_last_line(p)->may_report_other_failure = true;
}

cleave_status report_impossible(program *p, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(p->last_error.text, sizeof p->last_error.text, fmt, args);
  va_end(args);
  return CLEAVE_INTERNAL;
}

void record_bytes(program *p, const void *bytes, size_t n) {
  sim_record *r = p->record;
  r->number_bytes = grow_array(r->number_bytes, r->n_number_bytes + n, &r->cap_number_bytes, 1);
  memcpy(r->number_bytes + r->n_number_bytes, bytes, n);
  r->n_number_bytes += n;
  get_last_line(p)->n_bytes += n;
}

void record_tensor(program *p, const cleave_tensor *t) {
  record_bytes(p, t->data, cleave_tensor_count(t) * (t->dtype == CLEAVE_I64 ? 8 : 4));
}

/* ---- modules and optimisers of a program ----------------------------------------------------- */

const char *place_name(const program *p, uint32_t place) {
  static const char *const names[SIM_PLACES] = {"master", "w1", "w2", "w3"};
  return names[p->environment->is_all_at_master ? 0 : place];
}

static stage_kind draw_kind(program *p, int index) {
  static const stage_kind first_kinds[] = {LOSS, LINEAR}, wide_kinds[] = {JOIN_WIDE, NARROW};
  if (index < 2) return first_kinds[index];
  if (p->has_statistics_beside_second && index == 2) return NORM;
  if (p->is_wide && index > 2 && index < 5) return wide_kinds[index - 3];
  return (stage_kind)draw_below(p, p->is_wide ? LOSS : WIDEN);
}

/* Loads a module for entry `index` of the program's list. Open contexts continue with a module that
 * was loaded for the entry before. */
static void load_module(program *p, int index) {
  static const char *const all_parameters[] = {"*"};
  stage *m = &p->stages[index];
  char name[16];
  snprintf(name, sizeof name, "m%d", index);
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = place_name(p, m->place),
                             .seed = 1 + (uint64_t)index + 100 * m->n_replacements,
                             .in_flight = draw_below(p, 3),
                             .frozen = all_parameters,
                             .n_frozen = m->kind == FROZEN};
  const cleave_graph *g = make_graph(m->kind, p->wide_width);
  if (DO(p, cleave_load_graph(p->rt, &o, g, &m->module, &p->last_error), place_bit(m->place), 0,
         "load %s of kind %d at %s", name, m->kind, o.at))
    return;
  o.at = "master"; /* the worker of the module is lost */
  cleave_error e;
  if (cleave_load_graph(p->rt, &o, g, &m->module, &e) != CLEAVE_OK) {
    fprintf(stderr, "module %s: %s\n", name, e.text);
    abort();
  }
}

static void add_module(program *p, int index) {
  stage *m = &p->stages[index];
  *m = (stage){.kind = draw_kind(p, index), .optimizer = -1};
  m->place = happens_once_in(p, 5) ? 0 : 1 + draw_below(p, SIM_PLACES - 1);
  if (p->has_statistics_beside_second && index == 2) m->place = p->stages[1].place;
  m->depended_places = 1u << m->place;
  load_module(p, index);
}

/* Replaces a module. Open contexts continue with the old module. */
void do_replace_module(program *p) {
  int index = 1 + (int)draw_below(p, (uint32_t)p->n_stages - 1);
  stage *m = &p->stages[index];
  if (m->optimizer >= 0) return;
  DO(p, cleave_module_release(p->rt, m->module, &p->last_error), 0, 0, "release m%d", index);
  m->module = NULL;
  mark_may_report_other_failure(p);
  m->is_placed = false;
  m->n_replacements++;
  load_module(p, index);
}

static bool is_trained(const stage *m) {
  return cleave_module_weight_name(m->module, 0) && m->kind != FROZEN;
}

/* Makes an optimiser for a random choice of the trained modules that have no optimiser yet. */
static void add_optimizer(program *p, bool is_final) {
  cleave_module *optimizer_modules[MAX_MODULES];
  int index = p->n_optimizers;
  size_t n = 0;
  for (int i = 0; i < p->n_stages; i++) {
    if (!is_trained(&p->stages[i]) || p->stages[i].optimizer >= 0 || happens_once_in(p, 4))
      continue;
    p->stages[i].optimizer = index;
    optimizer_modules[n++] = p->stages[i].module;
  }
  cleave_group g = {.modules = optimizer_modules,
                    .n_modules = n,
                    .kind = happens_once_in(p, 4) ? CLEAVE_ADAM : CLEAVE_SGD,
                    .lr = 0.05,
                    .no_rollback = is_final};
  if (g.kind == CLEAVE_SGD) g.momentum = happens_once_in(p, 3) ? 0 : 0.9;
  g.nesterov = g.momentum != 0 && happens_once_in(p, 3);
  double clip = happens_once_in(p, 2) ? 0.02 : 0;
  if (!n) return;
  if (DO(p, cleave_optimizer_new(p->rt, &g, 1, clip, &p->optimizers[index], &p->last_error), 0, 0,
         "optimizer %d of %zu, final %d, clips at %g", index, n, is_final, clip))
    p->n_optimizers++;
}

static void make_program(program *p) {
  p->is_wide = happens_once_in(p, 5);
  p->wide_width = happens_once_in(p, 3) ? WIDEST_WIDTH : WIDE_WIDTH;
  p->has_statistics_beside_second = happens_once_in(p, 4);
  p->n_stages = 5 + (int)draw_below(p, MAX_MODULES - 4);
  for (int i = 0; i < p->n_stages; i++) add_module(p, i);
  p->has_final_steps = happens_once_in(p, 3);
  for (uint32_t i = draw_below(p, 3); i > 0; i--) add_optimizer(p, p->has_final_steps);
}

/* ---- statements of a program ----------------------------------------------------------------- */

static scope *draw_open_scope(program *p) {
  scope *open_scopes[MAX_OPEN_CONTEXTS];
  uint32_t n = 0;
  for (int i = 0; i < p->n_scopes && n < MAX_OPEN_CONTEXTS; i++)
    if (p->scopes[i].is_open) open_scopes[n++] = &p->scopes[i];
  return n ? open_scopes[draw_below(p, n)] : NULL;
}

static void finish_program(program *p) {
  for (int i = 0; i < p->n_scopes; i++)
    if (p->scopes[i].is_open) do_close_context(p, &p->scopes[i]);
  p->line_scope = NULL;
  while (p->n_kept_values) do_release_kept_value(p, p->n_kept_values - 1);
  for (int i = 0; i < p->n_stages; i++) do_read_state(p, &p->stages[i]);
  do_reload_after_loss(p);
  for (int i = 0; i < p->n_optimizers; i++) cleave_optimizer_release(p->rt, p->optimizers[i], NULL);
  for (int i = 0; i < p->n_stages; i++) cleave_module_release(p->rt, p->stages[i].module, NULL);
  report_last_line(p);
  cleave_tensor_free(&p->last_tensor);
}

/* Lets an intruder, another caller of the session, use a module. Does nothing if the intruder would
 * make a step final that the program may roll back, or would change running statistics. */
static void run_intruder(program *p) {
  uint64_t random_bits = sim_draw_number(&p->intruder_rng);
  const stage *m = &p->stages[1 + random_bits % ((uint64_t)p->n_stages - 1)];
  bool is_suitable = m->kind == LINEAR || m->kind == RELU || m->kind == DROP;
  if (p->has_final_steps && is_suitable && m->is_placed && m->place &&
      p->environment->use_as_intruder && random_bits >> 60 < 4)
    p->environment->use_as_intruder(p->environment->user, m->place, m->module, random_bits);
}

void sim_run_program(uint64_t seed, const sim_environment *environment, sim_record *ret) {
  program p = {.environment = environment,
               .rt = environment->runtime,
               .record = ret,
               .rng = {seed},
               .shape_rng = {~seed},
               .intruder_rng = {seed ^ 0x1e57}};
  ret->n = ret->n_number_bytes = 0;
  make_program(&p);
  do_open_context(&p);
  for (uint32_t n_left = 15 + draw_below(&p, 45); n_left > 0; n_left--) {
    scope *s = draw_open_scope(&p);
    p.line_scope = NULL;
    run_intruder(&p);
    if (!s || happens_once_in(&p, 9))
      do_open_context(&p);
    else if (happens_once_in(&p, 8))
      do_statement_without_context(&p);
    else if (happens_once_in(&p, 12))
      do_fixed_sequence(&p, p.line_scope = s);
    else
      do_statement_in_context(&p, p.line_scope = s);
  }
  finish_program(&p);
}
