/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products, by oneDNN's sgemm, or by OpenBLAS on the calling thread. OpenBLAS is faster if A
 * is transposed and the sum is long, as in the weight gradient of large batches (choices.def). An
 * OpenBLAS whose vectors are narrower than oneDNN's is not used. An OpenBLAS that does not know the
 * processor takes kernels of an older one: for AVX2 on a Zen 5 (measured: 126 GFLOP/s against 250),
 * and for the SSE3 of a Prescott on an Intel Xeon of model 207.
 *
 * OpenBLAS starts a thread for each core when it is loaded; only an environment variable prevents
 * it. It counts the cores that the loading thread may run on. load_on_one_core therefore
 * restricts that set to one core while it loads the library: no thread is made, and nothing else
 * in the process changes.
 *
 * OpenBLAS has 16,000 references to its own symbols. The dynamic loader would look each of them up
 * in the 60 libraries of the program first. With OWN_SYMBOLS_FIRST the loader begins with OpenBLAS,
 * which takes 3 ms instead of 12 ms. Sanitizers, which replace functions of libc, refuse a library
 * that is loaded with this flag.
 */
#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/cpu/dnnl_int.h"

#ifndef __has_feature /* of clang, which does not define gcc's names */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { OWN_SYMBOLS_FIRST = 0 };
#else
enum { OWN_SYMBOLS_FIRST = RTLD_DEEPBIND };
#endif

typedef void sgemm_fn(CBLAS_LAYOUT, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint, blasint, blasint,
                      float, const float *, blasint, const float *, blasint, float, float *,
                      blasint);

static struct {
  pthread_once_t once;
  sgemm_fn *sgemm;
  /* the vectors of OpenBLAS's kernels are no narrower than oneDNN's */
  bool vectors_are_wide_enough;
  char version[96];
} blas = {.once = PTHREAD_ONCE_INIT, .version = "no OpenBLAS"};

/* Loads a library while the calling thread may run on only one core. */
static void *load_on_one_core(const char *name) {
  cpu_set_t all_cores, one_core;
  bool is_affinity_narrowed = false;
  if (!pthread_getaffinity_np(pthread_self(), sizeof all_cores, &all_cores) &&
      CPU_COUNT(&all_cores) > 1) {
    CPU_ZERO(&one_core);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one_core) == 0; i++)
      if (CPU_ISSET(i, &all_cores)) CPU_SET(i, &one_core);
    is_affinity_narrowed = !pthread_setaffinity_np(pthread_self(), sizeof one_core, &one_core);
  }
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | OWN_SYMBOLS_FIRST);
  if (is_affinity_narrowed) pthread_setaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  return library;
}

/* Stores the version, as "OpenBLAS 0.3.21 SkylakeX": the first two words of `config`, and
 * core_name, the processor whose kernels OpenBLAS uses. Appends the reason if OpenBLAS is not used
 * because its vectors are too narrow. */
static void store_version(const char *config, const char *core_name) {
  const char *end = strchr(config, ' ');
  if (end) end = strchr(end + 1, ' ');
  size_t len = end ? (size_t)(end - config) : strlen(config);
  snprintf(blas.version, sizeof blas.version, "%.*s %.20s%s", (int)CLV_MIN(len, 40), config,
           core_name, blas.vectors_are_wide_enough ? "" : " (not used: vectors too narrow)");
}

/* Returns the vector width of OpenBLAS's kernels for a processor: CPU_PLAIN, CPU_AVX2 or
 * CPU_AVX512. */
static int find_core_width(const char *core_name) {
  static const struct {
    const char *core_name;
    int width;
  } core_widths[] = {
      {"SkylakeX", CPU_AVX512}, {"Cooperlake", CPU_AVX512}, {"SapphireRapids", CPU_AVX512},
      {"Zen4", CPU_AVX512},     {"Zen5", CPU_AVX512},       {"Haswell", CPU_AVX2},
      {"Zen", CPU_AVX2}};
  for (size_t i = 0; i < CLV_COUNT(core_widths); i++)
    if (strcasecmp(core_name, core_widths[i].core_name) == 0) return core_widths[i].width;
  return CPU_PLAIN;
}

/* Returns the vector width of oneDNN's kernels. */
static int find_onednn_width(void) {
  unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), avx2_bits = dnnl_cpu_isa_avx2;
  if (clv_cpu_channel_block() == 16) return CPU_AVX512;
  return (isa & avx2_bits) == avx2_bits ? CPU_AVX2 : CPU_PLAIN;
}

