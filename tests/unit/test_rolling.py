"""The parts of a roll that need no systemd: order, journal, capacity, comparison, generations, marks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import registration, rolling
from ansible_collections.llmops.fleet.plugins.module_utils.acceptance import Sample, compare, differences
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.generations import PREVIOUS, Generations
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_facts import ObservedGpu
from ansible_collections.llmops.fleet.plugins.module_utils.instance import Instance, environment
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import (
    Halted,
    Journal,
    Policy,
    Step,
    batches,
    names_of,
)
from ansible_collections.llmops.fleet.plugins.module_utils.router import Worker
from ansible_collections.llmops.fleet.plugins.module_utils.start_checks import NotNow
from ansible_collections.llmops.fleet.plugins.module_utils.unit_files import environment_text
from hypothesis import given
from hypothesis import strategies as st

from .instances import INSTANCE, configure


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_everything_is_done_once_and_what_does_not_run_comes_first(hot: list[bool], size: int) -> None:
    steps = [Step(str(number), is_hot) for number, is_hot in enumerate(hot)]
    groups = batches(steps, size)
    assert sorted(step.name for group in groups for step in group) == sorted(step.name for step in steps)
    assert all(len(group) <= size for group in groups if group[0].hot)
    assert [group for group in groups if not group[0].hot] == groups[: 1 if not all(hot) else 0]


def test_the_same_roll_goes_on_and_another_starts_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state" / "roll.json")
    assert journal.begin(["0", "1"]) == ()
    journal.done(["0", "1"], ["0"])
    assert journal.begin(["0", "1"]) == ("0",)
    assert journal.begin(["1"]) == ()
    assert journal.close()
    assert not journal.close()


def test_a_cut_off_journal_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "roll.json").write_text('{"names": ["0"], "do')
    assert Journal(tmp_path / "roll.json").begin(["0"]) == ()


def test_gpus_name_their_instances_in_order(tmp_path: Path) -> None:
    for name, gpus in (("10", (10,)), ("2", (2,)), ("0-1", (0, 1))):
        configure(tmp_path, replace(INSTANCE, name=name, gpus=gpus))
    assert names_of([], tmp_path) == ("0-1", "2", "10")
    assert names_of([10, 1], tmp_path) == ("0-1", "10")
    with pytest.raises(FleetError, match="GPU 7; there is 0-1, 2, 10"):
        names_of([7], tmp_path)


@pytest.mark.parametrize("values", [{"batch": 0}, {"min_healthy": -1}, {"tolerance": 1.0}])
def test_impossible_policies_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(FleetError):
        Policy(**values)


class TestHalt:
    """A roll of four engines whose steps are told to succeed or fail; what lies beside is real files."""

    @pytest.fixture
    def host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
        self.journal = Journal(tmp_path / "roll.json")
        calls: dict[str, list[str]] = {"replaced": [], "restored": [], "rescued": []}
        monkeypatch.setattr(rolling, "rolling", nullcontext)
        monkeypatch.setattr(rolling, "repair", lambda: None)
        monkeypatch.setattr(rolling, "check_capacity", lambda *_: None)
        monkeypatch.setattr(rolling, "preflight", lambda _: {})
        monkeypatch.setattr(rolling, "check_arguments", lambda _: None)
        monkeypatch.setattr(rolling, "_serves_or_must_stop", lambda name: name != "cold")
        monkeypatch.setattr(rolling.systemd, "systemctl", lambda *_, **__: "")
        monkeypatch.setattr(rolling.Instance, "read", lambda name: replace(INSTANCE, name=name))
        monkeypatch.setattr(rolling.Generations, "restore", lambda self: calls["restored"].append(self.name))
        monkeypatch.setattr(rolling.Generations, "forget_next", lambda self: None)

        def replace_engine(step: Step, *_: object) -> None:
            calls["replaced"].append(step.name)
            if step.name == "surprise":
                raise OSError("no space left")
            if step.name.startswith("bad"):
                raise FleetError("it to start", "nothing", "look")
            step.phase = "done"

        def rescue(step: Step, failure: FleetError, _: object) -> Halted:
            calls["rescued"].append(step.name)
            return Halted(failure.expected, failure.found, failure.change)

        monkeypatch.setattr(rolling, "replace_engine", replace_engine)
        monkeypatch.setattr(rolling, "rescue", rescue)
        return calls

    def test_the_first_failure_ends_it_and_what_follows_keeps_its_files(self, host: dict[str, list[str]]) -> None:
        names = ["0", "bad", "2", "3"]
        with pytest.raises(Halted, match="Done on this host: 0; left: bad, 2, 3"):
            rolling.roll(names, Policy())
        assert host == {"replaced": ["0", "bad"], "restored": host["restored"], "rescued": ["bad"]}
        assert sorted(host["restored"]) == ["2", "3"]

    def test_a_restart_that_fails_remembers_what_it_did(self, host: dict[str, list[str]]) -> None:
        names = ["0", "bad", "2"]
        with pytest.raises(Halted):
            rolling.roll(names, Policy(), journal=self.journal)
        assert host["restored"] == []
        assert self.journal.begin(names) == ("0",)

    def test_a_second_run_goes_on_with_what_is_left(self, host: dict[str, list[str]]) -> None:
        names = ["0", "1", "2"]
        rolling.roll(names, Policy(), waves=1, journal=self.journal)
        rolling.roll(names, Policy(), journal=self.journal)
        assert host["replaced"] == names

    def test_all_failures_of_a_batch_are_told(self, host: dict[str, list[str]]) -> None:
        with pytest.raises(Halted, match=r"it to start and it to start.*left: bad, bad 2, 3"):
            rolling.roll(["bad", "bad 2", "3"], Policy(batch=2))
        assert host["rescued"] == ["bad", "bad 2"]

    def test_a_surprise_is_rescued_like_a_refusal(self, host: dict[str, list[str]]) -> None:
        with pytest.raises(Halted, match="OSError: no space left"):
            rolling.roll(["surprise", "1"], Policy())
        assert host["rescued"] == ["surprise"]

    def test_a_wave_is_everything_that_does_not_run_or_a_batch(self, host: dict[str, list[str]]) -> None:
        names = ["0", "1", "2", "cold"]
        waves = [rolling.roll(names, Policy(batch=2), waves=1, journal=self.journal) for _ in range(4)]
        assert [[step.name for step in wave] for wave in waves] == [["cold"], ["0", "1"], ["2"], []]

    def test_what_does_not_run_is_started_first_and_together(self, host: dict[str, list[str]]) -> None:
        assert [step.name for step in rolling.roll(["0", "1", "cold"], Policy(batch=2))] == ["cold", "0", "1"]

    def test_a_refusal_stops_nothing_and_takes_back_what_a_deployment_wrote(
        self, host: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise FleetError("known flags", "--no-such-flag", "correct it")

        monkeypatch.setattr(rolling, "preflight", refuse)
        for journal, restored in ((self.journal, []), (None, ["0", "1"])):
            with pytest.raises(FleetError, match="--no-such-flag"):
                rolling.roll(["0", "1"], Policy(), journal=journal)
            assert (host["replaced"], sorted(host["restored"]), host["rescued"]) == ([], restored, [])


class TestCapacity:
    @staticmethod
    def check(monkeypatch: pytest.MonkeyPatch, workers: list[tuple[str, bool, str]], policy: Policy) -> None:
        class Router:
            url = "http://router:8000"

            def workers(self) -> list[Worker]:
                return [Worker("id", url, healthy, 0, model) for url, healthy, model in workers]

        monkeypatch.setattr(rolling, "routers_of", lambda _: [Router()])
        rolling.check_capacity([INSTANCE], policy)

    def test_another_worker_must_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check(monkeypatch, [(INSTANCE.url, True, "m"), ("http://b:1", True, "m")], Policy())
        with pytest.raises(NotNow, match="2 healthy workers left"):
            self.check(monkeypatch, [(INSTANCE.url, True, "m"), ("http://b:1", True, "m")], Policy(min_healthy=2))

    @pytest.mark.parametrize("other", [("http://b:1", False, "m"), ("http://b:1", True, "another model")])
    def test_sick_workers_and_other_models_do_not_count(
        self, monkeypatch: pytest.MonkeyPatch, other: tuple[str, bool, str]
    ) -> None:
        with pytest.raises(NotNow):
            self.check(monkeypatch, [(INSTANCE.url, True, "m"), other], Policy())

    def test_each_model_keeps_its_own_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        listed = [("http://a:1", True, "a"), ("http://a:2", True, "a"), (INSTANCE.url, True, "b")]
        with pytest.raises(NotNow, match="found 0"):
            self.check(monkeypatch, listed, Policy())

    def test_downtime_may_be_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check(monkeypatch, [(INSTANCE.url, True, "m")], Policy(allow_downtime=True))

    def test_an_engine_that_serves_nothing_may_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check(monkeypatch, [(INSTANCE.url, False, "m")], Policy())
        self.check(monkeypatch, [], Policy())

    @pytest.mark.parametrize(
        ("policy", "enough"), [(Policy(), 1), (Policy(hosts=2), 3), (Policy(hosts=2, batch=2, min_healthy=3), 7)]
    )
    def test_hosts_that_are_changed_at_once_leave_enough_together(self, policy: Policy, enough: int) -> None:
        def check(count: int) -> None:
            urls = [INSTANCE.url, *(f"http://b:{number}" for number in range(1, count)), "http://sick", "http://other"]
            listed = [Worker("id", url, url != "http://sick", 0, "m" if "other" not in url else "n") for url in urls]
            rolling.check_fleet_capacity({"http://r": listed}, {INSTANCE.url}, policy)

        check(enough)
        if policy.hosts > 1:
            with pytest.raises(FleetError, match=f"expected {enough} healthy workers .* found {enough - 1}"):
                check(enough - 1)


class TestGpuMemory:
    GPU = ObservedGpu(3, "GPU-a", "H200", 143771, 143000, "0000:3b:00.0", "9.0", 3, 0, None, ())

    def test_what_the_driver_keeps_for_itself_is_no_obstacle(self) -> None:
        rolling.check_gpu_memory(replace(INSTANCE, gpus=(3,)), [self.GPU], 2048)

    @pytest.mark.parametrize("instance", [replace(INSTANCE, gpus=(3,)), replace(INSTANCE, gpu_uuids=("GPU-a",))])
    def test_memory_that_outlives_its_process_is_waited_for(self, instance: Instance) -> None:
        with pytest.raises(NotNow, match="43771 MiB, held by no process"):
            rolling.check_gpu_memory(instance, [replace(self.GPU, free_mib=100000)], 2048)

    def test_other_gpus_do_not_matter(self) -> None:
        busy = [replace(self.GPU, free_mib=0)]
        rolling.check_gpu_memory(INSTANCE, busy, 2048)
        rolling.check_gpu_memory(replace(INSTANCE, gpus=(3,), gpu_uuids=("GPU-b",)), busy, 2048)


class TestAcceptance:
    def test_arguments_and_plan_are_found_again(self) -> None:
        instance = replace(INSTANCE, planned={"gpu": {"kv_tokens": 1000, "state_slots": 0}, "host": {}})
        info = {
            "version": "0.5.23",
            "model_path": "/dev/shm/sglang/m",
            "mem_fraction_static": 0.85,
            "max_total_num_tokens": 971,
        }
        assert differences(info, instance, ("--mem-fraction-static=0.850", "--page-size=64")) == []
        found = differences({**info, "max_total_num_tokens": 969}, instance, ("--mem-fraction-static=0.8",))
        assert found == [("mem_fraction_static", "0.8", 0.85), ("max_total_num_tokens", 1000, 969)]

    def test_another_release_is_noticed(self) -> None:
        assert differences({"version": "0.5.22"}, INSTANCE, ()) == [("version", "0.5.23", "0.5.22")]

    def test_a_canary_may_be_a_little_slower(self) -> None:
        compare(Sample(100, 0, 3.0), Sample(81, 0, 2.5), 0.2)

    @pytest.mark.parametrize(
        ("after", "said"),
        [
            (Sample(79, 0, 3.0), "80.00 tokens/s"),
            (Sample(100, 1, 3.0), "at most 0 failed"),
            (Sample(100, 0, 1.0), "2.40 tokens accepted"),
        ],
    )
    def test_a_worse_canary_says_how_much(self, after: Sample, said: str) -> None:
        with pytest.raises(FleetError, match=said):
            compare(Sample(100, 0, 3.0), after, 0.2)


class TestGenerations:
    @pytest.fixture
    def host(self, tmp_path: Path) -> Generations:
        (tmp_path / "systemd/sglang@0.service.d").mkdir(parents=True)
        (tmp_path / "systemd/sglang@.service").write_text("template 1")
        (tmp_path / "systemd/sglang@0.service.d/instance.conf").write_text("drop-in 1")
        configure(tmp_path / "config", INSTANCE)
        return Generations("0", tmp_path / "config", tmp_path / "systemd", tmp_path / "state")

    def test_what_served_is_put_back_with_its_unit(self, host: Generations) -> None:
        assert not host.restore()
        assert host.keep()
        assert not host.keep()
        assert not host.restore()
        configure(host.config_dir, INSTANCE, "--broken\n")
        (host.config_dir / "0/extra").write_text("left by the new one")
        (host.systemd_dir / "sglang@.service").write_text("template 2")
        (host.systemd_dir / "sglang@0.service.d/instance.conf").write_text("drop-in 2")
        assert host.restore()
        assert (host.config_dir / "0/args").read_text() == "--port=30000\n"
        assert not (host.config_dir / "0/extra").exists()
        assert (host.systemd_dir / "sglang@.service").read_text() == "template 2"
        assert host.override.read_text() == "template 1"
        assert (host.systemd_dir / "sglang@0.service.d/instance.conf").read_text() == "drop-in 1"
        assert not host.restore()

    def test_the_next_deployment_uses_the_template_again(self, host: Generations) -> None:
        host.keep()
        (host.systemd_dir / "sglang@.service").write_text("template 2")
        host.restore()
        host.use_template()
        assert not host.override.exists()

    def test_what_has_had_no_turn_is_set_aside_and_taken_up(self, host: Generations) -> None:
        host.set_aside()
        host.take_up()
        assert host.keep()
        configure(host.config_dir, INSTANCE, "--new\n")
        (host.systemd_dir / "sglang@.service").write_text("template 2")
        host.set_aside()
        assert host.is_current()
        assert host.override.read_text() == "template 1"
        host.take_up()
        assert (host.config_dir / "0/args").read_text() == "--new\n"
        assert not host.override.exists()
        host.restore()
        host.take_up()
        assert host.is_current(), "what was taken up once is not taken up again"

    def test_the_one_before_is_kept_for_a_rollback(self, host: Generations) -> None:
        host.keep()
        configure(host.config_dir, INSTANCE, "--port=30001\n")
        host.keep()
        assert host.restore(PREVIOUS)
        assert (host.config_dir / "0/args").read_text() == "--port=30000\n"

    def test_what_needs_no_restart_is_no_generation_of_its_own(self, host: Generations) -> None:
        host.keep()
        configure(host.config_dir, replace(INSTANCE, drain_timeout_s=5))
        assert host.keep()
        assert not host.exists(PREVIOUS)
        assert host.good_instance().drain_timeout_s == 5


class TestMarks:
    def test_helpers_read_them_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            with registration.rolling(tmp_path):
                registration.leave(INSTANCE, registration.ROLL, tmp_path)
        finally:
            os.umask(before)
        assert [(tmp_path / path).stat().st_mode & 0o444 for path in ("roll.lock", "0/out")] == [0o444] * 2

    def test_a_roll_keeps_others_off_while_it_lives(self, tmp_path: Path) -> None:
        with registration.rolling(tmp_path):
            registration.leave(INSTANCE, registration.ROLL, tmp_path)
            assert registration.taken_out_by("0", tmp_path) == "roll"
            with (
                pytest.raises(FleetError, match="no other rolling restart"),
                registration.rolling(tmp_path),
            ):
                pass
        assert registration.taken_out_by("0", tmp_path) == ""

    def test_an_operator_keeps_it_out_until_it_enters(self, tmp_path: Path) -> None:
        registration.leave(INSTANCE, registration.OPERATOR, tmp_path)
        assert registration.taken_out_by("0", tmp_path) == "operator"
        registration.enter(INSTANCE, anew=False, runtime_dir=tmp_path)
        assert registration.taken_out_by("0", tmp_path) == ""

    def test_a_start_and_a_liveness_check_put_back_only_what_nobody_took_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered: list[bool] = []
        monkeypatch.setattr(registration, "on_every", lambda *_: entered.append(True) or True)
        registration.leave(INSTANCE, registration.OPERATOR, tmp_path)
        entered.clear()
        registration.stay_entered(INSTANCE, tmp_path)
        assert not entered
        registration.enter_at_start(INSTANCE, tmp_path)
        registration.stay_entered(INSTANCE, tmp_path)
        assert len(entered) == 2
        with registration.rolling(tmp_path):
            registration.leave(INSTANCE, registration.ROLL, tmp_path)
            entered.clear()
            registration.enter_at_start(INSTANCE, tmp_path)
            registration.stay_entered(INSTANCE, tmp_path)
        assert not entered


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_]+", fullmatch=True), st.text(st.characters(codec="ascii", exclude_categories=["C"]))
    )
)
def test_environment_files_are_read_as_they_are_written(variables: dict[str, str]) -> None:
    text = environment_text((name, value, "why") for name, value in variables.items())
    assert environment(text) == variables
