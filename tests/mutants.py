"""Named edits that must turn a test red, one at a time: `make mutants`, or `python tests/mutants.py NAME …` for some.

Every mutant is applied to a temporary copy of the source and tests; the working tree is never touched. The tests it
names run there against the edited package. A mutant counts as killed only when a test fails: an edit that does not
import, or names no test, is reported as broken, and one that passes as survived.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "studies", "README.md", "pyproject.toml")
TESTS_FAILED, ALL_PASSED = 1, 0  # pytest's exit codes


@dataclass(frozen=True)
class Mutant:
    """What breaks, where, and which tests must notice."""

    name: str
    file: str  # below src/tacit
    old: str
    new: str
    tests: tuple[str, ...]  # below tests


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, old, new, tests)


MUTANTS: tuple[Mutant, ...] = (
    # -- randomness and batching --------------------------------------------------------------------------------------
    mutant(
        "streams share their numbers",
        "_random.py",
        '["tacit", str(int(seed)), stream, *',
        '["tacit", str(int(seed)), *',
        "test_random.py",
    ),
    mutant(
        "every epoch is shuffled alike",
        "batching.py",
        '{"shuffled": epoch,',
        '{"shuffled": 0,',
        "test_batching.py",
    ),
    mutant(
        "mirrored epochs do not come back",
        "batching.py",
        'return batches[::-1] if order == "mirrored" and epoch % 2 else batches',
        "return batches",
        "test_batching.py",
    ),
    mutant(
        "mirrored epochs draw a new partition each time",
        "batching.py",
        '"mirrored": epoch - epoch % 2',
        '"mirrored": epoch',
        "test_batching.py",
    ),
    mutant(
        "with replacement repeats examples inside a minibatch",
        "batching.py",
        "torch.randperm(train_size, generator=draws)[:batch_size]",
        "torch.randint(train_size, (batch_size,), generator=draws)",
        "test_batching.py",
    ),
    mutant(
        "a remainder is kept when it was to be dropped",
        "batching.py",
        "examples.split(batch_size)[:updates]",
        "examples.split(batch_size)",
        "test_batching.py",
    ),
    # -- problem ------------------------------------------------------------------------------------------------------
    mutant(
        "batch norm writes into the problem's buffers",
        "problem.py",
        "{name: value.clone() for name, value in self._constants.items()}",
        "dict(self._constants)",
        "test_problem.py",
    ),
    mutant(
        "the problem shares buffers with the model",
        "problem.py",
        "name: self._cast(value.detach().clone()) for name, value in [*constants",
        "name: self._cast(value.detach()) for name, value in [*constants",
        "test_problem.py",
    ),
    mutant(
        "weight decay without its half",
        "problem.py",
        "value = value + 0.5 * self.weight_decay",
        "value = value + self.weight_decay",
        "test_problem.py",
    ),
    mutant(
        "a tiny mean is called a sum",
        "problem.py",
        "rtol=1e-3, atol=0.0)",
        "rtol=1e-3)",
        "test_problem.py",
    ),
    # -- schedules and n-step SGD -------------------------------------------------------------------------------------
    mutant(
        "the decay begins a tenth late",
        "schedules.py",
        "0.5 ** max(0, tenths_done - 4)",
        "0.5 ** max(0, tenths_done - 5)",
        "test_schedules.py",
    ),
    mutant(
        "inner steps add up their gradients",
        "nstep.py",
        "            self.zero_grad()\n",
        "",
        "test_nstep.py",
    ),
    mutant(
        "the effective rate forgets n",
        "nstep.py",
        "return self.inner_steps * rates.pop()",
        "return rates.pop()",
        "test_nstep.py",
    ),
    mutant(
        "weight decay with the wrong sign",
        "nstep.py",
        'alpha=group["weight_decay"])',
        'alpha=-group["weight_decay"])',
        "test_nstep.py",
    ),
    # -- other people's coefficients ----------------------------------------------------------------------------------
    mutant(
        "λ = c instead of 2c, both ways",
        "convert.py",
        "    return fact.per_unit(**",
        "    return 0.5 * fact.per_unit(**",
        "test_convert.py",
    ),
    mutant(
        "autograd-pen taken for the other implementations",
        "convert.py",
        'lambda learning_rate: learning_rate / 2,\n            "implementation = autograd-pen',
        'lambda learning_rate: learning_rate / 4,\n            "implementation = autograd-pen',
        "test_convert.py",
    ),
    # -- the penalty --------------------------------------------------------------------------------------------------
    mutant(
        "double backward with λ/2 for λ/4",
        "penalty/double_backward.py",
        "(loss + task.strength / 4 * share)",
        "(loss + task.strength / 2 * share)",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "the Gram penalty with λ/2 for λ/4",
        "penalty/gram.py",
        "(task, loss + task.strength / 4 * share,",
        "(task, loss + task.strength / 2 * share,",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "the Gram penalty with the wrong sign",
        "penalty/gram.py",
        "(task, loss + task.strength / 4 * share,",
        "(task, loss - task.strength / 4 * share,",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "the Gram form forgets the biases",
        "penalty/_squared_norms.py",
        "            input_gram += 1\n",
        "            pass\n",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "a layer used twice is two layers in the norm",
        "penalty/_passes.py",
        "by_weight.setdefault(id(site.weight), []).append(site)",
        "by_weight.setdefault(id(site), []).append(site)",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "hidden uses of a weight are overlooked",
        "penalty/gram.py",
        "by_autograd = capture.used_otherwise | hidden",
        "by_autograd = capture.used_otherwise",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "two-pass methods apply λ for λ/2",
        "penalty/_two_pass.py",
        "torch._foreach_mul_(results, self.task.strength / 2)",
        "torch._foreach_mul_(results, self.task.strength)",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "ascent goes twice as far uphill",
        "penalty/ascent.py",
        "half = task.strength / 2",
        "half = task.strength",
        "test_convert.py",
    ),
    mutant(
        "buffers keep what the second pass wrote",
        "penalty/_state.py",
        "                buffer.copy_(saved)\n",
        "",
        "penalty/test_methods.py::test_state_comes_back_bitwise",
    ),
    mutant(
        "the user's own generator is not rewound",
        "penalty/_state.py",
        "            generator.set_state(state)\n",
        "            pass\n",
        "penalty/test_methods.py::test_a_generator_of_the_users_own_comes_back",
    ),
    mutant(
        "the second pass sees another dropout mask",
        "penalty/_state.py",
        "    start.restore()\n",
        "",
        "penalty/test_methods.py::test_exact_methods_agree_with_the_hessian",
    ),
    mutant(
        "parameters stay moved after the second pass",
        "penalty/_state.py",
        "            parameter.data = original\n",
        "            pass\n",
        "penalty/test_methods.py::test_state_comes_back_bitwise",
    ),
    mutant(
        "micro-batches are summed, not averaged",
        "penalty/gradient_penalty.py",
        "weight=task.weight / len(pieces)",
        "weight=task.weight",
        "penalty/test_gradient_penalty.py::test_micro_batches_average_the_penalty_of_each",
    ),
    mutant(
        "probability without its 1/p",
        "penalty/gradient_penalty.py",
        "return strength / self.probability if heads else 0.0",
        "return strength if heads else 0.0",
        "penalty/test_gradient_penalty.py::test_probability_weights_the_penalty_by_its_inverse",
    ),
    mutant(
        "every k without its k",
        "penalty/gradient_penalty.py",
        "return strength * self.every if",
        "return strength if",
        "penalty/test_gradient_penalty.py::test_every_k_has_the_penalty_of_plain_steps_on_average",
    ),
    mutant(
        "the loss scale is squared into the penalty",
        "penalty/gram.py",
        " / task.scale**2",
        "",
        "penalty/test_gradient_penalty.py::test_a_grad_scaler_scales_gradients_and_not_the_penalty",
    ),
    mutant(
        "excluded parameters stay in the norm",
        "penalty/gradient_penalty.py",
        "if name not in left_out}",
        "if name}",
        "penalty/test_gradient_penalty.py::test_excluded_parameters_are_not_in_the_norm_but_receive_its_gradient",
    ),
    mutant(
        "the factored update forgets weight decay",
        "penalty/factored_sgd.py",
        "beta=shrink",
        "beta=1.0",
        "penalty/test_methods.py::test_the_factored_step_equals_sgd_on_the_penalised_gradient",
    ),
    mutant(
        "a visit of the input gradient is always waited for",
        "penalty/_passes.py",
        "found = [site.input_gradient_node in reached for site in sites]",
        "found = [site.input_gradient_node is not None for site in sites]",
        "penalty/test_gram_terms.py",
    ),
    mutant(
        "a layer that was passed loses the tangents that come later",
        "penalty/_sites.py",
        "            to_weight = self.weight_gradient(tangents, output_gradient.detach())\n",
        "            pass\n",
        "penalty/test_gram_terms.py",
    ),
    mutant(
        "the check of the first step looks at the norm only",
        "penalty/_check.py",
        '    raise InputError(\n        f"the gradient of',
        '    return True\n    raise InputError(\n        f"the gradient of',
        "penalty/test_gram_terms.py",
    ),
    mutant(
        "buffers keep what a second backward pass writes through a checkpoint",
        "penalty/_buffers.py",
        "        if not self.changed():",
        "        if True:",
        "penalty/test_checkpointing.py",
    ),
    mutant(
        "x W is taken for x Wᵀ",
        "penalty/_capture.py",
        "transposed = call.transposed if weight is call.weight else not call.transposed",
        "transposed = call.transposed",
        "penalty/test_layer_calls.py",
    ),
    mutant(
        "one Gram matrix for all micro-batches",
        "penalty/_layers.py",
        "return tensor.reshape(self.micro_batches, -1, tensor.shape[-1])",
        "return rows(tensor)",
        "penalty/test_micro_batches.py",
    ),
    mutant(
        "one pass sums the penalties of micro-batches",
        "penalty/_one_pass.py",
        "/ (count * task.scale**2)",
        "/ task.scale**2 * 1",
        "penalty/test_micro_batches.py",
    ),
    mutant(
        "one pass writes buffers for all micro-batches at once",
        "penalty/_micro_batch_capture.py",
        "        if args and id(args[0]) in self.buffers and _writes(func):",
        "        if False:",
        "penalty/test_micro_batches.py",
    ),
    mutant(
        "one pass is never compared with the loop",
        "penalty/_micro_batches.py",
        "if (self.compared and not compare) or start.torch_has_drawn():",
        "if True:",
        "penalty/test_micro_batches.py",
    ),
    # -- theory -------------------------------------------------------------------------------------------------------
    mutant(
        "a half for the quarter of C_reg",
        "theory/modified_losses.py",
        "return squared_norm / 4",
        "return squared_norm / 2",
        "theory/test_modified_losses.py",
    ),
    mutant(
        "C_reg sums over minibatches instead of averaging",
        "theory/modified_losses.py",
        "scape.minibatch_gradients(w).square().sum(1).mean())",
        "scape.minibatch_gradients(w).square().sum(1).sum())",
        "theory/test_modified_losses.py",
    ),
    mutant(
        "n-step SGD regularizes with the effective rate",
        "theory/modified_losses.py",
        "learning_rate=effective_learning_rate / inner_steps)",
        "learning_rate=effective_learning_rate)",
        "theory/test_verification.py",
        "theory/test_modified_losses.py",
    ),
    mutant(
        "1/6 for the 1/12 of gradient descent's second correction",
        "theory/corrections.py",
        "scape.third(w, g, g) / 12",
        "scape.third(w, g, g) / 6",
        "theory/test_corrections.py",
    ),
    mutant(
        "the double bracket with m/6 for m/12",
        "theory/corrections.py",
        "return -scape.batches_per_epoch / 12 * (thirds - 2 * crossed)",
        "return -scape.batches_per_epoch / 6 * (thirds - 2 * crossed)",
        "theory/test_corrections.py",
    ),
    mutant(
        "sample covariance for population covariance",
        "theory/modified_losses.py",
        "return (gradients - gradients.mean(0)).square().sum(1).mean()",
        "return (gradients - gradients.mean(0)).square().sum(1).sum() / (len(gradients) - 1)",
        "theory/test_modified_losses.py",
    ),
    # -- studies ------------------------------------------------------------------------------------------------------
    mutant(
        "a fleet penalises with λ/8",
        "studies/train/batched_mlp.py",
        "half = rates.learning_rate * rates.strength / 2  #",
        "half = rates.learning_rate * rates.strength / 4  #",
        "studies/train/test_batched_mlp.py",
    ),
    mutant(
        "a fleet's Gram form forgets the biases",
        "studies/train/batched_mlp.py",
        "        moved += d.sum(1, keepdim=True)\n",
        "",
        "studies/train/test_batched_mlp.py",
    ),
    mutant(
        "weight decay outside the penalised norm of a fleet",
        "studies/train/batched_mlp.py",
        "(1 + rates.strength * rates.weight_decay / 2)",
        "1.0",
        "studies/train/test_batched_mlp.py",
    ),
    mutant(
        "all runs of a fleet share the first run's order",
        "studies/train/training.py",
        "order=run.order, seed=run.seed, epoch=epoch",
        "order=run.order, seed=self.first.seed, epoch=epoch",
        "studies/train/test_training.py",
    ),
    mutant(
        "a diverged run goes on being recorded",
        "studies/train/training.py",
        "            if at is None:\n                for name, value",
        "            if True:\n                for name, value",
        "studies/train/test_training.py",
    ),
    mutant(
        "the stored C_reg has a half for its quarter",
        "studies/train/training.py",
        "(total / (4 * self.first.batches_per_epoch))",
        "(total / (2 * self.first.batches_per_epoch))",
        "studies/train/test_training.py",
    ),
    mutant(
        "images mirrored before the crop's place is counted",
        "studies/data/augment.py",
        "width - 1 - across, across) + crops.left[:, None]",
        "width - across, across) + crops.left[:, None]",
        "studies/data/test_augment.py",
    ),
    mutant(
        "the last place of a crop is never drawn",
        "studies/data/augment.py",
        "torch.randint(2 * padding + 1, (2, rows)",
        "torch.randint(2 * padding, (2, rows)",
        "studies/data/test_augment.py",
    ),
    mutant(
        "every position is augmented alike",
        "studies/data/augment.py",
        'generator(seed, "augment", position)',
        'generator(seed, "augment")',
        "studies/data/test_augment.py",
    ),
    mutant(
        "weight decay outside the penalised norm of a Wide-ResNet",
        "studies/train/module_program.py",
        "return self.run.strength > 0 and self.run.weight_decay_penalized",
        "return False",
        "studies/train/test_module_program.py",
    ),
    mutant(
        "the C_reg of a single run forgets weight decay",
        "studies/train/module_program.py",
        "torch._foreach_add_(gradients, self.parameters, alpha=self.run.weight_decay)",
        "pass",
        "studies/train/test_module_program.py",
    ),
    mutant(
        "a key of a later version is hashed at its default",
        "studies/describe/spec.py",
        "if key not in LATER or value != LATER[key]",
        "if True",
        "studies/describe/test_study.py",
    ),
    mutant(
        "the worst 5 of 7 instead of the best",
        "report/points.py",
        "np.sort(values)[len(values) - kept :]",
        "np.sort(values)[:kept]",
        "report/test_layout.py",
    ),
    # -- the folder of a study ----------------------------------------------------------------------------------------
    mutant(
        "a file that cannot be read is damaged",
        "studies/store/folder.py",
        "        except ValueError as error:\n            return Damage(error)",
        "        except (OSError, ValueError) as error:\n            return Damage(error)",
        "studies/store/test_folder.py",
    ),
    mutant(
        "damaged rows are deleted",
        "studies/store/folder.py",
        'os.replace(path, path.with_name("rows.damaged.jsonl"))',
        "path.unlink()",
        "studies/store/test_folder.py",
    ),
    mutant(
        "an empty checkpoint is no checkpoint",
        "studies/store/folder.py",
        'return EMPTY if content == b"" else content',
        "return content",
        "studies/store/test_folder.py",
    ),
    mutant(
        "a file is written through a link",
        "studies/store/folder.py",
        "temporary.unlink(missing_ok=True)  # left by a crash, or a link that somebody put there\n                "
        'with open(temporary, "xb")',
        'with open(temporary, "wb")',
        "studies/store/test_folder.py",
    ),
    mutant(
        "memory is asked for the largest file",
        "_parsing.py",
        "opened.read(found.st_size + 1)",
        "opened.read(most + 1)",
        "faults/test_hostile_files.py",
    ),
    # -- data ---------------------------------------------------------------------------------------------------------
    mutant(
        "a gzip bomb is unpacked to its end",
        "studies/data/streams.py",
        "if total > limit:",
        "if total > 1e18:",
        "studies/data/test_streams.py",
    ),
    mutant(
        "a changed batch in CIFAR-10's archive is read",
        "studies/data/cifar10.py",
        "if found != content.sha256:",
        "if False:",
        "studies/data/test_cifar10.py",
    ),
    mutant(
        "a fetched file is not checked",
        "studies/data/download.py",
        "return None if found.right else found.words",
        "return None",
        "studies/data/test_download.py",
    ),
    mutant(
        "a cut transfer begins anew",
        "studies/data/download.py",
        "    if have:\n        headers",
        "    if False:\n        headers",
        "studies/data/test_download.py",
    ),
    mutant(
        "a changed file hides behind the cache",
        "studies/data/cache.py",
        'if source is not None and facts.get("source") != source:',
        "if False:",
        "studies/data/test_files_of_data.py",
    ),
    # -- executors ----------------------------------------------------------------------------------------------------
    mutant(
        "a fleet is tried a fourth time",
        "studies/execute/attempts.py",
        "if count >= self.limit:",
        "if count > self.limit:",
        "studies/execute/test_attempts.py",
    ),
    mutant(
        "a retry forgets the last checkpoint",
        "studies/execute/attempts.py",
        "checkpoint=checkpoint or task.checkpoint",
        "checkpoint=task.checkpoint",
        "studies/execute/test_attempts.py",
    ),
    mutant(
        "workers are started for ever",
        "studies/execute/pool.py",
        "if lost.broken or self._false_starts >= max(FALSE_STARTS, LOST_AT_ONCE * self.workers):",
        "if lost.broken:",
        "studies/execute/test_attempts.py",
    ),
    mutant(
        "a job script does not quote the study's words",
        "studies/execute/slurm.py",
        "{shlex.join(words)}",
        "{' '.join(words)}",
        "studies/execute/test_slurm.py",
    ),
    mutant(
        "machines with other versions are mixed in",
        "studies/execute/ray/executor.py",
        "if theirs.get(name) != ours[name]]",
        "if False]",
        "studies/execute/test_ray_executor.py::test_a_machine_with_another_torch_is_refused",
    ),
    mutant(
        "a Ray worker holds checkpoints without end",
        "studies/execute/ray/worker.py",
        "queue.Queue(maxsize=UNREAD)",
        "queue.Queue()",
        "studies/execute/test_ray_executor.py::test_a_worker_waits_when_nobody_fetches_and_loses_nothing",
    ),
    mutant(
        "a finished study is refused as too long",
        "studies/runner.py",
        "estimate.refuse_absurd(unfinished(folder, fleets),",
        "estimate.refuse_absurd(fleets,",
        "studies/execute/test_running.py::test_a_finished_study_is_never_too_long_for_this_machine",
    ),
    mutant(
        "SIGTERM while Ray waits counts as Ctrl-C",
        "studies/execute/signals.py",
        "        if heard:",
        "        if False:",
        "studies/test_cli_run.py",
    ),
    mutant(
        "every core starts a worker on the one GPU",
        "studies/runner.py",
        'cores() if trains_on(device) == "cpu" else 1',
        "cores()",
        "studies/train/test_devices.py",
    ),
    # -- workers with a model each ------------------------------------------------------------------------------------
    mutant(
        "the global batch's gradient is a sum over workers",
        "penalty/_distributed.py",
        "flat /= self._world()",
        "flat /= 1",
        "penalty/test_distributed.py",
    ),
    mutant(
        "a later pass of a step replaces an earlier one",
        "penalty/_distributed.py",
        "gradient if known is None else known + gradient",
        "gradient",
        "penalty/test_distributed.py",
    ),
    mutant(
        "uneven batches pass",
        "penalty/_distributed.py",
        "if len(set(fingerprints)) > 1:",
        "if False:",
        "penalty/test_distributed_faults.py",
    ),
    mutant(
        "an overflow of float16 counts as a use of a parameter that was missed",
        "penalty/_check.py",
        "if not (norm.isfinite() and plain_norm.isfinite()):",
        "if False:",
        "penalty/test_half_precision.py",
    ),
    # -- figures of the paper's scale ---------------------------------------------------------------------------------
    mutant(
        "whole batches make 6400 epochs another length than 10 million steps",
        "report/rows.py",
        "SAME_LENGTH = 0.005",
        "SAME_LENGTH = 0.001",
        "studies/describe/test_paper_studies.py",
        "report",
    ),
    mutant(
        "figure 3b takes runs without a penalty",
        "report/figures/fig3_batch_sizes.py",
        '"reads": penalized,',
        '"reads": plain,',
        "report/test_verdicts.py",
    ),
)


def apply(change: Mutant, tree: Path) -> None:
    """Edit the copy in `tree`; refuses when the old text is not there exactly once."""
    path = tree / "src" / "tacit" / change.file
    text = path.read_text()
    if text.count(change.old) != 1:
        found = f"the old text occurs {text.count(change.old)} times in {change.file}"
        raise SystemExit(f"{change.name}: {found}; expected once.")
    path.write_text(text.replace(change.old, change.new))


def copy_tree(into: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, into / name)
    return into


def run_tests(tree: Path, tests: tuple[str, ...], *, stop_early: bool) -> tuple[int, str]:
    """Pytest's exit code and last line, with the package imported from the copy."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # an edit within the same second would otherwise meet stale bytecode
        "OMP_NUM_THREADS": "1",
    }
    where = subprocess.run(
        [sys.executable, "-c", "import tacit; print(tacit.__file__)"],
        env=environment, cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if not where.stdout.startswith(str(tree)):
        raise SystemExit(f"the tests would import {where.stdout.strip()} and not the copy.")
    paths = [str(Path("tests") / test) for test in tests]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not slow", *(["-x"] if stop_early else []), *paths]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else done.stderr.strip()[-200:]


def try_mutant(change: Mutant) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = copy_tree(Path(folder))
        apply(change, tree)
        code, line = run_tests(tree, change.tests, stop_early=True)
    return {TESTS_FAILED: "killed", ALL_PASSED: "SURVIVED"}.get(code, "BROKEN"), line


def try_baseline(mutants: list[Mutant]) -> None:
    """Without any edit the named tests must pass, or a red test would mean nothing."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tests = tuple(sorted({test for change in mutants for test in change.tests}))
        code, line = run_tests(copy_tree(Path(folder)), tests, stop_early=False)
    print(f"baseline: {line}", flush=True)
    if code != ALL_PASSED:
        raise SystemExit("the tests fail without any mutant; repair them first.")


def main(names: list[str]) -> None:
    unknown = set(names) - {change.name for change in MUTANTS}
    if unknown:
        raise SystemExit(f"no mutant is named {sorted(unknown)[0]!r}.")
    chosen = [change for change in MUTANTS if not names or change.name in names]
    began = time.monotonic()
    try_baseline(chosen)
    outcomes = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for change, (outcome, line) in zip(chosen, pool.map(try_mutant, chosen), strict=True):
            outcomes.append(outcome)
            print(f"{outcome:9} {change.file:28} {change.name:55} {line}", flush=True)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    if killed < len(chosen):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
