"""The files that make engines of a plan: systemd units, and the arguments, environment and record of each instance."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import FleetError
from .host_files import File
from .instance import ARGUMENTS, CONFIG_DIR, ENVIRONMENT, RECORD, Instance
from .releases import Release
from .topology import Placement

SYSTEMD_DIR = "/etc/systemd/system"
SLICE_UNIT, ENGINE_UNIT = "sglang.slice", "sglang@.service"
CACHE_DIR = "/var/cache/sglang"
PROBE_UNIT, PROBE_TIMER = "sglang-probe@.service", "sglang-probe@.timer"
SELF_KILLING_BEFORE = Release(0, 5, 19)
STOP_MARGIN_S = 60
START_MARGIN_S = 120
GENERATED = "# Written by the deployment; changes here are lost with the next one.\n"


@dataclass(frozen=True)
class Deployment:
    """What all engines of one host have in common.

    Attributes:
        user, group: system user and group that the engines run as.
        accelerator: "cuda" or "cpu".
        release: SGLang release.
        engine_root: directory of the versioned engines.
        host_tool: path of sglang-fleet on the host.
        model_path, served_model_name: what they serve.
        listen: address that they bind.
        advertise: address at which routers reach them.
        networks: networks, besides this host itself, that they may exchange packets with.
        routers: `{"url": ..., "api_key_file": ...}` each.
        extra_args: further arguments of SGLang, as they are.
        environment: further environment variables.
        start_timeout_s: longest time from start to the first token.
        stop_timeout_s: longest time for requests in flight to finish and the engine to end.
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
    engine_root: str
    host_tool: str
    model_path: str
    served_model_name: str
    listen: str = "127.0.0.1"
    advertise: str = "127.0.0.1"
    networks: tuple[str, ...] = ()
    routers: tuple[Mapping[str, str], ...] = ()
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: int = 900
    stop_timeout_s: int = 900
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
        if self.stop_timeout_s <= STOP_MARGIN_S:
            raise FleetError(
                f"a stop time-out above {STOP_MARGIN_S} s", f"{self.stop_timeout_s} s", "raise the stop time-out"
            )
        try:
            list(map(ipaddress.ip_network, self.networks))
        except ValueError as error:
            raise FleetError("networks such as 10.0.0.0/8", str(error), "correct sglang_instances_networks") from error


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


def engine_unit(deployment: Deployment) -> str:
    """The template `sglang@.service`; what differs between instances is in their drop-ins."""
    tool, start_s = deployment.host_tool, deployment.start_timeout_s + START_MARGIN_S
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
                ("TimeoutStopSec", deployment.stop_timeout_s),
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


