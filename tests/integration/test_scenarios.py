"""Every Molecule scenario as one test: check, converge, idempotence, verify on hosts of its own."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario):
    subprocess.run(["molecule", "test", "--scenario-name", scenario], cwd=ROOT, check=True)
