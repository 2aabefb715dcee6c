/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates device memory from one region of addresses, upwards from its low end. An address is
 * never used twice; the pages of freed memory are returned to the system some time later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/gpu/sim/sim_int.h"

/* Number of bytes of freed memory that keep their pages, filled with 0xFF, so that a later read of
 * freed memory shows. */
#define MAX_KEPT_BYTES ((size_t)1 << 20)
enum { ALIGNED = 256, PAGE = 4096, GAP_BYTE = 0xC5 };

char *sim_region = (char *)(UINTPTR_MAX - SIM_REGION);
/* end of the allocated part of the region; NULL until the region is mapped */
static char *allocated_end;
static sim_block *blocks; /* allocations of device memory, sorted by address */
static size_t n_blocks, cap_blocks;
static size_t first_mapped; /* index of the first block whose pages are not yet released */
/* kept_bytes: size of the list of freed blocks whose pages are not released; oldest_freed,
 * newest_freed: ends of that list */
static size_t kept_bytes, oldest_freed, newest_freed;
static size_t used_bytes[SIM_MAX_DEVICES]; /* [device] bytes that are allocated */
/* number of calls of sim_memory_allow_access without a later sim_memory_forbid_access */
static int access_depth;
/* Protection key of the device memory: a processor feature by which each thread changes its access
 * to the memory without a system call. -1: the processor has no such keys, so the access rights of
 * the pages are changed. */
static int protection_key = -1;

/* Maps the region by a direct system call, because the sanitizers' interceptors would prepare
 * shadow memory for all of it. */
static void map_region(void) {
  long at = syscall(SYS_mmap, NULL, SIM_REGION, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, (off_t)0);
  if (at == -1) sim_report_fault("no %zu bytes of addresses", SIM_REGION);
  sim_region = allocated_end = (char *)at;
  if (!getenv("CLV_SIM_NO_KEYS")) protection_key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  if (protection_key >= 0 &&
      syscall(SYS_pkey_mprotect, at, SIM_REGION, PROT_READ | PROT_WRITE, protection_key))
    sim_report_fault("pkey_mprotect of %zu bytes failed", SIM_REGION);
  if (protection_key >= 0 && access_depth) pkey_set(protection_key, 0);
  sim_checks_map_states();
}

static char *get_page(char *p) { return p - (uintptr_t)p % PAGE; }

static void set_region_access(bool is_accessible) {
  if (protection_key >= 0) {
    pkey_set(protection_key, is_accessible ? 0 : PKEY_DISABLE_ACCESS);
    return;
  }
  int protection = is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  char *first_page = first_mapped < n_blocks ? get_page(blocks[first_mapped].p) : allocated_end;
  char *end_page = get_page(allocated_end + PAGE - 1);
  if (end_page > first_page &&
      syscall(SYS_mprotect, first_page, (size_t)(end_page - first_page), protection))
    sim_report_fault("mprotect of %zu bytes failed", (size_t)(end_page - first_page));
}

void sim_memory_allow_access(void) {
  if (access_depth++ == 0) set_region_access(true);
}

void sim_memory_forbid_access(void) {
  if (--access_depth == 0) set_region_access(false);
}

/* ---- allocations of device memory ------------------------------------------------------------ */

sim_block *sim_memory_find(const void *at) {
  const char *p = at;
  size_t low = 0, high = n_blocks; /* blocks[low - 1] begins at or before p */
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].p <= p)
      low = middle + 1;
    else
      high = middle;
  }
  sim_block *b = low ? &blocks[low - 1] : NULL;
  return b && p <= b->p + b->bytes ? b : NULL;
}

static size_t get_gap(const sim_block *b) {
  return clv_align_up(b->bytes, ALIGNED) + ALIGNED - b->bytes;
}

