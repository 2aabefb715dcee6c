/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the cuda backend apart from its kernels, on the simulated device: memory, operations on
 * whole buffers, optimisers, refusals, and failures of the device.
 */
#include "kernels/cuda/gpu_int.h"
#include "kernels/steps/steps.h"
#include "tests/gpu/sim.h"
#include "tests/ops/compare_int.h"
#include "tests/sanitized.h"

enum { N = 3003 };

static clv_err err;

static clv_backend *open_device(const clv_sim_options *o) {
  clv_backend *b;
  must(clv_cuda_open(clv_sim_make_vendor(o), 0, &b, &err), &err);
  return b;
}

static void close_device(clv_backend *b) {
  clv_cuda_close(b);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

static void finish_without_error(const clv_backend *b) {
  int64_t layer;
  must(b->memory->finish(b, &layer, &err), &err);
  assert_int_equal(layer, -1);
}

static void *copy_to_new_memory(const clv_backend *b, const void *host, size_t bytes) {
  void *p;
  must(b->memory->allocate(b, bytes, &p, &err), &err);
  must(b->memory->put(b, p, host, bytes, &err), &err);
  return p;
}

/* Returns n normally distributed numbers. Each random stream `stream` has other numbers. */
static float *draw_floats(uint32_t stream, size_t n) {
  float *x = allocate_host(n * sizeof *x);
  clv_rng_key key = {.seed = 5, .layer = stream};
  clv_rng_normal(&key, 0, 1, x, n);
  return x;
}

/* ---- memory and copies of the backend -------------------------------------------------------- */

/* Copies more bytes than all page-locked slots (copy buffers of the host) hold together. */
static void copies_larger_than_all_host_slots_round_trip(void **state) {
  size_t n = (11u << 20) / sizeof(float) + 3, bytes = n * sizeof(float);
  (void)state;
  for (uint64_t seed = 0; seed < 3; seed++) {
    clv_backend *b = open_device(&(clv_sim_options){.seed = seed});
    float *x = draw_floats(1, n), *copy_of_x = allocate_host(bytes),
          *read_back = allocate_host(bytes);
    memcpy(copy_of_x, x, bytes);
    void *p, *q;
    must(b->memory->allocate(b, bytes, &p, &err), &err);
    must(b->memory->allocate(b, bytes, &q, &err), &err);
    must(b->memory->put(b, p, x, bytes, &err), &err);
    memset(x, 0, bytes); /* the source may be overwritten once `copy_to_new_memory` has returned */
    must(b->memory->copy(b, q, p, bytes, &err), &err);
    must(b->memory->fill(b, p, 0x11, bytes, &err), &err);
    must(clv_backend_get(b, read_back, q, bytes, &err), &err);
    assert_memory_equal(read_back, copy_of_x, bytes);
    must(clv_backend_get(b, read_back, p, 40, &err), &err);
    assert_int_equal(((unsigned char *)read_back)[39], 0x11);
    b->memory->free(b, p);
    b->memory->free(b, q);
    finish_without_error(b);
    close_device(b);
    free(x);
    free(copy_of_x);
    free(read_back);
  }
}

static void allocated_memory_is_zeroed(void **state) {
  clv_backend *b = open_device(&(clv_sim_options){0});
  char read_back[100], zeros[100] = {0};
  size_t free_bytes, total_bytes, free_bytes_later;
  void *p;
  (void)state;
  must(b->memory->get_free_bytes(b, &free_bytes, &total_bytes, &err), &err);
  must(b->memory->allocate(b, 0, &p, &err), &err);
  b->memory->free(b, p);
  must(b->memory->allocate(b, 100, &p, &err), &err);
  must(b->memory->get_free_bytes(b, &free_bytes_later, &total_bytes, &err), &err);
  assert_int_equal(free_bytes - free_bytes_later, 100);
  must(clv_backend_get(b, read_back, p, 100, &err), &err);
  assert_memory_equal(read_back, zeros, 100);
  b->memory->free(b, p);
  b->memory->free(b, NULL);
  assert_int_equal(b->memory->allocate(b, (size_t)1 << 40, &p, &err), CLV_EXHAUSTED);
  finish_without_error(b);
  close_device(b);
}

/* Copies from one backend to another, on the same device or on a second one. The source backend
 * computes the copied values right before, and overwrites and frees them right after, without a
 * wait between. The copy must contain the computed values. */
static void check_copy_between(int second_device, uint64_t seed) {
  const clv_vendor *v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .n_devices = 2});
  clv_backend *of, *to;
  void *sum;
  must(clv_cuda_open(v, 0, &of, &err), &err);
  must(clv_cuda_open(v, second_device, &to, &err), &err);
  assert_true(clv_backend_can_copy_from(to, of) && clv_backend_can_copy_from(of, of));
  assert_false(clv_backend_can_copy_from(to, clv_backend_cpu()));
  assert_false(clv_backend_can_copy_from(clv_backend_cpu(), clv_backend_cpu()));
  float *x = draw_floats(1, N), *read_back = allocate_host(N * sizeof *read_back);
  void *p = copy_to_new_memory(of, x, N * sizeof *x), *q = copy_to_new_memory(to, x, N * sizeof *x);
  must(to->memory->allocate(to, N * sizeof *x, &sum, &err), &err);
  of->add(of, CLV_F32, p, p, N);
  must(clv_backend_copy_from(to, q, of, p, N * sizeof *x, &err), &err);
  of->add(of, CLV_F32, p, p, N);
  of->memory->free(of, p);
  must(clv_backend_copy_from(to, q, of, NULL, 0, &err), &err);
  to->add(to, CLV_F32, sum, q, N);
  must(clv_backend_get(to, read_back, sum, N * sizeof *x, &err), &err);
  for (int i = 0; i < N; i++) assert_true(read_back[i] == x[i] + x[i]);
  to->memory->free(to, q);
  to->memory->free(to, sum);
  finish_without_error(to);
  finish_without_error(of);
  clv_cuda_close(to);
  close_device(of);
  free(x);
  free(read_back);
}

