/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes of the tree (see tree_int.h), and errors with positions.
 */
#include "common/model/config/tree_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *clv_text_for_message(const char *text, char buf[CLV_MESSAGE_TEXT_MAX]) {
  size_t i = 0;
  for (; text[i] && i + 4 < CLV_MESSAGE_TEXT_MAX; i++)
    buf[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
  buf[i] = '\0';
  if (text[i]) memcpy(buf + i, "...", sizeof "...");
  return buf;
}

/* Fails with file, position and text of an error. If the message is too long, cuts the front of the
 * file's path, because the end of a message tells what to do. */
static clv_code fail_at_position(const char *file, clv_config_pos pos, const char *text,
                                 clv_err *err) {
  const size_t min_path_len = 40, place_len = sizeof ":4294967295:4294967295: ...";
  size_t path_len = strlen(text) + place_len + min_path_len < CLV_ERR_TEXT
                        ? CLV_ERR_TEXT - place_len - strlen(text)
                        : min_path_len;
  size_t n_cut_bytes = strlen(file) > path_len ? strlen(file) - path_len : 0;
  return clv_fail(err, CLV_INVALID, "%s%s:%u:%u: %s", n_cut_bytes ? "..." : "", file + n_cut_bytes,
                  pos.line, pos.column, text);
}

clv_code clv_yaml_source_vfail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                               const char *fmt, va_list ap) {
  char text[CLV_ERR_TEXT];
  vsnprintf(text, sizeof text, fmt, ap);
  if (pos.line > 0) return fail_at_position(source->file, pos, text, err);
  if (pos.column > 0 && pos.column <= source->overrides->n)
    return clv_fail(err, CLV_INVALID, "%s: %s", source->overrides->items[pos.column - 1], text);
  return clv_fail(err, CLV_INVALID, "%s: %s", source->file, text);
}

clv_code clv_yaml_source_fail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                              const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  clv_code code = clv_yaml_source_vfail(source, pos, err, fmt, ap);
  va_end(ap);
  return code;
}

clv_code clv_yaml_node_new(clv_yaml_node_kind kind, clv_config_pos pos, clv_yaml_node **ret,
                           clv_err *err) {
  clv_yaml_node *node = NULL;
  CLV_TRY(clv_alloc(1, sizeof *node, &node, err));
  node->kind = kind;
  node->pos = node->key_pos = pos;
  *ret = node;
  return CLV_OK;
}

clv_code clv_yaml_node_new_scalar(const char *text, bool is_plain, clv_config_pos pos,
                                  clv_yaml_node **ret, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *node = NULL;
  CLV_TRY(clv_yaml_node_new(CLV_YAML_SCALAR, pos, &node, err));
  node->is_plain = is_plain;
  CLV_TRY(clv_strdup(text, &node->text, err));
  *ret = clv_steal(&node);
  return CLV_OK;
}

/* Frees a node and all nodes below it. The recursion has at most CLV_CONFIG_MAX_DEPTH levels, the
 * limit of a tree. */
void clv_yaml_node_free(clv_yaml_node *node) {
  if (!node) return;
  for (size_t i = 0; i < node->n; i++) clv_yaml_node_free(node->children[i]);
  free(node->children);
  free(node->key);
  free(node->text);
  free(node);
}

void clv_yaml_node_freep(clv_yaml_node **node) { clv_yaml_node_free(*node); }

clv_code clv_yaml_node_add(clv_yaml_node *parent, clv_yaml_node *child, clv_err *err) {
  if (parent->n == parent->cap) {
    size_t cap = parent->cap ? 2 * parent->cap : 8;
    clv_yaml_node **items = realloc(parent->children, cap * sizeof(clv_yaml_node *));
    if (!items) {
      clv_yaml_node_free(child);
      return clv_fail(err, CLV_EXHAUSTED, "out of memory for a list of %zu entries", cap);
    }
    parent->children = items;
    parent->cap = cap;
  }
  parent->children[parent->n++] = child;
  return CLV_OK;
}

clv_yaml_node *clv_yaml_node_find(const clv_yaml_node *map, const char *key) {
  for (size_t i = 0; i < map->n; i++)
    if (strcmp(map->children[i]->key, key) == 0) return map->children[i];
  return NULL;
}

bool clv_yaml_node_is_null(const clv_yaml_node *node) {
  static const char *const words[] = {"", "~", "null", "Null", "NULL"};
  if (node->kind != CLV_YAML_SCALAR || !node->is_plain) return false;
  for (size_t i = 0; i < CLV_COUNT(words); i++)
    if (strcmp(node->text, words[i]) == 0) return true;
  return false;
}

clv_code clv_text_list_add(clv_text_list *list, const char *text, clv_err *err) {
  char **items = realloc(list->items, (list->n + 1) * sizeof(char *));
  if (!items) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a list of texts");
  list->items = items;
  CLV_TRY(clv_strdup(text, &items[list->n], err));
  list->n++;
  return CLV_OK;
}

void clv_text_list_clear(clv_text_list *list) {
  if (!list) return;
  for (size_t i = 0; i < list->n; i++) free(list->items[i]);
  free(list->items);
  *list = (clv_text_list){0};
}
