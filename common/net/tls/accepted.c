/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission of the connections that this process accepts, from their first byte to the end of their
 * TLS object. gRPC 1.51 neither checks nor limits them, so this file works around gRPC. The accept
 * guard (accept4) calls clv_tls_accepted_expect_fd with the next descriptor. OpenSSL, on the same
 * thread, reports the TLS object made for it, and later a verified certificate and the freed
 * object.
 *
 * The program's admission decides twice: at the certificate, whether to continue; at the Finished
 * message, when the peer has proved its key, the connection starts to count. So a peer that shows
 * another identity's certificate uses none of that identity's quota. A refusal fails the handshake
 * with an alert. gRPC does not send alerts, so this file catches the alert in a BIO of its own and
 * writes it to the socket.
 *
 * Every connection is verified: without tickets no TLS session can be resumed.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/net/tls/tls_int.h"

enum { MAX_HASH = 256, MAX_CONNECTIONS = 65535, SPARE_ENTRIES = 64 };
/* entries of the table, enough for connections that are being closed too */
enum { TABLE_ENTRIES = 2 * MAX_CONNECTIONS + SPARE_ENTRIES };

typedef union address {
  struct sockaddr generic;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} address;

typedef struct entry {
  bool is_used;
  bool has_sent_handshake; /* a handshake message was received */
  bool is_admitted;        /* the admission has admitted its certificate */
  /* the connection counts against its holder (the identity in its certificate) */
  bool is_counted_for_holder;
  bool is_shut; /* this file has shut the connection down; n_live does not count it */
  bool is_output_redirected;
  uint32_t generation; /* number of times that this table entry was used */
  clv_tls_frame_meter frame_meter;
  clv_tls_decision decision;
  int fd; /* descriptor of the connection; -1: another connection has got the number */
  uint64_t began_ns;
  size_t holder_number;
  /* fields of the connection's certificate; NULL until the certificate is admitted */
  char *issuer, *serial, *uri;
  address peer_address;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* callbacks of the program; decide_admission NULL: every connection is admitted */
static clv_tls_admission admission;
static entry *entries;   /* [TABLE_ENTRIES]; memory is touched only when used */
static size_t n_entries; /* entries[0] to entries[n_entries - 1] have been used */
static size_t n_live;    /* number of entries with a connection that is not shut */
/* bytes received and not delivered, of all connections that are not shut */
static uint64_t total_unread;
static _Atomic uint64_t n_shed, n_floods;
static int ex_data_index = -1;
/* descriptor of the connection whose SSL object this thread makes next; -1: it is not recorded */
static _Thread_local int next_fd = -1;

/* ---- addresses of peers ---------------------------------------------------------------------- */

/* Returns a hash of the host: of its IPv4 address, or of the first half of its IPv6 address. */
static size_t hash_of_host(const address *from) {
  const struct in6_addr *in6 = &from->v6.sin6_addr;
  if (from->generic.sa_family == AF_INET) return clv_crc32c(0, &from->v4.sin_addr, 4) % MAX_HASH;
  if (from->generic.sa_family != AF_INET6) return 0;
  if (IN6_IS_ADDR_V4MAPPED(in6)) return clv_crc32c(0, &in6->s6_addr[12], 4) % MAX_HASH;
  return clv_crc32c(0, in6, 8) % MAX_HASH;
}

static const char *address_text(const address *from, char buf[INET6_ADDRSTRLEN]) {
  const struct in6_addr *in6 = &from->v6.sin6_addr;
  if (from->generic.sa_family == AF_INET) return inet_ntop(AF_INET, &from->v4.sin_addr, buf, 16);
  if (from->generic.sa_family != AF_INET6) return "?";
  if (IN6_IS_ADDR_V4MAPPED(in6)) return inet_ntop(AF_INET, &in6->s6_addr[12], buf, 16);
  return inet_ntop(AF_INET6, in6, buf, INET6_ADDRSTRLEN);
}

static address read_peer_address(int fd) {
  address from = {.v6 = {0}};
  socklen_t len = sizeof from;
  (void)getpeername(fd, &from.generic, &len);
  return from;
}

/* Shuts a connection down. gRPC may have closed the descriptor, and it may be open again for
 * another peer; then the address differs and the descriptor is left alone. */
static void shut_connection(entry *e) {
  if (!e->is_shut) n_live--;
  e->is_shut = true;
  total_unread -= e->frame_meter.unread_bytes;
  e->frame_meter.unread_bytes = 0;
  if (e->fd < 0) return;
  address now = read_peer_address(e->fd);
  if (memcmp(&now, &e->peer_address, sizeof now) == 0) shutdown(e->fd, SHUT_RDWR);
}

/* ---- closing a handshake to make room for a connection --------------------------------------- */

static bool is_handshaking(const entry *e) {
  return e->is_used && !e->is_shut && !e->is_counted_for_holder;
}

static bool is_better_to_close(const entry *a, const entry *b) {
  if (a->has_sent_handshake != b->has_sent_handshake) return !a->has_sent_handshake;
  return a->began_ns < b->began_ns;
}

/* Returns the handshake that has been silent for longest among those of the address with the most
 * handshakes. */
static entry *find_handshake_to_close(void) {
  uint32_t count[MAX_HASH] = {0}, most = 0;
  entry *found = NULL;
  for (size_t i = 0; i < n_entries; i++)
    if (is_handshaking(&entries[i]))
      most = CLV_MAX(most, ++count[hash_of_host(&entries[i].peer_address)]);
  for (size_t i = 0; i < n_entries; i++) {
    entry *e = &entries[i];
    if (is_handshaking(e) && count[hash_of_host(&e->peer_address)] == most &&
        (!found || is_better_to_close(e, found)))
      found = e;
  }
  return found;
}

static void report_shed_connection(const address *from) {
  char text[INET6_ADDRSTRLEN];
  n_shed++;
  admission.on_shed(admission.user, address_text(from, text));
}

/* Makes room for the connection `fd`. False: all connections are in use and none is in its
 * handshake. The caller holds the lock. */
static bool make_room_for_connection(int fd) {
  for (size_t i = 0; i < n_entries; i++)
    if (entries[i].is_used && entries[i].fd == fd) entries[i].fd = -1;
  if (!admission.decide_admission || n_live < admission.max_connections) return true;
  entry *e = find_handshake_to_close();
  if (e) {
    e->decision = CLV_TLS_FULL;
    report_shed_connection(&e->peer_address);
    shut_connection(e);
    return true;
  }
  address from = read_peer_address(fd);
  report_shed_connection(&from);
  return false;
}

bool clv_tls_accepted_expect_fd(int fd) {
  pthread_mutex_lock(&lock);
  bool has_room = make_room_for_connection(fd);
  pthread_mutex_unlock(&lock);
  next_fd = has_room ? fd : -1;
  return has_room;
}

unsigned clv_tls_accepted_end_revoked(void (*ended)(void *user, const char *uri), void *user) {
  unsigned n_ended = 0;
  clv_err err;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < n_entries; i++) {
    entry *e = &entries[i];
    if (!e->is_used || e->is_shut || !e->issuer) continue;
    if (clv_tls_revocation_decide(e->issuer, e->serial, &err) != CLV_TLS_REVOKED) continue;
    e->decision = CLV_TLS_REVOKED;
    shut_connection(e);
    if (ended) ended(user, e->uri);
    n_ended++;
  }
  pthread_mutex_unlock(&lock);
  return n_ended;
}

