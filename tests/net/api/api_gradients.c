/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests backwards that start from gradients of the program, and the list of a context's gradients,
 * which the program reads and writes: api_gradients SESSION.yaml A B runs modules at the nodes A
 * and B, and ends with a digest of what they computed.
 */
#include "api_int.h"

enum { A_WEIGHTS = 15, B_WEIGHTS = 10, OUT = 8, HIDDEN = 20, PARAMETERS = 4 };

/* ---- helper functions ------------------------------------------------------------------------ */

typedef struct forward_pass {
  cleave_context c;
  cleave_reference x, h, y, loss;
} forward_pass;

static bool run_forward(const net *n, unsigned seed, forward_pass *p) {
  float x[12], t[8];
  cleave_reference target;
  fill_with_random(x, 12, seed);
  fill_with_random(t, 8, seed + 1);
  DO(open_context(&p->c));
  DO(make_leaf(p->c, x, 4, 3, true, &p->x));
  DO(make_leaf(p->c, t, 4, 2, false, &target));
  MUST(cleave_call(rt, p->c, n->a, &p->x, 1, &p->h, e));
  MUST(cleave_call(rt, p->c, n->b, &p->h, 1, &p->y, e));
  MUST(cleave_call(rt, p->c, n->loss, (cleave_reference[]){p->y, target}, 2, &p->loss, e));
  return true;
}

static cleave_status run_backward_from(cleave_context c, const cleave_reference *roots, size_t n,
                                       const float *weights, const cleave_tensor *gradients,
                                       bool retain, cleave_error *e) {
  const cleave_backward_options o = {
      .size = sizeof o, .weights = weights, .gradients = gradients, .retain = retain};
  return cleave_backward_with(rt, c, roots, n, &o, e);
}

static bool make_optimizer(const net *n, double clip_norm, cleave_optimizer **ret) {
  cleave_module *both[] = {n->a, n->b};
  const cleave_group g = {.modules = both, .n_modules = 2, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &g, 1, clip_norm, ret, e));
  return true;
}

/* Reads the list of a network's gradients: four parameters and the leaf. */
static bool read_gradient_list(cleave_context c, cleave_gradients *ret) {
  MUST(cleave_gradients_read(rt, c, 0, ret, e));
  for (size_t i = 0; i < ret->n; i++) add_to_digest(&ret->items[i].tensor);
  return true;
}

static float *get_numbers(const cleave_gradient_item *i) { return i->tensor.data; }

static bool are_gradients_near(const cleave_gradients *a, const cleave_gradients *b, float factor) {
  CHECK(a->n == b->n);
  for (size_t i = 0; i < a->n; i++)
    for (size_t k = 0; k < cleave_tensor_count(&a->items[i].tensor); k++)
      CHECK(is_near(get_numbers(&a->items[i])[k], factor * get_numbers(&b->items[i])[k]));
  return true;
}

static double sum_squares(const cleave_gradients *g) {
  double sum = 0;
  for (size_t i = 0; i < g->n; i++)
    for (size_t k = 0; g->items[i].module && k < cleave_tensor_count(&g->items[i].tensor); k++)
      sum += (double)get_numbers(&g->items[i])[k] * (double)get_numbers(&g->items[i])[k];
  return sum;
}

/* ---- backwards from values that are no scalars ----------------------------------------------- */

/* A backward that starts at y, with the gradient of the loss for y given by the program, must have
 * the result of a backward that starts at the loss. */
static bool backward_from_given_gradient_equals_backward_from_loss(void) {
  net n;
  forward_pass pass_by_loss, pass_by_gradient;
  cleave_tensor y = {0};
  cleave_gradients want, got;
  float t[OUT], numbers[OUT];
  DO(make_network("given", "master", &n));
  DO(run_forward(&n, 20, &pass_by_loss));
  DO(backward(pass_by_loss.c, pass_by_loss.loss, false));
  DO(read_gradient_list(pass_by_loss.c, &want));
  DO(run_forward(&n, 20, &pass_by_gradient));
  MUST(cleave_to_here(rt, pass_by_gradient.y, 0, &y, e));
  fill_with_random(t, OUT, 21);
  for (int i = 0; i < OUT; i++) numbers[i] = 2 * (((float *)y.data)[i] - t[i]) / OUT;
  cleave_tensor g = CLEAVE_TENSOR_F32(numbers, 4, 2);
  MUST(run_backward_from(pass_by_gradient.c, &pass_by_gradient.y, 1, NULL, &g, false, e));
  DO(read_gradient_list(pass_by_gradient.c, &got));
  DO(are_gradients_near(&got, &want, 1));
  cleave_tensor_free(&y);
  cleave_gradients_free(&want);
  cleave_gradients_free(&got);
  return close_context(pass_by_loss.c) && close_context(pass_by_gradient.c);
}

