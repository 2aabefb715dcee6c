/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the data sets of a session (clv_run_data_open), scans their records (clv_run_data_scan),
 * and makes notes about records, labels and classes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model/models/models.h"
#include "master/plan/plan_int.h"

static clv_code copy_floats(const clv_number_list *from, float **ret, clv_err *err) {
  CLV_TRY(clv_alloc(from->n, sizeof **ret, ret, err));
  for (size_t i = 0; i < from->n; i++) (*ret)[i] = (float)from->items[i];
  return CLV_OK;
}

static clv_image_options make_image_options(const clv_data_config *d) {
  static const clv_crop_kind crop_kinds[] = {
      [CLV_TRAIN_CROP_CENTER] = CLV_CROP_CENTER,
      [CLV_TRAIN_CROP_RANDOM] = CLV_CROP_RANDOM,
      [CLV_TRAIN_CROP_RANDOM_RESIZED] = CLV_CROP_RANDOM_RESIZED};
  return (clv_image_options){.channels = (uint32_t)d->images.channels,
                             .resize = (uint32_t)d->images.resize,
                             .crop = (uint32_t)d->images.crop,
                             .train_crop = crop_kinds[d->images.train_crop],
                             .pad = (uint32_t)d->images.pad,
                             .area_low = d->images.area.items[0],
                             .area_high = d->images.area.items[1],
                             .ratio_low = d->images.ratio.items[0],
                             .ratio_high = d->images.ratio.items[1],
                             .flip = d->images.flip,
                             .max_pixels = d->images.max_pixels,
                             .threads = (uint32_t)d->threads};
}

static clv_text_options make_text_options(const clv_session_config *c) {
  const clv_data_config *d = &c->data;
  static const clv_accents accent_kinds[] = {[CLV_ACCENT_AUTO] = CLV_ACCENTS_AUTO,
                                             [CLV_ACCENT_KEEP] = CLV_ACCENTS_KEEP,
                                             [CLV_ACCENT_STRIP] = CLV_ACCENTS_STRIP};
  return (clv_text_options){
      .column = d->text.column,
      .label = d->text.label,
      .max_tokens =
          d->format == CLV_FORMAT_DOCUMENTS ? d->documents.max_tokens : d->text.max_tokens,
      .tokenizer = d->tokenizer.file,
      .tokenizer_options = {.keeps_case = !d->tokenizer.lower_case,
                            .accents = accent_kinds[d->tokenizer.accents],
                            .ignored_keys = (const char *const *)c->model.ignore_keys.items,
                            .n_ignored_keys = c->model.ignore_keys.n},
      .omits_first_and_last = !d->tokenizer.adds_first_and_last,
      .first = d->tokenizer.first,
      .last = d->tokenizer.last,
      .pad = d->tokenizer.pad,
      .mask_token = d->tokenizer.mask};
}

static clv_page_options make_page_options(const clv_data_config *d) {
  return (clv_page_options){.stride = d->documents.stride,
                            .has_label_per_page = d->documents.label_unit == CLV_LABEL_PER_PAGE,
                            .labels = (const char *const *)d->documents.labels.items,
                            .n_labels = d->documents.labels.n,
                            .limits = {.seconds = (uint32_t)d->documents.seconds,
                                       .max_memory_bytes = d->documents.memory_mib << 20}};
}

/* Returns the set (bits 1 << clv_date_part) of the parts of a date that `names` lists. The schema
 * has checked the names. */
static unsigned get_date_parts(const clv_text_list *names) {
  unsigned part_bits = 0;
  for (size_t i = 0; i < names->n; i++)
    for (int k = 0; k < CLV_DATE_PARTS; k++)
      if (strcmp(clv_date_part_names[k], names->items[i]) == 0) part_bits |= 1u << k;
  return part_bits;
}

static clv_code make_table_options(const clv_session_config *c, clv_column_options **columns,
                                   clv_target_option targets[CLV_MAX_TARGETS],
                                   clv_table_options *ret, clv_err *err) {
  const clv_data_config *d = &c->data;
  static const char separators[] = {[CLV_SEPARATOR_BY_NAME] = '\0',
                                    [CLV_SEPARATOR_COMMA] = ',',
                                    [CLV_SEPARATOR_SEMICOLON] = ';',
                                    [CLV_SEPARATOR_TAB] = '\t',
                                    [CLV_SEPARATOR_PIPE] = '|'};
  CLV_TRY(clv_alloc(d->table.n_columns, sizeof **columns, columns, err));
  for (size_t i = 0; i < d->table.n_columns; i++) {
    const clv_column_spec *s = &d->table.columns[i];
    (*columns)[i] = (clv_column_options){.name = s->name,
                                         .use = s->use,
                                         .scale = s->scale,
                                         .missing = s->missing,
                                         .value = s->value,
                                         .has_indicator = s->has_indicator,
                                         .format = s->format,
                                         .parts = get_date_parts(&s->parts),
                                         .input = s->input};
  }
  *ret = (clv_table_options){.separator = separators[d->table.separator],
                             .has_decimal_comma = d->table.decimal == CLV_DECIMAL_COMMA,
                             .missing_marks = (const char *const *)d->table.missing_marks.items,
                             .n_missing_marks = d->table.missing_marks.n,
                             .ignores_unlisted_columns = d->table.others == CLV_OTHERS_IGNORED,
                             .columns = *columns,
                             .n_columns = d->table.n_columns,
                             .targets = targets,
                             .n_targets = clv_list_targets(c, targets),
                             .split_target = d->split_target,
                             .query = d->table.query,
                             .query_seconds = (uint32_t)d->table.query_seconds,
                             .query_rows = d->table.query_rows,
                             .image_folder = d->table.files};
  return CLV_OK;
}

