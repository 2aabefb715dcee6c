/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of trainer_state.json. An accepted state is written and read again as the same
 * text.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct parsed_state {
  clv_trainer_state state;
  json_t *json_root;
  clv_kv *extra_pairs;
} parsed_state;

static void free_parsed_state(parsed_state *p) {
  json_decref(p->json_root);
  free(p->extra_pairs);
}

static clv_code parse_state(const void *data, size_t size, parsed_state *ret, clv_err *err) {
  return clv_state_parse(data, size, "fuzz", &ret->state, &ret->json_root, &ret->extra_pairs, err);
}

static void check_rewrite(const clv_trainer_state *s) {
  CLV_AUTO(free_parsed_state) parsed_state parsed_again = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  NEVER(clv_state_format(s, &first, NULL) != CLV_OK);
  NEVER(parse_state(first.data, first.len, &parsed_again, NULL) != CLV_OK ||
        clv_state_format(&parsed_again.state, &second, NULL) != CLV_OK || first.len != second.len ||
        memcmp(first.data, second.data, first.len) != 0);
  for (size_t i = 0; i < s->n_extra; i++) {
    const char *value = clv_trainer_state_get_extra(&parsed_again.state, s->extra[i].key);
    NEVER(!value || strcmp(value, s->extra[i].value) != 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(free_parsed_state) parsed_state p = {0};
  clv_err err = {0};
  clv_code code = parse_state(data, size, &p, &err);
  NEVER((code == CLV_OK) != (p.json_root != NULL) || (code != CLV_OK && !err.text[0]));
  if (code == CLV_OK) check_rewrite(&p.state);
  return 0;
}
