/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks by digests that a resumed run continues with the records and labels that it began with,
 * and that `eval`, `predict` and `export` read the model's files that the run began with. The run
 * folder has a file data.digest with a line for each part of a set and for each of the model's
 * files:
 *
 *   train.input.records 60 3f5c...    the inputs, by name, and how many records there are
 *   train.labels 60 9a01...
 *   train.stamp 60 77b2...            images only: if unchanged, the images are not read again
 *   train.rows 54 0c4e...             the records to train on, after limits and validation
 *   model.config 1 5e1b...            config.json of model.hf
 *   tokenizer.file 1 c07d...          data.tokenizer.file
 *   validation.rows 6 ..., test.input.records ..., test.labels ..., test.rows ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/run/run_int.h"

enum { MAX_DIGESTS_FILE_BYTES = 1 << 16, PART_TEXT_BYTES = 80, MAX_CHANGES_SHOWN = 3 };

/* ---- the file data.digest -------------------------------------------------------------------- */

static void append_digest_line(const clv_data_digest *p, clv_bytes *out) {
  char hex[65];
  clv_sha256_hex(&p->digest, hex);
  clv_bytes_printf(out, "%s %llu %s\n", p->name, (unsigned long long)p->records, hex);
}

/* Parses a line without its newline. Accepts only the exact form that append_digest_line writes. */
static bool parse_digest_line(const char *line, size_t len, clv_data_digest *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes rewritten = {0};
  size_t n = strcspn(line, " \n");
  if (!n || n >= sizeof ret->name || line[n] != ' ' || len < 66 + n) return false;
  *ret = (clv_data_digest){.records = strtoull(line + n + 1, NULL, 10)};
  memcpy(ret->name, line, n);
  char hex[65] = "";
  memcpy(hex, line + len - 64, 64);
  if (!clv_sha256_parse(hex, &ret->digest)) return false;
  append_digest_line(ret, &rewritten);
  return !rewritten.failed && rewritten.len == len + 1 && memcmp(rewritten.data, line, len) == 0;
}

static const clv_data_digest *find_digest(const clv_data_digests *digests, const char *name) {
  for (size_t i = 0; i < digests->n; i++)
    if (strcmp(digests->list[i].name, name) == 0) return &digests->list[i];
  return NULL;
}

clv_code clv_data_digests_parse(const char *text, size_t len, const char *label,
                                clv_data_digests *ret, clv_err *err) {
  clv_data_digests digests = {0};
  for (size_t at = 0; at < len; digests.n++) {
    const char *line_end = memchr(text + at, '\n', len - at);
    if (!line_end || digests.n == CLV_MAX_DATA_DIGESTS ||
        !parse_digest_line(text + at, (size_t)(line_end - text) - at, &digests.list[digests.n]))
      return clv_fail(err, CLV_DATA_LOSS, "%s is damaged: line %zu is not a data digest", label,
                      digests.n + 1);
    if (find_digest(&digests, digests.list[digests.n].name))
      return clv_fail(err, CLV_DATA_LOSS, "%s is damaged: line %zu has the name '%s' again", label,
                      digests.n + 1, digests.list[digests.n].name);
    at = (size_t)(line_end - text) + 1;
  }
  if (!digests.n) return clv_fail(err, CLV_DATA_LOSS, "%s is damaged: it is empty", label);
  *ret = digests;
  return CLV_OK;
}

static clv_code read_digests(const char *dir, clv_data_digests *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/" CLV_RUN_DATA_FILE, dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, MAX_DIGESTS_FILE_BYTES, &text, err));
  return clv_data_digests_parse(text.data ? text.data : "", text.len, path.data, ret, err);
}

/* ---- computing digests of sets and model files ----------------------------------------------- */

typedef struct digested_set {
  const char *name; /* "train", "validation" or "test", as in the names of data.digest */
  const clv_dataset *ds;
  const clv_subset *rows;
  bool digests_rows_only; /* another set has the same records, so only the rows get a digest */
} digested_set;

