/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes schedules as text. An accepted text is written and parsed to the same schedule. A schedule
 * that the check accepts must run to its end in the simulation, whatever the costs of its parts,
 * and must be printable as a diagram.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/sched/sched.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes the costs from the input. */
static void read_costs(const uint8_t *data, size_t size, clv_sched_costs *ret) {
  memset(ret, 0, sizeof *ret);
  for (size_t s = 0; s < CLV_SCHED_STAGES && size > 0; s++) {
    uint8_t byte = data[s % size];
    ret->forward_seconds[s] = byte & 7;
    ret->input_grad_seconds[s] = byte >> 3 & 3;
    ret->weight_grad_seconds[s] = byte >> 5;
    ret->latency_seconds[s] = ret->serialise_forward_seconds[s] = byte % 5;
  }
}

static void simulate_schedule(const clv_sched *s, const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_sched_costs c;
  clv_sched_run r;
  clv_err err;
  read_costs(data, size, &c);
  NEVER(clv_sched_simulate(s, &c, true, &r, &err) != CLV_OK);
  NEVER(!isfinite(r.seconds) || r.bubble < -1e-9 || r.bubble > 1);
  clv_sched_run_clear(&r, s);
  NEVER(clv_sched_draw(s, &c, true, 40 + size % 100, NULL, &out, &err) != CLV_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL, *parsed_again = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, twice = {0};
  clv_sched_report report;
  clv_err err;
  if (clv_sched_parse("fuzz", (const char *)data, size, &s, &err) != CLV_OK) return 0;
  clv_sched_format(s, &text);
  NEVER(clv_sched_parse("again", text.data, text.len, &parsed_again, &err) != CLV_OK);
  clv_sched_format(parsed_again, &twice);
  NEVER(text.failed || twice.failed || strcmp(text.data, twice.data));
  /* A schedule with many instructions makes the simulation slow, and covers no more code than a
   * short one. */
  if ((uint64_t)s->shape.n_stages * s->shape.n_micro_batches > 1 << 16) return 0;
  if (clv_sched_check(s, &report, &err) == CLV_OK) simulate_schedule(s, data, size);
  return 0;
}
