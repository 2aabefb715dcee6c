/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave-master: the tables of its commands and options. clv_cli_main parses the command line by
 * them, calls the command's function, and writes help, manual pages and shell completion from them.
 */
#include "common/engine/engine.h"
#include "master/master_int.h"

#define AT(member) offsetof(clv_master_arguments, member)

/* values of the option --weights, in the order of CLV_WEIGHTS_TRAINED and CLV_WEIGHTS_EMA */
static const char *const weight_kinds[] = {"trained", "ema", NULL};
/* values of the option --format, in the order of clv_predictions_format */
static const char *const record_formats[] = {"csv", "jsonl", "npy", NULL};

static void write_session_keys(clv_bytes *out) {
  clv_config_write_completions(CLV_CONFIG_SESSION, out);
}

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "train", .args = "SESSION.yaml", .run = clv_cmd_train,
     .doc = "train the session's network; its files are in runs/NAME",
     .paragraphs = "Ctrl-C finishes the step and writes a checkpoint; --resume continues from it with equal bits."},
    {.name = "eval", .args = "SESSION.yaml", .run = clv_cmd_eval,
     .doc = "loss and accuracy of a checkpoint on the test data"},
    {.name = "predict", .args = "SESSION.yaml", .run = clv_cmd_predict,
     .doc = "outputs of a checkpoint for the records of data.test, with class names if the run has them",
     .paragraphs = "Labels are not read. A CSV or JSON lines file has the image's path or the record's number, the "
             "class, its name and the outputs of each record; the names for a NumPy file are in FILE.json."},
    {.name = "sweep", .args = "SESSION.yaml", .run = clv_cmd_sweep,
     .doc = "train at several points, each a run of its own, and print a table of them, the best first",
     .paragraphs = "--grid has all combinations of values, --random draws points, and --folds divides the records of each "
             "point. All points are checked before the first run starts. The same command continues a sweep that "
             "was interrupted or killed; finished runs are not run again."},
    {.name = "plan", .args = "SESSION.yaml", .run = clv_cmd_plan,
     .doc = "show which stage runs where, the memory it needs, and the tensors that leave the master",
     .paragraphs = "Sends no tensor. With --ask it asks each worker for its devices and libraries, and computes memory "
             "for these. With --suggest-cuts it times the layers on this machine and simulates ways "
             "to cut the model over the links of --link."},
    {.name = "check", .args = "SESSION.yaml", .run = clv_cmd_check,
     .doc = "check the session file, the shapes and all records; nothing is sent",
     .paragraphs = "Reads each record, images too, and names one with a value that is not finite. "
             "--quick reads 1,000 records of each file."},
    {.name = "doctor", .args = "SESSION.yaml", .run = clv_cmd_doctor,
     .doc = "test the connection to each worker: names, TCP, TLS, identity, clocks, versions, artifacts"},
    {.name = "status", .args = "SESSION.yaml", .run = clv_cmd_status,
     .doc = "show sessions, memory and load of every worker of a session file, and why a run is slow",
     .paragraphs = "Exits with 4 if a worker does not answer."},
    {.name = "cache", .args = "SESSION.yaml", .run = clv_cmd_cache,
     .doc = "list the outputs of frozen fronts that the workers of a session file keep on their disks",
     .paragraphs = "Lists the caches of all sessions of this identity. A run deletes its cache when it ends; --delete is "
             "for the caches of runs that were killed."},
    {.name = "checkpoint ls", .args = "SESSION.yaml", .run = clv_cmd_checkpoint_ls,
     .doc = "list the checkpoints of a run: their files, and at which worker or in the run folder these are",
     .paragraphs = "Asks no worker, and may be used while the run trains."},
    {.name = "checkpoint verify", .args = "SESSION.yaml", .run = clv_cmd_checkpoint_verify,
     .doc = "read all files of the checkpoints of a run, also those at workers, and compare their digests",
     .paragraphs = "--quick reads no file at a worker and compares the digest that the worker reports. May be used while "
             "the run trains. Exits with 7 if a file is missing or damaged, and with 4 if a worker cannot be asked."},
    {.name = "checkpoint gather", .args = "SESSION.yaml", .run = clv_cmd_checkpoint_gather,
     .doc = "fetch the files of checkpoints that are at workers into the run folder",
     .paragraphs = "Fetches the newest checkpoint and the best one, or that of --step. A gather that was killed continues "
             "where it stopped. The workers' copies are removed when the files are complete here."},
    {.name = "checkpoint rm", .args = "SESSION.yaml", .run = clv_cmd_checkpoint_rm,
     .doc = "delete the checkpoint of --step, here and at workers, or the files of --orphans",
     .paragraphs = "Files at a worker that cannot be reached are named and stay listed; --orphans tries again."},
    {.name = "runs", .args = "[FOLDER]", .run = clv_cmd_runs,
     .doc = "list the runs in a folder (default: runs), and how each ended"},
    {.name = "log", .args = "RUN", .run = clv_cmd_log,
     .doc = "print the journal of a run: the lines that it printed"},
    {.name = "egress", .args = "RUN", .run = clv_cmd_egress,
     .doc = "report the tensors that left in a run: to which worker, when, how much, by which policy",
     .paragraphs = "With --html it prints one page without links, to print or to send."},
    {.name = "report", .args = "RUN...", .run = clv_cmd_report,
     .doc = "write one HTML page of a run, or of several beside each other",
     .paragraphs = "Curves, scores, confusion, ROC, calibration, the records with the largest losses by id, time, what "
             "left and to whom, recoveries. The page loads nothing, and only you may read the file."},
    {.name = "export", .args = "RUN", .run = clv_cmd_export,
     .doc = "write the trained weights of a run for other programs",
     .paragraphs = "--adapters writes a folder that peft opens; --merge writes weights with the adapters merged; "
             "--hf also writes config.json, so that from_pretrained opens the folder."},
    {.name = "stop", .args = "RUN", .run = clv_cmd_stop,
     .doc = "end a run after a checkpoint, and say how it ended"},
    {.name = "certs init", .args = "[NAME]", .run = clv_cmd_certs_init,
     .doc = "make a certificate authority"},
    {.name = "certs issue", .args = "NAME", .run = clv_cmd_certs_issue,
     .doc = "make a key and its certificate, for a master or a worker"},
    {.name = "certs revoke", .args = "[NAME]", .run = clv_cmd_certs_revoke,
     .doc = "add a certificate to the revocation list DIR/crl.pem and sign the list again",
     .paragraphs = "Without NAME it only signs the list again, with a later expiry. Set tls.crl on both sides to the list."},
    {.name = "certs show", .args = "FILE.pem", .run = clv_cmd_certs_show,
     .doc = "show names, identity and validity of certificates"},
    {.name = "words", .args = "PATH", .run = clv_cmd_words,
     .doc = "words and boxes of PDFs and images of pages, as JSON lines",
     .paragraphs = "PATH is a file or a folder; the name of a subfolder is the class of its files. A separate process, pdftotext "
             "or tesseract, reads each file under limits. With --tokenizer a line is a window of tokens."},
    {.name = "artifact", .args = "FOLDER", .run = clv_cmd_artifact,
     .doc = "write FOLDER/ARTIFACT.json: the files of a folder of pretrained weights, with digests",
     .paragraphs = "FOLDER has model.safetensors, or model.safetensors.index.json and its files. Copy the printed lines "
             "into worker.yaml and session.yaml. Equal files have equal digests on every machine."},
    {.name = "ops", .args = "[NAME]", .run = clv_cmd_ops,
     .doc = "list the operations for layers, or describe one, with its attributes"},
    {.name = "init", .run = clv_cmd_init,
     .doc = "write a working session.yaml and worker.yaml into this folder, with certificates",
     .paragraphs = "The data are Fashion-MNIST if Debian's dataset-fashion-mnist is installed, "
             "else synthetic. With --from they are a table of yours, such as patients.csv: each column "
             "gets a use, which the file says beside it, and the target is the column named so or the last."},
};

