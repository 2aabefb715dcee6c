/* SPDX-License-Identifier: Apache-2.0
 *
 * tls: certificates and identities. This folder alone sees OpenSSL; it hands PEM text and results
 * to those who speak on the network. It holds eight things: the TLS 1.3 floor of the process,
 * counts of how its handshakes end, whom it lets in, an identity read from three PEM files and
 * checked before use, the one URI that names a peer, a small certificate authority for `certs`, a
 * probing client for `doctor`, and a check of a signed file.
 *
 * An identity is the one URI subject alternative name of a leaf certificate
 * ("spiffe://cleave/worker-1"). Common names and DNS names never count.
 *
 * Threads: every function may be called from any thread; clv_tls_floor_install is to be called
 * before other threads make TLS contexts. Times are seconds since 1970 (UTC).
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
  CLV_TLS_MAX_DAYS = 3650,    /* longest validity `certs` hands out */
};

/* What a certificate may be used for: its extended key usage, as bits. */
enum {
  CLV_TLS_CLIENT = 1u << 0,
  CLV_TLS_SERVER = 1u << 1,
  CLV_TLS_CODE_SIGNING = 1u << 2, /* of no use here; only allow_unusual certificates carry it */
};

/* ---- the floor ------------------------------------------------------------------------------- */

/* From now on every TLS context made in this process, by anybody, as client or server, speaks
 * TLS 1.3 only. It loads an OpenSSL configuration from memory over the system's openssl.cnf
 * (`Protocol`, because a library that sets its own minimum version overwrites `MinProtocol`), then
 * makes a context and looks whether the floor holds. May be called again.
 * Contexts made earlier keep what they had. Errors: CLV_INTERNAL. */
clv_code clv_tls_floor_install(clv_err *err) CLV_USE_RESULT;

/* ---- handshakes ------------------------------------------------------------------------------ */

/* How a handshake failed: what this side refused, or what became of it. */
typedef enum clv_tls_failure {
  CLV_TLS_FAILURE_EXPIRED,
  CLV_TLS_FAILURE_UNKNOWN_CA,
  CLV_TLS_FAILURE_NO_CERTIFICATE,
  CLV_TLS_FAILURE_BAD_CERTIFICATE, /* not valid yet, revoked, of another use, damaged */
  CLV_TLS_FAILURE_VERSION,         /* nothing newer than TLS 1.2 */
  CLV_TLS_FAILURE_PROTOCOL,        /* TLS, but wrong */
  CLV_TLS_FAILURE_NOT_ALLOWED,     /* the admission knows no such caller; the next three too */
  CLV_TLS_FAILURE_QUOTA,
  CLV_TLS_FAILURE_SHED, /* no place for it */
  CLV_TLS_FAILURE_REVOKED,
  CLV_TLS_FAILURE_REFUSED, /* the peer said no to us */
  CLV_TLS_FAILURE_TIMEOUT,
  CLV_TLS_FAILURE_CLOSED, /* the peer went away, or it was not TLS */
  CLV_TLS_FAILURES
} clv_tls_failure;

const char *clv_tls_failure_reason(clv_tls_failure failure); /* "expired", "unknown_ca", ... */

typedef struct clv_tls_handshakes {
  uint64_t done; /* since the watch began, as failed[] */
  uint64_t failed[CLV_TLS_FAILURES];
} clv_tls_handshakes;

/* From now on handshakes of this process are counted, whoever makes them. One that ends unfinished
 * after timeout_ms has timed out. Before the first connection; may be called again. Errors:
 * CLV_INTERNAL. */
clv_code clv_tls_handshakes_watch(uint64_t timeout_ms, clv_err *err) CLV_USE_RESULT;
void clv_tls_handshakes_count(bool server, clv_tls_handshakes *ret);

/* ---- accepted connections -------------------------------------------------------------------- */

/* Who may come in, by a certificate that has been verified. */
typedef enum clv_tls_decision {
  CLV_TLS_ADMIT,
  CLV_TLS_NOT_ALLOWED,
  CLV_TLS_OVER_QUOTA, /* of its own */
  CLV_TLS_FULL,       /* no place, whoever it is */
  CLV_TLS_REVOKED,
  CLV_TLS_NO_CLIENT, /* its certificate is not for TLS clients */
  CLV_TLS_FLOODED,   /* it has just been cut off */
  CLV_TLS_NO_LIST,   /* of revoked certificates, that is in force */
  CLV_TLS_DECISIONS
} clv_tls_decision;

