/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the simulated device: results of kernels and libraries, the random order of operations, the
 * counts, and refused calls.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/sample_int.h"
#include "tests/gpu/sim.h"
#include "tests/sanitized.h"

typedef struct bench {
  const clv_vendor *v;
  clv_gpu g;
  float *host_memory; /* [N] values in page-locked host memory */
  clv_err err;
} bench;

enum { N = 1000 };

#define OK(call) assert_int_equal((call), CLV_OK)

static void begin_with_vendor(bench *b, const clv_vendor *v) {
  *b = (bench){.v = v};
  b->g.vendor = b->v;
  OK(b->v->stream_new(0, false, &b->g.stream, &b->err));
  OK(b->v->host_allocate(N * sizeof(float), (void **)&b->host_memory, &b->err));
  for (int i = 0; i < N; i++) b->host_memory[i] = (float)(i % 10);
}

static void begin_bench(bench *b, const clv_sim_options *o) {
  begin_with_vendor(b, clv_sim_make_vendor(o));
}

/* Frees the stream first, which waits for its work: a copy may still read the host memory. */
static void end_bench(bench *b) {
  b->v->stream_free(b->g.stream);
  b->v->host_free(b->host_memory);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static float *allocate_floats(bench *b, size_t n) {
  void *p;
  OK(b->v->allocate(b->g.stream, n * sizeof(float), &p, &b->err));
  return p;
}

static float *copy_to_new_memory(bench *b) {
  float *x = allocate_floats(b, N);
  OK(b->v->put(b->g.stream, x, b->host_memory, N * sizeof(float), &b->err));
  return x;
}

static void copy_to_host(bench *b, const float *x, size_t n) {
  OK(b->v->get(b->g.stream, b->host_memory, x, n * sizeof(float), &b->err));
  OK(b->v->stream_finish(b->g.stream, &b->err));
}

static void kernel_results_do_not_depend_on_the_seed(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 12; seed++) {
    bench b;
    begin_bench(&b, &(clv_sim_options){.seed = seed});
    float *x = copy_to_new_memory(&b), *y = allocate_floats(&b, N), *sums = allocate_floats(&b, 3);
    OK(sample_add_number(&b.g, x, y, 1, N, &b.err));
    OK(sample_sum_in_blocks(&b.g, y, sums, 300, 3, &b.err));
    copy_to_host(&b, y, N);
    for (int i = 0; i < N; i++) assert_true(b.host_memory[i] == (float)(i % 10 + 1));
    copy_to_host(&b, sums, 3);
    for (int i = 0; i < 3; i++) assert_true(b.host_memory[i] == 1650);
    OK(sample_sum_in_warps(&b.g, y, y, 3, &b.err));
    copy_to_host(&b, y, N);
    for (int i = 0; i < 32; i++) assert_true(b.host_memory[i] == 168);
    b.v->free(b.g.stream, x);
    b.v->free(b.g.stream, y);
    b.v->free(b.g.stream, sums);
    end_bench(&b);
  }
}

/* Compares the orders in which devices with different seeds run the blocks of one launch. */
static void seed_decides_the_order_of_blocks(void **state) {
  unsigned previous_order[8] = {0}, n_different = 0;
  (void)state;
  for (uint64_t seed = 0; seed < 8; seed++) {
    bench b;
    begin_bench(&b, &(clv_sim_options){.seed = seed});
    unsigned *block_order = (unsigned *)allocate_floats(&b, 8),
             *count = (unsigned *)allocate_floats(&b, 1), seen_blocks = 0;
    OK(b.v->fill(b.g.stream, count, 0, 4, &b.err));
    OK(sample_record_block_order(&b.g, block_order, count, 8, &b.err));
    copy_to_host(&b, (float *)block_order, 8);
    for (int i = 0; i < 8; i++) seen_blocks |= 1u << ((unsigned *)b.host_memory)[i];
    assert_int_equal(seen_blocks, 0xFF);
    n_different += memcmp(previous_order, b.host_memory, sizeof previous_order) != 0;
    memcpy(previous_order, b.host_memory, sizeof previous_order);
    b.v->free(b.g.stream, block_order);
    b.v->free(b.g.stream, count);
    end_bench(&b);
  }
  assert_true(n_different > 4);
}

/* The second stream may run its work before the first stream has run its own, unless an event
 * orders the two. */
