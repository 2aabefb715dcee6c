/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the cuda backend's clv_backend, and the preparation of its kernels.
 * clv_cuda_open makes a backend, and cuda_prepare makes a kernel from the op's row and its cuda_op.
 * All work is issued to one stream, in the order of the calls, and computed in f32.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/pointwise_int.h"

/* ---- preparing kernels ----------------------------------------------------------------------- */

#define CUDA_OP(name) extern const cuda_op clv_gpu_op_##name;
#include "cuda_ops.def"
#undef CUDA_OP

static const cuda_op *const ops[CLV_OP_COUNT] = {
#define CUDA_OP(name) [CLV_OP_NUMBER_##name] = &clv_gpu_op_##name,
#include "cuda_ops.def"
#undef CUDA_OP
};

static bool cuda_has_op(clv_op op) { return op > CLV_OP_INPUT && op < CLV_OP_COUNT && ops[op]; }

static unsigned cuda_tails(clv_op op) {
  return cuda_has_op(op) ? ops[op]->tails & CLV_TAIL_RELU_FORWARD : 0;
}

static void kernel_free(clv_kernel *base) {
  cuda_kernel *k = gpu_kernel_of(base);
  for (int i = 0; i < GPU_MAX_PRODUCTS; i++)
    if (k->products[i]) k->gpu->vendor->matmul_free(k->products[i]);
  for (size_t i = 0; i < CLV_COUNT(k->conv); i++)
    if (k->conv[i]) k->gpu->vendor->conv_free(k->conv[i]);
  if (k->lstm) k->gpu->vendor->lstm_free(k->lstm);
  free(k);
}

/* Fills in the kernel's functions, its layouts, and the size of what forward saves, which is 0 if
 * no backward can follow. */
static void fill_kernel(cuda_kernel *k, const clv_op_def *row, const cuda_op *op) {
  const clv_node_desc *d = &k->r.d;
  bool has_fused_grads = op->fused_grads || row->fused_grads, needs_dx = false;
  bool needs_dw = d->need_dw && (op->backward_weight || has_fused_grads);
  clv_kernel *b = &k->r.base;
  for (int i = 0; i < d->n_in; i++) needs_dx |= d->need_dx[i];
  k->r.has_backward = needs_dx || needs_dw;
  b->forward = op->forward;
  b->backward_input = needs_dx || (needs_dw && has_fused_grads) ? op->backward_input : NULL;
  b->backward_weight = needs_dw ? op->backward_weight : NULL;
  b->fused_grads = needs_dw && has_fused_grads;
  b->free = kernel_free;
  for (int i = 0; i < CLV_MAX_IN; i++) b->in_block[i] = k->channels_last ? GPU_CHANNELS_LAST : 1;
  b->out_block = b->in_block[0];
  b->saved_flags = (needs_dx ? row->saved_for_dx : 0) | (needs_dw ? row->saved_for_dw : 0);
  b->saved_bytes = k->r.has_backward && row->saved_bytes ? row->saved_bytes(&k->r) : 0;
  b->in_place = row->in_place && !clv_has_broadcast_input(d);
  b->impl = "cuda";
}

static clv_code cuda_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                             clv_err *err) {
  const clv_op_def *row = clv_op_def_of_dtype(d->op, d->dtype);
  cuda_kernel *k;
  size_t n_in, n_out;
  if (d->n_links) return clv_gpu_prepare_chain(b, d, ret, err);
  if (d->dtype != CLV_F32 || !row || !cuda_has_op(d->op) || d->tail & ~ops[d->op]->tails)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s has no op %d in %s%s", b->name, (int)d->op,
                    clv_dtype_name(d->dtype), d->tail ? " with a tail" : "");
  CLV_TRY(clv_shape_numel(&d->in[0], &n_in, err));
  CLV_TRY(clv_shape_numel(&d->out, &n_out, err));
  if (row->check_kernel) CLV_TRY(row->check_kernel(d, err));
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  *k = (cuda_kernel){.r = {.d = *d, .n_in = n_in, .n_out = n_out},
                     .gpu = b->private_data,
                     .bf16 = d->bf16 && ops[d->op]->bf16,
                     .channels_last = d->bf16 && ops[d->op]->channels_last && d->in[0].rank == 4};
  fill_kernel(k, row, ops[d->op]);
  clv_code code = ops[d->op]->open ? ops[d->op]->open(k, err) : CLV_OK;
  if (k->r.base.cache_bytes) k->r.base.refresh = ops[d->op]->refresh;
  if (code != CLV_OK)
    kernel_free(&k->r.base);
  else
    *ret = &k->r.base;
  return code;
}

/* ---- operations on buffers: reorder, add, optimiser step ------------------------------------- */

