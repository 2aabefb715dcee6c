/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a trainer: modules.c connects and loads, schedule.c lays schedules out, steps.c trains,
 * measure.c watches links and stages, trial.c chooses the number of micro-batches, eval.c evaluates,
 * state.c collects and restores; profile.c times layers and suggest.c looks for better cuts; metrics.c
 * has the numbers of a run for Prometheus. What a person runs is in run_int.h.
 */
#ifndef CLEAVE_TRAIN_INT_H
#define CLEAVE_TRAIN_INT_H

#include "common/models/models.h"
#include "common/sched/sched.h"
#include "common/tls/tls.h"
#include "common/weights/weights.h"
#include "master/report/report.h"
#include "master/train/train.h"

enum {
  CLV_EVAL_WINDOW = 4, /* batches in flight in an evaluation */
  KEPT_LAYOUTS = 4,    /* of full and short batches, before and after the window changed */
};

/* ---- schedules (schedule.c) ---------------------------------------------------------------------------- */

/* Places of a call in its node's order, 0: none. */
typedef struct call_positions {
  uint32_t forward, backward, weight;
  bool old_weights;
} call_positions;

/* A schedule for n_steps steps (one, unless it is asynchronous) of n_micro micro-batches together. */
typedef struct layout {
  clv_sched *sched;
  clv_sched_report report;
  uint32_t n_micro, n_steps, window;
  call_positions *positions; /* [stages, the loss included][n_micro] */
  uint32_t *steps;           /* [stages][n_steps] position of the stage's own step, 0: none */
} layout;

/* costs NULL: the textbook's. CLV_INVALID: what does not fit, in the session's words. */
clv_code clv_layout_new(const clv_blueprint *b, uint32_t n_micro, uint32_t n_steps, uint32_t window,
                        const clv_sched_costs *costs, layout **ret, clv_err *err) CLV_USE_RESULT;
void clv_layout_free(layout *l); /* NULL is allowed */
void clv_layout_freep(layout **l);

/* Stages and their ranks; names: of the ranks, [n_ranks]. Fills all but n_micro and n_accumulate. */
uint32_t clv_pipeline_ranks(const clv_blueprint *b, clv_sched_shape *shape,
                            const char *names[CLV_SCHED_RANKS]);
void clv_pipeline_textbook_costs(const clv_blueprint *b, clv_sched_costs *ret);
uint32_t clv_pipeline_round(const clv_session_config *c);        /* steps in a round */
uint32_t clv_pipeline_first_window(const clv_session_config *c); /* before anything is measured */
/* Is there a schedule for whole rounds? Before anything is connected. */
clv_code clv_pipeline_check(const clv_blueprint *b, clv_err *err) CLV_USE_RESULT;

/* ---- the trainer --------------------------------------------------------------------------------------- */

/* One micro-batch of the round in progress. */
typedef struct micro {
  size_t start, size; /* rows of its batch */
  uint32_t batch;     /* of the round */
} micro;

/* A batch that waits for its round: copies, since the loader's memory is lent for one step. */
typedef struct held_batch {
  clv_tensor *x, *y;
  size_t n;
} held_batch;

/* When to look again at links and stages, and what was seen. */
typedef struct watch {
  bool wanted;          /* pipeline.window is auto */
  uint64_t next_step;   /* that is measured */
  double usual_s;       /* of a step */
  cleave_event *events; /* of the context that is measured; filled under the runtime's lock */
  size_t n_events, cap_events;
  /* Each round is shown to it: a trace, a profile. NULL: none. */
  void (*sink)(void *user, clv_trainer *t, const layout *l); /* may sort the events */
  void *sink_user;
  /* Every sixteenth round or so, a few a second at most, is shown to it: metrics. NULL: none. */
  void (*look)(void *user, clv_trainer *t, const layout *l); /* may sort the events */
  void *status_user;
  uint64_t next_measure_ns;
} watch;

struct clv_trainer {
  clv_blueprint *b; /* borrowed; its egress rows are counted in */
  const clv_session_config *config;
  cleave_runtime *runtime;
  cleave_module **modules;  /* [n_stages + 1], the loss last */
  cleave_module *home_loss; /* the loss for evaluations; NULL until the first */
  cleave_optimizer *optimizer;
  char lost[CLEAVE_NAME + 1];
  uint64_t committed;
  const char *doing; /* "step", "checkpoint of step", ...; NULL while loading */
  uint64_t doing_step;
  /* the round */
  uint32_t round, n_held;       /* steps in a full one, batches that wait for it */
  held_batch *held;             /* [round] */
  clv_step_result *results;     /* [2 * round] of the steps last taken */
  micro *micros;                /* [round * max_micro], as the next three */
  cleave_reference *references; /* [micro][stage], ascending: values of the calls */
  cleave_reference *losses;
  float *shares;
  size_t *sizes; /* [max_micro] */
  /* the schedule */
  layout *layouts[KEPT_LAYOUTS];
  uint32_t n_layouts, window;
  bool costs_known;
  clv_sched_costs costs;
  watch watch;
  char notice[256], told[256]; /* for the person who watches the run; "" */
  cleave_tensor fetched;       /* the last value that came here */
};

