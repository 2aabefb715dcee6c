/* SPDX-License-Identifier: Apache-2.0
 *
 * cleave-master: its commands and options. Each is a row; help, manual and completion follow.
 */
#include "common/engine/engine.h"
#include "master/master_int.h"

#define AT(member) offsetof(clv_master_arguments, member)

/* In the order of clv_predictions_format. */
static const char *const record_formats[] = {"csv", "jsonl", "npy", NULL};

static void keys(clv_bytes *out) { clv_config_keys(CLV_CONFIG_SESSION, out); }

/* clang-format off */
static const clv_cli_command commands[] = {
    {.name = "train", .args = "SESSION.yaml", .run = clv_cmd_train,
     .doc = "train the session's network; its files are in runs/NAME",
     .more = "Ctrl-C finishes the step and writes a checkpoint; --resume goes on from it, to the bit."},
    {.name = "eval", .args = "SESSION.yaml", .run = clv_cmd_eval,
     .doc = "loss and accuracy of a checkpoint on the test data"},
    {.name = "predict", .args = "SESSION.yaml", .run = clv_cmd_predict,
     .doc = "outputs of a checkpoint for the records of data.test, with the names that are known",
     .more = "Labels are not read. A CSV or JSON lines file has the image's path or the record's number, the "
             "class, its name and the outputs of each record; names go beside a NumPy file, to FILE.json."},
    {.name = "plan", .args = "SESSION.yaml", .run = clv_cmd_plan,
     .doc = "what runs where, in how much memory, and what leaves the network",
     .more = "Nothing is sent; with --ask each worker is asked what computes on its devices, and memory "
             "is that of what it names. With --suggest-cuts the layers are timed on this machine, and ways "
             "to cut the model are simulated with the links that --link states."},
    {.name = "check", .args = "SESSION.yaml", .run = clv_cmd_check,
     .doc = "look at the file, the shapes and all records; nothing is sent",
     .more = "Each record is read, images too, and one with a value that is not finite is named. "
             "--quick looks at 1,000 records of each file."},
    {.name = "doctor", .args = "SESSION.yaml", .run = clv_cmd_doctor,
     .doc = "try the way to each worker: names, TCP, TLS, identity, clocks, versions, artifacts"},
    {.name = "status", .args = "SESSION.yaml", .run = clv_cmd_status,
     .doc = "what every worker of a session file holds and does, and why it is slow",
     .more = "Ends with 4 when not every worker answers."},
    {.name = "cache", .args = "SESSION.yaml", .run = clv_cmd_cache,
     .doc = "what the workers of a session file keep on their disks of outputs of frozen fronts",
     .more = "Those of every session of this identity. A run deletes its own at its end; --delete is for what a "
             "run that was killed has left."},
    {.name = "runs", .args = "[FOLDER]", .run = clv_cmd_runs,
     .doc = "what was trained in a folder (runs, unless given), and what became of it"},
    {.name = "log", .args = "RUN", .run = clv_cmd_log,
     .doc = "what a run printed"},
    {.name = "egress", .args = "RUN", .run = clv_cmd_egress,
     .doc = "what left in a run: to whom, when, how much, by which policy; one page",
     .more = "With --html a page to print or to send, which needs nothing else."},
    {.name = "export", .args = "RUN", .run = clv_cmd_export,
     .doc = "write what a run has learned for other programs",
     .more = "With --adapters a folder that peft opens; with --merge weights to which the adapters are added; "
             "with --hf the same with config.json, which from_pretrained opens."},
    {.name = "stop", .args = "RUN", .run = clv_cmd_stop,
     .doc = "end a run after a checkpoint, and say how it ended"},
    {.name = "certs init", .args = "[NAME]", .run = clv_cmd_certs_init,
     .doc = "make a certificate authority"},
    {.name = "certs issue", .args = "NAME", .run = clv_cmd_certs_issue,
     .doc = "make a key and its certificate, for a master or a worker"},
    {.name = "certs revoke", .args = "[NAME]", .run = clv_cmd_certs_revoke,
     .doc = "put a certificate on the list of revoked ones, DIR/crl.pem, which is made anew",
     .more = "Without NAME the list is only made anew, to hold for longer. Give it to both sides as tls.crl."},
    {.name = "certs show", .args = "FILE.pem", .run = clv_cmd_certs_show,
     .doc = "what certificates say"},
    {.name = "words", .args = "PATH", .run = clv_cmd_words,
     .doc = "words and boxes of PDFs and images of pages, as JSON lines",
     .more = "PATH is a file or a folder; a folder in it is the class of what it holds. Each file is read by a process of "
             "its own, pdftotext or tesseract, under limits. With --tokenizer a line is a window of tokens."},
    {.name = "artifact", .args = "FOLDER", .run = clv_cmd_artifact,
     .doc = "write FOLDER/ARTIFACT.json: the files of a folder of pretrained weights, with digests",
     .more = "FOLDER has model.safetensors, or model.safetensors.index.json and its files. What is printed goes "
             "into worker.yaml and session.yaml. Equal files give an equal digest, wherever they are."},
    {.name = "ops", .args = "[NAME]", .run = clv_cmd_ops,
     .doc = "the operations that layers are made of, or one of them, with their attributes"},
    {.name = "init", .run = clv_cmd_init,
     .doc = "write a session and a worker that work into this folder, with certificates",
     .more = "The data are Fashion-MNIST where Debian's dataset-fashion-mnist is installed, "
             "and else made."},
};

