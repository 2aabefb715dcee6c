/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_format and clv_sched_parse: lists as text. The text has lines of words:
 *
 *   schedule custom stages 2 ranks 2 micro-batches 4 first-backward 0 accumulate 0 window 0
 *   stage 0 rank 0
 *   stage 1 rank 1
 *   rank 0: F0@0 sf0@0 F1@0 ...
 *   rank 1: ...
 *
 * The last three numbers of the first line may be left out, and are then 0. Every stage needs its
 * line. A rank may have several lines, whose instructions it runs in the order of the lines. A #
 * starts a comment.
 */
#include "common/model/sched/sched_int.h"

#include <stdio.h>
#include <string.h>

void clv_sched_format(const clv_sched *s, clv_bytes *out) {
  const clv_sched_shape *shape = &s->shape;
  char text[SCHED_INSTR_TEXT];
  clv_bytes_printf(
      out,
      "schedule %s stages %u ranks %u micro-batches %u first-backward %u accumulate %u "
      "window %u\n",
      clv_sched_name(s->kind), shape->n_stages, shape->n_ranks, shape->n_micro_batches,
      shape->first_backward_stage, shape->n_accumulate, s->window);
  for (uint32_t i = 0; i < shape->n_stages; i++)
    clv_bytes_printf(out, "stage %u rank %u\n", i, shape->stage_rank[i]);
  for (uint32_t r = 0; r < shape->n_ranks; r++) {
    clv_bytes_printf(out, "rank %u:", r);
    for (uint32_t k = 0; k < s->n[r]; k++) {
      const clv_instr *i = &s->instrs[r][k];
      clv_bytes_printf(out, " %s@%u", clv_instr_text(i, text), i->stage);
      if (i->weights_age) clv_bytes_printf(out, "-%u", i->weights_age);
    }
    clv_bytes_puts(out, "\n");
  }
}

/* ---- words of a schedule file ---------------------------------------------------------------- */

typedef struct word {
  const char *text; /* start of the word; not NUL-terminated */
  size_t n;
} word;

typedef struct sched_parser {
  const char *file_name, *at, *text_end, *line_start;
  unsigned line_number;
  word current_word; /* last word read; word.n 0: end of the line */
  clv_sched *s;
  uint32_t n_instrs;
  bool has_rank[CLV_SCHED_STAGES];
  clv_err *err;
} sched_parser;

