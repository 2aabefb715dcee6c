/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that a lost worker rejoins the same runtime. Usage:
 *   api_rejoin SESSION.yaml A B LOSS MEND [via_master] [single]
 * LOSS and MEND are actions of the runner, such as kill and start, by which B is lost and mended.
 * The program prints "ask LOSS" or "ask MEND" when the runner shall do so, and waits for a line.
 */
#include <pthread.h>

#include "api_int.h"

static const char *session, *how_to_lose_b, *how_to_mend_b;
static bool is_single_threaded, via_master, keeps_weights;

static bool ask_runner(const char *action) {
  char line[64];
  printf("ask %s\n", action);
  fflush(stdout);
  CHECK(fgets(line, sizeof line, stdin) != NULL);
  return true;
}

/* Gate function that refuses weights while keeps_weights is set. */
static cleave_status may_send(void *user, const cleave_sending *what, cleave_error *error) {
  (void)user;
  if (!keeps_weights || what->kind != CLEAVE_SENDING_WEIGHTS) return CLEAVE_OK;
  snprintf(error->text, sizeof error->text, "weights stay here");
  return error->status = CLEAVE_DENIED;
}

static bool open_runtime(void) {
  cleave_options o = {.size = sizeof o,
                      .deadline_ms = 20000,
                      .via_master = via_master,
                      .single_thread = is_single_threaded,
                      .may_send = may_send};
  MUST(cleave_open(session, &o, &rt, e));
  return true;
}

/* Closes the runtime. The error for a lost worker is ignored. */
static bool close_runtime(void) {
  (void)cleave_close(rt, 0, NULL, NULL);
  return true;
}

static uint32_t get_index_of_b(void) {
  uint32_t i = 0;
  while (strcmp(cleave_node_name(rt, i), at_b) != 0) i++;
  return i;
}

/* Lets the runner do LOSS to worker B, and waits until the runtime has noticed the loss. */
static bool lose_b(void) {
  cleave_link_measure m;
  cleave_error error = {.status = CLEAVE_OK};
  DO(ask_runner(how_to_lose_b));
  for (int i = 0; i < 1000 && error.status != CLEAVE_UNAVAILABLE; i++) {
    if (cleave_measure(rt, get_index_of_b(), 100, &m, &error) == CLEAVE_OK)
      error.status = CLEAVE_OK;
    usleep(10000);
  }
  CHECK(error.status == CLEAVE_UNAVAILABLE && strcmp(error.node, at_b) == 0);
  return true;
}

static bool rejoin_b(void) {
  DO(ask_runner(how_to_mend_b));
  MUST(cleave_worker_rejoin(rt, at_b, 0, e));
  return true;
}

/* ---- training when a worker is lost and rejoins ---------------------------------------------- */

typedef struct saved_state {
  cleave_state saved_weights[2], saved_moments[2];
} saved_state;

static bool read_all_state(const net *n, saved_state *s) {
  cleave_module *m[2] = {n->a, n->b};
  for (int i = 0; i < 2; i++) {
    MUST(cleave_state_read(rt, m[i], CLEAVE_STATE_WEIGHTS, 0, &s->saved_weights[i], e));
    MUST(cleave_state_read(rt, m[i], CLEAVE_STATE_OPTIMIZER, 0, &s->saved_moments[i], e));
  }
  return true;
}

static void free_saved_state(saved_state *s) {
  for (int i = 0; i < 2; i++) {
    cleave_state_free(&s->saved_weights[i]);
    cleave_state_free(&s->saved_moments[i]);
  }
}

static bool write_saved_state(cleave_module *m, const saved_state *s, int i) {
  MUST(cleave_state_write(rt, m, CLEAVE_STATE_WEIGHTS, s->saved_weights[i].items,
                          s->saved_weights[i].n, 0, e));
  MUST(cleave_state_write(rt, m, CLEAVE_STATE_OPTIMIZER, s->saved_moments[i].items,
                          s->saved_moments[i].n, 0, e));
  return true;
}

static bool is_same_state(const cleave_state *a, const cleave_state *b) {
  CHECK(a->n == b->n);
  for (size_t i = 0; i < a->n; i++) {
    const cleave_tensor *x = &a->items[i].tensor, *y = &b->items[i].tensor;
    size_t size = x->dtype == CLEAVE_I64 ? 8 : 4;
    CHECK(strcmp(a->items[i].name, b->items[i].name) == 0);
    CHECK(memcmp(x->data, y->data, cleave_tensor_count(x) * size) == 0);
  }
  return true;
}

static bool are_same_states(const saved_state *a, const saved_state *b) {
  for (int i = 0; i < 2; i++)
    DO(is_same_state(&a->saved_weights[i], &b->saved_weights[i]) &&
       is_same_state(&a->saved_moments[i], &b->saved_moments[i]));
  return true;
}