#define SESSION_COMMANDS "train, eval, predict, sweep, plan, check, doctor"

static const clv_cli_option options[] = {
    {.name = "set", .key = 's', .kind = CLV_CLI_TEXTS, .arg = "KEY=VALUE", .commands = SESSION_COMMANDS ", status, cache, checkpoint",
     .offset = AT(sets), .keys = write_session_keys, .doc = "override one key of the session file, as in train.batch=64"},
    {.name = "json", .kind = CLV_CLI_FLAG, .commands = SESSION_COMMANDS ", status, cache, checkpoint, certs show, runs, log, egress, stop, ops, artifact",
     .offset = AT(run.json), .doc = "print results as JSON, one object a line"},
    {.name = "grid", .kind = CLV_CLI_TEXTS, .arg = "KEY=V1,V2", .commands = "sweep, plan", .offset = AT(grids),
     .keys = write_session_keys, .doc = "values of a key of the session file; the points are all combinations"},
    {.name = "random", .kind = CLV_CLI_TEXTS, .arg = "KEY=LOW..HIGH", .commands = "sweep, plan", .offset = AT(randoms),
     .keys = write_session_keys, .doc = "range of a key, log:LOW..HIGH for equal chances of equal factors, or values V1,V2 to choose from"},
    {.name = "points", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "sweep, plan", .min = 1, .max = 4096,
     .needs = "random", .offset = AT(sweep.n_points), .doc = "with --random: number of points"},
    {.name = "seed", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "sweep, plan", .needs = "random", .offset = AT(sweep.seed),
     .doc = "with --random: seed of the points (default: 0)"},
    {.name = "folds", .kind = CLV_CLI_NUMBER, .arg = "K", .commands = "sweep, plan", .min = 2, .max = 100,
     .offset = AT(sweep.folds), .doc = "cross-validation: K runs of each point, each with another fold held back"},
    {.name = "jobs", .key = 'j', .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "sweep", .min = 1, .max = 256,
     .offset = AT(sweep.jobs), .doc = "most runs at a time (default: 1)"},
    {.name = "csv", .kind = CLV_CLI_FLAG, .commands = "sweep", .offset = AT(csv), .doc = "print the table as CSV"},
    {.name = "max-steps", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "train",
     .offset = AT(run.max_steps), .doc = "stop after step N of the run; pipedream: at the end of its round"},
    {.name = "resume", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.resume),
     .doc = "continue from the newest complete checkpoint; a run without any begins at step 1"},
    {.name = "fresh", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.fresh),
     .doc = "start over: keep a finished run as NAME.1, delete an unfinished one"},
    {.name = "accept-egress", .kind = CLV_CLI_FLAG, .commands = "train, eval, predict",
     .offset = AT(run.accept_egress),
     .doc = "continue although other tensors leave than when the run began"},
    {.name = "accept-data", .kind = CLV_CLI_FLAG, .commands = "train, eval, predict, export",
     .offset = AT(run.accept_data),
     .doc = "continue although the records (train --resume), config.json or the tokenizer differ from those at the run's begin"},
    {.name = "trace", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "train",
     .offset = AT(run.trace), .doc = "write a trace of all nodes for Perfetto to FILE"},
    {.name = "profile", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.profile),
     .doc = "print how each node spent its time"},
    {.name = "quick", .kind = CLV_CLI_FLAG, .commands = "check, checkpoint verify", .offset = AT(run.is_quick),
     .doc = "check: read a sample of the records only; checkpoint verify: ask workers for digests"},
    {.name = "step", .kind = CLV_CLI_TEXT, .arg = "N|latest|best",
     .commands = "checkpoint verify, checkpoint gather, checkpoint rm", .offset = AT(run.checkpoint),
     .doc = "checkpoint of step N, the newest, or the best one"},
    {.name = "orphans", .kind = CLV_CLI_FLAG, .commands = "checkpoint rm", .offset = AT(run.orphans),
     .doc = "remove files at workers that no checkpoint of the run lists any more"},
    {.name = "checkpoint", .kind = CLV_CLI_TEXT, .arg = "N|latest|best", .commands = "train, eval, predict, export",
     .offset = AT(run.checkpoint),
     .doc = "checkpoint of step N, the newest (default), or the best one; train --resume removes the later ones"},
    {.name = "weights", .kind = CLV_CLI_CHOICE, .arg = "KIND", .choices = weight_kinds,
     .commands = "eval, predict, export", .offset = AT(run.weights),
     .doc = "weights of the checkpoint: as trained (default), or their average, which runs with train.ema have"},
    {.name = "probabilities", .kind = CLV_CLI_FLAG, .commands = "predict", .offset = AT(run.probabilities),
     .doc = "write probabilities of the classes in place of the model's outputs"},
    {.name = "intervals", .kind = CLV_CLI_FLAG, .commands = "eval", .offset = AT(run.intervals),
     .doc = "add to accuracy and scores an interval of 95 %, by the bootstrap over the records"},
    {.name = "dropout-samples", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "predict", .min = 2, .max = 1000,
     .offset = AT(run.dropout_samples),
     .doc = "compute each record N times with dropout on; write the mean, and low and high of 95 % of the values"},
    {.name = "format", .kind = CLV_CLI_CHOICE, .arg = "FORMAT", .choices = record_formats,
     .commands = "predict", .offset = AT(run.format),
     .doc = "format of the predictions (default: by the file's extension, or npy)"},
    {.name = "output", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "predict, plan, report",
     .offset = AT(run.out),
     .doc = "predict: file for the predictions; plan --schedule: file for the instructions; report: the page "
            "(default: report.html)"},
    {.name = "schedule", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.schedule),
     .doc = "draw what each node does in a step"},
    {.name = "ask", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.ask_workers),
     .doc = "ask the workers which device and libraries compute each stage; --json: one line each, after the plan"},
    {.name = "suggest-cuts", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.suggest_cuts),
     .doc = "time the layers on this machine; propose cuts and the number of micro-batches"},
    {.name = "link", .kind = CLV_CLI_TEXTS, .arg = "WORKER=RTT_MS:MBIT", .commands = "plan",
     .offset = AT(links),
     .doc = "with --suggest-cuts: link to a worker (default 1:1000); ONE+OTHER=... is a direct link"},
    {.name = "speed", .kind = CLV_CLI_TEXTS, .arg = "NODE=FACTOR", .commands = "plan",
     .offset = AT(speeds),
     .doc = "with --suggest-cuts: speed of a worker or of master relative to this machine (default 1)"},
    {.name = "delete", .kind = CLV_CLI_FLAG, .commands = "cache", .offset = AT(run.delete_caches),
     .doc = "delete all listed caches"},
    {.name = "watch", .kind = CLV_CLI_FLAG, .commands = "status", .offset = AT(run.watch),
     .doc = "repeat until Ctrl-C"},
    {.name = "interval", .kind = CLV_CLI_REAL, .arg = "SECONDS", .commands = "status", .low = 0.1,
     .high = 3600, .offset = AT(run.interval_s), .doc = "time between two rounds (default 1)"},
    {.name = "follow", .key = 'f', .kind = CLV_CLI_FLAG, .commands = "log", .offset = AT(follows_log),
     .doc = "print new lines until the run ends; exit with the run's code"},
    {.name = "html", .kind = CLV_CLI_FLAG, .commands = "egress", .offset = AT(html),
     .doc = "print the page as HTML"},
    {.name = "adapters", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(adapters),
     .doc = "write adapter_config.json and adapter_model.safetensors there"},
    {.name = "merge", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(merge),
     .doc = "write model.safetensors there, each adapter added to its layer's weights"},
    {.name = "hf", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(hf),
     .doc = "write config.json and model.safetensors there, for from_pretrained of transformers"},
    {.name = "now", .kind = CLV_CLI_FLAG, .commands = "stop", .offset = AT(kills_now),
     .doc = "stop at once, without a checkpoint"},
    {.name = "dir", .kind = CLV_CLI_TEXT, .arg = "DIR", .commands = "certs init, certs issue, certs revoke",
     .offset = AT(dir), .doc = "folder of the certificate authority (default: certs)"},
    {.name = "days", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "certs init, certs issue, certs revoke",
     .min = 1, .max = CLV_TLS_MAX_DAYS, .offset = AT(days), .doc = "days until expiry (default: 365 for a certificate, 3650 for a CA, 30 for a revocation list)"},
    {.name = "uri", .kind = CLV_CLI_TEXT, .arg = "URI", .commands = "certs issue", .is_required = true,
     .offset = AT(uri), .doc = "identity, e.g. spiffe://hospital/worker/gpu1"},
    {.name = "dns", .kind = CLV_CLI_TEXTS, .arg = "NAME", .commands = "certs issue",
     .max = CLV_TLS_MAX_NAMES, .offset = AT(dns), .doc = "DNS name"},
    {.name = "ip", .kind = CLV_CLI_TEXTS, .arg = "ADDRESS", .commands = "certs issue",
     .max = CLV_TLS_MAX_NAMES, .offset = AT(ips), .doc = "IP address"},
    {.name = "force", .kind = CLV_CLI_FLAG, .commands = "certs issue, checkpoint rm", .offset = AT(is_forced),
     .doc = "certs issue: overwrite files of that name; checkpoint rm: delete the newest checkpoint, too"},
    {.name = "seconds", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .min = 1, .max = 86400,
     .offset = AT(seconds), .doc = "limit of processor time and of elapsed time per file (default: 60)"},
    {.name = "memory", .kind = CLV_CLI_NUMBER, .arg = "MIB", .commands = "words", .min = 16, .max = 1 << 20,
     .offset = AT(memory_mib), .doc = "limit of memory per file (default: 1024)"},
    {.name = "tokenizer", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "words", .offset = AT(tokenizer),
     .doc = "vocab.txt or tokenizer.json: print windows of tokens"},
    {.name = "max-tokens", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .min = 1, .max = 65536,
     .needs = "tokenizer", .offset = AT(max_tokens), .doc = "with --tokenizer: tokens of a window (default: 512)"},
    {.name = "stride", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .max = 65535,
     .needs = "tokenizer", .offset = AT(stride), .doc = "with --tokenizer: tokens of overlap of two windows"},
    {.name = "all", .kind = CLV_CLI_FLAG, .commands = "init", .offset = AT(writes_all_examples),
     .doc = "write example files that explain every key instead"},
    {.name = "make-data", .kind = CLV_CLI_FLAG, .commands = "init", .offset = AT(makes_data),
     .doc = "make synthetic data even if Fashion-MNIST is installed"},
    {.name = "from", .kind = CLV_CLI_TEXT, .arg = "TABLE", .commands = "init", .offset = AT(table_path),
     .doc = "write a session that trains on this CSV, with a use for each of its columns"},
};
/* clang-format on */

