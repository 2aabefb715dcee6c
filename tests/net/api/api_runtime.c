/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the C API offers to the owner of a runtime, beyond training steps: state that moves
 * into another runtime, a gate that decides which tensors leave the process and by which route,
 * sessions with some of the workers, weights on a worker's disk, the loss of a worker. Each test
 * opens a runtime and asserts at its end that no object is left open. The values of MODE in
 * the usage (api_pipeline_int.h):
 *   none                       tests whose results must not depend on A and B
 *   options                    tests of options and of what they refuse
 *   only                       B's worker is down
 *   lost PID                   PID is B's process
 *   artifact SHA256 DAMAGED    the digests of two files at A's worker
 */
#include <pthread.h>

#include "api_pipeline_int.h"

/* ---- reading and writing the state of modules ------------------------------------------------ */

typedef struct saved_state {
  cleave_state state[2][2]; /* [module a, b][weights, optimiser] */
  numbers weights_after_six_steps;
} saved_state;

static bool make_adam(const net *n, uint64_t total_steps, cleave_optimizer **ret) {
  const cleave_schedule halving = {.curve = CLEAVE_STEPS, .step_size = 2, .gamma = 0.5};
  cleave_group g = {.modules = (cleave_module *[]){n->a, n->b},
                    .n_modules = 2,
                    .kind = CLEAVE_ADAM,
                    .lr = 0.05,
                    .schedule = halving};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, ret, e));
  MUST(cleave_optimizer_set_steps(rt, *ret, total_steps, e));
  return true;
}

static bool save_after_three_steps_and_take_three(saved_state *s) {
  net n;
  cleave_optimizer *o;
  DO(make_network("saved", "master", &n));
  DO(make_adam(&n, 0, &o));
  DO(train_steps(&n, &o, 1, 200, 3, CLOSE));
  for (int i = 0; i < 4; i++) {
    cleave_state_kind kind = i % 2 ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS;
    cleave_module *m = i / 2 ? n.b : n.a;
    MUST(cleave_state_read(rt, m, kind, 0, &s->state[i / 2][i % 2], e));
    CHECK(s->state[i / 2][i % 2].n == cleave_state_count(m, kind));
    CHECK(s->state[i / 2][i % 2].n == (i % 2 ? 5u : 2u));
  }
  DO(train_steps(&n, &o, 1, 203, 3, CLOSE));
  return copy_weights(&n, &s->weights_after_six_steps);
}

static bool restore_and_take_three_steps(saved_state *s) {
  net n;
  cleave_optimizer *o;
  numbers weights_after;
  DO(make_network("restored", "master", &n));
  DO(make_adam(&n, 3, &o));
  for (int i = 0; i < 4; i++) {
    cleave_state *from = &s->state[i / 2][i % 2];
    MUST(cleave_state_write(rt, i / 2 ? n.b : n.a,
                            i % 2 ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS, from->items,
                            from->n, 0, e));
  }
  DO(train_steps(&n, &o, 1, 203, 3, CLOSE));
  DO(copy_weights(&n, &weights_after));
  CHECK(are_equal_numbers(&weights_after, &s->weights_after_six_steps));
  return true;
}

static bool state_written_into_another_runtime_continues_with_the_same_bits(void) {
  saved_state s = {0};
  DO(save_after_three_steps_and_take_three(&s));
  IN_RUNTIME(NULL, restore_and_take_three_steps(&s));
  for (int i = 0; i < 4; i++) cleave_state_free(&s.state[i / 2][i % 2]);
  CHECK(s.state[0][0].n == 0 && s.state[0][0].items == NULL);
  return true;
}

static float zeros[15];
static int64_t third_step = 3;
static const cleave_named_tensor valid_weight = {"0.weight", CLEAVE_TENSOR_F32(zeros, 5, 3)};
static const cleave_named_tensor moment = {"0.weight.exp_avg", CLEAVE_TENSOR_F32(zeros, 5, 3)};

static cleave_named_tensor make_step_counter(int rank) {
  cleave_named_tensor counter = {"step", CLEAVE_TENSOR_I64(&third_step, 1)};
  counter.tensor.rank = rank;
  return counter;
}

