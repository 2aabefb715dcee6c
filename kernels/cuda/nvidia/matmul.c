/* SPDX-License-Identifier: Apache-2.0
 *
 * Products by cuBLASLt. The first algorithm of its heuristic is used, which depends only on the
 * description, the device and the library's version; nothing is timed. Algorithms whose sums change
 * their order between calls are excluded from the query.
 */
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

/* Alignment of the operands. Algorithms for aligned operands are faster, but wrong for others, so
 * each case has its own algorithm. Operands are usually aligned. */
enum { ALIGNED, NOT_ALIGNED, N_ALIGNMENTS };
static const uint32_t f32_alignment_bytes[N_ALIGNMENTS] = {16, 4},
                      bf16_alignment_bytes[N_ALIGNMENTS] = {16, 2};

struct clv_cuda_matmul {
  const nvidia_cublas *cublas;
  int device;
  cublasLtHandle_t handle; /* cuBLASLt's handle of the device */
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
  cudaDataType_t factor_type; /* data type of A and B */
  size_t workspace_bytes;
  cublasLtMatmulAlgo_t algorithms[N_ALIGNMENTS];
};

static clv_code fail_call(const clv_cuda_matmul *m, const char *where, const char *call,
                          cublasStatus_t answer, clv_err *err) {
  return clv_nvidia_fail_text_at(where, call, m->device, m->cublas->cublasLtGetStatusString(answer),
                                 answer == CUBLAS_STATUS_ALLOC_FAILED    ? CLV_EXHAUSTED
                                 : answer == CUBLAS_STATUS_NOT_SUPPORTED ? CLV_UNIMPLEMENTED
                                                                         : CLV_INTERNAL,
                                 err);
}

