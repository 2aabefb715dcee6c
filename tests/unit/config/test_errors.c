/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests every class of error in a session file, with its exact text and position.
 */
#include <stdio.h>

#include "tests/unit/config/config_test.h"

static void unknown_keys_are_refused_with_a_suggestion(void **state) {
  (void)state;
  assert_edit_refused("train: {batch", "train: {bacth",
                      "/etc/cleave/s.yaml:15:9: unknown key 'train.bacth', did you mean 'batch'?");
  assert_edit_refused(
      "loss:", "losss:", "/etc/cleave/s.yaml:14:1: unknown key 'losss', did you mean 'loss'?");
  assert_edit_refused(
      "    at: gpu1\n", "    at: gpu1\n    threds: 2\n",
      "/etc/cleave/s.yaml:13:5: unknown key 'stages.1.threds', did you mean 'threads'?");
  assert_edit_refused("batch: 32,", "batch: 32, lr: 0.1,",
                      "/etc/cleave/s.yaml:15:20: unknown key 'train.lr', did you mean "
                      "'train.optimizer.lr'?");
  assert_edit_refused(
      "tls: {", "tls: {quux: 1, ",
      "/etc/cleave/s.yaml:3:7: unknown key 'tls.quux', known here: ca, cert, key, crl");
  assert_edit_refused(
      "{ca:", "{\"*\": 1, ca:",
      "/etc/cleave/s.yaml:3:7: unknown key 'tls.*', known here: ca, cert, key, crl");
  assert_edit_refused("train: [a.gz", "documents: {window: 9}, train: [a.gz",
                      "/etc/cleave/s.yaml:6:33: unknown key 'data.documents.window', known here: "
                      "labels_of, labels, max_tokens, stride, seconds, memory_mib");
}

static void duplicate_keys_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "name: small\n", "name: small\nname: other\n",
      "/etc/cleave/s.yaml:3:1: duplicate key 'name', first given at line 2: remove one of them");
  assert_edit_refused(
      "out: 8", "out: 8, out: 9",
      "/etc/cleave/s.yaml:10:35: duplicate key 'out', first given at line 10: remove one of them");
  assert_edit_refused(
      "    at: gpu1\n", "    at: gpu1\n    \"at\": gpu1\n",
      "/etc/cleave/s.yaml:13:5: duplicate key 'at', first given at line 12: remove one of them");
}

static void old_key_beside_the_new_one_is_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "loss:", "limits: {credit: 1MiB, receive_window: 1MiB}\nloss:",
      "/etc/cleave/s.yaml:14:10: 'limits.receive_window' is given twice: 'credit' is its "
      "old name, remove it");
}

static void scaling_of_tokens_is_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "[a.gz, b.gz]", "[a.gz, b.gz, c.gz], inputs: [ids, boxes], scale: 2",
      "/etc/cleave/s.yaml:6:77: data.scale does not go with data.inputs, which are taken "
      "as they are: remove it");
  assert_edit_refused(
      "[a.gz, b.gz]", "[a.gz, b.gz, c.gz], inputs: [ids, boxes], flatten: true",
      "/etc/cleave/s.yaml:6:79: data.flatten does not go with data.inputs, which are "
      "taken as they are: remove it");
  assert_edit_refused(
      "format: idx, train: [a.gz, b.gz]", "format: text, scale: 2, train: [a.csv]",
      "/etc/cleave/s.yaml:6:29: data.scale does not go with data.format text, whose "
      "records become tokens: remove it");
  assert_edit_refused(
      "format: idx, train: [a.gz, b.gz]",
      "format: documents, normalize: {mean: [1], std: [1]}, train: [a, b]",
      "/etc/cleave/s.yaml:6:27: data.normalize does not go with data.format documents, "
      "whose records become tokens: remove it");
}

static void wrong_types_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "batch: 32", "batch: four",
      "/etc/cleave/s.yaml:15:16: 'train.batch' must be a whole number from 1 to 1048576, "
      "got 'four'");
  assert_edit_refused(
      "batch: 32", "batch: \"32\"",
      "/etc/cleave/s.yaml:15:16: 'train.batch' must be a whole number from 1 to 1048576, "
      "got the text '32'");
  assert_edit_refused(
      "batch: 32", "batch: [32]",
      "/etc/cleave/s.yaml:15:16: 'train.batch' must be a whole number from 1 to 1048576, "
      "got a list");
  assert_edit_refused(
      "batch: 32", "batch: ",
      "/etc/cleave/s.yaml:15:9: 'train.batch' must be a whole number from 1 to 1048576, "
      "got nothing");
  assert_edit_refused("batch: 32", "batch: 32, shuffle: yes",
                      "/etc/cleave/s.yaml:15:29: 'train.shuffle' must be true or false, got 'yes'");
}

static void wrong_types_of_lists_and_maps_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "[a.gz, b.gz]", "a.gz",
      "/etc/cleave/s.yaml:6:28: 'data.train' must be a list of at least 1 texts, such as "
      "[train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz], got 'a.gz'");
  assert_edit_refused(
      "[a.gz, b.gz]", "[a.gz]",
      "/etc/cleave/s.yaml:6:21: 'data.train' must name two files, records and labels, got "
      "1");
  assert_edit_refused("[a.gz, b.gz]", "[a.gz, b.gz], inputs: [ids, boxes]",
                      "/etc/cleave/s.yaml:6:21: 'data.train' must name 3 files, one per name of "
                      "data.inputs and then the labels, "
                      "got 2");
  assert_edit_refused(
      "[a.gz, b.gz]", "[a.gz, b.gz, c.gz], inputs: [ids, ids]",
      "/etc/cleave/s.yaml:6:48: data.inputs has 'ids' twice: give each input its own name");
  assert_edit_refused(
      "[a.gz, b.gz]", "[a.gz, {b: 1}]",
      "/etc/cleave/s.yaml:6:35: 'data.train' must be a list of at least 1 texts, such as "
      "[train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz], got a mapping");
  assert_edit_refused(
      "loss: {kind: cross_entropy}", "loss: cross_entropy",
      "/etc/cleave/s.yaml:14:7: 'loss' must be a mapping of keys, got 'cross_entropy'");
  assert_edit_refused(
      "layers: [{op: linear, out: 2}]", "layers: {op: linear, out: 2}",
      "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of at least 1 entries, "
      "got a mapping");
  assert_edit_refused(
      "{op: relu}", "relu",
      "/etc/cleave/s.yaml:10:36: 'stages.0.layers.1' must be a mapping of keys, such as "
      "`{op: linear}`");
  assert_refused("- a\n", NULL, "/etc/cleave/s.yaml:1:1: a session.yaml is a mapping of keys");
}

