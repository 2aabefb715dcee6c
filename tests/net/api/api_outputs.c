/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests modules with several outputs, and values in bf16: api_outputs SESSION.yaml A B runs modules
 * at the nodes A and B, and ends with a digest of what they computed.
 */
#include "api_int.h"

enum { ROWS = 4, IN = 3, HIDDEN = 5, OUT = 2, N_H = ROWS * HIDDEN, N_Y = ROWS * OUT };

/* ---- helper functions ------------------------------------------------------------------------ */

/* Makes the graph x [4, 3] -> w (linear to 5, tanh). Output 0 is w's value with shape [4, 5, 1],
 * output 1 is v (linear to 2) of w's value. */
static bool make_graph(cleave_graph **ret) {
  static const int64_t shape[] = {ROWS, IN};
  int x, w, h, dh_tensor, y;
  cleave_graph *g;
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "x", CLEAVE_F32, shape, 2, &x, e));
  MUST(cleave_graph_op(g, "linear", "{out: 5}", "0", &x, 1, &w, e));
  MUST(cleave_graph_op(g, "tanh", NULL, "1", &w, 1, &h, e));
  MUST(cleave_graph_op(g, "linear", "{out: 2}", "2", &h, 1, &y, e));
  MUST(cleave_graph_op(g, "reshape", "{shape: [5, 1]}", "3", &h, 1, &dh_tensor, e));
  MUST(cleave_graph_output(g, dh_tensor, e));
  MUST(cleave_graph_output(g, y, e));
  *ret = g;
  return true;
}

static bool load_pair(const char *name, const char *at, cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at, .seed = 7};
  cleave_graph *g;
  DO(make_graph(&g));
  MUST(cleave_load_graph(rt, &o, g, ret, e));
  cleave_graph_free(g);
  return true;
}

static bool load_from_layer(const char *name, const char *layers, uint32_t first, int64_t in,
                            cleave_module **ret) {
  cleave_module_options o = {
      .size = sizeof o, .name = name, .at = at_a, .seed = 7, .first_layer = first};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, ROWS, in);
  MUST(cleave_load_layers(rt, &o, layers, &input, ret, e));
  return true;
}

static cleave_status backward_from(cleave_context c, const cleave_reference *roots, size_t n,
                                   const cleave_tensor *gradients, bool retain, cleave_error *e) {
  const cleave_backward_options o = {.size = sizeof o, .gradients = gradients, .retain = retain};
  return cleave_backward_with(rt, c, roots, n, &o, e);
}

static bool is_tensor_near(const cleave_tensor *a, const cleave_tensor *b, size_t n) {
  CHECK(cleave_tensor_count(a) == n && cleave_tensor_count(b) == n);
  for (size_t i = 0; i < n; i++) CHECK(is_near(((float *)a->data)[i], ((float *)b->data)[i]));
  return true;
}

static uint16_t round_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float widen_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

static bool is_rounded(const cleave_tensor *t, const cleave_tensor *exact, size_t n) {
  CHECK(t->dtype == CLEAVE_BF16 && cleave_tensor_count(t) == n && cleave_tensor_count(exact) == n);
  for (size_t i = 0; i < n; i++)
    CHECK(((uint16_t *)t->data)[i] == round_to_bf16(((float *)exact->data)[i]));
  return true;
}

/* ---- modules with several outputs ------------------------------------------------------------ */

/* The two layers as modules of one output each, with the same initial values. */
typedef struct separate_modules {
  cleave_module *w, *v;
  cleave_context c;
  cleave_reference x, h, y;
} separate_modules;

static bool run_separate_modules(const float *x, separate_modules *p) {
  DO(open_context(&p->c));
  DO(make_leaf(p->c, x, ROWS, IN, true, &p->x));
  MUST(cleave_call(rt, p->c, p->w, &p->x, 1, &p->h, e));
  MUST(cleave_call(rt, p->c, p->v, &p->h, 1, &p->y, e));
  return true;
}

