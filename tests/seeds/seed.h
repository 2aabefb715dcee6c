/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the programs of the seeds share: start and end, drawn numbers, and comparisons
 * with PyTorch's results.
 *
 * A program is run as NAME SESSION.yaml [FOLDER [PLACE]]. It reads the results of PyTorch's run
 * from seeds.txt and seeds.bin in FOLDER (default tests/golden, where make_seeds.py writes them),
 * and takes as many steps as that run. PLACE names a point in the middle of PyTorch's run at which
 * the program starts. Each of its steps then begins with PyTorch's weights. Its tensors are the set
 * NAME.PLACE, in which `first` is the number of the first iteration.
 *
 * The environment variable PLACES, such as "w1/cuda:0 w1/cuda:1", replaces the node and device of
 * each module in programs that call seed_get_owner.
 *
 * The program's last line is `PASS NAME: figures` or `FAIL NAME: what is wrong`; the exit code is 0
 * or 1.
 */
#ifndef CLEAVE_SEED_H
#define CLEAVE_SEED_H

#include <cleave.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of random streams: of the data, of the labels, and of the first of at most SEED_MAX_DRAWN
 * drawn parameters. */
enum { SEED_DATA = 1, SEED_LABELS = 2, SEED_WEIGHTS = 16, SEED_MAX_DRAWN = 32 };

static struct {
  const char *name;
  /* point of the run at which this program starts; NULL: the run's beginning */
  const char *start_place;
  char tensor_prefix[96]; /* prefix of the names of PyTorch's tensors */
  size_t first_iteration; /* index of the first iteration */
  const cleave_options
      *runtime_options; /* options of the runtime, set before seed_open_session; NULL: default */
  cleave_runtime *rt;
  cleave_error e;
  char *index_text, *value_bytes; /* content of seeds.txt and of seeds.bin */
  size_t n_values;
  size_t n_compared;
  /* largest relative difference so far; where_largest: the compared tensor */
  double largest_difference;
  char where_largest[96];
  struct {
    cleave_module *module;
    const char *name;
    /* parameters that the program has drawn, in PyTorch's order */
  } drawn_parameters[SEED_MAX_DRAWN];
  int n_drawn;
} seed;

/* ---- ending the program with an error -------------------------------------------------------- */

_Noreturn static inline void seed_fail(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  printf("FAIL %s: ", seed.name);
  vprintf(fmt, args);
  printf("\n");
  va_end(args);
  exit(1);
}

static inline void seed_must_succeed(cleave_status status, int line) {
  if (status == CLEAVE_OK) return;
  seed_fail("line %d: %s at %s%s%s: %s", line, cleave_status_name(status), seed.e.node,
            seed.e.place[0] ? ", " : "", seed.e.place, seed.e.text);
}
/* Makes a call of the API with &seed.e, and ends the program if the call fails. */
#define MUST(call) seed_must_succeed((call), __LINE__)

/* ---- places of modules: node and device ------------------------------------------------------ */

typedef struct seed_place {
  const char *node, *device;
} seed_place;

enum { SEED_PLACES = 2 };

/* Returns place i of the environment variable PLACES ("NODE/DEVICE NODE/DEVICE"), or the given node
 * and device if PLACES does not have it. */
static inline seed_place seed_get_owner(int i, const char *node, const char *device) {
  static char texts[SEED_PLACES][2][64];
  const char *at = getenv("PLACES");
  for (int k = 0; at && k < i; k++) at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
  if (!at || sscanf(at, "%63[^/]/%63[^ ]", texts[i][0], texts[i][1]) != 2)
    return (seed_place){node, device};
  return (seed_place){texts[i][0], texts[i][1]};
}

/* ---- PyTorch's results, and comparisons with them -------------------------------------------- */

static inline char *seed_read_file(const char *folder, const char *name, size_t *ret_n) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "rb");
  if (!f) seed_fail("%s cannot be read (programs run from the root of the repository)", path);
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  char *data = n < 0 ? NULL : malloc((size_t)n + 2);
  if (!data || fread(data + 1, 1, (size_t)n, f) != (size_t)n) seed_fail("%s: read error", path);
  fclose(f);
  /* a newline precedes the first line, too, so that each line can be found as "\nNAME" */
  data[0] = '\n';
  data[n + 1] = 0;
  *ret_n = (size_t)n;
  return data;
}

/* Finds PyTorch's f32 tensor named SET.WHAT. Returns false if there is none. The tensor points into
 * seed.value_bytes. */
