/* SPDX-License-Identifier: Apache-2.0
 *
 * Several labels (targets) per record: lists their names and tasks (clv_list_targets), checks that
 * the classes of targets fit the session (clv_targets_check) and that the training records have
 * labels of each target (clv_targets_check_labelled), notes sets of records with one class only or
 * without labels (clv_targets_note_sets), describes their losses (clv_targets_describe), and makes
 * the inputs of the loss from a batch (clv_target_inputs_make).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "master/plan/plan_int.h"

enum { IGNORED_CLASS = -100 }; /* class of a missing label: the default of ignore_index */

size_t clv_list_targets(const clv_session_config *c, clv_target_option ret[CLV_MAX_TARGETS]) {
  for (size_t i = 0; i < c->loss.n_targets; i++)
    ret[i] = (clv_target_option){.name = c->loss.targets[i].name,
                                 .task = clv_loss_row_of(c->loss.targets[i].kind)->task};
  return c->loss.n_targets;
}

clv_code clv_targets_check(const clv_session_config *c, const clv_dataset *ds, const char *key,
                           clv_err *err) {
  for (size_t i = 0; i < clv_dataset_target_count(ds); i++) {
    const clv_target_spec *s = &c->loss.targets[i];
    size_t n = clv_dataset_target_class_count(ds, i);
    char last_class_name[100];
    if (!s->n_classes || n <= s->n_classes) continue;
    return clv_session_fail_at(
        c, s->pos, err,
        "%s: '%.80s' has %zu classes, up to '%s', and loss.targets says classes: "
        "%llu: set it to %zu, and add %zu outputs to the last layer",
        key, s->name, n,
        clv_text_truncate(clv_dataset_target_class_name(ds, i, n - 1), last_class_name,
                          sizeof last_class_name),
        (unsigned long long)s->n_classes, n, n - (size_t)s->n_classes);
  }
  return CLV_OK;
}

/* Returns how many records of a set have a label of a target. *ret_first: index in `rows` of the
 * first record that has one. */
static size_t count_labelled(const clv_dataset *ds, const clv_subset *rows, size_t target,
                             size_t *ret_first) {
  size_t n = 0;
  for (size_t i = 0; i < rows->n; i++) {
    if (!clv_dataset_has_target(ds, target, rows->index[i])) continue;
    if (!n++) *ret_first = i;
  }
  return n;
}

/* Returns true if all records of a set that have a label of a target have the same class. first:
 * index in `rows` of the first of these records. */
static bool has_one_class(const clv_dataset *ds, const clv_subset *rows, size_t target,
                          size_t first) {
  int64_t class = clv_dataset_target_class(ds, target, rows->index[first]);
  for (size_t i = first + 1; i < rows->n; i++)
    if (clv_dataset_has_target(ds, target, rows->index[i]) &&
        clv_dataset_target_class(ds, target, rows->index[i]) != class)
      return false;
  return true;
}

