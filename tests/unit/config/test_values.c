/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the values of a session file become: numbers to the bit, defaults, paths, precedence.
 * The effective config is read back to the same values.
 */
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/config/config_test.h"

static double parse_lr(const char *text) {
  char set[64];
  const char *sets[] = {set};
  snprintf(set, sizeof set, "train.optimizer.lr=%s", text);
  clv_session_config *c =
      parse_accepted(session_text, &(clv_config_overrides){.sets = sets, .n_sets = 1});
  double lr = c->train.optimizer.lr;
  clv_session_config_free(c);
  return lr;
}

static void decimal_numbers_parse_to_the_exact_double(void **state) {
  (void)state;
  /* The expected values are C literals of the same numbers, so the compiler computes them. */
  static const struct {
    const char *text;
    double value;
  } cases[] = {
      {"1e-3", 1e-3},
      {"1.0e-3", 1e-3},
      {"0.001", 1e-3},
      {"1.E-3", 1e-3},
      {".001", 1e-3},
      {"+0.001", 1e-3},
      {"0.1", 0.1},
      {"0.30000000000000004", 0.30000000000000004},
      {"5e-324", 5e-324},
      {"2.2250738585072011e-308", 2.2250738585072011e-308},
      {"1.7976931348623157e299", 1.7976931348623157e299},
      {"9007199254740993", 9007199254740993.0},
      {"3", 3.0},
      {"1e0", 1.0},
      {"123456789.123456789e-9", 123456789.123456789e-9},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    double lr = parse_lr(cases[i].text);
    if (memcmp(&lr, &cases[i].value, sizeof lr) != 0)
      fail_msg("%s became %a, not %a", cases[i].text, lr, cases[i].value);
  }
}

static void number_notations_give_the_same_value(void **state) {
  (void)state;
  static const char *const forms[] = {"lr: 1e-3", "lr: 1.0e-3", "lr: 0.001"};
  for (size_t i = 0; i < 3; i++) {
    clv_session_config *c = parse_accepted_edit("lr: 0.1", forms[i]);
    assert_true(c->train.optimizer.lr == 0.001);
    clv_session_config_free(c);
  }
}

static clv_seed parse_seed(const char *set) {
  clv_session_config *c = parse_accepted_set(set);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_seed seed = c->train.seed;
  clv_err err;
  assert_int_equal(clv_session_config_write(c, &text, &err), CLV_OK);
  assert_int_equal(strstr(text.data, "seed") != NULL, seed.is_given);
  clv_session_config_free(c);
  return seed;
}

/* A number in decimal becomes the lower 64 bits of the seed, and 32 hex digits the whole seed. A
 * seed whose upper 64 bits are 0 counts as guessable. */
static void seed_forms_set_key_and_guessability(void **state) {
  (void)state;
  static const uint8_t hex_bytes[] = {0,   17,  34,  51,  68,  85,  102, 119,
                                      136, 153, 170, 187, 204, 221, 238, 255};
  clv_seed none = parse_seed("train.batch=8"),
           large_number = parse_seed("train.seed=18446744073709551615");
  clv_seed hex_seed = parse_seed("train.seed=00112233445566778899aabbccddeeff");
  clv_seed digit_seed = parse_seed("train.seed=12345678901234567890123456789012");
  clv_seed hex_of_large = parse_seed("train.seed=0000000000000000ffffffffffffffff");
  assert_true(!none.is_given && !none.is_guessable && !none.is_drawn);
  assert_true(hex_seed.is_given && !hex_seed.is_guessable);
  assert_memory_equal(hex_seed.key.bytes, hex_bytes, sizeof hex_bytes);
  assert_true(!digit_seed.is_guessable && digit_seed.key.bytes[0] == 0x12 &&
              digit_seed.key.bytes[15] == 0x12);
  assert_true(large_number.is_guessable && hex_of_large.is_guessable);
  assert_memory_equal(&large_number.key, &hex_of_large.key, sizeof large_number.key);
}

static void old_keys_are_accepted_and_written_under_new_names(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_err err;
  char *text = replace_in_session_text(session_text, "lr: 0.1}}",
                                       "lr: 0.1, decay: weights}}\nlimits: {credit: 1MiB}");
  clv_session_config *c = parse_accepted(text, NULL);
  assert_true(c->limits.credit_bytes == 1 << 20);
  assert_int_equal(c->train.optimizer.decayed_params, CLV_DECAYS_WEIGHTS);
  assert_int_equal(clv_session_config_write(c, &out, &err), CLV_OK);
  assert_non_null(strstr(out.data, "receive_window: 1MiB"));
  assert_non_null(strstr(out.data, "decay_applies_to: weights"));
  assert_null(strstr(out.data, " credit:"));
  clv_session_config_free(c);
  /* the later of two overrides counts, whether it has the old name of the key or the new name */
  const char *sets[] = {"limits.receive_window=2MiB", "limits.credit=3MiB"};
  for (size_t n = 1; n <= 2; n++) {
    c = parse_accepted(text, &(clv_config_overrides){.sets = sets, .n_sets = n});
    assert_true(c->limits.credit_bytes == (n + 1) << 20);
    clv_session_config_free(c);
  }
  free(text);
}

static void size_and_duration_units_are_converted(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t bytes;
  } sizes[] = {{"64MiB", 67108864}, {"1.5 GiB", 1610612736}, {"100k", 100000}, {"65536", 65536}};
  static const struct {
    const char *text;
    uint64_t ms;
  } times[] = {{"30s", 30000}, {"250ms", 250}, {"2m", 120000}, {"1h", 3600000}, {"1.5s", 1500}};
  for (size_t i = 0; i < 4; i++) {
    char set[64];
    snprintf(set, sizeof set, "limits.receive_window=%s", sizes[i].text);
    clv_session_config *c = parse_accepted_set(set);
    assert_true(c->limits.credit_bytes == sizes[i].bytes);
    clv_session_config_free(c);
  }
  for (size_t i = 0; i < 5; i++) {
    char set[64];
    snprintf(set, sizeof set, "limits.step_timeout=%s", times[i].text);
    clv_session_config *c = parse_accepted_set(set);
    assert_true(c->limits.step_timeout_ms == times[i].ms);
    clv_session_config_free(c);
  }
}

