/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/simulate/program_int.h"

/* ---- values ---------------------------------------------------------------------------------- */

static value *any_value(program *p, scope *s, bool wide) {
  value *fit[VALUES];
  uint32_t n = 0;
  for (int i = 0; i < s->n; i++)
    if (!s->values[i].released && s->values[i].wide == wide) fit[n++] = &s->values[i];
  return n ? fit[below(p, n)] : NULL;
}

value *new_leaf(program *p, scope *s, bool wide, bool gradient) {
  static float numbers[ROWS * WIDEST_WIDTH];
  int64_t width = wide ? p->width : NARROW_WIDTH;
  size_t n = (size_t)(s->rows * width);
  for (size_t i = 0; i < n; i++) numbers[i] = (float)below(p, 2001) / 1000 - 1;
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, s->rows, width);
  value *v = &s->values[s->n++];
  *v = (value){.stage = -1, .wide = wide, .gradient = gradient && !s->evaluation};
  if (!s->made)
    skip(p, "leaf");
  else
    DO(p, cleave_leaf(p->rt, s->id, &t, v->gradient, &v->ref, &p->error), s->needs, 0,
       "c%d: v%d is a leaf%s", number_of(p, s), s->n - 1, v->gradient ? " with a gradient" : "");
  return v;
}

static value *some_value(program *p, scope *s, bool wide) {
  value *v = any_value(p, s, wide);
  return v ? v : new_leaf(p, s, wide, one_in(p, 2));
}

/* Running statistics that the context changes depend on the places of the context. */
static void spread_dependencies_to_norms(program *p, const scope *s) {
  for (int i = 0; i < p->n_stages && !s->evaluation; i++)
    if ((s->stages & bit((uint32_t)i)) && p->stages[i].kind == NORM)
      p->stages[i].depends_on |= s->depends_on;
}

/* Records dependencies of a call: the context's numbers depend on the module's state, and changed
 * statistics on the context. */
static void joins(program *p, scope *s, stage *m, int index) {
  s->needs |= bit(m->place);
  /* the first call makes its node dial the others */
  if (!m->placed && m->place) s->depends_on |= EVERYBODY;
  s->depends_on |= s->needs | m->depends_on;
  s->stages |= bit((uint32_t)index);
  spread_dependencies_to_norms(p, s);
}

/* Records a call. The first call of a module loads it, and its node dials the others. */
static void called(program *p, stage *m, bool good) {
  if (!m->placed) allow_other_failure(p);
  m->placed |= good;
}

static void call_module(program *p, scope *s, int index, const value *const *inputs,
                        const value *after, value *ret) {
  stage *m = &p->stages[index];
  cleave_reference in[2];
  int n = inputs_of(m->kind), c = number_of(p, s);
  bool there = s->made && (!after || after->ref.id), async = one_in(p, 6) && !after;
  cleave_call_options o = {.size = sizeof o, .to_program = one_in(p, 5), .recompute = one_in(p, 8)};
  if (p->leaves_gap) {
    async = false;
    o.position = 1;
    o.backward_position = 2;
    o.weight_position = 4;
  }
  if (after) o.after = after->ref;
  uint32_t to = below(p, SIM_PLACES);
  if (one_in(p, 5) && (!o.to_program || to == 0)) o.send_to = place_name(p, to);
  for (int i = 0; i < n; i++) there &= (in[i] = inputs[i]->ref).id != 0;
  if (o.send_to) s->needs |= bit(to);
  joins(p, s, m, index);
  *ret = (value){.stage = index,
                 .awaited = async,
                 .wide = gives_wide(m->kind),
                 .moves = m->kind == NORM && !s->evaluation};
  if (!there) {
    skip(p, "call");
    return;
  }
  if (async)
    DO(p,
       cleave_rpc_async(p->rt, s->id, m->module, in, (size_t)n, &ret->ref, &ret->future, &p->error),
       s->needs, 0, "c%d: call m%d, awaited", c, index);
  else
    DO(p, cleave_call_with(p->rt, s->id, m->module, in, (size_t)n, &o, &ret->ref, &p->error),
       s->needs, 0, "c%d: call m%d%s%s%s", c, index, after ? " after another" : "",
       o.send_to ? " for " : "", o.send_to ? o.send_to : "");
  called(p, m, ret->ref.id != 0);
}

