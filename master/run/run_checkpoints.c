/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands `checkpoint ls` and `checkpoint verify`, and the list of the checkpoints of a run
 * folder that all commands on checkpoints use. Both commands only read, so they may be used while
 * the run trains. A checkpoint that the run deletes meanwhile is left out.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "master/run/run_int.h"

/* ---- the list of checkpoints ----------------------------------------------------------------- */

static void free_checkpoint(clv_run_checkpoint *c) {
  clv_manifest_clear(&c->manifest);
  free(c->folder);
}

void clv_run_checkpoints_free(clv_run_checkpoints *l) {
  if (!l) return;
  for (size_t i = 0; i < l->n; i++) free_checkpoint(&l->list[i]);
  free(l->list);
  *l = (clv_run_checkpoints){0};
}

/* Checks that the files that the manifest lists for the folder are there and have the listed
 * sizes. */
static clv_code check_sizes(const clv_run_checkpoint *c, clv_err *err) {
  for (size_t i = 0; i < c->manifest.n_files; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    const clv_manifest_file *f = &c->manifest.files[i];
    struct stat st;
    if (f->keeper_identity) continue;
    clv_bytes_printf(&path, "%s/%s", c->folder, f->name);
    if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    if (lstat(path.data, &st) != 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s: is in the manifest, but is missing: restore it",
                      path.data);
    if ((uint64_t)st.st_size != f->bytes)
      return clv_fail(err, CLV_DATA_LOSS, "%s: %lld bytes, the manifest says %llu", path.data,
                      (long long)st.st_size, (unsigned long long)f->bytes);
  }
  return CLV_OK;
}

static clv_code read_checkpoint(const char *dir, uint64_t step, clv_run_checkpoint *ret,
                                clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes folder = {0};
  clv_bytes_printf(&folder, "%s/checkpoint-%llu", dir, (unsigned long long)step);
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret = (clv_run_checkpoint){.step = step};
  ret->folder = clv_steal(&folder.data);
  clv_code code = clv_checkpoint_read_manifest(dir, step, &ret->manifest, &ret->problem);
  if (code == CLV_OK) code = check_sizes(ret, &ret->problem);
  if (code == CLV_OK) ret->problem.code = CLV_OK;
  return CLV_OK;
}

clv_code clv_run_checkpoints_read(const char *dir, clv_run_checkpoints *ret, clv_err *err) {
  CLV_AUTO(clv_run_checkpoints_free) clv_run_checkpoints l = {0};
  CLV_AUTO(clv_freep) uint64_t *steps = NULL;
  uint64_t best_step = clv_run_best_checkpoint_step(dir);
  bool has_newest = false;
  size_t n;
  CLV_TRY(clv_checkpoint_list_steps(dir, &steps, &n, err));
  CLV_TRY(clv_alloc(n, sizeof *l.list, &l.list, err));
  for (; l.n < n; l.n++) {
    clv_run_checkpoint *c = &l.list[l.n];
    CLV_TRY(read_checkpoint(dir, steps[l.n], c, err));
    c->is_best = c->step == best_step;
    c->is_newest = !has_newest && c->problem.code == CLV_OK;
    has_newest |= c->is_newest;
  }
  *ret = l;
  l = (clv_run_checkpoints){0};
  return CLV_OK;
}

static bool is_chosen(const clv_run_checkpoint *c, const char *checkpoint_name) {
  if (strcmp(checkpoint_name, "latest") == 0) return c->is_newest;
  if (strcmp(checkpoint_name, "best") == 0) return c->is_best;
  return c->step == strtoull(checkpoint_name, NULL, 10);
}

clv_code clv_run_checkpoints_choose(clv_run_checkpoints *l, const char *dir,
                                    const char *checkpoint_name, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  size_t n = 0;
  if (!checkpoint_name) return CLV_OK;
  for (size_t i = 0; i < l->n; i++) {
    if (is_chosen(&l->list[i], checkpoint_name))
      l->list[n++] = l->list[i];
    else
      free_checkpoint(&l->list[i]);
  }
  l->n = n;
  if (n) return CLV_OK;
  /* if the name is invalid, this call fails with the same error as `eval` */
  CLV_TRY(clv_run_find_checkpoint(dir, checkpoint_name, &c, NULL, err));
  return clv_fail(err, CLV_NOT_FOUND,
                  "run folder %s has no checkpoint '%s': `cleave-master checkpoint ls` lists them",
                  dir, checkpoint_name);
}

