/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of losses, made from losses.def.
 */
#include "common/base/settings/settings.h"

static const clv_loss_row rows[] = {
#define CLV_LOSS(NAME, name_, task_, keys_) \
  [CLV_LOSS_##NAME] = {.name = #name_, .task = task_, .keys = keys_},
#include "common/base/settings/losses.def"
};

const char *const clv_loss_names[] = {
#define CLV_LOSS(NAME, name, ...) #name,
#include "common/base/settings/losses.def"
    NULL};

const char *const clv_target_loss_names[] = {
#define CLV_LOSS(NAME, name, task, ...) (task) == CLV_TASK_TARGETS ? NULL : #name,
#include "common/base/settings/losses.def"
    NULL};

const clv_loss_row *clv_loss_row_of(clv_loss_kind kind) { return &rows[kind]; }

void clv_loss_names_of(unsigned key, char *buf, size_t len) {
  const char *names[CLV_LOSS_COUNT + 1] = {NULL};
  size_t n = 0;
  for (int i = 0; i < CLV_LOSS_COUNT; i++)
    if (rows[i].keys & key) names[n++] = rows[i].name;
  clv_list_names(names, buf, len);
}
