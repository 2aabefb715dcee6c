/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tokens (clv_look_read_tokens), as one attack of the look, which measures before a run what
 * sent tensors show. Someone who knows the tokens of some records can guess the token of a vector:
 * the token of the nearest vector whose token is known. The best view of the values, and the best
 * way to compare vectors, are chosen within the first half.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  /* most places that are compared in each half: the half to learn from, and the half to test
   * with */
  MAX_COMPARED_PLACES = 768,
  MAX_COMPARED_VALUES = 1024, /* most values of a vector that are compared */
};

/* How a vector is compared with known vectors: with those of all places, with those of all places
 * after the mean vector of each place is subtracted, or with those of the same place. */
typedef enum comparison_method {
  COMPARE_ALL_PLACES,
  COMPARE_ALL_LESS_MEAN,
  COMPARE_SAME_PLACE,
  N_COMPARISON_METHODS
} comparison_method;

/* Index of one vector: number of the record, and number of the place within the record. */
typedef struct token_place {
  uint32_t record, place;
} token_place;

typedef struct dictionary {
  const clv_look_view *view;
  const clv_look_tokens *tokens;
  /* A vector is what the tensor has at one place, such as a token, of a record. vector_width:
   * number of its values that are compared; channel_step: distance between two of these values, in
   * channels */
  size_t n_places, vector_width, channel_step;
  size_t n_records;
  /* vectors: [n_records][n_places][vector_width]; mean_vectors: [n_places][vector_width] mean
   * vector of each place */
  float *vectors, *mean_vectors;
  /* [n_records * n_places] known_places: places from which the attack learns; queried_places:
   * places whose tokens it must find */
  token_place *known_places, *queried_places;
  size_t n_known_places, n_queried_places;
  size_t known_from, known_to; /* range of the records from which the attack learns */
  int64_t *vocabulary;         /* tokens of the known places, ascending */
  size_t n_vocabulary;
  int64_t *guesses; /* [n_tokens] commonest token of each place among the known records */
  /* [n_tokens + 1] for each place of a record, and in the last entry for all places together:
   * number of right answers, number of tokens for which `guesses` is right, number of tokens to
   * find */
  uint32_t *n_hits, *n_right_guesses, *n_queried_tokens;
  int64_t *true_tokens; /* [n_records * n_tokens] true tokens of the queried places */
} dictionary;

static void dictionary_done(dictionary *d) {
  free(d->vectors);
  free(d->mean_vectors);
  free(d->known_places);
  free(d->queried_places);
  free(d->vocabulary);
  free(d->guesses);
  free(d->n_hits);
  free(d->n_right_guesses);
  free(d->n_queried_tokens);
  free(d->true_tokens);
}

static clv_code dictionary_new(const clv_look_view *v, const clv_look_tokens *tokens, size_t n,
                               dictionary *d, clv_err *err) {
  size_t n_places = v->n_rows * v->n_columns, bytes;
  *d = (dictionary){.view = v, .tokens = tokens, .n_places = n_places, .n_records = n};
  d->channel_step = (v->n_channels + MAX_COMPARED_VALUES - 1) / MAX_COMPARED_VALUES;
  d->vector_width = v->n_channels / CLV_MAX(d->channel_step, (size_t)1);
  if (!clv_mul_size(n * n_places, d->vector_width, &bytes))
    return clv_fail(err, CLV_EXHAUSTED, "%zu places of %zu values", n * n_places, d->vector_width);
  CLV_TRY(clv_alloc(bytes, sizeof *d->vectors, &d->vectors, err));
  CLV_TRY(clv_alloc(n_places * d->vector_width, sizeof *d->mean_vectors, &d->mean_vectors, err));
  CLV_TRY(clv_alloc(n * n_places, sizeof *d->known_places, &d->known_places, err));
  CLV_TRY(clv_alloc(n * n_places, sizeof *d->queried_places, &d->queried_places, err));
  CLV_TRY(clv_alloc(n * tokens->n_tokens, sizeof *d->vocabulary, &d->vocabulary, err));
  CLV_TRY(clv_alloc(n * tokens->n_tokens, sizeof *d->true_tokens, &d->true_tokens, err));
  CLV_TRY(clv_alloc(tokens->n_tokens, sizeof *d->guesses, &d->guesses, err));
  CLV_TRY(clv_alloc(tokens->n_tokens + 1, sizeof *d->n_hits, &d->n_hits, err));
  CLV_TRY(clv_alloc(tokens->n_tokens + 1, sizeof *d->n_right_guesses, &d->n_right_guesses, err));
  return clv_alloc(tokens->n_tokens + 1, sizeof *d->n_queried_tokens, &d->n_queried_tokens, err);
}