typedef struct clv_tls_caller {
  const char *uri;    /* the one URI of its certificate; NULL: not exactly one */
  const char *issuer; /* "/CN=home" */
  const char *serial; /* hexadecimal, upper case */
  const char *address;
  bool is_client; /* the extended key usage of its certificate has TLS client */
} clv_tls_caller;

/* The callbacks come one at a time, on any thread, and must neither block nor call back. */
typedef struct clv_tls_admission {
  void *user;
  uint64_t places; /* connections at once, handshakes too: 1 to 65535 */
  /* Bytes of messages that have come in part, or wait to be read, of all connections together; 0:
   * no limit. Above it the holder with most of them loses its largest connection. */
  uint64_t unread;
  /* The one judgement: a certificate that is valid here, whose key is not proved yet. On ADMIT
   * *ret_holder is a number of the program's for whoever it counts against. All else fails the
   * handshake with an alert: handshake_failure (NOT_ALLOWED), certificate_revoked, internal_error
   * (for want of room). */
  clv_tls_decision (*judge)(void *user, const clv_tls_caller *caller, size_t *ret_holder);
  /* The key is proved: it counts from here on, until leave. A decision but ADMIT ends it. */
  clv_tls_decision (*enter)(void *user, size_t holder);
  void (*leave)(void *user, size_t holder);
  /* A connection that counts against the holder sent too much that is no call: it was cut. `what`
   * is static text. The holder should be refused for a while. */
  void (*flood)(void *user, size_t holder, const char *address, const char *what);
  /* A connection from there was let go, or not taken, because all places were taken. */
  void (*shed)(void *user, const char *address);
} clv_tls_admission;

/* From now on connections that this process accepts are judged, and no TLS session is resumed.
 * After clv_tls_handshakes_watch, before the first connection; called again it replaces the
 * admission. Nothing comes in without clv_tls_accepted_expect_fd. Errors: CLV_INVALID,
 * CLV_INTERNAL. */
clv_code clv_tls_accepted_open(const clv_tls_admission *admission, clv_err *err) CLV_USE_RESULT;
/* No callback is running behind it, and none will. Connections that are open stay. */
void clv_tls_accepted_close(void);

/* `fd` has been accepted, and the next TLS object that this thread makes is for it. When all places
 * are taken, of the address with the most handshakes the one goes that has been silent for longest;
 * false when there is none: close fd. */
bool clv_tls_accepted_expect_fd(int fd) CLV_USE_RESULT;
/* The worker's SSL_read (worker/read_guard.c): OpenSSL's own, then the frames that came are charged
 * to the connection (frames.c). After an excess the connection is shut, and nothing of it is handed
 * out any more. Returns as SSL_read. */
int clv_tls_accepted_read(void *ssl, void *data, int len);
/* The connection whose far end gRPC calls `peer` ("ipv4:10.0.0.7:41212"), as a number for _call
 * and _message; 0: none is known. */
uint64_t clv_tls_accepted_connection(const char *peer);
void clv_tls_accepted_call(uint64_t connection); /* gRPC has handed out a call of it */
void clv_tls_accepted_message(uint64_t connection, size_t bytes); /* and a message of one */
uint64_t clv_tls_accepted_floods(void); /* connections that an excess has ended */
/* Ends those whose certificate the list of revoked ones names by now; how many. */
unsigned clv_tls_accepted_recheck(void);
uint64_t clv_tls_accepted_sheds(void); /* connections that went so, or were not taken */

/* ---- identities ------------------------------------------------------------------------------ */

/* Who we are, checked. Fields are for reading; strings are NUL-terminated and owned by it. */
typedef struct clv_tls_identity {
  char *ca_pem;              /* every trusted CA certificate of the file */
  char *cert_pem;            /* leaf first, then intermediates */
  char *key_pem;             /* wiped when freed */
  char uri[CLV_TLS_URI_LEN]; /* the one URI of the leaf */
  int64_t not_before;
  int64_t not_after; /* of the leaf, or of a CA above it that ends earlier */
  unsigned usage;    /* CLV_TLS_CLIENT | CLV_TLS_SERVER, as the leaf allows */
} clv_tls_identity;