static void auto_micro_batches_round_trips(void **state) {
  (void)state;
  clv_bytes text = {0};
  clv_session_config *c = parse_accepted_set("pipeline.micro_batches=auto");
  assert_true(c->pipeline.micro_batches == CLV_MICRO_AUTO);
  clv_err err;
  assert_int_equal(clv_session_config_write(c, &text, &err), CLV_OK);
  assert_non_null(strstr(text.data, "  micro_batches: auto\n"));
  clv_bytes_done(&text);
  clv_session_config_free(c);
}

static void omitted_session_keys_have_their_defaults(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted(session_text, NULL);
  assert_string_equal(c->name, "small");
  assert_int_equal(c->train.epochs, 1);
  assert_int_equal(c->train.max_steps, 0);
  assert_int_equal(c->train.eval_batch, 32);
  assert_true(c->train.shuffle && !c->train.drop_last);
  assert_int_equal(c->train.optimizer.betas.n, 2);
  assert_true(c->train.optimizer.betas.items[0] == 0.9);
  assert_true(c->train.optimizer.betas.items[1] == 0.999);
  assert_true(c->train.optimizer.eps == 1e-8);
  assert_int_equal(c->train.schedule.kind, CLV_LR_CONSTANT);
  assert_int_equal(c->pipeline.micro_batches, 1);
  assert_int_equal(c->pipeline.schedule, CLV_PIPE_1F1B);
  assert_int_equal(c->pipeline.window, CLV_WINDOW_AUTO);
  assert_int_equal(c->pipeline.flush_every, 32);
  assert_int_equal(c->transfer, CLV_TRANSFER_VIA_MASTER);
  assert_int_equal(c->limits.step_timeout_ms, 60000);
  assert_int_equal(c->limits.connect_timeout_ms, 10000);
  assert_int_equal(c->limits.reference_lease_ms, 300000);
  assert_true(c->limits.peer_timeout_ms == 15000 && c->limits.lease_ms == 120000);
  assert_int_equal(c->limits.credit_bytes, 64 << 20);
  assert_int_equal(c->log.every, 20);
  assert_null(c->log.tensorboard);
  assert_int_equal(c->checkpoint.every_steps, 500);
  assert_int_equal(c->checkpoint.keep, 3);
  assert_string_equal(c->checkpoint.dir, "runs/small");
  assert_string_equal(c->run.dir, "runs");
  assert_null(c->metrics.listen);
  assert_string_equal(c->loss.at, "master");
  assert_int_equal(c->loss.worker, -1);
  assert_int_equal(c->data.test.n, 0);
  assert_int_equal(c->model.arch, CLV_ARCH_NONE);
  assert_false(c->privacy.raw_input_leaves || c->privacy.labels_leave);
  assert_false(c->privacy.tokens_readable || c->privacy.front_known || c->privacy.labels_readable);
  clv_session_config_free(c);
}

static void stages_layers_and_attributes_are_read(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted_edit(
      "{op: relu}",
      "{op: pad9, p: 0.5, ok: true, mode: same, size: [1, -2], e: [], q: \"7\", m: -3}");
  assert_int_equal(c->n_stages, 2);
  assert_int_equal(c->stages[0].worker, -1);
  assert_int_equal(c->stages[1].worker, 0);
  assert_string_equal(c->workers[c->stages[1].worker].identity, "spiffe://acme/worker/gpu1");
  assert_int_equal(c->stages[1].threads, 1);
  assert_string_equal(c->stages[1].device, "auto");
  const clv_layer_spec *l = &c->stages[0].layers[1];
  assert_string_equal(l->op, "pad9");
  assert_null(l->name);
  assert_int_equal(l->pos.line, 10);
  assert_int_equal(l->pos.column, 36);
  assert_int_equal(l->n_attrs, 7);
  const clv_attr_spec *a = l->attrs;
  assert_true(a[0].kind == CLV_ATTR_FLOAT && a[0].float_value == 0.5);
  assert_true(a[1].kind == CLV_ATTR_BOOL && a[1].bool_value);
  assert_true(a[2].kind == CLV_ATTR_TEXT && strcmp(a[2].text, "same") == 0);
  assert_true(a[3].kind == CLV_ATTR_INTS && a[3].n_ints == 2 && a[3].ints[1] == -2);
  assert_true(a[4].kind == CLV_ATTR_INTS && a[4].n_ints == 0);
  assert_true(a[5].kind == CLV_ATTR_TEXT && strcmp(a[5].text, "7") == 0);
  assert_true(a[6].kind == CLV_ATTR_INT && a[6].int_value == -3 && a[6].float_value == -3.0);
  clv_session_config_free(c);
}

static void layer_parallel_key_round_trips(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted_edit("{op: relu}", "{op: linear, parallel: rows, out: 8}");
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_session_config_freep) clv_session_config *again = NULL;
  clv_err err;
  assert_int_equal(c->stages[0].layers[0].parallel, CLV_LAYER_WHOLE);
  assert_int_equal(c->stages[0].layers[1].parallel, CLV_LAYER_ROWS);
  assert_int_equal(c->stages[0].layers[1].parallel_pos.line, 10);
  assert_int_equal(c->stages[0].layers[1].n_attrs, 1);
  assert_int_equal(clv_session_config_write(c, &text, &err), CLV_OK);
  assert_int_equal(clv_session_config_parse("again", text.data, text.len, NULL, &again, &err),
                   CLV_OK);
  assert_int_equal(again->stages[0].layers[1].parallel, CLV_LAYER_ROWS);
  clv_session_config_free(c);
}

