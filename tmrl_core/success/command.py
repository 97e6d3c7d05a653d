"""`python -m tmrl_core --label`: a classifier of success, trained on labelled observations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.cli.main import set_up_logging, shown
from tmrl_core.config.loading import expanded
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.success.classifier import file_content
from tmrl_core.success.examples import divided, read_examples
from tmrl_core.success.threshold import choose_threshold, confusion_at, draw

HIDDEN = (64,)
LEAST_INFORMEDNESS = 0.5
"""A classifier that is worse on held-out sessions is not written."""
EPILOG = """\
DIR holds recorded sessions (--record) whose person said success or failure (worker.interventions), or the folders
success/ and failure/ with images of one camera (.png, .jpg).
examples:
  python -m tmrl_core --label demonstrations --out cube.safetensors
  python -m tmrl_core --label demonstrations --on front wrist --last 3
"""


def parser() -> argparse.ArgumentParser:
    """Return the grammar of a command line after `--label`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --label",
        description="Train a classifier of success. Its threshold is chosen on held-out sessions, a quarter of all.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("folder", metavar="DIR", help="recorded sessions, or success/ and failure/ with images")
    made.add_argument(
        "--out",
        metavar="FILE",
        default="success.safetensors",
        help="file of the classifier (default: success.safetensors); its confusion is drawn beside it, as .png",
    )
    made.add_argument(
        "--on", metavar="KEY", nargs="+", default=[], help="entries of a Dict observation to look at (default: all)"
    )
    made.add_argument(
        "--last",
        type=_positive,
        default=1,
        help="number of last observations that show a session's success (default: 1)",
    )
    made.add_argument(
        "--size", type=_positive, default=64, help="greatest side of images, which are reduced to it (default: 64)"
    )
    made.add_argument("--updates", type=_positive, default=600, help="updates of the training (default: 600)")
    made.add_argument("--seed", type=int, default=0, help="seed of the division and of the training (default: 0)")
    return made


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run_label(arguments: Sequence[str]) -> int:
    """Run a command line with `--label`. Return 1 if the classifier fails on held-out sessions.

    Raises:
        ConfigError: there are too few examples or labels of one kind only, or the file cannot be written.
        StorageError: the recordings are damaged or of different spaces.
        MissingExtraError: torch, matplotlib or Pillow is not installed.
    """
    options = parser().parse_args([word for word in arguments if word != "--label"])
    set_up_logging("info")
    try:
        from tmrl_core.success.training import ClassifierTraining, probabilities
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise MissingExtraError("torch", "trainer", "--label") from exc
    target = expanded(options.out)
    picture = target.with_suffix(".png")
    # Before the training, which takes minutes.
    if target.is_dir() or target == picture or not target.parent.is_dir():
        raise ConfigError(f"--out: found {target}; allowed: a file in an existing folder, such as success.safetensors")
    entries = tuple(options.on)
    examples = read_examples(expanded(options.folder), entries, options.last, options.size)
    if examples.unlabelled:
        print(f"{examples.unlabelled} sessions without a label are left out")
    training, held_out = divided(examples.groups, options.seed)
    for name, part in (("trained on", training), ("held out", held_out)):
        successes = sum(int(group.success.sum()) for group in part)
        failures = sum(len(group.success) for group in part) - successes
        print(f"{name}: {len(part)} sessions, {successes} successes, {failures} failures")
    made = ClassifierTraining(examples.space, training, HIDDEN, options.seed)
    losses = made.run(options.updates)
    probability, success = probabilities(made.actor, held_out)
    threshold = choose_threshold(probability, success)
    found = confusion_at(threshold, probability, success)
    tail = losses[-min(50, len(losses)) :]
    print(
        f"loss {sum(tail) / len(tail):.3f}; threshold {threshold:.3g}: held out, {found.true_success} of "
        f"{found.true_success + found.missed} successes are found, and {found.false_success} of "
        f"{found.false_success + found.true_failure} failures are taken for one"
    )
    good = found.informedness >= LEAST_INFORMEDNESS
    try:
        draw(picture, threshold, probability, success)
        if good:
            content = file_content(
                made.actor.to_bytes(),
                examples.space,
                entries=entries,
                hidden_sizes=HIDDEN,
                threshold=threshold,
                normalized=True,
            )
            target.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{exc.filename or target} cannot be written: {exc.strerror or exc}") from exc
    print(shown(f"{picture}: the confusion"))
    if not good:
        print(
            "No classifier was written: on held-out sessions it hardly tells success from failure. Label more "
            "sessions, or choose other entries (--on)."
        )
        return 1
    print(shown(f"{target}: the classifier. Use it:\n{_usage(target)}"))
    return 0


def _usage(target: Path) -> str:
    return (
        "  environment:\n"
        "    cls: tmrl_core.success:SuccessEnv\n"
        f"    kwargs: {{env: 'my_robot:Robot', kwargs: {{}}, file: '{target.as_posix()}'}}"
    )
