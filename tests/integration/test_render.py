"""`make render`: what a deployment would put on each host, without one (the example's addresses answer nobody)."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("render")
ROOT = Path(__file__).parents[2]
GPUS = {"b200-node-1": 7, "rtxpro6000-node-1": 8}
MOST_EXPOSURE = {
    "sglang@.service": 2.5,
    "sglang-probe@.service": 1.5,
    "sglang-router.service": 1.5,
    "sglang-router-workers.service": 1.5,
}


def render(destination, inventory="inventory/example"):
    done = subprocess.run(
        ["ansible-playbook", "-i", inventory, "playbooks/render.yml", "-e", f"render_dir={destination}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_ROUTER_API_KEY": "a-secret-that-must-not-show"},
    )
    return done.returncode, done.stdout + done.stderr


def contents(directory):
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    directory = tmp_path_factory.mktemp("render")
    code, output = render(directory)
    assert code == 0, output
    return directory


@pytest.mark.parametrize(("host", "gpus"), GPUS.items())
def test_every_file_of_a_deployment_is_there_and_no_other(rendered, host, gpus):
    systemd, etc = "etc/systemd/system", "etc/sglang/instances"
    assert set(contents(rendered / host)) == {
        *(f"{systemd}/{unit}" for unit in (*MOST_EXPOSURE, "sglang-probe@.timer", "sglang.slice")),
        *(f"{systemd}/sglang@{index}.service.d/instance.conf" for index in range(gpus)),
        *(f"{etc}/{index}/{part}" for index in range(gpus) for part in ("args", "env", "instance.json")),
    }


def test_secrets_stay_out(rendered):
    assert not [path for path, text in contents(rendered).items() if "a-secret-that-must-not-show" in text]


def test_rendering_again_gives_the_same_and_removes_what_is_no_longer_wanted(rendered):
    before = contents(rendered)
    (rendered / "b200-node-1/etc/sglang/instances/9").mkdir()
    (rendered / "b200-node-1/etc/sglang/instances/9/args").write_text("left over")
    code, output = render(rendered)
    assert code == 0, output
    assert contents(rendered) == before


@pytest.mark.parametrize("host", GPUS)
@pytest.mark.parametrize(("unit", "most"), MOST_EXPOSURE.items())
def test_exposure_is_low(rendered, host, unit, most):
    path = rendered / host / "etc/systemd/system" / unit
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most * 10:.0f}", path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("host", GPUS)
def test_systemd_complains_of_nothing_but_commands_that_are_not_installed_here(rendered, host):
    directory = rendered / host / "etc/systemd/system"
    done = subprocess.run(
        [
            "systemd-analyze",
            "verify",
            "--recursive-errors=no",
            "sglang@0.service",
            "sglang-probe@0.timer",
            "sglang-router.service",
            "sglang-router-workers.service",
            "sglang.slice",
        ],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin"},
    )
    complaints = [line for line in done.stderr.splitlines() if "is not executable: No such file" not in line]
    assert complaints == []


def test_an_inventory_that_says_too_little_is_refused(tmp_path):
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "sglang: {hosts: {node: {sglang_weights_source: /nowhere/model, sglang_engine_version: 0.5.23}}}\n"
    )
    code, output = render(tmp_path / "out", inventory)
    assert code != 0
    assert "set sglang_instances_gpus" in output
