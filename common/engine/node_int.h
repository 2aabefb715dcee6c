/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_NODE_INT_H
#define CLEAVE_NODE_INT_H

#include <pthread.h>

#include "common/engine/context_int.h"
#include "common/engine/inbox_int.h"
#include "common/engine/reference/reference.h"

/* A thread of a node, which waits for devices so that the node's does not. */
typedef struct clv_device_thread {
  clv_session_node *node;
  void (*compute)(clv_session_node *n, clv_work *w);
  pthread_t thread;
  bool is_started, is_stopping; /* under `lock`, as what it is given */
  clv_work *first, **end;
  pthread_mutex_t lock;
  pthread_cond_t changed;
} clv_device_thread;

enum { MAX_NODE_DEVICES = 16 };

struct clv_session_node {
  clv_node_options o;
  pthread_mutex_t lock;
  clv_inbox inbox;
  uint64_t began_ns;            /* clv_node_run; 0: not yet */
  uint64_t idle_ns, idle_since; /* written by the compute thread alone; since 0: it works */

  clv_module *modules[CLV_MODULE_ALL];      /* NULL where not local; under the inbox's lock, as */
  uint64_t next_generation[CLV_MODULE_ALL]; /* the least that may come there now */
  clv_module_counts unloaded_counts;        /* what those did that have been unloaded */
  uint32_t puts[CLV_MODULE_ALL][CLV_STATE_GRADIENTS + 1]; /* items of a STATE_PUT that have come */
  uint64_t next_message;
  uint64_t
      slept_while_working_ns; /* while work was out, since some has ended; of the compute thread alone */
  uint64_t work_ns; /* what a piece of work has taken lately; written by the compute thread alone */
  clv_contexts *contexts;
  clv_executor executor;      /* counts what is out, and starts it with that of the options */
  struct clv_node_file *file; /* of a STATE_SAVE or STATE_LOAD that will come again; or NULL */
  clv_device_thread devices, copies; /* one computes, the other one copies to the host's memory */
  pthread_mutex_t computing;         /* held while the first computes */
  const clv_backend *copiers[MAX_NODE_DEVICES]; /* a branch for each device; under copies.lock */
  clv_rrefs *references;
  clv_reference_counts reference_counts; /* written by the compute thread alone */

  clv_link *master; /* of a worker; under `lock`, as the following */
  clv_node_failure failure;
  clv_link *peers[MAX_NAMES];
  char peer_names[MAX_NAMES][CLV_WIRE_NAME + 1];
  uint32_t n_peers;
};

/* What a frame was, for the answer when it cannot be acted on. */
typedef struct clv_request {
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module;
} clv_request;

/* node_links.c. */
clv_request clv_node_request(const clv_frame *f);
bool clv_node_is_master(clv_session_node *n, const clv_link *link); /* now */
clv_link *clv_node_link_to(clv_session_node *n, const char *name);  /* with a reference, or NULL */
/* To the program, or to the master; what cannot leave is an error, a link that has ended is none.
 * Takes it. */
clv_code clv_node_send_to_program(clv_session_node *n, clv_packet *p, clv_err *err) CLV_USE_RESULT;
/* Over the link to the worker that frame.to names; without one the master passes it on. A tensor
 * that may not leave is an error of its context. Takes it. */
void clv_node_send(clv_session_node *n, clv_packet *p);
/* What clv_node_send has sent leaves now: said before the compute thread waits or works. */
void clv_node_flush(clv_session_node *n);
const clv_executor *clv_node_executor(clv_session_node *n); /* NULL: it computes itself */
void clv_node_abort(clv_session_node *n, uint64_t id, const clv_err *why, const char *hop);
void clv_node_refuse(clv_session_node *n, const clv_err *why, const clv_request *c);

/* node_devices.c. Without an executor of the program's, and where the node sleeps by itself. */
void clv_node_init_devices(clv_session_node *n, clv_contexts_env *env);
void clv_node_post_device_work(clv_session_node *n, clv_work *w);
void clv_node_post_copies(clv_session_node *n);
/* Before a module on a device is added. */
clv_code clv_node_start_devices(clv_session_node *n, const clv_backend *device,
                                clv_err *err) CLV_USE_RESULT;
void clv_node_end_devices(clv_session_node *n); /* when no work is out */

/* node_files.c: STATE_SAVE, STATE_LOAD or STATE_REMOVE. ret->state: of the answer. BLOCKS for the
 * disk, and for no device: where the module is on one, *ret_kept is set, and p comes once more when
 * its state has been brought. */
clv_code clv_node_on_file(clv_session_node *n, clv_module *m, clv_packet *p, clv_frame *ret,
                          bool *ret_kept, clv_err *err) CLV_USE_RESULT;
/* What is kept for the second part, of p or (NULL) of any. */
void clv_node_drop_file(clv_session_node *n, const clv_packet *p);

/* node_caches.c: a VALUE of a cache becomes one of what the cache has, or a failure. BLOCKS for the
 * disk. CLV_DENIED: it is not the master's. */
clv_code clv_node_on_cached(clv_session_node *n, clv_packet *p, clv_err *err) CLV_USE_RESULT;

/* node_modules.c: on the compute thread. CLV_PRECONDITION: a context needs it still. */
clv_code clv_node_remove_module(clv_session_node *n, uint32_t index, clv_err *err) CLV_USE_RESULT;

/* node_frames.c: handles a packet and answers what is refused; takes it. */
void clv_node_handle(clv_session_node *n, clv_packet *p);
/* Handles the end of work: its results leave and what it has made ready starts. */
void clv_node_handle_work_end(clv_session_node *n, clv_work *w);
void clv_node_drain_work(clv_session_node *n); /* BLOCKS until there is none out; nothing starts */
clv_code clv_node_init_contexts(clv_session_node *n, clv_err *err) CLV_USE_RESULT;

/* node_references.c. A REF_ frame, or a request of this process' program by one that came from
 * no link; when it is time for a tick, and that. */
clv_code clv_node_init_references(clv_session_node *n, clv_err *err) CLV_USE_RESULT;
clv_code clv_node_on_reference(clv_session_node *n, clv_packet *p, bool *ret_kept,
                               clv_err *err) CLV_USE_RESULT;
void clv_node_tick(clv_session_node *n);
/* A value that the engine was to keep has come, or will not: either of them. */
void clv_node_on_kept_value(clv_session_node *n, uint64_t ref, clv_tensor *tensor,
                            const clv_shared_err *failed);

#endif