/* Each given gradient is added to the gradient of its value. Here h and y are both roots, although
 * y is computed from h. */
static bool gradients_of_all_roots_add_up(void) {
  net n;
  forward_pass p[4];
  cleave_gradients got[4];
  float gradient_of_h[HIDDEN], gradient_of_y[OUT];
  const float weights[] = {0, 0.5f, 0};
  DO(make_network("several", "master", &n));
  fill_with_random(gradient_of_h, HIDDEN, 30);
  fill_with_random(gradient_of_y, OUT, 31);
  cleave_tensor h = CLEAVE_TENSOR_F32(gradient_of_h, 4, 5),
                y = CLEAVE_TENSOR_F32(gradient_of_y, 4, 2), none = {0};
  for (int i = 0; i < 4; i++) DO(run_forward(&n, 22, &p[i]));
  MUST(run_backward_from(p[0].c, (cleave_reference[]){p[0].h, p[0].loss, p[0].y}, 3, weights,
                         (cleave_tensor[]){h, none, y}, false, e));
  MUST(run_backward_from(p[1].c, &p[1].h, 1, NULL, &h, true, e));
  MUST(run_backward_from(p[1].c, &p[1].loss, 1, &weights[1], NULL, true, e));
  MUST(run_backward_from(p[1].c, &p[1].y, 1, NULL, &y, false, e));
  MUST(run_backward_from(p[2].c, &p[2].y, 1, NULL, &y, true, e));
  MUST(run_backward_from(p[2].c, &p[2].y, 1, NULL, &y, false, e));
  MUST(run_backward_from(p[3].c, &p[3].y, 1, NULL, &y, false, e));
  for (int i = 0; i < 4; i++) DO(read_gradient_list(p[i].c, &got[i]));
  DO(are_gradients_near(&got[0], &got[1], 1));
  DO(are_gradients_near(&got[2], &got[3], 2));
  for (int i = 0; i < 4; i++) {
    cleave_gradients_free(&got[i]);
    DO(close_context(p[i].c));
  }
  return true;
}

/* y = W x + b in a frozen module: from the root gradient g, x gets the gradient W^T g, and the
 * module's parameters get none. */
static bool leaf_gradients_need_no_parameters(void) {
  static const char *const all[] = {"*"};
  cleave_module_options o = {
      .size = sizeof o, .name = "frozen", .at = at_a, .seed = 3, .frozen = all, .n_frozen = 1};
  cleave_input input = CLEAVE_INPUT(CLEAVE_F32, 4, 3);
  cleave_module *m;
  cleave_context c;
  cleave_reference x, y;
  cleave_tensor w = {0}, dx = {0};
  cleave_gradients list;
  float in[12], out[OUT];
  fill_with_random(in, 12, 1);
  fill_with_random(out, OUT, 2);
  MUST(cleave_load_layers(rt, &o, "[{op: linear, out: 2}]", &input, &m, e));
  DO(open_context(&c));
  DO(make_leaf(c, in, 4, 3, true, &x));
  MUST(cleave_call(rt, c, m, &x, 1, &y, e));
  cleave_tensor g = CLEAVE_TENSOR_F32(out, 4, 2);
  MUST(run_backward_from(c, &y, 1, NULL, &g, false, e));
  MUST(cleave_leaf_gradient(rt, x, &dx, e));
  DO(read_weight(m, "0.weight", &w));
  for (int i = 0; i < 12; i++) {
    const float *output_row = out + 2 * (i / 3), *weight = (float *)w.data + i % 3;
    CHECK(is_near(((float *)dx.data)[i], output_row[0] * weight[0] + output_row[1] * weight[3]));
  }
  DO(read_gradient_list(c, &list));
  CHECK(list.n == 1 && !list.items[0].module && !list.items[0].name);
  CHECK(list.items[0].leaf.id == x.id && memcmp(list.items[0].tensor.data, dx.data, 48) == 0);
  cleave_gradients_free(&list);
  cleave_tensor_free(&w);
  cleave_tensor_free(&dx);
  return close_context(c);
}

/* The gradients of several backwards with retain add up in a leaf. A tensor that the program has
 * read after one backward does not change in the next. */
