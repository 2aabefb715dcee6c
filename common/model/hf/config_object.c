/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_read_object: reads an object of a config.json by a table, and the objects of rotary
 * positions within it. A key that has no row is refused, because it may change what the model
 * computes, unless the session lists it.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/config_int.h"

bool clv_hf_row_has_key(const hf_row *at, const char *key, size_t len) {
  for (const char *name = at->key; len && name;) {
    size_t n = strcspn(name, " ");
    if (n == len && memcmp(name, key, n) == 0) return true;
    name = name[n] ? name + n + 1 : NULL;
  }
  return false;
}

int clv_hf_find_row(const hf_table *t, const char *key, size_t len) {
  for (size_t i = 0; i < t->n; i++)
    if ((t->rows[i].families & t->family) == t->family && clv_hf_row_has_key(&t->rows[i], key, len))
      return (int)i;
  return -1;
}

/* True if the JSON object at the reader's present position is not empty. */
static bool has_any_key(const hf_config_reader *r) {
  clv_json from = r->j;
  bool more = false;
  clv_err unused_err;
  return clv_json_open(&from, CLV_JSON_OBJECT, &unused_err) == CLV_OK &&
         clv_json_next(&from, CLV_JSON_OBJECT, 0, &more, &unused_err) == CLV_OK && more;
}

static clv_code read_rope(hf_config_reader *r, const hf_row *at, clv_err *err) {
  bool seen[HF_MAX_ROWS] = {0};
  hf_rope *rope = (hf_rope *)(void *)((char *)r + at->offset);
  void *other_value = r->target_struct;
  hf_table table = clv_hf_rope_table();
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_OBJECT, err));
  table.label = at->key;
  rope->is_given = has_any_key(r);
  rope->kind = rope->old_kind = -1;
  r->target_struct = rope;
  clv_code code = clv_hf_read_object(r, &table, seen, err);
  r->target_struct = other_value;
  return code;
}

/* Reads the value of the key in row i. If the file has the key and its second name, their values
 * must be equal. */
static clv_code read_row_value(hf_config_reader *r, const hf_table *t, int i,
                               const bool seen[HF_MAX_ROWS], clv_err *err) {
  const hf_row *at = &t->rows[i], *other = NULL;
  size_t from = clv_hf_skip_to_value(r);
  for (size_t k = 0; k < t->n; k++) {
    const hf_row *row = &t->rows[k];
    bool is_other_name = at->primary_key
                             ? strcmp(row->key, at->primary_key) == 0
                             : row->primary_key && strcmp(row->primary_key, at->key) == 0;
    if (is_other_name && seen[k] && (row->families & t->family) == t->family) other = row;
  }
  r->key = at->key;
  if (at->is_rope) return read_rope(r, at, err);
  if (!other) return at->read(r, at, err);
  const int64_t *field = (const int64_t *)(const void *)((char *)r->target_struct + at->offset);
  int64_t other_value = *field;
  CLV_TRY(at->read(r, at, err));
  if (*field == other_value) return CLV_OK;
  return clv_json_fail(&r->j, from, err,
                       "%s is %lld and %s is %lld: they name one number, keep one", at->key,
                       (long long)*field, other->key, (long long)other_value);
}

static clv_code refuse_or_skip_key(hf_config_reader *r, const hf_table *t, size_t from,
                                   const clv_bytes *key, clv_err *err) {
  const char *name = key->len ? key->data : "";
  if (clv_json_keys_have(r->ignored, name, key->len)) return clv_json_skip(&r->j, err);
  return clv_json_fail(&r->j, from, err,
                       "'%s%s%.60s' is not known, and may change what the model computes: if it "
                       "does not, list it in model.ignore_keys of the session, or take it out",
                       t->label, t->label[0] ? "." : "", name);
}

/* Reads one `key: value` of a JSON object. */
static clv_code read_member(hf_config_reader *r, const hf_table *t, bool seen[HF_MAX_ROWS],
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  size_t from = clv_hf_skip_to_value(r);
  CLV_TRY(clv_json_read_key(&r->j, &key, err));
  int i = key.len ? clv_hf_find_row(t, key.data, key.len) : -1;
  if (i < 0) return refuse_or_skip_key(r, t, from, &key, err);
  if (t->rows[i].read == clv_hf_skip) return clv_json_skip(&r->j, err);
  if (seen[i]) return clv_json_fail(&r->j, from, err, "'%s' stands here twice", t->rows[i].key);
  CLV_TRY(read_row_value(r, t, i, seen, err));
  seen[i] = true;
  return CLV_OK;
}

clv_code clv_hf_read_object(hf_config_reader *r, const hf_table *t, bool seen[HF_MAX_ROWS],
                            clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t k = 0; more; k++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, k, &more, err));
    if (more) CLV_TRY(read_member(r, t, seen, err));
  }
  return CLV_OK;
}
