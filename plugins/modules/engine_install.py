#!/usr/bin/python
"""Install SGLang or its router into a versioned directory that is whole or not there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_install
short_description: Install SGLang or its router into a versioned directory, and prune old ones
description:
  - Makes a virtual environment C(<root>/<version>[-<build>]) from a wheelhouse on the host or from a lock file and the
    host's package index, every package checked by hash.
  - Checks Python, wheelhouse and free disk before anything is written; a failed installation is removed.
  - Installations that a process runs from, that a reference names or that C(current) points to are never removed.
version_added: 0.1.0
author: [llmops.fleet maintainers]
attributes:
  check_mode:
    support: full
    description: Checks everything that can be checked and reports what would be installed and removed.
  diff_mode:
    support: full
    description: Shows the installations and C(current) before and after.
options:
  root:
    description: Directory of all installations.
    type: path
    default: /opt/sglang
  package:
    description: What is installed.
    type: str
    choices: [sglang, sglang-router]
    default: sglang
  version:
    description: Its exact release.
    type: str
    required: true
  build:
    description: Suffix that keeps two installations of one release apart.
    type: str
    default: ""
  wheelhouse:
    description: Directory of wheels on the host, as M(llmops.fleet.wheelhouse) makes it.
    type: path
  lock:
    description: Text of a requirement file with hashes, for the host's package index.
    type: str
    default: ""
  extra_packages:
    description: Requirements installed after the locked ones, from the same place.
    type: list
    elements: str
    default: []
  python:
    description: Python on the host that the environment is made with.
    type: path
    default: /usr/bin/python3
  accelerator:
    description: What the engine computes on; on C(cuda) the driver and what compiles kernels are checked.
    type: str
    choices: [cuda, cpu]
    default: cuda
  keep:
    description: How many installations stay, the wanted one included.
    type: int
    default: 2
  references:
    description: Directories whose JSON files name installations in use.
    type: list
    elements: path
    default: [/etc/sglang, /var/lib/sglang]
  activate:
    description: Whether to point C(<root>/current) to it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Install from a wheelhouse
  llmops.fleet.engine_install:
    version: 0.5.23
    wheelhouse: /srv/wheelhouse/0.5.23
"""

RETURN = r"""
path:
  description: Directory of the installation.
  returned: always
  type: str
removed:
  description: Names of the installations that were (in check mode, would be) removed.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.engine_install import ENGINE, ROUTER, Engines, Source
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release


def describe(names: set[str], current: str | None) -> str:
    return "".join(f"{name}\n" for name in sorted(names)) + (f"current -> {current}\n" if current else "")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang"},
            "package": {"type": "str", "choices": [ENGINE, ROUTER], "default": ENGINE},
            "version": {"type": "str", "required": True},
            "build": {"type": "str", "default": ""},
            "wheelhouse": {"type": "path"},
            "lock": {"type": "str", "default": ""},
            "extra_packages": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "accelerator": {"type": "str", "choices": ["cuda", "cpu"], "default": "cuda"},
            "keep": {"type": "int", "default": 2},
            "references": {"type": "list", "elements": "path", "default": ["/etc/sglang", "/var/lib/sglang"]},
            "activate": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    engines = Engines(Path(given["root"]), tuple(Path(each) for each in given["references"]), given["package"])
    source = Source(
        Path(given["wheelhouse"]) if given["wheelhouse"] else None, given["lock"], tuple(given["extra_packages"])
    )
    name = given["version"] + (f"-{given['build']}" if given["build"] else "")
    try:
        before, current_before = set(engines.installed()), engines.current()
        release = Release.parse(given["version"])
        installed = engines.ensure(
            name, release, source, given["python"], given["accelerator"], check=module.check_mode
        )
        activated = given["activate"] and engines.activate(name, check=module.check_mode)
        removed = engines.prunable(name, given["keep"])
        for each in [] if module.check_mode else removed:
            engines.remove(each)
    except FleetError as error:
        module.fail_json(msg=str(error))
    header = str(engines.root)
    module.exit_json(
        changed=bool(installed or activated or removed),
        path=str(engines.root / name),
        removed=removed,
        diff={
            "before_header": header,
            "before": describe(before, current_before),
            "after_header": header,
            "after": describe((before | {name}) - set(removed), name if activated else current_before),
        },
    )


if __name__ == "__main__":
    main()
