#!/usr/bin/python
"""Give a tmpfs the size and the options that weights need, now and after a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tmpfs
short_description: Give a tmpfs its size and options, now and after a reboot
description:
  - Mounts a tmpfs, or grows a mounted one in place without unmounting it; a larger one is left as it is.
  - Sets options that a mounted one lacks in the same way.
  - Keeps size and options in /etc/fstab.
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
    description: Reports the mount options and the fstab line that would be set, and changes neither.
    support: full
  diff_mode:
    description: Shows mount options and /etc/fstab before and after.
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
    mounted,
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
        there = mounted(wanted.path)
        if there is None or there.size_bytes < wanted.size_bytes:
            check_against_ram(wanted, mem_total_bytes)
    except FleetError as error:
        module.fail_json(msg=str(error))
    size_bytes = there.size_bytes if there else None
    missing = wanted.lacks(size_bytes, there.options if there else ())
    before_fstab = FSTAB.read_text(encoding="utf-8") if FSTAB.exists() else ""
    after_fstab = wanted.in_fstab(before_fstab, there, mem_total_bytes)

    if not module.check_mode:
        if there is None:
            Path(wanted.path).mkdir(parents=True, exist_ok=True)
            module.run_command(["mount", "-t", "tmpfs", "-o", ",".join(missing), "tmpfs", wanted.path], check_rc=True)
        elif missing:
            module.run_command(["mount", "-o", ",".join(("remount", *missing)), wanted.path], check_rc=True)
        if after_fstab != before_fstab:
            FSTAB.write_text(after_fstab, encoding="utf-8")

    module.exit_json(
        changed=bool(missing) or after_fstab != before_fstab,
        size_bytes=max(size_bytes or 0, wanted.size_bytes),
        diff=[
            {
                "before_header": wanted.path,
                "before": f"{','.join(there.options) if there else 'not mounted'}\n",
                "after_header": wanted.path,
                "after": f"{','.join((*(there.options if there else ()), *missing))}\n",
            },
            {"before_header": str(FSTAB), "before": before_fstab, "after_header": str(FSTAB), "after": after_fstab},
        ],
    )


if __name__ == "__main__":
    main()
