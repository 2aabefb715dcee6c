"""Two masters and an observer on the same workers: none can use things of another one. Each request
with the id of another's session, context, value or module gets the same answer as with an id that
does not exist, even from a session of the same id."""
import os, re, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from tenants import *

suite = Suite()
MASTER_, CONTEXT, VALUE_, MODULE = "spiffe://test/master", 77, 770, 5
X = f32([0.5] * N * D)


class Victim:
    """The session of another master: a context with a value, and gradients in flight."""

    def __init__(self, index=0, peers=()):
        self.tenant = Tenant("master", index)
        self.w = self.tenant.open(False, peers=peers, attached=False)
        self.id = self.w.session.id
        self.w.load(MODULE, tanh_graph(), [N, D])
        self.w.attach()
        self.w.send(call(CONTEXT, VALUE_, MODULE, [(1, True, X, [N, D])]))
        self.w.send(deliver(CONTEXT, VALUE_))
        self.value = self.w.recv(pb.VALUE, message=VALUE_).payload
        self.weights, self.before = state(self.w, pb.STATE_WEIGHTS, MODULE), self.counters()

    def counters(self):
        s = self.w.status()
        return s.contexts, s.values, s.calls_waiting, s.late_frames, s.memory_bytes, s.modules[0].forwards

    def is_untouched(self):
        assert self.counters() == self.before, (self.counters(), self.before)
        self.w.send(deliver(CONTEXT, VALUE_))
        assert self.w.recv(pb.VALUE, message=VALUE_).payload == self.value
        assert state(self.w, pb.STATE_WEIGHTS, MODULE) == self.weights

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tenant.__exit__()


# ---- calls ---------------------------------------------------------------------------------------

def unary(stub, sid, graph):
    """{method: call} of every method that names a session, with this id."""
    close = pb.CloseSessionRequest(session=sid, epoch=1)
    return {
        "LoadModule": lambda: stub.LoadModule(load_request(SessionOf(None, sid, 1, 0), graph,
                                                         [pb.TensorSpec(dtype=F32, dims=[N, D])])),
        "CloseSession": lambda: stub.CloseSession(close),
        "Status": lambda: stub.Status(pb.StatusRequest(session=sid)),
    }


def outcome(f):
    try:
        return "OK", type(f()).__name__
    except grpc.RpcError as e:
        return e.code(), e.details()


@suite.test
def foreign_session_is_answered_like_a_missing_one():
    with tenants() as _, Victim() as victim, Tenant("heavy") as other, Tenant("watch") as watch:
        for who in (other, watch):
            stub = who.caller.stub
            theirs, none = (unary(stub, sid, tanh_graph()) for sid in (victim.id, os.urandom(16)))
            for method in theirs:
                if (who, method) != (watch, "Status"):  # an observer sees all sessions
                    assert outcome(theirs[method]) == outcome(none[method]) != "OK", method
            fresh = os.urandom(16)
            opened = [outcome(lambda: stub.OpenSession(pb.OpenSessionRequest(
                session=sid, epoch=1, name="x", config_digest=bytes(32)))) for sid in (victim.id, fresh)]
            assert opened[0] == opened[1], opened
            assert (opened[0][0] == "OK") == (who is other), opened
            if who is other:
                stub.CloseSession(pb.CloseSessionRequest(session=victim.id, epoch=1))
                mine = stub.Status(pb.StatusRequest()).sessions
                assert [s.session for s in mine] == [fresh], mine
                stub.CloseSession(pb.CloseSessionRequest(session=fresh, epoch=1))
        assert len(watch.caller.stub.Status(pb.StatusRequest()).sessions) == 1
        victim.is_untouched()


SECRET = "do-not-tell"  # is in each name that heavy uses


def told_to(name):
    """The StatusReply for an identity, without fields that change by themselves."""
    with Tenant(name) as who:
        reply = who.caller.stub.Status(pb.StatusRequest(), timeout=20 * SLOW)
    raw = reply.SerializeToString()
    reply.uptime_ms = reply.about.unix_ms = 0
    return reply, raw


