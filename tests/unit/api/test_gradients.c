/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares gradients with numbers computed by hand, for y = W x + b in this process. In some tests
 * the program gives an output gradient to backward, in others it overwrites the gradients before a
 * step.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h requires the headers above */
#include <cmocka.h>

#include "master/api/core/core.h"

enum { ROWS = 4, IN = 3, OUT = 2 };

static cleave_runtime *rt;
static cleave_error e;

#define MUST(call)                                              \
  do {                                                          \
    if ((call) != CLEAVE_OK) fail_msg("%s: %s", #call, e.text); \
  } while (0)

static int setup(void **state) {
  (void)state;
  return cleave_open_text("alone", "version: 1\nname: alone\n", NULL, &rt, &e) != CLEAVE_OK;
}

static int teardown(void **state) {
  (void)state;
  return cleave_close(rt, 0, NULL, &e) != CLEAVE_OK;
}

typedef struct run {
  cleave_module *module;
  cleave_optimizer *optimizer;
  cleave_context context;
  cleave_reference x, y;
  float in[ROWS * IN], given_gradient[ROWS * OUT];
  cleave_tensor weight_before; /* weight before the step */
} run;

static void load_module(run *r, const char *name, double clip_norm) {
  cleave_module_options o = {.size = sizeof o, .name = name, .seed = 5};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, IN);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &x, &r->module, &e));
  const cleave_group g = {.modules = &r->module, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, clip_norm, &r->optimizer, &e));
  for (int i = 0; i < ROWS * IN; i++) r->in[i] = (float)(i % 5) - 2;
  for (int i = 0; i < ROWS * OUT; i++) r->given_gradient[i] = (float)(i % 3) - 0.5f;
}

static void call_module(run *r) {
  cleave_tensor x = CLEAVE_TENSOR_F32(r->in, ROWS, IN);
  MUST(cleave_leaf(rt, r->context, &x, true, &r->x, &e));
  MUST(cleave_call(rt, r->context, r->module, &r->x, 1, &r->y, &e));
}

static void call_in_new_context(run *r) {
  MUST(cleave_context_open(rt, NULL, &r->context, &e));
  call_module(r);
}

static void run_backward(run *r) {
  cleave_tensor g = CLEAVE_TENSOR_F32(r->given_gradient, ROWS, OUT);
  const cleave_backward_options o = {.size = sizeof o, .gradients = &g};
  MUST(cleave_backward_with(rt, r->context, &r->y, 1, &o, &e));
}

static void begin_run(run *r, const char *name, double clip_norm) {
  load_module(r, name, clip_norm);
  call_in_new_context(r);
  MUST(cleave_weight_read(rt, r->module, "0.weight", 0, &r->weight_before, &e));
  run_backward(r);
}

static void end_run(run *r) {
  MUST(cleave_context_close(rt, r->context, 0, &e));
  cleave_tensor_free(&r->weight_before);
}

/* The test gives a linear layer with weight W the output gradient g. Then dW = g^T x is the
 * gradient of the weight, and dx = g W that of the input. */
static void given_gradient_is_propagated_to_weights_and_inputs(void **state) {
  run r = {0};
  cleave_gradients gradients;
  (void)state;
  begin_run(&r, "flows", 0);
  MUST(cleave_gradients_read(rt, r.context, 0, &gradients, &e));
  assert_int_equal(gradients.n, 3);
  const float *dw = gradients.items[0].tensor.data, *dx = gradients.items[2].tensor.data;
  const float *w = r.weight_before.data;
  for (int o = 0; o < OUT; o++)
    for (int i = 0; i < IN; i++) {
      float sum = 0;
      for (int k = 0; k < ROWS; k++) sum += r.given_gradient[k * OUT + o] * r.in[k * IN + i];
      assert_true(fabsf(dw[o * IN + i] - sum) < 1e-5f);
    }
  for (int k = 0; k < ROWS; k++)
    for (int i = 0; i < IN; i++) {
      float sum = r.given_gradient[k * OUT] * w[i] + r.given_gradient[k * OUT + 1] * w[IN + i];
      assert_true(fabsf(dx[k * IN + i] - sum) < 1e-5f);
    }
  cleave_gradients_free(&gradients);
  end_run(&r);
}

