/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a module: its memory, plans, shared and tied parameters, and state.
 */
#ifndef CLEAVE_MODULE_INT_H
#define CLEAVE_MODULE_INT_H

#include "common/engine/engine.h"

/* MAX_PLANS: most plans of a module. MAX_IDLE_PLANS: most idle plans of a graph whose inputs have
 * batch sizes of their own; such a graph may see many sizes, and each plan holds memory. */
enum { MAX_PLANS = 32, MAX_IDLE_PLANS = 4 };

typedef struct clv_module_plan {
  /* batch size of each input; the same for all inputs, unless the graph joins batches */
  int64_t batch[CLV_MAX_INPUTS];
  bool is_training;
  uint32_t input_grads; /* bit i: computes the gradient of input i */
  clv_plan *plan;       /* the plan; NULL: the entry is unused */
  /* n_calls: number of clv_calls made for this plan; n_calls_in_use: number in use */
  uint32_t n_calls, n_calls_in_use;
  bool is_charged;
  size_t bytes;         /* bytes of the plan */
  size_t charged_bytes; /* bytes of the plan charged to the pool */
  uint64_t last_used;   /* value of clv_module.n_plan_uses when the plan was last used */
} clv_module_plan;

struct clv_module {
  clv_module_options o; /* options given to clv_module_new, without its lists */
  char name[CLV_WIRE_NAME + 1], device[CLV_WIRE_NAME + 1];
  clv_graph *graph;
  clv_params *params;
  int n_inputs;
  clv_dtype in_dtype[CLV_MAX_INPUTS];

  /* The memory from here on is the backend's, as are the moments and the blocks of
   * clv_module_alloc_block. */
  void *block; /* block with the parameters, followed by the buffers */
  /* [params->n] tensors of shared parameters, each with a reference; NULL: none */
  clv_tensor **shared_params;
  const void **shared_data; /* [params->n] memory of the tensors in shared_params, for plans */
  void *saved_buffers;      /* saved copy of the buffers, restored when a step is discarded */
  clv_optim *optim;         /* optimiser of the module; NULL: no trainable parameters */
  /* recorder of the plans' work (CUDA graphs); NULL: the backend has none */
  clv_recorder *recorder;
  uint64_t version;            /* version of the parameters, for weight caches of plans */
  size_t bytes, charged_bytes; /* bytes of the module; bytes charged to the pool */
  uint64_t charged_on_device;  /* bytes of the snapshot charged to the device */
  uint32_t n_learning;         /* number of parameters that are trainable and not frozen */
  /* [n_learning] extents of the trained parameters in `block` */
  clv_extent *learning_extents;
  /* [n_learning] buffer in which a planned step computes the sum of squares of each trained
   * parameter's gradient, to check that the gradients are finite */
  double *sums;

  /* [params->n_ties] owner of each tied parameter; the module itself if it owns the parameter */
  clv_module **owners;
  uint32_t n_pins; /* number of modules that are tied to this module; atomic */

  clv_module_plan plans[MAX_PLANS];
  int n_plans;
  uint64_t n_plan_uses;
  clv_tensor *snapshot;   /* parameters and moments from before the last revertible APPLY */
  int64_t snapshot_steps; /* optimiser step count of the snapshot */
  clv_tensor **blocks;    /* blocks made by clv_module_alloc_block, each with a reference */
  size_t n_blocks, cap_blocks;
  /* Error of a device during a change of the module's state. The state is unknown then, so no work
   * of the module runs. code CLV_OK: no error. */
  clv_err device_error;

  /* [params->n] parameter i is withheld; NULL: none is */
  bool *withheld_params;
  char withheld_reason[CLV_ERR_TEXT]; /* reason why the withheld parameters are withheld */

  uint32_t n_old_weights; /* number of copies of old parameters in memory */
  uint64_t steps;         /* optimiser steps; atomic */
  clv_module_counts counts;
  clv_pool *pool; /* pool of the module's session; NULL before the module is added to a node */
};

/* ---- tied parameters (module_tie.c) ---------------------------------------------------------- */

/* Finds the owners of tied parameters and pins them until clv_module_unpin_owners. */
clv_code clv_module_resolve_ties(clv_module *m, const clv_module_options *o,
                                 clv_err *err) CLV_USE_RESULT;
void clv_module_unpin_owners(clv_module *m);
/* True if m has a parameter of `owner`, another module. */
bool clv_module_is_tied_to(const clv_module *m, const clv_module *owner);
/* True if one of the module's tied parameters is trainable. */
bool clv_module_has_trainable_ties(const clv_module *m);
/* Returns the version of all parameters that the module reads, including tied parameters of other
 * modules. */
