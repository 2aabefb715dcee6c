/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes plots: fixed sequences of statements, which reach states that random statements seldom
 * reach.
 */
#include "tests/simulate/program_int.h"

/* Returns the index of a module of the kind, or -1. */
static int find_module(const program *p, stage_kind k) {
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].kind == k) return i;
  return -1;
}

static bool has_space_for(const scope *s, int n_values, int n_losses) {
  return s->n + n_values <= MAX_VALUES && s->n_losses + n_losses <= MAX_LOSSES;
}

/* ---- a CALL whose tensors come late ---------------------------------------------------------- */

/* Makes a CALL with two inputs, of which one is still being sent, and releases the other input
 * meanwhile. Then fetches the result, or runs a backward through the CALL. */
static void overtake_late_call(program *p, scope *s) {
  int join_index = find_module(p, JOIN_WIDE), narrow_index = find_module(p, NARROW);
  bool has_gradient = !s->is_evaluation && happens_once_in(p, 2);
  if (!p->is_wide || !has_space_for(s, 6, 1)) return;
  const value *leaves[2] = {add_leaf(p, s, true, false), add_leaf(p, s, true, false)};
  value *output = add_call(p, s, join_index, leaves, NULL);
  fetch_value(p, s, output, "what is released next");
  const value *inputs[2] = {output, add_leaf(p, s, true, has_gradient)};
  value *late_call = add_call(p, s, join_index, inputs, NULL);
  p->skips_pause = happens_once_in(p, 2);
  release_value(p, s, output);
  if (!has_gradient) {
    p->skips_pause = false;
    fetch_value(p, s, late_call, "what came late");
    return;
  }
  const value *late_calls[] = {late_call};
  add_loss(p, s, add_call(p, s, narrow_index, late_calls, NULL));
  do_backward_from_losses(p, s, NULL, 1, false);
  p->skips_pause = false;
  read_leaf_gradient(p, s, inputs[1]);
}

/* ---- a sum of many gradients ----------------------------------------------------------------- */

/* Returns the index of a random module with one narrow input, a narrow output and no running
 * statistics. */
static int draw_narrow_module(program *p) {
  int suitable_modules[MAX_MODULES];
  uint32_t n = 0;
  for (int i = 1; i < p->n_stages; i++)
    if (p->stages[i].kind <= DROP && p->stages[i].kind != NORM && p->stages[i].kind != JOIN)
      suitable_modules[n++] = i;
  return suitable_modules[draw_below(p, n)];
}

/* Uses one value in modules of several nodes, whose gradients are then added in a fixed order. */
static void use_value_at_several_nodes(program *p, scope *s) {
  static const float weights[] = {1, 300, 0.007f, 11};
  size_t n = 3 + draw_below(p, 2);
  if (s->is_evaluation || !has_space_for(s, 10, (int)n)) return;
  const value *leaf = add_leaf(p, s, false, true);
  const value *shared_value = add_call(p, s, 1, &leaf, NULL);
  for (size_t i = 0; i < n; i++)
    add_loss(p, s, add_call(p, s, draw_narrow_module(p), &shared_value, NULL));
  do_backward_from_losses(p, s, weights, n, happens_once_in(p, 3));
  read_leaf_gradient(p, s, leaf);
  read_weight_gradient(p, s, 1);
}

/* ---- a context that fails while one of its calls waits --------------------------------------- */

static scope *open_other_context(program *p) {
  int n_scopes_before = p->n_scopes;
  p->line_scope = NULL;
  do_open_context(p);
  return p->line_scope = p->n_scopes == n_scopes_before ? NULL : &p->scopes[n_scopes_before];
}

static scope *open_training_context(program *p) {
  scope *s = open_other_context(p);
  return s && !s->is_evaluation ? s : NULL;
}

/* Returns the index of a trained module that has no running statistics and is at another place than
 * module 1; -1: none. */
static int draw_failing_module(program *p) {
  for (int i = 2; i < p->n_stages; i++) {
    stage_kind k = p->stages[i].kind;
    bool is_suitable = k == LINEAR || k == RELU || k == DROP;
    if (is_suitable && p->stages[i].place != p->stages[1].place) return i;
  }
  return -1;
}

/* Makes the backward of one module fail, because its parameters' gradients would be added in
 * another order than the positions of its calls give. A call of module 2, which waits for the
 * backward of a call of module 1, must then never run. After a fault the call of module 2 is left
 * out, because the backward might not fail. */
static void fail_one_backward(program *p, scope *s, int failing_index) {
  static const value none = {.stage = -1};
  const value *leaf = add_leaf(p, s, false, true);
  for (int i = 0; i < 2; i++) {
    p->leaves_input_unsent = i == 1;
    const value *output = add_call(p, s, failing_index, &leaf, NULL);
    p->leaves_input_unsent = false;
    add_loss(p, s, output);
    fetch_value(p, s, &s->losses[i], i ? "loss 1" : "loss 0");
  }
  bool has_both_losses = s->losses[0].ref.id && s->losses[1].ref.id;
  const value *first_call = add_call(p, s, 1, &leaf, NULL);
  add_call(p, s, 2, &leaf, has_both_losses ? first_call : &none)->changes_statistics = false;
  do_backward_from_losses(p, s, NULL, 2, false);
}

/* Fails a backward in another context, in which a call of module 2 waits. While that context is
 * open, this context must still be able to call module 2. */
static void fail_and_continue(program *p, scope *s) {
  int failing_index = draw_failing_module(p);
  if (!p->has_statistics_beside_second || failing_index < 0 || !has_space_for(s, 2, 0)) return;
  scope *other_scope = open_training_context(p);
  if (!other_scope) return;
  fail_one_backward(p, other_scope, failing_index);
  p->line_scope = s;
  const value *leaf = add_leaf(p, s, false, false);
  fetch_value(p, s, add_call(p, s, 2, &leaf, NULL), "of a module that another has left");
  do_close_context(p, other_scope);
}

/* ---- a kept value whose context ends while other nodes compute what it needs ----------------- */

static void keep_and_close_context(program *p, scope *s) {
  (void)s;
  scope *other_scope = p->n_kept_values < MAX_KEPT_VALUES ? open_other_context(p) : NULL;
  if (!other_scope) return;
  const value *v = add_leaf(p, other_scope, false, false);
  p->skips_pause = true;
  for (uint32_t n_left = 2 + draw_below(p, 4); n_left > 0; n_left--)
    v = add_call(p, other_scope, draw_narrow_module(p), &v, NULL);
  keep_value(p, other_scope, v);
  do_close_context(p, other_scope);
  p->skips_pause = false;
  fetch_kept_value(p, p->n_kept_values - 1);
}

void do_fixed_sequence(program *p, scope *s) {
  static void (*const all[])(program *, scope *) = {use_value_at_several_nodes, fail_and_continue,
                                                    keep_and_close_context,     overtake_late_call,
                                                    overtake_late_call,         overtake_late_call};
  all[draw_below(p, p->is_wide ? CLV_COUNT(all) : 3)](p, s);
}
