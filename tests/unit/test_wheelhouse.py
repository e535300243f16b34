"""The wheelhouse with real pip, offline: its requirement files point at wheels made here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.wheelhouse import LOCK, Step, Wheelhouse, build, sha256

from .wheels import make_wheel


@pytest.fixture
def step(tmp_path: Path) -> Step:
    index = tmp_path / "index"
    index.mkdir()
    make_wheel(index, "engine_a", "1.0")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"--no-index\n--find-links {index}\nengine-a==1.0\n")
    return Step(files=(str(requirements),))


def test_builds_once_and_names_every_wheel_with_its_hash(tmp_path: Path, step: Step) -> None:
    house = tmp_path / "house"
    before, after = build(house, [step], sys.executable)
    wheel = house / "engine_a-1.0-py3-none-any.whl"
    assert before == ""
    assert f"engine-a==1.0 --hash=sha256:{sha256(wheel)}" in after
    assert build(house, [step], sys.executable) == (after, after)
    opened = Wheelhouse.open(house)
    assert opened.version_of("engine-a") == "1.0"
    assert opened.unpacked_bytes() > 100


def test_check_mode_writes_nothing(tmp_path: Path, step: Step) -> None:
    house = tmp_path / "house"
    before, after = build(house, [step], sys.executable, check=True)
    assert before != after
    assert not house.exists()


def test_changed_inputs_and_missing_wheels_are_built_again(tmp_path: Path, step: Step) -> None:
    house = tmp_path / "house"
    _, first = build(house, [step], sys.executable)
    (house / "engine_a-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FleetError, match="only its line"):
        Wheelhouse.open(house)
    before, after = build(house, [step], sys.executable)
    assert (before, after) == ("", first)
    assert (house / "engine_a-1.0-py3-none-any.whl").exists()
    requirements = Path(step.files[0])
    make_wheel(tmp_path / "index", "engine_b", "2.0")
    requirements.write_text(requirements.read_text() + "engine-b==2.0\n")
    _, second = build(house, [step], sys.executable)
    assert "engine-b==2.0" in second


def test_a_failed_build_is_not_whole_and_says_why(tmp_path: Path, step: Step) -> None:
    house = tmp_path / "house"
    build(house, [step], sys.executable)
    requirements = Path(step.files[0])
    requirements.write_text(requirements.read_text() + "absent==9\n")
    with pytest.raises(FleetError, match="absent==9"):
        build(house, [step], sys.executable)
    assert not (house / LOCK).exists()
    with pytest.raises(FleetError, match="whole wheelhouse"):
        Wheelhouse.open(house)


def test_a_wrong_hash_is_refused_by_pip(tmp_path: Path, step: Step) -> None:
    requirements = Path(step.files[0])
    requirements.write_text(requirements.read_text().replace("==1.0", f"==1.0 --hash=sha256:{'0' * 64}"))
    with pytest.raises(FleetError):
        build(tmp_path / "house", [step], sys.executable)
