"""Faults in the middle of a replacement; each ends with the whole fleet serving. Run by `make faults-rolling`."""

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
    since, meanwhile = time.time(), []

    def look_while_it_starts():
        fleet.wait_for_phase(HOST, "start", since, 300)
        meanwhile.append(fleet.on(HOST, "sha256sum /etc/sglang/instances/1/*"))

    thread = threading.Thread(target=look_while_it_starts)
    thread.start()
    done = fleet.playbook("deploy.yml", json.dumps(variables))
    thread.join()
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert meanwhile[0] in served_with, "a crash would start what served last"
    assert "to pass `start`" in words
    assert "its last good configuration was put back and serves" in words
    assert files() == served_with
    changed = {engine for engine, pid in fleet.main_pids().items() if pid != before[engine]}
    assert (HOST, "0") in changed
    assert (HOST, "1") not in changed
    bundle = fleet.on(HOST, "ls -d /var/lib/sglang/failures/* | tail -1").strip()
    seen = {name: fleet.on(HOST, f"cat {bundle}/{name}") for name in fleet.on(HOST, f"ls {bundle}").split()}
    assert "failed in `start`" in seen["failure.txt"]
    assert "serve within 3 s" in seen["journal.txt"]
    assert "MemAvailable" in seen["memory.txt"]
    assert "sglang@1.service" in seen["units.txt"]
    assert ":30001" in seen["ports.txt"]
    assert {"server_info.txt", "metrics.txt", "gpus.txt", "shm.txt", "args", "instance.json"} <= set(seen)
    # The next deployment finds everything as it should be and, with the old values, changes no engine.
    now = fleet.main_pids()
    assert fleet.playbook("deploy.yml").returncode == 0
    assert fleet.main_pids() == now


def test_a_canary_that_is_slower_than_before_is_put_back():
    before, served_with = fleet.main_pids(), files()
    intent = {"concurrency": 1, "context_length": 4096, "max_running_requests": 1, "max_total_tokens": 32768}
    variables = {"sglang_instances_intent": intent, "sglang_instances_rolling": {"tolerance": 0.1}, "canary": 1}
    done = fleet.playbook("deploy.yml", json.dumps(variables))
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `look`" in words
    assert "tokens/s, 90% of what it was before" in words
    assert "its last good configuration was put back and serves" in words
    assert files() == served_with
    assert {engine for engine, pid in fleet.main_pids().items() if pid != before[engine]} == {(HOST, "0")}


def test_an_engine_that_dies_in_its_warm_up_is_started_again_and_halts_all_hosts():
    since, before = time.time(), fleet.main_pids()
    killer = (
        "until curl -sf -o /dev/null http://127.0.0.1:30000/ready; do sleep 0.05; done; "
        "kill -9 $(systemctl show --property=MainPID --value sglang@0)"
    )

    def kill_in_warm_up():
        fleet.wait_for_phase(HOST, "start", since)
        fleet.on(HOST, killer)

    thread = threading.Thread(target=kill_in_warm_up)
    thread.start()
    done = fleet.playbook("restart.yml", "rolling_serial=100%")
    thread.join()
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `start`" in words
    assert "it was started again" in words
    assert "Done on this host: none; left: 0, 1" in words
    after = fleet.main_pids()
    assert {engine for engine in before if after[engine] != before[engine]} == {(host, "0") for host in fleet.HOSTS}
    plan = fleet.playbook("restart.yml", "rolling_serial=100%", "plan_only=true")
    assert plan.returncode == 0, plan.stdout
    assert "done before an interruption: sglang@0 of roll-host-2" in plan.stdout
    assert "1: sglang@0 of roll-host-1, sglang@1 of roll-host-2" in plan.stdout
    assert fleet.main_pids() == after


def interrupted(disturb, *variables, limit=HOST):
    """Start a roll and disturb it while the first engine of the first host loads."""
    since = time.time()
    roll = subprocess.Popen(
        fleet.command("restart.yml", "again=true", *variables, limit=limit),
        cwd=fleet.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    fleet.wait_for_phase(HOST, "start", since)
    disturb(roll)
    roll.communicate(timeout=300)


def run_again(*variables, limit=HOST):
    """Run the restart until the lost one has let go of the host, as an operator would."""
    deadline = time.monotonic() + 400
    while True:
        done = fleet.playbook("restart.yml", *variables, limit=limit)
        if done.returncode == 0 or "no other rolling restart" not in " ".join(done.stdout.split()):
            assert done.returncode == 0, done.stdout
            return
        assert time.monotonic() < deadline, done.stdout
        time.sleep(5)


def kill_session(roll):
    os.killpg(roll.pid, signal.SIGKILL)
    subprocess.run([*fleet.SSH, "-O", "exit", HOST], capture_output=True)


def press_ctrl_c(roll):
    os.killpg(roll.pid, signal.SIGINT)


@pytest.mark.parametrize("disturb", [kill_session, press_ctrl_c])
def test_a_session_that_ends_is_gone_on_with(disturb):
    before = fleet.main_pids()
    interrupted(disturb)
    fleet.eventually(lambda: fleet.main_pid(HOST, "0") not in ("0", before[HOST, "0"]), 120, "a new engine 0")
    first = fleet.main_pid(HOST, "0")
    run_again()
    after = fleet.main_pids()
    assert after[HOST, "0"] == first
    assert {engine for engine in before if after[engine] != before[engine]} == {(HOST, "0"), (HOST, "1")}


def test_a_router_that_goes_down_in_the_middle_ends_it_with_the_engine_serving():
    since, before = time.time(), fleet.main_pids()

    def stop_router():
        fleet.wait_for_phase(HOST, "start", since)
        fleet.on(fleet.ROUTERS[1], "systemctl stop sglang-router")

    thread = threading.Thread(target=stop_router)
    thread.start()
    done = fleet.playbook("restart.yml", "again=true", limit=HOST)
    thread.join()
    serves = fleet.healthy(fleet.ROUTERS[0])
    fleet.on(fleet.ROUTERS[1], "systemctl start sglang-router")
    words = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "to pass `enter`" in words
    assert "router http://roll-router-2:8000 to answer" in words
    assert "it runs as wanted" in words
    assert len(serves) == 4
    after = fleet.main_pids()
    assert {engine for engine in before if after[engine] != before[engine]} == {(HOST, "0")}


def test_a_reboot_in_the_middle_is_gone_on_with():
    before = fleet.main_pids()
    names = subprocess.run(["podman", "ps", "--format={{.Names}}"], capture_output=True, text=True).stdout.split()
    container = next(name for name in names if name.endswith(HOST))

    def reboot(_):
        subprocess.run(["podman", "restart", "--time=5", container], check=True, capture_output=True)
        subprocess.run(
            ["ansible-playbook", "-i", fleet.INVENTORY, "tests/hosts/create.yml"], cwd=fleet.ROOT, check=True
        )

    interrupted(reboot, "rolling_serial=100%", limit="all")
    for router in fleet.ROUTERS:
        fleet.complete(router)
    fleet.all_serve(240)
    booted = fleet.main_pids()
    other = fleet.HOSTS[1]
    assert booted[other, "0"] != before[other, "0"]
    assert booted[other, "1"] == before[other, "1"], "a host that is lost ends the roll on all"
    canary = {"canary": 1, "rolling_serial": "100%", "sglang_instances_rolling": {"tolerance": 0.5}}
    run_again(json.dumps(canary), limit="all")
    after = fleet.main_pids()
    assert {engine for engine in booted if after[engine] != booted[engine]} == {*fleet.ENGINES} - {(other, "0")}
