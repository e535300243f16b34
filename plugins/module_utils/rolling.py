"""Engines of one host replaced one after another (or a few at a time), with no request lost and no step backwards.

One engine: out of every router, nothing in flight, stopped, its memory and ports really free, started, looked at,
back in every router. Whatever fails, the engine's last good configuration is put back and serves again, a bundle says
what was seen, and the roll ends there.

An interrupted roll leaves `/var/lib/sglang/roll.json`; the same roll asked for again goes on with what is left.
"""

from __future__ import annotations

import json
import signal
import syslog
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from . import systemd
from .acceptance import Sample, check_started, compare, measure
from .errors import FleetError
from .failure_bundle import collect
from .generations import STATE_DIR, Generations
from .gpu_facts import ObservedGpu, observe
from .host_measure import measure_host
from .instance import (
    ARGUMENTS,
    CONFIG_DIR,
    ENVIRONMENT,
    Instance,
    arguments,
    configured,
    configured_sha256,
    environment,
    running,
)
from .launch import generate
from .parser_check import check_all
from .processes import processes_of
from .registration import OPERATOR, ROLL, enter, leave, rolling, routers_of, taken_out_by
from .releases import Release
from .router import Worker, wait_idle
from .start_checks import GpuTaken, NotNow, check_devices, check_ports, check_weights, wait
from .units import gib

JOURNAL = STATE_DIR / "roll.json"
SETTLED_RISE_BYTES = 64 * 2**20
AFTER_DIRTY_STOP_REQUESTS = 100


@dataclass(frozen=True)
class Policy:
    """How carefully engines are replaced.

    Attributes:
        batch: engines of this host that are out of service at the same time.
        min_healthy: workers that every router must have left for the model while they are out.
        allow_downtime: go on even where fewer are left.
        hosts: hosts that may each have a batch out of service at the same time, this one included.
        capacity_timeout_s: longest wait for min_healthy to be left, since other hosts may roll.
        drain_timeout_s: longest wait for requests in flight; None takes each instance's own.
        release_timeout_s: longest wait after a stop for memory and ports to be free.
        start_timeout_s: longest wait from start to ready; None takes each instance's own twice: start checks wait too.
        gpu_idle_mib: GPU memory in use, in MiB, up to which a GPU counts as free.
        canary: compare speed, acceptance and errors of each engine with those before.
        tolerance: share by which a canary may be slower than before.
    """

    batch: int = 1
    min_healthy: int = 1
    allow_downtime: bool = False
    hosts: int = 1
    capacity_timeout_s: float = 60.0
    drain_timeout_s: float | None = None
    release_timeout_s: float = 300.0
    start_timeout_s: float | None = None
    gpu_idle_mib: int = 2048
    canary: bool = False
    tolerance: float = 0.2

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("min_healthy", 0), ("hosts", 1)):
            if getattr(self, name) < least:
                raise FleetError(f"{name} of at least {least}", str(getattr(self, name)), "raise it")
        if not 0 <= self.tolerance < 1:
            raise FleetError("a tolerance from 0 up to 1", str(self.tolerance), "give a share such as 0.2")


# How the modules that replace engines take a Policy: documented in plugins/doc_fragments/rolling.py.
OPTIONS = {
    "rolling": {
        "type": "dict",
        "default": {},
        "options": {
            option.name: {"type": str(option.type).split()[0], "default": option.default} for option in fields(Policy)
        },
    },
}


@dataclass
class Step:
    """One engine's replacement, with the seconds that each part of it took.

    Attributes:
        name: the instance.
        hot: whether it serves, so that it has to be taken out and stopped first.
        phase: what is being done, or failed.
        seconds: duration of each phase so far, by its name.
        before, after: what the engine did alone before and after, with Policy.canary.
    """

    name: str
    hot: bool
    phase: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    before: Sample | None = None
    after: Sample | None = None


class Halted(FleetError):
    """A roll that a failure ended; the message says what was put back."""


class Journal:
    """Which roll of this host is under way, in a file that outlives whoever runs it."""

    def __init__(self, path: Path = JOURNAL) -> None:
        self.path = path

    def behind(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of these instances that an interrupted roll of just these has behind it."""
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        return tuple(known["done"]) if known.get("names") == list(names) else ()

    def begin(self, names: Sequence[str]) -> tuple[str, ...]:
        """Take up the roll of these instances; returns those that it has behind it already."""
        done = self.behind(names)
        self._write(names, done)
        return done

    def done(self, names: Sequence[str], done: Sequence[str]) -> None:
        """Note which are behind it."""
        self._write(names, done)

    def close(self) -> bool:
        """Forget the roll; returns whether there was one."""
        known = self.path.exists()
        self.path.unlink(missing_ok=True)
        return known

    def _write(self, names: Sequence[str], done: Sequence[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"names": list(names), "done": list(done)}) + "\n", encoding="utf-8")
        new.replace(self.path)


def say(text: str) -> None:
    """Tell the journal of the host (`journalctl -t sglang-roll -f`)."""
    syslog.openlog("sglang-roll", facility=syslog.LOG_DAEMON)
    syslog.syslog(text)


def names_of(gpus: Sequence[int], config_dir: Path = CONFIG_DIR) -> tuple[str, ...]:
    """The configured instances that use one of these GPUs, all for an empty list, in order of their first GPU.

    Raises FleetError for a GPU that no instance uses.
    """
    instances = sorted((Instance.read(name, config_dir) for name in configured(config_dir)), key=lambda i: i.gpus)
    unknown = sorted(set(gpus) - {gpu for instance in instances for gpu in instance.gpus})
    if unknown:
        raise FleetError(
            "GPUs that an instance of this host uses",
            f"GPU {', '.join(map(str, unknown))}; there is {', '.join(i.name for i in instances) or 'no instance'}",
            "correct gpus",
        )
    return tuple(i.name for i in instances if not gpus or set(gpus) & set(i.gpus))


def workers_left(workers: Sequence[Worker], leaving: Collection[str]) -> int | None:
    """Healthy workers that a router keeps of the model that loses most; None where none of these URLs serves."""
    healthy = [worker for worker in workers if worker.healthy]
    kept = [worker.model for worker in healthy if worker.url not in leaving]
    return min((kept.count(worker.model) for worker in healthy if worker.url in leaving), default=None)


def check_capacity(leaving: Sequence[Instance], policy: Policy) -> None:
    """Raises NotNow where a router would have fewer than min_healthy workers of a model without these."""
    urls = {instance.url for instance in leaving}
    for router in [] if policy.allow_downtime else routers_of(leaving[0]):
        left = workers_left(router.workers(), urls)
        if left is not None and left < policy.min_healthy:
            raise NotNow(
                f"{policy.min_healthy} healthy workers left at router {router.url} without {', '.join(sorted(urls))}",
                f"{left}",
                "start the other engines first, lower min_healthy, or set allow_downtime",
            )


def check_fleet_capacity(routers: Mapping[str, Sequence[Worker]], urls: Collection[str], policy: Policy) -> None:
    """Raises FleetError where a router's list is too short for policy.hosts hosts to take a batch out at once.

    The hosts do not see each other's decisions, so it is judged while none has begun.
    """
    if policy.allow_downtime or policy.hosts == 1:
        return
    needed = policy.min_healthy + policy.hosts * policy.batch
    for router, workers in routers.items():
        healthy = [worker for worker in workers if worker.healthy]
        models = [worker.model for worker in healthy]
        for count in {models.count(worker.model) for worker in healthy if worker.url in urls}:
            if count < needed:
                raise FleetError(
                    f"{needed} healthy workers at router {router}: {policy.batch} for each of {policy.hosts} hosts "
                    f"that are changed at once, and {policy.min_healthy} that stay",
                    f"{count}",
                    "lower rolling_serial, batch or min_healthy, or set allow_downtime",
                )


def preflight(instances: Sequence[Instance]) -> dict[str, tuple[Worker, ...]]:
    """Everything that can be judged in a moment while all still serve; returns every router's list by its URL.

    Raises FleetError for what would fail later.
    """
    for instance in instances:
        check_weights(instance)
        check_devices(instance)
        check_memory(instance)
    routers = {router.url: router for instance in instances for router in routers_of(instance)}
    return {url: router.workers() for url, router in routers.items()}


def look_ahead(names: Sequence[str], policy: Policy, journal: Journal) -> dict[str, Any]:
    """Judge what is left of a roll of these instances, and return it as rolling_restart documents it."""
    done = journal.behind(names)
    steps = steps_of(name for name in names if name not in done)
    instances = [Instance.read(step.name) for step in steps]
    workers = preflight(instances)
    check_arguments(instances)
    return {
        "engines": [{"name": i.name, "url": i.url, "hot": step.hot} for i, step in zip(instances, steps, strict=True)],
        "waves": len(batches(steps, policy.batch)),
        "done": done,
        "workers": {url: [asdict(worker) for worker in listed] for url, listed in workers.items()},
    }


def check_memory(instance: Instance) -> None:
    """Raises FleetError where the RAM, with what the running engine will give back, could not take its successor."""
    held_bytes = systemd.memory_bytes(instance.unit)
    room_bytes = measure_host().available_bytes + held_bytes
    needed_bytes = instance.host_ram_bytes + instance.host_reserve_bytes
    if room_bytes < needed_bytes:
        raise FleetError(
            f"{gib(needed_bytes)} GiB of RAM for {instance.unit}",
            f"{gib(room_bytes)} GiB, of which the running engine holds {gib(held_bytes)}",
            "stop what takes it, or plan with a smaller hicache",
        )


def check_arguments(instances: Sequence[Instance], config_dir: Path = CONFIG_DIR) -> None:
    """Raises FleetError where the installed SGLang's own parser does not take an instance's arguments.

    What it would silently change was judged when the arguments were written, and is let pass here.
    """
    for python, release, model_path in {(i.python, i.engine_version, i.model_path) for i in instances}:
        texts = {
            instance.name: {
                part: (config_dir / instance.name / part).read_text("utf-8") for part in (ARGUMENTS, ENVIRONMENT)
            }
            for instance in instances
            if (instance.python, instance.model_path) == (python, model_path)
        }
        check_all(
            Path(python),
            Release.parse(release),
            {name: arguments(text[ARGUMENTS]) for name, text in texts.items()},
            {name: environment(text[ENVIRONMENT]) for name, text in texts.items()},
            Path(model_path),
            allow_known_bad=True,
        )


def wait_released(instance: Instance, policy: Policy) -> None:
    """Wait until the stopped engine's ports, GPU memory and RAM are free. Raises FleetError after the time-out."""

    def check() -> None:
        left = processes_of(instance.unit)
        stuck = [process for process in left if process.state == "D"]
        if stuck:
            raise NotNow(
                f"{instance.unit} to be gone",
                f"{stuck[0]} in uninterruptible sleep",
                "reboot the host if it stays: no signal ends such a process",
            )
        if left:
            raise NotNow(f"{instance.unit} to be gone", str(left[0]), "see what keeps it")
        check_ports(instance)
        if instance.accelerator == "cuda":
            check_gpu_memory(instance, observe().gpus, policy.gpu_idle_mib)
        available_bytes = measure_host().available_bytes
        time.sleep(1)
        if measure_host().available_bytes - available_bytes > SETTLED_RISE_BYTES:
            raise NotNow("RAM to be given back", "it is still rising", "wait: pinned pools are unpinned page by page")

    wait(check, policy.release_timeout_s)


def check_gpu_memory(instance: Instance, gpus: Sequence[ObservedGpu], idle_mib: int) -> None:
    """Raises GpuTaken where one of the instance's GPUs has more than idle_mib MiB in use."""
    for gpu in gpus:
        mine = gpu.uuid in instance.gpu_uuids if instance.gpu_uuids else gpu.index in instance.gpus
        used_mib = gpu.total_mib - gpu.free_mib
        if mine and used_mib > idle_mib:
            holders = ", ".join(map(str, gpu.processes))
            raise GpuTaken(
                f"at most {idle_mib} MiB in use on GPU {gpu.index}",
                f"{used_mib} MiB, held by {holders or 'no process that the driver names'}",
                "end what holds it; memory that no process holds comes back with a reset of the GPU or a reboot",
            )


def replace_engine(step: Step, policy: Policy, generations: Generations) -> None:
    """Take one engine through its replacement, or its first start. Raises FleetError; step.phase says where."""
    old = generations.good_instance()
    dirty = False

    def phase(name: str, action: Callable[[], object]) -> None:
        step.phase = name
        say(f"{old.unit}: {name}")
        begin = time.monotonic()
        action()
        step.seconds[name] = round(time.monotonic() - begin, 2)

    phase("leave", lambda: leave(old, ROLL))
    if step.hot:
        drain_timeout_s = old.drain_timeout_s if policy.drain_timeout_s is None else policy.drain_timeout_s
        phase("drain", lambda: wait_idle(old.local_url, drain_timeout_s))
        if policy.canary:
            phase("measure", lambda: setattr(step, "before", measure(old)))
        phase("stop", lambda: systemd.systemctl("stop", old.unit))
        dirty = systemd.show([old.unit])[old.unit].result != "success"
        phase("release", lambda: wait_released(old, policy))
    generations.take_up()
    systemd.systemctl("daemon-reload")
    new = Instance.read(step.name)
    start_timeout_s = 2 * new.start_timeout_s if policy.start_timeout_s is None else policy.start_timeout_s
    phase("start", lambda: systemd.start([new.unit], start_timeout_s))
    phase("look", lambda: look(new, step, policy, dirty))
    phase("enter", lambda: enter(new, anew=True))
    generations.keep()
    step.phase = "done"


def look(instance: Instance, step: Step, policy: Policy, dirty: bool) -> None:
    """Raises FleetError where the started engine is not fit to be put back.

    After a dirty stop it gets a burst of requests first: engines have answered a few and then hung.
    """
    generate(instance)
    check_started(instance)
    if dirty and measure(instance, AFTER_DIRTY_STOP_REQUESTS).failed:
        raise FleetError(f"{instance.unit} to answer a burst", "unanswered requests", "see its journal and its GPU")
    if step.before:
        step.after = measure(instance)
        compare(step.before, step.after, policy.tolerance)


def rescue(step: Step, failure: FleetError, generations: Generations) -> Halted:
    """Have the engine serve as before and gather what was seen; returns the error that tells all of it."""
    instance = Instance.read(step.name)
    say(f"{instance.unit}: {step.phase} failed: {failure}")
    bundle = collect(instance, step.phase, failure)
    try:
        outcome = _bring_back(step, generations)
        try:
            enter(Instance.read(step.name), anew=False)
        except FleetError as error:
            outcome += f"; its liveness check goes on registering it, for now {error}"
    except (FleetError, OSError) as second:
        outcome = f"it could NOT be brought back: {second}"
    say(f"{instance.unit}: {outcome}")
    return Halted(
        f"{instance.unit} to pass `{step.phase}`: {failure.expected}",
        failure.found,
        f"{failure.change} ({outcome}; details in {bundle})",
    )


def _bring_back(step: Step, generations: Generations) -> str:
    """Have the engine run as it did last; returns what that is. Raises FleetError where it does not start."""
    if step.phase == "enter":
        generations.keep()
        return "it runs as wanted"
    runs_on = step.hot and step.phase in ("leave", "drain", "measure")
    unit = f"sglang@{step.name}.service"
    if not runs_on:
        systemd.systemctl("stop", unit, check=False)
    restored = generations.restore()
    systemd.systemctl("daemon-reload")
    if runs_on:
        return "it runs on, as before"
    systemd.start([unit], 2 * Instance.read(step.name).start_timeout_s)
    return "its last good configuration was put back and serves" if restored else "it was started again"


def roll(
    names: Sequence[str], policy: Policy, waves: int = 0, journal: Journal | None = None, judged: bool = False
) -> tuple[Step, ...]:
    """Start those of these instances that do not run, all at once, then replace the others, policy.batch at a time.

    Args:
        names: instances, in the order in which they are replaced.
        waves: end after so many of these starts and replacements; 0 for all.
        journal: remembers what is done across interruptions; None for a deployment, which sees it by what runs. What
            a deployment had written for the engines is set aside until their turn, and taken back where it is refused.
        judged: their arguments have been through SGLang's own parser already, which takes seconds.

    Returns what was done. Raises Halted for the first failure, after everything that was not done was put back, and
    FleetError for a refusal before anything was stopped.
    """
    # A terminal that goes away with the connection ends its processes; a roll goes on.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with rolling():
        repair()
        done = list(journal.begin(names)) if journal else []
        todo = [name for name in names if name not in done]
        steps: list[Step] = []
        try:
            instances = [Instance.read(name) for name in todo]
            check_fleet_capacity(preflight(instances), {instance.url for instance in instances}, policy)
            if not judged:
                check_arguments(instances)
            planned = steps_of(todo)
            for step in planned:
                generations = Generations(step.name)
                if journal is None and step.hot:
                    generations.set_aside()
                else:
                    generations.forget_next()
            systemd.systemctl("daemon-reload")
            for batch in batches(planned, policy.batch)[: waves or None]:
                failures = _replace_batch(batch, policy)
                steps += batch
                done += [step.name for step in batch if step.phase == "done"]
                if journal:
                    journal.done(names, done)
                if failures:
                    raise halted(failures, done, [name for name in names if name not in done])
        except FleetError:
            if journal is None:
                _put_back(set(names) - {step.name for step in steps})
            raise
        return tuple(steps)


def _put_back(names: Iterable[str]) -> None:
    """Have a crash or a reboot start what serves now, not what was to come."""
    for name in names:
        Generations(name).restore()
    systemd.systemctl("daemon-reload")


def halted(failures: Sequence[Halted], done: Sequence[str], left: Sequence[str]) -> Halted:
    """One error that sums up all failures of a batch and where the roll of this host stands."""
    return Halted(
        " and ".join(failure.expected for failure in failures),
        "; ".join(failure.found for failure in failures),
        f"{'; '.join(failure.change for failure in failures)}. "
        f"Done on this host: {', '.join(done) or 'none'}; left: {', '.join(left)}",
    )


def steps_of(names: Iterable[str]) -> list[Step]:
    """What a roll of these instances will do with each."""
    return [Step(name, hot=_serves_or_must_stop(name)) for name in names]


def batches(steps: Sequence[Step], size: int) -> list[list[Step]]:
    """What is done at the same time: first everything that does not run, then what does, `size` at a time."""
    cold = [step for step in steps if not step.hot]
    hot = [step for step in steps if step.hot]
    return [batch for batch in (cold, *(hot[i : i + size] for i in range(0, len(hot), size))) if batch]


def _serves_or_must_stop(name: str) -> bool:
    started = running(name)
    if started is None:
        return False
    return _is_active(name) or started.sha256 != configured_sha256(name)


def _is_active(name: str) -> bool:
    unit = f"sglang@{name}.service"
    return systemd.show([unit])[unit].active == "active"


def _replace_batch(batch: Sequence[Step], policy: Policy) -> list[Halted]:
    leaving = [Instance.read(step.name) for step in batch]
    wait(lambda: check_capacity(leaving, policy), policy.capacity_timeout_s)

    def one(step: Step) -> Halted | None:
        generations = Generations(step.name)
        try:
            replace_engine(step, policy, generations)
        except FleetError as failure:
            return rescue(step, failure, generations)
        except Exception as error:  # whatever it is, the engine must serve again
            unforeseen = FleetError("no surprise", f"{type(error).__name__}: {error}", "report it with the bundle")
            return rescue(step, unforeseen, generations)
        return None

    with ThreadPoolExecutor(len(batch)) as pool:
        return [failure for failure in pool.map(one, batch) if failure]


def repair() -> None:
    """Put back into their routers the engines that an interrupted roll took out and that serve."""
    for name in configured():
        instance = Instance.read(name)
        if running(name) and _is_active(name) and taken_out_by(name) != OPERATOR:
            enter(instance, anew=False)
