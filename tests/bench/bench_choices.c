/* SPDX-License-Identifier: Apache-2.0
 *
 * Times the candidates of kernels/cpu/choices_int.h on one thread, for choices.py: forward and both
 * gradients of one node. All candidates of a shape run in turns; the result is the least time of
 * each. The function that chooses a candidate is replaced by one that returns the candidate to
 * time.
 *
 * usage: bench_choices QUESTION   a line of JSON for each shape: its class and the candidates' ms
 *        bench_choices paces      for each shape its op and its ms in f32 and in bf16
 *        bench_choices about      processor, instruction set and libraries
 */
#include <dnnl.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/choices_int.h"
#include "tests/bench/bench_int.h"

#define NONE CPU_CANDIDATES
enum { MAX_CANDIDATES = 2, MIN_ROUNDS = 7, MAX_ROUNDS = 60 };
/* processor time in ms after which a measurement ends, once MIN_ROUNDS rounds have run */
#define ROUNDS_MS 150

static cpu_candidate forced_candidates[CPU_QUESTIONS];

cpu_candidate __real_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class);
cpu_candidate __wrap_clv_cpu_choose(cpu_question question, cpu_shape_class shape_class) {
  cpu_candidate c = forced_candidates[question];
  return c == NONE ? __real_clv_cpu_choose(question, shape_class) : c;
}

static void force_none(void) {
  for (int i = 0; i < CPU_QUESTIONS; i++) forced_candidates[i] = NONE;
}

static void print_about(void) {
  const dnnl_version_t *v = dnnl_version();
  char processor[CPU_PROCESSOR_NAME];
  clv_cpu_print_processor(processor);
  printf(
      "{\"isa\":\"%s\",\"onednn\":\"oneDNN %d.%d.%d\",\"blas\":\"%s\","
      "\"processor\":\"%s\"}\n",
      clv_backend_isa(clv_backend_cpu()), v->major, v->minor, v->patch, clv_cpu_blas_version(),
      processor);
}

/* ---- the measured nodes ---------------------------------------------------------------------- */

/* Extents of a node. conv: n, c, image, k, kernel, stride, dilation, groups. linear: rows, in, out.
 * attention: n, t, heads, width. lstm: n, t, f, h. */
typedef struct shape_case {
  clv_op op;
  int64_t x[8];
} shape_case;

