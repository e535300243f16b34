"""Runs on the GPU machine: give a plain attention model of these shapes random weights, in shards on its disk.

Usage: shards.py DIRECTORY                           (holds config.json)
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

SHARD_BYTES = 2 * 10**9
BLOCK_BYTES = 64 * 2**20


def tensors(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Shapes by the names of the Qwen3 checkpoints."""
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "lm_head.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        found |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (queries, hidden),
                "self_attn.k_proj": (keys, hidden),
                "self_attn.v_proj": (keys, hidden),
                "self_attn.o_proj": (hidden, queries),
                "self_attn.q_norm": (head,),
                "self_attn.k_norm": (head,),
                "mlp.gate_proj": (width, hidden),
                "mlp.up_proj": (width, hidden),
                "mlp.down_proj": (hidden, width),
            }.items()
        }
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    block = os.urandom(BLOCK_BYTES)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in tensors(json.loads((directory / "config.json").read_text())).items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        if filled + size > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += size
    index = {}
    for number, shard in enumerate(shards):
        file = f"model-{number}.safetensors"
        header, end = {}, 0
        for name, shape in shard.items():
            begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            index[name] = file
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _ in range(end // BLOCK_BYTES):
                out.write(block)
            out.write(block[: end % BLOCK_BYTES])
            os.fsync(out.fileno())
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


if __name__ == "__main__":
    main()
