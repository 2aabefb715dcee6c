/* SPDX-License-Identifier: Apache-2.0
 *
 * MANIFEST.json and ARTIFACT.json. A folder with a valid MANIFEST.json is a checkpoint. Its last
 * line is the SHA-256 of all bytes before that line, so that a damaged step or hash is detected.
 * ARTIFACT.json is the manifest of a folder of pretrained weights, and lists only files.
 *
 * A file of a stage may stay at the stage's worker: then its row also has the worker's identity
 * (`place`) and the file's name there (`kept`). A manifest without such rows has the same bytes as
 * in versions that did not know them.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

static const char format_name[] = "cleave-checkpoint", artifact_format[] = "cleave-artifact";
enum { FORMAT_VERSION = 1, MAX_TOKENS = CLV_CHECKPOINT_MAX_FILES * 8 };

/* The last line of the text consists of tail_prefix, 64 hex digits and tail_suffix. */
static const char tail_prefix[] = "  \"sha256\": \"", tail_suffix[] = "\"\n}\n";
enum { TAIL_BYTES = sizeof tail_prefix - 1 + 64 + sizeof tail_suffix - 1 };

void clv_manifest_clear(clv_manifest *m) {
  if (!m) return;
  for (size_t i = 0; i < m->n_files; i++) {
    free(m->files[i].keeper_identity);
    free(m->files[i].kept_file_name);
  }
  free(m->files);
  *m = (clv_manifest){0};
}

static int compare_files(const void *a, const void *b) {
  return strcmp(((const clv_manifest_file *)a)->name, ((const clv_manifest_file *)b)->name);
}

static int compare_name_to_file(const void *name, const void *file) {
  return strcmp(name, ((const clv_manifest_file *)file)->name);
}

const clv_manifest_file *clv_manifest_find(const clv_manifest *m, const char *name) {
  return m->n_files ? bsearch(name, m->files, m->n_files, sizeof *m->files, compare_name_to_file)
                    : NULL;
}

const clv_manifest_file *clv_manifest_find_stage(const clv_manifest *m, uint32_t stage,
                                                 bool is_optimizer) {
  char name[CLV_STAGE_NAME_BYTES];
  if (stage >= m->stages) return NULL;
  return clv_manifest_find(
      m, clv_stage_file_name(is_optimizer ? "optimizer" : "model", stage, m->stages, name));
}

bool clv_manifest_has_all_files(const clv_manifest *m) {
  for (size_t i = 0; i < m->n_files; i++)
    if (m->files[i].keeper_identity) return false;
  return true;
}

/* ---- writing a manifest ---------------------------------------------------------------------- */

static void add_kept_place(const clv_manifest_file *f, clv_bytes *out) {
  clv_bytes_puts(out, ", \"place\": ");
  clv_bytes_add_json(out, f->keeper_identity);
  clv_bytes_printf(out, ", \"kept\": \"%s\"", f->kept_file_name);
}

static void add_files(const clv_manifest *m, clv_bytes *out) {
  char hex[65];
  clv_bytes_puts(out, "  \"files\": {");
  for (size_t i = 0; i < m->n_files; i++) {
    clv_sha256_hex(&m->files[i].sha256, hex);
    clv_bytes_printf(out, "%s\n    \"%s\": {\"bytes\": %llu, \"sha256\": \"%s\"", i ? "," : "",
                     m->files[i].name, (unsigned long long)m->files[i].bytes, hex);
    if (m->files[i].keeper_identity) add_kept_place(&m->files[i], out);
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "\n  },\n");
}

