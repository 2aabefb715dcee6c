"""Fair shares of the cores of a worker: sessions of several identities compute on one core, with
layers that take time but no processor, so that the test measures which session may compute when."""
# runs alone: measures shares of one core by time
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from tenants import *

suite = Suite()
TEST_OPS = dict(env={"CLEAVE_TEST_OPS": "1"})
CORE = f"cores: [{max(os.sched_getaffinity(0))}]\n"
LONG_MS, SHORT_MS = 50, 5


def wait_graph(ms):
    return pb.Graph(nodes=[node(INPUT, name="x"), node(WAIT, [0], 0, forward_ms=ms)], outputs=[1])


class Busy:
    """Keeps calls of `ms` in flight in a session of its own, and records the times of their
    ends."""

    def __init__(self, tenant, ms, in_flight):
        self.w, self.ms, self.times = tenant.open(wait_graph(ms)), ms, []
        self.tenant, self.context = tenant, 0
        for _ in range(in_flight):
            self.call()
        self.thread = threading.Thread(target=self.go_on, daemon=True)
        self.thread.start()

    def call(self):
        self.context += 1
        f = call(self.context, 100, 0, [(0, False, ONES, [1, D])], training=False)
        f.flags |= pb.FLAG_DELIVER
        self.w.send(f)

    def go_on(self):
        while True:
            try:
                f = self.w.lane.recv()
            except Ended:
                return
            if f.kind == pb.VALUE:
                self.times.append(time.monotonic())
                self.w.send(pb.Frame(kind=pb.END_CONTEXT, context=f.context, message=7))
                self.call()

    def done(self, begin, end):
        """Seconds of computing within [begin, end]."""
        return sum(begin <= t <= end for t in self.times) * self.ms / 1000

    def stop(self):
        self.tenant.close(self.w)
        self.thread.join()


def latencies(w, n):
    """The sorted latencies in ms of n calls, one after the other."""
    took, first = [], w.calls and max(w.calls) + 1 or 1
    for i in range(first, first + n):
        begin = time.monotonic()
        f = call(i, 100, 0, [(0, False, ONES, [1, D])], training=False)
        f.flags |= pb.FLAG_DELIVER
        w.send(f)
        w.recv(pb.VALUE, message=100)
        took.append((time.monotonic() - begin) * 1000)
        end(w, i)
        time.sleep(0.01)
    return sorted(took)


def a_light_one_beside(n_heavy, in_flight):
    with tenants(more=CORE, **TEST_OPS), Tenant("heavy") as heavy, Tenant("light") as light:
        w = light.open(wait_graph(SHORT_MS))
        latencies(w, 2)
        crowd = [Busy(heavy, LONG_MS, in_flight) for _ in range(n_heavy)]
        time.sleep(0.2)
        begin = time.monotonic()
        took = latencies(w, 12)
        end_ = time.monotonic()
        computed = sum(b.done(begin, end_) for b in crowd)
        for b in crowd:
            b.stop()
    print(f"# {n_heavy} heavy: light {took[0]:.0f} to {took[-1]:.0f} ms, median {took[6]:.0f}; "
          f"heavy computed {computed:.2f} s of {end_ - begin:.2f}")
    # the median call waits for one call of the others
    assert took[6] <= LONG_MS + SHORT_MS + 25 * SLOW, took
    assert took[-3] <= 2 * LONG_MS + 40 * SLOW, took  # without those that the machine delayed
    used = computed + 12 * SHORT_MS / 1000
    # no more than one core was used
    assert used <= end_ - begin + 2 * LONG_MS / 1000, (used, end_ - begin)
    # and the core did not idle
    assert computed >= 0.6 * (end_ - begin) / SLOW, (computed, end_ - begin)


@suite.test
@measured
def a_heavy_session_does_not_starve_a_light_one():
    a_light_one_beside(1, 8)


@suite.test
@measured
def eight_sessions_do_not_starve_another_identity():
    a_light_one_beside(8, 2)


