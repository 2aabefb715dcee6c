/* SPDX-License-Identifier: Apache-2.0
 *
 * weights: what a run leaves on disk. safetensors files in and out, checkpoint folders and their
 * manifest, the record of the run itself. There is no pickle here and there will be none: it runs
 * what it reads.
 *
 * Every file is parsed as hostile. A reader checks the whole header against the size of the file
 * before it takes memory for the data, and the data handed out are the bytes in memory, so
 * nothing changes between a digest that was checked and a weight that is used.
 *
 * Ownership: a weights file owns its entries, names and data. Threads: open files never change and
 * may be read by many threads; writers belong to one thread.
 */
#ifndef CLEAVE_WEIGHTS_H
#define CLEAVE_WEIGHTS_H

#include "common/base/base.h"
#include "common/base/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_WEIGHTS_MAX_HEADER = 16 << 20, /* bytes of safetensors header */
  CLV_WEIGHTS_MAX_TENSORS = 65536,
  CLV_WEIGHTS_MAX_NAME = 512, /* bytes of a tensor's name */
  CLV_CHECKPOINT_MAX_STAGES = 999,
  CLV_CHECKPOINT_MAX_FILES = 4096,
  CLV_CHECKPOINT_MAX_NAME = 128, /* bytes of a file name in a manifest */
};

/* A pair of strings (metadata, notes in the trainer's state). */
typedef struct clv_kv {
  const char *key, *value;
} clv_kv;

/* ---- reading safetensors --------------------------------------------------------------------- */

typedef struct clv_weights_entry {
  const char *name;      /* valid UTF-8 without control characters */
  const char *type_name; /* as in the file: "F32", "BOOL"... */
  clv_dtype dtype;       /* 0 when there is no such clv_dtype (BOOL, I8, I16, U16, F8...) */
  clv_shape shape;
  size_t bytes;
  uint64_t at;      /* where its data begin in the file */
  const void *data; /* row-major, little-endian; may be unaligned: copy, do not cast */
} clv_weights_entry;

typedef struct clv_weights_file clv_weights_file;

/* Opens with O_NOFOLLOW; anything but a regular file is CLV_INVALID. max_bytes of 0 means no limit
 * but the file's own size. CLV_NOT_FOUND missing; CLV_EXHAUSTED too large; CLV_DATA_LOSS a header
 * that does not hold (holes, overlaps, sizes, duplicates, truncation); CLV_UNIMPLEMENTED for types
 * below a byte. Texts name the file and the tensor. */
clv_code clv_weights_open(const char *path, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) CLV_USE_RESULT;

