/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon. The function `serve` has the steps of the start in their order. Steps that can fail
 * run before the port is opened.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common/engine/engine.h"
#include "worker/admission_int.h"
#include "worker/metrics_endpoint_int.h"
#include "worker/service/service.h"
#include "worker/store/store.h"
#include "worker/worker_int.h"

/* ---- signals --------------------------------------------------------------------------------- */

/* flags that the signal handler sets, on any thread, because gRPC has threads of its own */
static _Atomic(int) stop_requested, reload_requested;
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a handler may not wait");

static void on_signal(int signal) {
  if (signal == SIGHUP)
    reload_requested = 1;
  else
    stop_requested = 1;
}

static void catch_signals(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGTERM, &a, NULL);
  sigaction(SIGINT, &a, NULL);
  sigaction(SIGHUP, &a, NULL);
  a.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &a, NULL);
}

/* ---- the start-up sequence ------------------------------------------------------------------- */

/* Writes the memory limit to `ret` as a text, such as "12.8 GiB (four fifths of the memory of this
 * host, 16.0 GiB)" or "none". len: size of `ret`. */
static void format_memory_limit(const clv_worker_config *c, char *ret, size_t len) {
  char limit_text[32], host_memory_text[32];
  clv_host_memory host_memory;
  snprintf(ret, len, "none");
  if (c->memory_limit == CLV_MEMORY_NONE) return;
  clv_format_size(c->memory_limit, limit_text, sizeof limit_text);
  snprintf(ret, len, "%s", limit_text);
  if (!c->memory_limit_is_computed) return;
  clv_host_memory_read("", &host_memory);
  snprintf(ret, len, "%s (four fifths of %s, %s)", limit_text, host_memory.source,
           clv_format_size(host_memory.bytes, host_memory_text, sizeof host_memory_text));
}

/* Raises the limit of file descriptors from its default of 1024, and denies new privileges to the
 * process and its children. */
static void set_process_limits(void) {
  clv_open_files_raise();
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void log_settings(const clv_worker_config *c, const clv_tls_identity *identity,
                         const char *memory_limit_text, const clv_service *service) {
  const clv_backend *b = clv_service_backend(service);
  char expiry_text[32], memory_text[32];
  int days_left = clv_tls_identity_days_left(identity);
  struct tm tm;
  time_t end = (time_t)identity->not_after;
  gmtime_r(&end, &tm);
  strftime(expiry_text, sizeof expiry_text, "%Y-%m-%d", &tm);
  clv_log_event(
      CLV_LOG_INFO, "ready",
      "version=%s listen=%s port=%u identity=%s certificate_expires=%s (%d day%s) "
      "device=%s isa=%s sessions=%llu session_bytes=%s memory_limit=%s allow=%zu artifacts=%zu",
      CLV_VERSION, c->listen, clv_service_port(service), identity->uri, expiry_text, days_left,
      CLV_S(days_left), b->device, clv_backend_isa(b), (unsigned long long)c->limits.sessions,
      clv_format_size(c->limits.session_bytes, memory_text, sizeof memory_text), memory_limit_text,
      c->n_allow, c->n_artifacts);
}

/* Tells systemd how many sessions and contexts are open. */
static void notify_systemd_of_status(clv_service *service) {
  unsigned n_sessions, n_contexts;
  clv_service_count_sessions(service, &n_sessions, &n_contexts);
  clv_sd_notify_status("port %u: %u session%s, %u context%s", clv_service_port(service), n_sessions,
                       CLV_S(n_sessions), n_contexts, CLV_S(n_contexts));
}

static void serve_until_stopped(const clv_worker_arguments *a, clv_service *service,
                                const clv_worker_config *c) {
  while (!stop_requested) {
    nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL); /* a signal ends the sleep */
    if (reload_requested) {
      reload_requested = 0;
      clv_sd_notify_reloading();
      clv_worker_reload(a, service, c);
      clv_sd_notify_ready(clv_service_port(service));
    }
    clv_service_tick(service);
    clv_admission_report(service);
    clv_worker_warn_crl_expiry();
    notify_systemd_of_status(service);
    clv_sd_notify_alive();
  }
  clv_sd_notify_stopping(c->drain_timeout_ms);
  clv_log_event(CLV_LOG_INFO, "draining", "for at most %llu ms",
                (unsigned long long)c->drain_timeout_ms);
  clv_service_drain(service, (unsigned)c->drain_timeout_ms);
}

/* Warns if limits.concurrent_calls is too low for the largest number of sessions of an identity,
 * because the last of these sessions would then fail while they run. */
static void warn_if_few_calls(const clv_worker_config *c) {
  /* calls of a session at once: the streams of its connections, and some unary calls */
  enum { CALLS_PER_SESSION = 6 };
  uint64_t max_sessions = 0, max_calls = c->limits.concurrent_calls;
  for (size_t i = 0; i < c->n_allow; i++)
    max_sessions =
        CLV_MAX(max_sessions, c->allow[i].sessions ? c->allow[i].sessions : c->limits.sessions);
  if (max_calls >= CALLS_PER_SESSION * max_sessions) return;
  clv_notice(
      CLV_LOG_WARN, "limits",
      "%s: an identity may have %llu sessions (limits.sessions, allow[].sessions), which have "
      "about %llu calls at once, and limits.concurrent_calls is %llu: set it to %llu, or "
      "allow %llu session%s",
      c->file, (unsigned long long)max_sessions,
      (unsigned long long)(CALLS_PER_SESSION * max_sessions), (unsigned long long)max_calls,
      (unsigned long long)(CALLS_PER_SESSION * max_sessions),
      (unsigned long long)CLV_MAX(max_calls / CALLS_PER_SESSION, 1ull),
      CLV_S(max_calls / CALLS_PER_SESSION));
}

