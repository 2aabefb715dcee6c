/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the state machines of references cell by cell. A program, a text of commands such as "keep
 * pass", leads a node to each cell. The results of its last command and the state after it are
 * written here from PROTOCOL.md 12, not from the tables. A cell that no program reaches is a
 * failure, and so is an additional cell.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/engine/reference/rref_int.h"

enum {
  SELF_NODE,
  OWNER_NODE,
  OTHER_NODE,
  NODES,
  REF_ID = 1,
  FORK_ID = 10,
  CHILD_ID = 11,
  REF_KEY = 9,
  KINDS = CLV_RREF_KINDS
};
enum { NS_PER_MS = 1000000, WINDOW = CLV_WIRE_REF_WINDOW };
static const uint64_t LEASE_NS = 60000 * (uint64_t)NS_PER_MS, RETRY_NS = 100 * (uint64_t)NS_PER_MS;

/* ---- a node and the commands of its programs ------------------------------------------------- */

typedef struct node {
  clv_pool *pool;
  clv_rrefs *t;
  clv_tensor *v;
  /* visits of state-table cells in all, and before the last command of the test's program text */
  clv_rref_visits visits, visits_before;
  uint64_t now_ns, last_numbers[NODES], last_sent_numbers[NODES][KINDS];
  char results_text[1024]; /* results of the last command */
  clv_code code;
} node;

static const char *const kinds[KINDS] = {"ACK",    "KEEP",  "USE",   "FORK", "ACCEPT",
                                         "DELETE", "RENEW", "FETCH", "VALUE"};
static const char *const results[CLV_RREF_RESULTS] = {"send",    "create", "used", "joined",
                                                      "fetched", "unused", "freed"};
static const clv_rref_failure failure = {.code = CLV_ABORTED, .text = "it failed"};

static void add_result(node *n, const char *format, ...) CLV_PRINTF(2, 3);
static void add_result(node *n, const char *format, ...) {
  size_t len = strlen(n->results_text);
  va_list args;
  if (len + 32 > sizeof n->results_text) return;
  if (len) n->results_text[len++] = ' ';
  va_start(args, format);
  vsnprintf(n->results_text + len, sizeof n->results_text - len, format, args);
  va_end(args);
}

static void take_results_as_text(node *n) {
  clv_rref_result r;
  while (clv_rrefs_next_result(n->t, &r)) {
    const clv_rref_message *m = &r.message;
    const char *failure_mark = r.failure || m->failure ? "!" : "";
    if (r.kind != CLV_RREF_RESULT_SEND) {
      add_result(n, "%s%s", results[r.kind], failure_mark);
      continue;
    }
    add_result(n, "%s%u%s", kinds[m->kind], r.to, failure_mark);
    if (m->kind != CLV_RREF_ACK) n->last_sent_numbers[r.to][m->kind] = m->number;
  }
}

static void receive_message(node *n, uint32_t from, clv_rref_message m) {
  if (m.kind != CLV_RREF_ACK && m.kind != CLV_RREF_VALUE) m.number = ++n->last_numbers[from];
  if (!m.ref) m.ref = REF_ID;
  if (!m.fork) m.fork = FORK_ID;
  if (!m.key) m.key = REF_KEY;
  clv_rrefs_receive_message(n->t, from, &m, n->now_ns);
}

/* Acknowledges, or refuses, the last message of a kind as its receiver would. */
static void acknowledge_message(node *n, const char *kind, bool is_accepted) {
  for (uint32_t i = 0; i < NODES; i++)
    for (int k = 0; k < KINDS; k++) {
      clv_rref_message m = {.kind = CLV_RREF_ACK, .number = n->last_sent_numbers[i][k]};
      if (!m.number || strcmp(kind, kinds[k]) != 0) continue;
      m.failure = is_accepted ? NULL : &failure;
      receive_message(n, i, m);
    }
}

/* Advances the time by ns, with a tick at each time that the node requests. hears_others: the other
 * nodes send messages meanwhile. */
static void tick_until(node *n, uint64_t ns, bool hears_others) {
  uint64_t end = n->now_ns + ns;
  clv_rref_message m = {.kind = CLV_RREF_ACK, .number = UINT64_MAX};
  for (uint64_t due; (due = clv_rrefs_due_ns(n->t)) <= end;) {
    n->now_ns = CLV_MAX(n->now_ns, due);
    for (uint32_t i = OWNER_NODE; hears_others && i < NODES; i++) receive_message(n, i, m);
    clv_rrefs_tick(n->t, n->now_ns);
    if (hears_others) take_results_as_text(n);
  }
  n->now_ns = end;
}

