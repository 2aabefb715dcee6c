/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes a program on libcleave with the answers of a hostile worker. The program makes calls, runs
 * a backward and a step, keeps a reference and reads state. The input is a list of frames, each
 * after its length in two bytes. The frames arrive while the program waits: at each wait, the
 * frames up to the next length of 0. After the last frame the worker is lost. Whatever arrives,
 * each operation of the program must succeed or fail with a text, and the end of the program must
 * free everything.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"
#include "master/api/core/core.h"
#include "tests/fuzz/fuzz_frame.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BATCH = 2, WIDTH = 3, DEADLINE_MS = 200 };

static const char session_text[] =
    "version: 1\nname: s\ntls: {ca: a, cert: b, key: c}\n"
    "workers: {w1: {address: 'h:1', identity: 'spiffe://c/w1'}}\n"
    "data: {format: idx, train: [a, b]}\n"
    "stages: [{name: none, at: master, layers: [{op: relu}]}]\n"
    "loss: {kind: mse}\n"
    "train: {batch: 2, optimizer: {kind: sgd, lr: 0.1}}\n";

typedef struct program {
  const uint8_t *at, *input_end;
  cleave_runtime *rt;
  clv_link *link;
  bool is_worker_lost;
  cleave_module *worker_module, *loss_module;
  cleave_optimizer *optimizer;
} program;

static clv_session_config *config;
static program *current;
/* true if CLEAVE_FUZZ_SHOW is set: prints the frames that a worker would get, for authors of
 * seeds */
static bool prints_sent_frames;

static void free_config(void) { clv_session_config_free(config); }

/* ---- the worker, whose answers are the input ------------------------------------------------- */

/* Replaces clv_link_send in the library, by the linker's --wrap. */
clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *ignored);
clv_code __wrap_clv_link_send(clv_link *link, clv_packet *p, clv_err *ignored) {
  const clv_frame *f = &p->frame;
  (void)link, (void)ignored;
  if (prints_sent_frames)
    fprintf(stderr, "%-12s context %llu message %llu module %u phase %u ref %llx fork %llx\n",
            clv_frame_kind_name(f->kind), (unsigned long long)f->context,
            (unsigned long long)f->message_id, f->module, f->backward_pass_number,
            (unsigned long long)f->reference.ref_id, (unsigned long long)f->reference.fork_id);
  clv_packet_free(p);
  return CLV_OK;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  prints_sent_frames = getenv("CLEAVE_FUZZ_SHOW") != NULL;
  clv_log_set(CLV_LOG_ERROR, false);
  NEVER(clv_session_config_parse("/s.yaml", session_text, sizeof session_text - 1, NULL, &config,
                                 NULL) != CLV_OK);
  return atexit(free_config);
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  program *g = user;
  (void)link;
  api_on_packet(&g->rt->peers[1], p);
}

/* Loses the worker, as the library does when a link ends. */
static void mark_worker_lost(program *g, const char *text) {
  api_peer *p = &g->rt->peers[1];
  if (g->is_worker_lost) return;
  g->is_worker_lost = true;
  p->state = PEER_LOST;
  api_lock(g->rt);
  api_fail(&p->loss_error, CLV_UNAVAILABLE, "worker 'w1' was lost: %s", text);
  api_node_fail(g->rt, 1, &p->loss_error);
  api_unlock(g->rt);
}

static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  (void)link, (void)code;
  mark_worker_lost(user, text);
}

static void receive_frame(program *g, const uint8_t *data, size_t len) {
  clv_piece piece = {data, len};
  clv_frame f;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  clv_err err;
  if (clv_frame_decode(&piece, 1, &limits, &f, &payload, &err) != CLV_OK) return;
  if (f.kind == CLV_PING) return; /* no stream exists on which a PONG could be sent */
  correct_checksums(&f, &piece, &payload);
  if (clv_link_on_frame(g->link, 0, &f, &piece, &payload, &err) != CLV_OK)
    clv_link_end(g->link, err.code, err.text);
}

static void deliver_frame(program *g) {
  while (g->input_end - g->at >= 2 && !g->is_worker_lost) {
    size_t len = g->at[0] | (size_t)g->at[1] << 8;
    g->at += 2;
    if (!len) return;
    len = CLV_MIN(len, (size_t)(g->input_end - g->at));
    receive_frame(g, g->at, len);
    g->at += len;
  }
  mark_worker_lost(g, "it has said everything");
}

