/* SPDX-License-Identifier: Apache-2.0
 *
 * Lets the worker of the second stage keep the output rows of a frozen first stage, which is called
 * the front, so that later epochs need not compute and send them again. The trainer calls
 * clv_trainer_begin_cache once, clv_trainer_choose_cache_use and clv_trainer_make_front_leaf for
 * each batch, clv_trainer_end_cache at the end. The front runs as in evaluations, in a separate
 * context, only for records whose rows the worker does not have yet.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* First part of the text from which the cache's key is derived, for ROW_ID_NUMBER and for
 * ROW_ID_POSITION. The keys differ, so that a row is never used for another record. */
static const char *const key_derivation_prefixes[] = {"cleave cache by number", "cleave cache"};
/* Identity of a row in the cache: a drawn number, or, up to version 0.7, the record's position in
 * the files. */
enum { ROW_ID_NUMBER, ROW_ID_POSITION };

static clv_code derive_cache_key(const clv_trainer *t, const clv_sha256 *secret, int row_id_kind,
                                 clv_sha256 *ret, clv_err *err) {
  const clv_graph *g = t->b->stages[0].graph;
  char shape_text[160], key_text[320];
  int n = snprintf(
      key_text, sizeof key_text, "%s of %llu records, %s %s", key_derivation_prefixes[row_id_kind],
      (unsigned long long)t->cache.worker_cache.records,
      clv_dtype_name(g->nodes[g->output_node].dtype),
      clv_shape_format(&g->nodes[g->output_node].shape, shape_text, sizeof shape_text));
  return clv_hmac_sha256(secret, key_text, (size_t)n, ret, err);
}

/* Draws the number of each record. The numbers are derived from the secret of the run, so a resumed
 * run finds its rows in the cache. A worker cannot infer the position of a record in the files from
 * its number. Positions would show labels, because records of a class may be neighbours. */
static clv_code draw_row_numbers(clv_trainer *t, const clv_sha256 *secret, clv_err *err) {
  static const char text[] = "cleave numbers of cached rows";
  clv_trainer_cache_rows *c = &t->cache;
  clv_sha256 digest;
  clv_key key;
  CLV_TRY(clv_alloc((size_t)c->worker_cache.records, sizeof *c->record_numbers, &c->record_numbers,
                    err));
  CLV_TRY(clv_hmac_sha256(secret, text, sizeof text - 1, &digest, err));
  memcpy(&key, &digest, sizeof key);
  const clv_rng_key stream = clv_rng_key_of(&key);
  clv_rng_permutation(&stream, c->record_numbers, (size_t)c->worker_cache.records);
  return CLV_OK;
}

/* Asks the worker to delete the rows that an attempt of version 0.7 or earlier has left in the
 * cache. Those versions used the record's position in the files as the number of its row. */
static clv_code delete_old_rows(clv_trainer *t, const clv_sha256 *secret, uint64_t *ret_rows,
                                clv_err *err) {
  enum { CACHE_DELETE_TIMEOUT_MS = 3000 };
  cleave_cached old_cache = t->cache.worker_cache;
  clv_err ignored;
  if (t->use != CLV_TRAINER_RESUMED_RUN) return CLV_OK;
  CLV_TRY(derive_cache_key(t, secret, ROW_ID_POSITION, &old_cache.key, err));
  if (cleave_cache_end(&old_cache, CACHE_DELETE_TIMEOUT_MS, ret_rows, &ignored) != CLV_OK)
    *ret_rows = 0;
  return CLV_OK;
}

/* Returns the name of the worker if its cache has the rows of all records, which is the case after
 * an attempt has finished its first epoch. NULL: some row is missing, or the worker did not answer;
 * then the trainer sends all rows. */
static const char *find_worker_with_all_rows(clv_trainer *t) {
  enum { ROW_COUNT_TIMEOUT_MS = 3000 };
  clv_trainer_cache_rows *c = &t->cache;
  uint64_t rows;
  clv_err ignored;
  if (t->use != CLV_TRAINER_RESUMED_RUN) return NULL;
  if (cleave_cache_count(&c->worker_cache, ROW_COUNT_TIMEOUT_MS, &rows, &ignored) != CLV_OK ||
      rows != c->worker_cache.records)
    return NULL;
  memset(c->is_row_sent, true, (size_t)c->worker_cache.records * sizeof *c->is_row_sent);
  return cleave_module_node(t->modules[1]);
}