CLV_PRINTF(2, 3) static clv_code fail_at_word(const sched_parser *p, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return clv_fail(p->err, CLV_INVALID, "%s:%u:%u: %s", p->file_name, p->line_number,
                  (unsigned)(p->current_word.text - p->line_start) + 1, text);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Copies the last word to buf for a message. Cuts a long word, and replaces characters that cannot
 * be printed by '?'. */
static const char *word_for_message(const sched_parser *p, char buf[32]) {
  size_t n = CLV_MIN(p->current_word.n, 31);
  for (size_t i = 0; i < n; i++) {
    char c = p->current_word.text[i];
    buf[i] = c > ' ' && c <= '~' ? c : '?';
  }
  buf[n] = 0;
  return p->current_word.n ? buf : "the end of the line";
}

static void read_next_word(sched_parser *p) {
  while (p->at < p->text_end && is_blank(*p->at)) p->at++;
  p->current_word.text = p->at;
  if (p->at < p->text_end && *p->at == '#')
    while (p->at < p->text_end && *p->at != '\n') p->at++;
  const char *begin = p->at;
  while (p->at < p->text_end && !is_blank(*p->at) && *p->at != '\n' && *p->at != '#') p->at++;
  p->current_word.n = (size_t)(p->at - begin);
}

/* Reads the first word of the next line that is not empty. Returns false at the end of the text. */
static bool read_next_line(sched_parser *p) {
  for (;;) {
    read_next_word(p);
    if (p->current_word.n) return true;
    if (p->at == p->text_end) return false;
    p->line_number++;
    p->line_start = ++p->at;
  }
}

static bool is_current_word(const sched_parser *p, const char *text) {
  return p->current_word.n == strlen(text) &&
         !memcmp(p->current_word.text, text, p->current_word.n);
}

static clv_code expect_line_end(sched_parser *p) {
  char buf[32];
  read_next_word(p);
  return p->current_word.n ? fail_at_word(p, "the line must end here, not go on with %s",
                                          word_for_message(p, buf))
                           : CLV_OK;
}

/* Parses decimal digits at *at, and moves *at behind them. Returns false if there are none, or if
 * the number is too large. */
static bool parse_digits(const char **at, const char *end, uint32_t *ret) {
  uint64_t value = 0;
  const char *begin = *at;
  while (*at < end && **at >= '0' && **at <= '9' && value <= UINT32_MAX)
    value = value * 10 + (uint64_t)(*(*at)++ - '0');
  *ret = (uint32_t)value;
  return *at > begin && value <= UINT32_MAX;
}

static clv_code parse_number(sched_parser *p, const char *what, bool ends_with_colon,
                             uint32_t limit, uint32_t *ret) {
  char buf[32];
  read_next_word(p);
  const char *at = p->current_word.text, *end = at + p->current_word.n;
  if (ends_with_colon && end > at && end[-1] == ':') {
    end--;
  } else if (ends_with_colon) {
    return fail_at_word(p, "%s and a colon are expected, not %s", what, word_for_message(p, buf));
  }
  if (!parse_digits(&at, end, ret) || at != end)
    return fail_at_word(p, "%s is expected, not %s", what, word_for_message(p, buf));
  if (*ret >= limit)
    return fail_at_word(p, "%s is %u: at most %u is possible", what, *ret, limit - 1);
  return CLV_OK;
}

/* ---- the first line -------------------------------------------------------------------------- */

static clv_code parse_kind(sched_parser *p, clv_sched_kind *ret) {
  const char *names[CLV_SCHED_KINDS];
  char buf[32];
  read_next_word(p);
  for (int k = 0; k < CLV_SCHED_KINDS; k++) {
    *ret = (clv_sched_kind)k;
    if (is_current_word(p, names[k] = clv_sched_name(*ret))) return CLV_OK;
  }
  const char *suggestion = clv_did_you_mean(word_for_message(p, buf), names, CLV_SCHED_KINDS);
  return fail_at_word(
      p, "%s is no kind of schedule%s%s%s", buf[0] ? word_for_message(p, buf) : "nothing",
      suggestion ? " (did you mean " : "", suggestion ? suggestion : "", suggestion ? "?)" : "");
}

static clv_code parse_header(sched_parser *p) {
  clv_sched_shape shape = {0};
  uint32_t window = 0;
  clv_sched_kind kind;
  const struct {
    const char *file_name;
    uint32_t *value, limit;
    bool is_required;
  } keys[] = {
      {.file_name = "stages",
       .value = &shape.n_stages,
       .limit = CLV_SCHED_STAGES,
       .is_required = true},
      {.file_name = "ranks",
       .value = &shape.n_ranks,
       .limit = CLV_SCHED_RANKS,
       .is_required = true},
      {.file_name = "micro-batches",
       .value = &shape.n_micro_batches,
       .limit = CLV_SCHED_MICROS,
       .is_required = true},
      {.file_name = "first-backward",
       .value = &shape.first_backward_stage,
       .limit = CLV_SCHED_STAGES},
      {.file_name = "accumulate", .value = &shape.n_accumulate, .limit = CLV_SCHED_MICROS},
      {.file_name = "window", .value = &window, .limit = CLV_SCHED_MICROS + 1},
  };
  char buf[32];
  if (!read_next_line(p) || !is_current_word(p, "schedule"))
    return fail_at_word(
        p, "a schedule starts with \"schedule KIND stages N ranks N micro-batches N\"");
  CLV_TRY(parse_kind(p, &kind));
  for (size_t k = 0; k < CLV_COUNT(keys); k++) {
    read_next_word(p);
    if (!p->current_word.n && !keys[k].is_required) break;
    if (!is_current_word(p, keys[k].file_name))
      return fail_at_word(p, "%s is expected, not %s", keys[k].file_name, word_for_message(p, buf));
    CLV_TRY(parse_number(p, keys[k].file_name, false, keys[k].limit + 1, keys[k].value));
  }
  if (p->current_word.n) CLV_TRY(expect_line_end(p));
  if (!shape.n_stages || !shape.n_ranks || !shape.n_micro_batches)
    return fail_at_word(p, "stages, ranks and micro-batches are at least 1");
  return clv_sched_new(kind, &shape, window, &p->s, p->err);
}

/* ---- the other lines ------------------------------------------------------------------------- */

static clv_code parse_stage(sched_parser *p) {
  clv_sched_shape *shape = &p->s->shape;
  uint32_t stage, rank;
  char buf[32];
  CLV_TRY(parse_number(p, "a stage", false, shape->n_stages, &stage));
  if (p->has_rank[stage]) return fail_at_word(p, "stage %u has its rank already", stage);
  read_next_word(p);
  if (!is_current_word(p, "rank"))
    return fail_at_word(p, "rank is expected, not %s", word_for_message(p, buf));
  CLV_TRY(parse_number(p, "a rank", false, shape->n_ranks, &rank));
  shape->stage_rank[stage] = (uint16_t)rank;
  p->has_rank[stage] = true;
  return expect_line_end(p);
}

/* Parses the name of an instruction's kind, such as "F" or "sf", at *at, and moves *at behind it.
 * Returns false for another text. */
static bool parse_instr_kind(const char **at, const char *end, clv_instr_kind *ret) {
  for (int k = CLV_INSTR_KINDS - 1; k >= 0; k--) {
    size_t n = strlen(clv_instr_names[k]);
    if ((size_t)(end - *at) < n || memcmp(*at, clv_instr_names[k], n)) continue;
    *at += n;
    *ret = (clv_instr_kind)k;
    return true;
  }
  return false;
}

/* Parses a word such as "F3@0" or "F3@0-1": kind, micro-batch, stage, and how many steps old the
 * weights are. Returns false for another form. */
static bool parse_instr(const word *w, clv_instr_kind *kind, uint32_t *micro, uint32_t *stage,
                        uint32_t *age) {
  const char *at = w->text, *end = at + w->n;
  *age = 0;
  if (!parse_instr_kind(&at, end, kind) || !parse_digits(&at, end, micro)) return false;
  if (at == end || *at++ != '@' || !parse_digits(&at, end, stage)) return false;
  if (at < end && (*at++ != '-' || !parse_digits(&at, end, age) || *age == 0)) return false;
  return at == end && *age <= UINT8_MAX;
}

static clv_code parse_rank(sched_parser *p) {
  const clv_sched_shape *shape = &p->s->shape;
  uint32_t rank, micro, stage, age;
  clv_instr_kind kind;
  char buf[32];
  CLV_TRY(parse_number(p, "a rank", true, shape->n_ranks, &rank));
  for (read_next_word(p); p->current_word.n; read_next_word(p)) {
    if (!parse_instr(&p->current_word, &kind, &micro, &stage, &age))
      return fail_at_word(p,
                          "%s is no instruction: F3@0 is the forward of micro-batch 3 of stage 0",
                          word_for_message(p, buf));
    if (stage >= shape->n_stages)
      return fail_at_word(p, "%s: there are %u stages", word_for_message(p, buf), shape->n_stages);
    if (micro >= shape->n_micro_batches)
      return fail_at_word(p, "%s: there are %u micro-batches", word_for_message(p, buf),
                          shape->n_micro_batches);
    if (p->n_instrs++ >= CLV_SCHED_INSTRUCTIONS)
      return fail_at_word(p, "more than %d instructions", CLV_SCHED_INSTRUCTIONS);
    CLV_TRY(clv_sched_add_instr(p->s, rank, kind, stage, micro, age, p->err));
  }
  return CLV_OK;
}

static clv_code parse_lines(sched_parser *p) {
  char buf[32];
  while (read_next_line(p)) {
    if (is_current_word(p, "stage")) {
      CLV_TRY(parse_stage(p));
    } else if (is_current_word(p, "rank")) {
      CLV_TRY(parse_rank(p));
    } else {
      return fail_at_word(p, "a line starts with stage or rank, not %s", word_for_message(p, buf));
    }
  }
  for (uint32_t s = 0; s < p->s->shape.n_stages; s++)
    if (!p->has_rank[s]) return fail_at_word(p, "no line says which rank has stage %u", s);
  return CLV_OK;
}

clv_code clv_sched_parse(const char *name, const char *text, size_t n, clv_sched **ret,
                         clv_err *err) {
  sched_parser p = {.file_name = name,
                    .at = text,
                    .text_end = text + n,
                    .line_start = text,
                    .line_number = 1,
                    .err = err};
  clv_code code = parse_header(&p);
  if (code == CLV_OK) code = parse_lines(&p);
  if (code != CLV_OK) {
    clv_sched_free(p.s);
    return code;
  }
  *ret = p.s;
  return CLV_OK;
}
