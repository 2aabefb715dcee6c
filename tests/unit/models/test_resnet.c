/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests ResNet 18, 34 and 50: torchvision's names and shapes, initial weights, and cuts. A network
 * can be cut after every block, and no cut changes a bit.
 */
#include "tests/long.h"
#include "tests/unit/models/models_test.h"

enum { MAX_STAGES = 20 };

/* state_digest: SHA-256 of one line "NAME SHAPE" for each entry of torchvision's state_dict(). */
static const struct {
  const char *arch;
  int n_parameters;
  size_t n_values;
  int n_entries, n_layers;
  const char *state_digest;
  int n_blocks[4];
} archs[] = {
    {"resnet18",
     62,
     11689512,
     122,
     69,
     "02568eab318c210f0d857b7e345cc37b86e30b66a49663acb8af1653c0d25830",
     {2, 2, 2, 2}},
    {"resnet34",
     110,
     21797672,
     218,
     125,
     "bf4f10c2aed3801430de878dec76694c8fbd51965391a9aec02e066f3647d487",
     {3, 4, 6, 3}},
    {"resnet50",
     161,
     25557032,
     320,
     175,
     "45c8e0b2d327f1cd29b3d1181bb5f512060349c9662ceb382b545cf1d108ac62",
     {3, 4, 6, 3}},
};

static clv_graph *make_network(const char *arch, const char *attrs, const clv_shape *in) {
  clv_session_config *c = make_session(arch, attrs, (const char *[]){"conv1..fc"}, 1);
  clv_graph *g = NULL;
  uint32_t first, last;
  assert_ok(clv_model_make_graph(c, in, &g, &first, &last, err));
  assert_int_equal(first, 0);
  assert_int_equal(last, g->n_nodes - 2);
  clv_session_config_free(c);
  return g;
}

static clv_params *make_params(const clv_graph *g) {
  clv_params *p = NULL;
  assert_ok(clv_params_make(g, &p, err));
  return p;
}

/* ---- names, shapes and initial weights of the parameters ------------------------------------- */

static void check_parameter_digest(const clv_params *p, const char *want) {
  clv_bytes lines = {0};
  char shape[160], hex[65];
  clv_sha256 digest;
  for (int i = 0; i < p->n; i++)
    clv_bytes_printf(&lines, "%s %s\n", p->list[i].name,
                     clv_shape_format(&p->list[i].shape, shape, sizeof shape));
  assert_ok(clv_sha256_of(lines.data, lines.len, &digest, err));
  clv_sha256_hex(&digest, hex);
  clv_bytes_done(&lines);
  assert_string_equal(hex, want);
}

static void resnet_parameters_match_torchvision(void **state) {
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(archs); i++) {
    clv_graph *g = make_network(archs[i].arch, "", &image);
    clv_params *p = make_params(g);
    int n_trainable = 0;
    for (int k = 0; k < p->n; k++) n_trainable += p->list[k].trainable;
    assert_int_equal(g->n_nodes - 1, archs[i].n_layers);
    assert_int_equal(n_trainable, archs[i].n_parameters);
    assert_int_equal(p->n_trainable_values, archs[i].n_values);
    assert_int_equal(p->n, archs[i].n_entries);
    check_parameter_digest(p, archs[i].state_digest);
    clv_params_free(p);
    clv_graph_free(g);
  }
}

/* A ResNet can be made for images of any size and channels, and for any number of classes. */
static void resnet_accepts_other_sizes_and_classes(void **state) {
  (void)state;
  static const clv_shape grey_28x28 = {4, {4, 1, 28, 28}}, five_channels_1x7 = {4, {4, 5, 1, 7}};
  clv_graph *g = make_network("resnet18", ", classes: 10", &grey_28x28);
  clv_params *p = make_params(g);
  assert_true(clv_shape_equal(&clv_params_find(p, "conv1.weight")->shape, &CLV_SHAPE(64, 1, 7, 7)));
  assert_true(clv_shape_equal(&g->nodes[g->output_node].shape, &CLV_SHAPE(4, 10)));
  assert_int_equal(p->n_trainable_values, 11689512 - 2 * 64 * 49 - 990 * 513);
  clv_params_free(p);
  clv_graph_free(g);
  g = make_network("resnet50", ", classes: 1", &five_channels_1x7);
  assert_true(clv_shape_equal(&g->nodes[g->output_node].shape, &CLV_SHAPE(4, 1)));
  clv_graph_free(g);
}