static bool train_steps(const net *n, cleave_optimizer *o, unsigned from, unsigned to) {
  for (unsigned step = from; step < to; step++) {
    cleave_context c;
    cleave_reference loss;
    DO(open_context(&c));
    DO(run_network(n, c, 10 * step, NULL, NULL, &loss));
    DO(backward(c, loss, false));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    DO(close_context(c));
  }
  return true;
}

static bool make_adam(const net *n, cleave_optimizer **ret) {
  cleave_module *both[] = {n->a, n->b};
  cleave_group g = {.modules = both, .n_modules = 2, .kind = CLEAVE_ADAM, .lr = 0.05};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.7, ret, e));
  return true;
}

/* Computes the expected weights without a loss: takes two steps, then two more that it rolls back
 * by restoring the saved state, then three steps. */
static bool train_undisturbed(saved_state *ret) {
  net n;
  cleave_optimizer *o;
  saved_state s;
  DO(open_runtime());
  DO(make_network("net", "master", &n));
  DO(make_adam(&n, &o));
  DO(train_steps(&n, o, 0, 2) && read_all_state(&n, &s));
  DO(train_steps(&n, o, 2, 4));
  DO(write_saved_state(n.a, &s, 0) && write_saved_state(n.b, &s, 1));
  MUST(cleave_optimizer_set_steps(rt, o, 2, e));
  DO(train_steps(&n, o, 2, 5) && read_all_state(&n, ret));
  free_saved_state(&s);
  return close_runtime();
}

static bool restore_saved_state(net *n, cleave_optimizer *o, const saved_state *s) {
  MUST(cleave_module_reload(rt, n->b, &s->saved_weights[1], &s->saved_moments[1], 0, e));
  DO(write_saved_state(n->a, s, 0));
  MUST(cleave_optimizer_set_steps(rt, o, 2, e));
  return true;
}

/* B is lost while a context is between backward and step, and rejoins. Then B is lost and rejoins a
 * second time. */
static bool training_continues_from_the_saved_state(void) {
  net n;
  cleave_optimizer *o;
  cleave_context c;
  cleave_reference loss;
  saved_state s, state_here, expected_state;
  DO(train_undisturbed(&expected_state));
  DO(open_runtime());
  DO(make_network("net", "master", &n));
  DO(make_adam(&n, &o));
  DO(train_steps(&n, o, 0, 2) && read_all_state(&n, &s));
  for (int incarnation = 2; incarnation < 4; incarnation++) {
    DO(train_steps(&n, o, 2, 3));
    DO(open_context(&c));
    DO(run_network(&n, c, 77, NULL, NULL, &loss));
    DO(backward(c, loss, false));
    DO(lose_b());
    REFUSED(cleave_step(rt, o, c, 0, NULL, e), CLEAVE_UNAVAILABLE, at_b);
    DO(rejoin_b());
    REFUSED(cleave_context_close(rt, c, 0, e), CLEAVE_UNAVAILABLE, at_b);
    DO(restore_saved_state(&n, o, &s));
    DO(train_steps(&n, o, 2, 5) && read_all_state(&n, &state_here));
    DO(are_same_states(&expected_state, &state_here));
    free_saved_state(&state_here);
    DO(write_saved_state(n.a, &s, 0) && write_saved_state(n.b, &s, 1));
    MUST(cleave_optimizer_set_steps(rt, o, 2, e));
  }
  free_saved_state(&s);
  free_saved_state(&expected_state);
  cleave_leaks leaks;
  MUST(cleave_close(rt, 0, &leaks, e));
  CHECK(leaks.contexts == 0);
  return true;
}

/* ---- modules that share a weight ------------------------------------------------------------- */

/* Makes x [4, 3] -> a, tanh -> b -> mse, all at one node. b shares the weight of a. */
static bool load_tied_modules(const char *at, net *n) {
  static const char *const layers[] = {"[{op: linear, out: 3, name: first}, {op: tanh}]",
                                       "[{op: linear, out: 3, name: second}]"};
  cleave_module **const to[] = {&n->a, &n->b};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  for (uint32_t i = 0; i < 2; i++) {
    cleave_tie tie = {"second.weight", n->a, "first.weight"};
    cleave_module_options o = {.size = sizeof o,
                               .name = i ? "tied" : "owner",
                               .at = at,
                               .seed = 7,
                               .first_layer = 2 * i,
                               .ties = &tie,
                               .n_ties = i};
    MUST(cleave_load_layers(rt, &o, layers[i], &input, to[i], e));
  }
  return load_loss("mse", "master", 3, &n->loss);
}

