/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes allowances before their tensors are sent, and settles them. A flow has a balance: bytes
 * that allowances on the disk cover. clv_egress_charge takes bytes from the balance with one atomic
 * exchange. When half of an allowance is used, the record's thread writes the next one, for all
 * flows in one write and one fdatasync, and raises the balance afterwards. A caller that finds too
 * small a balance writes the allowance itself. After ten seconds the thread takes back the unused
 * bytes of an allowance and settles it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "master/egress/egress_int.h"

enum {
  /* most open allowances of a flow: grants of bytes whose use is not yet on record (no SETTLE
   * line). A flow has two while it trains, and more when an evaluation changes the bytes of a
   * step */
  MAX_OPEN_ALLOWANCES = 8,
  FAST_USE_MS = 2500, /* if an allowance is used up in less time, the next one is larger */
  SLOW_USE_MS = 5000, /* if an allowance is used up in more time, the next one is smaller */
};

/* A grant of bytes whose use is not yet on record (no SETTLE line). */
typedef struct open_allowance {
  uint64_t id, bytes, formatted_ns; /* formatted_ns: clv_now_ns when its line was formatted */
} open_allowance;

struct clv_egress_flow {
  clv_egress_record *record;
  clv_egress_key key;
  bool has_one_tensor; /* the flow sends one tensor, so no further allowance is requested for it */
  uint64_t balance; /* bytes that allowances on the disk cover and that were not yet sent; atomic */
  /* if the balance falls below this number, a charge wakes the record's thread to write the next
   * allowance; 0: never; atomic */
  uint64_t refill_threshold;
  uint64_t n_tensors;   /* number of tensors that were charged to the flow; atomic */
  uint64_t step_bytes;  /* bytes that the flow sends in a step; atomic */
  bool needs_allowance; /* the flow needs an allowance in the next clv_egress_write_ahead; atomic */
  /* The fields below are under the record's lock. */
  uint64_t awaited_bytes;   /* bytes that a blocked clv_egress_charge waits for; 0: none waits */
  uint64_t unwritten_bytes; /* bytes of an allowance whose line is not on the disk yet; 0: none */
  /* training steps that the last allowance covered; 0: no allowance yet */
  uint64_t allowance_steps;
  /* granted_bytes: bytes of all allowances; settled_bytes, settled_tensors: bytes and tensors that
   * were sent under settled allowances */
  uint64_t granted_bytes, settled_bytes, settled_tensors;
  /* [n_open_allowances] allowances without a SETTLE, the oldest first */
  open_allowance open_allowances[MAX_OPEN_ALLOWANCES];
  size_t n_open_allowances;
  clv_egress_flow *next;
};

struct clv_egress_record {
  char path[4096];
  int fd;
  uint64_t attempt, last_id;
  /* protects the flows and the file; clv_egress_charge takes the lock only if the balance is too
   * small */
  pthread_mutex_t lock;
  clv_egress_flow *flows, **flows_end;
  clv_bytes lines; /* formatted lines, not yet written */
  /* first failure to write; after it all charges that need a new allowance fail */
  clv_err first_failure;
  sem_t wake_semaphore;
  bool is_ending, has_thread;
  pthread_t thread;
};

/* ---- the file of the record ------------------------------------------------------------------ */

static void unlock_file(int *fd) {
  if (*fd >= 0) flock(*fd, LOCK_UN);
}

