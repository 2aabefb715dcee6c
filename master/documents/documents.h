/* SPDX-License-Identifier: Apache-2.0
 *
 * documents: words and their boxes of PDFs (pdftotext) and of images of pages (tesseract). What
 * parses the file is a process of its own: it may take so much time, memory and output, has no
 * network where the kernel grants that, sees the one file, and dies with its group. What it prints
 * is parsed as anybody's.
 *
 * Threads: one at a time for a page; a child is waited for by its own number.
 */
#ifndef CLEAVE_DOCUMENTS_H
#define CLEAVE_DOCUMENTS_H

#include "common/base/base.h"
#include "master/tokens/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of one child. Zeros stand for these. */
enum { CLV_CHILD_SECONDS = 60, CLV_CHILD_MEMORY = 1 << 30, CLV_CHILD_OUTPUT = 64 << 20 };

typedef struct clv_child_limits {
  uint32_t seconds;        /* of its processor time, and of its life */
  uint64_t memory, output; /* bytes */
} clv_child_limits;

enum { CLV_BOX_MAX = 1000, CLV_MAX_PAGES = 10000, CLV_MAX_WORDS = 1 << 20 /* of a file */ };

/* A word and where it stands, as LayoutLM has it: of 1000 of the page's width and height, from the
 * upper left corner. */
typedef struct clv_page_word {
  const char *text; /* UTF-8, not empty */
  uint16_t x0, y0, x1, y1;
} clv_page_word;

typedef struct clv_page {
  clv_page_word *words; /* [n] */
  size_t n;
} clv_page;

typedef struct clv_document {
  clv_page *pages; /* [n] */
  size_t n;
  bool apart; /* its child had no network */
  void *own;
} clv_document;

void clv_document_done(clv_document *d);

/* By its first bytes: PDF, PNG or JPEG. Every error names the file: CLV_NOT_FOUND missing, or the
 * program that reads it is; CLV_INVALID no such file; CLV_EXHAUSTED a limit was reached, which is
 * named; CLV_DATA_LOSS the program failed, with its own last words. */
clv_code clv_document_read(const char *path, const clv_child_limits *limits, clv_document *ret,
                           clv_err *err) CLV_USE_RESULT;

/* Each file below a folder, sorted by name, or the one file that `path` is. Files and folders whose
 * names begin with a dot are passed by. */
typedef struct clv_found_file {
  const char *path, *name; /* name: below the folder */
  size_t class_bytes;      /* of the folder that name begins with; 0: none */
} clv_found_file;
typedef clv_code clv_file_fn(void *user, const clv_found_file *file, clv_err *err);
clv_code clv_documents_walk(const char *path, clv_file_fn *each, void *user,
                            clv_err *err) CLV_USE_RESULT;

/* Reads what `pdfinfo -f 1 -l N` prints: ret[i] is 1 where page i is turned by 90 or 270 degrees,
 * else 0 or past the end. CLV_INVALID: a page is turned by no multiple of 90. */
clv_code clv_rotations_parse(const char *text, size_t len, const char *label, clv_bytes *ret,
                             clv_err *err) CLV_USE_RESULT;

/* What the programs print, from memory: `pdftotext -bbox`, and tesseract's tsv. pdftotext turns the
 * boxes of a page and not its size: that is done here, as `turned` says, of clv_rotations_parse;
 * NULL: no page is. */
clv_code clv_bbox_parse(const char *text, size_t len, const char *label, const clv_bytes *turned,
                        clv_document *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_tsv_parse(const char *text, size_t len, const char *label, clv_document *ret,
                       clv_err *err) CLV_USE_RESULT;

/* The page as members of a JSON object: "words":[...],"boxes":[...]. */
void clv_page_write_json(clv_bytes *out, const clv_page *page);

/* ---- windows --------------------------------------------------------------------------------- */

enum { CLV_LABEL_IGNORED = -100 };

/* How long pages are cut: rows of `width` tokens, of which `stride` come again in the next one. */
typedef struct clv_window_options {
  size_t width, stride;
  int32_t first, last, pad; /* tokens; -1: none */
} clv_window_options;

/* Rows of tokens, boxes, labels and which word each is of (-1: none), as a graph with several
 * inputs takes them: ids, labels and words are [n, width], boxes [n, width, 4]. lengths: [n], how
 * many tokens of each row are no pad. no_token: words that have none. */
typedef struct clv_windows {
  size_t n, width, no_token;
  int32_t *ids, *boxes, *labels, *words, *lengths;
} clv_windows;

void clv_windows_done(clv_windows *w);

/* labels: [page->n], or NULL. The first piece of a word has its label, all else
 * CLV_LABEL_IGNORED; of what comes in two windows the former has the labels of the first half, the
 * later those of the second, so that every word counts once and has most of its surroundings. First
 * has the box 0, 0, 0, 0, last 1000 four times, as LayoutLM's; pad has
 * 0. */
clv_code clv_windows_make(const clv_page *page, const int32_t *labels, const clv_tokenizer *t,
                          const clv_window_options *o, clv_windows *ret,
                          clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
