"""Installing with real pip and uv from wheelhouses made here, whose `sglang` is an empty package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import engine_install
from ansible_collections.llmops.fleet.plugins.module_utils.engine_install import COMPLETE, Engines, Source
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.wheelhouse import LOCK, sha256

from .wheels import make_wheel

V23, V20 = Release.parse("0.5.23"), Release.parse("0.5.20")


def house(directory: Path, version: str, tag: str = "py3-none-any", package: str = "sglang") -> Source:
    directory.mkdir()
    wheel = make_wheel(directory, package.replace("-", "_"), version, tag)
    (directory / LOCK).write_text(f"{package}=={version} --hash=sha256:{sha256(wheel)}\n")
    return Source(wheelhouse=directory)


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path / "opt", (tmp_path / "etc",))


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    found = shutil.which("uv", path=str(Path(sys.executable).parent)) if request.param == "uv" else None
    monkeypatch.setattr(engine_install.shutil, "which", lambda name: found)
    return str(request.param)


def test_installs_once(tmp_path: Path, engines: Engines, installer: str) -> None:
    source = house(tmp_path / "w", "0.5.23")
    assert engines.ensure("0.5.23", V23, source, sys.executable, check=True)
    assert not engines.root.exists()
    assert engines.ensure("0.5.23", V23, source, sys.executable)
    subprocess.run([engines.root / "0.5.23/bin/python", "-c", "import sglang"], check=True)
    assert not engines.ensure("0.5.23", V23, source, sys.executable)
    assert sorted(each.name for each in engines.root.iterdir()) == ["0.5.23"]


def test_the_router_is_held_to_its_own_version_and_to_no_needs_of_sglang(tmp_path: Path, engines: Engines) -> None:
    routers = Engines(tmp_path / "router", package="sglang-router")
    source, release = house(tmp_path / "w", "0.3.2", package="sglang-router"), Release.parse("0.3.2")
    assert routers.ensure("0.3.2", release, source, sys.executable, accelerator="cuda")
    assert list(routers.installed()) == ["0.3.2"]
    with pytest.raises(FleetError, match="found no sglang;"):
        engines.ensure("0.3.2", release, source, sys.executable)


@pytest.fixture
def with_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")


def test_installs_by_a_lock_file(
    tmp_path: Path, engines: Engines, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_install.INDEX_INSTALL_BYTES, "sglang", 0)
    house(tmp_path / "w", "0.5.23")
    index = f"--no-index\n--find-links {tmp_path / 'w'}\n"
    lock = index + (tmp_path / "w" / LOCK).read_text()
    assert engines.ensure("0.5.23", V23, Source(lock=lock), sys.executable)
    assert not engines.ensure("0.5.23", V23, Source(lock=lock), sys.executable)
    wrong = index + f"sglang==0.5.23 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(FleetError, match="the locked packages"):
        engines.ensure("0.5.23-b2", V23, Source(lock=wrong), sys.executable)
    assert list(engines.installed()) == ["0.5.23"]


@pytest.mark.usefixtures("with_uv")
def test_a_failed_installation_is_gone_and_the_next_one_succeeds(tmp_path: Path, engines: Engines) -> None:
    source = house(tmp_path / "w", "0.5.23")
    lock = tmp_path / "w" / LOCK
    right = lock.read_text()
    lock.write_text(right.replace(right[-9:-1], "00000000"))
    with pytest.raises(FleetError, match="the locked packages"):
        engines.ensure("0.5.23", V23, source, sys.executable)
    assert not (engines.root / "0.5.23").exists()
    (engines.root / "0.5.23/bin").mkdir(parents=True)
    assert engines.installed() == {}
    lock.write_text(right)
    assert engines.ensure("0.5.23", V23, source, sys.executable)
    assert list(engines.installed()) == ["0.5.23"]


@pytest.mark.usefixtures("with_uv")
def test_a_patched_python_is_no_other_installation_and_a_broken_mark_is_none(tmp_path: Path, engines: Engines) -> None:
    source = house(tmp_path / "w", "0.5.23")
    engines.ensure("0.5.23", V23, source, sys.executable)
    marker = engines.root / "0.5.23" / COMPLETE
    assert f'"{sys.version_info.major}.{sys.version_info.minor}"' in marker.read_text()
    marker.write_text("{")
    assert engines.installed() == {}
    assert engines.ensure("0.5.23", V23, source, sys.executable)


@pytest.mark.usefixtures("with_uv")
def test_other_packages_need_a_directory_of_their_own_while_in_use(tmp_path: Path, engines: Engines) -> None:
    engines.ensure("0.5.23", V23, house(tmp_path / "w", "0.5.23"), sys.executable)
    other = house(tmp_path / "w2", "0.5.23", "py2.py3-none-any")
    process = subprocess.Popen([engines.root / "0.5.23/bin/python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(FleetError, match=f"in use by process {process.pid}.*sglang_engine_build"):
            engines.ensure("0.5.23", V23, other, sys.executable)
        assert engines.ensure("0.5.23-b2", V23, other, sys.executable)
    finally:
        process.communicate(b"\n")
    assert engines.ensure("0.5.23", V23, other, sys.executable)


@pytest.mark.usefixtures("with_uv")
def test_prunes_the_oldest_that_nobody_needs(tmp_path: Path, engines: Engines) -> None:
    for number, version in enumerate(("0.5.15", "0.5.17", "0.5.20", "0.5.23")):
        engines.ensure(version, Release.parse(version), house(tmp_path / version, version), sys.executable)
        marker = engines.root / version / COMPLETE
        engine_install.os.utime(marker, (number, number))
    assert engines.prunable("0.5.23", keep=2) == ["0.5.15", "0.5.17"]
    assert engines.activate("0.5.15")
    assert not engines.activate("0.5.15")
    assert engines.prunable("0.5.23", keep=2) == ["0.5.17"]
    rollback = tmp_path / "etc/rollback"
    rollback.mkdir(parents=True)
    (rollback / "instance.json").write_text(f'{{"python": "{engines.root}/0.5.17/bin/python"}}')
    assert engines.prunable("0.5.23", keep=2) == []
    assert engines.prunable("0.5.23", keep=1) == ["0.5.20"]
    engines.remove("0.5.20")
    assert sorted(engines.installed()) == ["0.5.15", "0.5.17", "0.5.23"]
    assert engines.current() == "0.5.15"


@pytest.mark.parametrize(
    ("version", "tag", "wanted", "words"),
    [
        ("0.5.20", "py3-none-any", V23, "sglang 0.5.23 in .*; found sglang 0.5.20"),
        ("0.5.23", "cp39-cp39-linux_x86_64", V23, "a wheelhouse for Python 3"),
    ],
)
def test_refuses_an_unfit_wheelhouse(
    tmp_path: Path, engines: Engines, version: str, tag: str, wanted: Release, words: str
) -> None:
    source = house(tmp_path / "w", version, tag)
    with pytest.raises(FleetError, match=words):
        engines.ensure(str(wanted), wanted, source, sys.executable)
    assert not engines.root.exists()


def test_refuses_too_small_a_disk(tmp_path: Path, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_install.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(FleetError, match="GB free below"):
        engines.ensure("0.5.23", V23, house(tmp_path / "w", "0.5.23"), sys.executable)


def test_refuses_a_missing_source_and_python(tmp_path: Path, engines: Engines) -> None:
    with pytest.raises(FleetError, match="playbooks/lock"):
        engines.ensure("0.5.23", V23, Source(), sys.executable)
    with pytest.raises(FleetError, match="whole wheelhouse"):
        engines.ensure("0.5.23", V23, Source(wheelhouse=tmp_path), sys.executable)
    with pytest.raises(FleetError, match="no-python"):
        engines.ensure("0.5.23", V23, Source(wheelhouse=tmp_path), "/no-python")
