/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of data formats, made from formats.def.
 */
#include <stdio.h>

#include "common/base/settings/settings.h"

static const clv_format_row rows[] = {
    [CLV_FORMAT_AUTO] = {.name = ""},
#define CLV_ARRAY_FORMAT(NAME, text, doc, set_doc)                                            \
  [CLV_FORMAT_##NAME] = {.name = #text,                                                       \
                         .train_names = "two files, records and labels",                      \
                         .has_arrays = true,                                                  \
                         .accepted_keys = CLV_KEY_INPUTS | CLV_KEY_GROUP | CLV_KEY_NORMALIZE, \
                         .group = "a file with a whole number per record"},
#define CLV_DATA_FORMAT(NAME, text, doc, set_doc, ...) \
  [CLV_FORMAT_##NAME] = {.name = #text, __VA_ARGS__},
#include "common/base/settings/formats.def"
};

const clv_format_row *clv_format_row_of(clv_data_format format) { return &rows[format]; }

void clv_list_names(const char *const *names, char *buf, size_t len) {
  size_t used = 0;
  buf[0] = '\0';
  for (size_t i = 0; names[i] && used < len; i++)
    used += (size_t)snprintf(buf + used, len - used, "%s%s",
                             !i             ? ""
                             : names[i + 1] ? ", "
                                            : " and ",
                             names[i]);
}

void clv_format_names(uint32_t key, char *buf, size_t len) {
  const char *names[CLV_FORMAT_COUNT + 1] = {NULL};
  size_t n = 0;
  for (int i = 0; i < CLV_FORMAT_COUNT; i++)
    if (rows[i].accepted_keys & key) names[n++] = rows[i].name;
  clv_list_names(names, buf, len);
}
