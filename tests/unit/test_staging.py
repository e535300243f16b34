"""Staging on real files: whole or not at all, resumed, verified, refused early."""

import errno
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import staging, weights_source
from ansible_collections.llmops.fleet.plugins.module_utils.cli import main
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.manifest import READY, require_ready
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target, plan, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory

sys.path.insert(0, str(Path(__file__).parent))
from weights_model import make_model, write_shard


class SmallBlocks(Directory):
    """A directory whose files take many blocks, so that order and resumption matter."""

    block_bytes = 8192
    TRIAL_BYTES = 0


@pytest.fixture
def source(tmp_path):
    return make_model(tmp_path / "source")


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "shm/model", "model", state_dir=tmp_path / "state", threads=4, wait_s=0.5, stall_s=5)


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != READY
    }


def everything(directory):
    return sorted((str(path), path.stat().st_mtime_ns) for path in directory.rglob("*"))


def test_publishes_a_whole_model_and_does_nothing_twice(source, target):
    staged = stage(SmallBlocks(source), target)
    assert content(target.path) == content(source)
    assert staged.copied_bytes == sum(len(data) for data in content(source).values())
    manifest = require_ready(target.path)
    for path, record in manifest.files.items():
        assert record.sha256 == hashlib.sha256((source / path).read_bytes()).hexdigest()
    before = everything(target.path)
    assert stage(SmallBlocks(source), target) is None
    assert everything(target.path) == before
    assert sorted(path.name for path in target.path.parent.iterdir()) == [".model.lock", "model"]


def test_planning_changes_nothing(source, target, tmp_path):
    before = everything(tmp_path)
    staging_plan = plan(Directory(source), target)
    assert everything(tmp_path) == before
    assert staging_plan.remaining_bytes == staging_plan.size_bytes
    assert not staging_plan.up_to_date


@pytest.mark.parametrize("read_mode", ["direct", "buffered", "auto"])
@pytest.mark.parametrize("shard_bytes", [1, 4096, 65_536, 1_000_003])
def test_every_way_of_reading_brings_the_same_bytes(tmp_path, target, read_mode, shard_bytes):
    source = make_model(tmp_path / "source", shard_bytes=shard_bytes)
    stage(SmallBlocks(source, read_mode=read_mode), target)
    assert content(target.path) == content(source)


def test_a_file_system_without_direct_reads_is_read_through_its_cache(source, target, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads")
        return real(path, flags, *rest)

    monkeypatch.setattr(weights_source.os, "open", refuse)
    directory = SmallBlocks(source, read_mode="direct")
    stage(directory, target)
    assert content(target.path) == content(source)
    assert "buffered" in directory.describe()


def test_threads_without_a_file_of_their_own_help(tmp_path, target):
    source = make_model(tmp_path / "source", shards=1, shard_bytes=3_000_000)
    stage(SmallBlocks(source), target)
    assert content(target.path) == content(source)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda model: shutil.rmtree(model), "no directory"),
        (lambda model: (model / "config.json").unlink(), "without it"),
        (lambda model: (model / "config.json").write_text("{"), "JSON"),
        (lambda model: (model / "model-2-of-3.safetensors").unlink(), "model-2-of-3.safetensors"),
        (lambda model: os.truncate(model / "model-2-of-3.safetensors", 1000), "1000 bytes"),
        (lambda model: os.truncate(model / "model-2-of-3.safetensors", 5), "5 bytes"),
        (
            lambda model: (model / "model-1-of-3.safetensors").write_text("version https://git-lfs.github.com/spec/v1"),
            "LFS pointer",
        ),
        (lambda model: (model / "model-1-of-3.safetensors").write_bytes(b"\x04" + b"\0" * 7 + b"{]  "), "header"),
        (lambda model: (model / "lost").symlink_to("nowhere"), "a link to nothing"),
        (lambda model: (model / "SHA256SUMS").write_text("0" * 64 + "  gone.bin\n"), "gone.bin"),
        (lambda model: (model / "SHA256SUMS").write_text("what\n"), "line 1"),
    ],
)
def test_a_source_that_is_no_whole_model_is_refused_before_anything_is_written(source, target, spoil, found):
    spoil(source)
    with pytest.raises(FleetError, match=found):
        plan(Directory(source), target)
    assert not target.path.parent.exists()


def test_a_flipped_byte_is_found_in_any_shard(source, target):
    stage(SmallBlocks(source), target)
    for shard in sorted(source.glob("*.safetensors")):
        shutil.rmtree(target.path)
        status = shard.stat()
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-7] + bytes([whole[-7] ^ 1]) + whole[-6:])
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(FleetError, match=shard.name):
            stage(SmallBlocks(source), target)
        assert not target.path.exists()
        shard.write_bytes(whole)
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
        stage(SmallBlocks(source), target)
        assert content(target.path) == content(source)


