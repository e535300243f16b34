"""The way back: which instances take it, and what must still be there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import rollback
from ansible_collections.llmops.fleet.plugins.module_utils.engine_install import COMPLETE
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.generations import GOOD, Generations
from ansible_collections.llmops.fleet.plugins.module_utils.rollback import ways_back

from .test_rolling import INSTANCE, configure


class Host:
    """A host's files, with engines installed in `opt`; each deployment is a second younger than the one before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = 1
        (root / "systemd").mkdir()
        (root / "systemd/sglang@.service").write_text("template")

    def generations(self, name: str) -> Generations:
        return Generations(name, self.root / "config", self.root / "systemd", self.root / "state")

    def serve(self, name: str, version: str, flags: str = "") -> Generations:
        """What a deployment leaves once the instance serves."""
        engine = self.root / "opt" / version
        (engine / "bin").mkdir(parents=True, exist_ok=True)
        (engine / COMPLETE).write_text("{}")
        instance = replace(
            INSTANCE, name=name, python=str(engine / "bin/python"), model_path="/m", engine_version=version
        )
        configure(self.root / "config", instance, f"--port=3000{name}\n--nccl-port=3100{name}\n{flags}")
        generations = self.generations(name)
        generations.keep()
        self.time += 1
        os.utime(generations.kept(GOOD), (self.time, self.time))
        return generations


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(rollback, "require_ready", lambda path: None)
    return Host(tmp_path)


def test_all_engines_of_an_upgrade_return(host: Host) -> None:
    for version in ("0.5.20", "0.5.23"):
        kept = [host.serve(name, version) for name in "01"]
    assert [(way.now.name, way.before.engine_version) for way in ways_back(kept)] == [("0", "0.5.20"), ("1", "0.5.20")]
    assert str(ways_back(kept)[0]) == "sglang@0.service: SGLang 0.5.23 (0.5.23), /m -> SGLang 0.5.20 (0.5.20), /m"


def test_engines_that_a_halted_upgrade_did_not_reach_stay(host: Host) -> None:
    for version in ("0.5.17", "0.5.20"):
        kept = [host.serve(name, version) for name in "01"]
    host.serve("0", "0.5.23")
    assert [(way.now.name, way.before.engine_version) for way in ways_back(kept)] == [("0", "0.5.20")]


def test_other_flags_are_an_earlier_configuration_too(host: Host) -> None:
    host.serve("0", "0.5.23")
    way = ways_back([host.serve("0", "0.5.23", "--page-size=64\n")])[0]
    assert way.before.engine_version == "0.5.23"


def test_nothing_to_go_back_to(host: Host) -> None:
    with pytest.raises(FleetError, match="engines that have served before"):
        ways_back([host.generations("0")])
    with pytest.raises(FleetError, match="an earlier configuration of every engine; found none of 0"):
        ways_back([host.serve("0", "0.5.23")])


def test_a_pruned_engine_is_named(host: Host) -> None:
    host.serve("0", "0.5.20")
    kept = host.serve("0", "0.5.23")
    (host.root / "opt/0.5.20" / COMPLETE).unlink()
    with pytest.raises(FleetError, match=r"deploy with sglang_engine_version=0\.5\.20"):
        ways_back([kept])


def test_a_model_that_is_gone_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    host.serve("0", "0.5.20")
    kept = host.serve("0", "0.5.23")
    with pytest.raises(FleetError, match=r"a staged model .* in /m"):
        ways_back([kept])
