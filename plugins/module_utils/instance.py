"""The record of one engine instance: what `/etc/sglang/instances/NAME/` holds, and what its process started with.

Written by the module `instances`, read by everything that runs in the unit `sglang@NAME`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import FleetError
from .processes import start_ticks, unit_of

CONFIG_DIR = Path("/etc/sglang/instances")
RUNTIME_DIR = Path("/run/sglang")
RECORD, ARGUMENTS, ENVIRONMENT = "instance.json", "args", "env"
STARTED, READY = "started.json", "ready.json"


@dataclass(frozen=True)
class Instance:
    """One engine: where it runs, what it serves, and the numbers it was planned with.

    Attributes:
        name: NAME of `sglang@NAME.service`.
        gpus: GPU indices, one for each tensor-parallel rank.
        gpu_uuids: the cards that these indices must be, in the same order, "" for any card; empty where all are "".
        device_nodes: device files that must be there.
        accelerator: "cuda" or "cpu".
        port, nccl_port: HTTP port, rendezvous port.
        url: base URL at which the routers reach it.
        local_url: base URL at which this host reaches it.
        engine_version: SGLang release.
        python: interpreter of the engine's environment.
        model_path: directory of the staged model.
        served_model_name: name under which clients ask for it.
        routers: `{"url": ..., "api_key_file": ...}` of each router that sends it requests.
        start_timeout_s: longest time from the process's start to its first token.
        drain_timeout_s: longest wait for requests in flight before a stop.
        warmup_requests: requests sent at the same time before it is registered.
        probe_timeout_s: time within which a liveness check must get its token.
        probe_failures: failed liveness checks in a row after which the engine is replaced.
        host_ram_bytes: what it will take of the host's RAM, tmpfs not counted.
        host_reserve_bytes: RAM that must stay free beside it.
        unit_sha256: hash of its unit file with drop-in.
        planned: the plan's numbers, for the comparison with what the engine allocated.
    """

    name: str
    gpus: tuple[int, ...]
    port: int
    nccl_port: int
    url: str
    local_url: str
    engine_version: str
    python: str
    model_path: str
    served_model_name: str
    accelerator: str = "cuda"
    gpu_uuids: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    routers: tuple[Mapping[str, str], ...] = ()
    start_timeout_s: int = 900
    drain_timeout_s: int = 900
    warmup_requests: int = 8
    probe_timeout_s: int = 60
    probe_failures: int = 3
    host_ram_bytes: int = 0
    host_reserve_bytes: int = 0
    unit_sha256: str = ""
    planned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The systemd unit's name."""
        return f"sglang@{self.name}.service"

    @property
    def ports(self) -> tuple[int, int]:
        """Every port it opens."""
        return self.port, self.nccl_port

    def to_json(self) -> str:
        """The text of instance.json."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, origin: str = RECORD) -> Instance:
        """Read instance.json; `origin` names it in errors. Raises FleetError for anything that is not one."""
        try:
            values = json.loads(text)
            if not isinstance(values, dict):
                raise TypeError("not a JSON object")
            unknown = sorted(set(values) - {field.name for field in fields(cls)})
            if unknown:
                raise TypeError(f"unknown keys {', '.join(unknown)}")
            for key in ("gpus", "gpu_uuids", "device_nodes", "routers"):
                values[key] = tuple(values.get(key, ()))
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise FleetError(
                "an instance record as this version of sglang-fleet writes it",
                f"{origin}: {error}",
                "deploy the host again",
            ) from error

    @classmethod
    def read(cls, name: str, config_dir: Path = CONFIG_DIR) -> Instance:
        """The instance configured under this name. Raises FleetError where there is none."""
        path = config_dir / name / RECORD
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise FleetError(
                f"an instance {name!r} configured in {path.parent}",
                str(error.strerror),
                f"name one of: {', '.join(configured(config_dir)) or 'none is configured'}",
            ) from error


def configured(config_dir: Path = CONFIG_DIR) -> tuple[str, ...]:
    """Names of the instances that the host has a record of."""
    return tuple(sorted(path.parent.name for path in config_dir.glob(f"*/{RECORD}")))


def arguments(text: str) -> tuple[str, ...]:
    """The engine's arguments in the text of an `args` file: one to a line, `#` starts a comment line."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def environment(text: str) -> dict[str, str]:
    """The variables in the text of an `env` file: `NAME="value"` with systemd's backslash escapes."""
    pairs = (line.partition("=") for line in arguments(text))
    return {name: re.sub(r"\\(.)", r"\1", value[1:-1]) for name, _, value in pairs}


def launch_sha256(record: str, args: str, env: str) -> str:
    """Hash of what a process is started with, from the texts of the three files.

    Comments, time-outs, routers and planned numbers are not part of it: they are read at the moment of use, and
    changing them needs no restart.
    """
    instance = Instance.from_json(record)
    identity = [
        instance.python,
        instance.model_path,
        instance.unit_sha256,
        *arguments(args),
        "",
        *arguments(env),
    ]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def configured_sha256(name: str, config_dir: Path = CONFIG_DIR) -> str:
    """`launch_sha256` of the files on disk. Raises FleetError where one is missing."""
    texts = []
    for part in (RECORD, ARGUMENTS, ENVIRONMENT):
        path = config_dir / name / part
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FleetError(f"{path}", str(error.strerror), "deploy the host again") from error
    return launch_sha256(*texts)


@dataclass(frozen=True)
class Started:
    """What a running engine was started with.

    Attributes:
        pid: its main process.
        start_ticks: when that process started, in clock ticks since boot.
        sha256: `launch_sha256` at that moment.
        engine_version: SGLang release at that moment.
    """

    pid: int
    start_ticks: int
    sha256: str
    engine_version: str

    def write(self, name: str, runtime_dir: Path = RUNTIME_DIR) -> None:
        """Leave the record where `running` finds it."""
        (runtime_dir / name / STARTED).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def running(name: str, runtime_dir: Path = RUNTIME_DIR) -> Started | None:
    """What the instance's main process was started with; None where it does not run."""
    try:
        started = Started(**json.loads((runtime_dir / name / STARTED).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    alive = start_ticks(started.pid) == started.start_ticks and unit_of(started.pid) == f"sglang@{name}.service"
    return started if alive else None


def mark_ready(name: str, pid: int, runtime_dir: Path = RUNTIME_DIR) -> None:
    """Leave word that the engine whose main process is `pid` has allocated everything and answers."""
    (runtime_dir / name / READY).write_text(json.dumps({"pid": pid}) + "\n", encoding="utf-8")


def is_ready(name: str, started: Started, runtime_dir: Path = RUNTIME_DIR) -> bool:
    """Whether `mark_ready` was called for this very process."""
    try:
        ready = json.loads((runtime_dir / name / READY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(ready.get("pid") == started.pid)
