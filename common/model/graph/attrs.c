/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of attributes between lists of (key, value), as in files and messages, and clv_attrs.
 * clv_attrs_parse reads a list, clv_attrs_encode writes one; `keys` describes each attribute.
 */
#include "common/model/graph/graph_int.h"

#include <math.h>
#include <string.h>

typedef enum attr_kind {
  KIND_INT,
  KIND_PAIR,
  KIND_BOOL,
  KIND_REAL,
  KIND_EXTENTS,
  KIND_WEIGHTS
} attr_kind;

_Static_assert(CLV_ATTR_COUNT <= 64, "a bit for each key");

/* Makes the row of an attribute. The attribute has the name of its field in clv_attrs. */
#define KEY(field, kind_of, text) \
  { .name = #field, .kind = kind_of, .offset = offsetof(clv_attrs, field), .doc = text }

static const struct {
  const char *name;
  attr_kind kind;
  size_t offset; /* offset of the field in clv_attrs */
  const char *doc;
} keys[CLV_ATTR_COUNT] = {
    [CLV_ATTR_OUT] = KEY(out, KIND_INT, "features or channels out; of lstm the hidden size"),
    [CLV_ATTR_KERNEL] = KEY(kernel, KIND_PAIR, "size of the window"),
    [CLV_ATTR_STRIDE] = KEY(stride, KIND_PAIR, "step of the window"),
    [CLV_ATTR_PAD] = KEY(pad, KIND_PAIR, "padding on each side of the image"),
    [CLV_ATTR_GROUPS] = KEY(groups, KIND_INT, "groups of channels that do not meet"),
    [CLV_ATTR_BIAS] = KEY(bias, KIND_BOOL, "whether a bias is added"),
    [CLV_ATTR_P] = KEY(p, KIND_REAL, "probability of zero; of quantile the quantile"),
    [CLV_ATTR_EPS] = KEY(eps, KIND_REAL, "is added to the variance"),
    [CLV_ATTR_MOMENTUM] = KEY(momentum, KIND_REAL, "share of the batch in the running statistics"),
    [CLV_ATTR_SHAPE] = KEY(shape, KIND_EXTENTS, "extents, without the batch"),
    [CLV_ATTR_ROWS] = KEY(rows, KIND_INT, "rows of the table"),
    [CLV_ATTR_LAYERS] = KEY(layers, KIND_INT, "layers, one above the other"),
    [CLV_ATTR_DIM] = KEY(dim, KIND_INT, "dimension; negative ones count from the end"),
    [CLV_ATTR_START] = KEY(start, KIND_INT, "first index; negative ones count from the end"),
    [CLV_ATTR_STOP] = KEY(stop, KIND_INT, "first index behind; negative ones count from the end"),
    [CLV_ATTR_FACTOR] =
        KEY(factor, KIND_REAL, "number to multiply by; of rotary, to divide angles by"),
    [CLV_ATTR_FORWARD_MS] = KEY(forward_ms, KIND_INT, "milliseconds that forward takes"),
    [CLV_ATTR_INPUT_MS] = KEY(input_ms, KIND_INT, "milliseconds that the input gradient takes"),
    [CLV_ATTR_WEIGHT_MS] = KEY(weight_ms, KIND_INT, "milliseconds that the weight gradient takes"),
    [CLV_ATTR_KAIMING_NORMAL] =
        KEY(kaiming_normal, KIND_BOOL, "initial weights of kaiming_normal_ (fan_out, relu)"),
    [CLV_ATTR_HEADS] = KEY(heads, KIND_INT, "heads of the queries"),
    [CLV_ATTR_KV_HEADS] =
        KEY(kv_heads, KIND_INT, "heads of keys and values, shared by groups of queries; 0: heads"),
    [CLV_ATTR_CAUSAL] = KEY(causal, KIND_BOOL, "whether a step sees none behind it"),
    [CLV_ATTR_ORDER] = KEY(order, KIND_EXTENTS, "dimensions behind the batch, in their new order"),
    [CLV_ATTR_BASE] = KEY(base, KIND_REAL, "base of the angles"),
    [CLV_ATTR_COLUMN] = KEY(column, KIND_INT,
                            "column of the last dimension that has the row numbers; -1: all have"),
    [CLV_ATTR_MINUS] = KEY(minus, KIND_INT, "column that is subtracted from it; -1: none"),
    [CLV_ATTR_OFFSET] = KEY(offset, KIND_INT, "row of the first step"),
    [CLV_ATTR_BARE] =
        KEY(bare, KIND_BOOL, "whether the parameter is called as the layer, without .weight"),
    [CLV_ATTR_IGNORE_INDEX] = KEY(ignore_index, KIND_INT, "label of places that are not counted"),
    [CLV_ATTR_LABEL_SMOOTHING] =
        KEY(label_smoothing, KIND_REAL, "share of a label that all classes have alike"),
    [CLV_ATTR_INIT_STD] =
        KEY(init_std, KIND_REAL, "deviation of the first weights, biases then 0; 0: the op's own"),
    [CLV_ATTR_TRANSPOSED] = KEY(transposed, KIND_BOOL, "whether the weight is stored [in, out]"),
    [CLV_ATTR_CLASS_WEIGHTS] =
        KEY(class_weights, KIND_WEIGHTS, "weight of each class, at most 128"),
    [CLV_ATTR_DILATION] =
        KEY(dilation, KIND_PAIR, "distance from one tap of the window to the next"),
    [CLV_ATTR_OUTPUT_PAD] =
        KEY(output_pad, KIND_PAIR, "places at the end of the output that a stride leaves open"),
    [CLV_ATTR_PACKED] =
        KEY(packed, KIND_INT, "most places of a sequence, where they are packed; 0: they are not"),
    [CLV_ATTR_FIRST] =
        KEY(first, KIND_BOOL, "whether it is the first place of packed sequences instead"),
    [CLV_ATTR_PADDING_IDX] =
        KEY(padding_idx, KIND_INT, "row that begins with 0 and gets no gradient; -1: none"),
    [CLV_ATTR_MIN] = KEY(min, KIND_REAL, "least output; the end of the range: no bound"),
    [CLV_ATTR_MAX] = KEY(max, KIND_REAL, "largest output; the end of the range: no bound"),
    [CLV_ATTR_MIN_VAL] = KEY(min_val, KIND_REAL, "least output"),
    [CLV_ATTR_MAX_VAL] = KEY(max_val, KIND_REAL, "largest output"),
    [CLV_ATTR_ALPHA] = KEY(alpha, KIND_REAL, "factor of e^x - 1"),
    [CLV_ATTR_BETA] = KEY(beta, KIND_REAL,
                          "factor of the input; of losses the error up to which they are squares"),
    [CLV_ATTR_THRESHOLD] = KEY(
        threshold, KIND_REAL,
        "softplus: product beta x above which y is x; where: the values of a are taken above it"),
    [CLV_ATTR_EXPONENT] = KEY(exponent, KIND_REAL, "exponent"),
    [CLV_ATTR_INIT] = KEY(init, KIND_REAL, "initial weight"),
    [CLV_ATTR_NUM_PARAMETERS] =
        KEY(num_parameters, KIND_INT, "weights: 1, or one for each channel"),
    [CLV_ATTR_OUTPUT_SIZE] = KEY(output_size, KIND_PAIR, "extents of the output's images"),
    [CLV_ATTR_SIZE] = KEY(size, KIND_PAIR, "extents of the output's images; 0: not given"),
    [CLV_ATTR_SCALE_FACTOR] =
        KEY(scale_factor, KIND_REAL, "extents of the output by those of the input; 0: not given"),
    [CLV_ATTR_ALIGN_CORNERS] =
        KEY(align_corners, KIND_BOOL, "whether corners of input and output lie on each other"),
    [CLV_ATTR_AFFINE] = KEY(affine, KIND_BOOL, "whether channels have a weight and a bias"),
    [CLV_ATTR_CORRECTION] = KEY(correction, KIND_INT, "number by which the divisor is smaller"),
    [CLV_ATTR_SHIFTS] = KEY(shifts, KIND_INT, "places by which values move"),
    [CLV_ATTR_ORIGINAL] =
        KEY(original, KIND_INT, "steps of the training before; 0: factor divides all angles"),
    [CLV_ATTR_LOW_FREQ_FACTOR] =
        KEY(low_freq_factor, KIND_REAL, "turns within these up to which factor divides an angle"),
    [CLV_ATTR_HIGH_FREQ_FACTOR] =
        KEY(high_freq_factor, KIND_REAL, "turns within these from which an angle is not divided"),
    [CLV_ATTR_INIT_ZERO] = KEY(init_zero, KIND_BOOL, "whether it begins with 0"),
};

static bool is_known_key(clv_attr_key key) {
  return key > 0 && key < CLV_ATTR_COUNT && keys[key].name;
}

const char *clv_attr_name(clv_attr_key key) { return is_known_key(key) ? keys[key].name : "?"; }

const char *clv_attr_doc(clv_attr_key key) { return is_known_key(key) ? keys[key].doc : ""; }

const char *clv_attr_type_name(clv_attr_key key) {
  static const char *const names[] = {[KIND_INT] = "integer",
                                      [KIND_PAIR] = "integer or [height, width]",
                                      [KIND_BOOL] = "true or false",
                                      [KIND_REAL] = "number",
                                      [KIND_EXTENTS] = "list of integers",
                                      [KIND_WEIGHTS] = "list of numbers"};
  return is_known_key(key) ? names[keys[key].kind] : "";
}

static const clv_attr_row *find_attr_row(const clv_op_def *def, clv_attr_key key) {
  for (const clv_attr_row *row = def->attrs; row->key; row++)
    if (row->key == key) return row;
  return NULL;
}

clv_code clv_op_attr_find(clv_op op, const char *key, clv_attr_key *ret, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  const char *names[CLV_COUNT(def->attrs)];
  char known_names[160] = "";
  size_t n = 0, used = 0;
  for (const clv_attr_row *row = def ? def->attrs : NULL; row && row->key; row++) {
    const char *name = keys[row->key].name;
    if (strcmp(name, key) == 0) {
      *ret = row->key;
      return CLV_OK;
    }
    names[n++] = name;
    size_t len = strlen(name);
    memcpy(known_names + used, ", ", 2);
    memcpy(known_names + used + 2, name, len + 1);
    used += len + 2;
  }
  if (n == 0)
    return clv_fail(err, CLV_NOT_FOUND, "%s has no attribute '%.64s'; it takes none",
                    clv_op_name(op), key);
  const char *suggestion = clv_did_you_mean(key, names, n);
  return clv_fail(err, CLV_NOT_FOUND, "%s has no attribute '%.64s'%s%s%s takes %s", clv_op_name(op),
                  key, suggestion ? ", did you mean '" : "", suggestion ? suggestion : "",
                  suggestion ? "'? It" : "; it", known_names + 2);
}

static void *field_of_attr(clv_attrs *attrs, clv_attr_key key) {
  return (char *)attrs + keys[key].offset;
}

static void set_default(clv_attrs *attrs, const clv_attr_row *row) {
  void *field = field_of_attr(attrs, row->key);
  /* only an integer default is converted to an integer, because a real one, such as clamp's
   * -FLT_MAX, may not fit */
  bool is_real = keys[row->key].kind == KIND_REAL;
  int64_t int_default = is_real ? 0 : (int64_t)row->default_value;
  switch (keys[row->key].kind) {
    case KIND_INT:
      *(int64_t *)field = int_default;
      break;
    case KIND_PAIR:
      ((int64_t *)field)[0] = ((int64_t *)field)[1] = int_default;
      break;
    case KIND_BOOL:
      *(bool *)field = int_default != 0;
      break;
    case KIND_REAL:
      *(double *)field = row->default_value;
      break;
    case KIND_EXTENTS:
      *(clv_shape *)field = (clv_shape){0};
      break;
    case KIND_WEIGHTS:
      *(clv_class_weights *)field = (clv_class_weights){0};
      break;
  }
}

static clv_code check_ints(const char *op, const clv_attr_row *row, const clv_attr_value *v,
                           int low_n, int high_n, clv_err *err) {
  const char *name = keys[row->key].name;
  if (v->is_number || v->n_ints < low_n || v->n_ints > high_n)
    return clv_fail(err, CLV_INVALID, "%s.%s needs %s", op, name,
                    high_n == 1 ? keys[row->key].kind == KIND_BOOL ? "true or false" : "one integer"
                    : high_n == 2 ? "an integer or a pair [height, width]"
                                  : "a list of 1 to 7 integers");
  for (int i = 0; i < v->n_ints; i++)
    if ((double)v->ints[i] < row->low || (double)v->ints[i] > row->high)
      return clv_fail(err, CLV_INVALID, "%s.%s is %lld, outside %.0f..%.0f", op, name,
                      (long long)v->ints[i], row->low, row->high);
  return CLV_OK;
}

static clv_code set_real(const char *op, const clv_attr_row *row, const clv_attr_value *v,
                         double *ret, clv_err *err) {
  if (!v->is_number && v->n_ints != 1)
    return clv_fail(err, CLV_INVALID, "%s.%s needs a number", op, keys[row->key].name);
  double x = v->is_number ? v->number : (double)v->ints[0];
  if (!(x >= row->low && x <= row->high))
    return clv_fail(err, CLV_INVALID, "%s.%s is %g, outside %g..%g", op, keys[row->key].name, x,
                    row->low, row->high);
  *ret = x;
  return CLV_OK;
}

/* Returns entry i of a list of numbers, which may be given as a list of reals, a list of integers
 * or one real number. */
static double list_number_at(const clv_attr_value *v, int i) {
  if (v->n_numbers) return (double)v->numbers[i];
  return v->is_number ? v->number : (double)v->ints[i];
}

static clv_code set_class_weights(const char *op, const clv_attr_row *row, const clv_attr_value *v,
                                  clv_class_weights *ret, clv_err *err) {
  int n = v->n_numbers ? v->n_numbers : v->is_number ? 1 : v->n_ints;
  if (n < 1 || n > CLV_MAX_CLASS_WEIGHTS)
    return clv_fail(err, CLV_INVALID, "%s.%s needs a list of 1 to %d numbers", op,
                    keys[row->key].name, CLV_MAX_CLASS_WEIGHTS);
  for (int i = 0; i < n; i++) {
    double x = list_number_at(v, i);
    if (!(x >= row->low && x <= row->high))
      return clv_fail(err, CLV_INVALID, "%s.%s has %g, outside %g..%g", op, keys[row->key].name, x,
                      row->low, row->high);
    ret->of[i] = (float)x;
  }
  ret->n = n;
  return CLV_OK;
}

static clv_code set_value(const char *op, const clv_attr_row *row, const clv_attr_value *v,
                          clv_attrs *attrs, clv_err *err) {
  void *field = field_of_attr(attrs, row->key);
  attr_kind kind = keys[row->key].kind;
  if (kind == KIND_REAL) return set_real(op, row, v, field, err);
  if (kind == KIND_WEIGHTS) return set_class_weights(op, row, v, field, err);
  CLV_TRY(check_ints(op, row, v, 1,
                     kind == KIND_PAIR      ? 2
                     : kind == KIND_EXTENTS ? CLV_MAX_RANK - 1
                                            : 1,
                     err));
  if (kind == KIND_BOOL) {
    *(bool *)field = v->ints[0] != 0;
  } else if (kind == KIND_EXTENTS) {
    clv_shape shape = {.rank = v->n_ints};
    memcpy(shape.dim, v->ints, (size_t)v->n_ints * sizeof v->ints[0]);
    *(clv_shape *)field = shape;
  } else {
    int64_t *ints = field;
    ints[0] = v->ints[0];
    if (kind == KIND_PAIR) ints[1] = v->ints[v->n_ints - 1];
  }
  return CLV_OK;
}

static clv_code set_attr(const clv_op_def *def, const clv_attr_value *v, clv_attrs *attrs,
                         clv_err *err) {
  const clv_attr_row *row = find_attr_row(def, v->key);
  if (!row)
    return clv_fail(err, CLV_INVALID, "%s has no attribute '%s' (key %d)", def->name,
                    clv_attr_name(v->key), (int)v->key);
  return set_value(def->name, row, v, attrs, err);
}

clv_code clv_op_attr_check(clv_op op, const clv_attr_value *value, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_attrs unused;
  if (!def) return clv_fail(err, CLV_INVALID, "unknown op number %d", (int)op);
  return set_attr(def, value, &unused, err);
}

clv_code clv_attrs_parse(clv_op op, const clv_attr_value *values, int n, clv_attrs *ret,
                         clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_attrs attrs = {0};
  uint64_t given_mask = 0;
  if (!def) return clv_fail(err, CLV_INVALID, "unknown op number %d", (int)op);
  for (const clv_attr_row *row = def->attrs; row->key; row++) set_default(&attrs, row);
  for (int i = 0; i < n; i++) {
    CLV_TRY(set_attr(def, &values[i], &attrs, err));
    if (given_mask & (UINT64_C(1) << values[i].key))
      return clv_fail(err, CLV_INVALID, "%s.%s is given twice", def->name,
                      clv_attr_name(values[i].key));
    given_mask |= UINT64_C(1) << values[i].key;
  }
  for (const clv_attr_row *row = def->attrs; row->key; row++)
    if (row->is_required && !(given_mask & (UINT64_C(1) << row->key)))
      return clv_fail(err, CLV_INVALID, "%s needs '%s'", def->name, keys[row->key].name);
  if (def->stride_is_kernel && !(given_mask & (UINT64_C(1) << CLV_ATTR_STRIDE)))
    memcpy(attrs.stride, attrs.kernel, sizeof attrs.stride);
  *ret = attrs;
  return CLV_OK;
}

static clv_attr_value encode_value(const clv_attrs *attrs, clv_attr_key key) {
  const void *field = (const char *)attrs + keys[key].offset;
  clv_attr_value v = {.key = key, .n_ints = 1};
  switch (keys[key].kind) {
    case KIND_INT:
      v.ints[0] = *(const int64_t *)field;
      break;
    case KIND_PAIR:
      v.n_ints = 2;
      memcpy(v.ints, field, 2 * sizeof v.ints[0]);
      break;
    case KIND_BOOL:
      v.ints[0] = *(const bool *)field;
      break;
    case KIND_REAL:
      v.n_ints = 0;
      v.is_number = true;
      v.number = *(const double *)field;
      break;
    case KIND_EXTENTS:
      v.n_ints = ((const clv_shape *)field)->rank;
      memcpy(v.ints, ((const clv_shape *)field)->dim, sizeof v.ints);
      break;
    case KIND_WEIGHTS:
      v.n_ints = 0;
      v.n_numbers = ((const clv_class_weights *)field)->n;
      v.numbers = ((const clv_class_weights *)field)->of;
      break;
  }
  return v;
}

static bool is_same_value(const clv_attr_value *a, const clv_attr_value *b) {
  return a->n_ints == b->n_ints && a->number == b->number && a->n_numbers == b->n_numbers &&
         memcmp(a->ints, b->ints, (size_t)a->n_ints * sizeof a->ints[0]) == 0 &&
         (!a->n_numbers ||
          memcmp(a->numbers, b->numbers, (size_t)a->n_numbers * sizeof a->numbers[0]) == 0);
}

int clv_attrs_encode(clv_op op, const clv_attrs *attrs, clv_attr_value *ret_values, int max) {
  const clv_op_def *def = clv_op_def_of(op);
  int n = 0;
  if (!def) return 0;
  clv_attrs defaults = {0};
  for (const clv_attr_row *row = def->attrs; row->key; row++) set_default(&defaults, row);
  if (def->stride_is_kernel) memcpy(defaults.stride, attrs->kernel, sizeof defaults.stride);
  for (const clv_attr_row *row = def->attrs; row->key && n < max; row++) {
    clv_attr_value v = encode_value(attrs, row->key), d = encode_value(&defaults, row->key);
    if (row->is_required || !is_same_value(&v, &d)) ret_values[n++] = v;
  }
  return n;
}

clv_code clv_attrs_check(clv_op op, const clv_attrs *attrs, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_attrs unused_attrs;
  clv_attr_value values[CLV_COUNT(def->attrs)];
  int n = 0;
  for (const clv_attr_row *row = def->attrs; row->key; row++) {
    const void *field = (const char *)attrs + keys[row->key].offset;
    bool is_extents = keys[row->key].kind == KIND_EXTENTS;
    int rank = is_extents ? ((const clv_shape *)field)->rank : 1;
    int n_weights = keys[row->key].kind == KIND_WEIGHTS ? ((const clv_class_weights *)field)->n : 1;
    /* an empty list counts as not given */
    if (!row->is_required && (rank == 0 || n_weights == 0)) continue;
    if (n_weights < 1 || n_weights > CLV_MAX_CLASS_WEIGHTS)
      return clv_fail(err, CLV_INVALID, "%s.%s has %d numbers, not 1 to %d", def->name,
                      keys[row->key].name, n_weights, CLV_MAX_CLASS_WEIGHTS);
    if (rank < 1 || rank >= CLV_MAX_RANK)
      return clv_fail(err, CLV_INVALID, "%s.%s has %d extents, not 1 to %d", def->name,
                      keys[row->key].name, rank, CLV_MAX_RANK - 1);
    values[n++] = encode_value(attrs, row->key);
  }
  return clv_attrs_parse(op, values, n, &unused_attrs, err);
}
