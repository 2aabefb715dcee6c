/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_test: makes small transformers over padded sequences and over packed ones, and compares
 * them on any backend.
 */
#ifndef CLEAVE_PACKED_TEST_H
#define CLEAVE_PACKED_TEST_H

#include <math.h>

#include "tests/unit/graph/plan_test.h"

enum {
  SEQUENCES = 4,
  MAX_STEPS = 37,
  FEATURES = 12,
  CLASSES = 5,
  VOCABULARY = 50,
  EMPTY_SEQUENCE = 2
};

/* A batch of sequences, one of full length and one empty. The first sequence has 5 * 12 values, so
 * it ends inside a block of random numbers. */
typedef struct batch {
  int64_t n_steps, lengths[SEQUENCES], n_rows; /* n_rows: sum of the lengths */
} batch;

/* In the longest sequence of wide_batch a query has more keys than a warp of a GPU has threads; in
 * narrow_batch one warp suffices. */
static const batch wide_batch = {MAX_STEPS, {5, MAX_STEPS, 0, 20}, 5 + MAX_STEPS + 20},
                   narrow_batch = {13, {5, 13, 0, 8}, 5 + 13 + 8};

typedef enum family { BERT, LLAMA, FAMILIES } family;

static inline int add_joining_node(clv_graph *g, clv_op op, uint32_t layer, const int *in, int n,
                                   const clv_attr_value *values, int n_values) {
  clv_attrs attrs;
  int node = -1;
  assert_ok(clv_attrs_parse(op, values, n_values, &attrs, err));
  assert_ok(clv_graph_add(g, op, &attrs, NULL, layer, in, n, &node, err));
  return node;
}

static inline int add_block(clv_graph *g, family model_family, uint32_t *layer, int x,
                            int lengths_at) {
  clv_attr_value heads = make_int_attr(CLV_ATTR_HEADS, 3),
                 width = make_int_attr(CLV_ATTR_SHAPE, FEATURES);
  clv_attr_value attention_attrs[] = {heads, make_int_attr(CLV_ATTR_CAUSAL, model_family == LLAMA),
                                      make_real_attr(CLV_ATTR_P, 0.3)};
  clv_op norm = model_family == BERT ? CLV_OP_LAYERNORM : CLV_OP_RMSNORM;
  int q = add_linear(g, (*layer)++, x, FEATURES), k = add_linear(g, (*layer)++, x, FEATURES);
  int v = add_linear(g, (*layer)++, x, FEATURES);
  if (model_family == LLAMA) q = add_node(g, CLV_OP_ROTARY, (*layer)++, q, -1, &heads, 1);
  if (model_family == LLAMA) k = add_node(g, CLV_OP_ROTARY, (*layer)++, k, -1, &heads, 1);
  int in[] = {q, k, v, lengths_at};
  int y = add_joining_node(g, CLV_OP_ATTENTION, (*layer)++, in, 4, attention_attrs, 3);
  y = add_dropout(g, (*layer)++, y, 0.25);
  x = add_joining_node(g, CLV_OP_ADD, (*layer)++, (int[]){x, y}, 2, NULL, 0);
  x = add_node(g, norm, (*layer)++, x, -1, &width, 1);
  y = add_plain(g, CLV_OP_GELU, *layer + 1, add_linear(g, *layer, x, 2 * FEATURES));
  *layer += 2;
  y = add_linear(g, (*layer)++, y, FEATURES);
  return add_joining_node(g, CLV_OP_MUL, (*layer)++, (int[]){x, y}, 2, NULL, 0);
}

/* Positions of a sequence that a graph's output has: all of them, the last one or the first one. */
typedef enum output_positions { ALL_POSITIONS, LAST_POSITION, FIRST_POSITION } output_positions;

