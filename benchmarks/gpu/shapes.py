"""Model directories of real shape without weights: config.json, and the demo's tokenizer.

SGLang fills them with random weights (`--load-format dummy`): what it allocates depends on the shape alone.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

QWEN_3_5 = {
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.6-27b": QWEN_3_5
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
    },
    "qwen3.5-35b-a3b": QWEN_3_5
    | {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "qwen3-32b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1000000,
    },
    "qwen3-1.7b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1000000,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": 102400,
        "max_position_embeddings": 163840,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "rope_theta": 10000,
    },
}
VISION = {
    "model_type": "qwen3_5",
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 5120,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [],
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
}
WITH_VISION = {"qwen3.6-27b-vision": "qwen3.6-27b"}
PREPROCESSOR = {
    "processor_class": "Qwen3VLProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
PREPROCESSORS = {
    "preprocessor_config.json": PREPROCESSOR | {"image_processor_type": "Qwen2VLImageProcessor"},
    "video_preprocessor_config.json": PREPROCESSOR | {"video_processor_type": "Qwen3VLVideoProcessor"},
}
COMMON = {
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "use_cache": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def config(shape: str) -> dict[str, Any]:
    """config.json of a shape."""
    if shape in WITH_VISION:
        text = config(WITH_VISION[shape])
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {name: value for name, value in text.items() if name != "architectures"},
            "vision_config": VISION,
            "vision_start_token_id": 3,
            "vision_end_token_id": 4,
            "image_token_id": 5,
            "video_token_id": 6,
            **{name: COMMON[name] for name in ("tie_word_embeddings", "eos_token_id", "pad_token_id")},
        }
    values = COMMON | SHAPES[shape]
    if interval := values.get("full_attention_interval"):
        values["layer_types"] = [
            "linear_attention" if (layer + 1) % interval else "full_attention"
            for layer in range(values["num_hidden_layers"])
        ]
    return values


def write(shape: str, directory: Path) -> None:
    """Make the model directory."""
    spec = importlib.util.spec_from_file_location("make_model", ROOT / "demo/make_model.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    directory.mkdir(parents=True, exist_ok=True)
    files = demo.tokenizer_files() | {"config.json": config(shape)}
    if shape in WITH_VISION:
        files |= PREPROCESSORS
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