static bool returned_gradient_is_not_changed_by_later_backwards(void) {
  net n;
  forward_pass p;
  cleave_tensor first_read = {0}, two_gradients = {0}, third_read = {0};
  cleave_gradients list;
  DO(make_network("taken", "master", &n));
  DO(run_forward(&n, 23, &p));
  REFUSED(cleave_leaf_gradient_take(rt, p.x, &first_read, e), CLEAVE_NOT_FOUND,
          "no backward got to leaf");
  DO(backward(p.c, p.loss, true));
  MUST(cleave_leaf_gradient(rt, p.x, &first_read, e));
  DO(backward(p.c, p.loss, true));
  MUST(cleave_leaf_gradient_take(rt, p.x, &two_gradients, e));
  for (int i = 0; i < 12; i++)
    CHECK(((float *)two_gradients.data)[i] == 2 * ((float *)first_read.data)[i]);
  REFUSED(cleave_leaf_gradient_take(rt, p.x, &third_read, e), CLEAVE_NOT_FOUND, "no backward got");
  MUST(cleave_gradients_read(rt, p.c, 0, &list, e));
  CHECK(list.n == PARAMETERS);
  DO(backward(p.c, p.loss, false));
  MUST(cleave_leaf_gradient_take(rt, p.x, &third_read, e));
  CHECK(memcmp(first_read.data, third_read.data, 48) == 0);
  REFUSED(cleave_leaf_gradient_take(rt, p.y, &third_read, e), CLEAVE_INVALID, "is no leaf");
  cleave_gradients_free(&list);
  cleave_tensor_free(&first_read);
  cleave_tensor_free(&two_gradients);
  cleave_tensor_free(&third_read);
  return close_context(p.c);
}

static bool invalid_root_gradients_are_refused(void) {
  net n;
  forward_pass p;
  float numbers[12] = {1}; /* x has 12 numbers, y has fewer */
  int64_t integers[OUT] = {1};
  const float weight_of_one = 1;
  DO(make_network("starts", "master", &n));
  DO(run_forward(&n, 24, &p));
  cleave_tensor good_gradient = CLEAVE_TENSOR_F32(numbers, 4, 2),
                wrong_shape = CLEAVE_TENSOR_F32(numbers, 2, 4);
  cleave_tensor wrong_dtype = CLEAVE_TENSOR_I64(integers, 4, 2), none = {0};
  cleave_backward_options o = {.size = 3};
  REFUSED(cleave_backward_with(rt, p.c, &p.y, 1, &o, e), CLEAVE_INVALID,
          "cleave_backward_options.size is 3");
  REFUSED(cleave_backward_with(rt, p.c, NULL, 1, NULL, e), CLEAVE_INVALID,
          "argument roots is NULL");
  REFUSED(cleave_backward_with(rt, p.c, &p.y, 0, NULL, e), CLEAVE_INVALID, "without roots");
  REFUSED(cleave_backward_with(NULL, p.c, &p.y, 1, NULL, e), CLEAVE_INVALID,
          "argument runtime is NULL");
  REFUSED(run_backward_from(p.c, &p.y, 1, NULL, NULL, false, e), CLEAVE_INVALID,
          "starts from scalars");
  REFUSED(run_backward_from(p.c, &p.y, 1, NULL, &none, false, e), CLEAVE_INVALID,
          "starts from scalars");
  REFUSED(run_backward_from(p.c, &p.y, 1, NULL, &wrong_shape, false, e), CLEAVE_INVALID,
          "f32 [4, 2], the gradient given for it f32 [2, 4]");
  REFUSED(run_backward_from(p.c, &p.y, 1, NULL, &wrong_dtype, false, e), CLEAVE_INVALID,
          "for it i64 [4, 2]");
  REFUSED(run_backward_from(p.c, &p.y, 1, &weight_of_one, &good_gradient, false, e), CLEAVE_INVALID,
          "both a weight and a gradient");
  REFUSED(run_backward_from(p.c, (cleave_reference[]){p.y, p.y}, 2, NULL,
                            (cleave_tensor[]){good_gradient, good_gradient}, false, e),
          CLEAVE_INVALID, "is given twice");
  REFUSED(run_backward_from(p.c, &p.x, 1, NULL, &(cleave_tensor)CLEAVE_TENSOR_F32(numbers, 4, 3),
                            false, e),
          CLEAVE_PRECONDITION, "depends on no parameter");
  MUST(run_backward_from(p.c, &p.y, 1, NULL, &good_gradient, false, e));
  return close_context(p.c);
}

/* ---- the list of a context's gradients ------------------------------------------------------- */

