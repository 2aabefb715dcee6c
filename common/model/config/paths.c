/* SPDX-License-Identifier: Apache-2.0
 *
 * Row paths of the schema tables, and file paths in configs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model/config/schema_int.h"

const char *clv_row_key(const clv_row *row, const char *prefix) {
  size_t n = strlen(prefix);
  if (strncmp(row->path, prefix, n) != 0) return NULL;
  const char *key = row->path + n;
  return strchr(key, '.') ? NULL : key;
}

bool clv_row_has_scalar_form(const clv_schema *schema, const clv_row *row) {
  return row + 1 < schema->rows + schema->n_rows && strcmp(row[1].path, row->path) == 0;
}

void clv_row_write_inner_prefix(const clv_row *row, char inner[CLV_PATH_MAX]) {
  const char *mark = row->kind == CLV_ROW_LIST ? "[]." : row->kind == CLV_ROW_MAP ? "{}." : ".";
  snprintf(inner, CLV_PATH_MAX, "%s%s", row->path, mark);
}

bool clv_schema_has_key(const clv_schema *schema, const char *prefix, const char *key) {
  for (size_t i = 0; i < schema->n_rows; i++) {
    const clv_row *row = &schema->rows[i];
    const char *row_key = clv_row_key(row, prefix);
    if (!row_key || row->kind == CLV_ROW_ATTRS) continue;
    if (strcmp(row_key, key) == 0 || (row->old_name && strcmp(row->old_name, key) == 0))
      return true;
  }
  return false;
}

bool clv_path_can_join(const char *folder, const char *path) {
  size_t folder_len = path[0] == '/' ? 0 : strlen(folder) + 1;
  return folder_len + strlen(path) <= CLV_CONFIG_MAX_TEXT;
}

clv_code clv_path_join(const char *folder, const char *path, char **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes joined = {0};
  while (strncmp(path, "./", 2) == 0) path += 2;
  if (path[0] == '/' || strcmp(path, ".") == 0)
    clv_bytes_puts(&joined, path[0] == '/' ? path : folder);
  else
    clv_bytes_printf(&joined, "%s%s%s", folder, strcmp(folder, "/") == 0 ? "" : "/", path);
  if (joined.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a path");
  return clv_strdup(joined.data, ret, err);
}

clv_code clv_path_folder_of_file(const char *file, char **ret, clv_err *err) {
  const char *slash = strrchr(file, '/');
  if (slash == file) return clv_strdup("/", ret, err);
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0};
  clv_bytes_add(&folder, file, slash ? (size_t)(slash - file) : 0);
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a path");
  if (file[0] == '/') return clv_strdup(folder.data, ret, err);
  CLV_AUTO(clv_freep) char *here = getcwd(NULL, 0);
  if (!here) return clv_fail(err, CLV_NOT_FOUND, "the working folder has no path any more");
  return clv_path_join(here, slash ? folder.data : ".", ret, err);
}
