/* SPDX-License-Identifier: Apache-2.0
 *
 * model: walks breadth-first through all states of a small model, and finds the shortest trace to a
 * state that violates a rule. A model is a table of steps; a step adds each state that it can lead
 * to. A break is a mistake made on purpose, which the walk must find.
 */
#ifndef CLEAVE_TESTS_MODEL_H
#define CLEAVE_TESTS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct model_walk model_walk;

/* A transition of a model. add_successors calls model_add_successor for each state that the
 * transition leads to. */
typedef struct model_step {
  const char *name;
  void (*add_successors)(model_walk *w, const void *state);
} model_step;

typedef struct model {
  const char *name;
  size_t state_bytes; /* size of a state, which is compared byte by byte */
  const model_step *steps;
  size_t n_steps;
  void (*write_initial_state)(void *ret); /* writes the initial state to zeroed memory */
  /* returns the rule that the state violates; NULL: none */
  const char *(*find_violation)(const void *state);
  /* true: the state may have no successor; else that is a deadlock */
  bool (*may_end_here)(const void *state);
  const char *const *break_names;
  /* [n_breaks] variant of the model in which the break shows; NULL: variant 0 for all */
  const uint8_t *break_variants;
  size_t n_breaks;
} model;

/* Adds a successor. subject: number of the lane, master or step that the transition concerns, for
 * the trace. */
void model_add_successor(model_walk *w, const void *state, unsigned subject);

/* True while the walk must find a violation that the break `number`, an index in model.break_names,
 * causes. */
bool model_has_active_break(unsigned number);

/* Walks all states of a model, without a break (-1) or with one. Prints "ok" or "not ok", and the
 * trace to a violated rule if `prints_trace`. Returns true if the result is as expected: no
 * violation without a break, one with it. */
bool model_walk_all_states(const model *m, int break_number, bool prints_trace);

/* The two models of this folder. scale: 0 takes a second or two, 1 is for `make model`. variant: 0
 * or 1. */
const model *make_lanes_model(int scale, int variant);
const model *make_runs_model(int scale, int variant);

#endif