static bool gradient_list_names_every_gradient(void) {
  net n;
  forward_pass p;
  cleave_gradients list;
  cleave_tensor one_gradient = {0};
  DO(make_network("list", "master", &n));
  DO(run_forward(&n, 40, &p));
  MUST(cleave_gradients_read(rt, p.c, 0, &list, e));
  CHECK(list.n == 0);
  cleave_gradients_free(&list);
  DO(backward(p.c, p.loss, false));
  DO(read_gradient_list(p.c, &list));
  const struct {
    cleave_module *m;
    const char *name;
  } want[] = {{n.a, "0.weight"}, {n.a, "0.bias"}, {n.b, "0.weight"}, {n.b, "0.bias"}};
  CHECK(list.n == PARAMETERS + 1);
  for (int i = 0; i < PARAMETERS; i++) {
    const cleave_gradient_item *at = &list.items[i];
    CHECK(at->module == want[i].m && strcmp(at->name, want[i].name) == 0 && at->leaf.id == 0);
    DO(read_gradient(p.c, want[i].m, want[i].name, &one_gradient));
    CHECK(one_gradient.rank == at->tensor.rank &&
          memcmp(one_gradient.data, at->tensor.data, 4 * cleave_tensor_count(&one_gradient)) == 0);
  }
  MUST(cleave_leaf_gradient(rt, p.x, &one_gradient, e));
  CHECK(list.items[PARAMETERS].leaf.id == p.x.id &&
        memcmp(one_gradient.data, list.items[PARAMETERS].tensor.data, 48) == 0);
  cleave_gradients_free(&list);
  cleave_gradients_free(NULL);
  cleave_tensor_free(&one_gradient);
  DO(close_context(p.c));
  REFUSED(cleave_gradients_read(rt, p.c, 0, &list, e), CLEAVE_NOT_FOUND, "was closed");
  REFUSED(cleave_gradients_read(rt, p.c, 0, NULL, e), CLEAVE_INVALID, "ret_gradients is NULL");
  return true;
}

/* ---- gradients that the program writes ------------------------------------------------------- */

static bool write_scaled_gradients(cleave_context c, const cleave_gradients *list, float factor) {
  for (int i = 0; i < PARAMETERS; i++) {
    const cleave_gradient_item *at = &list->items[i];
    for (size_t k = 0; k < cleave_tensor_count(&at->tensor); k++) get_numbers(at)[k] *= factor;
    MUST(cleave_gradient_write(rt, c, at->module, at->name, &at->tensor, 0, e));
  }
  return true;
}

/* Norm, clipping and step use the gradient that was written. */
static bool step_uses_the_written_gradient(void) {
  net n;
  forward_pass p;
  cleave_optimizer *o;
  cleave_gradients list, list_after_write;
  cleave_tensor weight_before = {0}, weight_after = {0};
  cleave_step_result step_result;
  DO(make_network("written", "master", &n));
  DO(make_optimizer(&n, 0.01, &o));
  DO(run_forward(&n, 50, &p));
  DO(backward(p.c, p.loss, false));
  DO(read_gradient_list(p.c, &list));
  DO(write_scaled_gradients(p.c, &list, 4));
  DO(read_gradient_list(p.c, &list_after_write));
  for (int i = 0; i < PARAMETERS; i++)
    CHECK(memcmp(list.items[i].tensor.data, list_after_write.items[i].tensor.data,
                 4 * cleave_tensor_count(&list.items[i].tensor)) == 0);
  DO(read_weight(n.b, "0.weight", &weight_before));
  MUST(cleave_step(rt, o, p.c, 0, &step_result, e));
  double norm = sqrt(sum_squares(&list));
  CHECK(step_result.applied && is_near((float)step_result.norm, (float)norm) && norm > 0.01);
  REFUSED(cleave_gradient_write(rt, p.c, n.b, "0.weight", &weight_before, 0, e),
          CLEAVE_PRECONDITION, "has taken its step");
  DO(close_context(p.c));
  DO(read_weight(n.b, "0.weight", &weight_after));
  add_to_digest(&weight_after);
  const float *g = get_numbers(&list.items[2]);
  for (int i = 0; i < B_WEIGHTS; i++)
    CHECK(is_near(((float *)weight_after.data)[i],
                  (float)(((float *)weight_before.data)[i] - 0.5 * 0.01 / (norm + 1e-6) * g[i])));
  cleave_gradients_free(&list);
  cleave_gradients_free(&list_after_write);
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return true;
}

