/* SPDX-License-Identifier: Apache-2.0
 *
 * The command doctor: tests step by step everything that can fail between the master and a worker,
 * before a run spends time on a GPU. Each failure is printed with its fix.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/rpc/rpc.h"
#include "common/net/tls/tls.h"
#include "common/net/wire/wire.h"
#include "master/api/api.h"
#include "master/egress/egress.h"
#include "master/watch/hello_int.h"

typedef struct doctor {
  const clv_session_config *config;
  /* the session's blueprint; NULL: the data or the model cannot be used */
  const clv_blueprint *blueprint;
  bool json;
  int n_failures; /* number of failed checks */
  clv_exit_code exit_code;
} doctor;

/* Prints the result of a check as a line. After a failed check also prints `fix`, what the user can
 * do; NULL: no fix is known. The exit code of the command is that of the first failed check. */
static void report_check(doctor *d, bool ok, clv_exit_code exit_code, const char *subject,
                         const char *fix, const char *fmt, ...) CLV_PRINTF(6, 7);

static void report_check(doctor *d, bool ok, clv_exit_code exit_code, const char *subject,
                         const char *fix, const char *fmt, ...) {
  char text[700];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (!ok) {
    d->n_failures++;
    if (d->exit_code == CLV_EXIT_OK) d->exit_code = exit_code;
  }
  if (d->json) {
    CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
    clv_bytes_printf(&line, "{\"ok\":%s,\"subject\":", ok ? "true" : "false");
    clv_bytes_add_json(&line, subject);
    clv_bytes_puts(&line, ",\"text\":");
    clv_bytes_add_json(&line, text);
    clv_bytes_puts(&line, ",\"fix\":");
    clv_bytes_add_json(&line, ok || !fix ? "" : fix);
    printf("%s}\n", line.data);
    return;
  }
  printf("%s  %-20s %s\n", ok ? "ok  " : "FAIL", subject, text);
  if (!ok && fix && fix[0]) printf("      %-20s fix: %s\n", "", fix);
}

static void check_expiry(doctor *d, const char *subject, int64_t not_after) {
  int64_t days = (not_after - (int64_t)(clv_wall_ms() / 1000)) / 86400;
  report_check(d, days >= 7, CLV_EXIT_CONNECT, subject,
               "issue a new one: cleave-master certs issue",
               "certificate valid for %lld more day%s", (long long)days, CLV_S(days));
}

/* Checks the revocation list. If the list has expired, the master refuses every peer. */
static void check_revocation_list(doctor *d, const clv_tls_identity *id) {
  static const char fix[] = "sign the list again: cleave-master certs revoke";
  clv_err err;
  if (!d->config->tls.crl) return;
  clv_code code = clv_tls_revocation_load(d->config->tls.crl, id, &err);
  int64_t remaining_s =
      code == CLV_OK ? clv_tls_revocation_expiry() - (int64_t)(clv_wall_ms() / 1000) : 0;
  if (code != CLV_OK)
    report_check(d, false, CLV_EXIT_CONNECT, "revoked certificates", fix, "%s", err.text);
  else
    report_check(d, remaining_s >= CLV_TLS_CRL_WARN_S, CLV_EXIT_CONNECT, "revoked certificates",
                 fix, "the list holds for %lld more days", (long long)remaining_s / 86400);
}

/* Connects to a worker, and reports the first of these steps that fails: address, connection, TLS,
 * identity. Returns false if one failed. */
static bool probe_worker(doctor *d, const clv_remote_spec *w, const clv_tls_identity *id) {
  char host[256];
  uint16_t port;
  clv_tls_probe_result p;
  clv_err err;
  if (!clv_tls_split_address(w->address, host, &port)) {
    report_check(d, false, CLV_EXIT_CONFIG, w->name, "write host:port", "'%s' is no address",
                 w->address);
    return false;
  }
  if (clv_tls_probe(host, port, id, w->identity, (uint32_t)d->config->limits.connect_timeout_ms, &p,
                    &err) != CLV_OK) {
    report_check(d, false, CLV_EXIT_CONNECT, w->name, NULL, "%s", err.text);
    return false;
  }
  if (!p.ok) {
    report_check(d, false, CLV_EXIT_CONNECT, w->name, p.fix, "%s: %s%s%s",
                 clv_tls_step_name(p.failed_step), p.reason, p.clock_hint[0] ? "; " : "",
                 p.clock_hint);
    return false;
  }
  report_check(d, true, CLV_EXIT_OK, w->name, NULL,
               "%s %s %s as %s, connect %.1f ms, handshake %.1f ms", p.address, p.tls_version,
               p.cipher, p.peer_uri, p.connect_ms, p.handshake_ms);
  check_expiry(d, w->name, p.peer_not_after);
  return true;
}

