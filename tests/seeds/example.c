/* SPDX-License-Identifier: Apache-2.0
 *
 * Trains a network of two halves: the first at the master, where the data are, the second at the
 * first worker of the session file (or at the master, if the file names no worker). Usage: example
 * SESSION.yaml
 */
#include <cleave.h>
#include <stdio.h>
#include <stdlib.h>

static cleave_error e;

static void must_succeed(cleave_status status) {
  if (status == CLEAVE_OK) return;
  fprintf(stderr, "%s at %s: %s\n", cleave_status_name(status), e.node, e.text);
  exit(1);
}

enum { ROWS = 32, STEPS = 200 };
static cleave_runtime *rt;
static cleave_module *half[2], *loss;

static void fill_points(float *x, float *y) {
  for (int i = 0; i < ROWS; i++) { /* is the point inside the circle? */
    x[2 * i] = (float)(i % 8) / 4 - 1, x[2 * i + 1] = (float)(i / 8) / 2 - 1;
    y[i] = x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1] < 0.5f;
  }
}

static void load_modules(const char *second_node) {
  cleave_input first_input = CLEAVE_INPUT(CLEAVE_F32, ROWS, 2);
  cleave_input second_input = CLEAVE_INPUT(CLEAVE_F32, ROWS, 16);
  cleave_input loss_input = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1);
  cleave_module_options first_options = {.size = sizeof first_options, .name = "first", .seed = 1};
  cleave_module_options second_options = {.size = sizeof second_options,
                                          .name = "second",
                                          .at = second_node,
                                          .seed = 1,
                                          .first_layer = 2};
  cleave_module_options loss_options = {.size = sizeof loss_options, .name = "loss"};
  must_succeed(cleave_load_layers(rt, &first_options, "[{op: linear, out: 16}, {op: tanh}]",
                                  &first_input, &half[0], &e));
  must_succeed(cleave_load_layers(rt, &second_options, "[{op: linear, out: 1}]", &second_input,
                                  &half[1], &e));
  must_succeed(cleave_load_loss(rt, &loss_options, "bce_with_logits", &loss_input, &loss, &e));
}

/* Runs one iteration. Returns its loss. */
static float train_iteration(cleave_optimizer *adam, const cleave_tensor *points,
                             const cleave_tensor *inside) {
  cleave_context c;
  cleave_reference in, hidden, guess, target, error;
  cleave_tensor value = {0};
  must_succeed(cleave_context_open(rt, NULL, &c, &e));
  must_succeed(cleave_leaf(rt, c, points, false, &in, &e));
  must_succeed(cleave_leaf(rt, c, inside, false, &target, &e));
  must_succeed(cleave_call(rt, c, half[0], &in, 1, &hidden, &e));
  /* the output of the first half is sent to the node of the second half */
  must_succeed(cleave_call(rt, c, half[1], &hidden, 1, &guess, &e));
  must_succeed(cleave_call(rt, c, loss, (cleave_reference[]){guess, target}, 2, &error, &e));
  must_succeed(cleave_backward(rt, c, &error, 1, false, 0, &e));
  must_succeed(cleave_step(rt, adam, c, 0, NULL, &e));
  must_succeed(cleave_to_here(rt, error, 0, &value, &e));
  must_succeed(cleave_context_close(rt, c, 0, &e));
  float result = *(float *)value.data;
  cleave_tensor_free(&value);
  return result;
}

int main(int argc, char **argv) {
  float x[ROWS * 2], y[ROWS], begin, end;
  fill_points(x, y);
  cleave_tensor points = CLEAVE_TENSOR_F32(x, ROWS, 2), inside = CLEAVE_TENSOR_F32(y, ROWS, 1);
  must_succeed(argc > 1 ? cleave_open(argv[1], NULL, &rt, &e)
                        : cleave_open_text("alone", "version: 1\nname: alone\n", NULL, &rt, &e));
  const char *second_node = cleave_node_name(rt, 1) ? cleave_node_name(rt, 1) : "master";
  load_modules(second_node);

  cleave_optimizer *adam;
  cleave_group group = {.modules = half, .n_modules = 2, .kind = CLEAVE_ADAM, .lr = 0.02};
  must_succeed(cleave_optimizer_new(rt, &group, 1, 0, &adam, &e));

  end = begin = train_iteration(adam, &points, &inside);
  for (int step = 1; step < STEPS; step++) end = train_iteration(adam, &points, &inside);
  printf("loss %.4f -> %.4f with the second half at %s\n", begin, end, second_node);
  must_succeed(cleave_close(rt, 0, NULL, &e));
  return 0;
}