/* ---- vectors that a tensor has at the places of a record ------------------------------------- */

static float *get_vector(const dictionary *d, token_place at) {
  return d->vectors + (at.record * d->n_places + at.place) * d->vector_width;
}

static void copy_vectors(dictionary *d) {
  for (uint32_t r = 0; r < d->n_records; r++)
    for (uint32_t p = 0; p < d->n_places; p++) {
      float *to = get_vector(d, (token_place){r, p});
      for (size_t k = 0; k < d->vector_width; k++)
        to[k] = look_value(d->view, r, p, k * d->channel_step);
    }
}

/* Subtracts from each vector the mean of its place over the first `n` records. */
static void subtract_means(dictionary *d, size_t n) {
  for (uint32_t p = 0; p < d->n_places; p++) {
    float *mean = d->mean_vectors + p * d->vector_width;
    memset(mean, 0, d->vector_width * sizeof *mean);
    for (uint32_t r = 0; r < n; r++)
      for (size_t k = 0; k < d->vector_width; k++)
        mean[k] += get_vector(d, (token_place){r, p})[k] / (float)n;
    for (uint32_t r = 0; r < d->n_records; r++)
      for (size_t k = 0; k < d->vector_width; k++) get_vector(d, (token_place){r, p})[k] -= mean[k];
  }
}

/* ---- tokens that a place covers -------------------------------------------------------------- */

/* Returns the range from..to of the tokens that a place covers; a place of an upsampled sequence
 * may cover none. */
static void get_covered_tokens(const dictionary *d, uint32_t place, size_t *from, size_t *to) {
  size_t n = d->tokens->n_tokens;
  *from = (place * n + d->n_places - 1) / d->n_places;
  *to = ((place + 1) * n + d->n_places - 1) / d->n_places;
}

static int64_t get_token(const dictionary *d, uint32_t record, size_t at) {
  return d->tokens->token_ids[record * d->tokens->n_tokens + at];
}

static bool has_token(const dictionary *d, token_place at) {
  size_t from, to;
  bool has_any = false;
  get_covered_tokens(d, at.place, &from, &to);
  for (size_t s = from; s < to; s++) has_any |= get_token(d, at.record, s) >= 0;
  return has_any;
}

/* Lists the places of records from..to that have a token; if there are more than `max_places`,
 * evenly spread ones. */
static size_t list_places(const dictionary *d, size_t from, size_t to, size_t max_places,
                          token_place *ret) {
  size_t n_all_places = 0, n = 0, n_kept = 0;
  for (int round = 0; round < 2; round++, n_all_places = n, n = 0)
    for (uint32_t r = (uint32_t)from; r < to; r++)
      for (uint32_t p = 0; p < d->n_places; p++) {
        if (!has_token(d, (token_place){r, p})) continue;
        bool is_kept =
            round && (n_all_places <= max_places || n * max_places / n_all_places >= n_kept);
        if (is_kept && n_kept < max_places) ret[n_kept++] = (token_place){r, p};
        n++;
      }
  return n_kept;
}

