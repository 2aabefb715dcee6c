/* SPDX-License-Identifier: Apache-2.0
 *
 * tls: certificates and identities. Only this folder (and base's digests) calls OpenSSL; it gives
 * PEM text and results to the folders that use the network. It has eight parts: the TLS 1.3 floor
 * of the process, counters of handshakes, admission of accepted connections, identities read from
 * three PEM files and checked before use, the URI that names a peer, a small certificate authority
 * for `certs`, a probing client for `doctor`, and a check of signed files.
 *
 * An identity is the only URI subject alternative name of a leaf certificate
 * ("spiffe://cleave/worker-1"). Common names and DNS names never count.
 *
 * Threads: every function may be called from any thread; call clv_tls_set_min_version before other
 * threads make TLS contexts. Times are seconds since 1970 (UTC).
 */
#ifndef CLEAVE_TLS_H
#define CLEAVE_TLS_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_TLS_URI_LEN = 2049,     /* bytes of a buffer for any identity (SPIFFE's limit + NUL) */
  CLV_TLS_FILE_MAX = 1 << 20, /* largest PEM file read, bytes */
  CLV_TLS_NAME_MAX = 64,      /* longest name of an issued certificate, bytes (X.509's CN) */
  CLV_TLS_MAX_NAMES = 64,     /* most URIs, DNS names or addresses in one request */
  CLV_TLS_MAX_DAYS = 3650,    /* longest validity that `certs` issues */
};

/* Uses of a certificate: its extended key usage, as bits. */
enum {
  CLV_TLS_CLIENT = 1u << 0,
  CLV_TLS_SERVER = 1u << 1,
  /* for tests: only certificates made with allow_unusual have it */
  CLV_TLS_CODE_SIGNING = 1u << 2,
};

/* ---- the minimum TLS version ----------------------------------------------------------------- */

/* Sets the minimum TLS version of this process, its floor: every TLS context made from now on, by
 * any library, as client or server, allows TLS 1.3 alone and checks peers by the revocation list.
 * Loads an OpenSSL configuration from memory over the system's openssl.cnf (`Protocol`, because a
 * library that sets its own minimum version overwrites `MinProtocol`). Then makes a context and
 * checks that the floor holds. The OpenSSL of the Python wheel reads no openssl.cnf of the system.
 * May be called again. Contexts made earlier keep their versions.
 * Errors: CLV_INTERNAL. */
clv_code clv_tls_set_min_version(clv_err *err) CLV_USE_RESULT;

/* Returns the version of the OpenSSL that this process runs, as "3.0.15"; static text. Stores the
 * path of its file. */
const char *clv_tls_library_version(char *ret_path, size_t len);

/* ---- counters of handshakes ------------------------------------------------------------------ */

/* Reason of a failed handshake: what this side refused, or how it ended. */
typedef enum clv_tls_failure {
  CLV_TLS_FAILURE_EXPIRED,
  CLV_TLS_FAILURE_UNKNOWN_CA,
  CLV_TLS_FAILURE_NO_CERTIFICATE,
  CLV_TLS_FAILURE_BAD_CERTIFICATE, /* not valid yet, revoked, damaged or not for this use */
  CLV_TLS_FAILURE_VERSION,         /* the peer offers nothing newer than TLS 1.2 */
  CLV_TLS_FAILURE_PROTOCOL,        /* the peer violated the TLS protocol */
  CLV_TLS_FAILURE_NOT_ALLOWED, /* NOT_ALLOWED, QUOTA, SHED and REVOKED: refused by the admission */
  CLV_TLS_FAILURE_QUOTA,
  CLV_TLS_FAILURE_SHED, /* all connections were in use */
  CLV_TLS_FAILURE_REVOKED,
  CLV_TLS_FAILURE_REFUSED, /* the peer refused this side */
  CLV_TLS_FAILURE_TIMEOUT,
  CLV_TLS_FAILURE_CLOSED, /* the peer closed, or did not speak TLS */
  CLV_TLS_FAILURES
} clv_tls_failure;

