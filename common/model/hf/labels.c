/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading of the class names in a config.json: from id2label or, if that names none, from label2id.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/hf/hf_int.h"
#include "common/base/json/json.h"

enum { MAX_NAMES = 4096 };

void clv_hf_labels_clear(clv_hf_labels *l) {
  if (!l) return;
  for (size_t i = 0; i < l->n; i++) free(l->names[i]);
  free(l->names);
  *l = (clv_hf_labels){0};
}

/* Sets the name of class `number`. Does nothing if the number is out of range or has a name
 * already. */
static clv_code set_class_name(clv_hf_labels *to, int64_t number, const clv_bytes *name,
                               clv_err *err) {
  if (number < 0 || number >= MAX_NAMES || !name->len || to->names[number]) return CLV_OK;
  to->names[number] = strdup(name->data);
  return to->names[number] ? CLV_OK : clv_fail(err, CLV_EXHAUSTED, "out of memory");
}

/* Parses a text of decimal digits. Returns -1 for another text, or for a number that is too large.
 */
static int64_t parse_whole_number(const clv_bytes *text) {
  int64_t n = 0;
  for (size_t i = 0; i < text->len; i++) {
    char digit = text->data[i];
    if (digit < '0' || digit > '9' || n >= MAX_NAMES) return -1;
    n = 10 * n + (digit - '0');
  }
  return text->len ? n : -1;
}

/* Reads a pair "0": "name" (if by_number) or "name": 0. Skips a pair whose value has another type.
 */
static clv_code read_label_pair(clv_json *j, bool by_number, clv_hf_labels *to, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0}, text = {0};
  int64_t number;
  clv_json_kind kind;
  CLV_TRY(clv_json_read_key(j, &key, err));
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != (by_number ? CLV_JSON_TEXT : CLV_JSON_NUMERAL)) return clv_json_skip(j, err);
  if (by_number) {
    CLV_TRY(clv_json_read_text(j, &text, err));
    return set_class_name(to, parse_whole_number(&key), &text, err);
  }
  CLV_TRY(clv_json_read_integer(j, INT64_MIN, INT64_MAX, &number, err));
  return set_class_name(to, number, &key, err);
}

static clv_code read_class_names(clv_json *j, bool by_number, clv_hf_labels *to, clv_err *err) {
  clv_hf_labels l = {.n = MAX_NAMES};
  clv_code code = CLV_OK;
  clv_json_kind kind;
  bool more = true;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_OBJECT) return clv_json_skip(j, err);
  CLV_TRY(clv_alloc(l.n, sizeof *l.names, &l.names, err));
  code = clv_json_open(j, CLV_JSON_OBJECT, err);
  for (size_t k = 0; code == CLV_OK && more; k++) {
    code = clv_json_next(j, CLV_JSON_OBJECT, k, &more, err);
    if (code == CLV_OK && more) code = read_label_pair(j, by_number, &l, err);
  }
  size_t n = 0;
  while (n < MAX_NAMES && l.names[n]) n++;
  for (size_t i = n; i < MAX_NAMES; i++) free(l.names[i]);
  l.n = n;
  if (code == CLV_OK) {
    clv_hf_labels_clear(to);
    *to = l;
    l = (clv_hf_labels){0};
  }
  clv_hf_labels_clear(&l);
  return code;
}

clv_code clv_hf_labels_parse(const char *label, const char *text, size_t len, clv_hf_labels *ret,
                             clv_err *err) {
  clv_json j = {.label = label, .text = text, .len = len};
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  CLV_AUTO(clv_hf_labels_clear) clv_hf_labels numbered = {0}, named = {0};
  bool more = true;
  CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
  for (size_t k = 0; more; k++) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, k, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_read_key(&j, &key, err));
    const char *name = key.len ? key.data : "";
    if (strcmp(name, "id2label") == 0)
      CLV_TRY(read_class_names(&j, true, &numbered, err));
    else if (strcmp(name, "label2id") == 0)
      CLV_TRY(read_class_names(&j, false, &named, err));
    else
      CLV_TRY(clv_json_skip(&j, err));
  }
  clv_hf_labels *best = numbered.n ? &numbered : &named;
  *ret = *best;
  *best = (clv_hf_labels){0};
  return CLV_OK;
}

clv_code clv_hf_labels_read(const char *folder, clv_hf_labels *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  CLV_TRY(clv_hf_config_read_text(folder, &path, &text, err));
  return clv_hf_labels_parse(path.data, text.data ? text.data : "", text.len, ret, err);
}
