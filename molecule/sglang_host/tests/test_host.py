import re


def test_user_cannot_log_in(host):
    user = host.user("sglang")
    assert user.uid < 1000
    assert user.shell == "/usr/sbin/nologin"


def test_directories_belong_to_their_writers(host):
    for path, owner in (("/etc/sglang", "root"), ("/var/lib/sglang", "root"), ("/var/cache/sglang", "sglang")):
        assert host.file(path).user == owner


def test_shm_has_its_size_now_and_after_a_reboot(host):
    assert int(host.check_output("findmnt --bytes --noheadings --output SIZE /dev/shm")) == 2 * 2**30
    assert re.search(r"^tmpfs /dev/shm tmpfs size=2097152k 0 0$", host.file("/etc/fstab").content_string, re.M)


def test_tool_runs_without_ansible(host):
    assert "sglang-fleet" in host.check_output("sudo -u sglang /usr/local/bin/sglang-fleet --help")
