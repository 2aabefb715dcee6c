/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests checkpoint folders: each is complete or does not exist. Every kind of damage to every file
 * is refused, an older checkpoint is used instead, with the reasons, and pruning never deletes the
 * last valid one.
 */
#include <dirent.h>
#include <fcntl.h>

#include "tests/long.h"
#include "tests/unit/weights/weights_test.h"

static const char config_hash[] =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static float values[2000];

/* Returns the path of a run's folder. Unlike a path that at() returns, the path stays valid. */
static const char *get_run_dir(const char *name) {
  static char paths[32][200];
  static size_t n_used;
  return strcpy(paths[n_used++ % CLV_COUNT(paths)], at(name));
}

/* Writes a checkpoint of two stages whose numbers depend on the step. */
static clv_code write_checkpoint(const char *run, uint64_t step, clv_err *err) {
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  char count[24];
  for (size_t i = 0; i < CLV_COUNT(values); i++) values[i] = (float)(i + step);
  clv_weights_tensor first_stage[] = {{"conv.weight", CLV_F32, CLV_SHAPE(8, 1, 5, 5), values},
                                      {"conv.bias", CLV_F32, CLV_SHAPE(8), values}};
  clv_weights_tensor moments[] = {{"conv.weight.exp_avg", CLV_F32, CLV_SHAPE(8, 1, 5, 5), values},
                                  {"conv.bias.exp_avg", CLV_F32, CLV_SHAPE(8), values}};
  clv_weights_tensor second_stage[] = {{"fc.weight", CLV_F32, CLV_SHAPE(10, 100), values}};
  snprintf(count, sizeof count, "%llu records", (unsigned long long)step);
  clv_kv extra[] = {{"loss_log_sha256", config_hash}, {"note \"x\"", count}};
  clv_trainer_state state = {.epoch = 2,
                             .records_used = 64 * step,
                             .global_step = step,
                             .max_steps = 900,
                             .extra = extra,
                             .n_extra = 2};
  CLV_TRY(clv_checkpoint_begin(run, step, 2, &w, err));
  CLV_TRY(clv_checkpoint_add_stage(w, 1, second_stage, 1, NULL, 0, err));
  CLV_TRY(clv_checkpoint_add_stage(w, 0, first_stage, 2, moments, 2, err));
  CLV_TRY(clv_checkpoint_add_file(w, "session.effective.yaml", "seed: 1\n", 8, err));
  CLV_TRY(clv_checkpoint_add_state(w, &state, err));
  CLV_AUTO(clv_freep) char *path = NULL;
  CLV_TRY(clv_checkpoint_commit(w, config_hash, 3, &path, err));
  char expected[300];
  snprintf(expected, sizeof expected, "%s/checkpoint-%llu", run, (unsigned long long)step);
  assert_string_equal(path, expected);
  return CLV_OK;
}

static uint64_t get_latest_step(const char *run, clv_bytes *reasons) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  clv_err err;
  assert_ok(clv_checkpoint_load_latest(run, &c, reasons, &err), &err);
  assert_int_equal(clv_checkpoint_manifest(c)->step, clv_checkpoint_state(c)->global_step);
  return clv_checkpoint_manifest(c)->step;
}

static bool file_exists(const char *run, const char *relative_path) {
  char path[400];
  snprintf(path, sizeof path, "%s/%s", run, relative_path);
  return access(path, F_OK) == 0;
}

static clv_checkpoint *write_and_load(const char *name) {
  const char *run = get_run_dir(name);
  CLV_AUTO(clv_bytes_done) clv_bytes reasons = {0};
  clv_checkpoint *c = NULL;
  clv_err err;
  assert_ok(write_checkpoint(run, 100, &err), &err);
  assert_ok(clv_checkpoint_load_latest(run, &c, &reasons, &err), &err);
  assert_int_equal(reasons.len, 0);
  return c;
}

static void checkpoint_state_round_trips(void **state) {
  (void)state;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = write_and_load("round/deep");
  const clv_manifest *manifest = clv_checkpoint_manifest(c);
  assert_int_equal(manifest->step, 100);
  assert_int_equal(manifest->stages, 2);
  assert_int_equal(manifest->protocol_version, 3);
  assert_string_equal(manifest->config_hash, config_hash);
  assert_int_equal(manifest->n_files, 7);
  const clv_trainer_state *s = clv_checkpoint_state(c);
  assert_int_equal(s->epoch, 2);
  assert_int_equal(s->records_used, 6400);
  assert_int_equal(s->global_step, 100);
  assert_int_equal(s->max_steps, 900);
  assert_string_equal(clv_trainer_state_get_extra(s, "note \"x\""), "100 records");
  assert_string_equal(clv_trainer_state_get_extra(s, "loss_log_sha256"), config_hash);
  assert_null(clv_trainer_state_get_extra(s, "other"));
}

static void weights_round_trip(void **state) {
  (void)state;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = write_and_load("round/weights");
  CLV_AUTO(clv_weights_closep) clv_weights_file *m = NULL, *o = NULL, *o1 = NULL;
  clv_weights_file *none = NULL;
  clv_err err;
  assert_ok(clv_checkpoint_open_model(c, 0, &m, &err), &err);
  assert_memory_equal(clv_weights_find_entry(m, "conv.weight")->data, values, 800);
  assert_string_equal(clv_weights_find_metadata(m, "step"), "100");
  assert_ok(clv_checkpoint_open_optimizer(c, 0, &o, &err), &err);
  assert_memory_equal(clv_weights_find_entry(o, "conv.bias.exp_avg")->data, values, 32);
  assert_ok(clv_checkpoint_open_optimizer(c, 1, &o1, &err), &err);
  assert_int_equal(clv_weights_n_entries(o1), 0);
  assert_int_equal(clv_checkpoint_open_model(c, 2, &none, &err), CLV_INVALID);
}

