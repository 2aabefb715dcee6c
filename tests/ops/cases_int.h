/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the test cases of the ops, kernels/ops/NAME.cases, as node descriptions. The properties of
 * an op come from its row in the table of ops. A file has lines of two kinds; `#` starts a comment.
 *
 *   KEY: VALUE                      one of
 *     torch: EXPRESSION             what the op is in PyTorch, for tests/golden/make_golden.py
 *     none: REASON                  instead of torch: why PyTorch has no such op
 *     second: FILL                  how inputs after the first are drawn; default: normal
 *     cpu: ref, REASON              the cpu backend has no kernel of its own: it falls back to ref
 *     cpu: images                   the cpu backend has a kernel for inputs of rank 4 only
 *     layout: any                   the cpu kernel takes any channel block offered for images
 *     refused: KEY=VALUE... | TEXT  inputs or attributes that the op refuses, and the error's text
 *   CASE in=NxCxHxW [KEY=VALUE...]  a case, with attributes of the op and
 *     in1, in2...                   shapes of further inputs that differ from the first input's
 *     lengths=AxBx...               lengths of its packed sequences, the values of its last input
 *     training=1                    dropout drops, batchnorm takes the batch's statistics
 *     fill                          how input 0 is drawn: normal, ties (few distinct values, zeros
 *                                   and negative ones among them), nan (normal with a few NaN),
 *                                   inf (normal with a few infinities of both signs),
 *                                   unit (0..1), edge (0 and 1 and between), big (up to +-90),
 *                                   shifted (around 1000, where exp overflows)
 *     golden=0                      too big for a golden file: only backends are compared
 *
 * If a file is missing, has no case or has a fault, the `problem` of its op says so, and every test
 * of that op fails with this text.
 */
#ifndef CLEAVE_CASES_INT_H
#define CLEAVE_CASES_INT_H

#include "common/model/graph/graph.h"
#include "kernels/ops/ops.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_FOLDER "kernels/ops"

typedef enum fill {
  FILL_NORMAL,
  FILL_TIES,
  FILL_NAN,
  FILL_INF,
  FILL_UNIT,
  FILL_EDGE,
  FILL_BIG,
  FILL_SHIFTED,
  FILL_COUNT
} fill;

static const char *const fill_names[FILL_COUNT] = {"normal", "ties", "nan", "inf",
                                                   "unit",   "edge", "big", "shifted"};

typedef struct op_case {
  char name[32];
  /* description of the op's node; need_dx and need_dw are true for every gradient that exists */
  clv_node_desc d;
  fill input_fill, second_input_fill;
  uint64_t key_words;       /* bit k: the case sets the attribute with key k (clv_attr_key) */
  clv_shape packed_lengths; /* lengths of the packed sequences; rank 0: not packed */
  bool is_small; /* false: the line says golden=0, because the case is too big for a golden file */
  bool has_golden; /* the golden files have the case: it is small, and PyTorch has the op */
} op_case;

typedef struct op_file {
  char torch_call[200], no_golden_reason[200];
  fill second_input_fill;
  /* the file has `cpu: ref` (the CPU backend has no kernel), or `cpu: images` (it has kernels for
   * images only) */
  bool has_no_cpu_kernel, has_cpu_for_images_only;
  bool accepts_any_layout; /* the file has `layout: any`: cpu takes any offered block */
  int n_cases, n_golden;
  char problem[300]; /* the first error of the file; "": none */
} op_file;

typedef struct op_refusal {
  clv_op op;
  char key_words[120], refusal_text[160];
} op_refusal;

enum { MAX_CASES = 1024, MAX_REFUSALS = 256 };

static op_case cases[MAX_CASES];
static int n_cases;
static op_file files[CLV_OP_COUNT];
static op_refusal refusals[MAX_REFUSALS];
static int n_refusals;

/* Returns the next op of the list of ops after `op`; CLV_OP_COUNT after the last. */
static inline int get_next_op(int op) {
  do op++;
  while (op < CLV_OP_COUNT && !clv_op_def_of((clv_op)op));
  return op;
}

/* ---- properties of ops, from the table of ops ------------------------------------------------ */

static inline bool has_labels(clv_op op) { return clv_op_def_of(op)->takes_labels; }
static inline bool is_loss(clv_op op) { return clv_op_def_of(op)->is_loss; }

