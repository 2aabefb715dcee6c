/* SPDX-License-Identifier: Apache-2.0
 *
 * far: a backend that computes in memory which the host cannot touch. Its kernels are those of
 * another backend, so that their bits are known. Its memory can be read and written only while one
 * of its own functions runs, and holds NaN until it is written: code that touches the memory from
 * outside dies of SIGSEGV, and code that relies on zeros computes NaN. Kernels that refuse their
 * values report it at finish, as on a device. Tests can make an allocation or a finish fail. `far`
 * counts operations that were not waited for, and bytes copied to and from the host. No lock guards
 * these counts.
 */
#ifndef CLEAVE_FAR_H
#define CLEAVE_FAR_H

#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/mman.h>

#include "kernels/kernels.h"

enum { FAR_PAGE = 4096, FAR_BLOCKS = 4096 };
static const size_t far_region = (size_t)1 << 32;

typedef struct far_block {
  size_t at, n_bytes;
  const clv_backend *of;
} far_block;

static struct {
  const clv_backend *host_backend;
  char *region;
  /* end of the highest block that was ever allocated; the memory above was never used */
  size_t highest_end;
  far_block blocks[FAR_BLOCKS]; /* memory blocks, sorted by address */
  size_t n_blocks;
  /* failing_allocation: the allocation that will fail; failing_finish: the finish (wait for the
   * device) that will fail; 1: the next one; 0: none */
  uint64_t failing_allocation, failing_finish;
  /* n_allocations, n_finishes: allocations, and waits for the device, so far */
  uint64_t n_allocations, n_finishes;
  uint64_t n_unfinished; /* operations enqueued since the last finish */
  /* bytes copied so far from the host's memory, to it, and between devices */
  uint64_t bytes_from_host, bytes_to_host, bytes_between_devices;
  clv_err first_failure; /* first failure since the last finish */
  int64_t first_failed_layer;
} far;

/* guards far.blocks and far_n_threads_inside, because each device of a node has a thread */
static pthread_mutex_t far_lock = PTHREAD_MUTEX_INITIALIZER;
static int far_n_threads_inside; /* number of threads that may access the memory now */
static _Thread_local bool far_is_thread_inside;

static inline void far_set_protection(int protection) {
  if (far.highest_end && mprotect(far.region, far.highest_end, protection) != 0) abort();
}

static inline void far_allow_access(void) {
  pthread_mutex_lock(&far_lock);
  far_n_threads_inside += !far_is_thread_inside;
  far_is_thread_inside = true;
  far_set_protection(PROT_READ | PROT_WRITE);
  pthread_mutex_unlock(&far_lock);
}

/* Counts an operation, which a real device would run later, and permits this thread to access the
 * device's memory. */
static inline void far_count_operation(void) {
  far.n_unfinished++;
  far_allow_access();
}

/* Ends the access of this thread to the memory. While no thread has access, touching the memory
 * crashes the program. */
static inline void far_forbid_access(void) {
  pthread_mutex_lock(&far_lock);
  far_n_threads_inside -= far_is_thread_inside;
  far_is_thread_inside = false;
  if (!far_n_threads_inside) far_set_protection(PROT_NONE);
  pthread_mutex_unlock(&far_lock);
}

static inline bool far_is_planned_failure(uint64_t *countdown) {
  return *countdown && --*countdown == 0;
}

/* Finds the first gap between blocks that has at least `bytes` bytes. Returns the index in
 * far.blocks for a block in that gap. *ret_at: offset of the gap. */
static inline size_t far_find_gap(size_t bytes, size_t *ret_at) {
  size_t i = 0;
  *ret_at = 0;
  for (; i < far.n_blocks && far.blocks[i].at < *ret_at + bytes; i++)
    *ret_at = far.blocks[i].at + far.blocks[i].n_bytes;
  return i;
}

