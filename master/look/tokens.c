/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tokens (clv_look_nearest), as one attack of the look, which measures before a run what sent
 * tensors show. Someone who knows the tokens of some records can answer with the tokens of the
 * nearest known vector. The best view of the values, and the best way to compare vectors, are
 * chosen within the first half.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/look/look_int.h"

enum {
  /* most places that are compared, of the half to learn from and of the half to test with */
  MAX_ITEMS = 768,
  MAX_COMPARED_VALUES = 1024, /* most values of a vector that are compared */
};

/* Vectors with which a vector is compared: those of all places, those of all places less the mean
 * vector of their place, or those of the same place. */
typedef enum comparison_way { ALL_PLACES, ALL_LESS_MEAN, SAME_PLACE, N_WAYS } comparison_way;

/* One place of one record, with the tokens that it covers. */
typedef struct token_place {
  uint32_t record, place;
} token_place;

typedef struct dictionary {
  const clv_look_view *view;
  const clv_look_tokens *tokens;
  /* A vector is what the tensor has at one place, such as a token, of a record. width: number of
   * its values that are compared; step: distance between two of them, in channels */
  size_t n_places, width, step;
  size_t n_records;
  /* vectors: [n_records][n_places][width]; means: [n_places][width] mean vector of each place */
  float *vectors, *means;
  /* [n_records * n_places] known_places: places that are learned from; asked_places: places
   * that are looked up */
  token_place *known_places, *asked_places;
  size_t n_known_places, n_asked_places;
  size_t from, to;     /* range of the records from which the attack learns */
  int64_t *vocabulary; /* tokens of the known places, ascending */
  size_t n_vocabulary;
  int64_t *guesses; /* [n_tokens] commonest token of each place among the known records */
  /* [n_tokens + 1] for each place of a record, and at the end for all places: number of right
   * answers, number of right guesses without a vector, number of tokens asked for */
  uint32_t *n_hits, *n_right_guesses, *n_asked_tokens;
  int64_t *answers; /* [n_records * n_tokens] true tokens of the places asked for */
} dictionary;

static void dictionary_done(dictionary *d) {
  free(d->vectors);
  free(d->means);
  free(d->known_places);
  free(d->asked_places);
  free(d->vocabulary);
  free(d->guesses);
  free(d->n_hits);
  free(d->n_right_guesses);
  free(d->n_asked_tokens);
  free(d->answers);
}

static clv_code dictionary_new(const clv_look_view *v, const clv_look_tokens *tokens, size_t n,
                               dictionary *d, clv_err *err) {
  size_t n_places = v->n_rows * v->n_columns, bytes;
  *d = (dictionary){.view = v, .tokens = tokens, .n_places = n_places, .n_records = n};
  d->step = (v->n_channels + MAX_COMPARED_VALUES - 1) / MAX_COMPARED_VALUES;
  d->width = v->n_channels / CLV_MAX(d->step, (size_t)1);
  if (!clv_mul_size(n * n_places, d->width, &bytes))
    return clv_fail(err, CLV_EXHAUSTED, "%zu places of %zu values", n * n_places, d->width);
  CLV_TRY(clv_alloc(bytes, sizeof *d->vectors, &d->vectors, err));
  CLV_TRY(clv_alloc(n_places * d->width, sizeof *d->means, &d->means, err));
  CLV_TRY(clv_alloc(n * n_places, sizeof *d->known_places, &d->known_places, err));
  CLV_TRY(clv_alloc(n * n_places, sizeof *d->asked_places, &d->asked_places, err));
  CLV_TRY(clv_alloc(n * tokens->n_tokens, sizeof *d->vocabulary, &d->vocabulary, err));
  CLV_TRY(clv_alloc(n * tokens->n_tokens, sizeof *d->answers, &d->answers, err));
  CLV_TRY(clv_alloc(tokens->n_tokens, sizeof *d->guesses, &d->guesses, err));
  CLV_TRY(clv_alloc(tokens->n_tokens + 1, sizeof *d->n_hits, &d->n_hits, err));
  CLV_TRY(clv_alloc(tokens->n_tokens + 1, sizeof *d->n_right_guesses, &d->n_right_guesses, err));
  return clv_alloc(tokens->n_tokens + 1, sizeof *d->n_asked_tokens, &d->n_asked_tokens, err);
}

/* ---- vectors of the places ------------------------------------------------------------------- */

static float *get_vector(const dictionary *d, token_place at) {
  return d->vectors + (at.record * d->n_places + at.place) * d->width;
}

static void copy_vectors(dictionary *d) {
  for (uint32_t r = 0; r < d->n_records; r++)
    for (uint32_t p = 0; p < d->n_places; p++) {
      float *to = get_vector(d, (token_place){r, p});
      for (size_t k = 0; k < d->width; k++) to[k] = look_value(d->view, r, p, k * d->step);
    }
}

