/* SPDX-License-Identifier: Apache-2.0
 *
 * Collects the positions (predictions with a label) of an evaluation: counts them, and keeps their
 * probabilities, labels and answers if a requested score needs more than counts.
 */
#include "master/score/score_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_one_output(const clv_score *s) {
  return s->o.outputs == CLV_SCORE_PROBABILITY || s->o.outputs == CLV_SCORE_LOGIT;
}

/* Returns true if a requested score is computed from log-probabilities. */
static bool needs_log_p(const clv_score *s) {
  unsigned rank_bits = CLV_SCORE_AUC | CLV_SCORE_AVERAGE_PRECISION | CLV_SCORE_SENSITIVITY |
                       CLV_SCORE_ECE | CLV_SCORE_PERPLEXITY;
  return s->o.score_bits & rank_bits;
}

/* Returns true if the log-probabilities of all positions are kept. Perplexity alone needs only
 * their sum, unless intervals are requested. */
static bool keeps_log_p(const clv_score *s) {
  unsigned sum_bits = CLV_SCORE_PERPLEXITY;
  bool is_summed =
      !(s->o.score_bits & ~sum_bits &
        (CLV_SCORE_AUC | CLV_SCORE_AVERAGE_PRECISION | CLV_SCORE_SENSITIVITY | CLV_SCORE_ECE));
  return needs_log_p(s) && (!is_summed || s->o.has_intervals);
}

/* Returns true if any array of kept positions is needed. */
static bool keeps_positions(const clv_score *s) {
  return keeps_log_p(s) || s->o.has_intervals || has_several_labels(s) || has_numbers(s);
}

clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) {
  CLV_AUTO(clv_score_freep) clv_score *s = NULL;
  size_t n = o->n_classes;
  if (n < 2 && o->outputs < CLV_SCORE_LABEL_PROBABILITIES)
    return clv_fail(err, CLV_INVALID, "%zu classes; there must be two or more", n);
  if ((o->score_bits & CLV_SCORE_CONFUSION) && n > CLV_SCORE_MAX_CONFUSION_CLASSES)
    return clv_fail(err, CLV_INVALID, "a confusion matrix of %zu classes; at most %d", n,
                    CLV_SCORE_MAX_CONFUSION_CLASSES);
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->o = *o;
  CLV_TRY(clv_alloc(n, sizeof *s->counts, &s->counts, err));
  CLV_TRY(clv_alloc(n, sizeof *s->log_p, &s->log_p, err));
  if (o->score_bits & CLV_SCORE_CONFUSION)
    CLV_TRY(clv_alloc(n * n, sizeof *s->confusion, &s->confusion, err));
  clv_score_reset(s);
  *ret = clv_steal(&s);
  return CLV_OK;
}

static void drop_positions(clv_score *s) {
  free(clv_steal(&s->position_log_p));
  free(clv_steal(&s->labels));
  free(clv_steal(&s->answers));
  free(clv_steal(&s->record_indices));
  free(clv_steal(&s->label_bits));
  free(clv_steal(&s->numbers));
  s->n = s->capacity = s->n_records = s->n_worst_records = 0;
}

void clv_score_free(clv_score *s) {
  if (!s) return;
  drop_positions(s);
  free(s->counts);
  free(s->log_p);
  free(s->confusion);
  free(s);
}

void clv_score_freep(clv_score **s) {
  clv_score_free(*s);
  *s = NULL;
}

void clv_score_reset(clv_score *s) {
  size_t n = s->o.n_classes;
  memset(s->counts, 0, n * sizeof *s->counts);
  if (s->confusion) memset(s->confusion, 0, n * n * sizeof *s->confusion);
  drop_positions(s);
  s->n_all_right = 0;
  s->log_loss = 0;
}

/* ---- outputs of one position ----------------------------------------------------------------- */

/* Computes the log-probabilities p [n] of all classes from the logits x [n]. */
static void log_softmax(const float *x, size_t n, double *p) {
  double max_output = -INFINITY, sum = 0;
  for (size_t c = 0; c < n; c++) max_output = fmax(max_output, (double)x[c]);
  for (size_t c = 0; c < n; c++) sum += exp((double)x[c] - max_output);
  for (size_t c = 0; c < n; c++) p[c] = (double)x[c] - max_output - log(sum);
}

/* Computes log(1 / (1 + exp(-x))) without overflow. */
static double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }

/* Sets s->log_p from the outputs x of a position. */
static void compute_log_p(const clv_score *s, const float *x) {
  switch (s->o.outputs) {
    case CLV_SCORE_LOGITS:
      log_softmax(x, s->o.n_classes, s->log_p);
      break;
    case CLV_SCORE_PROBABILITY:
      s->log_p[0] = log1p(-(double)*x);
      s->log_p[1] = log((double)*x);
      break;
    case CLV_SCORE_LOGIT:
      s->log_p[0] = log_sigmoid(-(double)*x);
      s->log_p[1] = log_sigmoid((double)*x);
      break;
    /* LOG_PROBABILITIES: outputs are log-probabilities. LABEL_*: the outputs are stored as they
     * are, because only their order is used, which is that of the probabilities. */
    default:
      for (size_t c = 0; c < s->o.n_classes; c++) s->log_p[c] = (double)x[c];
      break;
  }
}