static void do_create_owned(node *n) {
  clv_rref_new_ids b = {REF_ID, FORK_ID, REF_KEY};
  n->code = clv_rrefs_new_owned(n->t, &b, n->v, n->now_ns, NULL);
}
static void do_create_at_owner(node *n) {
  clv_rref_new_ids b = {REF_ID, FORK_ID, REF_KEY};
  n->code = clv_rrefs_new_kept(n->t, &b, OWNER_NODE, 1, 2, n->now_ns, NULL);
}
static void do_create_at_self(node *n) {
  clv_rref_new_ids b = {REF_ID, FORK_ID, REF_KEY};
  n->code = clv_rrefs_new_kept(n->t, &b, SELF_NODE, 1, 2, n->now_ns, NULL);
}
static void do_pass_handle(node *n) {
  clv_rref_pass_args pass_args = {CHILD_ID, OTHER_NODE, 1, 2};
  n->code = clv_rrefs_pass_handle(n->t, FORK_ID, &pass_args, n->now_ns, NULL);
}
static void do_pass_handle_to_owner(node *n) {
  clv_rref_pass_args pass_args = {CHILD_ID, OWNER_NODE, 1, 2};
  n->code = clv_rrefs_pass_handle(n->t, FORK_ID, &pass_args, n->now_ns, NULL);
}
/* Sends so many messages to the other node that the next one is outside the window. */
static void do_fill_window(node *n) {
  for (uint64_t i = 0; i < WINDOW; i++) {
    clv_rref_pass_args what = {1000 + i, OTHER_NODE, 1, 2};
    n->code = clv_rrefs_pass_handle(n->t, FORK_ID, &what, n->now_ns, NULL);
  }
}
static void do_fetch_value(node *n) {
  n->code = clv_rrefs_fetch_value(n->t, FORK_ID, n->now_ns, NULL);
}
static void do_release_handle(node *n) {
  n->code = clv_rrefs_release_handle(n->t, FORK_ID, n->now_ns, NULL);
}
static void do_settle_with_value(node *n) {
  clv_rrefs_settle_entry(n->t, REF_ID, n->v, NULL, n->now_ns);
}
static void do_settle_with_failure(node *n) {
  clv_rrefs_settle_entry(n->t, REF_ID, NULL, &failure, n->now_ns);
}

static void do_receive_use(node *n) {
  receive_message(
      n, OTHER_NODE,
      (clv_rref_message){.kind = CLV_RREF_USE, .owner = OWNER_NODE, .is_before_join = true});
}
static void do_receive_use_of_known(node *n) {
  receive_message(n, OWNER_NODE, (clv_rref_message){.kind = CLV_RREF_USE, .owner = OWNER_NODE});
}
static void do_receive_value(node *n) {
  receive_message(n, OWNER_NODE, (clv_rref_message){.kind = CLV_RREF_VALUE, .tensor = n->v});
}
static void do_receive_accept(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_ACCEPT, .fork = CHILD_ID});
}
/* In the following functions this node, the owner of a reference, receives a frame from the creator
 * of the reference (OWNER_NODE) or from the other node. */
static void do_receive_keep(node *n) {
  receive_message(n, OWNER_NODE, (clv_rref_message){.kind = CLV_RREF_KEEP});
}
static void do_receive_fork(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_FORK, .fork = CHILD_ID});
}
static void do_receive_fork_without_key(node *n) {
  receive_message(n, OTHER_NODE,
                  (clv_rref_message){.kind = CLV_RREF_FORK, .fork = CHILD_ID, .key = REF_KEY + 1});
}
static void do_receive_fetch(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_FETCH, .fork = CHILD_ID});
}
static void do_receive_early_fetch(node *n) {
  receive_message(
      n, OTHER_NODE,
      (clv_rref_message){.kind = CLV_RREF_FETCH, .fork = CHILD_ID, .is_before_join = true});
}
static void do_receive_delete(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_DELETE, .fork = CHILD_ID});
}
static void do_receive_delete_first(node *n) {
  receive_message(n, OWNER_NODE, (clv_rref_message){.kind = CLV_RREF_DELETE});
}
static void do_receive_first_ack(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_ACK, .number = 1});
}
static void do_receive_old_ack(node *n) {
  receive_message(n, OTHER_NODE, (clv_rref_message){.kind = CLV_RREF_ACK, .number = WINDOW + 1});
}
/* Advances the time by more than a lease, while the other nodes send nothing. */
static void do_miss_lease(node *n) { tick_until(n, LEASE_NS * 5 / 4, false); }
static void do_hear_for_half_lease(node *n) { tick_until(n, LEASE_NS / 2, true); }
static void do_tick_retry(node *n) { clv_rrefs_tick(n->t, n->now_ns += 2 * RETRY_NS); }

static const struct command {
  const char *name;
  void (*run)(node *n);
} commands[] = {
    {"own", do_create_owned},
    {"keep", do_create_at_owner},
    {"keep-here", do_create_at_self},
    {"pass", do_pass_handle},
    {"pass-owner", do_pass_handle_to_owner},
    {"flood", do_fill_window},
    {"fetch", do_fetch_value},
    {"release", do_release_handle},
    {"settle", do_settle_with_value},
    {"fail", do_settle_with_failure},
    {"<USE", do_receive_use},
    {"<USE-known", do_receive_use_of_known},
    {"<VALUE", do_receive_value},
    {"<ACCEPT", do_receive_accept},
    {"<KEEP", do_receive_keep},
    {"<FORK", do_receive_fork},
    {"<FORK-keyless", do_receive_fork_without_key},
    {"<FETCH", do_receive_fetch},
    {"<FETCH-early", do_receive_early_fetch},
    {"<DELETE", do_receive_delete},
    {"<DELETE-first", do_receive_delete_first},
    {"<ACK-first", do_receive_first_ack},
    {"<ACK-behind", do_receive_old_ack},
    {"silence", do_miss_lease},
    {"renew", do_hear_for_half_lease},
    {"again", do_tick_retry},
};

static void run_command(node *n, const char *command) {
  n->results_text[0] = '\0';
  n->code = CLV_OK;
  n->visits_before = n->visits;
  if (command[0] == '+' || command[0] == '-') {
    acknowledge_message(n, command + 1, command[0] == '+');
    take_results_as_text(n);
    return;
  }
  for (size_t i = 0; i < CLV_COUNT(commands); i++) {
    if (strcmp(commands[i].name, command) != 0) continue;
    commands[i].run(n);
    take_results_as_text(n);
    return;
  }
  fail_msg("no word '%s'", command);
}