static inline clv_code far_allocate(const clv_backend *b, size_t bytes, void **ret, clv_err *err) {
  size_t at, block_bytes = clv_align_up(CLV_MAX(bytes, (size_t)1), FAR_PAGE), i;
  far.n_allocations++;
  if (far_is_planned_failure(&far.failing_allocation))
    return clv_fail(err, CLV_EXHAUSTED, "the far memory has no %zu bytes", bytes);
  if (!far.region)
    far.region =
        mmap(NULL, far_region, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pthread_mutex_lock(&far_lock);
  i = far_find_gap(block_bytes, &at);
  if (far.n_blocks == FAR_BLOCKS || at + block_bytes > far_region) abort();
  memmove(&far.blocks[i + 1], &far.blocks[i], (far.n_blocks++ - i) * sizeof *far.blocks);
  far.blocks[i] = (far_block){at, block_bytes, b};
  far.highest_end = CLV_MAX(far.highest_end, at + block_bytes);
  pthread_mutex_unlock(&far_lock);
  far_allow_access();
  memset(far.region + at, 0xFF, block_bytes);
  far_forbid_access();
  *ret = far.region + at;
  return CLV_OK;
}

/* Returns the index of the block at p. Aborts if p is no block, or was freed before. */
static inline size_t far_find_block(const void *p) {
  size_t i = 0;
  while (i < far.n_blocks && far.region + far.blocks[i].at != (const char *)p) i++;
  if (i == far.n_blocks) abort();
  return i;
}

static inline void far_free(const clv_backend *b, void *p) {
  (void)b;
  if (!p) return;
  pthread_mutex_lock(&far_lock);
  size_t n_bytes = far.blocks[far_find_block(p)].n_bytes;
  pthread_mutex_unlock(&far_lock);
  far_allow_access();
  memset(p, 0xFF, n_bytes);
  far_forbid_access();
  pthread_mutex_lock(&far_lock);
  size_t i = far_find_block(p);
  memmove(&far.blocks[i], &far.blocks[i + 1], (--far.n_blocks - i) * sizeof *far.blocks);
  pthread_mutex_unlock(&far_lock);
}

static inline clv_code far_move_bytes(void *dst, const void *src, size_t bytes) {
  far_allow_access();
  if (bytes) memcpy(dst, src, bytes);
  far_forbid_access();
  return CLV_OK;
}

/* Aborts unless the bytes are in a block of this device. */
static inline void far_check_block(const clv_backend *b, const void *p, size_t bytes) {
  size_t i = 0, at = (size_t)((const char *)p - far.region);
  pthread_mutex_lock(&far_lock);
  while (i < far.n_blocks && far.blocks[i].at + far.blocks[i].n_bytes <= at) i++;
  if (i == far.n_blocks || at < far.blocks[i].at || far.blocks[i].of != b ||
      at + bytes > far.blocks[i].at + far.blocks[i].n_bytes)
    abort();
  pthread_mutex_unlock(&far_lock);
}

static inline clv_code far_copy_from_host(const clv_backend *b, void *dst, const void *src,
                                          size_t bytes, clv_err *err) {
  (void)err;
  far.n_unfinished++;
  far.bytes_from_host += bytes;
  far_check_block(b, dst, bytes);
  return far_move_bytes(dst, src, bytes);
}

static inline clv_code far_copy_between_devices(const clv_backend *b, void *dst,
                                                const clv_backend *from, const void *src,
                                                size_t bytes, clv_err *err) {
  (void)err;
  far.n_unfinished++;
  far.bytes_between_devices += from == b ? 0 : bytes;
  far_check_block(b, dst, bytes);
  far_check_block(from, src, bytes);
  return far_move_bytes(dst, src, bytes);
}

static inline clv_code far_copy_on_device(const clv_backend *b, void *dst, const void *src,
                                          size_t bytes, clv_err *err) {
  return far_copy_between_devices(b, dst, b, src, bytes, err);
}

static inline clv_code far_copy_to_host(const clv_backend *b, void *host, const void *src,
                                        size_t bytes, const clv_copy_progress *to, clv_err *err) {
  (void)err;
  far.bytes_to_host += bytes;
  far_check_block(b, src, bytes);
  CLV_TRY(far_move_bytes(host, src, bytes));
  if (to->report) to->report(to->user, bytes);
  return CLV_OK;
}

static inline clv_code far_run_fill(const clv_backend *b, void *dst, int byte, size_t bytes,
                                    clv_err *err) {
  (void)b, (void)err;
  far_count_operation();
  if (bytes) memset(dst, byte, bytes);
  far_forbid_access();
  return CLV_OK;
}

static inline clv_code far_finish(const clv_backend *b, int64_t *ret_layer, clv_err *err) {
  clv_err failed = far.first_failure;
  (void)b;
  far.n_finishes++;
  far.n_unfinished = 0;
  *ret_layer = failed.code == CLV_OK ? -1 : far.first_failed_layer;
  far.first_failure = (clv_err){0};
  if (far_is_planned_failure(&far.failing_finish))
    return clv_fail(err, CLV_INTERNAL, "the device has gone");
  if (failed.code != CLV_OK && err) *err = failed;
  return failed.code;
}

static inline clv_code far_get_free_bytes(const clv_backend *b, size_t *ret_free, size_t *ret_total,
                                          clv_err *err) {
  (void)b, (void)err;
  *ret_free = *ret_total = far_region;
  for (size_t i = 0; i < far.n_blocks; i++) *ret_free -= far.blocks[i].n_bytes;
  return CLV_OK;
}

/* ---- kernels that run in the device's memory ------------------------------------------------- */

typedef struct far_kernel {
  clv_kernel base;
  clv_kernel *host_kernel;
} far_kernel;

static inline clv_code far_record_failure(clv_code code, int64_t layer, const clv_err *why) {
  if (code == CLV_OK || far.first_failure.code != CLV_OK) return CLV_OK;
  far.first_failure = *why;
  far.first_failed_layer = layer;
  return CLV_OK;
}

#define FAR_KERNEL(function)                                                        \
  static inline clv_code far_##function(clv_kernel *base, const clv_kernel_args *a, \
                                        clv_err *err) {                             \
    clv_kernel *inner = ((far_kernel *)base)->host_kernel;                          \
    clv_err why;                                                                    \
    (void)err;                                                                      \
    far_count_operation();                                                          \
    clv_code code = inner->function(inner, a, &why);                                \
    far_forbid_access();                                                            \
    return far_record_failure(code, a->key.layer, &why);                            \
  }
