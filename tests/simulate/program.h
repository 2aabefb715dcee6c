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

/* One statement of a program, with its result. */
typedef struct sim_line {
  char what[72];
  bool skipped;             /* not executed, because a value that it needs had failed */
  bool context_has_failure; /* another statement of its context has failed or was skipped */
  /* executed after the lost worker came back, so its result must be as without the loss */
  bool is_after_rejoin;
  bool may_report_other_failure; /* its error may report the failure of another statement */
  uint32_t needs;                /* bit per place: places whose loss it may report */
  uint32_t depends_on; /* bit per place: `needs`, and the places that its numbers depend on */
  uint64_t began, ended;
  cleave_error error; /* result of the call; the status is CLEAVE_OK if it succeeded */
  size_t at, bytes;   /* position and length of its numbers in the record */
} sim_line;

typedef struct sim_record {
  sim_line *lines;
  size_t n, cap;
  unsigned char *numbers;
  size_t n_numbers, cap_numbers;
  uint64_t comes_back; /* time in ns at which only statements with `is_after_rejoin` are left */
} sim_record;

void sim_record_done(sim_record *r);

typedef struct sim_stand {
  cleave_runtime *runtime;
  bool home;    /* all modules are at the master */
  bool threads; /* the runtime has threads, so pending work runs by itself */
  clv_clock clock;
  /* called before each statement; NULL: not called */
  void (*between)(void *user);
  void (*settle)(void *user); /* waits until every loss has been noticed */
  /* returns how many backwards of a context workers were asked for; NULL: not checked */
  uint32_t (*passes)(void *user, uint64_t context);
  /* makes another caller use a module of a place, which the program must not notice; NULL: not
   * called. what: random bits */
  void (*intrude)(void *user, uint32_t place, const cleave_module *m, uint64_t what);
  /* called after each statement; NULL: not called */
  void (*line)(void *user, const sim_record *record, const sim_line *line);
  void *user;
} sim_stand;

/* Runs the program of the seed until all its contexts are closed and its kept values released.
 * Clears *ret, then fills it. */
void sim_program(uint64_t seed, const sim_stand *stand, sim_record *ret);
/* Frees the memory that programs share. */
void sim_programs_done(void);

#endif