/* The same; texts name it `label`, and no path. */
clv_code clv_weights_open_as(const char *path, const char *label, size_t max_bytes,
                             clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;

/* The same with its data left in the file: entries have none, and clv_weights_read_range reads them
 * from the descriptor that was hashed. It stays open. */
clv_code clv_weights_open_lazy(const char *path, clv_weights_file **ret,
                               clv_err *err) CLV_USE_RESULT;
/* Bytes offset.. of an entry, wherever the data are. CLV_INVALID: it has fewer; CLV_DATA_LOSS: the
 * file was changed since it was opened. */
clv_code clv_weights_read_range(const clv_weights_file *f, const clv_weights_entry *e,
                                uint64_t offset, void *dst, size_t n, clv_err *err) CLV_USE_RESULT;

/* n values from `first` on as the type wanted: the entry's own, or bf16 of f32. */
clv_code clv_weights_read_range_as(const clv_weights_file *f, const clv_weights_entry *e,
                                   clv_dtype wanted, size_t first, void *dst, size_t n,
                                   clv_err *err) CLV_USE_RESULT;

/* The same over the caller's memory, which must outlive the file; `label` stands for the name. */
clv_code clv_weights_open_memory(const void *data, size_t len, const char *label,
                                 clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_close(clv_weights_file *f); /* takes NULL */
void clv_weights_closep(clv_weights_file **f);

size_t clv_weights_count(const clv_weights_file *f);
const clv_weights_entry *clv_weights_entries(const clv_weights_file *f); /* [count], by name */
/* NULL when there is none of that name. */
const clv_weights_entry *clv_weights_find(const clv_weights_file *f, const char *name);
const char *clv_weights_metadata(const clv_weights_file *f, const char *key);
const char *clv_weights_label(const clv_weights_file *f); /* path or label */

uint64_t clv_weights_bytes(const clv_weights_file *f); /* of the file */

/* SHA-256 of the whole file as it was read. */
const clv_sha256 *clv_weights_digest(const clv_weights_file *f);

/* ---- matching a model ------------------------------------------------------------------------ */

typedef struct clv_weights_want {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  bool optional; /* the file may lack it: its ret_found is then NULL */
} clv_weights_want;

enum {
  CLV_WEIGHTS_ALLOW_UNEXPECTED = 1u << 0, /* the file may hold tensors nobody wants */
  /* the file may lack counts, whose ret_found is then NULL */
  CLV_WEIGHTS_ALLOW_NO_COUNTS = 1u << 1,
  /* f32 may stand for bf16: clv_weights_read_range_as rounds it */
  CLV_WEIGHTS_ALLOW_NARROWING = 1u << 2,
};

/* A count, such as batchnorm's num_batches_tracked. A file without it is taken as PyTorch takes it:
 * it is 0. */
bool clv_weights_is_count(clv_dtype dtype, const clv_shape *shape);

/* Finds every wanted tensor: ret_found[i] belongs to want[i]. CLV_INVALID, and ret_found untouched,
 * when a name is missing or unexpected (the text lists the first few of both, with a "did you
 * mean"), or when a type or shape differs (the text names tensor, wanted and found). */
clv_code clv_weights_match(const clv_weights_file *f, const clv_weights_want *want, size_t n,
                           unsigned flags, const clv_weights_entry **ret_found,
                           clv_err *err) CLV_USE_RESULT;

/* CLV_INVALID when the file has tensors by names that `known` has not: the first few, with a name
 * that looks like the first. Types and shapes are not compared. */
clv_code clv_weights_check_no_extra(const clv_weights_file *f, const clv_weights_want *known,
                                    size_t n, clv_err *err) CLV_USE_RESULT;

/* ---- folders of pretrained weights ----------------------------------------------------------- */

/* A folder as save_pretrained of transformers leaves it: model.safetensors, or the files that
 * model.safetensors.index.json names. Tensors are read one at a time, so that nobody holds what is
 * not his: f16 and bf16 become f32, and f16 and f32 bf16 where that is wanted. A file is opened
 * when the first of its tensors is read, and that descriptor stays. */
typedef struct clv_weights_folder clv_weights_folder;

#define CLV_WEIGHTS_NONE SIZE_MAX

/* Asked once about each file, before anything that stands in it is believed; it may read from the
 * descriptor (pread) and leaves it open. */
typedef struct clv_weights_guard {
  clv_code (*check)(void *user, const char *name, int fd, clv_err *err);
  void *user;
} clv_weights_guard;

/* `path` may be a safetensors file as well, which is then all there is, and is called `label`.
 * guard.check NULL: none. CLV_NOT_FOUND: there is neither file; CLV_DATA_LOSS: an index
 * that does not hold, or names anything but files of this folder; CLV_INVALID: a link, or no plain
 * file. Texts name files `label`/NAME. */
clv_code clv_weights_folder_open(const char *path, const char *label, clv_weights_guard guard,
                                 clv_weights_folder **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_folder_close(clv_weights_folder *f); /* takes NULL */
void clv_weights_folder_closep(clv_weights_folder **f);

/* The files in order, the index (if there is one) first. NULL behind the last. */
const char *clv_weights_folder_file(const clv_weights_folder *f, size_t i);

/* What a program derives itself and old files hold all the same: positions, masks, angles. */
bool clv_weights_is_derived(const char *name);
/* Whether a parameter begins with one of these names: "classifier" has classifier.weight. */
bool clv_weights_is_fresh(const char *name, const char *const *fresh, size_t n);

/* Where the folder has each wanted tensor: ret_found[i] belongs to want[i], CLV_WEIGHTS_NONE for a
 * fresh one, which is not looked for, and for an optional one or a count that is not there. Found
 * by name: as it is; with or without the name of a base model before it; norms by gamma and beta.
 * CLV_INVALID lists what is missing, or says which two names could be meant. No file of tensors is
 * opened. */
clv_code clv_weights_folder_match(const clv_weights_folder *f, const clv_weights_want *want,
                                  size_t n, const char *const *fresh, size_t n_fresh,
                                  size_t *ret_found, clv_err *err) CLV_USE_RESULT;

/* Appends names of the folder that are none of want[n], the derived ones aside: "'a', 'b' and 4
 * more". */
clv_code clv_weights_folder_unmatched(const clv_weights_folder *f, const clv_weights_want *want,
                                      size_t n, clv_bytes *out, size_t *ret_n,
                                      clv_err *err) CLV_USE_RESULT;

/* Whether tensor i, once its file has been opened, can be `want`: the shape, but for extents of 1
 * in front, and f32, f16 or bf16 for f32. */
clv_code clv_weights_folder_check(clv_weights_folder *f, size_t i, const clv_weights_want *want,
                                  clv_err *err) CLV_USE_RESULT;
/* The same, and its numbers to dst, which has the size of `want`. CLV_DATA_LOSS as well: the file
 * was changed since it was opened. */
clv_code clv_weights_folder_read(clv_weights_folder *f, size_t i, const clv_weights_want *want,
                                 void *dst, clv_err *err) CLV_USE_RESULT;
/* Its values first.., n of them. CLV_INVALID: it has fewer. */
clv_code clv_weights_folder_read_range(clv_weights_folder *f, size_t i,
                                       const clv_weights_want *want, size_t first, size_t n,
                                       void *dst, clv_err *err) CLV_USE_RESULT;

/* ---- writing safetensors --------------------------------------------------------------------- */

typedef struct clv_weights_tensor {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  const void *data; /* row-major, the size of the shape; borrowed */
} clv_weights_tensor;

/* The file for these tensors: header padded to 8 bytes, tensors by falling element size and then
 * name, `__metadata__` {"format":"pt"} plus meta [n_meta]. The same input gives the same bytes,
 * whatever the order of `tensors`. CLV_INVALID for a bad or repeated name or two empty tensors at
 * one offset (the reader refuses those too), CLV_EXHAUSTED over the limits above. */
clv_code clv_weights_encode(const clv_weights_tensor *tensors, size_t n, const clv_kv *meta,
                            size_t n_meta, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* A file whose data come bit by bit, in any order of tensors (numbered as in `tensors`, whose data
 * are not read), each from its begin to its end. It is PATH.tmp until clv_weights_finish has made
 * it durable; freed before that it leaves nothing. Errors are those of clv_weights_write;
 * CLV_PRECONDITION: some bytes have not come. */
typedef struct clv_weights_writer clv_weights_writer;
clv_code clv_weights_begin(const char *path, const clv_weights_tensor *tensors, size_t n,
                           const clv_kv *meta, size_t n_meta, clv_weights_writer **ret,
                           clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_put(clv_weights_writer *w, size_t i, uint64_t offset, const void *data,
                         size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_finish(clv_weights_writer *w, clv_sha256 *ret_digest, uint64_t *ret_bytes,
                            clv_err *err) CLV_USE_RESULT;
void clv_weights_writer_free(clv_weights_writer *w); /* takes NULL */
void clv_weights_writer_freep(clv_weights_writer **w);

/* Bytes that the file will have, without metadata of its own. */
clv_code clv_weights_size(const clv_weights_tensor *tensors, size_t n, uint64_t *ret_bytes,
                          clv_err *err) CLV_USE_RESULT;

/* Writes it durably: PATH.tmp, fsync, rename, fsync of the folder. The data are streamed, not
 * copied. *ret_digest (may be NULL) is the file's SHA-256, *ret_bytes (may be NULL) its size. */
clv_code clv_weights_write(const char *path, const clv_weights_tensor *tensors, size_t n,
                           const clv_kv *meta, size_t n_meta, clv_sha256 *ret_digest,
                           uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;

/* ---- manifest -------------------------------------------------------------------------------- */

typedef struct clv_manifest_file {
  char name[CLV_CHECKPOINT_MAX_NAME + 1]; /* [A-Za-z0-9._-]{1,128}, not "." or ".." */
  uint64_t bytes;
  clv_sha256 sha256;
} clv_manifest_file;

typedef struct clv_manifest {
  uint64_t step;
  uint32_t stages;
  uint32_t protocol_version;
  char config_hash[65];     /* hex or empty */
  clv_manifest_file *files; /* by name */
  size_t n_files;
} clv_manifest;

void clv_manifest_done(clv_manifest *m); /* frees and zeroes */

/* Strict: unknown, missing or repeated keys, names with a path, bad digests and numbers out of
 * range are CLV_DATA_LOSS; a format of another version is CLV_UNIMPLEMENTED. */
clv_code clv_manifest_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
const clv_manifest_file *clv_manifest_find(const clv_manifest *m, const char *name); /* or NULL */

/* ---- artifacts ------------------------------------------------------------------------------- */

/* FOLDER/ARTIFACT.json lists the files of weights of a folder with lengths and digests; the digest
 * of its bytes is the folder's. Equal files give an equal text. */
#define CLV_ARTIFACT_NAME "ARTIFACT.json"

/* Its text for a folder, and the digest of that. All files are opened, held against the index and
 * hashed. Errors are those of clv_weights_folder_open. */
clv_code clv_artifact_make(const char *folder, clv_bytes *ret_text, clv_sha256 *ret_digest,
                           clv_err *err) CLV_USE_RESULT;
/* As strict as clv_manifest_parse; only `files` is filled. */
clv_code clv_artifact_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
/* CLV_DATA_LOSS: it is no folder's file that the list has, or has another digest. */
clv_code clv_artifact_check(const clv_manifest *m, const char *name, int fd,
                            clv_err *err) CLV_USE_RESULT;
/* Reads FOLDER/ARTIFACT.json, not through a link: *ret_digest is that of its bytes. */
clv_code clv_artifact_read(const char *folder, const char *label, clv_manifest *ret,
                           clv_sha256 *ret_digest, clv_err *err) CLV_USE_RESULT;

/* The config.json of a model of Hugging Face for weights that were trained on: in f32, of the class
 * `architecture` (NULL: as it was), with so many labels (0: as it was) of these names [n_labels];
 * names NULL: those it has where they are as many, else LABEL_0 and on. CLV_DATA_LOSS: it is no
 * JSON. */
clv_code clv_weights_make_config(const void *data, size_t len, const char *label,
                                 const char *architecture, size_t n_labels,
                                 const char *const *names, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- trainer state --------------------------------------------------------------------------- */

/* trainer_state.json: all a resumed run needs besides weights and moments. */
typedef struct clv_trainer_state {
  uint64_t epoch, index;           /* data cursor: `index` records of `epoch` are used */
  uint64_t global_step, max_steps; /* steps done; steps planned, 0 = unknown */
  const clv_kv *extra;             /* [n_extra], keys unique; e.g. the digest of the loss log */
  size_t n_extra;
} clv_trainer_state;

/* The extra key for the stages whose weights are not all in the checkpoint: a worker's artifact has
 * the rest. */
#define CLV_STAGES_LEFT "stages_left_to_artifacts"

/* The value of an extra key, or NULL. */
const char *clv_trainer_state_get(const clv_trainer_state *s, const char *key);

/* ---- writing a checkpoint -------------------------------------------------------------------- */

/* RUN/checkpoint-<step>/ holds model-0000i-of-0000n.safetensors and
 * optimizer-0000i-of-0000n.safetensors for each stage, model.safetensors.index.json,
 * trainer_state.json, what was added by name, and MANIFEST.json, which is written last: without one
 * that verifies there is no checkpoint. */
typedef struct clv_checkpoint_writer clv_checkpoint_writer;

/* CLV_EXISTS when this step's checkpoint is there and verifies (nothing is touched then); files
 * left by an unfinished one are removed. `run_dir` is created when missing. */
clv_code clv_checkpoint_begin(const char *run_dir, uint64_t step, uint32_t stages,
                              clv_checkpoint_writer **ret, clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_writer_free(clv_checkpoint_writer *w); /* takes NULL; deletes no file */
void clv_checkpoint_writer_freep(clv_checkpoint_writer **w);

/* One stage (0-based): its parameters and buffers, and its optimiser's tensors, named
 * "<param>.exp_avg" and so on. Either list may be empty. Each stage exactly once, any order; a
 * parameter name must be new in the whole checkpoint. */
clv_code clv_checkpoint_add_stage(clv_checkpoint_writer *w, uint32_t stage,
                                  const clv_weights_tensor *model, size_t n_model,
                                  const clv_weights_tensor *optimizer, size_t n_optimizer,
                                  clv_err *err) CLV_USE_RESULT;
/* A file of a stage in whose data come bit by bit: *ret is ended by clv_checkpoint_end_part (which
 * takes it whatever it returns). Of each stage first the model and then the optimiser. */
clv_code clv_checkpoint_begin_part(clv_checkpoint_writer *w, uint32_t stage, bool optimizer,
                                   const clv_weights_tensor *tensors, size_t n,
                                   clv_weights_writer **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_end_part(clv_checkpoint_writer *w, clv_weights_writer *part,
                                 clv_err *err) CLV_USE_RESULT;
/* Any other file (session.effective.yaml). */
clv_code clv_checkpoint_add_file(clv_checkpoint_writer *w, const char *name, const void *data,
                                 size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_add_state(clv_checkpoint_writer *w, const clv_trainer_state *state,
                                  clv_err *err) CLV_USE_RESULT;

/* Writes the index and the manifest. config_hash: hex SHA-256 or "". CLV_PRECONDITION when a stage
 * or the trainer's state is missing. *ret_path (may be NULL) is the folder; the caller frees it. */
clv_code clv_checkpoint_commit(clv_checkpoint_writer *w, const char *config_hash,
                               uint32_t protocol_version, char **ret_path,
                               clv_err *err) CLV_USE_RESULT;

/* ---- reading a checkpoint -------------------------------------------------------------------- */

typedef struct clv_checkpoint clv_checkpoint;

/* Opens a checkpoint folder: the manifest is parsed and every file's length and digest checked. */
clv_code clv_checkpoint_load(const char *path, clv_checkpoint **ret, clv_err *err) CLV_USE_RESULT;

/* The newest checkpoint under run_dir that verifies. `reasons` (may be NULL) gets one line for each
 * newer one that was refused. CLV_NOT_FOUND when there is none, with the reasons in the text. */
clv_code clv_checkpoint_load_latest(const char *run_dir, clv_checkpoint **ret, clv_bytes *reasons,
                                    clv_err *err) CLV_USE_RESULT;
/* That of a step. CLV_NOT_FOUND names those that are there. */
clv_code clv_checkpoint_load_step(const char *run_dir, uint64_t step, clv_checkpoint **ret,
                                  clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_free(clv_checkpoint *c); /* takes NULL */
void clv_checkpoint_freep(clv_checkpoint **c);

const char *clv_checkpoint_path(const clv_checkpoint *c);
const clv_manifest *clv_checkpoint_manifest(const clv_checkpoint *c);
const clv_trainer_state *clv_checkpoint_state(const clv_checkpoint *c);

/* A stage's tensors (0-based), read now and checked against the manifest's digest once more. */
clv_code clv_checkpoint_open_model(const clv_checkpoint *c, uint32_t stage, clv_weights_file **ret,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer(const clv_checkpoint *c, uint32_t stage,
                                       clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* The same, as clv_weights_open_lazy. */
clv_code clv_checkpoint_open_model_lazy(const clv_checkpoint *c, uint32_t stage,
                                        clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer_lazy(const clv_checkpoint *c, uint32_t stage,
                                            clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* Another file of the manifest, whole, checked the same way. CLV_NOT_FOUND: it is not listed. */
clv_code clv_checkpoint_read_file(const clv_checkpoint *c, const char *name, clv_bytes *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Deletes all but the `keep` newest checkpoints that verify, and unfinished ones older than the
 * newest of those. keep of 0 counts as 1: the newest that verifies is never deleted, and nothing is
 * when none verifies. That of step `spared` stays as well (CLV_CHECKPOINT_NONE: none). A folder
 * that holds anything but plain files loses only its files. */
#define CLV_CHECKPOINT_NONE UINT64_MAX
clv_code clv_checkpoint_prune(const char *run_dir, uint32_t keep, uint64_t spared,
                              clv_err *err) CLV_USE_RESULT;

/* Whether run_dir holds a checkpoint folder, complete or not. */
bool clv_checkpoint_has_any(const char *run_dir);
/* Whether one of them has its manifest, which is written last. It may be damaged all the same. */
bool clv_checkpoint_has_manifest(const char *run_dir);
/* Steps of its checkpoint folders, complete or not, newest first: the first `most` of them. */
size_t clv_checkpoint_steps(const char *run_dir, uint64_t *ret_steps, size_t most);
/* Deletes every checkpoint under run_dir, for a run that starts afresh. Foreign files stay. */
clv_code clv_checkpoint_clear(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* ---- the record of a run --------------------------------------------------------------------- */

/* RUN/run.json: what was run, and each attempt at it: the first and those that resumed it. */

enum {
  CLV_RECORD_MAX_BYTES = 1 << 20,
  CLV_RECORD_MAX_ATTEMPTS = 64, /* older ones are counted only */
  CLV_RECORD_MAX_CHECKPOINTS = 32,
  CLV_RECORD_NAME = 65,
  CLV_RECORD_LOOK = 96,
  CLV_RECORD_PATH = 1025,
};

typedef enum clv_run_status {
  CLV_RUN_RUNNING, /* or it was when its process died */
  CLV_RUN_FINISHED,
  CLV_RUN_FAILED,
  CLV_RUN_INTERRUPTED,
  CLV_RUN_STOPPED, /* by `stop` */
  CLV_RUN_STATUSES
} clv_run_status;

typedef struct clv_run_attempt {
  clv_run_status status;
  uint64_t code;               /* exit code, once it has ended */
  char text[CLV_ERR_TEXT];     /* why it failed, or "" */
  uint64_t began_ms, ended_ms; /* since 1970; ended 0: not yet */
  char host[CLV_RECORD_NAME];
  char boot[CLV_RECORD_NAME]; /* the host's boot id: process ids mean nothing after another */
  uint64_t pid, pid_start;    /* start in clock ticks since boot, as in /proc/PID/stat */
  uint64_t from_step, step, total_steps; /* total 0: not known */
  double loss, accuracy;                 /* of the last step; NaN: not known */
  char look[CLV_RECORD_LOOK]; /* what was read of what leaves, before any left; "": nobody looked */
} clv_run_attempt;

typedef struct clv_run_best {
  char what[CLV_RECORD_NAME]; /* "validation", "test"; "": there was no evaluation */
  uint64_t step;
  double loss, accuracy;
} clv_run_best;

typedef struct clv_run_record {
  char name[CLV_RECORD_NAME];
  char session[CLV_RECORD_PATH];       /* the session's file */
  char config_sha256[CLV_RECORD_NAME]; /* of session.effective.yaml */
  char id[33];    /* of the session that workers know: 32 hex digits; "": none was kept */
  uint64_t epoch; /* of the newest attempt, from 1 */
  clv_run_best best;
  uint64_t checkpoints[CLV_RECORD_MAX_CHECKPOINTS]; /* steps, newest first */
  size_t n_checkpoints;
  uint64_t earlier;          /* attempts before those listed */
  clv_run_attempt *attempts; /* oldest first */
  size_t n_attempts;
} clv_run_record;

void clv_run_record_done(clv_run_record *r); /* frees and zeroes */

/* A new attempt, zeroed, at the end; the oldest makes room. */
clv_code clv_run_record_add(clv_run_record *r, clv_run_attempt **ret, clv_err *err) CLV_USE_RESULT;

/* Any bytes as a JSON string: what is no UTF-8 becomes '?', control characters spaces. */
void clv_run_record_text(clv_bytes *out, const char *text);

/* Its texts are written so. */
clv_code clv_run_record_format(const clv_run_record *r, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

/* Strict as the manifest's: unknown, missing or repeated keys, texts that are too long or have
 * control characters, numbers out of range and a record without attempts are CLV_DATA_LOSS; a
 * format of another version is CLV_UNIMPLEMENTED. */
clv_code clv_run_record_parse(const void *data, size_t len, const char *label, clv_run_record *ret,
                              clv_err *err) CLV_USE_RESULT;

/* ---- adapters (peft.c) ----------------------------------------------------------------------- */

/* A folder of low-rank adapters as Hugging Face's peft has it: adapter_config.json, and
 * adapter_model.safetensors with tensors "base_model.model.NAME.lora_A.weight". */
#define CLV_PEFT_PREFIX "base_model.model."
#define CLV_PEFT_CONFIG "adapter_config.json"
#define CLV_PEFT_WEIGHTS "adapter_model.safetensors"

enum { CLV_PEFT_NAME = 256, CLV_PEFT_MAX_PATTERNS = 4096, CLV_PEFT_MAX_CONFIG = 4 << 20 };

/* What one layer has otherwise than the rest: rank_pattern, alpha_pattern. */
typedef struct clv_peft_pattern {
  char name[CLV_PEFT_NAME]; /* of the layer, or its end behind a dot */
  int64_t r;                /* 0: as the rest */
  double alpha;             /* 0: as the rest */
} clv_peft_pattern;

typedef struct clv_peft {
  int64_t r;
  double alpha, dropout;
  bool rslora;
  clv_peft_pattern *patterns;
  size_t n_patterns, cap;
} clv_peft;

void clv_peft_done(clv_peft *p); /* zeroes */

/* adapter_config.json; label: for messages. CLV_INVALID with line and column: it is none, or asks
 * for what is not done (another method than LoRA, DoRA, biases, regular expressions as names). */
clv_code clv_peft_parse(const char *label, const char *text, size_t len, clv_peft *ret,
                        clv_err *err) CLV_USE_RESULT;

/* What a layer's B is scaled by: alpha / r, or alpha / sqrt(r). *ret_r: its rank. */
double clv_peft_scale(const clv_peft *p, const char *layer, int64_t *ret_r);

/* Remembers what one layer has otherwise. */
clv_code clv_peft_add(clv_peft *p, const char *layer, int64_t r, double alpha,
                      clv_err *err) CLV_USE_RESULT;

/* As JSON. base: of whom they are adapters, NULL: not said. targets: [n_targets] layers with
 * adapters, saved: [n_saved] modules that were trained as a whole. */
void clv_peft_write(const clv_peft *p, const char *base, const char *const *targets,
                    size_t n_targets, const char *const *saved, size_t n_saved, clv_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