#define SESSIONS "train, eval, predict, plan, check, doctor"

static const clv_cli_option options[] = {
    {.name = "set", .key = 's', .kind = CLV_CLI_TEXTS, .arg = "KEY=VALUE", .commands = SESSIONS ", status, cache",
     .offset = AT(sets), .keys = keys, .doc = "override one key of the session file, as in train.batch=64"},
    {.name = "json", .kind = CLV_CLI_FLAG, .commands = SESSIONS ", status, cache, certs show, runs, log, egress, stop, ops, artifact",
     .offset = AT(run.json), .doc = "print results as JSON, one object a line"},
    {.name = "max-steps", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "train",
     .offset = AT(run.max_steps), .doc = "stop when N steps are done in all; pipedream: with the round they are in"},
    {.name = "resume", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.resume),
     .doc = "go on from the newest complete checkpoint, or begin where none was written yet"},
    {.name = "fresh", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.fresh),
     .doc = "begin anew; a finished run that is there is kept in NAME.1, any other is deleted"},
    {.name = "accept-egress", .kind = CLV_CLI_FLAG, .commands = "train, eval, predict",
     .offset = AT(run.accept_egress),
     .doc = "go on though other tensors leave now than when the run began"},
    {.name = "accept-data", .kind = CLV_CLI_FLAG, .commands = "train, eval, predict, export",
     .offset = AT(run.accept_data),
     .doc = "go on though the records (train --resume), config.json or tokenizer are not those that the run began with"},
    {.name = "trace", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "train",
     .offset = AT(run.trace), .doc = "write what each node did and when, for Perfetto"},
    {.name = "profile", .kind = CLV_CLI_FLAG, .commands = "train", .offset = AT(run.profile),
     .doc = "print where the time went"},
    {.name = "quick", .kind = CLV_CLI_FLAG, .commands = "check", .offset = AT(run.quick),
     .doc = "look at a sample of the records"},
    {.name = "checkpoint", .kind = CLV_CLI_TEXT, .arg = "N|latest|best", .commands = "eval, predict, export",
     .offset = AT(run.checkpoint), .doc = "that of step N, the newest (default), or the best that was kept"},
    {.name = "format", .kind = CLV_CLI_CHOICE, .arg = "FORMAT", .choices = record_formats,
     .commands = "predict", .offset = AT(run.format),
     .doc = "of the predictions (default: as the name of the file ends, or npy)"},
    {.name = "output", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "predict, plan",
     .offset = AT(run.out),
     .doc = "predict: where the predictions go; plan --schedule: where the instructions go"},
    {.name = "schedule", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.schedule),
     .doc = "draw what each node does in a step"},
    {.name = "ask", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.ask),
     .doc = "ask the workers what computes each stage; with --json a line for each, behind the plan"},
    {.name = "suggest-cuts", .kind = CLV_CLI_FLAG, .commands = "plan", .offset = AT(run.suggest_cuts),
     .doc = "time the layers here and propose where to cut, and in how many micro-batches"},
    {.name = "link", .kind = CLV_CLI_TEXTS, .arg = "WORKER=RTT_MS:MBIT", .commands = "plan",
     .offset = AT(links),
     .doc = "with --suggest-cuts: a worker's link (default 1:1000); ONE+OTHER=... is a direct one"},
    {.name = "speed", .kind = CLV_CLI_TEXTS, .arg = "NODE=FACTOR", .commands = "plan",
     .offset = AT(speeds),
     .doc = "with --suggest-cuts: how fast a worker, or master, is beside this machine (default 1)"},
    {.name = "delete", .kind = CLV_CLI_FLAG, .commands = "cache", .offset = AT(run.delete_caches),
     .doc = "delete them all"},
    {.name = "watch", .kind = CLV_CLI_FLAG, .commands = "status", .offset = AT(run.watch),
     .doc = "ask again and again, until Ctrl-C"},
    {.name = "interval", .kind = CLV_CLI_REAL, .arg = "SECONDS", .commands = "status", .low = 0.1,
     .high = 3600, .offset = AT(run.interval_s), .doc = "time between two rounds (default 1)"},
    {.name = "follow", .key = 'f', .kind = CLV_CLI_FLAG, .commands = "log", .offset = AT(follow),
     .doc = "go on until the run ends, and exit as it did"},
    {.name = "html", .kind = CLV_CLI_FLAG, .commands = "egress", .offset = AT(html),
     .doc = "print the page as HTML"},
    {.name = "adapters", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(adapters),
     .doc = "write adapter_config.json and adapter_model.safetensors there"},
    {.name = "merge", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(merge),
     .doc = "write model.safetensors there, each adapter added to its layer's weights"},
    {.name = "hf", .kind = CLV_CLI_TEXT, .arg = "FOLDER", .commands = "export", .offset = AT(hf),
     .doc = "write config.json and model.safetensors there, for from_pretrained of transformers"},
    {.name = "now", .kind = CLV_CLI_FLAG, .commands = "stop", .offset = AT(now),
     .doc = "at once, without a checkpoint"},
    {.name = "dir", .kind = CLV_CLI_TEXT, .arg = "DIR", .commands = "certs init, certs issue, certs revoke",
     .offset = AT(dir), .doc = "folder of the certificate authority (default: certs)"},
    {.name = "days", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "certs init, certs issue, certs revoke",
     .min = 1, .max = 1000000, .offset = AT(days), .doc = "validity (default: 365; an authority's 3650, a list's 30)"},
    {.name = "uri", .kind = CLV_CLI_TEXT, .arg = "URI", .commands = "certs issue", .required = true,
     .offset = AT(uri), .doc = "identity, e.g. spiffe://hospital/worker/gpu1"},
    {.name = "dns", .kind = CLV_CLI_TEXTS, .arg = "NAME", .commands = "certs issue",
     .max = CLV_TLS_MAX_NAMES, .offset = AT(dns), .doc = "DNS name"},
    {.name = "ip", .kind = CLV_CLI_TEXTS, .arg = "ADDRESS", .commands = "certs issue",
     .max = CLV_TLS_MAX_NAMES, .offset = AT(ips), .doc = "IP address"},
    {.name = "force", .kind = CLV_CLI_FLAG, .commands = "certs issue", .offset = AT(force),
     .doc = "overwrite files of that name"},
    {.name = "seconds", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .min = 1, .max = 86400,
     .offset = AT(seconds), .doc = "processor time, and time, for one file (default: 60)"},
    {.name = "memory", .kind = CLV_CLI_NUMBER, .arg = "MIB", .commands = "words", .min = 16, .max = 1 << 20,
     .offset = AT(memory_mib), .doc = "memory for one file (default: 1024)"},
    {.name = "tokenizer", .kind = CLV_CLI_TEXT, .arg = "FILE", .commands = "words", .offset = AT(tokenizer),
     .doc = "vocab.txt or tokenizer.json: print windows of tokens"},
    {.name = "max-tokens", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .min = 1, .max = 65536,
     .offset = AT(max_tokens), .doc = "with --tokenizer: tokens of a window (default: 512)"},
    {.name = "stride", .kind = CLV_CLI_NUMBER, .arg = "N", .commands = "words", .max = 65535,
     .offset = AT(stride), .doc = "with --tokenizer: tokens that come again in the next window"},
    {.name = "all", .kind = CLV_CLI_FLAG, .commands = "init", .offset = AT(all),
     .doc = "write examples that explain every key instead"},
    {.name = "make-data", .kind = CLV_CLI_FLAG, .commands = "init", .offset = AT(make_data),
     .doc = "make data also where Fashion-MNIST is installed"},
};
/* clang-format on */

