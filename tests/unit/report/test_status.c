/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how `status` draws one fixed view of workers: the text at several widths, bytes that must
 * not reach a terminal, and the JSON.
 */
#include "tests/unit/report/status_test.h"

/* clang-format off */
static const char text_at_60[] =
    "19:42:07  films: 1 of 3 workers answer\n"
    "    rates and shares over 1.0 s\n"
    "\n"
    "worker-1  10.0.0.2:7443  calls itself gpu-a\n"
    "    DRAINING: takes no new sessions\n"
    "  cleave 0.1.0  protocol 2  up 2 h 14 min\n"
    "      cpu, 16 cores, avx512_core\n"
    "  memory 1.2 GiB (limit 64.0 GiB a session)\n"
    "      resident 1.5 GiB  sessions 5 (limit 8 an identity)\n"
    "      connections 6 (limit 16)  CERTIFICATE ends in 5 days\n"
    "      failed handshakes 3\n"
    "  ! 61 min ago: session films was refused: 8 sessions are\n"
    "      open for this identity\n"
    "  session films  of spiffe://example.net/master  12 min old\n"
    "      epoch 2\n"
    "    waiting for the master 71 %: link 12 Mbit/s in, 82 ms\n"
    "        round trip\n"
    "    [###>>>>>>>>>>>>]  # computes 21 %  > waits 77 %\n"
    "        = for the cores 2 %\n"
    "    stage s1  120 steps, 480 forward, 480 backward\n"
    "        7.5 calls/s\n"
    "    link to the master  82 ms round trip\n"
    "        in 11 Mbit/s (1.0 GiB)  out 1.6 Mbit/s (300 MiB)\n"
    "        queued 3 in, 1 out  coming: 1 tensor, 2.1 MiB to go\n"
    "    link to worker-2  in 0 bit/s (12 B)\n"
    "        out 0 bit/s (4.9 KiB)  leaving: 128 KiB to go\n"
    "    contexts 2  values 14  references 1 kept, 2 used\n"
    "        4 not settled  calls waiting 3  late frames 5\n"
    "        memory 310 MiB of 64.0 GiB\n"
    "    ! 12 s ago: module 1: no memory\n"
    "  session ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "      of ?[2J?]0;owned? a?b?c? ??31m ??? end  9.0 s old\n"
    "    computing 96 %\n"
    "    [##############>]  # computes 96 %  > waits 4 %\n"
    "        = for the cores 0 %\n"
    "    module 2  3 steps, 9 forward, 8 backward, 2 evaluations\n"
    "        0.2 calls/s\n"
    "    contexts 0  values 0  references 0 kept, 0 used\n"
    "        calls waiting 0  memory 0 B of 1 B\n"
    "    ! 200 ms ago: ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "  2 sessions of others  1 more that did not fit the answer\n"
    "\n"
    "worker-2  10.0.0.3:7443  DOES NOT ANSWER\n"
    "  10.0.0.3:7443: nobody listens there\n"
    "  fix: is cleave-worker running there? `cleave-master doctor\n"
    "      films.yaml` tries each step\n"
    "\n"
    "worker-3  10.0.0.4:7443  asking\n";

