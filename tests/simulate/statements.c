/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes the statements of random programs (program_int.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/simulate/program_int.h"

/* ---- statements that make and fetch values --------------------------------------------------- */

static value *find_value(program *p, scope *s, bool is_wide) {
  value *candidates[MAX_VALUES];
  uint32_t n = 0;
  for (int i = 0; i < s->n; i++)
    if (!s->values[i].is_released && s->values[i].is_wide == is_wide)
      candidates[n++] = &s->values[i];
  return n ? candidates[draw_below(p, n)] : NULL;
}

value *add_leaf(program *p, scope *s, bool is_wide, bool has_gradient) {
  static float numbers[MAX_ROWS * WIDEST_WIDTH];
  int64_t width = is_wide ? p->wide_width : NARROW_WIDTH;
  size_t n = (size_t)(s->n_rows * width);
  for (size_t i = 0; i < n; i++) numbers[i] = (float)draw_below(p, 2001) / 1000 - 1;
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, s->n_rows, width);
  value *v = &s->values[s->n++];
  *v =
      (value){.stage = -1, .is_wide = is_wide, .needs_gradient = has_gradient && !s->is_evaluation};
  if (!s->is_made)
    skip_statement(p, "leaf");
  else
    DO(p, cleave_leaf(p->rt, s->id, &t, v->needs_gradient, &v->ref, &p->last_error),
       s->needed_places, 0, "c%d: v%d is a leaf%s", index_of_scope(p, s), s->n - 1,
       v->needs_gradient ? " with a gradient" : "");
  return v;
}

static value *find_or_make_value(program *p, scope *s, bool is_wide) {
  value *v = find_value(p, s, is_wide);
  return v ? v : add_leaf(p, s, is_wide, happens_once_in(p, 2));
}

/* Records that the running statistics which the context changes depend on all places of the
 * context. */
static void spread_dependencies_to_norms(program *p, const scope *s) {
  for (int i = 0; i < p->n_stages && !s->is_evaluation; i++)
    if ((s->stages & place_bit((uint32_t)i)) && p->stages[i].kind == NORM)
      p->stages[i].depended_places |= s->depended_places;
}

/* Records dependencies of a call. The context's numbers depend on the state of the module; running
 * statistics that the call changes depend on the context. */
static void record_call_dependencies(program *p, scope *s, stage *m, int index) {
  s->needed_places |= place_bit(m->place);
  /* the first call of a module makes its node dial the other nodes */
  if (!m->is_placed && m->place) s->depended_places |= ALL_PLACES;
  s->depended_places |= s->needed_places | m->depended_places;
  s->stages |= place_bit((uint32_t)index);
  spread_dependencies_to_norms(p, s);
}

/* Records a call of a module. The first call loads the module, and its node dials the other
 * nodes. */
static void record_first_call(program *p, stage *m, bool is_good) {
  if (!m->is_placed) mark_may_report_other_failure(p);
  m->is_placed |= is_good;
}

static void call_module(program *p, scope *s, int index, const value *const *inputs,
                        const value *after, value *ret) {
  stage *m = &p->stages[index];
  cleave_reference in[2];
  int n = get_n_inputs(m->kind), c = index_of_scope(p, s);
  bool inputs_exist = s->is_made && (!after || after->ref.id),
       async = happens_once_in(p, 6) && !after;
  cleave_call_options o = {
      .size = sizeof o, .to_program = happens_once_in(p, 5), .recompute = happens_once_in(p, 8)};
  if (p->leaves_input_unsent) {
    async = false;
    o.position = 1;
    o.backward_position = 2;
    o.weight_position = 4;
  }
  if (after) o.after = after->ref;
  uint32_t to = draw_below(p, SIM_PLACES);
  if (happens_once_in(p, 5) && (!o.to_program || to == 0)) o.send_to = place_name(p, to);
  for (int i = 0; i < n; i++) inputs_exist &= (in[i] = inputs[i]->ref).id != 0;
  if (o.send_to) s->needed_places |= place_bit(to);
  record_call_dependencies(p, s, m, index);
  *ret = (value){.stage = index,
                 .needs_wait = async,
                 .is_wide = has_wide_output(m->kind),
                 .changes_statistics = m->kind == NORM && !s->is_evaluation};
  if (!inputs_exist) {
    skip_statement(p, "call");
    return;
  }
  if (async)
    DO(p,
       cleave_rpc_async(p->rt, s->id, m->module, in, (size_t)n, &ret->ref, &ret->future,
                        &p->last_error),
       s->needed_places, 0, "c%d: call m%d, awaited", c, index);
  else
    DO(p, cleave_call_with(p->rt, s->id, m->module, in, (size_t)n, &o, &ret->ref, &p->last_error),
       s->needed_places, 0, "c%d: call m%d%s%s%s", c, index, after ? " after another" : "",
       o.send_to ? " for " : "", o.send_to ? o.send_to : "");
  record_first_call(p, m, ret->ref.id != 0);
}

