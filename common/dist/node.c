/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue of packets, one thread that handles them, and a table of where each stage is. Links post
 * from rpc's queue threads; everything that computes happens on the node's thread.
 */
#include "common/dist/node_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A round trip over loopback is 70 us when both ends poll and 180 us when both sleep; over a real
 * network the answer is seldom that near, and polling ends after this long. */
enum { SPIN_US = 200 };

clv_code clv_node_new(const clv_node_options *o, clv_session_node **ret, clv_err *err) {
  if (o->n_stages == 0 || o->n_stages > CLV_WIRE_STAGES)
    return clv_fail(err, CLV_INVALID, "%u stages (1..%d)", o->n_stages, CLV_WIRE_STAGES);
  clv_session_node *n;
  CLV_TRY(clv_alloc(1, sizeof *n, &n, err));
  n->o = *o;
  n->o.pool = clv_pool_ref(o->pool);
  n->next_message = (uint64_t)o->originator << 48;
  pthread_mutex_init(&n->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&n->arrived, &monotonic);
  pthread_condattr_destroy(&monotonic);
  clv_code code = clv_alloc(o->n_stages + 1, sizeof *n->stages, &n->stages, err);
  if (code == CLV_OK) code = clv_alloc(o->n_stages + 2, sizeof *n->routes, &n->routes, err);
  if (code == CLV_OK) code = clv_alloc(o->n_stages + 2, sizeof(bool), &n->owes_commit, err);
  if (code == CLV_OK) code = clv_alloc(o->n_stages + 2, sizeof(bool), &n->carries, err);
  if (code == CLV_OK) code = clv_alloc(o->n_stages + 1, sizeof *n->puts, &n->puts, err);
  if (code == CLV_OK) code = clv_node_init_contexts(n, err);
  if (code != CLV_OK) {
    clv_node_free(n);
    return code;
  }
  *ret = n;
  return CLV_OK;
}

static void drop_queue(clv_session_node *n) {
  for (clv_packet *p = n->first, *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
  n->first = n->last = NULL;
  n->n_queued = 0;
}

void clv_node_free(clv_session_node *n) {
  if (!n) return;
  drop_queue(n);
  clv_node_free_contexts(n); /* its calls belong to plans of the stages */
  for (uint32_t i = 0; n->stages && i <= n->o.n_stages; i++) clv_stage_free(n->stages[i]);
  for (uint32_t i = 0; n->routes && i <= n->o.n_stages + 1; i++) clv_link_unref(n->routes[i]);
  free(n->stages);
  free(n->routes);
  free(n->owes_commit);
  free(n->carries);
  free(n->puts);
  pthread_cond_destroy(&n->arrived);
  pthread_mutex_destroy(&n->lock);
  clv_pool_unref(n->o.pool);
  free(n);
}

void clv_node_freep(clv_session_node **n) {
  clv_node_free(*n);
  *n = NULL;
}

void clv_node_route(clv_session_node *n, uint32_t stage, clv_link *link, bool carries_commit) {
  if (link) clv_link_ref(link);
  pthread_mutex_lock(&n->lock); /* the compute thread takes it for every packet, so it sees this */
  clv_link *old = n->routes[stage];
  n->carries[stage] = carries_commit;
  n->routes[stage] = link;
  pthread_mutex_unlock(&n->lock);
  clv_link_unref(old);
}

clv_stage *clv_node_stage(clv_session_node *n, uint32_t stage) {
  return stage <= n->o.n_stages ? n->stages[stage] : NULL;
}

void clv_node_fail(clv_session_node *n, clv_code code, const char *hop, const char *fmt, ...) {
  pthread_mutex_lock(&n->lock);
  if (!n->failed) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(n->failure.text, sizeof n->failure.text, fmt, ap);
    va_end(ap);
    n->failure.code = code;
    n->failure.where = CLV_HERE;
    snprintf(n->hop, sizeof n->hop, "%s", hop);
    n->failed = true;
  }
  pthread_cond_broadcast(&n->arrived);
  pthread_mutex_unlock(&n->lock);
}

