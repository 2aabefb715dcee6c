/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "common/models/models.h"
#include "master/plan/plan.h"

static clv_code floats(const clv_number_list *from, float **ret, clv_err *err) {
  CLV_TRY(clv_alloc(from->n, sizeof **ret, ret, err));
  for (size_t i = 0; i < from->n; i++) (*ret)[i] = (float)from->items[i];
  return CLV_OK;
}

static clv_image_options image_options(const clv_data_config *d) {
  static const clv_crop_kind crops[] = {[CLV_TRAIN_CROP_CENTER] = CLV_CROP_CENTER,
                                        [CLV_TRAIN_CROP_RANDOM] = CLV_CROP_RANDOM,
                                        [CLV_TRAIN_CROP_RANDOM_RESIZED] = CLV_CROP_RANDOM_RESIZED};
  return (clv_image_options){.channels = (uint32_t)d->images.channels,
                             .resize = (uint32_t)d->images.resize,
                             .crop = (uint32_t)d->images.crop,
                             .train_crop = crops[d->images.train_crop],
                             .pad = (uint32_t)d->images.pad,
                             .area_low = d->images.area.items[0],
                             .area_high = d->images.area.items[1],
                             .ratio_low = d->images.ratio.items[0],
                             .ratio_high = d->images.ratio.items[1],
                             .flip = d->images.flip,
                             .max_pixels = d->images.max_pixels,
                             .threads = (uint32_t)d->threads};
}

/* unlabelled: labels are not looked for. */
static clv_code open_one(const clv_session_config *c, const clv_text_list *files, uint64_t limit,
                         bool unlabelled, clv_config_pos pos, clv_dataset **ret, clv_err *err) {
  static const clv_file_format formats[] = {[CLV_DATA_IDX] = CLV_FORMAT_IDX,
                                            [CLV_DATA_NPY] = CLV_FORMAT_NPY,
                                            [CLV_DATA_IMAGES] = CLV_FORMAT_IMAGES};
  CLV_AUTO(clv_freep) float *mean = NULL;
  CLV_AUTO(clv_freep) float *std = NULL;
  clv_err why;
  bool classes = clv_loss_has_labels(clv_loss_name(c->loss.kind));
  CLV_TRY(floats(&c->data.mean, &mean, err));
  CLV_TRY(floats(&c->data.std, &std, err));
  clv_dataset_options o = {.format = formats[c->data.format],
                           .inputs_path = files->items[0],
                           .labels_path = files->n > 1 && !unlabelled ? files->items[1] : NULL,
                           .unlabelled = unlabelled,
                           .limit = limit,
                           .scale = (float)c->data.scale,
                           .mean = mean,
                           .std = std,
                           .n_mean = c->data.mean.n,
                           .n_std = c->data.std.n,
                           .flatten = c->data.flatten,
                           .tokens = clv_model_takes_tokens(c),
                           .images = image_options(&c->data),
                           .labels = classes ? CLV_LABEL_CLASS : CLV_LABEL_FLOAT};
  clv_code code = clv_dataset_open(&o, ret, &why);
  if (code == CLV_OK) return CLV_OK;
  clv_session_fail_at(c, pos, err, "%s", why.text);
  if (err) err->code = CLV_DATA_LOSS; /* exit code 7: the data, not the session file's form */
  return CLV_DATA_LOSS;
}

/* The end of a folder of images would be its last classes. */
static clv_split_kind split_of(const clv_data_config *d) {
  return d->format == CLV_DATA_IMAGES ? CLV_SPLIT_SHUFFLED : CLV_SPLIT_LAST;
}

clv_code clv_run_data_open(const clv_session_config *c, bool need_train, clv_run_data *ret,
                           clv_err *err) {
  clv_run_data d = {0};
  clv_code code = CLV_OK;
  if (need_train || !c->data.test.n)
    code =
        open_one(c, &c->data.train, c->data.limit_train, false, c->data.train_pos, &d.train, err);
  if (code == CLV_OK && c->data.test.n)
    code = open_one(c, &c->data.test, c->data.limit_test, false, c->data.test_pos, &d.test, err);
  if (code == CLV_OK && d.train && d.test) code = clv_dataset_same_classes(d.train, d.test, err);
  if (code == CLV_OK && d.train)
    code = clv_subset_split(d.train, c->data.validation_fraction, split_of(&c->data), c->train.seed,
                            &d.train_rows, &d.validation_rows, err);
  if (code == CLV_OK && d.test) code = clv_subset_all(d.test, &d.test_rows, err);
  if (code != CLV_OK) {
    clv_run_data_done(&d);
    return code;
  }
  *ret = d;
  return CLV_OK;
}

clv_code clv_run_data_open_inputs(const clv_session_config *c, clv_run_data *ret, clv_err *err) {
  clv_run_data d = {0};
  CLV_TRY(open_one(c, &c->data.test, c->data.limit_test, true, c->data.test_pos, &d.test, err));
  clv_code code = clv_subset_all(d.test, &d.test_rows, err);
  if (code == CLV_OK)
    *ret = d;
  else
    clv_run_data_done(&d);
  return code;
}

static clv_code labels_fit(const clv_dataset *ds, const clv_blueprint *b, clv_config_pos pos,
                           clv_err *err) {
  int64_t low, high;
  const clv_graph *last = b->stages[b->n_stages - 1].graph;
  const clv_shape *out = &last->nodes[last->output].shape;
  if (!ds || !clv_dataset_label_range(ds, &low, &high) || out->rank < 2 || high < out->dim[1])
    return CLV_OK;
  return clv_session_fail_at(b->config, pos, err,
                             "labels go up to %lld, and the last layer has %lld outputs: it needs "
                             "%lld, one per class",
                             (long long)high, (long long)out->dim[1], (long long)high + 1);
}

clv_code clv_run_data_fits(const clv_run_data *d, const clv_blueprint *b, clv_err *err) {
  CLV_TRY(labels_fit(d->train, b, b->config->data.train_pos, err));
  return labels_fit(d->test, b, b->config->data.test_pos, err);
}

void clv_run_data_done(clv_run_data *d) {
  clv_dataset_free(d->train);
  clv_dataset_free(d->test);
  clv_subset_done(&d->train_rows);
  clv_subset_done(&d->validation_rows);
  clv_subset_done(&d->test_rows);
  *d = (clv_run_data){0};
}
