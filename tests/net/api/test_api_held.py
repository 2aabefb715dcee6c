#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Programs under the policy of their host: refused unless it says `programs: declared`; then they
may only send the rows that they declare. The record is compared with the bytes of tensors that the
links took, as the build of tests/faults counts them. The programs run in a mount namespace with an
/etc of their own."""
import json, os, shutil, socket, struct, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import policies, ways

PROGRAM, COUNTING = ways.program("api_held"), os.path.join(BIN, "faults", "libcleave.so.0")
POLICY = ("version: 1\n"
          "workers: [\"spiffe://test/w1\"]\n"
          "kinds: [activation, gradient, weights]\n"
          "largest_shape: [64, 64]\n"
          "dtypes: [f32]\n"
          "bytes_per_epoch: 4MiB\n"
          "allow: {labels_readable: true}\n")
DECLARED = POLICY + "programs: declared\n"
STEP = 4 * (4 * 3 + 4 * 2)  # bytes of an input and a gradient of a step
WEIGHTS = 4 * (2 * 3 + 2)
suite = Suite()


def program(*modes, session=None, ends=0):
    """Runs these modes of the program. Returns (bytes of tensors that left the host, sums of the
    record).
    ends: the wanted exit status."""
    folder, counted = os.path.join(cluster.dir, "run"), os.path.join(cluster.dir, "counted")
    shutil.rmtree(folder, ignore_errors=True)
    with open(counted, "wb") as f:
        f.write(bytes(8))
    done = run(*host.near, PROGRAM, session or cluster.session("held", ""), folder, *modes, cwd=cluster.dir,
               env={"CLEAVE_TEST_SENT": counted, "LD_LIBRARY_PATH": os.path.dirname(COUNTING)})
    assert done.returncode == ends and done.stdout.count("ok ") == len(modes), done.stdout + done.stderr
    with open(counted, "rb") as f:
        sent = struct.unpack("<Q", f.read(8))[0]
    return sent, Record(folder)


class Record:
    """Sums of a program's egress.jsonl."""

    def __init__(self, folder):
        self.path, self.sums, allowed, self.bytes, self.open, self.starts = os.path.join(folder, "egress.jsonl"), {}, {}, 0, 0, []
        if not os.path.exists(self.path):
            return
        with open(self.path) as f:
            for line in map(json.loads, f):
                key = line["attempt"], line.get("id")
                if line["event"] == "attempt":
                    self.starts.append(line)
                elif line["event"] == "allow":
                    allowed[key] = line
                elif line["event"] == "settle":
                    row = allowed.pop(key)
                    what = row["kind"], row["name"]
                    self.sums[what] = self.sums.get(what, 0) + line["bytes"]
                elif line["event"] == "end":
                    self.bytes += line["bytes"]
        self.open = sum(row["bytes"] for row in allowed.values())
        assert self.open or sum(self.sums.values()) == self.bytes, (allowed, self.sums, self.bytes)


class Silent:
    """A port that counts connections and closes each at once."""

    def __init__(self):
        self.socket, self.came = socket.create_server(("127.0.0.1", 0)), 0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            self.socket.accept()[0].close()
            self.came += 1

    def session(self):
        with open(cluster.session("silent", "")) as f:
            text = f.read().replace(cluster.address(0), "127.0.0.1:%d" % self.socket.getsockname()[1])
        path = os.path.join(cluster.dir, "silent.yaml")
        with open(path, "w") as f:
            f.write(text)
        return path


@suite.test
def program_runs_without_a_policy():
    host.decree(None)
    sent, record = program("undeclared_program_runs_without_a_policy")
    assert sent == WEIGHTS + 2 * STEP and not record.starts, (sent, record.starts)
    sent, record = program("undeclared_program_is_recorded_as_the_worst")
    assert sent == record.bytes == WEIGHTS + 2 * STEP, (sent, record.sums)
    assert record.sums == {("input", "input 0, not declared: RAW INPUT"): 2 * 48, ("weights", "0.bias"): 8,
                           ("gradient", "not declared: LABELS READABLE"): 2 * 32, ("weights", "0.weight"): 24}, record.sums


@suite.test
def policy_that_does_not_permit_programs_stops_them_before_they_connect():
    nobody = Silent()
    modes = {POLICY: "program_is_refused_by_the_policy", DECLARED + "program: declared\n": "damaged_policy_stops_the_program",
             DECLARED + "max_read: {labels: 0.3}\n": "limited_reading_refuses_programs",
             DECLARED: "program_without_a_record_is_refused",
             DECLARED.replace("w1", "w2"): "policy_of_another_worker_refuses_the_program"}
    for text, mode in modes.items():
        host.decree(text)
        sent, record = program(mode, session=nobody.session())
        assert sent == 0 and not record.starts and nobody.came == 0, (mode, sent, nobody.came)


@suite.test
def declared_tensors_are_sent_and_recorded_to_the_byte():
    host.decree(DECLARED)
    sent, record = program("declared_tensors_are_sent")
    assert sent == record.bytes == WEIGHTS + 3 * STEP, (sent, record.sums)
    assert record.sums[("activation", "input 0, declared by the program: MIXED")] == 3 * 48, record.sums
    assert record.sums[("gradient", "declared by the program: LABELS READABLE")] == 3 * 32, record.sums
    start, = record.starts
    assert start["command"] == "program" and start["policy"] == "/etc/cleave/egress.policy.yaml" and start["approver"], start
    assert not record.open
    page = run(MASTER, "egress", os.path.dirname(record.path))
    assert "declared by the program: MIXED" in page.stdout and page.returncode == 0, page.stdout + page.stderr


@suite.test
def record_of_a_killed_program_has_at_least_what_left():
    sent, record = program("killed_program_leaves_its_allowances", ends=-9)
    assert sent == WEIGHTS + STEP <= record.open + sum(record.sums.values()), (sent, record.open, record.sums)


@suite.test
def undeclared_tensor_is_not_sent():
    sent, record = program("undeclared_tensor_stops_everything", "tensor_of_another_form_is_undeclared",
                           "undeclared_weights_are_not_sent", "row_against_the_policy_is_refused")
    assert sent == record.bytes == 0 and len(record.starts) == 4, (sent, record.sums)


@suite.test
def types_and_outputs_are_recorded_to_the_byte():
    host.decree(DECLARED.replace("[f32]", "[f32, bf16]"))
    sent, record = program("types_and_outputs_have_rows_of_their_own")
    readable = "declared by the program: LABELS READABLE"
    rows = {("activation", "input 0, declared by the program: MIXED"): 2 * 4 * 3, ("gradient", readable): 2 * 4 * 4 * 2,
            ("gradient", f"output 1, {readable}"): 2 * 4}
    assert {k: v for k, v in record.sums.items() if k[0] != "failure"} == rows, record.sums
    assert sent == sum(rows.values()) == record.bytes - record.sums.get(("failure", ""), 0), (sent, record.sums)


@suite.test
def epoch_of_a_program_is_bounded():
    host.decree(DECLARED.replace("4MiB", str(WEIGHTS + STEP + 40)))
    sent, record = program("epoch_bounds_the_bytes")
    # the third step's input was sent, its gradient was not, and the worker heard of the failure
    assert sent == WEIGHTS + 2 * STEP + 48 == record.bytes - record.sums["failure", ""], (sent, record.sums)


if policies.missing():
    print("skip held:", policies.missing(), flush=True)
else:
    with Cluster(1) as cluster:
        host = policies.Host(cluster.dir)
        suite.main()
