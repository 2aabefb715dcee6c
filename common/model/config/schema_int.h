/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of rows per file kind. A row's path names its key: "train.batch" inside sections,
 * "stages[].at" inside the entries of a list, "workers{}.address" inside those of a named map, and
 * a last part "*" takes every other key of its mapping as an attribute. Offsets count from the
 * struct of the nearest entry, or from the config itself.
 *
 * Reading, writing, freeing, the example and the JSON Schema all walk the same rows. Entries of
 * lists and maps start with their clv_config_pos; those of maps go on with `char *name`.
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
  CLV_ROW_MAP,      /* the same, named */
  CLV_ROW_SEED,     /* clv_seed */
  CLV_ROW_ATTRS,    /* clv_attr_spec *, their number at `count` */
  CLV_ROW_KINDS
} clv_row_kind;

typedef enum clv_text_format {
  CLV_FORMAT_ANY,     /* not empty */
  CLV_FORMAT_RUN,     /* [A-Za-z0-9._-]{1,64} */
  CLV_FORMAT_NAME,    /* [A-Za-z0-9_-]{1,64}, so that a dotted path can name it */
  CLV_FORMAT_WORD,    /* [a-z][a-z0-9_]{0,63}: attributes */
  CLV_FORMAT_OP,      /* [A-Za-z][A-Za-z0-9_]{0,63}: whether it is one is for the op table to say */
  CLV_FORMAT_ADDRESS, /* host:port */
  CLV_FORMAT_LISTEN,  /* host:port, port 0 allowed */
  CLV_FORMAT_URI,     /* scheme://authority... */
  CLV_FORMAT_SHA256,
  CLV_FORMAT_DEVICE,        /* of a stage */
  CLV_FORMAT_WORKER_DEVICE, /* device of a worker */
  CLV_FORMAT_FOLDER,        /* not empty; true and false have a meaning of their own */
} clv_text_format;

typedef struct clv_row {
  const char *path;
  const char *was; /* the key's name before 0.9, still accepted in a file; NULL: none */
  clv_row_kind kind;
  bool required;          /* in its mapping, when that is given */
  bool commented;         /* the example shows it commented out, with all below it */
  bool shown;             /* the example gives it, although it may be left out */
  bool is_place;          /* names a file, folder or address, as PATH does: not for onlookers */
  bool makes_records;     /* says how a record becomes numbers: eval warns where it has changed */
  clv_text_format format; /* TEXT, each of TEXTS, and the names of MAP entries */
  size_t offset, count;   /* of the value, and of its number of entries */
  size_t pos;             /* of a clv_config_pos for the value's place, 0 = not kept */
  size_t entry_bytes;     /* LIST, MAP */
  uint64_t min, max;      /* INT, SIZE, DURATION; number of entries of lists */
  double low, high;       /* NUMBER, each of NUMBERS */
  bool above;             /* NUMBER, NUMBERS: `low` itself is excluded */
  /* ENUM, NULL-terminated; "" = not given. TEXTS: what each may be. INT, SIZE: words that may stand
   * for a number; the one at i is stored as -i, modulo 2^64, and min is at least 1. */
  const char *const *names;
  const char *initial; /* the default as written in a file; NULL = 0, NULL, empty */
  /* For the example, where there is no default. LIST: its entries as lines, each key being
   * explained in a comment above them. */
  const char *sample;
  const char *example; /* in a message, where none can be made of what is required inside */
  const char *instead; /* ENUM: behind the refusal of another value */
  const char *doc;     /* one sentence */
} clv_row;

typedef struct clv_schema {
  const clv_row *rows;
  size_t n_rows;
  const char *title, *doc;
  const char *subject; /* "a training session" */
  bool fixed;          /* nothing stands above the file */
} clv_schema;

const clv_schema *clv_session_schema(void);
const clv_schema *clv_worker_schema(void);
const clv_schema *clv_policy_schema(void);

/* ---- walking --------------------------------------------------------------------------------- */

enum { CLV_PATH_MAX = 160 }; /* of row paths and of the paths in messages (cut beyond) */

/* The key of `row` when it stands directly in the mapping `prefix` ("", "train.", "stages[]."),
 * else NULL. The key of an ATTRS row is "*". */
const char *clv_row_key(const clv_row *row, const char *prefix);

/* prefix + key + ("." | "[]." | "{}.") of the mappings inside a section, list or map. */
void clv_row_inner_prefix(const clv_row *row, char inner[CLV_PATH_MAX]);

/* ---- scalars (scalar.c) ---------------------------------------------------------------------- */