static bool compare_gradients(cleave_module *pair, cleave_context c, cleave_reference x,
                              const separate_modules *p) {
  static const struct {
    const char *name, *name_in_part;
    size_t n;
  } rows[] = {{"0.weight", "0.weight", 15}, {"0.bias", "0.bias", 5}, {"2.weight", "2.weight", 10}};
  cleave_tensor got = {0}, want = {0};
  for (int i = 0; i < 3; i++) {
    DO(read_gradient(c, pair, rows[i].name, &got));
    DO(read_gradient(p->c, i < 2 ? p->w : p->v, rows[i].name_in_part, &want));
    DO(is_tensor_near(&got, &want, rows[i].n));
    add_to_digest(&got);
  }
  MUST(cleave_leaf_gradient(rt, x, &got, e));
  MUST(cleave_leaf_gradient(rt, p->x, &want, e));
  DO(is_tensor_near(&got, &want, ROWS * IN));
  add_to_digest(&got);
  cleave_tensor_free(&got);
  cleave_tensor_free(&want);
  return true;
}

/* A module with two outputs must have the same values and gradients as two modules, of which each
 * has one of its layers. The backward starts from both outputs, with a gradient for each. */
static bool outputs_equal_those_of_separate_modules(void) {
  separate_modules p;
  cleave_module *pair;
  cleave_context c;
  cleave_reference x, out[2];
  cleave_tensor got = {0}, want = {0};
  float numbers[ROWS * IN], dh[N_H], dy[N_Y];
  DO(load_pair("pair", at_a, &pair));
  DO(load_from_layer("w apart", "[{op: linear, out: 5}, {op: tanh}]", 0, IN, &p.w));
  DO(load_from_layer("v apart", "[{op: linear, out: 2}]", 2, HIDDEN, &p.v));
  CHECK(cleave_output_count(pair) == 2 && cleave_output_count(p.w) == 1);
  fill_with_random(numbers, ROWS * IN, 1);
  fill_with_random(dh, N_H, 2);
  fill_with_random(dy, N_Y, 3);
  DO(run_separate_modules(numbers, &p));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, ROWS, IN, true, &x));
  MUST(cleave_call_outputs(rt, c, pair, &x, 1, NULL, out, 2, e));
  MUST(cleave_to_here(rt, out[0], 0, &got, e));
  MUST(cleave_to_here(rt, p.h, 0, &want, e));
  CHECK(got.rank == 3 && got.shape[1] == HIDDEN && got.shape[2] == 1);
  CHECK(memcmp(got.data, want.data, N_H * sizeof(float)) == 0);
  MUST(cleave_to_here(rt, out[1], 0, &got, e));
  MUST(cleave_to_here(rt, p.y, 0, &want, e));
  CHECK(got.rank == 2 && memcmp(got.data, want.data, N_Y * sizeof(float)) == 0);
  cleave_tensor h = CLEAVE_TENSOR_F32(dh, ROWS, HIDDEN), y = CLEAVE_TENSOR_F32(dy, ROWS, OUT);
  cleave_tensor dh_tensor = CLEAVE_TENSOR_F32(dh, ROWS, HIDDEN, 1);
  MUST(backward_from(p.c, (cleave_reference[]){p.h, p.y}, 2, (cleave_tensor[]){h, y}, false, e));
  MUST(backward_from(c, out, 2, (cleave_tensor[]){dh_tensor, y}, false, e));
  DO(compare_gradients(pair, c, x, &p));
  cleave_tensor_free(&got);
  cleave_tensor_free(&want);
  DO(close_context(p.c));
  return close_context(c);
}

/* An output without a gradient counts as one whose gradient is zero, also in the second of two
 * backwards with retain. */