static void files_round_trip(void **state) {
  (void)state;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = write_and_load("round/files");
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  assert_ok(clv_checkpoint_read_file(c, "session.effective.yaml", &text, &err), &err);
  assert_int_equal(text.len, 8);
  assert_memory_equal(text.data, "seed: 1\n", 8);
  assert_int_equal(clv_checkpoint_read_file(c, "other", &text, &err), CLV_NOT_FOUND);
  assert_int_equal(clv_checkpoint_read_file(c, "../x", &text, &err), CLV_NOT_FOUND);

  assert_ok(clv_checkpoint_read_file(c, "model.safetensors.index.json", &text, &err), &err);
  assert_string_equal(text.data,
                      "{\n  \"metadata\": {\"total_size\": 4832},\n  \"weight_map\": {\n"
                      "    \"conv.bias\": \"model-00001-of-00002.safetensors\",\n"
                      "    \"conv.weight\": \"model-00001-of-00002.safetensors\",\n"
                      "    \"fc.weight\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
}

static void same_step_writes_the_same_bytes(void **state) {
  (void)state;
  clv_err err;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *a = NULL, *b = NULL;
  assert_ok(write_checkpoint(get_run_dir("same-a"), 5, &err), &err);
  assert_ok(write_checkpoint(get_run_dir("same-b"), 5, &err), &err);
  assert_ok(clv_checkpoint_load_latest(get_run_dir("same-a"), &a, NULL, &err), &err);
  assert_ok(clv_checkpoint_load_latest(get_run_dir("same-b"), &b, NULL, &err), &err);
  const clv_manifest *ma = clv_checkpoint_manifest(a), *mb = clv_checkpoint_manifest(b);
  assert_int_equal(ma->n_files, mb->n_files);
  for (size_t i = 0; i < ma->n_files; i++)
    assert_memory_equal(&ma->files[i].sha256, &mb->files[i].sha256, 32);
}

static void invalid_writer_calls_are_refused(void **state) {
  (void)state;
  const char *run = get_run_dir("wrong");
  clv_checkpoint_writer *w = NULL;
  clv_weights_tensor t = {"w", CLV_F32, CLV_SHAPE(4), values};
  clv_trainer_state s = {0};
  clv_err err;
  assert_int_equal(clv_checkpoint_begin(run, 1, 0, &w, &err), CLV_INVALID);
  assert_int_equal(clv_checkpoint_begin(run, 1, 1000, &w, &err), CLV_INVALID);
  assert_int_equal(clv_checkpoint_begin(run, UINT64_MAX, 1, &w, &err), CLV_INVALID);
  assert_ok(clv_checkpoint_begin(run, 1, 2, &w, &err), &err);
  assert_int_equal(clv_checkpoint_add_stage(w, 2, &t, 1, NULL, 0, &err), CLV_INVALID);
  static const char *const names[] = {"../x", "a/b", "", ".", "..", "a b", "MANIFEST.json"};
  for (size_t i = 0; i < CLV_COUNT(names); i++)
    assert_int_equal(clv_checkpoint_add_file(w, names[i], "x", 1, &err), CLV_INVALID);
  assert_ok(clv_checkpoint_add_file(w, "x", "x", 1, &err), &err);
  assert_int_equal(clv_checkpoint_add_file(w, "x", "x", 1, &err), CLV_EXISTS);
  assert_ok(clv_checkpoint_add_stage(w, 0, &t, 1, NULL, 0, &err), &err);
  assert_int_equal(clv_checkpoint_add_stage(w, 0, &t, 1, NULL, 0, &err), CLV_EXISTS);
  assert_int_equal(clv_checkpoint_commit(w, "", 1, NULL, &err), CLV_PRECONDITION);
  assert_says(&err, "1 of 2 stages");
  assert_ok(clv_checkpoint_add_stage(w, 1, &t, 1, NULL, 0, &err), &err);
  assert_int_equal(clv_checkpoint_commit(w, "", 1, NULL, &err), CLV_PRECONDITION);
  assert_says(&err, "state");
  clv_kv equal_keys[] = {{"a", "1"}, {"a", "2"}};
  s.extra = equal_keys;
  s.n_extra = 2;
  assert_int_equal(clv_checkpoint_add_state(w, &s, &err), CLV_INVALID);
  s.n_extra = 1;
  assert_ok(clv_checkpoint_add_state(w, &s, &err), &err);
  assert_int_equal(clv_checkpoint_commit(w, "xyz", 1, NULL, &err), CLV_INVALID);
  assert_int_equal(clv_checkpoint_commit(w, "", 1, NULL, &err), CLV_INVALID);
  assert_says(&err, "tensor 'w' is in stage");
  clv_checkpoint_writer_free(w);
  assert_false(file_exists(run, "checkpoint-1/MANIFEST.json"));
}

/* Refuses the manifest, as if the run had another owner. user: the run folder. */
static clv_code refuse_manifest(void *user, clv_err *err) {
  const char *const *run = user;
  assert_true(file_exists(*run, "checkpoint-1/MANIFEST.json.tmp"));
  assert_false(file_exists(*run, "checkpoint-1/MANIFEST.json"));
  return clv_fail(err, CLV_ABORTED, "another process trains there");
}

static void manifest_is_checked_before_it_gets_its_name(void **state) {
  (void)state;
  const char *run = get_run_dir("checked");
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  clv_weights_tensor t = {"w", CLV_F32, CLV_SHAPE(4), values};
  clv_trainer_state s = {0};
  clv_err err;
  assert_ok(clv_checkpoint_begin(run, 1, 1, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, &t, 1, NULL, 0, &err), &err);
  assert_ok(clv_checkpoint_add_state(w, &s, &err), &err);
  clv_checkpoint_writer_set_check(w, refuse_manifest, &run);
  assert_int_equal(clv_checkpoint_commit(w, "", 1, NULL, &err), CLV_ABORTED);
  assert_false(file_exists(run, "checkpoint-1/MANIFEST.json"));
  assert_false(file_exists(run, "checkpoint-1/MANIFEST.json.tmp"));
}

/* ---- finding the latest checkpoint ----------------------------------------------------------- */

static void unfinished_checkpoint_is_skipped(void **state) {
  (void)state;
  const char *run = get_run_dir("unfinished");
  CLV_AUTO(clv_bytes_done) clv_bytes reasons = {0};
  clv_checkpoint *none = NULL;
  clv_err err;
  assert_int_equal(clv_checkpoint_load_latest(run, &none, NULL, &err), CLV_NOT_FOUND);
  assert_says(&err, "unfinished does not exist: train first");
  assert_ok(clv_mkdirs(run, &err), &err);
  assert_int_equal(clv_checkpoint_load_latest(run, &none, NULL, &err), CLV_NOT_FOUND);
  assert_says(&err, "no usable checkpoint: train first");
  assert_ok(write_checkpoint(run, 9, &err), &err);
  assert_ok(write_checkpoint(run, 10, &err), &err);
  assert_int_equal(get_latest_step(run, NULL), 10);
  clv_checkpoint_writer *w = NULL;
  assert_ok(clv_checkpoint_begin(run, 11, 2, &w, &err), &err);
  assert_ok(clv_checkpoint_add_file(w, "x", "x", 1, &err), &err);
  clv_checkpoint_writer_free(w);
  assert_int_equal(get_latest_step(run, &reasons), 10);
  assert_non_null(strstr(reasons.data, "checkpoint-11 refused: "));
  assert_non_null(strstr(reasons.data, "never finished"));
  uint64_t steps[3];
  assert_int_equal(clv_checkpoint_steps_with_manifest(run, steps, CLV_COUNT(steps)), 2);
  assert_true(steps[0] == 10 && steps[1] == 9);
  /* An incomplete checkpoint can be written again; a complete one is not overwritten. */
  assert_ok(write_checkpoint(run, 11, &err), &err);
  assert_false(file_exists(run, "checkpoint-11/x"));
  assert_int_equal(get_latest_step(run, NULL), 11);
  assert_int_equal(write_checkpoint(run, 11, &err), CLV_EXISTS);
  assert_int_equal(get_latest_step(run, NULL), 11);
  assert_int_equal(clv_checkpoint_load(run, &none, &err), CLV_DATA_LOSS);
  assert_null(none);
}

/* A way to damage a file: changes its `len` bytes in `data`, where one more byte fits, and returns
 * the new length. */
typedef size_t (*damage_fn)(char *data, size_t len);
static size_t remove_last_byte(char *data, size_t len) { return (void)data, len - 1; }
static size_t remove_all_bytes(char *data, size_t len) { return (void)data, (void)len, 0; }
static size_t flip_last_bit(char *data, size_t len) { return data[len - 1] ^= 1, len; }
static size_t flip_middle_bit(char *data, size_t len) { return data[len / 2] ^= 16, len; }
static size_t append_byte(char *data, size_t len) { return data[len] = 0, len + 1; }

static void damaged_checkpoint_falls_back_to_an_older_one(void **state) {
  (void)state;
  static const damage_fn damages[] = {remove_last_byte, remove_all_bytes, flip_last_bit,
                                      flip_middle_bit, append_byte};
  static const char *const files[] = {"MANIFEST.json",
                                      "trainer_state.json",
                                      "session.effective.yaml",
                                      "model.safetensors.index.json",
                                      "model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors",
                                      "optimizer-00001-of-00002.safetensors",
                                      "optimizer-00002-of-00002.safetensors"};
  const char *run = get_run_dir("damaged");
  clv_err err;
  assert_ok(write_checkpoint(run, 1, &err), &err);
  assert_ok(write_checkpoint(run, 2, &err), &err);
  for (size_t f = 0; f < CLV_COUNT(files); f++) {
    CLV_AUTO(clv_bytes_done) clv_bytes good = {0};
    char path[300], name[128];
    snprintf(name, sizeof name, "damaged/checkpoint-2/%s", files[f]);
    snprintf(path, sizeof path, "%s/checkpoint-2/%s", run, files[f]);
    assert_ok(clv_file_read(path, 1 << 20, &good, &err), &err);
    for (size_t d = 0; d < CLV_COUNT(damages); d++) {
      CLV_AUTO(clv_bytes_done) clv_bytes bad = {0}, reasons = {0};
      clv_bytes_add(&bad, good.data, good.len);
      write_scratch_file(name, bad.data, damages[d](bad.data, bad.len));
      assert_int_equal(get_latest_step(run, &reasons), 1);
      assert_non_null(strstr(reasons.data, files[f]));
      if (f > 0 && damages[d] != flip_last_bit && damages[d] != flip_middle_bit)
        assert_non_null(strstr(reasons.data, " bytes, the manifest says "));
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(get_latest_step(run, NULL), 1);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(get_latest_step(run, NULL), 1);
    assert_int_equal(unlink(path), 0);
    write_scratch_file(name, good.data, good.len);
    assert_int_equal(get_latest_step(run, NULL), 2);
  }
}

/* Writes a checkpoint of one stage whose model is a file of 64 KiB. */
static void write_64_kib(const char *run, uint64_t step) {
  static float numbers[16384];
  CLV_AUTO(clv_checkpoint_writer_freep) clv_checkpoint_writer *w = NULL;
  clv_err err;
  for (size_t i = 0; i < CLV_COUNT(numbers); i++) numbers[i] = (float)(i + step);
  clv_weights_tensor t = {"w", CLV_F32, CLV_SHAPE(16352), numbers};
  clv_trainer_state state = {.global_step = step};
  assert_ok(clv_checkpoint_begin(run, step, 1, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, &t, 1, NULL, 0, &err), &err);
  assert_ok(clv_checkpoint_add_state(w, &state, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 1, NULL, &err), &err);
}

/* `make long` tries all truncations of a file and 10,000 flipped bits; `make test` tries some of
 * them. The run must fall back to the checkpoint before. */
static void each_truncation_and_flip_falls_back(void **state) {
  (void)state;
  const char *run = get_run_dir("flips");
  size_t step = is_long() ? 1 : 199, n_flips = is_long() ? 10000 : 200;
  CLV_AUTO(clv_bytes_done) clv_bytes good = {0};
  char path[300];
  clv_err err;
  assert_ok(write_checkpoint(run, 1, &err), &err);
  write_64_kib(run, 2);
  snprintf(path, sizeof path, "%s/checkpoint-2/model.safetensors", run);
  if (access(path, F_OK) != 0)
    snprintf(path, sizeof path, "%s/checkpoint-2/model-00001-of-00001.safetensors", run);
  assert_ok(clv_file_read(path, 1 << 20, &good, &err), &err);
  assert_in_range(good.len, 65000, 65536 + 512);
  int fd = open(path, O_WRONLY);
  assert_true(fd >= 0);
  for (size_t i = 0; i < n_flips; i++) {
    uint32_t w[4];
    clv_rng_block(&(clv_rng_key){.seed = 7}, (uint32_t)i, w);
    size_t bit = w[0] % (good.len * 8);
    char c = (char)(good.data[bit / 8] ^ (1 << bit % 8));
    assert_int_equal(pwrite(fd, &c, 1, (off_t)(bit / 8)), 1);
    assert_int_equal(get_latest_step(run, NULL), 1);
    assert_int_equal(pwrite(fd, &good.data[bit / 8], 1, (off_t)(bit / 8)), 1);
  }
  assert_int_equal(get_latest_step(run, NULL), 2);
  for (size_t len = good.len - 1; len < good.len; len -= CLV_MIN(len ? len : 1, step)) {
    assert_int_equal(ftruncate(fd, (off_t)len), 0);
    assert_int_equal(get_latest_step(run, NULL), 1);
  }
  close(fd);
}

/* A file of the checkpoint may change between its check and its use. */
static void file_changed_after_load_is_refused(void **state) {
  (void)state;
  const char *run = get_run_dir("changed");
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_weights_file *m = NULL;
  clv_err err;
  assert_ok(write_checkpoint(run, 1, &err), &err);
  assert_ok(clv_checkpoint_load_latest(run, &c, NULL, &err), &err);
  const char *path = at("changed/checkpoint-1/model-00001-of-00002.safetensors");
  assert_ok(clv_file_read(path, 1 << 20, &b, &err), &err);
  b.data[b.len - 1] ^= 1;
  write_scratch_file("changed/checkpoint-1/model-00001-of-00002.safetensors", b.data, b.len);
  assert_int_equal(clv_checkpoint_open_model(c, 0, &m, &err), CLV_DATA_LOSS);
  assert_says(&err, "damaged: SHA-256");
  assert_null(m);
}

static void renamed_checkpoint_is_not_the_latest(void **state) {
  (void)state;
  const char *run = get_run_dir("renamed");
  clv_checkpoint *c = NULL;
  clv_err err;
  assert_ok(write_checkpoint(run, 7, &err), &err);
  assert_int_equal(rename(at("renamed/checkpoint-7"), at("renamed/checkpoint-8")), 0);
  assert_int_equal(clv_checkpoint_load_latest(run, &c, NULL, &err), CLV_NOT_FOUND);
  assert_says(&err, "the manifest is of step 7");
  assert_int_equal(rename(at("renamed/checkpoint-8"), at("renamed/best")), 0);
  assert_ok(clv_checkpoint_load(at("renamed/best/"), &c, &err), &err);
  assert_int_equal(clv_checkpoint_manifest(c)->step, 7);
  clv_checkpoint_free(c);
}

/* ---- manifests of checkpoints ---------------------------------------------------------------- */

static clv_bytes read_manifest(const char *run, uint64_t step) {
  clv_bytes b = {0};
  char path[300];
  clv_err err;
  assert_ok(write_checkpoint(run, step, &err), &err);
  snprintf(path, sizeof path, "%s/checkpoint-%llu/MANIFEST.json", run, (unsigned long long)step);
  assert_ok(clv_file_read(path, 1 << 20, &b, &err), &err);
  return b;
}

static bool is_same_manifest(const clv_manifest *a, const clv_manifest *b) {
  return a->step == b->step && a->stages == b->stages && a->n_files == b->n_files &&
         a->protocol_version == b->protocol_version &&
         memcmp(a->files, b->files, a->n_files * sizeof *a->files) == 0 &&
         strcmp(a->config_hash, b->config_hash) == 0;
}

static void damaged_manifest_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes b = read_manifest(get_run_dir("manifest"), 1);
  CLV_AUTO(clv_manifest_clear) clv_manifest good = {0};
  clv_err err;
  assert_ok(clv_manifest_parse(b.data, b.len, "m", &good, &err), &err);
  for (size_t cut = 0; cut < b.len; cut++) {
    clv_manifest m = {0};
    assert_int_equal(clv_manifest_parse(b.data, cut, "m", &m, &err), CLV_DATA_LOSS);
  }
  size_t n_refused = 0;
  for (uint32_t i = 0; i < 10000; i++) {
    uint32_t w[4];
    clv_rng_block(&(clv_rng_key){.seed = 43}, i, w);
    size_t bit = w[0] % (b.len * 8);
    CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
    b.data[bit / 8] ^= (char)(1 << bit % 8);
    if (clv_manifest_parse(b.data, b.len, "m", &m, &err) != CLV_OK)
      n_refused++;
    else
      /* the flipped bit made a digit of a digest upper-case */
      assert_true(is_same_manifest(&m, &good));
    b.data[bit / 8] ^= (char)(1 << bit % 8);
  }
  assert_true(n_refused > 9800);
}

#define HEAD "{\"format\":\"cleave-checkpoint\",\"version\":1,"
#define NUMBERS "\"step\":1,\"stages\":1,\"protocol_version\":1,\"config_sha256\":\"\","
#define DIGEST "\"00000000000000000000000000000000000000000000000000000000000000ff\""

/* Rows of a manifest for files that stay at a worker, and a manifest with one such row. */
#define KEPT_ROW(place, kept) "\"bytes\":1,\"sha256\":" DIGEST ",\"place\":" place ",\"kept\":" kept
#define KEPT(name, place, kept) HEAD NUMBERS "\"files\":{\"" name "\":{" KEPT_ROW(place, kept) "}},"

/* Manifests with a correct digest and invalid content. */
static const struct {
  const char *manifest_text;
  clv_code wanted_code;
  const char *message;
} manifests[] = {
    {HEAD NUMBERS "\"files\":{\"a\":{\"bytes\":1,\"sha256\":" DIGEST "}},", CLV_OK, ""},
    {"{\"format\":\"other\",\"version\":1,", CLV_UNIMPLEMENTED, "format 'other'"},
    {"{\"format\":\"cleave-checkpoint\",\"version\":2,", CLV_UNIMPLEMENTED, "version 2"},
    {"{", CLV_DATA_LOSS, "'format' is missing"},
    {HEAD NUMBERS, CLV_DATA_LOSS, "'files' is missing"},
    {HEAD NUMBERS "\"files\":[],", CLV_DATA_LOSS, "'files' is missing or not an object"},
    {HEAD NUMBERS "\"files\":{},\"x\":1,", CLV_DATA_LOSS, "unknown key 'x'"},
    {HEAD NUMBERS "\"files\":{},\"files\":{},", CLV_DATA_LOSS, "duplicate"},
    {HEAD "\"stages\":1,\"protocol_version\":1,\"config_sha256\":\"\",\"files\":{},", CLV_DATA_LOSS,
     "'step' is missing"},
    {HEAD "\"step\":-1,\"stages\":1,\"protocol_version\":1,\"config_sha256\":\"\",\"files\":{},",
     CLV_DATA_LOSS, "'step' is -1"},
    {HEAD "\"step\":1,\"stages\":0,\"protocol_version\":1,\"config_sha256\":\"\",\"files\":{},",
     CLV_DATA_LOSS, "0 stages"},
    {HEAD "\"step\":1,\"stages\":1000,\"protocol_version\":1,\"config_sha256\":\"\","
          "\"files\":{},",
     CLV_DATA_LOSS, "'stages' is 1000"},
    {HEAD "\"step\":1.5,\"stages\":1,\"protocol_version\":1,\"config_sha256\":\"\","
          "\"files\":{},",
     CLV_DATA_LOSS, "'step' is not one"},
    {HEAD "\"step\":1,\"stages\":1,\"protocol_version\":4294967296,\"config_sha256\":\"\","
          "\"files\":{},",
     CLV_DATA_LOSS, "'protocol_version'"},
    {HEAD "\"step\":1,\"stages\":1,\"protocol_version\":1,\"config_sha256\":\"ff\","
          "\"files\":{},",
     CLV_DATA_LOSS, "config_sha256 'ff'"},
    {HEAD NUMBERS "\"files\":{\"../a\":{\"bytes\":1,\"sha256\":" DIGEST "}},", CLV_DATA_LOSS,
     "not a plain file name"},
    {HEAD NUMBERS "\"files\":{\"/etc/passwd\":{\"bytes\":1,\"sha256\":" DIGEST "}},", CLV_DATA_LOSS,
     "not a plain file name"},
    {HEAD NUMBERS "\"files\":{\"..\":{\"bytes\":1,\"sha256\":" DIGEST "}},", CLV_DATA_LOSS,
     "not a plain file name"},
    {HEAD NUMBERS "\"files\":{\"\":{\"bytes\":1,\"sha256\":" DIGEST "}},", CLV_DATA_LOSS,
     "not a plain file name"},
    {HEAD NUMBERS "\"files\":{\"MANIFEST.json\":{\"bytes\":1,\"sha256\":" DIGEST "}},",
     CLV_DATA_LOSS, "not a plain file name"},
    {HEAD NUMBERS "\"files\":{\"a\":{\"bytes\":-1,\"sha256\":" DIGEST "}},", CLV_DATA_LOSS,
     "a: 'bytes' is -1"},
    {HEAD NUMBERS "\"files\":{\"a\":{\"bytes\":1,\"sha256\":\"ff\"}},", CLV_DATA_LOSS,
     "sha256 'ff'"},
    {HEAD NUMBERS "\"files\":{\"a\":{\"bytes\":1}},", CLV_DATA_LOSS, "'sha256' is missing"},
    {HEAD NUMBERS "\"files\":{\"a\":{\"bytes\":1,\"sha256\":" DIGEST ",\"x\":1}},", CLV_DATA_LOSS,
     "unknown key 'x'"},
    {HEAD NUMBERS "\"files\":{\"a\":1},", CLV_DATA_LOSS, "expected an object"},
    {KEPT("model-1", "\"w1\"", "\"a.1\""), CLV_OK, ""},
    {KEPT("a", "\"w1\"", "\"a.1\""), CLV_DATA_LOSS, "only a stage's files"},
    {KEPT("model-1", "\"\"", "\"a.1\""), CLV_DATA_LOSS, "place '' is not an identity"},
    {KEPT("model-1", "\"w\\u0007\"", "\"a.1\""), CLV_DATA_LOSS, "is not an identity"},
    {KEPT("model-1", "1", "\"a.1\""), CLV_DATA_LOSS, "'place' is not one"},
    {KEPT("model-1", "\"w1\"", "\"../a\""), CLV_DATA_LOSS, "kept '../a'"},
    {KEPT("model-1", "\"w1\"", "\".a\""), CLV_DATA_LOSS, "kept '.a'"},
    {KEPT("model-1", "\"w1\"", "\"\""), CLV_DATA_LOSS, "kept ''"},
    {HEAD NUMBERS "\"files\":{\"model-1\":{\"bytes\":1,\"sha256\":" DIGEST ",\"place\":\"w1\"}},",
     CLV_DATA_LOSS, "'kept' is missing"},
    {HEAD NUMBERS "\"files\":{\"model-1\":{\"bytes\":1,\"sha256\":" DIGEST ",\"kept\":\"a\"}},",
     CLV_DATA_LOSS, "'place' is missing"},
    {HEAD NUMBERS "\"files\":{\"model-1\":{" KEPT_ROW(
         "\"w1\"", "\"a\"") "},"
                            "\"model-2\":{" KEPT_ROW("\"w1\"", "\"a\"") "}},",
     CLV_DATA_LOSS, "model-1 and model-2 are the same file 'a' at 'w1'"},
    {HEAD NUMBERS "\"files\":{\"model-1\":{" KEPT_ROW(
         "\"w1\"", "\"a\"") "},"
                            "\"model-2\":{" KEPT_ROW("\"w2\"", "\"a\"") "}},",
     CLV_OK, ""},
};

/* Writes the text followed by its digest. */
static void write_with_digest(clv_bytes *b, const char *text) {
  clv_sha256 digest;
  clv_err err = {0};
  char hex[65];
  clv_bytes_puts(b, text);
  assert_ok(clv_sha256_of(b->data, b->len, &digest, &err), &err);
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(b, "  \"sha256\": \"%s\"\n}\n", hex);
}

static void invalid_manifests_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(manifests); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
    CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
    clv_err err = {0};
    write_with_digest(&b, manifests[i].manifest_text);
    clv_code code = clv_manifest_parse(b.data, b.len, "m.json", &m, &err);
    if (code != manifests[i].wanted_code)
      fail_msg("%s: %d %s", manifests[i].manifest_text, (int)code, err.text);
    if (code != CLV_OK) {
      assert_says(&err, "m.json");
      assert_says(&err, manifests[i].message);
      assert_null(m.files);
    }
  }
}

