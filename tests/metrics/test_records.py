from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch

from tmrl_core.metrics import names
from tmrl_core.metrics.records import MetricRecord, Value, decode_line, encode_line, episode_values, plain, record


def make(**values: Value) -> MetricRecord:
    return record("round", values, step=3, elapsed_s=12.5, time_s=112.5)


def test_a_record_knows_its_times_and_step() -> None:
    made = make(return_test=-1.5)
    assert (made.time_s, made.elapsed_s, made.step, made.kind) == (112.5, 12.5, 3, "round")


def test_the_time_is_the_clocks_when_it_is_not_given() -> None:
    made = record("event", {"event": "start"}, step=0, elapsed_s=0.0)
    assert made.time_s > 1_000_000_000


@pytest.mark.parametrize(("end", "cut"), [("terminated", False), ("truncated", False), ("aborted", True), ("", False)])
def test_a_cut_episode_gives_no_numbers_for_charts(end: str, cut: bool) -> None:
    values = episode_values(worker="a", mode="train", episode_return=-7.0, length=3, samples_received=9, end=end)
    made = record("episode", values, step=1, elapsed_s=1.0)
    assert made.is_cut == cut
    assert made.number(names.RETURN_TRAIN) == -7.0
    assert made.env_steps == 9
    assert (names.RETURN_TRAIN in made.numbers()) != cut


def test_a_record_survives_its_line() -> None:
    made = make(memory_len=10, return_test=-1.25, worker="näme", connected=True, lack=None)
    line = encode_line(made)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_line(line) == made


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(value: float) -> None:
    assert decode_line(encode_line(make(loss_actor=value))).values == {"train/actor_loss": None}


@pytest.mark.parametrize("line", [b'{"time_s": 1.0, "elap', b"", b"[]", b'{"time_s": "x"}', b"\xff\xfe"])
def test_a_line_without_a_record_is_an_error(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_line(line)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([2.5]), 2.5),
        (np.array(3), 3),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([4]), 4),
        ("text", "text"),
        (None, None),
        (True, True),
        ((1, 2), "(1, 2)"),
    ],
)
def test_values_become_pythons_own(value: object, expected: Value) -> None:
    got = plain(value)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize("value", [np.zeros(3), torch.zeros(2), np.zeros(0)])
def test_arrays_of_other_sizes_become_text(value: object) -> None:
    assert isinstance(plain(value), str)


def test_number_gives_finite_numbers_only() -> None:
    made = make(whole=2, real=0.5, nan=math.nan, none=None, text="1", yes=True)
    got = {name.removeprefix("train/"): made.number(name) for name in (*made.values, "absent")}
    assert got == {"whole": 2.0, "real": 0.5, "nan": None, "none": None, "text": None, "yes": None, "absent": None}


def test_numbers_leaves_labels_out() -> None:
    assert make(whole=2, seed=3, text="1", none=None, yes=True).numbers() == {"train/whole": 2.0, "train/yes": 1.0}


@pytest.mark.parametrize(
    ("mode", "evaluation", "expected"),
    [
        ("train", None, {names.RETURN_TRAIN: -3.5, names.EPISODE_LENGTH_TRAIN: 200}),
        ("test", None, {names.RETURN_TEST: -3.5, names.EPISODE_LENGTH_TEST: 200}),
        ("test", 4, {"eval/ep_rew": -3.5, "eval/ep_len": 200, names.EVALUATION: 4}),
    ],
)
def test_an_episodes_values_have_names_by_its_purpose(
    mode: Literal["train", "test"], evaluation: int | None, expected: dict[str, Value]
) -> None:
    values = episode_values(
        worker="robot7",
        mode=mode,
        episode_return=-3.5,
        length=200,
        samples_received=800,
        agent="a0",
        end="truncated",
        version=(1, 9),
        seed=5,
        evaluation=evaluation,
    )
    assert values == expected | {
        "worker": "robot7", "mode": mode, "time/total_timesteps": 800, "version": "1.9", "agent": "a0",
        "end": "truncated", "seed": 5,
    }  # fmt: skip


def test_every_constant_is_in_the_vocabulary() -> None:
    constants = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("EVENT_")
    }
    assert constants == set(names.VOCABULARY)


def test_rows_have_the_names_of_stable_baselines3_in_records() -> None:
    row = {
        "return_train": -3.0, "return_mean": -2.5, "episode_length_mean": 9.0, "loss_actor": 1.0, "loss_critic": 2.0,
        "entropy_coef": 0.5, "learning_rate": 1e-3, "updates": 7, "samples_per_s": 60.0, "samples_received": 30,
        "my_metric": 4, "loss_mine": 5, "return_test": math.nan,
    }  # fmt: skip
    made = record("round", row, step=7, elapsed_s=0.0)
    assert made.values == {
        "rollout/ep_rew": -3.0, "rollout/ep_rew_mean": -2.5, "rollout/ep_len_mean": 9.0, "train/actor_loss": 1.0,
        "train/critic_loss": 2.0, "train/ent_coef": 0.5, "train/learning_rate": 1e-3, "train/n_updates": 7,
        "time/fps": 60.0, "time/total_timesteps": 30, "train/my_metric": 4, "train/mine_loss": 5,
    }  # fmt: skip
    assert made.env_steps == 30
    back = {names.short(name): value for name, value in made.values.items()}
    assert back == {name: value for name, value in row.items() if name != "return_test"}


def test_the_table_of_names_maps_both_ways() -> None:
    assert [short for short in names.OF_ROWS if names.short(names.metric_name(short)) != short] == []


def test_the_page_of_metrics_lists_every_name() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, text in names.VOCABULARY.items():
        if "/" in name:
            short = f"`{names.short(name)}`" if names.short(name) != name else "-"
            assert f"| `{name}` | {short} | {text} |\n" in page
