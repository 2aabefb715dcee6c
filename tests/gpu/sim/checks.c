/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks every load and store of kernels that are not compiled for a sanitizer. Kernels are
 * compiled with -fsanitize=kernel-address, so for each load or store the compiler calls a function
 * of this file by its name in the address sanitizer.
 *
 * A kernel may access device memory that is allocated for its device, the arrays of its block, its
 * stack and, only to read, its arguments and constants of the program. It may read only bytes that
 * have been written. For each byte of device memory, a byte in `states` holds its state.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/gpu/sim/sim_int.h"

/* States of a byte of device memory, as bits; NOTHING: not accessible. DEFINED includes the bit of
 * UNDEFINED, so that an atomic OR can change UNDEFINED to DEFINED. */
enum { NOTHING, UNDEFINED, DEFINED = 3 };

static unsigned char *states; /* [SIM_REGION] state of each byte of device memory */

#if CLV_SANITIZED
static const bool is_checked = false;
#else
static const bool is_checked = true;
#endif

void sim_checks_map_states(void) {
  if (!is_checked) return;
  states = mmap(NULL, SIM_REGION, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (states == MAP_FAILED) sim_report_fault("no %zu bytes of addresses", SIM_REGION);
}

static unsigned char *get_state_of_byte(const void *p) {
  return states + ((const char *)p - sim_region);
}

void sim_checks_set_inaccessible(const void *p, size_t bytes) {
  if (is_checked) memset(get_state_of_byte(p), NOTHING, bytes);
}

void sim_checks_set_unmapped(const void *pages, size_t bytes) {
  if (is_checked) madvise(get_state_of_byte(pages), bytes, MADV_DONTNEED);
}

void sim_checks_set_undefined(const void *p, size_t bytes) {
  if (is_checked) memset(get_state_of_byte(p), UNDEFINED, bytes);
}

void sim_checks_are_defined(const void *p, size_t bytes) {
  if (is_checked) memset(get_state_of_byte(p), DEFINED, bytes);
}

void sim_checks_copy_state(void *dst, const void *src, size_t bytes) {
  if (is_checked) memcpy(get_state_of_byte(dst), get_state_of_byte(src), bytes);
}

/* ---- functions that the compiler calls ------------------------------------------------------- */

#if !CLV_SANITIZED

static void print_place(const void *p) {
  const sim_block *b = sim_memory_find(p);
  if (!b) return;
  fprintf(stderr, "cuda-sim: it lies %zd bytes into %zu of device memory, taken at\n",
          (const char *)p - b->p, b->bytes);
  sim_call_stack_print(&b->call_stack);
}

__attribute__((noinline)) static void report_refused_access(const void *p, size_t bytes,
                                                            bool is_write) {
  const char *verb = is_write ? "writes" : "reads";
  size_t i = 0;
  if (sim_launch_is_shared(p))
    sim_report_fault("a kernel reads %zu bytes of its block that no thread has written", bytes);
  if (!sim_memory_is_device(p))
    sim_report_fault("a kernel %s %zu bytes of the host, at %p", verb, bytes, p);
  print_place(p);
  while (i < bytes && get_state_of_byte(p)[i] != NOTHING) i++;
  if (i < bytes)
    sim_report_fault("a kernel %s %zu bytes where there is no allocation, or none any more", verb,
                     bytes);
  sim_report_fault("a kernel reads %zu bytes that nothing has written", bytes);
}

static bool is_access_allowed(const char *p, size_t bytes, bool is_write) {
  if (!sim_memory_is_device(p)) return sim_launch_may_touch(p, bytes, is_write);
  unsigned char *state = get_state_of_byte(p), combined_state = DEFINED;
  for (size_t i = 0; i < bytes; i++) {
    combined_state &= is_write && state[i] ? DEFINED : state[i];
    if (is_write && state[i]) state[i] = DEFINED;
  }
  return combined_state == DEFINED;
}

__attribute__((noinline)) static void check_slowly(const void *p, size_t bytes, bool is_write) {
  if (!is_access_allowed(p, bytes, is_write)) report_refused_access(p, bytes, is_write);
}

/* Fast path for most loads and stores, whose size the compiler knows: defined device memory, the
 * stack, the arguments, or the array used last. Returns false if the slow path must decide. */
static inline bool is_certainly_allowed(const void *p, size_t bytes, bool is_write) {
  static const unsigned char all_defined[16] = {
      DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED,
      DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED, DEFINED};
  static const unsigned char all_written[16];
  if (sim_memory_is_device(p)) return memcmp(get_state_of_byte(p), all_defined, bytes) == 0;
  if (sim_place_contains(&sim_thread_stack, p, bytes)) return true;
  if (!is_write && sim_place_contains(&sim_launch_arguments, p, bytes)) return true;
  if (!sim_place_contains(&sim_last_array, p, bytes)) return false;
  if (is_write) memset(sim_get_unwritten_flag(&sim_last_array, p), 0, bytes);
  return is_write || memcmp(sim_get_unwritten_flag(&sim_last_array, p), all_written, bytes) == 0;
}

static inline void check_access(const void *p, size_t bytes, bool is_write) {
  if (!is_certainly_allowed(p, bytes, is_write)) check_slowly(p, bytes, is_write);
}

/* The compiler calls these functions for a load or a store: CHECKS(n) defines those for n bytes,
 * loadN and storeN are for any number of bytes. */
#define CHECKS(n)                                                             \
  void __asan_load##n##_noabort(const void *p);                               \
  void __asan_store##n##_noabort(const void *p);                              \
  void __asan_load##n##_noabort(const void *p) { check_access(p, n, false); } \
  void __asan_store##n##_noabort(const void *p) { check_access(p, n, true); }
CHECKS(1)
CHECKS(2)
CHECKS(4)
CHECKS(8)
CHECKS(16)

void __asan_loadN_noabort(const void *p, size_t bytes);
void __asan_storeN_noabort(const void *p, size_t bytes);
void __asan_handle_no_return(void);
void __asan_before_dynamic_init(const char *file);
void __asan_after_dynamic_init(void);

/* Checks each byte of a range by itself, unless the whole range is in one object of the host. Most
 * ranges are in one object, because they are copies of arguments. */
static void check_range_pieces(const char *p, size_t bytes, bool is_write) {
  if (!sim_memory_is_device(p) && sim_launch_may_touch(p, bytes, is_write)) return;
  for (size_t i = 0; i < bytes; i++) check_access(p + i, 1, is_write);
}

void __asan_loadN_noabort(const void *p, size_t bytes) { check_range_pieces(p, bytes, false); }
void __asan_storeN_noabort(const void *p, size_t bytes) { check_range_pieces(p, bytes, true); }
void __asan_handle_no_return(void) {}

/* Position in the source: the first members of the struct that the compiler passes to the checks of
 * -fsanitize=alignment. */
typedef struct source_place {
  const char *file_name;
  uint32_t line, column;
} source_place;

void __ubsan_handle_type_mismatch_v1(const source_place *at, const void *p);
void __ubsan_handle_type_mismatch_v1(const source_place *at, const void *p) {
  sim_report_fault("%s:%u: a value at %p, where its type does not lie", at->file_name, at->line, p);
}

void __asan_before_dynamic_init(const char *file) { (void)file; }
void __asan_after_dynamic_init(void) {}

#endif
