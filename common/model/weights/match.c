/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_weights_match_tensors: finds the tensors of a file for the parameters of a model. If names
 * differ, the message lists them with a suggestion.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

/* MAX_LISTED: names quoted in a list; MAX_QUOTED_NAME: bytes of a quoted name with its NUL */
enum { MAX_LISTED = 3, MAX_QUOTED_NAME = 120 };

void clv_name_list_clear(clv_name_list *l) {
  if (l) clv_bytes_done(&l->text);
}

void clv_name_list_add(clv_name_list *l, const char *name) {
  size_t max_quoted_names = l->max_quoted ? l->max_quoted : MAX_LISTED;
  if (l->n == 0) l->first_name = name;
  char shown_name[MAX_QUOTED_NAME];
  if (l->n++ < max_quoted_names)
    clv_bytes_printf(&l->text, "%s'%s'", l->n > 1 ? ", " : "",
                     clv_text_truncate(name, shown_name, sizeof shown_name));
}

void clv_name_list_add_rest(clv_name_list *l) {
  size_t max_quoted_names = l->max_quoted ? l->max_quoted : MAX_LISTED;
  if (l->n > max_quoted_names) clv_bytes_printf(&l->text, " and %zu more", l->n - max_quoted_names);
}

/* Finds the unused tensor name in the file that is most similar to `missing`. */
static clv_code find_suggestion(const clv_weights_file *f, const bool *is_used, const char *missing,
                                const char **ret, clv_err *err) {
  size_t n = clv_weights_n_entries(f), m = 0;
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_TRY(clv_alloc(n, sizeof *names, &names, err));
  for (size_t i = 0; i < n; i++)
    if (!is_used[i]) names[m++] = clv_weights_entries(f)[i].name;
  *ret = clv_did_you_mean(missing, names, m);
  return CLV_OK;
}