/* Returns a graph of embedding, positions, two blocks and dropout over an odd number of values. */
static inline clv_graph *make_padded_graph(const batch *b, family model_family,
                                           output_positions outputs, uint32_t *ret_layers) {
  int x, at;
  uint32_t layer = 0;
  clv_graph *g = make_graph(CLV_I64, CLV_SHAPE(SEQUENCES, b->n_steps), &x);
  clv_attr_value table_attrs[] = {make_int_attr(CLV_ATTR_ROWS, VOCABULARY),
                                  make_int_attr(CLV_ATTR_OUT, FEATURES)};
  clv_attr_value rows[] = {make_int_attr(CLV_ATTR_ROWS, b->n_steps + 3),
                           make_int_attr(CLV_ATTR_OFFSET, 2)};
  assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(SEQUENCES), &at, err));
  x = add_node(g, CLV_OP_EMBEDDING, layer++, x, -1, table_attrs, 2);
  x = add_node(g, CLV_OP_POSITIONS, layer++, x, -1, rows, 2);
  for (int i = 0; i < 2; i++) x = add_block(g, model_family, &layer, x, at);
  x = add_linear(g, layer++, x, CLASSES);
  x = add_dropout(g, layer++, x, 0.1);
  clv_attr_value slice_attrs[] = {make_int_attr(CLV_ATTR_DIM, 1), make_int_attr(CLV_ATTR_STOP, 1)};
  if (outputs == LAST_POSITION)
    x = add_joining_node(g, CLV_OP_LAST, layer++, (int[]){x, at}, 2, NULL, 0);
  if (outputs == FIRST_POSITION) x = add_node(g, CLV_OP_SLICE, layer++, x, -1, slice_attrs, 2);
  if (outputs == FIRST_POSITION) add_plain(g, CLV_OP_FLATTEN, layer++, x);
  *ret_layers = layer;
  return g;
}

static inline clv_graph *make_packed_graph(const clv_graph *g, int64_t rows) {
  clv_graph *p = NULL;
  int64_t batches[CLV_MAX_INPUTS] = {rows, SEQUENCES};
  assert_ok(clv_graph_pack_sequences(g, &p, err));
  assert_ok(clv_graph_set_batches(p, batches, err));
  return p;
}

/* Copies the rows of the sequences, of `width` bytes each, without the padding rows. */
static inline void copy_without_padding(const batch *b, const void *padded, size_t width,
                                        void *ret) {
  char *to = ret;
  for (int i = 0; i < SEQUENCES; i++)
    for (int64_t s = 0; s < b->lengths[i]; s++, to += width)
      memcpy(to, (const char *)padded + (size_t)(i * b->n_steps + s) * width, width);
}

static inline void set_padding_to_zero(const batch *b, void *padded, size_t width) {
  for (int i = 0; i < SEQUENCES; i++)
    memset((char *)padded + (size_t)(i * b->n_steps + b->lengths[i]) * width, 0,
           (size_t)(b->n_steps - b->lengths[i]) * width);
}

/* Gives the padded and the packed graph the same records and output gradients. The packed graph has
 * `rows` rows; the rows after the last sequence belong to no sequence. */
static inline void copy_records(const batch *b, rig *padded, rig *packed, int64_t rows,
                                bool has_one_output) {
  size_t width = has_one_output ? 0 : CLASSES * sizeof(float);
  for (int64_t i = 0; i < SEQUENCES * b->n_steps; i++)
    ((int64_t *)(void *)padded->in[0])[i] = i * 7 % VOCABULARY;
  memset(packed->in[0], 0, (size_t)rows * sizeof(int64_t));
  copy_without_padding(b, padded->in[0], sizeof(int64_t), packed->in[0]);
  memcpy(padded->in[1], b->lengths, sizeof b->lengths);
  memcpy(packed->in[1], b->lengths, sizeof b->lengths);
  /* an empty sequence has no first or last position, so its output gradient is 0 */
  if (has_one_output) {
    memset(padded->dout + EMPTY_SEQUENCE * CLASSES * sizeof(float), 0, CLASSES * sizeof(float));
    memcpy(packed->dout, padded->dout, padded->output_bytes);
    return;
  }
  set_padding_to_zero(b, padded->dout, width);
  memset(packed->dout, 0, packed->output_bytes);
  copy_without_padding(b, padded->dout, width, packed->dout);
}

/* Returns the relative distance of a and b. b NULL: the distance of a from 0. */
static inline double compute_distance(const float *a, const float *b, size_t n) {
  double squares = 0;
  for (size_t i = 0; i < n; i++) {
    double distance = a[i] - (double)(b ? b[i] : 0);
    squares += distance * distance;
  }
  return sqrt(squares);
}

/* Asserts that the gradients of all parameters, as one vector, are close. They are not compared one
 * by one, because some are only rounding errors: softmax ignores the bias of the keys, and under a
 * causal mask the first position attends only to itself. */
