/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that the memory of a module is charged to its account before it is allocated. A module that
 * does not fit leaves nothing charged, and clv_module_new stops once its caller has left.
 */
#include <sys/resource.h>

#include "common/engine/module_int.h"
#include "tests/unit/engine/engine_test.h"

enum { MIB = 1 << 20, WIDTH = 8192, WEIGHT_BYTES = WIDTH * WIDTH * 4 };

typedef struct fixture {
  clv_account *account;
  clv_pool *pool;
} fixture;

static void set_up(fixture *f, uint64_t quota_bytes) {
  clv_err err;
  clv_account_options o = {.owner_in_messages = "this test",
                           .limits = {[CLV_QUOTA_BYTES] = quota_bytes}};
  assert_ok(clv_account_new(&o, &f->account, &err));
  assert_ok(clv_pool_new_for_account(f->account, &f->pool, &err));
}

/* Frees the fixture, and asserts that no bytes are charged any more. */
static void tear_down(fixture *f) {
  assert_int_equal(clv_account_usage(f->account, CLV_QUOTA_BYTES), 0);
  clv_pool_unref(f->pool);
  clv_account_unref(f->account);
}

static uint64_t get_peak_memory(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (uint64_t)u.ru_maxrss << 10;
}

static void assert_refused(const clv_module_options *o, clv_code code, const char *part) {
  clv_err err = {0};
  clv_module *module = NULL;
  uint64_t before = get_peak_memory();
  assert_int_equal(clv_module_new(o, &module, &err), code);
  assert_null(module);
  if (!strstr(err.text, part)) fail_msg("'%s' is not in: %s", part, err.text);
  assert_true(get_peak_memory() - before < 64 * MIB);
}

static void oversized_module_is_refused_before_allocation(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 32 * MIB);
  clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 2, WIDTH), 3);
  o.pool = f.pool;
  assert_refused(&o, CLV_EXHAUSTED, "module 3: ");
  tear_down(&f);
}

/* The quota suffices for the weights, but not for the moments of Adam, so the module is refused. */
static void moments_are_charged_with_the_weights(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 2ull * WEIGHT_BYTES);
  clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 2, WIDTH), 0);
  o.pool = f.pool;
  o.optimizer = (clv_optim_config){
      .kind = CLV_OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  assert_refused(&o, CLV_EXHAUSTED, "805");
  tear_down(&f);
}

/* The quota suffices for the weights, but not for the buffers of a batch. The module is refused
 * before its weights are allocated. */
static void plan_memory_is_charged_before_weights_are_allocated(void **state) {
  (void)state;
  fixture f;
  set_up(&f, WEIGHT_BYTES + 8ull * MIB);
  clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 2, WIDTH), 0);
  o.pool = f.pool;
  o.batch = 4096;
  assert_refused(&o, CLV_EXHAUSTED, "a batch of 4096");
  tear_down(&f);
}

static bool has_caller_left(void *user) {
  int *countdown = user;
  return --*countdown < 0;
}

static void module_new_stops_when_caller_leaves(void **state) {
  (void)state;
  for (int n_polls_before_leaving = 0; n_polls_before_leaving < 5; n_polls_before_leaving++) {
    fixture f;
    int countdown = n_polls_before_leaving;
    const clv_cancel_hook cancel_hook = {has_caller_left, &countdown};
    set_up(&f, 2ull * WEIGHT_BYTES);
    clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 2, 2048), 0);
    clv_err err = {0};
    clv_module *module = NULL;
    o.pool = f.pool;
    o.cancel_hook = &cancel_hook;
    assert_int_equal(clv_module_new(&o, &module, &err),
                     n_polls_before_leaving < 4 ? CLV_CANCELLED : CLV_OK);
    clv_module_free(module);
    tear_down(&f);
  }
}

/* ---- plans for many batch sizes, which a module keeps in a cache ----------------------------- */

/* Returns dropout over packed sequences with this many rows. */
static clv_graph *make_packed_graph(void) {
  clv_graph *g;
  int in[2];
  clv_attr_value packed_attr = {.key = CLV_ATTR_PACKED, .n_ints = 1, .ints = {64}};
  clv_attrs attrs;
  clv_err err;
  assert_ok(clv_graph_new(&g, &err));
  assert_ok(clv_graph_add_input(g, "x", CLV_F32, &CLV_SHAPE(64, 512), &in[0], &err));
  assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(1), &in[1], &err));
  assert_ok(clv_attrs_parse(CLV_OP_DROPOUT, &packed_attr, 1, &attrs, &err));
  assert_ok(clv_graph_add(g, CLV_OP_DROPOUT, &attrs, NULL, 0, in, 2, NULL, &err));
  return g;
}

