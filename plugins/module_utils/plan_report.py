"""The plan for people: a table for the terminal and a self-contained page, from the results of capacity_plan.

    plan_table("b200-node-1", result) -> str
    plan_page({"b200-node-1": result, …}) -> str

A result is what the module returns with `compare`: `comparison` by profile, and `profile`, the one to be deployed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .units import GB, GIB

_WIDTH = 112
_LABEL = 30


@dataclass(frozen=True)
class Part:
    """One segment of a bar: its letter in the terminal, its colour on the page."""

    key: str
    name: str
    letter: str
    colour: str


GPU_PARTS = (
    Part("weights_gib", "weights", "W", "#4a6fa5"),
    Part("draft_gib", "draft", "D", "#7fa7d9"),
    Part("state_gib", "state slots", "S", "#b5651d"),
    Part("intermediate_gib", "intermediate states", "I", "#e0a458"),
    Part("kv_gib", "KV cache", "K", "#3d8b6e"),
    Part("draft_kv_gib", "draft KV", "k", "#8cc5a8"),
    Part("graphs_gib", "graphs", "G", "#8d7bb8"),
    Part("left_gib", "activations and spare", ".", "#d5d9de"),
    Part("context_gib", "CUDA context", "c", "#8a9099"),
)
_HOST_COLOURS = ("#4a6fa5", "#3d8b6e", "#b5651d", "#e0a458", "#8cc5a8", "#8d7bb8", "#7fa7d9", "#8a9099")
_HOST_LETTERS = "WKSIDPLR"
_ROWS = (
    ("requests at once", "max_running_requests", "{:,}"),
    ("KV tokens", "kv_tokens", "{:,}"),
    ("state slots", "state_slots", "{:,}"),
    ("state strategy", "state_strategy", "{}"),
    ("mem_fraction_static", "mem_fraction_static", "{:.3f}"),
    ("weights, GiB", "weights_gib", "{:.1f}"),
    ("draft, GiB", "draft_gib", "{:.1f}"),
    ("state slots, GiB", "state_gib", "{:.1f}"),
    ("intermediate states, GiB", "intermediate_gib", "{:.1f}"),
    ("KV cache, GiB", "kv_gib", "{:.1f}"),
    ("spare when serving, GiB", "spare_gib", "{:.1f}"),
)
_TIER_ROWS = (
    ("host tier KV, GB per GPU", "hicache_kv_gb", "{:.1f}"),
    ("host tier state, GB per GPU", "hicache_state_gb", "{:.1f}"),
    ("host tier draft, GB per GPU", "hicache_draft_gb", "{:.1f}"),
)


def gpu_parts(gpu: Mapping[str, Any]) -> list[tuple[Part, float]]:
    """The GPU's whole memory in GiB, part by part; the draft's KV and the graphs are taken out of the slack."""
    sizes = dict(gpu)
    sizes["left_gib"] = max(0.0, gpu["slack_gib"] - gpu["draft_kv_gib"] - gpu["graphs_gib"])
    sizes["context_gib"] = max(0.0, gpu["total_gib"] - gpu["free_gib"])
    return [(part, sizes[part.key]) for part in GPU_PARTS]


def _bar(parts: Sequence[tuple[str, float]], whole: float, width: int) -> str:
    """Letters in proportion to sizes; whatever is not covered stays blank."""
    text, upto = "", 0.0
    for letter, size in parts:
        upto += size
        text += letter * (round(min(upto, whole) / whole * width) - len(text))
    return text.ljust(width)


def _profiles(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return dict(result["comparison"])


def _rows(profiles: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The comparison: (label, one cell per profile); rows that are empty or zero throughout are left out."""
    plans = list(profiles.values())
    first = [plan["instances"][0] if plan["instances"] else None for plan in plans]
    rows = [("starts", ["yes" if plan["fits"] else "NO" for plan in plans])]
    for source, wanted in (("gpu", _ROWS), ("host", _TIER_ROWS)):
        for label, key, form in wanted:
            values = [instance[source][key] if instance and instance[source] else None for instance in first]
            if any(values):
                rows.append((label, ["-" if value is None else form.format(value) for value in values]))
    host = [plan["host"] for plan in plans]
    rows.append(("host RAM needed, GB", [f"{plan['needed_gib'] * GIB / GB:.0f}" if plan else "-" for plan in host]))
    rows.append(
        ("host RAM available, GB", [f"{plan['available_gib'] * GIB / GB:.0f}" if plan else "-" for plan in host])
    )
    return rows


