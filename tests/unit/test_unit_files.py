"""The files that a deployment writes, read back as systemd reads them."""

import re
import subprocess
from dataclasses import replace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import unit_files as core
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.instance import Instance, launch_sha256
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.topology import place

GIB = 2**30
DEPLOYMENT = core.Deployment(
    user="sglang",
    group="sglang",
    accelerator="cuda",
    release=Release(0, 5, 23),
    engine_path="/opt/sglang/0.5.23",
    host_tool="/usr/bin/true",
    model_path="/dev/shm/sglang/m",
    served_model_name="m",
    networks=("10.0.0.0/8",),
)
GPUS = [{"index": 0, "numa_node": 0, "cpus": "0-7"}, {"index": 3, "uuid": "GPU-3", "minor": 5, "numa_node": 1}]
ETC, SYSTEMD = "/etc/sglang/instances", "/etc/systemd/system"


def planned(name, gpus=(0,), **intent):
    return {
        "name": name,
        "gpus": list(gpus),
        "intent": {"context_length": 16384, "max_running_requests": 8, **intent},
        "gpu": {"weights_gib": 50, "draft_gib": 1},
        "host": {"rss_gib": 4, "ram_gib": 4 + 28 * len(gpus)},
    }


def plan(*instances, fits=True):
    whole = {"parts_gib": {"reserve": 10}}
    return core.HostPlan.from_mapping({"fits": fits, "problems": ["no"], "instances": instances, "host": whole})


PLAN = plan(planned("0"), planned("3"))


def render(deployment=DEPLOYMENT, gpus=GPUS, host_plan=PLAN, tensor_parallel=1):
    rendering = core.render(deployment, place(gpus, tensor_parallel=tensor_parallel), host_plan)
    return {file.path: file.text for file in rendering.files}


def directives(text):
    """Directive to its values, over all sections."""
    found = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def test_each_instance_has_its_files():
    files = render()
    assert sorted(files) == sorted(
        [
            f"{SYSTEMD}/sglang.slice",
            f"{SYSTEMD}/sglang@.service",
            f"{SYSTEMD}/sglang-probe@.service",
            f"{SYSTEMD}/sglang-probe@.timer",
            *(f"{SYSTEMD}/sglang@{name}.service.d/instance.conf" for name in "03"),
            *(f"{ETC}/{name}/{part}" for name in "03" for part in ("args", "env", "instance.json")),
        ]
    )


