/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

/* A module and the artifact that it begins with. */
typedef struct filling {
  clv_session *s;
  const clv_wire_load_request *r;
  const clv_waiter *waiter;
  clv_module *module;
  uint32_t n;
  clv_weights_want *want; /* [n]: of its state */
  size_t *found;          /* [n] */
} filling;

enum { PART_BYTES = 1 << 20 };

static void filling_done(filling *f) {
  free(f->want);
  free(f->found);
}

static clv_code make_wants(filling *f, clv_err *err) {
  const clv_params *params = clv_module_params(f->module);
  f->n = (uint32_t)params->n;
  CLV_TRY(clv_alloc(f->n, sizeof *f->want, &f->want, err));
  CLV_TRY(clv_alloc(f->n, sizeof *f->found, &f->found, err));
  for (uint32_t i = 0; i < f->n; i++) {
    const clv_param *p = &params->list[i];
    f->want[i] = (clv_weights_want){p->name, p->dtype, p->shape, clv_lora_is_adapter(p->name)};
  }
  return CLV_OK;
}

static clv_code copy_tensor(const filling *f, uint32_t i, clv_weights_folder *from, void *buf,
                            clv_err *err) {
  const clv_weights_want *w = &f->want[i];
  size_t size = clv_dtype_size(w->dtype), at_once = PART_BYTES / size, n;
  CLV_TRY(clv_shape_numel(&w->shape, &n, err));
  for (size_t first = 0; first < n; first += at_once) {
    size_t some = CLV_MIN(n - first, at_once);
    CLV_TRY(clv_waiter_check(f->waiter, err));
    CLV_TRY(clv_weights_folder_part(from, f->found[i], w, first, some, buf, err));
    CLV_TRY(clv_module_state_set_part(f->module, CLV_STATE_WEIGHTS, w->name, first * size,
                                      some * size, buf, err));
  }
  return CLV_OK;
}

/* By way of one buffer: no more of the artifact is in memory than that. */
static clv_code copy_tensors(const filling *f, clv_weights_folder *from, clv_err *err) {
  CLV_AUTO(clv_freep) void *buf = NULL;
  uint32_t n_counts = 0;
  CLV_TRY(clv_alloc_aligned(PART_BYTES, &buf, err));
  for (uint32_t i = 0; i < f->n; i++) {
    const clv_weights_want *w = &f->want[i];
    if (f->found[i] != CLV_WEIGHTS_NONE)
      CLV_TRY(copy_tensor(f, i, from, buf, err));
    else /* it begins as a new one does */
      n_counts += clv_weights_is_count(w->dtype, &w->shape);
  }
  if (n_counts)
    clv_log(
        CLV_LOG_WARN,
        "session %s: artifact '%s' lacks %u count%s of module %u (num_batches_tracked), taken as "
        "0 as in PyTorch",
        f->s->name, f->r->artifact.name, n_counts, CLV_S(n_counts), f->r->module);
  return CLV_OK;
}

static clv_code fill(filling *f, clv_err *err) {
  CLV_AUTO(clv_stored_closep) clv_stored *a = NULL;
  const clv_wire_load_request *r = f->r;
  CLV_TRY(clv_store_open(f->s->settings->config, r->artifact.name, &r->artifact.sha256, f->waiter,
                         &a, err));
  clv_weights_folder *from = clv_stored_weights(a);
  clv_code code =
      clv_weights_folder_match(from, f->want, f->n, r->fresh, r->n_fresh, f->found, err);
  if (code == CLV_INVALID && err) return err->code = CLV_NOT_FOUND; /* not what was asked for */
  CLV_TRY(code);
  CLV_TRY(clv_pool_charge(f->s->pool, PART_BYTES, err));
  code = copy_tensors(f, from, err);
  clv_pool_discharge(f->s->pool, PART_BYTES);
  return code;
}

static clv_code load_artifact(clv_session *s, const clv_wire_load_request *r,
                              const clv_waiter *waiter, clv_module *module, clv_err *err) {
  CLV_AUTO(filling_done) filling f = {.s = s, .r = r, .waiter = waiter, .module = module};
  CLV_TRY(make_wants(&f, err));
  return fill(&f, err);
}

/* The threads that kernels start are made by this one and stay where it is. */
static void pin(const clv_worker_config *c) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t i = 0; i < c->cores.n; i++) CPU_SET((size_t)c->cores.items[i], &set);
  if (c->cores.n && pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
    clv_log(CLV_LOG_WARN, "cores: none of these can be used here; threads are not pinned");
}

