"""Planning as its user does it: one command from the checkout, without a GPU, without root, with nothing installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHAPE = ROOT / "tests" / "fixtures" / "checkpoints" / "qwen3.6-27b"
HOST = {"mem_total_gib": 512, "mem_available_gib": 186.3, "shm_size_gib": 128, "shm_used_gib": 60}


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def module(name, options):
    """Run a module as a person does; the values it printed and whether it succeeded."""
    done = run("ansible", "localhost", "-m", f"llmops.fleet.{name}", "-a", json.dumps(options))
    return done.returncode == 0, yaml.safe_load(done.stdout.partition("=>")[2])


@pytest.fixture(scope="module")
def what_if():
    return {
        "checkpoint": str(SHAPE),
        "engine_version": "0.5.23",
        "gpus": [{"index": 0, "total_mib": 97887, "free_gib": 94.5}],
        "mem_fraction_static": 0.85,
        "state_strategy": "extra_buffer",
        "mtp": {"steps": 3, "topk": 1, "draft_tokens": 4},
        "weights_gib": 51.31,
        "draft_gib": 0.79,
        "host": HOST,
    }


def test_a_what_if_in_one_command(what_if):
    succeeded, result = module("capacity_plan", what_if)
    assert succeeded
    assert result["fits"]
    gpu = result["instances"][0]["gpu"]
    assert (gpu["state_slots"], gpu["max_running_requests"]) == (48, 9)
    assert gpu["kv_tokens"] == pytest.approx(252_000, abs=520)


def test_a_what_if_from_broken_input(what_if):
    succeeded, result = module("capacity_plan", {**what_if, "checkpoint": "/nowhere"})
    assert not succeeded
    assert "no such file" in result["msg"]


def test_the_gate_measures_this_machine(what_if):
    _, plan = module("capacity_plan", {**what_if, "hicache_gb": 100_000, "host": {"mem_available_gib": 300_000}})
    succeeded, result = module("ram_headroom", {"plan": plan})
    assert not succeeded
    assert "hicache KV" in result["msg"]
    assert "too little" in result["msg"]
    assert result["largest_hicache_gb"] < 100_000


@pytest.fixture
def inventory(tmp_path):
    hosts = {
        "sglang": {
            "hosts": {"node-1": {}, "node-2": {"sglang_instances_profile": "bulk"}},
            "vars": {
                "ansible_connection": "local",
                "sglang_engine_version": "0.5.23",
                "sglang_weights_source": str(SHAPE),
                "sglang_instances_gpus": [{"index": index, "total_mib": 97887} for index in range(8)],
                "sglang_instances_intent": {"concurrency": 16, "tokens_per_request": 8192, "hicache_gb": 50},
                "sglang_instances_declared": {"host": HOST},
            },
        }
    }
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(hosts))
    return path


@pytest.mark.parametrize("mode", [[], ["--check", "--diff"]])
def test_plan_yml_shows_and_writes_the_plan(inventory, tmp_path, mode):
    report = tmp_path / "plan.html"
    done = run(
        "ansible-playbook", "-i", str(inventory), "plan.yml", "-e", f"report={report}", "-e", "declared=true", *mode
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node-1: qwen3.6-27b" in done.stdout
    for words in ("*intent", "*bulk", "GPU 7", "Host RAM with", "Problem (mtp_hicache)"):
        assert words in done.stdout
    page = report.read_text()
    assert all(f"<h2>{host}</h2>" in page for host in ("node-1", "node-2"))
    again = run(
        "ansible-playbook", "-i", str(inventory), "plan.yml", "-e", f"report={report}", "-e", "declared=true", *mode
    )
    assert "changed=0" in again.stdout
    assert "changed=1" not in again.stdout


def test_the_example_is_planned_without_asking_a_host():
    done = run("ansible-playbook", "-i", "inventory/example", "plan.yml", "-c", "local", "-e", "declared=true")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("b200-node-1", "rtxpro6000-node-1"):
        assert f"{host}: qwen3.6-27b" in done.stdout
    assert "NO" not in next(line for line in done.stdout.splitlines() if line.strip().startswith("starts")).split()
