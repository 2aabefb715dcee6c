/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 002, tensor parallel: the first layer is split by its outputs, the second by its inputs.
 *
 *   w1: h0 = relu(w1_0 x) --+              +-- w1: w2_0 h[:, :4] --+
 *                           +-- here: h ---+                       +-- here: sigmoid(sum), loss
 *   w2: h1 = relu(w1_1 x) --+              +-- w2: w2_1 h[:, 4:] --+
 *
 * The backward pass goes the same way back: the gradient of h is the sum of what both workers send,
 * and each half of it goes to the worker that made that half.
 */
#include "seed002.h"

enum { ROWS = 2 * SEED002_BATCH, HALF = 4 };
static const double lr = 0.5;

typedef struct worker {
  const char *name, *w1, *w2;   /* its modules: shares of the first and second layer */
  const char *columns, *linear; /* of the second */
  const char *w1_weight, *w1_bias, *w2_weight; /* the notebook's numbers */
  cleave_module *first, *second;
} worker;

static void load(worker *w) {
  cleave_module_options at_first = {.name = w->w1, .at = w->name};
  cleave_module_options at_second = {.name = w->w2, .at = w->name};
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, SEED002_WIDTH);
  cleave_graph *g;
  int node;
  MUST(cleave_load_layers(seed.rt, &at_first, "[{op: linear, name: w1, out: 4}, {op: relu}]", &x,
                          &w->first, &seed.e));
  MUST(cleave_graph_new(&g, &seed.e));
  MUST(cleave_graph_input(g, "h", CLEAVE_F32, (int64_t[]){ROWS, 2 * HALF}, 2, &node, &seed.e));
  MUST(cleave_graph_op(g, "slice", w->columns, NULL, &node, 1, &node, &seed.e));
  MUST(cleave_graph_op(g, "linear", w->linear, "w2", &node, 1, &node, &seed.e));
  MUST(cleave_load_graph(seed.rt, &at_second, g, &w->second, &seed.e));
  cleave_graph_free(g);
}

/* `name` of two inputs of `columns` each, here; with_sigmoid: of their result. */
static cleave_module *load_join(const char *name, int64_t columns, bool with_sigmoid) {
  cleave_module_options here = {.name = name};
  cleave_module *module;
  cleave_graph *g;
  int in[2], node;
  MUST(cleave_graph_new(&g, &seed.e));
  for (int k = 0; k < 2; k++)
    MUST(cleave_graph_input(g, k ? "right" : "left", CLEAVE_F32, (int64_t[]){ROWS, columns}, 2,
                            &in[k], &seed.e));
  MUST(cleave_graph_op(g, name, NULL, NULL, in, 2, &node, &seed.e));
  if (with_sigmoid) MUST(cleave_graph_op(g, "sigmoid", NULL, NULL, &node, 1, &node, &seed.e));
  MUST(cleave_load_graph(seed.rt, &here, g, &module, &seed.e));
  cleave_graph_free(g);
  return module;
}

static worker workers[] = {
    {.name = "w1",
     .w1 = "w1_0",
     .w2 = "w2_0",
     .columns = "{dim: 1, start: 0, stop: 4}",
     .linear = "{out: 1}",
     .w1_weight = "w1_0.weight",
     .w1_bias = "w1_0.bias",
     .w2_weight = "w2_0.weight"},
    {.name = "w2",
     .w1 = "w1_1",
     .w2 = "w2_1",
     .columns = "{dim: 1, start: 4}",
     .linear = "{out: 1, bias: false}", /* there is only one */
     .w1_weight = "w1_1.weight",
     .w1_bias = "w1_1.bias",
     .w2_weight = "w2_1.weight"},
};

static cleave_module *gather, *sum, *bce;

static void load_all(void) {
  cleave_input guesses = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1);
  cleave_module_options here = {.name = "loss"};
  for (int k = 0; k < 2; k++) load(&workers[k]);
  gather = load_join("concat", HALF, false);
  sum = load_join("add", 1, true);
  MUST(cleave_load_loss(seed.rt, &here, "bce", &guesses, &bce, &seed.e));
}

static void write_weights(void) {
  for (int k = 0; k < 2; k++) {
    seed002_weight(workers[k].first, "w1.weight", workers[k].w1_weight);
    seed002_weight(workers[k].first, "w1.bias", workers[k].w1_bias);
    seed002_weight(workers[k].second, "w2.weight", workers[k].w2_weight);
  }
  seed002_weight(workers[0].second, "w2.bias", "w2_0.bias");
}

static cleave_optimizer *new_optimizer(void) {
  cleave_optimizer *sgd; /* twice the rows, twice the rate */
  cleave_module *learning[] = {workers[0].first, workers[1].first, workers[0].second,
                               workers[1].second};
  cleave_group group = {.modules = learning, .n_modules = 4, .kind = CLEAVE_SGD, .lr = 2 * lr};
  MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &sgd, &seed.e));
  return sgd;
}

/* The loss of a batch; judged[1] is its target. */
static cleave_reference forward(cleave_context c, cleave_reference x, cleave_reference *judged) {
  cleave_reference half[2], h, partial[2], loss;
  for (int k = 0; k < 2; k++)
    MUST(cleave_call(seed.rt, c, workers[k].first, &x, 1, &half[k], &seed.e));
  MUST(cleave_call(seed.rt, c, gather, half, 2, &h, &seed.e));
  for (int k = 0; k < 2; k++)
    MUST(cleave_call(seed.rt, c, workers[k].second, &h, 1, &partial[k], &seed.e));
  MUST(cleave_call(seed.rt, c, sum, partial, 2, &judged[0], &seed.e));
  MUST(cleave_call(seed.rt, c, bce, judged, 2, &loss, &seed.e));
  return loss;
}

/* One iteration; returns its loss. */
static double train(cleave_optimizer *sgd, const cleave_tensor *batch_x,
                    const cleave_tensor *batch_target) {
  cleave_context c;
  cleave_reference x, judged[2];
  cleave_tensor value = {0};
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, batch_x, false, &x, &seed.e));
  MUST(cleave_leaf(seed.rt, c, batch_target, false, &judged[1], &seed.e));
  cleave_reference loss = forward(c, x, judged);
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  MUST(cleave_step(seed.rt, sgd, c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  double result = seed_at(&value, 0);
  cleave_tensor_done(&value);
  return result;
}

int main(int argc, char **argv) {
  seed_begin("seed002_tensor_parallel", argc, argv);
  load_all();
  cleave_optimizer *sgd = new_optimizer();
  write_weights();
  cleave_tensor losses = seed_golden("losses"), batch_x, batch_target;
  size_t n = cleave_tensor_count(&losses);
  double last = NAN;
  for (size_t i = 0; i < n; i++) {
    seed002_restart(NULL, i);
    if (!seed002_batch(i, ROWS, &batch_x, &batch_target)) continue; /* every fifth of 64 rows */
    last = train(sgd, &batch_x, &batch_target);
    seed002_compare(i, last, seed_at(&losses, i));
    if (i % 1000 == 0) printf("loss at iteration %zu: %.3f\n", i, last);
  }
  return seed002_end(n, seed_at(&losses, 0), last);
}