static void events_order_streams(void **state) {
  int n_early = 0;
  (void)state;
  for (uint64_t seed = 0; seed < 24; seed++) {
    bool has_event = seed % 2;
    bench b;
    /* without the event the two streams race for x, which thread sanitizer would report */
    if (!has_event && CLV_THREAD_SANITIZED) continue;
    begin_bench(&b, &(clv_sim_options){.seed = seed});
    clv_gpu second_gpu = {.vendor = b.v};
    clv_cuda_event *e;
    OK(b.v->stream_new(0, false, &second_gpu.stream, &b.err));
    OK(b.v->event_new(0, false, &e, &b.err));
    float *x = copy_to_new_memory(&b), *y = allocate_floats(&b, N);
    OK(b.v->stream_finish(b.g.stream, &b.err));
    OK(sample_add_number(&b.g, x, x, 100, N, &b.err));
    OK(b.v->event_record(e, b.g.stream, &b.err));
    if (has_event) OK(b.v->stream_wait(second_gpu.stream, e, &b.err));
    OK(sample_add_number(&second_gpu, x, y, 0, N, &b.err));
    OK(b.v->get(second_gpu.stream, b.host_memory, y, N * sizeof(float), &b.err));
    OK(b.v->stream_finish(second_gpu.stream, &b.err));
    for (int i = 0; has_event && i < N; i++) assert_true(b.host_memory[i] == (float)(i % 10 + 100));
    n_early += b.host_memory[0] < 100;
    OK(b.v->event_finish(e, &b.err));
    b.v->free(b.g.stream, x);
    b.v->free(b.g.stream, y);
    b.v->event_free(e);
    b.v->stream_free(second_gpu.stream);
    end_bench(&b);
  }
  assert_true(n_early > 0 || CLV_THREAD_SANITIZED);
}

static void graph_launch_repeats_the_captured_work(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 6; seed++) {
    bench b;
    clv_cuda_graph *g;
    size_t bytes;
    begin_bench(&b, &(clv_sim_options){.seed = seed});
    float *x = copy_to_new_memory(&b);
    void *p;
    OK(b.v->capture_begin(b.g.stream, &b.err));
    OK(sample_add_number(&b.g, x, x, 1, N, &b.err));
    assert_int_equal(b.v->allocate(b.g.stream, 4, &p, &b.err), CLV_PRECONDITION);
    assert_int_equal(b.v->stream_finish(b.g.stream, &b.err), CLV_PRECONDITION);
    OK(b.v->capture_end(b.g.stream, &g, &bytes, &b.err));
    assert_int_equal(bytes, clv_sim_get_graph_bytes(1));
    for (int i = 0; i < 5; i++) OK(b.v->graph_launch(b.g.stream, g, &b.err));
    copy_to_host(&b, x, N);
    for (int i = 0; i < N; i++) assert_true(b.host_memory[i] == (float)(i % 10 + 5));
    assert_int_equal(clv_sim_get_counts().n_graph_launches, 5);
    b.v->graph_free(g);
    b.v->free(b.g.stream, x);
    end_bench(&b);
  }
}

static void launch_with_invalid_dimensions_is_refused(void **state) {
  bench b;
  (void)state;
  begin_bench(&b, &(clv_sim_options){0});
  float *y = allocate_floats(&b, N);
  OK(sample_count_threads(&b.g, y, 256, &b.err));
  assert_int_equal(sample_count_threads(&b.g, y, 257, &b.err), CLV_INVALID);
  assert_int_equal(sample_count_threads(&b.g, y, 0, &b.err), CLV_INVALID);
  assert_int_equal(sample_sum_in_blocks(&b.g, y, y, 1, 0, &b.err), CLV_INVALID);
  b.v->free(b.g.stream, y);
  end_bench(&b);
}

static void memory_in_use_is_counted_and_limited(void **state) {
  bench b;
  (void)state;
  begin_bench(&b, &(clv_sim_options){.memory_bytes = 10000});
  size_t used_before, total_bytes;
  void *p;
  float *x = copy_to_new_memory(&b);
  OK(b.v->get_free_bytes(0, &used_before, &total_bytes, &b.err));
  assert_int_equal(used_before, 6000);
  assert_int_equal(total_bytes, 10000);
  assert_int_equal(b.v->allocate(b.g.stream, 6001, &p, &b.err), CLV_EXHAUSTED);
  OK(sample_add_number(&b.g, x, x, 1, N, &b.err));
  copy_to_host(&b, x, 10);
  clv_sim_counts c = clv_sim_get_counts();
  assert_int_equal(c.n_allocations, 2);
  assert_int_equal(c.n_launches, 1);
  assert_int_equal(c.n_waits, 2); /* begin_bench takes page-locked memory, and copy_to_host waits */
  assert_int_equal(c.bytes_to_device, 4000);
  assert_int_equal(c.bytes_to_host, 40);
  b.v->free(b.g.stream, x);
  end_bench(&b);
}

