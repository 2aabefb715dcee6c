/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device: what it computes, in which order, what it counts and refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/sample_int.h"
#include "tests/gpu/sim.h"

typedef struct bench {
  const clv_vendor *v;
  clv_gpu g;
  float *host; /* N, page-locked */
  clv_err err;
} bench;

enum { N = 1000 };

#define OK(call) assert_int_equal((call), CLV_OK)

static void begin(bench *b, const clv_sim_options *o) {
  *b = (bench){.v = clv_sim_vendor(o)};
  b->g.vendor = b->v;
  OK(b->v->stream_new(0, false, &b->g.stream, &b->err));
  OK(b->v->host_take(N * sizeof(float), (void **)&b->host, &b->err));
  for (int i = 0; i < N; i++) b->host[i] = (float)(i % 10);
}

static void end(bench *b) {
  b->v->host_give(b->host);
  b->v->stream_free(b->g.stream);
  assert_int_equal(clv_sim_leaks(), 0);
}

static float *take(bench *b, size_t n) {
  void *p;
  OK(b->v->take(b->g.stream, n * sizeof(float), &p, &b->err));
  return p;
}

static float *put(bench *b) {
  float *x = take(b, N);
  OK(b->v->put(b->g.stream, x, b->host, N * sizeof(float), &b->err));
  return x;
}

static void get(bench *b, const float *x, size_t n) {
  OK(b->v->get(b->g.stream, b->host, x, n * sizeof(float), &b->err));
  OK(b->v->stream_finish(b->g.stream, &b->err));
}

static void kernels_compute_whatever_the_seed(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 12; seed++) {
    bench b;
    begin(&b, &(clv_sim_options){.seed = seed});
    float *x = put(&b), *y = take(&b, N), *sums = take(&b, 3);
    OK(sample_add(&b.g, x, y, 1, N, &b.err));
    OK(sample_sum(&b.g, y, sums, 300, 3, &b.err));
    get(&b, y, N);
    for (int i = 0; i < N; i++) assert_true(b.host[i] == (float)(i % 10 + 1));
    get(&b, sums, 3);
    for (int i = 0; i < 3; i++) assert_true(b.host[i] == 1650);
    OK(sample_warp_sum(&b.g, y, y, 3, &b.err));
    get(&b, y, N);
    for (int i = 0; i < 32; i++) assert_true(b.host[i] == 168);
    b.v->give(b.g.stream, x);
    b.v->give(b.g.stream, y);
    b.v->give(b.g.stream, sums);
    end(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_compute_whatever_the_seed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
