#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The acceptance list of distributed autograd, item by item, on the C API over real daemons. Items
that a test of test_api.py or test_context.py has already are named here, and it must exist:

   1  a call whose value nobody uses does not hang backward
   2  A -> B -> A -> B
   3  a thousand contexts at once give the serial gradients
   4  10,000 steps leave memory, descriptors, threads and contexts flat on both sides
   5  kill -9 of the master: the workers' memory and contexts are back within the lease
   6  kill -9 of a worker in backward: the reason is told before the deadline
   8  a reference is passed on while its owner is slow
   9  backward twice with retain gives twice the gradient
  10  to_here before the value exists
  11  a step with one failing module moves no module
  14  malformed frames: refused, nothing crashes (ASan: make sanitize)
"""
import glob, os, random, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *
import api_soak
import pyclient
from pyclient import *

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM, FAULTS = (os.path.join(BIN, "net", name) for name in ("api_acceptance", "api_faults"))
ELSEWHERE = {
    "api_program.c": {
        1: "backward_does_not_wait_for_a_call_that_no_root_needs",
        3: "simultaneous_contexts_give_the_serial_gradients",
        9: "retained_backward_run_twice_doubles_the_gradient",
        "a reference fanned out to two consumers": "value_with_two_consumers_gets_the_sum_of_their_gradients"},
    "api_faults.c": {
        10: "deadlines_and_closing_end_a_wait",
        11: "worker_killed_before_the_step_leaves_the_other_unchanged"},
    "../contexts/test_context*.py": {
        "a gradient that arrives before PREPARE": "a_gradient_before_its_prepare_is_parked"},
}
suite = Suite()
HELD = 100 if LONG else 30  # number of contexts, of 2 MiB each, of a master that is killed
# how often each frame of the corpus is sent: first unchanged, then damaged
TIMES = 6 if LONG else 2


def passes(done, *names):
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert f"ok {name}\n" in done.stdout.replace("not ok", "not_ok"), done.stdout + done.stderr
    return done


@suite.test
def every_item_has_a_test():
    for pattern, items in ELSEWHERE.items():
        text = "".join(open(path).read() for path in glob.glob(os.path.join(HERE, pattern)))
        for item, name in items.items():
            assert name in text, f"item {item}: {name} is not in {pattern}"


@suite.test
def item_2_and_middle_modules_give_same_bits_at_every_placement():
    digests = set()
    with Cluster(2) as c:
        places = {"home": ("", ("master", "master")), "direct": ("transfer: direct\n", ("w1", "w2")),
                  "via": ("", ("w2", "w1")), "half": ("", ("w1", "master"))}
        for name, (body, where) in chosen(places, "home", "direct").items():
            done = passes(run(PROGRAM, c.session(name, body), *where),
                          "chain_a_b_a_b_adds_gradients_of_both_rounds",
                          "embedding_module_in_the_middle_has_gradients_of_its_rows",
                          "batch_parts_of_any_sizes_are_joined",
                          "frozen_module_in_the_middle_passes_gradients_on")
            digests.add(done.stdout.splitlines()[-1])
    assert len(digests) == 1, digests


@suite.test
def item_4_memory_stays_flat_over_ten_thousand_steps():
    """300 steps in `make test`."""
    grown = api_soak.soak(int(os.environ.get("CLEAVE_TEST_STEPS", "10000" if LONG else "300")))
    assert not grown, grown


def hold_and_die(c):
    """Each worker's memory while the master lives; back when their contexts and sessions are
    gone."""
    program = subprocess.Popen([PROGRAM, c.session("held", "transfer: direct\n"), "w1", "w2", "hold", str(HELD)],
                               stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "holding\n"
    assert [api_soak.held(c, i) for i in range(2)] == [HELD, HELD]
    full = [w.rss() for w in c.workers]
    program.kill()
    program.wait()
    end = time.monotonic() + 10 * SLOW
    for port in c.ports:
        with Caller(port, c.certs) as caller:  # one connection for all requests
            while left := api_soak.sessions_by(caller):
                assert time.monotonic() < end, left
                time.sleep(0.05)
    return full


@suite.test
def item_5_state_of_a_killed_master_is_freed_within_the_lease():
    """The next master uses the memory that the workers freed: the third needs no more than those
    before it (if malloc has only one arena)."""
    with Cluster(2, limits="limits: {tensors: 65536, peer_timeout: 2s, lease: 3s}\n", env={"MALLOC_ARENA_MAX": "1"}) as c:
        idle = [w.rss() for w in c.workers]
        first, second, third = (hold_and_die(c) for _ in range(3))
        assert min(a - b for a, b in zip(first, idle)) > 3 * HELD << 19, (idle, first)
        if not api_soak.SANITIZED:  # they keep freed memory
            assert all(d - max(a, b) < HELD << 19 for a, b, d in zip(first, second, third)), (first, second, third)
        passes(run(PROGRAM, c.session("again", "transfer: direct\n"), "w1", "w2"))


@suite.test
def items_6_8_10_killed_worker_and_early_references_are_handled():
    with Cluster(2) as c:
        passes(run(PROGRAM, c.session("faults", "transfer: direct\n"), "w1", "w2", str(c.workers[1].process.pid)),
               "references_are_used_before_their_owner_computes_them",
               "worker_killed_in_backward_is_reported_before_the_deadline")


@suite.test
def item_11_step_that_one_module_misses_changes_no_weights():
    with Cluster(2) as c:
        passes(run(FAULTS, c.session("step", "transfer: direct\n"), "w1", "w2", str(c.workers[1].process.pid)),
               "unanswered_step_is_rolled_back",
               "worker_killed_before_the_step_leaves_the_other_unchanged")


def spoil(r, data):
    """The data with one to four bytes changed, with its end cut off, or doubled."""
    b = bytearray(data)
    how = r.randrange(4)
    if how == 0:
        return bytes(b[:r.randrange(len(b))])
    if how == 1:
        return bytes(b + b)
    for _ in range(r.randint(1, 4)):
        b[r.randrange(len(b))] = r.randrange(256)
    return bytes(b)


def is_refused(caller, data):
    """Sends the bytes in a session of their own. Whether an ERROR, an ABORT or the session's end
    answered them."""
    session = caller.open()
    session.load(pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 1, "y", out=3)], outputs=[1]), [4, 3],
                 module=0)
    lane = session.attach()
    lane.send(data)
    lane.send(pb.Frame(kind=pb.PING, message=7))
    try:
        return lane.recv().kind in (pb.ERROR, pb.ABORT)
    except Ended:
        return True
    finally:
        lane.finish()
        try:
            session.close()
        except grpc.RpcError:
            pass  # the session ended with its stream


@suite.test
def item_14_malformed_frames_are_refused():
    corpus = sorted(glob.glob(os.path.join(HERE, "../../fuzz/corpus/wire/frame_*")))
    assert len(corpus) > 20
    r = random.Random(14)
    with Cluster(1) as c, Caller(c.ports[0], c.certs) as caller:
        refused = 0
        for path in corpus:
            data = read(path)[2:]  # without the two bytes that only the fuzz target reads
            for k in range(TIMES):
                refused += is_refused(caller, data if k == 0 else spoil(r, data))
                assert c.workers[0].process.poll() is None, f"{path} {k}: {c.workers[0].text()[-2000:]}"
        print(f"  {TIMES * len(corpus)} frames, {refused} refused")
        assert refused > len(corpus) // 2, refused
        session = c.session("after", "")
        passes(run(PROGRAM, session, "w1", "w1"))


if pyclient.MISSING:
    print(f"skip test_api_acceptance: {pyclient.MISSING}")
    sys.exit(0)
suite.main()