bool clv_node_failed(clv_session_node *n, clv_err *ret, char hop[CLV_WIRE_NAME + 1]) {
  pthread_mutex_lock(&n->lock);
  bool failed = n->failed;
  if (failed && ret) *ret = n->failure;
  if (failed && hop) memcpy(hop, n->hop, sizeof n->hop);
  pthread_mutex_unlock(&n->lock);
  return failed;
}

/* ---- routing ----------------------------------------------------------------------------------- */

void clv_node_post(clv_session_node *n, clv_packet *p) {
  pthread_mutex_lock(&n->lock);
  p->next = NULL;
  if (n->last)
    n->last->next = p;
  else
    n->first = p;
  n->last = p;
  __atomic_add_fetch(&n->n_queued, 1, __ATOMIC_RELEASE);
  bool wake = n->sleeping;
  pthread_mutex_unlock(&n->lock);
  if (wake) pthread_cond_signal(&n->arrived);
}

static bool is_stage_work(clv_frame_kind kind) {
  return kind == CLV_FORWARD || kind == CLV_BACKWARD;
}

/* Index of the first route over the same link: there its commit is kept. */
static uint32_t first_route(const clv_session_node *n, const clv_link *link) {
  uint32_t i = 0;
  while (n->routes[i] != link) i++;
  return i;
}

/* A decision rides on the first FORWARD of the next step instead of a message of its own. */
static void attach_commit(clv_session_node *n, uint32_t to, clv_packet *p) {
  uint32_t at = first_route(n, n->routes[to]);
  if (!n->owes_commit[at] || p->frame.kind != CLV_FORWARD) return;
  p->frame.has_commit = true;
  p->frame.commit = n->commit.commit;
  n->owes_commit[at] = false;
}

static void route(void *user, clv_packet *p) { clv_node_send(user, p); }

void clv_node_send(clv_session_node *n, clv_packet *p) {
  uint32_t driver = n->o.n_stages + 1;
  bool training = p->frame.flags & CLV_FLAG_TRAINING;
  uint32_t to = is_stage_work(p->frame.kind) ? p->frame.stage : driver;
  /* In evaluation the loss is the driver's business: the labels are at home. */
  if (p->frame.kind == CLV_FORWARD && !training && to == n->o.n_stages) to = driver;
  if (to < driver && n->stages[to]) {
    clv_node_post(n, p);
    return;
  }
  if (to <= driver && n->routes[to]) {
    clv_err err;
    clv_link *link = n->routes[to];
    attach_commit(n, to, p);
    if (clv_link_send(link, p, &err) != CLV_OK)
      clv_node_fail(n, err.code, clv_link_peer(link), "%s", err.text);
    return;
  }
  if (to == driver && n->o.on_driver) {
    n->o.on_driver(n->o.user, p);
    return;
  }
  clv_node_fail(n, CLV_INVALID, "", "no route to stage %u", to);
  clv_packet_free(p);
}

clv_code clv_node_add_stage(clv_session_node *n, clv_stage *stage, clv_err *err) {
  uint32_t index = clv_stage_index(stage);
  if (index > n->o.n_stages || n->stages[index] || (n->contexts && index == CLV_MODULE_ALL)) {
    clv_stage_free(stage);
    return clv_fail(err, CLV_EXISTS, "stage %u is loaded already or out of range", index);
  }
  size_t bytes = clv_stage_bytes(stage);
  clv_code code = clv_pool_charge(n->o.pool, bytes, err);
  if (code == CLV_OK) {
    code = clv_stage_reserve(stage, n->o.pool, err);
    if (code != CLV_OK) clv_pool_discharge(n->o.pool, bytes);
  }
  if (code != CLV_OK) {
    clv_stage_free(stage);
    return code;
  }
  clv_stage_bind(stage, n->o.pool, &n->next_message, route, n);
  pthread_mutex_lock(&n->lock);
  n->stages[index] = stage;
  pthread_mutex_unlock(&n->lock);
  return CLV_OK;
}

