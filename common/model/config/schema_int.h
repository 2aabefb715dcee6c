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
  CLV_ROW_INT,      /* uint64_t */
  CLV_ROW_NUMBER,   /* double */
  CLV_ROW_SIZE,     /* uint64_t bytes */
  CLV_ROW_DURATION, /* uint64_t milliseconds */
  CLV_ROW_ENUM,     /* an enum; the value is the index into `names` */
  CLV_ROW_TEXT,     /* char * */
  CLV_ROW_PATH,     /* char *, made absolute */
  CLV_ROW_TEXTS,    /* clv_text_list */
  CLV_ROW_NUMBERS,  /* clv_number_list */
  CLV_ROW_RANGE,    /* clv_layer_range */
  CLV_ROW_LIST,     /* pointer to entries, their number at `count` */
  CLV_ROW_MAP,      /* as LIST, entries with names */
  CLV_ROW_SEED,     /* clv_seed */
  CLV_ROW_ATTRS,    /* clv_attr_spec *, their number at `count` */
  CLV_ROW_KINDS
} clv_row_kind;

typedef enum clv_text_format {
  CLV_FORMAT_ANY,     /* not empty */
  CLV_FORMAT_RUN,     /* [A-Za-z0-9._-]{1,64} */
  CLV_FORMAT_NAME,    /* [A-Za-z0-9_-]{1,64}, so that a dotted path can name it */
  CLV_FORMAT_WORD,    /* [a-z][a-z0-9_]{0,63}: attributes */
  CLV_FORMAT_OP,      /* [A-Za-z][A-Za-z0-9_]{0,63}; the op table checks that the op exists */
  CLV_FORMAT_ADDRESS, /* host:port */
  CLV_FORMAT_LISTEN,  /* host:port, port 0 allowed */
  CLV_FORMAT_URI,     /* scheme://authority... */
  CLV_FORMAT_SHA256,
  CLV_FORMAT_DEVICE,        /* device of a stage */
  CLV_FORMAT_WORKER_DEVICE, /* device of a worker */
  CLV_FORMAT_FOLDER,        /* not empty; true and false have special meanings */
} clv_text_format;

typedef struct clv_row {
  const char *path;
  const char *was; /* the key's name before 0.9, still accepted in a file; NULL: none */
  clv_row_kind kind;
  bool required;          /* must be given if its mapping is given */
  bool commented;         /* the example comments it out, with everything below it */
  bool is_in_example;     /* the example gives it, although it may be left out */
  bool is_place;          /* names a file, folder or address, as PATH does; not public */
  bool makes_records;     /* changes how records become numbers, so eval warns if it differs */
  clv_text_format format; /* of TEXT, of each of TEXTS, and of the names of MAP entries */
  size_t offset, count;   /* offsets of the value and of its number of entries */
  size_t pos;             /* offset of a clv_config_pos for the value's position; 0: not stored */
  size_t entry_bytes;     /* LIST, MAP */
  uint64_t min, max;      /* INT, SIZE, DURATION; number of entries of lists */
  double low, high;       /* NUMBER, each of NUMBERS */
  bool excludes_low;      /* NUMBER, NUMBERS: `low` itself is not allowed */
  /* NULL-terminated. ENUM: the values; "" stands for not given. TEXTS: the values allowed. INT,
   * SIZE: words that may stand for a number; the word at i is stored as -i, modulo 2^64, and min is
   * at least 1. */
  const char *const *names;
  const char *initial; /* default as written in a file; NULL: 0, NULL or empty */
  /* Value in the example if there is no default. LIST: its entries as lines; the example explains
   * their keys in a comment above them. */
  const char *sample;
  const char *example;          /* value in messages; NULL: made of the keys required inside */
  const char *replacement_hint; /* ENUM: end of the message that refuses another value */
  const char *doc;              /* one sentence */
} clv_row;

typedef struct clv_schema {
  const clv_row *rows;
  size_t n_rows;
  const char *title, *doc;
  const char *subject; /* "a training session" */
  bool fixed;          /* neither environment nor --set overrides the file */
} clv_schema;

const clv_schema *clv_session_schema(void);
const clv_schema *clv_worker_schema(void);
const clv_schema *clv_policy_schema(void);

/* ---- walking --------------------------------------------------------------------------------- */

enum { CLV_PATH_MAX = 160 }; /* of row paths and of the paths in messages (cut beyond) */

/* Returns the key of `row` if it is directly in the mapping `prefix` ("", "train.", "stages[]."),
 * else NULL. The key of an ATTRS row is "*". */
const char *clv_row_key(const clv_row *row, const char *prefix);

/* Returns true if the next row has the same path: a second form of the value, for scalars. */
bool clv_row_has_second_form(const clv_schema *schema, const clv_row *row);

/* Writes the prefix of the mappings inside a section, list or map: the row's path and ".", "[]." or
 * "{}.". */
void clv_row_inner_prefix(const clv_row *row, char inner[CLV_PATH_MAX]);

