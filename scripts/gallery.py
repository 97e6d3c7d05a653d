"""Make the pictures of docs/learning_curves.md and of README.md: a good and a bad run of each configuration.

python scripts/gallery.py                       draw all pictures again, and write the page, from the stored curves
python scripts/gallery.py --run pendulum_td3    make its two runs, store their curves, then draw
python scripts/gallery.py --run all             all of them: an hour on two cores
python scripts/gallery.py --check               check that the page is up to date (exit status 1: it is not)
"""

# Theory of operation
#
# A good run is the file of `config/` as it stands. A bad run is the same file with one mistake that people make, and as
# many updates as the good run needs and some more: a mistake that only makes learning slower shall be seen as that.
# Both have the seed of `SEED`, which was written here before the first of them ran, and one worker, so that a picture
# can be compared with what a reader types. A run is a process of the command line in a folder of its own.
#
# The curve of each run is stored as a small CSV file, in `CURVES`, and pictures are drawn from these: a change of the
# drawing needs no learning. Runs end by updates or targets, never by time alone, because the seconds are those of
# whatever else the machine does; `LONGEST_S` only ends a run that something has stopped.

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tmrl_core.config import Config, load  # noqa: E402
from tmrl_core.metrics import draw as draw_run  # noqa: E402
from tmrl_core.metrics import names, read_records  # noqa: E402

PAGE = ROOT / "docs" / "learning_curves.md"
PICTURES = ROOT / "docs" / "pictures"
CURVES = ROOT / "benchmarks" / "results" / "gallery_epyc2core_202611"
SEED = 1
LONGEST_S = 1_800
STARTED = "quickstart"
"""Picture of README.md: the run of `scripts/quickstart.py`. Its records are stored: the picture needs them all."""


@dataclass(frozen=True)
class Pair:
    """A configuration, and a mistake.

    Args:
        name: of the file in `config/`.
        every: updates between two evaluations in both runs, so that a curve has ten points and more.
        mistake: the mistake, in the words of the legend.
        settings: the mistake, as for `--set`, and where a run that never reaches its target ends.
        seen: what a reader sees in the bad run, and what to do.
    """

    name: str
    every: int
    mistake: str
    settings: tuple[str, ...]
    seen: str


