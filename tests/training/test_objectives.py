from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pamerge import PamergeError
from pamerge.training import Classification, Custom, MultiLabel, Regression, infer_objectives
from pamerge.training.protocol import check_objectives, check_targets

NAN = float("nan")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_losses_of_complete_labels_are_those_of_torch(rng):
    logits = torch.randn(6, 4, generator=rng)
    classes, several = torch.tensor([0, 3, 2, 1, 0, 2]), (torch.rand(6, 4, generator=rng) > 0.5).float()
    torch.testing.assert_close(Classification().loss(logits, classes), functional.cross_entropy(logits, classes))
    torch.testing.assert_close(
        MultiLabel().loss(logits, several), functional.binary_cross_entropy_with_logits(logits, several)
    )
    torch.testing.assert_close(Regression().loss(logits, several), functional.mse_loss(logits, several))


def test_missing_labels_count_for_nothing(rng):
    logits = torch.randn(3, 2, generator=rng)
    several = torch.tensor([[1.0, NAN], [NAN, NAN], [0.0, 1.0]])
    present = ~several.isnan()
    expected = functional.binary_cross_entropy_with_logits(logits[present], several[present])
    torch.testing.assert_close(MultiLabel().loss(logits, several), expected)
    torch.testing.assert_close(MultiLabel().loss(logits, several.nan_to_num(-1).long()), expected)
    torch.testing.assert_close(
        Regression().loss(logits, several), functional.mse_loss(logits[present], several[present])
    )
    classes = torch.tensor([1, -1, 0])
    torch.testing.assert_close(
        Classification().loss(logits, classes), functional.cross_entropy(logits[[0, 2]], classes[[0, 2]])
    )
    assert Classification().labelled(classes).tolist() == [True, False, True]


def test_missing_labels_leave_gradients_finite(rng):
    outputs = torch.randn(3, 2, generator=rng, requires_grad=True)
    several = torch.tensor([[1.0, NAN], [NAN, NAN], [0.0, 1.0]])
    (MultiLabel().loss(outputs, several) + Regression().loss(outputs, several)).backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad[several.isnan()] == 0).all()


def test_multilabel_accuracy_is_averaged_over_labels_and_not_over_their_numbers():
    logits = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    targets = torch.tensor([[1.0, 0.0], [1.0, NAN], [1.0, NAN], [0.0, NAN]])
    sums, counts = MultiLabel().score(logits, targets)
    assert sums.tolist() == [3.0, 0.0]
    assert counts.tolist() == [4.0, 1.0]


def test_labels_without_a_column_are_not_broadcast_against_outputs_with_one():
    outputs, targets = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 3.0])
    assert Regression().loss(outputs, targets) == 0
    assert Regression().score(outputs, targets)[0].sum() == 0
    assert MultiLabel().score(outputs, torch.ones(3))[0].sum() == 3


def test_regression_is_judged_by_the_absolute_error():
    sums, counts = Regression().score(torch.tensor([[1.0], [5.0], [0.0]]), torch.tensor([[2.0], [2.0], [NAN]]))
    assert (sums.tolist(), counts.tolist()) == ([4.0], [2.0])
    assert not Regression().higher_is_better


def test_classes_of_pixels_work_like_classes_of_images(rng):
    logits, classes = torch.randn(2, 3, 4, 4, generator=rng), torch.randint(0, 3, (2, 4, 4), generator=rng)
    Classification().check(tuple(logits.shape), classes)
    torch.testing.assert_close(Classification().loss(logits, classes), functional.cross_entropy(logits, classes))
    assert Classification().score(logits, classes)[1] == 32


@pytest.mark.parametrize(
    "objective", [MultiLabel(), Classification(), Regression(), Custom(functional.mse_loss, functional.l1_loss)]
)
def test_distillation_is_zero_and_flat_at_the_teacher_and_positive_elsewhere(objective, rng):
    teacher = 3 * torch.randn(5, 4, generator=rng)
    outputs = teacher.clone().requires_grad_()
    loss = objective.distillation(outputs, teacher)
    loss.backward()
    assert abs(loss.item()) < 1e-6
    assert float(outputs.grad.abs().max()) < 1e-6
    assert objective.distillation(teacher + torch.randn(5, 4, generator=rng), teacher) > 0.01


