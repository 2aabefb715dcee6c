/* SPDX-License-Identifier: Apache-2.0
 *
 * What the C API offers to programs that train by pipelines: windows, weighted roots, final steps,
 * schedules, state_dicts, a say in what leaves the process, runtimes without a thread. Usage:
 *   api_pipeline SESSION A B direct|via_master|alone threads|single    what must not depend on A and B
 *   api_pipeline SESSION A B TRANSFER DRIVING options    what is asked of runtimes of their own
 *   api_pipeline SESSION A B TRANSFER DRIVING only       B's worker is down
 *   api_pipeline SESSION A B TRANSFER DRIVING lost PID   PID is B's process
 *   api_pipeline SESSION A B TRANSFER DRIVING window WIDTH    steps until its input ends
 *   api_pipeline SESSION A B TRANSFER DRIVING artifact SHA256 DAMAGED
 */
#include <pthread.h>
#include <time.h>

#include "api_int.h"

static const char *session, *transfer;
static bool single;

static const cleave_reference none = {0};

/* ---- tools ------------------------------------------------------------------------------------------ */

static bool open_runtime(const cleave_options *with, cleave_runtime **ret) {
  cleave_options o = with ? *with : (cleave_options){0};
  o.deadline_ms = 20000;
  MUST(cleave_open(session, &o, ret, e));
  return true;
}

/* Everything that was opened in it has been given back. */
static bool close_runtime(cleave_runtime *r) {
  cleave_leaks left;
  MUST(cleave_close(r, 0, &left, e));
  CHECK(left.contexts + left.references + left.futures == 0);
  return true;
}

/* The rest of a test on a runtime of its own. */
#define IN_RUNTIME(options, body)                                             \
  do {                                                                        \
    cleave_runtime *outer_ = rt;                                              \
    bool fine_ = open_runtime((options), &rt) && (body) && close_runtime(rt); \
    rt = outer_;                                                              \
    if (!fine_) return false;                                                 \
  } while (0)

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* x -> a, which waits for the backward of `after` -> b -> loss. */
static bool run_after(const net *n, cleave_context c, unsigned seed, cleave_reference after,
                      cleave_reference *ret_h, cleave_reference *ret_loss) {
  float x[12], t[8];
  fill(x, 12, seed);
  fill(t, 8, seed + 1);
  cleave_reference in, target, h, y;
  const cleave_call_options how = {.after = after};
  DO(leaf(c, x, 4, 3, false, &in));
  DO(leaf(c, t, 4, 2, false, &target));
  MUST(cleave_call_with(rt, c, n->a, &in, 1, &how, &h, e));
  MUST(cleave_call(rt, c, n->b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n->loss, (cleave_reference[]){y, target}, 2, ret_loss, e));
  if (ret_h) *ret_h = h;
  return true;
}

static bool copy_gradient(cleave_context c, cleave_module *m, const char *name, float *to,
                          size_t n) {
  cleave_tensor g = {0};
  DO(gradient(c, m, name, &g));
  CHECK(cleave_tensor_count(&g) == n);
  memcpy(to, g.data, n * sizeof *to);
  note(&g);
  cleave_tensor_done(&g);
  return true;
}

static bool copy_weight(cleave_module *m, const char *name, float *to, size_t n) {
  cleave_tensor w = {0};
  DO(read_weight(m, name, &w));
  CHECK(cleave_tensor_count(&w) == n);
  memcpy(to, w.data, n * sizeof *to);
  note(&w);
  cleave_tensor_done(&w);
  return true;
}

/* Weights, or gradients, of both modules of the small network. */
typedef struct numbers {
  float a[15], b[10];
} numbers;

static bool same(const numbers *p, const numbers *q) { return memcmp(p, q, sizeof *p) == 0; }

static bool gradients_of(cleave_context c, const net *n, numbers *ret) {
  return copy_gradient(c, n->a, "0.weight", ret->a, 15) &&
         copy_gradient(c, n->b, "0.weight", ret->b, 10);
}

static bool weights_of(const net *n, numbers *ret) {
  return copy_weight(n->a, "0.weight", ret->a, 15) && copy_weight(n->b, "0.weight", ret->b, 10);
}

/* ---- windows ---------------------------------------------------------------------------------------- */

enum { MICRO = 6 };
static const float shares[MICRO] = {0.25f, 0.25f, 0.125f, 0.125f, 0.125f, 0.125f};

/* Six micro-batches; at most `width` of them between the forward and the backward of a; 0: all. */
static bool windowed(const net *n, int width, cleave_context *c, cleave_reference *loss) {
  cleave_reference h[MICRO];
  DO(open_context(c));
  for (int i = 0; i < MICRO; i++) {
    bool waits = width && i >= width;
    DO(run_after(n, *c, 20 + (unsigned)i, waits ? h[i - width] : none, &h[i], &loss[i]));
  }
  return true;
}

static bool a_window_changes_no_bit_of_the_gradients(void) {
  net n;
  numbers found[3];
  DO(make_net("window", "master", &n));
  for (int width = 0; width < 3; width++) {
    cleave_context c;
    cleave_reference loss[MICRO];
    DO(windowed(&n, width, &c, loss));
    MUST(cleave_backward_weighted(rt, c, loss, shares, MICRO, false, 0, e));
    DO(gradients_of(c, &n, &found[width]));
    DO(close_context(c));
  }
  CHECK(same(&found[0], &found[1]) && same(&found[0], &found[2]));
  CHECK(found[0].a[0] != 0 && found[0].b[0] != 0);
  return true;
}

enum { LONG = 100 };

/* More calls than one frame tells of, most of them before they can run. */
static bool a_long_pipeline_has_the_bits_of_one_without_a_window(void) {
  net n;
  numbers found[2];
  DO(make_net("long", "master", &n));
  for (int width = 0; width < 2; width++) {
    cleave_context c;
    cleave_reference h[LONG], loss[LONG];
    float weights[LONG];
    DO(open_context(&c));
    for (int i = 0; i < LONG; i++) {
      weights[i] = 0.01f;
      DO(run_after(&n, c, (unsigned)i, width && i ? h[i - 1] : none, &h[i], &loss[i]));
    }
    MUST(cleave_backward_weighted(rt, c, loss, weights, LONG, false, 0, e));
    DO(gradients_of(c, &n, &found[width]));
    DO(close_context(c));
  }
  CHECK(same(&found[0], &found[1]));
  return true;
}

/* Each backward lets exactly one more call run. */
static bool a_call_after_a_backward_comes_no_sooner(void) {
  net n;
  cleave_context c;
  cleave_reference h[3], loss[3];
  cleave_tensor out = {0};
  DO(make_net("after", "master", &n));
  DO(open_context(&c));
  for (int i = 0; i < 3; i++)
    DO(run_after(&n, c, 20 + (unsigned)i, i ? h[i - 1] : none, &h[i], &loss[i]));
  for (int i = 0; i < 3; i++) {
    MUST(cleave_to_here(rt, h[i], 0, &out, e));
    if (i < 2) REFUSED(cleave_to_here(rt, h[i + 1], 60, &out, e), CLEAVE_DEADLINE, "in time");
    DO(backward(c, loss[i], false));
  }
  cleave_tensor_done(&out);
  return close_context(c);
}