static void load_blas(void) {
  sgemm_fn *sgemm;
  void (*set_threads)(int);
  char *(*get_config)(void);
  char *(*get_core_name)(void);
  void *library = load_on_one_core("libopenblas.so.0");
  if (!library) return;
  *(void **)&sgemm = dlsym(library, "cblas_sgemm");
  *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
  *(void **)&get_config = dlsym(library, "openblas_get_config");
  *(void **)&get_core_name = dlsym(library, "openblas_get_corename");
  if (!sgemm || !set_threads || !get_config || !get_core_name) return;
  set_threads(1);
  blas.vectors_are_wide_enough = find_core_width(get_core_name()) >= find_onednn_width();
  store_version(get_config(), get_core_name());
  blas.sgemm = sgemm;
}

bool clv_cpu_has_blas(void) {
  pthread_once(&blas.once, load_blas);
  return blas.sgemm != NULL;
}

bool clv_cpu_blas_vectors_are_wide_enough(void) {
  return clv_cpu_has_blas() && blas.vectors_are_wide_enough;
}

const char *clv_cpu_blas_version(void) {
  clv_cpu_has_blas();
  return blas.version;
}

clv_code clv_cpu_gemm_strided(const cpu_gemm *g, const float *a, int64_t lda, const float *b,
                              float beta, float *c, int64_t ldc, clv_err *err) {
  int64_t ldb = g->b_is_transposed ? g->k : g->n;
  CLV_AUTO(clv_cpu_release_signals) sigset_t previous_mask = clv_cpu_hold_signals();
  return clv_cpu_dnnl_check(
      dnnl_sgemm(g->a_is_transposed ? 'T' : 'N', g->b_is_transposed ? 'T' : 'N', g->m, g->n, g->k,
                 1, a, lda, b, ldb, beta, c, ldc),
      "sgemm", err);
}

clv_code clv_cpu_gemm(const cpu_gemm *g, const float *a, const float *b, float beta, float *c,
                      clv_err *err) {
  int64_t lda = g->a_is_transposed ? g->m : g->k, ldb = g->b_is_transposed ? g->k : g->n;
  if (g->uses_blas) {
    blas.sgemm(CblasRowMajor, g->a_is_transposed ? CblasTrans : CblasNoTrans,
               g->b_is_transposed ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n,
               (blasint)g->k, 1, a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)g->n);
    return CLV_OK;
  }
  return clv_cpu_gemm_strided(g, a, lda, b, beta, c, g->n, err);
}

/* clv_cpu_sum_columns adds up ROWS_AT_ONCE rows at a time, and then adds these partial sums. This
 * rounds less than one long sum, in an order that depends only on the number of rows. */
enum { ROWS_AT_ONCE = 256, COLUMNS_AT_ONCE = 64 };

CPU_INLINE void sum_columns_body(const float *src, size_t rows, size_t columns, float *dst,
                                 bool accumulate) {
  for (size_t first_column = 0; first_column < columns; first_column += COLUMNS_AT_ONCE) {
    float totals[COLUMNS_AT_ONCE] = {0}, partial_sums[COLUMNS_AT_ONCE];
    size_t n = CLV_MIN(columns - first_column, COLUMNS_AT_ONCE);
    for (size_t r = 0; r < rows; r += ROWS_AT_ONCE) {
      memset(partial_sums, 0, sizeof partial_sums);
      for (size_t i = r; i < CLV_MIN(r + ROWS_AT_ONCE, rows); i++)
        for (size_t j = 0; j < n; j++) partial_sums[j] += src[i * columns + first_column + j];
      for (size_t j = 0; j < n; j++) totals[j] += partial_sums[j];
    }
    for (size_t j = 0; j < n; j++)
      dst[first_column + j] = accumulate ? dst[first_column + j] + totals[j] : totals[j];
  }
}

CPU_CLONES(sum_columns,
           (const float *src, size_t rows, size_t columns, float *dst, bool accumulate),
           (src, rows, columns, dst, accumulate))

void clv_cpu_sum_columns(const float *src, size_t rows, size_t columns, float *dst,
                         bool accumulate) {
  sum_columns(src, rows, columns, dst, accumulate);
}

CPU_INLINE void add_bias_body(float *y, const float *b, size_t rows, size_t columns) {
  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < columns; j++) y[i * columns + j] += b[j];
}

CPU_CLONES(add_bias, (float *restrict y, const float *restrict b, size_t rows, size_t columns),
           (y, b, rows, columns))

void clv_cpu_add_bias(float *y, const float *b, size_t rows, size_t columns) {
  add_bias(y, b, rows, columns);
}
