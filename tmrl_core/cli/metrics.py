"""`python -m tmrl_core --metrics`: the records of a run for a tracker, from its `metrics.jsonl`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tmrl_core.cli.main import set_up_logging, shown
from tmrl_core.config import Config, load
from tmrl_core.errors import ConfigError
from tmrl_core.metrics.reading import iter_records
from tmrl_core.metrics.sinks import MetricSink

UPLOAD_S = 600.0
"""Maximum wait for the upload to wandb."""

EPILOG = """\
wandb gets a new run, because one that has some of the records already would get them twice. TensorBoard's files go to
tensorboard/ in the run's folder, which must not exist.
"""


def parser() -> argparse.ArgumentParser:
    """The grammar of a command line after `--metrics`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --metrics",
        description="Send the records of a run to a tracker.",
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    sending = commands.add_parser(
        "send",
        help="send all records in a run's metrics.jsonl to wandb or TensorBoard",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sending.add_argument("run", help="folder of the run")
    sending.add_argument("--to", required=True, choices=["wandb", "tensorboard"], help="the tracker")
    sending.add_argument("--id", default=None, metavar="ID", help="wandb: id of the run (default: a new one)")
    return made


def run_metrics(arguments: Sequence[str]) -> int:
    """Run a command line with `--metrics`.

    Raises:
        ConfigError: the folder holds no records, or has TensorBoard files already.
        MissingExtraError: the package of the tracker is not installed.
    """
    options = parser().parse_args([word for word in arguments if word != "--metrics"])
    set_up_logging("info")
    folder = Path(options.run)
    path, described = folder / "metrics.jsonl", folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} not found: name the folder of a run, which is run.folder and run.name")
    config = load(described, environ={}) if described.is_file() else Config()
    count = 0
    with _sink(folder, config, options) as sink:
        for record in iter_records(path):
            sink.write(record)
            count += 1
    print(shown(f"{path}: {count} records"))
    return 0


def _sink(folder: Path, config: Config, options: argparse.Namespace) -> MetricSink:
    x_axis = config.metrics.x_axis if config.trainer.offline is None else "updates"
    values = msgspec.to_builtins(config, enc_hook=str)
    if options.to == "tensorboard":
        from tmrl_core.metrics.tensorboard_sink import TensorBoardSink

        if (folder / "tensorboard").exists():
            raise ConfigError(f"{folder / 'tensorboard'} exists: its points would be there twice. Move it away first")
        return TensorBoardSink(folder / "tensorboard", x_axis=x_axis, hparams=values)
    from tmrl_core.metrics.wandb_sink import WandbSink

    return WandbSink(
        project=config.metrics.wandb_project,
        entity=config.metrics.wandb_entity,
        run_id=options.id,
        run_name=folder.resolve().name,
        group=config.run.group,
        tags=config.run.tags,
        notes=config.run.notes,
        folder=folder,
        config=values,
        x_axis=x_axis,
        finish_limit_s=UPLOAD_S,
    )