static clv_code man_session(clv_bytes *out, clv_err *err) {
  return clv_config_man(CLV_CONFIG_SESSION, out, err);
}

static clv_code man_policy(clv_bytes *out, clv_err *err) {
  return clv_config_man(CLV_CONFIG_POLICY, out, err);
}

static const clv_cli_page pages[] = {
    {.name = "cleave-session.yaml", .section = 5, .write = man_session},
    {.name = "cleave-egress.policy.yaml", .section = 5, .write = man_policy},
    {.name = "cleave-ops", .section = 7, .write = clv_ops_man},
};

int main(int argc, char **argv) {
  static const clv_cli cli = {
      .name = "cleave-master",
      .doc = "train a network split over machines, with the records at home",
      .about =
          "The Cleave master: it holds the data and drives training. What runs where is said by "
          "a session file; raw records and labels stay with the master unless that file says "
          "otherwise.",
      .commands = commands,
      .n_commands = CLV_COUNT(commands),
      .options = options,
      .n_options = CLV_COUNT(options),
      .pages = pages,
      .n_pages = CLV_COUNT(pages),
      .see_also =
          "cleave\\-worker(1), cleave\\-session.yaml(5), cleave\\-worker.yaml(5), "
          "cleave\\-egress.policy.yaml(5), cleave\\-ops(7)",
  };
  static clv_master_arguments a;
  clv_tune_malloc();
  return clv_cli_main(&cli, argc, argv, &a);
}