static void one_backend_copies_from_another(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < (CLV_THREAD_SANITIZED ? 3 : 12); seed++)
    for (int second_device = 0; second_device < 2; second_device++)
      check_copy_between(second_device, seed);
}

/* A session must not find values of an earlier session, neither in device memory nor in the
 * page-locked slots of the host, which the simulated device reuses. */
static void freed_memory_and_host_slots_do_not_leak_between_sessions(void **state) {
  size_t bytes = (size_t)GPU_COPY_SLOTS * GPU_COPY_SLOT_BYTES;
  char *secret = allocate_host(bytes), *read_back = allocate_host(bytes);
  (void)state;
  memset(secret, 0x5E, bytes);
  clv_backend *b = open_device(&(clv_sim_options){0});
  void *p = copy_to_new_memory(b, secret, bytes);
  must(clv_backend_get(b, read_back, p, bytes, &err), &err);
  assert_memory_equal(read_back, secret, bytes);
  assert_memory_equal(((clv_gpu *)b->private_data)->slots[0].host, secret, GPU_COPY_SLOT_BYTES);
  b->memory->free(b, p);
  clv_cuda_close(b);
  assert_int_equal(clv_sim_get_counts().dirty_pinned_bytes, 0);
  must(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 0, &b, &err), &err);
  memset(secret, 0, bytes);
  for (int i = 0; i < GPU_COPY_SLOTS; i++)
    assert_memory_equal(((clv_gpu *)b->private_data)->slots[i].host, secret, GPU_COPY_SLOT_BYTES);
  must(b->memory->allocate(b, bytes, &p, &err), &err);
  must(clv_backend_get(b, read_back, p, bytes, &err), &err);
  assert_memory_equal(read_back, secret, bytes);
  b->memory->free(b, p);
  close_device(b);
  free(secret);
  free(read_back);
}

/* ---- operations on whole buffers ------------------------------------------------------------- */

static void add_accumulates_f32_values(void **state) {
  clv_backend *b = open_device(&(clv_sim_options){0});
  float *x = draw_floats(1, N), *y = draw_floats(2, N),
        *read_back = allocate_host(N * sizeof *read_back);
  void *p = copy_to_new_memory(b, x, N * sizeof *x), *q = copy_to_new_memory(b, y, N * sizeof *y);
  (void)state;
  b->add(b, CLV_F32, p, q, N);
  must(clv_backend_get(b, read_back, p, N * sizeof *read_back, &err), &err);
  for (int i = 0; i < N; i++) assert_true(read_back[i] == x[i] + y[i]);
  b->memory->free(b, p);
  b->memory->free(b, q);
  close_device(b);
  free(x);
  free(y);
  free(read_back);
}

