/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules in memory that the host cannot touch, when there is no more of it, or the device fails:
 * that is an error of who asked, and the node lives. test_work and `make simulate` compare bits.
 */
#include <stdio.h>

#include "tests/unit/engine/contexts_test.h"
#include "tests/unit/far.h"

/* Content of the last packet of each kind. */
typedef struct heard {
  clv_frame_kind kind;
  clv_code code;
  char text[CLV_WIRE_TEXT + 1];
  uint32_t aborts;
} heard;

static void on_result(engine *w, clv_result *r) {
  heard *h = w->user;
  const clv_frame *f = &r->packet->frame;
  h->kind = f->kind;
  h->code = clv_frame_is_failure(f) ? f->failure.code : CLV_OK;
  h->aborts += f->kind == CLV_ABORT;
  if (clv_frame_is_failure(f)) snprintf(h->text, sizeof h->text, "%s", f->failure.text);
  clv_packet_free(r->packet);
}

static void begin_on(engine *w, heard *h, const clv_backend *const *backends) {
  *h = (heard){0};
  *w = (engine){.backend = far_backend(clv_backend_ref()),
                .backends = backends,
                .on_result = on_result,
                .user = h};
  engine_begin(w, 0);
}

static void begin(engine *w, heard *h) { begin_on(w, h, NULL); }

static void end(engine *w) {
  engine_end(w);
  assert_int_equal(far.n_blocks, 0);
}

static void post(engine *w, clv_packet *p) {
  clv_err err = {0};
  assert_ok(engine_packet(w, p, &err));
}

/* Calls a module in a context. arg: another call's value; 0: a leaf. */
static void call_of(engine *w, uint64_t context, uint64_t id, uint32_t module, uint64_t arg,
                    bool deliver) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = arg ? NULL : engine_tensor(w, 1);
  assert_ok(clv_packet_new_call(w->pool, context, id, module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg, arg != 0, x, &err));
  if (deliver) assert_ok(clv_packet_add_delivery(p, "", &err));
  post(w, p);
}

/* Calls module 0 in a context, with the value for the program. */
static void call(engine *w, uint64_t context) { call_of(w, context, 10 * context, 0, 0, true); }

static void backward(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = engine_tensor(w, 0.5f);
  assert_ok(clv_packet_new_prepare(w->pool, context, 1, 0, false, true, false, &p, &err));
  assert_ok(clv_packet_add_needed_call(p, 10 * context, 1, 0, &err));
  post(w, p);
  assert_ok(clv_packet_new_gradient(w->pool, context, 1, 10 * context, 0, "", dy, &p, &err));
  post(w, p);
}

static void apply(engine *w, uint64_t context) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new_apply(w->pool, context, 77, CLV_MODULE_ALL, 1, 0.125f, true, &p, &err));
  post(w, p);
}

static bool reads_weights(engine *w, float *ret) {
  clv_state_item item;
  clv_err err;
  assert_true(clv_module_state_item(w->modules[0], CLV_STATE_WEIGHTS, 0, &item));
  return clv_state_item_get(&item, ret, &err) == CLV_OK;
}

/* Memory runs out at each allocation of a new module in turn. Nothing may stay allocated or
 * charged. */
static void failed_module_alloc_leaves_nothing_charged(void **state) {
  clv_err err = {0};
  clv_pool *pool;
  (void)state;
  assert_ok(clv_pool_new(64 << 20, 4096, &pool, &err));
  bool made = false;
  for (uint64_t nth = 1; !made; nth++) {
    clv_account_options quota = {.owner_in_messages = "this device"};
    clv_account *device;
    clv_module *m = NULL;
    assert_ok(clv_account_new(&quota, &device, &err));
    clv_module_options o = stage_of(graph_of(CLV_OP_BATCHNORM, ROWS, COLUMNS), 0);
    o.backend = far_backend(clv_backend_ref());
    o.optimizer.momentum = 0.5;
    o.pool = pool;
    o.account = device;
    o.batch = ROWS;
    far.fail_take = nth;
    made = clv_module_new(&o, &m, &err) == CLV_OK;
    if (!made) assert_int_equal(err.code, CLV_EXHAUSTED);
    if (made) assert_true(clv_account_usage(device, CLV_QUOTA_BYTES) >= clv_module_bytes(m));
    if (made) assert_string_equal(clv_module_device(m), "far:0");
    clv_module_free(m);
    assert_true(nth > 1 || !made);
    assert_int_equal(far.n_blocks, 0);
    assert_int_equal(clv_account_usage(device, CLV_QUOTA_BYTES), 0);
    clv_account_unref(device);
  }
  far.fail_take = 0;
  assert_int_equal(clv_pool_charged_bytes(pool), 0);
  clv_pool_unref(pool);
}

