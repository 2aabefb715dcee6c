/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a module: its memory and plans.
 */
#ifndef CLEAVE_MODULE_INT_H
#define CLEAVE_MODULE_INT_H

#include "common/engine/engine.h"

/* Of graphs whose inputs have sizes of their own, of which there may be many, few idle plans are
 * kept: each has its memory. */
enum { MAX_PLANS = 32, KEPT_PLANS = 4 };

typedef struct clv_module_plan {
  int64_t batch[CLV_MAX_INPUTS]; /* N of each input, one for all unless the graph joins some */
  bool training;
  uint32_t input_grads;         /* bit i: the gradient of input i is computed */
  clv_plan *plan;               /* NULL: the place is free */
  uint32_t calls, calls_in_use; /* made, in use */
  bool is_charged;
  size_t bytes;         /* of those of the module, */
  size_t charged_bytes; /* and of those that it was charged */
  uint64_t last_used;   /* when, as counted in the module */
} clv_module_plan;

struct clv_module {
  clv_module_options o; /* graph and backend are used, the lists are not kept */
  char name[CLV_WIRE_NAME + 1], device[CLV_WIRE_NAME + 1];
  clv_graph *graph;
  clv_params *params;
  int n_inputs;
  clv_dtype in_dtype[CLV_MAX_INPUTS];

  /* In the backend's memory, as are moments and what clv_module_block gives. */
  void *block; /* parameters, then buffers */
  clv_tensor *
      *shared_params; /* [params->n] of those that are lent, each with a reference; NULL: none, */
  const void **shared_data;   /* [params->n] and where they are, for plans */
  void *saved_buffers;        /* buffers as they were, to be put back when a step is not taken */
  clv_optim *optim;           /* NULL when nothing learns here */
  clv_recorder *recorder;     /* NULL where the backend records nothing */
  uint64_t version;           /* of the parameters, for the plans' weight caches */
  size_t bytes, charged;      /* charged: to the pool, given back with it */
  uint64_t charged_on_device; /* charged to the device alone: of the snapshot */
  uint32_t n_learning;        /* trainable and not frozen: */
  clv_extent *learning;       /* where they stand in the block */
  double *sums; /* of squares of their gradients, while a planned step looks at them */

  clv_module **owners; /* [params->n_ties] of what is tied; itself where that is in its own block */
  uint32_t pins;       /* modules that are tied to it; atomic */

  clv_module_plan plans[MAX_PLANS];
  int n_plans;
  uint64_t plan_uses;
  clv_tensor *snapshot;   /* what the last APPLY of a context changed, as it was before: */
  int64_t snapshot_steps; /* parameters and moments, and the step count */
  clv_tensor **blocks;    /* that clv_module_block has made, each with a reference */
  size_t n_blocks, cap_blocks;
  /* What a device has said while the module's state was being changed: it is not known any more,
   * and nothing is computed from it. code is CLV_OK until then. */
  clv_err device_error;

  bool *withheld;                     /* [params->n]; NULL: none */
  char withheld_reason[CLV_ERR_TEXT]; /* of its state */

  uint32_t n_old_weights; /* copies of parameters of before a step that are alive */
  uint64_t steps;         /* of the optimiser, taken; atomic */
  clv_module_counts counts;
  clv_pool *pool; /* of the session it belongs to; NULL before */
};

/* ---- ties (module_tie.c) --------------------------------------------------------------------- */

/* Finds the owners, each of which is pinned until clv_module_unpin_owners. */
clv_code clv_module_resolve_ties(clv_module *m, const clv_module_options *o,
                                 clv_err *err) CLV_USE_RESULT;
void clv_module_unpin_owners(clv_module *m);
/* Whether m has a parameter of `owner`, another one. */
bool clv_module_is_tied_to(const clv_module *m, const clv_module *owner);
/* Whether what it has of others, or twice, learns. */
bool clv_module_has_trainable_ties(const clv_module *m);
/* Of all that its kernels read of parameters. */
uint64_t clv_module_version(const clv_module *m);
/* The gradient of tie `i` becomes part of the owner's, and is 0. owner: that of its module. */
clv_code clv_module_add_tied_gradient(const clv_module *m, int i, void *gradients, void *owner,
                                      clv_err *err) CLV_USE_RESULT;