static int compare_tokens(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static void list_vocabulary(dictionary *d) {
  size_t n = 0, from, to;
  for (size_t i = 0; i < d->n_known_places; i++) {
    get_covered_tokens(d, d->known_places[i].place, &from, &to);
    for (size_t s = from; s < to; s++)
      if (get_token(d, d->known_places[i].record, s) >= 0)
        d->vocabulary[n++] = get_token(d, d->known_places[i].record, s);
  }
  qsort(d->vocabulary, n, sizeof *d->vocabulary, compare_tokens);
  d->n_vocabulary = n;
}

static bool is_token_known(const dictionary *d, int64_t token) {
  return bsearch(&token, d->vocabulary, d->n_vocabulary, sizeof token, compare_tokens) != NULL;
}

/* ---- looking up the nearest vector ----------------------------------------------------------- */

typedef struct nearest_place {
  float squared_distance; /* squared distance of the two vectors */
  token_place at;
} nearest_place;

static void keep_if_nearer(const dictionary *d, token_place at, token_place known_place,
                           nearest_place *best) {
  float distance =
      look_squared_distance(get_vector(d, at), get_vector(d, known_place), d->vector_width);
  if (distance < best->squared_distance) *best = (nearest_place){distance, known_place};
}

static token_place find_nearest_place(const dictionary *d, token_place at, bool only_same_place) {
  nearest_place best = {INFINITY, d->known_places[0]};
  for (uint32_t r = (uint32_t)d->known_from; only_same_place && r < d->known_to; r++)
    if (has_token(d, (token_place){r, at.place}))
      keep_if_nearer(d, at, (token_place){r, at.place}, &best);
  for (size_t i = 0; !only_same_place && i < d->n_known_places; i++)
    keep_if_nearer(d, at, d->known_places[i], &best);
  return best.at;
}

/* Guesses that the tokens at place `at` are those at `known_place`, and counts the right guesses.
 * Appends the true tokens to `true_tokens` and returns their number. */
static size_t collect_true_tokens(dictionary *d, token_place at, token_place known_place,
                                  int64_t *true_tokens) {
  size_t from, to, known_token_index, known_token_end, n = 0, index_of_total = d->tokens->n_tokens;
  get_covered_tokens(d, at.place, &from, &to);
  get_covered_tokens(d, known_place.place, &known_token_index, &known_token_end);
  for (size_t s = from; s < to; s++, known_token_index++) {
    int64_t token = get_token(d, at.record, s);
    if (token < 0 || !is_token_known(d, token)) continue;
    bool is_hit = known_token_index < known_token_end &&
                  get_token(d, known_place.record, known_token_index) == token;
    bool is_right_guess = d->guesses[s] == token;
    d->n_queried_tokens[s]++, d->n_queried_tokens[index_of_total]++;
    d->n_hits[s] += is_hit, d->n_hits[index_of_total] += is_hit;
    d->n_right_guesses[s] += is_right_guess, d->n_right_guesses[index_of_total] += is_right_guess;
    true_tokens[n++] = token;
  }
  return n;
}

/* Sorts the tokens. Returns how often the commonest token, *ret, occurs. */
static size_t count_commonest_token(int64_t *tokens, size_t n, int64_t *ret) {
  size_t n_commonest = 0;
  qsort(tokens, n, sizeof *tokens, compare_tokens);
  for (size_t i = 0, n_equal = 0; i < n; i++) {
    n_equal = i && tokens[i] == tokens[i - 1] ? n_equal + 1 : 1;
    if (n_equal > n_commonest) n_commonest = n_equal, *ret = tokens[i];
  }
  return n_commonest;
}

/* Finds the commonest token of each place, which is the best answer without any vector. */
static void fill_guesses(dictionary *d) {
  for (size_t s = 0; s < d->tokens->n_tokens; s++) {
    size_t n = 0;
    d->guesses[s] = -1;
    for (size_t r = d->known_from; r < d->known_to; r++)
      if (get_token(d, (uint32_t)r, s) >= 0) d->true_tokens[n++] = get_token(d, (uint32_t)r, s);
    count_commonest_token(d->true_tokens, n, &d->guesses[s]);
  }
}

/* Returns the fraction of right answers if no vector is used: the answer is the commonest token of
 * all places or that of each place, whichever is right more often. */
static double compute_base_share(const dictionary *d, size_t place, int64_t *list, size_t n) {
  int64_t unused_token;
  uint32_t n_queried = d->n_queried_tokens[place];
  size_t n_hits =
      CLV_MAX(count_commonest_token(list, n, &unused_token), (size_t)d->n_right_guesses[place]);
  return n_queried ? (double)n_hits / n_queried : 1;
}

/* Figure (fraction that was read) over all places, and figure of the best place. */
typedef struct place_figures {
  double figure, best_figure;
  size_t best_place;
} place_figures;

static double compute_base_share_of_place(const dictionary *d, size_t s, int64_t *list) {
  size_t n = 0;
  for (size_t i = 0; i < d->n_queried_places; i++) {
    size_t from, to;
    get_covered_tokens(d, d->queried_places[i].place, &from, &to);
    int64_t token = s >= from && s < to ? get_token(d, d->queried_places[i].record, s) : -1;
    if (token >= 0 && is_token_known(d, token)) list[n++] = token;
  }
  return compute_base_share(d, s, list, n);
}

/* Returns the figure (fraction that was read) of a place, after two standard deviations of chance
 * are subtracted from the fraction of right answers. */
static double compute_figure_of_place(const dictionary *d, size_t s) {
  double n = d->n_queried_tokens[s], base_share = compute_base_share_of_place(d, s, d->true_tokens);
  if (n < 8 || base_share >= 1) return 0;
  return look_compute_skill_score(d->n_hits[s] / n - 2 * sqrt(base_share * (1 - base_share) / n),
                                  base_share);
}

static place_figures look_up_places(dictionary *d, size_t from, size_t middle, size_t to,
                                    comparison_method comparison) {
  size_t max_places = comparison == COMPARE_SAME_PLACE ? d->n_records * d->n_places
                                                       : (size_t)MAX_COMPARED_PLACES,
         n = 0;
  size_t index_of_total = d->tokens->n_tokens;
  place_figures ret = {0};
  d->known_from = from;
  d->known_to = middle;
  d->n_known_places = list_places(d, from, middle, max_places, d->known_places);
  d->n_queried_places = list_places(d, middle, to, max_places, d->queried_places);
  memset(d->n_hits, 0, (index_of_total + 1) * sizeof *d->n_hits);
  memset(d->n_right_guesses, 0, (index_of_total + 1) * sizeof *d->n_right_guesses);
  memset(d->n_queried_tokens, 0, (index_of_total + 1) * sizeof *d->n_queried_tokens);
  fill_guesses(d);
  list_vocabulary(d);
  for (size_t i = 0; d->n_known_places && i < d->n_queried_places; i++)
    n += collect_true_tokens(
        d, d->queried_places[i],
        find_nearest_place(d, d->queried_places[i], comparison == COMPARE_SAME_PLACE),
        d->true_tokens + n);
  if (!d->n_queried_tokens[index_of_total]) return ret;
  double hit_share = (double)d->n_hits[index_of_total] / d->n_queried_tokens[index_of_total];
  ret.figure =
      look_compute_skill_score(hit_share, compute_base_share(d, index_of_total, d->true_tokens, n));
  return ret;
}

static void find_best_place(const dictionary *d, place_figures *ret) {
  for (size_t s = 0; s < d->tokens->n_tokens; s++) {
    double figure = compute_figure_of_place(d, s);
    if (figure > ret->best_figure) ret->best_figure = figure, ret->best_place = s;
  }
}

/* Tries one way to compare vectors. If it is the best so far within the first half, the figure of
 * the second half becomes the result. */
static void try_comparison_method(dictionary *d, comparison_method comparison, clv_look_split split,
                                  double *best_fit_figure, clv_look_reading *ret) {
  copy_vectors(d);
  if (comparison == COMPARE_ALL_LESS_MEAN) subtract_means(d, split.n_fit);
  place_figures fit_figures = look_up_places(d, 0, split.n_fit / 2, split.n_fit, comparison);
  find_best_place(d, &fit_figures);
  double fit_figure = CLV_MAX(fit_figures.figure, fit_figures.best_figure);
  if (fit_figure <= *best_fit_figure && *ret->by) return;
  *best_fit_figure = fit_figure;
  place_figures test_figures = look_up_places(d, 0, split.n_fit, split.n, comparison);
  double best_place_figure =
      fit_figures.best_figure > 0 ? compute_figure_of_place(d, fit_figures.best_place) : 0;
  *ret = (clv_look_reading){CLV_MAX(test_figures.figure, best_place_figure), "the nearest vector"};
}

clv_code clv_look_read_tokens(const clv_look_view *views, size_t n_views,
                              const clv_look_tokens *tokens, clv_look_split split,
                              clv_look_reading *ret, clv_err *err) {
  double best_fit_figure = 0;
  *ret = (clv_look_reading){.by = ""};
  for (size_t k = 0; k < n_views; k++) {
    CLV_AUTO(dictionary_done) dictionary d = {0};
    if (!views[k].n_channels || !views[k].n_rows || !views[k].n_columns) continue;
    CLV_TRY(dictionary_new(&views[k], tokens, split.n, &d, err));
    for (int comparison = 0; comparison < N_COMPARISON_METHODS; comparison++)
      try_comparison_method(&d, (comparison_method)comparison, split, &best_fit_figure, ret);
  }
  return CLV_OK;
}
