/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs random programs: modules of several kinds at two nodes, called in random graphs (branches,
 * joins, the same module twice, results that nothing uses, frozen parts, several contexts and
 * backward passes), and the same program with every module at the master. All values, gradients and
 * refusals are equal to the bit, because every sum has a defined order. Usage:
 *   random_programs SESSION.yaml A B FIRST COUNT      replay: COUNT = 1
 */
#include <cleave.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, WIDTH = 4, N = ROWS * WIDTH, MAX_VALUES = 24, PLACEMENTS = 2, MAX_PROGRAMS = 3 };

typedef enum kind { LINEAR, RELU, TANH, FROZEN, JOIN, KINDS } kind;

static const char *const layers[KINDS] = {
    "[{op: linear, out: 4}]",
    "[{op: linear, out: 4}, {op: relu}]",
    "[{op: tanh}]",
    "[{op: linear, out: 4}, {op: sigmoid}]",
    NULL,
};

static cleave_runtime *rt;
static cleave_module *modules[PLACEMENTS][KINDS][2], *losses[PLACEMENTS][2];
static cleave_error e;
static uint32_t rng_state;

static uint32_t draw_below(uint32_t n) {
  rng_state = rng_state * 1664525u + 1013904223u;
  return (rng_state >> 10) % n;
}

static bool report_failure(cleave_status status) {
  if (status != CLEAVE_OK)
    printf("%s at '%s' %s: %s\n", cleave_status_name(status), e.node, e.place, e.text);
  return status == CLEAVE_OK;
}

/* ---- modules of the random programs ---------------------------------------------------------- */

static bool make_join(const cleave_module_options *o, cleave_module **ret) {
  static const int64_t shape[] = {ROWS, WIDTH};
  cleave_graph *g;
  int in[2];
  bool is_good = report_failure(cleave_graph_new(&g, &e)) &&
                 report_failure(cleave_graph_input(g, "left", CLEAVE_F32, shape, 2, &in[0], &e)) &&
                 report_failure(cleave_graph_input(g, "right", CLEAVE_F32, shape, 2, &in[1], &e)) &&
                 report_failure(cleave_graph_op(g, "add", NULL, NULL, in, 2, NULL, &e)) &&
                 report_failure(cleave_load_graph(rt, o, g, ret, &e));
  cleave_graph_free(g);
  return is_good;
}

static bool make_stages(int placement, const char *const at[2]) {
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, ROWS, WIDTH);
  const char *all[] = {"*"};
  for (int k = 0; k <= KINDS; k++)
    for (int i = 0; i < 2; i++) {
      char name[32];
      snprintf(name, sizeof name, "%d.%d.%d", placement, k, i);
      cleave_module_options o = {.size = sizeof o,
                                 .name = name,
                                 .at = placement ? at[i] : "master",
                                 .seed = 1 + (uint64_t)i,
                                 .first_layer = 10 * (uint32_t)k,
                                 .frozen = all,
                                 .n_frozen = k == FROZEN};
      bool is_good =
          k == KINDS
              ? report_failure(cleave_load_loss(rt, &o, "mse", &input, &losses[placement][i], &e))
          : k == JOIN ? make_join(&o, &modules[placement][k][i])
                      : report_failure(cleave_load_layers(rt, &o, layers[k], &input,
                                                          &modules[placement][k][i], &e));
      if (!is_good) return false;
    }
  return true;
}

/* ---- running one random program -------------------------------------------------------------- */

/* Results of a run in order, as bytes: the statuses of calls and the numbers of tensors. */
typedef struct run_record {
  unsigned char *bytes;
  size_t n, cap;
} run_record;

static void add_to_record(run_record *s, const void *bytes, size_t n) {
  if (s->n + n > s->cap) {
    s->cap = 2 * (s->n + n);
    s->bytes = realloc(s->bytes, s->cap);
    if (!s->bytes) abort();
  }
  memcpy(s->bytes + s->n, bytes, n);
  s->n += n;
}

static void add_tensor_to_record(run_record *s, cleave_status status, const cleave_tensor *t) {
  add_to_record(s, &status, sizeof status);
  if (status == CLEAVE_OK) add_to_record(s, t->data, cleave_tensor_count(t) * 4);
}

typedef struct program {
  int placement_index;
  cleave_context context;
  cleave_reference values[MAX_VALUES], root_values[2];
  bool is_leaf[MAX_VALUES];
  int n, n_roots;
} program;

static bool add_leaf(program *p, bool needs_gradient, cleave_reference *ret) {
  float numbers[N];
  for (int i = 0; i < N; i++) numbers[i] = (float)draw_below(2001) / 1000 - 1;
  cleave_tensor t = CLEAVE_TENSOR_F32(numbers, ROWS, WIDTH);
  return report_failure(cleave_leaf(rt, p->context, &t, needs_gradient, ret, &e));
}

