/* SPDX-License-Identifier: Apache-2.0
 *
 * run.json, the record of a run: writing and parsing, both by the same tables of fields.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

static const char format_name[] = "cleave-run";
enum {
  FORMAT_VERSION = 1,
  MAX_TOKENS = 64 * CLV_RECORD_MAX_ATTEMPTS + 256,
};

static const char *const status_names[CLV_RUN_STATUSES] = {"running",     "finished", "failed",
                                                           "interrupted", "stopped",  "recovered"};

void clv_run_record_clear(clv_run_record *r) {
  if (!r) return;
  free(r->attempts);
  *r = (clv_run_record){0};
}

clv_code clv_run_record_add_attempt(clv_run_record *r, clv_run_attempt **ret, clv_err *err) {
  if (r->n_attempts == CLV_RECORD_MAX_ATTEMPTS) {
    memmove(r->attempts, r->attempts + 1, (r->n_attempts - 1) * sizeof *r->attempts);
    r->n_attempts--;
    r->n_earlier += r->n_earlier < INT64_MAX;
  }
  clv_run_attempt *grown = reallocarray(r->attempts, r->n_attempts + 1, sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  r->attempts = grown;
  *ret = &grown[r->n_attempts++];
  **ret = (clv_run_attempt){.loss = NAN, .accuracy = NAN};
  return CLV_OK;
}

/* ---- the fields of a record ------------------------------------------------------------------ */

typedef enum field_kind {
  FIELD_WHOLE_NUMBER,
  FIELD_REAL_NUMBER,
  FIELD_TEXT,
  FIELD_STATUS
} field_kind;

typedef struct field {
  const char *key;
  field_kind kind;
  size_t offset, text_bytes; /* offset in the struct; size of a TEXT in bytes, with its NUL */
  /* records of earlier versions lack the key, whose field is then "" or 0 */
  bool is_optional;
} field;

#define IN(type, member) offsetof(type, member)
#define TEXT_IN(type, member) \
  .kind = FIELD_TEXT, .offset = offsetof(type, member), .text_bytes = sizeof(((type *)NULL)->member)

static const field run_fields[] = {
    {.key = "name", TEXT_IN(clv_run_record, name)},
    {.key = "session", TEXT_IN(clv_run_record, session_path)},
    {.key = "config_sha256", TEXT_IN(clv_run_record, config_sha256)},
    {.key = "earlier_attempts",
     .kind = FIELD_WHOLE_NUMBER,
     .offset = IN(clv_run_record, n_earlier)},
    {.key = "session_id", TEXT_IN(clv_run_record, id), .is_optional = true},
    {.key = "epoch",
     .kind = FIELD_WHOLE_NUMBER,
     .offset = IN(clv_run_record, newest_attempt),
     .is_optional = true},
};
static const field best_fields[] = {
    {.key = "what", TEXT_IN(clv_run_best, evaluated_set)},
    {.key = "step", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_best, step)},
    {.key = "loss", .kind = FIELD_REAL_NUMBER, .offset = IN(clv_run_best, loss)},
    {.key = "accuracy", .kind = FIELD_REAL_NUMBER, .offset = IN(clv_run_best, accuracy)},
};
static const field attempt_fields[] = {
    {.key = "status", .kind = FIELD_STATUS, .offset = IN(clv_run_attempt, status)},
    {.key = "code", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, exit_code)},
    {.key = "text", TEXT_IN(clv_run_attempt, text)},
    {.key = "began_ms", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, began_ms)},
    {.key = "ended_ms", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, ended_ms)},
    {.key = "host", TEXT_IN(clv_run_attempt, host)},
    {.key = "boot", TEXT_IN(clv_run_attempt, boot_id)},
    {.key = "pid", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, pid)},
    {.key = "pid_start", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, pid_start)},
    {.key = "from_step", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, from_step)},
    {.key = "step", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, step)},
    {.key = "total_steps", .kind = FIELD_WHOLE_NUMBER, .offset = IN(clv_run_attempt, total_steps)},
    {.key = "loss", .kind = FIELD_REAL_NUMBER, .offset = IN(clv_run_attempt, loss)},
    {.key = "accuracy", .kind = FIELD_REAL_NUMBER, .offset = IN(clv_run_attempt, accuracy)},
    {.key = "look", TEXT_IN(clv_run_attempt, look_result), .is_optional = true},
};

/* ---- writing run.json ------------------------------------------------------------------------ */