enum { MAX_SETS = 3 };

static size_t list_digested_sets(const clv_run *r, digested_set sets[MAX_SETS]) {
  size_t n = 0;
  const clv_run_data *d = &r->data;
  sets[n++] = (digested_set){"train", d->train, &d->train_rows, false};
  if (d->validation_rows.n)
    sets[n++] = (digested_set){"validation", d->train, &d->validation_rows, true};
  if (d->test) sets[n++] = (digested_set){"test", d->test, &d->test_rows, false};
  return n;
}

static clv_data_digest *append_digest(clv_data_digests *to, const digested_set *s, const char *kind,
                                      const char *suffix, uint64_t records) {
  clv_data_digest *p = &to->list[to->n++];
  p->records = records;
  snprintf(p->name, sizeof p->name, "%s.%s%s", s->name, kind, suffix);
  return p;
}

/* Tells the user that the images are read for their digest, which takes time. */
static void print_digest_notice(const digested_set *s) {
  if (isatty(STDERR_FILENO))
    clv_notice(CLV_LOG_INFO, "digest", "data.%s: computing the digest of %zu images", s->name,
               clv_dataset_count(s->ds));
}

static clv_code compute_part_digest(const digested_set *s, size_t k, const clv_data_digest *stamp,
                                    const clv_data_digests *earlier_digests,
                                    clv_data_digests *present_digests, clv_err *err) {
  bool is_labels =
      strcmp(clv_dataset_part_name(s->ds, k), "labels") == 0 && k >= clv_dataset_input_count(s->ds);
  clv_data_digest *p =
      append_digest(present_digests, s, is_labels ? "labels" : "input.",
                    is_labels ? "" : clv_dataset_part_name(s->ds, k), clv_dataset_count(s->ds));
  const clv_data_digest *earlier_part = find_digest(earlier_digests, p->name),
                        *earlier_stamp = stamp ? find_digest(earlier_digests, stamp->name) : NULL;
  bool has_same_files =
      earlier_part && earlier_stamp &&
      memcmp(&earlier_stamp->digest, &stamp->digest, sizeof earlier_stamp->digest) == 0;
  if (!is_labels && has_same_files) {
    p->digest = earlier_part->digest;
    return CLV_OK;
  }
  if (stamp && !is_labels) print_digest_notice(s);
  return clv_dataset_digest(s->ds, k, &p->digest, err);
}

static clv_code compute_set_digests(const digested_set *s, const clv_data_digests *earlier_digests,
                                    clv_data_digests *present_digests, clv_err *err) {
  static const clv_sha256 zero_digest;
  clv_sha256 stamp_digest;
  clv_data_digest *stamp = NULL;
  CLV_TRY(clv_dataset_digest_file_stamps(s->ds, &stamp_digest, err));
  if (memcmp(&stamp_digest, &zero_digest, sizeof stamp_digest) != 0 && !s->digests_rows_only) {
    stamp = append_digest(present_digests, s, "stamp", "", clv_dataset_count(s->ds));
    stamp->digest = stamp_digest;
  }
  for (size_t k = 0; k < clv_dataset_part_count(s->ds) && !s->digests_rows_only; k++)
    CLV_TRY(compute_part_digest(s, k, stamp, earlier_digests, present_digests, err));
  clv_data_digest *rows_digest = append_digest(present_digests, s, "rows", "", s->rows->n);
  return clv_subset_digest(s->ds, s->rows, &rows_digest->digest, err);
}

/* A file that affects what the records mean to the model, such as the tokenizer's. */
typedef struct model_file {
  const char *part, *name; /* name of the line in data.digest; name in messages */
  /* returns the path of the file or of its folder; NULL: the session has none */
  const char *(*get_path)(const clv_session_config *c);
  /* "/" and the file's name; "": get_path returns the path of the file */
  const char *file_in_folder;
} model_file;

static const char *get_model_folder(const clv_session_config *c) { return c->model.hf; }
static const char *get_tokenizer_file(const clv_session_config *c) {
  return c->data.tokenizer.file;
}

