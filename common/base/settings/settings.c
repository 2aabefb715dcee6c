/* SPDX-License-Identifier: Apache-2.0
 *
 * Table of optimisers, made from optimizers.def, and checks of their settings.
 */
#include "common/base/settings/settings.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define READS(setting) (1u << CLV_OPTIM_SET_##setting)
#define ABSENT_IF_0(setting) (1u << CLV_OPTIM_SET_##setting)
static const clv_optimizer_row rows[] = {
#define CLV_OPTIMIZER(NAME, text, ...) [CLV_OPTIM_##NAME] = {.name = #text, __VA_ARGS__},
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
};

/* For each setting that is a number: its offset in clv_optim_config, and its range. */
static const struct {
  const char *name;
  size_t offset;
  double low, high;
  bool is_flag, includes_high;
} settings[] = {
#define NUMBER(n, low_, high_, closed_)                           \
  [CLV_OPTIM_SET_##n] = {.name = #n,                              \
                         .offset = offsetof(clv_optim_config, n), \
                         .low = low_,                             \
                         .high = high_,                           \
                         .includes_high = closed_},
#define FLAG(n) \
  [CLV_OPTIM_SET_##n] = {.name = #n, .offset = offsetof(clv_optim_config, n), .is_flag = true},
    CLV_OPTIM_NUMBERS(NUMBER) CLV_OPTIM_FLAGS(FLAG)};

const clv_optimizer_row *clv_optimizer_row_of(clv_optim_kind kind) {
  return (unsigned)kind < CLV_OPTIM_COUNT ? &rows[kind] : NULL;
}

const char *clv_optim_setting_name(clv_optim_setting setting) { return settings[setting].name; }

double clv_optim_setting_value(const clv_optim_config *c, clv_optim_setting setting) {
  const char *at = (const char *)c + settings[setting].offset;
  return settings[setting].is_flag ? *(const bool *)at : *(const double *)(const void *)at;
}

/* ---- ranges of settings ---------------------------------------------------------------------- */

/* Checks that a setting is within its range. NaN is outside every range. */
static clv_code check_range(const clv_optim_config *c, clv_optim_setting setting, clv_err *err) {
  double value = clv_optim_setting_value(c, setting), low = settings[setting].low,
         high = settings[setting].high;
  bool includes_high = settings[setting].includes_high;
  if (settings[setting].is_flag ||
      (value >= low && (value < high || (includes_high && value == high))))
    return CLV_OK;
  return clv_fail(err, CLV_INVALID, "optimizer %s is %g; it must be from %g up to %g%s",
                  settings[setting].name, value, low, high, includes_high ? "" : ", excluded");
}

static clv_code fail_unknown_kind(clv_optim_kind kind, clv_err *err) {
  char names[256];
  size_t n = 0;
  for (int i = 0; i < CLV_OPTIM_COUNT; i++)
    n += (size_t)snprintf(names + n, sizeof names - n, "%s%d (%s)", i ? ", " : "", i, rows[i].name);
  return clv_fail(err, CLV_INVALID, "optimizer kind %d is none of %s", (int)kind, names);
}

clv_code clv_optim_check(const clv_optim_config *c, clv_err *err) {
  const clv_optimizer_row *row = clv_optimizer_row_of(c->kind);
  if (!row) return fail_unknown_kind(c->kind, err);
  CLV_TRY(check_range(c, CLV_OPTIM_SET_lr, err));
  if (!(c->ema >= 0 && c->ema < 1))
    return clv_fail(err, CLV_INVALID,
                    "the decay of the average of the weights (ema) is %g: set it to at least 0 and "
                    "below 1",
                    c->ema);
  for (int i = 0; i < CLV_OPTIM_SETTINGS; i++)
    if (row->settings >> i & 1) CLV_TRY(check_range(c, (clv_optim_setting)i, err));
  if ((row->settings & READS(nesterov)) && c->nesterov && c->momentum == 0)
    return clv_fail(err, CLV_INVALID, "optimizer nesterov needs momentum above 0");
  return CLV_OK;
}

/* ---- defaults of settings, and moments of optimisers ----------------------------------------- */

void clv_optim_set_defaults(clv_optim_config *c) {
  const clv_optimizer_row *row = clv_optimizer_row_of(c->kind);
  if (!row) return;
  const clv_optim_config *defaults = &row->defaults;
  for (int i = 0; i < CLV_OPTIM_SETTINGS; i++)
    if (clv_optim_setting_value(defaults, (clv_optim_setting)i) != 0 &&
        clv_optim_setting_value(c, (clv_optim_setting)i) != 0)
      return;
#define FILL(name, ...) \
  if (defaults->name != 0) c->name = defaults->name;
  CLV_OPTIM_NUMBERS(FILL)
}

uint32_t clv_optim_moment_mask(const clv_optim_config *c) {
  const clv_optimizer_row *row = clv_optimizer_row_of(c->kind);
  uint32_t set = 0;
  for (uint32_t i = 0; row && i < CLV_OPTIM_MAX_MOMENTS; i++) {
    bool is_present = row->moments[i].name && !row->moments[i].absent_if_0;
    for (int k = 0; k < CLV_OPTIM_SETTINGS; k++)
      if (row->moments[i].absent_if_0 >> k & 1)
        is_present = clv_optim_setting_value(c, (clv_optim_setting)k) != 0;
    set |= (uint32_t)is_present << i;
  }
  return c->ema > 0 ? set | 1u << CLV_OPTIM_EMA : set;
}

int clv_optim_count_moments(uint32_t moments) { return __builtin_popcount(moments); }

const char *clv_optim_moment_name_of(clv_optim_kind kind, int i) {
  const clv_optimizer_row *row = clv_optimizer_row_of(kind);
  if (i == CLV_OPTIM_EMA) return &CLV_EMA_SUFFIX[1];
  return row && i >= 0 && i < CLV_OPTIM_MAX_MOMENTS ? row->moments[i].name : NULL;
}

bool clv_optim_is_ema(const char *name) {
  size_t n = strlen(name), len = sizeof CLV_EMA_SUFFIX - 1;
  return n > len && strcmp(name + n - len, CLV_EMA_SUFFIX) == 0;
}
