/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave-worker. The start-up order is the recital in `serve`, top to bottom: what is done early
 * can rely on nothing later, and what may fail fails before the port is open.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/dist/dist.h"
#include "worker/service/service.h"
#include "worker/store/store.h"

enum {
  EXIT_OK = 0,
  EXIT_RUN = 1,
  EXIT_USAGE = 2,
  EXIT_CONFIG = 3,
  EXIT_CONNECT = 4,
  EXIT_DATA = 7
};

const char *argp_program_version = "cleave-worker " CLV_VERSION;

typedef struct arguments {
  const char *command, *config;
  const char *sets[256];
  size_t n_sets;
  bool check_only, verbose;
} arguments;

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "the worker's configuration (worker.yaml)", 0},
    {"set", 's', "KEY=VALUE", 0, "override one key of it", 0},
    {"check", 'n', NULL, 0, "check the configuration and its files, then stop", 0},
    {"verbose", 'v', NULL, 0, "log at debug level", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
    case 'c':
      a->config = arg;
      return 0;
    case 'n':
      a->check_only = true;
      return 0;
    case 'v':
      a->verbose = true;
      return 0;
    case 's':
      if (a->n_sets == CLV_COUNT(a->sets)) argp_error(state, "too many --set");
      a->sets[a->n_sets++] = arg;
      return 0;
    case ARGP_KEY_ARG:
      if (a->command) return ARGP_ERR_UNKNOWN;
      a->command = arg;
      return 0;
    case ARGP_KEY_END:
      if (!a->command) argp_error(state, "a command is needed: serve, check or devices");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static int fail(int exit_code, const clv_err *err) {
  fprintf(stderr, "cleave-worker: %s\n", err->text);
  return exit_code;
}

/* ---- signals ----------------------------------------------------------------------------------- */

static volatile sig_atomic_t stop_requested, reload_requested;

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

/* ---- the recital ------------------------------------------------------------------------------- */

static clv_code load_config(const arguments *a, clv_worker_config **ret, clv_err *err) {
  clv_config_overrides over = {
      .env = (const char *const *)environ, .sets = a->sets, .n_sets = a->n_sets};
  return clv_worker_config_load(a->config, &over, ret, err);
}

/* No core file may hold weights, no child may gain rights, and a flood must not meet the default
 * of 1024 descriptors. */
static void harden(void) {
  struct rlimit core = {0, 0}, files;
  setrlimit(RLIMIT_CORE, &core);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void log_facts(const clv_worker_config *c, const clv_tls_identity *id, unsigned port) {
  char expiry[32], memory[32];
  struct tm tm;
  time_t end = (time_t)id->not_after;
  gmtime_r(&end, &tm);
  strftime(expiry, sizeof expiry, "%Y-%m-%d", &tm);
  clv_log(CLV_LOG_INFO,
          "ready version=%s listen=%s port=%u identity=%s certificate_expires=%s (%d days) "
          "device=%s isa=%s sessions=%llu session_bytes=%s allow=%zu artifacts=%zu",
          CLV_VERSION, c->listen, port, id->uri, expiry, clv_tls_identity_days_left(id), c->device,
          clv_backend_cpu()->isa(), (unsigned long long)c->limits.sessions,
          clv_format_size(c->limits.session_bytes, memory, sizeof memory), c->n_allow,
          c->n_artifacts);
}

static void reload(clv_service *service, const clv_worker_config *c) {
  clv_err err;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  clv_code code = clv_tls_identity_load(c->tls.ca, c->tls.cert, c->tls.key, &id, &err);
  if (code == CLV_OK) code = clv_tls_identity_require(id, CLV_TLS_SERVER, &err);
  if (code == CLV_OK) code = clv_service_reload(service, id, &err);
  if (code == CLV_OK)
    clv_log(CLV_LOG_INFO, "certificates reloaded, identity=%s, %d days left", id->uri,
            clv_tls_identity_days_left(id));
  else
    clv_log(CLV_LOG_ERROR, "certificates NOT reloaded, the old ones stay in use: %s", err.text);
}

static void serve_until_stopped(clv_service *service, const clv_worker_config *c) {
  while (!stop_requested) {
    nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL); /* a signal ends the nap */
    if (reload_requested) {
      reload_requested = 0;
      reload(service, c);
    }
    clv_service_tick(service);
  }
  clv_log(CLV_LOG_INFO, "draining for at most %llu ms", (unsigned long long)c->drain_timeout_ms);
  clv_service_drain(service, (unsigned)c->drain_timeout_ms);
}

static int check_files(const clv_worker_config *c, clv_tls_identity **ret_id) {
  clv_err err;
  if (clv_tls_identity_load(c->tls.ca, c->tls.cert, c->tls.key, ret_id, &err) != CLV_OK ||
      clv_tls_identity_require(*ret_id, CLV_TLS_SERVER, &err) != CLV_OK)
    return fail(EXIT_CONNECT, &err);
  if (clv_store_check(c, &err) != CLV_OK) return fail(EXIT_DATA, &err);
  return EXIT_OK;
}

static int serve(const arguments *a) {
  clv_err err;
  CLV_AUTO(clv_worker_config_freep) clv_worker_config *config = NULL;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *identity = NULL;
  if (load_config(a, &config, &err) != CLV_OK) return fail(EXIT_CONFIG, &err);
  int bad = check_files(config, &identity);
  if (bad) return bad;
  if (a->check_only || strcmp(a->command, "check") == 0) {
    printf("configuration OK: %s as %s, certificate ends in %d days\n", config->listen,
           identity->uri, clv_tls_identity_days_left(identity));
    return EXIT_OK;
  }
  clv_log_set(a->verbose ? CLV_LOG_DEBUG : config->log.level, config->log.json);
  catch_signals();
  harden();
  if (clv_tls_floor_install(&err) != CLV_OK) return fail(EXIT_CONNECT, &err);
  clv_rpc_runtime *runtime;
  clv_rpc_runtime_options ro = {.queue_threads = 2};
  if (clv_rpc_runtime_new(&ro, &runtime, &err) != CLV_OK) return fail(EXIT_RUN, &err);
  clv_service *service;
  if (clv_service_open(config, identity, runtime, &service, &err) != CLV_OK) {
    clv_rpc_runtime_free(runtime);
    return fail(EXIT_CONNECT, &err);
  }
  log_facts(config, identity, clv_service_port(service));
  serve_until_stopped(service, config);
  clv_service_close(service);
  clv_rpc_runtime_free(runtime);
  clv_log(CLV_LOG_INFO, "stopped");
  return EXIT_OK;
}

static int devices(const arguments *a) {
  (void)a;
  const clv_backend *b = clv_backend_cpu();
  printf("cpu  %ld cores, %s, %s\n", sysconf(_SC_NPROCESSORS_ONLN), b->isa(), b->libraries());
  return EXIT_OK;
}

static const struct {
  const char *name;
  int (*run)(const arguments *a);
  bool needs_config;
} commands[] = {{"serve", serve, true}, {"check", serve, true}, {"devices", devices, false}};

int main(int argc, char **argv) {
  static const struct argp argp = {
      options,
      parse,
      "serve|check|devices",
      "The Cleave worker daemon: it holds shards of a model for masters that prove who they are.\v"
      "Exit codes: 0 ok, 1 failed, 2 usage, 3 configuration, 4 certificates or address, 7 "
      "artifacts.",
      NULL,
      NULL,
      NULL};
  arguments a = {0};
  argp_err_exit_status = EXIT_USAGE;
  clv_keep_memory();
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  for (size_t i = 0; i < CLV_COUNT(commands); i++) {
    if (strcmp(commands[i].name, a.command) != 0) continue;
    if (commands[i].needs_config && !a.config) {
      fprintf(stderr, "cleave-worker: %s needs --config FILE\n", a.command);
      return EXIT_USAGE;
    }
    return commands[i].run(&a);
  }
  fprintf(stderr, "cleave-worker: unknown command '%s' (serve, check, devices)\n", a.command);
  return EXIT_USAGE;
}
