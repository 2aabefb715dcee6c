/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats and parses a line of the record with the same tables of fields: clv_egress_line_format
 * for the writer (record.c), clv_egress_line_parse for readers. The parser accepts a line only if
 * the formatter would write the same bytes. So keys out of order, signs, fractions or leading
 * zeros, control characters and invalid UTF-8 are errors.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "master/egress/egress_int.h"

typedef enum line_field_kind { WHOLE_NUMBER, TEXT, FLAG, SHAPE, EGRESS_KIND } line_field_kind;

typedef struct line_field {
  const char *key;
  line_field_kind kind;
  /* offset: byte offset of the field in clv_egress_line; size: bytes of a TEXT with its NUL */
  size_t offset, size;
  bool is_optional; /* a TEXT that older records lack; the formatter omits the field if it is "" */
} line_field;

#define AT(member) .offset = offsetof(clv_egress_line, member)
#define TEXT_AT(member) .kind = TEXT, AT(member), .size = sizeof(((clv_egress_line *)NULL)->member)

static const line_field head_fields[] = {{"at", TEXT_AT(at)},
                                         {"attempt", WHOLE_NUMBER, AT(attempt)}};
static const line_field attempt_fields[] = {
    {"version", WHOLE_NUMBER, AT(start.version)},
    {"command", TEXT_AT(start.command)},
    {"session", TEXT_AT(start.session)},
    {"run", TEXT_AT(start.run)},
    {"policy", TEXT_AT(start.policy)},
    {"policy_sha256", TEXT_AT(start.policy_sha256)},
    {"approver", TEXT_AT(start.approver)},
    {"table_sha256", TEXT_AT(start.table_sha256)},
    {"cut", WHOLE_NUMBER, AT(start.removed_bytes)},
};
static const line_field allow_fields[] = {
    {"id", WHOLE_NUMBER, AT(allowance.id)},
    {"from", TEXT_AT(allowance.key.from)},
    {"to", TEXT_AT(allowance.key.to)},
    {"identity", TEXT_AT(allowance.key.identity)},
    {"kind", EGRESS_KIND, AT(allowance.key.kind)},
    {"stage", TEXT_AT(allowance.key.stage)},
    {"name", TEXT_AT(allowance.key.name)},
    {"dtype", TEXT_AT(allowance.key.dtype)},
    {"shape", SHAPE, AT(allowance.key.shape)},
    {"random", FLAG, AT(allowance.key.has_random_values)},
    {"bytes", WHOLE_NUMBER, AT(allowance.bytes)},
    {"until", TEXT_AT(allowance.expires_at)},
};
static const line_field settle_fields[] = {
    {"id", WHOLE_NUMBER, AT(settlement.id)},
    {"tensors", WHOLE_NUMBER, AT(settlement.n_tensors)},
    {"bytes", WHOLE_NUMBER, AT(settlement.bytes)},
};
static const line_field hop_fields[] = {
    {"from", TEXT_AT(hop.from)},
    {"to", TEXT_AT(hop.to)},
    {"bytes", WHOLE_NUMBER, AT(hop.bytes)},
    {"by", TEXT_AT(hop.by)},
};
static const line_field look_fields[] = {
    {"records", WHOLE_NUMBER, AT(look.n_records)},
    {"pixels", TEXT_AT(look.pixels)},
    {"tokens", TEXT_AT(look.tokens)},
    {"labels", TEXT_AT(look.labels)},
    {"features", TEXT_AT(look.features), .is_optional = true},
    {"groups", TEXT_AT(look.groups), .is_optional = true},
};
static const line_field end_fields[] = {
    {"code", WHOLE_NUMBER, AT(attempt_end.code)},
    {"tensors", WHOLE_NUMBER, AT(attempt_end.n_tensors)},
    {"bytes", WHOLE_NUMBER, AT(attempt_end.bytes)},
};

