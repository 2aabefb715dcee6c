/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which share computes when, on a clock that stands still until a thread computes: the order
 * of slices is a function of weights, times and the order of requests. Then tests many threads on
 * the real clock.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/net/fair/fair.h"

#define assert_ok(call)                                                       \
  do {                                                                        \
    clv_code code_ = (call);                                                  \
    if (code_ != CLV_OK) fail_msg("%s: %s (%s)", #call, err.text, err.where); \
  } while (0)

enum { MAX_SHARES = 8, MAX_PIECES = 4096 };

typedef struct scheduler_fixture {
  uint64_t clock_ns; /* time of the test's clock in ns; accessed atomically */
  clv_fair_scheduler *scheduler;
  char compute_order[MAX_PIECES]; /* one letter for each computed piece */
  uint32_t n;
} scheduler_fixture;

static uint64_t read_test_clock(void *user) {
  return __atomic_load_n(&((scheduler_fixture *)user)->clock_ns, __ATOMIC_SEQ_CST);
}

static void pass_time(scheduler_fixture *f, uint64_t ns) {
  __atomic_fetch_add(&f->clock_ns, ns, __ATOMIC_SEQ_CST);
}

static void open_fixture(scheduler_fixture *f, unsigned cores, uint64_t slice_ns,
                         const uint64_t *weights, size_t n) {
  clv_err err = {0};
  *f = (scheduler_fixture){.clock_ns = 1000};
  clv_fair_scheduler_options o = {.n_cores = cores,
                                  .n_tenants = n,
                                  .tenant_weights = weights,
                                  .slice_ns = slice_ns,
                                  .clock = {.now_ns = read_test_clock, .user = f}};
  assert_ok(clv_fair_scheduler_new(&o, &f->scheduler, &err));
}

/* A thread that computes `n_pieces` pieces of work, of `piece_ns` each, one after the other. */
typedef struct compute_thread {
  scheduler_fixture *f;
  clv_share *share;
  pthread_t thread;
  char letter;
  unsigned n_threads;
  uint32_t n_pieces;
  uint64_t piece_ns;
  bool was_refused;
} compute_thread;

static clv_share *make_share(scheduler_fixture *f, size_t tenant) {
  clv_err err = {0};
  clv_share *s;
  assert_ok(clv_share_new(f->scheduler, tenant, &s, &err));
  return s;
}

static void *compute_pieces(void *user) {
  compute_thread *thread = user;
  for (uint32_t i = 0; i < thread->n_pieces && !thread->was_refused; i++) {
    thread->was_refused = !clv_share_acquire_cores(thread->share, thread->n_threads);
    if (thread->was_refused) break;
    uint32_t piece_index = __atomic_fetch_add(&thread->f->n, 1, __ATOMIC_SEQ_CST);
    if (piece_index < MAX_PIECES) thread->f->compute_order[piece_index] = thread->letter;
    pass_time(thread->f, thread->piece_ns);
  }
  clv_share_release_cores(thread->share);
  return NULL;
}

static uint64_t get_waited_ns(const compute_thread *thread) {
  clv_share_counts c;
  clv_share_get_counts(thread->share, &c);
  return c.waited_ns;
}

/* Starts a thread, and waits until its share is queued. */
static void start_compute_thread(compute_thread *thread, scheduler_fixture *f, size_t tenant,
                                 char letter, uint32_t pieces) {
  thread->f = f;
  thread->letter = letter;
  thread->n_pieces = pieces;
  if (!thread->piece_ns) thread->piece_ns = 10;
  if (!thread->n_threads) thread->n_threads = 1;
  thread->share = make_share(f, tenant);
  assert_int_equal(pthread_create(&thread->thread, NULL, compute_pieces, thread), 0);
  for (uint64_t begin = clv_now_ns(); !get_waited_ns(thread);) {
    if (clv_now_ns() - begin > 5000000000u) fail_msg("'%c' does not wait", letter);
    pass_time(f, 1);
    sched_yield();
  }
}

static void join_compute_thread(compute_thread *thread) {
  pthread_join(thread->thread, NULL);
  clv_share_free(thread->share);
}

static uint32_t count_letter(const scheduler_fixture *f, char letter, uint32_t first) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < first; i++) n += f->compute_order[i] == letter;
  return n;
}

/* ---- shares that compete for one core -------------------------------------------------------- */

