"""Nothing is lost by a rolling restart, and what stands against one is found while everything still serves."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks/rolling"))
import bench
import fleet

ARGS = "/etc/sglang/instances/0/args"
RECORD = "/etc/sglang/instances/0/instance.json"
READY = "/dev/shm/sglang/tiny-qwen3/READY"
REJECTED = f"sed -i '$a --no-such-flag' {ARGS}"
SHORT = f'sed -i \'s/"host_ram_bytes": [0-9]*/"host_ram_bytes": 999999999999/\' {RECORD}'


@pytest.fixture
def pids():
    fleet.all_serve(120)
    before = fleet.main_pids()
    yield before
    fleet.all_serve(60)


def test_no_request_is_lost_while_a_gpu_of_each_host_is_restarted(pids):
    bench.start_load(requests=200, rate=4)
    done = fleet.playbook("restart.yml", "gpus=0", "rolling_serial=100%")
    said, requests = bench.stop_load()
    assert done.returncode == 0, done.stdout
    assert [request for request in requests if request["outcome"] != "ok"] == [], said
    now = fleet.main_pids()
    assert {engine for engine in pids if pids[engine] != now[engine]} == {(host, "0") for host in fleet.HOSTS}


@pytest.mark.parametrize(
    ("spoils", "said"),
    [((REJECTED, "true"), ["--no-such-flag"]), ((SHORT, f"mv {READY} /root/"), ["GiB of RAM", "READY"])],
    ids=["flag rejected", "RAM short, weights gone"],
)
def test_what_cannot_start_is_not_stopped(pids, spoils, said):
    for host, spoil in zip(fleet.HOSTS, spoils, strict=True):
        fleet.on(host, f"cp {ARGS} {RECORD} /root/; {spoil}")
    try:
        done = fleet.playbook("restart.yml", "gpus=0")
    finally:
        for host in fleet.HOSTS:
            fleet.on(host, f"cp /root/args {ARGS}; cp /root/instance.json {RECORD}")
            fleet.on(host, f"test ! -e /root/READY || mv /root/READY {READY}")
    assert done.returncode != 0
    assert all(words in done.stdout for words in said), done.stdout
    assert fleet.main_pids() == pids


def test_nothing_stops_while_a_router_is_down_and_its_list_comes_back(pids):
    fleet.on(fleet.ROUTERS[1], "systemctl stop sglang-router")
    try:
        done = fleet.playbook("restart.yml", "gpus=0")
    finally:
        fleet.on(fleet.ROUTERS[1], "systemctl start sglang-router")
    assert done.returncode != 0
    assert "expected router http://roll-router-2:8000 to answer" in " ".join(done.stdout.split())
    assert fleet.main_pids() == pids
    fleet.all_serve(30)


def test_a_drain_that_does_not_end_leaves_the_requests_and_the_worker(pids):
    body = json.dumps({"model": "tiny-qwen3", "prompt": "long", "max_tokens": 1000, "ignore_eos": True})
    command = f"curl -sf -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:30000/v1/completions"
    rolling, answers = threading.Event(), []

    def ask_the_engine_itself():
        while not rolling.is_set():
            answers.append(json.loads(fleet.on(fleet.HOSTS[0], command))["usage"]["completion_tokens"])

    threads = [threading.Thread(target=ask_the_engine_itself) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        variables = json.dumps({"gpus": "0", "sglang_instances_rolling": {"drain_timeout_s": 1}})
        done = fleet.playbook("restart.yml", variables)
    finally:
        rolling.set()
        for thread in threads:
            thread.join()
    assert done.returncode != 0
    words = " ".join(done.stdout.split())
    assert "to pass `drain`" in words
    assert "it runs on, as before" in words
    assert set(answers) == {1000}
    assert fleet.main_pids() == pids
    bundle = fleet.on(fleet.HOSTS[0], "ls -d /var/lib/sglang/failures/* | tail -1").strip()
    assert "running" in fleet.on(fleet.HOSTS[0], f"cat {bundle}/failure.txt")
    secret = subprocess.run([*fleet.SSH, fleet.HOSTS[0], f"grep -r {fleet.key()} {bundle}"], capture_output=True)
    assert secret.stdout == b""


def test_the_last_worker_is_not_taken_out(pids):
    others = [engine for engine in fleet.ENGINES if engine != (fleet.HOSTS[0], "0")]
    for host, name in others:
        fleet.on(host, f"sglang-fleet drain {name}")
    try:
        variables = json.dumps({"gpus": "0", "sglang_instances_rolling": {"capacity_timeout_s": 1}})
        done = fleet.playbook("restart.yml", variables, "rolling_serial=1")
    finally:
        for host, name in others:
            fleet.on(host, f"sglang-fleet enter {name}")
    assert done.returncode != 0
    assert "1 healthy workers left" in " ".join(done.stdout.split())
    assert fleet.main_pids() == pids


def test_a_deployment_that_restarts_both_routers_loses_nothing(pids):
    since = [fleet.on(router, "systemctl show --property=MainPID sglang-router") for router in fleet.ROUTERS]
    bench.start_load(requests=40, rate=4)
    done = fleet.playbook("deploy.yml", "sglang_router_stop_timeout_seconds=290", limit="sglang_routers")
    said, requests = bench.stop_load()
    assert done.returncode == 0, done.stdout
    now = [fleet.on(router, "systemctl show --property=MainPID sglang-router") for router in fleet.ROUTERS]
    assert all(pid != before for pid, before in zip(now, since, strict=True))
    assert [request for request in requests if request["outcome"] != "ok"] == [], said
