/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of artifacts in memory. A tensor in host memory has pages of its own: they are filled,
 * made read-only, and unmapped with the last user. So a stray write ends the process, and cannot
 * change the weights of another session.
 *
 * A tensor on a device is in memory of that device's own backend, and is copied there in pieces.
 * The store returns it only after the copy is complete. Users wait for their own work before they
 * drop it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "worker/store/store.h"

typedef struct shared_tensor {
  clv_shared_tensors *owner_table;
  struct shared_tensor *next;
  char *owner, *name;
  clv_sha256 artifact;
  clv_dtype dtype;
  clv_shape shape;
  const clv_backend *backend; /* backend of the device; NULL: pages of the host */
  void *data;
  size_t bytes; /* size of the memory at `data` */
  /* number of tensors that use the memory, plus threads that fill it or wait until it is filled;
   * clv_shared_tensors.lock guards n_users and `state` */
  uint32_t n_users;
  enum { EMPTY, FILLING, FULL } state;
} shared_tensor;

struct clv_shared_tensors {
  pthread_mutex_t lock;
  pthread_cond_t fill_ended;   /* signalled when a tensor is filled, or its filling has failed */
  pthread_mutex_t device_lock; /* held while backends of devices are used; taken after `lock` */
  shared_tensor *first;
  size_t bytes;
};

clv_code clv_shared_tensors_new(clv_shared_tensors **ret, clv_err *err) {
  clv_shared_tensors *b;
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->fill_ended, NULL);
  pthread_mutex_init(&b->device_lock, NULL);
  *ret = b;
  return CLV_OK;
}

void clv_shared_tensors_free(clv_shared_tensors *b) {
  if (!b) return;
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->fill_ended);
  pthread_mutex_destroy(&b->device_lock);
  free(b);
}

size_t clv_shared_tensors_bytes(clv_shared_tensors *b) {
  pthread_mutex_lock(&b->lock);
  size_t bytes = b->bytes;
  pthread_mutex_unlock(&b->lock);
  return bytes;
}

/* ---- memory of a shared tensor --------------------------------------------------------------- */

static clv_code map_pages(shared_tensor *x, clv_err *err) {
  void *data = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", x->bytes);
  x->data = data;
  return CLV_OK;
}

static clv_code alloc_device_memory(shared_tensor *x, clv_err *err) {
  pthread_mutex_lock(&x->owner_table->device_lock);
  clv_code code = clv_backend_allocate(x->backend, x->bytes, &x->data, err);
  pthread_mutex_unlock(&x->owner_table->device_lock);
  return code;
}

/* Zeroes memory of a device before it is freed, so that the next user cannot read the weights. If
 * the device fails, the weights are lost anyway. */
static void free_device_memory(shared_tensor *x) {
  clv_err why;
  pthread_mutex_lock(&x->owner_table->device_lock);
  (void)!clv_backend_fill(x->backend, x->data, 0, x->bytes, &why);
  clv_backend_free_memory(x->backend, x->data);
  (void)!clv_backend_finish(x->backend, &why);
  pthread_mutex_unlock(&x->owner_table->device_lock);
}

static clv_code alloc_memory(shared_tensor *x, clv_err *err) {
  CLV_TRY(clv_shape_bytes(&x->shape, x->dtype, &x->bytes, err));
  x->bytes = CLV_MAX(x->bytes, (size_t)1);
  return (x->backend ? alloc_device_memory : map_pages)(x, err);
}

/* ---- finding and freeing a shared tensor ----------------------------------------------------- */

static void shared_tensor_free(shared_tensor *x) {
  if (x->data && x->backend)
    free_device_memory(x);
  else if (x->data)
    munmap(x->data, x->bytes);
  free(x->owner);
  free(x->name);
  free(x);
}

static void shared_tensor_freep(shared_tensor **x) {
  if (*x) shared_tensor_free(*x);
}

static clv_code shared_tensor_new(clv_shared_tensors *owner_table, const clv_shared_tensor_key *key,
                                  shared_tensor **ret, clv_err *err) {
  CLV_AUTO(shared_tensor_freep) shared_tensor *x = NULL;
  CLV_TRY(clv_alloc(1, sizeof *x, &x, err));
  x->owner_table = owner_table;
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

/* Drops a user. Caller holds the lock. True: it was the last user, and the caller frees the tensor
 * after it has released the lock, because a device may block. */
static bool drop_user(shared_tensor *x) {
  clv_shared_tensors *b = x->owner_table;
  shared_tensor **at = &b->first;
  if (--x->n_users) return false;
  while (*at != x) at = &(*at)->next;
  *at = x->next;
  b->bytes -= x->bytes;
  return true;
}

static bool has_key(const shared_tensor *x, const clv_shared_tensor_key *key) {
  return x->backend == key->backend && x->dtype == key->dtype &&
         clv_shape_equal(&x->shape, &key->shape) &&
         memcmp(&x->artifact, &key->artifact, sizeof x->artifact) == 0 &&
         strcmp(x->name, key->name) == 0 && strcmp(x->owner, key->owner) == 0;
}

static clv_code find_or_add_shared_tensor(clv_shared_tensors *b, const clv_shared_tensor_key *key,
                                          shared_tensor **ret, clv_err *err) {
  shared_tensor *x = b->first;
  while (x && !has_key(x, key)) x = x->next;
  if (!x) {
    CLV_TRY(shared_tensor_new(b, key, &x, err));
    x->next = b->first;
    b->first = x;
    b->bytes += x->bytes;
  }
  x->n_users++;
  *ret = x;
  return CLV_OK;
}

/* ---- filling a shared tensor ----------------------------------------------------------------- */

enum { WAKE_INTERVAL_MS = 20 };

static void wait_for_fill(clv_shared_tensors *b) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += WAKE_INTERVAL_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  (void)pthread_cond_timedwait(&b->fill_ended, &b->lock, &until);
}