/* A gradient that is not finite prevents the step at all nodes, until it is overwritten. */
static bool written_infinite_gradient_prevents_the_step(void) {
  net n;
  forward_pass p;
  cleave_optimizer *o;
  cleave_tensor g = {0}, weight_before = {0}, weight_after = {0};
  cleave_step_result step_result;
  DO(make_network("decides", "master", &n));
  DO(make_optimizer(&n, 0, &o));
  for (int is_overwritten = 0; is_overwritten < 2; is_overwritten++) {
    DO(run_forward(&n, 60, &p));
    DO(backward(p.c, p.loss, false));
    DO(read_gradient(p.c, n.a, "0.bias", &g));
    float first_number = ((float *)g.data)[0];
    ((float *)g.data)[0] = NAN;
    MUST(cleave_gradient_write(rt, p.c, n.a, "0.bias", &g, 0, e));
    ((float *)g.data)[0] = first_number;
    if (is_overwritten) MUST(cleave_gradient_write(rt, p.c, n.a, "0.bias", &g, 0, e));
    DO(read_weight(n.b, "0.bias", &weight_before));
    MUST(cleave_step(rt, o, p.c, 0, &step_result, e));
    CHECK(step_result.applied == (is_overwritten == 1));
    DO(close_context(p.c));
    DO(read_weight(n.b, "0.bias", &weight_after));
    CHECK((memcmp(weight_before.data, weight_after.data, 8) == 0) == !is_overwritten);
    add_to_digest(&weight_after);
  }
  /* A root gradient that is not finite makes the gradients not finite. */
  float numbers[OUT] = {INFINITY};
  cleave_tensor root_gradient = CLEAVE_TENSOR_F32(numbers, 4, 2);
  DO(run_forward(&n, 61, &p));
  MUST(run_backward_from(p.c, &p.y, 1, NULL, &root_gradient, false, e));
  MUST(cleave_step(rt, o, p.c, 0, &step_result, e));
  CHECK(!step_result.applied);
  cleave_tensor_free(&g);
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return close_context(p.c);
}

/* A later backward adds its gradient to the one that was written. */
static bool backward_adds_to_the_written_gradient(void) {
  net n;
  forward_pass p;
  cleave_optimizer *o;
  cleave_gradients gradients_of_one, got;
  cleave_step_result step_result;
  DO(make_network("adds", "master", &n));
  DO(make_optimizer(&n, 0, &o));
  DO(run_forward(&n, 62, &p));
  DO(backward(p.c, p.loss, true));
  DO(read_gradient_list(p.c, &gradients_of_one));
  DO(write_scaled_gradients(p.c, &gradients_of_one, 2));
  DO(backward(p.c, p.loss, false));
  DO(read_gradient_list(p.c, &got));
  for (int i = 0; i < PARAMETERS; i++)
    for (size_t k = 0; k < cleave_tensor_count(&got.items[i].tensor); k++)
      CHECK(is_near(get_numbers(&got.items[i])[k],
                    1.5f * get_numbers(&gradients_of_one.items[i])[k]));
  MUST(cleave_step(rt, o, p.c, 0, &step_result, e));
  CHECK(step_result.applied && is_near((float)step_result.norm, (float)sqrt(sum_squares(&got))));
  cleave_gradients_free(&gradients_of_one);
  cleave_gradients_free(&got);
  return close_context(p.c);
}

static bool invalid_gradient_writes_are_refused(void) {
  net n;
  forward_pass p;
  float numbers[A_WEIGHTS] = {1};
  DO(make_network("writes", "master", &n));
  DO(run_forward(&n, 64, &p));
  cleave_tensor good_gradient = CLEAVE_TENSOR_F32(numbers, 5, 3),
                wrong_shape = CLEAVE_TENSOR_F32(numbers, 3, 5);
  REFUSED(cleave_gradient_write(rt, p.c, n.a, "0.weight", &good_gradient, 0, e), CLEAVE_NOT_FOUND,
          "no gradient of '0.weight' of module 'writes a': no backward got there");
  DO(backward(p.c, p.loss, false));
  REFUSED(cleave_gradient_write(rt, p.c, n.a, "7.weight", &good_gradient, 0, e), CLEAVE_NOT_FOUND,
          "'writes a' has no parameter '7.weight'");
  REFUSED(cleave_gradient_write(rt, p.c, n.a, "0.weight", &wrong_shape, 0, e), CLEAVE_INVALID,
          "is f32 [5, 3], the gradient given f32 [3, 5]");
  REFUSED(cleave_gradient_write(rt, p.c, n.a, NULL, &good_gradient, 0, e), CLEAVE_INVALID,
          "argument name is NULL");
  REFUSED(cleave_gradient_write(rt, p.c, NULL, "0.weight", &good_gradient, 0, e), CLEAVE_INVALID,
          "argument module is NULL");
  MUST(cleave_gradient_write(rt, p.c, n.a, "0.weight", &good_gradient, 0, e));
  return close_context(p.c);
}