static void planned_allocation_failure_happens_once(void **state) {
  bench b;
  void *p;
  (void)state;
  begin_bench(&b, &(clv_sim_options){.failing_allocation = 2});
  float *x = allocate_floats(&b, 4);
  assert_int_equal(b.v->allocate(b.g.stream, 4, &p, &b.err), CLV_EXHAUSTED);
  b.v->free(b.g.stream, x);
  x = allocate_floats(&b, 4);
  b.v->free(b.g.stream, x);
  end_bench(&b);
}

/* After a failed launch, the next wait reports an error, and so do all later operations; memory can
 * still be freed. */
static void failed_launch_fails_all_later_work(void **state) {
  (void)state;
  for (int loses_device = 0; loses_device < 2; loses_device++) {
    bench b;
    clv_sim_options o = {
        .seed = 1, .failing_launch = loses_device ? 0 : 2, .losing_call = loses_device ? 6 : 0};
    begin_bench(&b, &o);
    float *x = copy_to_new_memory(&b);
    OK(sample_add_number(&b.g, x, x, 1, N, &b.err));
    clv_code code = sample_add_number(&b.g, x, x, 1, N, &b.err);
    if (code == CLV_OK) code = b.v->stream_finish(b.g.stream, &b.err);
    assert_int_equal(code, CLV_UNAVAILABLE);
    assert_int_equal(b.v->stream_finish(b.g.stream, &b.err), CLV_UNAVAILABLE);
    assert_int_equal(sample_add_number(&b.g, x, x, 1, N, &b.err), CLV_UNAVAILABLE);
    b.v->free(b.g.stream, x);
    end_bench(&b);
  }
}

/* Computes two products D = transposed(A) * B of size [m, n], in column-major order. The leading
 * dimensions are larger than the columns. */
static void products_are_column_major(void **state) {
  enum { M = 2, NN = 3, K = 2, LDA = 3, LDB = 4, LDD = 5 };
  const clv_cuda_matmul_desc d = {.a_is_transposed = true,
                                  .m = M,
                                  .n = NN,
                                  .k = K,
                                  .lda = LDA,
                                  .ldb = LDB,
                                  .ldd = LDD,
                                  .batch = 2,
                                  .stride_a = 7,
                                  .stride_b = 13,
                                  .stride_d = 16,
                                  .epilogue = CLV_CUDA_EPILOGUE_RELU_BIAS};
  bench b;
  clv_cuda_matmul *m;
  size_t workspace;
  (void)state;
  begin_bench(&b, &(clv_sim_options){0});
  OK(b.v->matmul_new(0, &d, &m, &workspace, &b.err));
  assert_true(workspace > 0);
  float *x = copy_to_new_memory(&b), *y = copy_to_new_memory(&b), *bias = copy_to_new_memory(&b),
        *workspace_memory = allocate_floats(&b, workspace / 4 + 1);
  OK(b.v->matmul(b.g.stream, m, x, y, bias, 0, y + 500, workspace_memory, &b.err));
  OK(b.v->matmul(b.g.stream, m, x, y, bias, 1, y + 500, workspace_memory, &b.err));
  copy_to_host(&b, y + 500, 100);
  for (int64_t at = 0; at < 2; at++)
    for (int64_t i = 0; i < M; i++)
      for (int64_t j = 0; j < NN; j++) {
        double sum = (double)i;
        for (int64_t p = 0; p < K; p++)
          sum += (double)((7 * at + i * LDA + p) % 10 * ((13 * at + j * LDB + p) % 10));
        double twice_sum = sum + sum;
        assert_true((double)b.host_memory[16 * at + j * LDD + i] == twice_sum);
      }
  /* row 2 of the first column is padding, which the product must not change */
  assert_true(b.host_memory[2] == 2);
  b.v->matmul_free(m);
  float *const all[] = {x, y, bias, workspace_memory};
  for (int i = 0; i < 4; i++) b.v->free(b.g.stream, all[i]);
  end_bench(&b);
}

static void devices_copy_to_each_other(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 6; seed++) {
    bench b;
    begin_bench(&b, &(clv_sim_options){.seed = seed, .n_devices = 2});
    clv_gpu other_device = {.vendor = b.v, .device = 1};
    clv_cuda_event *e;
    void *y;
    OK(b.v->stream_new(1, false, &other_device.stream, &b.err));
    OK(b.v->event_new(0, false, &e, &b.err));
    float *x = copy_to_new_memory(&b);
    OK(b.v->allocate(other_device.stream, N * sizeof(float), &y, &b.err));
    OK(b.v->event_record(e, b.g.stream, &b.err));
    OK(b.v->stream_wait(other_device.stream, e, &b.err));
    OK(b.v->copy_peer(other_device.stream, y, 1, x, 0, N * sizeof(float), &b.err));
    OK(sample_add_number(&other_device, y, y, 1, N, &b.err));
    OK(b.v->get(other_device.stream, b.host_memory, y, N * sizeof(float), &b.err));
    OK(b.v->stream_finish(other_device.stream, &b.err));
    for (int i = 0; i < N; i++) assert_true(b.host_memory[i] == (float)(i % 10 + 1));
    b.v->free(other_device.stream, y);
    b.v->free(b.g.stream, x);
    b.v->event_free(e);
    b.v->stream_free(other_device.stream);
    end_bench(&b);
  }
}

