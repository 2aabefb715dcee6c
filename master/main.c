/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave-master: parse the command line, load the session, run the command.
 */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/dist/dist.h"
#include "common/tls/tls.h"
#include "master/train/train.h"

const char *argp_program_version = "cleave-master " CLV_VERSION;

typedef struct arguments {
  const char *command;
  const char *words[16];
  size_t n_words;
  const char *sets[256];
  size_t n_sets;
  const char *links[256], *speeds[256];
  clv_run_options run;
  bool verbose;
  /* certs */
  const char *dir, *uri;
  const char *dns[CLV_TLS_MAX_NAMES], *ips[CLV_TLS_MAX_NAMES];
  size_t n_dns, n_ips;
  int days;
  bool force;
} arguments;

enum {
  OPT_MAX_STEPS = 256,
  OPT_RESUME,
  OPT_FRESH,
  OPT_JSON,
  OPT_ACCEPT,
  OPT_OUT,
  OPT_TRACE,
  OPT_PROFILE,
  OPT_SCHEDULE,
  OPT_SUGGEST,
  OPT_LINK,
  OPT_SPEED,
  OPT_DIR,
  OPT_URI,
  OPT_DNS,
  OPT_IP,
  OPT_DAYS,
  OPT_FORCE
};

static const struct argp_option options[] = {
    {"set", 's', "KEY=VALUE", 0, "override one key of the session file", 0},
    {"max-steps", OPT_MAX_STEPS, "N", 0, "train: stop when N steps are done in all", 0},
    {"resume", OPT_RESUME, NULL, 0, "train: go on from the newest complete checkpoint", 0},
    {"fresh", OPT_FRESH, NULL, 0, "train: delete the checkpoints of an earlier run first", 0},
    {"accept-egress", OPT_ACCEPT, NULL, 0, "train --resume: accept that other tensors leave now",
     0},
    {"json", OPT_JSON, NULL, 0, "print JSON lines", 0},
    {"out", OPT_OUT, "FILE", 0, "predict: where the .npy goes; plan --schedule: the instructions",
     0},
    {"schedule", OPT_SCHEDULE, NULL, 0, "plan: draw what each node does in a step", 0},
    {"suggest-cuts", OPT_SUGGEST, NULL, 0,
     "plan: time the layers here and propose where to cut, and in how many micro-batches", 0},
    {"link", OPT_LINK, "WORKER=RTT_MS:MBIT", 0,
     "plan --suggest-cuts: a worker's link (default 1:1000); ONE+OTHER=... is a direct one", 0},
    {"speed", OPT_SPEED, "NODE=FACTOR", 0,
     "plan --suggest-cuts: how fast a worker, or master, is beside this machine (default 1)", 0},
    {"trace", OPT_TRACE, "FILE", 0, "train: what each node did and when, for Perfetto", 0},
    {"profile", OPT_PROFILE, NULL, 0, "train: print where the time went", 0},
    {"verbose", 'v', NULL, 0, "log at debug level", 0},
    {0, 0, NULL, 0, "certs:", 1},
    {"dir", OPT_DIR, "DIR", 0, "folder of the certificate authority (default: certs)", 1},
    {"uri", OPT_URI, "URI", 0, "identity, e.g. spiffe://hospital/worker/gpu1", 1},
    {"dns", OPT_DNS, "NAME", 0, "DNS name (repeatable)", 1},
    {"ip", OPT_IP, "ADDRESS", 0, "IP address (repeatable)", 1},
    {"days", OPT_DAYS, "N", 0, "validity (default: 365; CA 3650)", 1},
    {"force", OPT_FORCE, NULL, 0, "overwrite", 1},
    {0},
};

static uint64_t number(struct argp_state *state, const char *arg) {
  char *end;
  unsigned long long v = strtoull(arg, &end, 10);
  if (*end || end == arg || arg[0] == '-') argp_error(state, "'%s' is not a number", arg);
  return v;
}

