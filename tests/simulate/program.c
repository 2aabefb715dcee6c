/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulate/program_int.h"

/* ---- modules --------------------------------------------------------------------------------- */

static const struct shape {
  const char *ops[3][2]; /* [layers][op, attributes] */
  int inputs;
  bool wide_in, wide_out;
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

int inputs_of(stage_kind k) { return shapes[k].inputs; }
bool takes_wide(stage_kind k) { return shapes[k].wide_in; }
bool gives_wide(stage_kind k) { return shapes[k].wide_out; }

/* Graphs of all kinds, made once because parsing is slow. */
static cleave_graph *graphs[2][KINDS];

static cleave_graph *graph_of(stage_kind k, int64_t width) {
  static const char *const names[] = {"left", "right"};
  const struct shape *s = &shapes[k];
  int64_t dims[] = {ROWS, s->wide_in ? width : NARROW_WIDTH};
  cleave_graph **made = &graphs[width == WIDEST_WIDTH][k];
  int in[2] = {0}, last;
  cleave_error e;
  cleave_graph *g = *made;
  char out[32];
  if (g) return g;
  snprintf(out, sizeof out, "{out: %d}", (int)width);
  bool good = cleave_graph_new(&g, &e) == CLEAVE_OK;
  for (int i = 0; good && i < s->inputs; i++)
    good = cleave_graph_input(g, names[i], CLEAVE_F32, dims, 2, &in[i], &e) == CLEAVE_OK;
  for (int i = 0; good && i < 3 && s->ops[i][0]; i++) {
    const char *with = k == WIDEN ? out : s->ops[i][1];
    good =
        cleave_graph_op(g, s->ops[i][0], with, NULL, in, i ? 1 : s->inputs, &last, &e) == CLEAVE_OK;
    in[0] = last;
  }
  if (!good) {
    fprintf(stderr, "graph %d: %s\n", (int)k, e.text);
    abort();
  }
  return *made = g;
}

void sim_programs_done(void) {
  for (int i = 0; i < 2 * KINDS; i++) {
    cleave_graph **g = &graphs[i / KINDS][i % KINDS];
    cleave_graph_free(*g);
    *g = NULL;
  }
}

/* ---- the record ------------------------------------------------------------------------------ */

void sim_record_done(sim_record *r) {
  free(r->lines);
  free(r->numbers);
  *r = (sim_record){0};
}

static void *grown(void *items, size_t n, size_t *cap, size_t size) {
  if (n <= *cap) return items;
  *cap = 2 * n;
  void *more = realloc(items, *cap * size);
  if (!more) abort();
  return more;
}

static sim_line *last(const program *p) { return &p->record->lines[p->record->n - 1]; }

static sim_line *add_line(program *p, uint32_t needs, uint32_t depends_on) {
  sim_record *r = p->record;
  r->lines = grown(r->lines, r->n + 1, &r->cap, sizeof *r->lines);
  sim_line *l = &r->lines[r->n++];
  *l = (sim_line){.needs = needs,
                  .depends_on = needs | depends_on,
                  .is_after_rejoin = p->is_after_rejoin,
                  .began = p->began,
                  .ended = clv_clock_now(&p->stand->clock),
                  .context_has_failure = p->in && p->in->has_failure,
                  .at = r->n_numbers};
  return l;
}

/* Shows a line when the next one begins, because then its numbers are complete. */
static void show(program *p) {
  if (p->stand->line && p->record->n) p->stand->line(p->stand->user, p->record, last(p));
}

void begin(program *p) {
  show(p);
  if (p->stand->between && !p->hurries) p->stand->between(p->stand->user);
  p->began = clv_clock_now(&p->stand->clock);
}

bool done(program *p, cleave_status status, uint32_t needs, uint32_t depends_on, const char *fmt,
          ...) {
  sim_line *l = add_line(p, needs, depends_on);
  va_list args;
  va_start(args, fmt);
  vsnprintf(l->what, sizeof l->what, fmt, args);
  va_end(args);
  if (status != CLEAVE_OK) l->error = p->error;
  l->error.status = status;
  bool refused = status == CLEAVE_PRECONDITION || status == CLEAVE_NOT_FOUND;
  if (p->in && status != CLEAVE_OK && !refused) p->in->has_failure = true;
  return status == CLEAVE_OK;
}

void skip(program *p, const char *what) {
  begin(p);
  sim_line *l = add_line(p, 0, 0);
  l->skipped = true;
  if (p->in) p->in->has_failure = true;
  snprintf(l->what, sizeof l->what, "%s", what);
}

void allow_other_failure(program *p) { last(p)->may_report_other_failure = true; }

cleave_status impossible(program *p, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(p->error.text, sizeof p->error.text, fmt, args);
  va_end(args);
  return CLEAVE_INTERNAL;
}

void record_bytes(program *p, const void *bytes, size_t n) {
  sim_record *r = p->record;
  r->numbers = grown(r->numbers, r->n_numbers + n, &r->cap_numbers, 1);
  memcpy(r->numbers + r->n_numbers, bytes, n);
  r->n_numbers += n;
  last(p)->bytes += n;
}

void record_tensor(program *p, const cleave_tensor *t) {
  record_bytes(p, t->data, cleave_tensor_count(t) * (t->dtype == CLEAVE_I64 ? 8 : 4));
}

/* ---- what it is made of ---------------------------------------------------------------------- */

const char *place_name(const program *p, uint32_t place) {
  static const char *const names[SIM_PLACES] = {"master", "w1", "w2", "w3"};
  return names[p->stand->home ? 0 : place];
}

static stage_kind draw_kind(program *p, int index) {
  static const stage_kind first[] = {LOSS, LINEAR}, wide[] = {JOIN_WIDE, NARROW};
  if (index < 2) return first[index];
  if (p->neighbours && index == 2) return NORM;
  if (p->wide && index > 2 && index < 5) return wide[index - 3];
  return (stage_kind)below(p, p->wide ? LOSS : WIDEN);
}

/* Loads module `index`, in place of the earlier one if any. */
static void load(program *p, int index) {
  static const char *const all[] = {"*"};
  stage *m = &p->stages[index];
  char name[16];
  snprintf(name, sizeof name, "m%d", index);
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = place_name(p, m->place),
                             .seed = 1 + (uint64_t)index + 100 * m->times,
                             .in_flight = below(p, 3),
                             .frozen = all,
                             .n_frozen = m->kind == FROZEN};
  const cleave_graph *g = graph_of(m->kind, p->width);
  if (DO(p, cleave_load_graph(p->rt, &o, g, &m->module, &p->error), bit(m->place), 0,
         "load %s of kind %d at %s", name, m->kind, o.at))
    return;
  o.at = "master"; /* the place of the module is lost */
  cleave_error e;
  if (cleave_load_graph(p->rt, &o, g, &m->module, &e) != CLEAVE_OK) {
    fprintf(stderr, "module %s: %s\n", name, e.text);
    abort();
  }
}