static void run_program(node *n, const char *program) {
  char copy[256], *rest = NULL;
  snprintf(copy, sizeof copy, "%s", program);
  for (char *w = strtok_r(copy, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) run_command(n, w);
}

static void make_node(node *n) {
  clv_err err;
  clv_shape scalar = {0};
  memset(n, 0, sizeof *n);
  n->now_ns = NS_PER_MS;
  assert_int_equal(clv_pool_new((size_t)1 << 26, 16, &n->pool, &err), CLV_OK);
  assert_int_equal(clv_tensor_new(CLV_F32, &scalar, &n->v, &err), CLV_OK);
  clv_rrefs_options o = {.pool = n->pool,
                         .n_nodes = NODES,
                         .self = SELF_NODE,
                         .lease_ns = LEASE_NS,
                         .retry_ns = RETRY_NS};
  assert_int_equal(clv_rrefs_new(&o, &n->t, &err), CLV_OK);
  n->t->visits = &n->visits;
}

static void free_node(node *n) {
  clv_rrefs_free(n->t);
  clv_tensor_unref(n->v);
  clv_pool_unref(n->pool);
}

/* ---- the cells of the state tables ----------------------------------------------------------- */

typedef struct cell {
  clv_rref_machine state_machine;
  uint8_t state, event; /* the event, which the last command causes */
  const char *program_text;
  uint8_t next_state;       /* state of the record after all commands */
  const char *results_text; /* results of the last command */
  clv_code code;            /* code of the last command */
} cell;

/* clang-format off */
/* Cells of the table of entries: references that this node owns. The programs use entry REF_ID. */
static const cell entry_cells[] = {
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_KEPT, "<KEEP", RREF_ENTRY_EXPECTED, "create ACK1", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_KEPT, "<FORK <KEEP", RREF_ENTRY_EXPECTED, "ACK2 create ACK1", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_OWNED, "own", RREF_ENTRY_VALUE, "joined", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_SETTLED, "settle", RREF_ENTRY_NONE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_FAILED, "fail", RREF_ENTRY_NONE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_NONE, RREF_ENTRY_FORKED, "<FORK", RREF_ENTRY_NONE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_KEPT, "<KEEP <KEEP", RREF_ENTRY_EXPECTED, "ACK1!", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_OWNED, "<KEEP own", RREF_ENTRY_EXPECTED, "", CLV_EXISTS},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_SETTLED, "<KEEP settle", RREF_ENTRY_VALUE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_SETTLED, "<KEEP <FORK <FETCH settle", RREF_ENTRY_VALUE, "VALUE2", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_FAILED, "<KEEP fail", RREF_ENTRY_FAILURE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_FAILED, "<KEEP <FORK <FETCH fail", RREF_ENTRY_FAILURE, "VALUE2!", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_FORKED, "<KEEP <FORK", RREF_ENTRY_EXPECTED, "ACK2", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_WRONG_KEY, "<KEEP <FORK-keyless", RREF_ENTRY_EXPECTED, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_EXPECTED, RREF_ENTRY_UNUSED, "<KEEP <DELETE-first", RREF_ENTRY_NONE, "freed ACK1", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_KEPT, "<KEEP settle <KEEP", RREF_ENTRY_VALUE, "ACK1!", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_OWNED, "own own", RREF_ENTRY_VALUE, "", CLV_EXISTS},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_SETTLED, "<KEEP settle settle", RREF_ENTRY_VALUE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_FAILED, "<KEEP settle fail", RREF_ENTRY_VALUE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_FORKED, "<KEEP settle <FORK", RREF_ENTRY_VALUE, "ACK2", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_WRONG_KEY, "<KEEP settle <FORK-keyless", RREF_ENTRY_VALUE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_VALUE, RREF_ENTRY_UNUSED, "<KEEP settle <DELETE-first", RREF_ENTRY_NONE, "freed ACK1", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_KEPT, "<KEEP fail <KEEP", RREF_ENTRY_FAILURE, "ACK1!", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_OWNED, "<KEEP fail own", RREF_ENTRY_FAILURE, "", CLV_EXISTS},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_SETTLED, "<KEEP fail settle", RREF_ENTRY_FAILURE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_FAILED, "<KEEP fail fail", RREF_ENTRY_FAILURE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_FORKED, "<KEEP fail <FORK", RREF_ENTRY_FAILURE, "ACK2", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_WRONG_KEY, "<KEEP fail <FORK-keyless", RREF_ENTRY_FAILURE, "", CLV_OK},
    {RREF_ENTRIES, RREF_ENTRY_FAILURE, RREF_ENTRY_UNUSED, "<KEEP fail <DELETE-first", RREF_ENTRY_NONE, "freed ACK1", CLV_OK},
};

/* Cells of the table of forks: references that other nodes hold to an entry. The programs use the
 * fork of the other node. */