#define REFUSED(call) assert_int_equal((call), CLV_PRECONDITION)

/* NULL is CUDA's default stream. All streams of the device would wait for the default stream's
 * work, and its work would wait for that of all streams. */
static void the_default_stream_is_refused(void **state) {
  const clv_cuda_matmul_desc product = {
      .m = 1, .n = 1, .k = 1, .lda = 1, .ldb = 1, .ldd = 1, .batch = 1};
  bench b;
  clv_gpu null_stream;
  clv_cuda_event *e;
  clv_cuda_matmul *m;
  size_t workspace;
  void *p;
  (void)state;
  begin_bench(&b, &(clv_sim_options){0});
  null_stream = (clv_gpu){.vendor = b.v};
  OK(b.v->event_new(0, false, &e, &b.err));
  OK(b.v->matmul_new(0, &product, &m, &workspace, &b.err));
  float *x = copy_to_new_memory(&b);
  assert_int_equal(clv_sim_get_counts().n_default_stream_calls, 0);
  REFUSED(b.v->allocate(NULL, 4, &p, &b.err));
  REFUSED(b.v->put(NULL, x, b.host_memory, 4, &b.err));
  REFUSED(b.v->get(NULL, b.host_memory, x, 4, &b.err));
  REFUSED(b.v->copy(NULL, x, x + 1, 4, &b.err));
  REFUSED(b.v->fill(NULL, x, 0, 4, &b.err));
  REFUSED(b.v->stream_finish(NULL, &b.err));
  REFUSED(b.v->event_record(e, NULL, &b.err));
  REFUSED(b.v->stream_wait(NULL, e, &b.err));
  REFUSED(sample_add_number(&null_stream, x, x, 1, N, &b.err));
  REFUSED(b.v->capture_begin(NULL, &b.err));
  REFUSED(b.v->matmul(NULL, m, x, x, NULL, 0, x, x, &b.err));
  b.v->free(NULL, x);
  assert_int_equal(clv_sim_get_counts().n_default_stream_calls, 12);
  b.v->free(b.g.stream, x);
  b.v->matmul_free(m);
  b.v->event_free(e);
  end_bench(&b);
}

/* Main function of a host thread, which uses a stream of its own. */
static void *use_stream_in_thread(void *arg) {
  bench *b = arg;
  float *x = copy_to_new_memory(b);
  for (int i = 0; i < 20; i++) OK(sample_add_number(&b->g, x, x, 1, N, &b->err));
  copy_to_host(b, x, N);
  for (int i = 0; i < N; i++) assert_true(b->host_memory[i] == (float)(i % 10 + 20));
  b->v->free(b->g.stream, x);
  b->v->host_free(b->host_memory);
  b->v->stream_free(b->g.stream);
  return NULL;
}

static void concurrent_threads_are_serialized(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) {
    bench benches[3];
    pthread_t threads[3];
    const clv_vendor *v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed});
    for (int i = 0; i < 3; i++) begin_with_vendor(&benches[i], v);
    for (int i = 0; i < 3; i++)
      assert_int_equal(pthread_create(&threads[i], NULL, use_stream_in_thread, &benches[i]), 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    assert_int_equal(clv_sim_count_leaks(), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernel_results_do_not_depend_on_the_seed),
      cmocka_unit_test(seed_decides_the_order_of_blocks),
      cmocka_unit_test(events_order_streams),
      cmocka_unit_test(graph_launch_repeats_the_captured_work),
      cmocka_unit_test(launch_with_invalid_dimensions_is_refused),
      cmocka_unit_test(memory_in_use_is_counted_and_limited),
      cmocka_unit_test(planned_allocation_failure_happens_once),
      cmocka_unit_test(failed_launch_fails_all_later_work),
      cmocka_unit_test(products_are_column_major),
      cmocka_unit_test(devices_copy_to_each_other),
      cmocka_unit_test(the_default_stream_is_refused),
      cmocka_unit_test(concurrent_threads_are_serialized),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
