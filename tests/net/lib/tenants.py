"""Several identities on one worker, and their sessions."""
from contexts import *

HEAVY, LIGHT, WATCH = "spiffe://test/heavy", "spiffe://test/light", "spiffe://test/watch"
MORE = 8  # the code RESOURCE_EXHAUSTED, as in a frame


def allow(name, **quotas):
    more = "".join(f", {k}: {v}" for k, v in quotas.items())
    return f"  - {{identity: \"spiffe://test/{name}\", role: master{more}}}\n"


def tenants(n=1, heavy={}, light={}, more="", env=None):
    """A cluster that also allows the identities heavy and light, and watch as an observer."""
    cluster = Cluster(0)
    the.cluster = cluster
    for i in range(n):
        cluster.issue(f"w{i + 1}", f"spiffe://test/w{i + 1}")
    for name in ("heavy", "light", "watch"):
        cluster.issue(name, f"spiffe://test/{name}")
    cluster.ports = [free_port() for _ in range(n)]
    cluster.extra_allow = (allow("heavy", **heavy) + allow("light", **light)
                           + f"  - {{identity: \"{WATCH}\", role: observer}}\n")
    cluster.limits, cluster.env = more, env
    cluster.workers = [Worker(cluster, f"w{i + 1}", cluster.worker_config(i), env) for i in range(n)]
    return cluster


class Tenant:
    """An identity at one worker, and its open sessions there."""

    def __init__(self, name, index=0):
        self.caller = Caller(the.cluster.ports[index], the.cluster.certs, name=name)
        self.caller.hello()
        self.sessions = []

    def open(self, graph=None, dims=(N, D), session=None, peers=(), attached=True, **kw):
        """A session with the module 0, and a lane; see Remote for what it can do."""
        w = Remote.__new__(Remote)
        w.name, w.caller, w.calls = self.caller.name, self.caller, {}
        w.session = SessionOf(self.caller, session or os.urandom(16), 1, 0)
        w.granted = self.caller.stub.OpenSession(pb.OpenSessionRequest(
            session=w.session.id, epoch=1, name="tenant", config_digest=bytes(32),
            peer_identities=peers), timeout=20 * SLOW).granted
        self.sessions.append(w)
        if graph is not False:
            w.load(0, graph or tanh_graph(), list(dims), **kw)
        if attached:
            w.attach()
        return w

    def close(self, w=None):
        for s in [w] if w else list(self.sessions):
            self.sessions.remove(s)
            s.session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except grpc.RpcError:
            pass
        self.caller.close()


def refusal(f):
    """(code, text) of the gRPC error of f."""
    try:
        f()
    except grpc.RpcError as e:
        return e.code(), e.details()
    except Ended as e:
        return e.code, e.text
    raise AssertionError("it was accepted")


def names(text, *parts):
    assert all(p in text for p in parts), (text, parts)
