# SPDX-License-Identifier: Apache-2.0
"""The rows of `make bench` about tensors on the wire: a link of ours, raw OpenSSL, and gRPC's C
core without anything around it."""
import glob

from harness import GIB, MIB, STRICT, Meter, enter, interleave, median, program, twins
from cluster import Cluster

KIB = 1024
# Number of messages that a round sends, by their size.
SIZES = {KIB: 400, 16 * KIB: 400, 256 * KIB: 100, MIB: 50, 16 * MIB: 12, 64 * MIB: 4, 256 * MIB: 1}
BULK_LANES, CHUNK_KIB = 4, 256  # bulk lanes of a link, and the size of a chunk
SIZE_ROUNDS = 16 if STRICT else 9


class LinkPair:
    """Two processes with a clv_link between them. Commands go to the one that dialled."""

    def __init__(self, certs, lanes=4):
        self.server = program("bench_link", "serve", certs, "w1")
        self.client = program("bench_link", "dial", certs, "master", self.server.first,
                              "spiffe://test/w1", str(lanes))
        self.ask = self.client.ask

    def pids(self):
        return [self.server.process.pid, self.client.process.pid]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.close()


def tensors():
    """Compares with the fastest raw peer. Which size of writes is best depends on caches and on the
    cost of a wake-up, so two sizes run and the faster one counts in each round."""
    with Cluster(1) as c, twins(lambda: LinkPair(c.certs)) as ours, \
            program("bench_tls", "64", c.certs, "master", "w1") as small, \
            program("bench_tls", "256", c.certs, "master", "w1") as large, \
            program("bench_tls", "0", c.certs, "master", "w1") as naive:
        for size, repeat, name in ((16, 16, "tensor_16m_vs_raw_tls"), (64, 6, "tensor_64m_vs_raw_tls")):
            command = f"tensor {size * MIB} {repeat}"
            rates = [lambda side=side: size * MIB / GIB / median(side.ask(command))
                     for side in (ours, small, large, naive)]
            found = [((o, max(s, b), n), f) for (o, s, b, n), f in interleave(rates)]
            enter(name, "GiB/s", [((o, b), f) for (o, b, _), f in found], 0.80, False)
            enter(name.replace("vs_raw_tls", "sanity_batched_vs_naive"), "GiB/s",
                  [((b, n), f) for (_, b, n), f in found], 1.2, False, "the peer is a strong one")


# ---- all sizes -----------------------------------------------------------------------------------

def processor_ns(pids):
    """Processor time of the living threads of processes."""
    total = 0
    for path in (path for pid in pids for path in glob.glob(f"/proc/{pid}/task/*/schedstat")):
        try:
            with open(path) as f:
                total += int(f.read().split()[0])
        except OSError:
            pass  # the thread has ended
    return total


def pids_of(side):
    """Both processes of a side, of which the server is the other one's child."""
    pid = side.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [pid, *map(int, f.read().split())]


def as_text(values):
    return f"{median(values):.4g} [{min(values):.4g} {max(values):.4g}]"


def sizes():
    """A table: milliseconds of a transfer and of the processor time of both sides, each the median
    with the minimum and the maximum of all rounds. The row is the processor time for 64 MiB,
    because other processes change it less than the time by the clock."""
    with Cluster(1) as c, LinkPair(c.certs, BULK_LANES) as ours, \
            program("bench_grpc", c.certs, "master", "w1", str(BULK_LANES), str(CHUNK_KIB)) as grpc, \
            program("bench_tls", "64", c.certs, "master", "w1") as tls:
        sides = {"Cleave": (ours, ours.pids()), "gRPC alone": (grpc, pids_of(grpc)), "raw TLS": (tls, pids_of(tls))}
        for size, repeat in SIZES.items():
            found = measure_size(sides, size, repeat)
            for name in sides:
                print(f"  {size // KIB:7} KiB  {name:11} {as_text([f[name][0] for f, _ in found]):28} "
                      f"processor {as_text([f[name][1] for f, _ in found])} ms", flush=True)
            if size == 64 * MIB:
                samples = [((f["Cleave"][1], f["gRPC alone"][1]), foreign) for f, foreign in found]
    enter("tensor_64m_processor_vs_grpc_alone", "ms", samples, 1 / 0.9)


def measure_size(sides, size, repeat):
    """[({side: (ms of a transfer, ms of processor time)}, foreign share)], one for each round; the
    sides take turns."""
    found = []
    for number in range(1 + SIZE_ROUNDS):
        figures = {}
        with Meter() as meter:
            for name, (side, pids) in sides.items():
                before = processor_ns(pids)
                seconds = median(side.ask(f"tensor {size} {repeat}"))
                figures[name] = 1e3 * seconds, (processor_ns(pids) - before) / 1e6 / repeat
        if number:  # the first round is a warm-up
            found.append((figures, meter.foreign))
    return found