/* ---- handling ---------------------------------------------------------------------------------- */

static clv_code commit_all(clv_session_node *n, const clv_frame *f, clv_err *err) {
  for (uint32_t i = 0; i <= n->o.n_stages; i++)
    if (n->stages[i]) CLV_TRY(clv_stage_commit(n->stages[i], f, err));
  return CLV_OK;
}

static clv_code answer(clv_session_node *n, const clv_frame *cause, clv_frame_kind kind,
                       clv_tensor *tensor, const clv_frame *state, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_packet_new(n->o.pool, kind, &p, err));
  p->frame.context = cause->context;
  p->frame.message = ++n->next_message;
  p->frame.reply_to = cause->message;
  p->frame.step = cause->step;
  p->frame.stage = cause->stage;
  if (state) p->frame.state = state->state;
  if (tensor) clv_packet_add(p, tensor);
  route(n, p);
  return CLV_OK;
}

static bool link_carries(const clv_session_node *n, const clv_link *link) {
  for (uint32_t i = 0; i < n->o.n_stages; i++)
    if (n->routes[i] == link && n->carries[i]) return true;
  return false;
}

static clv_code send_commit(clv_session_node *n, uint32_t at, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_packet_new(n->o.pool, CLV_COMMIT, &p, err));
  p->frame = n->commit;
  p->frame.message = ++n->next_message;
  n->owes_commit[at] = false;
  n->commits_sent++;
  return clv_link_send(n->routes[at], p, err);
}

uint64_t clv_node_commits_sent(const clv_session_node *n) { return n->commits_sent; }

clv_code clv_node_commit(clv_session_node *n, const clv_frame *decision, clv_err *err) {
  n->commit = *decision;
  for (uint32_t i = 0; i < n->o.n_stages; i++) {
    if (!n->routes[i] || first_route(n, n->routes[i]) != i) continue;
    n->owes_commit[i] = true;
    if (!link_carries(n, n->routes[i])) CLV_TRY(send_commit(n, i, err));
  }
  return commit_all(n, decision, err);
}

clv_code clv_node_flush_commits(clv_session_node *n, uint32_t *ret_sent, clv_err *err) {
  uint32_t sent = 0;
  for (uint32_t i = 0; i < n->o.n_stages; i++) {
    if (!n->owes_commit[i]) continue;
    CLV_TRY(send_commit(n, i, err));
    sent++;
  }
  *ret_sent = sent;
  return CLV_OK;
}

static clv_code on_commit(clv_session_node *n, clv_packet *p, clv_err *err) {
  CLV_TRY(commit_all(n, &p->frame, err));
  return answer(n, &p->frame, CLV_COMMITTED, NULL, NULL, err);
}

static clv_code local_stage(clv_session_node *n, const clv_frame *f, clv_stage **ret,
                            clv_err *err) {
  *ret = clv_node_stage(n, f->stage);
  if (!*ret) return clv_fail(err, CLV_NOT_FOUND, "stage %u is not here", f->stage);
  return CLV_OK;
}

static bool state_item(clv_session_node *n, clv_stage *s, const clv_frame *f, uint32_t index,
                       clv_state_item *ret) {
  if (f->state.what != CLV_STATE_GRADIENTS)
    return clv_stage_state_item(s, f->state.what, index, ret);
  return n->contexts && clv_contexts_gradient_item(n->contexts, f->context, f->stage, index, ret);
}

