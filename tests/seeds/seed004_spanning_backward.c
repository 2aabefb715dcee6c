/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 004 asks: does the backward graph span devices? This program asks for the node and device of
 * each parameter's gradient. It also repeats the mistake with which the seed's thread ends: outputs
 * and labels on different nodes. A loss with local_only refuses such inputs. The error names both
 * nodes and the remedy, cleave_send_to.
 */
#include "seed.h"

enum { ROWS = 24, WIDTH = 16, HIDDEN = 32, CLASSES = 10 };

static cleave_module *part[2], *nll;
static seed_place owner_place[2];
static uint64_t digest = 14695981039346656037u; /* FNV-1a of the bits of gradients and loss */

static void add_to_digest(const cleave_tensor *t) {
  const unsigned char *bytes = t->data;
  for (size_t i = 0; i < cleave_tensor_count(t) * sizeof(float); i++)
    digest = (digest ^ bytes[i]) * 1099511628211u;
}

/* Compares a gradient: node and device must be the module's, its numbers PyTorch's. */
static void compare_gradient(cleave_context c, cleave_module *module, const char *name,
                             const char *golden) {
  cleave_tensor theirs = seed_get_golden(golden), ours = {0};
  cleave_place place;
  double difference = 0;
  MUST(cleave_gradient_place(seed.rt, c, module, name, 0, &place, &seed.e));
  printf("gradient of %s: at %s on %s\n", golden, place.node, place.device);
  if (strcmp(place.node, cleave_module_node(module)) != 0 ||
      strcmp(place.device, cleave_module_device(module)) != 0)
    seed_fail("%s is at %s, its gradient at %s", golden, cleave_module_node(module), place.node);
  MUST(cleave_gradient(seed.rt, c, module, name, 0, &ours, &seed.e));
  for (size_t i = 0; i < cleave_tensor_count(&ours); i++)
    difference += pow(seed_get_value(&ours, i) - seed_get_value(&theirs, i), 2);
  seed_compare_number(golden, 0, seed_compute_norm(&theirs) + sqrt(difference),
                      seed_compute_norm(&theirs));
  add_to_digest(&ours);
  cleave_tensor_free(&ours);
}

/* Asserts that a loss of outputs at a worker and labels at the master is refused, with an error
 * that names both places and the remedy. */
static void check_places(cleave_context c, const cleave_reference *both) {
  cleave_reference none;
  cleave_place outputs, labels;
  MUST(cleave_owner(seed.rt, both[0], &outputs, &seed.e));
  MUST(cleave_owner(seed.rt, both[1], &labels, &seed.e));
  if (strcmp(outputs.node, owner_place[1].node) != 0 || strcmp(labels.node, "master") != 0)
    seed_fail("outputs are at %s, labels at %s", outputs.node, labels.node);
  if (cleave_call(seed.rt, c, nll, both, 2, &none, &seed.e) != CLEAVE_PRECONDITION)
    seed_fail("a loss over two nodes is not refused");
  printf("refused: %s\n", seed.e.text);
  if (!strstr(seed.e.text, owner_place[1].node) || !strstr(seed.e.text, "master") ||
      !strstr(seed.e.text, "cleave_send_to"))
    seed_fail("the refusal does not say where things are and what to do: %s", seed.e.text);
}

static void load_modules(void) {
  cleave_input rows = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  cleave_input hidden = CLEAVE_INPUT(CLEAVE_F32, ROWS, HIDDEN);
  cleave_input scores = CLEAVE_INPUT(CLEAVE_F32, ROWS, CLASSES);
  cleave_module_options first = {.size = sizeof first,
                                 .name = "layerseq1",
                                 .at = owner_place[0].node,
                                 .device = owner_place[0].device};
  cleave_module_options second = {.size = sizeof second,
                                  .name = "layerseq2",
                                  .at = owner_place[1].node,
                                  .device = owner_place[1].device,
                                  .copies_inputs = true}; /* x.cuda(device=1) in the tutorial */
  cleave_module_options loss_options = {.size = sizeof loss_options,
                                        .name = "nll_loss",
                                        .at = owner_place[1].node,
                                        .device = owner_place[1].device,
                                        .local_only = true};
  MUST(cleave_load_layers(seed.rt, &first, "[{op: linear, name: a, out: 32}, {op: relu}]", &rows,
                          &part[0], &seed.e));
  MUST(cleave_load_layers(seed.rt, &second, "[{op: linear, name: b, out: 10}, {op: log_softmax}]",
                          &hidden, &part[1], &seed.e));
  MUST(cleave_load_loss(seed.rt, &loss_options, "nll", &scores, &nll, &seed.e));
  seed_draw_parameter(part[0], "a.weight", WIDTH);
  seed_draw_parameter(part[0], "a.bias", WIDTH);
  seed_draw_parameter(part[1], "b.weight", HIDDEN);
  seed_draw_parameter(part[1], "b.bias", HIDDEN);
}

static void compare_gradients(cleave_context c) {
  compare_gradient(c, part[0], "a.weight", "0.weight");
  compare_gradient(c, part[0], "a.bias", "0.bias");
  compare_gradient(c, part[1], "b.weight", "2.weight");
  compare_gradient(c, part[1], "b.bias", "2.bias");
}

int main(int argc, char **argv) {
  seed_open_session("seed004_spanning_backward", argc, argv);
  owner_place[0] = seed_get_owner(0, "w1", NULL);
  owner_place[1] = seed_get_owner(1, "w2", "cpu:1");
  load_modules();
  float x[ROWS * WIDTH];
  int64_t classes[ROWS];
  seed_draw_normal(x, 0, ROWS * WIDTH, SEED_DATA);
  seed_draw_classes(classes, ROWS, SEED_LABELS, CLASSES);
  cleave_tensor data = CLEAVE_TENSOR_F32(x, ROWS, WIDTH);
  cleave_tensor labels = CLEAVE_TENSOR_I64(classes, ROWS), value = {0};

  cleave_context c;
  cleave_reference in, between, both[2], loss;
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &data, false, &in, &seed.e));
  MUST(cleave_leaf(seed.rt, c, &labels, false, &both[1], &seed.e));
  MUST(cleave_call(seed.rt, c, part[0], &in, 1, &between, &seed.e));
  MUST(cleave_call(seed.rt, c, part[1], &between, 1, &both[0], &seed.e));
  check_places(c, both);
  /* follows the advice of the refusal: sends the labels to the node of the outputs */
  MUST(cleave_send_to(seed.rt, both[1], owner_place[1].node, &seed.e));
  MUST(cleave_call(seed.rt, c, nll, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  compare_gradients(c);
  MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
  double result = seed_get_value(&value, 0);
  cleave_tensor losses = seed_get_golden("losses");
  seed_compare_number("loss", 0, result, seed_get_value(&losses, 0));
  add_to_digest(&value);
  cleave_tensor_free(&value);
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  printf("digest %016llx\n", (unsigned long long)digest);
  return seed_print_verdict(1e-5,
                            "loss %.6f, gradients at %s and %s, a loss over two nodes refused",
                            result, owner_place[0].node, owner_place[1].node);
}
