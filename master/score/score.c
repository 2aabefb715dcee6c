/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the places of an evaluation and computes the scores from the counts.
 */
#include "master/score/score_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_one_output(const clv_score *s) { return s->o.outputs >= CLV_SCORE_PROBABILITY; }

clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) {
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  size_t n = o->classes;
  if (n < 2) return clv_fail(err, CLV_INVALID, "%zu classes; there must be two or more", n);
  if ((o->wanted & CLV_SCORE_CONFUSION) && n > CLV_SCORE_MAX_CONFUSION)
    return clv_fail(err, CLV_INVALID, "a confusion matrix of %zu classes; at most %d", n,
                    CLV_SCORE_MAX_CONFUSION);
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->o = *o;
  CLV_TRY(clv_alloc(n, sizeof *s->counts, &s->counts, err));
  CLV_TRY(clv_alloc(n, sizeof *s->p, &s->p, err));
  if (o->wanted & CLV_SCORE_CONFUSION)
    CLV_TRY(clv_alloc(n * n, sizeof *s->confusion, &s->confusion, err));
  clv_score_reset(s);
  *ret = clv_steal(&s);
  return CLV_OK;
}

void clv_score_free(clv_score *s) {
  if (!s) return;
  free(s->counts);
  free(s->p);
  free(s->confusion);
  free(s->kept_p);
  free(s->labels);
  free(s);
}

void clv_score_freep(clv_score **s) {
  clv_score_free(*s);
  *s = NULL;
}

void clv_score_reset(clv_score *s) {
  size_t n = s->o.classes;
  memset(s->counts, 0, n * sizeof *s->counts);
  if (s->confusion) memset(s->confusion, 0, n * n * sizeof *s->confusion);
  free(s->kept_p);
  free(s->labels);
  s->kept_p = NULL;
  s->labels = NULL;
  s->n = s->capacity = 0;
  s->log_loss = 0;
}

/* ---- one place ------------------------------------------------------------------------------- */

/* Computes the log-probabilities p [n] of all classes. */
static void log_softmax(const float *x, size_t n, double *p) {
  double top = -INFINITY, sum = 0;
  for (size_t c = 0; c < n; c++) top = fmax(top, (double)x[c]);
  for (size_t c = 0; c < n; c++) sum += exp((double)x[c] - top);
  for (size_t c = 0; c < n; c++) p[c] = (double)x[c] - top - log(sum);
}

/* Computes log(1 / (1 + exp(-x))) without overflow. */
static double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }

static void log_probabilities(const clv_score *s, const float *x) {
  switch (s->o.outputs) {
    case CLV_SCORE_LOGITS:
      log_softmax(x, s->o.classes, s->p);
      break;
    case CLV_SCORE_LOG_PROBABILITIES:
      for (size_t c = 0; c < s->o.classes; c++) s->p[c] = (double)x[c];
      break;
    case CLV_SCORE_PROBABILITY:
      s->p[0] = log1p(-(double)*x);
      s->p[1] = log((double)*x);
      break;
    case CLV_SCORE_LOGIT:
      s->p[0] = log_sigmoid(-(double)*x);
      s->p[1] = log_sigmoid((double)*x);
      break;
  }
}

static size_t answer_of(const clv_score *s, const float *x) {
  size_t best = 0;
  if (has_one_output(s)) return *x > (s->o.outputs == CLV_SCORE_LOGIT ? 0.0f : 0.5f);
  for (size_t c = 1; c < s->o.classes; c++)
    if (x[c] > x[best]) best = c;
  return best;
}

/* Grows `kept` and `labels` for one further place. */
static clv_code reserve_place(clv_score *s, clv_err *err) {
  if (s->n < s->capacity) return CLV_OK;
  size_t capacity = s->capacity ? 2 * s->capacity : 1024, most = CLV_SCORE_MAX_KEPT / s->o.classes;
  if (s->n >= most)
    return clv_fail(err, CLV_EXHAUSTED,
                    "AUC keeps every probability: %zu places of %zu classes are too many", s->n,
                    s->o.classes);
  capacity = CLV_MIN(capacity, most);
  double *kept = realloc(s->kept_p, capacity * s->o.classes * sizeof *kept);
  if (kept) s->kept_p = kept;
  uint32_t *labels = kept ? realloc(s->labels, capacity * sizeof *labels) : NULL;
  if (!labels) return clv_fail(err, CLV_EXHAUSTED, "no memory for the AUC of %zu places", capacity);
  s->labels = labels;
  s->capacity = capacity;
  return CLV_OK;
}

