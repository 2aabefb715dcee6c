/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests modules in device memory that the host cannot touch. If that memory is exhausted or the
 * device fails, the caller gets an error, and the node continues. test_work and `make simulate`
 * compare the bits of such modules with those in host memory.
 */
#include <stdio.h>

#include "tests/unit/engine/contexts_test.h"
#include "tests/unit/far.h"

/* Content of the last packet that the program has received, for each kind. */
typedef struct received_results {
  clv_frame_kind last_kind;
  clv_code last_code;
  char last_error[CLV_WIRE_TEXT + 1];
  uint32_t n_aborts;
} received_results;

static void record_result(engine *w, clv_result *r) {
  received_results *h = w->user;
  const clv_frame *f = &r->packet->frame;
  h->last_kind = f->kind;
  h->last_code = clv_frame_is_failure(f) ? f->failure.code : CLV_OK;
  h->n_aborts += f->kind == CLV_ABORT;
  if (clv_frame_is_failure(f)) snprintf(h->last_error, sizeof h->last_error, "%s", f->failure.text);
  clv_packet_free(r->packet);
}

static void begin_engine_on(engine *w, received_results *h, const clv_backend *const *backends) {
  *h = (received_results){0};
  *w = (engine){.backend = far_get_backend(clv_backend_ref()),
                .backends = backends,
                .on_result = record_result,
                .user = h};
  engine_open(w, 0);
}

static void begin_engine(engine *w, received_results *h) { begin_engine_on(w, h, NULL); }

static void end_engine(engine *w) {
  engine_close(w);
  assert_int_equal(far.n_blocks, 0);
}

static void send_packet(engine *w, clv_packet *p) {
  clv_err err = {0};
  assert_ok(engine_handle_packet(w, p, &err));
}

/* Calls a module in a context. arg: id of the value of another call; 0: a leaf, sent with the
 * CALL. */
static void send_call(engine *w, uint64_t context, uint64_t id, uint32_t module, uint64_t arg,
                      bool deliver) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = arg ? NULL : engine_make_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg, arg != 0, x, &err));
  if (deliver) assert_ok(clv_packet_add_delivery(p, "", &err));
  send_packet(w, p);
}

/* Calls module 0 in a context. The value of the call is delivered to the program. */
static void send_call_of_module_0(engine *w, uint64_t context) {
  send_call(w, context, 10 * context, 0, 0, true);
}

static void send_backward(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = engine_make_tensor(w, 0.5f);
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, 0, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 10 * context, 1, 0, &err));
  send_packet(w, p);
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, 10 * context, 0, "", dy, &p, &err));
  send_packet(w, p);
}

static void send_apply(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_apply(w->pool, context, 77, CLV_MODULE_ALL, 1, 0.125f, true, &p, &err));
  send_packet(w, p);
}

static bool read_first_weight(engine *w, float *ret) {
  clv_state_item item;
  clv_err err;
  assert_true(clv_module_state_item(w->modules[0], CLV_STATE_WEIGHTS, 0, &item));
  return clv_state_item_get(&item, ret, &err) == CLV_OK;
}

/* Each allocation of a new module fails in turn. No memory may stay allocated or charged. */
static void failed_module_alloc_leaves_nothing_charged(void **state) {
  clv_err err = {0};
  clv_pool *pool;
  (void)state;
  assert_ok(clv_pool_new(64 << 20, 4096, &pool, &err));
  bool is_made = false;
  for (uint64_t failing_allocation = 1; !is_made; failing_allocation++) {
    clv_account_options quota = {.owner_in_messages = "this device"};
    clv_account *device_account;
    clv_module *m = NULL;
    assert_ok(clv_account_new(&quota, &device_account, &err));
    clv_module_options o =
        make_module_options(make_one_layer_graph(CLV_OP_BATCHNORM, ROWS, COLUMNS), 0);
    o.backend = far_get_backend(clv_backend_ref());
    o.optimizer.momentum = 0.5;
    o.pool = pool;
    o.account = device_account;
    o.batch = ROWS;
    far.failing_allocation = failing_allocation;
    is_made = clv_module_new(&o, &m, &err) == CLV_OK;
    if (!is_made) assert_int_equal(err.code, CLV_EXHAUSTED);
    if (is_made)
      assert_true(clv_account_usage(device_account, CLV_QUOTA_BYTES) >= clv_module_bytes(m));
    if (is_made) assert_string_equal(clv_module_device(m), "far:0");
    clv_module_free(m);
    assert_true(failing_allocation > 1 || !is_made);
    assert_int_equal(far.n_blocks, 0);
    assert_int_equal(clv_account_usage(device_account, CLV_QUOTA_BYTES), 0);
    clv_account_unref(device_account);
  }
  far.failing_allocation = 0;
  assert_int_equal(clv_pool_charged_bytes(pool), 0);
  clv_pool_unref(pool);
}