/* The layout of such a round, made if it is new. It is the trainer's. */
clv_code clv_trainer_layout(clv_trainer *t, uint32_t n_micro, uint32_t n_steps, const layout **ret,
                            clv_err *err) CLV_USE_RESULT;
void clv_trainer_forget_layouts(clv_trainer *t);
void clv_trainer_let_go(clv_trainer *t); /* of batches that wait for a round */

/* ---- watching (measure.c) -------------------------------------------------------------------------------- */

/* For cleave_options.on_event; user: the trainer. */
void clv_trainer_on_event(void *user, cleave_context context, const cleave_event *event);
/* Whether the round that begins is to be measured. */
bool clv_watch_begin(clv_trainer *t);
/* After a round that took so long, of n_steps; measured: its events are here. */
clv_code clv_watch_end(clv_trainer *t, const layout *l, bool measured, double seconds,
                       clv_err *err) CLV_USE_RESULT;
void clv_watch_done(watch *w);
/* Stage and micro-batch of an event of the round; false: of neither. */
bool clv_watch_locate(const clv_trainer *t, const layout *l, const cleave_event *e,
                      uint32_t *ret_stage, uint32_t *ret_micro);

/* For what the master's node waited in the round whose events are here, seconds: tensors on their way, to
 * it or to who makes what it waits for; others that computed; neither. All 0: not known (observe.c). */
typedef struct clv_waits {
  double network, peer, own;
} clv_waits;
void clv_watch_waits(clv_trainer *t, const layout *l, clv_waits *ret);

/* What the round whose events are here shows; asks all links for their round trip. */
clv_code clv_watch_measure(clv_trainer *t, const layout *l, clv_sched_costs *ret,
                           clv_err *err) CLV_USE_RESULT;

/* ---- metrics (metrics.c) --------------------------------------------------------------------------------- */

/* The port of `metrics.listen`; without that *ret stays NULL, which all the others take. */
typedef struct clv_run_metrics clv_run_metrics;
clv_code clv_run_metrics_open(const clv_session_config *config, clv_run_metrics **ret,
                              clv_err *err) CLV_USE_RESULT;
void clv_run_metrics_close(clv_run_metrics *m); /* before the trainer is closed */
void clv_run_metrics_attach(clv_run_metrics *m, clv_trainer *t, uint64_t target_steps);
void clv_run_metrics_step(clv_run_metrics *m, uint64_t step, const clv_step_result *s);
void clv_run_metrics_saved(clv_run_metrics *m, uint64_t step, uint64_t took_ns);
/* On standard error, if others than this machine could read them. */
void clv_run_metrics_warn(const clv_session_config *config);

/* ---- micro-batches: auto (trial.c) ----------------------------------------------------------------------- */

/* In how many parts the batches of a run are to be cut, by trial steps on random numbers in sessions of
 * their own; says so on standard output and in the journal. b: any number of them. Connects. */
clv_code clv_choose_micro_batches(const clv_blueprint *b, bool json, clv_journal *journal,
                                  uint64_t *ret, clv_err *err) CLV_USE_RESULT;
/* That of the run in the folder. */
clv_code clv_recall_micro_batches(const char *run_dir, uint64_t *ret, clv_err *err) CLV_USE_RESULT;
/* Numbers worth a look, ascending: those up to CLV_MOST_MICROS that cut the batch into so many parts of
 * at least `least` samples and divide it or are a power of two; and `also`, if it is a number of parts. */
clv_code clv_micro_choices(uint64_t batch, int64_t least, uint32_t also, uint32_t **ret,
                           uint32_t *ret_n, clv_err *err) CLV_USE_RESULT;

/* ---- layers (profile.c) ------------------------------------------------------------------------------------ */

enum { CLV_PROFILE_SIZES = 8, CLV_MOST_MICROS = 64 };

typedef struct clv_profile {
  int threads;
  uint32_t n_layers, n_sizes;
  int64_t size[CLV_PROFILE_SIZES];          /* samples, descending from the batch */
  clv_plan_times *times[CLV_PROFILE_SIZES]; /* [n_layers] */
} clv_profile;

