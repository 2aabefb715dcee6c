/* SPDX-License-Identifier: Apache-2.0
 *
 * The operation behind worker_file_calls.c: saves, loads or removes a file of a module's state at
 * its worker. The request names the file; the answer has the file's size and digest.
 */
#include <stdio.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/state_requests_int.h"

/* States of an operation on a file (api_future.operation_state): it waits for a pending step; its
 * request has been sent. */
enum { WAITS_FOR_STEP, REQUEST_IS_SENT };

static const char *request_verb(clv_frame_kind kind) {
  if (kind == CLV_STATE_SAVE) return "saving";
  return kind == CLV_STATE_LOAD ? "loading" : "removing";
}

static cleave_status check_name(const char *name, cleave_error *error) {
  if (clv_is_file_name(name)) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID,
                  "a file at a node has a name of 1..%d of [A-Za-z0-9._-] without a dot first, no "
                  "path",
                  CLV_FILE_NAME);
}

/* Fails unless the module is at a worker that stores files of state and, for CLV_STATE_EMA, can
 * load averages. */
static cleave_status check_module_node(const cleave_module *m, clv_state_kind kind,
                                       cleave_error *error) {
  const api_peer *p = &m->runtime->peers[m->node];
  if (m->node && p->supports_state_files && (p->supports_ema || kind != CLV_STATE_EMA))
    return CLEAVE_OK;
  if (!m->node)
    return api_fail(error, CLV_INVALID,
                    "module '%s' is at the master: cleave_state_save and cleave_state_load have "
                    "files here",
                    m->name);
  api_fail(error, CLV_UNIMPLEMENTED,
           p->supports_state_files
               ? "worker '%s' cannot load averages of weights: it is of an older version, update it"
               : "worker '%s' keeps no files of state: it has no state_dir in its worker.yaml, or "
                 "is of an older version",
           p->name);
  api_set_error_node(error, p->name, m->name);
  return CLEAVE_UNIMPLEMENTED;
}

cleave_status api_worker_file_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                    cleave_error *error) {
  cleave_module *m = a->module;
  f->module = m;
  f->state_kind = (clv_state_kind)a->kind;
  f->frame_kind = a->frame_kind;
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  bool is_ema = (int)a->kind == CLEAVE_STATE_EMA && a->frame_kind == CLV_STATE_LOAD && a->digest;
  if (a->kind != CLEAVE_STATE_WEIGHTS && a->kind != CLEAVE_STATE_OPTIMIZER && !is_ema)
    return api_fail(error, CLV_INVALID, "no kind of state %d", (int)a->kind);
  TRY_API(check_name(a->name, error));
  snprintf(f->file_name, sizeof f->file_name, "%s", a->name);
  if (a->digest) f->request.file_sha256 = *a->digest;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", m->name);
  TRY_API(api_module_place(m, false, f->deadline_ms, error));
  TRY_API(check_module_node(m, f->state_kind, error));
  TRY_API(api_check_no_pending_backward(rt, error));
  api_module_add_kept_ref(m);
  return CLEAVE_OK;
}

static cleave_status send_request(cleave_runtime *rt, api_future *f, cleave_error *error) {
  cleave_module *m = f->module;
  api_state_request *r = &f->request;
  clv_packet *p;
  r->id = ++rt->next_id;
  r->node = m->node;
  r->is_for_file = true;
  TRY_API(api_packet_new(rt, f->frame_kind, 0, r->id, &p, error));
  api_set_frame_module(p, m);
  p->frame.state.part = f->state_kind;
  p->frame.state.file_sha256 = r->file_sha256; /* zeros: any file of that name */
  snprintf(p->frame.state.item_or_file_name, sizeof p->frame.state.item_or_file_name, "%s",
           f->file_name);
  r->next = rt->state_requests;
  rt->state_requests = r;
  m->weights_version += f->frame_kind == CLV_STATE_LOAD && f->state_kind != CLV_STATE_OPTIMIZER;
  return api_send(rt, m->node, p, error);
}

void api_worker_file_advance(cleave_runtime *rt, api_future *f) {
  api_state_request *r = &f->request;
  cleave_error why = {.status = CLEAVE_OK};
  if (f->operation_state == WAITS_FOR_STEP &&
      (rt->undecided_context || f->module->state == MODULE_PLACING))
    return;
  if (f->operation_state == WAITS_FOR_STEP) why.status = send_request(rt, f, &why);
  f->operation_state = REQUEST_IS_SENT;
  if (why.status == CLEAVE_OK && r->has_failed) why = r->failure;
  if (why.status == CLEAVE_OK) {
    if (!r->is_answered) return;
    (void)api_take_deferred_error(rt, &why); /* returns an earlier step's failure, known by now */
  }
  api_state_free_work(rt, f);
  api_future_finish(rt, f, &why);
}

void api_worker_file_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const cleave_module *m = f->module;
  char silence_text[200];
  api_fail(ret, CLV_DEADLINE, "%s the state of module '%s' as '%s' was not done by '%s' in time%s",
           request_verb(f->frame_kind), m->name, f->file_name, rt->peers[m->node].name,
           api_describe_silence(rt, silence_text, sizeof silence_text));
  api_set_error_node(ret, rt->peers[m->node].name, m->name);
}

cleave_status api_copy_worker_file_result(const api_future *f, void *ret, cleave_error *error) {
  cleave_state_file *file = ret;
  (void)error;
  file->bytes = f->request.file_bytes;
  clv_sha256_hex(&f->request.file_sha256, file->sha256);
  return CLEAVE_OK;
}