PAIRS = (
    Pair(
        "pendulum_sac",
        250,
        "learning rates 50 times too large",
        ("agent.kwargs.lr_actor=0.1", "agent.kwargs.lr_critic=0.1", "trainer.epochs=1", "trainer.rounds=8"),
        "From the first evaluation on it stays at the value of a policy that never swings up. Divide the "
        "rates by ten until the curve moves.",
    ),
    Pair(
        "pendulum_sac_synchronous",
        500,
        "discount factor 0.5: it looks two steps ahead",
        ("agent.kwargs.gamma=0.5", "trainer.epochs=1", "trainer.rounds=8"),
        "It learns what pays within a few steps, and a swing-up pays after fifty. Raise `gamma`.",
    ),
    Pair(
        "pendulum_td3",
        500,
        "learning rate of the policy 0.1",
        ("agent.kwargs.lr_actor=0.1", "trainer.epochs=1", "trainer.rounds=8"),
        "The same return at every evaluation: the actions are at their bounds, where the policy has no "
        "gradient. Lower `lr_actor` and begin again, since this policy does not recover.",
    ),
    Pair(
        "pendulum_redq",
        200,
        "an update for five steps, not five for each",
        (
            "trainer.max_training_steps_per_env_step=0.2",
            "worker.max_env_steps_per_update=5.0",
            "trainer.epochs=1",
            "trainer.rounds=4",
        ),
        "It is slow, not broken. Compare by updates, and raise `trainer.max_training_steps_per_env_step`.",
    ),
    Pair(
        "pendulum_tqc",
        500,
        "target entropy 2 nats: actions stay random",
        ("agent.kwargs.target_entropy=2", "trainer.epochs=1", "trainer.rounds=6"),
        "The entropy coefficient grows without end, and values with it. Leave `target_entropy` at null.",
    ),
    Pair(
        "pendulum_crossq",
        500,
        "learning rates 0.1",
        ("agent.kwargs.lr_actor=0.1", "agent.kwargs.lr_critic=0.1", "trainer.epochs=1", "trainer.rounds=6"),
        "What it learns at first is lost again. Divide the rates by ten until the curve keeps what it reached.",
    ),
    Pair(
        "pendulum_flashsac",
        500,
        "learning rates end before it has learned",
        (
            "agent.kwargs.lr_horizon=300",
            "agent.kwargs.lr_final=0.001",
            "trainer.epochs=1",
            "trainer.rounds=6",
        ),
        "The curve stops where the rates ended. Set `lr_horizon` to the updates of the whole run.",
    ),
    Pair(
        "pendulum_hidden_velocity_rsac",
        500,
        "rewards as they are, not scaled by 0.1",
        ("agent.kwargs.reward_scale=1.0", "trainer.epochs=5"),
        "The critics of a recurrent layer need many updates to reach values of some hundreds. Scale the rewards.",
    ),
    Pair(
        "cartpole_ppo",
        320,
        "learning rate 0.1",
        ("agent.kwargs.lr=0.1", "trainer.epochs=1", "trainer.rounds=15"),
        "Nine or ten steps mean: always the same action. One update has saturated the policy, and "
        "nothing is explored any more.",
    ),
    Pair(
        "cartpole_dqn",
        250,
        "memory of 300 transitions",
        ("memory.capacity=300", "trainer.start_training=300", "trainer.epochs=1", "trainer.rounds=25"),
        "It swings between good and worthless, because it forgets what it saw, and reaches the target by luck. "
        "Enlarge the memory, and trust no single evaluation.",
    ),
    Pair(
        "cartpole_discrete_sac",
        250,
        "transitions of one step, not of 20",
        ("memory.n_step=1", "trainer.epochs=1", "trainer.rounds=12"),
        "It balances and drifts to the side: the end of an episode is too many transitions away. Longer "
        "n-step returns tell the critics sooner.",
    ),
    Pair(
        "delayed_cue_ppo",
        16,
        "a policy without memory",
        (
            "agent.cls=tmrl_core.training:PPOAgent",
            "actor.cls=tmrl_core.actor:CategoricalMLPActor",
            "actor.kwargs={hidden_sizes: [32]}",
            "trainer.epochs=2",
        ),
        "A guess, 0 on average. Nothing else looks wrong: no setting repairs an observation that is missing.",
    ),
    Pair(
        "delayed_cue_r2d2",
        50,
        "sequences of 3 ticks, for a cue of 10",
        ("memory.kwargs={length: 3, stride: 3}", "actor.kwargs.state_interval=3", "trainer.epochs=1"),
        "A gradient crosses three ticks, and the cue is ten ticks old. Take sequences of the task's length.",
    ),
    Pair(
        "example_ppo",
        320,
        "learning rate 1",
        ("agent.kwargs.lr=1.0",),
        "The policy runs into a wall at each step, from the first round on.",
    ),
)

WITHOUT = {
    "pendulum_sac.json": "the same as `pendulum_sac.yaml`",
    "three_machines.yaml": "the same task with the usual learning rates; `pendulum_sac_synchronous` shows its steps",
    "gateway_cartpole.yaml": "needs clients; its returns are in "
    "[the gateway's results](../benchmarks/results/gateway_learning_epyc2core_202611.md)",
}
"""Files of `config/` without a picture, and why."""

RECORDED = {
    "pendulum_redq": "algorithms_epyc2core_202611.md",
    "pendulum_hidden_velocity_rsac": "recurrent_learning_epyc2core_202611.md",
}
"""Results of configurations that take longer than a picture is worth, or whose runs have not been stored yet."""


@dataclass(frozen=True)
class Evaluation:
    """A point of a curve: steps in the environment, updates, mean return, and its standard deviation over episodes."""

    steps: int
    updates: int
    mean: float
    std: float


