/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_document_read: chooses the program that reads a document by its first bytes. Tesseract treats
 * a file that is not an image as a list of further files to read, so tesseract gets only files that
 * begin like an image.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/documents/documents_int.h"

/* most bytes that may precede the header of a PDF, as PDF readers allow */
enum { MAX_LEADING_BYTES = 1024 };

typedef clv_code parse_fn(const char *text, size_t len, const char *label,
                          const clv_bytes *rotations, clv_document *ret, clv_err *err);

typedef struct file_kind {
  const char *magic;
  /* most bytes that may precede the first bytes by which the kind is recognised */
  size_t max_leading_bytes;
  const char *const *rotation_args; /* command that prints the rotation of pages; NULL: none */
  const char *const *args;          /* command that prints the words */
  parse_fn *parse;
} file_kind;

static clv_code parse_tsv(const char *text, size_t len, const char *label,
                          const clv_bytes *rotations, clv_document *ret, clv_err *err) {
  (void)rotations;
  return clv_tsv_parse(text, len, label, ret, err);
}

/* -cropbox: prints only the visible part of a page. 10001: last page that pdfinfo describes, one
 * more than CLV_MAX_PAGES. */
static const char *const pdf_args[] = {"pdftotext", "-bbox",        "-cropbox", "-enc",
                                       "UTF-8",     CLV_CHILD_FILE, "-",        NULL};
static const char *const pdf_rotation_args[] = {"pdfinfo", "-f",           "1", "-l",
                                                "10001",   CLV_CHILD_FILE, NULL};
static const char *const image_args[] = {"tesseract", CLV_CHILD_FILE, "stdout", "tsv", NULL};
static const file_kind file_kinds[] = {
    {"\x89PNG\r\n\x1a\n", 0, NULL, image_args, parse_tsv},
    {"\xff\xd8\xff", 0, NULL, image_args, parse_tsv},
    {"%PDF-", MAX_LEADING_BYTES, pdf_rotation_args, pdf_args, clv_bbox_parse}};

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

static clv_code open_file(const char *path, int *ret, clv_err *err) {
  struct stat st;
  CLV_AUTO(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", path,
                    strerror(errno));
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
    return clv_fail(err, CLV_INVALID, "%s: not a regular file", path);
  *ret = fcntl(fd, F_DUPFD_CLOEXEC, 4);
  return *ret >= 0 ? CLV_OK : clv_fail(err, CLV_EXHAUSTED, "%s: %s", path, strerror(errno));
}

static clv_code find_file_kind(int fd, const char *path, const file_kind **ret, clv_err *err) {
  char head[MAX_LEADING_BYTES + 8];
  ssize_t n = pread(fd, head, sizeof head, 0);
  if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", path, strerror(errno));
  if (!n) return clv_fail(err, CLV_INVALID, "%s: the file is empty (0 bytes): copy it again", path);
  for (size_t i = 0; i < CLV_COUNT(file_kinds); i++) {
    size_t len = strlen(file_kinds[i].magic);
    *ret = &file_kinds[i];
    if (memmem(head, CLV_MIN((size_t)n, file_kinds[i].max_leading_bytes + len), file_kinds[i].magic,
               len))
      return CLV_OK;
  }
  return clv_fail(err, CLV_INVALID, "%s: not a PDF, PNG or JPEG file: convert it to one of these",
                  path);
}

static clv_code run_child(const char *const *args, int fd, const char *path,
                          const clv_child_limits *limits, clv_bytes *ret, bool *ret_no_network,
                          clv_err *err) {
  const clv_child_process child = {.args = args, .file_fd = fd, .label = path, .limits = limits};
  CLV_TRY(clv_child_process_run(&child, ret, ret_no_network, err));
  clv_bytes_add(ret, "", 0);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path) : CLV_OK;
}

clv_code clv_document_read(const char *path, const clv_child_limits *limits, clv_document *ret,
                           clv_err *err) {
  CLV_AUTO(close_fd) int fd = -1;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0}, info = {0}, rotations = {0};
  bool has_no_network = false, pdfinfo_has_no_network = true;
  const file_kind *k = NULL;
  CLV_TRY(open_file(path, &fd, err));
  CLV_TRY(find_file_kind(fd, path, &k, err));
  CLV_TRY(run_child(k->args, fd, path, limits, &out, &has_no_network, err));
  if (k->rotation_args) {
    CLV_TRY(run_child(k->rotation_args, fd, path, limits, &info, &pdfinfo_has_no_network, err));
    CLV_TRY(clv_rotations_parse(info.data, info.len, path, &rotations, err));
  }
  CLV_TRY(k->parse(out.data, out.len, path, &rotations, ret, err));
  ret->had_no_network = has_no_network && pdfinfo_has_no_network;
  return CLV_OK;
}