def shares(**quotas):
    """Seconds of computing that heavy and light get, which both always have waiting calls."""
    with tenants(more=CORE, **quotas, **TEST_OPS), Tenant("heavy") as heavy, Tenant("light") as light:
        both = [Busy(heavy, SHORT_MS, 4), Busy(light, SHORT_MS, 4)]
        time.sleep(0.2)
        begin = time.monotonic()
        time.sleep(1.5)
        end_ = time.monotonic()
        got = [b.done(begin, end_) for b in both]
        for b in both:
            b.stop()
    print(f"# {quotas}: {got[0]:.2f} s and {got[1]:.2f} s of {end_ - begin:.2f}")
    assert sum(got) <= end_ - begin + 0.05, got
    assert sum(got) >= 0.6 * (end_ - begin) / SLOW, got
    return got


@suite.test
@measured
def equal_weights_get_equal_shares():
    a, b = shares()
    assert abs(a - b) <= 0.1 * (a + b) / 2, (a, b)


@suite.test
@measured
def shares_follow_weights():
    a, b = shares(heavy=dict(weight=3))
    assert 2.6 <= a / b <= 3.4, (a, b)


@suite.test
@measured
def request_does_not_wait_for_another_identitys_backlog():
    graph, dims = mlp(2048, 1024), [4, 512]
    with tenants(more=CORE) as _, Tenant("heavy") as heavy, Tenant("light") as light:
        begin, w = time.monotonic(), heavy.open(False, attached=False)
        w.load(0, graph, dims)
        one = time.monotonic() - begin
        loads = [threading.Thread(target=w.load, args=(1 + i, graph, dims)) for i in range(12)]
        for t in loads:
            t.start()
        took = []
        while any(t.is_alive() for t in loads) and len(took) < 6:
            time.sleep(one)
            begin = time.monotonic()
            light.caller.hello()
            took.append(time.monotonic() - begin)
        for t in loads:
            t.join()
    print(f"# a module is loaded in {one * 1000:.0f} ms; Hello beside 12 of them: "
          + " ".join(f"{1000 * t:.0f}" for t in took))
    assert len(took) > 3 and max(took) <= 2 * one + 0.1 * SLOW, (one, took)


@suite.test
@measured
def frames_that_compute_nothing_need_no_core():
    with tenants(more=CORE, **TEST_OPS), Tenant("heavy") as heavy, Tenant("light") as light:
        w, busy = light.open(wait_graph(1)), Busy(heavy, 600, 1)
        time.sleep(0.1)
        begin = time.monotonic()
        w.send(frame(pb.VALUE, ONES, [1, D], context=1, message=5))
        w.send(deliver(1, 5))
        w.recv(pb.VALUE, message=5)
        w.send(call(1, 100, 0, [(7, False)], training=False))  # which waits for its input
        w.send(pb.Frame(kind=pb.DROP, context=1, upstream=[5]))
        end(w, 1)
        took = time.monotonic() - begin
        busy.stop()
    assert took < 0.2 * SLOW, took


@suite.test
@measured
def close_does_not_wait_for_busy_cores():
    """One session computes, another has waiting calls, and a third has many that became ready at
    once."""
    with tenants(more=CORE, **TEST_OPS), Tenant("heavy") as heavy, Tenant("light") as light:
        a, b = heavy.open(wait_graph(400)), light.open(wait_graph(400))
        for w in (a, b):
            for i in range(8):
                w.send(call(1, 100 + i, 0, [(7, False)], training=False))
            settled(w, calls_waiting=8)
        for w in (a, b):
            w.send(frame(pb.VALUE, ONES, [1, D], context=1, message=7))
            time.sleep(0.1)
        for tenant, most in ((light, 0.35), (heavy, 0.8)):  # nothing to wait for; the call at work
            begin = time.monotonic()
            tenant.close()
            took = time.monotonic() - begin
            assert took <= most * SLOW, (tenant.caller.name, took)
        w = light.open(wait_graph(1))  # the core is free again
        assert latencies(w, 1)[0] < 100 * SLOW


if pyclient.MISSING:
    print("skip fair_shares:", pyclient.MISSING)
else:
    suite.main()
