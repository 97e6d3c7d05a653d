"""The pages that tell what to type: their commands, options, configuration keys, snippets and links exist and work."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import msgspec
import pytest

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.cli.credentials import parser as credentials_parser
from tmrl_core.cli.doctor import parser as doctor_parser
from tmrl_core.cli.main import all_overrides, parser
from tmrl_core.cli.metrics import parser as metrics_parser
from tmrl_core.cli.sessions import parser as sessions_parser
from tmrl_core.compat.files_of_tmrl import parser as tmrl_parser
from tmrl_core.config import load
from tmrl_core.config.error_messages import keys_of
from tmrl_core.config.room_sections import config_type
from tmrl_core.onnx_export.command import parser as export_parser
from tmrl_core.plots.command import parser as plot_parser
from tmrl_core.sessions.formats import session_formats
from tmrl_core.success.command import parser as label_parser

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs" / "recipes.md"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tmrl_core").rglob("*.md")),
    ROOT / "credentials" / "README.md",
]
FILES = {"json", "jsonl", "key", "pem", "py", "token", "yaml"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

GRAMMARS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "--credentials": credentials_parser,
    "--doctor": doctor_parser,
    "--sessions": lambda: sessions_parser(session_formats()),
    "--export": export_parser,
    "--label": label_parser,
    "--metrics": metrics_parser,
    "--plot": plot_parser,
}
"""Options whose command has a grammar of its own."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `tmrl_core` command of a page; a shell's variables count as 1."""
    text = re.sub(r"\\\n\s*", " ", text_of(page))
    for found in re.findall(r"tmrl_core (--[^#|&>'`\n]*)", text):
        yield shlex.split(re.sub(r"\$\w+", "1", found))


@each_page
def test_its_commands_are_accepted(page: Path) -> None:
    for words in commands(page):
        own = GRAMMARS.keys() & set(words)
        if own:
            (option,) = own
            GRAMMARS[option]().parse_args([word for word in words if word != option])
        elif words[0].startswith("--import-"):
            tmrl_parser().parse_args(words)
        else:
            load(ROOT / "config" / "pendulum_sac.yaml", all_overrides(parser().parse_args(words)), {})


@each_page
def test_its_configuration_keys_exist(page: Path, tmp_path: Path) -> None:
    sections = keys_of(config_type())
    for found in re.findall(r"`([a-z_]+(?:\.\w+)+)\b(?![(*])", text_of(page)):
        first, *rest = found.split(".")
        if first not in sections or rest[-1] in FILES:
            continue
        section: type[msgspec.Struct] | None = sections[first]
        for key in rest:
            if section is not None:
                assert key in keys_of(section), found
                section = keys_of(section)[key]
    for block in blocks(page, "yaml"):
        (tmp_path / "shown.yaml").write_text(block, encoding="utf-8")
        load(tmp_path / "shown.yaml", environ={})


@each_page
def test_it_installs_the_checkout_as_editable(page: Path) -> None:
    """In the quickstart's environment, another installation would replace the editable one by a copy."""
    # An environment or container that holds nothing but the package (with the path of its pip) takes a copy.
    assert re.findall(r"(?<!/bin/)pip install [\"']?\.\S*", text_of(page)) == []


@each_page
def test_its_links_have_targets(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_policy_acts_in_another_loop(tmp_path: Path) -> None:
    (shown,) = blocks(ROOT / "docs" / "howto.md", "python")
    weights = tmp_path / "runs" / "pendulum_sac" / "policy.tmod"
    weights.parent.mkdir(parents=True)
    env = gymnasium.make("Pendulum-v1")
    NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, hidden_sizes=(64, 64)).save(weights)
    code = f"{shown}\nimport sys\nprint('torch' in sys.modules)"
    said = run(tmp_path, sys.executable, "-W", "error", "-c", code).stdout
    assert re.fullmatch(r"return -\d+\.\d+\nFalse\n", said)


@pytest.mark.filterwarnings("error")
def test_the_scenario_of_many_agents_is_learned() -> None:
    shown = blocks(ROOT / "tmrl_core" / "multiagent" / "tutorial.md", "python")[0]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(shown, {"__name__": "harbour"})
    before, after = map(int, re.fullmatch(r"cost before (\d+)\ncost after (\d+)\n", said.getvalue()).groups())  # type: ignore[union-attr]
    assert after <= before / 4


SMALL = """
server: {port: 0}
environment: {kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 50}
memory: {batch_size: 16}
trainer: {epochs: 1, rounds: 1, steps: 20, start_training: 50, device: cpu}
"""


