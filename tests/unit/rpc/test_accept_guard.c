/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the guard of accepted connections. A server with 64 descriptors is flooded with plain TCP
 * connections that never speak TLS. While they are open, and after they are closed, a master must
 * be able to connect again. Without the guard gRPC's listener never accepts again after the first
 * accept that finds no descriptor.
 *
 * The server is this program again (with the guard linked in, as in the worker daemon), because the
 * limit on descriptors must not limit the flood.
 */
#include "rpc_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "worker/accept_guard_int.h"

enum { DESCRIPTORS = 64 };

static identity master, worker;
static char server_address[64];
static pid_t server_pid;

static _Noreturn void run_server(const char *dir) {
  clv_err err;
  struct rlimit descriptor_limit = {DESCRIPTORS, DESCRIPTORS};
  must(clv_tls_set_min_version(&err), &err);
  setrlimit(RLIMIT_NOFILE, &descriptor_limit);
  serve_forever(dir);
}

static int group_up(void **state) {
  (void)state;
  make_scratch();
  master = issue_identity_with_uri("home", "master", MASTER_URI);
  worker = issue_identity_with_uri("home", "worker", WORKER_URI);
  server_pid = start_process(server_address);
  return 0;
}

static int group_down(void **state) {
  (void)state;
  kill(server_pid, SIGKILL);
  waitpid(server_pid, NULL, 0);
  free_identity(&master);
  free_identity(&worker);
  return remove_scratch();
}

static void open_silent_connections(int *fds, int n) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)atoi(strrchr(server_address, ':') + 1)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < n; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(fds[i] >= 0);
    (void)!connect(fds[i], (struct sockaddr *)&at, sizeof at);
  }
}

static unsigned count_good_handshakes(clv_rpc_runtime *runtime, unsigned n) {
  unsigned n_good = 0;
  for (unsigned i = 0; i < n; i++) {
    clv_err err;
    CLV_AUTO(clv_rpc_channel_freep)
    clv_rpc_channel *channel = make_channel(runtime, server_address, &master, WORKER_URI);
    CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
    clv_code code = clv_rpc_channel_connect(channel, 2000, &err);
    if (code == CLV_OK) code = clv_rpc_call_unary(channel, "/test/Say", "x", 1, 2000, &reply, &err);
    if (code == CLV_OK)
      n_good++;
    else
      printf("          handshake %u: %s\n", i, err.text);
  }
  return n_good;
}

static void check_recovery_after_flood(int n) {
  int *fds = calloc((size_t)n, sizeof *fds);
  clv_rpc_runtime *runtime = make_runtime();
  assert_int_equal(count_good_handshakes(runtime, 1), 1);
  open_silent_connections(fds, n);
  usleep(500000);
  for (int i = 0; i < n; i++) close(fds[i]);
  usleep(500000);
  assert_int_equal(count_good_handshakes(runtime, 5), 5);
  clv_rpc_runtime_freep(&runtime);
  free(fds);
}

static void test_server_recovers_from_150_connections(void **state) {
  (void)state;
  check_recovery_after_flood(150);
}

static void test_server_recovers_from_300_connections(void **state) {
  (void)state;
  check_recovery_after_flood(300);
}

/* Silent connections are closed after the handshake time, even if the client never closes them. */
static void test_silent_connections_are_dropped_after_a_timeout(void **state) {
  (void)state;
  enum { N = 200 };
  static int fds[N];
  clv_rpc_runtime *runtime = make_runtime();
  open_silent_connections(fds, N);
  sleep(4);
  assert_int_equal(count_good_handshakes(runtime, 5), 5);
  for (int i = 0; i < N; i++) close(fds[i]);
  clv_rpc_runtime_freep(&runtime);
}

int main(int argc, char **argv) {
  if (argc == 2) run_server(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_server_recovers_from_150_connections),
      cmocka_unit_test(test_server_recovers_from_300_connections),
      cmocka_unit_test(test_silent_connections_are_dropped_after_a_timeout),
  };
  return cmocka_run_group_tests(tests, group_up, group_down);
}
