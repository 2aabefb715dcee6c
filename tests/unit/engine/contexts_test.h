/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that tests of contexts share: an engine without a node. A test hands frames to the
 * engine, lets the work end at once or later in any order, and gets the results.
 */
#ifndef CLEAVE_CONTEXTS_TEST_H
#define CLEAVE_CONTEXTS_TEST_H

#include "common/engine/context_int.h"
#include "tests/unit/engine/engine_test.h"

enum { ROWS = 2, COLUMNS = 3, TEST_MODULES = 4, MAX_STARTED = 64 };

/* The contexts of an engine, without a node. seed 0: work that was started ends at once. Other
 * seeds draw when started work ends, and which piece ends first. */
typedef struct engine {
  clv_pool *pool;
  const clv_backend *backend; /* backend of the modules; NULL: ref */
  /* [TEST_MODULES] backend of each module; NULL: `backend` for all */
  const clv_backend *const *backends;
  clv_module *modules[CLV_MODULE_ALL];
  clv_contexts *contexts;
  clv_executor executor;
  clv_work *started_work[MAX_STARTED];
  uint32_t n_started_work;
  uint64_t last_message, seed;
  /* started work ends only when engine_run_work is called with `ends_all` */
  bool holds_started_work;
  uint32_t n_cell_visits[TABLE_CELLS];
  void (*on_result)(struct engine *w, clv_result *r);
  void *user;
} engine;

static inline uint32_t draw_below(uint64_t *seed, uint32_t n) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33) % n;
}

static inline void on_work_start(void *user, clv_work *work) {
  engine *w = user;
  assert_true(w->n_started_work < MAX_STARTED);
  for (uint32_t i = 0; i < w->n_started_work; i++) /* a module runs one call at a time */
    assert_true(work->module == CLV_MODULE_ALL || w->started_work[i]->module != work->module);
  w->started_work[w->n_started_work++] = work;
}

static inline void engine_add_module(engine *w, uint32_t index, clv_op op) {
  clv_err err = {0};
  clv_module_options o = make_module_options(make_one_layer_graph(op, ROWS, COLUMNS), index);
  if (w->backend) o.backend = w->backend;
  if (w->backends) o.backend = w->backends[index];
  assert_ok(clv_module_new(&o, &w->modules[index], &err));
  clv_module_set_pool(w->modules[index], w->pool);
}

static inline void engine_open(engine *w, uint64_t seed) {
  static const clv_op ops[TEST_MODULES] = {CLV_OP_LINEAR, CLV_OP_BATCHNORM, CLV_OP_LINEAR,
                                           CLV_OP_TANH};
  clv_err err = {0};
  *w = (engine){.seed = seed,
                .backend = w->backend,
                .backends = w->backends,
                .on_result = w->on_result,
                .user = w->user};
  w->executor = (clv_executor){w, on_work_start};
  assert_ok(clv_pool_new(64 << 20, 4096, &w->pool, &err));
  for (uint32_t i = 0; i < TEST_MODULES; i++) engine_add_module(w, i, ops[i]);
  clv_contexts_env env = {.pool = w->pool,
                          .next_message = &w->last_message,
                          .modules = w->modules,
                          .executor = seed ? &w->executor : NULL,
                          .transition_counts = w->n_cell_visits};
  assert_ok(clv_contexts_new(&env, &w->contexts, &err));
}

static inline void engine_take_results(engine *w) {
  clv_result r;
  while (clv_contexts_take_result(w->contexts, &r)) {
    if (w->on_result)
      w->on_result(w, &r);
    else
      clv_packet_free(r.packet);
    clv_result_clear(w->contexts, &r);
  }
}

static inline void engine_end_work(engine *w, uint32_t work_index) {
  clv_err why, err = {0};
  clv_work *work = w->started_work[work_index];
  w->started_work[work_index] = w->started_work[--w->n_started_work];
  clv_code code = clv_work_compute(work, &why);
  assert_ok(clv_contexts_finish_work(w->contexts, work, code, &why, &err));
}

/* Starts the work that is ready. Then ends all started work if ends_all, else a random part of
 * it. */
static inline void engine_run_work(engine *w, bool ends_all) {
  clv_err err = {0};
  clv_code code;
  for (;;) {
    engine_take_results(w);
    if (clv_contexts_run_one(w->contexts, &code, &err)) {
      assert_ok(code);
      continue;
    }
    if (clv_contexts_handle_held_frame(w->contexts)) continue;
    if (!w->n_started_work || (!ends_all && (w->holds_started_work || draw_below(&w->seed, 3))))
      return;
    engine_end_work(w, draw_below(&w->seed, w->n_started_work));
  }
}

/* Handles a frame, whose packet it frees. Returns the result code. */
static inline clv_code engine_handle_packet(engine *w, clv_packet *p, clv_err *err) {
  bool is_kept;
  clv_code code = clv_contexts_handle_packet(w->contexts, p, &is_kept, err);
  if (!is_kept) clv_packet_free(p);
  engine_run_work(w, false);
  return code;
}

static inline void engine_close(engine *w) {
  engine_run_work(w, true);
  clv_contexts_free(w->contexts);
  for (uint32_t i = 0; i < TEST_MODULES; i++) clv_module_free(w->modules[i]);
  clv_pool_unref(w->pool);
}

static inline clv_tensor *engine_make_tensor(engine *w, float first_value) {
  clv_err err = {0};
  clv_tensor *t;
  assert_ok(clv_pool_alloc_tensor(w->pool, CLV_F32, &CLV_SHAPE(ROWS, COLUMNS), &t, &err));
  for (size_t i = 0; i < t->n; i++) ((float *)t->data)[i] = first_value + (float)(i * i) / 8;
  return t;
}

#endif