def test_an_instance_gets_the_device_nodes_the_memory_and_the_node_of_its_gpu():
    three = directives(render()[f"{SYSTEMD}/sglang@3.service.d/instance.conf"])
    assert three["DeviceAllow"] == [
        f"{node} rw" for node in ("/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    ]
    need_bytes = 32 * GIB
    assert three["MemoryMax"] == [str(need_bytes + 16 * GIB)]
    assert three["MemoryHigh"] == [str(need_bytes + 8 * GIB)]
    assert (three["NUMAPolicy"], three["NUMAMask"]) == (["bind"], ["1"])
    assert "CPUAffinity" not in three
    zero = directives(render()[f"{SYSTEMD}/sglang@0.service.d/instance.conf"])
    assert zero["CPUAffinity"] == ["0-7"]


def test_all_engines_together_have_a_ceiling_from_the_plan():
    slice_unit = directives(render()[f"{SYSTEMD}/sglang.slice"])
    assert slice_unit["MemoryMax"] == [str((2 * 32 + 16) * GIB)]


def test_ranks_of_a_tensor_parallel_instance_share_one_unit():
    files = render(host_plan=plan(planned("0-3", (0, 3), tensor_parallel=2)), tensor_parallel=2)
    assert "\n--tp-size=2\n" in files[f"{ETC}/0-3/args"]
    assert '\nCUDA_VISIBLE_DEVICES="0,3"\n' in files[f"{ETC}/0-3/env"]
    drop_in = directives(files[f"{SYSTEMD}/sglang@0-3.service.d/instance.conf"])
    assert drop_in["NUMAMask"] == ["0,1"]
    assert drop_in["DeviceAllow"][:2] == ["/dev/nvidia0 rw", "/dev/nvidia5 rw"]
    record = Instance.from_json(files[f"{ETC}/0-3/instance.json"])
    assert (record.gpus, record.gpu_uuids) == ((0, 3), ("", "GPU-3"))
    assert record.host_ram_bytes == 60 * GIB


def test_a_cpu_engine_has_no_device():
    files = render(replace(DEPLOYMENT, accelerator="cpu"))
    drop_in = directives(files[f"{SYSTEMD}/sglang@0.service.d/instance.conf"])
    assert drop_in["PrivateDevices"] == ["yes"]
    assert "DeviceAllow" not in drop_in
    assert "CUDA" not in files[f"{ETC}/0/env"].replace("no CUDA graphs", "")


@pytest.mark.parametrize(("release", "expected"), [((0, 5, 18), ["SIGKILL"]), ((0, 5, 19), None)])
def test_a_clean_stop_by_sigkill_is_expected_of_old_releases_alone(release, expected):
    files = render(replace(DEPLOYMENT, release=Release(*release)))
    drop_in = directives(files[f"{SYSTEMD}/sglang@0.service.d/instance.conf"])
    assert drop_in.get("SuccessExitStatus") == expected
    assert drop_in.get("RestartForceExitStatus") == expected


def test_time_outs_grow_with_what_is_loaded_and_with_the_longest_sequence():
    unit = directives(render()[f"{SYSTEMD}/sglang@.service"])
    loaded_gb = (28 + 51) * GIB / 1e9
    assert unit["TimeoutStartSec"] == [str(600 + round(loaded_gb * 2) + 120)]
    assert unit["TimeoutStopSec"] == [str(60 + 16384 // 20)]
    unit = directives(render(replace(DEPLOYMENT, start_timeout_s=30, stop_timeout_s=90))[f"{SYSTEMD}/sglang@.service"])
    assert (unit["TimeoutStartSec"], unit["TimeoutStopSec"]) == (["150"], ["90"])


def test_the_start_limit_covers_starts_that_fail_as_late_as_they_can():
    unit = directives(render()[f"{SYSTEMD}/sglang@.service"])
    one_start_s = int(unit["TimeoutStartSec"][0]) + int(unit["RestartSec"][0])
    assert int(unit["StartLimitIntervalSec"][0]) >= int(unit["StartLimitBurst"][0]) * one_start_s


def test_every_argument_says_why():
    lines = render()[f"{ETC}/0/args"].splitlines()[2:]
    assert lines
    assert all(
        re.match(r"# \w", why) and line.startswith("--") for why, line in zip(lines[::2], lines[1::2], strict=True)
    )


def test_a_changed_unit_makes_running_engines_stale():
    def sha256(files):
        return launch_sha256(*(files[f"{ETC}/0/{part}"] for part in ("instance.json", "args", "env")))

    assert sha256(render()) == sha256(render())
    assert sha256(render()) != sha256(render(replace(DEPLOYMENT, networks=())))


def test_environment_values_survive_systemds_quoting():
    text = core.environment_text([("A", 'b "c" $d \\e `f`', "why")])
    assert text.endswith('# why\nA="b \\"c\\" \\$d \\\\e \\`f\\`"\n')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advertise": "0.0.0.0"}, "set sglang_instances_advertise"),
        ({"networks": ("10.0.0.1/8",)}, "correct sglang_instances_networks"),
        ({"stop_timeout_s": 60}, "raise the stop time-out"),
        ({"accelerator": "tpu"}, "cuda or cpu"),
        ({"environment": {"A-B": "1"}}, "correct sglang_instances_environment"),
        ({"environment": {"A": "1\nB=2"}}, "correct sglang_instances_environment"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(FleetError, match=message):
        render(replace(DEPLOYMENT, **change))


def test_a_plan_for_other_gpus_or_one_that_does_not_fit_is_refused():
    with pytest.raises(FleetError, match="a plan for instance 3; found one for 0, 1"):
        render(host_plan=plan(planned("0"), planned("1")))
    with pytest.raises(FleetError, match="a plan that fits; found no"):
        plan(planned("0"), fits=False)
    with pytest.raises(FleetError, match="the result of capacity_plan"):
        core.HostPlan.from_mapping({})


@pytest.fixture(params=["cuda", "cpu"])
def unit_directory(request, tmp_path):
    for path, text in render(replace(DEPLOYMENT, accelerator=request.param)).items():
        if path.startswith(SYSTEMD):
            unit = tmp_path / path[len(SYSTEMD) + 1 :]
            unit.parent.mkdir(exist_ok=True)
            unit.write_text(text)
    # An engine is judged with its drop-in, which `security --offline` does not read.
    engine = tmp_path / "sglang@.service"
    drop_in = (tmp_path / "sglang@0.service.d/instance.conf").read_text()
    (tmp_path / "engine.service").write_text(engine.read_text() + drop_in)
    return tmp_path


def analyze(directory, *arguments):
    done = subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout + done.stderr


def test_systemd_accepts_the_units(unit_directory):
    units = ["sglang@0.service", "sglang-probe@0.service", "sglang-probe@0.timer", "sglang.slice"]
    assert analyze(unit_directory, "verify", "--recursive-errors=no", *units) == (0, "")


@pytest.mark.parametrize(("unit", "most"), [("engine.service", 2.5), ("sglang-probe@.service", 1.5)])
def test_exposure_stays_low(unit_directory, unit, most):
    code, output = analyze(
        unit_directory, "security", "--offline=true", f"--threshold={most * 10:.0f}", f"{unit_directory}/{unit}"
    )
    assert code == 0, output
    assert "Overall exposure level" in output
