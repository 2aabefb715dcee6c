/* SPDX-License-Identifier: Apache-2.0
 *
 * The files beside config.json that say how a model generates texts (generation_config.json) and
 * how pictures become its inputs (preprocessor_config.json). None of their keys changes the graph.
 * The numbers by which pictures are normalised are read, so that `plan` compares them with the
 * session. All other keys have rows that say why any value can be skipped, or which value is the
 * only one that can be skipped. A key without a row is refused, as in config.json.
 * deploy/CHECKPOINTS.md has tables that are made of these rows (test_hf_keys).
 */
#include <stdio.h>

#include "common/model/hf/config_int.h"

/* ---- readers of pictures --------------------------------------------------------------------- */

/* Reads null, a number for all channels, or a list of a number for each. */
static clv_code read_channels(hf_text *r, const hf_row *at, clv_err *err) {
  clv_hf_channels *to = (void *)((char *)r->target_struct + at->offset);
  clv_json_kind kind;
  size_t from = clv_hf_skip_to_value(r);
  bool more = true;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  if (kind == CLV_JSON_NUMERAL) {
    to->n = 1;
    return clv_json_read_real(&r->j, &to->at[0], err);
  }
  CLV_TRY(clv_hf_expect_kind(r, CLV_JSON_LIST, err));
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (to->n = 0;; to->n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, to->n, &more, err));
    if (!more) return CLV_OK;
    if (to->n == CLV_COUNT(to->at))
      return clv_json_fail(&r->j, from, err, "%s has more than %zu channels", r->key, to->n);
    CLV_TRY(clv_json_read_real(&r->j, &to->at[to->n], err));
  }
}

static clv_code read_bool_or_null(hf_text *r, const hf_row *at, clv_err *err) {
  return clv_json_skip_null(&r->j) ? CLV_OK : clv_hf_read_bool(r, at, err);
}

/* ---- tables of keys -------------------------------------------------------------------------- */

enum { MAX_FILE = 1 << 20 };

#define AT(member) offsetof(clv_hf_pictures, member)
#define COMPARED .reason = "plan says where data.normalize and data.scale say otherwise"
#define HARMLESS(REASON, KEYS) \
  { .key = KEYS, .read = clv_hf_skip, .reason = REASON }

static const hf_row generation_rows[] = {
    HARMLESS("nothing is generated", HF_GENERATION_KEYS
             " use_cache decoder_start_token_id chat_format forced_decoder_ids "
             "assistant_token_id user_token_id max_window_size transcription_tokens"),
    HARMLESS("config.json and the tokenizer say it", "pad_token_id bos_token_id eos_token_id"),
    HARMLESS("how a program runs or describes the model",
             "output_attentions output_hidden_states transformers_version _commit_hash "
             "trust_remote_code"),
};

static const hf_row preprocessor_rows[] = {
    {.key = "do_normalize", .read = read_bool_or_null, .offset = AT(is_normalized), COMPARED},
    {.key = "image_mean", .read = read_channels, .offset = AT(mean), COMPARED},
    {.key = "image_std", .read = read_channels, .offset = AT(std), COMPARED},
    {.key = "do_rescale", .read = read_bool_or_null, .offset = AT(is_scaled), COMPARED},
    {.key = "rescale_factor",
     .read = clv_hf_read_real_or_null,
     .offset = AT(factor),
     .low = 1e-30,
     .high = 1e30,
     COMPARED},
    HARMLESS("data.images says it; config.json says how large pictures are",
             "do_resize size resample default_to_square do_center_crop crop_size do_pad pad_size "
             "size_divisor crop_pct max_size"),
    HARMLESS("data.images gives the channels that config.json counts",
             "do_convert_rgb image_seq_length num_channels"),
    {.key = "do_flip_channel_order",
     .read = clv_hf_require_false,
     .reason = "channels are read in the order red, green, blue: swap those of the first "
               "convolution's weight, or of the records"},
    {.key = "do_grayscale",
     .read = clv_hf_require_false,
     .reason = "colours are not mixed: save the records with one channel"},
    {.key = "offset",
     .read = clv_hf_require_false,
     .reason = "nothing is subtracted after the scale: say it in data.normalize.mean"},
    HARMLESS("labels are the session's", "do_reduce_labels reduce_labels"),
    HARMLESS("words and boxes of documents are read by `cleave-master words`",
             "apply_ocr ocr_lang tesseract_config"),
    HARMLESS("how a program finds or runs the class",
             "image_processor_type feature_extractor_type processor_class _processor_class "
             "return_tensors data_format input_data_format device disable_grouping "
             "model_input_names transformers_version _valid_processor_keys valid_processor_keys"),
};

static const struct {
  const char *name;
  const hf_row *rows;
  size_t n;
} files[CLV_HF_OTHER_FILES] = {
    [CLV_HF_GENERATION] = {"generation_config.json", generation_rows, CLV_COUNT(generation_rows)},
    [CLV_HF_PREPROCESSOR] = {"preprocessor_config.json", preprocessor_rows,
                             CLV_COUNT(preprocessor_rows)}};

const char *clv_hf_other_file_name(clv_hf_other_file file) { return files[file].name; }

static hf_table make_table(clv_hf_other_file file) {
  return (hf_table){files[file].rows, files[file].n, 0, ""};
}

clv_code clv_hf_other_file_parse(clv_hf_other_file file, const char *label, const char *text,
                                 size_t len, const clv_json_keys *ignored, clv_hf_pictures *ret,
                                 clv_err *err) {
  clv_hf_pictures found = {
      .is_given = true, .is_normalized = true, .is_scaled = true, .factor = 1 / 255.0};
  hf_text r = {
      .j = {.label = label, .text = text, .len = len}, .ignored = ignored, .target_struct = &found};
  hf_table table = make_table(file);
  bool seen[HF_MAX_ROWS] = {0};
  CLV_TRY(clv_hf_read_object(&r, &table, seen, err));
  CLV_TRY(clv_json_end(&r.j, err));
  if (!found.is_scaled) found.factor = 1;
  found.is_normalized &= found.mean.n && found.std.n;
  if (ret) *ret = found;
  return CLV_OK;
}

static clv_code read_file(clv_hf_other_file file, const char *folder, const clv_json_keys *ignored,
                          clv_hf_pictures *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, text = {0};
  clv_bytes_printf(&path, "%s/%s", folder, files[file].name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_file_read(path.data, MAX_FILE, &text, err);
  if (code == CLV_NOT_FOUND) return CLV_OK;
  if (code != CLV_OK) return code;
  return clv_hf_other_file_parse(file, path.data, text.data ? text.data : "", text.len, ignored,
                                 ret, err);
}

clv_code clv_hf_check_other_files(const char *folder, const clv_json_keys *ignored, clv_err *err) {
  for (int f = 0; f < CLV_HF_OTHER_FILES; f++)
    CLV_TRY(read_file((clv_hf_other_file)f, folder, ignored, NULL, err));
  return CLV_OK;
}

clv_code clv_hf_pictures_read(const char *folder, const clv_json_keys *ignored,
                              clv_hf_pictures *ret, clv_err *err) {
  *ret = (clv_hf_pictures){0};
  return read_file(CLV_HF_PREPROCESSOR, folder, ignored, ret, err);
}

bool clv_hf_describe_other_key(clv_hf_other_file file, size_t i, clv_hf_key *ret) {
  hf_table table = make_table(file);
  return clv_hf_describe_row(&table, i, ret);
}
