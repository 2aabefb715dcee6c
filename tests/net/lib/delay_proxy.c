/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a long link by a TCP proxy: the proxy sends bytes a given time after they arrived, in
 * both directions, and at no more than a given rate.
 *
 *   delay_proxy LISTEN_PORT HOST:PORT --one-way-ms D [--rate-mbit R] [--queue-ms Q]
 *
 * Prints `listening PORT` (LISTEN_PORT 0: a free port). Then reads lines from standard input that
 * change the settings, and answers each with `ok`: `delay D` in ms, `rate R` in Mbit/s (0:
 * unlimited), `queue Q` in ms. The proxy ends when its standard input ends.
 *
 * Each direction of a connection has a thread that reads, stamps and queues bytes, and one that
 * waits for the time of the stamp and writes them. All connections share the rate in each
 * direction, as on one link. A reading thread reads only while the link needs less than Q ms to
 * send the bytes queued before. So a small Q simulates a link with a fair queue, a large Q a link
 * in whose queue all connections wait. Only WINDOW_BYTES limits how much is in flight: beyond it
 * the proxy stops reading, and TCP slows the sender down.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
  READ_BYTES = 64 * 1024,
  RATED_BYTES = 8 * 1024,
  WINDOW_BYTES = 64 << 20,
  MS = 1000000,
  BURST_NS = 5 * MS
};

/* Settings that the control lines change. `lock` guards them and the clocks of the link. */
static struct {
  pthread_mutex_t lock;
  double delay_ms, rate_mbit, queue_ms;
  /* [direction] time in ns at which the simulated link will have sent all bytes that it accepted */
  int64_t free_at_ns[2];
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .queue_ms = 5};

static struct addrinfo *target;

typedef struct piece {
  struct piece *next;
  int64_t due_ns; /* time in ns, by the monotonic clock, at which the piece is to be written */
  size_t len;     /* bytes; 0: end of the stream */
  char bytes[];
} piece;

/* One direction of a connection, with the queue of pieces that are to be written. */
typedef struct transfer_direction {
  pthread_mutex_t lock;
  pthread_cond_t queue_changed;
  piece *first_piece, *last_piece;
  size_t held_bytes; /* bytes read and not yet written */
  bool is_broken;
  int from_fd, to_fd, direction;
} transfer_direction;

typedef struct connection {
  transfer_direction directions[2];
  int client_fd, target_fd;
  int n_threads; /* number of threads that still run; accessed atomically */
} connection;

