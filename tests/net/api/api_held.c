/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs programs under the egress policy of the host. Tests which tensors may be sent, whether the
 * program has declared them or not, and the record of the sent tensors. Usage: PROGRAM SESSION RUN
 * MODE; the modes are the test functions in `modes`. The module "far" is at w1, and its loss at the
 * master.
 */
#include "api_int.h"

static const char *session, *run_folder;
/* number of tensors for which the library has called may_send, this program's gate */
static int n_gate_calls;

static cleave_status count_gate_call(void *user, const cleave_sending *what, cleave_error *error) {
  (void)user;
  (void)error;
  n_gate_calls += what->kind != CLEAVE_SENDING_FAILURE;
  return CLEAVE_OK;
}

static cleave_status open_under_policy(const char *folder, cleave_error *e) {
  cleave_options o = {
      .size = sizeof o, .deadline_ms = 20000, .run = folder, .may_send = count_gate_call};
  n_gate_calls = 0;
  return cleave_open(session, &o, &rt, e);
}

static bool close_program(void) {
  MUST(cleave_close(rt, 0, NULL, e));
  return true;
}

static cleave_declaration make_row(cleave_sending_kind kind, int64_t width, unsigned shows) {
  return (cleave_declaration){.size = sizeof(cleave_declaration),
                              .kind = kind,
                              .worker = "w1",
                              .module = "far",
                              .dtype = CLEAVE_F32,
                              .rank = 2,
                              .shape = {4, width},
                              .shows = shows};
}

static bool declare(cleave_sending_kind kind, int64_t width, unsigned shows) {
  cleave_declaration row = make_row(kind, width, shows);
  MUST(cleave_declare(rt, &row, e));
  return true;
}

static bool declare_sent_tensors(void) {
  DO(declare(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED));
  DO(declare(CLEAVE_SENDING_GRADIENT, 2, CLEAVE_SHOWS_LABELS_READABLE));
  cleave_declaration any_shape_row = make_row(CLEAVE_SENDING_WEIGHTS, 0, CLEAVE_SHOWS_WORST);
  MUST(cleave_declare(rt, &any_shape_row, e));
  any_shape_row = make_row(CLEAVE_SENDING_VALUE, 0, CLEAVE_SHOWS_MIXED);
  any_shape_row.rank = -2;
  REFUSED(cleave_declare(rt, &any_shape_row, e), CLEAVE_INVALID, "-1 is any shape");
  return true;
}

/* Loads the module "far" with weights of this program, which are sent to w1, and loads the loss. */
static bool load_net(cleave_module **far, cleave_module **loss) {
  static const float weight[6] = {1, 2, 3, 4, 5, 6}, bias[2] = {1, 1};
  const cleave_named_tensor given_weights[] = {{"0.weight", CLEAVE_TENSOR_F32(weight, 2, 3)},
                                               {"0.bias", CLEAVE_TENSOR_F32(bias, 2)}};
  cleave_module_options o = {
      .size = sizeof o, .name = "far", .at = "w1", .weights = given_weights, .n_weights = 2};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, far, e));
  return load_loss("loss", "master", 2, loss);
}

static bool run_step(cleave_module *far, cleave_module *loss) {
  cleave_context c;
  cleave_reference x, y, t, l;
  float in[12], target[8];
  fill_with_random(in, 12, 1);
  fill_with_random(target, 8, 2);
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, target, 4, 2, false, &t));
  MUST(cleave_call(rt, c, far, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  DO(backward(c, l, false));
  return close_context(c);
}

static bool train(int n_steps) {
  cleave_module *far, *loss;
  DO(load_net(&far, &loss));
  for (int i = 0; i < n_steps; i++) DO(run_step(far, loss));
  CHECK(n_gate_calls == 2 + 2 * n_steps); /* two weights; an input and a gradient in each step */
  return close_program();
}

/* ---- hosts without a policy, or whose policy lacks `programs: declared` ---------------------- */

static bool undeclared_program_runs_without_a_policy(void) {
  MUST(open_under_policy(NULL, e));
  return train(2);
}

static bool undeclared_program_is_recorded_as_the_worst(void) {
  MUST(open_under_policy(run_folder, e));
  return train(2);
}

static bool program_is_refused_by_the_policy(void) {
  REFUSED(open_under_policy(run_folder, e), CLEAVE_DENIED, "egress.policy.yaml:2:");
  REFUSED(open_under_policy(NULL, e), CLEAVE_DENIED, "`programs: declared`");
  return true;
}

/* ---- programs that declare rows of the egress table ------------------------------------------ */

static bool program_without_a_record_is_refused(void) {
  REFUSED(open_under_policy(NULL, e), CLEAVE_PRECONDITION, "cleave_options.run");
  return true;
}

static bool declared_tensors_are_sent(void) {
  MUST(open_under_policy(run_folder, e));
  DO(declare_sent_tensors());
  /* a tensor that is declared twice counts as one row of the egress table */
  DO(declare_sent_tensors());
  return train(3);
}

static bool killed_program_leaves_its_allowances(void) {
  cleave_module *far, *loss;
  MUST(open_under_policy(run_folder, e));
  DO(declare_sent_tensors());
  DO(load_net(&far, &loss));
  DO(run_step(far, loss));
  print_result(true, "killed_program_leaves_its_allowances");
  return kill(getpid(), SIGKILL) == 0;
}

/* True if a call of "far" with an input of `rows` samples is refused with a text that has
 * `part`. */
static bool refuses_input(int64_t rows, const char *part) {
  cleave_module *far;
  cleave_context c;
  cleave_reference x, y;
  float in[24] = {0};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o, .name = "far", .at = "w1", .seed = 7};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &far, e));
  DO(open_context(&c));
  DO(make_leaf(c, in, rows, 3, false, &x));
  REFUSED(cleave_call(rt, c, far, &x, 1, &y, e), CLEAVE_DENIED, part);
  CHECK(n_gate_calls == 0);
  MUST(cleave_context_end(rt, c, e));
  MUST(cleave_module_release(rt, far, e));
  return true;
}

