/* SPDX-License-Identifier: Apache-2.0
 *
 * schema_int: the schema, one table of rows for each kind of file, and the functions that walk it.
 *
 * A row's path names its key: "train.batch" inside sections, "stages[].at" inside the entries of a
 * list, "workers{}.address" inside the entries of a map of names. A last part "*" stands for every
 * other key of its mapping, which becomes an attribute. Offsets refer to the struct of the nearest
 * entry, or to the config. Reading, writing, freeing, the example and the JSON Schema walk the same
 * rows. The struct of an entry starts with its clv_config_pos, in a map followed by `char *name`.
 */
#ifndef CLEAVE_CONFIG_SCHEMA_INT_H
#define CLEAVE_CONFIG_SCHEMA_INT_H

#include "common/model/config/tree_int.h"

typedef enum clv_row_kind {
  CLV_ROW_SECTION,
  CLV_ROW_BOOL,
  CLV_ROW_INT,      /* the field is a uint64_t */
  CLV_ROW_NUMBER,   /* the field is a double */
  CLV_ROW_SIZE,     /* the field is a uint64_t, in bytes */
  CLV_ROW_DURATION, /* the field is a uint64_t, in milliseconds */
  CLV_ROW_ENUM,     /* an enum; the value is the index into `names` */
  CLV_ROW_TEXT,     /* the field is a char * */
  CLV_ROW_PATH,     /* the field is a char *, an absolute path after loading */
  CLV_ROW_TEXTS,    /* the field is a clv_text_list */
  CLV_ROW_NUMBERS,  /* the field is a clv_number_list */
  CLV_ROW_RANGE,    /* the field is a clv_layer_range */
  CLV_ROW_LIST,     /* array of entries; their number is at `count` */
  CLV_ROW_MAP,      /* as LIST, but the entries have names */
  CLV_ROW_SEED,     /* the field is a clv_seed */
  CLV_ROW_ATTRS,    /* array of clv_attr_spec; their number is at `count` */
  CLV_ROW_KINDS
} clv_row_kind;

typedef enum clv_text_format {
  CLV_FORMAT_ANY,     /* any text that is not empty */
  CLV_FORMAT_RUN,     /* name of a run: [A-Za-z0-9._-]{1,64} */
  CLV_FORMAT_NAME,    /* [A-Za-z0-9_-]{1,64}, so that a dotted path can name it */
  CLV_FORMAT_WORD,    /* [a-z][a-z0-9_]{0,63}, the name of an attribute */
  CLV_FORMAT_OP,      /* [A-Za-z][A-Za-z0-9_]{0,63}; the op table checks that the op exists */
  CLV_FORMAT_ADDRESS, /* address: host:port */
  CLV_FORMAT_LISTEN,  /* host:port, where port 0 is allowed */
  CLV_FORMAT_URI,     /* URI: scheme://authority... */
  CLV_FORMAT_SHA256,
  CLV_FORMAT_DEVICE,        /* device of a stage */
  CLV_FORMAT_WORKER_DEVICE, /* device of a worker */
  CLV_FORMAT_FOLDER,        /* path of a folder, `true` or `false` */
} clv_text_format;

typedef struct clv_row {
  const char *path;
  /* name of the key before version 0.9, still accepted in files; NULL: none */
  const char *old_name;
  clv_row_kind kind;
  bool required;         /* the key must be given if the mapping that contains it is given */
  bool is_commented_out; /* the example file comments out this key and all keys inside it */
  bool is_in_example;    /* the example file contains the key, although it is optional */
  /* the value names a file, folder or address, so the public text leaves the key out */
  bool is_place;
  /* the value changes how records become numbers, so eval warns if it differs from the run's */
  bool changes_records;
  clv_text_format format; /* format of TEXT, of each text in TEXTS, of the names of MAP entries */
  /* offsets in the struct of the value, and of its number of entries */
  size_t offset, count_offset;
  /* offset of the clv_config_pos that stores the value's position; 0: not stored */
  size_t pos_offset;
  size_t entry_bytes; /* size of the struct of one entry, for LIST and MAP */
  /* range of INT, SIZE, DURATION; for lists, range of the number of entries */
  uint64_t min, max;
  double low, high;  /* range of NUMBER, and of each number in NUMBERS */
  bool excludes_low; /* the value must be above `low`, not equal to it */
  /* NULL-terminated. ENUM: the values; "" stands for not given. TEXTS: the values allowed. INT,
   * SIZE: words that may stand for a number; the word at i is stored as -i, modulo 2^64, and min is
   * at least 1. */
  const char *const *names;
  /* ENUM whose names are "set.metric": offset of a char * that stores TARGET of the value
   * "set.TARGET.metric"; 0: there is no such value */
  size_t target_offset;
  /* default value, as a file would have it; NULL: the default is 0, NULL or empty */
  const char *default_text;
  /* Value in the example file if there is no default. For LIST: the lines of its entries; the
   * example explains the entries' keys in a comment above these lines. */
  const char *sample;
  /* value that messages show as an example; NULL: made from the required keys inside */
  const char *example;
  /* for ENUM: end of the message that refuses a value; it says what to write instead */
  const char *replacement_hint;
  const char *doc; /* description of the key for users, one or more sentences */
} clv_row;

