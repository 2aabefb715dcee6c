/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the steps of a training after warm-up: a step allocates no memory, and the library reorders
 * tensors exactly as often as `plan` says. Master and worker run in one process over real mutual
 * TLS on loopback, so that one counter covers the allocations of both.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "master/train/train.h"
#include "worker/service/service.h"

/* A pool of received tensors grows to as many micro-batches as ever were on their way at once. On
 * a loaded machine the warm-up may have had fewer than a later step, so up to TRIES times MEASURED
 * steps are measured, until none allocates. */
enum { WARM_UP = 30, MEASURED = 20, TRIES = 4, BATCH = 48, MICRO = 3 };

/* Number of allocations by the project's own objects. The linker's option --wrap redirects their
 * calls of malloc, calloc, realloc and aligned_alloc to the functions below. */
static _Atomic uint64_t n_allocations;
/* true while steps are measured; if CLV_TEST_TRAP is set, an allocation then stops the program in
 * the debugger */
static _Atomic bool is_counting;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t a, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t a, size_t n);

static void count_allocation(void) {
  n_allocations++;
  if (is_counting && getenv("CLV_TEST_TRAP")) __builtin_trap();
}

void *__wrap_malloc(size_t n) {
  count_allocation();
  return __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t m) {
  count_allocation();
  return __real_calloc(n, m);
}
void *__wrap_realloc(void *p, size_t n) {
  count_allocation();
  return __real_realloc(p, n);
}
void *__wrap_aligned_alloc(size_t a, size_t n) {
  count_allocation();
  return __real_aligned_alloc(a, n);
}

static char dir[] = "/tmp/cleave-hot-XXXXXX";

static void issue_certificate(const char *name, const char *uri) {
  clv_err err;
  clv_tls_issue_options o = {.ca_dir = dir,
                             .cert_name = name,
                             .uris = &uri,
                             .n_uris = 1,
                             .validity_days = 2,
                             .not_before_offset_s = -300};
  if (clv_tls_issue_cert(&o, &err) != CLV_OK) fail_msg("%s", err.text);
}

static clv_tls_identity *load_identity(const char *name) {
  char ca[64], cert[64], key[64];
  clv_tls_identity *id;
  clv_err err;
  snprintf(ca, sizeof ca, "%s/ca.pem", dir);
  snprintf(cert, sizeof cert, "%s/%s.pem", dir, name);
  snprintf(key, sizeof key, "%s/%s.key", dir, name);
  if (clv_tls_identity_load(ca, cert, key, &id, &err) != CLV_OK) fail_msg("%s", err.text);
  return id;
}

typedef struct world {
  clv_worker_config *worker_config;
  clv_tls_identity *worker_identity;
  clv_rpc_runtime *runtime;
  clv_service *service;
  clv_session_config *config;
  clv_run_data data;
  clv_blueprint *blueprint;
  clv_trainer *trainer;
  clv_egress_record *record;
  clv_loader *loader;
} world;

static void start_worker(world *w) {
  clv_err err;
  char text[1024];
  int n = snprintf(text, sizeof text,
                   "name: w\nlisten: 127.0.0.1:0\ntls: {ca: ca.pem, cert: w.pem, key: w.key}\n"
                   "allow:\n  - {identity: \"spiffe://t/master\", role: master}\n");
  char path[64];
  snprintf(path, sizeof path, "%s/worker.yaml", dir);
  if (clv_worker_config_parse(path, text, (size_t)n, NULL, &w->worker_config, &err) != CLV_OK)
    fail_msg("%s", err.text);
  w->worker_identity = load_identity("w");
  clv_rpc_runtime_options ro = {.n_queue_threads = 2};
  if (clv_rpc_runtime_new(&ro, &w->runtime, &err) != CLV_OK) fail_msg("%s", err.text);
  if (clv_service_open(w->worker_config, &(clv_backends){0}, w->worker_identity, w->runtime,
                       &w->service, &err) != CLV_OK)
    fail_msg("%s", err.text);
}

static const char session_text[] =
    "version: 1\nname: hot\n"
    "tls: {ca: ca.pem, cert: master.pem, key: master.key}\n"
    "workers:\n  w: {address: \"127.0.0.1:%u\", identity: \"spiffe://t/w\"}\n"
    "data:\n  format: idx\n  root: /usr/share/datasets/fashion-mnist\n"
    "  train: [train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz]\n  limit_train: 960\n"
    "stages:\n"
    "  - {name: a, at: master, layers: [{op: conv2d, out: 16, kernel: 3, pad: 1}, {op: batchnorm}, "
    "{op: relu}, {op: maxpool, kernel: 2}]}\n"
    "  - {name: b, at: w, layers: [{op: conv2d, out: 24, kernel: 3, pad: 1}, {op: relu}, {op: "
    "avgpool, kernel: 2}, {op: dropout, p: 0.3}]}\n"
    "  - {name: c, at: master, layers: [{op: flatten}, {op: linear, out: 40}, {op: tanh}, {op: "
    "linear, out: 10}]}\n"
    "loss: {kind: cross_entropy}\nprivacy: {front_known: true, labels_readable: true}\n"
    "train: {epochs: 100, batch: 48, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, clip_grad_norm: 1.0, "
    "optimizer: {kind: adam, lr: "
    "0.001}}\n"
    "pipeline: {micro_batches: 3, window: textbook}\n";

