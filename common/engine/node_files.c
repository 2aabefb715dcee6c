/* SPDX-License-Identifier: Apache-2.0
 *
 * Saving a module's state to a file of the node, and loading it. A file is read completely and
 * checked against the module before any item is written. State on a device is transferred as work
 * of the module, after which the frame is handled a second time: by then a state to be saved is in
 * host memory, and a loaded state is on the device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/engine/node_int.h"

/* Bytes allowed beyond the size of the module's own file, so that a file of another module is
 * refused by its names, not by its size. */
enum { SLACK_BYTES = 64 << 10 };

typedef struct module_state {
  clv_state_item *items;    /* [n] items of the module's state */
  clv_weights_tensor *list; /* [n] views of `items`, or of `copies` */
  /* copies in host memory of items on a device that are to be saved; NULL: the items are in host
   * memory */
  clv_tensor *copies;
  uint32_t n;
} module_state;

/* Data kept between the first and the second handling of a frame for a module on a device. */
struct clv_node_file {
  const clv_packet *request;
  module_state s;
  /* file: the file to be loaded, NULL for a save; charged: bytes charged for the file */
  clv_weights_file *file;
  size_t charged;
};

static void module_state_clear(module_state *s) {
  clv_tensor_unref(s->copies);
  free(s->items);
  free(s->list);
}

/* Lists the items of a module's state that a file has: all but shared and withheld ones. */
static clv_code list_state_items(clv_module *m, clv_state_kind what, module_state *ret,
                                 clv_err *err) {
  uint32_t n_all = clv_module_state_count(m, what);
  CLV_TRY(clv_alloc(n_all, sizeof *ret->items, &ret->items, err));
  CLV_TRY(clv_alloc(n_all, sizeof *ret->list, &ret->list, err));
  for (uint32_t i = 0; i < n_all; i++) {
    clv_state_item *item = &ret->items[ret->n];
    (void)clv_module_state_item(m, what, i, item);
    if (item->is_shared || item->is_withheld) continue;
    ret->list[ret->n++] = (clv_weights_tensor){item->name, item->dtype, item->shape, item->data};
  }
  return CLV_OK;
}

/* Name of a parameter's average in a file, "<param>.ema". */
typedef char average_name[CLV_WIRE_NAME + sizeof CLV_EMA_SUFFIX];

/* Tensors that a file of state must or may have: one for each item of a module_state; then, if the
 * module keeps no averages, the averages that the file may have and the load ignores. */
typedef struct wanted_tensors {
  clv_weights_want *list; /* [n] tensors that the file must or may have */
  average_name *names;    /* [n] names of averages, to which entries of `list` point */
  size_t n;
} wanted_tensors;

static void wanted_tensors_clear(wanted_tensors *w) {
  free(w->list);
  free(w->names);
}

/* Adds the average of a parameter as a tensor that the file may lack. */
static void add_average(wanted_tensors *w, const clv_state_item *param) {
  char *name = w->names[w->n];
  snprintf(name, sizeof *w->names, "%s" CLV_EMA_SUFFIX, param->name);
  w->list[w->n++] = (clv_weights_want){name, param->dtype, param->shape, true};
}

/* Lists the tensors of a file that is loaded as `part`. An average that the file lacks keeps the
 * values of its parameter, and a module that keeps no averages ignores those of the file. So a run
 * may begin or end averages between two checkpoints. */
static clv_code list_wanted(clv_module *m, clv_state_kind part, const module_state *s,
                            wanted_tensors *ret, clv_err *err) {
  uint32_t n_params = clv_module_state_count(m, CLV_STATE_EMA);
  clv_state_item param;
  CLV_TRY(clv_alloc((size_t)s->n + n_params, sizeof *ret->list, &ret->list, err));
  CLV_TRY(clv_alloc((size_t)s->n + n_params, sizeof *ret->names, &ret->names, err));
  for (uint32_t i = 0; i < s->n; i++) {
    const clv_state_item *item = &s->items[i];
    bool is_optional = part == CLV_STATE_OPTIMIZER && clv_optim_is_ema(item->name);
    if (part == CLV_STATE_EMA)
      add_average(ret, item);
    else
      ret->list[ret->n++] = (clv_weights_want){item->name, item->dtype, item->shape, is_optional};
  }
  bool keeps_ema = m->optim && clv_optim_ema(m->optim);
  for (uint32_t i = 0; part == CLV_STATE_OPTIMIZER && !keeps_ema && i < n_params; i++)
    if (clv_module_state_item(m, CLV_STATE_EMA, i, &param)) add_average(ret, &param);
  return CLV_OK;
}

