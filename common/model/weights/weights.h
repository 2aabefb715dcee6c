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
#include "common/base/json/json.h"
#include "common/base/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_WEIGHTS_MAX_HEADER = 16 << 20, /* bytes of the header of a safetensors file */
  CLV_WEIGHTS_MAX_TENSORS = 65536,
  CLV_WEIGHTS_MAX_NAME = 512, /* bytes of the name of a tensor */
  CLV_CHECKPOINT_MAX_STAGES = 999,
  CLV_CHECKPOINT_MAX_FILES = 4096,
  CLV_CHECKPOINT_MAX_NAME = 128,   /* bytes of the name of a file in a manifest */
  CLV_CHECKPOINT_MAX_PLACE = 2048, /* bytes of the identity of a worker that keeps a file */
};

/* A pair of strings, for metadata and for the trainer's state. */
typedef struct clv_kv {
  const char *key, *value;
} clv_kv;

/* ---- reading safetensors --------------------------------------------------------------------- */

typedef struct clv_weights_entry {
  const char *name;      /* valid UTF-8 without control characters */
  const char *type_name; /* name of the type in the file: "F32", "BOOL", ... */
  /* type of the values; 0: one that clv_dtype does not have (BOOL, I8, I16, U16, F8, ...) */
  clv_dtype dtype;
  clv_shape shape;
  size_t bytes;
  uint64_t at; /* offset of the tensor's data in the file */
  /* `data` and `at` are those of the parameter's average in the optimiser's file: see
   * clv_checkpoint_use_ema */
  bool is_ema;
  /* values, row-major, little-endian, possibly unaligned (copy, do not cast); NULL: they stay in
   * the file */
  const void *data;
} clv_weights_entry;

typedef struct clv_weights_file clv_weights_file;

/* Opens a file with O_NOFOLLOW and reads it into memory. max_bytes 0: no limit. CLV_NOT_FOUND: the
 * file does not exist; CLV_INVALID: it is no regular file; CLV_EXHAUSTED: it is too large;
 * CLV_DATA_LOSS: its header is wrong (holes, overlaps, sizes, duplicates, truncation);
 * CLV_UNIMPLEMENTED: a type smaller than a byte. Texts name the file and the tensor. */
