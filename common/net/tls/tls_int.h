/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations shared by the files of this folder: clean-up of OpenSSL objects, reading and writing
 * of PEM files, and access to the fields of certificates.
 */
#ifndef CLEAVE_TLS_INT_H
#define CLEAVE_TLS_INT_H

#include "common/net/tls/tls.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

/* ---- scope-bound clean-up of OpenSSL objects (all the free functions take NULL) -------------- */

static inline void clv_x509_freep(X509 **p) { X509_free(*p); }
static inline void clv_pkey_freep(EVP_PKEY **p) { EVP_PKEY_free(*p); }
static inline void clv_bio_freep(BIO **p) { BIO_free_all(*p); }
static inline void clv_bn_freep(BIGNUM **p) { BN_free(*p); }
static inline void clv_crl_freep(X509_CRL **p) { X509_CRL_free(*p); }
static inline void clv_store_freep(X509_STORE **p) { X509_STORE_free(*p); }
static inline void clv_store_ctx_freep(X509_STORE_CTX **p) { X509_STORE_CTX_free(*p); }
static inline void clv_ext_freep(X509_EXTENSION **p) { X509_EXTENSION_free(*p); }
static inline void clv_names_freep(GENERAL_NAMES **p) { GENERAL_NAMES_free(*p); }
static inline void clv_eku_freep(EXTENDED_KEY_USAGE **p) { EXTENDED_KEY_USAGE_free(*p); }
static inline void clv_ssl_ctx_freep(SSL_CTX **p) { SSL_CTX_free(*p); }
static inline void clv_certs_freep(STACK_OF(X509) * *p) { sk_X509_pop_free(*p, X509_free); }

/* ---- secret keys ----------------------------------------------------------------------------- */

/* Frees a NUL-terminated string after wiping it. */
void clv_secret_freep(char **text);

/* Reads a key file into one allocation, so that no other copy stays in memory. Errors as those of
 * clv_tls_identity_load, for the file mode too. */
clv_code clv_tls_key_read(const char *path, char **ret_pem, clv_err *err) CLV_USE_RESULT;

/* ---- PEM text -------------------------------------------------------------------------------- */

enum { CLV_TLS_ERROR_LEN = 160 };

/* Returns the newest reason in this thread's OpenSSL error queue, in buf, and empties the queue. */
const char *clv_tls_openssl_reason(char buf[CLV_TLS_ERROR_LEN]);

/* Reads all certificates of a PEM text, at least one. `what` names the text in errors
 * (CLV_INVALID). */
clv_code clv_tls_certs_parse(const char *pem, size_t len, const char *what,
                             STACK_OF(X509) * *ret_certs, clv_err *err) CLV_USE_RESULT;
clv_code clv_tls_certs_read(const char *path, STACK_OF(X509) * *ret_certs,
                            clv_err *err) CLV_USE_RESULT;

/* Writes the certificates as PEM text; the caller frees it. */
clv_code clv_tls_certs_format(const STACK_OF(X509) * certs, char **ret_pem,
                              clv_err *err) CLV_USE_RESULT;

/* Reads the private key of a PEM text. Encrypted keys are refused. */
clv_code clv_tls_key_parse(const char *pem, const char *what, EVP_PKEY **ret_key,
                           clv_err *err) CLV_USE_RESULT;

/* ---- reading a certificate ------------------------------------------------------------------- */

/* Converts a time to seconds since 1970. False: it is not valid. */
bool clv_tls_asn1_seconds(const ASN1_TIME *time, int64_t *ret_s);
int64_t clv_tls_now(void);
int64_t clv_tls_days_until(int64_t seconds); /* whole days from now, rounded down */

enum { CLV_TLS_TIME_TEXT = 40 };
/* Write a time as "2026-11-20 10:00:00 UTC", and a duration as "3 days", to buf and return buf. */
const char *clv_tls_format_time(int64_t seconds, char buf[CLV_TLS_TIME_TEXT]);
const char *clv_tls_format_duration(int64_t seconds, char buf[CLV_TLS_TIME_TEXT]);

/* Returns the bits of the extended key usage. False: the certificate has none. */
bool clv_tls_cert_usage(const X509 *cert, unsigned *ret_usage);

/* Returns the only URI of a certificate, as clv_tls_uri_of_pem. */
clv_code clv_tls_uri_of_x509(const X509 *cert, char *buf, size_t len, clv_err *err) CLV_USE_RESULT;

/* True if the bytes are a valid identity; else `reason` says why not. */
bool clv_tls_uri_is_valid(const unsigned char *data, size_t len, char reason[CLV_TLS_ERROR_LEN]);

/* ---- the authority of ca.c ------------------------------------------------------------------- */

typedef struct clv_tls_authority {
  X509 *cert;
  EVP_PKEY *key;
  int64_t not_after;
} clv_tls_authority;

/* Reads DIR/ca.pem and DIR/ca.key. */
clv_code clv_tls_authority_load(const char *dir, clv_tls_authority *ca,
                                clv_err *err) CLV_USE_RESULT;
void clv_tls_authority_clear(clv_tls_authority *ca);

/* ---- lists of revoked certificates ----------------------------------------------------------- */

enum { CLV_TLS_ISSUER_LEN = 256, CLV_TLS_SERIAL_LEN = 80 };

