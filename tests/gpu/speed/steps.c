/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures training steps of one network on a device. The whole network is one plan, and the inputs
 * are in device memory, as in PyTorch. Prints the median time of a step, and the losses.
 *
 * usage: steps NETWORK BATCH SIZE f32|tf32|bf16 STEPS [FILE]
 *
 * NETWORK: mlp, lstm, resnet50, bert, bert-small (without dropout) or bert-small-drops. SIZE:
 * width of the MLP's layers, steps of the LSTM's sequence, side of an image, tokens of a text. On
 * the simulated device, kernels and products of the last step are counted.
 *
 * If FILE is given, the program writes there the parameters before the first step, in order, then
 * the input and the target, so that PyTorch can take the same steps. It writes the parameters'
 * names to FILE.names, one a line, and the parameters after the first step to FILE.after.
 *
 * Linked with the simulated device, or with NVIDIA's in its place: see on_device.c.
 */
#include <inttypes.h>
#include <string.h>

#include "common/model/hf/hf.h"
#include "common/model/optim/optim.h"
#include "tests/bench/networks_int.h"
#include "tests/gpu/sim.h"

typedef struct steps {
  clv_graph *graph;
  clv_params *params;
  clv_plan *plan;
  clv_optim *optimizer;
  clv_backend *backend;
  char *parameter_block, *gradient_block; /* all parameters and all gradients, in device memory */
  void *inputs[2];                        /* inputs of the network, in device memory */
  size_t input_bytes[2];
  double lr;
  uint64_t version;
} steps;

/* ---- the measured networks ------------------------------------------------------------------- */

static clv_graph *begin_graph_of_type(clv_dtype type, clv_shape x, clv_shape target, int *ret_x,
                                      int *ret_target) {
  clv_graph *g;
  clv_err err;
  must(clv_graph_new(&g, &err), &err);
  must(clv_graph_add_input(g, "x", type, &x, ret_x, &err), &err);
  must(clv_graph_add_input(g, "target", type, &target, ret_target, &err), &err);
  return g;
}

static clv_graph *begin_graph(clv_shape x, clv_shape target, int *ret_x, int *ret_target) {
  return begin_graph_of_type(CLV_F32, x, target, ret_x, ret_target);
}

static int add_linear(clv_graph *g, int x, int64_t out) {
  return net_add_node(g, CLV_OP_LINEAR, &(clv_attrs){.out = out, .bias = true}, x, -1);
}

static clv_graph *make_mlp(int64_t batch, int64_t width) {
  int x, target;
  clv_graph *g = begin_graph(CLV_SHAPE(batch, 784), CLV_SHAPE(batch, 10), &x, &target);
  for (int i = 0; i < 2; i++) x = net_add_plain(g, CLV_OP_RELU, add_linear(g, x, width));
  net_add_node(g, CLV_OP_MSE, &(clv_attrs){0}, add_linear(g, x, 10), target);
  return g;
}

static clv_graph *make_lstm(int64_t batch, int64_t length) {
  int x, target;
  clv_graph *g = begin_graph(CLV_SHAPE(batch, length, 128), CLV_SHAPE(batch, 10), &x, &target);
  const clv_attrs last_step = {.dim = 1, .start = length - 1, .stop = length};
  x = net_add_node(g, CLV_OP_LSTM, &(clv_attrs){.out = 256, .layers = 2, .bias = true}, x, -1);
  x = net_add_plain(g, CLV_OP_FLATTEN, net_add_node(g, CLV_OP_SLICE, &last_step, x, -1));
  net_add_node(g, CLV_OP_MSE, &(clv_attrs){0}, add_linear(g, x, 10), target);
  return g;
}

enum { LABELS = 2 };

