/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells whether a test runs in full, as in `make long`, or in the short form of `make test`.
 */
#ifndef CLEAVE_TESTS_LONG_H
#define CLEAVE_TESTS_LONG_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_long(void) {
  const char *long_option = getenv("CLV_TEST_LONG");
  return long_option && long_option[0] == '1';
}

#endif
