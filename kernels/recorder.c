/* SPDX-License-Identifier: Apache-2.0
 *
 * Recorder of repeated device work; kernels.h documents its functions. clv_recorder_run counts the
 * runs of each key. It issues the first run directly, records the second (make_record), and replays
 * the record from then on (replay_record). Work that cannot be recorded is marked as refused and is
 * always issued directly.
 */
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct record_slot {
  clv_record_key key;
  bool is_used;    /* the slot has a key */
  bool is_refused; /* the work cannot be recorded */
  /* number of the last run with this key; the slot with the smallest number is evicted */
  uint64_t last_run;
  void *record; /* NULL: the work has run only once so far, or cannot be recorded */
  size_t bytes; /* device memory that the record occupies */
} record_slot;

struct clv_recorder {
  const clv_backend *backend;
  clv_record_account account;
  uint64_t n_runs;          /* number of runs of all keys */
  clv_record_counts counts; /* the recorder's thread writes them, any thread reads them */
  record_slot slots[CLV_MAX_RECORDS];
};

static void add_to_counter(uint64_t *counter, uint64_t amount) {
  __atomic_store_n(counter, *counter + amount, __ATOMIC_RELAXED);
}

clv_code clv_recorder_new(const clv_backend *b, clv_recorder **ret, clv_err *err) {
  *ret = NULL;
  if (!b->recording) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->backend = b;
  return CLV_OK;
}

void clv_recorder_set_account(clv_recorder *r, const clv_record_account *account) {
  if (r) r->account = *account;
}

static void free_record(clv_recorder *r, record_slot *k) {
  if (!k->record) return;
  r->backend->recording->free(r->backend, k->record);
  if (r->account.discharge) r->account.discharge(r->account.user, k->bytes);
  add_to_counter(&r->counts.bytes, -(uint64_t)k->bytes);
  k->record = NULL;
  k->bytes = 0;
}

static void free_slot(clv_recorder *r, record_slot *k) {
  free_record(r, k);
  *k = (record_slot){0};
}

void clv_recorder_free_records_of(clv_recorder *r, const void *owner) {
  for (int i = 0; r && i < CLV_MAX_RECORDS; i++)
    if (r->slots[i].is_used && r->slots[i].key.owner == owner) free_slot(r, &r->slots[i]);
}

void clv_recorder_free(clv_recorder *r) {
  if (!r) return;
  for (int i = 0; i < CLV_MAX_RECORDS; i++) free_slot(r, &r->slots[i]);
  free(r);
}

void clv_recorder_count(const clv_recorder *r, clv_record_counts *ret) {
  *ret = (clv_record_counts){0};
  if (!r) return;
  const clv_record_counts *c = &r->counts;
  *ret =
      (clv_record_counts){.records_made = __atomic_load_n(&c->records_made, __ATOMIC_RELAXED),
                          .replays = __atomic_load_n(&c->replays, __ATOMIC_RELAXED),
                          .keys_refused = __atomic_load_n(&c->keys_refused, __ATOMIC_RELAXED),
                          .launched_singly = __atomic_load_n(&c->launched_singly, __ATOMIC_RELAXED),
                          .bytes = __atomic_load_n(&c->bytes, __ATOMIC_RELAXED)};
}

/* Returns the slot of the key, or evicts the least recently used record and returns its slot. */
static record_slot *find_slot(clv_recorder *r, const clv_record_key *key) {
  record_slot *least_recently_used = &r->slots[0];
  for (int i = 0; i < CLV_MAX_RECORDS; i++) {
    record_slot *k = &r->slots[i];
    if (k->is_used && memcmp(&k->key, key, sizeof *key) == 0) return k;
    if (k->last_run < least_recently_used->last_run) least_recently_used = k;
  }
  free_slot(r, least_recently_used);
  return least_recently_used;
}

/* Stores the record in the slot k. If the account refuses the charge, the record is freed. */
static clv_code store_record(clv_recorder *r, record_slot *k, void *record, size_t bytes,
                             clv_err *err) {
  const clv_record_account *a = &r->account;
  clv_code code = a->charge ? a->charge(a->user, bytes, err) : CLV_OK;
  if (code != CLV_OK) {
    r->backend->recording->free(r->backend, record);
    return code;
  }
  k->record = record;
  k->bytes = bytes;
  add_to_counter(&r->counts.bytes, bytes);
  return CLV_OK;
}

/* Records the work that `issue` issues, in slot k. */
static clv_code record_work(clv_recorder *r, record_slot *k,
                            clv_code (*issue)(void *user, clv_err *err), void *user, clv_err *err) {
  const clv_backend *b = r->backend;
  void *record = NULL;
  size_t bytes = 0;
  clv_err end_err;
  CLV_TRY(b->recording->begin(b, err));
  clv_code issue_code = issue(user, err),
           end_code = b->recording->end(b, &record, &bytes, &end_err);
  if (issue_code == CLV_OK && end_code == CLV_OK) return store_record(r, k, record, bytes, err);
  if (end_code == CLV_OK) b->recording->free(b, record);
  if (issue_code == CLV_OK && err) *err = end_err;
  return issue_code == CLV_OK ? end_code : issue_code;
}

/* Marks the work of slot k as impossible to record: from now on it is issued launch by launch. */
static void mark_refused(clv_recorder *r, record_slot *k, const clv_err *reason) {
  free_record(r, k);
  add_to_counter(&r->counts.keys_refused, 1);
  k->is_refused = true;
  clv_log(CLV_LOG_DEBUG, "%s: repeated work is not recorded: %s", r->backend->device, reason->text);
}

/* As record_work, but marks the work as refused if the recording fails. */
static void make_record(clv_recorder *r, record_slot *k,
                        clv_code (*issue)(void *user, clv_err *err), void *user) {
  clv_err reason;
  if (record_work(r, k, issue, user, &reason) != CLV_OK) {
    mark_refused(r, k, &reason);
    return;
  }
  add_to_counter(&r->counts.records_made, 1);
  clv_log(CLV_LOG_DEBUG, "%s: repeated work is recorded: about %zu bytes", r->backend->device,
          k->bytes);
}

/* Replays the record of slot k; false: it failed. A failed launch has issued nothing, so the caller
 * issues the work launch by launch, which reports any error of the device. */
static bool replay_record(clv_recorder *r, record_slot *k) {
  clv_err reason;
  if (r->backend->recording->replay(r->backend, k->record, &reason) == CLV_OK) {
    add_to_counter(&r->counts.replays, 1);
    return true;
  }
  mark_refused(r, k, &reason);
  return false;
}

clv_code clv_recorder_run(clv_recorder *r, const clv_record_key *key,
                          clv_code (*issue)(void *user, clv_err *err), void *user, clv_err *err) {
  if (!r) return issue(user, err);
  record_slot *k = find_slot(r, key);
  bool was_run_before = k->is_used;
  k->is_used = true;
  k->key = *key;
  k->last_run = ++r->n_runs;
  if (was_run_before && !k->record && !k->is_refused) make_record(r, k, issue, user);
  if (k->record && replay_record(r, k)) return CLV_OK;
  add_to_counter(&r->counts.launched_singly, 1);
  return issue(user, err);
}
