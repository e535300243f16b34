#!/usr/bin/python
"""Have the installed SGLang judge the command lines of all instances of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_flags
short_description: Check engine command lines with the installed SGLang's own parser
description:
  - Has SGLang parse and resolve the exact command line of every instance, in one process for all of them, without
    starting anything.
  - Fails with the parser's message and what became of the flag, or where the engine would silently undo a setting.
  - Where the engine is not installed yet, as in check mode on a new host, its table of flags is used instead.
version_added: 0.1.0
author: [llmops.fleet maintainers]
extends_documentation_fragment: [llmops.fleet.looks_only]
options:
  python:
    description: The engine's interpreter, such as C(/opt/sglang/0.5.23/bin/python).
    type: path
    required: true
  version:
    description: Its SGLang release.
    type: str
    required: true
  instances:
    description:
      - The command lines to check, each with C(name), C(arguments) of C(sglang.launch_server) and C(environment), as
        M(llmops.fleet.instances) returns them. Other keys are ignored.
    type: list
    elements: dict
    required: true
  model_path:
    description: Directory of the staged model; while it has no C(config.json), command lines are parsed, not resolved.
    type: path
    required: true
  allow_known_bad:
    description: Whether settings that the engine would undo are reported as warnings.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Have the installed engine judge what the units would run
  llmops.fleet.engine_flags:
    python: /opt/sglang/0.5.23/bin/python
    version: 0.5.23
    model_path: /dev/shm/sglang/qwen3.6-27b
    instances:
      - name: "0"
        arguments: [--model-path=/dev/shm/sglang/qwen3.6-27b, --port=30000]
"""

RETURN = r"""
checked_by:
  description: C(resolution) and C(parser) are the installed engine's, C(table) is this collection's.
  returned: always
  type: str
chosen:
  description: By instance, what the engine chooses where the command line leaves it open.
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.parser_check import check_all
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "instances": {"type": "list", "elements": "dict", "required": True},
            "model_path": {"type": "path", "required": True},
            "allow_known_bad": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        checked_by, verdicts = check_all(
            Path(given["python"]),
            Release.parse(given["version"]),
            {each["name"]: each["arguments"] for each in given["instances"]},
            {each["name"]: each["environment"] for each in given["instances"]},
            Path(given["model_path"]),
            given["allow_known_bad"],
        )
    except FleetError as error:
        module.fail_json(msg=str(error))
    for warning in dict.fromkeys(each for verdict in verdicts for each in verdict.said()):
        module.warn(warning)
    module.exit_json(
        changed=False, checked_by=checked_by, chosen={verdict.name: dict(verdict.chosen) for verdict in verdicts}
    )


if __name__ == "__main__":
    main()
