/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys that a record has, for the message that one is missing.
 */
#include <stdio.h>
#include <string.h>

#include "master/data/text_int.h"

void clv_keys_add(const char *key, char *text, size_t len) {
  static const char more[] = ", ...";
  size_t used = strlen(text), n = strlen(key);
  if (used >= sizeof more && strcmp(text + used - sizeof more + 1, more) == 0) return;
  if (used + n + 4 + sizeof more > len)
    snprintf(text + used, len - used, "%s", used ? more : "...");
  else
    snprintf(text + used, len - used, "%s'%s'", used ? ", " : "", key);
  clv_text_clean(text + used);
}

const char *clv_keys_text(const clv_json *object, char *text, size_t len) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  clv_json j = {.label = object->label, .text = object->text, .len = object->len};
  bool more = true;
  text[0] = '\0';
  clv_code code = clv_json_open(&j, CLV_JSON_OBJECT, NULL);
  for (size_t n = 0; code == CLV_OK; n++) {
    code = clv_json_next(&j, CLV_JSON_OBJECT, n, &more, NULL);
    if (code != CLV_OK || !more) break;
    code = clv_json_key(&j, &key, NULL);
    if (code == CLV_OK) clv_keys_add(key.data, text, len);
    if (code == CLV_OK) code = clv_json_skip(&j, NULL);
  }
  if (!text[0]) snprintf(text, len, "no keys");
  return text;
}