static const cell fork_cells[] = {
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_ADDED, "<KEEP <FORK", RREF_FORK_KNOWN, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_ADDED, "<KEEP <FETCH-early <FORK", RREF_FORK_ASKED, "ACK2 ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_PASSED, "own pass", RREF_FORK_OFFERED, "USE2", CLV_OK},
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_FETCH, "own <FETCH", RREF_FORK_NONE, "ACK2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_FETCH_EARLY, "own <FETCH-early", RREF_FORK_NONE, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_NONE, RREF_FORK_DELETED, "own <DELETE", RREF_FORK_NONE, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_ADDED, "own pass <FORK", RREF_FORK_OFFERED, "ACK2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_PASSED, "own pass pass", RREF_FORK_OFFERED, "", CLV_EXISTS},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_FETCH, "own pass <FETCH", RREF_FORK_OFFERED, "VALUE2 ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_FETCH_PENDING, "keep-here pass <FETCH", RREF_FORK_OFFERED_ASKED, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_SETTLED, "keep-here pass settle", RREF_FORK_OFFERED, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_USE_ACKED, "own pass +USE", RREF_FORK_KNOWN, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_USE_REFUSED, "own pass -USE", RREF_FORK_NONE, "unused!", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_DELETED, "own pass <DELETE", RREF_FORK_NONE, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED, RREF_FORK_LOST, "own pass silence", RREF_FORK_NONE, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_ADDED, "keep-here pass <FETCH <FORK", RREF_FORK_OFFERED_ASKED, "ACK2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_PASSED, "keep-here pass <FETCH pass", RREF_FORK_OFFERED_ASKED, "", CLV_EXISTS},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_FETCH_PENDING, "keep-here pass <FETCH <FETCH", RREF_FORK_OFFERED_ASKED, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_SETTLED, "keep-here pass <FETCH settle", RREF_FORK_OFFERED, "VALUE2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_USE_ACKED, "keep-here pass <FETCH +USE", RREF_FORK_ASKED, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_USE_REFUSED, "keep-here pass <FETCH -USE", RREF_FORK_NONE, "unused!", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_DELETED, "keep-here pass <FETCH <DELETE", RREF_FORK_NONE, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_OFFERED_ASKED, RREF_FORK_LOST, "keep-here pass <FETCH silence", RREF_FORK_NONE, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_ADDED, "own pass +USE <FORK", RREF_FORK_KNOWN, "ACK2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_PASSED, "own pass +USE pass", RREF_FORK_KNOWN, "", CLV_EXISTS},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_FETCH, "own pass +USE <FETCH", RREF_FORK_KNOWN, "VALUE2 ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_FETCH_PENDING, "<KEEP <FORK <FETCH", RREF_FORK_ASKED, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_SETTLED, "<KEEP <FORK settle", RREF_FORK_KNOWN, "", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_DELETED, "<KEEP <FORK <DELETE", RREF_FORK_NONE, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_KNOWN, RREF_FORK_LOST, "<KEEP <FORK silence", RREF_FORK_NONE, "freed", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_ADDED, "keep-here pass +USE <FETCH <FORK", RREF_FORK_ASKED, "ACK2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_PASSED, "keep-here pass +USE <FETCH pass", RREF_FORK_ASKED, "", CLV_EXISTS},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_FETCH_PENDING, "keep-here pass +USE <FETCH <FETCH", RREF_FORK_ASKED, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_SETTLED, "keep-here pass +USE <FETCH settle", RREF_FORK_KNOWN, "VALUE2", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_SETTLED, "<KEEP <FORK <FETCH fail", RREF_FORK_KNOWN, "VALUE2!", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_DELETED, "keep-here pass +USE <FETCH <DELETE", RREF_FORK_NONE, "ACK2", CLV_OK},
    {RREF_FORKS, RREF_FORK_ASKED, RREF_FORK_LOST, "keep-here pass +USE <FETCH silence", RREF_FORK_NONE, "", CLV_OK},
};