static bool a_value_is_sent_where_it_will_be_needed(void) {
  net n;
  cleave_module *there;
  cleave_context c;
  cleave_reference x, t, h, y, loss;
  cleave_tensor out = {0};
  numbers asked, sent;
  float in[12], target[8];
  fill(in, 12, 31);
  fill(target, 8, 32);
  DO(make_net("send", "master", &n));
  cleave_module_options o = {.name = "send there", .at = at_b, .seed = 7, .local_only = true};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 5);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &there, e));
  for (int i = 0; i < 2; i++) {
    const cleave_call_options to_b = {.send_to = i ? at_b : NULL};
    const cleave_call_options home = {.send_to = i ? "master" : NULL};
    DO(open_context(&c));
    DO(leaf(c, in, 4, 3, false, &x));
    DO(leaf(c, target, 4, 2, false, &t));
    MUST(cleave_call_with(rt, c, n.a, &x, 1, &to_b, &h, e));
    if (i) { /* it counts as being there, which local_only asks for */
      MUST(cleave_call_with(rt, c, there, &h, 1, &home, &y, e));
    } else {
      if (strcmp(at_a, at_b) != 0)
        REFUSED(cleave_call(rt, c, there, &h, 1, &y, e), CLEAVE_PRECONDITION, "cleave_send_to");
      MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
    }
    MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, t}, 2, &loss, e));
    MUST(cleave_to_here(rt, y, 0, &out, e));
    MUST(cleave_to_here(rt, h, 0, &out, e));
    DO(backward(c, loss, false));
    net used = {.a = n.a, .b = i ? there : n.b};
    DO(gradients_of(c, &used, i ? &sent : &asked));
    DO(close_context(c));
  }
  CHECK(same(&asked, &sent));
  cleave_tensor_done(&out);
  return true;
}

static bool what_a_call_cannot_wait_for_is_refused(void) {
  net n, m;
  cleave_context c, other, evaluating;
  cleave_reference x, y, h, far, spent, loss, refused, eval_x, eval_h;
  cleave_context_options evaluates = {.evaluation = true};
  float in[12] = {1, 2, 3};
  DO(make_net("wait", "master", &n));
  DO(make_net("wait not", "master", &m));
  DO(open_context(&c));
  DO(open_context(&other));
  DO(leaf(c, in, 4, 3, false, &x));
  MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
  DO(run_after(&n, other, 5, none, &far, &loss));
#define AFTER(value) (&(cleave_call_options){.after = (value)})
#define NOT_AFTER(value, part) \
  REFUSED(cleave_call_with(rt, c, n.a, &x, 1, AFTER(value), &refused, e), CLEAVE_PRECONDITION, part)
  NOT_AFTER(far, "no call of this context at its node");
  NOT_AFTER(x, "no call of this context at its node");
  if (strcmp(at_a, at_b) != 0) {
    MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
    NOT_AFTER(y, "no call of this context at its node");
  }
  DO(run_after(&n, c, 6, none, &spent, &loss));
  DO(backward(c, loss, false));
  NOT_AFTER(spent, "a call without a backward to come");
  MUST(cleave_release(rt, spent, e));
  REFUSED(cleave_call_with(rt, c, n.a, &x, 1, AFTER(spent), &refused, e), CLEAVE_NOT_FOUND,
          "released");
  REFUSED(cleave_call_with(rt, c, n.a, &x, 1, &(cleave_call_options){.send_to = "w9"}, &refused, e),
          CLEAVE_NOT_FOUND, "'w9' is neither master nor a worker");
  MUST(cleave_context_open(rt, &evaluates, &evaluating, e));
  DO(leaf(evaluating, in, 4, 3, false, &eval_x));
  MUST(cleave_call(rt, evaluating, n.a, &eval_x, 1, &eval_h, e));
  REFUSED(cleave_call_with(rt, evaluating, n.a, &eval_x, 1, AFTER(eval_h), &refused, e),
          CLEAVE_PRECONDITION, "a call without a backward to come");
  DO(close_context(evaluating));
  DO(close_context(other));
  DO(run_after(&n, c, 7, h, NULL, &loss)); /* nothing of it has hurt the context */
  return close_context(c);
}

static bool roots_against_a_window_are_refused(void) {
  net n;
  cleave_context c;
  cleave_reference h, loss[2];
  DO(make_net("against", "master", &n));
  DO(open_context(&c));
  DO(run_after(&n, c, 1, none, &h, &loss[0]));
  DO(run_after(&n, c, 2, h, NULL, &loss[1]));
  REFUSED(cleave_backward(rt, c, &loss[1], 1, false, 0, e), CLEAVE_PRECONDITION, "backward of");
  const cleave_reference reversed[] = {loss[1], loss[0]};
  REFUSED(cleave_backward(rt, c, reversed, 2, false, 0, e), CLEAVE_PRECONDITION, "backward of");
  MUST(cleave_backward(rt, c, loss, 2, false, 0, e)); /* the refusals have left it as it was */
  return close_context(c);
}

static bool nothing_changes_while_calls_wait_for_a_backward(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c, other;
  cleave_reference h[3], loss[3], l;
  cleave_tensor w = {0};
  DO(make_net("change", "master", &n));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(read_weight(n.a, "0.weight", &w));
  DO(open_context(&other));
  DO(run_after(&n, other, 1, none, NULL, &l));
  DO(backward(other, l, false));
  DO(open_context(&c));
  for (int i = 0; i < 3; i++)
    DO(run_after(&n, c, 2 + (unsigned)i, i ? h[i - 1] : none, &h[i], &loss[i]));
  for (int i = 0; i < 2; i++) { /* two calls wait, then one */
    REFUSED(cleave_step(rt, o, other, 0, NULL, e), CLEAVE_PRECONDITION, "wait for its backward");
    REFUSED(cleave_weight_write(rt, n.a, "0.weight", &w, 0, e), CLEAVE_PRECONDITION,
            "wait for its backward");
    DO(backward(c, loss[i], false));
  }
  MUST(cleave_step(rt, o, other, 0, NULL, e));
  DO(backward(c, loss[2], false));
  DO(close_context(other));
  cleave_tensor_done(&w);
  return close_context(c);
}

/* ---- weighted roots ------------------------------------------------------------------------------------ */

static bool weighted_roots_are_the_gradients_of_the_weighted_loss(void) {
  net n;
  numbers each[3], all;
  cleave_context c;
  cleave_reference loss[3];
  const float weights[] = {0.5f, 0.25f, 0.25f};
  DO(make_net("shares", "master", &n));
  for (int i = 0; i < 3; i++) {
    DO(open_context(&c));
    DO(run_after(&n, c, 40 + (unsigned)i, none, NULL, &loss[0]));
    DO(backward(c, loss[0], false));
    DO(gradients_of(c, &n, &each[i]));
    DO(close_context(c));
  }
  DO(open_context(&c));
  for (int i = 0; i < 3; i++) DO(run_after(&n, c, 40 + (unsigned)i, none, NULL, &loss[i]));
  MUST(cleave_backward_weighted(rt, c, loss, weights, 3, false, 0, e));
  DO(gradients_of(c, &n, &all));
  for (int k = 0; k < 15; k++)
    CHECK(near(all.a[k], 0.5f * each[0].a[k] + 0.25f * each[1].a[k] + 0.25f * each[2].a[k]));
  for (int k = 0; k < 10; k++)
    CHECK(near(all.b[k], 0.5f * each[0].b[k] + 0.25f * each[1].b[k] + 0.25f * each[2].b[k]));
  return close_context(c);
}

/* One root: a power of two scales every number exactly. */
static bool a_weight_scales_and_none_is_one(void) {
  static const float one[] = {1}, quarter[] = {0.25f};
  static const float *const weights[] = {NULL, one, quarter};
  net n;
  numbers found[3];
  DO(make_net("scale", "master", &n));
  for (int i = 0; i < 3; i++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_after(&n, c, 50, none, NULL, &loss));
    MUST(cleave_backward_weighted(rt, c, &loss, weights[i], 1, false, 0, e));
    DO(gradients_of(c, &n, &found[i]));
    DO(close_context(c));
  }
  CHECK(same(&found[0], &found[1]));
  for (int k = 0; k < 15; k++) CHECK(found[2].a[k] == 0.25f * found[0].a[k]);
  return true;
}