static bool train_tied_steps(const net *n, cleave_optimizer *o, unsigned from, unsigned to) {
  for (unsigned step = from; step < to; step++) {
    float x[12], want[12];
    cleave_context c;
    cleave_reference in[2], y;
    fill_with_random(x, 12, step);
    fill_with_random(want, 12, step + 100);
    DO(open_context(&c));
    DO(make_leaf(c, x, 4, 3, false, &in[0]) && make_leaf(c, want, 4, 3, false, &in[1]));
    MUST(cleave_call(rt, c, n->a, in, 1, &y, e));
    MUST(cleave_call(rt, c, n->b, &y, 1, &in[0], e));
    MUST(cleave_call(rt, c, n->loss, in, 2, &y, e));
    DO(backward(c, y, false));
    MUST(cleave_step(rt, o, c, 0, NULL, e));
    DO(close_context(c));
  }
  return true;
}

static bool train_tied_at_master(saved_state *ret) {
  net n = {0};
  cleave_optimizer *o;
  DO(open_runtime());
  DO(load_tied_modules("master", &n));
  DO(make_adam(&n, &o));
  DO(train_tied_steps(&n, o, 0, 4) && read_all_state(&n, ret));
  return close_runtime();
}

/* A module that owns a shared weight must be reloaded before the module that shares it. In the
 * other order the error names the module that is missing. */
static bool modules_with_a_tied_weight_are_reloaded(void) {
  net n = {0};
  cleave_optimizer *o;
  saved_state s, state_here, expected_state;
  DO(train_tied_at_master(&expected_state));
  DO(open_runtime());
  DO(load_tied_modules(at_b, &n));
  DO(make_adam(&n, &o));
  DO(train_tied_steps(&n, o, 0, 2) && read_all_state(&n, &s));
  for (int incarnation = 2; incarnation < 4; incarnation++) {
    DO(lose_b() && rejoin_b());
    REFUSED(cleave_module_reload(rt, n.b, &s.saved_weights[1], &s.saved_moments[1], 0, e),
            CLEAVE_PRECONDITION,
            "module 'tied' has a weight of module 'owner', which was lost as well: reload 'owner' "
            "first");
    MUST(cleave_module_reload(rt, n.a, &s.saved_weights[0], &s.saved_moments[0], 0, e));
    MUST(cleave_module_reload(rt, n.b, &s.saved_weights[1], &s.saved_moments[1], 0, e));
    MUST(cleave_optimizer_set_steps(rt, o, 2, e));
    DO(train_tied_steps(&n, o, 2, 4) && read_all_state(&n, &state_here));
    DO(are_same_states(&expected_state, &state_here));
    free_saved_state(&state_here);
  }
  free_saved_state(&s);
  free_saved_state(&expected_state);
  return close_runtime();
}

/* ---- contexts without the lost worker -------------------------------------------------------- */

enum { ROUNDS = 40 };

typedef struct other_trainer {
  cleave_module *m, *loss;
  cleave_optimizer *sgd;
  cleave_tensor expected_output;
} other_trainer;

static bool load_other_trainer(const char *name, other_trainer *ret) {
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at_a, .seed = 3};
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 1}, {op: tanh}]", &input, &ret->m, e));
  char loss[64];
  snprintf(loss, sizeof loss, "%s loss", name);
  DO(load_loss(loss, at_a, 1, &ret->loss));
  cleave_group g = {.modules = &ret->m, .n_modules = 1, .lr = 0.1, .momentum = 0.9};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, &ret->sgd, e));
  return true;
}

static bool begin_round(const other_trainer *o, unsigned i, cleave_context *c,
                        cleave_reference *y) {
  float x[16];
  cleave_reference in[2];
  fill_with_random(x, 16, i);
  DO(open_context(c) && make_leaf(*c, x, 4, 3, false, &in[0]) &&
     make_leaf(*c, x + 12, 4, 1, false, &in[1]));
  MUST(cleave_call(rt, *c, o->m, &in[0], 1, &in[0], e));
  MUST(cleave_call(rt, *c, o->loss, in, 2, y, e));
  return true;
}

static bool end_round(const other_trainer *o, cleave_context c, cleave_reference y) {
  DO(backward(c, y, false));
  MUST(cleave_step(rt, o->sgd, c, 0, NULL, e));
  return close_context(c);
}

static bool run_rounds(const other_trainer *o, unsigned from, unsigned to) {
  cleave_context c;
  cleave_reference y;
  for (unsigned i = from; i < to; i++) DO(begin_round(o, i, &c, &y) && end_round(o, c, y));
  return true;
}

static void *run_rounds_in_thread(void *user) { return run_rounds(user, 1, ROUNDS) ? user : NULL; }

/* A thread trains at A while B is lost and rejoins. One context stays open all the time, and
 * calls B at the end. */
