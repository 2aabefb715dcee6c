/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `init`: writes session.yaml, worker.yaml and certificates that work without a change.
 * With --all it writes examples that explain every key. If Debian's Fashion-MNIST is not installed,
 * it writes synthetic data in files of the same layout: noise with a bright spot at one of ten
 * places.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "master/master_int.h"

enum {
  IMAGE_SIDE_PIXELS = 28,
  N_CLASSES = 10,
  N_SPOTS_PER_ROW = 5,
  N_TRAIN_IMAGES = 2000,
  N_TEST_IMAGES = 500
};

#define CERTS_FOLDER "certs"
#define MASTER_URI "spiffe://example.net/master"
#define WORKER_URI "spiffe://example.net/worker/worker-1"

/* Data set of the session that `init` writes: its files and the normalisation of its pixels. */
typedef struct example_data {
  const char *title;                /* name of the data in the session file */
  const char *folder, *name_suffix; /* folder of the files; end of their names */
  const char *mean, *std;           /* mean and standard deviation of the pixels */
} example_data;

static const example_data debian_example = {
    .title = "Fashion-MNIST (Debian's dataset-fashion-mnist)",
    .folder = "/usr/share/datasets/fashion-mnist",
    .name_suffix = ".gz",
    .mean = "0.2860",
    .std = "0.3530"};
static const example_data synthetic_example = {
    .title = "Made data", .folder = "data", .name_suffix = "", .mean = "0.1491", .std = "0.1313"};