/* Returns BERT-base, or a smaller BERT, with a classifier of texts. */
static clv_graph *make_text_classifier(const char *config, int64_t batch, int64_t length) {
  clv_hf_config c;
  clv_hf_inputs inputs = {.boxes = -1, .lengths = -1};
  uint32_t layer = 0;
  int target, last_node;
  clv_err err;
  must(clv_hf_config_parse("config", config, strlen(config), NULL, &c, &err), &err);
  clv_graph *g = begin_graph_of_type(CLV_I64, CLV_SHAPE(batch, length), CLV_SHAPE(batch),
                                     &inputs.records, &target);
  must(clv_hf_add_layers(&c, CLV_HF_SEQUENCE, LABELS, &inputs, g, &layer, &last_node, &err), &err);
  net_add_node(g, CLV_OP_CROSS_ENTROPY, &(clv_attrs){.ignore_index = -100}, last_node, target);
  return g;
}

#define BERT(sizes, dropout)                                                               \
  "{\"model_type\": \"bert\", \"vocab_size\": 30522, " sizes                               \
  ", \"hidden_act\": \"gelu\", \"max_position_embeddings\": 512, \"type_vocab_size\": 2, " \
  "\"hidden_dropout_prob\": " dropout ", \"attention_probs_dropout_prob\": " dropout       \
  ", \"initializer_range\": 0.02, \"layer_norm_eps\": 1e-12, \"pad_token_id\": 0}"

static clv_graph *make_bert(int64_t batch, int64_t length) {
  return make_text_classifier(BERT("\"hidden_size\": 768, \"num_hidden_layers\": 12, "
                                   "\"num_attention_heads\": 12, \"intermediate_size\": 3072",
                                   "0.1"),
                              batch, length);
}

#define SMALL                                       \
  "\"hidden_size\": 32, \"num_hidden_layers\": 2, " \
  "\"num_attention_heads\": 2, \"intermediate_size\": 64"

static clv_graph *make_small_bert(int64_t batch, int64_t length) {
  return make_text_classifier(BERT(SMALL, "0.0"), batch, length);
}

static clv_graph *make_small_bert_with_dropout(int64_t batch, int64_t length) {
  return make_text_classifier(BERT(SMALL, "0.1"), batch, length);
}

#define BY_ADAMW                                                                    \
  {                                                                                 \
    .kind = CLV_OPTIM_ADAMW, .lr = 2e-5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, \
    .weight_decay = 0.01                                                            \
  }

static const struct network {
  const char *name;
  clv_graph *(*graph)(int64_t batch, int64_t size);
  clv_optim_config optimizer;
  /* exclusive upper limit of the integers of each input; 0: the input has floats */
  int64_t integer_limit[2];
} networks[] = {
    {"mlp", make_mlp, {.kind = CLV_OPTIM_SGD, .lr = 0.05, .momentum = 0.9}, {0}},
    {"lstm",
     make_lstm,
     {.kind = CLV_OPTIM_ADAM, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
     {0}},
    {"resnet50", net_make_resnet50, {.kind = CLV_OPTIM_SGD, .lr = 0.05, .momentum = 0.9}, {0}},
    {"bert", make_bert, BY_ADAMW, {30522, LABELS}},
    {"bert-small", make_small_bert, BY_ADAMW, {30522, LABELS}},
    {"bert-small-drops", make_small_bert_with_dropout, BY_ADAMW, {30522, LABELS}},
};

/* ---- a network's plan and its memory --------------------------------------------------------- */

static void allocate_on_device(steps *s, const void *host, size_t bytes, void *ret_pp) {
  clv_err err;
  must(clv_backend_allocate(s->backend, bytes, ret_pp, &err), &err);
  must(clv_backend_put(s->backend, *(void **)ret_pp, host, bytes, &err), &err);
}

static void write_to_file(FILE *file, const void *p, size_t bytes) {
  if (file && fwrite(p, 1, bytes, file) != bytes) exit_with_message("the file cannot be written");
}

/* Writes the trained parameters of a block to the file, in order. */
static void write_trained_part(const steps *s, FILE *file, const char *block) {
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    if (p->trainable) write_to_file(file, block + p->offset, p->bytes);
  }
}