static void malformed_numbers_are_refused(void **state) {
  (void)state;
  static const char *const bad_reals[] = {"1e-3x", "0x10",  ".",    "-",     "1e",
                                          "1e+",   "nan",   ".inf", "inf",   "1_000",
                                          "1,5",   "0.1.2", "- 1",  "1e999", "--1"};
  for (size_t i = 0; i < sizeof bad_reals / sizeof bad_reals[0]; i++) {
    char to[64], message[200];
    snprintf(message, sizeof message,
             "--set train.optimizer.lr=%s: 'train.optimizer.lr' must be a number above 0, got '%s'",
             bad_reals[i], bad_reals[i]);
    snprintf(to, sizeof to, "train.optimizer.lr=%s", bad_reals[i]);
    assert_set_refused(to, message);
  }
  assert_edit_refused(
      "lr: 0.1", "lr: 1e-3x",
      "/etc/cleave/s.yaml:15:47: 'train.optimizer.lr' must be a number above 0, got '1e-3x'");
  static const char *const bad_integers[] = {"3z", "1.0", "1e2", "-1",
                                             "+1", "010", " 1",  "4294967296x"};
  for (size_t i = 0; i < sizeof bad_integers / sizeof bad_integers[0]; i++) {
    char set[64], message[200];
    snprintf(set, sizeof set, "train.batch=%s", bad_integers[i]);
    snprintf(message, sizeof message,
             "--set %s: 'train.batch' must be a whole number from 1 to 1048576, got '%s'", set,
             bad_integers[i]);
    assert_set_refused(set, message);
  }
}

static void values_out_of_range_are_refused(void **state) {
  (void)state;
  assert_edit_refused("version: 1", "version: 2",
                      "/etc/cleave/s.yaml:1:10: 'version' must be 1, got '2'");
  assert_edit_refused(
      "batch: 32", "batch: 0",
      "/etc/cleave/s.yaml:15:16: 'train.batch' must be a whole number from 1 to 1048576, "
      "got '0'");
  assert_edit_refused(
      "    at: gpu1\n", "    at: gpu1\n    threads: 257\n",
      "/etc/cleave/s.yaml:13:14: 'stages.1.threads' must be a whole number from 1 to 256, "
      "got '257'");
  assert_edit_refused(
      "lr: 0.1", "lr: 0.0",
      "/etc/cleave/s.yaml:15:47: 'train.optimizer.lr' must be a number above 0, got '0.0'");
}

static void number_overrides_out_of_range_are_refused(void **state) {
  (void)state;
  assert_set_refused(
      "data.validation.fraction=0.51",
      "--set data.validation.fraction=0.51: 'data.validation.fraction' must be a number from "
      "0 to 0.5, got '0.51'");
  assert_set_refused(
      "pipeline.micro_batches=4097",
      "--set pipeline.micro_batches=4097: 'pipeline.micro_batches' must be auto or a whole number "
      "from 1 to 4096, got '4097'");
  assert_set_refused("train.seed=18446744073709551616",
                     "--set train.seed=18446744073709551616: 'train.seed' must be 32 hexadecimal "
                     "digits or a whole number below 2^64, got '18446744073709551616'");
  assert_set_refused("train.seed=00112233445566778899aabbccddeef",
                     "--set train.seed=00112233445566778899aabbccddeef: 'train.seed' must be 32 "
                     "hexadecimal digits or a whole number below 2^64, got "
                     "'00112233445566778899aabbccddeef'");
}

static void durations_and_sizes_out_of_range_are_refused(void **state) {
  (void)state;
  assert_set_refused(
      "limits.step_timeout=25h",
      "--set limits.step_timeout=25h: 'limits.step_timeout' must be a duration from 1ms to "
      "24h, got '25h'");
  assert_set_refused(
      "limits.step_timeout=60",
      "--set limits.step_timeout=60: 'limits.step_timeout' must be a duration from 1ms to "
      "24h, got '60'");
  assert_set_refused(
      "limits.reference_lease=999ms",
      "--set limits.reference_lease=999ms: 'limits.reference_lease' must be a duration from "
      "1s to 24h, got '999ms'");
  assert_set_refused(
      "limits.reference_lease=86401s",
      "--set limits.reference_lease=86401s: 'limits.reference_lease' must be a duration from "
      "1s to 24h, got '86401s'");
  assert_set_refused("limits.lease=300s",
                     "--set limits.lease=300s: limits.lease of 300s has to be shorter than "
                     "limits.reference_lease, 300s: lower the one or raise the other");
  const char *set = "train.bacth=1", *label = "--grid train.bacth=1";
  assert_refused(session_text,
                 &(clv_config_overrides){.sets = &set, .n_sets = 1, .set_labels = &label},
                 "--grid train.bacth=1: unknown key 'train.bacth', did you mean 'batch'?");
  assert_set_refused("privacy.labels=master",
                     "--set privacy.labels=master: unknown key 'privacy.labels', did you mean "
                     "'labels_readable' or 'labels_leave'?");
  assert_set_refused(
      "limits.reference_lease=short",
      "--set limits.reference_lease=short: 'limits.reference_lease' must be a duration from "
      "1s to 24h, got 'short'");
  assert_set_refused(
      "limits.receive_window=64MiBs",
      "--set limits.receive_window=64MiBs: 'limits.receive_window' must be a size from "
      "64KiB to 1TiB, got "
      "'64MiBs'");
  assert_set_refused(
      "limits.receive_window=0x10MiB",
      "--set limits.receive_window=0x10MiB: 'limits.receive_window' must be a size from "
      "64KiB to 1TiB, got "
      "'0x10MiB'");
}

#define CLV_DATA_FORMAT(NAME, name, ...) #name ", "
static const char csv_message[] =
    "/etc/cleave/s.yaml:6:16: 'data.format' must be one of "
#include "common/base/settings/formats.def"
    "got 'csv'; a CSV is a table";
#define CLV_DATA_FORMAT(NAME, name, ...) #name ", "
static const char no_match_message[] =
    "/etc/cleave/s.yaml:6:16: 'data.format' must be one of "
#include "common/base/settings/formats.def"
    "got the text ''";

#define CLV_DATA_FORMAT(NAME, name, ...) #name ", "
static const char folder_message[] =
    "/etc/cleave/s.yaml:6:16: 'data.format' must be one of "
#include "common/base/settings/formats.def"
    "got 'Image_Folder', did you mean 'images'?";

static void unknown_enum_values_are_refused(void **state) {
  (void)state;
  assert_edit_refused("format: idx", "format: Image_Folder", folder_message);
  assert_edit_refused(
      "kind: cross_entropy", "kind: crossentropy",
      "/etc/cleave/s.yaml:14:14: 'loss.kind' must be one of cross_entropy, nll, mse, bce, "
      "bce_with_logits, smooth_l1, huber, quantile, poisson, focal, targets, got 'crossentropy', "
      "did you "
      "mean 'cross_entropy'?");
  assert_edit_refused(
      "kind: sgd", "kind: rmspop",
      "/etc/cleave/s.yaml:15:38: 'train.optimizer.kind' must be one of sgd, adam, adamw, "
      "adagrad, rmsprop, adamax, got 'rmspop', did you mean 'rmsprop'?");
  assert_edit_refused("format: idx", "format: csv", csv_message);
  assert_edit_refused("format: idx", "format: \"\"", no_match_message);
}

