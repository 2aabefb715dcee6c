/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that apply to every kind of file: building a config from text, and writing its texts.
 */
#include <string.h>

#include "common/model/config/schema_int.h"

/* Returns $CREDENTIALS_DIRECTORY if it is an absolute path of printable ASCII characters, as
 * systemd sets it; NULL otherwise. */
static const char *credentials_folder(const clv_config_overrides *over) {
  static const char name[] = "CREDENTIALS_DIRECTORY=";
  for (const char *const *entry = over ? over->env : NULL; entry && *entry; entry++) {
    if (strncmp(*entry, name, sizeof name - 1) != 0) continue;
    const char *value = *entry + sizeof name - 1;
    for (const char *p = value; *p; p++)
      if (*p <= ' ' || *p > '~') return NULL;
    return value[0] == '/' ? value : NULL;
  }
  return NULL;
}

clv_code clv_config_build(const clv_schema *schema, const clv_yaml_source *source, const char *text,
                          size_t len, const clv_config_overrides *over, clv_text_list *applied,
                          void *config, clv_err *err) {
  CLV_AUTO(clv_yaml_node_freep) clv_yaml_node *root = NULL;
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_TRY(clv_path_folder_of_file(source->file, &folder, err));
  CLV_TRY(clv_yaml_read(source, text, len, 0, &root, err));
  CLV_TRY(clv_overrides_apply(source, over, applied, root, err));
  clv_binder binder = {.schema = schema,
                       .source = source,
                       .folder = folder,
                       .credentials = credentials_folder(over)};
  return clv_schema_bind(&binder, root, config, err);
}

static const clv_schema *schema_of_kind(clv_config_kind kind) {
  if (kind == CLV_CONFIG_POLICY) return clv_policy_schema();
  return kind == CLV_CONFIG_SESSION ? clv_session_schema() : clv_worker_schema();
}

static clv_code check_memory_sufficed(const clv_bytes *text, clv_err *err) {
  return text->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for a config's text") : CLV_OK;
}

clv_code clv_config_write_example(clv_config_kind kind, clv_bytes *ret, clv_err *err) {
  clv_schema_write_example(schema_of_kind(kind), ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_config_write_json_schema(clv_config_kind kind, clv_bytes *ret, clv_err *err) {
  clv_schema_write_json_schema(schema_of_kind(kind), ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_config_write_man_page(clv_config_kind kind, clv_bytes *ret, clv_err *err) {
  clv_schema_write_man_page(schema_of_kind(kind), ret);
  return check_memory_sufficed(ret, err);
}

void clv_config_write_completions(clv_config_kind kind, clv_bytes *ret) {
  clv_schema_write_completions(schema_of_kind(kind), ret);
}

clv_code clv_session_config_write(const clv_session_config *config, clv_bytes *ret, clv_err *err) {
  clv_schema_write(clv_session_schema(), config, ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_session_config_write_public(const clv_session_config *config, clv_bytes *ret,
                                         clv_err *err) {
  clv_schema_write_public(clv_session_schema(), config, ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_session_config_write_lines(const clv_session_config *config, clv_bytes *ret,
                                        clv_err *err) {
  clv_schema_write_lines(clv_session_schema(), config, ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_worker_config_write(const clv_worker_config *config, clv_bytes *ret, clv_err *err) {
  clv_schema_write(clv_worker_schema(), config, ret);
  return check_memory_sufficed(ret, err);
}

clv_code clv_policy_config_write(const clv_policy_config *config, clv_bytes *ret, clv_err *err) {
  clv_schema_write(clv_policy_schema(), config, ret);
  return check_memory_sufficed(ret, err);
}