static const struct {
  const char *name;
  const line_field *fields;
  size_t n;
} event_formats[CLV_EGRESS_EVENTS] = {
    [CLV_EGRESS_ATTEMPT] = {"attempt", attempt_fields, CLV_COUNT(attempt_fields)},
    [CLV_EGRESS_ALLOW] = {"allow", allow_fields, CLV_COUNT(allow_fields)},
    [CLV_EGRESS_SETTLE] = {"settle", settle_fields, CLV_COUNT(settle_fields)},
    [CLV_EGRESS_HOP] = {"hop", hop_fields, CLV_COUNT(hop_fields)},
    [CLV_EGRESS_LOOK] = {"look", look_fields, CLV_COUNT(look_fields)},
    [CLV_EGRESS_END] = {"end", end_fields, CLV_COUNT(end_fields)},
};

static const char *const kind_names[CLV_EGRESS_KINDS] = {
    "",         "input",   "tokens", "labels",  "activation",
    "gradient", "weights", "state",  "failure", "cached",
};

const char *clv_egress_kind_name(clv_egress_kind kind) {
  return (unsigned)kind < CLV_EGRESS_KINDS ? kind_names[kind] : "";
}

/* ---- formatting a line of the record --------------------------------------------------------- */

static void put_text(clv_bytes *out, const char *text, size_t size) {
  char clean_text[CLV_EGRESS_MAX_TEXT + 1];
  uint32_t code_point;
  size_t len = 0;
  for (size_t i = 0, n; i < size && text[i] && len < sizeof clean_text - 1;
       i += CLV_MAX(n, (size_t)1)) {
    n = clv_utf8_decode(text + i, size - i, &code_point);
    bool is_printable = n && !clv_is_control(code_point);
    if (len + n > sizeof clean_text - 1) break;
    memcpy(clean_text + len, is_printable ? text + i : "?", is_printable ? n : 1);
    len += is_printable ? n : 1;
  }
  clean_text[len] = '\0';
  clv_bytes_add_json(out, clean_text);
}

static void put_shape(clv_bytes *out, const clv_shape *s) {
  clv_bytes_puts(out, "[");
  for (int i = 0; i < s->rank; i++) clv_bytes_printf(out, "%s%" PRId64, i ? "," : "", s->dim[i]);
  clv_bytes_puts(out, "]");
}

static void put_field(clv_bytes *out, const line_field *f, const void *line) {
  const void *at = (const char *)line + f->offset;
  if (f->is_optional && !*(const char *)at) return;
  clv_bytes_printf(out, ",\"%s\":", f->key);
  if (f->kind == TEXT) put_text(out, at, f->size);
  if (f->kind == SHAPE) put_shape(out, at);
  if (f->kind == FLAG) clv_bytes_puts(out, *(const bool *)at ? "true" : "false");
  if (f->kind == EGRESS_KIND) clv_bytes_printf(out, "\"%s\"", kind_names[*(const uint64_t *)at]);
  if (f->kind == WHOLE_NUMBER)
    clv_bytes_printf(out, "%" PRIu64, CLV_MIN(*(const uint64_t *)at, (uint64_t)INT64_MAX));
}

void clv_egress_line_format(const clv_egress_line *l, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"%s\"", event_formats[l->event].name);
  for (size_t i = 0; i < CLV_COUNT(head_fields); i++) put_field(out, &head_fields[i], l);
  for (size_t i = 0; i < event_formats[l->event].n; i++)
    put_field(out, &event_formats[l->event].fields[i], l);
  clv_bytes_puts(out, "}\n");
}

/* ---- parsing a line of the record ------------------------------------------------------------ */

/* The part of a line that is not yet parsed. */
typedef struct cursor {
  const char *at, *end;
} cursor;

static bool skip_text(cursor *c, const char *text) {
  size_t n = strlen(text);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) return false;
  c->at += n;
  return true;
}

static bool parse_whole_number(cursor *c, uint64_t *ret) {
  const char *start = c->at;
  uint64_t v = 0;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
    if (v > (uint64_t)INT64_MAX / 10) return false;
    v = v * 10 + (uint64_t)(*c->at - '0');
  }
  *ret = v;
  return c->at > start && v <= (uint64_t)INT64_MAX;
}