FAR_KERNEL(refresh)
FAR_KERNEL(forward)
FAR_KERNEL(recompute)
FAR_KERNEL(backward_input)
FAR_KERNEL(backward_weight)
#undef FAR_KERNEL

static inline void far_free_kernel(clv_kernel *base) {
  clv_kernel *inner = ((far_kernel *)base)->host_kernel;
  inner->free(inner);
  free(base);
}

static inline clv_code far_prepare_kernel(const clv_backend *b, const clv_node_desc *d,
                                          clv_kernel **ret, clv_err *err) {
  const clv_backend *ref = clv_backend_ref();
  clv_kernel *inner;
  far_kernel *k;
  (void)b;
  clv_code code = far.host_backend->prepare(far.host_backend, d, &inner, err);
  if (code == CLV_UNIMPLEMENTED && !d->tail) code = ref->prepare(ref, d, &inner, err);
  if (code != CLV_OK) return code;
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  *k = (far_kernel){.base = *inner, .host_kernel = inner};
  k->base.refresh = inner->refresh ? far_refresh : NULL;
  k->base.forward = far_forward;
  k->base.recompute = inner->recompute ? far_recompute : NULL;
  k->base.backward_input = inner->backward_input ? far_backward_input : NULL;
  k->base.backward_weight = inner->backward_weight ? far_backward_weight : NULL;
  k->base.free = far_free_kernel;
  *ret = &k->base;
  return CLV_OK;
}

static inline clv_code far_run_reorder(const clv_backend *b, const clv_shape *shape,
                                       clv_dtype dtype, const void *src, int src_block, void *dst,
                                       int dst_block, clv_err *err) {
  (void)b;
  far_count_operation();
  clv_code code = far.host_backend->reorder(far.host_backend, shape, dtype, src, src_block, dst,
                                            dst_block, err);
  far_forbid_access();
  return code;
}

static inline void far_run_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src,
                               size_t n) {
  (void)b;
  far_count_operation();
  far.host_backend->add(far.host_backend, dtype, dst, src, n);
  far_forbid_access();
}

static inline clv_code far_run_sum_squares(const clv_backend *b, const float *x,
                                           const clv_extent *runs, size_t n_runs, double *ret,
                                           clv_err *err) {
  (void)b;
  far_allow_access();
  clv_code code = far.host_backend->sum_squares(far.host_backend, x, runs, n_runs, ret, err);
  far_forbid_access();
  return code;
}

static inline void far_run_step(const clv_backend *b, const clv_step_args *a, float *p,
                                const float *g, float *const moments[CLV_OPTIM_MAX_MOMENTS],
                                const clv_extent *runs, size_t n_runs) {
  (void)b;
  far_count_operation();
  far.host_backend->step(far.host_backend, a, p, g, moments, runs, n_runs);
  far_forbid_access();
}

static inline const char *far_get_isa(const clv_backend *b) {
  (void)b;
  return far.host_backend->isa(far.host_backend);
}

static inline const char *far_get_libraries(const clv_backend *b) {
  (void)b;
  return far.host_backend->libraries(far.host_backend);
}

static inline clv_code far_check_bf16(const clv_backend *b, clv_err *err) {
  (void)b;
  return far.host_backend->check_bf16(far.host_backend, err);
}

static inline clv_code far_check_tf32(const clv_backend *b, clv_err *err) {
  (void)b;
  return far.host_backend->check_tf32(far.host_backend, err);
}

/* Returns device `number` (0 or 1). It uses the kernels of `inner`, or of ref where `inner` has
 * none. All devices of a program share one memory. */
static inline const clv_backend *far_get_device(const clv_backend *inner, int number) {
  static const clv_backend_memory memory = {.allocate = far_allocate,
                                            .free = far_free,
                                            .put = far_copy_from_host,
                                            .get = far_copy_to_host,
                                            .copy = far_copy_on_device,
                                            .copy_from = far_copy_between_devices,
                                            .fill = far_run_fill,
                                            .finish = far_finish,
                                            .get_free_bytes = far_get_free_bytes};
  static clv_backend devices[2];
  clv_backend *b = &devices[number];
  far.host_backend = inner;
  *b = *inner;
  b->name = "far";
  b->device = number ? "far:1" : "far:0";
  b->memory = &memory;
  b->prepare = far_prepare_kernel;
  b->reorder = far_run_reorder;
  b->add = far_run_add;
  b->sum_squares = far_run_sum_squares;
  b->step = far_run_step;
  b->isa = far_get_isa;
  b->libraries = far_get_libraries;
  b->check_bf16 = inner->check_bf16 ? far_check_bf16 : NULL;
  b->check_tf32 = inner->check_tf32 ? far_check_tf32 : NULL;
  b->trim = NULL;
  return b;
}

static inline const clv_backend *far_get_backend(const clv_backend *inner) {
  return far_get_device(inner, 0);
}

#endif
