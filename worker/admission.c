/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of connections. An identity must be in `allow`, and have fewer connections than its own
 * quota. Of the connections in limits.connections, an eighth is reserved for handshakes, so that
 * the identity of a new caller can always be checked. The others are for identified callers. Of
 * these an eighth is reserved for identities with fewer than FEW_CONNECTIONS connections, so that
 * identities with many connections leave enough for a session of another identity.
 *
 * common/net/tls calls the callbacks of this file while it holds the lock of its table. The main
 * thread calls clv_admission_report. `lock` guards the variables that both use.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/admission_int.h"

/* number of connections that is enough for one session */
enum { FEW_CONNECTIONS = 8 };
enum { FLOOD_REFUSAL_S = 10 }; /* seconds for which an identity is refused after a flood */

/* An identity that is or was in `allow`. decide_admission returns its index in admitted_identities
 * to common/net/tls, which passes the index to the other callbacks. */
typedef struct admitted_identity {
  char *identity;
  bool is_in_allow; /* the newest configuration has the identity in `allow` */
  uint64_t max_connections, n_connections;
  /* monotonic time until which connections are refused after a flood; 0: never */
  uint64_t refused_until_ns;
} admitted_identity;

/* A connection that was refused. */
typedef struct refusal {
  char identity[CLV_TLS_URI_LEN]; /* "": unknown identity */
  char text[CLV_ERR_TEXT];        /* text for Status */
} refusal;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static admitted_identity *admitted_identities;
static size_t n_admitted_identities;
static uint64_t max_all_connections, n_all_connections;
static refusal newest_refusal;
static bool has_new_refusal; /* newest_refusal is not reported to Status yet */

/* ---- table of admitted identities ------------------------------------------------------------ */

/* Returns the index of an identity; n_admitted_identities: the identity is not in the table. */
static size_t find_admitted_identity(const char *identity) {
  size_t i = 0;
  while (i < n_admitted_identities && strcmp(admitted_identities[i].identity, identity) != 0) i++;
  return i;
}

static clv_code add_admitted_identity(const char *identity, clv_err *err) {
  admitted_identity *larger_array =
      realloc(admitted_identities, (n_admitted_identities + 1) * sizeof *admitted_identities);
  if (!larger_array) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  admitted_identities = larger_array;
  admitted_identities[n_admitted_identities] = (admitted_identity){0};
  CLV_TRY(clv_strdup(identity, &admitted_identities[n_admitted_identities].identity, err));
  n_admitted_identities++;
  return CLV_OK;
}

/* Copies the quotas of connections from a configuration. Caller holds the lock. */
static void update_quotas(const clv_worker_config *c) {
  for (size_t i = 0; i < n_admitted_identities; i++) admitted_identities[i].is_in_allow = false;
  for (size_t i = 0; i < c->n_allow; i++) {
    admitted_identity *h = &admitted_identities[find_admitted_identity(c->allow[i].identity)];
    uint64_t own_max_connections = c->allow[i].connections;
    h->is_in_allow = true;
    h->max_connections = own_max_connections ? own_max_connections : c->limits.identity_connections;
  }
  max_all_connections = c->limits.connections;
}

/* ---- decisions on connections ---------------------------------------------------------------- */

/* Returns the number of connections for identified callers: limits.connections without the eighth
 * that is reserved for handshakes. */
static uint64_t max_identified_connections(void) {
  return max_all_connections - max_all_connections / 8;
}

/* Decides whether the quotas allow an identity another connection. Caller holds the lock. */
static clv_tls_decision decide_by_quota(const admitted_identity *h) {
  uint64_t max_connections_now = max_identified_connections();
  if (clv_now_ns() < h->refused_until_ns) return CLV_TLS_CUT_OFF;
  if (h->n_connections >= h->max_connections) return CLV_TLS_OVER_QUOTA;
  if (h->n_connections >= FEW_CONNECTIONS) max_connections_now -= max_connections_now / 8;
  return n_all_connections < max_connections_now ? CLV_TLS_ADMITTED : CLV_TLS_FULL;
}

static const char *get_refusal_reason(clv_tls_decision v) {
  static const char *const reasons[CLV_TLS_DECISIONS] = {
      [CLV_TLS_NOT_ALLOWED] = "identity not in allow",
      [CLV_TLS_OVER_QUOTA] =
          "over its quota of connections (allow[].connections or "
          "limits.identity_connections)",
      [CLV_TLS_FULL] = "all connections are in use (limits.connections)",
      [CLV_TLS_CUT_OFF] = "refused for 10 s after a flood of frames that are not calls",
      [CLV_TLS_NOT_FOR_CLIENTS] =
          "its certificate does not have TLS client in an extended key usage",
  };
  return reasons[v];
}

static void set_newest_refusal(const char *identity, const char *caller_name, const char *reason) {
  snprintf(newest_refusal.identity, sizeof newest_refusal.identity, "%s", identity ? identity : "");
  snprintf(newest_refusal.text, sizeof newest_refusal.text,
           "a connection of %.150s was refused: %s", caller_name, reason);
  has_new_refusal = true;
}

static void log_refusal(const char *identity, const char *address, const char *reason) {
  const clv_log_source source = {.peer = identity ? identity : address,
                                 .event_kind = "refused connections"};
  clv_log_limited(CLV_LOG_WARN, "audit", &source, "deny identity=%s address=%s reason=\"%s\"",
                  identity ? identity : "?", address, reason);
  set_newest_refusal(identity, source.peer, reason);
}

