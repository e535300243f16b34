import json


def test_the_installed_version_is_the_current_one(host):
    assert host.file("/opt/sglang/current").linked_to == "/opt/sglang/0.5.23"
    marker = json.loads(host.file("/opt/sglang/0.5.23/COMPLETE").content_string)
    assert marker["version"] == "0.5.23"


def test_the_engines_user_runs_its_parser(host):
    command = (
        "sudo -u sglang HOME=/var/cache/sglang/0.5.23 /opt/sglang/current/bin/python -m sglang.launch_server --help"
    )
    assert "--mamba-radix-cache-strategy" in host.check_output(command)


def test_bytecode_is_compiled_since_the_user_cannot_write_it(host):
    assert host.check_output("ls /opt/sglang/0.5.23/lib/python3.11/site-packages/sglang/__pycache__")


def test_nothing_is_left_of_the_installation_itself(host):
    left = host.check_output("ls -A /opt/sglang").split()
    assert sorted(left) == [".uv", "0.5.23", "current"]
