/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/losses_int.h"

/* Writes the sum of the partial sums, divided by n, to *out, and records the first refused value.
 */
template <typename Value>
static __global__ void put_mean(cuda_sum_layout s, const cuda_pair *partial_sums, double n, float *out,
                                clv_gpu_fault *f, const Value *values, cuda_refusal r) {
  *out = static_cast<float>(gpu_add_partial_sums(s, partial_sums, 0).first / n);
  gpu_record_refusal(f, values, r);
}

/* ---- losses with a class label for each position --------------------------------------------- */

static __device__ inline bool is_counted(const cuda_class_loss &c, int64_t label) {
  return !c.has_ignored_label || label != c.ignored_label;
}

static __device__ inline bool is_class(const cuda_class_loss &c, int64_t label) {
  return label >= 0 && static_cast<size_t>(label) < c.n_classes;
}

/* Returns the class of a label; 0 for a refused label, whose result is not used. */
static __device__ inline size_t class_of(const cuda_class_loss &c, int64_t label) {
  return is_class(c, label) ? static_cast<size_t>(label) : 0;
}

static __device__ inline double weight_of(const cuda_class_loss &c, size_t i) {
  return c.has_weights ? static_cast<double>(c.class_weights[i]) : 1;
}

static __device__ inline double sum_exponentials(const float *x, size_t n, double *ret_max) {
  float thread_max = -INFINITY;
  double sum = 0;
  GPU_ROW(i, n) thread_max = gpu_max_or_nan(thread_max, x[i]);
  *ret_max = static_cast<double>(gpu_block_max(thread_max));
  GPU_ROW(i, n) sum += exp(static_cast<double>(x[i]) - *ret_max);
  return gpu_block_sum(sum);
}

/* Returns sum_c w_c (log_sum_exp - x_c). All threads of the block compute it together. */
static __device__ inline double sum_weighted_losses(const cuda_class_loss &c, const float *x,
                                                    double log_sum_exp) {
  double sum = 0;
  GPU_ROW(i, c.n_classes) sum += weight_of(c, i) * (log_sum_exp - static_cast<double>(x[i]));
  return gpu_block_sum(sum);
}

/* focal_term returns the term of the focal loss, without its weight, of a position with nll = -log
 * p. focal_slope returns the derivative of the term by nll. */
static __device__ inline double focal_term(double nll, double g) {
  return pow(-expm1(-nll), g) * nll;
}

static __device__ inline double focal_slope(double nll, double g) {
  double one_minus_p = -expm1(-nll);
  if (one_minus_p <= 0) return g == 0;
  return pow(one_minus_p, g) + g * (1 - one_minus_p) * pow(one_minus_p, g - 1) * nll;
}

static __global__ void compute_class_terms(cuda_class_loss c, const float *xs, const int64_t *labels,
                                           double *terms, clv_gpu_fault *f) {
  GPU_ROWS(r, c.rows) {
    const float *x = xs + r * c.n_classes;
    if (!is_counted(c, labels[r])) {
      if (!threadIdx.x) terms[r] = 0;
      continue;
    }
    double row_max = 0, log_sum = c.x_is_logits ? log(sum_exponentials(x, c.n_classes, &row_max)) : 0;
    double smooth_loss = c.smoothing > 0 ? sum_weighted_losses(c, x, log_sum + row_max) : 0;
    if (threadIdx.x) continue;
    size_t target = class_of(c, labels[r]);
    double nll = log_sum + row_max - static_cast<double>(x[target]);
    if (c.exponent > 0) nll = focal_term(nll < 0 ? 0 : nll, c.exponent);
    double target_loss = weight_of(c, target) * nll;
    terms[r] = c.smoothing > 0 ? (1 - c.smoothing) * target_loss +
                                     c.smoothing / static_cast<double>(c.n_classes) * smooth_loss
                               : target_loss;
    if (!is_class(c, labels[r])) gpu_refuse_value(f, r);
  }
}

/* Returns two terms for a position: its loss, x, and its weight. */
struct class_term {
  const double *x;
  const int64_t *labels;
  cuda_class_loss c;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    double weight = is_counted(c, labels[index]) ? weight_of(c, class_of(c, labels[index])) : 0;
    return {x[index], weight};
  }
};

static __global__ void put_class_mean(cuda_sum_layout s, const cuda_pair *partial_sums,
                                      double *total_weight, float *out, clv_gpu_fault *f,
                                      const int64_t *labels, cuda_refusal r) {
  cuda_pair sum = gpu_add_partial_sums(s, partial_sums, 0);
  *out = sum.second == 0 ? 0 : static_cast<float>(sum.first / sum.second);
  if (total_weight) *total_weight = sum.second;
  gpu_record_refusal(f, labels, r);
}