/* ---- files that stay at workers -------------------------------------------------------------- */

/* Writes a checkpoint of two stages: the files of stage 0 are in the folder, those of stage 1 at a
 * worker. */
static void write_kept_checkpoint(const char *run, uint64_t step) {
  clv_checkpoint_writer *w = NULL;
  clv_weights_tensor first = {"a", CLV_F32, CLV_SHAPE(4), values},
                     second_stage = {"b", CLV_F32, CLV_SHAPE(8), NULL};
  clv_trainer_state state = {.global_step = step};
  char file_names[2][40];
  clv_manifest_file at[2];
  clv_err err;
  assert_ok(clv_checkpoint_begin(run, step, 2, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, &first, 1, NULL, 0, &err), &err);
  for (int i = 0; i < 2; i++) {
    snprintf(file_names[i], sizeof file_names[i], "00ff.%llu.1.%c", (unsigned long long)step,
             "wo"[i]);
    at[i] = (clv_manifest_file){.bytes = 100 + (unsigned)i,
                                .keeper_identity = "spiffe://x/w1",
                                .kept_file_name = file_names[i]};
    at[i].sha256.bytes[0] = (uint8_t)(i + 1);
  }
  assert_int_equal(clv_checkpoint_add_kept(w, 1, true, NULL, 0, &at[1], &err), CLV_PRECONDITION);
  assert_ok(clv_checkpoint_add_kept(w, 1, false, &second_stage, 1, &at[0], &err), &err);
  assert_ok(clv_checkpoint_add_kept(w, 1, true, NULL, 0, &at[1], &err), &err);
  assert_int_equal(clv_checkpoint_add_kept(w, 1, false, &second_stage, 1, &at[0], &err),
                   CLV_EXISTS);
  assert_ok(clv_checkpoint_add_state(w, &state, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 9, NULL, &err), &err);
  clv_checkpoint_writer_free(w);
}

