/* SPDX-License-Identifier: Apache-2.0
 *
 * A node whose modules compute on the simulated device: its thread learns of the end of their work
 * as of a fact, and waits for nothing.
 */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <unistd.h>

#include "common/engine/context_int.h"
#include "common/engine/node_int.h"
#include "tests/gpu/sim.h"
#include "tests/unit/engine/engine_test.h"

/* WAITS: how often a step waits for a module: for each piece that it gets, and for its puts. READS:
 * how often reading its state waits. */
enum {
  ROWS = 4,
  COLUMNS = 3,
  MODULES = 2,
  LEAF = 10,
  WARM = 2,
  STEPS = 6,
  KINDS = 64,
  WAITS = 9,
  READS = 2
};

typedef struct world {
  clv_pool *pool;
  clv_session_node *node;
  clv_backend *device;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t answers_changed_cond;
  uint32_t n_answers[KINDS]; /* number of answers of each kind */
  char last_error[CLV_WIRE_TEXT + 1];
  uint64_t n_waits_of_node;               /* waits of the node's thread for the device */
  double sum_of_items;                    /* sum of the values of all STATE_ITEMs */
  uint32_t n_trace_rows[CLV_TRACE_KINDS]; /* rows of a trace, by kind */
  int64_t took_ns[CLV_TRACE_KINDS];       /* times of the last row of each kind, in ns */
} world;

static double sum_values(const clv_tensor *t) {
  double sum = 0;
  for (size_t i = 0; i < t->bytes / sizeof(float); i++) sum += ((const float *)t->data)[i];
  return sum;
}

static void note_trace(world *w, const clv_tensor *t) {
  const int64_t *row = t->data;
  for (int64_t i = 0; i < t->shape.dim[0]; i++, row += CLV_TRACE_COLUMNS) {
    w->n_trace_rows[row[CLV_TRACE_KIND]]++;
    w->took_ns[row[CLV_TRACE_KIND]] = row[CLV_TRACE_END] - row[CLV_TRACE_BEGIN];
  }
}

static void record_answer(void *user, clv_packet *p) {
  world *w = user;
  pthread_mutex_lock(&w->lock);
  w->n_answers[p->frame.kind]++;
  w->n_waits_of_node = clv_sim_count_waits_of_thread();
  if (p->frame.kind == CLV_ENDED && p->frame.n_tensors) note_trace(w, p->tensor[0]);
  if (p->frame.kind == CLV_STATE_ITEM) w->sum_of_items += sum_values(p->tensor[0]);
  if (clv_frame_is_failure(&p->frame))
    snprintf(w->last_error, sizeof w->last_error, "%s", p->frame.failure.text);
  pthread_cond_broadcast(&w->answers_changed_cond);
  pthread_mutex_unlock(&w->lock);
  clv_packet_free(p);
}

static void wait_for(world *w, clv_frame_kind kind, uint32_t n) {
  struct timespec late;
  int r = 0;
  clock_gettime(CLOCK_REALTIME, &late);
  late.tv_sec += 20;
  pthread_mutex_lock(&w->lock);
  while (r == 0 && w->n_answers[kind] < n)
    r = pthread_cond_timedwait(&w->answers_changed_cond, &w->lock, &late);
  pthread_mutex_unlock(&w->lock);
  if (r)
    fail_msg("%s %u of %u: %s", clv_frame_kind_name(kind), w->n_answers[kind], n, w->last_error);
}

static void *run_node(void *user) {
  clv_node_run(user);
  return NULL;
}

/* Starts the node. first: graph of module 0. */
static void begin_with_graph(world *w, const clv_vendor *vendor, clv_share *share,
                             clv_graph *first) {
  clv_err err = {0};
  *w = (world){.lock = PTHREAD_MUTEX_INITIALIZER, .answers_changed_cond = PTHREAD_COND_INITIALIZER};
  assert_ok(clv_cuda_open(vendor, 0, &w->device, &err));
  assert_ok(clv_pool_new((size_t)64 << 20, 4096, &w->pool, &err));
  clv_node_options o = {.pool = w->pool, .share = share, .user = w, .on_program = record_answer};
  assert_ok(clv_node_new(&o, &w->node, &err));
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module_options so =
        make_module_options(i ? make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS) : first, i);
    clv_module *module;
    so.backend = w->device;
    so.input_needs_grad = i > 0;
    assert_ok(clv_module_new(&so, &module, &err));
    assert_ok(clv_module_warm_up(module, ROWS, &err));
    assert_ok(clv_node_add_module(w->node, module, &err));
  }
  assert_int_equal(pthread_create(&w->thread, NULL, run_node, w->node), 0);
}

