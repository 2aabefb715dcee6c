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

/* Calls each() if e is a file. root: length of the folder's path with its slash; 0: the walk is
 * over a single file. */
static clv_code visit_entry(const FTSENT *e, size_t root, clv_file_fn *each, void *user,
                            clv_err *err) {
  clv_found_file f = {.path = e->fts_path, .name = e->fts_path};
  if (root && e->fts_pathlen > root) f.name += root;
  const char *slash = strchr(f.name, '/');
  if (root && slash) f.class_bytes = (size_t)(slash - f.name);
  return each(user, &f, err);
}

clv_code clv_documents_walk(const char *path, clv_file_fn *each, void *user, clv_err *err) {
  CLV_AUTO(clv_freep) char *start = NULL;
  clv_code code = CLV_OK;
  size_t root = 0;
  CLV_TRY(clv_strdup(path, &start, err));
  char *const roots[] = {start, NULL};
  FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, compare_names);
  if (!tree) return clv_fail(err, CLV_INVALID, "%s: cannot list the folder", path);
  for (FTSENT *e; code == CLV_OK && (e = fts_read(tree));) {
    if (e->fts_info == FTS_D && e->fts_level == 0)
      root = e->fts_pathlen + (size_t)(e->fts_path[e->fts_pathlen - 1] != '/');
    if (e->fts_name[0] == '.' && e->fts_level > 0)
      fts_set(tree, e, FTS_SKIP);
    else if (is_file(e))
      code = visit_entry(e, root, each, user, err);
  }
  fts_close(tree);
  return code;
}
