/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of artifacts in memory, which modules share. A tensor in host memory has memory pages of
 * its own. They are filled, made read-only, and unmapped when the last user has dropped the tensor.
 * So a stray write ends the process, and cannot change the weights of another session.
 *
 * A tensor on a device is copied to the device's memory in parts, through a staging buffer.
 * clv_shared_tensors_acquire returns it only after the copy is complete. A user waits for its own
 * device work before it drops the tensor.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "worker/store/store.h"

/* A tensor in memory that modules share. */
typedef struct shared_tensor {
  clv_shared_tensors *table;
  struct shared_tensor *next;
  char *owner, *name; /* as in clv_shared_tensor_key */
  clv_sha256 artifact;
  clv_dtype dtype;
  clv_shape shape;
  /* backend of the device whose memory holds the tensor; NULL: host memory */
  const clv_backend *backend;
  void *data;
  size_t bytes; /* size of the memory at `data` */
  /* number of clv_tensor objects that use the memory, plus the number of threads that fill it or
   * wait until it is filled. clv_shared_tensors.lock guards this field and `state` */
  uint32_t n_users;
  enum { EMPTY, FILLING, FILLED } state;
} shared_tensor;

struct clv_shared_tensors {
  pthread_mutex_t lock; /* guards the list, total_bytes, and n_users and state of each tensor */
  pthread_cond_t fill_ended;   /* signalled when a tensor is filled, or its filling has failed */
  pthread_mutex_t device_lock; /* held while backends of devices are used; taken after `lock` */
  shared_tensor *first_tensor;
  size_t total_bytes;
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
  size_t bytes = b->total_bytes;
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
  pthread_mutex_lock(&x->table->device_lock);
  clv_code code = clv_backend_allocate(x->backend, x->bytes, &x->data, err);
  pthread_mutex_unlock(&x->table->device_lock);
  return code;
}

/* Zeroes memory of a device and frees it, so that the next user of the memory cannot read the
 * weights. Ignores errors, because the memory of a failed device is lost anyway. */
static void free_device_memory(shared_tensor *x) {
  clv_err why;
  pthread_mutex_lock(&x->table->device_lock);
  (void)!clv_backend_fill(x->backend, x->data, 0, x->bytes, &why);
  clv_backend_free_memory(x->backend, x->data);
  (void)!clv_backend_finish(x->backend, &why);
  pthread_mutex_unlock(&x->table->device_lock);
}

static clv_code alloc_tensor_memory(shared_tensor *x, clv_err *err) {
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

static clv_code shared_tensor_new(clv_shared_tensors *table, const clv_shared_tensor_key *key,
                                  shared_tensor **ret, clv_err *err) {
  CLV_AUTO(shared_tensor_freep) shared_tensor *x = NULL;
  CLV_TRY(clv_alloc(1, sizeof *x, &x, err));
  x->table = table;
  x->artifact = key->artifact;
  x->dtype = key->dtype;
  x->shape = key->shape;
  x->backend = key->backend;
  CLV_TRY(clv_strdup(key->owner, &x->owner, err));
  CLV_TRY(clv_strdup(key->name, &x->name, err));
  CLV_TRY(alloc_tensor_memory(x, err));
  *ret = clv_steal(&x);
  return CLV_OK;
}

/* Drops a user of the tensor. True: this was the last user, so the caller must free the tensor,
 * after it has released the lock, because freeing device memory may block. Caller holds the
 * lock. */
static bool drop_user(shared_tensor *x) {
  clv_shared_tensors *b = x->table;
  shared_tensor **at = &b->first_tensor;
  if (--x->n_users) return false;
  while (*at != x) at = &(*at)->next;
  *at = x->next;
  b->total_bytes -= x->bytes;
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
  shared_tensor *x = b->first_tensor;
  while (x && !has_key(x, key)) x = x->next;
  if (!x) {
    CLV_TRY(shared_tensor_new(b, key, &x, err));
    x->next = b->first_tensor;
    b->first_tensor = x;
    b->total_bytes += x->bytes;
  }
  x->n_users++;
  *ret = x;
  return CLV_OK;
}

/* ---- filling a shared tensor ----------------------------------------------------------------- */

/* interval at which a waiting thread checks its cancellation hook */
enum { WAKE_INTERVAL_MS = 20 };

static void wait_for_fill(clv_shared_tensors *b) {
  struct timespec wake_time;
  clock_gettime(CLOCK_REALTIME, &wake_time);
  wake_time.tv_nsec += WAKE_INTERVAL_MS * 1000000L;
  wake_time.tv_sec += wake_time.tv_nsec / 1000000000L;
  wake_time.tv_nsec %= 1000000000L;
  (void)pthread_cond_timedwait(&b->fill_ended, &b->lock, &wake_time);
}

static clv_code copy_part_to_device(const shared_tensor *x, void *to, const void *staging_buffer,
                                    size_t bytes, clv_err *err) {
  pthread_mutex_lock(&x->table->device_lock);
  clv_code code = clv_backend_put(x->backend, to, staging_buffer, bytes, err);
  if (code == CLV_OK) code = clv_backend_finish(x->backend, err);
  pthread_mutex_unlock(&x->table->device_lock);
  return code;
}

static clv_code fill_parts(const shared_tensor *x, const clv_cancel_hook *cancel_hook,
                           clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  CLV_AUTO(clv_freep) void *staging_buffer = NULL;
  size_t element_bytes = clv_dtype_size(x->dtype),
         max_elements = CLV_SHARED_TENSOR_CHUNK_BYTES / element_bytes, n;
  CLV_TRY(clv_shape_numel(&x->shape, &n, err));
  if (x->backend) CLV_TRY(clv_alloc_aligned(CLV_SHARED_TENSOR_CHUNK_BYTES, &staging_buffer, err));
  for (size_t first_element = 0; first_element < n; first_element += max_elements) {
    size_t n_elements = CLV_MIN(n - first_element, max_elements);
    char *to = (char *)x->data + first_element * element_bytes;
    CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
    CLV_TRY(fill(user, first_element, n_elements, staging_buffer ? staging_buffer : to, err));
    if (staging_buffer)
      CLV_TRY(copy_part_to_device(x, to, staging_buffer, n_elements * element_bytes, err));
  }
  return CLV_OK;
}

/* Fills the memory of a shared tensor, and makes pages of the host read-only. Called without the
 * lock, by one thread at a time. */
static clv_code fill_memory(const shared_tensor *x, const clv_cancel_hook *cancel_hook,
                            clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  CLV_TRY(fill_parts(x, cancel_hook, fill, user, err));
  if (x->backend || mprotect(x->data, x->bytes, PROT_READ) == 0) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL,
                  "mprotect cannot make the memory of a shared tensor read-only");
}