static clv_code copy_part_to_device(const shared_tensor *x, void *to, const void *part,
                                    size_t bytes, clv_err *err) {
  pthread_mutex_lock(&x->owner_table->device_lock);
  clv_code code = clv_backend_put(x->backend, to, part, bytes, err);
  if (code == CLV_OK) code = clv_backend_finish(x->backend, err);
  pthread_mutex_unlock(&x->owner_table->device_lock);
  return code;
}

static clv_code fill_parts(const shared_tensor *x, const clv_cancel_hook *waiter,
                           clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  CLV_AUTO(clv_freep) void *part = NULL;
  size_t size = clv_dtype_size(x->dtype), max_elements = CLV_SHARED_TENSOR_CHUNK_BYTES / size, n;
  CLV_TRY(clv_shape_numel(&x->shape, &n, err));
  if (x->backend) CLV_TRY(clv_alloc_aligned(CLV_SHARED_TENSOR_CHUNK_BYTES, &part, err));
  for (size_t first = 0; first < n; first += max_elements) {
    size_t n_elements = CLV_MIN(n - first, max_elements);
    char *to = (char *)x->data + first * size;
    CLV_TRY(clv_cancel_hook_check(waiter, err));
    CLV_TRY(fill(user, first, n_elements, part ? part : to, err));
    if (part) CLV_TRY(copy_part_to_device(x, to, part, n_elements * size, err));
  }
  return CLV_OK;
}

/* Fills a shared tensor. Called without the lock, by one thread at a time. */
static clv_code fill_memory(const shared_tensor *x, const clv_cancel_hook *waiter,
                            clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  CLV_TRY(fill_parts(x, waiter, fill, user, err));
  if (x->backend || mprotect(x->data, x->bytes, PROT_READ) == 0) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL,
                  "mprotect cannot make the memory of a shared tensor read-only");
}

static clv_code fill_shared_tensor(shared_tensor *x, const clv_cancel_hook *waiter,
                                   clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  clv_shared_tensors *b = x->owner_table;
  x->state = FILLING;
  pthread_mutex_unlock(&b->lock);
  clv_code code = fill_memory(x, waiter, fill, user, err);
  pthread_mutex_lock(&b->lock);
  x->state = code == CLV_OK ? FULL : EMPTY;
  pthread_cond_broadcast(&b->fill_ended);
  return code;
}

static clv_code ensure_filled(shared_tensor *x, const clv_cancel_hook *waiter,
                              clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  while (x->state == FILLING) {
    CLV_TRY(clv_cancel_hook_check(waiter, err));
    wait_for_fill(x->owner_table);
  }
  return x->state == FULL ? CLV_OK : fill_shared_tensor(x, waiter, fill, user, err);
}

static void release_base(void *owner) {
  shared_tensor *x = owner;
  clv_shared_tensors *b = x->owner_table;
  pthread_mutex_lock(&b->lock);
  bool is_last = drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) shared_tensor_free(x);
}

static clv_code make_tensor(shared_tensor *x, clv_tensor **ret, clv_err *err) {
  CLV_TRY(clv_tensor_wrap(x->dtype, &x->shape, x->data, release_base, x, ret, err));
  (*ret)->device = x->backend;
  return CLV_OK;
}

clv_code clv_shared_tensors_acquire(clv_shared_tensors *b, const clv_shared_tensor_key *key,
                                    const clv_cancel_hook *waiter, clv_shared_tensor_fill *fill,
                                    void *user, clv_tensor **ret, clv_err *err) {
  shared_tensor *x = NULL;
  pthread_mutex_lock(&b->lock);
  clv_code code = find_or_add_shared_tensor(b, key, &x, err);
  if (code == CLV_OK) code = ensure_filled(x, waiter, fill, user, err);
  if (code == CLV_OK) code = make_tensor(x, ret, err);
  bool is_last = code != CLV_OK && x && drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) shared_tensor_free(x);
  return code;
}
