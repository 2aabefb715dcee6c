/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests groups of parameters, each with its own optimiser settings: how a module stores them, and
 * the learning rates that a step must give for them.
 */
#include <stdio.h>

#include "tests/unit/engine/engine_test.h"

enum { BATCH = 2, WIDTH = 3, WEIGHTS = WIDTH * WIDTH };

/* ---- groups of a module's parameters --------------------------------------------------------- */

static clv_module_options make_options(uint32_t index) {
  return make_module_options(make_one_layer_graph(CLV_OP_LINEAR, BATCH, WIDTH), index);
}

static clv_module_group make_group(const char *const *params, uint32_t n) {
  return (clv_module_group){.optimizer = {.kind = CLV_OPTIM_SGD, .lr = 0.1, .momentum = 0.9},
                            .params = params,
                            .n_params = n};
}

static void assert_refused(const clv_module_group *groups, uint32_t n, const char *frozen,
                           clv_code code, const char *part) {
  clv_err err = {0};
  clv_module *module = NULL;
  clv_module_options o = make_options(0);
  o.groups = groups;
  o.n_groups = n;
  o.frozen = &frozen;
  o.n_frozen = frozen != NULL;
  assert_int_equal(clv_module_new(&o, &module, &err), code);
  assert_null(module);
  if (!strstr(err.text, part)) fail_msg("'%s' is not in: %s", part, err.text);
}

static void invalid_parameter_groups_are_refused(void **state) {
  static const char *const bias[] = {"0.bias"}, *const unknown_names[] = {"0.bias", "0.scale"};
  static const char *const equal_names[] = {"0.weight", "0.weight"};
  clv_module_group groups[CLV_WIRE_GROUPS + 1] = {make_group(bias, 1), make_group(bias, 1)};
  (void)state;
  assert_refused(groups, 2, NULL, CLV_EXISTS, "'0.bias' is in groups 1 and 2");
  assert_refused(groups, 1, "0.bias", CLV_INVALID, "'0.bias' of group 1 does not learn");
  assert_refused(groups, CLV_WIRE_GROUPS + 1, NULL, CLV_INVALID,
                 "16 parameter groups after the first");
  groups[0] = make_group(equal_names, 2);
  assert_refused(groups, 1, NULL, CLV_EXISTS, "'0.weight' is in groups 1 and 1");
  groups[0] = make_group(unknown_names, 2);
  assert_refused(groups, 1, NULL, CLV_NOT_FOUND, "'0.scale' for group 1");
  groups[0] = make_group(bias, 1);
  groups[0].optimizer.kind = CLV_OPTIM_ADAM;
  assert_refused(groups, 1, NULL, CLV_INVALID, "group 1 is of kind 1");
}

/* If one group has momentum, the state has a moment for every parameter, also of the other
 * group. */
static void momentum_in_one_group_gives_every_parameter_a_moment(void **state) {
  static const char *const bias[] = {"0.bias"};
  const clv_module_group group = make_group(bias, 1);
  clv_err err = {0};
  clv_state_item item;
  CLV_AUTO(clv_module_freep) clv_module *module = NULL;
  clv_module_options o = make_options(0);
  (void)state;
  o.groups = &group;
  o.n_groups = 1;
  assert_ok(clv_module_new(&o, &module, &err));
  assert_int_equal(clv_module_state_count(module, CLV_STATE_OPTIMIZER), 3);
  assert_true(clv_module_state_item(module, CLV_STATE_OPTIMIZER, 0, &item));
  assert_string_equal(item.name, "0.weight.momentum_buffer");
}

/* ---- steps with a learning rate for each group ----------------------------------------------- */

/* A node, the last packet that its program received, and the text of the last ABORT. Module 0 has
 * one group of parameters. Module 1 has its bias in group 1. Module 2 does too, and has no
 * parameter in group 0. */
typedef struct fixture {
  clv_pool *pool;
  clv_session_node *node;
  clv_packet *last_packet;
  char abort_text[CLV_WIRE_TEXT + 1];
} fixture;