/* Parses a quoted text into `size` bytes with a NUL. */
static bool parse_text(cursor *c, char *ret, size_t size) {
  size_t n = 0;
  if (!skip_text(c, "\"")) return false;
  for (; c->at < c->end && *c->at != '"'; c->at++) {
    if (*c->at == '\\' && ++c->at == c->end) return false;
    if (n + 1 >= size || !*c->at) return false;
    ret[n++] = *c->at;
  }
  ret[n] = '\0';
  return skip_text(c, "\"");
}

static bool parse_shape(cursor *c, clv_shape *ret) {
  uint64_t v;
  ret->rank = 0;
  if (!skip_text(c, "[")) return false;
  while (!skip_text(c, "]")) {
    if (ret->rank == CLV_MAX_RANK || (ret->rank && !skip_text(c, ",")) ||
        !parse_whole_number(c, &v))
      return false;
    ret->dim[ret->rank++] = (int64_t)v;
  }
  return true;
}

static bool parse_kind(cursor *c, uint64_t *ret) {
  char name[16];
  if (!parse_text(c, name, sizeof name)) return false;
  for (*ret = 1; *ret < CLV_EGRESS_KINDS; ++*ret)
    if (strcmp(name, kind_names[*ret]) == 0) return true;
  return false;
}

static bool parse_value(cursor *c, const line_field *f, void *line) {
  void *at = (char *)line + f->offset;
  if (f->kind == TEXT) return parse_text(c, at, f->size);
  if (f->kind == SHAPE) return parse_shape(c, at);
  if (f->kind == EGRESS_KIND) return parse_kind(c, at);
  if (f->kind == WHOLE_NUMBER) return parse_whole_number(c, at);
  *(bool *)at = skip_text(c, "true");
  return *(bool *)at || skip_text(c, "false");
}

static clv_code parse_fields(cursor *c, const line_field *fields, size_t n, clv_egress_line *l,
                             clv_err *err) {
  for (size_t i = 0; i < n; i++) {
    if (fields[i].is_optional && c->at < c->end && *c->at == '}') continue;
    if (!skip_text(c, ",\"") || !skip_text(c, fields[i].key) || !skip_text(c, "\":") ||
        !parse_value(c, &fields[i], l))
      return clv_fail(err, CLV_DATA_LOSS, "field '%s' is missing or has a wrong value",
                      fields[i].key);
  }
  return CLV_OK;
}

static clv_code parse_event(cursor *c, clv_egress_event *ret, clv_err *err) {
  char name[16] = "";
  if (skip_text(c, "{\"event\":") && parse_text(c, name, sizeof name))
    for (int e = 1; e < CLV_EGRESS_EVENTS; e++)
      if (strcmp(name, event_formats[e].name) == 0) {
        *ret = (clv_egress_event)e;
        return CLV_OK;
      }
  return clv_fail(err, CLV_DATA_LOSS, "the line begins with no known event");
}

clv_code clv_egress_line_parse(const char *text, size_t len, clv_egress_line *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes rewritten = {0};
  clv_egress_line l = {0};
  cursor c = {text, text + len};
  if (len > CLV_EGRESS_MAX_LINE)
    return clv_fail(err, CLV_DATA_LOSS, "the line has %zu bytes, the limit is %d", len,
                    CLV_EGRESS_MAX_LINE);
  CLV_TRY(parse_event(&c, &l.event, err));
  CLV_TRY(parse_fields(&c, head_fields, CLV_COUNT(head_fields), &l, err));
  CLV_TRY(parse_fields(&c, event_formats[l.event].fields, event_formats[l.event].n, &l, err));
  clv_egress_line_format(&l, &rewritten);
  if (rewritten.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (rewritten.len != len + 1 || memcmp(rewritten.data, text, len) != 0)
    return clv_fail(err, CLV_DATA_LOSS, "the line is not written as this program writes it");
  *ret = l;
  return CLV_OK;
}
