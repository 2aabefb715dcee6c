/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the loading of a run folder with one checkpoint. The first byte of the input chooses the
 * fault of the manifest, if any. Four files follow (the trainer's state, a stage's model and
 * optimiser, the index), each after its length in two bytes. If the checkpoint is accepted, its
 * files must be as the manifest says.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 4, STEP = 7 };
typedef struct part {
  const uint8_t *data;
  size_t len;
} part;

enum fault {
  NO_FAULT,
  LACKS_FILE,
  OTHER_SIZE,
  OTHER_DIGEST,
  OTHER_STEP,
  IS_LINK,
  NO_FILE,
  NO_MANIFEST,
  RAW,
  FAULTS
};

static const char *const names[FILES] = {CLV_STATE_NAME, "model-00001-of-00001.safetensors",
                                         "optimizer-00001-of-00001.safetensors", CLV_INDEX_NAME};
static char run[] = "/dev/shm/cleave-fuzz-XXXXXX", folder[64];

static void remove_run_folder(void) {
  clv_err ignored;
  (void)!clv_checkpoint_remove_all(run, &ignored);
  rmdir(run);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  NEVER(!mkdtemp(run));
  snprintf(folder, sizeof folder, "%s/checkpoint-%d", run, STEP);
  return atexit(remove_run_folder);
}

static void put_file(const char *name, const void *data, size_t len) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  unlink(path);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  NEVER(fd < 0 || write(fd, data, len) != (ssize_t)len);
  close(fd);
}

static void put_symbolic_link(const char *name) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  unlink(path);
  NEVER(symlink("/dev/zero", path) != 0);
}

/* Writes a manifest of the files with this fault. file_index: index of the file whose entry is
 * wrong. */
static void put_manifest(const part *file, enum fault fault, unsigned file_index) {
  clv_manifest_file files[FILES + 1] = {0};
  clv_manifest m = {.step = fault == OTHER_STEP ? STEP + 1 : STEP, .stages = 1, .files = files};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  for (unsigned i = 0; i < FILES; i++) {
    clv_manifest_file *f = &files[m.n_files];
    if (fault == LACKS_FILE && i == file_index) continue;
    snprintf(f->name, sizeof f->name, "%s", names[i]);
    f->bytes = file[i].len + (fault == OTHER_SIZE && i == file_index);
    NEVER(clv_sha256_of(file[i].data, file[i].len, &f->sha256, NULL) != CLV_OK);
    f->sha256.bytes[0] ^= fault == OTHER_DIGEST && i == file_index;
    m.n_files++;
  }
  NEVER(clv_manifest_make_text(&m, &text, NULL) != CLV_OK);
  put_file(CLV_MANIFEST_NAME, text.data, text.len);
}

/* Reads the first bytes of each tensor from the disk. */
static void read_lazily(const clv_weights_file *f) {
  uint8_t bytes[8];
  clv_err err;
  for (size_t i = 0; i < clv_weights_n_entries(f); i++) {
    const clv_weights_entry *e = &clv_weights_entries(f)[i];
    NEVER(clv_weights_read_range(f, e, 0, bytes, CLV_MIN(e->bytes, sizeof bytes), &err) != CLV_OK);
  }
}

/* Opens the model and the optimiser so that each tensor is read only when it is needed. Then opens
 * the model with the averages (EMA) in place of the weights. */
static void open_lazily(clv_checkpoint *c) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL, *averages = NULL;
  clv_err err;
  if (clv_checkpoint_open_model_lazy(c, 0, &model, &err) == CLV_OK) read_lazily(model);
  if (clv_checkpoint_open_optimizer_lazy(c, 0, &optimizer, &err) == CLV_OK) read_lazily(optimizer);
  clv_checkpoint_use_ema(c);
  NEVER(!clv_checkpoint_uses_ema(c));
  clv_code code = clv_checkpoint_open_model(c, 0, &averages, &err);
  NEVER(code == CLV_OK && (!model || !optimizer));
}

/* Asserts that the checkpoint is found by its step number, and that no checkpoint is found by
 * another number. */
