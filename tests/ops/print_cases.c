/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the cases of all ops as JSON, one op per line, for tests/golden/make_golden.py. The
 * attributes with their defaults and the parameters are those that the ops' rows (kernels/ops)
 * derive, so make_golden.py needs no reader of .cases files of its own.
 */
#include "tests/ops/cases_int.h"

static const char *write_json_text(const char *text, char *buf, size_t len) {
  size_t n = 0;
  for (const char *p = text; *p && n + 3 < len; p++) {
    if (*p == '"' || *p == '\\') buf[n++] = '\\';
    buf[n++] = *p;
  }
  buf[n] = 0;
  return buf;
}

static void print_ints(const int64_t *v, int n) {
  printf("[");
  for (int i = 0; i < n; i++) printf("%s%lld", i ? ", " : "", (long long)v[i]);
  printf("]");
}

static void print_numbers(const float *v, int n) {
  printf("[");
  for (int i = 0; i < n; i++) printf("%s%.9g", i ? ", " : "", (double)v[i]);
  printf("]");
}

static void print_value(const clv_attr_value *v) {
  if (v->n_numbers)
    print_numbers(v->numbers, v->n_numbers);
  else if (v->is_number)
    printf("%.17g", v->number);
  else if (v->n_ints == 1 && v->key != CLV_ATTR_SHAPE)
    printf("%lld", (long long)v->ints[0]);
  else
    print_ints(v->ints, v->n_ints);
}

/* Prints every attribute of the op; clv_attrs_encode prints only those that differ from the
 * defaults. */
static void print_attrs(const clv_node_desc *d) {
  const clv_op_def *def = clv_op_def_of(d->op);
  clv_attr_value set_attrs[CLV_COUNT(def->attrs)];
  int n = clv_attrs_encode(d->op, &d->attrs, set_attrs, (int)CLV_COUNT(set_attrs));
  printf("\"attrs\": {");
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    int at = 0;
    while (at < n && set_attrs[at].key != row->key) at++;
    printf("%s\"%s\": ", row == def->attrs ? "" : ", ", clv_attr_name(row->key));
    if (row->key == CLV_ATTR_STRIDE)
      print_ints(d->attrs.stride, 2);
    else if (at < n)
      print_value(&set_attrs[at]);
    else
      printf("%.17g", row->default_value);
  }
  printf("}");
}

static void print_inputs(const op_case *c) {
  printf(", \"inputs\": [");
  for (int i = 0; i < c->d.n_in; i++) {
    bool is_integer = is_integer_input(c->d.op, i);
    printf("%s{\"shape\": ", i ? ", " : "");
    print_ints(c->d.in[i].dim, c->d.in[i].rank);
    printf(", \"fill\": \"%s\"", fill_names[i ? c->second_input_fill : c->input_fill]);
    if (is_integer && c->packed_lengths.rank && i == c->d.n_in - 1) {
      printf(", \"values\": ");
      print_ints(c->packed_lengths.dim, c->packed_lengths.rank);
    } else if (is_integer) {
      printf(", \"below\": %lld", (long long)get_integer_limit(&c->d, i));
    }
    printf("}");
  }
  printf("]");
}

/* Prints the parameters, except counters, which are not in the golden files. */
static void print_params(const clv_node_desc *d) {
  clv_slot slot[CLV_MAX_PARAMS];
  int n = get_slots(d, slot), n_printed = 0;
  printf(", \"params\": [");
  for (int i = 0; i < n; i++) {
    if (slot[i].is_i64) continue;
    printf("%s{\"name\": \"%s\", \"shape\": ", n_printed++ ? ", " : "", slot[i].suffix);
    print_ints(slot[i].shape.dim, slot[i].shape.rank);
    printf(", \"buffer\": %s, \"positive\": %s}", slot[i].is_buffer ? "true" : "false",
           slot[i].is_buffer && slot[i].init == CLV_INIT_ONE ? "true" : "false");
  }
  printf("]");
}

static void print_op(clv_op op) {
  char torch_json[2 * sizeof files[op].torch_call],
      reason_json[2 * sizeof files[op].no_golden_reason];
  int printed = 0;
  printf("{\"op\": \"%s\", \"torch\": \"%s\", \"none\": \"%s\", \"cases\": [", clv_op_name(op),
         write_json_text(files[op].torch_call, torch_json, sizeof torch_json),
         write_json_text(files[op].no_golden_reason, reason_json, sizeof reason_json));
  for (int i = 0; i < n_cases; i++) {
    if (cases[i].d.op != op || !cases[i].has_golden) continue;
    printf("%s{\"name\": \"%s\", \"training\": %s, ", printed++ ? ", " : "", cases[i].name,
           cases[i].d.training ? "true" : "false");
    print_attrs(&cases[i].d);
    print_inputs(&cases[i]);
    print_params(&cases[i].d);
    printf("}");
  }
  printf("]}\n");
}

int main(void) {
  int failed = 0;
  char name[300];
  read_all_cases();
  for (int op = 0; (op = get_next_op(op)) < CLV_OP_COUNT;) {
    if (!files[op].problem[0]) continue;
    fprintf(stderr, CASES_FOLDER "/%s.cases: %s\n", clv_op_name((clv_op)op), files[op].problem);
    failed = 1;
  }
  if (find_file_without_op(CASES_FOLDER, ".cases", name)) {
    fprintf(stderr, CASES_FOLDER "/%s.cases: no op is called so\n", name);
    failed = 1;
  }
  for (int op = 0; !failed && (op = get_next_op(op)) < CLV_OP_COUNT;) print_op((clv_op)op);
  return failed;
}
