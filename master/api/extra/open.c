/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a runtime for a program. cleave_open and cleave_open_text read the policy of the host
 * before they connect, and give the runtime a gate (master/egress/program_gate.c), which the core
 * asks before the program's own may_send. cleave_declare and cleave_epoch call the gate. Commands
 * open runtimes with cleave_open_config, because the trainer gives them another gate.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cli/cli.h"
#include "master/api/extra/extra_int.h"
#include "master/egress/egress.h"

/* Policy, egress record and gate of a program's runtime. */
typedef struct program_gate_state {
  clv_policy *policy;        /* policy of this host; NULL: there is none */
  clv_egress_record *record; /* egress record; NULL: the program keeps none */
  clv_program_gate *gate;
  api_fronts *fronts;
  clv_notifier on_notice;
} program_gate_state;

/* Ends the egress record with an exit code, and frees p. */
static void end_program(program_gate_state *p, clv_exit_code code) {
  clv_err err;
  if (!p) return;
  api_fronts_free(p->fronts);
  clv_program_gate_free(p->gate);
  if (clv_egress_close(p->record, (uint64_t)code, &err) != CLV_OK)
    clv_notify(p->on_notice, "the record of what left was not ended: %s", err.text);
  clv_policy_free(p->policy);
  free(p);
}

/* ---- recording what workers send to each other ----------------------------------------------- */

static void note_direct_transfer(void *program, const char *worker, const char *peer,
                                 uint64_t bytes) {
  const program_gate_state *p = program;
  if (*peer && bytes) clv_egress_note_direct_transfer(p->record, worker, peer, bytes);
}

static bool is_worker_present(cleave_runtime *rt, uint32_t node) {
  LOCKED(rt);
  return !api_is_peer_lost(&rt->peers[node]);
}

/* Asks each worker for the bytes that it has sent to other workers, which the gate does not see,
 * and adds them to the record. */
static void note_direct_transfers(void *program, cleave_runtime *rt) {
  enum { LINK_REPORT_TIMEOUT_MS = 500 };
  program_gate_state *p = program;
  clv_err err;
  if (!p->record || rt->n_peers < 3) return; /* fewer than two workers */
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (is_worker_present(rt, i) &&
        cleave_ask_links(rt, i, LINK_REPORT_TIMEOUT_MS, note_direct_transfer, p, &err) != CLV_OK)
      clv_notify(p->on_notice, "worker '%s' does not report the bytes that it sent others: %s",
                 cleave_node_name(rt, i), err.text);
}

/* ---- beginning and ending the gate of a program ---------------------------------------------- */

static void end_failed_program(program_gate_state **p) { end_program(*p, CLV_EXIT_FAILED); }
static void end_closed_program(void *program) { end_program(program, CLV_EXIT_OK); }

static bool has_workers(const clv_session_config *c, const cleave_options *o) {
  for (size_t i = 0; i < c->n_workers; i++)
    if (api_is_worker_wanted(o, c->workers[i].name)) return true;
  return false;
}

/* Checks that the policy permits programs, and each worker that the runtime would connect to. */
static clv_code check_policy(const clv_session_config *c, const cleave_options *o,
                             const clv_policy *policy, clv_err *err) {
  CLV_TRY(clv_policy_check_programs(policy, err));
  for (size_t i = 0; i < c->n_workers; i++) {
    const clv_remote_spec *w = &c->workers[i];
    clv_policy_tensor t = {.name = "tensors of a program",
                           .kind = CLV_EGRESS_FAILURE,
                           .worker = w->name,
                           .identity = w->identity};
    if (api_is_worker_wanted(o, w->name)) CLV_TRY(clv_policy_check_tensor(policy, &t, err));
  }
  return CLV_OK;
}

/* Copies a path; if it is too long, only its end, which says more than its beginning. */
static void copy_path_end(char *to, size_t size, const char *path) {
  size_t len = strlen(path);
  snprintf(to, size, "%s", len < size ? path : path + len - (size - 1));
}

static clv_code open_record(const clv_session_config *c, const char *folder,
                            const clv_policy *policy, clv_egress_record **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_egress_line start_line = {.start.command = "program"};
  copy_path_end(start_line.start.session, sizeof start_line.start.session, c->name);
  copy_path_end(start_line.start.run, sizeof start_line.start.run, folder);
  copy_path_end(start_line.start.policy, sizeof start_line.start.policy, clv_policy_path(policy));
  copy_path_end(start_line.start.policy_sha256, sizeof start_line.start.policy_sha256,
                clv_policy_sha256(policy));
  copy_path_end(start_line.start.approver, sizeof start_line.start.approver,
                clv_policy_approver(policy));
  clv_bytes_printf(&path, "%s/" CLV_EGRESS_FILE, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_mkdirs(folder, err));
  return clv_egress_open(path.data, &start_line, ret, err);
}

/* Reads the policy and opens the record, before anything is sent to a worker. A runtime that
 * connects to no worker needs neither. */
