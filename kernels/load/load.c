/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads libcleave_cuda.so at run time: finds the file, opens it, checks its version,
 * and counts devices.
 */
#include "kernels/load/load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };

static const char library_name[] = "libcleave_cuda.so";

/* Folders in which the library is searched, relative to the program's folder: where the build puts
 * it, and where it is installed. */
static const char *const search_folders[] = {"", "../lib/cleave/"};

/* Writes the folder of the running program, with a slash, to ret; "" if it cannot be read. */
static void find_program_folder(char *ret, size_t len) {
  ssize_t n = readlink("/proc/self/exe", ret, len - 1);
  ret[n > 0 ? n : 0] = '\0';
  char *slash = strrchr(ret, '/');
  if (slash)
    slash[1] = '\0';
  else
    ret[0] = '\0';
}

/* Writes the path of the library to ret: configured_path, or if that is NULL or "", the first path
 * in search_folders at which there is a file. */
static clv_code find_file(const char *configured_path, char *ret, size_t len, clv_err *err) {
  char folder[MAX_PATH - 64];
  if (configured_path && configured_path[0]) {
    snprintf(ret, len, "%s", configured_path);
    if (access(ret, R_OK) == 0) return CLV_OK;
    return clv_fail(err, CLV_UNAVAILABLE,
                    "cuda.library: cannot read %s: correct the path, or remove the key",
                    configured_path);
  }
  find_program_folder(folder, sizeof folder);
  for (size_t i = 0; i < CLV_COUNT(search_folders); i++) {
    snprintf(ret, len, "%s%s%s", folder, search_folders[i], library_name);
    if (access(ret, R_OK) == 0) return CLV_OK;
  }
  return clv_fail(err, CLV_UNAVAILABLE,
                  "%s is neither in %.180s nor in %.180s%s: build it, or set cuda.library",
                  library_name, folder, folder, search_folders[1]);
}

static clv_code open_library(const char *path, const clv_cuda_library **ret, clv_err *err) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *loader_error = dlerror();
    return clv_fail(err, CLV_UNAVAILABLE, "%s does not load: %.300s", library_name,
                    loader_error ? loader_error : "the loader does not say why");
  }
  void *symbol = dlsym(handle, CLV_CUDA_ENTRY);
  clv_cuda_entry_fn *entry;
  memcpy(&entry, &symbol, sizeof entry);
  if (!entry)
    return clv_fail(err, CLV_UNAVAILABLE, "%.300s has no function %s", path, CLV_CUDA_ENTRY);
  const clv_cuda_library *l = entry(CLV_CUDA_ABI);
  if (!l || l->abi != CLV_CUDA_ABI || l->size != sizeof *l)
    return clv_fail(err, CLV_UNAVAILABLE,
                    "%.300s is of another version than this program, which needs interface %d",
                    path, CLV_CUDA_ABI);
  *ret = l;
  return CLV_OK;
}

/* Fails if there is no device. With all_reasons the error also says which library is missing, if
 * that is another reason. */
static clv_code check_has_device(const clv_cuda_library *l, bool all_reasons, clv_err *err) {
  clv_err reason, other_reasons;
  int n;
  clv_code code = l->count(&n, &reason);
  if (code == CLV_OK) return CLV_OK;
  if (!all_reasons || l->libraries(&other_reasons) == CLV_OK ||
      strcmp(reason.text, other_reasons.text) == 0)
    return clv_fail(err, code, "%s", reason.text);
  return clv_fail(err, code, "%.230s; and %.230s", reason.text, other_reasons.text);
}

static clv_code load_library(const clv_cuda_options *o, const clv_cuda_library **ret,
                             clv_err *err) {
  char path[MAX_PATH];
  CLV_TRY(find_file(o->file, path, sizeof path, err));
  CLV_TRY(open_library(path, ret, err));
  (*ret)->set_folders(o->folders && o->folders[0] ? o->folders : NULL);
  if (o->plans && o->plans[0])
    (*ret)->set_plan_store(clv_plan_store_in_folder(o->plans, o->notifier));
  return check_has_device(*ret, o->all_reasons, err);
}

clv_code clv_cuda_load(const clv_cuda_options *o, const clv_cuda_library **ret, clv_err *err) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static const clv_cuda_library *loaded_library;
  pthread_mutex_lock(&lock);
  clv_code code = CLV_OK;
  const clv_cuda_library *l = loaded_library;
  if (!l) code = load_library(o, &l, err);
  if (code == CLV_OK) *ret = loaded_library = l;
  pthread_mutex_unlock(&lock);
  return code;
}