/* Checks that the worker offers the artifacts (weight files) that its stages name, with the right
 * digests. */
static void check_artifacts(doctor *d, int worker, const clv_wire_hello_reply *h) {
  for (size_t i = 0; i < d->config->n_stages; i++) {
    const clv_stage_spec *s = &d->config->stages[i];
    clv_sha256 expected_digest;
    if (s->worker != worker || !s->weights_artifact) continue;
    bool is_offered = false, has_right_digest = false;
    for (uint32_t k = 0; k < h->n_artifacts; k++) {
      if (strcmp(h->artifacts[k].name, s->weights_artifact) != 0) continue;
      is_offered = true;
      has_right_digest =
          s->weights_sha256 && clv_sha256_parse(s->weights_sha256, &expected_digest) &&
          memcmp(&expected_digest, &h->artifacts[k].sha256, sizeof expected_digest) == 0;
    }
    report_check(d, has_right_digest, CLV_EXIT_DATA, h->worker_name,
                 is_offered
                     ? "copy the worker's sha256 into the session, or the right file to the worker"
                     : "list it under artifacts in worker.yaml and restart the worker",
                 "artifact '%s' for stage '%s' %s", s->weights_artifact, s->name,
                 has_right_digest ? "is there"
                 : is_offered     ? "has another SHA-256"
                                  : "is not offered");
  }
}

/* Checks that the worker does not offer a weight file that the session declares secret. */
static void check_secret_weights(doctor *d, const clv_wire_hello_reply *h) {
  bool has_secret_file = false;
  clv_err err = {.text = "has none of the session's secret files"};
  for (size_t i = 0; i < d->config->n_stages; i++)
    has_secret_file |= d->config->stages[i].weights_secret;
  if (!has_secret_file) return;
  bool ok = cleave_secrets_check(d->config, h, &err) == CLV_OK;
  report_check(d, ok, CLV_EXIT_DATA, h->worker_name, NULL, "%s", err.text);
}

/* Checks that the worker has the device of each of its stages. */
static void check_devices(doctor *d, int worker, const clv_wire_hello_reply *h) {
  CLV_AUTO(clv_bytes_done) clv_bytes device_names = {0};
  for (uint32_t i = 0; i < h->n_devices; i++)
    clv_bytes_printf(&device_names, "%s%s", i ? ", " : "", h->device_names[i]);
  for (size_t i = 0; i < d->config->n_stages; i++) {
    const clv_stage_spec *s = &d->config->stages[i];
    if (s->worker != worker) continue;
    if (clv_wire_find_device(h, s->device) < 0)
      report_check(d, false, CLV_EXIT_CONFIG, d->config->workers[worker].name,
                   "name one of these as the stage's device, or place it elsewhere",
                   "no device '%s' for stage '%s'; it has: %s", s->device, s->name,
                   device_names.len ? device_names.data : "none");
  }
}

/* Reports the peer_timeout of master and worker. The shorter one applies to both, so it has no
 * effect to raise only the longer one. */
static void check_timeouts(doctor *d, const char *name, const clv_wire_hello_reply *h) {
  uint32_t own_ms = (uint32_t)d->config->limits.peer_timeout_ms;
  uint32_t worker_ms = h->about.limits.peer_timeout_ms;
  char difference_text[64] = "";
  if (worker_ms && worker_ms != own_ms)
    snprintf(difference_text, sizeof difference_text, ": ours is %g s, the worker's %g s",
             own_ms / 1e3, worker_ms / 1e3);
  report_check(d, true, CLV_EXIT_OK, name, NULL,
               "is given up after %g s of silence (peer_timeout)%s",
               clv_wire_shorter_timeout(own_ms, worker_ms) / 1e3, difference_text);
}

