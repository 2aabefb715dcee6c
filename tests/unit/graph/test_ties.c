/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a parameter that two layers share (a tie): compares its gradient with finite differences of
 * the loss, and the results of two modules with those of one module, bit by bit. Also tests which
 * ties are refused.
 */
#include <math.h>

#include "tests/unit/graph/plan_test.h"

enum { N = 3, PLACES = 4, ROWS = 5, WIDTH = 6 };

/* Returns a language model: an embedding, a square linear layer with tanh, and a linear output
 * layer that is tied to the embedding's table. */
static clv_graph *make_language_model(clv_dtype dtype) {
  int x;
  clv_graph *g = make_graph(CLV_I64, CLV_SHAPE(N, PLACES), &x);
  clv_attr_value rows[] = {make_int_attr(CLV_ATTR_ROWS, ROWS), make_int_attr(CLV_ATTR_OUT, WIDTH)};
  clv_attr_value out[] = {make_int_attr(CLV_ATTR_OUT, ROWS), make_int_attr(CLV_ATTR_BIAS, 1)};
  g->dtype = dtype;
  x = add_node(g, CLV_OP_EMBEDDING, 0, x, -1, rows, 2);
  x = add_plain(g, CLV_OP_TANH, 2, add_linear(g, 1, x, WIDTH));
  x = add_node(g, CLV_OP_LINEAR, 3, x, -1, out, 2);
  assert_ok(clv_graph_tie_param(g, x, "0", false, err));
  return g;
}

/* ---- tied parameters in one module ----------------------------------------------------------- */

static const clv_param *get_table(const rig *r) { return clv_params_find(r->params, "0.weight"); }

/* Returns the gradient of table element i: the sum of the gradients from both layers. */
static double get_gradient_sum(const rig *r, size_t i) {
  const clv_param *table = get_table(r), *tied = &r->params->ties[0].param;
  const double *grads = (const double *)(const void *)r->gradient_block;
  return grads[table->gradient_offset / 8 + i] + grads[tied->gradient_offset / 8 + i];
}

static double compute_loss(rig *r) {
  clv_call *c;
  double sum = 0;
  assert_ok(clv_plan_call_get(r->plan, &c, err));
  run_forward(r, c);
  clv_plan_call_put(r->plan, c);
  for (size_t i = 0; i < r->output_bytes / 8; i++)
    sum += ((double *)(void *)r->out)[i] * ((double *)(void *)r->dout)[i];
  return sum;
}

static void tied_gradient_matches_finite_differences(void **state) {
  (void)state;
  rig r = make_rig(make_language_model(CLV_F64), &(rig_options){.backend = clv_backend_ref()});
  run_step(&r);
  double *table = (double *)(void *)(r.parameter_block + get_table(&r)->offset);
  for (size_t i = 0; i < ROWS * WIDTH; i++) {
    double at = table[i], h = 1e-6, want = get_gradient_sum(&r, i);
    table[i] = at + h;
    double up = compute_loss(&r);
    table[i] = at - h;
    double difference = (up - compute_loss(&r)) / (2 * h);
    table[i] = at;
    if (fabs(difference - want) > 1e-7)
      fail_msg("value %zu: %g by differences, %g", i, difference, want);
  }
  free_rig(&r);
}

/* A tied parameter is listed once; it has values and moments once, and two gradients. */
static void tied_parameter_is_listed_once(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_language_model(CLV_F32);
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  (void)state;
  assert_ok(clv_params_make(g, &p, err));
  assert_int_equal(p->n, 4); /* the table, a weight, two biases */
  assert_int_equal(p->n_ties, 1);
  assert_string_equal(p->ties[0].param.name, "3.weight");
  assert_int_equal(p->ties[0].param.offset, clv_params_find(p, "0.weight")->offset);
  assert_int_equal(p->ties[0].param.gradient_offset, p->trainable_bytes);
  /* a second gradient of the table: 120 bytes, aligned to 128 */
  assert_int_equal(p->gradient_bytes, p->trainable_bytes + 128);
  assert_int_equal(p->n_trainable_values, ROWS * WIDTH + WIDTH * WIDTH + WIDTH + ROWS);
  p->list[0].frozen = true;
  clv_params_fix_frozen(p);
  assert_true(p->ties[0].param.frozen && p->ties[0].param.is_fixed);
  assert_int_equal(p->gradient_bytes, p->trainable_bytes);
}

/* ---- tied parameters in two modules ---------------------------------------------------------- */

