/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_schema_bind: fills a struct from a tree, by the rows of a schema table. Every key of a
 * mapping must have a row. The field of a row gets its value from the tree, or its default, or
 * stays zero.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/config/schema_int.h"

/* A row and the tree node whose value is being stored in the row's field. */
typedef struct binding {
  const clv_row *row;
  const clv_yaml_node *node;
  const char *path;  /* path of the key for messages, "stages.1.threads" */
  char *struct_base; /* struct that contains the field */
  char *at;          /* address of the field: struct_base + row->offset */
} binding;

static clv_code bind_map(const clv_binder *b, const clv_yaml_node *map, const char *prefix,
                         const char *shown_path, void *base, clv_err *err);

static void *address_of_field(const binding *s, size_t offset) { return s->struct_base + offset; }

static clv_code fail_mismatch(const clv_binder *b, const binding *s, clv_err *err) {
  char expected[256], shown_text[CLV_MESSAGE_TEXT_MAX], got_text[CLV_MESSAGE_TEXT_MAX + 4];
  bool has_sample_list = s->row->kind == CLV_ROW_TEXTS && s->row->sample;
  clv_row_describe_expected(s->row, expected, sizeof expected);
  if (clv_yaml_node_is_null(s->node))
    snprintf(got_text, sizeof got_text, "nothing");
  else if (s->node->kind == CLV_YAML_SCALAR)
    snprintf(got_text, sizeof got_text, s->node->is_plain ? "'%s'" : "the text '%s'",
             clv_text_for_message(s->node->text, shown_text));
  else
    snprintf(got_text, sizeof got_text, s->node->kind == CLV_YAML_LIST ? "a list" : "a mapping");
  return clv_yaml_source_fail(b->source, s->node->pos, err, "'%s' must be %s%s%s, got %s", s->path,
                              expected, has_sample_list ? ", such as " : "",
                              has_sample_list ? s->row->sample : "", got_text);
}

/* ---- binding single values ------------------------------------------------------------------- */

static bool is_plain_scalar(const binding *s) {
  return s->node->kind == CLV_YAML_SCALAR && s->node->is_plain && !clv_yaml_node_is_null(s->node);
}

static bool is_text_scalar(const binding *s) {
  return s->node->kind == CLV_YAML_SCALAR && !clv_yaml_node_is_null(s->node);
}

static clv_code bind_bool(const clv_binder *b, const binding *s, clv_err *err) {
  if (!is_plain_scalar(s)) return fail_mismatch(b, s, err);
  bool is_true = strcmp(s->node->text, "true") == 0;
  if (!is_true && strcmp(s->node->text, "false") != 0) return fail_mismatch(b, s, err);
  *(bool *)s->at = is_true;
  return CLV_OK;
}

static bool read_word_as_number(const binding *s, uint64_t *ret) {
  const char *const *names = clv_row_allows_names(s->row) ? s->row->names : NULL;
  for (uint64_t i = 0; names && names[i]; i++) {
    if (strcmp(names[i], s->node->text) != 0) continue;
    *ret = -i;
    return true;
  }
  return false;
}

/* Stores the value of an INT, SIZE or DURATION, which are all whole numbers. Sizes and durations
 * may be quoted. */
static clv_code bind_whole_number(const clv_binder *b, const binding *s, clv_err *err) {
  uint64_t value;
  bool (*const read_number)(const char *, uint64_t *) =
      s->row->kind == CLV_ROW_INT    ? clv_text_to_u64
      : s->row->kind == CLV_ROW_SIZE ? clv_text_to_size
                                     : clv_text_to_duration;
  if (!(s->row->kind == CLV_ROW_INT ? is_plain_scalar(s) : is_text_scalar(s)))
    return fail_mismatch(b, s, err);
  if (read_word_as_number(s, (uint64_t *)s->at)) return CLV_OK;
  if (!read_number(s->node->text, &value)) return fail_mismatch(b, s, err);
  if (value < s->row->min || value > s->row->max) return fail_mismatch(b, s, err);
  *(uint64_t *)s->at = value;
  return CLV_OK;
}

static bool read_number(const binding *s, double *ret) {
  double value;
  if (!is_plain_scalar(s) || !clv_text_to_double(s->node->text, &value)) return false;
  if (value < s->row->low || value > s->row->high) return false;
  if (s->row->excludes_low && value <= s->row->low) return false;
  *ret = value;
  return true;
}