def settings_of(pair: Pair, good: bool) -> list[str]:
    """Return what a run sets beside its file."""
    given = [f"run.seed={SEED}", f"trainer.evaluation.every_updates={pair.every}"]
    given.append(f"trainer.evaluation.time_limit_s={LONGEST_S}")
    return given if good else [*given, *pair.settings]


def curve_file(name: str) -> Path:
    return CURVES / f"{name}.csv"


def run(name: str, config: str, workers: int, settings: Sequence[str]) -> None:
    """Make one run as a user would, and store its curve."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tmrl_core", "--local", "-c", str(ROOT / "config" / f"{config}.yaml")]
        command += ["--workers", str(workers)]
        for one in (*settings, f"run.folder={folder}", f"run.name={config}"):
            command += ["--set", one]
        environment = {**os.environ, "TMRL_CORE_HOME": f"{folder}/home", "PYTHONPATH": str(ROOT)}
        print(name, flush=True)
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        # 1: the target was not reached, which is the point of a bad run.
        if ended.returncode not in (0, 1) or not ended.stdout.strip():
            raise SystemExit(f"{name}: exit status {ended.returncode}\n{ended.stderr[-2_000:]}")
        print("   ", ended.stdout.strip().splitlines()[-1], flush=True)
        if ended.returncode == 1 and name.endswith("_good"):
            print("    not stored: a good run reaches its target. Other work on this machine may have slowed it.")
            return
        store(name, Path(folder) / config)


def store(name: str, folder: Path) -> None:
    """Write the curve of a run; of README.md's run, its records without those of the network."""
    if name == STARTED:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (CURVES / f"{STARTED}.jsonl").write_text("".join(line for line in lines if '"kind":"network"' not in line))
        return
    found = []
    for record in read_records(folder / "metrics.jsonl"):
        mean, std = record.number(names.RETURN_EVALUATION), record.number(names.RETURN_EVALUATION_STD)
        if record.kind == "evaluation" and mean is not None and std is not None:
            steps = record.step if record.env_steps is None else record.env_steps
            found.append(Evaluation(steps, record.step, round(mean, 3), round(std, 3)))
    CURVES.mkdir(parents=True, exist_ok=True)
    with curve_file(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(one.name for one in fields(Evaluation))
        writer.writerows(astuple(one) for one in found)


def draw_started() -> None:
    """Draw README.md's run as its trainer does."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(CURVES / f"{STARTED}.jsonl", Path(folder) / "metrics.jsonl")
        shutil.copyfile(draw_run(folder, run_name="pendulum_sac"), PICTURES / f"{STARTED}.png")


def read_curve(name: str) -> list[Evaluation]:
    """Return a stored curve."""
    with curve_file(name).open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [Evaluation(int(row[0]), int(row[1]), float(row[2]), float(row[3])) for row in rows]


def draw(pair: Pair) -> None:
    """Draw the two runs of a configuration."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.6, 3.1), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    target = target_of(pair)
    if target is not None:
        axes.axhline(target, color="#2f855a", linewidth=1.2, linestyle=(0, (6, 3)), label=f"target {number(target)}")
    for kind, color, label in (("good", "#0072b2", "as it stands"), ("bad", "#d55e00", pair.mistake)):
        curve = read_curve(f"{pair.name}_{kind}")
        steps, mean = [one.steps for one in curve], [one.mean for one in curve]
        axes.plot(steps, mean, color=color, linewidth=2.0, marker="o", markersize=4, label=label)
        lower, upper = [one.mean - one.std for one in curve], [one.mean + one.std for one in curve]
        axes.fill_between(steps, lower, upper, color=color, alpha=0.13, linewidth=0)
    axes.set_title(pair.name, fontsize=11, fontweight="bold", color="#1f2933", loc="left")
    axes.set_xlabel("environment steps", color="#1f2933")
    axes.set_ylabel("return of evaluations", color="#1f2933")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.6g}")
    axes.grid(color="#e4e7eb", linewidth=0.8)
    axes.tick_params(colors="#1f2933", labelsize=9, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#e4e7eb")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(PICTURES / f"curve_{pair.name}.png")


def number(value: float) -> str:
    """Return a return as text."""
    return f"{value:,.0f}" if abs(value) >= 20 else f"{value:.2f}"


def configuration(pair: Pair) -> Config:
    return load(ROOT / "config" / f"{pair.name}.yaml", environ={})


def target_of(pair: Pair) -> float | None:
    """Return the return at which the configuration ends."""
    return configuration(pair).trainer.evaluation.target_return


def section(pair: Pair) -> str:
    """Return the part of the page about one configuration."""
    good, bad = read_curve(f"{pair.name}_good"), read_curve(f"{pair.name}_bad")
    mistake = [one for one in pair.settings if not one.startswith(("trainer.epochs", "trainer.rounds"))]
    keys = ", ".join(f"`{one.replace('=', ': ', 1)}`" for one in mistake)
    text = f"Good: {told(good)}. Bad, with {pair.mistake} ({keys}): {told(bad)}. {pair.seen}"
    lines = textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
    return f"### {pair.name}\n\n![Returns of a good and of a bad run](pictures/curve_{pair.name}.png)\n\n{lines}\n"


def told(curve: Sequence[Evaluation]) -> str:
    """Return a curve in words."""
    last, best = curve[-1], max(curve, key=lambda one: one.mean)
    text = f"{number(last.mean)} after {last.steps:,} steps and {last.updates:,} updates"
    return text if best.mean <= last.mean else f"{text} (at best {number(best.mean)})"


def page(text: str) -> str:
    """Return the page with its generated part renewed."""
    head, mark, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"error: {PAGE} lacks the lines {BEGIN} and {END}")
    missing = {f"{pair.name}.yaml": where_told(pair) for pair in PAIRS if pair not in stored()}
    without = "\n".join(f"- `config/{name}`: {why}." for name, why in (WITHOUT | missing).items())
    return "\n".join([head + mark, "", *map(section, stored()), f"Without a picture:\n\n{without}\n", end + tail])