value *add_call(program *p, scope *s, int index, const value *const *inputs, const value *after) {
  value output;
  call_module(p, s, index, inputs, after, &output);
  s->values[s->n] = output;
  return &s->values[s->n++];
}

static void do_call_module(program *p, scope *s) {
  int index = 1 + (int)draw_below(p, (uint32_t)p->n_stages - 1);
  stage_kind k = p->stages[index].kind;
  if (k == LOSS || s->n + 3 > MAX_VALUES) return;
  const value *in[2] = {find_or_make_value(p, s, has_wide_input(k)),
                        find_or_make_value(p, s, has_wide_input(k))};
  add_call(p, s, index, in, NULL);
}

void add_loss(program *p, scope *s, const value *prediction) {
  const value *in[2] = {prediction, add_leaf(p, s, false, false)};
  value output;
  call_module(p, s, 0, in, NULL, &output);
  s->losses[s->n_losses++] = output;
}

void do_compute_loss(program *p, scope *s) {
  if (s->n_losses == MAX_LOSSES || s->n + 3 > MAX_VALUES) return;
  add_loss(p, s, find_or_make_value(p, s, false));
}

void fetch_value(program *p, scope *s, value *v, const char *label) {
  bool was_awaited = v->needs_wait;
  v->changes_statistics = v->needs_wait = false;
  if (!v->ref.id) {
    skip_statement(p, "fetch");
    return;
  }
  cleave_status status;
  begin_statement(p);
  if (was_awaited)
    status = cleave_wait(p->rt, v->future, 0, &p->last_tensor, &p->last_error);
  else
    status = fetch_to_here(p, v->ref);
  if (end_statement(p, status, s->needed_places, s->depended_places, "c%d: %s %s",
                    index_of_scope(p, s), was_awaited ? "wait for" : "fetch", label))
    record_tensor(p, &p->last_tensor);
}

static void do_fetch_value(program *p, scope *s) {
  char label[16];
  bool fetches_loss = s->n_losses && happens_once_in(p, 3);
  int n = fetches_loss ? s->n_losses : s->n;
  if (!n) return;
  int i = (int)draw_below(p, (uint32_t)n);
  value *v = fetches_loss ? &s->losses[i] : &s->values[i];
  if (v->is_released) return;
  snprintf(label, sizeof label, "%s%d", fetches_loss ? "loss " : "v", i);
  fetch_value(p, s, v, label);
}

void release_value(program *p, scope *s, value *v) {
  if (v->is_released || v->needs_wait || v->changes_statistics) return;
  v->is_released = true;
  if (!v->ref.id) {
    skip_statement(p, "release");
    return;
  }
  int i = (int)(v - s->values);
  if (i % 4) /* most calls are forgotten: freed as soon as no value with a handle needs them */
    DO(p, cleave_call_forget(p->rt, v->ref, &p->last_error), s->needed_places, 0, "c%d: forget v%d",
       index_of_scope(p, s), i);
  else
    DO(p, cleave_reference_release(p->rt, v->ref, &p->last_error), s->needed_places, 0,
       "c%d: release v%d", index_of_scope(p, s), i);
}

static void do_release_value(program *p, scope *s) {
  if (s->n) release_value(p, s, &s->values[draw_below(p, (uint32_t)s->n)]);
}

