/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_weights_make_hf_config: the config.json of a trained model.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/model/weights/weights_int.h"

enum { MAX_TOKENS = 65536, MAX_LABELS = 4096 };

/* Sets the names of n classes in config.json. If `class_names` is NULL, or the name of a class is
 * not UTF-8 (as the name of a folder may be), the class gets its name in transformers: LABEL_0,
 * LABEL_1 and so on. */
static int set_class_labels(json_t *root, size_t n, const char *const *class_names) {
  json_t *names = json_object(), *numbers = json_object();
  int failed = 0;
  for (size_t i = 0; i < n; i++) {
    char default_name[32], number[24];
    snprintf(default_name, sizeof default_name, "LABEL_%zu", i);
    snprintf(number, sizeof number, "%zu", i);
    const char *name =
        class_names && clv_weights_is_utf8(class_names[i]) ? class_names[i] : default_name;
    failed |= json_object_set_new(names, number, json_string(name));
    failed |= json_object_set_new(numbers, name, json_integer((json_int_t)i));
  }
  failed |= json_object_set_new(root, "id2label", names);
  return failed | json_object_set_new(root, "label2id", numbers);
}

static int adjust_hf_config(json_t *root, const char *architecture, size_t n_labels,
                            const char *const *names) {
  int failed = json_object_set_new(root, "dtype", json_string("float32"));
  json_object_del(root, "torch_dtype");
  if (architecture)
    failed |= json_object_set_new(root, "architectures", json_pack("[s]", architecture));
  bool has_other_count = json_object_size(json_object_get(root, "id2label")) != n_labels;
  if (n_labels && (names || has_other_count)) failed |= set_class_labels(root, n_labels, names);
  return failed;
}

clv_code clv_weights_make_hf_config(const void *data, size_t len, const char *label,
                                    const char *architecture, size_t n_labels,
                                    const char *const *names, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_weights_json_freep) json_t *root = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  CLV_TRY(clv_weights_json_parse_edited(data, len, MAX_TOKENS, label, &root, err));
  if (n_labels > MAX_LABELS)
    return clv_fail(err, CLV_EXHAUSTED, "%zu labels, at most %d", n_labels, MAX_LABELS);
  CLV_AUTO(clv_freep)
  char *text = adjust_hf_config(root, architecture, n_labels, names)
                   ? NULL
                   : json_dumps(root, JSON_INDENT(2));
  if (!text) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_printf(&out, "%s\n", text);
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}
