/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the walk through all states of a model (model.h). States are numbered in the order in
 * which they are found, and a hash table finds a state again. The parent of each state gives the
 * shortest trace.
 */
#include "tests/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_STATES = 40000000, NO_PARENT = -1 };

typedef struct reached_from {
  int32_t parent_state; /* number of the state before; NO_PARENT: the initial state */
  uint8_t step, lane_or_master;
} reached_from;

struct model_walk {
  const model *m;
  uint8_t *states;       /* [cap_states * m->state_bytes] bytes of all states that were found */
  reached_from *origins; /* [cap_states] how each state was reached */
  size_t n, cap_states;
  int32_t *slot_table; /* [table_size] hash table, a power of two; numbers of states, -1: free */
  size_t table_size, n_transitions, n_successors;
  int32_t expanded_state; /* number of the state that is expanded */
  uint8_t step;           /* index of the step whose successors are added */
};

static int active_break = -1;

bool model_has_active_break(unsigned number) { return active_break == (int)number; }

static void *check_memory(void *memory) {
  if (memory) return memory;
  fprintf(stderr, "out of memory\n");
  exit(2);
}

/* FNV-1a over eight bytes at a time */
static uint64_t hash_state(const uint8_t *state, size_t bytes) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325), word;
  for (size_t i = 0; i < bytes; i += sizeof word) {
    word = 0;
    memcpy(&word, state + i, bytes - i < sizeof word ? bytes - i : sizeof word);
    hash = (hash ^ word) * UINT64_C(0x100000001b3);
    hash ^= hash >> 29;
  }
  return hash;
}

static uint8_t *get_state(const model_walk *w, int32_t state_number) {
  return w->states + (size_t)state_number * w->m->state_bytes;
}

static size_t find_slot(const model_walk *w, const uint8_t *state) {
  size_t slot = hash_state(state, w->m->state_bytes) & (w->table_size - 1);
  while (w->slot_table[slot] >= 0 &&
         memcmp(get_state(w, w->slot_table[slot]), state, w->m->state_bytes) != 0)
    slot = (slot + 1) & (w->table_size - 1);
  return slot;
}

static void grow_table(model_walk *w) {
  w->table_size = w->table_size ? 2 * w->table_size : 1 << 16;
  w->slot_table = check_memory(realloc(w->slot_table, w->table_size * sizeof *w->slot_table));
  memset(w->slot_table, 0xff, w->table_size * sizeof *w->slot_table);
  for (size_t i = 0; i < w->n; i++)
    w->slot_table[find_slot(w, get_state(w, (int32_t)i))] = (int32_t)i;
}

static void add_state(model_walk *w, const void *state, reached_from from) {
  if (2 * (w->n + 1) > w->table_size) grow_table(w);
  size_t slot = find_slot(w, state);
  if (w->slot_table[slot] >= 0) return;
  if (w->n == MAX_STATES) {
    fprintf(stderr, "%s: more than %d states\n", w->m->name, MAX_STATES);
    exit(2);
  }
  if (w->n == w->cap_states) {
    w->cap_states = w->cap_states ? 2 * w->cap_states : 1 << 14;
    w->states = check_memory(realloc(w->states, w->cap_states * w->m->state_bytes));
    w->origins = check_memory(realloc(w->origins, w->cap_states * sizeof *w->origins));
  }
  memcpy(w->states + w->n * w->m->state_bytes, state, w->m->state_bytes);
  w->origins[w->n] = from;
  w->slot_table[slot] = (int32_t)w->n++;
}

void model_add_successor(model_walk *w, const void *state, unsigned subject) {
  w->n_transitions++;
  w->n_successors++;
  add_state(w, state, (reached_from){w->expanded_state, w->step, (uint8_t)subject});
}

/* Expands a state. Returns the rule that the state violates; NULL: none. Works on a copy, because a
 * step may reallocate the states. */
static const char *add_successors_of_state(model_walk *w, int32_t state_number) {
  uint8_t state[256];
  memcpy(state, get_state(w, state_number), w->m->state_bytes);
  const char *violated_rule = w->m->find_violation(state);
  if (violated_rule) return violated_rule;
  w->expanded_state = state_number;
  w->n_successors = 0;
  for (w->step = 0; w->step < w->m->n_steps; w->step++)
    w->m->steps[w->step].add_successors(w, state);
  return w->n_successors || w->m->may_end_here(state) ? NULL : "nothing can happen any more";
}

static size_t get_trace_length(const model_walk *w, int32_t state_number) {
  size_t n = 0;
  for (; w->origins[state_number].parent_state != NO_PARENT; n++)
    state_number = w->origins[state_number].parent_state;
  return n;
}

static void print_trace(const model_walk *w, int32_t state_number) {
  const reached_from *o = &w->origins[state_number];
  if (o->parent_state == NO_PARENT) return;
  print_trace(w, o->parent_state);
  printf("    %s %u\n", w->m->steps[o->step].name, o->lane_or_master);
}

static void print_result(const model_walk *w, const char *violated_rule, int32_t last_state,
                         bool is_expected, double seconds) {
  const char *name = active_break < 0 ? "" : w->m->break_names[active_break];
  printf("%s %s_%s%s (", is_expected ? "ok" : "not ok", w->m->name, name[0] ? "catches_" : "hold",
         name);
  if (violated_rule)
    printf("\"%s\" after %zu transitions; ", violated_rule, get_trace_length(w, last_state));
  printf("%zu states, %zu transitions, %.1f s)\n", w->n, w->n_transitions, seconds);
}

bool model_walk_all_states(const model *m, int break_number, bool prints_trace) {
  model_walk w = {.m = m};
  uint8_t first[256] = {0};
  const char *violated_rule = NULL;
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  active_break = break_number;
  m->write_initial_state(first);
  add_state(&w, first, (reached_from){.parent_state = NO_PARENT});
  int32_t i = 0;
  for (; !violated_rule && i < (int32_t)w.n; i++) violated_rule = add_successors_of_state(&w, i);
  bool is_expected = (break_number >= 0) == (violated_rule != NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  print_result(&w, violated_rule, i - 1, is_expected,
               (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
  if (violated_rule && (prints_trace || !is_expected)) print_trace(&w, i - 1);
  fflush(stdout);
  free(w.states);
  free(w.origins);
  free(w.slot_table);
  active_break = -1;
  return is_expected;
}
