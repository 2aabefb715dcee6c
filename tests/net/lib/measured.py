"""Workers and runs with a page port each, and functions that read the pages."""
import http.client, re
from cluster import *

BATCH, MICRO = 24, 3


class Measured(Cluster):
    """Workers with a page port each. extra: further text of their configuration."""

    def __init__(self, n, extra="", **options):
        self.pages, self.extra = [free_port() for _ in range(n)], extra
        super().__init__(n, **options)

    def worker_config(self, i, extra=""):
        return super().worker_config(i, f'metrics: {{listen: "127.0.0.1:{self.pages[i]}"}}\n{self.extra}{extra}')


def body(steps, port=None, more="", pace_ms=0):
    """A session body. pace_ms: time that each micro-batch waits at the master, with
    CLEAVE_TEST_OPS=1."""
    wait = f", {{op: wait, forward_ms: {pace_ms}}}" if pace_ms else ""
    return (IMAGE_DATA + f"stages:\n  - {{name: a, at: master, layers: [{{op: conv2d, out: 4, kernel: 3}}, {{op: relu}}{wait}]}}\n"
            "  - {name: b, at: w1, layers: [{op: conv2d, out: 4, kernel: 3}, {op: relu}]}\n"
            "  - {name: c, at: w2, layers: [{op: flatten}, {op: linear, out: 10}]}\n"
            "loss: {kind: cross_entropy}\ntransfer: direct\n"
            f"train: {{epochs: 100000, max_steps: {steps}, batch: {BATCH}, seed: 5eed5eed5eed5eed5eed5eed5eed5eed, optimizer: {{kind: sgd, lr: 0.05}}}}\n"
            f"limits: {{connect_timeout: 60s}}\npipeline: {{micro_batches: {MICRO}}}\n" + listen(port) + more)


def listen(port, host="127.0.0.1"):
    return f'metrics: {{listen: "{host}:{port}"}}\n' if port else ""


def get(port, path="/metrics", method="GET"):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * SLOW)
    try:
        c.request(method, path)
        r = c.getresponse()
        return r.status, r.read().decode(), r.getheader("Content-Type")
    finally:
        c.close()


SAMPLE = re.compile(r'^([a-z_]+)(?:\{(.*)\})? (\S+)$')


def numbers(port):
    """{'name' or 'name{labels}': value} of a port. Labels are not unquoted."""
    status, text, kind = get(port)
    assert status == 200 and kind == "text/plain; version=0.0.4; charset=utf-8", (status, kind)
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        key = f"{name}{{{labels}}}" if labels else name
        assert key not in found, key
        found[key] = float(value)
    return found