static void start_master(world *w) {
  clv_err err;
  char text[4096], path[64];
  int n = snprintf(text, sizeof text, session_text, clv_service_port(w->service));
  snprintf(path, sizeof path, "%s/session.yaml", dir);
  if (clv_session_config_parse(path, text, (size_t)n, NULL, &w->config, &err) != CLV_OK ||
      clv_run_data_open(w->config, true, &w->data, &err) != CLV_OK)
    fail_msg("%s", err.text);
  clv_shape sample = clv_dataset_x_shape(w->data.train, 1);
  snprintf(path, sizeof path, "%s/" CLV_EGRESS_FILE, dir);
  if (clv_blueprint_new(w->config, &sample, CLV_I64, &w->blueprint, &err) != CLV_OK ||
      clv_egress_open(path, &(clv_egress_line){0}, &w->record, &err) != CLV_OK ||
      clv_trainer_open(w->blueprint, w->record, CLV_TRAINER_NEW_RUN, &w->trainer, &err) != CLV_OK)
    fail_msg("%s", err.text);
  clv_batches_options bo = {
      .subset = &w->data.train_rows, .batch_size = BATCH, .shuffles = true, .seed = 3};
  if (clv_loader_new(w->data.train, &bo, &w->loader, &err) != CLV_OK) fail_msg("%s", err.text);
}

static void stop_both(world *w) {
  clv_loader_free(w->loader);
  clv_trainer_close(w->trainer);
  (void)!clv_egress_close(w->record, 0, NULL);
  clv_blueprint_free(w->blueprint);
  clv_run_data_done(&w->data);
  clv_session_config_free(w->config);
  clv_service_close(w->service);
  clv_rpc_runtime_free(w->runtime);
  clv_tls_identity_free(w->worker_identity);
  clv_worker_config_free(w->worker_config);
}

static void run_steps(world *w, int n) {
  clv_err err;
  clv_batch batch;
  const clv_step_result *r;
  uint32_t done;
  for (int i = 0; i < n; i++) {
    if (clv_loader_next(w->loader, &batch, &err) != CLV_OK ||
        clv_trainer_step(w->trainer, &batch, false, &done, &r, &err) != CLV_OK)
      fail_msg("%s", err.text);
    assert_int_equal(batch.n, BATCH);
    assert_true(done == 1 && r->changed_weights);
  }
}

/* Returns the number of reorders (changes of a tensor's layout) in a step, which `plan` prints for
 * each stage, summed over all stages. */
static uint64_t sum_planned_reorders(const world *w) {
  CLV_AUTO(clv_bytes_done) clv_bytes json = {0};
  clv_err err;
  uint64_t sum = 0;
  if (clv_blueprint_describe(w->blueprint, true, &json, &err) != CLV_OK) fail_msg("%s", err.text);
  for (const char *at = json.data; (at = strstr(at, "\"reorders_per_step\":")) != NULL; at++)
    sum += strtoull(at + 20, NULL, 10);
  return sum;
}

typedef struct step_costs {
  uint64_t allocations;      /* by the project's own objects */
  uint64_t base_allocations; /* by clv_alloc and its siblings */
  uint64_t reorders;         /* by the library, of tensors' layouts */
} step_costs;

static step_costs count_costs(void) {
  return (step_costs){n_allocations, clv_alloc_count(), clv_backend_cpu()->reorder_count()};
}

static step_costs measure_steps(world *w) {
  step_costs before = count_costs();
  is_counting = true;
  run_steps(w, MEASURED);
  is_counting = false;
  step_costs after = count_costs();
  return (step_costs){after.allocations - before.allocations,
                      after.base_allocations - before.base_allocations,
                      after.reorders - before.reorders};
}

static void training_step_allocates_nothing_and_reorders_as_planned(void **state) {
  (void)state;
  world w = {0};
  clv_err err;
  assert_non_null(mkdtemp(dir));
  assert_int_equal(clv_tls_set_min_version(&err), CLV_OK);
  assert_int_equal(clv_tls_ca_init(dir, "test", 30, &err), CLV_OK);
  issue_certificate("w", "spiffe://t/w");
  issue_certificate("master", "spiffe://t/master");
  clv_log_set(CLV_LOG_ERROR, false);
  start_worker(&w);
  start_master(&w);
  uint64_t n_planned_reorders = sum_planned_reorders(&w);
  run_steps(&w, WARM_UP);
  step_costs costs = measure_steps(&w);
  for (int i = 1; i < TRIES && costs.allocations; i++) {
    print_message("allocations in %d steps: %llu\n", MEASURED,
                  (unsigned long long)costs.allocations);
    costs = measure_steps(&w);
  }
  print_message("allocations in %d steps: %llu; library reorders a step: %g, planned %llu\n",
                MEASURED, (unsigned long long)costs.allocations, (double)costs.reorders / MEASURED,
                (unsigned long long)n_planned_reorders);
  stop_both(&w);
  assert_int_equal(costs.allocations, 0);
  assert_int_equal(costs.base_allocations, 0);
  assert_int_equal(costs.reorders, n_planned_reorders * MEASURED);
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", dir);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_step_allocates_nothing_and_reorders_as_planned)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
