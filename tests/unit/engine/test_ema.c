/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests averages of parameters as state of a module: they begin equal to the parameters, follow
 * them after each step, and are rolled back with a step.
 */
#include "common/engine/module_int.h"
#include "tests/unit/engine/engine_test.h"
#include "tests/unit/far.h"

enum { BATCH = 2, WIDTH = 3 };

static clv_err err;

/* Makes a linear layer with a frozen bias, and a batchnorm after it. is_fixed: the bias is frozen
 * for good, so it has no average. */
static clv_module *make_module_with(const clv_backend *backend, double ema, bool is_fixed) {
  static const char *const bias[] = {"0.bias"};
  clv_graph *g = make_one_layer_graph(CLV_OP_LINEAR, BATCH, WIDTH);
  clv_attrs attrs;
  clv_module *m;
  assert_ok(clv_attrs_parse(CLV_OP_BATCHNORM, NULL, 0, &attrs, &err));
  assert_ok(clv_graph_add(g, CLV_OP_BATCHNORM, &attrs, "1", 1, &(int){g->output_node}, 1,
                          &g->output_node, &err));
  clv_module_options o = make_module_options(g, 0);
  o.backend = backend;
  o.optimizer.ema = ema;
  o.frozen = bias;
  o.n_frozen = 1;
  o.is_frozen_for_good = is_fixed;
  assert_ok(clv_module_new(&o, &m, &err));
  return m;
}

static clv_module *make_module(const clv_backend *backend, double ema) {
  return make_module_with(backend, ema, true);
}

static void read_item(clv_module *m, clv_state_kind what, const char *name, float ret[WIDTH]) {
  clv_state_item item;
  assert_ok(clv_module_state_find(m, what, name, &item, &err));
  item.bytes = WIDTH * sizeof *ret;
  assert_ok(clv_state_item_get(&item, ret, &err));
}

static void write_item(clv_module *m, clv_state_kind what, const char *name, float value) {
  const float values[] = {value, value + 1, value + 2};
  assert_ok(clv_module_state_set(m, what, name, CLV_F32, &CLV_SHAPE(WIDTH), values, &err));
}

static void assert_begins_with(clv_module *m, clv_state_kind what, const char *name, float value) {
  float found[WIDTH];
  read_item(m, what, name, found);
  if (found[0] != value) fail_msg("%s is %g, not %g", name, (double)found[0], (double)value);
}

static void take_step(clv_module *m, float gradient) {
  float host[64];
  void *gradients;
  double rate = 1;
  const clv_backend *b = m->o.backend;
  for (size_t i = 0; i < CLV_COUNT(host); i++) host[i] = gradient;
  assert_true(m->params->trainable_bytes <= sizeof host);
  assert_ok(clv_backend_allocate(b, sizeof host, &gradients, &err));
  assert_ok(clv_backend_put(b, gradients, host, sizeof host, &err));
  clv_optim_step(m->optim, m->block, gradients, &rate, 1);
  assert_ok(clv_backend_finish(b, &err));
  clv_backend_free_memory(b, gradients);
}

/* Checks that an average equals its parameter until the first step, even if the parameter is
 * written in pieces, and that later steps average old and new values. */
static void check_average_of_parameter(const clv_backend *backend) {
  clv_module *m = make_module(backend, 0.5);
  float drawn[WIDTH], average[WIDTH], piece = 9;
  read_item(m, CLV_STATE_WEIGHTS, "0.weight", drawn);
  read_item(m, CLV_STATE_OPTIMIZER, "0.weight.ema", average);
  assert_memory_equal(drawn, average, sizeof drawn);
  write_item(m, CLV_STATE_WEIGHTS, "1.weight", 4);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 4);
  assert_ok(clv_module_state_set_part(m, CLV_STATE_WEIGHTS, "1.weight", 4, 4, &piece, &err));
  read_item(m, CLV_STATE_OPTIMIZER, "1.weight.ema", average);
  assert_true(average[0] == 4 && average[1] == 9 && average[2] == 6);
  take_step(m, 1);
  assert_begins_with(m, CLV_STATE_WEIGHTS, "1.weight", 3);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 3);
  take_step(m, 1);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 2.5f);
  write_item(m, CLV_STATE_WEIGHTS, "1.weight", 7);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 2.5f);
  clv_module_free(m);
}