#define LT_TRY(m, err, call, ...)                                                                 \
  do {                                                                                            \
    cublasStatus_t answer_ = (m)->cublas->call(__VA_ARGS__);                                      \
    if (answer_ != CUBLAS_STATUS_SUCCESS) return fail_call((m), CLV_HERE, #call, answer_, (err)); \
  } while (0)

/* ---- handles of cuBLASLt --------------------------------------------------------------------- */

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
/* handle of each device, made by its first product, never freed */
static cublasLtHandle_t handles[NVIDIA_MAX_DEVICES];

static clv_code find_handle(clv_cuda_matmul *m, clv_err *err) {
  CLV_TRY(clv_nvidia_set_device(m->device, err));
  pthread_mutex_lock(&handles_lock);
  cublasStatus_t answer = CUBLAS_STATUS_SUCCESS;
  if (!handles[m->device]) answer = m->cublas->cublasLtCreate(&handles[m->device]);
  m->handle = handles[m->device];
  pthread_mutex_unlock(&handles_lock);
  if (answer != CUBLAS_STATUS_SUCCESS) return fail_call(m, CLV_HERE, "cublasLtCreate", answer, err);
  return CLV_OK;
}

/* ---- description of a product ---------------------------------------------------------------- */

static clv_code make_layout(const clv_cuda_matmul *m, cudaDataType_t type, int64_t rows,
                            int64_t columns, int64_t ld, int64_t batch, int64_t stride,
                            cublasLtMatrixLayout_t *ret, clv_err *err) {
  int32_t n_products = (int32_t)batch;
  LT_TRY(m, err, cublasLtMatrixLayoutCreate, ret, type, (uint64_t)rows, (uint64_t)columns, ld);
  if (batch == 1) return CLV_OK;
  LT_TRY(m, err, cublasLtMatrixLayoutSetAttribute, *ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
         &n_products, sizeof n_products);
  LT_TRY(m, err, cublasLtMatrixLayoutSetAttribute, *ret,
         CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
  return CLV_OK;
}

static clv_code describe_layouts(clv_cuda_matmul *m, const clv_cuda_matmul_desc *d, clv_err *err) {
  m->factor_type = d->math == CLV_CUDA_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  CLV_TRY(make_layout(m, m->factor_type, d->a_is_transposed ? d->k : d->m,
                      d->a_is_transposed ? d->m : d->k, d->lda, d->batch, d->stride_a, &m->a, err));
  CLV_TRY(make_layout(m, m->factor_type, d->b_is_transposed ? d->n : d->k,
                      d->b_is_transposed ? d->k : d->n, d->ldb, d->batch, d->stride_b, &m->b, err));
  return make_layout(m, CUDA_R_32F, d->m, d->n, d->ldd, d->batch, d->stride_d, &m->d, err);
}

static clv_code set_bias(const clv_cuda_matmul *m, const float *bias, clv_err *err) {
  LT_TRY(m, err, cublasLtMatmulDescSetAttribute, m->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
         sizeof bias);
  return CLV_OK;
}

static clv_code set_epilogue(const clv_cuda_matmul *m, cublasLtEpilogue_t epilogue, clv_err *err) {
  LT_TRY(m, err, cublasLtMatmulDescSetAttribute, m->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
         sizeof epilogue);
  return CLV_OK;
}

static clv_code describe_product(clv_cuda_matmul *m, const clv_cuda_matmul_desc *d, clv_err *err) {
  cublasOperation_t a = d->a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                    b = d->b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  LT_TRY(m, err, cublasLtMatmulDescCreate, &m->op,
         d->math == CLV_CUDA_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
  LT_TRY(m, err, cublasLtMatmulDescSetAttribute, m->op, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
  LT_TRY(m, err, cublasLtMatmulDescSetAttribute, m->op, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
  if (d->epilogue == CLV_CUDA_EPILOGUE_NONE) return CLV_OK;
  CLV_TRY(set_epilogue(m, CUBLASLT_EPILOGUE_BIAS, err));
  /* the heuristic requires a bias pointer, but does not read the bias */
  return set_bias(m, (const float *)(uintptr_t)256, err);
}

/* ---- choice of an algorithm ------------------------------------------------------------------ */

static clv_code set_preferences(const clv_cuda_matmul *m, cublasLtMatmulPreference_t p,
                                int alignment_case, clv_err *err) {
  static const cublasLtMatmulPreferenceAttributes_t alignment_attributes[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  uint64_t max_workspace = CLV_CUDA_MATMUL_MAX_WORKSPACE;
  uint32_t allowed_schemes =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  LT_TRY(m, err, cublasLtMatmulPreferenceSetAttribute, p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         &max_workspace, sizeof max_workspace);
  LT_TRY(m, err, cublasLtMatmulPreferenceSetAttribute, p,
         CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &allowed_schemes, sizeof allowed_schemes);
  for (size_t i = 0; i < CLV_COUNT(alignment_attributes); i++) {
    uint32_t alignment =
        (m->factor_type == CUDA_R_16BF && i < 2 ? bf16_alignment_bytes
                                                : f32_alignment_bytes)[alignment_case];
    LT_TRY(m, err, cublasLtMatmulPreferenceSetAttribute, p, alignment_attributes[i], &alignment,
           sizeof alignment);
  }
  return CLV_OK;
}

static clv_code query_algorithm(clv_cuda_matmul *m, cublasLtMatmulPreference_t p,
                                int alignment_case, clv_err *err) {
  cublasLtMatmulHeuristicResult_t result = {0};
  int n = 0;
  CLV_TRY(set_preferences(m, p, alignment_case, err));
  LT_TRY(m, err, cublasLtMatmulAlgoGetHeuristic, m->handle, m->op, m->a, m->b, m->d, m->d, p, 1,
         &result, &n);
  if (n < 1)
    return fail_call(m, CLV_HERE, "cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED,
                     err);
  m->algorithms[alignment_case] = result.algo;
  m->workspace_bytes = CLV_MAX(m->workspace_bytes, result.workspaceSize);
  return CLV_OK;
}

static clv_code choose_algorithms(clv_cuda_matmul *m, clv_err *err) {
  cublasLtMatmulPreference_t p = NULL;
  LT_TRY(m, err, cublasLtMatmulPreferenceCreate, &p);
  clv_code code = CLV_OK;
  for (int alignment_case = 0; alignment_case < N_ALIGNMENTS && code == CLV_OK; alignment_case++)
    code = query_algorithm(m, p, alignment_case, err);
  m->cublas->cublasLtMatmulPreferenceDestroy(p);
  return code;
}

/* Adds the relu to the algorithms that were chosen without it, so that the sums equal those of
 * separate ops. CLV_UNIMPLEMENTED: an algorithm cannot compute the relu. */
static clv_code add_relu(clv_cuda_matmul *m, clv_err *err) {
  CLV_TRY(set_epilogue(m, CUBLASLT_EPILOGUE_RELU_BIAS, err));
  for (int alignment_case = 0; alignment_case < N_ALIGNMENTS; alignment_case++) {
    cublasLtMatmulHeuristicResult_t result = {0};
    LT_TRY(m, err, cublasLtMatmulAlgoCheck, m->handle, m->op, m->a, m->b, m->d, m->d,
           &m->algorithms[alignment_case], &result);
    m->workspace_bytes = CLV_MAX(m->workspace_bytes, result.workspaceSize);
  }
  return CLV_OK;
}

static clv_code make_matmul(clv_cuda_matmul *m, const clv_cuda_matmul_desc *d, clv_err *err) {
  CLV_TRY(clv_nvidia_cublas(&m->cublas, err));
  CLV_TRY(find_handle(m, err));
  CLV_TRY(describe_product(m, d, err));
  CLV_TRY(describe_layouts(m, d, err));
  CLV_TRY(choose_algorithms(m, err));
  return d->epilogue == CLV_CUDA_EPILOGUE_RELU_BIAS ? add_relu(m, err) : CLV_OK;
}

/* ---- functions of the table clv_vendor ------------------------------------------------------- */

clv_code clv_nvidia_matmul_new(int device, const clv_cuda_matmul_desc *d, clv_cuda_matmul **ret,
                               size_t *ret_workspace, clv_err *err) {
  clv_cuda_matmul *m;
  if (d->m < 1 || d->n < 1 || d->k < 1 || d->batch < 1 || d->batch > INT32_MAX)
    return clv_fail(err, CLV_INVALID,
                    "a product of %lld x %lld x %lld with batch %lld: each must be positive, the "
                    "batch below 2^31",
                    (long long)d->m, (long long)d->n, (long long)d->k, (long long)d->batch);
  CLV_TRY(clv_alloc(1, sizeof *m, &m, err));
  m->device = device;
  clv_code code = make_matmul(m, d, err);
  if (code != CLV_OK) {
    clv_nvidia_matmul_free(m);
    return code;
  }
  *ret = m;
  *ret_workspace = m->workspace_bytes;
  return CLV_OK;
}

void clv_nvidia_matmul_free(clv_cuda_matmul *m) {
  if (!m) return;
  if (m->a) m->cublas->cublasLtMatrixLayoutDestroy(m->a);
  if (m->b) m->cublas->cublasLtMatrixLayoutDestroy(m->b);
  if (m->d) m->cublas->cublasLtMatrixLayoutDestroy(m->d);
  if (m->op) m->cublas->cublasLtMatmulDescDestroy(m->op);
  free(m);
}

static int alignment_case_of(const void *a, const void *b, const float *d) {
  uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)d;
  return bits % f32_alignment_bytes[ALIGNED] ? NOT_ALIGNED : ALIGNED;
}

clv_code clv_nvidia_matmul(clv_cuda_stream *s, clv_cuda_matmul *m, const void *a, const void *b,
                           const float *bias, float beta, float *d, void *workspace, clv_err *err) {
  static const float alpha = 1;
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  if (bias) CLV_TRY(set_bias(m, bias, err));
  LT_TRY(m, err, cublasLtMatmul, m->handle, m->op, &alpha, a, m->a, b, m->b, &beta, d, m->d, d,
         m->d, &m->algorithms[alignment_case_of(a, b, d)], workspace, m->workspace_bytes,
         s->stream);
  return CLV_OK;
}