static inline bool seed_find_golden(const char *set, const char *what, cleave_tensor *ret) {
  char key[160];
  size_t offset;
  int used;
  *ret = (cleave_tensor){.dtype = CLEAVE_F32};
  snprintf(key, sizeof key, "\n%s.%s f32 ", set, what);
  const char *line = strstr(seed.index_text, key);
  if (!line) return false;
  line += strlen(key);
  if (sscanf(line, "%zu %d%n", &offset, &ret->rank, &used) != 2 || ret->rank < 0 ||
      ret->rank > CLEAVE_MAX_RANK)
    seed_fail("the line of %s.%s in seeds.txt cannot be read", set, what);
  for (int i = 0; i < ret->rank; i++) {
    char *end;
    ret->shape[i] = strtoll(line + used, &end, 10);
    used = (int)(end - line);
  }
  if (offset % 4 || offset > seed.n_values ||
      cleave_tensor_count(ret) > (seed.n_values - offset) / 4)
    seed_fail("%s.%s reaches beyond the end of seeds.bin", set, what);
  ret->data = seed.value_bytes + offset;
  return true;
}

static inline cleave_tensor seed_get_golden(const char *what) {
  cleave_tensor found;
  if (!seed_find_golden(seed.tensor_prefix, what, &found))
    seed_fail("seeds.txt has no %s.%s", seed.tensor_prefix, what);
  return found;
}

static inline float seed_get_value(const cleave_tensor *tensor, size_t i) {
  return ((const float *)tensor->data)[i];
}

/* Records a relative difference. Returns true if it is the largest so far. NaN is larger than any
 * number. */
static inline bool seed_record_difference(double difference, double size) {
  double relative = difference == 0 ? 0 : size > 0 ? difference / size : INFINITY;
  seed.n_compared++;
  if (relative <= seed.largest_difference) return false;
  seed.largest_difference = isnan(relative) ? INFINITY : relative;
  return true;
}

/* Compares numbers. min_divisor: smallest divisor of a relative difference; for smaller numbers the
 * difference is absolute. */
static inline void seed_compare_number_from(double min_divisor, const char *what, size_t index,
                                            double ours, double theirs) {
  if (seed_record_difference(fabs(ours - theirs), fmax(min_divisor, fabs(theirs))))
    snprintf(seed.where_largest, sizeof seed.where_largest, " (%s %zu: %.7g, PyTorch %.7g)", what,
             index, ours, theirs);
}

static inline void seed_compare_number(const char *what, size_t index, double ours, double theirs) {
  seed_compare_number_from(0, what, index, ours, theirs);
}

static inline double seed_compute_norm(const cleave_tensor *tensor) {
  double sum = 0;
  for (size_t i = 0; i < cleave_tensor_count(tensor); i++)
    sum += (double)seed_get_value(tensor, i) * seed_get_value(tensor, i);
  return sqrt(sum);
}

/* Compares tensors: norm of the difference divided by PyTorch's norm, or by 1 if that norm is
 * smaller. */
static inline void seed_compare_tensor(const char *what, size_t index, const cleave_tensor *ours,
                                       const cleave_tensor *theirs) {
  double sum = 0;
  if (cleave_tensor_count(ours) != cleave_tensor_count(theirs)) seed_fail("%s: other shape", what);
  for (size_t i = 0; i < cleave_tensor_count(ours); i++)
    sum += pow((double)seed_get_value(ours, i) - seed_get_value(theirs, i), 2);
  if (seed_record_difference(sqrt(sum), fmax(1, seed_compute_norm(theirs))))
    snprintf(seed.where_largest, sizeof seed.where_largest, " (%s before %zu)", what, index);
}

/* ---- random numbers: tests/golden/seed_numbers.py has the same functions --------------------- */

