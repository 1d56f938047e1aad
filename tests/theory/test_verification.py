"""`verify`: every predicted order is seen on every problem, and a wrong coefficient is caught."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit.theory import modified_losses, problems, verify
from tacit.theory.study import ConvergenceStudy, Finding, observed_order

# The orders that must be seen, from the theory; `verify` must contain each of them.
EXPECTED = {
    "GD against gradient flow": 2,
    "GD against C̃_GD": 3,
    "GD against C̃_GD with f₂": 4,
    "mean SGD against C": 2,
    "mean SGD against C̃_GD": 2,
    "mean SGD against C̃_SGD": 3,
    "mean SGD against C̃_SGD with φ₂": 4,
    "one fixed order against C̃_SGD": 2,
    "one fixed order with its commutator": 3,
    "one order there and back against C̃_SGD": 3,
    "mean 2-step SGD against C̃_nSGD": 3,
    "mean 2-step SGD against C̃_SGD": 2,
    "mean 4-step SGD against C̃_nSGD": 3,
    "mean 4-step SGD against C̃_SGD": 2,
    "with replacement, mean against C̃_GD": 3,
    "heavy ball against f₀": 2,
    "heavy ball against f₀ + εf₁": 3,
    "heavy ball against f₀ + εf₁ + ε²f₂": 4,
    "Nesterov against f₀": 2,
    "Nesterov against f₀ + εf₁": 3,
    "Nesterov against f₀ + εf₁ + ε²f₂": 4,
    "Adam against f₀": 2,
    "Adam against f₀ + εf₁": 3,
    "Adam against f₀ + εf₁ + ε²f₂": 4,
    "SGD on C_mod(λ) against C + (λ+ε) C_reg": 3,
    "weight decay inside the norm": 3,
    "weight decay outside the norm": 2,
    "momentum with minibatches": 3,
    "one order there and back with its ε² term": 4,
    "random partitions with E φ₂": 4,
    "Adam, mean over orders against f₀ + εf₁": 3,
    "AdamW, mean over orders against f₀ + εf₁": 3,
    "augmentation, mean against ‖E_a ∇Ĉᵃ‖²": 3,
    "augmentation, mean against E_a ‖∇Ĉᵃ‖²": 2,
    "fresh orders at a fixed time, mean with φ₂": 3,
    "fresh orders at a fixed time, covariance": 4,
    "fresh orders at a fixed time, spread": 1.5,
    "one order for all epochs, spread over orders": 1,
    "one order for all epochs, against C̃_SGD": 1,
    "one order for all epochs, with its commutator": 2,
    "with replacement at a fixed time, moment closure": 2,
    "Adam against −P(∇C')∇C̃": 3,
    "Adam against −P(∇C̃)∇C̃": 2,
    "AdamW against −P(∇C')∇C̃": 3,
    "RMSprop against −P(∇C')∇C̃": 3,
    "Muon against −P(∇C')∇C̃": 3,
    "GD's average of iterates against C̃_GD": 3,
    "GD's average of iterates with its f₂": 4,
    "schedule-free SGD against C + (½+β(1−c)/c)(ε/2)‖∇C‖²": 3,
    "Lookahead against C + (ε/4)(1−k(1−α))‖∇C‖²": 3,
    "penalty on 1 micro-batch, independent draws, C̃ of the whole": 3,
    "penalty on 1 micro-batch, independent draws, C̃ of once each": 2,
    "penalty on 1 micro-batch, independent draws, with φ₂": 4,
    "penalty on 1 micro-batch, once each, its C̃": 3,
    "penalty on 1 micro-batch, once each, C̃ of the whole": 2,
    "penalty every 2 steps, mean over its place, its C̃": 3,
    "penalty every 2 steps, mean over its place, C̃ of the whole": 2,
    "penalty with probability ½, C̃ of the whole": 3,
    "penalty with probability ½, C̃ of every 2 steps": 2,
    "penalty on 1 micro-batch at a fixed time, independent draws, spread": 0.5,
    "penalty on 1 micro-batch at a fixed time, once each, spread": 1.5,
    "SAM against its terms to ρ², ρε and ε²": 4,
    "SAM, direction from 1 row, its terms to ρ², ρε and ε²": 4,
    "SAM, direction from 1 row, terms of the whole": 2,
}
PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def rows_of_the_page() -> dict[str, tuple[float, dict[str, float]]]:
    """{statement: (predicted order, {problem: observed order})} of the table of optimizers in docs/theory.md."""
    table = PAGE.read_text().split("observed: quadratic, logistic, tanh_mlp |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    names = ("quadratic", "logistic", "tanh_mlp")
    return {
        row[2]: (float(row[3]), dict(zip(names, map(float, row[4].split(", ")), strict=True))) for row in rows if row[2]
    }


# Rows of the tables of the sampled penalty and of SAM in docs/theory.md, by their first cell.
SAMPLED = {
    "q, independent from step to step": "penalty on 1 micro-batch, independent draws, C̃ of the whole",
    "q, each once in m/q steps": "penalty on 1 micro-batch, once each, its C̃",
    "`every=k`": "penalty every 2 steps, mean over its place, its C̃",
    "`probability=p`": "penalty with probability ½, C̃ of the whole",
    "spread, independent": "penalty on 1 micro-batch at a fixed time, independent draws, spread",
    "spread, each once": "penalty on 1 micro-batch at a fixed time, once each, spread",
    "SAM": "SAM against its terms to ρ², ρε and ε²",
    "SAM from 1 row": "SAM, direction from 1 row, its terms to ρ², ρε and ε²",
    "… with the terms of the whole": "SAM, direction from 1 row, terms of the whole",
}


def sampled_rows_of_the_page() -> dict[str, tuple[float, dict[str, float]]]:
    """{statement: (predicted order, {problem: observed order})} of rows that end with a number and three."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    rows = {cells[0]: cells for cells in lines if cells[0] in SAMPLED and len(cells) > 2}
    return {
        SAMPLED[name]: (float(cells[-2]), dict(zip(problems.PROBLEMS, map(float, cells[-1].split(", ")), strict=True)))
        for name, cells in rows.items()
    }