static bool contexts_without_the_lost_worker_continue(void) {
  other_trainer idle_trainer, active_trainer;
  cleave_context c;
  cleave_reference y, z;
  cleave_module *late_module;
  pthread_t thread;
  void *thread_result;
  cleave_tensor a = {0}, b = {0};
  DO(open_runtime());
  DO(load_other_trainer("quiet", &idle_trainer) && load_other_trainer("busy", &active_trainer));
  DO(run_rounds(&idle_trainer, 0, ROUNDS));
  DO(read_weight(idle_trainer.m, "0.weight", &a));
  DO(load_module("late", at_b, "[{op: linear, out: 2}]", 1, &late_module));
  DO(begin_round(&active_trainer, 0, &c, &y));
  DO(end_round(&active_trainer, c, y));
  DO(open_context(&c));
  float x[12];
  fill_with_random(x, 12, 5);
  DO(make_leaf(c, x, 4, 3, false, &y));
  CHECK(pthread_create(&thread, NULL, run_rounds_in_thread, &active_trainer) == 0);
  bool ok = lose_b() && rejoin_b();
  pthread_join(thread, &thread_result);
  CHECK(ok && thread_result);
  DO(read_weight(active_trainer.m, "0.weight", &b));
  CHECK(memcmp(a.data, b.data, 12) == 0);
  MUST(cleave_call(rt, c, active_trainer.m, &y, 1, &z, e));
  DO(close_context(c));
  DO(open_context(&c)); /* this context uses a module that worker B never had */
  DO(make_leaf(c, x, 4, 1, false, &y));
  MUST(cleave_rpc_sync(rt, c, late_module, &y, 1, 0, NULL, &b, e));
  DO(close_context(c));
  cleave_tensor_free(&a);
  cleave_tensor_free(&b);
  return close_runtime();
}

/* ---- errors of calls that need the lost worker ----------------------------------------------- */

static struct {
  net n;
  cleave_optimizer *o;
  cleave_context failed_context, fresh_context; /* fresh_context: has not used B */
  cleave_reference loss, y, value_here;
  cleave_kept k;
  cleave_tensor t;
  saved_state s;
  char weights_path[256];
} shared;

#define DEFINE_CALL(name, expression) \
  static cleave_status name(cleave_error *e) { return expression; }
static cleave_status call_module(cleave_module *m, const char *send_to, cleave_error *e) {
  cleave_call_options o = {.size = sizeof o, .send_to = send_to};
  cleave_reference y;
  return cleave_call_with(rt, shared.fresh_context, m, &shared.value_here, 1, &o, &y, e);
}
static cleave_status load_at_b(cleave_error *e) {
  cleave_module_options o = {.size = sizeof o, .name = "new", .at = at_b};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module *m;
  return cleave_load_layers(rt, &o, "[{op: relu}]", &input, &m, e);
}
static cleave_status read_states_of_b(cleave_error *e) {
  cleave_state s = {0};
  cleave_status status = cleave_state_read(rt, shared.n.b, CLEAVE_STATE_OPTIMIZER, 0, &s, e);
  cleave_state_free(&s);
  return status;
}
static cleave_status wait_for_state(cleave_error *e) {
  cleave_future f = {0};
  cleave_status status = cleave_state_read_async(rt, shared.n.b, CLEAVE_STATE_WEIGHTS, 0, &f, e);
  return status == CLEAVE_OK ? cleave_future_wait(rt, f, 0, e) : status;
}
static cleave_status measure_b(cleave_error *e) {
  cleave_link_measure m;
  return cleave_measure(rt, get_index_of_b(), 0, &m, e);
}
static cleave_status use_kept_value(cleave_error *e) {
  cleave_reference r;
  return cleave_kept_use(rt, shared.fresh_context, shared.k, &r, e);
}
static cleave_status keep_another_value(cleave_error *e) {
  cleave_kept k;
  return cleave_keep(rt, shared.y, &k, e);
}
DEFINE_CALL(call_b, call_module(shared.n.b, NULL, e))
DEFINE_CALL(send_a_call_to_b, call_module(shared.n.a, at_b, e))
DEFINE_CALL(send_to_b, cleave_send_to(rt, shared.value_here, at_b, e))
DEFINE_CALL(fetch, cleave_to_here(rt, shared.y, 0, &shared.t, e))
DEFINE_CALL(fetch_kept, cleave_kept_fetch(rt, shared.k, 0, &shared.t, e))
DEFINE_CALL(run_backward, cleave_backward(rt, shared.failed_context, &shared.loss, 1, false, 0, e))
DEFINE_CALL(step, cleave_step(rt, shared.o, shared.failed_context, 0, NULL, e))
DEFINE_CALL(read_gradient_of_b,
            cleave_gradient(rt, shared.failed_context, shared.n.b, "0.weight", 0, &shared.t, e))
DEFINE_CALL(read_b, cleave_weight_read(rt, shared.n.b, "0.weight", 0, &shared.t, e))
DEFINE_CALL(write_b, cleave_weight_write(rt, shared.n.b, "0.weight",
                                         &shared.s.saved_weights[1].items[0].tensor, 0, e))
