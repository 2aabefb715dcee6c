/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker file, and behind its first NUL byte overrides, NUL after each. What is accepted must be
 * written as text that is accepted again and written as the same text.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/config/config.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SETS = 8 };

static void check_round_trip(const clv_worker_config *config) {
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *again = NULL;
  NEVER(clv_worker_config_write(config, &first, NULL));
  NEVER(clv_worker_config_parse("/elsewhere/x.yaml", first.data, first.len, NULL, &again, NULL));
  NEVER(clv_worker_config_write(again, &second, NULL));
  NEVER(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
}

/* Splits the input into the file and the texts after it. An unfinished last text is dropped. Even
 * texts are --set options, odd ones environment entries. */
static void split_input(const char *text, size_t len, const char **sets, size_t *ret_n_sets,
                        const char **env) {
  size_t n = 0, n_env = 0;
  for (size_t i = 0; n < MAX_SETS && n_env < MAX_SETS && memchr(text, '\0', len);) {
    size_t used = strlen(text) + 1;
    if (i++ % 2 == 0)
      sets[n++] = text;
    else
      env[n_env++] = text;
    text += used;
    len -= used;
  }
  env[n_env] = NULL;
  *ret_n_sets = n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *text = (const char *)data, *sets[MAX_SETS], *env[MAX_SETS + 1] = {NULL};
  clv_config_overrides over = {.env = env, .sets = sets};
  const char *nul = size ? memchr(text, '\0', size) : NULL;
  size_t len = nul ? (size_t)(nul - text) : size;
  if (nul) split_input(nul + 1, size - len - 1, sets, &over.n_sets, env);
  clv_worker_config *config = NULL;
  clv_err err = {0};
  clv_code code = clv_worker_config_parse("/etc/cleave/w.yaml", text, len, &over, &config, &err);
  NEVER((code == CLV_OK) != (config != NULL) || (code != CLV_OK && !err.text[0]));
  if (config) check_round_trip(config);
  clv_worker_config_free(config);
  return 0;
}
