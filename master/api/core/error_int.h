/* SPDX-License-Identifier: Apache-2.0
 *
 * How functions of libcleave fail, and what they check of their arguments before anything else.
 */
#ifndef CLEAVE_API_ERROR_INT_H
#define CLEAVE_API_ERROR_INT_H

#include "common/base/base.h"
#include "master/api/api.h"

/* Fill *error with node "master" and return the status. */
cleave_status api_fail(cleave_error *error, clv_code code, const char *fmt, ...) CLV_PRINTF(3, 4);
cleave_status api_convert_error(cleave_error *error, const clv_err *err);
void api_set_error_node(cleave_error *error, const char *node, const char *place);

/* Exports the function `now` of this file under the name that it had before 0.9 as well. */
#define API_OLD_NAME(old, now) CLEAVE_API extern __typeof__(now) old __attribute__((alias(#now)))

/* A call that fills `err`, which the macro provides. */
#define TRY(call)                                                \
  do {                                                           \
    clv_err err;                                                 \
    if ((call) != CLV_OK) return api_convert_error(error, &err); \
  } while (0)
/* A call that fills `error` itself. */
#define PASS(call)                                      \
  do {                                                  \
    cleave_status pass_status_ = (call);                \
    if (pass_status_ != CLEAVE_OK) return pass_status_; \
  } while (0)

/* ---- arguments ------------------------------------------------------------------------------- */

/* given: [n] arguments called as in `names`, "runtime, ret_module". CLV_INVALID names the first
 * that is NULL. */
cleave_status api_check_not_null(const void *const *given, size_t n, const char *names,
                                 cleave_error *error);

/* The first line of a function of cleave.h: none of these pointers is NULL. What may be NULL is
 * said there, and stands in tests/nulls.py. */
#define NOT_NULL(...)                                                                        \
  PASS(api_check_not_null((const void *const[]){__VA_ARGS__},                                \
                          sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *), \
                          #__VA_ARGS__, error))

/* Options as a caller of an older or newer header has them: their first field is their size, a
 * size_t. What is behind a shorter struct is 0 in *ret; a longer one that says something behind
 * `known` bytes is refused, since nobody here knows what. type: "cleave_call_options". NULL gives
 * zeros. */
cleave_status api_copy_options_in(const void *options, size_t known, const char *type, void *ret,
                                  cleave_error *error);

/* COPY_OPTIONS_IN(cleave_call_options, how, options): a local copy called `how`. */
#define COPY_OPTIONS_IN(type, local, options) \
  type local;                                 \
  PASS(api_copy_options_in((options), sizeof(type), #type, &local, error))

#endif
