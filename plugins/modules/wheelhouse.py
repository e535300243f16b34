#!/usr/bin/python
"""Entry of the module llmops.fleet.wheelhouse."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.wheelhouse import LOCK, Step, build

DOCUMENTATION = r"""
module: wheelhouse
short_description: Build a directory of wheels with a hash-checked list, to install from without a network
description:
  - Runs C(pip wheel) once per step and writes C(requirements.lock), which names every wheel with its SHA-256, last.
  - Does nothing where the inputs are the same and every listed wheel is there.
version_added: 0.1.0
author: llmops.fleet
attributes:
  check_mode:
    support: full
    description: Reports whether it would be built; the list's new content is not known before.
  diff_mode:
    support: full
    description: Shows the list before and after.
  idempotent:
    support: full
    description: Unchanged inputs and a whole wheelhouse mean no work.
options:
  path:
    description: Directory of the wheelhouse on the machine that builds it.
    type: path
    required: true
  python:
    description: Python whose version and platform the wheels are for.
    type: path
    default: python3
  steps:
    description: Calls of pip, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      requirements:
        description: Requirements such as C(sglang==0.5.23).
        type: list
        elements: str
        default: []
      files:
        description: Requirement files; where they have hashes, pip checks them.
        type: list
        elements: path
        default: []
      projects:
        description: Directories of local Python projects.
        type: list
        elements: path
        default: []
      dependencies:
        description: Whether dependencies come along.
        type: bool
        default: true
"""

EXAMPLES = r"""
- name: Bring SGLang and its dependencies into a wheelhouse
  llmops.fleet.wheelhouse:
    path: /srv/wheelhouse/0.5.23
    steps:
      - files: [locks/0.5.23.lock]
"""

RETURN = r"""
wheels:
  description: How many wheels the list names.
  returned: always
  type: int
"""


def main() -> None:
    step_spec = {
        "requirements": {"type": "list", "elements": "str", "default": []},
        "files": {"type": "list", "elements": "path", "default": []},
        "projects": {"type": "list", "elements": "path", "default": []},
        "dependencies": {"type": "bool", "default": True},
    }
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "python": {"type": "path", "default": "python3"},
            "steps": {"type": "list", "elements": "dict", "required": True, "options": step_spec},
        },
        supports_check_mode=True,
    )
    directory = Path(module.params["path"])
    steps = [
        Step(
            requirements=tuple(step["requirements"]),
            files=tuple(step["files"]),
            projects=tuple(step["projects"]),
            dependencies=step["dependencies"],
        )
        for step in module.params["steps"]
    ]
    try:
        before, after = build(directory, steps, module.params["python"], module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    header = str(directory / LOCK)
    module.exit_json(
        changed=before != after,
        wheels=after.count("--hash="),
        diff={"before": before, "after": after, "before_header": header, "after_header": header},
    )


if __name__ == "__main__":
    main()