def _notes(profiles: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(kind, profile or "all", text) of problems, warnings and explanations; what all profiles say is said once."""
    notes: dict[tuple[str, str], list[str]] = {}
    for profile, plan in profiles.items():
        for kind, texts in (
            ("problem", plan["problems"]),
            ("warning", plan["warnings"]),
            ("choice", [plan["proposal"]["explanation"]] if plan["proposal"] else []),
        ):
            for text in texts:
                notes.setdefault((kind, text), []).append(profile)
    return [
        (kind, "all" if len(where) == len(profiles) > 1 else ", ".join(where), text)
        for (kind, text), where in notes.items()
    ]


def plan_table(host: str, result: Mapping[str, Any]) -> str:
    """The plan of one host as text: the profiles side by side, a bar for every GPU, the host's RAM, what to know."""
    profiles = _profiles(result)
    chosen = profiles[result["profile"]]
    lines = [f"{host}: {chosen['model']} ({chosen['architecture']}) on SGLang {chosen['engine_version']}", ""]
    marked = [f"*{profile}" if profile == result["profile"] else profile for profile in profiles]
    rows = [("", marked), *_rows(profiles)]
    column = 2 + max(len(cell) for _label, cells in rows for cell in cells)
    lines += [label.ljust(_LABEL) + "".join(cell.rjust(column) for cell in cells) for label, cells in rows]
    gpus = [(instance, index) for instance in chosen["instances"] if instance["gpu"] for index in instance["gpus"]]
    if gpus:
        lines += ["", f"GPU memory with {result['profile']}:"]
        for instance, index in gpus:
            parts = gpu_parts(instance["gpu"])
            whole = instance["gpu"]["total_gib"]
            bar = _bar([(part.letter, size) for part, size in parts], whole, _WIDTH - 32)
            lines.append(f"  GPU {index:<3}{whole:7.1f} GiB |{bar}|")
        legend = [f"{part.letter} {part.name} {size:.1f}" for part, size in gpu_parts(gpus[0][0]["gpu"]) if size]
        lines += _wrapped("  ", legend, ", ")
    if chosen["host"]:
        lines += ["", f"Host RAM with {result['profile']}, all instances:"]
        for budget in (chosen["host"], *chosen["host"]["nodes"]):
            sizes = list(budget["parts_gib"].values())
            whole = max(budget["available_gib"], budget["needed_gib"])
            bar = _bar(list(zip(_HOST_LETTERS, sizes, strict=False)), whole, _WIDTH - 32)
            state = f"SHORT BY {budget['shortfall_gib']:.1f}" if budget["shortfall_gib"] else "fits"
            lines.append(
                f"  {budget['where'].removeprefix('the '):<8}{budget['available_gib']:6.0f} GiB |{bar}| {state}"
            )
        named = zip(_HOST_LETTERS, chosen["host"]["parts_gib"].items(), strict=False)
        lines += _wrapped("  ", [f"{letter} {name} {size:.1f}" for letter, (name, size) in named if size], ", ")
    for kind, where, text in _notes(profiles):
        lines += ["", *_wrapped("  ", f"{kind.capitalize()} ({where}): {text}".split(" "), " ")]
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(indent: str, words: Sequence[str], joint: str) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(joint) + len(word) <= _WIDTH:
            lines[-1] += joint + word
        else:
            lines.append(indent + word)
    return lines


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6570; --line: #d9dee4; --card: #fff; --page: #f4f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaee; --soft: #9aa5b1; --line: #343c45; --card: #1c2229; --page: #12161b }
}
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.2rem 1.5rem;
  margin-top: 1.5rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.25rem; margin: 0 } h3 { font-size: 1rem; margin: 1.5rem 0 .5rem }
