/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_NODE_INT_H
#define CLEAVE_NODE_INT_H

#include <pthread.h>

#include "common/engine/context_int.h"
#include "common/engine/inbox_int.h"
#include "common/engine/reference/reference.h"

/* A thread of a node that waits for devices, so that the compute thread does not. */
typedef struct clv_device_thread {
  clv_session_node *node;
  void (*compute)(clv_session_node *n, clv_work *w);
  pthread_t thread;
  bool is_started, is_stopping; /* guarded by `lock`, as is the list of work */
  clv_work *first, **end;
  pthread_mutex_t lock;
  pthread_cond_t work_arrived;
} clv_device_thread;

enum { MAX_NODE_DEVICES = 16 };

struct clv_session_node {
  clv_node_options o;
  pthread_mutex_t lock;
  clv_inbox inbox;
  uint64_t began_ns; /* time at which clv_node_run began; 0: it has not begun */
  /* idle_ns: total idle time; idle_since_ns: start of the wait in progress, 0: the thread works.
   * Written by the compute thread alone */
  uint64_t idle_ns, idle_since_ns;

  /* module of each index; NULL: not loaded. Guarded by the inbox's lock, as is next_generation */
  clv_module *modules[CLV_MODULE_ALL];
  uint64_t next_generation[CLV_MODULE_ALL]; /* lowest generation that may be loaded at an index */
  clv_module_counts unloaded_counts;        /* sums of the counters of unloaded modules */
  /* number of items received of the STATE_PUT in progress, by module and kind of state */
  uint32_t n_put_items[CLV_MODULE_ALL][CLV_STATE_GRADIENTS + 1];
  uint64_t next_message;
  /* time that the compute thread slept while work ran, since the last end of work */
  uint64_t slept_while_working_ns;
  uint64_t work_ns; /* recent duration of a piece of work; written by the compute thread alone */
  clv_contexts *contexts;
  /* executor given to the engine: counts running work and starts it with o.executor */
  clv_executor executor;
  /* file of the STATE_SAVE or STATE_LOAD that will be handled a second time; NULL: none */
  struct clv_node_file *file;
  struct clv_node_save *saves; /* files that another thread writes; compute thread only */
  clv_device_thread device_thread, copy_thread;
  pthread_mutex_t compute_lock; /* lock that the device thread holds while it computes */
  /* branch (second backend) of each device, with which the copy thread copies from the device;
   * guarded by copy_thread.lock */
  const clv_backend *copiers[MAX_NODE_DEVICES];
  clv_rrefs *references;
  /* counters of references; written by the compute thread alone */
  clv_reference_counts reference_counts;

  /* at a worker, the link to the master; guarded by `lock`, as are failure and peers */
  clv_link *master;
  clv_node_failure failure;
  clv_link *peers[MAX_NAMES];
  char peer_names[MAX_NAMES][CLV_WIRE_NAME + 1];
  uint32_t n_peers;
};

/* The fields of a frame that its answer needs, if the frame is refused. */
typedef struct clv_request {
  clv_frame_kind kind;
  uint64_t context, message;
  uint32_t module;
} clv_request;

/* node_links.c. Returns the fields of f that an answer needs. */
clv_request clv_node_request_of_frame(const clv_frame *f);
/* true if `link` is the node's link to the master */
bool clv_node_is_master(clv_session_node *n, const clv_link *link);
/* Returns a new reference to the link of worker `name`; NULL: no such link. */
clv_link *clv_node_link_to(clv_session_node *n, const char *name);
/* Sends a packet to the program, or from a worker to the master. Takes the packet. A packet that
 * cannot be sent is an error, unless the link has ended. */
clv_code clv_node_send_to_program(clv_session_node *n, clv_packet *p, clv_err *err) CLV_USE_RESULT;
/* Sends a packet to the worker that frame.to names, or to the master, which forwards it. Takes the
 * packet. A tensor that may not be sent fails its context. */
void clv_node_send(clv_session_node *n, clv_packet *p);
/* Flushes all links. Called before the compute thread waits or computes. */
void clv_node_flush(clv_session_node *n);
/* Returns the executor that starts the node's work; NULL: the node computes the work itself. */
const clv_executor *clv_node_executor(clv_session_node *n);
void clv_node_abort(clv_session_node *n, uint64_t id, const clv_err *why, const char *hop);
void clv_node_refuse(clv_session_node *n, const clv_err *why, const clv_request *c);