/* ---- counters -------------------------------------------------------------------------------- */

/* Counters are written by the compute thread alone and read by any. */
static inline void clv_counter_add(uint64_t *counter, uint64_t by) {
  __atomic_store_n(counter, *counter + by, __ATOMIC_RELAXED);
}

/* The plan for batch sizes (N of each input) and a set of input gradients, made if missing. */
clv_code clv_module_plan_for(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool training,
                             uint32_t input_grads, clv_module_plan **ret,
                             clv_err *err) CLV_USE_RESULT;
/* A tensor of the session's pool that counts on the module's device as well, where that is the
 * host's memory, until it is said to be given back: *charged grows by its bytes, and is 0 then. */
clv_code clv_module_tensor(const clv_module *m, clv_pool *pool, clv_dtype dtype,
                           const clv_shape *shape, uint64_t *charged, clv_tensor **ret,
                           clv_err *err) CLV_USE_RESULT;
void clv_module_uncharge_tensors(const clv_module *m, uint64_t *charged);

/* A call of it; memory it takes for the first time is charged to the session's quota. */
clv_code clv_module_call_get(clv_module *m, clv_module_plan *p, clv_call **ret,
                             clv_err *err) CLV_USE_RESULT;
void clv_module_call_put(clv_module_plan *p, clv_call *call);

/* `bytes` of the memory that its kernels compute in, as the data of a CLV_U8 tensor, for the caller
 * until he unrefs it: of the session's pool, or of the device, kept for the next who asks. Not
 * initialised. Charged either way; *charged as for clv_module_tensor. */
clv_code clv_module_block(clv_module *m, size_t bytes, uint64_t *charged, clv_tensor **ret,
                          clv_err *err) CLV_USE_RESULT;
void clv_module_blocks_done(clv_module *m);
/* A tensor in that memory, of a backend that has its own; its `home` says so. */
clv_code clv_module_device_tensor(clv_module *m, clv_dtype dtype, const clv_shape *shape,
                                  clv_tensor **ret, clv_err *err) CLV_USE_RESULT;
/* Whether what `from` makes need not pass the host's memory on its way to m. */
bool clv_module_can_copy_from(const clv_module *m, const clv_module *from);
/* m gets t, which another module of its node has made. */
void clv_module_count_transfer(clv_module *m, const clv_module *from, const clv_tensor *t);

/* Within that memory; it has been done, or the module is broken, when it returns. */
void clv_module_copy(clv_module *m, void *dst, const void *src, size_t bytes);

/* What its optimiser was asked for is done; else the module is broken. */
clv_code clv_module_finish(clv_module *m, clv_err *err) CLV_USE_RESULT;
clv_code clv_module_check(const clv_module *m, clv_err *err) CLV_USE_RESULT;

/* The session's quotas, and that of the device. */
clv_code clv_module_charge(const clv_module *m, clv_pool *pool, size_t bytes,
                           clv_err *err) CLV_USE_RESULT;
void clv_module_discharge(const clv_module *m, clv_pool *pool, size_t bytes);

/* Memory for a snapshot of parameters, moments and step count; take it; go back to it. */
clv_code clv_module_prepare_snapshot(clv_module *m, clv_err *err) CLV_USE_RESULT;
void clv_module_take_snapshot(clv_module *m);
void clv_module_restore_snapshot(clv_module *m);

/* Running statistics, kept and put back. */
void clv_module_save_buffers(clv_module *m);
void clv_module_restore_buffers(clv_module *m);

size_t clv_module_buffer_bytes(const clv_module *m);

/* Whether all that is lent is there. */
clv_code clv_module_check_complete(const clv_module *m, clv_err *err) CLV_USE_RESULT;

/* The session it belongs to from now on. */
void clv_module_set_pool(clv_module *m, clv_pool *pool);

uint32_t clv_module_index(const clv_module *m);

/* Pool tensors for the most that a step can hold at once: an activation and a gradient of each
 * micro-batch on either side of the module. */
clv_code clv_module_reserve(const clv_module *m, clv_pool *pool, clv_err *err) CLV_USE_RESULT;

#endif
