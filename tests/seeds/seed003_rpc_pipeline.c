/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed 003, PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC": trains
 * ResNet50 in two parts on two workers. Every micro-batch passes both parts as a reference, without
 * waiting. The outputs are concatenated along the batch for one loss, whose backward pass runs over
 * both workers in an autograd context of its own, and a distributed SGD steps both parts. Batch
 * norms see one micro-batch at a time; each changes their running statistics, in order.
 *
 * `xs.split(num_split)` is read in both ways: a number of chunks, as the tutorial's prose says, and
 * the images of a chunk, as its code does. Each num_split has a session of its own, as in the
 * tutorial; the figures (tests/golden/seed003.py) say how many images of what size there are.
 * PARTS=home in the environment: everything is at the master. READING=count or size: only that
 * reading. The digest is of all losses and of the state at the end; it is the same wherever the
 * parts are.
 */
#include <time.h>

#include "seed.h"

/* MAX_JOINED: largest number of inputs of a concat */
enum { MAX_IMAGES = 120, MAX_JOINED = 8, READINGS = 2 };

static const char *const readings[READINGS] = {"count", "size"};

/* Tensors that are compared after the first step. The running statistics show in which order the
 * micro-batches passed. The last tensor depends on gradients, which have fewer correct digits in a
 * deep network of floats: there PyTorch itself differs from its float64 result by 3e-3, and by 2e-2
 * in the losses after a step. */
static const struct {
  const char *name;
  int part_index;
  double limit_factor; /* factor by which the accepted difference of this tensor is multiplied */
} compared_tensors[] = {
    {"bn1.running_mean", 0, 0.1},         {"bn1.running_var", 0, 0.1},
    {"layer2.3.bn1.running_var", 0, 0.1}, {"layer3.0.bn1.running_mean", 1, 0.1},
    {"layer4.2.bn2.running_var", 1, 1},   {"layer4.2.bn3.bias", 1, 20},
};
enum { COMPARED = sizeof compared_tensors / sizeof *compared_tensors };
/* factors by which the accepted difference is multiplied: for the first loss, for later losses, and
 * for the movement of rows */
static const double first_loss_factor = 0.1, later_losses_factor = 300, moved_rows_factor = 5;

static struct { int images, image_side, classes, batches; } sizes;
static bool is_all_at_master;
/* digest of the results by the hash FNV-1a */
static uint64_t digest = UINT64_C(14695981039346656037);

typedef struct pipeline {
  int chunk_images, n_chunks; /* images of each chunk but the last, and number of chunks */
  cleave_module *parts[2], *join_modules[MAX_JOINED + 1], *loss;
  cleave_optimizer *sgd;
} pipeline;

static void add_to_digest(const void *data, size_t n) { /* n: number of bytes, a multiple of 4 */
  for (size_t i = 0; i < n; i += 4) {
    uint32_t word;
    memcpy(&word, (const char *)data + i, 4);
    digest = (digest ^ word) * 1099511628211u;
  }
}

static double get_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the two parts of the ResNet ------------------------------------------------------------- */

/* Draws a parameter as the tutorial does, from a random stream that its name selects. */
static void draw_parameter(const char *name, const cleave_tensor *t) {
  size_t n = cleave_tensor_count(t);
  float *to = t->data;
  bool one = !strstr(name, "bias") && !strstr(name, "running_mean");
  if (strncmp(name, "fc.", 3) == 0) {
    seed_draw_uniform(to, n, seed_get_stream(name), 1 / sqrtf(2048));
  } else if (t->rank == 4) { /* kaiming_normal_(mode="fan_out", nonlinearity="relu") */
    float deviation = sqrtf(2.0f / (float)(t->shape[0] * t->shape[2] * t->shape[3]));
    seed_draw_normal(to, 0, n, seed_get_stream(name));
    for (size_t i = 0; i < n; i++) to[i] *= deviation;
  } else {
    for (size_t i = 0; i < n; i++) to[i] = one;
  }
}

static cleave_state initial_state[2]; /* [both parts] initial state, drawn once */

static void draw_weights(int s, cleave_module *part) {
  cleave_state *f = &initial_state[s];
  if (!f->n) {
    MUST(cleave_state_read(seed.rt, part, CLEAVE_STATE_WEIGHTS, 0, f, &seed.e));
    for (size_t i = 0; i < f->n; i++)
      if (f->items[i].tensor.dtype == CLEAVE_F32)
        draw_parameter(f->items[i].name, &f->items[i].tensor);
  }
  MUST(cleave_state_write(seed.rt, part, CLEAVE_STATE_WEIGHTS, f->items, f->n, 0, &seed.e));
}

