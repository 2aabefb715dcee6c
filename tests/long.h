/* SPDX-License-Identifier: Apache-2.0
 *
 * long: tells whether a test does everything (`make long`), or what is enough for `make test`.
 */
#ifndef CLEAVE_TESTS_LONG_H
#define CLEAVE_TESTS_LONG_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_long(void) {
  const char *asked = getenv("CLV_TEST_LONG");
  return asked && asked[0] == '1';
}

#endif
