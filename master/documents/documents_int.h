/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the readers of documents: child processes with limits (child_process.c), and the
 * builder of a document (document_builder.c). Private to master/documents.
 */
#ifndef CLEAVE_DOCUMENTS_INT_H
#define CLEAVE_DOCUMENTS_INT_H

#include "master/documents/documents.h"

/* ---- child processes (child_process.c) ------------------------------------------------------- */

/* Path of the file in the child. A fixed path cannot be mistaken for an option or an address. */
#define CLV_CHILD_FILE "/dev/fd/3"

typedef struct clv_child_process {
  const char *const *args; /* name of the program in /usr/bin or /bin, its arguments, NULL */
  int file_fd;             /* descriptor of the file, which the child reads as CLV_CHILD_FILE */
  const char *label;       /* name of the file, for messages */
  const clv_child_limits *limits;
} clv_child_process;

/* Runs the child and waits for it. ret: its standard output. *ret_no_network: the kernel granted a
 * network namespace of its own, so the child had no network. */
clv_code clv_child_process_run(const clv_child_process *c, clv_bytes *ret, bool *ret_no_network,
                               clv_err *err) CLV_USE_RESULT;

/* ---- building a document (document_builder.c) ------------------------------------------------ */

typedef struct clv_document_builder {
  clv_bytes text; /* texts of all words, each with a NUL at its end */
  struct clv_builder_word {
    size_t offset, page;
    uint16_t box[4];
  } * words;
  size_t n_words, cap, n_pages;
} clv_document_builder;

void clv_document_builder_done(clv_document_builder *g);
/* Adds a word to the last page. box: x0, y0, x1, y1; page_size: width and height in the same units.
 * Ignores an empty word. */
clv_code clv_document_builder_add(clv_document_builder *g, const clv_bytes *text,
                                  const double box[4], const double page_size[2],
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_document_builder_take(clv_document_builder *g, clv_document *ret,
                                   clv_err *err) CLV_USE_RESULT;

#endif
