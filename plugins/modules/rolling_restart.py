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
        A run in check mode has judged the arguments, so they are not judged again.
    type: bool
    default: false
  state:
    description: V(restarted) does it. V(closed) forgets an interrupted roll and what it had done.
    type: str
    choices: [restarted, closed]
    default: restarted
  waves:
    description: End after so many; 0 for all. One starts all that does not run, or else restarts O(rolling.batch).
    type: int
    default: 0
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
engines:
  description: Instances that are left, in the order of their restart, and whether each of them serves (C(hot)).
  type: list
  elements: dict
  returned: in check mode, with state=restarted
  sample: [{name: "0", hot: true, url: "http://b200-node-1:30000"}]
waves:
  description: How many waves that is.
  type: int
  returned: in check mode, with state=restarted
done:
  description: Instances that an interrupted roll of the same ones has done already.
  type: list
  elements: str
  returned: in check mode, with state=restarted
workers:
  description: The list of each router, by the router's URL.
  type: dict
  returned: in check mode, with state=restarted
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
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import (
    OPTIONS,
    Journal,
    Policy,
    look_ahead,
    names_of,
    roll,
)


def main() -> None:
    module = AnsibleModule(
        {
            "gpus": {"type": "list", "elements": "int", "default": []},
            "fleet": {"type": "bool", "default": False},
            "waves": {"type": "int", "default": 0},
            "state": {"type": "str", "choices": ["restarted", "closed"], "default": "restarted"},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    journal = Journal()
    try:
        if module.params["state"] == "closed":
            module.exit_json(changed=journal.path.exists() if module.check_mode else journal.close())
        names, policy = names_of(module.params["gpus"]), Policy(**module.params["rolling"])
        fleet, waves = module.params["fleet"], module.params["waves"]
        if module.check_mode:
            plan = look_ahead(names, policy, journal)
            after = "".join(f"restart sglang@{engine['name']}\n" for engine in plan["engines"])
            module.exit_json(changed=bool(plan["engines"]), diff={"before": "", "after": after}, **plan)
        steps = [asdict(step) for step in roll(names, policy, waves, journal, judged=fleet)]
        if not fleet and not waves:
            journal.close()
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(steps),
        steps=steps,
        diff={"before": "", "after": "".join(f"restart sglang@{step['name']}\n" for step in steps)},
    )


if __name__ == "__main__":
    main()
