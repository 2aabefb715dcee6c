/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the text that Prometheus reads: rows, labels, numbers, histograms.
 * tests/net/operations/test_metrics.py checks the text with Prometheus's own promtool.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/metrics/metrics.h"

typedef struct metric_values {
  double seconds, byte_count;
  const clv_histogram *h;
  const char *label;
} metric_values;

static void put_label(clv_metrics_out *out, const void *n) {
  const clv_metric_label labels[] = {{"kind", ((const metric_values *)n)->label}, {"other", "x"}};
  clv_metric_sample(out, 1, labels, 2);
  clv_metric_sample(out, 2, labels + 1, 1);
}

static void put_nothing(clv_metrics_out *out, const void *n) { (void)out, (void)n; }

static void put_histogram(clv_metrics_out *out, const void *n) {
  clv_metric_histogram(out, ((const metric_values *)n)->h, NULL, 0);
}

static void put_labelled_histogram(clv_metrics_out *out, const void *n) {
  clv_metric_histogram(out, ((const metric_values *)n)->h, &(clv_metric_label){"at", "w1"}, 1);
}

static void assert_text(const clv_metric *table, size_t n, const metric_values *values,
                        const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_metrics_write(table, n, values, &out);
  assert_false(out.failed);
  assert_string_equal(out.data ? out.data : "", text);
}

static void metric_has_help_type_and_value_lines(void **state) {
  (void)state;
  static const clv_metric table[] = {
      {"a_seconds_total", CLV_COUNTER, "seconds", "Time\\of a\nthing.",
       offsetof(metric_values, seconds), NULL, NULL},
      {"none", CLV_GAUGE, "", "Is left out.", 0, put_nothing, NULL},
      {"b_bytes", CLV_GAUGE, "bytes", "Size \"of\" b.", offsetof(metric_values, byte_count), NULL,
       NULL}};
  assert_text(table, 3, &(metric_values){.seconds = 1.5, .byte_count = 1e15},
              "# HELP a_seconds_total Time\\\\of a\\nthing.\n# TYPE a_seconds_total counter\n"
              "a_seconds_total 1.5\n"
              "# HELP b_bytes Size \"of\" b.\n# TYPE b_bytes gauge\nb_bytes 1e+15\n");
}

static void renamed_metric_is_written_under_both_names(void **state) {
  (void)state;
  static const clv_metric table[] = {{.name = "new_total",
                                      .old_name = "old_total",
                                      .kind = CLV_COUNTER,
                                      .unit = "",
                                      .help = "Things.",
                                      .at = offsetof(metric_values, seconds)},
                                     {.name = "none",
                                      .old_name = "old_none",
                                      .kind = CLV_GAUGE,
                                      .unit = "",
                                      .help = "Is left out.",
                                      .write = put_nothing}};
  assert_text(table, 2, &(metric_values){.seconds = 3},
              "# HELP new_total Things.\n# TYPE new_total counter\nnew_total 3\n"
              "# HELP old_total Old name of new_total; the next version leaves it out.\n"
              "# TYPE old_total counter\nold_total 3\n");
}

static void printed_numbers_read_back_exactly(void **state) {
  (void)state;
  static const clv_metric row = {"x",  CLV_GAUGE, "", "X.", offsetof(metric_values, seconds),
                                 NULL, NULL};
  static const struct {
    double value;
    const char *text;
  } cases[] = {{0, "x 0\n"},           {123456789012, "x 123456789012\n"},
               {0.1, "x 0.1\n"},       {-1, "x -1\n"},
               {NAN, "x NaN\n"},       {INFINITY, "x +Inf\n"},
               {-INFINITY, "x -Inf\n"}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    clv_metrics_write(&row, 1, &(metric_values){.seconds = cases[i].value}, &out);
    assert_string_equal(strstr(out.data, "gauge\n") + 6, cases[i].text);
  }
  for (int i = 0; i < 1000; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    double v = (double)rand() / (double)(rand() + 1) * pow(10, rand() % 60 - 30);
    clv_metrics_write(&row, 1, &(metric_values){.seconds = v}, &out);
    double parsed = strtod(strstr(out.data, "gauge\n") + 8, NULL);
    assert_memory_equal(&v, &parsed, sizeof v);
  }
}

