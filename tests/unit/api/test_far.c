/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a program whose modules are on a device of the master, in memory that the host cannot
 * touch: its losses, norms and state equal those of the same program on the processor, to the bit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "master/api/core/core.h"
#include "tests/unit/far.h"

enum { ROWS = 6, SIZE = 6, CLASSES = 3, STEPS = 6 };

static const char layers[] =
    "[{op: conv2d, out: 5, kernel: 3, pad: 1}, {op: batchnorm}, {op: relu},"
    " {op: maxpool, kernel: 2}, {op: dropout, p: 0.3}, {op: flatten}, {op: linear, out: 3}]";

static cleave_runtime *rt;
static cleave_error e;

#define MUST(call)                                              \
  do {                                                          \
    if ((call) != CLEAVE_OK) fail_msg("%s: %s", #call, e.text); \
  } while (0)

static int set_up(void **state) {
  static const clv_backend *devices[1];
  const cleave_options o = {.size = sizeof o, .single_thread = true};
  (void)state;
  devices[0] = far_get_backend(clv_backend_cpu());
  if (cleave_open_text("alone", "version: 1\nname: alone\n", &o, &rt, &e) != CLEAVE_OK) return 1;
  rt->platform.other_backends = (clv_backends){devices, 1};
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  return cleave_close(rt, 0, NULL, &e) != CLEAVE_OK || far.n_blocks;
}

typedef struct program {
  cleave_module *network, *loss;
  cleave_optimizer *optimizer;
} program;

static program load_program(const char *device, const char *net, const char *loss) {
  program p;
  cleave_module_options o = {.size = sizeof o, .name = net, .device = device, .seed = 9};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1, SIZE, SIZE);
  MUST(cleave_load_layers(rt, &o, layers, &x, &p.network, &e));
  o.name = loss;
  cleave_input logits = CLEAVE_INPUT(CLEAVE_F32, ROWS, CLASSES);
  MUST(cleave_load_loss(rt, &o, "cross_entropy", &logits, &p.loss, &e));
  assert_string_equal(cleave_module_device(p.network), device);
  cleave_group g = {.modules = &p.network, .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.01};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.05, &p.optimizer, &e));
  return p;
}

static void train_step(const program *p, unsigned step, double ret[2]) {
  float x[ROWS * SIZE * SIZE];
  int64_t labels[ROWS];
  cleave_context_options o = {.size = sizeof o, .step = step + 1};
  cleave_context c;
  cleave_reference in[2], logits, loss_inputs[2], loss;
  cleave_tensor value = {0}, tx = CLEAVE_TENSOR_F32(x, ROWS, 1, SIZE, SIZE),
                ty = {.dtype = CLEAVE_I64, .rank = 1, .shape = {ROWS}, .data = labels};
  cleave_step_result step_result;
  for (size_t i = 0; i < CLV_COUNT(x); i++) x[i] = (float)sin((double)i * 0.7 + step);
  for (int i = 0; i < ROWS; i++) labels[i] = (i + (int)step) % CLASSES;
  MUST(cleave_context_open(rt, &o, &c, &e));
  MUST(cleave_leaf(rt, c, &tx, false, &in[0], &e));
  MUST(cleave_leaf(rt, c, &ty, false, &in[1], &e));
  MUST(cleave_call(rt, c, p->network, in, 1, &logits, &e));
  loss_inputs[0] = logits;
  loss_inputs[1] = in[1];
  MUST(cleave_call(rt, c, p->loss, loss_inputs, 2, &loss, &e));
  MUST(cleave_backward(rt, c, &loss, 1, false, 0, &e));
  MUST(cleave_step(rt, p->optimizer, c, 0, &step_result, &e));
  MUST(cleave_to_here(rt, loss, 0, &value, &e));
  MUST(cleave_context_close(rt, c, 0, &e));
  ret[0] = *(float *)value.data;
  ret[1] = step_result.norm;
  cleave_tensor_free(&value);
}

static void assert_same_state(const program *a, const program *b, cleave_state_kind kind) {
  cleave_state s[2];
  MUST(cleave_state_read(rt, a->network, kind, 0, &s[0], &e));
  MUST(cleave_state_read(rt, b->network, kind, 0, &s[1], &e));
  assert_int_equal(s[0].n, s[1].n);
  assert_true(s[0].n > 3);
  for (size_t i = 0; i < s[0].n; i++) {
    const cleave_tensor *p = &s[0].items[i].tensor, *q = &s[1].items[i].tensor;
    assert_string_equal(s[0].items[i].name, s[1].items[i].name);
    assert_memory_equal(p->data, q->data,
                        cleave_tensor_count(p) * (p->dtype == CLEAVE_I64 ? 8 : 4));
  }
  cleave_state_free(&s[0]);
  cleave_state_free(&s[1]);
}

/* Copies weights and optimiser state from one program to the other. */
static void copy_weights(const program *from, const program *to) {
  for (int kind = CLEAVE_STATE_WEIGHTS; kind <= CLEAVE_STATE_OPTIMIZER; kind++) {
    cleave_state s;
    MUST(cleave_state_read(rt, from->network, (cleave_state_kind)kind, 0, &s, &e));
    MUST(cleave_state_write(rt, to->network, (cleave_state_kind)kind, s.items, s.n, 0, &e));
    cleave_state_free(&s);
  }
}

static void device_training_matches_the_processor(void **state) {
  double on_host[2], on_device[2];
  (void)state;
  program a = load_program("cpu", "net-cpu", "loss-cpu"),
          b = load_program("far:0", "net-far", "loss-far");
  /* the initial weights depend on the name of the module, so the two programs would differ without
   * this copy */
  copy_weights(&a, &b);
  assert_true(far.n_blocks > 0);
  for (unsigned i = 0; i < STEPS; i++) {
    train_step(&a, i, on_host);
    train_step(&b, i, on_device);
    assert_memory_equal(on_host, on_device, sizeof on_host);
  }
  assert_same_state(&a, &b, CLEAVE_STATE_WEIGHTS);
  assert_same_state(&a, &b, CLEAVE_STATE_OPTIMIZER);
}

static void unknown_device_is_refused(void **state) {
  cleave_module_options o = {.size = sizeof o, .name = "none", .device = "far:1"};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, 3);
  cleave_module *m;
  (void)state;
  assert_int_equal(cleave_load_layers(rt, &o, "[{op: relu}]", &x, &m, &e), CLEAVE_INVALID);
  assert_non_null(strstr(e.text, "no device 'far:1' at master, only far:0, cpu, cpu:0 and cpu:1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(device_training_matches_the_processor),
      cmocka_unit_test(unknown_device_is_refused),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
