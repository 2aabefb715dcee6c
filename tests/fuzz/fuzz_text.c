/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes tables of texts. The first byte says whether the rest is CSV or JSON lines, whether it has
 * labels and groups, and whether broken records are left out.
 */
#include "master/data/text_int.h"
#include "tests/fuzz/fuzz_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rows(const clv_texts *t) {
  const int64_t *labels = t->labels ? t->labels->data : NULL;
  for (int64_t i = 0; labels && i < t->labels->shape.dim[0]; i++)
    NEVER(labels[i] < 0 || labels[i] >= (int64_t)t->n_classes);
  for (size_t i = 1; i < t->n_classes; i++) NEVER(strcmp(t->classes[i - 1], t->classes[i]) >= 0);
  for (size_t i = 0; i < t->tokens->n; i++) {
    int32_t id = ((const int32_t *)t->tokens->data)[i];
    NEVER(id < 0 || id >= VOCABULARY_TOKENS);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_texts *t = NULL;
  clv_err err = {0};
  if (!size) return 0;
  const clv_text_options o = {
      .column = "text", .label = "label", .group = data[0] & 4 ? "group" : NULL};
  clv_text_rows r = {.tokenizer = small_tokenizer(),
                     .path = data[0] & 1 ? "fuzz.csv" : "fuzz.jsonl",
                     .first = 2,
                     .last = 3,
                     .width = 8,
                     .max_bytes = 1 << 20,
                     .has_labels = data[0] & 2,
                     .skips_broken = data[0] & 8};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add(&text, data + 1, size - 1);
  clv_code code = clv_text_rows_read_table(&r, &o, text.data, text.len, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz."));
  NEVER(r.broken.n && (!r.skips_broken || !strstr(r.broken.error_lines.data, "fuzz.")));
  if (code == CLV_OK && clv_texts_from_rows(&r, &t, &err) == CLV_OK) check_rows(t);
  NEVER(t && t->groups.len != (o.group ? (size_t)t->tokens->shape.dim[0] * sizeof(int64_t) : 0));
  clv_texts_free(t);
  r.tokenizer = NULL; /* keeps the tokenizer for the next input */
  clv_text_rows_done(&r);
  return 0;
}
