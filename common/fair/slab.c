/* SPDX-License-Identifier: Apache-2.0
 *
 * Slabs. A record that has been given back stays in its block until it is taken again. Address
 * sanitizer reports who touches it meanwhile. In other builds that are not for release its bytes
 * are IDLE_BYTE, so that a pointer or a counter which is read there is no valid one.
 */
#include "common/fair/fair.h"

#include <stdlib.h>
#include <string.h>

#if defined __has_feature
#if __has_feature(address_sanitizer)
#define POISONS
#endif
#elif defined __SANITIZE_ADDRESS__
#define POISONS
#endif

#ifdef POISONS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { IDLE_BYTE = 0xdb };

enum { SLAB_RECORDS = 64 }; /* of a block, unless the slab says otherwise */

typedef struct slab_block {
  struct slab_block *next;
  _Alignas(16) char records[];
} slab_block;

/* Links a record that nobody has into the idle list. Its first bytes are the link. */
static void put_idle(clv_slab *s, void *record) {
  if (CLV_CHECKED) memset(record, IDLE_BYTE, s->size);
  *(void **)record = s->idle;
  s->idle = record;
  ASAN_POISON_MEMORY_REGION(record, s->size);
}

static clv_code grow(clv_pool *pool, clv_slab *s, clv_err *err) {
  size_t records = s->block ? s->block : SLAB_RECORDS;
  size_t bytes = sizeof(slab_block) + records * s->size;
  slab_block *b;
  CLV_TRY(clv_pool_charge(pool, bytes, err));
  clv_code code = clv_alloc(1, bytes, &b, err);
  if (code != CLV_OK) {
    clv_pool_discharge(pool, bytes);
    return code;
  }
  b->next = s->blocks;
  s->blocks = b;
  for (size_t i = 0; i < records; i++) put_idle(s, b->records + i * s->size);
  return CLV_OK;
}

clv_code clv_slab_take_from(clv_pool *pool, clv_slab *s, void *ret_pp, clv_err *err) {
  if (s->used == s->most)
    return clv_fail(err, CLV_EXHAUSTED, "more than %u %s in one session", s->most, s->what);
  if (!s->idle) CLV_TRY(grow(pool, s, err));
  void *record = s->idle;
  ASAN_UNPOISON_MEMORY_REGION(record, s->size);
  s->idle = *(void **)record;
  memset(record, 0, s->size);
  s->used++;
  *(void **)ret_pp = record;
  return CLV_OK;
}

void clv_slab_give(clv_slab *s, void *record) {
  put_idle(s, record);
  s->used--;
}

void clv_slab_done(clv_slab *s) {
  if (!s) return;
  for (slab_block *b = s->blocks, *next; b; b = next) {
    next = b->next;
    free(b);
  }
}

clv_slab clv_slab_of(size_t size, uint32_t most, const char *what) {
  return (clv_slab){.size = clv_align_up(size, 16), .most = most, .what = what};
}