static inline void assert_gradients_near(const rig *a, const rig *b) {
  const clv_params *all = a->params;
  double size = 0;
  int n_compared = 0;
  for (int i = 0; i < all->n; i++)
    size = hypot(size, compute_distance(get_gradient(a, all->list[i].name), NULL, all->list[i].n));
  for (int i = 0; i < all->n; i++) {
    const clv_param *p = &all->list[i];
    const float *x = get_gradient(a, p->name);
    double distance = compute_distance(x, get_gradient(b, p->name), p->n),
           model_family = compute_distance(x, NULL, p->n);
    n_compared += model_family > 0;
    if (!(distance <= 1e-6 * CLV_MAX(model_family, size / 100)))
      fail_msg("%s is %g apart, of %g", p->name, distance, model_family);
  }
  assert_true(n_compared > all->n / 2);
}

/* Asserts that values are equal. On the backend cpu they need only be close, because its products
 * come from a library whose sums of a row depend, with AVX2 alone, on the rows before it. */
static inline void assert_values_near(const rig *a, const rig *b, size_t bytes) {
  const float *x = (const void *)a->out, *y = (const void *)b->out;
  size_t n = bytes / sizeof(float);
  if (a->plan->backend != clv_backend_cpu()) assert_same_bytes(x, y, bytes, "a value");
  double distance = compute_distance(x, y, n), norm = compute_distance(x, NULL, n);
  if (!(distance <= 1e-6 * norm)) fail_msg("values are %g apart, of %g", distance, norm);
}

/* Compares the results of a packed graph with those of the padded graph. n_extra_rows: rows that
 * belong to no sequence. */
static inline void compare_packed_with_padded(const batch *b, family model_family,
                                              output_positions outputs, int64_t n_extra_rows,
                                              const rig_options *o) {
  uint32_t layers;
  int64_t rows = b->n_rows + n_extra_rows;
  clv_graph *g = make_padded_graph(b, model_family, outputs, &layers),
            *p = make_packed_graph(g, rows);
  rig padded = make_rig(g, o), packed = make_rig(p, o);
  copy_records(b, &padded, &packed, rows, outputs);
  run_step(&padded);
  run_step(&packed);
  size_t width = CLASSES * sizeof(float);
  if (!outputs) copy_without_padding(b, padded.out, width, padded.out);
  if (outputs == FIRST_POSITION) memset(padded.out + EMPTY_SEQUENCE * width, 0, width);
  assert_values_near(&padded, &packed, outputs ? padded.output_bytes : (size_t)b->n_rows * width);
  if (!o->is_evaluation) assert_gradients_near(&padded, &packed);
  free_rig(&padded);
  free_rig(&packed);
}

/* ---- graphs cut into two parts --------------------------------------------------------------- */

/* Returns the graph as a node loads it: the maximal number of positions is removed, and the inputs
 * get these batch sizes. */
static inline clv_graph *strip_to_loaded_graph(clv_graph *g,
                                               const int64_t batches[CLV_MAX_INPUTS]) {
  for (int i = 0; i < g->n_nodes; i++) g->nodes[i].max_positions = 0;
  assert_ok(clv_graph_set_batches(g, batches, err));
  return g;
}

/* Cuts the graph before `layer`, runs both parts one after the other, and compares the results with
 * those of the uncut graph. */
static inline void compare_with_cut(const batch *s, const clv_graph *g, uint32_t layer,
                                    uint32_t layers, const rig *whole, const rig_options *o) {
  int64_t batches[CLV_MAX_INPUTS] = {s->n_rows + 2, SEQUENCES};
  clv_graph *first, *second;
  assert_ok(clv_graph_slice(g, 0, layer, &first, err));
  assert_ok(clv_graph_slice(g, layer + 1, layers - 1, &second, err));
  assert_int_equal(first->nodes[first->output_node].max_positions, s->n_steps);
  rig a = make_rig(strip_to_loaded_graph(first, batches), o),
      b = make_rig(strip_to_loaded_graph(second, batches), o);
  clv_call *call;
  for (int i = 0; i < a.n_in; i++) memcpy(a.in[i], whole->in[i], a.input_bytes[i]);
  if (b.n_in > 1) memcpy(b.in[1], s->lengths, sizeof s->lengths);
  assert_ok(clv_plan_call_get(a.plan, &call, err));
  run_forward(&a, call);
  memcpy(b.in[0], a.out, a.output_bytes);
  memcpy(b.dout, whole->dout, b.output_bytes);
  run_step(&b);
  memcpy(a.dout, b.din[0], a.output_bytes);
  run_backward_input(&a, call, false);
  run_backward_weight(&a, call, false);
  clv_plan_call_put(a.plan, call);
  assert_same_bytes(b.out, whole->out, b.output_bytes, "the value behind a cut");
  for (int i = 0; i < whole->params->n; i++) {
    const clv_param *p = &whole->params->list[i];
    assert_same_bytes(get_gradient(clv_params_find(a.params, p->name) ? &a : &b, p->name),
                      get_gradient(whole, p->name), p->bytes, p->name);
  }
  free_rig(&a);
  free_rig(&b);
}