static const model_file model_files[CLV_DATA_FILES] = {
    {"model.config", "config.json of model.hf", get_model_folder, "/config.json"},
    {"tokenizer.file", "data.tokenizer.file", get_tokenizer_file, ""}};

static const model_file *find_model_file(const char *part) {
  for (size_t i = 0; i < CLV_COUNT(model_files); i++)
    if (strcmp(model_files[i].part, part) == 0) return &model_files[i];
  return NULL;
}

static clv_code compute_file_digest(const clv_session_config *c, const model_file *f,
                                    clv_data_digests *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_data_digest *p = &ret->list[ret->n];
  if (!f->get_path(c)) return CLV_OK;
  *p = (clv_data_digest){.records = 1};
  snprintf(p->name, sizeof p->name, "%s", f->part);
  clv_bytes_printf(&path, "%s%s", f->get_path(c), f->file_in_folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_file(path.data, &p->digest, err));
  ret->n++;
  return CLV_OK;
}

/* Computes the digests of the model's files. Call before the digests of the sets are computed:
 * messages name the first MAX_CHANGES_SHOWN changes, and a changed file may be why a set has
 * changed. */
static clv_code compute_file_digests(const clv_session_config *c, clv_data_digests *ret,
                                     clv_err *err) {
  ret->n = 0;
  for (size_t i = 0; i < CLV_COUNT(model_files); i++)
    CLV_TRY(compute_file_digest(c, &model_files[i], ret, err));
  return CLV_OK;
}

static clv_code compute_data_digests(clv_run *r, const clv_data_digests *earlier_digests,
                                     clv_err *err) {
  digested_set sets[MAX_SETS];
  size_t n = list_digested_sets(r, sets);
  CLV_TRY(compute_file_digests(r->config, &r->data_digests, err));
  for (size_t i = 0; i < n; i++)
    CLV_TRY(compute_set_digests(&sets[i], earlier_digests, &r->data_digests, err));
  return CLV_OK;
}

/* ---- comparing digests with those in data.digest --------------------------------------------- */

static bool has_suffix(const char *name, const char *suffix) {
  size_t n = strlen(name), k = strlen(suffix);
  return n > k && strcmp(name + n - k, suffix) == 0;
}

/* Appends the name of a part for messages, such as "labels of data.train (y.npy)". */
static void append_part_name(const clv_run *r, const clv_data_digest *p, clv_bytes *out) {
  digested_set sets[MAX_SETS];
  size_t n = list_digested_sets(r, sets), len = strcspn(p->name, ".");
  const char *part = p->name + len + 1;
  const model_file *file = find_model_file(p->name);
  if (file) {
    clv_bytes_printf(out, "%s (%s)", file->name, file->get_path(r->config));
    return;
  }
  if (strncmp(part, "input.", 6) == 0) part += 6;
  if (strcmp(part, "rows") == 0) part = "choice of records";
  clv_bytes_printf(out, "%s of data.%.*s", part, (int)len, p->name);
  for (size_t i = 0; i < n && !has_suffix(p->name, ".rows"); i++)
    for (size_t k = 0;
         k < clv_dataset_part_count(sets[i].ds) && strncmp(sets[i].name, p->name, len) == 0; k++)
      if (strcmp(part, clv_dataset_part_name(sets[i].ds, k)) == 0) {
        clv_bytes_printf(out, " (%s)", clv_dataset_part_path(sets[i].ds, k));
        return;
      }
}

static bool has_digest_of_set(const clv_data_digests *digests, const char *name) {
  size_t len = strcspn(name, ".") + 1;
  for (size_t i = 0; i < digests->n; i++)
    if (strncmp(digests->list[i].name, name, len) == 0) return true;
  return false;
}

/* Returns true if a part differs from `earlier_digests`. A part does not count as changed if
 * `earlier_digests` has no part of its set, for example because the user has added a test set. */
