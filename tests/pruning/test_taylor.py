from __future__ import annotations

import pytest
import torch
from pruning.around import read, surroundings
from training.small import batches, merged, original

from pamerge import PamergeError
from pamerge.pruning import Taylor
from pamerge.pruning.taylor import gate_gradients
from pamerge.training.steps import Distillation


def squares(around, task, some):
    """Mean of squared gate gradients over batches."""
    found = [gate_gradients(around, task, batch)[""] for batch in some]
    return {name: torch.stack([f[name].square() for f in found]).mean(0) for name in found[0]}


def test_the_score_is_the_mean_square_of_gate_gradients():
    around = surroundings(merged())
    data = read(batches(3))
    session = Taylor(batches=3, shared="own").start(around)
    assert session.measure("parts", iter(data)) == 3
    expected = around.places.by_neuron("parts", squares(around, "parts", data))
    for name, scores in session.importance("parts").items():
        assert scores == pytest.approx(expected[name], rel=1e-5)


def test_scores_are_averaged_with_those_of_earlier_rounds():
    around = surroundings(merged())
    data = read(batches(4))
    session = Taylor(batches=2, momentum=0.9, shared="own").start(around)
    session.measure("shape", iter(data[:2]))
    session.measure("shape", iter(data[2:]))
    first, second = squares(around, "shape", data[:2]), squares(around, "shape", data[2:])
    expected = {name: 0.9 * first[name] + 0.1 * second[name] for name in first}
    for name, scores in session.importance("shape").items():
        assert scores == pytest.approx(around.places.by_neuron("shape", expected)[name], rel=1e-4)


@pytest.mark.parametrize("shared", ["own", "max", "sum"])
def test_what_other_tasks_lose_counts_as_asked(shared):
    around = surroundings(merged())
    data = read(batches(1))
    session = Taylor(batches=1, shared=shared).start(around)
    for task in around.network.tasks:
        session.measure(task, iter(data * 9))
    alone = {task: squares(around, task, data) for task in around.network.tasks}
    units = {}
    for task, arrays in alone.items():
        served = around.places.by_neuron(task, arrays)
        values = [value for scores in served.values() for value in scores.values()]
        units[task] = sum(values) / len(values)
    join = {"max": max, "sum": sum}
    for name, scores in session.importance("shape").items():
        position = {neuron: i for i, neuron in enumerate(around.places.neurons[name])}
        for neuron, score in scores.items():
            lost = {t: float(alone[t][name][position[neuron]]) for t in around.places.sets[name][neuron]}
            expected = (
                lost["shape"] if shared == "own" else join[shared]([value / units[t] for t, value in lost.items()])
            )
            assert score == pytest.approx(expected, rel=1e-4)


def test_only_neurons_of_the_tasks_subgraph_are_scored():
    around = surroundings(merged())
    session = Taylor(batches=1).start(around)
    session.measure("size", iter(read(batches(9))))
    scored = {name: set(scores) for name, scores in session.importance("size").items()}
    assert scored == {name: set(found) for name, found in around.places.served("size").items()}


def test_on_the_very_first_turn_the_other_tasks_are_measured_too():
    around = surroundings(merged())
    session = Taylor(batches=2).start(around)
    data = iter(read(batches(20)))
    assert session.measure("shape", data) == 6
    assert session.measure("parts", data) == 2
    alone = Taylor(batches=2, shared="own").start(around)
    assert alone.measure("shape", data) == 2


def test_batches_without_labels_of_the_task_are_passed_over():
    around = surroundings(merged())
    data = [*batches(7, tasks=("parts", "size")), *batches(2, seed=3, tasks=("shape",))]
    session = Taylor(batches=2, shared="own").start(around)
    some = iter(read(data))
    assert session.measure("shape", some) == 2
    assert next(some, None) is None


def test_a_task_without_labels_is_scored_by_what_its_teacher_says():
    teachers = {"shape": original("shape")}
    around = surroundings(merged(), distillation=Distillation(teachers, {"shape": 1.0}))
    session = Taylor(batches=1, shared="own").start(around)
    assert session.measure("shape", iter(read(batches(1, tasks=("size",))))) == 1
    assert max(value for scores in session.importance("shape").values() for value in scores.values()) > 0


def test_scores_are_taken_in_eval_mode_and_leave_the_mode_alone():
    network = merged(batch_norm=True).train()
    statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}
    session = Taylor(batches=1, shared="own").start(surroundings(network))
    session.measure("shape", iter(read(batches(1))))
    assert network.training
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in network.named_buffers())


def test_when_only_a_task_leaves_others_lose_what_the_cut_connections_carry():
    """The others' share of a score is never the whole neuron if it also feeds outputs of their own."""
    network = merged()
    whole, cut = (surroundings(network, remove=remove) for remove in ("neuron", "task"))
    scores = []
    for around in (whole, cut):
        session = Taylor(batches=1, shared="sum").start(around)
        session.measure("shape", iter(read(batches(9))))
        scores.append(session.importance("shape"))
    pairs = [(scores[0][name][n], scores[1][name][n]) for name in scores[0] for n in scores[0][name]]
    assert any(b < 0.9 * a for a, b in pairs)
    exclusive = [
        (scores[0][name][n], scores[1][name][n])
        for name in scores[0]
        for n in scores[0][name]
        if len(whole.places.sets[name][n]) == 1
    ]
    assert exclusive
    assert all(a == pytest.approx(b) for a, b in exclusive)


@pytest.mark.parametrize("remove", ["neuron", "task"])
def test_a_session_goes_on_with_what_a_checkpoint_kept(remove):
    around = surroundings(merged(), remove=remove)
    session, other = (Taylor(batches=1).start(around) for _ in range(2))
    session.measure("shape", iter(read(batches(9))))
    other.restore(session.tensors())
    assert other.importance("shape") == session.importance("shape")


@pytest.mark.parametrize(
    ("pruner", "message"),
    [
        (Taylor(batches=0), "batches=0; expected a whole number from 1"),
        (Taylor(momentum=1.0), "momentum=1.0; expected a number from 0 to below 1"),
        (Taylor(balance=2.0), "balance=2.0; expected a number from 0 to 1"),
        (Taylor(shared="mean"), "shared='mean'; expected one of 'own', 'max', 'sum'"),
    ],
)
def test_wrong_settings_are_said(pruner, message):
    with pytest.raises(PamergeError, match=message):
        pruner.start(surroundings(merged()))
