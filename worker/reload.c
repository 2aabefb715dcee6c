/* SPDX-License-Identifier: Apache-2.0
 *
 * SIGHUP: reads worker.yaml, certificates and revocation lists again and checks them as at the
 * start. Either all of them are applied or none. Changes that need a restart are logged.
 */
#include <string.h>
#include <unistd.h>

#include "worker/admission_int.h"
#include "worker/store/store.h"
#include "worker/worker_int.h"

#define DAY_NS (86400ull * 1000000000u)

/* Sets `memory_limit: auto` to four fifths of the host's memory. The rest is for the program itself
 * and for the kernel's socket buffers. */
static void resolve_memory_limit(clv_worker_config *c) {
  clv_host_memory host;
  if (c->memory_limit != CLV_MEMORY_AUTO) return;
  clv_host_memory_read("", &host);
  c->memory_limit = host.bytes ? host.bytes / 5 * 4 : CLV_MEMORY_NONE;
  c->memory_limit_is_computed = host.bytes > 0;
}

clv_code clv_worker_read_config(const clv_worker_arguments *a, clv_worker_config **ret,
                                clv_err *err) {
  clv_config_overrides over = {
      .env = (const char *const *)environ, .sets = a->sets.items, .n_sets = a->sets.n};
  CLV_TRY(clv_worker_config_load(a->config, &over, ret, err));
  resolve_memory_limit(*ret);
  return CLV_OK;
}

/* ---- what needs a restart -------------------------------------------------------------------- */

