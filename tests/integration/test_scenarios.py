"""Every Molecule scenario as one test: check, converge, idempotence, verify. All but one share a host's name."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.xdist_group("roll-hosts" if name == "rolling" else "gpu-host-1"))
        for name in SCENARIOS
    ],
)
def test_scenario(scenario):
    subprocess.run(["molecule", "test", "--scenario-name", scenario], cwd=ROOT, check=True)
