/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the page of `report`: what it shows of a run, and that text of a run is escaped, so that it
 * cannot become markup.
 */
#include <sys/stat.h>

#include "master/page/page.h"
#include "tests/unit/scratch.h"

static clv_err err;

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

#define HOSTILE_TEXT "<script>alert(1)</script>\\\"'&\\u202e\\u0007"

/* Makes the folder of a finished run in which each text contains markup. */
static void make_run(const char *folder) {
  char path[200];
  assert_int_equal(mkdir(folder, 0700), 0);
  const char *const files[][2] = {
      {"run.json",
       "{\"format\": \"cleave-run\", \"version\": 1, \"name\": \"demo<b>\", \"session\": "
       "\"s<i>.yaml\", \"config_sha256\": \"ab\", \"earlier_attempts\": 0, \"session_id\": "
       "\"922192537d9aef99da76abe86637c2db\", \"epoch\": 2, \"best\": {\"what\": "
       "\"test\", \"step\": 2, \"loss\": 1.25, \"accuracy\": 0.75}, \"checkpoints\": "
       "[2],\n\"attempts\": [{"
       "\"status\": \"recovered\", \"code\": 5, \"text\": \"lost <w1>\", \"began_ms\": 1000, "
       "\"ended_ms\": 3000, \"host\": \"h<b>\", \"boot\": \"b\", \"pid\": 1, \"pid_start\": 1, "
       "\"from_step\": 0, \"step\": 2, \"total_steps\": 9, \"loss\": 1, \"accuracy\": null, "
       "\"look\": "
       "\"\"}]}"},
      {"metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":1.5}\n"},
      {"pace.jsonl",
       "{\"step\":1,\"samples_per_s\":10,\"wait\":0.25,\"bytes_up\":2048,\"bytes_down\":1024}\n"},
      {"evaluations.jsonl",
       "{\"step\":1,\"event\":\"validation\",\"loss\":2,\"accuracy\":0.5,\"samples\":4}\n"
       "{\"step\":2,\"event\":\"test\",\"loss\":1.25,\"accuracy\":0.75,\"samples\":4,\"scores\":{"
       "\"f1\":{\"micro\":0.75,\"macro\":0.6},\"auc\":0.875,\"classes\":[{\"name\":\"" HOSTILE_TEXT
       "\",\"precision\":1,\"recall\":0.5,\"f1\":0.6,\"auc\":0.9,\"places\":2},{\"name\":\"ill\"}],"
       "\"confusion\":[[1,2],[3,4]]},\"curves\":{\"roc\":[[0,0.5,1],[0,1,1]],\"calibration\":[[4,0."
       "3,0.25]]}}"
       "\n"},
      {"intervals.json",
       "{\"step\":2,\"event\":\"eval\",\"samples\":4,\"scores\":{\"auc\":0.875,"
       "\"intervals\":{\"auc\":[0.8125,0.9375]}}}\n"},
      {"worst_records.json", "[{\"id\":\"" HOSTILE_TEXT "\",\"loss\":3.5}]"}};
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
    write_file(path, files[i][1]);
  }
}

static clv_bytes write_page(const char *const *folders, size_t n) {
  clv_bytes page = {0};
  assert_ok(clv_page_write(folders, n, &page, &err), &err);
  return page;
}

#define ASSERT_HAS(page, text) assert_non_null(strstr((page).data, text))
#define ASSERT_LACKS(page, text) assert_null(strstr((page).data, text))

static void texts_of_a_run_are_escaped(void **state) {
  (void)state;
  make_run("evil");
  CLV_AUTO(clv_bytes_done) clv_bytes page = write_page((const char *const[]){"evil"}, 1);
  ASSERT_HAS(page, "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;??");
  ASSERT_LACKS(page, "<script");
  ASSERT_LACKS(page, "demo<b>");
  ASSERT_LACKS(page, "<i>");
  ASSERT_LACKS(page, "<w1>");
  ASSERT_LACKS(page, "\xe2\x80\xae");
  ASSERT_LACKS(page, "http:");
  ASSERT_LACKS(page, "https:");
  ASSERT_LACKS(page, " src=");
  ASSERT_LACKS(page, " href=");
  ASSERT_LACKS(page, " style=");
  ASSERT_HAS(page, "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-");
}

