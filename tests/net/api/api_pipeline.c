/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the C API offers to programs that train by pipelines: windows, backwards from several
 * weighted losses, steps that are final, learning rates, dropout masks by step and call, waits in
 * several threads. The values of MODE in the usage (api_pipeline_int.h):
 *   none            tests whose results must not depend on A and B, in one runtime
 *   window WIDTH    takes steps until its input ends
 */
#include <pthread.h>

#include "api_pipeline_int.h"

/* ---- windows: calls that wait for the backward of an earlier call ---------------------------- */

static bool copy_gradients(cleave_context c, const net *n, numbers *ret) {
  return copy_gradient(c, n->a, "0.weight", ret->a, 15) &&
         copy_gradient(c, n->b, "0.weight", ret->b, 10);
}

enum { MICRO_BATCHES = 6 };
static const float micro_batch_weights[MICRO_BATCHES] = {0.25f,  0.25f,  0.125f,
                                                         0.125f, 0.125f, 0.125f};

/* Runs six micro-batches. At most `width` of them are between the forward and the backward of
 * module a; 0: no limit. */
static bool run_windowed_step(const net *n, int width, cleave_context *c, cleave_reference *loss) {
  cleave_reference h[MICRO_BATCHES];
  DO(open_context(c));
  for (int i = 0; i < MICRO_BATCHES; i++) {
    bool must_wait = width && i >= width;
    DO(run_network_after(n, *c, 20 + (unsigned)i, must_wait ? h[i - width] : no_reference, &h[i],
                         &loss[i]));
  }
  return true;
}

static bool window_changes_no_bit_of_the_gradients(void) {
  net n;
  numbers gradients[3];
  DO(make_network("window", "master", &n));
  for (int width = 0; width < 3; width++) {
    cleave_context c;
    cleave_reference loss[MICRO_BATCHES];
    DO(run_windowed_step(&n, width, &c, loss));
    MUST(backward_weighted(c, loss, micro_batch_weights, MICRO_BATCHES, e));
    DO(copy_gradients(c, &n, &gradients[width]));
    DO(close_context(c));
  }
  CHECK(are_equal_numbers(&gradients[0], &gradients[1]) &&
        are_equal_numbers(&gradients[0], &gradients[2]));
  CHECK(gradients[0].a[0] != 0 && gradients[0].b[0] != 0);
  return true;
}

enum { N_LONG_PIPELINE_CALLS = 100 };

/* Makes 100 calls of each module, more than one frame can list. Most of them are made before they
 * can run. */
static bool window_changes_no_bit_of_a_long_pipeline(void) {
  net n;
  numbers gradients[2];
  DO(make_network("long", "master", &n));
  for (int width = 0; width < 2; width++) {
    cleave_context c;
    cleave_reference h[N_LONG_PIPELINE_CALLS], loss[N_LONG_PIPELINE_CALLS];
    float weights[N_LONG_PIPELINE_CALLS];
    DO(open_context(&c));
    for (int i = 0; i < N_LONG_PIPELINE_CALLS; i++) {
      weights[i] = 0.01f;
      DO(run_network_after(&n, c, (unsigned)i, width && i ? h[i - 1] : no_reference, &h[i],
                           &loss[i]));
    }
    MUST(backward_weighted(c, loss, weights, N_LONG_PIPELINE_CALLS, e));
    DO(copy_gradients(c, &n, &gradients[width]));
    DO(close_context(c));
  }
  CHECK(are_equal_numbers(&gradients[0], &gradients[1]));
  return true;
}

/* Calls wait for the backwards of earlier calls. Each backward must let exactly one waiting call
 * run. */
static bool call_after_a_backward_waits_for_it(void) {
  net n;
  cleave_context c;
  cleave_reference h[3], loss[3];
  cleave_tensor out = {0};
  DO(make_network("after", "master", &n));
  DO(open_context(&c));
  for (int i = 0; i < 3; i++)
    DO(run_network_after(&n, c, 20 + (unsigned)i, i ? h[i - 1] : no_reference, &h[i], &loss[i]));
  for (int i = 0; i < 3; i++) {
    MUST(cleave_to_here(rt, h[i], 0, &out, e));
    if (i < 2) REFUSED(cleave_to_here(rt, h[i + 1], 60, &out, e), CLEAVE_DEADLINE, "in time");
    DO(backward(c, loss[i], false));
  }
  cleave_tensor_free(&out);
  return close_context(c);
}