def test_the_sources_own_sums_are_believed(source, target):
    subprocess.run("sha256sum *.safetensors config.json > SHA256SUMS", shell=True, cwd=source, check=True)
    write_shard(source / "model-1-of-3.safetensors", 300_000, seed=9)
    with pytest.raises(FleetError, match=r"model-1-of-3.safetensors .* sha256"):
        stage(Directory(source), target)
    write_shard(source / "model-1-of-3.safetensors", 300_000, seed=0)
    assert stage(Directory(source), target) is not None


def test_a_staged_model_is_a_source_with_a_manifest(source, target, tmp_path):
    stage(Directory(source), target)
    second = Target(tmp_path / "second/model", "model", state_dir=tmp_path / "state2")
    assert all(file.sha256 for file in Directory(target.path).files())
    stage(Directory(target.path), second)
    assert content(second.path) == content(source)


def test_changed_source_replaces_the_copy_and_keeps_what_is_equal(source, target):
    stage(Directory(source), target)
    kept = (target.path / "model-2-of-3.safetensors").stat().st_ino
    write_shard(source / "model-1-of-3.safetensors", 300_000, seed=9)
    (source / "empty.txt").unlink()
    again = stage(Directory(source), target)
    assert content(target.path) == content(source)
    assert (target.path / "model-2-of-3.safetensors").stat().st_ino == kept
    assert again.copied_bytes == (source / "model-1-of-3.safetensors").stat().st_size


def test_a_source_that_was_only_touched_changes_nothing(source, target):
    stage(Directory(source), target)
    before = everything(target.path)
    os.utime(source / "model-1-of-3.safetensors")
    assert not plan(Directory(source), target).up_to_date
    assert stage(Directory(source), target) is None
    assert everything(target.path) == before
    assert plan(Directory(source), target).up_to_date


def test_content_that_an_engine_uses_is_not_replaced(source, target):
    stage(Directory(source), target)
    write_shard(source / "model-1-of-3.safetensors", 300_000, seed=9)
    with subprocess.Popen(["sh", "-c", "read line", f"--model-path={target.path}"], stdin=subprocess.PIPE) as engine:
        with pytest.raises(FleetError, match=rf"found PID {engine.pid} .*; stage the new content beside it"):
            stage(Directory(source), target)
        assert require_ready(target.path)
        engine.communicate(b"\n")
    assert stage(Directory(source), target) is not None
    assert content(target.path) == content(source)


def test_a_damaged_copy_is_staged_again(source, target):
    stage(Directory(source), target)
    os.truncate(target.path / "model-1-of-3.safetensors", 10)
    with pytest.raises(FleetError, match="10 bytes"):
        require_ready(target.path)
    assert stage(Directory(source), target) is not None
    assert content(target.path) == content(source)


def test_what_somebody_else_put_there_is_left_alone(source, target):
    target.path.mkdir(parents=True)
    (target.path / "mine").write_text("x")
    with pytest.raises(FleetError, match="something without READY"):
        stage(Directory(source), target)
    assert (target.path / "mine").read_text() == "x"


def test_an_owner_who_logs_in_is_refused(source, target):
    with pytest.raises(FleetError, match="uid 65534"):
        plan(Directory(source), Target(target.path, "model", owner="nobody", state_dir=target.state_dir))


def test_room_and_memory_are_checked_for_the_remaining_bytes(source, target, monkeypatch):
    small = Target(target.path, "model", state_dir=target.state_dir, tmpfs_bytes=100_000)
    with pytest.raises(FleetError, match=r"GiB free in .* for the bytes that remain"):
        plan(Directory(source), small)
    growable = Target(target.path, "model", state_dir=target.state_dir, tmpfs_bytes=100_000, growable=True)
    room = plan(Directory(source), growable).tmpfs()
    assert room["size_gib"] > 1
    monkeypatch.setattr(staging, "available_memory_bytes", lambda: 10**9)
    with pytest.raises(FleetError, match="RAM available"):
        plan(Directory(source), growable)
    assert not target.path.parent.exists()