static bool output_without_gradient_counts_as_zero(void) {
  cleave_module *pair;
  cleave_context c;
  cleave_reference x, out[2];
  cleave_tensor g = {0}, first_gradient = {0};
  float numbers[ROWS * IN], dh[N_H];
  DO(load_pair("half used", at_a, &pair));
  fill_with_random(numbers, ROWS * IN, 4);
  fill_with_random(dh, N_H, 5);
  cleave_tensor dh_tensor = CLEAVE_TENSOR_F32(dh, ROWS, HIDDEN, 1);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, ROWS, IN, true, &x));
  MUST(cleave_call_outputs(rt, c, pair, &x, 1, NULL, out, 2, e));
  MUST(backward_from(c, &out[0], 1, &dh_tensor, true, e));
  DO(read_gradient(c, pair, "2.weight", &g));
  for (int i = 0; i < 10; i++) CHECK(((float *)g.data)[i] == 0);
  MUST(cleave_leaf_gradient_take(rt, x, &first_gradient, e));
  MUST(backward_from(c, &out[0], 1, &dh_tensor, false, e));
  MUST(cleave_leaf_gradient_take(rt, x, &g, e));
  CHECK(memcmp(g.data, first_gradient.data, sizeof numbers) == 0);
  REFUSED(backward_from(c, &out[1], 1, &(cleave_tensor){0}, false, e), CLEAVE_INVALID, "scalars");
  cleave_tensor_free(&g);
  cleave_tensor_free(&first_gradient);
  return close_context(c);
}

/* Each output of a module can be an input of modules at other nodes, can be kept beyond its
 * context, and can be forgotten. */
static bool outputs_are_values_of_their_own(void) {
  cleave_module *pair, *reader, *loss;
  cleave_context c, d;
  cleave_reference x, target, out[2], z, l;
  cleave_kept kept_value;
  cleave_tensor t = {0}, fetched_again = {0};
  cleave_place place;
  float numbers[ROWS * IN], labels[N_Y];
  DO(load_pair("own", at_a, &pair));
  DO(load_module("reader", at_b, "[{op: linear, out: 2}]", OUT, &reader));
  DO(load_loss("reader's loss", at_a, OUT, &loss));
  fill_with_random(numbers, ROWS * IN, 6);
  fill_with_random(labels, N_Y, 7);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, ROWS, IN, true, &x));
  DO(make_leaf(c, labels, ROWS, OUT, false, &target));
  const cleave_call_options to_b = {.size = sizeof to_b, .send_to = at_b};
  MUST(cleave_call_outputs(rt, c, pair, &x, 1, &to_b, out, 2, e));
  MUST(cleave_call(rt, c, reader, &out[1], 1, &z, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){z, target}, 2, &l, e));
  MUST(cleave_owner(rt, out[1], &place, e));
  CHECK(strcmp(place.node, at_a) == 0);
  MUST(cleave_keep(rt, out[1], &kept_value, e));
  DO(backward(c, l, false));
  MUST(cleave_leaf_gradient(rt, x, &t, e));
  add_to_digest(&t);
  MUST(cleave_to_here(rt, out[1], 0, &t, e));
  DO(close_context(c));
  MUST(cleave_kept_fetch(rt, kept_value, 0, &fetched_again, e));
  CHECK(memcmp(t.data, fetched_again.data, N_Y * sizeof(float)) == 0);
  MUST(cleave_kept_release(rt, kept_value, e));
  DO(open_context(&d));
  DO(make_leaf(d, numbers, ROWS, IN, false, &x));
  MUST(cleave_call_outputs(rt, d, pair, &x, 1, NULL, out, 2, e));
  for (int i = 0; i < 2; i++) MUST(cleave_call_forget(rt, out[i], e));
  REFUSED(cleave_to_here(rt, out[0], 0, &t, e), CLEAVE_NOT_FOUND, "released");
  cleave_tensor_free(&t);
  cleave_tensor_free(&fetched_again);
  DO(close_context(d));
  return true;
}