static void *compute_main(void *user) {
  clv_session *s = user;
  pin(s->service->config);
  clv_node_run(s->node);
  return NULL;
}

/* The compute thread starts with the first module. */
static clv_code ready_node(clv_session *s, clv_err *err) {
  if (s->node) return CLV_OK;
  uint16_t origin;
  CLV_TRY(clv_random_bytes(&origin, sizeof origin, err));
  clv_node_options o = {.pool = s->pool,
                        .originator = (uint16_t)(origin | 1u),
                        .runtime = s->service->runtime,
                        .share = s->share,
                        .files = clv_session_files(s),
                        .reference_lease_ms = s->reference_lease_ms};
  CLV_TRY(clv_node_new(&o, &s->node, err));
  if (pthread_create(&s->compute, NULL, compute_main, s) != 0) {
    clv_node_free(s->node);
    s->node = NULL;
    return clv_fail(err, CLV_EXHAUSTED, "no thread for the session");
  }
  s->computing = true;
  return CLV_OK;
}

static clv_code add_module(clv_session *s, clv_module *module, clv_err *err) {
  pthread_mutex_lock(&s->lock);
  clv_code code = s->gone ? clv_fail(err, CLV_NOT_FOUND, "no such session") : ready_node(s, err);
  if (code != CLV_OK)
    clv_module_free(module);
  else
    code = clv_node_add_module(s->node, module, err);
  if (code == CLV_OK) clv_session_links(s);
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* Who waits for a module: the caller, while its session stands. */
typedef struct load_waiter {
  clv_session *s;
  const bool *gone;
} load_waiter;

static bool is_gone(void *user) {
  const load_waiter *w = user;
  pthread_mutex_lock(&w->s->lock);
  bool closed = w->s->gone;
  pthread_mutex_unlock(&w->s->lock);
  return closed || __atomic_load_n(w->gone, __ATOMIC_RELAXED);
}

/* The node says so as well, when everything has been made. */
static clv_code check_place(clv_session *s, const clv_wire_load_request *r, clv_err *err) {
  pthread_mutex_lock(&s->lock);
  clv_code code = s->node ? clv_node_check_place(s->node, r->module, r->generation, err) : CLV_OK;
  pthread_mutex_unlock(&s->lock);
  return code;
}

static clv_code fill_and_describe(clv_session *s, const clv_wire_load_request *r,
                                  const clv_waiter *waiter, clv_module *module,
                                  clv_wire_load_reply *reply, clv_err *err) {
  if (r->init == CLV_WIRE_INIT_ARTIFACT) CLV_TRY(load_artifact(s, r, waiter, module, err));
  for (uint32_t i = 0; i < r->n_peers; i++) CLV_TRY(clv_session_dial_peer(s, r->peers[i], err));
  return clv_load_describe(module, waiter, reply, err);
}

/* Once the module is added its master may unload it. */
static clv_code load(clv_session *s, const clv_wire_load_request *r, const clv_waiter *waiter,
                     clv_wire_load_reply *reply, clv_bytes *ret, clv_err *err) {
  clv_module *module;
  const clv_device *device;
  CLV_TRY(clv_waiter_check(waiter, err)); /* it may have waited for another to be loaded */
  CLV_TRY(check_place(s, r, err));
  CLV_TRY(clv_service_find_device(s->service, r->device, &device, err));
  clv_device theirs = *device;
  theirs.account = s->on_device[device - s->service->devices];
  CLV_TRY(clv_load_make(r, &theirs, s->pool, waiter, &module, err));
  clv_code code = fill_and_describe(s, r, waiter, module, reply, err);
  if (code == CLV_OK) code = clv_wire_load_reply_encode(reply, ret, err);
  if (code == CLV_OK) return add_module(s, module, err);
  clv_module_free(module);
  return code;
}

/* One at a time: they dial, and start the compute thread, once. */
clv_code clv_session_load(clv_session *s, const clv_wire_load_request *r, const bool *gone,
                          clv_wire_load_reply *reply, clv_bytes *ret, clv_err *err) {
  load_waiter w = {s, gone};
  const clv_waiter waiter = {is_gone, &w};
  pthread_mutex_lock(&s->loading);
  clv_code code = load(s, r, &waiter, reply, ret, err);
  pthread_mutex_unlock(&s->loading);
  if (code == CLV_OK) clv_session_uses(s, CLV_MAX(r->threads, 1u));
  return code;
}