static clv_code fail_names_differ(const clv_weights_file *f, const bool *is_used,
                                  clv_name_list *missing, clv_name_list *unexpected, clv_err *err) {
  const char *suggestion = NULL;
  clv_name_list_add_rest(missing);
  clv_name_list_add_rest(unexpected);
  if (missing->n) CLV_TRY(find_suggestion(f, is_used, missing->first_name, &suggestion, err));
  if (missing->text.failed || unexpected->text.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  const char *hint = suggestion ? " (did you mean '" : "";
  if (!missing->n)
    return clv_fail(err, CLV_INVALID, "%.100s: %zu unexpected tensors: %s",
                    clv_weights_name_for_errors(f), unexpected->n, unexpected->text.data);
  return clv_fail(
      err, CLV_INVALID, "%.100s: %zu missing tensors: %s%s%s%s%s%s", clv_weights_name_for_errors(f),
      missing->n, missing->text.data, hint, suggestion ? suggestion : "", suggestion ? "'?)" : "",
      unexpected->n ? "; unexpected: " : "", unexpected->n ? unexpected->text.data : "");
}

bool clv_weights_is_batch_counter(clv_dtype dtype, const clv_shape *shape) {
  return dtype == CLV_I64 && shape->rank == 0;
}

static clv_code check_wanted_names(const clv_weights_file *f, const clv_weights_want *want,
                                   size_t n, unsigned flags, const clv_weights_entry **found,
                                   clv_err *err) {
  CLV_AUTO(clv_name_list_clear) clv_name_list missing = {0}, unexpected = {0};
  CLV_AUTO(clv_freep) bool *is_used = NULL;
  const clv_weights_entry *entries = clv_weights_entries(f);
  CLV_TRY(clv_alloc(clv_weights_n_entries(f), sizeof *is_used, &is_used, err));
  for (size_t i = 0; i < n; i++) {
    found[i] = clv_weights_find_entry(f, want[i].name);
    bool counts_as_0 = flags & CLV_WEIGHTS_ALLOW_NO_COUNTS &&
                       clv_weights_is_batch_counter(want[i].dtype, &want[i].shape);
    if (found[i])
      is_used[found[i] - entries] = true;
    else if (!counts_as_0 && !want[i].is_optional)
      clv_name_list_add(&missing, want[i].name);
  }
  for (size_t i = 0; i < clv_weights_n_entries(f); i++)
    if (!is_used[i] && !(flags & CLV_WEIGHTS_ALLOW_UNEXPECTED))
      clv_name_list_add(&unexpected, entries[i].name);
  if (missing.n || unexpected.n) return fail_names_differ(f, is_used, &missing, &unexpected, err);
  return CLV_OK;
}

/* Returns the known name that equals `name` without its first part (such as "module." of a wrapped
 * network), or else the most similar known name; NULL: none is similar. */
static const char *find_nearest_known(const char *name, const char *const *known, size_t n) {
  const char *dot = strchr(name, '.');
  for (size_t i = 0; dot && i < n; i++)
    if (strcmp(known[i], dot + 1) == 0) return known[i];
  return clv_did_you_mean(name, known, n);
}

/* Fails because the file has tensors that the model does not have. */
static clv_code fail_unexpected(const clv_weights_file *f, const clv_weights_want *known, size_t n,
                                clv_name_list *l, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  CLV_TRY(clv_alloc(n, sizeof *names, &names, err));
  for (size_t i = 0; i < n; i++) names[i] = known[i].name;
  const char *suggestion = find_nearest_known(l->first_name, names, n);
  clv_name_list_add_rest(l);
  if (l->text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_fail(err, CLV_INVALID, "%.100s: %zu tensors that the model does not have: %s%s%s%s",
                  clv_weights_name_for_errors(f), l->n, l->text.data,
                  suggestion ? " (the model has '" : "", suggestion ? suggestion : "",
                  suggestion ? "')" : "");
}

clv_code clv_weights_check_no_extra(const clv_weights_file *f, const clv_weights_want *known,
                                    size_t n, clv_err *err) {
  CLV_AUTO(clv_name_list_clear) clv_name_list others = {0};
  const clv_weights_entry *entries = clv_weights_entries(f);
  for (size_t i = 0; i < clv_weights_n_entries(f); i++) {
    bool found = false;
    for (size_t k = 0; k < n && !found; k++) found = strcmp(entries[i].name, known[k].name) == 0;
    if (!found) clv_name_list_add(&others, entries[i].name);
  }
  return others.n ? fail_unexpected(f, known, n, &others, err) : CLV_OK;
}

static clv_code check_type_and_shape(const clv_weights_file *f, const clv_weights_want *want,
                                     const clv_weights_entry *e, unsigned flags, clv_err *err) {
  char wanted_text[160], found_text[160];
  bool is_narrowed =
      flags & CLV_WEIGHTS_ALLOW_NARROWING && e->dtype == CLV_F32 && want->dtype == CLV_BF16;
  if ((e->dtype == want->dtype || is_narrowed) && clv_shape_equal(&e->shape, &want->shape))
    return CLV_OK;
  bool is_float = e->dtype == CLV_F16 || e->dtype == CLV_BF16 || e->dtype == CLV_F64;
  bool must_convert =
      want->dtype == CLV_F32 && is_float && clv_shape_equal(&e->shape, &want->shape);
  return clv_fail(err, CLV_INVALID, "%.120s: tensor '%.100s': expected %s %s, found %s %s%s",
                  clv_weights_name_for_errors(f), want->name, clv_dtype_name(want->dtype),
                  clv_shape_format(&want->shape, wanted_text, sizeof wanted_text),
                  e->dtype ? clv_dtype_name(e->dtype) : e->type_name,
                  clv_shape_format(&e->shape, found_text, sizeof found_text),
                  must_convert ? "; save it in f32 (model.float() in PyTorch)" : "");
}

clv_code clv_weights_match_tensors(const clv_weights_file *f, const clv_weights_want *want,
                                   size_t n, unsigned flags, const clv_weights_entry **ret_found,
                                   clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(clv_alloc(n, sizeof *found, &found, err));
  CLV_TRY(check_wanted_names(f, want, n, flags, found, err));
  for (size_t i = 0; i < n; i++)
    if (found[i]) CLV_TRY(check_type_and_shape(f, &want[i], found[i], flags, err));
  if (n) memcpy(ret_found, found, n * sizeof *found);
  return CLV_OK;
}
