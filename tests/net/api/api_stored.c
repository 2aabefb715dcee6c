/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests files of state that workers keep. Usage: api_stored SESSION.yaml A B FOLDER PHASE. PHASE
 * "first" trains and saves, also into FOLDER; "later" loads in another session; "stranger" runs as
 * another identity; "poor" runs as an identity whose quota of files is zero. The program prints
 * "ask WORD" to let the runner do WORD to worker B, and waits for a line. It prints "file NODE NAME
 * BYTES SHA256" for each file that a worker has saved.
 */
#include "api_int.h"

static const char *state_folder;
static net n;
static cleave_optimizer *adam;

static bool ask_runner(const char *action) {
  char line[64];
  printf("ask %s\n", action);
  fflush(stdout);
  CHECK(fgets(line, sizeof line, stdin) != NULL);
  return true;
}

static bool load_network_and_optimizer(void) {
  DO(make_network("net", "master", &n));
  cleave_module *both[] = {n.a, n.b};
  cleave_group g = {.modules = both, .n_modules = 2, .kind = CLEAVE_ADAM, .lr = 0.05};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.7, &adam, e));
  return true;
}

static bool train_steps(unsigned from, unsigned to) {
  for (unsigned step = from; step < to; step++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_network(&n, c, 10 * step, NULL, NULL, &loss));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, adam, c, 0, NULL, e));
    DO(close_context(c));
  }
  return true;
}

static void print_file(cleave_module *m, const char *name, const cleave_state_file *f) {
  printf("file %s %s %llu %s\n", cleave_module_node(m), name, (unsigned long long)f->bytes,
         f->sha256);
}

static bool save_state_file(cleave_module *m, cleave_state_kind kind, const char *name) {
  cleave_state_file f = {.size = sizeof f};
  char path[512];
  MUST(cleave_state_save_at_worker(rt, m, kind, name, 0, &f, e));
  print_file(m, name, &f);
  snprintf(path, sizeof path, "%s/%s.safetensors", state_folder, name);
  MUST(cleave_state_save(rt, m, kind, path, 0, e));
  return true;
}

static bool save_all_state_files(void) {
  DO(save_state_file(n.a, CLEAVE_STATE_WEIGHTS, "a") &&
     save_state_file(n.a, CLEAVE_STATE_OPTIMIZER, "a.adam"));
  return save_state_file(n.b, CLEAVE_STATE_WEIGHTS, "b") &&
         save_state_file(n.b, CLEAVE_STATE_OPTIMIZER, "b.adam");
}

static bool load_state_at_module(cleave_module *m, const char *weights, const char *moments) {
  cleave_state_file f = {.size = sizeof f};
  MUST(cleave_state_load_at_worker(rt, m, CLEAVE_STATE_WEIGHTS, weights, 0, &f, e));
  print_file(m, weights, &f);
  MUST(cleave_state_load_at_worker(rt, m, CLEAVE_STATE_OPTIMIZER, moments, 0, &f, e));
  print_file(m, moments, &f);
  return true;
}

static bool add_state_to_digest(cleave_module *m, cleave_state_kind kind) {
  cleave_state s = {0};
  MUST(cleave_state_read(rt, m, kind, 0, &s, e));
  for (size_t i = 0; i < s.n; i++) add_to_digest(&s.items[i].tensor);
  cleave_state_free(&s);
  return true;
}

static bool add_all_state_to_digest(uint64_t *ret) {
  digest = UINT64_C(14695981039346656037);
  DO(add_state_to_digest(n.a, CLEAVE_STATE_WEIGHTS) &&
     add_state_to_digest(n.a, CLEAVE_STATE_OPTIMIZER));
  DO(add_state_to_digest(n.b, CLEAVE_STATE_WEIGHTS) &&
     add_state_to_digest(n.b, CLEAVE_STATE_OPTIMIZER));
  *ret = digest;
  return true;
}

/* ---- tests of the phase "first" -------------------------------------------------------------- */

static uint64_t digest_after_three, digest_after_five;

