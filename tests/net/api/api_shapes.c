/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests unusual shapes in the C API: empty batches, scalars, and linear layers with any dimensions
 * between the batch and the features, as PyTorch has them. Also tests models that a config.json
 * describes, and adapters. Usage: api_shapes SESSION.yaml A B runs modules at the nodes A and B.
 */
#include "api_int.h"

/* ---- empty batches --------------------------------------------------------------------------- */

static bool make_empty_leaf(cleave_context c, int64_t width, bool needs_gradient,
                            cleave_reference *ret) {
  cleave_tensor t = {.dtype = CLEAVE_F32, .rank = 2, .shape = {0, width}};
  MUST(cleave_leaf(rt, c, &t, needs_gradient, ret, e));
  return true;
}

static bool is_value_empty(cleave_reference r, int64_t width) {
  cleave_tensor t = {0};
  MUST(cleave_to_here(rt, r, 0, &t, e));
  CHECK(t.rank == 2 && t.shape[0] == 0 && t.shape[1] == width && cleave_tensor_count(&t) == 0);
  cleave_tensor_free(&t);
  return true;
}

static bool is_gradient_zero(cleave_context c, cleave_module *m, const char *name, size_t n) {
  cleave_tensor g = {0};
  DO(read_gradient(c, m, name, &g));
  CHECK(cleave_tensor_count(&g) == n);
  for (size_t i = 0; i < n; i++) CHECK(((float *)g.data)[i] == 0);
  cleave_tensor_free(&g);
  return true;
}

/* With an empty batch, values and gradients of inputs are empty, gradients of parameters are zero,
 * the mean loss is NaN, and a step changes no parameter. */
static bool empty_batch_passes_all_modules(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference x, h, y, target, loss;
  cleave_tensor t = {0}, weight_before = {0}, weight_after = {0};
  cleave_step_result step_result;
  DO(make_network("nothing", at_b, &n));
  cleave_module *all[] = {n.a, n.b};
  cleave_group g = {.modules = all, .n_modules = 2, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &g, 1, 1.0, &o, e));
  DO(read_weight(n.a, "0.weight", &weight_before));
  DO(open_context(&c));
  DO(make_empty_leaf(c, 3, true, &x));
  DO(make_empty_leaf(c, 2, false, &target));
  DO(is_value_empty(x, 3));
  MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
  MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
  MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, target}, 2, &loss, e));
  DO(is_value_empty(h, 5));
  DO(is_value_empty(y, 2));
  MUST(cleave_to_here(rt, loss, 0, &t, e));
  CHECK(t.rank == 0 && isnan(*(float *)t.data));
  DO(backward(c, loss, true));
  DO(backward(c, loss, false));
  MUST(cleave_leaf_gradient(rt, x, &t, e));
  CHECK(t.rank == 2 && t.shape[0] == 0 && t.shape[1] == 3);
  DO(is_gradient_zero(c, n.a, "0.weight", 15));
  DO(is_gradient_zero(c, n.b, "0.bias", 2));
  MUST(cleave_step(rt, o, c, 0, &step_result, e));
  CHECK(step_result.applied && step_result.norm == 0);
  DO(close_context(c));
  DO(read_weight(n.a, "0.weight", &weight_after));
  CHECK(memcmp(weight_before.data, weight_after.data, 15 * sizeof(float)) == 0);
  cleave_tensor_free(&t);
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  for (int i = 0; i < 2; i++) MUST(cleave_module_release(rt, all[i], e));
  MUST(cleave_module_release(rt, n.loss, e));
  MUST(cleave_optimizer_release(rt, o, e));
  return true;
}

/* A context that calls a module with an empty batch and with another batch, in either order, must
 * have the gradients of the other batch alone. */