/* Write a name as "/CN=home", and a serial number in upper-case hexadecimal, to buf. */
void clv_tls_issuer_text(const X509_NAME *name, char buf[CLV_TLS_ISSUER_LEN]);
void clv_tls_serial_text(const ASN1_INTEGER *serial, char buf[CLV_TLS_SERIAL_LEN]);
/* Checks a leaf against the list in force, inside OpenSSL's verification callback. Returns the new
 * value of `ok`. */
int clv_tls_revocation_verify(int ok, X509_STORE_CTX *ctx);
/* Makes accepted.c verify the peers of all TLS contexts that are made from now on: by the list in
 * force, and by the admission once clv_tls_accepted_install has been called. */
clv_code clv_tls_verification_install(clv_err *err) CLV_USE_RESULT;
/* Makes OpenSSL call accepted.c for every connection. */
clv_code clv_tls_accepted_install(clv_err *err) CLV_USE_RESULT;

/* ---- declarations of frames.c ---------------------------------------------------------------- */

enum { CLV_TLS_FRAME_HEAD = 9 };

/* Classes of HTTP/2 frames. Each connection has a leaky bucket for each class. */
typedef enum clv_tls_bucket {
  CLV_TLS_REQUESTS, /* new streams; the level falls by one for each call that gRPC delivers */
  CLV_TLS_CONTROL,  /* SETTINGS, PING, RST_STREAM, PRIORITY, CONTINUATION and unknown types */
  CLV_TLS_WINDOWS,  /* WINDOW_UPDATE; the level falls for each record that this side sends */
  /* DATA below 1 KiB; the bucket's level falls by 3 for each message that gRPC delivers */
  CLV_TLS_SMALL_DATA,
  CLV_TLS_BUCKETS
} clv_tls_bucket;

/* Meter of the HTTP/2 frames of one connection. Charges the peer for each frame. */
typedef struct clv_tls_frame_meter {
  uint8_t frame_header[CLV_TLS_FRAME_HEAD];
  uint8_t n_header_bytes; /* bytes of frame_header received so far */
  uint32_t bytes_to_skip; /* bytes of the preface or of a payload that are still to be received */
  uint32_t header_block_bytes; /* bytes of the header block in progress */
  uint32_t last_stream_id;     /* highest id of a stream opened so far */
  uint32_t bucket_levels[CLV_TLS_BUCKETS];
  uint64_t unread_bytes; /* bytes of DATA minus those of messages that gRPC has delivered */
  uint64_t buckets_leaked_until_ns;
} clv_tls_frame_meter;

void clv_tls_frame_meter_init(clv_tls_frame_meter *f, uint64_t now_ns);
/* Charges the frames that begin in these decrypted bytes. Returns NULL, or at the first excess a
 * static text that says what the peer sent too much of. */
const char *clv_tls_frame_meter_charge(clv_tls_frame_meter *f, const uint8_t *data, size_t len,
                                       uint64_t now_ns);
/* call when gRPC has delivered a message */
void clv_tls_frame_meter_credit_message(clv_tls_frame_meter *f, size_t bytes);
void clv_tls_frame_meter_credit(clv_tls_frame_meter *f, clv_tls_bucket bucket, uint32_t amount);

/* ---- functions of accepted.c that handshakes.c calls ----------------------------------------- */

/* Disables session tickets. Called at the first message of each connection. */
void clv_tls_accepted_on_begin(SSL *ssl);
/* Handles a message that this connection sent or received. Called before handshakes.c counts it. */
void clv_tls_accepted_on_handshake_message(SSL *ssl, bool was_sent, int type, const uint8_t *data,
                                           size_t len);
/* Credits a record of `bytes` that this connection has sent. */
void clv_tls_accepted_on_sent(SSL *ssl, size_t bytes);
/* True if the admission refused or closed the connection; *ret is how to count the failure. */
bool clv_tls_accepted_get_failure(const SSL *ssl, clv_tls_failure *ret);

/* ---- TCP with a deadline --------------------------------------------------------------------- */

typedef struct clv_tls_socket {
  int fd; /* descriptor of the socket; -1: not connected */
  char address[80];
  double connect_ms;
  const char *fix; /* static text that says how to fix a failed dial; set only after a failure */
} clv_tls_socket;

/* Connects to the first address of host that answers before deadline_ns (clock: clv_now_ns). Sets
 * s->address and s->fix on failure too. CLV_NOT_FOUND: no such name; CLV_UNAVAILABLE, CLV_DEADLINE:
 * no connection. */
clv_code clv_tls_dial(const char *host, uint16_t port, uint64_t deadline_ns, clv_tls_socket *s,
                      clv_err *err) CLV_USE_RESULT;
void clv_tls_hang_up(clv_tls_socket *s); /* closes the socket; usable with CLV_AUTO */

/* Sends all bytes or fails; never raises SIGPIPE. */
bool clv_tls_send(const clv_tls_socket *s, const void *data, size_t len, uint64_t deadline_ns);

/* Returns bytes read (> 0); 0: the end or a broken connection; -1: the deadline has passed. */
int clv_tls_recv(const clv_tls_socket *s, void *data, int len, uint64_t deadline_ns);

#endif