/* Read three PEM files and check them as a peer would, before anything uses them: at most
 * CLV_TLS_FILE_MAX bytes each; the key neither encrypted nor readable by group or others; the key
 * belongs to the leaf; RSA >= 2048 bits, elliptic curves >= 256, or Ed25519/Ed448; valid now; an
 * extended key usage of client, server or both, and a chain to a CA in ca_path for each of those;
 * exactly one URI. The caller frees *ret_identity.
 * Errors name the file, the reason and the fix: CLV_NOT_FOUND, CLV_EXHAUSTED (too large),
 * CLV_DENIED (file mode, no right to read), CLV_UNAUTHENTICATED (not one URI), CLV_PRECONDITION
 * (expired or not yet valid), CLV_INVALID (the rest). */
clv_code clv_tls_identity_load(const char *ca_path, const char *cert_path, const char *key_path,
                               clv_tls_identity **ret_identity, clv_err *err) CLV_USE_RESULT;

void clv_tls_identity_free(clv_tls_identity *identity); /* NULL is fine; wipes the key */
void clv_tls_identity_freep(clv_tls_identity **identity);

/* Fails with CLV_INVALID and a fix when the leaf may not do all of `usage`. */
clv_code clv_tls_identity_require(const clv_tls_identity *identity, unsigned usage,
                                  clv_err *err) CLV_USE_RESULT;

/* Whole days from now to not_after, rounded down: 0 within the last day, negative after it. */
int clv_tls_identity_days_left(const clv_tls_identity *identity);

/* The one URI of the first certificate in `pem` (NUL-terminated) into buf. CLV_UNAUTHENTICATED
 * when there is not exactly one, when it isn't `scheme://...` in printable ASCII of at most
 * CLV_TLS_URI_LEN - 1 bytes (an embedded NUL never is), or when there is no certificate;
 * CLV_INVALID when buf is too small. It doesn't verify the chain: give it the certificate of a
 * connection that did. */
clv_code clv_tls_cert_uri(const char *pem, char *buf, size_t len, clv_err *err) CLV_USE_RESULT;

/* ---- revocation ------------------------------------------------------------------------------ */

enum { CLV_TLS_CRL_DAYS = 30, CLV_TLS_CRL_WARN_S = 7 * 86400 };

/* Lists of revoked certificates, one of each CA, of one PEM file. */
typedef struct clv_tls_crl clv_tls_crl;

/* ca_pem: the CAs, one of which must have signed each list; NULL: signatures are not looked at.
 * Errors name the file: CLV_NOT_FOUND, CLV_EXHAUSTED, CLV_UNAUTHENTICATED (signature),
 * CLV_PRECONDITION (of the future), CLV_INVALID. A list that has ended is read all the same. */
clv_code clv_tls_crl_load(const char *path, const char *ca_pem, clv_tls_crl **ret,
                          clv_err *err) CLV_USE_RESULT;
clv_code clv_tls_crl_parse(const char *pem, size_t len, const char *path, const char *ca_pem,
                           clv_tls_crl **ret, clv_err *err) CLV_USE_RESULT;
void clv_tls_crl_free(clv_tls_crl *crl); /* NULL is allowed */
void clv_tls_crl_freep(clv_tls_crl **crl);
bool clv_tls_crl_has(const clv_tls_crl *crl, const char *issuer, const char *serial);
/* CLV_PRECONDITION: the list of `issuer` (NULL: any of them) has ended, or is not there. */
clv_code clv_tls_crl_check(const clv_tls_crl *crl, const char *issuer, clv_err *err) CLV_USE_RESULT;
int64_t clv_tls_crl_expiry(const clv_tls_crl *crl); /* the first of them */

/* The list that holds in this process, for whom it dials and whom it accepts; the last one counts.
 * Read it, checked for use now (NULL path: *ret stays as it is), and put it in force (*crl is
 * taken; NULL: nothing is checked any more). Load does both; without a path nothing. */
clv_code clv_tls_revocation_read(const char *path, const clv_tls_identity *identity,
                                 clv_tls_crl **ret, clv_err *err) CLV_USE_RESULT;