static bool value_is_sent_to_the_node_that_needs_it(void) {
  net n;
  cleave_module *module_at_b;
  cleave_context c;
  cleave_reference x, t, h, y, loss;
  cleave_tensor out = {0};
  numbers gradients_by_request, gradients_by_send;
  float in[12], target[8];
  fill_with_random(in, 12, 31);
  fill_with_random(target, 8, 32);
  DO(make_network("send", "master", &n));
  cleave_module_options o = {
      .size = sizeof o, .name = "send there", .at = at_b, .seed = 7, .local_only = true};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 5);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &module_at_b, e));
  for (int i = 0; i < 2; i++) {
    const cleave_call_options to_b = {.size = sizeof to_b, .send_to = i ? at_b : NULL};
    const cleave_call_options to_master = {.size = sizeof to_master,
                                           .send_to = i ? "master" : NULL};
    DO(open_context(&c));
    DO(make_leaf(c, in, 4, 3, false, &x));
    DO(make_leaf(c, target, 4, 2, false, &t));
    MUST(cleave_call_with(rt, c, n.a, &x, 1, &to_b, &h, e));
    if (i) { /* h is sent to B, so module_at_b, which is loaded with local_only, accepts it */
      MUST(cleave_call_with(rt, c, module_at_b, &h, 1, &to_master, &y, e));
    } else {
      if (strcmp(at_a, at_b) != 0)
        REFUSED(cleave_call(rt, c, module_at_b, &h, 1, &y, e), CLEAVE_PRECONDITION,
                "cleave_send_to");
      MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
    }
    MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, t}, 2, &loss, e));
    MUST(cleave_to_here(rt, y, 0, &out, e));
    MUST(cleave_to_here(rt, h, 0, &out, e));
    DO(backward(c, loss, false));
    net network = {.a = n.a, .b = i ? module_at_b : n.b};
    DO(copy_gradients(c, &network, i ? &gradients_by_send : &gradients_by_request));
    DO(close_context(c));
  }
  CHECK(are_equal_numbers(&gradients_by_request, &gradients_by_send));
  cleave_tensor_free(&out);
  return true;
}

static bool impossible_predecessor_is_refused(void) {
  net n, m;
  cleave_context c, other_ctx, eval_ctx;
  cleave_reference x, y, h, remote_value, used_reference, loss, refused, eval_x, eval_h;
  cleave_context_options eval_options = {.size = sizeof eval_options, .evaluation = true};
  float in[12] = {1, 2, 3};
  DO(make_network("wait", "master", &n));
  DO(make_network("wait not", "master", &m));
  DO(open_context(&c));
  DO(open_context(&other_ctx));
  DO(make_leaf(c, in, 4, 3, false, &x));
  MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
  DO(run_network_after(&n, other_ctx, 5, no_reference, &remote_value, &loss));
#define CALL_AFTER(value) \
  (&(cleave_call_options){.size = sizeof(cleave_call_options), .after = (value)})
#define AFTER_IS_REFUSED(value, part)                                          \
  REFUSED(cleave_call_with(rt, c, n.a, &x, 1, CALL_AFTER(value), &refused, e), \
          CLEAVE_PRECONDITION, part)
  AFTER_IS_REFUSED(remote_value, "no call of this context at its node");
  AFTER_IS_REFUSED(x, "no call of this context at its node");
  if (strcmp(at_a, at_b) != 0) {
    MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
    AFTER_IS_REFUSED(y, "no call of this context at its node");
  }
  DO(run_network_after(&n, c, 6, no_reference, &used_reference, &loss));
  DO(backward(c, loss, false));
  AFTER_IS_REFUSED(used_reference, "a call without a backward to come");
  MUST(cleave_reference_release(rt, used_reference, e));
  REFUSED(cleave_call_with(rt, c, n.a, &x, 1, CALL_AFTER(used_reference), &refused, e),
          CLEAVE_NOT_FOUND, "released");
  REFUSED(
      cleave_call_with(rt, c, n.a, &x, 1,
                       &(cleave_call_options){.size = sizeof(cleave_call_options), .send_to = "w9"},
                       &refused, e),
      CLEAVE_NOT_FOUND, "'w9' is neither master nor a worker");
  MUST(cleave_context_open(rt, &eval_options, &eval_ctx, e));
  DO(make_leaf(eval_ctx, in, 4, 3, false, &eval_x));
  MUST(cleave_call(rt, eval_ctx, n.a, &eval_x, 1, &eval_h, e));
  REFUSED(cleave_call_with(rt, eval_ctx, n.a, &eval_x, 1, CALL_AFTER(eval_h), &refused, e),
          CLEAVE_PRECONDITION, "a call without a backward to come");
  DO(close_context(eval_ctx));
  DO(close_context(other_ctx));
  DO(run_network_after(&n, c, 7, h, NULL, &loss)); /* the refusals have not failed the context */
  return close_context(c);
}