@pytest.mark.full
def test_the_runs_of_several_seeds_are_drawn_together(tmp_path: Path) -> None:
    """The command as it stands, with two seeds; and the one that draws them again."""
    (command,) = (line for line in (ROOT / "docs" / "howto.md").read_text().splitlines() if "--seeds 0-4" in line)
    assert command.startswith("    python -m tmrl_core --local ")
    (tmp_path / "my.yaml").write_text(SMALL, encoding="utf-8")
    words = command.replace("0-4", "0-1").split()[1:]
    said = run(tmp_path, sys.executable, *words, "--workers", "1").stdout
    assert (tmp_path / "runs" / "pendulum.png").is_file()
    assert re.search(r"pendulum +2 ", said)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_sweep_of_the_researcher_finds_settings(tmp_path: Path) -> None:
    """The script as it stands, with two trials of a short run; a second start goes on with the same study."""
    pytest.importorskip("optuna", reason="the tutorial installs it")
    (script,) = blocks(ROOT / "docs" / "tutorials" / "researcher.md", "python")
    (tmp_path / "sweep.py").write_text(script.replace("n_trials=20", "n_trials=2"), encoding="utf-8")
    (tmp_path / "my.yaml").write_text(SMALL, encoding="utf-8")
    evaluated = ("--set", "trainer.evaluation.every_updates=10", "--set", "trainer.evaluation.episodes=1")
    said = run(tmp_path, sys.executable, "sweep.py", *evaluated).stdout
    assert re.search(r"^\{'lr': 0\.\d+, 'gamma': 0\.9\d*\}$", said, re.MULTILINE)
    study = (tmp_path / "sweep.py").read_text().replace("n_trials=2", "n_trials=1")
    (tmp_path / "sweep.py").write_text(study, encoding="utf-8")
    run(tmp_path, sys.executable, "sweep.py", *evaluated)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["sweep-0", "sweep-1", "sweep-2"]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_first_runs_of_the_researcher_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(SMALL, encoding="utf-8")
    page = text_of(ROOT / "docs" / "tutorials" / "researcher.md")
    (first,) = re.findall(r"^    (python -m tmrl_core --local .* --set run.name=first .*)$", page, re.MULTILINE)
    run(tmp_path, sys.executable, *first.split()[1:], "--workers", "1")
    assert (tmp_path / "runs" / "first" / "learning_curve.png").is_file()
    run(tmp_path, sys.executable, *first.split()[1:], "--workers", "1", "--new")
    said = run(tmp_path, sys.executable, "-m", "tmrl_core", "--plot", "runs/first", "runs/first-2", "--stats").stdout
    assert "IQM" in said


@pytest.mark.skipif(sys.platform == "win32", reason="bash and POSIX signals")
def test_the_slurm_job_ends_in_order_before_its_time_limit_and_is_requeued(tmp_path: Path) -> None:
    (script,) = blocks(RECIPES, "bash")
    (tmp_path / "train.sbatch").write_text(script, encoding="utf-8")
    (tmp_path / "my.yaml").write_text("network: {security: null}\nserver: {port: 9}\ntrainer: {device: cpu}\n")
    program(tmp_path / "bin" / "python", f'exec "{sys.executable}" "$@"')
    program(tmp_path / "bin" / "scontrol", 'echo "$@" > scontrol.log')
    with subprocess.Popen(
        ["bash", "train.sbatch"], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        said = next(line for line in job.stderr if "start: " in line)
        job.send_signal(signal.SIGUSR1)
        said += job.stderr.read()
        assert job.wait(60) == 0, said
    assert "SIGTERM: ending in order" in said
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    (unit,) = blocks(RECIPES, "ini")
    program(tmp_path / "python", "")
    unit = unit.replace("/opt/tmrl_core/bin/python", str(tmp_path / "python"))
    unit_file = "tmrl-server.service"
    (tmp_path / unit_file).write_text(unit, encoding="utf-8")
    said = run(tmp_path, "systemd-analyze", "verify", "--man=no", f"./{unit_file}")
    # Other lines are about other units of this machine.
    assert [line for line in said.stderr.splitlines() if unit_file in line] == []


def test_the_image_copies_files_that_exist() -> None:
    (image,) = blocks(RECIPES, "dockerfile")
    copied = [word for line in re.findall(r"^COPY (.*)$", image, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    assert [word for word in copied if not (ROOT / word).exists()] == []


def program(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    return kept | {
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "17",
        "TMRL_CORE_HOME": str(folder / "home"),
    }


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=200, check=True
    )
