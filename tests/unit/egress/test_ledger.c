/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the ledger, the host's list of keys and weights that workers have received. An item that
 * was added is found, and is stored once. A ledger that is damaged, that others may write to, or
 * that cannot be written is refused, and the error names the file. Two processes that add items at
 * the same time lose none. A full ledger is compacted. A kept ledger reads only what is new in
 * the file.
 */
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fcntl.h>

#include "master/egress/egress_int.h"
#include "tests/unit/files.h"

#define W1 "spiffe://acme/w1"
#define W2 "spiffe://acme/w2"

static const char head[] =
    "cleave ledger 1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

static clv_sha256 make_digest(uint32_t i) {
  clv_sha256 d;
  assert_int_equal(clv_sha256_of(&i, sizeof i, &d, NULL), CLV_OK);
  return d;
}

static clv_ledger_item make_item(clv_ledger_kind kind, uint32_t i, const char *identity) {
  return (clv_ledger_item){kind, make_digest(i), identity};
}

static const char *get_ledger_path(void) { return at("state/cleave/keys.ledger"); }

static void remove_ledger(void) {
  char command[300];
  snprintf(command, sizeof command, "chmod -R u+rwX %s/state 2>/dev/null; rm -rf %s/state", scratch,
           scratch);
  (void)!system(command);
  unsetenv("STATE_DIRECTORY");
  setenv("XDG_STATE_HOME", at("state"), 1);
}

static void add_item(clv_ledger_item i) {
  clv_err err = {0};
  assert_ok(clv_ledger_add(&i, 1, &err), &err);
}

static bool is_item_found(clv_ledger_kind kind, uint32_t i, clv_ledger_entry *ret) {
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = NULL;
  const clv_sha256 of = make_digest(i);
  clv_err err = {0};
  bool is_found;
  assert_ok(clv_ledger_open(&l, &err), &err);
  assert_ok(clv_ledger_find(l, kind, &of, ret, &is_found, &err), &err);
  return is_found;
}

static size_t count_lines(void) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t n = 0;
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &text, NULL), CLV_OK);
  for (size_t i = 0; i < text.len; i++) n += text.data[i] == '\n';
  return n;
}

static void added_item_is_found(void **state) {
  (void)state;
  clv_ledger_entry e;
  struct stat st;
  remove_ledger();
  assert_false(is_item_found(CLV_LEDGER_KEY, 1, &e)); /* a missing file is an empty ledger */
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  assert_true(is_item_found(CLV_LEDGER_KEY, 1, &e));
  assert_string_equal(e.identity, W1);
  assert_int_equal(strlen(e.date), 10);
  assert_false(is_item_found(CLV_LEDGER_RUN, 1, &e)); /* an item of another kind is not found */
  assert_false(is_item_found(CLV_LEDGER_KEY, 2, &e));
  assert_int_equal(stat(get_ledger_path(), &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
}

static void repeated_item_is_stored_once(void **state) {
  (void)state;
  clv_ledger_entry e;
  const clv_ledger_item items[] = {make_item(CLV_LEDGER_KEY, 1, W1),
                                   make_item(CLV_LEDGER_WEIGHTS, 1, W1),
                                   make_item(CLV_LEDGER_KEY, 1, W2)};
  clv_err err = {0};
  remove_ledger();
  add_item(items[0]);
  for (int i = 0; i < 3; i++) assert_ok(clv_ledger_add(items, CLV_COUNT(items), &err), &err);
  assert_int_equal(count_lines(), 4);
  assert_true(is_item_found(CLV_LEDGER_KEY, 1, &e));
  /* the ledger keeps the first identity that received the key */
  assert_string_equal(e.identity, W1);
}

static void ledger_file_hides_its_digests(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes first_ledger = {0}, second_ledger = {0};
  char hex[65];
  const clv_sha256 of = make_digest(1);
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &first_ledger, NULL), CLV_OK);
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &second_ledger, NULL), CLV_OK);
  clv_sha256_hex(&of, hex);
  hex[32] = '\0';
  assert_null(strstr(first_ledger.data, hex));
  /* each ledger draws its own salt */
  assert_string_not_equal(strchr(first_ledger.data, '\n'), strchr(second_ledger.data, '\n'));
}

