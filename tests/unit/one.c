/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs only one test of a cmocka program, which the environment variable CLV_TEST_ONE names (`make
 * t`). Every cmocka program is linked with this file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

__attribute__((constructor)) static void run_one(void) {
  const char *name = getenv("CLV_TEST_ONE");
  if (name) cmocka_set_test_filter(name);
}
