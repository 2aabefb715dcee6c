/* SPDX-License-Identifier: Apache-2.0
 *
 * Claims of writers on names of files of state. A writer holds a claim while it writes a file or
 * waits to write it. Claims keep the writers of a name in order, and reserve quota for files that
 * are not complete yet.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "worker/store/states_int.h"

enum { POLL_MS = 100 }; /* interval at which a waiting thread checks its cancellation hook */

void clv_states_begin_claim(clv_states *s, const char *identity, const char *name,
                            clv_state_claim *c) {
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
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  clv_err ignored_err;
  /* Hold the folder's lock, so that another writer, which adds up the bytes of files and claims,
   * counts either the claim or its new file. If the folder cannot be locked, end the claim
   * nevertheless. */
  (void)!clv_state_folder_lock(&s->folders, c->identity, &o, &ignored_err);
  remove_claim(s, c);
}

/* True if a claim on the name exists that is older than own_claim; own_claim NULL: any claim. */
static bool is_claimed(const clv_states *s, const char *identity, const char *name,
                       const clv_state_claim *own_claim) {
  for (const clv_state_claim *c = s->first_claim; c && c != own_claim; c = c->next)
    if (strcmp(c->name, name) == 0 && strcmp(c->identity, identity) == 0) return true;
  return false;
}

static void wait_for_claim_end(clv_states *s) {
  struct timespec wake_time;
  clock_gettime(CLOCK_MONOTONIC, &wake_time);
  wake_time.tv_nsec += POLL_MS * 1000000;
  wake_time.tv_sec += wake_time.tv_nsec / 1000000000;
  wake_time.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&s->claim_ended, &s->lock, &wake_time);
}

clv_code clv_state_await_claims(clv_states *s, const char *identity, const char *name,
                                const clv_state_claim *own_claim,
                                const clv_cancel_hook *cancel_hook, clv_err *err) {
  clv_code code = CLV_OK;
  pthread_mutex_lock(&s->lock);
  while (code == CLV_OK && is_claimed(s, identity, name, own_claim)) {
    wait_for_claim_end(s);
    pthread_mutex_unlock(&s->lock);
    code = clv_cancel_hook_check(cancel_hook, err);
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* ---- quotas of identities -------------------------------------------------------------------- */

/* Returns the bytes of a file of state, rounded up to blocks; 0: the file does not exist. */
static uint64_t get_file_bytes_on_disk(const char *dir, const char *name) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  struct stat st;
  clv_err ignored_err;
  if (clv_state_make_path(dir, name, &path, &ignored_err) != CLV_OK || lstat(path.data, &st) != 0)
    return 0;
  return S_ISREG(st.st_mode) ? clv_state_round_to_block((uint64_t)st.st_size) : 0;
}

/* True if another claim of the identity has reserved bytes for the file `name`. */
static bool is_reserved(clv_states *s, const clv_state_claim *own_claim, const char *name) {
  bool is_found = false;
  for (const clv_state_claim *c = s->first_claim; c && !is_found; c = c->next)
    is_found = c != own_claim && c->reserved_bytes && strcmp(c->name, name) == 0 &&
               strcmp(c->identity, own_claim->identity) == 0;
  return is_found;
}

/* Returns the bytes of the files in the folder `dir`, except the file of own_claim and files for
 * which another claim has reserved bytes. */
static uint64_t sum_file_bytes(clv_states *s, const char *dir, const clv_state_claim *own_claim) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(dir);
  char name[CLV_FILE_NAME + 1];
  uint64_t used_bytes = 0;
  while (clv_folder_files_next(&f))
    if (clv_state_parse_file_name(f.name, name) && strcmp(name, own_claim->name) != 0 &&
        !is_reserved(s, own_claim, name))
      used_bytes += get_file_bytes_on_disk(dir, name);
  return used_bytes;
}

/* Returns the bytes that other claims of the identity count: for each the larger size of the old
 * and the new file. */
static uint64_t sum_claim_bytes(const clv_states *s, const char *dir,
                                const clv_state_claim *own_claim) {
  uint64_t used_bytes = 0;
  for (const clv_state_claim *c = s->first_claim; c; c = c->next)
    if (c != own_claim && c->reserved_bytes && strcmp(c->identity, own_claim->identity) == 0)
      used_bytes += CLV_MAX(c->reserved_bytes, get_file_bytes_on_disk(dir, c->name));
  return used_bytes;
}

clv_code clv_state_reserve_bytes(clv_states *s, const clv_state_folder *o,
                                 clv_state_claim *own_claim, uint64_t bytes, uint64_t max_bytes,
                                 clv_err *err) {
  uint64_t needed_bytes = clv_state_round_to_block(bytes);
  pthread_mutex_lock(&s->lock);
  uint64_t used_bytes =
      sum_file_bytes(s, o->dir.data, own_claim) + sum_claim_bytes(s, o->dir.data, own_claim);
  bool is_within_quota = used_bytes <= max_bytes && needed_bytes <= max_bytes - used_bytes;
  if (is_within_quota) own_claim->reserved_bytes = needed_bytes;
  pthread_mutex_unlock(&s->lock);
  if (is_within_quota) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "%llu bytes more exceed the quota of files of state of this identity: %llu in "
                  "use, the limit is %llu; raise allow[].state_bytes in worker.yaml",
                  (unsigned long long)needed_bytes, (unsigned long long)used_bytes,
                  (unsigned long long)max_bytes);
}
