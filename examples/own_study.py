"""A study of one's own: own data, own model, one question; runs that are stored, resumed and drawn on one page.

python examples/own_study.py        writes own_study.html into the current folder
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

from tacit import studies
from tacit.report import build_report, read_parts, write_page

STUDY = """
name = "stripes"
question = "Which strength is best for a small convolutional network on noisy stripes?"

[fixed]
dataset = "own_study:load"
model = "own_study:make_model"
train_size = 512
epochs = 3
learning_rate = "2^-5"

[grid]
strength = [0.0, "2^-4", "2^-2"]
seeds = "0:2"
[figures]
strengths = { x = "strength", y = "best_test_accuracy" }
"""


def load() -> tuple[np.ndarray, ...]:
    """Noisy images with horizontal or vertical stripes: train inputs, train targets, test inputs, test targets."""
    draws = np.random.default_rng(0)
    targets = draws.integers(0, 2, size=640)
    stripes = np.where(np.arange(8) % 2 == 0, 1.0, -1.0)
    images = draws.normal(scale=1.5, size=(640, 1, 8, 8))
    images += np.where(targets[:, None, None, None] == 0, stripes[:, None], stripes[None, :])
    return images[:512], targets[:512], images[512:], targets[512:]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))


if __name__ == "__main__":
    page = Path.cwd() / "own_study.html"
    os.chdir(Path(__file__).parent)  # own code is imported from the current folder
    with tempfile.TemporaryDirectory() as folder:  # in a folder that stays, another run goes on with its rows
        file, rows = Path(folder, "stripes.toml"), Path(folder, "rows")
        file.write_text(STUDY)
        for row in studies.run(file, rows):
            strength, best = row["spec"]["strength"], row["best_test_accuracy"]
            print(f"λ = {strength:<6} seed {row['spec']['seed']}: {100 * best:.1f} %")
        write_page(build_report(read_parts([rows])), page, command="python examples/own_study.py")
    print(f"{page.name} has the figure")