DEFINE_CALL(write_state,
            cleave_state_write(rt, shared.n.b, CLEAVE_STATE_WEIGHTS,
                               shared.s.saved_weights[1].items, shared.s.saved_weights[1].n, 0, e))
DEFINE_CALL(save_b,
            cleave_state_save(rt, shared.n.b, CLEAVE_STATE_WEIGHTS, shared.weights_path, 0, e))
DEFINE_CALL(save_at_worker,
            cleave_state_save_at_worker(rt, shared.n.b, CLEAVE_STATE_WEIGHTS, "b", 0, NULL, e))
DEFINE_CALL(load_at_worker,
            cleave_state_load_at_worker(rt, shared.n.b, CLEAVE_STATE_WEIGHTS, "b", 0, NULL, e))
DEFINE_CALL(remove_at_worker, cleave_state_remove_at_worker(rt, shared.n.b, "b", 0, e))
DEFINE_CALL(place_b, cleave_module_place(rt, shared.n.b, false, 0, e))
DEFINE_CALL(reload_b, cleave_module_reload(rt, shared.n.b, NULL, NULL, 0, e))
DEFINE_CALL(make_leaf_in_failed_context,
            cleave_leaf(rt, shared.failed_context, &shared.t, false, &shared.value_here, e))

/* Functions of the API that fail while B is lost. needs_b: the function also fails after B has
 * rejoined, until B's modules are reloaded. needs_failed_context: the function uses a context that
 * has failed, so it never succeeds again. */
static const struct {
  cleave_status (*call)(cleave_error *e);
  const char *name;
  bool needs_b, needs_failed_context;
} functions[] = {
    {call_b, "call", true, false},
    {send_a_call_to_b, "call that sends its value", false, false},
    {send_to_b, "send_to", false, false},
    {fetch, "to_here", true, true},
    {keep_another_value, "keep", true, true},
    {fetch_kept, "kept_fetch", true, true},
    {use_kept_value, "kept_use", true, true},
    {run_backward, "backward", true, true},
    {step, "step", true, true},
    {read_gradient_of_b, "gradient", true, true},
    {make_leaf_in_failed_context, "leaf", true, true},
    {read_b, "weight_read", true, false},
    {write_b, "weight_write", true, false},
    {read_states_of_b, "state_read", true, false},
    {wait_for_state, "state_read_async", true, false},
    {write_state, "state_write", true, false},
    {save_b, "state_save", true, false},
    {save_at_worker, "state_save_there", true, false},
    {load_at_worker, "state_load_there", true, false},
    {remove_at_worker, "state_remove_there", true, false},
    {place_b, "module_place", true, false},
    {load_at_b, "load", false, false},
    {measure_b, "measure", false, false},
    {reload_b, "module_reload", false, false}, /* last, because it repairs the module */
};

static bool is_worker_lost_error(size_t i) {
  cleave_error error = {.status = CLEAVE_OK};
  cleave_status status = functions[i].call(&error);
  if (status == CLEAVE_UNAVAILABLE && error.status == status && strcmp(error.node, at_b) == 0 &&
      strstr(error.text, at_b))
    return true;
  snprintf(why, sizeof why, "%s: %s at '%s': %s", functions[i].name, cleave_status_name(status),
           error.node, error.text);
  return false;
}

static bool make_objects(void) {
  cleave_reference loss;
  float x[12];
  fill_with_random(x, 12, 1);
  snprintf(shared.weights_path, sizeof shared.weights_path, "%s.safetensors", session);
  DO(make_network("net", at_b, &shared.n) && make_adam(&shared.n, &shared.o));
  DO(train_steps(&shared.n, shared.o, 0, 1) && read_all_state(&shared.n, &shared.s));
  DO(open_context(&shared.fresh_context) &&
     make_leaf(shared.fresh_context, x, 4, 3, false, &shared.value_here));
  DO(open_context(&shared.failed_context));
  DO(run_network(&shared.n, shared.failed_context, 3, NULL, &shared.y, &shared.loss));
  loss = shared.loss;
  DO(backward(shared.failed_context, loss, false));
  MUST(cleave_keep(rt, shared.y, &shared.k, e));
  MUST(cleave_kept_fetch(rt, shared.k, 0, &shared.t, e));
  return true;
}