/* Cells of the table of handles: references that this node's program holds. */
static const cell handle_cells[] = {
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_KEPT, "keep", RREF_HANDLE_JOINING, "KEEP1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_OWNED, "own", RREF_HANDLE_JOINED, "joined", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_RECEIVED, "<USE", RREF_HANDLE_JOINING, "FORK1 used ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_RECEIVED_FROM_OWNER, "<USE-known", RREF_HANDLE_JOINED, "used ACK1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_PASS, "pass", RREF_HANDLE_NONE, "", CLV_NOT_FOUND},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_FETCH, "fetch", RREF_HANDLE_NONE, "", CLV_NOT_FOUND},
    {RREF_HANDLES, RREF_HANDLE_NONE, RREF_HANDLE_RELEASE, "release", RREF_HANDLE_NONE, "", CLV_NOT_FOUND},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_PASS, "keep pass", RREF_HANDLE_JOINING, "USE2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_FETCH, "keep fetch", RREF_HANDLE_JOINING, "FETCH1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_RELEASE, "keep fetch release", RREF_HANDLE_JOINING_RELEASED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_JOIN_ACKED, "keep +KEEP", RREF_HANDLE_JOINED, "joined", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_JOIN_ACKED, "<USE +FORK", RREF_HANDLE_JOINED, "ACCEPT2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_JOIN_REFUSED, "keep -KEEP", RREF_HANDLE_FAILED, "joined!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_JOIN_REFUSED, "<USE fetch -FORK", RREF_HANDLE_FAILED, "ACCEPT2 fetched!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_FETCH_ACKED, "keep fetch +FETCH", RREF_HANDLE_JOINING, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_FETCH_REFUSED, "keep fetch -FETCH", RREF_HANDLE_JOINING, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_VALUE_ARRIVED, "keep fetch <VALUE", RREF_HANDLE_JOINING, "fetched", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_HAS_NO_WAITERS, "keep pass <ACCEPT", RREF_HANDLE_JOINING, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_OWNER_FORGOT, "keep renew -RENEW", RREF_HANDLE_JOINING, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_OWNER_LOST, "keep fetch silence", RREF_HANDLE_FAILED, "joined! fetched!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING, RREF_HANDLE_OWNER_LOST, "keep pass-owner silence", RREF_HANDLE_FAILED, "joined! unused!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_PASS, "keep +KEEP pass", RREF_HANDLE_JOINED, "USE2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_PASS, "own pass", RREF_HANDLE_JOINED, "USE2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_FETCH, "keep +KEEP fetch", RREF_HANDLE_JOINED, "FETCH1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_RELEASE, "keep +KEEP release", RREF_HANDLE_LEAVING, "DELETE1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_RELEASE, "keep +KEEP pass release", RREF_HANDLE_JOINED_RELEASED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_FETCH_ACKED, "keep +KEEP fetch +FETCH", RREF_HANDLE_JOINED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_FETCH_REFUSED, "keep +KEEP fetch -FETCH", RREF_HANDLE_JOINED, "fetched!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_VALUE_ARRIVED, "keep +KEEP fetch <VALUE", RREF_HANDLE_JOINED, "fetched", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_HAS_NO_CHILDREN, "<USE pass +FORK <ACCEPT", RREF_HANDLE_JOINED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_HAS_NO_WAITERS, "keep +KEEP pass <ACCEPT", RREF_HANDLE_JOINED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_OWNER_FORGOT, "keep +KEEP fetch renew -RENEW", RREF_HANDLE_FAILED, "fetched!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED, RREF_HANDLE_OWNER_LOST, "keep +KEEP fetch silence", RREF_HANDLE_FAILED, "fetched!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_PASS, "keep silence pass", RREF_HANDLE_FAILED, "", CLV_UNAVAILABLE},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_FETCH, "keep silence fetch", RREF_HANDLE_FAILED, "", CLV_UNAVAILABLE},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_RELEASE, "keep -KEEP release", RREF_HANDLE_NONE, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_RELEASE, "<USE -FORK release", RREF_HANDLE_ENDED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_HAS_NO_CHILDREN, "<USE pass -FORK <ACCEPT", RREF_HANDLE_FAILED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_FAILED, RREF_HANDLE_HAS_NO_WAITERS, "keep pass -KEEP <ACCEPT", RREF_HANDLE_FAILED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_JOIN_ACKED, "<USE release +FORK", RREF_HANDLE_LEAVING, "ACCEPT2 DELETE1", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_JOIN_ACKED, "keep pass release +KEEP", RREF_HANDLE_JOINED_RELEASED, "joined", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_JOIN_REFUSED, "<USE release -FORK", RREF_HANDLE_ENDED, "ACCEPT2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_JOIN_REFUSED, "keep release -KEEP", RREF_HANDLE_NONE, "joined!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_HAS_NO_WAITERS, "keep pass release <ACCEPT", RREF_HANDLE_JOINING_RELEASED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_OWNER_FORGOT, "keep release renew -RENEW", RREF_HANDLE_JOINING_RELEASED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINING_RELEASED, RREF_HANDLE_OWNER_LOST, "keep release silence", RREF_HANDLE_NONE, "joined!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED_RELEASED, RREF_HANDLE_HAS_NO_CHILDREN, "<USE pass +FORK release <ACCEPT", RREF_HANDLE_LEAVING, "DELETE1 ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED_RELEASED, RREF_HANDLE_HAS_NO_WAITERS, "keep +KEEP pass release <ACCEPT", RREF_HANDLE_LEAVING, "DELETE1 ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED_RELEASED, RREF_HANDLE_OWNER_FORGOT, "keep +KEEP pass release renew -RENEW", RREF_HANDLE_ENDED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_JOINED_RELEASED, RREF_HANDLE_OWNER_LOST, "keep +KEEP pass release silence", RREF_HANDLE_NONE, "unused!", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_LEAVING, RREF_HANDLE_DELETE_ACKED, "keep +KEEP release +DELETE", RREF_HANDLE_NONE, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_LEAVING, RREF_HANDLE_DELETE_ACKED, "<USE +FORK release +DELETE", RREF_HANDLE_ENDED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_LEAVING, RREF_HANDLE_HAS_NO_WAITERS, "<USE +FORK release +ACCEPT", RREF_HANDLE_LEAVING, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_LEAVING, RREF_HANDLE_OWNER_FORGOT, "keep +KEEP release renew -RENEW", RREF_HANDLE_LEAVING, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_LEAVING, RREF_HANDLE_OWNER_LOST, "keep +KEEP release silence", RREF_HANDLE_NONE, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_ENDED, RREF_HANDLE_HAS_NO_CHILDREN, "<USE pass -FORK release <ACCEPT", RREF_HANDLE_ENDED, "ACK2", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_ENDED, RREF_HANDLE_HAS_NO_WAITERS, "<USE -FORK release +ACCEPT", RREF_HANDLE_NONE, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_ENDED, RREF_HANDLE_OWNER_FORGOT, "<USE +FORK release +DELETE renew -RENEW", RREF_HANDLE_ENDED, "", CLV_OK},
    {RREF_HANDLES, RREF_HANDLE_ENDED, RREF_HANDLE_OWNER_LOST, "<USE +FORK release +DELETE silence", RREF_HANDLE_NONE, "", CLV_OK},
};

