/* SPDX-License-Identifier: Apache-2.0
 *
 * The parsed command line of cleave-master and the functions of its commands. A command is a row of
 * the table in main.c and a function that takes the arguments and returns the exit code.
 */
#ifndef CLEAVE_MASTER_INT_H
#define CLEAVE_MASTER_INT_H

#include "common/base/cli/cli.h"
#include "common/net/tls/tls.h"
#include "master/run/run.h"
#include "master/sweep/sweep.h"
#include "master/watch/watch.h"

typedef struct clv_master_arguments {
  clv_cli_line line;                /* must be the first field */
  clv_cli_list sets, links, speeds; /* options --set, --link and --speed */
  clv_run_options run;
  clv_sweep_options sweep;     /* options of sweep and plan; session.c fills in the rest */
  clv_cli_list grids, randoms; /* options --grid and --random */
  bool csv;                    /* option --csv of the command sweep */
  /* option --follow of the command log; option --now of the command stop */
  bool follows_log, kills_now;
  bool html;                            /* option --html of the command egress */
  bool writes_all_examples, makes_data; /* options of the command init */
  const char *table_path; /* option --from of the command init: path of a table; NULL: not given */
  /* options of the command export: folders to write */
  const char *adapters, *merge, *hf;
  /* option --tokenizer of the command words: path of a tokenizer file; NULL: not given */
  const char *tokenizer;
  uint64_t seconds, memory_mib, max_tokens, stride; /* options of the command words */
  /* options of the commands certs */
  const char *dir, *uri;
  clv_cli_list dns, ips;
  uint64_t days;  /* certs: days until a certificate expires; 0: not given */
  bool is_forced; /* option --force of certs issue and checkpoint rm */
} clv_master_arguments;

/* Defaults for the certificates that `certs` and `init` make. */
#define CLV_CA_NAME "Cleave CA"
enum {
  CLV_CA_DAYS = 3650,
  CLV_CERT_DAYS = 365,
  /* begin of validity, in seconds from now, because a peer's clock may be slow */
  CLV_CERT_NOT_BEFORE_S = -300,
};

/* session.c: commands on a session file */
int clv_cmd_train(void *args);
int clv_cmd_eval(void *args);
int clv_cmd_predict(void *args);
int clv_cmd_plan(void *args);
int clv_cmd_sweep(void *args);
int clv_cmd_check(void *args);
int clv_cmd_doctor(void *args);
int clv_cmd_status(void *args);
int clv_cmd_cache(void *args);
int clv_cmd_checkpoint_ls(void *args);
int clv_cmd_checkpoint_verify(void *args);
int clv_cmd_checkpoint_gather(void *args);
int clv_cmd_checkpoint_rm(void *args);

/* commands on runs (runs.c) */
int clv_cmd_runs(void *args);
int clv_cmd_log(void *args);
int clv_cmd_stop(void *args);
int clv_cmd_egress(void *args);
int clv_cmd_report(void *args);

/* the command export (export.c) */
int clv_cmd_export(void *args);

/* the command words (words.c) */
int clv_cmd_words(void *args);

/* the command artifact (artifact.c) */
int clv_cmd_artifact(void *args);

/* the command ops (ops.c) */
int clv_cmd_ops(void *args);
/* appends the manual page cleave-ops(7) */
clv_code clv_ops_man(clv_bytes *out, clv_err *err) CLV_USE_RESULT;

/* the command init (init.c) */
int clv_cmd_init(void *args);

/* the commands certs (certs.c) */
int clv_cmd_certs_init(void *args);
int clv_cmd_certs_issue(void *args);
int clv_cmd_certs_show(void *args);
int clv_cmd_certs_revoke(void *args);

#endif
