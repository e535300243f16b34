#!/usr/bin/python
"""Ansible module: restart running engines one after another without losing a request."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rolling_restart
short_description: Restart a host's engines without losing a request
version_added: 0.1.0
description:
  - Instances that do not run are started at the same time, the others restarted O(rolling.batch) at a time. Each
    leaves every router, finishes its requests, stops, gives its memory back, starts, is compared with the plan and
    enters the routers again.
  - The first failure ends it. The engine then runs with its last good configuration, and the error names a directory
    on the host with everything that was seen.
  - Interrupted, it goes on with what is left when it is asked for the same instances again.
  - While it runs, C(journalctl -t sglang-roll -f) on the host tells each step.
options:
  gpus:
    description: Restart the instances that use one of these GPUs. Without it, all instances of the host.
    type: list
    elements: int
    default: []
  fleet:
    description:
      - Whether this is a part of a roll over several hosts, which remembers what is done here until V(state=closed).
    type: bool
    default: false
  state:
    description: V(restarted) does it. V(closed) forgets an interrupted roll and what it had done.
    type: str
    choices: [restarted, closed]
    default: restarted
extends_documentation_fragment: [llmops.fleet.rolling]
attributes:
  check_mode:
    description: Judges everything that can be judged while all serve, and returns the order.
    support: full
  diff_mode:
    description: Shows the instances in the order of their restart.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Restart the engines of GPU 0 and 3
  llmops.fleet.rolling_restart:
    gpus: [0, 3]
"""

RETURN = r"""
order:
  description: Instances in the order of their restart.
  type: list
  elements: str
  returned: with state=restarted
steps:
  description: What was done with each instance, and the seconds that each phase of it took.
  type: list
  elements: dict
  returned: with state=restarted
  sample:
    - {name: "0", hot: true, phase: done, seconds: {drain: 4.0, stop: 3.5, start: 28.1}, before: null, after: null}
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.instance import Instance
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import (
    OPTIONS,
    Journal,
    Policy,
    names_of,
    preflight,
    roll,
)


def main() -> None:
    module = AnsibleModule(
        {
            "gpus": {"type": "list", "elements": "int", "default": []},
            "fleet": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["restarted", "closed"], "default": "restarted"},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    journal = Journal()
    try:
        if module.params["state"] == "closed":
            module.exit_json(changed=journal.path.exists() if module.check_mode else journal.close())
        names = names_of(module.params["gpus"])
        steps = []
        if module.check_mode:
            preflight([Instance.read(name) for name in names])
        else:
            policy = Policy(**module.params["rolling"])
            steps = [asdict(step) for step in roll(names, policy, module.params["at_most"], journal)]
            if not module.params["fleet"] and not module.params["at_most"]:
                journal.close()
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(steps) or module.check_mode,
        order=names,
        steps=steps,
        diff={"before": "", "after": "".join(f"restart sglang@{name}\n" for name in names)},
    )


if __name__ == "__main__":
    main()
