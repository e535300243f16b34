#!/usr/bin/env python3
"""Make a tiny Qwen3 with random weights and a tokenizer of its own: nothing is fetched, only Python's library is used.

Usage: make_model.py DIRECTORY

The same files come out every time. It never emits an end token, so that a completion is as long as was asked for.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD_ID, END_ID = 0, 2
WORDS = """
a all and answer are at batch begin by cache chat check clear completion count deploy drain draft end engine every first
fleet for free from generate good graph green hold host in is it kernel key keep layer load long memory model new next
no node not now of on one open or over pause plan port prefill prompt quiet queue reads ready register request return
roll router run safe server shard short slot small start state steady stop stream system that the then this time to
token tree two unit use verify wait warm weight when while will with work worker write
""".split()  # noqa: SIM905
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 2, 4, 2, 32


def byte_alphabet() -> list[str]:
    """The 256 printable characters by which byte-level BPE writes bytes, in byte order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: bytes, the beginnings that merges go through, then whole words with their leading space."""
    alphabet = byte_alphabet()
    space = alphabet[ord(" ")]
    words = [space + word for word in WORDS]
    pieces = dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1))
    beginnings = [piece for piece in pieces if piece not in words]
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *alphabet, *beginnings, *words))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "special": True,
                "normalized": False,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
            }
            for token in SPECIAL_TOKENS
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [[piece[:-1], piece[-1]] for piece in pieces],
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
        },
    }


def config(vocabulary_size: int) -> dict[str, Any]:
    """config.json of a Qwen3 that a CPU serves at more than a hundred tokens per second."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": vocabulary_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }


def shapes(vocabulary_size: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model with its shape, by the names of the Qwen3 checkpoints."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary_size, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            prefix + "self_attn.q_norm.weight": (HEAD_DIM,),
            prefix + "self_attn.k_norm.weight": (HEAD_DIM,),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return tensors | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocabulary_size, HIDDEN)}


def bfloat16(values: list[float]) -> bytes:
    """Each value as the upper half of its float32."""
    packed = struct.pack(f"<{len(values)}f", *values)
    return b"".join(packed[start + 2 : start + 4] for start in range(0, len(packed), 4))


def weights(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A safetensors file: norms are ones, the rest is random.

    The first channel of every embedding is large, and the head turns it against all tokens but whole words: generated
    text consists of words and has no end.
    """
    source = random.Random(0)
    header: dict[str, dict[str, Any]] = {}
    body = bytearray()
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = [1.0] * count if len(shape) == 1 else [source.gauss(0.0, 0.08) for _ in range(count)]
        if name == "model.embed_tokens.weight":
            values[::HIDDEN] = [4.0] * shape[0]
        if name == "lm_head.weight":
            values[::HIDDEN] = [-16.0] * (shape[0] - len(WORDS)) + [0.0] * len(WORDS)
        start = len(body)
        body += bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    tokens = tokenizer()
    vocabulary_size = len(tokens["model"]["vocab"])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(weights(shapes(vocabulary_size)))
    for name, content in {
        "tokenizer.json": tokens,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 4096,
            "bos_token": None,
            "eos_token": SPECIAL_TOKENS[END_ID],
            "pad_token": SPECIAL_TOKENS[PAD_ID],
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": END_ID, "pad_token_id": PAD_ID},
        "config.json": config(vocabulary_size),
    }.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"{directory}: {vocabulary_size} tokens in the vocabulary, {LAYERS} layers")


if __name__ == "__main__":
    main()
