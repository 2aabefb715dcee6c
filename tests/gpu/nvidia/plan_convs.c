/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds cuDNN's plans for every convolution of ResNet50, and for kinds of convolutions that
 * ResNet50 lacks, on a device of which only a description is needed. Also tests whether cuDNN
 * accepts descriptions of LSTMs.
 *
 * usage: plan_convs DEVICE.json|here [BATCH]
 *
 * DEVICE.json: cuDNN's description of a device; `here`: the present device. Prints this description
 * first; then a line for each convolution, pass and kind of arithmetic, with its engine and
 * workspace. Then plans all convolutions again, which must find every plan among the kept ones.
 * Exits with 1 if a convolution has no plan or its kept plan is not found, and with 77 if there is
 * no cuDNN.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/nvidia/nvidia.h"

enum { NO_CUDNN = 77 };

/* Plans that were found, with their keys, in memory. The product keeps plans in files. */
enum { MAX_KEPT_PLANS = 512 };
static struct { clv_bytes key, text; } kept_plans[MAX_KEPT_PLANS];
static size_t n_kept_plans, n_found;

static bool find_plan(const char *key, clv_bytes *ret) {
  for (size_t i = 0; i < n_kept_plans; i++) {
    if (strcmp(kept_plans[i].key.data, key) != 0) continue;
    clv_bytes_add(ret, kept_plans[i].text.data, kept_plans[i].text.len);
    n_found++;
    return true;
  }
  return false;
}

static void keep_plan(const char *key, const char *text, size_t n) {
  if (n_kept_plans == MAX_KEPT_PLANS) return;
  clv_bytes_puts(&kept_plans[n_kept_plans].key, key);
  clv_bytes_add(&kept_plans[n_kept_plans++].text, text, n);
}

static const char *device_json;
static int64_t batch = 128;
static int n_failed, n_planned;
static bool is_quiet;

static void plan_conv(const clv_cuda_conv_desc *d, float beta) {
  static const char *const passes[] = {"forward", "grad_input", "grad_weight"};
  static const char *const names[] = {"f32", "tf32", "bf16"};
  const clv_window *w = &d->window;
  clv_nvidia_plan plan_info;
  char workspace_text[32];
  clv_err err;
  if (!is_quiet)
    printf("%lld->%lld %lldx%lld kernel %lld stride %lld %s%s %s: ", (long long)w->c,
           (long long)w->k, (long long)w->h, (long long)w->w, (long long)w->kernel[1],
           (long long)w->stride[1], passes[d->pass], beta > 0 ? " added" : "", names[d->math]);
  clv_code code = clv_nvidia_plan_conv(device_json, d, beta, &plan_info, &err);
  if (code == CLV_UNAVAILABLE) {
    puts(err.text);
    exit(NO_CUDNN);
  }
  if (code != CLV_OK) {
    n_failed++;
    printf("%s\n", err.text);
    return;
  }
  n_planned++;
  if (!is_quiet)
    printf("engine %lld of %lld, workspace %s\n", (long long)plan_info.engine,
           (long long)plan_info.n_candidates,
           clv_format_size(plan_info.workspace, workspace_text, sizeof workspace_text));
}

/* Plans a convolution with this window in every type of numbers and every pass. */
static void plan_window_passes(const clv_window *w, int64_t groups) {
  clv_cuda_conv_desc d = {.groups = groups, .window = *w};
  for (int math = CLV_CUDA_F32; math <= CLV_CUDA_BF16; math++)
    for (int pass = 0; pass < 3; pass++) {
      d.math = (clv_cuda_math)math;
      d.pass = (clv_cuda_pass)pass;
      plan_conv(&d, 0);
      if (d.pass == CLV_CUDA_GRAD_WEIGHT) plan_conv(&d, 1);
    }
}

/* Plans a square convolution that keeps the size of the image; with stride 2 it halves the size. */
static void plan_square_conv(int64_t c, int64_t k, int64_t h, int64_t kernel, int64_t stride) {
  int64_t pad = kernel / 2, oh = (h + 2 * pad - kernel) / stride + 1;
  clv_window w = {.n = batch,
                  .c = c,
                  .h = h,
                  .w = h,
                  .k = k,
                  .oh = oh,
                  .ow = oh,
                  .kernel = {kernel, kernel},
                  .stride = {stride, stride},
                  .pad = {pad, pad},
                  .dilation = {1, 1}};
  plan_window_passes(&w, 1);
}