static clv_code on_state_get(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_stage *s;
  CLV_TRY(local_stage(n, &p->frame, &s, err));
  clv_state_what what = p->frame.state.what;
  uint32_t count = 0;
  clv_state_item item;
  while (state_item(n, s, &p->frame, count, &item)) count++;
  for (uint32_t i = 0; state_item(n, s, &p->frame, i, &item); i++) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
    CLV_TRY(clv_pool_tensor(n->o.pool, item.dtype, &item.shape, &t, err));
    memcpy(t->data, item.data, item.bytes); /* the state may change before the bytes have left */
    clv_frame state = {.state = {.what = what, .index = i, .count = count}};
    snprintf(state.state.name, sizeof state.state.name, "%s", item.name);
    CLV_TRY(answer(n, &p->frame, CLV_STATE_ITEM, t, &state, err));
  }
  clv_frame done = {.state = {.what = what, .count = count}};
  return answer(n, &p->frame, CLV_STATE_DONE, NULL, &done, err);
}

static clv_code on_state_put(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_stage *s;
  const clv_frame *f = &p->frame;
  CLV_TRY(local_stage(n, f, &s, err));
  bool empty = f->state.count == 0; /* a stage without state still learns which step it is at */
  if (f->n_tensors != (empty ? 0u : 1u))
    return clv_fail(err, CLV_INVALID, "STATE_PUT carries one tensor");
  if (!empty)
    CLV_TRY(clv_stage_state_set(s, f->state.what, f->state.name, p->tensor[0]->dtype,
                                &p->tensor[0]->shape, p->tensor[0]->data, err));
  /* A large item comes in chunks on other lanes and may arrive after the last one. */
  uint32_t *got = &n->puts[f->stage][f->state.what];
  if (!empty && ++*got < f->state.count) return CLV_OK;
  *got = 0;
  clv_stage_set_committed(s, f->step);
  clv_frame done = {.state = {.what = f->state.what, .count = f->state.count}};
  return answer(n, f, CLV_STATE_DONE, NULL, &done, err);
}

clv_code clv_node_state_frame(clv_session_node *n, clv_packet *p, clv_err *err) {
  return p->frame.kind == CLV_STATE_GET ? on_state_get(n, p, err) : on_state_put(n, p, err);
}

static clv_code on_abort(clv_session_node *n, clv_packet *p, clv_err *err) {
  (void)err;
  if (n->o.on_driver) { /* the master: a worker reports the first cause */
    const char *hop = p->frame.failure.hop;
    clv_node_fail(n, p->frame.failure.code, hop, "worker '%s' reports%s%s: %s",
                  p->from ? clv_link_peer(p->from) : "?", hop[0] ? " for " : "", hop,
                  p->frame.failure.text);
    return CLV_OK;
  }
  for (uint32_t i = 0; i <= n->o.n_stages; i++)
    if (n->stages[i]) clv_stage_abort(n->stages[i]);
  return CLV_OK;
}

/* The master is done with a context: what it holds here goes, and the answer says so. */
static clv_code on_end_context(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_packet *reply;
  for (uint32_t i = 0; i <= n->o.n_stages; i++)
    if (n->stages[i]) clv_stage_end_context(n->stages[i], p->frame.context);
  CLV_TRY(clv_packet_new(n->o.pool, CLV_ENDED, &reply, err));
  reply->frame.context = p->frame.context;
  reply->frame.reply_to = p->frame.message;
  route(n, reply);
  return CLV_OK;
}

static clv_code on_for_driver(clv_session_node *n, clv_packet *p, clv_err *err) {
  if (!n->o.on_driver)
    return clv_fail(err, CLV_PRECONDITION, "%s is not for a worker",
                    clv_frame_kind_name(p->frame.kind));
  n->o.on_driver(n->o.user, p);
  return CLV_OK;
}

/* `takes`: on success the packet is the handler's; otherwise it is freed here. */
static const struct {
  clv_code (*handle)(clv_session_node *n, clv_packet *p, clv_err *err);
  bool takes;
} handlers[CLV_FRAME_KINDS] = {
    [CLV_COMMIT] = {on_commit, false},
    [CLV_STATE_GET] = {clv_node_state_frame, false},
    [CLV_STATE_PUT] = {clv_node_state_frame, false},
    [CLV_ABORT] = {on_abort, false},
    [CLV_END_CONTEXT] = {on_end_context, false},
    [CLV_ENDED] = {on_for_driver, true},
    [CLV_ERROR] = {on_abort, false},
    [CLV_VOTE] = {on_for_driver, true},
    [CLV_COMMITTED] = {on_for_driver, true},
    [CLV_STATE_ITEM] = {on_for_driver, true},
    [CLV_STATE_DONE] = {on_for_driver, true},
};

