/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a node on the simulated device, and its link: a computed value is sent in chunks while it
 * is copied from the device and while the device computes the next value. The node is a worker's,
 * with a link to its master, or a master's, with a link to a worker. Values for the program of a
 * master's node are received in this process.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "common/engine/context_int.h"
#include "common/net/link/link_int.h"
#include "tests/gpu/sim.h"
#include "tests/unit/engine/engine_test.h"

/* A value of BYTES bytes is copied in PIECES pieces of at most PIECE bytes. The module is one
 * matrix product, because the simulated device computes products fast, whereas kernels run slowly
 * on fibres (simulated threads). */
enum {
  ROWS = 24,
  FEW_COLUMNS = 4,
  COLUMNS = 6000,
  BYTES = ROWS * COLUMNS * 4,
  PIECE = 256 << 10,
  PIECES = 3
};
enum { CALLS = 2 };

/* ---- calls of the transport and of the device ------------------------------------------------ */

/* Event that must happen before the copy of the first value's last piece may end. */
typedef enum awaited_event { NOTHING, A_CHUNK, THE_NEXT_CALL } awaited_event;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t counts_changed;
  uint32_t n_chunks, n_heads, n_references;
  uint32_t n_products;        /* number of products; a forward has one */
  uint32_t n_received_values; /* number of values that the program received */
  awaited_event awaited;
  uint32_t n_pieces; /* number of pieces whose copy was requested */
  /* event recorded after the last piece of the first copy; NULL: not recorded yet */
  const clv_cuda_event *last_event;
  bool was_in_time, has_waited;
  clv_cuda_stream *copying_stream;
} observed = {.lock = PTHREAD_MUTEX_INITIALIZER, .counts_changed = PTHREAD_COND_INITIALIZER};

static const clv_vendor *simulated_vendor;

static void count_event(uint32_t *count) {
  pthread_mutex_lock(&observed.lock);
  ++*count;
  pthread_cond_broadcast(&observed.counts_changed);
  pthread_mutex_unlock(&observed.lock);
}

static clv_code fake_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  size_t payload = 0;
  (void)stream, (void)err;
  for (size_t i = 1; i < n; i++) payload += pieces[i].len;
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  count_event(payload ? &observed.n_chunks : &observed.n_heads);
  return CLV_OK;
}
static void fake_close(void *stream) { (void)stream; }
static void fake_cancel(void *stream, clv_code code, const char *text) {
  (void)stream, (void)code, (void)text;
}
static bool fake_defer(void *stream, clv_rpc_job *job) {
  (void)stream, (void)job;
  return false;
}
static void fake_ref(void *stream) { (void)stream; }
static const clv_transport transport = {.send = fake_send,
                                        .close = fake_close,
                                        .cancel = fake_cancel,
                                        .defer = fake_defer,
                                        .ref = fake_ref,
                                        .unref = fake_ref};

static clv_code count_pieces_and_copy(clv_cuda_stream *s, void *host, const void *src, size_t bytes,
                                      clv_err *err) {
  pthread_mutex_lock(&observed.lock);
  if (bytes >= BYTES % PIECE) observed.n_pieces++, observed.copying_stream = s;
  pthread_cond_broadcast(&observed.counts_changed);
  pthread_mutex_unlock(&observed.lock);
  return simulated_vendor->get(s, host, src, bytes, err);
}

static clv_code record_last_event(clv_cuda_event *e, clv_cuda_stream *s, clv_err *err) {
  pthread_mutex_lock(&observed.lock);
  if (observed.n_pieces == PIECES && s == observed.copying_stream && !observed.last_event)
    observed.last_event = e;
  pthread_mutex_unlock(&observed.lock);
  return simulated_vendor->event_record(e, s, err);
}

static clv_code count_and_multiply(clv_cuda_stream *s, clv_cuda_matmul *m, const void *a,
                                   const void *b, const float *bias, float beta, float *d,
                                   void *workspace, clv_err *err) {
  count_event(&observed.n_products);
  return simulated_vendor->matmul(s, m, a, b, bias, beta, d, workspace, err);
}

static bool has_awaited_event_happened(void) {
  if (observed.awaited == A_CHUNK) return observed.n_chunks > 0;
  return observed.awaited == NOTHING || (observed.n_chunks > 0 && observed.n_products == CALLS);
}

static clv_code hold_event(clv_cuda_event *e, clv_err *err) {
  struct timespec deadline;
  int r = 0;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += 5;
  pthread_mutex_lock(&observed.lock);
  bool is_held = e == observed.last_event && !observed.has_waited;
  while (is_held && r == 0 && !has_awaited_event_happened())
    r = pthread_cond_timedwait(&observed.counts_changed, &observed.lock, &deadline);
  observed.has_waited |= is_held;
  observed.was_in_time |= is_held && has_awaited_event_happened();
  pthread_mutex_unlock(&observed.lock);
  return simulated_vendor->event_finish(e, err);
}

