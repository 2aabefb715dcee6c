/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests files of a module's state, which another thread writes: the state is copied first, the
 * answer is sent when the file is written, and the end of the node withdraws files. This test plays
 * the writing thread.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "common/engine/node_int.h"
#include "tests/unit/engine/engine_test.h"

enum { BATCH = 2, WIDTH = 3, MAX_SEEN = 16, LARGE_WIDTH = 200, POOL_BYTES = 1 << 20 };

typedef struct fixture {
  clv_pool *pool;
  clv_session_node *node;
  clv_packet *seen_packets[MAX_SEEN];
  uint32_t n_seen, n_wanted;
  clv_state_save *queued_saves[MAX_SEEN]; /* files that wait for the writer */
  uint32_t n_queued, n_withdrawn, n_written_at_once;
  const char *file_path; /* path of the file that open_file opens */
} fixture;

static void keep_packet(void *user, clv_packet *p) {
  fixture *f = user;
  assert_true(f->n_seen < MAX_SEEN);
  f->seen_packets[f->n_seen++] = p;
  if (f->n_seen >= f->n_wanted) clv_node_interrupt(f->node);
}

static clv_code save_at_once(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                             clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  fixture *f = user;
  (void)name, (void)list, (void)n, (void)err;
  f->n_written_at_once++;
  ret_digest->bytes[0] = 1;
  *ret_bytes = 5;
  return CLV_OK;
}

static clv_code open_file(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) {
  return clv_weights_open_labelled(((fixture *)user)->file_path, name, max_bytes, ret, err);
}

static clv_code remove_file(void *user, const char *name, clv_err *err) {
  (void)user;
  return clv_fail(err, CLV_NOT_FOUND, "no file '%s'", name);
}

static clv_code save_later(void *user, clv_state_save *save, clv_err *err) {
  fixture *f = user;
  if (f->n_queued == MAX_SEEN) return clv_fail(err, CLV_EXHAUSTED, "too many files");
  f->queued_saves[f->n_queued++] = save;
  return CLV_OK;
}

static void withdraw_save(void *user, const clv_state_save *save) {
  fixture *f = user;
  for (uint32_t i = 0; i < f->n_queued; i++)
    if (f->queued_saves[i] == save) {
      f->queued_saves[i] = NULL;
      f->n_withdrawn++;
    }
}

static fixture *open_fixture(size_t pool_bytes, int64_t width) {
  clv_err err = {0};
  clv_module *module;
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  assert_ok(clv_pool_new(pool_bytes, 4096, &f->pool, &err));
  clv_node_options o = {
      .pool = f->pool,
      .user = f,
      .on_program = keep_packet,
      .files = {f, save_at_once, open_file, remove_file, save_later, withdraw_save}};
  assert_ok(clv_node_new(&o, &f->node, &err));
  clv_module_options m = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, BATCH, width), 0);
  assert_ok(clv_module_new(&m, &module, &err));
  assert_ok(clv_node_add_module(f->node, module, &err));
  return f;
}

static void close_fixture(fixture *f) {
  while (f->n_seen) clv_packet_free(f->seen_packets[--f->n_seen]);
  clv_node_free(f->node);
  clv_pool_unref(f->pool);
  free(f);
}

/* Runs the node until `more` further packets have reached the program. Returns the last packet's
 * frame. */
static const clv_frame *run_until_packets(fixture *f, uint32_t more) {
  f->n_wanted = f->n_seen + more;
  clv_node_clear_interrupt(f->node);
  assert_true(clv_node_run_until(f->node, clv_now_ns() + 10000000000u));
  return &f->seen_packets[f->n_seen - 1]->frame;
}

static void send_state_frame(fixture *f, clv_frame_kind kind, uint64_t message,
                             const clv_sha256 *digest) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(f->pool, kind, &p, &err));
  p->frame.message_id = message;
  p->frame.state.part = CLV_STATE_WEIGHTS;
  if (kind != CLV_UNLOAD) strcpy(p->frame.state.item_or_file_name, "kept");
  if (digest) p->frame.state.file_sha256 = *digest;
  assert_ok(clv_node_send_to(f->node, "", p, &err));
}

static float *get_weights(fixture *f) {
  clv_state_item item;
  assert_true(clv_module_state_item(clv_node_module(f->node, 0), CLV_STATE_WEIGHTS, 0, &item));
  return item.data;
}

/* Asserts that the compute thread still runs: it answers a request for the weights with two items
 * and STATE_DONE. */
static void assert_node_continues(fixture *f) {
  send_state_frame(f, CLV_STATE_GET, 50, NULL);
  assert_int_equal(run_until_packets(f, 3)->kind, CLV_STATE_DONE);
}

static void end_save(clv_state_save *save, clv_code code, const char *text) {
  save->code = code;
  if (text) (void)clv_fail(&save->failure, code, "%s", text);
  save->sha256.bytes[0] = 9;
  save->bytes = 123;
  save->on_done(save);
}

static void *end_save_in_thread(void *save) {
  end_save(save, CLV_OK, NULL);
  return NULL;
}

