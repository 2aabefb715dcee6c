/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a node whose modules compute on the simulated device. The node's thread never waits for the
 * device: the thread gets an event when work on the device has ended.
 */
#include <unistd.h>

#include "common/engine/context_int.h"
#include "common/engine/node_int.h"
#include "tests/gpu/sim.h"
#include "tests/unit/engine/threaded_node_test.h"

/* WARM_UP_STEPS: steps before counting begins. WAITS_PER_STEP: waits for the device in one step of
 * one module: one for each piece that is copied from the device, and those for copies to the
 * device. WAITS_PER_STATE_READ: waits when the state of a module is read. */
enum { WARM_UP_STEPS = 2, STEPS = 6, WAITS_PER_STEP = 9, WAITS_PER_STATE_READ = 2 };

typedef struct world {
  threaded_node n;
  clv_backend *device;
  uint64_t n_waits_of_node;                  /* how often the node's thread waited for the device */
  double sum_of_items;                       /* sum of the values of all STATE_ITEM frames */
  uint32_t n_trace_rows[CLV_TRACE_KINDS];    /* rows of a trace, by kind */
  int64_t last_duration_ns[CLV_TRACE_KINDS]; /* duration in the last row of each kind, in ns */
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
    w->last_duration_ns[row[CLV_TRACE_KIND]] = row[CLV_TRACE_END] - row[CLV_TRACE_BEGIN];
  }
}

static void record_device_answer(void *user, clv_packet *p) {
  world *w = user;
  pthread_mutex_lock(&w->n.lock);
  w->n_waits_of_node = clv_sim_count_waits_of_thread();
  if (p->frame.kind == CLV_ENDED && p->frame.n_tensors) note_trace(w, p->tensor[0]);
  if (p->frame.kind == CLV_STATE_ITEM) w->sum_of_items += sum_values(p->tensor[0]);
  pthread_mutex_unlock(&w->n.lock);
  record_answer(&w->n, p);
}

/* Starts the node. first_graph: graph of module 0. */
static void begin_with_graph(world *w, const clv_vendor *vendor, clv_share *share,
                             clv_graph *first_graph) {
  clv_err err = {0};
  *w = (world){0};
  assert_ok(clv_cuda_open(vendor, 0, &w->device, &err));
  make_threaded_node(
      &w->n, (clv_node_options){.share = share, .user = w, .on_program = record_device_answer});
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module_options so = make_module_options(
        i ? make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS) : first_graph, i);
    clv_module *module;
    so.backend = w->device;
    so.input_needs_grad = i > 0;
    assert_ok(clv_module_new(&so, &module, &err));
    assert_ok(clv_module_warm_up(module, ROWS, &err));
    assert_ok(clv_node_add_module(w->n.node, module, &err));
  }
  start_node(&w->n);
}

static void begin_on_vendor(world *w, const clv_vendor *vendor, clv_share *share) {
  begin_with_graph(w, vendor, share, make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS));
}

static void begin_world(world *w, uint64_t seed) {
  begin_on_vendor(w, clv_sim_make_vendor(&(clv_sim_options){.seed = seed}), NULL);
}

static void end_world(world *w) {
  stop_node(&w->n);
  assert_string_equal(w->n.last_error, "");
}

static void free_world(world *w) {
  clv_node_free(w->n.node);
  clv_pool_unref(w->n.pool);
  clv_cuda_close(w->device);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static void run_whole_step(world *w, uint32_t i) {
  run_step(&w->n, i, true);
  wait_for(&w->n, CLV_ENDED, i);
}

/* ---- calls that compute on the device -------------------------------------------------------- */

static void node_thread_never_blocks_on_a_device(void **state) {
  uint64_t bits[3], waits_of_test = 0;
  world w;
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) {
    begin_world(&w, seed);
    clv_sim_counts counts_before = {0};
    for (uint32_t i = 1; i <= STEPS; i++) {
      run_whole_step(&w, i);
      if (i < WARM_UP_STEPS) continue;
      if (i == WARM_UP_STEPS || i == STEPS) wait_for_steps(&w.n);
      if (i == WARM_UP_STEPS)
        counts_before = clv_sim_get_counts(), waits_of_test = clv_sim_count_waits_of_thread();
    }
    clv_sim_counts counts_after = clv_sim_get_counts();
    end_world(&w);
    assert_int_equal(w.n_waits_of_node, 0);
    assert_int_equal(clv_sim_count_waits_of_thread(), waits_of_test);
    assert_int_equal(counts_after.n_waits - counts_before.n_waits,
                     MODULES * ((STEPS - WARM_UP_STEPS) * WAITS_PER_STEP + WAITS_PER_STATE_READ));
    assert_int_equal(counts_after.n_default_stream_calls, 0);
    assert_int_equal(counts_after.n_allocations, counts_before.n_allocations);
    assert_int_equal(counts_after.n_host_allocations, counts_before.n_host_allocations);
    bits[seed] = hash_state(&w.n);
    free_world(&w);
  }
  assert_true(bits[0] == bits[1] && bits[1] == bits[2]);
}

