/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools of tensors. A pool keeps one reference to every tensor it made; a tensor with no other
 * reference is free for the next request of its size. So a pool needs no release callback and no
 * list of free tensors.
 */
#include "common/net/fair/account_int.h"
#include "common/net/fair/free_list_int.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FREE_RECORDS = 256 };

/* Returns true if the environment limits the number of malloc's arenas. */
static bool environment_limits_arenas(void) {
  const char *tunables = getenv("GLIBC_TUNABLES");
  return getenv("MALLOC_ARENA_MAX") || (tunables && strstr(tunables, "malloc.arena_max"));
}

/* Makes malloc keep freed blocks that are smaller than 2 MiB, because the transport reads into
 * buffers of up to 1 MiB. Larger blocks are tensors of pools, which are allocated once. By default
 * malloc has eight arenas a core, and malloc_trim leaves the top of all but the first, so that each
 * may keep M_TRIM_THRESHOLD bytes. */
void clv_tune_malloc(void) {
  mallopt(M_MMAP_THRESHOLD, 2 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  if (!environment_limits_arenas()) mallopt(M_ARENA_MAX, 2);
}

struct clv_pool {
  pthread_mutex_t lock;
  int refs;
  clv_account *account;
  clv_pool *next, **prev_next; /* links in the root account's list of pools */
  clv_tensor **tensors;
  size_t n_tensors, cap_tensors;
  void *free_records; /* free list of records, linked through their first bytes */
  size_t n_free_records;
};

/* ---- making and freeing pools ---------------------------------------------------------------- */

static void add_to_pool_list(clv_pool *p) {
  clv_account *root = clv_account_root(p->account);
  pthread_mutex_lock(&root->lock);
  p->next = root->pools;
  p->prev_next = &root->pools;
  if (p->next) p->next->prev_next = &p->next;
  root->pools = p;
  pthread_mutex_unlock(&root->lock);
}

static void remove_from_pool_list(clv_pool *p) {
  clv_account *root = clv_account_root(p->account);
  pthread_mutex_lock(&root->lock);
  *p->prev_next = p->next;
  if (p->next) p->next->prev_next = p->prev_next;
  pthread_mutex_unlock(&root->lock);
}

clv_code clv_pool_new_for_account(clv_account *account, clv_pool **ret, clv_err *err) {
  clv_pool *p;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  pthread_mutex_init(&p->lock, NULL);
  p->refs = 1;
  p->account = clv_account_ref(account);
  add_to_pool_list(p);
  *ret = p;
  return CLV_OK;
}

clv_code clv_pool_new(size_t max_bytes, size_t max_tensors, clv_pool **ret, clv_err *err) {
  CLV_AUTO(clv_account_unrefp) clv_account *own = NULL;
  clv_account_options o = {
      .owner_in_messages = "this session",
      .limits = {[CLV_QUOTA_BYTES] = max_bytes, [CLV_QUOTA_TENSORS] = max_tensors}};
  CLV_TRY(clv_account_new(&o, &own, err));
  return clv_pool_new_for_account(own, ret, err);
}

clv_pool *clv_pool_ref(clv_pool *p) {
  __atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
  return p;
}

static void *pop_free_record(clv_pool *p) {
  return clv_free_list_pop(&p->free_records, malloc_usable_size(p->free_records));
}

void clv_pool_unref(clv_pool *p) {
  if (!p || __atomic_fetch_sub(&p->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  remove_from_pool_list(p);
  for (size_t i = 0; i < p->n_tensors; i++) clv_tensor_unref(p->tensors[i]);
  while (p->free_records) free(pop_free_record(p));
  free(p->tensors);
  pthread_mutex_destroy(&p->lock);
  clv_account_unref(p->account);
  free(p);
}

clv_account *clv_pool_account(const clv_pool *p) { return p->account; }

size_t clv_pool_charged_bytes(const clv_pool *p) {
  return clv_account_usage(p->account, CLV_QUOTA_BYTES);
}

static bool is_unused_tensor(clv_tensor *t) {
  return __atomic_load_n(&t->refs, __ATOMIC_ACQUIRE) == 1;
}

/* Returns a free tensor of exactly `bytes` with the new type and shape; NULL: there is none. */
static clv_tensor *find_unused_tensor(clv_pool *p, clv_dtype dtype, const clv_shape *shape,
                                      size_t bytes) {
  for (size_t i = 0; i < p->n_tensors; i++) {
    clv_tensor *t = p->tensors[i];
    if (t->bytes != bytes || !is_unused_tensor(t)) continue;
    t->dtype = dtype;
    t->shape = *shape;
    t->n = bytes / clv_dtype_size(dtype);
    return clv_tensor_ref(t);
  }
  return NULL;
}

/* ---- charging the account of a pool ---------------------------------------------------------- */

/* Frees the tensors that are not in use. The caller holds the lock. */
static void free_unused_tensors(clv_pool *p) {
  size_t n_kept = 0, bytes = 0;
  for (size_t i = 0; i < p->n_tensors; i++) {
    if (is_unused_tensor(p->tensors[i])) {
      bytes += p->tensors[i]->bytes;
      clv_tensor_unref(p->tensors[i]);
    } else {
      p->tensors[n_kept++] = p->tensors[i];
    }
  }
  clv_account_discharge(p->account, CLV_QUOTA_BYTES, bytes);
  clv_account_discharge(p->account, CLV_QUOTA_TENSORS, p->n_tensors - n_kept);
  p->n_tensors = n_kept;
}

/* Frees the unused tensors of all pools below an account whose quota is exceeded. */
static void free_unused_tensors_below(clv_account *exceeded) {
  clv_account *root = clv_account_root(exceeded);
  pthread_mutex_lock(&root->lock);
  for (clv_pool *p = root->pools; p; p = p->next) {
    if (!clv_account_is_within(p->account, exceeded)) continue;
    pthread_mutex_lock(&p->lock);
    free_unused_tensors(p);
    pthread_mutex_unlock(&p->lock);
  }
  pthread_mutex_unlock(&root->lock);
}

clv_code clv_pool_charge(clv_pool *p, size_t bytes, clv_err *err) {
  clv_account *exceeded = clv_account_try_charge(p->account, CLV_QUOTA_BYTES, bytes);
  if (!exceeded) return CLV_OK;
  free_unused_tensors_below(exceeded);
  return clv_account_charge(p->account, CLV_QUOTA_BYTES, bytes, err);
}

void clv_pool_discharge(clv_pool *p, size_t bytes) {
  clv_account_discharge(p->account, CLV_QUOTA_BYTES, bytes);
}

void clv_pool_free_unused_tensors(clv_pool *p) {
  pthread_mutex_lock(&p->lock);
  free_unused_tensors(p);
  pthread_mutex_unlock(&p->lock);
}

/* ---- allocating tensors ---------------------------------------------------------------------- */

static clv_code reserve_tensor_entry(clv_pool *p, clv_err *err) {
  if (p->n_tensors < p->cap_tensors) return CLV_OK;
  size_t cap = p->cap_tensors ? 2 * p->cap_tensors : 16;
  clv_tensor **new_tensors = realloc(p->tensors, cap * sizeof *new_tensors);
  if (!new_tensors) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  p->tensors = new_tensors;
  p->cap_tensors = cap;
  return CLV_OK;
}

/* Charges a tensor of `bytes`. False: the quota *ret_quota of the account *ret_exceeded is
 * exceeded. */
static bool charge_tensor(clv_pool *p, size_t bytes, clv_account **ret_exceeded,
                          clv_quota *ret_quota) {
  *ret_quota = CLV_QUOTA_TENSORS;
  *ret_exceeded = clv_account_try_charge(p->account, CLV_QUOTA_TENSORS, 1);
  if (*ret_exceeded) return false;
  *ret_quota = CLV_QUOTA_BYTES;
  *ret_exceeded = clv_account_try_charge(p->account, CLV_QUOTA_BYTES, bytes);
  if (*ret_exceeded) clv_account_discharge(p->account, CLV_QUOTA_TENSORS, 1);
  return !*ret_exceeded;
}

/* Allocates one more tensor. The caller holds the lock. */
static clv_code add_tensor(clv_pool *p, clv_dtype dtype, const clv_shape *shape, size_t bytes,
                           clv_tensor **ret, clv_account **ret_exceeded, clv_err *err) {
  clv_quota q;
  CLV_TRY(reserve_tensor_entry(p, err));
  if (!charge_tensor(p, bytes, ret_exceeded, &q))
    return clv_account_fail_exceeded(*ret_exceeded, q, q == CLV_QUOTA_BYTES ? bytes : 1, err);
  clv_code code = clv_tensor_new(dtype, shape, &p->tensors[p->n_tensors], err);
  if (code != CLV_OK) {
    clv_account_discharge(p->account, CLV_QUOTA_BYTES, bytes);
    clv_account_discharge(p->account, CLV_QUOTA_TENSORS, 1);
    return code;
  }
  *ret = clv_tensor_ref(p->tensors[p->n_tensors++]);
  return CLV_OK;
}

static clv_code find_or_add_tensor(clv_pool *p, clv_dtype dtype, const clv_shape *shape,
                                   size_t bytes, clv_tensor **ret, clv_account **ret_exceeded,
                                   clv_err *err) {
  clv_code code = CLV_OK;
  *ret_exceeded = NULL;
  pthread_mutex_lock(&p->lock);
  clv_tensor *t = find_unused_tensor(p, dtype, shape, bytes);
  if (t)
    *ret = t;
  else
    code = add_tensor(p, dtype, shape, bytes, ret, ret_exceeded, err);
  pthread_mutex_unlock(&p->lock);
  return code;
}

clv_code clv_pool_alloc_tensor(clv_pool *p, clv_dtype dtype, const clv_shape *shape,
                               clv_tensor **ret, clv_err *err) {
  clv_account *exceeded;
  size_t bytes;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  clv_code code = find_or_add_tensor(p, dtype, shape, bytes, ret, &exceeded, err);
  if (!exceeded) return code;
  free_unused_tensors_below(exceeded);
  return find_or_add_tensor(p, dtype, shape, bytes, ret, &exceeded, err);
}

clv_code clv_pool_convert_tensor(clv_pool *pool, const clv_tensor *from, clv_dtype dtype,
                                 clv_tensor **ret, clv_err *err) {
  CLV_TRY(clv_pool_alloc_tensor(pool, dtype, &from->shape, ret, err));
  if (dtype == CLV_BF16)
    clv_bf16_narrow((*ret)->data, from->data, from->n);
  else
    clv_bf16_widen((*ret)->data, from->data, from->n);
  return CLV_OK;
}

clv_code clv_pool_reserve_tensors(clv_pool *p, clv_dtype dtype, const clv_shape *shape, uint32_t n,
                                  clv_err *err) {
  CLV_AUTO(clv_freep) clv_tensor **held = NULL;
  clv_code code = CLV_OK;
  uint32_t n_held = 0;
  CLV_TRY(clv_alloc(n, sizeof *held, &held, err));
  while (n_held < n &&
         (code = clv_pool_alloc_tensor(p, dtype, shape, &held[n_held], err)) == CLV_OK)
    n_held++;
  while (n_held) clv_tensor_unref(held[--n_held]);
  return code;
}

/* ---- free list of records -------------------------------------------------------------------- */

void *clv_pool_take_free_record(clv_pool *p) {
  pthread_mutex_lock(&p->lock);
  void *record = p->free_records ? pop_free_record(p) : NULL;
  p->n_free_records -= record != NULL;
  pthread_mutex_unlock(&p->lock);
  return record;
}

void clv_pool_recycle_record(clv_pool *p, void *record) {
  pthread_mutex_lock(&p->lock);
  bool has_room = p->n_free_records < MAX_FREE_RECORDS;
  if (has_room) {
    clv_free_list_push(&p->free_records, record, malloc_usable_size(record));
    p->n_free_records++;
  }
  pthread_mutex_unlock(&p->lock);
  if (!has_room) free(record);
}