value *new_call(program *p, scope *s, int index, const value *const *inputs, const value *after) {
  value made;
  call_module(p, s, index, inputs, after, &made);
  s->values[s->n] = made;
  return &s->values[s->n++];
}

static void do_call(program *p, scope *s) {
  int index = 1 + (int)below(p, (uint32_t)p->n_stages - 1);
  stage_kind k = p->stages[index].kind;
  if (k == LOSS || s->n + 3 > VALUES) return;
  const value *in[2] = {some_value(p, s, takes_wide(k)), some_value(p, s, takes_wide(k))};
  new_call(p, s, index, in, NULL);
}

void new_loss(program *p, scope *s, const value *of) {
  const value *in[2] = {of, new_leaf(p, s, false, false)};
  value made;
  call_module(p, s, 0, in, NULL, &made);
  s->losses[s->n_losses++] = made;
}

void do_loss(program *p, scope *s) {
  if (s->n_losses == LOSSES || s->n + 3 > VALUES) return;
  new_loss(p, s, some_value(p, s, false));
}

void fetch(program *p, scope *s, value *v, const char *what) {
  bool waited = v->awaited;
  v->moves = v->awaited = false;
  if (!v->ref.id) {
    skip(p, "fetch");
    return;
  }
  cleave_status status;
  begin(p);
  if (waited)
    status = cleave_wait(p->rt, v->future, 0, &p->tensor, &p->error);
  else
    status = to_here(p, v->ref);
  if (done(p, status, s->needs, s->depends_on, "c%d: %s %s", number_of(p, s),
           waited ? "wait for" : "fetch", what))
    record_tensor(p, &p->tensor);
}

static void do_fetch(program *p, scope *s) {
  char what[16];
  bool loss = s->n_losses && one_in(p, 3);
  int n = loss ? s->n_losses : s->n;
  if (!n) return;
  int i = (int)below(p, (uint32_t)n);
  value *v = loss ? &s->losses[i] : &s->values[i];
  if (v->released) return;
  snprintf(what, sizeof what, "%s%d", loss ? "loss " : "v", i);
  fetch(p, s, v, what);
}

void release(program *p, scope *s, value *v) {
  if (v->released || v->awaited || v->moves) return;
  v->released = true;
  if (!v->ref.id) {
    skip(p, "release");
    return;
  }
  int i = (int)(v - s->values);
  if (i % 4) /* most are forgotten: freed as soon as no value with a handle needs them */
    DO(p, cleave_call_forget(p->rt, v->ref, &p->error), s->needs, 0, "c%d: forget v%d",
       number_of(p, s), i);
  else
    DO(p, cleave_reference_release(p->rt, v->ref, &p->error), s->needs, 0, "c%d: release v%d",
       number_of(p, s), i);
}

static void do_release(program *p, scope *s) {
  if (s->n) release(p, s, &s->values[below(p, (uint32_t)s->n)]);
}

static void do_send(program *p, scope *s) {
  uint32_t to = below(p, SIM_PLACES);
  int i = s->n ? (int)below(p, (uint32_t)s->n) : 0;
  if (!s->n || s->values[i].released) return;
  s->needs |= bit(to);
  s->depends_on |= s->needs;
  spread_dependencies_to_norms(p, s);
  if (!s->values[i].ref.id) {
    skip(p, "send");
    return;
  }
  DO(p, cleave_send_to(p->rt, s->values[i].ref, place_name(p, to), &p->error), s->needs, 0,
     "c%d: send v%d to %s", number_of(p, s), i, place_name(p, to));
}

/* ---- contexts -------------------------------------------------------------------------------- */

static uint32_t needs_of(const program *p, const kept_value *k) {
  return bit(k->place) | p->scopes[k->scope].needs;
}

static uint32_t dependencies_of(const program *p, const kept_value *k) {
  return bit(k->place) | p->scopes[k->scope].depends_on;
}

