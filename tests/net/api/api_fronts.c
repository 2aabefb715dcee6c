/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests fronts: modules at the master whose output a module at a worker receives. The library
 * checks fronts by the rules of `cleave plan` and by this host's ledger of the keys that workers
 * have had. Usage: PROGRAM SESSION RUN MODE; the modes are the test functions in `modes`. The
 * module "front" takes records [4, 16]; "far" is at w1.
 */
#include "api_int.h"

enum { WIDTH = 16 };
static const char *session, *run_folder;
static float records[4 * WIDTH], drawn_weights[WIDTH * WIDTH], target[8], zeros[WIDTH];

static bool open_program(void) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .run = run_folder};
  MUST(cleave_open(session, &o, &rt, e));
  return true;
}

static bool close_program(void) {
  cleave_error ignored;
  (void)cleave_close(rt, 0, NULL, &ignored);
  return true;
}

static bool declare(cleave_sending_kind kind, const char *module, int64_t width, uint32_t shown,
                    uint32_t n_hiding_layers) {
  cleave_declaration row = {.size = sizeof row,
                            .kind = kind,
                            .worker = "w1",
                            .module = module,
                            .dtype = CLEAVE_F32,
                            .rank = kind == CLEAVE_SENDING_WEIGHTS ? 0 : 2,
                            .shape = {4, width},
                            .shows = shown,
                            .hiding_layers = n_hiding_layers};
  MUST(cleave_declare(rt, &row, e));
  return true;
}

/* Opens a runtime and declares two rows of its egress table. The first row: the front's output
 * shows w1 the finding `shown`, after n_hiding_layers layers that hide the records. The second row:
 * the gradient for "far" shows w1 the finding gradient_shown, after n_label_hiding_layers layers
 * that hide the labels. */
static bool open_with_rows(uint32_t shown, uint32_t n_hiding_layers, uint32_t gradient_shown,
                           uint32_t n_label_hiding_layers) {
  DO(open_program());
  DO(declare(CLEAVE_SENDING_VALUE, "front", WIDTH, shown, n_hiding_layers));
  return declare(CLEAVE_SENDING_GRADIENT, "far", 2, gradient_shown, n_label_hiding_layers);
}

static bool open_with_front_row(uint32_t shown, uint32_t n_hiding_layers) {
  return open_with_rows(shown, n_hiding_layers, CLEAVE_SHOWS_LABELS_READABLE, 0);
}

/* Loads a module of `layers`. factor: the module's weight is drawn_weights times this number; 0:
 * the library draws the weight from seed 9. */
static bool load_weighted_module(const char *name, const char *at, const char *layers, float factor,
                                 bool is_secret, cleave_module **ret) {
  float scaled_weights[WIDTH * WIDTH];
  for (int i = 0; i < WIDTH * WIDTH; i++) scaled_weights[i] = drawn_weights[i] * factor;
  const cleave_named_tensor given_weights[] = {
      {"0.weight", CLEAVE_TENSOR_F32(scaled_weights, WIDTH, WIDTH)},
      {"0.bias", CLEAVE_TENSOR_F32(zeros, WIDTH)}};
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = at,
                             .seed = 9,
                             .weights = given_weights,
                             .n_weights = factor != 0 ? 2 : 0,
                             .weights_are_secret = is_secret};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, WIDTH);
  MUST(cleave_load_layers(rt, &o, layers, &input, ret, e));
  return true;
}

/* module at the master that reads the outputs of the module "far" at w1; NULL: the loss reads these
 * outputs */
static cleave_module *head;

/* Sends records through the front at the master, "far" at w1 and the head if there is one. Computes
 * the loss, and runs a backward. */
static bool train_once(cleave_module *front, cleave_error *e) {
  cleave_module *far, *loss;
  cleave_module_options o = {.size = sizeof o, .name = "far", .at = "w1", .seed = 20};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, WIDTH);
  cleave_context c;
  cleave_reference x, h, y, t, l;
  if (cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &far, e)) return false;
  DO(load_loss("loss", "master", 2, &loss));
  DO(open_context(&c));
  DO(make_leaf(c, records, 4, WIDTH, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  if (cleave_call(rt, c, front, &x, 1, &h, e) || cleave_call(rt, c, far, &h, 1, &y, e) ||
      (head && cleave_call(rt, c, head, (cleave_reference[]){y}, 1, &y, e)) ||
      cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e))
    return false;
  return cleave_backward(rt, c, &l, 1, false, 0, e) == CLEAVE_OK;
}

