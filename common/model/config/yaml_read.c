/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_yaml_read: makes a tree from libfyaml's events. It uses events, not the library's documents,
 * to refuse anchors, aliases, tags and deep nesting before a node is built from them, and to name
 * the position of the first key in the error for a duplicate. The library's messages are collected,
 * and never printed.
 */
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/tree_int.h"

enum { MAX_QUOTES = 8, MAX_LINE_BYTES = 65536 };

typedef struct reader {
  const clv_yaml_source *source;
  uint32_t override_number;
  const char *text, *text_end; /* start and end of the document */
  struct fy_diag *diag;
  struct fy_parser *parser;
  size_t n_nodes;
  clv_config_pos last_event_pos; /* position of the last event read that has a position */
} reader;

typedef struct held_event {
  struct fy_parser *parser;
  struct fy_event *event;
} held_event;

static void free_held_event(held_event *held) {
  if (held->event) fy_parser_event_free(held->parser, held->event);
}

static void reader_clear(reader *r) {
  if (r->parser) fy_parser_destroy(r->parser);
  if (r->diag) fy_diag_destroy(r->diag);
}

static clv_config_pos position_of(const reader *r, int line, int column) {
  if (r->override_number) return (clv_config_pos){0, r->override_number};
  return (clv_config_pos){(uint32_t)CLV_MAX(line, 0) + 1, (uint32_t)CLV_MAX(column, 0) + 1};
}

static bool is_quoted(struct fy_event *event) {
  if (event->type != FYET_SCALAR || !event->scalar.value) return false;
  enum fy_scalar_style style = fy_token_scalar_style(event->scalar.value);
  return style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED;
}

static bool is_empty(struct fy_event *event) {
  size_t len = 0;
  if (event->type != FYET_SCALAR || is_quoted(event)) return false;
  return !event->scalar.value || !fy_token_get_text(event->scalar.value, &len) || !len;
}

/* Returns the position of an event. An empty value gets the position of its key: libfyaml 0.7 has
 * none for it, and 0.8 that of the colon. For a quoted text subtracts one column, because the
 * library's position is behind the quote. */
static clv_config_pos position_of_event(reader *r, struct fy_event *event) {
  const struct fy_mark *mark = fy_event_start_mark(event);
  if (mark && !is_empty(event))
    r->last_event_pos = position_of(r, mark->line, mark->column - is_quoted(event));
  return r->last_event_pos;
}

/* Finds the last tab in the indentation of a line, up to the line after `line` (0: in all lines).
 * Returns false if there is none. Needed because the library reports some tabs at the start or end
 * of the surrounding value. */
static bool find_indenting_tab(const reader *r, int line, int *ret_line, int *ret_column) {
  bool found = false;
  const char *at = r->text;
  for (int n = 0; at < r->text_end && (!line || n <= line); n++) {
    const char *end = memchr(at, '\n', (size_t)(r->text_end - at)), *first = at;
    if (!end) end = r->text_end;
    while (first < end && *first == ' ') first++;
    if (first < end && *first == '\t') {
      *ret_line = n;
      *ret_column = (int)(first - at);
      found = true;
    }
    at = end + 1;
  }
  return found;
}

/* Fails with the first message of the library, because its later messages are consequences. */
static clv_code fail_syntax_error(reader *r, clv_err *err) {
  void *iter = NULL;
  char shown_text[CLV_MESSAGE_TEXT_MAX];
  int line, column;
  const struct fy_diag_error *e = fy_diag_errors_iterate(r->diag, &iter);
  if (find_indenting_tab(r, e ? e->line : 0, &line, &column))
    return clv_yaml_source_fail(r->source, position_of(r, line, column), err,
                                "a tab in the indentation: YAML wants spaces there");
  if (!e || !e->msg)
    return clv_yaml_source_fail(r->source, position_of(r, 0, 0), err, "not valid YAML");
  return clv_yaml_source_fail(r->source, position_of(r, e->line - 1, e->column - 1), err,
                              "not valid YAML: %s", clv_text_for_message(e->msg, shown_text));
}

static clv_code next_event(reader *r, held_event *ret, clv_err *err) {
  struct fy_event *event = fy_parser_parse(r->parser);
  if (!event) return fail_syntax_error(r, err);
  *ret = (held_event){r->parser, event};
  return CLV_OK;
}

/* Refuses aliases, and anchors and tags of scalars, lists and mappings. For anchors and aliases
 * subtracts one column, because the library's position is behind the sign & or *. */
