/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests documents: the output of pdftotext and tesseract becomes words and boxes, child processes
 * stay within their limits, and windows of tokens have the boxes and labels of their words.
 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "master/documents/documents_int.h"
#include "tests/unit/files.h"
#include "tests/unit/must.h"

/* ---- reading the output of pdftotext and tesseract ------------------------------------------- */

static void assert_same_word(const clv_page_word *w, const char *text, int x0, int y0, int x1,
                             int y1) {
  assert_string_equal(w->text, text);
  assert_int_equal(w->x0, x0);
  assert_int_equal(w->y0, y0);
  assert_int_equal(w->x1, x1);
  assert_int_equal(w->y1, y1);
}

static const char bbox[] =
    "<!DOCTYPE html><html><head><title>a &lt;word x</title></head>\n<body><doc>\n"
    "  <page width=\"200.000000\" height=\"100.000000\">\n"
    "    <word xMin=\"20.100000\" yMin=\"10\" xMax=\"40.9\" "
    "yMax=\"50\">A&amp;B&lt;&#39;&eacute;</word>\n"
    "    <word xMin=\"-5\" yMin=\"nan\" xMax=\"900\" yMax=\"100\">\xff\x01z</word>\n"
    "    <word xMin=\"90\" yMin=\"0\" xMax=\"10\" yMax=\"0\"></word>\n"
    "    <word xMin=\"90\" yMin=\"0\" xMax=\"10\" yMax=\"0\">back</word>\n  </page>\n"
    "  <page width=\"0\" height=\"0\"></page>\n</doc></body></html>\n";

static void pdftotext_boxes_become_scaled_words(void **state) {
  (void)state;
  CLV_AUTO(clv_document_done) clv_document d = {0};
  clv_err err;
  must(clv_bbox_parse(bbox, sizeof bbox - 1, "a.pdf", NULL, &d, &err), &err);
  assert_int_equal(d.n, 2);
  assert_int_equal(d.pages[0].n, 3);
  assert_int_equal(d.pages[1].n, 0);
  assert_same_word(&d.pages[0].words[0], "A&B<'&eacute;", 100, 100, 204, 500);
  assert_same_word(&d.pages[0].words[1], "\xef\xbf\xbdz", 0, 0, 1000, 1000);
  assert_same_word(&d.pages[0].words[2], "back", 50, 0, 450, 0);
}

/* pdftotext prints the size of a page before its rotation, so the reader swaps width and height. */
static void rotated_pages_swap_width_and_height(void **state) {
  (void)state;
  static const char info[] =
      "Title: x\nPage    1 rot:   45\n"
      "Page    1 size:  612 x 792 pts\nPage    1 rot:   180\n"
      "Page    2 rot:   270\nPage 0 rot: 90\nPage 99999 rot: 90\nPage 3";
  static const char text[] =
      "<page width=\"100\" height=\"200\">"
      "<word xMin=\"50\" yMin=\"50\" xMax=\"60\" yMax=\"60\">a</word>"
      "<page width=\"100\" height=\"200\">"
      "<word xMin=\"50\" yMin=\"50\" xMax=\"60\" yMax=\"60\">b</word>"
      "<page width=\"100\" height=\"200\">"
      "<word xMin=\"50\" yMin=\"50\" xMax=\"60\" yMax=\"60\">c</word>";
  CLV_AUTO(clv_document_done) clv_document d = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes turned = {0};
  clv_err err;
  must(clv_rotations_parse(info, sizeof info - 1, "a.pdf", &turned, &err), &err);
  assert_int_equal(turned.len, 2);
  must(clv_bbox_parse(text, sizeof text - 1, "a.pdf", &turned, &d, &err), &err);
  assert_int_equal(d.n, 3);
  assert_same_word(&d.pages[0].words[0], "a", 500, 250, 600, 300);
  assert_same_word(&d.pages[1].words[0], "b", 250, 500, 300, 600);
  assert_same_word(&d.pages[2].words[0], "c", 500, 250, 600, 300);
}