/* ---- state and values that are requested late ------------------------------------------------ */

static void read_state(world *w, uint32_t context, clv_state_kind kind) {
  clv_err err = {0};
  clv_packet *p;
  uint32_t n_answers_before = w->n.n_answers[CLV_STATE_DONE];
  assert_ok(clv_packet_new_state_get(w->n.pool, context, 90, 0, kind, &p, &err));
  clv_node_post(w->n.node, p);
  wait_for(&w->n, CLV_STATE_DONE, n_answers_before + 1);
}

/* Reads parameters (also in pieces), moments and gradients. */
static void device_state_is_read_asynchronously(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_world(&w, 2);
  post_calls(&w.n, 1);
  wait_for(&w.n, CLV_VALUE, 1);
  post_backward(&w.n, 1, true);
  wait_for(&w.n, CLV_FINISHED, 1);
  read_state(&w, 1, CLV_STATE_GRADIENTS);
  assert_true(w.sum_of_items != 0);
  read_state(&w, 0, CLV_STATE_OPTIMIZER);
  w.sum_of_items = 0;
  read_state(&w, 0, CLV_STATE_WEIGHTS);
  double sum_of_state = w.sum_of_items;
  w.sum_of_items = 0;
  for (int half = 0; half < 2; half++) {
    clv_state_item item;
    assert_true(clv_module_state_item(clv_node_module(w.n.node, 0), CLV_STATE_WEIGHTS, 0, &item));
    size_t length = item.bytes / 2;
    assert_ok(clv_packet_new_state_get(w.n.pool, 0, 91, 0, CLV_STATE_WEIGHTS, &p, &err));
    snprintf(p->frame.state.item_or_file_name, sizeof p->frame.state.item_or_file_name, "%s",
             item.name);
    p->frame.state.piece_offset = half * length;
    p->frame.state.piece_length = length;
    uint32_t n_answers_before = w.n.n_answers[CLV_STATE_DONE];
    clv_node_post(w.n.node, p);
    wait_for(&w.n, CLV_STATE_DONE, n_answers_before + 1);
  }
  assert_true(w.sum_of_items != 0 && w.sum_of_items != sum_of_state);
  assert_int_equal(w.n_waits_of_node, 0);
  post_end(&w.n, 1);
  wait_for(&w.n, CLV_ENDED, 1);
  end_world(&w);
  free_world(&w);
}

/* Requests a value that stayed on the device, after its call has ended. */
static void late_deliver_copies_without_blocking_the_node(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  begin_world(&w, 2);
  post_calls(&w.n, 1);
  wait_for(&w.n, CLV_VALUE, 1);
  for (uint32_t i = 1; i <= 2; i++) {
    assert_ok(clv_packet_new_deliver(w.n.pool, 1, get_output_id(0), "", &p, &err));
    clv_node_post(w.n.node, p);
    wait_for(&w.n, CLV_VALUE, 1 + i);
  }
  assert_int_equal(w.n_waits_of_node, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- writes to state on the device ----------------------------------------------------------- */

enum { WEIGHTS = COLUMNS * COLUMNS };

static clv_packet *make_state_frame(world *w, clv_frame_kind kind, clv_state_kind state_kind,
                                    const char *name) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w->n.pool, kind, &p, &err));
  p->frame.message_id = 70;
  p->frame.state.part = state_kind;
  p->frame.state.n_items = 1;
  snprintf(p->frame.state.item_or_file_name, sizeof p->frame.state.item_or_file_name, "%s", name);
  return p;
}