/* Compares the CPU libraries of a worker with those of the master. A worker that does not name its
 * libraries is not checked. */
static void check_libraries(doctor *d, const char *worker, const char *worker_versions) {
  const char *own_versions = clv_backend_libraries(clv_backend_cpu());
  bool has_same_versions = strcmp(worker_versions, own_versions) == 0;
  if (worker_versions[0])
    report_check(d, has_same_versions, CLV_EXIT_FAILED, worker,
                 "results still agree, but not to the bit; install the same versions on both sides",
                 has_same_versions ? "computes with %s, as this master"
                                   : "computes with %s, this master with %s",
                 worker_versions, own_versions);
}

/* Returns true if stages of the session run on a device of the worker. *ret_stages: their names. If
 * the session has no stage at the worker, the worker's default device counts as used. */
static bool is_device_used(const doctor *d, int worker, const clv_wire_hello_reply *h, int device,
                           clv_bytes *ret_stages) {
  int n_stages = 0;
  for (size_t i = 0; i < d->config->n_stages; i++) {
    const clv_stage_spec *s = &d->config->stages[i];
    if (s->worker != worker) continue;
    if (clv_wire_find_device(h, s->device) == device)
      clv_bytes_printf(ret_stages, "%s%s", ret_stages->len ? ", " : "", s->name);
    n_stages++;
  }
  return ret_stages->len || (!n_stages && device == clv_wire_find_device(h, "auto"));
}

/* Reports the kind of each device that the session uses. Results are bit-identical only between
 * devices of one kind. */
static void check_device_kinds(doctor *d, int worker, const clv_wire_hello_reply *h) {
  const char *own_isa = clv_backend_isa(clv_backend_cpu()), *name = d->config->workers[worker].name;
  for (int i = 0; i < (int)h->n_devices; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes stages = {0};
    const clv_wire_device_kind *k = &h->device_kinds[i];
    if (!is_device_used(d, worker, h, i, &stages)) continue;
    if (stages.len)
      report_check(d, true, CLV_EXIT_OK, name, NULL, "stages on %s: %s", h->device_names[i],
                   stages.data);
    if (strcmp(k->kind, "cpu") != 0) {
      report_check(d, true, CLV_EXIT_OK, name, NULL,
                   "computes on %s: %s, %s, %s; its bits are those of such devices",
                   h->device_names[i], k->kind, k->isa[0] ? k->isa : "it does not say which",
                   k->libraries[0] ? k->libraries : "no libraries");
      continue;
    }
    report_check(d, !k->isa[0] || strcmp(k->isa, own_isa) == 0, CLV_EXIT_FAILED, name,
                 "results still agree, but not to the bit; DNNL_MAX_CPU_ISA caps both sides",
                 "computes with %s, this master with %s",
                 k->isa[0] ? k->isa : "it does not say what", own_isa);
    check_libraries(d, name, k->libraries);
  }
}

/* Reports why a worker returned no quota for files. If the worker has no folder for files, this is
 * a failure only if the session requires files at workers; else the master fetches the files. */
static void report_no_quota(doctor *d, const clv_remote_spec *w, const clv_err *reason) {
  bool ok = reason->code == CLV_UNIMPLEMENTED && !d->config->checkpoint.home;
  report_check(d, ok, CLV_EXIT_FAILED, w->name,
               "set state_dir and allow[].state_bytes in worker.yaml, or checkpoint.home: always",
               "cannot keep checkpoints of its stages, which the master fetches: %s", reason->text);
}

