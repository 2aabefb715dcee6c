#!/usr/bin/python3
"""Loads that exhaust memory, beside an honest training run: modules of up to 1,000 times the
worker's memory_limit, in fresh sessions, and loads that their caller abandons. The run keeps a
quarter of its rate and all its bits, and the worker's memory stays below the limit."""
from honest import *
import secrets

SECONDS = float(sys.argv.pop(1)) if sys.argv[1:2] and sys.argv[1][0].isdigit() else 6.0
LIMIT = 1 << 30


def sizes(i):
    """The size of module i, from a little below the limit to far above it."""
    return (8192, 16384, 65536, 131072)[i % 4]


def flood(port, certs):
    caller = Caller(port, certs, name="other")
    caller.hello()
    for i in range(1 << 30):
        s = SessionOf(caller, secrets.token_bytes(16), 1, 0)
        caller.stub.OpenSession(pb.OpenSessionRequest(session=s.id, epoch=1, name="greedy", config_digest=bytes(32)), timeout=20)
        request = load_request(s, mlp(sizes(i), sizes(i)), [pb.TensorSpec(dtype=F32, dims=[2, 16])])
        for timeout in (0.05, 5):
            try:
                caller.stub.LoadModule(request, timeout=timeout)
            except grpc.RpcError:
                pass
        s.close()


if sys.argv[1:2] == ["flood"]:
    flood(int(sys.argv[2]), sys.argv[3])

suite = Suite()


@suite.test
def greedy_loads_leave_the_honest_run_its_rate_and_memory():
    with Cluster(1, limits="memory_limit: 1GiB\n", extra_allow=ALLOW) as c:
        c.issue("other", "spiffe://test/other")
        os.mkdir(os.path.join(c.dir, "data"))
        synthetic_images(os.path.join(c.dir, "data"), n=512, n_test=16, side=8)
        honest, worker = Honest(c, "memory"), c.workers[0]
        before, most = honest.rate(3), 0
        attack = subprocess.Popen([sys.executable, os.path.abspath(__file__), "flood", str(c.ports[0]), c.certs])
        try:
            during, end = honest.rate(SECONDS / 2), time.monotonic() + SECONDS / 2
            while time.monotonic() < end:
                most = max(most, worker.rss())
                time.sleep(0.01)
            assert attack.poll() is None, "the attack has ended by itself"
        finally:
            attack.kill()
            attack.wait()
        print(f"     {during / before:.2f} of the rate, at most {most >> 20} MiB resident", flush=True)
        assert during >= INSIDE * before, (before, during)
        assert SANITIZED or most < LIMIT + (128 << 20), most
        honest.same_bits()


if pyclient.MISSING:
    print("skip memory:", pyclient.MISSING)
else:
    suite.main()
