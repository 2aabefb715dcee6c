/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of the file in which a worker records the attempts of runs. Afterwards one more
 * attempt is registered, which may only be refused because its configuration is another.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint8_t session[16] = {1};
  clv_epochs *e = NULL;
  clv_err err = {0};
  bool has_changed;
  char *text = malloc(size + 1);
  if (!text || clv_epochs_open(NULL, &e, &err) != CLV_OK) abort();
  memcpy(text, data, size);
  text[size] = '\0';
  clv_code code = clv_epochs_parse(e, text, "fuzz", &err);
  if (code != CLV_OK && !err.text[0]) abort();
  clv_sha256 digest = {{0}};
  if (clv_epochs_register(e, "spiffe://a/m", session, UINT64_MAX, &digest, &has_changed, &err) !=
          CLV_OK &&
      !strstr(err.text, "another configuration"))
    abort();
  clv_epochs_free(e);
  free(text);
  return 0;
}
