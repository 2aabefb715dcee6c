/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that unit tests with files share: a folder that is deleted when the program ends, and
 * checks of errors.
 */
#ifndef CLEAVE_SCRATCH_H
#define CLEAVE_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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
  strcpy(scratch, "/tmp/cleave-unit-XXXXXX");
  return mkdtemp(scratch) ? 0 : -1;
}

static inline int scratch_teardown(void **state) {
  (void)state;
  char command[96];
  snprintf(command, sizeof command, "cd / && rm -rf %s", scratch);
  return system(command);
}

#endif