/* Removes the items that the file lacks from s and from found [s->n]. */
static void remove_missing(module_state *s, const clv_weights_entry **found) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n; i++) {
    if (!found[i]) continue;
    s->items[n] = s->items[i];
    found[n++] = found[i];
  }
  s->n = n;
}

/* Finds, for each item of s, its entry in a file that is loaded as `part`. Removes averages from s
 * that the file lacks. */
static clv_code match_items(clv_module *m, module_state *s, clv_state_kind part,
                            const clv_weights_file *file, const clv_weights_entry ***ret,
                            clv_err *err) {
  CLV_AUTO(wanted_tensors_clear) wanted_tensors w = {0};
  unsigned flags = part == CLV_STATE_EMA ? CLV_WEIGHTS_ALLOW_UNEXPECTED : 0;
  CLV_TRY(list_wanted(m, part, s, &w, err));
  CLV_TRY(clv_alloc(w.n, sizeof **ret, ret, err));
  CLV_TRY(clv_weights_match_tensors(file, w.list, w.n, flags, *ret, err));
  remove_missing(s, *ret);
  if (s->n || part != CLV_STATE_EMA) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%.100s: the file has no average (NAME.ema) of a parameter of this module",
                  clv_weights_name_for_errors(file));
}

static void forget_saved_buffers(clv_session_node *n, const clv_frame *f) {
  if (f->state.part != CLV_STATE_OPTIMIZER) clv_contexts_note_state_written(n->contexts, f->module);
}

static clv_code write_items(clv_session_node *n, const clv_frame *f, module_state *s,
                            const clv_weights_file *file, clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  clv_state_kind written_kind = f->state.part == CLV_STATE_EMA ? CLV_STATE_WEIGHTS : f->state.part;
  CLV_TRY(match_items(n->modules[f->module], s, f->state.part, file, &found, err));
  forget_saved_buffers(n, f);
  for (uint32_t i = 0; i < s->n; i++)
    CLV_TRY(clv_module_state_set(n->modules[f->module], written_kind, s->items[i].name,
                                 s->items[i].dtype, &s->items[i].shape, found[i]->data, err));
  return CLV_OK;
}

/* Compares the digest of a file with that of a STATE_LOAD, before anything is written. A STATE_LOAD
 * whose digest is all zeros accepts any file. */
static clv_code check_digest(const clv_frame *f, const clv_weights_file *file, clv_err *err) {
  static const clv_sha256 no_digest;
  char found_hex[65], wanted_hex[65];
  if (memcmp(&f->state.file_sha256, &no_digest, sizeof no_digest) == 0 ||
      memcmp(&f->state.file_sha256, clv_weights_digest(file), sizeof no_digest) == 0)
    return CLV_OK;
  clv_sha256_hex(clv_weights_digest(file), found_hex);
  clv_sha256_hex(&f->state.file_sha256, wanted_hex);
  return clv_fail(
      err, CLV_DATA_LOSS,
      "file of state '%s' has the SHA-256 %s, not %s: it is another file, or was damaged "
      "on the worker's disk. Nothing was loaded",
      f->state.item_or_file_name, found_hex, wanted_hex);
}

/* Computes the largest possible size in bytes of a file that is loaded as `part`. CLV_STATE_EMA
 * reads averages from a file of optimiser state, which also has all moments. A file that is loaded
 * as CLV_STATE_OPTIMIZER may have averages that the module does not keep. */