static clv_code cuda_reorder(const clv_backend *b, const clv_shape *shape, clv_dtype dtype,
                             const void *src, int src_block, void *dst, int dst_block,
                             clv_err *err) {
  const int64_t *dim = shape->dim;
  cuda_layout_conversion m = {.n = (size_t)dim[0],
                              .channels = (size_t)dim[1],
                              .inner = (size_t)(dim[2] * dim[3]),
                              .from = src_block,
                              .to = dst_block};
  if (clv_layout_block(src_block) != 1 || clv_layout_block(dst_block) != 1 || dtype != CLV_F32)
    return clv_fail(err, CLV_INVALID,
                    "reorder between channel blocks %d and %d: %s has only block 1", src_block,
                    dst_block, b->name);
  return clv_gpu_convert_layout(b->private_data, &m, src, dst, err);
}

/* Keeps the error of a function that cannot return one, unless an earlier error is kept. The next
 * clv_gpu_finish reports the error. */
static void store_error(clv_gpu *g, const clv_err *err, clv_code code) {
  if (code != CLV_OK && g->deferred_error.code == CLV_OK) g->deferred_error = *err;
}

static void cuda_add(const clv_backend *b, clv_dtype dtype, void *dst, const void *src, size_t n) {
  clv_gpu *g = b->private_data;
  clv_err err = {0};
  clv_code code = dtype == CLV_F32 || dtype == CLV_BF16
                      ? clv_gpu_add_to(g, dtype == CLV_BF16, dst, src, n, &err)
                      : clv_fail(&err, CLV_INVALID, "%s adds only f32 and bf16", b->name);
  store_error(g, &err, code);
}

static void cuda_step(const clv_backend *b, const clv_step_args *a, float *p, const float *grad,
                      float *const moments[CLV_OPTIM_MAX_MOMENTS], const clv_extent *ranges,
                      size_t n_ranges) {
  clv_err err = {0};
  store_error(b->private_data, &err,
              clv_gpu_step(b->private_data, a, p, grad, moments, ranges, n_ranges, &err));
}

/* ---- device memory --------------------------------------------------------------------------- */

/* Allocates memory and zeroes it, so that no session can read what another session left. */
static clv_code memory_allocate(const clv_backend *b, size_t bytes, void **ret, clv_err *err) {
  clv_gpu *g = b->private_data;
  void *p;
  CLV_TRY(clv_gpu_fail_recording(g, "allocate memory", err));
  if (g->vendor->allocate(g->stream, CLV_MAX(bytes, (size_t)1), &p, err) != CLV_OK)
    return clv_err_prefix(err, "%s", b->device);
  clv_code code = g->vendor->fill(g->stream, p, 0, CLV_MAX(bytes, (size_t)1), err);
  if (code != CLV_OK)
    g->vendor->free(g->stream, p);
  else
    *ret = p;
  return code;
}

static void memory_free(const clv_backend *b, void *p) {
  clv_gpu *g = b->private_data;
  if (p) g->vendor->free(g->stream, p);
}

static clv_code memory_copy(const clv_backend *b, void *dst, const void *src, size_t bytes,
                            clv_err *err) {
  clv_gpu *g = b->private_data;
  return bytes ? g->vendor->copy(g->stream, dst, src, bytes, err) : CLV_OK;
}

static clv_code memory_fill(const clv_backend *b, void *dst, int byte, size_t bytes, clv_err *err) {
  clv_gpu *g = b->private_data;
  return bytes ? g->vendor->fill(g->stream, dst, byte, bytes, err) : CLV_OK;
}

static clv_code memory_get_free_bytes(const clv_backend *b, size_t *ret_free, size_t *ret_total,
                                      clv_err *err) {
  clv_gpu *g = b->private_data;
  return g->vendor->get_free_bytes(g->device, ret_free, ret_total, err);
}

static const clv_backend_memory memory = {
    .allocate = memory_allocate,
    .free = memory_free,
    .put = clv_gpu_copy_to_device,
    .get = clv_gpu_copy_to_host,
    .copy = memory_copy,
    .copy_from = clv_gpu_copy_from,
    .fill = memory_fill,
    .finish = clv_gpu_finish,
    .get_free_bytes = memory_get_free_bytes,
};

/* ---- opening a backend ----------------------------------------------------------------------- */

static void cuda_set_threads(int n) { (void)n; }
static uint64_t cuda_reorder_count(void) { return 0; }
static const char *cuda_isa(const clv_backend *b) {
  return ((const clv_gpu *)b->private_data)->isa;
}
static const char *cuda_libraries(const clv_backend *b) {
  return ((const clv_gpu *)b->private_data)->info.libraries;
}

