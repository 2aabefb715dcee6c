/* SPDX-License-Identifier: Apache-2.0
 *
 * plants NAME SEED: what uses the simulated device wrongly, or rightly; ends with 0 unless that is
 * found. tests/gpu/plants/test_plants.py says what each must be found as.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/plants/plants_int.h"
#include "tests/gpu/sim.h"

static const clv_vendor *v;
static clv_gpu one, two; /* streams of one device */
static float *x, *y;     /* device memory */
static float *host;      /* page-locked */
static clv_err err;

enum { BYTES = PLANT_N * sizeof(float) };

static void ok(clv_code code) {
  if (code == CLV_OK) return;
  fprintf(stderr, "refused: %s\n", err.text);
  exit(3);
}

static void *taken(const clv_gpu *g) {
  void *p;
  ok(v->take(g->stream, BYTES, &p, &err));
  return p;
}

static void begin(uint64_t seed) {
  v = clv_sim_vendor(&(clv_sim_options){.seed = seed});
  one.vendor = two.vendor = v;
  ok(v->stream_new(0, false, &one.stream, &err));
  ok(v->stream_new(0, false, &two.stream, &err));
  ok(v->host_take(BYTES, (void **)&host, &err));
  x = taken(&one);
  y = taken(&one);
  ok(v->stream_finish(one.stream, &err));
}

static void finish(void) {
  ok(v->stream_finish(one.stream, &err));
  ok(v->stream_finish(two.stream, &err));
}

/* What stream two is asked from now on comes behind what stream one was asked. */
static void order(void) {
  clv_cuda_event *e;
  ok(v->event_new(0, false, &e, &err));
  ok(v->event_record(e, one.stream, &err));
  ok(v->stream_wait(two.stream, e, &err));
  v->event_free(e);
}

/* ---- wrong ----------------------------------------------------------------------------------- */

static void no_event(void) {
  ok(plant_write(&one, x, &err));
  ok(plant_add(&two, x, y, &err));
}

/* As above, where a late write hides nothing: memory that holds older values. */
static void no_event_over(void) {
  ok(plant_write(&one, x, &err));
  ok(v->stream_finish(one.stream, &err));
  no_event();
}

static void no_barrier(void) {
  ok(plant_write(&one, y, &err));
  ok(plant_reverse(&one, y, false, &err));
}

static void host_pointer(void) { ok(plant_add(&one, host, y, &err)); }
static void host_pointer_nested(void) {
  ok(plant_nested(&one, (plant_list){.x = host, .y = y}, &err));
}

static void device_pointer(void) {
  ok(plant_write(&one, x, &err));
  finish();
  printf("%g\n", (double)x[0]); /* planted: device_pointer */
}

static void early_give(void) {
  ok(plant_write(&two, x, &err));
  v->give(one.stream, x);
}

static void late_use(void) {
  ok(plant_write(&one, x, &err));
  v->give(one.stream, x);
  ok(plant_add(&one, x, y, &err));
}

static void uninitialised(void) { ok(plant_add(&one, x, y, &err)); }
static void behind_the_end(void) { ok(plant_behind(&one, y, &err)); }
static void across(void) { ok(plant_across(&one, y, &err)); }
static void diverging(void) { ok(plant_diverging(&one, y, &err)); }

static void blocks_race(void) {
  ok(v->fill(one.stream, y, 0, BYTES, &err));
  ok(plant_sums(&one, y, &err));
}

static void pageable(void) {
  static float own[PLANT_N];
  ok(v->put(one.stream, x, own, BYTES, &err)); /* planted: pageable */
}

static void host_changes(void) {
  ok(v->put(one.stream, x, host, BYTES, &err));
  host[0] = 1; /* planted: host_changes */
}

static void leak(void) {
  finish();
  exit(clv_sim_leaks() == 5 ? 4 : 0); /* two streams, two of the device, one of the host */
}

/* ---- right ----------------------------------------------------------------------------------- */

static void right(void) {
  ok(plant_write(&one, x, &err));
  order();
  ok(plant_add(&two, x, y, &err));
  ok(plant_reverse(&two, y, true, &err));
  ok(plant_nested(&two, (plant_list){.x = y, .y = x}, &err));
  ok(v->get(two.stream, host, x, BYTES, &err));
  ok(v->stream_finish(two.stream, &err));
  if (host[0] != 3) exit(5);
  host[0] = 7;
  ok(v->put(one.stream, x, host, BYTES, &err));
  finish();
  host[0] = 8;
  v->give(one.stream, x);
  v->give(one.stream, y);
  v->host_give(host);
  v->stream_free(one.stream);
  v->stream_free(two.stream);
  if (clv_sim_leaks()) exit(6);
  exit(0);
}

extern __attribute__((weak)) void __tsan_init(void);
extern __attribute__((weak)) void __asan_init(void);

/* Prints which build this is. */
static void build(void) { puts(__tsan_init ? "tsan" : __asan_init ? "asan" : "plain"); }

#define PLANT(name) \
  { #name, name }
static const struct {
  const char *name;
  void (*run)(void);
} plants[] = {PLANT(right),          PLANT(no_event),       PLANT(no_event_over),
              PLANT(no_barrier),     PLANT(host_pointer),   PLANT(host_pointer_nested),
              PLANT(device_pointer), PLANT(early_give),     PLANT(late_use),
              PLANT(uninitialised),  PLANT(behind_the_end), PLANT(across),
              PLANT(diverging),      PLANT(blocks_race),    PLANT(pageable),
              PLANT(host_changes),   PLANT(leak),           PLANT(build)};

int main(int argc, char **argv) {
  for (size_t i = 0; argc == 3 && i < CLV_COUNT(plants); i++) {
    if (strcmp(plants[i].name, argv[1]) != 0) continue;
    begin(strtoull(argv[2], NULL, 10));
    plants[i].run();
    finish();
    return 0;
  }
  fputs("usage: plants NAME SEED\n", stderr);
  return 2;
}
