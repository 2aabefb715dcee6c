/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of scores, made from scores.def.
 */
#include "common/base/settings/settings.h"

const char *const clv_score_names[] = {
#define CLV_SCORE(NAME, name, ...) #name,
#include "common/base/settings/scores.def"
    NULL};

static const unsigned tasks[] = {
#define CLV_SCORE(NAME, name, tasks_) [CLV_SCORE_KIND_##NAME] = tasks_,
#include "common/base/settings/scores.def"
};

unsigned clv_score_tasks(clv_score_kind kind) { return tasks[kind]; }

void clv_score_names_of(clv_task task, char *buf, size_t len) {
  const char *names[CLV_SCORE_KINDS + 1] = {NULL};
  size_t n = 0;
  for (int i = 0; i < CLV_SCORE_KINDS; i++)
    if (tasks[i] & task) names[n++] = clv_score_names[i];
  clv_list_names(names, buf, len);
}

static const clv_score_value_row rows[] = {
#define CLV_SCORE_VALUE(NAME, name_, needs_, largest) \
  [CLV_VALUE_##NAME] = {.name = #name_, .needs = needs_, .largest_is_best = largest},
#include "common/base/settings/scores.def"
};

const clv_score_value_row *clv_score_value_row_of(clv_score_value value) { return &rows[value]; }
