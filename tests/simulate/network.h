/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated network and clock: what happens, in the order of its times; streams between places,
 * each with delays of its own, so that lanes overtake each other and messages of one lane do not.
 * One thread. Everything follows from the seed.
 */
#ifndef CLEAVE_SIMULATE_NETWORK_H
#define CLEAVE_SIMULATE_NETWORK_H

#include "common/net/link/link.h"
#include "tests/simulate/random.h"

enum { SIM_MOST_PLACES = 8 };

typedef struct sim_network sim_network;

typedef struct sim_network_options {
  uint64_t seed;
  bool calm;  /* nothing takes time */
  bool trace; /* each message on standard output */
  /* The connection of message number cut_at, and of each cut_every-th behind it, is lost before the
   * message arrives or after it; 0: none. Links notice that within a second. */
  uint64_t cut_at, cut_every;
} sim_network_options;

sim_network *sim_network_new(const sim_network_options *options);
/* Nothing is called any more: streams end as they are. */
void sim_network_free(sim_network *n);

clv_clock sim_network_clock(sim_network *n);
uint64_t sim_network_now(const sim_network *n);
/* A time that a message may take. */
uint64_t sim_network_delay(sim_network *n);
/* happen(user) at that time, or now if it has passed. */
void sim_network_at(sim_network *n, uint64_t at, void (*happen)(void *user), void *user);
/* When the next thing happens; UINT64_MAX: nothing will. */
uint64_t sim_network_due(const sim_network *n);
/* The next thing happens. The time is then at least `now`. */
void sim_network_step(sim_network *n);
/* The time goes on, up to the next thing at most. */
void sim_network_pass(sim_network *n, uint64_t until);

/* How a link of place `from` dials place `to`, where `acceptor` takes its lanes, as from `uri`. The
 * memory is the network's. */
clv_dialler sim_network_dialler(sim_network *n, uint32_t from, uint32_t to,
                                const clv_lane_acceptor *acceptor, const char *uri);

/* The streams of lane `index` between the two are lost, and each side notices it within a second.
 * How many. */
unsigned sim_network_reset(sim_network *n, uint32_t a, uint32_t b, uint32_t index);
/* The streams of lane `index` between the two end, whoever dialled; on each side when it hears of
 * it. How many. */
unsigned sim_network_cut(sim_network *n, uint32_t a, uint32_t b, uint32_t index);
/* Nothing comes from there any more, or happens there. */
void sim_network_kill(sim_network *n, uint32_t place);
/* It can be dialled again. What was open there stays dead. */
void sim_network_revive(sim_network *n, uint32_t place);

typedef struct sim_network_counts {
  uint64_t events, messages, cuts;
} sim_network_counts;
sim_network_counts sim_network_count(const sim_network *n);

#endif