/* Writes the n values first, first + 1, ... to module 0, from position `at` on. */
static void write_weights(world *w, clv_state_kind state_kind, uint32_t context, float first,
                          size_t n, size_t at) {
  clv_err err = {0};
  uint32_t n_answers_before = w->n.n_answers[CLV_STATE_DONE];
  bool is_piece = n < WEIGHTS;
  clv_packet *p = make_state_frame(w, CLV_STATE_PUT, state_kind, "0.weight");
  clv_shape whole_shape = CLV_SHAPE(COLUMNS, COLUMNS),
            piece_shape = CLV_SHAPE((int64_t)(n * sizeof(float)));
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w->n.pool, is_piece ? CLV_U8 : CLV_F32,
                                  is_piece ? &piece_shape : &whole_shape, &t, &err));
  for (size_t i = 0; i < n; i++) ((float *)t->data)[i] = first + (float)i;
  p->frame.context = context;
  if (is_piece) p->frame.state.piece_offset = at * sizeof(float);
  if (is_piece) p->frame.state.piece_length = n * sizeof(float);
  clv_packet_add_tensor(p, t);
  clv_tensor_unref(t);
  clv_node_post(w->n.node, p);
  wait_for(&w->n, CLV_STATE_DONE, n_answers_before + 1);
}

static double read_sum(world *w, uint32_t context, clv_state_kind kind) {
  w->sum_of_items = 0;
  read_state(w, context, kind);
  return w->sum_of_items;
}

static void device_state_is_written_asynchronously(void **state) {
  world w;
  (void)state;
  begin_world(&w, 2);
  double bias = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  /* the weights are 0 to 8; the sum includes the bias */
  double sum_before = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 50, 2, 3); /* 50 and 51 replace 3 and 4 */
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) - sum_before > 93.99 && bias != sum_before);
  post_calls(&w.n, 1);
  wait_for(&w.n, CLV_VALUE, 1);
  post_backward(&w.n, 1, true);
  wait_for(&w.n, CLV_FINISHED, 1);
  double gradients = read_sum(&w, 1, CLV_STATE_GRADIENTS);
  write_weights(&w, CLV_STATE_GRADIENTS, 1, 1000, WEIGHTS, 0);
  assert_true(read_sum(&w, 1, CLV_STATE_GRADIENTS) > gradients + 5000);
  assert_int_equal(w.n_waits_of_node, 0);
  post_end(&w.n, 1);
  wait_for(&w.n, CLV_ENDED, 1);
  end_world(&w);
  free_world(&w);
}

/* A write that does not fit the parameter is refused, as on a node without a device, and the module
 * can still be used. */
static void device_state_write_of_wrong_shape_is_refused(void **state) {
  clv_err err = {0};
  world w;
  (void)state;
  begin_world(&w, 2);
  clv_packet *p = make_state_frame(&w, CLV_STATE_PUT, CLV_STATE_WEIGHTS, "0.weight");
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w.n.pool, CLV_F32, &CLV_SHAPE(COLUMNS), &t, &err));
  clv_packet_add_tensor(p, t);
  clv_tensor_unref(t);
  clv_node_post(w.n.node, p);
  wait_for(&w.n, CLV_ERROR, 1);
  assert_non_null(
      strstr(w.n.last_error, "'0.weight' is f32 [3, 3], but the tensor to write is f32 [3]"));
  w.n.last_error[0] = 0;
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- files of a module's state --------------------------------------------------------------- */

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
  clv_node_post(w->n.node, make_state_frame(w, kind, CLV_STATE_WEIGHTS, "kept"));
  wait_for(&w->n, CLV_STATE_FILE, answers);
}

static void device_state_files_do_not_block_the_node_thread(void **state) {
  world w;
  (void)state;
  strcpy(file_of_state, "/tmp/cleave-state-XXXXXX");
  close(mkstemp(file_of_state));
  begin_world(&w, 2);
  w.n.node->o.files =
      (clv_state_files){.save = save_state, .open = open_state, .remove = remove_state};
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 0, WEIGHTS, 0);
  double sum_saved = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  save_or_load_state(&w, CLV_STATE_SAVE, 1);
  write_weights(&w, CLV_STATE_WEIGHTS, 0, 100, WEIGHTS, 0);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) > sum_saved + 800);
  size_t bytes = clv_pool_charged_bytes(w.n.pool);
  save_or_load_state(&w, CLV_STATE_LOAD, 2);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) == sum_saved);
  assert_int_equal(clv_pool_charged_bytes(w.n.pool), bytes);
  assert_int_equal(w.n_waits_of_node, 0);
  assert_null(w.n.node->file);
  unlink(file_of_state);
  end_world(&w);
  free_world(&w);
}

