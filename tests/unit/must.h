/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that assert that a call succeeded, or failed with a certain error.
 */
#ifndef CLEAVE_MUST_H
#define CLEAVE_MUST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/base.h"

static inline void must(clv_code code, const clv_err *err) {
  if (code != CLV_OK) fail_msg("%s: %s (%s)", err->where, err->text, clv_code_name(code));
}

static inline void expect_error(clv_code want, const char *text, clv_code got, const clv_err *err) {
  if (got == CLV_OK) fail_msg("succeeded; wanted %s with \"%s\"", clv_code_name(want), text);
  if (got != want || !strstr(err->text, text))
    fail_msg("got %s: %s\nwanted %s with \"%s\"", clv_code_name(got), err->text,
             clv_code_name(want), text);
}

#endif
