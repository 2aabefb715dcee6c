/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_attrs_bind: reads attributes of layers and architectures. It checks only that each value is a
 * number, text, boolean or list of integers; the op table checks names and values later.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/config/schema_int.h"

static clv_code fail_bad_value(const clv_binder *b, const clv_yaml_node *node,
                               const char *shown_path, clv_err *err) {
  char cut_name[CLV_MESSAGE_TEXT_MAX];
  if (node->kind == CLV_YAML_SCALAR && !clv_yaml_node_is_null(node))
    return clv_yaml_source_fail(
        b->source, node->pos, err,
        "'%s%s' starts like a number but is none: '%s' (quote it if it is a text)", shown_path,
        node->key, clv_text_for_message(node->text, cut_name));
  return clv_yaml_source_fail(
      b->source, node->pos, err,
      "'%s%s' must be a number, a text, true, false or a list of whole numbers", shown_path,
      node->key);
}

static bool starts_like_number(const char *text) {
  text += text[0] == '-' || text[0] == '+';
  text += text[0] == '.';
  return text[0] >= '0' && text[0] <= '9';
}

/* Reads a number as INT or FLOAT. Returns false for a whole number that does not fit 64 bits, so
 * that it is not rounded to a FLOAT. */
static bool read_number(const char *text, clv_attr_spec *attr) {
  attr->kind = CLV_ATTR_INT;
  if (clv_text_to_i64(text, &attr->int_value)) {
    attr->float_value = (double)attr->int_value;
    return true;
  }
  attr->kind = CLV_ATTR_FLOAT;
  return strpbrk(text, ".eE") && clv_text_to_double(text, &attr->float_value);
}

static clv_code read_scalar(const clv_binder *b, const clv_yaml_node *node, const char *shown_path,
                            clv_attr_spec *attr, clv_err *err) {
  if (clv_yaml_node_is_null(node)) return fail_bad_value(b, node, shown_path, err);
  bool is_true = strcmp(node->text, "true") == 0;
  if (node->is_plain && (is_true || strcmp(node->text, "false") == 0)) {
    attr->kind = CLV_ATTR_BOOL;
    attr->bool_value = is_true;
    return CLV_OK;
  }
  if (node->is_plain && starts_like_number(node->text))
    return read_number(node->text, attr) ? CLV_OK : fail_bad_value(b, node, shown_path, err);
  attr->kind = CLV_ATTR_TEXT;
  return clv_strdup(node->text, &attr->text, err);
}

static clv_code read_ints(const clv_binder *b, const clv_yaml_node *node, const char *shown_path,
                          clv_attr_spec *attr, clv_err *err) {
  attr->kind = CLV_ATTR_INTS;
  if (node->n == 0) return CLV_OK;
  CLV_TRY(clv_alloc(node->n, sizeof(int64_t), &attr->ints, err));
  attr->n_ints = node->n;
  for (size_t i = 0; i < node->n; i++) {
    const clv_yaml_node *item = node->children[i];
    if (item->kind != CLV_YAML_SCALAR || !item->is_plain ||
        !clv_text_to_i64(item->text, &attr->ints[i]))
      return clv_yaml_source_fail(b->source, item->pos, err,
                                  "'%s%s' must be a list of whole numbers", shown_path, node->key);
  }
  return CLV_OK;
}

static clv_code read_attr(const clv_binder *b, const clv_yaml_node *node, const char *shown_path,
                          clv_attr_spec *attr, clv_err *err) {
  char cut_name[CLV_MESSAGE_TEXT_MAX];
  if (strchr(node->key, ' '))
    return clv_yaml_source_fail(b->source, node->key_pos, err,
                                "'%s%s' is no attribute: is a ':' missing behind its name?",
                                shown_path, clv_text_for_message(node->key, cut_name));
  if (!clv_format_matches(CLV_FORMAT_WORD, node->key))
    return clv_yaml_source_fail(
        b->source, node->key_pos, err, "'%s%s' is no attribute: a name is %s", shown_path,
        clv_text_for_message(node->key, cut_name), clv_format_description(CLV_FORMAT_WORD));
  attr->pos = node->key_pos;
  CLV_TRY(clv_strdup(node->key, &attr->key, err));
  if (node->kind == CLV_YAML_SCALAR) return read_scalar(b, node, shown_path, attr, err);
  if (node->kind == CLV_YAML_LIST) return read_ints(b, node, shown_path, attr, err);
  return fail_bad_value(b, node, shown_path, err);
}

clv_code clv_attrs_bind(const clv_binder *b, const clv_yaml_node *map, const char *prefix,
                        const char *shown_path, clv_attr_spec **ret_attrs, size_t *ret_n,
                        clv_err *err) {
  size_t n = 0, n_read = 0;
  for (size_t i = 0; i < map->n; i++)
    n += !clv_schema_has_key(b->schema, prefix, map->children[i]->key);
  if (n == 0) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof(clv_attr_spec), ret_attrs, err));
  *ret_n = n;
  for (size_t i = 0; i < map->n; i++)
    if (!clv_schema_has_key(b->schema, prefix, map->children[i]->key))
      CLV_TRY(read_attr(b, map->children[i], shown_path, &(*ret_attrs)[n_read++], err));
  return CLV_OK;
}

void clv_attrs_free(clv_attr_spec *attrs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    free(attrs[i].key);
    free(attrs[i].text);
    free(attrs[i].ints);
  }
  free(attrs);
}
