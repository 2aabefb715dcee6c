/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the cuda backend on the simulated device where it computes with fewer bits than f32 has:
 * only where the caller allows it, with results near those of ref, and with the same bits in any
 * order of the device's work.
 */
#include "tests/gpu/sim.h"
#include "tests/long.h"
#include "tests/ops/compare_int.h"
#include "tests/sanitized.h"

/* Number types of a computation, and the allowed distances of its results from those of the ref
 * backend; 0: not checked. max_distance_of_few_bits: limit for inputs that bf16 represents exactly,
 * so that only computed and written values are rounded. */
typedef struct computation {
  const char *name;
  run_options o;
  double max_distance, max_distance_of_few_bits;
} computation;

/* Places at which an op rounds to bf16: the factors of its products, the images that it writes,
 * values that later steps of the same op read. */
enum { ROUNDS_FACTORS = 1 << 0, WRITES_BF16_IMAGES = 1 << 1, CONTINUES_ROUNDED = 1 << 2 };
static const unsigned bf16_effects[CLV_OP_COUNT] = {
#define POINTWISE(name, ...) [CLV_OP_NUMBER_##name] = WRITES_BF16_IMAGES,
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
    [CLV_OP_LINEAR] = ROUNDS_FACTORS,
    [CLV_OP_LSTM] = ROUNDS_FACTORS | CONTINUES_ROUNDED,
    [CLV_OP_ATTENTION] = ROUNDS_FACTORS | CONTINUES_ROUNDED,
    [CLV_OP_MATMUL] = ROUNDS_FACTORS,
    [CLV_OP_CONV1D] = ROUNDS_FACTORS,
    [CLV_OP_CONV_TRANSPOSE1D] = ROUNDS_FACTORS,
    [CLV_OP_CONV2D] = ROUNDS_FACTORS | WRITES_BF16_IMAGES,
    [CLV_OP_CONV_TRANSPOSE2D] = ROUNDS_FACTORS | WRITES_BF16_IMAGES,
    [CLV_OP_BATCHNORM] = WRITES_BF16_IMAGES,
    [CLV_OP_SCALE] = WRITES_BF16_IMAGES,
    [CLV_OP_ADD] = WRITES_BF16_IMAGES,
    [CLV_OP_MUL] = WRITES_BF16_IMAGES,
    [CLV_OP_ADAPTIVE_AVGPOOL2D] = WRITES_BF16_IMAGES,
    [CLV_OP_UPSAMPLE_NEAREST] = WRITES_BF16_IMAGES,
    [CLV_OP_UPSAMPLE_BILINEAR] = WRITES_BF16_IMAGES,
    [CLV_OP_MAXPOOL] = WRITES_BF16_IMAGES,
    [CLV_OP_AVGPOOL] = WRITES_BF16_IMAGES,
    [CLV_OP_GLOBALAVGPOOL] = WRITES_BF16_IMAGES,
    [CLV_OP_STOCHASTIC_DEPTH] = WRITES_BF16_IMAGES,
    [CLV_OP_DROPOUT] = WRITES_BF16_IMAGES};

static const run_options on_ref = {.dtype = CLV_F32};
static const run_options bf16_weight_on_ref = {.dtype = CLV_F32, .has_bf16_weight = true};

static size_t tile_bytes; /* bytes of a tile of attention; 0: the backend's own size */

static bool is_simulated; /* true if the device opened last is simulated */

static clv_backend *open_device(uint64_t seed) {
  clv_backend *b;
  clv_err err;
  const clv_vendor *v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .no_cudnn = seed & 1});
  must(clv_cuda_open(v, 0, &b, &err), &err);
  is_simulated = strcmp(v->name, "cuda-sim") == 0;
  if (tile_bytes) clv_cuda_set_tile_bytes(b, tile_bytes);
  return b;
}

/* ---- drawing the given values of a case ------------------------------------------------------ */

