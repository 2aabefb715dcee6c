/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the Trace Event Format that chrome://tracing and Perfetto read ("JSON Array Format" inside
 * an object). Computations of a node are complete slices ("X"), one after the other on one track.
 * Transfers of tensors are nestable asynchronous slices ("b", "e"), because several may overlap.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/report/report.h"

struct clv_trace {
  FILE *file;
  char *path;
  bool has_events; /* an event has been written, so the next one needs a comma */
  /* begin of the first slice in ns, which is time 0 of the trace; 0: no slice yet */
  uint64_t start_ns;
  uint64_t last_id; /* id of the newest transfer */
};

clv_code clv_trace_open(const char *path, clv_trace **ret, clv_err *err) {
  clv_trace *t;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->path = strdup(path);
  t->file = fopen(path, "we");
  if (!t->file || !t->path) {
    clv_code code = clv_fail(err, CLV_UNAVAILABLE, "--trace %s: %s", path, strerror(errno));
    clv_trace_free(t);
    return code;
  }
  fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t->file);
  *ret = t;
  return CLV_OK;
}

void clv_trace_free(clv_trace *t) {
  if (!t) return;
  if (t->file) fclose(t->file);
  free(t->path);
  free(t);
}

clv_code clv_trace_close(clv_trace *t, clv_err *err) {
  clv_code code = CLV_OK;
  if (!t) return CLV_OK;
  fputs("\n]}\n", t->file);
  bool has_failed = ferror(t->file);
  has_failed |= fclose(t->file) != 0;
  t->file = NULL;
  if (has_failed) code = clv_fail(err, CLV_UNAVAILABLE, "--trace %s: %s", t->path, strerror(errno));
  clv_trace_free(t);
  return code;
}

/* Returns the microseconds from t->start_ns to `ns`. The first call sets t->start_ns. */
static double to_microseconds(clv_trace *t, uint64_t ns) {
  if (!t->start_ns) t->start_ns = ns;
  return ((double)ns - (double)t->start_ns) / 1e3;
}

static void begin_event(clv_trace *t, const char *name, char phase, uint32_t node, double ts) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add_json(&text, name);
  fprintf(t->file, "%s\n{\"name\":%s,\"ph\":\"%c\",\"pid\":%u,\"tid\":0,\"ts\":%.3f",
          t->has_events ? "," : "", text.data, phase, node, ts);
  t->has_events = true;
}

void clv_trace_name_node(clv_trace *t, uint32_t node, const char *name) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_bytes_add_json(&text, name);
  begin_event(t, "process_name", 'M', node, 0);
  fprintf(t->file, ",\"args\":{\"name\":%s}}", text.data);
}

/* Writes the member "args" of a slice's event, and ends the event. */
static void write_slice_args(clv_trace *t, const clv_trace_slice *s) {
  fprintf(t->file, ",\"args\":{\"phase\":\"%s\",\"stage\":%u,\"micro_batch\":%u,\"step\":%llu",
          s->phase, s->stage, s->micro_batch, (unsigned long long)s->step);
  if (s->bytes) fprintf(t->file, ",\"bytes\":%llu", (unsigned long long)s->bytes);
  if (s->version) fprintf(t->file, ",\"weights\":%llu", (unsigned long long)s->version);
  fputs("}}", t->file);
}

void clv_trace_add_compute(clv_trace *t, const clv_trace_slice *s) {
  double ts = to_microseconds(t, s->begin_ns);
  begin_event(t, s->name, 'X', s->node, ts);
  fprintf(t->file, ",\"cat\":\"compute\",\"dur\":%.3f", to_microseconds(t, s->end_ns) - ts);
  write_slice_args(t, s);
}

void clv_trace_add_transfer(clv_trace *t, const clv_trace_slice *s) {
  uint64_t id = ++t->last_id;
  begin_event(t, s->name, 'b', s->node, to_microseconds(t, s->begin_ns));
  fprintf(t->file, ",\"cat\":\"tensor\",\"id\":%llu", (unsigned long long)id);
  write_slice_args(t, s);
  begin_event(t, s->name, 'e', s->node, to_microseconds(t, s->end_ns));
  fprintf(t->file, ",\"cat\":\"tensor\",\"id\":%llu}", (unsigned long long)id);
}
