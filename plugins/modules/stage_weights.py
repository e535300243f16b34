#!/usr/bin/python
"""Put a model where engines load it from, verified, and publish it in one step."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stage_weights
short_description: Stage a model's weights into memory
description:
  - Copies a model directory in parallel, computes every file's sha256 while it passes, and publishes the copy by one
    rename with a READY manifest in it. An engine never sees a half model.
  - Resumes an interrupted copy. Bytes that are staged already are neither copied nor asked room for again.
  - Refuses before it writes when the source is no whole model, or room, inodes or RAM do not suffice.
options:
  source:
    description:
      - Where the model comes from. It must hold config.json and every shard that its index names.
      - A directory on the host; C(https://mirror/model) with a SHA256SUMS or READY; C(hf://organisation/model) with
        I(revision) a commit; C(s3://bucket/prefix) with a SHA256SUMS.
    type: str
    required: true
  path:
    description: Directory to publish the model at.
    type: path
    required: true
  name:
    description: Name of the model, kept in READY.
    type: str
    required: true
  revision:
    description: Revision of the model, kept in READY.
    type: str
    default: ""
  owner:
    description: System user that will own the files.
    type: str
  exclude:
    description: Patterns of files to leave out, relative to the source.
    type: list
    elements: str
    default: []
  token:
    description: Bearer token for a hub or a mirror; servers that these redirect to do not get it.
    type: str
  hub_endpoint:
    description: Address of a hub that is not the public one.
    type: str
  s3:
    description: How a bucket is reached, with the keys endpoint, region, access_key and secret_key, each optional.
    type: dict
  timeout_s:
    description: Longest silence on a connection, in seconds.
    type: float
    default: 60
  attempts:
    description: Tries in a row without one new byte before a server is given up.
    type: int
    default: 6
  files:
    description: What a hub or a bucket holds. Listed by the action plugin on the control machine; leave it out.
    type: list
    elements: dict
    suboptions:
      path:
        description: Path below the model directory.
        type: str
        required: true
      url:
        description: Address to read it from.
        type: str
        required: true
      size_bytes:
        description: Its size.
        type: int
        required: true
      sha256:
        description: Its digest.
        type: str
      git_sha1:
        description: Its identity as a Git blob.
        type: str
  manifest:
    description: READY manifest of a server's directory that came over a trusted way; the server is not asked for one.
    type: str
  state_dir:
    description: Where digests are kept that were learned from a source that states none.
    type: path
    default: /var/lib/sglang
  reserve_gib:
    description: RAM in GiB that staging must leave available.
    type: float
    default: 1
  tmpfs_gib:
    description: Size in GiB of the tmpfs that is going to be mounted as the parent of I(path).
    type: float
  growable:
    description: Do not refuse because a tmpfs is too small; RETURN says how large it must be.
    type: bool
    default: false
  wait_s:
    description: How long to wait for another run on the same path, in seconds.
    type: float
    default: 1800
  stall_s:
    description: Fail after so many seconds without one byte from the source.
    type: float
    default: 300
attributes:
  check_mode:
    description: Says what would be copied, and writes nothing.
    support: full
  diff_mode:
    description: Lists the files with sizes and digests before and after.
    support: full
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: Stage the model
  llmops.fleet.stage_weights:
    source: /srv/models/Qwen3.6-27B
    path: /dev/shm/sglang/Qwen3.6-27B
    name: Qwen3.6-27B
    owner: sglang
"""

RETURN = r"""
remaining_bytes:
  description: Bytes that had to be copied when the run began.
  type: int
  returned: always
size_bytes:
  description: Bytes of the whole model.
  type: int
  returned: always
tmpfs:
  description: >-
    Of the tmpfs that takes the model: mount point, least size in GiB, mount options that suit it. Null elsewhere.
  type: dict
  returned: always
digest:
  description: Identity of the staged content; null in check mode while it is not staged.
  type: str
  returned: always
seconds:
  description: How long copying took.
  type: float
  returned: when something was staged
reading:
  description: How the source was read, and the rates that decided it.
  type: str
  returned: when something was staged
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import (
    Target,
    open_source,
    plan,
    published_listing,
    stage,
)
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB
from ansible_collections.llmops.fleet.plugins.module_utils.weights_http import Access


def main() -> None:
    module = AnsibleModule(
        {
            "source": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "owner": {"type": "str"},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "token": {"type": "str", "no_log": True},
            "timeout_s": {"type": "float", "default": 60.0},
            "attempts": {"type": "int", "default": 6},
            "files": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "path": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True, "no_log": True},
                    "size_bytes": {"type": "int", "required": True},
                    "sha256": {"type": "str"},
                    "git_sha1": {"type": "str"},
                },
            },
            "manifest": {"type": "str"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "reserve_gib": {"type": "float", "default": 1.0},
            "tmpfs_gib": {"type": "float"},
            "growable": {"type": "bool", "default": False},
            "wait_s": {"type": "float", "default": 1800.0},
            "stall_s": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    access = Access(wanted["token"], wanted["timeout_s"], wanted["attempts"])
    target = Target(
        path=Path(wanted["path"]),
        name=wanted["name"],
        revision=wanted["revision"],
        owner=wanted["owner"],
        state_dir=Path(wanted["state_dir"]),
        wait_s=wanted["wait_s"],
        stall_s=wanted["stall_s"],
        reserve_bytes=int(wanted["reserve_gib"] * GIB),
        tmpfs_bytes=None if wanted["tmpfs_gib"] is None else int(wanted["tmpfs_gib"] * GIB),
        growable=wanted["growable"],
    )
    try:
        source = open_source(wanted["source"], wanted["exclude"], access, wanted["files"], wanted["manifest"])
        staging = plan(source, target)
        staged = None if module.check_mode else stage(source, target)
    except FleetError as error:
        module.fail_json(msg=str(error))
    unchanged = staging.published if staging.up_to_date or not module.check_mode else None
    manifest = staged.manifest if staged else unchanged
    module.exit_json(
        changed=not staging.up_to_date if module.check_mode else staged is not None,
        remaining_bytes=staging.remaining_bytes,
        size_bytes=staging.size_bytes,
        tmpfs=staging.tmpfs(),
        digest=manifest.digest if manifest else None,
        **({"seconds": round(staged.seconds, 3), "reading": staged.reading} if staged else {}),
        diff={
            "before_header": wanted["path"],
            "after_header": wanted["path"],
            "before": published_listing(staging.published),
            "after": published_listing(manifest) if manifest else staging.listing(),
        },
    )


if __name__ == "__main__":
    main()
