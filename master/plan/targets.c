/* SPDX-License-Identifier: Apache-2.0
 *
 * Several labels (targets) per record: lists their names and tasks (clv_list_targets), checks that
 * their classes fit the session (clv_targets_check), notes sets with one class only
 * (clv_targets_note_sets), describes their losses (clv_targets_describe), and makes the inputs of
 * the loss from a batch (clv_target_inputs_make).
 */
#include <stdio.h>
#include <stdlib.h>

#include "master/plan/plan_int.h"

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

/* Returns true if a set has several records, all with the same class of a target. */
static bool have_one_class(const clv_dataset *ds, const clv_subset *rows, size_t target) {
  for (size_t i = 1; i < rows->n; i++)
    if (clv_dataset_target_class(ds, target, rows->index[i]) !=
        clv_dataset_target_class(ds, target, rows->index[0]))
      return false;
  return rows->n > 1;
}

static void note_one_class_targets(const char *key, const clv_dataset *ds, const clv_subset *rows,
                                   clv_bytes *notes) {
  for (size_t k = 0; ds && k < clv_dataset_target_count(ds); k++) {
    if (!clv_dataset_target_class_count(ds, k) || !have_one_class(ds, rows, k)) continue;
    size_t class_index = (size_t)clv_dataset_target_class(ds, k, rows->index[0]);
    clv_bytes_printf(notes, "%s: all of its %zu records have the class '%.80s' of target '%.80s'\n",
                     key, rows->n, clv_dataset_target_class_name(ds, k, class_index),
                     clv_dataset_target_name(ds, k));
  }
}

void clv_targets_note_sets(const clv_run_data *d, clv_bytes *notes) {
  note_one_class_targets("data.train", d->train, &d->train_rows, notes);
  note_one_class_targets("data.validation", d->train, &d->validation_rows, notes);
  note_one_class_targets("data.test", d->test, &d->test_rows, notes);
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
  clv_bytes_puts(out, "\n");
}

static void describe_target_json(const clv_target_spec *s, size_t column, clv_bytes *out) {
  clv_bytes_puts(out, column ? ",{\"name\":" : "{\"name\":");
  clv_bytes_add_json(out, s->name);
  clv_bytes_printf(out, ",\"loss\":\"%s\",\"outputs\":[%zu,%zu],\"loss_weight\":%.9g}",
                   clv_loss_name(s->kind), column, column + clv_target_width(s) - 1,
                   s->loss_weight);
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

static size_t count_targets_without_classes(const clv_session_config *c) {
  size_t n = 0;
  for (size_t i = 0; i < c->loss.n_targets; i++) n += !c->loss.targets[i].n_classes;
  return n;
}

/* Copies the labels y of record number `record` to the inputs. numbers: the record's row of labels
 * without classes; classes: [targets with classes][n_records]. */
static void split_labels_by_target(const clv_session_config *c, const float *y, size_t record,
                                   float *numbers, int64_t *classes, size_t n_records) {
  for (size_t k = 0; k < c->loss.n_targets; k++) {
    if (!c->loss.targets[k].n_classes) {
      *numbers++ = y[k];
      continue;
    }
    classes[record] = (int64_t)y[k];
    classes += n_records;
  }
}

clv_code clv_target_inputs_make(const clv_session_config *c, const float *y, size_t n_records,
                                clv_target_inputs *ret, clv_err *err) {
  size_t n_numbers = count_targets_without_classes(c),
         n_class_targets = c->loss.n_targets - n_numbers;
  int64_t *block;
  /* the classes come first, because they need the larger alignment */
  CLV_TRY(clv_alloc(n_records * (n_class_targets + (n_numbers + 1) / 2) + 1, sizeof *block, &block,
                    err));
  *ret = (clv_target_inputs){.block = block, .n_numbers = n_numbers};
  float *numbers = (float *)(void *)(block + n_records * n_class_targets);
  if (n_numbers) ret->inputs[ret->n++] = numbers;
  for (size_t i = 0; i < n_class_targets; i++) ret->inputs[ret->n++] = block + i * n_records;
  for (size_t i = 0; i < n_records; i++)
    split_labels_by_target(c, y + i * c->loss.n_targets, i, numbers + i * n_numbers, block,
                           n_records);
  return CLV_OK;
}

void clv_target_inputs_done(clv_target_inputs *t) {
  if (!t) return;
  free(t->block);
  *t = (clv_target_inputs){.n = 0};
}