static void add_module(program *p, int index) {
  stage *m = &p->stages[index];
  *m = (stage){.kind = draw_kind(p, index), .optimizer = -1};
  m->place = one_in(p, 5) ? 0 : 1 + below(p, SIM_PLACES - 1);
  if (p->neighbours && index == 2) m->place = p->stages[1].place;
  m->depends_on = 1u << m->place;
  load(p, index);
}

/* Contexts that are open keep the old module. */
void do_replace(program *p) {
  int index = 1 + (int)below(p, (uint32_t)p->n_stages - 1);
  stage *m = &p->stages[index];
  if (m->optimizer >= 0) return;
  DO(p, cleave_module_release(p->rt, m->module, &p->error), 0, 0, "release m%d", index);
  m->module = NULL;
  allow_other_failure(p);
  m->placed = false;
  m->times++;
  load(p, index);
}

static bool is_trained(const stage *m) {
  return cleave_module_weight_name(m->module, 0) && m->kind != FROZEN;
}

/* Makes an optimiser. Each trained module without an optimiser is added to it, or not, at
 * random. */
static void add_optimizer(program *p, bool final) {
  cleave_module *joined[MODULES];
  int index = p->n_optimizers;
  size_t n = 0;
  for (int i = 0; i < p->n_stages; i++) {
    if (!is_trained(&p->stages[i]) || p->stages[i].optimizer >= 0 || one_in(p, 4)) continue;
    p->stages[i].optimizer = index;
    joined[n++] = p->stages[i].module;
  }
  cleave_group g = {.modules = joined,
                    .n_modules = n,
                    .kind = one_in(p, 4) ? CLEAVE_ADAM : CLEAVE_SGD,
                    .lr = 0.05,
                    .no_rollback = final};
  if (g.kind == CLEAVE_SGD) g.momentum = one_in(p, 3) ? 0 : 0.9;
  g.nesterov = g.momentum != 0 && one_in(p, 3);
  double clip = one_in(p, 2) ? 0.02 : 0;
  if (!n) return;
  if (DO(p, cleave_optimizer_new(p->rt, &g, 1, clip, &p->optimizers[index], &p->error), 0, 0,
         "optimizer %d of %zu, final %d, clips at %g", index, n, final, clip))
    p->n_optimizers++;
}

