"""Tutorial for researchers: run a study of the paper, read its rows, and ask a question of one's own."""

# %% [markdown]
# # Reproduce and extend
#
# Every figure of the paper is a *study*: a file that says which runs to train. `tacit reproduce` trains them all on a
# small task and judges every claim; it takes minutes. In this tutorial you take one study apart, in seconds: you
#
# 1. run a small part of it, and stop and go on as you like;
# 2. read the rows that it left, and draw its figure;
# 3. ask a question of your own in a study file of your own.
#
# ## A study of the paper
#
# The study `rates` trains one network with many learning rates. It is in the package: `tacit studies copy` puts it into
# the current folder. `key=value` replaces what the file says, here to make it short.

# %%
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from tacit import studies
from tacit.report import build_report, read_parts, write_page

subprocess.run([sys.executable, "-m", "tacit", "studies", "copy", "mnist1d/quick/rates"], check=True)
file = "rates.toml"
short = ["dataset=mnist1d", "epochs=30", "evaluations=6", "seeds=0:2"]
study = studies.load_study(file, overrides=short)
print(study.question)
print(f"{len(study.runs)} runs; the first one:")
first = study.runs[0]
print(f"ε = {first.learning_rate}, B = {first.batch_size}, {first.epochs} epochs, seed {first.seed}")

# %% [markdown]
# `run` trains every run that has no row yet. On the command line this is `tacit run mnist1d/quick/rates KEY=VALUE …`.

# %%
rows = studies.run(study, "runs/rates", workers=1)
one = rows[-1]
print(f"{len(rows)} rows; the last run {one['status']} after {one['updates']} updates:")
print(f"test accuracy {one['best_test_accuracy']:.3f}, C_reg {one['implicit_regularizer']:.3f}")

# %% [markdown]
# A row is known by the hash of its settings. Asked for three seeds instead of two, `run` trains the third alone: the
# old rows are the same, byte for byte.

# %%
more = studies.load_study(file, overrides=[*short[:-1], "seeds=0:3"])
before = {row["run"]: row for row in rows}
rows = studies.run(more, "runs/rates", workers=1)
print(f"{len(rows)} rows, {sum(row['run'] in before for row in rows)} of them from before")
assert all(before[row["run"]] == row for row in rows if row["run"] in before)

# %% [markdown]
# ## Its figure
#
# `studies.records` gives the rows as flat dictionaries, which `pandas.DataFrame` takes too. Which learning rate is best
# on the training examples, and which on the test examples?

# %%
# picture: Highest training and test accuracy of every run against the learning rate, with their means.
records = studies.records("runs/rates")
rates = sorted({record["learning_rate"] for record in records})


def mean(name, rate):
    found = [record[name] for record in records if record["learning_rate"] == rate]
    return 100 * sum(found) / len(found)


print("learning rate   training   test")
for rate in rates:
    print(f"{rate:<15.5f} {mean('best_train_accuracy', rate):6.1f} % {mean('best_test_accuracy', rate):6.1f} %")

figure, axis = plt.subplots(figsize=(6, 3.6))
for name, label, colour in (("best_train_accuracy", "training", "#7a7a7a"), ("best_test_accuracy", "test", "#c4471c")):
    axis.plot(rates, [mean(name, rate) for rate in rates], color=colour, label=label)
    axis.plot([r["learning_rate"] for r in records], [100 * r[name] for r in records], "o", color=colour, ms=3)
axis.set_xscale("log", base=2)
axis.set_xlabel("learning rate ε")
axis.set_ylabel("highest accuracy, %")
axis.legend(frameon=False)

# %% [markdown]
# Points are runs, lines their means over three seeds. This is the question of figure 2a of the paper. The studies of
# `tacit reproduce` train longer and judge it with intervals; [the results](../results.md) have the verdicts.
#
# ## A question of your own
#
# A study file is TOML: what all runs share, what differs, and the figure. Here: does the best strength λ depend on
# the width of the network? Your own models and data come in as `module:function`; [studies](../studies.md) shows it.

# %%
Path("widths.toml").write_text("""
name = "widths"
question = "Does the best strength depend on the width of the network?"

[fixed]
dataset = "mnist1d"
train_size = 1024
batch_size = 16
epochs = 30
evaluations = 6
learning_rate = "2^-5"

[grid]
width = [32, 128]
strength = [0.0, "2^-4", "2^-2", "2^0"]
seeds = "0:2"

[figures]
strengths = { x = "strength", y = "best_test_accuracy", curve = "width" }
""")
rows = studies.run("widths.toml", "runs/widths", workers=1)
found = studies.records("runs/widths")
print("strength λ   " + "   ".join(f"width {width:3}" for width in (32, 128)))
for strength in (0.0, 2**-4, 2**-2, 1.0):
    means = []
    for width in (32, 128):
        runs = [r["best_test_accuracy"] for r in found if (r["strength"], r["width"]) == (strength, width)]
        means.append(f"{100 * sum(runs) / len(runs):7.1f} %")
    print(f"{strength:<10.4f}   " + "   ".join(means))

# %% [markdown]
# The report is one HTML page with the figure, the question, and where every number came from. It needs no torch, so a
# folder of rows can be sent to somebody else and looked at there.

# %%
report = build_report(read_parts(["runs/widths"]))
page = write_page(report, Path("widths.html"), command="tacit report runs/widths")
print(f"{page.name}: {len(report.rows)} runs, figures: {', '.join(figure.id for figure in report.figures)}")

# %% [markdown]
# Two seeds and thirty epochs are enough for a tutorial and not for a claim. To go further: [studies](../studies.md)
# has every key of a run, [clusters](../cluster.md) trains the same file on many machines, [paper
# scale](../paper-scale.md) says what the paper's own experiments cost, and [the reference](../reference/report.md)
# shows how a study brings a figure with a verdict of its own.