/* Warns of cores that this process may not use: compute threads then use the other cores of the
 * list, or all cores of the process if none is left. */
static void warn_of_missing_cores(const clv_worker_config *c) {
  cpu_set_t usable;
  char missing[80] = "";
  size_t used = 0, n_missing = 0;
  if (!c->cores.n || sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  for (size_t i = 0; i < c->cores.n; i++) {
    double core = c->cores.items[i];
    if (core < CPU_SETSIZE && CPU_ISSET((size_t)core, &usable)) continue;
    if (n_missing++ < 8)
      used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%.0f",
                               n_missing > 1 ? ", " : "", core);
  }
  if (!n_missing) return;
  clv_notice(CLV_LOG_WARN, "cores",
             "%s: cores: this process may use %d core%s, but not %s%s%s: name cores that `taskset "
             "-cp $$` lists",
             c->file, CPU_COUNT(&usable), CLV_S(CPU_COUNT(&usable)), missing,
             n_missing > 8 ? " and more" : "",
             n_missing == c->cores.n ? ", so compute threads are not pinned" : "");
}

/* Checks that the certificate files, the revocation lists and the artifacts can be loaded, and that
 * state_dir can be used. Returns an exit code. */
static int check_files(const clv_worker_config *c, clv_tls_identity **ret_identity) {
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *crl = NULL;
  clv_err err;
  if (clv_tls_identity_load(c->tls.ca, c->tls.cert, c->tls.key, ret_identity, &err) != CLV_OK ||
      clv_tls_identity_require_usage(*ret_identity, CLV_TLS_SERVER, &err) != CLV_OK ||
      clv_tls_revocation_read(c->tls.crl, *ret_identity, &crl, &err) != CLV_OK ||
      clv_epochs_check(c->state_dir, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONNECT, &err);
  if (clv_store_check(c, &err) != CLV_OK) return clv_exit_report(CLV_EXIT_DATA, &err);
  return CLV_EXIT_OK;
}

/* Opens the service, serves until SIGTERM or SIGINT, and closes the service. Returns an exit
 * code. */
static int run_service(const clv_worker_arguments *a, const clv_worker_config *c,
                       const clv_worker_devices *devices, const clv_tls_identity *identity,
                       clv_rpc_runtime *runtime, clv_metrics_endpoint **endpoint) {
  const clv_backends other_backends = {(const clv_backend *const *)devices->backends,
                                       devices->n_backends};
  char memory_limit_text[160];
  format_memory_limit(c, memory_limit_text, sizeof memory_limit_text);
  clv_service *service;
  clv_err err;
  if (clv_service_open(c, &other_backends, identity, runtime, &service, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONNECT, &err);
  clv_metrics_endpoint_set_ready(*endpoint, service);
  log_settings(c, identity, memory_limit_text, service);
  clv_sd_notify_ready(clv_service_port(service));
  serve_until_stopped(a, service, c);
  clv_metrics_endpoint_closep(endpoint);
  clv_service_close(service);
  clv_log_event(CLV_LOG_INFO, "stopped", "%s", "");
  return CLV_EXIT_OK;
}

/* Runs the daemon. checks_only: checks the configuration and its files, and ends. Returns an exit
 * code. */
static int run_daemon(const clv_worker_arguments *a, bool checks_only) {
  clv_err err;
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *config = NULL;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *identity = NULL;
  if (clv_worker_read_config(a, &config, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONFIG, &err);
  clv_log_set(a->line.verbose ? CLV_LOG_DEBUG : config->log.level,
              clv_cli_is_log_json(&a->line, config->log.json));
  set_process_limits();
  warn_if_few_calls(config);
  warn_of_missing_cores(config);
  int exit_code = check_files(config, &identity);
  if (exit_code) return exit_code;
  if (checks_only) {
    if (clv_worker_check_device(config, &err) != CLV_OK)
      return clv_exit_report(CLV_EXIT_CONFIG, &err);
    int days_left = clv_tls_identity_days_left(identity);
    printf("configuration OK: %s as %s, certificate ends in %d day%s\n", config->listen,
           identity->uri, days_left, CLV_S(days_left));
    return CLV_EXIT_OK;
  }
  catch_signals();
  if (clv_tls_set_min_version(&err) != CLV_OK ||
      clv_tls_handshakes_start_counting(config->limits.handshake_timeout_ms, &err) != CLV_OK ||
      clv_admission_open(config, &err) != CLV_OK ||
      clv_tls_revocation_load(config->tls.crl, identity, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONNECT, &err);
  CLV_AUTO(clv_metrics_endpoint_closep) clv_metrics_endpoint *endpoint = NULL;
  if (clv_metrics_endpoint_open(config, &endpoint, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONNECT, &err);
  CLV_AUTO(clv_rpc_runtime_freep) clv_rpc_runtime *runtime = NULL;
  clv_rpc_runtime_options runtime_options = {.n_queue_threads = 2};
  if (clv_rpc_runtime_new(&runtime_options, &runtime, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_FAILED, &err);
  CLV_AUTO(clv_worker_devices_closep) clv_worker_devices devices = {0};
  if (clv_worker_devices_open(config, &devices, &err) != CLV_OK)
    return clv_exit_report(CLV_EXIT_CONFIG, &err);
  int code = run_service(a, config, &devices, identity, runtime, &endpoint);
  clv_admission_close();
  return code;
}

int clv_cmd_serve(void *args) {
  const clv_worker_arguments *a = args;
  return run_daemon(a, a->checks_only);
}

int clv_cmd_check(void *args) { return run_daemon(args, true); }
