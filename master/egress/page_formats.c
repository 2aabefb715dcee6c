/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the page of a record as text, HTML or JSON: egress_page_text, egress_page_html and
 * egress_page_json, which clv_egress_page calls. The record may come from an untrusted source, so
 * every text of it passes through plain, escaped or clv_bytes_json.
 */
#include <string.h>

#include "master/egress/egress_int.h"

/* Returns true for a character that could change how a terminal or a browser shows the rest: a
 * control character, a line separator or a mark of text direction. */
static bool can_alter_display(uint32_t c) {
  return clv_is_control(c) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

static void plain(clv_bytes *out, const char *text) {
  uint32_t point = 0;
  for (size_t n; *text; text += n) {
    size_t len = clv_utf8(text, SIZE_MAX, &point);
    n = len ? len : 1;
    if (len && !can_alter_display(point))
      clv_bytes_add(out, text, n);
    else
      clv_bytes_puts(out, "?");
  }
}

static void escaped(clv_bytes *out, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes clean = {0};
  plain(&clean, text);
  for (const char *p = clean.data; p && *p; p++) {
    const char *name = *p == '<'    ? "&lt;"
                       : *p == '>'  ? "&gt;"
                       : *p == '&'  ? "&amp;"
                       : *p == '"'  ? "&quot;"
                       : *p == '\'' ? "&#39;"
                                    : NULL;
    if (name)
      clv_bytes_puts(out, name);
    else
      clv_bytes_add(out, p, 1);
  }
}

typedef void put_fn(clv_bytes *out, const char *text);

/* Appends the text in *said to `out` through `put`, and frees *said. */
static void put_said(clv_bytes *said, put_fn *put, clv_bytes *out) {
  put(out, said->data ? said->data : "");
  out->failed |= said->failed;
  clv_bytes_done(said);
}

static void put_bytes(uint64_t settled, uint64_t unsettled, put_fn *put, clv_bytes *out) {
  clv_bytes said = {0};
  egress_format_bytes(settled, unsettled, &said);
  put_said(&said, put, out);
}

static void put_what(const egress_page_row *r, put_fn *put, clv_bytes *out) {
  clv_bytes said = {0};
  egress_format_what(r, &said);
  put_said(&said, put, out);
}

static void put_time(const clv_egress_attempt *a, put_fn *put, clv_bytes *out) {
  clv_bytes said = {0};
  egress_format_time(a, &said);
  put_said(&said, put, out);
}

static void put_policy(const clv_egress_attempt *a, put_fn *put, clv_bytes *out) {
  clv_bytes said = {0};
  egress_format_policy(a, &said);
  put_said(&said, put, out);
}

static void put_look(const clv_egress_attempt *a, put_fn *put, clv_bytes *out) {
  clv_bytes said = {0};
  egress_format_look(a, &said);
  put_said(&said, put, out);
}

static void shape_of(const egress_page_row *r, char text[160]) {
  text[0] = '\0';
  if (r->names == 1 && r->what->kind != CLV_EGRESS_FAILURE)
    clv_shape_format(&r->what->shape, text, 160);
}

static uint64_t unsettled_of(const clv_egress_summary *b) {
  uint64_t unsettled = 0;
  for (size_t i = 0; i < b->n_attempts; i++) unsettled += b->attempts[i].unsettled_bytes;
  return unsettled;
}

static const char *session_of(const clv_egress_summary *b) {
  return b->n_attempts ? b->attempts[b->n_attempts - 1].begun.begun.session : "";
}

static const egress_receiver *party(const egress_page *p, size_t i) { return &p->parties[i]; }

static size_t n_parties(const egress_page *p) {
  return p->n_parties + (p->parties[EGRESS_MAX_RECEIVERS].name != NULL);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void text_head(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->book;
  uint64_t unsettled = unsettled_of(b);
  clv_bytes_puts(out, "what left in ");
  plain(out, p->run);
  clv_bytes_puts(out, " (session ");
  plain(out, session_of(b));
  clv_bytes_puts(out, ")\nin all: ");
  put_bytes(b->total - unsettled, unsettled, plain, out);
  clv_bytes_printf(out, ", in %zu command%s\n", b->n_attempts, CLV_S(b->n_attempts));
  for (size_t i = 0; i < n_parties(p); i++) {
    clv_bytes_puts(out, "  to ");
    plain(out, party(p, i)->name);
    clv_bytes_puts(out, " (");
    plain(out, party(p, i)->identity);
    clv_bytes_puts(out, "): ");
    put_bytes(party(p, i)->settled, party(p, i)->unsettled, plain, out);
    clv_bytes_puts(out, "\n");
  }
  if (b->truncated_bytes)
    clv_bytes_printf(out, "the last line was cut short: %zu bytes of it are not counted\n",
                     b->truncated_bytes);
}

static void text_row(const egress_page_row *r, clv_bytes *out) {
  char shape[160];
  shape_of(r, shape);
  clv_bytes_puts(out, "   ");
  put_what(r, plain, out);
  if (shape[0]) clv_bytes_printf(out, " %s ", shape);
  if (shape[0]) plain(out, r->what->dtype);
  clv_bytes_puts(out, " to ");
  plain(out, r->what->to);
  clv_bytes_printf(out, ": %llu tensor%s, ", (unsigned long long)r->tensors, CLV_S(r->tensors));
  put_bytes(r->settled, r->unsettled, plain, out);
  clv_bytes_puts(out, "; ");
  plain(out, r->first);
  clv_bytes_puts(out, " to ");
  plain(out, r->last);
  clv_bytes_puts(out, "\n");
}

static void text_hop(const clv_egress_line *l, clv_bytes *out) {
  clv_bytes_puts(out, "   as reported by the worker: ");
  plain(out, l->hop.from);
  clv_bytes_puts(out, " sent ");
  plain(out, l->hop.to);
  clv_bytes_puts(out, " ");
  put_bytes(l->hop.bytes, 0, plain, out);
  clv_bytes_puts(out, "\n");
}

static void text_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "\n%zu  ", i + 1);
  plain(out, a->begun.begun.command);
  clv_bytes_puts(out, ": ");
  put_time(a, plain, out);
  clv_bytes_puts(out, "\n   ");
  put_policy(a, plain, out);
  clv_bytes_puts(out, "\n   ");
  put_look(a, plain, out);
  clv_bytes_puts(out, "\n   left: ");
  put_bytes(a->bytes - a->unsettled_bytes, a->unsettled_bytes, plain, out);
  clv_bytes_puts(out, "\n");
}

