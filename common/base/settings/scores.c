/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of scores, made from scores.def.
 */
#include "common/base/settings/settings.h"

const char *const clv_score_names[] = {
#define CLV_SCORE(NAME, name, ...) #name,
#include "common/base/settings/scores.def"
    NULL};

static const clv_score_value_row rows[] = {
#define CLV_SCORE_VALUE(NAME, name_, needs_, largest) \
  [CLV_VALUE_##NAME] = {.name = #name_, .needs = needs_, .largest_is_best = largest},
#include "common/base/settings/scores.def"
};

const clv_score_value_row *clv_score_value_row_of(clv_score_value value) { return &rows[value]; }