static void begin_on_vendor(world *w, const clv_vendor *vendor, clv_share *share) {
  begin_with_graph(w, vendor, share, make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS));
}

static void begin_world(world *w, uint64_t seed) {
  begin_on_vendor(w, clv_sim_make_vendor(&(clv_sim_options){.seed = seed}), NULL);
}

static void end_world(world *w) {
  clv_node_stop(w->node);
  pthread_join(w->thread, NULL);
  assert_string_equal(w->last_error, "");
}

static void free_world(world *w) {
  clv_node_free(w->node);
  clv_pool_unref(w->pool);
  clv_cuda_close(w->device);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint64_t get_output_id(uint32_t module) { return LEAF + 1 + module; }

static clv_tensor *make_tensor(world *w, uint32_t first) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w->pool, CLV_F32, &CLV_SHAPE(ROWS, COLUMNS), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)(first + i) / 8;
  return t;
}

/* Sends a call of each module; each takes the output of the one before. */
static void post_calls(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(w, context);
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_call(w->pool, context, get_output_id(i), i, true, &p, &err));
    assert_ok(clv_packet_add_arg(p, i ? get_output_id(i - 1) : LEAF, true, i ? NULL : x, &err));
    if (i == MODULES - 1) assert_ok(clv_packet_add_delivery(p, "", &err));
    clv_node_post(w->node, p);
  }
}

/* Sends a backward with a vote. */
static void post_backward(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = make_tensor(w, 1);
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, MODULES, false, true, false, &p, &err));
  for (uint32_t i = MODULES; i-- > 0;) {
    assert_ok(clv_packet_add_needed_call(p, get_output_id(i), 1, 0, &err));
    if (i) assert_ok(clv_packet_add_target(p, 0, get_output_id(i - 1), "", 0, &err));
  }
  clv_node_post(w->node, p);
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, get_output_id(MODULES - 1), 0, "", dy, &p,
                                    &err));
  clv_node_post(w->node, p);
}

static void post_end(world *w, uint32_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_end_context(w->pool, context, context, &p, &err));
  clv_packet_set_end_commit(p, 1, 0.1f, true);
  clv_node_post(w->node, p);
}

static void run_step(world *w, uint32_t i) {
  post_calls(w, i);
  wait_for(w, CLV_VALUE, i);
  post_backward(w, i);
  wait_for(w, CLV_FINISHED, i);
  post_end(w, i);
  wait_for(w, CLV_ENDED, i);
}

static uint64_t hash_state(world *w) {
  clv_err err = {0};
  uint64_t hash = 14695981039346656037u;
  clv_state_item item;
  for (uint32_t m = 0; m < MODULES; m++)
    for (uint32_t i = 0;
         clv_module_state_item(clv_node_module(w->node, m), CLV_STATE_WEIGHTS, i, &item); i++) {
      uint8_t bytes[ROWS * COLUMNS * sizeof(float)];
      assert_in_range(item.bytes, 1, sizeof bytes);
      assert_ok(clv_state_item_get(&item, bytes, &err));
      for (size_t b = 0; b < item.bytes; b++) hash = (hash ^ bytes[b]) * 1099511628211u;
    }
  return hash;
}

/* Waits for the steps. A step of an END_CONTEXT may still run when ENDED arrives; reading the state
 * waits for it. */