/* ---- a node with a link and a device --------------------------------------------------------- */

/* A kind of node under test. peer: name of the node that receives its values and gradients; "": the
 * master. */
typedef struct node_side {
  bool is_master;
  const char *peer;
} node_side;
static const node_side worker = {false, ""}, master = {true, "w1"}, program = {true, ""};

typedef struct world {
  node_side at;
  clv_pool *pool;
  clv_session_node *node;
  clv_backend *backend;
  clv_link *link;
  pthread_t thread;
} world;

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  clv_packet_free(p);
}
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code, (void)text;
}

static void count_received_value(void *user, clv_packet *p) {
  (void)user;
  if (p->frame.kind == CLV_VALUE && p->frame.n_tensors && !p->device_copy[0])
    count_event(&observed.n_received_values);
  clv_packet_free(p);
}

static void *run_node(void *user) {
  clv_node_run(user);
  return NULL;
}

static void begin_link(world *w) {
  clv_err err = {0};
  const clv_link_options o = {.peer_name = "master",
                              .pool = w->pool,
                              .accept_limits = clv_wire_limits_default(),
                              .initial_send_credit = 16 << 20,
                              .events = {.on_packet = on_packet, .on_closed = on_closed}};
  assert_ok(clv_link_new(&o, &w->link, &err));
  clv_frame_writer_attach_stream(w->link->writer, 0, 0, (clv_stream){&transport, &observed});
  assert_ok(clv_frame_writer_resume_lane(w->link->writer, 0, 0, 0, &err));
  clv_send_queue_set_lanes(w->link->send_queue, 1);
  /* a large congestion window, because it cannot grow here: the peer answers no PING */
  w->link->send_queue->pace.window = 64 << 20;
  if (w->at.is_master)
    assert_ok(clv_node_add_peer(w->node, "w1", w->link, &err));
  else
    clv_node_set_master(w->node, w->link);
}

static void hold_last_piece(awaited_event awaited) {
  pthread_mutex_lock(&observed.lock);
  observed.n_chunks = observed.n_heads = observed.n_pieces = observed.n_products =
      observed.n_received_values = 0;
  observed.last_event = NULL, observed.copying_stream = NULL;
  observed.awaited = awaited;
  observed.was_in_time = observed.has_waited = false;
  pthread_mutex_unlock(&observed.lock);
}

static clv_graph *make_linear_graph(int64_t in, int64_t out) {
  const clv_attr_value width = {.key = CLV_ATTR_OUT, .n_ints = 1, .ints = {out}};
  clv_err err = {0};
  clv_graph *g;
  int input;
  clv_attrs attrs;
  assert_ok(clv_graph_new(&g, &err));
  assert_ok(clv_graph_add_input(g, "x", CLV_F32, &CLV_SHAPE(ROWS, in), &input, &err));
  assert_ok(clv_attrs_parse(CLV_OP_LINEAR, &width, true, &attrs, &err));
  assert_ok(clv_graph_add(g, CLV_OP_LINEAR, &attrs, NULL, 0, &input, 1, &g->output_node, &err));
  return g;
}

static void begin_world(world *w, node_side side, uint64_t seed, int64_t in, int64_t out) {
  static clv_vendor v;
  clv_err err = {0};
  simulated_vendor = clv_sim_make_vendor(&(clv_sim_options){.seed = seed});
  v = *simulated_vendor;
  v.get = count_pieces_and_copy, v.event_record = record_last_event, v.event_finish = hold_event,
  v.matmul = count_and_multiply;
  *w = (world){.at = side};
  assert_ok(clv_cuda_open(&v, 0, &w->backend, &err));
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &w->pool, &err));
  const clv_node_options o = {.pool = w->pool,
                              .on_program = side.is_master ? count_received_value : NULL};
  assert_ok(clv_node_new(&o, &w->node, &err));
  clv_module_options so = make_module_options(make_linear_graph(in, out), 0);
  clv_module *module;
  so.backend = w->backend;
  so.input_needs_grad = true;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_ok(clv_node_add_module(w->node, module, &err));
  begin_link(w);
  assert_int_equal(pthread_create(&w->thread, NULL, run_node, w->node), 0);
}

static void end_world(world *w) {
  clv_node_stop(w->node);
  pthread_join(w->thread, NULL);
  clv_node_free(w->node);
  clv_link_end(w->link, CLV_OK, "over");
  clv_frame_writer_detach_stream(w->link->writer, 0, 0);
  clv_link_unref(w->link);
  clv_pool_unref(w->pool);
  clv_cuda_close(w->backend);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static clv_tensor *make_tensor(world *w, int64_t columns) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w->pool, CLV_F32, &CLV_SHAPE(ROWS, columns), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)i / 8;
  return t;
}