void fetch_kept(program *p, int i) {
  const kept_value *k = &p->kept[i];
  if (!k->id.id) {
    skip(p, "fetch kept");
    return;
  }
  if (DO(p, fetch_of(p, k->id), needs_of(p, k), dependencies_of(p, k), "fetch k%d", i))
    record_tensor(p, &p->tensor);
}

/* Fetches the kept values that were made in the context. */
static void fetch_kept_of(program *p, const scope *s) {
  for (int i = 0; i < p->n_kept; i++)
    if (p->kept[i].scope == number_of(p, s)) fetch_kept(p, i);
}

/* Computes all values. Those that are still uncomputed when a context ends are dropped, unless they
 * are kept. */
static void compute_all(program *p, scope *s) {
  for (int i = 0; i < s->n; i++)
    if (s->values[i].moves) fetch(p, s, &s->values[i], "what moves statistics");
  if (one_in(p, 3)) fetch_kept_of(p, s);
}

void do_open(program *p) {
  int open = 0;
  for (int i = 0; i < p->n_scopes; i++) open += p->scopes[i].open;
  if (p->n_scopes == CONTEXTS || open == OPEN) return;
  scope *s = &p->scopes[p->n_scopes++];
  *s = (scope){.open = true, .rows = ROWS - (int64_t)below(p, 2), .needs = 0};
  s->evaluation = one_in(p, 6);
  cleave_context_options o = {.size = sizeof o, .evaluation = s->evaluation};
  s->made = DO(p, cleave_context_open(p->rt, &o, &s->id, &p->error), 0, 0, "open c%d%s",
               number_of(p, s), s->evaluation ? " to evaluate" : "");
  allow_other_failure(p);
}

/* Releases futures. A future exists until it is released, unless it was waited for and had a
 * result. */
void release_futures(program *p, scope *s) {
  for (int i = 0; i < s->n; i++) (void)cleave_future_release(p->rt, s->values[i].future, NULL);
  for (int i = 0; i < s->n_losses; i++)
    (void)cleave_future_release(p->rt, s->losses[i].future, NULL);
}

void do_close(program *p, scope *s) {
  p->in = s;
  compute_all(p, s);
  s->open = false;
  int c = number_of(p, s);
  bool waits = !one_in(p, 3) || s->undecided;
  if (!s->made) {
    skip(p, "close");
    return;
  }
  uint32_t passes = p->stand->passes ? p->stand->passes(p->stand->user, s->id.id) : 0;
  if (passes > s->passes)
    DO(p, impossible(p, "workers had %u backwards of %u", passes, s->passes), 0, 0, "close c%d", c);
  else if (waits)
    DO(p, closed(p, s->id), s->needs, 0, "close c%d", c);
  else
    DO(p, cleave_context_end(p->rt, s->id, &p->error), s->needs, 0, "end c%d", c);
  release_futures(p, s);
  allow_other_failure(p);
}

/* ---- kept values ----------------------------------------------------------------------------- */

void keep(program *p, scope *s, const value *v) {
  kept_value *k = &p->kept[p->n_kept];
  *k = (kept_value){.rows = s->rows, .wide = v->wide, .scope = number_of(p, s)};
  k->place = v->stage < 0 ? 0 : p->stages[v->stage].place;
  p->n_kept++;
  if (!v->ref.id) {
    skip(p, "keep");
    return;
  }
  DO(p, cleave_keep(p->rt, v->ref, &k->id, &p->error), s->needs, 0, "c%d: k%d keeps v%d",
     number_of(p, s), p->n_kept - 1, (int)(v - s->values));
}

static void do_keep(program *p, scope *s) {
  const value *v = any_value(p, s, p->wide && one_in(p, 3));
  if (v && p->n_kept < KEPT) keep(p, s, v);
}

static void do_use(program *p, scope *s) {
  int i = p->n_kept ? (int)below(p, (uint32_t)p->n_kept) : 0;
  if (!p->n_kept || p->kept[i].rows != s->rows || s->n == VALUES) return;
  kept_value *k = &p->kept[i];
  value *v = &s->values[s->n++];
  *v = (value){.stage = -1, .wide = k->wide};
  s->needs |= needs_of(p, k);
  s->depends_on |= dependencies_of(p, k) | s->needs;
  spread_dependencies_to_norms(p, s);
  if (!s->made || !k->id.id) {
    skip(p, "use");
    return;
  }
  DO(p, cleave_kept_use(p->rt, s->id, k->id, &v->ref, &p->error), s->needs, 0, "c%d: v%d is k%d",
     number_of(p, s), s->n - 1, i);
}