static void wait_for_steps(world *w) {
  clv_err err = {0};
  clv_packet *p;
  uint32_t before = w->n_answers[CLV_STATE_DONE];
  for (uint32_t i = 0; i < MODULES; i++) {
    assert_ok(clv_packet_new_state_get(w->pool, 0, 80 + i, i, CLV_STATE_WEIGHTS, &p, &err));
    clv_node_post(w->node, p);
  }
  wait_for(w, CLV_STATE_DONE, before + MODULES);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void node_thread_never_blocks_on_a_device(void **state) {
  uint64_t bits[3], here = 0;
  world w;
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) {
    begin_world(&w, seed);
    clv_sim_counts before = {0};
    for (uint32_t i = 1; i <= STEPS; i++) {
      run_step(&w, i);
      if (i < WARM) continue;
      if (i == WARM || i == STEPS) wait_for_steps(&w);
      if (i == WARM) before = clv_sim_get_counts(), here = clv_sim_count_waits_of_thread();
    }
    clv_sim_counts after = clv_sim_get_counts();
    end_world(&w);
    assert_int_equal(w.n_waits_of_node, 0);
    assert_int_equal(clv_sim_count_waits_of_thread(), here);
    assert_int_equal(after.n_waits - before.n_waits, MODULES * ((STEPS - WARM) * WAITS + READS));
    assert_int_equal(after.n_default_stream_calls, 0);
    assert_int_equal(after.n_allocations, before.n_allocations);
    assert_int_equal(after.n_host_allocations, before.n_host_allocations);
    bits[seed] = hash_state(&w);
    free_world(&w);
  }
  assert_true(bits[0] == bits[1] && bits[1] == bits[2]);
}

/* ---- what is wanted late --------------------------------------------------------------------- */

static void read_state(world *w, uint32_t context, clv_state_kind what) {
  clv_err err = {0};
  clv_packet *p;
  uint32_t before = w->n_answers[CLV_STATE_DONE];
  assert_ok(clv_packet_new_state_get(w->pool, context, 90, 0, what, &p, &err));
  clv_node_post(w->node, p);
  wait_for(w, CLV_STATE_DONE, before + 1);
}

/* Reads parameters (also in pieces), moments and gradients. */
static void device_state_is_read_asynchronously(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_world(&w, 2);
  post_calls(&w, 1);
  wait_for(&w, CLV_VALUE, 1);
  post_backward(&w, 1);
  wait_for(&w, CLV_FINISHED, 1);
  read_state(&w, 1, CLV_STATE_GRADIENTS);
  assert_true(w.sum_of_items != 0);
  read_state(&w, 0, CLV_STATE_OPTIMIZER);
  w.sum_of_items = 0;
  read_state(&w, 0, CLV_STATE_WEIGHTS);
  double all = w.sum_of_items;
  w.sum_of_items = 0;
  for (int half = 0; half < 2; half++) {
    clv_state_item item;
    assert_true(clv_module_state_item(clv_node_module(w.node, 0), CLV_STATE_WEIGHTS, 0, &item));
    size_t length = item.bytes / 2;
    assert_ok(clv_packet_new_state_get(w.pool, 0, 91, 0, CLV_STATE_WEIGHTS, &p, &err));
    snprintf(p->frame.state.name, sizeof p->frame.state.name, "%s", item.name);
    p->frame.state.offset = half * length;
    p->frame.state.length = length;
    uint32_t before = w.n_answers[CLV_STATE_DONE];
    clv_node_post(w.node, p);
    wait_for(&w, CLV_STATE_DONE, before + 1);
  }
  assert_true(w.sum_of_items != 0 && w.sum_of_items != all);
  assert_int_equal(w.n_waits_of_node, 0);
  post_end(&w, 1);
  wait_for(&w, CLV_ENDED, 1);
  end_world(&w);
  free_world(&w);
}

