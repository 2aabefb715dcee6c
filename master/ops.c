/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes the ops from their rows in the op table: the command `ops` and the manual page
 * cleave-ops(7).
 */
#include <stdio.h>

#include "common/model/graph/graph.h"
#include "kernels/ops/ops.h"
#include "master/master_int.h"

/* ---- attributes of an op --------------------------------------------------------------------- */

static bool is_flag_attr(const clv_attr_row *row) { return clv_attr_type_name(row->key)[0] == 't'; }

/* Appends the default value of an attribute as JSON, such as "false" or "0.5". Appends nothing if
 * the attribute has no default. */
static void put_default(const clv_op_def *def, const clv_attr_row *row, clv_bytes *out) {
  if (row->is_required || row->key == CLV_ATTR_SHAPE || row->key == CLV_ATTR_CLASS_WEIGHTS ||
      (row->key == CLV_ATTR_STRIDE && def->stride_is_kernel))
    return;
  if (is_flag_attr(row))
    clv_bytes_puts(out, row->default_value != 0 ? "true" : "false");
  else
    clv_bytes_printf(out, "%.10g", row->default_value);
}

static const char *describe_default(const clv_op_def *def, const clv_attr_row *row) {
  if (row->is_required) return "required";
  if (row->key == CLV_ATTR_SHAPE) return "the last one unless given";
  if (row->key == CLV_ATTR_CLASS_WEIGHTS) return "all alike unless given";
  if (row->key == CLV_ATTR_STRIDE && def->stride_is_kernel) return "the kernel's unless given";
  return NULL;
}

/* Describes an attribute, such as "integer, 1..8, 1 unless given: layers, one above the other". */
static void describe_attr(const clv_op_def *def, const clv_attr_row *row, clv_bytes *out) {
  const char *default_note = describe_default(def, row);
  clv_bytes_puts(out, clv_attr_type_name(row->key));
  if (!is_flag_attr(row)) clv_bytes_printf(out, ", %.10g..%.10g", row->low, row->high);
  clv_bytes_puts(out, ", ");
  if (default_note) {
    clv_bytes_puts(out, default_note);
  } else {
    put_default(def, row, out);
    clv_bytes_puts(out, " unless given");
  }
  clv_bytes_printf(out, ": %s (key %d)", clv_attr_doc(row->key), (int)row->key);
}

static void put_json_attr(const clv_op_def *def, const clv_attr_row *row, clv_bytes *out) {
  clv_bytes_printf(out, "{\"key\":%d,\"name\":", (int)row->key);
  clv_bytes_add_json(out, clv_attr_name(row->key));
  clv_bytes_puts(out, ",\"type\":");
  clv_bytes_add_json(out, clv_attr_type_name(row->key));
  clv_bytes_printf(out, ",\"required\":%s,\"default\":", row->is_required ? "true" : "false");
  size_t len_before = out->len;
  put_default(def, row, out);
  if (out->len == len_before) clv_bytes_puts(out, "null");
  clv_bytes_printf(out, ",\"low\":%.17g,\"high\":%.17g,\"doc\":", row->low, row->high);
  clv_bytes_add_json(out, clv_attr_doc(row->key));
  clv_bytes_puts(out, "}");
}

/* ---- parameters and backends ----------------------------------------------------------------- */

/* Finds the slots (descriptions) of an op's parameters. They depend on the attributes, so the
 * function takes the default of each attribute, and 1 for an attribute without a default. */
static int find_slots(clv_op op, const clv_op_def *def, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_attr_value values[CLV_COUNT(def->attrs)];
  clv_attrs attrs;
  int n = 0;
  for (const clv_attr_row *row = def->attrs; row->key; row++)
    if (row->is_required) values[n++] = (clv_attr_value){.key = row->key, .n_ints = 1, .ints = {1}};
  if (!def->slots || clv_attrs_parse(op, values, n, &attrs, NULL) != CLV_OK) return 0;
  clv_op_site site = {.attrs = &attrs, .n_in = 1, .in = {CLV_SHAPE(1, 1, 1, 1)}};
  return def->slots(&site, ret);
}