/* Gets a training call for this many rows, and returns its plan. ret NULL: the call is put back
 * into its plan at once. */
static clv_module_plan *get_training_call(clv_module *m, int64_t rows, clv_call **ret) {
  clv_module_plan *plan;
  clv_call *c;
  clv_err err;
  const int64_t batch[CLV_MAX_INPUTS] = {rows, m->graph->has_per_input_batches ? 1 : rows};
  assert_ok(clv_module_plan_for(m, batch, true, 1, &plan, &err));
  assert_ok(clv_module_call_get(m, plan, &c, &err));
  if (ret)
    *ret = c;
  else
    clv_module_call_put(plan, c);
  return plan;
}

/* Plans without calls whose last use is longest ago are freed, and their memory is no longer
 * charged. A plan in use is kept. */
static void oldest_idle_packed_plans_are_evicted(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 64 * MIB);
  clv_err err;
  clv_module *m;
  clv_module_options o = make_module_options(make_packed_graph(), 0);
  o.pool = f.pool;
  assert_ok(clv_module_new(&o, &m, &err));
  clv_module_set_pool(m, f.pool);
  clv_call *held_call;
  clv_module_plan *plan_in_use = get_training_call(m, 1, &held_call);
  clv_plan *kept_plan = plan_in_use->plan;
  for (int64_t rows = 2; rows < 60; rows++) {
    get_training_call(m, rows, NULL);
    /* this plan is used in each round, so it is never the one whose use is longest ago */
    get_training_call(m, 2, NULL);
    assert_true(m->n_plans <= MAX_IDLE_PLANS + 1);
  }
  assert_ptr_equal(plan_in_use->plan, kept_plan);
  int64_t kept_rows[MAX_IDLE_PLANS + 1], wanted_rows[] = {1, 2, 57, 58, 59};
  uint64_t plan_bytes = 0, used_bytes = clv_account_usage(f.account, CLV_QUOTA_BYTES);
  for (int i = 0; i < m->n_plans; i++) plan_bytes += m->plans[i].charged_bytes;
  for (int i = 0; i < m->n_plans; i++) kept_rows[i] = m->plans[i].batch[0];
  for (int i = 0; i <= MAX_IDLE_PLANS; i++) {
    bool is_found = false;
    for (int k = 0; k < m->n_plans; k++) is_found |= kept_rows[k] == wanted_rows[i];
    assert_true(is_found);
  }
  assert_true(plan_bytes <= used_bytes && used_bytes <= m->charged_bytes &&
              m->charged_bytes - plan_bytes < 1024);
  clv_module_call_put(plan_in_use, held_call);
  clv_module_free(m);
  tear_down(&f);
}

/* Plans of other batch sizes are kept while there is memory. When there is none, they are evicted,
 * so that no batch size is refused. */
static void full_plan_cache_evicts_instead_of_refusing(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 64 * MIB);
  clv_err err;
  clv_module *m;
  clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, 2, 8), 0);
  o.pool = f.pool;
  assert_ok(clv_module_new(&o, &m, &err));
  clv_module_set_pool(m, f.pool);
  for (int64_t rows = 1; rows <= MAX_PLANS + 5; rows++) get_training_call(m, rows, NULL);
  assert_int_equal(m->n_plans, MAX_PLANS);
  clv_module_plan *newest_plan = get_training_call(m, MAX_PLANS + 5, NULL);
  assert_int_equal(newest_plan->batch[0], MAX_PLANS + 5);
  clv_module_free(m);
  tear_down(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(oversized_module_is_refused_before_allocation),
      cmocka_unit_test(moments_are_charged_with_the_weights),
      cmocka_unit_test(plan_memory_is_charged_before_weights_are_allocated),
      cmocka_unit_test(module_new_stops_when_caller_leaves),
      cmocka_unit_test(oldest_idle_packed_plans_are_evicted),
      cmocka_unit_test(full_plan_cache_evicts_instead_of_refusing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