typedef struct moments {
  double mean, deviation, largest;
} moments;

static moments compute_moments(const clv_params *p, const char *block, const char *name) {
  const clv_param *q = clv_params_find(p, name);
  const float *x = (const float *)(const void *)(block + q->offset);
  double sum = 0, squares = 0, largest = 0;
  for (size_t i = 0; i < q->n; i++) {
    sum += x[i];
    squares += (double)x[i] * x[i];
    largest = fmax(largest, fabs(x[i]));
  }
  double mean = sum / (double)q->n;
  return (moments){mean, sqrt(squares / (double)q->n - mean * mean), largest};
}

/* Initial weights must have the distributions of torchvision's constructor:
 * kaiming_normal_(fan_out, relu) for convolutions, 1 and 0 for batchnorms, uniform numbers as of
 * nn.Linear for fc. */
static void initial_weights_match_torchvision(void **state) {
  (void)state;
  static const struct {
    const char *name;
    /* expected standard deviation of the initial weights: sqrt(2 / fan_out) */
    double deviation;
  } convs[] = {{"conv1.weight", 0.025253814},             /* fan_out is 64 * 49 */
               {"layer3.2.conv2.weight", 0.029462783},    /* fan_out is 256 * 9 */
               {"layer4.0.conv3.weight", 0.03125},        /* fan_out is 2048 */
               {"layer2.0.downsample.0.weight", 0.0625}}; /* fan_out is 512 */
  clv_graph *g = make_network("resnet50", "", &image);
  clv_params *p = make_params(g);
  char *block = malloc(p->total_bytes);
  clv_params_init(g, p, block);
  for (size_t i = 0; i < CLV_COUNT(convs); i++) {
    moments m = compute_moments(p, block, convs[i].name);
    double tolerance = 6 / sqrt((double)clv_params_find(p, convs[i].name)->n);
    if (fabs(m.mean) > tolerance * convs[i].deviation ||
        fabs(m.deviation / convs[i].deviation - 1) > tolerance)
      fail_msg("%s: %g +- %g", convs[i].name, m.mean, m.deviation);
    /* The distribution is normal: in a uniform one, no value is 3 deviations away from the mean. */
    assert_true(m.largest > 3 * convs[i].deviation);
  }
  moments fc = compute_moments(p, block, "fc.weight"),
          batchnorm_weight = compute_moments(p, block, "bn1.weight");
  double bound = 1 / sqrt(2048);
  assert_true(fc.largest <= bound && fc.largest > 0.999 * bound);
  assert_true(batchnorm_weight.mean == 1 && batchnorm_weight.deviation == 0);
  assert_true(compute_moments(p, block, "layer4.2.bn3.bias").largest == 0);
  free(block);
  clv_params_free(p);
  clv_graph_free(g);
}

/* ---- networks cut into stages ---------------------------------------------------------------- */

/* Lists the last layers of the stem and of each block, in order, without the last block of the
 * network. */
static int list_block_ends(size_t arch, char ends[MAX_STAGES][32]) {
  int n = 0;
  snprintf(ends[n++], sizeof ends[0], "maxpool");
  for (int s = 0; s < 4; s++)
    for (int i = 0; i < archs[arch].n_blocks[s]; i++)
      snprintf(ends[n++], sizeof ends[0], "layer%d.%d", s + 1, i);
  return n;
}

/* Returns the name of the block or layer that follows layer `end`, the last layer of the stem or of
 * a block. The next call overwrites the name. */
static const char *get_next_layer(size_t arch, const char *end) {
  static char name[32];
  int s = 0, i = -1;
  sscanf(end, "layer%d.%d", &s, &i);
  if (s == 0)
    s = 1, i = 0;
  else if (++i == archs[arch].n_blocks[s - 1])
    s++, i = 0;
  snprintf(name, sizeof name, s <= 4 ? "layer%d.%d" : "avgpool", s, i);
  return name;
}

/* A stage of a network, or the whole network, with its own parameters and plan. */
typedef struct part {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_call *call;
  char *parameter_block, *gradients;
  float *output, *input_gradient;
  size_t n_in, n_out;
} part;