static void numbered_layer_ranges_are_read(void **state) {
  (void)state;
  char *one_range =
      replace_in_session_text(session_text, "[{op: linear, out: 8}, {op: relu}]", "0..2");
  char *text =
      replace_in_session_text(one_range, "[{op: linear, out: 2}]\n",
                              "3..5\nmodel: {arch: mlp, hidden: [256, 128], classes: 10}\n");
  clv_session_config *c = parse_accepted(text, NULL);
  assert_int_equal(c->model.arch, CLV_ARCH_MLP);
  assert_int_equal(c->model.n_attrs, 2);
  assert_string_equal(c->model.attrs[0].key, "hidden");
  assert_int_equal(c->model.attrs[0].ints[1], 128);
  assert_true(c->stages[1].range.is_given && c->stages[1].range.first == 3);
  assert_int_equal(c->stages[1].range.last, 5);
  assert_int_equal(c->stages[1].n_layers, 0);
  assert_int_equal(c->stages[1].layers_pos.line, 13);
  clv_session_config_free(c);
  free(one_range);
  free(text);
}

/* The ends of a range may be names of layers. A single name is a range of one layer. */
static void named_layer_ranges_are_read(void **state) {
  (void)state;
  char *one =
      replace_in_session_text(session_text, "[{op: linear, out: 8}, {op: relu}]", "0..layer2.3");
  char *text = replace_in_session_text(one, "[{op: linear, out: 2}]\n",
                                       "\"layer3\"\nmodel: {arch: resnet50}\n");
  clv_session_config *c = parse_accepted(text, NULL);
  assert_int_equal(c->model.arch, CLV_ARCH_RESNET50);
  assert_string_equal(c->stages[0].range.first_layer_name, "");
  assert_int_equal(c->stages[0].range.first, 0);
  assert_string_equal(c->stages[0].range.last_layer_name, "layer2.3");
  assert_string_equal(c->stages[1].range.first_layer_name, "layer3");
  assert_string_equal(c->stages[1].range.last_layer_name, "layer3");
  clv_session_config_free(c);
  free(one);
  free(text);
  assert_edit_refused(
      "[{op: linear, out: 2}]", "layer3.",
      "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of layers or a range such "
      "as 0..3 or conv1..layer2 (layer 6 alone is 6..6), got 'layer3.'");
}

static void relative_paths_resolve_against_the_session_file(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted(session_text, NULL);
  assert_string_equal(c->tls.ca, "/etc/cleave/ca.pem");
  assert_string_equal(c->data.root, "/etc/cleave");
  assert_string_equal(c->data.train.items[1], "/etc/cleave/b.gz");
  clv_session_config_free(c);
  c = parse_accepted_edit("format: idx,", "format: idx, root: ./sets,");
  assert_string_equal(c->data.train.items[0], "/etc/cleave/sets/a.gz");
  clv_session_config_free(c);
  c = parse_accepted_edit("[a.gz, b.gz]", "[/x/a.gz, ../b.gz]");
  assert_string_equal(c->data.train.items[0], "/x/a.gz");
  assert_string_equal(c->data.train.items[1], "/etc/cleave/../b.gz");
  clv_session_config_free(c);
  char working_dir[4096], expected[4200];
  clv_err err;
  assert_non_null(getcwd(working_dir, sizeof working_dir));
  snprintf(expected, sizeof expected, "%s/sub/ca.pem", working_dir);
  assert_int_equal(
      clv_session_config_parse("sub/s.yaml", session_text, strlen(session_text), NULL, &c, &err),
      CLV_OK);
  assert_string_equal(c->tls.ca, expected);
  clv_session_config_free(c);
}

static void tensorboard_accepts_a_folder_or_a_boolean(void **state) {
  static const struct {
    const char *value, *want; /* want: expected text; NULL: the key counts as not given */
  } cases[] = {
      {"true", "true"}, {"\"true\"", "true"}, {"false", NULL}, {"./true", "./true"}, {"tb", "tb"}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    char set[64];
    snprintf(set, sizeof set, "log.tensorboard=%s", cases[i].value);
    CLV_AUTO(clv_session_config_freep) clv_session_config *c = parse_accepted_set(set);
    if (cases[i].want)
      assert_string_equal(c->log.tensorboard, cases[i].want);
    else
      assert_null(c->log.tensorboard);
  }
}

static void stages_inherit_the_session_transfer(void **state) {
  (void)state;
  char *text = replace_in_session_text(session_text, "    at: gpu1\n",
                                       "    at: gpu1\n    transfer: via_master\n");
  clv_session_config *c = parse_accepted_set("transfer=direct");
  assert_int_equal(c->stages[0].transfer, CLV_TRANSFER_DIRECT);
  clv_session_config_free(c);
  const char *set = "transfer=direct";
  c = parse_accepted(text, &(clv_config_overrides){.sets = &set, .n_sets = 1});
  assert_int_equal(c->stages[0].transfer, CLV_TRANSFER_DIRECT);
  assert_int_equal(c->stages[1].transfer, CLV_TRANSFER_VIA_MASTER);
  clv_session_config_free(c);
  free(text);
}

static uint64_t parse_batch_size(const char *const *env, const char *const *sets, size_t n_sets) {
  clv_config_overrides overrides = {.env = env, .sets = sets, .n_sets = n_sets};
  clv_session_config *c = parse_accepted(session_text, &overrides);
  uint64_t batch = c->train.batch;
  clv_session_config_free(c);
  return batch;
}

static void set_overrides_environment_overrides_file(void **state) {
  (void)state;
  static const char *const env[] = {"PATH=/bin",
                                    "CLEAVE_TRAIN__BATCH=48",
                                    "CLEAVE_HOME=x",
                                    "CLEAVE_TEST_A__B=1",
                                    "CLEAVE_FAILPOINT_X__Y=1",
                                    "CLEAVE_FAILPOINTS=a__b",
                                    NULL};
  static const char *const sets[] = {"train.batch=64", "train.batch=80"};
  assert_int_equal(parse_batch_size(NULL, NULL, 0), 32);
  assert_int_equal(parse_batch_size(env, NULL, 0), 48);
  assert_int_equal(parse_batch_size(env, sets, 1), 64);
  assert_int_equal(parse_batch_size(env, sets, 2), 80);
}