static clv_code refuse_anchors_and_tags(reader *r, struct fy_event *e, clv_err *err) {
  struct fy_token *anchor = NULL, *tag = NULL;
  if (e->type == FYET_SCALAR) anchor = e->scalar.anchor, tag = e->scalar.tag;
  if (e->type == FYET_MAPPING_START) anchor = e->mapping_start.anchor, tag = e->mapping_start.tag;
  if (e->type == FYET_SEQUENCE_START)
    anchor = e->sequence_start.anchor, tag = e->sequence_start.tag;
  if (e->type == FYET_ALIAS) anchor = e->alias.anchor;
  if (!anchor && !tag) return CLV_OK;
  const struct fy_mark *mark = fy_token_start_mark(anchor ? anchor : tag);
  clv_config_pos pos =
      mark ? position_of(r, mark->line, mark->column - (anchor != NULL)) : r->last_event_pos;
  return clv_yaml_source_fail(
      r->source, pos, err, "%s",
      anchor ? "anchors (&x) and aliases (*x) are not supported: write the value out"
             : "tags (!x) are not supported: write the plain value");
}

/* Refuses texts that libfyaml 0.7.12 handles badly: it takes bad UTF-8 and control bytes for empty
 * values, needs seconds for very long lines, and leaks memory on long runs of quotes. */
clv_code clv_yaml_text_check(const clv_yaml_source *source, const char *text, size_t len,
                             uint32_t override, clv_err *err) {
  const reader r = {.override_number = override};
  int line = 0, column = 0, n_quotes = 0;
  size_t line_start = 0;
  uint32_t code_point;
  const char *encoding = clv_text_utf16_or_32(text, len);
  if (encoding)
    return clv_yaml_source_fail(
        source, position_of(&r, 0, 0), err,
        "its text is %s, and UTF-8 is expected: convert it with iconv -f %s -t UTF-8", encoding,
        encoding);
  for (size_t i = 0, n; i < len; i += n, column++) {
    const char *fault = NULL;
    unsigned char c = (unsigned char)text[i];
    n = clv_utf8_decode(text + i, len - i, &code_point);
    n_quotes = c == '\'' ? n_quotes + 1 : 0;
    if (n == 0)
      fault = "not valid UTF-8";
    else if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f)
      fault = "a control character";
    else if (n_quotes > MAX_QUOTES)
      fault = "more than 8 quotes in a row";
    else if (i - line_start >= MAX_LINE_BYTES)
      fault = "a line longer than 65536 bytes";
    if (fault) return clv_yaml_source_fail(source, position_of(&r, line, column), err, "%s", fault);
    if (c == '\n') line++, column = -1, line_start = i + 1;
  }
  return CLV_OK;
}

static clv_code read_scalar(reader *r, struct fy_event *e, clv_yaml_node **ret, clv_err *err) {
  size_t len = 0;
  struct fy_token *token = e->scalar.value;
  const char *text = token ? fy_token_get_text(token, &len) : "";
  if (!text) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a value");
  if (memchr(text, '\0', len))
    return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                "a value holds a NUL character");
  if (len > CLV_CONFIG_MAX_TEXT)
    return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                "a value of %zu bytes, the limit is %d", len, CLV_CONFIG_MAX_TEXT);
  /* checked again, because escapes may produce bytes that the file itself must not contain */
  uint32_t code_point;
  for (size_t i = 0, n; i < len; i += n)
    if (!(n = clv_utf8_decode(text + i, len - i, &code_point)))
      return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                  "a value is not valid UTF-8");
  bool is_plain = !token || fy_token_scalar_style(token) == FYSS_PLAIN;
  CLV_AUTO(clv_freep) char *copy = NULL;
  CLV_TRY(clv_alloc(len + 1, 1, &copy, err));
  memcpy(copy, text, len);
  return clv_yaml_node_new_scalar(copy, is_plain, position_of_event(r, e), ret, err);
}

static clv_code read_node(reader *r, struct fy_event *e, unsigned depth, clv_yaml_node **ret,
                          clv_err *err);

static clv_code check_entry_count(reader *r, const clv_yaml_node *node, struct fy_event *e,
                                  clv_err *err) {
  if (node->n < CLV_CONFIG_MAX_ENTRIES) return CLV_OK;
  return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                              "more than %d entries in one %s", CLV_CONFIG_MAX_ENTRIES,
                              node->kind == CLV_YAML_MAP ? "mapping" : "list");
}

static clv_code check_key(reader *r, const clv_yaml_node *map, const clv_yaml_node *key,
                          clv_err *err) {
  char shown_text[CLV_MESSAGE_TEXT_MAX];
  if (key->kind != CLV_YAML_SCALAR)
    return clv_yaml_source_fail(r->source, key->pos, err, "a key must be a single word");
  if (key->is_plain && strcmp(key->text, "<<") == 0)
    return clv_yaml_source_fail(r->source, key->pos, err,
                                "merge keys (<<) are not supported: write the keys out");
  const clv_yaml_node *first = clv_yaml_node_find(map, key->text);
  if (!first) return CLV_OK;
  if (!first->key_pos.line)
    return clv_yaml_source_fail(r->source, key->pos, err, "duplicate key '%s'",
                                clv_text_for_message(key->text, shown_text));
  return clv_yaml_source_fail(r->source, key->pos, err,
                              "duplicate key '%s', first given at line %u: remove one of them",
                              clv_text_for_message(key->text, shown_text), first->key_pos.line);
}

