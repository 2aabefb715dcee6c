/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the models of tests/model: a walk through all states of a model finds no violated rule,
 * and with each break, a mistake made on purpose, the walk finds one.
 *
 * usage: model [--full] [--trace] [NAME]
 */
#include "tests/model/model.h"

#include <stdio.h>
#include <string.h>

typedef const model *make_model(int scale, int variant);

static bool check_model(make_model *model_maker, int scale, bool prints_trace,
                        const char *wanted_name) {
  bool is_passed = true;
  const model *m = model_maker(scale, 0);
  if (wanted_name && strcmp(wanted_name, m->name) != 0) return true;
  for (int variant = 0; variant < 2; variant++)
    is_passed &= model_walk_all_states(model_maker(scale, variant), -1, prints_trace);
  for (size_t i = 0; i < m->n_breaks; i++)
    is_passed &= model_walk_all_states(model_maker(0, m->break_variants ? m->break_variants[i] : 0),
                                       (int)i, prints_trace);
  return is_passed;
}

int main(int argc, char **argv) {
  int scale = 0;
  bool prints_trace = false;
  const char *wanted_name = NULL;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--full") == 0)
      scale = 1;
    else if (strcmp(argv[i], "--trace") == 0)
      prints_trace = true;
    else
      wanted_name = argv[i];
  }
  bool is_passed = check_model(make_lanes_model, scale, prints_trace, wanted_name);
  is_passed &= check_model(make_runs_model, scale, prints_trace, wanted_name);
  return is_passed ? 0 : 1;
}
