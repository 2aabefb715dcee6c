/* SPDX-License-Identifier: Apache-2.0
 *
 * Every key of session.yaml.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/config/schema_int.h"

#define AT(member) offsetof(clv_session_config, member)
#define REMOTE(member) offsetof(clv_remote_spec, member)
#define STAGE(member) offsetof(clv_stage_spec, member)
#define LAYER(member) offsetof(clv_layer_spec, member)
#define COLUMN(member) offsetof(clv_column_spec, member)
#define TARGET(member) offsetof(clv_target_spec, member)

enum { MAX_STEPS = 1000000000 };

static const char *const format_names[] = {"",
#define CLV_DATA_FORMAT(NAME, name, ...) #name,
#include "common/base/settings/formats.def"
                                           NULL};
#define CLV_DATA_FORMAT(NAME, name, doc, ...) doc
static const char format_doc[] =
    "Format of the files"
#include "common/base/settings/formats.def"
    ".";
#define CLV_DATA_FORMAT(NAME, name, doc, set_doc, ...) set_doc
static const char train_doc[] =
    "Training records and labels"
#include "common/base/settings/formats.def"
    ".";
static const char *const objective_names[] = {"labels", "causal", "masked", NULL};
static const char *const labels_of_names[] = {"words", "pages", NULL};
static const char *const split_names[] = {"stratified", "random", "last", "group",
                                          "time",       "column", NULL};
static const char *const limit_names[] = {"stratified", "random", "first", NULL};
static const char *const non_finite_names[] = {"refuse", "skip", NULL};
static const char *const broken_names[] = {"refuse", "skip", NULL};
static const char *const accent_names[] = {"auto", "keep", "strip", NULL};
static const char *const crop_names[] = {"center", "random", "random_resized", NULL};
static const char *const separator_names[] = {"", "comma", "semicolon", "tab", "pipe", NULL};
static const char *const decimal_names[] = {"point", "comma", NULL};
static const char *const others_names[] = {"refuse", "ignore", NULL};
static const char *const storage_names[] = {"auto", "memory", "disk", NULL};
static const char *const arch_names[] = {"",         "mlp",      "cnn",      "lenet",
                                         "resnet18", "resnet34", "resnet50", NULL};
static const char *const head_names[] = {"", "none", "sequence", "token", "masked", "causal", NULL};
static const char *const parallel_names[] = {"", "columns", "rows", NULL};
static const char *const transfer_names[] = {"via_master", "direct", NULL};
static const char *const decay_names[] = {"all", "weights", NULL};
static const char *const class_weights_names[] = {"", "balanced", NULL};
static const char *const sampling_names[] = {"", "balanced", "column", NULL};
static const char *const optimizer_names[] = {
#define CLV_OPTIMIZER(NAME, name, ...) #name,
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER
    NULL};
static const char *const compute_names[] = {"f32", "bf16", NULL};
static const char *const lr_names[] = {"constant", "step", "cosine", "linear", NULL};
static const char *const pipeline_names[] = {
    "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "pipedream", "pipedream-2bw", "custom", NULL};
static const char *const recovery_names[] = {"", "off", NULL};
static const char *const best_names[] = {"",
#define CLV_SCORE_VALUE(NAME, name, ...) "validation." #name,
#include "common/base/settings/scores.def"
                                         NULL};
static const char *const mode_names[] = {"", "min", "max", NULL};
static const char *const micro_words[] = {"auto", NULL};
static const char *const never_words[] = {"none", NULL};
static const char *const home_names[] = {"", "end", "always", "never", NULL};
static const char *const window_words[] = {"auto", "textbook", NULL};

_Static_assert(sizeof(clv_loss_kind) == sizeof(int), "enums are stored as int");
_Static_assert(offsetof(clv_remote_spec, name) == sizeof(clv_config_pos), "see schema_int.h");

/* Rows that describe the keys of a layer, used for model.layers and for stages[].layers. */
/* clang-format off */
#define LAYER_ROWS(list)                                                                         \
  {.path = list "[].op", .kind = CLV_ROW_TEXT, .offset = LAYER(op), .pos_offset = LAYER(op_pos),        \
   .format = CLV_FORMAT_OP, .required = true, .sample = "linear",                                \
   .doc = "The operation, such as conv2d or relu; cleave-ops(7) has all of them."},              \
  {.path = list "[].name", .kind = CLV_ROW_TEXT, .offset = LAYER(name),                          \
   .format = CLV_FORMAT_RUN, .sample = "fc1",                                                    \
   .doc = "Prefix of its parameters' names; the layer's number in the model unless given."},     \
  {.path = list "[].from", .kind = CLV_ROW_TEXTS, .offset = LAYER(from), .pos_offset = LAYER(from_pos), \
   .min = 1, .max = 8, .format = CLV_FORMAT_RUN, .sample = "[fc1, input]",                       \
   .doc = "Values that it reads: names of earlier layers of the model, or input for the data. "  \
          "Unless given, it reads the layer before it."},                                        \
  {.path = list "[].tied", .kind = CLV_ROW_TEXT, .offset = LAYER(tied), .pos_offset = LAYER(tied_pos),  \
   .format = CLV_FORMAT_RUN, .sample = "words",                                                  \
   .doc = "Earlier layer whose weight this layer shares, as a decoder shares the table of an "   \
          "embedding. The parameter has the earlier layer's name."},                             \
  {.path = list "[].parallel", .kind = CLV_ROW_ENUM, .offset = LAYER(parallel),                  \
   .pos_offset = LAYER(parallel_pos), .names = parallel_names, .sample = "columns",                     \
   .doc = "A linear layer divided over several nodes, by its outputs (columns) or its inputs "   \
          "(rows). For programs (cleave_parallel_load): a stage has one node."},                 \
  {.path = list "[].*", .kind = CLV_ROW_ATTRS, .offset = LAYER(attrs), .count_offset = LAYER(n_attrs),  \
   .doc = "Further keys are the operation's attributes, such as out or kernel; cleave-ops(7) has " \
          "those of each operation."}

