/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests stages[].cache in a session: which fronts have the same output in every epoch, and why
 * others cannot be cached.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"

static const char *const none = "";

/* Checks whether the front of a session can be cached. data_keys: keys of `data`, in YAML; refusal:
 * the expected error, or `none` if the front can be cached. */
static void assert_cache_result(const char *data_keys, const clv_model_inputs *inputs,
                                const char *front_layers, const char *rest_layers,
                                const char *refusal) {
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
                   "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
                   "data: {root: /data, %s}\nloss: {kind: cross_entropy}\n"
                   "privacy: {labels_readable: true, tokens_readable: true}\n"
                   "train: {batch: 8, optimizer: {kind: sgd, lr: 0.1}}\nstages:\n"
                   "  - {name: front, at: master, freeze: true, cache: true, layers: [%s]}\n"
                   "  - {name: rest, at: w1, layers: [%s]}\n",
                   data_keys, front_layers, rest_layers);
  if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &c, &err) != CLV_OK)
    fail_msg("%s", err.text);
  clv_code code = clv_blueprint_new_of_inputs(c, inputs, CLV_I64, &b, &err);
  if (refusal == none) {
    if (code != CLV_OK) fail_msg("%s", err.text);
    assert_true(b->has_cache);
    return;
  }
  assert_int_equal(code, CLV_INVALID);
  if (!strstr(err.text, "stage 'front' cannot be cached: ") || !strstr(err.text, refusal))
    fail_msg("'%s' does not say '%s'", err.text, refusal);
}

static const clv_model_inputs picture_input = {1, {{"input", CLV_F32, {4, {1, 3, 8, 8}}}}};
#define CONV "{op: conv2d, out: 4, kernel: 3}, {op: relu}"
#define CLASSES "{op: flatten}, {op: linear, out: 3}"

static void cache_of_augmented_images_is_refused(void **state) {
  (void)state;
  assert_cache_result("format: images, train: [t], images: {crop: 8}", &picture_input, CONV,
                      CLASSES, none);
  assert_cache_result(
      "format: images, train: [t], images: {crop: 8, train_crop: random, pad: 2}", &picture_input,
      CONV, CLASSES,
      "data.images.train_crop draws another part of an image in each epoch: set it to");
  assert_cache_result("format: images, train: [t], images: {crop: 8, train_crop: random_resized}",
                      &picture_input, CONV, CLASSES,
                      "data.images.train_crop draws another part of an image");
  assert_cache_result("format: images, train: [t], images: {crop: 8, flip: 0.5}", &picture_input,
                      CONV, CLASSES,
                      "data.images.flip flips other images in each epoch: set it to 0");
}

static const clv_model_inputs text_inputs = {
    2, {{"ids", CLV_I64, {2, {1, 6}}}, {"lengths", CLV_I64, {1, {1}}}}};
#define TEXT "format: text, train: [t.csv], inputs: [ids, lengths], tokenizer: {file: v.txt}"
#define TABLE "{op: embedding, rows: 9, out: 4}, {op: linear, out: 4, name: x}"
#define ATTEND "{op: attention, heads: 2, from: [x, x, x, lengths]}, {op: linear, out: 9}"

static void cache_of_masked_or_packed_text_is_refused(void **state) {
  (void)state;
  assert_cache_result(TEXT ", objective: causal", &text_inputs, TABLE, ATTEND, none);
  assert_cache_result(TEXT ", objective: masked", &text_inputs, TABLE, ATTEND,
                      "data.objective: masked hides other tokens in each epoch");
  assert_cache_result(TEXT ", objective: causal, packed: true", &text_inputs, TABLE, ATTEND,
                      "data.packed is true: packed sequences have not one row for each record");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cache_of_augmented_images_is_refused),
      cmocka_unit_test(cache_of_masked_or_packed_text_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