static void kept_files_are_listed_and_not_opened(void **state) {
  (void)state;
  const char *run = get_run_dir("kept");
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_weights_closep) clv_weights_file *home = NULL, *away = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes index = {0};
  clv_err err;
  write_kept_checkpoint(run, 7);
  assert_ok(clv_checkpoint_load_latest(run, &c, NULL, &err), &err);
  const clv_manifest *m = clv_checkpoint_manifest(c);
  assert_false(clv_manifest_has_all_files(m));
  assert_null(clv_manifest_find_stage(m, 0, false)->keeper_identity);
  assert_string_equal(clv_manifest_find_stage(m, 1, true)->keeper_identity, "spiffe://x/w1");
  assert_string_equal(clv_manifest_find_stage(m, 1, true)->kept_file_name, "00ff.7.1.o");
  assert_int_equal(clv_manifest_find_stage(m, 1, false)->bytes, 100);
  assert_null(clv_manifest_find_stage(m, 2, false));
  assert_ok(clv_checkpoint_open_model(c, 0, &home, &err), &err);
  assert_int_equal(clv_checkpoint_open_model_lazy(c, 1, &away, &err), CLV_PRECONDITION);
  assert_says(&err, "model-00002-of-00002.safetensors");
  assert_says(&err, "spiffe://x/w1");
  assert_says(&err, "00ff.7.1.w");
  assert_says(&err, "checkpoint gather");
  assert_ok(clv_checkpoint_read_file(c, "model.safetensors.index.json", &index, &err), &err);
  assert_non_null(strstr(index.data, "\"b\": \"model-00002-of-00002.safetensors\""));
}

