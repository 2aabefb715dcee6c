/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of artifacts in memory. A tensor in host memory has pages of its own: they are filled,
 * made read-only, and unmapped with the last user. So a stray write ends the process, and cannot
 * change the weights of another session.
 *
 * A tensor on a device is in memory of that device's own backend, and is copied there in pieces.
 * It is returned only after the copy is complete. Users wait for their own work before they drop
 * it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "worker/store/store.h"

typedef struct base {
  clv_bases *bases;
  struct base *next;
  char *owner, *name;
  clv_sha256 artifact;
  clv_dtype dtype;
  clv_shape shape;
  const clv_backend *backend; /* backend of the device; NULL: pages of the host */
  void *data;
  size_t bytes; /* size of the memory at `data` */
  /* number of tensors that use the memory, plus threads that fill it or wait until it is filled;
   * clv_bases.lock guards n_users and `state` */
  uint32_t n_users;
  enum { EMPTY, FILLING, FULL } state;
} base;

struct clv_bases {
  pthread_mutex_t lock;
  pthread_cond_t fill_ended;   /* signalled when a base is filled, or its filling has failed */
  pthread_mutex_t device_lock; /* held while backends of devices are used; taken after `lock` */
  base *first;
  size_t bytes;
};

clv_code clv_bases_new(clv_bases **ret, clv_err *err) {
  clv_bases *b;
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->fill_ended, NULL);
  pthread_mutex_init(&b->device_lock, NULL);
  *ret = b;
  return CLV_OK;
}

void clv_bases_free(clv_bases *b) {
  if (!b) return;
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->fill_ended);
  pthread_mutex_destroy(&b->device_lock);
  free(b);
}

size_t clv_bases_bytes(clv_bases *b) {
  pthread_mutex_lock(&b->lock);
  size_t bytes = b->bytes;
  pthread_mutex_unlock(&b->lock);
  return bytes;
}

/* ---- memory of a base ------------------------------------------------------------------------ */

static clv_code map_pages(base *x, clv_err *err) {
  void *data = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", x->bytes);
  x->data = data;
  return CLV_OK;
}

static clv_code alloc_device_memory(base *x, clv_err *err) {
  pthread_mutex_lock(&x->bases->device_lock);
  clv_code code = clv_backend_allocate(x->backend, x->bytes, &x->data, err);
  pthread_mutex_unlock(&x->bases->device_lock);
  return code;
}

/* Zeroes memory of a device before it is freed, so that the next user cannot read the weights. If
 * the device fails, the weights are lost anyway. */
static void free_device_memory(base *x) {
  clv_err why;
  pthread_mutex_lock(&x->bases->device_lock);
  (void)!clv_backend_fill(x->backend, x->data, 0, x->bytes, &why);
  clv_backend_free_memory(x->backend, x->data);
  (void)!clv_backend_finish(x->backend, &why);
  pthread_mutex_unlock(&x->bases->device_lock);
}

static clv_code alloc_memory(base *x, clv_err *err) {
  CLV_TRY(clv_shape_bytes(&x->shape, x->dtype, &x->bytes, err));
  x->bytes = CLV_MAX(x->bytes, (size_t)1);
  return (x->backend ? alloc_device_memory : map_pages)(x, err);
}

/* ---- finding and freeing a base -------------------------------------------------------------- */

static void base_free(base *x) {
  if (x->data && x->backend)
    free_device_memory(x);
  else if (x->data)
    munmap(x->data, x->bytes);
  free(x->owner);
  free(x->name);
  free(x);
}

static void base_freep(base **x) {
  if (*x) base_free(*x);
}

static clv_code base_new(clv_bases *bases, const clv_base_key *key, base **ret, clv_err *err) {
  CLV_AUTO(base_freep) base *x = NULL;
  CLV_TRY(clv_alloc(1, sizeof *x, &x, err));
  x->bases = bases;
  x->artifact = key->artifact;
  x->dtype = key->dtype;
  x->shape = key->shape;
  x->backend = key->backend;
  CLV_TRY(clv_strdup(key->owner, &x->owner, err));
  CLV_TRY(clv_strdup(key->name, &x->name, err));
  CLV_TRY(alloc_memory(x, err));
  *ret = clv_steal(&x);
  return CLV_OK;
}

/* Drops a user. Caller holds the lock. True: it was the last user, and the caller frees the base
 * after it has released the lock, because a device may block. */
static bool drop_user(base *x) {
  clv_bases *b = x->bases;
  base **at = &b->first;
  if (--x->n_users) return false;
  while (*at != x) at = &(*at)->next;
  *at = x->next;
  b->bytes -= x->bytes;
  return true;
}