bool clv_text_to_u64(const char *text, uint64_t *ret);  /* decimal digits, no sign, no leading 0 */
bool clv_text_to_i64(const char *text, int64_t *ret);   /* the same with an optional '-' */
bool clv_text_to_double(const char *text, double *ret); /* -1.5e-3, finite */
bool clv_text_to_size(const char *text, uint64_t *ret);
bool clv_text_to_duration(const char *text, uint64_t *ret);

/* The shortest text that reads back to the same bits. */
void clv_double_to_text(double value, char text[32]);
void clv_size_to_text(uint64_t bytes, char text[32]);
void clv_duration_to_text(uint64_t ms, char text[32]);

bool clv_format_matches(clv_text_format format, const char *text);

/* Whether two texts of CLV_FORMAT_LISTEN, by what they say, take the same port of the same address
 * (listen.c). Names other than localhost are not looked up: they are the same if they read the
 * same. */
bool clv_listen_overlap(const char *a, const char *b);
const char *clv_format_noun(clv_text_format format);    /* "an address such as host:7443" */
const char *clv_format_pattern(clv_text_format format); /* for JSON Schema; NULL = any */

/* The word for a value of an INT row, NULL when it is a number. */
const char *clv_row_word(const clv_row *row, uint64_t value);
bool clv_row_has_words(const clv_row *row);

/* "a whole number from 1 to 256": what the value of a row must be, for messages and docs. */
void clv_row_describe_expected(const clv_row *row, char *buf, size_t len);

/* "optimizer: {kind: adam, lr: 0.001}", with all that is required, for a message (describe.c). */
void clv_row_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);
/* "{kind: adam, lr: 0.001}" of a section or an entry. */
void clv_row_inner_example(const clv_schema *schema, const clv_row *row, clv_bytes *ret);

/* ---- the walkers ----------------------------------------------------------------------------- */

typedef struct clv_binder {
  const clv_schema *schema;
  const clv_yaml_source *source;
  const char *folder;      /* where relative paths start, absolute */
  const char *credentials; /* $CREDENTIALS_DIRECTORY, or NULL */
} clv_binder;

/* Fill the zeroed struct at `base` from the tree. On failure it is partly filled and must still be
 * freed with clv_schema_free_at. */
clv_code clv_schema_bind(const clv_binder *binder, const clv_yaml_node *root, void *base,
                         clv_err *err) CLV_USE_RESULT;
/* Binds the initial value of each row that has one. */
clv_code clv_schema_bind_defaults(const clv_binder *binder, void *base,
                                  clv_err *err) CLV_USE_RESULT;

/* The values of one mapping's attributes (attrs.c): every key without a row of its own. */
clv_code clv_attrs_bind(const clv_binder *binder, const clv_yaml_node *map, const char *prefix,
                        const char *shown, clv_attr_spec **ret_attrs, size_t *ret_n,
                        clv_err *err) CLV_USE_RESULT;
void clv_attrs_free(clv_attr_spec *attrs, size_t n);

/* True if `key` of the mapping `prefix` is the name or the old name of some row. */
bool clv_schema_has_key(const clv_schema *schema, const char *prefix, const char *key);

/* Free what the struct at `base` owns, not the struct itself. */
void clv_schema_free_at(const clv_schema *schema, void *base);

void clv_schema_write(const clv_schema *schema, const void *base, clv_bytes *ret);
/* As clv_schema_write, without keys that name places and without seeds. */
void clv_schema_write_public(const clv_schema *schema, const void *base, clv_bytes *ret);
/* A line for each key that has a value: "stages.1.layers.0.out: 10". Seeds are not shown. */
void clv_schema_list(const clv_schema *schema, const void *base, clv_bytes *ret);
void clv_schema_example(const clv_schema *schema, clv_bytes *ret);
void clv_schema_json(const clv_schema *schema, clv_bytes *ret);
void clv_schema_man(const clv_schema *schema, clv_bytes *ret);
void clv_schema_keys(const clv_schema *schema, clv_bytes *ret);

/* The whole way from text to struct: tree, overrides, rows. `config` is zeroed and takes what was
 * read also on failure; *source is what messages about it need, and refers to *applied. */
clv_code clv_config_build(const clv_schema *schema, const clv_yaml_source *source, const char *text,
                          size_t len, const clv_config_overrides *over, clv_text_list *applied,
                          void *config, clv_err *err) CLV_USE_RESULT;

/* Whether what clv_path_join makes may be a text of a config again. */
bool clv_path_can_join(const char *folder, const char *path);
/* folder + "/" + path, or a copy of an absolute path. */
clv_code clv_path_join(const char *folder, const char *path, char **ret,
                       clv_err *err) CLV_USE_RESULT;

/* The absolute folder a config file stands in. */
clv_code clv_path_folder(const char *file, char **ret, clv_err *err) CLV_USE_RESULT;

#endif
