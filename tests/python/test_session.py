#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""cleave.Session: a session file from Python, without torch."""
import os, signal, sys, threading, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, IMAGE_DATA, SLOW, Cluster, Suite, synthetic_images
sys.path.insert(0, os.path.abspath(os.path.join(BIN, "python")))
import cleave  # noqa: E402: build/*/python has it

suite = Suite()
# a shell starts background jobs with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
BODY = IMAGE_DATA + """stages:
  - {name: front, at: master, layers: [{op: conv2d, out: 4, kernel: 3}, {op: relu}, {op: flatten}]}
  - {name: back, at: w1, layers: [{op: linear, out: 16}, {op: relu}]}
  - {name: head, at: master, layers: [{op: linear, out: 10}]}
loss: {kind: cross_entropy}
train: {epochs: 2, batch: 32, optimizer: {kind: adam, lr: 0.001}}
"""


def raised(kind, function, *args, **options):
    """The exception of that kind that the call raises."""
    try:
        function(*args, **options)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


class Seen(cleave.Callback):
    def __init__(self):
        self.called = []

    def begin(self, session):
        self.called.append("begin")

    def progress(self, event):
        self.called.append(f"step {event['step']}")

    def evaluation(self, event):
        self.called.append(event["event"])

    def end(self, run):
        self.called.append(run.state)


@suite.test
def session_is_checked_planned_trained_and_evaluated():
    s = cleave.Session(session, train={"epochs": 1})
    assert s.check()["records"] == 512
    plan = s.plan()
    assert [row.at for row in plan.stages] == ["master", "w1", "master"] and plan.egress[0].shape == (32, 400)
    assert "PICTURE" in repr(plan.egress) and "<table>" in plan.egress._repr_html_()
    seen = Seen()
    run = s.train(callbacks=[seen, cleave.Progress()])
    assert run.state == "finished" and run.name == "python", run
    assert seen.called[0] == "begin" and seen.called[-2:] == ["test", "finished"] and "step 16" in seen.called, seen.called
    assert len(run.steps) == 16 and run.steps[15].step == 16 and run.steps[0].loss > run.steps[15].loss > 0 and run.steps[3].samples_per_s > 0, run.steps[3]
    assert run.evaluations[-1].samples == 128 and {row.kind for row in run.egress} >= {"activation", "gradient"}
    assert [row.name for row in cleave.runs()] == ["python"]
    assert s.evaluate()["accuracy"] == run.evaluations[-1].accuracy
    outputs = s.predict()
    assert outputs.shape == (128, 10) and outputs.dtype.name == "float32"
    s.predict("outputs.csv", checkpoint="latest")
    assert os.path.getsize("outputs.csv") > 1000


@suite.test
def exit_codes_are_exceptions():
    e = raised(ValueError, cleave.Session(session, train={"batch": "x"}).check)
    assert e.code == cleave.Code.INVALID and "'train.batch' must be a whole number" in str(e) and "cleave-master" not in str(e), e
    raised(LookupError, cleave.Session, "nowhere.yaml")
    raised(cleave.Error, cleave.Session(session, name="nobody").evaluate)
    e = raised(ConnectionError, cleave.Session(session, name="lonely", workers={"w1": {"address": "127.0.0.1:1"}}).train)
    assert "127.0.0.1:1" in str(e), e


@suite.test
def interrupt_returns_at_once_and_leaves_a_checkpoint():
    s = cleave.Session(session, name="long", train={"epochs": 5000})
    sent = []

    class Press(cleave.Callback):
        def progress(self, event):
            if not sent:
                threading.Timer(0.3, lambda: (sent.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT))).start()
                sent.append(0)

    raised(KeyboardInterrupt, s.train, callbacks=[Press()])
    took = time.monotonic() - sent[1]
    assert took < 0.1 * max(1, SLOW), took
    assert s.evaluate()["samples"] == 128  # waits for the checkpoint
    assert s.run().state == "interrupted", s.run()
    assert s.train(resume=True, max_steps=len(s.run().steps) + 2).steps


@suite.test
def another_process_stops_a_run():
    s = cleave.Session(session, name="other", train={"epochs": 5000})

    class Stop(cleave.Callback):
        def progress(self, event):
            if not stops:
                stops.append(threading.Thread(target=cleave.Session(session, name="other").stop))
                stops[0].start()

    stops = []
    run = s.train(callbacks=[Stop()])
    stops[0].join()
    assert run.state == "stopped" and len(run.steps) > 0, run


if __name__ == "__main__":
    with Cluster(1) as cluster:
        os.mkdir(os.path.join(cluster.dir, "data"))
        synthetic_images(os.path.join(cluster.dir, "data"))
        session = cluster.session("python", BODY)
        os.chdir(cluster.dir)
        suite.main()