/* Loads a network of which only the first module has an optimiser. */
static bool load_half_trained_network(const char *name, net *n) {
  cleave_optimizer *o;
  DO(make_network(name, "master", n));
  cleave_group g = {.modules = &n->a, .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  return true;
}

static bool mismatched_state_is_refused_by_name(void) {
  net n;
  cleave_state state = {0};
  DO(load_half_trained_network("odd state", &n));
  CHECK(cleave_state_count(n.b, CLEAVE_STATE_OPTIMIZER) == 0);
  CHECK(cleave_state_count(n.a, CLEAVE_STATE_OPTIMIZER) == 5);
  MUST(cleave_state_read(rt, n.b, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  CHECK(state.n == 0);
  cleave_state_free(&state);
#define STATE_IS_REFUSED(module, kind, item, count, part)                                        \
  REFUSED(cleave_state_write(rt, module, kind, (cleave_named_tensor[]){item, item, item}, count, \
                             0, e),                                                              \
          CLEAVE_INVALID, part)
  STATE_IS_REFUSED(n.b, CLEAVE_STATE_OPTIMIZER, moment, 1, "odd state b");
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_WEIGHTS, valid_weight, 3,
                   "3 items for module 'odd state a', which has 2");
  cleave_named_tensor wrong_item = valid_weight;
  wrong_item.name = "0.wieght";
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_WEIGHTS, wrong_item, 1, "'0.wieght'");
  wrong_item = valid_weight;
  wrong_item.tensor.shape[1] = 2;
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_WEIGHTS, wrong_item, 1, "'0.weight' f32 [5, 2]");
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_WEIGHTS, moment, 1, "'0.weight.exp_avg'");
  wrong_item = moment;
  wrong_item.name = "0.wieght.exp_avg";
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_OPTIMIZER, wrong_item, 1, "'0.wieght.exp_avg'");
  wrong_item = make_step_counter(1);
  STATE_IS_REFUSED(n.a, CLEAVE_STATE_OPTIMIZER, wrong_item, 1, "'step'");
  return true;
}

static bool state_may_be_written_in_parts(void) {
  net n;
  cleave_state state = {0};
  cleave_named_tensor counter = make_step_counter(0);
  DO(load_half_trained_network("state in parts", &n));
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_WEIGHTS, &valid_weight, 0, 0, e));
  /* writes only some of the optimiser's values */
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_OPTIMIZER, &counter, 1, 0, e));
  MUST(cleave_state_write(rt, n.a, CLEAVE_STATE_OPTIMIZER, &moment, 1, 0, e));
  MUST(cleave_state_read(rt, n.a, CLEAVE_STATE_OPTIMIZER, 0, &state, e));
  for (size_t i = 0; i < state.n; i++)
    if (strcmp(state.items[i].name, "step") == 0)
      CHECK(*(int64_t *)state.items[i].tensor.data == 3 && state.items[i].tensor.rank == 0);
  cleave_state_free(&state);
  return true;
}

/* ---- the gate: the program's function that permits each sending ------------------------------ */

enum { MAX_SENDINGS = 64, RELAYED = 1 };

/* Lines that describe the tensors for which the library has called the gate. refused_kinds: bits.
 * If bit k is set, the gate refuses tensors of the cleave_sending_kind k; if RELAYED is set, it
 * refuses values that the master only relays between workers. */
static struct {
  pthread_mutex_t lock;
  char recorded_sendings[MAX_SENDINGS][200];
  int n;
  unsigned refused_kinds;
} recorded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void print_sending(char *to, size_t len, const cleave_sending *s) {
  static const char *const kinds[] = {"?", "leaf", "value", "gradient", "weights", "failure"};
  int len_written = snprintf(to, len, "%s of '%s' input %u to %s:", kinds[s->kind], s->module,
                             s->input, s->worker);
  for (int i = 0; i < s->rank; i++)
    len_written +=
        snprintf(to + len_written, len - (size_t)len_written, " %lld", (long long)s->shape[i]);
  snprintf(to + len_written, len - (size_t)len_written, "%s, %zu bytes%s",
           s->dtype == CLEAVE_I64 ? " i64" : "", s->bytes, s->relayed ? ", relayed" : "");
}

static cleave_status may_send(void *user, const cleave_sending *what, cleave_error *error) {
  (void)user;
  pthread_mutex_lock(&recorded.lock);
  if (recorded.n < MAX_SENDINGS)
    print_sending(recorded.recorded_sendings[recorded.n++], sizeof recorded.recorded_sendings[0],
                  what);
  bool is_refused = (recorded.refused_kinds >> what->kind & 1) ||
                    (what->relayed && (recorded.refused_kinds & RELAYED));
  pthread_mutex_unlock(&recorded.lock);
  if (!is_refused) return CLEAVE_OK;
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text, "a %s of '%s' stays here",
           what->kind == CLEAVE_SENDING_GRADIENT ? "gradient" : "tensor", what->module);
  return CLEAVE_DENIED;
}

