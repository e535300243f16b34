#!/usr/bin/python
"""Ansible module: what runs on a host, compared with what was configured and planned."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instances_status
short_description: Show what runs on a host, compared with what was configured and planned
version_added: 0.1.0
description:
  - Looks at the unit of every configured instance, at what its process was started with, at what the engine says it
    allocated, and at the routers. Changes nothing.
author: [llmops.fleet maintainers]
extends_documentation_fragment: [llmops.fleet.looks_only]
"""

EXAMPLES = r"""
- name: See what runs
  llmops.fleet.instances_status:
  register: status
"""

RETURN = r"""
instances:
  description: >-
    For each instance C(name), C(gpus), C(state), C(engine_version), C(memory_bytes), C(planned_bytes), C(requests),
    C(routers) and C(remarks), which is empty where all is as configured and planned.
  returned: success
  type: list
  elements: dict
table:
  description: The same, a line of text for each.
  returned: success
  type: list
  elements: str
as_planned:
  description: Whether no instance has a remark.
  returned: success
  type: bool
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.status import status, table


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        instances = [asdict(each) for each in status()]
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        instances=instances,
        table=table(instances).splitlines(),
        as_planned=not any(each["remarks"] for each in instances),
    )


if __name__ == "__main__":
    main()