static void do_fetch_kept(program *p) {
  if (p->n_kept) fetch_kept(p, (int)below(p, (uint32_t)p->n_kept));
}

void do_release_kept(program *p, int index) {
  kept_value k = p->kept[index];
  if (one_in(p, 2)) fetch_kept(p, index);
  p->kept[index] = p->kept[--p->n_kept];
  if (!k.id.id) {
    skip(p, "release kept");
    return;
  }
  DO(p, cleave_kept_release(p->rt, k.id, &p->error), needs_of(p, &k), 0, "release k%d", index);
}

/* ---- backward and steps ---------------------------------------------------------------------- */

void read_leaf_gradient(program *p, scope *s, const value *v) {
  if (!v->ref.id) {
    skip(p, "gradient");
    return;
  }
  if (DO(p, cleave_leaf_gradient(p->rt, v->ref, &p->tensor, &p->error), s->needs, s->depends_on,
         "c%d: gradient of v%d", number_of(p, s), (int)(v - s->values)))
    record_tensor(p, &p->tensor);
}

void read_weight_gradient(program *p, scope *s, int module) {
  const stage *m = &p->stages[module];
  const char *name = cleave_module_weight_name(m->module, below(p, 2));
  if (!name) return;
  if (!s->made)
    skip(p, "gradient");
  else if (DO(p, cleave_gradient(p->rt, s->id, m->module, name, 0, &p->tensor, &p->error),
              s->needs | bit(m->place), s->depends_on, "c%d: gradient of m%d %s", number_of(p, s),
              module, name))
    record_tensor(p, &p->tensor);
}

/* Reads some gradients of the context: a leaf's and a parameter's. */
void read_gradients(program *p, scope *s) {
  int leaf = (int)below(p, VALUES);
  if (leaf < s->n && s->values[leaf].gradient && !s->values[leaf].released)
    read_leaf_gradient(p, s, &s->values[leaf]);
  read_weight_gradient(p, s, (int)below(p, (uint32_t)p->n_stages));
}

/* Records that parameters changed: values computed before may have no backward any more. */
void note_weights_changed(program *p) {
  for (int i = 0; i < p->n_scopes; i++) p->scopes[i].old = true;
}

bool moves_statistics(const program *p, const scope *s) {
  for (int i = 0; i < p->n_stages && !s->evaluation; i++)
    if ((s->stages & bit((uint32_t)i)) && p->stages[i].kind == NORM) return true;
  return false;
}

/* Runs a backward from the n last losses. */
void backward(program *p, scope *s, const float *weights, size_t n, bool retain) {
  cleave_reference roots[LOSSES] = {{0}};
  bool there = s->made;
  for (size_t i = 0; i < n; i++) {
    roots[i] = s->losses[s->n_losses - 1 - (int)i].ref;
    there &= roots[i].id != 0;
  }
  const cleave_backward_options o = {.size = sizeof o, .weights = weights, .retain = retain};
  s->passed = true;
  s->passes++;
  if (!there)
    skip(p, "backward");
  else
    DO(p, passed(p, s->id, roots, n, &o), s->needs, s->depends_on, "c%d: backward from %zu%s",
       number_of(p, s), n, retain ? ", retaining" : "");
}

/* Fetches all values before the context may fail, because it is not defined which of them exist
 * then. */
void fetch_all(program *p, scope *s) {
  for (int i = 0; i < s->n; i++)
    if (!s->values[i].released) fetch(p, s, &s->values[i], "what a failure may overtake");
  for (int i = 0; i < s->n_losses; i++) fetch(p, s, &s->losses[i], "a loss likewise");
  fetch_kept_of(p, s);
}

/* Runs a backward. If it fails, its context ends; whether its statistics and its step are rolled
 * back then depends on time, so numbers that depend on them are not compared. */
