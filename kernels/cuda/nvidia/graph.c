/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes a convolution to cuDNN as an operation graph: one function for each kind of descriptor,
 * built from lists of attributes.
 */
#include "kernels/cuda/nvidia/nvidia_int.h"

/* ---- cuDNN's descriptors --------------------------------------------------------------------- */

clv_code clv_nvidia_dnn_fail(const nvidia_cudnn *cudnn, const char *call, cudnnStatus_t answer,
                             clv_err *err) {
  char why[256] = "";
  cudnn->cudnnGetLastErrorString(why, sizeof why);
  bool is_out_of_memory = answer == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                          answer == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  int category = CUDNN_STATUS_CATEGORY((int)answer);
  bool lacks_sublibrary = answer == CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE ||
                          answer == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ||
                          answer == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH;
  bool is_unsupported = lacks_sublibrary || category == CUDNN_STATUS_NOT_SUPPORTED ||
                        category == CUDNN_STATUS_BAD_PARAM;
  return clv_fail(
      err,
      is_out_of_memory ? CLV_EXHAUSTED
      : is_unsupported ? CLV_UNIMPLEMENTED
                       : CLV_INTERNAL,
      "%s: %s: %s%.255s", call, cudnn->cudnnGetErrorString(answer),
      lacks_sublibrary ? "a part of cuDNN is missing, damaged or of another version: " : "", why);
}

clv_code clv_nvidia_make_descriptor(const nvidia_cudnn *cudnn, cudnnBackendDescriptorType_t type,
                                    cudnnBackendDescriptor_t *ret, clv_err *err) {
  cudnnStatus_t answer = cudnn->cudnnBackendCreateDescriptor(type, ret);
  if (answer == CUDNN_STATUS_SUCCESS) return CLV_OK;
  return clv_nvidia_dnn_fail(cudnn, "cudnnBackendCreateDescriptor", answer, err);
}

clv_code clv_nvidia_set_attribute(const nvidia_cudnn *cudnn, cudnnBackendDescriptor_t descriptor,
                                  cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, int64_t n, const void *values,
                                  clv_err *err) {
  cudnnStatus_t answer = cudnn->cudnnBackendSetAttribute(descriptor, name, type, n, values);
  if (answer == CUDNN_STATUS_SUCCESS) return CLV_OK;
  return clv_nvidia_dnn_fail(cudnn, "cudnnBackendSetAttribute", answer, err);
}

clv_code clv_nvidia_finish_descriptor(const nvidia_cudnn *cudnn,
                                      cudnnBackendDescriptor_t descriptor, clv_err *err) {
  cudnnStatus_t answer = cudnn->cudnnBackendFinalize(descriptor);
  if (answer == CUDNN_STATUS_SUCCESS) return CLV_OK;
  return clv_nvidia_dnn_fail(cudnn, "cudnnBackendFinalize", answer, err);
}

/* An attribute of a cuDNN descriptor, which has n values of one type. */
typedef struct attribute {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t n;
  const void *values;
} attribute;

static clv_code make_descriptor_with(const nvidia_cudnn *cudnn, cudnnBackendDescriptorType_t type,
                                     const attribute *attributes, size_t n,
                                     cudnnBackendDescriptor_t *ret, clv_err *err) {
  cudnnBackendDescriptor_t descriptor = NULL;
  CLV_TRY(clv_nvidia_make_descriptor(cudnn, type, &descriptor, err));
  clv_code code = CLV_OK;
  for (size_t i = 0; i < n && code == CLV_OK; i++)
    code = clv_nvidia_set_attribute(cudnn, descriptor, attributes[i].name, attributes[i].type,
                                    attributes[i].n, attributes[i].values, err);
  if (code == CLV_OK) code = clv_nvidia_finish_descriptor(cudnn, descriptor, err);
  if (code == CLV_OK)
    *ret = descriptor;
  else
    cudnn->cudnnBackendDestroyDescriptor(descriptor);
  return code;
}

/* ---- parts of the operation graph ------------------------------------------------------------ */

