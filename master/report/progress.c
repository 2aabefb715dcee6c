/* SPDX-License-Identifier: Apache-2.0 */
#include "master/report/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct clv_reporter {
  FILE *metrics;
  uint64_t every;
  bool json, terminal, line_open;
  /* since the last printed line */
  uint64_t began_ns, steps, samples, wait_ns, step_ns, bytes_up, bytes_down;
  double loss, correct;
  bool has_accuracy;
  clv_bytes line; /* reused */
};

static bool keeps(const char *line, uint64_t keep_step) {
  const char *at = strstr(line, "\"step\":");
  return at && strtoull(at + 7, NULL, 10) <= keep_step;
}

/* The lines of steps that are in the checkpoint stay, the others will be written again. */
static clv_code trim_metrics(const char *path, uint64_t keep_step, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes old = {0}, kept = {0};
  clv_code code = clv_file_read(path, (size_t)1 << 30, &old, err);
  if (code != CLV_OK && code != CLV_NOT_FOUND) return code;
  clv_bytes_puts(&kept, "");
  for (char *at = old.data; at && *at;) {
    char *end = strchr(at, '\n');
    if (!end) break; /* a line cut short by a crash */
    if (keeps(at, keep_step)) clv_bytes_add(&kept, at, (size_t)(end + 1 - at));
    at = end + 1;
  }
  return clv_file_write_durable(path, kept.data, kept.len, 0644, err);
}

clv_code clv_reporter_open(const char *run_dir, uint64_t keep_step, uint64_t every, bool json,
                           clv_reporter **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_reporter *r;
  clv_bytes_printf(&path, "%s/metrics.jsonl", run_dir);
  CLV_TRY(trim_metrics(path.data, keep_step, err));
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  r->metrics = fopen(path.data, "ae");
  if (!r->metrics) {
    free(r);
    return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  }
  r->every = CLV_MAX(every, (uint64_t)1);
  r->json = json;
  r->terminal = !json && isatty(STDOUT_FILENO);
  r->began_ns = clv_now_ns();
  *ret = r;
  return CLV_OK;
}

static void end_status_line(clv_reporter *r) {
  if (r->line_open) putchar('\n');
  r->line_open = false;
}

void clv_reporter_close(clv_reporter *r) {
  if (!r) return;
  end_status_line(r);
  fclose(r->metrics);
  clv_bytes_done(&r->line);
  free(r);
}

static void collect(clv_reporter *r, const clv_progress *p) {
  r->steps++;
  r->samples += p->samples;
  r->wait_ns += p->wait_ns;
  r->step_ns += p->step_ns;
  r->loss += p->loss * (double)p->samples;
  r->has_accuracy = p->accuracy >= 0;
  r->correct += p->accuracy * (double)p->samples;
}

const char *clv_json_number(double v, int digits, char dst[CLV_JSON_NUMBER]) {
  if (isfinite(v))
    snprintf(dst, CLV_JSON_NUMBER, "%.*g", digits, v);
  else
    snprintf(dst, CLV_JSON_NUMBER, "null");
  return dst;
}

static void print_interval(clv_reporter *r, const clv_progress *p) {
  double seconds = (double)(clv_now_ns() - r->began_ns) / 1e9, n = (double)r->samples;
  double up = (double)(p->bytes_up - r->bytes_up) / seconds / 1e6;
  double down = (double)(p->bytes_down - r->bytes_down) / seconds / 1e6;
  double wait = r->step_ns ? 100.0 * (double)r->wait_ns / (double)r->step_ns : 0;
  char of[24] = "", accuracy[24] = "", loss[CLV_JSON_NUMBER];
  if (p->total_steps) snprintf(of, sizeof of, "/%llu", (unsigned long long)p->total_steps);
  if (r->has_accuracy) snprintf(accuracy, sizeof accuracy, "  acc %.3f", r->correct / n);
  r->line.len = 0;
  if (r->json)
    clv_bytes_printf(&r->line,
                     "{\"event\":\"progress\",\"step\":%llu,\"epoch\":%llu,\"loss\":%s,"
                     "\"samples_per_s\":%.1f,\"up_MBps\":%.3f,\"down_MBps\":%.3f,\"wait\":%.3f}",
                     (unsigned long long)p->step, (unsigned long long)p->epoch,
                     clv_json_number(r->loss / n, 6, loss), n / seconds, up, down, wait / 100);
  else
    clv_bytes_printf(
        &r->line,
        "step %llu%s  epoch %llu  loss %.4f%s  %.0f samples/s  up %.1f MB/s  down %.1f "
        "MB/s  wait %.0f%%%s",
        (unsigned long long)p->step, of, (unsigned long long)p->epoch + 1, r->loss / n, accuracy,
        n / seconds, up, down, wait, p->applied ? "" : "  SKIPPED (not finite)");
  if (r->terminal)
    printf("\r\033[K%s", r->line.data);
  else
    printf("%s\n", r->line.data);
  fflush(stdout);
  r->line_open = r->terminal;
  r->began_ns = clv_now_ns();
  r->steps = r->samples = r->wait_ns = r->step_ns = 0;
  r->loss = r->correct = 0;
  r->bytes_up = p->bytes_up;
  r->bytes_down = p->bytes_down;
}

clv_code clv_reporter_step(clv_reporter *r, const clv_progress *p, clv_err *err) {
  char loss[CLV_JSON_NUMBER], norm[CLV_JSON_NUMBER];
  r->line.len = 0;
  clv_bytes_printf(&r->line,
                   "{\"step\":%llu,\"loss\":%s,\"grad_norm\":%s,\"lr\":%.9g,\"applied\":%s",
                   (unsigned long long)p->step, clv_json_number(p->loss, 17, loss),
                   clv_json_number(p->grad_norm, 17, norm), p->lr, p->applied ? "true" : "false");
  if (p->accuracy >= 0) clv_bytes_printf(&r->line, ",\"accuracy\":%.6f", p->accuracy);
  clv_bytes_puts(&r->line, "}\n");
  if (fwrite(r->line.data, 1, r->line.len, r->metrics) != r->line.len || fflush(r->metrics) != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "metrics.jsonl: %s", strerror(errno));
  collect(r, p);
  bool last = p->total_steps && p->step == p->total_steps;
  if (r->steps >= r->every || last) print_interval(r, p);
  return CLV_OK;
}

void clv_reporter_say(clv_reporter *r, const char *text, const char *json) {
  if (r) end_status_line(r);
  printf("%s\n", r && r->json && json ? json : text);
  fflush(stdout);
}