static void make(program *p) {
  p->wide = one_in(p, 5);
  p->width = one_in(p, 3) ? WIDEST_WIDTH : WIDE_WIDTH;
  p->neighbours = one_in(p, 4);
  p->n_stages = 5 + (int)below(p, MODULES - 4);
  for (int i = 0; i < p->n_stages; i++) add_module(p, i);
  p->final = one_in(p, 3);
  for (uint32_t i = below(p, 3); i > 0; i--) add_optimizer(p, p->final);
}

/* ---- what it does ---------------------------------------------------------------------------- */

static scope *any_open(program *p) {
  scope *open[OPEN];
  uint32_t n = 0;
  for (int i = 0; i < p->n_scopes && n < OPEN; i++)
    if (p->scopes[i].open) open[n++] = &p->scopes[i];
  return n ? open[below(p, n)] : NULL;
}

static void finish(program *p) {
  for (int i = 0; i < p->n_scopes; i++)
    if (p->scopes[i].open) do_close(p, &p->scopes[i]);
  p->in = NULL;
  while (p->n_kept) do_release_kept(p, p->n_kept - 1);
  for (int i = 0; i < p->n_stages; i++) do_read_state(p, &p->stages[i]);
  do_come_back(p);
  for (int i = 0; i < p->n_optimizers; i++) cleave_optimizer_release(p->rt, p->optimizers[i], NULL);
  for (int i = 0; i < p->n_stages; i++) cleave_module_release(p->rt, p->stages[i].module, NULL);
  show(p);
  cleave_tensor_free(&p->tensor);
}

/* Runs another caller's work. It is left out where it would make a step final that the program may
 * roll back, or would change running statistics. */
static void intrude(program *p) {
  uint64_t what = sim_next(&p->intruder_random);
  const stage *m = &p->stages[1 + what % ((uint64_t)p->n_stages - 1)];
  bool fits = m->kind == LINEAR || m->kind == RELU || m->kind == DROP;
  if (p->final && fits && m->placed && m->place && p->stand->intrude && what >> 60 < 4)
    p->stand->intrude(p->stand->user, m->place, m->module, what);
}

void sim_program(uint64_t seed, const sim_stand *stand, sim_record *ret) {
  program p = {.stand = stand,
               .rt = stand->runtime,
               .record = ret,
               .random = {seed},
               .shape_random = {~seed},
               .intruder_random = {seed ^ 0x1e57}};
  ret->n = ret->n_numbers = 0;
  make(&p);
  do_open(&p);
  for (uint32_t left = 15 + below(&p, 45); left > 0; left--) {
    scope *s = any_open(&p);
    p.in = NULL;
    intrude(&p);
    if (!s || one_in(&p, 9))
      do_open(&p);
    else if (one_in(&p, 8))
      do_outside(&p);
    else if (one_in(&p, 12))
      do_plot(&p, p.in = s);
    else
      do_in_scope(&p, p.in = s);
  }
  finish(&p);
}
