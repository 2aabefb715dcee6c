/* SPDX-License-Identifier: Apache-2.0
 *
 * fair: limits and shares of resources. *Accounts* hold the quotas of sessions, identities and a
 * whole worker. *Pools* and *slabs* allocate memory that is charged to accounts. The *scheduler*
 * shares the cores among the nodes of a process. The folder uses no network and no clock of its
 * own. A refused request returns CLV_EXHAUSTED with a text for the peer that made it. Everything
 * here is thread-safe unless its comment says otherwise; a slab is for one thread at a time.
 */
#ifndef CLEAVE_FAIR_H
#define CLEAVE_FAIR_H

#include "common/base/tensor/tensor.h"

/* ---- accounts ----------------------------------------------------------------------------------
 *
 * An account counts what is used of each quota by one session, by all sessions of an identity or by
 * a whole worker. A charge to an account is charged to its parents as well. Thread-safe; a charge
 * is an atomic addition. */

typedef enum clv_quota {
  CLV_QUOTA_SESSIONS,
  CLV_QUOTA_BYTES,   /* bytes of tensors (free ones in pools too), modules and records */
  CLV_QUOTA_TENSORS, /* number of tensors, free ones in pools too */
  CLV_QUOTA_CALLS,   /* calls of contexts that wait or run */
  CLV_N_QUOTAS
} clv_quota;

typedef struct clv_account clv_account;

typedef struct clv_account_options {
  clv_account *parent; /* parent account, of which this one takes a reference; NULL: none */
  /* words that name the owner in messages; static text, as are limit_keys */
  const char *owner_in_messages;
  uint64_t limits[CLV_N_QUOTAS]; /* limit of each quota; 0: this account sets none */
  /* key of worker.yaml that raises the limit of each quota; NULL: none */
  const char *limit_keys[CLV_N_QUOTAS];
  bool is_shared;         /* used by several identities, so errors omit the usage */
  bool reports_remaining; /* errors of a shared account report what is left */
} clv_account_options;

clv_code clv_account_new(const clv_account_options *options, clv_account **ret,
                         clv_err *err) CLV_USE_RESULT;
clv_account *clv_account_ref(clv_account *a);
/* Drops a reference. The last one frees the account and discharges from its parents what is still
 * charged to it. NULL is allowed. */
void clv_account_unref(clv_account *a);
void clv_account_unrefp(clv_account **a); /* sets *a to NULL */

/* Charges `n` to the account and all its parents, or to none of them. CLV_EXHAUSTED names the quota
 * that is exceeded, its usage and its key. */
clv_code clv_account_charge(clv_account *a, clv_quota q, uint64_t n, clv_err *err) CLV_USE_RESULT;
void clv_account_discharge(clv_account *a, clv_quota q, uint64_t n);
uint64_t clv_account_usage(const clv_account *a, clv_quota q);
uint64_t clv_account_peak_usage(const clv_account *a, clv_quota q); /* the highest usage so far */
/* limit of this account alone; 0: none */
uint64_t clv_account_own_limit(const clv_account *a, clv_quota q);
/* Sets the limit; 0: none. Usage over a new limit stays charged. Thread-safe. */
void clv_account_set_limit(clv_account *a, clv_quota q, uint64_t limit);

/* ---- pools of tensors ------------------------------------------------------------------------ */

/* Tensors of one session, reused by size, so that no memory is allocated after warm-up. Charges an
 * account. When a quota is exceeded, the pool first frees the unused tensors of all pools below the
 * account that is exceeded. */
typedef struct clv_pool clv_pool;

/* Makes a pool with an account of its own. */
clv_code clv_pool_new(size_t max_bytes, size_t max_tensors, clv_pool **ret,
                      clv_err *err) CLV_USE_RESULT;
/* Makes a pool that charges `account`, and takes a reference to it. No other pool may charge bytes
 * or tensors to that account. */
clv_code clv_pool_new_for_account(clv_account *account, clv_pool **ret,
                                  clv_err *err) CLV_USE_RESULT;
clv_pool *clv_pool_ref(clv_pool *pool);
/* The pool is freed with the last reference; each packet and the caller hold one. NULL is
 * allowed. */
void clv_pool_unref(clv_pool *pool);
/* Returns a tensor with one reference for the caller, who releases it as any other. CLV_EXHAUSTED:
 * over the quota. */