/* True if input i holds integers: class labels, row numbers or lengths. */
static inline bool is_integer_input(clv_op op, int i) {
  return clv_op_int_input_text(clv_op_def_of(op), i);
}

/* Returns the least integer that input i may not hold: the number of rows for row numbers, of
 * classes for labels, and the number of steps plus 1 for lengths. Steps are those of input 1; of
 * input 0 for the op `last`. */
static inline int64_t get_integer_limit(const clv_node_desc *d, int i) {
  const clv_op_def *def = clv_op_def_of(d->op);
  return def->takes_row_numbers && !i  ? d->attrs.rows
         : def->takes_labels && i == 1 ? d->in[0].dim[d->in[0].rank - 1]
                                       : (d->op == CLV_OP_LAST ? d->in[0] : d->in[1]).dim[1] + 1;
}

static inline clv_op_site make_site(const clv_node_desc *d) {
  clv_op_site site = {.attrs = &d->attrs, .n_in = d->n_in};
  for (int i = 0; i < d->n_in; i++) {
    site.in[i] = d->in[i];
    site.in_dtype[i] = is_integer_input(d->op, i) ? CLV_I64 : CLV_F32;
  }
  return site;
}

static inline int get_slots(const clv_node_desc *d, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_op_site site = make_site(d);
  const clv_op_def *def = clv_op_def_of(d->op);
  memset(ret, 0, CLV_MAX_PARAMS * sizeof *ret);
  return def->slots ? def->slots(&site, ret) : 0;
}

static inline clv_slot get_slot(const clv_node_desc *d, int i) {
  clv_slot slots[CLV_MAX_PARAMS];
  get_slots(d, slots);
  return slots[i];
}

/* ---- reading the files of cases -------------------------------------------------------------- */

CLV_PRINTF(2, 3) static inline void record_problem(clv_op op, const char *format, ...) {
  /* only the first error is kept, because later ones may follow from it */
  if (files[op].problem[0]) return;
  va_list args;
  va_start(args, format);
  vsnprintf(files[op].problem, sizeof files[op].problem, format, args);
  va_end(args);
}

static inline int find_name(const char *word, const char *const *names, int n) {
  for (int i = 0; i < n; i++)
    if (names[i] && strcmp(names[i], word) == 0) return i;
  return -1;
}

/* Parses "3x2x2" into at most CLV_MAX_RANK numbers. Returns how many, or -1. */
static inline int parse_extents(const char *text, int64_t ret[CLV_MAX_RANK]) {
  char *end;
  for (int n = 0; n < CLV_MAX_RANK; text = end + 1) {
    ret[n++] = strtoll(text, &end, 10);
    if (end == text || !*end) return end == text ? -1 : n;
    if (*end != 'x') return -1;
  }
  return -1;
}

/* Parses "0.5x2x1" into a list of numbers, which stays in static memory. */
static inline bool parse_numbers(const char *text, clv_attr_value *ret) {
  static float lists[MAX_CASES][8];
  static int n_lists;
  float *list = lists[n_lists < MAX_CASES ? n_lists++ : 0];
  char *end;
  for (ret->n_numbers = 0; ret->n_numbers < 8; text = end + 1) {
    list[ret->n_numbers++] = strtof(text, &end);
    if (end == text || (*end && *end != 'x')) return false;
    if (!*end) break;
  }
  ret->numbers = list;
  return !*end;
}

static inline bool parse_attr(clv_op op, const char *key, const char *text, clv_attr_value *ret) {
  clv_err err;
  *ret = (clv_attr_value){0};
  if (clv_op_attr_find(op, key, &ret->key, &err) != CLV_OK) {
    record_problem(op, "%s", err.text);
    return false;
  }
  if (!strcmp(clv_attr_type_name(ret->key), "list of numbers")) {
    bool is_good = parse_numbers(text, ret);
    if (!is_good) record_problem(op, "%s=%s is no list of up to 8 numbers", key, text);
    return is_good;
  }
  ret->is_number = strpbrk(text, ".e") != NULL;
  if (ret->is_number)
    ret->number = atof(text);
  else if ((ret->n_ints = parse_extents(text, ret->ints)) < 0)
    record_problem(op, "%s=%s is no number", key, text);
  return ret->is_number || ret->n_ints >= 0;
}

/* Parses KEY=VALUE if KEY is one of the words of a case, such as in, lengths or training. Returns
 * false if KEY may be an attribute of the op. */