static double keep_few_bits(double value) {
  float x = (float)value;
  uint32_t bits;
  if (!isfinite(x)) return value;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

static void draw_values(const op_case *c, bool has_few_bits, values *s) {
  allocate_values(s, &c->d);
  draw_case(c, s);
  for (int i = 0; i < V_FIRST_RESULT && has_few_bits; i++)
    for (size_t j = 0; j < s->n[i]; j++) s->v[i][j] = keep_few_bits(s->v[i][j]);
}

/* ---- running a case -------------------------------------------------------------------------- */

/* Runs a case and stores its results. seed: seed of the simulated device; unused if `o` is for the
 * backend ref. */
static void run_case_on_device(const op_case *c, const run_options *o, bool has_few_bits,
                               uint64_t seed, values *ret) {
  run_options options = *o;
  clv_backend *b = o == &on_ref || o == &bf16_weight_on_ref ? NULL : open_device(seed);
  options.backend = b ? b : clv_backend_ref();
  options.dtype = CLV_F32;
  draw_values(c, has_few_bits, ret);
  if (!run_case(&options, &c->d, ret, NULL)) fail_msg("%s: no kernel", c->name);
  clv_cuda_close(b);
  if (b && clv_sim_count_leaks()) fail_msg("%s: something is left on the device", c->name);
}

static bool are_all_finite(const values *s) {
  for (int i = 0; i < V_COUNT; i++)
    for (size_t j = 0; j < s->n[i]; j++)
      if (!isfinite(s->v[i][j])) return false;
  return true;
}

/* True if all results are zeros, as when all sequences are empty. */
static bool are_all_zero(const values *s) {
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    for (size_t j = 0; j < s->n[i]; j++)
      if (s->v[i][j] != 0) return false;
  return true;
}

static bool are_bits_equal(const values *a, const values *b) {
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++)
    if (a->n[i] && memcmp(a->v[i], b->v[i], a->n[i] * sizeof(double))) return false;
  return true;
}

static double find_largest_distance(const op_case *c, const char *name, const values *got,
                                    const values *want, double max_distance) {
  double worst = 0;
  for (int i = V_FIRST_RESULT; i < V_COUNT; i++) {
    double distance = compute_distance(got->v[i], want->v[i], got->n[i]);
    if (!(distance <= max_distance))
      fail_msg("%s in %s: %s is %.2e from ref", c->name, name,
               write_value_name(&c->d, i, (char[40]){0}), distance);
    worst = fmax(worst, distance);
  }
  return worst;
}

/* ---- checking the results of a case ---------------------------------------------------------- */

static double check_near_ref(const op_case *c, const computation *k, bool has_few_bits,
                             const values *got) {
  values want;
  double max_distance = has_few_bits ? k->max_distance_of_few_bits : k->max_distance;
  run_case_on_device(c, &on_ref, has_few_bits, 0, &want);
  double worst =
      are_all_finite(&want) ? find_largest_distance(c, k->name, got, &want, max_distance) : 0;
  free_values(&want);
  return worst;
}

static void check_is_rounded(const op_case *c, const computation *k, const values *got) {
  values exact;
  run_case_on_device(c, &(run_options){0}, false, 0, &exact);
  if (are_all_finite(&exact) && !are_all_zero(&exact) && are_bits_equal(got, &exact))
    fail_msg("%s: %s was asked for, and nothing is rounded", c->name, k->name);
  free_values(&exact);
}

static void check_other_seeds(const op_case *c, const computation *k, const values *got) {
  static const uint64_t seeds[] = {2, 4};
  for (size_t i = CLV_THREAD_SANITIZED; i < CLV_COUNT(seeds); i++) {
    values repeated;
    run_case_on_device(c, &k->o, false, seeds[i], &repeated);
    assert_same_bits(c, k->name, "in another order", got, &repeated);
    free_values(&repeated);
  }
}

/* Compares parameter gradients that are added to ones with those of ref. */
static void check_gradients_added_to_ones(const op_case *c, const computation *k) {
  run_options ref = {.backend = clv_backend_ref(), .dtype = CLV_F32, .has_accumulation = true},
              o = k->o;
  values want, got;
  o.has_accumulation = o.is_in_place = true;
  draw_values(c, true, &want);
  run_case(&ref, &c->d, &want, NULL);
  run_case_on_device(c, &o, true, 3, &got);
  if (are_all_finite(&want))
    find_largest_distance(c, k->name, &got, &want, k->max_distance_of_few_bits);
  free_values(&want);
  free_values(&got);
}

