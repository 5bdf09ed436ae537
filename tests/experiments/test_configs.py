"""The experiments that come with the project are valid and compare all schemes with the same options."""

from __future__ import annotations

from pathlib import Path

import pytest

from pamerge.experiments import read_config
from pamerge.experiments.registry import DATA, NETWORKS, lookup, make_pruner, make_scheme

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_experiment_is_valid(path: Path) -> None:
    config = read_config(path)
    assert config.name == path.stem
    lookup(DATA, config.data, "data")
    lookup(NETWORKS, config.network, "network")
    assert {choice.name for choice in config.schemes} >= {"separate", "pam"}
    for choice in config.schemes:
        for each in choice.tries():
            make_scheme(each)
    tries = {choice.label: len(choice.tries()) for choice in config.schemes if choice.name != "separate"}
    assert tries.get("mtz", tries["pam"]) == tries["pam"], f"PAM and MTZ must have the same number of tries: {tries}"
    assert max(tries.values()) == tries["pam"], f"no variant may have more tries: {tries}"
    for choice in config.pruners:
        make_pruner(choice)


def test_there_are_experiments() -> None:
    assert CONFIGS