static void overrides_reach_nested_keys(void **state) {
  (void)state;
  static const char *const env[] = {"CLEAVE_TRAIN__OPTIMIZER__LR=0.5",
                                    "CLEAVE_TRAIN__OPTIMIZER={kind: adam, lr: 0.25}",
                                    "CLEAVE_STAGES__1__THREADS=2",
                                    "CLEAVE_DATA__VALIDATION__FRACTION=0.25",
                                    "CLEAVE_WORKERS__GPU1__ADDRESS=10.0.0.1:1",
                                    NULL};
  static const char *const sets[] = {"stages.0.layers.0.out=9", "data.train=[\"x y\", z]",
                                     "data.root=/d: [", "stages.1.layers=[{op: tanh}]",
                                     "workers.gpu2={address: \"h:1\", identity: \"a://b\"}"};
  clv_config_overrides overrides = {.env = env, .sets = sets, .n_sets = 5};
  clv_session_config *c = parse_accepted(session_text, &overrides);
  /* an override of a whole map, `optimizer`, is read before overrides of its keys, so lr is 0.5 */
  assert_int_equal(c->train.optimizer.kind, CLV_OPTIM_ADAM);
  assert_true(c->train.optimizer.lr == 0.5);
  assert_int_equal(c->stages[1].threads, 2);
  assert_true(c->data.validation_fraction == 0.25);
  assert_string_equal(c->workers[0].address, "10.0.0.1:1");
  assert_int_equal(c->stages[0].layers[0].attrs[0].int_value, 9);
  assert_string_equal(c->data.train.items[0], "/d: [/x y");
  assert_string_equal(c->stages[1].layers[0].op, "tanh");
  assert_int_equal(c->n_workers, 2);
  clv_session_config_free(c);
}

static void invalid_overrides_are_refused(void **state) {
  (void)state;
  assert_set_refused("train.batch=x",
                     "--set train.batch=x: 'train.batch' must be a whole number from 1 to "
                     "1048576, got 'x'");
  assert_set_refused("train.bacth=3",
                     "--set train.bacth=3: unknown key 'train.bacth', did you mean 'batch'?");
  assert_set_refused("trian.batch=3",
                     "--set trian.batch=3: unknown key 'trian', did you mean 'train'?");
  assert_set_refused(
      "train.lr=3", "--set train.lr=3: unknown key 'train.lr', did you mean 'train.optimizer.lr'?");
  assert_set_refused("stages.1.at=gpu2",
                     "--set stages.1.at=gpu2: 'stages.1.at' names the unknown worker "
                     "'gpu2', did you mean 'gpu1'?");
  assert_set_refused(
      "stages.0.at=gpu1",
      "--set stages.0.at=gpu1: the first stage 'front' is at 'gpu1', but raw input must not "
      "leave the master: put it at master, or set privacy.raw_input_leaves: true");
  assert_set_refused("stages.2.at=gpu1",
                     "--set stages.2.at=gpu1: 'stages' is a list of 2 entries, there is no '2'");
  assert_set_refused("stages.x.at=gpu1",
                     "--set stages.x.at=gpu1: 'stages' is a list of 2 entries, there is no 'x'");
  assert_set_refused(
      "train.batch.x=3",
      "--set train.batch.x=3: 'train.batch' is a single value, nothing is inside it");
  assert_set_refused("train", "--set train: expected PATH=VALUE, as in train.batch=64");
  assert_set_refused("=3", "--set =3: expected PATH=VALUE, as in train.batch=64");
  assert_set_refused("train..batch=3", "--set train..batch=3: a name is empty in the path");
  assert_set_refused("train=[1",
                     "--set train=[1: not valid YAML: flow sequence without a closing bracket");
  assert_set_refused("loss={kind: mse, kind: nll}",
                     "--set loss={kind: mse, kind: nll}: duplicate key 'kind'");
  assert_set_refused("a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1",
                     "--set a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1: nested more than 16 levels deep");
  static const char *const env[] = {"CLEAVE_TRAIN__BACTH=3", NULL};
  assert_refused(session_text, &(clv_config_overrides){.env = env},
                 "CLEAVE_TRAIN__BACTH=3: unknown key 'train.bacth', did you mean 'batch'?");
  static const char *const epochs_out_of_range[] = {"CLEAVE_TRAIN__EPOCHS=0", NULL};
  assert_refused(
      session_text, &(clv_config_overrides){.env = epochs_out_of_range},
      "CLEAVE_TRAIN__EPOCHS=0: 'train.epochs' must be a whole number from 1 to 1000000, got '0'");
}

static void image_keys_are_read_with_defaults(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted(session_text, NULL);
  assert_int_equal(c->data.threads, 2);
  assert_int_equal(c->data.images.channels, 3);
  assert_int_equal(c->data.images.max_pixels, 67108864);
  assert_true(c->data.images.area.items[0] == 0.08 && c->data.images.ratio.items[1] == 4.0 / 3);
  clv_session_config_free(c);
  c = parse_accepted_edit(
      "format: idx, train: [a.gz, b.gz]",
      "format: images, train: [t], threads: 8, images: {channels: 1, resize: 40, "
      "crop: 32, train_crop: random, pad: 4, flip: 0.5, max_pixels: 1000}");
  assert_int_equal(c->data.format, CLV_FORMAT_IMAGES);
  assert_string_equal(c->data.train.items[0], "/etc/cleave/t");
  assert_int_equal(c->data.threads, 8);
  assert_int_equal(c->data.images.channels, 1);
  assert_int_equal(c->data.images.resize, 40);
  assert_int_equal(c->data.images.crop, 32);
  assert_int_equal(c->data.images.train_crop, CLV_TRAIN_CROP_RANDOM);
  assert_int_equal(c->data.images.pad, 4);
  assert_true(c->data.images.flip == 0.5);
  assert_int_equal(c->data.images.max_pixels, 1000);
  clv_session_config_free(c);
}