static bool saved_state_is_loaded_again(void) {
  uint64_t digest_after_load;
  DO(load_network_and_optimizer());
  DO(train_steps(0, 3) && save_all_state_files());
  DO(add_all_state_to_digest(&digest_after_three));
  DO(train_steps(3, 5) && add_all_state_to_digest(&digest_after_five));
  DO(load_state_at_module(n.a, "a", "a.adam") && load_state_at_module(n.b, "b", "b.adam"));
  MUST(cleave_optimizer_set_steps(rt, adam, 3, e));
  DO(add_all_state_to_digest(&digest_after_load));
  CHECK(digest_after_load == digest_after_three && digest_after_load != digest_after_five);
  DO(train_steps(3, 5) && add_all_state_to_digest(&digest_after_load));
  CHECK(digest_after_load == digest_after_five);
  return true;
}

/* cleave_state_save_at_worker waits for a step in flight, so the file has the weights after the
 * step. */
static bool saved_file_includes_the_last_step(void) {
  uint64_t digest_before, digest_after;
  cleave_context c;
  cleave_reference loss;
  DO(add_all_state_to_digest(&digest_before));
  DO(open_context(&c));
  DO(run_network(&n, c, 50, NULL, NULL, &loss));
  DO(backward(c, loss, false));
  cleave_future f, g;
  MUST(cleave_step_async(rt, adam, c, 0, &f, e));
  MUST(cleave_state_save_at_worker_async(rt, n.b, CLEAVE_STATE_WEIGHTS, "stepped", 0, &g, e));
  cleave_state_file file = {.size = sizeof file}, other_file = file;
  MUST(cleave_future_wait(rt, g, 0, e));
  MUST(cleave_future_state_file(rt, g, &file, e));
  MUST(cleave_future_wait(rt, f, 0, e));
  MUST(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "stepped2", 0, &other_file, e));
  CHECK(strcmp(file.sha256, other_file.sha256) == 0 && file.bytes == other_file.bytes &&
        file.bytes > 0);
  DO(add_all_state_to_digest(&digest_after));
  CHECK(digest_after != digest_before);
  cleave_state s;
  REFUSED(cleave_future_state(rt, g, &s, e), CLEAVE_INVALID, "a file of state");
  REFUSED(cleave_future_state_file(rt, f, &file, e), CLEAVE_INVALID, "a step");
  file.size = 3;
  REFUSED(cleave_future_state_file(rt, g, &file, e), CLEAVE_INVALID, "3 bytes");
  MUST(cleave_future_release(rt, f, e));
  MUST(cleave_future_release(rt, g, e));
  MUST(cleave_state_load_at_worker_async(rt, n.b, CLEAVE_STATE_WEIGHTS, "stepped", 0, &f, e));
  MUST(cleave_future_wait(rt, f, 0, e));
  MUST(cleave_future_release(rt, f, e));
  MUST(cleave_state_remove_at_worker_async(rt, n.b, "stepped2", 0, &f, e));
  MUST(cleave_future_wait(rt, f, 0, e));
  MUST(cleave_future_release(rt, f, e));
  MUST(cleave_state_remove_at_worker(rt, n.b, "stepped", 0, e));
  REFUSED(cleave_state_remove_at_worker(rt, n.b, "stepped", 0, e), CLEAVE_NOT_FOUND, "'stepped'");
  return close_context(c);
}

static bool path_as_state_name_is_refused(void) {
  char long_name[130];
  memset(long_name, 'n', sizeof long_name - 1);
  long_name[129] = '\0';
  const char *const bad[] = {"",     "../x", "..",        "/etc/passwd", ".x",  "a/b",
                             "a\nb", "a b",  "n\xc3\xa4", long_name,     "a\\b"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    REFUSED(cleave_state_save_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, bad[i], 0, NULL, e),
            CLEAVE_INVALID, "no path");
    REFUSED(cleave_state_load_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, bad[i], 0, NULL, e),
            CLEAVE_INVALID, "no path");
    REFUSED(cleave_state_remove_at_worker(rt, n.a, bad[i], 0, e), CLEAVE_INVALID, "no path");
  }
  long_name[128] = '\0';
  MUST(cleave_state_save_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, long_name, 0, NULL, e));
  MUST(cleave_state_remove_at_worker(rt, n.a, long_name, 0, e));
  return true;
}

