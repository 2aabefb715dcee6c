/* SPDX-License-Identifier: Apache-2.0
 *
 * A document by its first bytes. Tesseract takes a file that is no image for a list of other files
 * to read, so what it is given begins as an image does.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/documents/documents_int.h"

typedef struct kind {
  const char *magic;
  const char *const *args;
  clv_code (*parse)(const char *text, size_t len, const char *label, clv_document *ret,
                    clv_err *err);
} kind;

static const char *const of_pdf[] = {"pdftotext",    "-bbox", "-enc", "UTF-8",
                                     CLV_CHILD_FILE, "-",     NULL};
static const char *const of_image[] = {"tesseract", CLV_CHILD_FILE, "stdout", "tsv", NULL};
static const kind kinds[] = {{"%PDF-", of_pdf, clv_bbox_parse},
                             {"\x89PNG\r\n\x1a\n", of_image, clv_tsv_parse},
                             {"\xff\xd8\xff", of_image, clv_tsv_parse}};

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

static const kind *kind_of(int fd) {
  char head[8] = "";
  ssize_t n = pread(fd, head, sizeof head, 0);
  for (size_t i = 0; i < CLV_COUNT(kinds); i++)
    if (n >= (ssize_t)strlen(kinds[i].magic) &&
        memcmp(head, kinds[i].magic, strlen(kinds[i].magic)) == 0)
      return &kinds[i];
  return NULL;
}

clv_code clv_document_read(const char *path, const clv_child_limits *limits, clv_document *ret,
                           clv_err *err) {
  CLV_AUTO(close_fd) int fd = -1;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  bool apart = false;
  CLV_TRY(open_file(path, &fd, err));
  const kind *k = kind_of(fd);
  if (!k) return clv_fail(err, CLV_INVALID, "%s: begins as no PDF, PNG or JPEG does", path);
  const clv_child child = {.args = k->args, .file = fd, .label = path, .limits = limits};
  CLV_TRY(clv_child_run(&child, &out, &apart, err));
  CLV_TRY(k->parse(out.len ? out.data : "", out.len, path, ret, err));
  ret->apart = apart;
  return CLV_OK;
}