static clv_code add_place(clv_score *s, const float *x, size_t label, clv_err *err) {
  size_t answer = answer_of(s, x), classes = s->o.classes;
  s->counts[label].labels++;
  s->counts[answer].answers++;
  s->counts[label].right += answer == label;
  if (s->confusion) s->confusion[label * classes + answer]++;
  if (s->o.wanted & (CLV_SCORE_AUC | CLV_SCORE_PERPLEXITY)) log_probabilities(s, x);
  if (s->o.wanted & CLV_SCORE_PERPLEXITY) s->log_loss -= s->p[label];
  if (s->o.wanted & CLV_SCORE_AUC) {
    CLV_TRY(reserve_place(s, err));
    memcpy(s->kept_p + s->n * classes, s->p, classes * sizeof *s->p);
    s->labels[s->n] = (uint32_t)label;
  }
  s->n++;
  return CLV_OK;
}

clv_code clv_score_add(clv_score *s, const float *outputs, const int64_t *labels, size_t places,
                       clv_err *err) {
  size_t width = has_one_output(s) ? 1 : s->o.classes;
  for (size_t i = 0; i < places; i++) {
    if (s->o.has_ignored && labels[i] == s->o.ignored_label) continue;
    if (labels[i] < 0 || (uint64_t)labels[i] >= s->o.classes)
      return clv_fail(err, CLV_INVALID, "the label of place %zu is outside 0..%zu", i,
                      s->o.classes - 1);
    CLV_TRY(add_place(s, outputs + i * width, (size_t)labels[i], err));
  }
  return CLV_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static double ratio(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

static void compute_class_scores(const clv_score *s, size_t c, clv_class_score *ret) {
  *ret = s->counts[c];
  ret->precision = ratio(ret->right, ret->answers);
  ret->recall = ratio(ret->right, ret->labels);
  ret->f1 = ratio(2 * ret->right, ret->labels + ret->answers);
  ret->auc = (double)NAN;
}

/* Computes the means over classes. */
static void compute_means(clv_scores *r) {
  uint64_t right = 0, seen = 0, ranked = 0;
  double f1 = 0, auc = 0;
  for (size_t c = 0; c < r->n_classes; c++) {
    const clv_class_score *k = &r->classes[c];
    right += k->right;
    f1 += k->f1;
    seen += k->labels + k->answers > 0;
    if (isnan(k->auc)) continue;
    auc += k->auc;
    ranked++;
  }
  r->accuracy = r->places ? ratio(right, r->places) : (double)NAN;
  r->f1_micro = r->accuracy;
  r->f1_macro = seen ? f1 / (double)seen : (double)NAN;
  r->auc = ranked ? auc / (double)ranked : (double)NAN;
  if (r->n_classes == 2) r->auc = r->classes[1].auc;
}

clv_code clv_score_finish(const clv_score *s, clv_scores *ret, clv_err *err) {
  CLV_AUTO(clv_scores_done)
  clv_scores r = {.wanted = s->o.wanted,
                  .places = s->n,
                  .n_classes = s->o.classes,
                  .perplexity = (double)NAN,
                  .confusion = s->confusion};
  CLV_TRY(clv_alloc(r.n_classes, sizeof *r.classes, &r.classes, err));
  for (size_t c = 0; c < r.n_classes; c++) compute_class_scores(s, c, &r.classes[c]);
  if (s->o.wanted & CLV_SCORE_AUC) CLV_TRY(clv_score_compute_auc(s, r.classes, err));
  if ((s->o.wanted & CLV_SCORE_PERPLEXITY) && s->n) r.perplexity = exp(s->log_loss / (double)s->n);
  compute_means(&r);
  *ret = r;
  r.classes = NULL;
  return CLV_OK;
}

void clv_scores_done(clv_scores *s) {
  if (!s) return;
  free(s->classes);
  s->classes = NULL;
}
