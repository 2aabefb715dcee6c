/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of libcleave, and the checks of arguments with which each function of cleave.h begins.
 */
#ifndef CLEAVE_API_ERROR_INT_H
#define CLEAVE_API_ERROR_INT_H

#include "common/base/base.h"
#include "master/api/api.h"

/* Fill *error with node "master" and return the status. */
cleave_status api_fail(cleave_error *error, clv_code code, const char *fmt, ...) CLV_PRINTF(3, 4);
cleave_status api_convert_error(cleave_error *error, const clv_err *err);
void api_set_error_node(cleave_error *error, const char *node, const char *hop);

/* Also exports the function `new_name` of this file as `old_name`, its name before 0.9. */
#define API_DEPRECATED_ALIAS(old_name, new_name) \
  CLEAVE_API extern __typeof__(new_name) old_name __attribute__((alias(#new_name)))

/* Runs `call`, which may fill the clv_err `err` that the macro declares. If the call fails, the
 * macro converts `err` to *error and returns from the calling function. */
#define TRY(call)                                                \
  do {                                                           \
    clv_err err;                                                 \
    if ((call) != CLV_OK) return api_convert_error(error, &err); \
  } while (0)
/* Runs `call`, which fills `error` itself. If the call fails, the macro returns its status from the
 * calling function. */
#define TRY_API(call)                                 \
  do {                                                \
    cleave_status api_status_ = (call);               \
    if (api_status_ != CLEAVE_OK) return api_status_; \
  } while (0)

/* ---- checks of arguments --------------------------------------------------------------------- */

/* Checks that none of the arguments [n] is NULL. names: their names, such as "runtime, ret_module".
 * The error CLV_INVALID names the first that is NULL. */
cleave_status api_check_not_null(const void *const *arguments, size_t n, const char *names,
                                 cleave_error *error);

/* First line of a function of cleave.h: none of these pointers may be NULL. Arguments that may be
 * NULL are documented in cleave.h and listed in tests/nulls.py. */
#define NOT_NULL(...)                                                                           \
  TRY_API(api_check_not_null((const void *const[]){__VA_ARGS__},                                \
                             sizeof((const void *const[]){__VA_ARGS__}) / sizeof(const void *), \
                             #__VA_ARGS__, error))

/* Copies options of a program that was compiled with an older or newer header. Their first field is
 * their size, a size_t. known_size: size of the struct in this version. Fields that a shorter
 * struct lacks are 0 in *ret. A longer struct is refused if a byte after known_size is not 0,
 * because this library does not know its meaning. type: name of the struct for messages, such as
 * "cleave_call_options". If options is NULL, *ret is all zeros. */
cleave_status api_copy_options_in(const void *options, size_t known_size, const char *type,
                                  void *ret, cleave_error *error);

/* Declares the variable `local`, a copy of the program's options. Example:
 * COPY_OPTIONS_IN(cleave_call_options, how, options). */
#define COPY_OPTIONS_IN(type, local, options) \
  type local;                                 \
  TRY_API(api_copy_options_in((options), sizeof(type), #type, &local, error))

#endif