static void find_checkpoint(bool is_valid) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL, *state = NULL, *none = NULL;
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  CLV_AUTO(clv_freep) uint64_t *steps = NULL;
  uint64_t with_manifest[2];
  size_t n;
  clv_err err;
  NEVER((clv_checkpoint_load_step(run, STEP, &c, &err) == CLV_OK) != is_valid);
  NEVER(clv_checkpoint_load_step(run, STEP + 1, &none, &err) != CLV_NOT_FOUND ||
        !strstr(err.text, "is one of step 7"));
  NEVER(clv_checkpoint_list_steps(run, &steps, &n, &err) != CLV_OK || n != 1 || steps[0] != STEP);
  n = clv_checkpoint_steps_with_manifest(run, with_manifest, CLV_COUNT(with_manifest));
  NEVER(n > 1 || n != clv_checkpoint_has_manifest(run));
  NEVER(is_valid && clv_checkpoint_peek(run, &state, &err) != CLV_OK);
  NEVER(is_valid && clv_checkpoint_read_manifest(run, STEP, &m, &err) != CLV_OK);
}

static void read_checkpoint_files(clv_checkpoint *c) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *model = NULL, *optimizer = NULL, *none = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes index = {0};
  clv_err err;
  NEVER(strcmp(clv_checkpoint_path(c), folder) != 0 || clv_checkpoint_manifest(c)->step != STEP);
  (void)!clv_checkpoint_open_model(c, 0, &model, &err);
  (void)!clv_checkpoint_open_optimizer(c, 0, &optimizer, &err);
  NEVER(clv_checkpoint_open_model(c, 1, &none, &err) == CLV_OK);
  NEVER(clv_checkpoint_read_file(c, CLV_INDEX_NAME, &index, &err) != CLV_OK ||
        clv_checkpoint_read_file(c, "../other", &index, &err) == CLV_OK);
  (void)clv_trainer_state_get_extra(clv_checkpoint_state(c), "loss_log");
  open_lazily(c);
}

static void write_faulty_checkpoint(const part *file, enum fault fault, unsigned file_index) {
  NEVER(mkdir(folder, 0700) != 0);
  for (unsigned i = 0; i < FILES; i++)
    if (fault != NO_FILE || i != file_index) put_file(names[i], file[i].data, file[i].len);
  if (fault == RAW)
    put_file(CLV_MANIFEST_NAME, file[0].data, file[0].len);
  else if (fault != NO_MANIFEST)
    put_manifest(file, fault, file_index);
  if (fault == IS_LINK) put_symbolic_link(file_index ? names[file_index] : CLV_MANIFEST_NAME);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes reasons = {0};
  part file[FILES] = {0};
  clv_err err = {0};
  if (!size) return 0;
  enum fault fault = data[0] % FAULTS;
  unsigned file_index = data[0] / FAULTS % FILES;
  data++, size--;
  for (int i = 0; i < FILES; i++) {
    size_t n = size < 2 ? 0 : CLV_MIN(data[0] | (size_t)data[1] << 8, size - 2);
    file[i] = (part){data + CLV_MIN(size, (size_t)2), n};
    data += CLV_MIN(size, 2 + n);
    size -= CLV_MIN(size, 2 + n);
  }
  write_faulty_checkpoint(file, fault, file_index);
  clv_code code = clv_checkpoint_load_latest(run, &c, &reasons, &err);
  NEVER((code == CLV_OK) != (c != NULL) || (code != CLV_OK && (!err.text[0] || !reasons.len)));
  find_checkpoint(c != NULL);
  if (c) read_checkpoint_files(c);
  NEVER(c && fault != NO_FAULT && fault != RAW);
  NEVER(clv_checkpoint_prune(run, 1, CLV_CHECKPOINT_NONE, NULL, NULL, &err) != CLV_OK);
  NEVER(!clv_checkpoint_has_any(run));
  NEVER(clv_checkpoint_remove(run, STEP, &err) != CLV_OK);
  NEVER(clv_checkpoint_has_any(run) && fault != IS_LINK);
  NEVER(clv_checkpoint_remove_all(run, &err) != CLV_OK);
  return 0;
}
