/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the release of modules in the C API: api_modules SESSION.yaml A B N FOLDER loads and
 * releases N modules in a loop, releases other modules while they are in use, reads parameters,
 * saves state to files of FOLDER and loads these files. A line "at NAME" on standard output asks
 * the runner to measure the memory; a line on standard input lets the program continue.
 */
#include "api_int.h"

enum { MAX_MODULES = 255 };

static int n_loops;
static const char *state_folder;

static bool load_seeded_module(const char *name, const char *at, uint64_t seed,
                               cleave_module **ret) {
  cleave_module_options o = {.size = sizeof o, .name = name, .at = at, .seed = seed};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 5}, {op: tanh}]", &input, ret, e));
  return true;
}

static bool ask_runner(const char *point) {
  char line[16];
  printf("at %s\n", point);
  fflush(stdout);
  return fgets(line, sizeof line, stdin) != NULL;
}

/* ---- loading and releasing in a loop --------------------------------------------------------- */

static bool run_one_call(cleave_module *m, cleave_tensor *ret) {
  cleave_context c;
  cleave_reference x, y;
  float numbers[12];
  fill_with_random(numbers, 12, 3);
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_rpc_sync(rt, c, m, &x, 1, 0, &y, ret, e));
  return close_context(c);
}

static bool load_call_and_release(const char *at, uint64_t seed, cleave_tensor *ret) {
  cleave_module *m;
  DO(load_seeded_module("again", at, seed, &m));
  DO(run_one_call(m, ret));
  cleave_module_release(rt, m, NULL);
  return true;
}

/* All modules have the same name. After the 255th, indexes are reused. */
static bool many_modules_are_loaded_and_released(void) {
  cleave_tensor t = {0};
  for (int i = 0; i < n_loops; i++) {
    if (i == n_loops / 4) CHECK(ask_runner("begin"));
    DO(load_call_and_release(i % 8 ? at_a : at_b, 1 + (uint64_t)i % 16, &t));
    if (i < 16 || i >= n_loops - 16) add_to_digest(&t);
  }
  CHECK(ask_runner("end"));
  cleave_tensor_free(&t);
  return true;
}

/* Trains a network with an optimiser that has moments, and releases its modules and optimiser. The
 * step of every third network is final: it cannot be rolled back. */
static bool train_and_release(int i) {
  cleave_context c;
  cleave_optimizer *o;
  cleave_reference x, loss;
  cleave_tensor dx = {0};
  cleave_step_result step_result;
  net n;
  DO(make_network("trained", i % 2 ? at_b : "master", &n));
  cleave_module *all[] = {n.a, n.b};
  cleave_group g = {
      .modules = all, .n_modules = 2, .kind = CLEAVE_ADAM, .lr = 0.1, .no_rollback = i % 3 == 0};
  MUST(cleave_optimizer_new(rt, &g, 1, 0.5, &o, e));
  DO(open_context(&c));
  DO(run_network(&n, c, 5, &x, NULL, &loss));
  DO(backward(c, loss, false));
  MUST(cleave_leaf_gradient(rt, x, &dx, e));
  MUST(cleave_step(rt, o, c, 0, &step_result, e));
  CHECK(step_result.applied);
  digest = (digest ^ (uint64_t)(step_result.norm * 1e12)) * UINT64_C(1099511628211);
  if (i % 5 == 0) cleave_optimizer_release(rt, o, NULL);
  for (int k = 0; k < 2; k++) cleave_module_release(rt, all[k], NULL);
  cleave_module_release(rt, n.loss, NULL);
  DO(close_context(c));
  if (i % 5) cleave_optimizer_release(rt, o, NULL);
  add_to_digest(&dx);
  cleave_tensor_free(&dx);
  return true;
}

static bool trained_modules_are_released_after_their_optimisers(void) {
  for (int i = 0; i < 300; i++) DO(train_and_release(i));
  return true;
}

/* ---- releasing modules that are in use ------------------------------------------------------- */

/* Runs a forward and a backward; returns the gradient of x and the value y. is_released: the
 * modules are released between forward and backward. */