/* The kernel adds packs of 16 bytes. Tests a number of values that is no multiple of a pack, and
 * addresses at which no pack may begin. */
static void add_accumulates_bf16_values_at_any_alignment(void **state) {
  (void)state;
  for (size_t at = 0; at < 2; at++) {
    clv_backend *b = open_device(&(clv_sim_options){0});
    uint16_t x[N], y[N], read_back[N];
    for (size_t i = 0; i < N; i++) x[i] = (uint16_t)(0x3F80 + 2 * (i % 7)), y[i] = 0x4000;
    void *p = copy_to_new_memory(b, x, sizeof x), *q = copy_to_new_memory(b, y, sizeof y);
    b->add(b, CLV_BF16, (uint16_t *)p + at, (uint16_t *)q + at, N - at - 1);
    must(clv_backend_get(b, read_back, p, sizeof read_back, &err), &err);
    for (size_t i = at; i < N - 1; i++) /* bf16 represents x + 2 exactly */
      assert_true(widen_bf16(read_back[i]) == widen_bf16(x[i]) + 2);
    assert_true((!at || read_back[0] == x[0]) && read_back[N - 1] == x[N - 1]);
    b->memory->free(b, p);
    b->memory->free(b, q);
    close_device(b);
  }
}

static void sum_squares_over_many_extents_takes_two_launches(void **state) {
  enum { RUNS = CLV_THREAD_SANITIZED ? 20 : 130, SEEDS = CLV_THREAD_SANITIZED ? 2 : 3 };
  clv_extent runs[RUNS];
  double sums[RUNS], sums_again[RUNS];
  float *x = draw_floats(1, 90000);
  (void)state;
  for (size_t i = 0, at = 0; i < RUNS; at += runs[i++].n)
    runs[i] = (clv_extent){at, i == 7 ? 80000 : i % 50};
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    clv_backend *b = open_device(&(clv_sim_options){.seed = seed});
    void *p = copy_to_new_memory(b, x, 90000 * sizeof *x);
    uint64_t launches_before = clv_sim_get_counts().n_launches;
    must(b->sum_squares(b, p, runs, RUNS, seed ? sums_again : sums, &err), &err);
    assert_int_equal(clv_sim_get_counts().n_launches - launches_before, 2);
    must(b->sum_squares(b, p, NULL, 0, NULL, &err), &err);
    b->memory->free(b, p);
    close_device(b);
    if (seed) assert_memory_equal(sums, sums_again, sizeof sums);
  }
  for (size_t i = 0; i < RUNS; i++) {
    double want = 0;
    for (size_t k = 0; k < runs[i].n; k++)
      want += (double)x[runs[i].at + k] * (double)x[runs[i].at + k];
    assert_true(fabs(sums[i] - want) <= 1e-12 * want);
  }
  free(x);
}

/* Sums squares over more lists of extents than the backend caches. Each sum must be that of its own
 * list, also when a list is used again. */
static void sum_squares_is_right_with_more_lists_than_cached_tables(void **state) {
  enum { LISTS = 40 };
  clv_backend *b = open_device(&(clv_sim_options){0});
  float *x = draw_floats(1, N);
  void *p = copy_to_new_memory(b, x, N * sizeof *x);
  (void)state;
  for (size_t i = 0; i < (CLV_THREAD_SANITIZED ? 1 : 4) * LISTS; i++) {
    size_t first = i % 3 ? i % LISTS : i % 2;
    clv_extent runs[] = {{first, 5}, {first + 7, 1}};
    double sums[2], want[2] = {0, (double)x[first + 7] * (double)x[first + 7]};
    for (size_t k = first; k < first + 5; k++) want[0] += (double)x[k] * (double)x[k];
    must(b->sum_squares(b, p, runs, 2, sums, &err), &err);
    for (int k = 0; k < 2; k++) assert_true(fabs(sums[k] - want[k]) <= 1e-12 * want[k]);
  }
  b->memory->free(b, p);
  close_device(b);
  free(x);
}

/* Takes two optimiser steps over `runs`, which are extents of a parameter block, on the cuda and
 * the ref backend. The results must have equal bits, and values between the runs must not
 * change. */