/* Requests a value that stayed on the device. */
static void late_deliver_copies_without_blocking_the_node(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_world(&w, 2);
  post_calls(&w, 1);
  wait_for(&w, CLV_VALUE, 1);
  for (uint32_t i = 1; i <= 2; i++) {
    assert_ok(clv_packet_new_deliver(w.pool, 1, get_output_id(0), "", &p, &err));
    clv_node_post(w.node, p);
    wait_for(&w, CLV_VALUE, 1 + i);
  }
  assert_int_equal(w.n_waits_of_node, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- what is written there ------------------------------------------------------------------- */

enum { WEIGHTS = COLUMNS * COLUMNS };

static clv_packet *make_state_frame(world *w, clv_frame_kind kind, clv_state_kind what,
                                    const char *name) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w->pool, kind, &p, &err));
  p->frame.message = 70;
  p->frame.state.what = what;
  p->frame.state.count = 1;
  snprintf(p->frame.state.name, sizeof p->frame.state.name, "%s", name);
  return p;
}

/* Writes n values of module 0. at: position of the first; first: its value. */
static void write_weights(world *w, clv_state_kind what, uint32_t context, float first, size_t n,
                          size_t at) {
  clv_err err = {0};
  uint32_t before = w->n_answers[CLV_STATE_DONE];
  bool piece = n < WEIGHTS;
  clv_packet *p = make_state_frame(w, CLV_STATE_PUT, what, "0.weight");
  clv_shape whole = CLV_SHAPE(COLUMNS, COLUMNS), part = CLV_SHAPE((int64_t)(n * sizeof(float)));
  clv_tensor *t;
  assert_ok(
      clv_pool_alloc_tensor(w->pool, piece ? CLV_U8 : CLV_F32, piece ? &part : &whole, &t, &err));
  for (size_t i = 0; i < n; i++) ((float *)t->data)[i] = first + (float)i;
  p->frame.context = context;
  if (piece) p->frame.state.offset = at * sizeof(float);
  if (piece) p->frame.state.length = n * sizeof(float);
  clv_packet_add_tensor(p, t);
  clv_tensor_unref(t);
  clv_node_post(w->node, p);
  wait_for(w, CLV_STATE_DONE, before + 1);
}

static double read_sum(world *w, uint32_t context, clv_state_kind what) {
  w->sum_of_items = 0;
  read_state(w, context, what);
  return w->sum_of_items;
}

static void device_state_is_written_asynchronously(void **state) {
  world w;
  (void)state;
  begin_world(&w, 2);
  double bias = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  double all = read_sum(&w, 0, CLV_STATE_WEIGHTS);   /* the weights are 0 to 8; the bias is added */
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 50, 2, 3); /* 50 and 51 replace 3 and 4 */
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) - all > 93.99 && bias != all);
  post_calls(&w, 1);
  wait_for(&w, CLV_VALUE, 1);
  post_backward(&w, 1);
  wait_for(&w, CLV_FINISHED, 1);
  double gradients = read_sum(&w, 1, CLV_STATE_GRADIENTS);
  write_weights(&w, CLV_STATE_GRADIENTS, 1, 1000, WEIGHTS, 0);
  assert_true(read_sum(&w, 1, CLV_STATE_GRADIENTS) > gradients + 5000);
  assert_int_equal(w.n_waits_of_node, 0);
  post_end(&w, 1);
  wait_for(&w, CLV_ENDED, 1);
  end_world(&w);
  free_world(&w);
}

/* A write to a wrong position is refused as on the host, and the module can still be used. */
static void device_state_write_of_wrong_shape_is_refused(void **state) {
  clv_err err = {0};
  world w;
  (void)state;
  begin_world(&w, 2);
  clv_packet *p = make_state_frame(&w, CLV_STATE_PUT, CLV_STATE_WEIGHTS, "0.weight");
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w.pool, CLV_F32, &CLV_SHAPE(COLUMNS), &t, &err));
  clv_packet_add_tensor(p, t);
  clv_tensor_unref(t);
  clv_node_post(w.node, p);
  wait_for(&w, CLV_ERROR, 1);
  assert_non_null(
      strstr(w.last_error, "'0.weight' is f32 [3, 3], but the tensor to write is f32 [3]"));
  w.last_error[0] = 0;
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- files of it ----------------------------------------------------------------------------- */

static char file_of_state[64];

static clv_code save_state(void *user, const char *name, const clv_weights_tensor *list, size_t n,
                           clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  (void)user, (void)name;
  return clv_weights_write_file(file_of_state, list, n, NULL, 0, ret_digest, ret_bytes, err);
}