/* ---- writing the effective config and reading it again --------------------------------------- */

static const char rich_text[] =
    "version: 1\n"
    "name: rich.one\n"
    "tls: {ca: /a b/ca.pem, cert: \"m\\t\\u00e9\\u2028\\u0085\\x7f\\\"\\\\.pem\", key: m.key}\n"
    "workers:\n"
    "  true: {address: \"[::1]:7443\", identity: \"spiffe://acme/worker/1\"}\n"
    "  0: {address: \"h:65535\", identity: \"spiffe://acme/worker/0\"}\n"
    "data:\n"
    "  {format: npy, root: sets, train: [a, b], test: ['it''s', \"d: e\"], validation: {fraction: "
    "0.1},\n"
    "   normalize: {mean: [0.1, -2.5e-7], std: [0.30000000000000004, 3]}, scale: "
    "0.0039215686274509803,\n"
    "   limit_train: 10, limit_test: 4294967295, flatten: true, threads: 3}\n"
    "stages:\n"
    "  - {name: '1', at: master, threads: 3, device: auto, tf32: true, weights: {file: w.st, "
    "secret: "
    "true}, freeze: true, recompute_blocks: [c.0..c.1, '2..3'],\n"
    "     layers: [{op: conv2d, name: c.0, out: 16, f: 1.0, g: 1e22, h: -0.0, i: "
    "-9223372036854775807,\n"
    "       b: false, t: 'true', n: '1e3', z: '', k: [3, -3], e: []}]}\n"
    "  - {name: two, at: 'true', layers: [{op: relu}, {op: relu}], transfer: direct,\n"
    "     weights: {artifact: w-2, sha256: "
    "E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}}\n"
    "  - {name: three, at: '0', layers: [{op: tanh}]}\n"
    "loss: {kind: bce_with_logits, at: '0'}\n"
    "privacy: {raw_input_leaves: true, labels_leave: true, tokens_readable: true, front_known: "
    "true,\n"
    "  labels_readable: true}\n"
    "train:\n"
    "  {epochs: 7, max_steps: 9, batch: 48, eval_batch: 100, seed: 18446744073709551615, shuffle: "
    "false,\n"
    "   drop_last: true, optimizer: {kind: sgd, lr: 1e-3, momentum: 0.9, nesterov: true,\n"
    "   weight_decay: 5e-324, betas: [0.5, 0.75], eps: 0}, schedule: {kind: step, warmup_steps: "
    "3,\n"
    "   step_size: 4, total_steps: 5, gamma: 0.7}, clip_grad_norm: 1.5, freeze: ['0.*', "
    "\"b[1]\"]}\n"
    "pipeline: {micro_batches: 4, schedule: 1f1b, window: textbook, flush_every: 7}\n"
    "limits: {step_timeout: 1234ms, connect_timeout: 1h, receive_window: 100001, "
    "reference_lease: 7s}\n"
    "log: {every: 3, json: true, tensorboard: 't b'}\n"
    "checkpoint: {dir: 'c k', every_steps: 11, keep: 12}\n"
    "run: {dir: /r}\n"
    "metrics: {listen: \"localhost:0\"}\n";

static void assert_same_texts(const clv_text_list *a, const clv_text_list *b) {
  assert_int_equal(a->n, b->n);
  for (size_t i = 0; i < a->n; i++) assert_string_equal(a->items[i], b->items[i]);
}

static void assert_same_numbers(const clv_number_list *a, const clv_number_list *b) {
  assert_int_equal(a->n, b->n);
  assert_memory_equal(a->items, b->items, a->n * sizeof(double));
}

static void assert_same_text(const char *a, const char *b) {
  if (a && b)
    assert_string_equal(a, b);
  else
    assert_ptr_equal(a, b);
}

static void assert_same_layers(const clv_layer_spec *a, const clv_layer_spec *b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    assert_string_equal(a[i].op, b[i].op);
    assert_same_text(a[i].name, b[i].name);
    assert_int_equal(a[i].parallel, b[i].parallel);
    assert_int_equal(a[i].n_attrs, b[i].n_attrs);
    for (size_t j = 0; j < a[i].n_attrs; j++) {
      const clv_attr_spec *x = &a[i].attrs[j], *y = &b[i].attrs[j];
      assert_string_equal(x->key, y->key);
      assert_int_equal(x->kind, y->kind);
      assert_int_equal(x->bool_value, y->bool_value);
      assert_true(x->int_value == y->int_value);
      assert_memory_equal(&x->float_value, &y->float_value, sizeof x->float_value);
      assert_same_text(x->text, y->text);
      assert_int_equal(x->n_ints, y->n_ints);
      if (x->n_ints) assert_memory_equal(x->ints, y->ints, x->n_ints * sizeof(int64_t));
    }
  }
}

static void assert_same_images(const clv_session_config *a, const clv_session_config *b) {
  assert_same_numbers(&a->data.images.area, &b->data.images.area);
  assert_same_numbers(&a->data.images.ratio, &b->data.images.ratio);
  assert_true(a->data.images.flip == b->data.images.flip);
  assert_int_equal(a->data.images.channels, b->data.images.channels);
  assert_int_equal(a->data.images.resize, b->data.images.resize);
  assert_int_equal(a->data.images.crop, b->data.images.crop);
  assert_int_equal(a->data.images.train_crop, b->data.images.train_crop);
  assert_int_equal(a->data.images.pad, b->data.images.pad);
  assert_int_equal(a->data.images.max_pixels, b->data.images.max_pixels);
  assert_same_text(a->data.text.column, b->data.text.column);
  assert_same_text(a->data.text.label, b->data.text.label);
  assert_int_equal(a->data.text.max_tokens, b->data.text.max_tokens);
  assert_same_text(a->data.tokenizer.file, b->data.tokenizer.file);
  assert_same_text(a->data.tokenizer.pad, b->data.tokenizer.pad);
  assert_int_equal(a->data.tokenizer.accents, b->data.tokenizer.accents);
  assert_int_equal(a->data.tokenizer.lower_case, b->data.tokenizer.lower_case);
  assert_int_equal(a->data.threads, b->data.threads);
}

