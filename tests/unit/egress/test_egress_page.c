/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the page that shows an egress record: its text about runs that ended, were killed and were
 * resumed. Everything in a hostile record reaches a terminal or a browser only as text.
 */
#include "master/egress/egress.h"
#include "tests/unit/files.h"

/* Adds a line in the format of the record, directly, without the writer of records. */
static void add_line(clv_bytes *out, const clv_egress_line *l) { clv_egress_line_format(l, out); }

static clv_egress_line make_line(clv_egress_event event, uint64_t attempt, int second) {
  clv_egress_line l = {.event = event, .attempt = attempt};
  snprintf(l.at, sizeof l.at, "2026-11-22T19:00:%02d.000Z", second);
  return l;
}

static clv_egress_line make_attempt_line(uint64_t attempt, int second, const char *command,
                                         const char *approver) {
  clv_egress_line l = make_line(CLV_EGRESS_ATTEMPT, attempt, second);
  l.start.version = CLV_EGRESS_RECORD_VERSION;
  snprintf(l.start.command, sizeof l.start.command, "%s", command);
  snprintf(l.start.session, sizeof l.start.session, "demo");
  snprintf(l.start.run, sizeof l.start.run, "runs/demo");
  if (!approver) return l;
  snprintf(l.start.policy, sizeof l.start.policy, "/etc/cleave/egress.policy.yaml");
  memset(l.start.policy_sha256, 'a', 64);
  snprintf(l.start.approver, sizeof l.start.approver, "%s", approver);
  return l;
}

static clv_egress_line make_allow_line(uint64_t attempt, uint64_t id, clv_egress_kind kind,
                                       const char *stage, const char *name, uint64_t bytes) {
  clv_egress_line l = make_line(CLV_EGRESS_ALLOW, attempt, 5);
  clv_egress_key *w = &l.allowance.key;
  l.allowance.id = id;
  l.allowance.bytes = bytes;
  snprintf(l.allowance.expires_at, sizeof l.allowance.expires_at, "2026-11-22T19:00:15.000Z");
  snprintf(w->from, sizeof w->from, "master");
  snprintf(w->to, sizeof w->to, "w1");
  snprintf(w->identity, sizeof w->identity, "spiffe://acme/w1");
  w->kind = kind;
  snprintf(w->stage, sizeof w->stage, "%s", stage);
  snprintf(w->name, sizeof w->name, "%s", name);
  snprintf(w->dtype, sizeof w->dtype, "f32");
  w->shape = CLV_SHAPE(64);
  return l;
}

static clv_egress_line make_settle_line(uint64_t attempt, uint64_t id, uint64_t bytes) {
  clv_egress_line l = make_line(CLV_EGRESS_SETTLE, attempt, 7);
  l.settlement.id = id;
  l.settlement.n_tensors = 2;
  l.settlement.bytes = bytes;
  return l;
}

static clv_egress_line make_end_line(uint64_t attempt, uint64_t tensors, uint64_t bytes) {
  clv_egress_line l = make_line(CLV_EGRESS_END, attempt, 9);
  l.attempt_end.n_tensors = tensors;
  l.attempt_end.bytes = bytes;
  return l;
}

static clv_bytes render_page(const clv_bytes *text, clv_egress_format form) {
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_bytes page = {0};
  clv_err err;
  assert_ok(clv_egress_read_text(text->data, text->len, "egress.jsonl", &b, &err), &err);
  assert_ok(clv_egress_write_page(&b, "runs/demo", form, &page, &err), &err);
  return page;
}

static void assert_contains(const clv_bytes *page, const char *part) {
  if (!strstr(page->data, part)) fail_msg("no \"%s\" in\n%s", part, page->data);
}

/* Returns a record of two attempts: a training that was killed with 600 bytes allowed, and an
 * evaluation that ended. */
static clv_bytes make_usual_record(void) {
  clv_bytes t = {0};
  const clv_egress_line lines[] = {
      make_attempt_line(1, 1, "train", NULL),
      make_allow_line(1, 1, CLV_EGRESS_ACTIVATION, "a", "", 1000),
      make_settle_line(1, 1, 400),
      make_allow_line(1, 2, CLV_EGRESS_ACTIVATION, "a", "", 600),
      make_attempt_line(2, 8, "eval", "CN=Dr. Yes"),
      make_allow_line(2, 1, CLV_EGRESS_WEIGHTS, "b", "0.weight", 80),
      make_allow_line(2, 2, CLV_EGRESS_WEIGHTS, "b", "0.bias", 20),
      make_settle_line(2, 1, 80),
      make_settle_line(2, 2, 20),
      make_end_line(2, 4, 100),
  };
  for (size_t i = 0; i < CLV_COUNT(lines); i++) add_line(&t, &lines[i]);
  return t;
}

/* The row of a sent failure shows its code and place, because a failure belongs to no stage and has
 * no shape. */
static void failure_row_shows_code_and_place(void **state) {
  (void)state;
  clv_bytes t = {0};
  clv_egress_line a = make_allow_line(1, 1, CLV_EGRESS_FAILURE, "", "", 32);
  const clv_egress_line b = make_attempt_line(1, 1, "train", NULL);
  a.allowance.key.dtype[0] = '\0';
  a.allowance.key.shape.rank = 0;
  add_line(&t, &b);
  add_line(&t, &a);
  clv_bytes page = render_page(&t, CLV_EGRESS_PLAIN_TEXT);
  assert_contains(&page,
                  "   failure of the run: a code and its place to w1: 0 tensors, at most 32 B");
  clv_bytes_done(&page);
  page = render_page(&t, CLV_EGRESS_HTML);
  assert_contains(&page,
                  "<td>failure of the run: a code and its place</td><td></td><td></td><td>w1</td>");
  clv_bytes_done(&page);
  clv_bytes_done(&t);
}

