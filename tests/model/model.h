/* SPDX-License-Identifier: Apache-2.0
 *
 * model: a breadth-first walk through all states of a small model, and the shortest trace to a
 * state that breaks a rule. A model is a table of steps; a step adds each state that it can lead
 * to. A break is a mistake on purpose, which the walk has to find.
 */
#ifndef CLEAVE_TESTS_MODEL_H
#define CLEAVE_TESTS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct model_walk model_walk;

/* A transition. take: calls model_next for each successor of `state`. */
typedef struct model_step {
  const char *name;
  void (*take)(model_walk *w, const void *state);
} model_step;

typedef struct model {
  const char *name;
  size_t bytes; /* size of a state; states are compared byte by byte */
  const model_step *steps;
  size_t n_steps;
  void (*start)(void *ret); /* writes the first state to zeroed memory */
  /* returns the rule that the state breaks; NULL: none */
  const char *(*violation)(const void *state);
  bool (*may_stop)(const void *state); /* true: a state without successors is no deadlock */
  const char *const *breaks;
  const uint8_t *break_variants; /* [n_breaks] the variant in which each shows; NULL: 0 */
  size_t n_breaks;
} model;

/* Adds a successor. subject: number of the lane, master or step that the transition is about. */
void model_next(model_walk *w, const void *state, unsigned subject);

/* True while the walk is to find the break `number` (its index in model.breaks). */
bool model_has_break(unsigned number);

/* Walks a model, without a break (-1) or with one. Prints a line that begins with `ok` or `not ok`,
 * and the trace of a rule that was broken if `prints_trace`. Returns true if the outcome is the one
 * wanted: no rule broken, or with a break, one. */
bool model_check(const model *m, int break_number, bool prints_trace);

/* The two models. scale: 0 for a second or two, 1 for `make model`. variant: 0 or 1. */
const model *model_of_lanes(int scale, int variant);
const model *model_of_runs(int scale, int variant);

#endif
