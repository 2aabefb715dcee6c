/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree between YAML and the structs: scalars, lists and mappings, each with the place it came
 * from. Files and overrides are merged here, so that one binder judges both alike.
 */
#ifndef CLEAVE_CONFIG_TREE_INT_H
#define CLEAVE_CONFIG_TREE_INT_H

#include "common/model/config/config.h"

enum {
  CLV_CONFIG_MAX_BYTES = 1 << 20,
  CLV_CONFIG_MAX_DEPTH = 16,
  CLV_CONFIG_MAX_NODES = 65536,
  CLV_CONFIG_MAX_ENTRIES = 4096, /* of one mapping or list */
  CLV_CONFIG_MAX_TEXT = 4096,    /* bytes of one value */
};

typedef enum clv_yaml_node_kind { CLV_YAML_SCALAR, CLV_YAML_LIST, CLV_YAML_MAP } clv_yaml_node_kind;

typedef struct clv_yaml_node {
  clv_yaml_node_kind kind;
  bool plain; /* a scalar without quotes: may be a number, true, false or nothing */
  clv_config_pos pos, key_pos;
  char *key;  /* inside a mapping */
  char *text; /* scalars; never NULL there */
  size_t n, cap;
  struct clv_yaml_node **items; /* lists and mappings */
} clv_yaml_node;

/* What messages need to name a place. */
typedef struct clv_yaml_source {
  const char *file;
  const clv_text_list *overrides;
} clv_yaml_source;

clv_code clv_yaml_source_fail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                              const char *fmt, ...) CLV_PRINTF(4, 5);
clv_code clv_yaml_source_vfail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                               const char *fmt, va_list ap);

enum { CLV_MESSAGE_TEXT_MAX = 96 };

/* `text` for a message: control bytes become '?', long texts are cut with "...". Returns buf. */
const char *clv_text_for_message(const char *text, char buf[CLV_MESSAGE_TEXT_MAX]);

clv_code clv_yaml_node_new(clv_yaml_node_kind kind, clv_config_pos pos, clv_yaml_node **ret,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_yaml_node_new_scalar(const char *text, bool plain, clv_config_pos pos,
                                  clv_yaml_node **ret, clv_err *err) CLV_USE_RESULT;
void clv_yaml_node_free(clv_yaml_node *node);
void clv_yaml_node_freep(clv_yaml_node **node);

/* Append `child` to a list or mapping; it is the parent's afterwards, also on failure. */
clv_code clv_yaml_node_add(clv_yaml_node *parent, clv_yaml_node *child,
                           clv_err *err) CLV_USE_RESULT;

/* The entry called `key` of a mapping, or NULL. */
clv_yaml_node *clv_yaml_node_find(const clv_yaml_node *map, const char *key);

/* True for an unquoted scalar that YAML calls null. */
bool clv_yaml_node_is_null(const clv_yaml_node *node);

/* One YAML document. Places are the document's own, or all {0, override} when override > 0. */
clv_code clv_yaml_read(const clv_yaml_source *source, const char *text, size_t len,
                       uint32_t override, clv_yaml_node **ret, clv_err *err) CLV_USE_RESULT;

/* Refuse bytes that a config may not hold: bad UTF-8, control characters, endless lines. */
clv_code clv_yaml_text_check(const clv_yaml_source *source, const char *text, size_t len,
                             uint32_t override, clv_err *err) CLV_USE_RESULT;

/* Lay the environment and the sets over the tree; their texts are appended to *applied, which
 * `source` must refer to. */
clv_code clv_overrides_apply(const clv_yaml_source *source, const clv_config_overrides *over,
                             clv_text_list *applied, clv_yaml_node *root,
                             clv_err *err) CLV_USE_RESULT;

/* Append a copy of `text`. */
clv_code clv_text_list_add(clv_text_list *list, const char *text, clv_err *err) CLV_USE_RESULT;
void clv_text_list_done(clv_text_list *list);

#endif