static void append_printable(clv_bytes *out, const char *text) {
  uint32_t code_point;
  for (size_t n; *text; text += CLV_MAX(n, (size_t)1)) {
    n = clv_utf8_decode(text, SIZE_MAX, &code_point);
    if (n && !clv_is_control(code_point))
      clv_bytes_add(out, text, n);
    else
      clv_bytes_puts(out, n == 1 ? " " : "?");
  }
}

void clv_run_record_append_text(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes clean = {0};
  clv_bytes_puts(&clean, "");
  append_printable(&clean, text);
  out->failed |= clean.failed;
  if (!clean.failed) clv_bytes_add_json(out, clean.data);
}

static void append_real(clv_bytes *out, double v) {
  if (isfinite(v))
    clv_bytes_printf(out, "%.17g", v);
  else
    clv_bytes_puts(out, "null");
}

static void add_fields(clv_bytes *out, const field *fields, size_t n, const void *base) {
  for (size_t i = 0; i < n; i++) {
    const char *at = (const char *)base + fields[i].offset;
    clv_bytes_printf(out, "%s\"%s\": ", i ? ", " : "", fields[i].key);
    if (fields[i].kind == FIELD_TEXT) clv_run_record_append_text(out, at);
    if (fields[i].kind == FIELD_REAL_NUMBER) append_real(out, *(const double *)(const void *)at);
    if (fields[i].kind == FIELD_STATUS)
      clv_bytes_printf(out, "\"%s\"", status_names[*(const clv_run_status *)(const void *)at]);
    if (fields[i].kind == FIELD_WHOLE_NUMBER)
      clv_bytes_printf(out, "%" PRIu64, CLV_MIN(*(const uint64_t *)(const void *)at, INT64_MAX));
  }
}

static void add_checkpoints(clv_bytes *out, const clv_run_record *r) {
  clv_bytes_puts(out, ",\n \"checkpoints\": [");
  for (size_t i = 0; i < r->n_checkpoints; i++)
    clv_bytes_printf(out, "%s%" PRIu64, i ? ", " : "", CLV_MIN(r->checkpoints[i], INT64_MAX));
  clv_bytes_puts(out, "]");
}

clv_code clv_run_record_format(const clv_run_record *r, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_bytes_printf(&out, "{\"format\": \"%s\", \"version\": %d,\n ", format_name, FORMAT_VERSION);
  add_fields(&out, run_fields, CLV_COUNT(run_fields), r);
  clv_bytes_puts(&out, ",\n \"best\": {");
  add_fields(&out, best_fields, CLV_COUNT(best_fields), &r->best);
  clv_bytes_puts(&out, "}");
  add_checkpoints(&out, r);
  clv_bytes_puts(&out, ",\n \"attempts\": [");
  for (size_t i = 0; i < r->n_attempts; i++) {
    clv_bytes_puts(&out, i ? ",\n  {" : "\n  {");
    add_fields(&out, attempt_fields, CLV_COUNT(attempt_fields), &r->attempts[i]);
    clv_bytes_puts(&out, "}");
  }
  clv_bytes_puts(&out, "]}\n");
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}

/* ---- reading run.json ------------------------------------------------------------------------ */

static clv_code parse_text(const json_t *object, const field *f, const char *label, char *at,
                           clv_err *err) {
  const char *text = "";
  CLV_TRY(clv_weights_json_get_text(object, f->key, label, &text, err));
  size_t n = strlen(text);
  if (n >= f->text_bytes || !clv_weights_is_printable(text))
    return clv_fail(err, CLV_DATA_LOSS, "%s: '%s' is not a line of less than %zu bytes", label,
                    f->key, f->text_bytes);
  memcpy(at, text, n + 1);
  return CLV_OK;
}

static clv_code parse_real(const json_t *object, const field *f, const char *label, double *ret,
                           clv_err *err) {
  const json_t *v = json_object_get(object, f->key);
  if (!json_is_number(v) && !json_is_null(v))
    return clv_fail(err, CLV_DATA_LOSS, "%s: '%s' is %s, expected a number or null", label, f->key,
                    v ? "neither" : "missing");
  *ret = json_is_null(v) ? NAN : json_number_value(v);
  return CLV_OK;
}

static clv_code parse_status(const json_t *object, const field *f, const char *label,
                             clv_run_status *ret, clv_err *err) {
  const char *text = "";
  CLV_TRY(clv_weights_json_get_text(object, f->key, label, &text, err));
  for (int i = 0; i < CLV_RUN_STATUSES; i++) {
    if (strcmp(text, status_names[i]) != 0) continue;
    *ret = (clv_run_status)i;
    return CLV_OK;
  }
  return clv_fail(err, CLV_DATA_LOSS, "%s: unknown status '%.40s'", label, text);
}

