/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the weight gradients of convolutions that Cleave computes without oneDNN, and the packing
 * of weights into tiles. Calls these functions directly, so that both block widths are tested on
 * every processor, and compares them with plain loops, for several numbers of threads, overwriting
 * the result or adding to it.
 */
#include "kernels/cpu/conv_int.h"

#include "tests/unit/cpu/cpu_test.h"

static const clv_window windows[] = {
    {.n = 3, .c = 2, .h = 9, .w = 7, .k = 21, .kernel = {3, 3}, .stride = {1, 1}, .pad = {1, 1}},
    {.n = 2, .c = 11, .h = 8, .w = 9, .k = 17, .kernel = {5, 3}, .stride = {2, 1}, .pad = {0, 2}},
    {.n = 1, .c = 8, .h = 5, .w = 12, .k = 8, .kernel = {1, 3}, .stride = {1, 3}, .pad = {0, 0}},
    {.n = 4, .c = 1, .h = 6, .w = 6, .k = 40, .kernel = {4, 3}, .stride = {3, 2}, .pad = {2, 1}},
    {.n = 2,
     .c = 3,
     .h = 9,
     .w = 8,
     .k = 9,
     .kernel = {2, 3},
     .stride = {2, 1},
     .dilation = {3, 2}},
};

static clv_window get_window(size_t i) {
  clv_window s = windows[i];
  for (int d = 0; d < 2; d++) s.dilation[d] = CLV_MAX(s.dilation[d], 1);
  s.oh = (s.h + 2 * s.pad[0] - (s.kernel[0] - 1) * s.dilation[0] - 1) / s.stride[0] + 1;
  s.ow = (s.w + 2 * s.pad[1] - (s.kernel[1] - 1) * s.dilation[1] - 1) / s.stride[1] + 1;
  return s;
}

/* Returns the expected element i of dw [K, C, kh, kw]. */
static double compute_expected(const clv_window *s, const float *x, const float *dy, int64_t i) {
  int64_t v = i % s->kernel[1], u = i / s->kernel[1] % s->kernel[0];
  int64_t c = i / (s->kernel[1] * s->kernel[0]) % s->c,
          k = i / (s->kernel[1] * s->kernel[0] * s->c);
  double sum = 0;
  for (int64_t p = 0; p < s->n * s->oh * s->ow; p++) {
    int64_t n = p / (s->oh * s->ow);
    int64_t h = p / s->ow % s->oh * s->stride[0] - s->pad[0] + u * s->dilation[0];
    int64_t w = p % s->ow * s->stride[1] - s->pad[1] + v * s->dilation[1];
    if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
    sum += (double)dy[(n * s->k + k) * s->oh * s->ow + p % (s->oh * s->ow)] *
           x[((n * s->c + c) * s->h + h) * s->w + w];
  }
  return sum;
}

typedef struct gradient {
  size_t n; /* number of values of dw */
  float *dw;
} gradient;

static gradient run_weight_job(cpu_weight_grad_job job, void fn(const cpu_weight_grad_job *),
                               size_t scratch_bytes) {
  const clv_window *s = &job.s;
  gradient g = {(size_t)(s->k * s->c * s->kernel[0] * s->kernel[1]), NULL};
  g.dw = allocate_floats(g.n);
  job.dw = g.dw;
  job.scratch = allocate_bytes(scratch_bytes);
  fn(&job);
  job.accumulate = true;
  fn(&job);
  free(job.scratch);
  return g;
}

