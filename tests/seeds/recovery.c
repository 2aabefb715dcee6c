/* SPDX-License-Identifier: Apache-2.0
 *
 * Continues a training after a worker, or this program itself, was killed. Two halves of a network
 * are at the first two workers of the session file, which keep the saved state on their own disks.
 * Usage: recovery SESSION.yaml RUN [STEPS]. The file RUN.saved says what was saved; at the end
 * RUN.first.safetensors and RUN.second.safetensors have the weights. Files at a worker belong to
 * the identity of this program's certificate, so each run needs a name of its own.
 */
#include <cleave.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 32, SAVE_EVERY = 25, MAX_TRIES = 300, PATH = 512 };

static const char *session, *run;
static uint64_t n_steps = 400;
static int n_tries; /* attempts to open a session since the state was last saved */

/* Objects of the present session; `load_modules` makes them again in a new session. */
static cleave_runtime *rt;
static cleave_module *half[2], *loss;
static cleave_optimizer *adam;

static uint64_t step; /* number of steps; set back to the last save when a worker is lost */
static cleave_error e;

#define TRY(call)                             \
  do {                                        \
    cleave_status status_ = (call);           \
    if (status_ != CLEAVE_OK) return status_; \
  } while (0)

_Noreturn static void exit_with_error(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static cleave_status load_modules(void) {
  cleave_input in = CLEAVE_INPUT(CLEAVE_F32, ROWS, 2), hidden = CLEAVE_INPUT(CLEAVE_F32, ROWS, 16),
               out = CLEAVE_INPUT(CLEAVE_F32, ROWS, 1);
  cleave_module_options a = {
      .size = sizeof a, .name = "first", .at = cleave_node_name(rt, 1), .seed = 1};
  cleave_module_options b = {.size = sizeof b,
                             .name = "second",
                             .at = cleave_node_name(rt, 2),
                             .seed = 1,
                             .first_layer = 3};
  cleave_module_options loss_options = {.size = sizeof loss_options, .name = "loss"};
  cleave_group group = {.modules = half,
                        .n_modules = 2,
                        .kind = CLEAVE_ADAM,
                        .lr = 0.02,
                        .schedule = {.curve = CLEAVE_COSINE, .total_steps = n_steps}};
  TRY(cleave_load_layers(rt, &a, "[{op: linear, out: 16}, {op: tanh}, {op: dropout, p: 0.1}]", &in,
                         &half[0], &e));
  TRY(cleave_load_layers(rt, &b, "[{op: linear, out: 1}]", &hidden, &half[1], &e));
  TRY(cleave_load_loss(rt, &loss_options, "bce_with_logits", &out, &loss, &e));
  return cleave_optimizer_new(rt, &group, 1, 0, &adam, &e);
}

/* ---- saving and loading the state ------------------------------------------------------------ */

static const char *const part_names[4] = {"first.weights", "first.adam", "second.weights",
                                          "second.adam"};

/* Name of file 0..3 of the state. Odd and even saves use different files, so an interrupted save
 * leaves the files of the previous save unchanged. */
static const char *get_part_file(int part, uint64_t at) {
  static char name[129];
  snprintf(name, sizeof name, "%s.%s.%d", run, part_names[part], (int)(at / SAVE_EVERY % 2));
  return name;
}

static cleave_state_kind get_part_kind(int part) {
  return part % 2 ? CLEAVE_STATE_OPTIMIZER : CLEAVE_STATE_WEIGHTS;
}

/* Replaces RUN.saved by a line with the step and the digests of the step's four files. */
static void write_save_record(const char *line) {
  char path[PATH], tmp[PATH + 4];
  snprintf(path, sizeof path, "%s.saved", run);
  snprintf(tmp, sizeof tmp, "%s.tmp", path);
  FILE *f = fopen(tmp, "w");
  if (!f || fputs(line, f) < 0 || fflush(f) || fsync(fileno(f)) || fclose(f) || rename(tmp, path))
    exit_with_error(tmp, "cannot be written");
}

static cleave_status save_state(void) {
  char line[400];
  int n = snprintf(line, sizeof line, "%" PRIu64, step);
  for (int i = 0; i < 4; i++) {
    cleave_state_file file = {.size = sizeof file};
    TRY(cleave_state_save_at_worker(rt, half[i / 2], get_part_kind(i), get_part_file(i, step), 0,
                                    &file, &e));
    n += snprintf(line + n, sizeof line - (size_t)n, " %s", file.sha256);
  }
  write_save_record(line); /* written last: from now on this save is valid */
  printf("saved step %" PRIu64 "\n", step);
  n_tries = 0;
  return CLEAVE_OK;
}

/* Loads the state of the last save. Without a save, the modules keep the weights that
 * `load_modules` drew. */
static cleave_status load_saved_state(void) {
  char path[PATH], digest[4][65];
  step = 0;
  snprintf(path, sizeof path, "%s.saved", run);
  FILE *f = fopen(path, "r");
  if (!f) return CLEAVE_OK;
  int n = fscanf(f, "%" SCNu64 " %64s %64s %64s %64s", &step, digest[0], digest[1], digest[2],
                 digest[3]);
  fclose(f);
  if (n != 5) exit_with_error(path, "is damaged");
  for (int i = 0; i < 4; i++) {
    cleave_state_file file = {.size = sizeof file};
    TRY(cleave_state_load_at_worker(rt, half[i / 2], get_part_kind(i), get_part_file(i, step), 0,
                                    &file, &e));
    if (strcmp(file.sha256, digest[i]) != 0)
      exit_with_error(get_part_file(i, step), "another program replaced it");
  }
  return cleave_optimizer_set_steps(rt, adam, step, &e);
}

/* ---- training steps -------------------------------------------------------------------------- */

/* Fills the rows of a step. They depend only on its number, so a repeated step gets the same
 * rows. */
static void fill_rows(float *x, float *y) {
  for (int i = 0; i < ROWS; i++) { /* is the point inside the circle? */
    x[2 * i] = (float)((i + 3 * step) % 16) / 8 - 1;
    x[2 * i + 1] = (float)((5 * i + step) % 16) / 8 - 1;
    y[i] = x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1] < 0.5f;
  }
}