/* Checks that the files of checkpoints that stay at the worker fit its quota for files of state. */
static void check_state_quota(doctor *d, int worker, const clv_wire_hello_reply *h) {
  CLV_AUTO(cleave_kept_closep) cleave_kept_client *kept = NULL;
  CLV_AUTO(cleave_kept_files_done) cleave_kept_files l = {0};
  const clv_remote_spec *w = &d->config->workers[worker];
  uint64_t needed_bytes = d->blueprint ? clv_blueprint_max_kept_bytes(d->blueprint, worker) : 0;
  char needed_text[24], granted_text[24], used_text[24], fix[200];
  clv_err err;
  if (!needed_bytes) return;
  if (!clv_wire_has_capability(&h->about, CLV_CAPABILITY_KEPT)) {
    clv_fail(&err, CLV_UNIMPLEMENTED, "it has no state_dir, or is of a version before 0.10");
    report_no_quota(d, w, &err);
    return;
  }
  if (cleave_kept_open(d->config, w, 0, &kept, &err) != CLV_OK ||
      cleave_kept_list(kept, NULL, &l, &err) != CLV_OK) {
    report_no_quota(d, w, &err);
    return;
  }
  clv_format_size(needed_bytes, needed_text, sizeof needed_text);
  snprintf(fix, sizeof fix,
           "raise allow[].state_bytes in worker.yaml to %llu, lower checkpoint.keep, or set "
           "checkpoint.home: always",
           (unsigned long long)needed_bytes);
  report_check(d, l.quota_bytes >= needed_bytes, CLV_EXIT_FAILED, w->name, fix,
               "grants %s for files of state (%s are in use), and %llu checkpoints of its stages "
               "need %s",
               clv_format_size(l.quota_bytes, granted_text, sizeof granted_text),
               clv_format_size(l.used_bytes, used_text, sizeof used_text),
               (unsigned long long)clv_blueprint_kept_checkpoint_count(d->blueprint), needed_text);
}

static void report_hello(doctor *d, int worker, const clv_wire_hello_reply *h) {
  const clv_remote_spec *w = &d->config->workers[worker];
  int64_t skew_ms = (int64_t)(h->about.unix_ms - clv_wall_ms());
  report_check(d, true, CLV_EXIT_OK, w->name, NULL, "%s, protocol %u, %u core%s", h->about.software,
               h->about.protocol, h->n_cores, CLV_S(h->n_cores));
  if (!clv_wire_protocol_has_acks(h->about.protocol))
    report_check(d, true, CLV_EXIT_OK, w->name, NULL,
                 "speaks protocol %u: a lost connection ends its link; upgrade it",
                 h->about.protocol);
  check_device_kinds(d, worker, h);
  report_check(d, skew_ms < 60000 && skew_ms > -60000, CLV_EXIT_CONNECT, w->name,
               "run NTP on both machines", "clocks differ by %lld ms", (long long)skew_ms);
  check_timeouts(d, w->name, h);
  check_devices(d, worker, h);
  check_artifacts(d, worker, h);
  check_secret_weights(d, h);
  check_state_quota(d, worker, h);
}

static void check_workers(doctor *d, const clv_tls_identity *id) {
  clv_err err;
  clv_rpc_runtime *runtime;
  clv_rpc_runtime_options ro = {.n_queue_threads = 2};
  if (clv_rpc_runtime_new(&ro, &runtime, &err) != CLV_OK) {
    report_check(d, false, CLV_EXIT_FAILED, "gRPC", NULL, "%s", err.text);
    return;
  }
  for (size_t i = 0; i < d->config->n_workers; i++) {
    const clv_remote_spec *w = &d->config->workers[i];
    CLV_AUTO(clv_wire_message_clear) clv_wire_hello_reply h = {0};
    if (!probe_worker(d, w, id)) continue;
    if (clv_watch_call_hello(d->config, runtime, w, id, &h, &err) == CLV_OK)
      report_hello(d, (int)i, &h);
    else
      report_check(
          d, false, CLV_EXIT_CONNECT, w->name,
          err.code == CLV_DENIED ? "add this master's identity to `allow` in worker.yaml" : NULL,
          "HELLO: %s", err.text);
  }
  clv_rpc_runtime_free(runtime);
}

/* Checks the tensors of `train` against the policy, then those of `train --resume`.
 * refusal_text: receives the reason if the policy refuses only `train --resume`. */
