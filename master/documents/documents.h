/* SPDX-License-Identifier: Apache-2.0
 *
 * documents: reads words and their boxes from PDFs (pdftotext) and from images of pages
 * (tesseract), and cuts pages into windows of tokens. A child process parses each file. It has
 * limits of time, memory and output, can read only that file, has no network if Linux permits that,
 * and is killed with its process group. Its output is parsed as untrusted data. master/data and the
 * command `words` call this folder.
 *
 * Threads: only one thread at a time may use a document. Children are waited for by process id, so
 * other children of the program are not affected.
 */
#ifndef CLEAVE_DOCUMENTS_H
#define CLEAVE_DOCUMENTS_H

#include "common/base/base.h"
#include "master/tokens/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Default limits of a child process. */
enum {
  CLV_CHILD_DEFAULT_SECONDS = 60,
  CLV_CHILD_DEFAULT_MEMORY_BYTES = 1 << 30,
  CLV_CHILD_DEFAULT_OUTPUT_BYTES = 64 << 20
};

typedef struct clv_child_limits {
  uint32_t seconds; /* limit of processor time and of wall time; 0: CLV_CHILD_DEFAULT_SECONDS */
  uint64_t max_memory_bytes; /* limit of the child's memory; 0: CLV_CHILD_DEFAULT_MEMORY_BYTES */
  uint64_t max_output_bytes; /* limit of the child's output; 0: CLV_CHILD_DEFAULT_OUTPUT_BYTES */
} clv_child_limits;

enum {
  CLV_MAX_BOX_COORDINATE = 1000,
  CLV_MAX_PAGES = 10000,
  CLV_MAX_WORDS = 1 << 20 /* most words that are read from a file */
};

/* A word and its box as in LayoutLM: thousandths of the page's width and height, from the upper
 * left corner. */
typedef struct clv_page_word {
  const char *text; /* text of the word in UTF-8, not empty */
  uint16_t x0, y0, x1, y1;
} clv_page_word;

typedef struct clv_page {
  clv_page_word *words; /* [n] words of the page */
  size_t n;
} clv_page;

typedef struct clv_document {
  clv_page *pages; /* [n] pages of the document */
  size_t n;
  bool had_no_network; /* the child processes that read the document had no network */
  void *memory;        /* words and texts, freed by clv_document_done */
} clv_document;

void clv_document_done(clv_document *d);

/* Reads a PDF, PNG or JPEG, chosen by its first bytes. All errors name the file. CLV_NOT_FOUND:
 * the file or the program that reads it is missing; CLV_INVALID: another type of file;
 * CLV_EXHAUSTED: the named limit was reached; CLV_DATA_LOSS: the program failed, the message has
 * its last line. */
clv_code clv_document_read(const char *path, const clv_child_limits *limits, clv_document *ret,
                           clv_err *err) CLV_USE_RESULT;

/* A file found by clv_documents_walk. */
typedef struct clv_found_file {
  const char *path, *name; /* path of the file; name: path relative to the folder of the walk */
  /* length of the first folder's name in `name`; 0: the file is in no sub-folder */
  size_t class_name_len;
} clv_found_file;
typedef clv_code clv_file_fn(void *user, const clv_found_file *file, clv_err *err);
/* Calls visit_file() for every file below a folder, sorted by name, or for `path` itself if it is a
 * file. Skips files and folders whose names begin with a dot. Stops at the first error. */
clv_code clv_documents_walk(const char *path, clv_file_fn *visit_file, void *user,
                            clv_err *err) CLV_USE_RESULT;

/* Parses the output of `pdfinfo -f 1 -l N`. ret[i] is 1 if page i is rotated by 90 or 270 degrees,
 * else 0; pages past the end of ret are not rotated. CLV_INVALID: a rotation is not a multiple of
 * 90. */
clv_code clv_rotations_parse(const char *text, size_t len, const char *label, clv_bytes *ret,
                             clv_err *err) CLV_USE_RESULT;

/* Parse the output of `pdftotext -bbox` and of tesseract (tsv) from memory. pdftotext rotates
 * the boxes of a page but not its size, so clv_bbox_parse swaps the size of pages marked in
 * `rotations`, which comes from clv_rotations_parse; NULL: no page is rotated. */
clv_code clv_bbox_parse(const char *text, size_t len, const char *label, const clv_bytes *rotations,
                        clv_document *ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_tsv_parse(const char *text, size_t len, const char *label, clv_document *ret,
                       clv_err *err) CLV_USE_RESULT;

/* Appends the page as members of a JSON object: "words":[...],"boxes":[...]. */
void clv_page_write_json(clv_bytes *out, const clv_page *page);

/* ---- windows of pages ------------------------------------------------------------------------ */

enum { CLV_LABEL_IGNORED = -100 };

/* How a long page is cut: windows of `width` tokens; the next window repeats the last `stride`
 * tokens. */
typedef struct clv_window_options {
  size_t width, stride;
  /* ids of the special token before a window's tokens, of the one after these tokens, and of the
   * padding token; -1: none */
  int32_t first_id, last_id, pad_id;
} clv_window_options;

/* The windows of tokens into which a page was cut. */
typedef struct clv_windows {
  size_t n, width;
  size_t n_words_without_tokens; /* words for which the tokenizer returned no token */
  int32_t *ids, *labels;         /* [n, width] token ids, and labels */
  int32_t *boxes;                /* [n, width, 4] box of each token */
  int32_t *word_indices;         /* [n, width] index of the word of each token; -1: none */
  int32_t *lengths;              /* [n] number of tokens of each window before the padding */
} clv_windows;

void clv_windows_done(clv_windows *w);

/* Cuts a page into windows. labels: [page->n], or NULL. The first token of a word has the word's
 * label, all other tokens CLV_LABEL_IGNORED. Of the tokens that two windows share, the earlier
 * window labels the first half and the later window the second half, so every word counts once and
 * has context on both sides. As in LayoutLM, the first token and pads have the box 0, 0, 0, 0, and
 * the last token 1000 four times. CLV_INVALID: the stride is not smaller than the number of the
 * page's tokens in a window. */
clv_code clv_windows_make(const clv_page *page, const int32_t *labels, const clv_tokenizer *t,
                          const clv_window_options *o, clv_windows *ret,
                          clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