static bool has_key(const base *x, const clv_base_key *key) {
  return x->backend == key->backend && x->dtype == key->dtype &&
         clv_shape_equal(&x->shape, &key->shape) &&
         memcmp(&x->artifact, &key->artifact, sizeof x->artifact) == 0 &&
         strcmp(x->name, key->name) == 0 && strcmp(x->owner, key->owner) == 0;
}

static clv_code find_or_add_base(clv_bases *b, const clv_base_key *key, base **ret, clv_err *err) {
  base *x = b->first;
  while (x && !has_key(x, key)) x = x->next;
  if (!x) {
    CLV_TRY(base_new(b, key, &x, err));
    x->next = b->first;
    b->first = x;
    b->bytes += x->bytes;
  }
  x->n_users++;
  *ret = x;
  return CLV_OK;
}

/* ---- filling --------------------------------------------------------------------------------- */

enum { WAKE_INTERVAL_MS = 20 };

static void wait_for_fill(clv_bases *b) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += WAKE_INTERVAL_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  (void)pthread_cond_timedwait(&b->fill_ended, &b->lock, &until);
}

static clv_code copy_part_to_device(const base *x, void *to, const void *part, size_t bytes,
                                    clv_err *err) {
  pthread_mutex_lock(&x->bases->device_lock);
  clv_code code = clv_backend_put(x->backend, to, part, bytes, err);
  if (code == CLV_OK) code = clv_backend_finish(x->backend, err);
  pthread_mutex_unlock(&x->bases->device_lock);
  return code;
}

static clv_code fill_parts(const base *x, const clv_cancel_hook *waiter, clv_base_fill *fill,
                           void *user, clv_err *err) {
  CLV_AUTO(clv_freep) void *part = NULL;
  size_t size = clv_dtype_size(x->dtype), max_elements = CLV_BASE_CHUNK_BYTES / size, n;
  CLV_TRY(clv_shape_numel(&x->shape, &n, err));
  if (x->backend) CLV_TRY(clv_alloc_aligned(CLV_BASE_CHUNK_BYTES, &part, err));
  for (size_t first = 0; first < n; first += max_elements) {
    size_t n_elements = CLV_MIN(n - first, max_elements);
    char *to = (char *)x->data + first * size;
    CLV_TRY(clv_cancel_hook_check(waiter, err));
    CLV_TRY(fill(user, first, n_elements, part ? part : to, err));
    if (part) CLV_TRY(copy_part_to_device(x, to, part, n_elements * size, err));
  }
  return CLV_OK;
}

/* Fills a base. Called without the lock, by one thread at a time. */
static clv_code fill_memory(const base *x, const clv_cancel_hook *waiter, clv_base_fill *fill,
                            void *user, clv_err *err) {
  CLV_TRY(fill_parts(x, waiter, fill, user, err));
  if (x->backend || mprotect(x->data, x->bytes, PROT_READ) == 0) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL,
                  "mprotect cannot make the memory of a shared tensor read-only");
}

static clv_code fill_base(base *x, const clv_cancel_hook *waiter, clv_base_fill *fill, void *user,
                          clv_err *err) {
  clv_bases *b = x->bases;
  x->state = FILLING;
  pthread_mutex_unlock(&b->lock);
  clv_code code = fill_memory(x, waiter, fill, user, err);
  pthread_mutex_lock(&b->lock);
  x->state = code == CLV_OK ? FULL : EMPTY;
  pthread_cond_broadcast(&b->fill_ended);
  return code;
}

static clv_code ensure_filled(base *x, const clv_cancel_hook *waiter, clv_base_fill *fill,
                              void *user, clv_err *err) {
  while (x->state == FILLING) {
    CLV_TRY(clv_cancel_hook_check(waiter, err));
    wait_for_fill(x->bases);
  }
  return x->state == FULL ? CLV_OK : fill_base(x, waiter, fill, user, err);
}

static void release_base(void *owner) {
  base *x = owner;
  clv_bases *b = x->bases;
  pthread_mutex_lock(&b->lock);
  bool is_last = drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) base_free(x);
}

static clv_code make_tensor(base *x, clv_tensor **ret, clv_err *err) {
  CLV_TRY(clv_tensor_wrap(x->dtype, &x->shape, x->data, release_base, x, ret, err));
  (*ret)->device = x->backend;
  return CLV_OK;
}

clv_code clv_bases_acquire(clv_bases *b, const clv_base_key *key, const clv_cancel_hook *waiter,
                           clv_base_fill *fill, void *user, clv_tensor **ret, clv_err *err) {
  base *x = NULL;
  pthread_mutex_lock(&b->lock);
  clv_code code = find_or_add_base(b, key, &x, err);
  if (code == CLV_OK) code = ensure_filled(x, waiter, fill, user, err);
  if (code == CLV_OK) code = make_tensor(x, ret, err);
  bool is_last = code != CLV_OK && x && drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) base_free(x);
  return code;
}