static void page_sums_allowed_and_settled_bytes(void **state) {
  (void)state;
  clv_bytes t = make_usual_record(), page = render_page(&t, CLV_EGRESS_PLAIN_TEXT);
  assert_contains(&page, "what left in runs/demo (session demo)\n");
  assert_contains(
      &page,
      "in all: at most 1.1 KiB (1100 bytes), of which 600 B (600 bytes) was allowed and not "
      "settled, in 2 commands\n");
  assert_contains(&page, "to w1 (spiffe://acme/w1): at most");
  assert_contains(
      &page,
      "\n1  train: since 2026-11-22T19:00:01.000Z; it goes on, or was cut off\n   no policy");
  assert_contains(&page,
                  "activation of stage 'a' [64] f32 to w1: 2 tensors, at most 1000 B (1000 bytes)");
  assert_contains(
      &page,
      "\n2  eval: 2026-11-22T19:00:08.000Z to 2026-11-22T19:00:09.000Z, ended with code 0\n");
  assert_contains(&page, "policy /etc/cleave/egress.policy.yaml, sha256 aaaa");
  assert_contains(&page, "signed by CN=Dr. Yes");
  assert_contains(&page, "weights of stage 'b', 2 names to w1: 4 tensors, 100 B (100 bytes)");
  clv_bytes_done(&page);
  page = render_page(&t, CLV_EGRESS_JSON);
  assert_contains(&page, "\"name\":\"0.bias\"");
  assert_contains(
      &page, "{\"event\":\"total\",\"run\":\"runs/demo\",\"bytes\":1100,\"open\":600,\"cut\":0}");
  clv_bytes_done(&page);
  clv_bytes_done(&t);
}

static void empty_record_shows_zero_bytes(void **state) {
  (void)state;
  for (int form = CLV_EGRESS_PLAIN_TEXT; form <= CLV_EGRESS_JSON; form++) {
    clv_bytes none = {0};
    clv_bytes_puts(&none, "");
    clv_bytes page = render_page(&none, (clv_egress_format)form);
    assert_contains(&page, form == CLV_EGRESS_JSON ? "\"bytes\":0" : "0 B (0 bytes)");
    clv_bytes_done(&page);
    clv_bytes_done(&none);
  }
}

/* Returns a record whose free texts have tags, quotes, right-to-left marks and a forged line. */
static clv_bytes make_hostile_record(void) {
  static const char hostile_text[] =
      "</td><script>alert(\"1\")</script><img src='http://x/'>&"
      "\xe2\x80\xae";
  clv_bytes t = {0};
  clv_egress_line b = make_attempt_line(1, 1, "train", hostile_text);
  clv_egress_line a = make_allow_line(1, 1, CLV_EGRESS_WEIGHTS, hostile_text, hostile_text, 10);
  snprintf(b.start.session, sizeof b.start.session, "%s", hostile_text);
  snprintf(a.allowance.key.identity, sizeof a.allowance.key.identity, "%s", hostile_text);
  snprintf(a.allowance.key.to, sizeof a.allowance.key.to, "%s", hostile_text);
  add_line(&t, &b);
  add_line(&t, &a);
  return t;
}

static void hostile_text_is_escaped_in_html_and_terminal(void **state) {
  (void)state;
  CLV_AUTO(clv_egress_summary_done) clv_egress_summary b = {0};
  clv_bytes t = make_hostile_record(), html = {0}, text = {0};
  clv_err err;
  if (clv_egress_read_text(t.data, t.len, "egress.jsonl", &b, &err) == CLV_OK) {
    static const char hostile_run[] = "runs/<b>\n2  eval: all is well\x1b[2J";
    assert_ok(clv_egress_write_page(&b, hostile_run, CLV_EGRESS_HTML, &html, &err), &err);
    assert_ok(clv_egress_write_page(&b, hostile_run, CLV_EGRESS_PLAIN_TEXT, &text, &err), &err);
    assert_null(strstr(html.data, "<script"));
    assert_null(strstr(html.data, "<img"));
    assert_null(strstr(html.data, "<b>"));
    assert_contains(&html, "&lt;/td&gt;&lt;script&gt;alert(&quot;1&quot;)");
    assert_null(strstr(text.data, "\n2  eval"));
    assert_null(strchr(text.data, '\x1b'));
    assert_null(strstr(text.data, "\xe2\x80\xae"));
  } else {
    fail_msg("the reader did not take it: %s", err.text);
  }
  clv_bytes_done(&html);
  clv_bytes_done(&text);
  clv_bytes_done(&t);
}

/* The HTML page refers to no other file or address. */
static void html_page_has_no_external_references(void **state) {
  (void)state;
  clv_bytes t = make_usual_record(), html = render_page(&t, CLV_EGRESS_HTML);
  static const char *const outside_references[] = {
      "http:", "https:", "src=", "href=", "url(", "@import", "<script"};
  for (size_t i = 0; i < CLV_COUNT(outside_references); i++)
    assert_null(strstr(html.data, outside_references[i]));
  assert_contains(&html, "default-src 'none'");
  assert_contains(&html, "<tr class=\"open\"><td>activation of stage &#39;a&#39;");
  assert_contains(&html, "signed by CN=Dr. Yes");
  clv_bytes_done(&html);
  clv_bytes_done(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(page_sums_allowed_and_settled_bytes),
      cmocka_unit_test(failure_row_shows_code_and_place),
      cmocka_unit_test(empty_record_shows_zero_bytes),
      cmocka_unit_test(hostile_text_is_escaped_in_html_and_terminal),
      cmocka_unit_test(html_page_has_no_external_references),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