static bool mismatched_state_file_changes_nothing(void) {
  uint64_t digest_before, digest_after;
  cleave_state_file small = {.size = 1};
  DO(add_all_state_to_digest(&digest_before));
  REFUSED(cleave_state_load_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "none", 0, NULL, e),
          CLEAVE_NOT_FOUND, "'none'");
  REFUSED(cleave_state_load_at_worker(rt, n.a, CLEAVE_STATE_OPTIMIZER, "a", 0, NULL, e),
          CLEAVE_INVALID, "exp_avg");
  REFUSED(cleave_state_save_at_worker(rt, n.loss, CLEAVE_STATE_WEIGHTS, "x", 0, NULL, e),
          CLEAVE_INVALID, "cleave_state_save");
  REFUSED(cleave_state_save_at_worker(rt, n.a, (cleave_state_kind)4, "x", 0, NULL, e),
          CLEAVE_INVALID, "4");
  REFUSED(cleave_state_save_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "x", 0, &small, e),
          CLEAVE_INVALID, "1 bytes");
  DO(ask_runner("damage")); /* asks the runner to damage the file "b.adam" */
  REFUSED(cleave_state_load_at_worker(rt, n.b, CLEAVE_STATE_OPTIMIZER, "b.adam", 0, NULL, e),
          CLEAVE_DATA_LOSS, "'b.adam'");
  DO(ask_runner("repair"));
  DO(ask_runner("block")); /* asks the runner to make a folder in place of the file "blocked" */
  REFUSED(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "blocked", 0, NULL, e),
          CLEAVE_UNAVAILABLE, "file of state 'blocked': Is a directory (");
  DO(add_all_state_to_digest(&digest_after));
  CHECK(digest_before == digest_after);
  return true;
}

/* Each file counts as at least 4 KiB of the quota of 64 KiB. Files b and b.adam exist already. */
static bool state_over_the_quota_is_refused(void) {
  cleave_error quota_error = {.status = CLEAVE_OK};
  char name[32];
  int i = 0;
  for (; i < 20 && quota_error.status == CLEAVE_OK; i++) {
    snprintf(name, sizeof name, "more-%d", i);
    (void)!cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, name, 0, NULL, &quota_error);
  }
  CHECK(i == 15 && quota_error.status == CLEAVE_EXHAUSTED &&
        strstr(quota_error.text, "allow[].state_bytes"));
  MUST(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "more-3", 0, NULL, e));
  MUST(cleave_state_remove_at_worker(rt, n.b, "more-0", 0, e));
  MUST(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, name, 0, NULL, e));
  REFUSED(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "more-0", 0, NULL, e),
          CLEAVE_EXHAUSTED,
          "4096 bytes more exceed the quota of files of state of this identity: 65536 in use");
  return true;
}

static bool call_fails_after_loss_of_b(void) {
  cleave_link_measure m;
  cleave_error error = {.status = CLEAVE_OK};
  uint32_t b = 0;
  while (strcmp(cleave_node_name(rt, b), at_b) != 0) b++;
  for (int i = 0; i < 1000 && error.status != CLEAVE_UNAVAILABLE; i++) {
    if (cleave_measure(rt, b, 100, &m, &error) == CLEAVE_OK) error.status = CLEAVE_OK;
    usleep(10000);
  }
  CHECK(error.status == CLEAVE_UNAVAILABLE);
  return true;
}

/* Worker B is killed and started again. Then the modules load the state files that their workers
 * have kept. */