/* returns "expired", "unknown_ca", ... */
const char *clv_tls_failure_reason(clv_tls_failure failure);

typedef struct clv_tls_handshakes {
  /* handshakes completed since clv_tls_handshakes_start_counting; n_failed counts failed ones by
   * reason */
  uint64_t n_completed;
  uint64_t n_failed[CLV_TLS_FAILURES];
} clv_tls_handshakes;

/* Counts all handshakes of this process from now on, of TLS contexts that are made from now on. A
 * handshake that ends unfinished after timeout_ms counts as timed out. Call before credentials are
 * made; may be called again. Errors: CLV_INTERNAL. */
clv_code clv_tls_handshakes_start_counting(uint64_t timeout_ms, clv_err *err) CLV_USE_RESULT;
void clv_tls_handshakes_get_counts(bool server, clv_tls_handshakes *ret);

/* ---- accepted connections -------------------------------------------------------------------- */

/* Decision on a connection whose certificate was verified. */
typedef enum clv_tls_decision {
  CLV_TLS_ADMITTED,
  CLV_TLS_NOT_ALLOWED,
  CLV_TLS_OVER_QUOTA, /* the identity has as many connections as its quota allows */
  CLV_TLS_FULL,       /* no connection is free for any identity */
  CLV_TLS_REVOKED,
  CLV_TLS_NOT_FOR_CLIENTS, /* the certificate is not for TLS clients */
  CLV_TLS_CUT_OFF,         /* the identity was cut off recently */
  CLV_TLS_NO_CRL,          /* no list of revoked certificates is in force */
  CLV_TLS_DECISIONS
} clv_tls_decision;

typedef struct clv_tls_caller {
  const char *uri;    /* the only URI of its certificate; NULL: none or several */
  const char *issuer; /* issuer of its certificate, as "/CN=home" */
  const char *serial; /* serial number, hexadecimal, upper case */
  const char *address;
  bool has_client_usage; /* the extended key usage of its certificate includes TLS client */
} clv_tls_caller;

/* Callbacks of the program that decide on accepted connections. They run one at a time, on any
 * thread, and must neither block nor call this folder. */
typedef struct clv_tls_admission {
  void *user;
  uint64_t max_connections; /* connections at once, handshakes included: 1 to 65535 */
  /* Limit of the bytes of messages that are incomplete or wait to be read, over all connections; 0:
   * none. Above it, the holder with the most of them loses its largest connection. */
  uint64_t max_unread_bytes;
  /* Decides on a certificate that is valid, before its key is proved. On CLV_TLS_ADMITTED
   * *ret_holder is the program's number for the identity that the connection counts against. Other
   * decisions fail the handshake with an alert: handshake_failure (NOT_ALLOWED),
   * certificate_revoked, internal_error (no connection is free). */
  clv_tls_decision (*decide_admission)(void *user, const clv_tls_caller *caller,
                                       size_t *ret_holder);
  /* Counts a connection against the holder until leave_connection, when its peer has proved its
   * key. A decision other than CLV_TLS_ADMITTED ends the connection. */
  clv_tls_decision (*enter_connection)(void *user, size_t holder);
  void (*leave_connection)(void *user, size_t holder);
  /* Reports that a connection of the holder was cut, because it sent too many frames that belong to
   * no call. `what`: static text. The program should refuse the holder for a while. */
  void (*on_flood)(void *user, size_t holder, const char *address, const char *what);
  /* Reports that a connection from this address was closed or not accepted, because all connections
   * are in use. */
  void (*on_shed)(void *user, const char *address);
} clv_tls_admission;

/* Checks the connections that this process accepts from now on, and disables TLS session
 * resumption. Call after clv_tls_handshakes_start_counting and before the first connection; a later
 * call replaces the admission. Connections are accepted only through clv_tls_accepted_expect_fd.
 * Errors: CLV_INVALID, CLV_INTERNAL. */