static cleave_status train_step(void) {
  float x[ROWS * 2], y[ROWS];
  cleave_tensor points = CLEAVE_TENSOR_F32(x, ROWS, 2), inside = CLEAVE_TENSOR_F32(y, ROWS, 1);
  cleave_context_options o = {.size = sizeof o, .step = step + 1}; /* chooses the dropout masks */
  cleave_context c;
  cleave_reference in, hidden, guess, target, error;
  fill_rows(x, y);
  TRY(cleave_context_open(rt, &o, &c, &e));
  TRY(cleave_leaf(rt, c, &points, false, &in, &e));
  TRY(cleave_leaf(rt, c, &inside, false, &target, &e));
  TRY(cleave_call(rt, c, half[0], &in, 1, &hidden, &e));
  TRY(cleave_call(rt, c, half[1], &hidden, 1, &guess, &e));
  TRY(cleave_call(rt, c, loss, (cleave_reference[]){guess, target}, 2, &error, &e));
  TRY(cleave_backward(rt, c, &error, 1, false, 0, &e));
  TRY(cleave_step(rt, adam, c, 0, NULL, &e));
  TRY(cleave_context_close(rt, c, 0, &e));
  step++;
  return CLEAVE_OK;
}

static cleave_status train_until_end(void) {
  TRY(cleave_open(session, NULL, &rt, &e));
  TRY(load_modules());
  TRY(load_saved_state());
  printf("goes on from step %" PRIu64 "\n", step);
  while (step < n_steps) {
    TRY(train_step());
    if (step % 10 == 0) printf("step %" PRIu64 "\n", step);
    if (step % SAVE_EVERY == 0) TRY(save_state());
  }
  for (int i = 0; i < 2; i++) {
    char path[PATH];
    snprintf(path, sizeof path, "%s.%s.safetensors", run, i ? "second" : "first");
    TRY(cleave_state_save(rt, half[i], CLEAVE_STATE_WEIGHTS, path, 0, &e));
  }
  return CLEAVE_OK;
}

/* True if a new session may succeed. EXHAUSTED: a worker still has the interrupted session. */
static bool is_temporary_failure(cleave_status status) {
  return status == CLEAVE_UNAVAILABLE || status == CLEAVE_DEADLINE || status == CLEAVE_EXHAUSTED;
}

int main(int argc, char **argv) {
  if (argc < 3) exit_with_error("usage", "recovery SESSION.yaml RUN [STEPS]");
  session = argv[1];
  run = argv[2];
  if (argc > 3) n_steps = strtoull(argv[3], NULL, 10);
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (cleave_status status; (status = train_until_end()) != CLEAVE_OK;) {
    if (!is_temporary_failure(status) || ++n_tries > MAX_TRIES) exit_with_error(e.node, e.text);
    printf("lost at step %" PRIu64 ": %s: %s\n", step, e.node, e.text);
    cleave_close(rt, 0, NULL, NULL); /* ends the session at the workers that still run */
    rt = NULL;
    sleep(1);
  }
  cleave_close(rt, 0, NULL, NULL);
  return 0;
}
