"""What a stored row must have to be read as one of ours, whoever wrote it: another version, or a hand."""

from __future__ import annotations

from typing import Any

from tacit.studies.describe.spec import LATER, RunSpec, digest

MEASURED = (  # a number, or null for a run that diverged
    "diverged_at", "updates", "epochs", "best_test_accuracy", "final_test_accuracy", "best_train_accuracy",
    "final_train_accuracy", "full_loss", "implicit_regularizer",
)  # fmt: skip
STATUSES = ("finished", "diverged")
SERIES = ("updates", "epochs", "test_accuracy", "train_accuracy", "full_loss")  # of `history`


def problem(row: Any, number: int) -> str | None:
    """What keeps the row in line `number` from being read, as the end of a sentence; None when nothing does."""
    if not isinstance(row, dict) or not isinstance(row.get("spec"), dict):
        return f"has no run in line {number}"
    missing = [key for key in ("run", "status", *MEASURED, "history") if key not in row]
    missing += [f"spec.{key}" for key in RunSpec.model_fields if key not in LATER and key not in row["spec"]]
    if missing:
        return f"lacks {', '.join(missing)} in line {number}"
    if digest(row["spec"]) != row["run"]:
        return f"holds a run in line {number} that does not match its hash"
    history = row["history"]
    series = [history.get(name) for name in SERIES] if isinstance(history, dict) else [None]
    wrong = [key for key in MEASURED if not (row[key] is None or _is_number(row[key]))]
    wrong += [] if row["status"] in STATUSES else ["status"]
    wrong += [] if all(isinstance(each, list) and all(map(_is_number, each)) for each in series) else ["history"]
    return f"has a {wrong[0]} in line {number} that cannot be read" if wrong else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
