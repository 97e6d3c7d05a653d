"""The threshold of a success classifier, and its confusion on examples that it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tmrl_core.metrics.figure import new_figure

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Confusion(NamedTuple):
    """Numbers of examples by their label and the classifier's answer."""

    true_success: int
    missed: int
    """Successes that are taken for failures."""
    false_success: int
    true_failure: int

    @property
    def informedness(self) -> float:
        """Share of successes that are found, less the share of failures that are taken for successes."""
        found = self.true_success / max(1, self.true_success + self.missed)
        return found - self.false_success / max(1, self.false_success + self.true_failure)


def confusion_at(threshold: float, probability: Floats, success: Flags) -> Confusion:
    """Return the confusion of a threshold.

    Args:
        threshold: least probability of a success.
        probability: [n] of the classifier.
        success: [n] labels.
    """
    said = probability >= threshold
    pairs = ((said & success), (~said & success), (said & ~success), (~said & ~success))
    return Confusion(*(int(np.count_nonzero(pair)) for pair in pairs))


def choose_threshold(probability: Floats, success: Flags) -> float:
    """Return the threshold with the best informedness; of equal ones, that with the widest gap around it.

    Args:
        probability: [n] of the classifier, of held-out examples with both labels.
        success: [n] labels.
    """
    values = np.unique(np.concatenate([[0.0], probability, [1.0]]))
    middles = (values[1:] + values[:-1]) / 2
    best = max(
        zip(middles.tolist(), np.diff(values).tolist(), strict=True),
        key=lambda pair: (confusion_at(pair[0], probability, success).informedness, pair[1]),
    )
    return float(best[0])


def draw(path: Path, threshold: float, probability: Floats, success: Flags) -> None:
    """Draw the confusion, and the probabilities of both kinds of examples, as a PNG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure = new_figure("Drawing a confusion", 9.0, 4.4, dpi=120, layout="constrained")
    table, bars = figure.subplots(1, 2, width_ratios=(1, 1.4))
    found = confusion_at(threshold, probability, success)
    counts = np.array([[found.true_success, found.missed], [found.false_success, found.true_failure]])
    table.imshow(counts / counts.sum(axis=1, keepdims=True), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(2, 2):
        share = counts[row, column] / counts[row].sum()
        table.text(
            column,
            row,
            f"{counts[row, column]}\n{100 * share:.0f} %",
            ha="center",
            va="center",
            color="white" if share > 0.5 else "black",
        )
    table.set_xticks([0, 1], ["success", "failure"])
    table.set_yticks([0, 1], ["success", "failure"], rotation=90, va="center")
    table.set_xlabel("classifier")
    table.set_ylabel("label")
    table.set_title("held-out sessions")
    edges = np.linspace(0, 1, 21)
    for label, color, kind in ((~success, "#7b8794", "failures"), (success, "#2f855a", "successes")):
        bars.hist(
            probability[label], edges, weights=np.full(label.sum(), 1 / label.sum()), alpha=0.7, color=color, label=kind
        )
    bars.axvline(threshold, color="#b0305c", label=f"threshold {threshold:.3g}")
    bars.set_xlabel("probability of success")
    bars.set_ylabel("share of examples")
    bars.legend(loc="upper center")
    figure.savefig(path, format="png")