uint64_t clv_tls_accepted_shed_count(void) { return n_shed; }

/* ---- verifying the certificate of a peer ----------------------------------------------------- */

/* Returns the X509_verify_cert error that becomes the alert of a decision: handshake_failure (not
 * allowed), internal_error (no room), certificate_revoked, unsupported_certificate. */
static int verify_error_of(clv_tls_decision v) {
  if (v == CLV_TLS_NOT_ALLOWED) return X509_V_ERR_APPLICATION_VERIFICATION;
  if (v == CLV_TLS_NOT_FOR_CLIENTS) return X509_V_ERR_INVALID_PURPOSE;
  return v == CLV_TLS_REVOKED ? X509_V_ERR_CERT_REVOKED : X509_V_ERR_UNSPECIFIED;
}

/* True if the certificate has TLS client in its extended key usage. To OpenSSL, a certificate
 * without an extended key usage allows all uses. */
static bool cert_has_client_usage(const X509 *cert) {
  unsigned usage = 0;
  return clv_tls_cert_usage(cert, &usage) && usage & CLV_TLS_CLIENT;
}

static void free_cert_texts(entry *e) {
  free(e->issuer);
  free(e->serial);
  free(e->uri);
  e->issuer = e->serial = e->uri = NULL;
}

static bool store_cert_texts(entry *e, const char *uri, const char *issuer, const char *serial) {
  free_cert_texts(e);
  e->issuer = strdup(issuer);
  e->serial = strdup(serial);
  e->uri = strdup(uri);
  return e->issuer && e->serial && e->uri;
}