typedef struct clv_schema {
  const clv_row *rows;
  size_t n_rows;
  const char *title, *doc;
  const char *subject;    /* completes "configuration of ...", such as "a training session" */
  bool ignores_overrides; /* neither the environment nor --set overrides the file */
} clv_schema;

const clv_schema *clv_session_schema(void);
const clv_schema *clv_worker_schema(void);
const clv_schema *clv_policy_schema(void);

/* ---- paths of rows --------------------------------------------------------------------------- */

/* bytes of a row's path; a longer path in a message is cut to this length */
enum { CLV_PATH_MAX = 160 };

/* Returns the key of `row` if it is directly in the mapping `prefix` ("", "train.", "stages[]."),
 * else NULL. The key of an ATTRS row is "*". */
const char *clv_row_key(const clv_row *row, const char *prefix);

/* Returns true if the value of `row`, a mapping or a list, may also be written as a scalar. The
 * next row has the same path then, and describes the scalar. */
bool clv_row_has_scalar_form(const clv_schema *schema, const clv_row *row);

/* Writes the prefix of the mappings inside a section, list or map: the row's path and ".", "[]." or
 * "{}.". */
void clv_row_write_inner_prefix(const clv_row *row, char inner[CLV_PATH_MAX]);

/* ---- checks of data.table and data.validation (session_table.c, session_split.c) ------------- */

/* Checks that the keys given in data.validation and data.sampling fit each other
 * (session_split.c). */
clv_code clv_session_check_split(const clv_session_config *c, clv_err *err) CLV_USE_RESULT;

/* Checks data.table, if data.format is table: each key of a column is allowed for the column's use
 * (key `as`), and there are an input and one target. */
clv_code clv_session_check_table(const clv_session_config *c, clv_err *err) CLV_USE_RESULT;

/* ---- metrics by which a run chooses (session_choices.c) -------------------------------------- */

/* Checks checkpoint.best and train.early_stopping: the session has validations, and these compute
 * each metric that is given. Sets checkpoint.mode. */
clv_code clv_session_check_choices(clv_session_config *c, clv_err *err) CLV_USE_RESULT;
/* Checks that evaluations of the session's loss can have the scores of loss.scores. */
clv_code clv_session_check_scores(const clv_session_config *c, clv_err *err) CLV_USE_RESULT;

/* ---- checks of several targets (session_targets.c) ------------------------------------------- */

/* Checks that each target in loss.targets has only keys of its loss, and that the names of the
 * targets are those of the columns of data.table with `as: target`. Sets masks_missing of each
 * target. */
clv_code clv_session_check_targets(clv_session_config *c, clv_err *err) CLV_USE_RESULT;
/* Returns the target with this name; NULL: there is none. */
const clv_target_spec *clv_session_find_target(const clv_session_config *c, const char *name);

/* ---- parsing scalars (scalar.c) -------------------------------------------------------------- */

/* accepts decimal digits without sign or leading 0 */
bool clv_text_to_u64(const char *text, uint64_t *ret);
/* as clv_text_to_u64, with an optional '-' */
bool clv_text_to_i64(const char *text, int64_t *ret);
bool clv_text_to_double(const char *text, double *ret); /* accepts finite numbers such as -1.5e-3 */
bool clv_text_to_size(const char *text, uint64_t *ret);
bool clv_text_to_duration(const char *text, uint64_t *ret);

/* Writes the shortest decimal text that clv_text_to_double converts back to the same bits. */
void clv_double_to_text(double value, char text[32]);
void clv_size_to_text(uint64_t bytes, char text[32]);
void clv_duration_to_text(uint64_t ms, char text[32]);

bool clv_format_matches(clv_text_format format, const char *text);

