"""Tuning α: probes for a ladder of candidates, with both ends always among them."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console
from support.trained import digit_networks, digits

import pamerge
from pamerge import PamergeError, Taylor
from pamerge.tuning import Tuning

OBJECTIVES = {"A": pamerge.MultiLabel(), "B": pamerge.MultiLabel()}
SHORT = {"laps": 2, "fraction": 0.3, "steps": 5, "recovery": 5, "patience": 0}


def compare(**options) -> Tuning:
    splits = digits()
    given = {"pruner": Taylor(batches=2), "max_drop": 0.3, "alphas": (0.1,), "finetune_steps": 5, "progress": False}
    return pamerge.compare_alphas(
        digit_networks(),
        splits.train.loader(500),
        splits.train.loader(64, shuffle=torch.Generator().manual_seed(0)),
        splits.validation.loader(250),
        OBJECTIVES,
        **{"prune_options": SHORT, **given, **options},
    )


def test_both_ends_are_among_the_candidates_and_the_one_that_lost_least_wins() -> None:
    tuning = compare()
    assert {probe.name for probe in tuning.probes} == {
        "separate",
        "all shared",
        "all shared, zip 0.5",
        "trunk 0.5, then separate",
        "trunk 0.5, then separate, zip 0.5",
        "exclusive 0.4, zip 2",
        "α = 0.1, origin",
        "α = 0.1, origin, zip 0.5",
    }
    assert tuning.best == min(tuning.probes, key=lambda probe: (probe.excess, probe.drop)).scheme
    for probe in tuning.probes:
        assert probe.cost == pytest.approx(sum(probe.flops.values()) / 3)
        assert probe.task_batches > 0


def test_all_candidates_are_pruned_to_the_same_expected_cost() -> None:
    options = {"fraction": 0.3, "steps": 1, "recovery": 0, "final": 0, "laps": 30}
    tuning = compare(share=0.5, prune_options=options, zips=(None,))
    original = compare(share=0.5, prune_options={**options, "laps": 1, "fraction": 0.001}, alphas=(), overlaps=())
    whole = max(probe.cost for probe in original.probes if probe.name == "separate")
    for probe in tuning.probes:
        assert 0.35 * whole <= probe.cost <= 0.51 * whole


def test_the_mix_decides_what_the_cost_is() -> None:
    only_a = compare(mix={"A": 1.0}, alphas=(), overlaps=())
    for probe in only_a.probes:
        assert probe.cost == probe.flops["A"]


def test_candidates_over_the_budget_come_last() -> None:
    tuning = compare(max_drop=0.0, alphas=(), overlaps=(), finetune_steps=1)
    excesses = [probe.excess for probe in tuning.probes]
    assert excesses == sorted(excesses)
    for probe in tuning.probes:
        assert probe.excess >= probe.drop


def test_the_table_says_what_each_candidate_gave() -> None:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(compare(alphas=(), overlaps=()).table())
    text = console.export_text()
    assert "separate" in text
    assert "all shared" in text
    assert "A+B" in text


def test_tune_alpha_returns_the_scheme() -> None:
    splits = digits()
    scheme = pamerge.tune_alpha(
        digit_networks(),
        splits.train.loader(500),
        splits.train.loader(64),
        splits.validation.loader(250),
        OBJECTIVES,
        pruner=Taylor(batches=2),
        max_drop=0.3,
        alphas=(),
        overlaps=(),
        finetune_steps=1,
        prune_options=SHORT,
        progress=False,
    )
    assert scheme.alpha in (-1.0, 1.0) or scheme.exclusive == 0.4


def test_a_wrong_share_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(PamergeError, match=r"exclusive=1\.5; expected a share of the neurons"):
        compare(exclusives=(1.5,))


def test_half_of_a_ladder_is_refused() -> None:
    with pytest.raises(PamergeError, match=r"alphas=\(0.1,\), overlaps=\(\); expected both"):
        compare(overlaps=())