@pytest.mark.parametrize("case", tuple(problems.PROBLEMS))
def test_every_predicted_order_is_observed(case: str) -> None:
    study = verify(problems.PROBLEMS[case](), name=case)
    for statement, order in EXPECTED.items():
        finding = study.finding(statement)
        assert finding.predicted == order
        assert finding.observed == pytest.approx(order, abs=0.15), statement
    assert study.passed, str(study)
    for statement, (order, observed) in {**rows_of_the_page(), **sampled_rows_of_the_page()}.items():
        finding = study.finding(statement)
        assert finding.predicted == order
        # Two digits are printed; another machine's rounding moves the third.
        assert finding.observed == pytest.approx(observed[case], abs=0.02), f"docs/theory.md: {statement}"


def test_the_page_has_a_row_for_every_optimizer_of_today() -> None:
    for name in ("Lookahead", "RMSprop", "Muon", "Adam", "average of iterates", "schedule-free"):
        assert any(name in statement for statement in rows_of_the_page()), name
    assert len(PAGE.read_text().split()) <= 2500


def test_the_page_has_orders_beside_every_way_of_sampling() -> None:
    assert set(sampled_rows_of_the_page()) == set(SAMPLED.values())


@pytest.mark.parametrize("wrong", [2.0, 8.0])
def test_a_wrong_quarter_is_caught(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    monkeypatch.setattr(modified_losses, "quarter_of", lambda squared: squared / wrong)
    study = verify(problems.logistic(), only="mean SGD against C̃_SGD")
    assert not study.passed
    assert study.finding("mean SGD against C̃_SGD").observed == pytest.approx(2, abs=0.15)


def test_a_model_from_torch_is_verified() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.sin(3.0 * torch.arange(parameter.numel())).reshape(parameter.shape))
    inputs = torch.cos(torch.arange(18.0)).reshape(6, 3)
    targets = torch.tensor([0, 1, 1, 0, 1, 0])
    problem = tacit.Problem(model, nn.functional.cross_entropy, (inputs, targets), batch_size=2)
    study = verify(problem, only="mean SGD against")
    assert study.passed, str(study)


