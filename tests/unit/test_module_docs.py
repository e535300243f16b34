"""What each module documents, fragments included, is what it takes."""

import importlib
from pathlib import Path

import pytest
import yaml

PLUGINS = Path(__file__).parents[2] / "plugins"
COLLECTION = "ansible_collections.llmops.fleet.plugins"
BY_ACTION = {"stage_weights": {"hub_endpoint", "s3"}}
"""Options that the module's action plugin takes before the module sees them."""
ANSIBLE_DEFAULTS = {"required": False, "default": None, "elements": None, "choices": None}


class Taken(Exception):
    pass


def taken(name, monkeypatch):
    """The module's argument specification, as it hands it to Ansible."""

    class Module:
        def __init__(self, argument_spec, supports_check_mode):
            assert supports_check_mode
            raise Taken(argument_spec)

    module = importlib.import_module(f"{COLLECTION}.modules.{name}")
    monkeypatch.setattr(module, "AnsibleModule", Module)
    with pytest.raises(Taken) as spec:
        module.main()
    return spec.value.args[0]


def documented(name):
    """The module's documented options and attributes, with those of its fragments."""
    text = yaml.safe_load(importlib.import_module(f"{COLLECTION}.modules.{name}").DOCUMENTATION)
    parts = [text]
    for fragment in text.get("extends_documentation_fragment", []):
        source = importlib.import_module(f"{COLLECTION}.doc_fragments.{fragment.rpartition('.')[2]}")
        parts.append(yaml.safe_load(source.ModuleDocFragment.DOCUMENTATION))
    return [
        {key: value for part in parts for key, value in (part.get(of) or {}).items()}
        for of in ("options", "attributes")
    ]


def compared(options, specification):
    """The same facts of each option from both sides: type, elements, default, choices, required, suboptions."""
    sides = [
        {name: {"type": "str", **ANSIBLE_DEFAULTS, **option} for name, option in side.items()}
        for side in (options, specification)
    ]
    facts = [
        {name: {key: option[key] for key in ("type", *ANSIBLE_DEFAULTS)} for name, option in side.items()}
        for side in sides
    ]
    for name in sides[0].keys() & sides[1].keys():
        below = compared(sides[0][name].get("suboptions", {}), sides[1][name].get("options") or {})
        for side, each in zip(facts, below, strict=True):
            side[name]["below"] = each
    return facts


@pytest.mark.parametrize("name", sorted(path.stem for path in (PLUGINS / "modules").glob("*.py")))
def test_documentation_and_arguments_agree(name, monkeypatch):
    options, attributes = documented(name)
    said, meant = compared(options, taken(name, monkeypatch))
    assert {option: said[option] for option in said.keys() - BY_ACTION.get(name, set())} == meant
    assert {"check_mode", "diff_mode"} <= set(attributes)