static void truncated_last_line_is_removed(void **state) {
  (void)state;
  clv_ledger_entry e;
  static const char *const tails[] = {"key 0011", "key 00112233445566778899aabbccddeeff 2026-1",
                                      "k"};
  for (size_t i = 0; i < CLV_COUNT(tails); i++) {
    remove_ledger();
    add_item(make_item(CLV_LEDGER_KEY, 1, W1));
    FILE *f = fopen(get_ledger_path(), "ab");
    fputs(tails[i], f);
    if (i == 2) fputc('\0', f); /* a NUL at the end, as a power failure leaves it */
    fclose(f);
    assert_true(is_item_found(CLV_LEDGER_KEY, 1, &e));
    add_item(make_item(CLV_LEDGER_KEY, 2, W2));
    assert_true(is_item_found(CLV_LEDGER_KEY, 1, &e) && is_item_found(CLV_LEDGER_KEY, 2, &e));
    assert_int_equal(count_lines(), 3);
  }
}

static void assert_refused(const char *text, size_t len, const char *says) {
  clv_ledger *l = NULL;
  clv_err err = {0};
  remove_ledger();
  assert_int_equal(mkdir(at("state"), 0700), 0);
  assert_int_equal(mkdir(at("state/cleave"), 0700), 0);
  write_scratch_file("state/cleave/keys.ledger", text, len);
  assert_int_not_equal(clv_ledger_open(&l, &err), CLV_OK);
  assert_says(&err, says);
  assert_says(&err, "keys.ledger");
  const clv_ledger_item item = make_item(CLV_LEDGER_KEY, 1, W1);
  assert_int_not_equal(clv_ledger_add(&item, 1, &err), CLV_OK);
}

static void damaged_ledger_line_is_located(void **state) {
  (void)state;
  static const char *const bad[] = {
      "key 00112233445566778899aabbccddeeff 2026-11-28 \n", /* the line has no identity */
      "key 00112233445566778899aabbccddeef 2026-11-28 a\n",
      "key 00112233445566778899aabbccddeegg 2026-11-28 a\n",
      "lock 00112233445566778899aabbccddeeff 2026-11-28 a\n",
      "key 00112233445566778899aabbccddeeff 2026-11-2 a\n",
      "key 00112233445566778899aabbccddeeff 2026/11/28 a\n",
      "key 00112233445566778899aabbccddeeff 2026-11-28 a\033[2J\n",
      "rows 00112233445566778 2026-11-28 a\n", /* the second digest has 1 hex digit instead of 16 */
      "rows 0011223344556677001122334455667g 2026-11-28 a\n",
      "rows  2026-11-28 a\n",
      "rows 0011223344556677\n",
      "rows 0011223344556677 2026-11-28 \n",
      "key\n",
      "\n"};
  char text[400];
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    int n = snprintf(text, sizeof text, "%s%s", head, bad[i]);
    assert_refused(text, (size_t)n, "keys.ledger:2: this is not a line of a ledger");
  }
  assert_refused("cleave ledger 2 00\n", 19,
                 "keys.ledger:1: this is not the head line of a ledger of version 1");
  assert_refused("\n", 1, "move it away to begin another");
  int n = snprintf(text, sizeof text, "%skey 0%c\nkey 1\n", head, '\0');
  assert_refused(text, (size_t)n, ":2: NUL bytes stand before complete lines");
}