static void answer_is_sent_when_the_file_is_written(void **state) {
  (void)state;
  pthread_t thread;
  fixture *f = open_fixture(POOL_BYTES, WIDTH);
  get_weights(f)[0] = 5;
  send_state_frame(f, CLV_STATE_SAVE, 7, NULL);
  assert_node_continues(f); /* the compute thread does not wait for the writer */
  assert_int_equal(f->n_queued, 1);
  const clv_state_save *save = f->queued_saves[0];
  get_weights(f)[0] = 6;
  assert_string_equal(save->name, "kept");
  assert_int_equal(save->n, 2);
  for (size_t i = 0; i < save->n; i++)
    if (strcmp(save->list[i].name, "0.weight") == 0)
      assert_true(((const float *)save->list[i].data)[0] == 5);
  /* after the module is freed, the names of the saved items must still be valid */
  send_state_frame(f, CLV_UNLOAD, 8, NULL);
  assert_int_equal(run_until_packets(f, 1)->kind, CLV_UNLOADED);
  assert_true(strncmp(save->list[0].name, "0.", 2) == 0);
  assert_int_equal(pthread_create(&thread, NULL, end_save_in_thread, f->queued_saves[0]), 0);
  const clv_frame *answer = run_until_packets(f, 1);
  pthread_join(thread, NULL);
  assert_int_equal(answer->kind, CLV_STATE_FILE);
  assert_int_equal(answer->reply_to, 7);
  assert_int_equal(answer->state.file_bytes, 123);
  assert_int_equal(answer->state.file_sha256.bytes[0], 9);
  assert_string_equal(answer->state.item_or_file_name, "kept");
  assert_null(f->node->saves);
  close_fixture(f);
}

static void failed_file_is_refused(void **state) {
  (void)state;
  fixture *f = open_fixture(POOL_BYTES, WIDTH);
  send_state_frame(f, CLV_STATE_SAVE, 7, NULL);
  assert_node_continues(f);
  end_save(f->queued_saves[0], CLV_UNAVAILABLE, "the disk is broken");
  const clv_frame *answer = run_until_packets(f, 1);
  assert_int_equal(answer->kind, CLV_ERROR);
  assert_int_equal(answer->reply_to, 7);
  assert_string_equal(answer->failure.text, "the disk is broken");
  assert_node_continues(f);
  close_fixture(f);
}

/* The node ends while one file still waits for the writer. A second file is written, but its
 * request has no answer yet. */
static void node_that_ends_withdraws_its_files(void **state) {
  (void)state;
  fixture *f = open_fixture(POOL_BYTES, WIDTH);
  send_state_frame(f, CLV_STATE_SAVE, 7, NULL);
  send_state_frame(f, CLV_STATE_SAVE, 8, NULL);
  assert_node_continues(f);
  assert_int_equal(f->n_queued, 2);
  clv_node_stop(f->node);
  clv_state_save *written_save = f->queued_saves[1];
  f->queued_saves[1] = NULL;
  end_save(written_save, CLV_OK, NULL);
  while (f->n_seen) clv_packet_free(f->seen_packets[--f->n_seen]);
  clv_node_free(f->node);
  f->node = NULL;
  assert_int_equal(f->n_withdrawn, 1);
  assert_int_equal(f->n_seen, 0);
  close_fixture(f);
}

static void save_without_memory_for_a_copy_is_written_at_once(void **state) {
  (void)state;
  clv_err err = {0};
  fixture *f = open_fixture(POOL_BYTES, LARGE_WIDTH);
  const size_t other_bytes =
      POOL_BYTES - clv_pool_charged_bytes(f->pool) - LARGE_WIDTH * LARGE_WIDTH * 2;
  assert_ok(clv_pool_charge(f->pool, other_bytes, &err));
  send_state_frame(f, CLV_STATE_SAVE, 7, NULL);
  const clv_frame *answer = run_until_packets(f, 1);
  assert_int_equal(answer->kind, CLV_STATE_FILE);
  assert_int_equal(answer->state.file_bytes, 5);
  assert_int_equal(f->n_written_at_once, 1);
  assert_int_equal(f->n_queued, 0);
  clv_pool_discharge(f->pool, other_bytes);
  close_fixture(f);
}

/* ---- loading a file of state whose digest is given ------------------------------------------- */

static void load_of_another_digest_changes_nothing(void **state) {
  (void)state;
  clv_err err = {0};
  clv_sha256 digest;
  float w[WIDTH * WIDTH] = {42}, b[WIDTH] = {0};
  char path[] = "/tmp/clv-saves-XXXXXX";
  close(mkstemp(path));
  const clv_weights_tensor list[] = {{"0.weight", CLV_F32, CLV_SHAPE(WIDTH, WIDTH), w},
                                     {"0.bias", CLV_F32, CLV_SHAPE(WIDTH), b}};
  assert_ok(clv_weights_write_file(path, list, 2, NULL, 0, &digest, NULL, &err));
  fixture *f = open_fixture(POOL_BYTES, WIDTH);
  f->file_path = path;
  get_weights(f)[0] = 1;
  clv_sha256 other_digest = digest;
  other_digest.bytes[31] ^= 1;
  send_state_frame(f, CLV_STATE_LOAD, 7, &other_digest);
  const clv_frame *answer = run_until_packets(f, 1);
  assert_int_equal(answer->kind, CLV_ERROR);
  assert_int_equal(answer->failure.code, CLV_DATA_LOSS);
  assert_non_null(strstr(answer->failure.text, "'kept' has the SHA-256 "));
  assert_true(get_weights(f)[0] == 1);
  send_state_frame(f, CLV_STATE_LOAD, 8, &digest);
  assert_int_equal(run_until_packets(f, 1)->kind, CLV_STATE_FILE);
  assert_true(get_weights(f)[0] == 42);
  get_weights(f)[0] = 1;
  send_state_frame(f, CLV_STATE_LOAD, 9, NULL);
  assert_int_equal(run_until_packets(f, 1)->kind, CLV_STATE_FILE);
  assert_true(get_weights(f)[0] == 42);
  unlink(path);
  close_fixture(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answer_is_sent_when_the_file_is_written),
      cmocka_unit_test(failed_file_is_refused),
      cmocka_unit_test(node_that_ends_withdraws_its_files),
      cmocka_unit_test(save_without_memory_for_a_copy_is_written_at_once),
      cmocka_unit_test(load_of_another_digest_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