/* Describes a tensor [n, c, h, w]: row-major f32, or if channels_last bf16 with channels last. */
static clv_code make_tensor(const nvidia_cudnn *cudnn, int64_t id, const int64_t dims[4],
                            bool channels_last, cudnnBackendDescriptor_t *ret, clv_err *err) {
  static const int64_t alignment = CONV_ALIGNMENT;
  const cudnnDataType_t dtype = channels_last ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
  int64_t c = dims[1], h = dims[2], w = dims[3];
  const int64_t strides[2][4] = {{c * h * w, h * w, w, 1}, {c * h * w, 1, w * c, c}};
  const attribute attributes[] = {
      {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
      {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype},
      {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
      {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims},
      {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides[channels_last]},
  };
  return make_descriptor_with(cudnn, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes,
                              CLV_COUNT(attributes), ret, err);
}

static clv_code make_window(const nvidia_cudnn *cudnn, const clv_window *w,
                            cudnnBackendDescriptor_t *ret, clv_err *err) {
  static const int64_t n_spatial_dims = 2;
  static const cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
  static const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const attribute attributes[] = {
      {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype},
      {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
      {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n_spatial_dims},
      {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, w->dilation},
      {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, w->stride},
      {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, w->pad},
      {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, w->pad},
  };
  return make_descriptor_with(cudnn, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes,
                              CLV_COUNT(attributes), ret, err);
}

/* cuDNN's identifiers of a pass and of its operands. */
typedef struct pass_names {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, window, alpha, beta;
} pass_names;

#define PASS_NAMES(operation, prefix, x, w, y)                  \
  {                                                             \
    operation, CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##x, \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##w,        \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##y,        \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_CONV_DESC,  \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_ALPHA,      \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_BETA        \
  }

static const pass_names passes[] = {
    [CLV_CUDA_FORWARD] =
        PASS_NAMES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, FORWARD, X, W, Y),
    [CLV_CUDA_GRAD_INPUT] = PASS_NAMES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                       BWD_DATA, DX, W, DY),
    [CLV_CUDA_GRAD_WEIGHT] = PASS_NAMES(
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, BWD_FILTER, X, DW, DY),
};

enum { PART_X, PART_W, PART_Y, PART_WINDOW, PART_OPERATION, N_PARTS };

static clv_code make_operation(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                               cudnnBackendDescriptor_t *parts, clv_err *err) {
  static const float alpha = 1;
  const pass_names *p = &passes[d->pass];
  const cudnnBackendAttributeType_t type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const attribute attributes[] = {
      {p->x, type, 1, &parts[PART_X]},         {p->w, type, 1, &parts[PART_W]},
      {p->y, type, 1, &parts[PART_Y]},         {p->window, type, 1, &parts[PART_WINDOW]},
      {p->alpha, CUDNN_TYPE_FLOAT, 1, &alpha}, {p->beta, CUDNN_TYPE_FLOAT, 1, &beta},
  };
  return make_descriptor_with(cudnn, p->operation, attributes, CLV_COUNT(attributes),
                              &parts[PART_OPERATION], err);
}

static clv_code make_parts(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                           cudnnBackendDescriptor_t *parts, clv_err *err) {
  const clv_window *w = &d->window;
  const int64_t x[4] = {w->n, w->c, w->h, w->w}, y[4] = {w->n, w->k, w->oh, w->ow};
  bool channels_last = d->math == CLV_CUDA_BF16;
  const int64_t kernel[4] = {w->k, w->c / d->groups, w->kernel[0], w->kernel[1]};
  CLV_TRY(make_tensor(cudnn, GRAPH_X, x, channels_last, &parts[PART_X], err));
  CLV_TRY(make_tensor(cudnn, GRAPH_W, kernel, channels_last, &parts[PART_W], err));
  CLV_TRY(make_tensor(cudnn, GRAPH_Y, y, channels_last, &parts[PART_Y], err));
  CLV_TRY(make_window(cudnn, w, &parts[PART_WINDOW], err));
  return make_operation(cudnn, d, beta, parts, err);
}

/* ---- the operation graph --------------------------------------------------------------------- */

clv_code clv_nvidia_conv_graph(const nvidia_cudnn *cudnn, const clv_cuda_conv_desc *d, float beta,
                               cudnnBackendDescriptor_t *ret, clv_err *err) {
  cudnnBackendDescriptor_t parts[N_PARTS] = {0};
  clv_code code = make_parts(cudnn, d, beta, parts, err);
  const attribute attributes[] = {
      {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &parts[PART_OPERATION]}};
  if (code == CLV_OK)
    code = make_descriptor_with(cudnn, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes,
                                CLV_COUNT(attributes), ret, err);
  for (int i = 0; i < N_PARTS; i++)
    if (parts[i]) cudnn->cudnnBackendDestroyDescriptor(parts[i]);
  return code;
}
