/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that the record is on disk before tensors are sent: if process or machine stops at any
 * time, the record counts at least the bytes of all tensors that were charged (announced to the
 * record) by then. The simulated disk has the content that the file had at the last successful
 * fdatasync.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "master/egress/egress_int.h"
#include "tests/unit/files.h"

/* ---- a simulated disk and a clock for the record --------------------------------------------- */

static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
static clv_bytes disk;
static int sync_errno, n_syncs;
static uint64_t clock_offset_ns;

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
uint64_t __real_clv_now_ns(void);
uint64_t __wrap_clv_now_ns(void);

int __wrap_fdatasync(int fd) {
  clv_err err;
  if (sync_errno) {
    errno = sync_errno;
    return -1;
  }
  pthread_mutex_lock(&disk_lock);
  n_syncs++;
  disk.len = 0;
  assert_ok(egress_read_file(fd, "disk", &disk, &err), &err);
  pthread_mutex_unlock(&disk_lock);
  return 0;
}

uint64_t __wrap_clv_now_ns(void) { return __real_clv_now_ns() + clock_offset_ns; }

static uint64_t sum_bytes_on_disk(void) {
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  pthread_mutex_lock(&disk_lock);
  assert_ok(clv_egress_read_text(disk.data, disk.len, "disk", &b, &err), &err);
  pthread_mutex_unlock(&disk_lock);
  return b.total_bytes;
}

/* ---- opening and reading records ------------------------------------------------------------- */

static const clv_egress_line attempt_line = {
    .start = {.command = "train", .session = "s", .run = "runs/s"}};
static const clv_egress_key activation = {.from = CLV_EGRESS_MASTER,
                                          .to = "w1",
                                          .identity = "spiffe://w1",
                                          .kind = CLV_EGRESS_ACTIVATION,
                                          .stage = "a",
                                          .dtype = "f32",
                                          .shape = {1, {25}}};

static clv_egress_record *open_record(const char *name) {
  clv_egress_record *r = NULL;
  clv_err err;
  assert_ok(clv_egress_open(at(name), &attempt_line, &r, &err), &err);
  return r;
}

static clv_egress_flow *open_flow(clv_egress_record *r, const clv_egress_key *flow_key,
                                  uint64_t step_bytes) {
  clv_egress_flow *f = NULL;
  clv_err err;
  assert_ok(clv_egress_flow_new(r, flow_key, false, &f, &err), &err);
  clv_egress_set_step_bytes(f, step_bytes);
  return f;
}

static void charge_bytes(clv_egress_flow *f, uint64_t bytes) {
  clv_err err;
  assert_ok(clv_egress_charge(f, bytes, &err), &err);
}

static void close_record(clv_egress_record *r) {
  clv_err err;
  assert_ok(clv_egress_close(r, 0, &err), &err);
}

static void read_record(const char *name, clv_egress_summary *ret) {
  clv_err err;
  assert_ok(clv_egress_read(at(name), ret, &err), &err);
}

/* ---- guarantees: bytes are on disk (charged) before they may be sent ------------------------- */

static void charged_bytes_are_on_disk_first(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("ahead");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  uint64_t charged_bytes = 0;
  for (uint64_t i = 0; i < 1000; i++) {
    uint64_t bytes = 1 + i * 7919 % (i % 50 ? 150 : 5000);
    charge_bytes(f, bytes);
    charged_bytes += bytes;
    assert_true(sum_bytes_on_disk() >= charged_bytes);
  }
  close_record(r);
  read_record("ahead", &b);
  assert_int_equal(b.total_bytes, charged_bytes);
  assert_int_equal(b.rows[0].n_tensors, 1000);
  assert_int_equal(b.rows[0].unsettled_bytes, 0);
  assert_true(b.attempts[0].has_ended);
  /* the line of the attempt's end is on disk, too */
  assert_int_equal(sum_bytes_on_disk(), charged_bytes);
}

static void one_fdatasync_covers_many_steps(void **state) {
  (void)state;
  clv_egress_record *r = open_record("few");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  int before = n_syncs;
  for (int i = 0; i < 640; i++) charge_bytes(f, 100);
  assert_in_range(n_syncs - before, 5, 60);
  close_record(r);
}

/* The record permits bytes on disk in advance, in allowances. Their unused bytes together stay
 * below a limit. */
static void allowance_covers_at_most_64_steps(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("most");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  for (int i = 0; i < 2000; i++) {
    charge_bytes(f, 100);
    assert_true(sum_bytes_on_disk() <= 100u * (i + 1 + CLV_EGRESS_MAX_STEPS * 3 / 2));
  }
  close_record(r);
  read_record("most", &b);
  assert_int_equal(b.total_bytes, 200000);
}