static bool roots_in_an_impossible_order_are_refused(void) {
  net n;
  cleave_context c;
  cleave_reference h, loss[2];
  DO(make_network("against", "master", &n));
  DO(open_context(&c));
  DO(run_network_after(&n, c, 1, no_reference, &h, &loss[0]));
  DO(run_network_after(&n, c, 2, h, NULL, &loss[1]));
  REFUSED(cleave_backward(rt, c, &loss[1], 1, false, 0, e), CLEAVE_PRECONDITION, "backward of");
  const cleave_reference reversed[] = {loss[1], loss[0]};
  REFUSED(cleave_backward(rt, c, reversed, 2, false, 0, e), CLEAVE_PRECONDITION, "backward of");
  /* the refusals have not changed the context */
  MUST(cleave_backward(rt, c, loss, 2, false, 0, e));
  return close_context(c);
}

static bool weights_cannot_change_while_calls_wait_for_a_backward(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c, other_ctx;
  cleave_reference h[3], loss[3], l;
  cleave_tensor w = {0};
  DO(make_network("change", "master", &n));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(read_weight(n.a, "0.weight", &w));
  DO(open_context(&other_ctx));
  DO(run_network_after(&n, other_ctx, 1, no_reference, NULL, &l));
  DO(backward(other_ctx, l, false));
  DO(open_context(&c));
  for (int i = 0; i < 3; i++)
    DO(run_network_after(&n, c, 2 + (unsigned)i, i ? h[i - 1] : no_reference, &h[i], &loss[i]));
  for (int i = 0; i < 2; i++) { /* two calls wait in the first round, one call in the second */
    REFUSED(cleave_step(rt, o, other_ctx, 0, NULL, e), CLEAVE_PRECONDITION,
            "wait for its backward");
    REFUSED(cleave_weight_write(rt, n.a, "0.weight", &w, 0, e), CLEAVE_PRECONDITION,
            "wait for its backward");
    DO(backward(c, loss[i], false));
  }
  MUST(cleave_step(rt, o, other_ctx, 0, NULL, e));
  DO(backward(c, loss[2], false));
  DO(close_context(other_ctx));
  cleave_tensor_free(&w);
  return close_context(c);
}

/* ---- backwards from several losses, each with a weight --------------------------------------- */

static bool weighted_roots_are_the_gradients_of_the_weighted_loss(void) {
  net n;
  numbers part_gradients[3], weighted_gradients;
  cleave_context c;
  cleave_reference loss[3];
  const float weights[] = {0.5f, 0.25f, 0.25f};
  DO(make_network("shares", "master", &n));
  for (int i = 0; i < 3; i++) {
    DO(open_context(&c));
    DO(run_network_after(&n, c, 40 + (unsigned)i, no_reference, NULL, &loss[0]));
    DO(backward(c, loss[0], false));
    DO(copy_gradients(c, &n, &part_gradients[i]));
    DO(close_context(c));
  }
  DO(open_context(&c));
  for (int i = 0; i < 3; i++)
    DO(run_network_after(&n, c, 40 + (unsigned)i, no_reference, NULL, &loss[i]));
  MUST(backward_weighted(c, loss, weights, 3, e));
  DO(copy_gradients(c, &n, &weighted_gradients));
  for (int k = 0; k < 15; k++)
    CHECK(is_near(weighted_gradients.a[k], 0.5f * part_gradients[0].a[k] +
                                               0.25f * part_gradients[1].a[k] +
                                               0.25f * part_gradients[2].a[k]));
  for (int k = 0; k < 10; k++)
    CHECK(is_near(weighted_gradients.b[k], 0.5f * part_gradients[0].b[k] +
                                               0.25f * part_gradients[1].b[k] +
                                               0.25f * part_gradients[2].b[k]));
  return close_context(c);
}