static clv_code open_state(void *user, const char *name, size_t max_bytes, clv_weights_file **ret,
                           clv_err *err) {
  (void)user;
  return clv_weights_open_labelled(file_of_state, name, max_bytes, ret, err);
}

static clv_code remove_state(void *user, const char *name, clv_err *err) {
  (void)user, (void)name, (void)err;
  return CLV_OK;
}

static void save_or_load_state(world *w, clv_frame_kind kind, uint32_t answers) {
  clv_node_post(w->node, make_state_frame(w, kind, CLV_STATE_WEIGHTS, "kept"));
  wait_for(w, CLV_STATE_FILE, answers);
}

static void device_state_files_do_not_block_the_node_thread(void **state) {
  world w;
  (void)state;
  strcpy(file_of_state, "/tmp/cleave-state-XXXXXX");
  close(mkstemp(file_of_state));
  begin_world(&w, 2);
  w.node->o.files =
      (clv_state_files){.save = save_state, .open = open_state, .remove = remove_state};
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  double kept = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  save_or_load_state(&w, CLV_STATE_SAVE, 1);
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 100, WEIGHTS, 0);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) > kept + 800);
  size_t bytes = clv_pool_charged_bytes(w.pool);
  save_or_load_state(&w, CLV_STATE_LOAD, 2);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) == kept);
  assert_int_equal(clv_pool_charged_bytes(w.pool), bytes);
  assert_int_equal(w.n_waits_of_node, 0);
  assert_null(w.node->file);
  unlink(file_of_state);
  end_world(&w);
  free_world(&w);
}

/* ---- running statistics ---------------------------------------------------------------------- */

static clv_graph *make_batchnorm_graph(void) {
  clv_err err = {0};
  clv_graph *g;
  clv_attrs attrs;
  int input, output;
  assert_ok(clv_graph_new(&g, &err));
  assert_ok(clv_graph_add_input(g, "x", CLV_F32, &CLV_SHAPE(ROWS, COLUMNS), &input, &err));
  assert_ok(clv_attrs_parse(CLV_OP_BATCHNORM, NULL, 0, &attrs, &err));
  assert_ok(clv_graph_add(g, CLV_OP_BATCHNORM, &attrs, NULL, 0, &input, 1, &output, &err));
  g->output_node = output;
  return g;
}