clv_code clv_gpu_class_loss(clv_gpu *g, const cuda_class_loss *c, const float *x,
                            const int64_t *labels, double *terms, void *partial_sums,
                            double *total_weight, float *out, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, c->rows);
  CLV_TRY(gpu_launch(g, gpu_count_row_blocks(c->rows), gpu_count_row_threads(c->n_classes), err,
                     compute_class_terms, *c, x, labels, terms, g->fault));
  CLV_TRY(gpu_compute_partial_sums(g, &s, class_term{terms, labels, *c}, partial_sums, err));
  return gpu_launch(g, 1, 1, err, put_class_mean, s, static_cast<const cuda_pair *>(partial_sums),
                    total_weight, out, g->fault, labels,
                    cuda_refusal{c->op, c->layer, static_cast<int64_t>(c->n_classes),
                                 static_cast<int64_t>(c->positions_per_sample)});
}

static __global__ void class_loss_back(cuda_class_loss c, const float *xs, const int64_t *labels,
                                       const float *dout, const double *total_weight, float *dxs) {
  double dloss_per_weight = *total_weight == 0 ? 0 : static_cast<double>(*dout) / *total_weight;
  double smoothing_per_class = c.smoothing / static_cast<double>(c.n_classes);
  GPU_ROWS(r, c.rows) {
    if (*total_weight == 0 || !is_counted(c, labels[r])) {
      GPU_ROW(i, c.n_classes) dxs[r * c.n_classes + i] = 0;
      continue;
    }
    const float *x = xs ? xs + r * c.n_classes : nullptr;
    double row_max = 0, sum = c.x_is_logits ? sum_exponentials(x, c.n_classes, &row_max) : 1;
    size_t target = class_of(c, labels[r]);
    double target_weight = (1 - c.smoothing) * weight_of(c, target);
    if (c.exponent > 0) {
      double nll = log(sum) + row_max - static_cast<double>(x[target]);
      target_weight *= focal_slope(nll < 0 ? 0 : nll, c.exponent);
    }
    GPU_ROW(i, c.n_classes) {
      double p = c.x_is_logits ? exp(static_cast<double>(x[i]) - row_max) / sum : 0;
      double d = target_weight * (p - (i == target));
      if (c.smoothing > 0) d += smoothing_per_class * (p * c.weight_sum - weight_of(c, i));
      dxs[r * c.n_classes + i] = static_cast<float>(d * dloss_per_weight);
    }
  }
}

clv_code clv_gpu_class_loss_back(clv_gpu *g, const cuda_class_loss *c, const float *x,
                                 const int64_t *labels, const float *dout,
                                 const double *total_weight, float *dx, clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(c->rows), gpu_count_row_threads(c->n_classes), err,
                    class_loss_back, *c, x, labels, dout, total_weight, dx);
}

/* ---- losses that are means over all values --------------------------------------------------- */

struct mse {
  static __device__ double term(double x, double t) { return (x - t) * (x - t); }
  static __device__ double dx(double x, double t) { return 2 * (x - t); }
  static __device__ double dt(double x, double t) { return 2 * (t - x); }
  static __device__ bool refuses(double) { return false; }
};

struct bce {
  static __device__ double clamp_log(double log_x) { return log_x < -100 ? -100 : log_x; }
  static __device__ double term(double x, double t) {
    return (t - 1) * clamp_log(log1p(-x)) - t * clamp_log(log(x));
  }
  static __device__ double dx(double x, double t) {
    double variance = (1 - x) * x;
    return (x - t) / (variance < 1e-12 ? 1e-12 : variance);
  }
  static __device__ double dt(double x, double) { return log1p(-x) - log(x); }
  static __device__ bool refuses(double x) { return x < 0 || x > 1; }
};

struct bce_with_logits {
  static __device__ double term(double x, double t) {
    return (x <= 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
  }
  static __device__ double dx(double x, double t) { return 1 / (1 + exp(-x)) - t; }
  static __device__ double dt(double x, double) { return -x; }
  static __device__ bool refuses(double) { return false; }
};

struct poisson {
  static __device__ double term(double x, double t) { return exp(x) - t * x; }
  static __device__ double dx(double x, double t) { return exp(x) - t; }
  static __device__ double dt(double x, double) { return -x; }
  static __device__ bool refuses(double) { return false; }
};

template <typename Loss>
struct loss_term {
  const float *x, *t;
  clv_gpu_fault *fault;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    double value = static_cast<double>(x[index]);
    if (Loss::refuses(value)) gpu_refuse_value(fault, index);
    return {Loss::term(value, static_cast<double>(t[index])), 0};
  }
};

template <typename Loss>
static clv_code mean_loss(clv_gpu *g, int32_t op, const float *x, const float *t, size_t n,
                          void *partial_sums, float *out, uint32_t layer, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, n);
  CLV_TRY(gpu_compute_partial_sums(g, &s, loss_term<Loss>{x, t, g->fault}, partial_sums, err));
  return gpu_launch(g, 1, 1, err, put_mean<float>, s, static_cast<const cuda_pair *>(partial_sums),
                    static_cast<double>(n), out, g->fault, x, cuda_refusal{op, layer, 0, 1});
}

template <typename Loss>
static __global__ void mean_loss_back(const float *xs, const float *ts, size_t n, const float *dout,
                                      float *dx, float *dt) {
  double dloss_per_term = static_cast<double>(*dout) / static_cast<double>(n);
  GPU_FOR(i, n) {
    double x = static_cast<double>(xs[i]), t = static_cast<double>(ts[i]);
    if (dx) dx[i] = static_cast<float>(Loss::dx(x, t) * dloss_per_term);
    if (dt) dt[i] = static_cast<float>(Loss::dt(x, t) * dloss_per_term);
  }
}