static bool weights_that_are_none_are_refused(void) {
  net n;
  cleave_context c;
  cleave_reference loss[2];
  const float bad[][2] = {{1, 0}, {NAN, 1}, {1, INFINITY}};
  DO(make_net("no weight", "master", &n));
  DO(open_context(&c));
  for (int i = 0; i < 2; i++) DO(run_after(&n, c, 60 + (unsigned)i, none, NULL, &loss[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    REFUSED(cleave_backward_weighted(rt, c, loss, bad[i], 2, false, 0, e), CLEAVE_INVALID,
            "it must be finite and not 0");
  loss[1] = loss[0];
  REFUSED(cleave_backward_weighted(rt, c, loss, NULL, 2, false, 0, e), CLEAVE_INVALID,
          "is given twice");
  DO(backward(c, loss[0], false));
  return close_context(c);
}

/* ---- final steps --------------------------------------------------------------------------------------- */

typedef enum ending { CLOSE, END } ending;

static bool train(const net *n, cleave_optimizer *const *opt, int n_opt, unsigned from, int steps,
                  ending how) {
  for (int i = 0; i < steps; i++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_after(n, c, from + (unsigned)i, none, NULL, &loss));
    DO(backward(c, loss, false));
    for (int k = 0; k < n_opt; k++) MUST(cleave_step(rt, opt[k], c, 0, NULL, e));
    if (how == END)
      MUST(cleave_context_end(rt, c, e));
    else
      DO(close_context(c));
  }
  return true;
}

static bool final_steps_give_the_same_bits(void) {
  static const char *const names[] = {"kept", "final closed", "final ended"};
  numbers found[3];
  for (int i = 0; i < 3; i++) {
    net n;
    cleave_optimizer *o;
    DO(make_net(names[i], "master", &n));
    cleave_group g = {.modules = (cleave_module *[]){n.a, n.b},
                      .n_modules = 2,
                      .kind = CLEAVE_ADAM,
                      .lr = 0.05,
                      .final = i > 0};
    MUST(cleave_optimizer_new(rt, &g, 1, 0.5, &o, e));
    DO(train(&n, &o, 1, 70, 20, i == 2 ? END : CLOSE));
    DO(weights_of(&n, &found[i]));
    cleave_optimizer_release(o);
  }
  CHECK(same(&found[0], &found[1]) && same(&found[0], &found[2]));
  return true;
}

/* On one worker the decision would ride on the end of the context if it were one; here it is not. */
static bool rates_and_optimisers_that_differ_step_right(void) {
  static const char *const names[] = {"two rates kept", "two rates final", "two kept", "two final"};
  numbers found[4];
  for (int i = 0; i < 4; i++) {
    net n;
    bool last = i % 2;
    cleave_optimizer *o[2];
    DO(make_net(names[i], "master", &n));
    const cleave_group g[] = {
        {.modules = &n.a, .n_modules = 1, .lr = 0.5, .momentum = 0.9, .final = last},
        {.modules = &n.b, .n_modules = 1, .lr = 0.01, .momentum = 0.9, .final = last}};
    MUST(cleave_optimizer_new(rt, &g[0], i < 2 ? 2 : 1, 0, &o[0], e));
    if (i >= 2) MUST(cleave_optimizer_new(rt, &g[1], 1, 0, &o[1], e));
    DO(train(&n, o, i < 2 ? 1 : 2, 90, 5, last ? END : CLOSE));
    DO(weights_of(&n, &found[i]));
  }
  for (int i = 1; i < 4; i++) CHECK(same(&found[0], &found[i]));
  return true;
}

static bool one_of_two_learns(void) {
  net n;
  cleave_optimizer *o;
  numbers before, after;
  DO(make_net("learns", "master", &n));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(weights_of(&n, &before));
  DO(train(&n, &o, 1, 1, 1, CLOSE));
  DO(weights_of(&n, &after));
  CHECK(memcmp(before.a, after.a, sizeof before.a) != 0);
  CHECK(memcmp(before.b, after.b, sizeof before.b) == 0);
  return true;
}

/* In a runtime without any other optimiser. */
static bool a_module_without_an_optimiser_may_take_part(void) {
  IN_RUNTIME((&(cleave_options){.single_thread = single}), one_of_two_learns());
  return true;
}

/* Of two modules of which one learns in the context, and of an optimiser that is not asked. */
static bool only_what_a_final_step_names_moves(void) {
  net n, other;
  cleave_optimizer *o, *unasked;
  numbers before, after, others[2];
  DO(make_net("named", "master", &n));
  DO(make_net("unnamed", "master", &other));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5, .final = true};
  cleave_group u = {.modules = &n.b, .n_modules = 1, .lr = 0.5, .final = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  MUST(cleave_optimizer_new(rt, &u, 1, 0, &unasked, e));
  DO(weights_of(&n, &before));
  DO(weights_of(&other, &others[0]));
  DO(train(&n, &o, 1, 100, 2, END));
  DO(train(&other, NULL, 0, 100, 1, END));
  DO(weights_of(&n, &after));
  DO(weights_of(&other, &others[1]));
  CHECK(memcmp(before.a, after.a, sizeof before.a) != 0);
  CHECK(memcmp(before.b, after.b, sizeof before.b) == 0 && same(&others[0], &others[1]));
  return true;
}

static bool a_final_step_that_is_not_finite_moves_nothing(void) {
  net n;
  cleave_optimizer *o;
  cleave_stepped done;
  numbers before, after;
  cleave_context c;
  cleave_reference x, t, h, y, loss;
  float in[12] = {1, 2, 3}, target[8] = {INFINITY};
  DO(make_net("final infinite", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5, .final = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(weights_of(&n, &before));
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  DO(leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
  MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, t}, 2, &loss, e));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, o, c, 0, &done, e));
  CHECK(!done.applied && done.number == 1);
  MUST(cleave_context_end(rt, c, e));
  DO(weights_of(&n, &after));
  CHECK(same(&before, &after));
  return true;
}

static bool final_groups_and_others_do_not_mix(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  DO(make_net("mixed", "master", &n));
  cleave_group g[] = {{.modules = &n.a, .n_modules = 1, .lr = 0.5},
                      {.modules = &n.b, .n_modules = 1, .lr = 0.5, .final = true}};
  REFUSED(cleave_optimizer_new(rt, g, 2, 0, &o, e), CLEAVE_INVALID, "final");
  g[1].final = false; /* nothing of the refused one is left */
  MUST(cleave_optimizer_new(rt, g, 2, 0, &o, e));
  DO(open_context(&c));
  DO(run_after(&n, c, 1, none, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_context_end(rt, c, e)); /* no step: nothing to wait for */
  REFUSED(cleave_context_end(rt, c, e), CLEAVE_NOT_FOUND, "was closed");
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_NOT_FOUND, "was closed");
  return true;
}

/* ---- rates ---------------------------------------------------------------------------------------------- */

