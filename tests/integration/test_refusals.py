"""What cannot work is refused with its cause before anything is changed, on a bare host."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def playbook(name, *options):
    done = subprocess.run(
        ["ansible-playbook", "-i", "inventory/demo", name, *options], cwd=ROOT, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"sglang_instances_gpus": [0, 0]}, "each GPU index once; found 0 twice; correct the list of GPUs"),
        (
            {"sglang_weights_source": "/srv/models/none"},
            "a model directory with /srv/models/none/config.json; found no such file",
        ),
        ({"sglang_weights_source": "/srv/wheelhouse"}, "config.json"),
        ({"sglang_engine_python": "/usr/bin/python9"}, "expected /usr/bin/python9 to run"),
        ({"sglang_instances_base_port": 22}, "port 22 to be free for sglang@0.service; found it is held by PID"),
        ({"sglang_instances_other_ports": {"a proxy": 30001}}, "port 30001 for sglang@1.service and a proxy"),
        ({"sglang_instances_intent": {"conc": 1}}, "found conc; correct the spelling"),
        ({"sglang_instances_gpus": list(range(40))}, "of memory on the host"),
    ],
    ids=[
        "gpu-twice",
        "no-model",
        "no-config",
        "no-python",
        "port-taken",
        "ports-collide",
        "unknown-intent",
        "too-large",
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(bare_host, settings, cause):
    code, output = playbook("deploy.yml", "-l", "b200", "-e", json.dumps(settings))
    assert code != 0
    assert cause in " ".join(output.split())
    assert re.search(r"demo-host .* changed=0 ", output)
    assert bare_host.run("ls -d /opt/* /etc/sglang* /etc/systemd/system/sglang* /dev/shm/*").stdout == ""


def test_a_host_without_systemd_is_refused(tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("sglang: {hosts: {here: {ansible_connection: local, sglang_weights_source: /nowhere}}}\n")
    done = subprocess.run(["ansible-playbook", "-i", inventory, "deploy.yml"], cwd=ROOT, capture_output=True, text=True)
    if Path("/run/systemd/system").exists():
        pytest.skip("this machine runs systemd")
    assert done.returncode != 0
    assert "expected systemd as process 1 of here" in " ".join(done.stdout.split())