static double check_kind(const op_case *c, const computation *k) {
  values got, few_bits_results;
  double worst = 0;
  run_case_on_device(c, &k->o, false, 0, &got);
  if (k->max_distance > 0) worst = check_near_ref(c, k, false, &got);
  check_is_rounded(c, k, &got);
  check_other_seeds(c, k, &got);
  free_values(&got);
  if (!(k->max_distance_of_few_bits > 0)) return worst;
  run_case_on_device(c, &k->o, true, 1, &few_bits_results);
  worst = check_near_ref(c, k, true, &few_bits_results);
  check_gradients_added_to_ones(c, k);
  free_values(&few_bits_results);
  return worst;
}

/* For an op that rounds only images in bf16 mode: a case without images must give the same bits in
 * bf16 mode as in f32. */
static void check_same_as_f32(const op_case *c, const computation *k) {
  values got, exact;
  run_case_on_device(c, &k->o, false, 0, &got);
  run_case_on_device(c, &(run_options){0}, false, 0, &exact);
  assert_same_bits(c, k->name, "where it has no image", &exact, &got);
  free_values(&got);
  free_values(&exact);
}

/* ---- cases with the weight in bf16 ----------------------------------------------------------- */

static void keep_few_bits_of_weight(values *s) {
  for (size_t i = 0; i < s->n[V_PARAM]; i++) s->v[V_PARAM][i] = keep_few_bits(s->v[V_PARAM][i]);
}

/* Runs the case with an f32 weight whose values bf16 represents. */
static void run_with_rounded_weight(const op_case *c, const run_options *o, values *ret) {
  run_options options = *o;
  clv_backend *b = open_device(0);
  options.backend = b;
  options.dtype = CLV_F32;
  draw_values(c, false, ret);
  keep_few_bits_of_weight(ret);
  if (!run_case(&options, &c->d, ret, NULL)) fail_msg("%s: no kernel", c->name);
  clv_cuda_close(b);
}

/* Asserts that the results stay near ref's if the device converts the weight in parts: of one row,
 * or of three rows with a shorter last part. */
static void check_weight_parts(const op_case *c, const computation *k, const run_options *o,
                               const values *want) {
  const size_t row = (size_t)c->d.param[CLV_SLOT_WEIGHT].dim[1] * sizeof(float);
  for (size_t bytes = 1; bytes <= 3 * row; bytes += 3 * row - 1) {
    values tiled;
    tile_bytes = bytes;
    run_case_on_device(c, o, false, 0, &tiled);
    tile_bytes = 0;
    find_largest_distance(c, k->name, &tiled, want, k->max_distance);
    free_values(&tiled);
  }
}

/* Compares the results with a bf16 weight with those of ref, and bit by bit with those of the
 * device for the same numbers as an f32 weight. The bias must have its usual gradient. */
static double check_bf16_weight(const op_case *c, const computation *k) {
  run_options o = k->o;
  values got, want, rounded;
  o.has_bf16_weight = true;
  run_case_on_device(c, &o, false, 0, &got);
  run_case_on_device(c, &bf16_weight_on_ref, false, 0, &want);
  double worst = find_largest_distance(c, k->name, &got, &want, k->max_distance);
  run_with_rounded_weight(c, &k->o, &rounded);
  assert_same_bits(c, k->name, "from those numbers in f32", &got, &rounded);
  check_other_seeds(c, &(computation){k->name, o, 0, 0}, &got);
  if (c->is_small) check_weight_parts(c, k, &o, &want);
  free_values(&got);
  free_values(&want);
  free_values(&rounded);
  return worst;
}

/* A tile is a number of rows that attention computes at once. Checks that a row's results do not
 * depend on the tile's size. The simulated matrix products guarantee it; those of a library may
 * not. Gradients of keys and values are not compared, because they are sums over tiles. */
static void check_tile(const op_case *c, const computation *k, size_t bytes,
                       const values *untiled) {
  static const int per_row_results[] = {V_OUT, V_DIN};
  values tiled;
  tile_bytes = bytes;
  run_case_on_device(c, &k->o, true, 2, &tiled);
  tile_bytes = 0;
  for (size_t i = 0; is_simulated && i < CLV_COUNT(per_row_results); i++) {
    size_t n = untiled->n[per_row_results[i]];
    if (n &&
        memcmp(tiled.v[per_row_results[i]], untiled->v[per_row_results[i]], n * sizeof(double)))
      fail_msg("%s in %s: other bits in tiles of %zu bytes", c->name, k->name, bytes);
  }
  find_largest_distance(c, k->name, &tiled, untiled, 1e-6);
  check_near_ref(c, k, true, &tiled);
  free_values(&tiled);
}