static void missing_keys_are_refused_with_an_example(void **state) {
  (void)state;
  assert_edit_refused("batch: 32, ", "",
                      "/etc/cleave/s.yaml:15:1: missing key 'train.batch': Records per step. For "
                      "example: `batch: 128`");
  assert_edit_refused(
      "name: small\n", "",
      "/etc/cleave/s.yaml:1:1: missing key 'name': Name of the session; its run folder is "
      "called after it. For example: `name: my-session`");
  assert_edit_refused(
      "    at: gpu1\n", "",
      "/etc/cleave/s.yaml:11:5: missing key 'stages.1.at': Node that runs the stage: master, "
      "or the name of a worker. For example: `at: master`");
  assert_edit_refused(
      ", identity: \"spiffe://acme/worker/gpu1\"", "",
      "/etc/cleave/s.yaml:5:3: missing key 'workers.gpu1.identity': URI that the "
      "worker's certificate must contain. Nothing is sent to another peer. For example: "
      "`identity: spiffe://example.net/worker/worker-1`");
  assert_edit_refused(
      "op: relu", "name: relu",
      "/etc/cleave/s.yaml:10:36: missing key 'stages.0.layers.1.op': The operation, such "
      "as conv2d or relu; "
      "cleave-ops(7) has all of them. For example: `op: linear`");
  assert_edit_refused(
      ", optimizer: {kind: sgd, lr: 0.1}", "",
      "/etc/cleave/s.yaml:15:1: missing key 'train.optimizer': The optimiser, the same on "
      "every stage; formulas as in PyTorch. For example: `optimizer: {kind: adam, lr: "
      "0.001}`");
  assert_edit_refused(
      "    layers: [{op: linear, out: 2}]\n", "",
      "/etc/cleave/s.yaml:11:5: missing key 'stages.1.layers': Its layers, first to last, "
      "or a range (below). For example: `layers: [{op: linear, out: 10}]`");
}

static void malformed_names_and_addresses_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "name: small", "name: a/b",
      "/etc/cleave/s.yaml:2:7: 'name' must be a name of 1 to 64 letters, digits, '.', '_' or "
      "'-', got 'a/b'");
  assert_edit_refused("gpu1.example.net:7443", "gpu1.example.net",
                      "/etc/cleave/s.yaml:5:19: 'workers.gpu1.address' must be an address such as "
                      "host:7443, got the text 'gpu1.example.net'");
  assert_edit_refused("gpu1.example.net:7443", "gpu1:0",
                      "/etc/cleave/s.yaml:5:19: 'workers.gpu1.address' must be an address such as "
                      "host:7443, got the text 'gpu1:0'");
  assert_edit_refused("spiffe://acme/worker/gpu1", "gpu1",
                      "/etc/cleave/s.yaml:5:54: 'workers.gpu1.identity' must be a URI such as "
                      "spiffe://example.org/worker/gpu1, got the text 'gpu1'");
  assert_edit_refused(
      "gpu1: {address", "gpu 1: {address",
      "/etc/cleave/s.yaml:5:3: 'workers.gpu 1' must have a name of 1 to 64 letters, digits, "
      "'_' or '-'");
  assert_edit_refused(
      "    at: gpu1\n", "    at: gpu1\n    device: cuda:64\n",
      "/etc/cleave/s.yaml:13:13: 'stages.1.device' must be cpu, cpu:0 to cpu:7, cuda, "
      "cuda:0 to cuda:63, or auto, which is what its node computes on, got 'cuda:64'");
  assert_edit_refused("    at: gpu1\n", "    at: gpu1\n    weights: {artifact: w, sha256: 00}\n",
                      "/etc/cleave/s.yaml:13:36: 'stages.1.weights.sha256' must be a SHA-256 of 64 "
                      "hexadecimal digits, got '00'");
  assert_edit_refused(
      "name: small", "name: \"a\\eb\"",
      "/etc/cleave/s.yaml:2:7: 'name' must be a name of 1 to 64 letters, digits, '.', '_' or "
      "'-', got the text 'a?b'");
}

static void malformed_layer_attributes_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "out: 8", "out: 8x",
      "/etc/cleave/s.yaml:10:32: 'stages.0.layers.0.out' starts like a number but is none: "
      "'8x' (quote it if it is a text)");
  assert_edit_refused(
      "out: 8", "out: 99999999999999999999",
      "/etc/cleave/s.yaml:10:32: 'stages.0.layers.0.out' starts like a number but is none: "
      "'99999999999999999999' (quote it if it is a text)");
  assert_edit_refused(
      "out: 8", "out: 1e999",
      "/etc/cleave/s.yaml:10:32: 'stages.0.layers.0.out' starts like a number but is none: "
      "'1e999' (quote it if it is a text)");
  assert_edit_refused(
      "out: 8", "out:",
      "/etc/cleave/s.yaml:10:27: 'stages.0.layers.0.out' must be a number, a text, true, "
      "false or a list of whole numbers");
  assert_edit_refused(
      "out: 8", "out: {a: 1}",
      "/etc/cleave/s.yaml:10:32: 'stages.0.layers.0.out' must be a number, a text, true, "
      "false or a list of whole numbers");
  assert_edit_refused(
      "out: 8", "out: [1, 2.5]",
      "/etc/cleave/s.yaml:10:36: 'stages.0.layers.0.out' must be a list of whole numbers");
  assert_edit_refused(
      "out: 8", "Out: 8",
      "/etc/cleave/s.yaml:10:27: 'stages.0.layers.0.Out' is no attribute: a name is a word "
      "of 1 to 64 lower-case letters, digits or '_'");
  assert_edit_refused(
      "out: 8", "out 8",
      "/etc/cleave/s.yaml:10:27: 'stages.0.layers.0.out 8' is no attribute: is a ':' "
      "missing behind its name?");
}

static void keys_of_another_loss_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "loss: {kind: cross_entropy}", "loss: {kind: nll, label_smoothing: 0.1}",
      "/etc/cleave/s.yaml:14:1: loss.label_smoothing goes with cross_entropy, and not with nll: "
      "remove it");
  assert_edit_refused("loss: {kind: cross_entropy}", "loss: {kind: smooth_l1, delta: 2}",
                      "/etc/cleave/s.yaml:14:1: loss.delta goes with huber, and not with "
                      "smooth_l1: remove it");
  assert_edit_refused("loss: {kind: cross_entropy}", "loss: {kind: bce, class_weights: balanced}",
                      "/etc/cleave/s.yaml:14:1: loss.class_weights goes with cross_entropy and "
                      "focal, and not with bce: remove it");
  assert_edit_refused("loss: {kind: cross_entropy}", "loss: {kind: mse, scores: [mae, f1]}",
                      "/etc/cleave/s.yaml:14:19: loss.scores: f1 does not go with mse, whose "
                      "scores are mae, rmse and r2");
  assert_edit_refused("loss: {kind: cross_entropy}",
                      "loss: {kind: focal, weight: [1, 2], class_weights: balanced}",
                      "/etc/cleave/s.yaml:14:52: loss.class_weights and loss.weight exclude each "
                      "other: leave one out");
}

