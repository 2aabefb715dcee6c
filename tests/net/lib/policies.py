# SPDX-License-Identifier: Apache-2.0
"""A host with a policy: a mount namespace with an /etc of its own, for a cluster's programs."""
import os, subprocess

PATH = "etc/cleave/egress.policy.yaml"


def missing():
    """The reason why this machine cannot make such a host, or None."""
    able = os.geteuid() == 0 and not subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode
    return None if able else "no mount namespaces here, or not root"


class Host:
    """near: words before a command, to run it on this host."""

    def __init__(self, folder):
        self.folder = folder
        self.near = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', os.path.join(folder, "etc")]
        self.shell("mkdir etc && cp -a /etc/. etc/ && rm -rf etc/cleave && openssl req -x509 -newkey ec -pkeyopt "
                   "ec_paramgen_curve:P-256 -nodes -keyout approver.key -out approver.pem -days 30 -subj /CN=approver")

    def shell(self, command):
        done = subprocess.run(command, shell=True, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def decree(self, text):
        """Installs this policy, signed; None: removes the policy."""
        self.shell("rm -rf etc/cleave")
        if text is None:
            return
        self.shell("mkdir etc/cleave && cp approver.pem etc/cleave/approver-ca.pem")
        with open(os.path.join(self.folder, PATH), "w") as f:
            f.write(text)
        self.shell(f"openssl cms -sign -binary -in {PATH} -signer approver.pem -inkey approver.key -outform PEM -out {PATH}.sig")
