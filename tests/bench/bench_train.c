/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures training steps of a session file. The batches are prepared before the measurement, as in
 * the PyTorch programs of the comparison.
 *
 * usage: bench_train SESSION.yaml
 * commands: steps N   milliseconds of each of N steps
 *           wait N    milliseconds that the master waited in each of N steps
 *           window    window of the present schedule; 0: the schedule kind's own
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/engine/engine.h"
#include "master/train/train.h"
#include "tests/bench/bench_int.h"

enum { BATCHES = 32 };

typedef struct bench {
  clv_session_config *config;
  clv_run_data run_data;
  clv_blueprint *blueprint;
  clv_trainer *trainer;
  char record_path[32];
  clv_egress_record *record;
  clv_batch batches[BATCHES];
  size_t n_batches; /* number of batches that are trained, at most as many as the records fill */
  uint64_t next_batch;
} bench;

static void fill_batch(const clv_dataset *ds, const uint32_t *index, size_t n, clv_batch *batch) {
  clv_err err;
  clv_shape y = clv_dataset_y_shape(ds, n);
  batch->n = n;
  batch->n_inputs = clv_dataset_input_count(ds);
  for (size_t i = 0; i < batch->n_inputs; i++) {
    clv_data_input of = clv_dataset_input(ds, i, n);
    must(clv_tensor_new(of.dtype, &of.shape, &batch->inputs[i], &err), &err);
  }
  batch->x = batch->inputs[0];
  must(clv_tensor_new(clv_dataset_y_dtype(ds), &y, &batch->y, &err), &err);
  must(clv_batch_fill_inputs(ds, NULL, index, n, batch->inputs, batch->y, &err), &err);
}

static void make_batches(bench *b) {
  size_t n = b->config->train.batch, at = 0;
  b->n_batches = CLV_MAX(CLV_MIN(b->run_data.train_rows.n / n, (size_t)BATCHES), (size_t)1);
  for (size_t k = 0; k < b->n_batches; k++, at = (at + n) % b->run_data.train_rows.n) {
    if (at + n > b->run_data.train_rows.n) at = 0;
    fill_batch(b->run_data.train, b->run_data.train_rows.index + at, n, &b->batches[k]);
  }
}

static void open_session(bench *b, const char *path) {
  clv_err err;
  must(clv_session_config_load(path, NULL, &b->config, &err), &err);
  must(clv_run_data_open(b->config, true, &b->run_data, &err), &err);
  must(clv_blueprint_new_of_data(b->config, b->run_data.train, &b->blueprint, &err), &err);
  strcpy(b->record_path, "/tmp/cleave-bench-XXXXXX");
  int fd = mkstemp(b->record_path);
  if (fd < 0) exit_with_message("no file for the record");
  close(fd);
  must(clv_egress_open(b->record_path, &(clv_egress_line){0}, &b->record, &err), &err);
  must(clv_trainer_open(b->blueprint, b->record, CLV_TRAINER_NEW_RUN, &b->trainer, &err), &err);
  make_batches(b);
}

static void measure_steps(bench *b, unsigned n, bool reports_waits) {
  double *ms = allocate_samples(n);
  clv_err err;
  for (unsigned i = 0; i < n; i++) {
    const clv_step_result *r;
    uint32_t done;
    const clv_batch *batch = &b->batches[b->next_batch++ % b->n_batches];
    uint64_t begin = clv_now_ns();
    must(clv_trainer_step(b->trainer, batch, false, &done, &r, &err), &err);
    ms[i] = (double)(reports_waits ? r->wait_ns : clv_now_ns() - begin) / 1e6;
    if (!r->changed_weights) exit_with_message("a step was not applied");
  }
  print_list(ms, n);
  free(ms);
}

static void print_window(const bench *b) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  unsigned found = 0;
  clv_trainer_append_schedule_text(b->trainer, &text);
  const char *at = text.len ? strstr(text.data, " window ") : NULL;
  if (!at || sscanf(at, " window %u", &found) != 1) exit_with_message("no window in the schedule");
  print_list(&(double){found}, 1);
}

int main(int argc, char **argv) {
  static bench b;
  char line[128];
  unsigned n;
  if (argc != 2) exit_with_message("usage: bench_train SESSION.yaml");
  clv_tune_malloc(); /* tunes malloc as the main function of cleave-master does */
  open_session(&b, argv[1]);
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "steps %u", &n) == 1)
      measure_steps(&b, n, false);
    else if (sscanf(line, "wait %u", &n) == 1)
      measure_steps(&b, n, true);
    else if (strcmp(line, "window\n") == 0)
      print_window(&b);
    else
      exit_with_message("unknown command");
  }
  clv_trainer_close(b.trainer);
  (void)!clv_egress_close(b.record, 0, NULL);
  unlink(b.record_path);
  return 0;
}
