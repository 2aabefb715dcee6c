/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of adapter_config.json. An accepted file is written as text that is accepted
 * again and gives every layer the same settings.
 */
#include <math.h>
#include <string.h>

#include "common/model/weights/weights.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare_settings(const clv_peft *one, const clv_peft *other, const char *layer) {
  int64_t r = 0, parsed_again = 0;
  double scale = clv_peft_scale(one, layer, &r);
  NEVER(!(scale > 0) || r < 1);
  NEVER(clv_peft_scale(other, layer, &parsed_again) != scale || parsed_again != r);
}

/* Asserts that each key of adapter_config.json that the parser knows is described for the
 * documentation. */
static void check_documents(void) {
  clv_peft_key_doc doc;
  for (size_t i = 0; clv_peft_describe_key(i, &doc); i++)
    NEVER(!doc.name || !doc.outcome || (doc.word && doc.reason));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const layers[] = {"a.query", "value"};
  CLV_AUTO(clv_peft_clear) clv_peft p = {0}, read = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_err err = {0};
  if (clv_peft_parse("fuzz", (const char *)data, size, NULL, &p, &err) != CLV_OK) {
    NEVER(!strstr(err.text, "fuzz:"));
    return 0;
  }
  check_documents();
  if (!isfinite(p.dropout)) return 0;
  clv_peft_write(&p, "base", layers, 2, layers, 1, &out);
  NEVER(clv_peft_parse("again", (const char *)out.data, out.len, NULL, &read, &err) != CLV_OK);
  for (size_t i = 0; i < CLV_COUNT(layers); i++) compare_settings(&p, &read, layers[i]);
  for (size_t i = 0; i < p.n_patterns; i++) compare_settings(&p, &read, p.patterns[i].name);
  return 0;
}