static void make_parameters(steps *s, FILE *file) {
  char *host;
  clv_err err;
  must(clv_alloc_aligned(s->params->total_bytes, &host, &err), &err);
  memset(host, 0, s->params->total_bytes); /* zeros also the gaps between parameters */
  clv_params_init(s->graph, s->params, host);
  write_trained_part(s, file, host);
  allocate_on_device(s, host, s->params->total_bytes, &s->parameter_block);
  must(clv_backend_allocate(s->backend, s->params->trainable_bytes, &s->gradient_block, &err),
       &err);
  free(host);
}

/* Draws integers from 0 to limit - 1. */
static void draw_integers(uint32_t seed, int64_t limit, int64_t *ret, size_t n) {
  float *drawn = NULL;
  clv_err err;
  must(clv_alloc_aligned(n * sizeof *drawn, &drawn, &err), &err);
  clv_rng_uniform(&(clv_rng_key){.seed = seed}, 0, 1, drawn, n);
  for (size_t i = 0; i < n; i++) ret[i] = CLV_MIN((int64_t)(drawn[i] * (float)limit), limit - 1);
  free(drawn);
}

static void make_inputs(steps *s, const struct network *net, FILE *file) {
  for (uint32_t i = 0; i < 2; i++) {
    const clv_node *node = &s->graph->nodes[i];
    size_t n = clv_layout_numel(&node->shape, 1);
    void *host = NULL;
    clv_err err;
    s->input_bytes[i] = n * clv_dtype_size(node->dtype);
    must(clv_alloc_aligned(s->input_bytes[i], &host, &err), &err);
    if (node->dtype == CLV_I64)
      draw_integers(1 + i, net->integer_limit[i], host, n);
    else
      clv_rng_normal(&(clv_rng_key){.seed = 1 + i}, 0, 1, host, n);
    write_to_file(file, host, s->input_bytes[i]);
    allocate_on_device(s, host, s->input_bytes[i], &s->inputs[i]);
    free(host);
  }
}

static FILE *open_file_beside(const char *path, const char *suffix) {
  char name[512];
  snprintf(name, sizeof name, "%s%s", path, suffix);
  FILE *f = fopen(name, "wb");
  if (!f) exit_with_message("what lies beside the file cannot be written");
  return f;
}

static void write_parameter_names(const steps *s, const char *path) {
  FILE *f = open_file_beside(path, ".names");
  for (int i = 0; i < s->params->n; i++)
    if (s->params->list[i].trainable) fprintf(f, "%s\n", s->params->list[i].name);
  if (fclose(f)) exit_with_message("the names cannot be written");
}

static void write_trained_parameters(const steps *s, const char *path) {
  FILE *f = open_file_beside(path, ".after");
  char *host;
  clv_err err;
  must(clv_alloc_aligned(s->params->total_bytes, &host, &err), &err);
  must(clv_backend_get(s->backend, host, s->parameter_block, s->params->total_bytes, &err), &err);
  write_trained_part(s, f, host);
  free(host);
  if (fclose(f)) exit_with_message("the parameters cannot be written");
}

static void make_steps(steps *s, const struct network *net, int64_t batch, const char *math) {
  clv_err err;
  const clv_plan_options o = {.backend = s->backend,
                              .dtype = CLV_F32,
                              .batch = batch,
                              .training = true,
                              .threads = 1,
                              .bf16 = strcmp(math, "bf16") == 0,
                              .tf32 = strcmp(math, "tf32") == 0,
                              .transient_weights = true};
  must(clv_params_make(s->graph, &s->params, &err), &err);
  must(clv_plan_new(s->graph, s->params, &o, &s->plan, &err), &err);
  const clv_optim_span all_parameters = {.n = s->params->trainable_bytes / sizeof(float)};
  must(clv_optim_new(&net->optimizer, 1, s->params->trainable_bytes, &all_parameters, 1, s->backend,
                     &s->optimizer, &err),
       &err);
  s->lr = net->optimizer.lr;
}