static void check_optimiser(const clv_optim_config *c) {
  enum { RUNS = 70 };
  clv_extent runs[RUNS] = {{0, 300}, {310, 1}, {311, 0}, {400, 2300}};
  for (size_t i = 4; i < RUNS; i++) runs[i] = (clv_extent){2700 + 4 * i, i % 4};
  clv_backend *b = open_device(&(clv_sim_options){.seed = (uint64_t)c->kind});
  const clv_backend *ref = clv_backend_ref();
  float *p = draw_floats(1, N), *g = draw_floats(2, N), *m[CLV_OPTIM_MAX_MOMENTS] = {0},
        *read_back = allocate_host(N * 4);
  float *dp = copy_to_new_memory(b, p, N * 4), *dg = copy_to_new_memory(b, g, N * 4),
        *dm[CLV_OPTIM_MAX_MOMENTS] = {0};
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) {
    if (!(clv_optim_moment_mask(c) >> i & 1)) continue;
    m[i] = allocate_host(N * 4);
    memset(m[i], 0, N * 4);
    dm[i] = copy_to_new_memory(b, m[i], N * 4);
  }
  for (int t = 1; t <= 2; t++) {
    clv_step_args a;
    clv_step_prepare(c, t, c->lr, 0.5, &a);
    ref->step(ref, &a, p, g, m, runs, RUNS);
    uint64_t launches_before = clv_sim_get_counts().n_launches;
    b->step(b, &a, dp, dg, dm, runs, RUNS);
    b->step(b, &a, dp, dg, dm, runs, 0);
    assert_int_equal(clv_sim_get_counts().n_launches - launches_before, 1);
  }
  must(clv_backend_get(b, read_back, dp, N * 4, &err), &err);
  if (memcmp(read_back, p, N * 4) != 0)
    fail_msg("%s: not the bits of ref", clv_optimizer_row_of(c->kind)->name);
  for (int i = 0; i < CLV_OPTIM_MAX_MOMENTS; i++) {
    if (m[i]) must(clv_backend_get(b, read_back, dm[i], N * 4, &err), &err);
    if (m[i]) assert_memory_equal(read_back, m[i], N * 4);
    b->memory->free(b, dm[i]);
    free(m[i]);
  }
  finish_without_error(b);
  b->memory->free(b, dp);
  b->memory->free(b, dg);
  close_device(b);
  free(p);
  free(g);
  free(read_back);
}

static void optimiser_steps_match_the_ref_backend(void **state) {
  static const clv_optim_config kinds[] = {
#define CASE(name, ...) {__VA_ARGS__},
#include "tests/golden/optim_cases.def"
#undef CASE
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(kinds); i++) check_optimiser(&kinds[i]);
}

/* ---- values that kernels refuse -------------------------------------------------------------- */

typedef struct refusal {
  clv_op op;
  clv_shape in, param_shape;
  int64_t integers[4]; /* values of the op's input of integers: labels or row numbers */
  float x;
} refusal;

static clv_kernel *prepare_refused_kernel(const clv_backend *b, const refusal *r) {
  const clv_op_def *def = clv_op_def_of(r->op);
  clv_node_desc d = {.op = r->op, .dtype = CLV_F32, .threads = 1};
  clv_kernel *k;
  for (d.n_in = 0; d.n_in < CLV_MAX(def->n_in, def->max_in); d.n_in++) {
    bool is_integer = clv_op_int_input_text(def, d.n_in), has_one_per_record = is_integer && d.n_in;
    d.in[d.n_in] = has_one_per_record ? CLV_SHAPE(r->in.dim[0]) : r->in;
    d.in_dtype[d.n_in] = is_integer ? CLV_I64 : CLV_F32;
    d.offered_block[d.n_in] = 1;
  }
  d.attrs.heads = 1;
  if (def->takes_row_numbers) {
    d.attrs.rows = r->param_shape.dim[0];
    d.attrs.column = d.attrs.minus = d.attrs.padding_idx = -1;
    d.attrs.out = r->param_shape.dim[1];
    d.param[0] = r->param_shape;
    d.n_params = 1;
  }
  clv_op_site site = {.attrs = &d.attrs, .n_in = d.n_in};
  memcpy(site.in, d.in, sizeof d.in);
  memcpy(site.in_dtype, d.in_dtype, sizeof d.in_dtype);
  must(clv_op_def_of(r->op)->shape(&site, &d.out, &err), &err);
  must(b->prepare(b, &d, &k, &err), &err);
  return k;
}