static clv_code write_man_session(clv_bytes *out, clv_err *err) {
  return clv_config_write_man_page(CLV_CONFIG_SESSION, out, err);
}

static clv_code write_man_policy(clv_bytes *out, clv_err *err) {
  return clv_config_write_man_page(CLV_CONFIG_POLICY, out, err);
}

static const clv_cli_page man_pages[] = {
    {.name = "cleave-session.yaml", .section = 5, .write = write_man_session},
    {.name = "cleave-egress.policy.yaml", .section = 5, .write = write_man_policy},
    {.name = "cleave-ops", .section = 7, .write = clv_ops_man},
};

int main(int argc, char **argv) {
  static const clv_cli cli = {
      .name = "cleave-master",
      .doc = "train a network split over machines, with the records at the master",
      .about =
          "The Cleave master has the data and drives the training. A session file says which "
          "stage runs where. Raw records and labels stay at the master unless that file permits "
          "otherwise.",
      .commands = commands,
      .n_commands = CLV_COUNT(commands),
      .options = options,
      .n_options = CLV_COUNT(options),
      .pages = man_pages,
      .n_pages = CLV_COUNT(man_pages),
      .see_also =
          "cleave\\-worker(1), cleave\\-session.yaml(5), cleave\\-worker.yaml(5), "
          "cleave\\-egress.policy.yaml(5), cleave\\-ops(7)",
  };
  static clv_master_arguments a;
  clv_tune_malloc();
  return clv_cli_main(&cli, argc, argv, &a);
}