static clv_code compute_max_file_size(clv_module *m, clv_state_kind part, const module_state *s,
                                      uint64_t *ret, clv_err *err) {
  CLV_AUTO(module_state_clear) module_state params = {0};
  uint64_t ema_bytes;
  CLV_TRY(clv_weights_file_size(s->list, s->n, ret, err));
  if (part == CLV_STATE_WEIGHTS) return CLV_OK;
  CLV_TRY(list_state_items(m, CLV_STATE_EMA, &params, err));
  CLV_TRY(clv_weights_file_size(params.list, params.n, &ema_bytes, err));
  ema_bytes += params.n * sizeof CLV_EMA_SUFFIX;
  *ret = part == CLV_STATE_EMA ? CLV_OPTIM_MAX_STATES * ema_bytes : *ret + ema_bytes;
  return CLV_OK;
}

/* Opens the file that a STATE_LOAD names. The caller closes it and discharges *ret_charged
 * bytes. */
static clv_code open_file(clv_session_node *n, const clv_frame *f, const module_state *s,
                          clv_weights_file **ret, size_t *ret_charged, clv_err *err) {
  const clv_state_files *files = &n->o.files;
  uint64_t bytes;
  CLV_TRY(compute_max_file_size(n->modules[f->module], f->state.part, s, &bytes, err));
  size_t most = (size_t)bytes + SLACK_BYTES;
  CLV_TRY(clv_pool_charge(n->o.pool, most, err));
  clv_code code = files->open(files->user, f->state.item_or_file_name, most, ret, err);
  if (code == CLV_OK) code = check_digest(f, *ret, err);
  if (code == CLV_OK)
    *ret_charged = most;
  else
    clv_pool_discharge(n->o.pool, most);
  return code;
}

static void report_file(const clv_weights_file *file, clv_frame *ret) {
  ret->state.file_bytes = clv_weights_file_bytes(file);
  ret->state.file_sha256 = *clv_weights_digest(file);
}

static clv_code load_file(clv_session_node *n, const clv_frame *f, module_state *s, clv_frame *ret,
                          clv_err *err) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *file = NULL;
  size_t charged;
  CLV_TRY(open_file(n, f, s, &file, &charged, err));
  clv_code code = write_items(n, f, s, file, err);
  if (code == CLV_OK) report_file(file, ret);
  clv_pool_discharge(n->o.pool, charged);
  return code;
}

/* Lets another thread write the state, or writes it here if the session has no memory for a copy.
 * *ret_kept: the file is answered later. */
static clv_code save_file(clv_session_node *n, clv_packet *p, module_state *s, clv_frame *ret,
                          bool *ret_kept, clv_err *err) {
  const clv_state_files *files = &n->o.files;
  CLV_TRY(clv_node_save_later(n, p, s->list, s->n, &s->copies, ret_kept, err));
  if (*ret_kept) return CLV_OK;
  /* frees the cores for other sessions while this thread waits for the disk */
  clv_share_release_cores(n->o.share);
  return files->save(files->user, p->frame.state.item_or_file_name, s->list, s->n,
                     &ret->state.file_sha256, &ret->state.file_bytes, err);
}

/* ---- modules on a device --------------------------------------------------------------------- */

void clv_node_drop_file(clv_session_node *n, const clv_packet *p) {
  struct clv_node_file *f = n->file;
  if (!f || (p && f->request != p)) return;
  if (f->file) clv_pool_discharge(n->o.pool, f->charged);
  clv_weights_closep(&f->file);
  module_state_clear(&f->s);
  free(f);
  n->file = NULL;
}

/* Allocates copies in host memory for the state to be saved. host: receives the address of each. */
static clv_code alloc_copies(clv_session_node *n, module_state *s, void **host, clv_err *err) {
  CLV_TRY(clv_node_alloc_copies(n, s->list, s->n, &s->copies, err));
  for (uint32_t i = 0; i < s->n; i++) host[i] = (void *)(uintptr_t)s->list[i].data;
  return CLV_OK;
}

/* Opens the file to be loaded into a module on a device. host: receives the address of each item's
 * data in the file. */