static clv_code stage_work(clv_session_node *n, clv_packet *p, clv_err *err) {
  bool training = p->frame.flags & CLV_FLAG_TRAINING;
  uint32_t to = p->frame.stage, driver = n->o.n_stages + 1;
  if (p->frame.kind == CLV_FORWARD && n->o.on_driver &&
      (to == driver || (!training && to == n->o.n_stages)))
    return on_for_driver(n, p, err);
  clv_code code = CLV_OK;
  if (p->frame.kind == CLV_FORWARD && p->frame.has_commit) code = commit_all(n, &p->frame, err);
  clv_stage *s = NULL;
  if (code == CLV_OK) {
    s = clv_node_stage(n, to);
    if (!s && n->o.on_driver && to <= n->o.n_stages && n->routes[to]) {
      route(n, p); /* via_master: not ours, passed on to whoever holds the stage */
      return CLV_OK;
    }
    if (!s) code = clv_fail(err, CLV_NOT_FOUND, "stage %u is not here", to);
  }
  if (code != CLV_OK) {
    clv_packet_free(p);
    return code;
  }
  if (p->frame.kind == CLV_FORWARD && to == n->o.n_stages && n->o.on_prediction)
    n->o.on_prediction(n->o.user, p);
  clv_frame_kind kind = p->frame.kind;
  uint32_t micro_batch = p->frame.micro_batch;
  if (n->o.runtime) clv_rpc_busy_enter(n->o.runtime);
  code = clv_stage_packet(s, p, err);
  if (n->o.runtime) clv_rpc_busy_leave(n->o.runtime);
  if (code == CLV_OK && n->o.on_handled) n->o.on_handled(n->o.user, kind, to, micro_batch);
  return code;
}

/* Another worker brings values and gradients; what happens with them is the master's to say. */
static bool may_say(const clv_session_node *n, const clv_packet *p) {
  clv_frame_kind kind = p->frame.kind;
  if (n->o.on_driver || !p->from || p->from == n->routes[n->o.n_stages + 1]) return true;
  return is_stage_work(kind) || kind == CLV_VALUE || kind == CLV_GRADIENT;
}

static clv_code handle(clv_session_node *n, clv_packet *p, clv_err *err) {
  clv_frame_kind kind = p->frame.kind;
  clv_code code = CLV_OK;
  if (!may_say(n, p)) {
    code = clv_fail(err, CLV_DENIED, "%s is not for worker '%s' to send", clv_frame_kind_name(kind),
                    clv_link_peer(p->from));
    clv_packet_free(p);
    return code;
  }
  if (n->contexts && clv_node_context_frame(n, p, &code, err)) return code;
  if (is_stage_work(kind)) return stage_work(n, p, err);
  if (!handlers[kind].handle)
    code = clv_fail(err, CLV_UNIMPLEMENTED, "%s has no place here", clv_frame_kind_name(kind));
  else
    code = handlers[kind].handle(n, p, err);
  if (!handlers[kind].takes || code != CLV_OK) clv_packet_free(p);
  return code;
}