clv_code sim_memory_allocate(int device, size_t bytes, char **ret, clv_err *err) {
  if (!allocated_end) map_region();
  if (bytes > sim.o.memory_bytes || used_bytes[device] > sim.o.memory_bytes - bytes)
    return clv_fail(err, CLV_EXHAUSTED, "device %d has no %zu bytes left", device, bytes);
  if (n_blocks == cap_blocks) {
    cap_blocks = cap_blocks ? 2 * cap_blocks : 1024;
    blocks = realloc(blocks, cap_blocks * sizeof *blocks);
    if (!blocks) abort();
  }
  sim_block *b = &blocks[n_blocks++];
  *b = (sim_block){.p = allocated_end, .bytes = bytes, .device = device};
  sim_call_stack_capture(&b->call_stack);
  allocated_end += bytes + get_gap(b);
  if (allocated_end > sim_region + SIM_REGION)
    sim_report_fault("all %zu bytes of addresses were given", SIM_REGION);
  used_bytes[device] += bytes;
  if (access_depth) set_region_access(true);
  *ret = b->p;
  return CLV_OK;
}

void sim_memory_on_alloc(char *p) {
  sim_block *b = sim_memory_find(p);
  sim_make_undefined(p, b->bytes);
  sim_checks_set_undefined(p, b->bytes);
  memset(p + b->bytes, GAP_BYTE, get_gap(b));
  sim_poison(p + b->bytes, get_gap(b));
}

void sim_memory_free(int device, char *p) {
  sim_block *b = sim_memory_find(p);
  if (!b || b->p != p || b->device != device)
    sim_report_fault("%p is given back, and was not taken on device %d", (void *)p, device);
  if (b->is_freed_by_host) {
    fputs("cuda-sim: it was given back before, at\n", stderr);
    sim_call_stack_print(&b->free_call_stack);
    sim_report_fault("device memory is given back twice");
  }
  b->is_freed_by_host = true;
  sim_call_stack_capture(&b->free_call_stack);
  used_bytes[device] -= b->bytes;
}

static void check_gap(const sim_block *b) {
  size_t n = sim_can_poison() ? 0 : get_gap(b);
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)b->p[b->bytes + i] != GAP_BYTE) {
      fputs("cuda-sim: they were taken at\n", stderr);
      sim_call_stack_print(&b->call_stack);
      sim_report_fault("something was written %zu bytes behind the end of %zu of device memory", i,
                       b->bytes);
    }
}

/* Gives those pages that only block b uses back to the operating system. */
static void release_pages(sim_block *b) {
  char *first_page = get_page(b->p + PAGE - 1), *end_page = get_page(b->p + b->bytes + get_gap(b));
  b->are_pages_released = true;
  if (end_page <= first_page) return;
  madvise(first_page, (size_t)(end_page - first_page), MADV_DONTNEED);
  sim_checks_set_unmapped(first_page, (size_t)(end_page - first_page));
}

static void keep_freed_block(sim_block *b) {
  size_t index = (size_t)(b - blocks);
  if (kept_bytes)
    blocks[newest_freed].next_freed_block = index;
  else
    oldest_freed = index;
  newest_freed = index;
  kept_bytes += b->bytes + 1;
  while (kept_bytes > MAX_KEPT_BYTES) {
    sim_block *oldest_block = &blocks[oldest_freed];
    oldest_freed = oldest_block->next_freed_block;
    kept_bytes -= oldest_block->bytes + 1;
    release_pages(oldest_block);
  }
  while (first_mapped < n_blocks && blocks[first_mapped].are_pages_released) first_mapped++;
}

void sim_memory_on_free(char *p) {
  sim_block *b = sim_memory_find(p);
  check_gap(b);
  sim_make_undefined(p, b->bytes);
  sim_checks_set_inaccessible(p, b->bytes);
  sim_poison(p, b->bytes);
  b->is_freed_on_stream = true;
  keep_freed_block(b);
}

void sim_memory_check_copy(const void *p, const sim_call_stack *request_stack, const char *what) {
  const sim_block *b = sim_memory_is_device(p) ? sim_memory_find(p) : NULL;
  if (!b || !b->is_freed_on_stream) return;
  fputs("cuda-sim: the copy was asked for at\n", stderr);
  sim_call_stack_print(request_stack);
  fputs("cuda-sim: it was given back at\n", stderr);
  sim_call_stack_print(&b->free_call_stack);
  sim_report_fault("%s was given back before it was copied", what);
}

size_t sim_memory_get_used_bytes(int device) { return used_bytes[device]; }

