/* SPDX-License-Identifier: Apache-2.0
 *
 * What modules on devices have to do is asked for, and waited for, on a thread of its own: the
 * node's learns of its end as of a fact, and handles packets and computes on the processor
 * meanwhile. There is one such thread: backends that copy from each other are used by one thread.
 */
#include "common/engine/node_int.h"

static clv_work *next_work(clv_device_thread *t) {
  pthread_mutex_lock(&t->lock);
  while (!t->first && !t->over) pthread_cond_wait(&t->changed, &t->lock);
  clv_work *w = t->first;
  if (w) t->first = w->next;
  if (!t->first) t->end = &t->first;
  pthread_mutex_unlock(&t->lock);
  return w;
}

static void *run(void *user) {
  clv_session_node *n = user;
  clv_err why;
  for (clv_work *w; (w = next_work(&n->devices)) != NULL;) {
    pthread_mutex_lock(&n->devices.computing);
    w->begin_ns = clv_clock_now(&n->o.clock); /* it may have stood behind another */
    clv_code code = clv_work_compute(w, &why);
    pthread_mutex_unlock(&n->devices.computing);
    clv_node_work_ended(n, w, code, &why);
  }
  return NULL;
}

void clv_node_give_devices(clv_session_node *n, clv_work *w) {
  clv_device_thread *t = &n->devices;
  clv_inbox_begin_work(&n->inbox);
  w->next = NULL;
  pthread_mutex_lock(&t->lock);
  *t->end = w;
  t->end = &w->next;
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->lock);
}

void clv_node_init_devices(clv_session_node *n, clv_contexts_env *env) {
  clv_device_thread *t = &n->devices;
  t->end = &t->first;
  pthread_mutex_init(&t->lock, NULL);
  pthread_mutex_init(&t->computing, NULL);
  pthread_cond_init(&t->changed, NULL);
  if (!env->executor && !n->o.wait) env->computing = &t->computing;
}

clv_code clv_node_start_devices(clv_session_node *n, clv_err *err) {
  clv_device_thread *t = &n->devices;
  pthread_mutex_lock(&t->lock);
  bool began = t->began || pthread_create(&t->thread, NULL, run, n) == 0;
  t->began = began;
  pthread_mutex_unlock(&t->lock);
  return began ? CLV_OK : clv_fail(err, CLV_EXHAUSTED, "no thread for modules on devices");
}

void clv_node_end_devices(clv_session_node *n) {
  clv_device_thread *t = &n->devices;
  pthread_mutex_lock(&t->lock);
  t->over = true;
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->lock);
  if (t->began) pthread_join(t->thread, NULL);
  pthread_cond_destroy(&t->changed);
  pthread_mutex_destroy(&t->computing);
  pthread_mutex_destroy(&t->lock);
}