typedef struct thread_args {
  connection *c;
  transfer_direction *w;
} thread_args;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void sleep_until(int64_t at_ns) {
  struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

static void exit_with_error(const char *operation) {
  fprintf(stderr, "delay_proxy: %s: %s\n", operation, strerror(errno));
  exit(1);
}

/* ---- rate and delay of the simulated link ---------------------------------------------------- */

/* Waits until the simulated link accepts more bytes. Returns how many bytes to read at once. */
static size_t wait_for_link(int direction) {
  for (;;) {
    pthread_mutex_lock(&shared.lock);
    bool is_rated = shared.rate_mbit > 0;
    int64_t accept_at_ns = shared.free_at_ns[direction] - (int64_t)(shared.queue_ms * MS);
    pthread_mutex_unlock(&shared.lock);
    if (!is_rated) return READ_BYTES;
    if (accept_at_ns <= now_ns()) return RATED_BYTES;
    sleep_until(accept_at_ns);
  }
}

/* Returns the time at which `len` bytes that arrived now are to be sent. A link makes up for
 * at most BURST_NS of idle time, because each late wake-up of a reading thread would lower the rate
 * otherwise. */
static int64_t get_due_ns(int direction, size_t len) {
  int64_t now = now_ns(), *free_at_ns = &shared.free_at_ns[direction], send_at_ns = now;
  pthread_mutex_lock(&shared.lock);
  if (shared.rate_mbit > 0) {
    int64_t begin_ns = *free_at_ns > now - BURST_NS ? *free_at_ns : now - BURST_NS;
    *free_at_ns = begin_ns + (int64_t)((double)len * 8000 / shared.rate_mbit);
    if (*free_at_ns > now) send_at_ns = *free_at_ns;
  }
  send_at_ns += (int64_t)(shared.delay_ms * MS);
  pthread_mutex_unlock(&shared.lock);
  return send_at_ns;
}

/* ---- one direction of a connection ----------------------------------------------------------- */

static bool add_piece(transfer_direction *w, piece *p) {
  pthread_mutex_lock(&w->lock);
  while (!w->is_broken && w->held_bytes > WINDOW_BYTES)
    pthread_cond_wait(&w->queue_changed, &w->lock);
  bool is_accepted = !w->is_broken;
  if (is_accepted) {
    *(w->last_piece ? &w->last_piece->next : &w->first_piece) = p;
    w->last_piece = p;
    w->held_bytes += p->len;
    pthread_cond_broadcast(&w->queue_changed);
  }
  pthread_mutex_unlock(&w->lock);
  if (!is_accepted) free(p);
  return is_accepted;
}

static piece *take_piece(transfer_direction *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->first_piece) pthread_cond_wait(&w->queue_changed, &w->lock);
  piece *p = w->first_piece;
  w->first_piece = p->next;
  if (!p->next) w->last_piece = NULL;
  pthread_mutex_unlock(&w->lock);
  return p;
}

static void report_written(transfer_direction *w, size_t len, bool ok) {
  pthread_mutex_lock(&w->lock);
  w->held_bytes -= len;
  w->is_broken |= !ok;
  pthread_cond_broadcast(&w->queue_changed);
  pthread_mutex_unlock(&w->lock);
}

static bool write_all(int fd, const char *bytes, size_t len) {
  while (len) {
    ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    len -= (size_t)n;
  }
  return true;
}

static void free_pieces(transfer_direction *w) {
  for (piece *p; (p = w->first_piece) != NULL;) {
    w->first_piece = p->next;
    free(p);
  }
}

static void end_thread(connection *c) {
  if (__atomic_sub_fetch(&c->n_threads, 1, __ATOMIC_ACQ_REL) > 0) return;
  for (int i = 0; i < 2; i++) free_pieces(&c->directions[i]);
  close(c->client_fd);
  close(c->target_fd);
  free(c);
}

static void *read_in_thread(void *arg) {
  thread_args h = *(thread_args *)arg;
  ssize_t n;
  free(arg);
  do {
    size_t max_bytes = wait_for_link(h.w->direction);
    piece *p = malloc(sizeof *p + max_bytes);
    if (!p) exit_with_error("memory");
    n = recv(h.w->from_fd, p->bytes, max_bytes, 0);
    p->next = NULL;
    p->len = n > 0 ? (size_t)n : 0;
    p->due_ns = get_due_ns(h.w->direction, p->len);
    if (!add_piece(h.w, p)) break;
  } while (n > 0);
  end_thread(h.c);
  return NULL;
}

static void *write_in_thread(void *arg) {
  thread_args h = *(thread_args *)arg;
  bool ok = true;
  free(arg);
  for (size_t len = 1; len && ok;) {
    piece *p = take_piece(h.w);
    len = p->len;
    sleep_until(p->due_ns);
    ok = write_all(h.w->to_fd, p->bytes, len);
    free(p);
    report_written(h.w, len, ok);
  }
  shutdown(h.w->to_fd, SHUT_WR);
  if (!ok) shutdown(h.w->from_fd, SHUT_RD); /* wakes the reading thread */
  end_thread(h.c);
  return NULL;
}

/* ---- accepting connections ------------------------------------------------------------------- */

