/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests stages[].lora in a session: which parameters learn, which settings are refused at which
 * position, and which layers count as secret.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "master/plan/plan_int.h"

#define FRONT "  - {name: front, at: master, layers: [{op: linear, out: 8}]}\n"
#define LAYERS "layers: [{op: linear, out: 7, name: a.query}, {op: linear, out: 6, name: a.key}]"
#define HEAD "  - {name: head, at: master, layers: [{op: linear, out: 3, name: classifier}]}\n"

static clv_code parse_session(const char *privacy, const char *train, const char *stages,
                              clv_session_config **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_printf(&text,
                   "version: 1\nname: t\ntls: {ca: a, cert: b, key: c}\nworkers:\n"
                   "  w1: {address: \"h:1\", identity: \"spiffe://t/w1\"}\n"
                   "data: {format: npy, root: /data, train: [a, b]}\nloss: {kind: cross_entropy}\n"
                   "privacy: {%s}\ntrain: {batch: 8, %soptimizer: {kind: sgd, lr: 0.1}}\n"
                   "stages:\n%s",
                   privacy, train, stages);
  return clv_session_config_parse("/s.yaml", text.data, text.len, NULL, ret, err);
}

static clv_blueprint *make_accepted_blueprint(const char *stages, clv_session_config **ret) {
  clv_blueprint *b = NULL;
  clv_err err;
  if (parse_session("labels_readable: true, front_known: true", "", stages, ret, &err) != CLV_OK ||
      clv_blueprint_new(*ret, &CLV_SHAPE(1, 9), CLV_I64, &b, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return b;
}

static void assert_trained(const clv_stage_plan *s, const char *const *want, size_t n) {
  size_t n_found = 0;
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    if (p->frozen) continue;
    if (n_found == n || strcmp(p->name, want[n_found]) != 0) fail_msg("%s learns", p->name);
    n_found++;
  }
  assert_int_equal(n_found, n);
  assert_int_equal(s->n_learning_params, n);
}

static void only_adapters_and_named_modules_learn(void **state) {
  (void)state;
  static const char *const adapters[] = {"a.query.lora_A.weight", "a.query.lora_B.weight"};
  static const char *const adapters_and_module[] = {
      "a.query.lora_A.weight", "a.query.lora_B.weight", "a.key.weight", "a.key.bias"};
  for (int i = 0; i < 2; i++) {
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
    CLV_AUTO(clv_blueprint_freep)
    clv_blueprint *b = make_accepted_blueprint(
        i ? FRONT "  - {name: m, at: w1, " LAYERS ", lora: {targets: [query], train: [key]}}\n" HEAD
          : FRONT "  - {name: m, at: w1, " LAYERS ", lora: {targets: [query], r: 4}}\n" HEAD,
        &c);
    assert_trained(&b->stages[1], i ? adapters_and_module : adapters, i ? 4 : 2);
    /* stages without lora are trained as before */
    assert_int_equal(b->stages[0].n_learning_params, 2);
    assert_int_equal(b->stages[1].first_layer, 1);
    assert_int_equal(b->stages[2].first_layer, 3); /* lora changes no layer's number */
    assert_int_equal(clv_params_find(b->stages[1].params, adapters[0])->shape.dim[0], i ? 8 : 4);
  }
}

/* Writes a session file with stages[].lora and reads it again. A session without lora must be
 * written without this key. */
static void lora_config_round_trips(void **state) {
  (void)state;
  for (int has_lora = 0; has_lora < 2; has_lora++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, again = {0};
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL, *read = NULL;
    clv_err err;
    CLV_AUTO(clv_blueprint_freep)
    clv_blueprint *b =
        make_accepted_blueprint(has_lora ? FRONT "  - {name: m, at: w1, " LAYERS
                                                 ", lora: {targets: [query], rslora: true}}\n" HEAD
                                         : FRONT HEAD,
                                &c);
    assert_int_equal(clv_session_config_write(c, &text, &err), CLV_OK);
    assert_int_equal(strstr((char *)text.data, "lora") != NULL, has_lora);
    if (clv_session_config_parse("/s.yaml", text.data, text.len, NULL, &read, &err) != CLV_OK)
      fail_msg("%s", err.text);
    assert_int_equal(clv_session_config_write(read, &again, &err), CLV_OK);
    assert_string_equal(text.data, again.data);
  }
}

typedef struct bad_lora {
  const char *lora_keys, *refusal_text;
} bad_lora;

static void invalid_lora_options_are_refused(void **state) {
  (void)state;
  static const bad_lora bad[] = {
      {"lora: {targets: [qurey]}",
       "12:112: stage 'm': lora.targets: no layer here has the name 'qurey', "
       "did you mean 'query'?"},
      {"lora: {targets: [classifier]}", "the linear ones are query, key"},
      {"lora: {targets: [query], train: [kay]}",
       "stage 'm': lora.train: nothing with parameters is called 'kay', did you mean 'key'?"},
      {"lora: {r: 8}", "missing key 'stages.1.lora.targets'"},
      {"lora: {targets: []}", "'stages.1.lora.targets' must be"},
      {"lora: {targets: [query], r: 0}", "'stages.1.lora.r' must be"},
      {"lora: {targets: [query], alpha: 0}", "'stages.1.lora.alpha' must be"},
      {"lora: {targets: [query], dropout: 1}", "'stages.1.lora.dropout' must be"},
      {"lora: {target: [query]}", "did you mean 'targets'?"},
      {"freeze: true, lora: {targets: [query]}", "stage 'm' has freeze: true, and adapters"},
  };
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
    CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
    clv_err err;
    clv_bytes_printf(&stages, FRONT "  - {name: m, at: w1, " LAYERS ", %s}\n" HEAD,
                     bad[i].lora_keys);
    clv_code code = parse_session("labels_readable: true", "", (char *)stages.data, &c, &err);
    if (code == CLV_OK) code = clv_blueprint_new(c, &CLV_SHAPE(1, 9), CLV_I64, &b, &err);
    if (code == CLV_OK) fail_msg("%s is taken", bad[i].lora_keys);
    if (!strstr(err.text, bad[i].refusal_text)) fail_msg("%s: %s", bad[i].lora_keys, err.text);
  }
}

