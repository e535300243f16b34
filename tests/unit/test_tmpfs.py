import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.tmpfs import (
    Tmpfs,
    check_against_ram,
    mounted_size_bytes,
    size_in_fstab_bytes,
)
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

SHM = Tmpfs("/dev/shm", 64 * GIB, ("mpol=interleave",))


def test_fstab_gains_a_line_and_keeps_the_others():
    assert SHM.in_fstab("# roots\n/dev/sda1 / ext4 defaults 0 1\n") == (
        "# roots\n/dev/sda1 / ext4 defaults 0 1\ntmpfs /dev/shm tmpfs mpol=interleave,size=67108864k 0 0\n"
    )


@pytest.mark.parametrize("size", ["size=8g,", "", "size=50%,"])
def test_fstab_line_keeps_its_other_options(size):
    line = f"tmpfs /dev/shm tmpfs nosuid,{size}nodev 0 0\n"
    assert SHM.in_fstab(line) == "tmpfs /dev/shm tmpfs nosuid,nodev,mpol=interleave,size=67108864k 0 0\n"
    assert SHM.in_fstab(SHM.in_fstab(line)) == SHM.in_fstab(line)


@pytest.mark.parametrize(
    ("options", "size_bytes"),
    [
        ("size=8G", 8 * GIB),
        ("size=25%", 25 * GIB),
        ("size=1024k,nodev", 2**20),
        ("nodev,size=4096", 4096),
        ("nodev", None),
    ],
)
def test_size_in_fstab(options, size_bytes):
    assert size_in_fstab_bytes(f"tmpfs /dev/shm tmpfs {options} 0 0\n", "/dev/shm", 100 * GIB) == size_bytes


def test_commented_line_counts_for_nothing():
    assert size_in_fstab_bytes("#tmpfs /dev/shm tmpfs size=8g 0 0\n", "/dev/shm", GIB) is None


def test_another_file_system_is_refused():
    with pytest.raises(FleetError, match="found ext4"):
        mounted_size_bytes("/data", "/dev/sdb1 /data ext4 rw 0 0\n")


def test_nothing_mounted():
    assert mounted_size_bytes("/data", "proc /proc proc rw 0 0\n") is None


def test_more_than_the_ram_is_refused():
    with pytest.raises(FleetError, match=r"RAM of 64\.0 GiB"):
        check_against_ram(SHM, 64 * GIB)