clv_code clv_weights_open(const char *path, size_t max_bytes, clv_weights_file **ret,
                          clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, but error texts name the file `label`, not by its path. */
clv_code clv_weights_open_labelled(const char *path, const char *label, size_t max_bytes,
                                   clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, but leaves the data in the file, whose descriptor stays open. `data` of all
 * entries is NULL; clv_weights_read_range reads the data. */
clv_code clv_weights_open_lazy(const char *path, clv_weights_file **ret,
                               clv_err *err) CLV_USE_RESULT;
/* Copies n bytes of an entry from `offset` on, from memory or from the file. CLV_INVALID: the entry
 * has fewer bytes; CLV_DATA_LOSS: the file was changed after it was opened. */
clv_code clv_weights_read_range(const clv_weights_file *f, const clv_weights_entry *e,
                                uint64_t offset, void *dst, size_t n, clv_err *err) CLV_USE_RESULT;

/* Copies n values from index `first` on, in the type `wanted`: the type of the entry, or bf16 if
 * the entry is f32. CLV_INVALID: another type. */
clv_code clv_weights_read_range_as(const clv_weights_file *f, const clv_weights_entry *e,
                                   clv_dtype wanted, size_t first, void *dst, size_t n,
                                   clv_err *err) CLV_USE_RESULT;

/* As clv_weights_open, for the contents of a file in the caller's memory, which must outlive the
 * result. Error texts name it `label`. */
clv_code clv_weights_open_memory(const void *data, size_t len, const char *label,
                                 clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
void clv_weights_close(clv_weights_file *f); /* takes NULL */
void clv_weights_closep(clv_weights_file **f);

size_t clv_weights_n_entries(const clv_weights_file *f);
/* entries of the file, [clv_weights_n_entries], sorted by name */
const clv_weights_entry *clv_weights_entries(const clv_weights_file *f);
/* Returns the entry named `name`; NULL: the file has none. */
const clv_weights_entry *clv_weights_find_entry(const clv_weights_file *f, const char *name);
const char *clv_weights_find_metadata(const clv_weights_file *f, const char *key);
/* name of the file in error texts: its path or label */
const char *clv_weights_name_for_errors(const clv_weights_file *f);

uint64_t clv_weights_file_bytes(const clv_weights_file *f); /* size of the complete file in bytes */

/* Returns the SHA-256 of all bytes of the file, as they were read. */
const clv_sha256 *clv_weights_digest(const clv_weights_file *f);

/* ---- matching a model ------------------------------------------------------------------------ */

typedef struct clv_weights_want {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  /* the file may lack this tensor, whose ret_found is then NULL or CLV_WEIGHTS_NONE */
  bool is_optional;
} clv_weights_want;

enum {
  CLV_WEIGHTS_ALLOW_UNEXPECTED = 1u << 0, /* accept tensors in the file that are not wanted */
  /* accept a file that lacks counts, whose ret_found is then NULL */
  CLV_WEIGHTS_ALLOW_NO_COUNTS = 1u << 1,
  /* Accept f32 in the file where bf16 is wanted: clv_weights_read_range_as rounds the values. */
  CLV_WEIGHTS_ALLOW_NARROWING = 1u << 2,
};

/* True for the type and shape of a count, such as batchnorm's num_batches_tracked. A count that a
 * file lacks is 0, as in PyTorch. */
bool clv_weights_is_batch_counter(clv_dtype dtype, const clv_shape *shape);

/* Finds every wanted tensor: ret_found[i] belongs to want[i]. CLV_INVALID: a name is missing or
 * unexpected (the text lists the first few of both, with a "did you mean"), or a type or shape
 * differs (the text names tensor, wanted and found); ret_found is then unchanged. */
clv_code clv_weights_match_tensors(const clv_weights_file *f, const clv_weights_want *want,
                                   size_t n, unsigned flags, const clv_weights_entry **ret_found,
                                   clv_err *err) CLV_USE_RESULT;

/* Checks that all tensors of the file have names in known[n]. CLV_INVALID: the text lists the first
 * few other names, and the known name most similar to the first of them. Does not compare types and
 * shapes. */
clv_code clv_weights_check_no_extra(const clv_weights_file *f, const clv_weights_want *known,
                                    size_t n, clv_err *err) CLV_USE_RESULT;

/* ---- folders of pretrained weights ----------------------------------------------------------- */

/* A folder as save_pretrained of transformers writes it: model.safetensors, or the files that
 * model.safetensors.index.json names. Tensors are read one at a time, so that a node loads only its
 * own. f16 and bf16 are converted to f32, and f16 and f32 to bf16, if that type is wanted. A file
 * is opened when the first of its tensors is read, and its descriptor stays open. */
typedef struct clv_weights_folder clv_weights_folder;

#define CLV_WEIGHTS_NONE SIZE_MAX

/* Callback with which the caller checks files, such as their digests. The folder calls check_file()
 * once for each file, before it uses the file's contents. check_file() may read the descriptor with
 * pread, and must not close it. */
typedef struct clv_weights_guard {
  /* called for each file before it is read; NULL: files are not checked */
  clv_code (*check_file)(void *user, const char *name, int fd, clv_err *err);
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

/* Returns the name of file i of the folder; NULL behind the last file. If the folder has an index,
 * the index is file 0. */
const char *clv_weights_folder_file_name(const clv_weights_folder *f, size_t i);

/* True for the name of a tensor that programs compute, although old files contain it: positions,
 * masks, angles. */
bool clv_weights_is_derived(const char *name);
/* True if `name` is one of fresh[n], or begins with one of them and a dot ("classifier" matches
 * "classifier.weight"). Parameters with such names are initialised, not loaded. */
bool clv_weights_is_newly_initialised(const char *name, const char *const *fresh, size_t n);

/* Finds each wanted tensor in the folder: ret_found[i] is the index of want[i]. CLV_WEIGHTS_NONE:
 * the tensor's name is in fresh[n_fresh], or the folder lacks a tensor that is optional or a count.
 * Finds a name as it is, with or without the prefix of a base model, or with gamma and beta for a
 * norm. CLV_INVALID: the text lists the missing tensors, or names two that could both be meant.
 * Opens no safetensors file of a folder with an index. */
clv_code clv_weights_folder_match_tensors(const clv_weights_folder *f, const clv_weights_want *want,
                                          size_t n, const char *const *fresh, size_t n_fresh,
                                          size_t *ret_found, clv_err *err) CLV_USE_RESULT;

/* Appends the names of the folder's tensors that match none of want[n] and are not derived
 * (clv_weights_is_derived): "'a', 'b' and 4 more". *ret_n: their number. */
clv_code clv_weights_folder_list_unmatched(const clv_weights_folder *f,
                                           const clv_weights_want *want, size_t n, clv_bytes *out,
                                           size_t *ret_n, clv_err *err) CLV_USE_RESULT;

/* Opens the file of tensor i, and checks that the tensor can be read as `want`: the shapes are
 * equal except for leading extents of 1, and the type can be converted. */
clv_code clv_weights_folder_check_tensor(clv_weights_folder *f, size_t i,
                                         const clv_weights_want *want, clv_err *err) CLV_USE_RESULT;
/* As clv_weights_folder_check_tensor, and reads all values of tensor i to dst, which has the size
 * of `want`. CLV_DATA_LOSS: the file was changed after it was opened. */
clv_code clv_weights_folder_read_tensor(clv_weights_folder *f, size_t i,
                                        const clv_weights_want *want, void *dst,
                                        clv_err *err) CLV_USE_RESULT;
/* As clv_weights_folder_read_tensor, but reads n values from index `first` on. CLV_INVALID: the
 * tensor has fewer values. */
clv_code clv_weights_folder_read_tensor_range(clv_weights_folder *f, size_t i,
                                              const clv_weights_want *want, size_t first, size_t n,
                                              void *dst, clv_err *err) CLV_USE_RESULT;

/* ---- writing safetensors --------------------------------------------------------------------- */

typedef struct clv_weights_tensor {
  const char *name;
  clv_dtype dtype;
  clv_shape shape;
  const void *data; /* values of the tensor, row-major, caller-owned */
} clv_weights_tensor;

/* Makes the bytes of a file with these tensors: a header padded to 8 bytes, tensors by descending
 * element size and then by name, and `__metadata__` {"format":"pt"} plus meta [n_meta]. The bytes
 * do not depend on the order of `tensors`. CLV_INVALID: a bad or repeated name, or two empty
 * tensors at one offset (the reader refuses those too); CLV_EXHAUSTED: over the limits above. */
clv_code clv_weights_encode(const clv_weights_tensor *tensors, size_t n, const clv_kv *meta,
                            size_t n_meta, clv_bytes *ret, clv_err *err) CLV_USE_RESULT;

/* Writer of a file whose data arrive in parts. Call clv_weights_writer_begin,
 * clv_weights_writer_put for all data (tensors in any order, each from its begin to its end), then
 * clv_weights_writer_finish. Tensor number i is tensors[i], whose `data` is not read. The file is
 * PATH.tmp until clv_weights_writer_finish has made it durable; clv_weights_writer_free before that
 * deletes it. Errors are those of clv_weights_write_file; CLV_PRECONDITION: data of a tensor are
 * missing. */
typedef struct clv_weights_writer clv_weights_writer;
clv_code clv_weights_writer_begin(const char *path, const clv_weights_tensor *tensors, size_t n,
                                  const clv_kv *meta, size_t n_meta, clv_weights_writer **ret,
                                  clv_err *err) CLV_USE_RESULT;
/* Gives the file the mode 0600 in place of 0644. Call right after clv_weights_writer_begin. */
clv_code clv_weights_writer_make_private(clv_weights_writer *w, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_writer_put(clv_weights_writer *w, size_t i, uint64_t offset, const void *data,
                                size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_writer_finish(clv_weights_writer *w, clv_sha256 *ret_digest,
                                   uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;
/* The two halves of clv_weights_writer_finish. clv_weights_writer_sync makes the data durable and
 * reads them back for their digest; CLV_CANCELLED: cancel_hook->should_stop() returned true;
 * cancel_hook NULL: never. clv_weights_writer_publish gives the file its name. If one of these
 * functions fails because of the disk, errno says why. */
clv_code clv_weights_writer_sync(clv_weights_writer *w, const clv_cancel_hook *cancel_hook,
                                 clv_sha256 *ret_digest, clv_err *err) CLV_USE_RESULT;
clv_code clv_weights_writer_publish(clv_weights_writer *w, uint64_t *ret_bytes,
                                    clv_err *err) CLV_USE_RESULT;
void clv_weights_writer_free(clv_weights_writer *w); /* takes NULL; keeps errno */
void clv_weights_writer_freep(clv_weights_writer **w);

/* Computes the size of the file that clv_weights_write_file would write without metadata. */
clv_code clv_weights_file_size(const clv_weights_tensor *tensors, size_t n, uint64_t *ret_bytes,
                               clv_err *err) CLV_USE_RESULT;

/* Writes a file durably: PATH.tmp, fsync, rename, fsync of the folder. Does not copy the data in
 * memory. *ret_digest (may be NULL): the file's SHA-256; *ret_bytes (may be NULL): its size. */
clv_code clv_weights_write_file(const char *path, const clv_weights_tensor *tensors, size_t n,
                                const clv_kv *meta, size_t n_meta, clv_sha256 *ret_digest,
                                uint64_t *ret_bytes, clv_err *err) CLV_USE_RESULT;

/* ---- the manifest of a checkpoint ------------------------------------------------------------ */

typedef struct clv_manifest_file {
  char name[CLV_CHECKPOINT_MAX_NAME + 1]; /* file name [A-Za-z0-9._-]{1,128}, except "." and ".." */
  uint64_t bytes;
  clv_sha256 sha256;
  /* Set for a file of a stage that stays at the stage's worker; NULL: the file is in the folder.
   * keeper_identity: identity of the worker; kept_file_name: name of the file at the worker
   * (clv_is_file_name). */
  char *keeper_identity, *kept_file_name;
} clv_manifest_file;

typedef struct clv_manifest {
  uint64_t step;
  uint32_t stages;
  uint32_t protocol_version;
  char config_hash[65];     /* SHA-256 of the config in hex, or "" */
  clv_manifest_file *files; /* [n_files] sorted by name */
  size_t n_files;
} clv_manifest;

void clv_manifest_clear(clv_manifest *m); /* frees the contents and zeroes the struct */

/* Parses a manifest strictly. CLV_DATA_LOSS: unknown, missing or repeated keys, names with a path,
 * bad digests, numbers out of range, a `place` (identity of a worker) in the row of a file that is
 * not a stage's, two rows for one file at a worker; CLV_UNIMPLEMENTED: another version of the
 * format. */
clv_code clv_manifest_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
/* returns NULL if the manifest does not list the file */
const clv_manifest_file *clv_manifest_find(const clv_manifest *m, const char *name);
/* Finds the row of a stage's model or optimiser (is_optimizer). Returns NULL if there is none. */
const clv_manifest_file *clv_manifest_find_stage(const clv_manifest *m, uint32_t stage,
                                                 bool is_optimizer);
/* Returns true if all files of the checkpoint are in its folder. */
bool clv_manifest_has_all_files(const clv_manifest *m);
/* Replaces FOLDER/MANIFEST.json atomically and durably. */
clv_code clv_manifest_write(const char *folder, const clv_manifest *m, clv_err *err) CLV_USE_RESULT;

/* ---- ARTIFACT.json of pretrained weights ----------------------------------------------------- */

/* FOLDER/ARTIFACT.json lists the weight files of a folder with their lengths and digests. The
 * digest of ARTIFACT.json identifies the folder. Equal files give an equal text. */
#define CLV_ARTIFACT_NAME "ARTIFACT.json"

/* Makes the text of ARTIFACT.json for a folder, and its digest. Opens all files, compares them with
 * the index and hashes them. Errors are those of clv_weights_folder_open. */
clv_code clv_artifact_make(const char *folder, clv_bytes *ret_text, clv_sha256 *ret_digest,
                           clv_err *err) CLV_USE_RESULT;
/* Parses ARTIFACT.json, as strictly as clv_manifest_parse parses a manifest. Sets only the files of
 * *ret. */
clv_code clv_artifact_parse(const void *data, size_t len, const char *label, clv_manifest *ret,
                            clv_err *err) CLV_USE_RESULT;
/* Compares the digest of the open file `fd` with the digest that the list has for `name`.
 * CLV_DATA_LOSS: they differ, or the file is not listed. */
clv_code clv_artifact_check(const clv_manifest *m, const char *name, int fd,
                            clv_err *err) CLV_USE_RESULT;
/* Reads and parses FOLDER/ARTIFACT.json, which must not be a symbolic link. *ret_digest: the digest
 * of its bytes. */
clv_code clv_artifact_read(const char *folder, const char *label, clv_manifest *ret,
                           clv_sha256 *ret_digest, clv_err *err) CLV_USE_RESULT;

/* Makes the config.json for trained weights from that of the model they started from. Sets the type
 * to f32, the class to `architecture` (NULL: unchanged) and the labels to names [n_labels]. If
 * n_labels is 0, the labels are unchanged. If `names` is NULL, they are unchanged if the config has
 * n_labels of them; otherwise they become LABEL_0, LABEL_1 and so on. CLV_DATA_LOSS: `data` is no
 * JSON. */
clv_code clv_weights_make_hf_config(const void *data, size_t len, const char *label,
                                    const char *architecture, size_t n_labels,
                                    const char *const *names, clv_bytes *ret,
                                    clv_err *err) CLV_USE_RESULT;

/* ---- state of the trainer -------------------------------------------------------------------- */

/* trainer_state.json: what a resumed run needs in addition to weights and moments. */
typedef struct clv_trainer_state {
  /* position in the data: records_used records of epoch `epoch` have been used */
  uint64_t epoch, records_used;
  uint64_t global_step, max_steps; /* number of steps taken, and planned in all (0: unknown) */
  /* [n_extra] additional values with unique keys, such as the digest of the loss log */
  const clv_kv *extra;
  size_t n_extra;
} clv_trainer_state;

/* Extra key whose value lists the stages that the checkpoint has only in part, because the rest of
 * their weights is in a worker's artifact. */
#define CLV_STAGES_LEFT "stages_left_to_artifacts"

/* Returns the value of the extra key `key`; NULL: there is none. */
const char *clv_trainer_state_get_extra(const clv_trainer_state *s, const char *key);

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
/* takes NULL; leaves the files of an uncommitted checkpoint */
void clv_checkpoint_writer_free(clv_checkpoint_writer *w);
void clv_checkpoint_writer_freep(clv_checkpoint_writer **w);

/* Adds a stage (from 0): its parameters and buffers, and the tensors of its optimiser, named
 * "<param>.exp_avg" and so on. Both lists may be empty. Add each stage once, in any order. A
 * parameter name must be unique in the checkpoint. */
clv_code clv_checkpoint_add_stage(clv_checkpoint_writer *w, uint32_t stage,
                                  const clv_weights_tensor *model, size_t n_model,
                                  const clv_weights_tensor *optimizer, size_t n_optimizer,
                                  clv_err *err) CLV_USE_RESULT;
/* Start and end a file of a stage whose data arrive in parts: pass the data to *ret with
 * clv_weights_writer_put. For each stage, write first the model and then the optimiser.
 * clv_checkpoint_end_part frees `part`, also on failure. */
clv_code clv_checkpoint_begin_part(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                                   const clv_weights_tensor *tensors, size_t n,
                                   clv_weights_writer **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_end_part(clv_checkpoint_writer *w, clv_weights_writer *part,
                                 clv_err *err) CLV_USE_RESULT;
/* Adds to the manifest a file that stays at the stage's worker. For each stage, add or write first
 * the model and then the optimiser, as with clv_checkpoint_begin_part. tensors [n]: the tensors in
 * the file, without data. at: size and digest of the file, the worker's identity and the file's
 * name at the worker; the texts are copied. */
clv_code clv_checkpoint_add_kept(clv_checkpoint_writer *w, uint32_t stage, bool is_optimizer,
                                 const clv_weights_tensor *tensors, size_t n,
                                 const clv_manifest_file *at, clv_err *err) CLV_USE_RESULT;
/* Adds a file with this name and these contents, such as session.effective.yaml. */
clv_code clv_checkpoint_add_file(clv_checkpoint_writer *w, const char *name, const void *data,
                                 size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_add_state(clv_checkpoint_writer *w, const clv_trainer_state *state,
                                  clv_err *err) CLV_USE_RESULT;

/* Sets a function that clv_checkpoint_commit calls when the manifest is on the disk under a
 * temporary name, before it gets the name MANIFEST.json. If the function fails, there is no
 * checkpoint. */
void clv_checkpoint_writer_set_check(clv_checkpoint_writer *w, clv_file_check_fn *check,
                                     void *user);
/* Writes the index and the manifest. config_hash: hex SHA-256 or "". *ret_path (may be NULL): the
 * folder, which the caller frees. CLV_PRECONDITION: a stage or the trainer's state is missing. */
clv_code clv_checkpoint_commit(clv_checkpoint_writer *w, const char *config_hash,
                               uint32_t protocol_version, char **ret_path,
                               clv_err *err) CLV_USE_RESULT;

/* ---- reading a checkpoint -------------------------------------------------------------------- */

typedef struct clv_checkpoint clv_checkpoint;
#define CLV_CHECKPOINT_NONE UINT64_MAX /* stands for no step */

/* Opens a checkpoint folder: parses the manifest, and checks length and digest of every file in the
 * folder. Files that stay at workers are only listed. Functions that open one of those fail with
 * CLV_PRECONDITION, and the text says where it is. */
clv_code clv_checkpoint_load(const char *path, clv_checkpoint **ret, clv_err *err) CLV_USE_RESULT;

/* Opens the newest valid checkpoint of run_dir. Appends to `reasons` (may be NULL) one line for
 * each newer checkpoint that is not valid. CLV_NOT_FOUND: no checkpoint is valid; without
 * `reasons`, the text tells why. */
clv_code clv_checkpoint_load_latest(const char *run_dir, clv_checkpoint **ret, clv_bytes *reasons,
                                    clv_err *err) CLV_USE_RESULT;
/* As clv_checkpoint_load_latest, for checkpoints before step `before` (CLV_CHECKPOINT_NONE: all).
 */
clv_code clv_checkpoint_load_before(const char *run_dir, uint64_t before, clv_checkpoint **ret,
                                    clv_bytes *reasons, clv_err *err) CLV_USE_RESULT;
/* Opens the checkpoint of a step. CLV_NOT_FOUND: the text lists the steps that have one. */
clv_code clv_checkpoint_load_step(const char *run_dir, uint64_t step, clv_checkpoint **ret,
                                  clv_err *err) CLV_USE_RESULT;
/* Opens the newest checkpoint with a manifest for a look at its manifest, state and small files.
 * Does not read the weights, so these may be damaged. CLV_NOT_FOUND: there is none. */
clv_code clv_checkpoint_peek(const char *run_dir, clv_checkpoint **ret,
                             clv_err *err) CLV_USE_RESULT;
/* Reads only the manifest of the checkpoint of a step, whose files may be damaged or missing. */
clv_code clv_checkpoint_read_manifest(const char *run_dir, uint64_t step, clv_manifest *ret,
                                      clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_free(clv_checkpoint *c); /* takes NULL */
void clv_checkpoint_freep(clv_checkpoint **c);

const char *clv_checkpoint_path(const clv_checkpoint *c);
const clv_manifest *clv_checkpoint_manifest(const clv_checkpoint *c);
const clv_trainer_state *clv_checkpoint_state(const clv_checkpoint *c);

/* Makes later calls of clv_checkpoint_open_model and clv_checkpoint_open_model_lazy return averages
 * in place of the parameters that have one ("<param>.ema" in the optimiser's file of the stage).
 * Buffers and frozen parameters stay as they are. These calls then fail if the optimiser's file is
 * not in the folder. */
void clv_checkpoint_use_ema(clv_checkpoint *c);
bool clv_checkpoint_uses_ema(const clv_checkpoint *c);

/* Open the file of a stage (from 0): its parameters and buffers, or the tensors of its optimiser.
 * Read the complete file and compare its digest with the manifest again. */
clv_code clv_checkpoint_open_model(const clv_checkpoint *c, uint32_t stage, clv_weights_file **ret,
                                   clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer(const clv_checkpoint *c, uint32_t stage,
                                       clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_checkpoint_open_model and _optimizer, but leave the data in the file, as
 * clv_weights_open_lazy does. */
clv_code clv_checkpoint_open_model_lazy(const clv_checkpoint *c, uint32_t stage,
                                        clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_checkpoint_open_optimizer_lazy(const clv_checkpoint *c, uint32_t stage,
                                            clv_weights_file **ret, clv_err *err) CLV_USE_RESULT;
/* Reads a file that the manifest lists, and compares its digest. CLV_NOT_FOUND: the manifest does
 * not list it. */
clv_code clv_checkpoint_read_file(const clv_checkpoint *c, const char *name, clv_bytes *ret,
                                  clv_err *err) CLV_USE_RESULT;

/* Callback that is called before the folder of a checkpoint is deleted. It removes the files at
 * workers that the manifest lists. NULL: those files stay. */
typedef void clv_checkpoint_drop_fn(void *user, const clv_manifest *m);

/* Deletes all valid checkpoints except the `keep` newest ones, and unfinished checkpoints older
 * than the newest valid one. keep 0 counts as 1: the newest valid checkpoint is never deleted, and
 * if none is valid, nothing is deleted. Never deletes the checkpoint of step `protected_step`
 * (CLV_CHECKPOINT_NONE: no such step). In a checkpoint folder deletes only regular files. Calls
 * `drop` (may be NULL) with `user` for each deleted checkpoint that has a manifest. */
clv_code clv_checkpoint_prune(const char *run_dir, uint32_t keep, uint64_t protected_step,
                              clv_checkpoint_drop_fn *drop, void *user,
                              clv_err *err) CLV_USE_RESULT;

/* Deletes the checkpoint of a step, complete or not; does nothing if there is none. */
clv_code clv_checkpoint_remove(const char *run_dir, uint64_t step, clv_err *err) CLV_USE_RESULT;

/* True if run_dir has a checkpoint folder, complete or not. */
bool clv_checkpoint_has_any(const char *run_dir);
/* True if at least one checkpoint folder of run_dir has a manifest. That checkpoint may be damaged.
 */
bool clv_checkpoint_has_manifest(const char *run_dir);
/* Writes the steps of all checkpoint folders with a manifest, newest first, to ret_steps
 * [max_steps]. A checkpoint of these may be damaged. Returns the number of steps written, at most
 * `max_steps`. */
size_t clv_checkpoint_steps_with_manifest(const char *run_dir, uint64_t *ret_steps,
                                          size_t max_steps);
/* Lists the steps of all checkpoint folders, complete or not, newest first. The caller frees
 * *ret_steps. CLV_NOT_FOUND: run_dir does not exist. */
clv_code clv_checkpoint_list_steps(const char *run_dir, uint64_t **ret_steps, size_t *ret_n,
                                   clv_err *err) CLV_USE_RESULT;
/* Deletes all checkpoints of run_dir, for a run that starts again. Leaves other files. */
clv_code clv_checkpoint_remove_all(const char *run_dir, clv_err *err) CLV_USE_RESULT;

/* ---- tensors of a checkpoint by name (checkpoint_tensors.c) ---------------------------------- */

#define CLV_CHECKPOINT_NO_STAGE UINT32_MAX
#define CLV_STEP_NAME "step" /* the tensor of an optimiser's file that counts its steps */

/* Finds the stage whose model file has each of names[n], by the index of the checkpoint.
 * CLV_CHECKPOINT_NO_STAGE: no file has it. */
clv_code clv_checkpoint_find_stages(const clv_checkpoint *c, const char *const *names, size_t n,
                                    uint32_t *ret_stages, clv_err *err) CLV_USE_RESULT;

/* A tensor, with its file and the stage of that file in the checkpoint. */
typedef struct clv_checkpoint_tensor {
  const clv_weights_entry *entry;
  const clv_weights_file *file;
  uint32_t stage;
} clv_checkpoint_tensor;

/* The tensors of all model files or of all optimiser files of a checkpoint. */
typedef struct clv_checkpoint_tensors {
  clv_weights_file **files;       /* [n_files] one for each stage; their data stay on the disk */
  clv_checkpoint_tensor *tensors; /* [n] sorted by name, without CLV_STEP_NAME of optimisers */
  size_t n;
  uint32_t n_files;
} clv_checkpoint_tensors;

/* Opens the files, and compares their digests with the manifest. CLV_DATA_LOSS: a file is damaged,
 * or two files have a tensor of one name. Free *ret with clv_checkpoint_tensors_close. */
clv_code clv_checkpoint_open_tensors(const clv_checkpoint *c, bool is_optimizer,
                                     clv_checkpoint_tensors *ret, clv_err *err) CLV_USE_RESULT;
void clv_checkpoint_tensors_close(clv_checkpoint_tensors *t); /* frees the contents and zeroes *t */
/* returns NULL if no file has the tensor */
const clv_checkpoint_tensor *clv_checkpoint_tensors_find(const clv_checkpoint_tensors *t,
                                                         const char *name);
/* Reads the number of steps that the optimiser of a stage had taken. CLV_DATA_LOSS: the stage's
 * file has none, as that of a stage without learning parameters. */
clv_code clv_checkpoint_tensors_read_step(const clv_checkpoint_tensors *t, uint32_t stage,
                                          int64_t *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the record of a run --------------------------------------------------------------------- */

/* RUN/run.json records a run and its attempts: the first start, and each start that resumed the
 * run. */

enum {
  CLV_RECORD_MAX_BYTES = 1 << 20,
  CLV_RECORD_MAX_ATTEMPTS = 64, /* attempts listed; older attempts are only counted */
  CLV_RECORD_MAX_CHECKPOINTS = 32,
  CLV_RECORD_NAME_BYTES = 65,
  CLV_RECORD_LOOK_BYTES = 96,
  CLV_RECORD_PATH_BYTES = 1025,
};

typedef enum clv_run_status {
  CLV_RUN_RUNNING, /* the attempt runs, or its process died without writing a status */
  CLV_RUN_FINISHED,
  CLV_RUN_FAILED,
  CLV_RUN_INTERRUPTED,
  CLV_RUN_STOPPED,   /* stopped by the command `stop` */
  CLV_RUN_RECOVERED, /* a worker was lost, and the process has begun another attempt */
  CLV_RUN_STATUSES
} clv_run_status;

typedef struct clv_run_attempt {
  clv_run_status status;
  uint64_t exit_code;          /* exit code of the process, once the attempt has ended */
  char text[CLV_ERR_TEXT];     /* why it failed or, while it runs, what it recovers from; or "" */
  uint64_t began_ms, ended_ms; /* milliseconds since 1970; ended_ms 0: not ended */
  char host[CLV_RECORD_NAME_BYTES];
  /* boot id of the host, needed because process ids repeat after a reboot */
  char boot_id[CLV_RECORD_NAME_BYTES];
  /* pid_start: start of the process in clock ticks since boot, as in /proc/PID/stat */
  uint64_t pid, pid_start;
  /* steps done at the attempt's start, at its last step, and planned in all; total_steps 0:
   * unknown */
  uint64_t from_step, step, total_steps;
  double loss, accuracy; /* loss and accuracy of the attempt's last step; NaN: unknown */
  /* result of `look`, which measures how much of the records an attacker recovers from sent
   * tensors; "": not run */
  char look_result[CLV_RECORD_LOOK_BYTES];
} clv_run_attempt;

typedef struct clv_run_best {
  /* evaluated data, "validation" or "test"; "": no evaluation */
  char evaluated_set[CLV_RECORD_NAME_BYTES];
  uint64_t step;
  double loss, accuracy;
} clv_run_best;

typedef struct clv_run_record {
  char name[CLV_RECORD_NAME_BYTES];
  char session_path[CLV_RECORD_PATH_BYTES];  /* path of the session file */
  char config_sha256[CLV_RECORD_NAME_BYTES]; /* SHA-256 of session.effective.yaml, in hex */
  char id[33];             /* id of the session at the workers, 32 hex digits; "": not stored */
  uint64_t newest_attempt; /* number of the newest attempt, from 1; `epoch` in run.json */
  clv_run_best best;
  uint64_t checkpoints[CLV_RECORD_MAX_CHECKPOINTS]; /* steps of the checkpoints, newest first */
  size_t n_checkpoints;
  uint64_t n_earlier;        /* number of attempts before those in `attempts` */
  clv_run_attempt *attempts; /* [n_attempts] oldest first */
  size_t n_attempts;
} clv_run_record;

void clv_run_record_clear(clv_run_record *r); /* frees the contents and zeroes the struct */

/* Appends an attempt, whose fields are 0 or NaN. If the record is full, drops the oldest attempt.
 */
clv_code clv_run_record_add_attempt(clv_run_record *r, clv_run_attempt **ret,
                                    clv_err *err) CLV_USE_RESULT;

/* Appends any text as a JSON string. Bytes that are not UTF-8 become '?', control characters become
 * spaces. */
void clv_run_record_append_text(clv_bytes *out, const char *text);

/* Makes the text of run.json. Strings are escaped and cleaned as by clv_run_record_append_text. */
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

enum { CLV_PEFT_NAME_BYTES = 256, CLV_PEFT_MAX_PATTERNS = 4096, CLV_PEFT_MAX_CONFIG = 4 << 20 };

/* Rank and alpha of one layer that differ from those of other layers (keys rank_pattern and
 * alpha_pattern). */
typedef struct clv_peft_pattern {
  char name[CLV_PEFT_NAME_BYTES]; /* name of the layer, or the end of its name behind a dot */
  int64_t r;                      /* rank of the layer's adapter; 0: that of the other layers */
  double alpha;                   /* alpha of the layer's adapter; 0: that of the other layers */
} clv_peft_pattern;

typedef struct clv_peft {
  int64_t r;
  double alpha, dropout;
  bool rslora;
  clv_peft_pattern *patterns;
  size_t n_patterns, cap;
} clv_peft;

void clv_peft_clear(clv_peft *p); /* frees the patterns and zeroes *p */

/* Parses adapter_config.json. label: name of the file in messages. CLV_INVALID, with line and
 * column: the text is wrong, or asks for something that is not supported: DoRA, or any method other
 * than LoRA; biases; regular expressions as names. ignored: keys that are skipped although they are
 * not known; NULL: none. */
clv_code clv_peft_parse(const char *label, const char *text, size_t len,
                        const clv_json_keys *ignored, clv_peft *ret, clv_err *err) CLV_USE_RESULT;

/* A row of the table of keys of adapter_config.json, for documents. Texts are static. */
typedef struct clv_peft_key_doc {
  const char *name, *outcome; /* outcome: "done", "harmless", "refused unless off" and such */
  const char *word;           /* the only value that "refused unless" accepts; NULL: none */
  const char *reason;         /* reason for the outcome, or a remark; NULL: none */
} clv_peft_key_doc;
/* Returns false if the table has fewer than i + 1 rows. */
bool clv_peft_describe_key(size_t i, clv_peft_key_doc *ret);

/* Returns the factor on the output of B of layer `layer`: alpha / r, or alpha / sqrt(r) with
 * rslora. *ret_r: rank of that layer. */
double clv_peft_scale(const clv_peft *p, const char *layer, int64_t *ret_r);

/* Stores rank and alpha of layer `layer`. r 0, alpha 0: leaves that value as it is. */
clv_code clv_peft_set_layer(clv_peft *p, const char *layer, int64_t r, double alpha,
                            clv_err *err) CLV_USE_RESULT;

/* Appends adapter_config.json. base: name of the base model; NULL: not given. targets: [n_targets]
 * layers with adapters; saved: [n_saved] modules that were trained completely. */
void clv_peft_write(const clv_peft *p, const char *base, const char *const *targets,
                    size_t n_targets, const char *const *saved, size_t n_saved, clv_bytes *out);

#ifdef __cplusplus
}
#endif
#endif
