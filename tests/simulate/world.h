/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a master and three workers in one process and on one thread: complete nodes with their
 * links, on a simulated network and clock. The master is a runtime of libcleave whose clock, random
 * numbers and connections are simulated (master/api/core/core.h); the workers answer its methods as
 * the service does.
 */
#ifndef CLEAVE_SIMULATE_WORLD_H
#define CLEAVE_SIMULATE_WORLD_H

#include "common/net/fair/fair.h"
#include "tests/simulate/program.h"
#include "tests/simulate/random.h"

typedef enum sim_fault_kind { SIM_NO_FAULT, SIM_CUT, SIM_KILL } sim_fault_kind;

/* A fault: a lane between two places is lost, or a worker is killed. */
typedef struct sim_fault {
  sim_fault_kind kind;
  uint32_t a, b, lane; /* SIM_CUT: two places and a lane between them; SIM_KILL: a is the worker */
  uint64_t at;         /* time in ns at which the fault happens */
  uint64_t restart_ns; /* SIM_KILL: time in ns at which the worker is started again */
} sim_fault;

typedef struct sim_conditions {
  uint64_t seed;
  bool has_no_workers; /* all modules are at the master */
  bool has_no_delays;  /* messages arrive at once */
  bool sends_via_master;
  uint64_t credit_bytes; /* credit of a link in bytes */
  sim_fault fault;
  bool repairs_links;                       /* links are repaired; else a lost lane ends its link */
  uint64_t first_cut_message, cut_interval; /* fields of the same name in sim_network_options */
  bool has_device_workers; /* workers 2 and 3 compute in memory that the host cannot access */
  bool prints_messages;
} sim_conditions;

typedef struct sim_world sim_world;

sim_world *sim_world_new(const sim_conditions *conditions);
cleave_status sim_world_open_runtime(sim_world *w, cleave_runtime **ret, cleave_error *error);
clv_clock sim_world_get_clock(sim_world *w);
/* Advances the time while the program does not wait: sim_environment.pause_program. */
void sim_world_pass_time(void *world);
/* Waits as long as it takes to notice a loss: sim_environment.wait_for_notice. */
void sim_world_wait_for_notice(void *world);
/* Returns how many backwards of a context workers were asked for:
 * sim_environment.count_backwards. */
uint32_t sim_world_count_backwards(void *world, uint64_t context);
/* sim_environment.use_as_intruder: opens a context of another caller, whose calls wait for a
 * backward that never comes. Its END_CONTEXT carries a step, which the worker refuses. */
void sim_world_use_as_intruder(void *world, uint32_t place, const cleave_module *m,
                               uint64_t random_bits);
/* Waits until all losses are noticed and the leases of lost objects have expired. Then checks the
 * requests of the master, and that no worker holds an object that nothing needs. Writes the first
 * fault to text; "": none. */
void sim_world_check_leftovers(sim_world *w, char *text, size_t len);
/* Frees the world after the runtime was closed. Writes to text which tensors outlived the nodes;
 * "": none. */
void sim_world_free(sim_world *w, char *text, size_t len);
/* Writes to text what is left in a pool that has no users; "": nothing. */
void sim_describe_pool_leftovers(clv_pool *pool, const char *owner_text, char *text, size_t len);

typedef struct sim_counts {
  uint64_t n_messages, n_events, n_cuts;
  bool fault_happened;
} sim_counts;
sim_counts sim_world_get_counts(const sim_world *w);
void sim_free_worlds(void); /* frees the memory that worlds share */

#endif