static const cleave_tensor *find_initial_value(int s, const char *name) {
  for (size_t i = 0; i < initial_state[s].n; i++)
    if (strcmp(initial_state[s].items[i].name, name) == 0) return &initial_state[s].items[i].tensor;
  seed_fail("part %d has no '%s'", s, name);
}

static void load_parts(pipeline *p) {
  static const char *const layers[] = {"conv1..layer2", "layer3..fc"};
  cleave_input image =
      CLEAVE_INPUT(CLEAVE_F32, p->chunk_images, 3, sizes.image_side, sizes.image_side);
  char attributes[32];
  snprintf(attributes, sizeof attributes, "{classes: %d}", sizes.classes);
  for (int s = 0; s < 2; s++) {
    cleave_module_options at = {.size = sizeof at,
                                .name = s ? "p2" : "p1",
                                .at = is_all_at_master ? "master"
                                      : s              ? "w2"
                                                       : "w1",
                                .layers = layers[s],
                                .in_flight = (uint32_t)p->n_chunks};
    MUST(cleave_load_architecture(seed.rt, &at, "resnet50", attributes, &image, &p->parts[s],
                                  &seed.e));
  }
  cleave_group group = {.modules = p->parts, .n_modules = 2, .kind = CLEAVE_SGD, .lr = 0.05};
  MUST(cleave_optimizer_new(seed.rt, &group, 1, 0, &p->sgd, &seed.e));
  for (int s = 0; s < 2; s++) draw_weights(s, p->parts[s]);
}

static void load_loss(pipeline *p) {
  cleave_input outputs = CLEAVE_INPUT(CLEAVE_F32, sizes.images, sizes.classes);
  cleave_module_options loss_options = {.size = sizeof loss_options, .name = "mse"};
  MUST(cleave_load_loss(seed.rt, &loss_options, "mse", &outputs, &p->loss, &seed.e));
}

/* ---- concatenation, as torch.cat ------------------------------------------------------------- */

/* Loads a module at the master that concatenates n values of any number of rows. */
static cleave_module *load_join(int n) {
  char name[24];
  int in[MAX_JOINED];
  cleave_graph *g;
  cleave_module *module;
  cleave_module_options join_options = {
      .size = sizeof join_options, .name = name, .in_flight = MAX_IMAGES / MAX_JOINED + 1};
  MUST(cleave_graph_new(&g, &seed.e));
  for (int i = 0; i < n; i++) {
    snprintf(name, sizeof name, "output%d", i);
    MUST(
        cleave_graph_input(g, name, CLEAVE_F32, (int64_t[]){1, sizes.classes}, 2, &in[i], &seed.e));
  }
  MUST(cleave_graph_op(g, "concat", "{dim: 0}", NULL, in, n, NULL, &seed.e));
  snprintf(name, sizeof name, "cat %d", n);
  MUST(cleave_load_graph(seed.rt, &join_options, g, &module, &seed.e));
  cleave_graph_free(g);
  return module;
}

/* torch.cat of any number of values: a tree of concats. Overwrites the list. */
static cleave_reference concatenate(pipeline *p, cleave_context c, cleave_reference *parts, int n) {
  while (n > 1) {
    int groups = (n + MAX_JOINED - 1) / MAX_JOINED, at = 0;
    for (int g = 0; g < groups; g++) {
      /* groups of about equal size, none of which has one value */
      int k = n * (g + 1) / groups - at;
      if (!p->join_modules[k]) p->join_modules[k] = load_join(k);
      cleave_reference joined;
      MUST(cleave_call(seed.rt, c, p->join_modules[k], parts + at, (size_t)k, &joined, &seed.e));
      parts[g] = joined; /* overwrites list entries that were read before */
      at += k;
    }
    n = groups;
  }
  return parts[0];
}

/* ---- training steps -------------------------------------------------------------------------- */

/* DistResNet50.forward: returns the outputs of all images. */
static cleave_reference run_forward(pipeline *p, cleave_context c, const float *xs) {
  cleave_reference outputs[MAX_IMAGES];
  size_t image = (size_t)(3 * sizes.image_side * sizes.image_side);
  for (int m = 0, at = 0; m < p->n_chunks; m++, at += p->chunk_images) {
    int rows = p->chunk_images < sizes.images - at ? p->chunk_images : sizes.images - at;
    cleave_tensor x =
        CLEAVE_TENSOR_F32(xs + (size_t)at * image, rows, 3, sizes.image_side, sizes.image_side);
    cleave_reference x_ref, y_ref;
    MUST(cleave_leaf(seed.rt, c, &x, false, &x_ref, &seed.e));
    MUST(cleave_call(seed.rt, c, p->parts[0], &x_ref, 1, &y_ref, &seed.e));
    MUST(cleave_call(seed.rt, c, p->parts[1], &y_ref, 1, &outputs[m], &seed.e));
  }
  return concatenate(p, c, outputs, p->n_chunks);
}

