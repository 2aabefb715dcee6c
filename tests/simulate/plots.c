/* SPDX-License-Identifier: Apache-2.0
 *
 * Plots: statements in a row that lay open what chance alone seldom brings together.
 */
#include "tests/simulate/program_int.h"

/* Returns the index of a module of the kind, or -1. */
static int module_of(const program *p, stage_kind k) {
  for (int i = 0; i < p->n_stages; i++)
    if (p->stages[i].kind == k) return i;
  return -1;
}

static bool has_room(const scope *s, int values, int losses) {
  return s->n + values <= VALUES && s->n_losses + losses <= LOSSES;
}

/* ---- a CALL whose tensors come late ---------------------------------------------------------- */

/* Continues after a CALL whose leaf is still being sent: ends the context of its other input, or
 * runs a backward. */
static void overtake(program *p, scope *s) {
  int join = module_of(p, JOIN_WIDE), narrow = module_of(p, NARROW);
  bool learns = !s->evaluation && one_in(p, 2);
  if (!p->wide || !has_room(s, 6, 1)) return;
  const value *leaves[2] = {new_leaf(p, s, true, false), new_leaf(p, s, true, false)};
  value *made = new_call(p, s, join, leaves, NULL);
  fetch(p, s, made, "what is released next");
  const value *mixed[2] = {made, new_leaf(p, s, true, learns)};
  value *late = new_call(p, s, join, mixed, NULL);
  p->hurries = one_in(p, 2);
  release(p, s, made);
  if (!learns) {
    p->hurries = false;
    fetch(p, s, late, "what came late");
    return;
  }
  const value *one[] = {late};
  new_loss(p, s, new_call(p, s, narrow, one, NULL));
  backward(p, s, NULL, 1, false);
  p->hurries = false;
  read_leaf_gradient(p, s, mixed[1]);
}

/* ---- a sum of many gradients ----------------------------------------------------------------- */

/* Returns a module with one narrow input and output and without statistics, or -1. */
static int any_branch(program *p) {
  int fit[MODULES];
  uint32_t n = 0;
  for (int i = 1; i < p->n_stages; i++)
    if (p->stages[i].kind <= DROP && p->stages[i].kind != NORM && p->stages[i].kind != JOIN)
      fit[n++] = i;
  return fit[below(p, n)];
}

/* Has one value used by modules of several nodes, whose gradients are added in a fixed order. */
static void fan(program *p, scope *s) {
  static const float weights[] = {1, 300, 0.007f, 11};
  size_t n = 3 + below(p, 2);
  if (s->evaluation || !has_room(s, 10, (int)n)) return;
  const value *leaf = new_leaf(p, s, false, true);
  const value *shared = new_call(p, s, 1, &leaf, NULL);
  for (size_t i = 0; i < n; i++) new_loss(p, s, new_call(p, s, any_branch(p), &shared, NULL));
  backward(p, s, weights, n, one_in(p, 3));
  read_leaf_gradient(p, s, leaf);
  read_weight_gradient(p, s, 1);
}

/* ---- a context that fails with a call that waits --------------------------------------------- */

static scope *open_another(program *p) {
  int before = p->n_scopes;
  p->in = NULL;
  do_open(p);
  return p->in = p->n_scopes == before ? NULL : &p->scopes[before];
}

static scope *open_learning(program *p) {
  scope *s = open_another(p);
  return s && !s->evaluation ? s : NULL;
}

/* Returns a trained module without statistics at another place than the second module, or -1. */
static int any_failing(program *p) {
  for (int i = 2; i < p->n_stages; i++) {
    stage_kind k = p->stages[i].kind;
    bool fits = k == LINEAR || k == RELU || k == DROP;
    if (fits && p->stages[i].place != p->stages[1].place) return i;
  }
  return -1;
}

/* The backward of one module fails, as the gradients of its parameters would be added in another
 * order than the positions say, and a call of another module that keeps an order is never to run.
 * After a fault that call is not made where the backward might not fail. */
static void fail(program *p, scope *s, int failing) {
  static const value none = {.stage = -1};
  const value *leaf = new_leaf(p, s, false, true);
  for (int i = 0; i < 2; i++) {
    p->leaves_gap = i == 1;
    const value *made = new_call(p, s, failing, &leaf, NULL);
    p->leaves_gap = false;
    new_loss(p, s, made);
    fetch(p, s, &s->losses[i], i ? "loss 1" : "loss 0");
  }
  bool fails = s->losses[0].ref.id && s->losses[1].ref.id;
  const value *first = new_call(p, s, 1, &leaf, NULL);
  new_call(p, s, 2, &leaf, fails ? first : &none)->moves = false;
  backward(p, s, NULL, 2, false);
}

/* While the context is open, other contexts can use the module. */
static void fail_and_go_on(program *p, scope *s) {
  int failing = any_failing(p);
  if (!p->neighbours || failing < 0 || !has_room(s, 2, 0)) return;
  scope *other = open_learning(p);
  if (!other) return;
  fail(p, other, failing);
  p->in = s;
  const value *leaf = new_leaf(p, s, false, false);
  fetch(p, s, new_call(p, s, 2, &leaf, NULL), "of a module that another has left");
  do_close(p, other);
}

/* ---- a kept value whose context ends while other nodes compute what it needs ----------------- */

static void keep_and_close(program *p, scope *s) {
  (void)s;
  scope *other = p->n_kept < KEPT ? open_another(p) : NULL;
  if (!other) return;
  const value *v = new_leaf(p, other, false, false);
  p->hurries = true;
  for (uint32_t left = 2 + below(p, 4); left > 0; left--)
    v = new_call(p, other, any_branch(p), &v, NULL);
  keep(p, other, v);
  do_close(p, other);
  p->hurries = false;
  fetch_kept(p, p->n_kept - 1);
}

void do_plot(program *p, scope *s) {
  static void (*const all[])(program *, scope *) = {fan,      fail_and_go_on, keep_and_close,
                                                    overtake, overtake,       overtake};
  all[below(p, p->wide ? CLV_COUNT(all) : 3)](p, s);
}
