"""The files that make engines of a plan: systemd units, and the arguments, environment and record of each instance."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import FleetError
from .flags import Argument, CommandLine, Launch
from .flags import render as render_flags
from .host_files import File
from .instance import ARGUMENTS, CONFIG_DIR, ENVIRONMENT, RECORD, Instance
from .intent import Intent
from .releases import Release
from .topology import Placement
from .units import GB, GIB

SYSTEMD_DIR = "/etc/systemd/system"
SLICE_UNIT, ENGINE_UNIT = "sglang.slice", "sglang@.service"
CACHE_DIR = "/var/cache/sglang"
PROBE_UNIT, PROBE_TIMER = "sglang-probe@.service", "sglang-probe@.timer"
SELF_KILLING_BEFORE = Release(0, 5, 19)
STOP_MARGIN_S = 60
START_MARGIN_S = 120
START_BASE_S = 600
SLOWEST_TOKENS_PER_S = 20
DEFAULT_LONGEST_TOKENS = 32768
# Compilers of kernels at a first start on a GPU; loading on a CPU.
COMPILE_BYTES = {"cuda": 16 * GIB, "cpu": 2 * GIB}
GENERATED = "# Written by the deployment; changes here are lost with the next one.\n"


@dataclass(frozen=True)
class Deployment:
    """What all engines of one host have in common.

    Attributes:
        user, group: system user and group that the engines run as.
        accelerator: "cuda" or "cpu".
        release: SGLang release.
        engine_path: directory of the engine's environment.
        host_tool: path of sglang-fleet on the host.
        model_path, served_model_name: what they serve.
        listen: address that they bind.
        advertise: address at which routers reach them.
        networks: networks, besides this host itself, that they may exchange packets with.
        routers: `{"url": ..., "api_key_file": ...}` each.
        extra_args: further arguments of SGLang, as they are.
        environment: further environment variables.
        start_timeout_s: longest time from start to the first token; None scales it by what must be loaded.
        stop_timeout_s: longest time for requests in flight to finish and the engine to end; None scales it by the
            longest sequence.
        allow_known_bad: warn about combinations that are known to fail, instead of refusing them.
        restart_delay_s, start_limit: pause before systemd's own restart, and how many in a row are tried.
        warmup_requests: requests sent at once before a worker is registered.
        probe_interval_s: pause between two liveness checks.
        probe_timeout_s: time within which a liveness check must get its token.
        probe_failures: failed liveness checks in a row after which the engine is replaced.
    """

    user: str
    group: str
    accelerator: str
    release: Release
    engine_path: str
    host_tool: str
    model_path: str
    served_model_name: str
    listen: str = "127.0.0.1"
    advertise: str = "127.0.0.1"
    networks: tuple[str, ...] = ()
    routers: tuple[Mapping[str, str], ...] = ()
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: int | None = None
    stop_timeout_s: int | None = None
    allow_known_bad: bool = False
    restart_delay_s: int = 10
    start_limit: int = 5
    warmup_requests: int = 8
    probe_interval_s: int = 30
    probe_timeout_s: int = 60
    probe_failures: int = 3

    def __post_init__(self) -> None:
        if self.accelerator not in ("cuda", "cpu"):
            raise FleetError("accelerator cuda or cpu", repr(self.accelerator), "correct the accelerator")
        if self.advertise in ("0.0.0.0", "::"):
            raise FleetError(
                "an address at which the routers reach this host", self.advertise, "set sglang_instances_advertise"
            )
        if self.stop_timeout_s is not None and self.stop_timeout_s <= STOP_MARGIN_S:
            raise FleetError(
                f"a stop time-out above {STOP_MARGIN_S} s", f"{self.stop_timeout_s} s", "raise the stop time-out"
            )
        try:
            list(map(ipaddress.ip_network, self.networks))
        except ValueError as error:
            raise FleetError("networks such as 10.0.0.0/8", str(error), "correct sglang_instances_networks") from error


@dataclass(frozen=True)
class Planned:
    """What the plan says of one instance.

    Attributes:
        intent: complete settings.
        host_ram_bytes: what it takes of the host's RAM, tmpfs not counted.
        loaded_bytes: weights and host pools, which a start has to fill.
        numbers: the plan's own, by "gpu" and "host".
    """

    intent: Intent
    host_ram_bytes: int
    loaded_bytes: int
    numbers: Mapping[str, Any]

    @classmethod
    def from_mapping(cls, planned: Mapping[str, Any]) -> Planned:
        """Read one of the instances that capacity_plan returns."""
        host, gpu = planned["host"], planned["gpu"] or {}
        weights_gib = gpu.get("weights_gib", 0) + gpu.get("draft_gib", 0)
        return cls(
            intent=Intent.from_mapping(planned["intent"]),
            host_ram_bytes=round(host["ram_gib"] * GIB),
            loaded_bytes=round((host["ram_gib"] - host["rss_gib"] + len(planned["gpus"]) * weights_gib) * GIB),
            numbers={"gpu": planned["gpu"], "host": host},
        )

    def memory_ceiling_bytes(self, accelerator: str) -> int:
        """MemoryMax= of its unit: the plan, and room for what is compiled at a first start."""
        return self.host_ram_bytes + COMPILE_BYTES[accelerator]

    def start_timeout_s(self) -> int:
        """Time to the first token: imports and kernels, then weights and pools at a GB in two seconds."""
        return START_BASE_S + round(self.loaded_bytes / GB * 2)

    def stop_timeout_s(self) -> int:
        """Time to finish the longest sequence at SLOWEST_TOKENS_PER_S."""
        longest = self.intent.context_length or self.intent.tokens_per_request or DEFAULT_LONGEST_TOKENS
        return STOP_MARGIN_S + longest // SLOWEST_TOKENS_PER_S


@dataclass(frozen=True)
class HostPlan:
    """What the plan says of a host: its instances by name, and the RAM in bytes that must stay free."""

    instances: Mapping[str, Planned]
    reserve_bytes: int

    @classmethod
    def from_mapping(cls, plan: Mapping[str, Any]) -> HostPlan:
        """Read the result of capacity_plan. Raises FleetError for anything else and for a plan that does not fit."""
        try:
            if not plan["fits"]:
                raise FleetError("a plan that fits", "; ".join(plan["problems"]), "change the intent as it says")
            return cls(
                {planned["name"]: Planned.from_mapping(planned) for planned in plan["instances"]},
                round(plan["host"]["parts_gib"]["reserve"] * GIB),
            )
        except (KeyError, TypeError) as error:
            raise FleetError("the result of capacity_plan", f"a plan without {error}", "pass it unchanged") from error

    def of(self, placement: Placement) -> Planned:
        """The plan of one instance. Raises FleetError where the plan was made for other GPUs."""
        if placement.name not in self.instances:
            raise FleetError(
                f"a plan for instance {placement.name}", f"one for {', '.join(self.instances)}", "plan the same GPUs"
            )
        return self.instances[placement.name]


def _sections(*sections: tuple[str, Iterable[tuple[str, object]]]) -> str:
    return GENERATED + "\n".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in directives) for name, directives in sections
    )


# What neither an engine nor a helper ever needs.
_SANDBOX = (
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("ProtectSystem", "strict"),
    ("ProtectHome", "yes"),
    ("PrivateTmp", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectProc", "invisible"),
    ("RestrictNamespaces", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
    ("KeyringMode", "private"),
    ("SystemCallArchitectures", "native"),
    ("UMask", "0077"),
)
# Nor anything that is not the engine itself: no devices, no code written at run time.
_HELPER_SANDBOX = (
    *_SANDBOX,
    ("PrivateDevices", "yes"),
    ("PrivateIPC", "yes"),
    ("MemoryDenyWriteExecute", "yes"),
    ("RestrictAddressFamilies", "AF_INET AF_INET6"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallFilter", "~@privileged @resources"),
)


def _network(deployment: Deployment) -> tuple[tuple[str, str], ...]:
    return (
        ("IPAddressDeny", "any"),
        ("IPAddressAllow", " ".join(("localhost", *deployment.networks))),
    )


def engine_unit(deployment: Deployment, start_timeout_s: int, stop_timeout_s: int) -> str:
    """The template `sglang@.service`; what differs between instances is in their drop-ins."""
    tool, start_s = deployment.host_tool, start_timeout_s + START_MARGIN_S
    return _sections(
        (
            "Unit",
            (
                ("Description", f"SGLang {deployment.release} on GPU %i"),
                ("Wants", "network-online.target sglang-weights.target sglang-probe@%i.timer"),
                ("After", "network-online.target sglang-weights.target nvidia-persistenced.service"),
                ("StartLimitBurst", deployment.start_limit),
                ("StartLimitIntervalSec", deployment.start_limit * (start_s + deployment.restart_delay_s)),
            ),
        ),
        (
            "Service",
            (
                ("Type", "exec"),
                ("User", deployment.user),
                ("Group", deployment.group),
                ("Slice", SLICE_UNIT),
                ("SyslogIdentifier", "sglang@%i"),
                ("EnvironmentFile", f"{CONFIG_DIR}/%i/{ENVIRONMENT}"),
                ("RuntimeDirectory", "sglang/%i"),
                ("RuntimeDirectoryPreserve", "yes"),
                ("CacheDirectory", "sglang"),
                ("CacheDirectoryMode", "0750"),
                ("WorkingDirectory", CACHE_DIR),
                ("ExecStartPre", f"+{tool} prestart %i"),
                ("ExecStart", f"{tool} run %i"),
                ("ExecStartPost", f"{tool} ready %i"),
                ("ExecStop", f"{tool} drain %i"),
                ("ExecStopPost", f"-{tool} leave %i"),
                ("Restart", "on-failure"),
                ("RestartSec", deployment.restart_delay_s),
                ("RestartPreventExitStatus", "2 78"),
                ("TimeoutStartSec", start_s),
                ("TimeoutStopSec", stop_timeout_s),
                ("KillMode", "mixed"),
                ("OOMPolicy", "stop"),
                ("OOMScoreAdjust", 500),
                ("MemorySwapMax", 0),
                ("LimitMEMLOCK", "infinity"),
                ("LimitNOFILE", 1048576),
                ("LimitCORE", 0),
                ("TasksMax", 4096),
                ("LogRateLimitIntervalSec", 30),
                ("LogRateLimitBurst", 3000),
                *_SANDBOX,
                ("ReadOnlyPaths", "-/dev/shm/sglang"),
                ("DevicePolicy", "closed"),
                ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
                ("SystemCallFilter", "@system-service"),
                ("SystemCallFilter", "~@privileged"),
                *_network(deployment),
            ),
        ),
        ("Install", (("WantedBy", "multi-user.target"),)),
    )


def drop_in(deployment: Deployment, placement: Placement, planned: Planned) -> str:
    """What differs between instances: device nodes, memory, NUMA node."""
    directives: list[tuple[str, object]] = []
    if deployment.accelerator == "cpu":
        directives.append(("PrivateDevices", "yes"))
    directives += [("DeviceAllow", f"{node} rw") for node in device_nodes(deployment, placement)]
    ceiling_bytes = planned.memory_ceiling_bytes(deployment.accelerator)
    directives += [("MemoryHigh", (planned.host_ram_bytes + ceiling_bytes) // 2), ("MemoryMax", ceiling_bytes)]
    nodes = _numa_nodes(placement)
    if nodes:
        directives += [("NUMAPolicy", "bind"), ("NUMAMask", ",".join(map(str, sorted(set(nodes)))))]
    cpus = sorted({gpu.cpus for gpu in placement.gpus if gpu.cpus})
    if cpus:
        directives.append(("CPUAffinity", " ".join(cpus)))
    if deployment.release < SELF_KILLING_BEFORE:
        # These releases end a clean stop by SIGKILLing themselves; a crash by SIGKILL is still restarted.
        directives += [("SuccessExitStatus", "SIGKILL"), ("RestartForceExitStatus", "SIGKILL")]
    return _sections(("Service", directives))


def _numa_nodes(placement: Placement) -> tuple[int, ...]:
    """NUMA node of each GPU; empty where one is unknown."""
    nodes = tuple(gpu.numa_node for gpu in placement.gpus if gpu.numa_node is not None)
    return nodes if len(nodes) == len(placement.gpus) else ()


def device_nodes(deployment: Deployment, placement: Placement) -> tuple[str, ...]:
    """Device files that the instance opens."""
    if deployment.accelerator == "cpu":
        return ()
    minors = (gpu.index if gpu.minor is None else gpu.minor for gpu in placement.gpus)
    return (
        *(f"/dev/nvidia{minor}" for minor in minors),
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    )


def slice_unit(accelerator: str, planned: Iterable[Planned]) -> str:
    """The slice of all engines: together they take what is planned, and compile kernels for one of them at a time."""
    ceiling_bytes = sum(instance.host_ram_bytes for instance in planned) + COMPILE_BYTES[accelerator]
    return _sections(
        ("Unit", (("Description", "All SGLang engines of this host"),)),
        ("Slice", (("MemoryMax", ceiling_bytes), ("MemorySwapMax", 0))),
    )


def probe_units(deployment: Deployment) -> tuple[str, str]:
    """The liveness check of an instance: its service and its timer, which lives as long as the engine serves."""
    service = _sections(
        ("Unit", (("Description", "Liveness check of SGLang on GPU %i"),)),
        (
            "Service",
            (
                ("Type", "oneshot"),
                ("User", deployment.user),
                ("Group", deployment.group),
                ("SyslogIdentifier", "sglang-probe@%i"),
                ("ExecStart", f"{deployment.host_tool} probe %i"),
                ("TimeoutStartSec", deployment.probe_timeout_s + STOP_MARGIN_S),
                ("ReadWritePaths", "/run/sglang/%i"),
                *_HELPER_SANDBOX,
                *_network(deployment),
            ),
        ),
    )
    timer = _sections(
        (
            "Unit",
            (
                ("Description", "Liveness checks of SGLang on GPU %i"),
                # Wanted by the engine's unit. BindsTo= would have each failed start of an engine counted twice.
                ("StopWhenUnneeded", "yes"),
                ("After", "sglang@%i.service"),
            ),
        ),
        (
            "Timer",
            (
                ("OnActiveSec", deployment.probe_interval_s),
                ("OnUnitInactiveSec", deployment.probe_interval_s),
                ("AccuracySec", "1s"),
            ),
        ),
    )
    return service, timer


def url(address: str, port: int) -> str:
    """Base URL of a service at an IPv4 or IPv6 address or host name."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def arguments_text(arguments: Iterable[Argument]) -> str:
    """The text of an `args` file. Raises FleetError for an argument that does not fit a line."""
    lines = [GENERATED.rstrip("\n"), "# One argument of sglang.launch_server to a line."]
    for argument in arguments:
        if "\n" in argument.text or argument.text != argument.text.strip() or argument.text[:1] in ("", "#"):
            raise FleetError("arguments of one line each", repr(argument.text), "correct sglang_instances_extra_args")
        lines += [f"# {argument.why}", argument.text]
    return "\n".join(lines) + "\n"


