"""Writes a model directory of random bytes: two shards of 8 MB, what stands beside them, and their SHA256SUMS."""

import hashlib
import json
import os
import struct
import sys
from pathlib import Path

SHARD_BYTES = 8_000_000

directory = Path(sys.argv[1])
directory.mkdir(parents=True)
header = json.dumps({"t": {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": [0, SHARD_BYTES]}}).encode()
shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
for shard in shards:
    (directory / shard).write_bytes(struct.pack("<Q", len(header)) + header + os.urandom(SHARD_BYTES))
index = {"weight_map": {f"t{number}": shard for number, shard in enumerate(shards)}}
(directory / "model.safetensors.index.json").write_text(json.dumps(index))
(directory / "config.json").write_text("{}")
(directory / "consolidated.pth").write_bytes(b"not wanted")
sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(directory.iterdir())]
(directory / "SHA256SUMS").write_text("".join(sums))