static void do_backward(program *p, scope *s) {
  if (s->old && (moves_statistics(p, s) || s->undecided)) return;
  static const float unequal[] = {0.5f, 1.5f};
  bool weighted = one_in(p, 3), retain = one_in(p, 3);
  int n = 1 + (int)below(p, 2);
  while (s->n_losses < n && s->n + 3 <= VALUES) do_loss(p, s);
  if (s->n_losses < n) return;
  if (s->old) fetch_all(p, s);
  backward(p, s, weighted ? unequal : NULL, (size_t)n, retain);
  if (s->old)
    s->needs |= s->depends_on; /* all later statements report whether the context has failed */
  read_gradients(p, s);
}

/* Runs a backward from a module's value, with a gradient of the program. */
static void do_backward_from(program *p, scope *s) {
  static float numbers[ROWS * WIDEST_WIDTH];
  value *v = any_value(p, s, false);
  if (!v || (s->old && (moves_statistics(p, s) || s->undecided))) return;
  if (s->old) fetch_all(p, s);
  size_t n = (size_t)(s->rows * NARROW_WIDTH);
  for (size_t i = 0; i < n; i++) numbers[i] = (float)below(p, 2001) / 1000 - 1;
  const cleave_tensor given = CLEAVE_TENSOR_F32(numbers, s->rows, NARROW_WIDTH);
  const cleave_backward_options o = {.size = sizeof o, .gradients = &given, .retain = one_in(p, 3)};
  s->passed = true;
  s->passes++;
  if (!s->made || !v->ref.id)
    skip(p, "backward");
  else
    DO(p, cleave_backward_with(p->rt, s->id, &v->ref, 1, &o, &p->error), s->needs, s->depends_on,
       "c%d: backward from a gradient of v%d", number_of(p, s), (int)(v - s->values));
  if (s->old) s->needs |= s->depends_on;
  read_gradients(p, s);
}

static void note_list(program *p, cleave_gradients *list) {
  for (size_t i = 0; i < list->n; i++) record_tensor(p, &list->items[i].tensor);
  cleave_gradients_free(list);
}

static void do_list(program *p, scope *s) {
  cleave_gradients list;
  if (!s->made)
    skip(p, "gradients");
  else if (DO(p, cleave_gradients_read(p->rt, s->id, 0, &list, &p->error), s->needs, s->depends_on,
              "c%d: all gradients", number_of(p, s)))
    note_list(p, &list);
}

/* Writes a gradient that is not finite, which prevents the step. */
static void do_write_gradient(program *p, scope *s) {
  int module = (int)below(p, (uint32_t)p->n_stages);
  const stage *m = &p->stages[module];
  const char *name = cleave_module_weight_name(m->module, below(p, 2));
  float factor = one_in(p, 6) ? INFINITY : 0.5f;
  if (!s->passed || !name) return;
  bool read =
      s->made && DO(p, cleave_gradient(p->rt, s->id, m->module, name, 0, &p->tensor, &p->error),
                    s->needs | bit(m->place), s->depends_on, "c%d: gradient of m%d %s",
                    number_of(p, s), module, name);
  if (!read) {
    skip(p, "write of a gradient");
    return;
  }
  for (size_t i = 0; i < cleave_tensor_count(&p->tensor); i++)
    ((float *)p->tensor.data)[i] *= factor;
  DO(p, cleave_gradient_write(p->rt, s->id, m->module, name, &p->tensor, 0, &p->error),
     s->needs | bit(m->place), s->depends_on, "c%d: write gradient of m%d %s", number_of(p, s),
     module, name);
}

/* Records the effects of a step on values, modules and contexts. */
/* Records that a module's parameters change: its earlier calls may have no backward there. */
static void change(program *p, int i, uint32_t depends_on) {
  p->stages[i].depends_on |= depends_on;
  for (int k = 0; k < p->n_scopes; k++)
    if (p->scopes[k].stages & bit((uint32_t)i)) p->scopes[k].depends_on |= depends_on;
}

void steps(program *p, scope *s, int optimizer) {
  s->undecided |= !p->final;
  note_weights_changed(p);
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].optimizer == optimizer && (s->stages & bit((uint32_t)i)))
      change(p, i, s->depends_on);
}