def test_distillation_of_classes_is_the_divergence_at_a_temperature(rng):
    outputs, teacher = torch.randn(5, 4, generator=rng), torch.randn(5, 4, generator=rng)
    expected = 9 * functional.kl_div(
        (outputs / 3).log_softmax(1), (teacher / 3).log_softmax(1), reduction="batchmean", log_target=True
    )
    torch.testing.assert_close(Classification(temperature=3).distillation(outputs, teacher), expected)
    p, q = (teacher / 3).sigmoid(), (outputs / 3).sigmoid()
    binary = 9 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    torch.testing.assert_close(MultiLabel(temperature=3).distillation(outputs, teacher), binary)


@pytest.mark.parametrize(
    ("objective", "outputs", "targets", "message"),
    [
        (Classification(), (3, 4), torch.tensor([0, 4, 1]), "labels go up to 4; expected 0 to 3 for 4 outputs"),
        (Classification(), (3, 4), torch.zeros(3), "labels are of type float32; expected integers from 0 to 3"),
        (Classification(), (3, 4), torch.zeros(2, dtype=torch.long), r"labels have shape \(2,\); expected \(3,\)"),
        (Classification(), (3, 4), torch.zeros(3, 4, dtype=torch.long), r"labels have shape \(3, 4\); expected \(3,\)"),
        (MultiLabel(), (3, 4), torch.zeros(3, 5), r"labels have shape \(3, 5\); expected \(3, 4\), as the outputs"),
        (MultiLabel(), (3, 1), torch.full((3,), 2.0), "labels contain 2; expected 0 or 1, or NaN"),
        (MultiLabel(), (3, 4), torch.full((3, 4), -0.5), "labels contain -0.5; expected 0 or 1"),
        (Regression(), (3, 4), torch.zeros(3), r"labels have shape \(3,\); expected \(3, 4\)"),
        (Regression(), (3, 1), torch.full((3,), float("inf")), "labels contain infinite values"),
        (
            Custom(functional.mse_loss, functional.l1_loss),
            (3, 4),
            torch.zeros(2),
            "expected 3 rows, one for each sample",
        ),
    ],
)
def test_labels_that_do_not_fit_are_named_with_their_task(objective, outputs, targets, message):
    with pytest.raises(PamergeError, match=r"^Task 'age' \(\w+\): .*" + message):
        check_targets("age", objective, outputs, targets)


def test_a_custom_objective_weights_its_metric_by_samples():
    objective = Custom(functional.mse_loss, lambda y, t: float((y > t).float().mean()), metric_name="above")
    sums, counts = objective.score(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.full((4,), 1.5))
    assert (float(sums), float(counts), objective.metric_name) == (3.0, 4.0, "above")


def test_the_temperature_must_be_positive(rng):
    with pytest.raises(PamergeError, match="temperature=0; expected a number above 0"):
        Classification(temperature=0).distillation(torch.zeros(2, 2), torch.zeros(2, 2))


def test_objectives_are_read_off_labels():
    found = infer_objectives(
        {"a": torch.tensor([0, 2]), "b": torch.tensor([[0.0, 1.0]]), "c": torch.tensor([[0.5], [3.0]])}
    )
    assert found == {"a": Classification(), "b": MultiLabel(), "c": Regression()}
    with pytest.raises(PamergeError, match=r"Task 'a': labels have shape \(2, 2, 2\)"):
        infer_objectives({"a": torch.zeros(2, 2, 2)})


def test_what_is_no_objective_is_refused():
    with pytest.raises(PamergeError, match="objectives must map tasks to objectives"):
        check_objectives({}, None)
    with pytest.raises(PamergeError, match="The objective of task 'a' is the class Classification"):
        check_objectives({"a": Classification}, None)
    with pytest.raises(PamergeError, match="The objective of task 'a' is a str"):
        check_objectives({"a": "classification"}, None)
    with pytest.raises(PamergeError, match=r"Unknown task\(s\) 'z'"):
        check_objectives({"z": Classification()}, ["a"])
    with pytest.raises(PamergeError, match=r"objectives lacks task\(s\) 'b'; expected one for each task"):
        check_objectives({"a": Classification()}, ["a", "b"], complete=True)