/* Checks attention in tiles of one row, and in tiles of three rows with a remainder. */
static void check_tiles(const op_case *c, const computation *k) {
  clv_heads x = clv_heads_of(&c->d);
  size_t row = (size_t)(x.n * x.kv_heads * x.s) * sizeof(float);
  values untiled_values;
  run_case_on_device(c, &k->o, true, 2, &untiled_values);
  check_tile(c, k, 1, &untiled_values);
  check_tile(c, k, 3 * row, &untiled_values);
  free_values(&untiled_values);
}

static void check_all_tiles(const computation *k) {
  int n = 0;
  for (int i = 0; i < n_cases; i++) {
    const op_case *c = &cases[i];
    if (c->d.op != CLV_OP_ATTENTION || !c->is_small) continue;
    n += clv_heads_of(&c->d).t > 3;
    check_tiles(c, k);
  }
  assert_true(n > 0);
}

/* True if the case would take minutes under thread sanitizer. Compared with a small case, a big one
 * only adds tiles. */
static bool takes_too_long(const op_case *c) {
  double work = (double)clv_layout_numel(&c->d.out, 1);
  for (int i = 1; i < c->d.param[0].rank; i++) work *= (double)c->d.param[0].dim[i];
  /* an LSTM has 4 gates, each with 2 matrices, in forward and in backward */
  if (c->d.op == CLV_OP_LSTM) work *= 16;
  return CLV_THREAD_SANITIZED && work > 12000;
}

static void check_all_cases(clv_op op, const computation *k, bool has_images) {
  double worst = 0;
  int n = 0, n_left_out = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].is_small) continue;
    if (has_images && cases[i].d.in[0].rank != 4) {
      check_same_as_f32(&cases[i], k);
      continue;
    }
    if (takes_too_long(&cases[i])) {
      n_left_out++;
      continue;
    }
    worst = fmax(worst, check_kind(&cases[i], k));
    n++;
  }
  assert_true(n > 0);
  print_message("%-16s in %s: %d cases, largest distance %.1e\n", clv_op_name(op), k->name, n,
                worst);
  if (n_left_out)
    print_message(
        "%-16s in %s: %d cases left to builds without thread sanitizer: too many factors\n",
        clv_op_name(op), k->name, n_left_out);
}

/* Runs the op's cases with the weight in bf16; big cases only in `make long`. */
static void check_bf16_weights(clv_op op, const computation *k) {
  double worst = 0;
  int n = 0;
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || takes_too_long(&cases[i]) || !(cases[i].is_small || is_long()))
      continue;
    worst = fmax(worst, check_bf16_weight(&cases[i], k));
    n++;
  }
  assert_true(n > 0);
  print_message("%-16s in %s, weight in bf16: %d cases, largest distance %.1e\n", clv_op_name(op),
                k->name, n, worst);
}

static void test_op(clv_op op) {
  static const computation tf32 = {"tf32", {.is_tf32 = true}, 2e-3, 0};
  unsigned effects = bf16_effects[op];
  /* the error grows in an op of many layers and steps, whose results are rounded in each of them */
  double steps = effects & CONTINUES_ROUNDED ? 4 : 1;
  computation bf16 = {"bf16",
                      {.is_bf16 = true},
                      effects & ROUNDS_FACTORS ? 1e-2 * steps : 0,
                      effects & (WRITES_BF16_IMAGES | CONTINUES_ROUNDED) ? 4e-3 * steps : 1e-5};
  static const computation f32 = {"f32", {0}, 1e-5, 1e-5};
  if (op == CLV_OP_ATTENTION) check_all_tiles(&f32);
  if (op == CLV_OP_ATTENTION) check_all_tiles(&bf16);
  if (clv_op_def_of(op)->mixing != CLV_MIXES_NOTHING) check_all_cases(op, &tf32, false);
  if (effects) check_all_cases(op, &bf16, effects & WRITES_BF16_IMAGES);
  if (op != CLV_OP_LINEAR) return;
  check_bf16_weights(op, &f32);
  check_bf16_weights(op, &tf32);
  check_bf16_weights(op, &bf16);
}

int main(int argc, char **argv) {
  (void)argc;
  return run_each_op("types", test_op, argv);
}
