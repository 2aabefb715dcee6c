/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts pages to windows of tokens with boxes, lengths and labels, when the dataset is opened.
 * Pages come from lines of JSON, or from PDFs and images, which child processes read.
 *
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/record_lines_int.h"
#include "master/data/page_int.h"

/* ---- rows of tokens from pages --------------------------------------------------------------- */

static clv_code add_listed_names(clv_page_rows *r, const clv_page_options *o, clv_err *err) {
  int32_t number;
  for (size_t i = 0; i < o->n_labels; i++) {
    CLV_TRY(
        clv_name_table_find_or_add(&r->names, o->labels[i], strlen(o->labels[i]), &number, err));
    if ((size_t)number != i)
      return clv_fail(err, CLV_INVALID, "data.documents.labels has '%s' twice", o->labels[i]);
  }
  r->names.is_closed = o->n_labels > 0;
  return CLV_OK;
}

clv_code clv_page_rows_open(clv_page_rows *r, const clv_dataset_options *o, clv_err *err) {
  CLV_TRY(clv_text_rows_open(&r->tokens, o, err));
  r->window = (clv_window_options){.width = r->tokens.width,
                                   .stride = o->pages.stride,
                                   .first_id = r->tokens.first,
                                   .last_id = r->tokens.last,
                                   .pad_id = r->tokens.pad};
  bool has_no_labels = o->skips_labels || o->objective != CLV_OBJECTIVE_LABELS;
  r->label_kind = has_no_labels                 ? CLV_PAGES_UNLABELLED
                  : o->pages.has_label_per_page ? CLV_PAGES_PAGE_LABELS
                                                : CLV_PAGES_WORD_LABELS;
  r->keeps_pages = o->skips_labels;
  r->groups_by_file = o->reads_groups && !o->skips_labels;
  r->max_bytes = r->tokens.max_bytes;
  r->ignored_label = o->ignored_label ? *o->ignored_label : CLV_LABEL_IGNORED;
  return add_listed_names(r, &o->pages, err);
}

void clv_page_rows_done(clv_page_rows *r) {
  if (!r) return;
  clv_text_rows_done(&r->tokens);
  clv_ids_done(&r->ids);
  clv_ids_done(&r->boxes);
  clv_ids_done(&r->lengths);
  clv_ids_done(&r->labels);
  clv_bytes_done(&r->groups);
  clv_kept_pages_done(&r->kept_pages);
  clv_name_table_done(&r->names);
}

static clv_code append_ids(clv_ids *to, const int32_t *from, size_t n, clv_err *err) {
  for (size_t i = 0; i < n; i++) CLV_TRY(clv_ids_add(to, from[i], err));
  return CLV_OK;
}

static bool has_label(const clv_windows *w, size_t row) {
  for (size_t i = row * w->width; i < (row + 1) * w->width; i++)
    if (w->labels[i] != CLV_LABEL_IGNORED) return true;
  return false;
}

/* Adds a window. Skips a window without labels, because the mean loss over its labels would not be
 * defined. */
