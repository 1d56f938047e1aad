"""A problem is a set of pure functions: means and their gradients, with the model left as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import Problem
from tacit._util import tree


def data(count: int = 6) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return (
        torch.randn(count, 3, generator=draws, dtype=torch.float64),
        torch.randn(count, 2, generator=draws, dtype=torch.float64),
    )


def seeded(model: nn.Module) -> nn.Module:
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    return model.double()


def network() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def normed() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).train()


def state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def make(model: nn.Module | None = None, **choices) -> Problem:
    return Problem(model or network(), F.mse_loss, data(), **{"batch_size": 2, **choices})


EXACT = {"rtol": 1e-13, "atol": 1e-14}  # sums of six float64 terms in another order


# -- losses -----------------------------------------------------------------------------------------------------------
def test_the_full_loss_is_the_mean_of_minibatch_losses_and_of_example_losses() -> None:
    problem = make()
    full = problem.full_loss()
    batches = torch.stack([problem.minibatch_loss(k) for k in range(3)])
    examples = torch.stack([problem.example_loss(j) for j in range(6)])
    torch.testing.assert_close(full, batches.mean(), **EXACT)
    torch.testing.assert_close(full, examples.mean(), **EXACT)


def test_a_minibatch_loss_is_what_the_model_itself_computes() -> None:
    model, (inputs, targets) = network(), data()
    torch.testing.assert_close(
        make(model).minibatch_loss(1), F.mse_loss(model(inputs[2:4]), targets[2:4]).detach(), **EXACT
    )


def test_gradients_are_those_of_plain_backward() -> None:
    model, (inputs, targets) = network(), data()
    problem = make(model)
    for ours, rows in [
        (problem.full_gradient(), slice(0, 6)),
        (problem.minibatch_gradient(2), slice(4, 6)),
        (problem.example_gradient(5), slice(5, 6)),
    ]:
        model.zero_grad()
        F.mse_loss(model(inputs[rows]), targets[rows]).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(ours[name], parameter.grad, **EXACT)


def test_losses_follow_the_parameters_that_are_given() -> None:
    problem = make()
    zeros = {name: torch.zeros_like(value) for name, value in problem.parameters.items()}
    torch.testing.assert_close(problem.full_loss(zeros), data()[1].square().mean(), **EXACT)
    assert problem.full_loss() != problem.full_loss(zeros)


def test_weight_decay_adds_half_of_it_times_the_squared_norm_everywhere() -> None:
    plain, decayed = make(), make(weight_decay=0.3)
    extra = 0.15 * tree.squared_norm(plain.parameters)
    torch.testing.assert_close(decayed.full_loss() - plain.full_loss(), extra, rtol=1e-12, atol=0)
    torch.testing.assert_close(decayed.minibatch_loss(1) - plain.minibatch_loss(1), extra, rtol=1e-12, atol=0)
    torch.testing.assert_close(decayed.example_loss(1) - plain.example_loss(1), extra, rtol=1e-12, atol=0)
    expected = tree.add(plain.full_gradient(), plain.parameters, scale=0.3)
    torch.testing.assert_close(decayed.full_gradient(), expected, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_are_constants_without_weight_decay() -> None:
    model = network()
    model[0].requires_grad_(False)
    problem = make(model, weight_decay=0.3)
    assert set(problem.parameters) == set(problem.full_gradient()) == {"2.weight", "2.bias"}
    plain = F.mse_loss(model(data()[0]), data()[1]) + 0.15 * sum(p.square().sum() for p in model[2].parameters())
    torch.testing.assert_close(problem.full_loss(), plain.detach(), **EXACT)


def test_tied_weights_count_once() -> None:
    model = seeded(nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False), nn.Linear(3, 2)))
    model[2].weight = model[0].weight
    problem = make(model)
    assert set(problem.parameters) == {"0.weight", "3.weight", "3.bias"}
    model.zero_grad()
    F.mse_loss(model(data()[0]), data()[1]).backward()
    torch.testing.assert_close(problem.full_gradient()["0.weight"], model[0].weight.grad, **EXACT)


# -- state ------------------------------------------------------------------------------------------------------------
def test_batch_norm_uses_batch_statistics_and_keeps_its_running_ones_bitwise() -> None:
    model = normed()
    before = state(model)
    problem = make(model)
    problem.full_loss()
    gradient = problem.minibatch_gradient(1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    F.mse_loss(model(data()[0][2:4]), data()[1][2:4]).backward()  # this one does update them
    torch.testing.assert_close(gradient["0.weight"], model[0].weight.grad, rtol=1e-10, atol=1e-12)


def test_repeated_calls_return_the_same_bits_even_with_batch_norm() -> None:
    problem = make(normed())
    assert torch.equal(problem.full_loss(), problem.full_loss())


def test_the_model_gets_no_gradients_and_may_train_on_while_the_problem_stays() -> None:
    model = network()
    problem = make(model)
    before = problem.full_loss()
    problem.full_gradient()
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(problem.full_loss(), before)


def test_running_statistics_are_those_of_construction_though_the_model_trains_on() -> None:
    model = normed()
    problem = make(model.eval())
    before = problem.full_loss()
    model.train()(10 * data()[0])  # moves the model's running statistics
    model.eval()
    assert torch.equal(problem.full_loss(), before)


def test_a_wider_type_casts_parameters_buffers_and_data_but_not_the_model_nor_labels() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    dataset = (data()[0].float(), torch.tensor([0, 1, 0, 1, 1, 0]))
    problem = Problem(model, F.cross_entropy, dataset, batch_size=3, dtype=torch.float64)
    assert {leaf.dtype for leaf in problem.full_gradient().values()} == {torch.float64}
    assert problem.targets.dtype == torch.int64
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


# -- batches ----------------------------------------------------------------------------------------------------------
def test_given_batches_choose_the_examples() -> None:
    problem = make(batch_size=None, batches=[[5, 0], torch.tensor([3, 1])])
    assert (problem.batches_per_epoch, problem.batch_size, problem.train_size) == (2, 2, 6)
    expected = (problem.example_loss(5) + problem.example_loss(0)) / 2
    torch.testing.assert_close(problem.minibatch_loss(0), expected, **EXACT)


def test_a_torch_dataset_is_read_like_a_pair_of_tensors() -> None:
    from_dataset = Problem(network(), F.mse_loss, torch.utils.data.TensorDataset(*data()), batch_size=2)
    assert torch.equal(from_dataset.full_loss(), make().full_loss())


def test_a_kept_remainder_makes_unequal_batches_that_have_no_single_size() -> None:
    problem = make(batch_size=4, remainder="keep")
    assert [len(batch) for batch in problem.batches] == [4, 2]
    with pytest.raises(tacit.InputError, match=r"sizes \[2, 4\]"):
        _ = problem.batch_size


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rate", [0.5, 1e-12])  # the second never drops a unit, and still is dropout
def test_a_loss_that_draws_random_numbers_is_refused_whatever_it_drew(rate: float) -> None:
    model = seeded(nn.Sequential(nn.Linear(3, 50), nn.Dropout(rate), nn.Linear(50, 2)))
    with pytest.raises(tacit.InputError, match="draws random numbers"):
        make(model.train())
    make(model.eval())


def test_a_loss_that_changes_by_other_means_is_refused() -> None:
    draws = torch.Generator().manual_seed(0)  # not one of torch's global generators

    def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets) + torch.rand((), generator=draws)

    with pytest.raises(tacit.InputError, match="changed between two evaluations"):
        Problem(network(), noisy, data(), batch_size=2)


def test_two_precisions_are_refused_by_name() -> None:
    with pytest.raises(tacit.InputError, match=r"model is in float32 and the data in float64; .* dtype=torch.float64"):
        make(network().float())
    make(network().float(), dtype=torch.float64)


def test_other_errors_of_a_model_are_not_renamed() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        make(seeded(nn.Linear(4, 2)))


@pytest.mark.parametrize("size", [1.0, 1e-6, 0.0])
def test_a_mean_is_accepted_however_small(size: float) -> None:
    Problem(network(), lambda outputs, targets: size * 1e-6 * F.mse_loss(outputs, targets), data(), batch_size=2)
