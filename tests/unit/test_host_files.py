"""Files are compared before they are written, and written whole."""

import grp
import os

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import host_files as core
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError

UNIT = core.File("/etc/systemd/system/a.service", "[Service]\n")
SECRET = core.File("/etc/a/env", "A=1\n", 0o640)


def test_what_is_absent_is_written_once(tmp_path):
    assert [change.path for change in core.compare([UNIT, SECRET], tmp_path)] == [UNIT.path, SECRET.path]
    assert list(tmp_path.iterdir()) == []
    core.write([UNIT, SECRET], tmp_path)
    assert core.compare([UNIT, SECRET], tmp_path) == ()
    assert (tmp_path / "etc/a/env").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in (tmp_path / "etc/a").iterdir()] == ["env"]


def test_a_difference_shows_both_texts_and_modes(tmp_path):
    core.write([SECRET], tmp_path)
    (change,) = core.compare([core.File(SECRET.path, "A=2\n", 0o600)], tmp_path)
    assert change.diff() == {
        "before_header": "/etc/a/env (mode 0640)",
        "after_header": "/etc/a/env (mode 0600)",
        "before": "A=1\n",
        "after": "A=2\n",
    }


def test_a_mode_alone_is_a_difference(tmp_path):
    core.write([SECRET], tmp_path)
    (tmp_path / "etc/a/env").chmod(0o644)
    assert len(core.compare([SECRET], tmp_path)) == 1
    core.write([SECRET], tmp_path)
    assert core.compare([SECRET], tmp_path) == ()


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    """A directory that counts as the host's own root, so that owners are judged; what was given to whom."""
    monkeypatch.setattr(core, "HOST_ROOT", tmp_path)
    given = []
    monkeypatch.setattr(core.os, "fchown", lambda handle, user, group: given.append((user, group)))
    return tmp_path, given


def test_on_the_host_itself_files_belong_to_root_and_their_group(own_root):
    root, given = own_root
    group = grp.getgrgid(os.getgid()).gr_name
    core.write([core.File("/a", "", 0o640, group)], root)
    assert given == [(0, os.getgid())]


def test_a_group_that_does_not_exist_is_refused_and_leaves_nothing(own_root):
    root, _ = own_root
    with pytest.raises(FleetError, match="run the role sglang_host first"):
        core.write([core.File("/a/b", "", 0o640, "no-such-group")], root)
    assert list((root / "a").iterdir()) == []