static bool every_call_reports_the_lost_worker(void) {
  enum { N = sizeof functions / sizeof *functions };
  DO(open_runtime() && make_objects() && lose_b());
  for (size_t i = 0; i < N; i++) DO(is_worker_lost_error(i));
  DO(rejoin_b());
  for (size_t i = 0; i < N; i++)
    if (functions[i].needs_b) DO(is_worker_lost_error(i));
  MUST(cleave_module_reload(rt, shared.n.b, &shared.s.saved_weights[1], &shared.s.saved_moments[1],
                            0, e));
  for (size_t i = 0; i < N; i++) {
    cleave_error error = {.text = ""};
    bool is_refused = functions[i].call(&error) == CLEAVE_UNAVAILABLE;
    if (is_refused == functions[i].needs_failed_context) continue;
    snprintf(why, sizeof why, "%s, loaded again: %s", functions[i].name, error.text);
    return false;
  }
  REFUSED(cleave_context_close(rt, shared.failed_context, 0, e), CLEAVE_UNAVAILABLE, at_b);
  MUST(cleave_kept_release(rt, shared.k, e));
  cleave_tensor_free(&shared.t);
  free_saved_state(&shared.s);
  return close_context(shared.fresh_context) && close_runtime();
}

/* ---- references after a rejoin --------------------------------------------------------------- */

/* Passes a kept value of one worker to a call at the other worker. */
static bool pass_kept_value(cleave_module *from, cleave_module *to, cleave_tensor *ret) {
  cleave_context c;
  cleave_reference x, y, z;
  cleave_kept k;
  float numbers[12];
  fill_with_random(numbers, 12, 4);
  DO(open_context(&c) && make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call(rt, c, from, &x, 1, &y, e));
  MUST(cleave_keep(rt, y, &k, e));
  DO(close_context(c));
  DO(open_context(&c));
  MUST(cleave_kept_use(rt, c, k, &y, e));
  MUST(cleave_call(rt, c, to, &y, 1, &z, e));
  MUST(cleave_to_here(rt, z, 0, ret, e));
  MUST(cleave_kept_release(rt, k, e));
  return close_context(c);
}

/* Loads a module at B with two outputs: w (linear 3) of its input, and tanh of w. */
static bool load_pair(cleave_module **ret) {
  static const int64_t shape[] = {4, 3};
  cleave_module_options o = {.size = sizeof o, .name = "pair", .at = at_b, .seed = 7};
  cleave_graph *g;
  int x, w, h;
  MUST(cleave_graph_new(&g, e));
  MUST(cleave_graph_input(g, "x", CLEAVE_F32, shape, 2, &x, e));
  MUST(cleave_graph_op(g, "linear", "{out: 3}", NULL, &x, 1, &w, e));
  MUST(cleave_graph_op(g, "tanh", NULL, NULL, &w, 1, &h, e));
  MUST(cleave_graph_output(g, w, e));
  MUST(cleave_graph_output(g, h, e));
  MUST(cleave_load_graph(rt, &o, g, ret, e));
  cleave_graph_free(g);
  return true;
}

static bool fetch_second_output(cleave_module *pair, cleave_tensor *ret) {
  cleave_context c;
  cleave_reference x, out[2];
  float numbers[12];
  fill_with_random(numbers, 12, 5);
  DO(open_context(&c) && make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call_outputs(rt, c, pair, &x, 1, NULL, out, 2, e));
  MUST(cleave_to_here(rt, out[1], 0, ret, e));
  return close_context(c);
}

static bool references_work_both_ways_after_each_rejoin(void) {
  cleave_module *a, *b, *pair;
  cleave_tensor first_outputs[3] = {{0}, {0}, {0}}, later_output = {0};
  DO(open_runtime());
  DO(load_module("a", at_a, "[{op: linear, out: 3}]", 3, &a));
  DO(load_module("b", at_b, "[{op: linear, out: 3}, {op: tanh}]", 3, &b));
  DO(load_pair(&pair));
  DO(pass_kept_value(a, b, &first_outputs[0]) && pass_kept_value(b, a, &first_outputs[1]));
  DO(fetch_second_output(pair, &first_outputs[2]));
  for (int incarnation = 2; incarnation < 4; incarnation++) {
    DO(lose_b() && rejoin_b());
    MUST(cleave_module_reload(rt, b, NULL, NULL, 0, e));
    MUST(cleave_module_reload(rt, pair, NULL, NULL, 0, e));
    DO(fetch_second_output(pair, &later_output));
    CHECK(memcmp(later_output.data, first_outputs[2].data, 48) == 0);
    for (int i = 0; i < 5; i++) {
      DO(pass_kept_value(a, b, &later_output));
      CHECK(memcmp(later_output.data, first_outputs[0].data, 48) == 0);
      DO(pass_kept_value(b, a, &later_output));
      CHECK(memcmp(later_output.data, first_outputs[1].data, 48) == 0);
    }
  }
  for (int i = 0; i < 3; i++) cleave_tensor_free(&first_outputs[i]);
  cleave_tensor_free(&later_output);
  return close_runtime();
}

/* Loses B and lets it rejoin 61 times. Each rejoin uses a new name for B, so together with the
 * first names of A and B all 63 names of the session are used, and the next rejoin is refused. */