static void charge_keeps_failing_after_a_disk_error(void **state) {
  (void)state;
  clv_err err = {0};
  clv_egress_record *r = open_record("fails");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  charge_bytes(f, 100);
  sync_errno = EIO;
  int n = 0;
  while (clv_egress_charge(f, 100, &err) == CLV_OK) n++;
  assert_in_range(n, 0, CLV_EGRESS_MAX_STEPS);
  assert_says(&err, "fails: Input/output error");
  assert_true(sum_bytes_on_disk() >= 100u * (unsigned)(n + 1));
  /* sync works again, but data from before its failure may be lost, so the record refuses all later
   * calls */
  sync_errno = 0;
  assert_int_equal(clv_egress_charge(f, 100, &err), CLV_PRECONDITION);
  assert_int_equal(clv_egress_close(r, 0, &err), CLV_PRECONDITION);
}

/* If the record's file was deleted, clv_egress_charge fails and nothing may be sent, although the
 * open descriptor can still be written. */
static void charge_fails_after_the_record_file_is_removed(void **state) {
  (void)state;
  clv_err err = {0};
  clv_egress_record *r = open_record("removed");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  charge_bytes(f, 100);
  assert_int_equal(unlink(at("removed")), 0);
  for (int i = 0; i < 4 * CLV_EGRESS_MAX_STEPS; i++)
    if (clv_egress_charge(f, 100, &err) != CLV_OK) break;
  assert_says(&err, "removed: the file was removed");
  assert_int_equal(clv_egress_close(r, 0, &err), CLV_PRECONDITION);
}

static void expired_allowance_is_settled(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("old");
  clv_egress_flow *f = open_flow(r, &activation, 100);
  charge_bytes(f, 100);
  clock_offset_ns += (uint64_t)CLV_EGRESS_ALLOWANCE_MS * 1000000u;
  egress_renew_allowances(r);
  read_record("old", &b);
  assert_int_equal(b.total_bytes, 100);
  assert_int_equal(b.attempts[0].unsettled_bytes, 0);
  charge_bytes(f, 100); /* the record writes a new allowance, because the expired one is settled */
  assert_true(sum_bytes_on_disk() > 100);
  close_record(r);
}

static void one_time_tensors_share_one_fdatasync(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_err err;
  clv_egress_record *r = open_record("once");
  clv_egress_flow *f[20];
  int before = n_syncs;
  for (int i = 0; i < 20; i++) {
    clv_egress_key flow_key = activation;
    flow_key.kind = CLV_EGRESS_WEIGHTS;
    snprintf(flow_key.name, sizeof flow_key.name, "%d.weight\"\n\x9b", i);
    assert_ok(clv_egress_flow_new(r, &flow_key, true, &f[i], &err), &err);
    clv_egress_set_step_bytes(f[i], (uint64_t)i + 1);
  }
  assert_ok(clv_egress_write_ahead(r, &err), &err);
  for (int i = 0; i < 20; i++) charge_bytes(f[i], (uint64_t)i + 1);
  /* The record's thread may write new allowances meanwhile, which costs one more fdatasync. */
  assert_in_range(n_syncs - before, 1, 2);
  close_record(r);
  read_record("once", &b);
  assert_int_equal(b.n_rows, 20);
  assert_int_equal(b.total_bytes, 210);
  assert_string_equal(b.rows[3].key.name, "3.weight\"??");
}

static void next_attempt_appends_after_a_truncated_line(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("again");
  charge_bytes(open_flow(r, &activation, 100), 60);
  close_record(r);
  FILE *f = fopen(at("again"), "a");
  fputs("{\"event\":\"allow\",\"at", f);
  fclose(f);
  r = open_record("again");
  charge_bytes(open_flow(r, &activation, 100), 7);
  close_record(r);
  read_record("again", &b);
  assert_int_equal(b.n_attempts, 2);
  assert_int_equal(b.total_bytes, 67);
  assert_int_equal(b.attempts[1].start_line.start.removed_bytes, 20);
}

/* After a power failure, blocks that did not reach the disk read as zeros, and complete lines may
 * follow them. The next opening cuts them all off. */
static void zero_blocks_after_a_crash_are_truncated(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("fallen");
  charge_bytes(open_flow(r, &activation, 100), 60);
  close_record(r);
  static const char left_over[] = "{\"event\":\0\0\0\0\n{\"event\":\"end\"}\n";
  FILE *f = fopen(at("fallen"), "a");
  fwrite(left_over, 1, sizeof left_over - 1, f);
  fclose(f);
  r = open_record("fallen");
  charge_bytes(open_flow(r, &activation, 100), 7);
  close_record(r);
  read_record("fallen", &b);
  assert_int_equal(b.n_attempts, 2);
  assert_int_equal(b.total_bytes, 67);
  assert_int_equal(b.truncated_bytes, 0);
  assert_int_equal(b.attempts[1].start_line.start.removed_bytes, sizeof left_over - 1);
}

/* Another command, which was killed while it wrote, has left half a line. The next process must not
 * continue that line. */
static void partial_line_of_another_process_is_not_extended(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("half");
  FILE *f = fopen(at("half"), "a");
  fputs("{\"event\":\"allow\",\"at", f);
  fclose(f);
  charge_bytes(open_flow(r, &activation, 100), 60);
  close_record(r);
  read_record("half", &b);
  assert_int_equal(b.total_bytes, 60);
  assert_true(b.attempts[0].has_ended);
}