static clv_tls_decision decide_on_certificate(entry *e, const X509 *cert) {
  char uri[CLV_TLS_URI_LEN], from[INET6_ADDRSTRLEN];
  char issuer[CLV_TLS_ISSUER_LEN], serial[CLV_TLS_SERIAL_LEN];
  bool has_uri = clv_tls_uri_of_x509(cert, uri, sizeof uri, NULL) == CLV_OK;
  clv_tls_serial_text(X509_get0_serialNumber(cert), serial);
  clv_tls_issuer_text(X509_get_issuer_name(cert), issuer);
  ERR_clear_error();
  clv_tls_caller caller = {.uri = has_uri ? uri : NULL,
                           .issuer = issuer,
                           .serial = serial,
                           .has_client_usage = cert_has_client_usage(cert),
                           .address = address_text(&e->peer_address, from)};
  clv_tls_decision v = admission.decide_admission(admission.user, &caller, &e->holder_number);
  return v == CLV_TLS_ADMITTED && !store_cert_texts(e, has_uri ? uri : "", issuer, serial)
             ? CLV_TLS_FULL
             : v;
}

/* Redirects OpenSSL's output to a memory BIO, from which send_alert takes it. */
static void redirect_output(SSL *ssl, entry *e) {
  BIO *own = BIO_new(BIO_s_mem());
  e->is_output_redirected = own != NULL;
  if (own) SSL_set0_wbio(ssl, own);
}

static int on_verify(int ok, X509_STORE_CTX *ctx) {
  SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
  if (!SSL_is_server(ssl)) return clv_tls_revocation_verify(ok, ctx);
  if (X509_STORE_CTX_get_error_depth(ctx) > 0 || ex_data_index < 0) return ok;
  entry *e = SSL_get_ex_data(ssl, ex_data_index);
  if (!ok && e && !e->is_output_redirected)
    redirect_output(ssl, e); /* so that send_alert sends OpenSSL's own reason */
  if (!ok) return 0;
  clv_tls_decision v = CLV_TLS_FULL; /* decision if the connection has no table entry */
  pthread_mutex_lock(&lock);
  if (e)
    v = e->decision = admission.decide_admission
                          ? decide_on_certificate(e, X509_STORE_CTX_get0_cert(ctx))
                          : CLV_TLS_ADMITTED;
  if (e) e->is_admitted = v == CLV_TLS_ADMITTED;
  pthread_mutex_unlock(&lock);
  if (v == CLV_TLS_ADMITTED) return 1;
  X509_STORE_CTX_set_error(ctx, verify_error_of(v));
  if (e) redirect_output(ssl, e);
  return 0;
}

/* ---- messages of a handshake ----------------------------------------------------------------- */

/* Counts the connection against its holder, because the peer has proved its key. */
static void count_for_holder(entry *e) {
  pthread_mutex_lock(&lock);
  if (e->is_admitted && admission.decide_admission && !e->is_counted_for_holder && !e->is_shut) {
    e->decision = admission.enter_connection(admission.user, e->holder_number);
    e->is_counted_for_holder = e->decision == CLV_TLS_ADMITTED;
  }
  if (!e->is_counted_for_holder && !e->is_shut && admission.decide_admission) shut_connection(e);
  pthread_mutex_unlock(&lock);
}