/* Runs a kernel over invalid values. Returns the backend's error, which the backend may report at
 * once or only when the caller waits. */
static clv_code get_refusal(const clv_backend *b, const refusal *r, int64_t *ret_layer,
                            clv_err *ret) {
  execution e = {.o = &(run_options){.backend = b, .dtype = CLV_F32}};
  clv_kernel *k = prepare_refused_kernel(b, r);
  size_t n = count_elements(&r->in);
  float *x = allocate_host(n * sizeof *x), *table = draw_floats(1, 64);
  for (size_t i = 0; i < n; i++) x[i] = i == 1 ? r->x : 0.5f;
  int64_t *integers = allocate_host(sizeof r->integers);
  memcpy(integers, r->integers, sizeof r->integers);
  void *device_floats = to_device_memory(&e, x, n * sizeof *x);
  void *device_integers = to_device_memory(&e, integers, sizeof r->integers);
  clv_kernel_args a = {.out = new_backend_memory(&e, 4096),
                       .saved = new_backend_memory(&e, k->saved_bytes),
                       .scratch = new_backend_memory(&e, k->scratch_bytes),
                       .param = {to_device_memory(&e, table, 64 * sizeof *table)},
                       .key = {.layer = 9 << 4}};
  for (int i = 0; i < CLV_MAX_IN; i++)
    a.in[i] = clv_op_int_input_text(clv_op_def_of(r->op), i) ? device_integers : device_floats;
  clv_code code = k->forward(k, &a, ret);
  *ret_layer = -1;
  if (code == CLV_OK && b->memory) code = b->memory->finish(b, ret_layer, ret);
  const void *all[] = {device_floats, device_integers, a.out, a.saved, a.scratch, a.param[0]};
  for (size_t i = 0; i < CLV_COUNT(all); i++) free_device_memory(&e, all[i]);
  k->free(k);
  return code;
}

static void invalid_values_give_the_error_text_of_the_ref_backend(void **state) {
  const refusal refused_cases[] = {
      {CLV_OP_CROSS_ENTROPY, CLV_SHAPE(4, 10), {0}, {9, 0, 10, -1}, 0},
      {CLV_OP_CROSS_ENTROPY, CLV_SHAPE(4, 10), {0}, {9, INT64_MIN, 10, 1}, 0},
      {CLV_OP_NLL, CLV_SHAPE(4, 10), {0}, {9, 0, 3, INT64_MAX}, 0},
      {CLV_OP_FOCAL, CLV_SHAPE(4, 10), {0}, {9, 0, 10, 1}, 0},
      {CLV_OP_EMBEDDING, CLV_SHAPE(2, 2), CLV_SHAPE(16, 4), {0, 15, 3, 16}, 0},
      {CLV_OP_ATTENTION, CLV_SHAPE(4, 3, 2), {0}, {3, 0, 4, -1}, 0},
      {CLV_OP_ATTENTION, CLV_SHAPE(4, 3, 2), {0}, {-1, 3, 4, INT64_MAX}, 0},
      {CLV_OP_ATTENTION, CLV_SHAPE(4, 3, 2), {0}, {3, 0, 1, 2}, 0},
      {CLV_OP_BCE, CLV_SHAPE(2, 2), {0}, {0}, 1.0001f},
      {CLV_OP_BCE, CLV_SHAPE(2, 2), {0}, {0}, 0.5f},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(refused_cases); i++) {
    clv_err want = {0}, got = {0};
    int64_t layer;
    clv_backend *b = open_device(&(clv_sim_options){.seed = i});
    clv_code code = get_refusal(clv_backend_ref(), &refused_cases[i], &layer, &want);
    clv_code device_code = get_refusal(b, &refused_cases[i], &layer, &got);
    if (device_code != code)
      fail_msg("refusal %zu: %d (%s), ref %d (%s)", i, device_code, got.text, code, want.text);
    assert_int_equal(layer == -1, code == CLV_OK);
    if (code != CLV_OK) {
      assert_string_equal(got.text, want.text);
      assert_string_equal(got.offending_value, want.offending_value);
      finish_without_error(b); /* the backend reports an error once, so this wait succeeds */
    }
    close_device(b);
  }
}

