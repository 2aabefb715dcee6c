/* SPDX-License-Identifier: Apache-2.0
 *
 * order_int: what the sanitizers are told: who runs, what came before what, which memory is whose.
 * In a build without them nothing of it does anything but the fibres.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_ORDER_INT_H
#define CLEAVE_TESTS_GPU_SIM_ORDER_INT_H

#include <stdbool.h>
#include <stddef.h>

/* ---- order ----------------------------------------------------------------------------------- */

/* One that runs beside others, as thread sanitizer sees it. */
typedef struct sim_order sim_order;

sim_order *sim_order_new(void);
void sim_order_free(sim_order *o);
/* What is done from now on is done by o; gives who it was before. */
sim_order *sim_order_enter(sim_order *o);
/* What was done up to a "before" at a place comes before all behind an "after" there. */
void sim_order_before(void *place);
void sim_order_after(void *place);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory whose past nobody is held to: of all 0xFF, as if never written. */
void *sim_fresh_take(size_t bytes);
void sim_fresh_give(void *p);
void sim_undefined(void *p, size_t bytes); /* 0xFF, and a value read from it is an error */
void sim_forbid(const void *p, size_t bytes);
void sim_permit(const void *p, size_t bytes);
bool sim_forbids(void); /* by address sanitizer */

/* ---- fibres ---------------------------------------------------------------------------------- */

typedef struct sim_fibre sim_fibre;

/* Fibres that are kept, for thread sanitizer takes long to begin with one; without it there is one
 * pool for all. */
enum { SIM_MOST_FIBRES = 1024 };
typedef struct sim_fibres {
  sim_fibre *all[SIM_MOST_FIBRES];
  int n;
} sim_fibres;

/* A fibre that will run work(arg) and then leave: one of *spare, all of whose past comes before
 * what it will do, or one without a past. Afterwards it is among those that have ended. */
sim_fibre *sim_fibre_take(sim_fibres *spare, void (*work)(void *), void *arg);
void sim_fibre_give(sim_fibres *ended, sim_fibre *f);
void sim_fibre_drop(sim_fibre *f); /* which will not go on */
void sim_fibres_move(sim_fibres *to, sim_fibres *from);
void sim_fibre_enter(sim_fibre *f); /* until it leaves */
void sim_fibre_leave(void);
bool sim_fibre_has(const sim_fibre *f, const void *p, size_t bytes); /* on its stack */

#endif
