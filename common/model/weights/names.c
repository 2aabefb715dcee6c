/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_weights_find_name: finds the name under which a folder has a parameter. A model's files may
 * have the prefix of its base model before each name, or not. Old files call the weight of a norm
 * gamma, and its bias beta.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

static const char *const prefixes[] = {"",         "bert.", "distilbert.",  "layoutlm.",
                                       "roberta.", "vit.",  "transformer.", "model."};

/* Last parts of the names of tensors that programs compute, although old files contain them. */
static const char *const derived[] = {"position_ids", "attn.bias", "attn.masked_bias",
                                      "rotary_emb.inv_freq"};

/* True if `name` is `end`, or ends with a dot and `end`. */
static bool ends_with_part(const char *name, const char *end) {
  size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0 && (n == m || name[n - m - 1] == '.');
}

bool clv_weights_is_derived(const char *name) {
  for (size_t i = 0; i < CLV_COUNT(derived); i++)
    if (ends_with_part(name, derived[i])) return true;
  return false;
}

bool clv_weights_is_newly_initialised(const char *name, const char *const *fresh, size_t n) {
  for (size_t i = 0; i < n; i++) {
    size_t len = strlen(fresh[i]);
    if (strncmp(name, fresh[i], len) == 0 && (!name[len] || name[len] == '.')) return true;
  }
  return false;
}

static int compare_name(const void *name, const void *entry) {
  return strcmp(name, *(const char *const *)entry);
}

static size_t find_index(const char *const *names, size_t n, const char *name) {
  const char *const *at = n ? bsearch(name, names, n, sizeof *names, compare_name) : NULL;
  return at ? (size_t)(at - names) : CLV_WEIGHTS_NONE;
}

/* Makes the old name of a norm's parameter: ".gamma" for ".weight", ".beta" for ".bias". Returns
 * false if the name ends with neither. */
static bool make_old_name(const char *name, char *ret, size_t len) {
  static const char *const pairs[][2] = {{"weight", "gamma"}, {"bias", "beta"}};
  for (size_t i = 0; i < CLV_COUNT(pairs); i++) {
    if (!ends_with_part(name, pairs[i][0])) continue;
    int before = (int)(strlen(name) - strlen(pairs[i][0]));
    snprintf(ret, len, "%.*s%s", before, name, pairs[i][1]);
    return true;
  }
  return false;
}

/* Makes the name under which the bias of a tied decoder is saved: "cls.predictions.bias" for
 * "cls.predictions.decoder.bias". Returns false for another name. */
static bool make_head_bias_name(const char *name, char *ret, size_t len) {
  if (!ends_with_part(name, "decoder.bias")) return false;
  snprintf(ret, len, "%.*sbias", (int)(strlen(name) - strlen("decoder.bias")), name);
  return true;
}

/* State of a search for a name. */
typedef struct name_search {
  const char *const *names; /* [n] names to search, sorted */
  size_t n;
  size_t found_index; /* index of the matching name; CLV_WEIGHTS_NONE: none found yet */
  /* index of a second matching name, which is an error; CLV_WEIGHTS_NONE: none */
  size_t second_found_index;
} name_search;

static void look_up_name(name_search *s, const char *name) {
  size_t at = find_index(s->names, s->n, name);
  if (at == CLV_WEIGHTS_NONE || at == s->found_index) return;
  *(s->found_index == CLV_WEIGHTS_NONE ? &s->found_index : &s->second_found_index) = at;
}

/* Looks for the name with each of the prefixes, and without the prefix that it has. */
static void try_prefixes(name_search *s, const char *name) {
  char prefixed_name[CLV_WEIGHTS_MAX_NAME + 32];
  for (size_t i = 0; i < CLV_COUNT(prefixes); i++) {
    size_t len = strlen(prefixes[i]);
    snprintf(prefixed_name, sizeof prefixed_name, "%s%s", prefixes[i], name);
    look_up_name(s, prefixed_name);
    if (strncmp(name, prefixes[i], len) == 0) look_up_name(s, name + len);
  }
}

clv_code clv_weights_find_name(const char *const *names, size_t n, const char *want,
                               const char *label, size_t *ret, clv_err *err) {
  char other_name[CLV_WEIGHTS_MAX_NAME + 32];
  name_search s = {names, n, find_index(names, n, want), CLV_WEIGHTS_NONE};
  if (s.found_index == CLV_WEIGHTS_NONE) try_prefixes(&s, want);
  if (s.found_index == CLV_WEIGHTS_NONE && make_old_name(want, other_name, sizeof other_name))
    try_prefixes(&s, other_name);
  if (s.found_index == CLV_WEIGHTS_NONE && make_head_bias_name(want, other_name, sizeof other_name))
    try_prefixes(&s, other_name);
  if (s.second_found_index != CLV_WEIGHTS_NONE)
    return clv_fail(err, CLV_INVALID, "%.120s: '%.90s' and '%.90s' could both be '%.90s'", label,
                    names[s.found_index], names[s.second_found_index], want);
  *ret = s.found_index;
  return CLV_OK;
}