static bool run_context(bool is_released, cleave_tensor *dx, cleave_tensor *y) {
  net n;
  cleave_context c;
  cleave_reference x, out, loss;
  DO(make_network("used", at_b, &n));
  DO(open_context(&c));
  DO(run_network(&n, c, 11, &x, &out, &loss));
  cleave_module *network_modules[] = {n.a, n.b, n.loss}, *same_name_modules[3];
  for (int i = 0; i < 3 && is_released; i++) cleave_module_release(rt, network_modules[i], NULL);
  /* loads other modules with the names of the released ones; the context must use the released
   * ones */
  for (int i = 0; i < 3 && is_released; i++)
    DO(load_seeded_module(i ? i == 1 ? "used a" : "used b" : "used loss", at_a, 9,
                          &same_name_modules[i]));
  DO(backward(c, loss, true));
  DO(backward(c, loss, false));
  MUST(cleave_leaf_gradient(rt, x, dx, e));
  MUST(cleave_to_here(rt, out, 0, y, e));
  DO(close_context(c));
  for (int i = 0; i < 3; i++)
    cleave_module_release(rt, is_released ? same_name_modules[i] : network_modules[i], NULL);
  return true;
}

static bool is_same_tensor(const cleave_tensor *a, const cleave_tensor *b) {
  size_t n = cleave_tensor_count(a);
  return n == cleave_tensor_count(b) && memcmp(a->data, b->data, n * sizeof(float)) == 0;
}

static bool open_context_continues_with_released_modules(void) {
  cleave_tensor dx[2] = {{0}, {0}}, y[2] = {{0}, {0}};
  for (int i = 0; i < 2; i++) DO(run_context(i, &dx[i], &y[i]));
  CHECK(is_same_tensor(&dx[0], &dx[1]) && is_same_tensor(&y[0], &y[1]));
  for (int i = 0; i < 2; i++) {
    add_to_digest(&dx[i]);
    cleave_tensor_free(&dx[i]);
    cleave_tensor_free(&y[i]);
  }
  return true;
}

/* Opens two contexts, and ends one without waiting while its call is in flight. */
static bool calls_in_flight_finish_after_release(void) {
  cleave_module *m;
  cleave_context c[2];
  cleave_reference x, y[2];
  cleave_tensor t = {0};
  float numbers[12];
  fill_with_random(numbers, 12, 4);
  for (int round = 0; round < 20; round++) {
    DO(load_seeded_module("in flight", at_a, 3, &m));
    for (int i = 0; i < 2; i++) {
      DO(open_context(&c[i]));
      DO(make_leaf(c[i], numbers, 4, 3, false, &x));
      MUST(cleave_call(rt, c[i], m, &x, 1, &y[i], e));
    }
    MUST(cleave_context_end(rt, c[0], e));
    cleave_module_release(rt, m, NULL);
    MUST(cleave_to_here(rt, y[1], 0, &t, e));
    DO(close_context(c[1]));
    if (!round) add_to_digest(&t);
  }
  cleave_tensor_free(&t);
  return true;
}

static bool a_kept_value_outlives_its_module(void) {
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  cleave_kept k[2];
  cleave_place place;
  cleave_tensor kept_first = {0}, kept_later = {0}, t = {0};
  float numbers[12];
  fill_with_random(numbers, 12, 6);
  DO(load_seeded_module("keeper", at_a, 2, &m));
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  for (int i = 0; i < 2; i++) MUST(cleave_keep(rt, y, &k[i], e));
  MUST(cleave_to_here(rt, y, 0, &kept_first, e));
  cleave_module_release(rt, m, NULL);
  DO(close_context(c));
  /* each of these modules gets the index of the released module; the kept values must not change */
  for (int i = 0; i < 3; i++) DO(load_call_and_release(at_a, 5, &t));
  MUST(cleave_kept_fetch(rt, k[0], 0, &kept_later, e));
  MUST(cleave_kept_owner(rt, k[0], &place, e));
  CHECK(is_same_tensor(&kept_first, &kept_later) && strcmp(place.node, at_a) == 0 &&
        strcmp(place.device, "cpu") == 0);
  MUST(cleave_kept_release(rt, k[0], e));
  MUST(cleave_kept_fetch(rt, k[1], 0, &kept_later, e));
  MUST(cleave_kept_release(rt, k[1], e));
  cleave_tensor_free(&kept_first);
  cleave_tensor_free(&kept_later);
  cleave_tensor_free(&t);
  return true;
}

