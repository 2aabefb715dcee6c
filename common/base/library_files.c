/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of the libraries that this process has loaded, and whether the Python wheel brought them.
 * The wheel's OpenSSL reads no openssl.cnf: that of the host was written for another OpenSSL.
 */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/base.h"

typedef struct file_search {
  const char *name;
  size_t name_len;
  char *ret;
  size_t len;
} file_search;

/* Stores the path without links and "..". */
static void store_path(const char *path, char *ret, size_t len) {
  CLV_AUTO(clv_freep) char *real = realpath(path, NULL);
  snprintf(ret, len, "%s", real ? real : path);
}

/* Called for each loaded file; returns 1 to end the search. The program itself has no name. */
static int compare_name(struct dl_phdr_info *info, size_t size, void *user) {
  file_search *s = user;
  const char *last_slash = strrchr(info->dlpi_name, '/'), *end;
  (void)size;
  if (!last_slash || strncmp(last_slash + 1, s->name, s->name_len) != 0) return 0;
  end = last_slash + 1 + s->name_len;
  if (*end != '-' && strncmp(end, ".so", 3) != 0) return 0;
  store_path(info->dlpi_name, s->ret, s->len);
  return 1;
}

bool clv_library_file_named(const char *name, char *ret, size_t len) {
  file_search s = {.name = name, .name_len = strlen(name), .ret = ret, .len = len};
  if (len) ret[0] = '\0';
  return dl_iterate_phdr(compare_name, &s) == 1;
}

bool clv_library_file_of(const void *address, char *ret, size_t len) {
  Dl_info info;
  bool found = dladdr(address, &info) && info.dli_fname;
  store_path(found ? info.dli_fname : "", ret, len);
  return found;
}

/* Runs when the program or libcleave is loaded, before any use of OpenSSL, which would read
 * openssl.cnf. OpenSSL frees nothing when the process exits: threads of a runtime that was not
 * closed may still use it then, and crashed. */
__attribute__((constructor)) static void start_openssl(void) {
  int (*function)(uint64_t, const OPENSSL_INIT_SETTINGS *) = OPENSSL_init_crypto;
  const void *address;
  char path[PATH_MAX];
  memcpy(&address, &function, sizeof address);
  bool is_of_wheel = clv_library_file_of(address, path, sizeof path) && clv_is_file_of_wheel(path);
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | (is_of_wheel ? OPENSSL_INIT_NO_LOAD_CONFIG : 0),
                      NULL);
}

bool clv_is_file_of_wheel(const char *path) {
  return strstr(path, "/cleave_runtime.libs/") || strstr(path, "/cleave/lib/");
}
