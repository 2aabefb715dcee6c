/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a test's own files, in its scratch folder.
 */
#ifndef CLEAVE_FILES_TEST_H
#define CLEAVE_FILES_TEST_H

#include "tests/unit/scratch.h"

/* Returns the path of a file in the scratch folder. Only the last eight results of a thread stay
 * valid. */
static inline const char *at(const char *name) {
  static _Thread_local char paths[8][320];
  static _Thread_local unsigned n;
  char *path = paths[n++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
  return path;
}

static inline const char *write_scratch_file(const char *name, const void *data, size_t len) {
  const char *path = at(name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
  return path;
}

#endif
