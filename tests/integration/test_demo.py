"""One host from bare to rebooted, by the README's own commands: refusals, check mode, the demo, changes, a reboot.

Real SGLang on two units behind the real router. The tests build on each other, in this order.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path

import pytest
import testinfra

pytestmark = pytest.mark.xdist_group("demo-host")
ROOT = Path(__file__).parents[2]
DEPLOY = "ansible-playbook deploy.yml -l b200"
CHECK = f"{DEPLOY} --check --diff"
ROLLBACK = "ansible-playbook rollback.yml -l b200"
UNITS = ("sglang@0.service", "sglang@1.service")
ROUTER = "http://127.0.0.1:8000"


def attempt(command, inventory="inventory/demo"):
    environment = {**os.environ, "ANSIBLE_INVENTORY": inventory}
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    print(command, result.stdout, result.stderr, sep="\n")
    return result


def run(command, inventory="inventory/demo"):
    result = attempt(command, inventory)
    assert result.returncode == 0, command
    return result.stdout


def eventually(probe, seconds):
    """The first true answer of `probe` within so many seconds; a host that SSH does not reach gives none."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError):
            if answer := probe():
                return answer
        time.sleep(1)
    raise AssertionError(f"not within {seconds} s: {probe.__name__}")


@pytest.fixture(scope="module")
def bare_host():
    run("ansible-playbook tests/hosts/destroy.yml")
    run("ansible-playbook tests/hosts/create.yml")
    yield testinfra.get_host("ssh://demo-host", ssh_config=str(ROOT / ".cache/test-hosts/ssh_config"))
    run("ansible-playbook tests/hosts/destroy.yml")


@pytest.fixture(scope="module")
def demo(bare_host):
    return run("make demo")


@pytest.fixture
def host(bare_host, demo):
    def serve():
        return all(bare_host.service(unit).is_running for unit in UNITS) and healthy_workers(bare_host) == 2

    eventually(serve, 180)
    return bare_host


def key():
    return (ROOT / ".cache/demo-router-api-key").read_text().split()[0]


def ask_router(host, path, body=None):
    data = f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'" if body else ""
    return host.run(f"curl -sf -m 60 -H @- {data} {ROUTER}{path} <<< 'Authorization: Bearer {key()}'")


def healthy_workers(host):
    answer = ask_router(host, "/workers")
    return sum(worker["is_healthy"] for worker in json.loads(answer.stdout)["workers"]) if answer.rc == 0 else 0