static bool has_digest_changed(const clv_data_digests *earlier_digests,
                               const clv_data_digest *present_digest) {
  const clv_data_digest *earlier_digest = find_digest(earlier_digests, present_digest->name);
  if (has_suffix(present_digest->name, ".stamp")) return false;
  if (!earlier_digest) return has_digest_of_set(earlier_digests, present_digest->name);
  return earlier_digest->records != present_digest->records ||
         memcmp(&earlier_digest->digest, &present_digest->digest, sizeof earlier_digest->digest);
}

/* Formats a part as "50 records, digest 3f5c9a01b2c3". The digest is keyed by the secret of the
 * run, so that a reader of the log cannot find the labels by computing the digests of all possible
 * labels. */
static void format_part_for_message(const clv_run *r, const clv_data_digest *p,
                                    char text[PART_TEXT_BYTES]) {
  char hex[65];
  clv_sha256 keyed_digest = {{0}};
  (void)!clv_hmac_sha256(&r->secret, &p->digest, sizeof p->digest, &keyed_digest, NULL);
  clv_sha256_hex(&keyed_digest, hex);
  snprintf(text, PART_TEXT_BYTES, "%llu records, digest %.12s", (unsigned long long)p->records,
           hex);
}

static void add_change(clv_run *r, const clv_data_digest *earlier_digest,
                       const clv_data_digest *present_digest) {
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
  char before[PART_TEXT_BYTES] = "none", after[PART_TEXT_BYTES];
  if (earlier_digest) format_part_for_message(r, earlier_digest, before);
  format_part_for_message(r, present_digest, after);
  append_part_name(r, present_digest, &name);
  r->changes.failed |= name.failed;
  if (!name.failed) clv_run_add_change(r, name.data, before, after);
}

/* Returns true if `present_digest` is for the rows of a set, and the records of this set have
 * changed too. The message then names only the records. */
static bool is_due_to_changed_records(const clv_run *r, const clv_data_digests *earlier_digests,
                                      const clv_data_digest *present_digest) {
  bool is_test = strncmp(present_digest->name, "test.", 5) == 0;
  if (!has_suffix(present_digest->name, ".rows")) return false;
  for (size_t i = 0; i < r->data_digests.n; i++) {
    const clv_data_digest *p = &r->data_digests.list[i];
    bool is_of_same_set = is_test == (strncmp(p->name, "test.", 5) == 0);
    if (is_of_same_set && !has_suffix(p->name, ".rows") && has_digest_changed(earlier_digests, p))
      return true;
  }
  return false;
}

static void describe_change(const clv_run *r, const clv_data_digest *earlier_digest,
                            const clv_data_digest *present_digest, clv_bytes *text) {
  append_part_name(r, present_digest, text);
  if (earlier_digest && earlier_digest->records != present_digest->records)
    clv_bytes_printf(text, ", %llu then and %llu now", (unsigned long long)earlier_digest->records,
                     (unsigned long long)present_digest->records);
}

/* Appends the first MAX_CHANGES_SHOWN changed parts to `text`. Returns the number of changed
 * parts. */
static size_t list_changes(clv_run *r, const clv_data_digests *earlier_digests, clv_bytes *text) {
  size_t n = 0;
  for (size_t i = 0; i < r->data_digests.n; i++) {
    const clv_data_digest *present_digest = &r->data_digests.list[i],
                          *earlier_digest = find_digest(earlier_digests, present_digest->name);
    if (!has_digest_changed(earlier_digests, present_digest) ||
        is_due_to_changed_records(r, earlier_digests, present_digest))
      continue;
    if (n < MAX_CHANGES_SHOWN) {
      clv_bytes_puts(text, n ? "; " : "");
      describe_change(r, earlier_digest, present_digest, text);
    }
    n++;
    add_change(r, earlier_digest, present_digest);
  }
  if (n > MAX_CHANGES_SHOWN) clv_bytes_printf(text, "; and %zu more", n - MAX_CHANGES_SHOWN);
  return n;
}