static bool wrong_outputs_are_refused(void) {
  static const int64_t shape[] = {ROWS, IN};
  cleave_module *pair, *none;
  cleave_context c;
  cleave_reference x, out[3];
  cleave_graph *g;
  cleave_tensor t = {0};
  float numbers[ROWS * IN] = {0};
  int in, y, loss;
  cleave_module_options o = {.size = sizeof o, .name = "with a loss", .at = at_a};
  DO(load_pair("refusing", at_a, &pair));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, ROWS, IN, true, &x));
  REFUSED(cleave_call(rt, c, pair, &x, 1, out, e), CLEAVE_INVALID, "has 2 outputs");
  REFUSED(cleave_rpc_sync(rt, c, pair, &x, 1, 0, out, &t, e), CLEAVE_INVALID,
          "cleave_call_outputs");
  REFUSED(cleave_call_outputs(rt, c, pair, &x, 1, NULL, out, 3, e), CLEAVE_INVALID,
          "module 'refusing' has 2 outputs, not 3");
  REFUSED(cleave_call_outputs(rt, c, pair, (cleave_reference[]){x, x}, 2, NULL, out, 2, e),
          CLEAVE_INVALID, "module 'refusing' has 1 input, not 2");
  DO(close_context(c));
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "x", CLEAVE_F32, shape, 2, &in, e));
  MUST(cleave_graph_op(g, "linear", "{out: 3}", NULL, &in, 1, &y, e));
  MUST(cleave_graph_op(g, "mse", NULL, NULL, (int[]){y, in}, 2, &loss, e));
  REFUSED(cleave_graph_output(g, in, e), CLEAVE_INVALID, "output 0: 0 is no op");
  MUST(cleave_graph_output(g, y, e));
  MUST(cleave_graph_output(g, loss, e));
  REFUSED(cleave_load_graph(rt, &o, g, &none, e), CLEAVE_INVALID,
          "module 'with a loss': output 1 ('1') is f32 []");
  for (int i = 2; i < 8; i++) MUST(cleave_graph_output(g, y, e));
  REFUSED(cleave_graph_output(g, y, e), CLEAVE_EXHAUSTED, "at most 8");
  cleave_graph_free(g);
  return true;
}

/* ---- leaves and values in bf16 --------------------------------------------------------------- */

/* With a leaf in bf16, modules must compute the same values and gradients as with an f32 leaf of
 * the same numbers. The leaf's own gradient, and copies that the program fetches, are rounded to
 * bf16. */
static bool bf16_leaf_computes_as_the_same_numbers_in_f32(void) {
  net n;
  cleave_context c[2];
  cleave_reference x[2], h, y[2];
  cleave_tensor value[2] = {{0}, {0}}, g[2] = {{0}, {0}}, weight[2] = {{0}, {0}};
  float numbers[ROWS * IN], dy[N_Y];
  uint16_t rounded[ROWS * IN], rounded_y[N_Y];
  DO(make_network("bf16", at_a, &n));
  fill_with_random(numbers, ROWS * IN, 8);
  fill_with_random(dy, N_Y, 9);
  for (int i = 0; i < ROWS * IN; i++)
    numbers[i] = widen_bf16(rounded[i] = round_to_bf16(numbers[i]));
  for (int i = 0; i < N_Y; i++) dy[i] = widen_bf16(rounded_y[i] = round_to_bf16(dy[i]));
  const cleave_tensor leaves[] = {CLEAVE_TENSOR_F32(numbers, ROWS, IN),
                                  CLEAVE_TENSOR_BF16(rounded, ROWS, IN)};
  const cleave_tensor dys[] = {CLEAVE_TENSOR_F32(dy, ROWS, OUT),
                               CLEAVE_TENSOR_BF16(rounded_y, ROWS, OUT)};
  for (int i = 0; i < 2; i++) {
    const cleave_call_options o = {
        .size = sizeof o, .to_program = true, .fetch_dtype = i ? CLEAVE_BF16 : 0};
    DO(open_context(&c[i]));
    MUST(cleave_leaf(rt, c[i], &leaves[i], true, &x[i], e));
    MUST(cleave_call(rt, c[i], n.a, &x[i], 1, &h, e));
    MUST(cleave_call_with(rt, c[i], n.b, &h, 1, &o, &y[i], e));
    MUST(cleave_to_here(rt, y[i], 0, &value[i], e));
    MUST(backward_from(c[i], &y[i], 1, &dys[i], i, e));
    MUST(cleave_leaf_gradient(rt, x[i], &g[i], e));
    DO(read_gradient(c[i], n.a, "0.weight", &weight[i]));
    add_to_digest(&weight[i]);
  }
  DO(is_rounded(&value[1], &value[0], N_Y));
  DO(is_rounded(&g[1], &g[0], ROWS * IN));
  CHECK(memcmp(weight[0].data, weight[1].data, 15 * sizeof(float)) == 0);
  MUST(backward_from(c[1], &y[1], 1, &dys[1], false, e)); /* adds the same gradient again */
  MUST(cleave_leaf_gradient(rt, x[1], &value[0], e));
  for (int i = 0; i < ROWS * IN; i++)
    CHECK(widen_bf16(((uint16_t *)value[0].data)[i]) == 2 * widen_bf16(((uint16_t *)g[1].data)[i]));
  for (int i = 0; i < 2; i++) {
    cleave_tensor_free(&value[i]);
    cleave_tensor_free(&g[i]);
    cleave_tensor_free(&weight[i]);
    DO(close_context(c[i]));
  }
  return true;
}