/* ---- scalars (scalar.c) ---------------------------------------------------------------------- */

bool clv_text_to_u64(const char *text, uint64_t *ret);  /* decimal digits, no sign, no leading 0 */
bool clv_text_to_i64(const char *text, int64_t *ret);   /* as clv_text_to_u64, optional '-' */
bool clv_text_to_double(const char *text, double *ret); /* -1.5e-3, finite */
bool clv_text_to_size(const char *text, uint64_t *ret);
bool clv_text_to_duration(const char *text, uint64_t *ret);

/* Writes the shortest text that reads back to the same bits. */
void clv_double_to_text(double value, char text[32]);
void clv_size_to_text(uint64_t bytes, char text[32]);
void clv_duration_to_text(uint64_t ms, char text[32]);

bool clv_format_matches(clv_text_format format, const char *text);

/* True if two texts of CLV_FORMAT_LISTEN name the same port of the same address (listen.c). Names
 * other than localhost are not resolved: they are equal if their texts are equal. */
bool clv_listen_overlap(const char *a, const char *b);
const char *clv_format_noun(clv_text_format format);    /* "an address such as host:7443" */
const char *clv_format_pattern(clv_text_format format); /* for JSON Schema; NULL = any */

/* Returns the word for a value of an INT row; NULL: the value is a number. */
const char *clv_row_word(const clv_row *row, uint64_t value);
bool clv_row_has_words(const clv_row *row);

/* Writes what the value of a row must be, for messages and docs: "a whole number from 1 to 256". */
void clv_row_describe_expected(const clv_row *row, char *buf, size_t len);

/* Appends an example with all required keys for a message (describe.c):
 * "optimizer: {kind: adam, lr: 0.001}". */
void clv_row_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);
/* Appends the value alone, of a section or an entry: "{kind: adam, lr: 0.001}". */
void clv_row_inner_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);

/* ---- the walkers ----------------------------------------------------------------------------- */

typedef struct clv_binder {
  const clv_schema *schema;
  const clv_yaml_source *source;
  const char *folder;      /* absolute folder in which relative paths start */
  const char *credentials; /* $CREDENTIALS_DIRECTORY, or NULL */
} clv_binder;

/* Fills the zeroed struct at `base` from the tree. After a failure it is partly filled, and must be
 * freed with clv_schema_free_at all the same. */
clv_code clv_schema_bind(const clv_binder *binder, const clv_yaml_node *root, void *base,
                         clv_err *err) CLV_USE_RESULT;
/* Binds the initial value of each row that has one. */
clv_code clv_schema_bind_defaults(const clv_binder *binder, void *base,
                                  clv_err *err) CLV_USE_RESULT;

/* Reads the attributes of one mapping (attrs.c): every key that has no row. */
clv_code clv_attrs_bind(const clv_binder *binder, const clv_yaml_node *map, const char *prefix,
                        const char *shown, clv_attr_spec **ret_attrs, size_t *ret_n,
                        clv_err *err) CLV_USE_RESULT;
void clv_attrs_free(clv_attr_spec *attrs, size_t n);

/* True if `key` of the mapping `prefix` is the name or the old name of some row. */
bool clv_schema_has_key(const clv_schema *schema, const char *prefix, const char *key);

/* Frees the memory that the struct at `base` owns, not the struct itself. */
void clv_schema_free_at(const clv_schema *schema, void *base);

void clv_schema_write(const clv_schema *schema, const void *base, clv_bytes *ret);
/* As clv_schema_write, without keys that name places and without seeds. */
void clv_schema_write_public(const clv_schema *schema, const void *base, clv_bytes *ret);
/* Appends a line for each key that has a value: "stages.1.layers.0.out: 10". Leaves out seeds. */
void clv_schema_list(const clv_schema *schema, const void *base, clv_bytes *ret);
void clv_schema_example(const clv_schema *schema, clv_bytes *ret);
void clv_schema_json(const clv_schema *schema, clv_bytes *ret);
void clv_schema_man(const clv_schema *schema, clv_bytes *ret);
void clv_schema_keys(const clv_schema *schema, clv_bytes *ret);

/* Makes a struct of a text: reads the tree, applies overrides and binds the rows. `config` is
 * zeroed before the call, and has to be freed also after a failure. `source` is for messages, and
 * refers to *applied. */
clv_code clv_config_build(const clv_schema *schema, const clv_yaml_source *source, const char *text,
                          size_t len, const clv_config_overrides *over, clv_text_list *applied,
                          void *config, clv_err *err) CLV_USE_RESULT;

/* True if the result of clv_path_join is short enough to be a text of a config. */
bool clv_path_can_join(const char *folder, const char *path);
/* Returns folder + "/" + path, or a copy of an absolute path. */
clv_code clv_path_join(const char *folder, const char *path, char **ret,
                       clv_err *err) CLV_USE_RESULT;

/* Returns the absolute folder of a config file. */
clv_code clv_path_folder(const char *file, char **ret, clv_err *err) CLV_USE_RESULT;

#endif