def where_told(pair: Pair) -> str:
    """Return the place of the results of a configuration whose curves are not there."""
    if pair.name in RECORDED:
        return f"steps and returns of three seeds are in [these results](../benchmarks/results/{RECORDED[pair.name]})"
    return f"**not run yet**; `python scripts/gallery.py --run {pair.name}` does it"


def stored() -> list[Pair]:
    """Return the pairs whose curves are there."""
    return [pair for pair in PAIRS if all(curve_file(f"{pair.name}_{kind}").is_file() for kind in ("good", "bad"))]


BEGIN = "<!-- Written by scripts/gallery.py from here ... -->"
END = "<!-- ... to here. -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, draw or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", metavar="NAME", default=[], help=f"all, {STARTED}, or names of pairs")
    parser.add_argument("--check", action="store_true", help="check that the page is up to date")
    options = parser.parse_args(arguments)
    PICTURES.mkdir(exist_ok=True)
    known = {pair.name: pair for pair in PAIRS}
    wanted = [STARTED, *known] if options.run == ["all"] else options.run
    if unknown := [name for name in wanted if name != STARTED and name not in known]:
        parser.error(f"--run {unknown[0]}: allowed: all, {STARTED}, {', '.join(known)}")
    for name in wanted:
        if name == STARTED:
            run(STARTED, "pendulum_sac", 2, [])
            draw_started()
            continue
        for kind in ("good", "bad"):
            run(f"{name}_{kind}", name, workers_of(known[name]), settings_of(known[name], kind == "good"))
        draw(known[name])
    if options.run:
        return 0
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if options.check:
        if old != new:
            print(f"{PAGE.name} is not up to date; run python scripts/gallery.py", file=sys.stderr)
        return int(old != new)
    draw_started()
    for pair in stored():
        draw(pair)
    PAGE.write_text(new, encoding="utf-8", newline="\n")
    return 0


def workers_of(pair: Pair) -> int:
    """Return the number of workers: one, or as many as the configuration waits for."""
    return configuration(pair).trainer.lockstep.min_workers


if __name__ == "__main__":
    sys.exit(main())
