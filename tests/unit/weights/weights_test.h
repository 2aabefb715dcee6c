/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of common/weights share: a scratch folder, and safetensors bytes from a header and
 * data written by hand.
 */
#ifndef CLEAVE_WEIGHTS_TEST_H
#define CLEAVE_WEIGHTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/weights/weights.h"

#define assert_ok(call, err)                                                                  \
  do {                                                                                        \
    clv_code assert_code_ = (call);                                                           \
    if (assert_code_ != CLV_OK) fail_msg("%s: %s", clv_code_name(assert_code_), (err)->text); \
  } while (0)

#define assert_says(err, text_part)                                     \
  do {                                                                  \
    if (!strstr((err)->text, (text_part)))                              \
      fail_msg("\"%s\" does not say \"%s\"", (err)->text, (text_part)); \
  } while (0)

static char scratch[64];

static inline int scratch_setup(void **state) {
  (void)state;
  strcpy(scratch, "/tmp/cleave-weights-XXXXXX");
  return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_teardown(void **state) {
  (void)state;
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", scratch);
  return system(command);
}

/* A path in the scratch folder; eight may be alive at once. */
static inline const char *at(const char *name) {
  static char paths[8][200];
  static unsigned turn;
  char *path = paths[turn++ % 8];
  snprintf(path, 200, "%s/%s", scratch, name);
  return path;
}

static inline const char *put(const char *name, const void *data, size_t len) {
  const char *path = at(name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
  return path;
}

/* Length, header, `data` zero bytes of data. */
static inline clv_bytes raw_file(const char *header, size_t data) {
  clv_bytes b = {0};
  uint64_t n = strlen(header);
  clv_bytes_add(&b, &n, 8);
  clv_bytes_puts(&b, header);
  for (size_t i = 0; i < data; i++) clv_bytes_add(&b, "", 1);
  assert_false(b.failed);
  return b;
}

#endif