#define MEAN_LOSS(name, NAME)                                                                      \
  clv_code clv_gpu_##name(clv_gpu *g, const float *x, const float *t, size_t n,                    \
                          void *partial_sums, float *out, uint32_t layer, clv_err *err) {          \
    return mean_loss<name>(g, CLV_OP_##NAME, x, t, n, partial_sums, out, layer, err);              \
  }                                                                                                \
  clv_code clv_gpu_##name##_back(clv_gpu *g, const float *x, const float *t, size_t n,             \
                                 const float *dout, float *dx, float *dt, clv_err *err) {          \
    return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, mean_loss_back<name>, x, t, n, dout, \
                      dx, dt);                                                                     \
  }

MEAN_LOSS(mse, MSE)
MEAN_LOSS(bce, BCE)
MEAN_LOSS(bce_with_logits, BCE_WITH_LOGITS)
MEAN_LOSS(poisson, POISSON)

/* ---- losses with a parameter: means of a function of x - t ----------------------------------- */

struct smooth_l1 {
  static __device__ double term(double x, double t, double beta) {
    double d = fabs(x - t);
    return d < beta ? 0.5 * d * d / beta : d - 0.5 * beta;
  }
  static __device__ double dx(double x, double t, double beta) {
    double d = x - t;
    if (fabs(d) < beta) return d / beta;
    return d > 0 ? 1 : d < 0 ? -1 : d; /* a NaN stays a NaN */
  }
};

struct huber {
  static __device__ double term(double x, double t, double delta) {
    double d = fabs(x - t);
    return d < delta ? 0.5 * d * d : delta * (d - 0.5 * delta);
  }
  static __device__ double dx(double x, double t, double delta) {
    double d = x - t;
    if (fabs(d) < delta) return d;
    return d > 0 ? delta : d < 0 ? -delta : d; /* a NaN stays a NaN */
  }
};

struct quantile {
  static __device__ double term(double x, double t, double p) {
    double underestimate_loss = p * (t - x), overestimate_loss = (p - 1) * (t - x);
    return overestimate_loss >= underestimate_loss ? overestimate_loss
                                                   : underestimate_loss; /* a NaN stays a NaN */
  }
  static __device__ double dx(double x, double t, double p) {
    return x < t ? -p : x > t ? 1 - p : x == t ? 0.5 - p : x - t; /* a NaN stays a NaN */
  }
};

template <typename Loss>
struct parametric_term {
  const float *x, *t;
  double loss_parameter;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    return {
        Loss::term(static_cast<double>(x[index]), static_cast<double>(t[index]), loss_parameter),
        0};
  }
};

template <typename Loss>
static clv_code parametric_loss(clv_gpu *g, int32_t op, double loss_parameter, const float *x,
                                const float *t, size_t n, void *partial_sums, float *out,
                                uint32_t layer, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, n);
  CLV_TRY(gpu_compute_partial_sums(g, &s, parametric_term<Loss>{x, t, loss_parameter}, partial_sums,
                                   err));
  return gpu_launch(g, 1, 1, err, put_mean<float>, s, static_cast<const cuda_pair *>(partial_sums),
                    static_cast<double>(n), out, g->fault, x, cuda_refusal{op, layer, 0, 1});
}

template <typename Loss>
static __global__ void parametric_loss_back(double loss_parameter, const float *xs, const float *ts,
                                            size_t n, const float *dout, float *dx, float *dt) {
  double dloss_per_term = static_cast<double>(*dout) / static_cast<double>(n);
  GPU_FOR(i, n) {
    double d = Loss::dx(static_cast<double>(xs[i]), static_cast<double>(ts[i]), loss_parameter) *
               dloss_per_term;
    if (dx) dx[i] = static_cast<float>(d);
    if (dt) dt[i] = static_cast<float>(-d);
  }
}

#define DEFINE_PARAMETRIC_LOSS(name, NAME)                                                            \
  clv_code clv_gpu_##name(clv_gpu *g, double loss_parameter, const float *x, const float *t,   \
                          size_t n, void *partial_sums, float *out, uint32_t layer,            \
                          clv_err *err) {                                                      \
    return parametric_loss<name>(g, CLV_OP_##NAME, loss_parameter, x, t, n, partial_sums, out, \
                                 layer, err);                                                  \
  }                                                                                            \
  clv_code clv_gpu_##name##_back(clv_gpu *g, double loss_parameter, const float *x,            \
                                 const float *t, size_t n, const float *dout, float *dx,       \
                                 float *dt, clv_err *err) {                                    \
    return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, parametric_loss_back<name>,      \
                      loss_parameter, x, t, n, dout, dx, dt);                                  \
  }

DEFINE_PARAMETRIC_LOSS(smooth_l1, SMOOTH_L1)
DEFINE_PARAMETRIC_LOSS(huber, HUBER)
DEFINE_PARAMETRIC_LOSS(quantile, QUANTILE)