static void rotation_not_a_multiple_of_90_is_refused(void **state) {
  (void)state;
  static const char info[] = "Page    1 rot:   0\nPage    2 rot:   45\n";
  CLV_AUTO(clv_bytes_done) clv_bytes turned = {0};
  clv_err err = {0};
  expect_error(CLV_INVALID, "a.pdf: page 2 has a /Rotate that is not a multiple of 90",
               clv_rotations_parse(info, sizeof info - 1, "a.pdf", &turned, &err), &err);
}

static void tesseract_rows_become_scaled_words(void **state) {
  (void)state;
  static const char tsv[] =
      "level\tpage_num\tblock_num\tpar_num\tline_num\tword_"
      "num\tleft\ttop\twidth\theight\tconf\ttext\n"
      "1\t1\t0\t0\t0\t0\t0\t0\t400\t200\t-1\t\n"
      "5\t1\t1\t1\t1\t1\t40\t20\t80\t10\t96.1\tHello\n"
      "5\t1\t1\t1\t1\t2\t200\t20\t80\t10\t96.1\t \n"
      "5\t1\t1\t1\t1\t3\t200\t100\t400\t10\t90\tW\xc3\xb6rld\n";
  CLV_AUTO(clv_document_done) clv_document d = {0};
  clv_err err;
  must(clv_tsv_parse(tsv, sizeof tsv - 1, "a.png", &d, &err), &err);
  assert_int_equal(d.n, 1);
  assert_int_equal(d.pages[0].n, 2);
  assert_same_word(&d.pages[0].words[0], "Hello", 100, 100, 300, 150);
  assert_same_word(&d.pages[0].words[1], "W\xc3\xb6rld", 500, 500, 1000, 550);
}

static void damaged_output_names_file_and_line(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"<page width=\"1\">",
       "line 1 of what pdftotext prints: a page without a width and a height"},
      {"\n<word xMin=\"1\">", "line 2 of what pdftotext prints: a word without its box"},
      {"<word xMin=\"1\" yMin=\"1\" xMax=\"1\" yMax=\"1\">a</word>", "a word on no page"},
      {"<page width=\"1\" height=\"1\"><word xMin=\"1\" yMin=\"1\" xMax=\"1\" yMax=\"1\">a",
       "a word without an end"},
      {"<page ", "a tag without an end"}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_document d = {0};
    clv_err err = {0};
    clv_code code = clv_bbox_parse(cases[i][0], strlen(cases[i][0]), "a.pdf", NULL, &d, &err);
    expect_error(CLV_DATA_LOSS, cases[i][1], code, &err);
    assert_non_null(strstr(err.text, "a.pdf: "));
  }
  clv_document d = {0};
  clv_err err = {0};
  expect_error(CLV_DATA_LOSS, "b.png: line 2 of what tesseract prints is no row",
               clv_tsv_parse("h\n5\t1\n", 6, "b.png", &d, &err), &err);
}

/* ---- limits of child processes --------------------------------------------------------------- */

static clv_code run_child(const char *const *args, const clv_child_limits *limits, clv_bytes *out,
                          bool *ret_apart, clv_err *err) {
  int fd = open(write_scratch_file("file", "what is in it", 13), O_RDONLY | O_CLOEXEC);
  int high_fd = fcntl(fd, F_DUPFD_CLOEXEC, 10);
  clv_child_process c = {.args = args, .file_fd = high_fd, .label = "x.pdf", .limits = limits};
  close(fd);
  clv_code code = clv_child_process_run(&c, out, ret_apart, err);
  close(high_fd);
  return code;
}

static void assert_child_ends(const char *script, const clv_child_limits *limits, clv_code want,
                              const char *message) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  const char *const args[] = {"sh", "-c", script, NULL};
  bool is_apart;
  clv_err err = {0};
  uint64_t start_ns = clv_now_ns();
  expect_error(want, message, run_child(args, limits, &out, &is_apart, &err), &err);
  assert_non_null(strstr(err.text, "x.pdf: "));
  assert_true(clv_now_ns() - start_ns < (uint64_t)20 * 1000000000);
}

static void child_process_has_only_its_file_and_no_network(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  const char *const args[] = {
      "sh", "-c",
      "cat /dev/fd/3; echo; ls /proc/self/fd | wc -l; cat; env | wc -l; grep -c : /proc/net/dev",
      NULL};
  bool is_apart = false;
  clv_err err;
  must(run_child(args, NULL, &out, &is_apart, &err), &err);
  assert_non_null(strstr(out.data, "what is in it\n"));
  /* a child in its own network namespace has one interface, lo */
  if (is_apart) assert_non_null(strstr(out.data, "\n1\n"));
}

