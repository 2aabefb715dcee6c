/* SPDX-License-Identifier: Apache-2.0
 *
 * Uses the simulated device wrongly or rightly: plants NAME SEED. The simulation must end the
 * process with a fault for a wrong use; otherwise the exit code is 0.
 * tests/gpu/plants/test_plants.py says what each fault must be reported as.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/plants/plants_int.h"
#include "tests/gpu/sim.h"

static const clv_vendor *v;
/* one and two: streams of one device; other: a stream of the second device */
static clv_gpu one, two, other = {.device = 1};
/* x and y: memory of the first device; other_memory: memory of the second */
static float *x, *y, *other_memory;
static float *host; /* page-locked host memory */
static clv_err err;

enum { BYTES = PLANT_N * sizeof(float) };

static void ok(clv_code code) {
  if (code == CLV_OK) return;
  fprintf(stderr, "refused: %s\n", err.text);
  exit(3);
}

static void *take_memory(const clv_gpu *g) {
  void *p;
  ok(v->allocate(g->stream, BYTES, &p, &err));
  return p;
}

static void open_streams(uint64_t seed) {
  v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .n_devices = 2});
  one.vendor = two.vendor = other.vendor = v;
  ok(v->stream_new(0, false, &one.stream, &err));
  ok(v->stream_new(0, false, &two.stream, &err));
  ok(v->host_allocate(BYTES, (void **)&host, &err));
  x = take_memory(&one);
  y = take_memory(&one);
  ok(v->stream_finish(one.stream, &err));
  ok(v->stream_new(1, false, &other.stream, &err));
  other_memory = take_memory(&other);
  ok(v->stream_finish(other.stream, &err));
}

static void wait_for_all_streams(void) {
  ok(v->stream_finish(one.stream, &err));
  ok(v->stream_finish(two.stream, &err));
  ok(v->stream_finish(other.stream, &err));
}

/* Makes work that is enqueued on the second stream from now on run after the present work of the
 * first stream. */
static void order_stream_after(const clv_gpu *first, const clv_gpu *second) {
  clv_cuda_event *e;
  ok(v->event_new(first->device, false, &e, &err));
  ok(v->event_record(e, first->stream, &err));
  ok(v->stream_wait(second->stream, e, &err));
  v->event_free(e);
}

static void order_second_after_first(void) { order_stream_after(&one, &two); }

/* Copies x of the first device to the second one's memory, on the given stream. */
static void copy_to_second_device(const clv_gpu *by) {
  ok(v->copy_peer(by->stream, other_memory, 1, x, 0, BYTES, &err)); /* planted: free_source_early */
}

/* ---- wrong uses of the device, which must be detected ---------------------------------------- */

static void omit_event(void) {
  ok(plant_write(&one, x, &err));
  ok(plant_add(&two, x, y, &err));
}

/* As omit_event, but the memory holds older values, so that a late write is not found as an
 * undefined read. */
static void read_old_values(void) {
  ok(plant_write(&one, x, &err));
  ok(v->stream_finish(one.stream, &err));
  omit_event();
}

static void read_without_barrier(void) {
  ok(plant_write(&one, y, &err));
  ok(plant_reverse(&one, y, false, &err));
}

static void pass_host_pointer(void) { ok(plant_add(&one, host, y, &err)); }
static void pass_nested_host_pointer(void) {
  ok(plant_add_nested(&one, (plant_list){.x = host, .y = y}, &err));
}

static void read_device_memory_on_host(void) {
  ok(plant_write(&one, x, &err));
  wait_for_all_streams();
  printf("%g\n", (double)x[0]); /* planted: read_device_memory_on_host */
}

static void free_in_use_memory(void) {
  ok(plant_write(&two, x, &err));
  v->free(one.stream, x);
}

static void use_after_free(void) {
  ok(plant_write(&one, x, &err));
  v->free(one.stream, x);
  ok(plant_add(&one, x, y, &err));
}

static void read_undefined(void) { ok(plant_add(&one, x, y, &err)); }
static void write_behind_end(void) { ok(plant_write_behind(&one, y, &err)); }
static void write_misaligned_value(void) { ok(plant_write_misaligned(&one, y, &err)); }
static void diverge_at_barrier(void) { ok(plant_diverge(&one, y, &err)); }

static void race_between_blocks(void) {
  ok(v->fill(one.stream, y, 0, BYTES, &err));
  ok(plant_racing_sums(&one, y, &err));
}

static void copy_pageable_memory(void) {
  static float own[PLANT_N];
  ok(v->put(one.stream, x, own, BYTES, &err)); /* planted: copy_pageable_memory */
}

