"""Write docs/environments.md from `families.yaml` and `results.jsonl`.

python benchmarks/environments/families_page.py            write the page
python benchmarks/environments/families_page.py --check    exit status 1: the page is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml
from try_families import HERE, ROOT, named, read_results

PAGE = ROOT / "docs" / "environments.md"

HEAD = """\
# Environments of others

<!-- Written by benchmarks/environments/families_page.py from families.yaml and results.jsonl: change those. -->

What to write in the configuration for families of environments that people install, and what surprised when they
were tried, with Python 3.11.7 and these versions. A worker recorded up to five episodes of random actions, with
`worker.send_every: 0` and again with 7; each recording was replayed by its seed and actions in the bare environment, in
another process. *Equal* means: observations, rewards, `terminated` and `truncated` are the same in each step, bit by
bit. For environments of many agents, the turns that a manager sees were compared instead.

Where a family shows no configuration, it is this one, with the id from its table:

```yaml
environment:
  cls: tmrl_core.envs:GenericGymEnv
  kwargs:
    id: CartPole-v1
```

Lines that begin with *Measured* come from the bare environment alone: the same actions after `reset(seed=1)`, again in
the same object, and in a fresh one; after `reset(seed=2)`; and arrays that a step changes afterwards.
A worker warns when an evaluation begins elsewhere than an earlier one with its seed.