/* Subtracts from each vector the mean of its place over the first `n` records. */
static void subtract_means(dictionary *d, size_t n) {
  for (uint32_t p = 0; p < d->n_places; p++) {
    float *mean = d->means + p * d->width;
    memset(mean, 0, d->width * sizeof *mean);
    for (uint32_t r = 0; r < n; r++)
      for (size_t k = 0; k < d->width; k++)
        mean[k] += get_vector(d, (token_place){r, p})[k] / (float)n;
    for (uint32_t r = 0; r < d->n_records; r++)
      for (size_t k = 0; k < d->width; k++) get_vector(d, (token_place){r, p})[k] -= mean[k];
  }
}

/* ---- tokens of the places -------------------------------------------------------------------- */

/* Returns the range from..to of the tokens that a place covers; a place of an upsampled sequence
 * may cover none. */
static void get_covered_tokens(const dictionary *d, uint32_t place, size_t *from, size_t *to) {
  size_t n = d->tokens->n_tokens;
  *from = (place * n + d->n_places - 1) / d->n_places;
  *to = ((place + 1) * n + d->n_places - 1) / d->n_places;
}

static int64_t get_token(const dictionary *d, uint32_t record, size_t at) {
  return d->tokens->token[record * d->tokens->n_tokens + at];
}

static bool has_token(const dictionary *d, token_place at) {
  size_t from, to;
  bool has_any = false;
  get_covered_tokens(d, at.place, &from, &to);
  for (size_t s = from; s < to; s++) has_any |= get_token(d, at.record, s) >= 0;
  return has_any;
}

/* Lists the places of records from..to that have a token; if there are more than `max`, evenly
 * spread ones. */