/* ---- names and indexes of released modules --------------------------------------------------- */

static bool name_of_a_released_module_can_be_used_again(void) {
  cleave_module *m, *other_module;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor t = {0};
  float numbers[12];
  fill_with_random(numbers, 12, 8);
  cleave_module_options o = {.size = sizeof o, .name = "twice", .at = at_b};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  DO(load_seeded_module("twice", at_a, 1, &m));
  REFUSED(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &other_module, e), CLEAVE_EXISTS,
          "'twice'");
  DO(open_context(&c));
  DO(make_leaf(c, numbers, 4, 3, false, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  cleave_module_release(rt, m, NULL);
  /* context c still uses the released module */
  REFUSED(cleave_call(rt, c, m, &x, 1, &y, e), CLEAVE_NOT_FOUND, "released");
  MUST(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &other_module, e));
  MUST(cleave_rpc_sync(rt, c, other_module, &x, 1, 0, &y, &t, e));
  CHECK(cleave_tensor_count(&t) == 12 && ((float *)t.data)[0] == fmaxf(numbers[0], 0));
  cleave_module_release(rt, other_module, NULL);
  cleave_tensor_free(&t);
  return close_context(c);
}

/* The index of a released module becomes free at once if the module was never used, else when its
 * node has unloaded the module. */
static bool released_modules_free_their_numbers(void) {
  cleave_module *m[MAX_MODULES] = {0}, *next_module;
  cleave_tensor t = {0};
  char name[32];
  int n = 0;
  cleave_module_options o = {.size = sizeof o, .name = "one more", .at = at_a};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  for (; n < MAX_MODULES; n++) {
    snprintf(name, sizeof name, "of many %d", n);
    DO(load_seeded_module(name, n % 2 ? at_a : at_b, 1, &m[n]));
  }
  REFUSED(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &next_module, e), CLEAVE_EXHAUSTED,
          "255");
  for (int i = 0; i < n; i += 17) DO(run_one_call(m[i], &t));
  for (int i = 0; i < n; i++) cleave_module_release(rt, m[i], NULL);
  MUST(cleave_load_layers(rt, &o, "[{op: relu}]", &input, &next_module, e));
  cleave_module_release(rt, next_module, NULL);
  cleave_module_release(rt, NULL, NULL);
  cleave_tensor_free(&t);
  return true;
}

/* ---- information about parameters ------------------------------------------------------------ */

static bool has_parameter_info(const cleave_module *m, size_t i, const char *name,
                               cleave_dtype dtype, int rank, bool is_trainable, bool is_buffer,
                               const cleave_optimizer *o, size_t group) {
  cleave_parameter p = {.size = sizeof p};
  MUST(cleave_parameter_info(m, i, &p, e));
  CHECK(strcmp(p.name, name) == 0 && strcmp(cleave_module_weight_name(m, i), name) == 0);
  CHECK(p.dtype == dtype && p.rank == rank && p.learns == is_trainable && p.buffer == is_buffer);
  CHECK(!rank || p.shape[0] == 5);
  CHECK(rank < 2 || p.shape[1] == 3);
  CHECK(p.optimizer == o && p.group == group);
  return true;
}