static void sampling_that_other_keys_contradict_is_refused(void **state) {
  static const struct {
    const char *set, *text;
  } cases[] = {
      {"data.sampling_weights=[1, 2]",
       "--set data.sampling_weights=[1, 2]: data.sampling and data.sampling_weights exclude each "
       "other: leave one out"},
      {"train.shuffle=false",
       "--set data.sampling=balanced: data.sampling draws records at random: leave train.shuffle: "
       "false out"},
      {"loss.kind=mse",
       "--set data.sampling=balanced: data.sampling goes by classes, and this loss has numbers for "
       "labels: leave it out"},
      {"loss.class_weights=balanced",
       "--set data.sampling=balanced: data.sampling and loss.class_weights: balanced would weigh "
       "rare classes twice: leave one out"},
      {"stages.0.cache=true",
       "--set data.sampling=balanced: data.sampling does not go with stages[].cache, which needs "
       "each record once: leave one out"},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    const char *sets[] = {"data.sampling=balanced", cases[i].set};
    const clv_config_overrides overrides = {.sets = sets, .n_sets = CLV_COUNT(sets)};
    assert_refused(session_text, &overrides, cases[i].text);
  }
}

static void unknown_workers_and_bad_privacy_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "at: gpu1", "at: gpu2",
      "/etc/cleave/s.yaml:12:9: 'stages.1.at' names the unknown worker 'gpu2', did you mean "
      "'gpu1'?");
  assert_edit_refused(
      "at: gpu1", "at: mastr",
      "/etc/cleave/s.yaml:12:9: 'stages.1.at' names the unknown worker 'mastr', did you mean "
      "'master'?");
  assert_edit_refused(
      "at: gpu1", "at: somewhere-else",
      "/etc/cleave/s.yaml:12:9: 'stages.1.at' names the unknown worker 'somewhere-else': use "
      "master or a name under workers");
  assert_edit_refused(
      "at: master", "at: gpu1",
      "/etc/cleave/s.yaml:9:9: the first stage 'front' is at 'gpu1', but raw input must not "
      "leave the master: put it at master, or set privacy.raw_input_leaves: true");
  assert_edit_refused("loss: {kind: cross_entropy}",
                      "loss: {kind: cross_entropy, ignore_index: 0.5}",
                      "/etc/cleave/s.yaml:14:43: 'loss.ignore_index' must be a whole number");
  assert_edit_refused("loss: {kind: cross_entropy}", "loss: {kind: cross_entropy, weight: [0, 0]}",
                      "/etc/cleave/s.yaml:14:29: 'loss.weight' is 0 for every class");
  assert_edit_refused(
      "loss: {kind: cross_entropy}", "loss: {kind: cross_entropy, at: gpu1}",
      "/etc/cleave/s.yaml:14:33: the loss is at 'gpu1', but labels must not leave the "
      "master: put it at master, or set privacy.labels_leave: true");
  assert_edit_refused(
      "loss: {kind: cross_entropy}", "loss: {kind: cross_entropy, at: gpu}",
      "/etc/cleave/s.yaml:14:33: 'loss.at' names the unknown worker 'gpu', did you mean "
      "'gpu1'?");
  assert_edit_refused(
      "tls: {ca: ca.pem, cert: m.pem, key: m.key}\n", "",
      "/etc/cleave/s.yaml:11:9: this stage runs at worker 'gpu1', which needs tls: {ca, "
      "cert, key}");
  assert_edit_refused("gpu1: {address", "master: {address",
                      "/etc/cleave/s.yaml:5:3: 'master' cannot be the name of a worker");
  assert_edit_refused("name: back", "name: front",
                      "/etc/cleave/s.yaml:11:5: two stages are called 'front'");
}

static void conflicting_layers_and_model_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "[{op: linear, out: 2}]", "0..1",
      "/etc/cleave/s.yaml:13:13: stage 'back' takes a range of layers, but there is no "
      "model");
  assert_edit_refused(
      "loss:", "model: {arch: mlp}\nloss:",
      "/etc/cleave/s.yaml:10:5: stage 'front' lists its own layers, but there is a model "
      "too: give a range such as 0..3");
  assert_edit_refused(
      "[{op: linear, out: 2}]", "3..1",
      "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of layers or a range such "
      "as 0..3 or conv1..layer2 (layer 6 alone is 6..6), got '3..1'");
  assert_edit_refused(
      "[{op: linear, out: 2}]", "5",
      "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of layers or a range such "
      "as 0..3 or conv1..layer2 (layer 6 alone is 6..6), got '5'");
  static const char *const bad_ranges[] = {"conv1..",        "..fc", "a b..c",
                                           "4294967296..fc", "1..",  "ä..b"};
  for (size_t i = 0; i < CLV_COUNT(bad_ranges); i++) {
    char message[160];
    snprintf(message, sizeof message,
             "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of layers or a range such "
             "as 0..3 or conv1..layer2 (layer 6 alone is 6..6), got '%s'",
             bad_ranges[i]);
    assert_edit_refused("[{op: linear, out: 2}]", bad_ranges[i], message);
  }
  assert_edit_refused(
      "[{op: linear, out: 2}]", "[]",
      "/etc/cleave/s.yaml:13:13: 'stages.1.layers' must be a list of at least 1 entries, got "
      "0");
}

static void model_without_exactly_one_source_is_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "loss:", "model: {arch: mlp, layers: [{op: relu}]}\nloss:",
      "/etc/cleave/s.yaml:14:1: a model has an arch, layers or hf, and no two of them");
  assert_edit_refused(
      "loss:", "model: {hf: a, layers: [{op: relu}], head: token}\nloss:",
      "/etc/cleave/s.yaml:14:1: a model has an arch, layers or hf, and no two of them");
  assert_edit_refused(
      "loss:", "model: {hf: a}\nloss:",
      "/etc/cleave/s.yaml:14:13: model.hf needs a head: none, sequence, token, masked or "
      "causal");
  assert_edit_refused("loss:", "model: {arch: mlp, head: token}\nloss:",
                      "/etc/cleave/s.yaml:14:26: model.head belongs to model.hf");
  assert_edit_refused(
      "loss:", "model: {layers: [{op: relu}], hidden: 3}\nloss:",
      "/etc/cleave/s.yaml:14:31: unknown key 'model.hidden': attributes belong to an arch");
  assert_edit_refused(
      "loss:", "model: {}\nloss:", "/etc/cleave/s.yaml:14:1: a model needs an arch, layers or hf");
}