static bool empty_batch_adds_no_gradient(void) {
  cleave_tensor g[3] = {{0}, {0}, {0}};
  net n;
  DO(make_network("beside", at_b, &n));
  /* 0: no empty batch; 1: the empty batch is called first; 2: it is called last */
  for (int empty_position = 0; empty_position < 3; empty_position++) {
    cleave_context c;
    cleave_reference x, h, y, target, roots[2];
    DO(open_context(&c));
    if (empty_position == 2) DO(run_network(&n, c, 3, NULL, NULL, &roots[1]));
    if (empty_position) {
      DO(make_empty_leaf(c, 3, true, &x));
      DO(make_empty_leaf(c, 2, false, &target));
      MUST(cleave_call(rt, c, n.a, &x, 1, &h, e));
      MUST(cleave_call(rt, c, n.b, &h, 1, &y, e));
      MUST(cleave_call(rt, c, n.loss, (cleave_reference[]){y, target}, 2, &roots[0], e));
    }
    if (empty_position < 2) DO(run_network(&n, c, 3, NULL, NULL, &roots[1]));
    MUST(cleave_backward(rt, c, roots + !empty_position, 1 + (empty_position > 0), false, 0, e));
    DO(read_gradient(c, n.a, "0.weight", &g[empty_position]));
    DO(close_context(c));
  }
  add_to_digest(&g[0]);
  for (int i = 1; i < 3; i++)
    CHECK(memcmp(g[0].data, g[i].data, cleave_tensor_count(&g[0]) * sizeof(float)) == 0);
  for (int i = 0; i < 3; i++) cleave_tensor_free(&g[i]);
  cleave_module *all[] = {n.a, n.b, n.loss};
  for (int i = 0; i < 3; i++) MUST(cleave_module_release(rt, all[i], e));
  return true;
}

static bool batchnorm_of_an_empty_batch_is_refused(void) {
  cleave_module *m;
  cleave_context c;
  cleave_context_options evaluation = {.size = sizeof evaluation, .evaluation = true};
  cleave_reference x, y;
  cleave_tensor t = {0};
  DO(load_module("norm of nothing", at_a, "[{op: linear, out: 5}, {op: batchnorm, name: bn}]", 3,
                 &m));
  DO(open_context(&c));
  DO(make_empty_leaf(c, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  REFUSED(cleave_to_here(rt, y, 0, &t, e), CLEAVE_INVALID, "layer bn (batchnorm)");
  DO(close_context(c));
  MUST(cleave_context_open(rt, &evaluation, &c, e));
  DO(make_empty_leaf(c, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  DO(is_value_empty(y, 5));
  DO(close_context(c));
  MUST(cleave_module_release(rt, m, e));
  return true;
}

/* ---- linear layers over inputs of any rank --------------------------------------------------- */

static bool run_linear(int rank, const int64_t *shape, cleave_tensor *y, cleave_tensor *dx,
                       cleave_tensor *dw) {
  static const int64_t flat[] = {24, 5};
  cleave_module_options o = {.size = sizeof o, .name = "linear", .at = at_a, .seed = 4},
                        loss_options = {
                            .size = sizeof loss_options, .name = "loss of it", .at = at_b};
  cleave_input in = {CLEAVE_F32, rank, {0}}, out = {CLEAVE_F32, rank, {0}};
  cleave_module *m, *loss;
  cleave_context c;
  cleave_reference x, v, target, l;
  float numbers[120], want[168];
  fill_with_random(numbers, 120, 1);
  fill_with_random(want, 168, 2);
  if (!shape) shape = flat;
  for (int i = 0; i < rank; i++) in.shape[i] = out.shape[i] = shape[i];
  out.shape[rank - 1] = 7;
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 7}]", &in, &m, e));
  MUST(cleave_load_loss(rt, &loss_options, "mse", &out, &loss, e));
  cleave_tensor input_tensor = {.dtype = CLEAVE_F32, .rank = rank, .data = numbers},
                target_tensor = {.dtype = CLEAVE_F32, .rank = rank, .data = want};
  memcpy(input_tensor.shape, in.shape, sizeof in.shape);
  memcpy(target_tensor.shape, out.shape, sizeof out.shape);
  DO(open_context(&c));
  MUST(cleave_leaf(rt, c, &input_tensor, true, &x, e));
  MUST(cleave_leaf(rt, c, &target_tensor, false, &target, e));
  MUST(cleave_call(rt, c, m, &x, 1, &v, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){v, target}, 2, &l, e));
  DO(backward(c, l, false));
  MUST(cleave_to_here(rt, v, 0, y, e));
  MUST(cleave_leaf_gradient(rt, x, dx, e));
  DO(read_gradient(c, m, "0.weight", dw));
  CHECK(y->rank == rank && y->shape[rank - 1] == 7 && dx->rank == rank && dw->rank == 2);
  DO(close_context(c));
  MUST(cleave_module_release(rt, m, e));
  MUST(cleave_module_release(rt, loss, e));
  return true;
}

static bool is_same_tensor(const cleave_tensor *a, const cleave_tensor *b, size_t n) {
  return cleave_tensor_count(a) == n && cleave_tensor_count(b) == n &&
         memcmp(a->data, b->data, n * sizeof(float)) == 0;
}

/* A linear layer over a tensor of any rank must compute the same numbers as over a matrix that has
 * the same rows. */
static bool linear_takes_any_rank(void) {
  static const struct {
    int rank;
    int64_t shape[6];
  } shapes[] = {{3, {4, 6, 5}}, {4, {2, 3, 4, 5}}, {5, {2, 3, 1, 4, 5}}, {6, {1, 2, 2, 3, 2, 5}}};
  cleave_tensor flat_results[3] = {{0}, {0}, {0}}, t[3] = {{0}, {0}, {0}};
  DO(run_linear(2, NULL, &flat_results[0], &flat_results[1], &flat_results[2]));
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    DO(run_linear(shapes[i].rank, shapes[i].shape, &t[0], &t[1], &t[2]));
    CHECK(is_same_tensor(&flat_results[0], &t[0], 168) &&
          is_same_tensor(&flat_results[1], &t[1], 120) &&
          is_same_tensor(&flat_results[2], &t[2], 35));
  }
  for (int i = 0; i < 3; i++) {
    add_to_digest(&flat_results[i]);
    cleave_tensor_free(&flat_results[i]);
    cleave_tensor_free(&t[i]);
  }
  return true;
}