An environment that is played and recorded can still have a space that no algorithm takes: see
[choosing.md](choosing.md#by-action-space). `python -m tmrl_core --doctor` names the installed versions, and the
combinations below that are known to break, with the repair. Configurations that train on MuJoCo (SAC), MiniGrid (PPO)
and Atari (DQN) are in [examples/families/](../examples/families/halfcheetah_sac.yaml).

To try other versions, change `benchmarks/environments/families.yaml`; then run `try_families.py --only NAME` and
`families_page.py` in that folder.
"""


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    text = page(families(), read_results())
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != text:
        print("docs/environments.md is not up to date: run benchmarks/environments/families_page.py", file=sys.stderr)
        return 1
    return 0


def families() -> list[dict[str, Any]]:
    """Return the families in their order."""
    found: list[dict[str, Any]] = yaml.safe_load((HERE / "families.yaml").read_text(encoding="utf-8"))
    return found


def page(listed: list[dict[str, Any]], results: list[dict[str, Any]]) -> str:
    """Return the text of the page."""
    lines = [HEAD, "## Overview", "", "| family | further versions | recorded and replayed |", "| --- | --- | --- |"]
    parts: list[str] = []
    for family in listed:
        own = [result for result in results if result["family"] == family["name"]]
        if "packages" in family:
            lines.append(
                f"| [{family['name']}](#{anchor(family['name'])}) | {versions(family, own)} | {verdict(own)} |"
            )
        parts += section(family, own)
    parts = [part for part, before in zip(parts, [None, *parts], strict=False) if part or before != ""]
    return "\n".join([*lines, *parts]).rstrip() + "\n"


def anchor(name: str) -> str:
    """Return the anchor of a heading."""
    return "".join(letter for letter in name.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def versions(family: dict[str, Any], own: list[dict[str, Any]]) -> str:
    """Return the installed versions of the packages that the family names without one, and of those in `also`."""
    installed: dict[str, str] = next((result["versions"] for result in own if "versions" in result), {})
    exact = {one.partition("==")[0].partition("[")[0].replace("_", "-") for one in family["packages"] if "==" in one}
    return ", ".join(f"{name} {installed[name]}" for name in named(family) if name in installed and name not in exact)


def verdict(own: list[dict[str, Any]]) -> str:
    """Return one cell about all cases of a family."""
    if not own:
        return "not tried with these versions"
    if all("replay" not in result for result in own):
        return "does not run here"
    good = sum(equal(result) for result in own)
    refused = sum("replay" not in result for result in own)
    counts = {"equal": good, "differs": len(own) - good - refused, "refused": refused}
    return "equal" if good == len(own) else ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


def equal(result: dict[str, Any]) -> bool:
    """Return True if all recordings of a case were replayed without a difference."""
    replayed, episodes = result.get("replay", {}), result.get("record", {}).get("episodes", {})
    return bool(replayed) and all(difference(each, episodes.get(key)) == "equal" for key, each in replayed.items())


def section(family: dict[str, Any], own: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a family, or of a section of text."""
    yield ""
    yield f"## {family['name']}"
    yield ""
    if "text" in family:
        yield family["text"].rstrip()
        yield ""
    if "packages" in family:
        yield f"    pip install {' '.join(map(quoted, family['packages']))}"
        for more in family.get("then", []):
            yield f"    pip install {more}"
        yield ""
        if not usual(first := family["cases"][0]["environment"]):
            yield "```yaml"
            yield example(first, many=own_many(family))
            yield "```"
        for file, text in family["cases"][0].get("files", {}).items():
            yield ""
            yield f"`{file}`, beside the configuration:"
            yield ""
            yield "```python"
            yield text.rstrip()
            yield "```"
        yield ""
        if rows := [row(result) for result in own if "environment" in result]:
            yield "| environment | observations | actions | episodes, steps | replayed |"
            yield "| --- | --- | --- | --- | --- |"
            yield from rows
            yield ""
        for result in own:
            if "environment" not in result:
                yield f"Not tried: {result['failed']}"
                yield ""
    if notes := [*family.get("notes", []), *measured(own)]:
        yield from (f"- {note}" for note in notes)
        yield ""


def measured(own: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the probes of a family's environments have found, once for those that share it."""
    found: dict[str, list[str]] = {}
    for result in own:
        if told := "; ".join(f"{what}: {where}" for what, where in result.get("probe", {}).items()):
            found.setdefault(told, []).append(name_of(result))
    cases = sum("environment" in result for result in own)
    for told, names in found.items():
        yield f"Measured: {told}." if len(names) == cases else f"Measured, {', '.join(names)}: {told}."


def usual(environment: dict[str, Any]) -> bool:
    """Return True for a section of the configuration that has an id and nothing else; the page shows one at its top."""
    return environment["cls"] == "tmrl_core.envs:GenericGymEnv" and list(environment["kwargs"]) == ["id"]


def own_many(family: dict[str, Any]) -> bool:
    """Return True for environments of many agents."""
    return "multiagent" in family["cases"][0]["environment"]["cls"]


def quoted(package: str) -> str:
    """Return a requirement as a shell needs it."""
    return f'"{package}"' if any(mark in package for mark in "[<> ") else package


def example(environment: dict[str, Any], *, many: bool) -> str:
    """Return the section of the configuration."""
    text: str = yaml.safe_dump({"environment": environment}, sort_keys=False).rstrip()
    return f"{text}\n# and `multiagent`, see docs/rooms.md" if many else text


def row(result: dict[str, Any]) -> str:
    """Return the line of one case."""
    name = name_of(result)
    if "replay" not in result:
        return f"| {name} | refused: {cell(reason(result['failed']))} | | | |"
    recorded, replayed = result["record"], result["replay"]
    first = replayed["0"]
    cells = [name, cell(recorded["observations"]), cell(recorded["actions"]), f"{first['sessions']}, {first['steps']}"]
    each = {
        key: difference(replayed[key], recorded.get("episodes", {}).get(key)) for key in ("0", "7") if key in replayed
    }
    same = len(set(each.values())) == 1
    cells.append(each["0"] if same else ". ".join(f"send_every {key}: {what}" for key, what in each.items()))
    return f"| {' | '.join(cells)} |"


def name_of(result: dict[str, Any]) -> str:
    """Return a case's id, with what distinguishes it from the others."""
    kwargs = result["environment"].get("kwargs", {})
    name = kwargs.get("id") or kwargs.get("env") or result["environment"]["cls"]
    changes = {**kwargs.get("gym_kwargs", {}), **kwargs.get("kwargs", {})}
    return f"`{name}`" + (f" ({', '.join(f'{key}: {value}' for key, value in changes.items())})" if changes else "")


def reason(failed: str) -> str:
    """Return a failure without the phase, the exception's module and addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"^(record|replay|probe): (tmrl_core\.errors\.)?", "", failed))


def difference(replayed: dict[str, Any], episodes: int | None = None) -> str:
    """Return words about one recording of so many episodes."""
    told = [f"{what}: {where}" for what, where in replayed["differences"].items()]
    if episodes is not None and episodes != replayed["sessions"]:
        told.append(f"{replayed['sessions']} of {episodes} episodes are recorded")
    return "; ".join(told) or "equal"


def cell(text: str) -> str:
    """Return text that a table can hold."""
    short = text if len(text) <= 300 else text[:297] + "..."
    return short.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