/* ---- failures of the device ------------------------------------------------------------------ */

/* Opens a device, allocates memory, copies, and runs kernels. Returns false if any call failed. */
static bool use_everything(const clv_sim_options *o) {
  clv_backend *b;
  float x[100] = {1}, read_back[100];
  double sum;
  int64_t layer;
  void *p = NULL;
  bool succeeds = false;
  if (clv_cuda_open(clv_sim_make_vendor(o), 0, &b, &err) != CLV_OK) return false;
  if (b->memory->allocate(b, sizeof x, &p, &err) == CLV_OK &&
      b->memory->put(b, p, x, sizeof x, &err) == CLV_OK &&
      b->sum_squares(b, p, &(clv_extent){0, 100}, 1, &sum, &err) == CLV_OK) {
    b->add(b, CLV_F32, p, p, 100);
    b->step(b, &(clv_step_args){0}, p, p, (float *const[CLV_OPTIM_MAX_MOMENTS]){0},
            &(clv_extent){0, 7}, 1);
    succeeds = clv_backend_get(b, read_back, p, sizeof x, &err) == CLV_OK;
    succeeds = b->memory->finish(b, &layer, &err) == CLV_OK && succeeds;
  }
  if (p) b->memory->free(b, p);
  clv_cuda_close(b);
  return succeeds;
}

static void no_failure_leaks_device_memory(void **state) {
  int failed[3] = {0};
  (void)state;
  assert_true(use_everything(&(clv_sim_options){0}));
  assert_int_equal(clv_sim_count_leaks(), 0);
  for (uint64_t k = 1; k < (CLV_THREAD_SANITIZED ? 40 : 120); k++)
    for (int kind = 0; kind < 3; kind++) {
      clv_sim_options o = {.seed = k};
      *(uint64_t *[]){&o.failing_allocation, &o.failing_launch, &o.losing_call}[kind] = k;
      failed[kind] += !use_everything(&o);
      if (clv_sim_count_leaks()) fail_msg("something is left: failure %d at %d", kind, (int)k);
    }
  assert_true(failed[0] >= 3 && failed[1] >= 2 && failed[2] >= 20);
}

static void device_below_capability_8_0_refuses_tf32(void **state) {
  (void)state;
  for (int capability = 75; capability <= 80; capability += 5) {
    clv_backend *b = open_device(&(clv_sim_options){.capability = capability});
    if (capability == 80)
      must(clv_backend_check_tf32(b, &err), &err);
    else
      assert_int_equal(clv_backend_check_tf32(b, &err), CLV_PRECONDITION);
    close_device(b);
  }
  assert_non_null(strstr(err.text, "capability 8.0 or above, and cuda:0 has 7.5; leave tf32 out"));
}

static void vendor_table_of_another_abi_is_refused(void **state) {
  clv_vendor other_table = *clv_sim_make_vendor(&(clv_sim_options){0});
  clv_backend *b;
  (void)state;
  other_table.abi++;
  assert_int_equal(clv_cuda_open(&other_table, 0, &b, &err), CLV_PRECONDITION);
  other_table.abi--;
  other_table.size--;
  assert_int_equal(clv_cuda_open(&other_table, 0, &b, &err), CLV_PRECONDITION);
  assert_int_equal(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){0}), 1, &b, &err),
                   CLV_UNAVAILABLE);
  assert_int_equal(clv_sim_count_leaks(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_larger_than_all_host_slots_round_trip),
      cmocka_unit_test(allocated_memory_is_zeroed),
      cmocka_unit_test(freed_memory_and_host_slots_do_not_leak_between_sessions),
      cmocka_unit_test(one_backend_copies_from_another),
      cmocka_unit_test(add_accumulates_f32_values),
      cmocka_unit_test(add_accumulates_bf16_values_at_any_alignment),
      cmocka_unit_test(sum_squares_over_many_extents_takes_two_launches),
      cmocka_unit_test(sum_squares_is_right_with_more_lists_than_cached_tables),
      cmocka_unit_test(optimiser_steps_match_the_ref_backend),
      cmocka_unit_test(invalid_values_give_the_error_text_of_the_ref_backend),
      cmocka_unit_test(no_failure_leaks_device_memory),
      cmocka_unit_test(device_below_capability_8_0_refuses_tf32),
      cmocka_unit_test(vendor_table_of_another_abi_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
