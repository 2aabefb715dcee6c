"""Hostile unary messages: cut off, oversized, out of order, with impossible shapes and graphs."""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from hostile import *

attack = Attacks()


def spec(*dims, dtype=F32):
    return [pb.TensorSpec(dtype=dtype, dims=dims)]


def load_of(s, graph=None, inputs=None, **changed):
    return load_request(s, graph or mlp(8, 4), inputs or spec(4, 6), **changed)


def load_fails(e, *codes, **changed):
    s = e.made[0] if e.made else e.session(loaded=False, attached=False)
    return fails(lambda: e.caller.stub.LoadModule(load_of(s, **changed), timeout=30 * SLOW), *codes)


BAD = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED")
REQUESTS = {
    "Hello": lambda: pb.HelloRequest(about=pb.About(protocol=9, software="x",
                                                    capabilities=["a", "b"])),
    "OpenSession": lambda: pb.OpenSessionRequest(session=os.urandom(16), epoch=1, name="cut",
                                                 config_digest=bytes(32)),
    "CloseSession": lambda: pb.CloseSessionRequest(session=os.urandom(16), epoch=1),
    "LoadModule": lambda: load_of(SessionOf(None, os.urandom(16), 1, 0)),
    "Status": lambda: pb.StatusRequest(session=os.urandom(16)),
}


@attack
def truncated_unary(e):
    r, sent = random.Random(1), 0
    for method, make in REQUESTS.items():
        whole = make().SerializeToString()
        for cut in sorted({1, len(whole) - 1, *(r.randrange(1, len(whole)) for _ in range(6))}):
            code, text = e.caller.raw(method, whole[:cut])
            # a message that is cut between fields may be valid
            at_a_border = code == grpc.StatusCode.OK
            assert at_a_border or code.name in BAD, (method, cut, code, text)
            sent += cut
    return sent


@attack
def garbage_unary(e):
    r, sent = random.Random(2), 0
    for method in REQUESTS:
        for size in (1, 17, 300, 5000):
            code, text = e.caller.raw(method, r.randbytes(size))
            assert code.name in BAD, (method, size, code, text)
            sent += size
    return sent


@attack
def oversized_unary(e):
    for method, make in REQUESTS.items():
        unknown = b"\xaa\x3e\x80\x80\x10" + bytes(256 << 10)
        code, text = e.caller.raw(method, make().SerializeToString() + unknown)
        assert code == MORE, (method, code, text)
    code, text = e.caller.raw("LoadModule", bytes(3 * MIB))  # above the limit of any message
    assert code == MORE, (code, text)
    return 3 * MIB


@attack
def too_much_in_a_small_message(e):
    """Many empty elements: two bytes each on the wire, far more when decoded."""
    for method, field in (("LoadModule", b"\x7a\x00"), ("Hello", b"\x0a\x02\x12\x00"),
                          ("OpenSession", b"\x22\x00")):
        code, text = e.caller.raw(method, field * (100_000 // len(field)))
        assert code.name in BAD, (method, code, text)
    return 100_000


@attack
def deeply_nested_unary(e):
    groups = b"\x0b" * 20_000 + b"\x0c" * 20_000  # group 1 in group 1 ...
    message = b""
    while len(message) < 50_000:  # field 5 in field 5 ...: graph, then unknown all the way down
        n, length = len(message), b""
        while n > 127:
            length, n = length + bytes([n & 127 | 128]), n >> 7
        message = b"\x2a" + length + bytes([n]) + message
    for method in REQUESTS:
        for data in (groups, message, b"\x0b" * 40_000):
            code, text = e.caller.raw(method, data)
            # some messages skip it as an unknown field
            skipped = data is message and code == grpc.StatusCode.OK
            assert skipped or code.name in BAD, (method, code, text)
    return len(groups)


@attack
def overflowing_shapes_unary(e):
    for dims in ([1 << 32, 1 << 32], [1 << 63, 2], [(1 << 64) - 1], [1 << 20] * 8, [4] * 9, [],
                 [0, 6], [4, 0], [4, 1 << 62]):
        load_fails(e, INVALID, MORE, inputs=spec(*dims))
    for dtype in (0, 2, 5, 99):
        load_fails(e, INVALID, inputs=spec(4, 6, dtype=dtype))
    for bad in (dict(out=1 << 62), dict(out=-1), dict(out=0), dict(out=(1 << 31) - 1),
                dict(out=[1, 2, 3]), dict(), dict(out=3, kernel=3), dict(out=3, groups=0)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, **bad)], outputs=[1])
        load_fails(e, INVALID, MORE, graph=graph)
    for bad in (dict(kernel=1 << 40), dict(kernel=3, pad=1 << 40), dict(kernel=3, stride=0),
                dict(kernel=30), dict(kernel=3, groups=1 << 33), dict(kernel=[3, 3, 3]),
                dict(kernel=-1)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(CONV, [0], 0, out=4, **bad)], outputs=[1])
        load_fails(e, INVALID, MORE, graph=graph, inputs=spec(2, 3, 8, 8))
    return 0


