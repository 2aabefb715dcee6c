/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines NEVER, for conditions that must not be true, whatever the input. A fuzz target that
 * aborts prints the condition, because the saved input alone does not show it if the failure does
 * not happen again.
 */
#ifndef CLV_TESTS_FUZZ_NEVER_H
#define CLV_TESTS_FUZZ_NEVER_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the condition, its line and errno, and aborts, if `condition` is true. */
#define NEVER(condition)                                                                   \
  ((condition) ? (fprintf(stderr, "%s:%d: never: %s (errno %d: %s)\n", __FILE__, __LINE__, \
                          #condition, errno, strerror(errno)),                             \
                  abort())                                                                 \
               : (void)0)

#endif