static void ledger_writable_by_others_is_refused(void **state) {
  (void)state;
  clv_ledger *l = NULL;
  clv_err err = {0};
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  assert_int_equal(chmod(get_ledger_path(), 0620), 0);
  assert_int_equal(clv_ledger_open(&l, &err), CLV_INVALID);
  assert_says(&err, "no other user may write to");
  assert_int_equal(unlink(get_ledger_path()), 0);
  assert_int_equal(symlink("/dev/null", get_ledger_path()), 0);
  assert_int_equal(clv_ledger_open(&l, &err), CLV_PRECONDITION);
}

static void unwritable_ledger_path_is_named(void **state) {
  (void)state;
  clv_err err = {0};
  const clv_ledger_item item = make_item(CLV_LEDGER_KEY, 1, W1);
  remove_ledger();
  write_scratch_file("state", "", 0); /* a file at the folder's path */
  assert_int_equal(clv_ledger_add(&item, 1, &err), CLV_PRECONDITION);
  assert_says(&err, "cannot be written: ");
  assert_says(&err, "set XDG_STATE_HOME to a folder that stays");
  assert_int_equal(unlink(at("state")), 0);
}

static void ledger_folder_follows_environment_variables(void **state) {
  (void)state;
  char folder_list[420], first_folder[200], home_folder[200];
  remove_ledger();
  snprintf(first_folder, sizeof first_folder, "%s", at("state"));
  snprintf(folder_list, sizeof folder_list, "%s:%s", first_folder, at("elsewhere"));
  setenv("STATE_DIRECTORY", folder_list, 1);
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  assert_int_equal(access(at("state/keys.ledger"), F_OK), 0);
  unsetenv("STATE_DIRECTORY");
  setenv("XDG_STATE_HOME", "relative", 1); /* a relative path is ignored */
  snprintf(home_folder, sizeof home_folder, "%s", getenv("HOME") ? getenv("HOME") : "/");
  setenv("HOME", first_folder, 1);
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  setenv("HOME", home_folder, 1);
  assert_int_equal(access(at("state/.local/state/cleave/keys.ledger"), F_OK), 0);
}

static void concurrent_processes_lose_no_items(void **state) {
  (void)state;
  enum { ITEMS_PER_PROCESS = 40 };
  clv_ledger_entry e;
  pid_t child[2];
  remove_ledger();
  for (uint32_t c = 0; c < 2; c++) {
    child[c] = fork();
    if (child[c]) continue;
    for (uint32_t i = 0; i < ITEMS_PER_PROCESS; i++) {
      const clv_ledger_item one = make_item(CLV_LEDGER_KEY, 2 * i + c, c ? W1 : W2);
      if (clv_ledger_add(&one, 1, NULL) != CLV_OK) _exit(1);
    }
    _exit(0);
  }
  for (int c = 0; c < 2; c++) {
    int status;
    assert_int_equal(waitpid(child[c], &status, 0), child[c]);
    assert_int_equal(status, 0);
  }
  for (uint32_t i = 0; i < 2 * ITEMS_PER_PROCESS; i++)
    assert_true(is_item_found(CLV_LEDGER_KEY, i, &e));
  assert_int_equal(count_lines(), 2 * ITEMS_PER_PROCESS + 1);
}

