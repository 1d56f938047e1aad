"""Tutorial for theorists: which loss does an optimizer follow, and does it?"""

# %% [markdown]
# # Modified flows
#
# An optimizer takes steps. Between them nothing happens, and yet there is a smooth path through its iterates: the
# flow of a field that differs a little from −∇C. The paper finds the first term of this difference for SGD:
#
# ```math
# \dot\omega = -\nabla\widetilde{C}_{\mathrm{SGD}}(\omega), \quad
# \widetilde{C}_{\mathrm{SGD}} = C + \varepsilon C_{\mathrm{reg}}
# ```
#
# ```math
# C_{\mathrm{reg}} = \frac{1}{4m} \sum_{k=1}^{m} \left\| \nabla\hat{C}_k \right\|^2
# ```
#
# In this tutorial you
#
# 1. measure that this is so, on a problem small enough to average over *all* orders of its minibatches;
# 2. find the flow of an optimizer of your own, to any order, and the loss that it follows;
# 3. ask whether a learning rate is small enough for any of this.
#
# ## A problem, and SGD on it
#
# Logistic regression with three parameters and three minibatches. A `Landscape` sees a problem as a function of one
# flat vector, in float64; any `tacit.Problem` made of a PyTorch model works as well.

# %%
import matplotlib.pyplot as plt
import torch

from tacit import theory

scape = theory.Landscape(theory.problems.logistic(batches=3))
print(f"{scape.size} parameters, {scape.batches_per_epoch} minibatches")

mean = theory.mean_iterate(scape, learning_rate=0.1)
print(mean)
print(f"one epoch of SGD moves the parameters on average by {(mean.mean - scape.start).norm().item():.4f}")

# %% [markdown]
# ## Which flow is closest?
#
# After one epoch the time is mε. Three candidates flow for that time: C itself, gradient descent's C̃_GD = C +
# (ε/4)‖∇C‖², and C̃_SGD. When ε is halved, a distance of order ε² falls to a quarter, one of order ε³ to an eighth.

# %%
# picture: Distance from the mean of SGD against ε: slope two for C and C̃_GD, slope three for C̃_SGD.
candidates = {
    "C": lambda w, rate: scape.loss(w),
    "C + ε‖∇C‖²/4": lambda w, rate: theory.modified_loss_gd(scape, w, learning_rate=rate),
    "C + ε C_reg": lambda w, rate: theory.modified_loss_sgd(scape, w, learning_rate=rate),
}
rates = [2**-4, 2**-5, 2**-6, 2**-7]


def distance(loss, rate):
    field = theory.gradient_flow_field(lambda w: loss(w, rate))
    reached = theory.flow(field, scape.start, time=scape.batches_per_epoch * rate)
    return (theory.mean_iterate(scape, learning_rate=rate).mean - reached).norm().item()


figure, axis = plt.subplots(figsize=(6, 3.6))
print(f"{'ε':14}" + "".join(f"{rate:>12}" for rate in rates) + "   fall per halving")
for (name, loss), colour in zip(candidates.items(), ("#7a7a7a", "#6aa9c4", "#0b6e99"), strict=True):
    far = [distance(loss, rate) for rate in rates]
    print(f"{name:14}" + "".join(f"{value:12.2e}" for value in far) + f"   {far[-2] / far[-1]:.2f}")
    axis.loglog(rates, far, "o-", base=2, color=colour, label=name)
axis.set_xlabel("learning rate ε")
axis.set_ylabel("distance from the mean of SGD")
axis.legend(frameon=False)

# %% [markdown]
# Only the distance from C̃_SGD falls by about eight. If the quarter in C_reg were an eighth, it would fall by four,
# like the others: the order of an error is a sharp test of a coefficient. `tacit verify` makes it for every equation:

# %%
study = theory.verify(scape.problem, only="mean SGD against C̃")
print(study)
assert study.passed

# %% [markdown]
# ## An optimizer of your own
#
# Write one update as a function of the parameters and the learning rate. This one looks ahead: it takes the gradient
# at the place where a first step would lead.


# %%
def look_ahead(w, learning_rate):
    return w - learning_rate * scape.gradient(w - learning_rate * scape.gradient(w))


study = theory.verify_update(look_ahead, scape, name="look-ahead", order=2)
print(study)
assert study.passed

# %% [markdown]
# The sign is the news. Gradient descent *penalises* the gradient, with +¼ ε‖∇C‖²; looking ahead *rewards* it. The
# same coefficients as exact fractions, for methods made of points and gradient steps (f = −∇C, f' its Jacobian, f''
# its second derivative):

# %%
print(theory.modified_flow_symbolic("gd", order=2))
print()
ahead = theory.modified_flow_symbolic(lambda p, step: p + step(p + step(p)), order=2)
print(ahead)
print("to first order it follows", ahead.modified_loss())

# %% [markdown]
# No table knows the next one: a smoothed sign of the gradient. Its flow is the logarithm of the update, found by
# running the update a few times. Two real steps land close to where the flow predicts, and closer with every order:


# %%
def smooth_sign(w, learning_rate):
    g = scape.gradient(w)
    return w - learning_rate * g / torch.sqrt(g**2 + 0.5)


rate = torch.tensor(0.05, dtype=torch.float64)
walked = smooth_sign(smooth_sign(scape.start, rate), rate)
for order in (0, 1, 2, 3):
    predicted = theory.modified_flow(smooth_sign, order=order).integrate(scape.start, learning_rate=0.05, updates=2)
    print(f"order {order}: {(walked - predicted).norm().item():.1e} apart")

found = theory.modified_loss_of(theory.modified_flow(smooth_sign, order=1), scape)
print("a loss that it follows:", found)

# %% [markdown]
# ## One order of the minibatches
#
# The mean over orders follows C̃_SGD. A single order does not: it has a commutator besides, which has no potential,
# and which vanishes on average.

# %%
whole = torch.zeros_like(scape.start)
for order in theory.orders_of(scape.batches_per_epoch).rows:
    one = theory.commutator(scape, order=order.tolist())
    whole += one
    print(f"order {tuple(order.tolist())}: ‖commutator‖ = {one.norm().item():.4f}")
print(f"norm of their sum: {whole.norm().item():.1e}")

# %% [markdown]
# ## Is my learning rate small enough?
#
# The series in ε needs mε‖H‖ to be small. `regime` computes it, and compares the second correction with the first:

# %%
for learning_rate in (0.01, 0.3, 3.0):
    print(theory.regime(scape, learning_rate=learning_rate))
    print()

# %% [markdown]
# Learning rates in practice are often beyond this edge. [The theory, checked](../theory.md) goes on from here: the
# principal flow for rates that are not small, momentum and Adam, moments over many epochs, and what each statement
# was checked with. To see all of it move, open [the explorable page](../explore/index.md).
