"""`python -m tmrl_core --export`: the policy of a run as one ONNX file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tmrl_core.cli.main import common_options, load_config, set_up_logging, shown
from tmrl_core.config.loading import expanded
from tmrl_core.errors import ConfigError
from tmrl_core.onnx_export.file import write_onnx
from tmrl_core.onnx_export.sources import configuration_of, exported, weights_of

EPILOG = """\
The file takes observations as the environment returns them, in batches, and gives actions of the action space;
README.md beside this file names its inputs and outputs, and runs it from Python and JavaScript.
examples:
  python -m tmrl_core --export runs/ant policy.onnx                       the run's latest saved policy
  python -m tmrl_core --export runs/ant policy.onnx --checkpoint best     of the best evaluation
  python -m tmrl_core --export runs/ant/worker/history/policy_01_12_2026_10_00_00.tmod policy.onnx
"""


def parser() -> argparse.ArgumentParser:
    """Return the grammar of a command line after `--export`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --export",
        description="Write the policy of a run as one ONNX file, for programs without Python.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common_options()],
        allow_abbrev=False,
    )
    made.add_argument(
        "source", metavar="SOURCE", help="folder of a run, folder of a checkpoint, or file of weights (policy.tmod)"
    )
    made.add_argument("file", metavar="FILE", help="the ONNX file to write, such as policy.onnx")
    made.add_argument(
        "--checkpoint", metavar="WHICH", help="with the folder of a run: take the checkpoint `best`, `last` or a number"
    )
    made.add_argument(
        "--spaces",
        metavar="FILE",
        help="spaces.json of recorded sessions (default: the environment is made, for its spaces)",
    )
    return made


def run_export(arguments: Sequence[str]) -> int:
    """Run a command line with `--export`.

    Raises:
        ConfigError: there is no policy, or none that can be exported; the file cannot be written.
        CheckpointError, StorageError, WeightsError: files are damaged, or do not fit the configuration.
        MissingExtraError: onnx is not installed, or torch where it is needed.
    """
    options = parser().parse_args([word for word in arguments if word != "--export"])
    set_up_logging(options.log_level)
    source = expanded(options.source)
    if not source.exists():
        raise ConfigError(
            f"{options.source} not found: name the folder of a run, of a checkpoint, or a file of weights"
        )
    if options.config is None:
        options.config = str(configuration_of(source))
    config = load_config(options)
    origin = weights_of(source, config, options.checkpoint)
    found = exported(config, origin, expanded(options.spaces) if options.spaces else None)
    if config.worker.obs_preprocessor is not None:
        print(
            shown(
                f"worker.obs_preprocessor: {config.worker.obs_preprocessor} is not in the file: apply it to each "
                "observation before."
            )
        )
    target = expanded(options.file)
    try:
        written = write_onnx(found.policy, target, found.metadata)
    except OSError as exc:
        raise ConfigError(f"{options.file} cannot be written: {exc.strerror or exc}") from exc
    print(shown(f"{options.file}: {target.stat().st_size / 1e3:,.0f} kB, the policy of {origin}"))
    print(shown(f"inputs:  {', '.join(written.inputs)}"))
    print(shown(f"outputs: {', '.join(written.outputs)}"))
    print(f"largest difference to the policy on sampled observations: {written.difference:.1e}")
    return 0
