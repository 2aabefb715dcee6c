/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the page of a record as text, HTML or JSON: egress_write_text_page, egress_write_html_page
 * and egress_write_json_page, which clv_egress_write_page calls. The record may come from an
 * untrusted source, so every text of the record passes through put_plain_text, put_html_escaped or
 * clv_bytes_add_json.
 */
#include <string.h>

#include "master/egress/egress_int.h"

/* Returns true for a character that could change how a terminal or a browser shows the following
 * text: a control character, a line separator or a mark of text direction. */
static bool can_alter_display(uint32_t c) {
  return clv_is_control(c) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

static void put_plain_text(clv_bytes *out, const char *text) {
  uint32_t code_point = 0;
  for (size_t n; *text; text += n) {
    size_t len = clv_utf8_decode(text, SIZE_MAX, &code_point);
    n = len ? len : 1;
    if (len && !can_alter_display(code_point))
      clv_bytes_add(out, text, n);
    else
      clv_bytes_puts(out, "?");
  }
}

static void put_html_escaped(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes clean = {0};
  put_plain_text(&clean, text);
  for (const char *p = clean.data; p && *p; p++) {
    const char *entity = *p == '<'    ? "&lt;"
                         : *p == '>'  ? "&gt;"
                         : *p == '&'  ? "&amp;"
                         : *p == '"'  ? "&quot;"
                         : *p == '\'' ? "&#39;"
                                      : NULL;
    if (entity)
      clv_bytes_puts(out, entity);
    else
      clv_bytes_add(out, p, 1);
  }
}

typedef void text_writer(clv_bytes *out, const char *text);

/* Appends *text to `out` through `put`, and frees *text. */
static void put_text_and_free(clv_bytes *text, text_writer *put, clv_bytes *out) {
  put(out, text->data ? text->data : "");
  out->failed |= text->failed;
  clv_bytes_done(text);
}

static void put_bytes(uint64_t settled_bytes, uint64_t unsettled_bytes, text_writer *put,
                      clv_bytes *out) {
  clv_bytes text = {0};
  egress_format_bytes(settled_bytes, unsettled_bytes, &text);
  put_text_and_free(&text, put, out);
}

static void put_tensor_name(const egress_page_row *r, text_writer *put, clv_bytes *out) {
  clv_bytes text = {0};
  egress_format_tensor_name(r, &text);
  put_text_and_free(&text, put, out);
}

static void put_time(const clv_egress_attempt *a, text_writer *put, clv_bytes *out) {
  clv_bytes text = {0};
  egress_format_time(a, &text);
  put_text_and_free(&text, put, out);
}

static void put_policy(const clv_egress_attempt *a, text_writer *put, clv_bytes *out) {
  clv_bytes text = {0};
  egress_format_policy(a, &text);
  put_text_and_free(&text, put, out);
}

static void put_look(const clv_egress_attempt *a, text_writer *put, clv_bytes *out) {
  clv_bytes text = {0};
  egress_format_look(a, &text);
  put_text_and_free(&text, put, out);
}

static void format_row_shape(const egress_page_row *r, char text[160]) {
  text[0] = '\0';
  if (r->n_rows == 1 && r->key->kind != CLV_EGRESS_FAILURE)
    clv_shape_format(&r->key->shape, text, 160);
}

static uint64_t sum_unsettled_bytes(const clv_egress_summary *b) {
  uint64_t unsettled_bytes = 0;
  for (size_t i = 0; i < b->n_attempts; i++) unsettled_bytes += b->attempts[i].unsettled_bytes;
  return unsettled_bytes;
}

static const char *last_session_name(const clv_egress_summary *b) {
  return b->n_attempts ? b->attempts[b->n_attempts - 1].start_line.start.session : "";
}

static const egress_receiver *receiver_at(const egress_page *p, size_t i) {
  return &p->receivers[i];
}

static size_t count_receivers(const egress_page *p) {
  return p->n_receivers + (p->receivers[EGRESS_MAX_RECEIVERS].name != NULL);
}

/* ---- the page as text ------------------------------------------------------------------------ */

static void put_text_head(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->summary;
  uint64_t unsettled_bytes = sum_unsettled_bytes(b);
  clv_bytes_puts(out, "what left in ");
  put_plain_text(out, p->run);
  clv_bytes_puts(out, " (session ");
  put_plain_text(out, last_session_name(b));
  clv_bytes_puts(out, ")\nin all: ");
  put_bytes(b->total_bytes - unsettled_bytes, unsettled_bytes, put_plain_text, out);
  clv_bytes_printf(out, ", in %zu command%s\n", b->n_attempts, CLV_S(b->n_attempts));
  for (size_t i = 0; i < count_receivers(p); i++) {
    clv_bytes_puts(out, "  to ");
    put_plain_text(out, receiver_at(p, i)->name);
    clv_bytes_puts(out, " (");
    put_plain_text(out, receiver_at(p, i)->identity);
    clv_bytes_puts(out, "): ");
    put_bytes(receiver_at(p, i)->settled_bytes, receiver_at(p, i)->unsettled_bytes, put_plain_text,
              out);
    clv_bytes_puts(out, "\n");
  }
  if (b->truncated_bytes)
    clv_bytes_printf(out, "the last line was cut short: %zu bytes of it are not counted\n",
                     b->truncated_bytes);
}

static void put_text_row(const egress_page_row *r, clv_bytes *out) {
  char shape_text[160];
  format_row_shape(r, shape_text);
  clv_bytes_puts(out, "   ");
  put_tensor_name(r, put_plain_text, out);
  if (shape_text[0]) clv_bytes_printf(out, " %s ", shape_text);
  if (shape_text[0]) put_plain_text(out, r->key->dtype);
  clv_bytes_puts(out, " to ");
  put_plain_text(out, r->key->to);
  clv_bytes_printf(out, ": %llu tensor%s, ", (unsigned long long)r->n_tensors, CLV_S(r->n_tensors));
  put_bytes(r->settled_bytes, r->unsettled_bytes, put_plain_text, out);
  clv_bytes_puts(out, "; ");
  put_plain_text(out, r->first_time);
  clv_bytes_puts(out, " to ");
  put_plain_text(out, r->last_time);
  clv_bytes_puts(out, "\n");
}

static void put_text_hop(const clv_egress_line *l, clv_bytes *out) {
  clv_bytes_puts(out, "   as reported by the worker: ");
  put_plain_text(out, l->hop.from);
  clv_bytes_puts(out, " sent ");
  put_plain_text(out, l->hop.to);
  clv_bytes_puts(out, " ");
  put_bytes(l->hop.bytes, 0, put_plain_text, out);
  clv_bytes_puts(out, "\n");
}

static void put_text_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "\n%zu  ", i + 1);
  put_plain_text(out, a->start_line.start.command);
  clv_bytes_puts(out, ": ");
  put_time(a, put_plain_text, out);
  clv_bytes_puts(out, "\n   ");
  put_policy(a, put_plain_text, out);
  clv_bytes_puts(out, "\n   ");
  put_look(a, put_plain_text, out);
  clv_bytes_puts(out, "\n   left: ");
  put_bytes(a->bytes - a->unsettled_bytes, a->unsettled_bytes, put_plain_text, out);
  clv_bytes_puts(out, "\n");
}

