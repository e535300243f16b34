#!/usr/bin/python
"""Return a host's engines to what they served with before."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollback
short_description: Return engines to the configuration they served with before, without losing a request
version_added: 0.1.0
description:
  - Every instance that has the newest configuration gets the files of the one before it back - unit, arguments,
    environment, engine version and model revision - and is restarted as M(llmops.fleet.rolling_restart) does it.
  - Refuses before anything is stopped where an earlier configuration, its engine or its model is gone.
  - What was left becomes the earlier configuration, so a second rollback undoes the first.
extends_documentation_fragment: [llmops.fleet.rolling]
attributes:
  check_mode:
    description: Judges whether there is a way back, and returns it.
    support: full
  diff_mode:
    description: Shows each instance's engine and model before and after.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Return to what served before
  llmops.fleet.rollback:
"""

RETURN = r"""
ways:
  description: What each instance leaves and what it returns to, in words.
  type: list
  elements: str
  returned: success
steps:
  description: What was done with each instance, and the seconds that each phase of it took.
  type: list
  elements: dict
  returned: success
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.generations import Generations
from ansible_collections.llmops.fleet.plugins.module_utils.instance import configured
from ansible_collections.llmops.fleet.plugins.module_utils.rollback import roll_back, ways_back
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import OPTIONS, Policy


def main() -> None:
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    steps = []
    try:
        ways = ways_back([Generations(name) for name in configured()])
        if not module.check_mode:
            policy = Policy(**module.params["rolling"])
            steps = [asdict(step) for step in roll_back(ways, policy)]
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=True,
        ways=[str(way) for way in ways],
        steps=steps,
        diff={"before": "", "after": "".join(f"{way}\n" for way in ways)},
    )


if __name__ == "__main__":
    main()