static void change_memory_during_copy(void) {
  ok(v->put(one.stream, x, host, BYTES, &err));
  host[0] = 1; /* planted: change_memory_during_copy */
}

static void leak_memory(void) {
  wait_for_all_streams();
  /* seven objects are left: three streams, three blocks of device memory, one of host memory */
  exit(clv_sim_count_leaks() == 7 ? 4 : 0);
}

/* Fault: the copy does not wait for the stream that writes its source. */
static void copy_to_peer_too_early(void) {
  ok(plant_write(&one, x, &err));
  copy_to_second_device(&other);
  ok(plant_increase(&other, other_memory, &err));
}

/* Fault: as copy_to_peer_too_early, but the source was written once before, so the copy reads these
 * older values. */
static void copy_old_values(void) {
  ok(plant_write(&one, x, &err));
  ok(v->stream_finish(one.stream, &err));
  copy_to_peer_too_early();
}

/* Fault: the reader does not wait for the copy. */
static void read_before_peer_copy(void) {
  ok(plant_write(&one, x, &err));
  copy_to_second_device(&one);
  ok(plant_increase(&other, other_memory, &err));
}

/* Fault: the source is freed before the copy. */
static void free_source_early(void) {
  ok(plant_write(&one, x, &err));
  order_stream_after(&one, &other);
  copy_to_second_device(&other);
  v->free(one.stream, x);
}

/* Fault: the source is overwritten before the copy. */
static void overwrite_source_early(void) {
  ok(plant_write(&one, x, &err));
  order_stream_after(&one, &other);
  copy_to_second_device(&other);
  ok(plant_write(&one, x, &err));
}

/* ---- right uses of the device, which must pass ----------------------------------------------- */

static void run_without_fault(void) {
  ok(plant_write(&one, x, &err));
  order_second_after_first();
  ok(plant_add(&two, x, y, &err));
  ok(plant_reverse(&two, y, true, &err));
  ok(plant_add_nested(&two, (plant_list){.x = y, .y = x}, &err));
  ok(v->get(two.stream, host, x, BYTES, &err));
  ok(v->stream_finish(two.stream, &err));
  if (host[0] != 3) exit(5);
  order_stream_after(&two, &other);
  copy_to_second_device(&other);
  order_stream_after(&other, &two);
  ok(plant_increase(&other, other_memory, &err));
  ok(v->get(other.stream, host, other_memory, BYTES, &err));
  ok(v->stream_finish(other.stream, &err));
  if (host[0] != 4) exit(5);
  host[0] = 7;
  ok(v->put(one.stream, x, host, BYTES, &err));
  wait_for_all_streams();
  host[0] = 8;
  v->free(one.stream, x);
  v->free(one.stream, y);
  v->free(other.stream, other_memory);
  v->host_free(host);
  v->stream_free(one.stream);
  v->stream_free(two.stream);
  v->stream_free(other.stream);
  if (clv_sim_count_leaks()) exit(6);
  exit(0);
}

extern __attribute__((weak)) void __tsan_init(void);
extern __attribute__((weak)) void __asan_init(void);

/* Prints which sanitizer this build has. */
static void print_sanitizer(void) { puts(__tsan_init ? "tsan" : __asan_init ? "asan" : "plain"); }

#define PLANT(name) \
  { #name, name }
static const struct {
  const char *name;
  void (*run_plant)(void);
} plants[] = {PLANT(run_without_fault),
              PLANT(omit_event),
              PLANT(read_old_values),
              PLANT(read_without_barrier),
              PLANT(pass_host_pointer),
              PLANT(pass_nested_host_pointer),
              PLANT(read_device_memory_on_host),
              PLANT(free_in_use_memory),
              PLANT(use_after_free),
              PLANT(read_undefined),
              PLANT(write_behind_end),
              PLANT(write_misaligned_value),
              PLANT(diverge_at_barrier),
              PLANT(race_between_blocks),
              PLANT(copy_pageable_memory),
              PLANT(change_memory_during_copy),
              PLANT(copy_to_peer_too_early),
              PLANT(copy_old_values),
              PLANT(read_before_peer_copy),
              PLANT(free_source_early),
              PLANT(overwrite_source_early),
              PLANT(leak_memory),
              PLANT(print_sanitizer)};

int main(int argc, char **argv) {
  for (size_t i = 0; argc == 3 && i < CLV_COUNT(plants); i++) {
    if (strcmp(plants[i].name, argv[1]) != 0) continue;
    open_streams(strtoull(argv[2], NULL, 10));
    plants[i].run_plant();
    wait_for_all_streams();
    return 0;
  }
  fputs("usage: plants NAME SEED\n", stderr);
  return 2;
}
