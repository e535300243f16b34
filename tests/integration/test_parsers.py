"""The real parsers of the oldest and the newest release; `make check-flags-real` asks all five."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_real_parsers_take_every_profile_and_gpus_keep_the_intent():
    result = subprocess.run(
        [sys.executable, "tests/check_flags_real.py", "0.5.10.post1", "0.5.23"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ".collections"},
        capture_output=True,
        text=True,
    )
    print(result.stdout, result.stderr)
    assert result.stdout.splitlines()[-1] == "20 judged, 0 rejected"
