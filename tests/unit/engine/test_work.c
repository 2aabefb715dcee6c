/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that results do not depend on when started work ends. The same frames go into several
 * engines: in one, work ends at once; in others it ends later, in a random order between modules;
 * in two more, all modules or some compute in device memory that the host cannot touch. All engines
 * must have the same results and the same final modules, to the bit.
 */
#include "tests/unit/engine/contexts_test.h"
#include "tests/unit/far.h"

enum { CONTEXTS = 3, CALLS = 6, PROGRAMS = 150, ORDERS = 3, MAX_FRAMES = 256 };

/* ---- a digest of all results of a program ---------------------------------------------------- */

/* Sum of a hash of each result, because their order is not fixed. */
typedef struct digest {
  uint64_t sum_of_hashes;
  uint32_t n, n_failures;
} digest;

static uint64_t add_to_hash(uint64_t hash, const void *data, size_t n) {
  for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
  return hash;
}

static uint64_t hash_module(clv_module *m, uint64_t hash) {
  clv_err err = {0};
  clv_state_item item;
  char bytes[256];
  for (int what = CLV_STATE_WEIGHTS; what <= CLV_STATE_OPTIMIZER; what++)
    for (uint32_t i = 0; clv_module_state_item(m, (clv_state_kind)what, i, &item); i++) {
      assert_true(item.bytes <= sizeof bytes);
      assert_ok(clv_state_item_get(&item, bytes, &err));
      hash = add_to_hash(hash, bytes, item.bytes);
    }
  return hash;
}

/* Hashes a packet. A message without a value is identified by its sequence number. */
static uint64_t hash_packet(engine *w, const clv_result *r) {
  const clv_frame *f = &r->packet->frame;
  bool has_value = f->kind == CLV_VALUE || f->kind == CLV_GRADIENT;
  const uint64_t key[] = {(uint64_t)r->kind, (uint64_t)f->kind, f->context,
                          has_value ? f->message_id : f->reply_to, f->backward_pass_number};
  uint64_t hash = add_to_hash(14695981039346656037u, key, sizeof key);
  for (uint32_t i = 0; i < f->n_tensors; i++)
    hash = add_to_hash(hash, r->packet->tensor[i]->data, r->packet->tensor[i]->bytes);
  return r->kind == CLV_RESULT_STATE ? hash_module(w->modules[f->module], hash) : hash;
}

static void add_result_to_digest(engine *w, clv_result *r) {
  digest *d = w->user;
  d->sum_of_hashes += hash_packet(w, r);
  d->n++;
  d->n_failures += clv_frame_is_failure(&r->packet->frame) || r->kind == CLV_RESULT_REFUSED;
  clv_packet_free(r->packet);
}

/* ---- random programs ------------------------------------------------------------------------- */

typedef struct program {
  uint64_t seed;
  engine *w;
  clv_packet *frames[CONTEXTS][MAX_FRAMES];
  uint32_t n[CONTEXTS], next_frame[CONTEXTS], n_before_step[CONTEXTS];
} program;

/* Returns the id of a call. Later calls of a context have larger ids. */
static uint64_t get_call_id(uint32_t context, uint32_t call) {
  return 100 + CONTEXTS * call + context;
}

static void add_frame(program *g, uint32_t context, clv_packet *p) {
  assert_true(g->n[context] < MAX_FRAMES);
  g->frames[context][g->n[context]++] = p;
}

/* Adds a CALL whose argument is an earlier call's value or a leaf. The seed draws whether the CALL,
 * or a later DELIVER, requests its value for the program. is_planned: forward, backward and
 * parameter gradients have positions. */
static void add_call(program *g, uint32_t c, uint32_t i, const uint32_t *arg_calls,
                     bool is_planned) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp)
  clv_tensor *x = arg_calls[i] ? NULL : engine_make_tensor(g->w, (float)i);
  uint32_t module = draw_below(&g->seed, TEST_MODULES), position_offset = 2 * (CALLS - 1 - i);
  assert_ok(clv_packet_new_call(g->w->pool, c + 1, get_call_id(c, i + 1), module, true, &p, &err));
  assert_ok(clv_packet_add_arg(p, arg_calls[i] ? get_call_id(c, arg_calls[i]) : 0, true, x, &err));
  if (draw_below(&g->seed, 3)) assert_ok(clv_packet_add_delivery(p, "", &err));
  if (is_planned)
    clv_packet_set_execution_positions(p, i + 1, CALLS + 1 + position_offset,
                                       CALLS + 2 + position_offset, false);
  add_frame(g, c, p);
}