enum { STEPS = 6 };
#define C(x) (0.25 * (1 + (x))) /* the cosine's half of the rate 0.5 */
static const struct {
  cleave_schedule schedule;
  double lr[STEPS];
} rates[] = {
    {{.curve = CLEAVE_CONSTANT}, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
    {{.curve = CLEAVE_CONSTANT, .warmup_steps = 4}, {0.125, 0.25, 0.375, 0.5, 0.5, 0.5}},
    {{.curve = CLEAVE_STEPS, .step_size = 2, .gamma = 0.5}, {0.5, 0.5, 0.25, 0.25, 0.125, 0.125}},
    {{.curve = CLEAVE_COSINE, .total_steps = 6},
     {0.5, C(0.86602540378), C(0.5), C(0), C(-0.5), C(-0.86602540378)}},
    {{.curve = CLEAVE_LINEAR, .total_steps = 5}, {0.5, 0.4, 0.3, 0.2, 0.1, 0}},
    {{.curve = CLEAVE_LINEAR, .warmup_steps = 2, .total_steps = 6},
     {0.25, 0.5, 0.5, 0.375, 0.25, 0.125}},
};
#undef C

/* One step of plain SGD of module a alone; it says `lr` and moves each weight by lr times gradient. */
static bool stepped_by(const net *n, cleave_optimizer *o, unsigned seed, double lr,
                       uint64_t number) {
  cleave_context c;
  cleave_reference loss;
  cleave_stepped done;
  float before[15], after[15], g[15];
  DO(copy_weight(n->a, "0.weight", before, 15));
  DO(open_context(&c));
  DO(run_after(n, c, seed, none, NULL, &loss));
  DO(backward(c, loss, false));
  DO(copy_gradient(c, n->a, "0.weight", g, 15));
  MUST(cleave_step(rt, o, c, 0, &done, e));
  CHECK(done.applied && done.number == number && fabs(done.lr - lr) < 1e-9);
  DO(close_context(c));
  DO(copy_weight(n->a, "0.weight", after, 15));
  for (int i = 0; i < 15; i++) CHECK(fabs(after[i] - (before[i] - lr * g[i])) < 1e-6);
  return true;
}

static bool rates_and_weights_follow_the_schedule(void) {
  for (int i = 0; i < (int)(2 * sizeof rates / sizeof *rates); i++) {
    net n;
    char name[32];
    cleave_optimizer *o;
    snprintf(name, sizeof name, "rate %d", i);
    DO(make_net(name, "master", &n));
    cleave_group g = {.modules = &n.a,
                      .n_modules = 1,
                      .lr = 0.5,
                      .schedule = rates[i / 2].schedule,
                      .final = i % 2};
    MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
    for (unsigned k = 0; k < STEPS; k++) DO(stepped_by(&n, o, k, rates[i / 2].lr[k], k + 1));
  }
  return true;
}

static bool steps_and_schedules_can_be_set(void) {
  const cleave_schedule halves = {.curve = CLEAVE_STEPS, .step_size = 1, .gamma = 0.5};
  const cleave_schedule constant = {.curve = CLEAVE_CONSTANT};
  for (int last = 0; last < 2; last++) {
    net n;
    cleave_optimizer *o;
    DO(make_net(last ? "set final" : "set", "master", &n));
    cleave_group g = {
        .modules = &n.a, .n_modules = 1, .lr = 0.5, .schedule = halves, .final = last};
    MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
    cleave_optimizer_set_steps(o, 2);
    DO(stepped_by(&n, o, 1, 0.125, 3));
    DO(stepped_by(&n, o, 2, 0.0625, 4));
    cleave_optimizer_set_schedule(o, &constant);
    DO(stepped_by(&n, o, 3, 0.5, 5));
    cleave_optimizer_set_schedule(o, &halves);
    cleave_optimizer_set_steps(o, 1);
    DO(stepped_by(&n, o, 4, 0.25, 2));
  }
  return true;
}

/* A step that is still to be sent has the rate of the moment it was taken. */
static bool what_is_set_is_for_the_next_step(void) {
  const cleave_schedule halves = {.curve = CLEAVE_STEPS, .step_size = 1, .gamma = 0.5};
  const cleave_schedule constant = {.curve = CLEAVE_CONSTANT};
  for (int steps = 0; steps < 2; steps++) {
    net n;
    cleave_optimizer *o;
    cleave_context c;
    cleave_reference loss;
    float before[15], after[15], g[15];
    DO(make_net(steps ? "next steps" : "next schedule", "master", &n));
    cleave_group group = {
        .modules = &n.a, .n_modules = 1, .lr = 0.5, .schedule = halves, .final = true};
    MUST(cleave_optimizer_new(rt, &group, 1, 0, &o, e));
    cleave_optimizer_set_steps(o, 1);
    DO(copy_weight(n.a, "0.weight", before, 15));
    DO(open_context(&c));
    DO(run_after(&n, c, 1, none, NULL, &loss));
    DO(backward(c, loss, false));
    DO(copy_gradient(c, n.a, "0.weight", g, 15));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    if (steps)
      cleave_optimizer_set_steps(o, 3);
    else
      cleave_optimizer_set_schedule(o, &constant);
    MUST(cleave_context_end(rt, c, e));
    DO(copy_weight(n.a, "0.weight", after, 15));
    for (int i = 0; i < 15; i++) CHECK(fabs(after[i] - (before[i] - 0.25 * g[i])) < 1e-6);
    DO(stepped_by(&n, o, 2, steps ? 0.0625 : 0.5, steps ? 4 : 3));
  }
  return true;
}

/* ---- state_dicts ----------------------------------------------------------------------------------------- */

typedef struct saved {
  cleave_state state[2][2]; /* of a and b: weights, optimiser */
  numbers reached;
} saved;

static bool adam_over(const net *n, uint64_t steps, cleave_optimizer **ret) {
  const cleave_schedule halves = {.curve = CLEAVE_STEPS, .step_size = 2, .gamma = 0.5};
  cleave_group g = {.modules = (cleave_module *[]){n->a, n->b},
                    .n_modules = 2,
                    .kind = CLEAVE_ADAM,
                    .lr = 0.05,
                    .schedule = halves};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, ret, e));
  cleave_optimizer_set_steps(*ret, steps);
  return true;
}

static bool three_steps_and_three_more(saved *s) {
  net n;
  cleave_optimizer *o;
  DO(make_net("saved", "master", &n));
  DO(adam_over(&n, 0, &o));
  DO(train(&n, &o, 1, 200, 3, CLOSE));
  for (int i = 0; i < 4; i++) {
    cleave_state_kind kind = i % 2 ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS;
    cleave_module *m = i / 2 ? n.b : n.a;
    MUST(cleave_state_read(rt, m, kind, 0, &s->state[i / 2][i % 2], e));
    CHECK(s->state[i / 2][i % 2].n == cleave_state_count(m, kind));
    CHECK(s->state[i / 2][i % 2].n == (i % 2 ? 5u : 2u));
  }
  DO(train(&n, &o, 1, 203, 3, CLOSE));
  return weights_of(&n, &s->reached);
}

static bool restored_and_three_more(saved *s) {
  net n;
  cleave_optimizer *o;
  numbers reached;
  DO(make_net("restored", "master", &n));
  DO(adam_over(&n, 3, &o));
  for (int i = 0; i < 4; i++) {
    cleave_state *from = &s->state[i / 2][i % 2];
    MUST(cleave_state_write(rt, i / 2 ? n.b : n.a,
                            i % 2 ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS, from->items,
                            from->n, 0, e));
  }
  DO(train(&n, &o, 1, 203, 3, CLOSE));
  DO(weights_of(&n, &reached));
  CHECK(same(&reached, &s->reached));
  return true;
}

static bool a_state_written_into_another_runtime_goes_on_the_same(void) {
  saved s = {0};
  DO(three_steps_and_three_more(&s));
  IN_RUNTIME(NULL, restored_and_three_more(&s));
  for (int i = 0; i < 4; i++) cleave_state_done(&s.state[i / 2][i % 2]);
  CHECK(s.state[0][0].n == 0 && s.state[0][0].items == NULL);
  return true;
}

