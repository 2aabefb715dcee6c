/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that are windows of pages: the lines of JSON that pages come in, the names of classes,
 * and the rows that become of them.
 */
#ifndef CLEAVE_DATA_PAGE_INT_H
#define CLEAVE_DATA_PAGE_INT_H

#include "master/data/text_int.h"

/* ---- names of classes (class_names.c) -------------------------------------------------------- */

enum { CLV_MAX_CLASS_NAMES = 65536 };

/* Each name once, with a number. Zero-initialise; release with clv_name_table_done. */
typedef struct clv_name_table {
  clv_bytes text; /* each with its NUL */
  struct clv_name_entry {
    size_t at;      /* in text */
    int32_t number; /* as they came: 0, 1, ... */
  } * sorted;       /* [n] by name */
  size_t n, cap;
  bool closed; /* no other names are taken */
} clv_name_table;

void clv_name_table_done(clv_name_table *s);
/* The number of a name, which is new unless s is closed. CLV_INVALID: it can be no class's name, or
 * is a new one. */
clv_code clv_name_table_number(clv_name_table *s, const char *name, size_t len, int32_t *ret,
                               clv_err *err) CLV_USE_RESULT;
/* ret_classes: [n], in the order of their numbers where s is closed, else sorted; the caller frees
 * the list, its texts are those of s. ret_rank: [n], what each number becomes. */
clv_code clv_name_table_order(const clv_name_table *s, char ***ret_classes, int32_t **ret_rank,
                              clv_err *err) CLV_USE_RESULT;

/* ---- lines of pages (page_lines.c) ----------------------------------------------------------- */

/* Borrowed until the next one is asked for. */
typedef struct clv_labelled_page {
  const char *place; /* "file:line", or the file: for messages */
  clv_page page;
  const char *const *labels; /* [page.n], each NULL where the word has none; NULL: not looked for */
  const char *label;         /* of the page; NULL: not looked for */
  const char *file;          /* that the page is of; NULL: not said */
  const char *more; /* members of its JSON object that are none of the above, with commas between;
                     * NULL: none */
} clv_labelled_page;

typedef enum clv_page_label_kind {
  CLV_PAGES_UNLABELLED,
  CLV_PAGES_WORD_LABELS, /* "labels": a text or null per word */
  CLV_PAGES_PAGE_LABELS, /* "label": a text or a whole number */
} clv_page_label_kind;

/* Every line is an object with "words", "boxes" and labels, as `cleave-master words` prints them;
 * "file" is the name of what it is a page of. Other keys are passed by, or kept as they stand where
 * no labels are wanted. Zero-initialise, then
 * set what is before the empty line; release with clv_page_reader_done. Numbers of `words` and
 * `names` are places in `kept`; -1: no label. */
typedef struct clv_page_reader {
  const char *path, *text; /* text ends in a NUL that is not counted */
  size_t len;
  clv_page_label_kind wants;

  size_t at, line; /* where the next one begins, and how many were before */
  clv_bytes kept, one, label, file, more;
  clv_ids words, names, boxes;
  clv_page_word *list; /* [cap] */
  const char **labels; /* [cap] */
  size_t cap;
  char place[256];
} clv_page_reader;

void clv_page_reader_done(clv_page_reader *l);
/* *ret_more: there is a page. Errors are CLV_INVALID and say line and column. */
clv_code clv_page_reader_next(clv_page_reader *l, clv_labelled_page *ret, bool *ret_more,
                              clv_err *err) CLV_USE_RESULT;

/* ---- pages as they were read (kept_pages.c) -------------------------------------------------- */

/* Zero-initialise; release with clv_kept_pages_done. */
typedef struct clv_kept_pages {
  clv_kept_page *list; /* [n] */
  size_t n, cap, bytes;
} clv_kept_pages;

void clv_kept_pages_done(clv_kept_pages *k);
/* A copy of the page, whose windows are records `first` and on. CLV_EXHAUSTED: all of them have
 * more than max_bytes. */
clv_code clv_kept_pages_add(clv_kept_pages *k, const clv_labelled_page *p, size_t first,
                            size_t windows, size_t max_bytes, clv_err *err) CLV_USE_RESULT;

/* ---- windows of pages (pages.c) -------------------------------------------------------------- */

typedef struct clv_page_set {
  clv_tensor *ids, *boxes, *lengths; /* [n, S], [n, S, 4], [n]; i32 */
  clv_tensor *labels;                /* [n, S] of words, [n] of pages, i64; or NULL */
  clv_bytes groups;                  /* [n] int64_t: of the file if files are groups, or the page */
  clv_kept_pages kept;               /* where predictions are wanted */
  clv_tensor *places;                /* [n, S] i32 of these, as clv_dataset_token_words has them */
  clv_name_table names;
  char **classes; /* [names.n] */
  clv_page_counts counts;
  clv_token_info kinds;
  clv_broken_records broken;
} clv_page_set;

void clv_page_set_free(clv_page_set *p);
clv_code clv_page_set_open(const clv_dataset_options *o, clv_page_set **ret,
                           clv_err *err) CLV_USE_RESULT;

/* Rows that grow. Zero-initialise, open, add, take, done. */
typedef struct clv_page_rows {
  clv_text_rows tokens; /* of its tokenizer and ends; no rows */
  clv_window_options window;
  clv_page_label_kind wants;
  bool by_file;    /* groups are files, else pages */
  bool keeps;      /* pages, and which word each place speaks for, instead of labels */
  int64_t ignored; /* what places without a label have */
  size_t max_bytes;
  clv_ids ids, boxes, lengths, labels;
  clv_bytes groups;
  clv_kept_pages kept;
  clv_name_table names;
  clv_page_counts counts;
} clv_page_rows;

clv_code clv_page_rows_open(clv_page_rows *r, const clv_dataset_options *o,
                            clv_err *err) CLV_USE_RESULT;
void clv_page_rows_done(clv_page_rows *r);
/* Its message begins with the page's place. */
clv_code clv_page_rows_add(clv_page_rows *r, const clv_labelled_page *page,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_page_rows_take(clv_page_rows *r, clv_page_set **ret, clv_err *err) CLV_USE_RESULT;

#endif
