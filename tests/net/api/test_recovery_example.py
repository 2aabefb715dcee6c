#!/usr/bin/python3
"""The example program tests/seeds/recovery.c over real daemons: a worker is killed and started
again with its disk, then the program itself. The weights have the bits of an undisturbed run. The
page that explains the program quotes it."""
import os, re, signal, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
from cluster import *

suite = Suite()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
PROGRAM, ROLE = os.path.join(BIN, "seeds", "recovery"), '"spiffe://test/master", role: master'
STEPS = "300"


class Keeping(Cluster):
    """Workers that keep files for the master."""

    def worker_config(self, i, extra=""):
        path, kept = super().worker_config(i, extra), os.path.join(self.dir, f"kept{i}")
        os.makedirs(kept, exist_ok=True)
        with open(path) as f:
            text = f.read().replace(ROLE, ROLE + ", state_bytes: 1MiB")
        with open(path, "w") as f:
            f.write(text + f"state_dir: {kept}\n")
        return path

    def weights(self, run):
        read = [safetensors(os.path.join(self.dir, f"{run}.{half}.safetensors")) for half in ("first", "second")]
        assert all(read), read
        return read


def wait_for(process, *beginnings):
    """Reads up to the first line that begins with one of `beginnings`, and returns it."""
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(beginnings):
            return line
    raise AssertionError(f"ended with {process.wait()} before {beginnings}: {''.join(said)}")


@suite.test
def killed_worker_and_killed_program_change_no_bit():
    with Keeping(2) as c:
        session = c.session("recovery", "transfer: direct\n")
        calm = run(PROGRAM, session, "calm", STEPS, cwd=c.dir)
        assert calm.returncode == 0 and "lost" not in calm.stdout, calm
        command = [os.path.abspath(PROGRAM), session, "rough", STEPS]
        with Running(command, cwd=c.dir) as p:
            wait_for(p.process, "step 110")
            p.process.send_signal(signal.SIGSTOP)
            c.workers[1].kill()
            c.workers[1].process.wait()
            c.workers[1] = Worker(c, "w2", c.worker_config(1))
            p.process.send_signal(signal.SIGCONT)
            lost = wait_for(p.process, "lost at step")
            assert " w2" in lost, lost  # by itself, or as the end of w1's connection to it
            begin, at = int(wait_for(p.process, "goes on from step").split()[-1]), int(lost.split()[3][:-1])
            assert 100 <= begin <= at < int(STEPS) and begin % 25 == 0, (begin, at)
            wait_for(p.process, "saved step 200")
            p.process.kill()
            p.process.wait()
        again = run(*command, cwd=c.dir)
        assert again.returncode == 0, again
        begin = int(again.stdout.splitlines()[0].removeprefix("goes on from step "))
        assert begin >= 200 and "lost" not in again.stdout, again
        assert c.weights("rough") == c.weights("calm"), "other bits"
        for w in c.workers:  # they would wait for the killed program until its lease ends
            w.kill()


@suite.test
def page_quotes_the_example():
    with open(os.path.join(ROOT, "tests/seeds/recovery.c")) as f:
        source = f.read()
    with open(os.path.join(ROOT, "master/api/PROGRAMS.md")) as f:
        section = f.read().partition("\n## When a worker dies\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```c\n(.*?)^```", section, re.M | re.S)
    assert len(blocks) >= 3, section
    other = [part for b in blocks for part in re.split(r"^ *\.\.\.\n", b, flags=re.M) if part not in source]
    assert not other, f"not in recovery.c: {other}"


suite.main()
