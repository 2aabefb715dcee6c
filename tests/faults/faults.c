/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a bad network between whole processes. This file is linked into the tests' own
 * cleave-worker, cleave-master and libcleave. The linker redirects every call of clv_link_send to
 * this file (--wrap), so the product needs no code for faults.
 *
 *   CLEAVE_TEST_FAULTS=SEED:DROP:DUPLICATE:DELAY_MS   percent, percent, most milliseconds
 *
 * Only messages that the product sends again, or that only free memory, may be disturbed: messages
 * about references except their values, DROP, END_CONTEXT without a step, and ENDED without a
 * trace. Seed, kind and n decide whether the n-th message of a kind is dropped, duplicated or
 * delayed. At exit this code prints how many messages it disturbed, because a test without a
 * disturbed message proves nothing.
 *
 *   CLEAVE_TEST_SENT=FILE   adds the bytes of all tensors that a link accepted to the u64 in FILE
 *
 * FILE is mapped into memory, so that it has the right count even if the process is killed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/net/link/link_int.h"

typedef struct delayed_packet {
  struct delayed_packet *next; /* next packet in the list, which ascends by time */
  uint64_t send_at_ns;
  clv_link *link;
  clv_packet *packet;
} delayed_packet;

static struct {
  bool is_on;
  uint64_t seed, drop_percent, duplicate_percent, max_delay_ms;
  pthread_mutex_t lock;
  pthread_cond_t list_changed;
  delayed_packet *first_delayed;
  uint64_t n_seen[CLV_FRAME_KINDS], n_dropped[CLV_FRAME_KINDS], n_duplicated[CLV_FRAME_KINDS],
      n_delayed[CLV_FRAME_KINDS];
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns a hash of a number, by splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t hash_number(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static bool may_be_disturbed(const clv_frame *f) {
  bool is_about_reference =
      f->kind >= CLV_REF_KEEP && f->kind <= CLV_REF_ACK && f->kind != CLV_REF_VALUE;
  bool is_end_without_step = f->kind == CLV_END_CONTEXT && !f->has_commit;
  bool is_ended_without_trace = f->kind == CLV_ENDED && !f->n_tensors;
  return is_about_reference || is_end_without_step || is_ended_without_trace || f->kind == CLV_DROP;
}

clv_code __real_clv_link_send(clv_link *link, clv_packet *p, clv_err *err);
clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *err);

static void send_now(clv_link *link, clv_packet *p) {
  clv_err ignored;
  (void)!__real_clv_link_send(link, p, &ignored);
}

static void *send_delayed(void *user) {
  (void)user;
  pthread_mutex_lock(&faults.lock);
  for (;;) {
    delayed_packet *d = faults.first_delayed;
    uint64_t now = clv_now_ns();
    if (!d) {
      pthread_cond_wait(&faults.list_changed, &faults.lock);
    } else if (d->send_at_ns > now) {
      struct timespec ts = {(time_t)(d->send_at_ns / 1000000000u),
                            (long)(d->send_at_ns % 1000000000u)};
      pthread_cond_timedwait(&faults.list_changed, &faults.lock, &ts);
    } else {
      faults.first_delayed = d->next;
      pthread_mutex_unlock(&faults.lock);
      send_now(d->link, d->packet);
      clv_link_unref(d->link);
      free(d);
      pthread_mutex_lock(&faults.lock);
    }
  }
  return NULL;
}

static void delay_packet(clv_link *link, clv_packet *p, uint64_t ms) {
  delayed_packet *d = calloc(1, sizeof *d), **at = &faults.first_delayed;
  *d = (delayed_packet){
      .send_at_ns = clv_now_ns() + ms * 1000000u, .link = clv_link_ref(link), .packet = p};
  pthread_mutex_lock(&faults.lock);
  while (*at && (*at)->send_at_ns <= d->send_at_ns) at = &(*at)->next;
  d->next = *at;
  *at = d;
  pthread_cond_signal(&faults.list_changed);
  pthread_mutex_unlock(&faults.lock);
}

static clv_packet *copy_packet(const clv_packet *p) {
  clv_packet *copy;
  clv_err ignored;
  if (clv_packet_new(p->pool, p->frame.kind, &copy, &ignored) != CLV_OK) return NULL;
  copy->frame = p->frame; /* the frames that may be disturbed have no tensors */
  return copy;
}

static void increment_counter(uint64_t *counter) {
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static void send_duplicate(clv_link *link, const clv_packet *p) {
  clv_packet *duplicate = copy_packet(p);
  if (!duplicate) return;
  increment_counter(&faults.n_duplicated[p->frame.kind]);
  send_now(link, duplicate);
}

/* Drops, duplicates or delays a packet, as the hash of its number decides. Returns false if the
 * caller must send the packet now. */
static bool drop_or_delay(clv_link *link, clv_packet *p) {
  clv_frame_kind kind = p->frame.kind;
  if (!faults.is_on || !may_be_disturbed(&p->frame)) return false;
  uint64_t n = __atomic_fetch_add(&faults.n_seen[kind], 1, __ATOMIC_RELAXED);
  uint64_t random_bits = hash_number(faults.seed ^ hash_number((uint64_t)kind << 48 | n));
  if (random_bits % 100 < faults.drop_percent) {
    increment_counter(&faults.n_dropped[kind]);
    clv_packet_free(p);
    return true;
  }
  if ((random_bits >> 8) % 100 < faults.duplicate_percent) send_duplicate(link, p);
  uint64_t ms = faults.max_delay_ms ? (random_bits >> 16) % (faults.max_delay_ms + 1) : 0;
  if (!ms || (random_bits >> 40) % 2) return false;
  increment_counter(&faults.n_delayed[kind]);
  delay_packet(link, p, ms);
  return true;
}

static uint64_t *sent_bytes;

clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *err) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) bytes += p->tensor[i]->bytes;
  clv_code code = drop_or_delay(link, p) ? CLV_OK : __real_clv_link_send(link, p, err);
  if (sent_bytes && bytes && code == CLV_OK)
    __atomic_fetch_add(sent_bytes, bytes, __ATOMIC_SEQ_CST);
  return code;
}