def environment_text(variables: Iterable[tuple[str, str, str]]) -> str:
    """The text of an `env` file, read by systemd, from (name, value, why). Raises FleetError for a broken name."""
    lines = [GENERATED.rstrip("\n")]
    for name, value, why in variables:
        if not name.replace("_", "a").isalnum() or name[0].isdigit() or "\n" in value:
            raise FleetError(
                "NAME and a value of one line", f"{name}={value!r}", "correct sglang_instances_environment"
            )
        quoted = value
        for special in '\\"$`':
            quoted = quoted.replace(special, f"\\{special}")
        lines += [f"# {why}", f'{name}="{quoted}"']
    return "\n".join(lines) + "\n"


def command_line(deployment: Deployment, placement: Placement, planned: Planned) -> CommandLine:
    """What the engine is started with; the flags of this release, the GPUs of this instance."""
    launch = Launch(
        model_path=deployment.model_path,
        served_model_name=deployment.served_model_name,
        host=deployment.listen,
        port=placement.port,
        nccl_port=placement.nccl_port,
        accelerator=deployment.accelerator,
        extra_args=deployment.extra_args,
        environment=deployment.environment,
        cache_dir=f"{CACHE_DIR}/{deployment.engine_path.rpartition('/')[2]}",
        numa_nodes=_numa_nodes(placement),
    )
    rendered = render_flags(planned.intent, deployment.release, launch, deployment.allow_known_bad)
    if deployment.accelerator == "cpu":
        return rendered
    gpus = (
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "indices as nvidia-smi numbers them"),
        (
            "CUDA_VISIBLE_DEVICES",
            ",".join(str(gpu.index) for gpu in placement.gpus),
            "by index: UUIDs crash some releases; counted from 0 at start where the device fence leaves only these",
        ),
    )
    return CommandLine(rendered.arguments, (*rendered.environment, *gpus), rendered.warnings)