static void append(struct argp_state *state, const char **list, size_t *n, size_t max,
                   const char *arg) {
  if (*n == max) argp_error(state, "too many: %s", arg);
  list[(*n)++] = arg;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
    case 's':
      append(state, a->sets, &a->n_sets, CLV_COUNT(a->sets), arg);
      return 0;
    case 'v':
      a->verbose = true;
      return 0;
    case OPT_MAX_STEPS:
      a->run.max_steps = number(state, arg);
      return 0;
    case OPT_RESUME:
      a->run.resume = true;
      return 0;
    case OPT_FRESH:
      a->run.fresh = true;
      return 0;
    case OPT_JSON:
      a->run.json = true;
      return 0;
    case OPT_ACCEPT:
      a->run.accept_egress = true;
      return 0;
    case OPT_OUT:
      a->run.out = arg;
      return 0;
    case OPT_TRACE:
      a->run.trace = arg;
      return 0;
    case OPT_PROFILE:
      a->run.profile = true;
      return 0;
    case OPT_SCHEDULE:
      a->run.schedule = true;
      return 0;
    case OPT_SUGGEST:
      a->run.suggest_cuts = true;
      return 0;
    case OPT_LINK:
      append(state, a->links, &a->run.n_links, CLV_COUNT(a->links), arg);
      return 0;
    case OPT_SPEED:
      append(state, a->speeds, &a->run.n_speeds, CLV_COUNT(a->speeds), arg);
      return 0;
    case OPT_DIR:
      a->dir = arg;
      return 0;
    case OPT_URI:
      a->uri = arg;
      return 0;
    case OPT_DNS:
      append(state, a->dns, &a->n_dns, CLV_COUNT(a->dns), arg);
      return 0;
    case OPT_IP:
      append(state, a->ips, &a->n_ips, CLV_COUNT(a->ips), arg);
      return 0;
    case OPT_DAYS:
      a->days = (int)CLV_MIN(number(state, arg), (uint64_t)1000000);
      return 0;
    case OPT_FORCE:
      a->force = true;
      return 0;
    case ARGP_KEY_ARG:
      if (!a->command) {
        a->command = arg;
        return 0;
      }
      append(state, a->words, &a->n_words, CLV_COUNT(a->words), arg);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static volatile int interrupted;

static void on_interrupt(int signal) {
  (void)signal;
  if (interrupted) _exit(CLV_EXIT_INTERRUPTED); /* the second one means now */
  interrupted = 1;
}

static int fail(int exit_code, const clv_err *err) {
  fprintf(stderr, "cleave-master: %s\n", err->text);
  return exit_code;
}

static int usage(const char *text) {
  fprintf(stderr, "cleave-master: %s\nTry 'cleave-master --help'.\n", text);
  return CLV_EXIT_USAGE;
}

/* ---- commands on a session ------------------------------------------------------------------------- */

typedef clv_exit session_command(const clv_session_config *config, const clv_run_options *o);

static int with_session(arguments *a, session_command *command) {
  clv_err err;
  CLV_AUTO(clv_session_config_freep) clv_session_config *config = NULL;
  if (a->n_words != 1) return usage("this command takes one session file");
  clv_config_overrides over = {
      .env = (const char *const *)environ, .sets = a->sets, .n_sets = a->n_sets};
  if (clv_session_config_load(a->words[0], &over, &config, &err) != CLV_OK)
    return fail(CLV_EXIT_CONFIG, &err);
  a->run.interrupted = &interrupted;
  struct sigaction act = {.sa_handler = on_interrupt};
  sigaction(SIGINT, &act, NULL);
  sigaction(SIGTERM, &act, NULL);
  act.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &act, NULL);
  return command(config, &a->run);
}

static int cmd_train(arguments *a) { return with_session(a, clv_run_train); }
static int cmd_eval(arguments *a) { return with_session(a, clv_run_eval); }
static int cmd_predict(arguments *a) { return with_session(a, clv_run_predict); }
static int cmd_plan(arguments *a) {
  a->run.links = a->links;
  a->run.speeds = a->speeds;
  if (a->run.suggest_cuts && a->run.schedule)
    return usage("plan draws a schedule or suggests cuts: --schedule or --suggest-cuts");
  if (!a->run.suggest_cuts && (a->run.n_links || a->run.n_speeds))
    return usage("--link and --speed belong to plan --suggest-cuts");
  return with_session(a, clv_run_plan);
}
static int cmd_check(arguments *a) { return with_session(a, clv_run_check); }
static int cmd_doctor(arguments *a) { return with_session(a, clv_run_doctor); }

/* ---- certs and init ----------------------------------------------------------------------------------- */

static int certs_init(arguments *a, const char *dir, clv_err *err) {
  const char *name = a->n_words > 1 ? a->words[1] : "Cleave CA";
  if (clv_tls_ca_init(dir, name, a->days ? a->days : 3650, err) != CLV_OK)
    return fail(CLV_EXIT_FAILED, err);
  printf("%s/ca.pem and %s/ca.key made; keep ca.key inside the private network\n", dir, dir);
  return CLV_EXIT_OK;
}

