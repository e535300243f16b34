"""A role's defaults, its argument specs and its README name the same variables."""

from pathlib import Path

import pytest
import yaml

ROLES = sorted((Path(__file__).parents[2] / "roles").iterdir())


def load(path):
    return yaml.safe_load(path.read_text()) or {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_and_argument_specs_agree(role):
    defaults = load(role / "defaults/main.yml")
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    optional = {name for name, option in options.items() if not option.get("required")}
    assert set(defaults) == optional
    for name, option in options.items():
        declared, default = option.get("default"), defaults.get(name)
        templated = "{{" in str(default)
        assert templated or declared == default, f"{name}: the argument spec says {declared!r}, defaults {default!r}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_variable_is_explained_and_prefixed(role):
    lines = (role / "defaults/main.yml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line and line[0].isalpha():
            assert line.startswith(f"{role.name}_")
            assert lines[number - 1].startswith("#"), f"{line} has no comment that says what it does"