uint64_t clv_module_version(const clv_module *m);
/* Adds the gradient of tie `i` to the gradients of the parameter's owner, and zeroes it. gradients,
 * owner: gradient blocks of m and of the owner. */
clv_code clv_module_add_tied_gradient(const clv_module *m, int i, void *gradients, void *owner,
                                      clv_err *err) CLV_USE_RESULT;

/* ---- counters of a module -------------------------------------------------------------------- */

/* Counters are written by the compute thread alone and read by any. */
static inline void clv_counter_add(uint64_t *counter, uint64_t amount) {
  __atomic_store_n(counter, *counter + amount, __ATOMIC_RELAXED);
}

/* Returns the plan for the batch size of each input and for the set of input gradients; makes the
 * plan if it is missing. */
clv_code clv_module_plan_for(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool is_training,
                             uint32_t input_grads, clv_module_plan **ret,
                             clv_err *err) CLV_USE_RESULT;
/* Allocates a tensor from the session's pool. If the module's device is host memory, also charges
 * the device's account and adds the bytes to *charged, until clv_module_uncharge_tensors sets that
 * to 0. */
clv_code clv_module_alloc_tensor(const clv_module *m, clv_pool *pool, clv_dtype dtype,
                                 const clv_shape *shape, uint64_t *charged, clv_tensor **ret,
                                 clv_err *err) CLV_USE_RESULT;
void clv_module_uncharge_tensors(const clv_module *m, uint64_t *charged);

/* Takes an idle clv_call of a plan, or makes one and charges it to the session's quota. */
clv_code clv_module_call_get(clv_module *m, clv_module_plan *p, clv_call **ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_module_call_put(clv_module_plan *p, clv_call *call);

/* Allocates `bytes` of the memory in which the module's kernels compute, as a CLV_U8 tensor. Not
 * initialised. On a device the block is cached for reuse after the last reference is dropped.
 * Always charged; *charged as for clv_module_alloc_tensor. */
clv_code clv_module_alloc_block(clv_module *m, size_t bytes, uint64_t *charged, clv_tensor **ret,
                                clv_err *err) CLV_USE_RESULT;
void clv_module_blocks_free(clv_module *m);
/* Allocates a tensor in memory of the module's device; tensor->device is the module's backend. */
clv_code clv_module_alloc_device_tensor(clv_module *m, clv_dtype dtype, const clv_shape *shape,
                                        clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* True if m can read tensors of module `from` without a copy through host memory. */
bool clv_module_can_copy_from(const clv_module *m, const clv_module *from);
/* Counts the bytes of tensor t, which module `from` made, as received by module m. */
void clv_module_count_transfer(clv_module *m, const clv_module *from, const clv_tensor *t);

/* Copies within memory of the module's backend, and waits for the copy. An error is recorded in the
 * module's device_error. */
void clv_module_copy_bytes(clv_module *m, void *dst, const void *src, size_t bytes);

/* Waits for the device. Returns an error of the device, and records it in the module's
 * device_error. */
clv_code clv_module_finish(clv_module *m, clv_err *err) CLV_USE_RESULT;
clv_code clv_module_check_device(const clv_module *m, clv_err *err) CLV_USE_RESULT;

/* Charge `bytes` to the session's pool and to the device's account, or discharge them. */
clv_code clv_module_charge(const clv_module *m, clv_pool *pool, size_t bytes,
                           clv_err *err) CLV_USE_RESULT;
void clv_module_discharge(const clv_module *m, clv_pool *pool, size_t bytes);

/* Allocate, fill and restore the snapshot of parameters, moments and step count. */
clv_code clv_module_prepare_snapshot(clv_module *m, clv_err *err) CLV_USE_RESULT;
void clv_module_take_snapshot(clv_module *m);
void clv_module_restore_snapshot(clv_module *m);

/* Save and restore the running statistics (buffers) of the module. */
void clv_module_save_buffers(clv_module *m);
void clv_module_restore_buffers(clv_module *m);

size_t clv_module_buffer_bytes(const clv_module *m);

/* Checks that every shared parameter has a tensor; else CLV_INTERNAL. */
clv_code clv_module_check_complete(const clv_module *m, clv_err *err) CLV_USE_RESULT;

/* Sets the pool of the session that the module belongs to. */
void clv_module_set_pool(clv_module *m, clv_pool *pool);

uint32_t clv_module_index(const clv_module *m);

/* Reserves pool tensors for the most that a step holds at once: an activation and a gradient of
 * each micro-batch on either side of the module. */
clv_code clv_module_reserve(const clv_module *m, clv_pool *pool, clv_err *err) CLV_USE_RESULT;

#endif