/* ---- running statistics of batchnorm --------------------------------------------------------- */

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
  double sum_before = read_sum(&w, 0, CLV_STATE_WEIGHTS);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w.n, 40);
  assert_ok(clv_packet_new_call(w.n.pool, 1, get_output_id(0), 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, LEAF, false, x, &err));
  assert_ok(clv_packet_add_delivery(p, "", &err));
  clv_node_post(w.n.node, p);
  wait_for(&w.n, CLV_VALUE, 1);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) != sum_before);
  assert_ok(clv_packet_new(w.n.pool, CLV_ABORT, &p, &err));
  p->frame.context = 1;
  clv_node_post(w.n.node, p);
  assert_true(read_sum(&w, 0, CLV_STATE_WEIGHTS) == sum_before);
  assert_int_equal(w.n_waits_of_node, 0);
  end_world(&w);
  free_world(&w);
}

/* ---- the time that a call takes on the device ------------------------------------------------ */

/* CALLS: in each step, a module has a forward and two parts of a backward */
enum { HOST_DELAY_MS = 2, CALLS = 3 * MODULES * STEPS };

static const clv_vendor *simulated_vendor;
static uint64_t measured_ns, n_measurements;

/* Makes the host notice the end of an event HOST_DELAY_MS late. The device is not delayed. */
static clv_code finish_event_late(clv_cuda_event *e, clv_err *err) {
  const struct timespec delay = {.tv_nsec = HOST_DELAY_MS * 1000000};
  nanosleep(&delay, NULL);
  return simulated_vendor->event_finish(e, err);
}

static clv_code measure_and_count(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                                  clv_err *err) {
  CLV_TRY(simulated_vendor->event_ms(begin, end, ret, err));
  measured_ns += (uint64_t)(*ret * 1e6);
  n_measurements++;
  return CLV_OK;
}

static clv_code fail_to_measure(clv_cuda_event *begin, clv_cuda_event *end, double *ret,
                                clv_err *err) {
  (void)begin, (void)end, (void)ret;
  n_measurements++;
  return clv_fail(err, CLV_UNAVAILABLE, "as planned");
}

static clv_code refuse_timed_events(int device, bool is_timed, clv_cuda_event **ret, clv_err *err) {
  if (is_timed) return clv_fail(err, CLV_EXHAUSTED, "as planned");
  return simulated_vendor->event_new(device, is_timed, ret, err);
}

typedef struct device_times {
  /* time of all steps on the device: as the node counts it, and as the session's share counts it */
  uint64_t account_ns, share_ns;
  uint64_t n_waits;
} device_times;

static void run_steps(const clv_vendor *vendor, clv_share *share, device_times *ret) {
  clv_module_counts counts;
  clv_share_counts slices;
  world w;
  measured_ns = n_measurements = 0;
  begin_on_vendor(&w, vendor, share);
  uint64_t n_waits_before = clv_sim_get_counts().n_waits;
  for (uint32_t i = 1; i <= STEPS; i++) run_whole_step(&w, i);
  wait_for_steps(&w.n);
  uint64_t n_waits = clv_sim_get_counts().n_waits - n_waits_before;
  assert_true(clv_sim_get_counts().n_graph_launches > 0);
  end_world(&w);
  clv_node_count_work(w.n.node, &counts);
  clv_share_get_counts(share, &slices);
  assert_int_equal(counts.not_recorded, 0);
  free_world(&w);
  *ret = (device_times){counts.compute_ns, slices.computed_ns, n_waits};
}

static device_times measure_times(const clv_vendor *vendor) {
  const uint64_t weight = 1;
  const clv_fair_scheduler_options one_core = {
      .n_cores = 1, .n_tenants = 1, .tenant_weights = &weight};
  clv_err err = {0};
  clv_fair_scheduler *scheduler;
  clv_share *share;
  device_times ret;
  assert_ok(clv_fair_scheduler_new(&one_core, &scheduler, &err));
  assert_ok(clv_share_new(scheduler, 0, &share, &err));
  run_steps(vendor, share, &ret);
  clv_share_free(share);
  clv_fair_scheduler_free(scheduler);
  return ret;
}

static clv_vendor make_late_vendor(void) {
  simulated_vendor = clv_sim_make_vendor(&(clv_sim_options){.seed = 1});
  clv_vendor v = *simulated_vendor;
  v.event_finish = finish_event_late;
  return v;
}