static float run_step(steps *s) {
  const float one = 1;
  const clv_plan_memories memories = {.in = {s->backend, s->backend}};
  void *din[] = {NULL, NULL};
  float loss;
  clv_call *c;
  clv_err err;
  must(clv_plan_call_get(s->plan, &c, &err), &err);
  clv_plan_call_set_memories(c, &memories);
  must(clv_plan_forward(s->plan, c, s->parameter_block, s->version++,
                        (const void *const *)s->inputs, true, &loss, NULL, &err),
       &err);
  must(clv_plan_backward_input(s->plan, c, s->parameter_block, &one, din, s->gradient_block, false,
                               &err),
       &err);
  must(clv_plan_backward_weight(s->plan, c, s->parameter_block, s->gradient_block, false, &err),
       &err);
  clv_plan_call_put(s->plan, c);
  clv_optim_step(s->optimizer, (float *)s->parameter_block, (const float *)s->gradient_block,
                 &s->lr, 1);
  must(clv_backend_finish(s->backend, &err), &err);
  return loss;
}

static void free_steps(steps *s) {
  clv_plan_free(s->plan);
  clv_optim_free(s->optimizer);
  for (int i = 0; i < 2; i++) clv_backend_free_memory(s->backend, s->inputs[i]);
  clv_backend_free_memory(s->backend, s->parameter_block);
  clv_backend_free_memory(s->backend, s->gradient_block);
  clv_params_free(s->params);
  clv_graph_free(s->graph);
  clv_cuda_close(s->backend);
}

/* ---- measuring training steps ---------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Prints the median time of the second half of the steps; the first half warms up. path: FILE of
 * the command line; NULL: not given. */
static void print_measurements(steps *s, unsigned n, const char *path) {
  double *ms = allocate_samples(n);
  clv_sim_counts counts_before = {0}, counts_after;
  printf("\"losses\":[");
  for (unsigned i = 0; i < n; i++) {
    counts_before = clv_sim_get_counts();
    uint64_t at = clv_now_ns();
    printf("%s%.9g", i ? "," : "", (double)run_step(s));
    ms[i] = (double)(clv_now_ns() - at) / 1e6;
    if (path && i == 0) write_trained_parameters(s, path);
  }
  counts_after = clv_sim_get_counts();
  qsort(ms + n / 2, n - n / 2, sizeof *ms, compare_doubles);
  printf("],\"kernels\":%" PRIu64 ",\"products\":%" PRIu64 ",\"ms\":%.4f}\n",
         counts_after.n_launches - counts_before.n_launches,
         counts_after.n_products - counts_before.n_products, ms[n / 2 + (n - n / 2) / 2]);
  free(ms);
}

static const struct network *find_network(const char *name) {
  for (size_t i = 0; i < CLV_COUNT(networks); i++)
    if (strcmp(name, networks[i].name) == 0) return &networks[i];
  exit_with_message("no such network");
}

int main(int argc, char **argv) {
  static steps s;
  clv_err err;
  if (argc < 6) exit_with_message("usage: steps NETWORK BATCH SIZE f32|tf32|bf16 STEPS [FILE]");
  const struct network *net = find_network(argv[1]);
  int64_t batch = atol(argv[2]), size = atol(argv[3]);
  unsigned n = (unsigned)CLV_MAX(atoi(argv[5]), 1);
  FILE *file = argc > 6 ? fopen(argv[6], "wb") : NULL;
  if (argc > 6 && !file) exit_with_message("the file cannot be opened");
  must(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){.seed = 2}), 0, &s.backend, &err),
       &err);
  s.graph = net->graph(batch, size);
  make_steps(&s, net, batch, argv[4]);
  make_parameters(&s, file);
  make_inputs(&s, net, file);
  if (file) write_parameter_names(&s, argv[6]);
  if (file && fclose(file)) exit_with_message("the file cannot be written");
  printf("{\"network\":\"%s\",\"batch\":%lld,\"size\":%lld,\"math\":\"%s\",", net->name,
         (long long)batch, (long long)size, argv[4]);
  print_measurements(&s, n, file ? argv[6] : NULL);
  free_steps(&s);
  return clv_sim_count_leaks() ? 1 : 0;
}