/* Adds a DELIVER for some calls; the CALL may have requested the same value already. */
static void add_deliveries(program *g, uint32_t c) {
  clv_err err = {0};
  clv_packet *p;
  for (uint32_t i = 0; i < CALLS; i++) {
    if (draw_below(&g->seed, 3)) continue;
    assert_ok(clv_packet_new_deliver(g->w->pool, c + 1, get_call_id(c, i + 1), "", &p, &err));
    add_frame(g, c, p);
  }
}

/* Returns the position of call i's gradient in the sum for its argument: after the program's
 * gradient and those of earlier calls. */
static uint32_t get_gradient_position(const uint32_t *arg_calls, uint32_t i) {
  uint32_t n = 1;
  for (uint32_t k = 0; k < i; k++) n += arg_calls[k] == arg_calls[i];
  return n;
}

/* Adds a PREPARE and the gradients of the program. Each call gets a gradient from the program, and
 * one from each call that uses its value. */
static void add_backward(program *g, uint32_t c, const uint32_t *arg_calls) {
  clv_err err = {0};
  clv_packet *p;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *dy = engine_make_tensor(g->w, 0.25f);
  assert_ok(clv_packet_new_prepare(g->w->pool, c + 1, 1, 0, false, true, false, &p, &err));
  for (uint32_t i = CALLS; i-- > 0;) {
    uint32_t n = 1;
    for (uint32_t k = i + 1; k < CALLS; k++) n += arg_calls[k] == i + 1;
    assert_ok(clv_packet_add_needed_call(p, get_call_id(c, i + 1), n, 0, &err));
    if (arg_calls[i])
      assert_ok(clv_packet_add_target(p, 0, get_call_id(c, arg_calls[i]), "",
                                      get_gradient_position(arg_calls, i), &err));
  }
  add_frame(g, c, p);
  for (uint32_t i = 0; i < CALLS; i++) {
    uint64_t id = get_call_id(c, i + 1);
    assert_ok(clv_packet_new_gradient(g->w->pool, c + 1, 1, id, 0, "", dy, &p, &err));
    add_frame(g, c, p);
  }
}

/* Adds an APPLY, a request for the weights of a module, and an END_CONTEXT, which may request a
 * step, too. */
static void add_step(program *g, uint32_t c) {
  clv_err err = {0};
  clv_packet *p;
  clv_pool *pool = g->w->pool;
  bool is_applied = draw_below(&g->seed, 4) > 0;
  assert_ok(
      clv_packet_new_apply(pool, c + 1, 90 + c, CLV_MODULE_ALL, 1, 0.125f, is_applied, &p, &err));
  add_frame(g, c, p);
  uint32_t module = draw_below(&g->seed, TEST_MODULES);
  assert_ok(clv_packet_new_state_get(pool, 0, 80 + c, module, CLV_STATE_WEIGHTS, &p, &err));
  add_frame(g, c, p);
  assert_ok(clv_packet_new_end_context(pool, c + 1, 70 + c, &p, &err));
  if (draw_below(&g->seed, 2)) clv_packet_set_end_commit(p, 1, 0.25f, draw_below(&g->seed, 4) > 0);
  add_frame(g, c, p);
}

static void add_planned_steps(program *g, uint32_t c) {
  clv_err err = {0};
  clv_packet *p;
  uint32_t at = 3 * CALLS;
  for (uint32_t module = 0; module < 3; module++) {
    assert_ok(
        clv_packet_new_planned_step(g->w->pool, c + 1, 60, module, ++at, false, 0.125f, &p, &err));
    add_frame(g, c, p);
  }
}

static void make_context_frames(program *g, uint32_t c, bool is_planned) {
  uint32_t arg[CALLS];
  for (uint32_t i = 0; i < CALLS; i++) {
    arg[i] = draw_below(&g->seed, i + 1);
    add_call(g, c, i, arg, is_planned);
  }
  add_deliveries(g, c);
  if (is_planned) add_planned_steps(g, c);
  add_backward(g, c, arg);
  g->n_before_step[c] = g->n[c];
  add_step(g, c);
}

/* Sends the next frame of context c, unless n_frames frames of that context have been sent. */
static void send_next_frame(program *g, uint32_t c, uint32_t n_frames) {
  clv_err err = {0};
  if (g->next_frame[c] < n_frames)
    assert_ok(engine_handle_packet(g->w, g->frames[c][g->next_frame[c]++], &err));
  /* the engine has waited for all work of the device, so that another thread may continue with the
   * results */
  assert_int_equal(far.n_unfinished, 0);
}

static void send_in_any_order(program *g, const uint32_t *n_frames) {
  while (g->next_frame[0] < n_frames[0] || g->next_frame[1] < n_frames[1] ||
         g->next_frame[2] < n_frames[2]) {
    uint32_t c = draw_below(&g->seed, CONTEXTS);
    send_next_frame(g, c, n_frames[c]);
  }
}

