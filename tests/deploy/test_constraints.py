"""The versions that are installed, audited and tested are the same ones."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pinned():
    """Read constraints.txt, as versions by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs)
    found = {canonicalize_name(name): Version(version) for name, version in pairs}
    assert len(found) == len(pairs)
    return found


def list_requirements(extra):
    """List what an extra asks for, and what it refers to; '': what there is without any."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    for requirement in map(Requirement, texts):
        if requirement.name == "dtopk":
            for other in sorted(requirement.extras):
                yield from list_requirements(other)
        else:
            yield requirement


@pytest.mark.parametrize("extra", ["", "dev"])
def test_every_requirement_is_pinned_to_a_version_it_allows(pinned, extra):
    requirements = list(list_requirements(extra))
    assert requirements
    for requirement in requirements:
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement
