"""From an intent to the command line of a SGLang release, and back: which managed flag would a free argument override?

One table names every managed flag by release. Names and defaults are those of the releases' own parsers, the behaviour
behind them was read in their sources and on their trackers (`sglang#N`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import FleetError
from .flag_lists import fate, flags_of
from .intent import Intent
from .known_bad import Candidate, judge
from .releases import Release

Wanted = Iterator[tuple[str, str | tuple[str, ...] | None, str]]
"""(key of MANAGED, value or values, why) of flags that an instance needs."""

OLDEST = Release(0, 5, 10)
NEWEST = Release(0, 5, 23)
RENAMED = Release(0, 5, 14)
"""First release with the new names of the state strategy and the graph flags (the old ones go by 0.5.20)."""

INTENT = "sglang_instances_intent"
EXTRA_ARGS = "sglang_instances_extra_args"


@dataclass(frozen=True)
class Argument:
    """One element of the engine's argv: `--flag=value`, `--flag`, or a further value of the argument before it."""

    flag: str
    value: str | None
    why: str

    @property
    def text(self) -> str:
        """As it stands in argv."""
        return self.flag if self.value is None else f"{self.flag}={self.value}"


@dataclass(frozen=True)
class Launch:
    """What an instance needs besides its intent.

    Attributes:
        model_path: directory of the staged model.
        served_model_name: name that clients ask for.
        host, port, nccl_port: where it listens; all ports are the instance's own.
        accelerator: "cuda" or "cpu".
        extra_args: free arguments, each with its value (`--log-level=warning`) or followed by its values.
        environment: free environment variables.
        hybrid: whether the model has linear-attention (Mamba or GDN) layers.
        model_type: `model_type` of the model's config.json; "" where unknown.
        cache_dir: directory of this release's compiled kernels; "" leaves the engine's defaults.
        numa_nodes: NUMA node of each of the instance's GPUs; empty where unknown.
    """

    model_path: str
    served_model_name: str
    host: str
    port: int
    nccl_port: int
    accelerator: str = "cuda"
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    hybrid: bool = False
    model_type: str = ""
    cache_dir: str = ""
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class CommandLine:
    """What one instance is started with: arguments, environment as (name, value, why), and warnings for people."""

    arguments: tuple[Argument, ...]
    environment: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The arguments as they are passed to `python -m sglang.launch_server`."""
        return [argument.text for argument in self.arguments]


@dataclass(frozen=True)
class Managed:
    """A flag that the product sets: its spellings by release (newest last, each with the first release that has it),
    other spellings of any release, and the variable that a person sets instead."""

    names: tuple[tuple[Release, str], ...]
    instead: str
    aliases: tuple[str, ...] = ()

    def name(self, release: Release) -> str:
        """The spelling to render for a release."""
        return [name for since, name in self.names if since <= release][-1]

    @property
    def spellings(self) -> frozenset[str]:
        """All spellings of all releases."""
        return frozenset(name for _, name in self.names) | frozenset(self.aliases)


def _same(name: str, instead: str, *aliases: str) -> Managed:
    return Managed(((OLDEST, name),), instead, aliases)


MANAGED: Mapping[str, Managed] = {
    "model_path": _same("--model-path", "sglang_weights_source", "--model"),
    "served_model_name": _same("--served-model-name", "sglang_instances_served_model_name"),
    "host": _same("--host", "sglang_instances_listen"),
    "port": _same("--port", "sglang_instances_base_port"),
    "nccl_port": _same("--nccl-port", "sglang_instances_base_port"),
    "device": _same("--device", "sglang_instances_accelerator"),
    "metrics": _same("--enable-metrics", "nothing: metrics are always on"),
    "tensor_parallel": _same("--tp-size", f"{INTENT}.tensor_parallel", "--tensor-parallel-size"),
    "numa": _same("--numa-node", "numa_node of sglang_instances_gpus"),
    "context_length": _same("--context-length", f"{INTENT}.context_length"),
    "mem_fraction_static": _same("--mem-fraction-static", f"{INTENT}.mem_fraction_static"),
    "max_running_requests": _same("--max-running-requests", f"{INTENT}.max_running_requests"),
    "max_total_tokens": _same("--max-total-tokens", f"{INTENT}.max_total_tokens"),
    "kv_dtype": _same("--kv-cache-dtype", f"{INTENT}.kv_dtype"),
    "page_size": _same("--page-size", f"{INTENT}.page_size"),
    "no_prefix_reuse": _same("--disable-radix-cache", f"{INTENT}.prefix_reuse: false"),
    "state_strategy": Managed(
        ((OLDEST, "--mamba-scheduler-strategy"), (RENAMED, "--mamba-radix-cache-strategy")),
        f"{INTENT}.state_strategy",
    ),
    "state_dtype": _same("--mamba-ssm-dtype", f"{INTENT}.state_dtype"),
    "max_mamba_cache_size": _same("--max-mamba-cache-size", f"{INTENT}.max_mamba_cache_size"),
    "mamba_full_memory_ratio": _same("--mamba-full-memory-ratio", f"{INTENT}.mamba_full_memory_ratio"),
    "mtp": _same("--speculative-algorithm", f"{INTENT}.mtp"),
    "mtp_steps": _same("--speculative-num-steps", f"{INTENT}.mtp.steps"),
    "mtp_topk": _same("--speculative-eagle-topk", f"{INTENT}.mtp.topk"),
    "mtp_draft_tokens": _same("--speculative-num-draft-tokens", f"{INTENT}.mtp.draft_tokens"),
    "hicache": _same(
        "--enable-hierarchical-cache", f"{INTENT}.hicache_gb or {INTENT}.hicache_ratio", "--enable-hicache"
    ),
    "hicache_gb": _same("--hicache-size", f"{INTENT}.hicache_gb"),
    "hicache_ratio": _same("--hicache-ratio", f"{INTENT}.hicache_ratio"),
    "hicache_write_policy": _same("--hicache-write-policy", f"{INTENT}.hicache_write_policy"),
    "hicache_storage_backend": _same("--hicache-storage-backend", f"{INTENT}.hicache_storage_backend"),
    "hicache_fraction": _same("--hicache-host-memory-fraction", f"{INTENT}.hicache_gb"),
    "hicache_io": _same("--hicache-io-backend", "nothing: it follows from the release and the model"),
    "hicache_layout": _same("--hicache-mem-layout", "nothing: it follows from the release and the model"),
    "graph_batch": Managed(
        ((OLDEST, "--cuda-graph-max-bs"), (RENAMED, "--cuda-graph-max-bs-decode")),
        f"{INTENT}.max_running_requests: graphs are captured up to it",
    ),
    "no_graphs": Managed(
        ((OLDEST, "--disable-cuda-graph"), (RENAMED, "--cuda-graph-backend-decode")),
        "nothing on a CPU",
    ),
    "sleep_on_idle": _same("--sleep-on-idle", "nothing on a CPU"),
}

MANAGED_ON_CPU_ONLY = ("no_graphs", "sleep_on_idle")

REFUSED: Mapping[str, str] = {
    "--api-key": "a key in argv is readable by every user of the host; end authentication at the router "
    "(sglang_router_api_key)",
    "--admin-api-key": "a key in argv is readable by every user of the host; keep the engines' ports off the network",
    "--config": "flags in a file escape every check; give them as sglang_instances_extra_args",
    "--max-hierarchical-cache-size": f"set {INTENT}.hicache_gb",
    **dict.fromkeys(
        ("--base-gpu-id", "--gpu-id-step"),
        "an instance sees its own GPUs alone; choose them by sglang_instances_gpus",
    ),
    **dict.fromkeys(
        (
            *("--dp-size", "--data-parallel-size", "--pp-size", "--pipeline-parallel-size"),
            *("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"),
        ),
        f"an instance spans {INTENT}.tensor_parallel GPUs of one host; more instances serve in parallel",
    ),
}
"""Free arguments that are refused for a reason of their own."""

REPLACED: Mapping[str, str] = {
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--disable-piecewise-cuda-graph": "--cuda-graph-backend-prefill=disabled",
    "--enable-gdn-replayssm-spec": "--enable-linear-replayssm-spec",
    "--speculative-dflash-draft-window-size": "--speculative-draft-window-size",
}
"""New names of unmanaged flags that are gone."""

GONE_ENVIRONMENT: Mapping[str, tuple[Release, str]] = {
    "SGLANG_ENABLE_SPEC_V2": (Release(0, 5, 14), "speculation overlaps scheduling by itself"),
}
"""Environment variables that a release no longer reads, with what it does instead."""


def render(intent: Intent, release: Release, launch: Launch, allow_known_bad: bool = False) -> CommandLine:
    """The command line of one instance.

    Args:
        intent: resolved by the planner; what it leaves open is left to the release.
        allow_known_bad: warn about combinations that are known to fail, instead of refusing them.

    Raises FleetError for a release that the table does not reach back to, a free argument or environment variable that
    duplicates, contradicts or abbreviates a managed one or that the release does not take, and a known-bad combination.
    """
    if release < OLDEST:
        raise FleetError(
            f"SGLang {OLDEST} or later", str(release), "set sglang_engine_version to a release that is known here"
        )
    warnings = []
    if release > NEWEST:
        warnings.append(
            f"SGLang {release} is newer than {NEWEST}, the newest whose flags are known here: "
            "only the installed parser can say whether it takes them"
        )
    extra = parse_extra(launch.extra_args)
    for flag in extra:
        _check_extra(flag, extra[flag], release, launch.accelerator)
    hybrid = launch.hybrid or intent.state_strategy != "auto" or intent.max_mamba_cache_size is not None
    warnings += judge(Candidate(intent, release, hybrid, launch.model_type, launch.accelerator, extra), allow_known_bad)
    managed = [
        argument
        for key, value, why in _managed(intent, release, launch, hybrid)
        for argument in _arguments(MANAGED[key].name(release), value, why)
    ]
    free = [
        argument for flag, values in extra.items() for argument in _arguments(flag, values, f"given in {EXTRA_ARGS}")
    ]
    return CommandLine((*managed, *free), tuple(_environment(intent, release, launch)), tuple(warnings))


def _managed(intent: Intent, release: Release, launch: Launch, hybrid: bool) -> Wanted:
    cpu = launch.accelerator == "cpu"
    yield "model_path", launch.model_path, "the staged model"
    yield "served_model_name", launch.served_model_name, "the name that clients ask for"
    yield "host", launch.host, "where the router reaches it"
    yield "port", str(launch.port), "this instance's HTTP port"
    yield "nccl_port", str(launch.nccl_port), "a port of its own: two engines that pick one at random may collide"
    yield "metrics", None, "drain, verification and monitoring read /metrics"
    yield "device", launch.accelerator, "the host's accelerator"
    if cpu:
        yield "no_graphs", None if release < RENAMED else "disabled", "a CPU has no CUDA graphs"
        yield "sleep_on_idle", None, "an idle engine leaves its core to the others"
    if intent.tensor_parallel > 1:
        yield "tensor_parallel", str(intent.tensor_parallel), "GPUs of this instance"
    if launch.numa_nodes:
        yield "numa", tuple(map(str, launch.numa_nodes)), "the GPUs' own NUMA nodes"
    if intent.context_length is not None:
        yield "context_length", str(intent.context_length), "the longest sequence that is wanted"
    if intent.mem_fraction_static is not None and not cpu:
        yield "mem_fraction_static", f"{intent.mem_fraction_static:g}", "the plan's share for weights and pools"
    if intent.max_running_requests is not None:
        yield "max_running_requests", str(intent.max_running_requests), "what the planned pools hold at a time"
        if not cpu:
            yield "graph_batch", str(intent.max_running_requests), "graphs for every batch that can run, no larger ones"
    if intent.max_total_tokens is not None:
        yield "max_total_tokens", str(intent.max_total_tokens), "the planned KV pool"
    if intent.kv_dtype != "auto":
        yield "kv_dtype", intent.kv_dtype, "wanted dtype of the KV cache"
    if intent.page_size is not None:
        yield "page_size", str(intent.page_size), "wanted page of the KV cache"
    if not intent.prefix_reuse:
        yield "no_prefix_reuse", None, "no prefix is used twice: one state slot per request"
    yield from _state(intent)
    if intent.mtp is not None:
        yield "mtp", "NEXTN", "multi-token prediction with the model's own layer"
        yield "mtp_steps", str(intent.mtp.steps), "drafts per step"
        yield "mtp_topk", str(intent.mtp.topk), "left out, it would silently change the attention backend"
        yield "mtp_draft_tokens", str(intent.mtp.draft_tokens), "tokens verified at a time"
    if intent.hicache:
        yield from _hicache(intent, release, hybrid, cpu)


def _state(intent: Intent) -> Wanted:
    if intent.state_strategy != "auto" and intent.prefix_reuse:
        yield "state_strategy", intent.state_strategy, "how many state slots a request takes"
    if intent.state_dtype is not None:
        yield "state_dtype", intent.state_dtype, "wanted dtype of the recurrent state"
    if intent.max_mamba_cache_size is not None:
        yield "max_mamba_cache_size", str(intent.max_mamba_cache_size), "the planned state slots"
    if intent.mamba_full_memory_ratio is not None:
        yield "mamba_full_memory_ratio", f"{intent.mamba_full_memory_ratio:g}", "state memory over KV memory"


def _hicache(intent: Intent, release: Release, hybrid: bool, cpu: bool) -> Wanted:
    yield "hicache", None, "prefixes outlive the GPU's cache in host memory"
    if intent.hicache_gb is not None:
        yield "hicache_gb", str(intent.hicache_gb), "GB of host memory per GPU, from the host's plan"
    if intent.hicache_ratio is not None:
        yield "hicache_ratio", f"{intent.hicache_ratio:g}", "host pool over GPU pool"
    if intent.hicache_write_policy is not None:
        yield "hicache_write_policy", intent.hicache_write_policy, "wanted moment at which prefixes go to the host"
    if intent.hicache_storage_backend is not None:
        yield "hicache_storage_backend", intent.hicache_storage_backend, "wanted tier behind the host's"
    if cpu:
        yield "hicache_io", "direct", "a CPU has no copy kernels"
        yield "hicache_layout", "page_first_direct", "the layout of direct copies"
    elif hybrid and release < Release(0, 5, 16):
        yield "hicache_io", "direct", "kernel copies of hybrid models fail at the first request (sglang#24121)"
        yield "hicache_layout", "page_first_direct", "the layout that hybrid models take up to 0.5.15"
    elif hybrid:
        yield "hicache_io", "kernel", "fastest copies"
        yield "hicache_layout", "page_first", "hybrid models fail at start with layer_first"


def _arguments(flag: str, value: str | tuple[str, ...] | None, why: str) -> list[Argument]:
    """One flag with one value or none, or with several, which argparse takes as elements of their own."""
    if value is None or isinstance(value, str):
        return [Argument(flag, value, why)]
    if len(value) <= 1:
        return [Argument(flag, value[0] if value else None, why)]
    return [Argument(flag, None, why), *(Argument(each, None, f"a further value of {flag}") for each in value)]


def _environment(intent: Intent, release: Release, launch: Launch) -> Iterator[tuple[str, str, str]]:
    managed = [
        ("HF_HUB_OFFLINE", "1", "the model is on this host; nothing is fetched"),
        ("PYTHONUNBUFFERED", "1", "log lines reach the journal at once"),
    ]
    if launch.cache_dir:
        managed += [
            ("HOME", launch.cache_dir, "kernels compiled for this version are kept there across restarts"),
            ("TORCHINDUCTOR_CACHE_DIR", f"{launch.cache_dir}/inductor", "would be in /tmp"),
        ]
    if launch.accelerator == "cpu":
        managed += [("OMP_NUM_THREADS", "1", "more threads than cores make a CPU engine many times slower")]
    if intent.mtp is not None and intent.prefix_reuse and release < Release(0, 5, 11):
        managed += [("SGLANG_ENABLE_SPEC_V2", "1", "off by default up to 0.5.10; needed by extra_buffer with MTP")]
    names = {"CUDA_VISIBLE_DEVICES", *(name for name, _, _ in managed)}
    for name in launch.environment:
        gone = GONE_ENVIRONMENT.get(name)
        if gone and release >= gone[0]:
            raise FleetError(
                f"environment variables that SGLang {release} reads",
                f"{name}, gone in {gone[0]}",
                f"drop it from sglang_instances_environment: {gone[1]}",
            )
        if name in names:
            raise FleetError(f"{name} to be set by this role", "it in sglang_instances_environment", "drop it there")
    yield from managed
    for name, value in launch.environment.items():
        yield name, str(value), "given in sglang_instances_environment"


def parse_extra(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Free arguments as flag → values; `--flag=v`, `--flag v` in one element, and values as own elements are the same.

    Raises FleetError for a value without a flag before it and for a flag that is given twice.
    """
    parsed: dict[str, tuple[str, ...]] = {}
    flag = ""
    for element in arguments:
        if element.startswith("-") and not _is_number(element):
            name, separator, value = element.partition("=")
            if " " in name:
                name, _, value = element.partition(" ")
                separator = " "
            flag = name
            if flag in parsed:
                raise FleetError(f"{flag} once in {EXTRA_ARGS}", "it twice", "drop one of them")
            parsed[flag] = (value.strip(),) if separator else ()
        elif flag:
            parsed[flag] = (*parsed[flag], element)
        else:
            raise FleetError(f"a flag before every value in {EXTRA_ARGS}", repr(element), "write --flag=value")
    return parsed


def _check_extra(flag: str, values: tuple[str, ...], release: Release, accelerator: str) -> None:
    """Refuse a free argument that is managed, that the release does not take, or that is short for another."""
    owners = {
        spelling: managed
        for key, managed in MANAGED.items()
        if accelerator == "cpu" or key not in MANAGED_ON_CPU_ONLY
        for spelling in managed.spellings
    }
    known = flags_of(release)
    fates = "" if flag in known else f": {fate(flag, release)}"
    if flag in REFUSED:
        raise FleetError(f"no {flag} in {EXTRA_ARGS}", f"it{fates}", REFUSED[flag])
    if flag in owners:
        name = owners[flag].name(release)
        renamed = f"{fates}, now {name}" if fates else ""
        given = "=".join((flag, *values[:1]))
        raise FleetError(
            f"{name} to be set by the plan", f"{given} in {EXTRA_ARGS}{renamed}", f"set {owners[flag].instead}"
        )
    if flag in known:
        return
    meant = sorted(name for name in known | set(owners) | set(REFUSED) if name.startswith(flag))
    if meant and flag not in REPLACED:
        owner = next((owners[name] for name in meant if name in owners), None)
        raise FleetError(
            f"full names in {EXTRA_ARGS}",
            f"{flag}, short for {' or '.join(meant)}",
            f"set {owner.instead}" if owner else "write the full name",
        )
    if release > NEWEST:
        return
    raise FleetError(
        f"flags that SGLang {release} takes",
        f"{flag} in {EXTRA_ARGS}{fates}",
        f"write {REPLACED[flag]}" if flag in REPLACED else "drop it or correct the spelling",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