static void average_is_the_parameter_until_the_first_step(void **state) {
  (void)state;
  check_average_of_parameter(clv_backend_cpu());
  check_average_of_parameter(far_get_backend(clv_backend_cpu()));
}

static void reverted_step_reverts_the_average(void **state) {
  (void)state;
  clv_module *m = make_module(clv_backend_cpu(), 0.5);
  clv_pool *pool;
  assert_ok(clv_pool_new(1 << 20, 64, &pool, &err));
  clv_module_set_pool(m, pool);
  write_item(m, CLV_STATE_WEIGHTS, "1.weight", 4);
  take_step(m, 1);
  assert_ok(clv_module_prepare_snapshot(m, &err));
  clv_module_take_snapshot(m);
  take_step(m, 1);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 2.5f);
  clv_module_restore_snapshot(m);
  assert_begins_with(m, CLV_STATE_OPTIMIZER, "1.weight.ema", 3);
  clv_module_free(m);
  clv_pool_unref(pool);
}

/* Parameters that are frozen for good have no average, and buffers have none either. */
static void only_trained_parameters_have_an_average(void **state) {
  static const char *const averaged_names[] = {"0.weight", "1.weight", "1.bias"};
  clv_state_item item;
  (void)state;
  clv_module *m = make_module(clv_backend_cpu(), 0.5), *without = make_module(clv_backend_cpu(), 0);
  assert_int_equal(clv_module_state_count(m, CLV_STATE_OPTIMIZER), 3 + 1);
  assert_int_equal(clv_module_state_count(without, CLV_STATE_OPTIMIZER), 1);
  assert_int_equal(clv_module_state_count(without, CLV_STATE_EMA), 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_true(clv_module_state_item(m, CLV_STATE_EMA, i, &item));
    assert_string_equal(item.name, averaged_names[i]);
    assert_true(clv_module_state_item(m, CLV_STATE_OPTIMIZER, i, &item));
    assert_true(clv_optim_is_ema(item.name));
  }
  assert_int_equal(clv_module_state_find(m, CLV_STATE_OPTIMIZER, "0.bias.ema", &item, &err),
                   CLV_NOT_FOUND);
  assert_true(clv_module_bytes(m) == clv_module_bytes(without) + m->params->trainable_bytes);
  clv_module_free(m);
  clv_module_free(without);
}

/* A frozen parameter may come from an artifact whose weights peers must not read. Peers can read
 * averages, so this parameter's average keeps the random initial values. */
static void written_frozen_parameter_is_not_in_its_average(void **state) {
  float drawn[WIDTH], average[WIDTH];
  (void)state;
  clv_module *m = make_module_with(clv_backend_cpu(), 0.5, false);
  read_item(m, CLV_STATE_WEIGHTS, "0.bias", drawn);
  write_item(m, CLV_STATE_WEIGHTS, "0.bias", 5);
  take_step(m, 1);
  take_step(m, 1);
  read_item(m, CLV_STATE_OPTIMIZER, "0.bias.ema", average);
  assert_memory_equal(drawn, average, sizeof drawn);
  clv_module_free(m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(average_is_the_parameter_until_the_first_step),
      cmocka_unit_test(reverted_step_reverts_the_average),
      cmocka_unit_test(only_trained_parameters_have_an_average),
      cmocka_unit_test(written_frozen_parameter_is_not_in_its_average),
  };
  return cmocka_run_group_tests_name("ema", tests, NULL, NULL);
}
