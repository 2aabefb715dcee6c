/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a trainer: cluster.c connects and loads, steps.c trains and evaluates, state.c
 * collects and restores, run.c is the loop a person sees.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include "common/tls/tls.h"
#include "common/weights/weights.h"
#include "master/train/train.h"

enum { CLV_EVAL_WINDOW = 4, BULK_LANES = 4 };

typedef struct remote {
  struct clv_trainer *trainer;
  int index; /* of the session's workers */
  const clv_remote_spec *spec;
  clv_rpc_channel *channel;
  clv_link *link;
  clv_wire_id incarnation;
  clv_wire_limits limits;
  bool opened;
  uint64_t heard_ns; /* when its last packet came; any thread */
} remote;

/* A pass over a stage's state in progress (STATE_GET): items arrive in any order. */
typedef struct collecting {
  clv_tensor **tensors; /* [count] */
  char (*names)[CLV_WIRE_NAME + 1];
  uint32_t count, got;
  bool wanted;     /* somebody waits for STATE_DONE, and for items if count is above 0 */
  bool moved;      /* something of it has come since this was cleared */
  bool told, done; /* STATE_DONE has come; it may overtake large items */
} collecting;

struct clv_trainer {
  clv_blueprint *b; /* borrowed; its egress rows are counted in */
  const clv_session_config *config;
  clv_rpc_runtime *runtime; /* NULL when everything is at home */
  clv_tls_identity *identity;
  clv_pool *pool;
  clv_session_node *node;
  remote *remotes; /* [config->n_workers] */
  clv_wire_id session;
  uint64_t epoch;
  char lost[CLV_WIRE_NAME + 1];
  uint64_t committed;
  uint64_t length; /* of the whole run in steps; 0: unknown */
  uint64_t next_message;
  clv_graph *loss_graph; /* evaluation's own, with plans by batch size */
  clv_stage *loss_stage;

  /* the step in progress, written by the driver's callbacks on the trainer's own thread */
  bool progress;         /* something happened that the driver waits for */
  const int64_t *labels; /* [samples] of the batch, NULL unless classes */
  size_t *sizes;         /* [max_micro] */
  size_t *starts;
  uint32_t n_micro, posted, losses_in, finished;
  double *losses; /* [max_micro] */
  uint32_t votes_in, votes_wanted;
  bool *voted;           /* [n_stages] in this step */
  uint64_t committed_in; /* COMMITTED since the start */
  uint64_t deadline_ns;  /* of the step in progress, 0 outside */
  bool finite;
  double *grad_sq;   /* one per learning parameter, in the uncut network's order */
  uint32_t *grad_at; /* [n_stages + 1] where a stage's begin */
  uint64_t correct;
  size_t samples;

  /* evaluation in progress */
  bool evaluating;
  double eval_loss;
  const clv_tensor *eval_x, *eval_y;
  uint32_t eval_outstanding;
  struct eval_slot {
    clv_tensor *y;
    size_t row, n;
  } eval_slots[CLV_EVAL_WINDOW];
  clv_tensor *predictions;

  collecting collect;
};

clv_optim_config clv_optimizer_of(const clv_session_config *c);
clv_code clv_trainer_connect(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
void clv_trainer_on_driver(void *user, clv_packet *p);
void clv_trainer_on_prediction(void *user, const clv_packet *p);
void clv_trainer_on_handled(void *user, clv_frame_kind kind, uint32_t stage, uint32_t micro_batch);
/* Handle packets until *flag; the step timeout turns into an error that says who was awaited. */
clv_code clv_trainer_wait(clv_trainer *t, const bool *flag, uint64_t *wait_ns, const char *what,
                          clv_err *err) CLV_USE_RESULT;
/* The cause behind a failure: which worker, which step. Returns the code that decides how to exit. */
clv_code clv_trainer_explain(clv_trainer *t, clv_code code, clv_err *err);
clv_code clv_trainer_flush(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
/* Weights of the session's files into local and remote stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;
clv_code clv_egress_check(void *user, clv_link *link, const clv_packet *p, clv_err *err);

#endif