static void label_values_are_escaped(void **state) {
  (void)state;
  static const clv_metric row = {"x", CLV_GAUGE, "", "X.", 0, put_label, NULL};
  assert_text(&row, 1, &(metric_values){.label = "plain"},
              "# HELP x X.\n# TYPE x gauge\nx{kind=\"plain\",other=\"x\"} 1\nx{other=\"x\"} 2\n");
  assert_text(&row, 1, &(metric_values){.label = "a\"} 7\nb{c=\"\\"},
              "# HELP x X.\n# TYPE x gauge\nx{kind=\"a\\\"} 7\\nb{c=\\\"\\\\\",other=\"x\"} 1\n"
              "x{other=\"x\"} 2\n");
  assert_text(&row, 1, &(metric_values){.label = "\x01\x7f\xc3\xa4\t"},
              "# HELP x X.\n# TYPE x gauge\nx{kind=\"?????\",other=\"x\"} 1\nx{other=\"x\"} 2\n");
}

static void long_label_values_are_truncated(void **state) {
  (void)state;
  static const clv_metric row = {"x", CLV_GAUGE, "", "X.", 0, put_label, NULL};
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  char text[100000];
  memset(text, '\\', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  clv_metrics_write(&row, 1, &(metric_values){.label = text}, &out);
  const char *label_start = strchr(out.data, '"') + 1;
  assert_int_equal(strchr(label_start, '"') - label_start, 2 * CLV_METRIC_LABEL);
}

static void histogram_buckets_are_cumulative(void **state) {
  (void)state;
  static const double bounds[] = {0.1, 1};
  static const clv_metric rows[] = {
      {"h_seconds", CLV_HISTOGRAM, "seconds", "H.", 0, put_histogram, NULL},
      {"l", CLV_HISTOGRAM, "", "L.", 0, put_labelled_histogram, NULL}};
  clv_histogram h = {.bounds = bounds, .n_bounds = 2};
  const double values[] = {0.05, 0.1, 0.5, 1.0, 30, 1e9};
  for (size_t i = 0; i < CLV_COUNT(values); i++) clv_histogram_add(&h, values[i]);
  assert_text(rows, 1, &(metric_values){.h = &h},
              "# HELP h_seconds H.\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"0.1\"} 2\n"
              "h_seconds_bucket{le=\"1\"} 4\nh_seconds_bucket{le=\"+Inf\"} 6\n"
              "h_seconds_sum 1000000031.65\nh_seconds_count 6\n");
  assert_text(rows + 1, 1, &(metric_values){.h = &h},
              "# HELP l L.\n# TYPE l histogram\nl_bucket{at=\"w1\",le=\"0.1\"} 2\n"
              "l_bucket{at=\"w1\",le=\"1\"} 4\nl_bucket{at=\"w1\",le=\"+Inf\"} 6\n"
              "l_sum{at=\"w1\"} 1000000031.65\nl_count{at=\"w1\"} 6\n");
}

static double read_value(const char *text, const char *name) {
  const char *at = text;
  size_t len = strlen(name);
  while ((at = strstr(at, name)) != NULL && !(at > text && at[-1] == '\n' && at[len] == ' ')) at++;
  return at ? strtod(at + len, NULL) : -1;
}

static void process_metrics_have_plausible_values(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_metrics_process("a-program", &out);
  assert_non_null(strstr(out.data, "cleave_build_info{program=\"a-program\",version=\""));
  double now = (double)clv_wall_ms() / 1e3;
  assert_true(read_value(out.data, "process_resident_memory_bytes") > 100000);
  assert_true(read_value(out.data, "process_open_fds") >= 3);
  assert_true(read_value(out.data, "process_open_fds") < read_value(out.data, "process_max_fds"));
  assert_true(read_value(out.data, "process_threads") == 1);
  assert_true(fabs(read_value(out.data, "process_start_time_seconds") - now) < 60);
  assert_true(read_value(out.data, "process_cpu_seconds_total") >= 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(metric_has_help_type_and_value_lines),
      cmocka_unit_test(renamed_metric_is_written_under_both_names),
      cmocka_unit_test(printed_numbers_read_back_exactly),
      cmocka_unit_test(label_values_are_escaped),
      cmocka_unit_test(long_label_values_are_truncated),
      cmocka_unit_test(histogram_buckets_are_cumulative),
      cmocka_unit_test(process_metrics_have_plausible_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
