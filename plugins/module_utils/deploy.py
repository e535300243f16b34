"""Bringing a host's engines to what is wanted: compare, write, start, replace, retire."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from . import systemd
from .errors import FleetError
from .generations import Generations
from .host_files import HOST_ROOT, Change, File, compare, write
from .instance import ARGUMENTS, CONFIG_DIR, ENVIRONMENT, RECORD, Instance, configured, launch_sha256, running
from .processes import listeners
from .registration import rolling
from .rolling import Policy, roll
from .topology import Placement
from .unit_files import PROBE_TIMER, PROBE_UNIT, SLICE_UNIT, SYSTEMD_DIR


def check_host(placements: Sequence[Placement]) -> None:
    """Raises FleetError where this host cannot take the engines: no systemd, or a stranger on one of their ports."""
    systemd.require()
    owners = listeners()
    own = {port for name in configured() if running(name) for port in Instance.read(name).ports}
    for placement in placements:
        for port in placement.ports:
            if port in owners and port not in own:
                raise FleetError(
                    f"port {port} to be free for {placement.unit}",
                    f"it is held by {owners[port]}",
                    "stop that process or change sglang_instances_base_port",
                )


@dataclass(frozen=True)
class Rendered:
    """What `apply` found and, unless only checking, wrote.

    Attributes:
        changes: files that were not as wanted.
        stale: wanted instances that run with another configuration than the wanted one.
        obsolete: instances configured on the host that are no longer wanted.
    """

    changes: tuple[Change, ...]
    stale: tuple[str, ...]
    obsolete: tuple[str, ...]


def apply(files: Sequence[File], placements: Sequence[Placement], *, root: Path, check: bool) -> Rendered:
    """Write the files below `root` unless only checking; on the host's own root, verify the units first.

    Whether an instance is stale is judged by what its running process was started with, so a run that ended between
    writing and restarting is made up for. Raises FleetError for units that systemd would not accept, and during a
    roll.
    """
    changes = compare(files, root)
    own = root == HOST_ROOT
    texts = {file.path: file.text for file in files}
    if not check:
        if own and changes:
            _verify(texts, placements)
        with rolling() if own and changes else nullcontext():
            write((file for file in files if file.path in {change.path for change in changes}), root)
        if own:
            systemd.reload_where_needed([placement.unit for placement in placements])
    return Rendered(
        changes,
        tuple(placement.name for placement in placements if own and _is_stale(placement.name, texts)),
        tuple(set(configured()) - {placement.name for placement in placements}) if own else (),
    )


def _is_stale(name: str, texts: Mapping[str, str]) -> bool:
    started = running(name)
    wanted = launch_sha256(*(texts[f"{CONFIG_DIR}/{name}/{part}"] for part in (RECORD, ARGUMENTS, ENVIRONMENT)))
    return started is not None and started.sha256 != wanted


def _verify(texts: Mapping[str, str], placements: Sequence[Placement]) -> None:
    units = {path[len(SYSTEMD_DIR) + 1 :]: text for path, text in texts.items() if path.startswith(f"{SYSTEMD_DIR}/")}
    engines = [placement.unit for placement in placements]
    helpers = [unit.replace("@", f"@{placements[0].name}") for unit in (PROBE_UNIT, PROBE_TIMER)]
    systemd.verify(units, [SLICE_UNIT, *engines, *helpers])


@dataclass(frozen=True)
class Transition:
    """What `bring_up` did, or would do: names of instances."""

    retired: tuple[str, ...]
    enabled: tuple[str, ...]
    started: tuple[str, ...]
    restarted: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether it was anything."""
        return bool(self.retired or self.enabled or self.started or self.restarted)

    def diff(self) -> dict[str, str]:
        """In the form that Ansible shows: a line for each instance that changes."""
        lines = (
            *((name, "configured", "retired") for name in self.retired),
            *((name, "not enabled", "enabled") for name in self.enabled),
            *((name, "not running", "serving") for name in self.started),
            *((name, "serving the old configuration", "serving the new one") for name in self.restarted),
        )
        return {
            "before": "".join(f"sglang@{name}: {before}\n" for name, before, _ in lines),
            "after": "".join(f"sglang@{name}: {after}\n" for name, _, after in lines),
        }


def bring_up(
    names: Sequence[str], stale: Sequence[str], policy: Policy, *, waves: int = 0, check: bool = False
) -> Transition:
    """Retire instances that are not in `names`, start those that do not run, all at once, and replace stale ones.

    `waves` is that of `rolling.roll`. What is started serves, or its last good configuration serves again and a
    FleetError says so.
    """
    states = systemd.show([f"sglang@{name}.service" for name in names])
    transition = Transition(
        retired=tuple(name for name in configured() if name not in names),
        enabled=tuple(name for name in names if not states[f"sglang@{name}.service"].enabled),
        started=tuple(name for name in names if states[f"sglang@{name}.service"].active != "active"),
        restarted=tuple(name for name in stale if states[f"sglang@{name}.service"].active == "active"),
    )
    if check:
        return transition
    for name in transition.retired:
        retire(name)
    todo = (*transition.started, *transition.restarted)
    for name in names:
        if name in todo:
            Generations(name).use_template()
        else:
            Generations(name).keep()
    systemd.reload_where_needed(list(states))
    if transition.enabled:
        systemd.systemctl("enable", *(f"sglang@{name}.service" for name in transition.enabled))
    if todo:
        roll(todo, policy, waves)
    return transition


def retire(name: str) -> None:
    """Stop an instance, which drains it, and remove what was configured for it."""
    systemd.systemctl("disable", "--now", f"sglang@{name}.service")
    shutil.rmtree(Path(SYSTEMD_DIR, f"sglang@{name}.service.d"), ignore_errors=True)
    Generations(name).use_template()
    shutil.rmtree(CONFIG_DIR / name)
    systemd.systemctl("daemon-reload")