static bool build_program(program *p) {
  p->n = 1 + (int)draw_below(3);
  if (!report_failure(cleave_context_open(rt, NULL, &p->context, &e))) return false;
  for (int i = 0; i < p->n; i++) {
    p->is_leaf[i] = true;
    if (!add_leaf(p, draw_below(2), &p->values[i])) return false;
  }
  for (int n_calls_left = 2 + (int)draw_below(12); n_calls_left > 0; n_calls_left--) {
    uint32_t k = draw_below(KINDS), node_index = draw_below(2);
    cleave_reference in[] = {p->values[draw_below((uint32_t)p->n)],
                             p->values[draw_below((uint32_t)p->n)]};
    p->is_leaf[p->n] = false;
    if (!report_failure(cleave_call(rt, p->context, modules[p->placement_index][k][node_index], in,
                                    k == JOIN ? 2 : 1, &p->values[p->n++], &e)))
      return false;
  }
  p->n_roots = 1 + (int)draw_below(2);
  for (int i = 0; i < p->n_roots; i++) {
    cleave_reference in[2] = {p->values[p->n - 1 - (int)draw_below((uint32_t)p->n / 2 + 1)], {0}};
    if (!add_leaf(p, false, &in[1]) ||
        !report_failure(cleave_call(rt, p->context, losses[p->placement_index][draw_below(2)], in,
                                    2, &p->root_values[i], &e)))
      return false;
  }
  return true;
}

/* Runs one or two backwards, records the results and ends the context. A backward may be refused
 * only if its roots depend on no trained parameter. */
static bool finish_program(program *p, bool runs_twice, run_record *s) {
  static cleave_tensor t;
  for (int pass = 0; pass <= runs_twice; pass++) {
    cleave_status status = cleave_backward(rt, p->context, p->root_values, (size_t)p->n_roots,
                                           runs_twice && !pass, 0, &e);
    if (status != CLEAVE_OK && !strstr(e.text, "depends on no parameter"))
      return report_failure(status);
    add_to_record(s, &status, sizeof status);
  }
  for (int i = 0; i < p->n; i++) {
    if (p->is_leaf[i])
      add_tensor_to_record(s, cleave_leaf_gradient(rt, p->values[i], &t, &e), &t);
    else
      add_tensor_to_record(s, cleave_to_here(rt, p->values[i], 0, &t, &e), &t);
  }
  for (int k = 0; k < KINDS; k++)
    for (int i = 0; i < 2; i++) {
      cleave_module *m = modules[p->placement_index][k][i];
      for (size_t w = 0; cleave_module_weight_name(m, w); w++)
        add_tensor_to_record(
            s, cleave_gradient(rt, p->context, m, cleave_module_weight_name(m, w), 0, &t, &e), &t);
    }
  cleave_status close_status = cleave_context_close(rt, p->context, 0, &e);
  add_to_record(s, &close_status, sizeof close_status);
  return report_failure(close_status);
}

static bool run_program(int placement, uint32_t seed, run_record *s) {
  program p[MAX_PROGRAMS];
  rng_state = seed * 2654435761u + 1;
  int n = 1 + (int)draw_below(MAX_PROGRAMS);
  bool runs_twice = draw_below(4) == 0;
  s->n = 0;
  for (int i = 0; i < n; i++) {
    p[i] = (program){.placement_index = placement};
    if (!build_program(&p[i])) return false;
  }
  for (int i = n; i-- > 0;)
    if (!finish_program(&p[i], runs_twice, s)) return false;
  return true;
}

int main(int argc, char **argv) {
  run_record at_master = {0}, at_two_nodes = {0};
  size_t n_compared = 0;
  if (argc < 6) return 2;
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000};
  const char *const at[] = {argv[2], argv[3]};
  if (!report_failure(cleave_open(argv[1], &o, &rt, &e)) || !make_stages(0, at) ||
      !make_stages(1, at))
    return 1;
  uint32_t first_seed = (uint32_t)atol(argv[4]), n_seeds = (uint32_t)atol(argv[5]);
  for (uint32_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
    bool is_good = run_program(0, seed, &at_master) && run_program(1, seed, &at_two_nodes);
    if (!is_good || at_master.n != at_two_nodes.n ||
        memcmp(at_master.bytes, at_two_nodes.bytes, at_master.n) != 0) {
      printf("not ok random_programs_equal_the_run_at_home: seed %u differs (%zu and %zu bytes)\n",
             seed, at_master.n, at_two_nodes.n);
      return 1;
    }
    n_compared += at_master.n;
  }
  free(at_master.bytes);
  free(at_two_nodes.bytes);
  if (!report_failure(cleave_close(rt, 0, NULL, &e))) return 1;
  printf("ok random_programs_equal_the_run_at_home (%u programs from seed %u, %zu bytes equal)\n",
         n_seeds, first_seed, n_compared);
  return 0;
}