static clv_code bind_number(const clv_binder *b, const binding *s, clv_err *err) {
  return read_number(s, (double *)s->at) ? CLV_OK : fail_mismatch(b, s, err);
}

/* Finds a name whose first 5 characters are those of the text, ignoring case: "images" for
 * "image_folder". NULL: there is none. */
static const char *find_name_with_same_start(const char *text, const char *const *names, size_t n) {
  enum { N_SAME_CHARS = 5 };
  for (size_t i = 0; i < n; i++)
    if (strlen(names[i]) >= N_SAME_CHARS && strncasecmp(text, names[i], N_SAME_CHARS) == 0)
      return names[i];
  return NULL;
}

/* Finds the index of the node's text among the names of the row. Fails with a suggestion if it is
 * not among them. */
static clv_code read_enum_index(const clv_binder *b, const binding *s, int *ret, clv_err *err) {
  const char *const *names = s->row->names;
  size_t n = 0;
  if (!is_text_scalar(s)) return fail_mismatch(b, s, err);
  for (; names[n]; n++) {
    if (!*names[n] || strcmp(names[n], s->node->text) != 0) continue;
    *ret = (int)n;
    return CLV_OK;
  }
  char shown_text[CLV_MESSAGE_TEXT_MAX], expected[256];
  const char *suggestion = clv_did_you_mean(s->node->text, names, n);
  if (!suggestion) suggestion = find_name_with_same_start(s->node->text, names, n);
  clv_row_describe_expected(s->row, expected, sizeof expected);
  bool has_no_suggestion = !suggestion || !*suggestion;
  if (has_no_suggestion && s->row->replacement_hint && s->node->text[0])
    return clv_yaml_source_fail(b->source, s->node->pos, err, "'%s' must be %s, got '%s'; %s",
                                s->path, expected, clv_text_for_message(s->node->text, shown_text),
                                s->row->replacement_hint);
  if (has_no_suggestion) return fail_mismatch(b, s, err);
  return clv_yaml_source_fail(b->source, s->node->pos, err,
                              "'%s' must be %s, got '%s', did you mean '%s'?", s->path, expected,
                              clv_text_for_message(s->node->text, shown_text), suggestion);
}

/* Splits a value "set.TARGET.metric" at its first and its last dot. *ret_index: index of
 * "set.metric" in `names`; *ret_target: first of the *ret_len bytes of TARGET. Returns false if the
 * value has no target, or if `names` lacks "set.metric". */
static bool read_target_of_enum(const binding *s, const char *const *names, int *ret_index,
                                const char **ret_target, size_t *ret_len) {
  const char *text = s->node->text, *first = strchr(text, '.'), *last = strrchr(text, '.');
  if (!s->row->target_offset || !first || last <= first + 1) return false;
  for (int i = 0; names[i]; i++) {
    size_t set_len = (size_t)(first - text);
    if (strncmp(names[i], text, set_len) != 0 || strcmp(names[i] + set_len, last) != 0) continue;
    *ret_index = i;
    *ret_target = first + 1;
    *ret_len = (size_t)(last - first - 1);
    return true;
  }
  return false;
}

static clv_code bind_enum(const clv_binder *b, const binding *s, clv_err *err) {
  const char *target;
  size_t len;
  char *copy;
  if (!is_text_scalar(s) || !read_target_of_enum(s, s->row->names, (int *)s->at, &target, &len))
    return read_enum_index(b, s, (int *)s->at, err);
  CLV_TRY(clv_alloc(len + 1, 1, &copy, err));
  memcpy(copy, target, len);
  *(char **)address_of_field(s, s->row->target_offset) = copy;
  return CLV_OK;
}

static clv_code bind_text(const clv_binder *b, const binding *s, clv_err *err) {
  if (!is_text_scalar(s) || !clv_format_matches(s->row->format, s->node->text))
    return fail_mismatch(b, s, err);
  return clv_strdup(s->node->text, (char **)(void *)s->at, err);
}

static clv_code bind_seed(const clv_binder *b, const binding *s, clv_err *err) {
  if (!is_text_scalar(s) || !clv_seed_parse(s->node->text, (clv_seed *)(void *)s->at))
    return fail_mismatch(b, s, err);
  return CLV_OK;
}

