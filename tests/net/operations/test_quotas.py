"""Quotas of an identity over all its sessions: a request above a quota is refused with its name,
the session continues and can free memory, and other identities are not affected."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from tenants import *

suite = Suite()
MIB = 1 << 20
ONE = [64, 128]  # 32 KiB, carried by the frame
LARGE = [256, 1024]  # 1 MiB, in chunks


def whole(w, context, value, dims=ONE):
    """Sends a VALUE of zeros. Returns the text of its error, "" if the worker stored it."""
    w.send(frame(pb.VALUE, bytes(4 * dims[0] * dims[1]), dims, context=context, message=value))
    w.send(deliver(context, value))
    got = w.lane.recv()
    if got.kind == pb.ERROR:
        return got.failure.text
    assert got.kind == pb.VALUE and got.message == value, got
    assert got.tensors or got.failure.code == MORE, got
    return got.failure.text


def fill(w, context, first=1, dims=ONE, most=1000):
    """Sends values until one is refused. Returns (number of stored ones, text of the refusal)."""
    for i in range(most):
        if text := whole(w, context, first + i, dims):
            return i, text
    raise AssertionError(f"{most} values were taken")


@suite.test
def sessions_over_the_quota_are_refused():
    with tenants(light=dict(sessions=2)), Tenant("light") as light, Tenant("heavy") as heavy:
        first, _ = light.open(False), light.open(False)
        code, text = refusal(lambda: light.open(False))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        names(text, "1 session more exceeds the quota", "sessions", "2 in use", "the limit is 2", "allow[].sessions")
        assert light.caller.hello().about.limits.sessions == 8
        assert first.granted.sessions == 2
        light.close(first)
        light.open(False)
        for _ in range(8):
            heavy.open(False)
        code, text = refusal(lambda: heavy.open(False))
        names(text, "8 in use", "the limit is 8", "limits.sessions")


@suite.test
def bytes_over_the_identity_quota_are_refused():
    with tenants(light=dict(bytes="8MiB")), Tenant("light") as light, Tenant("heavy") as heavy:
        a, b, stranger = light.open(), light.open(), heavy.open()
        assert a.granted.session_bytes == 8 * MIB
        for i in range(160):  # 5 MiB
            assert not whole(a, 1, 1 + i)
        # leaves memory for texts of errors
        b.send(call(9, 900, 77, [(1, True, f32([0.5] * N * D), [N, D])]))
        b.send(deliver(9, 900))
        assert b.lane.recv().failure.text
        end(b, 9)
        n, text = fill(b, 1)
        assert n < 96, n
        names(text, "quota", "bytes more", "all sessions of this identity", "the limit is 8388608",
              "allow[].bytes", "worker.yaml")
        for i in range(100):
            assert not whole(stranger, 1, 1 + i)
        end(a, 1)  # memory that one session frees is free for the other
        end(b, 1)
        assert not whole(b, 2, 1)
        forward_and_value(b, 3, 900, [[0.5] * D] * N)
        code, text = refusal(lambda: a.load(1, mlp(2048, 2048), [2, 16]))  # 16 MiB of weights
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        names(text, "module 1", "allow[].bytes")
        assert a.status().memory_bytes < 2 * MIB  # the refused module left nothing
        a.load(1, tanh_graph(), [N, D])


@suite.test
def chunked_tensors_over_the_quota_are_dropped():
    with tenants(light=dict(bytes="4MiB"), more="limits: {receive_window: 2MiB}\n"), Tenant("light") as light:
        w, data = light.open(), bytes(4 * LARGE[0] * LARGE[1])
        for i in range(12):  # six times the credit, which is returned also for dropped values
            f = frame(pb.VALUE, data, LARGE, context=1, message=1 + i)
            f.tensors[0].transfer, f.payload = 1 + i, b""
            w.send(f)
            for k in chunks(data, 1 + i):
                w.send(k)
            # waits between the values
            w.send(pb.Frame(kind=pb.END_CONTEXT, context=100 + i, message=7))
            assert w.lane.recv().kind == pb.ENDED
            until(lambda: w.status().values > i)
        w.send(deliver(1, 12))
        names(failure_of(w, 12).text, "allow[].bytes")
        f = call(1, 900, 0, [(0, False, b"", LARGE)], training=False)
        f.tensors[0].CopyFrom(tensor_head(data, LARGE, transfer=50))
        f.flags |= pb.FLAG_DELIVER
        w.send(f)
        for k in chunks(data, 50):
            w.send(k)
        names(failure_of(w, 900).text, "allow[].bytes")
        end(w, 1)
        forward_and_value(w, 2, 900, [[0.5] * D] * N)
        # a frame without a value that could be an error fails its context, or is answered by an
        # ERROR
        for i in range(1, 1000):
            if whole(w, 3, i):
                break
        w.send(call(4, 800, 0, [(1, True, f32([0.5] * N * D), [N, D])]))
        w.send(gradient(4, 1, 800, bytes(60000), [100, 150]))
        got = w.lane.recv()
        assert got.kind in (pb.ABORT, pb.ERROR) and got.failure.code == MORE, got
        end(w, 3)
        end(w, 4)
        forward_and_value(w, 5, 900, [[0.5] * D] * N)


@suite.test
def tensors_over_the_identity_quota_are_refused():
    with tenants(light=dict(tensors=40)), Tenant("light") as light:
        a, b = light.open(), light.open()  # each session has a few records in reserve
        assert a.granted.tensors == 40
        n, _ = fill(a, 1, most=60)
        m, text = fill(b, 1, most=60)
        assert n and m < n, (n, m)
        names(text, "1 tensor more exceeds", "all sessions of this identity", "40 in use", "the limit is 40",
              "allow[].tensors")
        end(a, 1)
        assert not whole(b, 1, 500)


@suite.test
def waiting_calls_over_the_identity_quota_are_refused():
    with tenants(light=dict(calls=5), more="limits: {calls: 4}\n"), \
            Tenant("light") as light, Tenant("heavy") as heavy:
        a, b, stranger = light.open(), light.open(), heavy.open()

        def waits(w, context, i):
            w.send(call(context, 100 + i, 0, [(7, False)], training=False))

        for w, n, key in ((a, 4, "limits.calls"), (b, 1, "allow[].calls")):
            for i in range(n):
                waits(w, 1, i)
            waits(w, 1, n)
            f = w.recv(pb.ERROR)
            assert f.failure.code == MORE, f
            names(f.failure.text, "1 call more exceeds", f"the limit is {4 if w is a else 5}", key)
        for i in range(4):
            waits(stranger, 1, i)
        a.send(frame(pb.VALUE, f32([0.5] * N * D), [N, D], context=1, message=7))
        for i in range(4):
            a.send(deliver(1, 100 + i))
        values(a, 100, 101, 102, 103)  # these calls have run and no longer count
        for i in range(2):
            waits(b, 2, i)
        end(b, 1)  # one ends with its context
        waits(b, 2, 2)
        settled(b, calls_waiting=3)
        assert not b.lane.poll() and not stranger.lane.poll()


@suite.test
def quota_error_outlives_its_session():
    """After a master has left because of a quota, the error of its ended session still names the
    quota."""
    with tenants(light=dict(calls=1, bytes="1MiB")), Tenant("light") as light, Tenant("watch") as watch:
        def last_errors():
            for caller in (light.caller, watch.caller):
                yield caller.stub.Status(pb.StatusRequest(), timeout=20 * SLOW).last_error.text

        w = light.open()
        for i in range(2):
            w.send(call(1, 100 + i, 0, [(7, False)], training=False))
        assert w.recv(pb.ERROR).failure.code == MORE
        light.close(w)
        for text in last_errors():
            names(text, "session tenant: ", "allow[].calls", "; then ")
        w = light.open()
        light.close(w)
        # an orderly end leaves no error
        assert all("allow[].calls" in text for text in last_errors())
        w = light.open()
        refusal(lambda: w.load(1, mlp(1024, 1024), [2, 16]))
        light.close(w)
        for text in last_errors():
            names(text, "session tenant: module 1 '' was not loaded", "allow[].bytes")


@suite.test
def load_over_the_worker_memory_limit_is_refused():
    with tenants(more="memory_limit: 24MiB\n"), Tenant("light") as light, Tenant("heavy") as heavy:
        weights = mlp(1024, 1024)  # 4 MiB and as much of momentum
        a, b = light.open(weights, [2, 16]), heavy.open(weights, [2, 16])
        code, text = refusal(lambda: a.load(1, mlp(2048, 2048), [2, 16]))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        names(text, "all sessions of this worker", "memory_limit")
        assert "in use" not in text, text  # the error does not say what others use
        rss = the.cluster.workers[0].rss()
        for _ in range(4):
            code, text = refusal(lambda: a.load(1, mlp(65536, 65536), [2, 16]))  # 32 GiB
            names(text, "module 1", "memory_limit")
        # an index that is in use is refused before the sizes are checked
        code, text = refusal(lambda: a.load(0, mlp(65536, 65536), [2, 16]))
        assert code == grpc.StatusCode.ALREADY_EXISTS, (code, text)
        assert SANITIZED or the.cluster.workers[0].rss() < rss + 32 * MIB
        light.close(a)
        b.load(1, weights, [2, 16])


@suite.test
def load_stops_when_its_caller_leaves():
    with tenants(), Tenant("light") as light, Tenant("heavy") as heavy:
        w, log = light.open(), the.cluster.workers[0].text
        assert "memory_limit=" in log() and "(four fifths of " in log(), log()
        request = load_request(w.session, mlp(16384, 16384), [pb.TensorSpec(dtype=F32, dims=[2, 16])], module=1)
        code, _ = refusal(lambda: w.caller.stub.LoadModule(request, timeout=0.2 * SLOW))
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: "the caller has left, or its deadline has passed" in log(), 30)
        until(lambda: w.status().memory_bytes < 2 * MIB)
        w.load(1, tanh_graph(), [N, D])


if pyclient.MISSING:
    print("skip quotas:", pyclient.MISSING)
else:
    suite.main()