static size_t list_items(const dictionary *d, size_t from, size_t to, size_t max,
                         token_place *ret) {
  size_t n_all = 0, n = 0, n_kept = 0;
  for (int round = 0; round < 2; round++, n_all = n, n = 0)
    for (uint32_t r = (uint32_t)from; r < to; r++)
      for (uint32_t p = 0; p < d->n_places; p++) {
        if (!has_token(d, (token_place){r, p})) continue;
        bool is_kept = round && (n_all <= max || n * max / n_all >= n_kept);
        if (is_kept && n_kept < max) ret[n_kept++] = (token_place){r, p};
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
  float distance; /* squared distance of the two vectors */
  token_place at;
} nearest_place;

static void keep_if_nearer(const dictionary *d, token_place at, token_place known,
                           nearest_place *best) {
  float distance = look_distance(get_vector(d, at), get_vector(d, known), d->width);
  if (distance < best->distance) *best = (nearest_place){distance, known};
}

static token_place find_nearest(const dictionary *d, token_place at, bool same_place) {
  nearest_place best = {INFINITY, d->known_places[0]};
  for (uint32_t r = (uint32_t)d->from; same_place && r < d->to; r++)
    if (has_token(d, (token_place){r, at.place}))
      keep_if_nearer(d, at, (token_place){r, at.place}, &best);
  for (size_t i = 0; !same_place && i < d->n_known_places; i++)
    keep_if_nearer(d, at, d->known_places[i], &best);
  return best.at;
}

/* Guesses that the tokens at place `at` are those at the known place `found`, and counts the right
 * guesses. */
static size_t answer_place(dictionary *d, token_place at, token_place found, int64_t *answers) {
  size_t from, to, found_token, found_end, n = 0, total_index = d->tokens->n_tokens;
  get_covered_tokens(d, at.place, &from, &to);
  get_covered_tokens(d, found.place, &found_token, &found_end);
  for (size_t s = from; s < to; s++, found_token++) {
    int64_t token = get_token(d, at.record, s);
    if (token < 0 || !is_token_known(d, token)) continue;
    bool is_hit = found_token < found_end && get_token(d, found.record, found_token) == token;
    bool is_right_guess = d->guesses[s] == token;
    d->n_asked_tokens[s]++, d->n_asked_tokens[total_index]++;
    d->n_hits[s] += is_hit, d->n_hits[total_index] += is_hit;
    d->n_right_guesses[s] += is_right_guess, d->n_right_guesses[total_index] += is_right_guess;
    answers[n++] = token;
  }
  return n;
}

/* Sorts the list. Returns the number of times that its commonest value occurs. */
static size_t find_commonest(int64_t *list, size_t n, int64_t *ret) {
  size_t n_commonest = 0;
  qsort(list, n, sizeof *list, compare_tokens);
  for (size_t i = 0, n_equal = 0; i < n; i++) {
    n_equal = i && list[i] == list[i - 1] ? n_equal + 1 : 1;
    if (n_equal > n_commonest) n_commonest = n_equal, *ret = list[i];
  }
  return n_commonest;
}

/* Finds the commonest token of each place, which is the best answer without any vector. */
static void make_guesses(dictionary *d) {
  for (size_t s = 0; s < d->tokens->n_tokens; s++) {
    size_t n = 0;
    d->guesses[s] = -1;
    for (size_t r = d->from; r < d->to; r++)
      if (get_token(d, (uint32_t)r, s) >= 0) d->answers[n++] = get_token(d, (uint32_t)r, s);
    find_commonest(d->answers, n, &d->guesses[s]);
  }
}

/* Returns the share of right answers without any vector, by the commonest token of all places or of
 * each place. */
static double compute_base(const dictionary *d, size_t place, int64_t *list, size_t n) {
  int64_t unused_token;
  uint32_t count = d->n_asked_tokens[place];
  size_t hits = CLV_MAX(find_commonest(list, n, &unused_token), (size_t)d->n_right_guesses[place]);
  return count ? (double)hits / count : 1;
}

/* Figure (share that was read) over all places, and figure of the best place. */
typedef struct place_figures {
  double figure, best_figure;
  size_t best_place;
} place_figures;

static double compute_base_of_place(const dictionary *d, size_t s, int64_t *list) {
  size_t n = 0;
  for (size_t i = 0; i < d->n_asked_places; i++) {
    size_t from, to;
    get_covered_tokens(d, d->asked_places[i].place, &from, &to);
    int64_t token = s >= from && s < to ? get_token(d, d->asked_places[i].record, s) : -1;
    if (token >= 0 && is_token_known(d, token)) list[n++] = token;
  }
  return compute_base(d, s, list, n);
}

/* Returns the figure (share that was read) of a place, less two standard deviations of chance. */
static double compute_figure_of_place(const dictionary *d, size_t s) {
  double n = d->n_asked_tokens[s], base = compute_base_of_place(d, s, d->answers);
  if (n < 8 || base >= 1) return 0;
  return look_skill_score(d->n_hits[s] / n - 2 * sqrt(base * (1 - base) / n), base);
}

static place_figures look_up_places(dictionary *d, size_t from, size_t middle, size_t to,
                                    comparison_way comparison) {
  size_t max_items = comparison == SAME_PLACE ? d->n_records * d->n_places : (size_t)MAX_ITEMS,
         n = 0;
  size_t total_index = d->tokens->n_tokens;
  place_figures ret = {0};
  d->from = from;
  d->to = middle;
  d->n_known_places = list_items(d, from, middle, max_items, d->known_places);
  d->n_asked_places = list_items(d, middle, to, max_items, d->asked_places);
  memset(d->n_hits, 0, (total_index + 1) * sizeof *d->n_hits);
  memset(d->n_right_guesses, 0, (total_index + 1) * sizeof *d->n_right_guesses);
  memset(d->n_asked_tokens, 0, (total_index + 1) * sizeof *d->n_asked_tokens);
  make_guesses(d);
  list_vocabulary(d);
  for (size_t i = 0; d->n_known_places && i < d->n_asked_places; i++)
    n +=
        answer_place(d, d->asked_places[i],
                     find_nearest(d, d->asked_places[i], comparison == SAME_PLACE), d->answers + n);
  if (!d->n_asked_tokens[total_index]) return ret;
  double share = (double)d->n_hits[total_index] / d->n_asked_tokens[total_index];
  ret.figure = look_skill_score(share, compute_base(d, total_index, d->answers, n));
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
static void try_way(dictionary *d, comparison_way comparison, clv_look_split half, double *best,
                    clv_look_reading *ret) {
  copy_vectors(d);
  if (comparison == ALL_LESS_MEAN) subtract_means(d, half.n_fit);
  place_figures fit = look_up_places(d, 0, half.n_fit / 2, half.n_fit, comparison);
  find_best_place(d, &fit);
  double fit_figure = CLV_MAX(fit.figure, fit.best_figure);
  if (fit_figure <= *best && *ret->by) return;
  *best = fit_figure;
  place_figures report = look_up_places(d, 0, half.n_fit, half.n, comparison);
  double place_figure = fit.best_figure > 0 ? compute_figure_of_place(d, fit.best_place) : 0;
  *ret = (clv_look_reading){CLV_MAX(report.figure, place_figure), "the nearest vector"};
}

clv_code clv_look_nearest(const clv_look_view *views, size_t n_views, const clv_look_tokens *tokens,
                          clv_look_split half, clv_look_reading *ret, clv_err *err) {
  double best = 0;
  *ret = (clv_look_reading){.by = ""};
  for (size_t k = 0; k < n_views; k++) {
    CLV_AUTO(dictionary_done) dictionary d = {0};
    if (!views[k].n_channels || !views[k].n_rows || !views[k].n_columns) continue;
    CLV_TRY(dictionary_new(&views[k], tokens, half.n, &d, err));
    for (int comparison = 0; comparison < N_WAYS; comparison++)
      try_way(&d, (comparison_way)comparison, half, &best, ret);
  }
  return CLV_OK;
}
