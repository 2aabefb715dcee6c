/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the simulated world. world.c runs the events, worker.c is a worker.
 */
#ifndef CLEAVE_SIMULATE_WORLD_INT_H
#define CLEAVE_SIMULATE_WORLD_INT_H

#include "common/engine/engine.h"
#include "tests/simulate/network.h"
#include "tests/simulate/world.h"

enum { SIM_MAX_BACKWARDS = 64, SIM_LINK_LEASE_MS = 20000 };

/* Requests that workers received from one runtime. Restarts of a worker do not clear them. */
typedef struct sim_requests {
  uint64_t next_generation[256]; /* per module index: one more than the highest generation used */
  struct {
    /* context: a context id; phase_bits: a bit for each phase in which a call of the context had a
     * backward */
    uint64_t context, phase_bits;
  } backwards[SIM_MAX_BACKWARDS];
  uint32_t n_backwards;
  char violation[120]; /* first wrong request, as a sentence; "": none */
} sim_requests;

typedef struct sim_worker {
  sim_world *world;
  uint32_t place;
  char name[8];
  clv_wire_id incarnation_id, session_id;
  clv_wire_limits granted_limits;
  uint32_t lease_ms;
  clv_pool *pool;
  /* node of the worker; of place 0: the master's node, while its runtime is open */
  clv_session_node *node;
  clv_lane_acceptor lane_acceptor;
  clv_link *master_link, *accepted_links[SIM_PLACES], *dialled_links[SIM_PLACES];
  bool has_open_session, is_dead;
  uint64_t busy_until_ns;             /* time in ns until which the worker's node computes */
  uint32_t n_restarts;                /* number of times that the worker was restarted */
  struct sim_worker *earlier_session; /* earlier session, or earlier process, of the worker */
} sim_worker;

struct sim_world {
  sim_conditions conditions;
  sim_network *network;
  sim_worker workers[SIM_PLACES]; /* index 0: the master, of which only `node` is used */
  sim_random rng;
  uint64_t last_id, n_intrusions;
  cleave_runtime *runtime; /* runtime of the program; NULL unless it is open */
  bool fault_happened;
  bool work_takes_time;
  sim_requests master_messages;
};

/* Runs the next event if it is due by `until`; otherwise advances the time to `until`. Returns
 * false if no event is left. */
bool sim_world_run_event(sim_world *w, uint64_t until_ns);
/* The wait function in clv_node_options of the simulated nodes: calls sim_world_run_event. */
bool sim_world_wait_until(void *world, uint64_t until_ns);
/* Returns the executor of a place's node. */
clv_executor sim_world_get_executor(sim_world *w, uint32_t place);
/* Dials a link with all lanes, from the master or a worker to a worker. Blocks while the world
 * continues. */
clv_code sim_world_dial_link(sim_world *w, uint32_t from, uint32_t to,
                             const clv_link_options *options, const clv_link_dial *dial,
                             unsigned timeout_ms, clv_link **ret, clv_err *err);
/* Lets the worker's next tick close a session whose master is gone. */
void sim_world_schedule_close(sim_world *w, sim_worker *k);

clv_code sim_worker_start(sim_world *w, uint32_t place, clv_err *err);
/* Starts a killed worker again, as a new process at its place. */
void sim_worker_restart(sim_worker *k);
/* Makes the master call a method of the worker's service. */
clv_code sim_worker_call_method(sim_worker *k, const char *method, const clv_piece *request,
                                clv_bytes *reply, clv_err *err);
/* Time at which the worker's node wants to run; UINT64_MAX: not before a message arrives. */
uint64_t sim_worker_next_run_ns(sim_worker *k);
void sim_worker_run_node(sim_worker *k);
/* Ends a session: closes links and stops its work. */
void sim_worker_close_session(sim_worker *k);
/* Writes a sentence about the contexts and references that the worker holds; "": none. */
void sim_worker_describe_objects(const sim_worker *k, char *text, size_t len);
/* Frees the worker's node. sim_network_free must follow before the rest is freed. */
void sim_worker_free_node(sim_worker *k);
void sim_worker_free(sim_worker *k, char *text, size_t len);

#endif
