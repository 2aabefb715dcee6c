/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the points of a sweep from its options: all combinations of --grid, or random points of
 * --random. Equal options make equal points, in the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "master/sweep/sweep_int.h"

/* point_rng_stream: id of the RNG stream for random points. MAX_DRAWS_PER_POINT: most draws of one
 * point, which is drawn again while it equals an earlier point. */
static const uint32_t point_rng_stream = 0xfffffff1u;
enum { MAX_DRAWS_PER_POINT = 64 };

/* Keys that --grid and --random refuse, with the reason that the error gives. */
static const struct {
  const char *name, *reason;
  bool is_refused_only_with_folds;
} refused_keys[] = {
    {"name", "each run has a name of its own; --set name=... names the sweep", false},
    {"run.dir", "the runs of a sweep are in one folder", false},
    {"checkpoint.dir", "each run has a folder of its own in run.dir", false},
    {"train.seed",
     "a seed is a secret, and the table would show it; without train.seed each run draws one",
     false},
    {"data.validation.folds", "--folds sets it", true},
    {"data.validation.fold", "--folds sets it", true},
    {"data.validation.fraction", "--folds takes its place", true},
};

void sweep_points_done(sweep_points *p) {
  if (!p) return;
  for (size_t i = 0; i < p->n_points * p->n_keys && p->values; i++) free(p->values[i]);
  for (size_t i = 0; i < p->n_keys; i++) {
    for (size_t k = 0; k < p->keys[i].n_values; k++) free(p->keys[i].values[k]);
    free(p->keys[i].values);
    free(p->keys[i].name);
  }
  free(p->keys);
  free(p->values);
  *p = (sweep_points){.n_keys = 0};
}

/* ---- values of an option --------------------------------------------------------------------- */

/* Returns the length of the value that begins at `text`: up to a comma outside of brackets and
 * quotes, or the end. */
static size_t find_value_len(const char *text) {
  size_t depth = 0, i = 0;
  for (char quote = '\0'; text[i]; i++) {
    if (quote) {
      if (text[i] == quote) quote = '\0';
    } else if (text[i] == '"' || text[i] == '\'') {
      quote = text[i];
    } else if (text[i] == '[' || text[i] == '{') {
      depth++;
    } else if ((text[i] == ']' || text[i] == '}') && depth) {
      depth--;
    } else if (text[i] == ',' && !depth) {
      break;
    }
  }
  return i;
}

static clv_code add_value(const char *option, sweep_key *k, const char *text, size_t len,
                          clv_err *err) {
  for (; len && *text == ' '; len--) text++;
  while (len && text[len - 1] == ' ') len--;
  if (!len) return clv_fail(err, CLV_INVALID, "%s: a value is empty", option);
  if (k->n_values == SWEEP_MAX_VALUES)
    return clv_fail(err, CLV_INVALID, "%s: more than %d values of a key", option, SWEEP_MAX_VALUES);
  char **grown_values = reallocarray(k->values, k->n_values + 1, sizeof *grown_values);
  if (!grown_values) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  k->values = grown_values;
  CLV_TRY(clv_alloc(len + 1, 1, &grown_values[k->n_values], err));
  memcpy(grown_values[k->n_values++], text, len);
  for (size_t i = 0; i + 1 < k->n_values; i++)
    if (strcmp(grown_values[i], grown_values[k->n_values - 1]) == 0)
      return clv_fail(err, CLV_INVALID, "%s: the value %.60s comes twice", option, grown_values[i]);
  return CLV_OK;
}

static clv_code add_values(const char *option, sweep_key *k, const char *text, clv_err *err) {
  for (size_t n;; text += n + 1) {
    n = find_value_len(text);
    CLV_TRY(add_value(option, k, text, n, err));
    if (!text[n]) return CLV_OK;
  }
}

/* ---- swept keys ------------------------------------------------------------------------------ */

/* Returns true if `setting`, a text such as "a.b=c", sets the key `key`. */
static bool sets_key(const char *setting, const char *key) {
  size_t n = strlen(key);
  return strncmp(setting, key, n) == 0 && setting[n] == '=';
}

