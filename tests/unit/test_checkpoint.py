"""Model directories: sizes from headers and shapes, and everything that can be wrong with them."""

from __future__ import annotations

import json
import struct

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.capacity import plan_from_options
from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.units import GB, GIB

from .planning import MTP, SHAPES, budget, planned

HIDDEN, VOCAB = 64, 1000
TENSORS = {
    "model.embed_tokens.weight": ("BF16", [VOCAB, HIDDEN]),
    "lm_head.weight": ("BF16", [VOCAB, HIDDEN]),
    "model.layers.0.mlp.up_proj.weight": ("BF16", [256, HIDDEN]),
    "model.layers.0.linear_attn.A_log": ("F32", [48]),
    "mtp.fc.weight": ("BF16", [HIDDEN, 2 * HIDDEN]),
    "mtp.layers.0.mlp.up_proj.weight": ("BF16", [256, HIDDEN]),
}
ELEMENT_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}


def size_bytes(dtype, shape):
    size = ELEMENT_BYTES[dtype]
    for length in shape:
        size *= length
    return size


def write_shard(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + size_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


@pytest.fixture
def model(tmp_path):
    """A model of the 27 B shape's layers in two tiny shards with an index."""
    (tmp_path / "config.json").write_text((SHAPES / "qwen3.6-27b-text" / "config.json").read_text())
    names = list(TENSORS)
    files = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, held in files.items():
        write_shard(tmp_path / file, {name: TENSORS[name] for name in held})
    weight_map = {name: file for file, held in files.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def test_bytes_come_from_the_headers(model):
    weights = read_checkpoint(model).weights
    embedding = VOCAB * HIDDEN * 2
    own_draft = (HIDDEN * 2 * HIDDEN + 256 * HIDDEN) * 2
    assert weights.target_bytes == 2 * embedding + 256 * HIDDEN * 2 + 48 * 4
    assert weights.draft_bytes == own_draft + 2 * embedding
    assert weights.shared_bytes == 2 * embedding
    assert weights.largest_tensor_bytes == embedding
    assert weights.files_bytes == sum(file.stat().st_size for file in model.glob("*.safetensors"))
    assert not weights.estimated


def test_a_draft_layer_behind_the_last_one(tmp_path):
    (tmp_path / "config.json").write_text((SHAPES / "deepseek-r1" / "config.json").read_text())
    write_shard(
        tmp_path / "model.safetensors",
        {
            "model.embed_tokens.weight": ("BF16", [VOCAB, HIDDEN]),
            "model.layers.60.self_attn.o_proj.weight": ("F8_E4M3", [HIDDEN, HIDDEN]),
            "model.layers.61.embed_tokens.weight": ("BF16", [VOCAB, HIDDEN]),
            "model.layers.61.eh_proj.weight": ("BF16", [HIDDEN, 2 * HIDDEN]),
            "model.layers.61.shared_head.head.weight": ("BF16", [VOCAB, HIDDEN]),
        },
    )
    weights = read_checkpoint(tmp_path).weights
    assert weights.target_bytes == VOCAB * HIDDEN * 2 + HIDDEN * HIDDEN
    assert weights.draft_bytes == HIDDEN * 2 * HIDDEN * 2 + 2 * VOCAB * HIDDEN * 2


def test_float32_files_are_loaded_in_the_models_own_type(tmp_path):
    (tmp_path / "config.json").write_text((SHAPES / "llama-3.1-8b" / "config.json").read_text())
    write_shard(tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": ("F32", [256, HIDDEN])})
    assert read_checkpoint(tmp_path).weights.target_bytes == 256 * HIDDEN * 2


@pytest.mark.parametrize(
    ("shape", "target_gb", "draft_gib"),
    [
        ("qwen3.6-27b", 54.71, 5.53),
        ("qwen3.6-27b-text", 53.80, 5.53),
        ("llama-3.1-8b", 16.06, 0.0),
        ("qwen3-30b-a3b", 61.06, 0.0),
        ("qwen3-next-80b", 159.3, 4.23),
    ],
)
def test_weights_counted_from_the_shape(shape, target_gb, draft_gib):
    weights = read_checkpoint(SHAPES / shape).weights
    assert weights.estimated
    assert weights.target_bytes / GB == pytest.approx(target_gb, abs=0.05)
    assert weights.draft_bytes / GIB == pytest.approx(draft_gib, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "family", "attention_layers", "token_bytes"),
    [
        ("qwen3.6-27b", "hybrid", 16, 65_536),
        ("qwen3.5-4b", "hybrid", 8, 32_768),
        ("qwen3-next-80b", "hybrid", 12, 24_576),
        ("llama-3.1-8b", "mha", 32, 131_072),
        ("qwen3-30b-a3b", "mha", 48, 98_304),
        ("deepseek-r1", "mla", 61, 70_272),
    ],
)
def test_families(shape, family, attention_layers, token_bytes):
    checkpoint = read_checkpoint(SHAPES / shape)
    assert (checkpoint.family, checkpoint.attention_layers) == (family, attention_layers)
    assert checkpoint.kv_token_bytes("auto", 1) == token_bytes
    assert checkpoint.kv_token_bytes("fp8_e4m3", 1) == token_bytes // 2


def test_one_state_slot_of_the_27b():
    linear = read_checkpoint(SHAPES / "qwen3.6-27b").linear
    assert (linear.conv_bytes(1), linear.ssm_bytes(1, None)) == (2_949_120, 150_994_944)
    assert linear.conv_bytes(1) + linear.ssm_bytes(1, "bfloat16") == round(74.8125 * 2**20)


def test_quantised_models_without_shards_need_their_size():
    assert read_checkpoint(SHAPES / "qwen3.5-397b-fp8").weights is None
    with pytest.raises(FleetError, match="or weights_gib"):
        planned("qwen3.5-397b-fp8", "0.5.23")
    with pytest.raises(FleetError, match="give draft_gib"):
        planned("qwen3.5-397b-fp8", "0.5.23", weights_gib=50.0, mtp=MTP)


def test_overrides_leave_the_shards_unread(model):
    (model / "model-1.safetensors").unlink()
    plan = plan_from_options(
        {
            "checkpoint": model,
            "engine_version": "0.5.23",
            "gpus": [{"index": 0, "total_mib": 97887}],
            "weights_gib": 50.0,
            "host": {"mem_available_gib": 200},
        }
    )
    assert budget(plan).weights_bytes == 50 * GIB


def test_mtp_without_mtp_layers_is_refused():
    with pytest.raises(FleetError, match="MTP layers"):
        planned("llama-3.1-8b", "0.5.23", mtp=MTP)


def broken_config(model):
    config = model / "config.json"
    config.write_text(config.read_text()[:-100])


def unknown_architecture(model):
    (model / "config.json").write_text('{"architectures": ["MysteryForCausalLM"]}')


def no_architecture(model):
    (model / "config.json").write_text("{}")


def list_config(model):
    (model / "config.json").write_text("[]")


def config_without_layers(model):
    config = json.loads((model / "config.json").read_text())
    del config["num_hidden_layers"]
    (model / "config.json").write_text(json.dumps(config))


def short_shard(model):
    shard = model / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])


def lfs_pointer(model):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4000000000\n"
    (model / "model-2.safetensors").write_text(pointer)


def corrupt_header(model):
    shard = model / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:8] + b"x" * (shard.stat().st_size - 8))


def absent_tensor(model):
    index = model / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.1.missing.weight"] = "model-1.safetensors"
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: (model / "config.json").unlink(), "no such file"),
        (broken_config, "complete JSON"),
        (list_config, "a JSON object"),
        (no_architecture, "architectures in"),
        (unknown_architecture, "MysteryForCausalLM"),
        (config_without_layers, "num_hidden_layers"),
        (lambda model: (model / "model-1.safetensors").unlink(), r"1 of them missing \(model-1"),
        (short_shard, "bytes its header promises"),
        (lfs_pointer, "(?i)git.lfs pointer"),
        (corrupt_header, "header"),
        (lambda model: (model / "model-2.safetensors").write_bytes(b""), "header"),
        (absent_tensor, "1 absent"),
        (lambda model: (model / "model.safetensors.index.json").write_text("{"), "weight_map"),
    ],
)
def test_each_damage_has_its_own_message(model, damage, message):
    damage(model)
    with pytest.raises(FleetError, match=message):
        read_checkpoint(model)