static float train_step(pipeline *p, const float *xs, const cleave_tensor *labels) {
  cleave_context c;
  cleave_reference both[2], loss;
  cleave_tensor value = {0};
  cleave_step_result stepped;
  MUST(cleave_context_open(seed.rt, NULL, &c, &seed.e));
  both[0] = run_forward(p, c, xs);
  MUST(cleave_leaf(seed.rt, c, labels, false, &both[1], &seed.e));
  MUST(cleave_call(seed.rt, c, p->loss, both, 2, &loss, &seed.e));
  MUST(cleave_backward(seed.rt, c, &loss, 1, false, 0, &seed.e));
  MUST(cleave_step(seed.rt, p->sgd, c, 0, &stepped, &seed.e));
  MUST(cleave_to_here(seed.rt, loss, 0, &value, &seed.e));
  MUST(cleave_context_close(seed.rt, c, 0, &seed.e));
  if (!stepped.applied) seed_fail("a gradient is not finite");
  float result = seed_get_value(&value, 0);
  add_to_digest(&result, sizeof result);
  cleave_tensor_free(&value);
  return result;
}

/* Compares a tensor with PyTorch's tensor RUN.WHAT: norm of the difference divided by PyTorch's
 * norm. */
static void compare_norm(const char *run, const char *what, double limit_factor,
                         const cleave_tensor *ours) {
  char key[64];
  double sum = 0;
  snprintf(key, sizeof key, "%s.%s", run, what);
  cleave_tensor theirs = seed_get_golden(key);
  size_t n = cleave_tensor_count(&theirs);
  if (cleave_tensor_count(ours) != n) seed_fail("%s: another shape", key);
  for (size_t i = 0; i < n; i++)
    sum += pow((double)seed_get_value(ours, i) - seed_get_value(&theirs, i), 2);
  if (seed_record_difference(sqrt(sum) / limit_factor, seed_compute_norm(&theirs)))
    snprintf(seed.where_largest, sizeof seed.where_largest, " (%s %.1e, times %g)", key,
             sqrt(sum) / seed_compute_norm(&theirs), 1 / limit_factor);
}

/* Compares with PyTorch's how far each row of the last layer's weight has moved in the step. The
 * gradients of this weight came through the loss and the concats. */
static void compare_row_movement(const char *run, const cleave_tensor *weight) {
  size_t rows = (size_t)sizes.classes, width = cleave_tensor_count(weight) / rows;
  const cleave_tensor *initial = find_initial_value(1, "fc.weight");
  float *row_distances = calloc(rows, sizeof *row_distances);
  if (!row_distances) seed_fail("out of memory");
  cleave_tensor norms = CLEAVE_TENSOR_F32(row_distances, (int64_t)rows);
  for (size_t r = 0; r < rows; r++) {
    double sum = 0;
    for (size_t i = r * width; i < (r + 1) * width; i++)
      sum += pow((double)seed_get_value(weight, i) - seed_get_value(initial, i), 2);
    row_distances[r] = (float)sqrt(sum);
  }
  compare_norm(run, "moved", moved_rows_factor, &norms);
  free(row_distances);
}

static void compare_state(pipeline *p, const char *run) {
  cleave_tensor t = {0};
  for (int i = 0; i < COMPARED; i++) {
    MUST(cleave_weight_read(seed.rt, p->parts[compared_tensors[i].part_index],
                            compared_tensors[i].name, 0, &t, &seed.e));
    compare_norm(run, compared_tensors[i].name, compared_tensors[i].limit_factor, &t);
  }
  MUST(cleave_weight_read(seed.rt, p->parts[1], "fc.weight", 0, &t, &seed.e));
  compare_row_movement(run, &t);
  cleave_tensor_free(&t);
}

/* Takes the training steps of the tutorial's function run_master. Returns the last loss. */
static double train_steps(pipeline *p, const char *run, float *xs, const cleave_tensor *labels) {
  char what[32];
  size_t values = (size_t)(sizes.images * 3 * sizes.image_side * sizes.image_side);
  float loss = NAN;
  snprintf(what, sizeof what, "%s.losses", run);
  cleave_tensor theirs = seed_get_golden(what);
  for (int i = 0; i < sizes.batches; i++) {
    printf("Processing batch %d\n", i);
    seed_draw_normal(xs, (size_t)i * values, values, SEED_DATA);
    loss = train_step(p, xs, labels);
    double limit_factor = i ? later_losses_factor : first_loss_factor,
           at = seed_get_value(&theirs, (size_t)i);
    seed_compare_number(what, (size_t)i, at + (loss - at) / limit_factor, at);
    if (i == 0) compare_state(p, run);
  }
  return loss;
}

