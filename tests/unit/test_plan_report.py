"""The table and the page show every profile, GPU, sum and refusal."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.capacity import Request
from ansible_collections.llmops.fleet.plugins.module_utils.intent import PROFILES
from ansible_collections.llmops.fleet.plugins.module_utils.plan_report import gpu_parts, plan_page, plan_table

from .planning import ROOMY, RTX, SHAPES


def compared(shape="qwen3.6-27b", **options):
    request = Request.from_options(
        {
            "checkpoint": SHAPES / shape,
            "engine_version": "0.5.16",
            "gpus": [{**RTX, "index": index} for index in range(2)],
            "intent": {"concurrency": 16, "tokens_per_request": 4096, "hicache_gb": 150},
            "host": {"mem_total_gib": 256, "mem_available_gib": 186.3, "shm_size_gib": 128, "shm_used_gib": 60},
            "resolve": True,
            **options,
        }
    )
    return {"profile": "mtp", "comparison": request.compared("mtp", PROFILES)}


@pytest.fixture(scope="module")
def result():
    return compared()


def test_table_has_profiles_side_by_side(result):
    table = plan_table("node-1", result)
    header = next(line for line in table.splitlines() if "baseline" in line)
    assert header.split() == ["baseline", "*mtp", "mtp_hicache", "bulk"]
    starts = next(line for line in table.splitlines() if line.startswith("starts"))
    assert starts.split()[1:] == ["yes", "yes", "NO", "yes"]
    requests = next(line for line in table.splitlines() if line.startswith("requests at once"))
    plans = result["comparison"]
    assert requests.split()[3:] == [
        str(plans[name]["instances"][0]["gpu"]["max_running_requests"]) for name in PROFILES
    ]
    assert max(map(len, table.splitlines())) <= 120


def test_bars_are_in_proportion(result):
    table = plan_table("node-1", result)
    bars = re.findall(r"GPU \d +([\d.]+) GiB \|(.+)\|", table)
    assert len(bars) == 2
    whole, bar = float(bars[0][0]), bars[0][1]
    gpu = result["comparison"]["mtp"]["instances"][0]["gpu"]
    for part, size in gpu_parts(gpu):
        assert bar.count(part.letter) == pytest.approx(size / whole * len(bar), abs=1)
    assert sum(size for _part, size in gpu_parts(gpu)) == pytest.approx(gpu["total_gib"], abs=0.01)


def test_refusals_and_choices_are_told(result):
    table = " ".join(plan_table("node-1", result).split())
    assert "Problem (mtp_hicache): expected" in table
    assert "too little" in table
    assert "Choice (mtp):" in table
    assert "Warning (all):" in table


def test_a_short_host_is_marked():
    table = plan_table("node-1", {**compared(), "profile": "mtp_hicache"})
    assert "SHORT BY" in table


def test_a_profile_that_the_model_excludes_keeps_its_column():
    result = {**compared("llama-3.1-8b", intent={}), "profile": "baseline"}
    table = plan_table("node-1", result)
    assert "NO" in next(line for line in table.splitlines() if line.startswith("starts"))
    assert "MTP layers" in table
    assert "MTP layers" in plan_page({"node-1": result})


def test_a_host_without_gpus_has_its_ram_shown():
    result = compared(accelerator="cpu", intent={})
    assert "GPU memory" not in plan_table("node-1", result)
    assert "Host RAM with mtp" in plan_table("node-1", result)
    assert "Host RAM" in plan_page({"node-1": result})


def test_without_a_profile_the_intent_itself_has_a_column():
    request = Request.from_options(
        {"checkpoint": SHAPES / "llama-3.1-8b", "engine_version": "0.5.23", "gpus": [RTX], "host": ROOMY}
    )
    table = plan_table("node-1", {"profile": "intent", "comparison": request.compared(None, PROFILES)})
    assert "*intent" in table
    assert next(line for line in table.splitlines() if line.startswith("starts")).split()[1:3] == ["yes", "yes"]


class Tags(HTMLParser):
    """Checks that tags nest and collects what the page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.bars = [], [], 0

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        self.bars += attributes.get("class") == "bar"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_whole_and_needs_nothing_else(result):
    page = plan_page({"node-1": result, "<node-2>": result})
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.fetched == []
    assert "url(" not in page
    assert tags.bars == 2 * (4 + 2 + 4)
    assert "&lt;node-2&gt;" in page
    assert "short by" in page
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", page.split("<h3>")[1])]
    assert sum(widths) == pytest.approx(4 * 100, abs=0.5)