void clv_tls_revocation_set(clv_tls_crl **crl);
clv_code clv_tls_revocation_load(const char *path, const clv_tls_identity *identity,
                                 clv_err *err) CLV_USE_RESULT;
int64_t clv_tls_revocation_expiry(void); /* 0: there is none */
/* CLV_TLS_ADMIT, CLV_TLS_REVOKED or CLV_TLS_NO_LIST, and then why. */
clv_tls_decision clv_tls_revocation_decide(const char *issuer, const char *serial, clv_err *err);
/* CLV_PRECONDITION: the list has ended. */
clv_code clv_tls_revocation_check(clv_err *err) CLV_USE_RESULT;
/* Whether the certificate that this identity showed last, when it was dialled, is revoked by
 * now. */
bool clv_tls_is_peer_revoked(const char *uri);

/* ---- certificate authority ------------------------------------------------------------------- */

/* Make a CA in `dir` (created if missing): ca.key (EC P-256, mode 0600) and ca.pem, subject
 * CN=name, valid from 5 minutes ago for `days` (1..CLV_TLS_MAX_DAYS). CLV_EXISTS when either file
 * is there: a CA is never overwritten. */
clv_code clv_tls_ca_init(const char *dir, const char *name, int days, clv_err *err) CLV_USE_RESULT;

/* Make DIR/crl.pem anew, for `days`, with what was in it and with DIR/NAME.pem (NULL: nothing new).
 * CLV_NOT_FOUND, CLV_INVALID: not of this CA, or a list that is not. */
clv_code clv_tls_ca_revoke(const char *dir, const char *name, int days,
                           clv_err *err) CLV_USE_RESULT;

typedef struct clv_tls_issue_options {
  const char *ca_dir;      /* holds ca.pem and ca.key */
  const char *out_dir;     /* gets NAME.pem and NAME.key; created if missing; NULL: ca_dir */
  const char *name;        /* [A-Za-z0-9._-], not "ca": file names and the subject's CN */
  const char *const *uris; /* exactly one, `scheme://...` */
  size_t n_uris;
  const char *const *dns; /* DNS names, wildcards not taken */
  size_t n_dns;
  const char *const *ips; /* IPv4 or IPv6 text */
  size_t n_ips;
  int days;                    /* 1..CLV_TLS_MAX_DAYS and not beyond the CA's own end */
  int64_t not_before_offset_s; /* validity begins at now + this; `certs issue` passes -300 */
  unsigned usage;              /* CLV_TLS_CLIENT | CLV_TLS_SERVER; 0 means both */
  unsigned rsa_bits;           /* 0: EC P-256; else an RSA key of 2048..4096 bits */
  bool force;                  /* overwrite NAME.pem and NAME.key */
  /* Only for tests, which need bad certificates: no URI or several, any text as a DNS name, a
   * validity in the past or beyond the CA's, CLV_TLS_CODE_SIGNING, RSA keys from 1024 bits. */
  bool allow_unusual;
} clv_tls_issue_options;

/* Make a key and a certificate signed by the CA: NAME.key (mode 0600) and NAME.pem (the leaf
 * alone). CLV_EXISTS when a file is there and not `force`; CLV_INVALID for names, times and
 * counts out of range; CLV_NOT_FOUND without a CA. */
clv_code clv_tls_issue(const clv_tls_issue_options *options, clv_err *err) CLV_USE_RESULT;

/* Append a description of every certificate in a PEM file to *out: subject, issuer, URI, DNS,
 * addresses, usage, validity with days left, key, serial number, SHA-256 fingerprint. Text for
 * people, or one JSON array. Errors as for reading; *out is untouched then. */
clv_code clv_tls_show(const char *path, clv_bytes *out, bool json, clv_err *err) CLV_USE_RESULT;

/* ---- probe ----------------------------------------------------------------------------------- */

typedef enum clv_tls_step {
  CLV_TLS_RESOLVE,   /* name to addresses */
  CLV_TLS_CONNECT,   /* TCP */
  CLV_TLS_HANDSHAKE, /* mutual TLS 1.3 with ALPN h2, and the peer's answer on us */
  CLV_TLS_IDENTITY,  /* the peer's URI */
  CLV_TLS_DONE,
} clv_tls_step;

const char *clv_tls_step_name(clv_tls_step step); /* "resolve", "connect", ... */