static void add_waits_for_the_file_lock(void **state) {
  (void)state;
  int status;
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  int fd = open(get_ledger_path(), O_RDWR | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  pid_t child = fork();
  if (!child) {
    const clv_ledger_item item = make_item(CLV_LEDGER_KEY, 2, W2);
    close(fd); /* the inherited descriptor shares the lock of the parent, so the child closes it */
    _exit(clv_ledger_add(&item, 1, NULL) != CLV_OK);
  }
  usleep(300 * 1000);
  assert_int_equal(count_lines(), 2);
  assert_int_equal(flock(fd, LOCK_UN), 0);
  close(fd);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(count_lines(), 3);
}

/* Fills a ledger to 64 MiB with this number of keys, each with identities of maximum length. */
static void fill_ledger(uint32_t n_keys) {
  enum { MAX_BYTES = CLV_LEDGER_MAX_BYTES, MARGIN_BYTES = 100 };
  static char identity[CLV_LEDGER_MAX_IDENTITY + 1];
  size_t at = sizeof head - 1;
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1)); /* creates the folder */
  FILE *f = fopen(get_ledger_path(), "wb");
  fputs(head, f);
  memset(identity, 'a', CLV_LEDGER_MAX_IDENTITY);
  for (uint32_t i = 0; at + CLV_LEDGER_MAX_IDENTITY + MARGIN_BYTES <= MAX_BYTES; i++) {
    memcpy(identity, "spiffe://00000000", 17);
    snprintf(identity + 9, 9, "%08x", i);
    identity[17] = 'a';
    at += (size_t)fprintf(f, "key %032x 2026-11-28 %s\n", i % n_keys, identity);
  }
  for (uint32_t i = 0; at + 60 < MAX_BYTES; i++)
    at += (size_t)fprintf(f, "run %032x 2026-11-28 a\n", i % n_keys);
  assert_int_equal(fclose(f), 0);
}

static void full_ledger_file_is_compacted(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_ledger_entry e;
  struct stat st;
  fill_ledger(20);
  add_item(make_item(CLV_LEDGER_KEY, 1, W2));
  /* lines of the compacted file: the head, 20 keys, up to 20 runs and the new item */
  assert_in_range(count_lines(), 1 + 20 + 1, 1 + 20 + 20 + 1);
  assert_true(is_item_found(CLV_LEDGER_KEY, 1, &e));
  assert_string_equal(e.identity, W2);
  assert_int_equal(stat(get_ledger_path(), &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &text, NULL), CLV_OK);
  /* compaction keeps the first line with the salt, with which the digests were made */
  assert_memory_equal(text.data, head, sizeof head - 1);
  /* each key still has the first identity that received it */
  for (unsigned i = 0; i < 20; i++) {
    char line[100];
    snprintf(line, sizeof line, "\nkey %032x 2026-11-28 spiffe://%08xa", i, i);
    assert_non_null(strstr(text.data, line));
  }
}

static void full_ledger_is_named(void **state) {
  (void)state;
  clv_err err = {0};
  struct stat before, after;
  const clv_ledger_item items[] = {make_item(CLV_LEDGER_KEY, 1, W1),
                                   make_item(CLV_LEDGER_KEY, 2, W1)};
  fill_ledger(UINT32_MAX);
  assert_int_equal(stat(get_ledger_path(), &before), 0);
  assert_int_equal(clv_ledger_add(items, 2, &err), CLV_PRECONDITION);
  assert_says(&err, "is full: it has 3");
  assert_says(&err, "at most 64 MiB; move it away to begin another");
  assert_int_equal(stat(get_ledger_path(), &after), 0);
  assert_int_equal(before.st_ino, after.st_ino);
  assert_int_equal(before.st_size, after.st_size);
}

static void rows_share_a_line(void **state) {
  (void)state;
  clv_ledger_item items[8];
  clv_ledger_entry e;
  clv_err err = {0};
  remove_ledger();
  for (uint32_t i = 0; i < 8; i++) items[i] = make_item(CLV_LEDGER_ROW, i, i < 6 ? W1 : W2);
  /* items: rows 0 to 2, weights 3, rows 4 and 5, and rows 6 and 7 of another identity */
  items[3].kind = CLV_LEDGER_WEIGHTS;
  assert_ok(clv_ledger_add(items, CLV_COUNT(items), &err), &err);
  assert_int_equal(count_lines(), 1 + 4);
  for (uint32_t i = 0; i < 8; i++) {
    assert_int_equal(is_item_found(CLV_LEDGER_ROW, i, &e), i != 3);
    if (i != 3) assert_string_equal(e.identity, i < 6 ? W1 : W2);
  }
  items[0] = make_item(CLV_LEDGER_ROW, 100, W1);
  /* adds the same items again, of which one is new */
  assert_ok(clv_ledger_add(items, CLV_COUNT(items), &err), &err);
  assert_int_equal(count_lines(), 1 + 5);
  assert_true(is_item_found(CLV_LEDGER_ROW, 100, &e));
  assert_false(is_item_found(CLV_LEDGER_KEY, 100, &e));
}

