/* SPDX-License-Identifier: Apache-2.0
 *
 * What the readers of documents share: children under limits, and a document that grows. Stays
 * inside master/documents.
 */
#ifndef CLEAVE_DOCUMENTS_INT_H
#define CLEAVE_DOCUMENTS_INT_H

#include "master/documents/documents.h"

/* ---- children (child_process.c) -------------------------------------------------------------- */

/* Where a child finds its file: nothing in a name can be taken for an option or an address. */
#define CLV_CHILD_FILE "/dev/fd/3"

typedef struct clv_child_process {
  const char *const *args; /* the program, found in /usr/bin or /bin, and its arguments; NULL */
  int file;                /* descriptor that it reads as CLV_CHILD_FILE */
  const char *label;       /* of the file, for messages */
  const clv_child_limits *limits;
} clv_child_process;

/* What it printed on standard output. */
clv_code clv_child_process_run(const clv_child_process *c, clv_bytes *ret, bool *ret_apart,
                               clv_err *err) CLV_USE_RESULT;

/* ---- growing (document_builder.c) ------------------------------------------------------------ */

typedef struct clv_document_builder {
  clv_bytes text; /* of all words, each with its NUL */
  struct clv_built_word {
    size_t offset, page;
    uint16_t box[4];
  } * words;
  size_t n_words, cap, n_pages;
} clv_document_builder;

void clv_document_builder_done(clv_document_builder *g);
/* A word of the newest page. box: x0, y0, x1, y1 of a page of that width and height, in its units.
 * Nothing is added for a word of no characters. */
clv_code clv_document_builder_add(clv_document_builder *g, const clv_bytes *text,
                                  const double box[4], const double page[2],
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_document_builder_take(clv_document_builder *g, clv_document *ret,
                                   clv_err *err) CLV_USE_RESULT;

#endif
