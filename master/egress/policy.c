/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks what a policy permits: clv_policy_check_tensor, clv_policy_check_look_result and
 * clv_policy_check_epoch before a command sends anything, clv_policy_charge for each tensor at the
 * gate. Each refusal names the line of the policy that forbids the tensor and a remedy: a change of
 * the session, or a request to the policy's approver.
 */
#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

static bool list_contains(const clv_text_list *list, const char *text) {
  for (size_t i = 0; i < list->n; i++)
    if (strcmp(list->items[i], text) == 0) return true;
  return false;
}

static clv_code check_worker(const clv_policy_config *c, const clv_policy_tensor *t, clv_err *err) {
  if (list_contains(&c->workers, t->identity)) return CLV_OK;
  return clv_policy_fail_at(c, c->workers_pos, err,
                            "the policy does not name %s (%s), which would receive %s: use another "
                            "worker, or ask for this one under `workers`",
                            t->identity, t->worker, t->name);
}

/* Returns the word of the policy's list `kinds` that permits a kind of tensor. NULL: the list does
 * not decide on this kind. Keys under `allow` permit records and labels, and reports of failures
 * need no permission. */
static const char *policy_kind_word(clv_egress_kind kind) {
  static const char *const kinds[CLV_EGRESS_KINDS] = {
      [CLV_EGRESS_TOKENS] = "activation", [CLV_EGRESS_ACTIVATION] = "activation",
      [CLV_EGRESS_GRADIENT] = "gradient", [CLV_EGRESS_WEIGHTS] = "weights",
      [CLV_EGRESS_STATE] = "weights",     [CLV_EGRESS_CACHED] = "cached",
  };
  return kinds[kind];
}

static clv_code check_kind(const clv_policy_config *c, const clv_policy_tensor *t, clv_err *err) {
  const char *kind_word = policy_kind_word(t->kind);
  if (!kind_word || list_contains(&c->kinds, kind_word)) return CLV_OK;
  return clv_policy_fail_at(
      c, c->kinds_pos, err,
      "the policy permits no %s: %s to %s; place that stage at the master, or "
      "ask for %s under `kinds`",
      kind_word, t->name, t->worker, kind_word);
}

/* The keys of a policy that permit findings (ways to read records or labels), the worst finding
 * first. */
static const struct {
  clv_finding finding;
  const char *key;
  /* offsets in clv_policy_config of the key's value, and of the key's position in the file */
  size_t value_offset, pos_offset;
  const char *cure; /* change of the session that avoids the finding */
} permit_keys[] = {
#define AT(member) offsetof(clv_policy_config, member)
#define MORE_LAYERS_CURE "keep more layers at the master"
    {CLV_FINDING_LABELS, "allow.labels", AT(allow.labels), AT(allow.labels_pos),
     "put the loss at the master (loss.at)"},
    {CLV_FINDING_LABELS_READABLE, "allow.labels_readable", AT(allow.labels_readable),
     AT(allow.labels_readable_pos), MORE_LAYERS_CURE},
    {CLV_FINDING_RAW_INPUT, "allow.raw", AT(allow.raw), AT(allow.raw_pos), MORE_LAYERS_CURE},
    {CLV_FINDING_TOKENS, "allow.tokens", AT(allow.tokens), AT(allow.tokens_pos), MORE_LAYERS_CURE},
    {CLV_FINDING_FRONT_KNOWN, "allow.front_known", AT(allow.front_known), AT(allow.front_known_pos),
     MORE_LAYERS_CURE},
    {CLV_FINDING_PICTURE, "pictures", AT(allows_pictures), AT(pictures_pos), MORE_LAYERS_CURE},
#undef MORE_LAYERS_CURE
#undef AT
};

/* Returns the findings of a tensor that the policy must permit. FRONT_KNOWN is not among these if
 * the tensor shows TOKENS, because allow.tokens permits both. */
static clv_findings findings_needing_permit(const clv_policy_tensor *t) {
  if (t->kind == CLV_EGRESS_INPUT) return CLV_FINDING_RAW_INPUT;
  if (t->kind == CLV_EGRESS_LABELS) return CLV_FINDING_LABELS;
  if (t->findings & CLV_FINDING_TOKENS) return t->findings & ~(clv_findings)CLV_FINDING_FRONT_KNOWN;
  return t->findings;
}

/* Refuses a tensor unless the policy permits each of its findings. */
static clv_code check_findings(const clv_policy_config *c, const clv_policy_tensor *t,
                               clv_err *err) {
  clv_findings findings = findings_needing_permit(t);
  for (size_t i = 0; i < CLV_COUNT(permit_keys); i++) {
    bool is_permitted = *(const bool *)((const char *)c + permit_keys[i].value_offset);
    clv_config_pos pos = *(const clv_config_pos *)((const char *)c + permit_keys[i].pos_offset);
    if (is_permitted || !(findings & permit_keys[i].finding)) continue;
    return clv_policy_fail_at(c, pos.line ? pos : c->allow.pos, err,
                              "the policy does not permit %s to %s: %s is not true; %s, or ask for "
                              "%s: true",
                              t->name, t->worker, permit_keys[i].key, permit_keys[i].cure,
                              permit_keys[i].key);
  }
  return CLV_OK;
}

