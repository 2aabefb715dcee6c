/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 003: a CNN in two remote modules, trained with 1, 2, 4 and 8 micro-batches. Every
 * micro-batch goes through both modules as a reference, without waiting; the outputs are
 * concatenated for one loss, whose backward pass runs over both workers, and a distributed SGD
 * steps both modules.
 *
 * Tensors are concatenated along columns: k outputs of n x 10 give one of n x 10k, and the one-hot
 * labels stand in the same order. To a mean over all elements that is the same.
 */
#include "seed.h"

enum { ROWS = 120, SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, MOST = 8 };

static const char *const layers[] = {
    "[{op: conv2d, name: conv1, out: 32, kernel: 3, pad: 1}, {op: relu}, {op: maxpool, kernel: 2}]",
    "[{op: conv2d, name: conv2, out: 64, kernel: 3, pad: 1}, {op: relu}, {op: maxpool, kernel: 2},"
    " {op: flatten}, {op: linear, name: fc1, out: 128}, {op: relu},"
    " {op: linear, name: fc2, out: 10}]",
};
static cleave_module *parts[2];

static cleave_optimizer *load_modules(void) {
  cleave_input input[] = {CLEAVE_INPUT(CLEAVE_F32, ROWS, 1, SIDE, SIDE),
                          CLEAVE_INPUT(CLEAVE_F32, ROWS, 32, SIDE / 2, SIDE / 2)};
  cleave_module_options at[] = {{.size = sizeof(cleave_module_options), .name = "p1", .at = "w1"},
                                {.size = sizeof(cleave_module_options), .name = "p2", .at = "w2"}};
  cleave_optimizer *sgd;
  for (int s = 0; s < 2; s++)
    MUST(cleave_load_layers(seed.rt, &at[s], layers[s], &input[s], &parts[s], &seed.e));
  cleave_group both = {.modules = parts, .n_modules = 2, .kind = CLEAVE_SGD, .lr = 0.05};
  MUST(cleave_optimizer_new(seed.rt, &both, 1, 0, &sgd, &seed.e));
  return sgd;
}

/* The same weights at the start of every run. */
static void draw_weights(void) {
  seed.n_drawn = 0;
  seed_draw(parts[0], "conv1.weight", 9), seed_draw(parts[0], "conv1.bias", 9);
  seed_draw(parts[1], "conv2.weight", 32 * 9), seed_draw(parts[1], "conv2.bias", 32 * 9);
  seed_draw(parts[1], "fc1.weight", 64 * 49), seed_draw(parts[1], "fc1.bias", 64 * 49);
  seed_draw(parts[1], "fc2.weight", 128), seed_draw(parts[1], "fc2.bias", 128);
}

/* The concatenation of k outputs, here; NULL for one. */
static cleave_module *load_concat(int k) {
  char name[16];
  int in[MOST], node;
  cleave_graph *g;
  cleave_module *module;
  cleave_module_options here = {.size = sizeof here, .name = name};
  if (k == 1) return NULL;
  snprintf(name, sizeof name, "concat %d", k);
  MUST(cleave_graph_new(&g, &seed.e));
  for (int i = 0; i < k; i++) {
    char input[24];
    snprintf(input, sizeof input, "output%d", i);
    MUST(cleave_graph_input(g, input, CLEAVE_F32, (int64_t[]){ROWS / k, CLASSES}, 2, &in[i],
                            &seed.e));
  }
  MUST(cleave_graph_op(g, "concat", "{dim: 1}", NULL, in, k, &node, &seed.e));
  MUST(cleave_load_graph(seed.rt, &here, g, &module, &seed.e));
  cleave_graph_free(g);
  return module;
}

static cleave_module *load_loss(int k) {
  char name[16];
  cleave_input outputs = CLEAVE_INPUT(CLEAVE_F32, ROWS / k, CLASSES * k);
  cleave_module_options here = {.size = sizeof here, .name = name};
  cleave_module *module;
  snprintf(name, sizeof name, "mse %d", k);
  MUST(cleave_load_loss(seed.rt, &here, "mse", &outputs, &module, &seed.e));
  return module;
}

/* One-hot labels [ROWS / k, CLASSES k]: row r, columns 10 m to 10 m + 9 are of row r of part m. */
static void one_hot(const int64_t *classes, int k, float *to) {
  int rows = ROWS / k;
  memset(to, 0, ROWS * CLASSES * sizeof *to);
  for (int i = 0; i < ROWS; i++) to[(i % rows * k + i / rows) * CLASSES + (int)classes[i]] = 1;
}

