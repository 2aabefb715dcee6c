/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the manifest parser. The input is parsed twice: as it is, and with the digest appended
 * that makes it a complete manifest, because a wrong digest would end the parsing early. An
 * accepted manifest is written and parsed again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_same_text(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static void check_manifest(const void *data, size_t size) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0}, parsed_again = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  if (clv_manifest_parse(data, size, "fuzz", &m, &err) != CLV_OK) return;
  NEVER(clv_manifest_make_text(&m, &text, &err) != CLV_OK ||
        clv_manifest_parse(text.data, text.len, "again", &parsed_again, &err) != CLV_OK ||
        parsed_again.n_files != m.n_files);
  NEVER(clv_manifest_has_all_files(&m) != clv_manifest_has_all_files(&parsed_again) ||
        clv_manifest_find_stage(&m, m.stages, false));
  (void)clv_manifest_find_stage(&m, 0, true);
  for (size_t i = 0; i < m.n_files; i++) {
    const clv_manifest_file *f = clv_manifest_find(&parsed_again, m.files[i].name);
    NEVER(!f || memcmp(&f->sha256, &m.files[i].sha256, sizeof f->sha256) ||
          !is_same_text(f->keeper_identity, m.files[i].keeper_identity) ||
          !is_same_text(f->kept_file_name, m.files[i].kept_file_name));
  }
}

/* Parses the input as the manifest of a weights folder, which has a list of files only. */
static void check_artifact_manifest(const void *data, size_t size) {
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0}, parsed_again = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  if (clv_artifact_parse(data, size, "fuzz", &m, &err) != CLV_OK) return;
  NEVER(clv_artifact_make_text(&m, &text, &err) != CLV_OK ||
        clv_artifact_parse(text.data, text.len, "again", &parsed_again, &err) != CLV_OK ||
        parsed_again.n_files != m.n_files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes whole = {0};
  clv_sha256 digest;
  char hex[65];
  check_manifest(data, size);
  check_artifact_manifest(data, size);
  clv_bytes_add(&whole, data, size);
  if (whole.failed || clv_sha256_of(whole.data, whole.len, &digest, NULL) != CLV_OK) return 0;
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(&whole, "  \"sha256\": \"%s\"\n}\n", hex);
  if (!whole.failed) check_manifest(whole.data, whole.len);
  if (!whole.failed) check_artifact_manifest(whole.data, whole.len);
  return 0;
}
