/* SPDX-License-Identifier: Apache-2.0
 *
 * Reload after SIGHUP: reads worker.yaml, the certificates and the revocation lists again, and
 * checks them as at the start. Applies either all of them or none. Logs changed settings that need
 * a restart.
 */
#include <string.h>
#include <unistd.h>

#include "worker/admission_int.h"
#include "worker/store/store.h"
#include "worker/worker_int.h"

#define DAY_NS (86400ull * 1000000000u)

/* Replaces `memory_limit: auto` by four fifths of the host's memory. The rest is for the program
 * itself and for socket buffers of the kernel. */
static void resolve_memory_limit(clv_worker_config *c) {
  clv_host_memory host_memory;
  if (c->memory_limit != CLV_MEMORY_AUTO) return;
  clv_host_memory_read("", &host_memory);
  c->memory_limit = host_memory.bytes ? host_memory.bytes / 5 * 4 : CLV_MEMORY_NONE;
  c->memory_limit_is_computed = host_memory.bytes > 0;
}

clv_code clv_worker_read_config(const clv_worker_arguments *a, clv_worker_config **ret,
                                clv_err *err) {
  clv_config_overrides overrides = {
      .env = (const char *const *)environ, .sets = a->sets.items, .n_sets = a->sets.n};
  CLV_TRY(clv_worker_config_load(a->config_path, &overrides, ret, err));
  resolve_memory_limit(*ret);
  return CLV_OK;
}

/* ---- settings that need a restart ------------------------------------------------------------ */

static bool is_same_text(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_core_list(const clv_number_list *a, const clv_number_list *b) {
  for (size_t i = 0; a->n == b->n && i < a->n; i++)
    if (a->items[i] != b->items[i]) return false;
  return a->n == b->n;
}

static bool is_same_text_list(const clv_text_list *a, const clv_text_list *b) {
  for (size_t i = 0; a->n == b->n && i < a->n; i++)
    if (!is_same_text(a->items[i], b->items[i])) return false;
  return a->n == b->n;
}

/* Logs each changed setting that a reload cannot change. */
static void log_changed_fixed_settings(const clv_worker_config *old_config,
                                       const clv_worker_config *new_config) {
  const struct {
    const char *key;
    bool is_unchanged;
  } fixed_settings[] = {
      {"listen", is_same_text(old_config->listen, new_config->listen)},
      {"name", is_same_text(old_config->name, new_config->name)},
      {"device", is_same_text(old_config->device, new_config->device)},
      {"cuda.library", is_same_text(old_config->cuda.library, new_config->cuda.library)},
      {"cuda.folders", is_same_text_list(&old_config->cuda.folders, &new_config->cuda.folders)},
      {"cuda.plans", is_same_text(old_config->cuda.plans_folder, new_config->cuda.plans_folder)},
      {"cuda.graphs", old_config->cuda.graphs == new_config->cuda.graphs},
      {"cpu_devices", old_config->cpu_devices == new_config->cpu_devices},
      {"device_memory", old_config->device_memory == new_config->device_memory},
      {"state_dir", is_same_text(old_config->state_dir, new_config->state_dir)},
      {"cores", is_same_core_list(&old_config->cores, &new_config->cores)},
      {"metrics.listen", is_same_text(old_config->metrics.listen, new_config->metrics.listen)},
      {"log.level", old_config->log.level == new_config->log.level},
      {"log.json", old_config->log.json == new_config->log.json},
      {"drain_timeout", old_config->drain_timeout_ms == new_config->drain_timeout_ms},
      {"limits.message_size", old_config->limits.message_bytes == new_config->limits.message_bytes},
      {"limits.concurrent_calls",
       old_config->limits.concurrent_calls == new_config->limits.concurrent_calls},
      {"limits.peer_timeout",
       old_config->limits.peer_timeout_ms == new_config->limits.peer_timeout_ms},
      {"limits.handshake_timeout",
       old_config->limits.handshake_timeout_ms == new_config->limits.handshake_timeout_ms},
  };
  for (size_t i = 0; i < CLV_COUNT(fixed_settings); i++)
    if (!fixed_settings[i].is_unchanged)
      clv_log_event(CLV_LOG_WARN, "reload", "%s has changed and needs a restart",
                    fixed_settings[i].key);
}

/* Keeps the old values of some settings that a reload cannot change, because replies to callers
 * report these values. */
static void keep_fixed_settings(const clv_worker_config *old_config,
                                clv_worker_config *new_config) {
  new_config->limits.message_bytes = old_config->limits.message_bytes;
  new_config->limits.concurrent_calls = old_config->limits.concurrent_calls;
  new_config->limits.peer_timeout_ms = old_config->limits.peer_timeout_ms;
}

/* ---- reading and applying worker.yaml and the files of certificates -------------------------- */

/* Content of the files that a reload has read. */
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

/* Applies the new files. The steps that can fail come first, so that a failure changes nothing. */
static clv_code apply_new_files(clv_service *service, new_files *n, clv_err *err) {
  const clv_worker_config *c = n->config; /* owned by the service after clv_service_reload */
  CLV_TRY(clv_admission_prepare(c, err));
  CLV_TRY(clv_service_reload(service, &n->config, n->identity, err));
  CLV_TRY(clv_admission_open(c, err));
  clv_tls_revocation_set(&n->crl);
  unsigned n_ended = clv_tls_accepted_end_revoked(on_revoked, service);
  if (n_ended)
    clv_log_event(CLV_LOG_WARN, "audit", "end connections=%u reason=\"certificate revoked\"",
                  n_ended);
  return CLV_OK;
}

void clv_worker_reload(const clv_worker_arguments *a, clv_service *service,
                       const clv_worker_config *start_config) {
  CLV_AUTO(new_files_done) new_files n = {0};
  clv_err err;
  clv_code code = read_new_files(a, &n, &err);
  if (code != CLV_OK) clv_service_count_failed_reload(service);
  if (code == CLV_OK) {
    log_changed_fixed_settings(start_config, n.config);
    keep_fixed_settings(start_config, n.config);
    code = apply_new_files(service, &n, &err);
  }
  if (code == CLV_OK) {
    int days_left = clv_tls_identity_days_left(n.identity);
    clv_log_event(CLV_LOG_INFO, "certificates", "reloaded, identity=%s, %d day%s left",
                  n.identity->uri, days_left, CLV_S(days_left));
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
  static uint64_t last_warned_ns;
  int64_t expiry_s = clv_tls_revocation_expiry(),
          remaining_s = expiry_s - (int64_t)(clv_wall_ms() / 1000);
  uint64_t now_ns = clv_now_ns();
  clv_err err;
  if (!expiry_s || remaining_s > CLV_TLS_CRL_WARN_S) return;
  if (last_warned_ns && now_ns - last_warned_ns < DAY_NS) return;
  last_warned_ns = now_ns;
  if (clv_tls_revocation_check_expiry(&err) != CLV_OK)
    clv_log_event(CLV_LOG_ERROR, "revocation", "%s", err.text);
  else
    clv_log_event(CLV_LOG_WARN, "revocation",
                  "the list of tls.crl expires in %lld hours, and then every caller is refused: "
                  "make a new one (cleave-master certs revoke) and reload",
                  (long long)remaining_s / 3600);
}