static clv_code check_policy_permits(clv_blueprint *b, const clv_run_data *data,
                                     clv_bytes *refusal_text, clv_err *err) {
  const clv_planned_sends train_sends = clv_planned_sends_make(data, CLV_COMMAND_TRAINS),
                          resume_sends = clv_planned_sends_make(data, CLV_COMMAND_RESUMES);
  clv_err reason;
  CLV_TRY(clv_blueprint_read_ledger(b, NULL, err));
  CLV_TRY(clv_blueprint_check_policy(b, &train_sends, err));
  if (clv_blueprint_check_policy(b, &resume_sends, &reason) != CLV_OK)
    clv_bytes_printf(refusal_text, "; train --resume will be refused: %s", reason.text);
  return CLV_OK;
}

/* Reports the policy of this host and its verdict on the session, or that the host has no policy.
 * An invalid policy makes every run fail. b NULL: the data or the model cannot be used. */
static void check_policy(doctor *d, clv_blueprint *b, const clv_run_data *data) {
  CLV_AUTO(clv_policy_freep) clv_policy *p = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes refusal_text = {0};
  clv_err err;
  clv_code code = clv_policy_find(&p, &err);
  if (code == CLV_OK && p && b) {
    b->policy = p;
    code = check_policy_permits(b, data, &refusal_text, &err);
    b->policy = NULL;
  }
  if (code != CLV_OK)
    report_check(d, false, CLV_EXIT_CONFIG, "policy", NULL, "%s", err.text);
  else if (!p)
    report_check(d, true, CLV_EXIT_OK, "policy", NULL,
                 "none on this host: `privacy` in the session file decides");
  else
    report_check(d, true, CLV_EXIT_OK, "policy", NULL, "%s %s%s", clv_policy_path(p),
                 b ? "permits this training (`check` compares max_read)"
                   : "is in order, and was not compared: the session cannot be used",
                 refusal_text.len ? refusal_text.data : "");
}

static void report_libraries(doctor *d) {
  cleave_library libraries[CLEAVE_LIBRARIES];
  size_t n = cleave_libraries(libraries, CLEAVE_LIBRARIES);
  for (size_t i = 0; i < n; i++) {
    const cleave_library *l = &libraries[i];
    bool is_loaded = l->path[0] != '\0';
    report_check(d, true, CLV_EXIT_OK, l->name, NULL, is_loaded ? "%s, %s: %s" : "is not loaded",
                 l->version, l->is_of_wheel ? "the wheel's" : "the system's", l->path);
  }
}

clv_exit_code clv_run_doctor(const clv_session_config *config, const clv_run_options *o) {
  doctor d = {.config = config, .json = o->json};
  clv_err err;
  clv_run_data data = {0};
  CLV_AUTO(clv_blueprint_freep) clv_blueprint *b = NULL;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  report_libraries(&d);
  clv_code code = clv_run_data_open(config, true, &data, &err);
  report_check(&d, code == CLV_OK, CLV_EXIT_DATA, "data", NULL, "%s",
               code == CLV_OK ? "readable" : err.text);
  if (code == CLV_OK) {
    code = clv_blueprint_new_of_data(config, data.train, &b, &err);
    report_check(&d, code == CLV_OK, CLV_EXIT_CONFIG, "model", NULL, "%s",
                 code == CLV_OK ? "shapes fit" : err.text);
  }
  check_policy(&d, b, &data);
  d.blueprint = b;
  clv_run_data_done(&data);
  if (config->n_workers) {
    code = clv_tls_set_min_version(&err);
    if (code == CLV_OK)
      code = clv_tls_identity_load(config->tls.ca, config->tls.cert, config->tls.key, &id, &err);
    if (code == CLV_OK) code = clv_tls_identity_require_usage(id, CLV_TLS_CLIENT, &err);
    report_check(&d, code == CLV_OK, CLV_EXIT_CONNECT, "our certificate", NULL, "%s",
                 code == CLV_OK ? id->uri : err.text);
    if (code == CLV_OK) {
      check_expiry(&d, "our certificate", id->not_after);
      check_revocation_list(&d, id);
      check_workers(&d, id);
    }
  }
  if (!o->json)
    printf(d.n_failures ? "%d problem%s found\n" : "all in order\n", d.n_failures,
           CLV_S(d.n_failures));
  return d.exit_code;
}