void egress_page_text(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->book;
  text_head(p, out);
  for (size_t i = 0, row = 0, hop = 0; i < b->n_attempts; i++) {
    text_attempt(&b->attempts[i], i, out);
    for (; row < p->n_rows && p->rows[row].attempt == i; row++) text_row(&p->rows[row], out);
    for (; hop < b->n_hops && p->hops[hop]->attempt == i; hop++) text_hop(&p->hops[hop]->line, out);
  }
}

/* ---- HTML ------------------------------------------------------------------------------------ */

static const char html_begin[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n<title>What left</title>\n<style>\n"
    "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#111}\n"
    "table{border-collapse:collapse;margin:.6em 0 1.4em;width:100%}\n"
    "th,td{border:1px solid #bbb;padding:.3em .6em;text-align:left;vertical-align:top;"
    "overflow-wrap:anywhere}\n"
    "th{background:#eee}\n.open{background:#fff3d0}\n</style></head><body>\n";

static void cell(clv_bytes *out, const char *text) {
  clv_bytes_puts(out, "<td>");
  escaped(out, text);
  clv_bytes_puts(out, "</td>");
}

static void html_parties(const egress_page *p, clv_bytes *out) {
  clv_bytes_puts(out, "<table><tr><th>to</th><th>identity</th><th>left</th></tr>\n");
  for (size_t i = 0; i < n_parties(p); i++) {
    clv_bytes_puts(out, "<tr>");
    cell(out, party(p, i)->name);
    cell(out, party(p, i)->identity);
    clv_bytes_puts(out, "<td>");
    put_bytes(party(p, i)->settled, party(p, i)->unsettled, escaped, out);
    clv_bytes_puts(out, "</td></tr>\n");
  }
  clv_bytes_puts(out, "</table>\n");
}

static void html_head(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->book;
  uint64_t unsettled = unsettled_of(b);
  clv_bytes_puts(out, html_begin);
  clv_bytes_puts(out, "<h1>What left in ");
  escaped(out, p->run);
  clv_bytes_puts(out, "</h1>\n<p>Session ");
  escaped(out, session_of(b));
  clv_bytes_puts(out, ". In all: ");
  put_bytes(b->total - unsettled, unsettled, escaped, out);
  clv_bytes_printf(out, ", in %zu command%s.</p>\n", b->n_attempts, CLV_S(b->n_attempts));
  if (b->truncated_bytes)
    clv_bytes_printf(out,
                     "<p class=\"open\">The last line was cut short: %zu bytes of it are not "
                     "counted.</p>\n",
                     b->truncated_bytes);
  html_parties(p, out);
}

static void html_row(const egress_page_row *r, clv_bytes *out) {
  char shape[160];
  shape_of(r, shape);
  clv_bytes_puts(out, r->unsettled ? "<tr class=\"open\"><td>" : "<tr><td>");
  put_what(r, escaped, out);
  clv_bytes_puts(out, "</td>");
  cell(out, shape);
  cell(out, r->what->dtype);
  cell(out, r->what->to);
  clv_bytes_printf(out, "<td>%llu</td><td>", (unsigned long long)r->tensors);
  put_bytes(r->settled, r->unsettled, escaped, out);
  clv_bytes_puts(out, "</td>");
  cell(out, r->first);
  cell(out, r->last);
  clv_bytes_puts(out, "</tr>\n");
}

static void html_hop(const clv_egress_line *l, clv_bytes *out) {
  clv_bytes_puts(out, "<p>As reported by the worker: ");
  escaped(out, l->hop.from);
  clv_bytes_puts(out, " sent ");
  escaped(out, l->hop.to);
  clv_bytes_puts(out, " ");
  put_bytes(l->hop.bytes, 0, escaped, out);
  clv_bytes_puts(out, ".</p>\n");
}

static void html_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "<h2>%zu. ", i + 1);
  escaped(out, a->begun.begun.command);
  clv_bytes_puts(out, "</h2>\n<p>");
  put_time(a, escaped, out);
  clv_bytes_puts(out, ".<br>By ");
  put_policy(a, escaped, out);
  clv_bytes_puts(out, ".<br>");
  put_look(a, escaped, out);
  clv_bytes_puts(out, ".<br>Left: ");
  put_bytes(a->bytes - a->unsettled_bytes, a->unsettled_bytes, escaped, out);
  clv_bytes_puts(out,
                 ".</p>\n<table><tr><th>what</th><th>shape of a sample</th><th>type</th>"
                 "<th>to</th><th>tensors</th><th>left</th><th>first</th><th>last</th></tr>\n");
}