static const clv_row rows[] = {
    {.path = "version", .kind = CLV_ROW_INT, .offset = AT(version), .min = 1, .max = 1,
     .required = true, .sample = "1", .doc = "Version of this file's format."},
    {.path = "name", .kind = CLV_ROW_TEXT, .offset = AT(name), .format = CLV_FORMAT_RUN,
     .required = true, .sample = "my-session",
     .doc = "Name of the session; its run folder is called after it."},

    {.path = "tls", .kind = CLV_ROW_SECTION, .pos_offset = AT(tls.pos),
     .doc = "The master's credentials; needed as soon as a worker is used."},
    {.path = "tls.ca", .kind = CLV_ROW_PATH, .offset = AT(tls.ca), .required = true,
     .sample = "certs/ca.pem", .doc = "Certificate authorities that workers must be signed by."},
    {.path = "tls.cert", .kind = CLV_ROW_PATH, .offset = AT(tls.cert), .required = true,
     .sample = "certs/master.pem", .doc = "The master's certificate chain."},
    {.path = "tls.key", .kind = CLV_ROW_PATH, .offset = AT(tls.key), .required = true,
     .sample = "certs/master.key", .doc = "The master's private key."},
    {.path = "tls.crl", .kind = CLV_ROW_PATH, .offset = AT(tls.crl), .sample = "certs/crl.pem", .is_commented_out = true,
     .doc = "Lists of revoked certificates, one of each CA, read at the start; an expired list refuses all peers."},

    {.path = "workers", .kind = CLV_ROW_MAP, .offset = AT(workers), .count_offset = AT(n_workers),
     .entry_bytes = sizeof(clv_remote_spec), .format = CLV_FORMAT_NAME, .sample = "worker-1",
     .is_place = true,
     .doc = "Worker daemons, under the names by which stages refer to them."},
    {.path = "workers{}.address", .kind = CLV_ROW_TEXT, .offset = REMOTE(address),
     .format = CLV_FORMAT_ADDRESS, .required = true, .sample = "worker-1.example.net:7443",
     .doc = "Host and port at which the daemon listens."},
    {.path = "workers{}.identity", .kind = CLV_ROW_TEXT, .offset = REMOTE(identity),
     .format = CLV_FORMAT_URI, .required = true, .sample = "spiffe://example.net/worker/worker-1",
     .doc = "URI that the worker's certificate must contain. Nothing is sent to another peer."},
    {.path = "workers{}.spares", .kind = CLV_ROW_TEXTS, .offset = REMOTE(spares),
     .pos_offset = REMOTE(spares_pos), .format = CLV_FORMAT_NAME, .sample = "[worker-2]", .max = 16,
     .doc = "Workers that have no stage, and take its place if it is lost and does not come back."},

    {.path = "data", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.pos), .required = true,
     .doc = "The records; they are read by the master and stay there."},
    {.path = "data.format", .kind = CLV_ROW_ENUM, .offset = AT(data.format),
     .names = format_names, .required = true, .sample = "idx",
     .replacement_hint = "a CSV is a table",
     .doc = format_doc},
    {.path = "data.root", .kind = CLV_ROW_PATH, .offset = AT(data.root), .pos_offset = AT(data.root_pos),
     .default_text = ".",
     .doc = "Folder that the paths of data files are relative to; itself relative to the folder "
            "of this file."},
    {.path = "data.train", .kind = CLV_ROW_TEXTS, .offset = AT(data.train),
     .pos_offset = AT(data.train_pos), .min = 1, .max = 9, .required = true,
     .sample = "[train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz]",
     .is_place = true, .doc = train_doc},
    {.path = "data.test", .kind = CLV_ROW_TEXTS, .offset = AT(data.test), .pos_offset = AT(data.test_pos),
     .min = 1, .max = 9, .is_in_example = true,
     .sample = "[t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz]",
     .is_place = true,
     .doc = "Test records and labels; for images the one folder. For predict, records alone do."},
    {.path = "data.inputs", .kind = CLV_ROW_TEXTS, .offset = AT(data.inputs),
     .pos_offset = AT(data.inputs_pos), .max = 8, .format = CLV_FORMAT_NAME, .is_commented_out = true,
     .sample = "[ids, boxes]",
     .doc = "Names of a record's inputs. For idx and npy, train and test then name one file for "
            "each input, and the labels. For text, also of a table, a choice of ids and lengths. For documents, "
            "a choice of ids, boxes and lengths; all three unless given."},
    {.path = "data.objective", .kind = CLV_ROW_ENUM, .offset = AT(data.objective), .pos_offset = AT(data.objective_pos),
     .names = objective_names, .default_text = "labels",
     .doc = "For text and documents, the labels to predict: those of the files (labels), for "
            "each token the next token (causal), or tokens that are hidden as in BERT (masked)."},
    {.path = "data.validation", .kind = CLV_ROW_SECTION,
     .doc = "Validation during training, on records held back from the training set."},
    {.path = "data.validation.fraction", .kind = CLV_ROW_NUMBER, .offset = AT(data.validation_fraction), .high = 0.5,
     .default_text = "0", .doc = "Share of the training set that is held back, one record at least."},
    {.path = "data.validation.by", .kind = CLV_ROW_ENUM, .offset = AT(data.validation_split_by), .pos_offset = AT(data.group_pos),
     .names = split_names, .default_text = "stratified",
     .doc = "How these records are chosen: by the seed, the same share of each class "
            "(stratified), any records (random) or complete groups (group); or the last records "
            "of the files (last). Of a table also the latest by a column (time), or those that a "
            "column names (column)."},
    {.path = "data.validation.group", .kind = CLV_ROW_TEXT, .offset = AT(data.validation_group),
     .pos_offset = AT(data.group_pos), .is_commented_out = true, .sample = "patient",
     .is_place = true,
     .doc = "For by: group. Format text: the column with the group of a record. Formats idx and "
            "npy: a file with a whole number for each record."},
    {.path = "data.validation.column", .kind = CLV_ROW_TEXT, .offset = AT(data.split_column), .pos_offset = AT(data.group_pos),
     .is_commented_out = true, .sample = "admitted", .is_place = true,
     .doc = "For by: time, the column with the time of a record, a number or a date. For by: column, the column with its set."},
    {.path = "data.validation.target", .kind = CLV_ROW_TEXT, .offset = AT(data.split_target), .pos_offset = AT(data.split_target_pos),
     .is_commented_out = true, .sample = "Outcome", .is_place = true,
     .doc = "For by: stratified with several targets, the target whose classes keep their share, in a limit, too. Records "
            "without a label of it keep theirs."},
    {.path = "data.validation.training", .kind = CLV_ROW_TEXTS, .offset = AT(data.training_values), .pos_offset = AT(data.group_pos), .max = 64,
     .is_commented_out = true, .sample = "[train]", .is_place = true,
     .doc = "For by: column, values of records to train on; train and training unless given."},
    {.path = "data.validation.validation", .kind = CLV_ROW_TEXTS, .offset = AT(data.validation_values), .pos_offset = AT(data.group_pos), .max = 64,
     .is_commented_out = true, .sample = "[valid]", .is_place = true,
     .doc = "For by: column, values of records of validation; validation, valid, val and dev unless given."},
    {.path = "data.validation.test", .kind = CLV_ROW_TEXTS, .offset = AT(data.test_values), .pos_offset = AT(data.group_pos), .max = 64,
     .is_commented_out = true, .sample = "[test]", .is_place = true,
     .doc = "For by: column, values of test records, which are left out of training; test unless given. "
            "If data.test names the file of data.train, it has these records alone."},
    {.path = "data.validation.folds", .kind = CLV_ROW_INT, .offset = AT(data.folds), .pos_offset = AT(data.group_pos), .max = 1000, .default_text = "0",
     .doc = "Cross-validation in place of fraction: the records are divided into so many folds, as `by` says; 0 is off."},
    {.path = "data.validation.fold", .kind = CLV_ROW_INT, .offset = AT(data.fold), .pos_offset = AT(data.group_pos), .max = 1000, .default_text = "0",
     .doc = "The fold that is held back, from 1 to folds: one run for each."},
    {.path = "data.normalize", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.normalize_pos), .is_commented_out = true,
     .doc = "(value * scale - mean) / std, per channel; none unless given."},
    {.path = "data.normalize.mean", .kind = CLV_ROW_NUMBERS, .offset = AT(data.mean),
     .low = -1e300, .high = 1e300, .sample = "[0.2860]", .doc = "Mean of each channel."},
    {.path = "data.normalize.std", .kind = CLV_ROW_NUMBERS, .offset = AT(data.std), .excludes_low = true,
     .high = 1e300, .sample = "[0.3530]", .doc = "Standard deviation of each channel."},
    {.path = "data.scale", .kind = CLV_ROW_NUMBER, .offset = AT(data.scale), .pos_offset = AT(data.scale_pos), .high = 1e300, .default_text = "0",
     .doc = "Factor on raw values; 0 is automatic: 1/255 for bytes, 1 for the rest."},
    {.path = "data.limit_train", .kind = CLV_ROW_INT, .offset = AT(data.limit_train), .max = UINT32_MAX,
     .default_text = "0", .doc = "Use only so many training records; 0 is all."},
    {.path = "data.limit_test", .kind = CLV_ROW_INT, .offset = AT(data.limit_test),
     .max = UINT32_MAX, .default_text = "0", .doc = "Use only so many test records; 0 is all."},
    {.path = "data.limit_by", .kind = CLV_ROW_ENUM, .offset = AT(data.limit_chosen_by), .names = limit_names,
     .default_text = "stratified",
     .doc = "How a limit chooses records, with the values of validation.by; predict always "
            "takes the first records."},
    {.path = "data.flatten", .kind = CLV_ROW_BOOL, .offset = AT(data.flatten),
     .pos_offset = AT(data.flatten_pos), .default_text = "false",
     .doc = "Give each record to the model as one row of numbers."},
    {.path = "data.sampling", .kind = CLV_ROW_ENUM, .offset = AT(data.sampling),
     .pos_offset = AT(data.sampling_pos), .names = sampling_names, .is_commented_out = true, .sample = "balanced",
     .doc = "Training draws records with replacement, as many in an epoch as there are: balanced draws each class "
            "equally often, column each record of a table in proportion to its column with as: weight. Each record comes "
            "once unless given."},
    {.path = "data.sampling_weights", .kind = CLV_ROW_NUMBERS, .offset = AT(data.sampling_weights),
     .pos_offset = AT(data.sampling_pos), .max = 65536, .high = 1e30, .is_commented_out = true, .sample = "[1, 4]",
     .doc = "In place of sampling: the chance of a record of each class to be drawn, in proportion."},
    {.path = "data.sampling_target", .kind = CLV_ROW_TEXT, .offset = AT(data.sampling_target),
     .pos_offset = AT(data.sampling_pos), .is_commented_out = true, .sample = "Outcome", .is_place = true,
     .doc = "For several targets: the target by whose classes sampling: balanced or sampling_weights draw. A record without "
            "a label of it is drawn once in an epoch on average."},
    {.path = "data.packed", .kind = CLV_ROW_BOOL, .offset = AT(data.packed),
     .pos_offset = AT(data.packed_pos), .default_text = "false",
     .doc = "Sequences are computed one behind the other, separated by the input lengths, so "
            "that no padding is computed or sent. Workers then learn the lengths."},
    {.path = "data.threads", .kind = CLV_ROW_INT, .offset = AT(data.threads), .min = 1, .max = 64,
     .default_text = "2", .doc = "Threads that read and decode images; any number gives the same bits."},
    {.path = "data.non_finite", .kind = CLV_ROW_ENUM, .offset = AT(data.non_finite),
     .names = non_finite_names, .default_text = "refuse",
     .doc = "Records with a value that is not finite: refuse ends the command, skip leaves such "
            "records out and counts them."},
    {.path = "data.broken", .kind = CLV_ROW_ENUM, .offset = AT(data.broken),
     .names = broken_names, .default_text = "refuse",
     .doc = "Images, texts and pages that cannot be read: refuse lists them and ends the "
            "command, skip leaves them out."},
    {.path = "data.images", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.images.pos), .is_commented_out = true,
     .doc = "Format images: how an image becomes a record, as with torchvision's transforms."},
    {.path = "data.images.channels", .kind = CLV_ROW_INT, .offset = AT(data.images.channels),
     .min = 1, .max = 3, .default_text = "3", .changes_records = true, .doc = "3 for colour, 1 for grey; images are converted."},
    {.path = "data.images.resize", .kind = CLV_ROW_INT, .offset = AT(data.images.resize),
     .max = 16384, .default_text = "0",
     .changes_records = true,
     .doc = "Resize: pixels of the shorter side, bilinear with antialiasing; 0 leaves the size."},
    {.path = "data.images.crop", .kind = CLV_ROW_INT, .offset = AT(data.images.crop), .max = 16384,
     .default_text = "0", .changes_records = true,
     .doc = "Side of the square that is cut out of the image; 0: no crop, which needs images of "
            "one size."},
    {.path = "data.images.train_crop", .kind = CLV_ROW_ENUM, .offset = AT(data.images.train_crop),
     .names = crop_names, .default_text = "center",
     .doc = "Position of the crop in training: CenterCrop (center), RandomCrop (random), or "
            "RandomResizedCrop in place of resize (random_resized). Evaluations use center."},
    {.path = "data.images.pad", .kind = CLV_ROW_INT, .offset = AT(data.images.pad), .max = 16384,
     .default_text = "0",
     .doc = "For train_crop random: pixels of black border added before the crop."},
    {.path = "data.images.area", .kind = CLV_ROW_NUMBERS, .offset = AT(data.images.area), .min = 2,
     .max = 2, .excludes_low = true, .high = 1, .default_text = "[0.08, 1]",
     .doc = "For train_crop random_resized: least and greatest share of the image's area."},
    {.path = "data.images.ratio", .kind = CLV_ROW_NUMBERS, .offset = AT(data.images.ratio),
     .min = 2, .max = 2, .excludes_low = true, .high = 1000, .default_text = "[0.75, 1.3333333333333333]",
     .doc = "For train_crop random_resized: least and greatest ratio of width to height."},
    {.path = "data.images.flip", .kind = CLV_ROW_NUMBER, .offset = AT(data.images.flip), .high = 1,
     .default_text = "0", .doc = "Probability of a horizontal flip in training."},
    {.path = "data.images.max_pixels", .kind = CLV_ROW_INT, .offset = AT(data.images.max_pixels),
     .min = 1, .max = 1ull << 31, .default_text = "67108864",
     .doc = "An image whose header declares more pixels is refused before memory is allocated "
            "for it."},

    {.path = "data.text", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.text.pos), .is_commented_out = true,
     .doc = "format text: a CSV with a header, or JSON lines with an object each (.csv, .jsonl, also .gz). "
            "Of a table with a column `as: text`, max_tokens."},
    {.path = "data.text.column", .kind = CLV_ROW_TEXT, .offset = AT(data.text.column),
     .default_text = "text", .doc = "Name of the column, or key, that has the text."},
    {.path = "data.text.label", .kind = CLV_ROW_TEXT, .offset = AT(data.text.label),
     .default_text = "label", .doc = "Name of the column, or key, that has the class; classes are numbered by name."},
    {.path = "data.text.max_tokens", .kind = CLV_ROW_INT, .offset = AT(data.text.max_tokens),
     .min = 1, .max = 65536, .default_text = "128",
     .changes_records = true,
     .doc = "Tokens of a record: longer texts are cut, shorter ones padded."},
    {.path = "data.table", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.table.pos), .is_commented_out = true,
     .doc = "format table: CSV of RFC 4180 with a header, JSON lines with an object each (.jsonl, .ndjson), "
            "both plain or gzip, or an SQLite database."},
    {.path = "data.table.separator", .kind = CLV_ROW_ENUM, .offset = AT(data.table.separator),
     .names = separator_names, .is_commented_out = true, .sample = "semicolon",
     .doc = "Character between fields; a comma unless given, in files named .tsv a tab."},
    {.path = "data.table.decimal", .kind = CLV_ROW_ENUM, .offset = AT(data.table.decimal),
     .names = decimal_names, .default_text = "point", .changes_records = true,
     .doc = "Decimal mark of numbers. Marks of thousands are refused."},
    {.path = "data.table.missing_marks", .kind = CLV_ROW_TEXTS, .offset = AT(data.table.missing_marks),
     .max = 64, .is_commented_out = true, .sample = "[NA, unknown]",
     .doc = "Cells that mean a missing value, beside the empty one; NA, N/A, n/a, NaN, nan, NULL, null and None unless given."},
    {.path = "data.table.others", .kind = CLV_ROW_ENUM, .offset = AT(data.table.others),
     .names = others_names, .default_text = "refuse",
     .doc = "Columns of the file that `columns` does not name: refuse ends the command, ignore leaves them out."},
    {.path = "data.table.storage", .kind = CLV_ROW_ENUM, .offset = AT(data.table.storage),
     .names = storage_names, .default_text = "auto",
     .doc = "Place of the cells and of the encoded inputs: memory, or disk, in the folder tables.cache beside the run's. "
            "auto is disk for a file larger than a quarter of the memory; a table with a column `as: text` is in memory."},
    {.path = "data.table.query", .kind = CLV_ROW_TEXT, .offset = AT(data.table.query),
     .is_commented_out = true, .sample = "SELECT * FROM patients ORDER BY patient", .is_place = true,
     .doc = "For an SQLite database: one SELECT that ends with ORDER BY. It reads this file alone and changes nothing."},
    {.path = "data.table.query_seconds", .kind = CLV_ROW_INT, .offset = AT(data.table.query_seconds),
     .min = 1, .max = 86400, .default_text = "60", .doc = "Time that the query may take."},
    {.path = "data.table.files", .kind = CLV_ROW_PATH, .offset = AT(data.table.files),
     .pos_offset = AT(data.table.files_pos), .is_commented_out = true, .sample = "scans", .is_place = true,
     .doc = "For a column `as: file`, the folder of its images; the folder of the table unless given."},
    {.path = "data.table.query_rows", .kind = CLV_ROW_INT, .offset = AT(data.table.query_rows),
     .min = 1, .max = 4294967295, .default_text = "10000000", .doc = "Most records that the query may have."},
    {.path = "data.table.columns", .kind = CLV_ROW_MAP, .offset = AT(data.table.columns),
     .count_offset = AT(data.table.n_columns), .pos_offset = AT(data.table.columns_pos), .max = 16384,
     .entry_bytes = sizeof(clv_column_spec), .is_commented_out = true, .sample = "Age", .is_place = true,
     .doc = "Columns by the names of the header. The input has them in this order."},
    {.path = "data.table.columns{}.as", .kind = CLV_ROW_ENUM, .offset = COLUMN(use),
     .names = clv_column_use_names, .required = true, .sample = "number",
     .doc = "number; category (a place of the input per value, and one for values that training has not); "
            "index (the number of the value, an input of its own for an embedding); boolean; date; target (the label); "
            "id (named in predictions); weight (for data.sampling: column); file (the path of an image, which is the "
            "record); text (tokens by data.tokenizer, an input for an embedding); ignore. target, id and weight are no "
            "inputs."},
    {.path = "data.table.columns{}.scale", .kind = CLV_ROW_ENUM, .offset = COLUMN(scale),
     .names = clv_column_scale_names, .default_text = "standard",
     .doc = "For numbers and dates, as in scikit-learn: StandardScaler (standard), MinMaxScaler (min_max), "
            "QuantileTransformer (quantile), standard of ln(1 + v) (log), or none."},
    {.path = "data.table.columns{}.missing", .kind = CLV_ROW_ENUM, .offset = COLUMN(missing),
     .names = clv_missing_rule_names, .default_text = "refuse",
     .doc = "Missing values: refuse; mean or median of training (numbers, dates); the most frequent; `value`; "
            "own (categories and indexes: a place of its own). Texts: refuse, or `value`, which is empty unless given. "
            "Of one of several targets, mask: its loss and its scores skip records without a label."},
    {.path = "data.table.columns{}.input", .kind = CLV_ROW_TEXT, .offset = COLUMN(input),
     .is_commented_out = true, .sample = "site", .doc = "For an index, the name of its input, which layers read by from; the column's unless given."},
    {.path = "data.table.columns{}.format", .kind = CLV_ROW_TEXT, .offset = COLUMN(format),
     .is_commented_out = true, .sample = "\"%d.%m.%Y\"",
     .doc = "For dates, their form as strptime has it, of %Y %m %d %H %M %S %f %b %B %z; ISO 8601 unless given."},
    {.path = "data.table.columns{}.parts", .kind = CLV_ROW_TEXTS, .offset = COLUMN(parts), .max = 3,
     .names = clv_date_part_names, .is_commented_out = true, .sample = "[year, weekday]",
     .doc = "For dates, parts that come again: sine and cosine of the place in the year, of the month in "
            "the year, and of the day in the week."},
    {.path = "data.table.columns{}.value", .kind = CLV_ROW_TEXT, .offset = COLUMN(value),
     .is_commented_out = true, .sample = "0", .doc = "For missing: value, the value in place of missing ones."},
    {.path = "data.table.columns{}.indicator", .kind = CLV_ROW_BOOL, .offset = COLUMN(has_indicator),
     .default_text = "false",
     .doc = "Add a place to the input that is 1 where the value is missing, else 0."},
    {.path = "data.documents", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.documents.pos), .is_commented_out = true,
     .doc = "format documents: pages as lines of JSON, as cleave-master words prints them, or PDFs and images."},
    {.path = "data.documents.labels_of", .kind = CLV_ROW_ENUM, .offset = AT(data.documents.label_unit),
     .names = labels_of_names, .default_text = "words",
     .doc = "words: each line has labels, a text or null for each word. pages: each line has "
            "one label for the page."},
    {.path = "data.documents.labels", .kind = CLV_ROW_TEXTS, .offset = AT(data.documents.labels),
     .sample = "[other, name, total]", .is_commented_out = true,
     .doc = "Names of the classes in the order of their numbers. Unless given, all names in the "
            "data, sorted."},
    {.path = "data.documents.max_tokens", .kind = CLV_ROW_INT, .offset = AT(data.documents.max_tokens),
     .min = 1, .max = 65536, .default_text = "512",
     .changes_records = true,
     .doc = "Tokens of a record: a longer page becomes several records."},
    {.path = "data.documents.stride", .kind = CLV_ROW_INT, .offset = AT(data.documents.stride),
     .max = 65535, .default_text = "0",
     .changes_records = true,
     .doc = "Tokens that two successive records of one page have in common."},
    {.path = "data.documents.seconds", .kind = CLV_ROW_INT, .offset = AT(data.documents.seconds),
     .min = 1, .max = 86400, .default_text = "60",
     .doc = "Processor time that the program that reads a PDF or an image may take."},
    {.path = "data.documents.memory_mib", .kind = CLV_ROW_INT, .offset = AT(data.documents.memory_mib),
     .min = 16, .max = 1048576, .default_text = "1024",
     .doc = "Memory in MiB that the program that reads a PDF or an image may take."},
    {.path = "data.tokenizer", .kind = CLV_ROW_SECTION, .pos_offset = AT(data.tokenizer.pos), .is_commented_out = true,
     .doc = "Formats text and documents, and a table's column `as: text`: the tokenizer, which works like those of "
            "Hugging Face."},
    {.path = "data.tokenizer.file", .kind = CLV_ROW_PATH, .offset = AT(data.tokenizer.file),
     .sample = "vocab.txt",
     .doc = "WordPiece of a vocab.txt (BERT), or WordPiece, BPE or Unigram of a tokenizer.json (BERT, RoBERTa, Llama, "
            "Qwen, XLM-R)."},
    {.path = "data.tokenizer.lower_case", .kind = CLV_ROW_BOOL, .offset = AT(data.tokenizer.lower_case),
     .default_text = "true", .changes_records = true, .doc = "Of a vocab.txt: text becomes lower-case."},
    {.path = "data.tokenizer.accents", .kind = CLV_ROW_ENUM, .offset = AT(data.tokenizer.accents),
     .names = accent_names, .default_text = "auto",
     .changes_records = true,
     .doc = "Of a vocab.txt: keep or strip accents; auto strips them where text becomes lower-case."},
    {.path = "data.tokenizer.ends", .kind = CLV_ROW_BOOL, .offset = AT(data.tokenizer.adds_first_and_last), .default_text = "true",
     .changes_records = true,
     .doc = "Put the tokens `first` and `last` at the ends of each text."},
    {.path = "data.tokenizer.first", .kind = CLV_ROW_TEXT, .offset = AT(data.tokenizer.first), .sample = "\"[CLS]\"",
     .changes_records = true,
     .doc = "Token before a text. Unless given, [CLS] for a vocab.txt, and that of the "
            "post_processor for a tokenizer.json."},
    {.path = "data.tokenizer.last", .kind = CLV_ROW_TEXT, .offset = AT(data.tokenizer.last), .sample = "\"[SEP]\"",
     .changes_records = true,
     .doc = "Token behind a text. Unless given, [SEP] for a vocab.txt, and that of the "
            "post_processor for a tokenizer.json."},
    {.path = "data.tokenizer.pad", .kind = CLV_ROW_TEXT, .offset = AT(data.tokenizer.pad), .sample = "\"[PAD]\"",
     .changes_records = true,
     .doc = "Token that pads a record. Unless given, [PAD] for a vocab.txt, and that of "
            "`padding` for a tokenizer.json."},
    {.path = "data.tokenizer.mask", .kind = CLV_ROW_TEXT, .offset = AT(data.tokenizer.mask), .sample = "\"[MASK]\"",
     .doc = "For objective masked: the token that hides other tokens; [MASK] for a vocab.txt "
            "unless given."},

    {.path = "model", .kind = CLV_ROW_SECTION, .pos_offset = AT(model.pos), .is_commented_out = true,
     .doc = "The complete model, for stages that take ranges of its layers."},
    {.path = "model.arch", .kind = CLV_ROW_ENUM, .offset = AT(model.arch), .names = arch_names,
     .pos_offset = AT(model.arch_pos), .sample = "mlp", .doc = "A named architecture, instead of layers."},
    {.path = "model.hf", .kind = CLV_ROW_PATH, .offset = AT(model.hf), .pos_offset = AT(model.hf_pos),
     .sample = "layoutlm-base", .doc = "Folder with a config.json as Hugging Face writes it (bert, roberta, xlm-roberta, camembert, "
            "layoutlm, distilbert, vit, gpt2, llama, mistral, qwen2, qwen3, phi3), instead of layers."},
    {.path = "model.head", .kind = CLV_ROW_ENUM, .offset = AT(model.head), .pos_offset = AT(model.head_pos),
     .names = head_names, .sample = "token",
     .doc = "For hf, the head behind the last block: it classifies the sample (sequence) or "
            "each token (token), predicts hidden tokens (masked) or the next token (causal); or "
            "none."},
    {.path = "model.ignore_keys", .kind = CLV_ROW_TEXTS, .offset = AT(model.ignore_keys),
     .pos_offset = AT(model.ignore_keys_pos), .min = 1, .sample = "[auto_map]",
     .doc = "Keys of config.json, adapter_config.json, tokenizer_config.json and the files beside "
            "them that Cleave does not know, and that you know to change nothing. Others that it "
            "does not know are refused."},
    {.path = "model.layers", .kind = CLV_ROW_LIST, .offset = AT(model.layers),
     .count_offset = AT(model.n_layers), .entry_bytes = sizeof(clv_layer_spec), .min = 1,
     .doc = "The layers, first to last."},
    LAYER_ROWS("model.layers"),
    {.path = "model.*", .kind = CLV_ROW_ATTRS, .offset = AT(model.attrs),
     .count_offset = AT(model.n_attrs),
     .doc = "Further keys are attributes of the architecture, such as hidden: [256, 128] or "
            "classes: 10; of hf labels, the classes of its head."},

    {.path = "stages", .kind = CLV_ROW_LIST, .offset = AT(stages), .count_offset = AT(n_stages),
     .entry_bytes = sizeof(clv_stage_spec), .min = 1, .required = true,
     .sample = "  - name: front\n"
               "    at: master\n"
               "    layers: [{op: flatten}, {op: linear, out: 128}, {op: relu}]\n"
               "  - name: middle\n"
               "    at: worker-1\n"
               "    layers: [{op: linear, out: 64}, {op: relu}]\n"
               "  - name: head\n"
               "    at: master\n"
               "    layers: [{op: linear, out: 10}]\n",
     .doc = "The stages of the model in order, and where each of them runs. In a U shape the "
            "first and the last layers are at master."},
    {.path = "stages[].name", .kind = CLV_ROW_TEXT, .offset = STAGE(name),
     .format = CLV_FORMAT_NAME, .required = true, .sample = "front",
     .doc = "Name of the stage, used once."},
    {.path = "stages[].at", .kind = CLV_ROW_TEXT, .offset = STAGE(at), .pos_offset = STAGE(at_pos),
     .format = CLV_FORMAT_NAME, .required = true, .sample = "master",
     .doc = "Node that runs the stage: master, or the name of a worker."},
    {.path = "stages[].threads", .kind = CLV_ROW_INT, .offset = STAGE(threads), .min = 1,
     .max = 256, .default_text = "1",
     .doc = "Compute threads. Another number may change the last bits of results."},
    {.path = "stages[].device", .kind = CLV_ROW_TEXT, .offset = STAGE(device),
     .format = CLV_FORMAT_DEVICE, .default_text = "auto",
     .doc = "Device that computes the stage; auto is the device that its node is configured to "
            "compute on."},
    {.path = "stages[].tf32", .kind = CLV_ROW_BOOL, .offset = STAGE(tf32), .pos_offset = STAGE(tf32_pos),
     .default_text = "false",
     .doc = "On a device of NVIDIA of capability 8.0 or above, products and convolutions may round "
            "their factors to TF32: faster, with 10 bits of each. Refused elsewhere."},
    {.path = "stages[].layers", .kind = CLV_ROW_LIST, .offset = STAGE(layers),
     .count_offset = STAGE(n_layers), .pos_offset = STAGE(layers_pos), .entry_bytes = sizeof(clv_layer_spec),
     .min = 1, .required = true, .example = "[{op: linear, out: 10}]",
     .doc = "Its layers, first to last, or a range (below)."},
    {.path = "stages[].layers", .kind = CLV_ROW_RANGE, .offset = STAGE(range),
     .pos_offset = STAGE(layers_pos), .sample = "0..3",
     .doc = "Or the layers it takes of the model, first and last included: numbers, or names of "
            "layers or blocks, such as conv1..layer2."},
    LAYER_ROWS("stages[].layers"),
    {.path = "stages[].weights", .kind = CLV_ROW_SECTION, .pos_offset = STAGE(weights_pos),
     .is_commented_out = true,
     .doc = "Initial weights; unless given, they are drawn from the seed."},
    {.path = "stages[].weights.file", .kind = CLV_ROW_PATH, .offset = STAGE(weights_file),
     .sample = "front.safetensors", .doc = "A safetensors file on the master, which pushes it."},
    {.path = "stages[].weights.folder", .kind = CLV_ROW_PATH, .offset = STAGE(weights_folder),
     .is_commented_out = true, .sample = "bert-base-uncased",
     .doc = "Or a folder on the master with model.safetensors or model.safetensors.index.json, as "
            "Hugging Face's save_pretrained writes it."},
    {.path = "stages[].weights.artifact", .kind = CLV_ROW_TEXT, .offset = STAGE(weights_artifact),
     .format = CLV_FORMAT_RUN, .sample = "front-v1",
     .doc = "Or the name of an artifact in the worker's own worker.yaml."},
    {.path = "stages[].weights.sha256", .kind = CLV_ROW_TEXT, .offset = STAGE(weights_sha256),
     .format = CLV_FORMAT_SHA256,
     .sample = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     .doc = "SHA-256 that the file must have; for a folder, that of its ARTIFACT.json "
            "(cleave-master artifact)."},
    {.path = "stages[].weights.new", .kind = CLV_ROW_TEXTS, .offset = STAGE(weights_new),
     .pos_offset = STAGE(weights_new_pos), .format = CLV_FORMAT_RUN, .sample = "[classifier]",
     .doc = "Parameters whose names begin with these are drawn from the seed, whether or not "
            "the weights contain them. The weights must contain all other parameters."},
    {.path = "stages[].weights.secret", .kind = CLV_ROW_BOOL, .offset = STAGE(weights_secret),
     .default_text = "false",
     .doc = "No worker has this file: its layers count as secret (see privacy). A worker that offers "
            "it as an artifact is refused."},
    {.path = "stages[].recompute", .kind = CLV_ROW_BOOL, .offset = STAGE(recompute),
     .default_text = "false",
     .doc = "Keep only the stage's inputs for backward, which runs forward again: less memory, "
            "more time."},
    {.path = "stages[].recompute_blocks", .kind = CLV_ROW_TEXTS, .offset = STAGE(recompute_blocks),
     .pos_offset = STAGE(recompute_blocks_pos), .format = CLV_FORMAT_RUN, .min = 1,
     .sample = "[encoder.layer]",
     .doc = "As recompute, but block by block, which needs memory for one block at a time: "
            "names of layers or blocks, or ranges. For encoder.layer, each of encoder.layer.0, "
            "encoder.layer.1 and so on is a block."},
    {.path = "stages[].freeze", .kind = CLV_ROW_BOOL, .offset = STAGE(freeze), .default_text = "false",
     .doc = "Do not train any parameter of the stage."},
    {.path = "stages[].cache", .kind = CLV_ROW_BOOL, .offset = STAGE(cache), .pos_offset = STAGE(cache_pos),
     .default_text = "false",
     .doc = "For a frozen first stage at the master: the next stage's worker keeps the stage's "
            "outputs on its disk, so that they are computed and sent once. The stage runs as in "
            "evaluations, without dropout."},
    {.path = "stages[].cache_ttl", .kind = CLV_ROW_DURATION, .offset = STAGE(cache_ttl_ms),
     .min = 1000, .max = 365ull * 86400000, .default_text = "24h",
     .doc = "Time after which the worker deletes cached outputs that are not used."},
    {.path = "stages[].lora", .kind = CLV_ROW_SECTION, .pos_offset = STAGE(lora.pos), .is_commented_out = true,
     .doc = "Train low-rank adapters at some of the stage's linear layers, and no other "
            "parameter."},
    {.path = "stages[].lora.targets", .kind = CLV_ROW_TEXTS, .offset = STAGE(lora.targets),
     .pos_offset = STAGE(lora.targets_pos), .format = CLV_FORMAT_RUN, .min = 1, .required = true,
     .sample = "[query, value]",
     .doc = "Linear layers that get adapters, by the ends of their names: query is every layer whose "
            "name is query or ends in .query."},
    {.path = "stages[].lora.r", .kind = CLV_ROW_INT, .offset = STAGE(lora.r), .min = 1,
     .max = 65536, .default_text = "8", .doc = "Rank of the adapters."},
    {.path = "stages[].lora.alpha", .kind = CLV_ROW_NUMBER, .offset = STAGE(lora.alpha),
     .excludes_low = true, .high = 1e6, .default_text = "8",
     .doc = "What an adapter adds is scaled by alpha / r."},
    {.path = "stages[].lora.dropout", .kind = CLV_ROW_NUMBER, .offset = STAGE(lora.dropout),
     .high = 0.99, .default_text = "0", .doc = "Dropout of what an adapter reads, in training."},
    {.path = "stages[].lora.rslora", .kind = CLV_ROW_BOOL, .offset = STAGE(lora.rslora),
     .default_text = "false", .doc = "Scale by alpha / sqrt(r)."},
    {.path = "stages[].lora.base", .kind = CLV_ROW_ENUM, .offset = STAGE(lora.base_type),
     .names = compute_names, .default_text = "f32",
     .doc = "Type in which the frozen weights of linear layers are stored: bf16 takes half of "
            "the memory, and rounds weights that come in f32."},
    {.path = "stages[].lora.from", .kind = CLV_ROW_PATH, .offset = STAGE(lora.from),
     .sample = "adapters", .doc = "Begin with the adapters of this folder, which peft or export wrote."},
    {.path = "stages[].lora.train", .kind = CLV_ROW_TEXTS, .offset = STAGE(lora.train),
     .pos_offset = STAGE(lora.train_pos), .format = CLV_FORMAT_RUN, .sample = "[classifier]",
     .doc = "Layers or blocks that are trained completely, such as a new head (peft: "
            "modules_to_save)."},
    {.path = "stages[].transfer", .kind = CLV_ROW_ENUM, .offset = STAGE(transfer),
     .pos_offset = STAGE(transfer_pos), .names = transfer_names, .sample = "direct",
     .doc = "Route of the stage's output to the next stage; the value of `transfer` below "
            "unless given."},

    {.path = "loss", .kind = CLV_ROW_SECTION, .pos_offset = AT(loss.pos), .required = true,
     .doc = "The loss; labels stay where it is computed."},
    {.path = "loss.kind", .kind = CLV_ROW_ENUM, .offset = AT(loss.kind), .names = clv_loss_names,
     .required = true, .sample = "cross_entropy",
     .doc = "The loss function, with the formula of PyTorch. For numbers mse, smooth_l1, huber, quantile, or "
            "poisson for counts (the output is the logarithm of the rate); for classes cross_entropy, focal or "
            "nll; for yes or no bce and bce_with_logits. targets: the sum of the losses in loss.targets."},
    {.path = "loss.targets", .kind = CLV_ROW_MAP, .offset = AT(loss.targets), .count_offset = AT(loss.n_targets),
     .pos_offset = AT(loss.targets_pos), .max = CLV_MAX_TARGETS, .entry_bytes = sizeof(clv_target_spec),
     .is_commented_out = true, .sample = "Outcome", .is_place = true,
     .doc = "For targets: a loss for each target of a table, by the name of its column. The outputs of the "
            "model belong to the targets in this order."},
    {.path = "loss.targets{}.kind", .kind = CLV_ROW_ENUM, .offset = TARGET(kind),
     .names = clv_target_loss_names, .required = true, .sample = "bce_with_logits",
     .doc = "The loss of this target."},
    {.path = "loss.targets{}.classes", .kind = CLV_ROW_INT, .offset = TARGET(n_classes), .max = 65536,
     .default_text = "0",
     .doc = "For classes: how many there are, at least 2, which is how many outputs the target has. Others have one."},
    {.path = "loss.targets{}.loss_weight", .kind = CLV_ROW_NUMBER, .offset = TARGET(loss_weight),
     .excludes_low = true, .high = 1e6, .default_text = "1",
     .doc = "Factor of this loss in the sum."},
    {.path = "loss.targets{}.pos_weight", .kind = CLV_ROW_NUMBER, .offset = TARGET(pos_weight),
     .excludes_low = true, .high = 1e6, .default_text = "1",
     .doc = "For bce_with_logits: factor of the terms of records whose label is 1, as PyTorch's pos_weight."},
    {.path = "loss.targets{}.weight", .kind = CLV_ROW_NUMBERS, .offset = TARGET(weight), .max = 128, .high = 1e30,
     .is_commented_out = true, .sample = "[1, 2.5]", .doc = "As loss.weight."},
    {.path = "loss.targets{}.class_weights", .kind = CLV_ROW_ENUM, .offset = TARGET(class_weights),
     .names = class_weights_names, .is_commented_out = true, .sample = "balanced",
     .doc = "As loss.class_weights, of the training records that have a label of this target."},
    {.path = "loss.targets{}.label_smoothing", .kind = CLV_ROW_NUMBER, .offset = TARGET(label_smoothing),
     .high = 1, .default_text = "0", .doc = "As loss.label_smoothing."},
    {.path = "loss.targets{}.beta", .kind = CLV_ROW_NUMBER, .offset = TARGET(beta), .high = 1e6,
     .default_text = "1", .doc = "As loss.beta."},
    {.path = "loss.targets{}.delta", .kind = CLV_ROW_NUMBER, .offset = TARGET(delta), .low = 1e-6, .high = 1e6,
     .default_text = "1", .doc = "As loss.delta."},
    {.path = "loss.targets{}.quantile", .kind = CLV_ROW_NUMBER, .offset = TARGET(quantile), .high = 1,
     .default_text = "0.5", .doc = "As loss.quantile."},
    {.path = "loss.targets{}.gamma", .kind = CLV_ROW_NUMBER, .offset = TARGET(gamma), .high = 100,
     .default_text = "2", .doc = "As loss.gamma."},
    {.path = "loss.targets{}.scores", .kind = CLV_ROW_TEXTS, .offset = TARGET(scores),
     .pos_offset = TARGET(scores_pos), .max = CLV_SCORE_KINDS, .names = clv_score_names, .is_commented_out = true,
     .sample = "[auc]", .doc = "Scores of this target, as loss.scores."},
    {.path = "loss.targets{}.specificity", .kind = CLV_ROW_NUMBER, .offset = TARGET(specificity), .high = 1,
     .default_text = "0.9", .doc = "As loss.specificity."},
    {.path = "loss.weight", .kind = CLV_ROW_NUMBERS, .offset = AT(loss.weight),
     .pos_offset = AT(loss.options_pos), .max = 128, .high = 1e30, .is_commented_out = true, .sample = "[1, 2.5]",
     .doc = "For cross_entropy and focal: a weight for each class; all 1 unless given."},
    {.path = "loss.class_weights", .kind = CLV_ROW_ENUM, .offset = AT(loss.class_weights),
     .pos_offset = AT(loss.class_weights_pos), .names = class_weights_names, .is_commented_out = true,
     .sample = "balanced",
     .doc = "In place of weight: balanced gives a class n / (classes * n_class), as in scikit-learn, with the n "
            "labels of the training records alone."},
    {.path = "loss.ignore_index", .kind = CLV_ROW_NUMBER, .offset = AT(loss.ignore_index),
     .pos_offset = AT(loss.ignore_pos), .low = -2147483647, .high = 2147483647, .default_text = "-100",
     .doc = "For cross_entropy and focal: positions with this label do not count."},
    {.path = "loss.label_smoothing", .kind = CLV_ROW_NUMBER, .offset = AT(loss.label_smoothing),
     .high = 1, .default_text = "0",
     .doc = "For cross_entropy: share of each label that is spread equally over all classes."},
    {.path = "loss.beta", .kind = CLV_ROW_NUMBER, .offset = AT(loss.beta), .high = 1e6, .default_text = "1",
     .doc = "For smooth_l1: the error up to which the loss is a square."},
    {.path = "loss.delta", .kind = CLV_ROW_NUMBER, .offset = AT(loss.delta), .low = 1e-6, .high = 1e6,
     .default_text = "1", .doc = "For huber: the error up to which the loss is a square."},
    {.path = "loss.quantile", .kind = CLV_ROW_NUMBER, .offset = AT(loss.quantile), .high = 1,
     .default_text = "0.5", .doc = "For quantile: the quantile that is predicted; 0.5 is the median."},
    {.path = "loss.gamma", .kind = CLV_ROW_NUMBER, .offset = AT(loss.gamma), .high = 100,
     .default_text = "2",
     .doc = "For focal: exponent of 1 - p, by which places that are right count less; 0 is cross_entropy."},
    {.path = "loss.scores", .kind = CLV_ROW_TEXTS, .offset = AT(loss.scores),
     .pos_offset = AT(loss.scores_pos), .max = CLV_SCORE_KINDS, .names = clv_score_names, .is_commented_out = true,
     .sample = "[f1, auc]",
     .doc = "Scores that evaluations report in addition to loss and accuracy, with "
            "scikit-learn's definitions."},
    {.path = "loss.specificity", .kind = CLV_ROW_NUMBER, .offset = AT(loss.specificity), .high = 1,
     .default_text = "0.9",
     .doc = "For the score sensitivity: the least specificity (share of the negatives that are not taken "
            "for positive) of the threshold at which it is the largest."},
    {.path = "loss.at", .kind = CLV_ROW_TEXT, .offset = AT(loss.at), .pos_offset = AT(loss.at_pos),
     .format = CLV_FORMAT_NAME, .default_text = "master",
     .doc = "Node that computes the loss; a worker only with privacy.labels_leave: true."},

    {.path = "privacy", .kind = CLV_ROW_SECTION,
     .doc = "What may leave the master besides activations and gradients of cuts that a layer with "
            "secret first values has mixed; plan prints what is true of a session."},
    {.path = "privacy.raw_input_leaves", .kind = CLV_ROW_BOOL,
     .offset = AT(privacy.raw_input_leaves), .default_text = "false",
     .doc = "Allow the first stage, and so the records themselves, on a worker, or behind layers of "
            "which none sums two places."},
    {.path = "privacy.tokens_readable", .kind = CLV_ROW_BOOL,
     .offset = AT(privacy.tokens_readable), .default_text = "false",
     .doc = "Allow embeddings to leave, one vector per token, by which tokens can be distinguished, or "
            "values made of fewer than half of the tokens."},
    {.path = "privacy.front_known", .kind = CLV_ROW_BOOL, .offset = AT(privacy.front_known),
     .default_text = "false",
     .doc = "Allow records to be mixed only by layers whose weights a worker can know, such as a "
            "public front."},
    {.path = "privacy.labels_readable", .kind = CLV_ROW_BOOL,
     .offset = AT(privacy.labels_readable), .default_text = "false",
     .doc = "Allow a worker to be sent gradients that labels can be read from, such as those of the "
            "last stage's outputs."},
    {.path = "privacy.labels_leave", .kind = CLV_ROW_BOOL, .offset = AT(privacy.labels_leave),
     .default_text = "false", .doc = "Allow the loss, and so the labels, on a worker."},
    {.path = "privacy.release", .kind = CLV_ROW_TEXTS, .offset = AT(privacy.release),
     .pos_offset = AT(privacy.release_pos), .is_commented_out = true, .sample = "[\"layer1.*\", fc1]",
     .doc = "Patterns of the names of layers that may move from the master to a worker when a run "
            "goes on with another cut. The worker can then undo these layers in activations that "
            "it may have recorded. Where the host has a policy, the policy decides instead."},

    {.path = "train", .kind = CLV_ROW_SECTION, .pos_offset = AT(train.pos), .required = true,
     .doc = "The training loop."},
    {.path = "train.epochs", .kind = CLV_ROW_INT, .offset = AT(train.epochs), .min = 1,
     .max = 1000000, .default_text = "1", .doc = "Passes over the training set."},
    {.path = "train.max_steps", .kind = CLV_ROW_INT, .offset = AT(train.max_steps),
     .max = MAX_STEPS, .default_text = "0", .doc = "Stop after so many steps; 0 is no limit."},
    {.path = "train.batch", .kind = CLV_ROW_INT, .offset = AT(train.batch), .min = 1,
     .max = 1048576, .required = true, .sample = "128", .doc = "Records per step."},
    {.path = "train.eval_batch", .kind = CLV_ROW_INT, .offset = AT(train.eval_batch), .min = 1,
     .max = 1048576, .sample = "128", .doc = "Records per evaluation step; as batch unless given. Another number may change the last bits."},
    {.path = "train.seed", .kind = CLV_ROW_SEED, .offset = AT(train.seed), .is_commented_out = true,
     .sample = "00112233445566778899aabbccddeeff",
     .doc = "For equal bits in every run: 32 hexadecimal digits that no one else knows. Weights, "
            "dropout, shuffling and splits follow from it; a worker gets keys of its own layers. A "
            "number below 2^64 can be guessed from these, and every layer then counts as known. "
            "Without it a run draws 128 bits and keeps them in its folder."},
    {.path = "train.dtype", .kind = CLV_ROW_ENUM, .offset = AT(train.dtype),
     .pos_offset = AT(train.dtype_pos), .names = compute_names, .default_text = "f32",
     .doc = "What conv2d, linear, attention and lstm compute in, on every stage: bf16 is faster where the processor has "
            "AVX512-BF16, or NVIDIA's device capability 8.0, and refused elsewhere. Weights, "
            "optimiser and what travels are f32 either way, and on processors all other ops."},
    {.path = "train.shuffle", .kind = CLV_ROW_BOOL, .offset = AT(train.shuffle), .default_text = "true",
     .doc = "A new order of the records in every epoch."},
    {.path = "train.drop_last", .kind = CLV_ROW_BOOL, .offset = AT(train.drop_last),
     .default_text = "false", .doc = "Skip the last batch of an epoch when it is short."},
    {.path = "train.optimizer", .kind = CLV_ROW_SECTION, .pos_offset = AT(train.optimizer.pos),
     .required = true, .doc = "The optimiser, the same on every stage; formulas as in PyTorch."},
    {.path = "train.optimizer.kind", .kind = CLV_ROW_ENUM, .offset = AT(train.optimizer.kind),
     .names = optimizer_names, .required = true, .sample = "adam",
     .doc = "The optimiser's algorithm."},
    {.path = "train.optimizer.lr", .kind = CLV_ROW_NUMBER, .offset = AT(train.optimizer.lr),
     .excludes_low = true, .high = 1e300, .required = true, .sample = "0.001", .doc = "Learning rate."},
    {.path = "train.optimizer.momentum", .kind = CLV_ROW_NUMBER,
     .offset = AT(train.optimizer.momentum), .high = 1, .default_text = "0", .doc = "sgd, rmsprop: momentum."},
    {.path = "train.optimizer.nesterov", .kind = CLV_ROW_BOOL,
     .offset = AT(train.optimizer.nesterov), .default_text = "false",
     .doc = "sgd: Nesterov's momentum."},
    {.path = "train.optimizer.weight_decay", .kind = CLV_ROW_NUMBER,
     .offset = AT(train.optimizer.weight_decay), .high = 1e300, .default_text = "0",
     .doc = "Weight decay; adamw takes it from the weights, the others add it to the gradient."},
    {.path = "train.optimizer.decay_applies_to", .old_name = "decay", .kind = CLV_ROW_ENUM, .offset = AT(train.optimizer.decayed_params),
     .names = decay_names, .default_text = "all",
     .doc = "Parameters to which weight decay applies: all, or weights, which excludes biases "
            "and normalisations (as Hugging Face's Trainer)."},
    {.path = "train.optimizer.betas", .kind = CLV_ROW_NUMBERS, .offset = AT(train.optimizer.betas),
     .min = 2, .max = 2, .high = 1, .default_text = "[0.9, 0.999]",
     .doc = "adam, adamw, adamax: decay of both averages, each below 1."},
    {.path = "train.optimizer.eps", .kind = CLV_ROW_NUMBER, .offset = AT(train.optimizer.eps),
     .pos_offset = AT(train.optimizer.eps_pos), .high = 1, .sample = "1.0e-8",
     .doc = "All but sgd: added to the denominator; 1.0e-8 unless given, for adagrad 1.0e-10."},
    {.path = "train.optimizer.alpha", .kind = CLV_ROW_NUMBER, .offset = AT(train.optimizer.alpha),
     .high = 1, .default_text = "0.99", .doc = "rmsprop: decay of its averages, below 1."},
    {.path = "train.optimizer.centered", .kind = CLV_ROW_BOOL,
     .offset = AT(train.optimizer.centered), .default_text = "false",
     .doc = "rmsprop: divide by the variance, not by the mean of squares."},
    {.path = "train.optimizer.lr_decay", .kind = CLV_ROW_NUMBER,
     .offset = AT(train.optimizer.lr_decay), .high = 1e300, .default_text = "0",
     .doc = "adagrad: step t = 1, 2, ... has the rate lr / (1 + (t - 1) lr_decay)."},
    {.path = "train.optimizer.initial_accumulator_value", .kind = CLV_ROW_NUMBER,
     .offset = AT(train.optimizer.initial_accumulator_value), .high = 1e300, .default_text = "0",
     .doc = "adagrad: initial value of the sums of squares."},
    {.path = "train.schedule", .kind = CLV_ROW_SECTION, .pos_offset = AT(train.schedule.pos),
     .doc = "The learning rate over time."},
    {.path = "train.schedule.kind", .kind = CLV_ROW_ENUM, .offset = AT(train.schedule.kind),
     .names = lr_names, .default_text = "constant",
     .doc = "Curve of the learning rate after the warm-up."},
    {.path = "train.schedule.warmup_steps", .kind = CLV_ROW_INT,
     .offset = AT(train.schedule.warmup_steps), .max = MAX_STEPS, .default_text = "0",
     .doc = "Steps over which the rate rises from 0."},
    {.path = "train.schedule.from_zero", .kind = CLV_ROW_BOOL,
     .offset = AT(train.schedule.from_zero), .default_text = "false",
     .doc = "The first step's rate is 0, as in Hugging Face's schedules; else it is lr / warmup_steps."},
    {.path = "train.schedule.step_size", .kind = CLV_ROW_INT,
     .offset = AT(train.schedule.step_size), .max = MAX_STEPS, .default_text = "0",
     .doc = "For step: number of steps between two reductions of the rate."},
    {.path = "train.schedule.gamma", .kind = CLV_ROW_NUMBER, .offset = AT(train.schedule.gamma),
     .excludes_low = true, .high = 1, .default_text = "0.1",
     .doc = "For step: factor of each reduction."},
    {.path = "train.schedule.total_steps", .kind = CLV_ROW_INT,
     .offset = AT(train.schedule.total_steps), .max = MAX_STEPS, .default_text = "0",
     .doc = "cosine, linear: steps until the rate is 0; 0 is the length of the run."},
    {.path = "train.accumulate", .kind = CLV_ROW_INT, .offset = AT(train.accumulate), .min = 1,
     .max = 4096, .default_text = "1",
     .doc = "Gradient accumulation: a batch passes through the stages in so many parts, one "
            "after another, and makes one step. The same as pipeline: {micro_batches, window: "
            "1}."},
    {.path = "train.clip_grad_norm", .kind = CLV_ROW_NUMBER, .offset = AT(train.clip_grad_norm),
     .high = 1e300, .default_text = "0",
     .doc = "Clip gradients to this norm over all stages; 0 is off."},
    {.path = "train.freeze", .kind = CLV_ROW_TEXTS, .offset = AT(train.freeze),
     .pos_offset = AT(train.freeze_pos), .sample = "[\"0.*\"]",
     .doc = "Patterns of the names of parameters that are not trained."},
    {.path = "train.ema", .kind = CLV_ROW_NUMBER, .offset = AT(train.ema), .pos_offset = AT(train.ema_pos),
     .high = 1, .default_text = "0",
     .doc = "Decay of an exponential moving average of the trained weights, below 1, as 0.999; 0 is off. Each "
            "node keeps that of its stages, checkpoints have it, and --weights ema computes with it."},
    {.path = "train.ema_warmup", .kind = CLV_ROW_BOOL, .offset = AT(train.ema_warmup), .pos_offset = AT(train.ema_pos),
     .default_text = "false",
     .doc = "Smaller decays at first: step t = 1, 2, ... has at most (1 + t) / (10 + t)."},
    {.path = "train.early_stopping", .kind = CLV_ROW_SECTION, .pos_offset = AT(train.early_stopping.pos),
     .is_commented_out = true,
     .doc = "Stop when validations no longer improve. Checkpoints have what it counts, so that a "
            "resumed run stops at the same step. Needs data.validation."},
    {.path = "train.early_stopping.score", .kind = CLV_ROW_ENUM, .offset = AT(train.early_stopping.score),
     .pos_offset = AT(train.early_stopping.score_pos), .names = best_names, .required = true,
     .target_offset = AT(train.early_stopping.target), .sample = "validation.loss",
     .doc = "Number that has to improve: loss, perplexity and errors fall, the others rise. All but loss "
            "and accuracy have to be in loss.scores. Of a target it is validation.TARGET.auc and so on."},
    {.path = "train.early_stopping.patience", .kind = CLV_ROW_INT,
     .offset = AT(train.early_stopping.patience), .min = 1, .max = 1000000, .default_text = "5",
     .doc = "Validations in a row without an improvement after which the run stops; one follows each epoch."},
    {.path = "train.early_stopping.min_delta", .kind = CLV_ROW_NUMBER,
     .offset = AT(train.early_stopping.min_delta), .high = 1e300, .default_text = "0",
     .doc = "An improvement is larger than this."},

    {.path = "pipeline", .kind = CLV_ROW_SECTION, .pos_offset = AT(pipeline.pos),
     .doc = "How a batch moves through the stages."},
    {.path = "pipeline.micro_batches", .kind = CLV_ROW_INT, .offset = AT(pipeline.micro_batches),
     .names = micro_words, .min = 1, .max = 4096, .default_text = "1",
     .doc = "Parts into which a batch is divided, several of which are in flight at once. auto "
            "chooses the number by trial steps when a run begins."},
    {.path = "pipeline.schedule", .kind = CLV_ROW_ENUM, .offset = AT(pipeline.schedule),
     .names = pipeline_names, .default_text = "1f1b",
     .doc = "Order of forwards and backwards. All schedules give the same bits, except "
            "pipedream and pipedream-2bw."},
    {.path = "pipeline.window", .kind = CLV_ROW_INT, .offset = AT(pipeline.window),
     .names = window_words, .min = 1, .max = 4096, .default_text = "auto",
     .doc = "1f1b: micro-batches in flight; auto follows the measured links, textbook is the number of stages."},
    {.path = "pipeline.flush_every", .kind = CLV_ROW_INT, .offset = AT(pipeline.flush_every),
     .min = 1, .max = 4096, .default_text = "32",
     .doc = "pipedream: steps after which the stages wait for each other."},
    {.path = "pipeline.file", .kind = CLV_ROW_PATH, .offset = AT(pipeline.file),
     .sample = "my.sched", .is_commented_out = true,
     .doc = "For custom: file with the instructions of each rank, as plan --schedule --output "
            "FILE writes it."},
    {.path = "transfer", .kind = CLV_ROW_ENUM, .offset = AT(transfer), .names = transfer_names,
     .default_text = "via_master",
     .doc = "Route of activations between workers: through the master, or directly from one "
            "worker to the next."},

    {.path = "limits", .kind = CLV_ROW_SECTION, .doc = "Timeouts and memory."},
    {.path = "limits.step_timeout", .kind = CLV_ROW_DURATION, .offset = AT(limits.step_timeout_ms),
     .min = 1, .max = 86400000, .default_text = "60s",
     .doc = "A step that takes longer fails."},
    {.path = "limits.connect_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.connect_timeout_ms), .min = 1, .max = 3600000, .default_text = "10s",
     .doc = "Time for reaching a worker and agreeing on TLS."},
    {.path = "limits.peer_timeout", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.peer_timeout_ms), .min = 1000, .max = 3600000, .default_text = "15s",
     .doc = "A connection to a worker that is silent for this time is closed and made again. If the "
            "worker's own limit is shorter, that applies."},
    {.path = "limits.lease", .kind = CLV_ROW_DURATION, .offset = AT(limits.lease_ms),
     .pos_offset = AT(limits.lease_pos), .min = 1000, .max = 86400000, .default_text = "120s",
     .doc = "Time for which a lost connection to a worker is made again before the worker counts as "
            "lost; shorter than limits.reference_lease."},
    {.path = "limits.reference_lease", .kind = CLV_ROW_DURATION,
     .offset = AT(limits.reference_lease_ms), .min = 1000, .max = 86400000, .default_text = "300s",
     .doc = "For programs on libcleave: values kept (cleave_keep) for a node that is silent for "
            "this time are freed. Must be longer than any single call computes."},
    {.path = "limits.receive_window", .old_name = "credit", .kind = CLV_ROW_SIZE, .offset = AT(limits.credit_bytes),
     .min = 65536, .max = 1ull << 40, .default_text = "64MiB",
     .doc = "Bytes that one worker may have in flight to the master."},

    {.path = "log", .kind = CLV_ROW_SECTION,
     .doc = "Log lines and event files of a run."},
    {.path = "log.every", .kind = CLV_ROW_INT, .offset = AT(log.every), .min = 1, .max = MAX_STEPS,
     .default_text = "20",
     .doc = "Steps between two log lines."},
    {.path = "log.json", .kind = CLV_ROW_BOOL, .offset = AT(log.json), .default_text = "false",
     .doc = "Progress, and lines on standard error, as JSON objects, one a line; --log-format is stronger."},
    {.path = "log.tensorboard", .kind = CLV_ROW_TEXT, .offset = AT(log.tensorboard),
     .format = CLV_FORMAT_FOLDER, .default_text = "false",
     .is_place = true,
     .doc = "Event files for TensorBoard: in a folder of the session's name below this one, from the "
            "working folder; true is `tensorboard` in the run folder."},
    {.path = "checkpoint", .kind = CLV_ROW_SECTION,
     .doc = "Checkpoints, from which `train --resume` continues."},
    {.path = "checkpoint.dir", .kind = CLV_ROW_TEXT, .offset = AT(checkpoint.dir),
     .sample = "runs/my-session",
     .is_place = true,
     .doc = "Folder of the checkpoints, from the working folder; run.dir/name unless given."},
    {.path = "checkpoint.every_steps", .kind = CLV_ROW_INT, .offset = AT(checkpoint.every_steps),
     .pos_offset = AT(checkpoint.every_steps_pos), .names = never_words, .min = 1, .max = MAX_STEPS,
     .default_text = "500",
     .doc = "Steps between two checkpoints; pipedream: and the rest of the round. none: only "
            "checkpoint.every, validations and the end write one."},
    {.path = "checkpoint.every", .kind = CLV_ROW_TEXT, .offset = AT(checkpoint.every),
     .pos_offset = AT(checkpoint.every_pos), .sample = "auto", .is_commented_out = true,
     .doc = "Time between two checkpoints, as in 10m, in place of every_steps. auto measures what a "
            "checkpoint costs and takes at most 3 % of the time, from every 10 s to every 30 min."},
    {.path = "checkpoint.home", .kind = CLV_ROW_ENUM, .offset = AT(checkpoint.home),
     .names = home_names, .sample = "end", .is_commented_out = true,
     .doc = "When checkpoints come to this host from workers with a state_dir, which keep them "
            "meanwhile: at the end of the run (the newest and the best), always (each one) or never. "
            "end unless given; always if a worker has spares."},
    {.path = "checkpoint.keep", .kind = CLV_ROW_INT, .offset = AT(checkpoint.keep), .min = 1,
     .max = 1000000, .default_text = "3",
     .doc = "Number of checkpoints kept, the newest ones."},
    {.path = "checkpoint.best", .kind = CLV_ROW_ENUM, .offset = AT(checkpoint.best),
     .pos_offset = AT(checkpoint.best_pos), .names = best_names, .sample = "validation.loss",
     .target_offset = AT(checkpoint.best_target), .is_commented_out = true,
     .doc = "Keep the checkpoint with the best validation in addition, for --checkpoint best; "
            "needs data.validation, and for all but loss and accuracy loss.scores. Of a target it is "
            "validation.TARGET.auc and so on."},
    {.path = "checkpoint.mode", .kind = CLV_ROW_ENUM, .offset = AT(checkpoint.mode),
     .names = mode_names, .sample = "min", .is_commented_out = true,
     .doc = "Which value is the best: min for validation.loss, max for validation.accuracy, and so "
            "on, as is the default."},
    {.path = "checkpoint.escrow", .kind = CLV_ROW_SECTION, .is_commented_out = true,
     .doc = "Encrypted copies of the newest checkpoint at the master, made while the run trains. A run whose "
            "workers lost their files goes on from the copy."},
    {.path = "checkpoint.escrow.every", .kind = CLV_ROW_TEXT, .offset = AT(checkpoint.escrow.every),
     .pos_offset = AT(checkpoint.escrow.every_pos), .required = true, .sample = "30m",
     .doc = "Time between two copies, from 1s to 30 days."},
    {.path = "checkpoint.escrow.key", .kind = CLV_ROW_PATH, .offset = AT(checkpoint.escrow.key),
     .required = true, .sample = "escrow.key", .is_place = true,
     .doc = "Key file, made with mode 0600 if it is missing. Nothing can read the copies without it."},
    {.path = "checkpoint.escrow.dir", .kind = CLV_ROW_TEXT, .offset = AT(checkpoint.escrow.dir),
     .sample = "escrow", .is_place = true,
     .doc = "Folder of the copies, from the working folder; `escrow` in the run folder unless given."},
    {.path = "recovery", .kind = CLV_ROW_SECTION, .pos_offset = AT(recovery.pos),
     .doc = "What train does when a worker is lost: it connects again and goes on from the newest checkpoint."},
    {.path = "recovery", .kind = CLV_ROW_ENUM, .offset = AT(recovery.use), .names = recovery_names,
     .sample = "off", .is_commented_out = true,
     .replacement_hint = "recovery is on unless it is off: leave the key out, or give numbers, as in recovery: {give_up_after: 15m}",
     .doc = "The loss of a worker ends the run."},
    {.path = "recovery.attempts", .kind = CLV_ROW_INT, .offset = AT(recovery.attempts), .min = 1,
     .max = 1000000, .default_text = "5",
     .doc = "Losses in a row without a newer checkpoint, after which the run fails."},
    {.path = "recovery.wait", .kind = CLV_ROW_DURATION, .offset = AT(recovery.wait_ms), .min = 10,
     .max = 3600000, .default_text = "5s",
     .doc = "The longest pause between two tries to connect; the first pauses are shorter."},
    {.path = "recovery.replace_after", .kind = CLV_ROW_DURATION,
     .offset = AT(recovery.replace_after_ms), .min = 0, .max = 2592000000, .default_text = "30s",
     .doc = "Time from a loss after which a spare takes the place of a worker that cannot be reached."},
    {.path = "recovery.give_up_after", .kind = CLV_ROW_DURATION,
     .offset = AT(recovery.give_up_after_ms), .min = 1000, .max = 2592000000, .default_text = "15m",
     .doc = "Time from a loss after which the run fails if the workers cannot be reached."},
    {.path = "run", .kind = CLV_ROW_SECTION, .doc = "The run folder."},
    {.path = "run.dir", .kind = CLV_ROW_TEXT, .offset = AT(run.dir), .default_text = "runs",
     .is_place = true, .doc = "Where run folders are made, from the working folder."},
    {.path = "metrics", .kind = CLV_ROW_SECTION, .is_commented_out = true,
     .doc = "Numbers of a run over plain HTTP while it trains, at /metrics for Prometheus. Nothing "
            "listens on the master unless this is given."},
    {.path = "metrics.listen", .kind = CLV_ROW_TEXT, .offset = AT(metrics.listen),
     .pos_offset = AT(metrics.listen_pos), .format = CLV_FORMAT_LISTEN, .required = true,
     .sample = "127.0.0.1:9102", .is_place = true, .doc = "Loopback, unless others are to see them."},
};
/* clang-format on */

