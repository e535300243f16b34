#!/usr/bin/python
"""Say before anything starts what SGLang will allocate, what does not fit, and what would serve best."""

from __future__ import annotations

DOCUMENTATION = r"""
module: capacity_plan
short_description: Plan the memory of every GPU and of the host before SGLang starts
description:
  - Predicts state slots, running requests, KV tokens and the bytes of every pool on GPU and host as the given SGLang
    release will allocate them, says what does not fit, and proposes settings that do.
  - Changes nothing. Needs neither a GPU, nor root, nor SGLang.
options:
  checkpoint:
    description: Model directory with config.json and safetensors shards; config.json alone will do for a what-if.
    type: path
    required: true
  engine_version:
    description: SGLang release, such as 0.5.23.
    type: str
    required: true
  accelerator:
    description: C(cuda), or C(cpu) for an engine without GPUs, of which only the host memory is planned.
    type: str
    choices: [cuda, cpu]
    default: cuda
  gpus:
    description:
      - GPUs of the host as mappings with C(index), C(total_mib) (as nvidia-smi shows it) and C(free_gib) (once a
        process has its CUDA context); one of the two sizes may be absent, it is then estimated.
      - C(numa_node) and C(compute_capability) are taken into account where given.
      - An entry may be an index alone. What is not declared is asked of the driver; all GPUs for an empty list.
    type: list
    elements: raw
  gpu_total_mib:
    description: Memory of each GPU that is declared without it, as nvidia-smi shows it; the driver is not asked then.
    type: int
  tensor_parallel:
    description: GPUs that one instance spans, 1 where absent.
    type: int
  mem_fraction_static:
    description: Share of the GPU's memory for weights and pools; SGLang's own default where absent.
    type: float
  context_length:
    description: Longest sequence in tokens; the model's own where absent.
    type: int
  mtp:
    description: Multi-token prediction with C(steps), C(topk) and C(draft_tokens), or absent for none.
    type: dict
    suboptions:
      steps:
        description: Draft steps.
        type: int
        default: 3
      topk:
        description: Branches of each step.
        type: int
        default: 1
      draft_tokens:
        description: Tokens verified at once.
        type: int
        default: 4
  state_strategy:
    description: How recurrent states are kept for the prefix cache; C(auto), as where absent, is the release's choice.
    type: str
    choices: [auto, no_buffer, extra_buffer, extra_buffer_lazy]
  prefix_reuse:
    description: Whether prefixes are cached (radix cache); they are where absent.
    type: bool
  state_dtype:
    description: Type of the recurrent state; the checkpoint's where absent.
    type: str
    choices: [float32, bfloat16, float16]
  kv_dtype:
    description: Type of the KV cache; C(auto), as where absent, follows the checkpoint.
    type: str
    choices: [auto, bfloat16, fp8_e4m3, fp8_e5m2]
  page_size:
    description: KV page in tokens.
    type: int
  max_running_requests:
    description: Requests that run at the same time.
    type: int
  max_mamba_cache_size:
    description: State slots.
    type: int
  mamba_full_memory_ratio:
    description: Memory of the states over memory of the KV cache, 0.9 where absent.
    type: float
  hicache_gb:
    description: Host tier of the prefix cache in GB (1e9 bytes) per GPU.
    type: int
  hicache_ratio:
    description: Host tier as a multiple of the device pools.
    type: float
  weights_gib:
    description: Weights per GPU as SGLang logs them ("mem usage"), in place of the checkpoint's.
    type: float
  draft_gib:
    description: >-
      MTP draft per GPU while pools are sized, with its own embedding and head, in place of the checkpoint's. A model of
      27 B parameters loads 5.53 GiB, of which 4.74 GiB are given back after sizing.
    type: float
  host:
    description:
      - Memory of the host in GiB as C(mem_total_gib), C(mem_available_gib), C(shm_size_gib), C(shm_used_gib). Weights
        count as still to be written unless C(shm_used_gib) covers them.
      - Also taken are C(staged_gib), C(cgroup_available_gib), C(held_gib) and C(nodes).
      - Measured where absent.
    type: dict
  staged:
    description: Directory of the staged weights; with a measured host it counts as written once it holds READY.
    type: path
  concurrency:
    description: Requests that should run at the same time on one instance.
    type: int
  tokens_per_request:
    description: Prompt plus generated tokens of a typical request; 4096 where absent.
    type: int
  intent:
    description:
      - Any of the options from C(tensor_parallel) to C(hicache_ratio), C(concurrency) and C(tokens_per_request) as one
        mapping, such as an inventory holds. An option given beside it wins. C(mtp) may be C(true) here.
    type: dict
    default: {}
  profile:
    description: >-
      Plan the intent as C(baseline) (no MTP, no host tier), C(mtp), C(mtp_hicache) (the host tier of the intent, or
      twice the device pools) or C(bulk) (no prefix reuse; a proposal leaves MTP out where it
      would be slower and the intent does not ask for it).
    type: str
    choices: [baseline, mtp, mtp_hicache, bulk]
  compare:
    description: >-
      Profiles to plan side by side, returned as C(comparison) in place of the single plan. One that is refused does not
      fail the task.
    type: list
    elements: str
    choices: [baseline, mtp, mtp_hicache, bulk]
    default: []
  resolve:
    description: >-
      Take settings that are left open from the proposal, so that C(instances) shows the planned split and
      C(instances[].intent) holds every number to render.
    type: bool
    default: false
  allow_known_bad:
    description: Warn about combinations that are known to fail, instead of refusing them.
    type: bool
    default: false
extends_documentation_fragment: [llmops.fleet.looks_only]
author: [llmops.fleet maintainers]
"""

