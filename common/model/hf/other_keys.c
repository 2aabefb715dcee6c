/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of the files beside config.json: how a model generates texts (generation_config.json), and
 * how pictures become its inputs (preprocessor_config.json). None of their keys changes the graph.
 * `plan` compares the numbers that normalise pictures with the session. The rows of all other keys
 * say why any value can be skipped, or which value alone can. The parser refuses a key without a
 * row, as in config.json. test_hf_keys makes the tables of deploy/CHECKPOINTS.md from these rows.
 */
#include "common/model/hf/config_int.h"

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
    {.key = "do_normalize",
     .read = clv_hf_read_bool_or_null,
     .offset = AT(is_normalized),
     COMPARED},
    {.key = "image_mean", .read = clv_hf_read_channels, .offset = AT(mean), COMPARED},
    {.key = "image_std", .read = clv_hf_read_channels, .offset = AT(std), COMPARED},
    {.key = "do_rescale", .read = clv_hf_read_bool_or_null, .offset = AT(is_scaled), COMPARED},
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

hf_table clv_hf_other_table(clv_hf_other_file file) {
  return (hf_table){files[file].rows, files[file].n, 0, ""};
}

bool clv_hf_describe_other_key(clv_hf_other_file file, size_t i, clv_hf_key *ret) {
  hf_table table = clv_hf_other_table(file);
  return clv_hf_describe_row(&table, i, ret);
}
