/* SPDX-License-Identifier: Apache-2.0
 *
 * A cached front: it runs as in evaluations, in a context of its own, for records whose rows the
 * worker behind it has not been sent yet. Nobody else calls it in training.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

static clv_code key_of(const clv_trainer *t, const clv_sha256 *secret, clv_sha256 *ret,
                       clv_err *err) {
  const clv_graph *g = t->b->stages[0].graph;
  char shape[160], text[320];
  int n =
      snprintf(text, sizeof text, "cleave cache of %llu records, %s %s",
               (unsigned long long)t->cache.to.records, clv_dtype_name(g->nodes[g->output].dtype),
               clv_shape_format(&g->nodes[g->output].shape, shape, sizeof shape));
  return clv_hmac_sha256(secret, text, (size_t)n, ret, err);
}

/* Those of some records only would need the worker's word for each. An attempt that got through its
 * first epoch has left all; who asks in vain sends them, or finds the worker gone. */
static const char *who_has_all(clv_trainer *t) {
  enum { ASK_MS = 3000 };
  clv_trainer_rows *c = &t->cache;
  uint64_t rows;
  clv_err ignored;
  if (t->use != CLV_TRAINER_GOES_ON) return NULL;
  if (cleave_cache_count(&c->to, ASK_MS, &rows, &ignored) != CLV_OK || rows != c->to.records)
    return NULL;
  memset(c->kept, true, (size_t)c->to.records * sizeof *c->kept);
  return cleave_module_node(t->modules[1]);
}

clv_code clv_trainer_cache(clv_trainer *t, const clv_dataset *data, const clv_sha256 *secret,
                           const char **ret_worker, clv_err *err) {
  clv_trainer_rows *c = &t->cache;
  *ret_worker = NULL;
  if (!t->b->caches) return CLV_OK;
  c->to = (cleave_cached){.from = t->modules[0],
                          .to = t->modules[1],
                          .records = clv_dataset_count(data),
                          .keep_s = t->config->stages[0].cache_ttl_ms / 1000,
                          .n = 1};
  CLV_TRY(key_of(t, secret, &c->to.key, err));
  size_t most = (size_t)CLV_MAX(t->b->micro_size, t->b->eval_size);
  CLV_TRY(clv_alloc((size_t)c->to.records, sizeof *c->kept, &c->kept, err));
  CLV_TRY(clv_alloc(most, sizeof *c->rows, &c->rows, err));
  clv_err why;
  cleave_error refused;
  if (cleave_cached_check(&c->to, &refused) != CLEAVE_OK) {
    (void)clv_trainer_explain(t, &refused, &why);
    return clv_session_fail_at(t->config, t->config->stages[0].cache_pos, err, "%s", why.text);
  }
  c->data = data;
  *ret_worker = who_has_all(t);
  return CLV_OK;
}

clv_code clv_trainer_end_cache(clv_trainer *t, const char **ret_worker, uint64_t *ret_rows,
                               clv_err *err) {
  enum { END_MS = 3000 };
  *ret_worker = NULL;
  *ret_rows = 0;
  if (!t->cache.data) return CLV_OK;
  *ret_worker = cleave_module_node(t->modules[1]);
  t->cache.data = NULL;
  return cleave_cache_end(&t->cache.to, END_MS, ret_rows, err);
}

static bool has_all(const clv_trainer *t, const uint32_t *index, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!t->cache.kept[index[i]]) return false;
  return true;
}

void clv_trainer_look_up(clv_trainer *t, const uint32_t *index, size_t n) {
  if (!t->cache.data) return;
  t->cache.use = has_all(t, index, n) ? CLV_CACHE_NUMBERS : CLV_CACHE_ROWS;
}

/* In t->fetched. */
static clv_code compute(clv_trainer *t, clv_tensor *const *x, const clv_sequences *s,
                        clv_err *err) {
  cleave_context_options o = {.size = sizeof o, .evaluation = true};
  cleave_reference in[CLV_MAX_INPUTS], out;
  cleave_context context;
  uint32_t n_in;
  CLV_API(cleave_context_open(t->runtime, &o, &context, CLV_WHY));
  CLV_TRY(clv_trainer_leaves(t, context, 0, x, s, in, &n_in, err));
  CLV_API(cleave_call(t->runtime, context, t->modules[0], in, n_in, &out, CLV_WHY));
  CLV_API(cleave_to_here(t->runtime, out, 0, &t->fetched, CLV_WHY));
  CLV_API(cleave_context_end(t->runtime, context, CLV_WHY));
  return CLV_OK;
}

clv_code clv_trainer_front(clv_trainer *t, cleave_context context, const uint32_t *index,
                           clv_tensor *const *x, const clv_sequences *s, cleave_reference *ret,
                           clv_err *err) {
  clv_trainer_rows *c = &t->cache;
  bool kept = has_all(t, index, s->n);
  for (size_t i = 0; i < s->n; i++) c->rows[i] = index[i];
  c->to.rows = c->rows;
  c->to.n = s->n;
  if (!kept) CLV_TRY(compute(t, x, s, err));
  CLV_API(cleave_leaf_cached(t->runtime, context, &c->to, kept ? NULL : &t->fetched, ret, CLV_WHY));
  for (size_t i = 0; i < s->n; i++) c->kept[index[i]] = true;
  return CLV_OK;
}
