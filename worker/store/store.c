/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/digest_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digests of files of artifacts, so that each file is hashed once for all sessions of the
 * process. */
static clv_known_digests known_digests = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct clv_stored_artifact {
  const clv_artifact_spec *spec;
  clv_sha256 stated_digest; /* digest in worker.yaml: of the file, or of the folder's manifest */
  clv_manifest manifest;    /* files and digests of the artifact, if it is a folder */
  const clv_cancel_hook *cancel_hook;
  char label[160]; /* name of the artifact in messages */
  clv_weights_folder *weights;
};

void clv_stored_artifact_close(clv_stored_artifact *a) {
  if (!a) return;
  clv_weights_folder_close(a->weights);
  clv_manifest_clear(&a->manifest);
  free(a);
}

void clv_stored_artifact_closep(clv_stored_artifact **a) {
  clv_stored_artifact_close(*a);
  *a = NULL;
}

clv_weights_folder *clv_stored_artifact_weights(const clv_stored_artifact *a) { return a->weights; }
const clv_artifact_spec *clv_stored_artifact_spec(const clv_stored_artifact *a) { return a->spec; }

/* Callback of clv_weights_folder_open: checks the digest of a file. The manifest states the digest
 * of a file of a folder, worker.yaml that of a single file. */
static clv_code check_file(void *user, const char *name, int fd, clv_err *err) {
  const clv_stored_artifact *a = user;
  clv_sha256 found_digest;
  uint64_t bytes;
  char hex[65];
  const clv_manifest_file *f = a->spec->folder ? clv_manifest_find(&a->manifest, name) : NULL;
  const char *file_label = a->spec->folder ? name : "its file";
  if (a->spec->folder && !f)
    return clv_fail(err, CLV_DATA_LOSS, "%s is not in its %s", name, CLV_ARTIFACT_NAME);
  CLV_TRY(clv_known_digest_find_or_hash(&known_digests, fd, a->cancel_hook, a->label, &found_digest,
                                        &bytes, err));
  if (memcmp(f ? &f->sha256 : &a->stated_digest, &found_digest, sizeof found_digest) == 0)
    return CLV_OK;
  clv_sha256_hex(&found_digest, hex);
  return clv_fail(err, CLV_DATA_LOSS,
                  "%s has SHA-256 %s, not the stated one: correct sha256 or the file", file_label,
                  hex);
}

/* Checks that all files in the manifest exist with their lengths. check_file hashes a file when a
 * tensor of it is read. */
static clv_code check_listed_files(const clv_stored_artifact *a, clv_err *err) {
  for (size_t i = 0; i < a->manifest.n_files; i++) {
    const clv_manifest_file *f = &a->manifest.files[i];
    CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
    struct stat st;
    clv_bytes_printf(&path, "%s/%s", a->spec->folder, f->name);
    if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    if (lstat(path.data, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
      return clv_fail(err, CLV_DATA_LOSS,
                      "%s is missing, is a symbolic link, or has another length than listed",
                      f->name);
  }
  return CLV_OK;
}

static clv_code open_folder(clv_stored_artifact *a, clv_err *err) {
  clv_sha256 found_digest;
  char hex[65];
  CLV_TRY(clv_artifact_read(a->spec->folder, a->label, &a->manifest, &found_digest, err));
  if (memcmp(&found_digest, &a->stated_digest, sizeof found_digest) != 0) {
    clv_sha256_hex(&found_digest, hex);
    return clv_fail(err, CLV_DATA_LOSS,
                    "its %s has SHA-256 %s, not the stated one: correct sha256 or the file",
                    CLV_ARTIFACT_NAME, hex);
  }
  return check_listed_files(a, err);
}

static clv_code open_artifact(const clv_worker_config *config, const clv_artifact_spec *spec,
                              const clv_cancel_hook *cancel_hook, clv_stored_artifact **ret,
                              clv_err *err) {
  CLV_AUTO(clv_stored_artifact_closep) clv_stored_artifact *a = NULL;
  clv_err why;
  CLV_TRY(clv_alloc(1, sizeof *a, &a, err));
  a->spec = spec;
  a->cancel_hook = cancel_hook;
  snprintf(a->label, sizeof a->label, "artifact '%.120s'", spec->name);
  if (!clv_sha256_parse(spec->sha256, &a->stated_digest))
    return clv_worker_fail_at(config, spec->pos, err, "artifact '%s': sha256 is not 64 hex digits",
                              spec->name);
  clv_code code = spec->folder ? open_folder(a, &why) : CLV_OK;
  if (code == CLV_OK)
    code = clv_weights_folder_open(spec->folder ? spec->folder : spec->file, a->label,
                                   (clv_weights_guard){check_file, a}, &a->weights, &why);
  if (code == CLV_CANCELLED) return clv_fail(err, code, "%s", why.text);
  if (code != CLV_OK)
    return clv_worker_fail_at(config, spec->pos, err, "artifact '%s', %s: %s", spec->name,
                              spec->folder ? spec->folder : spec->file, why.text);
  *ret = clv_steal(&a);
  return CLV_OK;
}

clv_code clv_store_check(const clv_worker_config *config, clv_err *err) {
  for (size_t i = 0; i < config->n_artifacts; i++) {
    CLV_AUTO(clv_stored_artifact_closep) clv_stored_artifact *a = NULL;
    CLV_TRY(open_artifact(config, &config->artifacts[i], NULL, &a, err));
  }
  return CLV_OK;
}

clv_code clv_store_open(const clv_worker_config *config, const char *name,
                        const clv_sha256 *wanted_digest, const clv_cancel_hook *cancel_hook,
                        clv_stored_artifact **ret, clv_err *err) {
  for (size_t i = 0; i < config->n_artifacts; i++) {
    CLV_AUTO(clv_stored_artifact_closep) clv_stored_artifact *a = NULL;
    clv_err why;
    if (strcmp(config->artifacts[i].name, name) != 0) continue;
    clv_code code = open_artifact(config, &config->artifacts[i], cancel_hook, &a, &why);
    if (code == CLV_CANCELLED) return clv_fail(err, code, "%s", why.text);
    if (code != CLV_OK) {
      /* the text has a path, which the master must not see */
      clv_log(CLV_LOG_DEBUG, "%s", why.text);
      return clv_fail(err, CLV_DATA_LOSS, "artifact '%s' is damaged on the worker's disk", name);
    }
    if (memcmp(wanted_digest, &a->stated_digest, sizeof *wanted_digest) != 0)
      return clv_fail(err, CLV_DATA_LOSS, "artifact '%s' has another SHA-256 than the session says",
                      name);
    *ret = clv_steal(&a);
    return CLV_OK;
  }
  return clv_fail(err, CLV_NOT_FOUND, "no artifact '%s' on this worker", name);
}
