/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests optimisers whose parameters, gradients and moments are in memory that the host cannot
 * touch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/optim/optim.h"
#include "tests/unit/far.h"

enum { N = 97, STEPS = 3, BYTES = N * sizeof(float) };

#define assert_ok(call)                             \
  do {                                              \
    clv_err err;                                    \
    if ((call) != CLV_OK) fail_msg("%s", err.text); \
  } while (0)

static void draw_uniform(float *x, uint32_t stream) {
  clv_rng_uniform(&(clv_rng_key){.seed = 5, .layer = stream}, -1, 1, x, N);
}

/* Makes an optimiser of two groups of values, with a gap between the groups. No step may change the
 * values in the gap. */
static clv_optim *make_optimizer(const clv_backend *b, clv_optim_kind kind) {
  clv_optim_config c[2];
  clv_optim_span spans[] = {{.offset = 4, .n = 33}, {.offset = 200, .n = 40, .group_index = 1}};
  clv_optim *o = NULL;
  for (int i = 0; i < 2; i++) {
    c[i] = clv_optimizer_row_of(kind)->defaults;
    c[i].kind = kind;
    c[i].lr = 0.01 * (i + 1);
    c[i].momentum = kind == CLV_OPTIM_SGD || kind == CLV_OPTIM_RMSPROP ? 0.5 * i : 0;
    c[i].centered = kind == CLV_OPTIM_RMSPROP;
    c[i].ema = 0.9;
    if (kind == CLV_OPTIM_ADAGRAD) c[i].initial_accumulator_value = 0.5 + i;
  }
  assert_ok(clv_optim_new(c, 2, BYTES, spans, 2, b, &o, &err));
  return o;
}

/* Takes STEPS steps. Stores the parameters in ret[0] and moment i in ret[1 + i]. Returns the number
 * of elements of ret that were written. */
static size_t run_steps(const clv_backend *b, clv_optim_kind kind, float ret[][N]) {
  clv_optim *o = make_optimizer(b, kind);
  float *p, *g, host[N];
  double lr[] = {0.01, 0.02};
  assert_ok(clv_backend_allocate(b, BYTES, &p, &err));
  assert_ok(clv_backend_allocate(b, BYTES, &g, &err));
  draw_uniform(host, 1);
  assert_ok(clv_backend_put(b, p, host, BYTES, &err));
  for (uint32_t t = 0; t < STEPS; t++) {
    draw_uniform(host, 2 + t);
    assert_ok(clv_backend_put(b, g, host, BYTES, &err));
    clv_optim_step(o, p, g, lr, 0.5);
  }
  assert_ok(clv_backend_finish(b, &err));
  int n = clv_optim_n_moments(o);
  assert_ok(clv_backend_get(b, ret[0], p, BYTES, &err));
  for (int i = 0; i < n; i++)
    assert_ok(clv_backend_get(b, ret[1 + i], clv_optim_moment(o, i), BYTES, &err));
  clv_backend_free_memory(b, p);
  clv_backend_free_memory(b, g);
  clv_optim_free(o);
  return 1 + (size_t)n;
}

static void device_optimizers_match_host_bits(void **state) {
  (void)state;
  for (clv_optim_kind kind = 0; kind < CLV_OPTIM_COUNT; kind++) {
    float on_host[5][N], on_device[5][N];
    size_t n = run_steps(clv_backend_cpu(), kind, on_host);
    assert_int_equal(run_steps(far_get_backend(clv_backend_cpu()), kind, on_device), n);
    assert_memory_equal(on_host, on_device, n * BYTES);
    assert_int_equal(far.n_blocks, 0);
  }
}

static void failed_moment_alloc_leaves_no_device_blocks(void **state) {
  const clv_backend *b = far_get_backend(clv_backend_cpu());
  clv_optim_config c = clv_optimizer_row_of(CLV_OPTIM_ADAM)->defaults;
  clv_optim *o = NULL;
  clv_err err;
  (void)state;
  c.kind = CLV_OPTIM_ADAM;
  c.lr = 0.1;
  far.failing_allocation = 2;
  assert_int_equal(clv_optim_new(&c, 1, BYTES, NULL, 0, b, &o, &err), CLV_EXHAUSTED);
  assert_int_equal(far.n_blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(device_optimizers_match_host_bits),
                                     cmocka_unit_test(failed_moment_alloc_leaves_no_device_blocks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
