"""The package that CONTRIBUTING.md walks through, installed from the blocks of the page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
FILES: dict[str, str] = dict(
    re.findall(r"^```\w+\n# ([\w./]+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)
"""Text of each file of the page by its name."""
MODULES = ["acme_rl", *(name.removesuffix(".py").replace("/", ".") for name in FILES if name.startswith("acme_rl/"))]


def install(folder: Path) -> None:
    """Install the package into a folder, as pip does: its files and the entry points of its project."""
    project = FILES["pyproject.toml"]
    points = re.sub(
        r'^\[project\.entry-points\."(.*)"\]$', r"[\1]", project[project.index("[project.entry") :], flags=re.M
    )
    information = "acme_rl-1.0.dist-info"
    texts = {
        **FILES,
        "acme_rl/__init__.py": "",
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: acme-rl\nVersion: 1.0\n",
        f"{information}/entry_points.txt": points.replace('"', ""),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
