/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows of pages as records: reading pages from lines of JSON, numbering class names, and
 * converting pages to rows of tokens. Private to master/data.
 */
#ifndef CLEAVE_DATA_PAGE_INT_H
#define CLEAVE_DATA_PAGE_INT_H

#include "master/data/text_int.h"

/* ---- names of classes (class_names.c) -------------------------------------------------------- */

enum { CLV_MAX_CLASS_NAMES = 65536 };

/* Table that gives distinct names the numbers 0, 1, ... Zero-initialise; release with
 * clv_name_table_done. */
typedef struct clv_name_table {
  clv_bytes text; /* names of the classes, each with its NUL */
  struct clv_name_entry {
    size_t at;      /* offset of the name in `text` */
    int32_t number; /* numbers 0, 1, ... are given in the order in which names arrive */
  } * sorted;       /* [n] the names, sorted as texts */
  size_t n, cap;
  bool is_closed; /* true: further names are refused; false: a new name is added */
  bool has_texts; /* names are any texts, such as the cells of a table; false: class names */
} clv_name_table;

void clv_name_table_done(clv_name_table *s);
/* Returns the number of a name. Adds a new name unless s is closed. CLV_INVALID: the name is not
 * valid for a class, or it is new and s is closed. */
clv_code clv_name_table_find_or_add(clv_name_table *s, const char *name, size_t len, int32_t *ret,
                                    clv_err *err) CLV_USE_RESULT;
/* Lists the names: sorted as texts while names may be added, by number once s->is_closed.
 * ret_classes: [n] names; the caller frees the list, s owns the texts. ret_ranks: [n] for each
 * number, the index of its name in that list. */
clv_code clv_name_table_list(const clv_name_table *s, char ***ret_classes, int32_t **ret_ranks,
                             clv_err *err) CLV_USE_RESULT;

/* ---- lines of pages (page_lines.c) ----------------------------------------------------------- */

/* A page with its labels. Valid until the next page is read. */
typedef struct clv_labelled_page {
  const char *location; /* "file:line", or the path of a document: for messages */
  clv_page page;
  /* [page.n] label of each word, NULL for a word without a label; NULL: labels are not read */
  const char *const *labels;
  const char *label; /* label of the page; NULL: not read */
  const char *file;  /* name of the file that has the page; NULL: not given */
  /* other members of the page's JSON object, as text, separated by commas; NULL: none */
  const char *other_json_members;
} clv_labelled_page;

typedef enum clv_page_label_kind {
  CLV_PAGES_UNLABELLED,
  CLV_PAGES_WORD_LABELS, /* "labels": a text or null per word */
  CLV_PAGES_PAGE_LABELS, /* "label": a text or a whole number */
} clv_page_label_kind;

/* Reads pages from lines of JSON. Each line is an object with "words", "boxes" and labels, as
 * `cleave-master words` prints it; "file" names the file of the page. Other keys are skipped, or
 * kept as text if no labels are read. Zero-initialise, then set path, text, len and label_kind;
 * release with clv_page_reader_done. `words` and `names` hold offsets in `line_texts`; -1: no
 * label. */
typedef struct clv_page_reader {
  const char *path, *text; /* `text` ends in a NUL that `len` does not count */
  size_t len;
  clv_page_label_kind label_kind;

  size_t at, line;      /* offset of the next line; number of lines before it */
  clv_bytes line_texts; /* words and labels of the line, each with its NUL */
  clv_bytes last_text;  /* the text that was read last */
  /* label, file and other members of the page, as in clv_labelled_page */
  clv_bytes label, file, other_members;
  clv_ids words, names, boxes; /* words and names: offsets in `line_texts` */
  clv_page_word *word_list;    /* [cap] words of the page that was read last */
  const char **labels;         /* [cap] labels of the words of the page that was read last */
  size_t cap;
  char location[256];
} clv_page_reader;

void clv_page_reader_done(clv_page_reader *l);
/* Reads the next page. *ret_has_more false: all pages have been read. CLV_INVALID: the line is not
 * valid; the message names line and column. */
clv_code clv_page_reader_next(clv_page_reader *l, clv_labelled_page *ret, bool *ret_has_more,
                              clv_err *err) CLV_USE_RESULT;

/* ---- copies of pages for predictions (kept_pages.c) ------------------------------------------ */

/* Copies of pages, for predictions. Zero-initialise; release with clv_kept_pages_done. */
typedef struct clv_kept_pages {
  clv_kept_page *pages; /* [n] the copies */
  size_t n, cap, bytes; /* bytes: of all copies together */
} clv_kept_pages;

void clv_kept_pages_done(clv_kept_pages *k);
/* Adds a copy of the page. first_record, n_windows: index of the page's first record, and number of
 * its records. CLV_EXHAUSTED: all copies together would have more than max_bytes. */
clv_code clv_kept_pages_add(clv_kept_pages *k, const clv_labelled_page *p, size_t first_record,
                            size_t n_windows, size_t max_bytes, clv_err *err) CLV_USE_RESULT;

/* ---- windows of pages (pages.c) -------------------------------------------------------------- */

typedef struct clv_page_set {
  /* i32: [n, S] token ids, [n, S, 4] boxes, [n] lengths of the windows */
  clv_tensor *ids, *boxes, *lengths;
  /* [n, S] labels of words, or [n] labels of pages, i64; NULL: no labels */
  clv_tensor *labels;
  clv_bytes groups; /* [n] int64_t group of each window: number of its file, or of its page */
  clv_kept_pages kept_pages; /* copies of the pages, for predictions; otherwise empty */
  /* [n, S] i32: word of each token (clv_dataset_token_word_indices); NULL: pages are not kept */
  clv_tensor *token_words;
  clv_name_table names;
  char **classes; /* [names.n] names of the classes */
  clv_page_counts counts;
  clv_token_info token_info;
  clv_broken_records broken;
} clv_page_set;

void clv_page_set_free(clv_page_set *p);
clv_code clv_page_set_open(const clv_dataset_options *o, clv_page_set **ret,
                           clv_err *err) CLV_USE_RESULT;

/* Collects the windows of pages. Zero-initialise, then call clv_page_rows_open, clv_page_rows_add
 * for each page, clv_page_rows_take, and clv_page_rows_done. */
typedef struct clv_page_rows {
  clv_text_rows tokens; /* has the tokenizer and the special tokens, but no rows */
  clv_window_options window;
  clv_page_label_kind label_kind;
  bool groups_by_file;   /* each file is a group; false: each page is one */
  bool keeps_pages;      /* keep the pages, and store word indexes in `labels` */
  int64_t ignored_label; /* label of a position that has no label */
  size_t max_bytes;
  clv_ids ids, boxes, lengths, labels; /* lists that clv_page_rows_take makes tensors from */
  clv_bytes groups;
  clv_kept_pages kept_pages;
  clv_name_table names;
  clv_page_counts counts;
} clv_page_rows;

clv_code clv_page_rows_open(clv_page_rows *r, const clv_dataset_options *o,
                            clv_err *err) CLV_USE_RESULT;
void clv_page_rows_done(clv_page_rows *r);
/* Adds the windows of a page. Errors begin with page->location. */
clv_code clv_page_rows_add(clv_page_rows *r, const clv_labelled_page *page,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_page_rows_take(clv_page_rows *r, clv_page_set **ret, clv_err *err) CLV_USE_RESULT;

#endif
