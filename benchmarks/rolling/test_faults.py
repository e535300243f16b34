"""Faults in the middle of a replacement; each ends with the whole fleet serving. Run by `make bench-rolling-faults`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fleet

HOST = fleet.HOSTS[0]
RESTART = ["ansible-playbook", "-i", fleet.INVENTORY, "restart.yml", "-e", "rolling_serial=1"]


@pytest.fixture(autouse=True)
def serving():
    fleet.all_serve(180)
    yield
    fleet.all_serve(180)


def files():
    return fleet.on(HOST, "sha256sum /etc/sglang/instances/*/* /etc/systemd/system/sglang@*.service.d/*")


def test_a_unit_that_never_becomes_ready_gives_way_to_the_one_before():
    before, served_with = fleet.main_pids(), files()
    environment = {"SGLANG_USE_CPU_ENGINE": "0", "SGLANG_PLATFORM": "fleet_cpu", "NEW": "1"}
    variables = {"sglang_instances_start_timeout_seconds": 3, "sglang_instances_environment": environment}
    done = fleet.playbook("deploy.yml", json.dumps(variables))
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `start`" in words
    assert "its last good configuration was put back and serves" in words
    assert files() == served_with
    changed = {engine for engine, pid in fleet.main_pids().items() if pid != before[engine]}
    assert (HOST, "0") in changed
    assert (HOST, "1") not in changed
    bundle = fleet.on(HOST, "ls -d /var/lib/sglang/failures/* | tail -1").strip()
    assert "sglang" in fleet.on(HOST, f"cat {bundle}/journal.txt")
    # The next deployment finds everything as it should be and, with the old values, changes no engine.
    now = fleet.main_pids()
    assert fleet.playbook("deploy.yml").returncode == 0
    assert fleet.main_pids() == now


def test_a_canary_that_is_slower_than_before_is_put_back():
    before, served_with = fleet.main_pids(), files()
    intent = {"concurrency": 1, "context_length": 4096, "max_running_requests": 1, "max_total_tokens": 32768}
    done = fleet.playbook("deploy.yml", json.dumps({"sglang_instances_intent": intent, "canary": 1}))
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `look`" in words
    assert "tokens/s" in words
    assert "its last good configuration was put back and serves" in words
    assert files() == served_with
    assert {engine for engine, pid in fleet.main_pids().items() if pid != before[engine]} == {(HOST, "0")}


def test_an_engine_that_dies_in_its_warm_up_is_started_again():
    since = time.time()
    killer = (
        "until curl -sf -o /dev/null http://127.0.0.1:30000/ready; do sleep 0.05; done; "
        "kill -9 $(systemctl show --property=MainPID --value sglang@0)"
    )

    def kill_in_warm_up():
        fleet.wait_for_phase(HOST, "start", since)
        fleet.on(HOST, killer)

    thread = threading.Thread(target=kill_in_warm_up)
    thread.start()
    done = fleet.playbook("restart.yml", "gpus=0", "rolling_serial=1")
    thread.join()
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `start`" in words
    assert "it was started again" in words


def interrupted(disturb):
    """Start a roll of the whole fleet and disturb it while the first engine loads."""
    since = time.time()
    roll = subprocess.Popen(
        RESTART, cwd=fleet.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    fleet.wait_for_phase(HOST, "start", since)
    disturb(roll)
    roll.wait(timeout=300)


def run_again():
    """Run the restart until the lost one has let go of the host, as an operator would."""
    deadline = time.monotonic() + 400
    while True:
        done = fleet.playbook("restart.yml", "rolling_serial=1")
        if done.returncode == 0 or "no other rolling restart" not in " ".join(done.stdout.split()):
            return done
        assert time.monotonic() < deadline, done.stdout
        time.sleep(5)


def test_a_lost_session_is_gone_on_with():
    before = fleet.main_pids()

    def lose(roll):
        os.killpg(roll.pid, signal.SIGKILL)
        subprocess.run([*fleet.SSH, "-O", "exit", HOST], capture_output=True)

    interrupted(lose)
    fleet.eventually(lambda: fleet.main_pid(HOST, "0") not in ("0", before[HOST, "0"]), 120)
    first = fleet.main_pid(HOST, "0")
    done = run_again()
    assert done.returncode == 0, done.stdout
    after = fleet.main_pids()
    assert after[HOST, "0"] == first
    assert all(after[engine] != pid for engine, pid in before.items())


def test_a_reboot_in_the_middle_is_gone_on_with():
    before = fleet.main_pids()
    names = subprocess.run(["podman", "ps", "--format={{.Names}}"], capture_output=True, text=True).stdout.split()
    container = next(name for name in names if name.endswith(HOST))

    def reboot(_):
        subprocess.run(["podman", "restart", "--time=5", container], check=True, capture_output=True)
        subprocess.run(
            ["ansible-playbook", "-i", fleet.INVENTORY, "tests/hosts/create.yml"], cwd=fleet.ROOT, check=True
        )

    interrupted(reboot)
    for router in fleet.ROUTERS:
        fleet.complete(router)
    fleet.all_serve(240)
    done = run_again()
    assert done.returncode == 0, done.stdout
    assert all(fleet.main_pids()[engine] != pid for engine, pid in before.items())