/* node_devices.c. The device thread and the copy thread are used if the program has no executor and
 * no clv_node_options.wait. */
void clv_node_init_devices(clv_session_node *n, clv_contexts_env *env);
void clv_node_post_device_work(clv_session_node *n, clv_work *w);
void clv_node_post_copies(clv_session_node *n);
/* Call before a module on a device is added. */
clv_code clv_node_start_devices(clv_session_node *n, const clv_backend *device,
                                clv_err *err) CLV_USE_RESULT;
void clv_node_end_devices(clv_session_node *n); /* call when no work runs */

/* node_files.c. Handles a STATE_SAVE, STATE_LOAD or STATE_REMOVE frame, and stores the answer in
 * ret->state. BLOCKS while the disk works. Does not wait for a device: if the module is on one,
 * sets *ret_kept, and p is handled a second time after the transfer. */
clv_code clv_node_on_state_file(clv_session_node *n, clv_module *m, clv_packet *p, clv_frame *ret,
                                bool *ret_kept, clv_err *err) CLV_USE_RESULT;
/* Frees the file that waits until packet p is handled a second time; p NULL: frees the waiting file
 * of any packet. */
void clv_node_drop_file(clv_session_node *n, const clv_packet *p);

/* node_saves.c. Allocates host memory for copies of the items of `list`, whose `data` it sets. */
clv_code clv_node_alloc_copies(clv_session_node *n, clv_weights_tensor *list, size_t n_items,
                               clv_tensor **ret_block, clv_err *err) CLV_USE_RESULT;
/* Starts to write a copy of the items of `list` in the background, for the STATE_SAVE p. Takes p
 * and sets *ret_kept. Takes *block, which has the copies; *block NULL: copies the items at once.
 * *ret_kept stays false: the session has no memory for a copy, or no thread writes in the
 * background. */
clv_code clv_node_save_later(clv_session_node *n, clv_packet *p, const clv_weights_tensor *list,
                             size_t n_items, clv_tensor **block, bool *ret_kept,
                             clv_err *err) CLV_USE_RESULT;
/* True if p is a STATE_SAVE whose file was written. Fills the answer, or *ret_code and *err. */
bool clv_node_take_saved(clv_session_node *n, const clv_packet *p, clv_frame *ret,
                         clv_code *ret_code, clv_err *err);
/* Withdraws all files that are still being written. */
void clv_node_drop_saves(clv_session_node *n);

/* node_caches.c. Fills a VALUE from a cache, or stores its rows there; a failure becomes the
 * VALUE's failure. BLOCKS for the disk. CLV_DENIED: the sender is not the master. */
clv_code clv_node_on_cached(clv_session_node *n, clv_packet *p, clv_err *err) CLV_USE_RESULT;

/* node_modules.c. Unloads a module; compute thread only. CLV_PRECONDITION: an open context still
 * uses it. */
clv_code clv_node_remove_module(clv_session_node *n, uint32_t index, clv_err *err) CLV_USE_RESULT;

/* node_frames.c. Handles a packet; sends an ERROR if it is refused. Takes the packet. */
void clv_node_handle(clv_session_node *n, clv_packet *p);
/* Handles the end of work: sends its results and starts work that is ready. */
void clv_node_handle_work_end(clv_session_node *n, clv_work *w);
void clv_node_drain_work(clv_session_node *n); /* BLOCKS until no work runs; starts none */
clv_code clv_node_init_contexts(clv_session_node *n, clv_err *err) CLV_USE_RESULT;

/* node_references.c. clv_node_on_reference handles a REF_ frame of a link, or a request of this
 * process' program (no link). clv_node_tick handles due timers. */
clv_code clv_node_init_references(clv_session_node *n, clv_err *err) CLV_USE_RESULT;
clv_code clv_node_on_reference(clv_session_node *n, clv_packet *p, bool *ret_kept,
                               clv_err *err) CLV_USE_RESULT;
void clv_node_tick(clv_session_node *n);
/* Settles a kept value with `tensor` or `failed`. */
void clv_node_on_kept_value(clv_session_node *n, uint64_t ref, clv_tensor *tensor,
                            const clv_shared_err *failed);

#endif