/* ---- scalars as inputs ----------------------------------------------------------------------- */

static bool add_of_scalars(cleave_module **ret) {
  cleave_graph *g;
  cleave_module_options o = {.size = sizeof o, .name = "sum", .at = at_b};
  int a, b, sum_node, y;
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "a", CLEAVE_F32, (int64_t[1]){0}, 0, &a, e));
  MUST(cleave_graph_input(g, "b", CLEAVE_F32, (int64_t[1]){0}, 0, &b, e));
  MUST(cleave_graph_op(g, "add", NULL, NULL, (int[]){a, b}, 2, &sum_node, e));
  MUST(cleave_graph_op(g, "scale", "{factor: 0.5}", NULL, &sum_node, 1, &y, e));
  MUST(cleave_load_graph(rt, &o, g, ret, e));
  cleave_graph_free(g);
  return true;
}

/* Computes half the sum of two losses at another node, and the sum of a leaf and a loss. */
static bool scalars_are_accepted_as_inputs(void) {
  net n;
  cleave_module *sum;
  cleave_context c;
  cleave_reference x[2], loss[2], s, sum_of_losses, sum_with_leaf;
  cleave_tensor v[3] = {{0}, {0}, {0}}, dx = {0}, half_gradient = {0};
  float three = 3;
  cleave_tensor scalar = {.dtype = CLEAVE_F32, .data = &three};
  DO(make_network("scalars", at_a, &n));
  DO(add_of_scalars(&sum));
  DO(open_context(&c));
  for (unsigned i = 0; i < 2; i++) DO(run_network(&n, c, i, &x[i], NULL, &loss[i]));
  MUST(cleave_call(rt, c, sum, loss, 2, &sum_of_losses, e));
  MUST(cleave_leaf(rt, c, &scalar, true, &s, e));
  MUST(cleave_call(rt, c, sum, (cleave_reference[]){sum_of_losses, s}, 2, &sum_with_leaf, e));
  DO(backward(c, sum_with_leaf, false));
  for (int i = 0; i < 2; i++) MUST(cleave_to_here(rt, loss[i], 0, &v[i], e));
  MUST(cleave_to_here(rt, sum_with_leaf, 0, &v[2], e));
  float want = 0.5f * (0.5f * (*(float *)v[0].data + *(float *)v[1].data) + 3);
  CHECK(v[2].rank == 0 && is_near(*(float *)v[2].data, want));
  MUST(cleave_leaf_gradient(rt, s, &half_gradient, e));
  CHECK(half_gradient.rank == 0 && *(float *)half_gradient.data == 0.5f);
  MUST(cleave_leaf_gradient(rt, x[1], &dx, e));
  add_to_digest(&dx);
  DO(close_context(c));
  for (int i = 0; i < 3; i++) cleave_tensor_free(&v[i]);
  cleave_tensor_free(&dx);
  cleave_tensor_free(&half_gradient);
  cleave_module *all[] = {n.a, n.b, n.loss, sum};
  for (int i = 0; i < 4; i++) MUST(cleave_module_release(rt, all[i], e));
  return true;
}

