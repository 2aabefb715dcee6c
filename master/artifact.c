/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `artifact`: writes ARTIFACT.json into a folder of pretrained weights, so that a
 * session can name the weights at a worker by digest.
 */
#include <stdio.h>

#include "common/model/weights/weights.h"
#include "master/master_int.h"

static void print_artifact(const char *folder, const char *hex, bool json) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (json) {
    clv_bytes_puts(&out, "{\"folder\":");
    clv_bytes_add_json(&out, folder);
    clv_bytes_printf(&out, ",\"sha256\":\"%s\"}\n", hex);
  } else {
    clv_bytes_printf(
        &out,
        "%s/%s is written\nin worker.yaml:       artifacts: {NAME: {folder: %s, "
        "sha256: %s}}\nin a stage of a session: weights: {artifact: NAME, sha256: %s}\n",
        folder, CLV_ARTIFACT_NAME, folder, hex, hex);
  }
  if (!out.failed) fputs(out.data, stdout);
}

static clv_code write_artifact(const char *folder, char hex[65], clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, path = {0};
  clv_sha256 digest;
  CLV_TRY(clv_artifact_make(folder, &text, &digest, err));
  clv_bytes_printf(&path, "%s/%s", folder, CLV_ARTIFACT_NAME);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_sha256_hex(&digest, hex);
  return clv_file_write_durable(path.data, text.data, text.len, 0644, err);
}

int clv_cmd_artifact(void *args) {
  const clv_master_arguments *a = args;
  char hex[65];
  clv_err err;
  if (write_artifact(a->line.words[0], hex, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_DATA, &err);
  print_artifact(a->line.words[0], hex, a->run.json);
  return CLV_EXIT_OK;
}