static bool state_that_does_not_belong_is_refused_by_name(void) {
  net n;
  cleave_optimizer *o;
  cleave_state state = {0};
  float zeros[15] = {0};
  int64_t step = 3;
  cleave_named good = {"0.weight", CLEAVE_TENSOR_F32(zeros, 5, 3)};
  cleave_named moment = {"0.weight.exp_avg", CLEAVE_TENSOR_F32(zeros, 5, 3)};
  cleave_named counter = {"step", CLEAVE_TENSOR_I64(&step, 1)};
  counter.tensor.rank = 0;
  DO(make_net("odd state", "master", &n));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  CHECK(cleave_state_count(n.b, CLEAVE_STATE_OPTIMIZER) == 0);
  CHECK(cleave_state_count(n.a, CLEAVE_STATE_OPTIMIZER) == 5);
  MUST(cleave_state_read(rt, n.b, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  CHECK(state.n == 0);
  cleave_state_done(&state);
#define NO_STATE(module, kind, item, count, part)                                                \
  REFUSED(cleave_state_write(rt, module, kind, (cleave_named[]){item, item, item}, count, 0, e), \
          CLEAVE_INVALID, part)
  NO_STATE(n.b, CLEAVE_STATE_OPTIMIZER, moment, 1, "odd state b");
  NO_STATE(n.a, CLEAVE_STATE_WEIGHTS, good, 3, "3 items for module 'odd state a', which has 2");
  cleave_named wrong = good;
  wrong.name = "0.wieght";
  NO_STATE(n.a, CLEAVE_STATE_WEIGHTS, wrong, 1, "'0.wieght'");
  wrong = good;
  wrong.tensor.shape[1] = 2;
  NO_STATE(n.a, CLEAVE_STATE_WEIGHTS, wrong, 1, "'0.weight' f32 [5, 2]");
  NO_STATE(n.a, CLEAVE_STATE_WEIGHTS, moment, 1, "'0.weight.exp_avg'");
  wrong = moment;
  wrong.name = "0.wieght.exp_avg";
  NO_STATE(n.a, CLEAVE_STATE_OPTIMIZER, wrong, 1, "'0.wieght.exp_avg'");
  wrong = counter;
  wrong.tensor.rank = 1;
  NO_STATE(n.a, CLEAVE_STATE_OPTIMIZER, wrong, 1, "'step'");
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_WEIGHTS, &good, 0, 0, e));
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_OPTIMIZER, &counter, 1, 0, e)); /* some of them */
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_OPTIMIZER, &moment, 1, 0, e));
  MUST(cleave_state_read(rt, n.a, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  for (size_t i = 0; i < state.n; i++)
    if (strcmp(state.items[i].name, "step") == 0)
      CHECK(*(int64_t *)state.items[i].tensor.data == 3 && state.items[i].tensor.rank == 0);
  cleave_state_done(&state);
  return true;
}

/* ---- random numbers --------------------------------------------------------------------------------------- */

static bool each_call_has_a_mask_of_its_own(void) {
  cleave_module *m;
  cleave_context c[2];
  cleave_tensor out[4] = {{0}};
  float ones[64];
  for (int i = 0; i < 64; i++) ones[i] = 1;
  cleave_module_options o = {.name = "mask", .at = at_a, .seed = 3};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 16);
  MUST(cleave_load_layers(rt, &o, "[{op: dropout, p: 0.5}]", &input, &m, e));
  for (int i = 0; i < 2; i++) {
    cleave_context_options step = {.step = 5};
    MUST(cleave_context_open(rt, &step, &c[i], e));
    for (int k = 0; k < 2; k++) {
      cleave_reference x;
      DO(leaf(c[i], ones, 4, 16, true, &x));
      MUST(cleave_rpc_sync(rt, c[i], m, &x, 1, 0, NULL, &out[2 * i + k], e));
      note(&out[2 * i + k]);
    }
    DO(close_context(c[i]));
  }
  CHECK(memcmp(out[0].data, out[1].data, 256) != 0);
  CHECK(memcmp(out[0].data, out[2].data, 256) == 0 && memcmp(out[1].data, out[3].data, 256) == 0);
  for (int i = 0; i < 4; i++) cleave_tensor_done(&out[i]);
  return true;
}

/* ---- waiting ------------------------------------------------------------------------------------------------ */

typedef struct waiter {
  const net *n;
  unsigned seed;
  numbers found;
  bool ok;
} waiter;

static bool steps_of_a_thread(waiter *w) {
  for (int i = 0; i < 30; i++) {
    cleave_context c;
    cleave_reference loss;
    cleave_tensor value = {0};
    DO(open_context(&c));
    DO(run_after(w->n, c, w->seed, none, NULL, &loss));
    MUST(cleave_to_here(rt, loss, 0, &value, e));
    DO(backward(c, loss, false));
    cleave_tensor_done(&value);
    cleave_tensor g = {0};
    DO(gradient(c, w->n->a, "0.weight", &g));
    if (i) CHECK(memcmp(w->found.a, g.data, sizeof w->found.a) == 0);
    memcpy(w->found.a, g.data, sizeof w->found.a);
    cleave_tensor_done(&g);
    DO(close_context(c));
  }
  return true;
}

static void *waits(void *user) {
  waiter *w = user;
  w->ok = steps_of_a_thread(w);
  return NULL;
}

static bool threads_that_wait_at_once_all_come_home(void) {
  net n;
  waiter all[3] = {{0}};
  pthread_t threads[3];
  DO(make_net("at once", "master", &n));
  for (unsigned i = 0; i < 3; i++) {
    all[i] = (waiter){.n = &n, .seed = 300 + i / 2};
    CHECK(pthread_create(&threads[i], NULL, waits, &all[i]) == 0);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 3; i++) DO(all[i].ok);
  CHECK(memcmp(all[0].found.a, all[1].found.a, sizeof all[0].found.a) == 0);
  CHECK(memcmp(all[0].found.a, all[2].found.a, sizeof all[0].found.a) != 0);
  return true;
}

static bool a_deadline_ends_a_wait_and_nothing_else(void) {
  net n;
  cleave_context c;
  cleave_reference h[2], loss[2];
  cleave_tensor out = {0};
  DO(make_net("deadline", "master", &n));
  DO(open_context(&c));
  DO(run_after(&n, c, 1, none, &h[0], &loss[0]));
  DO(run_after(&n, c, 2, h[0], &h[1], &loss[1]));
  uint64_t begin = now_ms();
  REFUSED(cleave_to_here(rt, loss[1], 50, &out, e), CLEAVE_DEADLINE, "deadline");
  CHECK(now_ms() - begin >= 50 && now_ms() - begin < 5000);
  MUST(cleave_backward(rt, c, loss, 2, false, 0, e));
  MUST(cleave_to_here(rt, loss[1], 0, &out, e));
  cleave_tensor_done(&out);
  return close_context(c);
}

/* ---- what may leave ------------------------------------------------------------------------------------------- */

enum { MOST_SENDINGS = 64, RELAYED = 1 };

/* What the process was about to send, a line each. `refuse`: kinds that may not go, as bits, and
 * RELAYED for whatever passes through. */
static struct {
  pthread_mutex_t lock;
  char lines[MOST_SENDINGS][200];
  int n;
  unsigned refuse;
} sends = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void sending_line(char *to, size_t len, const cleave_sending *s) {
  static const char *const kinds[] = {"?", "leaf", "value", "gradient", "weights"};
  int at = snprintf(to, len, "%s of '%s' input %u to %s:", kinds[s->kind], s->module, s->input,
                    s->worker);
  for (int i = 0; i < s->rank; i++)
    at += snprintf(to + at, len - (size_t)at, " %lld", (long long)s->shape[i]);
  snprintf(to + at, len - (size_t)at, "%s, %zu bytes%s", s->dtype == CLEAVE_I64 ? " i64" : "",
           s->bytes, s->relayed ? ", relayed" : "");
}