static void open_part(part *p, const clv_graph *g, uint32_t first, uint32_t last) {
  clv_plan_options o = {.backend = clv_backend_cpu(),
                        .dtype = CLV_F32,
                        .training = true,
                        .threads = 1,
                        .batch = g->nodes[0].shape.dim[0],
                        .needs_input_grad = {true}};
  assert_ok(clv_graph_slice(g, first, last, &p->graph, err));
  p->params = make_params(p->graph);
  assert_ok(clv_plan_new(p->graph, p->params, &o, &p->plan, err));
  assert_ok(clv_plan_call_get(p->plan, &p->call, err));
  assert_ok(clv_shape_numel(&p->graph->nodes[0].shape, &p->n_in, err));
  assert_ok(clv_shape_numel(&p->graph->nodes[p->graph->output_node].shape, &p->n_out, err));
  p->parameter_block = malloc(p->params->total_bytes);
  p->gradients = calloc(1, p->params->trainable_bytes + 1);
  p->output = malloc(p->n_out * sizeof(float));
  p->input_gradient = malloc(p->n_in * sizeof(float));
}

/* Initialises the part's weights, as a worker does. */
static void init_part(part *p) { clv_params_init(p->graph, p->params, p->parameter_block); }

static void copy_weights(part *p, const part *whole, const char *initial_block) {
  memset(p->parameter_block, 0, p->params->total_bytes);
  for (int k = 0; k < p->params->n; k++) {
    const clv_param *q = &p->params->list[k], *w = clv_params_find(whole->params, q->name);
    memcpy(p->parameter_block + q->offset, initial_block + w->offset, q->bytes);
  }
}

static void close_part(part *p) {
  clv_plan_call_put(p->plan, p->call);
  clv_plan_free(p->plan);
  clv_params_free(p->params);
  clv_graph_free(p->graph);
  free(p->parameter_block);
  free(p->gradients);
  free(p->output);
  free(p->input_gradient);
}

static void run_parts(part *p, int n, const float *x, const float *dy) {
  clv_rng_key key = {.seed = 1};
  for (int i = 0; i < n; i++)
    assert_ok(clv_plan_forward(p[i].plan, p[i].call, p[i].parameter_block, 1,
                               (const void *[]){i ? p[i - 1].output : x}, false, p[i].output, &key,
                               err));
  for (int i = n - 1; i >= 0; i--) {
    const float *dout = i + 1 < n ? p[i + 1].input_gradient : dy;
    void *din[] = {p[i].input_gradient};
    assert_ok(clv_plan_backward_input(p[i].plan, p[i].call, p[i].parameter_block, dout, din,
                                      p[i].gradients, false, err));
    assert_ok(clv_plan_backward_weight(p[i].plan, p[i].call, p[i].parameter_block, p[i].gradients,
                                       false, err));
  }
}

/* Asserts that outputs, gradients and running statistics of all parts equal those of the whole
 * network. */
static void compare_parts(const part *whole, const part *p, int n) {
  assert_memory_equal(p[n - 1].output, whole->output, whole->n_out * sizeof(float));
  assert_memory_equal(p[0].input_gradient, whole->input_gradient, whole->n_in * sizeof(float));
  int n_compared = 0;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < p[i].params->n; k++, n_compared++) {
      const clv_param *q = &p[i].params->list[k], *w = clv_params_find(whole->params, q->name);
      if (!w) fail_msg("'%s' is only in a part", q->name);
      const char *a = q->trainable ? p[i].gradients : p[i].parameter_block;
      const char *b = q->trainable ? whole->gradients : whole->parameter_block;
      if (memcmp(a + q->offset, b + w->offset, q->bytes) != 0) fail_msg("%s differs", q->name);
      if (memcmp(p[i].parameter_block + q->offset, whole->parameter_block + w->offset, q->bytes) !=
          0)
        fail_msg("the value of %s differs", q->name);
    }
  assert_int_equal(n_compared, whole->params->n);
}

typedef struct cut_test {
  size_t arch;
  clv_shape in;
  float *x, *dy;
  part whole_network;
  char *initial_block; /* weights and statistics before the run */
} cut_test;

