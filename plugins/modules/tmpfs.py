#!/usr/bin/python
"""Give a tmpfs the size that weights need, now and after a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tmpfs
short_description: Make a tmpfs large enough, now and after a reboot
description:
  - Mounts a tmpfs, or grows a mounted one in place without unmounting it; a larger one is left as it is.
  - Keeps the size in /etc/fstab.
options:
  path:
    description: Mount point, such as /dev/shm.
    type: path
    required: true
  size_gib:
    description: Least size in GiB.
    type: float
    required: true
  options:
    description: Further mount options, such as C(huge=within_size) or C(mpol=interleave).
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reports the size and the fstab line that would be set, and changes neither.
    support: full
  diff_mode:
    description: Shows size and /etc/fstab before and after.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Make room for a model of 52 GiB
  llmops.fleet.tmpfs:
    path: /dev/shm
    size_gib: 64
"""

RETURN = r"""
size_bytes:
  description: Size of the mount after the run; in check mode as it would be.
  type: int
  returned: always
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.tmpfs import (
    Tmpfs,
    check_against_ram,
    mounted_size_bytes,
    size_in_fstab_bytes,
)
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

FSTAB = Path("/etc/fstab")


def main() -> None:
    module = AnsibleModule(
        {
            "path": {"type": "path", "required": True},
            "size_gib": {"type": "float", "required": True},
            "options": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    wanted = Tmpfs(module.params["path"], int(module.params["size_gib"] * GIB), tuple(module.params["options"]))
    mem_total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        check_against_ram(wanted, mem_total_bytes)
        size_bytes = mounted_size_bytes(wanted.path)
    except FleetError as error:
        module.fail_json(msg=str(error))
    fstab = FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""
    grow = size_bytes is None or size_bytes < wanted.size_bytes
    lasting_bytes = size_in_fstab_bytes(fstab, wanted.path, mem_total_bytes)
    lasts = not grow if lasting_bytes is None else lasting_bytes >= wanted.size_bytes
    after_fstab = fstab if lasts else wanted.in_fstab(fstab)
    changed = grow or after_fstab != fstab

    if changed and not module.check_mode:
        if size_bytes is None:
            Path(wanted.path).mkdir(parents=True, exist_ok=True)
            mount = ["mount", "-t", "tmpfs", "-o", wanted.mount_options(), "tmpfs", wanted.path]
        else:
            mount = ["mount", "-o", f"remount,{wanted.mount_options()}", wanted.path]
        if grow:
            module.run_command(mount, check_rc=True)
        if after_fstab != fstab:
            FSTAB.write_text(after_fstab, encoding="utf-8")

    after_bytes = wanted.size_bytes if grow else size_bytes
    module.exit_json(
        changed=changed,
        size_bytes=after_bytes,
        diff=[
            {
                "before_header": wanted.path,
                "before": f"{size_bytes}\n",
                "after_header": wanted.path,
                "after": f"{after_bytes}\n",
            },
            {"before_header": str(FSTAB), "before": fstab, "after_header": str(FSTAB), "after": after_fstab},
        ],
    )


if __name__ == "__main__":
    main()