/* Replaces clv_node_run_until, in which the program would wait, by the linker's --wrap. Delivers
 * the next answers of the input instead of waiting. */
bool __real_clv_node_run_until(clv_session_node *n, uint64_t until_ns);
bool __wrap_clv_node_run_until(clv_session_node *n, uint64_t until_ns);
bool __wrap_clv_node_run_until(clv_session_node *n, uint64_t until_ns) {
  while (!__real_clv_node_run_until(n, 0)) {
    if (current->is_worker_lost) return __real_clv_node_run_until(n, until_ns);
    deliver_frame(current);
  }
  return true;
}

/* ---- the program that gets the worker's answers ---------------------------------------------- */

static void must(cleave_status status, const cleave_error *e) {
  if (status != CLEAVE_OK) fprintf(stderr, "%s\n", e->text);
  NEVER(status != CLEAVE_OK);
}

static bool is_success(cleave_status status, const cleave_error *e) {
  NEVER(status != CLEAVE_OK && !e->text[0]);
  if (status != CLEAVE_OK && prints_sent_frames) fprintf(stderr, "%s\n", e->text);
  return status == CLEAVE_OK;
}

static void connect_worker(program *g) {
  clv_err err;
  uint64_t ns;
  api_peer *p = &g->rt->peers[1];
  clv_link_options o = {.peer_name = "w1",
                        .pool = g->rt->pool,
                        .accept_limits = clv_wire_limits_default(),
                        .initial_send_credit = 1 << 20,
                        .events = {.user = g, .on_packet = on_packet, .on_closed = on_closed}};
  *p = (api_peer){.runtime = g->rt, .index = 1, .name = "w1", .spec = &config->workers[0]};
  NEVER(clv_link_new(&o, &p->link, &err) != CLV_OK ||
        clv_node_add_peer(g->rt->node, "w1", p->link, &err) != CLV_OK);
  p->limits = clv_wire_limits_default();
  g->link = p->link;
  /* the input may contain the PONG for this PING, whose number is 1 */
  (void)!clv_link_ping(g->link, 0, &ns, &err);
  g->rt->n_peers = 2;
}

static void on_event(void *user, cleave_context context, const cleave_event *event) {
  (void)user;
  NEVER(!context.id || !event->kind || event->kind >= CLEAVE_EVENT_KINDS || event->node != 1);
}

/* Prepares a module that counts as loaded. Answers to loading are the subject of another fuzzer. */
static void prepare_program(program *g) {
  cleave_error e = {0};
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, BATCH, WIDTH);
  cleave_options o = {.size = sizeof o,
                      .deadline_ms = DEADLINE_MS,
                      .single_thread = true,
                      .on_event = on_event,
                      .workers = (const char *[]){NULL}};
  must(cleave_open_config(config, CLEAVE_BULK_LANES, &o, &g->rt, &e), &e);
  connect_worker(g);
  cleave_module_options worker_options = {.size = sizeof worker_options, .name = "far", .at = "w1"},
                        loss = {.size = sizeof loss, .name = "loss"};
  must(cleave_load_layers(g->rt, &worker_options, "[{op: linear, name: fc, out: 3}]", &rows,
                          &g->worker_module, &e),
       &e);
  must(cleave_load_loss(g->rt, &loss, "mse", &rows, &g->loss_module, &e), &e);
  cleave_group group = {
      .modules = &g->worker_module, .n_modules = 1, .kind = CLEAVE_SGD, .lr = 0.1};
  must(cleave_optimizer_new(g->rt, &group, 1, 0, &g->optimizer, &e), &e);
  g->worker_module->state = MODULE_PLACED;
  g->worker_module->needs_input_grads = true;
  g->rt->peers[1].has_module = true;
}

static void read_state(program *g) {
  cleave_error e = {0};
  cleave_tensor weight = {0};
  cleave_state state = {0};
  is_success(cleave_weight_read(g->rt, g->worker_module, "fc.weight", 0, &weight, &e), &e);
  is_success(cleave_state_read(g->rt, g->worker_module, CLEAVE_STATE_WEIGHTS, 0, &state, &e), &e);
  cleave_tensor_free(&weight);
  cleave_state_free(&state);
}