/* Asserts that two stages with these `layers` over a model of three layers are refused. */
static void assert_ranges_refused(const char *front, const char *back, const char *message) {
  char *with_model = replace_in_session_text(
      session_text,
      "loss:", "model: {layers: [{op: linear, out: 2}, {op: relu}, {op: tanh}]}\nloss:");
  char *with_front =
      replace_in_session_text(with_model, "[{op: linear, out: 8}, {op: relu}]", front);
  char *text = replace_in_session_text(with_front, "[{op: linear, out: 2}]\nmodel", back);
  assert_refused(text, NULL, message);
  free(with_model);
  free(with_front);
  free(text);
}

static void layer_ranges_must_cover_the_model(void **state) {
  (void)state;
  assert_ranges_refused(
      "0..0", "2..2\nmodel",
      "/etc/cleave/s.yaml:13:13: stage 'back' starts with layer 2, but layer 1 is next");
  assert_ranges_refused(
      "0..1", "2..3\nmodel",
      "/etc/cleave/s.yaml:13:13: stage 'back' ends with layer 3, but the model ends with 2");
  assert_ranges_refused("0..0", "1..1\nmodel",
                        "/etc/cleave/s.yaml:14:1: no stage has layer 2 of the model");
}

static void conflicting_weight_sources_are_refused(void **state) {
  (void)state;
  assert_edit_refused("    at: gpu1\n", "    at: gpu1\n    weights: {file: a, artifact: b}\n",
                      "/etc/cleave/s.yaml:13:5: stage 'back' takes its weights from a file, from a "
                      "folder or from an artifact: give one of them");
  assert_edit_refused("    at: gpu1\n", "    at: gpu1\n    weights: {new: [b]}\n",
                      "/etc/cleave/s.yaml:13:15: stage 'back': 'new' goes with weights.folder or "
                      "weights.artifact");
  assert_edit_refused(
      "    at: master\n", "    at: master\n    weights: {artifact: b}\n",
      "/etc/cleave/s.yaml:10:5: stage 'front' is at master, which has no artifacts: use "
      "weights.file");
  assert_edit_refused(
      "    at: master\n",
      "    at: master\n    weights: {sha256: "
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}\n",
      "/etc/cleave/s.yaml:10:5: stage 'front' gives a sha256, but neither file nor artifact");
  assert_edit_refused(
      "    at: gpu1\n", "    at: gpu1\n    weights: {artifact: b, secret: true}\n",
      "/etc/cleave/s.yaml:13:5: stage 'back' says secret: true of no file: it belongs to "
      "weights.file");
  assert_edit_refused(
      "    at: master\n    layers: [{op: linear, out: 8}, {op: relu}]\n"
      "  - name: back\n    at: gpu1\n",
      "    at: master\n    weights: {file: a, secret: true}\n"
      "    layers: [{op: linear, out: 8}, {op: relu}]\n"
      "  - name: back\n    at: gpu1\n    weights: {file: a}\n",
      "/etc/cleave/s.yaml:14:5: stages 'front' and 'back' take their weights from one "
      "file, and only one of them says secret: true");
}

static void inconsistent_best_checkpoint_is_refused(void **state) {
  (void)state;
  assert_edit_refused("loss:", "checkpoint: {best: validation.loss}\nloss:",
                      "/etc/cleave/s.yaml:14:20: checkpoint.best needs validations: set "
                      "data.validation.fraction, as in 0.1");
  assert_edit_refused(
      "[a.gz, b.gz]}",
      "[a.gz, b.gz], validation: {fraction: 0.1}}\ncheckpoint: {best: validation.loss, "
      "mode: max}",
      "/etc/cleave/s.yaml:7:20: the best validation.loss is the smallest: set "
      "checkpoint.mode: min, or leave it out");
  char *with_mse = replace_in_session_text(session_text, "cross_entropy", "mse");
  char *text = replace_in_session_text(with_mse, "[a.gz, b.gz]}",
                                       "[a.gz, b.gz], validation: {fraction: 0.1}}\n"
                                       "checkpoint: {best: validation.accuracy}");
  assert_refused(
      text, NULL,
      "/etc/cleave/s.yaml:7:20: mse has no accuracy: set checkpoint.best: validation.loss");
  free(text);
  free(with_mse);
  assert_set_refused(
      "checkpoint.best=loss",
      "--set checkpoint.best=loss: 'checkpoint.best' must be one of validation.loss, "
      "validation.accuracy, validation.f1_micro, validation.f1_macro, validation.auc, "
      "validation.perplexity, validation.average_precision, validation.sensitivity, "
      "validation.ece, validation.mae, validation.rmse, validation.r2, got 'loss'");
}

static void averages_need_a_decay_below_1(void **state) {
  (void)state;
  assert_set_refused("train.ema=1",
                     "--set train.ema=1: train.ema is 1: set it below 1, as in 0.999");
  assert_set_refused(
      "train.ema_warmup=true",
      "--set train.ema_warmup=true: train.ema_warmup needs an average: set train.ema, as in 0.999");
}

static void early_stopping_without_its_score_is_refused(void **state) {
  (void)state;
  assert_set_refused(
      "train.early_stopping={patience: 3}",
      "--set train.early_stopping={patience: 3}: missing key "
      "'train.early_stopping.score': Number that has to improve: loss, perplexity and "
      "errors fall, the others rise. All but loss and accuracy have to be in "
      "loss.scores. Of a target it is validation.TARGET.auc and so on. For example: "
      "`score: validation.loss`");
  assert_set_refused("train.early_stopping={score: validation.loss}",
                     "--set train.early_stopping={score: validation.loss}: "
                     "train.early_stopping.score needs validations: set "
                     "data.validation.fraction, as in 0.1");
  assert_edit_refused(
      "[a.gz, b.gz]}",
      "[a.gz, b.gz], validation: {fraction: 0.1}}\ncheckpoint: {best: validation.auc}",
      "/etc/cleave/s.yaml:7:20: checkpoint.best: validation.auc needs auc among loss.scores: add "
      "it there");
}

static void invalid_checkpoint_interval_is_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "loss:", "checkpoint: {every_steps: 5, every: auto}\nloss:",
      "/etc/cleave/s.yaml:14:37: checkpoint.every and checkpoint.every_steps exclude each "
      "other: leave one out");
  assert_set_refused(
      "checkpoint.every=10",
      "--set checkpoint.every=10: 'checkpoint.every' must be auto or a time from 1s to 7d, "
      "got '10'");
  assert_set_refused(
      "checkpoint.every=900ms",
      "--set checkpoint.every=900ms: 'checkpoint.every' must be auto or a time from 1s to 7d, "
      "got '900ms'");
}