/* Returns the answer of the model to a position, from its outputs x: the class with the largest
 * output, or the first of these if several outputs are equal. */
static size_t find_answer_class(const clv_score *s, const float *x) {
  size_t best_class = 0;
  if (has_one_output(s)) return *x > (s->o.outputs == CLV_SCORE_LOGIT ? 0.0f : 0.5f);
  for (size_t c = 1; c < s->o.n_classes; c++)
    if (x[c] > x[best_class]) best_class = c;
  return best_class;
}

/* ---- arrays of kept positions ---------------------------------------------------------------- */

/* Grows an array to `capacity` entries of `entry_bytes` bytes each. at: address of the pointer to
 * the array. Returns false if there is not enough memory. */
static bool grow_array(void *at, size_t capacity, size_t entry_bytes) {
  void *old, *grown = NULL;
  size_t size;
  memcpy(&old, at, sizeof old);
  if (clv_mul_size(capacity, entry_bytes, &size)) grown = realloc(old, size);
  if (grown) memcpy(at, &grown, sizeof grown);
  return grown != NULL;
}

/* Grows the arrays of kept positions if they have no space for a further position. */
static clv_code reserve_position(clv_score *s, clv_err *err) {
  size_t n_classes = s->o.n_classes, max_capacity = CLV_SCORE_MAX_KEPT_VALUES / n_classes;
  size_t capacity = CLV_MIN(s->capacity ? 2 * s->capacity : 1024, max_capacity);
  bool ok = true;
  if (s->n < s->capacity) return CLV_OK;
  if (s->n >= max_capacity)
    return clv_fail(err, CLV_EXHAUSTED,
                    "scores keep every output: %zu places of %zu classes are too many", s->n,
                    n_classes);
  if (keeps_log_p(s))
    ok = grow_array(&s->position_log_p, capacity, n_classes * sizeof *s->position_log_p);
  if (ok && has_several_labels(s))
    ok = grow_array(&s->label_bits, capacity, n_classes * sizeof *s->label_bits);
  if (ok && has_numbers(s))
    ok = grow_array(&s->numbers, capacity, 2 * n_classes * sizeof *s->numbers);
  if (ok) ok = grow_array(&s->labels, capacity, sizeof *s->labels);
  if (ok && s->o.has_intervals)
    ok = grow_array(&s->answers, capacity, sizeof *s->answers) &&
         grow_array(&s->record_indices, capacity, sizeof *s->record_indices);
  if (!ok) return clv_fail(err, CLV_EXHAUSTED, "no memory for the scores of %zu places", capacity);
  s->capacity = capacity;
  return CLV_OK;
}

/* Inserts a record in s->worst if its loss is one of the largest. NaN counts as infinite. */
static void insert_worst_record(clv_score *s, size_t record, double loss) {
  size_t at = s->n_worst_records;
  if (isnan(loss)) loss = (double)INFINITY;
  while (at && s->worst_records[at - 1].loss < loss) at--;
  if (at == CLV_SCORE_MAX_WORST_RECORDS) return;
  if (s->n_worst_records < CLV_SCORE_MAX_WORST_RECORDS) s->n_worst_records++;
  memmove(&s->worst_records[at + 1], &s->worst_records[at],
          (s->n_worst_records - at - 1) * sizeof s->worst_records[0]);
  s->worst_records[at] = (clv_worst_record){record, loss};
}

/* ---- adding records -------------------------------------------------------------------------- */

static clv_code store_position(clv_score *s, size_t label, size_t answer, clv_err *err) {
  size_t n_classes = s->o.n_classes;
  if (!keeps_positions(s)) return CLV_OK;
  CLV_TRY(reserve_position(s, err));
  if (s->position_log_p)
    memcpy(s->position_log_p + s->n * n_classes, s->log_p, n_classes * sizeof *s->log_p);
  s->labels[s->n] = (uint32_t)label;
  if (s->answers) s->answers[s->n] = (uint32_t)answer;
  if (s->record_indices) s->record_indices[s->n] = (uint32_t)s->n_records;
  return CLV_OK;
}

static clv_code add_position(clv_score *s, const float *x, size_t label, clv_err *err) {
  size_t answer = find_answer_class(s, x), n_classes = s->o.n_classes;
  s->counts[label].n_labels++;
  s->counts[answer].n_answers++;
  s->counts[label].n_right += answer == label;
  s->n_all_right += answer == label;
  if (s->confusion) s->confusion[label * n_classes + answer]++;
  if (needs_log_p(s)) compute_log_p(s, x);
  if (needs_log_p(s)) s->log_loss -= s->log_p[label];
  CLV_TRY(store_position(s, label, answer, err));
  s->n++;
  return CLV_OK;
}