clv_code clv_trainer_begin_cache(clv_trainer *t, const clv_dataset *data, const clv_sha256 *secret,
                                 const char **ret_worker, uint64_t *ret_deleted, clv_err *err) {
  clv_trainer_cache_rows *c = &t->cache;
  *ret_worker = NULL;
  *ret_deleted = 0;
  if (!t->b->has_cache) return CLV_OK;
  c->worker_cache = (cleave_cached){.from = t->modules[0],
                                    .to = t->modules[1],
                                    .records = clv_dataset_count(data),
                                    .keep_s = t->config->stages[0].cache_ttl_ms / 1000,
                                    .n = 1};
  CLV_TRY(derive_cache_key(t, secret, ROW_ID_NUMBER, &c->worker_cache.key, err));
  size_t max_records = (size_t)CLV_MAX(t->b->micro_size, t->b->eval_size);
  CLV_TRY(clv_alloc((size_t)c->worker_cache.records, sizeof *c->is_row_sent, &c->is_row_sent, err));
  CLV_TRY(clv_alloc(max_records, sizeof *c->batch_numbers, &c->batch_numbers, err));
  CLV_TRY(draw_row_numbers(t, secret, err));
  clv_err reason;
  cleave_error refusal_error;
  if (cleave_cached_check(&c->worker_cache, &refusal_error) != CLEAVE_OK) {
    (void)clv_trainer_convert_error(t, &refusal_error, &reason);
    return clv_session_fail_at(t->config, t->config->stages[0].cache_pos, err, "%s", reason.text);
  }
  CLV_TRY(delete_old_rows(t, secret, ret_deleted, err));
  c->data = data;
  *ret_worker = find_worker_with_all_rows(t);
  return CLV_OK;
}

clv_code clv_trainer_end_cache(clv_trainer *t, const char **ret_worker, uint64_t *ret_rows,
                               clv_err *err) {
  enum { CACHE_DELETE_TIMEOUT_MS = 3000 };
  *ret_worker = NULL;
  *ret_rows = 0;
  if (!t->cache.data) return CLV_OK;
  *ret_worker = cleave_module_node(t->modules[1]);
  t->cache.data = NULL;
  return cleave_cache_end(&t->cache.worker_cache, CACHE_DELETE_TIMEOUT_MS, ret_rows, err);
}

static bool are_all_rows_sent(const clv_trainer *t, const uint32_t *index, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!t->cache.is_row_sent[index[i]]) return false;
  return true;
}

void clv_trainer_choose_cache_use(clv_trainer *t, const uint32_t *index, size_t n) {
  if (!t->cache.data) return;
  t->cache.use = are_all_rows_sent(t, index, n) ? CLV_CACHE_NUMBERS : CLV_CACHE_ROWS;
}

/* Computes the output of the front, the frozen first stage, for a batch into t->fetched_value. */
static clv_code compute_front_output(clv_trainer *t, clv_tensor *const *x, const clv_sequences *s,
                                     clv_err *err) {
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_reference in[CLV_MAX_INPUTS], out;
  cleave_context context;
  uint32_t n_in;
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &context, CLV_API_ERROR));
  CLV_TRY(clv_trainer_stage_inputs(t, context, 0, x, s, in, &n_in, err));
  CLV_TRY_API(cleave_call(t->runtime, context, t->modules[0], in, n_in, &out, CLV_API_ERROR));
  CLV_TRY_API(cleave_to_here(t->runtime, out, 0, &t->fetched_value, CLV_API_ERROR));
  CLV_TRY_API(cleave_context_end(t->runtime, context, CLV_API_ERROR));
  return CLV_OK;
}

clv_code clv_trainer_make_front_leaf(clv_trainer *t, cleave_context context, const uint32_t *index,
                                     clv_tensor *const *x, const clv_sequences *s,
                                     cleave_reference *ret, clv_err *err) {
  clv_trainer_cache_rows *c = &t->cache;
  bool are_rows_at_worker = are_all_rows_sent(t, index, s->n);
  for (size_t i = 0; i < s->n; i++) c->batch_numbers[i] = c->record_numbers[index[i]];
  c->worker_cache.record_numbers = c->batch_numbers;
  c->worker_cache.n = s->n;
  if (!are_rows_at_worker) CLV_TRY(compute_front_output(t, x, s, err));
  CLV_TRY_API(cleave_leaf_cached(t->runtime, context, &c->worker_cache,
                                 are_rows_at_worker ? NULL : &t->fetched_value, ret,
                                 CLV_API_ERROR));
  for (size_t i = 0; i < s->n; i++) c->is_row_sent[index[i]] = true;
  return CLV_OK;
}