static bool session_takes_63_workers_by_name(void) {
  cleave_module *a, *b;
  cleave_tensor output_before = {0}, output_after = {0};
  DO(open_runtime());
  DO(load_module("a", at_a, "[{op: linear, out: 3}]", 3, &a));
  DO(load_module("b", at_b, "[{op: linear, out: 3}, {op: tanh}]", 3, &b));
  DO(pass_kept_value(a, b, &output_before));
  for (int i = 0; i < 61; i++) {
    DO(lose_b() && rejoin_b());
    MUST(cleave_module_reload(rt, b, NULL, NULL, 0, e));
    DO(pass_kept_value(a, b, &output_after));
    CHECK(memcmp(output_after.data, output_before.data, 48) == 0);
  }
  DO(lose_b() && ask_runner(how_to_mend_b));
  REFUSED(cleave_worker_rejoin(rt, at_b, 0, e), CLEAVE_EXHAUSTED,
          "worker 'w2' would come back under name number 64");
  cleave_tensor_free(&output_before);
  cleave_tensor_free(&output_after);
  return close_runtime();
}

/* ---- rejoins that are refused, repeated or started as futures -------------------------------- */

static bool impossible_rejoin_is_refused(void) {
  cleave_module *a, *b, *unused_module, *module_with_weights;
  float bias[3] = {1, 2, 3};
  const cleave_named_tensor one = {"0.bias", CLEAVE_TENSOR_F32(bias, 3)},
                            unknown_item = {"x", one.tensor};
  const cleave_state incomplete_state = {(cleave_named_tensor *)(uintptr_t)&one, 1},
                     wrong = {(cleave_named_tensor *)(uintptr_t)&unknown_item, 1};
  cleave_module_options o = {
      .size = sizeof o, .name = "given", .at = at_b, .weights = &one, .n_weights = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_tensor t = {0};
  DO(open_runtime());
  DO(load_module("a", at_a, "[{op: linear, out: 3}]", 3, &a));
  DO(load_module("b", at_b, "[{op: linear, out: 3}]", 3, &b));
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &module_with_weights, e));
  DO(read_weight(b, "0.bias", &t) && read_weight(module_with_weights, "0.bias", &t));
  REFUSED(cleave_worker_rejoin(rt, at_b, 0, e), CLEAVE_PRECONDITION, "is not lost");
  REFUSED(cleave_worker_rejoin(rt, "nobody", 0, e), CLEAVE_NOT_FOUND, "nobody");
  REFUSED(cleave_worker_rejoin(rt, "master", 0, e), CLEAVE_NOT_FOUND, "master");
  REFUSED(cleave_module_reload(rt, b, NULL, NULL, 0, e), CLEAVE_PRECONDITION, "was not lost");
  DO(lose_b());
  for (int i = 0; i < 2; i++)
    REFUSED(cleave_worker_rejoin(rt, at_b, 500, e), CLEAVE_UNAVAILABLE, at_b);
  DO(load_module("while it is lost", at_a, "[{op: linear, out: 3}]", 3, &unused_module));
  /* loads the module at A, whose node must not dial the lost worker */
  DO(read_weight(unused_module, "0.bias", &t));
  DO(rejoin_b());
  REFUSED(cleave_worker_rejoin(rt, at_b, 0, e), CLEAVE_PRECONDITION, "is not lost");
  REFUSED(cleave_module_reload(rt, b, &wrong, NULL, 0, e), CLEAVE_INVALID, "no state 'x'");
  REFUSED(cleave_module_reload(rt, b, NULL, &wrong, 0, e), CLEAVE_INVALID, "items for module 'b'");
  REFUSED(cleave_module_reload(rt, module_with_weights, NULL, NULL, 0, e), CLEAVE_INVALID,
          "give them again");
  REFUSED(cleave_weight_read(rt, b, "0.bias", 0, &t, e), CLEAVE_UNAVAILABLE, "module_reload");
  MUST(cleave_module_reload(rt, module_with_weights, &incomplete_state, NULL, 0, e));
  DO(read_weight(module_with_weights, "0.bias", &t));
  CHECK(memcmp(t.data, bias, sizeof bias) == 0);
  MUST(cleave_module_release(rt, b, e)); /* the name of the released module can be used again */
  DO(load_module("b", at_b, "[{op: linear, out: 3}]", 3, &b));
  DO(read_weight(b, "0.bias", &t));
  cleave_tensor_free(&t);
  return close_runtime();
}