/* ---- steps that also count gradients which the program computed itself ----------------------- */

static cleave_status step_with_options(cleave_optimizer *o, cleave_context c, double other_square,
                                       bool is_not_finite, cleave_step_decision *ret,
                                       cleave_error *e) {
  const cleave_step_options options = {
      .size = sizeof options, .other_square = other_square, .other_not_finite = is_not_finite};
  return cleave_step_with(rt, o, c, &options, ret, e);
}

/* The norm covers the gradients of the modules and those that the program computed itself
 * (other_square: sum of their squares). Norm and clipping factor must be those of torch's
 * clip_grad_norm_, and the steps of the modules must use this factor. */
static bool step_clips_by_the_norm_of_all_gradients(void) {
  net n;
  forward_pass p;
  cleave_optimizer *o;
  cleave_gradients list;
  cleave_tensor weight_before = {0}, weight_after = {0};
  cleave_step_decision decision = {.size = sizeof decision};
  DO(make_network("shares", "master", &n));
  DO(make_optimizer(&n, 0.5, &o));
  DO(run_forward(&n, 52, &p));
  DO(backward(p.c, p.loss, false));
  DO(read_gradient_list(p.c, &list));
  DO(read_weight(n.b, "0.weight", &weight_before));
  REFUSED(step_with_options(o, p.c, -1, false, &decision, e), CLEAVE_INVALID, "other_square is -1");
  decision.size = 8;
  REFUSED(step_with_options(o, p.c, 9, false, &decision, e), CLEAVE_INVALID,
          "cleave_step_decision of 8 bytes");
  decision.size = sizeof decision;
  MUST(step_with_options(o, p.c, 9, false, &decision, e));
  double norm = sqrt(sum_squares(&list) + 9), scale = 0.5 / (norm + 1e-6);
  CHECK(decision.applied && decision.number == 1 && decision.lr == 0.5);
  CHECK(fabs(decision.norm - norm) < 1e-6 * norm && fabs(decision.scale - scale) < 1e-6 * scale);
  DO(close_context(p.c));
  DO(read_weight(n.b, "0.weight", &weight_after));
  add_to_digest(&weight_after);
  for (int i = 0; i < B_WEIGHTS; i++)
    CHECK(is_near(
        ((float *)weight_after.data)[i],
        (float)(((float *)weight_before.data)[i] - 0.5 * scale * get_numbers(&list.items[2])[i])));
  cleave_gradients_free(&list);
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return true;
}

/* If the program reports that a gradient which it computed itself is not finite, no node takes the
 * step. */
static bool program_can_veto_a_step(void) {
  net n;
  forward_pass p;
  cleave_optimizer *o;
  cleave_future f;
  cleave_step_result other_result;
  cleave_tensor weight_before = {0}, weight_after = {0};
  cleave_step_decision decision = {.size = sizeof decision};
  DO(make_network("votes", "master", &n));
  DO(make_optimizer(&n, 0, &o));
  DO(read_weight(n.b, "0.weight", &weight_before));
  for (int i = 0; i < 3; i++) {
    DO(run_forward(&n, 54, &p));
    DO(backward(p.c, p.loss, false));
    MUST(step_with_options(o, p.c, i == 1 ? INFINITY : i == 2 ? NAN : 1, i == 0, &decision, e));
    CHECK(!decision.applied && decision.scale == 1);
    DO(close_context(p.c));
  }
  DO(read_weight(n.b, "0.weight", &weight_after));
  CHECK(memcmp(weight_before.data, weight_after.data, 4 * B_WEIGHTS) == 0);
  DO(run_forward(&n, 54, &p));
  DO(backward(p.c, p.loss, false));
  MUST(cleave_step_with_async(rt, o, p.c, NULL, &f, e));
  MUST(cleave_future_wait(rt, f, 0, e));
  REFUSED(cleave_future_step_result(rt, f, &other_result, e), CLEAVE_INVALID, "brings no step");
  MUST(cleave_future_step_decision(rt, f, &decision, e));
  CHECK(decision.applied && decision.scale == 1 && decision.number == 4);
  MUST(cleave_future_release(rt, f, e));
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return close_context(p.c);
}

/* ---- gradients that are sent to a worker ----------------------------------------------------- */

static unsigned n_root_gradients, n_written_gradients;

/* Function may_send of the runtime, called before each sending. Counts the root gradients and the
 * written gradients that are sent to the module "leaves b", and permits every sending. */
