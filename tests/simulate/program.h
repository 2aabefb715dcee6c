/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs on the C API. The statements of a program follow from its seed alone, never from
 * results. So runs of the same seed can be compared line by line, wherever the modules are and
 * whatever the network does.
 */
#ifndef CLEAVE_SIMULATE_PROGRAM_H
#define CLEAVE_SIMULATE_PROGRAM_H

#include "common/base/base.h"
#include "master/api/cleave.h"

enum { SIM_PLACES = 4 }; /* the master and three workers */

/* One statement of a program, with its result. */
typedef struct sim_line {
  char description[72];
  /* the statement was not executed, because a value that it needs had failed */
  bool is_skipped;
  bool context_has_failure; /* another statement of its context has failed or was skipped */
  /* executed after the lost worker came back, so its result must be as without the loss */
  bool is_after_rejoin;
  /* the statement's error may report the failure of another statement */
  bool may_report_other_failure;
  uint32_t needed_places; /* bit per place: places whose loss this statement may report */
  uint32_t
      /* bit per place: needed_places, and the places on which its numbers depend */
      depended_places;
  uint64_t began_ns, ended_ns;
  cleave_error result; /* result of the call; the status is CLEAVE_OK if it succeeded */
  size_t at, n_bytes;  /* position and length of its numbers in the record */
} sim_line;

typedef struct sim_record {
  sim_line *lines;
  size_t n, cap_lines;
  unsigned char *number_bytes;
  size_t n_number_bytes, cap_number_bytes;
  uint64_t
      after_rejoin_ns; /* time in ns at which only statements with `is_after_rejoin` are left */
} sim_record;

void sim_record_free(sim_record *r);

typedef struct sim_environment {
  cleave_runtime *runtime;
  bool is_all_at_master; /* all modules are at the master */
  bool has_threads;      /* the runtime has threads, so pending work runs by itself */
  clv_clock clock;
  /* called before each statement; NULL: not called */
  void (*pause_program)(void *user);
  void (*wait_for_notice)(void *user); /* waits until every loss has been noticed */
  /* returns how many backwards of a context the workers were asked to run; NULL: not checked */
  uint32_t (*count_backwards)(void *user, uint64_t context);
  /* makes another caller use a module of a place, which the program must not notice; NULL: not
   * called. random_bits: choose the module's calls */
  void (*use_as_intruder)(void *user, uint32_t place, const cleave_module *m, uint64_t random_bits);
  /* called after each statement; NULL: not called */
  void (*report_line)(void *user, const sim_record *record, const sim_line *line);
  void *user;
} sim_environment;

/* Runs the program of the seed until all its contexts are closed and its kept values released.
 * Clears *ret, then fills it. */
void sim_run_program(uint64_t seed, const sim_environment *environment, sim_record *ret);
/* Frees the memory that programs share. */
void sim_free_programs(void);

#endif
