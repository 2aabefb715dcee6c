/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the records of two runs of a program (judge.h).
 */
#include "tests/simulate/judge.h"

#include <stdio.h>
#include <string.h>

/* Longest time in ns that a statement may take. A loss is noticed after at most 10 s; then a worker
 * waits for its own timeouts. */
static const uint64_t max_statement_ns = UINT64_C(30000000000);

static bool is_same_line(const sim_record *a, const sim_record *b, size_t i) {
  const sim_line *x = &a->lines[i], *y = &b->lines[i];
  return x->is_skipped == y->is_skipped && x->result.status == y->result.status &&
         x->n_bytes == y->n_bytes &&
         memcmp(a->number_bytes + x->at, b->number_bytes + y->at, x->n_bytes) == 0;
}

/* True if the program itself found a wrong result. */
static bool has_wrong_result(const sim_line *l) { return l->result.status == CLEAVE_INTERNAL; }

/* Returns the position at which the numbers of two lines begin to differ. */
static size_t find_first_difference(const sim_record *a, const sim_record *b, size_t i) {
  const sim_line *x = &a->lines[i], *y = &b->lines[i];
  size_t at = 0, n = CLV_MIN(x->n_bytes, y->n_bytes);
  while (at < n && a->number_bytes[x->at + at] == b->number_bytes[y->at + at]) at++;
  return at;
}

static bool report_difference(size_t i, const sim_line *a, const sim_line *b, size_t position,
                              char *text, size_t len) {
  snprintf(text, len, "line %zu (%s): %s%s and %s%s, %zu and %zu bytes, another from %zu on. %s %s",
           i, b->description, cleave_status_name(a->result.status),
           a->is_skipped ? " (skipped)" : "", cleave_status_name(b->result.status),
           b->is_skipped ? " (skipped)" : "", a->n_bytes, b->n_bytes, position,
           a->result.status ? a->result.text : "", b->result.status ? b->result.text : "");
  return false;
}

static bool have_equal_lengths(const sim_record *a, const sim_record *b, char *text, size_t len) {
  if (a->n == b->n) return true;
  snprintf(text, len, "%zu lines and %zu", a->n, b->n);
  return false;
}

bool sim_is_same_record(const sim_record *a, const sim_record *b, char *text, size_t len) {
  if (!have_equal_lengths(a, b, text, len)) return false;
  for (size_t i = 0; i < a->n; i++)
    if (!is_same_line(a, b, i) || has_wrong_result(&b->lines[i]))
      return report_difference(i, &a->lines[i], &b->lines[i], find_first_difference(a, b, i), text,
                               len);
  return true;
}

/* ---- runs with a fault ----------------------------------------------------------------------- */

/* True if the fault may fail a statement that needs `places`: they include both ends of the lost
 * lane, or the killed worker. */
static bool may_fail_by_fault(const sim_fault *f, uint32_t places) {
  uint32_t faulty_places = 1u << f->a;
  if (f->kind == SIM_CUT && f->b) faulty_places |= 1u << f->b;
  return (places & faulty_places) == faulty_places;
}

static bool names_lost_worker(const sim_fault *f, const cleave_error *e) {
  char a[8], b[8];
  snprintf(a, sizeof a, "w%u", f->a);
  snprintf(b, sizeof b, "w%u", f->kind == SIM_CUT && f->b ? f->b : f->a);
  return strstr(e->text, a) || strstr(e->text, b) || strcmp(e->node, a) == 0 ||
         strcmp(e->node, b) == 0;
}

/* True if the error says that a worker has no session any more. A worker that lost its master drops
 * the session before the master notices. */
static bool is_loss_error(const cleave_error *e) {
  return e->status == CLEAVE_UNAVAILABLE || e->status == CLEAVE_ABORTED ||
         e->status == CLEAVE_CANCELLED ||
         (e->status == CLEAVE_NOT_FOUND && strstr(e->text, "no such session"));
}

/* True if the error refuses an operation because another operation on which it depends has
 * failed. */
static bool is_dependency_error(const cleave_error *e) {
  return e->status == CLEAVE_PRECONDITION || e->status == CLEAVE_NOT_FOUND ||
         (e->status == CLEAVE_CANCELLED && strstr(e->text, "its context ended before"));
}

/* True if the fault loses a worker, which later rejoins. A lost lane between two workers loses only
 * their link. */
static bool is_worker_restored(const sim_fault *f) { return f->kind == SIM_KILL || !f->b; }

static const char *explain_mismatch(const sim_record *wanted, const sim_record *got, size_t i,
                                    const sim_fault *f) {
  const sim_line *a = &wanted->lines[i], *b = &got->lines[i];
  bool is_equal = is_same_line(wanted, got, i);
  if (b->ended_ns < f->at) return is_equal ? NULL : "it differs before the fault";
  if (b->ended_ns - b->began_ns > max_statement_ns) return "it took too long";
  if (is_equal) return NULL;
  if (b->is_after_rejoin && is_worker_restored(f)) return "it differs though who was lost is back";
  if (b->is_skipped) return NULL;
  if (b->is_after_rejoin) return b->result.status != CLEAVE_OK ? NULL : "it differs and went well";
  if (b->result.status == CLEAVE_OK)
    return may_fail_by_fault(f, b->depended_places)
               ? NULL
               : "it has nothing to do with the fault and is another";
  if (a->result.status == b->result.status) return NULL;
  bool may_differ = b->context_has_failure || b->may_report_other_failure ||
                    may_fail_by_fault(f, b->depended_places);
  if (may_differ && is_dependency_error(&b->result)) return NULL;
  if (!is_loss_error(&b->result)) return "that is no code of a loss";
  if (!names_lost_worker(f, &b->result)) return "it does not name who was lost";
  if (!b->may_report_other_failure && !may_fail_by_fault(f, b->needed_places))
    return "it does not need who was lost";
  return NULL;
}

bool sim_is_explained_by_fault(const sim_record *wanted, const sim_record *got, const sim_fault *f,
                               char *text, size_t len) {
  if (!got->n) return true; /* the runtime could not be opened: no statement was executed */
  if (!have_equal_lengths(wanted, got, text, len)) return false;
  for (size_t i = 0; i < got->n; i++) {
    const char *why = explain_mismatch(wanted, got, i, f);
    const sim_line *l = &got->lines[i];
    if (!why) continue;
    snprintf(text, len, "%s (%u %s %u): line %zu (%s): %s at '%s': %s", why, f->a,
             f->kind == SIM_CUT ? "cut from" : "died", f->b, i, l->description,
             cleave_status_name(l->result.status), l->result.node,
             l->result.status ? l->result.text : "");
    return false;
  }
  return true;
}
