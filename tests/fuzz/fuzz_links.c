/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the options --link and --speed. The texts are separated by NUL bytes; the first letter of
 * each says which of the two options it is for. Times, rates and factors of accepted texts must be
 * finite and in their ranges.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXTS = 16 };

static clv_remote_spec workers[] = {{.name = "w1"}, {.name = "worker-2"}, {.name = "w3"}};

static void check_estimate(const clv_link_estimate *l) {
  NEVER(!(l->latency_s >= 0 && l->latency_s <= 30 && l->bytes_per_s >= 100 &&
          l->bytes_per_s <= 1e12));
}

static void check_estimates(const clv_link_estimates *l) {
  for (size_t i = 0; i < l->n; i++) check_estimate(&l->worker_links[i]);
  for (size_t i = 0; i < l->n; i++)
    for (size_t k = i + 1; k < l->n; k++) check_estimate(&l->hops[i * l->n + k]);
  for (size_t i = 0; i <= l->n; i++) NEVER(!(l->speeds[i] >= 1e-3 && l->speeds[i] <= 1e6));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_link_estimates_freep) clv_link_estimates *l = NULL;
  CLV_AUTO(clv_freep) char *text = malloc(size + 1);
  clv_session_config config = {.workers = workers, .n_workers = CLV_COUNT(workers)};
  const char *links[MAX_TEXTS], *speeds[MAX_TEXTS];
  clv_run_options o = {.links = links, .speeds = speeds};
  clv_err err = {0};
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  text[size] = '\0';
  for (char *at = text; at < text + size; at += strlen(at) + 1) {
    if (*at == 's' && o.n_speeds < MAX_TEXTS) speeds[o.n_speeds++] = at + 1;
    if (*at == 'l' && o.n_links < MAX_TEXTS) links[o.n_links++] = at + 1;
  }
  clv_code code = clv_link_estimates_parse(&config, &o, &l, &err);
  if (code == CLV_OK) check_estimates(l);
  NEVER(code != CLV_OK && !err.text[0]);
  return 0;
}
