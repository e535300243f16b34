#!/usr/bin/python
"""Ansible module: write the units, arguments, environments and records of a host's engines."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instances
short_description: Write the systemd units and configuration of all engines of a host
version_added: 0.1.0
description:
  - Renders one template unit, its slice and liveness check, and for each instance a drop-in, an argument file, an
    environment file and a record; compares them with the host and writes what differs.
  - Has C(systemd-analyze verify) read the units before they are installed.
  - Starts and stops nothing. Says which running engines were started with another configuration.
author: llmops.fleet maintainers
extends_documentation_fragment: [llmops.fleet.layout]
options:
  user:
    description: System user that the engines run as.
    type: str
    required: true
  group:
    description: Its group.
    type: str
    required: true
  host_tool:
    description: Path of sglang-fleet on the host.
    type: path
    required: true
  accelerator:
    description: What the engines compute on.
    type: str
    choices: [cuda, cpu]
    default: cuda
  engine_version:
    description: SGLang release.
    type: str
    required: true
  engine_path:
    description: Directory of the engine's environment, which has C(bin/python).
    type: path
    required: true
  plan:
    description: The result of M(llmops.fleet.capacity_plan) for these GPUs, made with C(resolve).
    type: dict
    required: true
  allow_known_bad:
    description: Warn about combinations that are known to fail, instead of refusing them.
    type: bool
    default: false
  model_path:
    description: Directory of the staged model.
    type: path
    required: true
  served_model_name:
    description: Name under which clients ask for the model.
    type: str
    required: true
  listen:
    description: Address that the engines bind.
    type: str
    default: 127.0.0.1
  advertise:
    description: Address at which routers reach this host.
    type: str
    default: 127.0.0.1
  networks:
    description: Networks, besides the host itself, that engines may exchange packets with.
    type: list
    elements: str
    default: []
  routers:
    description: C(url) and C(api_key_file) of each router that sends requests to these engines.
    type: list
    elements: dict
    default: []
    suboptions:
      url:
        description: Base URL of the router.
        type: str
        required: true
      api_key_file:
        description: File on this host that holds the router's API key.
        type: path
  extra_args:
    description: Further arguments of SGLang.
    type: list
    elements: str
    default: []
  environment:
    description: Further environment variables of the engines. Not for secrets.
    type: dict
    default: {}
  start_timeout_s:
    description: Longest time in seconds from a start to its first token; scaled by what must be loaded where absent.
    type: int
  stop_timeout_s:
    description: >-
      Longest time in seconds for requests in flight to finish and the engine to end; scaled by the longest sequence
      where absent.
    type: int
  restart_delay_s:
    description: Seconds that systemd waits before it restarts an engine that ended.
    type: int
    default: 10
  start_limit:
    description: Starts in a row after which systemd leaves a failing engine down.
    type: int
    default: 5
  warmup_requests:
    description: Requests sent at once before a worker is registered.
    type: int
    default: 8
  probe_interval_s:
    description: Seconds between two liveness checks.
    type: int
    default: 30
  probe_timeout_s:
    description: Seconds within which a liveness check must get its token.
    type: int
    default: 60
  probe_failures:
    description: Failed liveness checks in a row after which an engine is replaced.
    type: int
    default: 3
  root:
    description: Directory that stands for the host's root; anything but C(/) writes the files there and looks at no
      unit.
    type: path
    default: /
attributes:
  check_mode:
    description: Reports what would be written, and writes nothing.
    support: full
  diff_mode:
    description: Shows each file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Write two engines
  llmops.fleet.instances:
    gpus: [0, 1]
    user: sglang
    group: sglang
    host_tool: /usr/local/bin/sglang-fleet
    engine_version: 0.5.23
    engine_path: /opt/sglang/0.5.23
    plan: "{{ plan }}"
    model_path: /dev/shm/sglang/Qwen3.6-27B
    served_model_name: Qwen3.6-27B
"""

RETURN = r"""
instances:
  description: Name, unit, URL, arguments and environment of each instance.
  returned: success
  type: list
  elements: dict
  sample:
    - name: "0"
      unit: sglang@0.service
      url: http://127.0.0.1:30000
      arguments: [--port=30000]
      environment: {HF_HUB_OFFLINE: "1"}
start_timeout_s:
  description: Longest time in seconds that a start may take.
  returned: success
  type: int
differing:
  description: Paths of the files that were not as wanted.
  returned: success
  type: list
  elements: str
stale:
  description: Instances that run with another configuration than the wanted one.
  returned: success
  type: list
  elements: str
obsolete:
  description: Instances configured on the host that are no longer wanted.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.deploy import apply
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.topology import OPTIONS, place
from ansible_collections.llmops.fleet.plugins.module_utils.unit_files import Deployment, HostPlan, render, url

ROUTER = {"url": {"type": "str", "required": True}, "api_key_file": {"type": "path", "no_log": False}}
DEPLOYMENT = {
    "user": {"type": "str", "required": True},
    "group": {"type": "str", "required": True},
    "host_tool": {"type": "path", "required": True},
    "accelerator": {"type": "str", "choices": ["cuda", "cpu"], "default": "cuda"},
    "engine_path": {"type": "path", "required": True},
    "allow_known_bad": {"type": "bool", "default": False},
    "model_path": {"type": "path", "required": True},
    "served_model_name": {"type": "str", "required": True},
    "listen": {"type": "str", "default": "127.0.0.1"},
    "advertise": {"type": "str", "default": "127.0.0.1"},
    "networks": {"type": "list", "elements": "str", "default": []},
    "routers": {"type": "list", "elements": "dict", "default": [], "options": ROUTER},
    "extra_args": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "start_timeout_s": {"type": "int"},
    "stop_timeout_s": {"type": "int"},
    "restart_delay_s": {"type": "int", "default": 10},
    "start_limit": {"type": "int", "default": 5},
    "warmup_requests": {"type": "int", "default": 8},
    "probe_interval_s": {"type": "int", "default": 30},
    "probe_timeout_s": {"type": "int", "default": 60},
    "probe_failures": {"type": "int", "default": 3},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            **DEPLOYMENT,
            "engine_version": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        placements = place(**{key: module.params[key] for key in OPTIONS})
        deployment = Deployment(
            release=Release.parse(module.params["engine_version"]),
            **{key: tuple(value) if isinstance(value := module.params[key], list) else value for key in DEPLOYMENT},
        )
        rendering = render(deployment, placements, HostPlan.from_mapping(module.params["plan"]))
        written = apply(rendering.files, placements, root=Path(module.params["root"]), check=module.check_mode)
    except FleetError as error:
        module.fail_json(msg=str(error))
    for warning in rendering.warnings:
        module.warn(warning)
    module.exit_json(
        changed=bool(written.changes),
        diff=[change.diff() for change in written.changes],
        instances=[
            {
                "name": placement.name,
                "unit": placement.unit,
                "url": url(deployment.advertise, placement.port),
                "arguments": rendering.command_lines[placement.name].argv(),
                "environment": {name: value for name, value, _ in rendering.command_lines[placement.name].environment},
            }
            for placement in placements
        ],
        start_timeout_s=rendering.start_timeout_s,
        differing=[change.path for change in written.changes],
        stale=list(written.stale),
        obsolete=list(written.obsolete),
    )


if __name__ == "__main__":
    main()
