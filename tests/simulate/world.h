/* SPDX-License-Identifier: Apache-2.0
 *
 * A master and three workers in one process and on one thread: whole nodes with their links, on a
 * network and a clock that are simulated. The master is a runtime of libcleave in a world of its
 * own (master/api/core/core.h); the workers answer its methods as the service does.
 */
#ifndef CLEAVE_SIMULATE_WORLD_H
#define CLEAVE_SIMULATE_WORLD_H

#include "common/net/fair/fair.h"
#include "tests/simulate/program.h"
#include "tests/simulate/random.h"

typedef enum sim_fault_kind { SIM_NO_FAULT, SIM_CUT, SIM_KILL } sim_fault_kind;

/* A lane between two places that ends, or a worker that dies. */
typedef struct sim_fault {
  sim_fault_kind kind;
  uint32_t a, b, lane; /* SIM_KILL: worker a */
  uint64_t at;         /* ns */
  uint64_t back;       /* SIM_KILL: ns, when it is started again */
} sim_fault;

typedef struct sim_weather {
  uint64_t seed;
  bool home; /* no worker takes part */
  bool calm; /* nothing takes time */
  bool via_master;
  uint64_t credit; /* bytes */
  sim_fault fault;
  bool mends;                 /* links are mended; else the loss of a lane ends its link */
  uint64_t cut_at, cut_every; /* as in sim_network_options */
  bool far;                   /* workers 2 and 3 compute in memory that the host cannot touch */
  bool trace;
} sim_weather;

typedef struct sim_world sim_world;

sim_world *sim_world_new(const sim_weather *weather);
cleave_status sim_world_open(sim_world *w, cleave_runtime **ret, cleave_error *error);
clv_clock sim_world_clock(sim_world *w);
/* Some time goes by, in which the program does not wait. For sim_stand.between. */
void sim_world_pause(void *world);
/* For as long as notice of a loss takes. For sim_stand.settle. */
void sim_world_wait_for_notice(void *world);
/* Backwards of a context that workers were asked for. For sim_stand.passes. */
uint32_t sim_world_passes(void *world, uint64_t context);
/* For sim_stand.intrude: a context of another caller, whose calls wait for the backward of the
 * first. Its gradient never comes. END_CONTEXT brings a step, which is refused. */
void sim_world_intrude(void *world, uint32_t place, const cleave_module *m, uint64_t what);
/* For as long as notice of a loss takes, and the leases of what is lost with it; then what a worker
 * should not have been asked for, or still holds, or "". */
void sim_world_settle(sim_world *w, char *text, size_t len);
/* After the runtime was closed. The same of tensors that are held after the nodes have gone. */
void sim_world_free(sim_world *w, char *text, size_t len);
/* The same of a pool that nobody uses any more. */
void sim_pool_left(clv_pool *pool, const char *whose, char *text, size_t len);

typedef struct sim_counts {
  uint64_t messages, events, cuts;
  bool fault_came;
} sim_counts;
sim_counts sim_world_count(const sim_world *w);
void sim_worlds_done(void); /* memory that worlds share */

#endif