/* True if two texts of CLV_FORMAT_LISTEN name the same port of the same address (listen.c). Names
 * other than localhost are not resolved: they are equal if their texts are equal. */
bool clv_listen_addresses_overlap(const char *a, const char *b);
/* for messages: "an address such as host:7443" */
const char *clv_format_description(clv_text_format format);
/* regular expression for JSON Schema; NULL: any text */
const char *clv_format_pattern(clv_text_format format);

/* Returns the word that the value of an INT or SIZE row stores, such as "auto"; NULL: the value is
 * a number. */
const char *clv_row_word_of_value(const clv_row *row, uint64_t value);
bool clv_row_allows_names(const clv_row *row);

/* Writes which values a row accepts, for messages and docs: "a whole number from 1 to 256". */
void clv_row_describe_expected(const clv_row *row, char *buf, size_t len);

/* Appends key and example value of a row with all required keys inside, for a message: "optimizer:
 * {kind: adam, lr: 0.001}". */
void clv_row_write_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);
/* Appends only the example value of a section or of an entry: "{kind: adam, lr: 0.001}". */
void clv_row_write_inner_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);

/* ---- functions that visit all rows of a schema ----------------------------------------------- */

typedef struct clv_binder {
  const clv_schema *schema;
  const clv_yaml_source *source;
  const char *folder;      /* absolute folder that relative paths in the file are relative to */
  const char *credentials; /* value of $CREDENTIALS_DIRECTORY; NULL: not set */
} clv_binder;

/* Fills the zeroed struct at `base` from the tree. After a failure the struct is partly filled, and
 * the caller must still free it with clv_schema_free_at. */
clv_code clv_schema_bind(const clv_binder *binder, const clv_yaml_node *root, void *base,
                         clv_err *err) CLV_USE_RESULT;
/* Stores the default value of each row that has one in the struct at `base`. */
clv_code clv_schema_bind_defaults(const clv_binder *binder, void *base,
                                  clv_err *err) CLV_USE_RESULT;

/* Reads the attributes of a layer or model from its mapping: every key for which the schema has no
 * row. */
clv_code clv_attrs_bind(const clv_binder *binder, const clv_yaml_node *map, const char *prefix,
                        const char *shown_path, clv_attr_spec **ret_attrs, size_t *ret_n,
                        clv_err *err) CLV_USE_RESULT;
void clv_attrs_free(clv_attr_spec *attrs, size_t n);

/* True if a row of the schema describes `key` in the mapping with this prefix, by its present or
 * old name. */
bool clv_schema_has_key(const clv_schema *schema, const char *prefix, const char *key);

/* Frees the memory that the struct at `base` owns, not the struct itself. */
void clv_schema_free_at(const clv_schema *schema, void *base);

void clv_schema_write(const clv_schema *schema, const void *base, clv_bytes *ret);
/* As clv_schema_write, but leaves out keys that name a file, a folder or an address, and seeds. */
void clv_schema_write_public(const clv_schema *schema, const void *base, clv_bytes *ret);
/* Appends a line for each key that has a value: "stages.1.layers.0.out: 10". Hides the values of
 * seeds. */
void clv_schema_write_lines(const clv_schema *schema, const void *base, clv_bytes *ret);
void clv_schema_write_example(const clv_schema *schema, clv_bytes *ret);
void clv_schema_write_json_schema(const clv_schema *schema, clv_bytes *ret);
void clv_schema_write_man_page(const clv_schema *schema, clv_bytes *ret);
void clv_schema_write_completions(const clv_schema *schema, clv_bytes *ret);

/* Makes a config struct from a text: reads the tree, applies overrides and binds the rows. `config`
 * is zeroed before the call, and the caller must free it also after a failure. `source` is for
 * messages, and its list of overrides must be *applied. */
clv_code clv_config_build(const clv_schema *schema, const clv_yaml_source *source, const char *text,
                          size_t len, const clv_config_overrides *over, clv_text_list *applied,
                          void *config, clv_err *err) CLV_USE_RESULT;

/* True if the path that clv_path_join would return has at most CLV_CONFIG_MAX_TEXT bytes. */
bool clv_path_can_join(const char *folder, const char *path);
/* Returns folder + "/" + path, or a copy of an absolute path. */
clv_code clv_path_join(const char *folder, const char *path, char **ret,
                       clv_err *err) CLV_USE_RESULT;

/* Returns the absolute path of the folder that contains the config file. */
clv_code clv_path_folder_of_file(const char *file, char **ret, clv_err *err) CLV_USE_RESULT;

#endif
