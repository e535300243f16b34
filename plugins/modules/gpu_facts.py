#!/usr/bin/python
"""Ansible module: the NVIDIA GPUs of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Show the NVIDIA GPUs of a host, where they hang and who computes on them
version_added: 0.1.0
description:
  - Asks NVML, where the host's Python has nvidia-ml-py, or else nvidia-smi; adds NUMA node and CPUs from C(/sys), and
    the systemd unit of every process that computes.
  - Refuses where an expected card is missing or another one is in its place. Changes nothing.
author: [llmops.fleet maintainers]
options:
  expected:
    description: GPUs that must be there, as indices, or as mappings with C(index) and C(uuid).
    type: list
    elements: raw
    default: []
extends_documentation_fragment: [llmops.fleet.looks_only]
"""

EXAMPLES = r"""
- name: Look at the GPUs
  llmops.fleet.gpu_facts:
  register: gpus

- name: Refuse a host whose card was swapped
  llmops.fleet.gpu_facts:
    expected:
      - index: 0
        uuid: GPU-3cbfa405-9af7-6a09-fb6a-aa816184cec9
"""

RETURN = r"""
gpus:
  description: >-
    For each GPU C(index), C(uuid), C(name), C(total_mib), C(free_mib), C(bus_id), C(compute_capability), C(minor),
    C(numa_node), C(cpus) and C(processes), each with C(pid), C(command), C(used_mib) and C(unit), empty for an orphan.
  returned: success
  type: list
  elements: dict
selected:
  description: >-
    The expected GPUs, all where none is named, each with what was found of it but its processes; where the option says
    something else, that is taken.
  returned: success
  type: list
  elements: dict
driver_version:
  description: Version of the NVIDIA driver.
  returned: success
  type: str
cuda_version:
  description: Newest CUDA that the driver serves; null where it does not say.
  returned: success
  type: str
orphans:
  description: Processes that compute on a GPU and run in no systemd unit.
  returned: success
  type: list
  elements: str
  sample: ["GPU 0: PID 4711 (python3) of no unit"]
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_facts import observe, select
from ansible_collections.llmops.fleet.plugins.module_utils.topology import Gpu


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"expected": {"type": "list", "elements": "raw", "default": []}}, supports_check_mode=True
    )
    try:
        observation = observe()
        selected = select(observation.gpus, [Gpu.from_value(value) for value in module.params["expected"]])
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, selected=selected, orphans=observation.orphans(), **asdict(observation))


if __name__ == "__main__":
    main()
