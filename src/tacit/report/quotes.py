"""What the paper says about each figure, word for word and short, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quote:
    """At most 25 words of the paper (symbols written in Unicode), and their place."""

    text: str
    where: str


QUOTES = {
    "1a": Quote(
        "Explicitly including the implicit regularizer in the loss improves the test accuracy when training with small "
        "learning rates.",
        "caption of figure 1a",
    ),
    "1b": Quote("The optimal regularization coefficient λ_opt = 2⁻⁶ is equal to the optimal learning rate ε_opt = 2⁻⁶.",
                "caption of figure 1b"),
    "1c": Quote("Increasing either the learning rate ε or the regularization coefficient λ reduces the value of the "
                "implicit regularization term", "caption of figure 1c"),
    "2a": Quote("There is a clear generalization benefit to large learning rates when training on the original loss",
                "caption of figure 2a"),
    "2b": Quote("the generalization benefit of large learning rates is diminished", "caption of figure 2b"),
    "3a": Quote("Different batch sizes achieve the same test accuracy if the ratio of the learning rate to the batch "
                "size (ε/B) is constant", "caption of figure 3a"),
    "3b": Quote("The test accuracy is independent of the batch size if the ratio of the regularization coefficient to "
                "the batch size (λ/B) is constant.", "caption of figure 3b"),
    "4a": Quote("smaller values of n are stable at larger bare learning rates α, and this enables them to achieve "
                "higher test accuracies", "caption of figure 4a"),
    "4b": Quote("Similar conclusions hold when training for a fixed number of updates.", "caption of figure 4b"),
    "4c": Quote("We find that smaller values of n consistently achieve higher test accuracy.", "caption of figure 4c"),
    "5a": Quote("we achieve high training accuracies when λ is small, but are unable to achieve high training "
                "accuracies when λ is large", "caption of figure 5a, appendix C"),
    "5b": Quote("large learning rates and large regularization coefficients achieve similar training accuracies and "
                "similar original losses", "text on figure 5, appendix C"),
    "6a": Quote("Tuning the regularization scale λ has a similar influence on test accuracy to tuning the learning "
                "rate ε", "caption of figure 6a, appendix D"),
    "6b": Quote("We obtain similar accuracies at different batch sizes if the ratio ε/B is constant.",
                "caption of figure 6b, appendix D"),
    "6c": Quote("We obtain similar accuracies at different batch sizes if the ratio (λ/B) is constant.",
                "caption of figure 6c, appendix D"),
    "7a": Quote("achieve similar test accuracies for different values of n, so long as the bare learning rate α is the "
                "same", "caption of figure 7a, appendix D"),
    "7b": Quote("We observe a similar phenomenon when training for a fixed number of parameter updates.",
                "caption of figure 7b, appendix D"),
    "7c": Quote("Different values of n achieve similar test accuracies at their optimal learning rate, across a range "
                "of epoch budgets.", "caption of figure 7c, appendix D"),
    "orders": Quote("reversing the second epoch has the same effect as taking the mean across all possible sequences "
                    "of minibatches", "implied by section 2.2, not shown in the paper"),
}  # fmt: skip
