import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.tmpfs import (
    Mounted,
    Tmpfs,
    check_against_ram,
    large_page_options,
    mounted,
    size_in_fstab_bytes,
)
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

SHM = Tmpfs("/dev/shm", 64 * GIB, ("huge=within_size",))


def fstab_of(wanted, fstab, mounted=None):
    return wanted.in_fstab(fstab, mounted, 128 * GIB)


def test_fstab_gains_a_line_and_keeps_the_others():
    assert fstab_of(SHM, "# roots\n/dev/sda1 / ext4 defaults 0 1\n") == (
        "# roots\n/dev/sda1 / ext4 defaults 0 1\ntmpfs /dev/shm tmpfs huge=within_size,size=67108864k 0 0\n"
    )


@pytest.mark.parametrize("options", ["nosuid,size=8g,nodev", "nosuid,nodev", "nosuid,size=50%,nodev,huge=never"])
def test_fstab_line_keeps_its_other_options(options):
    line = f"tmpfs /dev/shm tmpfs {options} 0 0\n"
    after = fstab_of(SHM, line, Mounted(8 * GIB, ("rw",)))
    size = "size=50%," if "50%" in options else ""
    assert after.startswith(f"tmpfs /dev/shm tmpfs nosuid,{size}nodev,huge=within_size")
    assert after.endswith(" 0 0\n" if size else ",size=67108864k 0 0\n")
    assert fstab_of(SHM, after, Mounted(64 * GIB, ("rw", "huge=within_size"))) == after


def test_a_size_that_suffices_by_default_is_not_pinned():
    assert fstab_of(SHM, "", Mounted(80 * GIB, ("rw",))) == "tmpfs /dev/shm tmpfs huge=within_size 0 0\n"


def test_what_a_mount_lacks():
    interleaved = Tmpfs("/w", GIB, ("huge=within_size", "mpol=interleave"))
    assert interleaved.lacks(None, ()) == ("huge=within_size", "mpol=interleave", "size=1048576k")
    assert interleaved.lacks(GIB, ("rw", "huge=never", "mpol=interleave:0-1")) == ("huge=within_size",)
    assert interleaved.lacks(GIB // 2, ("huge=within_size", "mpol=interleave")) == ("size=1048576k",)


def test_large_pages_are_for_kernels_that_have_them(tmp_path):
    assert large_page_options(tmp_path) == ["huge=within_size"]
    assert large_page_options(tmp_path / "none") == []


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
        mounted("/data", "/dev/sdb1 /data ext4 rw 0 0\n")


def test_nothing_mounted():
    assert mounted("/data", "proc /proc proc rw 0 0\n") is None


def test_more_than_the_ram_is_refused():
    with pytest.raises(FleetError, match=r"RAM of 64\.0 GiB"):
        check_against_ram(SHM, 64 * GIB)