/* Compares the two parts of every `cut_interval`-th cut with the uncut graph, beginning with cut
 * number first_cut. */
static inline void compare_with_cuts(const batch *s, family model_family, int cut_interval,
                                     int first_cut, const rig_options *o) {
  uint32_t layers;
  clv_graph *g = make_padded_graph(s, model_family, ALL_POSITIONS, &layers),
            *p = make_packed_graph(g, s->n_rows + 2);
  rig padded = make_rig(g, o), whole = make_rig(make_packed_graph(g, s->n_rows + 2), o);
  int n_cuts = 0, n_made = 0;
  copy_records(s, &padded, &whole, s->n_rows + 2, false);
  run_step(&whole);
  for (uint32_t layer = 0; layer + 1 < layers; layer++) {
    if (clv_graph_check_cut(p, layer, &(clv_err){0}) != CLV_OK) continue;
    if (n_cuts++ % cut_interval != first_cut % cut_interval) continue;
    compare_with_cut(s, p, layer, layers, &whole, o);
    n_made++;
  }
  assert_true(n_made > 0);
  if (cut_interval > 1) print_message("%d of %d cuts\n", n_made, n_cuts);
  free_rig(&padded);
  free_rig(&whole);
  clv_graph_free(p);
}

/* ---- lengths that are refused ---------------------------------------------------------------- */

/* Runs forward and waits, because a device reports errors only when it is waited for. */
static inline clv_code forward_and_wait(rig *r, clv_call *c, clv_err *why) {
  const clv_backend *b = r->plan->backend;
  clv_code code = try_forward(r, c, why);
  int64_t layer;
  return code == CLV_OK && b->memory ? b->memory->finish(b, &layer, why) : code;
}

/* Asserts that lengths from a peer are refused if one is out of range, or if they add up to more
 * than the rows. */
static inline void assert_lengths_refused(const clv_backend *backend) {
  static const struct {
    int64_t lengths[SEQUENCES];
    const char *text;
  } all[] = {{{5, 38, 0, 1}, "the length of sample 1 is outside 0..37"},
             {{5, -1, 0, 1}, "the length of sample 1 is outside 0..37"},
             {{30, 30, 0, 3}, "the lengths up to sample 3 add up to more than 62 rows"},
             {{37, 37, INT64_MAX, 3}, "the lengths up to sample 1 add up to more than 62 rows"}};
  static const clv_op first[] = {CLV_OP_DROPOUT, CLV_OP_ROTARY, CLV_OP_POSITIONS, CLV_OP_ATTENTION,
                                 CLV_OP_LAST};
  for (size_t f = 0; f < CLV_COUNT(first); f++)
    for (size_t i = 0; i < CLV_COUNT(all); i++) {
      int x, at;
      clv_attr_value v[] = {make_int_attr(CLV_ATTR_PACKED, MAX_STEPS),
                            make_int_attr(CLV_ATTR_HEADS, 3)};
      clv_graph *g = make_graph(CLV_F32, CLV_SHAPE(wide_batch.n_rows, FEATURES), &x);
      assert_ok(clv_graph_add_input(g, "lengths", CLV_I64, &CLV_SHAPE(SEQUENCES), &at, err));
      bool heads = first[f] == CLV_OP_ROTARY || first[f] == CLV_OP_ATTENTION;
      if (first[f] == CLV_OP_POSITIONS) v[1] = make_int_attr(CLV_ATTR_ROWS, MAX_STEPS);
      int in[] = {x, x, x, at}, two[] = {x, at};
      bool four = first[f] == CLV_OP_ATTENTION;
      add_joining_node(g, first[f], 0, four ? in : two, four ? 4 : 2, v,
                       heads || first[f] == CLV_OP_POSITIONS ? 2 : 1);
      rig r = make_rig(g, &(rig_options){.backend = backend});
      memcpy(r.in[1], all[i].lengths, sizeof all[i].lengths);
      clv_call *call;
      assert_ok(clv_plan_call_get(r.plan, &call, err));
      assert_fails(forward_and_wait(&r, call, err), CLV_INVALID, all[i].text);
      clv_plan_call_put(r.plan, call);
      free_rig(&r);
    }
}

#endif
