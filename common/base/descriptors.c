/* SPDX-License-Identifier: Apache-2.0
 *
 * Limit of open files. A program raises it at start and checks it before it dials workers.
 */
#include <fcntl.h>
#include <sys/resource.h>

#include "common/base/base.h"

enum { UNCHECKED_LIMIT = 4096 }; /* a limit above this many files is not checked */

void clv_open_files_raise(void) {
  struct rlimit file_limit;
  if (getrlimit(RLIMIT_NOFILE, &file_limit) != 0 || file_limit.rlim_cur == file_limit.rlim_max)
    return;
  file_limit.rlim_cur = file_limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &file_limit);
}

clv_code clv_open_files_check(unsigned n, clv_err *err) {
  struct rlimit file_limit;
  unsigned n_open = 0;
  if (getrlimit(RLIMIT_NOFILE, &file_limit) != 0 || file_limit.rlim_cur > UNCHECKED_LIMIT)
    return CLV_OK;
  unsigned limit = (unsigned)file_limit.rlim_cur;
  for (unsigned fd = 0; fd < limit; fd++) n_open += fcntl((int)fd, F_GETFD) != -1;
  if (limit - n_open >= n) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "this process may have %u files open, has %u and needs %u more for its workers: "
                  "raise the limit, as with `ulimit -n 1024` or LimitNOFILE= of its unit",
                  limit, n_open, n);
}