/* The call's value fails; the next call has memory. */
static void failed_call_alloc_fails_only_that_value(void **state) {
  engine w;
  heard h;
  (void)state;
  begin(&w, &h);
  far.fail_take = 1;
  call(&w, 1);
  assert_int_equal(h.kind, CLV_VALUE);
  assert_int_equal(h.code, CLV_EXHAUSTED);
  call(&w, 2);
  assert_int_equal(h.code, CLV_OK);
  end(&w);
}

/* The context fails because its gradients have no memory; another one has it. */
static void failed_gradient_alloc_fails_only_that_context(void **state) {
  engine w;
  heard h;
  (void)state;
  begin(&w, &h);
  call(&w, 1);
  far.fail_take = 1;
  backward(&w, 1);
  assert_int_equal(h.code, CLV_EXHAUSTED);
  assert_int_equal(h.aborts, 1);
  call(&w, 2);
  backward(&w, 2);
  assert_int_equal(h.kind, CLV_FINISHED);
  apply(&w, 2);
  assert_int_equal(h.kind, CLV_APPLIED);
  end(&w);
}

/* If a forward fails late, its value fails. */
static void late_device_error_fails_the_value(void **state) {
  engine w;
  heard h;
  (void)state;
  begin(&w, &h);
  far.fail_finish = 1;
  call(&w, 1);
  assert_int_equal(h.code, CLV_INTERNAL);
  assert_non_null(strstr(h.text, "the device has gone"));
  call(&w, 2);
  assert_int_equal(h.code, CLV_OK);
  end(&w);
}

enum { BYTES = ROWS * COLUMNS * sizeof(float) };

/* Makes modules 0 and 2, linear layers on two devices, and module 3, a tanh on the first. */
static void begin_on_two(engine *w, heard *h) {
  static const clv_backend *backends[TEST_MODULES];
  for (int i = 0; i < TEST_MODULES; i++) backends[i] = far_device(clv_backend_ref(), i == 2);
  begin_on(w, h, backends);
  far.put = far.got = far.from = 0;
}

/* Asserts bytes copied to the host, from it and between devices since the last call. */
static void assert_moved(uint64_t put, uint64_t got, uint64_t from) {
  assert_int_equal(far.put, put * BYTES);
  assert_int_equal(far.got, got * BYTES);
  assert_int_equal(far.from, from * BYTES);
  far.put = far.got = far.from = 0;
}

static void assert_counted(engine *w, uint32_t module, uint64_t peer, uint64_t device) {
  clv_module_counts c;
  clv_module_count(w->modules[module], &c);
  assert_int_equal(c.peer_bytes, peer * BYTES);
  assert_int_equal(c.device_bytes, device * BYTES);
  assert_int_equal(c.host_bytes, 0);
}

/* Values go from module to module, and so do gradients, two of which are added. */
static void values_between_device_modules_skip_host_memory(void **state) {
  clv_err err = {0};
  clv_packet *p;
  engine w;
  heard h;
  (void)state;
  begin_on_two(&w, &h);
  call_of(&w, 1, 10, 0, 0, false);
  assert_moved(1, 0, 0);
  call_of(&w, 1, 11, 2, 10, true);
  assert_moved(0, 1, 1);
  call_of(&w, 1, 12, 3, 10, true);
  assert_moved(0, 1, 0);
  assert_ok(clv_packet_new_deliver(w.pool, 1, 10, "", &p, &err));
  post(&w, p);
  assert_int_equal(h.code, CLV_OK);
  assert_moved(0, 1, 0); /* the program requests the value after all */
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = engine_tensor(&w, 0.5f);
  assert_ok(clv_packet_new_prepare(w.pool, 1, 1, 0, false, true, false, &p, &err));
  for (uint64_t id = 12; id > 10; id--) {
    assert_ok(clv_packet_add_needed_call(p, id, 1, 0, &err));
    assert_ok(clv_packet_add_target(p, 0, 10, "", (uint32_t)id - 11, &err));
  }
  assert_ok(clv_packet_add_needed_call(p, 10, 2, 0, &err));
  post(&w, p);
  for (uint64_t id = 11; id <= 12; id++) {
    assert_ok(clv_packet_new_gradient(w.pool, 1, 1, id, 0, "", dy, &p, &err));
    post(&w, p);
  }
  assert_int_equal(h.kind, CLV_FINISHED);
  assert_moved(2, 0, 1);
  assert_counted(&w, 0, 1, 1);
  assert_counted(&w, 2, 1, 0);
  assert_counted(&w, 3, 0, 1);
  dy = clv_tensor_unref(dy);
  end(&w);
}

/* A failed allocation, for a value or for its copy, leaves the sessions of the other device
 * alone. */