static cleave_status may_send(void *user, const cleave_sending *what, cleave_error *error) {
  (void)user;
  pthread_mutex_lock(&sends.lock);
  if (sends.n < MOST_SENDINGS) sending_line(sends.lines[sends.n++], sizeof sends.lines[0], what);
  bool refused = (sends.refuse >> what->kind & 1) || (what->relayed && (sends.refuse & RELAYED));
  pthread_mutex_unlock(&sends.lock);
  if (!refused) return CLEAVE_OK;
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text, "a %s of '%s' stays here",
           what->kind == CLEAVE_SENDING_GRADIENT ? "gradient" : "tensor", what->module);
  return CLEAVE_DENIED;
}

static void forget_sendings(unsigned refuse) {
  pthread_mutex_lock(&sends.lock);
  sends.n = 0;
  sends.refuse = refuse;
  pthread_mutex_unlock(&sends.lock);
}

static int n_sendings(void) {
  pthread_mutex_lock(&sends.lock);
  int n = sends.n;
  pthread_mutex_unlock(&sends.lock);
  return n;
}

/* The next line of those since forget_sendings. */
static bool was_sent(int *at, const char *line) {
  pthread_mutex_lock(&sends.lock);
  bool is = *at < sends.n && strcmp(sends.lines[*at], line) == 0;
  if (!is)
    snprintf(why, sizeof why, "sending %d is '%.190s', not '%s'", *at,
             *at < sends.n ? sends.lines[*at] : "none", line);
  ++*at;
  pthread_mutex_unlock(&sends.lock);
  return is;
}

static bool is_worker(const char *node) { return strcmp(node, "master") != 0; }

/* One step, written down by hand for whatever places a and b have. */
static bool check_sendings(void) {
  bool direct = strcmp(transfer, "direct") == 0;
  bool apart = strcmp(at_a, at_b) != 0, relayed = apart && is_worker(at_a) && is_worker(at_b);
  char line[200];
  int at = 0;
#define SENT(wanted, ...)                     \
  do {                                        \
    if (!(wanted)) break;                     \
    snprintf(line, sizeof line, __VA_ARGS__); \
    DO(was_sent(&at, line));                  \
  } while (0)
  SENT(is_worker(at_a), "leaf of 'gate a' input 0 to %s: 4 3, 48 bytes", at_a);
  SENT(apart && !is_worker(at_a), "value of 'gate a' input 0 to %s: 4 5, 80 bytes", at_b);
  SENT(relayed && !direct, "value of 'gate a' input 0 to %s: 4 5, 80 bytes, relayed", at_b);
  SENT(is_worker(at_b), "gradient of 'gate b' input 0 to %s: 4 2, 32 bytes", at_b);
  SENT(is_worker(at_a) && !is_worker(at_b), "gradient of 'gate a' input 0 to %s: 4 5, 80 bytes",
       at_a);
  SENT(relayed && !direct, "gradient of 'gate a' input 0 to %s: 4 5, 80 bytes, relayed", at_a);
  CHECK(n_sendings() == at);
  return true;
}

static bool a_step_under_the_gate(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  cleave_tensor y = {0};
  DO(make_net("gate", "master", &n));
  cleave_group g = {.modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  MUST(cleave_module_place(rt, n.a, true, 0, e));
  forget_sendings(0);
  for (int i = 0; i < 2; i++) { /* the second is as the first: nothing is asked but for tensors */
    DO(open_context(&c));
    DO(run_after(&n, c, 1, none, NULL, &loss));
    MUST(cleave_to_here(rt, loss, 0, &y, e));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    DO(close_context(c));
    DO(check_sendings());
    forget_sendings(0);
  }
  cleave_tensor_done(&y);
  return true;
}

static bool every_tensor_is_announced_before_it_leaves(void) {
  IN_RUNTIME((&(cleave_options){.may_send = may_send, .single_thread = single}),
             a_step_under_the_gate());
  return true;
}

/* The other kinds: labels, a second input, weights, state, a value sent ahead. */
static bool other_sendings(const char *w) {
  cleave_module *m, *loss;
  cleave_context c;
  cleave_reference x, t, y, l;
  cleave_tensor value = {0};
  float in[12] = {1}, given_w[9] = {1, 2, 3};
  int64_t classes[4] = {0, 1, 2, 0};
  int at = 0;
  char line[200];
  cleave_named given = {"0.weight", CLEAVE_TENSOR_F32(given_w, 3, 3)};
  cleave_module_options o = {.name = "far", .at = w, .weights = &given, .n_weights = 1};
  cleave_module_options lo = {.name = "far loss", .at = w};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e));
  MUST(cleave_load_loss(rt, &lo, "cross_entropy", &input, &loss, e));
  cleave_tensor labels = CLEAVE_TENSOR_I64(classes, 4);
  forget_sendings(0);
  MUST(cleave_module_place(rt, m, false, 0, e));
  SENT(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  MUST(cleave_leaf(rt, c, &labels, false, &t, e));
  CHECK(n_sendings() == 1); /* leaves stay until a call needs them */
  MUST(cleave_send_to(rt, x, w, e));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  MUST(cleave_to_here(rt, l, 0, &value, e));
  DO(backward(c, l, false));
  DO(close_context(c));
  MUST(cleave_weight_write(rt, m, "0.weight", &given.tensor, 0, e));
  MUST(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, &given, 1, 0, e));
  DO(read_weight(m, "0.weight", &value));
  CHECK(memcmp(value.data, given_w, sizeof given_w) == 0);
  SENT(true, "leaf of '' input 0 to %s: 4 3, 48 bytes", w);
  SENT(true, "leaf of 'far loss' input 1 to %s: 4 i64, 32 bytes", w);
  SENT(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  SENT(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  CHECK(n_sendings() == at);
  cleave_tensor_done(&value);
  return true;
}

static bool labels_weights_and_what_goes_ahead_are_announced(void) {
  IN_RUNTIME((&(cleave_options){.may_send = may_send}), other_sendings(at_b));
  return true;
}

/* A leaf: the call's error, and nothing has happened. */
static bool a_leaf_stays(const char *w) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  DO(load("kept", w, "[{op: linear, out: 5}]", 3, &m));
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  forget_sendings(1u << CLEAVE_SENDING_LEAF);
  REFUSED(cleave_call(rt, c, m, &x, 1, &y, e), CLEAVE_DENIED, "a tensor of 'kept' stays here");
  forget_sendings(0);
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  forget_sendings(1u << CLEAVE_SENDING_WEIGHTS);
  cleave_tensor bias = CLEAVE_TENSOR_F32(in, 5);
  REFUSED(cleave_weight_write(rt, m, "0.bias", &bias, 0, e), CLEAVE_DENIED, "of 'kept' stays here");
  cleave_named item = {"0.bias", bias};
  REFUSED(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, &item, 1, 0, e), CLEAVE_DENIED,
          "of 'kept' stays here");
  forget_sendings(0);
  MUST(cleave_weight_write(rt, m, "0.bias", &bias, 0, e));
  cleave_tensor_done(&out);
  return close_context(c);
}

/* Whichever function hears of it first. */
static bool refused_on_the_way(const net *n, cleave_context c, const char *part) {
  cleave_reference loss = none;
  uint64_t begin = now_ms();
  if (!run_after(n, c, 1, none, NULL, &loss)) CHECK(strstr(why, part) != NULL);
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_DENIED, part);
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_DENIED, part);
  CHECK(now_ms() - begin < 10000);
  return true;
}

