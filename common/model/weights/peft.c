/* SPDX-License-Identifier: Apache-2.0
 *
 * adapter_config.json of peft: parsing (clv_peft_parse) and writing (clv_peft_write).
 */
#include "common/model/weights/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"

void clv_peft_clear(clv_peft *p) {
  if (!p) return;
  free(p->patterns);
  *p = (clv_peft){0};
}

/* ---- settings of single layers --------------------------------------------------------------- */

static clv_code grow_patterns(clv_peft *p, clv_err *err) {
  clv_peft_pattern *larger;
  if (p->n_patterns < p->cap) return CLV_OK;
  if (p->n_patterns == CLV_PEFT_MAX_PATTERNS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d layers with a rank or alpha of their own",
                    CLV_PEFT_MAX_PATTERNS);
  size_t cap = CLV_MIN(CLV_MAX(2 * p->cap, (size_t)16), (size_t)CLV_PEFT_MAX_PATTERNS);
  CLV_TRY(clv_alloc(cap, sizeof *larger, &larger, err));
  if (p->n_patterns) memcpy(larger, p->patterns, p->n_patterns * sizeof *larger);
  free(p->patterns);
  p->patterns = larger;
  p->cap = cap;
  return CLV_OK;
}

clv_code clv_peft_set_layer(clv_peft *p, const char *layer, int64_t r, double alpha, clv_err *err) {
  clv_peft_pattern *at = NULL;
  for (size_t i = 0; i < p->n_patterns && !at; i++)
    if (strcmp(p->patterns[i].name, layer) == 0) at = &p->patterns[i];
  if (!at) {
    CLV_TRY(grow_patterns(p, err));
    at = &p->patterns[p->n_patterns++];
    *at = (clv_peft_pattern){0};
    snprintf(at->name, sizeof at->name, "%s", layer);
  }
  if (r) at->r = r;
  if (alpha != 0) at->alpha = alpha;
  return CLV_OK;
}

/* True if `name` equals the layer's name, or the end of it behind a dot, as in peft. */
static bool is_layer_match(const char *layer, const char *name) {
  size_t n = strlen(layer), len = strlen(name);
  if (n < len || strcmp(layer + n - len, name) != 0) return false;
  return n == len || layer[n - len - 1] == '.';
}

double clv_peft_scale(const clv_peft *p, const char *layer, int64_t *ret_r) {
  int64_t r = 0;
  double alpha = 0;
  for (size_t i = 0; i < p->n_patterns; i++) {
    const clv_peft_pattern *q = &p->patterns[i];
    if (!is_layer_match(layer, q->name)) continue;
    if (!r) r = q->r;
    if (alpha == 0) alpha = q->alpha;
  }
  if (!r) r = p->r;
  if (alpha == 0) alpha = p->alpha;
  *ret_r = r;
  return alpha / (p->rslora ? sqrt((double)r) : (double)r);
}

/* ---- reading values of adapter_config.json --------------------------------------------------- */

enum { MAX_RANK = 65536 };
static const double max_alpha = 1e9;

typedef struct peft_reader {
  clv_json j;
  const clv_json_keys *ignored; /* keys that are skipped although they are not known */
  clv_peft *p;
} peft_reader;

static clv_code read_rank(peft_reader *r, int64_t *ret, clv_err *err) {
  return clv_json_read_integer(&r->j, 1, MAX_RANK, ret, err);
}

static clv_code read_alpha(peft_reader *r, double *ret, clv_err *err) {
  size_t at = r->j.at;
  CLV_TRY(clv_json_read_real(&r->j, ret, err));
  if (*ret > 0 && *ret <= max_alpha) return CLV_OK;
  return clv_json_fail(&r->j, at, err, "lora_alpha must be above 0");
}

static clv_code check_name(peft_reader *r, size_t at, const clv_bytes *name, clv_err *err) {
  static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  const char *text = name->len ? (const char *)name->data : "";
  if (name->len && name->len < CLV_PEFT_NAME_BYTES && strspn(text, legal) == name->len)
    return CLV_OK;
  return clv_json_fail(&r->j, at, err,
                       "a key of rank_pattern or alpha_pattern must be a layer's name, no regular "
                       "expression");
}