static clv_code check_capability(const clv_backend *b, const char *feature, const char *remedy,
                                 clv_err *err) {
  const clv_gpu *g = b->private_data;
  if (g->info.capability >= 80) return CLV_OK;
  return clv_fail(
      err, CLV_PRECONDITION,
      "%s needs a device of NVIDIA of capability 8.0 or above, and %s has %d.%d; %s, or "
      "name such a device",
      feature, b->device, g->info.capability / 10, g->info.capability % 10, remedy);
}

static clv_code cuda_check_tf32(const clv_backend *b, clv_err *err) {
  return check_capability(b, "tf32", "leave tf32 out", err);
}

static clv_code cuda_check_bf16(const clv_backend *b, clv_err *err) {
  return check_capability(b, "bf16", "use train.dtype: f32", err);
}

static clv_code cuda_branch(const clv_backend *b, const clv_backend **ret, clv_err *err) {
  const clv_gpu *g = b->private_data;
  clv_backend *branch;
  CLV_TRY(clv_cuda_open(g->vendor, g->device, &branch, err));
  branch->recording = b->recording;
  clv_cuda_set_tile_bytes(branch, g->tile_bytes);
  *ret = branch;
  return CLV_OK;
}

static void cuda_retain(const clv_backend *b) {
  clv_gpu *g = b->private_data;
  __atomic_fetch_add(&g->n_owners, 1, __ATOMIC_RELAXED);
}

static void cuda_release(const clv_backend *b) {
  clv_gpu *g = b->private_data;
  if (__atomic_sub_fetch(&g->n_owners, 1, __ATOMIC_ACQ_REL) == 0) clv_cuda_close(&g->backend);
}

static void fill_backend(clv_gpu *g) {
  snprintf(g->name, sizeof g->name, "cuda:%d", g->device);
  snprintf(g->isa, sizeof g->isa, "sm_%d", g->info.capability);
  g->backend = (clv_backend){.abi = CLV_KERNELS_ABI,
                             .size = sizeof(clv_backend),
                             .name = g->vendor->name,
                             .device = g->name,
                             .private_data = g,
                             .memory = &memory,
                             .prepare = cuda_prepare,
                             .has = cuda_has_op,
                             .tails = cuda_tails,
                             .chains = clv_gpu_has_chain,
                             .reorder = cuda_reorder,
                             .add = cuda_add,
                             .sum_squares = clv_gpu_sum_squares,
                             .step = cuda_step,
                             .set_threads = cuda_set_threads,
                             .isa = cuda_isa,
                             .libraries = cuda_libraries,
                             .check_bf16 = cuda_check_bf16,
                             .check_tf32 = cuda_check_tf32,
                             .reorder_count = cuda_reorder_count,
                             .branch = cuda_branch,
                             .branch_bytes = (size_t)GPU_COPY_SLOTS * GPU_COPY_SLOT_BYTES,
                             .retain = cuda_retain,
                             .release = cuda_release,
                             .recording = &clv_gpu_recording,
                             .timer = &clv_gpu_timer};
}

static clv_code open_memory(clv_gpu *g, clv_err *err) {
  void *p;
  CLV_TRY(clv_gpu_open_copy_slots(g, err));
  CLV_TRY(memory_allocate(&g->backend, sizeof *g->fault, &p, err));
  g->fault = p;
  return CLV_OK;
}

void clv_cuda_set_tile_bytes(clv_backend *b, size_t bytes) {
  ((clv_gpu *)b->private_data)->tile_bytes = bytes;
}

void clv_cuda_close(clv_backend *b) {
  clv_gpu *g = b ? b->private_data : NULL;
  if (!g) return;
  if (g->stream) {
    memory_free(b, g->fault);
    clv_gpu_free_range_tables(g);
    g->vendor->stream_free(g->stream);
  }
  clv_gpu_close_copy_slots(g);
  clv_gpu_close_timer(g);
  free(g);
}

clv_code clv_cuda_open(const clv_vendor *vendor, int device, clv_backend **ret, clv_err *err) {
  clv_gpu *g;
  if (vendor->abi != CLV_VENDOR_ABI || vendor->size < sizeof(clv_vendor))
    return clv_fail(err, CLV_PRECONDITION,
                    "the table of CUDA's functions has version %u, this backend needs %d",
                    vendor->abi, CLV_VENDOR_ABI);
  CLV_TRY(clv_alloc(1, sizeof *g, &g, err));
  g->vendor = vendor;
  g->device = device;
  g->n_owners = 1;
  g->tile_bytes = GPU_DEFAULT_TILE_BYTES;
  clv_code code = vendor->describe(device, &g->info, err);
  fill_backend(g);
  if (code == CLV_OK) code = vendor->stream_new(device, false, &g->stream, err);
  if (code == CLV_OK) code = open_memory(g, err);
  if (code == CLV_OK) clv_gpu_open_timer(g);
  if (code != CLV_OK)
    clv_cuda_close(&g->backend);
  else
    *ret = &g->backend;
  return code;
}
