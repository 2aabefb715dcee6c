/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_documents_walk: the files below a folder, sorted by name.
 */
#include <fts.h>
#include <string.h>

#include "master/documents/documents.h"

static int compare_names(const FTSENT **a, const FTSENT **b) {
  return strcmp((*a)->fts_name, (*b)->fts_name);
}

static bool is_file(const FTSENT *e) {
  return e->fts_info == FTS_F || (e->fts_info == FTS_NS && e->fts_level == 0);
}

/* Calls visit_file() if e is a file. root_len: length of the folder's path with its slash; 0: the
 * walk is over a single file. */
static clv_code visit_entry(const FTSENT *e, size_t root_len, clv_file_fn *visit_file, void *user,
                            clv_err *err) {
  clv_found_file f = {.path = e->fts_path, .name = e->fts_path};
  if (root_len && e->fts_pathlen > root_len) f.name += root_len;
  const char *slash = strchr(f.name, '/');
  if (root_len && slash) f.class_name_len = (size_t)(slash - f.name);
  return visit_file(user, &f, err);
}

clv_code clv_documents_walk(const char *path, clv_file_fn *visit_file, void *user, clv_err *err) {
  CLV_AUTO(clv_freep) char *path_copy = NULL;
  clv_code code = CLV_OK;
  size_t root_len = 0;
  CLV_TRY(clv_strdup(path, &path_copy, err));
  char *const roots[] = {path_copy, NULL};
  FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, compare_names);
  if (!tree) return clv_fail(err, CLV_INVALID, "%s: cannot list the folder", path);
  for (FTSENT *e; code == CLV_OK && (e = fts_read(tree));) {
    if (e->fts_info == FTS_D && e->fts_level == 0)
      root_len = e->fts_pathlen + (size_t)(e->fts_path[e->fts_pathlen - 1] != '/');
    if (e->fts_name[0] == '.' && e->fts_level > 0)
      fts_set(tree, e, FTS_SKIP);
    else if (is_file(e))
      code = visit_entry(e, root_len, visit_file, user, err);
  }
  fts_close(tree);
  return code;
}
