/* SPDX-License-Identifier: Apache-2.0
 *
 * Work on a device that is recorded, and asked for as a whole.
 */
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct kept_record {
  clv_record_key key;
  bool used, refused;
  uint64_t last; /* the run that used it */
  void *record;  /* NULL: it has been asked for once, or is refused */
  size_t bytes;
} kept_record;

struct clv_recorder {
  const clv_backend *backend;
  clv_record_account account;
  uint64_t runs;
  clv_record_counts counts; /* written by one thread, read by any */
  kept_record kept[CLV_RECORDS];
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

static void free_record(clv_recorder *r, kept_record *k) {
  if (!k->record) return;
  r->backend->recording->free(r->backend, k->record);
  if (r->account.discharge) r->account.discharge(r->account.user, k->bytes);
  count(&r->counts.bytes, -(uint64_t)k->bytes);
  k->record = NULL;
  k->bytes = 0;
}

static void let_go(clv_recorder *r, kept_record *k) {
  free_record(r, k);
  *k = (kept_record){0};
}

void clv_recorder_forget(clv_recorder *r, const void *owner) {
  for (int i = 0; r && i < CLV_RECORDS; i++)
    if (r->kept[i].used && r->kept[i].key.of == owner) let_go(r, &r->kept[i]);
}

void clv_recorder_free(clv_recorder *r) {
  if (!r) return;
  for (int i = 0; i < CLV_RECORDS; i++) let_go(r, &r->kept[i]);
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

/* The one of that key, or the least recently used without what it kept. */
static kept_record *place_of(clv_recorder *r, const clv_record_key *key) {
  kept_record *oldest = &r->kept[0];
  for (int i = 0; i < CLV_RECORDS; i++) {
    kept_record *k = &r->kept[i];
    if (k->used && memcmp(&k->key, key, sizeof *key) == 0) return k;
    if (k->last < oldest->last) oldest = k;
  }
  let_go(r, oldest);
  return oldest;
}

/* What is not paid for is not kept. */
static clv_code keep(clv_recorder *r, kept_record *k, void *made, size_t bytes, clv_err *err) {
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

static clv_code record(clv_recorder *r, kept_record *k, clv_code (*ask)(void *user, clv_err *err),
                       void *user, clv_err *err) {
  const clv_backend *b = r->backend;
  void *made = NULL;
  size_t bytes = 0;
  clv_err ending;
  CLV_TRY(b->recording->begin(b, err));
  clv_code asked = ask(user, err), ended = b->recording->end(b, &made, &bytes, &ending);
  if (asked == CLV_OK && ended == CLV_OK) return keep(r, k, made, bytes, err);
  if (ended == CLV_OK) b->recording->free(b, made);
  if (asked == CLV_OK && err) *err = ending;
  return asked == CLV_OK ? ended : asked;
}

/* From now on in parts. */
static void refuse(clv_recorder *r, kept_record *k, const clv_err *why) {
  free_record(r, k);
  count(&r->counts.refused, 1);
  k->refused = true;
  clv_log(CLV_LOG_DEBUG, "%s: work that repeats is not recorded: %s", r->backend->device,
          why->text);
}

static void make(clv_recorder *r, kept_record *k, clv_code (*ask)(void *user, clv_err *err),
                 void *user) {
  clv_err why;
  if (record(r, k, ask, user, &why) != CLV_OK) {
    refuse(r, k, &why);
    return;
  }
  count(&r->counts.made, 1);
  clv_log(CLV_LOG_DEBUG, "%s: work that repeats is recorded: about %zu bytes", r->backend->device,
          k->bytes);
}

/* A launch that fails has asked for nothing; what is wrong with the device is said again by what is
 * asked for in parts. */
static bool replay(clv_recorder *r, kept_record *k) {
  clv_err why;
  if (r->backend->recording->again(r->backend, k->record, &why) == CLV_OK) {
    count(&r->counts.replays, 1);
    return true;
  }
  refuse(r, k, &why);
  return false;
}

clv_code clv_recorder_run(clv_recorder *r, const clv_record_key *key,
                          clv_code (*ask)(void *user, clv_err *err), void *user, clv_err *err) {
  if (!r) return ask(user, err);
  kept_record *k = place_of(r, key);
  bool known = k->used;
  k->used = true;
  k->key = *key;
  k->last = ++r->runs;
  if (known && !k->record && !k->refused) make(r, k, ask, user);
  if (k->record && replay(r, k)) return CLV_OK;
  count(&r->counts.in_parts, 1);
  return ask(user, err);
}