static const char text_at_80[] =
    "19:42:07  films: 1 of 3 workers answer  rates and shares over 1.0 s\n"
    "\n"
    "worker-1  10.0.0.2:7443  calls itself gpu-a  DRAINING: takes no new sessions\n"
    "  cleave 0.1.0  protocol 2  up 2 h 14 min  cpu, 16 cores, avx512_core\n"
    "  memory 1.2 GiB (limit 64.0 GiB a session)  resident 1.5 GiB\n"
    "      sessions 5 (limit 8 an identity)  connections 6 (limit 16)\n"
    "      CERTIFICATE ends in 5 days  failed handshakes 3\n"
    "  ! 61 min ago: session films was refused: 8 sessions are open for this identity\n"
    "  session films  of spiffe://example.net/master  12 min old  epoch 2\n"
    "    waiting for the master 71 %: link 12 Mbit/s in, 82 ms round trip\n"
    "    [####=>>>>>>>>>>>>>>>]  # computes 21 %  > waits 77 %  = for the cores 2 %\n"
    "    stage s1  120 steps, 480 forward, 480 backward  7.5 calls/s\n"
    "    link to the master  82 ms round trip  in 11 Mbit/s (1.0 GiB)\n"
    "        out 1.6 Mbit/s (300 MiB)  queued 3 in, 1 out\n"
    "        coming: 1 tensor, 2.1 MiB to go\n"
    "    link to worker-2  in 0 bit/s (12 B)  out 0 bit/s (4.9 KiB)\n"
    "        leaving: 128 KiB to go\n"
    "    contexts 2  values 14  references 1 kept, 2 used  4 not settled\n"
    "        calls waiting 3  late frames 5  memory 310 MiB of 64.0 GiB\n"
    "    ! 12 s ago: module 1: no memory\n"
    "  session ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "      of ?[2J?]0;owned? a?b?c? ??31m ??? end  9.0 s old\n"
    "    computing 96 %\n"
    "    [###################>]  # computes 96 %  > waits 4 %  = for the cores 0 %\n"
    "    module 2  3 steps, 9 forward, 8 backward, 2 evaluations  0.2 calls/s\n"
    "    contexts 0  values 0  references 0 kept, 0 used  calls waiting 0\n"
    "        memory 0 B of 1 B\n"
    "    ! 200 ms ago: ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "  2 sessions of others  1 more that did not fit the answer\n"
    "\n"
    "worker-2  10.0.0.3:7443  DOES NOT ANSWER\n"
    "  10.0.0.3:7443: nobody listens there\n"
    "  fix: is cleave-worker running there? `cleave-master doctor films.yaml` tries\n"
    "      each step\n"
    "\n"
    "worker-3  10.0.0.4:7443  asking\n";

static const char text_at_120[] =
    "19:42:07  films: 1 of 3 workers answer  rates and shares over 1.0 s\n"
    "\n"
    "worker-1  10.0.0.2:7443  calls itself gpu-a  DRAINING: takes no new sessions\n"
    "  cleave 0.1.0  protocol 2  up 2 h 14 min  cpu, 16 cores, avx512_core\n"
    "  memory 1.2 GiB (limit 64.0 GiB a session)  resident 1.5 GiB  sessions 5 (limit 8 an"
    " identity)\n"
    "      connections 6 (limit 16)  CERTIFICATE ends in 5 days  failed handshakes 3\n"
    "  ! 61 min ago: session films was refused: 8 sessions are open for this identity\n"
    "  session films  of spiffe://example.net/master  12 min old  epoch 2\n"
    "    waiting for the master 71 %: link 12 Mbit/s in, 82 ms round trip\n"
    "    [######=>>>>>>>>>>>>>>>>>>>>>>>]  # computes 21 %  > waits 77 %  = for the cores 2 %\n"
    "    stage s1  120 steps, 480 forward, 480 backward  7.5 calls/s\n"
    "    link to the master  82 ms round trip  in 11 Mbit/s (1.0 GiB)  out 1.6 Mbit/s (300 MiB) "
    " queued 3 in, 1 out\n"
    "        coming: 1 tensor, 2.1 MiB to go\n"
    "    link to worker-2  in 0 bit/s (12 B)  out 0 bit/s (4.9 KiB)  leaving: 128 KiB to go\n"
    "    contexts 2  values 14  references 1 kept, 2 used  4 not settled  calls waiting 3  late"
    " frames 5\n"
    "        memory 310 MiB of 64.0 GiB\n"
    "    ! 12 s ago: module 1: no memory\n"
    "  session ?[2J?]0;owned? a?b?c? ??31m ??? end  of ?[2J?]0;owned? a?b?c? ??31m ??? end  9.0 s"
    " old\n"
    "    computing 96 %\n"
    "    [#############################>]  # computes 96 %  > waits 4 %  = for the cores 0 %\n"
    "    module 2  3 steps, 9 forward, 8 backward, 2 evaluations  0.2 calls/s\n"
    "    contexts 0  values 0  references 0 kept, 0 used  calls waiting 0  memory 0 B of 1 B\n"
    "    ! 200 ms ago: ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "  2 sessions of others  1 more that did not fit the answer\n"
    "\n"
    "worker-2  10.0.0.3:7443  DOES NOT ANSWER\n"
    "  10.0.0.3:7443: nobody listens there\n"
    "  fix: is cleave-worker running there? `cleave-master doctor films.yaml` tries each step\n"
    "\n"
    "worker-3  10.0.0.4:7443  asking\n";