static clv_code open_source_file(clv_session_node *n, const clv_frame *f, struct clv_node_file *to,
                                 void **host, clv_err *err) {
  CLV_AUTO(clv_freep) const clv_weights_entry **found = NULL;
  CLV_TRY(open_file(n, f, &to->s, &to->file, &to->charged, err));
  CLV_TRY(match_items(n->modules[f->module], &to->s, f->state.part, to->file, &found, err));
  for (uint32_t i = 0; i < to->s.n; i++) host[i] = (void *)(uintptr_t)found[i]->data;
  forget_saved_buffers(n, f);
  return CLV_OK;
}

static void transfer_clear(clv_state_transfer *t) {
  free(t->items);
  free(t->host_data);
}

static clv_code start_transfer(clv_session_node *n, clv_module *m, clv_packet *p, clv_err *err) {
  CLV_AUTO(transfer_clear) clv_state_transfer t = {.request = p, .requeue_when_done = true};
  module_state *s = &n->file->s;
  t.is_write = p->frame.kind == CLV_STATE_LOAD;
  CLV_TRY(list_state_items(m, p->frame.state.part, s, err));
  CLV_TRY(clv_alloc(CLV_MAX(s->n, 1u), sizeof *t.items, &t.items, err));
  CLV_TRY(clv_alloc(CLV_MAX(s->n, 1u), sizeof *t.host_data, &t.host_data, err));
  CLV_TRY(t.is_write ? open_source_file(n, &p->frame, n->file, t.host_data, err)
                     : alloc_copies(n, s, t.host_data, err));
  t.n = s->n;
  if (s->n) memcpy(t.items, s->items, s->n * sizeof *t.items);
  CLV_TRY(clv_contexts_transfer_state(n->contexts, &t, err));
  t = (clv_state_transfer){0};
  return CLV_OK;
}

static clv_code begin_file(clv_session_node *n, clv_module *m, clv_packet *p, bool *ret_kept,
                           clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof *n->file, &n->file, err));
  n->file->request = p;
  clv_code code = start_transfer(n, m, p, err);
  *ret_kept = code == CLV_OK;
  if (code != CLV_OK) clv_node_drop_file(n, p);
  return code;
}

static clv_code finish_file(clv_session_node *n, clv_packet *p, clv_frame *ret, bool *ret_kept,
                            clv_err *err) {
  clv_code code = CLV_OK;
  if (n->file->file)
    report_file(n->file->file, ret);
  else
    code = save_file(n, p, &n->file->s, ret, ret_kept, err);
  clv_node_drop_file(n, p);
  return code;
}

/* ---- handling a frame ------------------------------------------------------------------------ */

static clv_code handle_on_host(clv_session_node *n, clv_module *m, clv_packet *p, clv_frame *ret,
                               bool *ret_kept, clv_err *err) {
  CLV_AUTO(module_state_clear) module_state s = {0};
  CLV_TRY(list_state_items(m, p->frame.state.part, &s, err));
  return p->frame.kind == CLV_STATE_LOAD ? load_file(n, &p->frame, &s, ret, err)
                                         : save_file(n, p, &s, ret, ret_kept, err);
}

clv_code clv_node_on_state_file(clv_session_node *n, clv_module *m, clv_packet *p, clv_frame *ret,
                                bool *ret_kept, clv_err *err) {
  const clv_state_files *files = &n->o.files;
  const clv_frame *f = &p->frame;
  if (!files->save)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "this worker has no files of state: its worker.yaml has no state_dir");
  ret->state.part = f->state.part;
  memcpy(ret->state.item_or_file_name, f->state.item_or_file_name,
         sizeof ret->state.item_or_file_name);
  clv_node_flush(n);
  /* frees the cores for other sessions while this thread waits for the disk */
  if (f->kind != CLV_STATE_SAVE) clv_share_release_cores(n->o.share);
  if (f->kind == CLV_STATE_REMOVE)
    return files->remove(files->user, f->state.item_or_file_name, err);
  if (n->file && n->file->request == p) return finish_file(n, p, ret, ret_kept, err);
  return m->o.backend->memory ? begin_file(n, m, p, ret_kept, err)
                              : handle_on_host(n, m, p, ret, ret_kept, err);
}