/* Fills a shared tensor. Caller holds the lock, which is released while the memory is filled. */
static clv_code fill_shared_tensor(shared_tensor *x, const clv_cancel_hook *cancel_hook,
                                   clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  clv_shared_tensors *b = x->table;
  x->state = FILLING;
  pthread_mutex_unlock(&b->lock);
  clv_code code = fill_memory(x, cancel_hook, fill, user, err);
  pthread_mutex_lock(&b->lock);
  x->state = code == CLV_OK ? FILLED : EMPTY;
  pthread_cond_broadcast(&b->fill_ended);
  return code;
}

/* Waits while another thread fills the tensor, and fills it if it is still empty. Caller holds the
 * lock. */
static clv_code ensure_filled(shared_tensor *x, const clv_cancel_hook *cancel_hook,
                              clv_shared_tensor_fill *fill, void *user, clv_err *err) {
  while (x->state == FILLING) {
    CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
    wait_for_fill(x->table);
  }
  return x->state == FILLED ? CLV_OK : fill_shared_tensor(x, cancel_hook, fill, user, err);
}

/* Callback of a clv_tensor of the table whose last reference was dropped. Drops its reference to
 * the shared tensor. */
static void release_shared_tensor(void *owner) {
  shared_tensor *x = owner;
  clv_shared_tensors *b = x->table;
  pthread_mutex_lock(&b->lock);
  bool is_last = drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) shared_tensor_free(x);
}

static clv_code make_tensor(shared_tensor *x, clv_tensor **ret, clv_err *err) {
  CLV_TRY(clv_tensor_wrap(x->dtype, &x->shape, x->data, release_shared_tensor, x, ret, err));
  (*ret)->device = x->backend;
  return CLV_OK;
}

clv_code clv_shared_tensors_acquire(clv_shared_tensors *b, const clv_shared_tensor_key *key,
                                    const clv_cancel_hook *cancel_hook,
                                    clv_shared_tensor_fill *fill, void *user, clv_tensor **ret,
                                    clv_err *err) {
  shared_tensor *x = NULL;
  pthread_mutex_lock(&b->lock);
  clv_code code = find_or_add_shared_tensor(b, key, &x, err);
  if (code == CLV_OK) code = ensure_filled(x, cancel_hook, fill, user, err);
  if (code == CLV_OK) code = make_tensor(x, ret, err);
  bool is_last = code != CLV_OK && x && drop_user(x);
  pthread_mutex_unlock(&b->lock);
  if (is_last) shared_tensor_free(x);
  return code;
}
