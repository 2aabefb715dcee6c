/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the index of a folder of weights. The tensors' names in an accepted index must be sorted,
 * and each must be found and be in one of the files. A file's name must have no slash.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Looks up the name of a tensor without its first part, and with another last part. */
static void look_up_similar_names(const clv_weights_index *x, const char *name) {
  char other[CLV_WEIGHTS_MAX_NAME + 16];
  const char *dot = strchr(name, '.');
  size_t at = 0;
  clv_err err;
  if (clv_weights_find_name(x->tensor_names, x->n, dot ? dot + 1 : "a", "fuzz", &at, &err) ==
      CLV_OK)
    NEVER(at != CLV_WEIGHTS_NONE && at >= x->n);
  dot = strrchr(name, '.');
  snprintf(other, sizeof other, "%.*s.weight", dot ? (int)(dot - name) : 4, name);
  (void)!clv_weights_find_name(x->tensor_names, x->n, other, "fuzz", &at, &err);
  (void)clv_weights_is_newly_initialised(name, x->tensor_names, CLV_MIN(x->n, 8));
  (void)clv_weights_is_derived(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_weights_index_clear) clv_weights_index x = {0};
  clv_err err;
  if (clv_weights_index_parse(data, size, "fuzz", &x, &err) != CLV_OK) return 0;
  NEVER(x.n == 0 || x.n_files == 0 || x.n_files > x.n);
  for (size_t i = 0; i < x.n; i++) {
    size_t at = 0;
    NEVER(i && strcmp(x.tensor_names[i - 1], x.tensor_names[i]) >= 0);
    NEVER(x.file_index[i] >= x.n_files || strchr(x.file_names[x.file_index[i]], '/'));
    NEVER(clv_weights_find_name(x.tensor_names, x.n, x.tensor_names[i], "fuzz", &at, &err) !=
              CLV_OK ||
          at != i);
    look_up_similar_names(&x, x.tensor_names[i]);
  }
  return 0;
}