static void clear_recorded_sendings(unsigned refused_kinds) {
  pthread_mutex_lock(&recorded.lock);
  recorded.n = 0;
  recorded.refused_kinds = refused_kinds;
  pthread_mutex_unlock(&recorded.lock);
}

static int get_n_sendings(void) {
  pthread_mutex_lock(&recorded.lock);
  int n = recorded.n;
  pthread_mutex_unlock(&recorded.lock);
  return n;
}

/* True if the next recorded line since clear_recorded_sendings is `line`. */
static bool is_next_sending(int *next_index, const char *line) {
  pthread_mutex_lock(&recorded.lock);
  bool is_expected =
      *next_index < recorded.n && strcmp(recorded.recorded_sendings[*next_index], line) == 0;
  if (!is_expected)
    snprintf(why, sizeof why, "sending %d is '%.190s', not '%s'", *next_index,
             *next_index < recorded.n ? recorded.recorded_sendings[*next_index] : "none", line);
  ++*next_index;
  pthread_mutex_unlock(&recorded.lock);
  return is_expected;
}

static bool is_worker(const char *node) { return strcmp(node, "master") != 0; }

/* Checks that the next recorded sending is this formatted line; does nothing unless `wanted`. */
#define CHECK_NEXT_SENDING(wanted, ...)       \
  do {                                        \
    if (!(wanted)) break;                     \
    snprintf(line, sizeof line, __VA_ARGS__); \
    DO(is_next_sending(&at, line));           \
  } while (0)

/* Checks the sendings of one step, for every placement of the modules a and b. */
static bool check_sendings(void) {
  bool is_direct = strcmp(transfer, "direct") == 0;
  bool is_apart = strcmp(at_a, at_b) != 0,
       is_relayed = is_apart && is_worker(at_a) && is_worker(at_b);
  char line[200];
  int at = 0;
  CHECK_NEXT_SENDING(is_worker(at_a), "leaf of 'gate a' input 0 to %s: 4 3, 48 bytes", at_a);
  CHECK_NEXT_SENDING(is_apart && !is_worker(at_a), "value of 'gate a' input 0 to %s: 4 5, 80 bytes",
                     at_b);
  CHECK_NEXT_SENDING(is_relayed && !is_direct,
                     "value of 'gate a' input 0 to %s: 4 5, 80 bytes, relayed", at_b);
  CHECK_NEXT_SENDING(is_worker(at_b), "gradient of 'gate b' input 0 to %s: 4 2, 32 bytes", at_b);
  CHECK_NEXT_SENDING(is_worker(at_a) && !is_worker(at_b),
                     "gradient of 'gate a' input 0 to %s: 4 5, 80 bytes", at_a);
  CHECK_NEXT_SENDING(is_relayed && !is_direct,
                     "gradient of 'gate a' input 0 to %s: 4 5, 80 bytes, relayed", at_a);
  CHECK(get_n_sendings() == at);
  return true;
}

