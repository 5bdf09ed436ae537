"""A user teaches the capture an operation of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.merged import all_shared, expect_conformity, expect_originals, material_of, with_lively_weights
from torch import Tensor, nn

import pamerge
from pamerge.errors import CaptureError, PamergeError
from pamerge.graph import (
    Call,
    Draft,
    Problem,
    capture,
    joins_channels,
    keeps_channels,
    known_ops,
    mixes_output,
    register_op,
)
from pamerge.graph import ops as table

IMAGES = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(4))


@torch.library.custom_op("pamerge_tests::soft_clip", mutates_args=())
def soft_clip(x: Tensor, limit: float = 1.0, *, slope: float = 0.0) -> Tensor:
    return limit * torch.tanh(x / limit) + slope * x


@soft_clip.register_fake
def _(x: Tensor, limit: float = 1.0, *, slope: float = 0.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pamerge_tests::gated_sum", mutates_args=())
def gated_sum(x: Tensor, y: Tensor) -> Tensor:
    return x + y * torch.sigmoid(x)


@gated_sum.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pamerge_tests::sorted_rows", mutates_args=())
def sorted_rows(x: Tensor, dim: int) -> Tensor:
    return x.sort(dim).values.clone()


@sorted_rows.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pamerge_tests::wipe", mutates_args={"x"})
def wipe(x: Tensor) -> None:
    x.zero_()


@pytest.fixture(autouse=True)
def _forget_what_was_registered() -> Iterator[None]:
    before = dict(table._RULES)
    yield
    table._RULES.clear()
    table._RULES.update(before)


class Network(nn.Module):
    def __init__(self, hidden: Callable[[Tensor], Tensor], behind: Callable[[Tensor], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 1)
        self.hidden, self.behind = hidden, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.last(self.hidden(self.first(x))).mean((2, 3)))


def pair(*functions: Callable[[Tensor], Tensor]) -> dict[str, nn.Module]:
    return with_lively_weights({"A": Network(*functions), "B": Network(*functions)})


def test_an_operation_that_nobody_registered_is_not_guessed() -> None:
    with pytest.raises(CaptureError, match=r"Cannot capture pamerge_tests\.soft_clip\.default .* not in the op table"):
        capture(pair(soft_clip)["A"], IMAGES)


def test_an_elementwise_operation_keeps_channels_apart() -> None:
    register_op("pamerge_tests.soft_clip.default", rule=keeps_channels)
    assert "pamerge_tests.soft_clip.default" in known_ops()
    expect_conformity(pair(lambda x: soft_clip(x, 0.7)), IMAGES)


def test_arguments_that_have_to_be_named_are_replayed_by_name() -> None:
    register_op("pamerge_tests.soft_clip.default", rule=keeps_channels)
    expect_conformity(pair(lambda x: soft_clip(x, slope=0.3)), IMAGES)


def test_an_operation_on_two_activations_joins_them_channel_by_channel() -> None:
    register_op("pamerge_tests.gated_sum.default", rule=joins_channels)
    expect_conformity(pair(lambda x: gated_sum(x, x.relu())), IMAGES)


def test_an_operation_that_mixes_channels_is_allowed_behind_the_last_weighted_layer_only() -> None:
    register_op("pamerge_tests.sorted_rows.default", rule=mixes_output)
    expect_conformity(pair(torch.relu, lambda y: sorted_rows(y, 1)), IMAGES)
    with pytest.raises(CaptureError, match=r"sorted_rows\.default .* mixes channels, and the weighted layer 'last'"):
        capture(pair(lambda x: sorted_rows(x, 2))["A"], IMAGES)


def test_a_rule_of_ones_own_may_look_at_the_arguments() -> None:
    def over_space(call: Call) -> Draft:
        if call["dim"] != 2:
            raise Problem("it sorts another dimension than the height")
        return keeps_channels(call)

    register_op("pamerge_tests.sorted_rows.default", rule=over_space)
    expect_conformity(pair(lambda x: sorted_rows(x, 2)), IMAGES)
    with pytest.raises(CaptureError, match="it sorts another dimension than the height"):
        capture(pair(lambda x: sorted_rows(x, 1))["A"], IMAGES)


def test_an_operation_that_changes_its_argument_cannot_pass_as_elementwise() -> None:
    register_op("pamerge_tests.wipe.default", rule=keeps_channels)
    with pytest.raises(CaptureError, match="it changes its argument in place; register an operation that does not"):
        capture(pair(lambda x: (wipe(x), x)[1])["A"], IMAGES)


@pytest.mark.parametrize("name", ["soft_clip", "pamerge_tests::soft_clip", "aten.relu", 7])
def test_a_name_that_torch_export_would_not_write_is_an_error(name: str) -> None:
    with pytest.raises(PamergeError, match=r"is not the name of an operation; expected 'namespace.name.overload'"):
        register_op(name, rule=keeps_channels)


def test_the_functional_form_is_registered_and_covers_the_one_in_place() -> None:
    with pytest.raises(PamergeError, match=r"Register the functional form, 'aten\.erfinv\.default'; it covers both"):
        register_op("aten.erfinv_.default", rule=keeps_channels)
    register_op("aten.erfinv.default", rule=keeps_channels)
    expect_conformity(pair(lambda x: x.tanh().mul(0.5).erfinv_()), IMAGES)


def test_a_saved_network_with_a_registered_operation_loads_and_computes_the_same(tmp_path: Path) -> None:
    register_op("pamerge_tests.soft_clip.default", rule=keeps_channels)
    networks = pair(lambda x: soft_clip(x, 0.7, slope=0.1))
    pamerge.save(all_shared(material_of(networks, IMAGES)), tmp_path / "clip.pam")
    expect_originals(pamerge.load(tmp_path / "clip.pam"), networks, IMAGES)


def test_loading_without_the_registration_says_what_is_missing(tmp_path: Path) -> None:
    register_op("pamerge_tests.soft_clip.default", rule=keeps_channels)
    pamerge.save(all_shared(material_of(pair(soft_clip), IMAGES)), tmp_path / "clip.pam")
    del table._RULES["pamerge_tests.soft_clip.default"]
    with pytest.raises(PamergeError) as caught:
        pamerge.load(tmp_path / "clip.pam")
    assert "The operation 'pamerge_tests.soft_clip.default' is not in the op table" in str(caught.value)
    assert "import the module that calls pamerge.graph.register_op before loading the network" in str(caught.value)


def test_loading_with_the_registration_but_without_the_operation_says_so(tmp_path: Path) -> None:
    register_op("pamerge_tests.soft_clip.default", rule=keeps_channels)
    pamerge.save(all_shared(material_of(pair(soft_clip), IMAGES)), tmp_path / "clip.pam")
    program = (
        "import sys, pamerge, pamerge.graph as graph\n"
        "graph.register_op('pamerge_tests.soft_clip.default', rule=graph.keeps_channels)\n"
        "try: pamerge.load(sys.argv[1])\n"
        "except pamerge.PamergeError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "clip.pam"], capture_output=True, text=True, check=True
    )
    assert "torch has no operation 'pamerge_tests.soft_clip.default'" in run.stdout
    assert "import the module that defines it" in run.stdout
