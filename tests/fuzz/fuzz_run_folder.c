/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parsers of the small files of a run folder: the note of a run that is being moved
 * aside, the line of the best checkpoint, the counts of early stopping, the names of the classes,
 * the digests of the data, the list of files that workers still have to remove. Every accepted
 * value must be in the file as it was read. Accepted digests are compared with those of a file
 * config.json, as `export` does.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/history/history_int.h"
#include "master/run/run_int.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/dev/shm/cleave-fuzz-XXXXXX", config_path[64], digests_path[64];

static void remove_folder(void) {
  unlink(config_path);
  unlink(digests_path);
  rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  clv_err err;
  (void)argc, (void)argv;
  if (!mkdtemp(folder)) abort();
  snprintf(config_path, sizeof config_path, "%s/config.json", folder);
  snprintf(digests_path, sizeof digests_path, "%s/" CLV_RUN_DATA_FILE, folder);
  if (clv_file_write_durable(config_path, "{}\n", 3, 0600, &err) != CLV_OK) abort();
  return atexit(remove_folder);
}

static void parse_move_note(const char *text, size_t len) {
  clv_move_note m;
  if (clv_move_note_parse(text, len, "run.moving", &m, NULL) != CLV_OK) return;
  if (strtoul(text, NULL, 10) != m.number || !m.number || text[len - 1] != '\n') abort();
}

static void parse_best_checkpoint(const char *text, size_t len) {
  clv_best_checkpoint b;
  if (clv_best_checkpoint_parse(text, len, "checkpoint.best", &b, NULL) != CLV_OK) return;
  if (!isfinite(b.value) || b.step > INT64_MAX || b.metric == CLV_BEST_NONE) abort();
  if (!strstr(text, clv_best_metric_name(b.metric))) abort();
}

static void parse_stopping(const char *text, size_t len) {
  char parsed_again[CLV_EARLY_STOPPING_TEXT_BYTES];
  clv_early_stopping_state s;
  if (!clv_early_stopping_parse(text, &s)) return;
  clv_early_stopping_format(&s, parsed_again);
  if (len < strlen(parsed_again) || strcmp(text, parsed_again) != 0 || !isfinite(s.best)) abort();
}

static void parse_classes(const char *text, size_t len) {
  CLV_AUTO(clv_classes_free) clv_classes c = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes parsed_again = {0};
  if (clv_classes_parse(text, len, "classes", &c, NULL) != CLV_OK) return;
  for (size_t i = 0; i < c.n; i++) clv_bytes_printf(&parsed_again, "%s\n", c.names[i]);
  if (parsed_again.len != len || memcmp(parsed_again.data, text, len) != 0) abort();
}

/* Compares the model's config.json with the digest that the run recorded. If the digest differs or
 * is missing, the comparison must fail, or add a line to `notes` if the caller accepts the
 * change. */
static void compare_config(const char *text, size_t len) {
  const clv_session_config config = {.model = {.hf = folder}};
  CLV_AUTO(clv_bytes_done) clv_bytes notes = {0}, no_notes = {0};
  clv_err err = {0};
  if (clv_file_write_durable(digests_path, text, len, 0600, &err) != CLV_OK) abort();
  if (clv_run_compare_model_config(folder, &config, true, &notes, &err) != CLV_OK) abort();
  clv_code code = clv_run_compare_model_config(folder, &config, false, &no_notes, &err);
  if (code != CLV_OK && (code != CLV_DATA_LOSS || !notes.len)) abort();
}

static void parse_data_digests(const char *text, size_t len) {
  clv_data_digests parts;
  if (clv_data_digests_parse(text, len, "data.digest", &parts, NULL) != CLV_OK) return;
  if (!parts.n || parts.n > CLV_MAX_DATA_DIGESTS || text[len - 1] != '\n') abort();
  for (size_t i = 0; i < parts.n; i++)
    if (!parts.list[i].name[0] || !strstr(text, parts.list[i].name)) abort();
  compare_config(text, len);
}

static void parse_orphans(const char *text, size_t len) {
  CLV_AUTO(clv_orphans_done) clv_orphans l = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes parsed_again = {0};
  if (clv_orphans_parse(text, len, "kept.orphans", &l, NULL) != CLV_OK) return;
  for (size_t i = 0; i < l.n; i++) {
    if (!clv_is_file_name(l.list[i].kept_file_name) || !l.list[i].keeper_identity[0]) abort();
    clv_bytes_printf(&parsed_again, "%s %llu %s\n", l.list[i].kept_file_name,
                     (unsigned long long)l.list[i].bytes, l.list[i].keeper_identity);
  }
  if (parsed_again.len != len || (len && memcmp(parsed_again.data, text, len) != 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_puts(&text, "");
  clv_bytes_add(&text, data, size);
  if (text.failed) abort();
  parse_move_note(text.data, size);
  parse_best_checkpoint(text.data, size);
  parse_stopping(text.data, size);
  parse_classes(text.data, size);
  parse_data_digests(text.data, size);
  parse_orphans(text.data, size);
  return 0;
}
