/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of the file in which a worker records the attempts of runs. Afterwards attempts
 * are registered, which may only be refused because of the attempts in the file. An accepted file
 * is also read from a folder, where the registered attempt must be found again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/never.h"
#include "worker/store/store.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/dev/shm/cleave-fuzz-XXXXXX", path[64];

static void remove_folder(void) {
  unlink(path);
  rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  clv_err err;
  (void)argc, (void)argv;
  NEVER(!mkdtemp(folder));
  snprintf(path, sizeof path, "%s/epochs", folder);
  NEVER(clv_epochs_check("/dev/null", &err) != CLV_INVALID);
  NEVER(clv_epochs_check("/dev/shm/cleave-fuzz-nowhere", &err) != CLV_NOT_FOUND);
  return atexit(remove_folder);
}

/* Registers an attempt. Returns false if an attempt that is already registered excludes the new
 * one. */
static bool register_attempt(clv_epochs *e, const char *identity, uint64_t epoch) {
  static const uint8_t session[16] = {1};
  const clv_sha256 digest = {{0}};
  clv_err err = {0};
  bool has_changed;
  clv_code code = clv_epochs_register(e, identity, session, epoch, &digest, &has_changed, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "another configuration") &&
        !strstr(err.text, "a newer one"));
  return code == CLV_OK;
}

/* Reads the file from a folder and registers an attempt, which writes the file again. Then reads
 * the written file. */
static void check_file(const uint8_t *data, size_t size) {
  clv_epochs *e = NULL, *written = NULL;
  clv_err err = {0};
  NEVER(clv_file_write_durable(path, data, size, 0600, &err) != CLV_OK);
  NEVER(clv_epochs_check(folder, &err) != CLV_OK);
  NEVER(clv_epochs_open(folder, &e, &err) != CLV_OK);
  bool is_registered = register_attempt(e, "spiffe://a/m", 7);
  NEVER(clv_epochs_open(folder, &written, &err) != CLV_OK);
  NEVER(is_registered && register_attempt(written, "spiffe://a/m", 6));
  clv_epochs_free(e);
  clv_epochs_free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  clv_epochs *e = NULL;
  clv_err err = {0};
  char *text = malloc(size + 1);
  NEVER(!text || clv_epochs_open(NULL, &e, &err) != CLV_OK);
  memcpy(text, data, size);
  clv_code code = clv_epochs_parse(e, text, size, "fuzz", &err);
  NEVER(code != CLV_OK && !err.text[0]);
  if (code == CLV_OK) check_file(data, size);
  register_attempt(e, "spiffe://a/m", UINT64_MAX);
  register_attempt(e, "spiffe://a/other", 1);
  clv_epochs_free(e);
  free(text);
  return 0;
}