static clv_code read_pattern(peft_reader *r, bool is_rank, clv_err *err) {
  bool has_more;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    int64_t value = 0;
    double alpha = 0;
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return CLV_OK;
    size_t at = r->j.at;
    CLV_TRY(clv_json_read_key(&r->j, &key, err));
    CLV_TRY(check_name(r, at, &key, err));
    CLV_TRY(is_rank ? read_rank(r, &value, err) : read_alpha(r, &alpha, err));
    if (clv_peft_set_layer(r->p, (const char *)key.data, value, alpha, err) != CLV_OK)
      return clv_err_prefix(err, "%s", r->j.label);
  }
}

/* ---- the keys of adapter_config.json --------------------------------------------------------- */

typedef struct peft_key peft_key;
struct peft_key {
  const char *key;
  clv_code (*read)(peft_reader *r, const peft_key *key, clv_err *err);
  /* the text that is required, why the key is refused, or why it can be ignored */
  const char *reason;
  const char *doc; /* a remark for CHECKPOINTS.md instead of the reason; NULL: none */
};

static clv_code require_text(peft_reader *r, const peft_key *key, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t at = r->j.at;
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  if (strcmp((const char *)text.data, key->reason) == 0) return CLV_OK;
  return clv_json_fail(&r->j, at, err, "%s must be \"%s\": nothing else is done here", key->key,
                       key->reason);
}

static clv_code read_r(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return read_rank(r, &r->p->r, err);
}
static clv_code read_lora_alpha(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return read_alpha(r, &r->p->alpha, err);
}
static clv_code read_rslora(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return clv_json_read_bool(&r->j, &r->p->rslora, err);
}
static clv_code read_dropout(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return clv_json_read_real(&r->j, &r->p->dropout, err);
}
static clv_code read_rank_pattern(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return read_pattern(r, true, err);
}
static clv_code read_alpha_pattern(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return read_pattern(r, false, err);
}

static clv_code skip_value(peft_reader *r, const peft_key *key, clv_err *err) {
  (void)key;
  return clv_json_skip(&r->j, err);
}

/* Skips a value. *ret_off: the value is null, false, [] or {}, so that it switches the feature off.
 */
static clv_code skip_and_test_off(peft_reader *r, bool *ret_off, clv_err *err) {
  clv_json_kind kind;
  bool value = true, has_more = true;
  *ret_off = clv_json_skip_null(&r->j);
  if (*ret_off) return CLV_OK;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  if (kind != CLV_JSON_BOOL && kind != CLV_JSON_LIST && kind != CLV_JSON_OBJECT)
    return clv_json_skip(&r->j, err);
  if (kind == CLV_JSON_BOOL) {
    CLV_TRY(clv_json_read_bool(&r->j, &value, err));
    *ret_off = !value;
    return CLV_OK;
  }
  clv_json from = r->j;
  CLV_TRY(clv_json_skip(&r->j, err));
  CLV_TRY(clv_json_open(&from, kind, err));
  CLV_TRY(clv_json_next(&from, kind, 0, &has_more, err));
  *ret_off = !has_more;
  return CLV_OK;
}

static clv_code require_off(peft_reader *r, const peft_key *key, clv_err *err) {
  bool is_off;
  size_t at = r->j.at;
  CLV_TRY(skip_and_test_off(r, &is_off, err));
  if (is_off) return CLV_OK;
  return clv_json_fail(&r->j, at, err, "%s is given, and is not done here: %s", key->key,
                       key->reason);
}

/* Reads init_lora_weights, the method that initialised A and B. Ignores the known methods, because
 * the file has the trained values. Refuses other methods, because with them peft changes the base
 * model when it opens the adapter. */
static clv_code read_init_method(peft_reader *r, const peft_key *key, clv_err *err) {
  static const char *const known[] = {"gaussian", "eva", "orthogonal"};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_json_kind kind;
  bool unused_bool;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  if (kind == CLV_JSON_BOOL) return clv_json_read_bool(&r->j, &unused_bool, err);
  CLV_TRY(clv_json_read_text(&r->j, &text, err));
  for (size_t i = 0; i < CLV_COUNT(known); i++)
    if (strcmp((const char *)text.data, known[i]) == 0) return CLV_OK;
  return clv_json_fail(&r->j, at, err, "%s is \"%.40s\": %s", key->key, (const char *)text.data,
                       key->reason);
}