@dataclass(frozen=True)
class Rendering:
    """All files of a host's engines in the order in which they are written, the engines' command lines by instance, and
    warnings for people."""

    files: tuple[File, ...]
    command_lines: Mapping[str, CommandLine]
    warnings: tuple[str, ...]
    start_timeout_s: int


def render(deployment: Deployment, placements: Sequence[Placement], plan: HostPlan) -> Rendering:
    """Every file of the host's engines. Raises FleetError for what no release or host would take."""
    shares = [plan.of(placement) for placement in placements]
    start_s = deployment.start_timeout_s or max(share.start_timeout_s() for share in shares)
    stop_s = deployment.stop_timeout_s or max(share.stop_timeout_s() for share in shares)
    unit = engine_unit(deployment, start_s, stop_s)
    probe, timer = probe_units(deployment)
    files = [
        File(f"{SYSTEMD_DIR}/{SLICE_UNIT}", slice_unit(deployment.accelerator, shares)),
        File(f"{SYSTEMD_DIR}/{ENGINE_UNIT}", unit),
        File(f"{SYSTEMD_DIR}/{PROBE_UNIT}", probe),
        File(f"{SYSTEMD_DIR}/{PROBE_TIMER}", timer),
    ]
    command_lines: dict[str, CommandLine] = {}
    for placement, share in zip(placements, shares, strict=True):
        own = drop_in(deployment, placement, share)
        line = command_lines[placement.name] = command_line(deployment, placement, share)
        uuids = tuple(gpu.uuid or "" for gpu in placement.gpus)
        record = Instance(
            name=placement.name,
            gpus=tuple(gpu.index for gpu in placement.gpus),
            gpu_uuids=uuids if any(uuids) else (),
            device_nodes=device_nodes(deployment, placement),
            accelerator=deployment.accelerator,
            port=placement.port,
            nccl_port=placement.nccl_port,
            url=url(deployment.advertise, placement.port),
            local_url=url(
                {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(deployment.listen, deployment.listen), placement.port
            ),
            engine_version=str(deployment.release),
            python=f"{deployment.engine_path}/bin/python",
            model_path=deployment.model_path,
            served_model_name=deployment.served_model_name,
            routers=deployment.routers,
            start_timeout_s=start_s,
            drain_timeout_s=stop_s - STOP_MARGIN_S,
            warmup_requests=deployment.warmup_requests,
            probe_timeout_s=deployment.probe_timeout_s,
            probe_failures=deployment.probe_failures,
            host_ram_bytes=share.host_ram_bytes,
            host_reserve_bytes=plan.reserve_bytes,
            unit_sha256=hashlib.sha256((unit + own).encode()).hexdigest(),
            planned=share.numbers,
        )
        files.append(File(f"{SYSTEMD_DIR}/{placement.unit}.d/instance.conf", own))
        files += [
            File(f"{CONFIG_DIR}/{placement.name}/{name}", text, 0o640, deployment.group)
            for name, text in (
                (ARGUMENTS, arguments_text(line.arguments)),
                (ENVIRONMENT, environment_text(line.environment)),
                (RECORD, record.to_json()),
            )
        ]
    warnings = dict.fromkeys(warning for line in command_lines.values() for warning in line.warnings)
    return Rendering(tuple(files), command_lines, tuple(warnings), start_s)