def test_with_sampled_orders_the_main_result_is_still_seen_and_the_rest_is_left_out() -> None:
    with pytest.warns(UserWarning, match="sampled"):
        study = verify(problems.logistic(batches=7, batch_size=1), only="mean SGD against C̃_SGD", samples=60)
    assert study.finding("mean SGD against C̃_SGD").status == "pass"
    assert study.finding("mean SGD against C̃_SGD with φ₂").status == "not measured"
    assert "sampled orders" in str(study)


def test_with_one_minibatch_what_coincides_is_not_measured_and_nothing_fails() -> None:
    study = verify(problems.quadratic(batches=1, batch_size=2))
    assert study.passed, str(study)
    assert study.finding("mean SGD against C̃_GD").status == "not measured"
    assert study.finding("one fixed order against C̃_SGD").status == "not measured"
    assert study.finding("with replacement, mean against C̃_SGD").status == "not measured"


def test_given_learning_rates_are_used() -> None:
    study = verify(problems.logistic(), learning_rates=[0.01, 0.02, 0.04], only="GD against C̃_GD")
    assert study.findings[0].learning_rates == (0.04, 0.02, 0.01)


def finding(errors: tuple[float, ...], predicted: float = 2) -> Finding:
    return Finding("a statement", "Eq. 0", predicted, "toy", (0.4, 0.2, 0.1), errors)


def test_an_order_off_by_more_than_the_tolerance_fails() -> None:
    assert finding((0.16, 0.04, 0.01)).status == "pass"
    assert finding((0.16, 0.04, 0.01), predicted=2.16).status == "fail"


def test_errors_at_the_level_of_rounding_are_not_an_order() -> None:
    assert observed_order((0.4, 0.2, 0.1), (1e-10, 1e-14, 1e-15)) is None
    assert finding((1e-14, 1e-15, 1e-16)).status == "fail"


def test_a_study_with_nothing_measured_has_not_passed() -> None:
    empty = Finding("a", "b", 2, "toy", (), (), "nothing to see")
    assert not ConvergenceStudy((empty,)).passed


def test_the_text_of_a_study_shows_predicted_and_observed_side_by_side() -> None:
    text = str(ConvergenceStudy((finding((0.16, 0.04, 0.01)), finding((0.4, 0.2, 0.1), predicted=3))))
    assert text.count("a statement") == 2
    assert "2.000" in text
    assert "1 of 2 orders" in text


def test_rows_with_a_tilde_over_their_c_stand_in_the_same_columns_as_the_others() -> None:
    rows = [Finding(name, "Eq. 0", 2, "toy", (0.4, 0.2, 0.1), (0.16, 0.04, 0.01)) for name in ("to C", "to C̃", "C̃, C̃")]
    lines = str(ConvergenceStudy(tuple(rows))).splitlines()[:4]
    shown = [re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFD", line)) for line in lines]
    assert len({line.index(word) for line, word in zip(shown, ["where", *["Eq. 0"] * 3], strict=True)}) == 1


def test_json_holds_the_errors_and_the_verdicts() -> None:
    read = json.loads(ConvergenceStudy((finding((0.16, 0.04, 0.01)),)).to_json())
    assert read["passed"] is True
    assert read["findings"][0]["errors"] == [0.16, 0.04, 0.01]
    assert read["findings"][0]["observed"] == pytest.approx(2)


class Tokens(nn.Module):
    """A model whose inputs are whole numbers: they cannot be multiplied by 1.3."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 2), nn.Linear(2, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.embedding(tokens).mean(1)))


def test_a_model_of_tokens_is_verified_without_augmentation() -> None:
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0], [2, 2, 1], [4, 3, 3]])
    targets = torch.tensor([[0.5], [-1.0], [0.2], [0.9]], dtype=torch.float64)
    problem = tacit.Problem(Tokens(), nn.functional.mse_loss, (tokens, targets), batch_size=2, dtype=torch.float64)
    study = verify(problem, only="augmentation")
    assert {finding.status for finding in study.findings} == {"not measured"}
    assert "cannot be multiplied" in str(study)