static void do_step(program *p, scope *s) {
  cleave_step_result stepped = {0};
  int o = p->n_optimizers ? (int)below(p, (uint32_t)p->n_optimizers) : 0;
  if (!p->n_optimizers || !s->passed) return;
  steps(p, s, o);
  if (!s->made) {
    skip(p, "step");
    return;
  }
  if (DO(p, stepped_by(p, p->optimizers[o], s->id, &stepped), s->needs, s->depends_on,
         "c%d: step of optimizer %d", number_of(p, s), o)) {
    p->step_given_up = false;
    record_bytes(p, &stepped.norm, sizeof stepped.norm);
    record_bytes(p, &stepped.applied, sizeof stepped.applied);
  }
  allow_other_failure(p);
}

void do_in_scope(program *p, scope *s) {
  static void (*const all[])(program *, scope *) = {
      do_call,     do_call,    do_call, do_call,  do_call,          do_loss, do_backward,
      do_backward, do_step,    do_step, do_fetch, do_fetch,         do_keep, do_use,
      do_use,      do_release, do_send, do_close, do_backward_from, do_list, do_write_gradient,
      do_cancel};
  all[below(p, CLV_COUNT(all))](p, s);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Reads a weight. The first use of a module makes its node dial the others. A weight that could not
 * be read is not written either. */
static bool read_weight(program *p, int i, const char *name) {
  stage *m = &p->stages[i];
  if (!m->placed && m->place) m->depends_on |= EVERYBODY;
  bool read =
      DO(p, weight_of(p, m->module, name), bit(m->place), m->depends_on, "read m%d %s", i, name);
  called(p, m, read);
  allow_other_failure(p);
  if (read) record_tensor(p, &p->tensor);
  return read;
}

/* Writes the values that were read, with another first number. */
static bool write_back(program *p, int i, const char *name, bool read) {
  const stage *m = &p->stages[i];
  float number = (float)below(p, 100) / 100;
  note_weights_changed(p);
  if (!read) {
    skip(p, "write");
    return false;
  }
  if (p->tensor.dtype == CLEAVE_F32) *(float *)p->tensor.data = number;
  bool good = DO(p, cleave_weight_write(p->rt, m->module, name, &p->tensor, 0, &p->error),
                 bit(m->place), 0, "write m%d %s", i, name);
  allow_other_failure(p);
  return good;
}

bool write_weight(program *p, int module) {
  const char *name = cleave_module_weight_name(p->stages[module].module, 0);
  return name && write_back(p, module, name, read_weight(p, module, name));
}

static void do_weight(program *p) {
  int i = (int)below(p, (uint32_t)p->n_stages);
  const char *name = cleave_module_weight_name(p->stages[i].module, below(p, 4));
  bool writes = one_in(p, 3) && p->stages[i].kind != NORM;
  if (!name) return;
  bool read = read_weight(p, i, name);
  if (writes) write_back(p, i, name, read);
}

void do_outside(program *p) {
  uint32_t what = below(p, 6);
  if (what == 0 && p->n_kept)
    do_release_kept(p, (int)below(p, (uint32_t)p->n_kept));
  else if (what == 1)
    do_fetch_kept(p);
  else if (what == 2)
    do_rejoin(p);
  else if (what == 3)
    do_replace(p);
  else
    do_weight(p);
}

static void read_state(program *p, stage *m, cleave_state_kind what) {
  cleave_state state = {0};
  bool good = DO(p, cleave_state_read(p->rt, m->module, what, 0, &state, &p->error), bit(m->place),
                 m->depends_on, "state %d of m%d", (int)what, (int)(m - p->stages));
  allow_other_failure(p);
  for (size_t i = 0; good && i < state.n; i++) record_tensor(p, &state.items[i].tensor);
  cleave_state_free(&state);
}

void do_read_state(program *p, stage *m) {
  if (cleave_state_count(m->module, CLEAVE_STATE_WEIGHTS)) read_state(p, m, CLEAVE_STATE_WEIGHTS);
  if (m->optimizer >= 0) read_state(p, m, CLEAVE_STATE_OPTIMIZER);
}
