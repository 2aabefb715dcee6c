# SPDX-License-Identifier: Apache-2.0
"""Computes what a power cut would leave of a folder, from the log and the copies of
tests/disks/disk.c. A file has the bytes of its last fsync, and a name exists if its folder was
synced after it was made."""
import os


class Disk:
    """The names as the process sees them, and as they are on the disk."""

    def __init__(self, root):
        self.root, self.seen, self.synced, self.content, self.folders = root, {}, {}, {}, {root}

    def apply(self, line):
        op, path, more = line.rstrip("\n").split("\t")
        if not (path + "/").startswith(self.root + "/"):
            return
        if op == "create":
            self.seen[path] = object()
        elif op == "mkdir":
            self.seen[path] = "folder"
        elif op == "fsync" and path in self.seen:
            self.content[self.seen[path]] = more
        elif op == "rename":
            for old in [p for p in self.seen if p == path or p.startswith(path + "/")]:
                self.seen[more + old[len(path):]] = self.seen.pop(old)
        elif op in ("unlink", "rmdir"):
            self.seen.pop(path, None)
        elif op == "fsyncdir":
            for p in [p for p in self.synced if os.path.dirname(p) == path and p not in self.seen]:
                del self.synced[p]
            self.synced.update((p, inode) for p, inode in self.seen.items() if os.path.dirname(p) == path)

    def files(self):
        """path -> copy with the file's content, None: empty. Only files whose folders exist."""
        there = {self.root} | {p for p, inode in self.synced.items() if inode == "folder"}

        def reachable(path):
            return path == self.root or path in there and reachable(os.path.dirname(path))
        return {p: self.content.get(inode) for p, inode in self.synced.items()
                if inode != "folder" and reachable(os.path.dirname(p))}

    def cut(self):
        """A power cut: from now on the process sees the names that are on the disk."""
        self.seen = dict(self.synced)

    def write(self, to):
        """Writes the files that are left to the folder `to`."""
        os.makedirs(to)
        for path, content in self.files().items():
            target = os.path.join(to, os.path.relpath(path, self.root))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            data = b""
            if content:
                with open(content, "rb") as f:
                    data = f.read()
            with open(target, "wb") as f:
                f.write(data)