@suite.test
def status_shows_a_tenant_only_its_own_sessions():
    """No name, id, count, size or error of another identity changes the status of a tenant.
    Identities without rights, also workers, are refused; only observers see the operator's
    numbers."""
    with tenants(heavy=dict(sessions=1, bytes=1 << 24), light=dict(sessions=3, bytes=1 << 26)) as _, \
            Tenant("light") as light, Tenant("heavy") as heavy:
        mine = light.open(name="mine")
        until(lambda: mine.status().idle_ns)
        before, _ = told_to("light")
        assert before.open_sessions == 1 and before.memory_bytes == before.sessions[0].memory_bytes > 0, before
        # its own quotas
        assert (before.about.limits.sessions, before.memory_limit) == (3, 1 << 26), before
        assert [m.name for m in before.sessions[0].modules] == ["mine"], before
        sid = os.urandom(16)
        theirs = heavy.open(mlp(256, 64), [4, 64], session=sid, name=SECRET)
        refusal(lambda: heavy.open(False, attached=False))  # over its quota of sessions
        theirs.send(call(1, 10, 7, [(1, True, X, [N, D])]))  # a module that does not exist
        theirs.send(deliver(1, 10))
        theirs.recv(pb.VALUE, message=10)
        with Caller(the.cluster.ports[0], the.cluster.certs, name="w1") as peer:  # not in `allow`
            assert refusal(lambda: peer.stub.Status(pb.StatusRequest()))[0] == grpc.StatusCode.UNAVAILABLE
        after, raw = told_to("light")
        # times of its own and its link, asked by Status itself
        for s in (before.sessions[0], after.sessions[0]):
            for field in ("links", "age_ms", "busy_ns", "idle_ns", "turn_ns", "bytes_in", "bytes_out"):
                s.ClearField(field)
        assert before == after, (before, after)
        for field in ("rss_bytes", "connections", "max_connections", "handshake_failures"):
            assert not getattr(after, field), (field, after)
        for part in (SECRET.encode(), sid, HEAVY.encode(), b"heavy", WATCH.encode(), b"spiffe://test/w1"):
            assert part not in raw, part
        all_, raw = told_to("watch")
        assert all_.open_sessions == 2 and all_.rss_bytes > 1 << 20 and all_.connections >= 3, all_
        assert all_.memory_bytes == sum(s.memory_bytes for s in all_.sessions), all_
        assert SECRET.encode() in raw and sid in raw and all_.last_error.text, all_
        ours, raw = told_to("heavy")
        assert "quota" in ours.last_error.text and SECRET.encode() in raw and b"light" not in raw, ours
        assert "module 7 is not loaded at this node" in ours.sessions[0].last_error.text, ours


@suite.test
def attach_to_a_foreign_session_is_refused():
    with tenants(2) as _, Victim(peers=["spiffe://test/w2"]) as victim, Tenant("heavy") as other, \
            Tenant("watch") as watch, Tenant("w2") as peer:
        def attach(who, sid, **kw):
            return refusal(lambda: SessionOf(who.caller, sid, kw.pop("epoch", 1), 0).attach(**kw))

        for who in (other, watch):
            for kw in (dict(), dict(epoch=2), dict(lane=1, lanes=1), dict(role=pb.ROLE_PEER),
                       dict(role=pb.ROLE_PEER, owner=MASTER_), dict(incarnation=bytes(16))):
                assert attach(who, victim.id, **dict(kw)) == attach(who, os.urandom(16), **dict(kw)), kw
        nobody = attach(peer, os.urandom(16), role=pb.ROLE_PEER, owner=MASTER_)
        # a worker may only act for the owner of the session
        for owner in ("", HEAVY, "spiffe://test/w2"):
            assert attach(peer, victim.id, role=pb.ROLE_PEER, owner=owner) == nobody
        SessionOf(peer.caller, victim.id, 1, 0).attach(role=pb.ROLE_PEER, owner=MASTER_)
        victim.is_untouched()


@suite.test
def peer_link_for_another_owner_is_refused():
    """heavy opens a session of the same id at w1, which dials the victim's session at w2."""
    with tenants(2) as _, Victim(1, peers=["spiffe://test/w1"]) as victim, Tenant("heavy") as other, \
            Tenant("master") as owner:
        results = []
        for sid in (victim.id, os.urandom(16)):
            w = other.open(session=sid)
            results.append(refusal(lambda: w.load(1, tanh_graph(), [N, D], peers=["w2"])))
        assert results[0] == results[1] and "no such session" in results[0][1], results
        w = owner.open(session=victim.id)  # beside the session of heavy; this one may dial
        w.load(1, tanh_graph(), [N, D], peers=["w2"])
        victim.is_untouched()


# ---- frames --------------------------------------------------------------------------------------

