/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of artifacts in memory. A tensor has pages of its own: they are filled, made read-only,
 * and unmapped when the last who took it lets go. So a write to them from anywhere ends the process
 * instead of changing what somebody else computes with.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "worker/store/store.h"

typedef struct base {
  clv_bases *of;
  struct base *next;
  char *owner, *name;
  clv_sha256 artifact;
  clv_dtype dtype;
  clv_shape shape;
  void *pages;
  size_t bytes;   /* of the pages */
  uint32_t users; /* tensors that are out, and who waits or fills; under lock, as the next */
  enum { EMPTY, FILLING, FULL } state;
} base;

struct clv_bases {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* some base is full, or is not being filled any more */
  base *first;
  size_t bytes;
};

clv_code clv_bases_new(clv_bases **ret, clv_err *err) {
  clv_bases *b;
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->changed, NULL);
  *ret = b;
  return CLV_OK;
}

void clv_bases_free(clv_bases *b) {
  if (!b) return;
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->changed);
  free(b);
}

size_t clv_bases_bytes(clv_bases *b) {
  pthread_mutex_lock(&b->lock);
  size_t bytes = b->bytes;
  pthread_mutex_unlock(&b->lock);
  return bytes;
}

/* ---- one ------------------------------------------------------------------------------------- */

static void base_free(base *x) {
  if (x->pages) munmap(x->pages, x->bytes);
  free(x->owner);
  free(x->name);
  free(x);
}

static void base_freep(base **x) {
  if (*x) base_free(*x);
}

static clv_code map_pages(base *x, clv_err *err) {
  CLV_TRY(clv_shape_bytes(&x->shape, x->dtype, &x->bytes, err));
  x->bytes = CLV_MAX(x->bytes, (size_t)1);
  void *at = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", x->bytes);
  x->pages = at;
  return CLV_OK;
}

static clv_code base_new(clv_bases *of, const clv_base_key *key, base **ret, clv_err *err) {
  CLV_AUTO(base_freep) base *x = NULL;
  CLV_TRY(clv_alloc(1, sizeof *x, &x, err));
  x->of = of;
  x->artifact = key->artifact;
  x->dtype = key->dtype;
  x->shape = key->shape;
  CLV_TRY(clv_strdup(key->owner, &x->owner, err));
  CLV_TRY(clv_strdup(key->name, &x->name, err));
  CLV_TRY(map_pages(x, err));
  *ret = clv_steal(&x);
  return CLV_OK;
}

/* Under the lock, as all that follow; the last who leaves takes it along. */
static void leave(base *x) {
  clv_bases *b = x->of;
  base **at = &b->first;
  if (--x->users) return;
  while (*at != x) at = &(*at)->next;
  *at = x->next;
  b->bytes -= x->bytes;
  base_free(x);
}

static bool is_meant(const base *x, const clv_base_key *key) {
  return x->dtype == key->dtype && clv_shape_equal(&x->shape, &key->shape) &&
         memcmp(&x->artifact, &key->artifact, sizeof x->artifact) == 0 &&
         strcmp(x->name, key->name) == 0 && strcmp(x->owner, key->owner) == 0;
}

static clv_code enter(clv_bases *b, const clv_base_key *key, base **ret, clv_err *err) {
  base *x = b->first;
  while (x && !is_meant(x, key)) x = x->next;
  if (!x) {
    CLV_TRY(base_new(b, key, &x, err));
    x->next = b->first;
    b->first = x;
    b->bytes += x->bytes;
  }
  x->users++;
  *ret = x;
  return CLV_OK;
}

/* ---- filling --------------------------------------------------------------------------------- */

enum { WAKE_EVERY_MS = 20 };

static void wait_a_while(clv_bases *b) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += WAKE_EVERY_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  (void)pthread_cond_timedwait(&b->changed, &b->lock, &until);
}

/* Without the lock, by one at a time. */
static clv_code fill_pages(base *x, clv_base_fill *fill, void *user, clv_err *err) {
  CLV_TRY(fill(user, x->pages, err));
  if (mprotect(x->pages, x->bytes, PROT_READ) == 0) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "memory cannot be made read-only");
}

static clv_code fill_it(base *x, clv_base_fill *fill, void *user, clv_err *err) {
  clv_bases *b = x->of;
  x->state = FILLING;
  pthread_mutex_unlock(&b->lock);
  clv_code code = fill_pages(x, fill, user, err);
  pthread_mutex_lock(&b->lock);
  x->state = code == CLV_OK ? FULL : EMPTY;
  pthread_cond_broadcast(&b->changed);
  return code;
}

static clv_code make_full(base *x, const clv_waiter *waiter, clv_base_fill *fill, void *user,
                          clv_err *err) {
  while (x->state == FILLING) {
    CLV_TRY(clv_waiter_check(waiter, err));
    wait_a_while(x->of);
  }
  return x->state == FULL ? CLV_OK : fill_it(x, fill, user, err);
}

static void let_go(void *owner) {
  base *x = owner;
  clv_bases *b = x->of;
  pthread_mutex_lock(&b->lock);
  leave(x);
  pthread_mutex_unlock(&b->lock);
}

static clv_code take(clv_bases *b, const clv_base_key *key, const clv_waiter *waiter,
                     clv_base_fill *fill, void *user, clv_tensor **ret, clv_err *err) {
  base *x;
  CLV_TRY(enter(b, key, &x, err));
  clv_code code = make_full(x, waiter, fill, user, err);
  if (code == CLV_OK) code = clv_tensor_wrap(x->dtype, &x->shape, x->pages, let_go, x, ret, err);
  if (code != CLV_OK) leave(x);
  return code;
}

clv_code clv_bases_take(clv_bases *b, const clv_base_key *key, const clv_waiter *waiter,
                        clv_base_fill *fill, void *user, clv_tensor **ret, clv_err *err) {
  pthread_mutex_lock(&b->lock);
  clv_code code = take(b, key, waiter, fill, user, ret, err);
  pthread_mutex_unlock(&b->lock);
  return code;
}
