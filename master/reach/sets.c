/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of places (pixels, steps, tokens or features of a record), stored as sorted runs; equal sets
 * are stored once. To make a union, the bits of all its sets are set in a bitmap, and the runs of
 * set bits are then read.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

enum {
  MAX_RECORD_PLACES = 1 << 22,
  MAX_POOL_BYTES = 256 << 20, /* most bytes of the spans and sets of a pool */
  INITIAL_TABLE_BITS = 12,
};

static size_t count_used_bytes(const reach_set_pool *p) {
  return p->n_spans * sizeof *p->spans + p->n_sets * sizeof *p->sets;
}

/* Doubles an array, so that it has room for one more element; false: out of memory, and the pool is
 * marked as failed. */
static bool grow_array(reach_set_pool *p, void *array, size_t n, size_t *capacity,
                       size_t element_size) {
  void **at = array;
  if (n < *capacity) return true;
  size_t new_capacity = CLV_MAX(2 * *capacity, (size_t)64);
  void *grown_array = reallocarray(*at, new_capacity, element_size);
  if (!grown_array) {
    p->has_failed = true;
    return false;
  }
  *at = grown_array;
  *capacity = new_capacity;
  return true;
}

static uint64_t hash_spans(const reach_span *spans, size_t n) {
  uint64_t h = n;
  for (size_t i = 0; i < n; i++) {
    h = (h ^ ((uint64_t)(uint32_t)spans[i].from << 32 | (uint32_t)spans[i].to)) *
        0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h;
}

static bool is_same_set(const reach_set_pool *p, uint32_t set_number, const reach_span *spans,
                        size_t n) {
  const reach_set *s = &p->sets[set_number];
  return s->n == n && memcmp(p->spans + s->at, spans, n * sizeof *spans) == 0;
}

static void add_to_table(reach_set_pool *p, uint32_t set_number) {
  const reach_set *s = &p->sets[set_number];
  size_t mask = ((size_t)1 << p->hash_table_bits) - 1,
         at = hash_spans(p->spans + s->at, s->n) & mask;
  while (p->hash_table[at]) at = (at + 1) & mask;
  p->hash_table[at] = set_number;
}

static void grow_table_if_full(reach_set_pool *p) {
  uint32_t *grown_table;
  if (2 * p->n_sets < (size_t)1 << p->hash_table_bits) return;
  grown_table = calloc((size_t)1 << (p->hash_table_bits + 1), sizeof *grown_table);
  if (!grown_table) {
    p->has_failed = true;
    return;
  }
  free(p->hash_table);
  p->hash_table = grown_table;
  p->hash_table_bits++;
  for (uint32_t i = 1; i < p->n_sets; i++) add_to_table(p, i);
}

/* Returns the set of the last n spans. If an equal set exists already, removes the spans and
 * returns the number of that set. */
static uint32_t find_or_add_set(reach_set_pool *p, size_t n, int32_t n_places) {
  size_t first_span = p->n_spans - n, mask = ((size_t)1 << p->hash_table_bits) - 1;
  for (size_t at = hash_spans(p->spans + first_span, n) & mask; p->hash_table[at];
       at = (at + 1) & mask)
    if (is_same_set(p, p->hash_table[at], p->spans + first_span, n)) {
      p->n_spans = first_span;
      return p->hash_table[at];
    }
  if (!grow_array(p, &p->sets, p->n_sets, &p->sets_capacity, sizeof *p->sets))
    return REACH_EMPTY_SET;
  p->sets[p->n_sets] = (reach_set){(uint32_t)first_span, (uint32_t)n, n_places};
  add_to_table(p, (uint32_t)p->n_sets++);
  grow_table_if_full(p);
  p->exceeds_limits |= count_used_bytes(p) > MAX_POOL_BYTES;
  return (uint32_t)p->n_sets - 1;
}

clv_code reach_pool_init(reach_set_pool *p, int64_t n_places, clv_err *err) {
  *p = (reach_set_pool){.n_places = CLV_MIN(n_places, (int64_t)MAX_RECORD_PLACES),
                        .hash_table_bits = INITIAL_TABLE_BITS};
  p->exceeds_limits = n_places > MAX_RECORD_PLACES;
  p->lowest_word = SIZE_MAX;
  CLV_TRY(clv_alloc((size_t)1 << INITIAL_TABLE_BITS, sizeof *p->hash_table, &p->hash_table, err));
  CLV_TRY(clv_alloc((size_t)p->n_places / 64 + 1, sizeof *p->bits, &p->bits, err));
  if (!grow_array(p, &p->sets, 0, &p->sets_capacity, sizeof *p->sets))
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  p->sets[p->n_sets++] = (reach_set){0};
  reach_pool_add_span(p, 0, p->n_places);
  (void)reach_pool_take_set(p); /* makes the set of all places, whose number is REACH_FULL_SET */
  return p->has_failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

void reach_pool_done(reach_set_pool *p) {
  free(p->spans);
  free(p->sets);
  free(p->hash_table);
  free(p->bits);
}

void reach_pool_add_span(reach_set_pool *p, int64_t from, int64_t n) {
  int64_t to = CLV_MIN(from + n, p->n_places);
  if (from >= to) return;
  size_t first = (size_t)from / 64, last = (size_t)(to - 1) / 64;
  uint64_t head_mask = ~0ull << from % 64, tail_mask = ~0ull >> (63 - (to - 1) % 64);
  p->work_done += last - first + 1;
  p->lowest_word = CLV_MIN(p->lowest_word, first);
  p->highest_word = CLV_MAX(p->highest_word, last);
  if (first == last) {
    p->bits[first] |= head_mask & tail_mask;
    return;
  }
  p->bits[first] |= head_mask;
  for (size_t i = first + 1; i < last; i++) p->bits[i] = ~0ull;
  p->bits[last] |= tail_mask;
}

void reach_pool_add_set(reach_set_pool *p, uint32_t set_number) {
  const reach_set *s = &p->sets[set_number];
  for (uint32_t i = 0; i < s->n; i++) {
    reach_span span = p->spans[s->at + i];
    reach_pool_add_span(p, span.from, span.to - span.from);
  }
}

/* Returns the index of the first bit in from..to - 1 that is `bit_value`; `to`: there is none. */
static int64_t find_bit(const reach_set_pool *p, int64_t from, int64_t to, bool bit_value) {
  while (from < to) {
    uint64_t word = (bit_value ? p->bits[from / 64] : ~p->bits[from / 64]) >> from % 64;
    if (word) return CLV_MIN(from + __builtin_ctzll(word), to);
    from = (from / 64 + 1) * 64;
  }
  return to;
}

uint32_t reach_pool_take_set(reach_set_pool *p) {
  size_t n = 0;
  int32_t n_set_places = 0;
  if (p->lowest_word == SIZE_MAX) return REACH_EMPTY_SET;
  int64_t to = CLV_MIN((int64_t)(p->highest_word + 1) * 64, p->n_places);
  for (int64_t at = find_bit(p, (int64_t)p->lowest_word * 64, to, true); at < to; n++) {
    int64_t end = find_bit(p, at, to, false);
    if (!grow_array(p, &p->spans, p->n_spans, &p->spans_capacity, sizeof *p->spans)) break;
    p->spans[p->n_spans++] = (reach_span){(int32_t)at, (int32_t)end};
    n_set_places += (int32_t)(end - at);
    at = find_bit(p, end, to, true);
  }
  p->work_done += p->highest_word - p->lowest_word + 1 + n;
  memset(p->bits + p->lowest_word, 0, (p->highest_word - p->lowest_word + 1) * sizeof *p->bits);
  p->lowest_word = SIZE_MAX;
  p->highest_word = 0;
  return p->has_failed ? REACH_EMPTY_SET : find_or_add_set(p, n, n_set_places);
}