/* Runs the backward of one root without a weight, with weight 1 and with weight 0.25. A power of
 * two scales every number exactly, so the gradients are compared bit for bit. */
static bool root_weight_scales_and_defaults_to_one(void) {
  static const float one[] = {1}, quarter[] = {0.25f};
  static const float *const weights[] = {NULL, one, quarter};
  net n;
  numbers gradients[3];
  DO(make_network("scale", "master", &n));
  for (int i = 0; i < 3; i++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_network_after(&n, c, 50, no_reference, NULL, &loss));
    MUST(backward_weighted(c, &loss, weights[i], 1, e));
    DO(copy_gradients(c, &n, &gradients[i]));
    DO(close_context(c));
  }
  CHECK(are_equal_numbers(&gradients[0], &gradients[1]));
  for (int k = 0; k < 15; k++) CHECK(gradients[2].a[k] == 0.25f * gradients[0].a[k]);
  return true;
}

static bool invalid_root_weights_are_refused(void) {
  net n;
  cleave_context c;
  cleave_reference loss[2];
  const float bad[][2] = {{1, 0}, {NAN, 1}, {1, INFINITY}};
  DO(make_network("no weight", "master", &n));
  DO(open_context(&c));
  for (int i = 0; i < 2; i++)
    DO(run_network_after(&n, c, 60 + (unsigned)i, no_reference, NULL, &loss[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    REFUSED(backward_weighted(c, loss, bad[i], 2, e), CLEAVE_INVALID,
            "it must be finite and not 0");
  loss[1] = loss[0];
  REFUSED(backward_weighted(c, loss, NULL, 2, e), CLEAVE_INVALID, "is given twice");
  DO(backward(c, loss[0], false));
  return close_context(c);
}

/* ---- final steps, which are never rolled back ------------------------------------------------ */

static bool final_steps_give_the_same_bits(void) {
  static const char *const names[] = {"kept", "final closed", "final ended"};
  numbers weights[3];
  for (int i = 0; i < 3; i++) {
    net n;
    cleave_optimizer *o;
    DO(make_network(names[i], "master", &n));
    cleave_group g = {.modules = (cleave_module *[]){n.a, n.b},
                      .n_modules = 2,
                      .kind = CLEAVE_ADAM,
                      .lr = 0.05,
                      .no_rollback = i > 0};
    MUST(cleave_optimizer_new(rt, &g, 1, 0.5, &o, e));
    DO(train_steps(&n, &o, 1, 70, 20, i == 2 ? END : CLOSE));
    DO(copy_weights(&n, &weights[i]));
    cleave_optimizer_release(rt, o, NULL);
  }
  CHECK(are_equal_numbers(&weights[0], &weights[1]) && are_equal_numbers(&weights[0], &weights[2]));
  return true;
}

/* Two modules with different rates, in two groups of one optimiser or in two optimisers, get the
 * same weights by steps that can be rolled back and by final steps. */
static bool different_rates_and_optimisers_step_correctly(void) {
  static const char *const names[] = {"two rates kept", "two rates final", "two kept", "two final"};
  numbers weights[4];
  for (int i = 0; i < 4; i++) {
    net n;
    bool is_final = i % 2;
    cleave_optimizer *o[2];
    DO(make_network(names[i], "master", &n));
    const cleave_group g[] = {
        {.modules = &n.a, .n_modules = 1, .lr = 0.5, .momentum = 0.9, .no_rollback = is_final},
        {.modules = &n.b, .n_modules = 1, .lr = 0.01, .momentum = 0.9, .no_rollback = is_final}};
    MUST(cleave_optimizer_new(rt, &g[0], i < 2 ? 2 : 1, 0, &o[0], e));
    if (i >= 2) MUST(cleave_optimizer_new(rt, &g[1], 1, 0, &o[1], e));
    DO(train_steps(&n, o, i < 2 ? 1 : 2, 90, 5, is_final ? END : CLOSE));
    DO(copy_weights(&n, &weights[i]));
  }
  for (int i = 1; i < 4; i++) CHECK(are_equal_numbers(&weights[0], &weights[i]));
  return true;
}

static bool module_without_optimizer_passes_gradients(void) {
  net n;
  cleave_optimizer *o;
  numbers weights_before, weights_after;
  DO(make_network("learns", "master", &n));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(copy_weights(&n, &weights_before));
  DO(train_steps(&n, &o, 1, 1, 1, CLOSE));
  DO(copy_weights(&n, &weights_after));
  CHECK(memcmp(weights_before.a, weights_after.a, sizeof weights_before.a) != 0);
  CHECK(memcmp(weights_before.b, weights_after.b, sizeof weights_before.b) == 0);
  return true;
}

/* Runs the test in a new runtime, in which no other module has an optimiser. */
static bool module_without_an_optimiser_may_take_part(void) {
  IN_RUNTIME(
      (&(cleave_options){.size = sizeof(cleave_options), .single_thread = is_single_threaded}),
      module_without_optimizer_passes_gradients());
  return true;
}

/* The context uses two modules. The final step is taken with the optimiser of one module, so the
 * weights of the other module do not change. */
static bool final_step_changes_only_parameters_that_it_names(void) {
  net n, other_network;
  cleave_optimizer *o, *unnamed_optimizer;
  numbers weights_before, weights_after, other_weights[2];
  DO(make_network("named", "master", &n));
  DO(make_network("unnamed", "master", &other_network));
  cleave_group g = {.modules = &n.a, .n_modules = 1, .lr = 0.5, .no_rollback = true};
  cleave_group u = {.modules = &n.b, .n_modules = 1, .lr = 0.5, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  MUST(cleave_optimizer_new(rt, &u, 1, 0, &unnamed_optimizer, e));
  DO(copy_weights(&n, &weights_before));
  DO(copy_weights(&other_network, &other_weights[0]));
  DO(train_steps(&n, &o, 1, 100, 2, END));
  DO(train_steps(&other_network, NULL, 0, 100, 1, END));
  DO(copy_weights(&n, &weights_after));
  DO(copy_weights(&other_network, &other_weights[1]));
  CHECK(memcmp(weights_before.a, weights_after.a, sizeof weights_before.a) != 0);
  CHECK(memcmp(weights_before.b, weights_after.b, sizeof weights_before.b) == 0 &&
        are_equal_numbers(&other_weights[0], &other_weights[1]));
  return true;
}

static bool nonfinite_final_step_changes_no_weight(void) {
  net n;
  cleave_optimizer *o;
  cleave_step_result step_result;
  numbers weights_before, weights_after;
  cleave_context c;
  cleave_reference x, t, h, y, loss;
  float in[12] = {1, 2, 3}, target[8] = {INFINITY};
  DO(make_network("final infinite", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(copy_weights(&n, &weights_before));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
  MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, t}, 2, &loss, e));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, o, c, 0, &step_result, e));
  CHECK(!step_result.applied && step_result.number == 1);
  MUST(cleave_context_end(rt, c, e));
  DO(copy_weights(&n, &weights_after));
  CHECK(are_equal_numbers(&weights_before, &weights_after));
  return true;
}

static bool mix_of_final_and_other_groups_is_refused(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  DO(make_network("mixed", "master", &n));
  cleave_group g[] = {{.modules = &n.a, .n_modules = 1, .lr = 0.5},
                      {.modules = &n.b, .n_modules = 1, .lr = 0.5, .no_rollback = true}};
  REFUSED(cleave_optimizer_new(rt, g, 2, 0, &o, e), CLEAVE_INVALID, "final");
  g[1].no_rollback = false; /* the refused call must not have changed the setting of the group */
  MUST(cleave_optimizer_new(rt, g, 2, 0, &o, e));
  DO(open_context(&c));
  DO(run_network_after(&n, c, 1, no_reference, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_context_end(rt, c, e)); /* no step was taken, so this waits for nothing */
  REFUSED(cleave_context_end(rt, c, e), CLEAVE_NOT_FOUND, "was closed");
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_NOT_FOUND, "was closed");
  return true;
}

/* ---- learning rates -------------------------------------------------------------------------- */

enum { STEPS = 6 };
/* rate of a cosine schedule that starts at 0.5: half the first rate times (1 + x), where x is the
 * cosine of the schedule's angle */
#define COSINE_RATE(x) (0.25 * (1 + (x)))
static const struct {
  cleave_schedule schedule;
  double lr[STEPS];
} rates[] = {
    {{.curve = CLEAVE_CONSTANT}, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
    {{.curve = CLEAVE_CONSTANT, .warmup_steps = 4}, {0.125, 0.25, 0.375, 0.5, 0.5, 0.5}},
    {{.curve = CLEAVE_STEPS, .step_size = 2, .gamma = 0.5}, {0.5, 0.5, 0.25, 0.25, 0.125, 0.125}},
    {{.curve = CLEAVE_COSINE, .total_steps = 6},
     {0.5, COSINE_RATE(0.86602540378), COSINE_RATE(0.5), COSINE_RATE(0), COSINE_RATE(-0.5),
      COSINE_RATE(-0.86602540378)}},
    {{.curve = CLEAVE_LINEAR, .total_steps = 5}, {0.5, 0.4, 0.3, 0.2, 0.1, 0}},
    {{.curve = CLEAVE_LINEAR, .warmup_steps = 2, .total_steps = 6},
     {0.25, 0.5, 0.5, 0.375, 0.25, 0.125}},
};
#undef COSINE_RATE

/* Takes a step of plain SGD of module a. True if it reports `lr` and changes each weight by lr
 * times the gradient. */
static bool changes_weights_by_rate(const net *n, cleave_optimizer *o, unsigned seed, double lr,
                                    uint64_t step_number) {
  cleave_context c;
  cleave_reference loss;
  cleave_step_result step_result;
  float weights_before[15], weights_after[15], g[15];
  DO(copy_weight(n->a, "0.weight", weights_before, 15));
  DO(open_context(&c));
  DO(run_network_after(n, c, seed, no_reference, NULL, &loss));
  DO(backward(c, loss, false));
  DO(copy_gradient(c, n->a, "0.weight", g, 15));
  MUST(cleave_step(rt, o, c, 0, &step_result, e));
  CHECK(step_result.applied && step_result.number == step_number &&
        fabs(step_result.lr - lr) < 1e-9);
  DO(close_context(c));
  DO(copy_weight(n->a, "0.weight", weights_after, 15));
  for (int i = 0; i < 15; i++)
    CHECK(fabs(weights_after[i] - (weights_before[i] - lr * g[i])) < 1e-6);
  return true;
}

static bool rates_and_weights_follow_the_schedule(void) {
  for (int i = 0; i < (int)(2 * sizeof rates / sizeof *rates); i++) {
    net n;
    char name[32];
    cleave_optimizer *o;
    snprintf(name, sizeof name, "rate %d", i);
    DO(make_network(name, "master", &n));
    cleave_group g = {.modules = &n.a,
                      .n_modules = 1,
                      .lr = 0.5,
                      .schedule = rates[i / 2].schedule,
                      .no_rollback = i % 2};
    MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
    for (unsigned k = 0; k < STEPS; k++)
      DO(changes_weights_by_rate(&n, o, k, rates[i / 2].lr[k], k + 1));
  }
  return true;
}

static bool optimizer_steps_and_rate_schedules_can_be_set(void) {
  const cleave_schedule halving = {.curve = CLEAVE_STEPS, .step_size = 1, .gamma = 0.5};
  const cleave_schedule constant = {.curve = CLEAVE_CONSTANT};
  for (int is_final = 0; is_final < 2; is_final++) {
    net n;
    cleave_optimizer *o;
    DO(make_network(is_final ? "set final" : "set", "master", &n));
    cleave_group g = {
        .modules = &n.a, .n_modules = 1, .lr = 0.5, .schedule = halving, .no_rollback = is_final};
    MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
    MUST(cleave_optimizer_set_steps(rt, o, 2, e));
    DO(changes_weights_by_rate(&n, o, 1, 0.125, 3));
    DO(changes_weights_by_rate(&n, o, 2, 0.0625, 4));
    MUST(cleave_optimizer_set_schedule(rt, o, &constant, e));
    DO(changes_weights_by_rate(&n, o, 3, 0.5, 5));
    MUST(cleave_optimizer_set_schedule(rt, o, &halving, e));
    MUST(cleave_optimizer_set_steps(rt, o, 1, e));
    DO(changes_weights_by_rate(&n, o, 4, 0.25, 2));
  }
  return true;
}

/* cleave_step stores a final step, and cleave_context_end sends it. The step must use the rate at
 * the time of cleave_step, although the schedule changes before the step is sent. */
static bool settings_apply_from_the_next_step(void) {
  const cleave_schedule halving = {.curve = CLEAVE_STEPS, .step_size = 1, .gamma = 0.5};
  const cleave_schedule constant = {.curve = CLEAVE_CONSTANT};
  for (int steps = 0; steps < 2; steps++) {
    net n;
    cleave_optimizer *o;
    cleave_context c;
    cleave_reference loss;
    float weights_before[15], weights_after[15], g[15];
    DO(make_network(steps ? "next steps" : "next schedule", "master", &n));
    cleave_group group = {
        .modules = &n.a, .n_modules = 1, .lr = 0.5, .schedule = halving, .no_rollback = true};
    MUST(cleave_optimizer_new(rt, &group, 1, 0, &o, e));
    MUST(cleave_optimizer_set_steps(rt, o, 1, e));
    DO(copy_weight(n.a, "0.weight", weights_before, 15));
    DO(open_context(&c));
    DO(run_network_after(&n, c, 1, no_reference, NULL, &loss));
    DO(backward(c, loss, false));
    DO(copy_gradient(c, n.a, "0.weight", g, 15));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    if (steps)
      MUST(cleave_optimizer_set_steps(rt, o, 3, e));
    else
      MUST(cleave_optimizer_set_schedule(rt, o, &constant, e));
    MUST(cleave_context_end(rt, c, e));
    DO(copy_weight(n.a, "0.weight", weights_after, 15));
    for (int i = 0; i < 15; i++)
      CHECK(fabs(weights_after[i] - (weights_before[i] - 0.25 * g[i])) < 1e-6);
    DO(changes_weights_by_rate(&n, o, 2, steps ? 0.0625 : 0.5, steps ? 4 : 3));
  }
  return true;
}

/* ---- random numbers of calls ----------------------------------------------------------------- */

static bool each_call_draws_its_own_dropout_mask(void) {
  cleave_module *m;
  cleave_context c[2];
  cleave_tensor out[4] = {{0}};
  float ones[64];
  for (int i = 0; i < 64; i++) ones[i] = 1;
  cleave_module_options o = {.size = sizeof o, .name = "mask", .at = at_a, .seed = 3};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 16);
  MUST(cleave_load_layers(rt, &o, "[{op: dropout, p: 0.5}]", &input, &m, e));
  for (int i = 0; i < 2; i++) {
    cleave_context_options context_options = {.size = sizeof context_options, .step = 5};
    MUST(cleave_context_open(rt, &context_options, &c[i], e));
    for (int k = 0; k < 2; k++) {
      cleave_reference x;
      DO(make_leaf(c[i], ones, 4, 16, true, &x));
      MUST(cleave_rpc_sync(rt, c[i], m, &x, 1, 0, NULL, &out[2 * i + k], e));
      add_to_digest(&out[2 * i + k]);
    }
    DO(close_context(c[i]));
  }
  CHECK(memcmp(out[0].data, out[1].data, 256) != 0);
  CHECK(memcmp(out[0].data, out[2].data, 256) == 0 && memcmp(out[1].data, out[3].data, 256) == 0);
  for (int i = 0; i < 4; i++) cleave_tensor_free(&out[i]);
  return true;
}

/* ---- several threads that wait in the API at the same time ----------------------------------- */

typedef struct waiting_thread {
  const net *n;
  unsigned seed;
  numbers last_weights;
  bool ok;
} waiting_thread;

static bool run_steps_in_thread(waiting_thread *w) {
  for (int i = 0; i < 30; i++) {
    cleave_context c;
    cleave_reference loss;
    cleave_tensor value = {0};
    DO(open_context(&c));
    DO(run_network_after(w->n, c, w->seed, no_reference, NULL, &loss));
    MUST(cleave_to_here(rt, loss, 0, &value, e));
    DO(backward(c, loss, false));
    cleave_tensor_free(&value);
    cleave_tensor g = {0};
    DO(read_gradient(c, w->n->a, "0.weight", &g));
    if (i) CHECK(memcmp(w->last_weights.a, g.data, sizeof w->last_weights.a) == 0);
    memcpy(w->last_weights.a, g.data, sizeof w->last_weights.a);
    cleave_tensor_free(&g);
    DO(close_context(c));
  }
  return true;
}

static void *wait_in_thread(void *user) {
  waiting_thread *w = user;
  w->ok = run_steps_in_thread(w);
  return NULL;
}

static bool waiting_threads_all_finish(void) {
  net n;
  waiting_thread waiters[3] = {{0}};
  pthread_t threads[3];
  DO(make_network("at once", "master", &n));
  for (unsigned i = 0; i < 3; i++) {
    waiters[i] = (waiting_thread){.n = &n, .seed = 300 + i / 2};
    CHECK(pthread_create(&threads[i], NULL, wait_in_thread, &waiters[i]) == 0);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 3; i++) DO(waiters[i].ok);
  CHECK(memcmp(waiters[0].last_weights.a, waiters[1].last_weights.a,
               sizeof waiters[0].last_weights.a) == 0);
  CHECK(memcmp(waiters[0].last_weights.a, waiters[2].last_weights.a,
               sizeof waiters[0].last_weights.a) != 0);
  return true;
}

static bool deadline_ends_only_the_wait(void) {
  net n;
  cleave_context c;
  cleave_reference h[2], loss[2];
  cleave_tensor out = {0};
  DO(make_network("deadline", "master", &n));
  DO(open_context(&c));
  DO(run_network_after(&n, c, 1, no_reference, &h[0], &loss[0]));
  DO(run_network_after(&n, c, 2, h[0], &h[1], &loss[1]));
  uint64_t begin = now_ms();
  REFUSED(cleave_to_here(rt, loss[1], 50, &out, e), CLEAVE_DEADLINE, "deadline");
  CHECK(now_ms() - begin >= 50 && now_ms() - begin < 5000);
  MUST(cleave_backward(rt, c, loss, 2, false, 0, e));
  MUST(cleave_to_here(rt, loss[1], 0, &out, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

/* ---- steps for a test that reads the workers' status ----------------------------------------- */

/* Takes steps until the input ends. Contexts are ended and not closed while the test reads the
 * worker's status. */
static bool take_steps_until_input_ends(int width) {
  net n;
  cleave_optimizer *o;
  char line[8];
  DO(make_network("watched", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.01, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  for (int step = 0; step < 2; step++) {
    cleave_context c;
    cleave_reference loss[MICRO_BATCHES];
    DO(run_windowed_step(&n, width, &c, loss));
    puts("called");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return false;
    MUST(backward_weighted(c, loss, micro_batch_weights, MICRO_BATCHES, e));
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

/* ---- running the tests ----------------------------------------------------------------------- */

static const test placed[] = {
    TEST(window_changes_no_bit_of_the_gradients),
    TEST(window_changes_no_bit_of_a_long_pipeline),
    TEST(call_after_a_backward_waits_for_it),
    TEST(value_is_sent_to_the_node_that_needs_it),
    TEST(impossible_predecessor_is_refused),
    TEST(weighted_roots_are_the_gradients_of_the_weighted_loss),
    TEST(root_weight_scales_and_defaults_to_one),
    TEST(invalid_root_weights_are_refused),
    TEST(final_steps_give_the_same_bits),
    TEST(different_rates_and_optimisers_step_correctly),
    TEST(final_step_changes_only_parameters_that_it_names),
    TEST(nonfinite_final_step_changes_no_weight),
    TEST(mix_of_final_and_other_groups_is_refused),
    TEST(rates_and_weights_follow_the_schedule),
    TEST(optimizer_steps_and_rate_schedules_can_be_set),
    TEST(settings_apply_from_the_next_step),
    TEST(each_call_draws_its_own_dropout_mask),
    TEST(waiting_threads_all_finish),
    TEST(deadline_ends_only_the_wait),
    TEST(roots_in_an_impossible_order_are_refused),
    TEST(weights_cannot_change_while_calls_wait_for_a_backward),
    TEST(module_without_an_optimiser_may_take_part),
};

int main(int argc, char **argv) {
  const char *mode;
  if (!read_arguments(argc, argv, &mode)) return 2;
  const cleave_options o = {.size = sizeof o, .single_thread = is_single_threaded};
  if (!open_runtime(&o, &rt)) {
    print_result(false, "open");
    return 1;
  }
  if (strcmp(mode, "window") == 0) {
    if (!take_steps_until_input_ends(atoi(argv[7]))) print_result(false, "steps_for_a_watcher");
  } else {
    (void)RUN_ALL(placed);
    print_digest();
  }
  print_result(close_runtime(rt), "close_finds_nothing_left");
  return n_failed != 0;
}
