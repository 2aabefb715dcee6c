/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs one use of the simulated device, wrong or right: plants NAME SEED. The simulation must end
 * the process with a report of the fault if the use is wrong; otherwise the exit code is 0.
 * tests/gpu/plants/test_plants.py has the report that is expected for each fault.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/plants/plants_int.h"
#include "tests/gpu/sim.h"

static const clv_vendor *v;
/* first_stream, second_stream: streams of the first device; other_device_stream: stream of the
 * second device */
static clv_gpu first_stream, second_stream, other_device_stream = {.device = 1};
/* x and y: memory of the first device; peer_memory: memory of the second device */
static float *x, *y, *peer_memory;
static float *host_memory; /* page-locked host memory */
static clv_err err;

enum { BYTES = PLANT_N * sizeof(float) };

static void must(clv_code code) {
  if (code == CLV_OK) return;
  fprintf(stderr, "refused: %s\n", err.text);
  exit(3);
}

static void *take_memory(const clv_gpu *g) {
  void *p;
  must(v->allocate(g->stream, BYTES, &p, &err));
  return p;
}

static void open_streams(uint64_t seed) {
  v = clv_sim_make_vendor(&(clv_sim_options){.seed = seed, .n_devices = 2});
  first_stream.vendor = second_stream.vendor = other_device_stream.vendor = v;
  must(v->stream_new(0, false, &first_stream.stream, &err));
  must(v->stream_new(0, false, &second_stream.stream, &err));
  must(v->host_allocate(BYTES, (void **)&host_memory, &err));
  x = take_memory(&first_stream);
  y = take_memory(&first_stream);
  must(v->stream_finish(first_stream.stream, &err));
  must(v->stream_new(1, false, &other_device_stream.stream, &err));
  peer_memory = take_memory(&other_device_stream);
  must(v->stream_finish(other_device_stream.stream, &err));
}

static void wait_for_all_streams(void) {
  must(v->stream_finish(first_stream.stream, &err));
  must(v->stream_finish(second_stream.stream, &err));
  must(v->stream_finish(other_device_stream.stream, &err));
}

/* Makes all later work of the second stream wait for the work that is now enqueued on the first. */
static void order_stream_after(const clv_gpu *first, const clv_gpu *second) {
  clv_cuda_event *e;
  must(v->event_new(first->device, false, &e, &err));
  must(v->event_record(e, first->stream, &err));
  must(v->stream_wait(second->stream, e, &err));
  v->event_free(e);
}

static void order_second_after_first(void) { order_stream_after(&first_stream, &second_stream); }

/* Copies x of the first device to the second one's memory, on the given stream. */
static void copy_to_second_device(const clv_gpu *g) {
  must(v->copy_peer(g->stream, peer_memory, 1, x, 0, BYTES, &err)); /* planted: free_source_early */
}

/* ---- wrong uses of the device, which must be detected ---------------------------------------- */

static void omit_event(void) {
  must(plant_write(&first_stream, x, &err));
  must(plant_add(&second_stream, x, y, &err));
}

/* Fault: like omit_event, but x had values before. So the fault shows only by the missing order of
 * the two streams, and not by a read of undefined memory. */
static void read_old_values(void) {
  must(plant_write(&first_stream, x, &err));
  must(v->stream_finish(first_stream.stream, &err));
  omit_event();
}

static void read_without_barrier(void) {
  must(plant_write(&first_stream, y, &err));
  must(plant_reverse(&first_stream, y, false, &err));
}

static void pass_host_pointer(void) { must(plant_add(&first_stream, host_memory, y, &err)); }
static void pass_nested_host_pointer(void) {
  must(plant_add_nested(&first_stream, (plant_list){.x = host_memory, .y = y}, &err));
}

static void read_device_memory_on_host(void) {
  must(plant_write(&first_stream, x, &err));
  wait_for_all_streams();
  printf("%g\n", (double)x[0]); /* planted: read_device_memory_on_host */
}

static void free_in_use_memory(void) {
  must(plant_write(&second_stream, x, &err));
  v->free(first_stream.stream, x);
}