/* Returns a hash of x, by the finaliser of MurmurHash3 (Appleby). */
static inline uint32_t seed_hash_number(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

static inline uint32_t seed_draw_bits(uint32_t stream, uint32_t i) {
  return seed_hash_number(seed_hash_number(i) + stream * 0x9E3779B9u);
}

/* Returns the number of the random stream of a name: the name's CRC-32 (zlib's). */
static inline uint32_t seed_get_stream(const char *name) {
  uint32_t crc = ~0u;
  for (; *name; name++) {
    crc ^= (uint8_t)*name;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

/* Draws uniform numbers: odd multiples of 2^-24 between -1 and 1, times bound. */
static inline void seed_draw_uniform(float *to, size_t n, uint32_t stream, float bound) {
  for (size_t i = 0; i < n; i++) {
    int32_t odd = (int32_t)(seed_draw_bits(stream, (uint32_t)i) >> 8) * 2 - 0xFFFFFF;
    to[i] = (float)odd * 0x1p-24f * bound;
  }
}

/* Draws normal numbers with mean 0 and variance 1 from position `first` of a stream. Each is a sum
 * of three uniform numbers. */
static inline void seed_draw_normal(float *to, size_t first, size_t n, uint32_t stream) {
  for (size_t i = 0; i < n; i++) {
    int32_t sum = 0;
    for (size_t k = 3 * (first + i); k < 3 * (first + i) + 3; k++)
      sum += (int32_t)(seed_draw_bits(stream, (uint32_t)k) >> 11);
    to[i] = (float)(2 * sum - 3 * 0x1FFFFF) * 0x1p-21f;
  }
}

static inline void seed_draw_classes(int64_t *to, size_t n, uint32_t stream, uint32_t n_classes) {
  for (size_t i = 0; i < n; i++) to[i] = seed_draw_bits(stream, (uint32_t)i) % n_classes;
}

/* Draws the program's next parameter: uniform within 1 / sqrt(fan), or normal if fan is 0. */
static inline void seed_draw_parameter(cleave_module *module, const char *name, int fan) {
  cleave_tensor t = {0};
  uint32_t stream = SEED_WEIGHTS + (uint32_t)seed.n_drawn;
  if (seed.n_drawn == SEED_MAX_DRAWN) seed_fail("more than %d parameters", SEED_MAX_DRAWN);
  MUST(cleave_weight_read(seed.rt, module, name, 0, &t, &seed.e));
  if (fan)
    seed_draw_uniform(t.data, cleave_tensor_count(&t), stream, 1 / sqrtf((float)fan));
  else
    seed_draw_normal(t.data, 0, cleave_tensor_count(&t), stream);
  MUST(cleave_weight_write(seed.rt, module, name, &t, 0, &seed.e));
  cleave_tensor_free(&t);
  seed.drawn_parameters[seed.n_drawn].module = module;
  seed.drawn_parameters[seed.n_drawn++].name = name;
}

/* Compares the norm of each drawn parameter's gradient with PyTorch's `gradient_norms`. */
static inline void seed_compare_gradients(cleave_context c) {
  cleave_tensor norms = seed_get_golden("gradient_norms"), g = {0};
  for (int i = 0; i < seed.n_drawn; i++) {
    MUST(cleave_gradient(seed.rt, c, seed.drawn_parameters[i].module, seed.drawn_parameters[i].name,
                         0, &g, &seed.e));
    seed_compare_number(seed.drawn_parameters[i].name, 0, seed_compute_norm(&g),
                        seed_get_value(&norms, (size_t)i));
  }
  cleave_tensor_free(&g);
}

/* Runs one training step for each of PyTorch's losses, and compares the step's loss with PyTorch's.
 * train: writes the step's loss to *value. Returns the last loss. */
static inline double seed_train_steps(void (*train)(size_t step, cleave_tensor *value),
                                      const cleave_tensor *losses) {
  cleave_tensor value = {0};
  double last = NAN;
  for (size_t step = 0; step < cleave_tensor_count(losses); step++) {
    train(step, &value);
    last = seed_get_value(&value, 0);
    seed_compare_number("loss", step, last, seed_get_value(losses, step));
  }
  cleave_tensor_free(&value);
  return last;
}

/* ---- start and end of a program -------------------------------------------------------------- */

static inline void seed_open_start_place(const char *place) {
  seed.start_place = place;
  snprintf(seed.tensor_prefix, sizeof seed.tensor_prefix, "%s.%s", seed.name, place);
  cleave_tensor first = seed_get_golden("first");
  seed.first_iteration = (size_t)seed_get_value(&first, 0);
}

/* Opens the session file and PyTorch's tensors. Sets seed.rt. */
static inline void seed_open_session(const char *name, int argc, char **argv) {
  size_t n;
  seed.name = name;
  snprintf(seed.tensor_prefix, sizeof seed.tensor_prefix, "%s", name);
  if (argc < 2 || argc > 4) seed_fail("usage: %s SESSION.yaml [FOLDER [PLACE]]", name);
  const char *folder = argc >= 3 ? argv[2] : "tests/golden";
  seed.index_text = seed_read_file(folder, "seeds.txt", &n);
  seed.value_bytes = seed_read_file(folder, "seeds.bin", &seed.n_values);
  /* drops the added newline, so that tensors are aligned */
  memmove(seed.value_bytes, seed.value_bytes + 1, seed.n_values);
  if (argc == 4) seed_open_start_place(argv[3]);
  MUST(cleave_open(argv[1], seed.runtime_options, &seed.rt, &seed.e));
}

static inline void seed_close_runtime(void) {
  cleave_leaks leaks;
  MUST(cleave_close(seed.rt, 0, &leaks, &seed.e));
  if (leaks.contexts || leaks.references || leaks.futures) seed_fail("left open: %s", leaks.text);
  seed.rt = NULL;
}

/* Closes the runtime, prints the last line and returns the exit code. limit: largest accepted
 * relative difference. */
static inline int seed_print_verdict(double limit, const char *fmt, ...) {
  va_list args;
  seed_close_runtime();
  bool pass = seed.n_compared > 0 && seed.largest_difference <= limit;
  printf("%s %s: ", pass ? "PASS" : "FAIL", seed.name);
  va_start(args, fmt);
  vprintf(fmt, args);
  va_end(args);
  printf("; within %.1e of PyTorch, limit %.0e%s\n", seed.largest_difference, limit,
         seed.where_largest);
  free(seed.index_text);
  free(seed.value_bytes);
  return pass ? 0 : 1;
}

#endif