static bool undeclared_tensor_stops_everything(void) {
  MUST(open_under_policy(run_folder, e));
  DO(declare(CLEAVE_SENDING_GRADIENT, 2, CLEAVE_SHOWS_LABELS_READABLE));
  DO(refuses_input(4, "input 0 of module 'far', f32 [4, 3] to w1: the program has declared no"));
  DO(declare(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED));
  DO(refuses_input(4, "declared no such tensor"));
  return close_program();
}

static bool tensor_of_another_form_is_undeclared(void) {
  MUST(open_under_policy(run_folder, e));
  DO(declare(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED));
  DO(refuses_input(5, "f32 [5, 3] to w1"));
  return close_program();
}

static bool undeclared_weights_are_not_sent(void) {
  cleave_module *far, *loss;
  MUST(open_under_policy(run_folder, e));
  DO(declare(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED));
  DO(load_net(&far, &loss));
  REFUSED(cleave_module_place(rt, far, false, 0, e), CLEAVE_DENIED, "of module 'far', f32 [2");
  CHECK(n_gate_calls == 0);
  return close_program();
}

static bool row_against_the_policy_is_refused(void) {
  cleave_declaration row = make_row(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_WORST);
  MUST(open_under_policy(run_folder, e));
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED, "allow.raw");
  row.dtype = CLEAVE_I64;
  row.shows = CLEAVE_SHOWS_MIXED;
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED, "dtypes");
  row = make_row(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_LABELS);
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_DENIED, "allow.labels");
  row = make_row(CLEAVE_SENDING_GRADIENT, 2, CLEAVE_SHOWS_WORST);
  MUST(cleave_declare(rt, &row, e)); /* LABELS READABLE, which the policy permits */
  row.rank = -1;                     /* a gradient of any shape */
  MUST(cleave_declare(rt, &row, e));
  row.worker = "w9";
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_NOT_FOUND, "'w9'");
  row = make_row(CLEAVE_SENDING_FAILURE, 2, CLEAVE_SHOWS_MIXED);
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_INVALID, "kind 5");
  row = make_row(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED + CLEAVE_SHOWS_TOKENS);
  REFUSED(cleave_declare(rt, &row, e), CLEAVE_INVALID, "stands alone");
  return close_program();
}

/* Loads "far" as a module with two outputs, w [4, 2] and v [4, 1], which is computed from w. */
static bool load_pair(cleave_module **far) {
  static const int64_t shape[] = {4, 3};
  cleave_module_options o = {.size = sizeof o, .name = "far", .at = "w1"};
  cleave_graph *g;
  int x, w, v;
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "x", CLEAVE_F32, shape, 2, &x, e));
  MUST(cleave_graph_op(g, "linear", "{out: 2}", NULL, &x, 1, &w, e));
  MUST(cleave_graph_op(g, "linear", "{out: 1}", NULL, &w, 1, &v, e));
  MUST(cleave_graph_output(g, w, e));
  MUST(cleave_graph_output(g, v, e));
  MUST(cleave_load_graph(rt, &o, g, far, e));
  cleave_graph_free(g);
  return true;
}

/* A row that declares an f32 input does not permit a bf16 input, and a row for the gradient of
 * output 0 does not permit the gradient of output 1. */