/* The output layer is in a second module, with its own copy of the embedding's table and its own
 * gradient. */
static void tie_across_two_modules_gives_the_bits_of_one(void **state) {
  (void)state;
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_language_model(CLV_F32);
  clv_graph *front, *head;
  assert_ok(clv_graph_slice(g, 0, 2, &front, err));
  assert_ok(clv_graph_slice(g, 3, 3, &head, err));
  assert_true(head->nodes[1].tie_owner_is_outside && !g->nodes[4].tie_owner_is_outside);
  rig one = make_rig(make_language_model(CLV_F32), &(rig_options){.backend = clv_backend_cpu()});
  rig front_rig = make_rig(front, &(rig_options){.backend = clv_backend_cpu()});
  CLV_AUTO(clv_params_freep) clv_params *p = NULL;
  assert_ok(clv_params_make(head, &p, err));
  assert_int_equal(p->ties[0].owner_index, -1);
  p->ties[0].param.owner_data = front_rig.parameter_block + get_table(&front_rig)->offset;
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = CLV_F32,
                        .batch = N,
                        .training = true,
                        .needs_input_grad = {true},
                        .threads = 1};
  rig head_rig = {.g = head, .params = clv_steal(&p)};
  assert_ok(clv_plan_new(head, head_rig.params, &o, &head_rig.plan, err));
  allocate_rig_memory(&head_rig);
  clv_call *first, *second;
  run_step(&one);
  memcpy(head_rig.dout, one.dout, one.output_bytes);
  assert_ok(clv_plan_call_get(front_rig.plan, &first, err));
  assert_ok(clv_plan_call_get(head_rig.plan, &second, err));
  run_forward(&front_rig, first);
  memcpy(head_rig.in[0], front_rig.out, front_rig.output_bytes);
  run_forward(&head_rig, second);
  assert_memory_equal(head_rig.out, one.out, one.output_bytes);
  run_backward_input(&head_rig, second, false);
  run_backward_weight(&head_rig, second, false);
  memcpy(front_rig.dout, head_rig.din[0], front_rig.output_bytes);
  run_backward_input(&front_rig, first, false);
  run_backward_weight(&front_rig, first, false);
  const clv_param *table = get_table(&front_rig), *tied = &head_rig.params->ties[0].param;
  assert_memory_equal(front_rig.gradient_block + table->gradient_offset,
                      one.gradient_block + get_table(&one)->gradient_offset, table->bytes);
  assert_memory_equal(head_rig.gradient_block + tied->gradient_offset,
                      one.gradient_block + one.params->ties[0].param.gradient_offset, tied->bytes);
  free_rig(&one);
  free_rig(&front_rig);
  free_rig(&head_rig);
}

/* ---- ties that are refused ------------------------------------------------------------------- */

static void invalid_ties_are_refused(void **state) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = make_language_model(CLV_F32);
  int tanh_layer = 3, square_layer = 2, head_layer = 4;
  (void)state;
  assert_fails(clv_graph_tie_param(g, tanh_layer, "0", false, err), CLV_INVALID,
               "layer 2 (tanh) has no trainable parameter that could be tied");
  assert_fails(clv_graph_tie_param(g, square_layer, "2", false, err), CLV_INVALID,
               "layer 2 (tanh) has no trainable parameter that could be tied");
  assert_fails(clv_graph_tie_param(g, square_layer, "0", false, err), CLV_INVALID,
               "layer 1 has a weight [6, 6], and is tied to '0', which has [5, 6]");
  assert_fails(clv_graph_tie_param(g, square_layer, "1", false, err), CLV_INVALID,
               "which is itself");
  assert_fails(clv_graph_tie_param(g, square_layer, "3", false, err), CLV_INVALID,
               "which is tied to 0");
  assert_fails(clv_graph_tie_param(g, square_layer, "far", false, err), CLV_INVALID,
               "no layer has that name");
  assert_fails(clv_graph_tie_param(g, head_layer, "", true, err), CLV_INVALID,
               "a name has 1 to 63 characters");
  assert_fails(clv_graph_tie_param(g, 1, "4", true, err), CLV_INVALID,
               "layer 0 is to be tied, but layer 3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tied_gradient_matches_finite_differences),
      cmocka_unit_test(tied_parameter_is_listed_once),
      cmocka_unit_test(tie_across_two_modules_gives_the_bits_of_one),
      cmocka_unit_test(invalid_ties_are_refused),
  };
  return cmocka_run_group_tests_name("ties", tests, NULL, NULL);
}