static void do_send_value(program *p, scope *s) {
  uint32_t to = draw_below(p, SIM_PLACES);
  int i = s->n ? (int)draw_below(p, (uint32_t)s->n) : 0;
  if (!s->n || s->values[i].is_released) return;
  s->needed_places |= place_bit(to);
  s->depended_places |= s->needed_places;
  spread_dependencies_to_norms(p, s);
  if (!s->values[i].ref.id) {
    skip_statement(p, "send");
    return;
  }
  DO(p, cleave_send_to(p->rt, s->values[i].ref, place_name(p, to), &p->last_error),
     s->needed_places, 0, "c%d: send v%d to %s", index_of_scope(p, s), i, place_name(p, to));
}

/* ---- statements that open and close contexts ------------------------------------------------- */

static uint32_t needed_places_of(const program *p, const kept_value *k) {
  return place_bit(k->place) | p->scopes[k->scope_index].needed_places;
}

static uint32_t depended_places_of(const program *p, const kept_value *k) {
  return place_bit(k->place) | p->scopes[k->scope_index].depended_places;
}

void fetch_kept_value(program *p, int i) {
  const kept_value *k = &p->kept_values[i];
  if (!k->id.id) {
    skip_statement(p, "fetch kept");
    return;
  }
  if (DO(p, fetch_kept_to_here(p, k->id), needed_places_of(p, k), depended_places_of(p, k),
         "fetch k%d", i))
    record_tensor(p, &p->last_tensor);
}

/* Fetches the kept values that were made in the context. */
static void fetch_kept_values_of(program *p, const scope *s) {
  for (int i = 0; i < p->n_kept_values; i++)
    if (p->kept_values[i].scope_index == index_of_scope(p, s)) fetch_kept_value(p, i);
}

/* Fetches the values whose calls change running statistics, so that these calls run. When the
 * context ends, a call that has not run is dropped, unless its value is kept. Sometimes also
 * fetches the context's kept values. */
static void fetch_values_before_close(program *p, scope *s) {
  for (int i = 0; i < s->n; i++)
    if (s->values[i].changes_statistics) fetch_value(p, s, &s->values[i], "what moves statistics");
  if (happens_once_in(p, 3)) fetch_kept_values_of(p, s);
}

void do_open_context(program *p) {
  int n_open = 0;
  for (int i = 0; i < p->n_scopes; i++) n_open += p->scopes[i].is_open;
  if (p->n_scopes == MAX_CONTEXTS || n_open == MAX_OPEN_CONTEXTS) return;
  scope *s = &p->scopes[p->n_scopes++];
  *s = (scope){.is_open = true, .n_rows = MAX_ROWS - (int64_t)draw_below(p, 2), .needed_places = 0};
  s->is_evaluation = happens_once_in(p, 6);
  cleave_context_options o = {.size = sizeof o, .evaluation = s->is_evaluation};
  s->is_made = DO(p, cleave_context_open(p->rt, &o, &s->id, &p->last_error), 0, 0, "open c%d%s",
                  index_of_scope(p, s), s->is_evaluation ? " to evaluate" : "");
  mark_may_report_other_failure(p);
}

/* Releases the futures of a context's values and losses. A future that was waited for and had a
 * result does not exist any more. */
void release_futures(program *p, scope *s) {
  for (int i = 0; i < s->n; i++) (void)cleave_future_release(p->rt, s->values[i].future, NULL);
  for (int i = 0; i < s->n_losses; i++)
    (void)cleave_future_release(p->rt, s->losses[i].future, NULL);
}

void do_close_context(program *p, scope *s) {
  p->line_scope = s;
  fetch_values_before_close(p, s);
  s->is_open = false;
  int c = index_of_scope(p, s);
  bool waits_for_close = !happens_once_in(p, 3) || s->has_undecided_step;
  if (!s->is_made) {
    skip_statement(p, "close");
    return;
  }
  uint32_t n_backwards = p->environment->count_backwards
                             ? p->environment->count_backwards(p->environment->user, s->id.id)
                             : 0;
  if (n_backwards > s->n_backwards)
    DO(p, report_impossible(p, "workers had %u backwards of %u", n_backwards, s->n_backwards), 0, 0,
       "close c%d", c);
  else if (waits_for_close)
    DO(p, close_context(p, s->id), s->needed_places, 0, "close c%d", c);
  else
    DO(p, cleave_context_end(p->rt, s->id, &p->last_error), s->needed_places, 0, "end c%d", c);
  release_futures(p, s);
  mark_may_report_other_failure(p);
}