#define REASON_IN_TENSORS "the file's tensors say it"
#define REMARK_COMPARED "compared with the session"
#define REASON_OTHER_START \
  "it belongs to a way to start that is refused, or whose values are in the file"

/* All keys of LoraConfig in peft 0.21. */
static const peft_key keys[] = {
    {"peft_type", require_text, "LORA", NULL},
    {"r", read_r, NULL, REMARK_COMPARED},
    {"lora_alpha", read_lora_alpha, NULL, REMARK_COMPARED},
    {"use_rslora", read_rslora, NULL, REMARK_COMPARED},
    {"lora_dropout", read_dropout, NULL, "the session says how it learns"},
    {"rank_pattern", read_rank_pattern, NULL, REMARK_COMPARED "; names with wildcards are refused"},
    {"alpha_pattern", read_alpha_pattern, NULL,
     REMARK_COMPARED "; names with wildcards are refused"},
    {"bias", require_text, "none", NULL},
    {"init_lora_weights", read_init_method,
     "the base is changed where peft opens it: save the adapter there with "
     "path_initial_model_for_weight_conversion, or merge it",
     "true, false, gaussian, eva, orthogonal: the file has the values; others change the base and "
     "are refused"},
    {"target_modules", skip_value, REASON_IN_TENSORS, NULL},
    {"exclude_modules", skip_value, REASON_IN_TENSORS, NULL},
    {"layers_to_transform", skip_value, REASON_IN_TENSORS, NULL},
    {"layers_pattern", skip_value, REASON_IN_TENSORS, NULL},
    {"modules_to_save", skip_value, REASON_IN_TENSORS ", and reach the stage that has them", NULL},
    {"fan_in_fan_out", skip_value, "A and B have one form whichever way the base is stored", NULL},
    {"task_type", skip_value, "it names a class of Python", NULL},
    {"auto_mapping", skip_value, "it names a class of Python", NULL},
    {"base_model_name_or_path", skip_value, "the session names the base", NULL},
    {"revision", skip_value, "the session names the base", NULL},
    {"peft_version", skip_value, "it says who wrote the file", NULL},
    {"inference_mode", skip_value, "the session says what learns", NULL},
    {"runtime_config", skip_value, "it says where tensors are kept", NULL},
    {"megatron_core", skip_value, "it names a module of Python", NULL},
    {"qalora_group_size", skip_value, "it is read with use_qalora", NULL},
    {"loftq_config", skip_value, REASON_OTHER_START, NULL},
    {"eva_config", skip_value, REASON_OTHER_START, NULL},
    {"corda_config", skip_value, REASON_OTHER_START, NULL},
    {"lora_ga_config", skip_value, REASON_OTHER_START, NULL},
    {"use_dora", require_off, "weights are not divided into length and direction", NULL},
    {"lora_bias", require_off, "B has no bias", NULL},
    {"use_qalora", require_off, "inputs are not pooled", NULL},
    {"use_bdlora", require_off, "A and B are whole matrices", NULL},
    {"alora_invocation_tokens", require_off, "adapters work at every token", NULL},
    {"layer_replication", require_off, "a layer stands in the network once", NULL},
    {"megatron_config", require_off, "layers are not divided", NULL},
    {"trainable_token_indices", require_off, "rows of a table do not learn by themselves", NULL},
    {"target_parameters", require_off, "adapters belong to linear layers", NULL},
    {"velora_config", require_off, "gradients are those of whole inputs", NULL},
    {"monteclora_config", require_off, "adapters are not drawn", NULL},
    {"arrow_config", require_off, "there is one adapter, and nothing chooses among several", NULL},
    {"kasa_config", require_off, "the base keeps all its singular values", NULL},
    {"ensure_weight_tying", require_off, "adapters of tied layers are several", NULL},
};

bool clv_peft_describe_key(size_t i, clv_peft_key_doc *ret) {
  if (i >= CLV_COUNT(keys)) return false;
  const peft_key *k = &keys[i];
  bool requires_text = k->read == require_text;
  *ret = (clv_peft_key_doc){.name = k->key,
                            .outcome = k->read == skip_value    ? "harmless"
                                       : k->read == require_off ? "refused unless off"
                                       : requires_text          ? "refused unless"
                                                                : "done",
                            .word = requires_text ? k->reason : NULL,
                            .reason = requires_text ? NULL
                                      : k->doc      ? k->doc
                                                    : k->reason};
  return true;
}