static void put_params(clv_op op, const clv_op_def *def, const char *quote, const char *separator,
                       clv_bytes *out) {
  clv_slot slots[CLV_MAX_PARAMS];
  int n = find_slots(op, def, slots);
  for (int i = 0; i < n; i++)
    clv_bytes_printf(out, "%s%s%s%s", i ? separator : "", quote, slots[i].suffix, quote);
}

/* Returns true if the CUDA backend has the op. The list of ops is compiled in, so it is known
 * without the backend's library, which is loaded only on a machine with a CUDA device. */
static bool has_cuda_op(clv_op op) {
  static const bool has_op[CLV_OP_COUNT] = {
#define CUDA_OP(name) [CLV_OP_NUMBER_##name] = true,
#include "cuda_ops.def"
#undef CUDA_OP
  };
  return has_op[op];
}

static bool has_ref_op(clv_op op) { return clv_backend_ref()->has(op); }
static bool has_cpu_op(clv_op op) { return clv_backend_cpu()->has(op); }

static void put_backends(clv_op op, const char *quote, const char *separator, clv_bytes *out) {
  static const struct {
    const char *name;
    bool (*has)(clv_op op);
  } backends[] = {{"ref", has_ref_op}, {"cpu", has_cpu_op}, {"cuda", has_cuda_op}};
  int n = 0;
  for (size_t i = 0; i < CLV_COUNT(backends); i++)
    if (backends[i].has(op))
      clv_bytes_printf(out, "%s%s%s%s", n++ ? separator : "", quote, backends[i].name, quote);
}

static void put_inputs(const clv_op_def *def, clv_bytes *out) {
  clv_bytes_printf(out, "%d", def->n_in);
  if (def->max_in > def->n_in) clv_bytes_printf(out, " to %d", def->max_in);
  if (def->takes_labels) clv_bytes_puts(out, ", the second i64 class numbers");
  if (def->takes_row_numbers) clv_bytes_puts(out, ", i64 row numbers");
  if (def->takes_lengths) clv_bytes_puts(out, ", the last i64 lengths");
}

/* ---- ops as text, manual page and JSON ------------------------------------------------------- */

typedef void print_op_fn(clv_op op, const clv_op_def *def, clv_bytes *out);

static void print_op_text(clv_op op, const clv_op_def *def, clv_bytes *out) {
  clv_bytes_printf(out, "%2d %s%s\n   %s\n", (int)op, def->name,
                   def->is_loss        ? " (a loss)"
                   : def->is_test_only ? " (for tests)"
                                       : "",
                   def->doc);
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    clv_bytes_printf(out, "   %-14s ", clv_attr_name(row->key));
    describe_attr(def, row, out);
    clv_bytes_puts(out, "\n");
  }
  clv_bytes_puts(out, "   inputs         ");
  put_inputs(def, out);
  if (def->slots) clv_bytes_puts(out, "\n   parameters     ");
  put_params(op, def, "", ", ", out);
  clv_bytes_puts(out, "\n   kernels        ");
  put_backends(op, "", ", ", out);
  clv_bytes_printf(out, "\n   torch.nn       %s%s%s\n", clv_op_torch_text(def),
                   def->torch_needs ? " with " : "", def->torch_needs ? def->torch_needs : "");
}

static void put_json_text(clv_bytes *out, const char *key, const char *text) {
  clv_bytes_printf(out, ",\"%s\":", key);
  clv_bytes_add_json(out, text ? text : "");
}

static void put_json_flag(clv_bytes *out, const char *key, bool value) {
  clv_bytes_printf(out, ",\"%s\":%s", key, value ? "true" : "false");
}