static void call_is_charged_the_measured_device_time(void **state) {
  const uint64_t host_delay_ns = (uint64_t)CALLS * HOST_DELAY_MS * 1000000;
  (void)state;
  clv_vendor v = make_late_vendor();
  v.event_ms = measure_and_count;
  device_times t = measure_times(&v);
  assert_int_equal(n_measurements, CALLS);
  assert_int_equal(t.account_ns, measured_ns);
  assert_in_range(t.account_ns, 1, host_delay_ns / 10);

  v = make_late_vendor();
  v.event_ms = fail_to_measure;
  device_times unmeasured_times = measure_times(&v);
  assert_int_equal(n_measurements, CALLS);
  assert_true(unmeasured_times.account_ns >= host_delay_ns);
  assert_true(unmeasured_times.share_ns >= host_delay_ns &&
              t.share_ns < unmeasured_times.share_ns - host_delay_ns / 2);
  assert_int_equal(unmeasured_times.n_waits, t.n_waits);

  v = make_late_vendor();
  v.event_new = refuse_timed_events;
  v.event_ms = measure_and_count;
  unmeasured_times = measure_times(&v);
  assert_int_equal(n_measurements, 0);
  assert_true(unmeasured_times.account_ns >= host_delay_ns);
  assert_int_equal(unmeasured_times.n_waits, t.n_waits);
}

/* The trace of a context with a step has a row for each piece of work. */
static void trace_rows_show_the_device_time(void **state) {
  clv_err err = {0};
  clv_packet *p;
  world w;
  (void)state;
  clv_vendor v = make_late_vendor();
  begin_on_vendor(&w, &v, NULL);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = make_tensor(&w.n, 1);
  assert_ok(clv_packet_new_call(w.n.pool, 1, get_output_id(0), 0, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, LEAF, false, x, &err));
  clv_packet_set_execution_positions(p, 1, 2, 3, false);
  p->frame.flags |= CLV_FLAG_TRACE;
  clv_node_post(w.n.node, p);
  assert_ok(clv_packet_new_planned_step(w.n.pool, 1, 60, 0, 4, false, 0.125f, &p, &err));
  clv_node_post(w.n.node, p);
  assert_ok(clv_packet_new_prepare(w.n.pool, 1, 1, 1, false, false, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, get_output_id(0), 1, 0, &err));
  clv_node_post(w.n.node, p);
  assert_ok(clv_packet_new_gradient(w.n.pool, 1, 1, get_output_id(0), 0, "", x, &p, &err));
  clv_node_post(w.n.node, p);
  wait_for(&w.n, CLV_FINISHED, 1);
  assert_ok(clv_packet_new_end_context(w.n.pool, 1, 1, &p, &err));
  clv_node_post(w.n.node, p);
  wait_for(&w.n, CLV_ENDED, 1);
  end_world(&w);
  for (int kind = CLV_TRACE_FORWARD; kind <= CLV_TRACE_STEP; kind++) {
    if (kind == CLV_TRACE_BACKWARD) continue; /* the parts of a backward are traced separately */
    assert_int_equal(w.n_trace_rows[kind], 1);
    assert_in_range(w.last_duration_ns[kind], 1, HOST_DELAY_MS * 1000000 / 2);
  }
  free_world(&w);
}

/* A session is charged once per device for the page-locked memory of copies. If its quota is too
 * small for this memory, loading a module fails. */
static void session_is_charged_for_pinned_copy_buffers(void **state) {
  clv_err err = {0};
  world w;
  (void)state;
  begin_world(&w, 1);
  size_t charged_bytes = clv_pool_charged_bytes(w.n.pool), slots = w.device->branch_bytes;
  end_world(&w);
  assert_true(slots >= (size_t)1 << 20 && charged_bytes > slots);
  free_world(&w);

  clv_pool *pool_without_memory;
  clv_node_options o = {.on_program = record_device_answer, .user = &w};
  clv_module *module;
  assert_ok(clv_pool_new(slots / 2, 4096, &pool_without_memory, &err));
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &w.device, &err));
  o.pool = pool_without_memory;
  assert_ok(clv_node_new(&o, &w.n.node, &err));
  clv_module_options so =
      make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), 0);
  so.backend = w.device;
  assert_ok(clv_module_new(&so, &module, &err));
  assert_int_equal(clv_node_add_module(w.n.node, module, &err), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "the host's memory for copies from cuda:0"));
  clv_node_free(w.n.node);
  assert_int_equal(clv_pool_charged_bytes(pool_without_memory), 0);
  clv_pool_unref(pool_without_memory);
  clv_cuda_close(w.device);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static uint64_t count_record_bytes(const clv_module *m) {
  clv_record_counts c;
  clv_recorder_count(m->recorder, &c);
  return c.bytes;
}

