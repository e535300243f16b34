#!/usr/bin/python
"""Entry of the module llmops.fleet.router_worker."""

from __future__ import annotations

DOCUMENTATION = r"""
module: router_worker
short_description: Have engines in a router's worker list, out of it, or drained
description:
  - Manages the workers of one or several C(sglang-router) over its REST API, for any number of workers in one call.
  - Returns only when every router shows the change.
version_added: 0.1.0
options:
  routers:
    description: The routers, all of which get the change.
    type: list
    elements: dict
    required: true
    suboptions:
      url:
        description: Base URL of the router.
        type: str
        required: true
      api_key_file:
        description: File on the host that holds the router's API key. Without it no key is sent.
        type: path
  workers:
    description: Base URLs of the engines. V(state=listed) takes none.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) adds the workers and waits until they are listed as healthy.
      - V(absent) removes them and waits until they are gone; what is in flight runs on.
      - V(drained) does the same and then waits until they have nothing in flight. To be run on the engines' host.
      - V(listed) changes nothing and returns the lists.
    type: str
    choices: [present, absent, drained, listed]
    default: present
  timeout_seconds:
    description: Longest wait for a list to change, in seconds.
    type: int
    default: 60
  drain_timeout_seconds:
    description: Longest wait for the requests in flight, in seconds.
    type: int
    default: 900
attributes:
  check_mode:
    description: Reports whether a list would change, and changes none.
    support: full
  diff_mode:
    description: Shows the lists before and after.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Take the engine of GPU 0 out and wait until it is idle
  llmops.fleet.router_worker:
    routers:
      - url: http://router-1:8000
        api_key_file: /etc/sglang/router_api_key
    workers: [http://b200-node-1:30000]
    state: drained
"""

RETURN = r"""
workers:
  description: The list of each router after the run, by the router's URL.
  type: dict
  returned: always
  sample:
    http://router-1:8000:
      - {url: "http://b200-node-1:30000", healthy: true, load: 3, model: qwen}
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.router import Router, converge


def main() -> None:
    router_spec = {"url": {"type": "str", "required": True}, "api_key_file": {"type": "path", "no_log": False}}
    module = AnsibleModule(
        {
            "routers": {"type": "list", "elements": "dict", "required": True, "options": router_spec},
            "workers": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent", "drained", "listed"], "default": "present"},
            "timeout_seconds": {"type": "int", "default": 60},
            "drain_timeout_seconds": {"type": "int", "default": 900},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        routers = [Router.from_mapping(router) for router in given["routers"]]
        before, after = converge(
            routers,
            given["workers"],
            given["state"],
            timeout_s=given["timeout_seconds"],
            drain_timeout_s=given["drain_timeout_seconds"],
            pretend=module.check_mode,
        )
        workers = {router.url: [asdict(worker) for worker in router.workers()] for router in routers}
    except FleetError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=before != after, workers=workers, diff={"before": before, "after": after})


if __name__ == "__main__":
    main()