static void conflicting_optimiser_options_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "lr: 0.1", "lr: 0.1, nesterov: true",
      "/etc/cleave/s.yaml:15:20: train.optimizer.nesterov needs a momentum above 0");
  assert_edit_refused("kind: sgd, lr: 0.1", "kind: adam, lr: 0.1, momentum: 0.9",
                      "/etc/cleave/s.yaml:15:20: adam has no train.optimizer.momentum");
  assert_edit_refused("kind: sgd, lr: 0.1", "kind: adagrad, lr: 0.1, alpha: 0.9",
                      "/etc/cleave/s.yaml:15:20: adagrad has no train.optimizer.alpha");
  assert_edit_refused("kind: sgd, lr: 0.1", "kind: adamax, lr: 0.1, centered: true",
                      "/etc/cleave/s.yaml:15:20: adamax has no train.optimizer.centered");
  assert_edit_refused("kind: sgd, lr: 0.1", "kind: rmsprop, lr: 0.1, lr_decay: 0.1",
                      "/etc/cleave/s.yaml:15:20: rmsprop has no train.optimizer.lr_decay");
  assert_edit_refused("kind: sgd, lr: 0.1", "kind: rmsprop, lr: 0.1, alpha: 1",
                      "/etc/cleave/s.yaml:15:20: train.optimizer.alpha must be below 1");
  assert_edit_refused("lr: 0.1", "lr: 0.1, betas: [0.9, 1]",
                      "/etc/cleave/s.yaml:15:20: train.optimizer.betas must be below 1");
  assert_edit_refused("batch: 32,", "batch: 32, schedule: {kind: step},",
                      "/etc/cleave/s.yaml:15:20: a step schedule needs train.schedule.step_size");
}

static void conflicting_pipeline_and_data_options_are_refused(void **state) {
  (void)state;
  assert_edit_refused(
      "loss:", "pipeline: {micro_batches: 33}\nloss:",
      "/etc/cleave/s.yaml:14:1: pipeline.micro_batches is 33, more than the 32 records of "
      "train.batch");
  assert_edit_refused(
      "loss:", "pipeline: {window: 0}\nloss:",
      "/etc/cleave/s.yaml:14:20: 'pipeline.window' must be auto, textbook or a whole "
      "number from 1 to 4096, got '0'");
  assert_edit_refused(
      "loss:", "pipeline: {schedule: custom}\nloss:",
      "/etc/cleave/s.yaml:14:1: pipeline.file and schedule: custom need each other");
  assert_edit_refused(
      "loss:", "pipeline: {schedule: pipedream, micro_batches: 2}\nloss:",
      "/etc/cleave/s.yaml:14:1: pipedream takes a step after each batch: micro_batches is "
      "1 (pipedream-2bw takes one after each micro_batches of them)");
  assert_edit_refused(
      "loss:", "pipeline: {schedule: pipedream, micro_batches: auto}\nloss:",
      "/etc/cleave/s.yaml:14:1: micro_batches: auto is not possible with schedule: pipedream, "
      "whose results depend on the number: give a number");
  assert_edit_refused(
      "loss:", "pipeline: {schedule: custom, file: a, micro_batches: auto}\nloss:",
      "/etc/cleave/s.yaml:14:1: micro_batches: auto is not possible with schedule: custom, "
      "whose results depend on the number: give a number");
  assert_edit_refused(
      "format: idx,", "format: idx, normalize: {mean: [0.5]},",
      "/etc/cleave/s.yaml:6:21: data.normalize has 1 means and 0 standard deviations");
  assert_edit_refused(
      "format: idx,", "format: idx, normalize: {mean: [0.5], std: [0]},",
      "/etc/cleave/s.yaml:6:52: 'data.normalize.std' must be a list of numbers above 0, got "
      "'0'");
}

static void missing_or_unreadable_files_are_refused(void **state) {
  (void)state;
  clv_session_config *config = NULL;
  clv_err err = {0};
  assert_int_equal(clv_session_config_load("/nowhere/s.yaml", NULL, &config, &err), CLV_NOT_FOUND);
  assert_string_equal(
      err.text,
      "/nowhere/s.yaml: No such file or directory; `cleave-master init` writes a first "
      "session.yaml");
  char path[] = "/tmp/cleave-config-XXXXXX";
  int fd = mkstemp(path);
  FILE *file = fdopen(fd, "w");
  assert_non_null(file);
  for (int i = 0; i < (1 << 20) / 60; i++) fprintf(file, "# %60d\n", i);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(clv_session_config_load(path, NULL, &config, &err), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "the limit is 1048576"));
  assert_null(config);
  remove(path);
}

static void inconsistent_image_options_are_refused(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{channels: 2}", "channels must be 1 or 3"},
      {"{train_crop: random}", "train_crop needs the size: set data.images.crop"},
      {"{crop: 8, pad: 2}", "pad belongs to train_crop: random"},
      {"{area: [0.5, 0.4]}", "area is [least, greatest]"},
      {"{ratio: [2, 1]}", "ratio is [least, greatest]"},
  };
  char to[96], message[160];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    snprintf(to, sizeof to, "format: images, train: [t], images: %s", cases[i][0]);
    snprintf(message, sizeof message, "/etc/cleave/s.yaml:6:36: data.images: %s", cases[i][1]);
    assert_edit_refused("format: idx, train: [a.gz, b.gz]", to, message);
  }
  assert_edit_refused("format: idx", "format: images",
                      "/etc/cleave/s.yaml:6:24: 'data.train' must name one folder of images, as in "
                      "[train], got 2 names");
}

/* Asserts that a session whose `data` has these keys is refused, and that `message` follows file,
 * line and column in the error. */
static void assert_data_refused(const char *data, const char *message) {
  char *text = replace_in_session_text(session_text, "format: idx, train: [a.gz, b.gz]", data);
  clv_session_config *config = NULL;
  clv_err err = {0};
  assert_int_equal(clv_session_config_parse("/s.yaml", text, strlen(text), NULL, &config, &err),
                   CLV_INVALID);
  assert_non_null(strstr(err.text, ": "));
  assert_string_equal(strstr(err.text, ": ") + 2, message);
  free(text);
}

static void options_of_a_vocabulary_are_refused_for_a_tokenizer_json(void **state) {
  (void)state;
  assert_data_refused(
      "format: text, train: [t], tokenizer: {file: t.json, lower_case: false}",
      "data.tokenizer.lower_case is of a vocab.txt, and /t.json has a normalizer of "
      "its own: remove the key");
  assert_data_refused(
      "format: text, train: [t], tokenizer: {file: t.json, accents: keep}",
      "data.tokenizer.accents is of a vocab.txt, and /t.json has a normalizer of its "
      "own: remove the key");
}

