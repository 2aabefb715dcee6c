/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a network and a clock. Events happen in the order of their times. Streams between
 * places have delays of their own, so lanes overtake each other, but messages of one lane do not.
 * Runs on one thread. Everything follows from the seed.
 */
#ifndef CLEAVE_SIMULATE_NETWORK_H
#define CLEAVE_SIMULATE_NETWORK_H

#include "common/net/link/link.h"
#include "tests/simulate/random.h"

enum { SIM_MAX_PLACES = 8 };

typedef struct sim_network sim_network;

typedef struct sim_network_options {
  uint64_t seed;
  bool has_no_delays;   /* true: messages arrive at once */
  bool prints_messages; /* true: each message is printed to standard output */
  /* Message first_cut_message, and each cut_interval-th message after it, loses its connection,
   * before or after the message arrives; 0: none. Links notice the loss within a second. */
  uint64_t first_cut_message, cut_interval;
} sim_network_options;

sim_network *sim_network_new(const sim_network_options *options);
/* Frees the network. Calls no callbacks: streams stay unfinished. */
void sim_network_free(sim_network *n);

clv_clock sim_network_get_clock(sim_network *n);
uint64_t sim_network_now(const sim_network *n);
/* Draws the time in ns that a message takes. */
uint64_t sim_network_draw_delay(sim_network *n);
/* Calls callback(user) at time `at` in ns, or now if that time has passed. */
void sim_network_call_at(sim_network *n, uint64_t at, void (*callback)(void *user), void *user);
/* Time of the next event; UINT64_MAX: no event is left. */
uint64_t sim_network_next_event_ns(const sim_network *n);
/* Runs the next event. The time becomes the event's, unless it is later already. */
void sim_network_run_event(sim_network *n);
/* Advances the time to `until`, or to the next event if that is earlier. */
void sim_network_advance(sim_network *n, uint64_t until);

/* Returns the dialler by which place `from` reaches place `to` as identity `uri`; `acceptor`
 * receives the lanes there. The network owns its memory. */
clv_dialler sim_network_make_dialler(sim_network *n, uint32_t from, uint32_t to,
                                     const clv_lane_acceptor *acceptor, const char *uri);

/* Resets the streams of lane `index` between two places. Each side notices it within a second.
 * Returns how many streams were reset. */
unsigned sim_network_reset_lane(sim_network *n, uint32_t a, uint32_t b, uint32_t index);
/* Closes the streams of lane `index` between two places, whichever side dialled. Each side notices
 * it when the end of the stream arrives. Returns how many streams were closed. */
unsigned sim_network_close_lane(sim_network *n, uint32_t a, uint32_t b, uint32_t index);
/* Stops all messages and events of a place. */
void sim_network_kill_place(sim_network *n, uint32_t place);
/* Lets other places dial a killed place again. Earlier streams of the place stay dead. */
void sim_network_revive_place(sim_network *n, uint32_t place);

typedef struct sim_network_counts {
  uint64_t n_events, n_messages, n_cuts;
} sim_network_counts;
sim_network_counts sim_network_get_counts(const sim_network *n);

#endif