static clv_code parse_field(const json_t *object, const field *f, const char *label, char *at,
                            clv_err *err) {
  if (f->is_optional && !json_object_get(object, f->key)) return CLV_OK;
  if (f->kind == FIELD_TEXT) return parse_text(object, f, label, at, err);
  if (f->kind == FIELD_REAL_NUMBER) return parse_real(object, f, label, (double *)(void *)at, err);
  if (f->kind == FIELD_STATUS)
    return parse_status(object, f, label, (clv_run_status *)(void *)at, err);
  return clv_weights_json_get_u64(object, f->key, INT64_MAX, label, (uint64_t *)(void *)at, err);
}

/* Parses the keys of an object that fields[n] describes. Refuses other keys unless
 * `allows_other_keys`. */
static clv_code parse_fields(json_t *object, const field *fields, size_t n, bool allows_other_keys,
                             const char *label, void *base, clv_err *err) {
  const char *known[CLV_COUNT(attempt_fields)];
  if (!json_is_object(object)) return clv_fail(err, CLV_DATA_LOSS, "%s: no object", label);
  for (size_t i = 0; i < n; i++) {
    CLV_TRY(parse_field(object, &fields[i], label, (char *)base + fields[i].offset, err));
    known[i] = fields[i].key;
  }
  return allows_other_keys ? CLV_OK : clv_weights_json_check_keys(object, known, n, label, err);
}

static clv_code parse_checkpoints(const json_t *root, const char *label, clv_run_record *r,
                                  clv_err *err) {
  const json_t *list = json_object_get(root, "checkpoints");
  size_t n = json_array_size(list);
  if (!json_is_array(list) || n > CLV_RECORD_MAX_CHECKPOINTS)
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'checkpoints' is not a list of %d at most", label,
                    CLV_RECORD_MAX_CHECKPOINTS);
  for (; r->n_checkpoints < n; r->n_checkpoints++) {
    const json_t *v = json_array_get(list, r->n_checkpoints);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s: a checkpoint's step is not a number", label);
    r->checkpoints[r->n_checkpoints] = (uint64_t)json_integer_value(v);
  }
  return CLV_OK;
}

static clv_code parse_attempts(const json_t *root, const char *label, clv_run_record *r,
                               clv_err *err) {
  const json_t *list = json_object_get(root, "attempts");
  size_t n = json_array_size(list);
  if (!json_is_array(list) || !n || n > CLV_RECORD_MAX_ATTEMPTS)
    return clv_fail(err, CLV_DATA_LOSS, "%s: 'attempts' is not a list of 1 to %d", label,
                    CLV_RECORD_MAX_ATTEMPTS);
  for (size_t i = 0; i < n; i++) {
    clv_run_attempt *a = NULL;
    char at[320];
    snprintf(at, sizeof at, "%.250s: attempt %zu", label, i + 1);
    CLV_TRY(clv_run_record_add_attempt(r, &a, err));
    CLV_TRY(parse_fields(json_array_get(list, i), attempt_fields, CLV_COUNT(attempt_fields), false,
                         at, a, err));
  }
  return CLV_OK;
}

static clv_code parse_root(json_t *root, const char *label, clv_run_record *r, clv_err *err) {
  static const char *const known[] = {"format",        "version",          "name", "session",
                                      "config_sha256", "earlier_attempts", "best", "checkpoints",
                                      "attempts",      "session_id",       "epoch"};
  CLV_TRY(clv_weights_json_check_format(root, format_name, FORMAT_VERSION, label, err));
  CLV_TRY(clv_weights_json_check_keys(root, known, CLV_COUNT(known), label, err));
  CLV_TRY(parse_fields(root, run_fields, CLV_COUNT(run_fields), true, label, r, err));
  CLV_TRY(parse_fields(json_object_get(root, "best"), best_fields, CLV_COUNT(best_fields), false,
                       label, &r->best, err));
  CLV_TRY(parse_checkpoints(root, label, r, err));
  return parse_attempts(root, label, r, err);
}

clv_code clv_run_record_parse(const void *data, size_t len, const char *label, clv_run_record *ret,
                              clv_err *err) {
  CLV_AUTO(clv_weights_json_freep) json_t *root = NULL;
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  CLV_TRY(clv_weights_json_parse(data, len, MAX_TOKENS, label, &root, err));
  CLV_TRY(parse_root(root, label, &r, err));
  *ret = r;
  r = (clv_run_record){0};
  return CLV_OK;
}
