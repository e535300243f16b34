import json
import time

import pytest

KEY = "only-for-tests-0123456789"
API = "http://127.0.0.1:8000"
UNITS = ("sglang-router.service", "sglang-router-workers.service")


def show(host, unit, *properties):
    lines = host.check_output(f"systemctl show {unit} --property={','.join(properties)}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def status(host, path, *options):
    return host.check_output(f"curl -s -o /dev/null -w '%{{http_code}}' {' '.join(options)} {API}{path}")


def wait_for_router(host):
    for _ in range(40):
        if host.run(f"curl -fs {API}/health").rc == 0 and all(host.service(unit).is_running for unit in UNITS):
            return
        time.sleep(0.5)
    pytest.fail(host.check_output("journalctl --no-pager -n 40 -u 'sglang-router*'"))


def test_units_are_as_systemd_wants_them(host):
    found = host.run("systemd-analyze verify /etc/systemd/system/sglang-router.service")
    assert (found.rc, found.stderr) == (0, "")
    assert host.service("sglang-router").is_enabled


def test_router_runs_as_a_user_of_its_own_with_a_bounded_stop(host):
    for unit in UNITS:
        found = show(host, unit, "User", "ActiveState", "NoNewPrivileges", "ProtectSystem", "CapabilityBoundingSet")
        assert found == {
            "User": "sglang-router",
            "ActiveState": "active",
            "NoNewPrivileges": "yes",
            "ProtectSystem": "strict",
            "CapabilityBoundingSet": "",
        }
    assert show(host, UNITS[0], "TimeoutStopUSec") == {"TimeoutStopUSec": "5min 15s"}
    assert host.user("sglang-router").shell == "/usr/sbin/nologin"


def test_key_is_required_and_stays_secret(host):
    assert status(host, "/workers") == "401"
    assert status(host, "/workers", f"-H 'Authorization: Bearer {KEY}'") == "200"
    key_file = host.file("/etc/sglang-router/api_key")
    assert (key_file.user, key_file.mode) == ("root", 0o600)
    for command in ("ps axww", "systemctl show 'sglang-router*'", "journalctl --no-pager -u 'sglang-router*'"):
        assert KEY not in host.check_output(command)
    assert host.run(f"grep -rl {KEY} /var/log /etc/systemd /var/lib/sglang-router").stdout == ""


def test_metrics_are_served(host):
    assert "smg_" in host.check_output("curl -fs http://127.0.0.1:8001/metrics")


def test_killed_router_comes_back_with_its_keeper(host):
    pid = show(host, UNITS[0], "MainPID")["MainPID"]
    host.check_output(f"kill -9 {pid}")
    time.sleep(2.5)
    wait_for_router(host)
    assert show(host, UNITS[0], "MainPID")["MainPID"] != pid


def test_stop_takes_the_keeper_along_and_start_brings_both(host):
    begin = time.monotonic()
    host.check_output("systemctl stop sglang-router")
    assert time.monotonic() - begin < 10
    assert not host.service(UNITS[1]).is_running
    host.check_output("systemctl start sglang-router")
    wait_for_router(host)


def test_worker_that_does_not_answer_is_remembered_and_not_added(host):
    state = "/var/lib/sglang-router/workers.json"
    host.check_output("systemctl stop sglang-router")
    host.check_output(f"""echo '{{"workers": ["http://127.0.0.1:9"]}}' > {state}""")
    host.check_output("systemctl start sglang-router")
    wait_for_router(host)
    time.sleep(2)
    listed = host.check_output(f"curl -fs -H 'Authorization: Bearer {KEY}' {API}/workers")
    assert json.loads(listed)["workers"] == []
    assert json.loads(host.file(state).content_string) == {"workers": ["http://127.0.0.1:9"]}
