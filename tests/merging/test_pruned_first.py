"""Networks that were pruned one by one can be merged afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from experiments.test_runner import CONFIG
from merging.test_pam import with_labels
from support.merged import EXACT

import pamerge
from pamerge import MTZ, PAM, PamergeError, Separate, TaskSet
from pamerge.experiments import Choice, First, run

BOTH = TaskSet({"A", "B"})


def pruned_apart():
    """LeNet-5 with 6 and with 4 filters in the first layer, side by side."""
    source = with_labels("lenet5", 2)
    network = Separate().merge(source)
    first = next(junction for junction in network.junctions.values() if not junction.fixed)
    network.remove({first.name: first.groups[TaskSet({"B"})][:2]})
    return source, network, first.name


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_without_sharing_the_pruned_networks_stay_as_they_are() -> None:
    source, start, _ = pruned_apart()
    network = PAM(alpha=1.0).merge(source.started_from(start))
    x = torch.randn(3, *network.input_size)
    assert network.flops() == start.flops()
    for task, output in network(x).items():
        torch.testing.assert_close(output, start(x)[task], **EXACT)


@pytest.mark.filterwarnings("ignore::pamerge.PamergeWarning")
def test_in_a_trunk_what_finds_no_partner_stays_with_its_own_task() -> None:
    source, start, first = pruned_apart()
    sizes = {str(group): len(found) for group, found in start.junctions[first].groups.items()}
    network = PAM(alpha=1.0, trunk=0.25, zip=2.0).merge(source.started_from(start))
    found = {str(group): len(neurons) for group, neurons in network.junctions[first].groups.items()}
    assert found == {"A+B": sizes["B"], "A": sizes["A"] - sizes["B"]}
    assert network.flops("A") == start.flops("A")
    assert network.flops() < start.flops()
    assert start.junctions[first].groups.keys() == {TaskSet({"A"}), TaskSet({"B"})}  # left as it was


def test_merge_takes_what_was_pruned_before() -> None:
    source, start, first = pruned_apart()
    network = pamerge.merge(source.networks, source.calibration, MTZ(steps=0), start=start)
    assert len(network.junctions[first].groups[BOTH]) == len(start.junctions[first].groups[TaskSet({"B"})])


def test_a_start_that_cannot_be_merged_is_refused() -> None:
    source, start, _ = pruned_apart()
    shared = MTZ(steps=0).merge(source)
    with pytest.raises(PamergeError, match=r"start shares neurons already, at .*expected networks that share nothing"):
        source.started_from(shared)
    with pytest.raises(PamergeError, match="start has the tasks A, B; expected those of the networks: A"):
        replace(source, networks={"A": source.networks["A"]}).started_from(start)


def test_an_experiment_prunes_the_networks_one_by_one_before_it_merges_them(tmp_path) -> None:
    pam = Choice("pam", {"alpha": 1.0, "trunk": 0.25, "zip": 2.0, "prune_first": 0.5})
    (result,) = run(replace(CONFIG, schemes=(pam,)), tmp_path)
    found = result["schemes"]["pam"]
    assert 100 < found["task_batches"] <= CONFIG.effort
    assert found["flops"]["A+B"] < found["flops"]["A"] + found["flops"]["B"]


def test_several_processes_end_with_what_one_does(tmp_path) -> None:
    tries = [{"trunk": 0.25, "prune_first": 0.5}, {"trunk": 0.5, "prune_first": 0.5}, {"name": "separate"}]
    schemes = (Choice("separate"), Choice("pam", {"alpha": 1.0, "zip": 2.0, "tries": tries}))
    config = replace(CONFIG, schemes=schemes, effort=300, first=First(CONFIG.max_drop, CONFIG.effort))
    (alone,), (together,) = (run(config, tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    for name, found in alone["schemes"].items():
        assert together["schemes"][name]["flops"] == found["flops"]


@pytest.mark.parametrize("share", [0, 1.0, "half"])
def test_a_share_of_the_effort_that_makes_no_sense_is_named(share, tmp_path) -> None:
    pam = Choice("pam", {"alpha": 1.0, "prune_first": share})
    with pytest.raises(PamergeError, match=r"prune_first = .*; expected the share of the effort, between 0 and 1"):
        run(replace(CONFIG, schemes=(pam,)), tmp_path)
    assert not list(tmp_path.iterdir())  # said before anything is trained