static void assert_same_stages(const clv_session_config *a, const clv_session_config *b) {
  assert_int_equal(a->n_stages, b->n_stages);
  for (size_t i = 0; i < a->n_stages; i++) {
    const clv_stage_spec *x = &a->stages[i], *y = &b->stages[i];
    assert_string_equal(x->name, y->name);
    assert_string_equal(x->at, y->at);
    assert_int_equal(x->worker, y->worker);
    assert_true(x->threads == y->threads && x->freeze == y->freeze && x->transfer == y->transfer);
    assert_string_equal(x->device, y->device);
    assert_true(x->tf32 == y->tf32);
    assert_int_equal(x->recompute, y->recompute);
    assert_same_texts(&x->recompute_blocks, &y->recompute_blocks);
    assert_memory_equal(&x->range, &y->range, sizeof x->range);
    assert_same_text(x->weights_file, y->weights_file);
    assert_int_equal(x->weights_secret, y->weights_secret);
    assert_same_text(x->weights_artifact, y->weights_artifact);
    assert_same_text(x->weights_sha256, y->weights_sha256);
    assert_int_equal(x->n_layers, y->n_layers);
    assert_same_layers(x->layers, y->layers, x->n_layers);
  }
}

static void assert_same_train(const clv_train_config *a, const clv_train_config *b) {
  assert_true(a->epochs == b->epochs && a->max_steps == b->max_steps && a->batch == b->batch);
  assert_true(a->eval_batch == b->eval_batch && memcmp(&a->seed, &b->seed, sizeof a->seed) == 0 &&
              a->shuffle == b->shuffle);
  assert_true(a->drop_last == b->drop_last && a->clip_grad_norm == b->clip_grad_norm);
  const clv_optimizer_config *o = &a->optimizer, *p = &b->optimizer;
  assert_true(o->kind == p->kind && o->lr == p->lr && o->momentum == p->momentum);
  assert_true(o->weight_decay == p->weight_decay && o->eps == p->eps && o->nesterov == p->nesterov);
  assert_true(o->alpha == p->alpha && o->centered == p->centered && o->lr_decay == p->lr_decay);
  assert_true(o->initial_accumulator_value == p->initial_accumulator_value);
  assert_same_numbers(&o->betas, &p->betas);
  const clv_lr_config *s = &a->schedule, *t = &b->schedule;
  assert_true(s->kind == t->kind && s->warmup_steps == t->warmup_steps && s->gamma == t->gamma);
  assert_true(s->step_size == t->step_size && s->total_steps == t->total_steps);
  assert_same_texts(&a->freeze, &b->freeze);
}

static void assert_same_data(const clv_session_config *a, const clv_session_config *b) {
  assert_string_equal(a->data.root, b->data.root);
  assert_same_texts(&a->data.train, &b->data.train);
  assert_same_texts(&a->data.test, &b->data.test);
  assert_same_numbers(&a->data.mean, &b->data.mean);
  assert_same_numbers(&a->data.std, &b->data.std);
  assert_true(a->data.format == b->data.format && a->data.scale == b->data.scale);
  assert_true(a->data.validation_fraction == b->data.validation_fraction);
  assert_true(a->data.limit_train == b->data.limit_train &&
              a->data.limit_test == b->data.limit_test);
  assert_int_equal(a->data.flatten, b->data.flatten);
}

/* Asserts that the `limits` of two sessions are equal, except for positions in the files. */
static void assert_same_limits(const clv_session_config *a, const clv_session_config *b) {
  const size_t len =
      offsetof(clv_session_config, limits.lease_pos) - offsetof(clv_session_config, limits);
  assert_memory_equal(&a->limits, &b->limits, len);
}

static void assert_same_session(const clv_session_config *a, const clv_session_config *b) {
  assert_string_equal(a->name, b->name);
  assert_string_equal(a->tls.ca, b->tls.ca);
  assert_string_equal(a->tls.cert, b->tls.cert);
  assert_string_equal(a->tls.key, b->tls.key);
  assert_int_equal(a->n_workers, b->n_workers);
  for (size_t i = 0; i < a->n_workers; i++) {
    assert_string_equal(a->workers[i].name, b->workers[i].name);
    assert_string_equal(a->workers[i].address, b->workers[i].address);
    assert_string_equal(a->workers[i].identity, b->workers[i].identity);
  }
  assert_same_data(a, b);
  assert_same_images(a, b);
  assert_same_stages(a, b);
  assert_int_equal(a->model.arch, b->model.arch);
  assert_int_equal(a->model.n_layers, b->model.n_layers);
  assert_same_layers(a->model.layers, b->model.layers, a->model.n_layers);
  assert_int_equal(a->loss.kind, b->loss.kind);
  assert_string_equal(a->loss.at, b->loss.at);
  assert_memory_equal(&a->privacy, &b->privacy, sizeof a->privacy);
  assert_same_train(&a->train, &b->train);
  assert_true(a->pipeline.micro_batches == b->pipeline.micro_batches);
  assert_int_equal(a->pipeline.schedule, b->pipeline.schedule);
  assert_true(a->pipeline.window == b->pipeline.window);
  assert_true(a->pipeline.flush_every == b->pipeline.flush_every);
  assert_int_equal(a->transfer, b->transfer);
  assert_same_limits(a, b);
  assert_true(a->log.every == b->log.every && a->log.json == b->log.json);
  assert_string_equal(a->log.tensorboard ? a->log.tensorboard : "none",
                      b->log.tensorboard ? b->log.tensorboard : "none");
  assert_string_equal(a->checkpoint.dir, b->checkpoint.dir);
  assert_true(a->checkpoint.every_steps == b->checkpoint.every_steps &&
              a->checkpoint.keep == b->checkpoint.keep);
  assert_string_equal(a->run.dir, b->run.dir);
  assert_same_text(a->metrics.listen, b->metrics.listen);
}

