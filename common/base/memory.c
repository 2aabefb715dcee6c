/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: checked sizes, allocation, cancellation hooks and growing byte strings.
 */
#include "common/base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t alloc_count;

bool clv_mul_size(size_t a, size_t b, size_t *ret) {
  size_t r;
  if (__builtin_mul_overflow(a, b, &r)) return false;
  *ret = r;
  return true;
}

bool clv_add_size(size_t a, size_t b, size_t *ret) {
  size_t r;
  if (__builtin_add_overflow(a, b, &r)) return false;
  *ret = r;
  return true;
}

size_t clv_align_up(size_t n, size_t a) { return (n + a - 1) & ~(a - 1); }

clv_code clv_alloc(size_t n, size_t size, void *ret_pp, clv_err *err) {
  size_t bytes;
  if (!clv_mul_size(n, size, &bytes))
    return clv_fail(err, CLV_EXHAUSTED, "%zu items of %zu bytes overflow", n, size);
  void *p = calloc(1, bytes ? bytes : 1);
  if (!p) return clv_fail(err, CLV_EXHAUSTED, "out of memory (%zu bytes)", bytes);
  atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
  *(void **)ret_pp = p;
  return CLV_OK;
}

/* Blocks of several large pages are allocated on large pages: kernels read activations from end to
 * end, and with small pages they wait for address translations. Only whole large pages are
 * requested, so no more memory is resident than is used. If the system refuses, small pages
 * remain. */
enum { LARGE_PAGE_BYTES = 2 << 20, MIN_BYTES_ON_LARGE_PAGES = 2 * LARGE_PAGE_BYTES };

clv_code clv_alloc_aligned(size_t bytes, void *ret_pp, clv_err *err) {
  size_t padded_bytes, alignment = bytes < MIN_BYTES_ON_LARGE_PAGES ? 64 : LARGE_PAGE_BYTES;
  if (!clv_add_size(bytes, 2 * alignment, &padded_bytes))
    return clv_fail(err, CLV_EXHAUSTED, "%zu bytes overflow", bytes);
  void *p = aligned_alloc(alignment, clv_align_up(bytes ? bytes : 1, alignment));
  if (!p) return clv_fail(err, CLV_EXHAUSTED, "out of memory (%zu bytes)", bytes);
  if (alignment == LARGE_PAGE_BYTES) (void)madvise(p, bytes / alignment * alignment, MADV_HUGEPAGE);
  atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
  *(void **)ret_pp = p;
  return CLV_OK;
}

clv_code clv_cancel_hook_check(const clv_cancel_hook *cancel_hook, clv_err *err) {
  if (!cancel_hook || !cancel_hook->should_stop(cancel_hook->user)) return CLV_OK;
  return clv_fail(err, CLV_CANCELLED, "the caller has left, or its deadline has passed");
}

enum { ZERO_PIECE_BYTES = 64 << 20 };

clv_code clv_zero_cancellable(const clv_cancel_hook *cancel_hook, void *at, size_t bytes,
                              clv_err *err) {
  for (size_t done = 0; done < bytes; done += ZERO_PIECE_BYTES) {
    CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
    memset((char *)at + done, 0, CLV_MIN(bytes - done, (size_t)ZERO_PIECE_BYTES));
  }
  return CLV_OK;
}

uint64_t clv_alloc_count(void) { return atomic_load_explicit(&alloc_count, memory_order_relaxed); }

clv_code clv_strdup(const char *text, char **ret_copy, clv_err *err) {
  size_t n = strlen(text) + 1;
  char *copy;
  CLV_TRY(clv_alloc(n, 1, &copy, err));
  memcpy(copy, text, n);
  *ret_copy = copy;
  return CLV_OK;
}

void clv_bytes_done(clv_bytes *b) {
  if (!b) return;
  free(b->data);
  *b = (clv_bytes){0};
}

static bool bytes_reserve(clv_bytes *b, size_t n_added) {
  size_t needed_cap;
  if (b->failed) return false;
  if (!clv_add_size(b->len, n_added, &needed_cap) || !clv_add_size(needed_cap, 1, &needed_cap)) {
    b->failed = true;
    return false;
  }
  if (needed_cap <= b->cap) return true;
  size_t cap =
      CLV_MAX(needed_cap, b->cap > SIZE_MAX / 2 ? needed_cap : CLV_MAX(b->cap * 2, (size_t)64));
  char *data = realloc(b->data, cap);
  if (!data) {
    b->failed = true;
    return false;
  }
  atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
  b->data = data;
  b->cap = cap;
  return true;
}

void clv_bytes_add(clv_bytes *b, const void *data, size_t len) {
  if (!bytes_reserve(b, len)) return;
  if (len) memcpy(b->data + b->len, data, len);
  b->len += len;
  b->data[b->len] = '\0';
}

void clv_bytes_puts(clv_bytes *b, const char *text) { clv_bytes_add(b, text, strlen(text)); }

void clv_bytes_printf(clv_bytes *b, const char *fmt, ...) {
  va_list ap, args_copy;
  va_start(ap, fmt);
  va_copy(args_copy, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0) b->failed = true;
  if (n >= 0 && bytes_reserve(b, (size_t)n)) {
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args_copy);
    b->len += (size_t)n;
  }
  va_end(args_copy);
}

static size_t utf8_len(const unsigned char *p) {
  uint32_t point;
  return clv_utf8_decode(p, SIZE_MAX, &point);
}

void clv_bytes_add_json(clv_bytes *b, const char *text) {
  clv_bytes_add(b, "\"", 1);
  for (const unsigned char *p = (const unsigned char *)text; *p;) {
    size_t n = utf8_len(p);
    if (*p == '"' || *p == '\\')
      clv_bytes_printf(b, "\\%c", *p);
    else if (*p < 0x20 || *p == 0x7f)
      clv_bytes_printf(b, "\\u%04x", *p);
    /* C1 control characters, which some terminals obey */
    else if (*p == 0xc2 && n == 2 && p[1] < 0xa0)
      clv_bytes_printf(b, "\\u%04x", p[1]);
    else if (n)
      clv_bytes_add(b, p, n);
    else
      clv_bytes_puts(b, "\\ufffd");
    p += n ? n : 1;
  }
  clv_bytes_add(b, "\"", 1);
}