clv_exit_code clv_run_checkpoints_exit_code(const clv_err *err) {
  if (err->code == CLV_CANCELLED) return CLV_EXIT_INTERRUPTED;
  return err->code == CLV_NOT_FOUND ? CLV_EXIT_CHECKPOINT : clv_run_setup_exit_code(err);
}

/* ---- the command checkpoint ls --------------------------------------------------------------- */

void clv_run_append_worker_json(const clv_stores *s, const char *identity, clv_bytes *out) {
  clv_bytes_puts(out, ",\"worker\":");
  clv_bytes_add_json(out, clv_stores_worker_name(s, identity));
  clv_bytes_puts(out, ",\"place\":");
  clv_bytes_add_json(out, identity);
}

static void append_file_json(const clv_stores *s, const clv_manifest_file *f, clv_bytes *out) {
  char hex[65];
  clv_sha256_hex(&f->sha256, hex);
  clv_bytes_printf(out, "{\"name\":\"%s\",\"bytes\":%llu,\"sha256\":\"%s\"", f->name,
                   (unsigned long long)f->bytes, hex);
  if (f->keeper_identity) {
    clv_run_append_worker_json(s, f->keeper_identity, out);
    clv_bytes_printf(out, ",\"kept\":\"%s\"", f->kept_file_name);
  }
  clv_bytes_puts(out, "}");
}

static void append_checkpoint_json(const clv_stores *s, const clv_run_checkpoint *c,
                                   clv_bytes *out) {
  static const char *const bool_texts[] = {"false", "true"};
  clv_bytes_printf(out, "{\"step\":%llu,\"complete\":%s,\"home\":%s,\"newest\":%s,\"best\":%s",
                   (unsigned long long)c->step, bool_texts[c->problem.code == CLV_OK],
                   bool_texts[clv_manifest_has_all_files(&c->manifest)], bool_texts[c->is_newest],
                   bool_texts[c->is_best]);
  clv_bytes_puts(out, ",\"folder\":");
  clv_bytes_add_json(out, c->folder);
  if (c->problem.code != CLV_OK) {
    clv_bytes_puts(out, ",\"problem\":");
    clv_bytes_add_json(out, c->problem.text);
  }
  clv_bytes_puts(out, ",\"files\":[");
  for (size_t i = 0; i < c->manifest.n_files; i++) {
    if (i) clv_bytes_puts(out, ",");
    append_file_json(s, &c->manifest.files[i], out);
  }
  clv_bytes_puts(out, "]}\n");
}

static bool is_same_keeper(const char *a, const char *b) {
  return a == b || (a && b && strcmp(a, b) == 0);
}

/* Appends where the files of a checkpoint are and how large they are there, such as "home 1.2 MiB,
 * w1 3.4 MiB", in the order of the manifest. "home" is the run folder. */
static void append_keepers(const clv_stores *s, const clv_manifest *m, clv_bytes *out) {
  for (size_t i = 0; i < m->n_files; i++) {
    const char *keeper_identity = m->files[i].keeper_identity;
    uint64_t bytes = 0;
    size_t first_file = 0;
    char size_text[24];
    while (!is_same_keeper(m->files[first_file].keeper_identity, keeper_identity)) first_file++;
    if (first_file < i) continue;
    for (size_t k = i; k < m->n_files; k++)
      if (is_same_keeper(m->files[k].keeper_identity, keeper_identity)) bytes += m->files[k].bytes;
    clv_bytes_printf(out, "%s%s %s", i ? ", " : "",
                     keeper_identity ? clv_stores_worker_name(s, keeper_identity) : "home",
                     clv_format_size(bytes, size_text, sizeof size_text));
  }
}