static void keys_of_another_format_are_refused(void **state) {
  char names[80], message[200];
  (void)state;
  static const char *const cases[][2] = {
      {"format: images, train: [t], inputs: [ids]",
       "data.inputs does not go with data.format images"},
      {"format: npy, train: [x, y], images: {crop: 20, flip: 0.5}",
       "data.images.crop does not go with data.format npy, but with images: remove it"},
      {"format: npy, train: [x, y], text: {column: a}",
       "data.text.column does not go with data.format npy, but with text: remove it"},
      {"format: idx, train: [x, y], documents: {stride: 3}",
       "data.documents.stride does not go with data.format idx, but with documents: remove it"},
      {"format: images, train: [t], tokenizer: {file: v}",
       "data.tokenizer.file does not go with data.format images, but with text and documents: "
       "remove it"},
      {"format: text, train: [t], tokenizer: {file: v}, images: {resize: 256}",
       "data.images.resize does not go with data.format text, but with images: remove it"},
      {"format: npy, train: [x, y], objective: causal",
       "data.objective goes with the formats text and documents"},
      {"format: text, train: [t], inputs: [boxes]",
       "data.inputs: there is no 'boxes'; there are ids and lengths"},
      {"format: documents, train: [t], inputs: [masks]",
       "data.inputs: there is no 'masks'; there are ids, lengths and boxes"},
      {"format: text, train: [t]",
       "data.format text needs data.tokenizer.file, a vocab.txt or a tokenizer.json"},
      {"format: text, train: [t], text: {column: label}, tokenizer: {file: v}",
       "data.text: column and label are both 'label'"},
      {"format: documents, train: [t, u]",
       "'data.train' must name one file of pages or one folder, as in [train.jsonl], got 2 names"},
      {"format: npy, train: [x, y], validation: {by: group}",
       "data.validation.by: group needs data.validation.group, a file with a whole number per "
       "record"},
      {"format: text, train: [t], tokenizer: {file: v}, validation: {by: group}",
       "data.validation.by: group needs data.validation.group, the name of a column"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) assert_data_refused(cases[i][0], cases[i][1]);
  clv_format_names(CLV_KEY_GROUP, names, sizeof names);
  snprintf(
      message, sizeof message,
      "data.validation.group goes with %s: documents are grouped by their files, images by the "
      "folders below their classes",
      names);
  assert_data_refused("format: images, train: [t], validation: {by: group, group: g}", message);
}

static void assert_failure_text(const clv_session_config *c, clv_config_pos pos, const char *text,
                                const char *message) {
  clv_err err = {0};
  assert_int_equal(clv_session_fail_at(c, pos, &err, "%s", text), CLV_INVALID);
  assert_string_equal(err.text, message);
}

static void later_failures_name_the_position(void **state) {
  (void)state;
  const char *set = "stages.1.layers=[{op: tanh}]";
  clv_err err = {0};
  clv_session_config *c =
      parse_accepted(session_text, &(clv_config_overrides){.sets = &set, .n_sets = 1});
  const clv_layer_spec *relu = &c->stages[0].layers[1];
  assert_int_equal(clv_session_fail_at(c, relu->pos, &err, "op %s after %d", relu->op, 8),
                   CLV_INVALID);
  assert_string_equal(err.text, "/etc/cleave/s.yaml:10:36: op relu after 8");
  assert_failure_text(c, c->stages[0].layers[0].attrs[0].pos, "bad out",
                      "/etc/cleave/s.yaml:10:27: bad out");
  assert_failure_text(c, c->workers[0].pos, "no such host", "/etc/cleave/s.yaml:5:3: no such host");
  assert_failure_text(c, c->data.train_pos, "truncated", "/etc/cleave/s.yaml:6:21: truncated");
  assert_failure_text(c, c->stages[1].layers[0].pos, "bad shape",
                      "--set stages.1.layers=[{op: tanh}]: bad shape");
  assert_failure_text(c, c->loss.at_pos, "nowhere", "/etc/cleave/s.yaml: nowhere");
  clv_session_config_free(c);
}

/* If the path of the file is so long that the error does not fit, the end of the message is
 * kept. */
static void long_path_does_not_cut_the_end_of_a_message(void **state) {
  (void)state;
  char file[900], fix[300];
  memset(file, 'd', sizeof file);
  memcpy(file + sizeof file - 8, "/s.yaml", 8);
  memset(fix, 'f', sizeof fix);
  memcpy(fix + sizeof fix - 5, " end", 5);
  clv_session_config *c = NULL;
  clv_err err = {0};
  assert_int_equal(
      clv_session_config_parse(file, session_text, strlen(session_text), NULL, &c, &err), CLV_OK);
  (void)clv_session_fail_at(c, c->workers[0].pos, &err, "%s", fix);
  assert_memory_equal(err.text, "...ddd", 6);
  assert_non_null(strstr(err.text, "d/s.yaml:5:3: fff"));
  assert_string_equal(err.text + strlen(err.text) - 6, "ff end");
  (void)clv_session_fail_at(c, c->workers[0].pos, &err, "%s%s", fix, fix);
  assert_non_null(strstr(err.text, "...ddd"));
  assert_non_null(strstr(err.text, "d/s.yaml:5:3: fff"));
  clv_session_config_free(c);
}

/* A session over a table with the targets `died` and `grade`. */
static const char targets_text[] =
    "version: 1\n"
    "name: small\n"
    "data:\n"
    "  format: table\n"
    "  train: [a.csv]\n"
    "  validation: {fraction: 0.2}\n"
    "  table: {columns: {age: {as: number}, died: {as: target}, grade: {as: target}}}\n"
    "stages: [{name: all, at: master, layers: [{op: linear, out: 4}]}]\n"
    "loss:\n"
    "  kind: targets\n"
    "  targets:\n"
    "    died: {kind: bce_with_logits, pos_weight: 2, scores: [auc]}\n"
    "    grade: {kind: cross_entropy, classes: 3, loss_weight: 0.5}\n"
    "checkpoint: {best: validation.died.auc}\n"
    "train: {batch: 32, optimizer: {kind: sgd, lr: 0.1}}\n";

static const struct {
  const char *from, *to, *message;
} target_cases[] = {
    {"died: {kind: bce_with_logits, pos_weight: 2", "died: {kind: mse, pos_weight: 2",
     "12:5: loss.targets.died.pos_weight goes with bce_with_logits, and not with mse: remove it"},
    {", classes: 3", "",
     "13:5: loss.targets.grade: cross_entropy needs classes, the number of classes (2 or more), "
     "which is how many outputs of the model belong to it"},
    {"pos_weight: 2", "classes: 2",
     "12:5: loss.targets.died.classes goes with losses of classes, and bce_with_logits has one "
     "output: remove it"},
    {"    grade: {kind", "    grad: {kind",
     "13:5: loss.targets.grad: data.table.columns has no target of this name: say `as: target` "
     "for it there"},
    {"age: {as: number}", "age: {as: number}, lived: {as: target}",
     "7:40: data.table.columns.lived: loss.targets has no loss for this target: add one, or say "
     "`as: ignore`"},
    {"age: {as: number}", "age: {as: category, scale: log}",
     "7:21: data.table.columns.age.scale goes with as: number and date, and the column is as: "
     "category: remove the key, or change `as`"},
    {"age: {as: number}", "age: {as: number, format: '%Y'}",
     "7:21: data.table.columns.age.format goes with as: date, and the column is as: number: remove "
     "the key, or change `as`"},
    {"age: {as: number}", "age: {as: number, missing: mask}",
     "7:21: data.table.columns.age.missing: mask goes with targets, if a record has several "
     "(loss.kind: targets)"},
    {"kind: targets", "kind: mse",
     "7:60: data.table.columns.grade: a second target: several go with loss.kind: targets, which "
     "has a loss for each"},
    {"pos_weight: 2", "weight: [1, 2]",
     "12:5: loss.targets.died.weight goes with cross_entropy and focal, and not with "
     "bce_with_logits: remove it"},
    {"classes: 3", "classes: 3, weight: [1, 2]",
     "13:5: loss.targets.grade.weight has 2 numbers, and the target has 3 classes: give a number "
     "for each"},
    {"classes: 3", "classes: 3, weight: [0, 0, 0]",
     "13:5: loss.targets.grade.weight is 0 for every class: give one a weight"},
    {"classes: 3", "classes: 3, weight: [1, 2, 3], class_weights: balanced",
     "13:5: loss.targets.grade has weight and class_weights, which exclude each other: leave one "
     "out"},
    {"kind: targets", "kind: targets\n  scores: [f1]",
     "11:3: loss.scores: each target has its own scores: list them in loss.targets.died.scores"},
    {"scores: [auc]", "scores: [mae]",
     "12:50: loss.targets.died.scores: mae does not go with bce_with_logits, whose scores are "
     "f1, "
     "auc, confusion, perplexity, average_precision, sensitivity and ece"},
    {"validation.died.auc", "validation.auc",
     "14:20: checkpoint.best: the targets have scores of their own: set checkpoint.best: "
     "validation.loss, or name one of them, as in validation.died.auc"},
    {"validation.died.auc", "validation.grade.f1_macro",
     "14:20: checkpoint.best: validation.grade.f1_macro needs f1 among "
     "loss.targets.grade.scores: "
     "add it there"},
    {"format: table", "format: table\n  sampling: balanced",
     "5:13: data.sampling goes by the class of a record, and one with several targets has a class "
     "of each: name the target with data.sampling_target, or set column, which reads weights"},
    {"format: table", "format: table\n  sampling: balanced\n  sampling_target: grad",
     "6:20: data.sampling_target: loss.targets has no 'grad': name one of its targets"},
    {"format: table", "format: table\n  sampling_target: grade",
     "5:20: data.sampling_target goes with data.sampling: balanced and data.sampling_weights: set "
     "one "
     "of them, or remove it"},
    {"fraction: 0.2", "fraction: 0.2, by: random, target: grade",
     "6:51: data.validation.target goes with data.validation.by: stratified and a fraction or "
     "folds, or "
     "with a limit by: stratified: remove it"},
    {"fraction: 0.2", "fraction: 0.2, target: age",
     "6:39: data.validation.target: loss.targets has no 'age': name one of its targets"},
};

static void targets_of_a_table_are_checked_with_their_place(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(target_cases); i++) {
    char *text = replace_in_session_text(targets_text, target_cases[i].from, target_cases[i].to);
    char message[400];
    snprintf(message, sizeof message, "/etc/cleave/s.yaml:%s", target_cases[i].message);
    assert_refused(text, NULL, message);
    free(text);
  }
}