/* Writes pseudo-random hex digits in place of the digest of row i. A real SHA-256 of each of a
 * million rows would double the time of this test. */
static void put_row(FILE *f, uint64_t i) {
  for (int d = 0; d < 2 * CLV_LEDGER_ROW_DIGEST_BYTES; d++) {
    if (d % 16 == 0) {
      i += 0x9e3779b97f4a7c15u;
      i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
      i = (i ^ i >> 27) * 0x94d049bb133111ebu;
      i ^= i >> 31;
    }
    putc_unlocked("0123456789abcdef"[i >> 4 * (d % 16) & 15], f);
  }
}

/* Fills a ledger with more rows than it may have, 64 in a line, most of them twice. The next
 * addition must remove rows (thin them). */
static void too_many_rows_are_thinned(void **state) {
  (void)state;
  enum { ROWS_PER_LINE = 64, LINES = CLV_LEDGER_MAX_ROWS / ROWS_PER_LINE + 1 };
  CLV_AUTO(clv_ledger_freep) clv_ledger *l = NULL;
  clv_ledger_entry e;
  clv_err err = {0};
  remove_ledger();
  add_item(make_item(CLV_LEDGER_ROW, 1, W1));
  add_item(make_item(CLV_LEDGER_KEY, 2, W1));
  FILE *f = fopen(get_ledger_path(), "ab");
  for (uint32_t i = 0; i < LINES; i++) {
    fputs("rows ", f);
    for (uint32_t k = 0; k < ROWS_PER_LINE; k++) {
      put_row(f, i % (LINES / 3 * 2) * ROWS_PER_LINE + k);
    }
    fputs(" 2026-11-28 spiffe://acme/w3\n", f);
  }
  assert_int_equal(fclose(f), 0);
  add_item(make_item(CLV_LEDGER_KEY, 3, W2));
  assert_ok(clv_ledger_open(&l, &err), &err);
  size_t n = clv_ledger_count_rows(l), n_distinct_rows = LINES / 3 * 2 * ROWS_PER_LINE;
  if (n < n_distinct_rows / 4 - 4000 || n > n_distinct_rows / 4 + 4000)
    fail_msg("%zu rows of %zu", n, n_distinct_rows);
  assert_int_equal(clv_ledger_count(l), n + 2);
  assert_true(is_item_found(CLV_LEDGER_KEY, 2, &e) && is_item_found(CLV_LEDGER_KEY, 3, &e));
}