/* clang-format on */

/* clang-format off */
static const char brief_text_at_80[] =
    "19:42:07  films: 1 of 3 workers answer  rates and shares over 1.0 s\n"
    "\n"
    "worker-1  10.0.0.2:7443  calls itself gpu-a  DRAINING: takes no new sessions\n"
    "    CERTIFICATE ends in 5 days\n"
    "  ! 61 min ago: session films was refused: 8 sessions are open for this identity\n"
    "  session films  of spiffe://example.net/master  12 min old  epoch 2\n"
    "    waiting for the master 71 %: link 12 Mbit/s in, 82 ms round trip\n"
    "    ! 12 s ago: module 1: no memory\n"
    "  session ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "      of ?[2J?]0;owned? a?b?c? ??31m ??? end  9.0 s old\n"
    "    computing 96 %\n"
    "    ! 200 ms ago: ?[2J?]0;owned? a?b?c? ??31m ??? end\n"
    "  2 sessions of others  1 more that did not fit the answer\n"
    "\n"
    "worker-2  10.0.0.3:7443  DOES NOT ANSWER\n"
    "  10.0.0.3:7443: nobody listens there\n"
    "  fix: is cleave-worker running there? `cleave-master doctor films.yaml` tries\n"
    "      each step\n"
    "\n"
    "worker-3  10.0.0.4:7443  asking\n"
    "\n"
    "(in short, to fit the window: a higher one shows all)\n";
/* clang-format on */

static void status_text_matches_the_expected_text(void **state) {
  (void)state;
  static const struct {
    unsigned width;
    const char *want;
  } rows[] = {{60, text_at_60}, {80, text_at_80}, {120, text_at_120}};
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
    clv_status_text(&a_status, rows[i].width, &got);
    assert_string_equal(got.data, rows[i].want);
  }
  CLV_AUTO(clv_bytes_done) clv_bytes brief = {0};
  clv_status_brief_text(&a_status, 80, &brief);
  assert_string_equal(brief.data, brief_text_at_80);
}

/* Asserts for each width that no line is longer, and that only printable ASCII and line ends are
 * written. */
static void status_text_stays_within_the_width(void **state) {
  (void)state;
  for (unsigned width = 0; width < 200; width++) {
    CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
    size_t column = 0, max_columns = 0;
    clv_status_text(&a_status, width, &got);
    assert_false(got.failed);
    for (size_t i = 0; i < got.len; i++) {
      unsigned char c = (unsigned char)got.data[i];
      assert_true(c == '\n' || (c >= ' ' && c <= '~'));
      column = c == '\n' ? 0 : column + 1;
      max_columns = CLV_MAX(max_columns, column);
    }
    assert_true(max_columns <= CLV_MAX(width, 20u));
  }
}

/* Names of modules come from other programs. A viewer that sees only its own sessions must not get
 * numbers of others. */
static clv_status_module hostile_modules[] = {
    {.index = 0, .name = HOSTILE_TEXT, .n_steps = 1, .n_evals = 1},
    {.index = 1, .name = "encoder", .n_steps = 2}};
static clv_status_session hostile_session = {.name = "s",
                                             .identity = "spiffe://a/b",
                                             .is_attached = true,
                                             .busy_share = 1,
                                             .n_modules = 2,
                                             .modules = hostile_modules};