static bool is_same_text(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool are_same_cores(const clv_number_list *a, const clv_number_list *b) {
  for (size_t i = 0; a->n == b->n && i < a->n; i++)
    if (a->items[i] != b->items[i]) return false;
  return a->n == b->n;
}

static bool are_same_texts(const clv_text_list *a, const clv_text_list *b) {
  for (size_t i = 0; a->n == b->n && i < a->n; i++)
    if (!is_same_text(a->items[i], b->items[i])) return false;
  return a->n == b->n;
}

static void log_changed_fixed_settings(const clv_worker_config *was, const clv_worker_config *is) {
  const struct {
    const char *key;
    bool same;
  } fixed[] = {
      {"listen", is_same_text(was->listen, is->listen)},
      {"name", is_same_text(was->name, is->name)},
      {"device", is_same_text(was->device, is->device)},
      {"cuda.library", is_same_text(was->cuda.library, is->cuda.library)},
      {"cuda.folders", are_same_texts(&was->cuda.folders, &is->cuda.folders)},
      {"cuda.plans", is_same_text(was->cuda.plans_folder, is->cuda.plans_folder)},
      {"cuda.graphs", was->cuda.graphs == is->cuda.graphs},
      {"cpu_devices", was->cpu_devices == is->cpu_devices},
      {"device_memory", was->device_memory == is->device_memory},
      {"state_dir", is_same_text(was->state_dir, is->state_dir)},
      {"cores", are_same_cores(&was->cores, &is->cores)},
      {"metrics.listen", is_same_text(was->metrics.listen, is->metrics.listen)},
      {"log.level", was->log.level == is->log.level},
      {"log.json", was->log.json == is->log.json},
      {"drain_timeout", was->drain_timeout_ms == is->drain_timeout_ms},
      {"limits.message_size", was->limits.message_bytes == is->limits.message_bytes},
      {"limits.concurrent_calls", was->limits.concurrent_calls == is->limits.concurrent_calls},
      {"limits.peer_timeout", was->limits.peer_timeout_ms == is->limits.peer_timeout_ms},
      {"limits.handshake_timeout",
       was->limits.handshake_timeout_ms == is->limits.handshake_timeout_ms},
  };
  for (size_t i = 0; i < CLV_COUNT(fixed); i++)
    if (!fixed[i].same)
      clv_log_event(CLV_LOG_WARN, "reload", "%s has changed and needs a restart", fixed[i].key);
}

/* Keeps the old values of settings that a reload cannot change and that replies report to
 * callers. */
static void keep_fixed_settings(const clv_worker_config *was, clv_worker_config *is) {
  is->limits.message_bytes = was->limits.message_bytes;
  is->limits.concurrent_calls = was->limits.concurrent_calls;
  is->limits.peer_timeout_ms = was->limits.peer_timeout_ms;
}

/* ---- reloading ------------------------------------------------------------------------------- */

typedef struct new_files {
  clv_worker_config *config;
  clv_tls_identity *identity;
  clv_tls_crl *crl;
} new_files;

static void new_files_done(new_files *n) {
  clv_worker_config_free(n->config);
  clv_tls_identity_free(n->identity);
  clv_tls_crl_free(n->crl);
}

static clv_code read_new_files(const clv_worker_arguments *a, new_files *n, clv_err *err) {
  CLV_TRY(clv_worker_read_config(a, &n->config, err));
  const clv_tls_config *tls = &n->config->tls;
  CLV_TRY(clv_tls_identity_load(tls->ca, tls->cert, tls->key, &n->identity, err));
  CLV_TRY(clv_tls_identity_require_usage(n->identity, CLV_TLS_SERVER, err));
  CLV_TRY(clv_tls_revocation_read(tls->crl, n->identity, &n->crl, err));
  return clv_store_check(n->config, err);
}

static void on_revoked(void *service, const char *uri) { clv_service_revoke(service, uri); }

/* Applies the files that were read. The steps that can fail come first. */
static clv_code apply_new_files(clv_service *service, new_files *n, clv_err *err) {
  const clv_worker_config *c = n->config; /* owned by the service after clv_service_reload */
  CLV_TRY(clv_admission_prepare(c, err));
  CLV_TRY(clv_service_reload(service, &n->config, n->identity, err));
  CLV_TRY(clv_admission_open(c, err));
  clv_tls_revocation_set(&n->crl);
  unsigned ended = clv_tls_accepted_end_revoked(on_revoked, service);
  if (ended)
    clv_log_event(CLV_LOG_WARN, "audit", "end connections=%u reason=\"certificate revoked\"",
                  ended);
  return CLV_OK;
}

void clv_worker_reload(const clv_worker_arguments *a, clv_service *service,
                       const clv_worker_config *first) {
  CLV_AUTO(new_files_done) new_files n = {0};
  clv_err err;
  clv_code code = read_new_files(a, &n, &err);
  if (code != CLV_OK) clv_service_reload_failed(service);
  if (code == CLV_OK) {
    log_changed_fixed_settings(first, n.config);
    keep_fixed_settings(first, n.config);
    code = apply_new_files(service, &n, &err);
  }
  if (code == CLV_OK) {
    int days = clv_tls_identity_days_left(n.identity);
    clv_log_event(CLV_LOG_INFO, "certificates", "reloaded, identity=%s, %d day%s left",
                  n.identity->uri, days, CLV_S(days));
    return;
  }
  clv_log_event(CLV_LOG_ERROR, "certificates", "NOT reloaded, the old ones stay in use: %s",
                err.text);
  clv_service_set_last_error(service, NULL,
                             "worker.yaml and certificates were not reloaded; the worker's log "
                             "says why");
}

/* ---- expiry of the revocation list ----------------------------------------------------------- */

void clv_worker_warn_crl_expiry(void) {
  static uint64_t told_ns;
  int64_t ends = clv_tls_revocation_expiry(), left = ends - (int64_t)(clv_wall_ms() / 1000);
  uint64_t now = clv_now_ns();
  clv_err err;
  if (!ends || left > CLV_TLS_CRL_WARN_S) return;
  if (told_ns && now - told_ns < DAY_NS) return;
  told_ns = now;
  if (clv_tls_revocation_check_expiry(&err) != CLV_OK)
    clv_log_event(CLV_LOG_ERROR, "revocation", "%s", err.text);
  else
    clv_log_event(CLV_LOG_WARN, "revocation",
                  "the list of tls.crl expires in %lld hours, and then every caller is refused: "
                  "make a new one (cleave-master certs revoke) and reload",
                  (long long)left / 3600);
}