static void child_process_over_a_limit_is_killed(void **state) {
  (void)state;
  const clv_child_limits one_second = {.seconds = 1},
                         little_memory = {.max_memory_bytes = 64 << 20},
                         little_output = {.max_output_bytes = 1 << 20};
  assert_child_ends("sleep 60", &one_second, CLV_EXHAUSTED, "takes longer than 1 s");
  assert_child_ends("while :; do :; done", &one_second, CLV_EXHAUSTED, "takes ");
  assert_child_ends("exec >&- 2>&-; sleep 60", &one_second, CLV_EXHAUSTED, "takes longer than 1 s");
  assert_child_ends("yes", &little_output, CLV_EXHAUSTED, "prints more than 1048576 bytes");
  assert_child_ends("head -c 900000000 /dev/zero | tail -n 1", &little_memory, CLV_DATA_LOSS,
                    "it may have 64 MiB of memory");
  assert_child_ends("echo x > /tmp/cleave-never-written", NULL, CLV_DATA_LOSS, "ends with");
  assert_child_ends("echo why >&2; exit 3", NULL, CLV_DATA_LOSS, "sh ends with exit code 3");
  assert_child_ends("echo why >&2; exit 3", NULL, CLV_DATA_LOSS, "why");
}

static void timed_out_child_is_killed_with_its_group(void **state) {
  (void)state;
  char pid[32] = "";
  const clv_child_limits one_second = {.seconds = 1};
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  const char *const args[] = {"sh", "-c", "sleep 60 & echo $!; wait", NULL};
  bool is_apart;
  clv_err err = {0};
  expect_error(CLV_EXHAUSTED, "takes longer", run_child(args, &one_second, &out, &is_apart, &err),
               &err);
  snprintf(pid, sizeof pid, "%.20s", out.data ? out.data : "");
  long pid_number = strtol(pid, NULL, 10);
  assert_true(pid_number > 1);
  for (int i = 0; i < 100 && kill((pid_t)pid_number, 0) == 0; i++) usleep(20000);
  char path[64], state_text[64] = "";
  snprintf(path, sizeof path, "/proc/%ld/stat", pid_number);
  /* a zombie process, whose parent has not waited for it, counts as ended */
  FILE *f = fopen(path, "r");
  if (f) {
    assert_int_equal(fscanf(f, "%*d %*s %60s", state_text), 1);
    fclose(f);
    assert_string_equal(state_text, "Z");
  }
}

static void missing_program_or_wrong_file_type_is_named(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  const char *const args[] = {"no-such-program", NULL};
  bool is_apart;
  clv_document d = {0};
  clv_err err = {0};
  expect_error(CLV_NOT_FOUND, "x.pdf: no-such-program cannot be started",
               run_child(args, NULL, &out, &is_apart, &err), &err);
  expect_error(CLV_NOT_FOUND, "nothing.pdf: No such file",
               clv_document_read(at("nothing.pdf"), NULL, &d, &err), &err);
  expect_error(CLV_INVALID, "not a regular file", clv_document_read(scratch, NULL, &d, &err), &err);
  /* tesseract would take a text file as a list of files to read */
  expect_error(
      CLV_INVALID, "list.png: not a PDF, PNG or JPEG file",
      clv_document_read(write_scratch_file("list.png", "/etc/passwd\n", 12), NULL, &d, &err), &err);
}

/* ---- windows over the words of a page -------------------------------------------------------- */