__attribute__((constructor)) static void begin_to_count(void) {
  const char *path = getenv("CLEAVE_TEST_SENT");
  if (!path) return;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || ftruncate(fd, sizeof *sent_bytes) != 0) exit(70);
  sent_bytes = mmap(NULL, sizeof *sent_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (sent_bytes == MAP_FAILED) exit(70);
  close(fd);
}

static void print_counts(void) {
  for (int kind = 1; kind < CLV_FRAME_KINDS; kind++)
    if (faults.n_seen[kind])
      fprintf(stderr, "faults %s %llu dropped %llu doubled %llu delayed %llu\n",
              clv_frame_kind_name((clv_frame_kind)kind), (unsigned long long)faults.n_seen[kind],
              (unsigned long long)faults.n_dropped[kind],
              (unsigned long long)faults.n_duplicated[kind],
              (unsigned long long)faults.n_delayed[kind]);
}

__attribute__((constructor)) static void start_faults(void) {
  const char *setting = getenv("CLEAVE_TEST_FAULTS");
  unsigned long long seed, drop_percent, duplicate_percent, max_delay_ms;
  if (!setting) return;
  if (sscanf(setting, "%llu:%llu:%llu:%llu", &seed, &drop_percent, &duplicate_percent,
             &max_delay_ms) != 4) {
    fprintf(stderr, "CLEAVE_TEST_FAULTS: '%s' is not SEED:DROP:DUPLICATE:DELAY_MS\n", setting);
    exit(64);
  }
  faults.seed = seed;
  faults.drop_percent = drop_percent;
  faults.duplicate_percent = duplicate_percent;
  faults.max_delay_ms = max_delay_ms;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&faults.list_changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_t thread;
  if (pthread_create(&thread, NULL, send_delayed, NULL) != 0) exit(70);
  pthread_detach(thread);
  atexit(print_counts);
  faults.is_on = true;
}
