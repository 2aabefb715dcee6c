/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes stamps of files (path, device, inode, size and time), by which changes are noticed
 * without reading contents.
 */
#include <sys/stat.h>

#include "master/data/data.h"
#include "master/documents/documents.h"

static clv_code append_file_stamp(void *user, const clv_found_file *f, clv_err *err) {
  clv_bytes *lines = user;
  struct stat at;
  if (stat(f->path, &at) != 0)
    return clv_fail(err, CLV_NOT_FOUND, "%s: cannot read its size and time", f->path);
  clv_bytes_printf(lines, "%s %llu %llu %lld %lld.%09ld\n", f->path, (unsigned long long)at.st_dev,
                   (unsigned long long)at.st_ino, (long long)at.st_size,
                   (long long)at.st_mtim.tv_sec, at.st_mtim.tv_nsec);
  return lines->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory for the stamp of %s", f->path)
                       : CLV_OK;
}

clv_code clv_data_list_file_stamps(const char *path, clv_bytes *lines, clv_err *err) {
  return clv_documents_walk(path, append_file_stamp, lines, err);
}