/* If memory for a call cannot be allocated, its value fails. The next call succeeds. */
static void failed_call_alloc_fails_only_that_value(void **state) {
  engine w;
  received_results h;
  (void)state;
  begin_engine(&w, &h);
  far.failing_allocation = 1;
  send_call_of_module_0(&w, 1);
  assert_int_equal(h.last_kind, CLV_VALUE);
  assert_int_equal(h.last_code, CLV_EXHAUSTED);
  send_call_of_module_0(&w, 2);
  assert_int_equal(h.last_code, CLV_OK);
  end_engine(&w);
}

/* If memory for gradients cannot be allocated, the context fails. Another context succeeds. */
static void failed_gradient_alloc_fails_only_that_context(void **state) {
  engine w;
  received_results h;
  (void)state;
  begin_engine(&w, &h);
  send_call_of_module_0(&w, 1);
  far.failing_allocation = 1;
  send_backward(&w, 1);
  assert_int_equal(h.last_code, CLV_EXHAUSTED);
  assert_int_equal(h.n_aborts, 1);
  send_call_of_module_0(&w, 2);
  send_backward(&w, 2);
  assert_int_equal(h.last_kind, CLV_FINISHED);
  send_apply(&w, 2);
  assert_int_equal(h.last_kind, CLV_APPLIED);
  end_engine(&w);
}

/* If the device reports the failure of a forward later, the value of that forward fails. */
static void late_device_error_fails_the_value(void **state) {
  engine w;
  received_results h;
  (void)state;
  begin_engine(&w, &h);
  far.failing_finish = 1;
  send_call_of_module_0(&w, 1);
  assert_int_equal(h.last_code, CLV_INTERNAL);
  assert_non_null(strstr(h.last_error, "the device has gone"));
  send_call_of_module_0(&w, 2);
  assert_int_equal(h.last_code, CLV_OK);
  end_engine(&w);
}

enum { BYTES = ROWS * COLUMNS * sizeof(float) };

/* Makes modules 0 and 2, linear layers on two devices, and module 3, a tanh on the first. */
static void begin_engine_on_two_devices(engine *w, received_results *h) {
  static const clv_backend *backends[TEST_MODULES];
  for (int i = 0; i < TEST_MODULES; i++) backends[i] = far_get_device(clv_backend_ref(), i == 2);
  begin_engine_on(w, h, backends);
  far.bytes_from_host = far.bytes_to_host = far.bytes_between_devices = 0;
}

/* Asserts how many blocks were copied to a device, from a device and between devices since the last
 * call of this function. */
static void assert_copied_bytes(uint64_t n_to_device, uint64_t n_to_host,
                                uint64_t n_between_devices) {
  assert_int_equal(far.bytes_from_host, n_to_device * BYTES);
  assert_int_equal(far.bytes_to_host, n_to_host * BYTES);
  assert_int_equal(far.bytes_between_devices, n_between_devices * BYTES);
  far.bytes_from_host = far.bytes_to_host = far.bytes_between_devices = 0;
}

static void assert_counted_bytes(engine *w, uint32_t module, uint64_t n_from_peers,
                                 uint64_t n_from_host) {
  clv_module_counts c;
  clv_module_count(w->modules[module], &c);
  assert_int_equal(c.peer_bytes, n_from_peers * BYTES);
  assert_int_equal(c.device_bytes, n_from_host * BYTES);
  assert_int_equal(c.host_bytes, 0);
}