/* ---- shapes that are refused ----------------------------------------------------------------- */

static bool impossible_input_shapes_are_refused_at_load(void) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x;
  cleave_module_options o = {.size = sizeof o, .name = "refused", .at = at_a};
  cleave_input vector = CLEAVE_INPUT(CLEAVE_F32, 7), empty_feature = CLEAVE_INPUT(CLEAVE_F32, 4, 0),
               empty_batch = CLEAVE_INPUT(CLEAVE_F32, 0, 4), scalar = {CLEAVE_F32, 0, {0}};
  cleave_tensor negative_extent = {.dtype = CLEAVE_F32, .rank = 1, .shape = {-1}, .data = &o},
                without_data = {.dtype = CLEAVE_F32, .rank = 1, .shape = {2}};
  const char *linear = "[{op: linear, out: 7}]";
  REFUSED(cleave_load_layers(rt, &o, linear, &vector, &m, e), CLEAVE_INVALID, "got [7]");
  REFUSED(cleave_load_layers(rt, &o, linear, &empty_feature, &m, e), CLEAVE_INVALID, "[4, 0]");
  REFUSED(cleave_load_layers(rt, &o, linear, &empty_batch, &m, e), CLEAVE_INVALID, "[0, 4]");
  REFUSED(cleave_load_layers(rt, &o, linear, &scalar, &m, e), CLEAVE_INVALID, "got []");
  REFUSED(cleave_load_layers(rt, &o, "[{op: embedding, rows: 3, out: 2}]",
                             &(cleave_input){CLEAVE_I64, 0, {0}}, &m, e),
          CLEAVE_INVALID, "scalar");
  DO(open_context(&c));
  REFUSED(cleave_leaf(rt, c, &negative_extent, false, &x, e), CLEAVE_INVALID, "-1");
  REFUSED(cleave_leaf(rt, c, &without_data, false, &x, e), CLEAVE_INVALID, "without numbers");
  REFUSED(cleave_leaf(rt, c, NULL, false, &x, e), CLEAVE_INVALID, "NULL");
  return close_context(c);
}

/* ---- models by config.json, and adapters ----------------------------------------------------- */

enum { HF_OUT = 2 * 5 * 16 };

static bool load_hf(const char *name, const char *at, const char *layers, const cleave_lora *lora,
                    cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at, .seed = 7, .lora = lora};
  cleave_input ids = CLEAVE_INPUT(CLEAVE_I64, 2, 5);
  MUST(cleave_load_hf(rt, &o, "tests/golden/hf/llama", layers, NULL, &ids, ret, e));
  return true;
}

