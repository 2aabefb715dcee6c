/* SPDX-License-Identifier: Apache-2.0
 *
 * LSTMs by cuDNN's RNN calls, with its standard algorithm: nothing is timed or chosen. A call
 * neither allocates memory nor waits.
 */
#include <stdlib.h>

#include "kernels/cuda/nvidia/nvidia_int.h"

struct clv_cuda_lstm {
  const nvidia_cudnn *cudnn;
  bool has_backward;
  cudnnRNNDescriptor_t rnn;
  cudnnRNNDataDescriptor_t x, y;
  /* describes h and c; their first values are zeros, and their last values are not returned */
  cudnnTensorDescriptor_t state;
  clv_cuda_lstm_space space;
};

/* LSTM_TRY(cudnn, err, cudnnRNNForward, arguments...) calls the cuDNN function, and returns from
 * the caller if it fails. */
#define LSTM_TRY(cudnn, err, call, ...)                           \
  do {                                                            \
    cudnnStatus_t answer_ = (cudnn)->call(__VA_ARGS__);           \
    if (answer_ != CUDNN_STATUS_SUCCESS)                          \
      return clv_nvidia_dnn_fail((cudnn), #call, answer_, (err)); \
  } while (0)

/* ---- cuDNN's descriptors --------------------------------------------------------------------- */

static clv_code describe_network(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d, clv_err *err) {
  const cudnnRNNBiasMode_t bias = d->bias ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS;
  const cudnnMathType_t math = d->tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  LSTM_TRY(l->cudnn, err, cudnnCreateRNNDescriptor, &l->rnn);
  LSTM_TRY(l->cudnn, err, cudnnSetRNNDescriptor_v8, l->rnn, CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM,
           bias, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, math,
           (int32_t)d->f, (int32_t)d->h, (int32_t)d->h, d->layers, NULL,
           CUDNN_RNN_PADDED_IO_ENABLED);
  return CLV_OK;
}

/* Describes values [n, t, n_features], where all samples have t steps. */
static clv_code describe_values(const nvidia_cudnn *cudnn, const clv_cuda_lstm_desc *d,
                                int64_t n_features, const int *lengths,
                                cudnnRNNDataDescriptor_t *ret, clv_err *err) {
  LSTM_TRY(cudnn, err, cudnnCreateRNNDataDescriptor, ret);
  LSTM_TRY(cudnn, err, cudnnSetRNNDataDescriptor, *ret, CUDNN_DATA_FLOAT,
           CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED, (int)d->t, (int)d->n, (int)n_features,
           lengths, NULL);
  return CLV_OK;
}

static clv_code make_descriptors(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d, clv_err *err) {
  CLV_AUTO(clv_freep) int *lengths = NULL;
  const int dims[3] = {d->layers, (int)d->n, (int)d->h};
  const int strides[3] = {(int)(d->n * d->h), (int)d->h, 1};
  CLV_TRY(clv_alloc((size_t)d->n, sizeof *lengths, &lengths, err));
  for (int64_t i = 0; i < d->n; i++) lengths[i] = (int)d->t;
  CLV_TRY(describe_network(l, d, err));
  CLV_TRY(describe_values(l->cudnn, d, d->f, lengths, &l->x, err));
  CLV_TRY(describe_values(l->cudnn, d, d->h, lengths, &l->y, err));
  LSTM_TRY(l->cudnn, err, cudnnCreateTensorDescriptor, &l->state);
  LSTM_TRY(l->cudnn, err, cudnnSetTensorNdDescriptor, l->state, CUDNN_DATA_FLOAT, 3, dims, strides);
  return CLV_OK;
}

/* ---- layout of the weights ------------------------------------------------------------------- */

/* Arguments of cudnnGetRNNWeightParams, with which the parameters are found. */
typedef struct weight_query {
  cudnnHandle_t handle;
  char *space;
  cudnnTensorDescriptor_t matrix, bias;
} weight_query;

/* Finds the indices, in values, of a gate's matrix and bias: those for the input (part 0) or for h
 * (part 1). */
static clv_code find_gate_indices(const clv_cuda_lstm *l, const weight_query *v, int layer,
                                  int part, int gate, size_t ret[2], clv_err *err) {
  void *matrix = NULL, *bias = NULL;
  LSTM_TRY(l->cudnn, err, cudnnGetRNNWeightParams, v->handle, l->rnn, layer, l->space.weights,
           v->space, 4 * part + gate, v->matrix, &matrix, v->bias, &bias);
  ret[0] = matrix ? (size_t)((char *)matrix - v->space) / sizeof(float) : 0;
  ret[1] = bias ? (size_t)((char *)bias - v->space) / sizeof(float) : 0;
  return CLV_OK;
}

/* Finds the indices of a layer's parameters for the input (part 0) or for h (part 1). Fails unless
 * cuDNN stores the four gates i, f, g, o of each parameter one after another, as a module does. */
static clv_code find_param_indices(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d,
                                   const weight_query *v, int layer, int part, clv_err *err) {
  size_t n_inputs = (size_t)(part || layer ? d->h : d->f), h = (size_t)d->h, gate_index[2];
  size_t *matrix = &l->space.param_index[layer][part],
         *bias = &l->space.param_index[layer][2 + part];
  CLV_TRY(find_gate_indices(l, v, layer, part, 0, gate_index, err));
  *matrix = gate_index[0];
  *bias = gate_index[1];
  for (size_t gate = 1; gate < 4; gate++) {
    CLV_TRY(find_gate_indices(l, v, layer, part, (int)gate, gate_index, err));
    if (gate_index[0] != *matrix + gate * h * n_inputs ||
        (d->bias && gate_index[1] != *bias + gate * h))
      return clv_fail(err, CLV_UNIMPLEMENTED,
                      "cuDNN does not store an LSTM's gates one after another");
  }
  return CLV_OK;
}

static clv_code find_all_param_indices(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d,
                                       const weight_query *v, clv_err *err) {
  for (int i = 0; i < 2 * d->layers; i++) CLV_TRY(find_param_indices(l, d, v, i / 2, i % 2, err));
  return CLV_OK;
}

/* Finds the indices of all parameters in cuDNN's buffer of weights. cuDNN reports them only for
 * allocated memory. */
static clv_code locate_params(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d, clv_cuda_stream *s,
                              clv_err *err) {
  weight_query v = {.handle = s->cudnn};
  void *space;
  CLV_TRY(clv_nvidia_allocate(s, l->space.weights, &space, err));
  v.space = space;
  cudnnStatus_t answer = l->cudnn->cudnnCreateTensorDescriptor(&v.matrix);
  if (answer == CUDNN_STATUS_SUCCESS) answer = l->cudnn->cudnnCreateTensorDescriptor(&v.bias);
  clv_code code = answer == CUDNN_STATUS_SUCCESS
                      ? find_all_param_indices(l, d, &v, err)
                      : clv_nvidia_dnn_fail(l->cudnn, "cudnnCreateTensorDescriptor", answer, err);
  if (v.matrix) l->cudnn->cudnnDestroyTensorDescriptor(v.matrix);
  if (v.bias) l->cudnn->cudnnDestroyTensorDescriptor(v.bias);
  clv_nvidia_free(s, space);
  return code;
}

/* ---- making an LSTM -------------------------------------------------------------------------- */

static cudnnForwardMode_t forward_mode(const clv_cuda_lstm *l) {
  return l->has_backward ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
}

static clv_code make_lstm(clv_cuda_lstm *l, const clv_cuda_lstm_desc *d, clv_cuda_stream *s,
                          clv_err *err) {
  CLV_TRY(make_descriptors(l, d, err));
  CLV_TRY(clv_nvidia_cudnn_handle(s, l->cudnn, err));
  LSTM_TRY(l->cudnn, err, cudnnGetRNNWeightSpaceSize, s->cudnn, l->rnn, &l->space.weights);
  LSTM_TRY(l->cudnn, err, cudnnGetRNNTempSpaceSizes, s->cudnn, l->rnn, forward_mode(l), l->x,
           &l->space.workspace, &l->space.reserve);
  return locate_params(l, d, s, err);
}

static clv_code check_sizes(const clv_cuda_lstm_desc *d, clv_err *err) {
  if (d->n * d->t > INT32_MAX / 4 || d->f > INT32_MAX / 4 || d->n * d->h > INT32_MAX / 4)
    return clv_fail(err, CLV_UNIMPLEMENTED, "this LSTM has more values than cuDNN supports");
  return clv_nvidia_check_determinism(err);
}

static clv_code allocate_lstm(const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret, clv_err *err) {
  const nvidia_cudnn *cudnn;
  clv_err why;
  if (clv_nvidia_cudnn(&cudnn, &why) != CLV_OK)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s", why.text);
  CLV_TRY(check_sizes(d, err));
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->cudnn = cudnn;
  (*ret)->has_backward = d->has_backward;
  return CLV_OK;
}

clv_code clv_nvidia_lstm_new(clv_cuda_stream *s, const clv_cuda_lstm_desc *d, clv_cuda_lstm **ret,
                             clv_cuda_lstm_space *ret_space, clv_err *err) {
  clv_cuda_lstm *l;
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(allocate_lstm(d, &l, err));
  clv_code code = make_lstm(l, d, s, err);
  if (code != CLV_OK) {
    clv_nvidia_lstm_free(l);
    return code;
  }
  *ret_space = l->space;
  *ret = l;
  return CLV_OK;
}

void clv_nvidia_lstm_free(clv_cuda_lstm *l) {
  if (!l) return;
  if (l->state) l->cudnn->cudnnDestroyTensorDescriptor(l->state);
  if (l->y) l->cudnn->cudnnDestroyRNNDataDescriptor(l->y);
  if (l->x) l->cudnn->cudnnDestroyRNNDataDescriptor(l->x);
  if (l->rnn) l->cudnn->cudnnDestroyRNNDescriptor(l->rnn);
  free(l);
}

clv_code clv_nvidia_describe_lstm(const clv_cuda_lstm_desc *d, clv_err *err) {
  clv_cuda_lstm *l;
  CLV_TRY(allocate_lstm(d, &l, err));
  clv_code code = make_descriptors(l, d, err);
  clv_nvidia_lstm_free(l);
  return code;
}

/* ---- forward and backward -------------------------------------------------------------------- */

/* Lengths are not passed, because the descriptor of x has them. States are NULL if they are zeros
 * or not needed. */
clv_code clv_nvidia_lstm_forward(clv_cuda_stream *s, clv_cuda_lstm *l, const clv_cuda_lstm_args *a,
                                 clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(clv_nvidia_cudnn_handle(s, l->cudnn, err));
  LSTM_TRY(l->cudnn, err, cudnnRNNForward, s->cudnn, l->rnn, forward_mode(l), NULL, l->x, a->x,
           l->y, a->y, l->state, NULL, NULL, l->state, NULL, NULL, l->space.weights, a->weights,
           l->space.workspace, a->workspace, l->space.reserve, a->reserve);
  return CLV_OK;
}

clv_code clv_nvidia_lstm_backward_data(clv_cuda_stream *s, clv_cuda_lstm *l,
                                       const clv_cuda_lstm_args *a, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(clv_nvidia_cudnn_handle(s, l->cudnn, err));
  LSTM_TRY(l->cudnn, err, cudnnRNNBackwardData_v8, s->cudnn, l->rnn, NULL, l->y, a->y, a->dy, l->x,
           a->dx, l->state, NULL, NULL, NULL, l->state, NULL, NULL, NULL, l->space.weights,
           a->weights, l->space.workspace, a->workspace, l->space.reserve, a->reserve);
  return CLV_OK;
}

clv_code clv_nvidia_lstm_backward_weight(clv_cuda_stream *s, clv_cuda_lstm *l,
                                         const clv_cuda_lstm_args *a, clv_err *err) {
  CLV_TRY(clv_nvidia_set_stream_device(s, err));
  CLV_TRY(clv_nvidia_cudnn_handle(s, l->cudnn, err));
  LSTM_TRY(l->cudnn, err, cudnnRNNBackwardWeights_v8, s->cudnn, l->rnn, CUDNN_WGRAD_MODE_ADD, NULL,
           l->x, a->x, l->state, NULL, l->y, a->y, l->space.weights, a->dweights,
           l->space.workspace, a->workspace, l->space.reserve, a->reserve);
  return CLV_OK;
}