static void waiting_writer_appends_to_the_replaced_file(void **state) {
  (void)state;
  int status;
  char new_path[300];
  remove_ledger();
  add_item(make_item(CLV_LEDGER_KEY, 1, W1));
  int fd = open(get_ledger_path(), O_RDWR | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  pid_t child = fork();
  if (!child) {
    const clv_ledger_item one = make_item(CLV_LEDGER_KEY, 2, W2);
    close(fd);
    _exit(clv_ledger_add(&one, 1, NULL) != CLV_OK);
  }
  /* gives the child time to open the old file and wait for its lock; otherwise the child would open
   * the new file at once */
  usleep(300 * 1000);
  write_scratch_file("state/cleave/other", head, sizeof head - 1);
  snprintf(new_path, sizeof new_path, "%s", at("state/cleave/other"));
  assert_int_equal(chmod(new_path, 0600), 0);
  assert_int_equal(rename(new_path, get_ledger_path()), 0);
  close(fd);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(count_lines(), 2);
}

static size_t count_read_bytes(void) {
  size_t n = 0;
  FILE *f = fopen("/proc/self/io", "r");
  assert_int_equal(fscanf(f, "rchar: %zu", &n), 1);
  fclose(f);
  return n;
}

static clv_kept_ledger *kept;

static bool is_item_kept(clv_ledger_kind kind, uint32_t i) {
  const clv_ledger *l = NULL;
  clv_ledger_entry e;
  const clv_sha256 of = make_digest(i);
  clv_err err = {0};
  bool is_found = false;
  assert_ok(clv_kept_ledger_lock(kept, &l, &err), &err);
  clv_code code = clv_ledger_find(l, kind, &of, &e, &is_found, &err);
  clv_kept_ledger_unlock(kept);
  assert_ok(code, &err);
  return is_found;
}

static void add_to_kept(clv_ledger_item i) {
  clv_err err = {0};
  assert_ok(clv_kept_ledger_add(kept, &i, 1, &err), &err);
}

static int make_kept_ledger(void **state) {
  (void)state;
  return clv_kept_ledger_new(&kept, NULL);
}

static int free_kept_ledger(void **state) {
  (void)state;
  clv_kept_ledger_free(kept);
  return 0;
}

/* Appends n lines, whose digests are i, i + 1 and so on, in the name of another process. */
static void append_numbered_lines(unsigned i, unsigned n) {
  FILE *f = fopen(get_ledger_path(), "ab");
  for (unsigned end = i + n; i < end; i++) fprintf(f, "key %032x 2026-11-28 " W2 "\n", i);
  assert_int_equal(fclose(f), 0);
}

/* A program may add to the ledger in each step, and look layers up in it. */
static void additions_read_only_what_is_new(void **state) {
  (void)state;
  enum { LINES = 30000, ADDITIONS = 50 };
  remove_ledger();
  add_to_kept(make_item(CLV_LEDGER_KEY, 1, W1));
  append_numbered_lines(0, LINES);
  add_to_kept(make_item(CLV_LEDGER_KEY, 2, W1));
  const size_t n_read_before = count_read_bytes();
  for (uint32_t i = 3; i < 3 + ADDITIONS; i++) {
    add_to_kept(make_item(CLV_LEDGER_KEY, i, W1));
    append_numbered_lines(LINES + i, 1);
    assert_true(is_item_kept(CLV_LEDGER_KEY, i));
  }
  /* the file has two MB */
  if (count_read_bytes() - n_read_before > 200000)
    fail_msg("%zu bytes were read", count_read_bytes() - n_read_before);
  for (uint32_t i = 1; i < 3 + ADDITIONS; i++) add_to_kept(make_item(CLV_LEDGER_KEY, i, W1));
  FILE *f = fopen(get_ledger_path(), "rb");
  size_t n_lines = 0;
  for (int c; (c = getc(f)) != EOF;) n_lines += c == '\n';
  fclose(f);
  assert_int_equal(n_lines, 1 + LINES + 2 + 2 * ADDITIONS);
}

static void write_ledger_line(const clv_ledger_item *item) {
  remove_ledger();
  add_item(*item);
}

/* The file is another one, at the same path, also if it has the inode number of the first. */
static void changed_file_is_read_again(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  const clv_ledger_item items[] = {make_item(CLV_LEDGER_KEY, 1, W1),
                                   make_item(CLV_LEDGER_KEY, 2, W1)};
  write_ledger_line(&items[0]);
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &first, NULL), CLV_OK);
  write_ledger_line(&items[1]);
  assert_int_equal(clv_file_read(get_ledger_path(), 1 << 20, &second, NULL), CLV_OK);
  assert_int_equal(first.len, second.len);
  assert_false(is_item_kept(CLV_LEDGER_KEY, 1));
  usleep(20 * 1000); /* a file's time has the resolution of the kernel's clock tick */
  write_scratch_file("state/cleave/keys.ledger", first.data, first.len);
  assert_true(is_item_kept(CLV_LEDGER_KEY, 1));
  assert_false(is_item_kept(CLV_LEDGER_KEY, 2));
  clv_bytes_puts(&second, "key 00112233445566778899aabbccddeeff 2026-11-28 a\n");
  write_scratch_file("state/cleave/keys.ledger", second.data, second.len);
  assert_false(is_item_kept(CLV_LEDGER_KEY, 1));
  assert_true(is_item_kept(CLV_LEDGER_KEY, 2));
  assert_int_equal(unlink(get_ledger_path()), 0);
  assert_false(is_item_kept(CLV_LEDGER_KEY, 2));
}