static clv_status_worker a_tenants_worker = {.name = "worker-1",
                                             .address = "10.0.0.2:7443",
                                             .has_outcome = true,
                                             .own_name = "worker-1",
                                             .software = "cleave 0.1.0",
                                             .device = "cpu",
                                             .isa = "avx2",
                                             .protocol_version = 4,
                                             .n_cores = 1,
                                             .memory = 1u << 20,
                                             .memory_limit = 1u << 30,
                                             .n_open_sessions = 1,
                                             .max_sessions = 2,
                                             .n_sessions = 1,
                                             .sessions = &hostile_session};
static const clv_status_view a_tenants_status = {
    .title = "t", .clock = "19:42:07", .n_workers = 1, .workers = &a_tenants_worker};

/* clang-format off */
static const char text_at_20[] =
    "19:42:07\n"
    "    t: 1 of 1 worker\n"
    "    answers\n"
    "    rates and shares\n"
    "    over 0.0 ms\n"
    "\n"
    "worker-1\n"
    "    10.0.0.2:7443\n"
    "  cleave 0.1.0\n"
    "      protocol 4\n"
    "      up 0.0 ms\n"
    "      cpu, 1 core,\n"
    "      avx2\n"
    "  memory 1.0 MiB\n"
    "      (limit 1.0\n"
    "      GiB)\n"
    "      sessions 1\n"
    "      (limit 2)\n"
    "  session s\n"
    "      of\n"
    "      spiffe://a/b\n"
    "      0.0 ms old\n"
    "    computing 100 %\n"
    "    [##########]\n"
    "        # computes\n"
    "        100 %\n"
    "        > waits 0 %\n"
    "        = for the\n"
    "        cores 0 %\n"
    "    module\n"
    "        ?[2J?]0;owne\n"
    "        d? a?b?c?\n"
    "        ??31m ???\n"
    "        end\n"
    "        1 step, 0\n"
    "        forward, 0\n"
    "        backward, 1\n"
    "        evaluation\n"
    "        0.0 calls/s\n"
    "    module encoder\n"
    "        2 steps, 0\n"
    "        forward, 0\n"
    "        backward\n"
    "        0.0 calls/s\n"
    "    contexts 0\n"
    "        values 0\n"
    "        references 0\n"
    "        kept, 0 used\n"
    "        calls\n"
    "        waiting 0\n"
    "        memory 0 B\n"
    "        of 0 B\n";

static const char tenant_text_at_100[] =
    "19:42:07  t: 1 of 1 worker answers  rates and shares over 0.0 ms\n"
    "\n"
    "worker-1  10.0.0.2:7443\n"
    "  cleave 0.1.0  protocol 4  up 0.0 ms  cpu, 1 core, avx2\n"
    "  memory 1.0 MiB (limit 1.0 GiB)  sessions 1 (limit 2)\n"
    "  session s  of spiffe://a/b  0.0 ms old\n"
    "    computing 100 %\n"
    "    [#########################]  # computes 100 %  > waits 0 %  = for the cores 0 %\n"
    "    module ?[2J?]0;owned? a?b?c? ??31m ??? end  1 step, 0 forward, 0 backward, 1 evaluation\n"
    "        0.0 calls/s\n"
    "    module encoder  2 steps, 0 forward, 0 backward  0.0 calls/s\n"
    "    contexts 0  values 0  references 0 kept, 0 used  calls waiting 0  memory 0 B of 0 B\n";
/* clang-format on */

static void tenant_sees_only_its_own_session(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes wide = {0}, narrow = {0}, json = {0};
  clv_status_text(&a_tenants_status, 100, &wide);
  assert_string_equal(wide.data, tenant_text_at_100);
  clv_status_text(&a_tenants_status, 20, &narrow);
  assert_string_equal(narrow.data, text_at_20);
  clv_status_json(&a_tenants_status, &json);
  assert_non_null(strstr(json.data, "\"resident_bytes\":null,\"memory_bytes\":1048576,"));
  assert_non_null(strstr(json.data, "\"connections\":null,\"connections_limit\":null,"));
  assert_non_null(strstr(json.data, "\"handshake_failures\":null,"));
  assert_non_null(strstr(json.data, "{\"module\":0,\"name\":\"\\u001b[2J"));
  assert_non_null(strstr(json.data, "c\\u007f \\u009b31m"));
}