static bool is_trained_once(cleave_module *front) {
  cleave_error e = {.status = CLEAVE_OK};
  bool ok = train_once(front, &e);
  snprintf(why, sizeof why, "refused: %s", e.text);
  return ok && close_program();
}

static bool is_training_refused(cleave_module *front, const char *part) {
  cleave_error e = {.status = CLEAVE_OK};
  bool ok = train_once(front, &e);
  snprintf(why, sizeof why, "'%s' lacks '%s'", e.text, part);
  return !ok && e.status == CLEAVE_DENIED && strstr(e.text, part) && close_program();
}

/* ---- outputs of a front that is checked by the rules of `plan` ------------------------------- */

static const char LINEAR_LAYERS[] = "[{op: linear, out: 16}]";

static bool front_that_mixes_nothing_is_refused(void) {
  cleave_module *front;
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 0));
  DO(load_weighted_module("front", "master", "[{op: relu}]", 0, false, &front));
  DO(is_training_refused(front, "shows RAW INPUT behind 0 hiding layers; its row says less"));
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 2));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 0, false, &front));
  return is_training_refused(front, "MIXED behind 1 hiding layer");
}

static bool front_that_hides_is_sent(void) {
  cleave_module *front;
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 1));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 0, false, &front));
  return is_trained_once(front);
}

/* ---- gradients sent to the worker, which a head at the master hides -------------------------- */

/* Opens a runtime whose egress table declares the gradient for "far" as MIXED, and loads a front,
 * and a head of `layers` at the master. layers NULL: no head. */
static bool open_with_head(const char *layers, uint32_t n_hiding_layers, bool is_frozen,
                           cleave_module **front) {
  static const char *const all[] = {"*"};
  cleave_module_options o = {.size = sizeof o, .name = "head", .seed = 30};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 2);
  DO(open_with_rows(CLEAVE_SHOWS_MIXED, 1, CLEAVE_SHOWS_MIXED, n_hiding_layers));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 0, false, front));
  o.frozen = all;
  o.n_frozen = is_frozen;
  head = NULL;
  if (layers) MUST(cleave_load_layers(rt, &o, layers, &input, &head, e));
  return true;
}

static bool gradient_behind_no_head_is_refused(void) {
  cleave_module *front;
  DO(open_with_head(NULL, 0, false, &front));
  DO(is_training_refused(front,
                         "gradient of module 'far', f32 [4, 2] to w1 shows LABELS READABLE"));
  DO(open_with_head("[{op: linear, out: 2}]", 0, true, &front));
  DO(is_training_refused(front,
                         "LABELS READABLE behind 0 hiding layers: layer '0' of 'head' is frozen"));
  DO(open_with_head("[{op: linear, out: 2}]", 2, false, &front));
  return is_training_refused(front, "shows MIXED behind 1 hiding layer");
}

static bool gradient_behind_a_head_is_sent(void) {
  cleave_module *front;
  DO(open_with_head("[{op: linear, out: 2}]", 1, false, &front));
  return is_trained_once(front);
}

/* ---- fronts whose weights or key a worker had before ----------------------------------------- */

static bool worker_gets_weights_and_a_key(void) {
  cleave_module *far;
  DO(open_program());
  DO(declare(CLEAVE_SENDING_WEIGHTS, "given", 0, 0, 0));
  DO(load_weighted_module("given", "w1", LINEAR_LAYERS, 1, false, &far));
  MUST(cleave_module_place(rt, far, false, 0, e));
  DO(load_weighted_module("keyed", "w1", LINEAR_LAYERS, 0, false, &far));
  MUST(cleave_module_place(rt, far, false, 0, e));
  return close_program();
}

/* The runner has set the environment so that the ledger file cannot be written. */
static bool unwritable_ledger_stops_the_program(void) {
  cleave_module *far;
  DO(open_program());
  DO(declare(CLEAVE_SENDING_WEIGHTS, "given", 0, 0, 0));
  DO(load_weighted_module("given", "w1", LINEAR_LAYERS, 1, false, &far));
  REFUSED(cleave_module_place(rt, far, false, 0, e), CLEAVE_PRECONDITION, "the ledger of keys");
  return close_program();
}

static bool front_with_weights_of_a_worker_is_refused(void) {
  cleave_module *front;
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 0));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 2, true, &front));
  DO(is_training_refused(
      front,
      "FRONT KNOWN behind 0 hiding layers: layer '0' of 'front' has weights that are "
      "scaled, rounded or reordered ones at 'spiffe://test/w1' in an earlier session (2"));
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 0));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 3, false, &front));
  DO(is_training_refused(front, "has weights that the program does not declare secret"));
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 0));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 0, false, &front));
  return is_training_refused(front, "was at 'spiffe://test/w1' in an earlier session, by its key");
}