/* After all files have been copied back to the master, the new manifest names no workers. */
static void gathered_checkpoint_is_at_the_master(void **state) {
  (void)state;
  const char *run = get_run_dir("gathered");
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0}, again = {0};
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  write_kept_checkpoint(run, 7);
  assert_ok(clv_checkpoint_read_manifest(run, 7, &m, &err), &err);
  for (size_t i = 0; i < m.n_files; i++) {
    if (!m.files[i].keeper_identity) continue;
    char path[200];
    snprintf(path, sizeof path, "gathered/checkpoint-7/%s", m.files[i].name);
    write_scratch_file(path, "x", 1);
    m.files[i].bytes = 1;
    assert_ok(clv_sha256_of("x", 1, &m.files[i].sha256, &err), &err);
    free(clv_steal(&m.files[i].keeper_identity));
    free(clv_steal(&m.files[i].kept_file_name));
  }
  assert_ok(clv_manifest_write(at("gathered/checkpoint-7"), &m, &err), &err);
  assert_ok(clv_checkpoint_read_manifest(run, 7, &again, &err), &err);
  assert_true(clv_manifest_has_all_files(&again));
  assert_ok(clv_file_read(at("gathered/checkpoint-7/MANIFEST.json"), 1 << 20, &text, &err), &err);
  assert_null(strstr(text.data, "place"));
  assert_ok(clv_checkpoint_load_step(run, 7, &c, &err), &err);
  write_scratch_file("gathered/checkpoint-7/optimizer-00002-of-00002.safetensors", "y", 1);
  clv_checkpoint_freep(&c);
  assert_int_equal(clv_checkpoint_load_step(run, 7, &c, &err), CLV_DATA_LOSS);
}