/* Cells of the table of children: references that this node passes to another node. */
static const cell child_cells[] = {
    {RREF_CHILDREN, RREF_CHILD_NONE, RREF_CHILD_PASSED, "keep pass", RREF_CHILD_OFFERED, "USE2", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_NONE, RREF_CHILD_ACCEPTED, "<ACCEPT", RREF_CHILD_NONE, "ACK2", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_OFFERED, RREF_CHILD_PASSED, "keep pass pass", RREF_CHILD_OFFERED, "", CLV_EXISTS},
    {RREF_CHILDREN, RREF_CHILD_OFFERED, RREF_CHILD_USE_ACKED, "keep pass +USE", RREF_CHILD_TAKEN, "", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_OFFERED, RREF_CHILD_USE_REFUSED, "keep pass -USE", RREF_CHILD_NONE, "unused!", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_OFFERED, RREF_CHILD_ACCEPTED, "keep pass <ACCEPT", RREF_CHILD_NONE, "ACK2", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_OFFERED, RREF_CHILD_LOST, "keep pass silence", RREF_CHILD_NONE, "joined! unused!", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_TAKEN, RREF_CHILD_PASSED, "keep pass +USE pass", RREF_CHILD_TAKEN, "", CLV_EXISTS},
    {RREF_CHILDREN, RREF_CHILD_TAKEN, RREF_CHILD_ACCEPTED, "keep pass +USE <ACCEPT", RREF_CHILD_NONE, "ACK2", CLV_OK},
    {RREF_CHILDREN, RREF_CHILD_TAKEN, RREF_CHILD_LOST, "keep pass +USE silence", RREF_CHILD_NONE, "joined! unused!", CLV_OK},
};

/* Cells of the table of posts: USE messages by which this node passes a child. */
static const cell post_cells[] = {
    {RREF_POSTS, RREF_POST_NONE, RREF_POST_POSTED, "keep pass", RREF_POST_SENT, "USE2", CLV_OK},
    {RREF_POSTS, RREF_POST_NONE, RREF_POST_OVER_WINDOW, "keep flood pass", RREF_POST_WAITING, "", CLV_OK},
    {RREF_POSTS, RREF_POST_NONE, RREF_POST_CANCELLED, "keep -KEEP", RREF_POST_NONE, "joined!", CLV_OK},
    {RREF_POSTS, RREF_POST_WAITING, RREF_POST_IN_WINDOW, "keep flood pass <ACK-first", RREF_POST_SENT, "USE2", CLV_OK},
    {RREF_POSTS, RREF_POST_WAITING, RREF_POST_ACKED, "keep flood pass <ACK-behind", RREF_POST_NONE, "", CLV_OK},
    {RREF_POSTS, RREF_POST_WAITING, RREF_POST_CANCELLED, "keep flood pass <ACCEPT", RREF_POST_NONE, "ACK2", CLV_OK},
    {RREF_POSTS, RREF_POST_SENT, RREF_POST_DUE, "keep pass again", RREF_POST_SENT, "KEEP1 USE2", CLV_OK},
    {RREF_POSTS, RREF_POST_SENT, RREF_POST_ACKED, "keep pass +USE", RREF_POST_NONE, "", CLV_OK},
    {RREF_POSTS, RREF_POST_SENT, RREF_POST_CANCELLED, "keep pass <ACCEPT", RREF_POST_NONE, "ACK2", CLV_OK},
};
/* clang-format on */

/* Program texts that bring a handle into each state. Released handles are tested elsewhere. */
static const char *const state_programs[RREF_HANDLE_STATES] = {
    [RREF_HANDLE_JOINING] = "keep",
    [RREF_HANDLE_JOINED] = "keep +KEEP",
    [RREF_HANDLE_FAILED] = "keep -KEEP",
    [RREF_HANDLE_JOINING_RELEASED] = "keep release",
    [RREF_HANDLE_JOINED_RELEASED] = "keep +KEEP pass release",
    [RREF_HANDLE_LEAVING] = "keep +KEEP release",
    [RREF_HANDLE_ENDED] = "<USE -FORK release",
};
static const cell taken_cells[] = {
    {RREF_HANDLES, 0, RREF_HANDLE_KEPT, "keep", 0, "", CLV_EXISTS},
    {RREF_HANDLES, 0, RREF_HANDLE_OWNED, "own", 0, "", CLV_EXISTS},
    {RREF_HANDLES, 0, RREF_HANDLE_RECEIVED, "<USE", 0, "ACK2!", CLV_OK},
    {RREF_HANDLES, 0, RREF_HANDLE_RECEIVED_FROM_OWNER, "<USE-known", 0, "ACK1!", CLV_OK},
};
static const cell released_cells[] = {
    {RREF_HANDLES, 0, RREF_HANDLE_PASS, "pass", 0, "", CLV_NOT_FOUND},
    {RREF_HANDLES, 0, RREF_HANDLE_FETCH, "fetch", 0, "", CLV_NOT_FOUND},
    {RREF_HANDLES, 0, RREF_HANDLE_RELEASE, "release", 0, "", CLV_NOT_FOUND},
};

/* ---- running the program text of each cell --------------------------------------------------- */

static clv_rref_visits own_visits; /* [cell] visits by the program text written for the cell */
static clv_rref_visits all_visits; /* [cell] visits by any program text */

static uint8_t get_state(const node *n, clv_rref_machine m) {
  const clv_rref_map *const maps[] = {[RREF_ENTRIES] = &n->t->entries,
                                      [RREF_FORKS] = &n->t->forks,
                                      [RREF_HANDLES] = &n->t->handles,
                                      [RREF_CHILDREN] = &n->t->children};
  const uint64_t ids[] = {[RREF_ENTRIES] = REF_ID,
                          [RREF_FORKS] = CHILD_ID,
                          [RREF_HANDLES] = FORK_ID,
                          [RREF_CHILDREN] = CHILD_ID};
  if (m == RREF_POSTS) {
    const clv_rref_child *c = clv_rref_record_find(&n->t->children, CHILD_ID);
    return c ? c->use.state : RREF_POST_NONE;
  }
  const clv_rref_record *r = clv_rref_record_find(maps[m], ids[m]);
  return r ? r->state : 0;
}