static bool make_ids_leaf(cleave_context c, cleave_reference *ret) {
  int64_t numbers[10];
  for (int i = 0; i < 10; i++) numbers[i] = 7 * i % 50;
  cleave_tensor t = CLEAVE_TENSOR_I64(numbers, 2, 5);
  MUST(cleave_leaf(rt, c, &t, false, ret, e));
  return true;
}

/* Two parts of a model, with its first and its last layers, must compute the same bits as the
 * undivided model. */
static bool parts_compute_the_same_as_the_whole_model(void) {
  cleave_module *undivided, *front, *back, *none;
  cleave_context c;
  cleave_reference x, h, y, z;
  cleave_tensor want = {0}, got = {0};
  cleave_input ids = CLEAVE_INPUT(CLEAVE_I64, 2, 5);
  cleave_module_options o = {.size = sizeof o, .name = "no model", .at = at_a};
  DO(load_hf("whole model", at_a, NULL, NULL, &undivided));
  DO(load_hf("front of it", at_a, "embed_tokens..layers.0", NULL, &front));
  DO(load_hf("back of it", at_b, "layers.1..norm", NULL, &back));
  DO(open_context(&c));
  DO(make_ids_leaf(c, &x));
  MUST(cleave_call(rt, c, undivided, &x, 1, &z, e));
  MUST(cleave_call(rt, c, front, &x, 1, &h, e));
  MUST(cleave_call(rt, c, back, &h, 1, &y, e));
  MUST(cleave_to_here(rt, z, 0, &want, e));
  MUST(cleave_to_here(rt, y, 0, &got, e));
  CHECK(cleave_tensor_count(&want) == HF_OUT && cleave_tensor_count(&got) == HF_OUT);
  CHECK(memcmp(want.data, got.data, 4 * HF_OUT) == 0);
  add_to_digest(&got);
  REFUSED(cleave_load_hf(rt, &o, "tests/golden/hf", NULL, NULL, &ids, &none, e), CLEAVE_INVALID,
          "config.json");
  REFUSED(cleave_load_hf(rt, &o, "tests/golden/hf/llama", NULL, "masked", &ids, &none, e),
          CLEAVE_INVALID, "llama");
  REFUSED(cleave_load_hf(rt, &o, "it's", NULL, NULL, &ids, &none, e), CLEAVE_INVALID, "it's");
  cleave_tensor_free(&want);
  cleave_tensor_free(&got);
  return close_context(c);
}

/* Writes the config.json of tests/golden/hf/llama, with one more key, into a new folder. */
static bool write_newer_config(char folder[32]) {
  char text[4096], path[64];
  FILE *source = fopen("tests/golden/hf/llama/config.json", "rb");
  CHECK(source);
  size_t n = fread(text, 1, sizeof text, source);
  fclose(source);
  CHECK(n > 1 && n < sizeof text && text[0] == '{');
  snprintf(folder, 32, "/tmp/cleave-newer-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/config.json", folder);
  FILE *to = fopen(path, "wb");
  CHECK(to &&
        fprintf(to, "{\"auto_map\": {\"AutoModel\": \"x.Y\"}, %.*s", (int)n - 1, text + 1) > 0);
  CHECK(fclose(to) == 0);
  return true;
}

static bool remove_newer_config(const char *folder) {
  char path[64];
  snprintf(path, sizeof path, "%s/config.json", folder);
  CHECK(unlink(path) == 0 && rmdir(folder) == 0);
  return true;
}

/* A model whose config.json has a key that the library does not know is loaded only where the
 * options list the key. A listed key that the library knows is refused. */
