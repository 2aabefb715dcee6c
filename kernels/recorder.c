/* SPDX-License-Identifier: Apache-2.0
 *
 * Recorder of repeated device work; kernels.h documents its functions. clv_recorder_run counts
 * the runs of each key. It issues the first run directly, records the second (make), and
 * replays the record from then on (replay). Work that cannot be recorded is marked as refused
 * and always issued directly.
 */
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct record_slot {
  clv_record_key key;
  bool used, refused;
  uint64_t last; /* number of the last run that used the record; the least is evicted first */
  void *record;  /* NULL: its work ran once, or is refused */
  size_t bytes;
} record_slot;

struct clv_recorder {
  const clv_backend *backend;
  clv_record_account account;
  uint64_t runs;
  clv_record_counts counts; /* written by the recorder's thread, read by any */
  record_slot slots[CLV_RECORDS];
};

static void count(uint64_t *counter, uint64_t by) {
  __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED);
}

clv_code clv_recorder_new(const clv_backend *b, clv_recorder **ret, clv_err *err) {
  *ret = NULL;
  if (!b->recording) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->backend = b;
  return CLV_OK;
}

void clv_recorder_charge(clv_recorder *r, const clv_record_account *account) {
  if (r) r->account = *account;
}

static void free_record(clv_recorder *r, record_slot *k) {
  if (!k->record) return;
  r->backend->recording->free(r->backend, k->record);
  if (r->account.discharge) r->account.discharge(r->account.user, k->bytes);
  count(&r->counts.bytes, -(uint64_t)k->bytes);
  k->record = NULL;
  k->bytes = 0;
}

static void free_slot(clv_recorder *r, record_slot *k) {
  free_record(r, k);
  *k = (record_slot){0};
}

void clv_recorder_forget(clv_recorder *r, const void *owner) {
  for (int i = 0; r && i < CLV_RECORDS; i++)
    if (r->slots[i].used && r->slots[i].key.owner == owner) free_slot(r, &r->slots[i]);
}

void clv_recorder_free(clv_recorder *r) {
  if (!r) return;
  for (int i = 0; i < CLV_RECORDS; i++) free_slot(r, &r->slots[i]);
  free(r);
}

void clv_recorder_count(const clv_recorder *r, clv_record_counts *ret) {
  *ret = (clv_record_counts){0};
  if (!r) return;
  const clv_record_counts *c = &r->counts;
  *ret = (clv_record_counts){.made = __atomic_load_n(&c->made, __ATOMIC_RELAXED),
                             .replays = __atomic_load_n(&c->replays, __ATOMIC_RELAXED),
                             .refused = __atomic_load_n(&c->refused, __ATOMIC_RELAXED),
                             .in_parts = __atomic_load_n(&c->in_parts, __ATOMIC_RELAXED),
                             .bytes = __atomic_load_n(&c->bytes, __ATOMIC_RELAXED)};
}

/* Returns the record of the key, or evicts the least recently used one and returns its slot. */
static record_slot *find_slot(clv_recorder *r, const clv_record_key *key) {
  record_slot *oldest = &r->slots[0];
  for (int i = 0; i < CLV_RECORDS; i++) {
    record_slot *k = &r->slots[i];
    if (k->used && memcmp(&k->key, key, sizeof *key) == 0) return k;
    if (k->last < oldest->last) oldest = k;
  }
  free_slot(r, oldest);
  return oldest;
}

/* Stores a record. If the account refuses the charge, the record is freed. */
static clv_code store_record(clv_recorder *r, record_slot *k, void *made, size_t bytes,
                             clv_err *err) {
  const clv_record_account *a = &r->account;
  clv_code code = a->charge ? a->charge(a->user, bytes, err) : CLV_OK;
  if (code != CLV_OK) {
    r->backend->recording->free(r->backend, made);
    return code;
  }
  k->record = made;
  k->bytes = bytes;
  count(&r->counts.bytes, bytes);
  return CLV_OK;
}

static clv_code record(clv_recorder *r, record_slot *k, clv_code (*ask)(void *user, clv_err *err),
                       void *user, clv_err *err) {
  const clv_backend *b = r->backend;
  void *made = NULL;
  size_t bytes = 0;
  clv_err ending;
  CLV_TRY(b->recording->begin(b, err));
  clv_code asked = ask(user, err), ended = b->recording->end(b, &made, &bytes, &ending);
  if (asked == CLV_OK && ended == CLV_OK) return store_record(r, k, made, bytes, err);
  if (ended == CLV_OK) b->recording->free(b, made);
  if (asked == CLV_OK && err) *err = ending;
  return asked == CLV_OK ? ended : asked;
}

/* Marks the work as refused: from now on it is issued in parts. */
static void refuse(clv_recorder *r, record_slot *k, const clv_err *why) {
  free_record(r, k);
  count(&r->counts.refused, 1);
  k->refused = true;
  clv_log(CLV_LOG_DEBUG, "%s: repeated work is not recorded: %s", r->backend->device, why->text);
}

static void make(clv_recorder *r, record_slot *k, clv_code (*ask)(void *user, clv_err *err),
                 void *user) {
  clv_err why;
  if (record(r, k, ask, user, &why) != CLV_OK) {
    refuse(r, k, &why);
    return;
  }
  count(&r->counts.made, 1);
  clv_log(CLV_LOG_DEBUG, "%s: repeated work is recorded: about %zu bytes", r->backend->device,
          k->bytes);
}

/* Replays a record. A failed launch has issued nothing, so the caller issues the work in parts,
 * which reports any error of the device. */
static bool replay(clv_recorder *r, record_slot *k) {
  clv_err why;
  if (r->backend->recording->replay(r->backend, k->record, &why) == CLV_OK) {
    count(&r->counts.replays, 1);
    return true;
  }
  refuse(r, k, &why);
  return false;
}

clv_code clv_recorder_run(clv_recorder *r, const clv_record_key *key,
                          clv_code (*ask)(void *user, clv_err *err), void *user, clv_err *err) {
  if (!r) return ask(user, err);
  record_slot *k = find_slot(r, key);
  bool known = k->used;
  k->used = true;
  k->key = *key;
  k->last = ++r->runs;
  if (known && !k->record && !k->refused) make(r, k, ask, user);
  if (k->record && replay(r, k)) return CLV_OK;
  count(&r->counts.in_parts, 1);
  return ask(user, err);
}