static clv_code add_window(clv_page_rows *r, const clv_windows *w, size_t row, int32_t class,
                           int64_t group, clv_err *err) {
  size_t at = row * w->width;
  bool has_word_labels = r->label_kind == CLV_PAGES_WORD_LABELS;
  if (has_word_labels && !has_label(w, row)) {
    r->counts.n_unlabelled_windows++;
    return CLV_OK;
  }
  if (r->lengths.n >= UINT32_MAX || r->ids.n >= r->max_bytes / (6 * sizeof(int32_t)))
    return clv_fail(err, CLV_EXHAUSTED, "more than %zu windows of %zu tokens", r->lengths.n,
                    w->width);
  r->counts.n_windows++;
  CLV_TRY(append_ids(&r->ids, w->ids + at, w->width, err));
  CLV_TRY(append_ids(&r->boxes, w->boxes + 4 * at, 4 * w->width, err));
  CLV_TRY(append_ids(&r->lengths, w->lengths + row, 1, err));
  clv_bytes_add(&r->groups, &group, sizeof group);
  if (r->groups.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for groups");
  if (has_word_labels || r->keeps_pages)
    return append_ids(&r->labels, w->labels + at, w->width, err);
  return r->label_kind == CLV_PAGES_PAGE_LABELS ? append_ids(&r->labels, &class, 1, err) : CLV_OK;
}

/* Finds the class number of the label of each word. Checks all names first, so that a page that is
 * skipped adds no class. */
static clv_code number_word_labels(clv_page_rows *r, const clv_labelled_page *p, int32_t *labels,
                                   clv_err *err) {
  for (size_t i = 0; i < p->page.n; i++)
    if (p->labels[i]) CLV_TRY(clv_check_class_name(p->labels[i], strlen(p->labels[i]), err));
  for (size_t i = 0; i < p->page.n; i++) {
    labels[i] = CLV_LABEL_IGNORED;
    if (p->labels[i])
      CLV_TRY(clv_name_table_find_or_add(&r->names, p->labels[i], strlen(p->labels[i]), &labels[i],
                                         err));
  }
  return CLV_OK;
}

/* Returns the labels of a page's words. If the page is kept for predictions, the label of a word is
 * its index. */
static clv_code make_page_labels(clv_page_rows *r, const clv_labelled_page *p, int32_t **ret,
                                 clv_err *err) {
  if (!p->labels && !r->keeps_pages) return CLV_OK;
  CLV_TRY(clv_alloc(p->page.n, sizeof **ret, ret, err));
  if (!r->keeps_pages) return number_word_labels(r, p, *ret, err);
  for (size_t i = 0; i < p->page.n; i++) (*ret)[i] = (int32_t)i;
  return CLV_OK;
}

static clv_code find_page_group(const clv_page_rows *r, const clv_labelled_page *p, int64_t *ret,
                                clv_err *err) {
  *ret = (int64_t)r->counts.n_pages;
  if (!r->groups_by_file) return CLV_OK;
  if (!p->file)
    return clv_fail(err, CLV_INVALID,
                    "has no 'file', and data.validation.by: group keeps the pages of a file "
                    "together: name it in every line");
  *ret = clv_group_number(p->file, strlen(p->file));
  return CLV_OK;
}

static clv_code add_page(clv_page_rows *r, const clv_labelled_page *p, clv_err *err) {
  CLV_AUTO(clv_freep) int32_t *labels = NULL;
  CLV_AUTO(clv_windows_done) clv_windows w = {0};
  int32_t class = 0;
  int64_t group;
  CLV_TRY(find_page_group(r, p, &group, err));
  CLV_TRY(make_page_labels(r, p, &labels, err));
  if (p->label)
    CLV_TRY(clv_name_table_find_or_add(&r->names, p->label, strlen(p->label), &class, err));
  CLV_TRY(clv_windows_make(&p->page, labels, r->tokens.tokenizer, &r->window, &w, err));
  r->counts.n_pages++;
  r->counts.n_words += p->page.n;
  r->counts.n_long_pages += w.n > 1;
  r->counts.n_words_without_tokens += w.n_words_without_tokens;
  if (r->keeps_pages)
    CLV_TRY(clv_kept_pages_add(&r->kept_pages, p, r->lengths.n, w.n, r->max_bytes, err));
  for (size_t i = 0; i < w.n; i++) CLV_TRY(add_window(r, &w, i, class, group, err));
  return CLV_OK;
}

clv_code clv_page_rows_add(clv_page_rows *r, const clv_labelled_page *page, clv_err *err) {
  clv_err reason;
  if (add_page(r, page, &reason) == CLV_OK) return CLV_OK;
  return clv_fail(err, reason.code, "%s: %s", page->location, reason.text);
}

/* ---- making tensors from the rows of windows ------------------------------------------------- */

static clv_code make_i32_tensor(const clv_ids *from, clv_shape shape, clv_tensor **ret,
                                clv_err *err) {
  CLV_TRY(clv_tensor_new(CLV_I32, &shape, ret, err));
  memcpy((*ret)->data, from->at, (*ret)->bytes);
  return CLV_OK;
}

static clv_code make_label_tensor(clv_page_rows *r, clv_page_set *p, clv_err *err) {
  CLV_AUTO(clv_freep) int32_t *rank = NULL;
  int64_t n = (int64_t)r->lengths.n, width = (int64_t)r->window.width;
  clv_shape shape = r->label_kind == CLV_PAGES_WORD_LABELS ? CLV_SHAPE(n, width) : CLV_SHAPE(n);
  p->names = r->names;
  r->names = (clv_name_table){0};
  CLV_TRY(clv_name_table_list(&p->names, &p->classes, &rank, err));
  CLV_TRY(clv_tensor_new(CLV_I64, &shape, &p->labels, err));
  int64_t *out = p->labels->data;
  for (size_t i = 0; i < r->labels.n; i++)
    out[i] = r->labels.at[i] < 0 ? r->ignored_label : rank[r->labels.at[i]];
  return CLV_OK;
}

static clv_code make_token_words(clv_page_rows *r, clv_page_set *p, clv_err *err) {
  p->kept_pages = r->kept_pages;
  r->kept_pages = (clv_kept_pages){0};
  return make_i32_tensor(&r->labels, CLV_SHAPE((int64_t)r->lengths.n, (int64_t)r->window.width),
                         &p->token_words, err);
}

static clv_code fill_page_set(clv_page_rows *r, clv_page_set *p, clv_err *err) {
  int64_t n = (int64_t)r->lengths.n, width = (int64_t)r->window.width;
  if (!n) CLV_TRY(clv_text_rows_check_broken(&r->tokens, err));
  if (!n && !r->counts.n_pages)
    return clv_fail(err, CLV_INVALID, "%s: has no page", r->tokens.path);
  if (!n)
    return clv_fail(err, CLV_INVALID, "%s: no window of its %zu page%s has a %s", r->tokens.path,
                    r->counts.n_pages, CLV_S(r->counts.n_pages),
                    r->label_kind == CLV_PAGES_WORD_LABELS ? "labelled word" : "word");
  p->counts = r->counts;
  p->token_info = clv_text_rows_token_info(&r->tokens);
  p->groups = r->groups;
  r->groups = (clv_bytes){0};
  p->broken = r->tokens.broken;
  r->tokens.broken = (clv_broken_records){0};
  CLV_TRY(make_i32_tensor(&r->ids, CLV_SHAPE(n, width), &p->ids, err));
  CLV_TRY(make_i32_tensor(&r->boxes, CLV_SHAPE(n, width, 4), &p->boxes, err));
  CLV_TRY(make_i32_tensor(&r->lengths, CLV_SHAPE(n), &p->lengths, err));
  if (r->keeps_pages) return make_token_words(r, p, err);
  return r->label_kind == CLV_PAGES_UNLABELLED ? CLV_OK : make_label_tensor(r, p, err);
}

clv_code clv_page_rows_take(clv_page_rows *r, clv_page_set **ret, clv_err *err) {
  clv_page_set *p = NULL;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  clv_code code = fill_page_set(r, p, err);
  if (code == CLV_OK)
    *ret = p;
  else
    clv_page_set_free(p);
  return code;
}

void clv_page_set_free(clv_page_set *p) {
  if (!p) return;
  clv_tensor_unref(p->ids);
  clv_tensor_unref(p->boxes);
  clv_tensor_unref(p->lengths);
  clv_tensor_unref(p->labels);
  clv_tensor_unref(p->token_words);
  clv_bytes_done(&p->groups);
  clv_kept_pages_done(&p->kept_pages);
  clv_name_table_done(&p->names);
  clv_broken_records_done(&p->broken);
  free(p->classes);
  free(p);
}

/* ---- reading files of pages: lines of JSON, PDFs and images ---------------------------------- */

typedef struct page_file_reader {
  clv_page_rows *rows;
  const clv_dataset_options *o;
} page_file_reader;

static bool has_suffix(const char *name, const char *suffix) {
  size_t n = strlen(name), k = strlen(suffix);
  return n > k && strcasecmp(name + n - k, suffix) == 0;
}

static clv_code read_line(page_file_reader *r, clv_page_reader *lines,
                          const clv_text_record *record, clv_err *err) {
  clv_labelled_page page;
  bool has_more;
  lines->text = record->text;
  lines->len = record->len;
  lines->at = 0;
  lines->line = record->lines_before;
  CLV_TRY(clv_page_reader_next(lines, &page, &has_more, err));
  return has_more ? clv_page_rows_add(r->rows, &page, err) : CLV_OK;
}

static clv_code read_lines(page_file_reader *r, const char *path, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  CLV_AUTO(clv_page_reader_done)
  clv_page_reader lines = {.path = path, .label_kind = r->rows->label_kind};
  clv_text_record record;
  clv_err reason;
  CLV_TRY(clv_record_lines_open(path, 0, r->rows->max_bytes, &l, err));
  for (bool has_more;;) {
    CLV_TRY(clv_record_lines_next(l, &record, &has_more, err));
    if (!has_more) return CLV_OK;
    if (read_line(r, &lines, &record, &reason) != CLV_OK)
      CLV_TRY(clv_text_rows_skip_broken(&r->rows->tokens, &reason, err));
  }
}

/* Replaces the contents of `out` by the JSON members "file" and "page" of a page, as `cleave-master
 * words` prints them. */
static clv_code format_file_and_page(clv_bytes *out, const clv_found_file *f, size_t page,
                                     clv_err *err) {
  out->len = 0;
  clv_bytes_puts(out, "\"file\":");
  clv_bytes_add_json(out, f->name);
  clv_bytes_printf(out, ",\"page\":%zu", page + 1);
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "%s: no memory for its name", f->path) : CLV_OK;
}