static void check_weight_gradient(const clv_window *s, int block, bool is_wide) {
  clv_shape in = CLV_SHAPE(s->n, s->c, s->h, s->w), out = CLV_SHAPE(s->n, s->k, s->oh, s->ow);
  float *x = allocate_floats(count_elements(&in)), *dy = allocate_floats(count_elements(&out));
  draw_normal(x, count_elements(&in), 1);
  draw_normal(dy, count_elements(&out), 2);
  float *xb = copy_to_layout(&in, x, is_wide ? block : 1), *dyb = copy_to_layout(&out, dy, block);
  cpu_weight_grad_job job = {.s = *s, .block = block, .x = xb, .dy = dyb};
  gradient g[3];
  for (int t = 0; t < 3; t++) {
    job.threads = t + 1;
    size_t scratch_bytes = is_wide ? clv_cpu_wide_conv_scratch_bytes(s, job.threads)
                                   : clv_cpu_small_conv_scratch_bytes(s, block, job.threads);
    g[t] = run_weight_job(
        job, is_wide ? clv_cpu_wide_conv_compute_dw : clv_cpu_small_conv_compute_dw, scratch_bytes);
    assert_same_bits("weight by threads", g[t].dw, g[0].dw, g[0].n);
  }
  double *dw = calloc(g[0].n, sizeof *dw);
  for (size_t i = 0; i < g[0].n; i++) dw[i] = 2 * compute_expected(s, x, dy, (int64_t)i);
  assert_near("weight", g[0].dw, dw, g[0].n);
  for (int t = 0; t < 3; t++) free(g[t].dw);
  free(dw);
  free(x);
  free(dy);
  free(xb);
  free(dyb);
}

static void test_few_channel_weight_gradient_matches_loops(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(windows); i++)
    for (int block = 8; block <= 16; block += 8) {
      clv_window s = get_window(i);
      check_weight_gradient(&s, block, false);
    }
}

static void test_three_tap_weight_gradient_matches_loops(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(windows); i++) {
    clv_window s = get_window(i);
    if (s.dilation[0] * s.dilation[1] > 1) {
      assert_false(clv_cpu_can_use_wide_conv(&s, 8));
      continue;
    }
    if (!clv_cpu_can_use_wide_conv(&s, 8)) {
      print_message("because this processor is not wide enough\n");
      skip();
    }
    check_weight_gradient(&s, 8, true);
    assert_false(clv_cpu_can_use_wide_conv(&s, 16));
    s.kernel[1] = 2;
    assert_false(clv_cpu_can_use_wide_conv(&s, 8));
  }
}

/* ---- gradients of biases --------------------------------------------------------------------- */

/* Computes the bias gradient twice. The second result is added to the first. */
static void compute_bias_gradient(const clv_shape *shape, const float *dy, int block, int threads,
                                  float *db) {
  float *values = copy_to_layout(shape, dy, block);
  cpu_bias_grad_job job = {.dy = values,
                           .n = shape->dim[0],
                           .channels = shape->dim[1],
                           .positions = shape->dim[2] * shape->dim[3],
                           .block = block,
                           .db = db};
  for (int i = 0; i < 2; i++) {
    job.accumulate = i;
    clv_cpu_parallel(threads, clv_cpu_conv_count_bias_blocks(&job), clv_cpu_conv_sum_bias_grads,
                     &job);
  }
  free(values);
}

static void test_bias_gradient_has_same_bits_in_every_layout(void **state) {
  (void)state;
  const clv_shape shapes[] = {CLV_SHAPE(3, 21, 9, 7), CLV_SHAPE(1, 40, 1, 3),
                              CLV_SHAPE(2, 16, 99, 70)};
  for (size_t i = 0; i < CLV_COUNT(shapes); i++) {
    size_t n = count_elements(&shapes[i]), channels = (size_t)shapes[i].dim[1];
    size_t positions = n / (size_t)shapes[i].dim[0] / channels;
    float *dy = allocate_floats(n), db[2][40];
    double expected[40] = {0};
    draw_normal(dy, n, 2);
    for (size_t p = 0; p < n; p++) expected[p / positions % channels] += 2 * (double)dy[p];
    for (int run = 0; run < 6; run++) {
      static const int blocks[] = {1, 8, 16};
      compute_bias_gradient(&shapes[i], dy, blocks[run / 2], 1 + run % 2, db[run > 0]);
      if (run) assert_same_bits("bias by layout and threads", db[1], db[0], channels);
    }
    assert_near("bias", db[0], expected, channels);
    free(dy);
  }
}

/* ---- weights that are packed into tiles ------------------------------------------------------ */