static void page_shows_the_results_of_the_run(void **state) {
  (void)state;
  make_run("full");
  CLV_AUTO(clv_bytes_done) clv_bytes page = write_page((const char *const[]){"full"}, 1);
  ASSERT_HAS(page, "This page shows records");
  ASSERT_HAS(
      page, "<th>auc</th><td class=\"n\">0.875<br><small>0.875 (0.8125 to 0.9375), step 2</small>");
  ASSERT_HAS(page, "<th>f1_macro</th><td class=\"n\">0.6</td>");
  /* curve of the loss, from 2.5 to 1.5 */
  ASSERT_HAS(page, "<polyline class=\"c c0\" points=\"54.0,10.0 444.0,212.0\"/>");
  ASSERT_HAS(page, "<th>ill</th><td class=\"n\">3</td><td class=\"n\">4</td>");
  ASSERT_HAS(page, "ROC");
  ASSERT_HAS(page, "Calibration");
  ASSERT_HAS(page, "</td><td class=\"n\">3.5</td>");
  ASSERT_HAS(page, "a worker was lost, and the run recovered: lost &lt;w1&gt;");
  ASSERT_HAS(page, "25.0 %");
  ASSERT_HAS(page, "There is no record: no tensor was sent.");
  ASSERT_HAS(page, "cleave-master train s&lt;i&gt;.yaml");
}

static void two_runs_are_in_one_table(void **state) {
  const char *const folders[] = {"one", "two"};
  (void)state;
  make_run("one");
  make_run("two");
  assert_int_equal(unlink("two/evaluations.jsonl"), 0);
  assert_int_equal(unlink("two/intervals.json"), 0);
  CLV_AUTO(clv_bytes_done) clv_bytes page = write_page(folders, 2);
  ASSERT_HAS(page, "<th>f1_micro</th><td class=\"n\">0.75</td><td class=\"n\">\xe2\x80\x93</td>");
}

static void damaged_files_are_refused_by_line(void **state) {
  CLV_AUTO(clv_bytes_done) clv_bytes page = {0};
  (void)state;
  make_run("bad");
  write_file("bad/evaluations.jsonl", "{\"step\":1}\n{\"step\":-1}\n");
  assert_int_equal(clv_page_write((const char *const[]){"bad"}, 1, &page, &err), CLV_DATA_LOSS);
  assert_says(&err, "bad/evaluations.jsonl:2:9");
  /* the last line is still being written */
  write_file("bad/evaluations.jsonl", "{\"step\":1}\n{\"st");
  assert_ok(clv_page_write((const char *const[]){"bad"}, 1, &page, &err), &err);
  assert_int_equal(clv_page_write((const char *const[]){"none"}, 1, &page, &err), CLV_NOT_FOUND);
  assert_says(&err, "none has no run.json");
}

/* Curves of any length are drawn with at most 1,024 points. */
static void long_curves_are_thinned_out(void **state) {
  CLV_AUTO(clv_bytes_done) clv_bytes lines = {0};
  size_t n_points = 0, n_left = 0;
  (void)state;
  make_run("long");
  for (int i = 0; i < 5000; i++)
    clv_bytes_printf(&lines, "{\"step\":%d,\"loss\":%d}\n", i + 1, i % 7);
  write_file("long/metrics.jsonl", lines.data);
  CLV_AUTO(clv_bytes_done) clv_bytes page = write_page((const char *const[]){"long"}, 1);
  const char *at = strstr(page.data, "points=\"") + strlen("points=\"");
  for (double x, y; sscanf(at, "%lf,%lf", &x, &y) == 2; at += strcspn(at, " \"") + 1, n_points++)
    n_left += x < (54 + 444) / 2.0;
  assert_in_range(n_points, 512, 1024);
  /* half of the points are in the left half of the drawing, so the points are equally spaced */
  assert_in_range(2 * n_left, n_points - 4, n_points + 4);
}

static int setup(void **state) { return scratch_setup(state) != 0 ? -1 : chdir(scratch); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_of_a_run_are_escaped),
      cmocka_unit_test(page_shows_the_results_of_the_run),
      cmocka_unit_test(two_runs_are_in_one_table),
      cmocka_unit_test(damaged_files_are_refused_by_line),
      cmocka_unit_test(long_curves_are_thinned_out),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
