/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker that was lost comes back in the middle of a program, with all of its modules or some.
 * What stands on it may then be another than without the fault; the rest may not.
 */
#include <stdio.h>
#include <string.h>

#include "tests/simulate/program_int.h"

static void complain(program *p, const char *what, const char *of, const cleave_error *e) {
  if (!p->record->wrong[0])
    snprintf(p->record->wrong, sizeof p->record->wrong, "%s of %s: %s: %.160s", what, of,
             cleave_status_name(e->status), e->text);
}

/* It was never placed, or is lost again. */
static bool is_refusal(cleave_status status) {
  return status == CLEAVE_PRECONDITION || status == CLEAVE_UNAVAILABLE;
}

static void reload(program *p, stage *m) {
  cleave_error e = {.status = CLEAVE_OK};
  cleave_status status = cleave_module_reload(p->rt, m->module, NULL, NULL, 0, &e);
  if (status != CLEAVE_OK && !is_refusal(status))
    complain(p, "reload", cleave_module_name(m->module), &e);
}

void do_rejoin(program *p) {
  cleave_error e = {.status = CLEAVE_OK};
  const char *worker = sim_below(&p->forms, 6) ? NULL : p->stand->mend(p->stand->user);
  if (!worker) return;
  cleave_status status = cleave_worker_rejoin(p->rt, worker, 0, &e);
  if (status == CLEAVE_PRECONDITION) return; /* nobody has noticed yet, or it is back already */
  if (status != CLEAVE_OK) {
    if (status != CLEAVE_UNAVAILABLE) complain(p, "rejoin", worker, &e);
    return;
  }
  p->record->rejoins++;
  for (int i = 0; i < p->n_stages; i++) {
    stage *m = &p->stages[i];
    bool there = strcmp(cleave_module_node(m->module), worker) == 0;
    if (there && sim_below(&p->forms, 4)) reload(p, m);
  }
}