/* A call changes the running statistics. Aborting its context restores them. */
static void aborted_context_restores_device_running_statistics(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_with_graph(&w, clv_sim_make_vendor(&(clv_sim_options){.seed = 3}), NULL,
                   make_batchnorm_graph());
  double before = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w, 40);
  assert_ok(clv_packet_new_call(w.pool, 1, get_output_id(0), 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, LEAF, false, x, &err));
  assert_ok(clv_packet_add_delivery(p, "", &err));
  clv_node_post(w.node, p);
  wait_for(&w, CLV_VALUE, 1);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) != before);
  assert_ok(clv_packet_new(w.pool, CLV_ABORT, &p, &err));
  p->frame.context = 1;
  clv_node_post(w.node, p);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) == before);
  assert_int_equal(w.n_waits_of_node, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- the time of a call ---------------------------------------------------------------------- */

/* each step has a forward and two backward parts */
enum { HELD_MS = 2, CALLS = 3 * MODULES * STEPS };

static const clv_vendor *right;
static uint64_t measured, measures;

/* Delays the host at the end of an event, but not the device. */
static clv_code finish_event_late(clv_cuda_event *e, clv_err *err) {
  const struct timespec held = {.tv_nsec = HELD_MS * 1000000};
  nanosleep(&held, NULL);
  return right->event_finish(e, err);
}

static clv_code measure_and_count(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                                  clv_err *err) {
  CLV_TRY(right->event_ms(begin, end, ret, err));
  measured += (uint64_t)(*ret * 1e6);
  measures++;
  return CLV_OK;
}

static clv_code fail_to_measure(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                                clv_err *err) {
  (void)begin, (void)end, (void)ret;
  measures++;
  return clv_fail(err, CLV_UNAVAILABLE, "as planned");
}

static clv_code time_of_none_is_measured(int device, bool timed, clv_cuda_event **ret,
                                         clv_err *err) {
  if (timed) return clv_fail(err, CLV_EXHAUSTED, "as planned");
  return right->event_new(device, timed, ret, err);
}

typedef struct times {
  uint64_t account_ns, share_ns; /* share of the device's time in all steps, in ns */
  uint64_t n_waits;
} times;

static void run_steps(const clv_vendor *vendor, clv_share *share, times *ret) {
  clv_module_counts counts;
  clv_share_counts slices;
  world w;
  measured = measures = 0;
  begin_on_vendor(&w, vendor, share);
  uint64_t before = clv_sim_get_counts().n_waits;
  for (uint32_t i = 1; i <= STEPS; i++) run_step(&w, i);
  wait_for_steps(&w);
  uint64_t waits = clv_sim_get_counts().n_waits - before;
  assert_true(clv_sim_get_counts().n_graph_launches > 0);
  end_world(&w);
  clv_node_count_work(w.node, &counts);
  clv_share_get_counts(share, &slices);
  assert_int_equal(counts.not_recorded, 0);
  free_world(&w);
  *ret = (times){counts.compute_ns, slices.computed_ns, waits};
}

static times measure_times(const clv_vendor *vendor) {
  const uint64_t weight = 1;
  const clv_fair_scheduler_options one = {.cores = 1, .n_tenants = 1, .tenant_weights = &weight};
  clv_err err = {0};
  clv_fair_scheduler *scheduler;
  clv_share *share;
  times ret;
  assert_ok(clv_fair_scheduler_new(&one, &scheduler, &err));
  assert_ok(clv_share_new(scheduler, 0, &share, &err));
  run_steps(vendor, share, &ret);
  clv_share_free(share);
  clv_fair_scheduler_free(scheduler);
  return ret;
}

static clv_vendor make_late_vendor(void) {
  right = clv_sim_make_vendor(&(clv_sim_options){.seed = 1});
  clv_vendor v = *right;
  v.event_finish = finish_event_late;
  return v;
}

static void call_is_charged_the_measured_device_time(void **state) {
  const uint64_t held = (uint64_t)CALLS * HELD_MS * 1000000;
  (void)state;
  clv_vendor v = make_late_vendor();
  v.event_ms = measure_and_count;
  times t = measure_times(&v);
  assert_int_equal(measures, CALLS);
  assert_int_equal(t.account_ns, measured);
  assert_in_range(t.account_ns, 1, held / 10);

  v = make_late_vendor();
  v.event_ms = fail_to_measure;
  times without = measure_times(&v);
  assert_int_equal(measures, CALLS);
  assert_true(without.account_ns >= held);
  assert_true(without.share_ns >= held && t.share_ns < without.share_ns - held / 2);
  assert_int_equal(without.n_waits, t.n_waits);

  v = make_late_vendor();
  v.event_new = time_of_none_is_measured;
  v.event_ms = measure_and_count;
  without = measure_times(&v);
  assert_int_equal(measures, 0);
  assert_true(without.account_ns >= held);
  assert_int_equal(without.n_waits, t.n_waits);
}

/* The trace of a context with a step has a row for each piece of work. */
static void trace_rows_show_the_device_time(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  clv_vendor v = make_late_vendor();
  begin_on_vendor(&w, &v, NULL);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w, 1);
  assert_ok(clv_packet_new_call(w.pool, 1, get_output_id(0), 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, LEAF, false, x, &err));
  clv_packet_set_positions(p, 1, 2, 3, false);
  p->frame.flags |= CLV_FLAG_TRACE;
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_planned_step(w.pool, 1, 60, 0, 4, false, 0.125f, &p, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_prepare(w.pool, 1, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, get_output_id(0), 1, 0, &err));
  clv_node_post(w.node, p);
  assert_ok(clv_packet_new_gradient(w.pool, 1, 1, get_output_id(0), 0, "", x, &p, &err));
  clv_node_post(w.node, p);
  wait_for(&w, CLV_FINISHED, 1);
  assert_ok(clv_packet_new_end_context(w.pool, 1, 1, &p, &err));
  clv_node_post(w.node, p);
  wait_for(&w, CLV_ENDED, 1);
  end_world(&w);
  for (int kind = CLV_TRACE_FORWARD; kind <= CLV_TRACE_STEP; kind++) {
    if (kind == CLV_TRACE_BACKWARD) continue; /* the parts of a backward are traced separately */
    assert_int_equal(w.n_trace_rows[kind], 1);
    assert_in_range(w.took_ns[kind], 1, HELD_MS * 1000000 / 2);
  }
  free_world(&w);
}