clv_code clv_tls_set_admission(const clv_tls_admission *admission, clv_err *err) CLV_USE_RESULT;
/* Ends the admission: no callback runs after the return. Open connections stay open. */
void clv_tls_clear_admission(void);

/* Announces that `fd` was accepted, and that the next TLS object made by this thread is for it. If
 * all connections are in use, closes one handshake: the one that has been silent for longest among
 * those of the address with the most handshakes. False: there is none, so close fd. */
bool clv_tls_accepted_expect_fd(int fd) CLV_USE_RESULT;
/* Calls SSL_read of OpenSSL for the worker (worker/read_guard.c), and charges the received frames
 * to the connection (frames.c). Once the connection has exceeded a limit, it is shut and no more
 * data is returned. Returns as SSL_read. */
int clv_tls_accepted_ssl_read(void *ssl, void *data, int len);
/* Returns the number of the connection whose peer gRPC calls `peer` ("ipv4:10.0.0.7:41212"), for
 * clv_tls_accepted_on_call and clv_tls_accepted_on_message; 0: unknown. */
uint64_t clv_tls_accepted_find_connection(const char *peer);
/* call when gRPC has delivered a call of the connection */
void clv_tls_accepted_on_call(uint64_t connection);
/* call when gRPC has delivered a message of the connection */
void clv_tls_accepted_on_message(uint64_t connection, size_t bytes);
/* connections ended because they exceeded a limit of frames or unread bytes */
uint64_t clv_tls_accepted_flood_count(void);
/* Ends connections whose certificate is revoked by now. Returns the number of them. ended:
 * optional, called for each under a lock, with the certificate's URI; must not call this module. */
unsigned clv_tls_accepted_end_revoked(void (*ended)(void *user, const char *uri), void *user);
/* connections closed or not accepted because all were in use */
uint64_t clv_tls_accepted_shed_count(void);

/* ---- identities ------------------------------------------------------------------------------ */

/* A checked identity of this process. Read-only; strings are NUL-terminated and owned by it. */
typedef struct clv_tls_identity {
  char *ca_pem;              /* all CA certificates of the file */
  char *cert_pem;            /* own certificates: leaf first, then intermediates */
  char *key_pem;             /* private key, wiped before it is freed */
  char uri[CLV_TLS_URI_LEN]; /* the only URI of the leaf */
  int64_t not_before;
  int64_t not_after; /* end of validity of the leaf, or of a CA above it that ends earlier */
  unsigned usage;    /* CLV_TLS_CLIENT | CLV_TLS_SERVER, as the leaf allows */
} clv_tls_identity;

/* Reads three PEM files and checks them as a peer would: at most CLV_TLS_FILE_MAX bytes each; the
 * key is neither encrypted nor readable by group or others; the key belongs to the leaf; RSA >=
 * 2048 bits, elliptic curves >= 256, or Ed25519/Ed448; valid now; an extended key usage of client,
 * server or both, and for each of those a chain to a CA in ca_path; exactly one URI. The caller
 * frees *ret_identity.
 * Errors name the file, the reason and the fix: CLV_NOT_FOUND, CLV_EXHAUSTED (too large),
 * CLV_DENIED (file mode, no right to read), CLV_UNAUTHENTICATED (no or several URIs),
 * CLV_PRECONDITION (expired or not yet valid), CLV_INVALID (others). */
clv_code clv_tls_identity_load(const char *ca_path, const char *cert_path, const char *key_path,
                               clv_tls_identity **ret_identity, clv_err *err) CLV_USE_RESULT;

void clv_tls_identity_free(clv_tls_identity *identity); /* NULL is allowed; wipes the key */
void clv_tls_identity_freep(clv_tls_identity **identity);

/* Fails with CLV_INVALID, and text that says how to fix it, if the leaf does not allow all of
 * `usage`. */
clv_code clv_tls_identity_require_usage(const clv_tls_identity *identity, unsigned usage,
                                        clv_err *err) CLV_USE_RESULT;