/* ---- statements about kept values ------------------------------------------------------------ */

void keep_value(program *p, scope *s, const value *v) {
  kept_value *k = &p->kept_values[p->n_kept_values];
  *k =
      (kept_value){.n_rows = s->n_rows, .is_wide = v->is_wide, .scope_index = index_of_scope(p, s)};
  k->place = v->stage < 0 ? 0 : p->stages[v->stage].place;
  p->n_kept_values++;
  if (!v->ref.id) {
    skip_statement(p, "keep");
    return;
  }
  DO(p, cleave_keep(p->rt, v->ref, &k->id, &p->last_error), s->needed_places, 0,
     "c%d: k%d keeps v%d", index_of_scope(p, s), p->n_kept_values - 1, (int)(v - s->values));
}

static void do_keep_value(program *p, scope *s) {
  const value *v = find_value(p, s, p->is_wide && happens_once_in(p, 3));
  if (v && p->n_kept_values < MAX_KEPT_VALUES) keep_value(p, s, v);
}

static void do_use_kept_value(program *p, scope *s) {
  int i = p->n_kept_values ? (int)draw_below(p, (uint32_t)p->n_kept_values) : 0;
  if (!p->n_kept_values || p->kept_values[i].n_rows != s->n_rows || s->n == MAX_VALUES) return;
  kept_value *k = &p->kept_values[i];
  value *v = &s->values[s->n++];
  *v = (value){.stage = -1, .is_wide = k->is_wide};
  s->needed_places |= needed_places_of(p, k);
  s->depended_places |= depended_places_of(p, k) | s->needed_places;
  spread_dependencies_to_norms(p, s);
  if (!s->is_made || !k->id.id) {
    skip_statement(p, "use");
    return;
  }
  DO(p, cleave_kept_use(p->rt, s->id, k->id, &v->ref, &p->last_error), s->needed_places, 0,
     "c%d: v%d is k%d", index_of_scope(p, s), s->n - 1, i);
}

static void do_fetch_kept(program *p) {
  if (p->n_kept_values) fetch_kept_value(p, (int)draw_below(p, (uint32_t)p->n_kept_values));
}

void do_release_kept_value(program *p, int index) {
  kept_value k = p->kept_values[index];
  if (happens_once_in(p, 2)) fetch_kept_value(p, index);
  p->kept_values[index] = p->kept_values[--p->n_kept_values];
  if (!k.id.id) {
    skip_statement(p, "release kept");
    return;
  }
  DO(p, cleave_kept_release(p->rt, k.id, &p->last_error), needed_places_of(p, &k), 0, "release k%d",
     index);
}

/* ---- statements that run backwards and steps ------------------------------------------------- */

void read_leaf_gradient(program *p, scope *s, const value *v) {
  if (!v->ref.id) {
    skip_statement(p, "gradient");
    return;
  }
  if (DO(p, cleave_leaf_gradient(p->rt, v->ref, &p->last_tensor, &p->last_error), s->needed_places,
         s->depended_places, "c%d: gradient of v%d", index_of_scope(p, s), (int)(v - s->values)))
    record_tensor(p, &p->last_tensor);
}

void read_weight_gradient(program *p, scope *s, int module) {
  const stage *m = &p->stages[module];
  const char *name = cleave_module_weight_name(m->module, draw_below(p, 2));
  if (!name) return;
  if (!s->is_made)
    skip_statement(p, "gradient");
  else if (DO(p, cleave_gradient(p->rt, s->id, m->module, name, 0, &p->last_tensor, &p->last_error),
              s->needed_places | place_bit(m->place), s->depended_places, "c%d: gradient of m%d %s",
              index_of_scope(p, s), module, name))
    record_tensor(p, &p->last_tensor);
}