static bool parameter_info_is_correct(void) {
  cleave_module *m;
  cleave_optimizer *o;
  cleave_parameter p = {.size = sizeof p};
  const char *frozen[] = {"1.bias"}, *biases[] = {"*.bias"}, *first[] = {"0.weight"};
  cleave_module_options options = {
      .size = sizeof options, .name = "asked", .at = at_a, .frozen = frozen, .n_frozen = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &options, "[{op: linear, out: 5}, {op: batchnorm}]", &input, &m, e));
  CHECK(cleave_parameter_count(m) == 7 && cleave_parameter_count(NULL) == 0);
  for (int i = 0; i < 2; i++) {
    DO(has_parameter_info(m, 0, "0.weight", CLEAVE_F32, 2, true, false, i ? o : NULL, i));
    DO(has_parameter_info(m, 1, "0.bias", CLEAVE_F32, 1, true, false, i ? o : NULL, 0));
    /* "1.weight" and the following parameters are in no group of the optimiser */
    DO(has_parameter_info(m, 2, "1.weight", CLEAVE_F32, 1, true, false, NULL, 0));
    DO(has_parameter_info(m, 3, "1.bias", CLEAVE_F32, 1, false, false, NULL, 0));
    DO(has_parameter_info(m, 4, "1.running_mean", CLEAVE_F32, 1, false, true, NULL, 0));
    DO(has_parameter_info(m, 5, "1.running_var", CLEAVE_F32, 1, false, true, NULL, 0));
    DO(has_parameter_info(m, 6, "1.num_batches_tracked", CLEAVE_I64, 0, false, true, NULL, 0));
    if (i) break;
    cleave_group g[] = {{.modules = &m, .n_modules = 1, .parameters = biases, .n_parameters = 1},
                        {.modules = &m, .n_modules = 1, .parameters = first, .n_parameters = 1}};
    g[0].lr = g[1].lr = 0.1;
    MUST(cleave_optimizer_new(rt, g, 2, 0, &o, e));
  }
  REFUSED(cleave_parameter_info(m, 7, &p, e), CLEAVE_RANGE, "'asked' has 7");
  REFUSED(cleave_parameter_info(NULL, 0, &p, e), CLEAVE_INVALID, "the argument module is NULL");
  REFUSED(cleave_parameter_info(m, 0, NULL, e), CLEAVE_INVALID,
          "the argument ret_parameter is NULL");
  p.size = 8;
  REFUSED(cleave_parameter_info(m, 0, &p, e), CLEAVE_INVALID, "8 bytes");
  cleave_module_release(rt, m, NULL);
  cleave_optimizer_release(rt, o, NULL);
  return true;
}

/* ---- saving and loading files of state ------------------------------------------------------- */

static const char *file_path(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", state_folder, name);
  return path;
}

/* Loads a module with running statistics, and makes an Adam optimiser for it. */
static bool load_module_with_adam(const char *name, const char *at, cleave_module **m,
                                  cleave_optimizer **o) {
  cleave_module_options options = {.size = sizeof options, .name = name, .at = at};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  MUST(cleave_load_layers(rt, &options, "[{op: linear, out: 5}, {op: batchnorm}]", &input, m, e));
  cleave_group g = {.modules = m, .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.1};
  MUST(cleave_optimizer_new(rt, &g, 1, 0, o, e));
  return true;
}

static bool train_step(cleave_module *m, cleave_optimizer *o, cleave_module *loss, unsigned seed) {
  cleave_context c;
  cleave_reference x, y, target, l;
  float in[12], target_numbers[20];
  fill_with_random(in, 12, seed);
  fill_with_random(target_numbers, 20, seed + 1);
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, target_numbers, 4, 5, false, &target));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, target}, 2, &l, e));
  DO(backward(c, l, false));
  MUST(cleave_step(rt, o, c, 0, NULL, e));
  return close_context(c);
}

static bool save_or_load_state(cleave_module *m, bool loads, const char *weights,
                               const char *moments) {
  cleave_status (*transfer_state)(cleave_runtime *, cleave_module *, cleave_state_kind,
                                  const char *, uint64_t, cleave_error *) =
      loads ? cleave_state_load : cleave_state_save;
  MUST(transfer_state(rt, m, CLEAVE_STATE_WEIGHTS, file_path(weights), 0, e));
  MUST(transfer_state(rt, m, CLEAVE_STATE_OPTIMIZER, file_path(moments), 0, e));
  return true;
}

