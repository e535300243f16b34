"""Options that say which instances a host has."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  gpus:
    description: GPU indices, or mappings with C(index) and optionally C(uuid), C(minor), C(numa_node), C(cpus).
    type: list
    elements: raw
    required: true
  tensor_parallel:
    description: GPUs that one instance spans.
    type: int
    default: 1
  base_port:
    description: HTTP port of GPU 0.
    type: int
    default: 30000
  other_ports:
    description: Ports of other services of the host, by what they are for.
    type: dict
    default: {}
"""