static void window_tokens_have_their_words_boxes_and_labels(void **state) {
  (void)state;
  static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nab\n##c\n##d\ne\n";
  static const clv_page_word words[] = {
      {"abcd", 1, 2, 3, 4}, {"e", 5, 6, 7, 8}, {"abc", 9, 10, 11, 12}};
  static const int32_t labels[] = {7, 8, 9};
  static const int32_t wanted_ids[] = {2, 4, 5, 6, 7, 3, 2, 7, 4, 5, 3, 0},
                       wanted_words[] = {-1, 0, 0, 0, 1, -1, -1, 1, 2, 2, -1, -1},
                       wanted_labels[] = {-100, 7, -100, -100, -100, -100,
                                          -100, 8, 9,    -100, -100, -100},
                       wanted_lengths[] = {6, 5};
  const clv_page page = {(clv_page_word *)(uintptr_t)words, 3};
  const clv_tokenizer_options o = {0};
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_AUTO(clv_windows_done) clv_windows w = {0};
  clv_window_options wo = {.width = 6, .stride = 1, .first_id = 2, .last_id = 3, .pad_id = 0};
  clv_err err = {0};
  must(clv_wordpiece_parse(vocabulary, sizeof vocabulary - 1, "v", &o, &t, &err), &err);
  must(clv_windows_make(&page, labels, t, &wo, &w, &err), &err);
  assert_int_equal(w.n, 2);
  assert_memory_equal(w.ids, wanted_ids, sizeof wanted_ids);
  assert_memory_equal(w.word_indices, wanted_words, sizeof wanted_words);
  assert_memory_equal(w.labels, wanted_labels, sizeof wanted_labels);
  assert_memory_equal(w.lengths, wanted_lengths, sizeof wanted_lengths);
  static const int32_t wanted_boxes[][4] = {{0},          {1, 2, 3, 4}, {1, 2, 3, 4},
                                            {1, 2, 3, 4}, {5, 6, 7, 8}, {1000, 1000, 1000, 1000}};
  assert_memory_equal(w.boxes, wanted_boxes, sizeof wanted_boxes);
  clv_windows_done(&w);
  wo.stride = 4;
  expect_error(CLV_INVALID, "windows of 6 tokens hold 4 tokens of a page, and the stride is 4",
               clv_windows_make(&page, NULL, t, &wo, &w, &err), &err);
}

/* If two windows share tokens, the first window labels the first half of the shared tokens. */
static void overlapping_windows_label_each_word_once(void **state) {
  (void)state;
  static const char vocabulary[] = "[PAD]\n[UNK]\na\n";
  enum { WORDS = 23 };
  clv_page_word words[WORDS];
  int32_t labels[WORDS], count[WORDS] = {0};
  const clv_page page = {words, WORDS};
  const clv_tokenizer_options o = {0};
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_AUTO(clv_windows_done) clv_windows w = {0};
  clv_err err = {0};
  for (int32_t i = 0; i < WORDS; i++) {
    words[i] = (clv_page_word){.text = "a"};
    labels[i] = i;
  }
  must(clv_wordpiece_parse(vocabulary, sizeof vocabulary - 1, "v", &o, &t, &err), &err);
  for (size_t stride = 0; stride < 8; stride++) {
    clv_windows_done(&w);
    memset(count, 0, sizeof count);
    clv_window_options wo = {.width = 8, .stride = stride, .first_id = -1, .last_id = -1};
    must(clv_windows_make(&page, labels, t, &wo, &w, &err), &err);
    for (size_t i = 0; i < w.n * w.width; i++)
      if (w.labels[i] >= 0) count[w.labels[i]]++;
    for (size_t i = 0; i < WORDS; i++) assert_int_equal(count[i], 1);
    if (stride != 4) continue;
    assert_int_equal(w.labels[5], 5); /* both windows have the pieces 4 to 7 */
    assert_int_equal(w.labels[6], CLV_LABEL_IGNORED);
    assert_int_equal(w.labels[8 + 1], CLV_LABEL_IGNORED);
    assert_int_equal(w.labels[8 + 2], 6);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pdftotext_boxes_become_scaled_words),
      cmocka_unit_test(rotated_pages_swap_width_and_height),
      cmocka_unit_test(rotation_not_a_multiple_of_90_is_refused),
      cmocka_unit_test(tesseract_rows_become_scaled_words),
      cmocka_unit_test(damaged_output_names_file_and_line),
      cmocka_unit_test(child_process_has_only_its_file_and_no_network),
      cmocka_unit_test(child_process_over_a_limit_is_killed),
      cmocka_unit_test(timed_out_child_is_killed_with_its_group),
      cmocka_unit_test(missing_program_or_wrong_file_type_is_named),
      cmocka_unit_test(window_tokens_have_their_words_boxes_and_labels),
      cmocka_unit_test(overlapping_windows_label_each_word_once),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