static bool front_that_is_declared_known_is_sent(void) {
  cleave_module *front;
  DO(open_with_front_row(CLEAVE_SHOWS_FRONT_KNOWN, 0));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 2, true, &front));
  return is_trained_once(front);
}

static bool front_with_other_secret_weights_is_sent(void) {
  cleave_module *front;
  fill_with_random(drawn_weights, WIDTH * WIDTH, 77);
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 1));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 1, true, &front));
  return is_trained_once(front);
}

/* Weights that the program has read from a worker count as known to the worker, also in the next
 * session. */
static bool weights_that_are_read_are_known(void) {
  cleave_module *far;
  cleave_tensor weight = {0};
  cleave_state state = {0};
  DO(open_program());
  /* the library draws these weights, and the front of the next runtime gets them, too */
  DO(load_weighted_module("front", "w1", LINEAR_LAYERS, 0, false, &far));
  MUST(cleave_weight_read(rt, far, "0.weight", 0, &weight, e));
  MUST(cleave_state_read(rt, far, CLEAVE_STATE_WEIGHTS, 0, &state, e));
  memcpy(drawn_weights, weight.data, sizeof drawn_weights);
  cleave_tensor_free(&weight);
  cleave_state_free(&state);
  DO(close_program());
  cleave_module *front;
  DO(open_with_front_row(CLEAVE_SHOWS_MIXED, 0));
  DO(load_weighted_module("front", "master", LINEAR_LAYERS, 1, true, &front));
  return is_training_refused(front, "has weights that were at 'spiffe://test/w1'");
}

/* ---- declarations that describe the front of a leaf: the layers that computed it ------------- */

static bool leaf_is_judged_by_its_front(void) {
  static const int64_t shape[] = {4, WIDTH};
  const cleave_named_tensor given_weights[] = {
      {"0.weight", CLEAVE_TENSOR_F32(drawn_weights, WIDTH, WIDTH)}};
  cleave_graph *g;
  int x;
  cleave_declaration row = {.size = sizeof row,
                            .kind = CLEAVE_SENDING_LEAF,
                            .worker = "w1",
                            .module = "far",
                            .dtype = CLEAVE_F32,
                            .rank = 2,
                            .shape = {4, WIDTH},
                            .shows = CLEAVE_SHOWS_MIXED};
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "x", CLEAVE_F32, shape, 2, &x, e));
  MUST(cleave_graph_op(g, "linear", "{out: 16}", NULL, &x, 1, NULL, e));
  row.front = g;
  DO(open_program());
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED, "shows FRONT KNOWN behind 0 hiding layers");
  row.front_is_secret = true;
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_INVALID, "front_weights lack '0.weight'");
  row.front_weights = given_weights;
  row.n_front_weights = 1;
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED,
          "has weights that were at 'spiffe://test/w1'");
  fill_with_random(drawn_weights, WIDTH * WIDTH, 78);
  MUST(cleave_declare(rt, &row, e));
  row.hiding_layers = 2;
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED, "MIXED behind 1 hiding layer; the row");
  row.kind = CLEAVE_SENDING_VALUE;
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_INVALID, "that of a leaf");
  cleave_graph_free(g);
  return close_program();
}

/* ---- modes of this program ------------------------------------------------------------------- */

static const test modes[] = {TEST(front_that_mixes_nothing_is_refused),
                             TEST(front_that_hides_is_sent),
                             TEST(gradient_behind_no_head_is_refused),
                             TEST(gradient_behind_a_head_is_sent),
                             TEST(worker_gets_weights_and_a_key),
                             TEST(unwritable_ledger_stops_the_program),
                             TEST(front_with_weights_of_a_worker_is_refused),
                             TEST(front_that_is_declared_known_is_sent),
                             TEST(front_with_other_secret_weights_is_sent),
                             TEST(weights_that_are_read_are_known),
                             TEST(leaf_is_judged_by_its_front)};

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  session = argv[1];
  run_folder = argv[2];
  fill_with_random(drawn_weights, WIDTH * WIDTH, 5);
  fill_with_random(records, 4 * WIDTH, 6);
  snprintf(why, sizeof why, "no such mode");
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    for (int k = 3; k < argc; k++)
      if (strcmp(modes[i].name, argv[k]) == 0) (void)run_tests(&modes[i], 1);
  return n_failed;
}