static clv_code bind_path(const clv_binder *b, const binding *s, clv_err *err) {
  static const char credentials_prefix[] = "${CREDENTIALS_DIRECTORY}/";
  if (!is_text_scalar(s) || !s->node->text[0]) return fail_mismatch(b, s, err);
  const char *folder = b->folder, *text = s->node->text;
  if (strncmp(text, credentials_prefix, sizeof credentials_prefix - 1) == 0) {
    folder = b->credentials;
    text += sizeof credentials_prefix - 1;
    if (!folder || !*text || *text == '/')
      return clv_yaml_source_fail(
          b->source, s->node->pos, err,
          "'%s' names a credential, but there is no $CREDENTIALS_DIRECTORY: "
          "systemd sets it for units with LoadCredential=",
          s->path);
  }
  if (!clv_path_can_join(folder, text))
    return clv_yaml_source_fail(b->source, s->node->pos, err,
                                "'%s' makes a path of more than %d bytes", s->path,
                                CLV_CONFIG_MAX_TEXT);
  return clv_path_join(folder, text, (char **)(void *)s->at, err);
}

/* Reads one end of a range, a number or a name, from `len` characters of text. A name must not end
 * with a dot, because the dot would count as one of the two dots between the ends. */
static bool read_range_end(const char *text, size_t len, uint64_t *number, char *name) {
  char end[CLV_LAYER_NAME_MAX];
  if (len == 0 || len >= sizeof end) return false;
  snprintf(end, sizeof end, "%.*s", (int)len, text);
  if (strspn(end, "0123456789") == len)
    return clv_text_to_u64(end, number) && *number < CLV_CONFIG_MAX_ENTRIES;
  memcpy(name, end, len + 1);
  return clv_format_matches(CLV_FORMAT_RUN, end) && end[len - 1] != '.';
}

bool clv_layer_range_read(const char *text, clv_layer_range *ret) {
  clv_layer_range r = {.is_given = true};
  const char *dots = strstr(text, "..");
  const char *last = dots ? dots + 2 : text;
  if (!read_range_end(text, dots ? (size_t)(dots - text) : strlen(text), &r.first,
                      r.first_layer_name) ||
      !read_range_end(last, strlen(last), &r.last, r.last_layer_name))
    return false;
  bool has_only_numbers = !r.first_layer_name[0] && !r.last_layer_name[0];
  if (has_only_numbers && (!dots || r.first > r.last)) return false;
  *ret = r;
  return true;
}

static clv_code bind_range(const clv_binder *b, const binding *s, clv_err *err) {
  clv_layer_range *to = (clv_layer_range *)(void *)s->at;
  return is_text_scalar(s) && clv_layer_range_read(s->node->text, to) ? CLV_OK
                                                                      : fail_mismatch(b, s, err);
}

/* ---- binding lists and maps ------------------------------------------------------------------ */

static clv_code check_entry_count(const clv_binder *b, const binding *s, clv_err *err) {
  size_t n = s->node->n;
  bool is_wrong_kind =
      s->node->kind != (s->row->kind == CLV_ROW_MAP ? CLV_YAML_MAP : CLV_YAML_LIST);
  if (is_wrong_kind) return fail_mismatch(b, s, err);
  if (n >= s->row->min && (!s->row->max || n <= s->row->max)) return CLV_OK;
  if (n >= s->row->min)
    return clv_yaml_source_fail(b->source, s->node->pos, err,
                                "'%s' has %zu entries, at most %llu are possible: remove some",
                                s->path, n, (unsigned long long)s->row->max);
  char expected[128];
  clv_row_describe_expected(s->row, expected, sizeof expected);
  return clv_yaml_source_fail(b->source, s->node->pos, err, "'%s' must be %s, got %zu", s->path,
                              expected, n);
}

/* Checks one entry of a list of texts: it must be one of the row's names or, if the row has none,
 * match the row's format. */
static clv_code check_list_text(const clv_binder *b, const binding *item, clv_err *err) {
  int index;
  clv_row entry_row = *item->row;
  binding entry = *item;
  entry_row.kind = entry_row.names ? CLV_ROW_ENUM : CLV_ROW_TEXT;
  if (entry_row.names || entry_row.format != CLV_FORMAT_ANY) entry.row = &entry_row;
  if (entry_row.names) return read_enum_index(b, &entry, &index, err);
  bool ok = is_text_scalar(&entry) && clv_format_matches(entry_row.format, entry.node->text);
  return ok ? CLV_OK : fail_mismatch(b, &entry, err);
}