def test_a_full_file_system_is_said_and_resumed(source, target, monkeypatch):
    real, written = os.pwrite, []

    def full(descriptor, data, offset):
        written.append(len(data))
        if sum(written) > 500_000:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data, offset)

    monkeypatch.setattr(staging.os, "pwrite", full)
    with pytest.raises(FleetError, match="a full file system"):
        stage(SmallBlocks(source), target)
    assert not target.path.exists()
    monkeypatch.setattr(staging.os, "pwrite", real)
    remaining = plan(SmallBlocks(source), target).remaining_bytes
    assert remaining < 600_000
    assert stage(SmallBlocks(source), target).copied_bytes == remaining
    assert content(target.path) == content(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_tmpfs_that_fills_up_meanwhile_is_said_and_resumed(source, target, monkeypatch):
    target.path.parent.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", target.path.parent], check=True)
    try:
        with pytest.raises(FleetError, match="GiB free in"):
            stage(SmallBlocks(source), target)
        assert not target.partial.exists()
        monkeypatch.setattr(staging, "_check_room", lambda *_: None)
        with pytest.raises(FleetError, match="a full file system"):
            stage(SmallBlocks(source), target)
        monkeypatch.undo()
        subprocess.run(["mount", "-o", "remount,size=4m", target.path.parent], check=True)
        assert 0 < plan(SmallBlocks(source), target).remaining_bytes < 900_000
        stage(SmallBlocks(source), target)
        assert content(target.path) == content(source)
    finally:
        subprocess.run(["umount", target.path.parent], check=True)


def test_a_source_that_stalls_fails_loudly(source, target, monkeypatch):
    monkeypatch.setattr(weights_source._DirectoryReader, "read_into", lambda *_: time.sleep(3))
    with pytest.raises(FleetError, match=r"at least every 0.3 s"):
        stage(Directory(source), Target(target.path, "model", state_dir=target.state_dir, stall_s=0.3))
    assert not target.path.exists()


def test_a_second_run_fails_clearly_or_waits(source, target):
    target.path.parent.mkdir()
    with target.path.with_name(".model.lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("4711")
        held.flush()
        with pytest.raises(FleetError, match="process 4711"):
            stage(Directory(source), target)
    assert stage(Directory(source), target) is not None


def test_a_partial_that_rotted_is_copied_again(source, target):
    stage(Directory(source), target)
    shutil.copytree(target.path, target.partial)
    shutil.rmtree(target.path)
    shard = "model-2-of-3.safetensors"
    with (target.partial / shard).open("r+b") as file:
        file.seek(1000)
        file.write(b"rotten")
    record = next(file for file in Directory(source).files() if file.path == shard)
    target.progress.write_text(
        json.dumps(
            {
                "files": {
                    shard: {"size_bytes": record.size_bytes, "fingerprint": record.fingerprint, "staged_bytes": 200_000}
                }
            }
        )
    )
    stage(SmallBlocks(source), target)
    assert content(target.path) == content(source)


def test_kill_9_at_any_moment_leaves_no_wrong_model_and_resumes(tmp_path, target, monkeypatch):
    source = make_model(tmp_path / "source", shards=4, shard_bytes=8_000_000)
    stage(Directory(source), target)
    wanted = content(source)
    shutil.rmtree(target.path)
    monkeypatch.setattr(Directory, "block_bytes", 65_536)
    monkeypatch.setattr(staging, "_SAVE_EVERY_S", 0.002)
    chance, published, resumed = random.Random(4), 0, 0
    for _ in range(50):
        child = os.fork()
        if child == 0:
            stage(Directory(source), target)
            os._exit(0)
        time.sleep(chance.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if target.path.exists():
            assert content(target.path) == wanted
            require_ready(target.path)
            shutil.rmtree(target.path)
            published += 1
        else:
            resumed += plan(Directory(source), target).remaining_bytes < sum(map(len, wanted.values()))
    assert stage(Directory(source), target) is not None
    assert content(target.path) == wanted
    assert published < 50
    assert resumed > 0


def test_the_boot_units_command_stages_and_says_why_not(source, target, capsys):
    arguments = ["stage", f"--path={target.path}", "--name=model", f"--state-dir={target.state_dir}"]
    assert main([*arguments, f"--source={source}"]) == 0
    assert "is ready" in capsys.readouterr().out
    assert main([*arguments, f"--source={source}"]) == 0
    assert "ready already" in capsys.readouterr().out
    assert main([*arguments, f"--source={source}/none"]) == 78
    assert "refused: expected a model directory" in capsys.readouterr().err


def test_verify_names_every_file_that_differs(source, target, capsys):
    stage(Directory(source), target)
    assert main(["verify", str(target.path)]) == 0
    for number in (1, 3):
        with (target.path / f"model-{number}-of-3.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 128]))
    capsys.readouterr()
    assert main(["verify", str(target.path)]) == 78
    assert "2 that differ: model-1-of-3.safetensors, model-3-of-3.safetensors" in capsys.readouterr().err


def test_the_boot_units_command_does_not_take_itself_for_a_user(source, target):
    command = [sys.executable, "-m", "ansible_collections.llmops.fleet.plugins.module_utils.cli", "stage"]
    command += [f"--source={source}", f"--path={target.path}", "--name=model", f"--state-dir={target.state_dir}"]
    for seed in (0, 9):
        write_shard(source / "model-1-of-3.safetensors", 300_000, seed)
        subprocess.run(command, check=True, env={"PYTHONPATH": str(Path(__file__).parents[2] / ".collections")})
    assert content(target.path) == content(source)


def test_excluded_and_hidden_files_stay_behind(source, target):
    (source / ".cache").mkdir()
    (source / ".cache/x").write_text("x")
    (source / "old.pth").write_text("x")
    stage(Directory(source, ["*.pth"]), target)
    assert not {".cache/x", "old.pth"} & set(content(target.path))
