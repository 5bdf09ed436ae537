"""Tuning α: probes for a ladder of candidates, with both ends always among them."""

from __future__ import annotations

import math

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


def test_separate_and_all_shared_are_among_the_candidates_and_the_cheapest_wins() -> None:
    tuning = compare()
    assert {probe.name for probe in tuning.probes} == {"separate", "all shared", "α = 0.1, origin"}
    assert tuning.best == min(tuning.probes, key=lambda probe: probe.cost).scheme
    for probe in tuning.probes:
        assert math.isfinite(probe.cost)
        assert probe.cost == pytest.approx(sum(probe.flops.values()) / 3)
        assert probe.task_batches > 0


def test_the_mix_decides_what_is_cheap() -> None:
    only_a = compare(mix={"A": 1.0}, alphas=(), overlaps=())
    costs = {probe.name: probe.cost for probe in only_a.probes}
    assert costs["separate"] == next(probe.flops["A"] for probe in only_a.probes if probe.name == "separate")
    assert only_a.probes[0].name == "separate"


def test_a_candidate_that_cannot_keep_the_budget_comes_last() -> None:
    tuning = compare(max_drop=0.0, alphas=(), overlaps=(), finetune_steps=1)
    costs = [probe.cost for probe in tuning.probes]
    assert costs == sorted(costs)


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
    assert scheme.alpha in (-1.0, 1.0)


def test_half_of_a_ladder_is_refused() -> None:
    with pytest.raises(PamergeError, match=r"alphas=\(0.1,\), overlaps=\(\); expected both"):
        compare(overlaps=())