/* Appends the last line, which has the digest of the text before it, and moves the text to *ret. */
static clv_code append_digest_line(clv_bytes *out, clv_bytes *ret, clv_err *err) {
  clv_sha256 digest;
  char hex[65];
  if (out->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_sha256_of(out->data, out->len, &digest, err));
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(out, "%s%s%s", tail_prefix, hex, tail_suffix);
  if (out->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_done(ret);
  *ret = *out;
  *out = (clv_bytes){0};
  return CLV_OK;
}

clv_code clv_manifest_make_text(const clv_manifest *m, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_bytes_printf(&out,
                   "{\n  \"format\": \"%s\",\n  \"version\": %d,\n  \"step\": %llu,\n"
                   "  \"stages\": %u,\n  \"protocol_version\": %u,\n  \"config_sha256\": \"%s\",\n",
                   format_name, FORMAT_VERSION, (unsigned long long)m->step, m->stages,
                   m->protocol_version, m->config_hash);
  add_files(m, &out);
  return append_digest_line(&out, ret, err);
}

clv_code clv_artifact_make_text(const clv_manifest *m, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_bytes_printf(&out, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n", artifact_format,
                   FORMAT_VERSION);
  add_files(m, &out);
  return append_digest_line(&out, ret, err);
}

/* ---- reading a manifest ---------------------------------------------------------------------- */

static clv_code check_digest_line(const char *data, size_t len, const char *label, clv_err *err) {
  char hex[65] = {0};
  clv_sha256 listed_digest, found_digest;
  const char *tail = len < TAIL_BYTES ? NULL : data + len - TAIL_BYTES;
  const char *digits = tail ? tail + sizeof tail_prefix - 1 : NULL;
  if (!tail || memcmp(tail, tail_prefix, sizeof tail_prefix - 1) != 0 ||
      memcmp(digits + 64, tail_suffix, sizeof tail_suffix - 1) != 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: truncated or damaged: it does not end in its digest; restore it", label);
  memcpy(hex, digits, 64);
  CLV_TRY(clv_sha256_of(data, len - TAIL_BYTES, &found_digest, err));
  if (!clv_sha256_parse(hex, &listed_digest) ||
      memcmp(&listed_digest, &found_digest, sizeof found_digest) != 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: damaged: its digest does not match its text; restore it", label);
  return CLV_OK;
}

static clv_code parse_digest(const json_t *v, const char *label, clv_sha256 *ret, clv_err *err) {
  const char *hex;
  CLV_TRY(clv_weights_json_get_text(v, "sha256", label, &hex, err));
  if (!clv_sha256_parse(hex, ret))
    return clv_fail(err, CLV_DATA_LOSS, "%s: sha256 '%.70s' is not 64 hex digits", label, hex);
  return CLV_OK;
}

/* Returns true for the name of a stage's file, the only kind that may stay at a worker. */
static bool is_stage_file(const char *name) {
  return strncmp(name, "model-", 6) == 0 || strncmp(name, "optimizer-", 10) == 0;
}

/* Parses the keys of a file that stays at a worker. Does nothing if `v` has neither `place` nor
 * `kept`. */
static clv_code parse_kept_place(const json_t *v, const char *label, clv_manifest_file *ret,
                                 clv_err *err) {
  const char *place, *kept;
  if (!json_object_get(v, "place") && !json_object_get(v, "kept")) return CLV_OK;
  CLV_TRY(clv_weights_json_get_text(v, "place", label, &place, err));
  CLV_TRY(clv_weights_json_get_text(v, "kept", label, &kept, err));
  if (!is_stage_file(ret->name))
    return clv_fail(err, CLV_DATA_LOSS, "%s: only a stage's files can be at a worker", label);
  if (!place[0] || strlen(place) > CLV_CHECKPOINT_MAX_PLACE || !clv_weights_is_printable(place))
    return clv_fail(err, CLV_DATA_LOSS, "%s: place '%.100s' is not an identity of 1..%d bytes",
                    label, place, CLV_CHECKPOINT_MAX_PLACE);
  if (!clv_is_file_name(kept))
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: kept '%.150s' is not a plain file name of 1..%d of A-Za-z0-9._-", label,
                    kept, CLV_FILE_NAME);
  CLV_TRY(clv_strdup(place, &ret->keeper_identity, err));
  return clv_strdup(kept, &ret->kept_file_name, err);
}

static clv_code parse_file(const char *name, json_t *v, const char *label, bool can_be_elsewhere,
                           clv_manifest_file *ret, clv_err *err) {
  static const char *const known[] = {"bytes", "sha256", "place", "kept"};
  char at[320];
  if (!clv_weights_is_file_name(name) || strcmp(name, CLV_MANIFEST_NAME) == 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: '%.100s' is not a plain file name of 1..%d of A-Za-z0-9._-", label, name,
                    CLV_CHECKPOINT_MAX_NAME);
  snprintf(at, sizeof at, "%.150s: %s", label, name);
  if (!json_is_object(v)) return clv_fail(err, CLV_DATA_LOSS, "%s: expected an object", at);
  CLV_TRY(clv_weights_json_check_keys(v, known, can_be_elsewhere ? CLV_COUNT(known) : 2, at, err));
  CLV_TRY(clv_weights_json_get_u64(v, "bytes", INT64_MAX, at, &ret->bytes, err));
  CLV_TRY(parse_digest(v, at, &ret->sha256, err));
  strcpy(ret->name, name);
  return parse_kept_place(v, at, ret, err);
}

/* Refuses two rows that name the same file at the same worker. */
static clv_code check_kept_names(const clv_manifest *m, const char *label, clv_err *err) {
  for (size_t i = 0; i < m->n_files; i++)
    for (size_t k = i + 1; m->files[i].keeper_identity && k < m->n_files; k++)
      if (m->files[k].keeper_identity &&
          strcmp(m->files[i].kept_file_name, m->files[k].kept_file_name) == 0 &&
          strcmp(m->files[i].keeper_identity, m->files[k].keeper_identity) == 0)
        return clv_fail(err, CLV_DATA_LOSS, "%s: %s and %s are the same file '%s' at '%.300s'",
                        label, m->files[i].name, m->files[k].name, m->files[i].kept_file_name,
                        m->files[i].keeper_identity);
  return CLV_OK;
}

/* Parses the rows of the files. can_be_elsewhere: a row may name the worker that keeps its file. */
static clv_code parse_files(const json_t *root, const char *label, bool can_be_elsewhere,
                            clv_manifest *m, clv_err *err) {
  json_t *files = json_object_get(root, "files"), *v;
  const char *name;
  size_t n = json_object_size(files);
  if (!json_is_object(files))
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'files' is missing or not an object", label);
  if (n > CLV_CHECKPOINT_MAX_FILES)
    return clv_fail(err, CLV_DATA_LOSS, "%s: %zu files, the limit is %d", label, n,
                    CLV_CHECKPOINT_MAX_FILES);
  CLV_TRY(clv_alloc(n, sizeof *m->files, &m->files, err));
  json_object_foreach(files, name, v)
      CLV_TRY(parse_file(name, v, label, can_be_elsewhere, &m->files[m->n_files++], err));
  qsort(m->files, n, sizeof *m->files, compare_files);
  return check_kept_names(m, label, err);
}

static clv_code parse_config_hash(const json_t *root, const char *label, clv_manifest *m,
                                  clv_err *err) {
  const char *hex = NULL;
  clv_sha256 unused;
  CLV_TRY(clv_weights_json_get_text(root, "config_sha256", label, &hex, err));
  if (hex[0] && !clv_sha256_parse(hex, &unused))
    return clv_fail(err, CLV_DATA_LOSS, "%s: config_sha256 '%.70s' is not 64 hex digits", label,
                    hex);
  strcpy(m->config_hash, hex);
  return CLV_OK;
}

static clv_code parse_root(json_t *root, const char *label, clv_manifest *m, clv_err *err) {
  static const char *const known[] = {"format", "version",       "step",  "stages",
                                      "sha256", "config_sha256", "files", "protocol_version"};
  uint64_t stages = 0, protocol = 0;
  CLV_TRY(clv_weights_json_check_format(root, format_name, FORMAT_VERSION, label, err));
  CLV_TRY(clv_weights_json_check_keys(root, known, CLV_COUNT(known), label, err));
  CLV_TRY(clv_weights_json_get_u64(root, "step", INT64_MAX, label, &m->step, err));
  CLV_TRY(clv_weights_json_get_u64(root, "stages", CLV_CHECKPOINT_MAX_STAGES, label, &stages, err));
  CLV_TRY(clv_weights_json_get_u64(root, "protocol_version", UINT32_MAX, label, &protocol, err));
  if (stages == 0) return clv_fail(err, CLV_DATA_LOSS, "%s: 0 stages", label);
  m->stages = (uint32_t)stages;
  m->protocol_version = (uint32_t)protocol;
  CLV_TRY(parse_config_hash(root, label, m, err));
  return parse_files(root, label, true, m, err);
}

static clv_code parse_artifact(json_t *root, const char *label, clv_manifest *m, clv_err *err) {
  static const char *const known[] = {"format", "version", "files", "sha256"};
  CLV_TRY(clv_weights_json_check_format(root, artifact_format, FORMAT_VERSION, label, err));
  CLV_TRY(clv_weights_json_check_keys(root, known, CLV_COUNT(known), label, err));
  return parse_files(root, label, false, m, err);
}

/* Parses MANIFEST.json or ARTIFACT.json. parse_as: function that parses the root object of that
 * kind of file. */
static clv_code parse_manifest_text(const void *data, size_t len, const char *label,
                                    clv_code (*parse_as)(json_t *, const char *, clv_manifest *,
                                                         clv_err *),
                                    clv_manifest *ret, clv_err *err) {
  CLV_AUTO(clv_weights_json_freep) json_t *root = NULL;
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  CLV_TRY(check_digest_line(data, len, label, err));
  CLV_TRY(clv_weights_json_parse(data, len, MAX_TOKENS, label, &root, err));
  CLV_TRY(parse_as(root, label, &m, err));
  *ret = m;
  m = (clv_manifest){0};
  return CLV_OK;
}

clv_code clv_manifest_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) {
  return parse_manifest_text(data, len, label, parse_root, ret, err);
}

clv_code clv_artifact_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) {
  return parse_manifest_text(data, len, label, parse_artifact, ret, err);
}
