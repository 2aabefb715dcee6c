/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 002, tensor parallel: trains two layers, of which the first is divided by its outputs and
 * the second by its inputs.
 *
 *   w1: relu(w1_0 x) -> w2_0 --+
 *                              +-- here: sigmoid(sum), loss
 *   w2: relu(w1_1 x) -> w2_1 --+
 *
 * The notebook gathers the outputs of the first layer and sends each worker its half of them, which
 * is the half that this worker has computed. The backward pass takes the same route back. The same
 * plan with all parts in this process gives the same bits, and so does a plan with no part in this
 * process. The undivided layers give the same losses within 1e-6.
 */
#include "seed002.h"

enum { ROWS = 2 * SEED002_BATCH, PARTS = 2 };
static const double lr = 0.5;

#define LAYERS(columns, rows)              \
  "[{op: linear, name: w1, out: 8" columns \
  "}, {op: relu},"                         \
  " {op: linear, name: w2, out: 1" rows "}, {op: sigmoid}]"

/* The notebook's layers with one way to place them at nodes. */
typedef struct plan {
  const char *name;
  /* nodes of the parts; NULL: the layers are undivided and at the master */
  const char *part_nodes[PARTS];
  const char *at; /* node at which the parts are joined */
  cleave_parallel *parallel;
  cleave_module *module; /* module of the undivided layers */
  cleave_optimizer *sgd;
} plan;

static plan divided = {.name = "mlp", .part_nodes = {"w1", "w2"}};
static plan without_master = {.name = "mlp without us", .part_nodes = {"w2", "w1"}, .at = "w3"};
static plan at_master = {.name = "mlp at home", .part_nodes = {"master", "master"}};
static plan undivided_plan = {.name = "undivided"};
static cleave_module *bce;

static void load_plan(plan *p) {
  cleave_input x = CLEAVE_INPUT(CLEAVE_F32, ROWS, SEED002_WIDTH);
  cleave_module_options o = {.size = sizeof o, .name = p->name, .seed = 40};
  cleave_parallel_options parts = {.size = sizeof parts,
                                   .name = p->name,
                                   .at = p->at,
                                   .nodes = p->part_nodes,
                                   .n_nodes = PARTS,
                                   .seed = 40};
  if (p->part_nodes[0])
    MUST(cleave_parallel_load(seed.rt, &parts, LAYERS(", parallel: columns", ", parallel: rows"),
                              &x, &p->parallel, &seed.e));
  else
    MUST(cleave_load_layers(seed.rt, &o, LAYERS("", ""), &x, &p->module, &seed.e));
}

/* Makes the optimiser of a plan. Doubles the notebook's rate, because the batches have twice as
 * many rows. */
static void make_optimizer(plan *p) {
  cleave_module *trained_modules[PARTS];
  cleave_group group = {
      .modules = trained_modules, .n_modules = 1, .kind = CLEAVE_SGD, .lr = 2 * lr};
  trained_modules[0] = p->module;
  if (p->parallel) group.n_modules = PARTS; /* the joining module after them has no parameters */
  for (size_t k = 0; p->parallel && k < PARTS; k++)
    trained_modules[k] = cleave_parallel_module(p->parallel, k);
  MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &p->sgd, &seed.e));
}

static void set_golden_weights(const plan *p) {
  static const char *const golden[PARTS][3] = {{"w1_0.weight", "w1_0.bias", "w2_0.weight"},
                                               {"w1_1.weight", "w1_1.bias", "w2_1.weight"}};
  static const char *const names[] = {"w1.weight", "w1.bias", "w2.weight"};
  for (size_t k = 0; k < PARTS; k++)
    for (size_t i = 0; i < 3; i++)
      seed002_set_weight(cleave_parallel_module(p->parallel, k), names[i], golden[k][i]);
  /* the parts of w2 share one bias, which part 0 has */
  seed002_set_weight(cleave_parallel_module(p->parallel, 0), "w2.bias", "w2_0.bias");
}