static clv_code bind_texts(const clv_binder *b, const binding *s, clv_err *err) {
  clv_text_list *list = (clv_text_list *)(void *)s->at;
  CLV_TRY(check_entry_count(b, s, err));
  for (size_t i = 0; i < s->node->n; i++) {
    binding item = *s;
    item.node = s->node->children[i];
    CLV_TRY(check_list_text(b, &item, err));
    CLV_TRY(clv_text_list_add(list, item.node->text, err));
  }
  return CLV_OK;
}

static clv_code bind_numbers(const clv_binder *b, const binding *s, clv_err *err) {
  clv_number_list *list = (clv_number_list *)(void *)s->at;
  CLV_TRY(check_entry_count(b, s, err));
  if (s->node->n == 0) return CLV_OK;
  CLV_TRY(clv_alloc(s->node->n, sizeof(double), &list->items, err));
  list->n = s->node->n;
  for (size_t i = 0; i < list->n; i++) {
    binding item = *s;
    item.node = s->node->children[i];
    if (!read_number(&item, &list->items[i])) return fail_mismatch(b, &item, err);
  }
  return CLV_OK;
}

static clv_code bind_section(const clv_binder *b, const binding *s, clv_err *err) {
  char inner_prefix[CLV_PATH_MAX], shown_path[CLV_PATH_MAX];
  if (s->node && s->node->kind != CLV_YAML_MAP) return fail_mismatch(b, s, err);
  clv_row_write_inner_prefix(s->row, inner_prefix);
  snprintf(shown_path, sizeof shown_path, "%s.", s->path);
  return bind_map(b, s->node, inner_prefix, shown_path, s->struct_base, err);
}

static clv_code fail_no_mapping(const clv_binder *b, const binding *s, const clv_yaml_node *node,
                                const char *shown_path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes example = {0};
  clv_row_write_inner_example(b->schema, s->row, &example);
  return clv_yaml_source_fail(b->source, node->pos, err,
                              "'%s' must be a mapping of keys, such as `%s`", shown_path,
                              example.failed ? "..." : example.data);
}

/* Binds entry i of a LIST or MAP. The struct of an entry starts with the entry's position in the
 * file; in a MAP, the entry's name comes next. */
static clv_code bind_entry(const clv_binder *b, const binding *s, size_t i, char *entry,
                           clv_err *err) {
  char inner_prefix[CLV_PATH_MAX], shown_path[CLV_PATH_MAX], key[CLV_MESSAGE_TEXT_MAX];
  const clv_yaml_node *node = s->node->children[i];
  *(clv_config_pos *)(void *)entry = node->key ? node->key_pos : node->pos;
  if (s->row->kind == CLV_ROW_MAP) {
    if (!clv_format_matches(s->row->format, node->key))
      return clv_yaml_source_fail(b->source, node->key_pos, err, "'%s.%s' must have %s", s->path,
                                  clv_text_for_message(node->key, key),
                                  clv_format_description(s->row->format));
    CLV_TRY(clv_strdup(node->key, (char **)(void *)(entry + sizeof(clv_config_pos)), err));
    snprintf(shown_path, sizeof shown_path, "%s.%s", s->path, node->key);
  } else {
    snprintf(shown_path, sizeof shown_path, "%s.%zu", s->path, i);
  }
  if (node->kind != CLV_YAML_MAP) return fail_no_mapping(b, s, node, shown_path, err);
  size_t n = strlen(shown_path);
  snprintf(shown_path + n, sizeof shown_path - n, ".");
  clv_row_write_inner_prefix(s->row, inner_prefix);
  return bind_map(b, node, inner_prefix, shown_path, entry, err);
}

static clv_code bind_entries(const clv_binder *b, const binding *s, clv_err *err) {
  char *entries = NULL;
  CLV_TRY(check_entry_count(b, s, err));
  if (s->node->n == 0) return CLV_OK;
  CLV_TRY(clv_alloc(s->node->n, s->row->entry_bytes, &entries, err));
  *(char **)(void *)s->at = entries;
  *(size_t *)address_of_field(s, s->row->count_offset) = s->node->n;
  for (size_t i = 0; i < s->node->n; i++)
    CLV_TRY(bind_entry(b, s, i, entries + i * s->row->entry_bytes, err));
  return CLV_OK;
}

