/* SPDX-License-Identifier: Apache-2.0
 *
 * models_check: assertions that every test of models uses.
 */
#ifndef CLEAVE_MODELS_CHECK_H
#define CLEAVE_MODELS_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/models/models.h"

#define assert_ok(call)                                 \
  do {                                                  \
    clv_err ok_err_ = {0};                              \
    clv_err *err = &ok_err_;                            \
    if ((call) != CLV_OK) fail_msg("%s", ok_err_.text); \
  } while (0)

/* Asserts that the session (freed here) is refused with an error that begins with `where` and
 * contains `text`. */
static inline void assert_refused(clv_session_config *c, const clv_shape *image, const char *where,
                                  const char *text) {
  clv_graph *g = NULL;
  uint32_t first[4], last[4];
  clv_err err = {0};
  assert_int_equal(clv_model_make_graph(c, image, &g, first, last, &err), CLV_INVALID);
  assert_null(g);
  if (strncmp(err.text, where, strlen(where)) || !strstr(err.text, text))
    fail_msg("'%s' is not '%s...%s'", err.text, where, text);
  clv_session_config_free(c);
}

#endif
