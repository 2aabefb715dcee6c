/* SPDX-License-Identifier: Apache-2.0
 *
 * tree_int: the tree between YAML text and the structs. It has scalars, lists and mappings, each
 * with its position in the file. clv_yaml_read makes a tree of a text, clv_overrides_apply merges
 * overrides into it, and the binder (schema_int.h) fills a struct from it. So the binder checks
 * values of files and of overrides in the same way.
 */
#ifndef CLEAVE_CONFIG_TREE_INT_H
#define CLEAVE_CONFIG_TREE_INT_H

#include "common/model/config/config.h"

enum {
  CLV_CONFIG_MAX_BYTES = 1 << 20,
  CLV_CONFIG_MAX_DEPTH = 16,
  CLV_CONFIG_MAX_NODES = 65536,
  CLV_CONFIG_MAX_ENTRIES = 4096, /* entries of one mapping or list */
  CLV_CONFIG_MAX_TEXT = 4096,    /* bytes of one value */
};

typedef enum clv_yaml_node_kind { CLV_YAML_SCALAR, CLV_YAML_LIST, CLV_YAML_MAP } clv_yaml_node_kind;

typedef struct clv_yaml_node {
  clv_yaml_node_kind kind;
  bool is_plain; /* the scalar has no quotes, so it may be a number, true, false or null */
  clv_config_pos pos, key_pos;
  char *key;  /* key of an entry of a mapping; NULL: the node is no such entry */
  char *text; /* text of a scalar; NULL: the node is a list or mapping */
  size_t n, cap;
  struct clv_yaml_node **children; /* [n] entries of a list or mapping */
} clv_yaml_node;

/* File and overrides that a clv_config_pos refers to, for messages. */
typedef struct clv_yaml_source {
  const char *file;
  const clv_text_list *overrides;
} clv_yaml_source;

clv_code clv_yaml_source_fail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                              const char *fmt, ...) CLV_PRINTF(4, 5);
clv_code clv_yaml_source_vfail(const clv_yaml_source *source, clv_config_pos pos, clv_err *err,
                               const char *fmt, va_list ap);

enum { CLV_MESSAGE_TEXT_MAX = 96 };

/* Copies `text` to buf for a message: replaces control bytes by '?', and cuts long texts with
 * "...". Returns buf. */
const char *clv_text_for_message(const char *text, char buf[CLV_MESSAGE_TEXT_MAX]);

clv_code clv_yaml_node_new(clv_yaml_node_kind kind, clv_config_pos pos, clv_yaml_node **ret,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_yaml_node_new_scalar(const char *text, bool is_plain, clv_config_pos pos,
                                  clv_yaml_node **ret, clv_err *err) CLV_USE_RESULT;
void clv_yaml_node_free(clv_yaml_node *node);
void clv_yaml_node_freep(clv_yaml_node **node);

/* Appends `child` to a list or mapping. Takes ownership of `child`, and frees it on failure. */
clv_code clv_yaml_node_add(clv_yaml_node *parent, clv_yaml_node *child,
                           clv_err *err) CLV_USE_RESULT;

/* Returns the value of entry `key` of a mapping; NULL: there is none. */
clv_yaml_node *clv_yaml_node_find(const clv_yaml_node *map, const char *key);

/* True for an unquoted scalar that YAML calls null. */
bool clv_yaml_node_is_null(const clv_yaml_node *node);

/* Parses one YAML document. override: number of the override whose value is parsed, which becomes
 * the position of all nodes; 0: the text of a file. */
clv_code clv_yaml_read(const clv_yaml_source *source, const char *text, size_t len,
                       uint32_t override, clv_yaml_node **ret, clv_err *err) CLV_USE_RESULT;

/* Refuses a text with bad UTF-8, control characters or too long lines. */
clv_code clv_yaml_text_check(const clv_yaml_source *source, const char *text, size_t len,
                             uint32_t override, clv_err *err) CLV_USE_RESULT;

/* Merges the environment and the --set options into the tree, and appends the text of each override
 * to *applied, which must be the list in `source`. */
clv_code clv_overrides_apply(const clv_yaml_source *source, const clv_config_overrides *over,
                             clv_text_list *applied, clv_yaml_node *root,
                             clv_err *err) CLV_USE_RESULT;

/* Appends a copy of `text` to the list. */
clv_code clv_text_list_add(clv_text_list *list, const char *text, clv_err *err) CLV_USE_RESULT;
void clv_text_list_clear(clv_text_list *list);

#endif
