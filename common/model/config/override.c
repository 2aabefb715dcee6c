/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_overrides_apply: merges environment variables and --set into the file's tree, before the
 * binder checks it. A path may name a key that the file does not have. The binder checks later that
 * the schema has such a key, and then points at the override.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/tree_int.h"

typedef struct override {
  const clv_yaml_source *source;
  clv_config_pos pos; /* position for messages: {0, number of the override} */
  const char *path;
  size_t path_len;
  const char *separator; /* text between two keys of the path, "." or "__" */
  /* true for an environment variable: case is ignored, and '_' also matches '-' and '.' */
  bool ignores_case;
} override;

static bool is_same_char(const override *o, char in_key, char in_path) {
  if (in_key == in_path) return true;
  if (!o->ignores_case) return false;
  if (in_path == '_') return in_key == '-' || in_key == '.';
  return tolower((unsigned char)in_key) == tolower((unsigned char)in_path);
}

/* True if the path from `at` on starts with `key`, followed by a separator or the end. */
static bool starts_with_key(const override *o, size_t at, const char *key) {
  size_t n = strlen(key), separator_len = strlen(o->separator);
  if (n == 0 || at + n > o->path_len) return false;
  for (size_t i = 0; i < n; i++)
    if (!is_same_char(o, key[i], o->path[at + i])) return false;
  return at + n == o->path_len || (at + n + separator_len <= o->path_len &&
                                   memcmp(o->path + at + n, o->separator, separator_len) == 0);
}

static size_t path_part_len(const override *o, size_t at) {
  size_t separator_len = strlen(o->separator), end = at;
  while (end < o->path_len && !(end + separator_len <= o->path_len &&
                                memcmp(o->path + end, o->separator, separator_len) == 0))
    end++;
  return end - at;
}

/* Finds the longest key of the mapping with which the path from `at` on starts, because a key (the
 * name of an artifact) may contain a dot. Returns the address of its entry; NULL: there is none. */
static clv_yaml_node **find_longest_key(const override *o, clv_yaml_node *map, size_t at,
                                        size_t *ret_len) {
  clv_yaml_node **found = NULL;
  for (size_t i = 0; i < map->n; i++) {
    const char *key = map->children[i]->key;
    if (!starts_with_key(o, at, key) || (found && strlen(key) <= *ret_len)) continue;
    found = &map->children[i];
    *ret_len = strlen(key);
  }
  return found;
}

static clv_code add_entry(const override *o, clv_yaml_node *map, size_t at, size_t len,
                          clv_yaml_node ***ret, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *node = NULL;
  if (map->n >= CLV_CONFIG_MAX_ENTRIES)
    return clv_yaml_source_fail(o->source, o->pos, err, "more than %d entries in one mapping",
                                CLV_CONFIG_MAX_ENTRIES);
  CLV_TRY(clv_yaml_node_new(CLV_YAML_MAP, o->pos, &node, err));
  CLV_TRY(clv_alloc(len + 1, 1, &node->key, err));
  for (size_t i = 0; i < len; i++)
    node->key[i] =
        o->ignores_case ? (char)tolower((unsigned char)o->path[at + i]) : o->path[at + i];
  CLV_TRY(clv_yaml_node_add(map, clv_steal(&node), err));
  *ret = &map->children[map->n - 1];
  return CLV_OK;
}

static clv_code find_list_item(const override *o, clv_yaml_node *list, size_t at, size_t len,
                               clv_yaml_node ***ret, clv_err *err) {
  char parent_path[CLV_MESSAGE_TEXT_MAX], part[CLV_MESSAGE_TEXT_MAX];
  size_t index = 0;
  bool ok = len > 0 && len <= 6;
  for (size_t i = 0; i < len && ok; i++) {
    ok = isdigit((unsigned char)o->path[at + i]);
    index = index * 10 + (size_t)(o->path[at + i] - '0');
  }
  if (ok && index < list->n) {
    *ret = &list->children[index];
    return CLV_OK;
  }
  snprintf(parent_path, sizeof parent_path, "%.*s", (int)(at - strlen(o->separator)), o->path);
  snprintf(part, sizeof part, "%.*s", (int)CLV_MIN(len, (size_t)64), o->path + at);
  return clv_yaml_source_fail(o->source, o->pos, err,
                              "'%s' is a list of %zu entries, there is no '%s'", parent_path,
                              list->n, part);
}

/* Finds or adds the child of `node` that the part of the path at `at` names. *ret_len: length of
 * that part. */
static clv_code step_into_child(const override *o, clv_yaml_node *node, size_t at, size_t *ret_len,
                                clv_yaml_node ***ret, clv_err *err) {
  char parent_path[CLV_MESSAGE_TEXT_MAX];
  size_t len = path_part_len(o, at);
  if (len == 0) return clv_yaml_source_fail(o->source, o->pos, err, "a name is empty in the path");
  *ret_len = len;
  if (node->kind == CLV_YAML_LIST) return find_list_item(o, node, at, len, ret, err);
  if (node->kind == CLV_YAML_SCALAR) {
    snprintf(parent_path, sizeof parent_path, "%.*s", (int)(at ? at - strlen(o->separator) : 0),
             o->path);
    return clv_yaml_source_fail(o->source, o->pos, err,
                                "'%s' is a single value, nothing is inside it", parent_path);
  }
  size_t key_len = 0;
  *ret = find_longest_key(o, node, at, &key_len);
  if (!*ret) return add_entry(o, node, at, len, ret, err);
  *ret_len = key_len;
  return CLV_OK;
}

/* Stores a value at the path of the override. The tree then owns the value; on failure it is freed.
 */