/* Returns whole days from now to not_after, rounded down: 0 within the last day, negative after
 * it. */
int clv_tls_identity_days_left(const clv_tls_identity *identity);

/* Writes the only URI of the first certificate in `pem` (NUL-terminated) to buf.
 * CLV_UNAUTHENTICATED: no or several URIs, no certificate, or a URI that is not `scheme://...` in
 * printable ASCII of at most CLV_TLS_URI_LEN - 1 bytes; CLV_INVALID: buf is too small. Does not
 * verify the chain: pass the certificate of a connection that did. */
clv_code clv_tls_uri_of_pem(const char *pem, char *buf, size_t len, clv_err *err) CLV_USE_RESULT;

/* ---- lists of revoked certificates ----------------------------------------------------------- */

enum { CLV_TLS_CRL_DAYS = 30, CLV_TLS_CRL_WARN_S = 7 * 86400 };

/* Lists of revoked certificates of a PEM file, one for each CA. */
typedef struct clv_tls_crl clv_tls_crl;

/* Reads the lists of revoked certificates in a file. ca_pem: the CAs, one of which must have signed
 * each list; NULL: signatures are not checked. Errors name the file: CLV_NOT_FOUND, CLV_EXHAUSTED,
 * CLV_UNAUTHENTICATED (signature), CLV_PRECONDITION (issued in the future), CLV_INVALID. Also reads
 * lists that have expired. */