static cleave_status begin_program(const clv_session_config *c, const cleave_options *o,
                                   program_gate_state *p, cleave_error *error) {
  clv_err why;
  p->on_notice = (clv_notifier){o->on_notice, o->user};
  if (has_workers(c, o)) TRY(clv_policy_find(&p->policy, &err));
  if (check_policy(c, o, p->policy, &why) != CLV_OK)
    return api_fail(error, CLV_DENIED, "%s", why.text);
  if (p->policy && !o->run)
    return api_fail(
        error, CLV_PRECONDITION,
        "%s holds this program, and it keeps no record of what leaves: name a folder in "
        "cleave_options.run",
        clv_policy_path(p->policy));
  if (o->run) TRY(open_record(c, o->run, p->policy, &p->record, &err));
  TRY(clv_program_gate_new(c, p->policy, p->record, &p->gate, &err));
  TRY(api_fronts_new(c, p->gate, &p->fronts, &err));
  return CLEAVE_OK;
}

/* ---- the ledger and the rules of plan -------------------------------------------------------- */

static cleave_status note_module(void *program, const cleave_module *m, cleave_error *error) {
  return api_fronts_note_module(((program_gate_state *)program)->fronts, m, error);
}

static cleave_status note_values(void *program, const api_noted_values *v, cleave_error *error) {
  return api_fronts_note_values(((program_gate_state *)program)->fronts, v, error);
}

static cleave_status judge_tensor(void *program, const api_value *v, const cleave_sending *sending,
                                  cleave_error *error) {
  return api_fronts_judge(((program_gate_state *)program)->fronts, v, sending, error);
}

/* ---- the gate of a runtime ------------------------------------------------------------------- */

/* Makes core ask the gate before each tensor is sent. A program without rows on a host without a
 * policy needs no gate and is faster without, so this function is not called for it. Caller holds
 * the runtime's lock. */
static void switch_gate_on(cleave_runtime *rt) {
  rt->gate.check_tensor = clv_program_gate_check;
  rt->gate.charge_tensor = clv_program_gate_charge;
  rt->gate.judge_tensor = judge_tensor;
  api_fronts_switch_on(((program_gate_state *)rt->gate.owner)->fronts);
}

static void install_gate(cleave_runtime *rt, program_gate_state *program) {
  LOCKED(rt);
  rt->gate = (api_gate){.user = program->gate,
                        .owner = program,
                        .note_module = note_module,
                        .note_values = note_values,
                        .before_close = note_direct_transfers,
                        .free_owner = end_closed_program};
  if (program->policy || program->record) switch_gate_on(rt);
}

cleave_status cleave_open_text(const char *path, const char *text, const cleave_options *options,
                               cleave_runtime **ret_runtime, cleave_error *error) {
  NOT_NULL(path, text, ret_runtime);
  COPY_OPTIONS_IN(cleave_options, o, options);
  o.size = sizeof o; /* o.size was 0 if options is NULL, which cleave_open_config would refuse */
  CLV_AUTO(clv_session_config_freep) clv_session_config *config = NULL;
  CLV_AUTO(end_failed_program) program_gate_state *program = NULL;
  cleave_runtime *rt;
  TRY_API(api_read_config(path, text, &config, error));
  TRY(clv_alloc(1, sizeof *program, &program, &err));
  TRY_API(begin_program(config, &o, program, error));
  TRY_API(cleave_open_config(config, CLEAVE_BULK_LANES, &o, &rt, error));
  install_gate(rt, clv_steal(&program));
  rt->own_config = clv_steal(&config);
  *ret_runtime = rt;
  return CLEAVE_OK;
}

cleave_status cleave_open(const char *path, const cleave_options *options,
                          cleave_runtime **ret_runtime, cleave_error *error) {
  NOT_NULL(path, ret_runtime);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  TRY(clv_file_read(path, (size_t)1 << 20, &text, &err));
  return cleave_open_text(path, text.data ? text.data : "", options, ret_runtime, error);
}

cleave_status cleave_declare(cleave_runtime *runtime, const cleave_declaration *row,
                             cleave_error *error) {
  NOT_NULL(runtime, row);
  COPY_OPTIONS_IN(cleave_declaration, d, row);
  LOCKED(runtime);
  if (!runtime->gate.user)
    return api_fail(error, CLV_PRECONDITION, "a runtime of cleave_open declares what it sends");
  TRY_API(api_fronts_fill_row(&d, error));
  TRY(clv_program_gate_declare(runtime->gate.user, &d, &err));
  switch_gate_on(runtime);
  return CLEAVE_OK;
}

cleave_status cleave_epoch(cleave_runtime *runtime, cleave_error *error) {
  NOT_NULL(runtime);
  LOCKED(runtime);
  if (runtime->gate.user) clv_program_gate_begin_epoch(runtime->gate.user);
  return CLEAVE_OK;
}
