"""Tutorial for people who train models: a batch 16 times as large, with the regularization of the small one."""

# %% [markdown]
# # A larger batch
#
# A large batch uses a machine better than a small one, but the model that it trains is often a little worse on new
# data. One reason: SGD with small batches penalises the gradients of its minibatches without being told to, and a
# large batch has less of this regularizer. In this tutorial you
#
# 1. train a small network with a small batch, and with a batch 16 times as large;
# 2. measure how much regularization each of them has;
# 3. put the difference into the loss, with one changed line.
#
# The task is MNIST-1D: 40 numbers per example, 10 classes. It is made on your machine, nothing is downloaded.

# %%
from textwrap import fill

import torch
from mnist1d.data import get_dataset_args, make_dataset
from torch import nn
from torch.nn.functional import cross_entropy

import tacit

data = make_dataset(get_dataset_args())
inputs, targets = torch.tensor(data["x"][:2048]).float(), torch.tensor(data["y"][:2048])
test_inputs, test_targets = torch.tensor(data["x_test"]).float(), torch.tensor(data["y_test"])

SMALL, LARGE, LEARNING_RATE, UPDATES = 16, 256, 0.125, 1500


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(model):
    with torch.no_grad():
        return (model(test_inputs).argmax(1) == test_targets).double().mean().item()


# %% [markdown]
# ## The two plain runs
#
# Both take the same number of updates at the same learning rate. The large batch therefore sees 16 times as many
# examples.


# %%
def train_plain(batch_size):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    draws = torch.Generator().manual_seed(1)
    for _ in range(UPDATES):
        chosen = torch.randperm(len(inputs), generator=draws)[:batch_size]
        optimizer.zero_grad()
        cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
    return model


small, large = train_plain(SMALL), train_plain(LARGE)
print(f"batches of {SMALL:3}: {100 * accuracy(small):.1f} % of the test examples are right")
print(f"batches of {LARGE:3}: {100 * accuracy(large):.1f} %")

# %% [markdown]
# ## How much regularization is that?
#
# SGD at rate ε with batches of B examples follows the gradient of C + ε C_reg(B). `tacit.measure` computes C_reg for
# the batch sizes that you name, here in the middle of training, and `tacit.match` says how strong an explicit penalty
# must be to make up for a larger batch. `print(advice)` would show every number with its equation.

# %%
halfway = make_model()
optimizer = torch.optim.SGD(halfway.parameters(), lr=LEARNING_RATE)
draws = torch.Generator().manual_seed(2)
for _ in range(UPDATES // 2):
    chosen = torch.randperm(len(inputs), generator=draws)[:SMALL]
    optimizer.zero_grad()
    cross_entropy(halfway(inputs[chosen]), targets[chosen]).backward()
    optimizer.step()

seen = tacit.measure(halfway, cross_entropy, (inputs, targets), batch_size=[SMALL, LARGE], learning_rate=LEARNING_RATE)
for size in (SMALL, LARGE):
    print(f"C_reg of batches of {size}: {seen.implicit_regularizer[size].value:.4f}")
advice = tacit.match(seen, learning_rate=LEARNING_RATE, batch_size=SMALL, new_batch_size=LARGE)
print(fill(advice.sentence, 95))

# %% [markdown]
# ## The changed line
#
# `micro_batch_size` tells the penalty to look at the large batch as many small ones: it is the mean of ‖∇Ĉ‖² over
# micro-batches, in one pass. The strength λ is the advised one.

# %%
strength, micro_batch_size = advice.strength, advice.micro_batch_size
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
penalty = tacit.GradientPenalty(model, strength, micro_batch_size=micro_batch_size)
print(penalty)

draws = torch.Generator().manual_seed(1)
for _ in range(UPDATES):
    chosen = torch.randperm(len(inputs), generator=draws)[:LARGE]
    optimizer.zero_grad()
    penalty.backward(lambda x, y: cross_entropy(model(x), y), inputs[chosen], targets[chosen])
    optimizer.step()

print(f"batches of {LARGE} with the penalty: {100 * accuracy(model):.1f} %")

# %% [markdown]
# `penalty.last` holds what the last step saw. Its `to_row()` is a dictionary for your logger:

# %%
for name, value in penalty.last.to_row().items():
    print(f"{name:22} {value if isinstance(value, str) else format(value, '.4g')}")

# %% [markdown]
# ## What this shows, and what it does not
#
# The large batch now has a penalty in place of the regularization that it lost, at its own price per step. Its λ is
# not the one that makes both equal to first order: that is `advice.first_order_strength`. `tacit.match` multiplies it
# by 2, a calibration on other trainings, and by a factor for the finite rate, and holds it below the edge of stability.
#
# The accuracies above are of one seed and of a training that takes seconds. One seed can be lucky by a point or two,
# and what a large batch loses shows late in training, when the training examples have been learned.
# [Larger batches](../large-batch.md) has experiments with training to the end, several seeds and intervals, with
# momentum too, and says what to do when the advice is not enough.
#
# A penalised step costs more than a plain one; [choosing a method](../choosing-a-method.md) has the table, and says
# which method is the cheapest for your model. Next: the same line in
# [Lightning, Transformers and accelerate](../integrations.md), or on [several devices](../distributed.md).
