/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json, which names the file of each tensor of a folder, in the format of
 * transformers: {"metadata": {"total_size": ...}, "weight_map": {tensor: file}}.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

/* Limit of the JSON tokens in an index: two for each entry of the weight map, and some for the
 * metadata. */
enum { MAX_TOKENS = CLV_WEIGHTS_MAX_TENSORS * 2 + 1024 };

void clv_weights_index_clear(clv_weights_index *x) {
  if (!x) return;
  json_decref(x->root);
  free(x->tensor_names);
  free(x->file_index);
  free(x->file_names);
  *x = (clv_weights_index){0};
}

int clv_weights_compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static clv_code check_file_name(const char *label, const char *name, const char *file,
                                clv_err *err) {
  static const char suffix[] = ".safetensors";
  size_t n = file ? strlen(file) : 0, m = sizeof suffix - 1;
  if (!file)
    return clv_fail(err, CLV_DATA_LOSS, "%.120s: tensor '%.100s': its file is not a string", label,
                    name);
  if (!clv_weights_is_file_name(file) || n <= m || strcmp(file + n - m, suffix) != 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%.120s: tensor '%.100s': '%.100s' is not the plain name of a .safetensors "
                    "file in this folder",
                    label, name, file);
  return CLV_OK;
}

/* Checks the metadata: total_size, if given, must be a number of bytes below 2^63. */
static clv_code check_metadata(const json_t *root, const char *label, clv_err *err) {
  const json_t *m = json_object_get(root, "metadata"), *size = json_object_get(m, "total_size");
  if (m && !json_is_object(m))
    return clv_fail(err, CLV_DATA_LOSS, "%.150s: 'metadata' is not an object", label);
  double bytes = json_number_value(size);
  if (size && (!json_is_number(size) || bytes < 0 || bytes > (double)INT64_MAX))
    return clv_fail(err, CLV_DATA_LOSS, "%.150s: 'total_size' is not a number of bytes", label);
  return CLV_OK;
}

/* Collects the names of all tensors, and of the file of each tensor. */
static clv_code collect_names(json_t *map, const char *label, clv_weights_index *x, clv_err *err) {
  const char *name;
  json_t *v;
  size_t n = json_object_size(map);
  CLV_TRY(clv_alloc(n, sizeof *x->tensor_names, &x->tensor_names, err));
  CLV_TRY(clv_alloc(n, sizeof *x->file_names, &x->file_names, err));
  json_object_foreach(map, name, v) {
    if (!clv_weights_is_name(name))
      return clv_fail(err, CLV_DATA_LOSS,
                      "%.150s: a tensor's name is empty, over %d bytes or holds control characters",
                      label, CLV_WEIGHTS_MAX_NAME);
    const char *file = json_string_value(v);
    CLV_TRY(check_file_name(label, name, file, err));
    x->file_names[x->n] = file;
    x->tensor_names[x->n++] = name;
  }
  return CLV_OK;
}

static size_t remove_repeats(const char **sorted, size_t n) {
  size_t m = 0;
  for (size_t i = 0; i < n; i++)
    if (i == 0 || strcmp(sorted[i], sorted[m - 1]) != 0) sorted[m++] = sorted[i];
  return m;
}

/* Sorts the names of tensors and files, removes repeated files, and sets file_index for each
 * tensor.
 */
static clv_code sort_names_and_link_files(const json_t *map, const char *label,
                                          clv_weights_index *x, clv_err *err) {
  qsort(x->tensor_names, x->n, sizeof *x->tensor_names, clv_weights_compare_names);
  qsort(x->file_names, x->n, sizeof *x->file_names, clv_weights_compare_names);
  x->n_files = remove_repeats(x->file_names, x->n);
  if (x->n_files > CLV_CHECKPOINT_MAX_FILES)
    return clv_fail(err, CLV_EXHAUSTED, "%.150s: %zu files, the limit is %d", label, x->n_files,
                    CLV_CHECKPOINT_MAX_FILES);
  CLV_TRY(clv_alloc(x->n, sizeof *x->file_index, &x->file_index, err));
  for (size_t i = 0; i < x->n; i++) {
    const char *file = json_string_value(json_object_get(map, x->tensor_names[i]));
    const char **at =
        bsearch(&file, x->file_names, x->n_files, sizeof *x->file_names, clv_weights_compare_names);
    x->file_index[i] = (uint32_t)(at - x->file_names);
  }
  return CLV_OK;
}

static clv_code read_weight_map(const char *label, clv_weights_index *x, clv_err *err) {
  json_t *map = json_object_get(x->root, "weight_map");
  size_t n = json_object_size(map);
  if (!json_is_object(map) || n == 0)
    return clv_fail(err, CLV_DATA_LOSS, "%.150s: 'weight_map' is missing, empty or not an object",
                    label);
  if (n > CLV_WEIGHTS_MAX_TENSORS)
    return clv_fail(err, CLV_EXHAUSTED, "%.150s: %zu tensors, the limit is %d", label, n,
                    CLV_WEIGHTS_MAX_TENSORS);
  CLV_TRY(check_metadata(x->root, label, err));
  CLV_TRY(collect_names(map, label, x, err));
  return sort_names_and_link_files(map, label, x, err);
}

clv_code clv_weights_index_parse(const void *data, size_t len, const char *label,
                                 clv_weights_index *ret, clv_err *err) {
  CLV_AUTO(clv_weights_index_clear) clv_weights_index x = {0};
  CLV_TRY(clv_weights_json_parse_edited(data, len, MAX_TOKENS, label, &x.root, err));
  CLV_TRY(read_weight_map(label, &x, err));
  *ret = x;
  x = (clv_weights_index){0};
  return CLV_OK;
}