def drop_in(deployment: Deployment, placement: Placement, host_ram_bytes: int = 0) -> str:
    """What differs between instances: device nodes, memory, NUMA node."""
    directives: list[tuple[str, object]] = []
    if deployment.accelerator == "cpu":
        directives.append(("PrivateDevices", "yes"))
    directives += [("DeviceAllow", f"{node} rw") for node in device_nodes(deployment, placement)]
    if host_ram_bytes:
        directives += [("MemoryHigh", host_ram_bytes * 11 // 10), ("MemoryMax", host_ram_bytes * 5 // 4)]
    nodes = sorted({gpu.numa_node for gpu in placement.gpus if gpu.numa_node is not None})
    if nodes:
        directives += [("NUMAPolicy", "bind"), ("NUMAMask", ",".join(map(str, nodes)))]
    cpus = sorted({gpu.cpus for gpu in placement.gpus if gpu.cpus})
    if cpus:
        directives.append(("CPUAffinity", " ".join(cpus)))
    if deployment.release < SELF_KILLING_BEFORE:
        # These releases end a clean stop by SIGKILLing themselves; a crash by SIGKILL is still restarted.
        directives += [("SuccessExitStatus", "SIGKILL"), ("RestartForceExitStatus", "SIGKILL")]
    return _sections(("Service", directives))


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


def slice_unit(ceiling_bytes: int = 0) -> str:
    """The slice of all engines; with a ceiling no engine, nor all together, takes more RAM than planned."""
    limits: list[tuple[str, object]] = [("MemoryMax", ceiling_bytes)] if ceiling_bytes else []
    return _sections(
        ("Unit", (("Description", "All SGLang engines of this host"),)), ("Slice", (*limits, ("MemorySwapMax", 0)))
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
                ("BindsTo", "sglang@%i.service"),
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


def instance_of(
    deployment: Deployment, placement: Placement, unit_sha256: str, host_ram_bytes: int = 0, host_reserve_bytes: int = 0
) -> Instance:
    """The record of one instance."""
    return Instance(
        name=placement.name,
        gpus=tuple(gpu.index for gpu in placement.gpus),
        gpu_uuids=uuids if any(uuids := tuple(gpu.uuid or "" for gpu in placement.gpus)) else (),
        device_nodes=device_nodes(deployment, placement),
        accelerator=deployment.accelerator,
        port=placement.port,
        nccl_port=placement.nccl_port,
        url=url(deployment.advertise, placement.port),
        local_url=url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(deployment.listen, deployment.listen), placement.port),
        engine_version=str(deployment.release),
        python=f"{deployment.engine_root}/{deployment.release}/bin/python",
        model_path=deployment.model_path,
        served_model_name=deployment.served_model_name,
        routers=deployment.routers,
        start_timeout_s=deployment.start_timeout_s,
        drain_timeout_s=deployment.stop_timeout_s - STOP_MARGIN_S,
        warmup_requests=deployment.warmup_requests,
        probe_timeout_s=deployment.probe_timeout_s,
        probe_failures=deployment.probe_failures,
        host_ram_bytes=host_ram_bytes,
        host_reserve_bytes=host_reserve_bytes,
        unit_sha256=unit_sha256,
    )


def url(address: str, port: int) -> str:
    """Base URL of a service at an IPv4 or IPv6 address or host name."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def arguments_text(arguments: Iterable[tuple[str, str]]) -> str:
    """The text of an `args` file from (argument, why) pairs. Raises FleetError for one that does not fit a line."""
    lines = [GENERATED.rstrip("\n"), "# One argument of sglang.launch_server to a line."]
    for argument, why in arguments:
        if "\n" in argument or argument != argument.strip() or argument.startswith("#") or not argument:
            raise FleetError("arguments of one line each", repr(argument), "correct sglang_instances_extra_args")
        lines += [f"# {why}", argument]
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


def render(deployment: Deployment, placements: Sequence[Placement]) -> tuple[File, ...]:
    """Every file of the host's engines, in the order in which they are written."""
    unit = engine_unit(deployment)
    probe, timer = probe_units(deployment)
    files = [
        File(f"{SYSTEMD_DIR}/{SLICE_UNIT}", slice_unit()),
        File(f"{SYSTEMD_DIR}/{ENGINE_UNIT}", unit),
        File(f"{SYSTEMD_DIR}/{PROBE_UNIT}", probe),
        File(f"{SYSTEMD_DIR}/{PROBE_TIMER}", timer),
    ]
    for placement in placements:
        own = drop_in(deployment, placement)
        record = instance_of(deployment, placement, hashlib.sha256((unit + own).encode()).hexdigest())
        directory = f"{CONFIG_DIR}/{placement.name}"
        files.append(File(f"{SYSTEMD_DIR}/{placement.unit}.d/instance.conf", own))
        files += [
            File(f"{directory}/{name}", text, 0o640, deployment.group)
            for name, text in (
                (ARGUMENTS, arguments_text(_arguments(deployment, placement))),
                (ENVIRONMENT, environment_text(_environment(deployment, placement))),
                (RECORD, record.to_json()),
            )
        ]
    return tuple(files)


def _arguments(deployment: Deployment, placement: Placement) -> list[tuple[str, str]]:
    return [
        (f"--model-path={deployment.model_path}", "the staged model"),
        (f"--served-model-name={deployment.served_model_name}", "the name that clients ask for"),
        (f"--host={deployment.listen}", "address to bind"),
        (f"--port={placement.port}", "from the GPU's index"),
        (f"--nccl-port={placement.nccl_port}", "from the GPU's index"),
        ("--enable-metrics", "requests in flight are counted before a stop"),
        *((argument, "as given in the inventory") for argument in deployment.extra_args),
    ]


def _environment(deployment: Deployment, placement: Placement) -> list[tuple[str, str, str]]:
    cache = f"{CACHE_DIR}/{deployment.release}"
    variables = [
        ("HOME", CACHE_DIR, "the engine's user has no home directory"),
        ("XDG_CACHE_HOME", cache, "compiled kernels outlive a restart, apart for each release"),
        ("TRITON_CACHE_DIR", f"{cache}/triton", "compiled kernels outlive a restart, apart for each release"),
        ("CUDA_CACHE_PATH", f"{cache}/cuda", "compiled kernels outlive a restart, apart for each release"),
        ("PYTHONUNBUFFERED", "1", "the journal shows lines when they are written"),
    ]
    if deployment.accelerator == "cuda":
        indices = ",".join(str(gpu.index) for gpu in placement.gpus)
        variables += [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "indices as nvidia-smi numbers them"),
            ("CUDA_VISIBLE_DEVICES", indices, "this instance's GPUs, by index: UUIDs crash some releases"),
        ]
    return variables + [
        (name, str(value), "as given in the inventory") for name, value in sorted(deployment.environment.items())
    ]