clv_code clv_score_add(clv_score *s, size_t record, const float *outputs, const int64_t *labels,
                       size_t n_positions, clv_err *err) {
  size_t width = has_one_output(s) ? 1 : s->o.n_classes, n_before = s->n;
  double loss_before = s->log_loss;
  for (size_t i = 0; i < n_positions; i++) {
    if (s->o.has_ignored_label && labels[i] == s->o.ignored_label) continue;
    if (labels[i] < 0 || (uint64_t)labels[i] >= s->o.n_classes)
      return clv_fail(err, CLV_INVALID, "the label of place %zu is outside 0..%zu", i,
                      s->o.n_classes - 1);
    CLV_TRY(add_position(s, outputs + i * width, (size_t)labels[i], err));
  }
  if (s->n > n_before) s->n_records++;
  if (s->n > n_before && needs_log_p(s))
    insert_worst_record(s, record, (s->log_loss - loss_before) / (double)(s->n - n_before));
  return CLV_OK;
}

/* Adds a record with several labels. x: [n_classes] outputs; t: [n_classes] targets. Returns the
 * record's loss: the mean over its labels of -log of the probability of the true value. */
static double add_label_targets(clv_score *s, const float *x, const float *t) {
  size_t n_right = 0, n_classes = s->o.n_classes;
  bool has_logits = s->o.outputs == CLV_SCORE_LABEL_LOGITS;
  double loss = 0;
  for (size_t c = 0; c < n_classes; c++) {
    bool label = t[c] > 0.5f, answer = x[c] > (has_logits ? 0.0f : 0.5f);
    double sign = label ? 1 : -1, p = (double)x[c];
    s->label_bits[s->n * n_classes + c] =
        (uint8_t)((label ? LABEL_BIT : 0) | (answer ? ANSWER_BIT : 0));
    s->counts[c].n_labels += label;
    s->counts[c].n_answers += answer;
    s->counts[c].n_right += label && answer;
    n_right += label == answer;
    loss -= has_logits ? log_sigmoid(sign * p) : log(label ? p : 1 - p);
  }
  s->n_all_right += n_right == n_classes;
  return loss / (double)n_classes;
}

/* Keeps the numbers of a record. x: [n_classes] outputs; t: [n_classes] targets. Returns the
 * record's loss: the largest absolute error. */
static double add_number_targets(clv_score *s, const float *x, const float *t) {
  size_t width = s->o.n_classes;
  float *row = s->numbers + s->n * 2 * width;
  double largest_error = 0;
  for (size_t c = 0; c < width; c++) {
    row[c] = s->o.outputs == CLV_SCORE_LOG_NUMBERS ? (float)exp((double)x[c]) : x[c];
    row[width + c] = t[c];
    double d = fabs((double)row[c] - (double)t[c]);
    if (!(d <= largest_error)) largest_error = d; /* a NaN counts as the largest error, too */
  }
  return largest_error;
}

clv_code clv_score_add_targets(clv_score *s, size_t record, const float *outputs,
                               const float *targets, clv_err *err) {
  if (needs_log_p(s)) compute_log_p(s, outputs);
  CLV_TRY(store_position(s, 0, 0, err));
  double loss = has_numbers(s) ? add_number_targets(s, outputs, targets)
                               : add_label_targets(s, outputs, targets);
  s->n++;
  s->n_records++;
  insert_worst_record(s, record, loss);
  return CLV_OK;
}

bool clv_score_has_classes(const clv_score *s) { return !has_several_labels(s) && !has_numbers(s); }

/* ---- the results of an evaluation ------------------------------------------------------------ */

clv_code clv_score_finish(const clv_score *s, clv_scores *ret, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *scratch = NULL;
  CLV_AUTO(clv_scores_done)
  clv_scores r = {.score_bits = s->o.score_bits,
                  .has_intervals = s->o.has_intervals,
                  .n_positions = s->n,
                  .n_classes = has_numbers(s) ? 0 : s->o.n_classes,
                  .confusion = s->confusion,
                  .n_worst_records = s->n_worst_records};
  memcpy(r.worst_records, s->worst_records, sizeof r.worst_records);
  CLV_TRY(clv_alloc(s->o.n_classes, sizeof *r.classes, &r.classes, err));
  CLV_TRY(clv_alloc(needs_ranks(s) ? s->n + 1 : 1, sizeof *scratch, &scratch, err));
  clv_score_compute(s, NULL, NULL, scratch, &r);
  if (s->o.has_intervals) CLV_TRY(clv_score_compute_intervals(s, &r, err));
  *ret = r;
  r.classes = NULL;
  return CLV_OK;
}

void clv_scores_done(clv_scores *s) {
  if (!s) return;
  free(s->classes);
  s->classes = NULL;
}