static clv_code compare_digests(clv_run *r, const clv_data_digests *earlier_digests, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t n = list_changes(r, earlier_digests, &text);
  const clv_data_digest *earlier_rows_digest = find_digest(earlier_digests, "train.rows");
  r->n_records_at_begin = earlier_rows_digest ? earlier_rows_digest->records : 0;
  r->has_other_data = n > 0;
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (!n || r->o->accept_data) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS,
                  "the data have changed since the run in %s began: %s; restore the old files, "
                  "or pass --accept-data to continue with the present ones",
                  r->dir.data, text.data);
}

/* ---- data of runs that earlier versions began ------------------------------------------------ */

/* Fails if the session chooses other records than versions up to 0.7 did. Those versions took the
 * validation records from the end of arrays, or at random from data in other formats, and limited a
 * set to its first records. */
static clv_code check_chooses_old_records(const clv_run *r, clv_err *err) {
  const clv_data_config *d = &r->config->data;
  bool has_arrays = clv_format_row_of(d->format)->has_arrays;
  clv_split_by old_split = has_arrays ? CLV_BY_END : CLV_BY_CHANCE;
  bool has_other_split = d->validation_fraction > 0 && d->validation_split_by != old_split;
  bool has_other_limit = (d->limit_train || d->limit_test) && d->limit_chosen_by != CLV_BY_END;
  if ((!has_other_split && !has_other_limit) || r->o->accept_data) return CLV_OK;
  return clv_fail(
      err, CLV_DATA_LOSS,
      "%s has no " CLV_RUN_DATA_FILE
      ": the run was begun by Cleave 0.7 or earlier, which chose other records. Set %s%s%s "
      "to continue with those, or pass --accept-data to choose again",
      r->dir.data,
      !has_other_split ? ""
      : has_arrays     ? "data.validation.by: last"
                       : "data.validation.by: random",
      has_other_split && has_other_limit ? " and " : "",
      has_other_limit ? "data.limit_by: first" : "");
}

static clv_code warn_of_missing_digests(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(check_chooses_old_records(r, err));
  r->is_of_old_version = true;
  clv_bytes_printf(&text,
                   "%s has no " CLV_RUN_DATA_FILE
                   ", so it cannot be checked whether the data are those that the run began with; "
                   "this attempt writes the file",
                   r->dir.data);
  if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "data", text.data);
  return CLV_OK;
}

/* ---- comparing data in a run ----------------------------------------------------------------- */

clv_code clv_run_compare_data(clv_run *r, clv_err *err) {
  clv_data_digests earlier_digests = {0};
  clv_err reason;
  if (!r->o->resume || !clv_checkpoint_has_manifest(r->dir.data)) return CLV_OK;
  clv_code code = read_digests(r->dir.data, &earlier_digests, &reason);
  if (code == CLV_NOT_FOUND) return warn_of_missing_digests(r, err);
  if (code != CLV_OK && !r->o->accept_data)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "%s: the data that the run began with are not known; pass --accept-data to continue "
        "with the present ones",
        reason.text);
  CLV_TRY(compute_data_digests(r, &earlier_digests, err));
  return compare_digests(r, &earlier_digests, err);
}

/* Returns true if `earlier_digests` lacks a part of `present_digests`, because an earlier version
 * wrote `earlier_digests`. */
static bool lacks_some_digest(const clv_data_digests *earlier_digests,
                              const clv_data_digests *present_digests) {
  for (size_t i = 0; i < present_digests->n; i++)
    if (!find_digest(earlier_digests, present_digests->list[i].name)) return true;
  return false;
}

/* Warns of model files for which the run has no digest, and of changed files that the user has
 * accepted. */
static void warn_of_changed_files(const clv_run *r, const clv_data_digests *earlier_digests,
                                  const char *changes_text) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (lacks_some_digest(earlier_digests, &r->data_digests))
    clv_bytes_printf(
        &text,
        "%s has no digest of the files of model.hf and data.tokenizer, so it cannot be "
        "checked whether they are those that the run began with",
        r->dir.data);
  else if (r->has_other_data)
    clv_bytes_printf(&text, "differs from the begin of the run in %s, and is accepted: %s",
                     r->dir.data, changes_text);
  if (text.len && !text.failed) clv_run_warn(r, CLV_LOG_WARN, "data", text.data);
}