static bool check_gate_during_a_step(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  cleave_tensor y = {0};
  DO(make_network("gate", "master", &n));
  cleave_group g = {.modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  MUST(cleave_module_place(rt, n.a, true, 0, e));
  clear_recorded_sendings(0);
  /* the library calls the gate for tensors only, so the second step gives the same lines as the
   * first */
  for (int i = 0; i < 2; i++) {
    DO(open_context(&c));
    DO(run_network_after(&n, c, 1, no_reference, NULL, &loss));
    MUST(cleave_to_here(rt, loss, 0, &y, e));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    DO(close_context(c));
    DO(check_sendings());
    clear_recorded_sendings(0);
  }
  cleave_tensor_free(&y);
  return true;
}

static bool gate_is_asked_before_each_tensor_is_sent(void) {
  IN_RUNTIME((&(cleave_options){.size = sizeof(cleave_options),
                                .may_send = may_send,
                                .single_thread = is_single_threaded}),
             check_gate_during_a_step());
  return true;
}

/* Sends the kinds of tensors that check_sendings does not check: labels, a second input, weights,
 * state, and a value that is sent before its call. */
static bool check_other_sendings(const char *w) {
  cleave_module *m, *loss;
  cleave_context c;
  cleave_reference x, t, y, l;
  cleave_tensor value = {0};
  float in[12] = {1}, given_w[9] = {1, 2, 3};
  int64_t classes[4] = {0, 1, 2, 0};
  int at = 0;
  char line[200];
  cleave_named_tensor given_weight = {"0.weight", CLEAVE_TENSOR_F32(given_w, 3, 3)};
  cleave_module_options o = {
      .size = sizeof o, .name = "far", .at = w, .weights = &given_weight, .n_weights = 1};
  cleave_module_options lo = {.size = sizeof lo, .name = "far loss", .at = w};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e));
  MUST(cleave_load_loss(rt, &lo, "cross_entropy", &input, &loss, e));
  cleave_tensor labels = CLEAVE_TENSOR_I64(classes, 4);
  clear_recorded_sendings(0);
  MUST(cleave_module_place(rt, m, false, 0, e));
  CHECK_NEXT_SENDING(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  MUST(cleave_leaf(rt, c, &labels, false, &t, e));
  CHECK(get_n_sendings() == 1); /* leaves are not sent until a call needs them */
  MUST(cleave_send_to(rt, x, w, e));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, t}, 2, &l, e));
  MUST(cleave_to_here(rt, l, 0, &value, e));
  DO(backward(c, l, false));
  DO(close_context(c));
  MUST(cleave_weight_write(rt, m, "0.weight", &given_weight.tensor, 0, e));
  MUST(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, &given_weight, 1, 0, e));
  DO(read_weight(m, "0.weight", &value));
  CHECK(memcmp(value.data, given_w, sizeof given_w) == 0);
  CHECK_NEXT_SENDING(true, "leaf of '' input 0 to %s: 4 3, 48 bytes", w);
  CHECK_NEXT_SENDING(true, "leaf of 'far loss' input 1 to %s: 4 i64, 32 bytes", w);
  CHECK_NEXT_SENDING(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  CHECK_NEXT_SENDING(true, "weights of 'far' input 0 to %s: 3 3, 36 bytes", w);
  CHECK(get_n_sendings() == at);
  cleave_tensor_free(&value);
  return true;
}

/* A state without num_batches_tracked is accepted, and the count is 0, as PyTorch accepts such a
 * state_dict. */
static bool omitted_batch_count_is_0(void) {
  static const char *const names[] = {"0.weight", "0.bias", "0.running_mean", "0.running_var"};
  float rows[4][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {1, 1, 1}};
  cleave_named_tensor given_state[4];
  cleave_state state = {0};
  cleave_module *m;
  cleave_module_options o = {.size = sizeof o, .name = "norm", .at = at_b};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  for (int i = 0; i < 4; i++)
    given_state[i] = (cleave_named_tensor){names[i], CLEAVE_TENSOR_F32(rows[i], 3)};
  MUST(cleave_load_layers(rt, &o, "[{op: batchnorm}]", &input, &m, e));
  MUST(cleave_module_place(rt, m, false, 0, e));
  MUST(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, given_state, 4, 0, e));
  MUST(cleave_state_read(rt, m, CLEAVE_STATE_WEIGHTS, 0, &state, e));
  int64_t count = -1;
  for (size_t i = 0; i < state.n; i++)
    if (strcmp(state.items[i].name, "0.num_batches_tracked") == 0)
      count = *(const int64_t *)state.items[i].tensor.data;
  CHECK(state.n == 5 && count == 0);
  cleave_state_free(&state);
  return true;
}

static bool gate_is_asked_about_labels_weights_and_early_values(void) {
  IN_RUNTIME((&(cleave_options){.size = sizeof(cleave_options), .may_send = may_send}),
             check_other_sendings(at_b));
  return true;
}