EXAMPLES = r"""
- name: See what a 96 GB GPU will hold
  llmops.fleet.capacity_plan:
    checkpoint: /models/Qwen3.6-27B
    engine_version: 0.5.23
    gpus: [{index: 0, total_mib: 97887}]
    mem_fraction_static: 0.85
    mtp: {steps: 3, topk: 1, draft_tokens: 4}
    concurrency: 32
    tokens_per_request: 8192
    host: {mem_total_gib: 512, mem_available_gib: 400, shm_size_gib: 256, shm_used_gib: 0}
"""

RETURN = r"""
fits:
  description: Whether everything can be started.
  type: bool
  returned: without compare
problems:
  description: Why not, each with what was expected, what was found and what to change.
  type: list
  elements: str
  returned: without compare
planned_as:
  description: Release whose rules were followed; the newest known for a newer one.
  type: str
  returned: without compare
warnings:
  description: What will start and may disappoint.
  type: list
  elements: str
  returned: without compare
instances:
  description: >-
    For each instance C(name), C(gpus), C(intent), C(gpu) (C(state_slots), C(max_running_requests), C(kv_tokens), and
    C(weights_gib), C(draft_gib), C(state_gib), C(intermediate_gib), C(kv_gib), C(slack_gib), which add up to
    C(free_gib); C(draft_kv_gib) and C(graphs_gib) live in the slack) and C(host) (C(hicache_kv_gb),
    C(hicache_state_gb), C(hicache_draft_gb), C(hicache_index_gb), C(hicache_kv_tokens), C(hicache_state_slots) for
    each of its GPUs as SGLang logs them, C(rss_gib) for its processes, C(ram_gib) for the whole instance).
  type: list
  elements: dict
  returned: without compare
host:
  description: C(needed_gib), C(available_gib), C(shortfall_gib), the summands in C(parts_gib), and C(nodes) likewise.
  type: dict
  returned: without compare
largest_hicache_gb:
  description: Largest hicache_gb per GPU with which all instances fit the host, 0 for none.
  type: int
  returned: without compare
proposal:
  description: >-
    Settings that fit and run the most of the wanted requests, with C(explanation), C(gpu) and C(alternatives) (choices
    that need a person's word). Null where nothing fits.
  type: dict
  returned: without compare
comparison:
  description: >-
    The values above for each profile of C(compare), and for the intent as it is (C(intent)) where no C(profile) is
    given. A profile that is refused as a whole has no instances.
  type: dict
  returned: with compare
profile:
  description: The profile to be deployed, C(intent) without one.
  type: str
  returned: with compare
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.fleet.plugins.module_utils.capacity import Request
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.intent import PROFILES


def main() -> None:
    """Wire the arguments to the core."""
    mtp = {
        "steps": {"type": "int", "default": 3},
        "topk": {"type": "int", "default": 1},
        "draft_tokens": {"type": "int", "default": 4},
    }
    module = AnsibleModule(
        argument_spec={
            "checkpoint": {"type": "path", "required": True},
            "engine_version": {"type": "str", "required": True},
            "accelerator": {"type": "str", "choices": ["cuda", "cpu"], "default": "cuda"},
            "gpus": {"type": "list", "elements": "raw"},
            "gpu_total_mib": {"type": "int"},
            "tensor_parallel": {"type": "int"},
            "mem_fraction_static": {"type": "float"},
            "context_length": {"type": "int"},
            "mtp": {"type": "dict", "options": mtp},
            "state_strategy": {
                "type": "str",
                "choices": ["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"],
            },
            "prefix_reuse": {"type": "bool"},
            "state_dtype": {"type": "str", "choices": ["float32", "bfloat16", "float16"]},
            "kv_dtype": {"type": "str", "choices": ["auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"]},
            "page_size": {"type": "int"},
            "max_running_requests": {"type": "int"},
            "max_mamba_cache_size": {"type": "int"},
            "mamba_full_memory_ratio": {"type": "float"},
            "hicache_gb": {"type": "int"},
            "hicache_ratio": {"type": "float"},
            "weights_gib": {"type": "float"},
            "draft_gib": {"type": "float"},
            "host": {"type": "dict"},
            "staged": {"type": "path"},
            "concurrency": {"type": "int"},
            "tokens_per_request": {"type": "int"},
            "intent": {"type": "dict", "default": {}},
            "profile": {"type": "str", "choices": list(PROFILES)},
            "compare": {"type": "list", "elements": "str", "choices": list(PROFILES), "default": []},
            "resolve": {"type": "bool", "default": False},
            "allow_known_bad": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        request = Request.from_options(module.params)
        if module.params["compare"]:
            comparison = request.compared(module.params["profile"], module.params["compare"])
            module.exit_json(changed=False, profile=module.params["profile"] or "intent", comparison=comparison)
        result = request.plan(module.params["profile"]).as_dict()
    except FleetError as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
