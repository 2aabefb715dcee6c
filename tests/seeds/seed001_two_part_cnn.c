/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 001, example 1: trains a feature extractor on one device and a classifier on another, with
 * an Adam for each. The labels are sent to the classifier, where the loss is. In the seed's text
 * fc1 has 16 * 16 * 16 inputs, but its images of 64 x 64 give 16 * 32 * 32, which fc1 has here.
 */
#include "seed.h"

enum { ROWS = 64, SIDE = 64, POOLED = SIDE / 2, PIXELS = ROWS * 3 * SIDE * SIDE };

static cleave_tensor input_data, labels;
static cleave_module *part[2], *criterion;
static cleave_optimizer *adam[2];

static void load_modules(void) {
  cleave_input image = CLEAVE_INPUT(CLEAVE_F32, ROWS, 3, SIDE, SIDE);
  cleave_input map = CLEAVE_INPUT(CLEAVE_F32, ROWS, 16, POOLED, POOLED);
  cleave_input scores = CLEAVE_INPUT(CLEAVE_F32, ROWS, 10);
  cleave_module_options device_1 = {
      .size = sizeof device_1, .name = "feature_extractor", .at = "w1"};
  cleave_module_options device_2 = {.size = sizeof device_2, .name = "classifier", .at = "w2"};
  cleave_module_options criterion_options = {
      .size = sizeof criterion_options, .name = "criterion", .at = "w2"};
  MUST(cleave_load_layers(seed.rt, &device_1,
                          "[{op: conv2d, name: conv1, out: 16, kernel: 3, pad: 1}, {op: relu},"
                          " {op: maxpool, kernel: 2}]",
                          &image, &part[0], &seed.e));
  MUST(cleave_load_layers(seed.rt, &device_2, "[{op: flatten}, {op: linear, name: fc1, out: 10}]",
                          &map, &part[1], &seed.e));
  MUST(
      cleave_load_loss(seed.rt, &criterion_options, "cross_entropy", &scores, &criterion, &seed.e));
}

static void make_optimizers(void) {
  for (int i = 0; i < 2; i++) {
    cleave_group group = {.modules = &part[i], .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.001};
    MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &adam[i], &seed.e));
  }
  seed_draw_parameter(part[0], "conv1.weight", 3 * 3 * 3);
  seed_draw_parameter(part[0], "conv1.bias", 3 * 3 * 3);
  seed_draw_parameter(part[1], "fc1.weight", 16 * POOLED * POOLED);
  seed_draw_parameter(part[1], "fc1.bias", 16 * POOLED * POOLED);
}

/* Takes one training step and stores its loss in *value. */
static void train_step(size_t step, cleave_tensor *value) {
  cleave_context c;
  cleave_reference in, features, outputs, target, loss;
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &input_data, false, &in, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &labels, false, &target, &seed.e));
  MUST(cleave_call(seed.rt, c, part[0], &in, 1, &features, &seed.e));
  /* sends the features from w1 to w2 */
  MUST(cleave_call(seed.rt, c, part[1], &features, 1, &outputs, &seed.e));
  cleave_reference both[] = {outputs, target};
  MUST(cleave_call(seed.rt, c, criterion, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  if (step == 0) seed_compare_gradients(c);
  for (int i = 0; i < 2; i++) MUST(cleave_step(seed.rt, adam[i], c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
}

int main(int argc, char **argv) {
  seed_open_session("seed001_two_part_cnn", argc, argv);
  load_modules();
  make_optimizers();
  float *pixels = malloc(PIXELS * sizeof *pixels);
  int64_t classes[ROWS];
  if (!pixels) seed_fail("out of memory");
  seed_draw_normal(pixels, 0, PIXELS, SEED_DATA);
  seed_draw_classes(classes, ROWS, SEED_LABELS, 10);
  input_data = (cleave_tensor)CLEAVE_TENSOR_F32(pixels, ROWS, 3, SIDE, SIDE);
  labels = (cleave_tensor)CLEAVE_TENSOR_I64(classes, ROWS);

  cleave_tensor losses = seed_get_golden("losses");
  double last = seed_train_steps(train_step, &losses);
  free(pixels);
  return seed_print_verdict(1e-4, "%zu steps on w1 and w2, loss %.4f to %.4f",
                            cleave_tensor_count(&losses), seed_get_value(&losses, 0), last);
}