/* Parses a session of /etc/cleave, writes it, parses the written text as a file of /elsewhere, and
 * asserts that both sessions are equal. A path that was written relative would differ. */
static void check_round_trip(const char *text, size_t len) {
  clv_session_config *a = NULL, *b = NULL;
  clv_bytes first = {0}, second = {0};
  clv_err err = {0};
  if (clv_session_config_parse("/etc/cleave/s.yaml", text, len, NULL, &a, &err))
    fail_msg("%s", err.text);
  assert_int_equal(clv_session_config_write(a, &first, &err), CLV_OK);
  if (clv_session_config_parse("/elsewhere/t.yaml", first.data, first.len, NULL, &b, &err))
    fail_msg("%s in\n%s", err.text, first.data);
  assert_same_session(a, b);
  assert_int_equal(clv_session_config_write(b, &second, &err), CLV_OK);
  assert_string_equal(first.data, second.data);
  clv_session_config_free(a);
  clv_session_config_free(b);
  clv_bytes_done(&first);
  clv_bytes_done(&second);
}

/* Returns session_text with `from` replaced by head, n times `letter`, and tail. */
static char *make_session_with_long_value(const char *from, const char *head, char letter, size_t n,
                                          const char *tail) {
  clv_bytes to = {0};
  clv_bytes_puts(&to, head);
  for (size_t i = 0; i < n; i++) clv_bytes_add(&to, &letter, 1);
  clv_bytes_puts(&to, tail);
  char *text = replace_in_session_text(session_text, from, to.data);
  clv_bytes_done(&to);
  return text;
}

/* The reader joins `root` and a file name, and refuses a result of more than 4096 bytes. A path
 * that was accepted must be accepted again when the written session is read. */
static void overlong_joined_paths_are_refused(void **state) {
  (void)state;
  char *text = make_session_with_long_value("format: idx,", "format: idx, root: ", 'r', 2500, ",");
  check_round_trip(text, strlen(text));
  free(text);
  text = make_session_with_long_value("[a.gz,", "[/", 'a', 4095, ",");
  check_round_trip(text, strlen(text));
  free(text);
  text = make_session_with_long_value("[a.gz,", "[", 'a', 4096 - sizeof "/etc/cleave", ",");
  check_round_trip(text, strlen(text));
  free(text);
  text = make_session_with_long_value("[a.gz,", "[", 'a', 4097 - sizeof "/etc/cleave", ",");
  assert_refused(
      text, NULL,
      "/etc/cleave/s.yaml:6:21: data.root and a file name make a path of more than 4096 bytes");
  free(text);
  text = make_session_with_long_value("loss:", "run: {dir: ", 'r', 4094, "}\nloss:");
  assert_refused(
      text, NULL,
      "/etc/cleave/s.yaml: run.dir and the run's name make a path of more than 4096 bytes");
  free(text);
}

static void written_session_config_reads_back_equal(void **state) {
  (void)state;
  check_round_trip(session_text, strlen(session_text));
  check_round_trip(rich_text, strlen(rich_text));
  char *images = replace_in_session_text(
      session_text, "format: idx, train: [a.gz, b.gz]",
      "format: images, train: [t], images: {channels: 1, resize: 5, crop: 4, "
      "train_crop: random, pad: 2, area: [0.1, 0.7], ratio: [0.3, 3], flip: 0.7, "
      "max_pixels: 12345}");
  check_round_trip(images, strlen(images));
  free(images);
  char *one = replace_in_session_text(session_text, "[{op: linear, out: 8}, {op: relu}]", "0..0");
  char *text = replace_in_session_text(
      one, "[{op: linear, out: 2}]\n",
      "1..2\nmodel: {layers: [{op: a, k: [1, 2, 3]}, {op: b, x: 2.5}, {op: c}]}\n");
  check_round_trip(text, strlen(text));
  free(one);
  free(text);
}

static void quoted_and_extreme_values_are_read(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted(rich_text, NULL);
  assert_string_equal(c->tls.cert, "/etc/cleave/m\t\u00e9\u2028\xc2\x85\x7f\"\\.pem");
  assert_string_equal(c->workers[0].name, "true");
  assert_int_equal(c->stages[2].worker, 1);
  assert_int_equal(c->loss.worker, 1);
  assert_string_equal(c->data.test.items[0], "/etc/cleave/sets/it's");
  const clv_attr_spec *a = c->stages[0].layers[0].attrs;
  assert_true(a[1].kind == CLV_ATTR_FLOAT && a[1].float_value == 1.0);
  assert_true(a[2].kind == CLV_ATTR_FLOAT && a[2].float_value == 1e22);
  assert_true(a[4].kind == CLV_ATTR_INT && a[4].int_value == -INT64_MAX);
  assert_true(a[6].kind == CLV_ATTR_TEXT && a[7].kind == CLV_ATTR_TEXT && a[8].text[0] == '\0');
  assert_true(c->train.optimizer.weight_decay == 5e-324);
  assert_int_equal(c->limits.credit_bytes, 100001);
  clv_session_config_free(c);
}