p { margin: .3rem 0 } .soft { color: var(--soft) }
.row { display: grid; grid-template-columns: 11rem 1fr 9rem; gap: .8rem; align-items: center; margin: .35rem 0 }
.row > :last-child { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.bar { display: flex; height: 1.7rem; border-radius: 5px; overflow: hidden; background: var(--page);
  border: 1px solid var(--line); position: relative }
.bar span { flex: none; overflow: hidden; color: #fff; font-size: .75rem; line-height: 1.7rem; text-align: center;
  white-space: nowrap }
.bar span.pale { color: #1d2329 }
.bar i { position: absolute; top: 0; bottom: 0; border-left: 3px solid #c0392b }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--soft); margin-top: .4rem }
.legend b { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left; font-weight: normal; color: var(--soft) }
.chosen { background: color-mix(in srgb, #3d8b6e 14%, transparent) }
.bad { color: #c0392b; font-weight: 600 } .good { color: #2e8b57 }
ul { margin: .5rem 0 0; padding-left: 1.2rem } li { margin: .25rem 0 }
"""


def plan_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """All hosts' plans as one HTML page that needs nothing else."""
    sections = "".join(_section(host, result) for host, result in results.items())
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Memory plan</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body><h1>Memory plan</h1>"
        f"<p class='soft'>{len(results)} host{'s' if len(results) != 1 else ''}. Bars show what SGLang will allocate; "
        f"nothing was started.</p>{sections}</body></html>\n"
    )


def _section(host: str, result: Mapping[str, Any]) -> str:
    profiles = _profiles(result)
    chosen = profiles[result["profile"]]
    parts = [
        f"<section><h2>{escape(host)}</h2><p class='soft'>{escape(chosen['model'])} ({escape(chosen['architecture'])}) "
        f"on SGLang {escape(chosen['engine_version'])}; to be deployed: <b>{escape(result['profile'])}</b></p>"
    ]
    filled = {
        profile: plan["instances"][0]["gpu"]
        for profile, plan in profiles.items()
        if plan["instances"] and plan["instances"][0]["gpu"]
    }
    if filled:
        parts.append("<h3>One GPU, by profile</h3>")
        for profile, gpu in filled.items():
            parts.append(
                _page_bar(profile, _segments(gpu), gpu["total_gib"], f"{gpu['max_running_requests']} requests")
            )
        parts.append(_legend([(part.name, part.colour) for part in GPU_PARTS]))
        gpus = [(instance, index) for instance in chosen["instances"] if instance["gpu"] for index in instance["gpus"]]
        if len(gpus) > 1:
            parts.append(f"<h3>Every GPU with {escape(result['profile'])}</h3>")
            for instance, index in gpus:
                whole = instance["gpu"]["total_gib"]
                parts.append(_page_bar(f"GPU {index}", _segments(instance["gpu"]), whole, f"{whole:.1f} GiB"))
    budgets = [(profile, plan["host"]) for profile, plan in profiles.items() if plan["host"]]
    if budgets:
        parts.append("<h3>Host RAM, all instances together</h3>")
        scale = max(max(budget["needed_gib"], budget["available_gib"]) for _profile, budget in budgets)
        for profile, budget in budgets:
            segments = [
                (name, size, colour)
                for (name, size), colour in zip(budget["parts_gib"].items(), _HOST_COLOURS, strict=False)
            ]
            said = f"short by {budget['shortfall_gib']:.1f} GiB" if budget["shortfall_gib"] else "fits"
            parts.append(_page_bar(profile, segments, scale, said, budget["available_gib"]))
        names = budgets[0][1]["parts_gib"]
        legend = list(zip(names, _HOST_COLOURS, strict=False))
        parts.append(_legend([*legend, ("available", "#c0392b")]))
    parts.append("<h3>Numbers</h3><div class='scroll'><table><tr><th></th>")
    marks = [" class='chosen'" if profile == result["profile"] else "" for profile in profiles]
    parts += [f"<th{mark}>{escape(profile)}</th>" for profile, mark in zip(profiles, marks, strict=True)]
    for label, cells in _rows(profiles):
        parts.append(f"</tr><tr><td>{escape(label)}</td>")
        parts += [
            f"<td{mark}>{_verdict(cell) if label == 'starts' else escape(cell)}</td>"
            for cell, mark in zip(cells, marks, strict=True)
        ]
    parts.append("</tr></table></div><ul>")
    for kind, where, text in _notes(profiles):
        name = (
            f"<b class='bad'>Problem</b> ({escape(where)})"
            if kind == "problem"
            else f"{kind.capitalize()} ({escape(where)})"
        )
        parts.append(f"<li>{name}: {escape(text)}</li>")
    return "".join([*parts, "</ul></section>"])


def _verdict(cell: str) -> str:
    return f"<span class='{'good' if cell == 'yes' else 'bad'}'>{cell}</span>"


def _segments(gpu: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    return [(part.name, size, part.colour) for part, size in gpu_parts(gpu)]


def _page_bar(
    label: str, segments: Sequence[tuple[str, float, str]], whole: float, said: str, mark: float | None = None
) -> str:
    scale = max(whole, sum(size for _name, size, _colour in segments))
    spans = "".join(
        f"<span style='width:{100 * size / scale:.2f}%;background:{colour}' title='{escape(name)}: {size:.2f} GiB'"
        f"{' class=pale' if colour in ('#d5d9de', '#8cc5a8', '#e0a458', '#7fa7d9') else ''}>"
        f"{f'{size:.0f}' if size / scale > 0.03 else ''}</span>"
        for name, size, colour in segments
        if size > 0
    )
    line = (
        f"<i style='left:{100 * min(mark, scale) / scale:.2f}%' title='available: {mark:.1f} GiB'></i>" if mark else ""
    )
    state = " class='bad'" if said.startswith("short") else ""
    bar = f"<div class='bar'>{spans}{line}</div>"
    return f"<div class='row'><div>{escape(label)}</div>{bar}<div{state}>{escape(said)}</div></div>"


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<span><b style='background:{colour}'></b>{escape(name)}</span>" for name, colour in entries)
    return f"<div class='legend'>{items}</div>"