/* Decides whether to admit a caller whose certificate is valid. Fills *why if the certificate is
 * revoked or there is no valid revocation list. Caller holds the lock. */
static clv_tls_decision decide_on_caller(const clv_tls_caller *caller, size_t *ret_index,
                                         clv_err *why) {
  size_t i = caller->uri ? find_admitted_identity(caller->uri) : n_admitted_identities;
  if (i == n_admitted_identities || !admitted_identities[i].is_in_allow) return CLV_TLS_NOT_ALLOWED;
  if (!caller->has_client_usage) return CLV_TLS_NOT_FOR_CLIENTS;
  *ret_index = i;
  clv_tls_decision v = clv_tls_revocation_decide(caller->issuer, caller->serial, why);
  return v == CLV_TLS_ADMITTED ? decide_by_quota(&admitted_identities[i]) : v;
}

static clv_tls_decision decide_admission(void *user, const clv_tls_caller *caller,
                                         size_t *ret_index) {
  (void)user;
  clv_err why;
  pthread_mutex_lock(&lock);
  clv_tls_decision v = decide_on_caller(caller, ret_index, &why);
  if (v != CLV_TLS_ADMITTED)
    log_refusal(caller->uri, caller->address,
                !caller->uri ? "a certificate without exactly one URI"
                : v == CLV_TLS_REVOKED || v == CLV_TLS_NO_CRL ? why.text
                                                              : get_refusal_reason(v));
  pthread_mutex_unlock(&lock);
  return v;
}

/* Counts a new connection of admitted_identities[i], if the quotas allow the connection. */
static clv_tls_decision count_connection(void *user, size_t i) {
  (void)user;
  pthread_mutex_lock(&lock);
  clv_tls_decision v = decide_by_quota(&admitted_identities[i]);
  if (v == CLV_TLS_ADMITTED) {
    admitted_identities[i].n_connections++;
    n_all_connections++;
  } else {
    log_refusal(admitted_identities[i].identity, "?", get_refusal_reason(v));
  }
  pthread_mutex_unlock(&lock);
  return v;
}

static void uncount_connection(void *user, size_t i) {
  (void)user;
  pthread_mutex_lock(&lock);
  admitted_identities[i].n_connections--;
  n_all_connections--;
  pthread_mutex_unlock(&lock);
}

static void on_flood(void *user, size_t i, const char *address, const char *flood_text) {
  char reason[160];
  (void)user;
  snprintf(reason, sizeof reason, "its connection was cut: it sent %s", flood_text);
  pthread_mutex_lock(&lock);
  admitted_identities[i].refused_until_ns = clv_now_ns() + FLOOD_REFUSAL_S * 1000000000ull;
  log_refusal(admitted_identities[i].identity, address, reason);
  pthread_mutex_unlock(&lock);
}

static void on_shed(void *user, const char *address) {
  const clv_log_source source = {.peer = address, .event_kind = "connections let go"};
  (void)user;
  clv_log_limited(CLV_LOG_WARN, "audit", &source, "deny address=%s reason=\"%s\"", address,
                  get_refusal_reason(CLV_TLS_FULL));
  pthread_mutex_lock(&lock);
  set_newest_refusal(NULL, address, get_refusal_reason(CLV_TLS_FULL));
  pthread_mutex_unlock(&lock);
}

/* ---- starting and stopping admission control ------------------------------------------------- */

clv_code clv_admission_prepare(const clv_worker_config *config, clv_err *err) {
  clv_code code = CLV_OK;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < config->n_allow && code == CLV_OK; i++)
    if (find_admitted_identity(config->allow[i].identity) == n_admitted_identities)
      code = add_admitted_identity(config->allow[i].identity, err);
  pthread_mutex_unlock(&lock);
  return code;
}

clv_code clv_admission_open(const clv_worker_config *config, clv_err *err) {
  const clv_tls_admission a = {.max_connections = config->limits.connections,
                               .max_unread_bytes = clv_service_transport_memory(config) / 2,
                               .decide_admission = decide_admission,
                               .enter_connection = count_connection,
                               .leave_connection = uncount_connection,
                               .on_flood = on_flood,
                               .on_shed = on_shed};
  CLV_TRY(clv_admission_prepare(config, err));
  pthread_mutex_lock(&lock);
  update_quotas(config);
  pthread_mutex_unlock(&lock);
  return clv_tls_set_admission(&a, err);
}

void clv_admission_close(void) {
  clv_tls_clear_admission();
  for (size_t i = 0; i < n_admitted_identities; i++) free(admitted_identities[i].identity);
  free(admitted_identities);
  admitted_identities = NULL;
  n_admitted_identities = n_all_connections = 0;
}

void clv_admission_report(clv_service *service) {
  static refusal reported_refusal;
  pthread_mutex_lock(&lock);
  bool has_refusal = has_new_refusal;
  if (has_refusal) reported_refusal = newest_refusal;
  has_new_refusal = false;
  pthread_mutex_unlock(&lock);
  if (has_refusal)
    clv_service_set_last_error(service,
                               *reported_refusal.identity ? reported_refusal.identity : NULL, "%s",
                               reported_refusal.text);
}