static clv_code read_member(peft_reader *r, bool seen[CLV_COUNT(keys)], clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  const char *text;
  bool is_off;
  size_t at = r->j.at;
  CLV_TRY(clv_json_read_key(&r->j, &key, err));
  text = key.len ? (const char *)key.data : "";
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    if (strlen(text) != key.len || strcmp(keys[i].key, text) != 0) continue;
    if (seen[i]) return clv_json_fail(&r->j, at, err, "'%s' stands here twice", text);
    seen[i] = true;
    return keys[i].read(r, &keys[i], err);
  }
  CLV_TRY(skip_and_test_off(r, &is_off, err));
  if (is_off || clv_json_keys_have(r->ignored, text, key.len)) return CLV_OK;
  return clv_json_fail(&r->j, at, err,
                       "'%.60s' is not known, and may change what adapters compute: if it does "
                       "not, list it in model.ignore_keys of the session, or take it out",
                       text);
}

static clv_code read_config(peft_reader *r, clv_err *err) {
  bool seen[CLV_COUNT(keys)] = {0}, has_more;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(read_member(r, seen, err));
  }
  CLV_TRY(clv_json_end(&r->j, err));
  if (seen[0]) return CLV_OK;
  return clv_json_fail(&r->j, 0, err, "there is no peft_type: is this an " CLV_PEFT_CONFIG "?");
}

clv_code clv_peft_parse(const char *label, const char *text, size_t len,
                        const clv_json_keys *ignored, clv_peft *ret, clv_err *err) {
  clv_peft p = {.r = 8, .alpha = 8};
  peft_reader r = {.j = {.label = label, .text = text, .len = len}, .ignored = ignored, .p = &p};
  clv_code code = read_config(&r, err);
  if (code != CLV_OK) {
    clv_peft_clear(&p);
    return code;
  }
  *ret = p;
  return CLV_OK;
}

/* ---- writing adapter_config.json ------------------------------------------------------------- */

static void write_name_list(const char *key, const char *const *list, size_t n, clv_bytes *out) {
  clv_bytes_printf(out, "  \"%s\": ", key);
  if (!n) clv_bytes_puts(out, strcmp(key, "modules_to_save") == 0 ? "null" : "[]");
  for (size_t i = 0; i < n; i++) {
    clv_bytes_puts(out, i ? ",\n    " : "[\n    ");
    clv_bytes_add_json(out, list[i]);
  }
  clv_bytes_puts(out, n ? "\n  ],\n" : ",\n");
}

static void write_patterns(const clv_peft *p, bool is_rank, clv_bytes *out) {
  const char *separator = "";
  clv_bytes_printf(out, "  \"%s\": {", is_rank ? "rank_pattern" : "alpha_pattern");
  for (size_t i = 0; i < p->n_patterns; i++) {
    const clv_peft_pattern *q = &p->patterns[i];
    if (is_rank ? !q->r : q->alpha == 0) continue;
    clv_bytes_printf(out, "%s\n    ", separator);
    clv_bytes_add_json(out, q->name);
    clv_bytes_printf(out, ": %.17g", is_rank ? (double)q->r : q->alpha);
    separator = ",";
  }
  clv_bytes_puts(out, *separator ? "\n  },\n" : "},\n");
}

void clv_peft_write(const clv_peft *p, const char *base, const char *const *targets,
                    size_t n_targets, const char *const *saved, size_t n_saved, clv_bytes *out) {
  clv_bytes_puts(out, "{\n  \"base_model_name_or_path\": ");
  if (base)
    clv_bytes_add_json(out, base);
  else
    clv_bytes_puts(out, "null");
  clv_bytes_puts(out,
                 ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
                 "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n");
  clv_bytes_printf(out, "  \"lora_alpha\": %.17g,\n  \"lora_dropout\": %.17g,\n", p->alpha,
                   p->dropout);
  write_name_list("modules_to_save", saved, n_saved, out);
  clv_bytes_printf(out, "  \"peft_type\": \"LORA\",\n  \"r\": %lld,\n", (long long)p->r);
  write_patterns(p, true, out);
  write_patterns(p, false, out);
  write_name_list("target_modules", targets, n_targets, out);
  clv_bytes_printf(out, "  \"task_type\": null,\n  \"use_rslora\": %s\n}\n",
                   p->rslora ? "true" : "false");
}
