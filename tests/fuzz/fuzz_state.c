/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of trainer_state.json. What it takes is written and read again as the same text.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct parsed {
  clv_trainer_state state;
  json_t *root;
  clv_kv *extra;
} parsed;

static void parsed_done(parsed *p) {
  json_decref(p->root);
  free(p->extra);
}

static clv_code parse(const void *data, size_t size, parsed *ret, clv_err *err) {
  return clv_state_parse(data, size, "fuzz", &ret->state, &ret->root, &ret->extra, err);
}

static void write_again(const clv_trainer_state *s) {
  CLV_AUTO(parsed_done) parsed again = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  NEVER(clv_state_format(s, &first, NULL) != CLV_OK);
  NEVER(parse(first.data, first.len, &again, NULL) != CLV_OK ||
        clv_state_format(&again.state, &second, NULL) != CLV_OK || first.len != second.len ||
        memcmp(first.data, second.data, first.len) != 0);
  for (size_t i = 0; i < s->n_extra; i++) {
    const char *value = clv_trainer_state_get_extra(&again.state, s->extra[i].key);
    NEVER(!value || strcmp(value, s->extra[i].value) != 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(parsed_done) parsed p = {0};
  clv_err err = {0};
  clv_code code = parse(data, size, &p, &err);
  NEVER((code == CLV_OK) != (p.root != NULL) || (code != CLV_OK && !err.text[0]));
  if (code == CLV_OK) write_again(&p.state);
  return 0;
}