/* Sends the alert in the BIO of redirect_output: a few bytes, which fit the socket's buffer. */
static void send_alert(const SSL *ssl, const entry *e) {
  char *data = NULL;
  long len = BIO_get_mem_data(SSL_get_wbio(ssl), &data);
  if (e->fd >= 0 && len > 0) (void)!send(e->fd, data, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void mark_has_sent_handshake(entry *e) {
  pthread_mutex_lock(&lock);
  e->has_sent_handshake = true;
  pthread_mutex_unlock(&lock);
}

void clv_tls_accepted_on_handshake_message(SSL *ssl, bool was_sent, int type, const uint8_t *data,
                                           size_t len) {
  entry *e = ex_data_index >= 0 ? SSL_get_ex_data(ssl, ex_data_index) : NULL;
  if (!e || !SSL_is_server(ssl)) return;
  if (was_sent && type == SSL3_RT_ALERT && e->is_output_redirected) send_alert(ssl, e);
  if (was_sent || type != SSL3_RT_HANDSHAKE || !len) return;
  mark_has_sent_handshake(e);
  if (data[0] == SSL3_MT_FINISHED) count_for_holder(e);
}

bool clv_tls_accepted_get_failure(const SSL *ssl, clv_tls_failure *ret) {
  static const clv_tls_failure failures[CLV_TLS_DECISIONS] = {
      [CLV_TLS_NOT_ALLOWED] = CLV_TLS_FAILURE_NOT_ALLOWED,
      [CLV_TLS_OVER_QUOTA] = CLV_TLS_FAILURE_QUOTA,
      [CLV_TLS_FULL] = CLV_TLS_FAILURE_SHED,
      [CLV_TLS_REVOKED] = CLV_TLS_FAILURE_REVOKED,
      [CLV_TLS_NOT_FOR_CLIENTS] = CLV_TLS_FAILURE_BAD_CERTIFICATE,
      [CLV_TLS_CUT_OFF] = CLV_TLS_FAILURE_QUOTA,
      [CLV_TLS_NO_CRL] = CLV_TLS_FAILURE_REVOKED,
  };
  const entry *e = ex_data_index >= 0 ? SSL_get_ex_data(ssl, ex_data_index) : NULL;
  if (!e) return false;
  pthread_mutex_lock(&lock);
  clv_tls_decision refused = e->decision;
  pthread_mutex_unlock(&lock);
  if (refused != CLV_TLS_ADMITTED) *ret = failures[refused];
  return refused != CLV_TLS_ADMITTED;
}

/* ---- limits of frames and unread bytes ------------------------------------------------------- */

/* Discards received bytes, which gRPC would otherwise read and serve. */
static void discard_received(int fd) {
  static const size_t MAX_DISCARDED_BYTES = 64u << 20;
  for (size_t n_discarded = 0; fd >= 0 && n_discarded < MAX_DISCARDED_BYTES;) {
    ssize_t n = recv(fd, NULL, 1 << 20, MSG_TRUNC | MSG_DONTWAIT);
    if (n <= 0) break;
    n_discarded += (size_t)n;
  }
}

static void cut_flooding_connection(entry *e, const char *what) {
  char from[INET6_ADDRSTRLEN];
  n_floods++;
  shut_connection(e);
  discard_received(e->fd);
  if (e->is_counted_for_holder && admission.on_flood)
    admission.on_flood(admission.user, e->holder_number, address_text(&e->peer_address, from),
                       what);
}

/* Returns the connection with the most unread bytes, of the holder with the most unread bytes.
 * Holders with the same hash count as one. */
static entry *find_connection_with_most_unread(void) {
  uint64_t unread_sums[MAX_HASH] = {0}, most = 0;
  entry *found = NULL;
  for (size_t i = 0; i < n_entries; i++)
    if (entries[i].is_used && entries[i].is_counted_for_holder)
      most = CLV_MAX(most, unread_sums[entries[i].holder_number % MAX_HASH] +=
                           entries[i].frame_meter.unread_bytes);
  for (size_t i = 0; i < n_entries; i++) {
    entry *e = &entries[i];
    if (!e->is_used || !e->is_counted_for_holder || e->is_shut ||
        unread_sums[e->holder_number % MAX_HASH] != most)
      continue;
    if (!found || e->frame_meter.unread_bytes > found->frame_meter.unread_bytes) found = e;
  }
  return found;
}

/* Charges received frames to connection e, and ends it if it exceeds a limit of one connection. If
 * all connections together exceed theirs, ends the one with most unread data, which may be another.
 * The caller holds the lock. */
static void charge_frames(entry *e, const void *data, size_t n) {
  uint64_t before = e->frame_meter.unread_bytes;
  const char *excess = clv_tls_frame_meter_charge(&e->frame_meter, data, n, clv_now_ns());
  total_unread = total_unread - before + e->frame_meter.unread_bytes;
  if (excess) cut_flooding_connection(e, excess);
  e = admission.max_unread_bytes && total_unread > admission.max_unread_bytes
          ? find_connection_with_most_unread()
          : NULL;
  if (e) cut_flooding_connection(e, "data of messages that do not end");
}

int clv_tls_accepted_ssl_read(void *ssl, void *data, int len) {
  size_t n = 0;
  if (len < 0 || SSL_read_ex(ssl, data, (size_t)len, &n) != 1) return -1;
  entry *e = ex_data_index >= 0 && SSL_is_server(ssl) ? SSL_get_ex_data(ssl, ex_data_index) : NULL;
  if (!e) return (int)n;
  pthread_mutex_lock(&lock);
  if (!e->is_shut) charge_frames(e, data, n);
  bool was_shut = e->is_shut;
  pthread_mutex_unlock(&lock);
  return was_shut ? -1 : (int)n;
}

void clv_tls_accepted_on_sent(SSL *ssl, size_t bytes) {
  entry *e = ex_data_index >= 0 && SSL_is_server(ssl) ? SSL_get_ex_data(ssl, ex_data_index) : NULL;
  if (!e) return;
  pthread_mutex_lock(&lock);
  clv_tls_frame_meter_credit(&e->frame_meter, CLV_TLS_WINDOWS, (uint32_t)(1 + bytes / 512));
  pthread_mutex_unlock(&lock);
}

/* Parses "ipv4:10.0.0.7:41212" or "ipv6:%5Bfe80::1%252%5D:41212". False: neither. */
static bool parse_address(const char *text, struct in6_addr *ret_host, in_port_t *ret_port) {
  const char *host = text, *colon = strrchr(text, ':');
  char buf[INET6_ADDRSTRLEN + 7] = "::ffff:";
  bool v4 = strncmp(text, "ipv4:", 5) == 0;
  if (!v4 && strncmp(text, "ipv6:%5B", 8) != 0) return false;
  host += v4 ? 5 : 8;
  size_t len = v4 ? (size_t)(colon - host) : strcspn(host, "%");
  if (colon < host || len >= INET6_ADDRSTRLEN) return false;
  snprintf(buf + 7 * v4, sizeof buf - 7, "%.*s", (int)len, host);
  *ret_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
  return inet_pton(AF_INET6, buf, ret_host) == 1;
}

static bool has_peer_address(const entry *e, const struct in6_addr *host, in_port_t port) {
  struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
  if (!e->is_used || e->is_shut) return false;
  if (e->peer_address.generic.sa_family == AF_INET6)
    return e->peer_address.v6.sin6_port == port &&
           memcmp(&e->peer_address.v6.sin6_addr, host, 16) == 0;
  memcpy(&mapped.s6_addr[12], &e->peer_address.v4.sin_addr, 4);
  return e->peer_address.generic.sa_family == AF_INET && e->peer_address.v4.sin_port == port &&
         memcmp(&mapped, host, 16) == 0;
}

uint64_t clv_tls_accepted_find_connection(const char *peer) {
  struct in6_addr host;
  in_port_t port;
  uint64_t found = 0;
  if (!peer || !parse_address(peer, &host, &port)) return 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < n_entries && !found; i++)
    if (has_peer_address(&entries[i], &host, port))
      found = (uint64_t)entries[i].generation << 32 | (uint64_t)(i + 1);
  pthread_mutex_unlock(&lock);
  return found;
}

/* Returns the entry of a connection; NULL: it has ended. The caller holds the lock. */
static entry *find_entry(uint64_t connection) {
  size_t i = (size_t)(connection & 0xffffffffu);
  entry *e = i ? &entries[i - 1] : NULL;
  return e && e->is_used && e->generation == (uint32_t)(connection >> 32) ? e : NULL;
}

void clv_tls_accepted_on_call(uint64_t connection) {
  pthread_mutex_lock(&lock);
  entry *e = find_entry(connection);
  if (e) clv_tls_frame_meter_credit(&e->frame_meter, CLV_TLS_REQUESTS, 1);
  pthread_mutex_unlock(&lock);
}

void clv_tls_accepted_on_message(uint64_t connection, size_t bytes) {
  pthread_mutex_lock(&lock);
  entry *e = find_entry(connection);
  uint64_t before = e ? e->frame_meter.unread_bytes : 0;
  if (e) clv_tls_frame_meter_credit_message(&e->frame_meter, bytes);
  total_unread -= e ? before - e->frame_meter.unread_bytes : 0;
  pthread_mutex_unlock(&lock);
}

uint64_t clv_tls_accepted_flood_count(void) { return n_floods; }

/* ---- callbacks of OpenSSL -------------------------------------------------------------------- */

static entry *find_unused_entry(void) {
  for (size_t i = 0; i < n_entries; i++)
    if (!entries[i].is_used) return &entries[i];
  return n_entries < TABLE_ENTRIES ? &entries[n_entries++] : NULL;
}

static entry *add_connection_entry(int fd) {
  pthread_mutex_lock(&lock);
  entry *e = find_unused_entry();
  if (e) {
    *e = (entry){.is_used = true,
                 .fd = fd,
                 .began_ns = clv_now_ns(),
                 .peer_address = read_peer_address(fd),
                 .generation = e->generation + 1};
    clv_tls_frame_meter_init(&e->frame_meter, e->began_ns);
    n_live++;
  }
  pthread_mutex_unlock(&lock);
  return e;
}

static void on_ssl_new(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                       void *argp) {
  (void)parent, (void)ptr, (void)argl, (void)argp;
  CRYPTO_set_ex_data(ad, index, next_fd >= 0 ? add_connection_entry(next_fd) : NULL);
  next_fd = -1;
}

/* Without tickets no session is resumed. */
void clv_tls_accepted_on_begin(SSL *ssl) {
  if (ex_data_index < 0) return;
  SSL_set_options(ssl, SSL_OP_NO_TICKET);
  SSL_set_num_tickets(ssl, 0);
}

/* Verifies a chain as OpenSSL would. gRPC's SSL objects have no callback and get on_verify; an
 * object that has one, such as the probe's, keeps it. */
static int verify_chain(X509_STORE_CTX *ctx, void *arg) {
  const SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
  (void)arg;
  if (ssl && !SSL_get_verify_callback(ssl)) X509_STORE_CTX_set_verify_cb(ctx, on_verify);
  return X509_verify_cert(ctx) > 0;
}

static void on_context_new(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                           void *argp) {
  (void)ptr, (void)ad, (void)index, (void)argl, (void)argp;
  SSL_CTX_set_cert_verify_callback(parent, verify_chain, NULL);
}

static void on_ssl_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                        void *argp) {
  entry *e = ptr;
  (void)parent, (void)ad, (void)index, (void)argl, (void)argp;
  if (!e) return;
  pthread_mutex_lock(&lock);
  if (e->is_counted_for_holder && admission.decide_admission)
    admission.leave_connection(admission.user, e->holder_number);
  if (!e->is_shut) n_live--;
  total_unread -= e->frame_meter.unread_bytes;
  free_cert_texts(e);
  e->is_used = false;
  pthread_mutex_unlock(&lock);
}

