"""Tests what a worker can compute about layers that it does not have, from all that it receives. It
knows the architecture, the formulas of this file and its own keys, but not the session's seed."""
import hashlib, os, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import liar
from liar import *

suite = Suite()
SEED = "5ca1ab1e0ddba11c0ffee0ddf00dcafe"
MASTERS_WEIGHT, OWN_LAYER = ("1.weight", 1), 3
FAN_IN = 8 * 8


# ---- the formulas of SECURITY.md ---------------------------------------------------------------

def seed_bytes(text):
    return bytes.fromhex(text) if len(text) == 32 else int(text).to_bytes(16, "big")


def layer_key(seed, layer):
    """Stages of a session file are parts of the network 1."""
    of = struct.pack("<QI", 1, layer)
    return hashlib.sha256(b"cleave layer of a seed\0" + seed + of).digest()[:16]


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC'11)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [high >> 32 ^ c[1] ^ k[0], high & 0xFFFFFFFF, low >> 32 ^ c[3] ^ k[1], low & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def first_values(key, layer, n):
    """The first n of a linear layer's weights, whose parameter slot is 0."""
    k = struct.unpack("<4I", key)
    mixed = philox((layer << 4, 0x636C656B, k[2], k[3]), k[:2])[:2]
    words = [w for i in range((n + 3) // 4) for w in philox((i, 0, k[2], k[3]), mixed)]
    bound = numpy.float32(1 / FAN_IN ** 0.5)
    return [float(-bound + 2 * bound * numpy.float32((w >> 8) * 2.0 ** -24)) for w in words[:n]]


# ---- the worker's view -------------------------------------------------------------------------

class Seen(Met):
    """A step with the fake worker, with every byte that it received, and the master's own weights
    before the step (those after it, with a rate of 1e-12)."""

    def __init__(self, *args):
        with fake() as worker:
            super().__init__(worker, ["--set", "train.max_steps=1", "--set", "train.optimizer.lr=1e-12", *args])
        assert self.code == 0, self.said
        assert {"Hello", "OpenSession", "LoadModule", "Session"} <= {name for name, _ in worker.heard}
        self.load = pb.LoadModuleRequest.FromString(dict(worker.heard)["LoadModule"])
        self.everything = b"".join(raw for _, raw in worker.heard)
        _, _, raw = checkpoint_tensors(os.path.join(liar.cluster.dir, "runs", self.name), 1)[MASTERS_WEIGHT[0]]
        self.first = numpy.frombuffer(raw, numpy.float32)[:64]

    def own_key(self):
        zeros, key = self.load.keys[:16], self.load.keys[16:]
        assert zeros == bytes(16) and len(key) == 16 and [n.layer for n in self.load.graph.nodes][1] == OWN_LAYER
        return key

    def agreement(self, key):
        """The correlation of weights drawn from a key of layer 1 with the true ones: 1 means the
        same weights."""
        guess = first_values(key, MASTERS_WEIGHT[1], len(self.first))
        return float(numpy.corrcoef(guess, self.first)[0, 1])


def guess(seen):
    """The seed, found by trying small numbers against the worker's own key; None if none fits."""
    own = seen.own_key()
    return next((n for n in range(5000) if layer_key(seed_bytes(str(n)), OWN_LAYER) == own), None)


@suite.test
def seed_of_128_bits_never_leaves_the_master():
    """The worker gets only the key of its own layer, and no byte of the seed or of another key."""
    seen, seed = Seen("--set", f"train.seed={SEED}"), seed_bytes(SEED)
    assert seen.own_key() == layer_key(seed, OWN_LAYER)
    assert seen.agreement(layer_key(seed, 1)) > 0.999999  # the formulas agree with the program
    hidden = [seed, seed[::-1], SEED.encode(), hashlib.sha256(b"cleave data\0" + seed).digest()[:8],
              *(layer_key(seed, n) for n in range(3))]
    for secret in hidden:
        assert secret not in seen.everything, secret.hex()
    assert guess(seen) is None
    # by chance: of 64 numbers, standard deviation 1/8
    assert abs(seen.agreement(seen.own_key())) < 0.6


@suite.test
def short_seed_can_be_guessed_by_a_worker():
    """With a short seed every layer counts as known, because the worker's own key reveals the
    number."""
    seen = Seen("--set", "train.seed=4711")
    assert guess(seen) == 4711
    assert seen.agreement(layer_key(seed_bytes("4711"), 1)) > 0.999999


@suite.test
def run_without_a_seed_draws_a_secret_one():
    """Without a seed it has 128 bits that follow from run.key, which only its owner can read.
    Another run of the same file has others, and --resume has the same."""
    body = re.sub(r" seed: [0-9a-f]+,", "", SESSION)
    assert "seed" not in body
    session = liar.cluster.session("drawn", body.replace(", weights: {file: b.safetensors}", ""))
    path = os.path.join(liar.cluster.dir, "runs/drawn/run.key")
    keys = []
    for args in (("--max-steps", "1"), ("--resume", "--max-steps", "2"), ("--fresh", "--max-steps", "1")):
        done = liar.cluster.train(session, *args)
        assert done.returncode == 0, done.stderr
        assert os.stat(path).st_mode & 0o777 == 0o600
        keys.append(open(path).read())
    assert keys[0] == keys[1] != keys[2] and re.fullmatch("[0-9a-f]{64}\n", keys[0]), keys
    done = master("eval", session, cwd=liar.cluster.dir)
    assert done.returncode == 0, done.stderr
    for text in (open(os.path.join(os.path.dirname(path), "session.effective.yaml")).read(), done.stdout):
        assert "seed" not in text
    os.unlink(path)
    done = liar.cluster.train(session, "--resume")
    assert done.returncode != 0 and "no run.key" in done.stderr, done.stderr


# ---- trials ------------------------------------------------------------------------------------

def solved(activation, x):
    """The weights of the layer's first output, solved from all rows in which the relu passed the
    output."""
    rows = activation[:, 0] > 0
    inputs = numpy.hstack([x[rows], numpy.ones((rows.sum(), 1))])
    return numpy.linalg.lstsq(inputs, activation[rows, 0], rcond=None)[0][:FAN_IN]


def uniform_of(layer, shape):
    """Numbers drawn from the key that is 0 except for the layer number."""
    mixed = philox((layer, 0x636C656B, 0, 0), (0, 0))[:2]
    words = [w for i in range(shape[0] * shape[1] // 4) for w in philox((i, 0, 0, 0), mixed)]
    return numpy.array([(w >> 8) * 2.0 ** -24 for w in words]).reshape(shape)


@suite.test
def trials_do_not_reveal_the_masters_first_weights():
    """A worker that knew the inputs of the master's layers and saw the outputs could solve for the
    weights."""
    with fake() as worker:
        Met(worker, ["--set", f"train.seed={SEED}", "--set", "train.batch=256", "--set", "train.max_steps=1",
                     "--set", "pipeline.micro_batches=auto"])
        first = next(f for f in worker.log if f.kind == pb.VALUE)
        before = [f.kind for f in worker.log[:worker.log.index(first)]]
        load = pb.LoadModuleRequest.FromString(dict(reversed(worker.heard))["LoadModule"])
    truth = first_values(layer_key(seed_bytes(SEED), 1), 1, FAN_IN)
    found = solved(tensor_of(first).astype(float), uniform_of(1, (256, FAN_IN)))
    agreement = float(numpy.corrcoef(found, truth)[0, 1])
    assert not abs(agreement) >= 0.6, agreement  # nan: nothing can be solved
    assert load.keys[16:] != layer_key(seed_bytes(SEED), OWN_LAYER)
    assert pb.STATE_PUT not in before, "weights of a file in a trial"


# ---- attempts ----------------------------------------------------------------------------------

@suite.test
def earlier_attempt_is_refused_after_a_newer_one():
    """Each attempt has a higher epoch; the worker knows the highest one also after its own restart.
    A newer attempt replaces one whose master was cut off."""
    def refused(text, **kw):
        try:
            with Caller(liar.cluster.ports[0], liar.cluster.certs) as c:
                c.open(session, **kw)
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.FAILED_PRECONDITION and text in e.details(), e
        else:
            raise AssertionError("it was let in")

    session = os.urandom(16)
    with Caller(liar.cluster.ports[0], liar.cluster.certs) as c:
        old, new = c.open(session, epoch=5), c.open(session, epoch=6)
        refused("attempt 5 of this session is refused: attempt 6, a newer one", epoch=5)
        refused("another configuration", epoch=6, config_digest=bytes(31) + b"x")
        try:
            old.close()
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.NOT_FOUND, e
        else:
            raise AssertionError("attempt 5 is still open")
        new.close()
    liar.cluster.workers[0].stop()
    liar.cluster.restart(0)
    refused("attempt 5 of this session is refused: attempt 6, a newer one", epoch=5)


@suite.test
def each_resume_increments_the_attempt_number():
    path = os.path.join(liar.cluster.dir, "runs/counted/run.json")
    session = liar.cluster.session("counted", SESSION)
    seen, train = [], lambda *args: liar.cluster.train(session, *args)
    for args in (("--max-steps", "1"), ("--resume", "--max-steps", "2"), ("--resume",)):
        assert train(*args).returncode == 0
        with open(path) as f:
            run = json.load(f)
        seen.append((run["session_id"], run["epoch"]))
    assert len(set(seen)) == 3 and {id for id, _ in seen} == {run["session_id"]}, seen
    assert [epoch for _, epoch in seen] == [1, 2, 3], seen
    audit = "open session=counted identity=spiffe://test/master attempt=3 reason="
    until(lambda: audit in liar.cluster.workers[0].text())
    with open(path, "w") as f:
        json.dump({**run, "epoch": 1}, f)  # as if an old copy of the folder went on
    done = train("--resume", "--set", "train.max_steps=9")
    assert done.returncode != 0 and "attempt 2 of this session is refused: attempt 3, a newer" in done.stderr, done


liar.main(suite)