def completes(host):
    answer = ask_router(host, "/v1/completions", {"model": "tiny-qwen3", "prompt": "quick", "max_tokens": 4})
    return answer.rc == 0 and json.loads(answer.stdout)["usage"]["completion_tokens"] == 4


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="this machine runs systemd")
def test_a_host_without_systemd_is_refused(tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("sglang: {hosts: {here: {ansible_connection: local, sglang_weights_source: /nowhere}}}\n")
    refused = attempt("ansible-playbook deploy.yml", str(inventory))
    assert refused.returncode != 0
    assert "expected systemd as process 1 of here" in " ".join(refused.stdout.split())


def written(host):
    """What a deployment would leave on a host."""
    return host.run("ls -d /opt/* /etc/sglang* /etc/systemd/system/sglang* /dev/shm/*").stdout


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
    refused = attempt(f"{DEPLOY} -e {shlex.quote(json.dumps(settings))}")
    assert refused.returncode != 0
    assert cause in " ".join((refused.stdout + refused.stderr).split())
    assert re.search(r"demo-host .* changed=0 ", refused.stdout)
    assert written(bare_host) == ""


def test_check_mode_on_a_bare_host_tells_and_writes_nothing(bare_host):
    assert re.search(r"demo-host .* changed=[1-9]\d* .* failed=0", run(CHECK))
    assert written(bare_host) == ""


def test_demo_ends_with_a_completion(demo):
    assert re.search(r"Show the completion.*\n(.*\n)*.*msg: .*\w", demo)


def test_second_deployment_changes_nothing(host):
    assert re.search(r"demo-host .* changed=0 .* failed=0", run(DEPLOY))


def test_every_worker_is_known_to_the_router(host):
    urls = {worker["url"] for worker in json.loads(ask_router(host, "/workers").stdout)["workers"]}
    assert urls == {"http://127.0.0.1:30000", "http://127.0.0.1:30001"}


@pytest.mark.parametrize("request_", ["/workers", "/v1/completions -H 'Content-Type: application/json' -d {}"])
def test_router_asks_for_the_key(host, request_):
    assert host.run(f"curl -s -o /dev/null -w '%{{http_code}}' {ROUTER}{request_}").stdout == "401"


def test_key_shows_nowhere(host):
    seen = host.check_output("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; journalctl --no-pager; systemctl show '*'")
    assert key() not in seen
    world_readable = host.check_output(f"grep -rlF {key()} /etc /run /var/lib --include='*' -s || true").split()
    assert world_readable, "the key is in files"
    assert all(host.file(path).mode & 0o007 == 0 for path in world_readable)


def test_killed_engine_comes_back_while_the_router_serves(host):
    pid = host.check_output("systemctl show --property=MainPID --value sglang@0")
    host.check_output(f"kill -9 {pid}")
    eventually(lambda: completes(host), 10)
    served = [completes(host) for _ in range(20)]
    assert served.count(True) >= 19, served
    eventually(lambda: healthy_workers(host) == 2, 120)
    assert host.check_output("systemctl show --property=NRestarts --value sglang@0") == "1"


class Requests:
    """A client on the host that asks the router for completions, one after another, while the body of `with` runs."""

    def __init__(self, host):
        self.host = host

    def __enter__(self):
        self.host.check_output("rm -f /tmp/asked")
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()
        return self

    def _ask(self):
        body = json.dumps({"model": "tiny-qwen3", "prompt": "quick", "max_tokens": 4})
        curl = (
            f"curl -sf -m 60 -o /dev/null -H @- -H 'Content-Type: application/json' -d '{body}' {ROUTER}/v1/completions"
        )
        asking = f"{curl} <<< 'Authorization: Bearer {key()}' && echo served || echo lost"
        self.answers = self.host.check_output(f"until [ -e /tmp/asked ]; do {asking}; sleep 0.2; done").split()

    def __exit__(self, *failure):
        self.host.check_output("touch /tmp/asked")
        self.thread.join()


def engines(host):
    """Process number and interpreter of each engine."""
    pids = host.check_output("systemctl show --property=MainPID --value sglang@0 sglang@1").split()
    return {pid: host.check_output(f"tr '\\0' ' ' < /proc/{pid}/cmdline").split()[0] for pid in pids}


def test_an_upgrade_that_the_new_parser_rejects_touches_nothing(host):
    before = engines(host)
    with Requests(host) as requests:
        wrong = """-e sglang_engine_build=b2 -e '{"sglang_instances_extra_args": ["--attention-backend=bogus"]}'"""
        rejected = attempt(f"{DEPLOY} {wrong}")
    assert rejected.returncode != 0
    assert "invalid choice: 'bogus'" in rejected.stdout
    assert engines(host) == before
    assert set(requests.answers) == {"served"}
    assert host.file("/opt/sglang/current").linked_to == "/opt/sglang/0.5.23"


def test_upgrade_and_rollback_lose_no_request(host):
    with Requests(host) as requests:
        run(f"{DEPLOY} -e sglang_engine_build=b2")
        upgraded = set(engines(host).values())
        current = host.file("/opt/sglang/current").linked_to
        run(ROLLBACK)
    assert upgraded == {"/opt/sglang/0.5.23-b2/bin/python"}
    assert current == "/opt/sglang/0.5.23-b2"
    assert set(engines(host).values()) == {"/opt/sglang/0.5.23/bin/python"}
    assert host.file("/opt/sglang/current").linked_to == "/opt/sglang/0.5.23"
    assert set(requests.answers) == {"served"}


def test_reboot_ends_with_both_engines_serving(host):
    name = run("podman ps --format {{.Names}} | grep demo-host").strip()
    run(f"podman restart --time 30 {name}")

    def serves_again():
        return healthy_workers(host) == 2 and completes(host)

    eventually(serves_again, 240)
    assert host.file("/dev/shm/sglang/tiny-qwen3/READY").exists


# Commands of the README that other tests run.
ELSEWHERE = {
    "make demo": "the fixture demo",
    "ansible-playbook -i inventory/demo deploy.yml -l b200": "make demo",
    DEPLOY: "test_second_deployment_changes_nothing",
    CHECK: "test_check_mode_on_a_bare_host_tells_and_writes_nothing",
    ROLLBACK: "test_upgrade_and_rollback_lose_no_request",
    "ansible-playbook -i inventory/demo restart.yml -l b200": "molecule/rolling",
    "make test": "this very run",
    "make lint": ".ci/run",
    "make clean": ".ci/run",
    ".venv/bin/molecule test -s sglang_host": "test_scenarios.py",
}


def test_every_command_of_the_readme_runs(host):
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    commands = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    commands += re.findall(r"`((?:make|ansible-playbook|\.venv/bin/\S+) [^`]+)`", readme)
    assert set(ELSEWHERE) <= set(commands)
    for command in dict.fromkeys(commands):
        if command not in ELSEWHERE:
            run(command, "inventory/example" if "declared=true" in command else "inventory/demo")