static const char *const data_files[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                         "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

#define SESSION_TEXT_BEGIN                                                                  \
  "# %s, in U shape:\n"                                                                     \
  "# the first layers and the last one are here, the rest at a worker.\n"                   \
  "# `cleave-master init --all` in another folder writes every key with its explanation.\n" \
  "version: 1\n"                                                                            \
  "name: first\n"                                                                           \
  "\n"                                                                                      \
  "# Paths start at this file's folder.\n"                                                  \
  "tls:\n"                                                                                  \
  "  ca: certs/ca.pem\n"                                                                    \
  "  cert: certs/master.pem\n"                                                              \
  "  key: certs/master.key\n"                                                               \
  "\n"                                                                                      \
  "workers:\n"                                                                              \
  "  worker-1: {address: \"127.0.0.1:7443\", identity: \"" WORKER_URI                       \
  "\"}\n"                                                                                   \
  "\n"                                                                                      \
  "data:\n"

static const char session_text[] = SESSION_TEXT_BEGIN
    "  format: idx\n"
    "  root: %s\n"
    "  train: [%s%s, %s%s]\n"
    "  test: [%s%s, %s%s]\n"
    "  normalize: {mean: [%s], std: [%s]}\n"
    "\n"
    "stages:\n"
    "  - name: front    # raw images go in here, so it stays at the master\n"
    "    at: master\n"
    "    layers: [{op: conv2d, out: 16, kernel: 3, pad: 1}, {op: relu}, {op: maxpool, kernel: 2}]\n"
    "  - name: middle\n"
    "    at: worker-1\n"
    "    layers: [{op: flatten}, {op: linear, out: 64}, {op: relu}]\n"
    "  - name: head     # between the labels and the worker\n"
    "    at: master\n"
    "    layers: [{op: linear, out: 10}]\n"
    "\n"
    "loss: {kind: cross_entropy}\n"
    "train: {epochs: 1, batch: 100, optimizer: {kind: adam, lr: 0.001}}\n";

/* Text of the first stage's layers in the session file. number_layers_text: for a table of numbers
 * and words; text_layers_text: for a table whose only input is a text. */
static const char number_layers_text[] = "    layers: [{op: linear, out: 64}, {op: relu}]\n";
static const char text_layers_text[] =
    "    layers:\n"
    "      - {op: embedding, rows: 30522, out: 64}    # rows: as many as the tokenizer has tokens\n"
    "      - {op: mean, dim: 1}\n"
    "      - {op: linear, out: 64}\n"
    "      - {op: relu}\n";

/* Last part of the session file that `init` writes for a table: stages, privacy, loss, train. */
static const char table_stages_text[] =
    "\n"
    "stages:\n"
    "  - name: front    # records go in here, so it stays at the master\n"
    "    at: master\n"
    "%s"
    "  - name: middle\n"
    "    at: worker-1\n"
    "    layers: [{op: linear, out: 64}, {op: relu}]\n"
    "  - name: head     # between the labels and the worker\n"
    "    at: master\n"
    "    layers: [{op: linear, out: %zu}]\n"
    "\n"
    "# The gradient that the head sends shows the labels to the worker: `plan` measures it. "
    "Without\n"
    "# this key `train` refuses to send it.\n"
    "privacy: {labels_readable: true}\n"
    "\n"
    "loss: {kind: %s}\n"
    "train: {epochs: 30, batch: 32, optimizer: {kind: adam, lr: 0.003}}\n";

static const char worker_yaml_text[] =
    "# A worker on this machine, for session.yaml beside it.\n"
    "# `cleave-master init --all` in another folder writes every key with its explanation.\n"
    "name: worker-1\n"
    "listen: 127.0.0.1:7443\n"
    "\n"
    "# Paths start at this file's folder.\n"
    "tls:\n"
    "  ca: certs/ca.pem\n"
    "  cert: certs/worker-1.pem\n"
    "  key: certs/worker-1.key\n"
    "\n"
    "# Who may call; everybody else is refused.\n"
    "allow:\n"
    "  - {identity: \"" MASTER_URI "\", role: master}\n";

static const char next_steps_text[] =
    "next:\n"
    "  cleave-master plan session.yaml      # what leaves: PICTURE of what `front` sends means "
    "that\n"
    "                                       # it may look like the record\n"
    "  cleave-worker serve --config worker.yaml &\n"
    "  cleave-master train session.yaml\n";

/* ---- making data files ----------------------------------------------------------------------- */

static void data_path(const example_data *d, size_t i, char path[256]) {
  snprintf(path, 256, "%s/%s%s", d->folder, data_files[i], d->name_suffix);
}

static bool is_installed(const example_data *d) {
  char path[256];
  for (size_t i = 0; i < CLV_COUNT(data_files); i++) {
    data_path(d, i, path);
    if (access(path, R_OK) != 0) return false;
  }
  return true;
}

static void append_u32_big_endian(clv_bytes *b, uint32_t n) {
  clv_bytes_add(b, (uint8_t[]){n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255}, 4);
}

/* Appends an image: faint noise, and a bright spot whose place depends on the class. */
static void append_image(clv_bytes *b, uint32_t image, uint32_t seed) {
  clv_rng_key key = {.seed = seed, .step = image};
  uint32_t class = image % N_CLASSES, words[4];
  uint32_t top = class / N_SPOTS_PER_ROW * 14 + 2, left = class % N_SPOTS_PER_ROW * 5 + 2;
  for (uint32_t i = 0; i < IMAGE_SIDE_PIXELS * IMAGE_SIDE_PIXELS; i++) {
    uint32_t y = i / IMAGE_SIDE_PIXELS, x = i % IMAGE_SIDE_PIXELS;
    bool is_bright = y >= top && y < top + 10 && x >= left && x < left + 4;
    if (i % 4 == 0) clv_rng_block(&key, i / 4, words);
    uint8_t pixel = (uint8_t)((words[i % 4] & 63) + (is_bright ? 128 : 0));
    clv_bytes_add(b, &pixel, 1);
  }
}

/* Writes an IDX file of unsigned bytes: n images if has_images, else the labels of these images. */
static clv_code make_file(const char *path, bool has_images, uint32_t n, uint32_t seed,
                          clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  append_u32_big_endian(&b, 0x0800u | (has_images ? 3 : 1));
  append_u32_big_endian(&b, n);
  if (has_images) append_u32_big_endian(&b, IMAGE_SIDE_PIXELS);
  if (has_images) append_u32_big_endian(&b, IMAGE_SIDE_PIXELS);
  for (uint32_t i = 0; i < n; i++) {
    if (has_images)
      append_image(&b, i, seed);
    else
      clv_bytes_add(&b, &(uint8_t){(uint8_t)(i % N_CLASSES)}, 1);
  }
  if (b.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  return clv_file_write_durable(path, b.data, b.len, 0644, err);
}

static clv_code make_data(const example_data *d, clv_err *err) {
  char path[256];
  CLV_TRY(clv_mkdirs(d->folder, err));
  for (uint32_t i = 0; i < CLV_COUNT(data_files); i++) {
    data_path(d, i, path);
    CLV_TRY(make_file(path, i % 2 == 0, i < 2 ? N_TRAIN_IMAGES : N_TEST_IMAGES, i / 2, err));
  }
  printf("%s made: %d images to train with and %d to test with\n", d->folder, N_TRAIN_IMAGES,
         N_TEST_IMAGES);
  return CLV_OK;
}

/* ---- making certificates --------------------------------------------------------------------- */

static clv_code issue_certificate(const char *name, const char *uri, const char *ip, clv_err *err) {
  clv_tls_issue_options o = {.ca_dir = CERTS_FOLDER,
                             .cert_name = name,
                             .uris = &uri,
                             .n_uris = 1,
                             .ip_addresses = &ip,
                             .n_ip_addresses = ip ? 1 : 0,
                             .validity_days = CLV_CERT_DAYS,
                             .not_before_offset_s = CLV_CERT_NOT_BEFORE_S};
  return clv_tls_issue_cert(&o, err);
}

static clv_code make_certificates(clv_err *err) {
  if (access(CERTS_FOLDER, F_OK) == 0) {
    puts(CERTS_FOLDER " is there already, and stays as it is");
    return CLV_OK;
  }
  CLV_TRY(clv_tls_ca_init(CERTS_FOLDER, CLV_CA_NAME, CLV_CA_DAYS, err));
  CLV_TRY(issue_certificate("master", MASTER_URI, NULL, err));
  CLV_TRY(issue_certificate("worker-1", WORKER_URI, "127.0.0.1", err));
  puts(CERTS_FOLDER " made, for master and worker-1; keep " CERTS_FOLDER
                    "/ca.key inside the private network");
  return CLV_OK;
}

/* ---- writing the files of a new session ------------------------------------------------------ */

static clv_code write_text(const char *path, const clv_bytes *text, clv_err *err) {
  if (text->failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  CLV_TRY(clv_file_write_durable(path, text->data, text->len, 0644, err));
  printf("%s written\n", path);
  return CLV_OK;
}

static clv_code write_examples(clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes session = {0}, worker = {0};
  CLV_TRY(clv_config_write_example(CLV_CONFIG_SESSION, &session, err));
  CLV_TRY(clv_config_write_example(CLV_CONFIG_WORKER, &worker, err));
  CLV_TRY(write_text("session.yaml", &session, err));
  return write_text("worker.yaml", &worker, err);
}

static clv_code write_first_files(const example_data *d, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes session = {0}, worker = {0};
  const char *const *f = data_files, *e = d->name_suffix;
  if (d == &synthetic_example) CLV_TRY(make_data(d, err));
  clv_bytes_printf(&session, session_text, d->title, d->folder, f[0], e, f[1], e, f[2], e, f[3], e,
                   d->mean, d->std);
  clv_bytes_puts(&worker, worker_yaml_text);
  CLV_TRY(make_certificates(err));
  CLV_TRY(write_text("session.yaml", &session, err));
  CLV_TRY(write_text("worker.yaml", &worker, err));
  fputs(next_steps_text, stdout);
  return CLV_OK;
}

/* ---- a session for a table of the user ------------------------------------------------------- */

/* Appends advice on a column that the session leaves out although it may be of use. */
static void append_column_advice(const clv_found_column *c, clv_bytes *out) {
  if (c->has_unclear_dates)
    clv_bytes_puts(out, "; dates: say as: date, and format: \"%d/%m/%Y\" or \"%m/%d/%Y\"");
  if (c->use == CLV_COLUMN_TEXT)
    clv_bytes_puts(out, "; texts: as: text makes them tokens for an embedding, by data.tokenizer");
}

/* Appends a column to the session file. use: the use that the session makes of the column. */
static void append_column(const clv_found_column *c, clv_column_use use, clv_bytes *out) {
  if (!c->name[0]) return;
  clv_bytes_puts(out, "      ");
  clv_bytes_add_json(out, c->name);
  clv_bytes_printf(out, ": {as: %s", clv_column_use_names[use]);
  bool is_number = c->use == CLV_COLUMN_NUMBER || c->use == CLV_COLUMN_DATE;
  if (c->format) clv_bytes_printf(out, ", format: \"%s\"", c->format);
  if (c->n_missing && (is_number || c->use == CLV_COLUMN_BOOLEAN))
    clv_bytes_printf(out, ", missing: %s, indicator: true", is_number ? "median" : "most_frequent");
  if (c->n_missing && c->use == CLV_COLUMN_CATEGORY) clv_bytes_puts(out, ", missing: own");
  if (c->n_missing && use == CLV_COLUMN_TEXT) clv_bytes_puts(out, ", missing: value");
  clv_bytes_puts(out, "}");
  clv_bytes_printf(out, "   # %zu different value%s", c->n_distinct, CLV_S(c->n_distinct));
  if (c->n_missing) clv_bytes_printf(out, ", %zu missing", c->n_missing);
  if (c->use != use || c->has_unclear_dates) append_column_advice(c, out);
  clv_bytes_puts(out, "\n");
}

static const char *separator_name(char separator) {
  return separator == ';'    ? "semicolon"
         : separator == '\t' ? "tab"
         : separator == '|'  ? "pipe"
                             : "comma";
}

static bool has_nameless_column(const clv_found_table *t) {
  for (size_t i = 0; i < t->n; i++)
    if (!t->columns[i].name[0]) return true;
  return false;
}

/* Returns the index of the first column of texts, if a table has no other input; t->n: the table
 * has another input, or no texts. */
static size_t find_only_text(const clv_found_table *t) {
  size_t found = t->n;
  for (size_t i = t->n; i-- > 0;) {
    clv_column_use use = t->columns[i].use;
    if (use == CLV_COLUMN_TEXT) found = i;
    if (use == CLV_COLUMN_NUMBER || use == CLV_COLUMN_CATEGORY || use == CLV_COLUMN_BOOLEAN ||
        use == CLV_COLUMN_DATE)
      return t->n;
  }
  return found;
}

static void append_table_session(const char *path, const clv_found_table *t, clv_bytes *out) {
  bool is_target_missing = false;
  size_t text = find_only_text(t);
  clv_bytes_printf(out, SESSION_TEXT_BEGIN, "A table");
  clv_bytes_puts(out, "  format: table\n  train: [");
  clv_bytes_add_json(out, path);
  clv_bytes_puts(out, "]\n  validation: {fraction: 0.2}\n");
  for (size_t i = 0; i < t->n; i++)
    is_target_missing |= t->columns[i].use == CLV_COLUMN_TARGET && t->columns[i].n_missing;
  if (is_target_missing) clv_bytes_puts(out, "  broken: skip    # records without a target\n");
  clv_bytes_puts(out, "  table:\n");
  if (t->separator) clv_bytes_printf(out, "    separator: %s\n", separator_name(t->separator));
  if (t->has_decimal_comma) clv_bytes_puts(out, "    decimal: comma\n");
  if (has_nameless_column(t))
    clv_bytes_puts(out, "    others: ignore    # a column has no name, as row numbers of pandas\n");
  clv_bytes_puts(
      out,
      "    # number, category, boolean, text, target, id or ignore: correct what is wrong here\n"
      "    columns:\n");
  for (size_t i = 0; i < t->n; i++) {
    clv_column_use use = t->columns[i].use;
    append_column(&t->columns[i], use == CLV_COLUMN_TEXT && i != text ? CLV_COLUMN_IGNORED : use,
                  out);
  }
  if (text < t->n)
    clv_bytes_puts(out,
                   "  text: {max_tokens: 128}\n"
                   "  tokenizer: {file: vocab.txt}    # of a BERT; or a tokenizer.json, with pad: "
                   "its token that pads\n");
  clv_bytes_printf(out, table_stages_text, text < t->n ? text_layers_text : number_layers_text,
                   t->n_classes ? t->n_classes : 1, t->n_classes ? "cross_entropy" : "mse");
}

static clv_code write_table_session(const char *path, clv_err *err) {
  CLV_AUTO(clv_found_table_done) clv_found_table t = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes session = {0}, worker = {0};
  CLV_TRY(clv_table_guess_columns(path, &t, err));
  append_table_session(path, &t, &session);
  clv_bytes_puts(&worker, worker_yaml_text);
  CLV_TRY(make_certificates(err));
  CLV_TRY(write_text("session.yaml", &session, err));
  CLV_TRY(write_text("worker.yaml", &worker, err));
  for (size_t i = 0; i < t.n; i++)
    if (t.columns[i].use == CLV_COLUMN_TARGET)
      printf("the target is '%s'%s; session.yaml says how each column is used: look it through\n",
             t.columns[i].name, t.n_classes ? ", with its values as classes" : ", a number");
  if (find_only_text(&t) < t.n)
    puts("texts need a tokenizer: put its vocab.txt here, or name another one in data.tokenizer");
  puts(
      "session.yaml permits that the worker can read the labels (privacy.labels_readable)\n"
      "next:\n"
      "  cleave-master check session.yaml     # columns, ranges, warnings; nothing is sent\n"
      "  cleave-master plan session.yaml      # what leaves, and what it shows\n"
      "  cleave-worker serve --config worker.yaml &\n"
      "  cleave-master train session.yaml");
  return CLV_OK;
}

/* Returns true, and prints an error, if the file exists. The command then writes no file at all. */
static bool is_existing_file(const char *path) {
  if (access(path, F_OK) != 0) return false;
  clv_notice(CLV_LOG_ERROR, "failed", "%s exists already; no file was written: use another folder",
             path);
  return true;
}

int clv_cmd_init(void *args) {
  const clv_master_arguments *a = args;
  const example_data *d =
      a->makes_data || !is_installed(&debian_example) ? &synthetic_example : &debian_example;
  clv_err err;
  if (a->writes_all_examples && (a->makes_data || a->table_path))
    return clv_cli_usage(&a->line, "init --all writes examples only, and no data");
  if (a->makes_data && a->table_path)
    return clv_cli_usage(&a->line,
                         "init --from takes the data that it names: leave --make-data out");
  if (is_existing_file("session.yaml") || is_existing_file("worker.yaml") ||
      (!a->writes_all_examples && !a->table_path && d == &synthetic_example &&
       is_existing_file(d->folder)))
    return CLV_EXIT_FAILED;
  clv_code code = a->writes_all_examples ? write_examples(&err)
                  : a->table_path        ? write_table_session(a->table_path, &err)
                                         : write_first_files(d, &err);
  if (code == CLV_OK) return CLV_EXIT_OK;
  bool is_data_error =
      a->table_path && (code == CLV_INVALID || code == CLV_NOT_FOUND || code == CLV_DATA_LOSS);
  return clv_exit_report(is_data_error          ? CLV_EXIT_DATA
                         : code == CLV_INTERNAL ? CLV_EXIT_INTERNAL
                                                : CLV_EXIT_FAILED,
                         &err);
}