/* Counts the deleted checkpoints and their files at workers. */
static void count_dropped(void *user, const clv_manifest *m) {
  size_t *n = user;
  n[0]++;
  for (size_t i = 0; i < m->n_files; i++) n[1] += m->files[i].keeper_identity != NULL;
}

static void prune_reports_files_at_workers(void **state) {
  (void)state;
  const char *run = get_run_dir("dropped");
  size_t n[2] = {0};
  clv_err err;
  for (uint64_t step = 1; step <= 4; step++) write_kept_checkpoint(run, step);
  assert_ok(clv_checkpoint_prune(run, 1, 2, count_dropped, n, &err), &err);
  assert_int_equal(n[0], 2);
  assert_int_equal(n[1], 4);
  assert_true(file_exists(run, "checkpoint-4/MANIFEST.json"));
  assert_true(file_exists(run, "checkpoint-2/MANIFEST.json"));
  assert_false(file_exists(run, "checkpoint-3"));
}

/* ---- deleting old checkpoints ---------------------------------------------------------------- */

static void prune_keeps_newest_checkpoints_and_foreign_files(void **state) {
  (void)state;
  const char *run = get_run_dir("prune");
  clv_checkpoint_writer *w = NULL;
  clv_err err;
  for (uint64_t step = 1; step <= 5; step++) assert_ok(write_checkpoint(run, step, &err), &err);
  /* begins a checkpoint, which is not complete yet */
  assert_ok(clv_checkpoint_begin(run, 6, 1, &w, &err), &err);
  write_scratch_file("prune/checkpoint-4/trainer_state.json", "{}", 2); /* damages a checkpoint */
  write_scratch_file("prune/checkpoint-0", "a file", 6);
  write_scratch_file("prune/notes.txt", "x", 1);
  assert_ok(clv_mkdirs(at("prune/checkpoint-2/mine"), &err), &err);
  assert_int_equal(mkdir(at("elsewhere"), 0755), 0);
  write_scratch_file("elsewhere/keep", "x", 1);
  assert_int_equal(rename(at("prune/checkpoint-1"), at("moved")), 0);
  assert_int_equal(symlink(at("elsewhere"), at("prune/checkpoint-1")), 0);
  assert_ok(clv_checkpoint_prune(run, 2, CLV_CHECKPOINT_NONE, NULL, NULL, &err), &err);
  assert_true(file_exists(run, "checkpoint-6"));
  assert_true(file_exists(run, "checkpoint-5/MANIFEST.json"));
  assert_false(file_exists(run, "checkpoint-4"));
  assert_true(file_exists(run, "checkpoint-3/MANIFEST.json"));
  assert_true(file_exists(run, "checkpoint-2/mine"));
  assert_false(file_exists(run, "checkpoint-2/MANIFEST.json"));
  assert_true(file_exists(run, "checkpoint-0"));
  assert_true(file_exists(run, "notes.txt"));
  assert_true(file_exists(scratch, "elsewhere/keep"));
  assert_ok(clv_checkpoint_prune(run, 0, CLV_CHECKPOINT_NONE, NULL, NULL, &err), &err);
  assert_true(file_exists(run, "checkpoint-5/MANIFEST.json"));
  assert_false(file_exists(run, "checkpoint-3"));
  assert_int_equal(get_latest_step(run, NULL), 5);
  /* no checkpoint is valid now, so none is deleted */
  write_scratch_file("prune/checkpoint-5/MANIFEST.json", "x", 1);
  assert_ok(clv_checkpoint_prune(run, 1, CLV_CHECKPOINT_NONE, NULL, NULL, &err), &err);
  assert_true(file_exists(run, "checkpoint-5/trainer_state.json"));
  clv_checkpoint_writer_free(w);
}

