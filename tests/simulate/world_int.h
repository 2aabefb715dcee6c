/* SPDX-License-Identifier: Apache-2.0
 *
 * world.c runs what happens, worker.c is a worker.
 */
#ifndef CLEAVE_SIMULATE_WORLD_INT_H
#define CLEAVE_SIMULATE_WORLD_INT_H

#include "common/engine/engine.h"
#include "tests/simulate/network.h"
#include "tests/simulate/world.h"

enum { SIM_TOLD = 64, SIM_LINK_LEASE_MS = 20000 };

/* What workers were asked for in the life of a runtime, whoever they were when. */
typedef struct sim_told {
  uint64_t next_generation[256]; /* of each index, behind the last that was used */
  struct {
    uint64_t context, phases; /* of a context, a bit each, those in which a call had a backward */
  } passes[SIM_TOLD];
  uint32_t n_passes;
  char wrong[120]; /* or "" */
} sim_told;

typedef struct sim_worker {
  sim_world *world;
  uint32_t place;
  char name[8];
  clv_wire_id incarnation, session;
  clv_wire_limits granted;
  uint32_t lease_ms;
  clv_pool *pool;
  clv_session_node *node; /* at place 0: the master's, while it is open */
  clv_lane_acceptor acceptor;
  clv_link *master, *in[SIM_PLACES], *out[SIM_PLACES];
  bool open, dead;
  uint64_t busy_until;       /* its node computes */
  uint32_t life;             /* how often it has been started again */
  struct sim_worker *before; /* an earlier session of it, or life */
} sim_worker;

struct sim_world {
  sim_weather weather;
  sim_network *network;
  sim_worker workers[SIM_PLACES]; /* 0: the master, of which nothing else is here */
  sim_random random;
  uint64_t ids, intrusions;
  cleave_runtime *runtime; /* while it is open */
  bool fault_came;
  bool work_takes_time;
  sim_told told;
};

/* What happens next, if that is by `until`; otherwise the time becomes `until`. False: nothing will
 * ever happen. */
bool sim_world_step(sim_world *w, uint64_t until);
bool sim_world_wait(void *world, uint64_t until_ns); /* the same, for clv_node_options */
/* Of the node of a place. */
clv_executor sim_world_executor(sim_world *w, uint32_t place);
/* BLOCKS, while the world goes on. A link of a worker or the master to a worker, with all lanes. */
clv_code sim_world_dial(sim_world *w, uint32_t from, uint32_t to, const clv_link_options *options,
                        const clv_link_dial *dial, unsigned timeout_ms, clv_link **ret,
                        clv_err *err);
/* The service closes a session whose master is gone with its next tick. */
void sim_world_close_soon(sim_world *w, sim_worker *k);

clv_code sim_worker_start(sim_world *w, uint32_t place, clv_err *err);
/* After it has died: another process at its place. */
void sim_worker_restart(sim_worker *k);
/* A method of the service, by the master. */
clv_code sim_worker_call(sim_worker *k, const char *method, const clv_piece *request,
                         clv_bytes *reply, clv_err *err);
/* When its node wants to run: UINT64_MAX, not before something comes. */
uint64_t sim_worker_due(sim_worker *k);
void sim_worker_run(sim_worker *k);
/* The session's end: links closed, nothing computes any more. */
void sim_worker_close(sim_worker *k);
/* What it holds of contexts and references: "" or a sentence. */
void sim_worker_holds(const sim_worker *k, char *text, size_t len);
/* Its node goes; then, when the network has gone, the rest. */
void sim_worker_stop(sim_worker *k);
void sim_worker_free(sim_worker *k, char *text, size_t len);

#endif