static clv_code check_key(const clv_sweep_options *o, const sweep_points *p, const char *option,
                          const char *name, clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(refused_keys); i++)
    if (strcmp(refused_keys[i].name, name) == 0 &&
        (o->folds || !refused_keys[i].is_refused_only_with_folds))
      return clv_fail(err, CLV_INVALID, "%s: a sweep cannot change %s: %s", option, name,
                      refused_keys[i].reason);
  for (size_t i = 0; i < p->n_keys; i++)
    if (strcmp(p->keys[i].name, name) == 0)
      return clv_fail(err, CLV_INVALID, "%s: %s is swept twice: list its values once", option,
                      name);
  for (size_t i = 0; i < o->sets->n; i++)
    if (sets_key(o->sets->items[i], name))
      return clv_fail(err, CLV_INVALID, "%s: --set has %s, too: keep one of them", option, name);
  return CLV_OK;
}

/* Adds the swept key that an option names, with its values. is_random: the value may be a range. */
static clv_code add_key(const clv_sweep_options *o, const char *option_name, const char *text,
                        bool is_random, sweep_points *p, clv_err *err) {
  char option[160];
  CLV_AUTO(clv_bytes_done) clv_bytes shown = {0};
  const char *equals_sign = strchr(text, '=');
  clv_bytes_printf(&shown, "--%s %s", option_name, text);
  if (shown.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_text_truncate(shown.data, option, sizeof option);
  if (!equals_sign || equals_sign == text)
    return clv_fail(err, CLV_INVALID, "%s: expected KEY=VALUES, as in train.batch=16,32", option);
  if (p->n_keys == SWEEP_MAX_KEYS)
    return clv_fail(err, CLV_INVALID, "%s: more than %d keys in a sweep", option, SWEEP_MAX_KEYS);
  CLV_AUTO(clv_freep) char *name = NULL;
  CLV_TRY(clv_strdup(text, &name, err));
  name[equals_sign - text] = '\0';
  CLV_TRY(check_key(o, p, option, name, err));
  sweep_key *k = &p->keys[p->n_keys++];
  k->name = clv_steal(&name);
  clv_code code = CLV_OK;
  if (is_random) code = sweep_range_parse(equals_sign + 1, &k->range, &k->has_range, err);
  if (code != CLV_OK) return clv_err_prefix(err, "%s", option);
  return k->has_range ? CLV_OK : add_values(option, k, equals_sign + 1, err);
}

/* ---- points of a sweep ----------------------------------------------------------------------- */

static clv_code fail_too_many_points(size_t n, clv_err *err) {
  return clv_fail(err, CLV_INVALID,
                  "the sweep has %zu runs or more, at most %d: sweep fewer values", n,
                  SWEEP_MAX_RUNS);
}

/* Allocates the values of n points. The caller fills in the points and counts them in
 * p->n_points. */
static clv_code alloc_points(const clv_sweep_options *o, size_t n, sweep_points *p, clv_err *err) {
  if (n * CLV_MAX(o->folds, UINT64_C(1)) > SWEEP_MAX_RUNS)
    return fail_too_many_points((size_t)(n * CLV_MAX(o->folds, UINT64_C(1))), err);
  return clv_alloc(n * p->n_keys, sizeof *p->values, &p->values, err);
}

/* Makes a point of each combination of values. From one point to the next the value of the last key
 * changes first, as the last digit of a counter. */
static clv_code make_grid(const clv_sweep_options *o, sweep_points *p, clv_err *err) {
  size_t n = 1;
  for (size_t i = 0; i < p->n_keys; i++) {
    n *= p->keys[i].n_values;
    if (n > SWEEP_MAX_RUNS) return fail_too_many_points(n, err);
  }
  CLV_TRY(alloc_points(o, n, p, err));
  for (p->n_points = 0; p->n_points < n;) {
    size_t value_index = p->n_points++;
    for (size_t k = p->n_keys; k-- > 0; value_index /= p->keys[k].n_values)
      CLV_TRY(clv_strdup(p->keys[k].values[value_index % p->keys[k].n_values],
                         &p->values[(p->n_points - 1) * p->n_keys + k], err));
  }
  return CLV_OK;
}

/* Draws the value of a key. draw_index: how often this point has been drawn before. */
static clv_code draw_value(const clv_sweep_options *o, const sweep_points *p, size_t point_index,
                           size_t key_index, uint64_t draw_index, char **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const sweep_key *k = &p->keys[key_index];
  uint32_t random_words[4];
  clv_rng_block(&(clv_rng_key){.seed = o->seed, .step = draw_index, .layer = point_rng_stream},
                (uint32_t)(point_index * SWEEP_MAX_KEYS + key_index), random_words);
  double u = (double)(((uint64_t)random_words[0] << 32 | random_words[1]) >> 11) * 0x1p-53;
  if (k->has_range)
    sweep_range_append_value(&k->range, u, &text);
  else
    clv_bytes_puts(&text, k->values[(size_t)(u * (double)k->n_values)]);
  return text.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory")
                     : clv_strdup(text.data, ret, err);
}

/* Returns true if the last point, `point_index`, has the values of an earlier point. */
static bool equals_earlier_point(const sweep_points *p, size_t point_index) {
  for (size_t i = 0; i < point_index; i++) {
    size_t n_equal_values = 0;
    while (n_equal_values < p->n_keys &&
           strcmp(sweep_point_value(p, i, n_equal_values),
                  sweep_point_value(p, point_index, n_equal_values)) == 0)
      n_equal_values++;
    if (n_equal_values == p->n_keys) return true;
  }
  return false;
}

static clv_code draw_point(const clv_sweep_options *o, sweep_points *p, size_t point_index,
                           clv_err *err) {
  for (uint64_t draw_index = 0; draw_index < MAX_DRAWS_PER_POINT; draw_index++) {
    for (size_t k = 0; k < p->n_keys; k++) {
      char **value = &p->values[point_index * p->n_keys + k];
      free(clv_steal(value));
      CLV_TRY(draw_value(o, p, point_index, k, draw_index, value, err));
    }
    if (!equals_earlier_point(p, point_index)) return CLV_OK;
  }
  return clv_fail(err, CLV_INVALID,
                  "--points %llu: the values of --random make only %zu different points: lower "
                  "--points, or use --grid",
                  (unsigned long long)o->n_points, point_index);
}

static clv_code draw_points(const clv_sweep_options *o, sweep_points *p, clv_err *err) {
  if (o->n_points > SWEEP_MAX_RUNS) return fail_too_many_points((size_t)o->n_points, err);
  CLV_TRY(alloc_points(o, (size_t)o->n_points, p, err));
  while (p->n_points < o->n_points) CLV_TRY(draw_point(o, p, p->n_points++, err));
  return CLV_OK;
}

static clv_code make_points(const clv_sweep_options *o, sweep_points *p, clv_err *err) {
  if (o->grids->n && o->randoms->n)
    return clv_fail(err, CLV_INVALID, "a sweep takes --grid or --random: leave one out");
  if (!o->randoms->n != !o->n_points)
    return clv_fail(err, CLV_INVALID, "--random and --points go together, as in --points 20");
  if (!clv_sweep_is_requested(o))
    return clv_fail(err, CLV_INVALID,
                    "nothing to sweep: give --grid, --random or --folds, as in --grid "
                    "train.optimizer.lr=0.01,0.1");
  CLV_TRY(clv_alloc(SWEEP_MAX_KEYS, sizeof *p->keys, &p->keys, err));
  for (size_t i = 0; i < o->grids->n; i++)
    CLV_TRY(add_key(o, "grid", o->grids->items[i], false, p, err));
  for (size_t i = 0; i < o->randoms->n; i++)
    CLV_TRY(add_key(o, "random", o->randoms->items[i], true, p, err));
  return o->randoms->n ? draw_points(o, p, err) : make_grid(o, p, err);
}

bool clv_sweep_is_requested(const clv_sweep_options *o) {
  return o->grids->n || o->randoms->n || o->folds;
}

clv_code sweep_points_make(const clv_sweep_options *o, sweep_points *ret, clv_err *err) {
  CLV_AUTO(sweep_points_done) sweep_points p = {.n_keys = 0};
  CLV_TRY(make_points(o, &p, err));
  *ret = p;
  p = (sweep_points){.n_keys = 0};
  return CLV_OK;
}
