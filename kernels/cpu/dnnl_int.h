/* SPDX-License-Identifier: Apache-2.0
 *
 * dnnl_int: oneDNN primitives with their memory objects, which are run on pointers to the values.
 */
#ifndef CLEAVE_KERNELS_CPU_DNNL_INT_H
#define CLEAVE_KERNELS_CPU_DNNL_INT_H

#include <signal.h>

#include "kernels/cpu/cpu_int.h"
#include "kernels/cpu/onednn_int.h"

enum { MAX_PRIMITIVE_ARGS = 6 };

/* A primitive with the memory objects of its arguments. */
typedef struct cpu_primitive {
  dnnl_primitive_t primitive; /* NULL: there is no primitive */
  dnnl_exec_arg_t args[MAX_PRIMITIVE_ARGS];
  /* address of the values to which each memory object points now */
  void *addresses[MAX_PRIMITIVE_ARGS];
  int n_args;
  size_t scratch_bytes; /* size of the scratchpad that the caller provides */
  const char *impl;     /* oneDNN's name of the implementation, static text */
} cpu_primitive;

/* Call clv_cpu_hold_signals before oneDNN and before functions that may start OpenMP threads, and
 * clv_cpu_release_signals after them. Signals that arrive for the calling thread in between are
 * delivered at the release; the other threads of its OpenMP team keep their signals blocked. */
sigset_t clv_cpu_hold_signals(void);
void clv_cpu_release_signals(const sigset_t *old_mask);

/* Fails unless `status` is dnnl_success; the error says what `status` means. */
clv_code clv_cpu_dnnl_check(dnnl_status_t status, const char *operation,
                            clv_err *err) CLV_USE_RESULT;

/* Writes the process's engine to *ret. The first call makes it; it is never freed. */
clv_code clv_cpu_get_engine(dnnl_engine_t *ret, clv_err *err) CLV_USE_RESULT;

/* Frees oneDNN's cached primitives: the `trim` function of the backend. */
void clv_cpu_trim_cache(const clv_backend *b);

/* Makes primitive attributes with which the caller provides the scratchpad. */
clv_code clv_cpu_make_dnnl_attr(dnnl_primitive_attr_t *ret, clv_err *err) CLV_USE_RESULT;

/* One argument of a primitive: which one (DNNL_ARG_*), and the query and index by which oneDNN
 * describes its memory. */
typedef struct cpu_primitive_arg {
  int arg;
  dnnl_query_t query;
  int index;
} cpu_primitive_arg;

/* Makes the primitive p from the description pd. p has the n listed arguments, and after them a
 * scratchpad if it needs one. Free it with clv_cpu_prim_done. */
clv_code clv_cpu_prim_init(cpu_primitive *p, const_dnnl_primitive_desc_t pd,
                           const cpu_primitive_arg *args, int n, clv_err *err) CLV_USE_RESULT;

/* Makes p a reorder. clv_cpu_prim_run then takes the pointers {source, destination, scratchpad}. */
clv_code clv_cpu_prim_init_reorder(cpu_primitive *p, cpu_const_memory_desc src,
                                   cpu_const_memory_desc dst, clv_err *err) CLV_USE_RESULT;

/* Runs p on the pointers, which are in the order of the arguments of clv_cpu_prim_init, with the
 * scratchpad last. */
clv_code clv_cpu_prim_run(cpu_primitive *p, dnnl_stream_t stream, const void *const *pointers,
                          clv_err *err) CLV_USE_RESULT;

void clv_cpu_prim_done(cpu_primitive *p);

#endif