typedef clv_code bind_function(const clv_binder *, const binding *, clv_err *);

static bind_function *const binders[CLV_ROW_KINDS] = {
    [CLV_ROW_SECTION] = bind_section,
    [CLV_ROW_BOOL] = bind_bool,
    [CLV_ROW_INT] = bind_whole_number,
    [CLV_ROW_SIZE] = bind_whole_number,
    [CLV_ROW_DURATION] = bind_whole_number,
    [CLV_ROW_NUMBER] = bind_number,
    [CLV_ROW_ENUM] = bind_enum,
    [CLV_ROW_TEXT] = bind_text,
    [CLV_ROW_PATH] = bind_path,
    [CLV_ROW_TEXTS] = bind_texts,
    [CLV_ROW_NUMBERS] = bind_numbers,
    [CLV_ROW_RANGE] = bind_range,
    [CLV_ROW_LIST] = bind_entries,
    [CLV_ROW_MAP] = bind_entries,
    [CLV_ROW_SEED] = bind_seed,
};

/* ---- binding mappings ------------------------------------------------------------------------ */

/* Finds a row in another section whose path ends with `key`, to suggest it for an unknown key:
 * "train.optimizer.lr" for "train.lr". For a key of an inner section the row must be in the same
 * outer section, because "data.documents.window" does not mean "pipeline.window". */
static const char *find_path_elsewhere(const clv_schema *schema, const char *prefix,
                                       const char *key) {
  /* bytes at the start of the prefix that the row's path must share */
  size_t outer_len = strcspn(prefix, ".") + 1;
  if (outer_len >= strlen(prefix)) outer_len = 0;
  for (size_t i = 0; i < schema->n_rows; i++) {
    const char *dot = strrchr(schema->rows[i].path, '.');
    if (schema->rows[i].kind == CLV_ROW_ATTRS) continue;
    if (strncmp(schema->rows[i].path, prefix, outer_len) != 0) continue;
    if (strcmp(dot ? dot + 1 : schema->rows[i].path, key) == 0) return schema->rows[i].path;
  }
  return NULL;
}

/* Finds the keys that continue `key` after an underscore: "labels_leave' or 'labels_readable" for
 * "labels". Returns `joined`, or NULL if there are none. */
static const char *find_longer_key(const char *key, const char *const *keys, size_t n, char *joined,
                                   size_t size) {
  size_t len = strlen(key), used = 0;
  for (size_t i = 0; i < n && used < size; i++)
    if (strncmp(keys[i], key, len) == 0 && keys[i][len] == '_')
      used += (size_t)snprintf(joined + used, size - used, "%s%s", used ? "' or '" : "", keys[i]);
  return used ? joined : NULL;
}

/* Returns the name of the other kind of file if that kind has the key; NULL: it has not. */
static const char *find_other_file_kind(const clv_schema *schema, const char *key) {
  bool is_session_schema = schema == clv_session_schema();
  const clv_schema *other = is_session_schema ? clv_worker_schema() : clv_session_schema();
  if (!clv_schema_has_key(other, "", key)) return NULL;
  return is_session_schema ? "a worker's configuration" : "a session file";
}

static clv_code fail_unknown_key(const clv_binder *b, const clv_yaml_node *entry,
                                 const char *prefix, const char *shown_path, clv_err *err) {
  const char *keys[64], *key;
  char shown_key[CLV_MESSAGE_TEXT_MAX], known_keys[256] = "", joined[128];
  size_t n = 0;
  for (size_t i = 0; i < b->schema->n_rows && n < CLV_COUNT(keys); i++)
    if ((key = clv_row_key(&b->schema->rows[i], prefix)) && (!n || strcmp(keys[n - 1], key) != 0))
      keys[n++] = key;
  const char *suggestion = clv_did_you_mean(entry->key, keys, n);
  const char *other = suggestion || prefix[0] ? NULL : find_other_file_kind(b->schema, entry->key);
  if (other)
    return clv_yaml_source_fail(b->source, entry->key_pos, err,
                                "unknown key '%s', which is one of %s; is this the right file?",
                                entry->key, other);
  if (!suggestion) suggestion = find_longer_key(entry->key, keys, n, joined, sizeof joined);
  if (!suggestion) suggestion = find_path_elsewhere(b->schema, prefix, entry->key);
  clv_text_for_message(entry->key, shown_key);
  if (suggestion)
    return clv_yaml_source_fail(b->source, entry->key_pos, err,
                                "unknown key '%s%s', did you mean '%s'?", shown_path, shown_key,
                                suggestion);
  for (size_t i = 0, used = 0; i < n && used < sizeof known_keys; i++)
    used += (size_t)snprintf(known_keys + used, sizeof known_keys - used, "%s%s", i ? ", " : "",
                             keys[i]);
  return clv_yaml_source_fail(b->source, entry->key_pos, err, "unknown key '%s%s', known here: %s",
                              shown_path, shown_key, known_keys);
}