clv_code clv_tls_crl_load(const char *path, const char *ca_pem, clv_tls_crl **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_tls_crl_parse(const char *pem, size_t len, const char *path, const char *ca_pem,
                           clv_tls_crl **ret, clv_err *err) CLV_USE_RESULT;
void clv_tls_crl_free(clv_tls_crl *crl); /* NULL is allowed */
void clv_tls_crl_freep(clv_tls_crl **crl);
bool clv_tls_crl_has_cert(const clv_tls_crl *crl, const char *issuer, const char *serial);
/* Fails with CLV_PRECONDITION if the list of `issuer` (NULL: any list) has expired or is
 * missing. */
clv_code clv_tls_crl_check_expiry(const clv_tls_crl *crl, const char *issuer,
                                  clv_err *err) CLV_USE_RESULT;
int64_t clv_tls_crl_expiry(const clv_tls_crl *crl); /* earliest expiry of the lists */

/* The list in force in this process, for the peers that it dials and accepts, is the one that was
 * set last. clv_tls_revocation_read reads a list and checks it for use now (NULL path: *ret is
 * unchanged). clv_tls_revocation_set puts it in force and takes over *crl (NULL: certificates are
 * no longer checked). clv_tls_revocation_load does both, and without a path nothing. */
clv_code clv_tls_revocation_read(const char *path, const clv_tls_identity *identity,
                                 clv_tls_crl **ret, clv_err *err) CLV_USE_RESULT;
void clv_tls_revocation_set(clv_tls_crl **crl);
clv_code clv_tls_revocation_load(const char *path, const clv_tls_identity *identity,
                                 clv_err *err) CLV_USE_RESULT;
/* earliest expiry among the revocation lists in force; 0: none is in force */
int64_t clv_tls_revocation_expiry(void);
/* Returns CLV_TLS_ADMITTED, or CLV_TLS_REVOKED or CLV_TLS_NO_CRL with the reason in *err. */
clv_tls_decision clv_tls_revocation_decide(const char *issuer, const char *serial, clv_err *err);
/* Fails with CLV_PRECONDITION if the list in force has expired. */
clv_code clv_tls_revocation_check_expiry(clv_err *err) CLV_USE_RESULT;
/* True if the certificate that this identity last showed when it was dialled is revoked by now. */
bool clv_tls_is_peer_revoked(const char *uri);

/* ---- certificate authority ------------------------------------------------------------------- */

/* Makes a CA in `dir` (created if missing): ca.key (EC P-256, mode 0600) and ca.pem, subject
 * CN=name, valid from 5 minutes ago for `days` (1..CLV_TLS_MAX_DAYS). CLV_EXISTS: one of the files
 * exists; a CA is never overwritten. */
clv_code clv_tls_ca_init(const char *dir, const char *name, int days, clv_err *err) CLV_USE_RESULT;

/* Writes DIR/crl.pem, valid for `days`, with the entries of the old list and DIR/NAME.pem (NULL: no
 * new entry). CLV_NOT_FOUND; CLV_INVALID: the certificate or the list is not of this CA. */
clv_code clv_tls_ca_revoke(const char *dir, const char *name, int days,
                           clv_err *err) CLV_USE_RESULT;

typedef struct clv_tls_issue_options {
  const char *ca_dir;      /* folder with ca.pem and ca.key */
  const char *out_dir;     /* receives NAME.pem and NAME.key; created if missing; NULL: ca_dir */
  const char *cert_name;   /* [A-Za-z0-9._-], not "ca": file names and the subject's CN */
  const char *const *uris; /* the identity: exactly one URI, `scheme://...` */
  size_t n_uris;
  const char *const *dns_names; /* DNS names; no wildcards */
  size_t n_dns_names;
  const char *const *ip_addresses; /* IPv4 or IPv6 text */
  size_t n_ip_addresses;
  int validity_days; /* days of validity: 1..CLV_TLS_MAX_DAYS and not beyond the CA's own end */
  int64_t not_before_offset_s; /* validity begins at now + this; `certs issue` passes -300 */
  unsigned usage;              /* CLV_TLS_CLIENT | CLV_TLS_SERVER; 0 means both */
  unsigned rsa_bits;           /* size of an RSA key, 2048..4096 bits; 0: the key is EC P-256 */
  bool may_overwrite;          /* overwrite NAME.pem and NAME.key */
  /* For tests, which need bad certificates: no URI or several, any text as a DNS name, a validity
   * in the past or beyond the CA's, CLV_TLS_CODE_SIGNING, RSA keys from 1024 bits. */
  bool allow_unusual;
} clv_tls_issue_options;

/* Makes a key and a certificate signed by the CA: NAME.key (mode 0600) and NAME.pem (the leaf
 * alone). CLV_EXISTS: a file exists and may_overwrite is not set; CLV_INVALID: a name, time or
 * count is out of range; CLV_NOT_FOUND: no CA. */
clv_code clv_tls_issue_cert(const clv_tls_issue_options *options, clv_err *err) CLV_USE_RESULT;

/* Appends a description of every certificate in a PEM file to *out: subject, issuer, URI, DNS,
 * addresses, usage, validity with days left, key, serial number, SHA-256 fingerprint. Text, or one
 * JSON array. Errors as for reading; *out is then unchanged. */
clv_code clv_tls_show_certs(const char *path, clv_bytes *out, bool as_json,
                            clv_err *err) CLV_USE_RESULT;

/* ---- the probing client ---------------------------------------------------------------------- */

typedef enum clv_tls_step {
  CLV_TLS_RESOLVE,   /* find the addresses of the name */
  CLV_TLS_CONNECT,   /* connect by TCP */
  CLV_TLS_HANDSHAKE, /* mutual TLS 1.3 with ALPN h2, and the peer's answer to our certificate */
  CLV_TLS_IDENTITY,  /* compare the peer's URI */
  CLV_TLS_DONE,
} clv_tls_step;

const char *clv_tls_step_name(clv_tls_step step); /* returns "resolve", "connect", ... */

typedef struct clv_tls_probe_result {
  bool ok;
  bool has_peer_accepted;   /* the peer sent data after the handshake, so it accepted us */
  clv_tls_step failed_step; /* the step that failed; CLV_TLS_DONE when ok */
  clv_code code;            /* CLV_OK when ok */
  char reason[320];         /* why it failed, one sentence; empty when ok */
  char fix[320];            /* how to fix the failure; empty when ok */
  /* text that the clocks of the two sides may disagree, also on success; empty: they agree */
  char clock_hint[200];
  char address[80]; /* last address tried, such as "127.0.0.1:50051" or "[::1]:50051" */
  char peer_uri[CLV_TLS_URI_LEN]; /* identity of the peer; empty: not seen, or no or several URIs */
  /* validity of the peer's certificate; 0: no certificate was seen */
  int64_t peer_not_before, peer_not_after;
  char tls_version[16]; /* "TLSv1.3"; empty: no handshake */
  char cipher[48];      /* "TLS_AES_256_GCM_SHA384"; empty: no handshake */
  double connect_ms, handshake_ms;
} clv_tls_probe_result;

/* Dials host:port as a master would, and reports how far it got. Tries all addresses of the name,
 * IPv4 and IPv6, each with a part of timeout_ms (1..600000; the resolver has time-outs of its own).
 * identity: ours. expected_uri: identity of the peer; NULL: any. In TLS 1.3 a server checks our
 * certificate after our side of the handshake is over, so the probe reads for another 300 ms (or
 * three connect times, if longer) until HTTP/2 data or a refusal comes. CLV_OK: the probe ran;
 * ret->ok is its result. Errors: CLV_INVALID for arguments, CLV_INTERNAL. */
clv_code clv_tls_probe(const char *host, uint16_t port, const clv_tls_identity *identity,
                       const char *expected_uri, uint32_t timeout_ms, clv_tls_probe_result *ret,
                       clv_err *err) CLV_USE_RESULT;

/* Splits "host:port" or "[::1]:port". False: it is neither. */
bool clv_tls_split_address(const char *address, char host[256], uint16_t *ret_port);

/* Finds out why a worker at "host:port" refused us, because gRPC reports only that the connection
 * was closed. Dials it once more. If the worker's handshake reports that we are not in its table
 * (CLV_DENIED) or over a quota (CLV_EXHAUSTED), *err becomes that error. Otherwise *err is
 * unchanged. Does not dial after CLV_DEADLINE. */
void clv_tls_explain_refusal(const char *address, const clv_tls_identity *identity,
                             uint32_t timeout_ms, clv_err *err);

typedef enum clv_tls_version { CLV_TLS_1_2, CLV_TLS_1_3 } clv_tls_version;

/* Reports in *ret_accepted whether host:port accepts `version`: it answers a handshake that offers
 * only this version with a ServerHello. Its later reports about our certificate do not matter.
 * Works after clv_tls_set_min_version, too. identity may be NULL. Errors: CLV_UNAVAILABLE (no
 * connection), CLV_DEADLINE (no answer), CLV_NOT_FOUND (name), CLV_INVALID, CLV_INTERNAL. */
clv_code clv_tls_probe_version(const char *host, uint16_t port, clv_tls_version version,
                               const clv_tls_identity *identity, uint32_t timeout_ms,
                               bool *ret_accepted, clv_err *err) CLV_USE_RESULT;

/* ---- signed files ---------------------------------------------------------------------------- */

enum { CLV_TLS_SIGNER_LEN = 256 };

/* A file and a detached signature of its bytes (CMS as PEM or DER, by `openssl cms -sign
 * -binary`). */
typedef struct clv_tls_signed {
  const void *data, *signature;
  size_t data_len, signature_len; /* bytes; of the signature at most CLV_TLS_FILE_MAX */
  const char *ca_pem;             /* the only trusted authorities; those of the system are not */
} clv_tls_signed;

/* Checks that exactly one signer signed these bytes, with a digest of at least 256 bits. The
 * signer's certificate must be valid now, chain to ca_pem and allow signing (its extended key usage
 * has emailProtection, or it has none; so a worker's or master's certificate cannot sign). signer:
 * its subject, printable ASCII. CLV_UNAUTHENTICATED names the check that failed; CLV_INVALID:
 * ca_pem has no certificate. */
clv_code clv_tls_check_signature(const clv_tls_signed *file, char signer[CLV_TLS_SIGNER_LEN],
                                 clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
