import subprocess
import sys

from ansible_collections.llmops.fleet.plugins.module_utils.zipapp import build


def test_same_sources_give_the_same_bytes():
    assert build() == build()


def test_tool_runs_on_the_standard_library_alone(tmp_path):
    tool = tmp_path / "sglang-fleet"
    tool.write_bytes(build())
    answer = subprocess.run([sys.executable, "-IS", tool, "--help"], capture_output=True, text=True, check=True)
    assert "prestart" in answer.stdout