/* Runs one program: a context with positions, or several whose frames are interleaved by the
 * seed. */
static digest run_program(uint64_t seed, uint64_t order_seed, const clv_backend *const *backends) {
  digest d = {0};
  engine w = {.backends = backends, .on_result = add_result_to_digest, .user = &d};
  program g = {.seed = seed, .w = &w};
  engine_open(&w, order_seed);
  bool is_planned = draw_below(&g.seed, 3) == 0;
  for (uint32_t c = 0; c < (is_planned ? 1 : CONTEXTS); c++) make_context_frames(&g, c, is_planned);
  for (uint32_t i = 0; i < CALLS * CONTEXTS; i++)
    send_next_frame(&g, i % CONTEXTS, g.n[i % CONTEXTS]);
  if (draw_below(&g.seed, 4)) send_in_any_order(&g, g.n_before_step);
  send_in_any_order(&g, g.n);
  engine_run_work(&w, true);
  for (uint32_t i = 0; i < TEST_MODULES; i++) d.sum_of_hashes += hash_module(w.modules[i], i);
  engine_close(&w);
  return d;
}

static const clv_backend *const *get_backends(uint64_t order_seed) {
  static const clv_backend *backends[2][TEST_MODULES];
  for (int i = 0; i < TEST_MODULES; i++) backends[0][i] = far_get_device(clv_backend_ref(), 0);
  for (int i = 0; i < TEST_MODULES; i++)
    backends[1][i] = i < 3 ? far_get_device(clv_backend_ref(), i % 2) : clv_backend_ref();
  return order_seed > ORDERS ? backends[order_seed - ORDERS - 1] : NULL;
}

static void asynchronous_work_gives_the_same_bits(void **state) {
  uint32_t failures = 0;
  (void)state;
  for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
    digest want = run_program(seed, 0, NULL);
    failures += want.n_failures;
    for (uint64_t order = 1; order <= ORDERS + 2; order++) {
      digest got = run_program(seed, 7 * seed + order, get_backends(order));
      if (got.sum_of_hashes != want.sum_of_hashes || got.n != want.n)
        fail_msg("program %u, order %u: %u results of %u, or other bits", (unsigned)seed,
                 (unsigned)order, got.n, want.n);
      assert_int_equal(far.n_blocks, 0);
    }
  }
  assert_true(far.bytes_between_devices);
  assert_in_range(failures, 1, PROGRAMS); /* most programs succeed, and some do not */
}

/* Calls a module with running statistics twice. The second call fails, because it has a wrong
 * number of arguments. */
static void failing_call_does_not_overtake_running_work(void **state) {
  clv_err err = {0};
  clv_packet *p;
  engine w = {0};
  (void)state;
  engine_open(&w, 1);
  w.holds_started_work = true;
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(&w, 1);
  for (uint64_t id = 20; id >= 15; id -= 5) {
    assert_ok(clv_packet_new_call(w.pool, 1, id, 1, true, &p, &err));
    for (uint64_t n = id; n <= 20; n += 5) assert_ok(clv_packet_add_arg(p, 0, false, x, &err));
    assert_ok(engine_handle_packet(&w, p, &err));
  }
  assert_int_equal(w.n_started_work, 1);
  engine_run_work(&w, true);
  assert_int_equal(w.contexts->counts.calls_waiting, 0);
  x = clv_tensor_unref(x);
  engine_close(&w);
}

/* If work of several modules is ready at once, it starts in the order in which it became ready. */
static void ready_work_starts_in_order(void **state) {
  static const uint32_t modules[] = {2, 0, 3, 2};
  clv_err err = {0};
  clv_packet *p;
  bool is_kept;
  engine w = {0};
  (void)state;
  engine_open(&w, 1);
  w.holds_started_work = true;
  for (uint32_t i = 0; i < CLV_COUNT(modules); i++) {
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = engine_make_tensor(&w, 1);
    assert_ok(clv_packet_new_call(w.pool, 1, 20 + i, modules[i], true, &p, &err));
    assert_ok(clv_packet_add_arg(p, 0, false, x, &err));
    assert_ok(clv_contexts_handle_packet(w.contexts, p, &is_kept, &err));
    if (!is_kept) clv_packet_free(p);
  }
  assert_int_equal(w.n_started_work, 0);
  engine_run_work(&w, false);
  assert_int_equal(w.n_started_work, 3);
  for (uint32_t i = 0; i < w.n_started_work; i++)
    assert_int_equal(w.started_work[i]->module, modules[i]);
  engine_close(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ready_work_starts_in_order),
      cmocka_unit_test(failing_call_does_not_overtake_running_work),
      cmocka_unit_test(asynchronous_work_gives_the_same_bits),
  };
  return cmocka_run_group_tests_name("work", tests, NULL, NULL);
}
