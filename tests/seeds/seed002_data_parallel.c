/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 002, data parallel: two workers hold copies of the model, and each has a batch of its own.
 * The program adds their gradients, takes the step of plain SGD and writes the new weights to both.
 */
#include "seed002.h"

enum { COPIES = 2, PARAMETERS = 4 };
static const float lr = 0.5f;
static const char *const names[PARAMETERS] = {"w1.weight", "w1.bias", "w2.weight", "w2.bias"};

typedef struct replica {
  cleave_module *mlp, *bce;
  cleave_context context;
  cleave_reference loss;
  bool has_batch;
} replica;

static void load_replica(replica *r, const char *worker, const char *mlp, const char *loss) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, SEED002_WIDTH);
  cleave_input guesses = CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, 1);
  cleave_module_options model = {.size = sizeof model, .name = mlp, .at = worker};
  cleave_module_options loss_options = {.size = sizeof loss_options, .name = loss, .at = worker};
  MUST(cleave_load_layers(seed.rt, &model,
                          "[{op: linear, name: w1, out: 8}, {op: relu},"
                          " {op: linear, name: w2, out: 1}, {op: sigmoid}]",
                          &rows, &r->mlp, &seed.e));
  MUST(cleave_load_loss(seed.rt, &loss_options, "bce", &guesses, &r->bce, &seed.e));
  for (int k = 0; k < PARAMETERS; k++) seed002_set_weight(r->mlp, names[k], names[k]);
}

/* Starts the forward over batch i, if the batch has rows. Returns before the forward has run. */
static void start_forward(replica *r, size_t i) {
  cleave_tensor batch_x, batch_target;
  cleave_reference x, both[2];
  r->has_batch = seed002_get_batch(i, SEED002_BATCH, &batch_x, &batch_target);
  if (!r->has_batch) return;
  MUST(cleave_context_open(seed.rt, NULL, &r->context, &seed.e));
  MUST(cleave_leaf(seed.rt, r->context, &batch_x, false, &x, &seed.e));
  MUST(cleave_leaf(seed.rt, r->context, &batch_target, false, &both[1], &seed.e));
  MUST(cleave_call(seed.rt, r->context, r->mlp, &x, 1, &both[0], &seed.e));
  MUST(cleave_call(seed.rt, r->context, r->bce, both, 2, &r->loss, &seed.e));
}

/* Returns the replica's loss, NaN without a batch. Adds its gradients to sums. */
static double run_backward(replica *r, cleave_tensor *sums) {
  cleave_tensor t = {0};
  if (!r->has_batch) return NAN;
  MUST(cleave_backward(seed.rt, r->context, &r->loss, 1, false, 0, &seed.e));
  for (int k = 0; k < PARAMETERS; k++) {
    MUST(cleave_gradient(seed.rt, r->context, r->mlp, names[k], 0, &t, &seed.e));
    for (size_t j = 0; j < cleave_tensor_count(&t); j++)
      ((float *)sums[k].data)[j] += seed_get_value(&t, j);
  }
  MUST(cleave_to_here(seed.rt, r->loss, 0, &t, &seed.e));
  double loss = seed_get_value(&t, 0);
  MUST(cleave_context_close(seed.rt, r->context, 0, &seed.e));
  cleave_tensor_free(&t);
  return loss;
}

/* Computes weights -= lr * sums, here and at both workers, and clears the sums. */
static void update_weights(const replica *copies, cleave_tensor *weights, cleave_tensor *sums) {
  for (int k = 0; k < PARAMETERS; k++) {
    for (size_t j = 0; j < cleave_tensor_count(&weights[k]); j++) {
      ((float *)weights[k].data)[j] -= lr * seed_get_value(&sums[k], j);
      ((float *)sums[k].data)[j] = 0;
    }
    for (int c = 0; c < COPIES; c++)
      MUST(cleave_weight_write(seed.rt, copies[c].mlp, names[k], &weights[k], 0, &seed.e));
  }
}

static void read_weights(const replica *r, cleave_tensor *weights) {
  for (int k = 0; k < PARAMETERS; k++)
    MUST(cleave_weight_read(seed.rt, r->mlp, names[k], 0, &weights[k], &seed.e));
}

int main(int argc, char **argv) {
  replica copies[COPIES] = {0};
  cleave_tensor weights[PARAMETERS] = {0}, sums[PARAMETERS] = {0};
  double first = NAN, last = NAN;
  seed_open_session("seed002_data_parallel", argc, argv);
  load_replica(&copies[0], "w1", "model_0", "loss_0");
  load_replica(&copies[1], "w2", "model_1", "loss_1");
  read_weights(&copies[0], weights);
  read_weights(&copies[0], sums);
  for (int k = 0; k < PARAMETERS; k++)
    memset(sums[k].data, 0, cleave_tensor_count(&sums[k]) * sizeof(float));

  cleave_tensor losses = seed_get_golden("losses");
  size_t n = (size_t)losses.shape[0];
  for (size_t i = 0; i < n; i++) {
    if (seed002_restart_from_golden(NULL, i)) read_weights(&copies[0], weights);
    /* both replicas run at the same time */
    for (size_t c = 0; c < COPIES; c++) start_forward(&copies[c], i + c);
    double mean = 0;
    for (size_t c = 0; c < COPIES; c++) {
      double loss = run_backward(&copies[c], sums);
      if (copies[c].has_batch)
        seed002_compare_loss(i, loss, seed_get_value(&losses, COPIES * i + c));
      mean += loss / COPIES;
    }
    update_weights(copies, weights, sums);
    if (i == 0) first = mean;
    if (!isnan(mean)) last = mean;
    if (i % 1000 == 0) printf("loss at iteration %zu: %.3f\n", i, mean);
  }
  for (int k = 0; k < PARAMETERS; k++)
    cleave_tensor_free(&weights[k]), cleave_tensor_free(&sums[k]);
  return seed002_print_verdict(n, first, last);
}