static clv_code lock_file(const clv_egress_record *r, clv_err *err) {
  while (flock(r->fd, LOCK_EX) != 0)
    if (errno != EINTR) return clv_fail(err, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  return CLV_OK;
}

/* Fails if the file was removed, because no reader would find lines that are still written to the
 * removed file. */
static clv_code check_not_removed(const clv_egress_record *r, clv_err *err) {
  struct stat st;
  if (fstat(r->fd, &st) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  if (!st.st_nlink)
    return clv_fail(err, CLV_PRECONDITION, "%s: the file was removed while the command runs",
                    r->path);
  return CLV_OK;
}

/* Finds the end of the last complete line, where the next line begins. Removes a truncated line
 * after it; a command leaves such a line if it is killed while it writes. */
static clv_code find_append_offset(const clv_egress_record *r, off_t *ret, clv_err *err) {
  char tail[CLV_EGRESS_MAX_LINE + 1];
  off_t end = lseek(r->fd, 0, SEEK_END), tail_begin = CLV_MAX(end - (off_t)sizeof tail, (off_t)0);
  ssize_t n = end < 0 ? -1 : pread(r->fd, tail, (size_t)(end - tail_begin), tail_begin);
  while (n > 0 && tail[n - 1] != '\n') n--;
  if (n < 0 || (!n && tail_begin) ||
      (tail_begin + n < end && ftruncate(r->fd, tail_begin + n) != 0))
    return clv_fail(err, CLV_PRECONDITION, "%s: its last line has no end and cannot be removed",
                    r->path);
  *ret = lseek(r->fd, 0, SEEK_END);
  return CLV_OK;
}

/* Appends r->lines to the file, under the file's lock because another command may append, too. On
 * failure removes the part that was written. */
static clv_code write_lines(clv_egress_record *r, clv_err *err) {
  CLV_TRY(lock_file(r, err));
  CLV_AUTO(unlock_file) int fd = r->fd;
  off_t end;
  size_t n_written = 0;
  CLV_TRY(check_not_removed(r, err));
  CLV_TRY(find_append_offset(r, &end, err));
  while (end >= 0 && n_written < r->lines.len) {
    ssize_t n = write(fd, r->lines.data + n_written, r->lines.len - n_written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    n_written += (size_t)n;
  }
  if (n_written == r->lines.len) return CLV_OK;
  clv_fail(err, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  if (end >= 0 && ftruncate(fd, end) != 0) clv_log(CLV_LOG_DEBUG, "%s keeps half a line", r->path);
  return err->code;
}

/* Writes r->lines to the file. waits_for_disk: waits until the lines are on the disk. Caller holds
 * the record's lock. Stores the first failure in r->first_failure. Every later call returns this
 * failure, because the contents of the disk are unknown then. */
static clv_code flush_lines(clv_egress_record *r, bool waits_for_disk, clv_err *err) {
  if (r->first_failure.code == CLV_OK && r->lines.failed)
    clv_fail(&r->first_failure, CLV_EXHAUSTED, "%s: out of memory", r->path);
  if (r->first_failure.code == CLV_OK) (void)!write_lines(r, &r->first_failure);
  if (r->first_failure.code == CLV_OK && waits_for_disk && fdatasync(r->fd) != 0)
    clv_fail(&r->first_failure, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  r->lines.len = 0;
  if (r->first_failure.code != CLV_OK && err) *err = r->first_failure;
  return r->first_failure.code;
}

static void append_record_line(clv_egress_record *r, clv_egress_line *l) {
  clv_time_text(clv_wall_ms(), l->at);
  l->attempt = r->attempt;
  clv_egress_line_format(l, &r->lines);
}

/* ---- allowances, bytes that a flow may still send -------------------------------------------- */

static uint64_t load_atomic(const uint64_t *v) { return __atomic_load_n(v, __ATOMIC_SEQ_CST); }
static void store_atomic(uint64_t *v, uint64_t to) { __atomic_store_n(v, to, __ATOMIC_SEQ_CST); }

/* Settles the oldest open allowance (grant of bytes). bytes: number of bytes that were sent under
 * this allowance. */
static void settle_oldest_allowance(clv_egress_flow *f, uint64_t bytes) {
  clv_egress_line l = {.event = CLV_EGRESS_SETTLE};
  uint64_t n_tensors = load_atomic(&f->n_tensors);
  l.settlement.id = f->open_allowances[0].id;
  l.settlement.bytes = bytes;
  l.settlement.n_tensors = n_tensors - f->settled_tensors;
  append_record_line(f->record, &l);
  f->settled_tensors = n_tensors;
  f->settled_bytes += bytes;
  f->n_open_allowances--;
  memmove(f->open_allowances, f->open_allowances + 1,
          f->n_open_allowances * sizeof *f->open_allowances);
}

/* Settles each open allowance (grant of bytes) whose bytes are used up: formats a SETTLE line with
 * the bytes that were sent. */
static void settle_used_allowances(clv_egress_flow *f) {
  uint64_t taken_bytes = f->granted_bytes - load_atomic(&f->balance);
  while (f->n_open_allowances && f->settled_bytes + f->open_allowances[0].bytes <= taken_bytes)
    settle_oldest_allowance(f, f->open_allowances[0].bytes);
}

/* Sets the flow's balance to 0 and settles all its allowances with the bytes that were used. */
static void take_back_balance(clv_egress_flow *f) {
  store_atomic(&f->refill_threshold, 0);
  f->granted_bytes -= __atomic_exchange_n(&f->balance, 0, __ATOMIC_SEQ_CST);
  while (f->n_open_allowances)
    settle_oldest_allowance(
        f, CLV_MIN(f->open_allowances[0].bytes, f->granted_bytes - f->settled_bytes));
}

/* Returns the number of training steps that the next allowance (grant of bytes) covers, so that an
 * allowance lasts a few seconds. */
static uint64_t next_allowance_steps(const clv_egress_flow *f, uint64_t now_ns) {
  uint64_t age_ms =
      f->n_open_allowances
          ? (now_ns - f->open_allowances[f->n_open_allowances - 1].formatted_ns) / 1000000u
          : SLOW_USE_MS;
  if (f->has_one_tensor) return 1;
  if (!f->allowance_steps) return 4;
  if (age_ms < FAST_USE_MS) return CLV_MIN(2 * f->allowance_steps, (uint64_t)CLV_EGRESS_MAX_STEPS);
  return age_ms < SLOW_USE_MS ? f->allowance_steps : CLV_MAX(f->allowance_steps / 2, 1u);
}

/* Formats the line of a flow's next allowance (grant of bytes). The caller calls
 * add_unwritten_to_balance when the line is on the disk. */
static void format_allowance_line(clv_egress_flow *f, uint64_t now_ns) {
  clv_egress_record *r = f->record;
  clv_egress_line l = {.event = CLV_EGRESS_ALLOW};
  f->allowance_steps = next_allowance_steps(f, now_ns);
  l.allowance.id = ++r->last_id;
  l.allowance.key = f->key;
  l.allowance.bytes = CLV_MAX(f->allowance_steps * load_atomic(&f->step_bytes), f->awaited_bytes);
  clv_time_text(clv_wall_ms() + CLV_EGRESS_ALLOWANCE_MS, l.allowance.expires_at);
  append_record_line(r, &l);
  f->open_allowances[f->n_open_allowances++] =
      (open_allowance){l.allowance.id, l.allowance.bytes, now_ns};
  f->unwritten_bytes = l.allowance.bytes;
}

/* Raises the balance of a flow by its allowance of unwritten_bytes, whose line is on the disk
 * now. */
static void add_unwritten_to_balance(clv_egress_flow *f) {
  uint64_t bytes = f->unwritten_bytes;
  if (!bytes) return;
  f->unwritten_bytes = 0;
  f->granted_bytes += bytes;
  store_atomic(&f->refill_threshold, f->has_one_tensor ? 0 : bytes / 2);
  __atomic_fetch_add(&f->balance, bytes, __ATOMIC_SEQ_CST);
}

static bool needs_allowance(const clv_egress_flow *f) {
  bool is_requested = __atomic_load_n(&f->needs_allowance, __ATOMIC_SEQ_CST);
  return (is_requested || f->awaited_bytes > load_atomic(&f->balance)) &&
         f->n_open_allowances < MAX_OPEN_ALLOWANCES;
}

/* Formats an allowance (grant of bytes) for each flow that needs one. Returns true if any flow
 * did. */
static bool format_needed_allowances(clv_egress_record *r) {
  uint64_t now_ns = clv_now_ns();
  bool has_new_allowances = false;
  for (clv_egress_flow *f = r->flows; f; f = f->next) {
    if (!needs_allowance(f)) continue;
    __atomic_store_n(&f->needs_allowance, false, __ATOMIC_SEQ_CST);
    format_allowance_line(f, now_ns);
    has_new_allowances = true;
  }
  return has_new_allowances;
}

/* Writes the allowances (grants of bytes) that flows need, together with SETTLE lines for
 * allowances that are used up. Caller holds the record's lock. */
static clv_code write_ahead(clv_egress_record *r, clv_err *err) {
  bool has_new_allowances = format_needed_allowances(r);
  if (!has_new_allowances && r->first_failure.code == CLV_OK) return CLV_OK;
  for (clv_egress_flow *f = r->flows; f; f = f->next) settle_used_allowances(f);
  CLV_TRY(flush_lines(r, has_new_allowances, err));
  for (clv_egress_flow *f = r->flows; f; f = f->next) add_unwritten_to_balance(f);
  return CLV_OK;
}

clv_code clv_egress_write_ahead(clv_egress_record *r, clv_err *err) {
  pthread_mutex_lock(&r->lock);
  clv_code code = write_ahead(r, err);
  pthread_mutex_unlock(&r->lock);
  return code;
}

/* ---- charging a tensor to its flow ----------------------------------------------------------- */

/* Takes bytes from the balance of a flow. Returns false, and takes nothing, if the balance is too
 * small. *ret_left_bytes: the balance afterwards. */
static bool try_take_from_balance(clv_egress_flow *f, uint64_t bytes, uint64_t *ret_left_bytes) {
  uint64_t balance = load_atomic(&f->balance);
  do {
    if (balance < bytes) return false;
  } while (!__atomic_compare_exchange_n(&f->balance, &balance, balance - bytes, true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  *ret_left_bytes = balance - bytes;
  return true;
}

/* Writes allowances until the balance of the flow suffices, and takes the bytes from it. */
static clv_code charge_with_new_allowances(clv_egress_flow *f, uint64_t bytes, clv_err *err) {
  clv_egress_record *r = f->record;
  clv_code code = CLV_OK;
  uint64_t left_bytes;
  pthread_mutex_lock(&r->lock);
  while (code == CLV_OK && !try_take_from_balance(f, bytes, &left_bytes)) {
    f->awaited_bytes = bytes;
    if (f->n_open_allowances == MAX_OPEN_ALLOWANCES) take_back_balance(f);
    code = write_ahead(r, err);
  }
  f->awaited_bytes = 0;
  pthread_mutex_unlock(&r->lock);
  return code;
}

clv_code clv_egress_charge(clv_egress_flow *f, uint64_t bytes, clv_err *err) {
  uint64_t left_bytes;
  __atomic_fetch_add(&f->n_tensors, 1, __ATOMIC_SEQ_CST);
  if (!try_take_from_balance(f, bytes, &left_bytes))
    return charge_with_new_allowances(f, bytes, err);
  if (left_bytes >= load_atomic(&f->refill_threshold) ||
      !__atomic_exchange_n(&f->refill_threshold, 0, __ATOMIC_SEQ_CST))
    return CLV_OK;
  __atomic_store_n(&f->needs_allowance, true, __ATOMIC_SEQ_CST);
  sem_post(&f->record->wake_semaphore);
  return CLV_OK;
}

/* ---- making flows, the balances of rows ------------------------------------------------------ */

clv_code clv_egress_flow_new(clv_egress_record *r, const clv_egress_key *key, bool has_one_tensor,
                             clv_egress_flow **ret, clv_err *err) {
  clv_egress_flow *f;
  CLV_TRY(clv_alloc(1, sizeof *f, &f, err));
  f->record = r;
  f->key = *key;
  f->has_one_tensor = has_one_tensor;
  pthread_mutex_lock(&r->lock);
  *r->flows_end = f;
  r->flows_end = &f->next;
  pthread_mutex_unlock(&r->lock);
  *ret = f;
  return CLV_OK;
}

void clv_egress_set_step_bytes(clv_egress_flow *f, uint64_t step_bytes) {
  store_atomic(&f->step_bytes, step_bytes);
  if (load_atomic(&f->balance) < step_bytes)
    __atomic_store_n(&f->needs_allowance, true, __ATOMIC_SEQ_CST);
}

/* ---- the thread that writes allowances ------------------------------------------------------- */

/* Takes back the balance (the bytes that may still be sent) of each flow that has an allowance of
 * age CLV_EGRESS_ALLOWANCE_MS. Returns the clv_now_ns time at which the next allowance reaches that
 * age. */
static uint64_t take_back_old_allowances(clv_egress_record *r) {
  const uint64_t period_ns = (uint64_t)CLV_EGRESS_ALLOWANCE_MS * 1000000u;
  uint64_t now_ns = clv_now_ns(), next_ns = now_ns + period_ns;
  for (clv_egress_flow *f = r->flows; f; f = f->next) {
    if (f->n_open_allowances && now_ns - f->open_allowances[0].formatted_ns >= period_ns)
      take_back_balance(f);
    if (f->n_open_allowances)
      next_ns = CLV_MIN(next_ns, f->open_allowances[0].formatted_ns + period_ns);
  }
  return next_ns;
}

uint64_t egress_renew_allowances(clv_egress_record *r) {
  clv_err ignored_err; /* r->first_failure keeps this error, and clv_egress_charge returns it */
  pthread_mutex_lock(&r->lock);
  uint64_t next_ns = take_back_old_allowances(r);
  if (write_ahead(r, &ignored_err) == CLV_OK && r->lines.len)
    (void)!flush_lines(r, false, &ignored_err);
  pthread_mutex_unlock(&r->lock);
  return next_ns;
}

static void *run_write_thread(void *user) {
  clv_egress_record *r = user;
  while (!__atomic_load_n(&r->is_ending, __ATOMIC_SEQ_CST)) {
    uint64_t next_ns = egress_renew_allowances(r);
    struct timespec at = {(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)};
    while (sem_clockwait(&r->wake_semaphore, CLOCK_MONOTONIC, &at) != 0 && errno == EINTR) continue;
  }
  return NULL;
}

static clv_code start_thread(clv_egress_record *r, clv_err *err) {
  sigset_t all_signals, old_mask;
  sigfillset(&all_signals); /* the thread that runs the command handles all signals */
  pthread_sigmask(SIG_BLOCK, &all_signals, &old_mask);
  r->has_thread = pthread_create(&r->thread, NULL, run_write_thread, r) == 0;
  pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
  return r->has_thread
             ? CLV_OK
             : clv_fail(err, CLV_EXHAUSTED, "%s: cannot start the thread that writes it", r->path);
}

/* ---- opening and closing the record ---------------------------------------------------------- */

static clv_code note_attempt_number(void *user, const char *line, size_t len, clv_err *err) {
  uint64_t *last_attempt = user;
  clv_egress_line l;
  CLV_TRY(clv_egress_line_parse(line, len, &l, err));
  if (l.event == CLV_EGRESS_ATTEMPT) *last_attempt = CLV_MAX(*last_attempt, l.attempt);
  return CLV_OK;
}

static clv_code open_file(clv_egress_record *r, clv_err *err) {
  r->fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (r->fd < 0) return clv_fail(err, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  return CLV_OK;
}

/* Checks the existing lines, removes a truncated last line of *ret_removed_bytes bytes and sets the
 * number of the new attempt. Caller holds the file's lock. */
static clv_code scan_existing_lines(clv_egress_record *r, uint64_t *ret_removed_bytes,
                                    clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t complete_bytes;
  CLV_TRY(egress_read_file(r->fd, r->path, &text, err));
  if (egress_for_each_line(text.data ? text.data : "", text.len, r->path, note_attempt_number,
                           &r->attempt, &complete_bytes, err) != CLV_OK)
    return clv_err_prefix(err,
                          "the existing record cannot be read (move the file away to begin a new "
                          "record)");
  r->attempt++;
  *ret_removed_bytes = text.len - complete_bytes;
  if (text.len > complete_bytes && ftruncate(r->fd, (off_t)complete_bytes) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: %s", r->path, strerror(errno));
  return CLV_OK;
}

/* Writes the ATTEMPT line. Holds the file's lock from the scan to the write, so that no other
 * command takes the same number of an attempt; write_lines releases the lock. */
static clv_code write_attempt(clv_egress_record *r, clv_egress_line *l, clv_err *err) {
  CLV_AUTO(unlock_file) int fd = -1;
  CLV_TRY(lock_file(r, err));
  fd = r->fd;
  CLV_TRY(scan_existing_lines(r, &l->start.removed_bytes, err));
  append_record_line(r, l);
  return flush_lines(r, true, err);
}

static clv_code begin_attempt(clv_egress_record *r, const clv_egress_line *start_line,
                              clv_err *err) {
  clv_egress_line l = *start_line;
  l.event = CLV_EGRESS_ATTEMPT;
  l.start.version = CLV_EGRESS_RECORD_VERSION;
  CLV_TRY(write_attempt(r, &l, err));
  CLV_TRY(clv_file_sync_folder(r->path, err));
  return start_thread(r, err);
}

static void record_free(clv_egress_record *r) {
  for (clv_egress_flow *f = r->flows, *next; f; f = next) {
    next = f->next;
    free(f);
  }
  if (r->fd >= 0) close(r->fd);
  clv_bytes_done(&r->lines);
  sem_destroy(&r->wake_semaphore);
  pthread_mutex_destroy(&r->lock);
  free(r);
}

clv_code clv_egress_open(const char *path, const clv_egress_line *start_line,
                         clv_egress_record **ret, clv_err *err) {
  clv_egress_record *r;
  if (strlen(path) >= sizeof r->path)
    return clv_fail(err, CLV_INVALID,
                    "the path of a record has %zu bytes, at most %zu are possible", strlen(path),
                    sizeof r->path - 1);
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  memcpy(r->path, path, strlen(path) + 1);
  pthread_mutex_init(&r->lock, NULL);
  sem_init(&r->wake_semaphore, 0, 0);
  r->flows_end = &r->flows;
  clv_code code = open_file(r, err);
  if (code == CLV_OK) code = begin_attempt(r, start_line, err);
  if (code == CLV_OK)
    *ret = r;
  else
    record_free(r);
  return code;
}

void clv_egress_note_direct_transfer(clv_egress_record *r, const char *from, const char *to,
                                     uint64_t bytes) {
  clv_egress_line l = {.event = CLV_EGRESS_HOP};
  snprintf(l.hop.from, sizeof l.hop.from, "%s", from);
  snprintf(l.hop.to, sizeof l.hop.to, "%s", to);
  snprintf(l.hop.by, sizeof l.hop.by, "worker");
  l.hop.bytes = bytes;
  pthread_mutex_lock(&r->lock);
  append_record_line(r, &l);
  pthread_mutex_unlock(&r->lock);
}

void clv_egress_note_look(clv_egress_record *r, const clv_egress_line *look) {
  clv_egress_line l = *look;
  l.event = CLV_EGRESS_LOOK;
  pthread_mutex_lock(&r->lock);
  append_record_line(r, &l);
  pthread_mutex_unlock(&r->lock);
}

static void format_end_line(clv_egress_record *r, uint64_t code) {
  clv_egress_line l = {.event = CLV_EGRESS_END};
  l.attempt_end.code = code;
  for (clv_egress_flow *f = r->flows; f; f = f->next) {
    take_back_balance(f);
    if (strcmp(f->key.from, CLV_EGRESS_MASTER) != 0) continue;
    l.attempt_end.n_tensors += f->settled_tensors;
    l.attempt_end.bytes += f->settled_bytes;
  }
  append_record_line(r, &l);
}

clv_code clv_egress_close(clv_egress_record *r, uint64_t exit_code, clv_err *err) {
  if (!r) return CLV_OK;
  __atomic_store_n(&r->is_ending, true, __ATOMIC_SEQ_CST);
  sem_post(&r->wake_semaphore);
  pthread_join(r->thread, NULL);
  format_end_line(r, exit_code);
  clv_code code = flush_lines(r, true, err);
  record_free(r);
  return code;
}