static bool has_attrs_row(const clv_schema *schema, const char *prefix) {
  for (size_t i = 0; i < schema->n_rows; i++)
    if (schema->rows[i].kind == CLV_ROW_ATTRS && clv_row_key(&schema->rows[i], prefix)) return true;
  return false;
}

static clv_code check_keys(const clv_binder *b, const clv_yaml_node *map, const char *prefix,
                           const char *shown_path, clv_err *err) {
  if (has_attrs_row(b->schema, prefix)) return CLV_OK;
  for (size_t i = 0; i < map->n; i++)
    if (!clv_schema_has_key(b->schema, prefix, map->children[i]->key))
      return fail_unknown_key(b, map->children[i], prefix, shown_path, err);
  return CLV_OK;
}

static clv_code bind_default(const clv_binder *b, binding *s, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *node = NULL;
  const char *default_text = s->row->default_text;
  if (s->row->kind == CLV_ROW_SECTION) return bind_section(b, s, err);
  if (!default_text) return CLV_OK;
  if (default_text[0] == '[')
    CLV_TRY(clv_yaml_read(b->source, default_text, strlen(default_text), 0, &node, err));
  else
    CLV_TRY(clv_yaml_node_new_scalar(default_text, true, (clv_config_pos){0, 0}, &node, err));
  s->node = node;
  return binders[s->row->kind](b, s, err);
}

/* Returns true if another row must bind the value: two rows may describe one key, a LIST and a
 * RANGE, or a SECTION and an ENUM. The second row takes scalars. */
static bool is_bound_by_twin_row(const clv_schema *schema, const clv_row *row,
                                 const clv_yaml_node *node) {
  bool is_scalar = node && node->kind == CLV_YAML_SCALAR;
  if (row > schema->rows && strcmp(row[-1].path, row->path) == 0) return !is_scalar;
  return is_scalar && clv_row_has_scalar_form(schema, row);
}

static clv_code fail_missing_key(const clv_binder *b, const clv_row *row, const clv_yaml_node *map,
                                 const char *path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes example = {0};
  clv_row_write_example(b->schema, row, &example);
  return clv_yaml_source_fail(b->source, map->key ? map->key_pos : map->pos, err,
                              "missing key '%s': %s For example: `%s`", path, row->doc,
                              example.failed ? "..." : example.data);
}

/* Returns the number of the override that set `node`; 0: the file set it. */
static uint32_t number_of_override(const clv_yaml_node *node) {
  return node->pos.line ? 0 : node->pos.column;
}

/* Finds the entry of `row` in a mapping, under its present or its old name. If both are given, the
 * entry of the later override counts. Fails if the file gives both, or if one override gives both.
 */
static clv_code find_entry(const clv_binder *b, const clv_row *row, const clv_yaml_node *map,
                           const char *key, const char *path, const clv_yaml_node **ret,
                           clv_err *err) {
  const clv_yaml_node *present_entry = clv_yaml_node_find(map, key);
  const clv_yaml_node *old_entry = row->old_name ? clv_yaml_node_find(map, row->old_name) : NULL;
  *ret = !old_entry || (present_entry &&
                        number_of_override(present_entry) > number_of_override(old_entry))
             ? present_entry
             : old_entry;
  if (!present_entry || !old_entry ||
      number_of_override(present_entry) != number_of_override(old_entry))
    return CLV_OK;
  return clv_yaml_source_fail(b->source, old_entry->key_pos, err,
                              "'%s' is given twice: '%s' is its old name, remove it", path,
                              row->old_name);
}

