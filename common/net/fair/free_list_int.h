/* SPDX-License-Identifier: Apache-2.0
 *
 * Free lists of records, linked through their first bytes. Address sanitizer reports any access to
 * a record in a free list. Builds that are not for release (CLV_FILLS_FREED) fill its bytes with
 * FREED_BYTE, so that a pointer or counter read from it is invalid.
 */
#ifndef CLEAVE_FAIR_FREE_LIST_INT_H
#define CLEAVE_FAIR_FREE_LIST_INT_H

#include <stddef.h>
#include <string.h>

#if defined __has_feature
#if __has_feature(address_sanitizer)
#define CLV_HAS_POISONING
#endif
#elif defined __SANITIZE_ADDRESS__
#define CLV_HAS_POISONING
#endif

#ifdef CLV_HAS_POISONING
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { FREED_BYTE = 0xdb };

/* Adds a record of `bytes` to the front of the list. */
static inline void clv_free_list_push(void **list, void *record, size_t bytes) {
#ifdef CLV_FILLS_FREED
  memset(record, FREED_BYTE, bytes);
#endif
  *(void **)record = *list;
  *list = record;
  ASAN_POISON_MEMORY_REGION(record, bytes);
}

/* Takes the first record of a list that is not empty. The bytes of the record are undefined. */
static inline void *clv_free_list_pop(void **list, size_t bytes) {
  void *record = *list;
  ASAN_UNPOISON_MEMORY_REGION(record, bytes);
  *list = *(void **)record;
  return record;
}

#endif