static bool compare_states(cleave_module *a, cleave_module *b, cleave_state_kind kind, bool *ret) {
  cleave_state s = {0}, t = {0};
  MUST(cleave_state_read(rt, a, kind, 0, &s, e));
  MUST(cleave_state_read(rt, b, kind, 0, &t, e));
  CHECK(s.n == t.n && s.n > 0);
  *ret = true;
  for (size_t i = 0; i < s.n; i++) {
    size_t bytes =
        cleave_tensor_count(&s.items[i].tensor) * (s.items[i].tensor.dtype == CLEAVE_I64 ? 8 : 4);
    *ret &= strcmp(s.items[i].name, t.items[i].name) == 0 &&
            memcmp(s.items[i].tensor.data, t.items[i].tensor.data, bytes) == 0;
  }
  cleave_state_free(&s);
  cleave_state_free(&t);
  return true;
}

static bool compare_weights_and_moments(cleave_module *a, cleave_module *b, bool must_be_equal) {
  bool has_equal_weights, has_equal_moments;
  DO(compare_states(a, b, CLEAVE_STATE_WEIGHTS, &has_equal_weights));
  DO(compare_states(a, b, CLEAVE_STATE_OPTIMIZER, &has_equal_moments));
  CHECK(has_equal_weights == must_be_equal && has_equal_moments == must_be_equal);
  return true;
}

/* Module m[0] takes two steps and saves its weights and moments to files, and module m[1] loads
 * these files. Then both take a third step and must have the same weights and moments. */
static bool state_saved_to_files_is_loaded_again(void) {
  cleave_module *m[2], *loss;
  cleave_optimizer *o[2];
  cleave_tensor t = {0};
  DO(load_module_with_adam("first", at_a, &m[0], &o[0]));
  DO(load_module_with_adam("second", at_b, &m[1], &o[1]));
  DO(load_loss("learned", "master", 5, &loss));
  for (unsigned i = 0; i < 2; i++) DO(train_step(m[0], o[0], loss, i));
  DO(save_or_load_state(m[0], false, "weights.safetensors", "moments.safetensors"));
  DO(compare_weights_and_moments(m[0], m[1], false));
  DO(save_or_load_state(m[1], true, "weights.safetensors", "moments.safetensors"));
  DO(compare_weights_and_moments(m[0], m[1], true));
  for (int i = 0; i < 2; i++) DO(train_step(m[i], o[i], loss, 9));
  DO(compare_weights_and_moments(m[0], m[1], true));
  DO(save_or_load_state(m[0], false, "weights.safetensors",
                        /* saves again, over the files that m[0] has saved before */
                        "moments.safetensors"));
  DO(read_weight(m[0], "0.weight", &t));
  add_to_digest(&t);
  cleave_tensor_free(&t);
  /* loads weights from a file that the runner, a Python script, has written */
  DO(save_or_load_state(m[1], true, "others.safetensors", "moments.safetensors"));
  DO(read_weight(m[1], "0.bias", &t));
  CHECK(((float *)t.data)[0] == 0.5f && ((float *)t.data)[4] == 4.5f);
  DO(read_weight(m[1], "1.num_batches_tracked", &t));
  CHECK(*(int64_t *)t.data == 0);
  cleave_tensor_free(&t);
  for (int i = 0; i < 2; i++) cleave_module_release(rt, m[i], NULL);
  for (int i = 0; i < 2; i++) cleave_optimizer_release(rt, o[i], NULL);
  cleave_module_release(rt, loss, NULL);
  return true;
}

