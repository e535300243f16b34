"""Makes small model directories of random bytes in real safetensors shards."""

import json
import random
import struct


def write_shard(path, tensor_bytes, seed):
    header = json.dumps({"t": {"dtype": "U8", "shape": [tensor_bytes], "data_offsets": [0, tensor_bytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(tensor_bytes))


def make_model(directory, shards=3, shard_bytes=300_000, seed=0):
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"model-{number}-of-{shards}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        write_shard(directory / name, shard_bytes + number, seed + number)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {f"t{number}": name for number, name in enumerate(names)}})
    )
    (directory / "tokenizer").mkdir(exist_ok=True)
    (directory / "tokenizer/vocab.txt").write_text("a\nb\n")
    (directory / "empty.txt").write_text("")
    return directory
