"""What an engine's log and its `/server_info` say about memory, under the names that the planner uses."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = r"([\d.]+)"
_PATTERNS: dict[str, str] = {
    "free_gib": rf"Load weight begin\. avail mem={_NUMBER} GB",
    "weights_gib": rf"Load weight end\..*mem usage={_NUMBER} GB",
    "state_slots": r"max_mamba_cache_size: (\d+), conv_state",
    "kv_tokens": r"KV Cache is allocated\..*#tokens: (\d+)",
    "max_running_requests": r"max_running_requests=(\d+), context_len",
    "available_gib": rf"available_gpu_mem={_NUMBER} GB",
    "hicache_kv_tokens": r"Allocating kv hierarchical KV host pool: (\d+) tokens",
    "hicache_kv_gb": rf"Allocating kv hierarchical KV host pool: \d+ tokens, {_NUMBER} GB",
    "hicache_state_slots": r"HiCache host KV pool \((\d+) tokens\)",
    "hicache_state_gb": rf"Allocating {_NUMBER} GB host memory for hierarchical Mamba cache",
    "hicache_draft_gb": rf"Allocating draft hierarchical KV host pool: \d+ tokens, {_NUMBER} GB",
}
_STATE = re.compile(rf"conv_state size: {_NUMBER}GB, ssm_state size: {_NUMBER}GB")
_INTERMEDIATE = re.compile(
    rf"intermediate_ssm_state_cache size: {_NUMBER}GB intermediate_conv_window_cache size: {_NUMBER}GB"
)
_KV = re.compile(
    rf"KV Cache is allocated\..*?#tokens: \d+, (?:K size: {_NUMBER} GB, V size: {_NUMBER} GB|KV size: {_NUMBER} GB)"
)
_GRAPH = re.compile(rf"Capture .* CUDA graph end\..*mem usage={_NUMBER} GB")
_AVAILABLE = re.compile(rf"Memory pool end\. avail mem={_NUMBER} GB")
_DRAFT = re.compile(rf"Load weight end\..*type=\w+(?:MTP|NextN), .*mem usage={_NUMBER} GB")
_COUNTS = ("state_slots", "kv_tokens", "max_running_requests", "hicache_kv_tokens", "hicache_state_slots")


def seen(log: str, observed: dict[str, Any]) -> dict[str, float]:
    """Every number of the planner that the engine reports; `observed` is the launch's entry in results.json."""
    found: dict[str, float] = {}
    for name, pattern in _PATTERNS.items():
        if match := re.search(pattern, log):
            found[name] = int(match[1]) if name in _COUNTS else float(match[1])
    if match := _STATE.search(log):
        found["state_gib"] = round(float(match[1]) + float(match[2]), 2)
    if match := _INTERMEDIATE.search(log):
        found["intermediate_gib"] = round(float(match[1]) + float(match[2]), 2)
    pools = [sum(float(size) for size in match.groups() if size) for match in _KV.finditer(log)]
    for name, size in zip(("kv_gib", "draft_kv_gib"), pools, strict=False):
        found[name] = round(size, 2)
    if match := _DRAFT.search(log):
        found["draft_gib"] = float(match[1])
    if available := _AVAILABLE.findall(log):
        found["slack_gib"] = float(available[0])
    if graphs := _GRAPH.findall(log):
        found["graphs_gib"] = round(sum(map(float, graphs)), 2)
    info = observed.get("server_info") or {}
    if usage := info.get("memory_usage"):
        found |= {
            "weights_gib": usage["weight"],
            "graphs_gib": round(sum(usage["graph"].values()), 3),
            "available_gib": usage["startup_available"],
            "kv_tokens": info["max_total_num_tokens"],
            "max_running_requests": info["effective_max_running_requests_per_dp"],
        }
    if processes := observed.get("processes_kib"):
        sizes: dict[str, list[int]] = {}
        for process in processes:
            sizes.setdefault(process["command"], []).append(process["VmRSS"] - process["RssShmem"])
        # Forks of one command (compilers) share most pages: what the smallest holds is counted once.
        resident_kib = sum(sum(forks) - (len(forks) - 1) * min(forks) for forks in sizes.values())
        found["rss_gib"] = round(resident_kib / 2**20, 3)
    return found
