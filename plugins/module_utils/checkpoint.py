"""What a model directory holds: bytes, layers, KV and state sizes, read from config.json and safetensors headers.

    read_checkpoint(Path("/models/Qwen3.6-27B")) -> Checkpoint

Only headers are read, never tensor data. Sizes per GPU divide by tensor parallelism as SGLang's loader and pools do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import FleetError
from .safetensors import INDEX, read_header

HYBRID = "hybrid"
MHA = "mha"
MLA = "mla"

_FAMILIES = {
    **dict.fromkeys(
        (
            "Qwen3NextForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen4ExpForCausalLM",
            "Qwen4ExpForConditionalGeneration",
        ),
        HYBRID,
    ),
    **dict.fromkeys(
        (
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "DeepseekV32ForCausalLM",
            "GlmMoeDsaForCausalLM",
            "KimiK25ForConditionalGeneration",
        ),
        MLA,
    ),
    **dict.fromkeys(
        (
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen2_5_VLForConditionalGeneration",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Glm4MoeForCausalLM",
            "MiniMaxM2ForCausalLM",
        ),
        MHA,
    ),
}

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_CONV_DTYPE_BYTES = 2


@dataclass(frozen=True)
class Linear:
    """The linear-attention (GDN) layers of a hybrid model, and the size of one request's recurrent state."""

    layers: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int
    ssm_dtype: str

    def conv_bytes(self, tensor_parallel: int) -> int:
        """Convolution state of one slot on one rank, in bytes (SGLang keeps it in 2-byte floats)."""
        channels = (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) // tensor_parallel
        return self.layers * channels * (self.conv_kernel - 1) * _CONV_DTYPE_BYTES

    def ssm_bytes(self, tensor_parallel: int, dtype: str | None) -> int:
        """SSM state of one slot on one rank, in bytes; `dtype` overrides the checkpoint's."""
        heads = self.value_heads // tensor_parallel
        return self.layers * heads * self.value_dim * self.key_dim * DTYPE_BYTES[dtype or self.ssm_dtype]

    def slot_bytes(self, tensor_parallel: int, dtype: str | None) -> int:
        """One slot of the state cache on one rank, in bytes."""
        return self.conv_bytes(tensor_parallel) + self.ssm_bytes(tensor_parallel, dtype)


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint over all ranks.

    Attributes:
        target_bytes: what the target model loads.
        draft_bytes: what the MTP draft loads, with its own copy of embedding and head.
        shared_bytes: the part of draft_bytes that is given back once embedding and head are shared.
        files_bytes: the model directory's weight files, as staged into tmpfs.
        largest_tensor_bytes: of any single tensor.
        estimated: counted from config.json because there are no shards.
    """

    target_bytes: int
    draft_bytes: int
    shared_bytes: int
    files_bytes: int
    largest_tensor_bytes: int
    estimated: bool


@dataclass(frozen=True)
class Checkpoint:
    """One model directory.

    Attributes:
        experts: routed experts of a layer; 0 for a dense model.
        family: "hybrid" (GDN and attention), "mha" or "mla".
        attention_layers: layers that keep KV.
        draft_layers: MTP layers; 0 where the model has none.
        draft_layers_announced: MTP layers that config.json announces in SGLang's own key, which charges their KV.
        kv_row_bytes fields: kv_heads, head_dim, v_head_dim, or for MLA kv_lora_rank, rope_dim, index_dim.
        vision: (layers, hidden size) of the vision encoder, or None for a text-only model.
        quantization: quant_method of config.json, or None.
        kv_quantized: `auto` means fp8 for the KV cache.
        rotary_dim: dimensions of a head that are rotated, for which the engine keeps a table over all positions.
        expanded_kv_elements: elements of MLA's matrices that expand the compressed KV, of all layers.
        weights: None where the directory holds no shards and config.json cannot tell (quantised models).
    """

    path: Path
    architecture: str
    model_type: str
    family: str
    dtype: str
    quantization: str | None
    kv_quantized: bool
    context_length: int
    hidden_size: int
    experts: int
    layers: int
    attention_layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    rope_dim: int
    index_dim: int
    linear: Linear | None
    draft_layers: int
    draft_layers_announced: int
    vision: tuple[int, int] | None
    rotary_dim: int
    expanded_kv_elements: int
    weights: Weights | None

    def kv_dtype_bytes(self, kv_dtype: str) -> int:
        """Bytes of one KV element; `auto` follows the checkpoint."""
        if kv_dtype == "auto":
            return 1 if self.kv_quantized else DTYPE_BYTES[self.dtype]
        return DTYPE_BYTES[kv_dtype]

    def derived_bytes(self, tensor_parallel: int) -> int:
        """What loading computes beside the tensors on one rank, in bytes.

        The rotary table is float32; MLA keeps its expansion of the compressed KV a second time, rearranged.
        """
        rotary = self.context_length * self.rotary_dim * DTYPE_BYTES["float32"]
        return rotary + self.expanded_kv_elements // tensor_parallel * DTYPE_BYTES.get(self.dtype, 2)

    def kv_layer_bytes(self, kv_dtype: str, tensor_parallel: int) -> int:
        """KV bytes of one token in one attention layer on one rank, without a sparse indexer's keys."""
        size = self.kv_dtype_bytes(kv_dtype)
        if self.family == MLA:
            return (self.kv_lora_rank + self.rope_dim) * size
        return max(1, self.kv_heads // tensor_parallel) * (self.head_dim + self.v_head_dim) * size

    def index_layer_bytes(self) -> int:
        """Indexer keys of one token in one layer of a sparse-attention MLA model: one byte each, scales per 128."""
        return self.index_dim + self.index_dim // 128 * 4

    def kv_token_bytes(self, kv_dtype: str, tensor_parallel: int) -> int:
        """KV bytes of one token on one rank over all attention layers, indexer keys included."""
        return self.attention_layers * (self.kv_layer_bytes(kv_dtype, tensor_parallel) + self.index_layer_bytes())

    def draft_kv_token_bytes(self, kv_dtype: str, tensor_parallel: int) -> int:
        """KV bytes of one token on one rank in the MTP layers, at least one."""
        return max(1, self.draft_layers) * (self.kv_layer_bytes(kv_dtype, tensor_parallel) + self.index_layer_bytes())


def read_checkpoint(path: Path, shards: bool = True) -> Checkpoint:
    """Read a model directory.

    Args:
        path: directory with config.json and safetensors shards. Without any shard the weights of an unquantised model
            are counted from config.json.
        shards: read the shards; False where the caller knows the weights' size.

    Raises FleetError for a missing or truncated config.json, an unknown architecture, a missing, short or corrupt
    shard, and a Git-LFS pointer in the place of a shard.
    """
    config = _read_config(path)
    text: dict[str, Any] = (
        {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    )
    architecture, family = _family(path, config)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    quantization = quantization if isinstance(quantization, dict) else {}
    vision = config.get("vision_config")

    def number(name: str, default: int | None = None) -> int:
        value = text.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FleetError(
                f"a whole number {name} in {path / 'config.json'}", repr(value), "complete or re-download config.json"
            )
        return value

    layers = number("num_hidden_layers")
    attention_layers = layers
    linear = None
    if family == HYBRID:
        kinds = text.get("layer_types")
        if isinstance(kinds, list) and kinds:
            attention_layers = sum(kind == "full_attention" for kind in kinds)
        else:
            attention_layers = layers // number("full_attention_interval")
        linear = Linear(
            layers=layers - attention_layers,
            key_heads=number("linear_num_key_heads"),
            key_dim=number("linear_key_head_dim"),
            value_heads=number("linear_num_value_heads"),
            value_dim=number("linear_value_head_dim"),
            conv_kernel=number("linear_conv_kernel_dim"),
            ssm_dtype=str(text.get("mamba_ssm_dtype") or "float32"),
        )
    heads = number("num_attention_heads")
    head_dim = number("head_dim", number("hidden_size") // heads) if family != MLA else 0
    announced = number("num_nextn_predict_layers", 0)
    checkpoint = Checkpoint(
        path=path,
        architecture=architecture,
        model_type=str(config.get("model_type", "")),
        family=family,
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
        quantization=quantization.get("quant_method"),
        kv_quantized=str(quantization.get("kv_cache_quant_algo", "")).upper() == "FP8",
        context_length=number("max_position_embeddings"),
        hidden_size=number("hidden_size"),
        experts=_experts(text),
        layers=layers,
        attention_layers=attention_layers,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=head_dim,
        v_head_dim=head_dim,
        kv_lora_rank=number("kv_lora_rank") if family == MLA else 0,
        rope_dim=number("qk_rope_head_dim") if family == MLA else 0,
        index_dim=number("index_head_dim", 0) if family == MLA else 0,
        linear=linear,
        draft_layers=announced or number("mtp_num_hidden_layers", 1 if architecture == "Qwen3NextForCausalLM" else 0),
        draft_layers_announced=announced,
        vision=(vision.get("num_hidden_layers", 24), vision.get("hidden_size", 1024))
        if isinstance(vision, dict)
        else None,
        rotary_dim=_rotary_dim(text, family, head_dim),
        expanded_kv_elements=layers
        * heads
        * (number("qk_nope_head_dim") + number("v_head_dim"))
        * number("kv_lora_rank")
        if family == MLA
        else 0,
        weights=None,
    )
    tensors, files_bytes = _read_tensors(path) if shards else ([], 0)
    if tensors:
        return replace(checkpoint, weights=_weigh(checkpoint, tensors, files_bytes))
    if checkpoint.quantization is not None:
        return checkpoint
    return replace(checkpoint, weights=_estimate(checkpoint, text, vision if isinstance(vision, dict) else None))


def _experts(text: Mapping[str, Any]) -> int:
    return int(text.get("num_experts") or text.get("n_routed_experts") or text.get("num_local_experts") or 0)


def _rotary_dim(text: Mapping[str, Any], family: str, head_dim: int) -> int:
    if family == MLA:
        return int(text["qk_rope_head_dim"])
    share = (text.get("rope_parameters") or {}).get("partial_rotary_factor") or text.get("partial_rotary_factor")
    return int(head_dim * (share or (0.25 if family == HYBRID else 1.0)))


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FleetError(
            f"a model directory with {file}", "no such file", "correct the path of the checkpoint"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"a readable {file}", str(error), "correct its permissions or download it again") from None
    except json.JSONDecodeError as error:
        raise FleetError(f"complete JSON in {file}", f"{error}", "download config.json again") from None
    if not isinstance(config, dict):
        raise FleetError(f"a JSON object in {file}", type(config).__name__, "download config.json again")
    return config


def _family(path: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise FleetError(f"architectures in {path / 'config.json'}", repr(architectures), "download config.json again")
    name = str(architectures[0])
    if name not in _FAMILIES:
        raise FleetError(
            f"an architecture whose memory is known ({', '.join(sorted(_FAMILIES))})",
            name,
            "plan a known model, or add the architecture to checkpoint.py with its KV and state sizes",
        )
    return name, _FAMILIES[name]


@dataclass(frozen=True)
class _Tensor:
    """One tensor of a shard; a float32 matrix may be loaded in a narrower type."""

    name: str
    bytes: int
    may_narrow: bool


def _read_tensors(path: Path) -> tuple[list[_Tensor], int]:
    """All tensors of a model directory and the bytes of its shards; empty without any shard."""
    index_file = path / INDEX
    weight_map: dict[str, str] = {}
    if index_file.exists():
        try:
            weight_map = dict(json.loads(index_file.read_text(encoding="utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FleetError(
                f"a weight_map in {index_file}", f"a corrupt file ({error})", "download the index again"
            ) from None
        files = [path / name for name in sorted(set(weight_map.values()))]
    else:
        files = sorted(path.glob("*.safetensors"))
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise FleetError(
            f"{len(files)} shards named by {index_file}",
            f"{len(missing)} of them missing ({', '.join(missing[:3])}{', …' if len(missing) > 3 else ''})",
            "download the missing shards",
        )
    tensors = [
        _Tensor(
            name=name,
            bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
            may_narrow=entry["dtype"] == "F32" and len(entry["shape"]) > 1,
        )
        for file in files
        for name, entry in read_header(file).items()
    ]
    absent = set(weight_map) - {tensor.name for tensor in tensors}
    if absent:
        raise FleetError(
            f"every tensor named by {index_file} in the shards",
            f"{len(absent)} absent ({sorted(absent)[0]}, …)",
            "download index and shards of one revision",
        )
    return tensors, sum(file.stat().st_size for file in files)


def _weigh(checkpoint: Checkpoint, tensors: list[_Tensor], files_bytes: int) -> Weights:
    narrow = DTYPE_BYTES.get(checkpoint.dtype, 2) / 4 if checkpoint.quantization is None else 1.0
    target = draft = embedding = head = largest = 0
    for tensor in tensors:
        size = int(tensor.bytes * narrow) if tensor.may_narrow else tensor.bytes
        largest = max(largest, tensor.bytes)
        is_draft = _is_draft(tensor.name, checkpoint.layers)
        if tensor.name.endswith("embed_tokens.weight"):
            embedding = max(embedding, size)
        elif tensor.name.endswith(("lm_head.weight", "shared_head.head.weight")):
            head = max(head, size)
        elif is_draft:
            draft += size
        if not is_draft:
            target += size
    shared = embedding + head
    return Weights(
        target_bytes=target,
        draft_bytes=draft + shared if draft else 0,
        shared_bytes=shared if draft else 0,
        files_bytes=files_bytes,
        largest_tensor_bytes=largest,
        estimated=False,
    )


def _is_draft(name: str, layers: int) -> bool:
    parts = name.split(".")
    if "mtp" in parts:
        return True
    if "layers" in parts[:-1]:
        number = parts[parts.index("layers") + 1]
        return number.isdigit() and int(number) >= layers
    return False


def _estimate(checkpoint: Checkpoint, text: Mapping[str, Any], vision: Mapping[str, Any] | None) -> Weights | None:
    """Count an unquantised model's parameters from its shape; None where config.json does not give it."""
    if "vocab_size" not in text or "hidden_size" not in text:
        return None
    hidden = int(text["hidden_size"])
    heads = int(text["num_attention_heads"])
    experts = checkpoint.experts
    dense_mlp = 3 * hidden * int(text.get("intermediate_size") or 0)
    moe_width = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0)
    shared_width = int(
        text.get("shared_expert_intermediate_size") or moe_width * int(text.get("n_shared_experts") or 0)
    )
    moe_mlp = experts * (3 * hidden * moe_width + hidden) + 3 * hidden * shared_width
    mlp = moe_mlp if experts else dense_mlp
    dense_layers = int(text.get("first_k_dense_replace") or 0) if experts else 0
    if checkpoint.family == MLA:
        rope, value = checkpoint.rope_dim, int(text["v_head_dim"])
        plain = int(text["qk_nope_head_dim"])
        rank = text.get("q_lora_rank")
        query = hidden * rank + rank * heads * (plain + rope) if rank else hidden * heads * (plain + rope)
        compressed = hidden * (checkpoint.kv_lora_rank + rope) + checkpoint.kv_lora_rank * heads * (plain + value)
        attention = query + compressed + heads * value * hidden
    else:
        gate = 2 if text.get("attn_output_gate", checkpoint.family == HYBRID) else 1
        attention = hidden * checkpoint.head_dim * ((1 + gate) * heads + 2 * checkpoint.kv_heads)
    mixing = 0
    if checkpoint.linear is not None:
        linear = checkpoint.linear
        keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
        mixing = hidden * (2 * keys + 3 * values + 2 * linear.value_heads) + (2 * keys + values) * linear.conv_kernel
        mixing *= linear.layers
    embedding = int(text["vocab_size"]) * hidden
    shared = embedding * (1 if text.get("tie_word_embeddings") else 2)
    target = (
        shared
        + checkpoint.attention_layers * attention
        + mixing
        + (checkpoint.layers - dense_layers) * mlp
        + dense_layers * dense_mlp
    )
    if vision is not None and "depth" in vision:
        width = int(vision["hidden_size"])
        merged = width * int(vision.get("spatial_merge_size", 2)) ** 2
        target += int(vision["depth"]) * (4 * width**2 + 2 * width * int(vision.get("intermediate_size", 4 * width)))
        target += merged**2 + merged * int(vision.get("out_hidden_size", hidden))
        patch = int(vision.get("in_channels", 3)) * int(vision.get("patch_size", 16)) ** 2
        target += width * (
            int(vision.get("num_position_embeddings", 0)) + patch * int(vision.get("temporal_patch_size", 1))
        )
    own_draft = checkpoint.draft_layers * (attention + mlp + 2 * hidden**2)
    size = DTYPE_BYTES.get(checkpoint.dtype, 2)
    return Weights(
        target_bytes=target * size,
        draft_bytes=(own_draft + shared) * size if own_draft else 0,
        shared_bytes=shared * size if own_draft else 0,
        files_bytes=(target + own_draft) * size,
        largest_tensor_bytes=embedding * size,
        estimated=True,
    )