/* A refused leaf is an error of the call, and changes nothing. */
static bool refused_leaf_stays_at_master(const char *w) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  DO(load_module("kept", w, "[{op: linear, out: 5}]", 3, &m));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  clear_recorded_sendings(1u << CLEAVE_SENDING_LEAF);
  REFUSED(cleave_call(rt, c, m, &x, 1, &y, e), CLEAVE_DENIED, "a tensor of 'kept' stays here");
  clear_recorded_sendings(0);
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  clear_recorded_sendings(1u << CLEAVE_SENDING_WEIGHTS);
  cleave_tensor bias = CLEAVE_TENSOR_F32(in, 5);
  REFUSED(cleave_weight_write(rt, m, "0.bias", &bias, 0, e), CLEAVE_DENIED, "of 'kept' stays here");
  cleave_named_tensor item = {"0.bias", bias};
  REFUSED(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, &item, 1, 0, e), CLEAVE_DENIED,
          "of 'kept' stays here");
  clear_recorded_sendings(0);
  MUST(cleave_weight_write(rt, m, "0.bias", &bias, 0, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

/* True if the function of the step that first notices the refusal of a value reports the refusal,
 * and a second backward reports it again. */
static bool value_is_refused_between_workers(const net *n, cleave_context c, const char *part) {
  cleave_reference loss = no_reference;
  uint64_t begin = now_ms();
  if (!run_network_after(n, c, 1, no_reference, NULL, &loss)) CHECK(strstr(why, part) != NULL);
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_DENIED, part);
  REFUSED(cleave_backward(rt, c, &loss, 1, false, 0, e), CLEAVE_DENIED, part);
  CHECK(now_ms() - begin < 10000);
  return true;
}

/* A refused value or gradient that the master's node computes fails the context at once. */
static bool refused_value_stays_at_master(const char *w, cleave_sending_kind kind) {
  net n;
  cleave_context c;
  cleave_reference loss;
  bool is_value = kind == CLEAVE_SENDING_VALUE;
  at_a = "master";
  at_b = w;
  DO(make_network(is_value ? "value" : "slope", "master", &n));
  DO(open_context(&c));
  clear_recorded_sendings(1u << kind);
  DO(value_is_refused_between_workers(
      &n, c, is_value ? "a tensor of 'value a' stays here" : "a gradient of 'slope b' stays here"));
  clear_recorded_sendings(0);
  DO(close_context(c));
  DO(open_context(&c)); /* the refusal does not affect other contexts */
  DO(run_network_after(&n, c, 1, no_reference, NULL, &loss));
  DO(backward(c, loss, false));
  return close_context(c);
}

static bool refused_relayed_value_is_not_sent(void) {
  net n;
  cleave_context c;
  at_a = "w1";
  at_b = "w2";
  DO(make_network("through", "master", &n));
  DO(open_context(&c));
  clear_recorded_sendings(RELAYED);
  DO(value_is_refused_between_workers(&n, c, "of 'through a' stays here"));
  clear_recorded_sendings(0);
  return close_context(c);
}

static bool run_all_refusals(void) {
  return refused_leaf_stays_at_master(at_b) &&
         refused_value_stays_at_master(at_b, CLEAVE_SENDING_VALUE) &&
         refused_value_stays_at_master(at_b, CLEAVE_SENDING_GRADIENT) &&
         refused_relayed_value_is_not_sent();
}

/* A module at the master fails while a worker waits for the module's value. */
static bool failure_at_master_reaches_the_gate(const char *w) {
  cleave_module *table, *dependent;
  cleave_context c;
  cleave_reference in, h, y;
  int64_t row = 987654;
  cleave_tensor rows = CLEAVE_TENSOR_I64(&row, 1, 1), out = {0};
  cleave_input input = CLEAVE_INPUT(CLEAVE_I64, 1, 1);
  cleave_module_options o = {.size = sizeof o, .name = "table", .at = "master"};
  char line[200];
  int at = 0;
  MUST(cleave_load_layers(rt, &o, "[{op: embedding, rows: 2, out: 3}, {op: flatten}]", &input,
                          &table, e));
  DO(load_module("after", w, "[{op: linear, out: 2}]", 3, &dependent));
  DO(open_context(&c));
  clear_recorded_sendings(0);
  MUST(cleave_leaf(rt, c, &rows, false, &in, e));
  MUST(cleave_call(rt, c, table, &in, 1, &h, e));
  MUST(cleave_call(rt, c, dependent, &h, 1, &y, e));
  REFUSED(cleave_to_here(rt, y, 0, &out, e), CLEAVE_INVALID, "is outside 0..1 (987654)");
  snprintf(
      line, sizeof line, "failure of 'table' input 0 to %s:, %zu bytes", w,
      strlen("invalid argument at module 0, layer 0 (embedding), forward, step 1 (failure 1 of "
             "the master)"));
  DO(is_next_sending(&at, line));
  return close_context(c);
}

static bool failure_is_reported_to_the_gate(void) {
  IN_RUNTIME((&(cleave_options){.size = sizeof(cleave_options), .may_send = may_send}),
             failure_at_master_reaches_the_gate(at_b));
  return true;
}

static bool refused_tensor_gives_an_error_instead_of_a_wait(void) {
  const char *a = at_a, *b = at_b;
  for (int has_one_thread = 0; has_one_thread < 2; has_one_thread++) {
    cleave_options o = {.size = sizeof o,
                        .may_send = may_send,
                        .via_master = true,
                        .single_thread = has_one_thread};
    at_a = a;
    at_b = b;
    IN_RUNTIME(&o, run_all_refusals());
  }
  at_a = a;
  at_b = b;
  return true;
}

/* ---- direct transfers, one module at a time -------------------------------------------------- */

/* True if the output of a module at w1 was sent to w2 directly. */
static bool is_sent_directly(const char *name, const char *const *to, size_t n_to, bool *ret) {
  cleave_module *m, *reader;
  cleave_context c;
  cleave_reference x, h, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  char reader_name[64];
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {
      .size = sizeof o, .name = name, .at = "w1", .direct_to = to, .n_direct_to = n_to};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e));
  snprintf(reader_name, sizeof reader_name, "after %s", name);
  o.name = reader_name;
  o.at = "w2";
  /* a transfer is direct if the module at either worker permits it, so both get an empty list */
  o.direct_to = to && !n_to ? to : NULL;
  o.n_direct_to = 0;
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &reader, e));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  clear_recorded_sendings(0);
  MUST(cleave_call(rt, c, m, &x, 1, &h, e));
  MUST(cleave_call(rt, c, reader, &h, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  *ret = get_n_sendings() == 1; /* true if the master sent only the leaf */
  cleave_tensor_free(&out);
  return close_context(c);
}

static bool direct_peers_are_set_by_module(const char *const *to, size_t n, bool is_wanted) {
  bool is_direct = false;
  DO(is_sent_directly("hop", to, n, &is_direct));
  CHECK(is_direct == is_wanted);
  cleave_module *m;
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  const char *unknown_worker[] = {"w9"};
  cleave_module_options o = {.size = sizeof o,
                             .name = "nobody",
                             .at = "w1",
                             .direct_to = unknown_worker,
                             .n_direct_to = 1};
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e), CLEAVE_NOT_FOUND,
          "no worker 'w9' for a direct transfer");
  return true;
}