static const clv_objective objectives[] = {[CLV_LABELS_OF_FILES] = CLV_OBJECTIVE_LABELS,
                                           [CLV_LABELS_CAUSAL] = CLV_OBJECTIVE_CAUSAL,
                                           [CLV_LABELS_MASKED] = CLV_OBJECTIVE_MASKED};

static const clv_split_kind split_kinds[] = {
    [CLV_BY_CLASS] = CLV_SPLIT_STRATIFIED, [CLV_BY_CHANCE] = CLV_SPLIT_SHUFFLED,
    [CLV_BY_END] = CLV_SPLIT_LAST,         [CLV_BY_GROUP] = CLV_SPLIT_GROUPS,
    [CLV_BY_TIME] = CLV_SPLIT_TIME,        [CLV_BY_COLUMN] = CLV_SPLIT_COLUMN};

static const clv_split_key split_keys[] = {[CLV_BY_GROUP] = CLV_KEY_IS_GROUP,
                                           [CLV_BY_TIME] = CLV_KEY_IS_TIME,
                                           [CLV_BY_COLUMN] = CLV_KEY_IS_SET};

/* The files of data.train or data.test, and how to read them. */
typedef struct data_set_files {
  const char *key; /* key of the session file, for messages */
  const clv_text_list *files;
  clv_config_pos key_pos;
  uint64_t max_records; /* most records to use; 0: all */
  bool skips_labels;    /* read no labels; the first max_records records are then used */
  bool reads_groups;    /* read the groups of the records */
  bool reads_weights;   /* read the weights of the records */
  /* which sets to keep of a file that a column divides into sets, as bits 1 << clv_set; 0: all
   * records */
  unsigned kept_set_bits;
  clv_notifier notifier;
} data_set_files;

static data_set_files describe_train_files(const clv_session_config *c) {
  const clv_data_config *d = &c->data;
  bool is_split_by_column = d->validation_split_by == CLV_BY_COLUMN;
  return (data_set_files){
      .key = "data.train",
      .files = &d->train,
      .key_pos = d->train_pos,
      .max_records = d->limit_train,
      .reads_weights = d->sampling == CLV_SAMPLING_COLUMN,
      .reads_groups = d->validation_split_by >= CLV_BY_GROUP && clv_data_has_validation(d),
      .kept_set_bits = is_split_by_column ? 1u << CLV_SET_TRAINING | 1u << CLV_SET_VALIDATION : 0};
}

/* True if the file of data.train also has the test records; a column then says to which set each
 * record belongs. */
static bool has_test_in_train_file(const clv_data_config *d) {
  return d->validation_split_by == CLV_BY_COLUMN && d->test.n &&
         strcmp(d->train.items[0], d->test.items[0]) == 0;
}

static data_set_files describe_test_files(const clv_session_config *c, bool skips_labels) {
  const clv_data_config *d = &c->data;
  return (data_set_files){.key = "data.test",
                          .files = &d->test,
                          .key_pos = d->test_pos,
                          .max_records = d->limit_test,
                          .skips_labels = skips_labels,
                          .kept_set_bits = has_test_in_train_file(d) ? 1u << CLV_SET_TEST : 0};
}

clv_code clv_run_data_derive_seed(const clv_session_config *c, uint64_t *ret, clv_err *err) {
  clv_key key;
  CLV_TRY(clv_key_derive("cleave data", &c->train.seed.key, NULL, 0, &key, err));
  *ret = clv_rng_key_of(&key).seed;
  return CLV_OK;
}

static bool uses_first_records_only(const clv_session_config *c, const data_set_files *s) {
  return s->skips_labels || c->data.limit_chosen_by == CLV_BY_END;
}

static clv_code read_records(const clv_session_config *c, const data_set_files *s,
                             const clv_dataset_options *o, clv_dataset **ret, clv_err *err) {
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  uint64_t seed;
  CLV_TRY(clv_dataset_open(o, &ds, err));
  if (c->data.broken == CLV_BROKEN_RECORD_REFUSE)
    CLV_TRY(clv_plan_refuse_broken_records(clv_dataset_broken_records(ds), err));
  CLV_TRY(clv_run_data_derive_seed(c, &seed, err));
  if (!uses_first_records_only(c, s))
    CLV_TRY(clv_dataset_limit(ds, s->max_records, split_kinds[c->data.limit_chosen_by], seed, err));
  *ret = clv_steal(&ds);
  return CLV_OK;
}