/* A ledger that grows in pieces of all sizes, which end inside lines, too, is the same in the end
 * as one that is read at once. */
static void pieces_make_the_same_ledger(void **state) {
  (void)state;
  enum { LINES = 20000 };
  CLV_AUTO(clv_ledger_freep) clv_ledger *at_once = NULL, *pieces = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, compacted_at_once = {0}, compacted_pieces = {0};
  clv_err err = {0};
  clv_bytes_puts(&text, head);
  for (uint32_t i = 0; i < LINES; i++) /* each digest is there three times */
    clv_bytes_printf(&text, "weights %08x%024x 2026-11-28 spiffe://w%u\n",
                     i % (LINES / 3) * 2654435761u, i % (LINES / 3), i);
  assert_ok(clv_ledger_new(&at_once, &err), &err);
  assert_ok(clv_ledger_extend(at_once, text.data, text.len, "l", &err), &err);
  assert_ok(clv_ledger_new(&pieces, &err), &err);
  for (size_t end = 0, step = 1; end < text.len; step = step * 7 % 9973) {
    size_t at = clv_ledger_count_bytes(pieces);
    end = CLV_MIN(end + step, text.len);
    assert_ok(clv_ledger_extend(pieces, text.data + at, end - at, "l", &err), &err);
  }
  assert_int_equal(clv_ledger_count(pieces), LINES);
  assert_ok(clv_ledger_compact(at_once, &compacted_at_once, &err), &err);
  assert_ok(clv_ledger_compact(pieces, &compacted_pieces, &err), &err);
  assert_int_equal(compacted_at_once.len, compacted_pieces.len);
  assert_memory_equal(compacted_at_once.data, compacted_pieces.data, compacted_pieces.len);
  int code = clv_ledger_extend(pieces, "bad\n", 4, "l", &err);
  assert_int_equal(code, CLV_DATA_LOSS);
  assert_says(&err, "l:20002: this is not a line");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(added_item_is_found),
      cmocka_unit_test(repeated_item_is_stored_once),
      cmocka_unit_test(ledger_file_hides_its_digests),
      cmocka_unit_test(truncated_last_line_is_removed),
      cmocka_unit_test(damaged_ledger_line_is_located),
      cmocka_unit_test(ledger_writable_by_others_is_refused),
      cmocka_unit_test(unwritable_ledger_path_is_named),
      cmocka_unit_test(ledger_folder_follows_environment_variables),
      cmocka_unit_test(concurrent_processes_lose_no_items),
      cmocka_unit_test(add_waits_for_the_file_lock),
      cmocka_unit_test(full_ledger_file_is_compacted),
      cmocka_unit_test(full_ledger_is_named),
      cmocka_unit_test(rows_share_a_line),
      cmocka_unit_test(too_many_rows_are_thinned),
      cmocka_unit_test(waiting_writer_appends_to_the_replaced_file),
      cmocka_unit_test_setup_teardown(additions_read_only_what_is_new, make_kept_ledger,
                                      free_kept_ledger),
      cmocka_unit_test_setup_teardown(changed_file_is_read_again, make_kept_ledger,
                                      free_kept_ledger),
      cmocka_unit_test(pieces_make_the_same_ledger),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