static bool mismatched_weight_files_are_refused_by_name(void) {
  cleave_module *m, *plain;
  cleave_optimizer *o;
  static const struct {
    const char *name;
    cleave_status status;
    const char *message;
  } cases[] = {{"none.safetensors", CLEAVE_NOT_FOUND, "none.safetensors"},
               {"cut.safetensors", CLEAVE_DATA_LOSS, "cut.safetensors"},
               {"junk.safetensors", CLEAVE_DATA_LOSS, "junk.safetensors"},
               {"lacks.safetensors", CLEAVE_INVALID, "'0.bias'"},
               {"more.safetensors", CLEAVE_INVALID, "'2.bias'"},
               {"shape.safetensors", CLEAVE_INVALID, "'0.weight'"},
               {"dtype.safetensors", CLEAVE_INVALID, "'1.running_var'"},
               {"moments.safetensors", CLEAVE_INVALID, "'0.weight'"}};
  DO(load_module_with_adam("fitted", at_a, &m, &o));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *path = file_path(cases[i].name);
    REFUSED(cleave_state_load(rt, m, CLEAVE_STATE_WEIGHTS, path, 0, e), cases[i].status,
            cases[i].message);
    REFUSED(cleave_state_load(rt, m, CLEAVE_STATE_WEIGHTS, path, 0, e), cases[i].status,
            "'fitted'");
  }
  const char *missing_folder_path = file_path("no/folder/x.safetensors");
  REFUSED(cleave_state_save(rt, m, CLEAVE_STATE_WEIGHTS, missing_folder_path, 0, e),
          CLEAVE_PRECONDITION, missing_folder_path);
  REFUSED(cleave_state_load(rt, m, CLEAVE_STATE_OPTIMIZER, file_path("weights.safetensors"), 0, e),
          CLEAVE_INVALID, "exp_avg");
  REFUSED(cleave_state_save(rt, NULL, CLEAVE_STATE_WEIGHTS, "x", 0, e), CLEAVE_INVALID, "module");
  REFUSED(cleave_state_save(NULL, m, CLEAVE_STATE_WEIGHTS, "x", 0, e), CLEAVE_INVALID, "runtime");
  REFUSED(cleave_state_load(rt, m, CLEAVE_STATE_WEIGHTS, NULL, 0, e), CLEAVE_INVALID, "path");
  REFUSED(cleave_state_load(rt, m, (cleave_state_kind)7, "x", 0, e), CLEAVE_INVALID, "7");
  /* a module without an optimiser saves a file of optimiser state that has no tensors */
  DO(load_seeded_module("plain", at_b, 1, &plain));
  MUST(cleave_state_save(rt, plain, CLEAVE_STATE_OPTIMIZER, file_path("empty.safetensors"), 0, e));
  MUST(cleave_state_load(rt, plain, CLEAVE_STATE_OPTIMIZER, file_path("empty.safetensors"), 0, e));
  REFUSED(
      cleave_state_load(rt, plain, CLEAVE_STATE_OPTIMIZER, file_path("moments.safetensors"), 0, e),
      CLEAVE_INVALID, "unexpected");
  cleave_module_release(rt, plain, NULL);
  cleave_module_release(rt, m, NULL);
  cleave_optimizer_release(rt, o, NULL);
  return true;
}

/* ---- blocks whose forward the backward computes again (recompute_blocks) --------------------- */

static const char deep_layers[] =
    "[{op: linear, out: 4096}, {op: gelu}, {op: tanh}, {op: gelu}, {op: linear, out: 5},"
    " {op: linear, out: 4096}, {op: gelu}, {op: tanh}, {op: gelu}, {op: linear, out: 5}]";
static const cleave_input deep_input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);

static cleave_module_options make_deep_options(const char *name, const char *const *blocks,
                                               size_t n) {
  return (cleave_module_options){.size = sizeof(cleave_module_options),
                                 .name = name,
                                 .at = at_a,
                                 .seed = 7,
                                 .recompute_blocks = blocks,
                                 .n_recompute_blocks = n};
}

/* Takes a step. Asks the runner, by the line "at NAME", to measure the memory before the backward.
 * NAME: the module's name. */
