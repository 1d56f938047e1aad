"""Rooted trees with coloured nodes, and series on them: points whose every Taylor coefficient is exact.

A tree stands for an elementary differential: a node is an f, its k children are the arguments of the k-th derivative,
so (0, ((0, ()), (0, ()))) is f''[f, f]. A colour says which minibatch a node belongs to. The number of nodes is the
power of ε. Algorithms run literally on series: a gradient evaluation at a point is `TreeSeries.evaluate`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tacit._util.errors import InputError
from tacit.theory.coefficients import exact, simplified
from tacit.theory.polynomials import Polynomial

Tree = tuple[int, tuple[Any, ...]]  # (colour, children in sorted order)
Coefficient = Any  # a Fraction, a sympy expression, or a polynomial in the step number


def tree(colour: int, children: tuple[Tree, ...] = ()) -> Tree:
    return (colour, tuple(sorted(children)))


def nodes(t: Tree) -> int:
    return 1 + sum(nodes(child) for child in t[1])


class TreeSeries:
    """base·ω + Σ coefficient·ε^(nodes)·(elementary differential), truncated at `order` nodes."""

    def __init__(self, order: int, terms: dict[Tree, Coefficient] | None = None, *, base: Coefficient = 0) -> None:
        self.order, self.base = order, base
        self.terms = {t: c for t, c in (terms or {}).items() if nodes(t) <= order and not _is_zero(c)}

    @staticmethod
    def point(order: int) -> TreeSeries:
        """The point ω itself."""
        return TreeSeries(order, base=1)

    __array_ufunc__ = None  # a number of numpy times a series is the series' own product

    def __add__(self, other: TreeSeries) -> TreeSeries:
        if not isinstance(other, TreeSeries):
            raise InputError(f"{other!r} was added to a point or a step; expected a point or a step.")
        terms = dict(self.terms)
        for t, c in other.terms.items():
            terms[t] = terms[t] + c if t in terms else c
        return TreeSeries(min(self.order, other.order), terms, base=self.base + other.base)

    def __rmul__(self, factor: Coefficient) -> TreeSeries:
        factor = factor if isinstance(factor, Polynomial) else exact(factor)
        base = 0 if self.base == 0 else self.base * factor
        return TreeSeries(self.order, {t: c * factor for t, c in self.terms.items()}, base=base)

    __mul__ = __rmul__

    def __truediv__(self, number: Coefficient) -> TreeSeries:
        if number == 0:
            raise InputError("a point or a step is divided by zero; expected another number.")
        return (1 / exact(number)) * self

    def __neg__(self) -> TreeSeries:
        return (-1) * self

    def __sub__(self, other: TreeSeries) -> TreeSeries:
        return self + (-1) * other

    def evaluate(self, colour: int = 0) -> TreeSeries:
        """ε f_colour at this point: a new root, over every multiset of this series' trees, with 1/n! for repetitions.

        f(ω + x) = Σₖ f⁽ᵏ⁾[x, …, x]/k!
        """
        self.require_point()
        forests: list[tuple[tuple[Tree, ...], Coefficient, int]] = [((), Fraction(1), 0)]
        for t, c in self.terms.items():
            size, grown = nodes(t), []
            for children, weight, used in forests:
                power = weight
                for count in range((self.order - 1 - used) // size + 1):
                    grown.append((children + (t,) * count, power / math.factorial(count), used + count * size))
                    power = power * c if count < (self.order - 1 - used) // size else power
            forests = grown
        total: dict[Tree, Coefficient] = {}
        for children, weight, _ in forests:
            made = tree(colour, children)
            total[made] = total[made] + weight if made in total else weight
        return TreeSeries(self.order, total)

    def require_point(self) -> None:
        """Refuse a sum of points whose weights do not add up to 1: it is no point."""
        if self.base != 1 and simplified(self.base - 1) != 0:
            # In floats 0.7 and 1 − 0.7 add up to more than 1: nothing is rounded here, so the user hears of it.
            raise InputError(
                f"the weights of the points add up to {simplified(self.base)}; expected 1, as in p + c * step(p). A "
                "mean of two points in floats is p + c * (q - p)."
            )

    def of_size(self, size: int) -> dict[Tree, Coefficient]:
        return {t: c for t, c in sorted(self.terms.items()) if nodes(t) == size}


def _is_zero(coefficient: Coefficient) -> bool:
    return bool(coefficient == 0)


# -- from coloured sums to free sums ----------------------------------------------------------------------------------
def free_sums(terms: dict[Tree, Coefficient]) -> dict[Tree, Coefficient]:
    """Coefficients of sums over free indices, from those of explicitly coloured trees.

    The average over orders depends only on which nodes share a colour. A sum over free indices with pattern σ (nodes
    of one block share an index) also covers every coarser pattern, so coarser ones are corrected: Möbius inversion on
    the lattice of set partitions. In the result a colour is the name of an index that runs over all minibatches.
    """
    found: dict[Tree, Coefficient] = {}
    for shape in {_uncoloured(t) for t in terms}:
        size = nodes(shape)
        inverted: dict[tuple[int, ...], Coefficient] = {}
        for pattern in sorted(_patterns(size), key=lambda p: -max(p)):  # finest first
            coloured = _paint(shape, iter(pattern))
            own = terms.get(coloured, Fraction(0)) / _paintings(shape, coloured)
            finer = [value for other, value in inverted.items() if _refines(other, pattern)]
            inverted[pattern] = own - sum(finer)
        for pattern, value in inverted.items():
            name = _canonical_indices(_paint(shape, iter(pattern)))
            found[name] = found.get(name, 0) + value
    return {t: c for t, c in sorted(found.items()) if not _is_zero(c)}


def _uncoloured(t: Tree) -> Tree:
    return tree(0, tuple(_uncoloured(child) for child in t[1]))


def _paint(shape: Tree, colours: Iterator[int]) -> Tree:
    own = next(colours)
    return tree(own, tuple(_paint(child, colours) for child in shape[1]))


def _patterns(size: int) -> list[tuple[int, ...]]:
    """Set partitions of the nodes, as block numbers in order of first appearance."""
    found: list[tuple[int, ...]] = [(0,)]
    for _ in range(size - 1):
        found = [(*p, block) for p in found for block in range(max(p) + 2)]
    return found


def _refines(finer: tuple[int, ...], coarser: tuple[int, ...]) -> bool:
    """Whether nodes that share a block in `finer` share one in `coarser`, strictly."""
    if finer == coarser:
        return False
    return len(set(zip(finer, coarser, strict=True))) == len(set(finer))


def _paintings(shape: Tree, coloured: Tree) -> int:
    """How many assignments of these colours to the nodes give this coloured tree: |Aut(shape)| / |Aut(coloured)|."""
    return _symmetry(shape) // _symmetry(coloured)


def _symmetry(t: Tree) -> int:
    repeats = [len(list(group)) for _, group in itertools.groupby(t[1])]
    return math.prod(map(math.factorial, repeats)) * math.prod(_symmetry(child) for child in t[1])


def indices(t: Tree) -> list[int]:
    """The colours of a tree, sorted."""
    return sorted({t[0]}.union(*[indices(child) for child in t[1]]))


def repaint(t: Tree, names: dict[int, int]) -> Tree:
    return tree(names[t[0]], tuple(repaint(child, names) for child in t[1]))


def _canonical_indices(t: Tree) -> Tree:
    used = indices(t)
    return min(repaint(t, dict(zip(used, names, strict=True))) for names in itertools.permutations(range(len(used))))


# -- as text ----------------------------------------------------------------------------------------------------------
SUBSCRIPTS = "ᵢⱼₖₗₘₙ"


def tree_text(t: Tree, *, indexed: bool = False) -> str:
    """f''[f,f'f] and the like.

    >>> tree_text(tree(0, (tree(0), tree(0, (tree(0),)))))
    "f''[f,f'f]"
    """
    own = "f" + (SUBSCRIPTS[t[0]] if indexed else "") + "'" * len(t[1])
    return own + _arguments([tree_text(child, indexed=indexed) for child in t[1]])


def tree_latex(t: Tree, *, indexed: bool = False) -> str:
    own = "f" + (f"_{'ijklmn'[t[0]]}" if indexed else "") + "'" * len(t[1])
    return own + _arguments([tree_latex(child, indexed=indexed) for child in t[1]])


def _arguments(texts: list[str]) -> str:
    if len(texts) <= 1:
        return "".join(texts)
    return f"[{','.join(sorted(texts, key=lambda text: (len(text), text)))}]"