static void start_thread(connection *c, transfer_direction *w, void *(*run)(void *)) {
  thread_args *h = malloc(sizeof *h);
  pthread_t thread;
  if (!h) exit_with_error("memory");
  *h = (thread_args){c, w};
  if (pthread_create(&thread, NULL, run, h) != 0) exit_with_error("thread");
  pthread_detach(thread);
}

static void serve_connection(int client_fd) {
  int one = 1, target_fd = socket(target->ai_family, SOCK_STREAM, 0);
  if (target_fd < 0 || connect(target_fd, target->ai_addr, target->ai_addrlen) != 0) {
    if (target_fd >= 0) close(target_fd);
    close(client_fd);
    return;
  }
  setsockopt(client_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(target_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  connection *c = calloc(1, sizeof *c);
  if (!c) exit_with_error("memory");
  c->client_fd = client_fd;
  c->target_fd = target_fd;
  c->n_threads = 4;
  for (int i = 0; i < 2; i++) {
    c->directions[i] = (transfer_direction){
        .from_fd = i ? target_fd : client_fd, .to_fd = i ? client_fd : target_fd, .direction = i};
    pthread_mutex_init(&c->directions[i].lock, NULL);
    pthread_cond_init(&c->directions[i].queue_changed, NULL);
  }
  for (int i = 0; i < 2; i++) start_thread(c, &c->directions[i], read_in_thread);
  for (int i = 0; i < 2; i++) start_thread(c, &c->directions[i], write_in_thread);
}

static void *accept_in_thread(void *arg) {
  int listener = *(int *)arg;
  for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) serve_connection(fd);
  return NULL;
}

static int listen_on(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0) exit_with_error("socket");
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0)
    exit_with_error("listen");
  if (getsockname(fd, (struct sockaddr *)&a, &len) != 0) exit_with_error("getsockname");
  printf("listening %d\n", ntohs(a.sin_port));
  fflush(stdout);
  return fd;
}

/* ---- control lines of the test --------------------------------------------------------------- */

static bool set_parameter(const char *name, double value) {
  static const struct {
    const char *name;
    double *field;
  } rows[] = {
      {"delay", &shared.delay_ms}, {"rate", &shared.rate_mbit}, {"queue", &shared.queue_ms}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (strcmp(rows[i].name, name) != 0 || !(value >= 0 && value <= 1e6)) continue;
    pthread_mutex_lock(&shared.lock);
    *rows[i].field = value;
    pthread_mutex_unlock(&shared.lock);
    return true;
  }
  return false;
}

static bool read_option(const char *name, const char *value) {
  static const char *const names[][2] = {
      {"--one-way-ms", "delay"}, {"--rate-mbit", "rate"}, {"--queue-ms", "queue"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i][0], name) == 0) return set_parameter(names[i][1], atof(value));
  return false;
}

static void read_commands(void) {
  char line[128], word[32];
  double value;
  while (fgets(line, sizeof line, stdin)) {
    bool ok = sscanf(line, "%31s %lf", word, &value) == 2 && set_parameter(word, value);
    printf(ok ? "ok\n" : "unknown: %s", line);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  char host[256], *colon = argc > 2 ? strrchr(argv[2], ':') : NULL;
  bool ok = colon && argc % 2 && (size_t)(colon - argv[2]) < sizeof host;
  for (int i = 3; ok && i < argc; i += 2) ok = read_option(argv[i], argv[i + 1]);
  if (!ok) {
    fprintf(stderr,
            "usage: delay_proxy LISTEN_PORT HOST:PORT --one-way-ms D [--rate-mbit R] "
            "[--queue-ms Q]\n");
    return 2;
  }
  snprintf(host, sizeof host, "%.*s", (int)(colon - argv[2]), argv[2]);
  struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  if (getaddrinfo(host, colon + 1, &hint, &target) != 0) exit_with_error(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  int listener = listen_on(atoi(argv[1]));
  pthread_t thread;
  if (pthread_create(&thread, NULL, accept_in_thread, &listener) != 0) exit_with_error("thread");
  read_commands();
  return 0;
}