/* Values and gradients are passed between modules on devices without a copy in host memory. Two of
 * the gradients are added. */
static void values_between_device_modules_skip_host_memory(void **state) {
  clv_err err = {0};
  clv_packet *p;
  engine w;
  received_results h;
  (void)state;
  begin_engine_on_two_devices(&w, &h);
  send_call(&w, 1, 10, 0, 0, false);
  assert_copied_bytes(1, 0, 0);
  send_call(&w, 1, 11, 2, 10, true);
  assert_copied_bytes(0, 1, 1);
  send_call(&w, 1, 12, 3, 10, true);
  assert_copied_bytes(0, 1, 0);
  assert_ok(clv_packet_new_deliver(w.pool, 1, 10, "", &p, &err));
  send_packet(&w, p);
  assert_int_equal(h.last_code, CLV_OK);
  /* the program requests value 10 only now, so the value is copied to the host */
  assert_copied_bytes(0, 1, 0);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = engine_make_tensor(&w, 0.5f);
  assert_ok(clv_packet_new_prepare(w.pool, 1, 1, 0, false, true, false, &p, &err));
  for (uint64_t id = 12; id > 10; id--) {
    assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
    assert_ok(clv_packet_add_target(p, 0, 10, "", (uint32_t)id - 11, &err));
  }
  assert_ok(clv_packet_add_needed_call(p, 10, 2, 0, &err));
  send_packet(&w, p);
  for (uint64_t id = 11; id <= 12; id++) {
    assert_ok(clv_packet_new_gradient(w.pool, 1, 1, id, 0, "", dy, &p, &err));
    send_packet(&w, p);
  }
  assert_int_equal(h.last_kind, CLV_FINISHED);
  assert_copied_bytes(2, 0, 1);
  assert_counted_bytes(&w, 0, 1, 1);
  assert_counted_bytes(&w, 2, 1, 0);
  assert_counted_bytes(&w, 3, 0, 1);
  dy = clv_tensor_unref(dy);
  end_engine(&w);
}

/* If an allocation on one device fails, for a value or for its copy, modules on the other device
 * still compute. */
static void failed_alloc_on_one_device_spares_the_other(void **state) {
  engine w;
  received_results h;
  (void)state;
  begin_engine_on_two_devices(&w, &h);
  send_call(&w, 1, 10, 0, 0, true);
  far.failing_allocation = 1;
  send_call(&w, 1, 11, 2, 10, true);
  assert_int_equal(h.last_code, CLV_EXHAUSTED);
  send_call(&w, 1, 12, 3, 10, true);
  assert_int_equal(h.last_code, CLV_OK);
  send_call(&w, 2, 21, 2, 0, true);
  assert_int_equal(h.last_code, CLV_OK);
  end_engine(&w);
}

/* Makes the nth wait for the device in a step fail: that of a backup copy or of the step itself.
 * The step may have changed any part of the state, so its answer is that error and the module
 * refuses further calls. */
static void assert_step_fails(uint64_t nth) {
  engine w;
  received_results h;
  float weights[ROWS * COLUMNS * COLUMNS];
  begin_engine(&w, &h);
  send_call_of_module_0(&w, 1);
  send_backward(&w, 1);
  assert_int_equal(h.last_kind, CLV_FINISHED);
  far.failing_finish = nth;
  send_apply(&w, 1);
  assert_int_equal(far.failing_finish, 0);
  assert_int_equal(h.last_kind, CLV_ERROR);
  assert_int_equal(h.last_code, CLV_INTERNAL);
  assert_non_null(strstr(h.last_error, "module 0 has lost its state: the device has gone"));
  send_call_of_module_0(&w, 2);
  assert_int_equal(h.last_kind, CLV_VALUE);
  assert_non_null(strstr(h.last_error, "module 0 has lost its state"));
  assert_true(read_first_weight(&w, weights));
  end_engine(&w);
}

static void device_error_in_a_step_marks_the_state_lost(void **state) {
  (void)state;
  assert_step_fails(1);
  assert_step_fails(2);
}

