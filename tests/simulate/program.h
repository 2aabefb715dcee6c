/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on the C API. What a program does follows from its seed alone, never from what
 * it sees: so the same seed can be compared line by line wherever its modules are and whatever the
 * network does.
 */
#ifndef CLEAVE_SIMULATE_PROGRAM_H
#define CLEAVE_SIMULATE_PROGRAM_H

#include "common/base/base.h"
#include "master/api/cleave.h"

enum { SIM_PLACES = 4 }; /* the master and three workers */

/* One thing that a program did. */
typedef struct sim_line {
  char what[72];
  bool skipped;    /* what it needs had failed before */
  bool shaken;     /* something in its context has, or was not done for it */
  bool firm;       /* whoever was lost is back: it is what it would be without the loss */
  bool anybody;    /* it may say what happened to somebody else's work */
  uint32_t needs;  /* places, a bit each, whose loss it may report */
  uint32_t stands; /* the same with everything that its numbers depend on */
  uint64_t began, ended;
  cleave_error error; /* its status is CLEAVE_OK for what went well */
  size_t at, bytes;   /* its numbers */
} sim_line;

typedef struct sim_record {
  sim_line *lines;
  size_t n, cap;
  unsigned char *numbers;
  size_t n_numbers, cap_numbers;
  uint64_t comes_back; /* when the program has done all but what is firm */
} sim_record;

void sim_record_done(sim_record *r);

typedef struct sim_stand {
  cleave_runtime *runtime;
  bool home;    /* all modules at the master */
  bool threads; /* the runtime has threads: what is to come begins by itself */
  clv_clock clock;
  /* Before each thing that the program does; may be NULL. */
  void (*between)(void *user);
  void (*settle)(void *user); /* long enough to hear of every loss */
  /* Backwards of a context that workers were asked for; may be NULL. */
  uint32_t (*passes)(void *user, uint64_t context);
  /* Another caller of a module at a place does something that the program must not feel; may be
   * NULL. what: random bits. */
  void (*intrude)(void *user, uint32_t place, const cleave_module *m, uint64_t what);
  /* Told of each line when it is done; may be NULL. */
  void (*line)(void *user, const sim_record *record, const sim_line *line);
  void *user;
} sim_stand;

/* Runs the program of the seed, until all its contexts are closed and what it kept is released.
 * Fills *ret, which is emptied first. */
void sim_program(uint64_t seed, const sim_stand *stand, sim_record *ret);
/* Memory that programs share. */
void sim_programs_done(void);

#endif
