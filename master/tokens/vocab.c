/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorted lists of tokens. A token is found by binary search. A prefix search takes one byte at a
 * time, and uses the sorted list or a tree of prefixes.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

void clv_vocab_done(clv_vocab *v) {
  if (!v) return;
  clv_bytes_done(&v->text);
  free(v->entries);
  free(v->tree.first_child);
  free(v->tree.entry);
  free(v->tree.label);
  *v = (clv_vocab){0};
}

static clv_code reserve_entry(clv_vocab *v, clv_err *err) {
  size_t cap = v->cap ? 2 * v->cap : 1024, bytes;
  void *new_entries =
      clv_mul_size(cap, sizeof *v->entries, &bytes) ? realloc(v->entries, bytes) : NULL;
  if (!new_entries)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for %zu tokens of the vocabulary", cap);
  v->entries = new_entries;
  v->cap = cap;
  return CLV_OK;
}

clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id,
                       uint32_t file_position, uint8_t flags, clv_err *err) {
  if (v->n == v->cap) CLV_TRY(reserve_entry(v, err));
  v->max_id = CLV_MAX(v->n ? v->max_id : -1, id);
  v->entries[v->n++] =
      (clv_vocab_entry){(uint32_t)v->text.len, (uint32_t)len, id, file_position, flags};
  clv_bytes_add(&v->text, text, len);
  if (v->text.len > UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "the texts of %zu tokens have %zu bytes, the limit is %u",
                    v->n, v->text.len, UINT32_MAX);
  if (v->text.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory for %zu tokens of the vocabulary", v->n);
  return CLV_OK;
}

static int compare_texts(const char *a, size_t a_len, const char *b, size_t b_len) {
  int c = memcmp(a, b, CLV_MIN(a_len, b_len));
  return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int compare_entries(const void *a, const void *b, void *text) {
  const clv_vocab_entry *x = a, *y = b;
  return compare_texts((const char *)text + x->offset, x->len, (const char *)text + y->offset,
                       y->len);
}

bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_duplicates[2]) {
  if (v->n) qsort_r(v->entries, v->n, sizeof *v->entries, compare_entries, v->text.data);
  for (size_t i = 1; i < v->n; i++)
    if (compare_entries(&v->entries[i - 1], &v->entries[i], v->text.data) == 0) {
      const clv_vocab_entry *a = &v->entries[i - 1], *b = &v->entries[i];
      ret_duplicates[0] = a->file_position < b->file_position ? *a : *b;
      ret_duplicates[1] = a->file_position < b->file_position ? *b : *a;
      return false;
    }
  return true;
}

const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len) {
  size_t low = 0, high = v->n;
  while (low < high) {
    const clv_vocab_entry *e = &v->entries[low + (high - low) / 2];
    int c = compare_texts(v->text.data + e->offset, e->len, text, len);
    if (c == 0) return e;
    if (c < 0)
      low = (size_t)(e - v->entries) + 1;
    else
      high = (size_t)(e - v->entries);
  }
  return NULL;
}

/* ---- the tree of prefixes -------------------------------------------------------------------- */

/* Entries low..high - 1 of the sorted list: those with the prefix of a node. */
typedef struct entry_range {
  uint32_t low, high;
} entry_range;

/* Returns the byte of entry i after its first `depth` bytes; -1: the entry has no more bytes. */
static int get_byte_after_prefix(const clv_vocab *v, size_t i, uint32_t depth) {
  const clv_vocab_entry *e = &v->entries[i];
  return depth < e->len ? (unsigned char)v->text.data[e->offset + depth] : -1;
}

/* Appends the children of a node to the tree, and sets the node's token. depth: bytes of the node's
 * prefix. The token that equals the prefix is the first entry of ranges[node]. */