void egress_page_html(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->book;
  html_head(p, out);
  for (size_t i = 0, row = 0, hop = 0; i < b->n_attempts; i++) {
    html_attempt(&b->attempts[i], i, out);
    for (; row < p->n_rows && p->rows[row].attempt == i; row++) html_row(&p->rows[row], out);
    clv_bytes_puts(out, "</table>\n");
    for (; hop < b->n_hops && p->hops[hop]->attempt == i; hop++) html_hop(&p->hops[hop]->line, out);
  }
  clv_bytes_puts(out, "</body></html>\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void key(clv_bytes *out, const char *name, const char *value) {
  clv_bytes_printf(out, ",\"%s\":", name);
  clv_bytes_json(out, value);
}

static void number(clv_bytes *out, const char *name, uint64_t value) {
  clv_bytes_printf(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

static void json_attempt(const clv_egress_attempt *a, size_t i, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"attempt\",\"attempt\":%zu", i + 1);
  key(out, "command", a->begun.begun.command);
  key(out, "session", a->begun.begun.session);
  key(out, "begin", a->begun.at);
  key(out, "end", a->has_ended ? a->end.at : "");
  if (a->has_ended) number(out, "code", a->end.end.code);
  key(out, "policy", a->begun.begun.policy);
  key(out, "policy_sha256", a->begun.begun.policy_sha256);
  key(out, "approver", a->begun.begun.approver);
  if (a->has_look) {
    number(out, "looked_at", a->look.look.records);
    key(out, "pixels", a->look.look.pixels);
    key(out, "tokens", a->look.look.tokens);
    key(out, "labels", a->look.look.labels);
    if (*a->look.look.features) key(out, "features", a->look.look.features);
    if (*a->look.look.groups) key(out, "groups", a->look.look.groups);
  }
  number(out, "bytes", a->bytes);
  number(out, "open", a->unsettled_bytes);
  clv_bytes_puts(out, "}\n");
}

static void json_row(const clv_egress_row_sum *r, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"row\",\"attempt\":%zu", r->attempt + 1);
  key(out, "from", r->what.from);
  key(out, "to", r->what.to);
  key(out, "identity", r->what.identity);
  key(out, "kind", clv_egress_kind_name((clv_egress_kind)r->what.kind));
  key(out, "stage", r->what.stage);
  key(out, "name", r->what.name);
  key(out, "dtype", r->what.dtype);
  clv_bytes_puts(out, ",\"shape\":[");
  for (int d = 0; d < r->what.shape.rank; d++)
    clv_bytes_printf(out, "%s%lld", d ? "," : "", (long long)r->what.shape.dim[d]);
  clv_bytes_printf(out, "],\"random\":%s", r->what.random ? "true" : "false");
  number(out, "tensors", r->tensors);
  number(out, "bytes", r->settled + r->unsettled);
  number(out, "open", r->unsettled);
  key(out, "first", r->first);
  key(out, "last", r->last);
  clv_bytes_puts(out, "}\n");
}

static void json_hop(const clv_egress_hop_sum *h, clv_bytes *out) {
  clv_bytes_printf(out, "{\"event\":\"hop\",\"attempt\":%zu", h->attempt + 1);
  key(out, "from", h->line.hop.from);
  key(out, "to", h->line.hop.to);
  number(out, "bytes", h->line.hop.bytes);
  key(out, "by", h->line.hop.by);
  clv_bytes_puts(out, "}\n");
}

void egress_page_json(const egress_page *p, clv_bytes *out) {
  const clv_egress_summary *b = p->book;
  for (size_t i = 0; i < b->n_attempts; i++) json_attempt(&b->attempts[i], i, out);
  for (size_t i = 0; i < b->n_rows; i++) json_row(&b->rows[i], out);
  for (size_t i = 0; i < b->n_hops; i++) json_hop(&b->hops[i], out);
  clv_bytes_puts(out, "{\"event\":\"total\"");
  key(out, "run", p->run);
  number(out, "bytes", b->total);
  number(out, "open", unsettled_of(b));
  number(out, "cut", b->truncated_bytes);
  clv_bytes_puts(out, "}\n");
}