/* A failed load leaves modules at the node that do not disturb the next attempt. */
static bool failed_load_can_be_tried_again(void) {
  float bias[3] = {1, 2, 3};
  const cleave_named_tensor one = {"0.bias", CLEAVE_TENSOR_F32(bias, 3)};
  const cleave_state incomplete_state = {(cleave_named_tensor *)(uintptr_t)&one, 1};
  cleave_module_options o = {
      .size = sizeof o, .name = "given", .at = at_b, .weights = &one, .n_weights = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module *m;
  cleave_tensor t = {0};
  DO(open_runtime());
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 3}]", &input, &m, e));
  keeps_weights = true;
  for (int i = 0; i < 20; i++)
    REFUSED(cleave_module_place(rt, m, false, 0, e), CLEAVE_DENIED, "weights stay here");
  keeps_weights = false;
  DO(read_weight(m, "0.bias", &t));
  CHECK(memcmp(t.data, bias, sizeof bias) == 0);
  DO(lose_b() && rejoin_b());
  keeps_weights = true;
  for (int i = 0; i < 200; i++)
    REFUSED(cleave_module_reload(rt, m, &incomplete_state, NULL, 0, e), CLEAVE_DENIED,
            "weights stay here");
  keeps_weights = false;
  REFUSED(cleave_weight_read(rt, m, "0.bias", 0, &t, e), CLEAVE_UNAVAILABLE, "module_reload");
  MUST(cleave_module_reload(rt, m, &incomplete_state, NULL, 0, e));
  DO(read_weight(m, "0.bias", &t));
  CHECK(memcmp(t.data, bias, sizeof bias) == 0);
  cleave_tensor_free(&t);
  return close_runtime();
}

/* A future reports when a worker has rejoined. Meanwhile a thread of the runtime waits for the
 * worker. */
static bool worker_rejoins_by_futures(void) {
  cleave_module *a, *b;
  cleave_tensor output_before = {0}, output_after = {0};
  cleave_future rejoin_future, reload_future;
  DO(open_runtime());
  DO(load_module("a", at_a, "[{op: linear, out: 3}]", 3, &a));
  DO(load_module("b", at_b, "[{op: linear, out: 3}, {op: tanh}]", 3, &b));
  DO(pass_kept_value(a, b, &output_before));
  REFUSED(cleave_worker_rejoin_async(rt, at_b, 0, &rejoin_future, e), CLEAVE_PRECONDITION,
          "is not lost");
  DO(lose_b());
  MUST(cleave_worker_rejoin_async(rt, at_b, 300, &rejoin_future, e));
  REFUSED(cleave_future_wait(rt, rejoin_future, 0, e), CLEAVE_UNAVAILABLE, at_b);
  MUST(cleave_future_release(rt, rejoin_future, e));
  DO(ask_runner(how_to_mend_b));
  MUST(cleave_worker_rejoin_async(rt, at_b, 0, &rejoin_future, e));
  MUST(cleave_future_wait(rt, rejoin_future, 0, e));
  MUST(cleave_module_reload_async(rt, b, NULL, NULL, 0, &reload_future, e));
  MUST(cleave_future_wait(rt, reload_future, 0, e));
  DO(pass_kept_value(a, b, &output_after));
  CHECK(memcmp(output_after.data, output_before.data, 48) == 0);
  MUST(cleave_future_release(rt, rejoin_future, e));
  MUST(cleave_future_release(rt, reload_future, e));
  DO(lose_b() && ask_runner(how_to_mend_b));
  /* closing the runtime waits for the rejoin */
  MUST(cleave_worker_rejoin_async(rt, at_b, 0, &rejoin_future, e));
  cleave_tensor_free(&output_before);
  cleave_tensor_free(&output_after);
  return close_runtime();
}

/* ---- running the tests ----------------------------------------------------------------------- */

static const test tests[] = {
    TEST(training_continues_from_the_saved_state),
    TEST(modules_with_a_tied_weight_are_reloaded),
    TEST(contexts_without_the_lost_worker_continue),
    TEST(every_call_reports_the_lost_worker),
    TEST(references_work_both_ways_after_each_rejoin),
    TEST(impossible_rejoin_is_refused),
    TEST(failed_load_can_be_tried_again),
    TEST(worker_rejoins_by_futures),
    TEST(session_takes_63_workers_by_name),
};

int main(int argc, char **argv) {
  if (argc < 6) return 2;
  session = argv[1];
  at_a = argv[2];
  at_b = argv[3];
  how_to_lose_b = argv[4];
  how_to_mend_b = argv[5];
  const char *only_test = NULL;
  for (int i = 6; i < argc; i++) {
    if (strcmp(argv[i], "single") == 0)
      is_single_threaded = true;
    else if (strcmp(argv[i], "via_master") == 0)
      via_master = true;
    else
      only_test = argv[i];
  }
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    bool takes_long = tests[i].run_test == session_takes_63_workers_by_name;
    bool is_wanted = only_test ? strcmp(only_test, tests[i].name) == 0
                               : !takes_long || strcmp(how_to_lose_b, "cut") == 0;
    if (!is_wanted) continue;
    snprintf(why, sizeof why, "see the report");
    print_result(tests[i].run_test(), tests[i].name);
  }
  return n_failed != 0;
}
