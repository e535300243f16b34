"""What the units are: every directive as systemd understood it, and the files that they are made of."""

import json

import pytest

CASES = {
    "Type": "exec",
    "User": "sglang",
    "Group": "sglang",
    "Slice": "sglang.slice",
    "Restart": "on-failure",
    "RestartUSec": "2s",
    "RestartPreventExitStatus": "2 78",
    "TimeoutStartUSec": "12min",
    "TimeoutStopUSec": "1min 51s",
    "StartLimitBurst": "5",
    "StartLimitIntervalUSec": "1h 10s",
    "KillMode": "mixed",
    "SendSIGKILL": "yes",
    "OOMPolicy": "stop",
    "OOMScoreAdjust": "500",
    "MemorySwapMax": "0",
    "LimitMEMLOCK": "infinity",
    "LimitNOFILE": "1048576",
    "LimitCORE": "0",
    "TasksMax": "4096",
    "LogRateLimitIntervalUSec": "30s",
    "LogRateLimitBurst": "3000",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "DevicePolicy": "closed",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "ProtectClock": "yes",
    "ProtectHostname": "yes",
    "ProtectProc": "invisible",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "EnvironmentFiles": "/etc/sglang/instances/{name}/env (ignore_errors=no)",
}


def show(host, unit, *properties):
    lines = host.check_output(f"systemctl show {unit} --property={','.join(properties)}").splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", ["0", "1"])
def test_systemd_understood_every_directive(host, name):
    expected = {key: value.format(name=name) for key, value in CASES.items()}
    assert show(host, f"sglang@{name}", *CASES) == expected


def test_packets_go_to_the_host_itself_alone(host):
    found = {
        key: set(value.split()) for key, value in show(host, "sglang@0", "IPAddressDeny", "IPAddressAllow").items()
    }
    assert found == {"IPAddressDeny": {"0.0.0.0/0", "::/0"}, "IPAddressAllow": {"127.0.0.0/8", "::1/128"}}


@pytest.mark.parametrize("name", ["0", "1"])
def test_commands_check_run_and_drain(host, name):
    commands = show(host, f"sglang@{name}", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")
    assert {key: value.split("argv[]=")[1].split(" ;")[0] for key, value in commands.items()} == {
        key: f"/usr/local/bin/sglang-fleet {command} {name}"
        for key, command in (
            ("ExecStartPre", "prestart"),
            ("ExecStart", "run"),
            ("ExecStartPost", "ready"),
            ("ExecStop", "drain"),
            ("ExecStopPost", "leave"),
        )
    }


def test_memory_ceilings_come_from_the_plan(host):
    need_bytes = json.loads(host.file("/etc/sglang/instances/0/instance.json").content_string)["host_ram_bytes"]
    gib = 2**30
    assert 1 * gib < need_bytes < 2 * gib
    assert show(host, "sglang@0", "MemoryMax", "MemoryHigh") == {
        "MemoryMax": str(need_bytes + 2 * gib),
        "MemoryHigh": str(need_bytes + 1 * gib),
    }
    assert show(host, "sglang.slice", "MemoryMax") == {"MemoryMax": str(2 * need_bytes + 2 * gib)}
    peak = int(show(host, "sglang@0", "MemoryCurrent")["MemoryCurrent"])
    assert 0.5 * need_bytes < peak < need_bytes + 2 * gib


@pytest.mark.parametrize("name", ["0", "1"])
def test_units_serve_from_every_boot_on(host, name):
    assert host.service(f"sglang@{name}").is_enabled
    assert host.service(f"sglang@{name}").is_running
    assert host.service(f"sglang-probe@{name}.timer").is_running


def test_configuration_is_root_s_and_read_by_the_engines_alone(host):
    for part in ("args", "env", "instance.json"):
        file = host.file(f"/etc/sglang/instances/0/{part}")
        assert (file.user, file.group, file.mode) == ("root", "sglang", 0o640)


def test_ports_follow_from_the_index(host):
    for index in (0, 1):
        assert host.socket(f"tcp://127.0.0.1:{30000 + index}").is_listening
        arguments = host.file(f"/etc/sglang/instances/{index}/args").content_string.splitlines()
        assert f"--port={30000 + index}" in arguments
        assert f"--nccl-port={30100 + index}" in arguments


def test_engine_runs_as_its_own_user_without_secrets_in_sight(host):
    for index in (0, 1):
        pid = show(host, f"sglang@{index}", "MainPID")["MainPID"]
        assert host.check_output(f"stat -c %U /proc/{pid}") == "sglang"
        sight = host.check_output(f"cat /proc/{pid}/cmdline /proc/{pid}/environ | tr '\\0' '\\n'")
        assert "only-for-tests" not in sight
        assert "sglang.launch_server" in sight


def test_kernel_keeps_the_engine_from_the_host(host):
    pid = show(host, "sglang@0", "MainPID")["MainPID"]
    status = dict(line.split(":\t", 1) for line in host.file(f"/proc/{pid}/status").content_string.splitlines())
    assert (status["NoNewPrivs"], status["CapBnd"], status["Seccomp"]) == ("1", "0" * 16, "2")
    inside = host.run(f"nsenter --target {pid} --mount touch /usr/written /etc/written /dev/shm/sglang/written")
    assert inside.stderr.count("Read-only file system") == 3


@pytest.mark.parametrize(
    ("unit", "most"),
    [("sglang@0", 2.5), ("sglang-probe@0", 1.5), ("sglang-router", 1.5), ("sglang-router-workers", 1.5)],
)
def test_exposure_is_low(host, unit, most):
    exposure = host.run(f"systemd-analyze security --no-pager --threshold={most * 10:.0f} {unit}.service")
    assert exposure.rc == 0, exposure.stdout


def test_the_router_lists_both(host):
    listed = host.check_output(
        "curl -fs -H @- http://127.0.0.1:8000/workers <<< 'Authorization: Bearer only-for-tests-0123456789'"
    )
    assert {(worker["url"], worker["is_healthy"]) for worker in json.loads(listed)["workers"]} == {
        ("http://127.0.0.1:30000", True),
        ("http://127.0.0.1:30001", True),
    }
