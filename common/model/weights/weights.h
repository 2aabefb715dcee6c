/* SPDX-License-Identifier: Apache-2.0
 *
 * weights: the files of a run. Reading and writing of safetensors files, of checkpoint folders and
 * their manifest, of folders of pretrained weights and adapters, and of the record of a run.
 * Pickle files are not supported, because reading them can execute code.
 *
 * Every file is parsed as hostile. A reader checks the complete header against the size of the file
 * before it allocates memory for the data. The digest is computed over the same bytes in memory
 * that the caller gets, so data cannot change between the check and the use.
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
  uint64_t at;      /* offset of its data in the file */
  const void *data; /* row-major, little-endian, maybe unaligned: copy, do not cast; NULL: lazy */
} clv_weights_entry;

typedef struct clv_weights_file clv_weights_file;

/* Opens a file with O_NOFOLLOW and reads it into memory. max_bytes 0: no limit. CLV_NOT_FOUND: the
 * file does not exist; CLV_INVALID: it is no regular file; CLV_EXHAUSTED: it is too large;
 * CLV_DATA_LOSS: its header is wrong (holes, overlaps, sizes, duplicates, truncation);
 * CLV_UNIMPLEMENTED: a type smaller than a byte. Texts name the file and the tensor. */
clv_code clv_weights_open(const char *path, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, but texts name the file `label`, not its path. */
clv_code clv_weights_open_as(const char *path, const char *label, size_t max_bytes,
                             clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, but leaves the data in the file: `data` of all entries is NULL, and
 * clv_weights_read_range reads them from the descriptor that was hashed, which stays open. */
clv_code clv_weights_open_lazy(const char *path, clv_weights_file **ret,
                               clv_err *err) CLV_USE_RESULT;
/* Copies n bytes of an entry from `offset` on, from memory or from the file. CLV_INVALID: the entry
 * has fewer bytes; CLV_DATA_LOSS: the file was changed after it was opened. */
clv_code clv_weights_read_range(const clv_weights_file *f, const clv_weights_entry *e,
                                uint64_t offset, void *dst, size_t n, clv_err *err) CLV_USE_RESULT;

/* Copies n values from `first` on in the type `wanted`: the entry's type, or bf16 for f32. */
clv_code clv_weights_read_range_as(const clv_weights_file *f, const clv_weights_entry *e,
                                   clv_dtype wanted, size_t first, void *dst, size_t n,
                                   clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, for a file in the caller's memory, which must outlive the result. `label`
 * names it in texts. */
clv_code clv_weights_open_memory(const void *data, size_t len, const char *label,
                                 clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_close(clv_weights_file *f); /* takes NULL */
void clv_weights_closep(clv_weights_file **f);

size_t clv_weights_count(const clv_weights_file *f);
const clv_weights_entry *clv_weights_entries(const clv_weights_file *f); /* [count], by name */
/* Returns the entry of that name, or NULL. */
const clv_weights_entry *clv_weights_find(const clv_weights_file *f, const char *name);
const char *clv_weights_metadata(const clv_weights_file *f, const char *key);
const char *clv_weights_label(const clv_weights_file *f); /* path or label */

uint64_t clv_weights_bytes(const clv_weights_file *f); /* size of the file */

/* Returns the SHA-256 of the complete file as it was read. */
const clv_sha256 *clv_weights_digest(const clv_weights_file *f);

/* ---- matching a model ------------------------------------------------------------------------ */

typedef struct clv_weights_want {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  bool optional; /* the file may lack it; ret_found of it is then NULL */
} clv_weights_want;

enum {
  CLV_WEIGHTS_ALLOW_UNEXPECTED = 1u << 0, /* the file may have tensors that are not wanted */
  CLV_WEIGHTS_ALLOW_NO_COUNTS = 1u << 1,  /* the file may lack counts; ret_found is then NULL */
  /* The file may have f32 where bf16 is wanted: clv_weights_read_range_as rounds it. */
  CLV_WEIGHTS_ALLOW_NARROWING = 1u << 2,
};

/* True for a count, such as batchnorm's num_batches_tracked. If a file lacks it, it is 0, as in
 * PyTorch. */
bool clv_weights_is_count(clv_dtype dtype, const clv_shape *shape);

/* Finds every wanted tensor: ret_found[i] belongs to want[i]. CLV_INVALID, and ret_found untouched,
 * when a name is missing or unexpected (the text lists the first few of both, with a "did you
 * mean"), or when a type or shape differs (the text names tensor, wanted and found). */
clv_code clv_weights_match(const clv_weights_file *f, const clv_weights_want *want, size_t n,
                           unsigned flags, const clv_weights_entry **ret_found,
                           clv_err *err) CLV_USE_RESULT;

/* Fails with CLV_INVALID if the file has tensors whose names are not in `known`. The text lists the
 * first few, and the known name that is most similar to the first. Types and shapes are not
 * compared. */
clv_code clv_weights_check_no_extra(const clv_weights_file *f, const clv_weights_want *known,
                                    size_t n, clv_err *err) CLV_USE_RESULT;

/* ---- folders of pretrained weights ----------------------------------------------------------- */

/* A folder as save_pretrained of transformers writes it: model.safetensors, or the files that
 * model.safetensors.index.json names. Tensors are read one at a time, so that a node loads only its
 * own. f16 and bf16 are converted to f32, and f16 and f32 to bf16, if that type is wanted. A file
 * is opened when the first of its tensors is read, and its descriptor stays open. */
typedef struct clv_weights_folder clv_weights_folder;

#define CLV_WEIGHTS_NONE SIZE_MAX

/* Check of a file by the caller, such as of its digest. The folder calls check() once for each
 * file, before it uses its contents. check() may read the descriptor with pread, and must not close
 * it. */
typedef struct clv_weights_guard {
  clv_code (*check)(void *user, const char *name, int fd, clv_err *err); /* NULL: no check */
  void *user;
} clv_weights_guard;

/* Opens a folder. `path` may also be a single safetensors file, which `label` then names; files of
 * a folder are named `label`/NAME in texts. CLV_NOT_FOUND: the folder has neither file;
 * CLV_DATA_LOSS: the index is wrong, or names something other than files of this folder;
 * CLV_INVALID: a link, or no regular file. */
clv_code clv_weights_folder_open(const char *path, const char *label, clv_weights_guard guard,
                                 clv_weights_folder **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_folder_close(clv_weights_folder *f); /* takes NULL */
void clv_weights_folder_closep(clv_weights_folder **f);

/* Returns the name of file i; the index, if there is one, is file 0. NULL behind the last. */
const char *clv_weights_folder_file(const clv_weights_folder *f, size_t i);

/* True for a tensor that old files contain although programs compute it: positions, masks, angles.
 */
bool clv_weights_is_derived(const char *name);
/* True if a parameter has one of these n names, or begins with one and a dot ("classifier" matches
 * "classifier.weight"). Such a parameter is initialised, not loaded. */
bool clv_weights_is_fresh(const char *name, const char *const *fresh, size_t n);

/* Finds each wanted tensor in the folder: ret_found[i] is the index of want[i]. CLV_WEIGHTS_NONE:
 * it is fresh, or it is optional or a count and the folder lacks it. A name is found as it is, with
 * or without the prefix of a base model, or with gamma and beta for a norm. CLV_INVALID: the text
 * lists the missing tensors, or names two that could both be meant. Opens no file of tensors. */
clv_code clv_weights_folder_match(const clv_weights_folder *f, const clv_weights_want *want,
                                  size_t n, const char *const *fresh, size_t n_fresh,
                                  size_t *ret_found, clv_err *err) CLV_USE_RESULT;

/* Appends the names of the folder that match none of want[n], except derived ones: "'a', 'b' and 4
 * more". */
clv_code clv_weights_folder_unmatched(const clv_weights_folder *f, const clv_weights_want *want,
                                      size_t n, clv_bytes *out, size_t *ret_n,
                                      clv_err *err) CLV_USE_RESULT;

/* Opens the file of tensor i, and checks that the tensor can be read as `want`: the shapes are
 * equal except for leading extents of 1, and the type can be converted. */
clv_code clv_weights_folder_check(clv_weights_folder *f, size_t i, const clv_weights_want *want,
                                  clv_err *err) CLV_USE_RESULT;
/* As clv_weights_folder_check, and reads the values to dst, which has the size of `want`.
 * CLV_DATA_LOSS: the file was changed after it was opened. */
clv_code clv_weights_folder_read(clv_weights_folder *f, size_t i, const clv_weights_want *want,
                                 void *dst, clv_err *err) CLV_USE_RESULT;
/* As clv_weights_folder_read, for n values from `first` on. CLV_INVALID: the tensor has fewer. */
clv_code clv_weights_folder_read_range(clv_weights_folder *f, size_t i,
                                       const clv_weights_want *want, size_t first, size_t n,
                                       void *dst, clv_err *err) CLV_USE_RESULT;

/* ---- writing safetensors --------------------------------------------------------------------- */

typedef struct clv_weights_tensor {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  const void *data; /* row-major, of the size of the shape; caller-owned */
} clv_weights_tensor;

/* Makes the bytes of a file with these tensors: a header padded to 8 bytes, tensors by descending
 * element size and then by name, and `__metadata__` {"format":"pt"} plus meta [n_meta]. The bytes
 * do not depend on the order of `tensors`. CLV_INVALID: a bad or repeated name, or two empty
 * tensors at one offset (the reader refuses those too); CLV_EXHAUSTED: over the limits above. */
clv_code clv_weights_encode(const clv_weights_tensor *tensors, size_t n, const clv_kv *meta,
                            size_t n_meta, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* Writer of a file whose data arrive in parts. Call clv_weights_begin, clv_weights_put for all data
 * (tensors in any order, each from its begin to its end), then clv_weights_finish. Tensors have the
 * numbers of `tensors`, whose `data` are not read. The file is PATH.tmp until clv_weights_finish
 * has made it durable; clv_weights_writer_free before that deletes it. Errors are those of
 * clv_weights_write; CLV_PRECONDITION: data of a tensor are missing. */
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

/* Computes the size of the file without additional metadata. */
clv_code clv_weights_size(const clv_weights_tensor *tensors, size_t n, uint64_t *ret_bytes,
                          clv_err *err) CLV_USE_RESULT;

/* Writes a file durably: PATH.tmp, fsync, rename, fsync of the folder. Does not copy the data in
 * memory. *ret_digest (may be NULL): the file's SHA-256; *ret_bytes (may be NULL): its size. */
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

/* Parses a manifest strictly. CLV_DATA_LOSS: unknown, missing or repeated keys, names with a path,
 * bad digests, numbers out of range; CLV_UNIMPLEMENTED: another version of the format. */
clv_code clv_manifest_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
const clv_manifest_file *clv_manifest_find(const clv_manifest *m, const char *name); /* or NULL */

/* ---- artifacts ------------------------------------------------------------------------------- */

/* FOLDER/ARTIFACT.json lists the weight files of a folder with their lengths and digests. The
 * digest of ARTIFACT.json identifies the folder. Equal files give an equal text. */
#define CLV_ARTIFACT_NAME "ARTIFACT.json"

/* Makes the text of ARTIFACT.json for a folder, and its digest. Opens all files, compares them with
 * the index and hashes them. Errors are those of clv_weights_folder_open. */
clv_code clv_artifact_make(const char *folder, clv_bytes *ret_text, clv_sha256 *ret_digest,
                           clv_err *err) CLV_USE_RESULT;
/* Parses ARTIFACT.json as strictly as clv_manifest_parse. Fills only `files`. */
clv_code clv_artifact_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Checks a file of the folder. CLV_DATA_LOSS: the list does not have it, or another digest. */
clv_code clv_artifact_check(const clv_manifest *m, const char *name, int fd,
                            clv_err *err) CLV_USE_RESULT;
/* Reads FOLDER/ARTIFACT.json, which must not be a link. *ret_digest: the digest of its bytes. */
clv_code clv_artifact_read(const char *folder, const char *label, clv_manifest *ret,
                           clv_sha256 *ret_digest, clv_err *err) CLV_USE_RESULT;

/* Makes the config.json for trained weights from that of the model they started from. Sets the type
 * to f32, the class to `architecture` (NULL: unchanged) and the labels to names [n_labels]
 * (n_labels
 * 0: unchanged; names NULL: unchanged if there are as many, else LABEL_0, LABEL_1 and so on).
 * CLV_DATA_LOSS: data is no JSON. */
clv_code clv_weights_make_config(const void *data, size_t len, const char *label,
                                 const char *architecture, size_t n_labels,
                                 const char *const *names, clv_bytes *ret,
                                 clv_err *err) CLV_USE_RESULT;

/* ---- trainer state --------------------------------------------------------------------------- */

/* trainer_state.json: what a resumed run needs in addition to weights and moments. */
typedef struct clv_trainer_state {
  uint64_t epoch, index;           /* data cursor: `index` records of `epoch` have been used */
  uint64_t global_step, max_steps; /* steps taken; steps planned, 0: unknown */
  const clv_kv *extra;             /* [n_extra], unique keys, such as the digest of the loss log */
  size_t n_extra;
} clv_trainer_state;

/* Extra key that lists the stages of whose weights the checkpoint has only a part, because the
 * others are in a worker's artifact. */
#define CLV_STAGES_LEFT "stages_left_to_artifacts"

/* Returns the value of an extra key, or NULL. */
const char *clv_trainer_state_get(const clv_trainer_state *s, const char *key);

/* ---- writing a checkpoint -------------------------------------------------------------------- */

/* RUN/checkpoint-<step>/ holds model-0000i-of-0000n.safetensors and
 * optimizer-0000i-of-0000n.safetensors for each stage, model.safetensors.index.json,
 * trainer_state.json, files added by name, and MANIFEST.json, which is written last: a folder
 * without a valid manifest is no checkpoint. Call clv_checkpoint_begin, then
 * clv_checkpoint_add_stage for every stage (or its two parts) and clv_checkpoint_add_state, then
 * clv_checkpoint_commit. */
typedef struct clv_checkpoint_writer clv_checkpoint_writer;

/* Starts the checkpoint of a step. Creates `run_dir` if it is missing, and removes the files of an
 * unfinished checkpoint. CLV_EXISTS: a valid checkpoint of this step exists, and is not changed. */
clv_code clv_checkpoint_begin(const char *run_dir, uint64_t step, uint32_t stages,
                              clv_checkpoint_writer **ret, clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_writer_free(clv_checkpoint_writer *w); /* takes NULL; deletes no file */
void clv_checkpoint_writer_freep(clv_checkpoint_writer **w);

/* Adds a stage (from 0): its parameters and buffers, and the tensors of its optimiser, named
 * "<param>.exp_avg" and so on. Both lists may be empty. Add each stage once, in any order. A
 * parameter name must be unique in the checkpoint. */
clv_code clv_checkpoint_add_stage(clv_checkpoint_writer *w, uint32_t stage,
                                  const clv_weights_tensor *model, size_t n_model,
                                  const clv_weights_tensor *optimizer, size_t n_optimizer,
                                  clv_err *err) CLV_USE_RESULT;
/* Start and end a file of a stage whose data arrive in parts: pass the data to *ret with
 * clv_weights_put. For each stage, write first the model and then the optimiser.
 * clv_checkpoint_end_part frees `part`, also on failure. */
clv_code clv_checkpoint_begin_part(clv_checkpoint_writer *w, uint32_t stage, bool optimizer,
                                   const clv_weights_tensor *tensors, size_t n,
                                   clv_weights_writer **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_end_part(clv_checkpoint_writer *w, clv_weights_writer *part,
                                 clv_err *err) CLV_USE_RESULT;
/* Adds another file (session.effective.yaml). */
clv_code clv_checkpoint_add_file(clv_checkpoint_writer *w, const char *name, const void *data,
                                 size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_add_state(clv_checkpoint_writer *w, const clv_trainer_state *state,
                                  clv_err *err) CLV_USE_RESULT;

/* Writes the index and the manifest. config_hash: hex SHA-256 or "". *ret_path (may be NULL): the
 * folder, which the caller frees. CLV_PRECONDITION: a stage or the trainer's state is missing. */
clv_code clv_checkpoint_commit(clv_checkpoint_writer *w, const char *config_hash,
                               uint32_t protocol_version, char **ret_path,
                               clv_err *err) CLV_USE_RESULT;

/* ---- reading a checkpoint -------------------------------------------------------------------- */

typedef struct clv_checkpoint clv_checkpoint;

/* Opens a checkpoint folder: parses the manifest, and checks length and digest of every file. */
clv_code clv_checkpoint_load(const char *path, clv_checkpoint **ret, clv_err *err) CLV_USE_RESULT;

/* Opens the newest valid checkpoint of run_dir. Appends to `reasons` (may be NULL) one line for
 * each newer one that was refused. CLV_NOT_FOUND: there is none; the text has the reasons. */
clv_code clv_checkpoint_load_latest(const char *run_dir, clv_checkpoint **ret, clv_bytes *reasons,
                                    clv_err *err) CLV_USE_RESULT;
/* Opens the checkpoint of a step. CLV_NOT_FOUND: the text lists the steps that have one. */
clv_code clv_checkpoint_load_step(const char *run_dir, uint64_t step, clv_checkpoint **ret,
                                  clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_free(clv_checkpoint *c); /* takes NULL */
void clv_checkpoint_freep(clv_checkpoint **c);

const char *clv_checkpoint_path(const clv_checkpoint *c);
const clv_manifest *clv_checkpoint_manifest(const clv_checkpoint *c);
const clv_trainer_state *clv_checkpoint_state(const clv_checkpoint *c);

/* Open the tensors of a stage (from 0). Read the file and compare its digest with the manifest once
 * more. */
clv_code clv_checkpoint_open_model(const clv_checkpoint *c, uint32_t stage, clv_weights_file **ret,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer(const clv_checkpoint *c, uint32_t stage,
                                       clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* As the two functions above, but leave the data in the file, as clv_weights_open_lazy. */
clv_code clv_checkpoint_open_model_lazy(const clv_checkpoint *c, uint32_t stage,
                                        clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer_lazy(const clv_checkpoint *c, uint32_t stage,
                                            clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* Reads another file of the manifest, and compares its digest. CLV_NOT_FOUND: it is not listed. */
clv_code clv_checkpoint_read_file(const clv_checkpoint *c, const char *name, clv_bytes *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Deletes all valid checkpoints except the `keep` newest ones, and unfinished ones older than the
 * newest of these. keep 0 counts as 1: the newest valid checkpoint is never deleted, and if none is
 * valid, nothing is deleted. The checkpoint of step `spared` stays too (CLV_CHECKPOINT_NONE: none).
 * If a folder contains more than plain files, only its plain files are deleted. */
#define CLV_CHECKPOINT_NONE UINT64_MAX
clv_code clv_checkpoint_prune(const char *run_dir, uint32_t keep, uint64_t spared,
                              clv_err *err) CLV_USE_RESULT;

/* True if run_dir has a checkpoint folder, complete or not. */
bool clv_checkpoint_has_any(const char *run_dir);
/* True if a checkpoint folder of run_dir has a manifest. The checkpoint may be damaged. */
bool clv_checkpoint_has_manifest(const char *run_dir);
/* Returns the number of steps written to ret_steps [most]: those of the checkpoint folders with a
 * manifest, newest first. Their checkpoints may be damaged. */
size_t clv_checkpoint_steps(const char *run_dir, uint64_t *ret_steps, size_t most);
/* Deletes every checkpoint of run_dir, for a run that starts over. Other files stay. */
clv_code clv_checkpoint_clear(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* ---- the record of a run --------------------------------------------------------------------- */

/* RUN/run.json: the run, and each attempt at it (the first one, and those that resumed it). */

enum {
  CLV_RECORD_MAX_BYTES = 1 << 20,
  CLV_RECORD_MAX_ATTEMPTS = 64, /* older ones are only counted */
  CLV_RECORD_MAX_CHECKPOINTS = 32,
  CLV_RECORD_NAME = 65,
  CLV_RECORD_LOOK = 96,
  CLV_RECORD_PATH = 1025,
};

typedef enum clv_run_status {
  CLV_RUN_RUNNING, /* running, or its process died without a status */
  CLV_RUN_FINISHED,
  CLV_RUN_FAILED,
  CLV_RUN_INTERRUPTED,
  CLV_RUN_STOPPED,   /* by `stop` */
  CLV_RUN_RECOVERED, /* a worker was lost, and the process has begun another attempt */
  CLV_RUN_STATUSES
} clv_run_status;

typedef struct clv_run_attempt {
  clv_run_status status;
  uint64_t code;               /* exit code after its end */
  char text[CLV_ERR_TEXT];     /* why it failed or, while it runs, what it recovers from; or "" */
  uint64_t began_ms, ended_ms; /* milliseconds since 1970; ended 0: not ended */
  char host[CLV_RECORD_NAME];
  char boot[CLV_RECORD_NAME]; /* the host's boot id, because process ids repeat after a reboot */
  uint64_t pid, pid_start;    /* start in clock ticks since boot, as in /proc/PID/stat */
  uint64_t from_step, step, total_steps; /* total 0: unknown */
  double loss, accuracy;                 /* of the last step; NaN: unknown */
  char look[CLV_RECORD_LOOK]; /* what the look read of tensors before they were sent; "": no look */
} clv_run_attempt;

typedef struct clv_run_best {
  char what[CLV_RECORD_NAME]; /* "validation", "test"; "": no evaluation */
  uint64_t step;
  double loss, accuracy;
} clv_run_best;

typedef struct clv_run_record {
  char name[CLV_RECORD_NAME];
  char session[CLV_RECORD_PATH];       /* the session's file */
  char config_sha256[CLV_RECORD_NAME]; /* of session.effective.yaml */
  char id[33];    /* session id at the workers: 32 hex digits; "": not stored */
  uint64_t epoch; /* of the newest attempt, from 1 */
  clv_run_best best;
  uint64_t checkpoints[CLV_RECORD_MAX_CHECKPOINTS]; /* steps, newest first */
  size_t n_checkpoints;
  uint64_t earlier;          /* attempts before those listed */
  clv_run_attempt *attempts; /* oldest first */
  size_t n_attempts;
} clv_run_record;

void clv_run_record_done(clv_run_record *r); /* frees and zeroes */

/* Appends a new attempt, zeroed. If the record is full, drops the oldest one. */
clv_code clv_run_record_add(clv_run_record *r, clv_run_attempt **ret, clv_err *err) CLV_USE_RESULT;

/* Appends any bytes as a JSON string: bytes that are no UTF-8 become '?', control characters become
 * spaces. */
void clv_run_record_text(clv_bytes *out, const char *text);

/* Makes the text of run.json, with all texts as clv_run_record_text writes them. */
clv_code clv_run_record_format(const clv_run_record *r, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

/* Parses run.json strictly. CLV_DATA_LOSS: unknown, missing or repeated keys, texts that are too
 * long or have control characters, numbers out of range, no attempts; CLV_UNIMPLEMENTED: another
 * version of the format. */
clv_code clv_run_record_parse(const void *data, size_t len, const char *label, clv_run_record *ret,
                              clv_err *err) CLV_USE_RESULT;

/* ---- adapters (peft.c) ----------------------------------------------------------------------- */

/* A folder of low-rank adapters as Hugging Face's peft writes it: adapter_config.json, and
 * adapter_model.safetensors with tensors "base_model.model.NAME.lora_A.weight". */
#define CLV_PEFT_PREFIX "base_model.model."
#define CLV_PEFT_CONFIG "adapter_config.json"
#define CLV_PEFT_WEIGHTS "adapter_model.safetensors"

enum { CLV_PEFT_NAME = 256, CLV_PEFT_MAX_PATTERNS = 4096, CLV_PEFT_MAX_CONFIG = 4 << 20 };

/* Settings of one layer that differ from the others': rank_pattern, alpha_pattern. */
typedef struct clv_peft_pattern {
  char name[CLV_PEFT_NAME]; /* the layer's name, or its end behind a dot */
  int64_t r;                /* 0: that of the other layers */
  double alpha;             /* 0: that of the other layers */
} clv_peft_pattern;

typedef struct clv_peft {
  int64_t r;
  double alpha, dropout;
  bool rslora;
  clv_peft_pattern *patterns;
  size_t n_patterns, cap;
} clv_peft;

void clv_peft_done(clv_peft *p); /* zeroes */

/* Parses adapter_config.json; label names it in messages. CLV_INVALID, with line and column: the
 * text is wrong, or asks for an unsupported feature (a method other than LoRA, DoRA, biases,
 * regular expressions as names). */
clv_code clv_peft_parse(const char *label, const char *text, size_t len, clv_peft *ret,
                        clv_err *err) CLV_USE_RESULT;

/* Returns the factor on the output of a layer's B: alpha / r, or alpha / sqrt(r). *ret_r: its rank.
 */
double clv_peft_scale(const clv_peft *p, const char *layer, int64_t *ret_r);

/* Stores the settings of one layer that differ from the others'. */
clv_code clv_peft_add(clv_peft *p, const char *layer, int64_t r, double alpha,
                      clv_err *err) CLV_USE_RESULT;

/* Appends adapter_config.json. base: name of the base model; NULL: not given. targets: [n_targets]
 * layers with adapters; saved: [n_saved] modules that were trained completely. */
void clv_peft_write(const clv_peft *p, const char *base, const char *const *targets,
                    size_t n_targets, const char *const *saved, size_t n_saved, clv_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
