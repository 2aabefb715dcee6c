/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products, by oneDNN's sgemm or on the calling thread by OpenBLAS, which is faster where A
 * is transposed and the sum long, as in the weight gradient of large batches (choices.def). An
 * OpenBLAS whose vectors are narrower than the processor's is not used: one that does not know the
 * processor takes kernels for AVX2 on a Zen 5 (measured: 126 GFLOP/s against 250), and those for
 * SSE3 of a Prescott on an Intel Xeon of model 207.
 *
 * OpenBLAS starts a thread for each core when it is loaded; only an environment variable prevents
 * it. It counts the cores that the loading thread may run on. load_on_one_core therefore
 * restricts that set to one core while it loads the library: no thread is made, and nothing else
 * in the process changes.
 *
 * OpenBLAS has 16,000 references to its own symbols. The dynamic loader would look each of them up
 * in the 60 libraries of the program first. OWN_SYMBOLS_FIRST lets it begin with OpenBLAS: 3 ms
 * instead of 12 ms of each start of a process. Sanitizers, which replace functions of libc, refuse
 * a library that is loaded so.
 */
#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/cpu/dnnl_int.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
  bool is_as_wide; /* the vectors of OpenBLAS's kernels are no narrower than oneDNN's */
  char version[96];
} blas = {.once = PTHREAD_ONCE_INIT, .version = "no OpenBLAS"};

static void *load_on_one_core(const char *name) {
  cpu_set_t all_cores, one_core;
  bool is_narrowed = false;
  if (!pthread_getaffinity_np(pthread_self(), sizeof all_cores, &all_cores) &&
      CPU_COUNT(&all_cores) > 1) {
    CPU_ZERO(&one_core);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one_core) == 0; i++)
      if (CPU_ISSET(i, &all_cores)) CPU_SET(i, &one_core);
    is_narrowed = !pthread_setaffinity_np(pthread_self(), sizeof one_core, &one_core);
  }
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | OWN_SYMBOLS_FIRST);
  if (is_narrowed) pthread_setaffinity_np(pthread_self(), sizeof all_cores, &all_cores);
  return library;
}

/* Stores the version, as "OpenBLAS 0.3.21 SkylakeX": the first two words of `config`, and `core`,
 * the processor whose kernels OpenBLAS uses. Appends the reason if OpenBLAS is not used because its
 * vectors are too narrow. */
static void store_version(const char *config, const char *core) {
  const char *end = strchr(config, ' ');
  if (end) end = strchr(end + 1, ' ');
  size_t len = end ? (size_t)(end - config) : strlen(config);
  snprintf(blas.version, sizeof blas.version, "%.*s %.20s%s", (int)CLV_MIN(len, 40), config, core,
           blas.is_as_wide ? "" : " (not used: vectors too narrow)");
}

/* Returns the vector width of the kernels for a processor: CPU_PLAIN, CPU_AVX2 or CPU_AVX512. */
static int find_core_width(const char *core) {
  static const struct {
    const char *core;
    int width;
  } rows[] = {{"SkylakeX", CPU_AVX512}, {"Cooperlake", CPU_AVX512}, {"SapphireRapids", CPU_AVX512},
              {"Zen4", CPU_AVX512},     {"Zen5", CPU_AVX512},       {"Haswell", CPU_AVX2},
              {"Zen", CPU_AVX2}};
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (strcasecmp(core, rows[i].core) == 0) return rows[i].width;
  return CPU_PLAIN;
}

/* Returns the vector width of oneDNN's kernels. */
static int find_onednn_width(void) {
  unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), avx2 = dnnl_cpu_isa_avx2;
  if (clv_cpu_block() == 16) return CPU_AVX512;
  return (isa & avx2) == avx2 ? CPU_AVX2 : CPU_PLAIN;
}

static void load_blas(void) {
  sgemm_fn *sgemm;
  void (*set_threads)(int);
  char *(*config)(void);
  char *(*core)(void);
  void *library = load_on_one_core("libopenblas.so.0");
  if (!library) return;
  *(void **)&sgemm = dlsym(library, "cblas_sgemm");
  *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
  *(void **)&config = dlsym(library, "openblas_get_config");
  *(void **)&core = dlsym(library, "openblas_get_corename");
  if (!sgemm || !set_threads || !config || !core) return;
  set_threads(1);
  blas.is_as_wide = find_core_width(core()) >= find_onednn_width();
  store_version(config(), core());
  blas.sgemm = sgemm;
}

bool clv_cpu_has_blas(void) {
  pthread_once(&blas.once, load_blas);
  return blas.sgemm != NULL;
}

bool clv_cpu_blas_is_as_wide(void) { return clv_cpu_has_blas() && blas.is_as_wide; }

const char *clv_cpu_blas_version(void) {
  clv_cpu_has_blas();
  return blas.version;
}

clv_code clv_cpu_gemm_strided(const cpu_gemm *g, const float *a, int64_t lda, const float *b,
                              float beta, float *c, int64_t ldc, clv_err *err) {
  int64_t ldb = g->b_t ? g->k : g->n;
  CLV_AUTO(clv_cpu_release_signals) sigset_t previous_signals = clv_cpu_hold_signals();
  return clv_cpu_dnnl_check(dnnl_sgemm(g->a_t ? 'T' : 'N', g->b_t ? 'T' : 'N', g->m, g->n, g->k, 1,
                                       a, lda, b, ldb, beta, c, ldc),
                            "sgemm", err);
}

clv_code clv_cpu_gemm(const cpu_gemm *g, const float *a, const float *b, float beta, float *c,
                      clv_err *err) {
  int64_t lda = g->a_t ? g->m : g->k, ldb = g->b_t ? g->k : g->n;
  if (g->uses_blas) {
    blas.sgemm(CblasRowMajor, g->a_t ? CblasTrans : CblasNoTrans,
               g->b_t ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k, 1,
               a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)g->n);
    return CLV_OK;
  }
  return clv_cpu_gemm_strided(g, a, lda, b, beta, c, g->n, err);
}

/* clv_cpu_column_sums adds ROWS rows at a time, and then their sums: this rounds less than one long
 * sum, in an order that depends only on the number of rows. */
enum { ROWS = 256, COLUMNS = 64 };

CPU_INLINE void column_sums_body(const float *src, size_t rows, size_t columns, float *dst,
                                 bool accumulate) {
  for (size_t first = 0; first < columns; first += COLUMNS) {
    float total[COLUMNS] = {0}, run[COLUMNS];
    size_t n = CLV_MIN(columns - first, COLUMNS);
    for (size_t r = 0; r < rows; r += ROWS) {
      memset(run, 0, sizeof run);
      for (size_t i = r; i < CLV_MIN(r + ROWS, rows); i++)
        for (size_t j = 0; j < n; j++) run[j] += src[i * columns + first + j];
      for (size_t j = 0; j < n; j++) total[j] += run[j];
    }
    for (size_t j = 0; j < n; j++)
      dst[first + j] = accumulate ? dst[first + j] + total[j] : total[j];
  }
}

CPU_CLONES(column_sums,
           (const float *src, size_t rows, size_t columns, float *dst, bool accumulate),
           (src, rows, columns, dst, accumulate))

void clv_cpu_column_sums(const float *src, size_t rows, size_t columns, float *dst,
                         bool accumulate) {
  column_sums(src, rows, columns, dst, accumulate);
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