static void post_call(world *w, uint32_t context, bool is_training) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(w, is_training ? COLUMNS : FEW_COLUMNS);
  assert_ok(clv_packet_new_call(w->pool, context, 10, 0, is_training, &p, &err));
  assert_ok(clv_packet_add_arg(p, 0, is_training, x, &err));
  assert_ok(clv_packet_add_delivery(p, w->at.peer, &err));
  clv_node_post(w->node, p);
}

static void wait_for(const uint32_t *count, uint32_t n) {
  struct timespec deadline;
  int r = 0;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += 20;
  pthread_mutex_lock(&observed.lock);
  while (r == 0 && *count < n)
    r = pthread_cond_timedwait(&observed.counts_changed, &observed.lock, &deadline);
  pthread_mutex_unlock(&observed.lock);
  assert_int_equal(r, 0);
}

/* Requests the backward of the context's call, which sends the gradient of the input to the
 * peer. */
static void post_backward(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = make_tensor(w, FEW_COLUMNS);
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 10, 1, 0, &err));
  assert_ok(clv_packet_add_target(p, 0, 5, w->at.peer, 0, &err));
  clv_node_post(w->node, p);
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, 10, 0, "", dy, &p, &err));
  clv_node_post(w->node, p);
}

/* ---- sending chunks of a value while it is copied -------------------------------------------- */

/* Threads of the node may still use what is observed. */
static uint32_t read_count(const uint32_t *count) {
  pthread_mutex_lock(&observed.lock);
  uint32_t n = *count;
  pthread_mutex_unlock(&observed.lock);
  return n;
}

static void assert_copy_was_in_time(void) {
  pthread_mutex_lock(&observed.lock);
  bool has_waited = observed.has_waited, was_in_time = observed.was_in_time;
  pthread_mutex_unlock(&observed.lock);
  assert_true(has_waited);
  assert_true(was_in_time);
}

static void run_forwards(node_side at, uint64_t seed, awaited_event held) {
  world w;
  begin_world(&w, at, seed, FEW_COLUMNS, COLUMNS);
  hold_last_piece(held);
  for (uint32_t i = 1; i <= CALLS; i++) {
    post_call(&w, i, false);
    wait_for(&observed.n_pieces, PIECES);
  }
  wait_for(&observed.n_heads, CALLS);
  assert_copy_was_in_time();
  assert_int_equal(read_count(&observed.n_chunks), CALLS * PIECES);
  assert_int_equal(read_count(&observed.n_products), CALLS);
  end_world(&w);
}

static void first_chunk_is_sent_before_the_device_copy_ends(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) run_forwards(worker, seed, A_CHUNK);
  run_forwards(master, 1, A_CHUNK);
}

static void the_next_call_computes_while_a_value_is_copied(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) run_forwards(worker, seed, THE_NEXT_CALL);
  run_forwards(master, 1, THE_NEXT_CALL);
}

static void check_gradient_chunks(node_side at) {
  world w;
  begin_world(&w, at, 2, COLUMNS, FEW_COLUMNS);
  hold_last_piece(NOTHING);
  post_call(&w, 1, true);
  /* the output is small, so it is sent in one piece with its head and counts as a head */
  wait_for(&observed.n_heads, 1);
  hold_last_piece(A_CHUNK);
  post_backward(&w, 1);
  wait_for(&observed.n_heads, at.is_master ? 1 : 2); /* a worker also sends the head of FINISHED */
  assert_copy_was_in_time();
  assert_int_equal(read_count(&observed.n_chunks), PIECES);
  end_world(&w);
}

static void gradients_are_sent_in_chunks_during_the_device_copy(void **state) {
  (void)state;
  check_gradient_chunks(worker);
  check_gradient_chunks(master);
}

static void program_callback_receives_the_complete_value(void **state) {
  world w;
  (void)state;
  begin_world(&w, program, 1, FEW_COLUMNS, COLUMNS);
  hold_last_piece(NOTHING);
  post_call(&w, 1, false);
  wait_for(&observed.n_received_values, 1);
  assert_int_equal(read_count(&observed.n_pieces), PIECES);
  assert_int_equal(read_count(&observed.n_heads) + read_count(&observed.n_chunks), 0);
  end_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(first_chunk_is_sent_before_the_device_copy_ends),
      cmocka_unit_test(the_next_call_computes_while_a_value_is_copied),
      cmocka_unit_test(gradients_are_sent_in_chunks_during_the_device_copy),
      cmocka_unit_test(program_callback_receives_the_complete_value),
  };
  return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