static void add_children(const clv_vocab *v, clv_prefix_tree *t, entry_range *ranges, size_t node,
                         uint32_t depth) {
  entry_range s = ranges[node];
  t->first_child[node] = (uint32_t)t->n;
  t->entry[node] = UINT32_MAX;
  if (s.low < s.high && v->entries[s.low].len == depth) t->entry[node] = s.low++;
  for (uint32_t i = s.low; i < s.high; i++) {
    int byte = get_byte_after_prefix(v, i, depth);
    if (i == s.low || byte != t->label[t->n - 1]) {
      t->label[t->n] = (uint8_t)byte;
      ranges[t->n++] = (entry_range){i, i};
    }
    ranges[t->n - 1].high = i + 1;
  }
}

clv_code clv_vocab_make_tree(clv_vocab *v, clv_err *err) {
  clv_prefix_tree *t = &v->tree;
  CLV_AUTO(clv_freep) entry_range *ranges = NULL;
  size_t max_nodes = v->text.len + 1;
  if (v->text.len > CLV_VOCAB_TREE_MAX_BYTES) return CLV_OK;
  CLV_TRY(clv_alloc(max_nodes, sizeof *ranges, &ranges, err));
  CLV_TRY(clv_alloc(max_nodes + 1, sizeof *t->first_child, &t->first_child, err));
  CLV_TRY(clv_alloc(max_nodes, sizeof *t->entry, &t->entry, err));
  CLV_TRY(clv_alloc(max_nodes, sizeof *t->label, &t->label, err));
  ranges[0] = (entry_range){0, (uint32_t)v->n};
  t->n = 1;
  uint32_t depth = 0;
  for (size_t node = 0, end = 1; node < t->n; node++) {
    if (node == end) { /* the next level begins */
      depth++;
      end = t->n;
    }
    add_children(v, t, ranges, node, depth);
  }
  t->first_child[t->n] = (uint32_t)t->n;
  return CLV_OK;
}

/* Returns the child of a node for a byte; 0: there is none. */
static size_t find_child(const clv_prefix_tree *t, size_t node, uint8_t byte) {
  size_t low = t->first_child[node], high = t->first_child[node + 1];
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (t->label[middle] == byte) return middle;
    if (t->label[middle] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return 0;
}

/* ---- prefix search --------------------------------------------------------------------------- */

clv_prefix_search clv_prefix_search_begin(const clv_vocab *v) {
  return v->tree.n ? (clv_prefix_search){.high = 1} : (clv_prefix_search){.high = v->n};
}

/* Returns the first entry of w->low..w->high - 1 whose byte after the prefix is min_byte or more;
 * w->high: there is none. */
static size_t find_entry_from_byte(const clv_vocab *v, const clv_prefix_search *w, int min_byte) {
  size_t low = w->low, high = w->high;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (get_byte_after_prefix(v, middle, w->depth) < min_byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static bool move_to_child(const clv_prefix_tree *t, clv_prefix_search *w, uint8_t byte) {
  size_t child = w->low < w->high ? find_child(t, w->low, byte) : 0;
  *w = (clv_prefix_search){child, child + (child != 0), w->depth + 1};
  return child != 0;
}

bool clv_prefix_search_add_byte(const clv_vocab *v, clv_prefix_search *w, char byte) {
  int b = (unsigned char)byte;
  if (v->tree.n) return move_to_child(&v->tree, w, (uint8_t)byte);
  *w = (clv_prefix_search){find_entry_from_byte(v, w, b), find_entry_from_byte(v, w, b + 1),
                           w->depth + 1};
  return w->low < w->high;
}

const clv_vocab_entry *clv_prefix_search_token(const clv_vocab *v, const clv_prefix_search *w) {
  if (w->low >= w->high) return NULL;
  if (!v->tree.n) return v->entries[w->low].len == w->depth ? &v->entries[w->low] : NULL;
  uint32_t entry = v->tree.entry[w->low];
  return entry == UINT32_MAX ? NULL : &v->entries[entry];
}
