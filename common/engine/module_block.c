/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a module for short-lived data that its kernels use: gradients, copies of parameters.
 * Host memory comes from the session's pool. On a device the module keeps one reference to each
 * block that it has allocated; a block without other references is idle and is reused.
 */
#include "common/engine/module_int.h"

#include <stdlib.h>
#include <string.h>

clv_code clv_module_charge(const clv_module *m, clv_pool *pool, size_t bytes, clv_err *err) {
  clv_account *device = m->o.account;
  if (device && clv_account_charge(device, CLV_QUOTA_BYTES, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "device %s", m->device);
  clv_code code = clv_pool_charge(pool, bytes, err);
  if (code != CLV_OK && device) clv_account_discharge(device, CLV_QUOTA_BYTES, bytes);
  return code;
}

void clv_module_discharge(const clv_module *m, clv_pool *pool, size_t bytes) {
  clv_pool_discharge(pool, bytes);
  if (m->o.account) clv_account_discharge(m->o.account, CLV_QUOTA_BYTES, bytes);
}

/* Returns the account that tensors of the module are charged to; NULL for a module on a device,
 * where blocks are charged instead. */
static clv_account *get_tensor_account(const clv_module *m) {
  return m->o.backend->memory ? NULL : m->o.account;
}

clv_code clv_module_alloc_tensor(const clv_module *m, clv_pool *pool, clv_dtype dtype,
                                 const clv_shape *shape, uint64_t *charged, clv_tensor **ret,
                                 clv_err *err) {
  clv_account *device = get_tensor_account(m);
  size_t bytes;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  if (device && clv_account_charge(device, CLV_QUOTA_BYTES, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "device %s", m->device);
  clv_code code = clv_pool_alloc_tensor(pool, dtype, shape, ret, err);
  if (code == CLV_OK && device) *charged += bytes;
  if (code != CLV_OK && device) clv_account_discharge(device, CLV_QUOTA_BYTES, bytes);
  return code;
}

void clv_module_uncharge_tensors(const clv_module *m, uint64_t *charged) {
  if (*charged) clv_account_discharge(m->o.account, CLV_QUOTA_BYTES, *charged);
  *charged = 0;
}

/* ---- blocks of memory ------------------------------------------------------------------------ */

typedef struct device_block {
  const clv_backend *backend;
  void *data;
} device_block;

static void free_device_block(void *owner) {
  device_block *b = owner;
  clv_backend_free_memory(b->backend, b->data);
  clv_backend_release(b->backend);
  free(b);
}

static clv_tensor *find_idle_block(const clv_module *m, size_t bytes) {
  for (size_t i = 0; i < m->n_blocks; i++) {
    clv_tensor *t = m->blocks[i];
    if (t->bytes == bytes && __atomic_load_n(&t->refs, __ATOMIC_ACQUIRE) == 1)
      return clv_tensor_ref(t);
  }
  return NULL;
}

static clv_code ensure_block_capacity(clv_module *m, clv_err *err) {
  if (m->n_blocks < m->cap_blocks) return CLV_OK;
  size_t cap = m->cap_blocks ? 2 * m->cap_blocks : 16;
  clv_tensor **more = realloc(m->blocks, cap * sizeof *more);
  if (!more)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for %zu blocks of module %u", cap,
                    m->o.index);
  m->blocks = more;
  m->cap_blocks = cap;
  return CLV_OK;
}

static clv_code alloc_block_tensor(device_block *b, size_t bytes, clv_tensor **ret, clv_err *err) {
  clv_shape shape = CLV_SHAPE((int64_t)bytes);
  CLV_TRY(clv_backend_allocate(b->backend, bytes, &b->data, err));
  clv_code code = clv_tensor_wrap(CLV_U8, &shape, b->data, free_device_block, b, ret, err);
  if (code != CLV_OK) clv_backend_free_memory(b->backend, b->data);
  return code;
}

static clv_code new_block(clv_module *m, size_t bytes, clv_tensor **ret, clv_err *err) {
  device_block *b;
  CLV_TRY(ensure_block_capacity(m, err));
  CLV_TRY(clv_alloc(1, sizeof *b, &b, err));
  b->backend = clv_backend_retain(m->o.backend);
  clv_code code = alloc_block_tensor(b, bytes, &m->blocks[m->n_blocks], err);
  if (code != CLV_OK) {
    clv_backend_release(b->backend);
    free(b);
    return code;
  }
  *ret = clv_tensor_ref(m->blocks[m->n_blocks++]);
  return CLV_OK;
}

clv_code clv_module_alloc_block(clv_module *m, size_t bytes, uint64_t *charged, clv_tensor **ret,
                                clv_err *err) {
  clv_shape shape = CLV_SHAPE((int64_t)bytes);
  if (!m->o.backend->memory)
    return clv_module_alloc_tensor(m, m->pool, CLV_U8, &shape, charged, ret, err);
  *ret = find_idle_block(m, bytes);
  if (*ret) return CLV_OK;
  CLV_TRY(clv_module_charge(m, m->pool, bytes, err));
  m->charged_bytes += bytes;
  clv_code code = new_block(m, bytes, ret, err);
  if (code == CLV_OK) return CLV_OK;
  clv_module_discharge(m, m->pool, bytes);
  m->charged_bytes -= bytes;
  return code;
}

static void unref_block(void *block) { clv_tensor_unref(block); }

clv_code clv_module_alloc_device_tensor(clv_module *m, clv_dtype dtype, const clv_shape *shape,
                                        clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *block = NULL;
  uint64_t charged = 0;
  size_t bytes;
  CLV_TRY(clv_shape_bytes(shape, dtype, &bytes, err));
  CLV_TRY(clv_module_alloc_block(m, bytes, &charged, &block, err));
  CLV_TRY(clv_tensor_wrap(dtype, shape, block->data, unref_block, block, ret, err));
  block = NULL;
  (*ret)->device = m->o.backend;
  return CLV_OK;
}

bool clv_module_can_copy_from(const clv_module *m, const clv_module *from) {
  return clv_backend_can_copy_from(m->o.backend, from->o.backend);
}

void clv_module_count_transfer(clv_module *m, const clv_module *from, const clv_tensor *t) {
  const clv_backend *to = m->o.backend, *of = from->o.backend;
  bool is_same_device = strcmp(to->device, of->device) == 0;
  if (!to->memory || !of->memory) return;
  clv_counter_add(!t->device       ? &m->counts.host_bytes
                  : is_same_device ? &m->counts.device_bytes
                                   : &m->counts.peer_bytes,
                  t->bytes);
}

void clv_module_blocks_free(clv_module *m) {
  if (!m) return;
  for (size_t i = 0; i < m->n_blocks; i++) clv_tensor_unref(m->blocks[i]);
  free(m->blocks);
}

/* ---- errors of a device ---------------------------------------------------------------------- */

static void record_device_error(clv_module *m, const clv_err *why) {
  if (m->device_error.code != CLV_OK) return;
  m->device_error = *why;
  (void)!clv_err_prefix(&m->device_error, "module %u has lost its state", m->o.index);
}

void clv_module_copy_bytes(clv_module *m, void *dst, const void *src, size_t bytes) {
  clv_err why;
  clv_code code = clv_backend_copy(m->o.backend, dst, src, bytes, &why);
  if (code == CLV_OK) code = clv_backend_finish(m->o.backend, &why);
  if (code != CLV_OK) record_device_error(m, &why);
}

clv_code clv_module_finish(clv_module *m, clv_err *err) {
  clv_err why;
  if (clv_backend_finish(m->o.backend, &why) != CLV_OK) record_device_error(m, &why);
  return clv_module_check_device(m, err);
}

clv_code clv_module_check_device(const clv_module *m, clv_err *err) {
  if (m->device_error.code == CLV_OK) return CLV_OK;
  if (err) *err = m->device_error;
  return m->device_error.code;
}