static const uint64_t equal_weights[] = {1, 1, 1};

static void cpu_time_follows_tenant_weights(void **state) {
  (void)state;
  scheduler_fixture f;
  const uint64_t weights[] = {1, 3, 1};
  open_fixture(&f, 1, 0, weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread a = {.piece_ns = 300}, b = {.piece_ns = 300};
  assert_true(clv_share_acquire_cores(blocking_share, 1));
  start_compute_thread(&a, &f, 0, 'a', 200);
  start_compute_thread(&b, &f, 1, 'b', 200);
  clv_share_release_cores(blocking_share);
  join_compute_thread(&a);
  join_compute_thread(&b);
  /* tenant b has weight 3, so it gets three of four pieces */
  assert_in_range(count_letter(&f, 'b', 100), 74, 76);
  assert_int_equal(count_letter(&f, 'a', 400), 200);
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

static void tenants_get_equal_time_before_their_shares(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread many[4] = {0}, one = {0};
  assert_true(clv_share_acquire_cores(blocking_share, 1));
  for (int i = 0; i < 4; i++) start_compute_thread(&many[i], &f, 0, (char)('a' + i), 100);
  start_compute_thread(&one, &f, 1, 'z', 100);
  clv_share_release_cores(blocking_share);
  for (int i = 0; i < 4; i++) join_compute_thread(&many[i]);
  join_compute_thread(&one);
  assert_in_range(count_letter(&f, 'z', 160), 79,
                  81); /* share z gets half of the pieces; the other shares divide the rest */
  for (int i = 0; i < 4; i++) assert_in_range(count_letter(&f, (char)('a' + i), 160), 19, 21);
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

/* A refund takes back the charge for time in which a share only slept. Share b, which waited during
 * that time, therefore gets only about half of the time afterwards. */
static void refunded_wait_is_not_charged(void **state) {
  (void)state;
  scheduler_fixture f;
  clv_share_counts before, c;
  open_fixture(&f, 1, 0, equal_weights, 3);
  compute_thread a = {.f = &f, .letter = 'a', .n_threads = 1, .n_pieces = 100, .piece_ns = 10},
                 b = {0};
  a.share = make_share(&f, 0);
  assert_true(clv_share_acquire_cores(a.share, 1));
  start_compute_thread(&b, &f, 1, 'b', 100);
  clv_share_get_counts(a.share, &before);
  pass_time(&f, 1000);
  clv_share_refund_time(a.share, 900);
  clv_share_get_counts(a.share, &c);
  assert_int_equal(c.computed_ns - before.computed_ns, 100);
  assert_int_equal(pthread_create(&a.thread, NULL, compute_pieces, &a), 0);
  pthread_join(a.thread, NULL);
  join_compute_thread(&b);
  assert_in_range(count_letter(&f, 'b', 100), 50, 60);
  clv_share_free(a.share);
  clv_fair_scheduler_free(f.scheduler);
}

/* A refund gives back no more than the charge of the present slice, and only while that slice
 * lasts. */
static void refund_is_limited_to_the_current_slice(void **state) {
  (void)state;
  scheduler_fixture f;
  clv_share_counts c;
  open_fixture(&f, 1, 0, equal_weights, 1);
  clv_share *s = make_share(&f, 0);
  assert_true(clv_share_acquire_cores(s, 1));
  pass_time(&f, 500);
  clv_share_refund_time(s, 200);
  clv_share_refund_time(s, 1000);
  pass_time(&f, 300);
  clv_share_get_counts(s, &c);
  assert_int_equal(c.computed_ns, 300);
  clv_share_release_cores(s);
  clv_share_refund_time(s, 100);
  assert_true(clv_share_acquire_cores(s, 1));
  pass_time(&f, 50);
  clv_share_refund_time(s, 100);
  clv_share_get_counts(s, &c);
  assert_int_equal(c.computed_ns, 300);
  clv_share_free(s);
  clv_fair_scheduler_free(f.scheduler);
}

/* A tenant that was idle while another ran alone is not owed that time: when the idle tenant
 * arrives, the two get equal time. */
static void idle_tenant_gains_no_credit(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  compute_thread a = {0}, b = {0};
  a.share = make_share(&f, 0);
  assert_true(clv_share_acquire_cores(a.share, 1));
  pass_time(&f, 1000000);
  start_compute_thread(&b, &f, 1, 'b', 100);
  a = (compute_thread){
      .f = &f, .share = a.share, .letter = 'a', .n_threads = 1, .n_pieces = 100, .piece_ns = 10};
  assert_int_equal(pthread_create(&a.thread, NULL, compute_pieces, &a), 0);
  pthread_join(a.thread, NULL);
  join_compute_thread(&b);
  assert_in_range(count_letter(&f, 'a', 100), 45, 55);
  /* a third tenant, which was idle until now, has saved up no time either */
  compute_thread c = {0};
  assert_true(clv_share_acquire_cores(a.share, 1));
  start_compute_thread(&b, &f, 1, 'B', 100);
  start_compute_thread(&c, &f, 2, 'C', 100);
  f.n = 0;
  clv_share_release_cores(a.share);
  join_compute_thread(&b);
  join_compute_thread(&c);
  assert_in_range(count_letter(&f, 'B', 100), 45, 55);
  clv_share_free(a.share);
  clv_fair_scheduler_free(f.scheduler);
}

/* A share that was idle gains no credit over the other shares of its tenant. */
static void idle_share_gains_no_credit(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  compute_thread a = {0}, b = {0};
  a.share = make_share(&f, 0);
  assert_true(clv_share_acquire_cores(a.share, 1));
  pass_time(&f, 1000000);
  start_compute_thread(&b, &f, 0, 'b', 100);
  a = (compute_thread){
      .f = &f, .share = a.share, .letter = 'a', .n_threads = 1, .n_pieces = 100, .piece_ns = 10};
  assert_int_equal(pthread_create(&a.thread, NULL, compute_pieces, &a), 0);
  join_compute_thread(&a);
  join_compute_thread(&b);
  assert_in_range(count_letter(&f, 'a', 100), 45, 55);
  clv_fair_scheduler_free(f.scheduler);
}

static void equal_shares_run_in_request_order(void **state) {
  static const size_t tenants[] = {1, 1, 1, 0};
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread of[CLV_COUNT(tenants)] = {0};
  /* first pass: three shares of one tenant; second pass: shares of two tenants */
  for (size_t n = 3; n <= CLV_COUNT(tenants); n++) {
    f.n = 0;
    assert_true(clv_share_acquire_cores(blocking_share, 1));
    for (size_t i = n - 3; i < n; i++) {
      of[i].piece_ns = 1000;
      start_compute_thread(&of[i], &f, tenants[i], (char)('a' + i), 1);
    }
    clv_share_release_cores(blocking_share);
    for (size_t i = n - 3; i < n; i++) join_compute_thread(&of[i]);
    assert_memory_equal(f.compute_order, n == 3 ? "abc" : "bdc", 3);
  }
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

static void new_share_inherits_time_used_by_its_tenant(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  compute_thread a = {0}, b = {0};
  clv_share *blocking_share = make_share(&f, 0);
  assert_true(clv_share_acquire_cores(blocking_share, 1));
  start_compute_thread(&b, &f, 1, 'b', 100);
  pass_time(&f, 500); /* charges tenant 0 for the time of fifty pieces */
  clv_share_release_cores(blocking_share);
  clv_share_free(blocking_share);
  a.share = make_share(&f, 0);
  a = (compute_thread){
      .f = &f, .share = a.share, .letter = 'a', .n_threads = 1, .n_pieces = 100, .piece_ns = 10};
  assert_int_equal(pthread_create(&a.thread, NULL, compute_pieces, &a), 0);
  join_compute_thread(&b);
  join_compute_thread(&a);
  assert_true(count_letter(&f, 'b', 50) >= 45);
  clv_fair_scheduler_free(f.scheduler);
}

static void slice_lasts_its_configured_time(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 40, equal_weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread a = {0}, b = {0};
  assert_true(clv_share_acquire_cores(blocking_share, 1));
  start_compute_thread(&a, &f, 0, 'a', 40);
  start_compute_thread(&b, &f, 1, 'b', 40);
  clv_share_release_cores(blocking_share);
  join_compute_thread(&a);
  join_compute_thread(&b);
  for (uint32_t i = 0, n_in_slice; i < 64; i += n_in_slice) {
    for (n_in_slice = 1; f.compute_order[i + n_in_slice] == f.compute_order[i];) n_in_slice++;
    /* 4 pieces fill a slice; a fifth follows only if both shares have used equal time */
    assert_in_range(n_in_slice, 4, 5);
  }
  assert_int_equal(count_letter(&f, 'a', 80), 40);
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

static void yield_ends_the_slice_when_another_waits(void **state) {
  (void)state;
  scheduler_fixture f;
  clv_share_counts c;
  open_fixture(&f, 1, 0, equal_weights, 3);
  clv_share *own_share = make_share(&f, 0);
  compute_thread b = {0};
  assert_true(clv_share_acquire_cores(own_share, 1));
  clv_share_yield(own_share); /* returns at once, because no other share waits */
  start_compute_thread(&b, &f, 1, 'b', 1);
  pass_time(&f, 50);
  clv_share_yield(own_share);
  join_compute_thread(&b);
  assert_int_equal(f.n, 1);
  clv_share_get_counts(own_share, &c);
  assert_true(c.n_slices == 1 && c.computed_ns >= 50 && c.waited_ns == 0);
  assert_true(clv_share_acquire_cores(own_share, 1));
  clv_share_get_counts(own_share, &c);
  assert_int_equal(c.n_slices, 2);
  clv_share_free(own_share);
  clv_fair_scheduler_free(f.scheduler);
}

/* ---- stopping shares ------------------------------------------------------------------------- */

static void stopped_share_is_refused_at_once(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 1, 0, equal_weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread a = {0}, b = {0};
  assert_true(clv_share_acquire_cores(blocking_share, 1));
  start_compute_thread(&a, &f, 0, 'a', 10);
  start_compute_thread(&b, &f, 1, 'b', 10);
  clv_share_stop(a.share);
  pthread_join(a.thread, NULL);
  assert_true(a.was_refused);
  /* the share stays stopped, so later requests are refused, too */
  assert_false(clv_share_acquire_cores(a.share, 1));
  clv_share_free(a.share);
  /* a running share is not interrupted, but is not scheduled again */
  clv_share_stop(blocking_share);
  assert_false(clv_share_acquire_cores(blocking_share, 1));
  join_compute_thread(&b);
  assert_int_equal(count_letter(&f, 'b', 10), 10);
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

/* ---- shares that use several cores ----------------------------------------------------------- */

static void wide_share_is_not_overtaken_by_narrow_ones(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 4, 0, equal_weights, 3);
  clv_share *first_half = make_share(&f, 0), *second_half = make_share(&f, 0);
  compute_thread wide = {.n_threads = 64}, narrow = {0};
  assert_true(clv_share_acquire_cores(first_half, 2));
  assert_true(clv_share_acquire_cores(second_half, 2));
  start_compute_thread(&wide, &f, 1, 'w', 1); /* this share needs all four cores */
  pass_time(&f, 100);
  start_compute_thread(&narrow, &f, 0, 'n', 1);
  /* two cores are free now, and stay free until the wide share can run */
  clv_share_release_cores(first_half);
  for (int i = 0; i < 100; i++) sched_yield();
  assert_int_equal(f.n, 0);
  clv_share_release_cores(second_half);
  join_compute_thread(&wide);
  join_compute_thread(&narrow);
  assert_int_equal(f.compute_order[0], 'w');
  clv_share_free(first_half);
  clv_share_free(second_half);
  clv_fair_scheduler_free(f.scheduler);
}

/* A share whose work uses two threads for a second is charged as much as with one thread for two
 * seconds. */
static void two_threads_are_charged_twice_the_time(void **state) {
  (void)state;
  scheduler_fixture f;
  open_fixture(&f, 2, 0, equal_weights, 3);
  clv_share *blocking_share = make_share(&f, 2);
  compute_thread wide = {.n_threads = 2, .piece_ns = 300}, narrow = {.piece_ns = 300};
  assert_true(clv_share_acquire_cores(blocking_share, 2));
  start_compute_thread(&wide, &f, 0, 'w', 100);
  start_compute_thread(&narrow, &f, 1, 'n', 100);
  clv_share_release_cores(blocking_share);
  join_compute_thread(&wide);
  join_compute_thread(&narrow);
  assert_in_range(count_letter(&f, 'n', 90), 58, 62);
  clv_share_free(blocking_share);
  clv_fair_scheduler_free(f.scheduler);
}

typedef struct core_counts {
  clv_fair_scheduler *scheduler;
  int n_busy;   /* threads that hold a core now; atomic */
  int max_busy; /* largest value of n_busy so far; atomic */
  uint64_t seed;
} core_counts;

static void *take_and_release_cores(void *user) {
  core_counts *c = user;
  clv_err err;
  clv_share *s;
  uint64_t r = __atomic_add_fetch(&c->seed, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);
  if (clv_share_new(c->scheduler, r % 3, &s, &err) != CLV_OK) return NULL;
  for (int i = 0; i < 3000; i++) {
    r = r * 6364136223846793005u + 1442695040888963407u;
    int n_threads = 1 + (int)(r >> 60) % 3;
    if (!clv_share_acquire_cores(s, (unsigned)n_threads)) break;
    int n_busy_now = __atomic_add_fetch(&c->n_busy, n_threads, __ATOMIC_SEQ_CST),
        max_busy = c->max_busy;
    while (n_busy_now > max_busy &&
           !__atomic_compare_exchange_n(&c->max_busy, &max_busy, n_busy_now, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      continue;
    if (r >> 33 & 1) sched_yield();
    __atomic_sub_fetch(&c->n_busy, n_threads, __ATOMIC_SEQ_CST);
    if ((r >> 40 & 7) == 0) clv_share_yield(s);
    if ((r >> 43 & 7) == 0) clv_share_release_cores(s);
    if (i == 2500 && (r >> 50 & 3) == 0) clv_share_stop(s);
  }
  clv_share_free(s);
  return NULL;
}

static void running_threads_never_exceed_the_cores(void **state) {
  (void)state;
  clv_err err = {0};
  core_counts c = {0};
  pthread_t threads[MAX_SHARES];
  clv_fair_scheduler_options o = {
      .n_cores = 3, .n_tenants = 3, .tenant_weights = equal_weights, .slice_ns = 1000};
  assert_ok(clv_fair_scheduler_new(&o, &c.scheduler, &err));
  for (int i = 0; i < MAX_SHARES; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, take_and_release_cores, &c), 0);
  for (int i = 0; i < MAX_SHARES; i++) pthread_join(threads[i], NULL);
  assert_in_range(c.max_busy, 2, 3);
  clv_fair_scheduler_free(c.scheduler);
}

static void invalid_scheduler_options_are_refused(void **state) {
  (void)state;
  scheduler_fixture f;
  clv_err err = {0};
  clv_share *s;
  clv_fair_scheduler *scheduler;
  open_fixture(&f, 1, 0, equal_weights, 3);
  assert_int_equal(clv_share_new(f.scheduler, 3, &s, &err), CLV_INVALID);
  assert_int_equal(clv_fair_scheduler_new(&(clv_fair_scheduler_options){0}, &scheduler, &err),
                   CLV_INVALID);
  assert_true(clv_share_acquire_cores(NULL, 1)); /* a thread without a share never waits */
  clv_fair_scheduler_free(f.scheduler);
}

static void destructors_accept_null(void **state) {
  clv_account *none = NULL;
  (void)state;
  clv_account_unref(NULL);
  clv_account_unrefp(&none);
  clv_pool_unref(NULL);
  clv_slab_clear(NULL);
  clv_share_release_cores(NULL);
  clv_share_yield(NULL);
  clv_share_refund_time(NULL, 1);
  clv_share_stop(NULL);
  clv_share_free(NULL);
  clv_fair_scheduler_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(destructors_accept_null),
      cmocka_unit_test(cpu_time_follows_tenant_weights),
      cmocka_unit_test(tenants_get_equal_time_before_their_shares),
      cmocka_unit_test(refunded_wait_is_not_charged),
      cmocka_unit_test(refund_is_limited_to_the_current_slice),
      cmocka_unit_test(idle_tenant_gains_no_credit),
      cmocka_unit_test(idle_share_gains_no_credit),
      cmocka_unit_test(equal_shares_run_in_request_order),
      cmocka_unit_test(new_share_inherits_time_used_by_its_tenant),
      cmocka_unit_test(slice_lasts_its_configured_time),
      cmocka_unit_test(yield_ends_the_slice_when_another_waits),
      cmocka_unit_test(stopped_share_is_refused_at_once),
      cmocka_unit_test(wide_share_is_not_overtaken_by_narrow_ones),
      cmocka_unit_test(two_threads_are_charged_twice_the_time),
      cmocka_unit_test(running_threads_never_exceed_the_cores),
      cmocka_unit_test(invalid_scheduler_options_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