static int certs_issue(arguments *a, const char *dir, clv_err *err) {
  if (a->n_words < 2 || !a->uri)
    return usage("certs issue NAME --uri spiffe://... [--dns NAME] [--ip ADDRESS] [--days N]");
  clv_tls_issue_options o = {.ca_dir = dir,
                             .name = a->words[1],
                             .uris = &a->uri,
                             .n_uris = 1,
                             .dns = a->dns,
                             .n_dns = a->n_dns,
                             .ips = a->ips,
                             .n_ips = a->n_ips,
                             .days = a->days ? a->days : 365,
                             .not_before_offset_s = -300,
                             .force = a->force};
  if (clv_tls_issue(&o, err) != CLV_OK) return fail(CLV_EXIT_FAILED, err);
  printf("%s/%s.pem and %s/%s.key made, identity %s\n", dir, o.name, dir, o.name, a->uri);
  return CLV_EXIT_OK;
}

static int certs_show(arguments *a, const char *dir, clv_err *err) {
  (void)dir;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  if (a->n_words < 2) return usage("certs show FILE");
  if (clv_tls_show(a->words[1], &out, a->run.json, err) != CLV_OK) return fail(CLV_EXIT_DATA, err);
  fputs(out.data, stdout);
  return CLV_EXIT_OK;
}

static int cmd_certs(arguments *a) {
  static const struct {
    const char *name;
    int (*run)(arguments *a, const char *dir, clv_err *err);
  } verbs[] = {{"init", certs_init}, {"issue", certs_issue}, {"show", certs_show}};
  clv_err err;
  for (size_t i = 0; a->n_words && i < CLV_COUNT(verbs); i++)
    if (strcmp(verbs[i].name, a->words[0]) == 0)
      return verbs[i].run(a, a->dir ? a->dir : "certs", &err);
  return usage("certs init [NAME] | certs issue NAME --uri URI | certs show FILE");
}

static int write_new(const char *path, clv_config_kind kind) {
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (access(path, F_OK) == 0) {
    fprintf(stderr, "cleave-master: %s is there already; nothing was written\n", path);
    return CLV_EXIT_FAILED;
  }
  if (clv_config_example(kind, &text, &err) != CLV_OK ||
      clv_file_write_durable(path, text.data, text.len, 0644, &err) != CLV_OK)
    return fail(CLV_EXIT_FAILED, &err);
  printf("%s written\n", path);
  return CLV_EXIT_OK;
}

static int cmd_init(arguments *a) {
  (void)a;
  int code = write_new("session.yaml", CLV_CONFIG_SESSION);
  if (code == CLV_EXIT_OK) code = write_new("worker.yaml", CLV_CONFIG_WORKER);
  if (code == CLV_EXIT_OK)
    puts("next: cleave-master certs init; certs issue ...; then check, plan, doctor, train");
  return code;
}

static const struct {
  const char *name;
  int (*run)(arguments *a);
} commands[] = {
    {"train", cmd_train}, {"eval", cmd_eval},     {"predict", cmd_predict}, {"plan", cmd_plan},
    {"check", cmd_check}, {"doctor", cmd_doctor}, {"certs", cmd_certs},     {"init", cmd_init},
};

int main(int argc, char **argv) {
  static const struct argp argp = {
      options,
      parse,
      "train|eval|predict|plan|check|doctor SESSION.yaml\ncerts init|issue|show ...\ninit",
      "The Cleave master: it holds the data and drives training.\v"
      "Exit codes: 0 ok, 1 failed, 2 usage, 3 configuration, 4 connection, TLS or authorisation, "
      "5 time-out, 6 worker lost (checkpoint usable), 7 data or weights, 8 checkpoint, 9 diverged, "
      "70 internal error, 130 interrupted after a checkpoint.",
      NULL,
      NULL,
      NULL};
  arguments a = {0};
  argp_err_exit_status = CLV_EXIT_USAGE;
  clv_keep_memory();
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  if (!a.command)
    return usage("a command is needed: train, eval, predict, plan, check, doctor, certs or init");
  clv_log_set(a.verbose ? CLV_LOG_DEBUG : CLV_LOG_WARN, false);
  const char *names[CLV_COUNT(commands)];
  for (size_t i = 0; i < CLV_COUNT(commands); i++) {
    if (strcmp(commands[i].name, a.command) == 0) return commands[i].run(&a);
    names[i] = commands[i].name;
  }
  const char *near = clv_did_you_mean(a.command, names, CLV_COUNT(names));
  fprintf(stderr, "cleave-master: unknown command '%s'%s%s%s\n", a.command,
          near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
  return CLV_EXIT_USAGE;
}