/* Reads some gradients of the context: a leaf's and a parameter's. */
void read_gradients(program *p, scope *s) {
  int leaf = (int)draw_below(p, MAX_VALUES);
  if (leaf < s->n && s->values[leaf].needs_gradient && !s->values[leaf].is_released)
    read_leaf_gradient(p, s, &s->values[leaf]);
  read_weight_gradient(p, s, (int)draw_below(p, (uint32_t)p->n_stages));
}

/* Records that parameters changed. A value that was computed before the change may have no backward
 * any more. */
void note_weights_changed(program *p) {
  for (int i = 0; i < p->n_scopes; i++) p->scopes[i].has_changed_weights = true;
}

bool changes_statistics(const program *p, const scope *s) {
  for (int i = 0; i < p->n_stages && !s->is_evaluation; i++)
    if ((s->stages & place_bit((uint32_t)i)) && p->stages[i].kind == NORM) return true;
  return false;
}

/* Runs a backward from the n last losses. */
void do_backward_from_losses(program *p, scope *s, const float *weights, size_t n, bool retain) {
  cleave_reference roots[MAX_LOSSES] = {{0}};
  bool are_losses_made = s->is_made;
  for (size_t i = 0; i < n; i++) {
    roots[i] = s->losses[s->n_losses - 1 - (int)i].ref;
    are_losses_made &= roots[i].id != 0;
  }
  const cleave_backward_options o = {.size = sizeof o, .weights = weights, .retain = retain};
  s->has_backward = true;
  s->n_backwards++;
  if (!are_losses_made)
    skip_statement(p, "backward");
  else
    DO(p, run_backward(p, s->id, roots, n, &o), s->needed_places, s->depended_places,
       "c%d: backward from %zu%s", index_of_scope(p, s), n, retain ? ", retaining" : "");
}

/* Fetches all values before a statement that may fail the context, because it is not defined which
 * of the values exist after such a failure. */
void fetch_all_values(program *p, scope *s) {
  for (int i = 0; i < s->n; i++)
    if (!s->values[i].is_released) fetch_value(p, s, &s->values[i], "what a failure may overtake");
  for (int i = 0; i < s->n_losses; i++) fetch_value(p, s, &s->losses[i], "a loss likewise");
  fetch_kept_values_of(p, s);
}

/* Runs a backward. If the backward fails, the context ends. Then it depends on time whether running
 * statistics and a step of the context are rolled back, so numbers that depend on these are not
 * compared. */
static void do_backward(program *p, scope *s) {
  if (s->has_changed_weights && (changes_statistics(p, s) || s->has_undecided_step)) return;
  static const float loss_weights[] = {0.5f, 1.5f};
  bool is_weighted = happens_once_in(p, 3), retain = happens_once_in(p, 3);
  int n = 1 + (int)draw_below(p, 2);
  while (s->n_losses < n && s->n + 3 <= MAX_VALUES) do_compute_loss(p, s);
  if (s->n_losses < n) return;
  if (s->has_changed_weights) fetch_all_values(p, s);
  do_backward_from_losses(p, s, is_weighted ? loss_weights : NULL, (size_t)n, retain);
  /* If weights have changed, the backward may fail the context. Later statements then report that
   * failure, or the loss of any place on which the context depends. */
  if (s->has_changed_weights) s->needed_places |= s->depended_places;
  read_gradients(p, s);
}

/* Runs a backward from a module's value, with a gradient of the program. */
static void do_backward_from(program *p, scope *s) {
  static float numbers[MAX_ROWS * WIDEST_WIDTH];
  value *v = find_value(p, s, false);
  if (!v || (s->has_changed_weights && (changes_statistics(p, s) || s->has_undecided_step))) return;
  if (s->has_changed_weights) fetch_all_values(p, s);
  size_t n = (size_t)(s->n_rows * NARROW_WIDTH);
  for (size_t i = 0; i < n; i++) numbers[i] = (float)draw_below(p, 2001) / 1000 - 1;
  const cleave_tensor root_gradient = CLEAVE_TENSOR_F32(numbers, s->n_rows, NARROW_WIDTH);
  const cleave_backward_options o = {
      .size = sizeof o, .gradients = &root_gradient, .retain = happens_once_in(p, 3)};
  s->has_backward = true;
  s->n_backwards++;
  if (!s->is_made || !v->ref.id)
    skip_statement(p, "backward");
  else
    DO(p, cleave_backward_with(p->rt, s->id, &v->ref, 1, &o, &p->last_error), s->needed_places,
       s->depended_places, "c%d: backward from a gradient of v%d", index_of_scope(p, s),
       (int)(v - s->values));
  if (s->has_changed_weights) s->needed_places |= s->depended_places;
  read_gradients(p, s);
}

