"""How the units behave when something goes wrong, with real engines behind the real router."""

import json
import re
import textwrap
import time

import pytest

KEY = "only-for-tests-0123456789"
ROUTER = "http://127.0.0.1:8000"
RECORD = "/etc/sglang/instances/1/instance.json"


def show(host, unit, *properties):
    lines = host.check_output(f"systemctl show {unit} --property={','.join(properties)}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def journal(host, unit, since):
    return host.check_output(f"journalctl --no-pager --output=cat --since=@{since} --unit={unit}")


def now(host):
    return host.check_output("date +%s")


def eventually(probe, seconds):
    """The first true answer of `probe` within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(1)
    return answer


def complete(host, tokens=4, url=ROUTER, timeout_s=20):
    """The number of tokens that a completion has, 0 for none."""
    body = json.dumps({"model": "tiny-qwen3", "prompt": "quick", "max_tokens": tokens, "ignore_eos": True})
    answer = host.run(
        f"curl -fs -m {timeout_s} -H @- -H 'Content-Type: application/json' -d '{body}' {url}/v1/completions "
        f"<<< 'Authorization: Bearer {KEY}'"
    )
    return json.loads(answer.stdout)["usage"]["completion_tokens"] if answer.rc == 0 else 0


def workers(host):
    listed = host.run(f"curl -fs -H @- {ROUTER}/workers <<< 'Authorization: Bearer {KEY}'")
    return sorted(worker["url"][-1] for worker in json.loads(listed.stdout)["workers"] if worker["is_healthy"])


def serving(host, name):
    return show(host, f"sglang@{name}", "ActiveState")["ActiveState"] == "active" and name in workers(host)


@pytest.fixture(autouse=True)
def engines_serve(host, request):
    """Both engines serve before each test, the first alone where starts of the second are refused; starts are counted
    anew. After a failed test the journal is shown."""
    host.check_output("systemctl reset-failed sglang@0 sglang@1")
    for name in ("0",) if request.cls else ("0", "1"):
        eventually(lambda name=name: serving(host, name), 150)
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        print(host.check_output("journalctl --no-pager --lines=150 --unit='sglang*'"))


def test_requests_in_flight_finish_before_a_stop(host):
    since = now(host)
    request = (
        "curl -fs -m 60 http://127.0.0.1:30000/v1/completions -H 'Content-Type: application/json' "
        '-d \'{"model": "tiny-qwen3", "prompt": "quick", "max_tokens": 900, "ignore_eos": true}\''
    )
    answers = host.check_output(
        f"for i in 1 2 3 4; do {request} & done; sleep 1; "
        "curl -fs http://127.0.0.1:30000/metrics | grep ^sglang:num_running_reqs >&2; systemctl stop sglang@0; wait"
    )
    assert answers.count('"completion_tokens":900') == 4
    assert show(host, "sglang@0", "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert "drained: sglang@0.service has no request in flight" in journal(host, "sglang@0", since)
    assert workers(host) == ["1"]
    assert complete(host) == 4
    host.check_output("systemctl start sglang@0")
    assert "ready: tiny-qwen3 on GPU 0" in journal(host, "sglang@0", since)


def test_a_wedged_engine_is_replaced_while_the_router_serves(host):
    since = now(host)
    before = show(host, "sglang@0", "MainPID", "NRestarts")
    scheduler = host.check_output(f"pgrep --parent {before['MainPID']} --full scheduler")
    host.check_output(f"kill -STOP {scheduler}")
    eventually(lambda: workers(host) == ["1"], 90)
    served = 0
    while show(host, "sglang@0", "MainPID")["MainPID"] == before["MainPID"]:
        assert complete(host) == 4
        served += 1
    assert served > 0
    eventually(lambda: serving(host, "0"), 150)
    said = journal(host, "sglang-probe@0", since)
    assert "not ready: " in said
    assert "wedged: expected sglang@0.service to make tokens; found none in 2 checks of 10 s" in said
    assert f"PID {before['MainPID']} was killed" in said
    assert int(show(host, "sglang@0", "NRestarts")["NRestarts"]) == int(before["NRestarts"]) + 1


HOG = """
import os, time
pid = os.popen("systemctl show --property=MainPID --value sglang@0").read().strip()
mounts = {"name=systemd": "systemd/", "": "unified/"} if os.path.isdir("/sys/fs/cgroup/systemd") else {"": ""}
for line in open(f"/proc/{pid}/cgroup"):
    _, controllers, path = line.strip().split(":", 2)
    with open(f"/sys/fs/cgroup/{mounts.get(controllers, controllers + '/')}{path}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
for _ in range(6):
    if os.fork() == 0:
        hoard = bytearray(600 << 20)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.5)
"""


def test_memory_running_out_in_one_unit_hurts_no_other_and_it_returns(host):
    before = {name: show(host, f"sglang@{name}", "MainPID", "NRestarts") for name in "01"}
    host.check_output(f"setsid python3 - >/dev/null 2>&1 <<'EOF' &\n{textwrap.dedent(HOG)}EOF")
    eventually(lambda: show(host, "sglang@0", "MainPID") != {"MainPID": before["0"]["MainPID"]}, 60)
    assert complete(host) == 4
    eventually(lambda: serving(host, "0"), 150)
    assert show(host, "sglang@1", "MainPID", "NRestarts") == before["1"]
    assert int(show(host, "sglang@0", "NRestarts")["NRestarts"]) == int(before["0"]["NRestarts"]) + 1


class TestRefusedStarts:
    """The second engine is down, and what would start it is wrong each time in another way."""

    @pytest.fixture(scope="class", autouse=True)
    def second_is_down(self, host):
        host.check_output("systemctl stop sglang@1")
        yield
        host.check_output("systemctl start sglang@1")

    @pytest.fixture
    def record(self, host):
        """Change its record; afterwards it is as deployed."""
        deployed = host.file(RECORD).content_string

        def change(**values):
            text = json.dumps({**json.loads(deployed), **values})
            host.check_output(f"cat >{RECORD} <<'EOF'\n{text}\nEOF")

        yield change
        host.check_output(f"cat >{RECORD} <<'EOF'\n{deployed}EOF")

    @pytest.fixture(autouse=True)
    def stays_down(self, host):
        yield
        host.check_output("systemctl stop sglang@1; systemctl reset-failed sglang@1")

    def test_a_start_that_does_not_fit_is_refused_with_the_sum_while_the_other_serves(self, host, record):
        since = now(host)
        record(planned={"host": {**json.loads(host.file(RECORD).content_string)["planned"]["host"], "rss_gib": 10**6}})
        assert host.run("systemctl start sglang@1").rc != 0
        said = journal(host, "sglang@1", since)
        for row in ("processes", "reserve", "needed", "available", "too little"):
            assert re.search(rf"^  {row} +[0-9.]+ GB +[0-9.]+ GiB$", said, re.MULTILINE), row
        assert "refused: expected 1073" in said
        assert "lower hicache_gb, run fewer instances, or free memory" in said
        assert complete(host) == 4
        assert host.service("sglang@0").is_running

    def test_an_engine_that_fails_again_and_again_stays_down_and_says_so(self, host, record):
        since = now(host)
        record(python="/bin/false")
        assert host.run("systemctl start sglang@1").rc != 0
        eventually(lambda: show(host, "sglang@1", "ActiveState")["ActiveState"] == "failed", 60)
        said = journal(host, "sglang@1", since)
        assert said.count("not ready: expected the engine of sglang@1.service to load; found it ended") == 5
        assert "Start request repeated too quickly" in said
        time.sleep(5)
        assert show(host, "sglang@1", "ActiveState")["ActiveState"] == "failed"
        assert complete(host) == 4

    def test_a_configuration_that_no_restart_cures_is_not_tried_again(self, host, record):
        since = now(host)
        record(python="/opt/sglang/none/bin/python")
        assert host.run("systemctl start sglang@1").rc != 0
        time.sleep(4)
        assert show(host, "sglang@1", "ActiveState", "ExecMainStatus") == {
            "ActiveState": "failed",
            "ExecMainStatus": "78",
        }
        said = journal(host, "sglang@1", since)
        assert "refused: expected the engine's interpreter /opt/sglang/none/bin/python" in said
        assert "Scheduled restart job" not in said

    def test_an_orphan_on_the_port_is_named_by_pid_and_unit(self, host):
        since = now(host)
        host.check_output("systemd-run --unit=orphan python3 -m http.server --bind 127.0.0.1 30001")
        eventually(lambda: host.socket("tcp://127.0.0.1:30001").is_listening, 10)
        pid = show(host, "orphan", "MainPID")["MainPID"]
        assert host.run("systemctl start sglang@1").rc != 0
        host.check_output("systemctl stop orphan")
        assert f"port 30001 to be free; found it is held by PID {pid} (python3) of orphan.service" in journal(
            host, "sglang@1", since
        )