/* Plans kinds of convolutions that ResNet50 does not have: with dilation, with one channel per
 * group, over images of one row, and transposed ones, which double the size of their input. */
static void plan_unusual_convs(void) {
  static const struct {
    clv_window w;
    int64_t groups;
  } unusual_windows[] = {
      {{8, 64, 28, 28, 64, 28, 28, {3, 3}, {1, 1}, {2, 2}, {2, 2}}, 1},
      {{8, 64, 28, 28, 64, 28, 28, {3, 3}, {1, 1}, {1, 1}, {1, 1}}, 64},
      {{8, 64, 1, 256, 64, 1, 256, {1, 5}, {1, 1}, {0, 2}, {1, 1}}, 1},
      {{8, 32, 56, 56, 64, 28, 28, {3, 3}, {2, 2}, {1, 1}, {1, 1}}, 1},
  };
  for (size_t i = 0; i < CLV_COUNT(unusual_windows); i++)
    plan_window_passes(&unusual_windows[i].w, unusual_windows[i].groups);
}

/* Plans the first bottleneck block of a group of ResNet50, and the blocks that follow it. */
static void plan_resnet_group(int64_t n_in, int64_t width, int64_t h, int64_t stride) {
  plan_square_conv(n_in, width, h, 1, 1);
  plan_square_conv(width, width, h, 3, stride);
  plan_square_conv(width, 4 * width, h / stride, 1, 1);
  plan_square_conv(n_in, 4 * width, h, 1, stride);
  plan_square_conv(4 * width, width, h / stride, 1, 1);
  if (stride > 1) plan_square_conv(width, width, h / stride, 3, 1);
}

/* Plans the convolutions of ResNet50. Returns the processor time in ms. */
static double plan_resnet50(void) {
  clock_t begin = clock();
  plan_square_conv(3, 64, 224, 7, 2);
  plan_resnet_group(64, 64, 56, 1);
  plan_resnet_group(256, 128, 56, 2);
  plan_resnet_group(512, 256, 28, 2);
  plan_resnet_group(1024, 512, 14, 2);
  return 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
}

static void describe_lstms(void) {
  clv_err err;
  for (int i = 0; i < 8; i++) {
    clv_cuda_lstm_desc d = {.n = 64, .t = 64, .f = 128, .h = 256, .layers = 2};
    d.bias = i & 1;
    d.tf32 = i & 2;
    d.layers = i & 4 ? CLV_LSTM_LAYERS : 1;
    if (clv_nvidia_describe_lstm(&d, &err) == CLV_OK) continue;
    n_failed++;
    puts(err.text);
  }
}

int main(int argc, char **argv) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, known = {0};
  clv_err err;
  if (argc < 2) return 2;
  bool describes_present_device = strcmp(argv[1], "here") == 0;
  if (!describes_present_device && clv_file_read(argv[1], 1 << 16, &text, &err) != CLV_OK) return 2;
  if (argc > 2) batch = atoll(argv[2]);
  device_json = describes_present_device ? NULL : text.data;
  clv_code code = clv_nvidia_device_json(0, device_json, &known, &err);
  if (code != CLV_OK) {
    puts(err.text);
    return describes_present_device || code == CLV_UNAVAILABLE ? NO_CUDNN : 1;
  }
  printf("%s\n", known.data);
  const clv_plan_store store = {.find = find_plan, .store = keep_plan};
  clv_nvidia_set_plan_store(&store);
  double planning_ms = plan_resnet50();
  size_t n_found_before = n_found;
  is_quiet = true;
  double search_ms = plan_resnet50();
  is_quiet = false;
  n_failed += n_found - n_found_before != n_kept_plans + n_found_before;
  printf("%zu different ones made in %.1f ms, found again in %.1f ms\n", n_kept_plans, planning_ms,
         search_ms);
  n_planned /= 2;
  plan_unusual_convs();
  describe_lstms();
  printf("%d planned, %d failed\n", n_planned, n_failed);
  return n_failed ? 1 : 0;
}