/* The program fetches an output of a module in bf16. A module at another worker must still read the
 * exact output. If a worker computes the output, a module at the master is refused, because the
 * worker sends the master only the rounded output. */
static bool rounded_copies_are_for_the_program_alone(void) {
  cleave_module *pair, *reader, *master_module;
  cleave_context c;
  cleave_reference x, out[2], read_value, w;
  cleave_tensor y[2] = {{0}, {0}}, z[2] = {{0}, {0}};
  float numbers[ROWS * IN];
  const bool is_at_master = strcmp(at_a, "master") == 0;
  DO(load_pair("fetched", at_a, &pair));
  DO(load_module("reads the exact", strcmp(at_b, "master") == 0 ? at_a : at_b,
                 "[{op: linear, out: 2}]", OUT, &reader));
  DO(load_module("at home", "master", "[{op: linear, out: 2}]", OUT, &master_module));
  fill_with_random(numbers, ROWS * IN, 10);
  for (int i = 0; i < 2; i++) {
    const cleave_call_options o = {.size = sizeof o, .fetch_dtype = i ? CLEAVE_BF16 : CLEAVE_F32};
    DO(open_context(&c));
    DO(make_leaf(c, numbers, ROWS, IN, false, &x));
    MUST(cleave_call_outputs(rt, c, pair, &x, 1, &o, out, 2, e));
    MUST(cleave_to_here(rt, out[1], 0, &y[i], e));
    if (i) DO(is_rounded(&y[1], &y[0], N_Y));
    MUST(cleave_call(rt, c, reader, &out[1], 1, &read_value, e));
    MUST(cleave_to_here(rt, read_value, 0, &z[i], e));
    if (i) CHECK(memcmp(z[0].data, z[1].data, N_Y * sizeof(float)) == 0);
    if (i && !is_at_master) {
      REFUSED(cleave_call(rt, c, master_module, &out[1], 1, &w, e), CLEAVE_INVALID,
              "without fetch_dtype");
      REFUSED(cleave_send_to(rt, out[0], "master", e), CLEAVE_INVALID, "without fetch_dtype");
    }
    DO(close_context(c));
  }
  for (int i = 0; i < 2; i++) {
    cleave_tensor_free(&y[i]);
    cleave_tensor_free(&z[i]);
  }
  return true;
}