void egress_write_text_page(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->summary;
  put_text_head(p, out);
  for (size_t i = 0, row = 0, hop = 0; i < b->n_attempts; i++) {
    put_text_attempt(&b->attempts[i], i, out);
    for (; row < p->n_rows && p->rows[row].attempt == i; row++) put_text_row(&p->rows[row], out);
    for (; hop < b->n_hops && p->hops[hop]->attempt == i; hop++)
      put_text_hop(&p->hops[hop]->line, out);
  }
}

/* ---- the page as HTML ------------------------------------------------------------------------ */

static const char html_begin[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n<title>What left</title>\n<style>\n"
    "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#111}\n"
    "table{border-collapse:collapse;margin:.6em 0 1.4em;width:100%}\n"
    "th,td{border:1px solid #bbb;padding:.3em .6em;text-align:left;vertical-align:top;"
    "overflow-wrap:anywhere}\n"
    "th{background:#eee}\n.open{background:#fff3d0}\n</style></head><body>\n";

static void put_html_cell(clv_bytes *out, const char *text) {
  clv_bytes_puts(out, "<td>");
  put_html_escaped(out, text);
  clv_bytes_puts(out, "</td>");
}

static void put_html_receivers(const egress_page *p, clv_bytes *out) {
  clv_bytes_puts(out, "<table><tr><th>to</th><th>identity</th><th>left</th></tr>\n");
  for (size_t i = 0; i < count_receivers(p); i++) {
    clv_bytes_puts(out, "<tr>");
    put_html_cell(out, receiver_at(p, i)->name);
    put_html_cell(out, receiver_at(p, i)->identity);
    clv_bytes_puts(out, "<td>");
    put_bytes(receiver_at(p, i)->settled_bytes, receiver_at(p, i)->unsettled_bytes,
              put_html_escaped, out);
    clv_bytes_puts(out, "</td></tr>\n");
  }
  clv_bytes_puts(out, "</table>\n");
}

static void put_html_head(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->summary;
  uint64_t unsettled_bytes = sum_unsettled_bytes(b);
  clv_bytes_puts(out, html_begin);
  clv_bytes_puts(out, "<h1>What left in ");
  put_html_escaped(out, p->run);
  clv_bytes_puts(out, "</h1>\n<p>Session ");
  put_html_escaped(out, last_session_name(b));
  clv_bytes_puts(out, ". In all: ");
  put_bytes(b->total_bytes - unsettled_bytes, unsettled_bytes, put_html_escaped, out);
  clv_bytes_printf(out, ", in %zu command%s.</p>\n", b->n_attempts, CLV_S(b->n_attempts));
  if (b->truncated_bytes)
    clv_bytes_printf(out,
                     "<p class=\"open\">The last line was cut short: %zu bytes of it are not "
                     "counted.</p>\n",
                     b->truncated_bytes);
  put_html_receivers(p, out);
}

static void put_html_row(const egress_page_row *r, clv_bytes *out) {
  char shape_text[160];
  format_row_shape(r, shape_text);
  clv_bytes_puts(out, r->unsettled_bytes ? "<tr class=\"open\"><td>" : "<tr><td>");
  put_tensor_name(r, put_html_escaped, out);
  clv_bytes_puts(out, "</td>");
  put_html_cell(out, shape_text);
  put_html_cell(out, r->key->dtype);
  put_html_cell(out, r->key->to);
  clv_bytes_printf(out, "<td>%llu</td><td>", (unsigned long long)r->n_tensors);
  put_bytes(r->settled_bytes, r->unsettled_bytes, put_html_escaped, out);
  clv_bytes_puts(out, "</td>");
  put_html_cell(out, r->first_time);
  put_html_cell(out, r->last_time);
  clv_bytes_puts(out, "</tr>\n");
}

static void put_html_hop(const clv_egress_line *l, clv_bytes *out) {
  clv_bytes_puts(out, "<p>As reported by the worker: ");
  put_html_escaped(out, l->hop.from);
  clv_bytes_puts(out, " sent ");
  put_html_escaped(out, l->hop.to);
  clv_bytes_puts(out, " ");
  put_bytes(l->hop.bytes, 0, put_html_escaped, out);
  clv_bytes_puts(out, ".</p>\n");
}

static void put_html_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "<h2>%zu. ", i + 1);
  put_html_escaped(out, a->start_line.start.command);
  clv_bytes_puts(out, "</h2>\n<p>");
  put_time(a, put_html_escaped, out);
  clv_bytes_puts(out, ".<br>By ");
  put_policy(a, put_html_escaped, out);
  clv_bytes_puts(out, ".<br>");
  put_look(a, put_html_escaped, out);
  clv_bytes_puts(out, ".<br>Left: ");
  put_bytes(a->bytes - a->unsettled_bytes, a->unsettled_bytes, put_html_escaped, out);
  clv_bytes_puts(out,
                 ".</p>\n<table><tr><th>what</th><th>shape of a sample</th><th>type</th>"
                 "<th>to</th><th>tensors</th><th>left</th><th>first</th><th>last</th></tr>\n");
}

