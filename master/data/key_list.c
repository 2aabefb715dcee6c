/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists the keys of a record, for the message that a key is missing.
 */
#include <stdio.h>
#include <string.h>

#include "master/data/text_int.h"

enum { RESERVED_BYTES = 32 /* bytes that are kept free for " and N more" */ };

void clv_key_list_add(clv_key_list *k, const char *key) {
  char name[CLV_KEY_LIST_TEXT_BYTES / 2];
  clv_text_truncate(key, name, sizeof name);
  if (k->n_unlisted || k->len + strlen(name) + RESERVED_BYTES > sizeof k->text) {
    k->n_unlisted++;
    return;
  }
  int n = snprintf(k->text + k->len, sizeof k->text - k->len, "%s'%s'", k->len ? ", " : "", name);
  clv_text_to_printable(k->text + k->len);
  k->len += (size_t)n;
}

const char *clv_key_list_finish(clv_key_list *k) {
  if (!k->len) snprintf(k->text, sizeof k->text, "no keys");
  if (k->n_unlisted) snprintf(k->text + k->len, RESERVED_BYTES, " and %zu more", k->n_unlisted);
  return k->text;
}

const char *clv_key_list_of_object(const clv_json *object, clv_key_list *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  clv_json j = {.label = object->label, .text = object->text, .len = object->len};
  bool has_more = true;
  *ret = (clv_key_list){0};
  clv_code code = clv_json_open(&j, CLV_JSON_OBJECT, NULL);
  for (size_t n = 0; code == CLV_OK; n++) {
    code = clv_json_next(&j, CLV_JSON_OBJECT, n, &has_more, NULL);
    if (code != CLV_OK || !has_more) break;
    code = clv_json_read_key(&j, &key, NULL);
    if (code == CLV_OK) clv_key_list_add(ret, key.data);
    if (code == CLV_OK) code = clv_json_skip(&j, NULL);
  }
  return clv_key_list_finish(ret);
}
