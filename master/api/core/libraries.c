/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the versions and paths of OpenSSL, gRPC, oneDNN and OpenBLAS in this process
 * (cleave_libraries).
 */
#include <stdio.h>
#include <string.h>

#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "kernels/kernels.h"
#include "master/api/core/core_int.h"

/* Fills a row of cleave_libraries from the part of the CPU backend's text that begins with the
 * library's name. Such a text is "oneDNN 2.6.3, OpenBLAS 0.3.21 SkylakeX". */
static void fill_backend_row(const char *name, const char *file, cleave_library *row) {
  const char *text = strstr(clv_backend_libraries(clv_backend_cpu()), name);
  const char *version = text ? text + strlen(name) + 1 : "";
  snprintf(row->name, sizeof row->name, "%s", name);
  snprintf(row->version, sizeof row->version, "%.*s", (int)strcspn(version, ","), version);
  clv_library_file_named(file, row->path, sizeof row->path);
}

size_t cleave_libraries(cleave_library *libraries, size_t n) {
  cleave_library rows[CLEAVE_LIBRARIES] = {{.name = "OpenSSL"}, {.name = "gRPC core"}};
  snprintf(rows[0].version, sizeof rows[0].version, "%s",
           clv_tls_library_version(rows[0].path, sizeof rows[0].path));
  snprintf(rows[1].version, sizeof rows[1].version, "%s",
           clv_rpc_library_version(rows[1].path, sizeof rows[1].path));
  fill_backend_row("oneDNN", "libdnnl", &rows[2]);
  fill_backend_row("OpenBLAS", "libopenblas", &rows[3]);
  n = CLV_MIN(n, (size_t)CLEAVE_LIBRARIES);
  for (size_t i = 0; i < n; i++) {
    rows[i].is_of_wheel = clv_is_file_of_wheel(rows[i].path);
    libraries[i] = rows[i];
  }
  return n;
}