clv_code clv_run_compare_files(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_data_digests earlier_digests = {0};
  clv_err reason;
  CLV_TRY(compute_file_digests(r->config, &r->data_digests, err));
  if (!r->data_digests.n || !clv_checkpoint_has_manifest(r->dir.data)) return CLV_OK;
  clv_code code = read_digests(r->dir.data, &earlier_digests, &reason);
  if (code != CLV_OK && code != CLV_NOT_FOUND && !r->o->accept_data)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "%s: the files of model.hf and data.tokenizer that the run began with are not known; "
        "pass --accept-data to continue with the present ones",
        reason.text);
  r->has_other_data = list_changes(r, &earlier_digests, &text) > 0;
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (r->has_other_data && !r->o->accept_data)
    return clv_fail(err, CLV_DATA_LOSS,
                    "differs from the begin of the run in %s: %s; restore the old files, or pass "
                    "--accept-data to continue with the present ones",
                    r->dir.data, text.data);
  warn_of_changed_files(r, &earlier_digests, text.data);
  return CLV_OK;
}

/* Adds a note that the run has no digest of config.json. Fails if data.digest cannot be read and
 * `accepts_change` is false. */
static clv_code handle_missing_digest(const char *dir, const clv_session_config *c, clv_code code,
                                      const clv_err *reason, bool accepts_change, clv_bytes *notes,
                                      clv_err *err) {
  if (code != CLV_OK && code != CLV_NOT_FOUND && !accepts_change)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "%s: the config.json that the run began with is not known; pass --accept-data to "
        "export with that of model.hf (%s)",
        reason->text, c->model.hf);
  clv_bytes_printf(
      notes,
      "%s has no digest of config.json of model.hf (%s), so it cannot be checked whether "
      "it is the one that the run began with",
      dir, c->model.hf);
  return CLV_OK;
}

clv_code clv_run_compare_model_config(const char *dir, const clv_session_config *c,
                                      bool accepts_change, clv_bytes *notes, clv_err *err) {
  const model_file *f = find_model_file("model.config");
  clv_data_digests present_digests = {0}, earlier_digests = {0};
  clv_err reason;
  if (!f->get_path(c)) return CLV_OK;
  CLV_TRY(compute_file_digest(c, f, &present_digests, err));
  clv_code code = read_digests(dir, &earlier_digests, &reason);
  const clv_data_digest *earlier_digest = find_digest(&earlier_digests, f->part);
  if (!earlier_digest)
    return handle_missing_digest(dir, c, code, &reason, accepts_change, notes, err);
  if (memcmp(&present_digests.list[0].digest, &earlier_digest->digest,
             sizeof earlier_digest->digest) == 0)
    return CLV_OK;
  if (!accepts_change)
    return clv_fail(
        err, CLV_DATA_LOSS,
        "differs from the begin of the run in %s: %s (%s); restore the old file, or pass "
        "--accept-data to export with the present one",
        dir, f->name, c->model.hf);
  clv_bytes_printf(notes, "differs from the begin of the run in %s, and is accepted: %s (%s)", dir,
                   f->name, c->model.hf);
  return CLV_OK;
}

clv_code clv_run_write_data_digests(clv_run *r, clv_err *err) {
  static const clv_data_digests no_digests;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  if (!r->data_digests.n) CLV_TRY(compute_data_digests(r, &no_digests, err));
  for (size_t i = 0; i < r->data_digests.n; i++)
    append_digest_line(&r->data_digests.list[i], &text);
  clv_bytes_printf(&path, "%s/" CLV_RUN_DATA_FILE, r->dir.data);
  if (text.failed || path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  /* Mode 0600, because another user could find a small set of labels by computing the digests of
   * all possible sets of labels. */
  return clv_file_write_durable(path.data, text.data, text.len, 0600, err);
}