static bool types_and_outputs_have_rows_of_their_own(void) {
  cleave_module *far;
  cleave_context c;
  cleave_reference x, out[2];
  uint16_t in[12] = {0}, gradient_of_v[4] = {0};
  float gradient_of_w[8] = {0};
  cleave_declaration row = make_row(CLEAVE_SENDING_LEAF, 3, CLEAVE_SHOWS_MIXED);
  MUST(open_under_policy(run_folder, e));
  row.dtype = CLEAVE_BF16;
  MUST(cleave_declare(rt, &row, e));
  DO(declare(CLEAVE_SENDING_GRADIENT, 2, CLEAVE_SHOWS_LABELS_READABLE));
  row = make_row(CLEAVE_SENDING_GRADIENT, 1, CLEAVE_SHOWS_LABELS_READABLE);
  row.dtype = CLEAVE_BF16;
  row.input = 1;
  MUST(cleave_declare(rt, &row, e));
  DO(load_pair(&far));
  DO(open_context(&c));
  cleave_tensor leaf = CLEAVE_TENSOR_BF16(in, 4, 3);
  const cleave_tensor gradients[] = {CLEAVE_TENSOR_F32(gradient_of_w, 4, 2),
                                     CLEAVE_TENSOR_BF16(gradient_of_v, 4, 1)};
  cleave_backward_options o = {.size = sizeof o, .gradients = gradients};
  MUST(cleave_leaf(rt, c, &leaf, false, &x, e));
  MUST(cleave_call_outputs(rt, c, far, &x, 1, NULL, out, 2, e));
  MUST(cleave_backward_with(rt, c, out, 2, &o, e));
  CHECK(n_gate_calls == 3);
  MUST(cleave_call_outputs(rt, c, far, &x, 1, NULL, out, 2, e));
  const cleave_tensor wrong_gradients[] = {CLEAVE_TENSOR_F32(gradient_of_w, 4, 2),
                                           CLEAVE_TENSOR_F32(gradient_of_w, 4, 1)};
  o.gradients = wrong_gradients;
  REFUSED(cleave_backward_with(rt, c, out, 2, &o, e), CLEAVE_DENIED,
          "gradient of output 1 of module 'far', f32 [4, 1] to w1: the program has declared no");
  MUST(cleave_context_end(rt, c, e));
  return close_program();
}

/* The limit bytes_per_epoch of the policy suffices for the weights and one step, but not for
 * two. */
static bool epoch_bounds_the_bytes(void) {
  cleave_module *far, *loss;
  MUST(open_under_policy(run_folder, e));
  DO(declare_sent_tensors());
  DO(load_net(&far, &loss));
  DO(run_step(far, loss));
  MUST(cleave_epoch(rt, e));
  DO(run_step(far, loss));
  CHECK(!run_step(far, loss) && strstr(why, "bytes_per_epoch"));
  return close_program();
}

static bool damaged_policy_stops_the_program(void) {
  REFUSED(open_under_policy(run_folder, e), CLEAVE_INVALID, "unknown key 'program'");
  return true;
}

static bool limited_reading_refuses_programs(void) {
  REFUSED(open_under_policy(run_folder, e), CLEAVE_DENIED, "max_read.labels");
  return true;
}

static bool policy_of_another_worker_refuses_the_program(void) {
  REFUSED(open_under_policy(run_folder, e), CLEAVE_DENIED, "does not name spiffe://test/w1");
  return true;
}

/* ---- modes of this program ------------------------------------------------------------------- */

static const test modes[] = {TEST(undeclared_program_runs_without_a_policy),
                             TEST(undeclared_program_is_recorded_as_the_worst),
                             TEST(program_is_refused_by_the_policy),
                             TEST(program_without_a_record_is_refused),
                             TEST(declared_tensors_are_sent),
                             TEST(killed_program_leaves_its_allowances),
                             TEST(undeclared_tensor_stops_everything),
                             TEST(tensor_of_another_form_is_undeclared),
                             TEST(undeclared_weights_are_not_sent),
                             TEST(row_against_the_policy_is_refused),
                             TEST(types_and_outputs_have_rows_of_their_own),
                             TEST(epoch_bounds_the_bytes),
                             TEST(damaged_policy_stops_the_program),
                             TEST(limited_reading_refuses_programs),
                             TEST(policy_of_another_worker_refuses_the_program)};

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  session = argv[1];
  run_folder = argv[2];
  snprintf(why, sizeof why, "no such mode");
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    for (int k = 3; k < argc; k++)
      if (strcmp(modes[i].name, argv[k]) == 0) (void)run_tests(&modes[i], 1);
  return n_failed;
}
