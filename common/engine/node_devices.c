/* SPDX-License-Identifier: Apache-2.0
 *
 * The two threads of a node for devices. The device thread computes the work of modules on devices
 * and waits for it, so that the compute thread handles packets and computes on the processor
 * meanwhile. There is one device thread, because backends that copy from each other must be used
 * by one thread. The copy thread copies tensors to host memory, with a branch of each device's
 * backend, so that the device computes the next work meanwhile.
 */
#include <string.h>

#include "common/engine/node_int.h"

/* ---- a thread that waits for devices --------------------------------------------------------- */

static clv_work *wait_for_next_work(clv_device_thread *t) {
  pthread_mutex_lock(&t->lock);
  while (!t->first && !t->is_stopping) pthread_cond_wait(&t->work_arrived, &t->lock);
  clv_work *w = t->first;
  if (w) t->first = w->next;
  if (!t->first) t->end = &t->first;
  pthread_mutex_unlock(&t->lock);
  return w;
}

static void *run_thread(void *user) {
  clv_device_thread *t = user;
  for (clv_work *w; (w = wait_for_next_work(t)) != NULL;) t->compute(t->node, w);
  return NULL;
}

static void post_work(clv_device_thread *t, clv_work *w) {
  clv_inbox_begin_work(&t->node->inbox, w);
  w->next = NULL;
  pthread_mutex_lock(&t->lock);
  *t->end = w;
  t->end = &w->next;
  pthread_cond_signal(&t->work_arrived);
  pthread_mutex_unlock(&t->lock);
}

static void init_thread(clv_device_thread *t, clv_session_node *n,
                        void (*compute_on_device)(clv_session_node *n, clv_work *w)) {
  t->node = n;
  t->compute = compute_on_device;
  t->end = &t->first;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->work_arrived, NULL);
}

static clv_code start_thread(clv_device_thread *t, clv_err *err) {
  pthread_mutex_lock(&t->lock);
  bool has_started = t->is_started || pthread_create(&t->thread, NULL, run_thread, t) == 0;
  t->is_started = has_started;
  pthread_mutex_unlock(&t->lock);
  return has_started ? CLV_OK
                     : clv_fail(err, CLV_EXHAUSTED, "cannot start a thread for modules on devices");
}

static void end_thread(clv_device_thread *t) {
  pthread_mutex_lock(&t->lock);
  t->is_stopping = true;
  pthread_cond_signal(&t->work_arrived);
  pthread_mutex_unlock(&t->lock);
  if (t->is_started) pthread_join(t->thread, NULL);
  pthread_cond_destroy(&t->work_arrived);
  pthread_mutex_destroy(&t->lock);
}

/* ---- computing on devices -------------------------------------------------------------------- */

static void compute_on_device(clv_session_node *n, clv_work *w) {
  clv_err why;
  pthread_mutex_lock(&n->compute_lock);
  /* set a second time, because the work may have waited for other work */
  w->begin_ns = clv_clock_now(&n->o.clock);
  clv_code code = clv_work_compute(w, &why);
  pthread_mutex_unlock(&n->compute_lock);
  clv_node_work_ended(n, w, code, &why);
}

void clv_node_post_device_work(clv_session_node *n, clv_work *w) {
  post_work(&n->device_thread, w);
}

/* ---- copying to host memory ------------------------------------------------------------------ */

/* Returns the entry of n->copiers that has the branch of a device, or the first unused entry; NULL:
 * all entries belong to other devices. Caller holds copy_thread.lock. */
static const clv_backend **find_copier(clv_session_node *n, const clv_backend *device) {
  for (size_t i = 0; i < MAX_NODE_DEVICES; i++)
    if (!n->copiers[i] || strcmp(n->copiers[i]->device, device->device) == 0) return &n->copiers[i];
  return NULL;
}

/* Makes a branch of a device's backend (a second backend for the same device, clv_backend_branch),
 * and charges its host memory to the session. */
static clv_code make_branch(clv_session_node *n, const clv_backend *device, const clv_backend **ret,
                            clv_err *err) {
  size_t bytes = device->branch_bytes;
  if (clv_pool_charge(n->o.pool, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "the host's memory for copies from %s", device->device);
  clv_code code = clv_backend_branch(device, ret, err);
  if (code != CLV_OK) clv_pool_discharge(n->o.pool, bytes);
  return code;
}

/* Makes a branch of a device's backend for the copy thread, unless there is one, because two
 * threads must not use one backend. */
static clv_code open_copier(clv_session_node *n, const clv_backend *device, clv_err *err) {
  pthread_mutex_lock(&n->copy_thread.lock);
  const clv_backend **at = find_copier(n, device);
  clv_code code = CLV_OK;
  if (!at)
    code = clv_fail(err, CLV_EXHAUSTED, "a session has at most %d devices", MAX_NODE_DEVICES);
  else if (!*at)
    code = make_branch(n, device, at, err);
  pthread_mutex_unlock(&n->copy_thread.lock);
  return code;
}

static void copy_to_host(clv_session_node *n, clv_work *w) {
  clv_copy *k = clv_copy_of_work(w);
  clv_err why;
  pthread_mutex_lock(&n->copy_thread.lock);
  const clv_backend **by = find_copier(n, k->from->device);
  k->copier = by ? *by : NULL;
  pthread_mutex_unlock(&n->copy_thread.lock);
  clv_code code = clv_work_compute(w, &why);
  clv_node_work_ended(n, w, code, &why);
}

void clv_node_post_copies(clv_session_node *n) {
  if (n->o.executor.start || n->o.wait) return; /* the engine makes the copies itself */
  for (clv_work *w; (w = clv_contexts_take_copy(n->contexts)) != NULL;)
    post_work(&n->copy_thread, w);
}

/* ---- starting and ending the device thread and the copy thread ------------------------------- */

void clv_node_init_devices(clv_session_node *n, clv_contexts_env *env) {
  init_thread(&n->device_thread, n, compute_on_device);
  init_thread(&n->copy_thread, n, copy_to_host);
  pthread_mutex_init(&n->compute_lock, NULL);
  if (!env->executor && !n->o.wait) env->compute_lock = &n->compute_lock;
}

clv_code clv_node_start_devices(clv_session_node *n, const clv_backend *device, clv_err *err) {
  CLV_TRY(open_copier(n, device, err));
  CLV_TRY(start_thread(&n->device_thread, err));
  return start_thread(&n->copy_thread, err);
}

void clv_node_end_devices(clv_session_node *n) {
  end_thread(&n->device_thread);
  end_thread(&n->copy_thread);
  for (size_t i = 0; i < MAX_NODE_DEVICES && n->copiers[i]; i++) {
    clv_pool_discharge(n->o.pool, n->copiers[i]->branch_bytes);
    clv_backend_release(n->copiers[i]);
  }
  pthread_mutex_destroy(&n->compute_lock);
}