void egress_write_html_page(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->summary;
  put_html_head(p, out);
  for (size_t i = 0, row = 0, hop = 0; i < b->n_attempts; i++) {
    put_html_attempt(&b->attempts[i], i, out);
    for (; row < p->n_rows && p->rows[row].attempt == i; row++) put_html_row(&p->rows[row], out);
    clv_bytes_puts(out, "</table>\n");
    for (; hop < b->n_hops && p->hops[hop]->attempt == i; hop++)
      put_html_hop(&p->hops[hop]->line, out);
  }
  clv_bytes_puts(out, "</body></html>\n");
}

/* ---- the page as JSON ------------------------------------------------------------------------ */

static void put_json_text(clv_bytes *out, const char *name, const char *value) {
  clv_bytes_printf(out, ",\"%s\":", name);
  clv_bytes_add_json(out, value);
}

static void put_json_number(clv_bytes *out, const char *name, uint64_t value) {
  clv_bytes_printf(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

static void put_json_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"attempt\",\"attempt\":%zu", i + 1);
  put_json_text(out, "command", a->start_line.start.command);
  put_json_text(out, "session", a->start_line.start.session);
  put_json_text(out, "begin", a->start_line.at);
  put_json_text(out, "end", a->has_ended ? a->end.at : "");
  if (a->has_ended) put_json_number(out, "code", a->end.attempt_end.code);
  put_json_text(out, "policy", a->start_line.start.policy);
  put_json_text(out, "policy_sha256", a->start_line.start.policy_sha256);
  put_json_text(out, "approver", a->start_line.start.approver);
  if (a->has_look) {
    put_json_number(out, "looked_at", a->look.look.n_records);
    put_json_text(out, "pixels", a->look.look.pixels);
    put_json_text(out, "tokens", a->look.look.tokens);
    put_json_text(out, "labels", a->look.look.labels);
    if (*a->look.look.features) put_json_text(out, "features", a->look.look.features);
    if (*a->look.look.groups) put_json_text(out, "groups", a->look.look.groups);
  }
  put_json_number(out, "bytes", a->bytes);
  put_json_number(out, "open", a->unsettled_bytes);
  clv_bytes_puts(out, "}\n");
}