static cleave_status record_sending(void *user, const cleave_sending *s, cleave_error *error) {
  (void)user, (void)error;
  if (s->kind != CLEAVE_SENDING_GRADIENT || strcmp(s->module, "leaves b") != 0) return CLEAVE_OK;
  bool is_written = strcmp(s->name, "0.bias") == 0 && s->bytes == 8;
  bool is_root_gradient = !s->name[0] && s->bytes == 4 * OUT && s->rank == 2;
  if (is_written || is_root_gradient)
    __atomic_add_fetch(is_written ? &n_written_gradients : &n_root_gradients, 1, __ATOMIC_RELAXED);
  return CLEAVE_OK;
}

/* The library calls the program's function may_send, the gate, once for each of the two gradients
 * that are sent to a worker. For modules at the master nothing is sent. */
static bool gate_sees_gradients_that_leave(void) {
  net n;
  forward_pass p;
  float numbers[OUT] = {1, 2};
  cleave_tensor gradient_of_y = CLEAVE_TENSOR_F32(numbers, 4, 2),
                bias = CLEAVE_TENSOR_F32(numbers, 2);
  unsigned n_sent = strcmp(at_b, "master") != 0;
  DO(make_network("leaves", "master", &n));
  DO(run_forward(&n, 66, &p));
  MUST(run_backward_from(p.c, &p.y, 1, NULL, &gradient_of_y, false, e));
  MUST(cleave_gradient_write(rt, p.c, n.b, "0.bias", &bias, 0, e));
  CHECK(__atomic_load_n(&n_root_gradients, __ATOMIC_RELAXED) == n_sent);
  CHECK(__atomic_load_n(&n_written_gradients, __ATOMIC_RELAXED) == n_sent);
  return close_context(p.c);
}

/* ---- contexts that overlap ------------------------------------------------------------------- */

/* The backward reads b's weights for the gradient of b's input, but a step has changed these
 * weights since b's call. cleave_backward itself returns the error, which names b and its call, and
 * does not change the context. */
static bool a_backward_over_stepped_parameters_is_refused_at_the_call(void) {
  net n;
  forward_pass first_pass, second_pass;
  cleave_optimizer *o;
  cleave_gradients list;
  char text[64];
  DO(make_network("overlap", "master", &n));
  DO(make_optimizer(&n, 0, &o));
  DO(run_forward(&n, 70, &first_pass));
  DO(run_forward(&n, 71, &second_pass));
  DO(backward(second_pass.c, second_pass.loss, false));
  MUST(cleave_step(rt, o, second_pass.c, 0, NULL, e));
  snprintf(text, sizeof text, "module 'overlap b' have changed");
  REFUSED(cleave_backward(rt, first_pass.c, &first_pass.loss, 1, false, 0, e), CLEAVE_PRECONDITION,
          text);
  snprintf(text, sizeof text, "since its call %llu,", (unsigned long long)first_pass.y.id);
  REFUSED(cleave_backward(rt, first_pass.c, &first_pass.loss, 1, false, 0, e), CLEAVE_PRECONDITION,
          text);
  /* the context has no gradients, and further calls in it work */
  MUST(cleave_gradients_read(rt, first_pass.c, 0, &list, e));
  CHECK(list.n == 0);
  cleave_gradients_free(&list);
  float numbers[OUT];
  fill_with_random(numbers, OUT, 72);
  cleave_tensor g = CLEAVE_TENSOR_F32(numbers, 4, 2);
  cleave_reference h, y;
  MUST(cleave_call(rt, first_pass.c, n.a, &first_pass.x, 1, &h, e));
  MUST(cleave_call(rt, first_pass.c, n.b, &h, 1, &y, e));
  MUST(run_backward_from(first_pass.c, &y, 1, NULL, &g, false, e));
  DO(read_gradient_list(first_pass.c, &list));
  CHECK(list.n == PARAMETERS + 1);
  cleave_gradients_free(&list);
  return close_context(first_pass.c) && close_context(second_pass.c);
}

/* A linear layer whose input is data reads no parameter in its backward. So the backward must
 * succeed although the weights have changed since the call. */
