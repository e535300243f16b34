#!/usr/bin/python
"""Refuse a deployment that the host's RAM cannot take, before anything is stopped."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ram_headroom
short_description: Check that the host's RAM can take the planned engines now
description:
  - Measures the host (MemAvailable, tmpfs, cgroup limits v1 and v2, NUMA nodes), adds up what the plan says all engines
    will take together, credits what running engines of ours hold, and fails with the sums shown where it is too little.
  - Changes nothing. C(sglang-fleet ram-headroom) is the same check on the host, without Ansible.
options:
  plan:
    description: What M(llmops.fleet.capacity_plan) returned, unchanged.
    type: dict
    required: true
  staged:
    description: Directory of the staged weights; they count as written once it holds READY.
    type: path
  shm:
    description: The tmpfs that holds the weights.
    type: path
    default: /dev/shm
extends_documentation_fragment: [llmops.fleet.looks_only]
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Refuse what the RAM cannot take
  llmops.fleet.ram_headroom:
    plan: "{{ plan }}"
    staged: /dev/shm/sglang/Qwen3.6-27B
"""

RETURN = r"""
table:
  description: The sums, in lines for people; where it fails they stand in the message.
  type: list
  elements: str
  returned: success
largest_hicache_gb:
  description: Largest hicache_gb per GPU that would fit, 0 for none.
  type: int
  returned: always
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.host_measure import measure_host
from ansible_collections.llmops.fleet.plugins.module_utils.ram_headroom import headroom


def main() -> None:
    """Wire the arguments to the core."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "staged": {"type": "path"},
            "shm": {"type": "path", "default": "/dev/shm"},
        },
        supports_check_mode=True,
    )
    staged = module.params["staged"]
    try:
        host = measure_host(Path(staged) if staged else None, shm=Path(module.params["shm"]))
        found = headroom(module.params["plan"], host)
    except FleetError as error:
        module.fail_json(msg=str(error))
    largest_gb = found.largest_hicache_gb
    if found.problems:
        refusal = "\n".join([*map(str, found.problems), found.table()])
        module.fail_json(msg=refusal, largest_hicache_gb=largest_gb)
    module.exit_json(changed=False, table=found.table().splitlines(), largest_hicache_gb=largest_gb)


if __name__ == "__main__":
    main()