clv_code clv_targets_check_labelled(const clv_session_config *c, const clv_run_data *d,
                                    clv_err *err) {
  size_t first;
  for (size_t k = 0; k < clv_dataset_target_count(d->train); k++) {
    if (count_labelled(d->train, &d->train_rows, k, &first)) continue;
    clv_session_fail_at(c, c->loss.targets[k].pos, err,
                        "data.train: none of its %zu records has a label of target '%.80s', so "
                        "nothing can be learnt of it: remove the target, or give records a label",
                        d->train_rows.n, c->loss.targets[k].name);
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  return CLV_OK;
}

/* Notes that no record of a set has a label of a target, or that all labels of the target are the
 * same class. */
static void note_target(const char *key, const clv_dataset *ds, const clv_subset *rows,
                        size_t target, clv_bytes *notes) {
  const char *name = clv_dataset_target_name(ds, target);
  size_t first = 0, n = count_labelled(ds, rows, target, &first);
  if (!n && rows->n)
    clv_bytes_printf(notes,
                     "%s: none of its %zu records has a label of target '%.80s', so it has no loss "
                     "and no scores\n",
                     key, rows->n, name);
  if (n < 2 || !clv_dataset_target_class_count(ds, target) ||
      !has_one_class(ds, rows, target, first))
    return;
  size_t class = (size_t)clv_dataset_target_class(ds, target, rows->index[first]);
  clv_bytes_printf(notes, "%s: all of its %zu records%s have the class '%.80s' of target '%.80s'\n",
                   key, n, n < rows->n ? " with a label" : "",
                   clv_dataset_target_class_name(ds, target, class), name);
}

static void note_set(const char *key, const clv_dataset *ds, const clv_subset *rows,
                     clv_bytes *notes) {
  for (size_t k = 0; ds && k < clv_dataset_target_count(ds); k++)
    note_target(key, ds, rows, k, notes);
}

void clv_targets_note_sets(const clv_run_data *d, clv_bytes *notes) {
  note_set("data.train", d->train, &d->train_rows, notes);
  note_set("data.validation", d->train, &d->validation_rows, notes);
  note_set("data.test", d->test, &d->test_rows, notes);
}

/* ---- description of targets ------------------------------------------------------------------ */

static void describe_target_text(const clv_target_spec *s, size_t column, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
  size_t n_outputs = clv_target_width(s);
  clv_bytes_puts(&name, s->name);
  out->failed |= name.failed;
  if (!name.failed) clv_text_to_printable(name.data);
  clv_bytes_printf(out, "  target %s: %s of output %zu", name.data ? name.data : "",
                   clv_loss_name(s->kind), column);
  if (n_outputs > 1) clv_bytes_printf(out, " to %zu", column + n_outputs - 1);
  if (s->loss_weight != 1) clv_bytes_printf(out, ", times %g", s->loss_weight);
  if (s->pos_weight != 1) clv_bytes_printf(out, ", pos_weight %g", s->pos_weight);
  if (s->weight.n || s->class_weights) clv_bytes_puts(out, ", weights of its classes");
  if (s->masks_missing) clv_bytes_puts(out, ", of records with a label");
  clv_bytes_puts(out, "\n");
}

static void describe_target_json(const clv_target_spec *s, size_t column, clv_bytes *out) {
  clv_bytes_puts(out, column ? ",{\"name\":" : "{\"name\":");
  clv_bytes_add_json(out, s->name);
  clv_bytes_printf(out, ",\"loss\":\"%s\",\"outputs\":[%zu,%zu],\"loss_weight\":%.9g%s}",
                   clv_loss_name(s->kind), column, column + clv_target_width(s) - 1, s->loss_weight,
                   s->masks_missing ? ",\"missing\":\"mask\"" : "");
}

void clv_targets_describe(const clv_session_config *c, bool json, clv_bytes *out) {
  if (!c->loss.n_targets) return;
  if (json) clv_bytes_puts(out, ",\"targets\":[");
  for (size_t i = 0, column = 0; i < c->loss.n_targets; i++) {
    (json ? describe_target_json : describe_target_text)(&c->loss.targets[i], column, out);
    column += clv_target_width(&c->loss.targets[i]);
  }
  if (json) clv_bytes_puts(out, "]");
}

/* ---- labels as inputs of the loss ------------------------------------------------------------ */

clv_node clv_blueprint_labels_node(const clv_blueprint *b) {
  const clv_node *labels = &b->stages[b->n_stages].graph->nodes[1];
  const clv_session_config *c = b->config;
  if (!c->loss.n_targets) return *labels;
  return (clv_node){.dtype = CLV_F32,
                    .shape = CLV_SHAPE(labels->shape.dim[0], (int64_t)c->loss.n_targets)};
}

double clv_target_label_weight(const clv_target_spec *s, float label) {
  if (isnan(label)) return 0;
  bool has_weight = label >= 0 && (double)label < (double)s->weight.n;
  return has_weight ? (double)(float)s->weight.items[(size_t)label] : 1;
}

/* Labels of one target in a micro-batch, and the width of the f32 input that gets them. */
typedef struct target_rows {
  const clv_target_spec *spec;
  const float *y; /* label of the target in the first record of the batch */
  /* distance from the label of a record to that of the next record, in values */
  size_t stride;
  size_t n_batch;      /* records of the batch */
  size_t start, n;     /* first record of the micro-batch, and number of its records */
  size_t number_width; /* number of columns of the f32 input (clv_target_inputs) */
} target_rows;

static float label_of(const target_rows *r, size_t i) { return r->y[(r->start + i) * r->stride]; }

/* Writes the labels of a target without classes. to: [n] of r->number_width numbers each. */
static void fill_numbers(const target_rows *r, float *to) {
  for (size_t i = 0; i < r->n; i++)
    to[i * r->number_width] = isnan(label_of(r, i)) ? 0 : label_of(r, i);
}

/* Writes the labels of a target with classes. to: [n]. */
static void fill_classes(const target_rows *r, int64_t *to) {
  bool ignores = clv_loss_row_of(r->spec->kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX;
  for (size_t i = 0; i < r->n; i++)
    to[i] = !isnan(label_of(r, i)) ? (int64_t)label_of(r, i) : ignores ? IGNORED_CLASS : 0;
}

/* Writes the mask columns of a target, as clv_target_inputs describes them. The factor is computed
 * from the complete batch, so that the micro-batches together give the mean over the labelled
 * records of the batch. */
static void fill_mask(const target_rows *r, float *to) {
  size_t width = clv_target_mask_width(r->spec);
  double weight_sum = 0;
  for (size_t i = 0; width && i < r->n_batch; i++)
    weight_sum += clv_target_label_weight(r->spec, r->y[i * r->stride]);
  double factor = weight_sum > 0 ? (double)r->n_batch / weight_sum : 1;
  for (size_t i = 0; width && i < r->n; i++) {
    double weight = clv_target_label_weight(r->spec, label_of(r, i));
    to[i * r->number_width] = (float)(width == 1 ? weight * factor : weight);
    if (width == 2) to[i * r->number_width + 1] = (float)factor;
  }
}

static void fill_inputs(const clv_session_config *c, const clv_target_labels *labels,
                        float *numbers, int64_t *classes) {
  size_t n_targets = c->loss.n_targets, width = clv_targets_number_width(c);
  float *mask = numbers;
  for (size_t k = 0; k < n_targets; k++) mask += !c->loss.targets[k].n_classes;
  for (size_t k = 0; k < n_targets; k++) {
    const target_rows r = {&c->loss.targets[k], labels->y + k, n_targets, labels->n_batch,
                           labels->start,       labels->n,     width};
    if (r.spec->n_classes) {
      fill_classes(&r, classes);
      classes += r.n;
    } else {
      fill_numbers(&r, numbers++);
    }
    fill_mask(&r, mask);
    mask += clv_target_mask_width(r.spec);
  }
}

clv_code clv_target_inputs_make(const clv_session_config *c, const clv_target_labels *labels,
                                clv_target_inputs *ret, clv_err *err) {
  size_t n_numbers = clv_targets_number_width(c), n_class_targets = 0, n = labels->n;
  int64_t *block;
  for (size_t k = 0; k < c->loss.n_targets; k++)
    n_class_targets += c->loss.targets[k].n_classes > 0;
  /* the classes come first, because they need the larger alignment */
  CLV_TRY(clv_alloc(n * (n_class_targets + (n_numbers + 1) / 2) + 1, sizeof *block, &block, err));
  *ret = (clv_target_inputs){.block = block, .n_numbers = n_numbers};
  float *numbers = (float *)(void *)(block + n * n_class_targets);
  if (n_numbers) ret->inputs[ret->n++] = numbers;
  for (size_t i = 0; i < n_class_targets; i++) ret->inputs[ret->n++] = block + i * n;
  fill_inputs(c, labels, numbers, block);
  return CLV_OK;
}

void clv_target_inputs_done(clv_target_inputs *t) {
  if (!t) return;
  free(t->block);
  *t = (clv_target_inputs){.n = 0};
}