static void print_op_json(clv_op op, const clv_op_def *def, clv_bytes *out) {
  clv_bytes_printf(out, "{\"number\":%d", (int)op);
  put_json_text(out, "name", def->name);
  put_json_text(out, "formula", def->doc);
  clv_bytes_printf(out, ",\"inputs\":[%d,%d]", def->n_in, CLV_MAX(def->n_in, def->max_in));
  clv_bytes_puts(out, ",\"attributes\":[");
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    if (row != def->attrs) clv_bytes_puts(out, ",");
    put_json_attr(def, row, out);
  }
  clv_bytes_puts(out, "],\"parameters\":[");
  put_params(op, def, "\"", ",", out);
  clv_bytes_printf(out, "],\"most_parameters\":%d", clv_op_max_params(op));
  put_json_flag(out, "loss", def->is_loss);
  put_json_flag(out, "labels", def->takes_labels);
  put_json_flag(out, "rows", def->takes_row_numbers);
  put_json_flag(out, "lengths", def->takes_lengths);
  put_json_flag(out, "elementwise", def->elementwise);
  put_json_flag(out, "maps_zero_to_zero", def->maps_zero_to_zero);
  put_json_flag(out, "stride_is_kernel", def->stride_is_kernel);
  put_json_flag(out, "test_only", def->is_test_only);
  clv_bytes_puts(out, ",\"backends\":[");
  put_backends(op, "\"", ",", out);
  clv_bytes_puts(out, "]");
  put_json_text(out, "torch_module", def->torch_module);
  put_json_text(out, "torch_needs", def->torch_needs);
  put_json_text(out, "no_torch_module", def->no_torch_module);
  clv_bytes_puts(out, "}\n");
}

static void append_man_line(clv_bytes *out, const char *prefix, const clv_bytes *text) {
  clv_bytes_puts(out, prefix);
  if (!text->failed && text->len) clv_bytes_add_roff(out, text->data);
  clv_bytes_puts(out, ".\n");
}

static void print_op_man(clv_op op, const clv_op_def *def, clv_bytes *out) {
  clv_bytes_puts(out, ".SS ");
  clv_bytes_add_roff(out, def->name);
  clv_bytes_puts(out, "\n");
  clv_bytes_add_roff(out, def->doc);
  clv_bytes_puts(out, ".\n");
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    clv_bytes_puts(out, ".TP\n\\fB");
    clv_bytes_add_roff(out, clv_attr_name(row->key));
    describe_attr(def, row, &text);
    append_man_line(out, "\\fR\n", &text);
  }
  CLV_AUTO(clv_bytes_done) clv_bytes inputs = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes params = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes backends = {0};
  put_inputs(def, &inputs);
  put_params(op, def, "", ", ", &params);
  put_backends(op, "", ", ", &backends);
  append_man_line(out, ".PP\nInputs: ", &inputs);
  if (params.len) append_man_line(out, "Parameters: ", &params);
  append_man_line(out, "Kernels: ", &backends);
}

static void print_ops(print_op_fn *print, clv_bytes *out) {
  for (int op = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op);
    if (def) print((clv_op)op, def, out);
  }
}

clv_code clv_ops_man(clv_bytes *out, clv_err *err) {
  clv_bytes_printf(out, ".TH CLEAVE\\-OPS 7 \"\" \"Cleave %s\" \"Cleave\"\n", CLV_VERSION);
  clv_bytes_puts(out,
                 ".SH NAME\ncleave\\-ops \\- the operations that layers are made of\n"
                 ".SH DESCRIPTION\n"
                 "A layer of a session file names one of these operations as its\n"
                 "\\fBop\\fR and may give its attributes. Losses are named by\n"
                 "\\fBloss.kind\\fR. Operations of two inputs join branches, which only\n"
                 "programs on libcleave have. The attributes stand below each operation with\n"
                 "their type, range and default. A backend without a kernel of its own for an\n"
                 "operation takes that of\n\\fBref\\fR, which has all.\n"
                 ".SH OPERATIONS\n");
  print_ops(print_op_man, out);
  clv_bytes_puts(out, ".SH SEE ALSO\ncleave\\-master(1), cleave\\-session.yaml(5)\n");
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for the page") : CLV_OK;
}

int clv_cmd_ops(void *args) {
  const clv_master_arguments *a = args;
  print_op_fn *print = a->run.json ? print_op_json : print_op_text;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err;
  clv_op op;
  if (!a->line.n_words)
    print_ops(print, &text);
  else if (clv_op_find(a->line.words[0], &op, &err) == CLV_OK)
    print(op, clv_op_def_of(op), &text);
  else
    return clv_cli_usage(&a->line, "%s", err.text);
  if (text.failed) {
    clv_fail(&err, CLV_EXHAUSTED, "no memory for the list");
    return clv_exit_report(CLV_EXIT_FAILED, &err);
  }
  fputs(text.data, stdout);
  return CLV_EXIT_OK;
}