static bool train_deep_step(cleave_module *m, cleave_module *loss, cleave_optimizer *o) {
  cleave_context c;
  cleave_reference x, y, target, l;
  cleave_tensor t = {0};
  float in[12], target_numbers[20];
  fill_with_random(in, 12, 4);
  fill_with_random(target_numbers, 20, 5);
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, false, &x));
  DO(make_leaf(c, target_numbers, 4, 5, false, &target));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  MUST(cleave_call(rt, c, loss, (cleave_reference[]){y, target}, 2, &l, e));
  MUST(cleave_to_here(rt, l, 0, &t, e));
  CHECK(ask_runner(cleave_module_name(m)));
  DO(backward(c, l, false));
  MUST(cleave_step(rt, o, c, 0, NULL, e));
  cleave_tensor_free(&t);
  return close_context(c);
}

static bool recomputed_blocks_do_not_change_the_training(void) {
  static const char *const blocks[] = {"0..4", "5..9"}, *const names[] = {"again", "kept"};
  cleave_module *m[2], *loss;
  cleave_optimizer *o[2];
  DO(load_loss("deep", "master", 5, &loss));
  CHECK(ask_runner("before"));
  for (size_t i = 0; i < 2; i++) {
    cleave_module_options of = make_deep_options(names[i], blocks, i ? 0 : 2);
    MUST(cleave_load_layers(rt, &of, deep_layers, &deep_input, &m[i], e));
    cleave_group g = {.modules = &m[i], .n_modules = 1, .kind = CLEAVE_ADAM, .lr = 0.1};
    MUST(cleave_optimizer_new(rt, &g, 1, 0, &o[i], e));
    DO(train_deep_step(m[i], loss, o[i]));
  }
  DO(compare_weights_and_moments(m[0], m[1], true));
  for (size_t i = 0; i < 2; i++) cleave_module_release(rt, m[i], NULL);
  for (size_t i = 0; i < 2; i++) cleave_optimizer_release(rt, o[i], NULL);
  cleave_module_release(rt, loss, NULL);
  return true;
}

static bool unknown_blocks_are_refused_by_name(void) {
  static const struct {
    const char *blocks[2];
    cleave_status status;
    const char *message;
  } cases[] = {
      {{"0..4", "10"},
       CLEAVE_NOT_FOUND,
       "module 'none': recompute_blocks: there is no layer or block '10'"},
      {{"0..4", "5..x"}, CLEAVE_NOT_FOUND, "'5..x'"},
      {{"0..4", "7..5"}, CLEAVE_INVALID, "'7..5' are the wrong way round"},
      {{"0..4", "4..5"}, CLEAVE_EXISTS, "'4..5': layer '4' is in another block already"},
  };
  cleave_module *m;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    cleave_module_options of = make_deep_options("none", cases[i].blocks, 2);
    REFUSED(cleave_load_layers(rt, &of, deep_layers, &deep_input, &m, e), cases[i].status,
            cases[i].message);
  }
  return true;
}

static const test tests[] = {
    TEST(many_modules_are_loaded_and_released),
    TEST(trained_modules_are_released_after_their_optimisers),
    TEST(open_context_continues_with_released_modules),
    TEST(calls_in_flight_finish_after_release),
    TEST(a_kept_value_outlives_its_module),
    TEST(name_of_a_released_module_can_be_used_again),
    TEST(released_modules_free_their_numbers),
    TEST(parameter_info_is_correct),
    TEST(state_saved_to_files_is_loaded_again),
    TEST(mismatched_weight_files_are_refused_by_name),
    TEST(recomputed_blocks_do_not_change_the_training),
    TEST(unknown_blocks_are_refused_by_name),
};

/* Asserts that the workers hold nothing and the program leaks nothing. */
static bool close_without_leaks(void) {
  cleave_leaks leaks;
  CHECK(ask_runner("close"));
  MUST(cleave_close(rt, 0, &leaks, e));
  snprintf(why, sizeof why, "%.900s", leaks.text);
  return leaks.text[0] == '\0';
}

int main(int argc, char **argv) {
  if (argc < 6 || !open_session(argv)) {
    print_result(false, "open");
    return 1;
  }
  n_loops = atoi(argv[4]);
  state_folder = argv[5];
  (void)RUN_ALL(tests);
  print_digest();
  print_result(close_without_leaks(), "close");
  return n_failed != 0;
}