static void add_visits(const node *n) {
  uint32_t *all_counts = &all_visits.n[0][0][0];
  const uint32_t *counts_of_node = &n->visits.n[0][0][0];
  for (size_t i = 0; i < sizeof all_visits / sizeof *all_counts; i++)
    all_counts[i] += counts_of_node[i];
}

static void check_cell(const cell *c) {
  node n;
  make_node(&n);
  run_program(&n, c->program_text);
  uint32_t n_hits = n.visits.n[c->state_machine][c->state][c->event] -
                    n.visits_before.n[c->state_machine][c->state][c->event];
  if (!n_hits)
    fail_msg("'%s' does not bring event %u to state %u", c->program_text, c->event, c->state);
  if (strcmp(n.results_text, c->results_text) != 0)
    fail_msg("'%s' gives '%s', not '%s'", c->program_text, n.results_text, c->results_text);
  if (n.code != c->code)
    fail_msg("'%s' is code %d, not %d", c->program_text, (int)n.code, (int)c->code);
  if (get_state(&n, c->state_machine) != c->next_state)
    fail_msg("'%s' leads to state %u, not %u", c->program_text, get_state(&n, c->state_machine),
             c->next_state);
  own_visits.n[c->state_machine][c->state][c->event]++;
  add_visits(&n);
  free_node(&n);
}

static void check_cells(const cell *cells, size_t n) {
  for (size_t i = 0; i < n; i++) check_cell(&cells[i]);
}

static void check_cells_after(const char *first_commands, uint8_t state, const cell *cells,
                              size_t n) {
  char program[128];
  for (size_t i = 0; i < n; i++) {
    cell c = cells[i];
    snprintf(program, sizeof program, "%s %s", first_commands, c.program_text);
    c.program_text = program;
    c.state = c.next_state = state;
    check_cell(&c);
  }
}

static void each_table_cell_has_its_documented_effect(void **state) {
  (void)state;
  check_cells(entry_cells, CLV_COUNT(entry_cells));
  check_cells(fork_cells, CLV_COUNT(fork_cells));
  check_cells(handle_cells, CLV_COUNT(handle_cells));
  check_cells(child_cells, CLV_COUNT(child_cells));
  check_cells(post_cells, CLV_COUNT(post_cells));
  for (uint8_t s = RREF_HANDLE_JOINING; s < RREF_HANDLE_STATES; s++)
    check_cells_after(state_programs[s], s, taken_cells, CLV_COUNT(taken_cells));
  for (uint8_t s = RREF_HANDLE_JOINING_RELEASED; s < RREF_HANDLE_STATES; s++)
    check_cells_after(state_programs[s], s, released_cells, CLV_COUNT(released_cells));
}

/* Asserts that an excluded event changes nothing and is refused. */
static void check_excluded_event(clv_rref_machine m, uint8_t cell_state, uint8_t event) {
  static clv_rref_action_fn *const no_actions[RREF_ACTIONS] = {0};
  clv_rrefs t = {0};
  clv_rref_event_args event_args = {0};
  uint8_t state = cell_state;
  if (all_visits.n[m][cell_state][event])
    fail_msg("machine %d: event %u came in state %u", (int)m, event, cell_state);
  assert_int_equal(clv_rref_on_event(&t, m, no_actions, NULL, &state, event, &event_args),
                   CLV_INTERNAL);
  assert_true(event_args.is_refused);
  assert_int_equal(state, cell_state);
}

static void each_table_cell_is_reached_or_impossible(void **state) {
  (void)state;
  for (clv_rref_machine m = 0; m < RREF_MACHINES; m++)
    for (uint8_t s = 0; s < clv_rref_n_states(m); s++)
      for (uint8_t f = 0; f < clv_rref_n_events(m); f++) {
        if (clv_rref_cell_of(m, s, f)->rule == RREF_IMPOSSIBLE)
          check_excluded_event(m, s, f);
        else if (!own_visits.n[m][s][f])
          fail_msg("machine %d: no program brings event %u to state %u", (int)m, f, s);
      }
}

/* ---- results that a node returns ------------------------------------------------------------- */

/* Runs a program text, and asserts the results of its last command. */
static void assert_results(const char *program, const char *out) {
  node n;
  make_node(&n);
  run_program(&n, program);
  if (strcmp(n.results_text, out) != 0)
    fail_msg("'%s' gives '%s', not '%s'", program, n.results_text, out);
  free_node(&n);
}

/* The fetch is repeated soon if the owner did not know the handle yet, and later if the owner has
 * the request. */
static void missing_value_is_fetched_again(void **state) {
  (void)state;
  assert_results("keep fetch -FETCH again", "KEEP1 FETCH1");
  assert_results("keep +KEEP fetch +FETCH again", "");
  assert_results("keep +KEEP fetch fetch", "");
  assert_results("keep fetch +FETCH <VALUE <VALUE", "");
  /* the program has released the reference, so the node does not fetch it again */
  assert_results("keep +KEEP pass fetch release again", "USE2");
}

