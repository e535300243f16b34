#!/usr/bin/env python3
"""Make a tiny model with random weights and a tokenizer of its own: nothing is fetched, only Python's library is used.

Usage: make_model.py DIRECTORY            a Qwen3, which a CPU serves at more than a hundred tokens per second
       make_model.py --hybrid DIRECTORY   a Qwen3.5 with linear-attention layers and MTP: about one token per second

The same files come out every time. It never emits an end token, so that a completion is as long as was asked for.
"""

from __future__ import annotations

import argparse
import json
import math
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
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 128, 256, 4, 2
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_DIM, CONV_KERNEL = 2, 4, 32, 4

Shapes = dict[str, tuple[int, ...]]


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


def tokenizer_files() -> dict[str, Any]:
    """The tokenizer and what goes with it, by file name."""
    return {
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 4096,
            "bos_token": None,
            "eos_token": SPECIAL_TOKENS[END_ID],
            "pad_token": SPECIAL_TOKENS[PAD_ID],
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {"eos_token_id": END_ID, "pad_token_id": PAD_ID},
    }


def config(vocabulary_size: int, hybrid: bool) -> dict[str, Any]:
    """config.json."""
    common = {
        "dtype": "bfloat16",
        "vocab_size": vocabulary_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }
    if not hybrid:
        return common | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "num_hidden_layers": 2,
            "head_dim": 32,
            "rope_theta": 1000000.0,
        }
    return common | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": CONV_KERNEL,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
    }


def shapes(model: dict[str, Any]) -> Shapes:
    """Every tensor with its shape, by the names of the published checkpoints."""
    tensors: Shapes = {"model.embed_tokens.weight": (model["vocab_size"], HIDDEN)}
    kinds = model.get("layer_types", ["full_attention"] * model["num_hidden_layers"])
    for number, kind in enumerate(kinds):
        tensors |= layer(f"model.layers.{number}.", kind, model)
    tensors |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (model["vocab_size"], HIDDEN)}
    if "mtp_num_hidden_layers" in model:
        tensors |= {
            "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
            "mtp.pre_fc_norm_embedding.weight": (HIDDEN,),
            "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
            **layer("mtp.layers.0.", "full_attention", model),
            "mtp.norm.weight": (HIDDEN,),
        }
    return tensors


def layer(prefix: str, kind: str, model: dict[str, Any]) -> Shapes:
    """One layer: full or linear attention, then the MLP."""
    if kind == "full_attention":
        head_dim = model["head_dim"]
        attention: Shapes = {
            "self_attn.q_proj.weight": (HEADS * head_dim * (2 if "attn_output_gate" in model else 1), HIDDEN),
            "self_attn.k_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.v_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, HEADS * head_dim),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.k_norm.weight": (head_dim,),
        }
    else:
        values = LINEAR_VALUE_HEADS * LINEAR_DIM
        mixed = 2 * LINEAR_KEY_HEADS * LINEAR_DIM + values
        attention = {
            "linear_attn.in_proj_qkv.weight": (mixed, HIDDEN),
            "linear_attn.in_proj_z.weight": (values, HIDDEN),
            "linear_attn.in_proj_b.weight": (LINEAR_VALUE_HEADS, HIDDEN),
            "linear_attn.in_proj_a.weight": (LINEAR_VALUE_HEADS, HIDDEN),
            "linear_attn.conv1d.weight": (mixed, 1, CONV_KERNEL),
            "linear_attn.A_log": (LINEAR_VALUE_HEADS,),
            "linear_attn.dt_bias": (LINEAR_VALUE_HEADS,),
            "linear_attn.norm.weight": (LINEAR_DIM,),
            "linear_attn.out_proj.weight": (HIDDEN, values),
        }
    rest: Shapes = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    return {prefix + name: shape for name, shape in (attention | rest).items()}


def bfloat16(values: list[float]) -> bytes:
    """Each value as the upper half of its float32."""
    packed = struct.pack(f"<{len(values)}f", *values)
    return b"".join(packed[start + 2 : start + 4] for start in range(0, len(packed), 4))


def weights(tensors: Shapes, hybrid: bool) -> bytes:
    """A safetensors file: vectors are neutral (Qwen3.5 adds one to the weight of a norm), the rest is random.

    The first channel of every embedding is large, and the head turns it against all tokens but whole words: generated
    text consists of words and has no end.
    """
    source = random.Random(0)
    header: dict[str, dict[str, Any]] = {}
    body = bytearray()
    for name, shape in tensors.items():
        count = math.prod(shape)
        neutral = 1.0 if name.endswith("linear_attn.norm.weight") or not hybrid else 0.0
        values = [neutral] * count if len(shape) == 1 else [source.gauss(0.0, 0.08) for _ in range(count)]
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
    parser.add_argument("--hybrid", action="store_true")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    directory, hybrid = options.directory, options.hybrid
    files = tokenizer_files()
    model = config(len(files["tokenizer.json"]["model"]["vocab"]), hybrid)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(weights(shapes(model), hybrid))
    for name, content in {**files, "config.json": model}.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"{directory}: {model['vocab_size']} tokens in the vocabulary, {model['num_hidden_layers']} layers")


if __name__ == "__main__":
    main()