typedef struct clv_tls_probe_result {
  bool ok;
  bool confirmed;       /* the peer spoke after the handshake, so it did accept us */
  clv_tls_step step;    /* the step that failed; CLV_TLS_DONE when ok */
  clv_code code;        /* CLV_OK when ok */
  char reason[320];     /* why it failed, one sentence; empty when ok */
  char fix[320];        /* what to do about it */
  char clock_hint[200]; /* not empty when the two clocks may disagree, failed or not */
  char address[80];     /* of the last address tried, "127.0.0.1:50051" or "[::1]:50051" */
  char peer_uri[CLV_TLS_URI_LEN];          /* empty when not seen or not exactly one */
  int64_t peer_not_before, peer_not_after; /* 0 when no certificate was seen */
  char protocol[16];                       /* "TLSv1.3" */
  char cipher[48];                         /* "TLS_AES_256_GCM_SHA384" */
  double connect_ms, handshake_ms;
} clv_tls_probe_result;

/* Dial host:port as a master would and report how far it got. All addresses of the name are tried,
 * IPv4 and IPv6, each with its share of timeout_ms (1..600000; the resolver has its own time-outs).
 * identity: ours. expected_uri: what the peer must be, or NULL for any.
 * In TLS 1.3 a server judges our certificate after our side of the handshake is over, so the probe
 * goes on reading for 300 ms (or three connect times, if longer) until HTTP/2 or a refusal comes.
 * CLV_OK means that the probe ran; whether the peer is in order says ret->ok.
 * Errors: CLV_INVALID for arguments, CLV_INTERNAL. */
clv_code clv_tls_probe(const char *host, uint16_t port, const clv_tls_identity *identity,
                       const char *expected_uri, uint32_t timeout_ms, clv_tls_probe_result *ret,
                       clv_err *err) CLV_USE_RESULT;

/* "host:port" or "[::1]:port"; false when it is neither. */
bool clv_tls_split_address(const char *address, char host[256], uint16_t *ret_port);

/* Why a worker at "host:port" refused us: asks it once more, and when it says in its handshake that
 * we are not in its table (CLV_DENIED) or over a quota (CLV_EXHAUSTED), *err becomes that. Else
 * *err stays as it is, and after CLV_DEADLINE nobody is asked. gRPC tells of a refusal only that
 * the connection was closed. */
void clv_tls_explain_refusal(const char *address, const clv_tls_identity *identity,
                             uint32_t timeout_ms, clv_err *err);

typedef enum clv_tls_version { CLV_TLS_1_2, CLV_TLS_1_3 } clv_tls_version;

/* Whether host:port takes part in a handshake that offers `version` alone (it answered with a
 * ServerHello; what it later says of our certificate doesn't matter). Works in a process with the
 * floor installed. identity may be NULL. Errors: CLV_UNAVAILABLE (no connection), CLV_DEADLINE
 * (no answer), CLV_NOT_FOUND (name), CLV_INVALID, CLV_INTERNAL. */
clv_code clv_tls_probe_version(const char *host, uint16_t port, clv_tls_version version,
                               const clv_tls_identity *identity, uint32_t timeout_ms,
                               bool *ret_accepted, clv_err *err) CLV_USE_RESULT;

/* ---- signed files ---------------------------------------------------------------------------- */

enum { CLV_TLS_SIGNER_LEN = 256 };

/* A file and a detached signature over its bytes (CMS as PEM or DER, by `openssl cms -sign
 * -binary`). */
typedef struct clv_tls_signed {
  const void *data, *signature;
  size_t len, signature_len; /* bytes; of the signature at most CLV_TLS_FILE_MAX */
  const char *ca_pem;        /* whom to trust; nobody else is, the system's authorities neither */
} clv_tls_signed;

/* That exactly one signer signed these bytes, with a digest of at least 256 bits, whose certificate
 * is valid now, chains to ca_pem and may sign (its extended key usage has emailProtection, or it
 * has none; so a worker's or a master's cannot). signer: its subject, printable ASCII.
 * CLV_UNAUTHENTICATED: which of these does not hold; CLV_INVALID: ca_pem has no certificate. */
clv_code clv_tls_check_signed(const clv_tls_signed *file, char signer[CLV_TLS_SIGNER_LEN],
                              clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
