/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer_state.json: writing and parsing. The key "seed" of earlier versions is ignored.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

enum { MAX_EXTRA = 4096, MAX_TOKENS = 2 * MAX_EXTRA + 64 };

typedef struct number_field {
  const char *key;
  size_t offset; /* offset of a uint64_t in clv_trainer_state */
} number_field;

static const number_field numbers[] = {
    {"epoch", offsetof(clv_trainer_state, epoch)},
    {"index", offsetof(clv_trainer_state, records_used)},
    {"global_step", offsetof(clv_trainer_state, global_step)},
    {"max_steps", offsetof(clv_trainer_state, max_steps)},
};

static uint64_t *uint64_field_of(clv_trainer_state *s, size_t i) {
  return (uint64_t *)((char *)s + numbers[i].offset);
}

const char *clv_trainer_state_get_extra(const clv_trainer_state *s, const char *key) {
  for (size_t i = 0; i < s->n_extra; i++)
    if (strcmp(s->extra[i].key, key) == 0) return s->extra[i].value;
  return NULL;
}

static clv_code check_extra(const clv_trainer_state *s, size_t i, clv_err *err) {
  const clv_kv *e = &s->extra[i];
  if (!clv_weights_is_utf8(e->key) || !clv_weights_is_utf8(e->value))
    return clv_fail(err, CLV_INVALID, "trainer state: '%.64s' is not UTF-8", e->key);
  for (size_t k = 0; k < i; k++)
    if (strcmp(s->extra[k].key, e->key) == 0)
      return clv_fail(err, CLV_INVALID, "trainer state: '%.64s' is given twice", e->key);
  return CLV_OK;
}

clv_code clv_state_format(const clv_trainer_state *s, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_trainer_state copy = *s;
  if (s->n_extra > MAX_EXTRA)
    return clv_fail(err, CLV_EXHAUSTED, "trainer state: %zu extra keys, the limit is %d",
                    s->n_extra, MAX_EXTRA);
  clv_bytes_puts(&out, "{\n");
  for (size_t i = 0; i < CLV_COUNT(numbers); i++) {
    uint64_t v = *uint64_field_of(&copy, i);
    if (v > INT64_MAX)
      return clv_fail(err, CLV_INVALID, "trainer state: %s is %llu, over 2^63 - 1", numbers[i].key,
                      (unsigned long long)v);
    clv_bytes_printf(&out, "  \"%s\": %llu,\n", numbers[i].key, (unsigned long long)v);
  }
  clv_bytes_puts(&out, "  \"extra\": {");
  for (size_t i = 0; i < s->n_extra; i++) {
    CLV_TRY(check_extra(s, i, err));
    clv_bytes_puts(&out, i ? ",\n    " : "\n    ");
    clv_bytes_add_json(&out, s->extra[i].key);
    clv_bytes_puts(&out, ": ");
    clv_bytes_add_json(&out, s->extra[i].value);
  }
  clv_bytes_puts(&out, s->n_extra ? "\n  }\n}\n" : "}\n}\n");
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}

static clv_code parse_extra(const json_t *root, const char *label, clv_kv **ret, size_t *ret_n,
                            clv_err *err) {
  json_t *extra = json_object_get(root, "extra"), *v;
  CLV_AUTO(clv_freep) clv_kv *out = NULL;
  const char *key;
  size_t n = 0;
  if (!json_is_object(extra))
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'extra' is missing or not an object", label);
  CLV_TRY(clv_alloc(json_object_size(extra), sizeof *out, &out, err));
  json_object_foreach(extra, key, v) {
    out[n].key = key;
    CLV_TRY(clv_weights_json_get_text(extra, key, label, &out[n++].value, err));
  }
  *ret = clv_steal(&out);
  *ret_n = n;
  return CLV_OK;
}

clv_code clv_state_parse(const void *data, size_t len, const char *label, clv_trainer_state *ret,
                         json_t **ret_root, clv_kv **ret_extra, clv_err *err) {
  static const char *const known[] = {"epoch",     "index", "global_step",
                                      "max_steps", "seed",  "extra"};
  CLV_AUTO(clv_weights_json_freep) json_t *root = NULL;
  clv_trainer_state s = {0};
  CLV_TRY(clv_weights_json_parse(data, len, MAX_TOKENS, label, &root, err));
  CLV_TRY(clv_weights_json_check_keys(root, known, CLV_COUNT(known), label, err));
  for (size_t i = 0; i < CLV_COUNT(numbers); i++)
    CLV_TRY(clv_weights_json_get_u64(root, numbers[i].key, INT64_MAX, label, uint64_field_of(&s, i),
                                     err));
  CLV_TRY(parse_extra(root, label, ret_extra, &s.n_extra, err));
  s.extra = *ret_extra;
  *ret = s;
  *ret_root = clv_steal(&root);
  return CLV_OK;
}