static bool only_listed_unknown_keys_are_ignored(void) {
  static const char *const listed[] = {"auto_map"}, *const known[] = {"auto_map", "hidden_act"};
  static const char *const empty[] = {""};
  char newer_hf[32];
  DO(write_newer_config(newer_hf));
  cleave_input ids = CLEAVE_INPUT(CLEAVE_I64, 2, 5);
  cleave_module_options o = {.size = sizeof o, .name = "newer file", .at = at_a};
  cleave_module *m;
  REFUSED(cleave_load_hf(rt, &o, newer_hf, NULL, NULL, &ids, &m, e), CLEAVE_INVALID,
          "'auto_map' is not known");
  o.ignore_keys = known;
  o.n_ignore_keys = 2;
  REFUSED(cleave_load_hf(rt, &o, newer_hf, NULL, NULL, &ids, &m, e), CLEAVE_INVALID,
          "lists 'hidden_act', which is known");
  o.ignore_keys = empty;
  o.n_ignore_keys = 1;
  REFUSED(cleave_load_hf(rt, &o, newer_hf, NULL, NULL, &ids, &m, e), CLEAVE_INVALID,
          "ignore_keys[0]");
  o.ignore_keys = listed;
  MUST(cleave_load_hf(rt, &o, newer_hf, NULL, NULL, &ids, &m, e));
  MUST(cleave_module_release(rt, m, e));
  return remove_newer_config(newer_hf);
}

static bool get_learns_flag(const cleave_module *m, size_t i, bool *ret) {
  cleave_parameter p = {.size = sizeof p};
  MUST(cleave_parameter_info(m, i, &p, e));
  *ret = p.learns;
  return true;
}

/* Adapters change no value before the first step, and they are the only parameters that learn. */
static bool adapters_alone_learn(void) {
  static const char *const targets[] = {"q_proj", "v_proj"};
  cleave_lora lora = {.size = sizeof lora, .targets = targets, .n_targets = 2, .r = 2, .alpha = 4};
  cleave_module *base, *m;
  cleave_context c;
  cleave_reference x, y, z;
  cleave_tensor want = {0}, got = {0};
  size_t n_adapters = 0;
  DO(load_hf("base", at_a, NULL, NULL, &base));
  DO(load_hf("adapted", at_a, NULL, &lora, &m));
  for (size_t i = 0; i < cleave_parameter_count(m); i++) {
    const char *name = cleave_module_weight_name(m, i);
    bool is_adapter = strstr(name, ".lora_A.weight") || strstr(name, ".lora_B.weight"), is_trained;
    DO(get_learns_flag(m, i, &is_trained));
    CHECK(is_trained == is_adapter);
    n_adapters += is_adapter;
  }
  CHECK(n_adapters == 2 * 2 * 2);
  DO(open_context(&c));
  DO(make_ids_leaf(c, &x));
  MUST(cleave_call(rt, c, base, &x, 1, &z, e));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_to_here(rt, z, 0, &want, e));
  MUST(cleave_to_here(rt, y, 0, &got, e));
  CHECK(memcmp(want.data, got.data, 4 * HF_OUT) == 0);
  cleave_module_options o = {.size = sizeof o, .name = "no adapters", .at = at_a, .lora = &lora};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 7, name: head}]", &input, &m, e),
          CLEAVE_NOT_FOUND, "module 'no adapters': lora.targets");
  lora.r = 0;
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 7, name: q_proj}]", &input, &m, e),
          CLEAVE_INVALID, "lora.r is 0");
  cleave_tensor_free(&want);
  cleave_tensor_free(&got);
  return close_context(c);
}

static const test tests[] = {
    TEST(empty_batch_passes_all_modules),
    TEST(empty_batch_adds_no_gradient),
    TEST(batchnorm_of_an_empty_batch_is_refused),
    TEST(linear_takes_any_rank),
    TEST(scalars_are_accepted_as_inputs),
    TEST(impossible_input_shapes_are_refused_at_load),
    TEST(parts_compute_the_same_as_the_whole_model),
    TEST(only_listed_unknown_keys_are_ignored),
    TEST(adapters_alone_learn),
};

int main(int argc, char **argv) { return RUN_SESSION(argc, argv, open_session, tests); }