static void exercise_kept_value(program *g, cleave_context c, cleave_reference out) {
  cleave_error e = {0};
  cleave_tensor value = {0};
  cleave_reference used_reference, more;
  cleave_kept kept;
  if (!is_success(cleave_keep(g->rt, out, &kept, &e), &e)) return;
  is_success(cleave_kept_fetch(g->rt, kept, 0, &value, &e), &e);
  if (is_success(cleave_kept_use(g->rt, c, kept, &used_reference, &e), &e))
    is_success(cleave_call(g->rt, c, g->worker_module, &used_reference, 1, &more, &e), &e);
  cleave_kept_release(g->rt, kept, &e);
  cleave_tensor_free(&value);
}

static void run_training_step(program *g, cleave_context c, cleave_reference y,
                              cleave_reference out) {
  cleave_error e = {0};
  cleave_tensor value = {0}, grad = {0};
  cleave_reference both[] = {out, y}, loss;
  if (!is_success(cleave_call(g->rt, c, g->loss_module, both, 2, &loss, &e), &e)) return;
  is_success(cleave_to_here(g->rt, out, 0, &value, &e), &e);
  if (is_success(cleave_backward(g->rt, c, &loss, 1, false, 0, &e), &e)) {
    is_success(cleave_gradient(g->rt, c, g->worker_module, "fc.weight", 0, &grad, &e), &e);
    is_success(cleave_step(g->rt, g->optimizer, c, 0, NULL, &e), &e);
  }
  is_success(cleave_to_here(g->rt, loss, 0, &value, &e), &e);
  cleave_tensor_free(&value);
  cleave_tensor_free(&grad);
}

static void run_context(program *g) {
  static const float numbers[BATCH * WIDTH] = {1, 2, 3, 4, 5, 6};
  cleave_error e = {0};
  cleave_tensor rows = CLEAVE_TENSOR_F32(numbers, BATCH, WIDTH);
  cleave_context c;
  cleave_reference x, y, out;
  must(cleave_context_open(g->rt, NULL, &c, &e), &e);
  must(cleave_leaf(g->rt, c, &rows, true, &x, &e), &e);
  must(cleave_leaf(g->rt, c, &rows, false, &y, &e), &e);
  if (is_success(cleave_call(g->rt, c, g->worker_module, &x, 1, &out, &e), &e)) {
    run_training_step(g, c, y, out);
    exercise_kept_value(g, c, out);
  }
  is_success(cleave_context_close(g->rt, c, 0, &e), &e);
}

static void write_state(program *g) {
  static const float numbers[WIDTH * WIDTH];
  cleave_error e = {0};
  cleave_tensor weight = CLEAVE_TENSOR_F32(numbers, WIDTH, WIDTH);
  cleave_named_tensor item = {"fc.weight", weight};
  is_success(cleave_weight_write(g->rt, g->worker_module, "fc.weight", &weight, 0, &e), &e);
  is_success(cleave_state_write(g->rt, g->worker_module, CLEAVE_STATE_WEIGHTS, &item, 1, 0, &e),
             &e);
}

/* Makes a leaf of the program's numbers and sends it to the worker. */
static void send_own_value(program *g) {
  static const float numbers[BATCH * WIDTH];
  cleave_error e = {0};
  cleave_tensor rows = CLEAVE_TENSOR_F32(numbers, BATCH, WIDTH), value = {0};
  cleave_context_options context_options = {.size = sizeof context_options, .events = true};
  cleave_context c;
  cleave_reference leaf, passed, out;
  cleave_kept kept;
  if (!is_success(cleave_context_open(g->rt, &context_options, &c, &e), &e)) return;
  if (is_success(cleave_leaf(g->rt, c, &rows, false, &leaf, &e), &e) &&
      is_success(cleave_keep(g->rt, leaf, &kept, &e), &e)) {
    if (is_success(cleave_kept_use(g->rt, c, kept, &passed, &e), &e) &&
        is_success(cleave_call(g->rt, c, g->worker_module, &passed, 1, &out, &e), &e))
      is_success(cleave_to_here(g->rt, out, 0, &value, &e), &e);
    cleave_kept_release(g->rt, kept, &e);
  }
  is_success(cleave_context_end(g->rt, c, &e), &e);
  cleave_tensor_free(&value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  program g = {.at = data, .input_end = data + size};
  cleave_error e = {0};
  current = &g;
  prepare_program(&g);
  run_context(&g);
  read_state(&g);
  write_state(&g);
  send_own_value(&g);
  (void)cleave_close(g.rt, 0, NULL, &e);
  return 0;
}