/* The best checkpoint of a run is kept, however old it is. */
static void prune_keeps_the_best_checkpoint(void **state) {
  (void)state;
  const char *run = get_run_dir("spared");
  clv_checkpoint *c = NULL;
  clv_err err;
  for (uint64_t step = 1; step <= 5; step++) assert_ok(write_checkpoint(run, step, &err), &err);
  assert_ok(clv_checkpoint_prune(run, 1, 2, NULL, NULL, &err), &err);
  assert_true(file_exists(run, "checkpoint-5/MANIFEST.json"));
  assert_true(file_exists(run, "checkpoint-2/MANIFEST.json"));
  assert_false(file_exists(run, "checkpoint-4"));
  assert_false(file_exists(run, "checkpoint-1"));
  assert_ok(clv_checkpoint_load_step(run, 2, &c, &err), &err);
  assert_int_equal(clv_checkpoint_manifest(c)->step, 2);
  clv_checkpoint_freep(&c);
  assert_int_equal(clv_checkpoint_load_step(run, 4, &c, &err), CLV_NOT_FOUND);
  assert_says(&err, "no checkpoint of step 4; there are those of steps 5, 2");
  write_scratch_file("spared/checkpoint-2/MANIFEST.json", "x", 1);
  assert_int_equal(clv_checkpoint_load_step(run, 2, &c, &err), CLV_DATA_LOSS);
}

/* Tests the parser of trainer_state.json with checkpoints whose digests are correct. */
static void invalid_trainer_state_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *manifest_text, *message;
  } cases[] = {
      {"{}", "'epoch' is missing"},
      {"{\"epoch\":-1,\"index\":0,\"global_step\":0,\"max_steps\":0,\"seed\":\"1\",\"extra\":{}}",
       "'epoch' is -1"},
      {"{\"epoch\":0,\"index\":0,\"global_step\":0,\"max_steps\":0,\"seed\":\"1\"}",
       "'extra' is missing"},
      {"{\"epoch\":0,\"index\":0,\"global_step\":0,\"max_steps\":0,\"seed\":\"1\","
       "\"extra\":{\"a\":1}}",
       "'a' is not one"},
      {"{\"epoch\":0,\"x\":0}", "unknown key 'x'"},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_checkpoint_writer *w = NULL;
    clv_checkpoint *c = NULL;
    clv_err err;
    const char *run = get_run_dir("state");
    assert_ok(clv_checkpoint_begin(run, i, 1, &w, &err), &err);
    assert_ok(clv_checkpoint_add_stage(w, 0, NULL, 0, NULL, 0, &err), &err);
    assert_ok(clv_checkpoint_add_file(w, "trainer_state.json", cases[i].manifest_text,
                                      strlen(cases[i].manifest_text), &err),
              &err);
    assert_ok(clv_checkpoint_commit(w, "", 1, NULL, &err), &err);
    clv_checkpoint_writer_free(w);
    assert_int_equal(clv_checkpoint_load_latest(run, &c, NULL, &err), CLV_NOT_FOUND);
    CLV_AUTO(clv_bytes_done) clv_bytes reasons = {0};
    assert_int_equal(clv_checkpoint_load_latest(run, &c, &reasons, &err), CLV_NOT_FOUND);
    assert_non_null(strstr(reasons.data, cases[i].message));
  }
}

/* ---- finding tensors of a checkpoint by name ------------------------------------------------- */

static void tensors_are_found_by_name_in_any_file(void **state) {
  (void)state;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = write_and_load("named");
  CLV_AUTO(clv_checkpoint_tensors_close) clv_checkpoint_tensors weights = {0}, moments = {0};
  const char *const names[] = {"fc.weight", "conv.bias", "conv.weight", "conv", "z"};
  uint32_t stages[CLV_COUNT(names)];
  clv_err err;
  assert_ok(clv_checkpoint_find_stages(c, names, CLV_COUNT(names), stages, &err), &err);
  assert_true(stages[0] == 1 && stages[1] == 0 && stages[2] == 0);
  assert_true(stages[3] == CLV_CHECKPOINT_NO_STAGE && stages[4] == CLV_CHECKPOINT_NO_STAGE);
  assert_ok(clv_checkpoint_open_tensors(c, false, &weights, &err), &err);
  assert_int_equal(weights.n, 3);
  const clv_checkpoint_tensor *x = clv_checkpoint_tensors_find(&weights, "fc.weight");
  assert_true(x && x->stage == 1 && clv_shape_equal(&x->entry->shape, &CLV_SHAPE(10, 100)));
  assert_int_equal(clv_checkpoint_tensors_find(&weights, "conv.bias")->stage, 0);
  assert_null(clv_checkpoint_tensors_find(&weights, "fc"));
  assert_null(clv_checkpoint_tensors_find(&weights, "zz"));
  assert_ok(clv_checkpoint_open_tensors(c, true, &moments, &err), &err);
  assert_int_equal(moments.n, 2);
  assert_non_null(clv_checkpoint_tensors_find(&moments, "conv.weight.exp_avg"));
}

/* Writes a checkpoint of two stages, each with one moment and a count of steps. */
static clv_checkpoint *write_and_load_moments(const char *name, const char *second_name,
                                              int64_t steps[2]) {
  const char *run = get_run_dir(name);
  const char *const names[] = {"a.exp_avg", second_name};
  clv_checkpoint_writer *w = NULL;
  clv_checkpoint *c = NULL;
  clv_err err;
  assert_ok(clv_checkpoint_begin(run, 5, 2, &w, &err), &err);
  for (uint32_t i = 0; i < 2; i++) {
    clv_weights_tensor model = {i ? "b" : "a", CLV_F32, CLV_SHAPE(4), values};
    clv_weights_tensor moments[] = {{names[i], CLV_F32, CLV_SHAPE(4), values},
                                    {"step", CLV_I64, {0}, &steps[i]}};
    assert_ok(clv_checkpoint_add_stage(w, i, &model, 1, moments, steps[i] ? 2 : 1, &err), &err);
  }
  assert_ok(clv_checkpoint_add_state(w, &(clv_trainer_state){.global_step = 5}, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 1, NULL, &err), &err);
  clv_checkpoint_writer_free(w);
  assert_ok(clv_checkpoint_load_latest(run, &c, NULL, &err), &err);
  return c;
}