static void record_gradients(program *p, cleave_gradients *gradients) {
  for (size_t i = 0; i < gradients->n; i++) record_tensor(p, &gradients->items[i].tensor);
  cleave_gradients_free(gradients);
}

static void do_read_gradient_list(program *p, scope *s) {
  cleave_gradients gradients;
  if (!s->is_made)
    skip_statement(p, "gradients");
  else if (DO(p, cleave_gradients_read(p->rt, s->id, 0, &gradients, &p->last_error),
              s->needed_places, s->depended_places, "c%d: all gradients", index_of_scope(p, s)))
    record_gradients(p, &gradients);
}

/* Reads a gradient and writes it back multiplied by 0.5 or, once in six times, by infinity, which
 * prevents the step. */
static void do_write_gradient(program *p, scope *s) {
  int module = (int)draw_below(p, (uint32_t)p->n_stages);
  const stage *m = &p->stages[module];
  const char *name = cleave_module_weight_name(m->module, draw_below(p, 2));
  float factor = happens_once_in(p, 6) ? INFINITY : 0.5f;
  if (!s->has_backward || !name) return;
  s->has_written_gradient = true;
  bool was_read =
      s->is_made &&
      DO(p, cleave_gradient(p->rt, s->id, m->module, name, 0, &p->last_tensor, &p->last_error),
         s->needed_places | place_bit(m->place), s->depended_places, "c%d: gradient of m%d %s",
         index_of_scope(p, s), module, name);
  if (!s->is_made) skip_statement(p, "gradient");
  if (!was_read) {
    skip_statement(p, "write of a gradient");
    return;
  }
  for (size_t i = 0; i < cleave_tensor_count(&p->last_tensor); i++)
    ((float *)p->last_tensor.data)[i] *= factor;
  DO(p, cleave_gradient_write(p->rt, s->id, m->module, name, &p->last_tensor, 0, &p->last_error),
     s->needed_places | place_bit(m->place), s->depended_places, "c%d: write gradient of m%d %s",
     index_of_scope(p, s), module, name);
}

/* Functions that record the effects of a step on values, modules and contexts. */

/* Records that a step changes the parameters of module i: the module, and all contexts that have
 * called it, now depend on the places in depends_on. */
static void record_weight_change(program *p, int i, uint32_t depends_on) {
  p->stages[i].depended_places |= depends_on;
  for (int k = 0; k < p->n_scopes; k++)
    if (p->scopes[k].stages & place_bit((uint32_t)i)) p->scopes[k].depended_places |= depends_on;
}

void record_step(program *p, scope *s, int optimizer) {
  s->has_undecided_step |= !p->has_final_steps;
  note_weights_changed(p);
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].optimizer == optimizer && (s->stages & place_bit((uint32_t)i)))
      record_weight_change(p, i, s->depended_places);
}

static void do_step_optimizer(program *p, scope *s) {
  cleave_step_result step_result = {0};
  int o = p->n_optimizers ? (int)draw_below(p, (uint32_t)p->n_optimizers) : 0;
  if (!p->n_optimizers || !s->has_backward) return;
  record_step(p, s, o);
  if (!s->is_made) {
    skip_statement(p, "step");
    return;
  }
  if (DO(p, step_optimizer(p, p->optimizers[o], s->id, &step_result), s->needed_places,
         s->depended_places, "c%d: step of optimizer %d", index_of_scope(p, s), o)) {
    p->has_cancelled_step = false;
    record_bytes(p, &step_result.norm, sizeof step_result.norm);
    record_bytes(p, &step_result.applied, sizeof step_result.applied);
  }
  mark_may_report_other_failure(p);
}

