/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `words`: prints the words of documents and their boxes as JSON, one line per page or
 * per window of tokens. A file that cannot be read is reported, and the other files are still read.
 */
#include <stdio.h>
#include <string.h>

#include "master/documents/documents.h"
#include "master/master_int.h"

enum { MAX_EMPTY_PAGE_WARNINGS = 3 };

/* Progress and options of the command. */
typedef struct words_command {
  const clv_master_arguments *a;
  clv_child_limits limits;
  clv_tokenizer *tokenizer; /* NULL: the lines are pages; otherwise windows of tokens */
  clv_window_options window;
  /* true: the user was warned that the processes that read documents can use the network */
  bool has_warned;
  size_t n_files;       /* number of files read */
  size_t n_empty_pages; /* number of pages without a word */
  clv_exit_code code;
} words_command;

static void put_number_list(clv_bytes *out, const char *key, const int32_t *at, size_t n,
                            size_t row_len) {
  clv_bytes_printf(out, ",\"%s\":[", key);
  for (size_t i = 0; i < n; i++) {
    if (row_len > 1) clv_bytes_puts(out, i ? ",[" : "[");
    for (size_t k = 0; k < row_len; k++)
      clv_bytes_printf(out, "%s%d", k || (row_len == 1 && i) ? "," : "", at[i * row_len + k]);
    if (row_len > 1) clv_bytes_puts(out, "]");
  }
  clv_bytes_puts(out, "]");
}

/* Begins a JSON line with the file's name, the page number and, as the label, the first folder of
 * the file's path. */
static void put_json_head(clv_bytes *out, const clv_found_file *f, size_t page_index) {
  CLV_AUTO(clv_bytes_done) clv_bytes class = {0};
  clv_bytes_puts(out, "{\"file\":");
  clv_bytes_add_json(out, f->name);
  clv_bytes_printf(out, ",\"page\":%zu", page_index + 1);
  if (!f->class_name_len) return;
  clv_bytes_add(&class, f->name, f->class_name_len);
  clv_bytes_puts(out, ",\"label\":");
  if (!class.failed) clv_bytes_add_json(out, class.data);
}

static clv_code put_windows(clv_bytes *out, const words_command *p, const clv_found_file *f,
                            size_t page_index, const clv_page *page, clv_err *err) {
  CLV_AUTO(clv_windows_done) clv_windows w = {0};
  CLV_TRY(clv_windows_make(page, NULL, p->tokenizer, &p->window, &w, err));
  for (size_t i = 0; i < w.n; i++) {
    put_json_head(out, f, page_index);
    clv_bytes_printf(out, ",\"window\":%zu", i + 1);
    put_number_list(out, "ids", w.ids + i * w.width, w.width, 1);
    put_number_list(out, "of_word", w.word_indices + i * w.width, w.width, 1);
    put_number_list(out, "boxes", w.boxes + 4 * i * w.width, w.width, 4);
    clv_bytes_puts(out, "}\n");
  }
  return CLV_OK;
}

static clv_code put_page(const words_command *p, const clv_found_file *f, size_t page_index,
                         const clv_page *page, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (p->tokenizer) {
    CLV_TRY(put_windows(&out, p, f, page_index, page, err));
  } else {
    put_json_head(&out, f, page_index);
    clv_bytes_puts(&out, ",");
    clv_page_write_json(&out, page);
    clv_bytes_puts(&out, "}\n");
  }
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: no memory for a page", f->path);
  fwrite(out.data, 1, out.len, stdout);
  return CLV_OK;
}

/* Warns of a page without words, which is probably a scan. Prints MAX_EMPTY_PAGE_WARNINGS warnings
 * at most, because there may be thousands of such pages. */
static void warn_of_empty_page(words_command *p, const clv_found_file *f, size_t page_index) {
  if (p->n_empty_pages++ < MAX_EMPTY_PAGE_WARNINGS)
    clv_notice(
        CLV_LOG_WARN, "words",
        "%s: page %zu has no words; a scan has them in its image: pdftoppm -r 300 -png makes "
        "images of pages, and words reads those",
        f->path, page_index + 1);
}

static clv_code print_document(words_command *p, const clv_found_file *f, clv_err *err) {
  CLV_AUTO(clv_document_done) clv_document d = {0};
  CLV_TRY(clv_document_read(f->path, &p->limits, &d, err));
  if (!d.had_no_network && !p->has_warned)
    clv_notice(CLV_LOG_WARN, "words",
               "this kernel grants no network namespace: the processes that read the files could "
               "reach the network");
  p->has_warned = p->has_warned || !d.had_no_network;
  for (size_t i = 0; i < d.n; i++) {
    CLV_TRY(put_page(p, f, i, &d.pages[i], err));
    if (!d.pages[i].n) warn_of_empty_page(p, f, i);
  }
  return CLV_OK;
}

static clv_code print_file(void *user, const clv_found_file *f, clv_err *err) {
  words_command *p = user;
  p->n_files++;
  if (print_document(p, f, err) != CLV_OK) p->code = clv_exit_report(CLV_EXIT_DATA, err);
  return CLV_OK;
}

/* Returns given_id, the token id in the tokenizer file, unless it is negative. Then returns the id
 * of the token `name`; -1: there is no such token. */
static int32_t choose_token_id(const clv_tokenizer *t, int32_t given_id, const char *name) {
  return given_id < 0 ? clv_tokenizer_token_id(t, name) : given_id;
}

static clv_code set_window(words_command *p, clv_err *err) {
  const clv_master_arguments *a = p->a;
  if (!a->tokenizer) return CLV_OK;
  CLV_TRY(clv_tokenizer_open(a->tokenizer, &(clv_tokenizer_options){0}, &p->tokenizer, err));
  clv_tokenizer_end_settings ends = clv_tokenizer_get_end_settings(p->tokenizer);
  p->window = (clv_window_options){.width = a->max_tokens ? a->max_tokens : 512,
                                   .stride = a->stride,
                                   .first_id = choose_token_id(p->tokenizer, ends.before, "[CLS]"),
                                   .last_id = choose_token_id(p->tokenizer, ends.after, "[SEP]"),
                                   .pad_id = choose_token_id(p->tokenizer, ends.pad_id, "[PAD]")};
  p->window.pad_id = choose_token_id(p->tokenizer, p->window.pad_id, "<pad>");
  if (p->window.pad_id >= 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s has no token [PAD] or <pad> and no `padding`: add a token that pads windows",
                  a->tokenizer);
}

int clv_cmd_words(void *args) {
  const clv_master_arguments *a = args;
  words_command p = {.a = a, .code = CLV_EXIT_OK};
  clv_err err;
  p.limits =
      (clv_child_limits){.seconds = (uint32_t)a->seconds, .max_memory_bytes = a->memory_mib << 20};
  clv_code code = set_window(&p, &err);
  if (code == CLV_OK) code = clv_documents_walk(a->line.words[0], print_file, &p, &err);
  clv_tokenizer_free(p.tokenizer);
  if (code == CLV_OK && !p.n_files)
    code = clv_fail(&err, CLV_NOT_FOUND,
                    "%s: has no PDF, PNG or JPEG: name such a file or a folder with some",
                    a->line.words[0]);
  if (code != CLV_OK) return clv_exit_report(CLV_EXIT_DATA, &err);
  if (p.n_empty_pages > MAX_EMPTY_PAGE_WARNINGS)
    clv_notice(CLV_LOG_WARN, "words", "%zu pages have no words in all", p.n_empty_pages);
  fflush(stdout);
  return p.code;
}