static bool module_names_the_peers_of_its_node(void) {
  static const char *const w2[] = {"w2"};
  bool is_direct = strcmp(transfer, "direct") == 0;
  const cleave_options o = {.size = sizeof o, .may_send = may_send};
  IN_RUNTIME(&o, direct_peers_are_set_by_module(NULL, 0, is_direct));
  IN_RUNTIME(&o, direct_peers_are_set_by_module(w2, 1, true));
  IN_RUNTIME(&o, direct_peers_are_set_by_module(w2, 0, false));
  return true;
}

static bool value_is_sent_before_its_call(void) {
  cleave_module *a, *b;
  cleave_context c;
  cleave_reference x, h, y, early_value;
  cleave_tensor out = {0};
  float in[12] = {1};
  const cleave_call_options to_b = {.size = sizeof to_b, .send_to = "w2"};
  DO(load_module("first", "w1", "[{op: linear, out: 3}]", 3, &a));
  DO(load_module("second", "w2", "[{op: linear, out: 3}]", 3, &b));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, in, 4, 3, false, &early_value));
  MUST(cleave_send_to(rt, early_value, "w2", e)); /* no module is loaded at w2 yet */
  MUST(cleave_call_with(rt, c, a, &x, 1, &to_b, &h, e));
  MUST(cleave_to_here(rt, h, 0, &out, e));
  MUST(cleave_call(rt, c, b, &h, 1, &y, e));
  MUST(cleave_to_here(rt, y, 2000, &out, e));
  MUST(cleave_call(rt, c, b, &early_value, 1, &y, e));
  MUST(cleave_to_here(rt, y, 2000, &out, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

static bool value_may_be_sent_before_any_module_is_loaded(void) {
  IN_RUNTIME(NULL, value_is_sent_before_its_call());
  return true;
}

/* ---- runtimes that name only some workers of the session ------------------------------------- */

static bool one_module_without_state_is_refused(void) {
  cleave_module *m, *module_at_b;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor out = {0};
  float in[12] = {1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o, .name = "down", .at = at_b};
  CHECK(strcmp(cleave_node_name(rt, 1), at_a) == 0 && cleave_node_name(rt, 2) == NULL);
  REFUSED(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &module_at_b, e),
          CLEAVE_NOT_FOUND, "module 'down' is at 'w2', which is neither master nor a worker");
  DO(load_module("up", at_a, "[{op: linear, out: 3}]", 3, &m));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  REFUSED(cleave_send_to(rt, x, at_b, e), CLEAVE_NOT_FOUND, "'w2'");
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_to_here(rt, y, 0, &out, e));
  cleave_tensor_free(&out);
  return close_context(c);
}