static void mask_of_a_single_target_is_refused(void **state) {
  (void)state;
  assert_refused(
      "version: 1\n"
      "name: small\n"
      "data:\n"
      "  format: table\n"
      "  train: [a.csv]\n"
      "  table: {columns: {age: {as: number}, died: {as: target, missing: mask}}}\n"
      "stages: [{name: all, at: master, layers: [{op: linear, out: 1}]}]\n"
      "loss: {kind: bce_with_logits}\n"
      "train: {batch: 32, optimizer: {kind: sgd, lr: 0.1}}\n",
      NULL,
      "/etc/cleave/s.yaml:6:40: data.table.columns.died.missing: mask goes with targets, if a "
      "record has several (loss.kind: targets)");
}

/* If the program writes a session file again, the file names the metric of a target as before:
 * "validation.died.auc". */
static void metric_of_a_target_is_written_again(void **state) {
  (void)state;
  clv_session_config *c = parse_accepted(targets_text, NULL);
  CLV_AUTO(clv_bytes_done) clv_bytes written = {0};
  clv_err err;
  assert_int_equal(clv_session_config_write(c, &written, &err), CLV_OK);
  assert_non_null(strstr(written.data, "best: validation.died.auc\n"));
  clv_session_config *again = parse_accepted(written.data, NULL);
  assert_string_equal(again->checkpoint.best_target, "died");
  assert_int_equal(again->checkpoint.best, CLV_BEST_AUC);
  clv_session_config_free(c);
  clv_session_config_free(again);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(unknown_keys_are_refused_with_a_suggestion),
    cmocka_unit_test(duplicate_keys_are_refused),
    cmocka_unit_test(targets_of_a_table_are_checked_with_their_place),
    cmocka_unit_test(mask_of_a_single_target_is_refused),
    cmocka_unit_test(metric_of_a_target_is_written_again),
    cmocka_unit_test(wrong_types_are_refused),
    cmocka_unit_test(wrong_types_of_lists_and_maps_are_refused),
    cmocka_unit_test(old_key_beside_the_new_one_is_refused),
    cmocka_unit_test(scaling_of_tokens_is_refused),
    cmocka_unit_test(malformed_numbers_are_refused),
    cmocka_unit_test(values_out_of_range_are_refused),
    cmocka_unit_test(number_overrides_out_of_range_are_refused),
    cmocka_unit_test(durations_and_sizes_out_of_range_are_refused),
    cmocka_unit_test(unknown_enum_values_are_refused),
    cmocka_unit_test(missing_keys_are_refused_with_an_example),
    cmocka_unit_test(malformed_names_and_addresses_are_refused),
    cmocka_unit_test(malformed_layer_attributes_are_refused),
    cmocka_unit_test(keys_of_another_loss_are_refused),
    cmocka_unit_test(sampling_that_other_keys_contradict_is_refused),
    cmocka_unit_test(unknown_workers_and_bad_privacy_are_refused),
    cmocka_unit_test(conflicting_layers_and_model_are_refused),
    cmocka_unit_test(model_without_exactly_one_source_is_refused),
    cmocka_unit_test(layer_ranges_must_cover_the_model),
    cmocka_unit_test(conflicting_weight_sources_are_refused),
    cmocka_unit_test(inconsistent_best_checkpoint_is_refused),
    cmocka_unit_test(averages_need_a_decay_below_1),
    cmocka_unit_test(early_stopping_without_its_score_is_refused),
    cmocka_unit_test(invalid_checkpoint_interval_is_refused),
    cmocka_unit_test(conflicting_optimiser_options_are_refused),
    cmocka_unit_test(conflicting_pipeline_and_data_options_are_refused),
    cmocka_unit_test(missing_or_unreadable_files_are_refused),
    cmocka_unit_test(inconsistent_image_options_are_refused),
    cmocka_unit_test(keys_of_another_format_are_refused),
    cmocka_unit_test(options_of_a_vocabulary_are_refused_for_a_tokenizer_json),
    cmocka_unit_test(later_failures_name_the_position),
    cmocka_unit_test(long_path_does_not_cut_the_end_of_a_message),
};

int main(void) { return cmocka_run_group_tests(tests, NULL, NULL); }