const clv_schema *clv_session_schema(void) {
  static const clv_schema schema = {
      .rows = rows,
      .n_rows = CLV_COUNT(rows),
      .title = "session.yaml",
      .subject = "a training session",
      .doc =
          "One training session: data, model, who runs which part, and how it is trained. Paths "
          "start at the folder of this file. Every key can be overridden, as in "
          "CLEAVE_TRAIN__BATCH=64 or --set train.batch=64.",
  };
  return &schema;
}

bool clv_session_key_changes_records(const char *key) {
  for (size_t i = 0; i < CLV_COUNT(rows); i++)
    if (strcmp(rows[i].path, key) == 0) return rows[i].changes_records;
  return false;
}

const char *clv_loss_name(clv_loss_kind kind) { return clv_loss_names[kind]; }
const char *clv_best_metric_name(clv_best_metric metric) { return best_names[metric]; }

const char *clv_best_name(clv_best_metric metric, const char *target,
                          char name[CLV_BEST_NAME_BYTES]) {
  const char *value = strchr(best_names[metric], '.');
  if (target && *target && value)
    snprintf(name, CLV_BEST_NAME_BYTES, "validation.%.*s%s", CLV_BEST_TARGET_BYTES - 1, target,
             value);
  else
    snprintf(name, CLV_BEST_NAME_BYTES, "%s", best_names[metric]);
  return name;
}

bool clv_best_metric_is_largest(clv_best_metric metric) {
  return metric && clv_score_value_row_of((clv_score_value)(metric - 1))->largest_is_best;
}

const char *clv_compute_name(clv_compute dtype) { return compute_names[dtype]; }

const char *clv_pipeline_name(clv_pipeline_kind kind) { return pipeline_names[kind]; }
const char *clv_arch_name(clv_arch arch) { return arch_names[arch]; }