static bool measure_fetch(cleave_module *m, cleave_reference x, cleave_context c,
                          cleave_dtype dtype, uint64_t *ret_bytes) {
  const cleave_call_options o = {.size = sizeof o, .fetch_dtype = dtype};
  cleave_link_totals before, after;
  cleave_reference y;
  cleave_tensor t = {0};
  MUST(cleave_call(rt, c, m, &x, 1, &y, e)); /* the first call loads the module */
  MUST(cleave_call_with(rt, c, m, &x, 1, &o, &y, e));
  cleave_get_link_totals(rt, &before);
  MUST(cleave_to_here(rt, y, 0, &t, e));
  cleave_get_link_totals(rt, &after);
  CHECK(t.dtype == dtype);
  cleave_tensor_free(&t);
  *ret_bytes = after.bytes_down - before.bytes_down;
  return true;
}

/* A worker sends a value that is fetched in bf16 in half the bytes. */
static bool value_in_bf16_has_half_the_bytes(void) {
  enum { MANY_ROWS = 4096 };
  static const float numbers[MANY_ROWS * IN];
  cleave_module *m;
  cleave_context c;
  cleave_reference x;
  uint64_t f32_bytes, bf16_bytes;
  DO(load_module("many rows", at_a, "[{op: linear, out: 2}]", IN, &m));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, MANY_ROWS, IN, false, &x));
  DO(measure_fetch(m, x, c, CLEAVE_F32, &f32_bytes));
  DO(measure_fetch(m, x, c, CLEAVE_BF16, &bf16_bytes));
  if (strcmp(at_a, "master") != 0)
    CHECK(f32_bytes >= MANY_ROWS * OUT * 4 && bf16_bytes >= MANY_ROWS * OUT * 2 &&
          bf16_bytes < MANY_ROWS * OUT * 3);
  return close_context(c);
}

static bool wrong_uses_of_bf16_are_refused(void) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  int64_t ids[ROWS] = {0};
  uint16_t rounded[ROWS] = {0};
  cleave_tensor leaf = CLEAVE_TENSOR_BF16(rounded, ROWS, 1);
  cleave_module_options o = {.size = sizeof o, .name = "of ids", .at = at_a};
  cleave_call_options call_options = {.size = sizeof call_options, .fetch_dtype = CLEAVE_I64};
  cleave_input input = CLEAVE_INPUT(CLEAVE_I64, ROWS, 1);
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 2, out: 2}]", &input, &m, e));
  DO(open_context(&c));
  MUST(cleave_leaf(rt, c, &leaf, false, &x, e));
  REFUSED(cleave_call(rt, c, m, &x, 1, &y, e), CLEAVE_INVALID, "i64 [4, 1], but value");
  leaf = (cleave_tensor)CLEAVE_TENSOR_I64(ids, ROWS, 1);
  REFUSED(cleave_leaf(rt, c, &leaf, true, &y, e), CLEAVE_INVALID, "only f32 and bf16");
  MUST(cleave_leaf(rt, c, &leaf, false, &x, e));
  REFUSED(cleave_call_with(rt, c, m, &x, 1, &call_options, &y, e), CLEAVE_INVALID, "fetch_dtype 3");
  return close_context(c);
}

/* Opens the runtime. If the program has a fifth argument, a folder, the library records there the
 * tensors that it sends. */
static bool open_recorded_session(char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .run = argv[4]};
  at_a = argv[2];
  at_b = argv[3];
  MUST(cleave_open(argv[1], &o, &rt, e));
  return true;
}

static const test tests[] = {
    TEST(outputs_equal_those_of_separate_modules),
    TEST(output_without_gradient_counts_as_zero),
    TEST(outputs_are_values_of_their_own),
    TEST(wrong_outputs_are_refused),
    TEST(bf16_leaf_computes_as_the_same_numbers_in_f32),
    TEST(rounded_copies_are_for_the_program_alone),
    TEST(value_in_bf16_has_half_the_bytes),
    TEST(wrong_uses_of_bf16_are_refused),
};

int main(int argc, char **argv) { return RUN_SESSION(argc, argv, open_recorded_session, tests); }