static clv_code check_layers(const clv_policy_config *c, const clv_policy_tensor *t, clv_err *err) {
  if (t->n_hiding_layers >= c->min_layers_at_home) return CLV_OK;
  return clv_policy_fail_at(
      c, c->min_layers_pos, err,
      "%s to %s has %u hiding layer%s at the master on its shortest path, and "
      "min_layers_at_home is %llu: keep more layers at the master, or ask for "
      "another limit",
      t->name, t->worker, t->n_hiding_layers, CLV_S(t->n_hiding_layers),
      (unsigned long long)c->min_layers_at_home);
}

static clv_code check_dtype(const clv_policy_config *c, const clv_policy_tensor *t, clv_err *err) {
  if (list_contains(&c->dtypes, clv_dtype_name(t->dtype))) return CLV_OK;
  return clv_policy_fail_at(c, c->dtypes_pos, err,
                            "the policy permits no %s: %s to %s; ask for %s under `dtypes`",
                            clv_dtype_name(t->dtype), t->name, t->worker, clv_dtype_name(t->dtype));
}

static const char *format_largest_shape(const clv_policy_config *c, char *text, size_t size) {
  size_t len = 0;
  text[0] = '\0';
  for (size_t i = 0; i < c->largest_shape.n && len < size; i++)
    len += (size_t)snprintf(text + len, size - len, "%s%.0f", i ? ", " : "",
                            c->largest_shape.items[i]);
  return text;
}

static clv_code check_shape(const clv_policy_config *c, const clv_policy_tensor *t, clv_err *err) {
  char shape_text[160], limit_text[160];
  bool fits = (size_t)t->shape.rank <= c->largest_shape.n;
  for (int i = 0; fits && i < t->shape.rank; i++)
    fits = (double)t->shape.dim[i] <= c->largest_shape.items[i];
  if (fits) return CLV_OK;
  return clv_policy_fail_at(c, c->shape_pos, err,
                            "%s to %s is %s, and largest_shape is [%s]: make batches or the layer "
                            "smaller, or ask for a larger shape",
                            t->name, t->worker,
                            clv_shape_format(&t->shape, shape_text, sizeof shape_text),
                            format_largest_shape(c, limit_text, sizeof limit_text));
}

/* WEIGHTS and STATE skip the checks of hiding layers, dtype and shape: a layer has tensors of
 * several types and shapes, for example a count of batches. */
clv_code clv_policy_check_tensor(const clv_policy *p, const clv_policy_tensor *t, clv_err *err) {
  if (!p) return CLV_OK;
  CLV_TRY(check_worker(p->config, t, err));
  if (t->kind == CLV_EGRESS_FAILURE) return CLV_OK;
  CLV_TRY(check_kind(p->config, t, err));
  CLV_TRY(check_findings(p->config, t, err));
  if (t->kind == CLV_EGRESS_WEIGHTS || t->kind == CLV_EGRESS_STATE) return CLV_OK;
  CLV_TRY(check_layers(p->config, t, err));
  CLV_TRY(check_dtype(p->config, t, err));
  return check_shape(p->config, t, err);
}

/* ---- layers that move to a worker ------------------------------------------------------------ */

clv_code clv_policy_check_release(const clv_policy *p, const char *layer, const char *worker,
                                  clv_err *err) {
  const clv_policy_config *c = p ? p->config : NULL;
  for (size_t i = 0; c && i < c->release.n; i++)
    if (fnmatch(c->release.items[i], layer, 0) == 0) return CLV_OK;
  if (!c) return CLV_OK;
  return clv_policy_fail_at(
      c, c->release_pos.line ? c->release_pos : c->workers_pos, err,
      "the policy does not permit layer '%.120s' to move from the master to %s, which could then "
      "undo it in activations that it may have recorded: keep the layer at the master, or ask for "
      "it under `release`",
      layer, worker);
}

/* ---- results of the look, the measurement before a run --------------------------------------- */

static const struct {
  const char *name;
  /* offset in clv_policy_config of the member with the position, in the policy file, of the
   * attack's key in max_read */
  size_t pos_offset;
} attack_rows[] = {{"pixels", offsetof(clv_policy_config, pixels_pos)},
                   {"tokens", offsetof(clv_policy_config, tokens_pos)},
                   {"labels", offsetof(clv_policy_config, labels_pos)},
                   {"features", offsetof(clv_policy_config, features_pos)},
                   {"groups", offsetof(clv_policy_config, groups_pos)}};

double clv_policy_max_read_share(const clv_policy *p, int reader) {
  return p ? p->config->max_read[reader] : 1;
}

/* Returns the number of decimals, 2 to 6, with which to print a share, so that a share above its
 * limit is printed as a number above the limit. */