/* Page-locked memory for copies is charged once per device. A session that cannot pay for it gets
 * an error. */
static void session_is_charged_for_pinned_copy_buffers(void **state) {
  clv_err err = {0};
  world w;
  (void)state;
  begin_world(&w, 1);
  size_t paid = clv_pool_charged_bytes(w.pool), slots = w.device->branch_bytes;
  end_world(&w);
  assert_true(slots >= (size_t)1 << 20 && paid > slots);
  free_world(&w);

  clv_pool *poor;
  clv_node_options o = {.on_program = record_answer, .user = &w};
  clv_module *module;
  assert_ok(clv_pool_new(slots / 2, 4096, &poor, &err));
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &w.device, &err));
  o.pool = poor;
  assert_ok(clv_node_new(&o, &w.node, &err));
  clv_module_options so =
      make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), 0);
  so.backend = w.device;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_int_equal(clv_node_add_module(w.node, module, &err), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "the host's memory for copies from cuda:0"));
  clv_node_free(w.node);
  assert_int_equal(clv_pool_charged_bytes(poor), 0);
  clv_pool_unref(poor);
  clv_cuda_close(w.device);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static uint64_t count_record_bytes(const clv_module *m) {
  clv_record_counts c;
  clv_recorder_count(m->recorder, &c);
  return c.bytes;
}

static void session_is_charged_for_recorded_graphs(void **state) {
  uint64_t recorded = 0;
  world w;
  (void)state;
  begin_world(&w, 1);
  for (uint32_t i = 1; i <= STEPS; i++) run_step(&w, i);
  wait_for_steps(&w);
  end_world(&w);
  size_t paid = clv_pool_charged_bytes(w.pool);
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module *m = clv_node_module(w.node, i);
    recorded += count_record_bytes(m);
    for (int k = 0; k < m->n_plans; k++)
      clv_recorder_free_records_of(m->recorder, m->plans[k].plan);
    assert_int_equal(count_record_bytes(m), 0);
  }
  assert_true(recorded >= MODULES * 1024);
  assert_int_equal(paid - clv_pool_charged_bytes(w.pool), recorded);
  free_world(&w);
}

/* Calls of several contexts run, the last ones still unfinished when the node is freed. */
static void node_can_be_freed_while_device_work_is_running(void **state) {
  world w;
  (void)state;
  begin_world(&w, 1);
  for (uint32_t i = 1; i <= STEPS; i++) post_calls(&w, i);
  wait_for(&w, CLV_VALUE, 1);
  end_world(&w);
  free_world(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(node_thread_never_blocks_on_a_device),
      cmocka_unit_test(device_state_is_read_asynchronously),
      cmocka_unit_test(device_state_is_written_asynchronously),
      cmocka_unit_test(device_state_write_of_wrong_shape_is_refused),
      cmocka_unit_test(device_state_files_do_not_block_the_node_thread),
      cmocka_unit_test(aborted_context_restores_device_running_statistics),
      cmocka_unit_test(late_deliver_copies_without_blocking_the_node),
      cmocka_unit_test(call_is_charged_the_measured_device_time),
      cmocka_unit_test(trace_rows_show_the_device_time),
      cmocka_unit_test(session_is_charged_for_pinned_copy_buffers),
      cmocka_unit_test(session_is_charged_for_recorded_graphs),
      cmocka_unit_test(node_can_be_freed_while_device_work_is_running),
  };
  return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