static clv_code bind_row(const clv_binder *b, const clv_row *row, const clv_yaml_node *map,
                         const char *prefix, const char *shown_path, char *base, clv_err *err) {
  char path[CLV_PATH_MAX];
  const char *key = clv_row_key(row, prefix);
  const clv_yaml_node *node = NULL;
  snprintf(path, sizeof path, "%s%s", shown_path, key);
  if (map) CLV_TRY(find_entry(b, row, map, key, path, &node, err));
  binding s = {
      .row = row, .node = node, .path = path, .struct_base = base, .at = base + row->offset};
  if (is_bound_by_twin_row(b->schema, row, node)) return CLV_OK;
  if (!node && map && row->required) return fail_missing_key(b, row, map, path, err);
  if (!node) return bind_default(b, &s, err);
  if (row->pos_offset) {
    bool has_key = node->kind != CLV_YAML_SCALAR && node->key;
    *(clv_config_pos *)address_of_field(&s, row->pos_offset) = has_key ? node->key_pos : node->pos;
  }
  return binders[row->kind](b, &s, err);
}

static clv_code bind_map(const clv_binder *b, const clv_yaml_node *map, const char *prefix,
                         const char *shown_path, void *base, clv_err *err) {
  if (map) CLV_TRY(check_keys(b, map, prefix, shown_path, err));
  for (size_t i = 0; i < b->schema->n_rows; i++) {
    const clv_row *row = &b->schema->rows[i];
    if (!clv_row_key(row, prefix)) continue;
    if (row->kind != CLV_ROW_ATTRS) {
      CLV_TRY(bind_row(b, row, map, prefix, shown_path, base, err));
    } else if (map) {
      clv_attr_spec **attrs = (clv_attr_spec **)(void *)((char *)base + row->offset);
      size_t *n = (size_t *)(void *)((char *)base + row->count_offset);
      CLV_TRY(clv_attrs_bind(b, map, prefix, shown_path, attrs, n, err));
    }
  }
  return CLV_OK;
}

clv_code clv_schema_bind(const clv_binder *b, const clv_yaml_node *root, void *base, clv_err *err) {
  if (root->kind != CLV_YAML_MAP)
    return clv_yaml_source_fail(b->source, root->pos, err, "a %s is a mapping of keys",
                                b->schema->title);
  return bind_map(b, root, "", "", base, err);
}

clv_code clv_schema_bind_defaults(const clv_binder *b, void *base, clv_err *err) {
  return bind_map(b, NULL, "", "", base, err);
}

/* ---- freeing a bound struct ------------------------------------------------------------------ */

static void free_fields(const clv_schema *schema, const char *prefix, char *base);

static void free_entries(const clv_schema *schema, const clv_row *row, char *base) {
  char inner_prefix[CLV_PATH_MAX];
  char *entries = *(char **)(void *)(base + row->offset);
  size_t n = *(size_t *)(void *)(base + row->count_offset);
  clv_row_write_inner_prefix(row, inner_prefix);
  for (size_t i = 0; i < n; i++) {
    char *entry = entries + i * row->entry_bytes;
    if (row->kind == CLV_ROW_MAP) free(*(char **)(void *)(entry + sizeof(clv_config_pos)));
    free_fields(schema, inner_prefix, entry);
  }
  free(entries);
}

static void free_field(const clv_schema *schema, const clv_row *row, char *base) {
  char inner_prefix[CLV_PATH_MAX];
  void *at = base + row->offset;
  if (row->kind == CLV_ROW_TEXT || row->kind == CLV_ROW_PATH) free(*(char **)at);
  if (row->target_offset) free(*(char **)(void *)(base + row->target_offset));
  if (row->kind == CLV_ROW_TEXTS) clv_text_list_clear(at);
  if (row->kind == CLV_ROW_NUMBERS) free(((clv_number_list *)at)->items);
  if (row->kind == CLV_ROW_LIST || row->kind == CLV_ROW_MAP) free_entries(schema, row, base);
  if (row->kind == CLV_ROW_ATTRS)
    clv_attrs_free(*(clv_attr_spec **)at, *(size_t *)(void *)(base + row->count_offset));
  if (row->kind == CLV_ROW_SECTION) {
    clv_row_write_inner_prefix(row, inner_prefix);
    free_fields(schema, inner_prefix, base);
  }
}

static void free_fields(const clv_schema *schema, const char *prefix, char *base) {
  for (size_t i = 0; i < schema->n_rows; i++)
    if (clv_row_key(&schema->rows[i], prefix)) free_field(schema, &schema->rows[i], base);
}

void clv_schema_free_at(const clv_schema *schema, void *base) { free_fields(schema, "", base); }