clv_code clv_profile_new(const clv_blueprint *b, int threads, clv_profile **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_profile_free(clv_profile *p); /* NULL is allowed */
void clv_profile_freep(clv_profile **p);
/* Of so many samples, between those that were measured. */
clv_plan_times clv_profile_at(const clv_profile *p, uint32_t layer, double samples);
/* On the line between the values at the two nearest sizes (descending); at the ends as there. */
double clv_between(const int64_t *size, const double *value, uint32_t n, double at);

/* ---- cuts (suggest.c) -------------------------------------------------------------------------------------- */

/* What somebody says of the links and of how fast the nodes are, compared with this machine. */
typedef struct clv_link {
  double latency_s, bytes_s; /* one way */
  bool given;
} clv_link;
typedef struct clv_links {
  size_t n;        /* workers of the session */
  clv_link *link;  /* [n]: to the master */
  clv_link *hop;   /* [n][n]: direct, from the lower to the higher index */
  double *speed;   /* [n + 1]: the workers', the master's last */
  clv_bytes notes; /* "w1 20 ms, 1000 Mbit/s" */
} clv_links;
/* From options; unless given a link has 1 ms and 1 Gbit/s, and a direct hop the worse of the two links.
 * CLV_INVALID: which word of which option is wrong. */
clv_code clv_links_parse(const clv_session_config *c, const clv_run_options *o, clv_links **ret,
                         clv_err *err) CLV_USE_RESULT;
void clv_links_freep(clv_links **l);

/* Times the layers, looks for the best cuts, and prints them beside those of the session. */
clv_code clv_suggest_cuts(const clv_blueprint *b, const clv_links *links, bool json, clv_bytes *out,
                          clv_err *err) CLV_USE_RESULT;

/* Bytes that a stage keeps, with so many micro-batches at once (describe.c). */
clv_code clv_stage_memory(const clv_blueprint *b, uint32_t stage, uint32_t live, size_t *ret,
                          clv_err *err) CLV_USE_RESULT;

/* ---- what a run leaves (run_about.c) ----------------------------------------------------------------------- */

/* The session as those may read who look at a run's curves: without paths, addresses and credentials;
 * and the digest of the whole, as session.effective.yaml has it. */
clv_code clv_run_about(const clv_session_config *c, clv_bytes *ret, clv_sha256 *ret_digest,
                       clv_err *err) CLV_USE_RESULT;
/* The folder of this run's event files; nothing when there are to be none. */
clv_code clv_run_events_folder(const clv_session_config *c, clv_bytes *ret,
                               clv_err *err) CLV_USE_RESULT;

/* A failure of libcleave as an error of the trainer: the step, the worker and the cause in the text;
 * the worker that was lost, if that is what it is, is remembered. */
clv_code clv_trainer_explain(clv_trainer *t, const cleave_error *why, clv_err *err);
/* What an error from now on belongs to. */
void clv_trainer_doing(clv_trainer *t, const char *what, uint64_t step);
/* In a function that returns clv_code with trainer `t` and error `err`. */
#define CLV_API(call)                                                         \
  do {                                                                        \
    cleave_error api_error_;                                                  \
    if ((call) != CLEAVE_OK) return clv_trainer_explain(t, &api_error_, err); \
  } while (0)
#define CLV_WHY &api_error_

/* n rows of a batch from row `start` on, as an argument of libcleave. */
cleave_tensor clv_rows_of(const clv_tensor *batch, size_t start, size_t n);
/* Right classes among the rows of a prediction. */
size_t clv_count_correct(const cleave_tensor *prediction, const int64_t *labels, size_t n);
/* What the module of a run's loss is called; no stage can be. */
#define CLV_LOSS_NAME "(loss)"
clv_code clv_trainer_load_loss(clv_trainer *t, const char *name, int worker, cleave_module **ret,
                               clv_err *err) CLV_USE_RESULT;

/* All tensors that the stage has, in a weights file: *ret is [params->n], to be freed. */
clv_code clv_stage_match(const clv_blueprint *b, uint32_t stage, const clv_weights_file *f,
                         unsigned flags, const clv_weights_entry ***ret,
                         clv_err *err) CLV_USE_RESULT;

/* The file of a stage's initial weights, with the stage's tensors in it. CLV_DATA_LOSS names the
 * place in the session: it is missing or damaged, has another digest, lacks a tensor of the stage or
 * has one in another type or shape, or one that the whole model has not. */
clv_code clv_stage_file_open(const clv_blueprint *b, uint32_t stage, clv_weights_file **ret,
                             const clv_weights_entry ***ret_found, clv_err *err) CLV_USE_RESULT;

/* Weights of the session's files into their stages. */
clv_code clv_trainer_push_files(clv_trainer *t, clv_err *err) CLV_USE_RESULT;

#endif