static const shape_case cases[] = {
    {CLV_OP_CONV2D, {4, 64, 28, 64, 3, 1, 1, 64}},
    {CLV_OP_CONV2D, {8, 128, 14, 128, 3, 2, 1, 128}},
    {CLV_OP_CONV2D, {4, 64, 14, 64, 3, 1, 1, 4}},
    {CLV_OP_CONV2D, {4, 3, 64, 64, 7, 2, 1, 1}},
    {CLV_OP_CONV2D, {8, 3, 32, 32, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 1, 28, 16, 5, 1, 1, 1}},
    {CLV_OP_CONV2D, {4, 64, 28, 64, 3, 1, 2, 1}},
    {CLV_OP_CONV2D, {4, 64, 28, 256, 1, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 256, 14, 64, 1, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 512, 7, 512, 1, 1, 1, 1}},
    {CLV_OP_CONV2D, {4, 256, 28, 512, 1, 2, 1, 1}},
    {CLV_OP_CONV2D, {8, 512, 14, 512, 1, 2, 1, 1}},
    {CLV_OP_CONV2D, {4, 64, 28, 64, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 128, 16, 128, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {16, 32, 32, 32, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 256, 8, 256, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 512, 4, 512, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 512, 7, 512, 3, 1, 1, 1}},
    {CLV_OP_CONV2D, {4, 128, 28, 128, 3, 2, 1, 1}},
    {CLV_OP_CONV2D, {8, 256, 14, 256, 3, 2, 1, 1}},
    {CLV_OP_CONV2D, {8, 32, 28, 32, 5, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 64, 14, 64, 7, 1, 1, 1}},
    {CLV_OP_CONV2D, {8, 32, 28, 64, 5, 2, 1, 1}},
    {CLV_OP_CONV2D, {4, 64, 28, 64, 7, 2, 1, 1}},
    {CLV_OP_LINEAR, {128, 768, 768}},
    {CLV_OP_LINEAR, {64, 256, 256}},
    {CLV_OP_LINEAR, {1024, 768, 768}},
    {CLV_OP_LINEAR, {512, 768, 3072}},
    {CLV_OP_LINEAR, {4096, 128, 128}},
    {CLV_OP_ATTENTION, {8, 64, 8, 16}},
    {CLV_OP_ATTENTION, {2, 256, 8, 24}},
    {CLV_OP_ATTENTION, {4, 128, 12, 64}},
    {CLV_OP_ATTENTION, {1, 512, 12, 64}},
    {CLV_OP_ATTENTION, {4, 64, 4, 128}},
    {CLV_OP_LSTM, {4, 40, 128, 256}},
    {CLV_OP_LSTM, {1, 60, 64, 128}},
    {CLV_OP_LSTM, {2, 40, 128, 256}},
    {CLV_OP_LSTM, {64, 20, 32, 64}},
    {CLV_OP_LSTM, {32, 40, 64, 96}},
    {CLV_OP_LSTM, {32, 20, 128, 256}},
    {CLV_OP_LSTM, {64, 20, 128, 512}},
};

static int64_t get_output_size(const int64_t *x) {
  int64_t kernel_extent = (x[4] - 1) * x[6] + 1, pad = kernel_extent / 2;
  return (x[2] + 2 * pad - kernel_extent) / x[5] + 1;
}

static void describe_conv(const int64_t *x, clv_node_desc *d) {
  for (int i = 0; i < 2; i++) {
    d->attrs.kernel[i] = x[4];
    d->attrs.stride[i] = x[5];
    d->attrs.dilation[i] = x[6];
    d->attrs.pad[i] = (x[4] - 1) * x[6] / 2;
  }
  d->attrs.out = x[3];
  d->attrs.groups = x[7];
  d->in[0] = CLV_SHAPE(x[0], x[1], x[2], x[2]);
  d->out = CLV_SHAPE(x[0], x[3], get_output_size(x), get_output_size(x));
  d->param[0] = CLV_SHAPE(x[3], x[1] / x[7], x[4], x[4]);
  d->n_params = 1;
}

static void describe_linear(const int64_t *x, clv_node_desc *d) {
  d->attrs.out = x[2];
  d->in[0] = CLV_SHAPE(x[0], x[1]);
  d->out = CLV_SHAPE(x[0], x[2]);
  d->param[0] = CLV_SHAPE(x[2], x[1]);
  d->n_params = 1;
}

static void describe_attention(const int64_t *x, clv_node_desc *d) {
  d->attrs.heads = x[2];
  d->n_in = 3;
  for (int i = 0; i < 3; i++) d->in[i] = CLV_SHAPE(x[0], x[1], x[2] * x[3]);
  d->out = d->in[0];
  d->need_dw = false;
}

static void describe_lstm(const int64_t *x, clv_node_desc *d) {
  d->attrs.out = x[3];
  d->attrs.layers = 1;
  d->in[0] = CLV_SHAPE(x[0], x[1], x[2]);
  d->out = CLV_SHAPE(x[0], x[1], x[3]);
  d->param[0] = CLV_SHAPE(4 * x[3], x[2]);
  d->param[1] = CLV_SHAPE(4 * x[3], x[3]);
  d->n_params = 2;
}

static clv_node_desc describe(const shape_case *c, bool is_bf16) {
  clv_node_desc d = {.op = c->op,
                     .dtype = CLV_F32,
                     .n_in = 1,
                     .training = true,
                     .need_dw = true,
                     .threads = 1,
                     .bf16 = is_bf16};
  if (c->op == CLV_OP_CONV2D) describe_conv(c->x, &d);
  if (c->op == CLV_OP_LINEAR) describe_linear(c->x, &d);
  if (c->op == CLV_OP_ATTENTION) describe_attention(c->x, &d);
  if (c->op == CLV_OP_LSTM) describe_lstm(c->x, &d);
  for (int i = 0; i < d.n_in; i++) {
    d.in_dtype[i] = CLV_F32;
    d.offered_block[i] = 1;
    d.need_dx[i] = true;
  }
  return d;
}

static cpu_shape_class get_shape_class(const shape_case *c) {
  clv_node_desc d = describe(c, false);
  clv_window s;
  switch (c->op) {
    case CLV_OP_CONV2D:
      s = clv_window_of(&d);
      return clv_cpu_class_of_conv(&s, d.attrs.groups);
    case CLV_OP_LINEAR:
      return clv_cpu_class_of_linear(c->x[0]);
    case CLV_OP_ATTENTION:
      return clv_cpu_class_of_attention(c->x[3]);
    default:
      return clv_cpu_class_of_lstm(c->x[0], c->x[3]);
  }
}

/* ---- measuring the time of nodes ------------------------------------------------------------- */

typedef struct node {
  clv_kernel *kernel;
  clv_kernel_args args;
  double ms; /* least time so far; 0: none */
} node;

/* Allocates bytes that are small numbers in f32 and in bf16. */
static void *allocate_numbers(size_t bytes) {
  void *p;
  clv_err err;
  must(clv_alloc_aligned(bytes + 64, &p, &err), &err);
  memset(p, 0x3c, bytes);
  return p;
}

static void *allocate_value(const clv_shape *shape, int layout) {
  return allocate_numbers(clv_layout_numel(shape, layout) * sizeof(float));
}

static node make_node(const shape_case *c, bool is_bf16) {
  clv_node_desc d = describe(c, is_bf16);
  node n = {0};
  clv_err err;
  must(clv_backend_cpu()->prepare(clv_backend_cpu(), &d, &n.kernel, &err), &err);
  n.args = (clv_kernel_args){.out = allocate_value(&d.out, n.kernel->out_block),
                             .dout = allocate_value(&d.out, n.kernel->out_block),
                             .saved = allocate_numbers(n.kernel->saved_bytes),
                             .cache = allocate_numbers(n.kernel->cache_bytes),
                             .scratch = allocate_numbers(n.kernel->scratch_bytes),
                             .refresh_for = CLV_FOR_FORWARD | CLV_FOR_BACKWARD};
  for (int i = 0; i < d.n_in; i++) {
    n.args.in[i] = allocate_value(&d.in[i], n.kernel->in_block[i]);
    n.args.din[i] = allocate_value(&d.in[i], n.kernel->in_block[i]);
  }
  for (int i = 0; i < d.n_params; i++) {
    n.args.param[i] = allocate_value(&d.param[i], 1);
    n.args.dparam[i] = allocate_value(&d.param[i], 1);
  }
  return n;
}

static void free_node(node *n) {
  void *const buffers[] = {n->args.out, (void *)(uintptr_t)n->args.dout, n->args.saved,
                           n->args.cache, n->args.scratch};
  for (size_t i = 0; i < CLV_COUNT(buffers); i++) free(buffers[i]);
  for (int i = 0; i < CLV_MAX_IN; i++) free((void *)(uintptr_t)n->args.in[i]);
  for (int i = 0; i < CLV_MAX_IN; i++) free(n->args.din[i]);
  for (int i = 0; i < CLV_MAX_PARAMS; i++) free(n->args.param[i]);
  for (int i = 0; i < CLV_MAX_PARAMS; i++) free(n->args.dparam[i]);
  n->kernel->free(n->kernel);
}

/* Returns the processor time of this thread in ms. Unlike elapsed time, it leaves out the work of
 * other programs on the same cores. */
static double thread_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void time_step(node *n) {
  clv_kernel *k = n->kernel;
  clv_err err;
  double begin = thread_ms();
  if (k->refresh) must(k->refresh(k, &n->args, &err), &err);
  must(k->forward(k, &n->args, &err), &err);
  must(k->backward_input(k, &n->args, &err), &err);
  if (k->backward_weight) must(k->backward_weight(k, &n->args, &err), &err);
  double ms = thread_ms() - begin;
  if (n->ms == 0 || ms < n->ms) n->ms = ms;
}

/* Times the nodes in rounds, each node once a round. The first round only warms up. */
static void time_nodes(node *nodes, int n) {
  for (int i = 0; i < n; i++) time_step(&nodes[i]);
  for (int i = 0; i < n; i++) nodes[i].ms = 0;
  double begin = thread_ms();
  for (int round = 0; round < MAX_ROUNDS; round++) {
    if (round >= MIN_ROUNDS && thread_ms() - begin > ROUNDS_MS) break;
    for (int i = 0; i < n; i++) time_step(&nodes[i]);
  }
}

static void print_shape(const shape_case *c) {
  for (int i = 0; i < 8 && c->x[i]; i++) printf("%s%lld", i ? "x" : "", (long long)c->x[i]);
}

/* ---- questions of the CPU backend, each with the kernels that can answer it ------------------ */

static const char *const class_names[] = {
    "DEPTHWISE",           "GROUPED",  "FEW_CHANNELS",       "DILATED",        "POINTWISE",
    "POINTWISE_STRIDED",   "WINDOW",   "WINDOW_SMALL_IMAGE", "WINDOW_STRIDED", "WIDE_WINDOW",
    "WIDE_WINDOW_STRIDED", "FEW_ROWS", "MANY_ROWS",          "NARROW",         "WIDE"};
_Static_assert(CLV_COUNT(class_names) == CPU_SHAPE_CLASSES, "a name for each class");

static const char *const candidate_names[] = {"BLOCKS",   "ROW_MAJOR", "CHANNELS_LAST",
                                              "ONEDNN",   "LOOPS",     "PRODUCT",
                                              "OPENBLAS", "F32",       "PAIRS"};
_Static_assert(CLV_COUNT(candidate_names) == CPU_CANDIDATES, "a name for each candidate");

/* A question of the CPU backend, such as which kernel computes a convolution in f32, with its
 * possible answers. The first one is the default. */
typedef struct question {
  const char *name;
  clv_op op;
  bool is_bf16;
  int n_candidates;
  cpu_candidate candidates[MAX_CANDIDATES];
} question;

static const question questions[CPU_QUESTIONS] = {
    [CPU_CONV_F32] = {"CONV_F32", CLV_OP_CONV2D, false, 2, {CPU_BLOCKS, CPU_ROW_MAJOR}},
    [CPU_CONV_BF16] = {"CONV_BF16", CLV_OP_CONV2D, true, 2, {CPU_BLOCKS, CPU_CHANNELS_LAST}},
    [CPU_CONV_WEIGHT_F32] = {"CONV_WEIGHT_F32", CLV_OP_CONV2D, false, 2, {CPU_LOOPS, CPU_ONEDNN}},
    [CPU_CONV_WEIGHT_BF16] =
        {"CONV_WEIGHT_BF16", CLV_OP_CONV2D, true, 2, {CPU_ONEDNN, CPU_PRODUCT}},
    [CPU_LINEAR_WEIGHT] = {"LINEAR_WEIGHT", CLV_OP_LINEAR, false, 2, {CPU_ONEDNN, CPU_OPENBLAS}},
    [CPU_ATTENTION_BF16] = {"ATTENTION_BF16", CLV_OP_ATTENTION, true, 2, {CPU_F32, CPU_PAIRS}},
    [CPU_LSTM_BF16] = {"LSTM_BF16", CLV_OP_LSTM, true, 2, {CPU_F32, CPU_PAIRS}},
};

static void time_case(cpu_question number, const shape_case *c) {
  const question *q = &questions[number];
  node nodes[MAX_CANDIDATES];
  force_none();
  if (number == CPU_CONV_WEIGHT_BF16) forced_candidates[CPU_CONV_BF16] = CPU_CHANNELS_LAST;
  if (number == CPU_CONV_WEIGHT_F32) forced_candidates[CPU_CONV_F32] = CPU_BLOCKS;
  for (int i = 0; i < q->n_candidates; i++) {
    forced_candidates[number] = q->candidates[i];
    nodes[i] = make_node(c, q->is_bf16);
  }
  time_nodes(nodes, q->n_candidates);
  printf("{\"class\":\"%s\",\"shape\":\"", class_names[get_shape_class(c)]);
  print_shape(c);
  printf("\",\"ms\":{");
  for (int i = 0; i < q->n_candidates; i++) {
    printf("%s\"%s\":%.4f", i ? "," : "", candidate_names[q->candidates[i]], nodes[i].ms);
    free_node(&nodes[i]);
  }
  printf("}}\n");
  fflush(stdout);
}

static void time_pace(const shape_case *c) {
  node nodes[2];
  force_none();
  for (int i = 0; i < 2; i++) nodes[i] = make_node(c, i);
  time_nodes(nodes, 2);
  if (strcmp(nodes[0].kernel->impl, nodes[1].kernel->impl) == 0) nodes[1].ms = nodes[0].ms;
  printf("{\"op\":\"%s\",\"class\":\"%s\",\"shape\":\"", clv_op_name(c->op),
         class_names[get_shape_class(c)]);
  print_shape(c);
  printf("\",\"ms\":{\"f32\":%.4f,\"bf16\":%.4f}}\n", nodes[0].ms, nodes[1].ms);
  fflush(stdout);
  for (int i = 0; i < 2; i++) free_node(&nodes[i]);
}

int main(int argc, char **argv) {
  bool is_found = false;
  if (argc != 2) exit_with_message("usage: bench_choices QUESTION|paces|about");
  if (strcmp(argv[1], "about") == 0) {
    print_about();
    return 0;
  }
  for (size_t i = 0; i < CLV_COUNT(cases) && strcmp(argv[1], "paces") == 0; i++, is_found = true)
    time_pace(&cases[i]);
  for (int q = 0; q < CPU_QUESTIONS; q++)
    for (size_t i = 0; i < CLV_COUNT(cases) && strcmp(argv[1], questions[q].name) == 0;
         i++, is_found = true)
      if (cases[i].op == questions[q].op) time_case((cpu_question)q, &cases[i]);
  if (!is_found) exit_with_message("unknown question");
  return 0;
}