/* The first failure on a worker goes to the master, which tells everybody. */
static void report(clv_session_node *n, const clv_err *err, const clv_frame *cause) {
  if (n->contexts) {
    clv_node_refuse(n, err, cause);
    return;
  }
  clv_node_fail(n, err->code, "", "%s", err->text);
  clv_link *master = n->routes[n->o.n_stages + 1];
  clv_packet *p;
  clv_err ignored;
  for (uint32_t i = 0; i <= n->o.n_stages; i++)
    if (n->stages[i]) clv_stage_abort(n->stages[i]);
  if (!master || clv_packet_new(n->o.pool, CLV_ABORT, &p, &ignored) != CLV_OK) return;
  p->frame.context = cause->context;
  p->frame.step = cause->step;
  p->frame.stage = cause->stage;
  p->frame.reply_to = cause->message;
  char hop[32];
  snprintf(hop, sizeof hop, "stage %u", cause->stage);
  clv_frame_set_failure(&p->frame, err->code, err->text, hop);
  if (clv_link_send(master, p, &ignored) != CLV_OK) return;
}

static clv_packet *take(clv_session_node *n) {
  clv_packet *p = n->first;
  if (!p) return NULL;
  n->first = p->next;
  if (!n->first) n->last = NULL;
  __atomic_sub_fetch(&n->n_queued, 1, __ATOMIC_RELAXED);
  return p;
}

unsigned clv_spin_us(unsigned compute_threads) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores > 0 && compute_threads < (unsigned long)cores ? SPIN_US : 0;
}

/* The next packet; NULL when stopped, failed, or the deadline has passed. Polls for spin_us before
 * it sleeps: a wake-up costs more than the wait when the answer is near. */
static clv_packet *wait_packet(clv_session_node *n, uint64_t deadline_ns, bool until_failed) {
  uint64_t spin_until = n->o.spin_us ? clv_now_ns() + (uint64_t)n->o.spin_us * 1000u : 0;
  while (spin_until && !__atomic_load_n(&n->n_queued, __ATOMIC_ACQUIRE) &&
         clv_now_ns() < spin_until)
    __builtin_ia32_pause();
  pthread_mutex_lock(&n->lock);
  while (!n->first && !n->stop && !(until_failed && n->failed)) {
    n->sleeping = true;
    struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    int r = deadline_ns == UINT64_MAX ? pthread_cond_wait(&n->arrived, &n->lock)
                                      : pthread_cond_timedwait(&n->arrived, &n->lock, &ts);
    n->sleeping = false;
    if (r != 0) break;
  }
  clv_packet *p = n->stop || (until_failed && n->failed) ? NULL : take(n);
  pthread_mutex_unlock(&n->lock);
  return p;
}

void clv_node_run(clv_session_node *n) {
  for (clv_packet *p; (p = wait_packet(n, UINT64_MAX, false)) != NULL;) {
    clv_frame cause = p->frame;
    clv_err err;
    if (handle(n, p, &err) != CLV_OK) report(n, &err, &cause);
  }
}

void clv_node_stop(clv_session_node *n) {
  pthread_mutex_lock(&n->lock);
  n->stop = true;
  pthread_cond_broadcast(&n->arrived);
  pthread_mutex_unlock(&n->lock);
}

clv_code clv_node_pump(clv_session_node *n, const bool *done, uint64_t deadline_ns,
                       uint64_t *wait_ns, clv_err *err) {
  while (!*done) {
    uint64_t begin = clv_now_ns();
    clv_packet *p = wait_packet(n, deadline_ns, true);
    if (wait_ns) *wait_ns += clv_now_ns() - begin;
    clv_err failure;
    if (p) {
      clv_frame cause = p->frame;
      char sender[CLV_WIRE_NAME + 16] = "";
      if (p->from) snprintf(sender, sizeof sender, " of worker '%s'", clv_link_peer(p->from));
      clv_code code = handle(n, p, &failure);
      if (code != CLV_OK && n->contexts)
        clv_node_refuse(n, &failure, &cause);
      else if (code != CLV_OK)
        clv_node_fail(n, failure.code, "master", "%s%s for stage %u: %s",
                      clv_frame_kind_name(cause.kind), sender, cause.stage, failure.text);
    }
    if (clv_node_failed(n, &failure, NULL)) {
      if (err) *err = failure;
      return failure.code;
    }
    if (!p) return clv_fail(err, CLV_DEADLINE, "no progress before the deadline");
  }
  return CLV_OK;
}
