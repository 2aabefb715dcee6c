/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests kernels of cpu on images whose channels fill no channel block. A kernel must give the same
 * bits whatever block is offered. A kernel that takes any block (`layout: any` in the op's cases)
 * must give the same bits also with two threads, in place and, except for groupnorm, in channels
 * last.
 */
#include "tests/long.h"
#include "tests/ops/each_op.h"
#include "tests/ops/run_int.h"

/* LARGE_IMAGE: index of the largest image, which is large enough for two threads. */
enum { LARGE_IMAGE = 3, CHANNELS_LAST = 1 | CLV_LAYOUT_CHANNELS_LAST };
static const int64_t images[][4] = {
    {2, 3, 5, 7}, {3, 17, 6, 5}, {1, 16, 9, 8}, {4, 24, 41, 43}, {2, 32, 5, 3}};

/* Stores in *ret the case with other extents of input 0. Returns false if the case's attributes do
 * not fit them. */
static bool resize_case(const op_case *c, const int64_t extents[4], op_case *ret) {
  clv_err err;
  *ret = *c;
  ret->d.n_params = 0;
  memset(ret->d.in, 0, sizeof ret->d.in);
  for (int i = 0; i < c->d.n_in; i++)
    ret->d.in[i] = CLV_SHAPE(extents[0], extents[1], extents[2], extents[3]);
  return finish_case(&ret->d, &err) == CLV_OK;
}

/* Returns the channel block of input 0 that cpu's kernel accepts when `block` is offered; 0: cpu
 * has no kernel for the case. */
static int find_accepted_block(const op_case *c, int block) {
  clv_node_desc d = c->d;
  clv_kernel *k;
  clv_err err;
  d.dtype = CLV_F32;
  for (int i = 0; i < d.n_in; i++) {
    d.in_dtype[i] = is_integer_input(d.op, i) ? CLV_I64 : CLV_F32;
    d.offered_block[i] = block;
  }
  clv_code code = clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &k, &err);
  if (code == CLV_UNIMPLEMENTED) return 0;
  must(code, &err);
  int accepted_block = k->in_block[0];
  k->free(k);
  return accepted_block;
}

static void run_case_with(const op_case *c, int block, int n_threads, bool is_in_place, values *s) {
  run_options o = {.backend = clv_backend_cpu(),
                   .dtype = CLV_F32,
                   .offered_block = block,
                   .n_threads = n_threads,
                   .is_in_place = is_in_place};
  allocate_values(s, &c->d);
  draw_case(c, s);
  run_case(&o, &c->d, s, NULL);
}

static void assert_same_bits(const op_case *c, const char *difference_text, const values *a,
                             const values *b) {
  char in[160], name[40];
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    for (size_t j = 0; j < a->n[i]; j++)
      if (memcmp(&a->v[i][j], &b->v[i][j], sizeof(double)))
        fail_msg("%s of %s, %s: %s[%zu] is %.9g and not %.9g", c->name,
                 clv_shape_format(&c->d.in[0], in, sizeof in), difference_text,
                 write_value_name(&c->d, i, name), j, b->v[i][j], a->v[i][j]);
}

static void compare_all_options(const op_case *c, bool accepts_any) {
  static const struct {
    const char *how;
    int block, threads;
    bool in_place;
  } variants[] = {{"block 8 offered", 8, 1, false},
                  {"block 16 offered", 16, 1, false},
                  {"two threads", 1, 2, false},
                  {"two threads, block 8 offered", 8, 2, false},
                  {"channels last offered", CHANNELS_LAST, 1, false},
                  {"two threads, channels last offered", CHANNELS_LAST, 2, false},
                  {"in place", 8, 1, true}};
  values row_major, got;
  run_case_with(c, 1, 1, false, &row_major);
  for (size_t i = 0; i < (accepts_any ? CLV_COUNT(variants) : 2); i++) {
    run_case_with(c, variants[i].block, variants[i].threads, variants[i].in_place, &got);
    assert_same_bits(c, variants[i].how, &row_major, &got);
    free_values(&got);
  }
  free_values(&row_major);
}

static void check_case(const op_case *c) {
  bool accepts_any = files[c->d.op].accepts_any_layout;
  for (int block = 8; block <= 16; block += 8) {
    bool is_accepted = find_accepted_block(c, block) == block;
    if (accepts_any && !is_accepted)
      fail_msg("%s: cpu does not take block %d, but " CASES_FOLDER "/%s.cases has 'layout: any'",
               c->name, block, clv_op_name(c->d.op));
  }
  bool accepts_both = find_accepted_block(c, 8) == 8 && find_accepted_block(c, 16) == 16;
  if (!accepts_any && accepts_both)
    fail_msg("%s: cpu takes any block, but " CASES_FOLDER "/%s.cases lacks 'layout: any'", c->name,
             clv_op_name(c->d.op));
  bool accepts_channels_last = find_accepted_block(c, CHANNELS_LAST) == CHANNELS_LAST;
  if (accepts_channels_last !=
      (accepts_any && c->d.op != CLV_OP_GROUPNORM && c->d.op != CLV_OP_INSTANCENORM))
    fail_msg("%s: cpu %s channels last", c->name,
             accepts_channels_last ? "takes" : "does not take");
  compare_all_options(c, accepts_any);
}

/* Tests the op's cases on each image; the large image with one case, in `make long` with all. */
static void test_op(clv_op op) {
  int n = 0;
  bool has_run_large = false;
  for (int i = 0; i < n_cases; i++) {
    op_case c;
    if (cases[i].d.op != op || cases[i].d.in[0].rank != 4 || !cases[i].is_small) continue;
    for (size_t image_index = 0; image_index < CLV_COUNT(images); image_index++) {
      if (image_index == LARGE_IMAGE &&
          (!files[op].accepts_any_layout || (has_run_large && !is_long())))
        continue;
      if (!resize_case(&cases[i], images[image_index], &c) || !find_accepted_block(&c, 1)) continue;
      has_run_large |= image_index == LARGE_IMAGE;
      check_case(&c);
      n++;
    }
  }
  print_message("%-16s %d images, %s\n", clv_op_name(op), n,
                files[op].accepts_any_layout ? "any block" : "a block of its own or none");
  if (files[op].accepts_any_layout && !n)
    fail_msg(
        "kernels/ops/%s.cases says `layout: any`, and no kernel of kernels/cpu takes a blocked "
        "image of its cases: add one, or say `cpu: ref, REASON` without `layout: any`",
        clv_op_name(op));
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("layout", test_op, argv);
}