static clv_code read_entry(reader *r, struct fy_event *key_event, unsigned depth,
                           clv_yaml_node *map, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *key = NULL;
  CLV_TRY(read_node(r, key_event, depth, &key, err));
  CLV_TRY(check_key(r, map, key, err));
  CLV_AUTO(free_held_event) held_event held = {0};
  CLV_TRY(next_event(r, &held, err));
  clv_yaml_node *value = NULL;
  CLV_TRY(read_node(r, held.event, depth, &value, err));
  value->key = clv_steal(&key->text);
  value->key_pos = key->pos;
  return clv_yaml_node_add(map, value, err);
}

static clv_code read_items(reader *r, unsigned depth, clv_yaml_node *node, clv_err *err) {
  enum fy_event_type end = node->kind == CLV_YAML_MAP ? FYET_MAPPING_END : FYET_SEQUENCE_END;
  for (;;) {
    CLV_AUTO(free_held_event) held_event held = {0};
    CLV_TRY(next_event(r, &held, err));
    if (held.event->type == end) return CLV_OK;
    CLV_TRY(check_entry_count(r, node, held.event, err));
    if (node->kind == CLV_YAML_MAP) {
      CLV_TRY(read_entry(r, held.event, depth, node, err));
      continue;
    }
    clv_yaml_node *item = NULL;
    CLV_TRY(read_node(r, held.event, depth, &item, err));
    CLV_TRY(clv_yaml_node_add(node, item, err));
  }
}

static clv_code read_node(reader *r, struct fy_event *e, unsigned depth, clv_yaml_node **ret,
                          clv_err *err) {
  CLV_TRY(refuse_anchors_and_tags(r, e, err));
  if (++r->n_nodes > CLV_CONFIG_MAX_NODES)
    return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                "more than %d values in one file", CLV_CONFIG_MAX_NODES);
  if (e->type == FYET_SCALAR) return read_scalar(r, e, ret, err);
  if (e->type != FYET_MAPPING_START && e->type != FYET_SEQUENCE_START)
    return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                "not valid YAML: a value is missing");
  if (depth >= CLV_CONFIG_MAX_DEPTH)
    return clv_yaml_source_fail(r->source, position_of_event(r, e), err,
                                "nested more than %d levels deep", CLV_CONFIG_MAX_DEPTH);
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *node = NULL;
  CLV_TRY(clv_yaml_node_new(e->type == FYET_MAPPING_START ? CLV_YAML_MAP : CLV_YAML_LIST,
                            position_of_event(r, e), &node, err));
  CLV_TRY(read_items(r, depth + 1, node, err));
  *ret = clv_steal(&node);
  return CLV_OK;
}

/* Reads one document up to the end of the stream, and refuses a second document. */
static clv_code read_document(reader *r, clv_yaml_node **ret, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *root = NULL;
  for (;;) {
    CLV_AUTO(free_held_event) held_event held = {0};
    CLV_TRY(next_event(r, &held, err));
    enum fy_event_type type = held.event->type;
    if (type == FYET_STREAM_END) break;
    if (type == FYET_STREAM_START || type == FYET_DOCUMENT_END) continue;
    if (type != FYET_DOCUMENT_START) {
      CLV_TRY(read_node(r, held.event, 0, &root, err));
    } else if (root) {
      return clv_yaml_source_fail(r->source, position_of_event(r, held.event), err,
                                  "a second document in one file");
    }
  }
  if (!root) return clv_yaml_source_fail(r->source, position_of(r, 0, 0), err, "the file is empty");
  *ret = clv_steal(&root);
  return CLV_OK;
}

clv_code clv_yaml_read(const clv_yaml_source *source, const char *text, size_t len,
                       uint32_t override, clv_yaml_node **ret, clv_err *err) {
  CLV_AUTO(reader_clear)
  reader r = {.source = source, .override_number = override, .text = text, .text_end = text + len};
  if (len > CLV_CONFIG_MAX_BYTES)
    return clv_yaml_source_fail(source, (clv_config_pos){0, override}, err,
                                "%zu bytes, the limit is %d: is it a file of keys?", len,
                                CLV_CONFIG_MAX_BYTES);
  r.last_event_pos = position_of(&r, 0, 0);
  CLV_TRY(clv_yaml_text_check(source, text, len, override, err));
  struct fy_diag_cfg diag_cfg;
  fy_diag_cfg_default(&diag_cfg);
  diag_cfg.fp = NULL;
  r.diag = fy_diag_create(&diag_cfg);
  if (!r.diag) return clv_fail(err, CLV_EXHAUSTED, "out of memory for the YAML reader");
  fy_diag_set_collect_errors(r.diag, true);
  struct fy_parse_cfg cfg = {.search_path = "", .diag = r.diag, .flags = FYPCF_QUIET};
  r.parser = fy_parser_create(&cfg);
  if (!r.parser || fy_parser_set_string(r.parser, text, len))
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for the YAML reader");
  return read_document(&r, ret, err);
}