static void append_checkpoint_line(const clv_stores *s, const clv_run_checkpoint *c,
                                   clv_bytes *out) {
  uint64_t bytes = 0;
  char size_text[24];
  for (size_t i = 0; i < c->manifest.n_files; i++) bytes += c->manifest.files[i].bytes;
  clv_bytes_printf(out, "checkpoint-%llu  ", (unsigned long long)c->step);
  if (c->manifest.n_files) {
    clv_bytes_printf(out, "%zu files  %s  ", c->manifest.n_files,
                     clv_format_size(bytes, size_text, sizeof size_text));
    append_keepers(s, &c->manifest, out);
    clv_bytes_puts(out, "  ");
  }
  clv_bytes_puts(out, c->problem.code == CLV_OK ? "complete" : "not usable");
  clv_bytes_printf(out, "%s%s\n", c->is_newest ? ", newest" : "", c->is_best ? ", best" : "");
  if (c->problem.code != CLV_OK) clv_bytes_printf(out, "    %s\n", c->problem.text);
}

/* Appends the orphans of the run folder: files at workers that belong to no checkpoint and await
 * removal. */
static clv_code append_orphans(const clv_session_config *config, const clv_stores *s,
                               bool writes_json, clv_bytes *out, clv_err *err) {
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0};
  uint64_t bytes = 0;
  char size[24];
  CLV_TRY(clv_orphans_read(config->checkpoint.dir, &l, err));
  for (size_t i = 0; i < l.n; i++) {
    bytes += l.list[i].bytes;
    if (!writes_json) continue;
    clv_bytes_printf(out, "{\"orphan\":\"%s\",\"bytes\":%llu", l.list[i].kept_file_name,
                     (unsigned long long)l.list[i].bytes);
    clv_run_append_worker_json(s, l.list[i].keeper_identity, out);
    clv_bytes_puts(out, "}\n");
  }
  if (l.n && !writes_json)
    clv_bytes_printf(out,
                     "%zu file%s that no checkpoint needs any more may still be at workers (%s): "
                     "`cleave-master checkpoint rm %s --orphans` removes them\n",
                     l.n, CLV_S(l.n), clv_format_size(bytes, size, sizeof size), config->file);
  return CLV_OK;
}

