#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`make python-test`: a Jupyter kernel that is restarted in the middle of a training, gently and by
SIGKILL. The worker takes one session, so the next kernel needs that of the one before."""
import os, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../net/lib")]
from cluster import BIN, SLOW, Cluster, Suite

suite = Suite()
PACKAGE = os.path.abspath(os.path.join(BIN, "python"))
CELL = """
import torch, cleave
from torch import nn
torch.set_num_threads(1)
rt = cleave.open({session!r})
far = cleave.Remote(nn.Linear(32, 32), at="w1", example=torch.zeros(4, 32))
opt = cleave.Optimizer(torch.optim.SGD, far, lr=0.1)
for k in range({steps}):
    opt.zero_grad()
    far(torch.randn(4, 32)).sum().backward()
    opt.step()
    if k == 3:
        print("trains", flush=True)
"""


def until_it_trains(client, steps):
    """Runs the cell, until it prints. Seconds since then, and the id of the cell."""
    begin, cell = time.monotonic(), client.execute(CELL.format(session=session, steps=steps))
    while True:
        message = client.get_iopub_msg(timeout=60 * SLOW)
        assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
        if message["msg_type"] == "stream" and "trains" in message["content"]["text"]:
            return time.monotonic() - begin, cell


@suite.test
def restarted_kernel_trains_again_at_once():
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, "PYTHONPATH": PACKAGE}, startup_timeout=120)
    try:
        first, _ = until_it_trains(client, 1 << 40)
        for is_killed in (False, True):
            begin = time.monotonic()
            manager.restart_kernel(now=is_killed)
            client.wait_for_ready(timeout=60 * SLOW)
            restart = time.monotonic() - begin
            again, _ = until_it_trains(client, 1 << 40)
            print(f"    {'killed' if is_killed else 'restarted'} in {restart:.1f} s, trains {again:.1f} s later; the first one {first:.1f} s")
            assert restart < 15 * max(1, SLOW) and again < first + 4 * max(1, SLOW), (restart, again, first)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    try:
        import ipykernel, jupyter_client  # noqa: F401, E401
    except ImportError as e:
        print(f"skip torch_notebook: {e}", flush=True)
        sys.exit()
    with Cluster(1, limits="limits: {sessions: 1}\n") as cluster:
        session = cluster.session("notebook", "")
        suite.main()