clv_code clv_pool_alloc_tensor(clv_pool *pool, clv_dtype dtype, const clv_shape *shape,
                               clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Makes an f32 tensor of a bf16 one, or a bf16 tensor of an f32 one, in host memory. */
clv_code clv_pool_convert_tensor(clv_pool *pool, const clv_tensor *from, clv_dtype dtype,
                                 clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* bytes charged now: tensors, unused ones too, and modules */
size_t clv_pool_charged_bytes(const clv_pool *pool);
clv_account *clv_pool_account(const clv_pool *pool);

/* Call from main before the first thread. Keeps freed memory up to the size of the transport's
 * buffers in the process. Otherwise malloc unmaps, maps and clears such a buffer for each
 * tensor. Gives malloc two arenas, unless MALLOC_ARENA_MAX or GLIBC_TUNABLES limits them. */
void clv_tune_malloc(void);

/* Preallocates n tensors of a size, so that a step allocates none. Their memory is first touched
 * when it is used. */
clv_code clv_pool_reserve_tensors(clv_pool *p, clv_dtype dtype, const clv_shape *shape, uint32_t n,
                                  clv_err *err) CLV_USE_RESULT;

/* Charges memory of the session outside the pool to the pool's account, after unused tensors were
 * freed if needed. CLV_EXHAUSTED: over the quota. */
clv_code clv_pool_charge(clv_pool *p, size_t bytes, clv_err *err) CLV_USE_RESULT;
void clv_pool_discharge(clv_pool *p, size_t bytes);
void clv_pool_free_unused_tensors(clv_pool *p); /* frees the unused tensors */

/* Takes a record from the pool's free list of records; packets are kept there. NULL: the list is
 * empty. All records have one size. */
void *clv_pool_take_free_record(clv_pool *pool);
/* Returns a record to the free list, or frees it if the list is full. clv_alloc allocated the
 * record. */
void clv_pool_recycle_record(clv_pool *pool, void *record);

/* ---- slabs of records ------------------------------------------------------------------------ */

/* Allocator of records of one size. Takes them in blocks and reuses them. Blocks are charged to the
 * account of a pool. One thread at a time. */
typedef struct clv_slab {
  size_t record_size;
  uint32_t n_records_used, max_records;
  uint32_t records_per_block; /* records in each block; 0: 64 */
  const char *record_name;    /* plural name of the records, for messages; static text */
  void *free_list, *blocks;
} clv_slab;

/* Returns an empty slab. size: bytes of a record; limit: number of records in use at once;
 * record_name: static text. */
clv_slab clv_slab_make(size_t size, uint32_t limit, const char *record_name);
/* Returns a zeroed record. CLV_EXHAUSTED: over max_records, over the quota or out of memory. */
clv_code clv_slab_alloc(clv_pool *pool, clv_slab *s, void *ret_pp, clv_err *err) CLV_USE_RESULT;
void clv_slab_recycle(clv_slab *s, void *record); /* returns a record to the slab */
/* Frees the blocks of the slab, even if records are in use. The charge of the blocks ends with the
 * session's account. NULL is allowed. */
void clv_slab_clear(clv_slab *s);

/* ---- shares of the cores ------------------------------------------------------------------------
 *
 * The nodes of a process share its cores by weighted fair queueing: at most as many threads compute
 * at once as there are cores. Each node has a share, and each share belongs to a tenant. Of the
 * waiting shares, the one with the least virtual time is scheduled: first the tenants are compared,
 * then the shares of that tenant. Virtual time is the computed time divided by the weight. A tenant
 * or share does not save up time while it is idle. A scheduled share has a time slice. The slice
 * ends when the share has nothing to do, or after slice_ns if another share has computed less. */

typedef struct clv_fair_scheduler clv_fair_scheduler;
typedef struct clv_share clv_share;

typedef struct clv_fair_scheduler_options {
  unsigned n_cores;
  size_t n_tenants;
  const uint64_t *tenant_weights; /* weight of each tenant, [n_tenants]; copied */
  uint64_t slice_ns;              /* least length of a slice while others wait */
  clv_clock clock;                /* measures the slices; zero: the system's monotonic clock */
} clv_fair_scheduler_options;

/* Makes a scheduler. CLV_INVALID: n_cores is 0. */
clv_code clv_fair_scheduler_new(const clv_fair_scheduler_options *options, clv_fair_scheduler **ret,
                                clv_err *err) CLV_USE_RESULT;
/* clv_fair_scheduler_add_tenant adds a tenant, with the next number. clv_fair_scheduler_set_weight
 * changes the weight of a tenant for what it computes from then on. */
clv_code clv_fair_scheduler_add_tenant(clv_fair_scheduler *t, uint64_t weight, size_t *ret_tenant,
                                       clv_err *err) CLV_USE_RESULT;
void clv_fair_scheduler_set_weight(clv_fair_scheduler *t, size_t tenant, uint64_t weight);
/* call after all shares are freed; NULL is allowed */
void clv_fair_scheduler_free(clv_fair_scheduler *t);

/* Makes a share of a tenant. CLV_INVALID: there is no such tenant. */
clv_code clv_share_new(clv_fair_scheduler *t, size_t tenant, clv_share **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_share_free(clv_share *s); /* call when no thread uses the share; NULL is allowed */

/* BLOCKS until the share is scheduled with `threads` threads (at most the number of cores). False:
 * the share was stopped. Called by the share's own thread before each piece of work, without locks.
 * Cheap while no other share waits. s NULL: returns true at once. */
bool clv_share_acquire_cores(clv_share *s, unsigned threads);
/* True if clv_share_acquire_cores with as many threads as last time would block now. For the
 * share's own thread. */
bool clv_share_would_block(const clv_share *s);
void clv_share_yield(clv_share *s); /* ends the slice if another share is due; does not block */
/* ends the slice; call before the thread waits for anything else */
void clv_share_release_cores(clv_share *s);

/* Subtracts `ns` from the time charged to the current slice, because the share's thread slept and
 * did not compute. At most what the slice was charged. For the share's own thread. */
void clv_share_refund_time(clv_share *s, uint64_t ns);

/* Stops the share: it is not scheduled again, and clv_share_acquire_cores returns false.
 * Thread-safe. NULL is allowed. */
void clv_share_stop(clv_share *s);

typedef struct clv_share_counts {
  /* wall times up to now, including the current wait or slice; computed_ns excludes refunded time
   * (clv_share_refund_time) */
  uint64_t waited_ns, computed_ns;
  uint64_t n_slices; /* slices started so far */
} clv_share_counts;
void clv_share_get_counts(clv_share *s, clv_share_counts *ret);

#endif
