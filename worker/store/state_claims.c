/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims. A claim says that a writer writes a file of state, or waits to write it. Claims keep the
 * order of the writers of a name, and reserve the bytes of a file that is not complete yet.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "worker/store/states_int.h"

enum { POLL_MS = 100 }; /* interval at which a waiting thread checks its cancellation hook */

void clv_states_claim(clv_states *s, const char *identity, const char *name, clv_state_claim *c) {
  *c = (clv_state_claim){.identity = identity};
  snprintf(c->name, sizeof c->name, "%s", name);
  pthread_mutex_lock(&s->lock);
  clv_state_claim **end = &s->first_claim;
  while (*end) end = &(*end)->next;
  *end = c;
  pthread_mutex_unlock(&s->lock);
}

static void remove_claim(clv_states *s, const clv_state_claim *c) {
  pthread_mutex_lock(&s->lock);
  clv_state_claim **at = &s->first_claim;
  while (*at && *at != c) at = &(*at)->next;
  if (*at) *at = c->next;
  pthread_cond_broadcast(&s->claim_ended);
  pthread_mutex_unlock(&s->lock);
}

void clv_states_end_claim(clv_states *s, clv_state_claim *c) {
  CLV_AUTO(clv_state_folder_done) clv_state_folder o = {0};
  clv_err ignored;
  /* Ends the claim with the folder's lock held, so that a writer that adds up the sizes sees
   * either the claim or its new file. If the folder cannot be locked, no other writer adds up
   * its sizes. */
  (void)!clv_state_folder_begin(&s->folders, c->identity, &o, &ignored);
  remove_claim(s, c);
}

static bool is_claimed(const clv_states *s, const char *identity, const char *name,
                       const clv_state_claim *own_claim) {
  for (const clv_state_claim *c = s->first_claim; c && c != own_claim; c = c->next)
    if (strcmp(c->name, name) == 0 && strcmp(c->identity, identity) == 0) return true;
  return false;
}

static void wait_for_claim_end(clv_states *s) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += POLL_MS * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&s->claim_ended, &s->lock, &until);
}

clv_code clv_state_await_claims(clv_states *s, const char *identity, const char *name,
                                const clv_state_claim *own_claim, const clv_cancel_hook *waiter,
                                clv_err *err) {
  clv_code code = CLV_OK;
  pthread_mutex_lock(&s->lock);
  while (code == CLV_OK && is_claimed(s, identity, name, own_claim)) {
    wait_for_claim_end(s);
    pthread_mutex_unlock(&s->lock);
    code = clv_cancel_hook_check(waiter, err);
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* ---- quotas of identities -------------------------------------------------------------------- */

static uint64_t size_on_disk(const char *dir, const char *name) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  struct stat at;
  clv_err ignored;
  if (clv_state_path(dir, name, &path, &ignored) != CLV_OK || lstat(path.data, &at) != 0) return 0;
  return S_ISREG(at.st_mode) ? clv_state_round_to_block((uint64_t)at.st_size) : 0;
}

/* True if a claim other than `own_claim` has reserved bytes for the file. */
static bool is_reserved(clv_states *s, const clv_state_claim *own_claim, const char *name) {
  bool found = false;
  for (const clv_state_claim *c = s->first_claim; c && !found; c = c->next)
    found = c != own_claim && c->reserved_bytes && strcmp(c->name, name) == 0 &&
            strcmp(c->identity, own_claim->identity) == 0;
  return found;
}

/* Returns the size on disk of the files in the folder, except the file of `own_claim` and files for
 * which another claim has reserved bytes. */
static uint64_t bytes_of_files(clv_states *s, const char *dir, const clv_state_claim *own_claim) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(dir);
  char name[CLV_FILE_NAME + 1];
  uint64_t used = 0;
  while (clv_folder_files_next(&f))
    if (clv_state_name_of(f.name, name) && strcmp(name, own_claim->name) != 0 &&
        !is_reserved(s, own_claim, name))
      used += size_on_disk(dir, name);
  return used;
}

/* Returns the bytes of the files for which other claims of the identity have reserved bytes. */
static uint64_t bytes_of_claims(const clv_states *s, const char *dir,
                                const clv_state_claim *own_claim) {
  uint64_t used = 0;
  for (const clv_state_claim *c = s->first_claim; c; c = c->next)
    if (c != own_claim && c->reserved_bytes && strcmp(c->identity, own_claim->identity) == 0)
      used += CLV_MAX(c->reserved_bytes, size_on_disk(dir, c->name));
  return used;
}

clv_code clv_state_reserve(clv_states *s, const clv_state_folder *o, clv_state_claim *own_claim,
                           uint64_t bytes, uint64_t max_bytes, clv_err *err) {
  uint64_t needed = clv_state_round_to_block(bytes);
  pthread_mutex_lock(&s->lock);
  uint64_t used =
      bytes_of_files(s, o->dir.data, own_claim) + bytes_of_claims(s, o->dir.data, own_claim);
  bool fits = used <= max_bytes && needed <= max_bytes - used;
  if (fits) own_claim->reserved_bytes = needed;
  pthread_mutex_unlock(&s->lock);
  if (fits) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "%llu bytes more exceed the quota of files of state of this identity: %llu in "
                  "use, the limit is %llu; raise allow[].state_bytes in worker.yaml",
                  (unsigned long long)needed, (unsigned long long)used,
                  (unsigned long long)max_bytes);
}