static void step_uses_written_gradients(void **state) {
  run r = {0};
  cleave_step_result step_result;
  cleave_tensor weight_after = {0};
  float weight_gradient[OUT * IN] = {3, 0, 0, 0, 4, 0}, bias_gradient[OUT] = {0};
  const cleave_tensor dw = CLEAVE_TENSOR_F32(weight_gradient, OUT, IN),
                      db = CLEAVE_TENSOR_F32(bias_gradient, OUT);
  (void)state;
  begin_run(&r, "written", 1);
  MUST(cleave_gradient_write(rt, r.context, r.module, "0.weight", &dw, 0, &e));
  MUST(cleave_gradient_write(rt, r.context, r.module, "0.bias", &db, 0, &e));
  MUST(cleave_step(rt, r.optimizer, r.context, 0, &step_result, &e));
  assert_true(step_result.applied && step_result.norm == 5);
  MUST(cleave_weight_read(rt, r.module, "0.weight", 0, &weight_after, &e));
  /* the step clips the gradient, whose norm is 5, to a norm of 1 */
  for (int i = 0; i < OUT * IN; i++)
    assert_true(fabsf(((float *)weight_after.data)[i] - (((float *)r.weight_before.data)[i] -
                                                         0.5f * weight_gradient[i] / 5)) < 1e-5f);
  cleave_tensor_free(&weight_after);
  end_run(&r);
}

static void non_finite_gradient_skips_the_step_until_overwritten(void **state) {
  run r = {0};
  cleave_step_result done;
  float bias[OUT] = {NAN, 1};
  const cleave_tensor db = CLEAVE_TENSOR_F32(bias, OUT);
  (void)state;
  load_module(&r, "not finite", 0);
  for (int is_overwritten = 0; is_overwritten < 2; is_overwritten++) {
    call_in_new_context(&r);
    r.given_gradient[0] = is_overwritten ? NAN : 1;
    run_backward(&r);
    MUST(cleave_gradient_write(rt, r.context, r.module, "0.bias", &db, 0, &e));
    MUST(cleave_step(rt, r.optimizer, r.context, 0, &done, &e));
    assert_false(done.applied);
    end_run(&r);
  }
  call_in_new_context(&r);
  run_backward(&r); /* this backward makes the gradient NaN */
  const float none[OUT * IN] = {0};
  const cleave_tensor dw = CLEAVE_TENSOR_F32(none, OUT, IN);
  bias[0] = 1;
  MUST(cleave_gradient_write(rt, r.context, r.module, "0.bias", &db, 0, &e));
  MUST(cleave_gradient_write(rt, r.context, r.module, "0.weight", &dw, 0, &e));
  MUST(cleave_step(rt, r.optimizer, r.context, 0, &done, &e));
  assert_true(done.applied);
  end_run(&r);
}

static void backward_after_a_weight_change_is_refused(void **state) {
  run first = {0}, second;
  (void)state;
  load_module(&first, "changed", 0);
  call_in_new_context(&first);
  second = first;
  call_in_new_context(&second);
  run_backward(&second);
  MUST(cleave_step(rt, second.optimizer, second.context, 0, NULL, &e));
  cleave_tensor g = CLEAVE_TENSOR_F32(first.given_gradient, ROWS, OUT);
  const cleave_backward_options o = {.size = sizeof o, .gradients = &g};
  assert_int_equal(cleave_backward_with(rt, first.context, &first.y, 1, &o, &e),
                   CLEAVE_PRECONDITION);
  assert_non_null(strstr(e.text, "module 'changed' have changed"));
  assert_string_equal(e.place, "changed");
  call_module(&first); /* the refused call sent nothing, so the context can still be used */
  run_backward(&first);
  end_run(&second);
  end_run(&first);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(given_gradient_is_propagated_to_weights_and_inputs),
      cmocka_unit_test(step_uses_written_gradients),
      cmocka_unit_test(non_finite_gradient_skips_the_step_until_overwritten),
      cmocka_unit_test(backward_after_a_weight_change_is_refused),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
