/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks up in choices.def which kernel, library or layout is fastest for a shape class.
 *
 * A row CHOICE names a question, a shape class, an instruction set, a library's version and the
 * candidate that was fastest with these. A row PACE names an op, a shape class, an instruction set,
 * a processor and the op's time in bf16, in percent of its time in f32. Rows PACE are not part of
 * the digest, because they change no bit.
 */
#include <cpuid.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/choices_int.h"

typedef struct choice_row {
  cpu_question question;
  cpu_shape_class shape_class;
  const char *isa, *library;
  cpu_candidate candidate;
  const char *text; /* text of the row, from which the digest is computed */
} choice_row;

#define CHOICE(question, shape_class, isa, library, candidate) \
  {CPU_##question,                                             \
   CPU_##shape_class,                                          \
   #isa,                                                       \
   library,                                                    \
   CPU_##candidate,                                            \
   #question " " #shape_class " " #isa " " library " " #candidate "\n"},
#define PACE(op, shape_class, isa, processor, percent)
static const choice_row choices[] = {
#include "kernels/cpu/choices.def"
};
#undef CHOICE
#undef PACE

typedef struct bf16_time_row {
  clv_op op;
  cpu_shape_class shape_class;
  const char *isa, *processor;
  unsigned percent_of_f32;
} bf16_time_row;

#define CHOICE(question, shape_class, isa, library, candidate)
#define PACE(op, shape_class, isa, processor, percent) \
  {CLV_OP_##op, CPU_##shape_class, #isa, processor, percent},
static const bf16_time_row bf16_times[] = {
#include "kernels/cpu/choices.def"
};
#undef CHOICE
#undef PACE

/* ---- shape classes --------------------------------------------------------------------------- */

cpu_shape_class clv_cpu_class_of_conv(const clv_window *s, int64_t groups) {
  enum { FEW_CHANNELS_BELOW = 16, MAX_SMALL_IMAGE = 64, MAX_WINDOW = 3 };
  bool is_strided = s->stride[0] != 1 || s->stride[1] != 1;
  bool has_wide_window = s->kernel[0] > MAX_WINDOW || s->kernel[1] > MAX_WINDOW;
  if (groups > 1) return groups == s->c ? CPU_DEPTHWISE : CPU_GROUPED;
  if (s->c < FEW_CHANNELS_BELOW) return CPU_FEW_CHANNELS;
  if (s->dilation[0] != 1 || s->dilation[1] != 1) return CPU_DILATED;
  if (s->kernel[0] * s->kernel[1] == 1) return is_strided ? CPU_POINTWISE_STRIDED : CPU_POINTWISE;
  if (has_wide_window) return is_strided ? CPU_WIDE_WINDOW_STRIDED : CPU_WIDE_WINDOW;
  if (is_strided) return CPU_WINDOW_STRIDED;
  return s->oh * s->ow <= MAX_SMALL_IMAGE ? CPU_WINDOW_SMALL_IMAGE : CPU_WINDOW;
}

cpu_shape_class clv_cpu_class_of_linear(int64_t rows) {
  return rows < 256 ? CPU_FEW_ROWS : CPU_MANY_ROWS;
}

cpu_shape_class clv_cpu_class_of_attention(int64_t width) {
  return width < 32 ? CPU_NARROW : CPU_WIDE;
}

cpu_shape_class clv_cpu_class_of_lstm(int64_t batch, int64_t hidden) {
  if (batch < 4) return CPU_FEW_ROWS;
  return hidden < 128 ? CPU_NARROW : CPU_WIDE;
}

/* ---- rows of the table of choices ------------------------------------------------------------ */

/* Returns the next lower instruction set, whose rows of choices.def apply if `isa` has no rows;
 * NULL: there is no lower one. */
static const char *find_lower_isa(const char *isa) {
  static const char *const lower_isas[][2] = {
      {"avx512_core_amx_fp16", "avx512_core_amx"},
      {"avx512_core_amx", "avx512_core_bf16"},
      {"avx512_core_amx_refused", "avx512_core_bf16"},
      {"avx512_core_fp16", "avx512_core_bf16"},
      {"avx512_core_bf16", "avx512_core_vnni"},
      {"avx512_core_vnni", "avx512_core"},
      {"avx512_core", "avx2"},
      {"avx2_vnni_2", "avx2_vnni"},
      {"avx2_vnni", "avx2"},
  };
  for (size_t i = 0; i < CLV_COUNT(lower_isas); i++)
    if (strcmp(lower_isas[i][0], isa) == 0) return lower_isas[i][1];
  return NULL;
}

/* Returns the row of choices.def for an instruction set, or NULL. The rows of a question, class and
 * instruction set are in ascending order of the library's version. */
static const choice_row *find_row(cpu_question question, cpu_shape_class shape_class,
                                  const char *isa, const char *library) {
  const choice_row *newest_row = NULL;
  for (size_t i = 0; i < CLV_COUNT(choices); i++) {
    const choice_row *r = &choices[i];
    if (r->question != question || r->shape_class != shape_class || strcmp(r->isa, isa) != 0)
      continue;
    if (strcmp(r->library, library) == 0) return r;
    newest_row = r;
  }
  return newest_row;
}

cpu_candidate clv_cpu_choose_for(cpu_question question, cpu_shape_class shape_class,
                                 const char *isa, const char *library) {
  static const cpu_candidate default_candidates[CPU_QUESTIONS] = {
      [CPU_CONV_F32] = CPU_BLOCKS,       [CPU_CONV_BF16] = CPU_BLOCKS,
      [CPU_CONV_WEIGHT_F32] = CPU_LOOPS, [CPU_CONV_WEIGHT_BF16] = CPU_ONEDNN,
      [CPU_LINEAR_WEIGHT] = CPU_ONEDNN,  [CPU_ATTENTION_BF16] = CPU_F32,
      [CPU_LSTM_BF16] = CPU_F32,
  };
  for (; isa; isa = find_lower_isa(isa)) {
    const choice_row *r = find_row(question, shape_class, isa, library);
    if (r) return r->candidate;
  }
  return default_candidates[question];
}

static const char *isa_of_this_process(void) {
  return clv_cpu_isa_name((unsigned)dnnl_get_effective_cpu_isa(), clv_cpu_has_amx());
}

cpu_candidate clv_cpu_choose(cpu_question question, cpu_shape_class shape_class) {
  char onednn_version[32];
  if (question == CPU_LINEAR_WEIGHT)
    return clv_cpu_choose_for(question, shape_class, isa_of_this_process(), clv_cpu_blas_version());
  const dnnl_version_t *v = dnnl_version();
  snprintf(onednn_version, sizeof onednn_version, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
  return clv_cpu_choose_for(question, shape_class, isa_of_this_process(), onednn_version);
}

/* ---- time in bf16 compared with f32 ---------------------------------------------------------- */

void clv_cpu_print_processor(char ret[CPU_PROCESSOR_NAME]) {
  unsigned eax, ebx, ecx, edx;
  char vendor[13] = "";
  snprintf(ret, CPU_PROCESSOR_NAME, "unknown");
  if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx)) return;
  memcpy(vendor, &ebx, 4);
  memcpy(vendor + 4, &edx, 4);
  memcpy(vendor + 8, &ecx, 4);
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return;
  unsigned family = eax >> 8 & 15, model = eax >> 4 & 15;
  if (family == 6 || family == 15) model += (eax >> 16 & 15) << 4;
  if (family == 15) family += eax >> 20 & 255;
  snprintf(ret, CPU_PROCESSOR_NAME, "%s %u/%u", vendor, family, model);
}

/* Writes the shape class of a node, if its op can compute in bf16. Returns false for other ops. */
static bool find_shape_class(const clv_node_desc *d, cpu_shape_class *ret) {
  const clv_shape *in = &d->in[0];
  clv_window s;
  switch (d->op) {
    case CLV_OP_CONV2D:
      s = clv_window_of(d);
      *ret = clv_cpu_class_of_conv(&s, d->attrs.groups);
      return true;
    case CLV_OP_LINEAR:
      *ret = clv_cpu_class_of_linear(
          (int64_t)(clv_layout_numel(in, 1) / (size_t)CLV_MAX(in->dim[in->rank - 1], 1)));
      return true;
    case CLV_OP_ATTENTION:
      *ret = clv_cpu_class_of_attention(clv_heads_of(d).width);
      return true;
    case CLV_OP_LSTM:
      *ret = clv_cpu_class_of_lstm(in->dim[0], d->attrs.out);
      return true;
    default:
      return false;
  }
}

unsigned clv_cpu_bf16_percent(const clv_node_desc *d, const char **ret_processor) {
  char processor[CPU_PROCESSOR_NAME];
  const bf16_time_row *best_time_row = NULL;
  cpu_shape_class shape_class;
  if (!find_shape_class(d, &shape_class)) return 0;
  clv_cpu_print_processor(processor);
  for (size_t i = 0; i < CLV_COUNT(bf16_times); i++) {
    const bf16_time_row *r = &bf16_times[i];
    if (r->op != d->op || r->shape_class != shape_class ||
        strcmp(r->isa, isa_of_this_process()) != 0)
      continue;
    if (strncmp(r->processor, processor, strcspn(processor, " ") + 1) != 0) continue;
    if (!best_time_row || strcmp(r->processor, processor) == 0) best_time_row = r;
  }
  if (best_time_row) *ret_processor = best_time_row->processor;
  return best_time_row ? best_time_row->percent_of_f32 : 0;
}

/* ---- digest of the table of choices ---------------------------------------------------------- */

enum { DIGEST_DIGITS = 12 };
static char digest_text[DIGEST_DIGITS + 1] = "none";

static void compute_digest(void) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_sha256 table_digest;
  clv_err err;
  char hex[65];
  for (size_t i = 0; i < CLV_COUNT(choices); i++) clv_bytes_puts(&text, choices[i].text);
  if (clv_sha256_of(text.data, text.len, &table_digest, &err) != CLV_OK) return;
  clv_sha256_hex(&table_digest, hex);
  memcpy(digest_text, hex, DIGEST_DIGITS);
}

const char *clv_cpu_choices_digest(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, compute_digest);
  return digest_text;
}
