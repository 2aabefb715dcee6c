/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 002, the notebook's simple training loop: trains the whole model at one worker.
 */
#include "seed002.h"

int main(int argc, char **argv) {
  seed_open_session("seed002_single", argc, argv);
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, SEED002_WIDTH);
  cleave_input guesses = CLEAVE_INPUT(CLEAVE_F32, SEED002_BATCH, 1);
  cleave_module_options model_options = {.size = sizeof model_options, .name = "mlp", .at = "w1"};
  cleave_module_options loss_options = {.size = sizeof loss_options, .name = "loss", .at = "w1"};
  cleave_module *mlp, *bce;
  MUST(cleave_load_layers(seed.rt, &model_options,
                          "[{op: linear, name: w1, out: 8}, {op: relu},"
                          " {op: linear, name: w2, out: 1}, {op: sigmoid}]",
                          &rows, &mlp, &seed.e));
  MUST(cleave_load_loss(seed.rt, &loss_options, "bce", &guesses, &bce, &seed.e));
  cleave_optimizer *sgd;
  cleave_group group = {.modules = &mlp, .n_modules = 1, .kind = CLEAVE_SGD, .lr = 0.5};
  MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &sgd, &seed.e));
  static const char *const names[] = {"w1.weight", "w1.bias", "w2.weight", "w2.bias"};
  for (int i = 0; i < 4; i++) seed002_set_weight(mlp, names[i], names[i]);

  cleave_tensor losses = seed_get_golden("losses"), value = {0}, batch_x, batch_target;
  size_t n = cleave_tensor_count(&losses);
  double last = NAN;
  for (size_t i = 0; i < n; i++) {
    seed002_restart_from_golden(NULL, i);
    if (!seed002_get_batch(i, SEED002_BATCH, &batch_x, &batch_target)) continue;
    cleave_context c;
    cleave_reference x, target, y, loss;
    MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
    MUST(cleave_leaf(seed.rt, c, &batch_x, false, &x, &seed.e));
    MUST(cleave_leaf(seed.rt, c, &batch_target, false, &target, &seed.e));
    MUST(cleave_call(seed.rt, c, mlp, &x, 1, &y, &seed.e));
    cleave_reference both[] = {y, target};
    MUST(cleave_call(seed.rt, c, bce, both, 2, &loss, &seed.e));
    MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
    MUST(cleave_step(seed.rt, sgd, c, 0, NULL, &seed.e));
    MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
    last = seed_get_value(&value, 0);
    seed002_compare_loss(i, last, seed_get_value(&losses, i));
    if (i % 2000 == 0) printf("loss at iteration %zu: %.3f\n", i, last);
    MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  }
  cleave_tensor_free(&value);
  return seed002_print_verdict(n, seed_get_value(&losses, 0), last);
}
