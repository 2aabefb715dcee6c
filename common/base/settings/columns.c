/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the uses, scales and rules of a table's columns, in session files and in the JSON text
 * of clv_learnt_write (master/data).
 */
#include "common/base/settings/settings.h"

const char *const clv_column_use_names[] = {"number", "category", "index", "boolean",
                                            "date",   "target",   "id",    "weight",
                                            "ignore", "file",     "text",  NULL};
const char *const clv_date_part_names[] = {"year", "month", "weekday", NULL};
const char *const clv_column_scale_names[] = {"standard", "min_max", "quantile",
                                              "log",      "none",    NULL};
const char *const clv_missing_rule_names[] = {"refuse", "mean", "median", "most_frequent",
                                              "value",  "own",  "mask",   NULL};