static void steps_of_optimisers_are_read_by_stage(void **state) {
  (void)state;
  int64_t steps[] = {7, 0}, found_step;
  CLV_AUTO(clv_checkpoint_freep)
  clv_checkpoint *c = write_and_load_moments("steps", "b.exp_avg", steps);
  CLV_AUTO(clv_checkpoint_tensors_close) clv_checkpoint_tensors t = {0};
  clv_err err;
  assert_ok(clv_checkpoint_open_tensors(c, true, &t, &err), &err);
  assert_ok(clv_checkpoint_tensors_read_step(&t, 0, &found_step, &err), &err);
  assert_int_equal(found_step, 7);
  assert_int_equal(clv_checkpoint_tensors_read_step(&t, 1, &found_step, &err), CLV_DATA_LOSS);
  assert_says(&err, "the optimiser's file of stage 1 has no 'step'");
  assert_int_equal(clv_checkpoint_tensors_read_step(&t, 2, &found_step, &err), CLV_DATA_LOSS);
}

static void tensor_in_two_files_is_refused(void **state) {
  (void)state;
  int64_t steps[] = {1, 1};
  CLV_AUTO(clv_checkpoint_freep)
  clv_checkpoint *c = write_and_load_moments("twice", "a.exp_avg", steps);
  CLV_AUTO(clv_checkpoint_tensors_close) clv_checkpoint_tensors t = {0};
  clv_err err;
  assert_int_equal(clv_checkpoint_open_tensors(c, true, &t, &err), CLV_DATA_LOSS);
  assert_says(&err, "'a.exp_avg' is in the files of stage 0 and of stage 1");
}

static float first_value(const clv_weights_file *f, const char *name) {
  const clv_weights_entry *e = clv_weights_find_entry(f, name);
  float ret = 0;
  clv_err err;
  if (!e) fail_msg("no '%s'", name);
  assert_ok(clv_weights_read_range(f, e, 0, &ret, sizeof ret, &err), &err);
  return ret;
}

/* Writes and loads a checkpoint with one stage. Its parameter "a" has an average; the average of
 * "b" has another shape than "b". */
static clv_checkpoint *write_and_load_averages(void) {
  static const float one[] = {1, 1}, two[] = {2, 2}, three[] = {3, 3};
  const char *run = get_run_dir("averages");
  const clv_weights_tensor model[] = {{"a", CLV_F32, CLV_SHAPE(2), one},
                                      {"b", CLV_F32, CLV_SHAPE(2), three}},
                           optimizer[] = {{"a.ema", CLV_F32, CLV_SHAPE(2), two},
                                          {"a.exp_avg", CLV_F32, CLV_SHAPE(2), three},
                                          {"b.ema", CLV_F32, CLV_SHAPE(1), two}};
  clv_checkpoint_writer *w = NULL;
  clv_checkpoint *c = NULL;
  clv_err err;
  assert_ok(clv_checkpoint_begin(run, 5, 1, &w, &err), &err);
  assert_ok(clv_checkpoint_add_stage(w, 0, model, 2, optimizer, 3, &err), &err);
  assert_ok(clv_checkpoint_add_state(w, &(clv_trainer_state){.global_step = 5}, &err), &err);
  assert_ok(clv_checkpoint_commit(w, "", 1, NULL, &err), &err);
  clv_checkpoint_writer_free(w);
  assert_ok(clv_checkpoint_load_latest(run, &c, NULL, &err), &err);
  return c;
}

static void averages_are_read_in_place_of_weights(void **state) {
  (void)state;
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = write_and_load_averages();
  clv_err err;
  for (int uses_ema = 0; uses_ema < 2; uses_ema++) {
    CLV_AUTO(clv_weights_closep) clv_weights_file *lazy = NULL, *in_memory = NULL;
    if (uses_ema) clv_checkpoint_use_ema(c);
    assert_true(clv_checkpoint_uses_ema(c) == uses_ema);
    assert_ok(clv_checkpoint_open_model_lazy(c, 0, &lazy, &err), &err);
    assert_ok(clv_checkpoint_open_model(c, 0, &in_memory, &err), &err);
    assert_true(first_value(lazy, "a") == 1 + uses_ema &&
                first_value(in_memory, "a") == 1 + uses_ema);
    assert_true(first_value(lazy, "b") == 3 && first_value(in_memory, "b") == 3);
    assert_int_equal(clv_weights_n_entries(in_memory), 2);
  }
}

static void peek_opens_the_newest_checkpoint_without_its_weights(void **state) {
  (void)state;
  const char *run = get_run_dir("peek");
  clv_checkpoint *c = NULL;
  clv_err err;
  assert_int_equal(clv_checkpoint_peek(run, &c, &err), CLV_NOT_FOUND);
  assert_ok(write_checkpoint(run, 3, &err), &err);
  write_scratch_file("peek/checkpoint-3/model-00001-of-00002.safetensors", "x", 1);
  assert_int_equal(clv_checkpoint_load_latest(run, &c, NULL, &err), CLV_NOT_FOUND);
  assert_ok(clv_checkpoint_peek(run, &c, &err), &err);
  assert_int_equal(clv_checkpoint_state(c)->global_step, 3);
  clv_checkpoint_free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_are_found_by_name_in_any_file),
      cmocka_unit_test(steps_of_optimisers_are_read_by_stage),
      cmocka_unit_test(tensor_in_two_files_is_refused),
      cmocka_unit_test(averages_are_read_in_place_of_weights),
      cmocka_unit_test(peek_opens_the_newest_checkpoint_without_its_weights),
      cmocka_unit_test(manifest_is_checked_before_it_gets_its_name),
      cmocka_unit_test(checkpoint_state_round_trips),
      cmocka_unit_test(weights_round_trip),
      cmocka_unit_test(prune_keeps_the_best_checkpoint),
      cmocka_unit_test(files_round_trip),
      cmocka_unit_test(same_step_writes_the_same_bytes),
      cmocka_unit_test(invalid_writer_calls_are_refused),
      cmocka_unit_test(unfinished_checkpoint_is_skipped),
      cmocka_unit_test(damaged_checkpoint_falls_back_to_an_older_one),
      cmocka_unit_test(each_truncation_and_flip_falls_back),
      cmocka_unit_test(damaged_manifest_is_refused),
      cmocka_unit_test(invalid_manifests_are_refused),
      cmocka_unit_test(kept_files_are_listed_and_not_opened),
      cmocka_unit_test(gathered_checkpoint_is_at_the_master),
      cmocka_unit_test(prune_reports_files_at_workers),
      cmocka_unit_test(prune_keeps_newest_checkpoints_and_foreign_files),
      cmocka_unit_test(file_changed_after_load_is_refused),
      cmocka_unit_test(renamed_checkpoint_is_not_the_latest),
      cmocka_unit_test(invalid_trainer_state_is_refused),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
