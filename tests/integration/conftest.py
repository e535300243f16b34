"""The demo's host, freshly made, for the tests that deploy to it."""

import subprocess
from pathlib import Path

import pytest
import testinfra

ROOT = Path(__file__).parents[2]


def manage_hosts(playbook):
    subprocess.run(["ansible-playbook", "-i", "inventory/demo", f"tests/hosts/{playbook}.yml"], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def bare_host():
    manage_hosts("destroy")
    manage_hosts("create")
    yield testinfra.get_host("ssh://demo-host", ssh_config=str(ROOT / ".cache/test-hosts/ssh_config"))
    manage_hosts("destroy")
