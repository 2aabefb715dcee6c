/* SPDX-License-Identifier: Apache-2.0
 *
 * sim: a simulated device, for the table of kernels/cuda/cuda.h.
 *
 * It does what is asked of it late, and in an order drawn from a seed. Each stream goes on when it
 * is drawn, and several blocks of a launch are under way at once. Only enqueueing, events,
 * barriers, shuffles and the functions called `finish` order anything; thread sanitizer knows that
 * much and no more. Device memory cannot be touched while the host runs.
 *
 * What a real device would leave undefined is a fault: it is printed with the stack of its lines,
 * and the process ends.
 *
 * What it cannot show: the weaker order of a device's memory, how threads of one warp go in step,
 * the sums of NVIDIA's libraries, speed.
 *
 * There is one simulation in a process. The table's functions may be called from any thread; one
 * runs at a time.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_H
#define CLEAVE_TESTS_GPU_SIM_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clv_sim_options {
  uint64_t seed;       /* of the order */
  int devices;         /* 0: one */
  size_t memory_bytes; /* of each device; 0: a GiB */
  bool no_graphs;      /* nothing can be captured */
  bool no_cudnn;       /* as where cuDNN is absent */
  int capability;      /* 0: 90 */
  /* What goes wrong, by the count since clv_sim_vendor; 0: never. */
  uint64_t fail_take; /* this taking of device memory finds none */
  uint64_t
      fail_launch; /* this launch fails, and with it all that its device is asked from then on */
  uint64_t fail_capture; /* this capture fails at its end */
  uint64_t lose_at;      /* at this call of a function that takes a clv_err the device is gone */
  int failing;           /* 1 + the device whose calls these are; 0: of any */
} clv_sim_options;

typedef struct clv_sim_counts {
  uint64_t takes, host_takes, launches, captures, graph_launches, calls;
  uint64_t products; /* and convolutions, of the libraries */
  /* Calls that hold up the host: functions called `finish`, the end of a stream, and page-locked
   * memory that is taken or given back. */
  uint64_t waits;
  uint64_t default_stream; /* what was asked of no stream, and refused */
  uint64_t put_bytes, get_bytes, copy_bytes;
  uint64_t host_left; /* bytes of page-locked memory that were not 0 when it was given back */
} clv_sim_counts;

/* The table. Everything that was made with it before must have been freed; counts begin anew. */
const clv_vendor *clv_sim_vendor(const clv_sim_options *options);

/* What the device says that a graph of so many launches takes: its own figure. */
size_t clv_sim_graph_bytes(size_t launches);

clv_sim_counts clv_sim_count(void);
uint64_t clv_sim_waits_here(void); /* those of the thread that asks, since it began */

/* How many allocations, streams, events, graphs and products are left, each printed with the lines
 * that made it. */
size_t clv_sim_leaks(void);

#ifdef __cplusplus
}
#endif
#endif
