/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures transfers of tensors over raw OpenSSL between two processes, the upper limit for our
 * transfers. TLS 1.3, AES-128-GCM, certificates on both sides. A transfer is a header of 16 bytes,
 * the tensor, and an acknowledgement of 16 bytes, which the receiver sends when its buffer has the
 * complete tensor.
 *   BATCH_KIB > 0   so many KiB are collected before each write to the socket, and read ahead
 *   BATCH_KIB = 0   naive: one record of 16 KiB per SSL_write and system call
 *
 * usage: bench_tls BATCH_KIB CERTS CLIENT SERVER
 * commands: tensor BYTES N    seconds of each transfer
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/bench/bench_int.h"

enum { KIB = 1024, RECORD_BYTES = 16 * KIB };

static size_t batch_bytes;

static void require_openssl_success(int ok) {
  if (ok > 0) return;
  ERR_print_errors_fp(stderr);
  exit_with_message("OpenSSL");
}

static SSL_CTX *make_ssl_context(bool is_server, const char *certs, const char *name) {
  char path[512];
  SSL_CTX *ctx = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
  SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
  require_openssl_success(SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256"));
  snprintf(path, sizeof path, "%s/ca.pem", certs);
  require_openssl_success(SSL_CTX_load_verify_locations(ctx, path, NULL));
  snprintf(path, sizeof path, "%s/%s.pem", certs, name);
  require_openssl_success(SSL_CTX_use_certificate_chain_file(ctx, path));
  snprintf(path, sizeof path, "%s/%s.key", certs, name);
  require_openssl_success(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM));
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
  if (batch_bytes) {
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, batch_bytes);
  }
  return ctx;
}

static SSL *make_connection(SSL_CTX *ctx, int fd, bool is_server) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  SSL *ssl = SSL_new(ctx);
  SSL_set_fd(ssl, fd);
  require_openssl_success(is_server ? SSL_accept(ssl) : SSL_connect(ssl));
  if (batch_bytes) {
    BIO *buffer = BIO_new(BIO_f_buffer());
    require_openssl_success((int)BIO_set_write_buffer_size(buffer, batch_bytes));
    BIO *socket_bio = SSL_get_wbio(ssl);
    BIO_up_ref(socket_bio);
    SSL_set0_wbio(ssl, BIO_push(buffer, socket_bio));
  }
  return ssl;
}

static void send_bytes(SSL *ssl, const char *data, size_t len) {
  for (size_t at = 0; at < len;) {
    size_t n;
    require_openssl_success(
        SSL_write_ex(ssl, data + at, CLV_MIN(len - at, (size_t)RECORD_BYTES), &n));
    at += n;
  }
}

static void receive_bytes(SSL *ssl, char *data, size_t len) {
  for (size_t at = 0; at < len;) {
    size_t n;
    require_openssl_success(SSL_read_ex(ssl, data + at, len - at, &n));
    at += n;
  }
}

static void flush_output(SSL *ssl) { require_openssl_success(BIO_flush(SSL_get_wbio(ssl))); }

static char *make_buffer(size_t bytes) {
  char *data;
  clv_err err;
  must(clv_alloc_aligned(bytes, &data, &err), &err);
  memset(data, 1, bytes);
  return data;
}

static _Noreturn void serve_forever(SSL *ssl) {
  uint64_t header[2];
  size_t cap_data = 0;
  char *data = NULL;
  for (;;) {
    size_t n, at = 0;
    while (at < sizeof header) {
      if (!SSL_read_ex(ssl, (char *)header + at, sizeof header - at, &n)) _exit(0);
      at += n;
    }
    if (header[0] > cap_data) {
      free(data);
      cap_data = header[0];
      data = make_buffer(cap_data);
    }
    receive_bytes(ssl, data, header[0]);
    send_bytes(ssl, (const char *)header, sizeof header);
    flush_output(ssl);
  }
}

static SSL *connect_pair(const char *certs, const char *client, const char *server) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr *)&address, len) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, (struct sockaddr *)&address, &len) != 0)
    exit_with_message("listen");
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_forever(
        make_connection(make_ssl_context(true, certs, server), accept(listener, NULL, NULL), true));
  }
  close(listener);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr *)&address, len) != 0) exit_with_message("connect");
  return make_connection(make_ssl_context(false, certs, client), fd, false);
}

static void measure_tensors(SSL *ssl, size_t bytes, unsigned n) {
  double *seconds = allocate_samples(n);
  char *data = make_buffer(bytes);
  uint64_t header[2] = {bytes, 0}, ack[2];
  for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)(void *)data)[i] = (uint32_t)i * 2654435761u;
  for (unsigned i = 0; i < n; i++) {
    uint64_t begin = clv_now_ns();
    send_bytes(ssl, (const char *)header, sizeof header);
    send_bytes(ssl, data, bytes);
    flush_output(ssl);
    receive_bytes(ssl, (char *)ack, sizeof ack);
    seconds[i] = (double)(clv_now_ns() - begin) / 1e9;
  }
  free(data);
  print_list(seconds, n);
  free(seconds);
}

int main(int argc, char **argv) {
  char line[128];
  size_t bytes;
  unsigned n;
  if (argc != 5) exit_with_message("usage: bench_tls BATCH_KIB CERTS CLIENT SERVER");
  batch_bytes = (size_t)atoi(argv[1]) * KIB;
  SSL *ssl = connect_pair(argv[2], argv[3], argv[4]);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "tensor %zu %u", &bytes, &n) != 2) exit_with_message("unknown command");
    measure_tensors(ssl, bytes, n);
  }
  return 0;
}