static inline bool parse_case_key(op_case *c, const char *key, const char *value) {
  if (key[0] == 'i' && key[1] == 'n' && (!key[2] || (key[2] >= '1' && key[2] <= '7' && !key[3]))) {
    clv_shape *in = &c->d.in[key[2] ? key[2] - '0' : 0];
    in->rank = parse_extents(value, in->dim);
  } else if (!strcmp(key, "lengths")) {
    c->packed_lengths.rank = parse_extents(value, c->packed_lengths.dim);
  } else if (!strcmp(key, "training")) {
    c->d.training = *value == '1';
  } else if (!strcmp(key, "golden")) {
    c->is_small = *value == '1';
  } else if (!strcmp(key, "fill")) {
    int at = find_name(value, fill_names, FILL_COUNT);
    if (at < 0) record_problem(c->d.op, "%s: fill=%s is unknown", c->name, value);
    c->input_fill = (fill)at;
  } else {
    return false;
  }
  return true;
}

/* Sets the shapes of the inputs that the line does not give: each has the shape of in[0], and
 * labels have that shape without its last dimension. */
static inline void set_default_inputs(clv_node_desc *d) {
  const clv_op_def *def = clv_op_def_of(d->op);
  for (int i = 1; d->attrs.packed && i < def->max_in - 1; i++)
    if (!d->in[i].rank) d->in[i] = d->in[0];
  for (d->n_in = 1; d->n_in < CLV_MAX_IN && d->in[d->n_in].rank;) d->n_in++;
  for (; d->n_in < def->n_in; d->n_in++) {
    d->in[d->n_in] = d->in[0];
    if (def->takes_labels) d->in[d->n_in].rank--;
  }
}

/* Derives the shapes of output and parameters from op, attributes and inputs. */
static inline clv_code finish_case(clv_node_desc *d, clv_err *err) {
  clv_slot slots[CLV_MAX_PARAMS];
  set_default_inputs(d);
  clv_op_site site = make_site(d);
  CLV_TRY(clv_op_def_of(d->op)->shape(&site, &d->out, err));
  d->n_params = get_slots(d, slots);
  for (int i = 0; i < d->n_params; i++) d->param[i] = slots[i].shape;
  for (int i = 0; i < d->n_in; i++) {
    d->need_dx[i] = !is_integer_input(d->op, i);
    d->offered_block[i] = 1;
  }
  d->need_dw = d->n_params > 0;
  d->threads = 1;
  return CLV_OK;
}

/* Parses attributes and inputs from a case's line into c->d. *err receives an error of the op. */
static inline clv_code parse_case_words(op_case *c, char **rest, clv_err *err) {
  clv_attr_value values[16];
  int n = 0;
  for (char *word; (word = strtok_r(NULL, " \n", rest));) {
    char *equals = strchr(word, '=');
    if (equals) *equals = 0;
    if (!equals || n == CLV_COUNT(values))
      record_problem(c->d.op, "%s: '%s' is not KEY=VALUE, or one too many", c->name, word);
    else if (!parse_case_key(c, word, equals + 1) &&
             parse_attr(c->d.op, word, equals + 1, &values[n]))
      c->key_words |= (uint64_t)1 << values[n++].key;
  }
  CLV_TRY(clv_attrs_parse(c->d.op, values, n, &c->d.attrs, err));
  if (c->packed_lengths.rank > 0)
    c->d.in[clv_op_def_of(c->d.op)->max_in - 1] = CLV_SHAPE(c->packed_lengths.rank);
  return finish_case(&c->d, err);
}

static inline void read_case_line(clv_op op, char *line) {
  char *rest = NULL, *name = strtok_r(line, " \n", &rest);
  op_file *f = &files[op];
  if (n_cases == MAX_CASES) {
    record_problem(op, "%s is one case too many", name);
    return;
  }
  op_case *c = &cases[n_cases];
  *c = (op_case){.is_small = true, .second_input_fill = f->second_input_fill, .d.op = op};
  snprintf(c->name, sizeof c->name, "%s", name);
  for (int i = 0; i < n_cases; i++)
    if (!strcmp(cases[i].name, c->name)) record_problem(op, "two cases are called %s", c->name);
  clv_err err;
  if (parse_case_words(c, &rest, &err) != CLV_OK) {
    record_problem(op, "%s: %s", c->name, err.text);
    return;
  }
  if (!c->d.attrs.packed != !c->packed_lengths.rank)
    record_problem(op, "%s: packed sequences have lengths=, and others none", c->name);
  c->has_golden = c->is_small && !f->no_golden_reason[0];
  f->n_cases++;
  f->n_golden += c->has_golden;
  n_cases++;
}