static void file_that_is_no_record_is_refused(void **state) {
  (void)state;
  clv_egress_record *r = NULL;
  clv_err err;
  const char *path = write_scratch_file("other", "{\"step\":3,\"egress\":[]}\n", 23);
  assert_int_equal(clv_egress_open(path, &attempt_line, &r, &err), CLV_DATA_LOSS);
  assert_says(&err, "other:1: ");
  assert_says(&err, "move the file away");
}

/* ---- concurrent charges of threads, and processes that are killed ---------------------------- */

typedef struct charging_thread {
  clv_egress_flow *f;
  /* bytes that all threads have charged so far; atomic */
  uint64_t *total_charged;
} charging_thread;

static void *charge_in_thread(void *user) {
  charging_thread *t = user;
  for (uint64_t i = 0; i < 20000; i++) {
    charge_bytes(t->f, 1 + i % 9);
    __atomic_fetch_add(t->total_charged, 1 + i % 9, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

static void concurrent_charges_sum_exactly(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_egress_record *r = open_record("threads"), *other_record = open_record("threads");
  clv_egress_key gradient_key = activation;
  gradient_key.kind = CLV_EGRESS_GRADIENT;
  uint64_t total_charged = 0;
  clv_egress_flow *f = open_flow(r, &activation, 50);
  charging_thread thread_args[4] = {{f, &total_charged},
                                    {f, &total_charged},
                                    {open_flow(r, &gradient_key, 50), &total_charged},
                                    {open_flow(other_record, &gradient_key, 50), &total_charged}};
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, charge_in_thread, &thread_args[i]);
  for (int i = 0; i < 50; i++) {
    uint64_t charged_bytes = __atomic_load_n(&total_charged, __ATOMIC_SEQ_CST);
    assert_true(sum_bytes_on_disk() >= charged_bytes);
  }
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  close_record(r);
  close_record(other_record);
  read_record("threads", &b);
  assert_int_equal(b.total_bytes, total_charged);
  assert_int_equal(b.attempts[0].n_tensors + b.attempts[1].n_tensors, 80000);
}

static void *open_and_close_often(void *name) {
  for (int i = 0; i < 25; i++) close_record(open_record(name));
  return NULL;
}

/* Attempts that open the record at the same time get different numbers; otherwise the record could
 * not be read. */
static void concurrent_openings_get_distinct_attempts(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, open_and_close_often, "begin");
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  read_record("begin", &b);
  assert_int_equal(b.n_attempts, 100);
}

/* Runs a process that charges bytes until it is killed, `delay_us` microseconds after its first
 * charge. Returns how many bytes it had charged. */
static uint64_t charge_until_killed(const char *name, uint64_t *total_charged, unsigned delay_us) {
  pid_t pid = fork();
  if (!pid) {
    clv_egress_record *r = open_record(name);
    clv_egress_flow *f = open_flow(r, &activation, 50);
    clv_err err;
    alarm(60);
    while (clv_egress_charge(f, 50, &err) == CLV_OK)
      __atomic_fetch_add(total_charged, 50, __ATOMIC_SEQ_CST);
    _exit(1);
  }
  for (int i = 0; i < 300000 && !__atomic_load_n(total_charged, __ATOMIC_SEQ_CST); i++) usleep(100);
  usleep(delay_us);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  return *total_charged;
}

static void kill_never_loses_charged_bytes(void **state) {
  (void)state;
  uint64_t *total_charged =
      mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  uint64_t charged_bytes = 0;
  for (unsigned i = 0; i < 12; i++) {
    CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
    *total_charged = 0;
    charged_bytes += charge_until_killed("killed", total_charged, i * 311);
    read_record("killed", &b);
    assert_int_equal(b.n_attempts, i + 1);
    assert_true(b.total_bytes >= charged_bytes);
    assert_true(b.attempts[i].unsettled_bytes <=
                50 * CLV_EGRESS_MAX_STEPS * 3 / 2 + 50 * CLV_EGRESS_MAX_STEPS);
  }
  munmap(total_charged, 4096);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(charged_bytes_are_on_disk_first),
      cmocka_unit_test(one_fdatasync_covers_many_steps),
      cmocka_unit_test(allowance_covers_at_most_64_steps),
      cmocka_unit_test(charge_keeps_failing_after_a_disk_error),
      cmocka_unit_test(charge_fails_after_the_record_file_is_removed),
      cmocka_unit_test(expired_allowance_is_settled),
      cmocka_unit_test(one_time_tensors_share_one_fdatasync),
      cmocka_unit_test(next_attempt_appends_after_a_truncated_line),
      cmocka_unit_test(zero_blocks_after_a_crash_are_truncated),
      cmocka_unit_test(partial_line_of_another_process_is_not_extended),
      cmocka_unit_test(file_that_is_no_record_is_refused),
      cmocka_unit_test(concurrent_charges_sum_exactly),
      cmocka_unit_test(concurrent_openings_get_distinct_attempts),
      cmocka_unit_test(kill_never_loses_charged_bytes),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