enum { MODULES = 3 };

static void keep_packet(void *user, clv_packet *p) {
  fixture *f = user;
  clv_packet_free(f->last_packet);
  f->last_packet = p;
  if (p->frame.kind == CLV_ABORT)
    memcpy(f->abort_text, p->frame.failure.text, sizeof f->abort_text);
  clv_node_interrupt(f->node);
}

static void add_module(fixture *f, uint32_t i, const clv_module_group *group) {
  clv_err err = {0};
  clv_module *module;
  clv_module_options so = make_options(i);
  so.groups = group;
  so.n_groups = i > 0;
  so.group0_is_frozen = i == 2;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(f->node, module, &err));
}

static int set_up(void **state) {
  static const char *const bias[] = {"0.bias"};
  const clv_module_group group = make_group(bias, 1);
  clv_err err = {0};
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_ok(clv_pool_new(64 << 20, 4096, &f->pool, &err));
  clv_node_options o = {.pool = f->pool, .user = f, .on_program = keep_packet};
  assert_ok(clv_node_new(&o, &f->node, &err));
  for (uint32_t i = 0; i < MODULES; i++) add_module(f, i, &group);
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  clv_packet_free(f->last_packet);
  clv_node_free(f->node);
  clv_pool_unref(f->pool);
  free(f);
  return 0;
}

static void send_packet(fixture *f, clv_packet *p) {
  clv_err err = {0};
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static clv_frame_kind wait_for_answer(fixture *f) {
  clv_node_clear_interrupt(f->node);
  assert_true(clv_node_run_until(f->node, clv_now_ns() + 10000000000u));
  return f->last_packet->frame.kind;
}

static clv_tensor *make_tensor(fixture *f, float first) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(f->pool, CLV_F32, &CLV_SHAPE(BATCH, WIDTH), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = first + (float)i;
  return t;
}

/* Runs forward and backward of all modules. Returns the gradients that the test computes itself as
 * sums over the rows r: weight [c][k] += dy[r][c] x[r][k], bias [c] += dy[r][c]. */
static void compute_gradients(fixture *f, uint64_t context, float *ret_gradient) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *tx = make_tensor(f, 1), *tdy = make_tensor(f, 2);
  const float *x = tx->data, *dy = tdy->data;
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(f->pool, context, 11 + i, i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, 0, false, tx, &err));
    send_packet(f, p);
  }
  assert_ok(clv_packet_new_prepare(f->pool, context, 1, MODULES, false, true, false, &p, &err));
  for (uint32_t i = MODULES; i-- > 0;) assert_ok(clv_packet_add_needed_call(p, 11 + i, 1, 0, &err));
  send_packet(f, p);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_gradient(f->pool, context, 1, 11 + i, 0, "", tdy, &p, &err));
    send_packet(f, p);
  }
  if (wait_for_answer(f) != CLV_FINISHED) fail_msg("%s", f->abort_text);
  /* FINISHED has a sum of squared gradients for each parameter, also for those without a group */
  assert_int_equal(f->last_packet->tensor[0]->n, 2 * MODULES);
  memset(ret_gradient, 0, (WEIGHTS + WIDTH) * sizeof(float));
  for (int r = 0; r < BATCH; r++)
    for (int c = 0; c < WIDTH; c++) {
      ret_gradient[WEIGHTS + c] += dy[r * WIDTH + c];
      for (int k = 0; k < WIDTH; k++)
        ret_gradient[c * WIDTH + k] += dy[r * WIDTH + c] * x[r * WIDTH + k];
    }
}

/* Reads weight and bias of a module. */
static void read_module(fixture *f, uint32_t module, float *ret) {
  clv_state_item item;
  clv_module *s = clv_node_module(f->node, module);
  assert_true(clv_module_state_item(s, CLV_STATE_WEIGHTS, 0, &item));
  memcpy(ret, item.data, WEIGHTS * sizeof *ret);
  assert_true(clv_module_state_item(s, CLV_STATE_WEIGHTS, 1, &item));
  memcpy(ret + WEIGHTS, item.data, WIDTH * sizeof *ret);
}