/* Each message number is handled once; a repetition only gets the answer again. */
static void repeated_message_is_only_acknowledged(void **state) {
  node n;
  (void)state;
  make_node(&n);
  run_program(&n, "<KEEP");
  n.last_numbers[OWNER_NODE]--;
  run_program(&n, "<KEEP");
  assert_string_equal(n.results_text, "ACK1");
  n.last_numbers[OWNER_NODE] += WINDOW;
  run_program(&n, "<DELETE-first");
  n.last_numbers[OWNER_NODE] = 0;
  run_program(&n, "<KEEP");
  assert_string_equal(n.results_text, "");
  free_node(&n);
}

/* The sender has given the message up, and a later message has its place in the window, so the late
 * acknowledgment is dropped. */
static void late_acknowledgment_is_dropped(void **state) {
  node n;
  uint64_t number;
  clv_code code;
  (void)state;
  make_node(&n);
  clv_rref_peer *p = &n.t->peers[OTHER_NODE];
  assert_true(clv_rref_is_new_message(n.t, p, 1));
  assert_true(clv_rref_is_new_message(n.t, p, 1 + CLV_WIRE_REF_WINDOW));
  clv_rref_queue_ack(n.t, OTHER_NODE, 1, CLV_NOT_FOUND);
  assert_false(clv_rref_next_ack(p, &number, &code));
  assert_true(clv_rref_is_new_message(n.t, p, 1 + CLV_WIRE_REF_WINDOW));
  free_node(&n);
}

static void count_records(const node *n, uint32_t *ret) {
  clv_rref_counts c;
  clv_rrefs_count(n->t, &c);
  *ret = c.n_entries + c.n_forks + c.n_handles + c.n_children + c.n_parked + c.n_unacknowledged;
}

/* Only the first value is stored, and it is released once. */
static void first_settled_value_is_kept(void **state) {
  clv_shape scalar = {0};
  clv_tensor *second_value;
  clv_err err;
  node n;
  (void)state;
  make_node(&n);
  assert_int_equal(clv_tensor_new(CLV_F32, &scalar, &second_value, &err), CLV_OK);
  run_program(&n, "<KEEP settle");
  clv_rrefs_settle_entry(n.t, REF_ID, second_value, NULL, n.now_ns);
  const clv_rref_entry *e = clv_rref_record_find(&n.t->entries, REF_ID);
  assert_ptr_equal(e->tensor, n.v);
  assert_int_equal(second_value->refs, 1);
  assert_int_equal(n.v->refs, 2);
  run_program(&n, "<DELETE-first");
  assert_int_equal(n.v->refs, 1);
  clv_tensor_unref(second_value);
  free_node(&n);
}

/* Later messages must not displace results in the queue. A cancelled result is not delivered. */
static void queued_results_survive_later_messages(void **state) {
  node n;
  uint32_t n_records;
  (void)state;
  make_node(&n);
  do_create_owned(&n);
  do_fetch_value(&n);
  do_pass_handle(&n);
  do_receive_use(&n);
  do_receive_delete(&n);
  take_results_as_text(&n);
  assert_string_equal(n.results_text, "joined fetched ACK2! ACK2");
  n.results_text[0] = '\0';
  do_release_handle(&n);
  count_records(&n, &n_records);
  assert_int_equal(n_records, 0);
  take_results_as_text(&n);
  assert_string_equal(n.results_text, "freed");
  free_node(&n);
}

/* A record is not reused before its last result has been taken. */
static void record_is_reused_only_after_its_last_result(void **state) {
  node n;
  uint32_t n_records;
  (void)state;
  make_node(&n);
  do_create_owned(&n);
  do_release_handle(&n);
  do_create_owned(&n);
  take_results_as_text(&n);
  assert_string_equal(n.results_text, "joined freed joined");
  run_program(&n, "release");
  assert_string_equal(n.results_text, "freed");
  count_records(&n, &n_records);
  assert_int_equal(n_records, 0);
  free_node(&n);
}

/* Leaves one result of each kind in the queue, with the memory that it holds, and frees the table.
 */
static void table_free_releases_queued_results(void **state) {
  static const char *const programs[] = {"own",   "own fetch",      "keep pass",
                                         "<KEEP", "keep-here pass", "<USE fetch"};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(programs); i++) {
    node n;
    make_node(&n);
    run_program(&n, programs[i]);
    do_fetch_value(&n);
    do_receive_value(&n);
    do_receive_fetch(&n);
    do_settle_with_value(&n);
    tick_until(&n, LEASE_NS * 5 / 4, false);
    free_node(&n);
  }
  clv_rrefs_free(NULL);
}

/* Receives hostile message numbers before the results are taken. Messages that have left the window
 * are neither answered nor searched for. */
static void number_jump_drops_acks_outside_the_window(void **state) {
  node n;
  (void)state;
  make_node(&n);
  do_receive_keep(&n);
  n.last_numbers[OWNER_NODE] = UINT64_MAX - 1;
  do_receive_keep(&n);
  take_results_as_text(&n);
  assert_string_equal(n.results_text, "create ACK1!");
  free_node(&n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_table_cell_has_its_documented_effect),
      cmocka_unit_test(each_table_cell_is_reached_or_impossible),
      cmocka_unit_test(missing_value_is_fetched_again),
      cmocka_unit_test(repeated_message_is_only_acknowledged),
      cmocka_unit_test(late_acknowledgment_is_dropped),
      cmocka_unit_test(first_settled_value_is_kept),
      cmocka_unit_test(queued_results_survive_later_messages),
      cmocka_unit_test(record_is_reused_only_after_its_last_result),
      cmocka_unit_test(table_free_releases_queued_results),
      cmocka_unit_test(number_jump_drops_acks_outside_the_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