static void put_json_row(const clv_egress_row_sum *r, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"row\",\"attempt\":%zu", r->attempt + 1);
  put_json_text(out, "from", r->key.from);
  put_json_text(out, "to", r->key.to);
  put_json_text(out, "identity", r->key.identity);
  put_json_text(out, "kind", clv_egress_kind_name((clv_egress_kind)r->key.kind));
  put_json_text(out, "stage", r->key.stage);
  put_json_text(out, "name", r->key.name);
  put_json_text(out, "dtype", r->key.dtype);
  clv_bytes_puts(out, ",\"shape\":[");
  for (int d = 0; d < r->key.shape.rank; d++)
    clv_bytes_printf(out, "%s%lld", d ? "," : "", (long long)r->key.shape.dim[d]);
  clv_bytes_printf(out, "],\"random\":%s", r->key.has_random_values ? "true" : "false");
  put_json_number(out, "tensors", r->n_tensors);
  put_json_number(out, "bytes", r->settled_bytes + r->unsettled_bytes);
  put_json_number(out, "open", r->unsettled_bytes);
  put_json_text(out, "first", r->first_time);
  put_json_text(out, "last", r->last_time);
  clv_bytes_puts(out, "}\n");
}

static void put_json_hop(const clv_egress_hop_sum *h, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"hop\",\"attempt\":%zu", h->attempt + 1);
  put_json_text(out, "from", h->line.hop.from);
  put_json_text(out, "to", h->line.hop.to);
  put_json_number(out, "bytes", h->line.hop.bytes);
  put_json_text(out, "by", h->line.hop.by);
  clv_bytes_puts(out, "}\n");
}

void egress_write_json_page(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->summary;
  for (size_t i = 0; i < b->n_attempts; i++) put_json_attempt(&b->attempts[i], i, out);
  for (size_t i = 0; i < b->n_rows; i++) put_json_row(&b->rows[i], out);
  for (size_t i = 0; i < b->n_hops; i++) put_json_hop(&b->hops[i], out);
  clv_bytes_puts(out, "{\"event\":\"total\"");
  put_json_text(out, "run", p->run);
  put_json_number(out, "bytes", b->total_bytes);
  put_json_number(out, "open", sum_unsettled_bytes(b));
  put_json_number(out, "cut", b->truncated_bytes);
  clv_bytes_puts(out, "}\n");
}