/* A value or a gradient that the master's own node makes: an error of the context, at once. */
static bool what_is_made_here_stays(const char *w, cleave_sending_kind kind) {
  net n;
  cleave_context c;
  cleave_reference loss;
  bool is_value = kind == CLEAVE_SENDING_VALUE;
  at_a = "master";
  at_b = w;
  DO(make_net(is_value ? "value" : "slope", "master", &n));
  DO(open_context(&c));
  forget_sendings(1u << kind);
  DO(refused_on_the_way(
      &n, c, is_value ? "a tensor of 'value a' stays here" : "a gradient of 'slope b' stays here"));
  forget_sendings(0);
  DO(close_context(c));
  DO(open_context(&c)); /* others go on */
  DO(run_after(&n, c, 1, none, NULL, &loss));
  DO(backward(c, loss, false));
  return close_context(c);
}

static bool what_passes_through_stays(void) {
  net n;
  cleave_context c;
  at_a = "w1";
  at_b = "w2";
  DO(make_net("through", "master", &n));
  DO(open_context(&c));
  forget_sendings(RELAYED);
  DO(refused_on_the_way(&n, c, "of 'through a' stays here"));
  forget_sendings(0);
  return close_context(c);
}

static bool refusals(void) {
  return a_leaf_stays(at_b) && what_is_made_here_stays(at_b, CLEAVE_SENDING_VALUE) &&
         what_is_made_here_stays(at_b, CLEAVE_SENDING_GRADIENT) && what_passes_through_stays();
}

static bool a_tensor_that_may_not_leave_is_an_error_and_no_wait(void) {
  const char *a = at_a, *b = at_b;
  for (int alone = 0; alone < 2; alone++) {
    cleave_options o = {.may_send = may_send, .via_master = true, .single_thread = alone};
    at_a = a;
    at_b = b;
    IN_RUNTIME(&o, refusals());
  }
  at_a = a;
  at_b = b;
  return true;
}

/* ---- direct transfers, one module at a time -------------------------------------------------------------------- */

/* Whether the output of a module at w1 went to w2 by itself. */
static bool goes_direct(const char *name, const char *const *to, size_t n_to, bool *ret) {
  cleave_module *m, *next;
  cleave_context c;
  cleave_reference x, h, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  char after[64];
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.name = name, .at = "w1", .direct_to = to, .n_direct_to = n_to};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e));
  snprintf(after, sizeof after, "after %s", name);
  o.name = after;
  o.at = "w2";
  o.direct_to = to && !n_to ? to : NULL; /* a pair is direct when either end says so */
  o.n_direct_to = 0;
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &next, e));
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  forget_sendings(0);
  MUST(cleave_call(rt, c, m, &x, 1, &h, e));
  MUST(cleave_call(rt, c, next, &h, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  *ret = n_sendings() == 1; /* the leaf alone */
  cleave_tensor_done(&out);
  return close_context(c);
}

static bool direct_by_module(const char *const *to, size_t n, bool wanted) {
  bool is = false;
  DO(goes_direct("hop", to, n, &is));
  CHECK(is == wanted);
  cleave_module *m;
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  const char *nobody[] = {"w9"};
  cleave_module_options o = {.name = "nobody", .at = "w1", .direct_to = nobody, .n_direct_to = 1};
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e), CLEAVE_NOT_FOUND,
          "no worker 'w9' for a direct transfer");
  return true;
}

static bool a_module_says_whom_its_node_may_dial(void) {
  static const char *const w2[] = {"w2"};
  bool direct = strcmp(transfer, "direct") == 0;
  const cleave_options o = {.may_send = may_send};
  IN_RUNTIME(&o, direct_by_module(NULL, 0, direct));
  IN_RUNTIME(&o, direct_by_module(w2, 1, true));
  IN_RUNTIME(&o, direct_by_module(w2, 0, false));
  return true;
}

static bool sent_ahead(void) {
  cleave_module *a, *b;
  cleave_context c;
  cleave_reference x, h, y, early;
  cleave_tensor out = {0};
  float in[12] = {1};
  const cleave_call_options to_b = {.send_to = "w2"};
  DO(load("first", "w1", "[{op: linear, out: 3}]", 3, &a));
  DO(load("second", "w2", "[{op: linear, out: 3}]", 3, &b));
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  DO(leaf(c, in, 4, 3, false, &early));
  MUST(cleave_send_to(rt, early, "w2", e)); /* no module has got there yet */
  MUST(cleave_call_with(rt, c, a, &x, 1, &to_b, &h, e));
  MUST(cleave_to_here(rt, h, 0, &out, e));
  MUST(cleave_call(rt, c, b, &h, 1, &y, e));
  MUST(cleave_to_here(rt, y, 2000, &out, e));
  MUST(cleave_call(rt, c, b, &early, 1, &y, e));
  MUST(cleave_to_here(rt, y, 2000, &out, e));
  cleave_tensor_done(&out);
  return close_context(c);
}

static bool a_value_may_be_sent_before_any_module_is_there(void) {
  IN_RUNTIME(NULL, sent_ahead());
  return true;
}

/* ---- some of the workers ------------------------------------------------------------------------------------------ */

static bool one_of_two(void) {
  cleave_module *m, *far;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.name = "down", .at = at_b};
  CHECK(strcmp(cleave_node_name(rt, 1), at_a) == 0 && cleave_node_name(rt, 2) == NULL);
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &far, e), CLEAVE_NOT_FOUND,
          "module 'down' is at 'w2', which is neither master nor a worker");
  DO(load("up", at_a, "[{op: linear, out: 3}]", 3, &m));
  DO(open_context(&c));
  DO(leaf(c, in, 4, 3, false, &x));
  REFUSED(cleave_send_to(rt, x, at_b, e), CLEAVE_NOT_FOUND, "'w2'");
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  cleave_tensor_done(&out);
  return close_context(c);
}

static bool only_the_named_worker_is_connected(void) {
  cleave_runtime *nothing;
  cleave_options all = {.deadline_ms = 20000};
  IN_RUNTIME((&(cleave_options){.workers = &at_a, .n_workers = 1}), one_of_two());
  REFUSED(cleave_open(session, &all, &nothing, e), CLEAVE_UNAVAILABLE, "");
  return true;
}

static bool a_worker_that_is_not_in_the_file_is_refused(void) {
  cleave_runtime *nothing;
  const char *names[] = {"w1", "w9"};
  cleave_options o = {.workers = names, .n_workers = 2};
  REFUSED(cleave_open(session, &o, &nothing, e), CLEAVE_NOT_FOUND, "'w9'");
  return true;
}

/* ---- weights on the worker's own disk -------------------------------------------------------------------------------- */

static const char *sha256, *damaged;

static bool refused_artifact(const char *name, const char *at, const char *artifact,
                             const char *sum, const char *part) {
  cleave_module *m;
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.name = name, .at = at, .artifact = artifact, .artifact_sha256 = sum};
  cleave_error error = {0};
  bool made = cleave_load_layers(rt, &o, "[{op: linear, out: 5}]", &input, &m, &error) == CLEAVE_OK;
  if (made && cleave_module_place(rt, m, false, 0, &error) == CLEAVE_OK) error.text[0] = '\0';
  if (strstr(error.text, part)) return true;
  snprintf(why, sizeof why, "'%s' lacks '%s'", error.text, part);
  return false;
}