/* ---- functions that other files call --------------------------------------------------------- */

static void register_callbacks(void) {
  entries = calloc(TABLE_ENTRIES, sizeof *entries);
  if (entries)
    ex_data_index =
        CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL, 0, NULL, on_ssl_new, NULL, on_ssl_free);
}

static bool verifies_contexts;
static void register_context_callback(void) {
  verifies_contexts =
      CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, NULL, on_context_new, NULL, NULL) >= 0;
}

clv_code clv_tls_verification_install(clv_err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_context_callback);
  return verifies_contexts
             ? CLV_OK
             : clv_fail(err, CLV_INTERNAL, "OpenSSL gives no extra data for contexts");
}

clv_code clv_tls_accepted_install(clv_err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_callbacks);
  return ex_data_index < 0
             ? clv_fail(err, CLV_INTERNAL, "OpenSSL gives no extra data for connections")
             : CLV_OK;
}

clv_code clv_tls_set_admission(const clv_tls_admission *a, clv_err *err) {
  if (a->max_connections < 1 || a->max_connections > MAX_CONNECTIONS)
    return clv_fail(err, CLV_INVALID, "max_connections is %llu, must be 1 to %d",
                    (unsigned long long)a->max_connections, MAX_CONNECTIONS);
  CLV_TRY(clv_tls_accepted_install(err));
  pthread_mutex_lock(&lock);
  admission = *a;
  pthread_mutex_unlock(&lock);
  return CLV_OK;
}

/* Removes the callbacks. The table stays, because connections may end after the service. */
void clv_tls_clear_admission(void) {
  pthread_mutex_lock(&lock);
  admission = (clv_tls_admission){0};
  pthread_mutex_unlock(&lock);
}