static bool a_backward_that_reads_no_parameter_is_possible(void) {
  cleave_module *m;
  cleave_optimizer *o;
  cleave_context c[3];
  cleave_reference x[3], y[3];
  cleave_tensor got[3] = {{0}}, w = {0};
  float in[12], out[OUT];
  DO(load_module("over data", at_b, "[{op: linear, out: 2}]", 3, &m));
  const cleave_group group = {.modules = &m, .n_modules = 1, .lr = 0.5};
  MUST(cleave_optimizer_new(rt, &group, 1, 0, &o, e));
  fill_with_random(in, 12, 80);
  fill_with_random(out, OUT, 81);
  cleave_tensor g = CLEAVE_TENSOR_F32(out, 4, 2);
  for (int i = 0; i < 3; i++) {
    DO(open_context(&c[i]));
    DO(make_leaf(c[i], in, 4, 3, false, &x[i]));
    MUST(cleave_call(rt, c[i], m, &x[i], 1, &y[i], e));
  }
  MUST(run_backward_from(c[0], &y[0], 1, NULL, &g, true, e));
  MUST(cleave_step(rt, o, c[0], 0, NULL, e));
  MUST(run_backward_from(c[1], &y[1], 1, NULL, &g, false, e));
  DO(read_weight(m, "0.weight", &w));
  MUST(cleave_weight_write(rt, m, "0.weight", &w, 0, e));
  MUST(run_backward_from(c[2], &y[2], 1, NULL, &g, false, e));
  for (int i = 0; i < 3; i++) {
    DO(read_gradient(c[i], m, "0.weight", &got[i]));
    add_to_digest(&got[i]);
    CHECK(memcmp(got[0].data, got[i].data, 24) == 0);
  }
  /* a second backward of c[0] must compute the forward again, with the changed weights, so it is
   * refused */
  REFUSED(run_backward_from(c[0], &y[0], 1, NULL, &g, false, e), CLEAVE_PRECONDITION,
          "module 'over data' have changed");
  for (int i = 0; i < 3; i++) {
    cleave_tensor_free(&got[i]);
    DO(close_context(c[i]));
  }
  cleave_tensor_free(&w);
  return true;
}

static bool backward_after_a_weight_write_is_refused(void) {
  net n;
  forward_pass p;
  cleave_tensor w = {0};
  DO(make_network("rewritten", "master", &n));
  DO(run_forward(&n, 74, &p));
  DO(read_weight(n.b, "0.weight", &w));
  MUST(cleave_weight_write(rt, n.b, "0.weight", &w, 0, e));
  REFUSED(cleave_backward(rt, p.c, &p.loss, 1, false, 0, e), CLEAVE_PRECONDITION,
          "module 'rewritten b' have changed, by a step or a write");
  cleave_tensor_free(&w);
  return close_context(p.c);
}

/* A step that was not taken does not affect other contexts. */
static bool skipped_step_does_not_affect_other_contexts(void) {
  net n;
  forward_pass first_pass, second_pass;
  cleave_optimizer *o;
  cleave_step_result step_result;
  float numbers[OUT] = {NAN};
  cleave_tensor g = CLEAVE_TENSOR_F32(numbers, 4, 2);
  DO(make_network("skipped", "master", &n));
  DO(make_optimizer(&n, 0, &o));
  DO(run_forward(&n, 76, &first_pass));
  DO(run_forward(&n, 77, &second_pass));
  MUST(run_backward_from(second_pass.c, &second_pass.y, 1, NULL, &g, false, e));
  MUST(cleave_step(rt, o, second_pass.c, 0, &step_result, e));
  CHECK(!step_result.applied);
  DO(backward(first_pass.c, first_pass.loss, false));
  return close_context(first_pass.c) && close_context(second_pass.c);
}

static const test tests[] = {
    TEST(backward_from_given_gradient_equals_backward_from_loss),
    TEST(gradients_of_all_roots_add_up),
    TEST(leaf_gradients_need_no_parameters),
    TEST(returned_gradient_is_not_changed_by_later_backwards),
    TEST(invalid_root_gradients_are_refused),
    TEST(gradient_list_names_every_gradient),
    TEST(step_uses_the_written_gradient),
    TEST(written_infinite_gradient_prevents_the_step),
    TEST(backward_adds_to_the_written_gradient),
    TEST(invalid_gradient_writes_are_refused),
    TEST(step_clips_by_the_norm_of_all_gradients),
    TEST(program_can_veto_a_step),
    TEST(gate_sees_gradients_that_leave),
    TEST(a_backward_over_stepped_parameters_is_refused_at_the_call),
    TEST(a_backward_that_reads_no_parameter_is_possible),
    TEST(backward_after_a_weight_write_is_refused),
    TEST(skipped_step_does_not_affect_other_contexts),
};

static bool open_runtime_with_gate(char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000, .may_send = record_sending};
  at_a = argv[2];
  at_b = argv[3];
  MUST(cleave_open(argv[1], &o, &rt, e));
  return true;
}

int main(int argc, char **argv) { return RUN_SESSION(argc, argv, open_runtime_with_gate, tests); }