static void use_after_free(void) {
  must(plant_write(&first_stream, x, &err));
  v->free(first_stream.stream, x);
  must(plant_add(&first_stream, x, y, &err));
}

static void read_undefined(void) { must(plant_add(&first_stream, x, y, &err)); }
static void write_behind_end(void) { must(plant_write_behind(&first_stream, y, &err)); }
static void write_misaligned_value(void) { must(plant_write_misaligned(&first_stream, y, &err)); }
static void diverge_at_barrier(void) { must(plant_diverge(&first_stream, y, &err)); }

static void race_between_blocks(void) {
  must(v->fill(first_stream.stream, y, 0, BYTES, &err));
  must(plant_racing_sums(&first_stream, y, &err));
}

static void copy_pageable_memory(void) {
  static float own[PLANT_N];
  must(v->put(first_stream.stream, x, own, BYTES, &err)); /* planted: copy_pageable_memory */
}

static void change_memory_during_copy(void) {
  must(v->put(first_stream.stream, x, host_memory, BYTES, &err));
  host_memory[0] = 1; /* planted: change_memory_during_copy */
}

static void leak_memory(void) {
  wait_for_all_streams();
  /* seven objects are left: three streams, three blocks of device memory, one block of host
   * memory */
  exit(clv_sim_count_leaks() == 7 ? 4 : 0);
}

/* Fault: the copy does not wait for the stream that writes its source. */
static void copy_to_peer_too_early(void) {
  must(plant_write(&first_stream, x, &err));
  copy_to_second_device(&other_device_stream);
  must(plant_increase(&other_device_stream, peer_memory, &err));
}

/* Fault: as copy_to_peer_too_early, but the source was written once before, so the copy reads these
 * older values. */
static void copy_old_values(void) {
  must(plant_write(&first_stream, x, &err));
  must(v->stream_finish(first_stream.stream, &err));
  copy_to_peer_too_early();
}

/* Fault: the reader does not wait for the copy. */
static void read_before_peer_copy(void) {
  must(plant_write(&first_stream, x, &err));
  copy_to_second_device(&first_stream);
  must(plant_increase(&other_device_stream, peer_memory, &err));
}

/* Fault: the source is freed before the copy. */
static void free_source_early(void) {
  must(plant_write(&first_stream, x, &err));
  order_stream_after(&first_stream, &other_device_stream);
  copy_to_second_device(&other_device_stream);
  v->free(first_stream.stream, x);
}

/* Fault: the source is overwritten before the copy. */
static void overwrite_source_early(void) {
  must(plant_write(&first_stream, x, &err));
  order_stream_after(&first_stream, &other_device_stream);
  copy_to_second_device(&other_device_stream);
  must(plant_write(&first_stream, x, &err));
}

/* ---- right uses of the device, which must pass ----------------------------------------------- */

static void run_without_fault(void) {
  must(plant_write(&first_stream, x, &err));
  order_second_after_first();
  must(plant_add(&second_stream, x, y, &err));
  must(plant_reverse(&second_stream, y, true, &err));
  must(plant_add_nested(&second_stream, (plant_list){.x = y, .y = x}, &err));
  must(v->get(second_stream.stream, host_memory, x, BYTES, &err));
  must(v->stream_finish(second_stream.stream, &err));
  if (host_memory[0] != 3) exit(5);
  order_stream_after(&second_stream, &other_device_stream);
  copy_to_second_device(&other_device_stream);
  order_stream_after(&other_device_stream, &second_stream);
  must(plant_increase(&other_device_stream, peer_memory, &err));
  must(v->get(other_device_stream.stream, host_memory, peer_memory, BYTES, &err));
  must(v->stream_finish(other_device_stream.stream, &err));
  if (host_memory[0] != 4) exit(5);
  host_memory[0] = 7;
  must(v->put(first_stream.stream, x, host_memory, BYTES, &err));
  wait_for_all_streams();
  host_memory[0] = 8;
  v->free(first_stream.stream, x);
  v->free(first_stream.stream, y);
  v->free(other_device_stream.stream, peer_memory);
  v->host_free(host_memory);
  v->stream_free(first_stream.stream);
  v->stream_free(second_stream.stream);
  v->stream_free(other_device_stream.stream);
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