static void failed_alloc_on_one_device_spares_the_other(void **state) {
  engine w;
  heard h;
  (void)state;
  begin_on_two(&w, &h);
  call_of(&w, 1, 10, 0, 0, true);
  far.fail_take = 1;
  call_of(&w, 1, 11, 2, 10, true);
  assert_int_equal(h.code, CLV_EXHAUSTED);
  call_of(&w, 1, 12, 3, 10, true);
  assert_int_equal(h.code, CLV_OK);
  call_of(&w, 2, 21, 2, 0, true);
  assert_int_equal(h.code, CLV_OK);
  end(&w);
}

/* A step that fails may have changed any part of the state, so it is answered with that error and
 * the module is not used again. nth: the operation that fails, a backup copy or the step. */
static void fails_to_step(uint64_t nth) {
  engine w;
  heard h;
  float weights[ROWS * COLUMNS * COLUMNS];
  begin(&w, &h);
  call(&w, 1);
  backward(&w, 1);
  assert_int_equal(h.kind, CLV_FINISHED);
  far.fail_finish = nth;
  apply(&w, 1);
  assert_int_equal(far.fail_finish, 0);
  assert_int_equal(h.kind, CLV_ERROR);
  assert_int_equal(h.code, CLV_INTERNAL);
  assert_non_null(strstr(h.text, "module 0 has lost its state: the device has gone"));
  call(&w, 2);
  assert_int_equal(h.kind, CLV_VALUE);
  assert_non_null(strstr(h.text, "module 0 has lost its state"));
  assert_true(reads_weights(&w, weights));
  end(&w);
}

static void device_error_in_a_step_marks_the_state_lost(void **state) {
  (void)state;
  fails_to_step(1);
  fails_to_step(2);
}

static void failed_device_alloc_is_not_charged(void **state) {
  clv_err err;
  clv_tensor *t;
  engine w;
  heard h;
  uint64_t charged = 0;
  (void)state;
  begin(&w, &h);
  size_t before = clv_pool_charged_bytes(w.pool);
  far.fail_take = 1;
  assert_int_equal(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err), CLV_EXHAUSTED);
  assert_int_equal(clv_pool_charged_bytes(w.pool), before);
  assert_ok(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err));
  assert_int_equal(clv_pool_charged_bytes(w.pool), before + 5000);
  void *was = t->data;
  clv_tensor_unref(t);
  assert_ok(clv_module_alloc_block(w.modules[0], 5000, &charged, &t, &err)); /* the same again */
  assert_ptr_equal(t->data, was);
  assert_int_equal(clv_pool_charged_bytes(w.pool), before + 5000);
  clv_tensor_unref(t);
  end(&w);
}

/* ---- what is lent ---------------------------------------------------------------------------- */

/* Counts freed tensors; each tells whether the device was waited for. */
static int gone;

static void not_before_it_is_done(void *owner) {
  (void)owner;
  assert_int_equal(far.asked, 0);
  gone++;
}

static clv_tensor *share_weight(const clv_backend *home, float *at) {
  clv_err err = {0};
  clv_tensor *t;
  clv_shape shape = CLV_SHAPE(COLUMNS, COLUMNS);
  assert_ok(clv_tensor_wrap(CLV_F32, &shape, at, not_before_it_is_done, NULL, &t, &err));
  t->device = home;
  return t;
}

/* A module shares only weights in memory of its own device, and waits for the device before it
 * frees them. */
static void shared_weight_of_another_device_is_refused(void **state) {
  static const char *const names[] = {"0.weight"};
  static float host[COLUMNS * COLUMNS];
  clv_err err = {0};
  clv_module *m;
  (void)state;
  const clv_backend *device = far_device(clv_backend_ref(), 0);
  clv_module_options o = stage_of(graph_of(CLV_OP_LINEAR, ROWS, COLUMNS), 0);
  o.backend = device;
  o.is_frozen_for_good = true;
  o.frozen = o.shared_params = names;
  o.n_frozen = o.n_shared_params = 1;
  assert_ok(clv_module_new(&o, &m, &err));
  const clv_backend *homes[] = {NULL, far_device(clv_backend_ref(), 1), device};
  gone = 0;
  for (size_t i = 0; i < CLV_COUNT(homes); i++) {
    clv_tensor *t = share_weight(homes[i], host);
    assert_int_equal(clv_module_set_shared_param(m, names[0], t, &err),
                     i == 2 ? CLV_OK : CLV_INVALID);
    clv_tensor_unref(t);
  }
  assert_int_equal(gone, 2);
  clv_state_item item;
  assert_true(clv_module_state_item(m, CLV_STATE_WEIGHTS, 1, &item)); /* the module's own bias */
  assert_ok(clv_backend_fill(device, item.data, 0, item.bytes, &err));
  assert_int_equal(far.asked, 1);
  clv_module_free(m);
  assert_int_equal(gone, 3);
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
