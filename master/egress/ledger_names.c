/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the digests of keys for the ledger, makes lists of keys and tensors, and formats the
 * reason why a worker knows a layer. The trainer and the runtime of a program fill a list just
 * before they send the listed keys and tensors, and hand the list to clv_ledger_add. A program's
 * runtime asks clv_ledger_explain_known_key and clv_ledger_explain_known_sample about the modules
 * at the master; master/plan/known_layers.c asks the same about the layers of a session.
 */
#include <stdlib.h>
#include <string.h>

#include "master/egress/egress_int.h"

/* ---- lists of ledger items ------------------------------------------------------------------- */

void clv_ledger_list_done(clv_ledger_list *l) {
  if (!l) return;
  free(l->items);
  *l = (clv_ledger_list){0};
}

clv_code clv_ledger_list_add(clv_ledger_list *l, const char *identity, clv_ledger_kind kind,
                             const clv_sha256 *of, clv_err *err) {
  if (l->n == l->cap) {
    size_t new_cap = l->cap ? 2 * l->cap : 64;
    clv_ledger_item *grown = realloc(l->items, new_cap * sizeof *grown);
    if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    l->items = grown;
    l->cap = new_cap;
  }
  l->items[l->n++] = (clv_ledger_item){kind, *of, identity};
  return CLV_OK;
}

clv_code clv_ledger_list_add_sample(clv_ledger_list *l, const char *identity,
                                    const clv_weights_sample *s, clv_err *err) {
  clv_sha256 of[CLV_SAMPLE_MAX_HASHES];
  clv_row_hashes row_hashes;
  size_t n_hashes;
  CLV_TRY(clv_weights_sample_hashes(s, of, &n_hashes, err));
  for (size_t k = 0; k < n_hashes; k++)
    CLV_TRY(clv_ledger_list_add(l, identity, CLV_LEDGER_WEIGHTS, &of[k], err));
  for (int is_by_column = 0; is_by_column < 2; is_by_column++) {
    CLV_TRY(clv_weights_sample_row_hashes(s, is_by_column, &row_hashes, err));
    for (size_t k = 0; k < row_hashes.n; k++)
      CLV_TRY(clv_ledger_list_add(l, identity, CLV_LEDGER_ROW, &row_hashes.hashes[k], err));
  }
  return CLV_OK;
}

/* ---- digests of layer keys ------------------------------------------------------------------- */

static clv_code hash_secret(clv_bytes *of, clv_sha256 *ret, clv_err *err) {
  if (of->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_sha256_of(of->data, of->len, ret, err);
  explicit_bzero(of->data, of->len);
  return code;
}

clv_code clv_ledger_hash_layer_key(const clv_key *seed, uint32_t layer, const char *node,
                                   clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes of = {0};
  clv_bytes_add(&of, seed, sizeof *seed);
  clv_bytes_printf(&of, " %u %s", layer, node);
  return hash_secret(&of, ret, err);
}

clv_code clv_ledger_hash_module_key(const clv_key *key, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes of = {0};
  clv_bytes_puts(&of, "key of a module ");
  clv_bytes_add(&of, key, sizeof *key);
  return hash_secret(&of, ret, err);
}

/* ---- reasons why a worker knows a layer ------------------------------------------------------ */

/* Appends a reason if the ledger says that a worker has received the item with the digest `of`:
 * text_before, the identity of the worker, text_after, and the date. */
static clv_code append_reason(const clv_ledger *l, clv_ledger_kind kind, const clv_sha256 *of,
                              const char *text_before, const char *text_after, clv_bytes *reason,
                              clv_err *err) {
  clv_ledger_entry entry;
  bool has_entry;
  if (reason->len) return CLV_OK;
  CLV_TRY(clv_ledger_find(l, kind, of, &entry, &has_entry, err));
  if (has_entry)
    clv_bytes_printf(reason, "%s at '%.100s' in an earlier session%s (%s)", text_before,
                     entry.identity, text_after, entry.date);
  return reason->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_ledger_explain_known_key(const clv_ledger *l, const clv_sha256 *of, clv_bytes *reason,
                                      clv_err *err) {
  return append_reason(l, CLV_LEDGER_KEY, of, "was", ", by its key", reason, err);
}

/* Appends a reason if a worker has received the weights in another scale, type or order. f: moments
 * of the weights (means that describe the distribution of the values), which such a change does not
 * alter. */
static clv_code append_reason_of_moments(const clv_ledger *l, const clv_weights_moments *f,
                                         clv_bytes *reason, clv_err *err) {
  for (unsigned neighbour_bits = 0; neighbour_bits < 1u << CLV_N_SPREAD_MEANS; neighbour_bits++) {
    clv_sha256 of;
    bool is_near;
    CLV_TRY(clv_weights_moments_digest(f, neighbour_bits, &of, &is_near, err));
    if (is_near)
      CLV_TRY(append_reason(l, CLV_LEDGER_WEIGHTS, &of,
                            "has weights that are scaled, rounded or reordered ones", "", reason,
                            err));
  }
  return CLV_OK;
}

static clv_code append_reason_of_rows(const clv_ledger *l, const clv_weights_sample *s,
                                      bool is_by_column, clv_bytes *reason, clv_err *err) {
  clv_row_hashes row_hashes;
  clv_ledger_entry entry = {0};
  size_t n_found = 0, points_sum = 0;
  if (reason->len || !clv_ledger_count_rows(l)) return CLV_OK;
  CLV_TRY(clv_weights_sample_row_hashes(s, is_by_column, &row_hashes, err));
  for (size_t i = 0; i < row_hashes.n; i++) {
    bool is_in_ledger;
    CLV_TRY(clv_ledger_find(l, CLV_LEDGER_ROW, &row_hashes.hashes[i], &entry, &is_in_ledger, err));
    n_found += is_in_ledger;
    points_sum += is_in_ledger ? clv_row_hash_points(&row_hashes.hashes[i]) : 0;
  }
  if (points_sum >= CLV_ROW_MIN_POINTS)
    clv_bytes_printf(
        reason,
        "has %zu of %zu %s that were, times a factor, at '%.100s' in an earlier session (%s)",
        n_found, row_hashes.n, is_by_column ? "columns" : "rows", entry.identity, entry.date);
  return reason->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_ledger_explain_known_sample(const clv_ledger *l, const clv_weights_sample *s,
                                         clv_bytes *reason, clv_err *err) {
  clv_weights_moments f;
  clv_sha256 of;
  CLV_TRY(clv_weights_sample_digest(s, &of, err));
  CLV_TRY(append_reason(l, CLV_LEDGER_WEIGHTS, &of, "has weights that were", "", reason, err));
  for (int uses_all_values = 0; uses_all_values < 2 && !reason->len; uses_all_values++)
    if (clv_weights_sample_moments(s, uses_all_values, &f))
      CLV_TRY(append_reason_of_moments(l, &f, reason, err));
  for (int is_by_column = 0; is_by_column < 2; is_by_column++)
    CLV_TRY(append_reason_of_rows(l, s, is_by_column, reason, err));
  return CLV_OK;
}