static bool only_the_named_worker_is_connected(void) {
  cleave_runtime *unopened_runtime;
  cleave_options all_workers = {.size = sizeof all_workers, .deadline_ms = 20000};
  IN_RUNTIME((&(cleave_options){.size = sizeof(cleave_options), .workers = &at_a, .n_workers = 1}),
             one_module_without_state_is_refused());
  REFUSED(cleave_open(session, &all_workers, &unopened_runtime, e), CLEAVE_UNAVAILABLE, "");
  return true;
}

static bool worker_missing_from_the_session_file_is_refused(void) {
  cleave_runtime *unopened_runtime;
  const char *names[] = {"w1", "w9"};
  cleave_options o = {.size = sizeof o, .workers = names, .n_workers = 2};
  REFUSED(cleave_open(session, &o, &unopened_runtime, e), CLEAVE_NOT_FOUND, "'w9'");
  return true;
}

static bool ended_objects_are_no_leaks(void) {
  net n;
  cleave_context c;
  cleave_reference loss;
  at_a = at_b = "master";
  DO(make_network("ended", "master", &n));
  DO(open_context(&c));
  DO(run_network_after(&n, c, 1, no_reference, NULL, &loss));
  DO(backward(c, loss, false));
  /* without a thread, the master's node ends the context only in cleave_close */
  MUST(cleave_context_end(rt, c, e));
  return true;
}

static bool ended_context_is_no_leak(void) {
  const char *a = at_a, *b = at_b;
  cleave_options o = {.size = sizeof o, .single_thread = true};
  IN_RUNTIME(&o, ended_objects_are_no_leaks());
  at_a = a;
  at_b = b;
  return true;
}

/* ---- weights on the worker's own disk -------------------------------------------------------- */

static const char *sha256, *damaged_sha256;

static bool is_artifact_refused(const char *name, const char *at, const char *artifact,
                                const char *file_sha256, const char *part) {
  cleave_module *m;
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o,
                             .name = name,
                             .at = at,
                             .artifact = artifact,
                             .artifact_sha256 = file_sha256};
  cleave_error error = {0};
  bool is_loaded =
      cleave_load_layers(rt, &o, "[{op: linear, out: 5}]", &input, &m, &error) == CLEAVE_OK;
  if (is_loaded && cleave_module_place(rt, m, false, 0, &error) == CLEAVE_OK) error.text[0] = '\0';
  if (strstr(error.text, part)) return true;
  snprintf(why, sizeof why, "'%s' lacks '%s'", error.text, part);
  return false;
}

static bool weights_equal_those_of_the_artifact(void) {
  cleave_module *m;
  cleave_tensor w = {0};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o,
                             .name = "disk",
                             .at = at_a,
                             .artifact = "numbers",
                             .artifact_sha256 = sha256};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 5}]", &input, &m, e));
  DO(read_weight(m, "0.weight", &w));
  for (int i = 0; i < 15; i++) CHECK(((float *)w.data)[i] == (float)i);
  DO(read_weight(m, "0.bias", &w));
  for (int i = 0; i < 5; i++) CHECK(((float *)w.data)[i] == (float)-i);
  cleave_tensor_free(&w);
  return true;
}

static bool missing_artifacts_are_refused(void) {
  char other_sha256[65] = "";
  memset(other_sha256, '1', 64);
  DO(is_artifact_refused("sum", at_a, "numbers", other_sha256, "SHA-256"));
  DO(is_artifact_refused("absent", at_a, "letters", sha256, "letters"));
  DO(is_artifact_refused("damaged", at_a, "damaged", damaged_sha256, "damaged"));
  DO(is_artifact_refused("home", "master", "numbers", sha256, "artifacts lie on workers"));
  DO(is_artifact_refused("unsigned", at_a, "numbers", NULL, "needs its sha256"));
  return is_artifact_refused("short", at_a, "numbers", "12ab", "needs its sha256");
}