/* These two functions return the index of weight (k, c, tap) in `forward_tiles` and in
 * `backward_tiles`. */
static size_t get_forward_tile_index(const cpu_weight_tiles *w, int64_t k, int64_t c, int64_t tap) {
  int64_t tile = k / 16 * (w->c / 16) + c / 16;
  return (size_t)((tile * w->n_taps + tap) * 256 + c % 16 * 16 + k % 16);
}

static size_t get_backward_tile_index(const cpu_weight_tiles *w, int64_t k, int64_t c,
                                      int64_t tap) {
  int64_t k_major_tile = k / 16 * (w->c / 16) + c / 16,
          c_major_tile = c / 16 * (w->k / 16) + k / 16;
  int64_t tile = w->backward_tiles_are_c_major ? c_major_tile : k_major_tile;
  return (size_t)((tile * w->n_taps + tap) * 256 + k % 16 * 16 + c % 16);
}

static void check_tiles(cpu_weight_tiles w) {
  size_t n = (size_t)(w.k * w.c * w.n_taps);
  float *row_major_weights = allocate_floats(n), *forward_tiles = allocate_floats(n),
        *backward_tiles = allocate_floats(n);
  bool packs_forward_tiles = w.forward_tiles, packs_backward_tiles = w.backward_tiles;
  draw_normal(row_major_weights, n, 1);
  w.row_major = row_major_weights;
  w.forward_tiles = packs_forward_tiles ? forward_tiles : NULL;
  w.backward_tiles = packs_backward_tiles ? backward_tiles : NULL;
  clv_cpu_weight_tiles_pack(&w);
  for (size_t i = 0; i < n; i++) {
    int64_t tap = (int64_t)i % w.n_taps, c = (int64_t)i / w.n_taps % w.c,
            k = (int64_t)i / w.n_taps / w.c;
    if (packs_forward_tiles)
      assert_true(forward_tiles[get_forward_tile_index(&w, k, c, tap)] == row_major_weights[i]);
    if (packs_backward_tiles)
      assert_true(backward_tiles[get_backward_tile_index(&w, k, c, tap)] == row_major_weights[i]);
  }
  if (packs_forward_tiles) {
    float *unpacked = allocate_floats(n);
    w.row_major = unpacked;
    clv_cpu_weight_tiles_unpack(&w);
    assert_memory_equal(unpacked, row_major_weights, n * sizeof *unpacked);
    w.unpack_adds = true;
    clv_cpu_weight_tiles_unpack(&w);
    for (size_t i = 0; i < n; i++)
      assert_true(unpacked[i] == row_major_weights[i] + row_major_weights[i]);
    free(unpacked);
  }
  free(row_major_weights);
  free(forward_tiles);
  free(backward_tiles);
}

static void test_weight_tiles_match_loops(void **state) {
  (void)state;
  static const int64_t taps[] = {1, 6, 9, 49};
  /* A pointer to this variable tells check_tiles to pack these tiles. check_tiles then replaces the
   * pointer by a buffer. */
  float tiles_placeholder;
  /* variants: one thread or two, either order of the backward tiles, and packing of the forward
   * tiles, of the backward tiles or of both */
  for (size_t i = 0; i < CLV_COUNT(taps); i++)
    for (int variant = 0; variant < 12; variant++)
      check_tiles(
          (cpu_weight_tiles){.k = 48,
                             .c = 32,
                             .n_taps = taps[i],
                             .threads = variant & 1 ? 2 : 1,
                             .backward_tiles_are_c_major = variant & 2,
                             .forward_tiles = variant / 4 != 1 ? &tiles_placeholder : NULL,
                             .backward_tiles = variant / 4 != 0 ? &tiles_placeholder : NULL});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_few_channel_weight_gradient_matches_loops),
      cmocka_unit_test(test_three_tap_weight_gradient_matches_loops),
      cmocka_unit_test(test_bias_gradient_has_same_bits_in_every_layout),
      cmocka_unit_test(test_weight_tiles_match_loops),
  };
  return cmocka_run_group_tests_name("cpu conv weight", tests, NULL, NULL);
}
