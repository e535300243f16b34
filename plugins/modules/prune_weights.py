#!/usr/bin/python
"""Remove the revisions of a model that nobody uses any more."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune_weights
short_description: Remove unused revisions of a staged model
description:
  - Removes every other staged revision of the model at I(keep) that no engine instance names, that no process has on
    its command line, and of which no process has a file open or mapped.
  - Removes nothing while I(keep) itself is not whole.
options:
  keep:
    description: Directory of the wanted revision. Other revisions lie beside it.
    type: path
    required: true
  instances_dir:
    description: Directory of the records of engine instances.
    type: path
    default: /etc/sglang/instances
  persistent_dir:
    description: Directory of copies on disk, which go with their revision.
    type: path
    required: true
attributes:
  check_mode:
    description: Says what would be removed, and removes nothing.
    support: full
  diff_mode:
    description: Lists the revisions before and after.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Remove revisions that no engine uses
  llmops.fleet.prune_weights:
    keep: /dev/shm/sglang/Qwen3.6-27B-0123456789ab
    persistent_dir: /var/lib/sglang/models
"""

RETURN = r"""
removed:
  description: Names of the directories that went.
  type: list
  elements: str
  returned: always
freed_bytes:
  description: Bytes that this freed in memory.
  type: int
  returned: always
in_use:
  description: Directories that stay, each with those who use it.
  type: dict
  returned: always
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.weights_use import other_revisions, remove


def main() -> None:
    module = AnsibleModule(
        {
            "keep": {"type": "path", "required": True},
            "instances_dir": {"type": "path", "default": "/etc/sglang/instances"},
            "persistent_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    keep = Path(module.params["keep"])
    not_yet_staged = module.check_mode and not keep.exists()
    try:
        revisions = () if not_yet_staged else other_revisions(keep, Path(module.params["instances_dir"]))
    except FleetError as error:
        module.fail_json(msg=str(error))
    unused = [revision for revision in revisions if not revision.users]
    if not module.check_mode:
        for revision in unused:
            remove(revision, Path(module.params["persistent_dir"]))
    module.exit_json(
        changed=bool(unused),
        removed=[revision.path.name for revision in unused],
        freed_bytes=sum(revision.manifest.size_bytes for revision in unused),
        in_use={revision.path.name: revision.users for revision in revisions if revision.users},
        diff={
            "before": "".join(f"{revision.path}\n" for revision in revisions),
            "after": "".join(f"{revision.path}\n" for revision in revisions if revision.users),
        },
    )


if __name__ == "__main__":
    main()