/* ---- a worker that is lost ------------------------------------------------------------------- */

/* cleave_step does not wait for a final step, so a later function may be the first that reports the
 * loss of the worker. */
static bool a_lost_worker_is_an_error_that_names_it(pid_t pid) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  DO(make_network("lost", "master", &n));
  cleave_group g = {
      .modules = (cleave_module *[]){n.a, n.b}, .n_modules = 2, .lr = 0.5, .no_rollback = true};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &o, e));
  DO(train_steps(&n, &o, 1, 1, 2, END));
  DO(open_context(&c));
  DO(run_network_after(&n, c, 3, no_reference, NULL, &loss));
  DO(backward(c, loss, false));
  CHECK(kill(pid, SIGKILL) == 0);
  usleep(200000);
  uint64_t begin = now_ms();
  cleave_error error = {0};
  cleave_status status = cleave_step(rt, o, c, 0, NULL, &error);
  if (status == CLEAVE_OK) status = cleave_context_end(rt, c, &error);
  if (status == CLEAVE_OK) {
    DO(open_context(&c));
    float in[20] = {1};
    cleave_reference x, y;
    DO(make_leaf(c, in, 4, 5, false, &x));
    cleave_tensor value;
    status = cleave_call(rt, c, n.b, &x, 1, &y, &error);
    if (status == CLEAVE_OK) status = cleave_to_here(rt, y, 0, &value, &error);
  }
  CHECK(status == CLEAVE_UNAVAILABLE && now_ms() - begin < 10000);
  CHECK(strcmp(error.node, at_b) == 0);
  return true;
}

/* ---- running the tests ----------------------------------------------------------------------- */

static const test placed[] = {
    TEST(state_written_into_another_runtime_continues_with_the_same_bits),
    TEST(omitted_batch_count_is_0),
    TEST(mismatched_state_is_refused_by_name),
    TEST(state_may_be_written_in_parts),
};

static const test placed_with_a_gate[] = {TEST(gate_is_asked_before_each_tensor_is_sent)};

static const test with_options[] = {
    TEST(gate_is_asked_about_labels_weights_and_early_values),
    TEST(refused_tensor_gives_an_error_instead_of_a_wait),
    TEST(failure_is_reported_to_the_gate),
    TEST(module_names_the_peers_of_its_node),
    TEST(worker_missing_from_the_session_file_is_refused),
    TEST(value_may_be_sent_before_any_module_is_loaded),
    TEST(ended_context_is_no_leak),
};

static const test with_one_worker[] = {TEST(only_the_named_worker_is_connected)};

static const test with_artifacts[] = {TEST(weights_equal_those_of_the_artifact),
                                      TEST(missing_artifacts_are_refused)};

static void run_each_in_a_runtime(const test *list, size_t n) {
  const cleave_options o = {.size = sizeof o, .single_thread = is_single_threaded};
  for (size_t i = 0; i < n; i++)
    print_result(open_runtime(&o, &rt) && list[i].run_test() && close_runtime(rt), list[i].name);
}
#define RUN_EACH_IN_A_RUNTIME(list) run_each_in_a_runtime(list, sizeof list / sizeof *list)

/* Runs the test that loses a worker. Without the worker, closing the runtime fails; this error is
 * ignored. */
static void run_with_a_lost_worker(pid_t pid) {
  const cleave_options o = {.size = sizeof o, .single_thread = is_single_threaded};
  print_result(open_runtime(&o, &rt) && a_lost_worker_is_an_error_that_names_it(pid),
               "a_lost_worker_is_an_error_that_names_it");
  (void)cleave_close(rt, 0, NULL, NULL);
}

int main(int argc, char **argv) {
  const char *mode;
  if (!read_arguments(argc, argv, &mode)) return 2;
  if (strcmp(mode, "options") == 0) return RUN_ALL(with_options);
  if (strcmp(mode, "only") == 0) return RUN_ALL(with_one_worker);
  if (strcmp(mode, "lost") == 0) {
    run_with_a_lost_worker((pid_t)atol(argv[7]));
  } else if (strcmp(mode, "artifact") == 0) {
    sha256 = argv[7];
    damaged_sha256 = argv[8];
    RUN_EACH_IN_A_RUNTIME(with_artifacts);
  } else {
    RUN_EACH_IN_A_RUNTIME(placed);
    (void)RUN_ALL(placed_with_a_gate);
    print_digest();
  }
  return n_failed != 0;
}