/* ---- adapters in layers that must be secret -------------------------------------------------- */

static clv_code make_blueprint(const char *train_keys, const char *front_keys,
                               const char *head_keys, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  clv_bytes_printf(&stages,
                   "  - {name: front, at: master, layers: [{op: linear, out: 8}]%s}\n"
                   "  - {name: m, at: w1, layers: [{op: linear, out: 4}]}\n"
                   "  - {name: head, at: master, layers: [{op: linear, out: 3}]%s}\n",
                   front_keys, head_keys);
  CLV_TRY(parse_session("", train_keys, (char *)stages.data, &c, err));
  return clv_blueprint_new(c, &CLV_SHAPE(1, 9), CLV_I64, &b, err);
}

/* Adapters are drawn from the seed and added to the base's output, so they hide nothing. A layer
 * whose base file is known must count as known. */
static void adapters_do_not_hide_a_known_or_frozen_layer(void **state) {
  (void)state;
  static const struct {
    const char *train, *front, *head, *refusal_text;
  } rows[] = {
      {"", ", lora: {targets: [\"0\"]}", "", NULL},
      {"", ", weights: {file: p, secret: true}, lora: {targets: [\"0\"]}", "", NULL},
      {"", ", weights: {file: p}, lora: {targets: [\"0\"]}", "",
       "is sent records that only known weights have mixed"},
      {"seed: 7, ", ", weights: {file: p, secret: true}, lora: {targets: [\"0\"]}",
       ", weights: {file: p, secret: true}", "0.lora_A (linear)"},
      {"", "", ", lora: {targets: [\"2\"]}", "2 is frozen"},
      {"", "", ", lora: {targets: [\"2\"], train: [\"2\"]}", NULL},
  };
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    clv_err err = {0};
    clv_code code = make_blueprint(rows[i].train, rows[i].front, rows[i].head, &err);
    if ((code == CLV_OK) != !rows[i].refusal_text) fail_msg("row %zu: %s", i, err.text);
    if (rows[i].refusal_text && !strstr(err.text, rows[i].refusal_text))
      fail_msg("row %zu: %s", i, err.text);
  }
}

/* A layer whose weights start as 0 counts as known, because everyone knows its first values. */
static void zero_initialized_layer_counts_as_known(void **state) {
  (void)state;
  CLV_AUTO(clv_session_config_freep) clv_session_config *c = NULL;
  clv_blueprint *b = NULL;
  clv_err err;
  assert_int_equal(
      parse_session("", "",
                    "  - {name: front, at: master, layers: [{op: linear, out: 8}]}\n"
                    "  - {name: m, at: w1, layers: [{op: linear, out: 4}]}\n"
                    "  - {name: head, at: master, layers: [{op: linear, out: 3, init_zero: "
                    "true}]}\n",
                    &c, &err),
      CLV_OK);
  assert_int_equal(clv_blueprint_new(c, &CLV_SHAPE(1, 9), CLV_I64, &b, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "2 begins with 0"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_adapters_and_named_modules_learn),
      cmocka_unit_test(lora_config_round_trips),
      cmocka_unit_test(invalid_lora_options_are_refused),
      cmocka_unit_test(adapters_do_not_hide_a_known_or_frozen_layer),
      cmocka_unit_test(zero_initialized_layer_counts_as_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