void do_statement_in_context(program *p, scope *s) {
  static void (*const all[])(program *, scope *) = {
      do_call_module,    do_call_module,    do_call_module,    do_call_module,
      do_call_module,    do_compute_loss,   do_backward,       do_backward,
      do_step_optimizer, do_step_optimizer, do_fetch_value,    do_fetch_value,
      do_keep_value,     do_use_kept_value, do_use_kept_value, do_release_value,
      do_send_value,     do_close_context,  do_backward_from,  do_read_gradient_list,
      do_write_gradient, do_cancel_future};
  all[draw_below(p, CLV_COUNT(all))](p, s);
}

/* ---- statements that read and write weights -------------------------------------------------- */

/* Reads a weight. Returns false if this failed; write_back_weight then writes no weight. The first
 * use of a module makes its node dial the other nodes. */
static bool read_weight(program *p, int i, const char *name) {
  stage *m = &p->stages[i];
  if (!m->is_placed && m->place) m->depended_places |= ALL_PLACES;
  bool was_read = DO(p, read_weight_tensor(p, m->module, name), place_bit(m->place),
                     m->depended_places, "read m%d %s", i, name);
  record_first_call(p, m, was_read);
  mark_may_report_other_failure(p);
  if (was_read) record_tensor(p, &p->last_tensor);
  return was_read;
}

/* Writes a weight back that read_weight has read into p->last_tensor, with another first number. */
static bool write_back_weight(program *p, int i, const char *name, bool was_read_before) {
  const stage *m = &p->stages[i];
  float number = (float)draw_below(p, 100) / 100;
  note_weights_changed(p);
  if (!was_read_before) {
    skip_statement(p, "write");
    return false;
  }
  if (p->last_tensor.dtype == CLEAVE_F32) *(float *)p->last_tensor.data = number;
  bool is_good =
      DO(p, cleave_weight_write(p->rt, m->module, name, &p->last_tensor, 0, &p->last_error),
         place_bit(m->place), 0, "write m%d %s", i, name);
  mark_may_report_other_failure(p);
  return is_good;
}

bool write_weight(program *p, int module) {
  const char *name = cleave_module_weight_name(p->stages[module].module, 0);
  return name && write_back_weight(p, module, name, read_weight(p, module, name));
}

static void do_read_weight(program *p) {
  int i = (int)draw_below(p, (uint32_t)p->n_stages);
  const char *name = cleave_module_weight_name(p->stages[i].module, draw_below(p, 4));
  bool writes = happens_once_in(p, 3) && p->stages[i].kind != NORM;
  if (!name) return;
  bool was_read = read_weight(p, i, name);
  if (writes) write_back_weight(p, i, name, was_read);
}

void do_statement_without_context(program *p) {
  uint32_t choice = draw_below(p, 6);
  if (choice == 0 && p->n_kept_values)
    do_release_kept_value(p, (int)draw_below(p, (uint32_t)p->n_kept_values));
  else if (choice == 1)
    do_fetch_kept(p);
  else if (choice == 2)
    do_rejoin_workers(p);
  else if (choice == 3)
    do_replace_module(p);
  else
    do_read_weight(p);
}

static void read_state(program *p, stage *m, cleave_state_kind kind) {
  cleave_state state = {0};
  bool is_good = DO(p, cleave_state_read(p->rt, m->module, kind, 0, &state, &p->last_error),
                    place_bit(m->place), m->depended_places, "state %d of m%d", (int)kind,
                    (int)(m - p->stages));
  mark_may_report_other_failure(p);
  for (size_t i = 0; is_good && i < state.n; i++) record_tensor(p, &state.items[i].tensor);
  cleave_state_free(&state);
}

void do_read_state(program *p, stage *m) {
  if (cleave_state_count(m->module, CLEAVE_STATE_WEIGHTS)) read_state(p, m, CLEAVE_STATE_WEIGHTS);
  if (m->optimizer >= 0) read_state(p, m, CLEAVE_STATE_OPTIMIZER);
}
