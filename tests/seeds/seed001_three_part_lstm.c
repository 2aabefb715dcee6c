/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 001, example 2: trains encoder, decoder and classifier on three devices, with an Adam for
 * each. The program sends only the row numbers of the sequences; between the parts the outputs go
 * from worker to worker.
 */
#include "seed.h"

enum { ROWS = 32, TIME = 20, WORDS = 100, WIDTH = 64 };

static const char *const layers[] = {
    "[{op: embedding, name: embedding, rows: 100, out: 32}, {op: lstm, name: lstm, out: 64}]",
    "[{op: lstm, name: lstm, out: 64}, {op: linear, name: linear, out: 32}]",
    "[{op: mean, dim: 1}, {op: linear, name: linear, out: 10}]",
};

static cleave_tensor input_data, labels;
static cleave_module *part[3], *criterion;
static cleave_optimizer *adam[3];

static void draw_weights(void) {
  static const char *const lstm[] = {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.bias_ih_l0",
                                     "lstm.bias_hh_l0"};
  seed_draw_parameter(part[0], "embedding.weight", 0);
  for (int i = 0; i < 4; i++) seed_draw_parameter(part[0], lstm[i], WIDTH);
  for (int i = 0; i < 4; i++) seed_draw_parameter(part[1], lstm[i], WIDTH);
  seed_draw_parameter(part[1], "linear.weight", 64);
  seed_draw_parameter(part[1], "linear.bias", 64);
  seed_draw_parameter(part[2], "linear.weight", 32);
  seed_draw_parameter(part[2], "linear.bias", 32);
}

static void load_modules(void) {
  cleave_input input[] = {CLEAVE_INPUT(CLEAVE_I64, ROWS, TIME),
                          CLEAVE_INPUT(CLEAVE_F32, ROWS, TIME, 64),
                          CLEAVE_INPUT(CLEAVE_F32, ROWS, TIME, 32)};
  cleave_input scores = CLEAVE_INPUT(CLEAVE_F32, ROWS, 10);
  cleave_module_options device[] = {
      {.size = sizeof(cleave_module_options), .name = "encoder", .at = "w1"},
      {.size = sizeof(cleave_module_options), .name = "decoder", .at = "w2"},
      {.size = sizeof(cleave_module_options), .name = "classifier", .at = "w3"}};
  cleave_module_options criterion_options = {
      .size = sizeof criterion_options, .name = "criterion", .at = "w3"};
  for (int i = 0; i < 3; i++) {
    MUST(cleave_load_layers(seed.rt, &device[i], layers[i], &input[i], &part[i], &seed.e));
    cleave_group group = {.modules = &part[i], .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.001};
    MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &adam[i], &seed.e));
  }
  MUST(
      cleave_load_loss(seed.rt, &criterion_options, "cross_entropy", &scores, &criterion, &seed.e));
}

/* Takes one training step and stores its loss in *value. */
static void train_step(size_t step, cleave_tensor *value) {
  cleave_context c;
  cleave_reference in, encoded, decoded, outputs, target, loss;
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &input_data, false, &in, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &labels, false, &target, &seed.e));
  MUST(cleave_call(seed.rt, c, part[0], &in, 1, &encoded, &seed.e));
  MUST(cleave_call(seed.rt, c, part[1], &encoded, 1, &decoded, &seed.e));
  MUST(cleave_call(seed.rt, c, part[2], &decoded, 1, &outputs, &seed.e));
  cleave_reference both[] = {outputs, target};
  MUST(cleave_call(seed.rt, c, criterion, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  if (step == 0) seed_compare_gradients(c);
  for (int i = 0; i < 3; i++) MUST(cleave_step(seed.rt, adam[i], c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
}

int main(int argc, char **argv) {
  seed_open_session("seed001_three_part_lstm", argc, argv);
  load_modules();
  draw_weights();
  int64_t words[ROWS * TIME], classes[ROWS];
  seed_draw_classes(words, ROWS * TIME, SEED_DATA, WORDS);
  seed_draw_classes(classes, ROWS, SEED_LABELS, 10);
  input_data = (cleave_tensor)CLEAVE_TENSOR_I64(words, ROWS, TIME);
  labels = (cleave_tensor)CLEAVE_TENSOR_I64(classes, ROWS);

  cleave_tensor losses = seed_get_golden("losses");
  double last = seed_train_steps(train_step, &losses);
  return seed_print_verdict(1e-4, "%zu steps on w1, w2 and w3, loss %.4f to %.4f",
                            cleave_tensor_count(&losses), seed_get_value(&losses, 0), last);
}