static int choose_decimals(double share, double limit) {
  char text[32];
  int n_decimals = 2;
  for (; n_decimals < 6; n_decimals++) {
    snprintf(text, sizeof text, "%.*f", n_decimals, share);
    if (strtod(text, NULL) > limit) break;
  }
  return n_decimals;
}

clv_code clv_policy_check_look_result(const clv_policy *p, const clv_policy_look_result *r,
                                      clv_err *err) {
  double limit = clv_policy_max_read_share(p, r->reader);
  const char *name = attack_rows[r->reader].name;
  if (limit >= 1 || (r->share >= 0 && r->share <= limit)) return CLV_OK;
  clv_config_pos pos =
      *(const clv_config_pos *)((const char *)p->config + attack_rows[r->reader].pos_offset);
  if (r->share < 0)
    return clv_policy_fail_at(
        p->config, pos, err,
        "the policy limits how many %s can be read (max_read.%s: %g), and the "
        "look did not measure that: %s; ask for a policy without that limit",
        name, name, limit, r->why_not_run);
  return clv_policy_fail_at(
      p->config, pos, err,
      "%s: the look read %.*f of them from what leaves, and the policy permits %g "
      "(max_read.%s): keep more layers at the master, or ask for another limit",
      name, choose_decimals(r->share, limit), r->share, limit, name);
}

/* ---- permission of programs on libcleave ----------------------------------------------------- */

clv_code clv_policy_check_programs(const clv_policy *p, clv_err *err) {
  const clv_policy_config *c = p ? p->config : NULL;
  if (!c) return CLV_OK;
  if (c->programs != CLV_PROGRAMS_DECLARED)
    return clv_policy_fail_at(
        c, c->programs_pos.line ? c->programs_pos : c->workers_pos, err,
        "the policy permits no programs on libcleave, in C or Python: train by a session file, or "
        "ask for `programs: declared`");
  for (int i = 0; i < (int)CLV_COUNT(attack_rows); i++)
    CLV_TRY(clv_policy_check_look_result(
        p,
        &(clv_policy_look_result){
            .reader = i, .share = -1, .why_not_run = "nothing is measured of a program"},
        err));
  return CLV_OK;
}

/* ---- limit on the bytes of an epoch ---------------------------------------------------------- */

clv_code clv_policy_check_epoch(const clv_policy *p, uint64_t bytes, clv_err *err) {
  char needed_text[24], limit_text[24];
  if (!p || bytes <= p->config->bytes_per_epoch) return CLV_OK;
  return clv_policy_fail_at(
      p->config, p->config->bytes_pos, err,
      "an epoch sends %s (%llu bytes), and bytes_per_epoch is %s (%llu "
      "bytes): cut the model where less crosses, or ask for a larger limit",
      clv_format_size(bytes, needed_text, sizeof needed_text), (unsigned long long)bytes,
      clv_format_size(p->config->bytes_per_epoch, limit_text, sizeof limit_text),
      (unsigned long long)p->config->bytes_per_epoch);
}

void clv_policy_begin_epoch(clv_policy *p, uint64_t bytes) {
  if (p) __atomic_store_n(&p->sent_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* Adds the bytes of a tensor to those of the epoch. Returns false, and adds nothing, if the sum
 * would exceed bytes_per_epoch. */
static bool try_add_epoch_bytes(clv_policy *p, uint64_t bytes) {
  uint64_t limit = p->config->bytes_per_epoch,
           sent_bytes = __atomic_load_n(&p->sent_bytes, __ATOMIC_SEQ_CST);
  do {
    if (bytes > limit || sent_bytes > limit - bytes) return false;
  } while (!__atomic_compare_exchange_n(&p->sent_bytes, &sent_bytes, sent_bytes + bytes, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return true;
}

bool clv_policy_has_refused(const clv_policy *p) {
  return p && __atomic_load_n(&p->has_refused, __ATOMIC_SEQ_CST);
}

static clv_code check_and_add_bytes(clv_policy *p, const clv_policy_tensor *t, uint64_t bytes,
                                    clv_err *err) {
  char limit_text[24];
  CLV_TRY(clv_policy_check_tensor(p, t, err));
  if (try_add_epoch_bytes(p, bytes)) return CLV_OK;
  return clv_policy_fail_at(
      p->config, p->config->bytes_pos, err,
      "the policy permits %s (%llu bytes) in an epoch, and %s would exceed "
      "that; ask for a larger bytes_per_epoch",
      clv_format_size(p->config->bytes_per_epoch, limit_text, sizeof limit_text),
      (unsigned long long)p->config->bytes_per_epoch, t->name);
}

clv_code clv_policy_charge(clv_policy *p, const clv_policy_tensor *t, uint64_t bytes,
                           clv_err *err) {
  clv_code code = p ? check_and_add_bytes(p, t, bytes, err) : CLV_OK;
  if (code != CLV_OK) __atomic_store_n(&p->has_refused, true, __ATOMIC_SEQ_CST);
  return code;
}