static void failed_device_alloc_is_not_charged(void **state) {
  clv_err err;
  clv_tensor *t;
  engine w;
  received_results h;
  uint64_t charged = 0;
  (void)state;
  begin_engine(&w, &h);
  size_t before = clv_pool_charged_bytes(w.pool);
  far.failing_allocation = 1;
  assert_int_equal(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err), CLV_EXHAUSTED);
  assert_int_equal(clv_pool_charged_bytes(w.pool), before);
  assert_ok(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err));
  assert_int_equal(clv_pool_charged_bytes(w.pool), before + 5000);
  void *freed_address = t->data;
  clv_tensor_unref(t);
  /* allocates a block of the same size again */
  assert_ok(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err));
  assert_ptr_equal(t->data, freed_address);
  assert_int_equal(clv_pool_charged_bytes(w.pool), before + 5000);
  clv_tensor_unref(t);
  end_engine(&w);
}

/* ---- weights that modules share -------------------------------------------------------------- */

/* number of shared weights that were released */
static int n_freed;

/* Release function of a shared weight: counts the call, and asserts that the module has waited for
 * the device before. */
static void release_shared_weight(void *owner) {
  (void)owner;
  assert_int_equal(far.n_unfinished, 0);
  n_freed++;
}

static clv_tensor *make_shared_weight(const clv_backend *backend, float *at) {
  clv_err err = {0};
  clv_tensor *t;
  clv_shape shape = CLV_SHAPE(COLUMNS, COLUMNS);
  assert_ok(clv_tensor_wrap(CLV_F32, &shape, at, release_shared_weight, NULL, &t, &err));
  t->device = backend;
  return t;
}

/* A module shares only weights in memory of its own device, and waits for the device before it
 * frees them. */
static void shared_weight_of_another_device_is_refused(void **state) {
  static const char *const names[] = {"0.weight"};
  static float weight_in_host_memory[COLUMNS * COLUMNS];
  clv_err err = {0};
  clv_module *m;
  (void)state;
  const clv_backend *device = far_get_device(clv_backend_ref(), 0);
  clv_module_options o = make_module_options(make_one_layer_graph(CLV_OP_LINEAR, ROWS, COLUMNS), 0);
  o.backend = device;
  o.is_frozen_for_good = true;
  o.frozen = o.shared_params = names;
  o.n_frozen = o.n_shared_params = 1;
  assert_ok(clv_module_new(&o, &m, &err));
  const clv_backend *backends[] = {NULL, far_get_device(clv_backend_ref(), 1), device};
  n_freed = 0;
  for (size_t i = 0; i < CLV_COUNT(backends); i++) {
    clv_tensor *t = make_shared_weight(backends[i], weight_in_host_memory);
    assert_int_equal(clv_module_set_shared_param(m, names[0], t, &err),
                     i == 2 ? CLV_OK : CLV_INVALID);
    clv_tensor_unref(t);
  }
  assert_int_equal(n_freed, 2);
  clv_state_item item;
  /* writes the bias, which is not among the shared weights, on the device */
  assert_true(clv_module_state_item(m, CLV_STATE_WEIGHTS, 1, &item));
  assert_ok(clv_backend_fill(device, item.data, 0, item.bytes, &err));
  assert_int_equal(far.n_unfinished, 1);
  clv_module_free(m);
  assert_int_equal(n_freed, 3);
  assert_int_equal(far.n_blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(failed_module_alloc_leaves_nothing_charged),
      cmocka_unit_test(failed_call_alloc_fails_only_that_value),
      cmocka_unit_test(failed_gradient_alloc_fails_only_that_context),
      cmocka_unit_test(late_device_error_fails_the_value),
      cmocka_unit_test(values_between_device_modules_skip_host_memory),
      cmocka_unit_test(failed_alloc_on_one_device_spares_the_other),
      cmocka_unit_test(device_error_in_a_step_marks_the_state_lost),
      cmocka_unit_test(failed_device_alloc_is_not_charged),
      cmocka_unit_test(shared_weight_of_another_device_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