@attack
def absurd_extents(e):
    """Extents in the allowed range, but far beyond the session's 64 MiB: refused before memory is
    used."""
    for out, wide in ((1 << 16, 1 << 16), (1 << 22, 6), (6, 1 << 22), (1 << 14, 1 << 12)):
        graph = pb.Graph(nodes=[node(INPUT, name="x"), node(LINEAR, [0], 0, out=out)], outputs=[1])
        load_fails(e, MORE, INVALID, graph=graph,
                   inputs=spec(4, wide))
    load_fails(e, MORE, INVALID,
               inputs=spec(1 << 30, 6))  # a batch
    return 0


@attack
def broken_graphs(e):
    x, nodes = node(INPUT, name="x"), pb.Graph
    chain = [x] + [node(BATCHNORM, [i], i) for i in range(2047)]  # 10,235 parameters and buffers
    load_fails(e, INVALID, MORE, graph=nodes(nodes=chain, outputs=[2047]), inputs=spec(2, 1))
    for graph in (nodes(), nodes(nodes=[x]), nodes(nodes=[x], outputs=[1]),
                  nodes(nodes=[x], outputs=[0, 0]),
                  nodes(nodes=[x, node(RELU, [1], 0)], outputs=[1]),       # its input is itself
                  # its input does not exist yet
                  nodes(nodes=[x, node(RELU, [5], 0)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [], 0)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0, 0, 0], 0)], outputs=[1]),
                  nodes(nodes=[x, node(999, [0], 0)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 1 << 21)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 0, name="n" * 100)], outputs=[1]),
                  nodes(nodes=[x, node(RELU, [0], 0, name="../../x/\\")], outputs=[1]),
                  nodes(nodes=[x, node(LINEAR, [0], 0, out=2, name="d"),
                               node(LINEAR, [1], 1, out=2, name="d")], outputs=[2]),
                  nodes(nodes=[x, node(INPUT, name="y")], outputs=[0]),
                  nodes(nodes=[node(RELU, [0], 0)], outputs=[0])):
        load_fails(e, INVALID, MORE, EXISTS, graph=graph)
    for beyond in (ALL, ALL + 1, 1 << 31):
        load_fails(e, INVALID, EXISTS, module=beyond)
    load_fails(e, INVALID, MORE, threads=1_000_000)
    load_fails(e, INVALID, NONE, device="cuda:0")
    load_fails(e, NONE, frozen=["no.such"])
    load_fails(e, NONE, route=pb.Route(peers=["nobody"]))
    load_fails(e, NONE, init=pb.INIT_ARTIFACT, artifact=pb.Artifact(name="none", sha256=bytes(32)))
    load_fails(e, INVALID, init=pb.INIT_ARTIFACT,
               artifact=pb.Artifact(name="../../etc/passwd", sha256=bytes(32)))
    load_fails(e, INVALID, optimizer=pb.Optimizer(kind=pb.OPTIMIZER_ADAM, lr=float("nan")))
    load_fails(e, INVALID, optimizer=pb.Optimizer(kind=77))
    return 2048 * 16


@attack
def out_of_order_unary(e):
    stub, none = e.caller.stub, SessionOf(None, os.urandom(16), 1, 0)
    text = fails(lambda: stub.LoadModule(load_of(none)), NONE)  # before OpenSession
    close = lambda id, epoch=1: stub.CloseSession(pb.CloseSessionRequest(session=id, epoch=epoch))
    fails(lambda: close(none.id), NONE)
    s = e.session(attached=False)
    fails(lambda: stub.LoadModule(load_of(s)), EXISTS)
    for epoch in (0, 2, 1 << 63):
        assert fails(lambda: stub.LoadModule(load_of(s, epoch=epoch)), NONE) == text
        assert fails(lambda: close(s.id, epoch), NONE) == text
    # another identity's session is answered as one that does not exist
    with Caller(the.cluster.ports[0], the.cluster.certs) as other:
        theirs = other.open(name="theirs")
        assert fails(lambda: stub.LoadModule(load_of(theirs)), NONE) == text
        assert fails(lambda: close(theirs.id), NONE) == text
        assert (fails(lambda: stub.Status(pb.StatusRequest(session=theirs.id)), NONE)
                == fails(lambda: stub.Status(pb.StatusRequest(session=none.id)), NONE))
        stub.OpenSession(pb.OpenSessionRequest(
            # another session of the same id
            session=theirs.id, epoch=1, name="x", config_digest=bytes(32)))
        close(theirs.id)
        assert len(other.stub.Status(pb.StatusRequest(session=theirs.id)).sessions) == 1
        theirs.close()
    close(s.id)
    assert fails(lambda: close(s.id), NONE) == text
    return 0


if __name__ == "__main__":
    attack.main("hostile_unary")
