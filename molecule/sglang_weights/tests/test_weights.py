import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import testinfra

PROJECT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]).resolve()
PATH = "/dev/shm/sglang/tiny"
COPY = "/var/lib/sglang/models/tiny"
UNIT = "sglang-weights@tiny.service"


def ready(host, path=PATH):
    return json.loads(host.file(f"{path}/READY").content_string)


def property_of(host, unit, name):
    return host.check_output(f"systemctl show --value --property={name} '{unit}'")


def staged_digests(host, path=PATH):
    lines = host.check_output(f"cd {path} && find . -type f ! -name READY -exec sha256sum {{}} +").splitlines()
    return {path.removeprefix("./"): digest for digest, path in (line.split(maxsplit=1) for line in lines)}


def test_every_byte_is_what_ready_says_and_what_the_source_holds(host):
    staged = staged_digests(host)
    assert staged == {path: record["sha256"] for path, record in ready(host)["files"].items()}
    for path, digest in staged.items():
        assert host.check_output(f"sha256sum /srv/mirror/tiny/{path}").split()[0] == digest
    assert "consolidated.pth" not in staged


def test_files_belong_to_a_system_user_and_engines_can_read_them(host):
    assert host.file(PATH).user == "sglang"
    for path in ready(host)["files"]:
        file = host.file(f"{PATH}/{path}")
        assert (file.user, file.mode) == ("sglang", 0o644)


def test_boot_unit_waits_for_its_mounts_and_engines_wait_for_it(host):
    assert property_of(host, UNIT, "ActiveState") == "active"
    assert property_of(host, UNIT, "UnitFileState") == "enabled"
    assert COPY in property_of(host, UNIT, "RequiresMountsFor")
    assert "sglang-weights.target" in property_of(host, UNIT, "Before")
    assert UNIT in property_of(host, "sglang-weights.target", "After")
    assert (
        "After=sglang-weights.target" in host.file("/etc/systemd/system/sglang@.service.d/weights.conf").content_string
    )


def flip_a_bit(host, path):
    host.check_output(
        'python3 -c \'import sys; f = open(sys.argv[1], "r+b"); f.seek(4000000); b = f.read(1)[0];'
        f" f.seek(4000000); f.write(bytes([b ^ 1]))' {path}"
    )


def test_verify_command_finds_a_flipped_bit(host):
    shard = f"{PATH}/model-00002-of-00002.safetensors"
    assert host.run(f"sglang-fleet verify {PATH}").rc == 0
    flip_a_bit(host, shard)
    found = host.run(f"sglang-fleet verify {PATH}")
    flip_a_bit(host, shard)
    assert found.rc == 78
    assert "1 that differ: model-00002-of-00002.safetensors" in found.stderr
    assert host.run(f"sglang-fleet verify {PATH}").rc == 0


def test_too_small_shm_was_grown_for_good_and_uses_large_pages(host):
    size_bytes = int(host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm"))
    assert size_bytes > sum(record["size_bytes"] for record in ready(host)["files"].values())
    lasting = host.file("/etc/fstab").content_string
    assert f"size={size_bytes // 1024}k" in lasting
    assert "huge=within_size" in lasting
    assert "huge=within_size" in host.check_output("findmnt --noheadings --output OPTIONS /dev/shm")


def test_second_host_got_the_model_from_the_first_into_a_tmpfs_of_its_own(host):
    peer = testinfra.get_host("ssh://gpu-host-2", ssh_config=str(PROJECT / ".cache/test-hosts/ssh_config"))
    assert ready(peer, "/srv/shm/tiny")["digest"] == ready(host)["digest"]
    assert staged_digests(peer, "/srv/shm/tiny") == staged_digests(host)
    assert not peer.file("/srv/mirror").exists
    assert COPY in property_of(peer, UNIT, "RequiresMountsFor")
    options = peer.check_output("findmnt --noheadings --output OPTIONS /srv/shm")
    assert all(option in options for option in ("size=65536k", "huge=within_size", "mpol=interleave"))
    assert "/srv/shm tmpfs huge=within_size,mpol=interleave,size=65536k" in peer.file("/etc/fstab").content_string


def container(host):
    return f"fleet-{hashlib.sha256(str(PROJECT / '.cache').encode()).hexdigest()[:6]}-{host.check_output('hostname')}"


def is_ready(host):
    try:
        return host.run(f"test -e {PATH}/READY").rc == 0
    except RuntimeError:  # what testinfra raises while SSH is not back yet
        return False


def test_reboot_brings_the_weights_back_without_ansible(host):
    before = staged_digests(host)
    subprocess.run(["podman", "restart", "--time", "20", container(host)], check=True)
    deadline = time.monotonic() + 60
    while not is_ready(host):
        if time.monotonic() > deadline:
            pytest.fail(host.run(f"systemctl status '{UNIT}'; journalctl --no-pager --unit='{UNIT}'").stdout)
        time.sleep(0.5)
    assert staged_digests(host) == before
    assert host.file(PATH).user == "sglang"
    assert property_of(host, UNIT, "ActiveState") == "active"


def upgrade(host, *arguments):
    scenario = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
    return subprocess.run(
        ["ansible-playbook", f"--inventory={scenario}/inventory/hosts.yml", scenario / "upgrade.yml", *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_old_revision_stays_while_an_instance_names_it_and_goes_afterwards(host):
    record = "/etc/sglang/instances/0/instance.json"
    host.check_output(f'mkdir -p {Path(record).parent} && echo \'{{"model_path": "{PATH}"}}\' > {record}')
    upgrade(host)
    assert ready(host)["revision"] == ""
    assert host.file(f"{PATH}-second/READY").exists
    assert property_of(host, "sglang-weights@tiny-second.service", "UnitFileState") == "enabled"
    host.check_output(f"rm -r {Path(record).parent}")
    told = upgrade(host, "--check", "--diff")
    assert f"-{PATH}" in told
    assert host.file(f"{PATH}/READY").exists
    upgrade(host)
    assert not host.file(PATH).exists
    assert host.file(f"{PATH}-second/READY").exists
    assert property_of(host, UNIT, "LoadState") == "not-found"
    assert not host.file(COPY).exists
    assert host.file("/srv/mirror/tiny/config.json").exists