static clv_code list_checkpoints(const clv_session_config *config, bool writes_json, clv_bytes *out,
                                 clv_err *err) {
  CLV_AUTO(clv_run_checkpoints_free) clv_run_checkpoints l = {0};
  CLV_AUTO(clv_stores_freep) clv_stores *s = NULL;
  CLV_TRY(clv_stores_new(config, &s, err));
  CLV_TRY(clv_run_checkpoints_read(config->checkpoint.dir, &l, err));
  for (size_t i = 0; i < l.n; i++)
    (writes_json ? append_checkpoint_json : append_checkpoint_line)(s, &l.list[i], out);
  if (!l.n && !writes_json) clv_bytes_printf(out, "no checkpoint in %s\n", config->checkpoint.dir);
  CLV_TRY(append_orphans(config, s, writes_json, out, err));
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_exit_code clv_run_checkpoint_ls(const clv_session_config *config, const clv_run_options *o) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_err err;
  if (list_checkpoints(config, o->json, &out, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(clv_run_checkpoints_exit_code(&err), &err);
  fputs(out.data ? out.data : "", stdout);
  return CLV_EXIT_OK;
}

/* ---- the command checkpoint verify ----------------------------------------------------------- */

/* State of `checkpoint verify`: its options, and the exit code for the files compared so far. */
typedef struct verification {
  const clv_session_config *config;
  bool writes_json;
  bool asks_for_digests; /* compares the digests that workers report for their files; false: reads
                          * all files */
  clv_stores *stores;
  /* exit code of the worst problem: a damaged file is worse than a worker that cannot be reached */
  clv_exit_code exit_code;
} verification;

static void update_exit_code(verification *v, const clv_err *reason) {
  clv_exit_code code = clv_run_checkpoints_exit_code(reason);
  if (clv_stores_is_unreachable_error(reason) && code == CLV_EXIT_CHECKPOINT)
    code = CLV_EXIT_CONNECT;
  if (v->exit_code != CLV_EXIT_DATA) v->exit_code = code;
}

static void append_problem(const verification *v, const clv_run_checkpoint *c, const char *file,
                           const char *reason, size_t n_earlier_problems, clv_bytes *out) {
  if (!v->writes_json) {
    clv_bytes_printf(out, "checkpoint-%llu: %s\n", (unsigned long long)c->step, reason);
    return;
  }
  clv_bytes_puts(out, n_earlier_problems ? ",{\"file\":" : "{\"file\":");
  clv_bytes_add_json(out, file);
  clv_bytes_puts(out, ",\"message\":");
  clv_bytes_add_json(out, reason);
  clv_bytes_puts(out, "}");
}

/* Compares all files of a checkpoint with its manifest. Appends the problems, and returns their
 * number. */
static size_t verify_files(verification *v, const clv_run_checkpoint *c, clv_bytes *out) {
  size_t n = 0;
  for (size_t i = 0; i < c->manifest.n_files && v->exit_code != CLV_EXIT_INTERRUPTED; i++) {
    const clv_manifest_file *f = &c->manifest.files[i];
    clv_err reason;
    clv_code code = v->asks_for_digests
                        ? clv_stores_check_reported_digest(v->stores, c->folder, f, &reason)
                        : clv_stores_check_file(v->stores, c->folder, f, &reason);
    if (code == CLV_OK) continue;
    update_exit_code(v, &reason);
    append_problem(v, c, f->name, reason.text, n++, out);
  }
  return n;
}

/* Returns true if the run has deleted the checkpoint since it was listed. */
static bool has_been_deleted(const clv_run_checkpoint *c) {
  struct stat st;
  return c->manifest.n_files && lstat(c->folder, &st) != 0;
}

/* Returns true if the folder has no manifest: a run is writing the checkpoint now, or was killed
 * before it was complete. Such a folder counts as no checkpoint. */
static bool is_unfinished(const clv_run_checkpoint *c) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  struct stat st;
  clv_bytes_printf(&path, "%s/MANIFEST.json", c->folder);
  return !path.failed && lstat(path.data, &st) != 0 && errno == ENOENT;
}

static void verify_checkpoint(verification *v, const clv_run_checkpoint *c, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes problems = {0};
  const verification old_result = *v;
  size_t n = 0;
  if (c->manifest.n_files) {
    n = verify_files(v, c, &problems);
  } else {
    update_exit_code(v, &c->problem);
    append_problem(v, c, "MANIFEST.json", c->problem.text, n++, &problems);
  }
  if (has_been_deleted(c)) {
    v->exit_code = old_result.exit_code;
    return;
  }
  const char *text = problems.data ? problems.data : "";
  if (v->writes_json)
    clv_bytes_printf(out, "{\"step\":%llu,\"ok\":%s,\"files\":%zu,\"problems\":[%s]}\n",
                     (unsigned long long)c->step, n ? "false" : "true", c->manifest.n_files, text);
  else if (n)
    clv_bytes_puts(out, text);
  else
    clv_bytes_printf(out, "checkpoint-%llu: all %zu files are in order\n",
                     (unsigned long long)c->step, c->manifest.n_files);
}

clv_exit_code clv_run_checkpoint_verify(const clv_session_config *config,
                                        const clv_run_options *o) {
  CLV_AUTO(clv_run_checkpoints_free) clv_run_checkpoints l = {0};
  CLV_AUTO(clv_stores_freep) clv_stores *s = NULL;
  clv_err err;
  if (clv_stores_new(config, &s, &err) != CLV_OK ||
      clv_run_checkpoints_read(config->checkpoint.dir, &l, &err) != CLV_OK ||
      clv_run_checkpoints_choose(&l, config->checkpoint.dir, o->checkpoint, &err) != CLV_OK)
    return (clv_exit_code)clv_exit_report(clv_run_checkpoints_exit_code(&err), &err);
  verification v = {
      .config = config, .writes_json = o->json, .asks_for_digests = o->is_quick, .stores = s};
  for (size_t i = 0; i < l.n && v.exit_code != CLV_EXIT_INTERRUPTED; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    bool is_skipped = !o->checkpoint && is_unfinished(&l.list[i]);
    if (!is_skipped)
      verify_checkpoint(&v, &l.list[i], &out);
    else if (!o->json)
      clv_bytes_printf(&out, "checkpoint-%llu: not finished, so it counts as no checkpoint\n",
                       (unsigned long long)l.list[i].step);
    fputs(out.data && !out.failed ? out.data : "", stdout);
    fflush(stdout);
  }
  if (!l.n) printf("no checkpoint in %s\n", config->checkpoint.dir);
  return v.exit_code;
}