static clv_code store_value(const override *o, clv_yaml_node *root, clv_yaml_node *value_taken,
                            clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *value = value_taken;
  clv_yaml_node *node = root, **slot = NULL;
  unsigned depth = 0;
  for (size_t at = 0, len = 0;; at += len + strlen(o->separator)) {
    if (++depth > CLV_CONFIG_MAX_DEPTH)
      return clv_yaml_source_fail(o->source, o->pos, err, "nested more than %d levels deep",
                                  CLV_CONFIG_MAX_DEPTH);
    CLV_TRY(step_into_child(o, node, at, &len, &slot, err));
    node = *slot;
    if (at + len >= o->path_len) break;
  }
  value->key = clv_steal(&node->key);
  clv_yaml_node_free(node);
  *slot = clv_steal(&value);
  return CLV_OK;
}

/* True for a text such as "[::1]:7443", which is an address although it begins like a YAML list. */
static bool is_v6_address(const char *text) {
  const char *end = strrchr(text, ']');
  return text[0] == '[' && end && end[1] == ':' && isdigit((unsigned char)end[2]) &&
         !end[2 + strspn(end + 2, "0123456789")];
}

/* Makes a node from the value of an override. A value that begins like a list, a mapping or a
 * quoted text is parsed as YAML; any other value is literal text. */
static clv_code parse_override_value(const override *o, const char *text, clv_yaml_node **ret,
                                     clv_err *err) {
  if (text[0] && strchr("[{\"'", text[0]) && !is_v6_address(text))
    return clv_yaml_read(o->source, text, strlen(text), o->pos.column, ret, err);
  if (strlen(text) > CLV_CONFIG_MAX_TEXT)
    return clv_yaml_source_fail(o->source, o->pos, err, "a value of %zu bytes, the limit is %d",
                                strlen(text), CLV_CONFIG_MAX_TEXT);
  CLV_TRY(clv_yaml_text_check(o->source, text, strlen(text), o->pos.column, err));
  return clv_yaml_node_new_scalar(text, true, o->pos, ret, err);
}

static clv_code apply_override(override *o, const char *label, const char *value,
                               clv_text_list *applied, clv_yaml_node *root, clv_err *err) {
  char shown_label[CLV_MESSAGE_TEXT_MAX];
  clv_yaml_node *node = NULL;
  CLV_TRY(clv_text_list_add(applied, clv_text_for_message(label, shown_label), err));
  o->pos = (clv_config_pos){0, (uint32_t)applied->n};
  if (!value || o->path_len == 0)
    return clv_yaml_source_fail(o->source, o->pos, err,
                                "expected PATH=VALUE, as in train.batch=64");
  CLV_TRY(parse_override_value(o, value, &node, err));
  return store_value(o, root, node, err);
}

/* Applies one --set option. given_label: how messages name the option; NULL: "--set" and its
 * text. */
static clv_code apply_set_option(const clv_yaml_source *source, const char *text,
                                 const char *given_label, clv_text_list *applied,
                                 clv_yaml_node *root, clv_err *err) {
  const char *equals = strchr(text, '=');
  CLV_AUTO(clv_bytes_done) clv_bytes label = {0};
  if (given_label)
    clv_bytes_puts(&label, given_label);
  else
    clv_bytes_printf(&label, "--set %s", text);
  if (label.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for --set");
  override o = {.source = source, .path = text, .separator = "."};
  o.path_len = equals ? (size_t)(equals - text) : 0;
  return apply_override(&o, label.data, equals ? equals + 1 : NULL, applied, root, err);
}

/* True for an environment variable CLEAVE_A__B=... that overrides a key. Variables of tests and
 * failpoints do not. */
static bool is_override_variable(const char *entry) {
  if (strncmp(entry, "CLEAVE_", 7) != 0) return false;
  const char *name = entry + 7, *equals = strchr(name, '=');
  if (strncmp(name, "TEST_", 5) == 0 || strncmp(name, "FAILPOINT", 9) == 0) return false;
  const char *separator = strstr(name, "__");
  return equals && separator && separator < equals;
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Applies the overriding environment variables in sorted order, so that A__B comes before A__B__C.
 */
static clv_code apply_env(const clv_yaml_source *source, const char *const *env,
                          clv_text_list *applied, clv_yaml_node *root, clv_err *err) {
  size_t n = 0, used = 0;
  for (const char *const *entry = env; *entry; entry++) n += is_override_variable(*entry);
  CLV_AUTO(clv_freep) const char **ours = NULL;
  CLV_TRY(clv_alloc(n, sizeof(char *), &ours, err));
  for (const char *const *entry = env; *entry; entry++)
    if (is_override_variable(*entry)) ours[used++] = *entry;
  qsort(ours, n, sizeof(char *), compare_texts);
  for (size_t i = 0; i < n; i++) {
    override o = {.source = source, .path = ours[i] + 7, .separator = "__", .ignores_case = true};
    const char *equals = strchr(o.path, '=');
    o.path_len = (size_t)(equals - o.path);
    CLV_TRY(apply_override(&o, ours[i], equals + 1, applied, root, err));
  }
  return CLV_OK;
}

clv_code clv_overrides_apply(const clv_yaml_source *source, const clv_config_overrides *over,
                             clv_text_list *applied, clv_yaml_node *root, clv_err *err) {
  if (!over || root->kind != CLV_YAML_MAP) return CLV_OK;
  if (over->env) CLV_TRY(apply_env(source, over->env, applied, root, err));
  for (size_t i = 0; i < over->n_sets; i++)
    CLV_TRY(apply_set_option(source, over->sets[i], over->set_labels ? over->set_labels[i] : NULL,
                             applied, root, err));
  return CLV_OK;
}