static inline void read_refusal_line(clv_op op, const char *value) {
  op_refusal *r = &refusals[n_refusals];
  const char *separator = strstr(value, " | ");
  if (!separator || separator - value >= (int)sizeof r->key_words ||
      strlen(separator + 3) >= sizeof r->refusal_text || n_refusals == MAX_REFUSALS) {
    record_problem(op, "'refused: %.80s' is not KEY=VALUE... | TEXT, too long, or one too many",
                   value);
    return;
  }
  r->op = op;
  snprintf(r->key_words, sizeof r->key_words, "%.*s", (int)(separator - value), value);
  snprintf(r->refusal_text, sizeof r->refusal_text, "%s", separator + 3);
  n_refusals++;
}

static inline void read_case_file_key(clv_op op, const char *key, const char *value) {
  op_file *f = &files[op];
  int at = find_name(value, fill_names, FILL_COUNT);
  if (!strcmp(key, "torch") && strlen(value) < sizeof f->torch_call)
    snprintf(f->torch_call, sizeof f->torch_call, "%s", value);
  else if (!strcmp(key, "none") && strlen(value) < sizeof f->no_golden_reason)
    snprintf(f->no_golden_reason, sizeof f->no_golden_reason, "%s", value);
  else if (!strcmp(key, "refused"))
    read_refusal_line(op, value);
  else if (!strcmp(key, "second") && at >= 0)
    f->second_input_fill = (fill)at;
  else if (!strcmp(key, "cpu") && !strncmp(value, "ref, ", 5))
    f->has_no_cpu_kernel = true;
  else if (!strcmp(key, "cpu") && !strcmp(value, "images"))
    f->has_cpu_for_images_only = true;
  else if (!strcmp(key, "layout") && !strcmp(value, "any"))
    f->accepts_any_layout = true;
  else
    record_problem(op, "'%s: %.80s' is unknown", key, value);
}

static inline void read_case_file_line(clv_op op, char *line) {
  line[strcspn(line, "\n")] = 0;
  char *colon = strchr(line, ':'), *space = strchr(line, ' ');
  if (line[0] == '#' || !line[0]) return;
  if (!colon || (space && space < colon)) {
    read_case_line(op, line);
    return;
  }
  *colon = 0;
  read_case_file_key(op, line, colon + 1 + strspn(colon + 1, " "));
}

static inline void read_case_file(clv_op op) {
  char path[80], line[400];
  op_file *f = &files[op];
  snprintf(path, sizeof path, CASES_FOLDER "/%s.cases", clv_op_name(op));
  FILE *in = fopen(path, "r");
  if (!in) {
    record_problem(op, "there is no such file (tests run from the root of the repository)");
    return;
  }
  while (fgets(line, sizeof line, in)) read_case_file_line(op, line);
  fclose(in);
  if (!f->torch_call[0] == !f->no_golden_reason[0])
    record_problem(op, "it needs either 'torch: EXPRESSION' or 'none: REASON'");
  if (!f->n_cases) record_problem(op, "it has no case");
  if (!f->n_golden && !f->no_golden_reason[0]) record_problem(op, "it has no case for a golden");
}

/* Reads the cases of all ops from their files. */
static inline void read_all_cases(void) {
  for (int op = 0; (op = get_next_op(op)) < CLV_OP_COUNT;) read_case_file((clv_op)op);
}

/* Searches the folder for a file NAME`ending` without an op that is called NAME. Returns NAME, in
 * buf; NULL: there is no such file. */
static inline const char *find_file_without_op(const char *folder, const char *ending,
                                               char buf[300]) {
  DIR *dir = opendir(folder);
  const char *found = NULL;
  for (struct dirent *e; dir && !found && (e = readdir(dir));) {
    clv_op op;
    clv_err err;
    size_t n = strlen(e->d_name), end = strlen(ending);
    if (n < end || strcmp(e->d_name + n - end, ending) != 0) continue;
    snprintf(buf, 300, "%.*s", (int)(n - end), e->d_name);
    if (clv_op_find(buf, &op, &err) != CLV_OK) found = buf;
  }
  if (dir) closedir(dir);
  return found;
}

#endif