/* Gives the undivided layers the weights of the parts, joined. */
static void copy_weights(const plan *from, const plan *to) {
  cleave_state state;
  MUST(cleave_parallel_state_read(seed.rt, from->parallel, CLEAVE_STATE_WEIGHTS, 0, &state,
                                  &seed.e));
  MUST(cleave_state_write(seed.rt, to->module, CLEAVE_STATE_WEIGHTS, state.items, state.n, 0,
                          &seed.e));
  cleave_state_free(&state);
}

static void load_all_plans(void) {
  plan *const plans[] = {&divided, &without_master, &at_master, &undivided_plan};
  cleave_input guesses = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1);
  cleave_module_options here = {.size = sizeof here, .name = "loss"};
  for (size_t i = 0; i < 4; i++) load_plan(plans[i]), make_optimizer(plans[i]);
  set_golden_weights(&divided);
  set_golden_weights(&without_master);
  set_golden_weights(&at_master);
  MUST(cleave_load_loss(seed.rt, &here, "bce", &guesses, &bce, &seed.e));
}

static cleave_reference call_plan(const plan *p, cleave_context c, cleave_reference x) {
  cleave_reference y;
  if (p->parallel)
    MUST(cleave_parallel_call(seed.rt, c, p->parallel, x, &y, &seed.e));
  else
    MUST(cleave_call(seed.rt, c, p->module, &x, 1, &y, &seed.e));
  return y;
}

/* Runs one iteration. Returns its loss. */
static float train_iteration(const plan *p, const cleave_tensor *batch_x,
                             const cleave_tensor *batch_target) {
  cleave_context c;
  cleave_reference x, loss_inputs[2], loss;
  cleave_tensor value = {0};
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  MUST(cleave_leaf(seed.rt, c, batch_x, false, &x, &seed.e));
  MUST(cleave_leaf(seed.rt, c, batch_target, false, &loss_inputs[1], &seed.e));
  loss_inputs[0] = call_plan(p, c, x);
  MUST(cleave_call(seed.rt, c, bce, loss_inputs, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  MUST(cleave_step(seed.rt, p->sgd, c, 0, NULL, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  float result = seed_get_value(&value, 0);
  cleave_tensor_free(&value);
  return result;
}

static void check_same_bits(const plan *p, size_t i, float loss, const cleave_tensor *x,
                            const cleave_tensor *y) {
  float same = train_iteration(p, x, y);
  if (memcmp(&loss, &same, sizeof loss) != 0)
    seed_fail("iteration %zu: loss %.9g, '%s' has %.9g", i, loss, p->name, same);
}

/* Compares the plans. Plans with the same parts at other nodes must have the same bits. The
 * undivided layers, with the same weights, must differ by less than 1e-6. */
static void compare_plans(size_t i, float loss, const cleave_tensor *x, const cleave_tensor *y) {
  check_same_bits(&at_master, i, loss, x, y);
  check_same_bits(&without_master, i, loss, x, y);
  float undivided = train_iteration(&undivided_plan, x, y);
  if (!(fabs((double)loss - undivided) <= 1e-6 * fmax(1, fabs(undivided))))
    seed_fail("iteration %zu: loss %.9g, the undivided layers have %.9g", i, loss, undivided);
}

int main(int argc, char **argv) {
  enum { COMPARED = 100 };
  seed_open_session("seed002_tensor_parallel", argc, argv);
  load_all_plans();
  cleave_tensor losses = seed_get_golden("losses"), batch_x, batch_target;
  size_t n = cleave_tensor_count(&losses);
  double last = NAN;
  for (size_t i = 0; i < n; i++) {
    seed002_restart_from_golden(NULL, i);
    /* every fifth batch of 64 rows is empty (seed002_get_batch) */
    if (!seed002_get_batch(i, ROWS, &batch_x, &batch_target)) continue;
    if (i < COMPARED) copy_weights(&divided, &undivided_plan);
    float loss = train_iteration(&divided, &batch_x, &batch_target);
    last = loss;
    if (i < COMPARED) compare_plans(i, loss, &batch_x, &batch_target);
    seed002_compare_loss(i, last, seed_get_value(&losses, i));
    if (i % 1000 == 0) printf("loss at iteration %zu: %.3f\n", i, last);
  }
  return seed002_print_verdict(n, seed_get_value(&losses, 0), last);
}