static clv_packet *make_apply(fixture *f, uint64_t context, uint32_t module, const float *lrs,
                              uint32_t n_more_rates) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_apply(f->pool, context, 21, module, 1, lrs[0], true, &p, &err));
  assert_ok(clv_packet_set_group_lrs(p, lrs + 1, n_more_rates, &err));
  return p;
}

/* A step changes each group by its own learning rate, and ignores rates that no group has. */
static void each_group_steps_with_its_rate(void **state) {
  static const float lrs[] = {0.5f, 0.25f, 8}, lrs_with_zero[] = {0, 0.25f};
  fixture *f = *state;
  float gradient[WEIGHTS + WIDTH], before[MODULES][WEIGHTS + WIDTH], after[WEIGHTS + WIDTH];
  for (uint32_t i = 0; i < MODULES; i++) read_module(f, i, before[i]);
  compute_gradients(f, 5, gradient);
  send_packet(f, make_apply(f, 5, CLV_MODULE_ALL, lrs, 2));
  assert_int_equal(wait_for_answer(f), CLV_APPLIED);
  for (uint32_t i = 0; i < MODULES; i++) {
    read_module(f, i, after);
    for (int k = 0; k < WEIGHTS + WIDTH; k++) {
      float lr = k < WEIGHTS ? (i == 2 ? lrs_with_zero : lrs)[0] : lrs[i > 0];
      assert_float_equal(after[k], before[i][k] - lr * gradient[k], 1e-5);
    }
  }
}

/* Sends `step`, which has one learning rate too few. The node must refuse the step and change
 * nothing. */
static void assert_refused_for_rates(fixture *f, uint64_t context, clv_packet *step) {
  static const char wanted[] = "1 learning rate for module 1, whose parameters are in 2 groups";
  float gradient[WEIGHTS + WIDTH], before[MODULES][WEIGHTS + WIDTH], after[WEIGHTS + WIDTH];
  clv_frame_kind answer_kind = step->frame.kind == CLV_APPLY ? CLV_ABORT : CLV_ENDED;
  for (uint32_t i = 0; i < MODULES; i++) read_module(f, i, before[i]);
  compute_gradients(f, context, gradient);
  f->abort_text[0] = '\0';
  send_packet(f, step);
  while (wait_for_answer(f) != answer_kind) continue;
  if (!strstr(f->abort_text, wanted)) fail_msg("'%s' is not in: %s", wanted, f->abort_text);
  if (answer_kind == CLV_ABORT)
    assert_int_equal(f->last_packet->frame.failure.code, CLV_PRECONDITION);
  for (uint32_t i = 0; i < MODULES; i++) {
    read_module(f, i, after);
    assert_memory_equal(before[i], after, sizeof after);
  }
}

static void step_with_too_few_rates_changes_nothing(void **state) {
  static const float lrs[] = {0.5f, 0.25f};
  fixture *f = *state;
  clv_err err = {0};
  clv_packet *end;
  assert_refused_for_rates(f, 6, make_apply(f, 6, CLV_MODULE_ALL, lrs, 0));
  assert_refused_for_rates(f, 7, make_apply(f, 7, 1, lrs, 0));
  assert_ok(clv_packet_new_end_context(f->pool, 8, 22, &end, &err));
  clv_packet_set_end_commit(end, 1, lrs[0], true);
  assert_refused_for_rates(f, 8, end);
  clv_packet *p = make_apply(f, 9, 0, lrs, 1);
  assert_int_equal(clv_packet_set_group_lrs(p, lrs, CLV_WIRE_GROUPS + 1, &err), CLV_EXHAUSTED);
  clv_packet_free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_parameter_groups_are_refused),
      cmocka_unit_test(momentum_in_one_group_gives_every_parameter_a_moment),
      cmocka_unit_test_setup_teardown(each_group_steps_with_its_rate, set_up, tear_down),
      cmocka_unit_test_setup_teardown(step_with_too_few_rates_changes_nothing, set_up, tear_down),
  };
  return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