static bool weights_are_those_of_the_artifact(void) {
  cleave_module *m;
  cleave_tensor w = {0};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {
      .name = "disk", .at = at_a, .artifact = "numbers", .artifact_sha256 = sha256};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 5}]", &input, &m, e));
  DO(read_weight(m, "0.weight", &w));
  for (int i = 0; i < 15; i++) CHECK(((float *)w.data)[i] == (float)i);
  DO(read_weight(m, "0.bias", &w));
  for (int i = 0; i < 5; i++) CHECK(((float *)w.data)[i] == (float)-i);
  cleave_tensor_done(&w);
  char other[65] = "";
  memset(other, '1', 64);
  DO(refused_artifact("sum", at_a, "numbers", other, "SHA-256"));
  DO(refused_artifact("absent", at_a, "letters", sha256, "letters"));
  DO(refused_artifact("damaged", at_a, "damaged", damaged, "damaged"));
  DO(refused_artifact("home", "master", "numbers", sha256, "artifacts lie on workers"));
  DO(refused_artifact("unsigned", at_a, "numbers", NULL, "needs its sha256"));
  return refused_artifact("short", at_a, "numbers", "12ab", "needs its sha256");
}

static bool ended(void) {
  net n;
  cleave_context c;
  cleave_reference loss;
  at_a = at_b = "master";
  DO(make_net("ended", "master", &n));
  DO(open_context(&c));
  DO(run_after(&n, c, 1, none, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_context_end(rt, c, e)); /* without a thread its node hears of it in cleave_close */
  return true;
}

static bool what_has_been_ended_is_no_leak(void) {
  const char *a = at_a, *b = at_b;
  cleave_options o = {.single_thread = true};
  IN_RUNTIME(&o, ended());
  at_a = a;
  at_b = b;
  return true;
}

/* ---- a worker that goes ---------------------------------------------------------------------------------------------- */

/* Nobody waits for the answers to a final step, so the loss shows in what comes next. */
static bool a_lost_worker_is_an_error_that_names_it(pid_t pid) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  DO(make_net("lost", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5, .final = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(train(&n, &o, 1, 1, 2, END));
  DO(open_context(&c));
  DO(run_after(&n, c, 3, none, NULL, &loss));
  DO(backward(c, loss, false));
  CHECK(kill(pid, SIGKILL) == 0);
  usleep(200000);
  uint64_t begin = now_ms();
  cleave_error error = {0};
  cleave_status status = cleave_step(rt, o, c, 0, NULL, &error);
  if (status == CLEAVE_OK) status = cleave_context_end(rt, c, &error);
  if (status == CLEAVE_OK) {
    DO(open_context(&c));
    float in[20] = {1};
    cleave_reference x, y;
    DO(leaf(c, in, 4, 5, false, &x));
    status = cleave_call(rt, c, n.b, &x, 1, &y, &error);
  }
  CHECK(status == CLEAVE_UNAVAILABLE && now_ms() - begin < 10000);
  CHECK(strcmp(error.node, at_b) == 0);
  return true;
}

/* ---- for whoever looks at the workers --------------------------------------------------------------------------------- */

/* Steps until the input ends; then everything is ended, nothing closed, and the worker is looked at. */
static bool steps_for_a_watcher(int width) {
  net n;
  cleave_optimizer *o;
  char line[8];
  DO(make_net("watched", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.01, .final = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  for (int step = 0; step < 2; step++) {
    cleave_context c;
    cleave_reference loss[MICRO];
    DO(windowed(&n, width, &c, loss));
    puts("called");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return false;
    MUST(cleave_backward_weighted(rt, c, loss, shares, MICRO, false, 0, e));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    puts("stepped");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return false;
    MUST(cleave_context_end(rt, c, e));
    puts("ended");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return false;
  }
  return true;
}

/* ---- running them ------------------------------------------------------------------------------------------------------ */

#define TEST(f) \
  { f, #f }
typedef struct test {
  bool (*run)(void);
  const char *name;
} test;

static const test placed[] = {
    TEST(a_window_changes_no_bit_of_the_gradients),
    TEST(a_long_pipeline_has_the_bits_of_one_without_a_window),
    TEST(a_call_after_a_backward_comes_no_sooner),
    TEST(a_value_is_sent_where_it_will_be_needed),
    TEST(what_a_call_cannot_wait_for_is_refused),
    TEST(weighted_roots_are_the_gradients_of_the_weighted_loss),
    TEST(a_weight_scales_and_none_is_one),
    TEST(weights_that_are_none_are_refused),
    TEST(final_steps_give_the_same_bits),
    TEST(rates_and_optimisers_that_differ_step_right),
    TEST(only_what_a_final_step_names_moves),
    TEST(a_final_step_that_is_not_finite_moves_nothing),
    TEST(final_groups_and_others_do_not_mix),
    TEST(rates_and_weights_follow_the_schedule),
    TEST(steps_and_schedules_can_be_set),
    TEST(what_is_set_is_for_the_next_step),
    TEST(a_state_written_into_another_runtime_goes_on_the_same),
    TEST(state_that_does_not_belong_is_refused_by_name),
    TEST(each_call_has_a_mask_of_its_own),
    TEST(threads_that_wait_at_once_all_come_home),
    TEST(a_deadline_ends_a_wait_and_nothing_else),
    TEST(every_tensor_is_announced_before_it_leaves),
    TEST(roots_against_a_window_are_refused),
    TEST(nothing_changes_while_calls_wait_for_a_backward),
    TEST(a_module_without_an_optimiser_may_take_part),
};

static const test with_options[] = {
    TEST(labels_weights_and_what_goes_ahead_are_announced),
    TEST(a_tensor_that_may_not_leave_is_an_error_and_no_wait),
    TEST(a_module_says_whom_its_node_may_dial),
    TEST(a_worker_that_is_not_in_the_file_is_refused),
    TEST(a_value_may_be_sent_before_any_module_is_there),
    TEST(what_has_been_ended_is_no_leak),
};

static const test with_one_worker[] = {TEST(only_the_named_worker_is_connected)};

static int run_all(const test *list, size_t n) {
  for (size_t i = 0; i < n; i++) said(list[i].run(), list[i].name);
  return n_failed != 0;
}
#define RUN_ALL(list) run_all(list, sizeof list / sizeof *list)

static bool close_finds_nothing_left(void) { return close_runtime(rt); }

/* In a runtime that is open to all modes below. */
static int run_mode(int argc, char **argv) {
  const char *mode = argc > 6 ? argv[6] : "";
  cleave_error error;
  cleave_options o = {.deadline_ms = 20000, .single_thread = single};
  if (cleave_open(session, &o, &rt, &error) != CLEAVE_OK) {
    printf("not ok open: %s\n", error.text);
    return 1;
  }
  if (strcmp(mode, "lost") == 0) {
    said(a_lost_worker_is_an_error_that_names_it((pid_t)atol(argv[7])),
         "a_lost_worker_is_an_error_that_names_it");
    (void)cleave_close(rt, 0, NULL, NULL);
    return n_failed != 0;
  }
  if (strcmp(mode, "artifact") == 0) {
    sha256 = argv[7];
    damaged = argv[8];
    said(weights_are_those_of_the_artifact(), "weights_are_those_of_the_artifact");
  } else if (strcmp(mode, "window") == 0) {
    if (!steps_for_a_watcher(atoi(argv[7]))) said(false, "steps_for_a_watcher");
  } else {
    (void)RUN_ALL(placed);
    printf("digest %016llx\n", (unsigned long long)digest);
  }
  said(close_finds_nothing_left(), "close_finds_nothing_left");
  return n_failed != 0;
}

int main(int argc, char **argv) {
  if (argc < 6) return 2;
  session = argv[1];
  at_a = argv[2];
  at_b = argv[3];
  transfer = argv[4];
  single = strcmp(argv[5], "single") == 0;
  if (argc > 6 && strcmp(argv[6], "options") == 0) return RUN_ALL(with_options);
  if (argc > 6 && strcmp(argv[6], "only") == 0) return RUN_ALL(with_one_worker);
  return run_mode(argc, argv);
}
