#!/usr/bin/python
"""Ansible module: derive instances, ports and URLs from the declared GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_layout
short_description: Derive a host's engine instances and their ports from its GPUs
version_added: 0.1.0
description:
  - Groups the declared GPUs into instances, derives every port from the GPU's index and checks that all are disjoint.
  - Looks at the host whether systemd runs it and whether a stranger holds one of the ports, and names it by PID and
    unit.
  - Changes nothing.
author: llmops.fleet maintainers
extends_documentation_fragment: [llmops.fleet.layout, llmops.fleet.looks_only]
"""

EXAMPLES = r"""
- name: Refuse a layout that the host cannot take
  llmops.fleet.instance_layout:
    gpus: [0, 1]
    other_ports:
      sglang-router.service: 8000
"""

RETURN = r"""
instances:
  description: Name, unit, GPU indices and ports of each instance.
  returned: success
  type: list
  elements: dict
  sample: [{name: "0", unit: sglang@0.service, gpus: [0], port: 30000, nccl_port: 30100}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.deploy import check_host
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.topology import OPTIONS, place


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    try:
        placements = place(**module.params)
        check_host(placements)
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        instances=[
            {
                "name": placement.name,
                "unit": placement.unit,
                "gpus": [gpu.index for gpu in placement.gpus],
                "port": placement.port,
                "nccl_port": placement.nccl_port,
            }
            for placement in placements
        ]
    )


if __name__ == "__main__":
    main()
