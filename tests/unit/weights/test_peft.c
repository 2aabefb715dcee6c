/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the reader of adapter_config.json: its settings, the scale of each layer's adapter, and its
 * refusals.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/weights/weights.h"

static clv_code parse_adapter_config(const char *text, clv_peft *ret, clv_err *err) {
  return clv_peft_parse("adapter_config.json", text, strlen(text), NULL, ret, err);
}

static void assert_scale(const clv_peft *p, const char *layer, double scale, int64_t rank) {
  int64_t r;
  assert_true(clv_peft_scale(p, layer, &r) == scale);
  assert_int_equal(r, rank);
}

static void adapter_settings_and_patterns_are_read(void **state) {
  (void)state;
  clv_err err;
  CLV_AUTO(clv_peft_clear) clv_peft p = {0}, rslora = {0}, defaults = {0};
  if (parse_adapter_config(
          "{\"auto_mapping\": null, \"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 16, "
          "\"bias\": \"none\", \"rank_pattern\": {\"value\": 2, \"a.query\": 1}, "
          "\"alpha_pattern\": {\"value\": 5}, \"use_dora\": false, \"lora_dropout\": 0.25}",
          &p, &err) != CLV_OK)
    fail_msg("%s", err.text);
  assert_true(p.dropout == 0.25 && !p.rslora);
  assert_scale(&p, "layer.0.query", 4, 4);
  assert_scale(&p, "layer.0.value", 2.5, 2);
  assert_scale(&p, "value", 2.5, 2);
  assert_scale(&p, "layer.0.devalue", 4, 4); /* only whole parts of a name match */
  assert_scale(&p, "layer.a.query", 16, 1);
  assert_int_equal(parse_adapter_config(
                       "{\"peft_type\": \"LORA\", \"r\": 16, \"use_rslora\": true}", &rslora, &err),
                   CLV_OK);
  assert_scale(&rslora, "x", 2, 16);
  assert_int_equal(parse_adapter_config("{\"peft_type\": \"LORA\"}", &defaults, &err), CLV_OK);
  assert_scale(&defaults, "x", 1, 8); /* peft's defaults: r and lora_alpha are 8 */
}

/* Reads a config of peft 0.21 with every key of LoraConfig, and with keys of other versions that
 * are switched off. */
static void every_peft_key_is_accepted(void **state) {
  static const char all_keys[] =
      "{\"alora_invocation_tokens\": null, \"alpha_pattern\": {}, \"arrow_config\": null, "
      "\"auto_mapping\": {\"base_model_class\": \"ViT\", \"parent_library\": \"x\"}, "
      "\"base_model_name_or_path\": null, \"bias\": \"none\", \"corda_config\": null, "
      "\"ensure_weight_tying\": false, \"eva_config\": {\"rho\": 2.0}, \"exclude_modules\": null, "
      "\"fan_in_fan_out\": true, \"inference_mode\": true, \"init_lora_weights\": \"eva\", "
      "\"kasa_config\": null, \"layer_replication\": null, \"layers_pattern\": \"h\", "
      "\"layers_to_transform\": [0], \"loftq_config\": {}, \"lora_alpha\": 16, "
      "\"lora_bias\": false, \"lora_dropout\": 0.0, \"lora_ga_config\": null, "
      "\"megatron_config\": null, \"megatron_core\": \"megatron.core\", "
      "\"modules_to_save\": [\"classifier\"], \"monteclora_config\": null, \"peft_type\": "
      "\"LORA\", "
      "\"peft_version\": \"0.21.2\", \"qalora_group_size\": 16, \"r\": 4, \"rank_pattern\": {}, "
      "\"revision\": \"main\", \"target_modules\": [\"v_proj\"], \"target_parameters\": [], "
      "\"task_type\": \"SEQ_CLS\", \"trainable_token_indices\": null, \"use_bdlora\": null, "
      "\"use_dora\": false, \"use_qalora\": false, \"use_rslora\": false, \"velora_config\": null, "
      "\"enable_lora\": null, \"merge_weights\": false, \"of_later\": {}}";
  CLV_AUTO(clv_peft_clear) clv_peft p = {0};
  clv_err err = {0};
  (void)state;
  if (parse_adapter_config(all_keys, &p, &err) != CLV_OK) fail_msg("%s", err.text);
  assert_scale(&p, "x", 4, 4);
}