static void example_and_shipped_session_files_load(void **state) {
  (void)state;
  clv_bytes text = {0};
  clv_err err = {0};
  assert_int_equal(clv_config_write_example(CLV_CONFIG_SESSION, &text, &err), CLV_OK);
  assert_non_null(strstr(text.data,
                         "\n  # Records per step. (a whole number from 1 to 1048576)\n"
                         "  batch: 128\n"));
  /* a network that is divided between the master and a worker, in a session with all keys of train
   * and eval */
  clv_session_config *first = NULL;
  if (clv_session_config_parse("e", text.data, text.len, NULL, &first, &err))
    fail_msg("%s", err.text);
  assert_int_equal(first->n_stages, 3); /* front, middle and back of a U-shaped split */
  assert_int_equal(first->stages[0].worker, -1);
  assert_int_equal(first->stages[1].worker, 0);
  assert_int_equal(first->stages[2].worker, -1);
  assert_int_equal(first->data.test.n, 2);
  clv_session_config_free(first);
  check_round_trip(text.data, text.len);
  clv_bytes_done(&text);
  static const char *const shipped[] = {"deploy/sessions/fashion-mnist.yaml",
                                        "deploy/sessions/image-folder.yaml",
                                        "deploy/sessions/two-hosts.yaml",
                                        "deploy/sessions/resnet50-two-stages.yaml",
                                        "deploy/sessions/resnet18-fashion-mnist.yaml",
                                        "deploy/sessions/residual.yaml"};
  for (size_t i = 0; i < CLV_COUNT(shipped); i++) {
    clv_session_config *c = NULL;
    if (clv_session_config_load(shipped[i], NULL, &c, &err)) fail_msg("%s", err.text);
    clv_session_config_free(c);
    if (clv_file_read(shipped[i], 1 << 20, &text, &err)) fail_msg("%s", err.text);
    check_round_trip(text.data, text.len);
    clv_bytes_done(&text);
  }
}

static void enum_values_have_their_config_names(void **state) {
  (void)state;
  assert_string_equal(clv_loss_name(CLV_LOSS_BCE_WITH_LOGITS), "bce_with_logits");
  assert_string_equal(clv_compute_name(CLV_COMPUTE_BF16), "bf16");
  assert_string_equal(clv_pipeline_name(CLV_PIPE_1F1B), "1f1b");
  assert_string_equal(clv_arch_name(CLV_ARCH_LENET), "lenet");
}

static void public_config_omits_paths_and_addresses(void **state) {
  (void)state;
  static const char *const omitted_parts[] = {"/",     ".pem",      ".gz",   "gpu1.example",
                                              ":7443", "127.0.0.1", "vocab", "seed"};
  const char *sets[] = {"metrics={listen: 127.0.0.1:9102}",
                        "data={format: text, train: [t], tokenizer: {file: vocab.txt}}",
                        "model={hf: bert, head: none}",
                        "pipeline={file: a.sched, schedule: custom}",
                        "train.seed=7",
                        "checkpoint.dir=there",
                        "stages.0.layers=0..1",
                        "stages.1.layers=2..3"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_accepted(session_text, &overrides);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err = {0};
  assert_int_equal(clv_session_config_write_public(c, &text, &err), CLV_OK);
  assert_non_null(strstr(text.data, "batch: 32"));
  assert_non_null(strstr(text.data, "head: none"));
  for (size_t i = 0; i < CLV_COUNT(omitted_parts); i++)
    if (strstr(text.data, omitted_parts[i])) fail_msg("%s is in:\n%s", omitted_parts[i], text.data);
  assert_true(clv_session_key_changes_records("data.images.crop"));
  assert_false(clv_session_key_changes_records("train.batch"));
}

static void checkpoint_interval_round_trips(void **state) {
  (void)state;
  const char *sets[] = {"checkpoint.every=10m", "checkpoint.home=never"};
  const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
  CLV_AUTO(clv_session_config_freep)
  clv_session_config *c = parse_accepted(session_text, &overrides),
                     *none = parse_accepted(session_text, NULL);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, plain = {0};
  clv_err err = {0};
  assert_int_equal(c->checkpoint.every_steps, 0);
  assert_int_equal(clv_session_checkpoint_every_ms(c), 600000);
  assert_false(clv_session_checkpoint_is_auto(c));
  assert_int_equal(clv_session_checkpoint_home(c), CLV_HOME_NEVER);
  assert_int_equal(clv_session_config_write(c, &text, &err), CLV_OK);
  CLV_AUTO(clv_session_config_freep) clv_session_config *again = parse_accepted(text.data, NULL);
  assert_int_equal(again->checkpoint.every_steps, 0);
  assert_string_equal(again->checkpoint.every, "10m");
  assert_int_equal(clv_session_checkpoint_home(none), CLV_HOME_END);
  assert_int_equal(clv_session_checkpoint_every_ms(none), 0);
  assert_int_equal(clv_session_config_write(none, &plain, &err), CLV_OK);
  assert_null(strstr(plain.data, "home:"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(checkpoint_interval_round_trips),
    cmocka_unit_test(decimal_numbers_parse_to_the_exact_double),
    cmocka_unit_test(number_notations_give_the_same_value),
    cmocka_unit_test(seed_forms_set_key_and_guessability),
    cmocka_unit_test(old_keys_are_accepted_and_written_under_new_names),
    cmocka_unit_test(size_and_duration_units_are_converted),
    cmocka_unit_test(auto_micro_batches_round_trips),
    cmocka_unit_test(omitted_session_keys_have_their_defaults),
    cmocka_unit_test(stages_layers_and_attributes_are_read),
    cmocka_unit_test(layer_parallel_key_round_trips),
    cmocka_unit_test(numbered_layer_ranges_are_read),
    cmocka_unit_test(named_layer_ranges_are_read),
    cmocka_unit_test(relative_paths_resolve_against_the_session_file),
    cmocka_unit_test(image_keys_are_read_with_defaults),
    cmocka_unit_test(tensorboard_accepts_a_folder_or_a_boolean),
    cmocka_unit_test(stages_inherit_the_session_transfer),
    cmocka_unit_test(set_overrides_environment_overrides_file),
    cmocka_unit_test(overrides_reach_nested_keys),
    cmocka_unit_test(invalid_overrides_are_refused),
    cmocka_unit_test(written_session_config_reads_back_equal),
    cmocka_unit_test(overlong_joined_paths_are_refused),
    cmocka_unit_test(quoted_and_extreme_values_are_read),
    cmocka_unit_test(example_and_shipped_session_files_load),
    cmocka_unit_test(enum_values_have_their_config_names),
    cmocka_unit_test(public_config_omits_paths_and_addresses),
};

int main(void) { return cmocka_run_group_tests(tests, NULL, NULL); }
