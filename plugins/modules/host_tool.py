#!/usr/bin/python
"""Install the command sglang-fleet on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_tool
short_description: Install the command that a host's units call
description:
  - Packs the collection's core into one executable Python file and installs it on the host, owned by root.
  - systemd units call it to check a host before an engine starts, without Ansible and without SGLang.
options:
  path:
    description: Where the command is installed.
    type: path
    required: true
attributes:
  check_mode:
    description: Reports whether the command would change, and writes nothing.
    support: full
  diff_mode:
    description: Shows the digests of the installed and of the new command.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Install the host tool
  llmops.fleet.host_tool:
    path: /usr/local/bin/sglang-fleet
"""

RETURN = r"""
sha256:
  description: Digest of the command after the run.
  type: str
  returned: always
"""

import hashlib
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils import cli  # noqa: F401  (brings all of the core along)
from ansible_collections.llmops.fleet.plugins.module_utils.zipapp import build


def main() -> None:
    module = AnsibleModule({"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path = Path(module.params["path"])
    tool = build()
    wanted = hashlib.sha256(tool).hexdigest()
    installed = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    changed = installed != wanted
    if changed and not module.check_mode:
        with tempfile.NamedTemporaryFile(dir=module.tmpdir, delete=False) as new:
            new.write(tool)
        module.atomic_move(new.name, str(path))
    if path.is_file():
        changed = module.set_mode_if_different(str(path), "0755", changed)
    module.exit_json(
        changed=changed,
        sha256=wanted,
        diff={
            "before_header": str(path),
            "after_header": str(path),
            "before": f"{installed}\n" if installed else "",
            "after": f"{wanted}\n",
        },
    )


if __name__ == "__main__":
    main()
