#!/usr/bin/python
"""Ansible module: start the engines of a host that do not run, restart stale ones, retire unwanted ones."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instances_started
short_description: Have a host's wanted engines serve, and no others
version_added: 0.1.0
description:
  - Engines that do not run are started at the same time; each unit's own start check keeps them from taking more RAM
    than there is.
  - Stale engines are replaced O(rolling.batch) at a time; each drains before it stops and serves before the next stops.
  - The first failure ends it. What it hit, and all that were to follow, get their last good configuration back.
  - Instances that are configured but no longer wanted are drained, stopped, disabled and removed.
author: llmops.fleet maintainers
options:
  names:
    description: Wanted instances.
    type: list
    elements: str
    required: true
  stale:
    description: Those that M(llmops.fleet.instances) found to run with another configuration.
    type: list
    elements: str
    default: []
  waves:
    description: End after so many; 0 for all. One starts all that does not run, or else replaces O(rolling.batch).
    type: int
    default: 0
extends_documentation_fragment: [llmops.fleet.rolling]
attributes:
  check_mode:
    description: Reports what would be started, restarted and retired.
    support: full
  diff_mode:
    description: Shows the state of each instance before and after.
    support: full
"""

EXAMPLES = r"""
- name: Have both engines serve
  llmops.fleet.instances_started:
    names: ["0", "1"]
"""

RETURN = r"""
enabled:
  description: Instances that now start at boot and did not before.
  returned: success
  type: list
  elements: str
retired:
  description: Instances that were stopped and removed.
  returned: success
  type: list
  elements: str
started:
  description: Instances that were started.
  returned: success
  type: list
  elements: str
restarted:
  description: Instances that were restarted.
  returned: success
  type: list
  elements: str
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.deploy import bring_up
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import OPTIONS, Policy


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "stale": {"type": "list", "elements": "str", "default": []},
            "waves": {"type": "int", "default": 0},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    try:
        transition = bring_up(
            module.params["names"],
            module.params["stale"],
            Policy(**module.params["rolling"]),
            waves=module.params["waves"],
            check=module.check_mode,
        )
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=transition.changed, diff=transition.diff(), **asdict(transition))


if __name__ == "__main__":
    main()