static void unsupported_peft_options_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } bad[] = {
      {"{}", "there is no peft_type"},
      {"[]", "adapter_config.json:1:1"},
      {"{\"peft_type\": \"IA3\"}", "adapter_config.json:1:14: peft_type must be \"LORA\""},
      {"{\"peft_type\": \"LORA\", \"use_dora\": true}",
       "use_dora is given, and is not done here: weights are not"},
      {"{\"peft_type\": \"LORA\", \"lora_bias\": true}",
       "lora_bias is given, and is not done here: B has no bias"},
      {"{\"peft_type\": \"LORA\", \"bias\": \"all\"}", "bias must be \"none\""},
      {"{\"peft_type\": \"LORA\", \"r\": 0}", "1:28"},
      {"{\"peft_type\": \"LORA\", \"lora_alpha\": 0}", "lora_alpha must be above 0"},
      {"{\"peft_type\": \"LORA\", \"rank_pattern\": {\"^a.*\": 2}}", "no regular expression"},
      {"{\"peft_type\": \"LORA\", \"r\": 1, \"r\": 2}", "r"},
      {"{\"peft_type\": \"LORA\"} x", "1:23"},
      {"{\"peft_type\": \"LORA\", \"alora_invocation_tokens\": [7]}",
       "adapter_config.json:1:49: alora_invocation_tokens is given, and is not done here: "
       "adapters"},
      {"{\"peft_type\": \"LORA\", \"layer_replication\": [[0, 1]]}", "a layer stands in the"},
      {"{\"peft_type\": \"LORA\", \"use_bdlora\": {\"nblocks\": 2}}", "use_bdlora is given"},
      {"{\"peft_type\": \"LORA\", \"trainable_token_indices\": {\"wte\": [1]}}", "rows of a table"},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"pissa\"}",
       "1:44: init_lora_weights is \"pissa\": the base is changed where peft opens it"},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"pissa_niter_4\"}", "pissa_niter_4"},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"olora\"}", "is \"olora\""},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"corda\"}", "is \"corda\""},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"loftq\"}", "is \"loftq\""},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"mica\"}", "is \"mica\""},
      {"{\"peft_type\": \"LORA\", \"use_tomorrow\": true}",
       "adapter_config.json:1:22: 'use_tomorrow' is not known, and may change what adapters"},
      {"{\"peft_type\": \"LORA\", \"tomorrow\": 0.5}", "'tomorrow' is not known"},
      {"{\"peft_type\": \"LORA\", \"use_dora\": false, \"use_dora\": false}", "stands here twice"},
  };
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    clv_peft p = {0};
    clv_err err = {0};
    if (parse_adapter_config(bad[i].text, &p, &err) == CLV_OK) fail_msg("%s is taken", bad[i].text);
    if (!strstr(err.text, bad[i].says)) fail_msg("%s: %s", bad[i].text, err.text);
  }
}

static void written_adapter_config_reads_back(void **state) {
  (void)state;
  static const char *const targets[] = {"a.query", "b.query"}, *const saved_modules[] = {
                                                                   "classifier"};
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  CLV_AUTO(clv_peft_clear)
  clv_peft p = {.r = 4, .alpha = 3, .dropout = 0.1, .rslora = true}, q = {0};
  assert_int_equal(clv_peft_set_layer(&p, "b.query", 9, 0, &err), CLV_OK);
  assert_int_equal(clv_peft_set_layer(&p, "b.query", 0, 0.1, &err), CLV_OK);
  assert_int_equal(p.n_patterns, 1);
  clv_peft_write(&p, "bert \"base\"", targets, 2, saved_modules, 1, &out);
  if (parse_adapter_config((const char *)out.data, &q, &err) != CLV_OK) fail_msg("%s", err.text);
  assert_scale(&q, "a.query", 1.5, 4);
  assert_scale(&q, "b.query", 0.1 / 3, 9);
  assert_true(q.dropout == p.dropout);
  assert_non_null(strstr((const char *)out.data, "\"bert \\\"base\\\"\""));
  assert_non_null(
      strstr((const char *)out.data, "\"modules_to_save\": [\n    \"classifier\"\n  ]"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(adapter_settings_and_patterns_are_read),
      cmocka_unit_test(every_peft_key_is_accepted),
      cmocka_unit_test(unsupported_peft_options_are_refused),
      cmocka_unit_test(written_adapter_config_reads_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
