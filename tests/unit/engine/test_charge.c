/* SPDX-License-Identifier: Apache-2.0
 *
 * What a module costs its host before it is there: nothing when it does not fit, and no more time
 * once nobody waits for it.
 */
#include <sys/resource.h>

#include "tests/unit/engine/engine_test.h"

enum { MIB = 1 << 20, WIDTH = 8192, WEIGHT_BYTES = WIDTH * WIDTH * 4 };

typedef struct fixture {
  clv_account *account;
  clv_pool *pool;
} fixture;

static void set_up(fixture *f, uint64_t most) {
  clv_err err;
  clv_account_options o = {.of = "this test", .most = {[CLV_QUOTA_BYTES] = most}};
  assert_ok(clv_account_new(&o, &f->account, &err));
  assert_ok(clv_pool_new_of(f->account, &f->pool, &err));
}

/* Nothing may be charged any more. */
static void tear_down(fixture *f) {
  assert_int_equal(clv_account_used(f->account, CLV_QUOTA_BYTES), 0);
  clv_pool_unref(f->pool);
  clv_account_unref(f->account);
}

static uint64_t most_resident(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (uint64_t)u.ru_maxrss << 10;
}

static void refused(const clv_module_options *o, clv_code code, const char *part) {
  clv_err err = {0};
  clv_module *module = NULL;
  uint64_t before = most_resident();
  assert_int_equal(clv_module_new(o, &module, &err), code);
  assert_null(module);
  if (!strstr(err.text, part)) fail_msg("'%s' is not in: %s", part, err.text);
  assert_true(most_resident() - before < 64 * MIB);
}

static void what_does_not_fit_takes_no_memory(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 32 * MIB);
  clv_module_options o = stage_of(graph_of(CLV_OP_LINEAR, 2, WIDTH), 3);
  o.pool = f.pool;
  refused(&o, CLV_EXHAUSTED, "module 3: ");
  tear_down(&f);
}

/* The weights fit, with the moments they do not. */
static void moments_are_charged_with_the_weights(void **state) {
  (void)state;
  fixture f;
  set_up(&f, 2ull * WEIGHT_BYTES);
  clv_module_options o = stage_of(graph_of(CLV_OP_LINEAR, 2, WIDTH), 0);
  o.pool = f.pool;
  o.optimizer = (clv_optim_config){
      .kind = CLV_OPTIM_ADAM, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  refused(&o, CLV_EXHAUSTED, "805");
  tear_down(&f);
}

/* The weights fit, with what a batch needs they do not. */
static void plans_are_charged_before_the_weights_are_there(void **state) {
  (void)state;
  fixture f;
  set_up(&f, WEIGHT_BYTES + 8ull * MIB);
  clv_module_options o = stage_of(graph_of(CLV_OP_LINEAR, 2, WIDTH), 0);
  o.pool = f.pool;
  o.batch = 4096;
  refused(&o, CLV_EXHAUSTED, "a batch of 4096");
  tear_down(&f);
}

static bool gone_after(void *user) {
  int *asked = user;
  return --*asked < 0;
}

static void who_does_not_wait_any_more_ends_it(void **state) {
  (void)state;
  for (int asked = 0; asked < 5; asked++) {
    fixture f;
    int left = asked;
    const clv_waiter waiter = {gone_after, &left};
    set_up(&f, 2ull * WEIGHT_BYTES);
    clv_module_options o = stage_of(graph_of(CLV_OP_LINEAR, 2, 2048), 0);
    clv_err err = {0};
    clv_module *module = NULL;
    o.pool = f.pool;
    o.waiter = &waiter;
    assert_int_equal(clv_module_new(&o, &module, &err), asked < 4 ? CLV_CANCELLED : CLV_OK);
    clv_module_free(module);
    tear_down(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_does_not_fit_takes_no_memory),
      cmocka_unit_test(moments_are_charged_with_the_weights),
      cmocka_unit_test(plans_are_charged_before_the_weights_are_there),
      cmocka_unit_test(who_does_not_wait_any_more_ends_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