/* Part m of k of the batch, as a leaf. */
static cleave_reference part_of(cleave_context c, const float *batch, int m, int k) {
  cleave_tensor part = CLEAVE_TENSOR_F32(batch + m * (ROWS / k) * PIXELS, ROWS / k, 1, SIDE, SIDE);
  cleave_reference x;
  MUST(cleave_leaf(seed.rt, c, &part, false, &x, &seed.e));
  return x;
}

static double train_step(const float *batch, const cleave_tensor *labels, int k,
                         cleave_module *concat, cleave_module *mse, cleave_optimizer *sgd) {
  cleave_context c;
  cleave_reference out[MOST], loss, both[2];
  cleave_tensor value = {0};
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  for (int m = 0; m < k; m++) {
    cleave_reference x = part_of(c, batch, m, k), y;
    MUST(cleave_call(seed.rt, c, parts[0], &x, 1, &y, &seed.e));
    MUST(cleave_call(seed.rt, c, parts[1], &y, 1, &out[m], &seed.e)); /* y goes from w1 to w2 */
  }
  both[0] = out[0];
  if (concat) MUST(cleave_call(seed.rt, c, concat, out, (size_t)k, &both[0], &seed.e));
  MUST(cleave_leaf(seed.rt, c, labels, false, &both[1], &seed.e));
  MUST(cleave_call(seed.rt, c, mse, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  MUST(cleave_step(seed.rt, sgd, c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  double result = seed_at(&value, 0);
  cleave_tensor_free(&value);
  return result;
}

/* The outputs of the trained model, k futures waited for in order, against PyTorch's. */
static void compare_outputs(const float *batch, int k) {
  cleave_context_options evaluation = {
      .size = sizeof evaluation, .name = "outputs", .evaluation = true};
  cleave_tensor theirs = seed_golden("outputs"), part = {0};
  cleave_future outputs[MOST];
  cleave_context c;
  double difference = 0;
  MUST(cleave_context_open(seed.rt, &evaluation, &c, &seed.e));
  for (int m = 0; m < k; m++) {
    cleave_reference x = part_of(c, batch, m, k), y;
    MUST(cleave_call(seed.rt, c, parts[0], &x, 1, &y, &seed.e));
    MUST(cleave_rpc_async(seed.rt, c, parts[1], &y, 1, NULL, &outputs[m], &seed.e));
  }
  for (int m = 0; m < k; m++) {
    MUST(cleave_wait(seed.rt, outputs[m], 0, &part, &seed.e));
    size_t n = cleave_tensor_count(&part);
    if (n != (size_t)(ROWS / k * CLASSES)) seed_fail("part %d has %zu outputs", m, n);
    for (size_t i = 0; i < n; i++)
      difference += pow(seed_at(&part, i) - seed_at(&theirs, (size_t)m * n + i), 2);
  }
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  cleave_tensor_free(&part);
  seed_compare("norm of the outputs", 0, seed_norm(&theirs) + sqrt(difference), seed_norm(&theirs));
}

int main(int argc, char **argv) {
  static float batch[ROWS * PIXELS], targets[ROWS * CLASSES];
  int64_t classes[ROWS];
  double last = NAN;
  size_t n = 0;
  seed_begin("seed003_rpc_pipeline", argc, argv);
  cleave_optimizer *sgd = load_modules();
  seed_classes(classes, ROWS, SEED_LABELS, CLASSES);
  for (int k = 1; k <= MOST; k *= 2) {
    char what[16];
    snprintf(what, sizeof what, "losses_%d", k);
    cleave_tensor losses = seed_golden(what);
    cleave_tensor labels = CLEAVE_TENSOR_F32(targets, ROWS / k, CLASSES * k);
    cleave_module *concat = load_concat(k), *mse = load_loss(k);
    one_hot(classes, k, targets);
    draw_weights();
    n = cleave_tensor_count(&losses);
    for (size_t i = 0; i < n; i++) {
      seed_normal(batch, i * ROWS * PIXELS, ROWS * PIXELS, SEED_DATA);
      last = train_step(batch, &labels, k, concat, mse, sgd);
      seed_compare(what, i, last, seed_at(&losses, i));
    }
    printf("micro-batches %d: loss %.6f\n", k, last);
  }
  seed_normal(batch, 0, ROWS * PIXELS, SEED_DATA);
  compare_outputs(batch, MOST);
  return seed_end(1e-4, "1, 2, 4 and 8 micro-batches, %zu steps each, loss %.6f", n, last);
}
