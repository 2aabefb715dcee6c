/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated device that implements the function table clv_vendor of kernels/cuda/cuda.h.
 *
 * The simulation runs operations late, and in an order drawn from a seed. The simulation draws
 * which stream advances, and several blocks of a launch run at the same time. Operations are
 * ordered only by enqueueing, events, barriers, shuffles and the functions named `finish`. The
 * simulation reports exactly this order to thread sanitizer. Device memory cannot be touched by the
 * code of the host.
 *
 * Everything that is undefined on a real device is a fault here: the simulation prints it with the
 * stack of its lines and ends the process.
 *
 * The simulation does not show a device's weaker memory order, the lockstep of the threads of a
 * warp, the rounding of sums by NVIDIA's libraries, or speed.
 *
 * A process has one simulation. The table's functions may be called from any thread; one call runs
 * at a time.
 */
#ifndef CLEAVE_TESTS_GPU_SIM_H
#define CLEAVE_TESTS_GPU_SIM_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clv_sim_options {
  uint64_t seed;       /* seed of the random order in which streams advance */
  int n_devices;       /* number of devices; 0: one */
  size_t memory_bytes; /* memory of each device; 0: 1 GiB */
  bool no_graphs;      /* captures are refused, as by a device without graphs */
  bool no_cudnn;       /* cuDNN is reported as absent */
  int capability;      /* compute capability times 10; 0: 90 */
  /* Planned failures. Each of the next four fields is the number of the call that fails; 1 is the
   * first call after clv_sim_make_vendor; 0: none fails. */
  uint64_t failing_allocation; /* allocation of device memory that fails */
  uint64_t failing_launch;  /* kernel launch that fails; after it every call for its device fails */
  uint64_t failing_capture; /* capture that fails when it ends */
  uint64_t losing_call;     /* call of any function with a clv_err: the device is lost there */
  /* 1 + index of the device to which the planned failures apply; 0: any device */
  int failing_device;
} clv_sim_options;

typedef struct clv_sim_counts {
  uint64_t n_allocations, n_host_allocations, n_launches, n_captures, n_graph_launches, n_calls;
  uint64_t n_products; /* products and convolutions of the libraries */
  /* calls that block the host: functions named `finish`, the end of a stream, and taking or freeing
   * page-locked memory */
  uint64_t n_waits;
  uint64_t n_default_stream_calls; /* calls without a stream, which are refused */
  uint64_t bytes_to_device, bytes_to_host, bytes_between_devices;
  uint64_t dirty_pinned_bytes; /* page-locked bytes that were not zero when they were freed */
} clv_sim_counts;

/* Returns the function table of a new simulation and resets all counts. Free everything that was
 * made with the previous table first. */
const clv_vendor *clv_sim_make_vendor(const clv_sim_options *options);

/* Returns the bytes of device memory that a graph of so many launches takes in the simulation. */
size_t clv_sim_get_graph_bytes(size_t launches);

clv_sim_counts clv_sim_get_counts(void);
/* returns how many of the calls counted in n_waits the calling thread made */
uint64_t clv_sim_count_waits_of_thread(void);

/* Returns how many allocations, streams, events, graphs and products have not been freed, and
 * prints the call stack that made each of them. */
size_t clv_sim_count_leaks(void);

#ifdef __cplusplus
}
#endif
#endif