static clv_code read_document(page_file_reader *r, const clv_found_file *f, clv_err *err) {
  CLV_AUTO(clv_document_done) clv_document d = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes class = {0}, has_more = {0};
  clv_err reason;
  if (r->rows->label_kind == CLV_PAGES_WORD_LABELS)
    return clv_fail(err, CLV_INVALID,
                    "%s: a file like this has no labels of words: print its words with "
                    "cleave-master words, and give each line its 'labels'",
                    f->path);
  if (r->rows->label_kind == CLV_PAGES_PAGE_LABELS && !f->class_name_len)
    return clv_fail(err, CLV_INVALID, "%s: has no label: it must be in a folder of its class",
                    f->path);
  clv_bytes_add(&class, f->name, f->class_name_len);
  clv_bytes_add(&class, "", 1);
  if (class.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: no memory for its class", f->path);
  if (clv_document_read(f->path, &r->o->pages.limits, &d, &reason) != CLV_OK) {
    /* the child process that reads this file reached its limit, so the file is at fault */
    if (reason.code == CLV_EXHAUSTED) reason.code = CLV_DATA_LOSS;
    return clv_text_rows_skip_broken(&r->rows->tokens, &reason, err);
  }
  clv_labelled_page page = {.location = f->path, .file = f->name};
  if (r->rows->label_kind == CLV_PAGES_PAGE_LABELS) page.label = class.data;
  for (size_t i = 0; i < d.n; i++) {
    CLV_TRY(format_file_and_page(&has_more, f, i, err));
    page.page = d.pages[i];
    page.other_json_members = has_more.data;
    CLV_TRY(clv_page_rows_add(r->rows, &page, err));
  }
  return CLV_OK;
}

static clv_code read_file(void *user, const clv_found_file *f, clv_err *err) {
  static const char *const document_suffixes[] = {".pdf", ".png", ".jpg", ".jpeg"};
  page_file_reader *r = user;
  if (has_suffix(f->name, ".jsonl") || has_suffix(f->name, ".jsonl.gz"))
    return read_lines(r, f->path, err);
  for (size_t i = 0; i < CLV_COUNT(document_suffixes); i++)
    if (has_suffix(f->name, document_suffixes[i])) return read_document(r, f, err);
  if (strcmp(f->path, r->o->inputs_path) == 0)
    return clv_fail(err, CLV_INVALID,
                    "%s: documents come as .jsonl, also with .gz, as .pdf, .png or .jpg, or as a "
                    "folder of such files",
                    f->path);
  r->rows->counts.n_stray_files++;
  return CLV_OK;
}

clv_code clv_page_set_open(const clv_dataset_options *o, clv_page_set **ret, clv_err *err) {
  CLV_AUTO(clv_page_rows_done) clv_page_rows rows = {0};
  page_file_reader r = {&rows, o};
  CLV_TRY(clv_page_rows_open(&rows, o, err));
  CLV_TRY(clv_documents_walk(o->inputs_path, read_file, &r, err));
  return clv_page_rows_take(&rows, ret, err);
}