static bool module_reloads_its_files_from_restarted_worker(void) {
  uint64_t digest_after_load;
  DO(ask_runner("kill"));
  DO(call_fails_after_loss_of_b());
  REFUSED(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "b", 0, NULL, e),
          CLEAVE_UNAVAILABLE, at_b);
  DO(ask_runner("start"));
  MUST(cleave_worker_rejoin(rt, at_b, 0, e));
  REFUSED(cleave_state_load_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "b", 0, NULL, e),
          CLEAVE_UNAVAILABLE, "net b");
  MUST(cleave_module_reload(rt, n.b, NULL, NULL, 0, e));
  DO(load_state_at_module(n.a, "a", "a.adam") && load_state_at_module(n.b, "b", "b.adam"));
  MUST(cleave_optimizer_set_steps(rt, adam, 3, e));
  DO(add_all_state_to_digest(&digest_after_load));
  CHECK(digest_after_load == digest_after_three);
  DO(train_steps(3, 5) && add_all_state_to_digest(&digest_after_load));
  CHECK(digest_after_load == digest_after_five);
  return true;
}

/* ---- tests of the later phases: other sessions and identities -------------------------------- */

/* Loads the files in another session, after both daemons were restarted. */
static bool another_session_loads_stored_files(void) {
  DO(load_network_and_optimizer());
  DO(load_state_at_module(n.a, "a", "a.adam") && load_state_at_module(n.b, "b", "b.adam"));
  MUST(cleave_optimizer_set_steps(rt, adam, 3, e));
  DO(train_steps(3, 5));
  DO(save_state_file(n.a, CLEAVE_STATE_WEIGHTS, "a.later") &&
     save_state_file(n.b, CLEAVE_STATE_WEIGHTS, "more-1"));
  return true;
}

static bool another_identity_has_no_stored_files(void) {
  cleave_state_file f = {.size = sizeof f};
  DO(load_network_and_optimizer());
  REFUSED(cleave_state_load_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "a", 0, &f, e),
          CLEAVE_NOT_FOUND, "'a'");
  REFUSED(cleave_state_remove_at_worker(rt, n.a, "a", 0, e), CLEAVE_NOT_FOUND, "'a'");
  /* saves a file "a" of this second identity, although the first identity has a file "a" */
  MUST(cleave_state_save_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "a", 0, &f, e));
  print_file(n.a, "stranger", &f);
  MUST(cleave_state_load_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "a", 0, NULL, e));
  MUST(cleave_state_remove_at_worker(rt, n.a, "a", 0, e));
  return true;
}

static bool zero_state_quota_names_its_key(void) {
  DO(load_network_and_optimizer());
  REFUSED(cleave_state_save_at_worker(rt, n.a, CLEAVE_STATE_WEIGHTS, "a", 0, NULL, e),
          CLEAVE_EXHAUSTED, "the limit is 0; raise allow[].state_bytes");
  return true;
}

static bool worker_without_state_dir_refuses_files(void) {
  DO(load_network_and_optimizer());
  REFUSED(cleave_state_save_at_worker(rt, n.b, CLEAVE_STATE_WEIGHTS, "b", 0, NULL, e),
          CLEAVE_UNIMPLEMENTED, "state_dir");
  return true;
}

static const struct {
  const char *phase;
  bool (*run)(void);
  const char *name;
} tests[] = {
#define AT(when, f) \
  { when, f, #f }
    AT("first", saved_state_is_loaded_again),
    AT("first", saved_file_includes_the_last_step),
    AT("first", path_as_state_name_is_refused),
    AT("first", mismatched_state_file_changes_nothing),
    AT("first", state_over_the_quota_is_refused),
    AT("first", module_reloads_its_files_from_restarted_worker),
    AT("later", another_session_loads_stored_files),
    AT("stranger", another_identity_has_no_stored_files),
    AT("poor", zero_state_quota_names_its_key),
    AT("homeless", worker_without_state_dir_refuses_files),
};

int main(int argc, char **argv) {
  bool is_open = argc == 6 && open_session(argv);
  if (!is_open) print_result(false, "open");
  if (is_open) state_folder = argv[4];
  for (size_t i = 0; is_open && i < sizeof tests / sizeof *tests; i++) {
    if (strcmp(tests[i].phase, argv[5]) != 0) continue;
    bool ok = tests[i].run();
    print_result(ok, tests[i].name);
    is_open = ok;
  }
  if (rt) (void)cleave_close(rt, 0, NULL, NULL);
  return n_failed != 0;
}