/* Adds the whole state to the digest. Asserts that every batchnorm counted every micro-batch. */
static void check_final_state(const pipeline *p) {
  for (int s = 0; s < 2; s++) {
    cleave_state state;
    MUST(cleave_state_read(seed.rt, p->parts[s], CLEAVE_STATE_WEIGHTS, 0, &state, &seed.e));
    for (size_t i = 0; i < state.n; i++) {
      const cleave_tensor *t = &state.items[i].tensor;
      bool count = t->dtype == CLEAVE_I64;
      add_to_digest(t->data, cleave_tensor_count(t) * (count ? sizeof(int64_t) : sizeof(float)));
      if (count && *(const int64_t *)t->data != sizes.batches * p->n_chunks)
        seed_fail("%s is not %d x %d", state.items[i].name, sizes.batches, p->n_chunks);
    }
    cleave_state_free(&state);
  }
}

/* Trains with one num_split in a session of its own. Returns the seconds of the training, without
 * those of the final checks. */
static double run_with_split(const char *session, int reading, int num_split, float *xs,
                             const cleave_tensor *labels) {
  static bool is_first_session_used;
  char run[16];
  int images = sizes.images;
  pipeline p = {.chunk_images = reading ? num_split : (images + num_split - 1) / num_split};
  double begin = get_seconds(), seconds, loss;
  p.n_chunks = (images + p.chunk_images - 1) / p.chunk_images;
  snprintf(run, sizeof run, "%s_%d", readings[reading], num_split);
  if (is_first_session_used) { /* seed_open_session has opened the first session */
    seed_close_runtime();
    MUST(cleave_open(session, seed.runtime_options, &seed.rt, &seed.e));
  }
  is_first_session_used = true;
  load_parts(&p);
  load_loss(&p);
  loss = train_steps(&p, run, xs, labels);
  seconds = get_seconds() - begin;
  check_final_state(&p);
  printf("number of splits = %d, execution time = %.3f (%s: %d micro-batches, loss %.6f)\n",
         num_split, seconds, readings[reading], p.n_chunks, loss);
  fflush(stdout);
  return loss;
}

static void read_sizes(void) {
  cleave_tensor found = seed_get_golden("sizes");
  if (cleave_tensor_count(&found) != 4) seed_fail("sizes: images, side, classes and batches");
  sizes.images = (int)seed_get_value(&found, 0);
  sizes.image_side = (int)seed_get_value(&found, 1);
  sizes.classes = (int)seed_get_value(&found, 2);
  sizes.batches = (int)seed_get_value(&found, 3);
  if (sizes.images < 1 || sizes.images > MAX_IMAGES || sizes.image_side < 1 || sizes.classes < 1)
    seed_fail("%d images of %d x %d, %d classes", sizes.images, sizes.image_side, sizes.image_side,
              sizes.classes);
}

/* Makes the one-hot labels, the same for all batches. */
static float *make_labels(void) {
  int64_t classes[MAX_IMAGES];
  float *to = calloc((size_t)(sizes.images * sizes.classes), sizeof *to);
  if (!to) seed_fail("out of memory");
  seed_draw_classes(classes, (size_t)sizes.images, SEED_LABELS, (uint32_t)sizes.classes);
  for (int i = 0; i < sizes.images; i++) to[(int64_t)i * sizes.classes + classes[i]] = 1;
  return to;
}

int main(int argc, char **argv) {
  const char *where = getenv("PARTS"), *only_reading = getenv("READING");
  double loss = NAN;
  is_all_at_master = where && strcmp(where, "home") == 0;
  seed_open_session("seed003_rpc_pipeline", argc, argv);
  read_sizes();
  float *one_hot_labels = make_labels();
  float *xs = malloc((size_t)(sizes.images * 3 * sizes.image_side * sizes.image_side) * sizeof *xs);
  if (!xs) seed_fail("out of memory");
  cleave_tensor labels = CLEAVE_TENSOR_F32(one_hot_labels, sizes.images, sizes.classes);
  for (int reading = 0; reading < READINGS; reading++)
    for (int k = 1; k <= 8 && (!only_reading || strcmp(only_reading, readings[reading]) == 0);
         k *= 2)
      loss = run_with_split(argv[1], reading, k, xs, &labels);
  printf("digest %016llx\n", (unsigned long long)digest);
  for (int s = 0; s < 2; s++) cleave_state_free(&initial_state[s]);
  free(xs);
  free(one_hot_labels);
  return seed_print_verdict(1e-3, "ResNet50, %d images of %d x %d, %d steps each, loss %.6f",
                            sizes.images, sizes.image_side, sizes.image_side, sizes.batches, loss);
}
