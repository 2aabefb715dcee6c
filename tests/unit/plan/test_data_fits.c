/* SPDX-License-Identifier: Apache-2.0
 *
 * What does not go together is found before anything runs: shapes of both sets, labels and outputs,
 * and micro-batches that batchnorm cannot train on.
 */
#include "master/plan/plan.h"
#include "tests/unit/files.h"

enum { RECORDS = 17, COLUMNS = 4 };

/* Zeros: shape[0] records. */
static void put_zeros(const char *name, const char *descr, const char *shape, size_t bytes) {
  CLV_AUTO(clv_bytes_done) clv_bytes dict = {0}, b = {0};
  CLV_AUTO(clv_freep) char *zeros = calloc(1, bytes);
  clv_bytes_printf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
  uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  clv_bytes_add(&b, head, sizeof head);
  clv_bytes_printf(&b, "%-117s\n", dict.data);
  clv_bytes_add(&b, zeros, bytes);
  assert_false(b.failed);
  put(name, b.data, b.len);
}

/* The session with these sets; "" when all goes together. */
static void expect(const char *const *sets, size_t n_sets, const char *says) {
  static const char text[] =
      "version: 1\nname: small\ndata: {format: npy, train: [x.npy, y.npy], test: [x.npy, y.npy]}\n"
      "stages: [{name: a, at: master, layers: [{op: linear, out: 3}, {op: batchnorm}]}]\n"
      "loss: {kind: cross_entropy}\n"
      "train: {batch: 8, drop_last: true, optimizer: {kind: sgd, lr: 0.1}}\n";
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  clv_run_data d = {0};
  clv_config_overrides over = {.sets = sets, .n_sets = n_sets};
  clv_err err = {0};
  assert_ok(clv_session_config_parse(at("s.yaml"), text, sizeof text - 1, &over, &c, &err), &err);
  assert_ok(clv_run_data_open(c, true, &d, &err), &err);
  clv_shape sample = clv_dataset_x_shape(d.train, 1);
  assert_ok(clv_blueprint_new(c, &sample, clv_dataset_y_dtype(d.train), &b, &err), &err);
  clv_code code = clv_run_data_fits(&d, b, &err);
  assert_int_equal(code, *says ? CLV_INVALID : CLV_OK);
  if (*says) assert_says(&err, says);
  clv_run_data_done(&d);
}

#define EXPECT(says, ...)                                \
  do {                                                   \
    const char *const sets_[] = {__VA_ARGS__};           \
    expect(sets_, sizeof sets_ / sizeof sets_[0], says); \
  } while (0)

static void sets_and_batches(void **state) {
  (void)state;
  put_zeros("x.npy", "<f4", "17, 4", (size_t)RECORDS * COLUMNS * 4);
  put_zeros("wide.npy", "<f4", "17, 5", (size_t)RECORDS * 5 * 4);
  put_zeros("y.npy", "<i8", "17,", (size_t)RECORDS * 8);
  put_zeros("t.npy", "<f4", "17, 2", (size_t)RECORDS * 2 * 4);
  EXPECT("", "train.seed=1");
  EXPECT("wide.npy has records of [5]", "data.test=[wide.npy, y.npy]");
  EXPECT("t.npy has labels of [2], and the last layer ('1') gives [3]", "loss.kind=mse",
         "data.train=[x.npy, t.npy]", "data.test=[x.npy, t.npy]");
  EXPECT("the last batch of an epoch has 1 record, ", "train.drop_last=false");
  EXPECT("", "train.drop_last=false", "train.max_steps=2"); /* which does not come to it */
  EXPECT("a batch has 8 records, and its smallest micro-batch 1 ", "pipeline.micro_batches=8");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sets_and_batches)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