void sim_memory_check(int device, const void *at, size_t bytes, const char *what) {
  const char *p = at;
  const sim_block *b = sim_memory_find(p);
  if (!sim_memory_is_device(p))
    sim_report_fault("%s is at %p, which is not device memory", what, at);
  if (!b) sim_report_fault("%s is at %p, which lies in no allocation", what, at);
  if (b->device != device)
    sim_report_fault("%s lies on device %d and is used on device %d", what, b->device, device);
  if (b->is_freed_by_host) {
    fputs("cuda-sim: it was given back at\n", stderr);
    sim_call_stack_print(&b->free_call_stack);
    sim_report_fault("%s lies in device memory that was given back", what);
  }
  if (bytes > b->bytes - (size_t)(p - b->p)) {
    fputs("cuda-sim: it was taken at\n", stderr);
    sim_call_stack_print(&b->call_stack);
    sim_report_fault("%s has %zu bytes, of which only %zu lie in its allocation of %zu", what,
                     bytes, b->bytes - (size_t)(p - b->p), b->bytes);
  }
}

/* ---- page-locked memory of the host ---------------------------------------------------------- */

typedef struct host_block {
  struct host_block *next;
  char *p;
  size_t bytes;
  sim_call_stack call_stack;
} host_block;

static host_block *host_blocks;
/* freed blocks of page-locked memory; the next allocation of the same size reuses one */
static host_block *free_host_blocks;

static host_block *find_freed_block(size_t bytes) {
  host_block **at = &free_host_blocks;
  while (*at && (*at)->bytes != bytes) at = &(*at)->next;
  host_block *b = *at;
  if (b) *at = b->next;
  return b;
}

static host_block *host_block_new(size_t bytes) {
  host_block *b = calloc(1, sizeof *b);
  if (b) b->p = aligned_alloc(64, clv_align_up(bytes ? bytes : 1, 64));
  if (!b || !b->p) abort();
  b->bytes = bytes;
  return b;
}

clv_code sim_host_allocate(size_t bytes, void **ret, clv_err *err) {
  host_block *b = find_freed_block(bytes);
  (void)err;
  if (!b) b = host_block_new(bytes);
  sim_unpoison(b->p, bytes);
  memset(b->p, 0, bytes);
  b->next = host_blocks;
  sim_call_stack_capture(&b->call_stack);
  host_blocks = b;
  *ret = b->p;
  return CLV_OK;
}

void sim_host_free(void *p) {
  host_block **at = &host_blocks;
  uint64_t n_dirty_bytes = 0;
  while (*at && (*at)->p != p) at = &(*at)->next;
  host_block *b = *at;
  if (!b) sim_report_fault("%p is given back, and was not taken as page-locked memory", p);
  if (sim_streams_are_using_host(p, b->bytes))
    sim_report_fault("page-locked memory is given back before its copy is done");
  *at = b->next;
  for (size_t i = 0; i < b->bytes; i++) n_dirty_bytes += b->p[i] != 0;
  sim.counts.dirty_pinned_bytes += n_dirty_bytes;
  memset(b->p, GAP_BYTE, b->bytes);
  sim_poison(b->p, b->bytes);
  b->next = free_host_blocks;
  free_host_blocks = b;
}

void sim_host_check(const void *at, size_t bytes, const char *what) {
  const char *p = at;
  for (const host_block *b = host_blocks; b; b = b->next)
    if (p >= b->p && p <= b->p + b->bytes && bytes <= (size_t)(b->p + b->bytes - p)) return;
  sim_report_fault("%s, %zu bytes at %p, is not page-locked memory of the host", what, bytes, at);
}

/* ---- memory that was not freed --------------------------------------------------------------- */

size_t sim_memory_count_leaks(void) {
  size_t n = 0;
  for (size_t i = first_mapped; i < n_blocks; i++) {
    if (blocks[i].is_freed_by_host) continue;
    fprintf(stderr, "cuda-sim: %zu bytes of device memory are left, taken at\n", blocks[i].bytes);
    sim_call_stack_print(&blocks[i].call_stack);
    n++;
  }
  for (const host_block *b = host_blocks; b; b = b->next, n++) {
    fprintf(stderr, "cuda-sim: %zu bytes of page-locked memory are left, taken at\n", b->bytes);
    sim_call_stack_print(&b->call_stack);
  }
  return n;
}