def frames(context, value, module):
    """{kind: frame} of the frames that name these ids."""
    what = pb.State(what=pb.STATE_WEIGHTS, name="0.weight", count=1)
    step = pb.Commit(scale=1, lr=1, apply=True)
    return {
        pb.CALL: [call(context, value, module, [(1, True, X, [N, D])]),
                  call(context, 9000, 0, [(value, True)]),
                  call(context, value, 0, [(0, True, X, [N, D])])],
        pb.DELIVER: [deliver(context, value), deliver(context, value, "w2")],
        pb.VALUE: [frame(pb.VALUE, X, [N, D], context=context, message=value)],
        pb.DROP: [pb.Frame(kind=pb.DROP, context=context, upstream=[value])],
        pb.SPARE: [pb.Frame(kind=pb.SPARE, context=context, upstream=[value])],
        pb.PREPARE: [prepare(context, 1, [(value, 1, False, [(0, 1, 0, 0)])], vote=True)],
        pb.GRADIENT: [gradient(context, 1, value, X, [N, D])],
        pb.APPLY: [pb.Frame(kind=pb.APPLY, context=context, message=5, module=m, commit=step)
                   for m in (module, ALL)],
        pb.REVERT: [pb.Frame(kind=pb.REVERT, context=context, message=5)],
        pb.END_CONTEXT: [pb.Frame(kind=pb.END_CONTEXT, context=context, message=5, commit=c)
                         for c in (None, step)],
        pb.ABORT: [pb.Frame(kind=pb.ABORT, context=context, failure=pb.Failure(code=1, text="x"))],
        pb.ERROR: [pb.Frame(kind=pb.ERROR, context=context, failure=pb.Failure(code=1, text="x"))],
        pb.STATE_GET: [pb.Frame(kind=pb.STATE_GET, message=5, module=m, context=c, state=pb.State(what=w))
                       for m in (0, module) for c, w in ((0, pb.STATE_WEIGHTS), (0, pb.STATE_OPTIMIZER),
                                                         (context, GRADIENTS))],
        pb.STATE_PUT: [frame(pb.STATE_PUT, X, [N, D], module=module, message=5, state=what)],
        pb.UNLOAD: [pb.Frame(kind=pb.UNLOAD, module=module, message=5)],
        pb.CHUNK: [pb.Frame(kind=pb.CHUNK, payload=X, chunk=pb.Chunk(transfer=value, total=2 * len(X)))],
    }


def answers(tenant, sid, f):
    """All answers to f in a session of the tenant, without ids."""
    w, got, counters = tenant.open(session=sid), [], None
    try:
        w.lane.send(f)
        w.lane.send(pb.Frame(kind=pb.END_CONTEXT, context=1 << 40, message=99))
        while True:
            a = w.lane.recv()
            if a.kind == pb.ENDED and a.reply_to == 99:
                break
            got.append((a.kind, a.failure.code, re.sub(r"\b[0-9a-f]+\b", "#", a.failure.text), a.payload,
                        a.state.count))
        counters = w.status()
    except Ended as end_:  # the session ends soon after
        got.append((end_.code, re.sub(r"\b[0-9a-f]+\b", "#", end_.text)))
    got.append((counters.contexts, counters.values, counters.late_frames) if counters else None)
    try:
        tenant.close(w)
    except grpc.RpcError:
        pass
    return got


@suite.test
def frames_cannot_reach_a_foreign_session():
    with tenants() as _, Victim() as victim, Tenant("heavy") as other:
        theirs, none = frames(CONTEXT, VALUE_, MODULE), frames(88, 880, 6)
        # kinds that name none of these ids
        skipped = (pb.ATTACH, pb.ATTACHED, pb.PING, pb.PONG, pb.CREDIT)
        for kind in pb.FrameKind.values():
            if kind in skipped or kind == 0:
                continue
            bare = [[pb.Frame(kind=kind, context=c, message=m, module=s)]
                    for c, m, s in ((CONTEXT, VALUE_, MODULE), (88, 880, 6))]
            for a, b in zip(theirs.get(kind, bare[0]), none.get(kind, bare[1])):
                got = answers(other, victim.id, a), answers(other, os.urandom(16), b)
                assert got[0] == got[1], (pb.FrameKind.Name(kind), got)
        victim.is_untouched()


@suite.test
def session_closed_during_a_module_load_leaks_nothing():
    """No thread and no memory is left, and the worker still works."""
    with tenants() as cluster, Tenant("heavy") as other:
        for i in range(20):
            w, done = other.open(False, attached=False), []
            load = threading.Thread(target=lambda: done.append(outcome(
                lambda: w.load(0, mlp(2048, 512), [4, 512]))))
            load.start()
            time.sleep(0.001 * (i % 10))
            other.close(w)
            load.join()
            for code, text in done:
                assert code == "OK" or (code, text) in (
                    (grpc.StatusCode.NOT_FOUND, "no such session"),
                    (grpc.StatusCode.CANCELLED, "the caller has left, or its deadline has passed")), done
        assert cluster.workers[0].process.poll() is None
        threads = os.listdir(f"/proc/{cluster.workers[0].process.pid}/task")
        w = other.open()
        forward_and_value(w, 1, 900, [[0.5] * D] * N)
        assert len(os.listdir(f"/proc/{cluster.workers[0].process.pid}/task")) <= len(threads) + 2


if pyclient.MISSING:
    print("skip isolation:", pyclient.MISSING)
else:
    suite.main()