static void session_is_charged_for_recorded_graphs(void **state) {
  uint64_t recorded_bytes = 0;
  world w;
  (void)state;
  begin_world(&w, 1);
  for (uint32_t i = 1; i <= STEPS; i++) run_whole_step(&w, i);
  wait_for_steps(&w.n);
  end_world(&w);
  size_t charged_bytes = clv_pool_charged_bytes(w.n.pool);
  for (uint32_t i = 0; i < MODULES; i++) {
    clv_module *m = clv_node_module(w.n.node, i);
    recorded_bytes += count_record_bytes(m);
    for (int k = 0; k < m->n_plans; k++)
      clv_recorder_free_records_of(m->recorder, m->plans[k].plan);
    assert_int_equal(count_record_bytes(m), 0);
  }
  assert_true(recorded_bytes >= MODULES * 1024);
  assert_int_equal(charged_bytes - clv_pool_charged_bytes(w.n.pool), recorded_bytes);
  free_world(&w);
}

/* Calls of several contexts run, the last ones still unfinished when the node is freed. */
static void node_can_be_freed_while_device_work_is_running(void **state) {
  world w;
  (void)state;
  begin_world(&w, 1);
  for (uint32_t i = 1; i <= STEPS; i++) post_calls(&w.n, i);
  wait_for(&w.n, CLV_VALUE, 1);
  end_world(&w);
  free_world(&w);
}

/* ---- the average of the parameters ----------------------------------------------------------- */

enum { N_VALUES = 5000 };

/* Takes three steps with two groups of parameters, and copies the average of the parameters to
 * ret [N_VALUES]. */
static void average_parameters(const clv_backend *b, const float *params, const float *gradients,
                               float *ret) {
  static const clv_optim_span spans[] = {{8, 300, 0}, {2000, 2300, 1}};
  const clv_optim_config c = {.kind = CLV_OPTIM_SGD, .lr = 0.1, .ema = 0.9, .ema_warmup = true};
  const size_t bytes = N_VALUES * sizeof *params;
  const double rates[] = {0.1, 0.2};
  clv_err err = {0};
  clv_optim *o;
  float *p, *g;
  assert_ok(clv_backend_allocate(b, bytes, &p, &err));
  assert_ok(clv_backend_allocate(b, bytes, &g, &err));
  assert_ok(clv_backend_put(b, p, params, bytes, &err));
  assert_ok(clv_backend_put(b, g, gradients, bytes, &err));
  assert_ok(clv_optim_new((clv_optim_config[]){c, c}, 2, bytes, spans, 2, b, &o, &err));
  assert_ok(clv_optim_begin_ema(o, p, &err));
  for (int t = 0; t < 3; t++) clv_optim_step(o, p, g, rates, 1);
  assert_ok(clv_backend_get(b, ret, clv_optim_ema(o), bytes, &err));
  clv_optim_free(o);
  clv_backend_free_memory(b, p);
  clv_backend_free_memory(b, g);
}

static void device_averages_parameters_with_the_bits_of_a_processor(void **state) {
  static float p[N_VALUES], g[N_VALUES], on_device[N_VALUES], on_host[N_VALUES];
  clv_err err = {0};
  clv_backend *device;
  (void)state;
  clv_rng_uniform(&(clv_rng_key){.seed = 1}, -1, 1, p, N_VALUES);
  clv_rng_uniform(&(clv_rng_key){.seed = 2}, -1, 1, g, N_VALUES);
  assert_ok(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){.seed = 7}), 0, &device, &err));
  average_parameters(device, p, g, on_device);
  average_parameters(clv_backend_cpu(), p, g, on_host);
  assert_memory_equal(on_device, on_host, sizeof on_host);
  assert_memory_not_equal(on_device, p, sizeof p);
  clv_cuda_close(device);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(node_thread_never_blocks_on_a_device),
      cmocka_unit_test(device_averages_parameters_with_the_bits_of_a_processor),
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