/* Checks that data.root is a folder, so that an error does not blame a file in that folder. */
static clv_code check_root(const clv_session_config *c, const data_set_files *s, clv_err *err) {
  struct stat st;
  const char *root = c->data.root;
  bool is_in_root = strncmp(s->files->items[0], root, strlen(root)) == 0;
  if (!is_in_root || (stat(root, &st) == 0 && S_ISDIR(st.st_mode))) return CLV_OK;
  const char *reason = stat(root, &st) == 0 ? "it is a file" : strerror(errno);
  clv_session_fail_at(c, c->data.root_pos, err,
                      "data.root: %s is not a folder (%s): give the folder that has the data files",
                      root, reason);
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

/* Fails with the error of a set. The program exits with 3 if keys contradict each other, with 7 if
 * the data are at fault. */
static clv_code fail_data_set(const clv_session_config *c, const data_set_files *s,
                              const clv_err *reason, clv_err *err) {
  clv_session_fail_at(c, s->key_pos, err, "%s: %s", s->key, reason->text);
  if (reason->code == CLV_PRECONDITION) return CLV_INVALID;
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

/* Returns the file of the labels; NULL: the set has none, or its labels are not read. */
static const char *find_labels_path(const clv_session_config *c, const data_set_files *s) {
  size_t n_inputs = clv_data_n_inputs(&c->data);
  bool has_file = clv_format_row_of(c->data.format)->has_arrays && s->files->n > n_inputs;
  return has_file && !s->skips_labels ? s->files->items[n_inputs] : NULL;
}

/* Sets which texts mean training, validation and test in the column that names the set of each
 * record. */
static void set_split_values(const clv_data_config *d, clv_dataset_options *o) {
  static const char *const training_names[] = {"train", "training"}, *const test_names[] = {"test"};
  static const char *const validation_names[] = {"validation", "valid", "val", "dev"};
  static const clv_set_values usual_values[CLV_SET_COUNT] = {
      {training_names, CLV_COUNT(training_names)},
      {validation_names, CLV_COUNT(validation_names)},
      {test_names, CLV_COUNT(test_names)}};
  const clv_text_list *const session_values[CLV_SET_COUNT] = {
      &d->training_values, &d->validation_values, &d->test_values};
  for (int set = 0; set < CLV_SET_COUNT; set++)
    o->set_values[set] = session_values[set]->n
                             ? (clv_set_values){(const char *const *)session_values[set]->items,
                                                session_values[set]->n}
                             : usual_values[set];
}

/* Fills the options that say which columns have groups and weights of records and, if the session
 * splits its records by a column (of groups, times or names of sets), how to read that column. */
static void set_split_column(const clv_data_config *d, const data_set_files *s,
                             clv_dataset_options *o) {
  o->reads_groups = s->reads_groups;
  o->reads_weights = s->reads_weights;
  o->group_path = d->validation_group;
  if (!s->reads_groups && !s->kept_set_bits) return;
  o->text.group = d->split_column ? d->split_column : d->validation_group;
  o->split_key = split_keys[d->validation_split_by];
  o->kept_set_bits = s->kept_set_bits;
  set_split_values(d, o);
}

static clv_label_kind get_label_kind(const clv_session_config *c) {
  return clv_loss_has_labels(clv_loss_name(c->loss.kind)) ? CLV_LABEL_CLASS : CLV_LABEL_FLOAT;
}

/* Sets the folder that has tables larger than memory: tables.cache beside the run's folder, so that
 * all runs with the same parent folder share it. */
static clv_code set_table_storage(const clv_session_config *c, const data_set_files *s,
                                  clv_bytes *folder, clv_table_options *ret, clv_err *err) {
  const char *run_folder = c->checkpoint.dir, *last_slash = strrchr(run_folder, '/');
  if (c->data.table.storage == CLV_STORAGE_MEMORY) return CLV_OK;
  clv_bytes_printf(folder, "%.*s/" CLV_TABLES_FOLDER,
                   last_slash ? (int)(last_slash - run_folder) : 1, last_slash ? run_folder : ".");
  ret->cache_folder = folder->data;
  ret->is_on_disk = c->data.table.storage == CLV_STORAGE_DISK;
  ret->notifier = s->notifier;
  return folder->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* True if records are token numbers, which the first layer reads. */
static bool takes_tokens(const clv_session_config *c) {
  return !c->data.inputs.n && !clv_data_has_column_inputs(&c->data) && clv_model_takes_tokens(c);
}

static clv_code open_set(const clv_session_config *c, const data_set_files *s, clv_dataset **ret,
                         clv_err *err) {
  const clv_text_list *files = s->files;
  CLV_AUTO(clv_freep) float *mean = NULL, *std = NULL;
  CLV_AUTO(clv_freep) clv_column_options *columns = NULL;
  clv_target_option targets[CLV_MAX_TARGETS];
  CLV_AUTO(clv_bytes_done) clv_bytes cache_folder = {0};
  clv_table_options table;
  clv_err reason;
  int64_t ignored_label = (int64_t)c->loss.ignore_index;
  /* checked first, because errors of the model would also appear as errors of the records */
  CLV_TRY(clv_model_check_hf(c, err));
  CLV_TRY(check_root(c, s, err));
  CLV_TRY(copy_floats(&c->data.mean, &mean, err));
  CLV_TRY(copy_floats(&c->data.std, &std, err));
  CLV_TRY(make_table_options(c, &columns, targets, &table, err));
  CLV_TRY(set_table_storage(c, s, &cache_folder, &table, err));
  clv_dataset_options o = {.format = c->data.format,
                           .inputs_path = files->items[0],
                           .n_named_inputs = c->data.inputs.n,
                           .names = (const char *const *)c->data.inputs.items,
                           .named_paths = (const char *const *)files->items,
                           .labels_path = find_labels_path(c, s),
                           .skips_labels = s->skips_labels,
                           .skips_broken = true,
                           .keeps_rank_3 = clv_model_takes_sequences(c),
                           .limit = uses_first_records_only(c, s) ? s->max_records : 0,
                           .scale = (float)c->data.scale,
                           .mean = mean,
                           .std = std,
                           .n_mean = c->data.mean.n,
                           .n_std = c->data.std.n,
                           .flattens_records = c->data.flatten,
                           .holds_tokens = takes_tokens(c),
                           .images = make_image_options(&c->data),
                           .text = make_text_options(c),
                           .pages = make_page_options(&c->data),
                           .table = table,
                           .objective = objectives[c->data.objective],
                           .ignored_label = &ignored_label,
                           .labels = get_label_kind(c)};
  set_split_column(&c->data, s, &o);
  return read_records(c, s, &o, ret, &reason) == CLV_OK ? CLV_OK
                                                        : fail_data_set(c, s, &reason, err);
}

static clv_code split_train_set(const clv_session_config *c, clv_run_data *d, clv_err *err) {
  uint64_t seed;
  clv_err reason;
  CLV_TRY(clv_run_data_derive_seed(c, &seed, err));
  clv_split_kind kind = split_kinds[c->data.validation_split_by];
  clv_code code = c->data.folds
                      ? clv_subset_split_fold(d->train, kind, c->data.folds, c->data.fold, seed,
                                              &d->train_rows, &d->validation_rows, &reason)
                      : clv_subset_split(d->train, c->data.validation_fraction, kind, seed,
                                         &d->train_rows, &d->validation_rows, &reason);
  if (code == CLV_OK) return CLV_OK;
  clv_session_fail_at(c, c->data.train_pos, err, "data.validation: %s", reason.text);
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

/* Makes the inputs of a table's records by the encoding d->learnt. Does nothing for other formats,
 * whose records have inputs already. */
static clv_code encode_set(const clv_session_config *c, clv_run_data *d, const data_set_files *s,
                           clv_dataset *ds, clv_err *err) {
  clv_err reason;
  if (!ds || !clv_dataset_has_table(ds)) return CLV_OK;
  if (!d->learnt)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s has no table.json, which says how training read its table: train first",
                    c->checkpoint.dir);
  return clv_dataset_encode(ds, d->learnt, &reason) == CLV_OK ? CLV_OK
                                                              : fail_data_set(c, s, &reason, err);
}

static clv_code learn_from_train(const clv_session_config *c, const data_set_files *s,
                                 clv_run_data *d, clv_err *err) {
  clv_err reason;
  if (d->learnt || !d->train || !clv_dataset_has_table(d->train)) return CLV_OK;
  return clv_dataset_learn(d->train, &d->train_rows, &d->learnt, &reason) == CLV_OK
             ? CLV_OK
             : fail_data_set(c, s, &reason, err);
}

clv_code clv_run_data_open(const clv_session_config *c, bool needs_train, clv_run_data *ret,
                           clv_err *err) {
  clv_run_data d = *ret;
  clv_code code = CLV_OK;
  data_set_files train = describe_train_files(c), test = describe_test_files(c, false);
  *ret = (clv_run_data){0};
  train.notifier = test.notifier = d.notifier;
  if (needs_train || !c->data.test.n) code = open_set(c, &train, &d.train, err);
  if (code == CLV_OK && c->data.test.n) code = open_set(c, &test, &d.test, err);
  if (code == CLV_OK && d.train) code = split_train_set(c, &d, err);
  if (code == CLV_OK && d.train) code = clv_targets_check_labelled(c, &d, err);
  if (code == CLV_OK) code = learn_from_train(c, &train, &d, err);
  if (code == CLV_OK) code = encode_set(c, &d, &train, d.train, err);
  if (code == CLV_OK) code = encode_set(c, &d, &test, d.test, err);
  if (code == CLV_OK && d.train && d.test)
    code = clv_dataset_check_same_classes(d.train, d.test, err);
  if (code == CLV_OK && d.test) code = clv_subset_all(d.test, &d.test_rows, err);
  if (code != CLV_OK) {
    clv_run_data_done(&d);
    return code;
  }
  *ret = d;
  return CLV_OK;
}

clv_code clv_run_data_open_inputs(const clv_session_config *c, clv_run_data *ret, clv_err *err) {
  clv_run_data d = *ret;
  data_set_files test = describe_test_files(c, true);
  *ret = (clv_run_data){0};
  test.notifier = d.notifier;
  clv_code code = open_set(c, &test, &d.test, err);
  if (code == CLV_OK) code = encode_set(c, &d, &test, d.test, err);
  if (code == CLV_OK) code = clv_subset_all(d.test, &d.test_rows, err);
  if (code == CLV_OK)
    *ret = d;
  else
    clv_run_data_done(&d);
  return code;
}

/* ---- notes for the user on the sets of records ----------------------------------------------- */

static const char *describe_split(const clv_session_config *c, const clv_run_data *d) {
  static const char *const split_texts[] = {
      [CLV_SPLIT_STRATIFIED] = "each class by its share, drawn by the seed",
      [CLV_SPLIT_SHUFFLED] = "drawn by the seed",
      [CLV_SPLIT_GROUPS] = "in whole groups, drawn by the seed",
      [CLV_SPLIT_LAST] = "the last ones of the files",
      [CLV_SPLIT_TIME] = "the latest by data.validation.column",
      [CLV_SPLIT_COLUMN] = "those that data.validation.column names"};
  clv_split_kind session_kind = split_kinds[c->data.validation_split_by];
  clv_split_kind kind = clv_dataset_split_kind(d->train, session_kind);
  if (kind == CLV_SPLIT_GROUPS && session_kind != kind) return "in whole pages, drawn by the seed";
  if (kind == CLV_SPLIT_STRATIFIED && c->data.split_target)
    return "each class of data.validation.target by its share, drawn by the seed";
  return split_texts[kind];
}

void clv_run_data_describe_held_back(const clv_session_config *c, const clv_run_data *d,
                                     clv_bytes *out) {
  size_t n = d->validation_rows.n;
  if (n)
    clv_bytes_printf(out, "%zu of %zu records %s held back for validation: %s", n,
                     n + d->train_rows.n, n > 1 ? "are" : "is", describe_split(c, d));
  if (n && c->data.folds)
    clv_bytes_printf(out, ", fold %llu of %llu", (unsigned long long)c->data.fold,
                     (unsigned long long)c->data.folds);
  n = d->train ? clv_dataset_other_set_count(d->train) : 0;
  if (n)
    clv_bytes_printf(out, "; %zu of the file %s test records, which training leaves out", n,
                     n > 1 ? "are" : "is");
}

static void note_one_class(const char *set, const clv_dataset *ds, const clv_subset *rows,
                           clv_bytes *notes) {
  int64_t class;
  if (!ds || !clv_subset_is_one_class(ds, rows, &class)) return;
  clv_bytes_printf(notes, "%s: its %zu record%s of one class, %lld", set, rows->n,
                   rows->n > 1 ? "s are" : " is", (long long)class);
  if ((uint64_t) class < clv_dataset_class_count(ds))
    clv_bytes_printf(notes, " (%.80s)", clv_dataset_class_name(ds, (size_t) class));
  clv_bytes_puts(notes, ": its figures say nothing about other classes\n");
}

/* Returns an array that says for each class below *ret_n whether a training record has the class;
 * NULL: records have no class. */
static bool *find_trained_classes(const clv_run_data *d, size_t *ret_n, clv_bytes *notes) {
  int64_t min_class, max_class;
  bool *is_trained = NULL;
  if (!d->train || !clv_dataset_label_range(d->train, &min_class, &max_class) ||
      max_class >= 1 << 20)
    return NULL;
  *ret_n = (size_t)CLV_MAX(max_class, 0) + 1;
  if (clv_alloc(*ret_n, sizeof *is_trained, &is_trained, NULL) != CLV_OK) notes->failed = true;
  for (size_t i = 0; is_trained && i < d->train_rows.n; i++) {
    int64_t class = clv_dataset_record_class(d->train, d->train_rows.index[i]);
    if (class >= 0) is_trained[class] = true;
  }
  return is_trained;
}

/* Notes records of a set whose class no training record has, because the model cannot learn such a
 * class. */
static void note_untrained_classes(const char *set, const clv_dataset *ds, const clv_subset *rows,
                                   const clv_run_data *d, clv_bytes *notes) {
  size_t n_classes = 0, n = 0;
  CLV_AUTO(clv_freep) bool *is_trained = find_trained_classes(d, &n_classes, notes);
  int64_t first_untrained_class = -1;
  for (size_t i = 0; ds && is_trained && i < rows->n; i++) {
    int64_t class = clv_dataset_record_class(ds, rows->index[i]);
    if (class < 0 || ((uint64_t) class < n_classes && is_trained[class])) continue;
    if (!n++) first_untrained_class = class;
  }
  if (!n) return;
  clv_bytes_printf(notes, "%s: %zu record%s of a class that no training record has, as %lld", set,
                   n, n > 1 ? "s are" : " is", (long long)first_untrained_class);
  if ((uint64_t)first_untrained_class < clv_dataset_class_count(ds))
    clv_bytes_printf(notes, " (%.80s)", clv_dataset_class_name(ds, (size_t)first_untrained_class));
  clv_bytes_puts(notes, "\n");
}

/* True if the number `digits` is less than `other_digits`. Both are texts of digits. */
static bool is_smaller_number(const char *digits, const char *other_digits) {
  digits += strspn(digits, "0");
  other_digits += strspn(other_digits, "0");
  size_t n = strlen(digits), m = strlen(other_digits);
  return n == m ? strcmp(digits, other_digits) < 0 : n < m;
}

/* Notes that the classes have numbers as names but are not in the order of these numbers. Names
 * sort as texts, so 10 comes before 2, and class 1 may be '10'. */
static void note_class_order(const clv_session_config *c, const clv_dataset *ds, clv_bytes *notes) {
  size_t n = ds && !c->data.documents.labels.n ? clv_dataset_class_count(ds) : 0,
         first_misplaced_class = 0;
  for (size_t i = 0; i < n; i++) {
    if (!clv_is_numeric_name(clv_dataset_class_name(ds, i))) return;
    if (!first_misplaced_class && i &&
        is_smaller_number(clv_dataset_class_name(ds, i), clv_dataset_class_name(ds, i - 1)))
      first_misplaced_class = i;
  }
  if (!first_misplaced_class) return;
  clv_bytes_printf(notes,
                   "data.train: its classes are in the order of their names as texts, not as "
                   "numbers: '%s' is class %zu, and '%s' class %zu; zeros in front (01, 02, 10) "
                   "give the order of numbers\n",
                   clv_dataset_class_name(ds, first_misplaced_class - 1), first_misplaced_class - 1,
                   clv_dataset_class_name(ds, first_misplaced_class), first_misplaced_class);
}

/* Appends notes on sets that may surprise the user: a fraction that leaves one validation record,
 * classes numbered in the order of texts, a set with a single class, and classes without training
 * records. */
static void note_surprising_sets(const clv_session_config *c, const clv_run_data *d,
                                 clv_bytes *notes) {
  double n_expected_records =
      c->data.validation_fraction * (double)(d->train_rows.n + d->validation_rows.n);
  if (d->validation_rows.n == 1 && n_expected_records > 0 && n_expected_records < 0.5)
    clv_bytes_printf(notes,
                     "data.validation: a fraction of %g of %zu records rounds to none, so one is "
                     "held back: raise data.validation.fraction\n",
                     c->data.validation_fraction, d->train_rows.n + 1);
  note_class_order(c, d->train, notes);
  note_one_class("data.train", d->train, &d->train_rows, notes);
  note_one_class("data.validation", d->train, &d->validation_rows, notes);
  note_one_class("data.test", d->test, &d->test_rows, notes);
  note_untrained_classes("data.validation", d->train, &d->validation_rows, d, notes);
  note_untrained_classes("data.test", d->test, &d->test_rows, d, notes);
  clv_targets_note_sets(d, notes);
}

/* ---- scan for values that are not finite ----------------------------------------------------- */

typedef struct scan_progress {
  const clv_run_scan *o;
  const char *key;
} scan_progress;

static void report_progress(void *user, size_t n_done, size_t n_records) {
  const scan_progress *w = user;
  if (w->o->progress) w->o->progress(w->o->user, w->key, n_done, n_records);
}

static clv_code refuse_not_finite(const clv_session_config *c, const scan_progress *w,
                                  clv_config_pos pos, const clv_scan_result *s, clv_err *err) {
  char more_text[80] = "";
  if (s->not_finite_records.n > 1)
    snprintf(more_text, sizeof more_text, ", and %zu more record%s such values",
             s->not_finite_records.n - 1, s->not_finite_records.n > 2 ? "s hold" : " holds");
  clv_session_fail_at(c, pos, err,
                      "%s: %s%s: correct the file, or leave such records out with "
                      "data.non_finite: skip",
                      w->key, s->first_not_finite, more_text);
  if (err) err->code = CLV_DATA_LOSS;
  return CLV_DATA_LOSS;
}

static void note_stray_files(const clv_dataset *ds, const scan_progress *w, const char *folder,
                             clv_bytes *notes) {
  const char *first_file;
  size_t n = clv_dataset_stray_file_count(ds, &first_file);
  if (n)
    clv_bytes_printf(notes,
                     "%s: %zu file%s in %s %s no image of a class (.png, .jpg or .jpeg in a folder "
                     "per class) and ignored; the first: %s\n",
                     w->key, n, CLV_S(n), folder, n > 1 ? "are" : "is", first_file);
}

/* Appends a note that records are read as images of one channel, if the first layer would also
 * accept the shape that the records have in the file. */
static void note_added_channel(const clv_session_config *c, const clv_dataset *ds,
                               const scan_progress *w, const char *file, clv_bytes *notes) {
  char shape_text[160];
  clv_shape x = clv_dataset_x_shape(ds, 1);
  if (!clv_dataset_adds_channel(ds) || !clv_model_takes_sequences_or_images(c)) return;
  clv_bytes_printf(notes,
                   "%s: records of %s are taken for images of one channel, %s; if they are "
                   "sequences, data.inputs: [x] keeps the shape of the file\n",
                   w->key, file, clv_shape_format(&x, shape_text, sizeof shape_text));
}

static void note_truncated_texts(const clv_session_config *c, const clv_dataset *ds,
                                 const scan_progress *w, clv_bytes *notes) {
  size_t n = clv_dataset_truncated_count(ds);
  if (n)
    clv_bytes_printf(notes,
                     "%s: %zu of %zu texts %s longer than data.text.max_tokens (%llu) and cut\n",
                     w->key, n, clv_dataset_count(ds), n > 1 ? "are" : "is",
                     (unsigned long long)c->data.text.max_tokens);
}

static void note_pages(const clv_session_config *c, const clv_dataset *ds, const scan_progress *w,
                       clv_bytes *notes) {
  clv_page_counts n = clv_dataset_page_counts(ds);
  if (!n.n_pages) return;
  clv_bytes_printf(
      notes,
      "%s: %zu page%s with %zu word%s in %zu window%s of %llu tokens; %zu %s more than one\n",
      w->key, n.n_pages, CLV_S(n.n_pages), n.n_words, CLV_S(n.n_words), n.n_windows,
      CLV_S(n.n_windows), (unsigned long long)c->data.documents.max_tokens, n.n_long_pages,
      n.n_long_pages == 1 ? "takes" : "take");
  if (n.n_unlabelled_windows)
    clv_bytes_printf(notes, "%s: %zu window%s without a labelled word left out\n", w->key,
                     n.n_unlabelled_windows, CLV_S(n.n_unlabelled_windows));
  if (n.n_words_without_tokens)
    clv_bytes_printf(notes, "%s: the tokenizer has no token for %zu word%s\n", w->key,
                     n.n_words_without_tokens, CLV_S(n.n_words_without_tokens));
  if (n.n_stray_files)
    clv_bytes_printf(notes, "%s: %zu file%s no document (.pdf, .png, .jpg, .jsonl) and ignored\n",
                     w->key, n.n_stray_files, n.n_stray_files == 1 ? " is" : "s are");
}

/* Appends a note about a head with more outputs than the labels need. If the labels are numbers,
 * the highest classes may be missing here only by chance, so this is no error. If classes have
 * names, check_head_size refuses such a head. */
static void note_labels(const clv_session_config *c, const clv_dataset *ds, const scan_progress *w,
                        clv_bytes *notes) {
  int64_t min_label, max_label;
  const clv_attr_spec *a = clv_plan_find_labels_attr(c);
  if (!a || clv_dataset_class_count(ds) || !clv_dataset_label_range(ds, &min_label, &max_label))
    return;
  if (max_label + 1 < a->int_value)
    clv_bytes_printf(notes,
                     "%s: labels go up to %lld, and the head has labels: %lld; if there are no "
                     "more classes elsewhere, write labels: %lld\n",
                     w->key, (long long)max_label, (long long)a->int_value,
                     (long long)max_label + 1);
}

/* Appends a note if most labels equal the token at their own position, so that the labels are not
 * shifted to the next token. If nearly all do, clv_run_data_check_fit refuses the data. */
static void note_label_shift(const clv_session_config *c, const clv_dataset *ds,
                             const scan_progress *w, clv_bytes *notes) {
  if (!clv_model_padding_of(c).shifts_labels) return;
  clv_label_shift m = clv_dataset_label_shift(ds, (int64_t)c->loss.ignore_index);
  if (m.n_same_position > m.n_comparable - m.n_same_position && !clv_labels_are_own_tokens(&m))
    clv_bytes_printf(notes,
                     "%s: %zu of %zu labels are the token of their own place; head: causal is to "
                     "say the next one, and nothing shifts labels here\n",
                     w->key, m.n_same_position, m.n_comparable);
}

static clv_code scan_set(const clv_session_config *c, const clv_dataset *ds, clv_scan_options *so,
                         const scan_progress *w, const clv_text_list *files, clv_config_pos pos,
                         clv_subset *rows[2], uint64_t *n_left_out, clv_bytes *notes,
                         clv_err *err) {
  CLV_AUTO(clv_scan_result_done) clv_scan_result found = {0};
  clv_err reason;
  so->user = (void *)(uintptr_t)w;
  note_stray_files(ds, w, files->items[0], notes);
  clv_plan_note_broken_records(w->key, clv_dataset_broken_records(ds), notes);
  *n_left_out += clv_dataset_broken_records(ds)->n;
  note_truncated_texts(c, ds, w, notes);
  note_added_channel(c, ds, w, files->items[0], notes);
  note_pages(c, ds, w, notes);
  note_labels(c, ds, w, notes);
  note_label_shift(c, ds, w, notes);
  if (clv_dataset_scan(ds, so, &found, &reason) != CLV_OK) {
    clv_session_fail_at(c, pos, err, "%s: %s", w->key, reason.text);
    if (err) err->code = reason.code;
    return reason.code;
  }
  if (c->data.broken == CLV_BROKEN_RECORD_REFUSE &&
      clv_plan_refuse_broken_records(&found.unreadable_errors, &reason) != CLV_OK) {
    clv_session_fail_at(c, pos, err, "%s: %s", w->key, reason.text);
    if (err) err->code = reason.code;
    return reason.code;
  }
  clv_plan_note_broken_records(w->key, &found.unreadable_errors, notes);
  *n_left_out += found.unreadable_errors.n;
  for (size_t i = 0; i < 2 && rows[i]; i++) clv_subset_remove(rows[i], &found.unreadable_images);
  if (!found.not_finite_records.n) return CLV_OK;
  if (c->data.non_finite == CLV_NON_FINITE_REFUSE) return refuse_not_finite(c, w, pos, &found, err);
  for (size_t i = 0; i < 2 && rows[i]; i++) clv_subset_remove(rows[i], &found.not_finite_records);
  if (!rows[0]->n)
    return clv_session_fail_at(c, pos, err, "%s: no record has finite values alone (%s)", w->key,
                               found.first_not_finite);
  *n_left_out += found.not_finite_records.n;
  clv_bytes_printf(notes,
                   "%s: %zu of %zu records left out (data.non_finite: skip); the first: %s\n",
                   w->key, found.not_finite_records.n, found.n_checked, found.first_not_finite);
  return CLV_OK;
}

/* Fails if a set had records, and all of these were left out. n_rows_before: numbers of records of
 * training, validation and test before any was left out. */
static clv_code check_sets_left(const clv_session_config *c, const clv_run_data *d,
                                const size_t n_rows_before[3], clv_err *err) {
  const struct {
    const char *key;
    const clv_subset *rows;
    clv_config_pos pos;
  } sets[] = {{"data.train", &d->train_rows, c->data.train_pos},
              {"data.validation", &d->validation_rows, c->data.train_pos},
              {"data.test", &d->test_rows, c->data.test_pos}};
  for (size_t i = 0; i < CLV_COUNT(sets); i++) {
    if (sets[i].rows->n || !n_rows_before[i]) continue;
    clv_session_fail_at(c, sets[i].pos, err,
                        "%s: all of its %zu record%s %s left out (data.broken and data.non_finite: "
                        "skip): correct the files, or choose other records",
                        sets[i].key, n_rows_before[i], CLV_S(n_rows_before[i]),
                        n_rows_before[i] > 1 ? "are" : "is");
    if (err) err->code = CLV_DATA_LOSS;
    return CLV_DATA_LOSS;
  }
  return CLV_OK;
}

clv_code clv_run_data_scan(const clv_session_config *c, clv_run_data *d, const clv_run_scan *o,
                           uint64_t *ret_n_left_out, clv_bytes *notes, clv_err *err) {
  clv_draw_seed draw_seed = {0};
  CLV_TRY(clv_run_data_derive_seed(c, &draw_seed.seed, err));
  clv_subset *train[2] = {&d->train_rows, &d->validation_rows}, *test[2] = {&d->test_rows, NULL};
  clv_scan_options so = {
      .max_records = o->max_records,
      .decodes_images = o->decodes_images || c->data.broken == CLV_BROKEN_RECORD_SKIP,
      .draw = &draw_seed,
      .progress = report_progress};
  uint64_t n_left_out = 0;
  const size_t n_rows_before[3] = {d->train_rows.n, d->validation_rows.n, d->test_rows.n};
  if (d->train)
    CLV_TRY(scan_set(c, d->train, &so, &(scan_progress){o, "data.train"}, &c->data.train,
                     c->data.train_pos, train, &n_left_out, notes, err));
  so.draw = NULL;
  if (d->test)
    CLV_TRY(scan_set(c, d->test, &so, &(scan_progress){o, "data.test"}, &c->data.test,
                     c->data.test_pos, test, &n_left_out, notes, err));
  CLV_TRY(check_sets_left(c, d, n_rows_before, err));
  note_surprising_sets(c, d, notes);
  *ret_n_left_out = n_left_out;
  return CLV_OK;
}

void clv_run_data_done(clv_run_data *d) {
  if (!d) return;
  clv_dataset_free(d->train);
  clv_dataset_free(d->test);
  clv_learnt_free(d->learnt);
  clv_subset_done(&d->train_rows);
  clv_subset_done(&d->validation_rows);
  clv_subset_done(&d->test_rows);
  *d = (clv_run_data){0};
}
