/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens cuBLASLt and cuDNN when first needed, looks up their functions by name, and
 * reports their versions.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

typedef struct library_function {
  const char *name;
  size_t table_offset; /* offset of the function's pointer in the table */
} library_function;

typedef struct library {
  const char *file;
  const library_function *functions;
  size_t n;
  void *table;
  bool was_open_tried;
  clv_code code; /* result of opening the library; valid if was_open_tried */
  clv_err err;
} library;

static nvidia_cublas cublas_table;
static nvidia_cudnn cudnn_table;

static const library_function cublas_functions[] = {
#define CUBLAS(name) {#name, offsetof(nvidia_cublas, name)},
#define CUDNN(name)
#include "kernels/cuda/nvidia/functions.def"
#undef CUBLAS
#undef CUDNN
};
static const library_function cudnn_functions[] = {
#define CUBLAS(name)
#define CUDNN(name) {#name, offsetof(nvidia_cudnn, name)},
#include "kernels/cuda/nvidia/functions.def"
#undef CUBLAS
#undef CUDNN
};

static library cublas = {.file = "libcublasLt.so." CLV_STR(CUBLAS_VER_MAJOR),
                         .functions = cublas_functions,
                         .n = CLV_COUNT(cublas_functions),
                         .table = &cublas_table};
static library cudnn = {.file = "libcudnn.so." CLV_STR(CUDNN_MAJOR),
                        .functions = cudnn_functions,
                        .n = CLV_COUNT(cudnn_functions),
                        .table = &cudnn_table};

static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER;
static char search_folders[4096]; /* folders that are searched first, separated by colons */

void clv_nvidia_set_folders(const char *folders) {
  pthread_mutex_lock(&libraries_lock);
  snprintf(search_folders, sizeof search_folders, "%s", folders ? folders : "");
  pthread_mutex_unlock(&libraries_lock);
}

/* Opens the library in one of search_folders, or else where the loader finds it. */
static void *open_library_file(const char *file) {
  char path[4096 + 64];
  for (const char *folder = search_folders; *folder;) {
    size_t n = strcspn(folder, ":");
    snprintf(path, sizeof path, "%.*s/%s", (int)n, folder, file);
    void *handle = n ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (handle) return handle;
    folder += n + (folder[n] == ':');
  }
  return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

/* Environment variable with size and number of cuBLAS's workspace buffers. With only one size
 * cuBLAS adds in the same order whether or not another stream uses the buffers. cuBLAS reads the
 * variable when cuDNN first uses it. */
static const char buffers_variable[] = "CUBLAS_WORKSPACE_CONFIG", one_buffer_size[] = ":4096:2";

static clv_code load_functions(library *l) {
  if (l == &cudnn) setenv(buffers_variable, one_buffer_size, 0);
  void *handle = open_library_file(l->file);
  if (!handle) {
    const char *why = dlerror();
    return clv_fail(&l->err, CLV_UNAVAILABLE, "%s was not opened%s%.200s: %.200s", l->file,
                    search_folders[0] ? " from " : "", search_folders,
                    why ? why : "the loader does not say why");
  }
  for (size_t i = 0; i < l->n; i++) {
    void *address = dlsym(handle, l->functions[i].name);
    if (!address)
      return clv_fail(&l->err, CLV_UNAVAILABLE, "%s has no function %s: it is of another version",
                      l->file, l->functions[i].name);
    memcpy((char *)l->table + l->functions[i].table_offset, &address, sizeof address);
  }
  return CLV_OK;
}

static clv_code open_library_once(library *l, clv_err *err) {
  pthread_mutex_lock(&libraries_lock);
  if (!l->was_open_tried) l->code = load_functions(l);
  l->was_open_tried = true;
  pthread_mutex_unlock(&libraries_lock);
  if (l->code != CLV_OK && err) *err = l->err;
  return l->code;
}

clv_code clv_nvidia_cublas(const nvidia_cublas **ret, clv_err *err) {
  CLV_TRY(open_library_once(&cublas, err));
  *ret = &cublas_table;
  return CLV_OK;
}

/* Oldest supported version of cuDNN; older versions do not accept the description of a device. */
enum { MIN_CUDNN_VERSION = 90800 };

clv_code clv_nvidia_check_determinism(clv_err *err) {
  const char *value = getenv(buffers_variable);
  size_t n_colons = 0;
  for (const char *c = value ? value : ""; *c; c++) n_colons += *c == ':';
  if (n_colons == 2) return CLV_OK;
  return clv_fail(err, CLV_UNIMPLEMENTED, "%s is %.40s: an LSTM of cuDNN needs one size, as in %s",
                  buffers_variable, value ? value : "not set", one_buffer_size);
}

clv_code clv_nvidia_cudnn(const nvidia_cudnn **ret, clv_err *err) {
  CLV_TRY(open_library_once(&cudnn, err));
  size_t version = cudnn_table.cudnnGetVersion();
  if (version < MIN_CUDNN_VERSION)
    return clv_fail(err, CLV_UNAVAILABLE, "%s is of version %zu, older than %d", cudnn.file,
                    version, MIN_CUDNN_VERSION);
  *ret = &cudnn_table;
  return CLV_OK;
}

/* Prints a library's name and version. The version is one number, with the major part in units of
 * major_unit and the minor part in units of 100: if major_unit is 10000, 130100 is 13.1.0. */
static void print_version(char *ret, size_t len, const char *name, size_t version,
                          size_t major_unit) {
  snprintf(ret, len, "%s %zu.%zu.%zu", name, version / major_unit, version % major_unit / 100,
           version % 100);
}

void clv_nvidia_versions(char *ret, size_t len) {
  const nvidia_cublas *b;
  const nvidia_cudnn *d;
  char cublas_text[32] = "no cuBLASLt", cudnn_text[32] = "no cuDNN";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (clv_nvidia_cublas(&b, NULL) == CLV_OK)
    print_version(cublas_text, sizeof cublas_text, "cuBLASLt", b->cublasLtGetVersion(), 10000);
  if (clv_nvidia_cudnn(&d, NULL) == CLV_OK)
    print_version(cudnn_text, sizeof cudnn_text, "cuDNN", d->cudnnGetVersion(), 10000);
  snprintf(ret, len, "driver %d.%d, %s, %s", driver / 1000, driver % 1000 / 10, cublas_text,
           cudnn_text);
}
