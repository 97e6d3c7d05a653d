"""Folders of runs with known returns."""

from __future__ import annotations

from pathlib import Path

from tmrl_core.metrics.records import Value, encode_line, episode_values, record


def make_run(
    folder: Path,
    *,
    settings: str = "agent: {algorithm: sac}",
    about: str = "",
    level: float = 0.0,
    evaluations: int = 6,
    episodes: int = 0,
    steps_each: int = 100,
) -> Path:
    """Write the files of a run whose return grows by 10 with each evaluation, from `level` on."""
    folder.mkdir(parents=True)
    lines = [record("event", {"event": "start", "run_name": folder.name}, step=0, elapsed_s=0.0)]
    for index in range(evaluations):
        values: dict[str, Value] = {"return_evaluation": level + 10.0 * index}
        values["samples_received"] = steps_each * index
        lines.append(record("evaluation", values, step=50 * index, elapsed_s=6.0 * index))
        lines.append(record("round", {"return_train": -1.0, "samples_received": 1}, step=50 * index, elapsed_s=6.0))
    for index in range(episodes):
        values = episode_values(
            worker="w", mode="train", episode_return=level, length=9, samples_received=10 * (index + 1)
        )
        lines.append(record("episode", values, step=index, elapsed_s=float(index)))
    (folder / "metrics.jsonl").write_bytes(b"".join(map(encode_line, lines)))
    (folder / "config.yaml").write_text(f"run: {{name: {folder.name}{about}}}\n{settings}\n")
    return folder
