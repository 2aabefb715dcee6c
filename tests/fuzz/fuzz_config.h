/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits the input of the fuzz targets for configuration files. The input is the text of a file, a
 * NUL byte, and overrides of the file's keys, each of which ends with a NUL.
 */
#ifndef CLEAVE_TESTS_FUZZ_CONFIG_H
#define CLEAVE_TESTS_FUZZ_CONFIG_H

#include <string.h>

#include "common/model/config/config.h"
#include "tests/fuzz/never.h"

enum { MAX_SETS = 8 };

typedef struct config_input {
  const char *text; /* the file, [len], not NUL-terminated */
  size_t len;
  const char *sets[MAX_SETS], *env[MAX_SETS + 1];
  clv_config_overrides over; /* points to `sets` and `env` */
} config_input;

/* Splits the input into the file and its overrides. Even overrides are --set options, odd ones
 * environment entries. An unfinished last override is dropped. */
static inline void split_config_input(const uint8_t *data, size_t size, config_input *ret) {
  const char *text = (const char *)data, *nul = size ? memchr(text, '\0', size) : NULL;
  *ret = (config_input){.text = text, .len = nul ? (size_t)(nul - text) : size};
  ret->over = (clv_config_overrides){.env = ret->env, .sets = ret->sets};
  if (!nul) return;
  size_t n_env = 0, len = size - ret->len - 1;
  text = nul + 1;
  for (size_t i = 0; ret->over.n_sets < MAX_SETS && n_env < MAX_SETS && memchr(text, '\0', len);) {
    size_t used = strlen(text) + 1;
    if (i++ % 2 == 0)
      ret->sets[ret->over.n_sets++] = text;
    else
      ret->env[n_env++] = text;
    text += used;
    len -= used;
  }
}

#endif
