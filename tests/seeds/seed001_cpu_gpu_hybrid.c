/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 001, example 3: trains a model behind a preprocessor without parameters. The preprocessor is
 * on one device, the model and its loss on the other, both of worker w1, which offers its processor
 * as two devices as long as there is no GPU. A module takes a value of another device only if its
 * options say so: `.to(gpu_device)` in the seed's text is copies_inputs here.
 */
#include "seed.h"

enum { ROWS = 32, WIDTH = 10 };

static seed_place first, second;
static cleave_tensor input_data, targets;
static cleave_module *preprocessor, *model, *criterion;
static cleave_optimizer *adam;

static void load_modules(void) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  cleave_module_options cpu = {
      .size = sizeof cpu, .name = "preprocessor", .at = first.node, .device = first.device};
  cleave_module_options gpu = {.size = sizeof gpu,
                               .name = "gpu_model",
                               .at = second.node,
                               .device = second.device,
                               .copies_inputs = true};
  cleave_module_options criterion_options = {.size = sizeof criterion_options,
                                             .name = "criterion",
                                             .at = second.node,
                                             .device = second.device};
  MUST(cleave_load_layers(seed.rt, &cpu, "[{op: scale, factor: 0.5}]", &rows, &preprocessor,
                          &seed.e));
  MUST(cleave_load_layers(seed.rt, &gpu, "[{op: linear, name: fc1, out: 10}]", &rows, &model,
                          &seed.e));
  MUST(cleave_load_loss(seed.rt, &criterion_options, "mse", &rows, &criterion, &seed.e));
  cleave_group group = {.modules = &model, .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.001};
  MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &adam, &seed.e));
  seed_draw_parameter(model, "fc1.weight", WIDTH);
  seed_draw_parameter(model, "fc1.bias", WIDTH);
}

/* Asserts that each value is on the device of the module that computed it, and that a loss whose
 * inputs are on both devices is refused with a text that says what to do. */
static void check_places(cleave_context c, cleave_reference processed, cleave_reference outputs) {
  cleave_reference both[] = {outputs, processed}, none;
  cleave_place place;
  MUST(cleave_gradient_place(seed.rt, c, model, "fc1.weight", 0, &place, &seed.e));
  if (strcmp(place.device, second.device) != 0) seed_fail("the gradient is on %s", place.device);
  MUST(cleave_owner(seed.rt, processed, &place, &seed.e));
  if (strcmp(place.device, first.device) != 0)
    seed_fail("the processed data is on %s", place.device);
  if (cleave_call(seed.rt, c, criterion, both, 2, &none, &seed.e) != CLEAVE_PRECONDITION ||
      !strstr(seed.e.text, first.device) || !strstr(seed.e.text, "copies_inputs"))
    seed_fail("a loss over two devices: %s", seed.e.text);
}

/* Takes one training step and stores its loss in *value. */
static void train_step(size_t step, cleave_tensor *value) {
  cleave_context c;
  cleave_reference in, processed, outputs, target, loss;
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &input_data, false, &in, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &targets, false, &target, &seed.e));
  MUST(cleave_call(seed.rt, c, preprocessor, &in, 1, &processed, &seed.e));
  MUST(cleave_call(seed.rt, c, model, &processed, 1, &outputs, &seed.e));
  cleave_reference both[] = {outputs, target};
  MUST(cleave_call(seed.rt, c, criterion, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  if (step == 0) seed_compare_gradients(c);
  if (step == 0) check_places(c, processed, outputs);
  MUST(cleave_step(seed.rt, adam, c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
}

int main(int argc, char **argv) {
  seed_open_session("seed001_cpu_gpu_hybrid", argc, argv);
  first = seed_get_owner(0, "w1", "cpu:0");
  second = seed_get_owner(1, "w1", "cpu:1");
  load_modules();
  float x[ROWS * WIDTH], y[ROWS * WIDTH];
  seed_draw_normal(x, 0, ROWS * WIDTH, SEED_DATA);
  seed_draw_normal(y, 0, ROWS * WIDTH, SEED_LABELS);
  input_data = (cleave_tensor)CLEAVE_TENSOR_F32(x, ROWS, WIDTH);
  targets = (cleave_tensor)CLEAVE_TENSOR_F32(y, ROWS, WIDTH);

  cleave_tensor losses = seed_get_golden("losses");
  double last = seed_train_steps(train_step, &losses);
  char place[64]; /* a copy, because the names of node and device are freed with the runtime */
  snprintf(place, sizeof place, "%s of %s", cleave_module_device(model), cleave_module_node(model));
  return seed_print_verdict(1e-4, "%zu steps, model on device %s, loss %.4f to %.4f",
                            cleave_tensor_count(&losses), place, seed_get_value(&losses, 0), last);
}