static void open_cut_test(cut_test *t, size_t arch) {
  *t = (cut_test){.arch = arch, .in = CLV_SHAPE(2, 3, 32, 32)};
  clv_graph *g = make_network(archs[arch].arch, ", classes: 10", &t->in);
  open_part(&t->whole_network, g, 0, (uint32_t)g->n_nodes - 2);
  clv_graph_free(g);
  init_part(&t->whole_network);
  t->initial_block = malloc(t->whole_network.params->total_bytes);
  memcpy(t->initial_block, t->whole_network.parameter_block, t->whole_network.params->total_bytes);
  t->x = malloc(t->whole_network.n_in * sizeof(float));
  t->dy = malloc(t->whole_network.n_out * sizeof(float));
  clv_rng_normal(&(clv_rng_key){.seed = 3}, 0, 1, t->x, t->whole_network.n_in);
  clv_rng_normal(&(clv_rng_key){.seed = 4}, 0, 1, t->dy, t->whole_network.n_out);
  run_parts(&t->whole_network, 1, t->x, t->dy);
}

static void close_cut_test(cut_test *t) {
  close_part(&t->whole_network);
  free(t->x);
  free(t->dy);
  free(t->initial_block);
}

/* Asserts that the network, cut into stages of these ranges, computes the same bits as the uncut
 * network. inits_each_part: each stage initialises its weights; else they are copied from the uncut
 * network. */
static void check_cuts(const cut_test *t, const char *const *ranges, int n, bool inits_each_part) {
  clv_session_config *c = make_session(archs[t->arch].arch, ", classes: 10", ranges, n);
  uint32_t first[MAX_STAGES], last[MAX_STAGES];
  part parts[MAX_STAGES] = {{0}};
  clv_graph *g = NULL;
  assert_ok(clv_model_make_graph(c, &t->in, &g, first, last, err));
  for (int i = 0; i < n; i++) {
    open_part(&parts[i], g, first[i], last[i]);
    if (inits_each_part)
      init_part(&parts[i]);
    else
      copy_weights(&parts[i], &t->whole_network, t->initial_block);
  }
  run_parts(parts, n, t->x, t->dy);
  compare_parts(&t->whole_network, parts, n);
  for (int i = 0; i < n; i++) close_part(&parts[i]);
  clv_graph_free(g);
  clv_session_config_free(c);
}

/* Runs check_cuts with stages that end at the block ends first_end, first_end + step, ...; the last
 * stage has the remaining layers. */
static void check_cuts_at_ends(const cut_test *t, int first_end, int step, bool inits_each_part) {
  char ends[MAX_STAGES][32], range_texts[MAX_STAGES][96];
  const char *ranges[MAX_STAGES] = {NULL}, *begin = "conv1";
  int n = list_block_ends(t->arch, ends), n_stages = 0;
  for (int i = first_end; i < n + step; i += step) {
    snprintf(range_texts[n_stages], sizeof range_texts[0], "%s..%s", begin, i < n ? ends[i] : "fc");
    ranges[n_stages] = range_texts[n_stages];
    n_stages++;
    if (i >= n) break;
    begin = get_next_layer(t->arch, ends[i]);
  }
  check_cuts(t, ranges, n_stages, inits_each_part);
}

/* Each of three sessions cuts the network at every third block end, but begins at another one, so
 * that together they cut at every block end. `make test` runs only the first session. */
static void cuts_at_every_third_boundary_keep_the_bits(void **state) {
  (void)state;
  cut_test t;
  open_cut_test(&t, 0);
  for (int from = 0; from < (is_long() ? 3 : 1); from++) check_cuts_at_ends(&t, from, 3, from == 0);
  close_cut_test(&t);
}

/* `make test` runs only the largest network. */
static void cuts_at_all_boundaries_keep_the_bits(void **state) {
  (void)state;
  for (size_t arch = is_long() ? 1 : CLV_COUNT(archs) - 1; arch < CLV_COUNT(archs); arch++) {
    cut_test t;
    open_cut_test(&t, arch);
    check_cuts_at_ends(&t, 0, 1, false);
    close_cut_test(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resnet_parameters_match_torchvision),
      cmocka_unit_test(resnet_accepts_other_sizes_and_classes),
      cmocka_unit_test(initial_weights_match_torchvision),
      cmocka_unit_test(cuts_at_every_third_boundary_keep_the_bits),
      cmocka_unit_test(cuts_at_all_boundaries_keep_the_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