static void worker_that_must_be_upgraded_is_named(void **state) {
  (void)state;
  clv_status_worker old_worker = a_tenants_worker;
  const clv_status_view view = {.title = "t", .clock = "1", .n_workers = 1, .workers = &old_worker};
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  old_worker.must_upgrade = true;
  clv_status_brief_text(&view, 100, &got);
  assert_non_null(
      strstr(got.data, "  speaks protocol 4: a lost connection ends its link; upgrade it\n"));
}

/* A word longer than the line is wrapped, not cut off. */
static void words_longer_than_the_line_are_wrapped(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  static char text[300];
  memset(text, 'x', sizeof text - 1);
  clv_status_worker w = {.name = "w", .address = "a:1", .has_outcome = true, .error = text};
  clv_status_view view = {.title = "t", .clock = "", .n_workers = 1, .workers = &w};
  size_t n = 0;
  clv_status_text(&view, 40, &got);
  for (size_t i = 0; i < got.len; i++) n += got.data[i] == 'x';
  assert_int_equal(n, sizeof text - 1);
}

static void status_without_workers_is_one_line(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0}, json = {0};
  clv_status_view view = {.title = "t", .clock = "00:00:00"};
  clv_status_text(&view, 80, &got);
  clv_status_json(&view, &json);
  assert_string_equal(got.data, "00:00:00  t: 0 of 0 workers answer\n");
  assert_int_equal(json.len, 0);
}

/* Checks the keys that scripts use. tests/net check that the text is JSON. */
static void json_has_a_line_per_worker(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes got = {0};
  static const char *const wanted_keys[] = {
      "{\"worker\":\"worker-1\",\"address\":\"10.0.0.2:7443\",\"ok\":true,",
      ",\"draining\":true,",
      ",\"certificate_days\":5.5,",
      "\"last_error\":{\"text\":\"module 1: no memory\",\"age_s\":12.4}",
      "\"diagnosis\":\"waiting for the master 71 %: link 12 Mbit/s in, 82 ms round trip\"",
      "{\"module\":1,\"name\":\"s1\",\"stage\":\"s1\",",
      "{\"module\":2,\"name\":null,\"stage\":null,",
      ",\"connections\":6,\"connections_limit\":16,\"handshake_failures\":3,",
      "{\"peer\":\"master\",\"round_trip_ms\":82.4,",
      "{\"peer\":\"worker-2\",\"round_trip_ms\":null,",
      "\\u001b[2J",
      "\n{\"worker\":\"worker-2\",\"address\":\"10.0.0.3:7443\",\"ok\":false,\"error\":\"10.0",
  };
  size_t n_lines = 0;
  clv_status_json(&a_status, &got);
  for (size_t i = 0; i < CLV_COUNT(wanted_keys); i++)
    if (!strstr(got.data, wanted_keys[i])) fail_msg("no %s in %s", wanted_keys[i], got.data);
  for (size_t i = 0; i < got.len; i++) {
    unsigned char c = (unsigned char)got.data[i];
    n_lines += c == '\n';
    assert_true(c == '\n' || c >= ' ');
  }
  assert_int_equal(n_lines, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(status_text_matches_the_expected_text),
      cmocka_unit_test(status_text_stays_within_the_width),
      cmocka_unit_test(tenant_sees_only_its_own_session),
      cmocka_unit_test(worker_that_must_be_upgraded_is_named),
      cmocka_unit_test(words_longer_than_the_line_are_wrapped),
      cmocka_unit_test(status_without_workers_is_one_line),
      cmocka_unit_test(json_has_a_line_per_worker),
  };
  return cmocka_run_group_tests_name("look", tests, NULL, NULL);
}
