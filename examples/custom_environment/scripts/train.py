"""Train PPO: five iterations of 4000 steps, which two workers collect and send over TLS; a checkpoint after each."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tmrl_core import Server, Trainer
from tmrl_core.config import load

CONFIG = Path(__file__).resolve().parents[1] / "line_walk.yaml"
LINE = "{:2d} reward {:6.2f}/{:6.2f}/{:6.2f} len {:4.2f} saved {}"


@contextlib.contextmanager
def workers(number: int, options: list[str]) -> Iterator[None]:
    """Start workers as on other machines; with `--control`, they end with this process."""
    command = [sys.executable, "-m", "tmrl_core", "--worker", "--control", "--log-level", "WARNING", *options]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.communicate()  # close its input, which ends the worker, and wait


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as tmrl_core's --set")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--restore", type=Path, metavar="CHECKPOINT", help="continue from this checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="remove the files of an earlier run first")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)  # otherwise Server and Trainer log their steps

    # Old checkpoints beside new ones would mislead rollout.py, and old logs TensorBoard.
    folder = load(arguments.config, arguments.set).run_folder
    if arguments.restore is None and folder.exists():
        if not arguments.overwrite:
            parser.error(f"{folder} holds an earlier run: continue it with --restore, or remove it with --overwrite")
        shutil.rmtree(folder)

    with Server(port=0, config=load(arguments.config, arguments.set)) as server:
        changes = [*arguments.set, f"server.port={server.port}"]
        config = load(arguments.config, changes)
        options = ["-c", str(arguments.config), *(word for change in changes for word in ("--set", change))]
        with Trainer(config=config) as trainer, workers(2, options):
            if arguments.restore is not None:
                trainer.restore(arguments.restore)
            for _ in range(arguments.iterations):
                row = trainer.train_iteration()
                saved = trainer.save(config.run_folder / "checkpoints")
                rewards = row["return_min"], row["return_mean"], row["return_max"]
                print(LINE.format(row["iteration"], *rewards, row["episode_length_mean"], saved), flush=True)
            trainer.finish()


if __name__ == "__main__":
    main()
